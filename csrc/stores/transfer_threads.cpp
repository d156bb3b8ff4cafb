// Transfers by threads that block in pread and pwrite: what containers allow that refuse io_uring.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "stores/transfer_queue.h"

namespace megalith {
namespace {

class TransferThreads final : public TransferQueue {
 public:
  explicit TransferThreads(int32_t count) {
    for (int32_t i = 0; i < count; ++i) threads_.emplace_back([this] { serve(); });
  }

  ~TransferThreads() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(const Transfer* transfers, int64_t count) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.insert(waiting_.end(), transfers, transfers + count);
      under_way_ += count;
    }
    count == 1 ? wanted_.notify_one() : wanted_.notify_all();
  }

  void collect(int64_t least, std::vector<uint32_t>& done) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(finished_.size()) < least && under_way_ > 0) {
      wanted_done_ = least;
      done_.wait(lock, [&] { return under_way_ == 0 || static_cast<int64_t>(finished_.size()) >= least; });
    }
    if (!failure_.empty()) {
      wanted_done_ = INT64_MAX;
      done_.wait(lock, [this] { return under_way_ == 0; });
    }
    wanted_done_ = INT64_MAX;
    done.insert(done.end(), finished_.begin(), finished_.end());
    finished_.clear();
    if (failure_.empty()) return;
    const std::string failure = std::move(failure_);
    failure_.clear();
    throw StorageError(failure);
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wanted_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Transfer transfer = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const std::string failure = run(transfer);
      lock.lock();
      if (!failure.empty() && failure_.empty()) failure_ = failure;
      finished_.push_back(transfer.tag);
      --under_way_;
      // Whoever waits is woken once, when there is as much as it waits for.
      if (under_way_ == 0 || static_cast<int64_t>(finished_.size()) >= wanted_done_) done_.notify_all();
    }
  }

  static std::string run(Transfer& transfer) {
    while (transfer.bytes > 0) {
      const ssize_t moved =
          transfer.write
              ? pwrite(transfer.file, transfer.memory, static_cast<size_t>(transfer.bytes), transfer.offset)
              : pread(transfer.file, transfer.memory, static_cast<size_t>(transfer.bytes), transfer.offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return transfer_failure(transfer, moved < 0 ? errno : 0);
      transfer.offset += moved;
      transfer.memory += moved;
      transfer.bytes -= moved;
    }
    return {};
  }

  std::mutex mutex_;
  std::condition_variable wanted_, done_;
  std::deque<Transfer> waiting_;
  std::vector<uint32_t> finished_;
  int64_t under_way_ = 0, wanted_done_ = INT64_MAX;
  bool closed_ = false;
  std::string failure_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<TransferQueue> open_transfer_threads(int32_t threads) {
  return std::make_unique<TransferThreads>(threads);
}

}  // namespace megalith
