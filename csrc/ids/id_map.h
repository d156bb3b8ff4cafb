// From raw 64-bit ids to rows of bounded tables, which come and go.
//
// resolve -> rows of a batch's values, and which rows begin and which ids left. Partitions decide alone, so several threads
// share the work and the result is that of one; a process may have some partitions of 64 and decides on these what a
// process with all of them would.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ids/id_table.h"

namespace megalith {

// Values [first, last) of a batch are ids of a table.
struct IdLookup {
  int64_t table, first, last;
};

struct IdMapSettings {
  int64_t first_partition, last_partition;
  int64_t lag;      // rows that this batch or so many before it used cannot leave
  int64_t threads;  // at most; 0: all there are
};

// By table: what a use in the current batch adds to a score, and the segment of time that scores are relative to.
struct ScoreClock {
  const double* weights;
  const int64_t* segments;
};

class IdMap {
 public:
  IdMap(const IdMapSettings& settings, const IdTableSettings* tables, int64_t num_tables);

  // Batches that train are numbered from 1 and come in order. Rows that are not -1 when it begins are guesses: what the
  // values had some batches ago.
  void resolve(const IdLookup* lookups, int64_t num_lookups, int64_t num_values, const IdBatch& batch,
               const ScoreClock& clock);
  // Before the batch of this number; `least_scores` by table.
  void expire(int64_t batch, int64_t time, const ScoreClock& clock, const double* least_scores);
  void change_bound(int64_t table, int64_t bound);
  void load(int64_t table, const IdBlockArrays& block, int64_t count);
  // Goes on after a batch, with scores of its segments.
  void resume(int64_t batch, const int64_t* segments);
  // Forgets all ids of a table, and what was counted of it.
  void clear(int64_t table);

  // What the last call changed, by table, then by partition.
  const IdChanges& changes() const { return changes_; }
  // What is kept from one batch to the next to work in.
  int64_t scratch_bytes() const;
  IdTable& table(int64_t number) { return *tables_.at(static_cast<size_t>(number)); }
  // To be saved: not after a change that failed half-way.
  IdTable& whole_table(int64_t number) {
    check_whole();
    return table(number);
  }
  // Rows that this batch or a later one used cannot leave at `batch`.
  uint64_t protected_from(int64_t batch) const {
    return static_cast<uint64_t>(batch > settings_.lag ? batch - settings_.lag : 0);
  }

 private:
  // Where the values of a batch lie, by partition and then by table.
  struct GroupedValues {
    std::vector<int64_t> order;      // lookups by table
    std::vector<uint32_t> positions;
    std::vector<int64_t> ends;       // of each (partition, lookup in order) in positions
    std::vector<uint8_t> partitions; // of each value, while they are grouped
  };

  void check_whole() const;
  void begin_change();
  void end_change();
  void check_order(int64_t batch) const;
  // Finds the rows of values, in their order, by several threads; nothing changes.
  void search(const IdLookup* lookups, int64_t num_lookups, const IdBatch& batch) const;
  // Notes the uses of values whose row was known ahead and is still theirs; the rows of all others become -1.
  void confirm(const IdLookup* lookups, int64_t num_lookups, const IdBatch& batch, const ScoreClock& clock);
  void group(const IdLookup* lookups, int64_t num_lookups, int64_t num_values, const IdBatch& batch);
  void resolve_partition(int64_t partition, const IdLookup* lookups, int64_t num_lookups, const IdBatch& batch,
                         const ScoreClock& clock, std::vector<IdMiss>& misses);
  void begin_segments(const int64_t* segments);
  template <class Body>
  void for_each_partition(const Body& body);

  IdMapSettings settings_;
  PartitionRange here_;
  std::vector<std::unique_ptr<IdTable>> tables_;
  int64_t batch_ = 0;
  bool whole_ = true;
  GroupedValues grouped_;
  std::vector<std::vector<IdMiss>> misses_;  // of each thread
  std::vector<IdChanges> by_partition_;
  IdChanges changes_;
};

}  // namespace megalith
