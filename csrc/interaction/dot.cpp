// The dot interaction over a batch: out = [first | all pairwise dot products of first and rest].
//
// Each sample's vectors fit the first-level cache, so they are read once and written once; a batched matrix
// product of such small matrices spends most of its time on set-up and on products that are thrown away.
#include <cstddef>
#include <vector>

#include "abi.h"
#include "parallel.h"
#include "simd/kernels.h"

// `first` is [batch, dim], or null; `rest` is [batch, num_rest * dim]; `out` is [batch, dim or 0 + pairs].
MG_EXPORT int32_t mg_dot_interaction(const float* first, const float* rest, int64_t batch, int64_t num_rest,
                                     int64_t dim, float* out) {
  return megalith::guarded("compute the dot interaction", [&] {
    const int64_t lead = first ? 1 : 0, count = num_rest + lead, width = lead * dim + count * (count - 1) / 2;
    const megalith::InteractionKernels& use = megalith::kernels().interaction;
    megalith::parallel_for(0, batch, 16, [&](int64_t begin, int64_t end) {
      std::vector<const float*> vectors(static_cast<std::size_t>(count));
      std::vector<float> transposed(static_cast<std::size_t>(dim * ((count + 15) / 16 * 16)));
      for (int64_t sample = begin; sample < end; ++sample) {
        float* to = out + sample * width;
        if (first) {
          vectors[0] = first + sample * dim;
          for (int64_t k = 0; k < dim; ++k) to[k] = vectors[0][k];
        }
        for (int64_t i = 0; i < num_rest; ++i) {
          vectors[static_cast<std::size_t>(lead + i)] = rest + (sample * num_rest + i) * dim;
        }
        use.interact(vectors.data(), count, dim, transposed.data(), to + lead * dim);
      }
    });
  });
}

MG_EXPORT int32_t mg_dot_interaction_backward(const float* gradient, const float* first, const float* rest,
                                              int64_t batch, int64_t num_rest, int64_t dim, float* first_gradient,
                                              float* rest_gradient) {
  return megalith::guarded("compute the gradient of the dot interaction", [&] {
    const int64_t lead = first ? 1 : 0, count = num_rest + lead, width = lead * dim + count * (count - 1) / 2;
    const megalith::InteractionKernels& use = megalith::kernels().interaction;
    megalith::parallel_for(0, batch, 16, [&](int64_t begin, int64_t end) {
      std::vector<const float*> vectors(static_cast<std::size_t>(count));
      std::vector<float*> gradients(static_cast<std::size_t>(count));
      std::vector<float> factors(static_cast<std::size_t>(count * count));
      for (int64_t sample = begin; sample < end; ++sample) {
        const float* from = gradient + sample * width;
        if (first) {
          vectors[0] = first + sample * dim;
          gradients[0] = first_gradient + sample * dim;
        }
        for (int64_t i = 0; i < num_rest; ++i) {
          vectors[static_cast<std::size_t>(lead + i)] = rest + (sample * num_rest + i) * dim;
          gradients[static_cast<std::size_t>(lead + i)] = rest_gradient + (sample * num_rest + i) * dim;
        }
        use.interact_backward(vectors.data(), count, dim, from + lead * dim, first ? from : nullptr, factors.data(),
                              gradients.data());
      }
    });
  });
}
