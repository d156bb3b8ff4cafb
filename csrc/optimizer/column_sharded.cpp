// Optimizers that look at a whole row, over column-sharded tables: a backward pass in two halves, between which norms
// of the rows are exchanged.
//
// The first half finds the touched rows of each table and adds up their gradients as the fused pass does. Rows that
// occur once keep their bag's gradient; sums are kept for the others only. Every touched row has a number, the same
// wherever columns of the table are (touched_rows.h). The second half is one pass over weights and states.
#include <algorithm>
#include <vector>

#include "abi.h"
#include "optimizer/backward_batch.h"
#include "optimizer/buffers.h"
#include "optimizer/sum_parts.h"
#include "optimizer/touched_rows.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

// A task between the halves.
struct ColumnShardedTask {
  TableTask task;
  TouchedRows rows;
  SumParts parts;
  std::vector<float> sums, scaled;
};

// What a failure of either half is told to leave behind.
constexpr const char* kNotBegun = "update rows of column-sharded tables (no row was changed)";
constexpr const char* kPartialStep =
    "update rows of column-sharded tables (some rows may have been changed; go back to a checkpoint)";

class ColumnShardedUpdate {
 public:
  ColumnShardedUpdate(const LookupDescriptor* lookups, int64_t num_lookups, int64_t num_tables, void* const* weights,
                      float* const* first_states, float* const* second_states, const int64_t* columns,
                      const RowSection* sections, int64_t num_sections)
      : lookups_(lookups, lookups + num_lookups), weights_(weights, weights + num_tables),
        first_(first_states, first_states + num_tables), second_(second_states, second_states + num_tables),
        columns_(columns, columns + num_tables), sections_(sections, sections + num_sections) {}

  // Finds the touched rows; writes how many each section has.
  void find_rows(const LookupBatch& batch, const OutputGradients& gradients, int64_t* counts) {
    use_ = &kernels().update;
    const int64_t num_tables = static_cast<int64_t>(weights_.size());
    const BackwardBatch work(lookups_.data(), static_cast<int64_t>(lookups_.size()), num_tables, weights_.data(), batch,
                             gradients, gradient_buffers_);
    const std::vector<TableTask> tasks = work.cut();
    num_tasks_ = static_cast<int64_t>(tasks.size());
    if (tasks_.size() < tasks.size()) tasks_.resize(tasks.size());
    gradients_.resize(weights_.size());
    for (int64_t table = 0; table < num_tables; ++table) {
      gradients_[static_cast<size_t>(table)] = work.table(table).gradients;
    }
    std::fill_n(counts, sections_.size(), 0);
    for_each_task(num_tasks_, [&](int64_t number) {
      ColumnShardedTask& task = tasks_[static_cast<size_t>(number)];
      task.task = tasks[static_cast<size_t>(number)];
      task.rows.find(work, task.task, *use_, sections_, counts);
    });
    counts_.assign(counts, counts + sections_.size());
  }

  // Adds up gradients; writes squared norms over these columns of the rows of all sections, in their order.
  // LAMB's moments change here, so all memory that this half and the next need is taken before anything is written.
  void row_norms(const OptimizerStep* steps, float* norms, const char*& doing) {
    steps_.assign(steps, steps + weights_.size());
    starts_.assign(weights_.size() + 1, 0);
    for (size_t s = 0; s < sections_.size(); ++s) {
      const size_t table = static_cast<size_t>(sections_[s].table);
      starts_[table + 1] += counts_[s] * num_row_norms(static_cast<int>(steps_[table].kind));
    }
    for (size_t table = 0; table < weights_.size(); ++table) starts_[table + 1] += starts_[table];
    for_each_task(num_tasks_, [&](int64_t number) { reserve(tasks_[static_cast<size_t>(number)]); });
    doing = kPartialStep;
    for_each_task(num_tasks_, [&](int64_t number) {
      ColumnShardedTask& task = tasks_[static_cast<size_t>(number)];
      add_repeated(task);
      visit(task, norms, nullptr, use_->row_norms);
    });
  }

  // Takes the step, given norms over the rows' columns everywhere.
  void finish(float* norms, const RowRounding* rounding) {
    for_each_task(num_tasks_, [&](int64_t number) {
      visit(tasks_[static_cast<size_t>(number)], norms, rounding, use_->finish);
    });
  }

 private:
  TableUpdate table_update(ColumnShardedTask& task, const RowRounding* rounding) const {
    const int64_t number = task.task.table;
    const size_t table = static_cast<size_t>(number);
    const LookupDescriptor& lookup = *std::find_if(
        lookups_.begin(), lookups_.end(), [&](const LookupDescriptor& any) { return any.table == number; });
    return {lookup.dim, lookup.dtype, weights_[table], first_[table], second_[table], &steps_[table],
            rounding ? rounding[table] : RowRounding{}, nullptr, gradients_[table], task.scaled.data()};
  }

  void reserve(ColumnShardedTask& task) const {
    const int64_t dim = table_update(task, nullptr).dim, num_rows = static_cast<int64_t>(task.rows.repeated.size());
    task.parts.reserve(static_cast<int64_t>(task.rows.again.size()), num_rows, sums_at_a_time(dim));
    scratch(task.sums, static_cast<size_t>(num_rows * dim));
    scratch(task.scaled, static_cast<size_t>(dim));
  }

  void add_repeated(ColumnShardedTask& task) const {
    const TableUpdate work = table_update(task, nullptr);
    const int64_t num_rows = static_cast<int64_t>(task.rows.repeated.size()), at_a_time = sums_at_a_time(work.dim);
    task.parts.cut(task.rows.again, num_rows, at_a_time);
    const std::vector<int64_t>& bounds = task.parts.bounds;
    float* sums = task.sums.data();
    std::fill_n(sums, num_rows * work.dim, 0.0f);
    for (size_t p = 0; p + 1 < bounds.size(); ++p) {
      use_->add_gradients(work, task.rows.again.data() + bounds[p], bounds[p + 1] - bounds[p],
                          sums + static_cast<int64_t>(p) * at_a_time * work.dim);
    }
  }

  template <class Kernel>
  void visit(ColumnShardedTask& task, float* norms, const RowRounding* rounding, Kernel kernel) const {
    TableUpdate work = table_update(task, rounding);
    const size_t table = static_cast<size_t>(task.task.table);
    const TouchedRows& rows = task.rows;
    float* own = norms + starts_[table];
    kernel(work, rows.once.data(), static_cast<int64_t>(rows.once.size()),
           {rows.once_numbers.data(), own, columns_[table]});
    work.gradients = {task.sums.data(), work.dim, nullptr, nullptr};
    kernel(work, rows.repeated.data(), static_cast<int64_t>(rows.repeated.size()),
           {rows.repeated_numbers.data(), own, columns_[table]});
  }

  std::vector<LookupDescriptor> lookups_;
  std::vector<void*> weights_;
  std::vector<float*> first_, second_;
  std::vector<int64_t> columns_;
  std::vector<RowSection> sections_;
  const UpdateKernels* use_ = nullptr;
  // Of the step at hand.
  GradientBuffers gradient_buffers_;
  std::vector<ColumnShardedTask> tasks_;
  int64_t num_tasks_ = 0;
  std::vector<Gradients> gradients_;
  std::vector<int64_t> counts_, starts_;
  std::vector<OptimizerStep> steps_;
};

}  // namespace
}  // namespace megalith

using megalith::ColumnShardedUpdate;

MG_EXPORT int32_t mg_column_sharded_create(const int64_t* descriptors, int64_t num_descriptors, int64_t num_tables,
                                           void* const* weights, float* const* first_states,
                                           float* const* second_states, const int64_t* columns,
                                           const int64_t* sections, int64_t num_sections, void** update) {
  return megalith::guarded("prepare updates of column-sharded tables", [&] {
    *update = new ColumnShardedUpdate(reinterpret_cast<const megalith::LookupDescriptor*>(descriptors), num_descriptors,
                                      num_tables, weights, first_states, second_states, columns,
                                      reinterpret_cast<const megalith::RowSection*>(sections), num_sections);
  });
}

MG_EXPORT int32_t mg_column_sharded_find_rows(void* update, const void* values, int32_t index_bytes,
                                              const int64_t* offsets, const float* sample_weights, int64_t batch_size,
                                              const float* gradient, int64_t stride,
                                              const float* const* sequence_gradients, int64_t* counts) {
  return megalith::guarded(megalith::kNotBegun, [&] {
    static_cast<ColumnShardedUpdate*>(update)->find_rows({values, index_bytes, offsets, sample_weights, batch_size},
                                                         {gradient, stride, sequence_gradients}, counts);
  });
}

MG_EXPORT int32_t mg_column_sharded_row_norms(void* update, const float* steps, float* norms) {
  return megalith::guarded(megalith::kNotBegun, [&](const char*& doing) {
    static_cast<ColumnShardedUpdate*>(update)->row_norms(reinterpret_cast<const megalith::OptimizerStep*>(steps), norms,
                                                         doing);
  });
}

MG_EXPORT int32_t mg_column_sharded_finish(void* update, float* norms, const int64_t* rounding) {
  return megalith::guarded(megalith::kPartialStep,
                           [&] {
    static_cast<ColumnShardedUpdate*>(update)->finish(norms, reinterpret_cast<const megalith::RowRounding*>(rounding));
  });
}

MG_EXPORT void mg_column_sharded_destroy(void* update) noexcept { delete static_cast<ColumnShardedUpdate*>(update); }
