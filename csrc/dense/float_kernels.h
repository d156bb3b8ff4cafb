// Products with weights of floats and of bfloat16.
//
// Every output is one sum in rising order of inputs, by fused multiply-adds, however the work is cut: a sample's result
// depends on nothing but itself. With bfloat16 the products are exact and the sums the same in every build.
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

// Inputs after which sums go to memory and back, so that the weights of a tile stay in the cache for the next one:
// 64 KiB of two panels in the second level, or 16 KiB of one in the first, where tiles are of few rows.
#if defined(__AVX512F__)
constexpr int64_t kInputBlock = 512;
#else
constexpr int64_t kInputBlock = 256;
#endif

struct FloatWeights {
  typedef float Stored;
  static Floats::Part load(const float* from) {
    Floats::Part part;
    std::memcpy(&part, from, sizeof part);
    return part;
  }
  static Floats::Part fused(Floats::Part a, float x, Floats::Part sum) {
#if defined(__AVX512F__)
    return (Floats::Part)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(x), (__m512)sum);
#elif defined(__AVX2__)
    return (Floats::Part)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(x), (__m256)sum);
#else
    return a * x + sum;
#endif
  }
};

struct BFloatWeights {
  typedef uint16_t Stored;
  static Floats::Part load(const uint16_t* from) {
#if defined(__AVX512F__)
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return (Floats::Part)_mm512_slli_epi32(_mm512_cvtepu16_epi32(stored), 16);
#elif defined(__AVX2__)
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return (Floats::Part)_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16);
#else
    Words::Part bits;
    for (int i = 0; i < kPartLanes; ++i) bits[i] = static_cast<uint32_t>(from[i]) << 16;
    return (Floats::Part)bits;
#endif
  }
  static Floats::Part fused(Floats::Part a, float x, Floats::Part sum) {
#if defined(__AVX2__)
    return FloatWeights::fused(a, x, sum);
#else
    // In double precision nothing is lost that would change how the sum is rounded, and tiny products are exact, too.
    for (int i = 0; i < kPartLanes; ++i) {
      sum[i] = static_cast<float>(static_cast<double>(a[i]) * static_cast<double>(x) + static_cast<double>(sum[i]));
    }
    return sum;
#endif
  }
};

// One block of inputs of a product.
template <class Weights>
struct FloatTile {
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 12, kFewRows = 6, kPanels = 2;
#elif defined(__AVX2__)
  static constexpr int kMaxRows = 6, kFewRows = 3, kPanels = 1;
#else
  static constexpr int kMaxRows = 2, kFewRows = 1, kPanels = 1;
#endif
  const FloatProduct& product;
  int64_t begin, end;  // inputs

  template <int Rows, int Panels>
  void run(int64_t row, int64_t panel) const {
    constexpr int kVectors = Panels * kParts;
    Floats::Part sums[Rows][kVectors];
    float* to = product.out + row * product.out_stride + panel * kPanel;
    if (begin == 0) {
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[r][v] = Floats::Part{};
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int p = 0; p < Panels; ++p) {
          const Floats held = load(to + r * product.out_stride + p * kPanel, lanes_of(panel + p));
          for (int part = 0; part < kParts; ++part) sums[r][p * kParts + part] = held.parts[part];
        }
      }
    }
    add_products<Rows, Panels>(row, panel, sums);
    if (end == product.inputs) {
      const Floats lowest = floor_of(product.function);
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {
        const Floats bias = load(product.bias + (panel + p) * kPanel);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          Floats sum;
          for (int part = 0; part < kParts; ++part) sum.parts[part] = sums[r][p * kParts + part];
          store(to + r * product.out_stride + p * kPanel, max_of(lowest, sum + bias), lanes_of(panel + p));
        }
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int p = 0; p < Panels; ++p) {
          Floats sum;
          for (int part = 0; part < kParts; ++part) sum.parts[part] = sums[r][p * kParts + part];
          store(to + r * product.out_stride + p * kPanel, sum, lanes_of(panel + p));
        }
      }
    }
  }

 private:
  int lanes_of(int64_t panel) const { return static_cast<int>(least(kPanel, product.outputs - panel * kPanel)); }

  template <int Rows, int Panels>
  void add_products(int64_t row, int64_t panel, Floats::Part (&sums)[Rows][Panels * kParts]) const {
    typedef typename Weights::Stored Stored;
    const int64_t stride = product.x_stride, apart = product.inputs * kPanel;
    const float* x = product.x + row * stride + begin;
    const Stored* weights = static_cast<const Stored*>(product.weights) + panel * apart + begin * kPanel;
    for (int64_t left = end - begin; left > 0; --left) {
      Floats::Part factors[Panels * kParts];
#pragma GCC unroll 16
      for (int v = 0; v < Panels * kParts; ++v) {
        factors[v] = Weights::load(weights + (v / kParts) * apart + (v % kParts) * kPartLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const float value = x[r * stride];
#pragma GCC unroll 16
        for (int v = 0; v < Panels * kParts; ++v) sums[r][v] = Weights::fused(factors[v], value, sums[r][v]);
      }
      ++x;
      weights += kPanel;
    }
  }
};

template <class Weights>
inline void multiply_with(const FloatProduct& product) {
  // A layer without inputs is its bias.
  for (int64_t begin = 0; begin == 0 || begin < product.inputs; begin += kInputBlock) {
    const FloatTile<Weights> tile{product, begin, least(product.inputs, begin + kInputBlock)};
    for_each_tile(tile, product.rows, product.first_panel, product.last_panel);
  }
  apply_to_panels(product);
}

inline void multiply_floats(const FloatProduct& product) { multiply_with<FloatWeights>(product); }
inline void multiply_bfloats(const FloatProduct& product) { multiply_with<BFloatWeights>(product); }

}  // namespace MG_VARIANT
}  // namespace megalith
