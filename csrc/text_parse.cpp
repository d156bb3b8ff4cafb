// Rows of text to columns: delimited lines (Criteo, Avazu) and lines of index:value entries (libFM, libFFM).
//
// A call parses one chunk that begins at a line start. A row that cannot be read leaves no trace in the columns
// and one record in `problems`: line in the chunk, good rows before it, kind, field (from 1), byte offset and
// length of the text at fault. Empty lines are passed over; a carriage return before the line feed is dropped.
#include <array>

#include "abi.h"
#include "text_token.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

using megalith::integer_key;
using megalith::log_bucket;
using megalith::parse_number;
using megalith::signed_log;
using megalith::token_key;

// The same numbers as in src/megalith/ops/text.py.
enum Role : int32_t { kSkip, kLabel, kNumber, kNumberLog, kBucket, kCategory, kHour };
enum Problem : int64_t {
  kFine,
  kFieldCount,
  kNotALabel,
  kNotANumber,
  kNotAnHour,
  kNotAnEntry,
  kNotOne,
};
constexpr int kProblemWidth = 6;

struct Problems {
  int64_t* records;
  int64_t count = 0;

  void add(int64_t line, int64_t rows, int64_t kind, int64_t field, int64_t offset, int64_t length) {
    int64_t* record = records + kProblemWidth * count++;
    record[0] = line, record[1] = rows, record[2] = kind;
    record[3] = field, record[4] = offset, record[5] = length;
  }
};

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

bool parse_label(const char* token, int64_t length, bool signed_labels, float* label) {
  double number = 0;
  if (length == 1 && (*token == '0' || *token == '1')) {
    *label = static_cast<float>(*token - '0');
    return true;
  }
  if (!parse_number(token, length, &number)) return false;
  if (signed_labels && number == -1) number = 0;
  *label = static_cast<float>(number) + 0.0f;
  return number == 0 || number == 1;
}

class DelimitedParser {
 public:
  DelimitedParser(const char* text, int64_t length, const int32_t* roles, const int32_t* slots,
                  int32_t num_columns, float missing_number, int64_t capacity, float* labels, float* numbers,
                  uint64_t* keys, int64_t* problems)
      : text_(text), limit_(text + length), roles_(roles), slots_(slots), num_columns_(num_columns),
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
    const int64_t at = slots_[column_] * capacity_ + row_;
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
        return std::isfinite(value) ? kFine : kNotANumber;
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
        if (!megalith::parse_hour(token, length, &hour, &weekday)) return kNotAnHour;
        keys_[at] = integer_key(hour);
        keys_[at + capacity_] = integer_key(weekday);
        return 0;
      }
      case kLabel:
        return parse_label(token, length, false, &labels_[row_]) ? kFine : kNotALabel;
      default:
        return 0;
    }
  }

  const char* text_;
  const char* limit_;
  const int32_t* roles_;
  const int32_t* slots_;
  int32_t num_columns_;
  float missing_number_;
  int64_t capacity_;
  float* labels_;
  float* numbers_;
  uint64_t* keys_;
  Problems problems_;
  int64_t row_ = 0, line_ = 0, column_ = 0, kind_ = 0;
  int64_t fault_field_ = 0, fault_begin_ = 0, fault_length_ = 0;
};

// A line of entries: a label, then `index:value` (one colon) or `field:index:value` (two) between blanks.
class EntryParser {
 public:
  EntryParser(const char* text, int64_t length, int32_t num_colons, int64_t row_entries, float* labels,
              int64_t* row_ends, int32_t* fields, uint64_t* keys, int64_t* problems)
      : text_(text), limit_(text + length), num_colons_(num_colons), row_entries_(row_entries), labels_(labels),
        row_ends_(row_ends), fields_(fields), keys_(keys), problems_{problems} {}

  void line(int64_t begin, int64_t end) {
    if (end > begin && text_[end - 1] == '\r') --end;
    int64_t position = 0, kept = entries_;
    int64_t at = begin;
    while (at < end) {
      while (at < end && blank(text_[at])) ++at;
      if (at == end) break;
      int64_t stop = at;
      while (stop < end && !blank(text_[stop])) ++stop;
      const int64_t kind = position == 0 ? label(at, stop) : entry(at, stop, static_cast<int32_t>(position - 1));
      ++position;
      if (kind) {
        problems_.add(line_, row_, kind, position, at, stop - at);
        entries_ = kept;
        ++line_;
        return;
      }
      at = stop;
    }
    if (position > 0 && row_entries_ >= 0 && position - 1 != row_entries_) {
      problems_.add(line_, row_, kFieldCount, position, begin, 0);
      entries_ = kept;
    } else if (position > 0) {
      row_ends_[row_++] = entries_;
    }
    ++line_;
  }

  int64_t rows() const { return row_; }
  int64_t lines() const { return line_; }
  int64_t entries() const { return entries_; }
  int64_t num_problems() const { return problems_.count; }

 private:
  static bool blank(char byte) { return byte == ' ' || byte == '\t'; }

  int64_t label(int64_t begin, int64_t end) {
    return parse_label(text_ + begin, end - begin, true, &labels_[row_]) ? kFine : kNotALabel;
  }

  int64_t entry(int64_t begin, int64_t end, int32_t position) {
    const char* at = text_ + begin;
    const char* stop = text_ + end;
    int32_t field = position;
    if (num_colons_ == 2) {
      const std::from_chars_result result = std::from_chars(at, stop, field);
      if (result.ec != std::errc() || field < 0 || result.ptr == stop || *result.ptr != ':') return kNotAnEntry;
      at = result.ptr + 1;
    }
    const char* colon = static_cast<const char*>(std::memchr(at, ':', static_cast<size_t>(stop - at)));
    double value = 0;
    if (colon == nullptr || colon == at) return kNotAnEntry;
    if (!parse_number(colon + 1, stop - colon - 1, &value)) return kNotAnEntry;
    if (value != 1) return kNotOne;
    fields_[entries_] = field;
    keys_[entries_++] = token_key(at, colon - at, limit_);
    return 0;
  }

  const char* text_;
  const char* limit_;
  int32_t num_colons_;
  int64_t row_entries_;
  float* labels_;
  int64_t* row_ends_;
  int32_t* fields_;
  uint64_t* keys_;
  Problems problems_;
  int64_t row_ = 0, line_ = 0, entries_ = 0;
};

}  // namespace

// Columns lie one after the other, `capacity` (at least the lines of the chunk) apart. `totals` receives the
// lines, the problems and the good rows.
MG_EXPORT int32_t mg_parse_delimited(const char* text, int64_t length, int32_t delimiter, const int32_t* roles,
                                     const int32_t* slots, int32_t num_columns, float missing_number,
                                     int64_t capacity, float* labels, float* numbers, uint64_t* keys,
                                     int64_t* problems, int64_t* totals) {
  return megalith::guarded("parse delimited text", [&] {
    DelimitedParser parser(text, length, roles, slots, num_columns, missing_number, capacity, labels, numbers,
                           keys, problems);
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
      for (uint64_t mask = separator_mask(text + block, separator_byte); mask; mask &= mask - 1) {
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

// Row r holds entries [row_ends[r-1], row_ends[r]); `row_entries` is how many a row must have, or -1 for any
// number. `totals` receives the lines, the problems, the good rows and the entries.
MG_EXPORT int32_t mg_parse_entries(const char* text, int64_t length, int32_t num_colons, int64_t row_entries,
                                   float* labels, int64_t* row_ends, int32_t* fields, uint64_t* keys,
                                   int64_t* problems, int64_t* totals) {
  return megalith::guarded("parse entries", [&] {
    EntryParser parser(text, length, num_colons, row_entries, labels, row_ends, fields, keys, problems);
    for (int64_t begin = 0; begin < length;) {
      const void* feed = std::memchr(text + begin, '\n', static_cast<size_t>(length - begin));
      const int64_t end = feed ? static_cast<const char*>(feed) - text : length;
      parser.line(begin, end);
      begin = end + 1;
    }
    totals[0] = parser.lines();
    totals[1] = parser.num_problems();
    totals[2] = parser.rows();
    totals[3] = parser.entries();
  });
}

// The key of each of `count` tokens; token i is text[offsets[i] : offsets[i + 1]].
MG_EXPORT int32_t mg_token_keys(const char* text, const int64_t* offsets, int64_t count, uint64_t* keys) {
  return megalith::guarded("hash tokens", [&] {
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = token_key(text + offsets[i], offsets[i + 1] - offsets[i], text + offsets[count]);
    }
  });
}
