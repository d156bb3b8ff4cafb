// Reads single rows from segment files on a thread of its own, many at a time, while more are still being asked for.
//
// Rows that lie in one block are one read. The thread begins reads, checks what has come and hands it on; whoever asks
// goes on meanwhile, and waits for the rows of a batch only where they are used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "page_memory.h"
#include "stores/segment_format.h"
#include "stores/transfer_queue.h"

namespace megalith {

// Called on the reader's thread with what a row is known by and its bytes.
using RowTaker = std::function<void(uint32_t, const char*)>;

// A row that is wanted from disk.
struct RowRead {
  uint32_t record;
  uint32_t slot;   // whatever the taker knows it by
  uint64_t key;
  uint32_t batch;  // that waits for it
  bool drops;      // whether its record is dead once it was read
  const RowTaker* take;
};

// Where a row lies: a file, and the first byte of its record there.
struct RowPlace {
  int file;
  const std::string* path;
  int64_t offset;
};

class RowReader {
 public:
  RowReader(const SegmentFormat& format, TransferQueue& queue, int64_t depth);
  ~RowReader() { stop(); }
  // Ends the thread; reads under way are left to their queue.
  void stop();

  // What a file must be read in multiples of; a block unless it says less.
  void set_alignment(int64_t bytes) { alignment_ = bytes; }
  // Asks for a row. The file must stay open until the row was taken.
  void want(const RowPlace& place, const RowRead& read);
  // Hands all that were asked for to the thread, which otherwise gets them some at a time.
  void hand_on();
  // Waits until all rows that this batch and earlier ones asked for were taken; throws if one could not be.
  void wait(uint32_t batch);
  // Waits for all rows: no read is under way then, and the queue may be used by others.
  void finish();
  // Rows of batches up to this one have come.
  uint32_t arrived() const { return arrived_.load(std::memory_order_acquire); }
  // Gives the records that are dead since batches up to this one read them, in order; throws if a read failed.
  void take_dropped(uint32_t batch, std::vector<uint32_t>& records);

  int64_t num_reads() const { return num_reads_.load(std::memory_order_relaxed); }
  int64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  int64_t memory_bytes() const { return arena_.bytes(); }

 private:
  static constexpr size_t kGroup = 64;  // rows are handed on so many at a time

  struct Wanted {
    RowPlace place;
    RowRead read;
  };
  // A read under way: the bytes of its file, and the rows in them.
  struct Part {
    int64_t first;
    std::vector<Wanted> rows;
  };

  void run();
  void sort_waiting();
  void begin_waiting();
  void take_done(int64_t least);
  void note_taken();
  void note_arrived();

  const SegmentFormat& format_;
  TransferQueue& queue_;
  int64_t alignment_ = kBlock, cell_bytes_, depth_;
  PageMemory arena_;

  // Of whoever asks.
  std::vector<Wanted> asked_;
  std::thread thread_;

  // Of both, under the lock.
  std::mutex lock_;
  std::condition_variable comes_, taken_;
  std::vector<Wanted> handed_;
  std::map<uint32_t, int64_t> outstanding_;  // rows that a batch waits for
  std::map<uint32_t, std::vector<uint32_t>> dropped_;
  std::exception_ptr failure_;
  bool stops_ = false;
  std::atomic<uint32_t> arrived_{~uint32_t{0}};
  std::atomic<int64_t> num_reads_{0}, read_bytes_{0};

  // Of the thread.
  std::vector<Part> parts_;
  std::vector<uint32_t> free_, done_;
  std::vector<Wanted> waiting_;  // from `next_` on
  size_t next_ = 0, sorted_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<RowRead> just_taken_;
  int64_t under_way_ = 0;
};

}  // namespace megalith
