// Norms of a gradient's chunks and utilities of chunks, which follow them.
#pragma once

#include <cstdint>
#include <cstring>

#include "chunks/live_columns.h"
#include "chunks/record.h"
#include "optimizer/row_step.h"
#include "simd/stochastic_rounding.h"

namespace megalith {
inline namespace MG_VARIANT {

// Norms of a gradient's chunks, in the place of each; lanes beyond the last chunk are 0.
struct ChunkNorms {
  Floats few;                            // of up to sixteen chunks
  alignas(64) float many[kMostChunks];   // of more
  float total;

  Floats of_chunks(int64_t first, int64_t chunks) const { return chunks <= kLanes ? few : load(many + first); }
};

// The sum of 2, 4 or 8 numbers as that of sixteen lanes adds them.
inline float sum_few(const float* from, int64_t count) {
  if (count == 2) return from[0] + from[1];
  if (count == 4) return (from[0] + from[2]) + (from[1] + from[3]);
  return ((from[0] + from[4]) + (from[2] + from[6])) + ((from[1] + from[5]) + (from[3] + from[7]));
}

// Squares of a chunk's columns, added up in sixteen lanes; zeros for a chunk behind the last.
__attribute__((always_inline)) inline Floats chunk_squares(const ChunkedPool& pool, const float* gradient, int64_t chunk) {
  Floats squares{};
  if (chunk >= pool.chunks) return squares;
  if (pool.width == kLanes) {
    const Floats lanes = load(gradient + chunk * kLanes);
    return lanes * lanes;
  }
  for_columns(pool.width, [&](int64_t column, int n) {
    const Floats lanes = load(gradient + chunk * pool.width + column, n);
    squares += lanes * lanes;
  });
  return squares;
}

inline Floats squares_of_four(const ChunkedPool& pool, const float* gradient, int64_t chunk) {
  return sums_of_four(chunk_squares(pool, gradient, chunk), chunk_squares(pool, gradient, chunk + 1),
                      chunk_squares(pool, gradient, chunk + 2), chunk_squares(pool, gradient, chunk + 3));
}

// The squared norm of each chunk.
inline void find_squares(const ChunkedPool& pool, const float* gradient, float* found) {
  const int64_t width = pool.width, chunks = pool.chunks;
  // Lanes beyond the last chunk are read with the others.
  store(found + (chunks - 1) / kLanes * kLanes, Floats{});
  if (width == 1) {
    for_columns(chunks, [&](int64_t column, int n) {
      const Floats lanes = load(gradient + column, n);
      store(found + column, lanes * lanes, n);
    });
  } else if (width == 2 || width == 4 || width == 8) {
    // As below, where the other lanes of a sum are 0.
    alignas(64) float lanes[kLanes];
    for_columns(pool.dim, [&](int64_t column, int n) {
      const Floats given = load(gradient + column, n);
      store(lanes, given * given);
      float* to = found + column / width;
      for (const float* from = lanes; from < lanes + n; from += width) *to++ = sum_few(from, width);
    });
  } else {
    for (int64_t chunk = 0; chunk < chunks; chunk += 4) store(found + chunk, squares_of_four(pool, gradient, chunk), 4);
  }
}

inline void find_norms(const ChunkedPool& pool, const float* gradient, ChunkNorms& found) {
  if (pool.chunks <= 4 && pool.width >= kLanes) {
    // All of it in registers.
    found.few = root(squares_of_four(pool, gradient, 0));
    found.total = sum(found.few);
    return;
  }
  find_squares(pool, gradient, found.many);
  if (pool.chunks <= kLanes) {
    found.few = root(load(found.many));
    found.total = sum(found.few);
    return;
  }
  Floats total{};
  for (int64_t chunk = 0; chunk < pool.chunks; chunk += kLanes) {
    const Floats norms = root(load(found.many + chunk));
    store(found.many + chunk, norms);
    total += norms;
  }
  found.total = sum(total);
}

// Adds `weight` times its norm to the utility of each live chunk, and of the others to that of growth; returns what
// utilities and growth were together.
inline float add_utilities(const ChunkedPool& pool, char* record, int64_t live, uint64_t mask, const ChunkNorms& found,
                           float weight, uint64_t seed) {
  auto* utilities = reinterpret_cast<BFloat16*>(record + pool.layouts[live].utilities);
  auto* growth = reinterpret_cast<BFloat16*>(record);
  const Floats growth_before = load(growth, 1);
  Floats dead{}, before = growth_before;
  for (int64_t chunk = 0; chunk < pool.chunks; chunk += kLanes) {
    const uint32_t lanes = static_cast<uint32_t>(mask >> chunk) & kAllLanes;
    const Floats norms = found.of_chunks(chunk, pool.chunks);
    const int n = num_lanes(lanes);
    if (n < kLanes) dead += only(norms, ~lanes & kAllLanes);
    if (n == 0) continue;
    const Floats own = load(utilities, n);
    before += own;
    // Those of a row that keeps a prefix lie as their chunks do.
    const bool is_prefix = (lanes & (lanes + 1)) == 0;
    const Floats norms_of_live = is_prefix ? norms : gathered(norms, lanes);
    store_random(utilities, own + norms_of_live * weight, random_words(seed, chunk), n);
    utilities += n;
  }
  if (mask != pool.all_chunks) {
    store_random(growth, growth_before[0] + sum(dead) * weight, random_word(seed, kMostChunks));
  }
  return sum(before);
}

}  // namespace MG_VARIANT
}  // namespace megalith
