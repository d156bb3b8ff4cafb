// Loads and stores of the first n of sixteen elements; n is sixteen unless a row ends before.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/half.h"
#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

#if defined(__AVX512F__)
inline __mmask16 mask_of(int n) { return static_cast<__mmask16>((1u << n) - 1); }
#elif defined(__AVX2__)
alignas(64) constexpr int32_t kMasks[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
inline __m256i mask_of(int n, int part) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + kLanes - n + part * kPartLanes));
}
#endif

// A register at a time: a copy of the whole would go through memory.
template <class To>
inline To load_whole(const void* from) {
  return each_part<To>([&](int p) {
    typename To::Part part;
    std::memcpy(&part, static_cast<const typename To::Lane*>(from) + p * kPartLanes, sizeof part);
    return part;
  });
}

template <class From>
inline void store_whole(void* to, const From& lanes) {
  for (int p = 0; p < kParts; ++p) {
    const typename From::Part part = lanes.parts[p];
    std::memcpy(static_cast<typename From::Lane*>(to) + p * kPartLanes, &part, sizeof part);
  }
}

inline Floats load(const float* from, int n = kLanes) {
  if (n == kLanes) return load_whole<Floats>(from);
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_maskz_loadu_ps(mask_of(n), from)}};
#elif defined(__AVX2__)
  return each_part<Floats>(
      [&](int p) { return (Floats::Part)_mm256_maskload_ps(from + p * kPartLanes, mask_of(n, p)); });
#else
  Floats lanes{};
  std::memcpy(&lanes, from, static_cast<size_t>(n) * sizeof(float));
  return lanes;
#endif
}

inline Shorts load_shorts(const void* from, int n) {
  if (n == kLanes) return load_whole<Shorts>(from);
  Shorts stored{};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const __m256i packed = _mm256_maskz_loadu_epi16(mask_of(n), from);
  std::memcpy(&stored, &packed, 32);
#else
  std::memcpy(&stored, from, static_cast<size_t>(n) * sizeof(uint16_t));
#endif
  return stored;
}

inline Floats load(const Half* from, int n = kLanes) { return widen_half(load_shorts(from, n)); }
inline Floats load(const BFloat16* from, int n = kLanes) { return widen_bfloat(load_shorts(from, n)); }

inline void store(float* to, const Floats& lanes, int n = kLanes) {
  if (n == kLanes) return store_whole(to, lanes);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, mask_of(n), (__m512)lanes.parts[0]);
#elif defined(__AVX2__)
  for (int p = 0; p < kParts; ++p) _mm256_maskstore_ps(to + p * kPartLanes, mask_of(n, p), (__m256)lanes.parts[p]);
#else
  std::memcpy(to, &lanes, static_cast<size_t>(n) * sizeof(float));
#endif
}

inline void store_shorts(void* to, const Shorts& stored, int n) {
  if (n == kLanes) return store_whole(to, stored);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  _mm256_mask_storeu_epi16(to, mask_of(n), (__m256i)stored.parts[0]);
#else
  std::memcpy(to, &stored, static_cast<size_t>(n) * sizeof(uint16_t));
#endif
}

inline void store(Half* to, const Floats& lanes, int n = kLanes) { store_shorts(to, narrow_half(lanes), n); }
inline void store(BFloat16* to, const Floats& lanes, int n = kLanes) { store_shorts(to, narrow_bfloat(lanes), n); }

}  // namespace MG_VARIANT
}  // namespace megalith
