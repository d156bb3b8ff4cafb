#include "stores/row_reader.h"

#include <algorithm>
#include <tuple>

#include "parallel.h"

namespace megalith {

RowReader::RowReader(const SegmentFormat& format, TransferQueue& queue, int64_t depth)
    : format_(format),
      queue_(queue),
      cell_bytes_(format.most_block_bytes()),
      depth_(depth),
      arena_(cell_bytes_ * depth),
      parts_(static_cast<size_t>(depth)) {
  for (int64_t cell = depth - 1; cell >= 0; --cell) free_.push_back(static_cast<uint32_t>(cell));
  queue_.prepare_memory(arena_.as<char>(), arena_.bytes());
}

void RowReader::stop() {
  {
    const std::lock_guard<std::mutex> held(lock_);
    stops_ = true;
  }
  comes_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RowReader::want(const RowPlace& place, const RowRead& read) {
  asked_.push_back({place, read});
  if (asked_.size() >= kGroup) hand_on();
}

void RowReader::hand_on() {
  if (asked_.empty()) return;
  {
    const std::lock_guard<std::mutex> held(lock_);
    for (const Wanted& wanted : asked_) ++outstanding_[wanted.read.batch];
    handed_.insert(handed_.end(), asked_.begin(), asked_.end());
    note_arrived();
  }
  asked_.clear();
  // No thread where nothing is ever read.
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  comes_.notify_one();
}

void RowReader::wait(uint32_t batch) {
  if (arrived() >= batch) return;
  std::unique_lock<std::mutex> held(lock_);
  taken_.wait(held, [&] { return failure_ != nullptr || arrived() >= batch; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void RowReader::finish() {
  hand_on();
  wait(~uint32_t{0});
}

void RowReader::take_dropped(uint32_t batch, std::vector<uint32_t>& records) {
  records.clear();
  const std::lock_guard<std::mutex> held(lock_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  while (!dropped_.empty() && dropped_.begin()->first <= batch) {
    const auto& some = dropped_.begin()->second;
    records.insert(records.end(), some.begin(), some.end());
    dropped_.erase(dropped_.begin());
  }
  std::sort(records.begin(), records.end());
}

// With the lock.
void RowReader::note_arrived() {
  arrived_.store(outstanding_.empty() ? ~uint32_t{0} : outstanding_.begin()->first - 1, std::memory_order_release);
}

void RowReader::run() {
  try {
    // OpenMP lets threads that wait for work spin for milliseconds, unless it knows of more threads than there are
    // cores: here is one more. What they would burn is needed to read.
    parallel_for(0, num_threads(), 1, [](int64_t, int64_t) {});
    for (;;) {
      {
        std::unique_lock<std::mutex> held(lock_);
        if (under_way_ == 0 && next_ == waiting_.size()) {
          comes_.wait(held, [&] { return stops_ || !handed_.empty(); });
        }
        if (stops_) return;
        if (next_ == waiting_.size()) {
          waiting_.clear();
          next_ = sorted_ = 0;
        }
        if (!handed_.empty()) {
          waiting_.insert(waiting_.end(), handed_.begin(), handed_.end());
          handed_.clear();
        }
      }
      if (next_ < waiting_.size()) {
        sort_waiting();
        begin_waiting();
      }
      // What has come is worked on while the rest is under way, a part of the queue at a time.
      take_done(std::min(under_way_, std::max<int64_t>(1, depth_ / 4)));
      note_taken();
    }
  } catch (...) {
    const std::lock_guard<std::mutex> held(lock_);
    failure_ = std::current_exception();
  }
  taken_.notify_all();
}

// Rows of one block side by side, but what is waited for first before the rest. Those before `sorted_` are in order.
void RowReader::sort_waiting() {
  const auto before = [](const Wanted& a, const Wanted& b) {
    return std::tie(a.read.batch, a.read.record) < std::tie(b.read.batch, b.read.record);
  };
  sorted_ = std::max(sorted_, next_);
  if (sorted_ == waiting_.size()) return;
  const auto first = waiting_.begin() + static_cast<ptrdiff_t>(next_);
  const auto fresh = waiting_.begin() + static_cast<ptrdiff_t>(sorted_);
  std::sort(fresh, waiting_.end(), before);
  std::inplace_merge(std::lower_bound(first, fresh, *fresh, before), fresh, waiting_.end(), before);
  sorted_ = waiting_.size();
}

void RowReader::begin_waiting() {
  transfers_.clear();
  int64_t bytes = 0;
  for (; next_ < waiting_.size(); ++next_) {
    const Wanted& wanted = waiting_[next_];
    const int64_t offset = wanted.place.offset, first = offset / alignment_ * alignment_;
    const int64_t last = (offset + format_.stride() + alignment_ - 1) / alignment_ * alignment_;
    if (!transfers_.empty() && transfers_.back().file == wanted.place.file) {
      // Behind the one before and in its block: one read brings both.
      Transfer& before = transfers_.back();
      if (first >= before.offset && last - before.offset <= cell_bytes_ && first / kBlock == before.offset / kBlock) {
        before.bytes = std::max(before.bytes, last - before.offset);
        parts_[before.tag].rows.push_back(wanted);
        continue;
      }
    }
    if (free_.empty()) break;
    const uint32_t cell = free_.back();
    free_.pop_back();
    Part& part = parts_[cell];
    part.first = first;
    part.rows.clear();
    part.rows.push_back(wanted);
    char* memory = arena_.as<char>() + int64_t{cell} * cell_bytes_;
    transfers_.push_back({wanted.place.file, false, first, last - first, memory, wanted.place.path, cell});
  }
  for (const Transfer& transfer : transfers_) bytes += transfer.bytes;
  const auto count = static_cast<int64_t>(transfers_.size());
  num_reads_.fetch_add(count, std::memory_order_relaxed);
  read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  under_way_ += count;
  queue_.start(transfers_.data(), count);
}

void RowReader::take_done(int64_t least) {
  done_.clear();
  queue_.collect(least, done_);
  for (const uint32_t cell : done_) {
    const Part& part = parts_[cell];
    const char* memory = arena_.as<char>() + int64_t{cell} * cell_bytes_;
    for (const Wanted& wanted : part.rows) {
      const char* record = memory + wanted.place.offset - part.first;
      if (!format_.record_is_whole(record, wanted.read.key)) {
        throw StorageError(*wanted.place.path + " is damaged: the row at byte " + std::to_string(wanted.place.offset) +
                           " is not what was written; go back to a checkpoint.");
      }
      (*wanted.read.take)(wanted.read.slot, record);
      just_taken_.push_back(wanted.read);
    }
    free_.push_back(cell);
    --under_way_;
  }
}

void RowReader::note_taken() {
  bool ended = false;
  {
    const std::lock_guard<std::mutex> held(lock_);
    for (const RowRead& read : just_taken_) {
      if (read.drops) dropped_[read.batch].push_back(read.record);
      const auto waits = outstanding_.find(read.batch);
      if (--waits->second != 0) continue;
      outstanding_.erase(waits);
      ended = true;
    }
    note_arrived();
  }
  just_taken_.clear();
  if (ended) taken_.notify_all();
}

}  // namespace megalith
