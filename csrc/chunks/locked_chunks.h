// A pool of chunked rows as the C interface hands it out.
#pragma once

#include <mutex>
#include <vector>

#include "chunks/chunked_rows.h"

namespace megalith {

// The threads that resolve and that save take turns.
struct ChunkedHandle {
  ChunkedHandle(std::vector<ChunkedTable> tables, const ChunkShape& shape, int64_t capacity)
      : rows(std::move(tables), shape, capacity) {}
  std::mutex mutex;
  ChunkedRows rows;
};

inline ChunkedRows& chunks_of(void* handle) { return static_cast<ChunkedHandle*>(handle)->rows; }

// Holds the lock while an exported function works with the pool.
class LockedChunks {
 public:
  explicit LockedChunks(void* handle) : held_(*static_cast<ChunkedHandle*>(handle)), lock_(held_.mutex) {}
  ChunkedRows* operator->() const { return &held_.rows; }
  ChunkedRows& operator*() const { return held_.rows; }

 private:
  ChunkedHandle& held_;
  std::lock_guard<std::mutex> lock_;
};

}  // namespace megalith
