#include "stores/expected_rows.h"

#include <algorithm>

namespace megalith {

ExpectedUses ExpectedRows::take(uint64_t key) {
  if (count_ == 0) return {};
  size_t gap = find(key);
  if (entries_[gap].key != key) return {};
  const ExpectedUses uses = entries_[gap].uses();
  // Those after it move up, unless they are where they belong: no marker of a deletion is left behind.
  for (size_t at = next(gap); entries_[at].key != kNoKey; at = next(at)) {
    if (distance(home(entries_[at].key), at) >= distance(gap, at)) {
      entries_[gap] = entries_[at];
      gap = at;
    }
  }
  entries_[gap].key = kNoKey;
  --count_;
  return uses;
}

void ExpectedRows::drop_passed(uint32_t now) {
  const auto comes = [now](const Entry& entry) {
    return entry.key != kNoKey && entry.uses().from(now).bits != 0;
  };
  const auto coming = static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), comes));
  std::vector<Entry> before(std::max<size_t>(64, 2 * coming));
  entries_.swap(before);
  count_ = coming;
  for (const Entry& entry : before) {
    if (comes(entry)) entries_[find(entry.key)] = entry;
  }
}

void ExpectedRows::double_groups(uint32_t now) {
  drop_passed(now);
  for (Entry& entry : entries_) {
    if (entry.key != kNoKey) keep(entry, entry.key, entry.uses().doubled());
  }
}

}  // namespace megalith
