// How fast this machine can read and write rows scattered over memory: the roof that lookups are held against.
//
// Nothing is computed but what keeps the compiler from leaving the reads out, and nothing is shared with the
// embedding kernels, so that they cannot raise their own roof.
#include <atomic>
#include <cstdint>

#include "abi.h"
#include "parallel.h"

namespace megalith {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kGrain = 1024;

inline void prefetch_row(const char* row, int64_t row_bytes, bool write) {
  for (int64_t at = 0; at < row_bytes; at += kLine) {
    if (write) {
      __builtin_prefetch(row + at, 1, 3);
    } else {
      __builtin_prefetch(row + at, 0, 3);
    }
  }
}

}  // namespace
}  // namespace megalith

// Reads `count` rows of `row_bytes` (a multiple of 8) and returns the sum of their words. `ahead` is how many rows
// before its turn a row is asked for.
MG_EXPORT uint64_t mg_random_row_read(const void* base, int64_t row_bytes, const int64_t* ids, int64_t count,
                                      int64_t ahead) {
  const char* rows = static_cast<const char*>(base);
  std::atomic<uint64_t> total{0};
  megalith::parallel_for(0, count, megalith::kGrain, [&](int64_t from, int64_t to) {
    uint64_t sum = 0;
    for (int64_t i = from; i < to; ++i) {
      if (i + ahead < to) megalith::prefetch_row(rows + ids[i + ahead] * row_bytes, row_bytes, false);
      const uint64_t* words = reinterpret_cast<const uint64_t*>(rows + ids[i] * row_bytes);
      for (int64_t word = 0; word < row_bytes / 8; ++word) sum += words[word];
    }
    total += sum;
  });
  return total;
}

// Adds one to every word of `count` rows; no row may stand in `ids` twice, for threads share them out.
MG_EXPORT void mg_random_row_update(void* base, int64_t row_bytes, const int64_t* ids, int64_t count, int64_t ahead) {
  char* rows = static_cast<char*>(base);
  megalith::parallel_for(0, count, megalith::kGrain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      if (i + ahead < to) megalith::prefetch_row(rows + ids[i + ahead] * row_bytes, row_bytes, true);
      uint64_t* words = reinterpret_cast<uint64_t*>(rows + ids[i] * row_bytes);
      for (int64_t word = 0; word < row_bytes / 8; ++word) words[word] += 1;
    }
  });
}
