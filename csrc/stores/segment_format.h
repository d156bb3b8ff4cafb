// How rows lie in a segment file: a header, records, and the key of each record.
//
//   header (one block) | records, up to the end of a block | keys, up to the end of a block
//
// A file is written once and never changed. A record is a row and a checksum over its key and itself, so that a read
// tells whether it is the row that was asked for. Records lie side by side, across the ends of blocks too, and a key
// takes the bytes that the last one needs: what a file has beside its rows is written and kept with every one of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "stores/crc32c.h"

namespace megalith {

constexpr int64_t kBlock = 4096;

inline int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

struct SegmentHeader {
  static constexpr uint64_t kMagic = 0x3130305345474d2full;
  static constexpr uint32_t kVersion = 2;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t checksum = 0;       // of the header with this field zero
  uint64_t layout = 0;         // a digest of what a row is: tables, dims, types, optimizer state
  uint64_t sequence = 0;       // of two records with one key, that in the later segment holds
  int64_t row_bytes = 0;
  int64_t count = 0;           // records
  uint32_t keys_checksum = 0;
  uint32_t key_bytes = 0;      // of each

  uint32_t checksum_now() const {
    SegmentHeader copy = *this;
    copy.checksum = 0;
    return crc32c(0, &copy, sizeof copy);
  }
};

class SegmentFormat {
 public:
  SegmentFormat(int64_t row_bytes, int64_t segment_bytes, int64_t num_keys) : row_bytes_(row_bytes) {
    stride_ = (row_bytes + kChecksum + 3) / 4 * 4;
    while (key_bytes_ < 8 && num_keys > int64_t{1} << (8 * key_bytes_)) ++key_bytes_;
    capacity_ = (segment_bytes - kBlock) / (stride_ + key_bytes_);
    while (capacity_ > 1 && file_bytes(capacity_) > segment_bytes) --capacity_;
    if (capacity_ < 1) capacity_ = 1;
  }

  int64_t row_bytes() const { return row_bytes_; }
  int64_t key_bytes() const { return key_bytes_; }
  int64_t capacity() const { return capacity_; }  // records of a full segment
  int64_t stride() const { return stride_; }
  // Of the blocks that a record lies in, at most.
  int64_t most_block_bytes() const { return whole_blocks(stride_) + kBlock; }

  // The first byte of a record in its file.
  int64_t offset(int64_t record) const { return kBlock + record * stride_; }
  // Bytes up to the keys, and of the whole file.
  int64_t keys_offset(int64_t count) const { return kBlock + whole_blocks(count * stride_); }
  int64_t file_bytes(int64_t count) const { return keys_offset(count) + whole_blocks(count * key_bytes_); }

  // The keys of a file, the lowest byte of each first.
  void put_keys(const std::vector<uint64_t>& keys, char* to) const {
    for (size_t i = 0; i < keys.size(); ++i) {
      for (int64_t byte = 0; byte < key_bytes_; ++byte) *to++ = static_cast<char>(keys[i] >> 8 * byte);
    }
  }
  uint64_t key_at(const char* keys, int64_t i) const {
    uint64_t key = 0;
    for (int64_t byte = 0; byte < key_bytes_; ++byte) {
      key |= uint64_t{static_cast<unsigned char>(keys[i * key_bytes_ + byte])} << 8 * byte;
    }
    return key;
  }

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

  int64_t row_bytes_, stride_, key_bytes_ = 1, capacity_;
};

}  // namespace megalith
