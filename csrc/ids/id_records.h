// What is kept of each row of a table: its id, the last batch that used it, its score and, if wanted, its event time.
//
// A row number is slot * partitions + partition, so rows [0, bound) are all in use, each partition has bound / partitions of
// them, and a larger bound adds rows without renumbering any. Records lie in stripes of 16 slots of a partition, so that
// threads that work on different partitions rarely share a cache line, and memory is touched from the front as rows begin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "zeroed_memory.h"

namespace megalith {

struct IdRecord {
  int64_t id;
  uint32_t last;  // the last batch that used it; 0: a free row
  float score;
};

// Each use adds as much as the others of its batch: the sum depends on their number alone.
inline void note_use(IdRecord& record, uint32_t batch, double weight) {
  record.last = batch;
  record.score = static_cast<float>(static_cast<double>(record.score) + weight);
}

// The order in which rows leave: the smallest first, then the smaller id. Scores are never negative, so that their bits
// have their order.
inline uint64_t eviction_rank(const IdRecord& record, bool by_score) {
  if (!by_score) return record.last;
  uint32_t bits;
  std::memcpy(&bits, &record.score, sizeof bits);
  return uint64_t{bits} << 32 | record.last;
}

class IdRecords {
  static constexpr uint32_t kStripe = 16;

 public:
  // Of `partitions` with at most `slots` each.
  IdRecords(uint32_t partitions, uint32_t slots, bool timed) : partitions_(partitions), timed_(timed) { reserve(slots); }

  IdRecord& at(uint32_t partition, uint32_t slot) const { return records_.as<IdRecord>()[index(partition, slot)]; }
  bool timed() const { return timed_; }
  uint32_t& time(uint32_t partition, uint32_t slot) const { return times_.as<uint32_t>()[index(partition, slot)]; }
  void prefetch(uint32_t partition, uint32_t slot) const { __builtin_prefetch(&at(partition, slot), 1); }

  // Calls visit(slot, record) for the rows in use of a partition, of slots below `end`. Stripes lie far apart: the next
  // ones are asked for ahead.
  template <class Visit>
  void for_each(uint32_t partition, uint32_t end, const Visit& visit) const {
    constexpr uint32_t kAhead = 4 * kStripe;
    for (uint32_t first = 0; first < end; first += kStripe) {
      if (end - first > kAhead) {
        const auto* coming = reinterpret_cast<const char*>(&at(partition, first + kAhead));
        for (size_t line = 0; line < kStripe * sizeof(IdRecord); line += 64) __builtin_prefetch(coming + line);
      }
      const IdRecord* stripe = &at(partition, first);
      const uint32_t count = std::min(kStripe, end - first);
      for (uint32_t i = 0; i < count; ++i) {
        if (stripe[i].last != 0) visit(first + i, stripe[i]);
      }
    }
  }

  int32_t row(uint32_t partition, uint32_t slot) const { return static_cast<int32_t>(slot * partitions_ + partition); }

  // Keeps the records of slots below `used`; only memory that these touch is touched.
  void resize(uint32_t slots, uint32_t used) {
    IdRecords other(partitions_, slots, timed_);
    const auto count = static_cast<size_t>(stripes(std::min(used, slots)) * partitions_ * kStripe);
    if (count != 0) std::memcpy(other.records_.as<char>(), records_.as<char>(), count * sizeof(IdRecord));
    if (count != 0 && timed_) std::memcpy(other.times_.as<char>(), times_.as<char>(), count * sizeof(uint32_t));
    *this = std::move(other);
  }

  // Of records whose slots are below `slots`: what is resident.
  int64_t bytes(uint32_t slots) const { return stripes(slots) * partitions_ * kStripe * (timed_ ? 20 : 16); }

 private:
  static int64_t stripes(uint32_t slots) { return (int64_t{slots} + kStripe - 1) / kStripe; }
  size_t index(uint32_t partition, uint32_t slot) const {
    return (size_t{slot / kStripe} * partitions_ + partition) * kStripe + slot % kStripe;
  }
  void reserve(uint32_t slots) {
    const int64_t count = stripes(slots) * partitions_ * kStripe;
    records_ = ZeroedMemory(count * static_cast<int64_t>(sizeof(IdRecord)));
    if (timed_) times_ = ZeroedMemory(count * static_cast<int64_t>(sizeof(uint32_t)));
  }

  uint32_t partitions_;
  bool timed_;
  ZeroedMemory records_, times_;
};

}  // namespace megalith
