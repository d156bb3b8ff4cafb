// One optimizer step on one row: what each optimizer computes (ops/optimizer/steps.py is its twin).
#pragma once

#include <cstdint>

#include "optimizer/step.h"
#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/scalar.h"
#include "simd/stochastic_rounding.h"

namespace megalith {
inline namespace MG_VARIANT {

template <class Body>
inline void for_columns(int64_t dim, Body body) {
  int64_t column = 0;
  for (; column + kLanes <= dim; column += kLanes) body(column, kLanes);
  if (column < dim) body(column, static_cast<int>(dim - column));
}

// Squared norms of a row that its optimizer needs before any column can take its step.
struct RowNorms {
  float update;
  float weight;
};

// Columns that lie side by side: what rounding at random depends on besides the row.
struct AdjacentColumns {
  int64_t first;  // of those that are here, in the whole row

  Words random(uint64_t row_seed, int64_t column) const { return random_words(row_seed, first + column); }
};

// One optimizer step on one row, or on some columns of it, in two halves: norms of the row, then the step.
template <int Kind, class T, class Columns = AdjacentColumns>
struct RowStep {
  T* row;
  float* first_state;
  float* second_state;
  const float* gradient;  // of the whole batch
  int64_t dim;            // columns that are here
  const OptimizerStep& step;
  uint64_t row_seed;
  Columns columns;

  // LAMB's moments move on in this half.
  RowNorms norms() const {
    Floats updates{}, weights{};
    for_columns(dim, [&](int64_t column, int n) {
      const Floats weight = kNeedsWeight || step.weight_decay != 0 ? load(row + column, n) : Floats{};
      Floats lanes;
      if constexpr (Kind == kLamb) {
        const Floats given = clipped(column, n);
        const Floats mean = load(first_state + column, n) * step.beta1 + given * step.rest1;
        const Floats square = load(second_state + column, n) * step.beta2 + given * given * step.rest2;
        store(first_state + column, mean, n);
        store(second_state + column, square, n);
        lanes = adam(mean, square, weight);
      } else {
        lanes = direction(column, weight, n);
      }
      // Lanes beyond the row hold 0, or 0 / eps.
      updates += lanes * lanes;
      if constexpr (kNeedsWeight) weights += weight * weight;
    });
    return {sum(updates), kNeedsWeight ? sum(weights) : 0.0f};
  }

  // `whole` are the norms over all columns of the row.
  void take(const RowNorms& whole, int64_t num_columns) const {
    const float mean_square = whole.update / static_cast<float>(num_columns);
    if constexpr (Kind == kSgd) {
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n);
        write(column, weight - direction(column, weight, n) * step.lr, n);
      });
    } else if constexpr (Kind == kRowWiseAdaGrad) {
      const float total = *first_state + mean_square;
      *first_state = total;
      const float rate = step.lr / (root(total) + step.eps);
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n);
        write(column, weight - direction(column, weight, n) * rate, n);
      });
    } else if constexpr (Kind == kAdaGrad) {
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n), lanes = direction(column, weight, n);
        const Floats total = load(first_state + column, n) + lanes * lanes;
        store(first_state + column, total, n);
        write(column, weight - lanes * step.lr / (root(total) + step.eps), n);
      });
    } else if constexpr (Kind == kAdam || Kind == kRowWiseAdam) {
      float row_scale = 0;
      if constexpr (Kind == kRowWiseAdam) {
        const float square = *second_state * step.beta2 + mean_square * step.rest2;
        *second_state = square;
        row_scale = root(square / step.second_correction) + step.eps;
      }
      const float rate = step.lr / step.first_correction;
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n), lanes = direction(column, weight, n);
        const Floats mean = load(first_state + column, n) * step.beta1 + lanes * step.rest1;
        store(first_state + column, mean, n);
        Floats scale = all(row_scale);
        if constexpr (Kind == kAdam) {
          const Floats square = load(second_state + column, n) * step.beta2 + lanes * lanes * step.rest2;
          store(second_state + column, square, n);
          scale = root(square / step.second_correction) + step.eps;
        }
        write(column, weight - mean * rate / scale, n);
      });
    } else {
      // LAMB and LARS scale the step of a row by the ratio of the norms of its weights and of its update.
      const float weight_norm = root(whole.weight), update_norm = root(whole.update);
      float trust = weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1.0f;
      if constexpr (Kind == kLars) trust = weight_norm > 0 && update_norm > 0 ? step.eps * trust : 1.0f;
      const float rate = step.lr * trust;
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n);
        Floats update = direction(column, weight, n) * rate;
        if constexpr (Kind == kLars) {
          update = load(first_state + column, n) * step.beta1 + update;
          store(first_state + column, update, n);
        }
        write(column, weight - update, n);
      });
    }
  }

 private:
  static constexpr bool kNeedsWeight = num_row_norms(Kind) == 2;

  Floats clipped(int64_t column, int n) const {
    const Floats lanes = load(gradient + column, n);
    return step.max_gradient > 0 ? smaller(larger(lanes, all(-step.max_gradient)), all(step.max_gradient)) : lanes;
  }

  // What the step goes along: the gradient with the decay or, with LAMB, Adam's direction with it.
  Floats direction(int64_t column, const Floats& weight, int n) const {
    if constexpr (Kind == kLamb) {
      return adam(load(first_state + column, n), load(second_state + column, n), weight);
    } else {
      const Floats lanes = clipped(column, n);
      return step.weight_decay != 0 ? lanes + weight * step.weight_decay : lanes;
    }
  }

  Floats adam(const Floats& mean, const Floats& square, const Floats& weight) const {
    const Floats scaled = mean / step.first_correction / (root(square / step.second_correction) + step.eps);
    return scaled + weight * step.weight_decay;
  }

  void write(int64_t column, const Floats& updated, int n) const {
    if (sizeof(T) == 2 && step.stochastic_rounding != 0) {
      store_random(row + column, updated, columns.random(row_seed, column), n);
    } else {
      store(row + column, updated, n);
    }
  }
};

}  // namespace MG_VARIANT
}  // namespace megalith
