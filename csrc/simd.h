// Sixteen floats at a time, in one source for every processor.
//
// The kernels are written once over the compiler's vector types and built three times (portable, AVX2, AVX-512),
// where a vector becomes four, two or one register. Every lane does the same operations in the same order in
// each build, and sums over a row go through sixteen fixed lanes, so results are equal bit for bit on all.
//
// MG_VARIANT names the build; its inline namespace keeps the three apart for the linker.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#endif

namespace megalith {
inline namespace MG_VARIANT {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline Words bits_of(Floats lanes) { return (Words)lanes; }
inline Floats floats_of(Words bits) { return (Floats)bits; }
inline Floats select(Ints mask, Floats yes, Floats no) {
  return floats_of(((Words)mask & bits_of(yes)) | (~(Words)mask & bits_of(no)));
}
inline Floats all(float value) { return Floats{} + value; }
inline Floats larger(Floats a, Floats b) { return select(a > b, a, b); }
inline Floats smaller(Floats a, Floats b) { return select(a < b, a, b); }

inline Floats root(Floats lanes) {
#if defined(__AVX512F__)
  return (Floats)_mm512_sqrt_ps((__m512)lanes);
#else
  for (int i = 0; i < kLanes; ++i) lanes[i] = std::sqrt(lanes[i]);
  return lanes;
#endif
}

// The sum of sixteen lanes in one fixed tree.
inline float sum(Floats lanes) {
  float half[8], quarter[4];
  for (int i = 0; i < 8; ++i) half[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) quarter[i] = half[i] + half[i + 4];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// ---- 16-bit types ----

inline Floats widen_half(Shorts stored) {
#if defined(__AVX2__) && defined(__F16C__)
  __m256i packed;
  std::memcpy(&packed, &stored, 32);
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1));
  Floats lanes;
  std::memcpy(&lanes, &low, 32);
  std::memcpy(reinterpret_cast<char*>(&lanes) + 32, &high, 32);
  return lanes;
#else
  const Words bits = __builtin_convertvector(stored, Words);
  const Words sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  const Floats normal = floats_of((rest << 13) + 0x38000000u);
  // Subnormal halves are whole multiples of 2^-24.
  const Floats tiny = __builtin_convertvector(rest, Floats) * 5.9604644775390625e-8f;
  const Floats special = floats_of((rest << 13) | 0x7f800000u);
  const Floats value = select(rest >= 0x7c00u, special, select(rest < 0x400u, tiny, normal));
  return floats_of(bits_of(value) | sign);
#endif
}

inline Shorts narrow_half(Floats lanes) {  // to the nearest, ties to even
#if defined(__AVX2__) && defined(__F16C__)
  __m256 low, high;
  std::memcpy(&low, &lanes, 32);
  std::memcpy(&high, reinterpret_cast<const char*>(&lanes) + 32, 32);
  const __m128i first = _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT);
  const __m128i second = _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT);
  Shorts stored;
  std::memcpy(&stored, &first, 16);
  std::memcpy(reinterpret_cast<char*>(&stored) + 16, &second, 16);
  return stored;
#else
  const Words sign = bits_of(lanes) & 0x80000000u, rest = bits_of(lanes) ^ sign;
  const Words rounded = rest + 0xfffu + ((rest >> 13) & 1u);
  const Words normal = (rounded - 0x38000000u) >> 13;
  // Adding 0.5 puts a subnormal half's bits, rounded by the processor, at the low end of the mantissa.
  const Words tiny = bits_of(floats_of(rest) + 0.5f) - 0x3f000000u;
  const Words nan = (Words)(rest > 0x7f800000u) & 0x200u;
  Words value = (Words)(rest < 0x38800000u);
  value = (value & tiny) | (~value & normal);
  const Words over = (Words)(rest >= 0x477ff000u);
  value = (over & (0x7c00u | nan)) | (~over & value);
  return __builtin_convertvector(value | (sign >> 16), Shorts);
#endif
}

inline Floats widen_bfloat(Shorts stored) { return floats_of(__builtin_convertvector(stored, Words) << 16); }

inline Shorts narrow_bfloat(Floats lanes) {  // to the nearest, ties to even
  const Words bits = bits_of(lanes);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = (Words)((bits & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((nan & 0x7fc0u) | (~nan & rounded), Shorts);
}

// ---- loads and stores of the first n of sixteen elements ----

#if defined(__AVX512F__)
inline __mmask16 mask_of(int n) { return static_cast<__mmask16>((1u << n) - 1); }
#elif defined(__AVX2__)
alignas(64) constexpr int32_t kMasks[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
#endif

inline Floats load(const float* from, int n = kLanes) {
  Floats lanes{};
  if (n == kLanes) {
    std::memcpy(&lanes, from, 64);
    return lanes;
  }
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_loadu_ps(mask_of(n), from);
#elif defined(__AVX2__)
  const int32_t* mask = kMasks + kLanes - n;
  const __m256 low = _mm256_maskload_ps(from, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask)));
  std::memcpy(&lanes, &low, 32);
  if (n > 8) {
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask + 8));
    const __m256 high = _mm256_maskload_ps(from + 8, upper);
    std::memcpy(reinterpret_cast<char*>(&lanes) + 32, &high, 32);
  }
  return lanes;
#else
  for (int i = 0; i < n; ++i) lanes[i] = from[i];
  return lanes;
#endif
}

inline Shorts load_shorts(const void* from, int n) {
  Shorts stored{};
  if (n == kLanes) {
    std::memcpy(&stored, from, 32);
    return stored;
  }
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const __m256i packed = _mm256_maskz_loadu_epi16(mask_of(n), from);
  std::memcpy(&stored, &packed, 32);
#else
  for (int i = 0; i < n; ++i) stored[i] = static_cast<const uint16_t*>(from)[i];
#endif
  return stored;
}

inline Floats load(const Half* from, int n = kLanes) { return widen_half(load_shorts(from, n)); }
inline Floats load(const BFloat16* from, int n = kLanes) { return widen_bfloat(load_shorts(from, n)); }

inline void store(float* to, Floats lanes, int n = kLanes) {
  if (n == kLanes) {
    std::memcpy(to, &lanes, 64);
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, mask_of(n), (__m512)lanes);
#else
  for (int i = 0; i < n; ++i) to[i] = lanes[i];
#endif
}

inline void store_shorts(void* to, Shorts stored, int n) {
  if (n == kLanes) {
    std::memcpy(to, &stored, 32);
    return;
  }
  for (int i = 0; i < n; ++i) static_cast<uint16_t*>(to)[i] = stored[i];
}

inline void store(Half* to, Floats lanes, int n = kLanes) { store_shorts(to, narrow_half(lanes), n); }
inline void store(BFloat16* to, Floats lanes, int n = kLanes) { store_shorts(to, narrow_bfloat(lanes), n); }

// ---- stochastic rounding ----

// Sixteen random words that depend on the seed, the row and the column alone.
inline Words random_words(uint64_t row_seed, int64_t column) {
  Words x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<uint32_t>(column + i);
  x = x * 0x9e3779b1u + static_cast<uint32_t>(row_seed);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ static_cast<uint32_t>(row_seed >> 32) ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

inline void store_random(float* to, Floats lanes, Words, int n) { store(to, lanes, n); }

inline void store_random(BFloat16* to, Floats lanes, Words random, int n) {
  const Words bits = bits_of(lanes);
  const Words special = (Words)((bits & 0x7fffffffu) >= 0x7f7f0000u);
  const Words rounded = (bits + (random & 0xffffu)) >> 16;
  const Words nearest = __builtin_convertvector(narrow_bfloat(lanes), Words);
  store_shorts(to, __builtin_convertvector((special & nearest) | (~special & rounded), Shorts), n);
}

inline void store_random(Half* to, Floats lanes, Words random, int n) {
  const Words sign = bits_of(lanes) & 0x80000000u, rest = bits_of(lanes) ^ sign;
  const Floats normal = floats_of((rest + (random & 0x1fffu)) & ~0x1fffu);
  // Below 2^-14 halves lie 2^-24 apart: round the multiple of that up or down.
  const Floats multiple = floats_of(rest) * 16777216.0f;
  const Floats chance = __builtin_convertvector(random >> 8, Floats) * 5.9604644775390625e-8f;
  const Floats whole = __builtin_convertvector(__builtin_convertvector(multiple + chance, Ints), Floats);
  const Floats tiny = whole * 5.9604644775390625e-8f;
  const Floats rounded = select((Ints)(rest < 0x38800000u), tiny, normal);
  const Floats kept = select((Ints)(rest >= 0x477fe000u), floats_of(rest), rounded);
  store(to, floats_of(bits_of(kept) | sign), n);
}

}  // namespace MG_VARIANT
}  // namespace megalith
