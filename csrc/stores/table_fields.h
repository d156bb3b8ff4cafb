// A table as Python describes it to a pool of rows: integers in a row.
#pragma once

#include <cstdint>
#include <cstring>

#include "stores/start_values.h"

namespace megalith {

struct TableFields {
  int64_t rows, padding, table_seed, first_row, first_column, dim, dtype, scale_bits;

  StartValues start() const {
    float scale;
    const auto bits = static_cast<uint32_t>(scale_bits);
    std::memcpy(&scale, &bits, sizeof scale);
    return {static_cast<uint64_t>(table_seed), first_row, first_column, dim, dtype, scale};
  }
};

}  // namespace megalith
