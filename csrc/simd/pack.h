// Sixteen floats at a time, in one source for every processor.
//
// The kernels are written once over packs of sixteen lanes and built three times (portable, AVX2, AVX-512), where a
// pack is four, two or one of the processor's registers. Every lane does the same operations in the same order in
// each build, and sums over a row go through sixteen fixed lanes, so results are equal bit for bit on all.
//
// MG_VARIANT names the build; its inline namespace keeps the three apart for the linker.
#pragma once

#include <cstdint>

#include "simd/scalar.h"

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
    for (int i = 0; i < kPartLanes; ++i) part[i] = root(part[i]);
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

// The sums of four packs, each in that tree, as the first four lanes; the others are 0.
inline Floats sums_of_four(const Floats& a, const Floats& b, const Floats& c, const Floats& d) {
#if defined(__AVX512F__)
  const __m512 first = (__m512)a.parts[0], second = (__m512)b.parts[0];
  const __m512 third = (__m512)c.parts[0], fourth = (__m512)d.parts[0];
  const __m512 left = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x44), _mm512_shuffle_f32x4(first, second, 0xee));
  const __m512 right = _mm512_add_ps(_mm512_shuffle_f32x4(third, fourth, 0x44), _mm512_shuffle_f32x4(third, fourth, 0xee));
  const __m512 quarters = _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd));
  const __m512 pairs = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0x4e));
  const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  return {{(Floats::Part)_mm512_maskz_compress_ps(0x1111, sums)}};
#elif defined(__AVX2__)
  const auto half = [](const Floats& lanes) { return _mm256_add_ps((__m256)lanes.parts[0], (__m256)lanes.parts[1]); };
  const auto quarters = [](__m256 one, __m256 other) {
    return _mm256_add_ps(_mm256_permute2f128_ps(one, other, 0x20), _mm256_permute2f128_ps(one, other, 0x31));
  };
  const __m256 left = quarters(half(a), half(b)), right = quarters(half(c), half(d));
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(left, right, 0x44), _mm256_shuffle_ps(left, right, 0xee));
  // Of a and c in the lower half, of b and d in the upper.
  const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(pairs, pairs, 0x88), _mm256_shuffle_ps(pairs, pairs, 0xdd));
  const __m128 four = _mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  return {{(Floats::Part)_mm256_zextps128_ps256(four)}};
#else
  Floats sums{};
  sums.parts[0] = Floats::Part{sum(a), sum(b), sum(c), sum(d)};
  return sums;
#endif
}

}  // namespace MG_VARIANT
}  // namespace megalith
