// Rows numbered by their rank in a bitmap; each build has the widest instructions that count bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "optimizer/kernels.h"

namespace megalith {
inline namespace MG_VARIANT {

inline int64_t rank_rows(const uint64_t* words, int64_t num_words, uint32_t* before) {
  size_t count = 0;
  for (int64_t word = 0; word < num_words; ++word) {
    before[word] = static_cast<uint32_t>(count);
    count += static_cast<size_t>(__builtin_popcountll(words[word]));
  }
  return static_cast<int64_t>(count);
}

inline void list_rows(const uint64_t* words, int64_t num_words, uint32_t* rows) {
  for (int64_t word = 0; word < num_words; ++word) {
    for (uint64_t bits = words[word]; bits; bits &= bits - 1) {
      *rows++ = static_cast<uint32_t>(word << 6) | static_cast<uint32_t>(__builtin_ctzll(bits));
    }
  }
}

inline void number_rows(const RowBitmap& bitmap, const RowSource* touched, int64_t count, uint32_t* numbers) {
  const uint64_t* words = bitmap.words;
  const uint32_t* before = bitmap.before;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t row = touched[i] >> 32, lower = (uint64_t{1} << (row & 63)) - 1;
    numbers[i] = before[row >> 6] + static_cast<uint32_t>(__builtin_popcountll(words[row >> 6] & lower));
  }
}

inline void split_rows(const RowBitmap& bitmap, const RowSource* touched, int64_t count, RowSource*& once_end,
                       RowSource*& again_end) {
  const uint64_t* words = bitmap.words;
  const uint32_t* before = bitmap.before;
  RowSource *once = once_end, *again = again_end;
  // Written to both and kept in one: which it is, no processor can guess.
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t row = touched[i] >> 32;
    const uint64_t word = words[row >> 6], lower = (uint64_t{1} << (row & 63)) - 1;
    const uint64_t rank = before[row >> 6] + static_cast<uint64_t>(__builtin_popcountll(word & lower));
    const uint64_t repeated = word >> (row & 63) & 1;
    *once = touched[i];
    *again = rank << 32 | static_cast<uint32_t>(touched[i]);
    once += repeated ^ 1;
    again += repeated;
  }
  once_end = once;
  again_end = again;
}

}  // namespace MG_VARIANT
}  // namespace megalith
