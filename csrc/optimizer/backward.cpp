// The backward pass over many tables: which rows a batch touches, and which thread updates them.
//
// Tables are the tasks; a table with more than its share is cut into pieces by the low bits of its rows. A task
// numbers the rows of its values and hands them to the update kernel. A row belongs to one task and its gradients
// are added in the order of the batch, so the result does not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "abi.h"
#include "optimizer/backward_batch.h"
#include "optimizer/buffers.h"
#include "optimizer/row_index.h"
#include "optimizer/sum_parts.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

// What a worker keeps from task to task and from call to call; no two share a cache line.
struct alignas(128) BackwardBuffers {
  RepeatedRows repeats;
  RowNumbers numbers;
  std::vector<uint32_t> before, repeated;  // ranks of the marked rows, and those rows by number
  std::vector<RowSource> all, once, again, rows;
  SumParts parts;
  std::vector<float> sums, scaled;
  // Of chunked rows: a gradient's live columns, which these are, and how often the batch has each repeated row.
  std::vector<float> live;
  std::vector<uint32_t> columns, accesses;

  // Room for any of the tasks, so that none of them can fail once rows are written.
  void reserve(const BackwardBatch& batch, const std::vector<TableTask>& tasks) {
    for (const TableTask& task : tasks) {
      const TableWork& table = batch.table(task.table);
      const int64_t values = table.num_values, dim = table.lookups[0]->dim;
      const int64_t rows_of_table = num_physical_rows(*table.lookups[0]);
      const int64_t words = RepeatedRows::words_for(values, rows_of_table);
      const int64_t at_a_time = sums_at_a_time(dim), summed = std::min(values, at_a_time);
      repeats.reserve(words);
      make_room(before, words);
      // A row is numbered where it only may occur again: at most as many as there are values.
      if (rows_of_table > words * 64) numbers.reserve(values);
      make_room(repeated, values);
      make_room(all, values + 1);
      make_room(once, values + 1);
      make_room(again, values + 1);
      make_room(rows, summed);
      parts.reserve(values + 1, values, at_a_time);
      make_room(sums, summed * dim + summed * dim / 4);
      scratch(scaled, static_cast<size_t>(dim));
      if (table.lookups[0]->layout != kChunkedRows) continue;
      // Sixteen columns at a time are written, wherever the last begin.
      scratch(live, static_cast<size_t>(dim + 16));
      scratch(columns, static_cast<size_t>(dim + 16));
      make_room(accesses, summed);
    }
  }
};

// Ranks the marked rows, and lists them.
void rank_marked(const std::vector<uint64_t>& marked, const UpdateKernels& use, BackwardBuffers& buffers) {
  const int64_t num_words = static_cast<int64_t>(marked.size());
  buffers.before.resize(marked.size());
  const int64_t count = use.rank(marked.data(), num_words, buffers.before.data());
  buffers.repeated.resize(static_cast<size_t>(count));
  use.list(marked.data(), num_words, buffers.repeated.data());
}

// Lists the values whose rows occur once as (row, source), the others as (number of the row, source).
template <class Index, bool Slots>
void split(const BackwardBatch& batch, const TableTask& task, const UpdateKernels& use, BackwardBuffers& buffers) {
  const TableWork& table = batch.table(task.table);
  RepeatedRows& repeats = buffers.repeats;
  repeats.reset(table.num_values, num_physical_rows(*table.lookups[0]));
  RowSource* all = resized(buffers.all, table.num_values + 1);
  const auto bit_of = [](uint64_t row) { return Slots ? mixed_slot(row) : row; };
  batch.for_values<Index, Slots>(task, [&](uint64_t row, uint64_t source, bool own, bool) {
    repeats.meet(bit_of(row), own);
    *all = row << 32 | source;
    all += own;
  });
  const int64_t count = all - buffers.all.data();
  RowSource* once = resized(buffers.once, count + 1);
  RowSource* again = resized(buffers.again, count + 1);
  if (repeats.exact()) {
    rank_marked(repeats.marked(), use, buffers);
    use.split({repeats.marked().data(), buffers.before.data()}, buffers.all.data(), count, once, again);
  } else {
    for (const RowSource* value = buffers.all.data(); value < all; ++value) {
      const bool repeated = repeats.repeated(bit_of(*value >> 32));
      *once = *again = *value;
      once += !repeated;
      again += repeated;
    }
  }
  buffers.once.resize(static_cast<size_t>(once - buffers.once.data()));
  buffers.again.resize(static_cast<size_t>(again - buffers.again.data()));
  if (repeats.exact()) return;
  // About as many rows as bits, since few share one.
  const std::vector<uint64_t>& marked = repeats.marked();
  buffers.before.resize(marked.size());
  buffers.numbers.reset(use.rank(marked.data(), static_cast<int64_t>(marked.size()), buffers.before.data()));
  buffers.numbers.number(buffers.again.data(), static_cast<int64_t>(buffers.again.size()));
  buffers.repeated = buffers.numbers.rows();
}

// Updates the rows of a task: those that occur once as they come, the others after their gradients are added up.
template <class Take>
void update(TableUpdate work, const UpdateKernels& use, BackwardBuffers& buffers, bool counts_accesses, Take take) {
  take(work, buffers.once.data(), static_cast<int64_t>(buffers.once.size()), nullptr);
  const Gradients given = work.gradients;
  const std::vector<uint32_t>& rows = buffers.repeated;
  const int64_t num_rows = static_cast<int64_t>(rows.size()), at_a_time = sums_at_a_time(work.dim);
  buffers.parts.cut(buffers.again, num_rows, at_a_time);
  const std::vector<int64_t>& bounds = buffers.parts.bounds;
  float* sums = scratch(buffers.sums, static_cast<size_t>(std::min(num_rows, at_a_time) * work.dim));
  for (size_t p = 0; p + 1 < bounds.size(); ++p) {
    const int64_t first = static_cast<int64_t>(p) * at_a_time, last = std::min(first + at_a_time, num_rows);
    work.gradients = given;
    std::memset(sums, 0, static_cast<size_t>((last - first) * work.dim) * sizeof(float));
    use.add_gradients(work, buffers.again.data() + bounds[p], bounds[p + 1] - bounds[p], sums);
    buffers.rows.clear();
    for (int64_t i = first; i < last; ++i) {
      const uint64_t row = rows[static_cast<size_t>(i)];
      buffers.rows.push_back(row << 32 | static_cast<uint64_t>(i - first));
    }
    if (counts_accesses) {
      buffers.accesses.assign(static_cast<size_t>(last - first), 0);
      for (int64_t i = bounds[p]; i < bounds[p + 1]; ++i) ++buffers.accesses[buffers.again[static_cast<size_t>(i)] >> 32];
    }
    work.gradients = {sums, work.dim, nullptr, nullptr};
    take(work, buffers.rows.data(), last - first, counts_accesses ? buffers.accesses.data() : nullptr);
  }
}

// The rows of a table as the kernels update them.
void update_table(const TableUpdate& work, const LookupDescriptor& lookup, const ChunkStep* chunk_step,
                  const Kernels& use, BackwardBuffers& buffers) {
  if (lookup.layout != kChunkedRows) {
    const auto take = [&](const TableUpdate& table, const RowSource* touched, int64_t count, const uint32_t*) {
      use.update.update(table, touched, count);
    };
    return update(work, use.update, buffers, false, take);
  }
  const auto& rows = *static_cast<const ChunkedPool*>(work.weight);
  const ChunkBuffers own{buffers.live.data(), buffers.columns.data()};
  const auto take = [&](const TableUpdate& table, const RowSource* touched, int64_t count, const uint32_t* accesses) {
    use.chunked.update(table, rows, *chunk_step, own, touched, count, accesses);
  };
  update(work, use.update, buffers, chunk_step->counts_accesses != 0, take);
}

template <class Index>
void split(const BackwardBatch& batch, const TableTask& task, const UpdateKernels& use, BackwardBuffers& buffers) {
  if (batch.table(task.table).lookups[0]->layout == kChunkedRows) {
    split<Index, true>(batch, task, use, buffers);
  } else {
    split<Index, false>(batch, task, use, buffers);
  }
}

}  // namespace
}  // namespace megalith

MG_EXPORT int32_t mg_embedding_backward(const int64_t* descriptors, int64_t num_descriptors, int64_t num_tables,
                                        void* const* weights, float* const* first_states, float* const* second_states,
                                        const void* values, int32_t index_bytes, const int64_t* offsets,
                                        const float* sample_weights, int64_t batch_size, const float* gradient,
                                        int64_t stride, const float* const* sequence_gradients, const float* steps,
                                        const int64_t* rounding, const int64_t* const* slot_ids,
                                        const int64_t* chunk_steps) {
  using namespace megalith;
  return guarded("update embedding rows (no row was changed)", [&](const char*& doing) {
    static thread_local GradientBuffers gradient_buffers;
    static thread_local std::vector<BackwardBuffers> kept;
    const Kernels& use = kernels();
    const BackwardBatch work(reinterpret_cast<const LookupDescriptor*>(descriptors), num_descriptors, num_tables,
                             weights, {values, index_bytes, offsets, sample_weights, batch_size},
                             {gradient, stride, sequence_gradients}, gradient_buffers);
    const std::vector<TableTask> tasks = work.cut();
    // All memory before the first row is written.
    const int64_t count = static_cast<int64_t>(tasks.size()), workers = num_workers(count);
    if (static_cast<int64_t>(kept.size()) < workers) kept.resize(static_cast<size_t>(workers));
    for (int64_t worker = 0; worker < workers; ++worker) kept[static_cast<size_t>(worker)].reserve(work, tasks);
    BackwardBuffers* own = kept.data();
    doing = "update embedding rows (some rows may have been changed; go back to a checkpoint)";
    for_each_task(count, workers, [&](int64_t number, int64_t worker) {
      BackwardBuffers& buffers = own[worker];
      const TableTask& task = tasks[static_cast<size_t>(number)];
      if (index_bytes == 4) {
        split<int32_t>(work, task, use.update, buffers);
      } else {
        split<int64_t>(work, task, use.update, buffers);
      }
      const int64_t table = task.table;
      const LookupDescriptor& lookup = *work.table(table).lookups[0];
      update_table({lookup.dim, lookup.dtype, weights[table], first_states[table], second_states[table],
                    reinterpret_cast<const OptimizerStep*>(steps) + table,
                    reinterpret_cast<const RowRounding*>(rounding)[table], slot_ids[table],
                    work.table(table).gradients, buffers.scaled.data()},
                   lookup, chunk_steps ? reinterpret_cast<const ChunkStep*>(chunk_steps) + table : nullptr, use,
                   buffers);
    });
  });
}
