// Where the rows of a tiered table lie on disk: from a key to the number of a record, 10.5 to 12 bytes a row.
//
// Keys are permuted first, so that any set of ids spreads evenly. The low byte chooses one of 256 tables, the rest of
// the key is kept in 32 bits: an entry is 8 bytes and yet exact. A table is at most 76% full, or searches would be long,
// and grows by an eighth, one at a time, so neither memory nor time jumps.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace megalith {

// A permutation of the keys below 2^bits, 16 <= bits <= 40.
class KeyPermutation {
 public:
  explicit KeyPermutation(int bits = 40) : bits_(bits), mask_((uint64_t{1} << bits) - 1) {
    inverse_ = inverse_of(kFactor);
  }

  static int bits_for(uint64_t num_keys) {
    int bits = 16;
    while (bits < 64 && (uint64_t{1} << bits) < num_keys) ++bits;
    return bits;
  }

  uint64_t operator()(uint64_t key) const { return fold((fold(key * kFactor & mask_)) * kFactor & mask_); }
  uint64_t inverse(uint64_t permuted) const { return fold(fold(permuted) * inverse_ & mask_) * inverse_ & mask_; }
  uint64_t mask() const { return mask_; }

 private:
  static constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ull;

  // Its own inverse: the upper half of the bits does not change.
  uint64_t fold(uint64_t x) const { return x ^ (x >> ((bits_ + 1) / 2)); }

  static uint64_t inverse_of(uint64_t odd) {
    uint64_t inverse = odd;  // right in three bits; each round doubles them
    for (int round = 0; round < 5; ++round) inverse *= 2 - odd * inverse;
    return inverse;
  }

  int bits_;
  uint64_t mask_, inverse_;
};

// Permuted keys to record numbers. No record has the number `kNone`.
class KeyIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  KeyIndex() = default;
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;
  ~KeyIndex() {
    for (Shard& shard : shards_) release(shard);
  }

  uint32_t find(uint64_t permuted) const {
    const Shard& shard = shards_[permuted & 255];
    if (shard.count == 0) return kNone;
    const uint32_t key = static_cast<uint32_t>(permuted >> 8);
    for (uint32_t at = home(shard, key);; at = next(shard, at)) {
      const uint64_t entry = shard.entries[at];
      if (entry == kEmpty) return kNone;
      if (entry >> 32 == key) return static_cast<uint32_t>(entry);
    }
  }

  // Returns the record that the key had before, or kNone.
  uint32_t set(uint64_t permuted, uint32_t record) {
    Shard& shard = shards_[permuted & 255];
    const uint32_t key = static_cast<uint32_t>(permuted >> 8);
    if ((shard.count + 1) * uint64_t{100} > shard.capacity * uint64_t{76}) grow(shard);
    uint32_t at = home(shard, key);
    for (; shard.entries[at] != kEmpty; at = next(shard, at)) {
      if (shard.entries[at] >> 32 == key) {
        const uint32_t before = static_cast<uint32_t>(shard.entries[at]);
        shard.entries[at] = uint64_t{key} << 32 | record;
        return before;
      }
    }
    shard.entries[at] = uint64_t{key} << 32 | record;
    ++shard.count;
    return kNone;
  }

  // Returns the record that the key had, or kNone.
  uint32_t erase(uint64_t permuted) {
    Shard& shard = shards_[permuted & 255];
    if (shard.count == 0) return kNone;
    const uint32_t key = static_cast<uint32_t>(permuted >> 8);
    uint32_t at = home(shard, key);
    for (; shard.entries[at] == kEmpty || shard.entries[at] >> 32 != key; at = next(shard, at)) {
      if (shard.entries[at] == kEmpty) return kNone;
    }
    const uint32_t record = static_cast<uint32_t>(shard.entries[at]);
    // Those after it move up, unless they are where they belong: no marker of a deletion is left behind.
    for (uint32_t gap = at;;) {
      at = next(shard, at);
      const uint64_t entry = shard.entries[at];
      if (entry == kEmpty) {
        shard.entries[gap] = kEmpty;
        break;
      }
      const uint32_t wanted = home(shard, static_cast<uint32_t>(entry >> 32));
      if (distance(shard, wanted, at) >= distance(shard, gap, at)) {
        shard.entries[gap] = entry;
        gap = at;
      }
    }
    --shard.count;
    return record;
  }

  void prefetch(uint64_t permuted) const {
    const Shard& shard = shards_[permuted & 255];
    if (shard.count) __builtin_prefetch(shard.entries + home(shard, static_cast<uint32_t>(permuted >> 8)));
  }

  int64_t size() const {
    int64_t total = 0;
    for (const Shard& shard : shards_) total += shard.count;
    return total;
  }
  int64_t bytes() const {
    int64_t total = sizeof *this;
    for (const Shard& shard : shards_) total += int64_t{8} * shard.capacity;
    return total;
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Shard {
    uint64_t* entries = nullptr;
    uint32_t capacity = 0, count = 0;
  };

  static uint32_t home(const Shard& shard, uint32_t key) {
    // Keys are a permutation's upper bits: any bits of them serve, mixed once more for small tables.
    return static_cast<uint32_t>((uint64_t{key * 0x9e3779b1u} * shard.capacity) >> 32);
  }
  static uint32_t next(const Shard& shard, uint32_t at) { return at + 1 == shard.capacity ? 0 : at + 1; }
  static uint32_t distance(const Shard& shard, uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + shard.capacity - from;
  }

  static void grow(Shard& shard) {
    Shard larger;
    larger.capacity = shard.capacity < 16 ? 16 : shard.capacity + shard.capacity / 8;
    larger.entries = allocate(larger.capacity);
    for (uint32_t at = 0; at < larger.capacity; ++at) larger.entries[at] = kEmpty;
    larger.count = shard.count;
    for (uint32_t at = 0; at < shard.capacity; ++at) {
      const uint64_t entry = shard.entries[at];
      if (entry == kEmpty) continue;
      uint32_t to = home(larger, static_cast<uint32_t>(entry >> 32));
      while (larger.entries[to] != kEmpty) to = next(larger, to);
      larger.entries[to] = entry;
    }
    release(shard);
    shard = larger;
  }

  // Straight from the system where it is large: an allocator would keep the pieces that tables have grown out of.
  static bool is_large(uint32_t capacity) { return capacity >= 1u << 13; }

  static uint64_t* allocate(uint32_t capacity) {
    const size_t bytes = size_t{capacity} * 8;
    void* memory = nullptr;
    if (is_large(capacity)) {
      memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) memory = nullptr;
#if defined(MADV_HUGEPAGE)
      if (memory != nullptr) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    } else {
      memory = std::malloc(bytes);
    }
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<uint64_t*>(memory);
  }

  static void release(const Shard& shard) {
    if (is_large(shard.capacity)) {
      munmap(shard.entries, size_t{shard.capacity} * 8);
    } else {
      std::free(shard.entries);
    }
  }

  Shard shards_[256];
};

}  // namespace megalith
