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

// Smallest and largest of a sample and 0, and whether all of it is finite.
struct SampleRange {
  float low, high;
  bool finite;
};

inline SampleRange range_of(const float* x, int64_t columns) {
  Floats low{}, high{};
  Words largest{};  // |x| as an integer orders as the number does, and NaN above infinity
  by_lanes(columns, [&](int64_t column, int n) {
    const Floats values = load(x + column, n);
    low = min_of(values, low);
    high = max_of(values, high);
    const Words magnitude = bits_of(values) & 0x7fffffffu;
#if defined(__AVX512F__)
    largest.parts[0] = (Words::Part)_mm512_max_epu32((__m512i)magnitude.parts[0], (__m512i)largest.parts[0]);
#else
    largest = select(magnitude > largest, magnitude, largest);
#endif
  });
#if defined(__AVX512F__)
  return {_mm512_reduce_min_ps((__m512)low.parts[0]), _mm512_reduce_max_ps((__m512)high.parts[0]),
          _mm512_reduce_max_epu32((__m512i)largest.parts[0]) < 0x7f800000u};
#else
  SampleRange range{0.0f, 0.0f, true};
  for (int lane = 0; lane < kLanes; ++lane) {
    range.low = least(low[lane], range.low);
    range.high = greatest(high[lane], range.high);
    range.finite &= largest[lane] < 0x7f800000u;
  }
  return range;
#endif
}

// Sixteen numbers from 0 to 255 as bytes.
inline void store_bytes(uint8_t* to, const Ints& whole, int n) {
#if defined(__AVX512F__)
  _mm512_mask_cvtepi32_storeu_epi8(to, mask_of(n), (__m512i)whole.parts[0]);
#else
  uint8_t held[kLanes];
#if defined(__AVX2__)
  const __m256i halves = _mm256_packus_epi32((__m256i)whole.parts[0], (__m256i)whole.parts[1]);
  const __m256i ordered = _mm256_permute4x64_epi64(halves, 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  std::memcpy(held, &bytes, sizeof held);
#else
  for (int i = 0; i < kLanes; ++i) held[i] = static_cast<uint8_t>(whole[i]);
#endif
  std::memcpy(to, held, static_cast<size_t>(n));
#endif
}

// As `quantise_activations` in src/megalith/ops/dense/quantise.py; codes beyond `columns` up to whole quartets are 0.
inline void quantise(const float* x, int64_t columns, uint8_t* codes, float* scale, int32_t* zero) {
  const SampleRange range = range_of(x, columns);
  const float step = range.finite ? range.high / 255.0f - range.low / 255.0f : 0.0f;
  const bool usable = step >= 1.17549435e-38f;
  const float inverse = usable ? 1.0f / step : 0.0f;
  // The zero point, half to even.
  const float offset = least(greatest((-range.low * inverse + 12582912.0f) - 12582912.0f, 0.0f), 255.0f);
  *scale = range.finite ? (usable ? step : 0.0f) : __builtin_nanf("");
  *zero = usable ? static_cast<int32_t>(offset) : 0;
  const int64_t padded = (columns + kQuartet - 1) / kQuartet * kQuartet;
  if (!usable) {
    for (int64_t column = 0; column < padded; ++column) codes[column] = 0;
    return;
  }
  const Floats bottom{}, top = repeated(255.0f);
  by_lanes(columns, [&](int64_t column, int n) {
    const Floats rounded = to_nearest(load(x + column, n) * inverse) + offset;
    store_bytes(codes + column, converted<Ints>(min_of(max_of(rounded, bottom), top)), n);
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
