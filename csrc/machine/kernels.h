// Bare loops over rows scattered in memory, one set for each processor variant.
#pragma once

#include <cstdint>

namespace megalith {

// Some rows, and how they are asked for: `ahead` rows before their turn, into the first or the second cache (`level`).
struct ScatteredRows {
  char* base;
  int64_t row_bytes;  // a multiple of 64
  const int64_t* ids;
  int64_t ahead;
  int32_t level;
};

struct BandwidthKernels {
  float (*read)(const ScatteredRows& rows, int64_t from, int64_t to);
  void (*update)(const ScatteredRows& rows, int64_t from, int64_t to);
};

}  // namespace megalith
