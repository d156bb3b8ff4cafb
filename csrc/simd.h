// Sixteen floats at a time, in one source for every processor.
//
// The kernels are written once over packs of sixteen lanes and built three times (portable, AVX2, AVX-512), where a
// pack is four, two or one of the processor's registers. Every lane does the same operations in the same order in
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

// The compiler's own vectors, but never wider than a register: it splits wider ones through memory.
#if defined(__AVX512F__)
constexpr int kPartLanes = 16;
#elif defined(__AVX2__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif
constexpr int kLanes = 16, kParts = kLanes / kPartLanes;

template <class T>
struct Pack {
  typedef T Lane;
  typedef T Part __attribute__((vector_size(sizeof(T) * kPartLanes)));
  Part parts[kParts];

  T operator[](int lane) const { return parts[lane / kPartLanes][lane % kPartLanes]; }
};

typedef Pack<float> Floats;
typedef Pack<uint32_t> Words;
typedef Pack<int32_t> Ints;
typedef Pack<uint16_t> Shorts;

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class To, class Part>
inline To each_part(Part part) {
  To made;
  for (int p = 0; p < kParts; ++p) made.parts[p] = part(p);
  return made;
}

// Packs with packs, and packs with one value for all lanes.
#define MG_OPERATOR(op)                                                                                 \
  template <class T>                                                                                    \
  inline Pack<T> operator op(const Pack<T>& a, const Pack<T>& b) {                                      \
    return each_part<Pack<T>>([&](int p) { return a.parts[p] op b.parts[p]; });                         \
  }                                                                                                     \
  template <class T>                                                                                    \
  inline Pack<T> operator op(const Pack<T>& a, typename Pack<T>::Lane b) {                              \
    return each_part<Pack<T>>([&](int p) { return a.parts[p] op b; });                                  \
  }
MG_OPERATOR(+)
MG_OPERATOR(-)
MG_OPERATOR(*)
MG_OPERATOR(/)
MG_OPERATOR(&)
MG_OPERATOR(|)
MG_OPERATOR(^)
MG_OPERATOR(<<)
MG_OPERATOR(>>)
#undef MG_OPERATOR

// Comparisons: all bits of a lane are set where it holds.
#define MG_COMPARISON(op)                                                                               \
  template <class T>                                                                                    \
  inline Words operator op(const Pack<T>& a, const Pack<T>& b) {                                        \
    return each_part<Words>([&](int p) { return (Words::Part)(a.parts[p] op b.parts[p]); });            \
  }                                                                                                     \
  template <class T>                                                                                    \
  inline Words operator op(const Pack<T>& a, typename Pack<T>::Lane b) {                                \
    return each_part<Words>([&](int p) { return (Words::Part)(a.parts[p] op b); });                     \
  }
MG_COMPARISON(<)
MG_COMPARISON(>)
MG_COMPARISON(>=)
#undef MG_COMPARISON

template <class T>
inline Pack<T> operator~(const Pack<T>& a) {
  return each_part<Pack<T>>([&](int p) { return ~a.parts[p]; });
}
template <class T>
inline Pack<T>& operator+=(Pack<T>& a, const Pack<T>& b) {
  return a = a + b;
}

// The same numbers in another type, and the same bits in another.
template <class To, class From>
inline To converted(const Pack<From>& from) {
  return each_part<To>([&](int p) { return __builtin_convertvector(from.parts[p], typename To::Part); });
}
inline Words bits_of(const Floats& lanes) {
  return each_part<Words>([&](int p) { return (Words::Part)lanes.parts[p]; });
}
inline Floats floats_of(const Words& bits) {
  return each_part<Floats>([&](int p) { return (Floats::Part)bits.parts[p]; });
}
inline Words select(const Words& mask, const Words& yes, const Words& no) { return (mask & yes) | (~mask & no); }
inline Floats select(const Words& mask, const Floats& yes, const Floats& no) {
  return floats_of(select(mask, bits_of(yes), bits_of(no)));
}
inline Floats all(float value) { return Floats{} + value; }
inline Floats larger(const Floats& a, const Floats& b) { return select(a > b, a, b); }
inline Floats smaller(const Floats& a, const Floats& b) { return select(a < b, a, b); }

inline Floats root(const Floats& lanes) {
  return each_part<Floats>([&](int p) {
#if defined(__AVX512F__)
    return (Floats::Part)_mm512_sqrt_ps((__m512)lanes.parts[p]);
#elif defined(__AVX2__)
    return (Floats::Part)_mm256_sqrt_ps((__m256)lanes.parts[p]);
#else
    Floats::Part part = lanes.parts[p];
    for (int i = 0; i < kPartLanes; ++i) part[i] = std::sqrt(part[i]);
    return part;
#endif
  });
}

// The sum of sixteen lanes in one fixed tree.
inline float sum(const Floats& lanes) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m512 whole = (__m512)lanes.parts[0];
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(whole), _mm512_extractf32x8_ps(whole, 1));
#else
  const __m256 half = _mm256_add_ps((__m256)lanes.parts[0], (__m256)lanes.parts[1]);
#endif
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(pair) + _mm_cvtss_f32(_mm_movehdup_ps(pair));
#else
  float half[8], quarter[4];
  for (int i = 0; i < 8; ++i) half[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) quarter[i] = half[i] + half[i + 4];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
#endif
}

// ---- 16-bit types ----

inline Floats widen_half(const Shorts& stored) {
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_cvtph_ps((__m256i)stored.parts[0])}};
#elif defined(__AVX2__) && defined(__F16C__)
  return each_part<Floats>([&](int p) { return (Floats::Part)_mm256_cvtph_ps((__m128i)stored.parts[p]); });
#else
  const Words bits = converted<Words>(stored);
  const Words sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  const Floats normal = floats_of((rest << 13) + 0x38000000u);
  // Subnormal halves are whole multiples of 2^-24.
  const Floats tiny = converted<Floats>(rest) * 5.9604644775390625e-8f;
  const Floats special = floats_of((rest << 13) | 0x7f800000u);
  const Floats value = select(rest >= 0x7c00u, special, select(rest < 0x400u, tiny, normal));
  return floats_of(bits_of(value) | sign);
#endif
}

inline Shorts narrow_half(const Floats& lanes) {  // to the nearest, ties to even
#if defined(__AVX512F__)
  return {{(Shorts::Part)_mm512_cvtps_ph((__m512)lanes.parts[0], _MM_FROUND_TO_NEAREST_INT)}};
#elif defined(__AVX2__) && defined(__F16C__)
  return each_part<Shorts>([&](int p) {
    return (Shorts::Part)_mm256_cvtps_ph((__m256)lanes.parts[p], _MM_FROUND_TO_NEAREST_INT);
  });
#else
  const Words sign = bits_of(lanes) & 0x80000000u, rest = bits_of(lanes) ^ sign;
  const Words rounded = rest + 0xfffu + ((rest >> 13) & 1u);
  const Words normal = (rounded - 0x38000000u) >> 13;
  // Adding 0.5 puts a subnormal half's bits, rounded by the processor, at the low end of the mantissa.
  const Words tiny = bits_of(floats_of(rest) + 0.5f) - 0x3f000000u;
  const Words nan = (rest > 0x7f800000u) & 0x200u;
  const Words small = select(rest < 0x38800000u, tiny, normal);
  const Words value = select(rest >= 0x477ff000u, nan | 0x7c00u, small);
  return converted<Shorts>(value | (sign >> 16));
#endif
}

inline Floats widen_bfloat(const Shorts& stored) { return floats_of(converted<Words>(stored) << 16); }

inline Shorts narrow_bfloat(const Floats& lanes) {  // to the nearest, ties to even
  const Words bits = bits_of(lanes);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return converted<Shorts>((nan & 0x7fc0u) | (~nan & rounded));
}

// ---- loads and stores of the first n of sixteen elements ----

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
  std::memcpy(to, &stored, static_cast<size_t>(n) * sizeof(uint16_t));
}

inline void store(Half* to, const Floats& lanes, int n = kLanes) { store_shorts(to, narrow_half(lanes), n); }
inline void store(BFloat16* to, const Floats& lanes, int n = kLanes) { store_shorts(to, narrow_bfloat(lanes), n); }

// ---- stochastic rounding ----

// Sixteen random words that depend on the seed, the row and the column alone.
inline Words random_words(uint64_t row_seed, int64_t column) {
  constexpr uint32_t kPlaces[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Words x;
  std::memcpy(&x, kPlaces, sizeof x);
  x = (x + static_cast<uint32_t>(column)) * 0x9e3779b1u + static_cast<uint32_t>(row_seed);
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
