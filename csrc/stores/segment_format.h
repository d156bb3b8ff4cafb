// How rows lie in a segment file: a header, records, and the key of each record.
//
//   header (one block) | records in blocks of 4 KiB | keys, 8 bytes each, up to the end of a block
//
// A file is written once and never changed. A record is a row and a checksum over its key and itself, so that a read
// of one block tells whether it is the row that was asked for. Records do not cross blocks unless that would waste
// more than an eighth of them: reading a row is then one read of one block.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "stores/crc32c.h"

namespace megalith {

constexpr int64_t kBlock = 4096;

inline int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

struct SegmentHeader {
  static constexpr uint64_t kMagic = 0x3130305345474d2full;
  static constexpr uint32_t kVersion = 1;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t checksum = 0;       // of the header with this field zero
  uint64_t layout = 0;         // a digest of what a row is: tables, dims, types, optimizer state
  uint64_t sequence = 0;       // of two records with one key, that in the later segment holds
  int64_t row_bytes = 0;
  int64_t count = 0;           // records
  uint32_t keys_checksum = 0;
  uint32_t unused = 0;

  uint32_t checksum_now() const {
    SegmentHeader copy = *this;
    copy.checksum = 0;
    return crc32c(0, &copy, sizeof copy);
  }
};

class SegmentFormat {
 public:
  SegmentFormat(int64_t row_bytes, int64_t segment_bytes) : row_bytes_(row_bytes) {
    stride_ = (row_bytes + kChecksum + 3) / 4 * 4;
    const int64_t in_a_block = kBlock / stride_;
    if (in_a_block * stride_ * 8 >= kBlock * 7) per_block_ = in_a_block;
    const double record = per_block_ ? static_cast<double>(kBlock) / static_cast<double>(per_block_)
                                     : static_cast<double>(stride_);
    const auto fit = static_cast<int64_t>(static_cast<double>(segment_bytes - 2 * kBlock) / (record + 8));
    capacity_ = fit < 1 ? 1 : fit;
  }

  int64_t row_bytes() const { return row_bytes_; }
  int64_t capacity() const { return capacity_; }  // records of a full segment
  int64_t stride() const { return stride_; }
  // Of the blocks that a record lies in, at most.
  int64_t most_block_bytes() const { return per_block_ ? kBlock : whole_blocks(stride_) + kBlock; }

  // The first byte of a record in its file.
  int64_t offset(int64_t record) const {
    if (per_block_) return kBlock + record / per_block_ * kBlock + record % per_block_ * stride_;
    return kBlock + record * stride_;
  }
  // Bytes up to the keys, and of the whole file.
  int64_t keys_offset(int64_t count) const {
    if (per_block_) return kBlock + (count + per_block_ - 1) / per_block_ * kBlock;
    return kBlock + whole_blocks(count * stride_);
  }
  int64_t file_bytes(int64_t count) const { return keys_offset(count) + whole_blocks(count * 8); }

  void seal_record(char* record, uint64_t key) const {
    const uint32_t checksum = record_checksum(record, key);
    std::memcpy(record + row_bytes_, &checksum, sizeof checksum);
  }
  bool record_is_whole(const char* record, uint64_t key) const {
    uint32_t checksum;
    std::memcpy(&checksum, record + row_bytes_, sizeof checksum);
    return checksum == record_checksum(record, key);
  }

 private:
  static constexpr int64_t kChecksum = 4;

  uint32_t record_checksum(const char* record, uint64_t key) const {
    return crc32c(crc32c(0, &key, sizeof key), record, static_cast<size_t>(row_bytes_));
  }

  int64_t row_bytes_, stride_, per_block_ = 0, capacity_;
};

}  // namespace megalith
