// Delimited rows (Criteo, Avazu) to columns of labels, numbers and keys.
#include <array>
#include <cmath>

#include "abi.h"
#include "text/rows.h"
#include "text/token.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace megalith {
namespace {

// The same numbers as in src/megalith/ops/text/rows.py.
enum ColumnRole : int32_t { kSkip, kLabel, kNumber, kNumberLog, kBucket, kCategory, kHour };

// One bit for each of 64 bytes that is the delimiter or a line feed.
inline uint64_t separator_mask(const char* text, char delimiter) {
#if defined(__SSE2__)
  const __m128i delimiters = _mm_set1_epi8(delimiter), feeds = _mm_set1_epi8('\n');
  uint64_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + 16 * i));
    const __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(bytes, delimiters), _mm_cmpeq_epi8(bytes, feeds));
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(hit))) << (16 * i);
  }
  return mask;
#else
  uint64_t mask = 0;
  for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(text[i] == delimiter || text[i] == '\n') << i;
  return mask;
#endif
}

// Logarithms of the small integers that make up most counts.
float small_log(double number) {
  static const std::array<float, 4096> table = [] {
    std::array<float, 4096> logs{};
    for (size_t i = 0; i < logs.size(); ++i) logs[i] = signed_log(static_cast<double>(i));
    return logs;
  }();
  if (number >= 0 && number < 4096 && number == std::floor(number)) {
    return std::signbit(number) ? -0.0f : table[static_cast<size_t>(number)];
  }
  return signed_log(number);
}

class DelimitedParser {
 public:
  DelimitedParser(const char* text, int64_t length, const int32_t* roles, const int32_t* outputs,
                  int32_t num_columns, float missing_number, int64_t capacity, float* labels, float* numbers,
                  uint64_t* keys, int64_t* problems)
      : text_(text), limit_(text + length), roles_(roles), outputs_(outputs), num_columns_(num_columns),
        missing_number_(missing_number), capacity_(capacity), labels_(labels), numbers_(numbers), keys_(keys),
        problems_{problems} {}

  void field(int64_t begin, int64_t end) {
    if (column_ < num_columns_ && kind_ == 0) {
      kind_ = read(begin, end);
      if (kind_) fault_field_ = column_ + 1, fault_begin_ = begin, fault_length_ = end - begin;
    }
    ++column_;
  }

  void end_line(int64_t begin, int64_t end) {
    if (end > begin && text_[end - 1] == '\r') --end;
    if (column_ == 0 && begin == end) {
      ++line_;
      return;
    }
    field(begin, end);
    if (column_ != num_columns_) {
      problems_.add(line_, row_, kFieldCount, column_, begin, 0);
    } else if (kind_) {
      problems_.add(line_, row_, kind_, fault_field_, fault_begin_, fault_length_);
    } else {
      ++row_;
    }
    ++line_, column_ = 0, kind_ = 0;
  }

  bool inside_line() const { return column_ > 0; }
  int64_t rows() const { return row_; }
  int64_t lines() const { return line_; }
  int64_t num_problems() const { return problems_.count; }

 private:
  int64_t read(int64_t begin, int64_t end) {
    const char* token = text_ + begin;
    const int64_t length = end - begin;
    const int64_t at = outputs_[column_] * capacity_ + row_;
    double number = 0;
    switch (roles_[column_]) {
      case kCategory:
        keys_[at] = token_key(token, length, limit_);
        return 0;
      case kNumber:
      case kNumberLog: {
        if (length == 0) {
          numbers_[at] = missing_number_;
          return 0;
        }
        if (!parse_number(token, length, &number)) return kNotANumber;
        const float value = roles_[column_] == kNumber ? static_cast<float>(number) : small_log(number);
        numbers_[at] = value;
        return std::isfinite(value) ? kReadable : kNotANumber;
      }
      case kBucket:
        if (length == 0) {
          keys_[at] = 0;
          return 0;
        }
        if (!parse_number(token, length, &number)) return kNotANumber;
        keys_[at] = integer_key(log_bucket(number));
        return 0;
      case kHour: {
        int64_t hour = 0, weekday = 0;
        if (length == 0) {
          keys_[at] = keys_[at + capacity_] = 0;
          return 0;
        }
        if (!parse_hour(token, length, &hour, &weekday)) return kNotAnHour;
        keys_[at] = integer_key(hour);
        keys_[at + capacity_] = integer_key(weekday);
        return 0;
      }
      case kLabel:
        return parse_label(token, length, false, &labels_[row_]) ? kReadable : kNotALabel;
      default:
        return 0;
    }
  }

  const char* text_;
  const char* limit_;
  const int32_t* roles_;
  const int32_t* outputs_;
  int32_t num_columns_;
  float missing_number_;
  int64_t capacity_;
  float* labels_;
  float* numbers_;
  uint64_t* keys_;
  ParseProblems problems_;
  int64_t row_ = 0, line_ = 0, column_ = 0, kind_ = 0;
  int64_t fault_field_ = 0, fault_begin_ = 0, fault_length_ = 0;
};

}  // namespace
}  // namespace megalith

// Column c has role roles[c] and fills output column outputs[c]; these follow each other at a distance of
// `capacity`, at least the lines of the chunk. `totals` receives the
// lines, the problems and the good rows.
MG_EXPORT int32_t mg_parse_delimited(const char* text, int64_t length, int32_t delimiter, const int32_t* roles,
                                     const int32_t* outputs, int32_t num_columns, float missing_number,
                                     int64_t capacity, float* labels, float* numbers, uint64_t* keys,
                                     int64_t* problems, int64_t* totals) {
  return megalith::guarded("parse delimited text", [&] {
    megalith::DelimitedParser parser(text, length, roles, outputs, num_columns, missing_number, capacity, labels,
                                     numbers, keys, problems);
    int64_t begin = 0;
    const auto separator = [&](int64_t at) {
      if (text[at] == '\n') {
        parser.end_line(begin, at);
      } else {
        parser.field(begin, at);
      }
      begin = at + 1;
    };
    const char separator_byte = static_cast<char>(delimiter);
    int64_t block = 0;
    for (; block + 64 <= length; block += 64) {
      for (uint64_t mask = megalith::separator_mask(text + block, separator_byte); mask; mask &= mask - 1) {
        separator(block + __builtin_ctzll(mask));
      }
    }
    for (; block < length; ++block) {
      if (text[block] == separator_byte || text[block] == '\n') separator(block);
    }
    if (begin < length || parser.inside_line()) parser.end_line(begin, length);
    totals[0] = parser.lines();
    totals[1] = parser.num_problems();
    totals[2] = parser.rows();
  });
}
