// What one token of text means: its key, its number, its hour.
//
// A key stands for a categorical value in 64 bits. A token of at most 8 bytes is packed as it is (little-endian,
// zero-padded), so its key is exact and can be read back; any other token gets a 63-bit hash with the top bit
// set. 0 is the empty token: a missing value. src/megalith/ops/text/{keys,rows}_twin.py say the same.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "mix.h"

namespace megalith {

constexpr uint64_t kHashedKey = 1ull << 63;

inline uint64_t hash_token(const char* token, int64_t length) {
  uint64_t state = static_cast<uint64_t>(length) * 0x9e3779b97f4a7c15ull;
  for (int64_t at = 0; at < length; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, token + at, static_cast<size_t>(length - at < 8 ? length - at : 8));
    state = mix64(state ^ word);
  }
  return state | kHashedKey;
}

// `limit` is the end of readable memory, so that eight bytes are loaded at once wherever they exist.
inline uint64_t token_key(const char* token, int64_t length, const char* limit) {
  if (length <= 8) {
    uint64_t word = 0;
    if (limit - token >= 8) {
      std::memcpy(&word, token, 8);
      word = length == 8 ? word : word & ((1ull << (8 * length)) - 1);
    } else {
      std::memcpy(&word, token, static_cast<size_t>(length));
    }
    // A trailing zero byte would be lost in the padding, a set top bit would look like a hash.
    const bool exact = length == 0 || (!(word & kHashedKey) && token[length - 1] != 0);
    if (exact) return word;
  }
  return hash_token(token, length);
}

// The key of a small integer's decimal text.
inline uint64_t integer_key(int64_t value) {
  char text[24];
  const char* end = std::to_chars(text, text + sizeof text, value).ptr;
  return token_key(text, end - text, text + sizeof text);
}

// A finite decimal number: sign, digits, fraction, exponent; no spaces, no "nan", no hexadecimal.
inline bool parse_number(const char* token, int64_t length, double* number) {
  const char* at = token;
  const char* end = token + length;
  bool negative = false;
  if (at < end && (*at == '-' || *at == '+')) negative = *at++ == '-';
  if (at == end) return false;
  if (end - at <= 15) {
    int64_t whole = 0;
    const char* digit = at;
    while (digit < end && static_cast<unsigned char>(*digit - '0') <= 9) whole = whole * 10 + (*digit++ - '0');
    if (digit == end) {
      *number = negative ? -static_cast<double>(whole) : static_cast<double>(whole);
      return true;
    }
  }
  // from_chars would take "inf" and "nan"; a number begins with a digit or a point.
  if (static_cast<unsigned char>(*at - '0') > 9 && *at != '.') return false;
  double value = 0;
  const std::from_chars_result result = std::from_chars(at, end, value);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return false;
  if (result.ec == std::errc::result_out_of_range) value = std::strtod(std::string(at, end).c_str(), nullptr);
  if (!std::isfinite(value)) return false;
  *number = negative ? -value : value;
  return true;
}

// sign(x) * log(1 + |x|): keeps the order and the sign, and is 0 at 0.
inline float signed_log(double number) {
  return static_cast<float>(std::copysign(std::log1p(std::fabs(number)), number));
}

// floor(log(x)^2) + 3 above 2, the integer part (floor) up to 2, nothing below -9999999.
inline int64_t log_bucket(double number) {
  if (number > 2) {
    const double log = std::log(number);
    return static_cast<int64_t>(std::floor(log * log)) + 3;
  }
  return number < -9999999 ? -9999999 : static_cast<int64_t>(std::floor(number));
}

// YYMMDDHH of this century: the hour of day and the weekday (Monday is 0).
inline bool parse_hour(const char* token, int64_t length, int64_t* hour, int64_t* weekday) {
  if (length != 8) return false;
  int64_t digits[8];
  for (int i = 0; i < 8; ++i) {
    if (static_cast<unsigned char>(token[i] - '0') > 9) return false;
    digits[i] = token[i] - '0';
  }
  const int64_t year = 2000 + digits[0] * 10 + digits[1], month = digits[2] * 10 + digits[3];
  const int64_t day = digits[4] * 10 + digits[5];
  *hour = digits[6] * 10 + digits[7];
  constexpr int64_t kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (month < 1 || month > 12 || *hour > 23 || day < 1) return false;
  if (day > kDays[month - 1] + (month == 2 && year % 4 == 0)) return false;
  // Sakamoto's method; it counts from Sunday.
  constexpr int64_t kShift[] = {0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4};
  const int64_t y = month < 3 ? year - 1 : year;
  const int64_t from_sunday = (y + y / 4 - y / 100 + y / 400 + kShift[month - 1] + day) % 7;
  *weekday = (from_sunday + 6) % 7;
  return true;
}

}  // namespace megalith
