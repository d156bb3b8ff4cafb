// Frozen rows of integers, encoded on all threads.
#include <atomic>
#include <vector>

#include "abi.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace {

constexpr int64_t kGrain = 256;  // rows

}  // namespace

// Encodes `rows` rows of `dim` floats; `unfit` is the first that does not fit the format, or -1.
MG_EXPORT int32_t mg_frozen_encode(const float* weights, int64_t rows, int64_t dim, int64_t precision,
                                   int64_t header_bytes, uint8_t* out, int64_t* unfit) {
  return megalith::guarded("encode rows", [&] {
    const int64_t bits = precision == megalith::kRowsInt4 ? 4 : 8, row_bytes = header_bytes + (dim * bits + 7) / 8;
    const megalith::FrozenKernels& use = megalith::kernels().frozen;
    std::atomic<int64_t> first{rows};
    megalith::parallel_for(0, rows, kGrain, [&](int64_t from, int64_t to) {
      std::vector<float> scratch(static_cast<size_t>((dim + 15) / 16 * 16));
      const int64_t found = use.encode(weights + from * dim, to - from, dim, precision, header_bytes,
                                       out + from * row_bytes, scratch.data());
      if (found < 0) return;
      int64_t seen = first.load();
      while (from + found < seen && !first.compare_exchange_weak(seen, from + found)) {
      }
    });
    *unfit = first == rows ? -1 : first.load();
  });
}
