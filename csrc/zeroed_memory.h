// Zeroed memory that goes back to the system when it is dropped: pages of its own where it is large.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace megalith {

// Large memory is not resident before it is touched, and on huge pages where there are any.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  explicit ZeroedMemory(int64_t bytes) : bytes_(rounded(static_cast<size_t>(bytes), 64)) {
    if (bytes_ == 0) return;
    if (!is_large()) {
      at_ = std::aligned_alloc(64, bytes_);
      if (at_ == nullptr) throw std::bad_alloc();
      std::memset(at_, 0, bytes_);
      return;
    }
    bytes_ = rounded(bytes_, kPage);
    at_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) {
      at_ = nullptr;
      throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    madvise(at_, bytes_, MADV_HUGEPAGE);
#endif
  }
  ZeroedMemory(ZeroedMemory&& other) noexcept { swap(other); }
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ZeroedMemory() {
    if (at_ == nullptr) return;
    if (is_large()) {
      munmap(at_, bytes_);
    } else {
      std::free(at_);
    }
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(at_);
  }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  // Below it an allocator packs pieces closer than pages would; what it keeps of pieces that were outgrown is little.
  static constexpr size_t kLarge = 1 << 14;
  static constexpr size_t kPage = 4096;

  static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
  bool is_large() const { return bytes_ >= kLarge; }
  void swap(ZeroedMemory& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
  }

  void* at_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace megalith
