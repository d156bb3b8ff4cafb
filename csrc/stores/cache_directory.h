// Which rows of a tiered pool are in memory, and where: sets of sixteen slots, with all that is known of them together.
//
// The set and the tag of a row together are its permuted key, so that four bytes tell exactly. A row whose set is full
// of rows that may not leave goes to an overflow area, found through a map: a full set costs time, never a result.
// The stamp of a slot is the last batch that uses it; what a batch uses that is not released cannot be evicted.
// With look-ahead a slot has a bit for each of the next 33 batches that may use it, so that what is used furthest ahead
// can leave; a longer window is told in groups of batches. A row without a slot has its bits in a table of their own.
// Counts of uses fade, so that a row which was popular once can leave: by an eighth with every row that leaves the set,
// and by a half at the end of a period in which the row was not used. Periods are counted in rows that leave and hits.
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

#include "stores/expected_rows.h"
#include "page_memory.h"

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

  // Always inline: GCC takes calls of a function that does nothing but this for useless, and drops them.
  __attribute__((always_inline)) void prefetch(const Place& place) const {
    if (num_sets_ == 0) return;
    const Set& set = sets_[place.set];
    __builtin_prefetch(&set.tags);
    __builtin_prefetch(&set.ages, 1);
    if (looks_ahead()) __builtin_prefetch(&set.ahead, 1);
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

  // Batches are resolved in order, and this one is next.
  void begin_batch(uint32_t batch) {
    batch_ = batch;
    absent_.shrink(group_of(batch));
  }
  // Notes that a batch uses the row of a slot.
  void touch(uint32_t slot, uint32_t batch) {
    Set& set = set_of(slot);
    const uint32_t way = slot % kWays;
    if (set.now < batch) advance(set, batch);
    const auto age = static_cast<uint16_t>(set.now - batch);
    if (set.ages[way] == age) return;
    set.ages[way] = age;
    set.due = static_cast<uint16_t>(set.due & ~(1u << way));
    if (set.counts[way] != 255) ++set.counts[way];
    if (set.hits != 255) ++set.hits;
  }

  bool looks_ahead() const { return policy_ == CachePolicy::kLookAhead; }
  // Says how far ahead rows will be expected.
  void look_as_far_as(uint32_t batch);
  // Notes that a batch which is still to come uses a row.
  void expect(const Place& place, uint32_t batch) {
    const uint32_t next = batch_ + 1, slot = find(place);
    if (batch < next) return;
    if (slot == kNoSlot) {
      absent_.add(place.permuted, group_of(batch), group_of(next));
      return;
    }
    Set& set = set_of(slot);
    const uint32_t way = slot % kWays;
    if (set.now < next) advance(set, next);
    const uint32_t ahead = group_of(batch) - group_of(set.now);
    if (ahead == 0) {
      set.due = static_cast<uint16_t>(set.due | 1u << way);
    } else {
      set.ahead[way] |= uint32_t{1} << (ahead < ExpectedUses::kReach ? ExpectedUses::kReach - ahead : 0);
    }
  }

  uint32_t stamp(uint32_t slot) const { return set_of(slot).now - set_of(slot).ages[slot % kWays]; }

  // Whether training changed the row since it was last written.
  bool is_dirty(uint32_t slot) const { return set_of(slot).dirty >> (slot % kWays) & 1; }
  void set_dirty(uint32_t slot, bool dirty);
  int64_t num_dirty() const { return num_dirty_; }

  uint64_t permuted_key(uint32_t slot) const;
  int64_t capacity() const { return capacity_; }
  int64_t num_overflowed() const { return static_cast<int64_t>(overflow_.size()); }
  int64_t bytes() const;

 private:
  // A period of a set ends when so many rows have left it, and they and twice the hits are as many as a whole period:
  // where there are few hits a row is used rarely, and its next use is waited for longer.
  static constexpr uint32_t kEvictions = 40, kWholePeriod = 128;

  static constexpr uint32_t kNoTag = 0;  // memory begins as zeros: no set need be touched before it is used

  struct Set {
    uint32_t tags[kWays];
    uint32_t ahead[kWays];  // groups of batches after that of `now` that use it, the next in the highest bit
    uint16_t ages[kWays];   // batches before `now` of the last one that used it, 65535 if there are more
    uint8_t counts[kWays];
    uint32_t now;           // a batch
    uint32_t period;        // the batch at which its period began
    uint16_t due;           // a bit for each way: the group of `now` uses it, and has not done so yet
    uint16_t dirty;         // a bit for each way
    uint16_t overflowed;    // rows of this set that are in the overflow area
    uint8_t evictions;      // of the period
    uint8_t hits;           // of the period, 255 if there are more
  };
  struct alignas(64) PaddedSet : Set {};
  static_assert(sizeof(PaddedSet) == 192);

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

  // Counts what is known of a set from a later batch.
  void advance(Set& set, uint32_t batch) const {
    const uint32_t passed = batch - set.now, groups = group_of(batch) - group_of(set.now);
    const auto older = static_cast<uint16_t>(passed < 65535 ? passed : 65535);
    set.now = batch;
#if defined(__SSE2__)
    const __m128i more = _mm_set1_epi16(static_cast<int16_t>(older));
    auto* ages = reinterpret_cast<__m128i*>(set.ages);
    for (int i = 0; i < 2; ++i) _mm_store_si128(ages + i, _mm_adds_epu16(_mm_load_si128(ages + i), more));
    if (!looks_ahead() || groups == 0) return;
    const __m128i skipped = _mm_cvtsi32_si128(static_cast<int>(groups - 1 < 32 ? groups - 1 : 32));
    auto* ahead = reinterpret_cast<__m128i*>(set.ahead);
    int due = 0;
    for (int i = 0; i < 4; ++i) {
      const __m128i coming = _mm_sll_epi32(_mm_load_si128(ahead + i), skipped);
      due |= _mm_movemask_ps(_mm_castsi128_ps(coming)) << 4 * i;
      _mm_store_si128(ahead + i, _mm_slli_epi32(coming, 1));
    }
    set.due = static_cast<uint16_t>(due);
#else
    for (uint16_t& age : set.ages) age = static_cast<uint16_t>(age + older < 65535 ? age + older : 65535);
    if (!looks_ahead() || groups == 0) return;
    set.due = 0;
    for (int64_t way = 0; way < kWays; ++way) {
      const uint32_t coming = groups - 1 < 32 ? set.ahead[way] << (groups - 1) : 0;
      set.due = static_cast<uint16_t>(set.due | coming >> 31 << way);
      set.ahead[way] = coming << 1;
    }
#endif
  }

  uint32_t group_of(uint32_t batch) const { return batch >> group_bits_; }
  ExpectedUses uses(uint32_t slot) const {
    const Set& set = set_of(slot);
    const uint32_t way = slot % kWays;
    return {group_of(set.now), uint64_t{set.due >> way & 1u} << 63 | uint64_t{set.ahead[way]} << 31};
  }
  void set_uses(uint32_t slot, const ExpectedUses& uses);
  // Of a row that leaves its slot.
  void remember_uses(uint32_t slot, uint64_t permuted);

  Set& set_of(uint32_t slot) { return sets_[slot / kWays]; }
  const Set& set_of(uint32_t slot) const { return sets_[slot / kWays]; }
  uint32_t first_overflow() const { return static_cast<uint32_t>(num_sets_ * kWays); }

  // Of slots that may leave, that with the largest number does: what the window does not use, then what it uses
  // furthest ahead; of these what is used least, or, with LRU alone, least recently.
  uint32_t leaving_order(uint32_t slot) const {
    const Set& set = set_of(slot);
    const uint32_t way = slot % kWays;
    uint32_t order = set.ages[way];
    if (policy_ != CachePolicy::kLru) order |= (255u - set.counts[way]) << 16;
    if (looks_ahead() && !(set.due >> way & 1)) {
      order |= (set.ahead[way] == 0 ? 63u : 1u + static_cast<uint32_t>(__builtin_clz(set.ahead[way]))) << 24;
    }
    return order;
  }
  // Fades the counts of a set that a row leaves.
  void fade(Set& set) const;
  uint32_t victim_in_set(uint32_t set, uint32_t released, bool only_clean);
  uint32_t overflow_slot(uint32_t released, Victim wanted);
  static int64_t num_all_sets(int64_t sets, int64_t capacity) { return sets + (capacity - sets * kWays + kWays - 1) / kWays; }

  int64_t num_sets_, capacity_, num_dirty_ = 0;
  uint32_t batch_ = 0;       // the last that was begun
  uint32_t group_bits_ = 0;  // so many bits of the number of a batch do not tell its group
  CachePolicy policy_;
  uint64_t reciprocal_ = 0;
  PageMemory memory_;
  PaddedSet* sets_;                                // those of the overflow area follow
  ExpectedRows absent_;
  std::unordered_map<uint64_t, uint32_t> overflow_;
  std::vector<uint64_t> overflow_keys_;            // by slot of the overflow area
  std::vector<bool> overflow_used_;
  int64_t num_overflow_dirty_ = 0;
  int64_t hand_ = 0;                               // where the search for room in the overflow area goes on
  int64_t none_since_[3] = {-1, -1, -1};           // `released` when a search for each kind found nothing
};

}  // namespace megalith
