// Sixteen columns of a frozen row as floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "frozen/format.h"
#include "simd/half.h"
#include "simd/memory.h"
#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

inline float half_value(uint16_t bits) {
#if defined(__AVX2__) && defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
#else
  Shorts stored{};
  stored.parts[0][0] = bits;
  return widen_half(stored)[0];
#endif
}

// Sixteen bytes as floats.
#if defined(__AVX2__)
inline Floats widen_bytes(__m128i bytes) {
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))}};
#else
  return {{(Floats::Part)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
           (Floats::Part)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
#endif
}
#else
inline Floats widen_bytes(const uint8_t* bytes) {
  Ints wide;
  for (int p = 0; p < kParts; ++p) {
    for (int i = 0; i < kPartLanes; ++i) wide.parts[p][i] = bytes[p * kPartLanes + i];
  }
  return converted<Floats>(wide);
}
#endif

// The codes of n of sixteen columns, as floats; bytes behind them are not read.
inline Floats load_bytes(const uint8_t* from, int n = kLanes) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if (n == kLanes) return widen_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return widen_bytes(_mm_maskz_loadu_epi8(mask_of(n), from));
#else
  uint8_t held[kLanes] = {};
  if (n == kLanes) {
    std::memcpy(held, from, kLanes);
  } else {
    std::memcpy(held, from, static_cast<size_t>(n));
  }
#if defined(__AVX2__)
  return widen_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(held)));
#else
  return widen_bytes(held);
#endif
#endif
}

inline Floats load_nibbles(const uint8_t* from, int n = kLanes) {
  uint8_t held[8] = {};
  if (n == kLanes) {
    std::memcpy(held, from, 8);
  } else {
    std::memcpy(held, from, static_cast<size_t>((n + 1) / 2));
  }
#if defined(__AVX2__)
  const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(held)), low = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(pairs, low), odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
  return widen_bytes(_mm_unpacklo_epi8(even, odd));
#else
  uint8_t codes[kLanes];
  for (int i = 0; i < 8; ++i) {
    codes[2 * i] = held[i] & 15;
    codes[2 * i + 1] = held[i] >> 4;
  }
  return widen_bytes(codes);
#endif
}

// codes * scale + bias. `Exact` products need no rounding, so that one may be fused with its sum.
template <bool Exact>
inline Floats scaled(const Floats& codes, const Floats& scale, const Floats& bias) {
#if defined(__AVX2__)
  if constexpr (Exact) {
    return each_part<Floats>([&](int p) {
#if defined(__AVX512F__)
      return (Floats::Part)_mm512_fmadd_ps((__m512)codes.parts[p], (__m512)scale.parts[p], (__m512)bias.parts[p]);
#else
      return (Floats::Part)_mm256_fmadd_ps((__m256)codes.parts[p], (__m256)scale.parts[p], (__m256)bias.parts[p]);
#endif
    });
  }
#endif
  return codes * scale + bias;
}

#if defined(__AVX2__)
// The first lane.
inline Floats in_all_lanes(__m128 lanes) {
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_broadcastss_ps(lanes)}};
#else
  const Floats::Part part = (Floats::Part)_mm256_broadcastss_ps(lanes);
  return {{part, part}};
#endif
}
#endif

// Readers of rows: block k is columns 16 k and on, n of them.
struct Float32Row {
  explicit Float32Row(const uint8_t* row) : columns(row) {}
  Floats block(int64_t k, int n = kLanes) const {
    return load(reinterpret_cast<const float*>(columns + k * kLanes * 4), n);
  }
  const uint8_t* columns;
};

struct Float16Row {
  explicit Float16Row(const uint8_t* row) : columns(row) {}
  Floats block(int64_t k, int n = kLanes) const {
    return load(reinterpret_cast<const Half*>(columns + k * kLanes * 2), n);
  }
  const uint8_t* columns;
};

template <int Bits, int64_t HeaderBytes>
struct IntegerRow {
  explicit IntegerRow(const uint8_t* row) : codes(row + HeaderBytes) {
#if defined(__AVX2__) && defined(__F16C__)
    // Both numbers at once.
    __m128 pair;
    if constexpr (HeaderBytes == kShortHeader) {
      int32_t stored;
      std::memcpy(&stored, row, 4);
      pair = _mm_cvtph_ps(_mm_cvtsi32_si128(stored));
    } else {
      int64_t stored;
      std::memcpy(&stored, row, 8);
      pair = _mm_castsi128_ps(_mm_cvtsi64_si128(stored));
    }
    scale = in_all_lanes(pair);
    bias = in_all_lanes(_mm_movehdup_ps(pair));
#else
    if constexpr (HeaderBytes == kShortHeader) {
      uint16_t stored[2];
      std::memcpy(stored, row, 4);
      scale = all(half_value(stored[0]));
      bias = all(half_value(stored[1]));
    } else {
      float stored[2];
      std::memcpy(stored, row, 8);
      scale = all(stored[0]);
      bias = all(stored[1]);
    }
#endif
  }
  Floats block(int64_t k, int n = kLanes) const {
    const Floats read = Bits == 8 ? load_bytes(codes + k * kLanes, n) : load_nibbles(codes + k * (kLanes / 2), n);
    return scaled<HeaderBytes == kShortHeader>(read, scale, bias);
  }
#if defined(__AVX512F__)
  // What each of the sixteen codes of four bits reads as.
  __m512 readings() const {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (__m512)scaled<HeaderBytes == kShortHeader>({{(Floats::Part)numbers}}, scale, bias).parts[0];
  }
#endif
  Floats scale, bias;
  const uint8_t* codes;
};

template <class Row>
struct HasFourBits {
  static constexpr bool value = false;
};
template <int64_t HeaderBytes>
struct HasFourBits<IntegerRow<4, HeaderBytes>> {
  static constexpr bool value = true;
};

template <class Call>
void with_row(int64_t precision, int64_t header_bytes, Call call) {
  if (precision == kRowsFloat32) return call((const Float32Row*)nullptr);
  if (precision == kRowsFloat16) return call((const Float16Row*)nullptr);
  const bool is_short = header_bytes == kShortHeader;
  if (precision == kRowsInt8) {
    return is_short ? call((const IntegerRow<8, kShortHeader>*)nullptr)
                    : call((const IntegerRow<8, kLongHeader>*)nullptr);
  }
  return is_short ? call((const IntegerRow<4, kShortHeader>*)nullptr) : call((const IntegerRow<4, kLongHeader>*)nullptr);
}

}  // namespace MG_VARIANT
}  // namespace megalith
