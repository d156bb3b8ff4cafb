// Transfers through io_uring, by its system calls: one call begins a whole group of transfers and waits for earlier ones.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "stores/transfer_queue.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#define MG_HAS_IO_URING 1
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

namespace megalith {

std::string transfer_failure(const Transfer& transfer, int error) {
  const std::string what = transfer.write ? "written" : "read";
  return *transfer.path + " could not be " + what + " at byte " + std::to_string(transfer.offset) + ": " +
         (error ? std::strerror(error) : "the file ends before it should") +
         (error == ENOSPC ? "; free some, or take another disk (memory.path)." : ".");
}

#if defined(MG_HAS_IO_URING)
namespace {

// Memory shared with the kernel, or a file of it, given back at the end.
struct Mapping {
  void* at = MAP_FAILED;
  size_t bytes = 0;
  ~Mapping() {
    if (at != MAP_FAILED) munmap(at, bytes);
  }
  bool map(int file, size_t size, off_t what) {
    bytes = size;
    at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, what);
    return at != MAP_FAILED;
  }
  template <class T>
  T* part(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(at) + offset);
  }
};

class IoUring final : public TransferQueue {
 public:
  ~IoUring() override {
    // The kernel must not write into memory that is given back.
    while (under_way_ > 0 && enter(1)) reap();
    if (ring_ >= 0) close(ring_);
  }

  bool open(uint32_t depth) {
    io_uring_params params{};
#if defined(IORING_SETUP_COOP_TASKRUN)
    // Completions are noted when this process enters the kernel anyway: no interrupt of what it computes.
    params.flags = IORING_SETUP_COOP_TASKRUN;
#endif
    ring_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params));
    if (ring_ < 0 && errno == EINVAL) {
      params = {};
      ring_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params));
    }
    if (ring_ < 0 || !can_read_and_write()) return false;
    const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    if (!submission_ring_.map(ring_, submissions, IORING_OFF_SQ_RING)) return false;
    if (!completion_ring_.map(ring_, completions, IORING_OFF_CQ_RING)) return false;
    if (!entries_.map(ring_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) return false;
    sq_tail_ = submission_ring_.part<uint32_t>(params.sq_off.tail);
    sq_mask_ = *submission_ring_.part<uint32_t>(params.sq_off.ring_mask);
    sq_array_ = submission_ring_.part<uint32_t>(params.sq_off.array);
    cq_head_ = completion_ring_.part<uint32_t>(params.cq_off.head);
    cq_tail_ = completion_ring_.part<uint32_t>(params.cq_off.tail);
    cq_mask_ = *completion_ring_.part<uint32_t>(params.cq_off.ring_mask);
    completed_ = completion_ring_.part<io_uring_cqe>(params.cq_off.cqes);
    transfers_.resize(params.sq_entries);
    for (uint32_t i = 0; i < params.sq_entries; ++i) free_.push_back(params.sq_entries - 1 - i);
    return true;
  }

  void start(const Transfer* transfers, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) {
      while (free_.empty()) wait_for(std::max<int64_t>(1, under_way_ / 4));
      const uint32_t number = free_.back();
      free_.pop_back();
      transfers_[number] = transfers[i];
      ++under_way_;
      submit(number);
    }
    if (!enter(0)) throw_system();
  }

  void collect(int64_t least, std::vector<uint32_t>& done) override {
    reap();
    while (static_cast<int64_t>(done_.size()) < least && under_way_ > 0) {
      wait_for(least - static_cast<int64_t>(done_.size()));
    }
    if (!failure_.empty()) {
      while (under_way_ > 0) wait_for(under_way_);
    }
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
    if (failure_.empty()) return;
    const std::string failure = std::move(failure_);
    failure_.clear();
    throw StorageError(failure);
  }

  void prepare_memory(char* memory, int64_t bytes) override {
    const iovec described{memory, static_cast<size_t>(bytes)};
    if (syscall(__NR_io_uring_register, ring_, IORING_REGISTER_BUFFERS, &described, 1) == 0) {
      prepared_ = memory;
      prepared_end_ = memory + bytes;
    }
  }

 private:
  bool can_read_and_write() const {
    alignas(io_uring_probe) char memory[sizeof(io_uring_probe) + 64 * sizeof(io_uring_probe_op)] = {};
    auto* probe = reinterpret_cast<io_uring_probe*>(memory);
    if (syscall(__NR_io_uring_register, ring_, IORING_REGISTER_PROBE, probe, 64) < 0) return false;
    return probe->last_op >= IORING_OP_WRITE && (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) &&
           (probe->ops[IORING_OP_WRITE].flags & IO_URING_OP_SUPPORTED);
  }

  void submit(uint32_t number) {
    const Transfer& transfer = transfers_[number];
    const uint32_t tail = *sq_tail_, at = tail & sq_mask_;
    io_uring_sqe& entry = entries_.part<io_uring_sqe>(0)[at];
    std::memset(&entry, 0, sizeof entry);
    const bool prepared = transfer.memory >= prepared_ && transfer.memory + transfer.bytes <= prepared_end_;
    if (prepared) {
      entry.opcode = transfer.write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
    } else {
      entry.opcode = transfer.write ? IORING_OP_WRITE : IORING_OP_READ;
    }
    entry.fd = transfer.file;
    entry.addr = reinterpret_cast<uint64_t>(transfer.memory);
    entry.len = static_cast<uint32_t>(transfer.bytes);
    entry.off = static_cast<uint64_t>(transfer.offset);
    entry.user_data = number;
    sq_array_[at] = at;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    ++to_submit_;
  }

  // Begins what was submitted and waits for `wanted` completions, or for fewer where a signal ends the wait.
  bool enter(uint32_t wanted) {
    for (;;) {
      const uint32_t flags = wanted ? IORING_ENTER_GETEVENTS : 0;
      const long taken = syscall(__NR_io_uring_enter, ring_, to_submit_, wanted, flags, nullptr, 0);
      if (taken >= 0) {
        to_submit_ -= static_cast<uint32_t>(taken);
        if (to_submit_ == 0 || wanted) return true;
      } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        return false;
      }
      reap();
      // What is reaped here was waited for: so many may not be under way any more.
      if (wanted) return true;
    }
  }

  void wait_for(int64_t count) {
    if (!enter(static_cast<uint32_t>(std::min(count, under_way_)))) throw_system();
    reap();
  }

  void reap() {
    uint32_t head = *cq_head_;
    const uint32_t tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
    for (; head != tail; ++head) {
      const io_uring_cqe& entry = completed_[head & cq_mask_];
      complete(static_cast<uint32_t>(entry.user_data), entry.res);
    }
    __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
  }

  void complete(uint32_t number, int32_t result) {
    Transfer& transfer = transfers_[number];
    if (result == -EINTR || result == -EAGAIN) return submit(number);
    if (result > 0 && result < transfer.bytes) {
      // A part of it was done: the rest follows.
      transfer.offset += result;
      transfer.memory += result;
      transfer.bytes -= result;
      return submit(number);
    }
    if (result <= 0 && failure_.empty()) failure_ = transfer_failure(transfer, -result);
    --under_way_;
    done_.push_back(transfer.tag);
    free_.push_back(number);
  }

  [[noreturn]] static void throw_system() {
    throw StorageError(std::string("io_uring failed: ") + std::strerror(errno) + "; take engine 'threads'.");
  }

  int ring_ = -1;
  Mapping submission_ring_, completion_ring_, entries_;
  uint32_t *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  uint32_t sq_mask_ = 0, cq_mask_ = 0, to_submit_ = 0;
  io_uring_cqe* completed_ = nullptr;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> free_, done_;
  char *prepared_ = nullptr, *prepared_end_ = nullptr;
  int64_t under_way_ = 0;
  std::string failure_;
};

}  // namespace

std::unique_ptr<TransferQueue> open_io_uring(uint32_t depth) {
  auto queue = std::make_unique<IoUring>();
  if (!queue->open(depth)) return nullptr;
  return queue;
}
#else
std::unique_ptr<TransferQueue> open_io_uring(uint32_t) { return nullptr; }
#endif

}  // namespace megalith
