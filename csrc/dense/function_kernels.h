// Functions of sixteen lanes, in operations that round alike in every build; src/megalith/ops/dense/functions_twin.py
// has the same in plain torch, and says where they come from.
#pragma once

#include <cstdint>

#include "dense/kernels.h"
#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

inline Floats repeated(float value) {
  return each_part<Floats>([&](int) {
#if defined(__AVX512F__)
    return (Floats::Part)_mm512_set1_ps(value);
#elif defined(__AVX2__)
    return (Floats::Part)_mm256_set1_ps(value);
#else
    return Floats::Part{value, value, value, value};
#endif
  });
}

inline Floats without_sign(const Floats& x) { return floats_of(bits_of(x) & 0x7fffffffu); }
inline Floats negated(const Floats& x) { return floats_of(bits_of(x) ^ 0x80000000u); }

// The smaller and the larger of two; where one is NaN, the second.
inline Floats min_of(const Floats& a, const Floats& b) {
  return each_part<Floats>([&](int p) {
#if defined(__AVX512F__)
    return (Floats::Part)_mm512_min_ps((__m512)a.parts[p], (__m512)b.parts[p]);
#elif defined(__AVX2__)
    return (Floats::Part)_mm256_min_ps((__m256)a.parts[p], (__m256)b.parts[p]);
#else
    Floats::Part part;
    for (int i = 0; i < kPartLanes; ++i) part[i] = a.parts[p][i] < b.parts[p][i] ? a.parts[p][i] : b.parts[p][i];
    return part;
#endif
  });
}
inline Floats max_of(const Floats& a, const Floats& b) {
  return each_part<Floats>([&](int p) {
#if defined(__AVX512F__)
    return (Floats::Part)_mm512_max_ps((__m512)a.parts[p], (__m512)b.parts[p]);
#elif defined(__AVX2__)
    return (Floats::Part)_mm256_max_ps((__m256)a.parts[p], (__m256)b.parts[p]);
#else
    Floats::Part part;
    for (int i = 0; i < kPartLanes; ++i) part[i] = a.parts[p][i] > b.parts[p][i] ? a.parts[p][i] : b.parts[p][i];
    return part;
#endif
  });
}

// Half to even, of numbers below 2^22.
inline Floats to_nearest(const Floats& x) { return (x + 12582912.0f) - 12582912.0f; }

template <int Count>
inline Floats polynomial(const Floats& x, const float (&factors)[Count]) {
  Floats total = repeated(factors[0]);
  for (int i = 1; i < Count; ++i) total = total * x + factors[i];
  return total;
}

// e^x of numbers up to 0; below -87 that of -87.
inline Floats exponential(const Floats& given) {
  constexpr float kFactors[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  const Floats lowest = repeated(-87.0f);
  const Floats x = select(given < lowest, lowest, given);
  const Floats power = to_nearest(x * 1.44269504088896341f);
  const Floats rest = (x - power * 0.693359375f) - power * -2.12194440e-4f;
  const Floats value = (polynomial(rest, kFactors) * (rest * rest) + rest) + 1.0f;
  const Words scale = (converted<Words>(converted<Ints>(power) + 127)) << 23;
  return value * floats_of(scale);
}

inline Floats sigmoid(const Floats& x) {
  const Floats small = exponential(negated(without_sign(x)));
  return select(x < repeated(0.0f), small, repeated(1.0f)) / (small + 1.0f);
}

inline Floats gelu(const Floats& x) {
  constexpr float kFactors[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  const Floats scaled = without_sign(x) * 0.70710678118654752f;
  const Floats share = repeated(1.0f) / (scaled * 0.3275911f + 1.0f);
  const Floats tail = (polynomial(share, kFactors) * share) * exponential(negated(scaled * scaled));
  const Floats error = repeated(1.0f) - tail;
  return (x * 0.5f) * (select(x < repeated(0.0f), negated(error), error) + 1.0f);
}

// NaN stays NaN.
inline Floats relu(const Floats& x) { return max_of(Floats{}, x); }

inline Floats function_of(int32_t function, const Floats& x) {
  switch (function) {
    case kRelu:
      return relu(x);
    case kGelu:
      return gelu(x);
    case kSilu:
      return x * sigmoid(x);
    case kSigmoid:
      return sigmoid(x);
    default:
      return x;
  }
}

inline void apply(int32_t function, const float* x, int64_t columns, float* out) {
  for (int64_t column = 0; column < columns; column += kLanes) {
    const int n = static_cast<int>(least<int64_t>(kLanes, columns - column));
    store(out + column, function_of(function, load(x + column, n)), n);
  }
}

// What a product puts below its results: nothing is below 0 with relu.
inline Floats floor_of(int32_t function) { return repeated(function == kRelu ? 0.0f : -__builtin_inff()); }

// Other functions, of what a product has just written; inside of it, they would be repeated for every size of a tile.
template <class Product>
inline void apply_to_panels(const Product& product) {
  if (product.function == kIdentity || product.function == kRelu) return;
  const int64_t first = product.first_panel * kPanel;
  const int64_t columns = least(product.last_panel * kPanel, product.outputs) - first;
  for (int64_t row = 0; row < product.rows; ++row) {
    float* at = product.out + row * product.out_stride + first;
    apply(product.function, at, columns, at);
  }
}

}  // namespace MG_VARIANT
}  // namespace megalith
