// Rows that take every step of their optimizer, whether a batch touches them or not, computed when they are next needed.
//
// A row that missed some steps takes them one after the other with a gradient of zero, by the kernel that a batch uses:
// the same bits as if it had taken each in its time.
#include <cstdint>
#include <vector>

#include "abi.h"
#include "optimizer/step.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

// Settings of the steps after number `base`, one after the other.
struct StepHistory {
  const OptimizerStep* steps;
  const RowRounding* rounding;
  uint32_t base, now;
};

void catch_up(TableUpdate table, uint32_t* last, int64_t row, const StepHistory& history) {
  // Whoever finds it behind first takes its steps; the others wait for all before anything is read.
  const uint32_t before = __atomic_exchange_n(last + row, history.now, __ATOMIC_RELAXED);
  const RowSource source = static_cast<uint64_t>(row) << 32;
  for (uint32_t step = before; step < history.now; ++step) {
    table.step = history.steps + (step - history.base);
    table.rounding = history.rounding[step - history.base];
    kernels().update.update(table, &source, 1);
  }
}

}  // namespace
}  // namespace megalith

// Brings rows `ids` up to step `now`, or rows [0, count) where `ids` is null; `last` has the last step of each row.
// `padding` is a row that takes no step, or -1.
MG_EXPORT int32_t mg_catch_up_rows(int64_t dim, int64_t dtype, void* weight, float* first_state, float* second_state,
                                   uint32_t* last, const void* ids, int32_t index_bytes, int64_t count, int64_t padding,
                                   const float* steps, const int64_t* rounding, int64_t base, int64_t now) {
  using namespace megalith;
  return guarded("bring rows up to the last step (some may not have been; go back to a checkpoint)", [&] {
    const std::vector<float> zeros(static_cast<size_t>(dim), 0.0f);
    const StepHistory history{reinterpret_cast<const OptimizerStep*>(steps),
                              reinterpret_cast<const RowRounding*>(rounding), static_cast<uint32_t>(base),
                              static_cast<uint32_t>(now)};
    const TableUpdate table{dim,     dtype,   weight, first_state, second_state, history.steps, {},
                            nullptr, {zeros.data(), 0, nullptr, nullptr}, nullptr};
    constexpr int64_t kAtOnce = 256;
    for_each_task((count + kAtOnce - 1) / kAtOnce, [&](int64_t task) {
      for (int64_t i = task * kAtOnce; i < std::min(count, (task + 1) * kAtOnce); ++i) {
        const int64_t row = !ids             ? i
                            : index_bytes == 4 ? static_cast<const int32_t*>(ids)[i]
                                               : static_cast<const int64_t*>(ids)[i];
        if (row != padding && __atomic_load_n(last + row, __ATOMIC_RELAXED) != history.now) {
          catch_up(table, last, row, history);
        }
      }
    });
  });
}
