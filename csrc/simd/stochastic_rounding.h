// Stores that round at random, up or down in proportion to the distance: unbiased, and reproducible.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/half.h"
#include "simd/memory.h"
#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

// Sixteen random words that depend on the seed, the row and the column alone.
inline Words random_words(uint64_t row_seed, const Words& columns) {
  Words x = columns * 0x9e3779b1u + static_cast<uint32_t>(row_seed);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ static_cast<uint32_t>(row_seed >> 32) ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// The same of sixteen columns side by side.
inline Words random_words(uint64_t row_seed, int64_t column) {
  constexpr uint32_t kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Words lanes;
  std::memcpy(&lanes, kLaneNumbers, sizeof lanes);
  return random_words(row_seed, lanes + static_cast<uint32_t>(column));
}

// That of one column.
inline uint32_t random_word(uint64_t row_seed, uint32_t column) {
  uint32_t x = column * 0x9e3779b1u + static_cast<uint32_t>(row_seed);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ static_cast<uint32_t>(row_seed >> 32) ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

inline void store_random(float* to, const Floats& lanes, const Words&, int n) { store(to, lanes, n); }

inline void store_random(BFloat16* to, const Floats& lanes, const Words& random, int n) {
  const Words bits = bits_of(lanes);
  const Words special = (bits & 0x7fffffffu) >= 0x7f7f0000u;
  const Words rounded = (bits + (random & 0xffffu)) >> 16;
  const Words nearest = converted<Words>(narrow_bfloat(lanes));
  store_shorts(to, converted<Shorts>(select(special, nearest, rounded)), n);
}

// A single number, as sixteen of them.
inline void store_random(BFloat16* to, float value, uint32_t random) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) < 0x7f7f0000u) {
    to->bits = static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
  } else {
    store(to, all(value), 1);
  }
}

inline void store_random(Half* to, const Floats& lanes, const Words& random, int n) {
  const Words sign = bits_of(lanes) & 0x80000000u, rest = bits_of(lanes) ^ sign;
  const Floats normal = floats_of((rest + (random & 0x1fffu)) & ~0x1fffu);
  // Below 2^-14 halves lie 2^-24 apart: round the multiple of that up or down.
  const Floats multiple = floats_of(rest) * 16777216.0f;
  const Floats chance = converted<Floats>(random >> 8) * 5.9604644775390625e-8f;
  const Floats whole = converted<Floats>(converted<Ints>(multiple + chance));
  const Floats tiny = whole * 5.9604644775390625e-8f;
  const Floats rounded = select(rest < 0x38800000u, tiny, normal);
  const Floats kept = select(rest >= 0x477fe000u, floats_of(rest), rounded);
  store(to, floats_of(bits_of(kept) | sign), n);
}

}  // namespace MG_VARIANT
}  // namespace megalith
