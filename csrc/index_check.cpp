// The first position whose index lies outside its feature's table, or -1.
//
// Runs before a lookup touches memory, so that bad input is an error with a name and never a crash. The
// smallest position wins whatever the number of threads, so the message is the same from run to run.
#include <algorithm>
#include <atomic>

#include "abi.h"
#include "parallel.h"

namespace {

template <class Index>
int64_t first_out_of_range(const Index* values, const int64_t* feature_ends, const int64_t* feature_rows,
                           int64_t num_features, int64_t num_values) {
  std::atomic<int64_t> first{num_values};
  megalith::parallel_for(0, num_values, 1 << 15, [&](int64_t begin, int64_t end) {
    int64_t feature = std::upper_bound(feature_ends, feature_ends + num_features, begin) - feature_ends;
    for (int64_t i = begin; i < end && feature < num_features; ++feature) {
      const int64_t stop = std::min(end, feature_ends[feature]);
      const uint64_t rows = static_cast<uint64_t>(feature_rows[feature]);
      for (; i < stop; ++i) {
        // One unsigned comparison catches negative indices too.
        if (static_cast<uint64_t>(static_cast<int64_t>(values[i])) >= rows) {
          int64_t seen = first.load();
          while (i < seen && !first.compare_exchange_weak(seen, i)) {
          }
          return;
        }
      }
    }
  });
  const int64_t found = first.load();
  return found == num_values ? -1 : found;
}

}  // namespace

MG_EXPORT int64_t mg_first_out_of_range(const void* values, int32_t index_bytes, const int64_t* feature_ends,
                                        const int64_t* feature_rows, int64_t num_features,
                                        int64_t num_values) {
  if (index_bytes == 4) {
    return first_out_of_range(static_cast<const int32_t*>(values), feature_ends, feature_rows, num_features,
                              num_values);
  }
  return first_out_of_range(static_cast<const int64_t*>(values), feature_ends, feature_rows, num_features,
                            num_values);
}
