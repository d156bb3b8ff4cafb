// Which rows of a table have a record, and where: a hash, a bitmap with ranks, or one slot for every row of the table,
// whichever takes the fewest bytes.
//
// The form is chosen when the index is rebuilt, never inside a step. Between two rebuilds new rows of a bitmap go to a
// small hash beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "chunks/slot_hash.h"
#include "page_memory.h"

namespace megalith {

enum class IndexForm : int64_t { kHash = 0, kRankedBitmap = 1, kArray = 2 };

class TableIndex {
 public:
  explicit TableIndex(int64_t rows)
      : rows_(rows), hash_(rows), blocks_(0), slots_(0) {}
  TableIndex(TableIndex&&) = delete;

  // The slot of a row, or 0.
  __attribute__((always_inline)) uint32_t find(uint32_t row) const {
    return form_ == IndexForm::kHash ? hash_.find(row) : find_at(position(row), row);
  }

  // In two halves, where the form has them: where the row's slot is among `slots`, or -1, and the slot.
  __attribute__((always_inline)) int64_t position(uint32_t row) const {
    if (form_ == IndexForm::kArray) return int64_t{row};
    return form_ == IndexForm::kRankedBitmap ? rank(blocks_.as<Block>(), row) : -1;
  }
  __attribute__((always_inline)) uint32_t find_at(int64_t at, uint32_t row) const {
    if (at >= 0) return slots()[at];
    return hash_is_empty_ ? 0 : hash_.find(row);
  }
  // Of an array: by row.
  const uint32_t* slots() const { return slots_.as<uint32_t>(); }

  void set(uint32_t row, uint32_t slot) {
    size_ += find(row) == 0;
    const int64_t at = position(row);
    if (at >= 0) {
      slots_.as<uint32_t>()[at] = slot;
    } else {
      hash_.set(row, slot);
      hash_is_empty_ = false;
    }
  }

  void erase(uint32_t row) {
    size_ -= find(row) != 0;
    const int64_t at = position(row);
    if (at >= 0) {
      slots_.as<uint32_t>()[at] = 0;
    } else {
      hash_.erase(row);
    }
  }

  // What find reads first, and what its second half reads.
  __attribute__((always_inline)) void prefetch(uint32_t row) const {
    if (form_ == IndexForm::kArray) {
      __builtin_prefetch(slots() + row);
    } else if (form_ == IndexForm::kRankedBitmap) {
      __builtin_prefetch(blocks_.as<Block>() + row / kBlockRows);
    } else {
      hash_.prefetch(row);
    }
  }
  __attribute__((always_inline)) void prefetch_at(int64_t at, uint32_t row) const {
    if (at >= 0) {
      __builtin_prefetch(slots() + at);
    } else if (!hash_is_empty_) {
      hash_.prefetch(row);
    }
  }

  // Calls body(row, slot) for every row with a record; it may change the slot. In an order that depends on nothing but
  // the calls so far.
  template <class Body>
  void for_each(Body body) const {
    for_each_of(0, 1, body);
  }

  // The same for one of so many pieces, which together have every row once.
  template <class Body>
  void for_each_of(int64_t piece, int64_t pieces, Body body) const {
    const auto begin = [&](int64_t count, int64_t of) { return count * of / pieces; };
    if (form_ == IndexForm::kArray) {
      const int64_t end = begin(rows_, piece + 1);
      for (int64_t row = begin(rows_, piece); row < end; ++row) visit(static_cast<uint32_t>(row), row, body);
      return;
    }
    if (form_ == IndexForm::kRankedBitmap) {
      const int64_t end = begin(num_blocks(), piece + 1);
      for (int64_t b = begin(num_blocks(), piece); b < end; ++b) {
        const Block& block = blocks_.as<Block>()[b];
        int64_t at = block.before;
        for (int64_t word = 0; word < kBlockRows / 64; ++word) {
          for (uint64_t rest = block.bits[word]; rest; rest &= rest - 1) {
            visit(static_cast<uint32_t>(b * kBlockRows + word * 64 + __builtin_ctzll(rest)), at++, body);
          }
        }
      }
    }
    hash_.for_each_of(piece, pieces, body);
  }

  // The lowest `count` rows from `first` on that have a record, rising.
  std::vector<uint32_t> rows_from(int64_t first, int64_t count) const;

  // Takes the form of the fewest bytes.
  void rebuild();

  IndexForm form() const { return form_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return blocks_.bytes() + slots_.bytes() + hash_.bytes() + int64_t{sizeof *this}; }

 private:
  // As many bits as fill a cache line with the number of those before it. So that no loop has to count: `before_pairs`
  // has nine bits for each of the words 2, 4 and 6, the bits that are set in the words before it.
  static constexpr int64_t kBlockRows = 448;
  struct Block {
    uint64_t bits[kBlockRows / 64];
    uint32_t before, before_pairs;

    void count(uint32_t& total) {
      before = total;
      before_pairs = 0;
      for (uint32_t word = 0; word < kBlockRows / 64; ++word) {
        if (word % 2 == 0 && word > 0) before_pairs |= (total - before) << (word / 2 - 1) * 9;
        total += static_cast<uint32_t>(__builtin_popcountll(bits[word]));
      }
    }
  };

  int64_t num_blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }

  // How many rows before this one have a bit, or -1 if it has none itself. Inline, so that code which may count bits in
  // one instruction does.
  __attribute__((always_inline)) static int64_t rank(const Block* blocks, uint32_t row) {
    const Block& block = blocks[row / kBlockRows];
    const uint32_t bit = row % kBlockRows, word = bit / 64;
    const uint64_t own = block.bits[word];
    if (!(own >> bit % 64 & 1)) return -1;
    // Of the pair's first word where this is the second, and of the words of earlier pairs.
    const uint64_t first = block.bits[word & ~1u] & (uint64_t{0} - (word & 1));
    const uint32_t pairs = static_cast<uint32_t>(uint64_t{block.before_pairs} << 9 >> word / 2 * 9) & 511;
    return int64_t{block.before} + pairs + __builtin_popcountll(first) +
           __builtin_popcountll(own & ((uint64_t{1} << bit % 64) - 1));
  }

  template <class Body>
  void visit(uint32_t row, int64_t at, Body& body) const {
    uint32_t& slot = slots_.as<uint32_t>()[at];
    if (slot != 0) body(row, slot);
  }

  int64_t rows_, size_ = 0;
  IndexForm form_ = IndexForm::kHash;
  SlotHash hash_;
  bool hash_is_empty_ = true;  // beside a bitmap
  PageMemory blocks_, slots_;
};

}  // namespace megalith
