// Which row of a partition leaves next: exactly the smallest by eviction_rank and id, at about 1.5 bytes a row.
//
// Ranks only grow while a row stays. So rows are not kept in order: every row whose rank was below a limit when the queue
// was filled is queued, all others are larger. An entry that is taken is compared with its row; one that was used since is
// queued again or, beyond the limit, dropped. An empty queue is filled by one pass over the records, with a limit that
// takes about a sixteenth of them: 16 records read in sequence for each row that leaves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ids/id_records.h"

namespace megalith {

class EvictionQueue {
 public:
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  // The row that leaves, of those last used before the batch `protected_from`, or kNoSlot. Records of the partition
  // are those of slots below `high`.
  uint32_t take(const IdRecords& records, uint32_t partition, uint32_t high, bool by_score, uint64_t protected_from) {
    if (exhausted_from_ == protected_from) return kNoSlot;
    for (;;) {
      if (queued_.empty() && late_.empty() && !fill(records, partition, high, by_score, protected_from)) {
        exhausted_from_ = protected_from;
        return kNoSlot;
      }
      const QueuedRow next = pop();
      const IdRecord& record = records.at(partition, next.slot);
      if (record.last == 0 || record.id != next.id) continue;
      const uint64_t rank = eviction_rank(record, by_score);
      if (rank != next.rank) {
        note(rank, next.id, next.slot);
      } else if (record.last >= protected_from) {
        aside_.push_back(next);
      } else {
        return next.slot;
      }
    }
  }

  // An id that will leave a few rows after the next, whose record is asked for; null where it is not known.
  const int64_t* soon(const IdRecords& records, uint32_t partition) const {
    if (queued_.size() < kSoon) return nullptr;
    const QueuedRow& row = queued_[queued_.size() - kSoon];
    records.prefetch(partition, row.slot);
    return &row.id;
  }

  // A row whose rank is new, and may be smaller than those of rows that are not queued.
  void note(uint64_t rank, int64_t id, uint32_t slot) {
    if (rank < limit_) push({rank, id, slot});
  }

  // Rows that could not leave may do so in a later batch.
  void end_batch() {
    for (const QueuedRow& row : aside_) push(row);
    aside_.clear();
  }

  // A row came that was not used in the current batch: there may be one that can leave.
  void reconsider() { exhausted_from_ = ~uint64_t{0}; }

  // After ranks became smaller, or slots changed.
  void clear() {
    queued_.clear();
    late_.clear();
    aside_.clear();
    limit_ = 0;
    reconsider();
  }

  int64_t bytes() const {
    return static_cast<int64_t>((queued_.capacity() + late_.capacity() + aside_.capacity()) * sizeof(QueuedRow));
  }

 private:
  struct QueuedRow {
    uint64_t rank;
    int64_t id;
    uint32_t slot;
  };
  static bool leaves_later(const QueuedRow& a, const QueuedRow& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.id > b.id;
  }

  void push(const QueuedRow& row) {
    late_.push_back(row);
    std::push_heap(late_.begin(), late_.end(), leaves_later);
  }

  QueuedRow pop() {
    std::vector<QueuedRow>* from = &queued_;
    if (queued_.empty() || (!late_.empty() && leaves_later(queued_.back(), late_.front()))) {
      std::pop_heap(late_.begin(), late_.end(), leaves_later);
      from = &late_;
    }
    const QueuedRow row = from->back();
    from->pop_back();
    return row;
  }

  bool fill(const IdRecords& records, uint32_t partition, uint32_t high, bool by_score, uint64_t protected_from) {
    limit_ = limit_of(records, partition, high, by_score, protected_from);
    aside_.clear();
    // Many rows of one rank, as they are after loading, make a long queue once.
    if (queued_.capacity() > high / 4 + kSample) queued_.shrink_to_fit();
    queued_.reserve(high / 16 + high / 64 + 16);
    records.for_each(partition, high, [&](uint32_t slot, const IdRecord& record) {
      const uint64_t rank = eviction_rank(record, by_score);
      if (rank >= limit_) return;
      (record.last < protected_from ? queued_ : aside_).push_back({rank, record.id, slot});
    });
    std::sort(queued_.begin(), queued_.end(), leaves_later);
    return !queued_.empty();
  }

  // One that takes a sixteenth of the rows that may leave, by a sample of them; 0 where none may.
  static uint64_t limit_of(const IdRecords& records, uint32_t partition, uint32_t high, bool by_score,
                           uint64_t protected_from) {
    uint64_t sample[2 * kSample];
    size_t count = 0;
    const uint32_t step = std::max<uint32_t>(1, high / kSample);
    for (uint32_t slot = 0; slot < high; slot += step) {
      const IdRecord& record = records.at(partition, slot);
      if (record.last != 0 && record.last < protected_from) sample[count++] = eviction_rank(record, by_score);
    }
    if (count != 0) {
      std::nth_element(sample, sample + count / 16, sample + count);
      return sample[count / 16] + 1;
    }
    uint64_t least = ~uint64_t{0};
    records.for_each(partition, high, [&](uint32_t, const IdRecord& record) {
      if (record.last < protected_from) least = std::min(least, eviction_rank(record, by_score));
    });
    return least + 1;
  }

  static constexpr uint32_t kSample = 512;  // at most twice as many are taken
  static constexpr size_t kSoon = 5;

  std::vector<QueuedRow> queued_;  // as it was filled, the next at the end
  std::vector<QueuedRow> late_;    // a heap of what came since
  std::vector<QueuedRow> aside_;   // what no batch under way lets go
  uint64_t limit_ = 0;
  uint64_t exhausted_from_ = ~uint64_t{0};
};

}  // namespace megalith
