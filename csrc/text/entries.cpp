// Rows of `index:value` entries (libFM, libFFM) to labels, fields and keys.
#include <charconv>
#include <cstring>

#include "abi.h"
#include "text/rows.h"
#include "text/token.h"

namespace megalith {
namespace {

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
    return parse_label(text_ + begin, end - begin, true, &labels_[row_]) ? kReadable : kNotALabel;
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
  ParseProblems problems_;
  int64_t row_ = 0, line_ = 0, entries_ = 0;
};

}  // namespace
}  // namespace megalith

// Row r holds entries [row_ends[r-1], row_ends[r]); `row_entries` is how many a row must have, or -1 for any
// number. `totals` receives the lines, the problems, the good rows and the entries.
MG_EXPORT int32_t mg_parse_entries(const char* text, int64_t length, int32_t num_colons, int64_t row_entries,
                                   float* labels, int64_t* row_ends, int32_t* fields, uint64_t* keys,
                                   int64_t* problems, int64_t* totals) {
  return megalith::guarded("parse entries", [&] {
    megalith::EntryParser parser(text, length, num_colons, row_entries, labels, row_ends, fields, keys, problems);
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
