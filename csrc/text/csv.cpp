// CSV: rows of fields between delimiters. A field in double quotes may hold delimiters, line feeds and, doubled,
// quotes; what follows the closing quote belongs to the field as it is. A quote inside a field that does not begin
// with one is a plain character. Empty lines are passed over; a carriage return before the line feed is dropped.
#include <cstring>
#include <vector>

#include "abi.h"
#include "text/rows.h"

namespace megalith {
namespace {

// The raw bytes [begin, end) of a field; `length` of them are left once quotes are taken off.
struct Field {
  int64_t begin, end, length;
  bool quoted;
};

class CsvScanner {
 public:
  CsvScanner(const char* text, int64_t length, char delimiter)
      : text_(text), length_(length), delimiter_(delimiter) {}

  bool at_end() const { return at_ == length_; }
  bool quote_is_open() const { return quote_is_open_; }
  int64_t at() const { return at_; }
  int64_t lines() const { return lines_; }

  // Reads the field that begins here, up to its delimiter, its line feed or the end of the text.
  Field next() {
    Field field{at_, at_, 0, false};
    if (at_ < length_ && text_[at_] == '"') {
      field.quoted = true;
      field.length = pass_quotes();
    }
    const int64_t rest = at_;
    while (at_ < length_ && text_[at_] != delimiter_ && text_[at_] != '\n') ++at_;
    field.end = at_;
    if (at_ > rest && text_[at_ - 1] == '\r' && (at_ == length_ || text_[at_] == '\n')) --field.end;
    field.length += field.end - rest;
    return field;
  }

  bool pass_delimiter() {
    if (at_ == length_ || text_[at_] != delimiter_) return false;
    ++at_;
    return true;
  }

  bool pass_line_feed() {
    if (at_ == length_) return false;
    ++at_, ++lines_;
    return true;
  }

  void copy(const Field& field, char* out) const {
    int64_t at = field.begin;
    if (field.quoted) {
      for (++at; !closes(at); ++at) {
        if (text_[at] == '"') ++at;
        *out++ = text_[at];
      }
      ++at;
    }
    std::memcpy(out, text_ + at, static_cast<size_t>(field.end - at));
  }

 private:
  bool closes(int64_t at) const {
    return text_[at] == '"' && !(at + 1 < length_ && text_[at + 1] == '"');
  }

  // From an opening quote to behind the closing one; how many bytes stand between, a doubled quote being one.
  int64_t pass_quotes() {
    int64_t count = 0;
    for (++at_; at_ < length_; ++at_, ++count) {
      if (closes(at_)) {
        ++at_;
        return count;
      }
      if (text_[at_] == '"') ++at_;
      if (text_[at_] == '\n') ++lines_;
    }
    quote_is_open_ = true;
    return count;
  }

  const char* text_;
  int64_t length_;
  char delimiter_;
  int64_t at_ = 0, lines_ = 0;
  bool quote_is_open_ = false;
};

}  // namespace
}  // namespace megalith

// `totals` receives the bytes of the whole rows of a text, each up to its line feed, and the lines in them.
MG_EXPORT int32_t mg_csv_whole_rows(const char* text, int64_t length, int32_t delimiter, int64_t* totals) {
  return megalith::guarded("find rows of CSV", [&] {
    megalith::CsvScanner scanner(text, length, static_cast<char>(delimiter));
    totals[0] = totals[1] = 0;
    while (!scanner.at_end()) {
      do {
        scanner.next();
      } while (scanner.pass_delimiter());
      if (scanner.quote_is_open() || !scanner.pass_line_feed()) return;
      totals[0] = scanner.at(), totals[1] = scanner.lines();
    }
  });
}

// Field c of a row fills output column outputs[c], or none where that is -1. The bytes of the output columns
// follow each other in `data`, which has room for the whole text; field r of column o lies between
// offsets[o * (capacity + 1) + r] and the one after it. `row_lines` has the line where each good row begins;
// `totals` receives the lines, the problems and the good rows.
MG_EXPORT int32_t mg_parse_csv(const char* text, int64_t length, int32_t delimiter, const int32_t* outputs,
                               int32_t num_columns, int32_t num_outputs, int64_t capacity, char* data,
                               int64_t* offsets, int64_t* row_lines, int64_t* problems, int64_t* totals) {
  return megalith::guarded("parse CSV", [&] {
    megalith::CsvScanner scanner(text, length, static_cast<char>(delimiter));
    megalith::ParseProblems found{problems};
    std::vector<megalith::Field> fields;
    fields.reserve(static_cast<size_t>(capacity * num_outputs));
    std::vector<int64_t> sizes(static_cast<size_t>(num_outputs), 0);
    int64_t rows = 0;
    while (!scanner.at_end()) {
      const int64_t line = scanner.lines(), begin = scanner.at();
      fields.resize(static_cast<size_t>((rows + 1) * num_outputs));
      megalith::Field* row = fields.data() + rows * num_outputs;
      megalith::Field last{};
      int64_t column = 0;
      do {
        last = scanner.next();
        if (column < num_columns && outputs[column] >= 0) row[outputs[column]] = last;
        ++column;
      } while (scanner.pass_delimiter());
      scanner.pass_line_feed();
      if (column == 1 && last.length == 0 && !last.quoted) continue;
      if (scanner.quote_is_open()) {
        found.add(line, rows, megalith::kOpenQuote, column, begin, 0);
      } else if (column != num_columns) {
        found.add(line, rows, megalith::kFieldCount, column, begin, 0);
      } else {
        for (int32_t output = 0; output < num_outputs; ++output) sizes[output] += row[output].length;
        row_lines[rows++] = line;
      }
    }
    int64_t base = 0;
    for (int32_t output = 0; output < num_outputs; ++output) {
      int64_t* bounds = offsets + output * (capacity + 1);
      bounds[0] = base;
      for (int64_t row = 0; row < rows; ++row) {
        const megalith::Field& field = fields[static_cast<size_t>(row * num_outputs + output)];
        scanner.copy(field, data + bounds[row]);
        bounds[row + 1] = bounds[row] + field.length;
      }
      base += sizes[output];
    }
    totals[0] = scanner.lines() + (length > 0 && text[length - 1] != '\n');
    totals[1] = found.count;
    totals[2] = rows;
  });
}
