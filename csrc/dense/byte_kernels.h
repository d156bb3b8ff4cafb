// Products of unsigned bytes (samples) with signed ones (weights): exact sums of 32 bits in every build.
//
// With VNNI one instruction adds four products. Without it, codes of weights up to 63 let two products share 16 bits
// without saturating; larger ones are widened to 16 bits first. This header is all that kernels_vnni.cpp builds.
#pragma once

#include <cstdint>
#include <cstring>

#include "dense/function_kernels.h"
#include "dense/kernels.h"
#include "dense/tiles.h"
#include "simd/memory.h"
#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

// sum + the products of four bytes of a sample, the same in every lane, with four of each lane's weights.
template <bool Narrow>
inline Ints::Part add_quartets(Ints::Part sum, int32_t codes, Ints::Part weights) {
#if defined(__AVX512VNNI__)
  return (Ints::Part)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(codes), (__m512i)weights);
#elif defined(__AVX512BW__)
  const __m512i x = _mm512_set1_epi32(codes), w = (__m512i)weights;
  if constexpr (Narrow) {
    const __m512i pairs = _mm512_maddubs_epi16(x, w);
    return sum + (Ints::Part)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
  }
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(x, _mm512_set1_epi16(255)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(x, 8), _mm512_srai_epi16(w, 8));
  return sum + (Ints::Part)even + (Ints::Part)odd;
#elif defined(__AVX2__)
  const __m256i x = _mm256_set1_epi32(codes), w = (__m256i)weights;
  if constexpr (Narrow) {
    const __m256i pairs = _mm256_maddubs_epi16(x, w);
    return sum + (Ints::Part)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(w, 8));
  return sum + (Ints::Part)even + (Ints::Part)odd;
#else
  uint8_t x[kQuartet];
  int8_t w[kPartLanes * kQuartet];
  std::memcpy(x, &codes, sizeof x);
  std::memcpy(w, &weights, sizeof w);
  for (int i = 0; i < kPartLanes; ++i) {
    for (int j = 0; j < kQuartet; ++j) sum[i] += static_cast<int32_t>(x[j]) * w[i * kQuartet + j];
  }
  return sum;
#endif
}

template <bool Narrow>
struct ByteTile {
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 12, kFewRows = 6, kPanels = 2;
#elif defined(__AVX2__)
  static constexpr int kMaxRows = 4, kFewRows = 2, kPanels = 1;
#else
  static constexpr int kMaxRows = 2, kFewRows = 1, kPanels = 1;
#endif
  const ByteProduct& product;

  template <int Rows, int Panels>
  void run(int64_t row, int64_t panel) const {
    Ints::Part sums[Rows][Panels * kParts];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < Panels * kParts; ++v) sums[r][v] = Ints::Part{};
    }
    add_products<Rows, Panels>(row, panel, sums);
    float* to = product.out + row * product.out_stride + panel * kPanel;
    const Floats lowest = floor_of(product.function);
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p) {
      const int64_t first = (panel + p) * kPanel;
      const int n = static_cast<int>(least(kPanel, product.outputs - first));
      const Floats scales = load(product.weight_scales + first), bias = load(product.bias + first);
      const Ints weight_sums = load_whole<Ints>(product.weight_sums + first);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        Ints sum;
        for (int part = 0; part < kParts; ++part) sum.parts[part] = sums[r][p * kParts + part];
        const Floats exact = converted<Floats>(sum - weight_sums * product.zeros[row + r]);
        const Floats value = exact * (scales * product.scales[row + r]) + bias;
        store(to + r * product.out_stride + p * kPanel, max_of(lowest, value), n);
      }
    }
  }

 private:
  template <int Rows, int Panels>
  void add_products(int64_t row, int64_t panel, Ints::Part (&sums)[Rows][Panels * kParts]) const {
    const int64_t stride = product.codes_stride, apart = product.inputs * kPanel;
    const uint8_t* codes = product.codes + row * stride;
    const int8_t* weights = product.weights + panel * apart;
    for (int64_t left = product.inputs; left > 0; left -= kQuartet) {
      Ints::Part factors[Panels * kParts];
#pragma GCC unroll 16
      for (int v = 0; v < Panels * kParts; ++v) {
        std::memcpy(&factors[v], weights + (v / kParts) * apart + (v % kParts) * kPartLanes * kQuartet, sizeof(Ints::Part));
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        int32_t quartet;
        std::memcpy(&quartet, codes + r * stride, sizeof quartet);
#pragma GCC unroll 16
        for (int v = 0; v < Panels * kParts; ++v) sums[r][v] = add_quartets<Narrow>(sums[r][v], quartet, factors[v]);
      }
      codes += kQuartet;
      weights += kPanel * kQuartet;
    }
  }
};

template <bool Narrow>
inline void multiply_bytes(const ByteProduct& product) {
  for_each_tile(ByteTile<Narrow>{product}, product.rows, product.first_panel, product.last_panel);
  apply_to_panels(product);
}

constexpr ByteKernels kByteKernels{multiply_bytes<true>, multiply_bytes<false>};

}  // namespace MG_VARIANT
}  // namespace megalith
