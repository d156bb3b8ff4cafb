// The sums of gradients of rows that occur again, a part at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "optimizer/step.h"

namespace megalith {

// Sums of repeated rows that a thread works on at a time, so that they stay in its second-level cache.
constexpr int64_t kSumBytes = 512 << 10;
inline int64_t sums_at_a_time(int64_t dim) { return std::max<int64_t>(16, kSumBytes / (dim * 4)); }

// Touched rows in parts of neighbouring numbers.
struct SumParts {
  std::vector<int64_t> bounds;  // where each part begins and the last one ends
  std::vector<int64_t> ends;
  std::vector<RowSource> parted;

  // For so many touched rows of so many numbers: cutting them will then take no further memory.
  void reserve(int64_t num_touched, int64_t num_rows, int64_t at_a_time);
  // Brings those of each `at_a_time` numbers together, numbers counted from the first of them. `touched` must have the
  // room that was reserved here: the two are swapped.
  void cut(std::vector<RowSource>& touched, int64_t num_rows, int64_t at_a_time);
};

}  // namespace megalith
