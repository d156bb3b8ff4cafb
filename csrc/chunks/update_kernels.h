// Updates of chunked rows: the optimizer's step on the columns that live, and the utilities of chunks.
//
// A row's gradient is compressed to its live columns, and the step of whole rows (optimizer/row_step.h) is taken on a row
// of that many. Utilities are bfloat16, rounded at random by the step's seed and the gradient: by nothing physical.
#pragma once

#include <cstdint>
#include <cstring>

#include "chunks/kernels.h"
#include "chunks/live_columns.h"
#include "chunks/lookup_kernels.h"
#include "chunks/record.h"
#include "chunks/utility_kernels.h"
#include "mix.h"
#include "optimizer/row_step.h"
#include "optimizer/update_kernels.h"
#include "simd/stochastic_rounding.h"

namespace megalith {
inline namespace MG_VARIANT {

// Columns that do not lie side by side in the whole row.
struct ScatteredColumns {
  const uint32_t* columns;

  Words random(uint64_t row_seed, int64_t column) const {
    return random_words(row_seed, load_whole<Words>(columns + column));
  }
};

// A number of `sums` as a whole one; what is no number, or too large for a sum of them, is bounded.
inline int64_t whole(float number) {
  constexpr float kMost = 1099511627776.0f;  // 2^40
  if (!(number > 0.0f)) return 0;
  return static_cast<int64_t>((number < kMost ? number : kMost) + 0.5f);
}

// Columns of the row that live, as a step that rounds at random needs them.
inline void list_columns(const ChunkedPool& pool, uint64_t mask, int64_t first_column, uint32_t* columns) {
  for (uint64_t rest = mask; rest; rest &= rest - 1) {
    const auto first = static_cast<uint32_t>(first_column + __builtin_ctzll(rest) * pool.width);
    for (int64_t column = 0; column < pool.width; ++column) *columns++ = first + static_cast<uint32_t>(column);
  }
}

template <int Kind, class T>
void update_chunked_rows(const TableUpdate& table, const ChunkedPool& rows, const ChunkStep& chunk_step,
                         const ChunkBuffers& buffers, const RowSource* touched, int64_t count,
                         const uint32_t* accesses) {
  constexpr int kNumNorms = num_row_norms(Kind);
  // A copy: what is written to records cannot change it, and the compiler knows.
  const ChunkedPool pool = rows;
  const int64_t dim = pool.dim, ahead = records_ahead(pool);
  OptimizerStep step = *table.step;
  const float lr = step.lr;
  const bool scored = chunk_step.utility_weight != 0, rounds = sizeof(T) == 2 && step.stochastic_rounding != 0;
  float* scaled = table.scaled;
  for (int64_t i = 0; i < least(ahead, count); ++i) prefetch_record(pool, static_cast<uint32_t>(touched[i] >> 32));
  uint32_t before = ~uint32_t{0};
  // The rows of a bag share its gradient: what depends on that alone is computed once.
  bool knows_norms = false, knows_chunks = false;
  uint64_t mask_before = 0;  // of the gradient in the buffer
  RowNorms norms{};
  ChunkNorms chunks;
  int64_t norms_sum = 0, products_sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      prefetch_record(pool, static_cast<uint32_t>(touched[i + ahead] >> 32));
      prefetch_gradient(table, touched, i + ahead);
    }
    const auto slot = static_cast<uint32_t>(touched[i] >> 32), source = static_cast<uint32_t>(touched[i]);
    const float* gradient = scaled_gradient(table.gradients, touched[i], source != before, dim, scaled);
    if (source != before) {
      knows_norms = knows_chunks = false;
      mask_before = 0;
    }
    before = source;
    const bool exists = is_record(slot), counts = scored && slot != chunk_step.unscored;
    if ((counts || !exists) && !knows_chunks) {
      find_norms(pool, gradient, chunks);
      knows_chunks = true;
    }
    const float times = chunk_step.counts_accesses && accesses ? static_cast<float>(accesses[i]) : 1.0f;
    if (!exists) {
      if (chunk_step.absent_norms) chunk_step.absent_norms[slot - kFirstAbsent] = chunks.total * times;
      continue;
    }
    char* record = record_at(pool, slot);
    const int64_t live = live_chunks(pool, slot), columns = live * pool.width;
    const RecordLayout& layout = pool.layouts[live];
    if (chunk_step.rates) step.lr = lr * chunk_step.rates[live];
    const uint64_t mask = live == pool.chunks ? pool.all_chunks : record_mask(pool, record);
    // Rows that keep the first of their chunks need no copy of the gradient's columns.
    const bool is_prefix = (mask & (mask + 1)) == 0;
    if (counts) {
      uint32_t bits;
      std::memcpy(&bits, &chunks.total, 4);
      const uint64_t seed = mix64(table.rounding.seed + (uint64_t{bits} + 1) * 0xd1342543de82ef95ull);
      const float utility = add_utilities(pool, record, live, mask, chunks, chunk_step.utility_weight * times, seed);
      const float norm = chunks.total * times;
      norms_sum += whole(norm * chunk_step.norm_scale);
      products_sum += whole(norm * utility * chunk_step.product_scale);
    }
    if (!is_prefix && mask != mask_before) {
      for_live_columns(pool, mask, 0, dim, [&](int64_t column, int n, uint32_t lanes, int64_t at) {
        // Whole lanes: what is written too far is written again, or is beyond the last column.
        if (lanes) store(buffers.gradient + at, gathered(load(gradient + column, n), lanes));
      });
      if (rounds) list_columns(pool, mask, table.rounding.first_column, buffers.columns);
    }
    knows_norms = knows_norms && kNumNorms == 1 && step.weight_decay == 0 && mask == mask_before;
    mask_before = mask;
    uint64_t rounding_seed = 0;
    if (rounds) {
      uint32_t row;
      std::memcpy(&row, record + layout.id, 4);
      rounding_seed = row_seed(table, row);
    }
    const auto take = [&](auto live_columns, const float* given) {
      const RowStep<Kind, T, decltype(live_columns)> row_step{
          reinterpret_cast<T*>(record + layout.weights), reinterpret_cast<float*>(record + layout.first),
          reinterpret_cast<float*>(record + layout.second), given, columns, step, rounding_seed, live_columns};
      if constexpr (kNumNorms > 0) {
        if (!knows_norms) norms = row_step.norms();
        knows_norms = true;
      }
      row_step.take(norms, columns);
    };
    if (is_prefix) {
      take(AdjacentColumns{table.rounding.first_column}, gradient);
    } else {
      take(ScatteredColumns{buffers.columns}, buffers.gradient);
    }
  }
  if (chunk_step.sums && scored) {
    __atomic_fetch_add(&chunk_step.sums[0], norms_sum, __ATOMIC_RELAXED);
    __atomic_fetch_add(&chunk_step.sums[1], products_sum, __ATOMIC_RELAXED);
  }
}

inline void update_chunked(const TableUpdate& table, const ChunkedPool& rows, const ChunkStep& step,
                           const ChunkBuffers& buffers, const RowSource* touched, int64_t count,
                           const uint32_t* accesses) {
  with_type(rows.dtype, [&](auto stored) {
    with_kind(*table.step, [&](auto kind) {
      update_chunked_rows<decltype(kind)::value, decltype(stored)>(table, rows, step, buffers, touched, count,
                                                                   accesses);
    });
  });
}

}  // namespace MG_VARIANT
}  // namespace megalith
