// Pairwise dot products of the vectors of one sample, and their gradient, for one processor variant.
#pragma once

#include <algorithm>

#include "interaction.h"
#include "simd.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr int kRows = 4;  // rows whose products share each load

// products[i (i - 1) / 2 + j] = vector i . vector j for j < i. `transposed` holds dim x width floats, width a
// multiple of 16 that covers all vectors.
inline void interact(const float* const* vectors, int64_t count, int64_t dim, float* transposed, float* products) {
  const int64_t width = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < dim; ++k) transposed[k * width + i] = vectors[i][k];
  }
  for (int64_t block = 0; block < count; block += kLanes) {
    for (int64_t first = block + 1; first < count; first += kRows) {
      Floats total[kRows] = {};
      const float* rows[kRows];
      for (int r = 0; r < kRows; ++r) rows[r] = vectors[std::min(first + r, count - 1)];
      for (int64_t k = 0; k < dim; ++k) {
        const Floats lanes = load(transposed + k * width + block);
        for (int r = 0; r < kRows; ++r) total[r] += lanes * rows[r][k];
      }
      for (int64_t i = first; i < std::min(first + kRows, count); ++i) {
        const int n = static_cast<int>(std::min<int64_t>(kLanes, i - block));
        store(products + i * (i - 1) / 2 + block, total[i - first], n);
      }
    }
  }
}

// gradients[i] = sum over j of g(i, j) * vector j, where g is the gradient of the product of i and j; `factors`
// holds count x count floats. Vector 0 gets `extra` on top, where there is one.
inline void interact_backward(const float* const* vectors, int64_t count, int64_t dim, const float* products,
                              const float* extra, float* factors, float* const* gradients) {
  for (int64_t i = 0; i < count; ++i) {
    factors[i * count + i] = 0.0f;
    for (int64_t j = 0; j < i; ++j) {
      factors[i * count + j] = factors[j * count + i] = products[i * (i - 1) / 2 + j];
    }
  }
  for (int64_t column = 0; column < dim; column += kLanes) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, dim - column));
    for (int64_t first = 0; first < count; first += kRows) {
      Floats total[kRows] = {};
      if (first == 0 && extra) total[0] = load(extra + column, n);
      const float* rows[kRows];
      for (int r = 0; r < kRows; ++r) rows[r] = factors + std::min(first + r, count - 1) * count;
      for (int64_t j = 0; j < count; ++j) {
        const Floats lanes = load(vectors[j] + column, n);
        for (int r = 0; r < kRows; ++r) total[r] += lanes * rows[r][j];
      }
      for (int64_t i = first; i < std::min(first + kRows, count); ++i) {
        store(gradients[i] + column, total[i - first], n);
      }
    }
  }
}

constexpr InteractionKernels kInteraction{interact, interact_backward};

}  // namespace MG_VARIANT
}  // namespace megalith
