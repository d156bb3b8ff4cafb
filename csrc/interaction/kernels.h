// The dot interaction of DLRM, as each processor variant offers it.
#pragma once

#include <cstdint>

namespace megalith {

struct InteractionKernels {
  void (*interact)(const float* const* vectors, int64_t count, int64_t dim, float* transposed, float* products);
  void (*interact_backward)(const float* const* vectors, int64_t count, int64_t dim, const float* products,
                            const float* extra, float* factors, float* const* gradients);
};

}  // namespace megalith
