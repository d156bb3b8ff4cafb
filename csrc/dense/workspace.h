// What one thread needs to run a block of samples through a program.
#pragma once

#include <cstdint>
#include <vector>

#include "dense/layer.h"
#include "zeroed_memory.h"

namespace megalith {

// Rows of so many bytes, apart by an odd number of cache lines: rows that are apart by a power of two would share few
// sets of the first-level cache.
inline int64_t stride_bytes(int64_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

struct Workspace {
  Workspace(int64_t rows, int64_t arena, int64_t widest, int64_t vectors, int64_t transposed_floats)
      : capacity(rows),
        values(rows * arena * 4),
        codes(rows * stride_bytes(widest)),
        rounded(rows * stride_bytes(widest * 4)),
        scales(static_cast<size_t>(rows)),
        zeros(static_cast<size_t>(rows)),
        vectors(static_cast<size_t>(vectors)),
        transposed(static_cast<size_t>(transposed_floats)) {
    samples.codes = codes.as<uint8_t>();
    samples.codes_stride = stride_bytes(widest);
    samples.rounded = rounded.as<float>();
    samples.rounded_stride = stride_bytes(widest * 4) / 4;
    samples.scales = scales.data();
    samples.zeros = zeros.data();
  }

  static int64_t bytes(int64_t rows, int64_t arena, int64_t widest) {
    return rows * (arena * 4 + stride_bytes(widest) + stride_bytes(widest * 4));
  }

  int64_t capacity;  // samples
  ZeroedMemory values, codes, rounded;
  std::vector<float> scales;
  std::vector<int32_t> zeros;
  PreparedSamples samples;
  int64_t prepared = -1;  // the value that `samples` holds, of this block and as the last layer wanted it
  bool holds_bytes = false;
  std::vector<const float*> vectors;
  std::vector<float> transposed;
};

}  // namespace megalith
