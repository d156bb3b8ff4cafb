#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
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

// The work of one parallel_for: no exception leaves it on the thread that threw it.
class Work {
 public:
  Work(RangeFunction function, void* context) : function_(function), context_(context) {}

  static void call(int64_t begin, int64_t end, void* work) noexcept { static_cast<Work*>(work)->run(begin, end); }

  void run(int64_t begin, int64_t end) noexcept {
    started_ = true;
    if (failed_) return;
    try {
      function_(begin, end, context_);
      done_ += end - begin;
    } catch (...) {
      if (!failed_.exchange(true)) first_ = std::current_exception();
    }
  }

  bool started() const { return started_; }
  int64_t done() const { return done_; }

  // Only after all threads are done.
  void rethrow() const {
    if (failed_) std::rethrow_exception(first_);
  }

 private:
  RangeFunction function_;
  void* context_;
  std::atomic<bool> started_{false}, failed_{false};
  std::atomic<int64_t> done_{0};
  std::exception_ptr first_;
};

// Does what it can on threads of its own and the rest, where there are no more to be had, itself.
void run_on_threads(Work& work, int64_t begin, int64_t end, int64_t pieces) {
  const int64_t step = (end - begin + pieces - 1) / pieces;
  std::vector<std::thread> threads;
  int64_t from = begin + step;
  try {
    threads.reserve(static_cast<size_t>(pieces));
    for (; from < end; from += step) {
      threads.emplace_back(&Work::call, from, std::min(end, from + step), static_cast<void*>(&work));
    }
  } catch (...) {
    // Neither memory nor a limit of threads is a reason to fail.
  }
  work.run(begin, std::min(end, begin + step));
  if (from < end) work.run(from, end);
  for (std::thread& thread : threads) thread.join();
}

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
  Work work(function, context);
  if (TorchParallelFor run = torch_parallel_for.load()) {
    if (run(begin, end, grain, &Work::call, &work) == 0 || work.done() == end - begin) return work.rethrow();
    if (work.started()) {
      // Work must not be done twice, and nobody knows which of it is missing.
      work.rethrow();
      throw std::runtime_error("torch's thread pool gave up in the middle");
    }
  }
  run_on_threads(work, begin, end, pieces);
  work.rethrow();
}

}  // namespace megalith

MG_EXPORT void mg_use_torch_threads(void* parallel_for, void* num_threads) noexcept {
  megalith::torch_parallel_for = reinterpret_cast<megalith::TorchParallelFor>(parallel_for);
  megalith::torch_num_threads = reinterpret_cast<megalith::TorchNumThreads>(num_threads);
}

MG_EXPORT void mg_set_num_threads(int32_t count) noexcept { megalith::own_num_threads = count; }

MG_EXPORT int32_t mg_num_threads() noexcept { return megalith::num_threads(); }
