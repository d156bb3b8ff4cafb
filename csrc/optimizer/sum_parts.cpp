#include "optimizer/sum_parts.h"

#include <utility>

#include "optimizer/buffers.h"

namespace megalith {

void SumParts::reserve(int64_t num_touched, int64_t num_rows, int64_t at_a_time) {
  const int64_t parts = (num_rows + at_a_time - 1) / at_a_time;
  make_room(bounds, parts + 1);
  make_room(ends, parts + 1);
  make_room(parted, num_touched);
}

void SumParts::cut(std::vector<RowSource>& touched, int64_t num_rows, int64_t at_a_time) {
  const size_t parts = static_cast<size_t>((num_rows + at_a_time - 1) / at_a_time);
  bounds.assign(parts + 1, 0);
  if (parts == 1) bounds[1] = static_cast<int64_t>(touched.size());
  if (parts <= 1) return;
  const uint64_t size = static_cast<uint64_t>(at_a_time);
  for (const RowSource pair : touched) ++bounds[(pair >> 32) / size + 1];
  for (size_t p = 0; p < parts; ++p) bounds[p + 1] += bounds[p];
  ends.assign(bounds.begin(), bounds.end() - 1);
  RowSource* to = resized(parted, static_cast<int64_t>(touched.size()));
  for (const RowSource pair : touched) {
    const uint64_t p = (pair >> 32) / size;
    to[ends[p]++] = pair - (p * size << 32);
  }
  std::swap(touched, parted);
}

}  // namespace megalith
