#include "stores/row_reader.h"

#include <algorithm>

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

void RowReader::want(const RowPlace& place, const RowRead& read, const Taker& take) {
  waiting_.push_back({place, read});
  if (waiting_.size() % kGroup != 0) return;
  take_done(0, take);
  if (static_cast<int64_t>(free_.size()) >= kGroup) begin_waiting();
}

void RowReader::begin_waiting() {
  if (sorted_ < waiting_.size()) {
    std::sort(waiting_.begin() + static_cast<ptrdiff_t>(next_), waiting_.end(),
              [](const Wanted& a, const Wanted& b) { return a.read.record < b.read.record; });
    sorted_ = waiting_.size();
  }
  transfers_.clear();
  for (; next_ < waiting_.size(); ++next_) {
    const Wanted& wanted = waiting_[next_];
    const int64_t offset = wanted.place.offset, first = offset / alignment_ * alignment_;
    const int64_t last = (offset + format_.stride() + alignment_ - 1) / alignment_ * alignment_;
    if (!transfers_.empty() && transfers_.back().file == wanted.place.file) {
      // Behind the one before and in its block: one read brings both.
      Transfer& before = transfers_.back();
      if (last - before.offset <= cell_bytes_ && first / kBlock == before.offset / kBlock) {
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
  if (next_ == waiting_.size()) {
    waiting_.clear();
    next_ = sorted_ = 0;
  }
  for (const Transfer& transfer : transfers_) read_bytes_ += transfer.bytes;
  const auto count = static_cast<int64_t>(transfers_.size());
  num_reads_ += count;
  under_way_ += count;
  queue_.start(transfers_.data(), count);
}

void RowReader::take_done(int64_t least, const Taker& take) {
  if (under_way_ == 0) return;
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
      take(wanted.read, record);
    }
    free_.push_back(cell);
    --under_way_;
  }
}

void RowReader::finish(const Taker& take) {
  while (under_way_ > 0 || !waiting_.empty()) {
    if (!waiting_.empty() && !free_.empty()) begin_waiting();
    // What has come is worked on while the rest is under way, a part of the queue at a time.
    take_done(std::min(under_way_, std::max<int64_t>(1, depth_ / 4)), take);
  }
}

}  // namespace megalith
