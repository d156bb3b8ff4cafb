// What is done with one sample between linear layers.
#pragma once

#include <cstdint>
#include <cstring>

#include "dense/function_kernels.h"
#include "dense/kernels.h"
#include "simd/half.h"
#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

template <class Body>
inline void by_lanes(int64_t columns, Body body) {
  int64_t column = 0;
  for (; column + kLanes <= columns; column += kLanes) body(column, kLanes);
  if (column < columns) body(column, static_cast<int>(columns - column));
}

// As `quantise_activations` in src/megalith/ops/dense/quantise.py; codes beyond `columns` up to whole quartets are 0.
inline void quantise(const float* x, int64_t columns, uint8_t* codes, float* scale, int32_t* zero) {
  Floats low{}, high{};
  Words largest{};  // |x| as an integer orders as the number does, and NaN above infinity
  by_lanes(columns, [&](int64_t column, int n) {
    const Floats values = load(x + column, n);
    low = smaller(values, low);
    high = larger(values, high);
    const Words magnitude = bits_of(values) & 0x7fffffffu;
    largest = select(magnitude > largest, magnitude, largest);
  });
  float lowest = 0.0f, highest = 0.0f;
  uint32_t peak = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    lowest = least(low[lane], lowest);
    highest = greatest(high[lane], highest);
    peak = greatest(largest[lane], peak);
  }
  const bool finite = peak < 0x7f800000u;
  const float step = finite ? highest / 255.0f - lowest / 255.0f : 0.0f;
  const bool usable = step >= 1.17549435e-38f;
  const float inverse = usable ? 1.0f / step : 0.0f;
  const Floats top = repeated(255.0f);
  const Floats bottom{};
  const Floats offset = smaller(larger(to_nearest(repeated(-lowest * inverse)), bottom), top);
  *scale = finite ? (usable ? step : 0.0f) : __builtin_nanf("");
  *zero = finite ? static_cast<int32_t>(offset[0]) : 0;
  const int64_t padded = (columns + kQuartet - 1) / kQuartet * kQuartet;
  if (!usable) {
    for (int64_t column = 0; column < padded; ++column) codes[column] = 0;
    return;
  }
  by_lanes(columns, [&](int64_t column, int n) {
    const Floats rounded = to_nearest(load(x + column, n) * inverse) + offset;
    const Ints whole = converted<Ints>(smaller(larger(rounded, bottom), top));
#if defined(__AVX512F__)
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)whole.parts[0]);
    uint8_t held[kLanes];
    std::memcpy(held, &bytes, sizeof held);
#else
    uint8_t held[kLanes];
    for (int i = 0; i < kLanes; ++i) held[i] = static_cast<uint8_t>(whole[i]);
#endif
    if (n == kLanes) {
      std::memcpy(codes + column, held, kLanes);
    } else {
      for (int i = 0; i < n; ++i) codes[column + i] = held[i];
    }
  });
  for (int64_t column = columns; column < padded; ++column) codes[column] = 0;
}

inline void round_to_bfloat(const float* x, int64_t columns, float* out) {
  by_lanes(columns, [&](int64_t column, int n) {
    const Words bits = bits_of(load(x + column, n));
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const Words nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const Words quiet = (bits & 0u) | 0x7fc00000u;
    store(out + column, floats_of(select(nan, quiet, rounded)), n);
  });
}

// An input of as many columns as the output, or of one that counts for all.
struct Operand {
  const float* from;
  bool single;
  Floats only;

  Operand(const float* given, int64_t own, int64_t columns)
      : from(given), single(own == 1 && columns > 1), only(repeated(columns > 0 ? given[0] : 0.0f)) {}
  Floats at(int64_t column, int n) const { return single ? only : load(from + column, n); }
};

inline void add(const float* a, int64_t a_columns, const float* b, int64_t b_columns, int64_t columns, float* out) {
  const Operand left(a, a_columns, columns), right(b, b_columns, columns);
  by_lanes(columns, [&](int64_t column, int n) { store(out + column, left.at(column, n) + right.at(column, n), n); });
}

inline void multiply(const float* a, int64_t a_columns, const float* b, int64_t b_columns, int64_t columns,
                     float* out) {
  const Operand left(a, a_columns, columns), right(b, b_columns, columns);
  by_lanes(columns, [&](int64_t column, int n) { store(out + column, left.at(column, n) * right.at(column, n), n); });
}

inline void multiply_add(const float* a, int64_t a_columns, const float* b, int64_t b_columns, const float* c,
                         int64_t c_columns, int64_t columns, float* out) {
  const Operand left(a, a_columns, columns), right(b, b_columns, columns), added(c, c_columns, columns);
  by_lanes(columns, [&](int64_t column, int n) {
    store(out + column, left.at(column, n) * right.at(column, n) + added.at(column, n), n);
  });
}

inline float sum_columns(const float* x, int64_t columns) {
  Floats total{};
  by_lanes(columns, [&](int64_t column, int n) { total += load(x + column, n); });
  return sum(total);
}

inline void layer_norm(const float* x, int64_t columns, const float* weight, const float* bias, float eps,
                       float* out) {
  const float share = 1.0f / static_cast<float>(columns);
  const float mean = sum_columns(x, columns) * share;
  Floats squares{};
  by_lanes(columns, [&](int64_t column, int n) {
    const Floats apart = load(x + column, n) - mean;
    if (n == kLanes) {
      squares += apart * apart;
      return;
    }
    // Lanes beyond the row are not part of it.
    float held[kLanes];
    store(held, apart * apart);
    squares += load(held, n);
  });
  const float inverse = 1.0f / root(sum(squares) * share + eps);
  by_lanes(columns, [&](int64_t column, int n) {
    Floats value = (load(x + column, n) - mean) * inverse;
    if (weight) value = value * load(weight + column, n);
    if (bias) value = value + load(bias + column, n);
    store(out + column, value, n);
  });
}

// The sum of the dot products of all pairs of `count` vectors, as half of (square of the sum - sum of squares).
inline float pair_sum(const float* x, int64_t count, int64_t dim) {
  Floats total{};
  by_lanes(dim, [&](int64_t column, int n) {
    Floats sums{}, squares{};
    for (int64_t i = 0; i < count; ++i) {
      const Floats values = load(x + i * dim + column, n);
      sums += values;
      squares += values * values;
    }
    total += sums * sums - squares;
  });
  return 0.5f * sum(total);
}

}  // namespace MG_VARIANT
}  // namespace megalith
