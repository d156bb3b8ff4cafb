#include "stores/cache_directory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "abi.h"

namespace megalith {

void CacheDirectory::FreeLines::operator()(uint32_t* memory) const { std::free(memory); }

CacheDirectory::CacheDirectory(int64_t sets, int64_t capacity, CachePolicy policy)
    : sets_(sets), capacity_(capacity), policy_(policy) {
  if (sets > 0) {
    reciprocal_ = ~uint64_t{0} / static_cast<uint64_t>(sets) + 1;
    const size_t bytes = static_cast<size_t>(sets * kWays) * sizeof(uint32_t);
    tags_.reset(static_cast<uint32_t*>(std::aligned_alloc(64, bytes)));
    if (tags_ == nullptr) throw std::bad_alloc();
    std::fill_n(tags_.get(), sets * kWays, kNoTag);
    // One set: the reciprocal is 2^64, which 64 bits do not hold; the tag is the key itself.
    if (sets == 1) throw std::logic_error("A directory has no set, or at least two.");
  }
  stamps_.assign(static_cast<size_t>(capacity), 0);
  counts_.assign(static_cast<size_t>(capacity), 0);
  if (policy == CachePolicy::kLookAhead) expected_.assign(static_cast<size_t>(capacity), 0);
  overflowed_.assign(static_cast<size_t>(sets), 0);
  const auto spare = static_cast<size_t>(capacity - sets * kWays);
  overflow_keys_.assign(spare, 0);
  overflow_used_.assign(spare, false);
  overflow_.reserve(spare);
}

bool CacheDirectory::leaves_before(uint32_t one, uint32_t other, uint32_t released) const {
  if (policy_ == CachePolicy::kLookAhead) {
    // What no batch of the window uses leaves first, then what is used furthest ahead.
    const bool wanted = expected_[one] > released, other_wanted = expected_[other] > released;
    if (wanted != other_wanted) return other_wanted;
    if (wanted && expected_[one] != expected_[other]) return expected_[one] > expected_[other];
  }
  if (policy_ != CachePolicy::kLru && counts_[one] != counts_[other]) return counts_[one] < counts_[other];
  return stamps_[one] < stamps_[other];
}

uint32_t CacheDirectory::make_room(const Place& place, uint32_t released, bool& evicted, uint64_t& leaving) {
  evicted = false;
  if (sets_ != 0) {
    const uint32_t first = place.set * static_cast<uint32_t>(kWays);
    const uint32_t* tags = tags_.get() + first;
    const int empty = way_of(tags, kNoTag);
    if (empty >= 0) return first + static_cast<uint32_t>(empty);
    uint32_t chosen = kNoSlot;
    for (uint32_t slot = first; slot < first + kWays; ++slot) {
      if (stamps_[slot] > released) continue;
      if (chosen == kNoSlot || leaves_before(slot, chosen, released)) chosen = slot;
    }
    if (chosen != kNoSlot) {
      if (policy_ != CachePolicy::kLru) {
        // Old counts fade, or what was popular once would stay for ever.
        for (uint32_t slot = first; slot < first + kWays; ++slot) counts_[slot] -= counts_[slot] / 8;
      }
      evicted = true;
      leaving = permuted_key(chosen);
      tags_[chosen] = kNoTag;
      --num_rows_;
      return chosen;
    }
  }
  return overflow_room(released, evicted, leaving);
}

uint32_t CacheDirectory::overflow_room(uint32_t released, bool& evicted, uint64_t& leaving) {
  const auto first = static_cast<uint32_t>(sets_ * kWays);
  const auto spare = static_cast<int64_t>(overflow_keys_.size());
  uint32_t chosen = kNoSlot;
  int candidates = 0;
  for (int64_t looked = 0; looked < spare && candidates < kWays; ++looked) {
    const auto at = static_cast<uint32_t>(hand_);
    hand_ = hand_ + 1 == spare ? 0 : hand_ + 1;
    if (!overflow_used_[at]) return first + at;
    if (stamps_[first + at] > released) continue;
    ++candidates;
    if (chosen == kNoSlot || leaves_before(first + at, chosen, released)) chosen = first + at;
  }
  if (chosen == kNoSlot) {
    throw CacheFull("The rows of the batches under way do not fit into the cache of " +
                             std::to_string(capacity_) + " rows; give it more, or resolve fewer batches ahead.");
  }
  evicted = true;
  leaving = overflow_keys_[chosen - first];
  overflow_.erase(leaving);
  overflow_used_[chosen - first] = false;
  if (sets_ != 0) --overflowed_[this->place(leaving).set];
  --num_rows_;
  return chosen;
}

void CacheDirectory::put(const Place& place, uint32_t slot, uint32_t batch) {
  const auto first = static_cast<uint32_t>(sets_ * kWays);
  if (slot < first) {
    tags_[slot] = place.tag;
  } else {
    overflow_[place.permuted] = slot;
    overflow_keys_[slot - first] = place.permuted;
    overflow_used_[slot - first] = true;
    if (sets_ != 0) ++overflowed_[place.set];
  }
  stamps_[slot] = batch;
  counts_[slot] = 1;
  if (!expected_.empty()) expected_[slot] = batch;
  ++num_rows_;
}

bool CacheDirectory::holds_row(uint32_t slot) const {
  const auto first = static_cast<uint32_t>(sets_ * kWays);
  return slot < first ? tags_[slot] != kNoTag : overflow_used_[slot - first];
}

uint64_t CacheDirectory::permuted_key(uint32_t slot) const {
  const auto first = static_cast<uint32_t>(sets_ * kWays);
  if (slot >= first) return overflow_keys_[slot - first];
  return static_cast<uint64_t>(tags_[slot]) * static_cast<uint64_t>(sets_) + slot / kWays;
}

int64_t CacheDirectory::bytes() const {
  const auto spare = static_cast<int64_t>(overflow_keys_.size());
  return sets_ * (kWays * 4 + 2) + capacity_ * (4 + 1 + (expected_.empty() ? 0 : 4)) + spare * 64;
}

}  // namespace megalith
