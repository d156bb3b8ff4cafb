// Asking for rows before their turn.
//
// Into the second-level cache: what is on its way there is not held up by the few line-fill buffers of the first
// (docs/decisions/0005: a third more bytes a second than prefetching all the way).
#pragma once

#include <cstdint>

#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

// Rows in flight ahead of the one in use: enough bytes to cover the latency of memory.
inline int64_t prefetch_distance(int64_t row_bytes) {
  return least<int64_t>(greatest<int64_t>(16384 / greatest<int64_t>(row_bytes, 64), 4), 64);
}

inline void prefetch_row(const void* row, int64_t bytes) {
  // Keeps the compiler from taking a function that only prefetches for one without effect and leaving it out.
  __asm__ volatile("");
  const uintptr_t from = reinterpret_cast<uintptr_t>(row) & ~uintptr_t{63};
  const uintptr_t end = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(bytes);
  for (uintptr_t line = from; line < end; line += 64) __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
}

}  // namespace MG_VARIANT
}  // namespace megalith
