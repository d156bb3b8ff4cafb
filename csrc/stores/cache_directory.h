// Which rows of a tiered pool are in memory, and where: sets of sixteen slots, a cache line of tags each.
//
// The set and the tag of a row together are its permuted key, so that four bytes tell exactly. A row whose set is full
// of rows that may not leave goes to an overflow area, found through a map: a full set costs time, never a result.
// The stamp of a slot is the last batch that uses it; what a batch uses that is not released cannot be evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace megalith {

enum class CachePolicy : int64_t { kLru = 0, kLfu = 1, kLookAhead = 2 };

class CacheDirectory {
 public:
  static constexpr int64_t kWays = 16;
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  // Slots [0, sets * 16) belong to sets, those up to `capacity` are the overflow area.
  CacheDirectory(int64_t sets, int64_t capacity, CachePolicy policy);

  struct Place {
    uint64_t permuted;
    uint32_t set, tag;
  };

  Place place(uint64_t permuted) const {
    if (sets_ == 0) return {permuted, 0, 0};
    const auto tag = static_cast<uint64_t>((static_cast<unsigned __int128>(permuted) * reciprocal_) >> 64);
    return {permuted, static_cast<uint32_t>(permuted - tag * static_cast<uint64_t>(sets_)),
            static_cast<uint32_t>(tag)};
  }

  void prefetch(const Place& place) const {
    if (sets_ == 0) return;
    __builtin_prefetch(tags_.get() + place.set * kWays);
    __builtin_prefetch(stamps_.data() + place.set * kWays, 1);
  }

  uint32_t find(const Place& place) const {
    if (sets_ != 0) {
      const int way = way_of(tags_.get() + place.set * kWays, place.tag);
      if (way >= 0) return place.set * static_cast<uint32_t>(kWays) + static_cast<uint32_t>(way);
      if (overflowed_[place.set] == 0) return kNoSlot;
    }
    const auto found = overflow_.find(place.permuted);
    return found == overflow_.end() ? kNoSlot : found->second;
  }

  // A slot for a row that is not here. If `evicted` is true afterwards, it holds the row of `leaving`.
  uint32_t make_room(const Place& place, uint32_t released, bool& evicted, uint64_t& leaving);
  // Puts a row into the slot that was made for it.
  void put(const Place& place, uint32_t slot, uint32_t batch);

  // Notes that a batch uses the row of a slot.
  void touch(uint32_t slot, uint32_t batch) {
    if (stamps_[slot] == batch) return;
    stamps_[slot] = batch;
    if (counts_[slot] != 255) ++counts_[slot];
  }
  // Notes that a batch which is still to come uses it.
  void expect(uint32_t slot, uint32_t batch) {
    if (!expected_.empty() && expected_[slot] < batch) expected_[slot] = batch;
  }

  // The last batch that was resolved with it.
  uint32_t last_batch(uint32_t slot) const { return stamps_[slot]; }
  // The last batch known to use it; 0 under policies that do not look ahead.
  uint32_t expected(uint32_t slot) const { return expected_.empty() ? 0 : expected_[slot]; }

  bool holds_row(uint32_t slot) const;
  uint64_t permuted_key(uint32_t slot) const;
  int64_t capacity() const { return capacity_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_overflowed() const { return static_cast<int64_t>(overflow_.size()); }
  int64_t bytes() const;

 private:
  static constexpr uint32_t kNoTag = ~uint32_t{0};

  struct FreeLines {
    void operator()(uint32_t* memory) const;
  };

  static int way_of(const uint32_t* tags, uint32_t tag) {
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32(static_cast<int>(tag));
    const auto* lines = reinterpret_cast<const __m128i*>(tags);
    const __m128i low = _mm_packs_epi32(_mm_cmpeq_epi32(_mm_load_si128(lines), wanted),
                                        _mm_cmpeq_epi32(_mm_load_si128(lines + 1), wanted));
    const __m128i high = _mm_packs_epi32(_mm_cmpeq_epi32(_mm_load_si128(lines + 2), wanted),
                                         _mm_cmpeq_epi32(_mm_load_si128(lines + 3), wanted));
    const int found = _mm_movemask_epi8(_mm_packs_epi16(low, high));
    return found ? __builtin_ctz(static_cast<unsigned>(found)) : -1;
#else
    for (int way = 0; way < kWays; ++way) {
      if (tags[way] == tag) return way;
    }
    return -1;
#endif
  }

  // Whether the first slot should leave rather than the second, both free to leave.
  bool leaves_before(uint32_t one, uint32_t other, uint32_t released) const;
  uint32_t overflow_room(uint32_t released, bool& evicted, uint64_t& leaving);

  int64_t sets_, capacity_, num_rows_ = 0;
  CachePolicy policy_;
  uint64_t reciprocal_ = 0;
  std::unique_ptr<uint32_t[], FreeLines> tags_;
  std::vector<uint32_t> stamps_, expected_;
  std::vector<uint8_t> counts_;
  std::vector<uint16_t> overflowed_;               // rows of each set that are in the overflow area
  std::unordered_map<uint64_t, uint32_t> overflow_;
  std::vector<uint64_t> overflow_keys_;            // by slot of the overflow area
  std::vector<bool> overflow_used_;
  int64_t hand_ = 0;                               // where the search for room in the overflow area goes on
};

}  // namespace megalith
