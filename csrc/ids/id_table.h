// A table of ids without bound: what its partitions share, and what is asked of all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ids/id_partition.h"

namespace megalith {

// Partitions [first, last) of 64 are here.
struct PartitionRange {
  int64_t first, last;

  int64_t count() const { return last - first; }
  bool has(int64_t partition) const { return partition >= first && partition < last; }
};

// Arrays that a block of saved ids is written to or read from.
struct IdBlockArrays {
  int64_t* ids;
  int32_t* rows;
  int64_t* last;
  float* scores;
  int64_t* times;
};

class IdTable {
 public:
  IdTable(int64_t number, const IdTableSettings& settings, PartitionRange here);
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  IdPartition& partition(int64_t number) { return partitions_[static_cast<size_t>(number - here_.first)]; }
  bool timed() const { return records_.timed(); }

  // Scores are stored times 2^(64 * segment) less than they count: smaller numbers for a later segment.
  void begin_segment(int64_t segment);
  // As it was saved.
  void set_segment(int64_t segment) { segment_ = segment; }
  int64_t segment() const { return segment_; }
  // What it was made with, and its bound as it is now.
  const IdTableSettings& settings() const { return settings_; }

  // Rows of values [first, last), -1 where the id has none; nothing changes.
  void search(const IdBatch& batch, int64_t first, int64_t last) const;
  // Notes the uses of values [first, last) whose guessed row has their id; the rows of all others become -1.
  void confirm(const IdBatch& batch, int64_t first, int64_t last, double weight);
  void change_bound(int64_t bound, IdChanges& changes);
  // The next ids in rising order, at most `room`, those above `after` if there is one; how many.
  int64_t scan(const int64_t* after, int64_t room, const IdBlockArrays& out) const;
  void load(const IdBlockArrays& block, int64_t count, IdChanges& changes);

  // The counter's memory, the partitions one after the other.
  char* counter() const { return counter_.as<char>(); }
  int64_t counter_bytes() const {
    return here_.count() * settings_.counter_buckets * static_cast<int64_t>(sizeof(CounterBucket));
  }

  IdStatistics statistics() const;
  int64_t size() const;
  int64_t bound() const { return settings_.bound; }
  int64_t index_bytes() const;
  int64_t use_bytes() const;
  int64_t queue_bytes() const;

 private:
  // Rows of a partition: those below the bound whose number leaves the partition's when divided by 64.
  static uint32_t capacity_of(int64_t partition, int64_t bound) {
    return static_cast<uint32_t>((bound - partition + kIdPartitions - 1) / kIdPartitions);
  }
  // Slots below it were used in some partition.
  uint32_t high() const;

  IdTableSettings settings_;
  PartitionRange here_;
  IdRecords records_;
  ZeroedMemory counter_;
  std::vector<IdPartition> partitions_;
  int64_t segment_ = 0;
};

}  // namespace megalith
