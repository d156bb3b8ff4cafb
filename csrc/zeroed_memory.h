// Zeroed memory that goes back to the system when it is dropped: pages of its own where it is large.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "page_memory.h"

namespace megalith {

// Large memory is not resident before it is touched, and on huge pages where there are any.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  explicit ZeroedMemory(int64_t bytes) : bytes_(rounded(bytes, kLine)) {
    if (bytes_ == 0) return;
    if (bytes_ >= kLarge) {
      bytes_ = rounded(bytes_, kPage);
      PageMemory(bytes_).swap(pages_);
      at_ = pages_.as<void>();
      return;
    }
    at_ = std::aligned_alloc(kLine, static_cast<size_t>(bytes_));
    if (at_ == nullptr) throw std::bad_alloc();
    std::memset(at_, 0, static_cast<size_t>(bytes_));
  }
  ZeroedMemory(ZeroedMemory&& other) noexcept { swap(other); }
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ZeroedMemory() {
    if (pages_.bytes() == 0) std::free(at_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(at_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  // Below it an allocator packs pieces closer than pages would; what it keeps of pieces that were outgrown is little.
  static constexpr int64_t kLarge = 1 << 14;
  static constexpr int64_t kPage = 4096, kLine = 64;

  static int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
  void swap(ZeroedMemory& other) noexcept {
    pages_.swap(other.pages_);
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
  }

  PageMemory pages_{0};
  void* at_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace megalith
