// Which coming batches use a row, and rows that coming batches use and that are not in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith {

// Coming batches, or groups of them, that use a row: 33 are told apart.
struct ExpectedUses {
  static constexpr uint32_t kReach = 32;
  static constexpr uint64_t kFirst = uint64_t{1} << 63;

  uint32_t first = 0;
  uint64_t bits = 0;  // the highest stands for group `first`, those below it for the groups that follow

  // The same, counted from another group: what is before it is forgotten.
  ExpectedUses from(uint32_t group) const {
    const auto passed = static_cast<int32_t>(group - first);
    if (passed < 0) return {group, passed < -63 ? 0 : bits >> -passed};
    return {group, passed > 63 ? 0 : bits << passed};
  }
  // What is further away than the last group counts as that.
  void add(uint32_t group) {
    const uint32_t ahead = group - first;
    bits |= kFirst >> (ahead < kReach ? ahead : kReach);
  }
  // The same in groups that are twice as large.
  ExpectedUses doubled() const {
    ExpectedUses pairs{first / 2, 0};
    for (uint32_t ahead = 0; ahead <= kReach; ++ahead) {
      if (bits << ahead & kFirst) pairs.add((first + ahead) / 2);
    }
    return pairs;
  }
};

// Rows by their permuted key, some 27 bytes each. Those whose batches have passed are dropped when room is needed.
class ExpectedRows {
 public:
  bool empty() const { return count_ == 0; }
  int64_t bytes() const { return static_cast<int64_t>(entries_.capacity() * sizeof(Entry)); }

  __attribute__((always_inline)) void prefetch(uint64_t key) const {
    if (count_ != 0) __builtin_prefetch(&entries_[home(key)], 1);
  }

  // Notes that a group uses a row; `now` is the group that comes first.
  void add(uint64_t key, uint32_t group, uint32_t now) {
    Entry& entry = room_for(key, now);
    ExpectedUses uses{now, 0};
    if (entry.key == key) uses = entry.uses().from(now);
    uses.add(group);
    keep(entry, key, uses);
  }

  // Notes all uses of a row, of which there are some.
  void put(uint64_t key, const ExpectedUses& uses) { keep(room_for(key, uses.first), key, uses); }

  // Takes a row out; it has no uses if it was not here.
  ExpectedUses take(uint64_t key);

  // Gives memory back that is no longer needed.
  void shrink(uint32_t now) {
    if (entries_.size() > 1024 && count_ * 8 < entries_.size()) drop_passed(now);
  }

  // Groups become twice as large; `now` is the one, of those before, that comes first.
  void double_groups(uint32_t now);

 private:
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  // The first group that uses the row, and those that follow: the next in the highest bit.
  struct Entry {
    uint64_t key = kNoKey;
    uint32_t first = 0, after = 0;

    ExpectedUses uses() const { return {first, ExpectedUses::kFirst | uint64_t{after} << 31}; }
  };

  size_t home(uint64_t key) const {
    return static_cast<size_t>((static_cast<unsigned __int128>(key * 0x9e3779b97f4a7c15ull) * entries_.size()) >> 64);
  }
  size_t next(size_t at) const { return at + 1 == entries_.size() ? 0 : at + 1; }
  size_t distance(size_t from, size_t to) const { return to >= from ? to - from : to + entries_.size() - from; }
  size_t find(uint64_t key) const {
    size_t at = home(key);
    while (entries_[at].key != key && entries_[at].key != kNoKey) at = next(at);
    return at;
  }
  // The entry of a row, or one that is free for it.
  Entry& room_for(uint64_t key, uint32_t now) {
    if ((count_ + 1) * 4 > entries_.size() * 3) drop_passed(now);
    return entries_[find(key)];
  }
  void keep(Entry& entry, uint64_t key, const ExpectedUses& uses) {
    const int skipped = __builtin_clzll(uses.bits);
    count_ += entry.key == kNoKey;
    entry = {key, uses.first + static_cast<uint32_t>(skipped), static_cast<uint32_t>(uses.bits << skipped << 1 >> 32)};
  }
  void drop_passed(uint32_t now);

  std::vector<Entry> entries_;
  size_t count_ = 0;
};

}  // namespace megalith
