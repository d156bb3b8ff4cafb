#include "ids/id_partition.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace megalith {
namespace {

constexpr int64_t kAhead = 32;  // ids whose memory is asked for together
constexpr size_t kCountedAhead = 8;
constexpr uint64_t kNothingProtected = uint64_t{1} << 32;

// Each use adds as much as the others of its batch: the sum depends on their number alone.
float added(float score, double weight) { return static_cast<float>(static_cast<double>(score) + weight); }

}  // namespace

IdPartition::IdPartition(int64_t table, const IdTableSettings& settings, IdRecords& records, uint32_t number,
                         uint32_t capacity, CounterBucket* buckets)
    : table_(table),
      settings_(&settings),
      records_(&records),
      number_(number),
      capacity_(capacity),
      index_(capacity, 1),
      counter_(buckets, static_cast<uint32_t>(settings.counter_buckets)) {}

void IdPartition::look_up(const IdBatch& batch, const uint32_t* positions, int64_t count, double weight,
                          std::vector<IdMiss>& misses) {
  uint64_t hashes[kAhead];
  const size_t missed = misses.size();
  for (int64_t first = 0; first < count; first += kAhead) {
    const int64_t some = std::min(kAhead, count - first);
    for (int64_t i = 0; i < some; ++i) {
      hashes[i] = hash_id(batch.values[positions[first + i]]);
      index_.prefetch(hashes[i]);
    }
    for (int64_t i = 0; i < some; ++i) {
      const uint32_t slot = index_.likely_slot(hashes[i]);
      if (slot != IdIndex::kNoSlot) records_->prefetch(number_, slot);
    }
    for (int64_t i = 0; i < some; ++i) {
      const uint32_t position = positions[first + i];
      const int64_t id = batch.values[position];
      const uint32_t slot = find(hashes[i], id);
      if (slot == IdIndex::kNoSlot) {
        batch.rows[position] = -1;
        misses.push_back({id, position});
        continue;
      }
      batch.rows[position] = records_->row(number_, slot);
      IdRecord& record = records_->at(number_, slot);
      note_use(record, batch.number, weight);
      if (records_->timed()) {
        uint32_t& time = records_->time(number_, slot);
        time = std::max(time, static_cast<uint32_t>(batch.times[position]));
      }
    }
  }
  counted_.lookups += count;
  counted_.hits += count - static_cast<int64_t>(misses.size() - missed);
}

void IdPartition::decide(const IdBatch& batch, double weight, std::vector<IdMiss>& misses, IdChanges& changes) {
  std::sort(misses.begin(), misses.end(), [](const IdMiss& a, const IdMiss& b) {
    return a.id != b.id ? a.id < b.id : a.position < b.position;
  });
  const bool counts = settings_->admission != AdmissionKind::kAlways;
  for (size_t first = 0, last; first < misses.size(); first = last) {
    const int64_t id = misses[first].id;
    if (counts && first + kCountedAhead < misses.size()) counter_.prefetch(hash_id(misses[first + kCountedAhead].id));
    IdUse use{id, batch.number, 0, 0};
    for (last = first; last < misses.size() && misses[last].id == id; ++last) {
      use.score = added(use.score, weight);
      if (records_->timed()) use.time = std::max(use.time, static_cast<uint32_t>(batch.times[misses[last].position]));
    }
    const uint64_t hash = hash_id(id);
    const auto occurrences = static_cast<int64_t>(last - first);
    if (!admits(id, hash, static_cast<uint64_t>(occurrences))) {
      counted_.refused += occurrences;
      continue;
    }
    uint32_t slot;
    if (size_ < capacity_) {
      slot = free_slot();
    } else {
      if (const int64_t* soon = queue_.soon(*records_, number_)) index_.prefetch(hash_id(*soon));
      slot = queue_.take(*records_, number_, high_, settings_->by_score != 0, batch.protected_from);
      if (slot == EvictionQueue::kNoSlot) {
        counted_.full += occurrences;
        continue;
      }
      leave(slot, LeavingReason::kBound, changes);
    }
    if (counts) counter_.forget(hash);
    begin(slot, hash, use);
    ++counted_.admitted;
    const int32_t row = records_->row(number_, slot);
    changes.begun.push_back({table_, row, id});
    for (size_t i = first; i < last; ++i) batch.rows[misses[i].position] = row;
  }
  queue_.end_batch();
}

bool IdPartition::admits(int64_t id, uint64_t hash, uint64_t occurrences) {
  if (settings_->admission == AdmissionKind::kAlways) return true;
  const uint64_t before = counter_.add(hash, occurrences);
  if (settings_->admission == AdmissionKind::kCount) {
    return before + occurrences >= static_cast<uint64_t>(settings_->admission_count);
  }
  const uint64_t state = mix64(static_cast<uint64_t>(id) + settings_->seed);
  for (uint64_t number = before + 1; number <= before + occurrences; ++number) {
    if (mix64(state + number * 0x9e3779b97f4a7c15ull) < settings_->probability_limit) return true;
  }
  return false;
}

// The lowest: memory that was not touched yet stays so.
uint32_t IdPartition::free_slot() {
  if (free_.empty()) return high_++;
  std::pop_heap(free_.begin(), free_.end(), std::greater<uint32_t>());
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void IdPartition::begin(uint32_t slot, uint64_t hash, const IdUse& use) {
  if (size_ == index_.room()) {
    // By an eighth: neither memory nor time jumps.
    rebuild_index(std::min(capacity_, size_ + size_ / 8 + 1));
  }
  set_use(slot, use);
  index_.insert(hash, slot);
  ++size_;
}

void IdPartition::set_use(uint32_t slot, const IdUse& use) {
  IdRecord& record = records_->at(number_, slot);
  record = {use.id, use.last, use.score};
  if (records_->timed()) records_->time(number_, slot) = use.time;
  queue_.note(eviction_rank(record, settings_->by_score != 0), use.id, slot);
}

// The slot is the caller's then.
void IdPartition::leave(uint32_t slot, LeavingReason reason, IdChanges& changes) {
  IdRecord& record = records_->at(number_, slot);
  changes.left.push_back({table_, record.id, records_->row(number_, slot), static_cast<int64_t>(reason)});
  ++counted_.left[static_cast<size_t>(reason)];
  index_.erase(hash_id(record.id), slot);
  record.last = 0;
  --size_;
}

void IdPartition::expire(uint32_t batch, uint64_t protected_from, int64_t time, double least_score,
                         IdChanges& changes) {
  struct ExpiredId {
    int64_t id;
    uint32_t slot;
    LeavingReason reason;
  };
  if (settings_->expire_batches == 0 && settings_->expire_seconds == 0 && least_score <= 0) return;
  std::vector<ExpiredId> expired;
  for_each([&](uint32_t slot, const IdRecord& record) {
    if (record.last >= protected_from) return;
    if (settings_->expire_batches != 0 && int64_t{batch} - record.last > settings_->expire_batches) {
      expired.push_back({record.id, slot, LeavingReason::kSteps});
    } else if (settings_->expire_seconds != 0 && time - records_->time(number_, slot) > settings_->expire_seconds) {
      expired.push_back({record.id, slot, LeavingReason::kTime});
    } else if (static_cast<double>(record.score) < least_score) {
      expired.push_back({record.id, slot, LeavingReason::kScore});
    }
  });
  std::sort(expired.begin(), expired.end(), [](const ExpiredId& a, const ExpiredId& b) { return a.id < b.id; });
  for (const ExpiredId& one : expired) {
    leave(one.slot, one.reason, changes);
    free_.push_back(one.slot);
    std::push_heap(free_.begin(), free_.end(), std::greater<uint32_t>());
  }
}

void IdPartition::shrink(uint32_t capacity, IdChanges& changes) {
  queue_.clear();
  while (size_ > capacity) {
    leave(queue_.take(*records_, number_, high_, settings_->by_score != 0, kNothingProtected), LeavingReason::kShrunk,
          changes);
  }
  // Rows beyond the bound move into free ones below it, the lowest to the lowest.
  const uint32_t end = high_;
  high_ = std::min(high_, capacity);
  free_.clear();
  for (uint32_t slot = 0; slot < high_; ++slot) {
    if (records_->at(number_, slot).last == 0) free_.push_back(slot);
  }
  for (uint32_t from = high_; from < end; ++from) {
    IdRecord& record = records_->at(number_, from);
    if (record.last == 0) continue;
    const uint32_t to = free_slot();
    set_use(to, use_at(from));
    changes.moved.push_back({table_, record.id, records_->row(number_, from), records_->row(number_, to)});
    record.last = 0;
  }
  free_.shrink_to_fit();
  queue_.clear();
}

void IdPartition::reserve(uint32_t capacity) {
  capacity_ = capacity;
  rebuild_index(std::min(capacity_, size_ + size_ / 8 + 1));
}

void IdPartition::rebuild_index(uint32_t room) {
  IdIndex index(capacity_, room);
  for_each([&](uint32_t slot, const IdRecord& record) { index.insert(hash_id(record.id), slot); });
  index_ = std::move(index);
}

int32_t IdPartition::load(const IdUse& use, IdChanges& changes) {
  const uint64_t hash = hash_id(use.id);
  const bool by_score = settings_->by_score != 0;
  const uint32_t known = find(hash, use.id);
  queue_.reconsider();
  if (known != IdIndex::kNoSlot) {
    set_use(known, use);
    return records_->row(number_, known);
  }
  uint32_t slot;
  if (size_ < capacity_) {
    slot = free_slot();
  } else {
    slot = queue_.take(*records_, number_, high_, by_score, kNothingProtected);
    const IdRecord& least = records_->at(number_, slot);
    const uint64_t rank = eviction_rank({use.id, use.last, use.score}, by_score);
    const uint64_t least_rank = eviction_rank(least, by_score);
    if (rank < least_rank || (rank == least_rank && use.id < least.id)) {
      queue_.note(least_rank, least.id, slot);
      changes.left.push_back({table_, use.id, -1, static_cast<int64_t>(LeavingReason::kBound)});
      ++counted_.left[static_cast<size_t>(LeavingReason::kBound)];
      return -1;
    }
    leave(slot, LeavingReason::kBound, changes);
  }
  begin(slot, hash, use);
  return records_->row(number_, slot);
}

int32_t IdPartition::row_of(int64_t id) const {
  const uint32_t slot = find(hash_id(id), id);
  return slot == IdIndex::kNoSlot ? -1 : records_->row(number_, slot);
}

void IdPartition::scale_scores(int64_t halvings) {
  queue_.clear();
  for (uint32_t slot = 0; slot < high_; ++slot) {
    float& score = records_->at(number_, slot).score;
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    // By the exponent: nothing is rounded, and what is too small for one is 0.
    bits = (bits >> 23) > static_cast<uint64_t>(halvings) ? bits - (static_cast<uint32_t>(halvings) << 23) : 0;
    std::memcpy(&score, &bits, sizeof score);
  }
}

}  // namespace megalith
