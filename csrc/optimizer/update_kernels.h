// The update kernels of one build: gradients in, one optimizer step on each touched row.
#pragma once

#include <cstdint>
#include <type_traits>

#include "embedding/type_dispatch.h"
#include "mix.h"
#include "optimizer/row_step.h"
#include "optimizer/step.h"
#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/prefetch.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

// Whether a row has state for each of its columns: (in the first, in the second).
constexpr bool first_is_full(int kind) { return kind != kRowWiseAdaGrad && kind != kSgd; }
constexpr bool second_is_full(int kind) { return kind == kAdam || kind == kLamb; }

inline const float* gradient_of(const Gradients& gradients, RowSource touched) {
  const uint32_t source = static_cast<uint32_t>(touched);
  return gradients.rows ? gradients.rows[source] : gradients.dense + source * gradients.stride;
}

// The same times the factor of its bag, which rows that follow each other in a bag find in `scaled` already.
inline const float* scaled_gradient(const Gradients& gradients, RowSource touched, bool is_new, int64_t dim, float* scaled) {
  const float* gradient = gradient_of(gradients, touched);
  if (!gradients.scales) return gradient;
  if (is_new) {
    const float factor = gradients.scales[static_cast<uint32_t>(touched)];
    for_columns(dim, [&](int64_t column, int n) { store(scaled + column, load(gradient + column, n) * factor, n); });
  }
  return scaled;
}

// The gradient of the next bag is prefetched when the first of its rows comes near.
inline void prefetch_gradient(const TableUpdate& table, const RowSource* touched, int64_t at) {
  if (static_cast<uint32_t>(touched[at]) == static_cast<uint32_t>(touched[at - 1])) return;
  prefetch_row(gradient_of(table.gradients, touched[at]), table.dim * 4);
}

// The seed of a row's rounding: by its id in the whole table, wherever the row lies.
inline uint64_t row_seed(const TableUpdate& table, int64_t row) {
  const int64_t id = table.rounding.first_row + (table.slot_ids ? table.slot_ids[row] : row);
  return mix64(table.rounding.seed + static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15ull);
}

// Which part of a step a pass over rows takes: all of it or, on a column shard, the norms first and then the step with
// norms of whole rows, to which the other shards have added theirs.
enum class StepPart { kWhole, kNorms, kFinish };

template <StepPart Part, int Kind, class T>
void visit_rows(const TableUpdate& table, const RowSource* touched, int64_t count, const ColumnShard& shard) {
  constexpr int kNumNorms = num_row_norms(Kind);
  if constexpr (Part != StepPart::kWhole && kNumNorms == 0) return;
  // LAMB finishes along its moments, which have taken the gradient in.
  constexpr bool kNeedsGradient = !(Part == StepPart::kFinish && Kind == kLamb);
  const int64_t dim = table.dim, row_bytes = dim * static_cast<int64_t>(sizeof(T));
  const int64_t first_dim = first_is_full(Kind) ? dim : 1, second_dim = second_is_full(Kind) ? dim : 1;
  const int64_t ahead = prefetch_distance(row_bytes);
  const OptimizerStep step = *table.step;
  T* weight = static_cast<T*>(table.weight);
  float *first = table.first_state, *second = table.second_state;
  const bool reads_rows = Part != StepPart::kNorms || kNumNorms == 2 || step.weight_decay != 0;
  const bool reads_states = Part != StepPart::kNorms || Kind == kLamb;
  float* scaled = table.scaled;
  const auto prefetch = [&](int64_t i) {
    const int64_t row = static_cast<int64_t>(touched[i] >> 32);
    if (reads_rows) prefetch_row(weight + row * dim, row_bytes);
    if (reads_states && first) prefetch_row(first + row * first_dim, first_dim * 4);
    if (reads_states && second) prefetch_row(second + row * second_dim, second_dim * 4);
    if constexpr (Part != StepPart::kWhole) {
      prefetch_row(shard.norms + int64_t{shard.numbers[i]} * kNumNorms, kNumNorms * 4);
    }
  };
  for (int64_t i = 0; i < least(ahead, count); ++i) prefetch(i);
  uint32_t before = ~uint32_t{0};
  // The rows of a bag share its gradient, so its norm is computed once, unless rows' own decay is part of it.
  const bool shares = kNumNorms == 1 && step.weight_decay == 0;
  bool known = false;
  RowNorms norms{};
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      prefetch(i + ahead);
      if constexpr (kNeedsGradient) prefetch_gradient(table, touched, i + ahead);
    }
    const int64_t row = static_cast<int64_t>(touched[i] >> 32);
    const uint32_t source = static_cast<uint32_t>(touched[i]);
    const float* gradient = nullptr;
    if constexpr (kNeedsGradient) {
      gradient = scaled_gradient(table.gradients, touched[i], source != before, dim, scaled);
    }
    known = known && shares && source == before;
    before = source;
    const RowStep<Kind, T> row_step{
        weight + row * dim, first ? first + row * first_dim : nullptr, second ? second + row * second_dim : nullptr,
        gradient, dim, step,
        sizeof(T) == 2 && step.stochastic_rounding != 0 ? row_seed(table, row) : 0, {table.rounding.first_column}};
    if constexpr (kNumNorms > 0 && Part != StepPart::kFinish) {
      if (!known) norms = row_step.norms();
      known = true;
    }
    if constexpr (Part == StepPart::kWhole) {
      row_step.take(norms, dim);
    } else {
      float* kept = shard.norms + int64_t{shard.numbers[i]} * kNumNorms;
      if constexpr (Part == StepPart::kNorms) {
        kept[0] = norms.update;
        if constexpr (kNumNorms == 2) kept[1] = norms.weight;
      } else {
        row_step.take({kept[0], kNumNorms == 2 ? kept[1] : 0.0f}, shard.columns);
      }
    }
  }
}

// Sums of rows that are hot stay in the nearest cache, and so does the gradient of the bag at hand.
inline void add_gradients(const TableUpdate& table, const RowSource* touched, int64_t count, float* sums) {
  constexpr int64_t kAhead = 8;
  const int64_t dim = table.dim;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      prefetch_row(sums + (touched[i + kAhead] >> 32) * static_cast<uint64_t>(dim), dim * 4);
      prefetch_gradient(table, touched, i + kAhead);
    }
    const float* gradient = gradient_of(table.gradients, touched[i]);
    float* sum = sums + (touched[i] >> 32) * static_cast<uint64_t>(dim);
    if (table.gradients.scales) {
      const float scale = table.gradients.scales[static_cast<uint32_t>(touched[i])];
      for_columns(dim, [&](int64_t column, int n) {
        store(sum + column, load(sum + column, n) + load(gradient + column, n) * scale, n);
      });
    } else {
      for_columns(dim, [&](int64_t column, int n) {
        store(sum + column, load(sum + column, n) + load(gradient + column, n), n);
      });
    }
  }
}

// From the optimizer that is known when a kernel is called to the one that it is compiled for.
template <class Call>
void with_kind(const OptimizerStep& step, Call call) {
  switch (static_cast<int>(step.kind)) {
    case kSgd: return call(std::integral_constant<int, kSgd>{});
    case kAdaGrad: return call(std::integral_constant<int, kAdaGrad>{});
    case kRowWiseAdaGrad: return call(std::integral_constant<int, kRowWiseAdaGrad>{});
    case kAdam: return call(std::integral_constant<int, kAdam>{});
    case kRowWiseAdam: return call(std::integral_constant<int, kRowWiseAdam>{});
    case kLamb: return call(std::integral_constant<int, kLamb>{});
    case kLars: return call(std::integral_constant<int, kLars>{});
  }
}

template <StepPart Part>
void visit(const TableUpdate& table, const RowSource* touched, int64_t count, const ColumnShard& shard) {
  with_type(table.dtype, [&](auto stored) {
    with_kind(*table.step, [&](auto kind) {
      visit_rows<Part, decltype(kind)::value, decltype(stored)>(table, touched, count, shard);
    });
  });
}

void update_rows(const TableUpdate& table, const RowSource* touched, int64_t count) {
  visit<StepPart::kWhole>(table, touched, count, {nullptr, nullptr, table.dim});
}

}  // namespace MG_VARIANT
}  // namespace megalith
