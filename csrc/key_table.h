// An open-addressing hash table from 64-bit keys to 64-bit values; key 0 marks a free slot.
//
// Its memory is anonymous (huge pages where the kernel grants them: most lookups miss the cache, and then the
// page walk costs as much as the memory) or a mapped file, which the kernel may write out under pressure.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "text_token.h"

namespace megalith {

struct Entry {
  uint64_t key;
  uint64_t value;
};

[[noreturn]] inline void throw_errno(int error) { throw std::system_error(error, std::generic_category()); }

class KeyTable {
 public:
  static constexpr int64_t kMinimumSlots = 512;

  KeyTable() = default;
  explicit KeyTable(int64_t slots, const char* file = nullptr) : num_slots_(slots) {
    void* memory = MAP_FAILED;
    if (file) {
      const int handle = ::open(file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      if (handle < 0) throw_errno(errno);
      // Space is claimed now: a full disk is an error here and not a signal at some later write.
#if defined(__linux__)
      const int error = ::posix_fallocate(handle, 0, bytes());
#else
      const int error = ::ftruncate(handle, bytes()) == 0 ? 0 : errno;
#endif
      if (error == 0) memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
      const int mapping_error = errno;
      ::close(handle);
      ::unlink(file);
      if (error != 0) throw_errno(error);
      if (memory == MAP_FAILED) throw_errno(mapping_error);
    } else {
      memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) throw_errno(ENOMEM);
#if defined(MADV_HUGEPAGE)
      if (bytes() >= (4 << 20)) ::madvise(memory, bytes(), MADV_HUGEPAGE);
#endif
    }
    slots_ = static_cast<Entry*>(memory);
  }
  KeyTable(KeyTable&& other) noexcept { swap(other); }
  KeyTable& operator=(KeyTable&& other) noexcept {
    swap(other);
    return *this;
  }
  ~KeyTable() {
    if (slots_) ::munmap(slots_, bytes());
  }

  static int64_t slots_for(int64_t entries) {
    int64_t slots = kMinimumSlots;
    while (slots * 3 / 4 < entries) slots *= 2;
    return slots;
  }

  int64_t bytes() const { return num_slots_ * static_cast<int64_t>(sizeof(Entry)); }
  int64_t num_slots() const { return num_slots_; }
  int64_t size() const { return size_; }
  bool has_room(int64_t entries) const { return size_ + entries <= num_slots_ * 3 / 4; }

  void prefetch(uint64_t key) const { __builtin_prefetch(&slots_[home(key)], 1); }

  // The entry of `key`, made with value 0 if it is new.
  Entry& at(uint64_t key) {
    uint64_t slot = home(key);
    while (slots_[slot].key != key) {
      if (slots_[slot].key == 0) {
        slots_[slot].key = key;
        ++size_;
        break;
      }
      slot = (slot + 1) & (static_cast<uint64_t>(num_slots_) - 1);
    }
    return slots_[slot];
  }

  uint64_t find(uint64_t key, uint64_t otherwise) const {
    uint64_t slot = home(key);
    while (slots_[slot].key != key) {
      if (slots_[slot].key == 0) return otherwise;
      slot = (slot + 1) & (static_cast<uint64_t>(num_slots_) - 1);
    }
    return slots_[slot].value;
  }

  void insert_all(const KeyTable& other) {
    for (int64_t i = 0; i < other.num_slots_; ++i) {
      if (other.slots_[i].key) at(other.slots_[i].key).value = other.slots_[i].value;
    }
  }

  // Moves the entries to the front, where they can be sorted without further memory. The table is no longer
  // one afterwards: it can only be read through the result and dropped.
  Entry* compact() {
    int64_t kept = 0;
    for (int64_t i = 0; i < num_slots_; ++i) {
      if (slots_[i].key) slots_[kept++] = slots_[i];
    }
    return slots_;
  }

 private:
  uint64_t home(uint64_t key) const { return mix64(key) & (static_cast<uint64_t>(num_slots_) - 1); }
  void swap(KeyTable& other) {
    std::swap(slots_, other.slots_);
    std::swap(num_slots_, other.num_slots_);
    std::swap(size_, other.size_);
  }

  Entry* slots_ = nullptr;
  int64_t num_slots_ = 0;
  int64_t size_ = 0;
};

}  // namespace megalith
