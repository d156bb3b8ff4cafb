// parallel_for over the process's thread pool.
//
// The core links neither torch nor OpenMP. When torch is loaded, `mg_use_torch_threads` hands over torch's own
// C entry point (`torch_parallel_for`, exported since torch 2.10), so native operators run on the very threads
// torch uses and respect torch.set_num_threads. Without torch, or with an older one, plain threads serve.
//
// What a body throws on any thread is thrown to the caller, after all threads are done: the first of it, whoever
// else failed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

namespace megalith {

// Called with [begin, end) pieces that cover the range once, from several threads.
using RangeFunction = void (*)(int64_t begin, int64_t end, void* context);

void parallel_for_raw(int64_t begin, int64_t end, int64_t grain, RangeFunction function, void* context);
int num_threads();

template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, Body&& body) {
  parallel_for_raw(
      begin, end, grain,
      [](int64_t from, int64_t to, void* context) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(from, to);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// How many workers share `count` tasks.
inline int64_t num_workers(int64_t count) { return std::min<int64_t>(num_threads(), count); }

// Calls body(task, worker) for tasks [0, count); each of `workers` takes the next task when it is done with its last,
// and none takes one after a failure. No two threads have the same worker's number.
template <class Body>
void for_each_task(int64_t count, int64_t workers, Body body) {
  std::atomic<int64_t> next{0};
  parallel_for(0, workers, 1, [&](int64_t worker, int64_t) {
    try {
      for (int64_t task; (task = next.fetch_add(1)) < count;) body(task, worker);
    } catch (...) {
      next = count;
      throw;
    }
  });
}

template <class Body>
void for_each_task(int64_t count, Body body) {
  for_each_task(count, num_workers(count), [&](int64_t task, int64_t) { body(task); });
}

}  // namespace megalith
