// The ids of one table that share a partition: which of them have a row, who may have one, who leaves.
//
// A partition decides alone. Within a batch it first finds every id that has a row and notes the use, then decides on the
// others in the order of ids: what it decides depends on which ids a batch has and how often, not on where they stand.
#pragma once

#include <cstdint>
#include <vector>

#include "ids/eviction_queue.h"
#include "ids/id_index.h"
#include "ids/id_records.h"
#include "ids/occurrence_counter.h"

namespace megalith {

enum class AdmissionKind : int64_t { kAlways, kCount, kProbability };
enum class LeavingReason : int64_t { kBound, kShrunk, kSteps, kTime, kScore };

// What a table was made with. Numbers of 0 mean "never".
struct IdTableSettings {
  int64_t bound;
  AdmissionKind admission;
  int64_t admission_count;
  uint64_t probability_limit;  // an occurrence is admitted if its hash is below
  uint64_t seed;
  int64_t counter_buckets;  // of each partition
  int64_t by_score;         // what leaves is what has the smallest score, not what was used longest ago
  int64_t expire_batches, expire_seconds;
  int64_t timed;
};

struct NewIdRow {
  int64_t table, row, id;
};
struct LeftIdRow {
  int64_t table, id, row, reason;
};
struct MovedIdRow {
  int64_t table, id, from, to;
};

// What a call changed, in the order of its decisions.
struct IdChanges {
  std::vector<NewIdRow> begun;
  std::vector<LeftIdRow> left;
  std::vector<MovedIdRow> moved;

  // What one large change took is given back.
  void clear() {
    clear(begun);
    clear(left);
    clear(moved);
  }
  int64_t bytes() const { return bytes(begun) + bytes(left) + bytes(moved); }

 private:
  static constexpr int64_t kKept = 4 << 20;

  template <class Row>
  static int64_t bytes(const std::vector<Row>& rows) {
    return static_cast<int64_t>(rows.capacity() * sizeof(Row));
  }
  template <class Row>
  static void clear(std::vector<Row>& rows) {
    rows.clear();
    if (bytes(rows) > kKept) rows.shrink_to_fit();
  }
};

// Of values that trained: lookups = hits + values of ids that began + refused + full.
struct IdStatistics {
  int64_t lookups = 0, hits = 0, admitted = 0;
  int64_t refused = 0;  // by the rule of admission
  int64_t full = 0;     // because no row could leave
  int64_t left[5] = {};  // by LeavingReason
};

// The values of a batch, and what they mean.
struct IdBatch {
  const int64_t* values;
  const int64_t* times;  // of each value, or null
  int32_t* rows;
  uint32_t number;
  uint64_t protected_from;  // rows used in this batch or a later one cannot leave
  bool trains;
};

// What is kept of an id, as it is saved and loaded.
struct IdUse {
  int64_t id;
  uint32_t last;
  float score;
  uint32_t time;
};

// A value whose id has no row.
struct IdMiss {
  int64_t id;
  uint32_t position;
};

class IdPartition {
 public:
  // `number` among those that the table has here.
  IdPartition(int64_t table, const IdTableSettings& settings, IdRecords& records, uint32_t number, uint32_t capacity,
              CounterBucket* buckets);

  // Rows of the values of a batch that trains at `positions`; those without a row are appended to `misses`.
  void look_up(const IdBatch& batch, const uint32_t* positions, int64_t count, double weight, std::vector<IdMiss>& misses);
  // Gives rows to those of the misses that are admitted.
  void decide(const IdBatch& batch, double weight, std::vector<IdMiss>& misses, IdChanges& changes);

  // Lets go of rows that were not used for too long, or whose score is below `least_score`, in the order of ids.
  void expire(uint32_t batch, uint64_t protected_from, int64_t time, double least_score, IdChanges& changes);
  // Lets go of what has no room in so many rows, and moves rows beyond them. `reserve` follows.
  void shrink(uint32_t capacity, IdChanges& changes);
  void reserve(uint32_t capacity);
  // Takes an id as it was saved; -1 if all rows have a higher rank.
  int32_t load(const IdUse& use, IdChanges& changes);
  int32_t row_of(int64_t id) const;
  // All scores have become smaller.
  void scale_scores(int64_t halvings);

  template <class Visit>
  void for_each(const Visit& visit) const {
    records_->for_each(number_, high_, visit);
  }
  IdUse use_at(uint32_t slot) const {
    const IdRecord& record = records_->at(number_, slot);
    return {record.id, record.last, record.score, records_->timed() ? records_->time(number_, slot) : 0};
  }

  int32_t row_at(uint32_t slot) const { return records_->row(number_, slot); }

  // Ask for the memory that finding an id reads: first the one, then the other.
  void prefetch_index(uint64_t hash) const { index_.prefetch(hash); }
  void prefetch_record(uint64_t hash) const {
    const uint32_t slot = index_.likely_slot(hash);
    if (slot != IdIndex::kNoSlot) records_->prefetch(number_, slot);
  }
  int32_t row_of(uint64_t hash, int64_t id) const {
    const uint32_t slot = find(hash, id);
    return slot == IdIndex::kNoSlot ? -1 : row_at(slot);
  }

  // Of values that were found elsewhere.
  void count_hits(int64_t hits) {
    counted_.lookups += hits;
    counted_.hits += hits;
  }

  uint32_t size() const { return size_; }
  uint32_t high() const { return high_; }
  int64_t index_bytes() const { return index_.bytes(); }
  int64_t queue_bytes() const { return queue_.bytes() + static_cast<int64_t>(free_.capacity() * sizeof(uint32_t)); }
  const IdStatistics& statistics() const { return counted_; }

 private:
  uint32_t find(uint64_t hash, int64_t id) const {
    return index_.find(hash, [&](uint32_t slot) { return records_->at(number_, slot).id == id; });
  }
  bool admits(int64_t id, uint64_t hash, uint64_t occurrences);
  uint32_t free_slot();
  void begin(uint32_t slot, uint64_t hash, const IdUse& use);
  void leave(uint32_t slot, LeavingReason reason, IdChanges& changes);
  void set_use(uint32_t slot, const IdUse& use);
  void rebuild_index(uint32_t room);

  int64_t table_;
  const IdTableSettings* settings_;
  IdRecords* records_;
  uint32_t number_, capacity_;
  uint32_t size_ = 0;
  uint32_t high_ = 0;           // slots from here on were never used
  std::vector<uint32_t> free_;  // slots below it without a row: a heap, the lowest first
  IdIndex index_;
  EvictionQueue queue_;
  OccurrenceCounter counter_;
  IdStatistics counted_;
};

}  // namespace megalith
