// A stable sort of (row, source) entries by row, for the key range at hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace megalith {

inline int bits_for(uint64_t count) {
  int bits = 1;
  while (bits < 32 && (count - 1) >> bits) ++bits;
  return bits;
}

// Sorts entries by their upper 32 bits, whose values lie below 2^bits; equal rows keep their order as long as
// their lower halves rise. Returns which of the two buffers holds the result.
inline uint64_t* radix_sort(uint64_t* entries, uint64_t* spare, int64_t n, int bits) {
  if (n < 384) {
    // Sources rise within a row, so the order of whole entries is the stable one.
    std::sort(entries, entries + n);
    return entries;
  }
  // As few passes as possible with counters that stay in the first-level cache.
  const int passes = (bits + 10) / 11, digit = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit) - 1;
  std::vector<uint32_t> counts(static_cast<size_t>(passes) << digit, 0);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t row = entries[i] >> 32;
    for (int pass = 0; pass < passes; ++pass, row >>= digit) ++counts[(static_cast<uint64_t>(pass) << digit) + (row & mask)];
  }
  for (int pass = 0; pass < passes; ++pass) {
    uint32_t* places = counts.data() + (static_cast<uint64_t>(pass) << digit);
    uint32_t place = 0;
    for (uint64_t value = 0; value <= mask; ++value) {
      const uint32_t count = places[value];
      places[value] = place;
      place += count;
    }
    const int shift = 32 + pass * digit;
    for (int64_t i = 0; i < n; ++i) spare[places[(entries[i] >> shift) & mask]++] = entries[i];
    std::swap(entries, spare);
  }
  return entries;
}

}  // namespace megalith
