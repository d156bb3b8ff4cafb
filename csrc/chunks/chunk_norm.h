// The norm of a chunk's weights, in float32, in an order that is part of what it is: eight sums, of the columns that
// leave 0 to 7 when divided by eight, each from the first on, of which the upper half is added to the lower three times.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace megalith {

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// Of a half-precision number without its sign.
inline float magnitude_of_half(uint32_t bits) {
  if (bits >= 0x7c00) return float_of(bits << 13 | 0x7f800000);
  // Exact, also for subnormal halves.
  return float_of(bits << 13) * 0x1p112f;
}

using EightFloats = float __attribute__((vector_size(32)));

// Up to eight weights; signs may be lost, as they are squared.
inline EightFloats eight_weights(const char* weights, int64_t count, int64_t dtype) {
  EightFloats lanes = {};
  if (dtype == 0) {
    if (count == 8) {
      std::memcpy(&lanes, weights, 32);
    } else {
      std::memcpy(&lanes, weights, static_cast<size_t>(count) * 4);
    }
    return lanes;
  }
  uint16_t stored[8] = {};
  std::memcpy(stored, weights, static_cast<size_t>(count) * 2);
  for (int l = 0; l < 8; ++l) {
    lanes[l] = dtype == 1 ? magnitude_of_half(stored[l] & 0x7fffu) : float_of(uint32_t{stored[l]} << 16);
  }
  return lanes;
}

inline float chunk_norm(const char* weights, int64_t width, int64_t dtype) {
  const int64_t bytes = dtype == 0 ? 4 : 2;
  EightFloats sums = {};
  for (int64_t column = 0; column < width; column += 8) {
    const EightFloats lanes = eight_weights(weights + column * bytes, width - column < 8 ? width - column : 8, dtype);
    sums += lanes * lanes;
  }
  const float even = (sums[0] + sums[4]) + (sums[2] + sums[6]), odd = (sums[1] + sums[5]) + (sums[3] + sums[7]);
  return std::sqrt(even + odd);
}

}  // namespace megalith
