// The bare loops of one processor variant. They share the vector type with the embedding kernels and nothing else.
#pragma once

#include "machine/kernels.h"
#include "simd/memory.h"
#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

template <int kLocality>
inline void prefetch_lines(const char* row, int64_t row_bytes) {
  // The compiler must not take this for a function without effect.
  __asm__ volatile("");
  for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 0, kLocality);
}

template <class Visit>
inline void visit_scattered(const ScatteredRows& rows, int64_t from, int64_t to, Visit visit) {
  for (int64_t i = from; i < to; ++i) {
    if (i + rows.ahead < to) {
      const char* coming = rows.base + rows.ids[i + rows.ahead] * rows.row_bytes;
      rows.level == 1 ? prefetch_lines<3>(coming, rows.row_bytes) : prefetch_lines<2>(coming, rows.row_bytes);
    }
    float* row = reinterpret_cast<float*>(rows.base + rows.ids[i] * rows.row_bytes);
    for (int64_t column = 0; column < rows.row_bytes / 4; column += kLanes) visit(row + column);
  }
}

inline float read_scattered(const ScatteredRows& rows, int64_t from, int64_t to) {
  Floats total{};
  visit_scattered(rows, from, to, [&](float* lanes) { total += load(lanes); });
  return sum(total);
}

inline void update_scattered(const ScatteredRows& rows, int64_t from, int64_t to) {
  visit_scattered(rows, from, to, [](float* lanes) { store(lanes, load(lanes) + 1.0f); });
}

}  // namespace MG_VARIANT
}  // namespace megalith
