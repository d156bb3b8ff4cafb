// Taking up the files of a segment log: everything in them is checked before a row of them is used.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "stores/segment_file.h"
#include "stores/segment_log.h"

namespace megalith {

SegmentHeader SegmentLog::read_header(Segment& segment, char* block) {
  struct stat status {};
  if (fstat(segment.file, &status) != 0) refuse_file(segment.path, "read");
  if (status.st_size < kBlock) damaged(segment.path, "it is shorter than its header");
  const Transfer transfer{segment.file, false, 0, kBlock, block, &segment.path};
  reads_->start(&transfer, 1);
  reads_->finish();
  SegmentHeader header;
  std::memcpy(&header, block, sizeof header);
  if (header.magic != SegmentHeader::kMagic) damaged(segment.path, "it is no segment of rows");
  if (header.version != SegmentHeader::kVersion) {
    damaged(segment.path, "it has version " + std::to_string(header.version) + ", and this program reads " +
                              std::to_string(SegmentHeader::kVersion));
  }
  if (header.checksum != header.checksum_now()) damaged(segment.path, "its header is not what was written");
  if (header.layout != settings_.layout || header.row_bytes != format_.row_bytes() ||
      header.key_bytes != format_.key_bytes()) {
    damaged(segment.path, "its rows are of other tables or another optimizer");
  }
  if (header.count < 1 || header.count > format_.capacity()) {
    damaged(segment.path, "it was written with other segment sizes");
  }
  if (status.st_size != format_.file_bytes(header.count)) {
    damaged(segment.path, "it has " + std::to_string(status.st_size) + " bytes instead of " +
                              std::to_string(format_.file_bytes(header.count)));
  }
  return header;
}

void SegmentLog::read_keys(Segment& segment, const SegmentHeader& header, std::vector<uint64_t>& keys) {
  const int64_t from = format_.keys_offset(header.count), bytes = format_.file_bytes(header.count) - from;
  const BlockMemory memory = block_memory(bytes);
  const Transfer transfer{segment.file, false, from, bytes, memory.get(), &segment.path};
  reads_->start(&transfer, 1);
  reads_->finish();
  if (crc32c(0, memory.get(), static_cast<size_t>(header.count * format_.key_bytes())) != header.keys_checksum) {
    damaged(segment.path, "the keys of its rows are not what was written");
  }
  keys.resize(static_cast<size_t>(header.count));
  for (int64_t i = 0; i < header.count; ++i) keys[static_cast<size_t>(i)] = format_.key_at(memory.get(), i);
}

void SegmentLog::open(const std::vector<SegmentFile>& files, const std::function<void(uint32_t, uint64_t)>& visit) {
  const BlockMemory block = block_memory(kBlock);
  std::vector<uint64_t> keys;
  for (const SegmentFile& file : files) {
    segments_.push_back(std::make_unique<Segment>());
    Segment& segment = *segments_.back();
    segment.path = settings_.folder + "/" + file.name;
    segment.file = open_segment_file(segment.path, O_RDONLY);
    if (segment.file < 0) refuse_file(segment.path, "opened");
    const SegmentHeader header = read_header(segment, block.get());
    const auto words = static_cast<size_t>((header.count + 63) / 64);
    if (file.live.size() != words) damaged(segment.path, "it has other rows than its manifest says");
    read_keys(segment, header, keys);
    segment.used = segment.synced = true;
    segment.sequence = header.sequence;
    segment.count = header.count;
    segment.bytes = format_.file_bytes(header.count);
    segment.live_bits = file.live;
    next_sequence_ = std::max(next_sequence_, header.sequence + 1);
    counted_.file_bytes += segment.bytes;
    const int64_t first = (num_segments() - 1) * format_.capacity();
    for (int64_t i = 0; i < header.count; ++i) {
      if (!segment.lives(i)) continue;
      ++segment.live;
      ++counted_.live_rows;
      visit(static_cast<uint32_t>(first + i), keys[static_cast<size_t>(i)]);
    }
  }
}

void SegmentLog::damaged(const std::string& path, const std::string& what) const {
  throw StorageError(path + " is damaged: " + what + "; go back to a checkpoint.");
}

}  // namespace megalith
