// The kernels over frozen rows that each build offers.
#pragma once

#include <cstdint>

#include "frozen/format.h"

namespace megalith {

// What is wrong with a row that cannot be encoded.
enum FrozenUnfit : int64_t { kFitsFormat = 0, kNotFinite = 1, kTooWide = 2, kScaleTooLarge = 3 };

struct FrozenKernels {
  // Pools the bags from one place up to another, lookup by lookup; false where an id was outside its table.
  bool (*pool)(const FrozenSource* lookups, const FrozenBatch& batch, const FrozenPlace& first,
               const FrozenPlace& last, FrozenFault* fault);
  // Encodes rows as integers; returns the first that does not fit, or -1. `scratch` holds dim floats, rounded up to 16.
  int64_t (*encode)(const float* weights, int64_t rows, int64_t dim, int64_t precision, int64_t header_bytes,
                    uint8_t* out, float* scratch);
};

}  // namespace megalith
