// The disk tier of a row pool: rows are appended to segment files in large writes, and read one block at a time.
//
// A segment is filled in memory, written by one transfer and never changed again. Rows that were written again
// elsewhere are dead; a segment with few live rows is collected: what lives is appended again, the file deleted. Three
// segments are open at a time, for rows that die after about equally long: the rows of a segment should die together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stores/row_reader.h"
#include "stores/segment_format.h"
#include "stores/transfer_queue.h"

namespace megalith {

struct SegmentLogSettings {
  std::string folder;
  int64_t row_bytes = 0;
  int64_t num_keys = 0;        // keys are below it
  int64_t segment_bytes = 16 << 20;
  int64_t max_bytes = 0;       // all files together; 0 is no bound
  uint64_t layout = 0;
  bool io_uring = true;
  int32_t depth = 128;         // transfers under way at a time
  int32_t threads = 32;        // where io_uring is not used
  double space_factor = 1.4;   // files may take so many times their live rows before one is collected
};

struct SegmentLogStatistics {
  int64_t file_bytes = 0, live_rows = 0, dead_rows = 0, segments = 0;
  int64_t written_bytes = 0, appended_rows = 0, moved_rows = 0, read_bytes = 0, reads = 0;
};

// A sealed file, and which of its records live: bit i % 64 of word i / 64.
struct SegmentFile {
  std::string name;
  std::vector<uint64_t> live;
};

// Called with the record, its key and its row.
using RowVisitor = std::function<void(uint32_t, uint64_t, const char*)>;

class SegmentLog {
 public:
  // Rows that training evicts; those of them that had come back before collection found them; rows that it moves.
  enum Stream { kEvicted = 0, kReturning = 1, kMoved = 2 };

  explicit SegmentLog(const SegmentLogSettings& settings);
  ~SegmentLog();
  SegmentLog(const SegmentLog&) = delete;
  SegmentLog& operator=(const SegmentLog&) = delete;

  // Makes room for a row and returns its record; `row` is where the row is to be copied, before `sealed`.
  uint32_t append(Stream stream, char*& row);
  void sealed(uint32_t record, uint64_t key);
  // Whether a record was written for a row that was evicted, and not moved since.
  bool is_young(uint32_t record) const { return segments_[static_cast<size_t>(segment_of(record))]->stream != kMoved; }
  // A record whose row lives elsewhere now.
  void drop(uint32_t record);

  // Asks for a row, which its taker gets now or later; rows still in memory come from there. A record that is asked for
  // must live until it was taken.
  void want(const RowRead& read);
  // Begins all reads that were asked for.
  void begin_reads() { reader_->hand_on(); }
  // Drops the records that are dead since batches up to this one read them.
  void note_reads(uint32_t batch);
  // Waits for every row that was asked for.
  void finish_reads();
  // Waits for the rows of batches up to this one. Any thread may.
  void wait_for_rows(uint32_t batch) { reader_->wait(batch); }
  // The rows of batches up to this one have come.
  uint32_t arrived() const { return reader_->arrived(); }

  // Whether the files take more than their share of room for the rows there are, some of which only memory has.
  bool wants_collection(int64_t in_memory_only) const;
  // Reads the segment that is worth it most, calls visit for each of its live rows, and deletes it: whoever is called
  // appends and drops it. False where every row of every segment lives.
  bool collect(const RowVisitor& visit);

  // Writes all that is in memory and waits until it is on disk.
  void sync();
  // The files, after `sync`.
  std::vector<SegmentFile> files() const;
  // Takes files of the folder, of which the marked records live; calls visit(record, key) for each of these.
  void open(const std::vector<SegmentFile>& files, const std::function<void(uint32_t, uint64_t)>& visit);
  // Calls visit(record, key, row) for the live records of a segment; false where there is no such segment.
  bool scan(int64_t segment, const RowVisitor& visit);

  // Counts a file against the bound that is not the log's own, for as long as it has a name.
  void keep(const std::string& path);

  int64_t row_bytes() const { return settings_.row_bytes; }
  const std::string& folder() const { return settings_.folder; }
  // The file that holds, or will hold, a record.
  const std::string& path(uint32_t record) const { return segments_[static_cast<size_t>(segment_of(record))]->path; }
  int64_t num_segments() const { return static_cast<int64_t>(segments_.size()); }
  SegmentLogStatistics statistics() const;
  int64_t memory_bytes() const;

 private:
  struct Segment {
    int file = -1;
    std::string path;
    uint64_t sequence = 0;
    int64_t count = 0, live = 0, bytes = 0;
    char* buffer = nullptr;  // while it is filled or written
    Stream stream = kMoved;
    bool used = false;
    bool synced = false;
    std::vector<uint64_t> keys;  // while it is filled
    std::vector<uint64_t> live_bits;

    bool lives(int64_t record) const { return live_bits[static_cast<size_t>(record / 64)] >> (record % 64) & 1; }
  };

  int64_t segment_of(uint32_t record) const { return record / format_.capacity(); }
  int64_t within(uint32_t record) const { return record % format_.capacity(); }
  int64_t open_segment(Stream stream);
  double worth_collecting(const Segment& segment) const;
  void write(int64_t segment);
  // Takes note of segments that are written, at least so many of those under way.
  void note_written(int64_t least);
  void finish_writes() { note_written(num_writing_); }
  void remove(int64_t segment);
  // Closes a file that has no name any more; one that has is counted as kept.
  void close_or_keep(int file, int64_t bytes);
  // Lets go of kept files that have no name any more.
  void forget_unnamed();
  char* take_buffer();
  SegmentHeader read_header(Segment& segment, char* block);
  void read_keys(Segment& segment, const SegmentHeader& header, std::vector<uint64_t>& keys);
  [[noreturn]] void damaged(const std::string& path, const std::string& what) const;

  SegmentLogSettings settings_;
  SegmentFormat format_;
  std::unique_ptr<TransferQueue> reads_, writes_;
  std::unique_ptr<RowReader> reader_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<int64_t> free_;
  std::vector<uint32_t> written_, dropped_;
  int64_t num_writing_ = 0, being_read_ = 0;  // the latter: records that are dead once they were read
  int64_t open_[3] = {-1, -1, -1};
  // Files that are no longer the log's, but have other names, as in checkpoints: they are on disk all the same. Known
  // where there is a bound, and kept open so that they can be asked whether they still have a name.
  struct KeptFile {
    int file;
    int64_t bytes;
  };
  std::vector<KeptFile> kept_;
  int64_t kept_bytes_ = 0;
  std::vector<char*> buffers_;  // that no segment uses
  int64_t num_buffers_ = 0;
  bool aligned_ = false;  // whether the reader knows what reads must be aligned to
  uint64_t next_sequence_ = 1;
  SegmentLogStatistics counted_;
};

}  // namespace megalith
