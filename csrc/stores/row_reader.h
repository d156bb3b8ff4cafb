// Reads single rows from segment files: begun while more are still being asked for, many at a time.
//
// Rows that lie in one block are one read. What has come is checked and handed on while the rest is under way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stores/page_memory.h"
#include "stores/segment_format.h"
#include "stores/transfer_queue.h"

namespace megalith {

// A row that is wanted from disk.
struct RowRead {
  uint32_t record;
  uint32_t slot;  // whatever the reader wants to know it by
  uint64_t key;
};

// Where a row lies: a file, and the first byte of its record there.
struct RowPlace {
  int file;
  const std::string* path;
  int64_t offset;
};

class RowReader {
 public:
  using Taker = std::function<void(const RowRead&, const char*)>;

  RowReader(const SegmentFormat& format, TransferQueue& queue, int64_t depth);

  // What a file must be read in multiples of; a block unless it says less.
  void set_alignment(int64_t bytes) { alignment_ = bytes; }
  // Asks for a row, which is handed to `take` here or later.
  void want(const RowPlace& place, const RowRead& read, const Taker& take);
  // Waits for all that were asked for.
  void finish(const Taker& take);

  int64_t num_reads() const { return num_reads_; }
  int64_t read_bytes() const { return read_bytes_; }
  int64_t memory_bytes() const { return arena_.bytes(); }

 private:
  static constexpr int64_t kGroup = 64;  // rows are sorted and begun so many at a time

  struct Wanted {
    RowPlace place;
    RowRead read;
  };
  // A read under way: the bytes of its file, and the rows in them.
  struct Part {
    int64_t first;
    std::vector<Wanted> rows;
  };

  void begin_waiting();
  void take_done(int64_t least, const Taker& take);

  const SegmentFormat& format_;
  TransferQueue& queue_;
  int64_t alignment_ = kBlock, cell_bytes_, depth_;
  PageMemory arena_;
  std::vector<Part> parts_;
  std::vector<uint32_t> free_, done_;
  std::vector<Wanted> waiting_;  // from `next_` on; sorted up to `sorted_`
  size_t next_ = 0, sorted_ = 0;
  std::vector<Transfer> transfers_;
  int64_t under_way_ = 0, num_reads_ = 0, read_bytes_ = 0;
};

}  // namespace megalith
