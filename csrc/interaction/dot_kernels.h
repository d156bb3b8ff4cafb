// Pairwise dot products of the vectors of one sample, and their gradient, for one processor variant.
#pragma once

#include <cstdint>

#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr int kRows = 4;  // rows whose products share each load

// Turns sixteen rows of sixteen into their columns: blocks of eight change places across the diagonal, then of four,
// two and one.
template <int Distance>
inline void exchange(Floats* rows) {
  for (int i = 0; i < kLanes; ++i) {
    if (i & Distance) continue;
    Floats &upper = rows[i], &lower = rows[i + Distance];
    if constexpr (Distance >= kPartLanes) {
      constexpr int kApart = Distance / kPartLanes;
      for (int p = 0; p < kParts; ++p) {
        if (!(p & kApart)) exchange_values(upper.parts[p + kApart], lower.parts[p]);
      }
    } else {
      Ints::Part low{}, high{};
      for (int lane = 0; lane < kPartLanes; ++lane) {
        // Lanes of the second operand of a shuffle are counted on from those of the first.
        low[lane] = lane & Distance ? kPartLanes + lane - Distance : lane;
        high[lane] = lane & Distance ? kPartLanes + lane : lane + Distance;
      }
      for (int p = 0; p < kParts; ++p) {
        const Floats::Part above = upper.parts[p], below = lower.parts[p];
        upper.parts[p] = __builtin_shuffle(above, below, low);
        lower.parts[p] = __builtin_shuffle(above, below, high);
      }
    }
  }
}

inline void transpose(Floats* rows) {
  exchange<8>(rows);
  exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
}

// products[i (i - 1) / 2 + j] = vector i . vector j for j < i. `transposed` holds dim x width floats, width a
// multiple of 16 that covers all vectors.
inline void interact(const float* const* vectors, int64_t count, int64_t dim, float* transposed, float* products) {
  const int64_t width = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t block = 0; block < count; block += kLanes) {
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = static_cast<int>(least<int64_t>(kLanes, dim - column));
      Floats rows[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) rows[i] = load(vectors[least<int64_t>(block + i, count - 1)] + column, n);
      transpose(rows);
      for (int64_t k = 0; k < n; ++k) store(transposed + (column + k) * width + block, rows[k], kLanes);
    }
  }
  for (int64_t block = 0; block < count; block += kLanes) {
    for (int64_t first = block + 1; first < count; first += kRows) {
      Floats total[kRows] = {};
      const float* rows[kRows];
      for (int r = 0; r < kRows; ++r) rows[r] = vectors[least<int64_t>(first + r, count - 1)];
      for (int64_t k = 0; k < dim; ++k) {
        const Floats lanes = load(transposed + k * width + block);
        for (int r = 0; r < kRows; ++r) total[r] += lanes * rows[r][k];
      }
      for (int r = 0; r < kRows && first + r < count; ++r) {
        const int64_t i = first + r;
        store(products + i * (i - 1) / 2 + block, total[r], static_cast<int>(least<int64_t>(kLanes, i - block)));
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
    const int n = static_cast<int>(least<int64_t>(kLanes, dim - column));
    for (int64_t first = 0; first < count; first += kRows) {
      Floats total[kRows] = {};
      if (first == 0 && extra) total[0] = load(extra + column, n);
      const float* rows[kRows];
      for (int r = 0; r < kRows; ++r) rows[r] = factors + least<int64_t>(first + r, count - 1) * count;
      for (int64_t j = 0; j < count; ++j) {
        const Floats lanes = load(vectors[j] + column, n);
        for (int r = 0; r < kRows; ++r) total[r] += lanes * rows[r][j];
      }
      for (int r = 0; r < kRows && first + r < count; ++r) store(gradients[first + r] + column, total[r], n);
    }
  }
}

}  // namespace MG_VARIANT
}  // namespace megalith
