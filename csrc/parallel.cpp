#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "abi.h"

namespace megalith {
namespace {

using TorchParallelFor = int32_t (*)(int64_t, int64_t, int64_t, RangeFunction, void*);
using TorchNumThreads = int32_t (*)(uint32_t*);

std::atomic<TorchParallelFor> torch_parallel_for{nullptr};
std::atomic<TorchNumThreads> torch_num_threads{nullptr};
std::atomic<int> own_num_threads{0};

}  // namespace

int num_threads() {
  if (TorchNumThreads ask = torch_num_threads.load()) {
    uint32_t count = 0;
    if (ask(&count) == 0 && count > 0) return static_cast<int>(count);
  }
  const int own = own_num_threads.load();
  return own > 0 ? own : std::max(1u, std::thread::hardware_concurrency());
}

void parallel_for_raw(int64_t begin, int64_t end, int64_t grain, RangeFunction function, void* context) {
  if (begin >= end) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t pieces = std::min<int64_t>(num_threads(), (end - begin + grain - 1) / grain);
  if (pieces <= 1) return function(begin, end, context);
  if (TorchParallelFor run = torch_parallel_for.load()) {
    if (run(begin, end, grain, function, context) == 0) return;
  }
  const int64_t step = (end - begin + pieces - 1) / pieces;
  std::vector<std::thread> threads;
  for (int64_t from = begin + step; from < end; from += step) {
    threads.emplace_back(function, from, std::min(end, from + step), context);
  }
  function(begin, std::min(end, begin + step), context);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace megalith

MG_EXPORT void mg_use_torch_threads(void* parallel_for, void* num_threads) {
  megalith::torch_parallel_for = reinterpret_cast<megalith::TorchParallelFor>(parallel_for);
  megalith::torch_num_threads = reinterpret_cast<megalith::TorchNumThreads>(num_threads);
}

MG_EXPORT void mg_set_num_threads(int32_t count) { megalith::own_num_threads = count; }

MG_EXPORT int32_t mg_num_threads() { return megalith::num_threads(); }
