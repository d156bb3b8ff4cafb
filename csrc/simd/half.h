// The 16-bit types that tables are stored in, and their sixteen lanes as floats.
#pragma once

#include <cstdint>

#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

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

}  // namespace MG_VARIANT
}  // namespace megalith
