// Memory for records of unequal length: extents, each of which holds records of one number of live chunks.
//
// The address space is reserved once and never moves. A record takes the lowest free place of its length, an extent
// the lowest that is free, so what is new lies close together and memory ends where the highest extent does. When
// `compact` has moved records down, what is above goes back to the system.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "chunks/record.h"
#include "parallel.h"

namespace megalith {

// What an arena takes, in bytes.
struct ArenaBytes {
  int64_t records = 0;      // in use
  int64_t free = 0;         // touched without a record in it
  int64_t bookkeeping = 0;  // which places are in use
};

class ChunkArena {
 public:
  // `layouts` by live chunks; records are rounded up to units, which depend on `capacity`: fewer than 2^31 of them.
  ChunkArena(std::vector<RecordLayout> layouts, int64_t capacity);
  ChunkArena(const ChunkArena&) = delete;
  ChunkArena& operator=(const ChunkArena&) = delete;
  ~ChunkArena();

  // Fills in what kernels need: base, live chunks by extent, shifts.
  void describe(ChunkedPool& pool) const;

  // The lowest free place for a record of so many chunks; its bytes hold anything.
  uint32_t allocate(int64_t live);
  void free(uint32_t slot);

  // Moves records so that no length has more extents than it needs and all lie at the bottom, and gives the rest of the
  // memory back. `visit(move)` calls move(slot) for the slot of every record and keeps what it returns, up to three
  // times.
  using MoveSlot = std::function<uint32_t(uint32_t)>;
  void compact(const std::function<void(const MoveSlot&)>& visit);

  // Calls body(slot) for every record, in the order of memory, on all threads.
  template <class Body>
  void for_each_record(Body body) const {
    parallel_for(1, static_cast<int64_t>(extents_.size()), 8, [&](int64_t from, int64_t to) {
      for (int64_t extent = from; extent < to; ++extent) {
        const int64_t units = record_units_[live_[static_cast<size_t>(extent)]];
        const std::vector<uint64_t>& used = extents_[static_cast<size_t>(extent)].used;
        for (size_t word = 0; word < used.size(); ++word) {
          for (uint64_t rest = used[word]; rest; rest &= rest - 1) {
            const int64_t place = static_cast<int64_t>(word) * 64 + __builtin_ctzll(rest);
            body(static_cast<uint32_t>((extent << extent_shift_) + place * units));
          }
        }
      }
    });
  }

  ArenaBytes bytes() const;
  int64_t unit_bytes() const { return int64_t{1} << unit_shift_; }
  // Bytes that a record of so many chunks takes.
  int64_t record_bytes(int64_t live) const { return record_units_[static_cast<size_t>(live)] << unit_shift_; }
  int64_t num_records(int64_t live) const { return counts_[static_cast<size_t>(live)]; }

 private:
  struct Extent {
    std::vector<uint64_t> used;  // a bit for each place
    uint32_t count = 0;
    uint32_t first_word = 0;     // no word before it has a free place
    uint32_t end = 0;            // places from here on were never in use
  };

  int64_t places(int64_t live) const { return extent_units_ / record_units_[static_cast<size_t>(live)]; }
  char* address(int64_t extent) const { return base_ + (extent << (extent_shift_ + unit_shift_)); }
  int64_t live_of(uint32_t extent) const { return live_[extent]; }
  uint32_t new_extent(int64_t live);
  void release_extent(uint32_t extent);
  uint32_t take_place(uint32_t extent);
  std::vector<uint8_t> choose_emptied(int64_t* num_kept);
  void touch(uint32_t extent, int64_t bytes);
  void pack(const std::function<void(const MoveSlot&)>& visit);
  void use_huge_pages();
  void use_small_pages();
  void give_back(int64_t first_extent);

  std::vector<RecordLayout> layouts_;
  std::vector<int64_t> record_units_, counts_;
  int64_t unit_shift_ = 2, extent_shift_ = 0, extent_units_ = 0;
  char* base_ = nullptr;
  int64_t reserved_ = 0, num_extents_ = 0;
  std::vector<uint8_t> live_;               // by extent; 0: free. Never resized.
  std::vector<Extent> extents_;             // up to the highest that was ever used
  std::set<uint32_t> free_extents_;         // below the highest, of no length
  std::vector<std::set<uint32_t>> open_;    // by live chunks: extents with a free place
  std::vector<uint32_t> touched_;           // by extent: bytes from its first that may be resident
  int64_t huge_from_ = 0;                   // memory from this extent on is on huge pages
  bool first_are_huge_ = false;             // and so is that before it
};

}  // namespace megalith
