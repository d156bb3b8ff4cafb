// Columns of some matrices put together in another: the vectors of many workers side by side, and apart again.
//
// A row is copied whole before the next one, so that what is written lies together; a call that copies one run
// after the other goes through memory once for each.
#include <cstring>

#include "abi.h"
#include "parallel.h"

namespace {

struct Run {
  int64_t source, column, output, width;
};

}  // namespace

// The first `num_copied` runs are copied, those behind them are added, in their order. `sources` and `out` have
// rows of `strides` and `out_stride` floats.
MG_EXPORT int32_t mg_copy_columns(const float* const* sources, const int64_t* strides, const int64_t* runs,
                                  int64_t num_runs, int64_t num_copied, int64_t num_rows, float* out,
                                  int64_t out_stride) {
  return megalith::guarded("put columns together", [&] {
    const Run* some = reinterpret_cast<const Run*>(runs);
    megalith::parallel_for(0, num_rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* to = out + row * out_stride;
        for (int64_t i = 0; i < num_runs; ++i) {
          const Run& run = some[i];
          const float* from = sources[run.source] + row * strides[run.source] + run.column;
          if (i < num_copied) {
            std::memcpy(to + run.output, from, static_cast<size_t>(run.width) * sizeof(float));
          } else {
            for (int64_t k = 0; k < run.width; ++k) to[run.output + k] += from[k];
          }
        }
      }
    });
  });
}
