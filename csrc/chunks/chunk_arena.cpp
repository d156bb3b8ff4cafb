#include "chunks/chunk_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

namespace megalith {
namespace {

constexpr int64_t kExtentBytes = 64 << 10, kPageBytes = 4 << 10, kHugeBytes = 2 << 20;
// An extent has room for so many records at least, so that what does not fit at its end is little.
constexpr int64_t kLeastRecords = 64;
// Memory beyond this is on huge pages, as that of whole rows is; the last of them counts in full. Memory before it is on
// small ones until the arena has grown to twice as much.
constexpr int64_t kSmallArena = 16 << 20;

int64_t rounded_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

}  // namespace

ChunkArena::ChunkArena(std::vector<RecordLayout> layouts, int64_t capacity) : layouts_(std::move(layouts)) {
  const int64_t longest = layouts_.back().bytes;
  int64_t extent_bytes = kExtentBytes;
  while (extent_bytes < kLeastRecords * longest) extent_bytes *= 2;
  // Extent 0 stays empty, as slot 0 is no record's; its addresses are never touched.
  reserved_ = rounded_up(std::max(capacity, extent_bytes), extent_bytes) + 2 * extent_bytes;
  while (reserved_ >> unit_shift_ >= int64_t{kFirstAbsent}) ++unit_shift_;
  while (int64_t{1} << (extent_shift_ + unit_shift_) < extent_bytes) ++extent_shift_;
  extent_units_ = int64_t{1} << extent_shift_;
  num_extents_ = reserved_ / extent_bytes;
  for (const RecordLayout& layout : layouts_) {
    record_units_.push_back(rounded_up(layout.bytes, unit_bytes()) >> unit_shift_);
  }
  counts_.assign(layouts_.size(), 0);
  open_.resize(layouts_.size());
  live_.assign(static_cast<size_t>(num_extents_), 0);
  extents_.resize(1);
  touched_.resize(1);
  huge_from_ = std::max<int64_t>(1, kSmallArena / extent_bytes);
  void* memory = mmap(nullptr, static_cast<size_t>(reserved_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(memory);
#if defined(MADV_HUGEPAGE)
  const int64_t huge = huge_from_ * extent_bytes;
  if (huge < reserved_) madvise(base_ + huge, static_cast<size_t>(reserved_ - huge), MADV_HUGEPAGE);
#endif
}

ChunkArena::~ChunkArena() { munmap(base_, static_cast<size_t>(reserved_)); }

void ChunkArena::describe(ChunkedPool& pool) const {
  pool.base = base_;
  pool.live = live_.data();
  pool.layouts = layouts_.data();
  pool.unit_shift = unit_shift_;
  pool.extent_shift = extent_shift_;
}

uint32_t ChunkArena::allocate(int64_t live) {
  std::set<uint32_t>& open = open_[static_cast<size_t>(live)];
  const uint32_t extent = open.empty() ? new_extent(live) : *open.begin();
  ++counts_[static_cast<size_t>(live)];
  return take_place(extent);
}

uint32_t ChunkArena::new_extent(int64_t live) {
  uint32_t extent;
  if (free_extents_.empty()) {
    if (static_cast<int64_t>(extents_.size()) >= num_extents_) throw std::bad_alloc();
    extent = static_cast<uint32_t>(extents_.size());
    extents_.emplace_back();
    touched_.push_back(0);
  } else {
    extent = *free_extents_.begin();
    free_extents_.erase(free_extents_.begin());
  }
  extents_[extent].used.assign(static_cast<size_t>((places(live) + 63) / 64), 0);
  live_[extent] = static_cast<uint8_t>(live);
  open_[static_cast<size_t>(live)].insert(extent);
  return extent;
}

uint32_t ChunkArena::take_place(uint32_t extent) {
  Extent& own = extents_[extent];
  const int64_t live = live_of(extent);
  while (own.used[own.first_word] == ~uint64_t{0}) ++own.first_word;
  const uint32_t place = own.first_word * 64 + static_cast<uint32_t>(__builtin_ctzll(~own.used[own.first_word]));
  own.used[place / 64] |= uint64_t{1} << place % 64;
  if (place >= own.end) {
    own.end = place + 1;
    touch(extent, own.end * record_bytes(live));
  }
  if (++own.count == places(live)) open_[static_cast<size_t>(live)].erase(extent);
  return static_cast<uint32_t>((int64_t{extent} << extent_shift_) + place * record_units_[static_cast<size_t>(live)]);
}

void ChunkArena::touch(uint32_t extent, int64_t bytes) {
  const int64_t pages = std::min(rounded_up(bytes, kPageBytes), extent_units_ << unit_shift_);
  touched_[extent] = std::max(touched_[extent], static_cast<uint32_t>(pages));
}

void ChunkArena::free(uint32_t slot) {
  const uint32_t extent = slot >> extent_shift_;
  const size_t live = live_[extent];
  const int64_t unit = slot & (extent_units_ - 1);
  const auto place = static_cast<uint32_t>(unit / record_units_[live]);
  Extent& own = extents_[extent];
  if (live == 0 || !(own.used[place / 64] >> place % 64 & 1)) throw std::logic_error("a place is freed twice");
  own.used[place / 64] &= ~(uint64_t{1} << place % 64);
  own.first_word = std::min(own.first_word, place / 64);
  open_[live].insert(extent);
  --counts_[live];
  if (--own.count == 0) release_extent(extent);
}

void ChunkArena::release_extent(uint32_t extent) {
  open_[live_[extent]].erase(extent);
  extents_[extent] = Extent{};
  live_[extent] = 0;
  free_extents_.insert(extent);
}

// Marks the extents whose records go to others of their length: all but the fullest that are needed.
std::vector<uint8_t> ChunkArena::choose_emptied(int64_t* num_kept) {
  std::vector<uint8_t> emptied(extents_.size(), 0);
  std::vector<std::vector<uint32_t>> by_live(layouts_.size());
  for (uint32_t extent = 1; extent < extents_.size(); ++extent) by_live[live_[extent]].push_back(extent);
  *num_kept = 0;
  for (size_t live = 1; live < by_live.size(); ++live) {
    std::vector<uint32_t>& own = by_live[live];
    const int64_t room = places(static_cast<int64_t>(live));
    const auto needed = static_cast<size_t>((counts_[live] + room - 1) / room);
    *num_kept += static_cast<int64_t>(needed);
    if (own.size() <= needed) continue;
    std::stable_sort(own.begin(), own.end(),
                     [&](uint32_t a, uint32_t b) { return extents_[a].count > extents_[b].count; });
    for (size_t i = needed; i < own.size(); ++i) {
      emptied[own[i]] = 1;
      open_[live].erase(own[i]);
    }
  }
  return emptied;
}

void ChunkArena::compact(const std::function<void(const MoveSlot&)>& visit) {
  int64_t num_kept = 0;
  const std::vector<uint8_t> emptied = choose_emptied(&num_kept);
  if (std::find(emptied.begin(), emptied.end(), 1) != emptied.end()) {
    visit([&](uint32_t slot) {
      const uint32_t extent = slot >> extent_shift_;
      if (!emptied[extent]) return slot;
      const int64_t live = live_of(extent);
      const uint32_t to = take_place(*open_[static_cast<size_t>(live)].begin());
      std::memcpy(base_ + (int64_t{to} << unit_shift_), base_ + (int64_t{slot} << unit_shift_),
                  static_cast<size_t>(record_bytes(live)));
      if (--extents_[extent].count == 0) release_extent(extent);
      return to;
    });
  }
  // Whole extents move down into the gaps.
  std::vector<int64_t> moved(extents_.size(), 0);
  bool any = false;
  for (auto extent = static_cast<uint32_t>(num_kept + 1); extent < extents_.size(); ++extent) {
    if (live_[extent] == 0) continue;
    const uint32_t to = *free_extents_.begin();
    const size_t live = live_[extent];
    const int64_t bytes = extents_[extent].end * record_bytes(static_cast<int64_t>(live));
    std::memcpy(address(to), address(extent), static_cast<size_t>(bytes));
    touch(to, bytes);
    free_extents_.erase(to);
    if (open_[live].erase(extent)) open_[live].insert(to);
    extents_[to] = std::move(extents_[extent]);
    extents_[extent] = Extent{};
    live_[to] = static_cast<uint8_t>(live);
    live_[extent] = 0;
    moved[extent] = (int64_t{to} - int64_t{extent}) * extent_units_;
    any = true;
  }
  if (any) visit([&](uint32_t slot) { return static_cast<uint32_t>(slot + moved[slot >> extent_shift_]); });
  if (num_kept < huge_from_) {
    pack(visit);
    use_small_pages();
  }
  give_back(num_kept + 1);
  if (num_kept >= 2 * huge_from_) use_huge_pages();
}

void ChunkArena::use_huge_pages() {
  if (first_are_huge_) return;
  first_are_huge_ = true;
#if defined(MADV_HUGEPAGE)
  const auto bytes = static_cast<size_t>(address(huge_from_) - base_);
  madvise(base_, bytes, MADV_HUGEPAGE);
#if defined(MADV_COLLAPSE)
  constexpr int kCollapse = MADV_COLLAPSE;
#else
  constexpr int kCollapse = 25;  // since Linux 6.1; what an older one refuses, it does in the background
#endif
  madvise(base_, bytes, kCollapse);
#endif
}

// Records are written again, so that the system has the huge pages back at once and not when it needs them.
void ChunkArena::use_small_pages() {
  if (!first_are_huge_) return;
  first_are_huge_ = false;
#if defined(MADV_NOHUGEPAGE)
  std::vector<std::vector<char>> kept(extents_.size());
  for (size_t extent = 1; extent < extents_.size(); ++extent) {
    const char* from = address(static_cast<int64_t>(extent));
    kept[extent].assign(from, from + extents_[extent].end * record_bytes(live_[extent]));
  }
  const auto bytes = static_cast<size_t>(address(huge_from_) - base_);
  madvise(base_, bytes, MADV_NOHUGEPAGE);
  madvise(base_, bytes, MADV_DONTNEED);
  for (size_t extent = 1; extent < extents_.size(); ++extent) {
    std::copy(kept[extent].begin(), kept[extent].end(), address(static_cast<int64_t>(extent)));
  }
#endif
}

// Closes the gaps between records wherever whole pages come free by that: one page of each extent is partly free then.
void ChunkArena::pack(const std::function<void(const MoveSlot&)>& visit) {
  std::vector<uint8_t> packed(extents_.size(), 0);
  bool any = false;
  for (size_t extent = 1; extent < extents_.size(); ++extent) {
    const Extent& own = extents_[extent];
    const int64_t record = record_bytes(live_[extent]);
    packed[extent] = rounded_up(own.count * record, kPageBytes) < rounded_up(own.end * record, kPageBytes);
    any = any || packed[extent];
  }
  if (!any) return;
  visit([&](uint32_t slot) {
    const uint32_t extent = slot >> extent_shift_;
    if (!packed[extent]) return slot;
    Extent& own = extents_[extent];
    const int64_t units = record_units_[live_[extent]], place = (slot & (extent_units_ - 1)) / units;
    if (place < own.count) return slot;
    while (own.used[own.first_word] == ~uint64_t{0}) ++own.first_word;
    const int64_t free = own.first_word * 64 + __builtin_ctzll(~own.used[own.first_word]);
    own.used[static_cast<size_t>(free / 64)] |= uint64_t{1} << free % 64;
    own.used[static_cast<size_t>(place / 64)] &= ~(uint64_t{1} << place % 64);
    const auto to = static_cast<uint32_t>(slot - (place - free) * units);
    std::memcpy(base_ + (int64_t{to} << unit_shift_), base_ + (int64_t{slot} << unit_shift_),
                static_cast<size_t>(units << unit_shift_));
    return to;
  });
}

void ChunkArena::give_back(int64_t first_extent) {
  const auto end = static_cast<int64_t>(extents_.size());
  if (end > first_extent) {
    // The huge page that the last extent begins or ends in is resident behind it, too.
    const int64_t behind = rounded_up(reinterpret_cast<int64_t>(address(end)), kHugeBytes);
    const int64_t to = std::min(behind, reinterpret_cast<int64_t>(base_ + reserved_));
    const int64_t from = reinterpret_cast<int64_t>(address(first_extent));
    madvise(address(first_extent), static_cast<size_t>(to - from), MADV_DONTNEED);
  }
  // Whole pages behind the last record of an extent, too.
  for (int64_t extent = 1; extent < std::min(first_extent, huge_from_) && !first_are_huge_; ++extent) {
    Extent& own = extents_[static_cast<size_t>(extent)];
    while (own.end > 0 && !(own.used[(own.end - 1) / 64] >> (own.end - 1) % 64 & 1)) --own.end;
    const int64_t last = own.end * record_bytes(live_[static_cast<size_t>(extent)]);
    const int64_t from = rounded_up(last, kPageBytes), to = touched_[static_cast<size_t>(extent)];
    if (to <= from) continue;
    madvise(address(extent) + from, static_cast<size_t>(to - from), MADV_DONTNEED);
    touched_[static_cast<size_t>(extent)] = static_cast<uint32_t>(from);
  }
  free_extents_.clear();
  extents_.resize(static_cast<size_t>(first_extent));
  touched_.resize(static_cast<size_t>(first_extent));
}

ArenaBytes ChunkArena::bytes() const {
  ArenaBytes bytes;
  const int64_t extent_bytes = extent_units_ << unit_shift_, end = static_cast<int64_t>(extents_.size());
  for (size_t live = 1; live < counts_.size(); ++live) {
    bytes.records += counts_[live] * record_bytes(static_cast<int64_t>(live));
  }
  int64_t touched = first_are_huge_ ? extent_bytes : 0;
  for (int64_t extent = 1; extent < end; ++extent) {
    touched += extent < huge_from_ && !first_are_huge_ ? touched_[static_cast<size_t>(extent)] : extent_bytes;
    bytes.bookkeeping += static_cast<int64_t>(sizeof(Extent) + extents_[static_cast<size_t>(extent)].used.size() * 8);
  }
  if (end > huge_from_) {
    const auto last = reinterpret_cast<int64_t>(address(end));
    touched += std::min(rounded_up(last, kHugeBytes), reinterpret_cast<int64_t>(base_ + reserved_)) - last;
  }
  bytes.free = touched - bytes.records;
  bytes.bookkeeping += static_cast<int64_t>(sizeof *this) + end * 5;
  return bytes;
}

}  // namespace megalith
