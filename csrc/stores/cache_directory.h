// Which rows of a tiered pool are in memory, and where: sets of sixteen slots, with all that is known of them together.
//
// The set and the tag of a row together are its permuted key, so that four bytes tell exactly. A row whose set is full
// of rows that may not leave goes to an overflow area, found through a map: a full set costs time, never a result.
// The stamp of a slot is the last batch that uses it; what a batch uses that is not released cannot be evicted.
// Changed rows keep to a half of the overflow area: the rest is for rows that are only read, which need not make a
// changed one leave.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "stores/page_memory.h"

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
    if (num_sets_ == 0) return {permuted, 0, 0};
    const auto tag = static_cast<uint64_t>((static_cast<unsigned __int128>(permuted) * reciprocal_) >> 64);
    return {permuted, static_cast<uint32_t>(permuted - tag * static_cast<uint64_t>(num_sets_)),
            static_cast<uint32_t>(tag) + 1};
  }

  void prefetch(const Place& place) const {
    if (num_sets_ == 0) return;
    const Set& set = sets_[place.set];
    __builtin_prefetch(&set.tags);
    __builtin_prefetch(&set.stamps, 1);
    __builtin_prefetch(&set.ahead, 1);
  }

  uint32_t find(const Place& place) const {
    if (num_sets_ != 0) {
      const Set& set = sets_[place.set];
      const int way = way_of(set.tags, place.tag);
      if (way >= 0) return place.set * static_cast<uint32_t>(kWays) + static_cast<uint32_t>(way);
      if (set.overflowed == 0) return kNoSlot;
    }
    const auto found = overflow_.find(place.permuted);
    return found == overflow_.end() ? kNoSlot : found->second;
  }

  // A slot, and the row that leaves it.
  struct Room {
    uint32_t slot;
    bool evicted;
    uint64_t leaving;
  };

  // A slot for a row that is not here. If it is only read, a changed row leaves only where no other can.
  Room make_room(const Place& place, uint32_t released, bool only_read);
  // Puts a row into the slot that was made for it.
  void put(const Place& place, uint32_t slot, uint32_t batch);
  // Whether the row of a slot could go to another: it is in the overflow area, and no batch under way uses it.
  bool can_move(uint32_t slot, uint32_t released) const {
    return num_sets_ != 0 && slot >= first_overflow() && stamp(slot) <= released;
  }
  // Takes the row of a slot of the overflow area out of it.
  void take_out(uint32_t slot);

  // Notes that a batch uses the row of a slot.
  void touch(uint32_t slot, uint32_t batch) {
    Set& set = set_of(slot);
    const uint32_t way = slot % kWays, before = set.stamps[way];
    if (before == batch) return;
    set.stamps[way] = batch;
    set.ahead[way] = ahead_of(batch, before + set.ahead[way]);
    if (set.counts[way] != 255) ++set.counts[way];
  }
  // Notes that a batch which is still to come uses it.
  void expect(uint32_t slot, uint32_t batch) {
    Set& set = set_of(slot);
    const uint32_t way = slot % kWays, ahead = ahead_of(set.stamps[way], batch);
    if (ahead > set.ahead[way]) set.ahead[way] = static_cast<uint16_t>(ahead);
  }

  bool looks_ahead() const { return policy_ == CachePolicy::kLookAhead; }
  uint32_t stamp(uint32_t slot) const { return set_of(slot).stamps[slot % kWays]; }
  // The last batch known to use it.
  uint32_t expected(uint32_t slot) const { return stamp(slot) + set_of(slot).ahead[slot % kWays]; }

  // Whether training changed the row since it was last written.
  bool is_dirty(uint32_t slot) const { return set_of(slot).dirty >> (slot % kWays) & 1; }
  void set_dirty(uint32_t slot, bool dirty);
  int64_t num_dirty() const { return num_dirty_; }

  uint64_t permuted_key(uint32_t slot) const;
  int64_t capacity() const { return capacity_; }
  int64_t num_overflowed() const { return static_cast<int64_t>(overflow_.size()); }
  int64_t bytes() const;

 private:
  static constexpr uint32_t kNoTag = 0;  // memory begins as zeros: no set need be touched before it is used

  struct Set {
    uint32_t tags[kWays];
    uint32_t stamps[kWays];
    uint16_t ahead[kWays];  // how many batches after its stamp the last one known to use it comes
    uint8_t counts[kWays];
    uint16_t dirty;         // a bit for each way
    uint16_t overflowed;    // rows of this set that are in the overflow area
  };
  struct alignas(64) PaddedSet : Set {};

  enum class Victim { kAny, kClean, kDirty };

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

  static uint16_t ahead_of(uint32_t stamp, uint32_t batch) {
    return static_cast<uint16_t>(batch <= stamp ? 0 : batch - stamp > 65535 ? 65535 : batch - stamp);
  }

  Set& set_of(uint32_t slot) { return sets_[slot / kWays]; }
  const Set& set_of(uint32_t slot) const { return sets_[slot / kWays]; }
  uint32_t first_overflow() const { return static_cast<uint32_t>(num_sets_ * kWays); }

  // Whether the first slot should leave rather than the second, both free to leave.
  bool leaves_before(uint32_t one, uint32_t other, uint32_t released) const;
  uint32_t victim_in_set(uint32_t set, uint32_t released, bool only_clean) const;
  uint32_t overflow_slot(uint32_t released, Victim wanted);
  static int64_t num_all_sets(int64_t sets, int64_t capacity) { return sets + (capacity - sets * kWays + kWays - 1) / kWays; }

  int64_t num_sets_, capacity_, num_dirty_ = 0;
  CachePolicy policy_;
  uint64_t reciprocal_ = 0;
  PageMemory memory_;
  PaddedSet* sets_;                                // those of the overflow area follow
  std::unordered_map<uint64_t, uint32_t> overflow_;
  std::vector<uint64_t> overflow_keys_;            // by slot of the overflow area
  std::vector<bool> overflow_used_;
  int64_t num_overflow_dirty_ = 0;
  int64_t hand_ = 0;                               // where the search for room in the overflow area goes on
  int64_t none_since_[3] = {-1, -1, -1};           // `released` when a search for each kind found nothing
};

}  // namespace megalith
