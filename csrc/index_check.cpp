// What is wrong with the indices of a lookup: offsets that do not rise, or the first index outside its table.
//
// Runs before a lookup touches memory, so that bad input is an error with a name and never a crash. The
// smallest position wins whatever the number of threads, so the message is the same from run to run.
#include <algorithm>
#include <atomic>

#include "abi.h"
#include "parallel.h"

namespace {

constexpr int64_t kNone = -1, kOffsets = -2;

bool rises(const int64_t* offsets, int64_t num_bags, int64_t num_values) {
  if (offsets[0] != 0 || offsets[num_bags] != num_values) return false;
  std::atomic<bool> falls{false};
  megalith::parallel_for(0, num_bags, 1 << 16, [&](int64_t begin, int64_t end) {
    // No way out of the loop: it runs over vectors at the speed of memory.
    uint64_t any = 0;
    for (int64_t bag = begin; bag < end; ++bag) {
      any |= static_cast<uint64_t>(offsets[bag + 1]) - static_cast<uint64_t>(offsets[bag]);
    }
    // A difference below zero has its highest bit set; so has one too large to be any.
    if (any >> 63) falls = true;
  });
  return !falls;
}

template <class Index>
int64_t first_out_of_range(const Index* values, int64_t num_values, const int64_t* offsets, int64_t batch,
                           const int64_t* feature_rows) {
  std::atomic<int64_t> first{num_values};
  megalith::parallel_for(0, num_values, 1 << 15, [&](int64_t begin, int64_t end) {
    // The feature of `begin`: the last whose values start at or before it.
    int64_t feature = 0;
    while (offsets[(feature + 1) * batch] <= begin) ++feature;
    for (int64_t i = begin; i < end; ++feature) {
      const int64_t stop = std::min(end, offsets[(feature + 1) * batch]);
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
  return found == num_values ? kNone : found;
}

}  // namespace

MG_EXPORT int64_t mg_lookup_fault(const void* values, int32_t index_bytes, int64_t num_values, const int64_t* offsets,
                                  int64_t batch, const int64_t* feature_rows, int64_t num_features) {
  if (!rises(offsets, batch * num_features, num_values)) return kOffsets;
  if (num_values == 0) return kNone;
  if (index_bytes == 4) {
    return first_out_of_range(static_cast<const int32_t*>(values), num_values, offsets, batch, feature_rows);
  }
  return first_out_of_range(static_cast<const int64_t*>(values), num_values, offsets, batch, feature_rows);
}
