// How fast this machine can read and write rows scattered over memory: the roof that lookups are held against.
//
// Nothing is computed but what keeps the compiler from leaving the reads out. The prefetch distance and the cache it
// goes to are the caller's to try, so that the roof does not depend on what the embedding kernels chose.
#include <algorithm>
#include <atomic>

#include "abi.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

constexpr int64_t kGrain = 1024;

// Asks for every line of packed rows `ahead` of their turn, `burst` rows at a time, and reads a byte of each line.
template <int kLocality>
uint64_t touch_packed(const uint8_t* base, int64_t row_bytes, const int32_t* ids, int64_t from, int64_t to,
                      int64_t ahead, int64_t burst) {
  int64_t asked = from;
  const auto ask_until = [&](int64_t until) {
    for (; asked < until; ++asked) {
      const uint8_t* coming = base + int64_t{ids[asked]} * row_bytes;
      __asm__ volatile("");
      for (int64_t at = 0; at < row_bytes - 1; at += 64) __builtin_prefetch(coming + at, 0, kLocality);
      __builtin_prefetch(coming + row_bytes - 1, 0, kLocality);
    }
  };
  uint64_t total = 0;
  for (int64_t i = from; i < to;) {
    const int64_t until = std::min(to, i + burst);
    ask_until(std::min(to, until + ahead));
    for (; i < until; ++i) {
      const uint8_t* own = base + int64_t{ids[i]} * row_bytes;
      for (int64_t at = 0; at < row_bytes - 1; at += 64) total += own[at];
      total += own[row_bytes - 1];
    }
  }
  return total;
}

}  // namespace
}  // namespace megalith

// Reads `count` rows; `total` is a sum of what they hold.
MG_EXPORT int32_t mg_random_row_read(void* base, int64_t row_bytes, const int64_t* ids, int64_t count, int64_t ahead,
                                     int32_t level, float* total) {
  return megalith::guarded("read rows", [&] {
    const megalith::ScatteredRows rows{static_cast<char*>(base), row_bytes, ids, ahead, level};
    const megalith::BandwidthKernels& use = megalith::kernels().bandwidth;
    std::atomic<float> sum{0.0f};
    megalith::parallel_for(0, count, megalith::kGrain, [&](int64_t from, int64_t to) {
      sum.store(sum.load() + use.read(rows, from, to));
    });
    *total = sum;
  });
}

// Adds one to every float of `count` rows; no row may stand in `ids` twice, for threads share them out.
MG_EXPORT int32_t mg_random_row_update(void* base, int64_t row_bytes, const int64_t* ids, int64_t count, int64_t ahead,
                                       int32_t level) {
  return megalith::guarded("update rows", [&] {
    const megalith::ScatteredRows rows{static_cast<char*>(base), row_bytes, ids, ahead, level};
    const megalith::BandwidthKernels& use = megalith::kernels().bandwidth;
    megalith::parallel_for(0, count, megalith::kGrain, [&](int64_t from, int64_t to) {
      use.update(rows, from, to);
    });
  });
}

// Reads a byte of every line that `count` rows cover, rows of any number of bytes without gaps between them, and asks for
// them into the first cache (`level` 1), the second or, with 3, past them, `burst` rows at a time. `total` is a sum of
// what was read.
MG_EXPORT int32_t mg_packed_row_read(const uint8_t* base, int64_t row_bytes, const int32_t* ids, int64_t count,
                                     int64_t ahead, int64_t burst, int32_t level, uint64_t* total) {
  return megalith::guarded("read rows", [&] {
    std::atomic<uint64_t> sum{0};
    const auto touch = level == 1   ? megalith::touch_packed<3>
                       : level == 2 ? megalith::touch_packed<2>
                                    : megalith::touch_packed<0>;
    const int64_t grain = std::max<int64_t>(1, std::min(megalith::kGrain, count / megalith::num_threads()));
    megalith::parallel_for(0, count, grain, [&](int64_t from, int64_t to) {
      sum += touch(base, row_bytes, ids, from, to, ahead, burst);
    });
    *total = sum;
  });
}
