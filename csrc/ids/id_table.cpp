#include "ids/id_table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace megalith {

IdTable::IdTable(int64_t number, const IdTableSettings& settings, PartitionRange here)
    : settings_(settings),
      here_(here),
      records_(static_cast<uint32_t>(here.count()), capacity_of(0, settings.bound), settings.timed != 0),
      counter_(here.count() * settings.counter_buckets * static_cast<int64_t>(sizeof(CounterBucket))) {
  // A counter of a given size takes it at once: hashed ids would touch all of it soon.
  if (counter_.bytes() != 0) std::memset(counter_.as<char>(), 0, static_cast<size_t>(counter_.bytes()));
  partitions_.reserve(static_cast<size_t>(here.count()));
  for (int64_t p = here.first; p < here.last; ++p) {
    const int64_t before = (p - here.first) * settings.counter_buckets;
    CounterBucket* buckets = counter_.bytes() == 0 ? nullptr : counter_.as<CounterBucket>() + before;
    partitions_.emplace_back(number, settings_, records_, static_cast<uint32_t>(p - here.first),
                             capacity_of(p, settings.bound), buckets);
  }
}

void IdTable::begin_segment(int64_t segment) {
  if (segment <= segment_) return;
  for (IdPartition& partition : partitions_) partition.scale_scores((segment - segment_) * 64);
  segment_ = segment;
}

void IdTable::search(const IdBatch& batch, int64_t first, int64_t last) const {
  constexpr int64_t kAhead = 32;
  uint64_t hashes[kAhead];
  const auto here = [&](uint64_t hash) -> const IdPartition& {
    return partitions_[static_cast<size_t>(id_partition(hash) - here_.first)];
  };
  for (int64_t begin = first; begin < last; begin += kAhead) {
    const int64_t some = std::min(kAhead, last - begin);
    for (int64_t i = 0; i < some; ++i) {
      hashes[i] = hash_id(batch.values[begin + i]);
      if (!here_.has(id_partition(hashes[i]))) {
        throw std::runtime_error("id " + std::to_string(batch.values[begin + i]) + " is of partition " +
                                 std::to_string(id_partition(hashes[i])) + ", which another process has");
      }
      here(hashes[i]).prefetch_index(hashes[i]);
    }
    for (int64_t i = 0; i < some; ++i) here(hashes[i]).prefetch_record(hashes[i]);
    for (int64_t i = 0; i < some; ++i) {
      batch.rows[begin + i] = here(hashes[i]).row_of(hashes[i], batch.values[begin + i]);
    }
  }
}

void IdTable::confirm(const IdBatch& batch, int64_t first, int64_t last, double weight) {
  constexpr int64_t kAhead = 16;
  const auto partitions = static_cast<uint32_t>(here_.count());
  const uint32_t end = high() * partitions;
  // All partitions are a power of two: no division.
  constexpr auto kAll = static_cast<uint32_t>(kIdPartitions);
  const bool all = partitions == kAll;
  const auto place = [&](uint32_t row) {
    return all ? std::pair(row % kAll, row / kAll) : std::pair(row % partitions, row / partitions);
  };
  int64_t hits = 0;
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) {
      const auto coming = static_cast<uint32_t>(batch.rows[i + kAhead]);
      if (coming < end) {
        const auto [partition, slot] = place(coming);
        records_.prefetch(partition, slot);
      }
    }
    const auto row = static_cast<uint32_t>(batch.rows[i]);
    if (row >= end) {
      batch.rows[i] = -1;
      continue;
    }
    const auto [partition, slot] = place(row);
    IdRecord& record = records_.at(partition, slot);
    if (record.id != batch.values[i] || record.last == 0) {
      batch.rows[i] = -1;
      continue;
    }
    ++hits;
    note_use(record, batch.number, weight);
    if (records_.timed()) {
      uint32_t& time = records_.time(partition, slot);
      time = std::max(time, static_cast<uint32_t>(batch.times[i]));
    }
  }
  // Counts of a table are those of its partitions together.
  partitions_.front().count_hits(hits);
}

void IdTable::change_bound(int64_t bound, IdChanges& changes) {
  for (int64_t p = here_.first; p < here_.last; ++p) partition(p).shrink(capacity_of(p, bound), changes);
  records_.resize(capacity_of(0, bound), high());
  settings_.bound = bound;
  for (int64_t p = here_.first; p < here_.last; ++p) partition(p).reserve(capacity_of(p, bound));
}

int64_t IdTable::scan(const int64_t* after, int64_t room, const IdBlockArrays& out) const {
  struct ScannedId {
    int64_t id;
    const IdPartition* partition;
    uint32_t slot;
  };
  const auto smaller = [](const ScannedId& a, const ScannedId& b) { return a.id < b.id; };
  // The smallest so far, and as many again before the larger ones are dropped.
  std::vector<ScannedId> kept;
  bool dropped = false;
  const auto cut = [&] {
    if (static_cast<int64_t>(kept.size()) <= room) return;
    std::nth_element(kept.begin(), kept.begin() + (room - 1), kept.end(), smaller);
    kept.resize(static_cast<size_t>(room));
    dropped = true;
  };
  for (const IdPartition& partition : partitions_) {
    partition.for_each([&](uint32_t slot, const IdRecord& record) {
      if (after != nullptr && record.id <= *after) return;
      // After a cut the largest of those kept is the last.
      if (dropped && record.id >= kept[static_cast<size_t>(room - 1)].id) return;
      kept.push_back({record.id, &partition, slot});
      if (static_cast<int64_t>(kept.size()) >= 2 * room) cut();
    });
  }
  cut();
  std::sort(kept.begin(), kept.end(), smaller);
  for (size_t i = 0; i < kept.size(); ++i) {
    const IdUse use = kept[i].partition->use_at(kept[i].slot);
    out.ids[i] = use.id;
    out.rows[i] = kept[i].partition->row_at(kept[i].slot);
    out.last[i] = use.last;
    out.scores[i] = use.score;
    out.times[i] = use.time;
  }
  return static_cast<int64_t>(kept.size());
}

void IdTable::load(const IdBlockArrays& block, int64_t count, IdChanges& changes) {
  const auto home = [&](int64_t i) { return id_partition(hash_id(block.ids[i])); };
  for (int64_t i = 0; i < count; ++i) {
    block.rows[i] = -1;
    if (!here_.has(home(i))) continue;
    const auto last = static_cast<uint32_t>(block.last[i]), time = static_cast<uint32_t>(block.times[i]);
    block.rows[i] = partition(home(i)).load({block.ids[i], last, block.scores[i], time}, changes);
  }
  // Those that left for others of this block have no row.
  for (int64_t i = 0; i < count; ++i) {
    if (here_.has(home(i))) block.rows[i] = partition(home(i)).row_of(block.ids[i]);
  }
}

IdStatistics IdTable::statistics() const {
  IdStatistics sum;
  for (const IdPartition& partition : partitions_) {
    const IdStatistics& own = partition.statistics();
    sum.lookups += own.lookups;
    sum.hits += own.hits;
    sum.admitted += own.admitted;
    sum.refused += own.refused;
    sum.full += own.full;
    for (size_t reason = 0; reason < 5; ++reason) sum.left[reason] += own.left[reason];
  }
  return sum;
}

int64_t IdTable::size() const {
  int64_t size = 0;
  for (const IdPartition& partition : partitions_) size += partition.size();
  return size;
}

int64_t IdTable::index_bytes() const {
  int64_t bytes = 0;
  for (const IdPartition& partition : partitions_) bytes += partition.index_bytes();
  return bytes;
}

int64_t IdTable::use_bytes() const { return records_.bytes(high()); }

int64_t IdTable::queue_bytes() const {
  auto bytes = static_cast<int64_t>(sizeof *this + partitions_.capacity() * sizeof(IdPartition));
  for (const IdPartition& partition : partitions_) bytes += partition.queue_bytes();
  return bytes;
}

uint32_t IdTable::high() const {
  uint32_t high = 0;
  for (const IdPartition& partition : partitions_) high = std::max(high, partition.high());
  return high;
}

}  // namespace megalith
