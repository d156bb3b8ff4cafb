// What the parsers of rows share: labels, and records of rows that cannot be read.
//
// A call parses one chunk that begins at a line start. A row that cannot be read leaves no trace in the columns
// and one record in `problems`: line in the chunk, good rows before it, kind, field (from 1), byte offset and
// length of the text at fault. Empty lines are passed over; a carriage return before the line feed is dropped.
#pragma once

#include <cstdint>

#include "text/token.h"

namespace megalith {

// The same numbers as in src/megalith/ops/text/rows.py.
enum ParseProblem : int64_t {
  kReadable,
  kFieldCount,
  kNotALabel,
  kNotANumber,
  kNotAnHour,
  kNotAnEntry,
  kNotOne,
  kOpenQuote,
};
constexpr int kProblemWidth = 6;

struct ParseProblems {
  int64_t* records;
  int64_t count = 0;

  void add(int64_t line, int64_t rows, int64_t kind, int64_t field, int64_t offset, int64_t length) {
    int64_t* record = records + kProblemWidth * count++;
    record[0] = line, record[1] = rows, record[2] = kind;
    record[3] = field, record[4] = offset, record[5] = length;
  }
};

inline bool parse_label(const char* token, int64_t length, bool signed_labels, float* label) {
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

}  // namespace megalith
