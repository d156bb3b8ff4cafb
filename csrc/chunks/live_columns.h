// Columns of a row that live, sixteen at a time: expanded to their places in the row, or compressed to lie together.
#pragma once

#include <cstdint>

#include "chunks/record.h"
#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr uint32_t kAllLanes = 0xffff;

inline int num_lanes(uint32_t lanes) { return __builtin_popcount(lanes); }

// The first of sixteen lanes to those whose bits are set; the others are 0.
inline Floats expanded(const Floats& packed, uint32_t lanes) {
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_maskz_expand_ps(static_cast<__mmask16>(lanes), (__m512)packed.parts[0])}};
#else
  float from[kLanes], to[kLanes] = {};
  store_whole(from, packed);
  for (int next = 0; lanes; lanes &= lanes - 1) to[__builtin_ctz(lanes)] = from[next++];
  return load_whole<Floats>(to);
#endif
}

// The lanes whose bits are set as the first ones; the others are 0.
inline Floats gathered(const Floats& spread, uint32_t lanes) {
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_maskz_compress_ps(static_cast<__mmask16>(lanes), (__m512)spread.parts[0])}};
#else
  float from[kLanes], to[kLanes] = {};
  store_whole(from, spread);
  for (int next = 0; lanes; lanes &= lanes - 1) to[next++] = from[__builtin_ctz(lanes)];
  return load_whole<Floats>(to);
#endif
}

// The lanes whose bits are set in their places; the others are 0.
inline Floats only(const Floats& lanes, uint32_t kept) {
#if defined(__AVX512F__)
  return {{(Floats::Part)_mm512_maskz_mov_ps(static_cast<__mmask16>(kept), (__m512)lanes.parts[0])}};
#else
  float to[kLanes];
  store_whole(to, lanes);
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = kept >> lane & 1 ? to[lane] : 0.0f;
  return load_whole<Floats>(to);
#endif
}

// Sixteen columns of a row from where the first of them that lives is stored.
template <class T>
inline Floats load_live(const T* from, uint32_t lanes) {
  if (lanes == kAllLanes) return load(from, kLanes);
  if (lanes == 0) return Floats{};
  return expanded(load(from, num_lanes(lanes)), lanes);
}

#if defined(__AVX512F__)
// The same without a branch, which no processor could guess. What no bit asks for is not read.
inline Floats load_live(const float* from, uint32_t lanes) {
  const __m512 packed = _mm512_maskz_loadu_ps(mask_of(num_lanes(lanes)), from);
  return expanded({{(Floats::Part)packed}}, lanes);
}
#endif

// Bits of chunks narrower than sixteen columns to bits of their columns.
struct SpreadBits {
  uint16_t twos[256], fours[16], eights[4];

  constexpr SpreadBits() : twos(), fours(), eights() {
    for (uint32_t bits = 0; bits < 256; ++bits) twos[bits] = spread(bits, 2);
    for (uint32_t bits = 0; bits < 16; ++bits) fours[bits] = spread(bits, 4);
    for (uint32_t bits = 0; bits < 4; ++bits) eights[bits] = spread(bits, 8);
  }

  static constexpr uint16_t spread(uint32_t bits, uint32_t width) {
    uint32_t columns = 0;
    for (uint32_t column = 0; column < 16; ++column) columns |= (bits >> column / width & 1) << column;
    return static_cast<uint16_t>(columns);
  }
};
constexpr SpreadBits kSpreadBits;

// Which columns of a row live, sixteen after sixteen, a bit for each; those beyond the row do not.
class LiveLanes {
 public:
  LiveLanes(const ChunkedPool& pool, uint64_t mask) : mask_(mask), width_(static_cast<uint32_t>(pool.width)) {
    left_ = width_;
    chunks_ = width_ == 1 ? 16 : width_ == 2 ? 8 : width_ == 4 ? 4 : width_ == 8 ? 2 : 0;
    spread_ = chunks_ == 8 ? kSpreadBits.twos : chunks_ == 4 ? kSpreadBits.fours : kSpreadBits.eights;
  }

  uint32_t next() {
    if (width_ % kLanes == 0) {
      const uint32_t lanes = mask_ & 1 ? kAllLanes : 0;
      left_ -= kLanes;
      if (left_ == 0) {
        mask_ >>= 1;
        left_ = width_;
      }
      return lanes;
    }
    if (chunks_) {
      const uint32_t bits = static_cast<uint32_t>(mask_) & ((uint32_t{1} << chunks_) - 1);
      mask_ >>= chunks_;
      return chunks_ == 16 ? bits : spread_[bits];
    }
    uint32_t lanes = 0;
    for (uint32_t at = 0; at < kLanes;) {
      const uint32_t count = least<uint32_t>(kLanes - at, left_);
      if (mask_ & 1) lanes |= ((uint32_t{1} << count) - 1) << at;
      at += count;
      left_ -= count;
      if (left_ == 0) {
        mask_ >>= 1;
        left_ = width_;
      }
    }
    return lanes;
  }

 private:
  uint64_t mask_;
  uint32_t width_;
  uint32_t left_;    // columns of the chunk at hand that are still to come
  uint32_t chunks_;  // in sixteen columns, where these are whole chunks; otherwise 0
  const uint16_t* spread_;
};

// Calls body(column, n, lanes, position) for each sixteen columns of [first, last): n of them are there, those of `lanes`
// live, and the first of these is the position-th live column of the row. `first` is a multiple of sixteen.
template <class Body>
inline void for_live_columns(const ChunkedPool& pool, uint64_t mask, int64_t first, int64_t last, Body body) {
  LiveLanes live(pool, mask);
  int64_t position = 0;
  for (int64_t column = 0; column < last; column += kLanes) {
    const uint32_t lanes = live.next();
    if (column >= first) body(column, static_cast<int>(least<int64_t>(kLanes, last - column)), lanes, position);
    position += num_lanes(lanes);
  }
}

}  // namespace MG_VARIANT
}  // namespace megalith
