// A pool of rows in memory over rows on disk, for tables whose rows have one shape.
//
// resolve -> slots of the pool, what was missing on its way; arrive -> it is there; release -> rows may leave. A row that
// leaves is written only if training changed it, and a row never trained is nowhere but in its start value. While a
// changed row is in memory its record on disk counts as dead: it will be written again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "stores/cache_directory.h"
#include "stores/key_index.h"
#include "stores/segment_log.h"
#include "stores/start_values.h"

namespace megalith {

// The weight of a pool's rows or a part of their optimizer state: `bytes` for each slot, one after the other.
struct PoolPart {
  char* memory;
  int64_t bytes;
};

struct TieredTable {
  int64_t rows;
  int64_t padding;  // an id that reads as zeros, or -1
  StartValues start;
};

// Values [first, last) of a batch are ids of a table.
struct TableValues {
  int64_t table, first, last;
};

struct TieredStatistics {
  int64_t lookups = 0, hits = 0, read_rows = 0, new_rows = 0, evicted = 0, written_back = 0;
};

class TieredRows {
 public:
  // `slot_ids`, if given, has room for a number a slot: the id of the row that the slot holds.
  TieredRows(std::vector<TieredTable> tables, std::vector<PoolPart> parts, int64_t* slot_ids, int64_t sets,
             int64_t capacity, CachePolicy policy, const SegmentLogSettings& disk);

  // Slots of the ids of a batch, whose rows are in memory from when they arrive until it is released. Batches are
  // numbered from 1 and resolved in order. What `trains` is taken for changed.
  template <class Index>
  void resolve(const TableValues* parts, int64_t num_parts, const Index* values, int32_t* slots, uint32_t batch,
               bool trains);
  // Notes the ids of a batch that is yet to be resolved.
  template <class Index>
  void expect(const TableValues* parts, int64_t num_parts, const Index* values, uint32_t batch);
  // Waits until the rows of batches up to this one are in memory. Any thread may, while others resolve.
  void arrive(uint32_t batch) { log_.wait_for_rows(batch); }
  // Batches up to this one are done.
  void release(uint32_t batch) { released_.store(batch, std::memory_order_release); }

  // Writes every changed row and waits until it is on disk. Rows that a batch under way will train are written as they
  // are and stay changed: they are written again when they leave.
  void flush();
  // Takes the files of a store that was flushed.
  void open(const std::vector<SegmentFile>& files);
  // Takes rows as given, whatever was here before; each part's rows lie one after the other.
  void load(int64_t table, const int64_t* ids, int64_t count, const char* const* parts);
  // Forgets rows that are not in memory; those that are not on disk either stay as they begin.
  void drop(int64_t table, const int64_t* ids, int64_t count);
  // Rows as they are now, wherever they lie: nothing is brought into memory for it, nothing counted.
  void read(int64_t table, const int64_t* ids, int64_t count, char* const* parts);
  // Live rows of a segment: calls visit(table, id, row) with the parts one after the other.
  bool scan(int64_t segment, const std::function<void(int64_t, int64_t, const char*)>& visit);

  // The slot of rows that read as zeros.
  int64_t padding_slot() const { return directory_.capacity(); }
  int64_t num_present() const { return index_.size() + num_dirty() - num_flushed_dirty_; }
  int64_t num_dirty() const { return directory_.num_dirty(); }
  int64_t index_bytes() const { return index_.bytes(); }
  int64_t directory_bytes() const { return directory_.bytes() + static_cast<int64_t>(returned_.capacity() / 8); }
  const SegmentLog& log() const { return log_; }
  SegmentLog& log() { return log_; }
  const TieredStatistics& statistics() const { return counted_; }

 private:
  static constexpr size_t kMoves = 16;

  // A row that comes into a slot, and the one that leaves it, which may have to be written first.
  struct RowMove {
    uint32_t slot;
    int64_t table, id;
    uint64_t permuted, leaving;
    uint32_t batch;
    bool write, returning, trains;  // of the one that leaves: whether it is written, and had come back soon before
  };

  // Refuses work after an operation that did not come to its end: slots may hold rows that were never read.
  void begin_change();
  void end_change() { whole_ = true; }
  template <class Index, class Use>
  void with_places(const TableValues& part, const Index* values, const Use& use) const;
  template <class Index>
  void resolve_parts(const TableValues* parts, int64_t num_parts, const Index* values, int32_t* slots, uint32_t batch,
                     bool trains);
  uint64_t key_of(int64_t table, int64_t id) const { return first_keys_[static_cast<size_t>(table)] + static_cast<uint64_t>(id); }
  int64_t table_of(uint64_t key) const;
  uint32_t bring(const CacheDirectory::Place& place, int64_t table, int64_t id, uint32_t batch, bool trains);
  void write_back(uint32_t slot, uint64_t permuted, bool returning);
  uint32_t move_to_set(const CacheDirectory::Place& place, uint32_t slot);
  bool leave(const CacheDirectory::Room& room);
  // Batches whose rows may leave: they are done, and none of their rows is still to come.
  uint32_t released() const { return std::min(released_.load(std::memory_order_acquire), log_.arrived()); }
  CacheDirectory::Room make_room(const CacheDirectory::Place& place, bool trains);
  void move(const RowMove& next);
  void make(const RowMove& move);
  void make_moves();
  void finish_moves() {
    make_moves();
    log_.begin_reads();
  }
  void settle();
  void forget_record(uint64_t permuted);
  void append(SegmentLog::Stream stream, uint64_t permuted, uint64_t key, const char* from);
  void pack(uint32_t slot, char* row) const;
  void unpack(uint32_t slot, const char* row);
  void begin(uint32_t slot, int64_t table, int64_t id);
  void collect();

  std::vector<TieredTable> tables_;
  std::vector<uint64_t> first_keys_;
  std::vector<PoolPart> parts_;
  int64_t* slot_ids_;
  KeyPermutation permute_;
  CacheDirectory directory_;
  KeyIndex index_;
  SegmentLog log_;
  std::vector<bool> returned_;     // by slot: its row came from disk before collection had to move it
  int64_t num_flushed_dirty_ = 0;  // changed rows that have a record on disk too
  bool whole_ = true;
  std::atomic<uint32_t> released_{0};  // set by the thread that computes, read by the one that resolves
  RowTaker take_;
  RowMove moves_[kMoves];  // that are not made yet, the last of them
  size_t num_moves_ = 0;
  TieredStatistics counted_;
};

}  // namespace megalith
