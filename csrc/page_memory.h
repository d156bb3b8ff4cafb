// Memory straight from the system: zeros that are not resident until they are touched, on huge pages where there are any.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace megalith {

class PageMemory {
 public:
  explicit PageMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    if (bytes_ == 0) return;
    at_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(at_, bytes_, MADV_HUGEPAGE);
#endif
  }
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory() {
    if (bytes_ != 0) munmap(at_, bytes_);
  }

  void swap(PageMemory& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(at_);
  }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  void* at_ = nullptr;
  size_t bytes_;
};

}  // namespace megalith
