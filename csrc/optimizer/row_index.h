// Which rows of a batch occur once, and numbers for those that occur again.
//
// Backward needs to know of every row whether it occurs again. Sorting the batch would tell, but moves every entry
// several times. Two bitmaps that stay in the second-level cache tell as much: a row met a second time is marked in
// the other. The rows that are marked are then numbered: by their rank in the bitmap where it has a bit for each row,
// by a hash table where rows share bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "optimizer/buffers.h"

namespace megalith {

// Rows met once or more often. Large tables fold onto fewer bits than rows: a row may then be taken for repeated that
// is not, never the other way round.
class RepeatedRows {
 public:
  static int bits_for(int64_t count, int64_t rows) {
    int bits = 9;
    while ((int64_t{1} << bits) < std::min(rows, 16 * count)) ++bits;
    return bits;
  }
  static int64_t words_for(int64_t count, int64_t rows) { return int64_t{1} << (bits_for(count, rows) - 6); }

  void reserve(int64_t words) {
    make_room(met_, words);
    make_room(again_, words);
  }

  void reset(int64_t count, int64_t rows) {
    bits_ = bits_for(count, rows);
    exact_ = rows <= int64_t{1} << bits_;
    met_.assign(size_t{1} << (bits_ - 6), 0);
    again_.assign(size_t{1} << (bits_ - 6), 0);
  }

  // Notes the row if `counts`; no branch, since which rows count no processor can guess.
  void meet(uint64_t row, bool counts) {
    const uint64_t at = position(row), bit = uint64_t{counts} << (at & 63);
    uint64_t& met = met_[at >> 6];
    again_[at >> 6] |= met & bit;
    met |= bit;
  }

  bool repeated(uint64_t row) const {
    const uint64_t at = position(row);
    return again_[at >> 6] >> (at & 63) & 1;
  }

  // Whether each row has a bit of its own, so that the marked ones can be counted off.
  bool exact() const { return exact_; }
  const std::vector<uint64_t>& met() const { return met_; }
  const std::vector<uint64_t>& marked() const { return again_; }

 private:
  uint64_t position(uint64_t row) const { return (row ^ row >> bits_) & ((uint64_t{1} << bits_) - 1); }

  std::vector<uint64_t> met_, again_;
  int bits_ = 0;
  bool exact_ = false;
};

// Numbers rows from 0 in the order they are first asked about. Starts small: what a large batch took, a small one
// after it need not empty.
class RowNumbers {
 public:
  // For so many rows.
  void reserve(int64_t rows) {
    int bits = kFirstBits;
    while (2 * rows > (int64_t{1} << bits) - 1) ++bits;
    make_room(entries_, int64_t{1} << bits);
    make_room(rows_, rows);
  }

  // About so many rows are to come.
  void reset(int64_t expected) {
    rows_.clear();
    int bits = kFirstBits;
    while (2 * expected > (int64_t{1} << bits) - 1) ++bits;
    resize(bits);
  }

  // Puts the number of its row in the place of each touched row.
  void number(RowSource* touched, int64_t count) {
    // Nearly all rows have been asked about before: for those nothing is read but the entries.
    uint64_t* entries = entries_.data();
    int shift = 32 - bits_;
    uint64_t mask = mask_;
    for (int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<uint32_t>(touched[i] >> 32);
      uint64_t at = (row * 0x9e3779b1u) >> shift, entry = entries[at];
      while (static_cast<uint32_t>(entry) != row || entry == kEmpty) {
        if (entry == kEmpty) {
          entry = entries[at] = static_cast<uint64_t>(rows_.size()) << 32 | row;
          rows_.push_back(row);
          if (4 * rows_.size() > 3 * mask) {
            resize(bits_ + 1);
            entries = entries_.data();
            shift = 32 - bits_;
            mask = mask_;
          }
          break;
        }
        at = (at + 1) & mask;
        entry = entries[at];
      }
      touched[i] = (entry & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(touched[i]);
    }
  }

  const std::vector<uint32_t>& rows() const { return rows_; }

 private:
  // No number is this large: a batch has fewer values.
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr int kFirstBits = 8;

  uint64_t position(uint32_t row) const { return (row * 0x9e3779b1u) >> (32 - bits_); }

  void resize(int bits) {
    bits_ = bits;
    mask_ = (uint64_t{1} << bits) - 1;
    if (entries_.size() <= mask_) entries_.resize(mask_ + 1);
    std::fill_n(entries_.begin(), mask_ + 1, kEmpty);
    for (size_t i = 0; i < rows_.size(); ++i) {
      uint64_t at = position(rows_[i]);
      while (entries_[at] != kEmpty) at = (at + 1) & mask_;
      entries_[at] = static_cast<uint64_t>(i) << 32 | rows_[i];
    }
  }

  std::vector<uint64_t> entries_;
  std::vector<uint32_t> rows_;
  uint64_t mask_ = 0;
  int bits_ = kFirstBits;
};

}  // namespace megalith
