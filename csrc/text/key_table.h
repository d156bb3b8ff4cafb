// An open-addressing hash table from 64-bit keys to 64-bit values; key 0 marks a free bucket.
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

#include "text/token.h"

namespace megalith {

struct KeyEntry {
  uint64_t key;
  uint64_t value;
};

[[noreturn]] inline void throw_errno(int error) { throw std::system_error(error, std::generic_category()); }

class KeyTable {
 public:
  static constexpr int kAhead = 16;  // keys whose buckets are best prefetched in advance
  static constexpr int64_t kMinimumBuckets = 512;

  KeyTable() = default;
  explicit KeyTable(int64_t buckets, const char* file = nullptr) : num_buckets_(buckets) {
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
    buckets_ = static_cast<KeyEntry*>(memory);
  }
  KeyTable(KeyTable&& other) noexcept { swap(other); }
  KeyTable& operator=(KeyTable&& other) noexcept {
    swap(other);
    return *this;
  }
  ~KeyTable() {
    if (buckets_) ::munmap(buckets_, bytes());
  }

  static int64_t buckets_for(int64_t entries) {
    int64_t buckets = kMinimumBuckets;
    while (buckets * 3 / 4 < entries) buckets *= 2;
    return buckets;
  }

  int64_t bytes() const { return num_buckets_ * static_cast<int64_t>(sizeof(KeyEntry)); }
  int64_t num_buckets() const { return num_buckets_; }
  int64_t size() const { return size_; }
  bool has_room(int64_t entries) const { return size_ + entries <= num_buckets_ * 3 / 4; }

  void prefetch(uint64_t key) const { __builtin_prefetch(&buckets_[home(key)], 1); }

  // The entry of `key`, made with value 0 if it is new.
  KeyEntry& at(uint64_t key) {
    uint64_t bucket = home(key);
    while (buckets_[bucket].key != key) {
      if (buckets_[bucket].key == 0) {
        buckets_[bucket].key = key;
        ++size_;
        break;
      }
      bucket = (bucket + 1) & (static_cast<uint64_t>(num_buckets_) - 1);
    }
    return buckets_[bucket];
  }

  uint64_t find(uint64_t key, uint64_t otherwise) const {
    uint64_t bucket = home(key);
    while (buckets_[bucket].key != key) {
      if (buckets_[bucket].key == 0) return otherwise;
      bucket = (bucket + 1) & (static_cast<uint64_t>(num_buckets_) - 1);
    }
    return buckets_[bucket].value;
  }

  void insert_all(const KeyTable& other) {
    for (int64_t i = 0; i < other.num_buckets_; ++i) {
      if (other.buckets_[i].key) at(other.buckets_[i].key).value = other.buckets_[i].value;
    }
  }

  // Moves the entries to the front, where they can be sorted without further memory. The table is no longer
  // one afterwards: it can only be read through the result and dropped.
  KeyEntry* compact() {
    int64_t kept = 0;
    for (int64_t i = 0; i < num_buckets_; ++i) {
      if (buckets_[i].key) buckets_[kept++] = buckets_[i];
    }
    return buckets_;
  }

 private:
  uint64_t home(uint64_t key) const { return mix64(key) & (static_cast<uint64_t>(num_buckets_) - 1); }
  void swap(KeyTable& other) {
    std::swap(buckets_, other.buckets_);
    std::swap(num_buckets_, other.num_buckets_);
    std::swap(size_, other.size_);
  }

  KeyEntry* buckets_ = nullptr;
  int64_t num_buckets_ = 0;
  int64_t size_ = 0;
};

}  // namespace megalith
