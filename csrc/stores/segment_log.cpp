#include "stores/segment_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "stores/segment_file.h"

namespace megalith {
namespace {

constexpr int64_t kMostBuffers = 6;  // three that are filled, three on their way to disk

// A store keeps a file open for each segment: more than the usual soft limit.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

std::unique_ptr<TransferQueue> open_queue(const SegmentLogSettings& settings, int32_t threads) {
  if (settings.io_uring) {
    if (auto queue = open_io_uring(static_cast<uint32_t>(settings.depth))) return queue;
  }
  return open_transfer_threads(threads);
}

}  // namespace

SegmentLog::SegmentLog(const SegmentLogSettings& settings)
    : settings_(settings), format_(settings.row_bytes, settings.segment_bytes, settings.num_keys) {
  allow_many_files();
  reads_ = open_queue(settings, settings.threads);
  writes_ = open_queue(settings, 2);
  reader_ = std::make_unique<RowReader>(format_, *reads_, settings.depth);
}

SegmentLog::~SegmentLog() {
  // Transfers under way use the buffers: both queues end first, and before them who uses them.
  reader_->stop();
  reads_.reset();
  writes_.reset();
  for (auto& segment : segments_) {
    if (segment->file >= 0) close(segment->file);
    std::free(segment->buffer);
  }
  for (char* buffer : buffers_) std::free(buffer);
  for (const KeptFile& kept : kept_) close(kept.file);
}

void SegmentLog::keep(const std::string& path) {
  if (settings_.max_bytes == 0) return;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (file >= 0 && fstat(file, &status) == 0) close_or_keep(file, status.st_size);
}

void SegmentLog::close_or_keep(int file, int64_t bytes) {
  struct stat status;
  if (settings_.max_bytes == 0 || fstat(file, &status) != 0 || status.st_nlink == 0) {
    close(file);
    return;
  }
  kept_.push_back({file, bytes});
  kept_bytes_ += bytes;
}

void SegmentLog::forget_unnamed() {
  std::vector<KeptFile> before;
  before.swap(kept_);
  kept_bytes_ = 0;
  for (const KeptFile& kept : before) close_or_keep(kept.file, kept.bytes);
}

char* SegmentLog::take_buffer() {
  if (buffers_.empty() && num_writing_ > 0) note_written(num_buffers_ >= kMostBuffers ? 1 : 0);
  if (buffers_.empty()) {
    buffers_.reserve(static_cast<size_t>(kMostBuffers));
    char* buffer = block_memory(format_.file_bytes(format_.capacity())).release();
    ++num_buffers_;
    return buffer;
  }
  char* buffer = buffers_.back();
  buffers_.pop_back();
  return buffer;
}

int64_t SegmentLog::open_segment(Stream stream) {
  const int64_t bytes = format_.file_bytes(format_.capacity());
  forget_unnamed();
  if (settings_.max_bytes && counted_.file_bytes + kept_bytes_ + bytes > settings_.max_bytes) {
    const std::string kept = std::to_string(kept_bytes_);
    throw StorageError(settings_.folder + " may hold " + std::to_string(settings_.max_bytes) + " bytes of rows and is full" +
                       (kept_bytes_ ? ", " + kept + " of them older rows that checkpoints keep" : "") +
                       "; raise its bound (memory.disk)" +
                       (kept_bytes_ ? ", or keep fewer checkpoints (train.keep_checkpoints)." : "."));
  }
  char* buffer = take_buffer();
  int64_t number;
  if (free_.empty()) {
    number = num_segments();
    if ((number + 1) * format_.capacity() >= int64_t{0xffffffff}) {
      std::free(buffer);
      throw StorageError(settings_.folder + " holds as many rows as a store can; use more processes.");
    }
    segments_.push_back(std::make_unique<Segment>());
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Segment& segment = *segments_[static_cast<size_t>(number)];
  segment = Segment{};
  segment.used = true;
  segment.stream = stream;
  segment.buffer = buffer;
  segment.sequence = next_sequence_++;
  char name[40];
  std::snprintf(name, sizeof name, "/%016llx.rows", static_cast<unsigned long long>(segment.sequence));
  segment.path = settings_.folder + name;
  segment.keys.reserve(static_cast<size_t>(format_.capacity()));
  segment.live_bits.assign(static_cast<size_t>((format_.capacity() + 63) / 64), 0);
  segment.bytes = bytes;
  counted_.file_bytes += bytes;
  return number;
}

uint32_t SegmentLog::append(Stream stream, char*& row) {
  int64_t& open = open_[stream];
  if (open < 0) open = open_segment(stream);
  Segment& segment = *segments_[static_cast<size_t>(open)];
  row = segment.buffer + format_.offset(segment.count);
  ++counted_.appended_rows;
  if (stream == kMoved) ++counted_.moved_rows;
  return static_cast<uint32_t>(open * format_.capacity() + segment.count);
}

void SegmentLog::sealed(uint32_t record, uint64_t key) {
  const int64_t number = segment_of(record);
  Segment& segment = *segments_[static_cast<size_t>(number)];
  format_.seal_record(segment.buffer + format_.offset(segment.count), key);
  segment.keys.push_back(key);
  segment.live_bits[static_cast<size_t>(segment.count / 64)] |= uint64_t{1} << (segment.count % 64);
  ++segment.count;
  ++segment.live;
  ++counted_.live_rows;
  if (segment.count == format_.capacity()) {
    for (int64_t& open : open_) {
      if (open == number) open = -1;
    }
    write(number);
  }
}

void SegmentLog::write(int64_t number) {
  Segment& segment = *segments_[static_cast<size_t>(number)];
  SegmentHeader header;
  header.layout = settings_.layout;
  header.sequence = segment.sequence;
  header.row_bytes = format_.row_bytes();
  header.count = segment.count;
  header.key_bytes = static_cast<uint32_t>(format_.key_bytes());
  const int64_t keys = format_.keys_offset(segment.count), bytes = format_.file_bytes(segment.count);
  const auto keys_bytes = static_cast<size_t>(segment.count * format_.key_bytes());
  const int64_t records = format_.offset(segment.count);
  std::memset(segment.buffer + records, 0, static_cast<size_t>(bytes - records));
  format_.put_keys(segment.keys, segment.buffer + keys);
  header.keys_checksum = crc32c(0, segment.buffer + keys, keys_bytes);
  header.checksum = header.checksum_now();
  std::memset(segment.buffer, 0, static_cast<size_t>(kBlock));
  std::memcpy(segment.buffer, &header, sizeof header);
  std::vector<uint64_t>().swap(segment.keys);
  counted_.file_bytes += bytes - segment.bytes;
  segment.bytes = bytes;
  segment.file = open_segment_file(segment.path, O_RDWR | O_CREAT | O_EXCL);
  if (segment.file < 0) refuse_file(segment.path, "created");
  ++num_writing_;
  counted_.written_bytes += bytes;
  const Transfer transfer{segment.file, true, 0, bytes, segment.buffer, &segment.path, static_cast<uint32_t>(number)};
  writes_->start(&transfer, 1);
}

void SegmentLog::note_written(int64_t least) {
  written_.clear();
  writes_->collect(least, written_);
  for (const uint32_t number : written_) {
    Segment& segment = *segments_[number];
    buffers_.push_back(segment.buffer);
    segment.buffer = nullptr;
    --num_writing_;
    if (segment.live == 0) remove(number);
  }
}

void SegmentLog::drop(uint32_t record) {
  const int64_t number = segment_of(record);
  Segment& segment = *segments_[static_cast<size_t>(number)];
  segment.live_bits[static_cast<size_t>(within(record) / 64)] &= ~(uint64_t{1} << (within(record) % 64));
  --segment.live;
  --counted_.live_rows;
  if (segment.live == 0 && segment.buffer == nullptr) remove(number);
}

void SegmentLog::remove(int64_t number) {
  Segment& segment = *segments_[static_cast<size_t>(number)];
  unlink(segment.path.c_str());
  if (segment.file >= 0) close_or_keep(segment.file, segment.bytes);
  counted_.file_bytes -= segment.bytes;
  segment = Segment{};
  free_.push_back(number);
}

void SegmentLog::want(const RowRead& read) {
  const Segment& segment = *segments_[static_cast<size_t>(segment_of(read.record))];
  const int64_t offset = format_.offset(within(read.record));
  if (segment.buffer != nullptr) {
    (*read.take)(read.slot, segment.buffer + offset);
    if (read.drops) drop(read.record);
    return;
  }
  if (!aligned_) {
    reader_->set_alignment(read_alignment(segment.file));
    aligned_ = true;
  }
  being_read_ += read.drops;
  reader_->want({segment.file, &segment.path, offset}, read);
}

void SegmentLog::note_reads(uint32_t batch) {
  reader_->take_dropped(batch, dropped_);
  for (const uint32_t record : dropped_) drop(record);
  being_read_ -= static_cast<int64_t>(dropped_.size());
}

void SegmentLog::finish_reads() {
  reader_->finish();
  note_reads(~uint32_t{0});
}

bool SegmentLog::wants_collection(int64_t in_memory_only) const {
  // Of full files: what header, keys and ends of blocks take no collection can win.
  const auto file = static_cast<double>(format_.file_bytes(format_.capacity()));
  const double live = static_cast<double>(counted_.live_rows - being_read_ + in_memory_only) * file / static_cast<double>(format_.capacity());
  const double room = 4.0 * file;
  return static_cast<double>(counted_.file_bytes) > settings_.space_factor * live + room;
}

// Room that is won for what is read and written, and more of it where rows have had long to die: those of a young
// segment die soon, and moving them was in vain.
double SegmentLog::worth_collecting(const Segment& segment) const {
  const double live = static_cast<double>(segment.live) / static_cast<double>(segment.count);
  return (1.0 - live) / (1.0 + live) * std::sqrt(static_cast<double>(next_sequence_ - segment.sequence));
}

bool SegmentLog::collect(const RowVisitor& visit) {
  int64_t chosen = -1;
  double most = 0.0;
  for (int64_t number = 0; number < num_segments(); ++number) {
    const Segment& segment = *segments_[static_cast<size_t>(number)];
    if (!segment.used || segment.buffer != nullptr) continue;
    const double worth = worth_collecting(segment);
    if (worth > most) {
      most = worth;
      chosen = number;
    }
  }
  if (chosen < 0) {
    // What is on its way to disk may be without a live row.
    if (num_writing_ == 0) return false;
    finish_writes();
    return true;
  }
  Segment& segment = *segments_[static_cast<size_t>(chosen)];
  // Counted as one more while it is read: its number is not given to another before the end.
  ++segment.live;
  scan(chosen, visit);
  if (--segment.live != 0) throw std::logic_error(segment.path + " was collected, and rows of it still live.");
  remove(chosen);
  return true;
}

bool SegmentLog::scan(int64_t number, const RowVisitor& visit) {
  if (number >= num_segments()) return false;
  Segment& segment = *segments_[static_cast<size_t>(number)];
  if (!segment.used || segment.count == 0) return true;
  const BlockMemory memory = block_memory(segment.bytes);
  char* bytes = segment.buffer;
  if (bytes == nullptr) {
    bytes = memory.get();
    std::vector<Transfer> transfers;
    for (int64_t from = 0; from < segment.bytes; from += 1 << 20) {
      const int64_t part = std::min<int64_t>(1 << 20, segment.bytes - from);
      transfers.push_back({segment.file, false, from, part, bytes + from, &segment.path});
    }
    reads_->start(transfers.data(), static_cast<int64_t>(transfers.size()));
    reads_->finish();
    counted_.read_bytes += segment.bytes;
  }
  const std::vector<uint64_t> open_keys = segment.keys;
  const char* file_keys = bytes + format_.keys_offset(segment.count);
  const int64_t count = segment.count;
  const std::string path = segment.path;
  for (int64_t i = 0; i < count; ++i) {
    if (!segment.lives(i)) continue;
    const char* row = bytes + format_.offset(i);
    const uint64_t key = open_keys.empty() ? format_.key_at(file_keys, i) : open_keys[static_cast<size_t>(i)];
    if (!format_.record_is_whole(row, key)) damaged(path, "a row is not what was written");
    visit(static_cast<uint32_t>(number * format_.capacity() + i), key, row);
  }
  return true;
}

void SegmentLog::sync() {
  forget_unnamed();
  for (int64_t& open : open_) {
    const int64_t number = open;
    open = -1;
    if (number < 0) continue;
    Segment& segment = *segments_[static_cast<size_t>(number)];
    if (segment.count > 0) {
      write(number);
    } else {
      buffers_.push_back(segment.buffer);
      segment.buffer = nullptr;
      remove(number);
    }
  }
  finish_writes();
  for (const auto& segment : segments_) {
    if (!segment->used || segment->synced) continue;
    if (fdatasync(segment->file) != 0) refuse_file(segment->path, "written to disk");
    segment->synced = true;
  }
}

std::vector<SegmentFile> SegmentLog::files() const {
  std::vector<SegmentFile> files;
  for (const auto& segment : segments_) {
    if (!segment->used) continue;
    const auto words = static_cast<ptrdiff_t>((segment->count + 63) / 64);
    files.push_back({segment->path.substr(segment->path.rfind('/') + 1),
                     {segment->live_bits.begin(), segment->live_bits.begin() + words}});
  }
  return files;
}

SegmentLogStatistics SegmentLog::statistics() const {
  SegmentLogStatistics now = counted_;
  now.reads += reader_->num_reads();
  now.read_bytes += reader_->read_bytes();
  int64_t rows = 0;
  for (const auto& segment : segments_) {
    rows += segment->count;
    now.segments += segment->used;
  }
  now.dead_rows = rows - now.live_rows;
  return now;
}

int64_t SegmentLog::memory_bytes() const {
  int64_t bytes = reader_->memory_bytes() + num_buffers_ * format_.file_bytes(format_.capacity());
  for (const auto& segment : segments_) {
    bytes += static_cast<int64_t>(sizeof *segment + (segment->keys.capacity() + segment->live_bits.capacity()) * 8);
  }
  return bytes;
}

}  // namespace megalith
