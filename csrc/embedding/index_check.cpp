// What is wrong with the indices of a lookup: offsets that do not rise, or the first index outside its table.
//
// Runs before a lookup touches memory, so that bad input is an error with a name and never a crash. The
// smallest position wins whatever the number of threads, so the message is the same from run to run. In the same
// pass it may copy what it checks, ids into as few bytes as they need: a backward pass must find the ids that
// were checked, whoever has written to the caller's memory in the meantime.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <type_traits>

#include "abi.h"
#include "parallel.h"

namespace {

constexpr int64_t kNoFault = -1, kOffsetsFault = -2;
constexpr int64_t kBlock = 1024;  // values between two looks at whether all were in range

void copy(const int64_t* offsets, int64_t count, int64_t* own) {
  megalith::parallel_for(0, count, 1 << 16, [&](int64_t begin, int64_t end) {
    std::memcpy(own + begin, offsets + begin, static_cast<size_t>(end - begin) * sizeof(int64_t));
  });
}

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

// Whether any of `count` values is below 0 or above `last`; copies them unless `own` is null.
template <class Index, class Own>
bool any_outside(const Index* values, int64_t count, Index last, Own* own) {
  // The highest bit of value | (last - value) is set for exactly those: no branch, so it runs over vectors.
  using Bits = std::make_unsigned_t<Index>;
  Bits any = 0;
  if (own) {
    for (int64_t i = 0; i < count; ++i) {
      const Index value = values[i];
      own[i] = static_cast<Own>(value);
      any |= static_cast<Bits>(value) | (static_cast<Bits>(last) - static_cast<Bits>(value));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const Bits value = static_cast<Bits>(values[i]);
      any |= value | (static_cast<Bits>(last) - value);
    }
  }
  return static_cast<Index>(any) < 0;
}

template <class Index, class Own>
int64_t first_out_of_range(const Index* values, int64_t num_values, const int64_t* offsets, int64_t batch,
                           const int64_t* feature_rows, Own* own) {
  std::atomic<int64_t> first{num_values};
  megalith::parallel_for(0, num_values, 1 << 15, [&](int64_t begin, int64_t end) {
    // The feature of `begin`: the last whose values start at or before it.
    int64_t feature = 0;
    while (offsets[(feature + 1) * batch] <= begin) ++feature;
    for (int64_t i = begin; i < end; ++feature) {
      const int64_t stop = std::min(end, offsets[(feature + 1) * batch]);
      if (feature_rows[feature] < 0) {
        // Any number is an id.
        for (; i < stop; ++i) {
          if (own) own[i] = static_cast<Own>(values[i]);
        }
        continue;
      }
      const int64_t most = std::numeric_limits<Index>::max();
      const Index last = static_cast<Index>(std::min(feature_rows[feature] - 1, most));
      for (; i < stop; i += std::min(kBlock, stop - i)) {
        const int64_t count = std::min(kBlock, stop - i);
        if (!any_outside(values + i, count, last, own ? own + i : nullptr)) continue;
        int64_t at = i;
        while (at + 1 < i + count && values[at] >= 0 && values[at] <= last) ++at;
        int64_t seen = first.load();
        while (at < seen && !first.compare_exchange_weak(seen, at)) {
        }
        return;
      }
    }
  });
  const int64_t found = first.load();
  return found == num_values ? kNoFault : found;
}

template <class Index>
int64_t first_out_of_range(const Index* values, int64_t num_values, const int64_t* offsets, int64_t batch,
                           const int64_t* feature_rows, void* own, int32_t own_bytes) {
  if (own_bytes == 4) {
    return first_out_of_range(values, num_values, offsets, batch, feature_rows, static_cast<int32_t*>(own));
  }
  return first_out_of_range(values, num_values, offsets, batch, feature_rows, static_cast<int64_t*>(own));
}

}  // namespace

// `fault` is -1 where all is well, -2 where offsets do not rise from 0 to the number of values, or the smallest
// position of an index outside [0, rows of its feature); a feature of -1 rows takes any index. `own_values`, of `own_bytes` each, and `own_offsets` receive
// copies unless they are null; ids in range must fit.
MG_EXPORT int32_t mg_lookup_fault(const void* values, int32_t index_bytes, int64_t num_values, const int64_t* offsets,
                                  int64_t batch, const int64_t* feature_rows, int64_t num_features, void* own_values,
                                  int32_t own_bytes, int64_t* own_offsets, int64_t* fault) {
  return megalith::guarded("check the indices of a lookup", [&] {
    const int64_t num_bags = batch * num_features;
    if (own_offsets) {
      copy(offsets, num_bags + 1, own_offsets);
      offsets = own_offsets;
    }
    if (!rises(offsets, num_bags, num_values)) {
      *fault = kOffsetsFault;
    } else if (num_values == 0) {
      *fault = kNoFault;
    } else if (index_bytes == 4) {
      *fault = first_out_of_range(static_cast<const int32_t*>(values), num_values, offsets, batch, feature_rows,
                                  own_values, own_bytes);
    } else {
      *fault = first_out_of_range(static_cast<const int64_t*>(values), num_values, offsets, batch, feature_rows,
                                  own_values, own_bytes);
    }
  });
}
