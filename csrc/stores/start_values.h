// The value a row begins with: a function of seed, table, id and column, of nothing physical.
//
// A counter is hashed, no stream is drawn: any row of any table can be computed at any time, by any process. Two columns
// share a hash. The plain-torch twin is in ops; neither may ever change, or runs would not resume.
#pragma once

#include <cstdint>
#include <cstring>

#include "mix.h"

namespace megalith {

// How the rows of a table, or of a rectangle of one, begin: evenly in [-scale, scale).
struct StartValues {
  uint64_t table_seed;   // of the seed and the table's name
  int64_t first_row;     // of the rectangle in its table
  int64_t first_column;
  int64_t dim;           // columns here
  int64_t dtype;
  float scale;

  float value(uint64_t row_key, int64_t column) const {
    const auto at = static_cast<uint64_t>(first_column + column);
    const uint64_t pair = mix64(row_key + (at / 2 + 1) * 0xd1342543de82ef95ull);
    const auto half = static_cast<uint32_t>(at % 2 ? pair >> 32 : pair);
    return (static_cast<float>(half >> 8) * 0x1p-23f - 1.0f) * scale;
  }

  uint64_t row_key(int64_t row) const {
    return mix64(table_seed + static_cast<uint64_t>(first_row + row) * 0x9e3779b97f4a7c15ull);
  }

  void fill(int64_t row, char* out) const {
    const uint64_t key = row_key(row);
    for (int64_t column = 0; column < dim; ++column) {
      const float number = value(key, column);
      if (dtype == 0) {
        std::memcpy(out + column * 4, &number, 4);
      } else if (dtype == 1) {
        const auto half = static_cast<_Float16>(number);
        std::memcpy(out + column * 2, &half, 2);
      } else {
        uint32_t bits;
        std::memcpy(&bits, &number, 4);
        const auto upper = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        std::memcpy(out + column * 2, &upper, 2);
      }
    }
  }
};

}  // namespace megalith
