// How fast this machine can read and write rows scattered over memory: the roof that lookups are held against.
//
// Nothing is computed but what keeps the compiler from leaving the reads out. The prefetch distance and the cache it
// goes to are the caller's to try, so that the roof does not depend on what the embedding kernels chose.
#include <atomic>
#include <cstdint>

#include "abi.h"
#include "parallel.h"

namespace megalith {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kGrain = 1024;
typedef uint64_t Line __attribute__((vector_size(64), aligned(8), may_alias));

inline void prefetch_row(const char* row, int64_t row_bytes, int32_t level) {
  // The compiler must not take this for a function without effect.
  __asm__ volatile("");
  for (int64_t at = 0; at < row_bytes; at += kLine) {
    if (level == 1) {
      __builtin_prefetch(row + at, 0, 3);
    } else {
      __builtin_prefetch(row + at, 0, 2);
    }
  }
}

}  // namespace
}  // namespace megalith

// Reads `count` rows of `row_bytes` (a multiple of 64) and returns a sum of their words. `ahead` is how many rows before
// its turn a row is asked for, `level` the cache it is brought to: the first or the second.
MG_EXPORT uint64_t mg_random_row_read(const void* base, int64_t row_bytes, const int64_t* ids, int64_t count,
                                      int64_t ahead, int32_t level) {
  const char* rows = static_cast<const char*>(base);
  std::atomic<uint64_t> total{0};
  megalith::parallel_for(0, count, megalith::kGrain, [&](int64_t from, int64_t to) {
    megalith::Line sum{};
    for (int64_t i = from; i < to; ++i) {
      if (i + ahead < to) megalith::prefetch_row(rows + ids[i + ahead] * row_bytes, row_bytes, level);
      const megalith::Line* lines = reinterpret_cast<const megalith::Line*>(rows + ids[i] * row_bytes);
      for (int64_t line = 0; line < row_bytes / megalith::kLine; ++line) sum += lines[line];
    }
    uint64_t own = 0;
    for (int word = 0; word < 8; ++word) own += sum[word];
    total += own;
  });
  return total;
}

// Adds one to every word of `count` rows; no row may stand in `ids` twice, for threads share them out.
MG_EXPORT void mg_random_row_update(void* base, int64_t row_bytes, const int64_t* ids, int64_t count, int64_t ahead,
                                    int32_t level) {
  char* rows = static_cast<char*>(base);
  megalith::parallel_for(0, count, megalith::kGrain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      if (i + ahead < to) megalith::prefetch_row(rows + ids[i + ahead] * row_bytes, row_bytes, level);
      megalith::Line* lines = reinterpret_cast<megalith::Line*>(rows + ids[i] * row_bytes);
      for (int64_t line = 0; line < row_bytes / megalith::kLine; ++line) lines[line] += 1;
    }
  });
}
