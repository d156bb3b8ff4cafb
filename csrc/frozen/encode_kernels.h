// Rows of floats into codes; ops/frozen/encode_twin.py says what they must be, bit by bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "frozen/codes.h"
#include "frozen/kernels.h"
#include "simd/memory.h"
#include "simd/pack.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr int kSearchSteps = 40;
constexpr double kSearchBin = 0.01;

// A number as scales are stored, and what it is worth.
struct StoredScale {
  uint32_t bits;
  double value;
};

inline double value_of(uint32_t bits, bool is_short) {
  if (is_short) return static_cast<double>(half_value(static_cast<uint16_t>(bits)));
  float value;
  std::memcpy(&value, &bits, 4);
  return static_cast<double>(value);
}

// The number of the type that is at or beyond `wanted`: above it if `up`, else below.
inline StoredScale stored_beyond(double wanted, bool is_short, bool up) {
  const float nearest = static_cast<float>(wanted);
  uint32_t bits;
  if (is_short) {
    Half half;
    store(&half, all(nearest), 1);
    bits = half.bits;
  } else {
    std::memcpy(&bits, &nearest, 4);
  }
  const uint32_t sign = is_short ? 0x8000u : 0x80000000u;
  double value = value_of(bits, is_short);
  while (up ? value < wanted : value > wanted) {
    if (value == 0) {
      bits = up ? 1 : sign | 1;
    } else {
      bits = (value > 0) == up ? bits + 1 : bits - 1;
    }
    value = value_of(bits, is_short);
  }
  return {bits, value};
}

// The squared error of ranges that give up `left` and `right` bins, as shares of the whole range.
struct SearchedRange {
  SearchedRange(float left, float right) {
    const float bin = static_cast<float>(kSearchBin), first = left * bin, width = (1.0f - right * bin) - first;
    scale = width / 15.0f;
    inverse = 15.0f / width;
    shift = first * inverse;
  }
  Floats squares(const Floats& shares) const {
    const float round = 12582912.0f;
    const Floats units = shares * inverse - shift;
    const Floats inside = smaller(larger(units, Floats{}), all(15.0f));
    const Floats error = units - ((inside + round) - round);
    return error * error;
  }
  float loss(const Floats& total) const { return sum(total) * (scale * scale); }
  float scale, inverse, shift;
};

inline Floats first_lanes(const Floats& lanes, int n) {
  if (n == kLanes) return lanes;
  constexpr uint32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Words numbers;
  std::memcpy(&numbers, kNumbers, sizeof numbers);
  return floats_of(bits_of(lanes) & (numbers < static_cast<uint32_t>(n)));
}

// Narrows [low, high] to what leaves the smallest squared error of a row of 15 steps; `shares` is scratch.
inline void search_range(const float* weights, int64_t dim, double* low, double* high, float* shares) {
  const double spread = *high - *low, begin = *low;
  if (spread == 0) return;
  for (int64_t column = 0; column < dim; ++column) {
    shares[column] = static_cast<float>((static_cast<double>(weights[column]) - begin) / spread);
  }
  for (int64_t column = dim; column % kLanes; ++column) shares[column] = 0.0f;
  const int tail = dim % kLanes ? static_cast<int>(dim % kLanes) : kLanes;
  const int64_t blocks = (dim + kLanes - 1) / kLanes;
  float left = 0, right = 0, best_left = 0, best_right = 0, best = 0;
  for (int step = -1; step < kSearchSteps; ++step) {
    const float next = step < 0 ? 0.0f : 1.0f;
    const SearchedRange one(left + next, right), other(left, right + next);
    Floats one_total{}, other_total{};
    for (int64_t k = 0; k < blocks; ++k) {
      const Floats block = load(shares + k * kLanes);
      const int n = k == blocks - 1 ? tail : kLanes;
      one_total += first_lanes(one.squares(block), n);
      other_total += first_lanes(other.squares(block), n);
    }
    const float one_loss = one.loss(one_total), other_loss = other.loss(other_total);
    if (step < 0) {
      best = one_loss;
      continue;
    }
    const bool takes_left = one_loss < other_loss;
    (takes_left ? left : right) += 1.0f;
    const float loss = takes_left ? one_loss : other_loss;
    if (loss < best) {
      best = loss;
      best_left = left;
      best_right = right;
    }
  }
  const double bin = spread * kSearchBin;
  *low += static_cast<double>(best_left) * bin;
  *high -= static_cast<double>(best_right) * bin;
}

template <int Bits>
inline void write_codes(const float* weights, int64_t dim, double bias, double scale, uint8_t* codes) {
  constexpr double kLevels = (1 << Bits) - 1, kRound = 6755399441055744.0;
  constexpr int64_t kAtOnce = 64;
  if (scale == 0) {
    std::memset(codes, 0, static_cast<size_t>((dim * Bits + 7) / 8));
    return;
  }
  for (int64_t column = 0; column < dim; column += kAtOnce) {
    const int64_t count = least<int64_t>(kAtOnce, dim - column);
    uint8_t own[kAtOnce + 1];
    for (int64_t i = 0; i < count; ++i) {
      double exact = (static_cast<double>(weights[column + i]) - bias) / scale;
      exact = exact > 0.0 ? exact : 0.0;
      exact = exact < kLevels ? exact : kLevels;
      own[i] = static_cast<uint8_t>(static_cast<int32_t>((exact + kRound) - kRound));
    }
    if constexpr (Bits == 8) {
      std::memcpy(codes + column, own, static_cast<size_t>(count));
    } else {
      own[count] = 0;
      for (int64_t i = 0; i < count; i += 2) {
        codes[(column + i) / 2] = static_cast<uint8_t>(own[i] | own[i + 1] << 4);
      }
    }
  }
}

inline FrozenUnfit encode_row(const float* weights, int64_t dim, int64_t precision, bool is_short, uint8_t* out,
                              float* scratch) {
  Floats low = all(weights[0]), high = low;
  Words unfit{};
  for (int64_t column = 0; column < dim; column += kLanes) {
    const int n = static_cast<int>(least<int64_t>(kLanes, dim - column));
    Floats lanes = load(weights + column, n);
    if (n < kLanes) {
      float padded[kLanes];
      store(padded, all(weights[0]));
      store(padded, lanes, n);
      lanes = load(padded);
    }
    low = smaller(low, lanes);
    high = larger(high, lanes);
    unfit = unfit | ((bits_of(lanes) & 0x7fffffffu) >= 0x7f800000u);
  }
  float least_weight = low[0], most_weight = high[0];
  uint32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    least_weight = least(least_weight, low[lane]);
    most_weight = greatest(most_weight, high[lane]);
    any |= unfit[lane];
  }
  if (any) return kNotFinite;
  // A sum with zero has no negative zero.
  double from = static_cast<double>(least_weight) + 0.0, to = static_cast<double>(most_weight) + 0.0;
  if (to - from > 3.4028234663852886e38) return kTooWide;
  if (precision == kRowsInt4) search_range(weights, dim, &from, &to, scratch);
  const StoredScale bias = stored_beyond(from, is_short, false);
  const double levels = precision == kRowsInt4 ? 15.0 : 255.0;
  const StoredScale scale = stored_beyond((to - bias.value) / levels, is_short, true);
  const double most = is_short ? 65504.0 : 3.4028234663852886e38;
  if (!(bias.value >= -most && bias.value <= most && scale.value <= most)) return kScaleTooLarge;
  if (is_short) {
    const uint16_t header[2] = {static_cast<uint16_t>(scale.bits), static_cast<uint16_t>(bias.bits)};
    std::memcpy(out, header, 4);
  } else {
    const uint32_t header[2] = {scale.bits, bias.bits};
    std::memcpy(out, header, 8);
  }
  uint8_t* codes = out + (is_short ? kShortHeader : kLongHeader);
  if (precision == kRowsInt4) {
    write_codes<4>(weights, dim, bias.value, scale.value, codes);
  } else {
    write_codes<8>(weights, dim, bias.value, scale.value, codes);
  }
  return kFitsFormat;
}

int64_t encode_frozen(const float* weights, int64_t rows, int64_t dim, int64_t precision, int64_t header_bytes,
                      uint8_t* out, float* scratch) {
  const int64_t bits = precision == kRowsInt4 ? 4 : 8, row_bytes = header_bytes + (dim * bits + 7) / 8;
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_short = header_bytes == kShortHeader;
    if (encode_row(weights + row * dim, dim, precision, is_short, out + row * row_bytes, scratch) != kFitsFormat) {
      return row;
    }
  }
  return -1;
}

}  // namespace MG_VARIANT
}  // namespace megalith
