// Columns of some matrices put together in another: the vectors of many workers side by side, and apart again.
//
// A row is copied whole before the next one, so that what is written is together in memory; a call that copies one
// range of columns after the other goes through memory once for each.
#include <cstring>

#include "abi.h"
#include "parallel.h"

namespace {

struct ColumnCopy {
  int64_t source, column, output, width;
};

}  // namespace

// The first `num_copied` of `copies` are copied, those behind them are added, in their order. `sources` and `out` have
// rows of `strides` and `out_stride` floats.
MG_EXPORT int32_t mg_copy_columns(const float* const* sources, const int64_t* strides, const int64_t* copies,
                                  int64_t num_copies, int64_t num_copied, int64_t num_rows, float* out,
                                  int64_t out_stride) {
  return megalith::guarded("put columns together", [&] {
    const ColumnCopy* described = reinterpret_cast<const ColumnCopy*>(copies);
    megalith::parallel_for(0, num_rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* to = out + row * out_stride;
        for (int64_t i = 0; i < num_copies; ++i) {
          const ColumnCopy& copy = described[i];
          const float* from = sources[copy.source] + row * strides[copy.source] + copy.column;
          if (i < num_copied) {
            std::memcpy(to + copy.output, from, static_cast<size_t>(copy.width) * sizeof(float));
          } else {
            for (int64_t k = 0; k < copy.width; ++k) to[copy.output + k] += from[k];
          }
        }
      }
    });
  });
}
