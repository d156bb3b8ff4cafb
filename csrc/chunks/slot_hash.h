// From the ids of a table to slots, in a hash of 8-byte entries: 10.5 to 12 bytes an id.
//
// Large tables have up to 256 parts, each at most 76% full and grown by an eighth on its own, so neither memory nor time
// jumps.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace megalith {

// Entries of 8 bytes straight from the system where they are many: an allocator would keep the pieces.
class SlotEntries {
 public:
  SlotEntries() = default;
  explicit SlotEntries(uint32_t capacity) : capacity_(capacity) {
    if (capacity_ == 0) return;
    void* memory;
    if (is_large()) {
      memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) memory = nullptr;
#if defined(MADV_HUGEPAGE)
      if (memory != nullptr && bytes() >= size_t{8} << 20) madvise(memory, bytes(), MADV_HUGEPAGE);
#endif
    } else {
      memory = std::calloc(capacity_, 8);
    }
    if (memory == nullptr) throw std::bad_alloc();
    at_ = static_cast<uint64_t*>(memory);
  }
  SlotEntries(const SlotEntries&) = delete;
  SlotEntries& operator=(const SlotEntries&) = delete;
  SlotEntries(SlotEntries&& other) noexcept { swap(other); }
  SlotEntries& operator=(SlotEntries&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SlotEntries() {
    if (at_ == nullptr) return;
    if (is_large()) {
      munmap(at_, bytes());
    } else {
      std::free(at_);
    }
  }

  uint64_t& operator[](uint32_t at) const { return at_[at]; }
  uint32_t capacity() const { return capacity_; }
  size_t bytes() const { return size_t{capacity_} * 8; }

 private:
  bool is_large() const { return capacity_ >= 1u << 11; }
  void swap(SlotEntries& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(capacity_, other.capacity_);
  }

  uint64_t* at_ = nullptr;  // (row, slot); 0 is empty, since no record has slot 0
  uint32_t capacity_ = 0;
};

class SlotHash {
 public:
  // For ids below `rows`.
  explicit SlotHash(int64_t rows) {
    while (bits_ < 8 && rows >> (bits_ + 14) > 0) ++bits_;
    parts_.resize(size_t{1} << bits_);
  }

  // Room for just the ids that were announced before, none of which is here yet.
  void announce(uint32_t row) { ++part_of(hashed(row)).count; }
  void make_room() {
    for (HashPart& part : parts_) {
      part.entries = SlotEntries(static_cast<uint32_t>(capacity_for(part.count)));
      part.count = 0;
    }
  }

  static int64_t bytes_for(int64_t count) { return 8 * capacity_for(count); }

  uint32_t find(uint32_t row) const {
    const uint64_t hash = hashed(row);
    const HashPart& part = part_of(hash);
    if (part.count == 0) return 0;
    for (uint32_t at = home(part, hash);; at = next(part, at)) {
      const uint64_t entry = part.entries[at];
      if (entry >> 32 == row && entry != 0) return static_cast<uint32_t>(entry);
      if (entry == 0) return 0;
    }
  }

  void set(uint32_t row, uint32_t slot) {
    const uint64_t hash = hashed(row), entry = uint64_t{row} << 32 | slot;
    HashPart& part = part_of(hash);
    for (bool fits = part.entries.capacity() > 0;; fits = true) {
      uint32_t at = fits ? home(part, hash) : 0;
      while (fits && part.entries[at] != 0 && part.entries[at] >> 32 != row) at = next(part, at);
      const bool is_new = !fits || part.entries[at] == 0;
      if (is_new && (part.count + 1) * uint64_t{100} > part.entries.capacity() * uint64_t{76}) {
        grow(part);
        continue;
      }
      part.entries[at] = entry;
      part.count += is_new;
      return;
    }
  }

  void erase(uint32_t row) {
    const uint64_t hash = hashed(row);
    HashPart& part = part_of(hash);
    if (part.count == 0) return;
    uint32_t at = home(part, hash);
    for (; part.entries[at] == 0 || part.entries[at] >> 32 != row; at = next(part, at)) {
      if (part.entries[at] == 0) return;
    }
    // Those after it move up, unless they are where they belong: no marker of a deletion is left behind.
    for (uint32_t gap = at;;) {
      at = next(part, at);
      const uint64_t entry = part.entries[at];
      if (entry == 0) {
        part.entries[gap] = 0;
        break;
      }
      const uint32_t wanted = home(part, hashed(static_cast<uint32_t>(entry >> 32)));
      if (distance(part, wanted, at) >= distance(part, gap, at)) {
        part.entries[gap] = entry;
        gap = at;
      }
    }
    --part.count;
  }

  // Calls body(row, slot), which may change the slot.
  template <class Body>
  void for_each(Body body) const {
    for_each_of(0, 1, body);
  }

  // The same for one of so many pieces, which together have every row once.
  template <class Body>
  void for_each_of(int64_t piece, int64_t pieces, Body& body) const {
    const auto count = static_cast<int64_t>(parts_.size());
    for (int64_t p = count * piece / pieces; p < count * (piece + 1) / pieces; ++p) {
      const HashPart& part = parts_[static_cast<size_t>(p)];
      for (uint32_t at = 0; part.count > 0 && at < part.entries.capacity(); ++at) {
        uint64_t& entry = part.entries[at];
        if (entry == 0) continue;
        auto slot = static_cast<uint32_t>(entry);
        body(static_cast<uint32_t>(entry >> 32), slot);
        entry = entry >> 32 << 32 | slot;
      }
    }
  }

  // Always inline: GCC takes calls of a function that does nothing but this for useless, and drops them.
  __attribute__((always_inline)) void prefetch(uint32_t row) const {
    const uint64_t hash = hashed(row);
    const HashPart& part = part_of(hash);
    if (part.count) __builtin_prefetch(&part.entries[home(part, hash)]);
  }

  int64_t size() const {
    int64_t total = 0;
    for (const HashPart& part : parts_) total += part.count;
    return total;
  }
  int64_t bytes() const {
    auto total = static_cast<int64_t>(parts_.size() * sizeof(HashPart));
    for (const HashPart& part : parts_) total += static_cast<int64_t>(part.entries.bytes());
    return total;
  }

 private:
  struct HashPart {
    SlotEntries entries;
    uint32_t count = 0;
  };

  static int64_t capacity_for(int64_t count) { return count == 0 ? 0 : (count * 100 + 75) / 76; }
  static uint64_t hashed(uint32_t row) { return (row + uint64_t{1}) * 0x9e3779b97f4a7c15ull; }
  // The highest bits choose the part, those after it the place.
  const HashPart& part_of(uint64_t hash) const { return parts_[bits_ ? hash >> (64 - bits_) : 0]; }
  HashPart& part_of(uint64_t hash) { return parts_[bits_ ? hash >> (64 - bits_) : 0]; }
  uint32_t home(const HashPart& part, uint64_t hash) const {
    return static_cast<uint32_t>((hash << bits_ >> 32) * part.entries.capacity() >> 32);
  }
  static uint32_t next(const HashPart& part, uint32_t at) { return at + 1 == part.entries.capacity() ? 0 : at + 1; }
  static uint32_t distance(const HashPart& part, uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + part.entries.capacity() - from;
  }

  void grow(HashPart& part) const {
    const uint32_t before = part.entries.capacity();
    HashPart larger;
    larger.entries = SlotEntries(before < 16 ? 16 : before + before / 8);
    larger.count = part.count;
    for (uint32_t at = 0; at < before; ++at) {
      const uint64_t entry = part.entries[at];
      if (entry == 0) continue;
      uint32_t to = home(larger, hashed(static_cast<uint32_t>(entry >> 32)));
      while (larger.entries[to] != 0) to = next(larger, to);
      larger.entries[to] = entry;
    }
    part = std::move(larger);
  }

  int bits_ = 0;
  std::vector<HashPart> parts_;
};

}  // namespace megalith
