#include "stores/cache_directory.h"

#include <algorithm>
#include <string>

#include "abi.h"

namespace megalith {

CacheDirectory::CacheDirectory(int64_t sets, int64_t capacity, CachePolicy policy)
    : num_sets_(sets),
      capacity_(capacity),
      policy_(policy),
      memory_(num_all_sets(sets, capacity) * static_cast<int64_t>(sizeof(PaddedSet))),
      sets_(memory_.as<PaddedSet>()) {
  // One set: the reciprocal is 2^64, which 64 bits do not hold; the tag is the key itself.
  if (sets == 1) throw std::logic_error("A directory has no set, or at least two.");
  if (sets > 0) reciprocal_ = ~uint64_t{0} / static_cast<uint64_t>(sets) + 1;
  const auto spare = static_cast<size_t>(capacity - sets * kWays);
  overflow_keys_.assign(spare, 0);
  overflow_used_.assign(spare, false);
  overflow_.reserve(spare);
}

void CacheDirectory::look_as_far_as(uint32_t batch) {
  const uint32_t next = batch_ + 1;
  while (batch > next && group_of(batch) - group_of(next) > ExpectedUses::kReach && group_bits_ < 16) {
    absent_.double_groups(group_of(next));
    const uint32_t before = group_bits_++;
    for (int64_t i = 0; i < num_all_sets(num_sets_, capacity_) * kWays; ++i) {
      const auto slot = static_cast<uint32_t>(i);
      ExpectedUses held = uses(slot);
      held.first = set_of(slot).now >> before;
      if (held.bits != 0) set_uses(slot, held.doubled());
    }
  }
}

void CacheDirectory::set_uses(uint32_t slot, const ExpectedUses& uses) {
  Set& set = set_of(slot);
  const uint32_t way = slot % kWays;
  const uint64_t bits = uses.from(group_of(set.now)).bits;
  set.due = static_cast<uint16_t>((set.due & ~(1u << way)) | static_cast<uint32_t>(bits >> 63) << way);
  set.ahead[way] = static_cast<uint32_t>(bits >> 31);
}

void CacheDirectory::fade(Set& set) const {
  if (policy_ == CachePolicy::kLru) return;
  for (uint8_t& count : set.counts) count = static_cast<uint8_t>(count - count / 8);
  ++set.evictions;
  if (set.evictions < kEvictions || set.evictions + 2u * set.hits < kWholePeriod) return;
  for (int64_t way = 0; way < kWays; ++way) {
    if (set.now - set.ages[way] < set.period) set.counts[way] /= 2;
  }
  set.period = set.now;
  set.evictions = set.hits = 0;
}

uint32_t CacheDirectory::victim_in_set(uint32_t number, uint32_t released, bool only_clean) {
  Set& set = sets_[number];
  if (set.now < batch_) advance(set, batch_);
  const uint32_t first = number * static_cast<uint32_t>(kWays);
  uint32_t chosen = kNoSlot, furthest = 0;
  for (uint32_t slot = first; slot < first + kWays; ++slot) {
    if (stamp(slot) > released || (only_clean && is_dirty(slot))) continue;
    const uint32_t order = leaving_order(slot);
    if (chosen != kNoSlot && order <= furthest) continue;
    chosen = slot;
    furthest = order;
  }
  return chosen;
}

CacheDirectory::Room CacheDirectory::make_room(const Place& place, uint32_t released, bool only_read) {
  if (looks_ahead()) absent_.prefetch(place.permuted);
  if (num_sets_ != 0) {
    Set& set = sets_[place.set];
    const int empty = way_of(set.tags, kNoTag);
    if (empty >= 0) return {place.set * static_cast<uint32_t>(kWays) + static_cast<uint32_t>(empty), false, 0};
    const uint32_t chosen = victim_in_set(place.set, released, only_read);
    if (chosen != kNoSlot) {
      fade(set);
      const uint64_t leaving = permuted_key(chosen);
      set.tags[chosen % kWays] = kNoTag;
      remember_uses(chosen, leaving);
      return {chosen, true, leaving};
    }
  }
  // Room for rows that are only read: half of an overflow area, little of a cache that has no sets.
  const auto spare = static_cast<int64_t>(overflow_keys_.size());
  const bool crowded = num_overflow_dirty_ + spare / (num_sets_ != 0 ? 2 : 16) >= spare;
  uint32_t chosen = kNoSlot;
  if (only_read || crowded) chosen = overflow_slot(released, only_read ? Victim::kClean : Victim::kDirty);
  if (chosen == kNoSlot && only_read && num_sets_ != 0) {
    // Nothing but changed rows anywhere.
    chosen = victim_in_set(place.set, released, false);
    if (chosen != kNoSlot) return make_room(place, released, false);
  }
  if (chosen == kNoSlot) chosen = overflow_slot(released, Victim::kAny);
  if (chosen == kNoSlot) {
    throw CacheFull("The rows of the batches under way do not fit into the cache of " +
                             std::to_string(capacity_) + " rows; give it more, or resolve fewer batches ahead.");
  }
  if (!overflow_used_[chosen - first_overflow()]) return {chosen, false, 0};
  const uint64_t leaving = permuted_key(chosen);
  fade(set_of(chosen));
  take_out(chosen);
  return {chosen, true, leaving};
}

uint32_t CacheDirectory::overflow_slot(uint32_t released, Victim wanted) {
  // Until a batch is released, or a row moves, a search that found nothing would find nothing again.
  int64_t& none_since = none_since_[static_cast<int>(wanted)];
  if (none_since == released) return kNoSlot;
  const uint32_t first = first_overflow();
  const auto spare = static_cast<int64_t>(overflow_keys_.size());
  uint32_t chosen = kNoSlot, furthest = 0;
  int candidates = 0;
  for (int64_t looked = 0; looked < spare && candidates < kWays; ++looked) {
    const auto at = static_cast<uint32_t>(hand_), slot = first + at;
    hand_ = hand_ + 1 == spare ? 0 : hand_ + 1;
    if (!overflow_used_[at]) {
      if (wanted == Victim::kDirty) continue;
      return slot;
    }
    if (stamp(slot) > released) continue;
    if (wanted != Victim::kAny && is_dirty(slot) != (wanted == Victim::kDirty)) continue;
    ++candidates;
    if (set_of(slot).now < batch_) advance(set_of(slot), batch_);
    const uint32_t order = leaving_order(slot);
    if (chosen != kNoSlot && order <= furthest) continue;
    chosen = slot;
    furthest = order;
  }
  if (chosen == kNoSlot) none_since = released;
  return chosen;
}

void CacheDirectory::take_out(uint32_t slot) {
  const uint32_t at = slot - first_overflow();
  const uint64_t permuted = overflow_keys_[at];
  overflow_.erase(permuted);
  overflow_used_[at] = false;
  remember_uses(slot, permuted);
  if (num_sets_ != 0) --sets_[place(permuted).set].overflowed;
  std::fill_n(none_since_, 3, int64_t{-1});
}

void CacheDirectory::remember_uses(uint32_t slot, uint64_t permuted) {
  if (!looks_ahead()) return;
  const ExpectedUses left = uses(slot);
  if (left.bits != 0) absent_.put(permuted, left);
}

void CacheDirectory::put(const Place& place, uint32_t slot, uint32_t batch) {
  Set& set = set_of(slot);
  const uint32_t way = slot % kWays, first = first_overflow();
  if (slot < first) {
    set.tags[way] = place.tag;
  } else {
    overflow_[place.permuted] = slot;
    overflow_keys_[slot - first] = place.permuted;
    overflow_used_[slot - first] = true;
    if (num_sets_ != 0) ++sets_[place.set].overflowed;
  }
  if (set.now < batch) advance(set, batch);
  set.ages[way] = static_cast<uint16_t>(std::min(set.now - batch, uint32_t{65535}));
  set.counts[way] = 1;
  if (!looks_ahead()) return;
  set_uses(slot, absent_.take(place.permuted));
  if (set.now == batch) set.due = static_cast<uint16_t>(set.due & ~(1u << way));
}

void CacheDirectory::set_dirty(uint32_t slot, bool dirty) {
  Set& set = set_of(slot);
  const auto bit = static_cast<uint16_t>(1u << (slot % kWays));
  const int64_t change = int64_t{dirty} - int64_t{(set.dirty & bit) != 0};
  set.dirty = static_cast<uint16_t>(dirty ? set.dirty | bit : set.dirty & ~bit);
  num_dirty_ += change;
  if (slot >= first_overflow()) {
    num_overflow_dirty_ += change;
    std::fill_n(none_since_, 3, int64_t{-1});
  }
}

uint64_t CacheDirectory::permuted_key(uint32_t slot) const {
  const uint32_t first = first_overflow();
  if (slot >= first) return overflow_keys_[slot - first];
  return static_cast<uint64_t>(set_of(slot).tags[slot % kWays] - 1) * static_cast<uint64_t>(num_sets_) + slot / kWays;
}

int64_t CacheDirectory::bytes() const {
  const auto spare = static_cast<int64_t>(overflow_keys_.size());
  return memory_.bytes() + spare * 56 + absent_.bytes();
}

}  // namespace megalith
