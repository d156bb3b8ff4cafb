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

// A weight; its sign may be lost, as it is squared.
inline float weight_at(const char* weights, int64_t column, int64_t dtype) {
  if (dtype == 0) {
    float value;
    std::memcpy(&value, weights + 4 * column, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, weights + 2 * column, 2);
  return dtype == 1 ? magnitude_of_half(bits & 0x7fffu) : float_of(uint32_t{bits} << 16);
}

inline float chunk_norm(const char* weights, int64_t width, int64_t dtype) {
  using EightFloats = float __attribute__((vector_size(32)));
  EightFloats sums = {};
  int64_t column = 0;
  for (; column + 8 <= width; column += 8) {
    EightFloats lanes;
    if (dtype == 0) {
      std::memcpy(&lanes, weights + column * 4, 32);
    } else {
      for (int l = 0; l < 8; ++l) lanes[l] = weight_at(weights, column + l, dtype);
    }
    sums += lanes * lanes;
  }
  for (int64_t l = 0; column < width; ++column, ++l) {
    const float weight = weight_at(weights, column, dtype);
    sums[l] += weight * weight;
  }
  const float even = (sums[0] + sums[4]) + (sums[2] + sums[6]), odd = (sums[1] + sums[5]) + (sums[3] + sums[7]);
  return std::sqrt(even + odd);
}

}  // namespace megalith
