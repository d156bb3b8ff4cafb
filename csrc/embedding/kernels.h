// The lookup kernels that each build offers.
#pragma once

#include <cstdint>

#include "embedding/lookup.h"

namespace megalith {

// Ranges are bags of the lookup's feature.
struct LookupKernels {
  // Pools some columns of some bags into out[bag * out_stride].
  void (*pool)(const LookupDescriptor& lookup, const void* weight, const LookupBatch& batch, const Range& bags,
               const Range& columns, void* out, int64_t out_dtype, int64_t out_stride);
  // Copies the rows of values [first, last), counted from the lookup's first, one after the other.
  void (*copy)(const LookupDescriptor& lookup, const void* weight, const LookupBatch& batch, const Range& values,
               void* out, int64_t out_dtype);
  // The gradient of each sample weight: its row times its bag's gradient.
  void (*weight_gradient)(const LookupDescriptor& lookup, const void* weight, const LookupBatch& batch,
                          const Range& bags, const float* gradient, int64_t stride, float* out);
};

}  // namespace megalith
