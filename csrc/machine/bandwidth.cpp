// How fast this machine can read and write rows scattered over memory: the roof that lookups are held against.
//
// Nothing is computed but what keeps the compiler from leaving the reads out. The prefetch distance and the cache it
// goes to are the caller's to try, so that the roof does not depend on what the embedding kernels chose.
#include <atomic>

#include "abi.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

constexpr int64_t kGrain = 1024;

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
