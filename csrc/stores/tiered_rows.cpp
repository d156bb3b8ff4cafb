#include "stores/tiered_rows.h"

#include <algorithm>
#include <cstring>

namespace megalith {
namespace {

uint64_t num_keys(const std::vector<TieredTable>& tables) {
  uint64_t keys = 0;
  for (const TieredTable& table : tables) keys += static_cast<uint64_t>(table.rows);
  return keys;
}

SegmentLogSettings of_rows(SegmentLogSettings settings, const std::vector<PoolPart>& parts, uint64_t keys) {
  settings.row_bytes = 0;
  for (const PoolPart& part : parts) settings.row_bytes += part.bytes;
  settings.num_keys = static_cast<int64_t>(keys);
  return settings;
}

}  // namespace

TieredRows::TieredRows(std::vector<TieredTable> tables, std::vector<PoolPart> parts, int64_t* slot_ids, int64_t sets,
                       int64_t capacity, CachePolicy policy, const SegmentLogSettings& disk)
    : tables_(std::move(tables)),
      parts_(std::move(parts)),
      slot_ids_(slot_ids),
      permute_(KeyPermutation::bits_for(num_keys(tables_))),
      directory_(sets, capacity, policy),
      log_(of_rows(disk, parts_, num_keys(tables_))),
      returned_(static_cast<size_t>(capacity)),
      take_([this](uint32_t slot, const char* row) { unpack(slot, row); }) {
  if (num_keys(tables_) > uint64_t{1} << 40) throw StorageError("A store has at most 2^40 rows a process.");
  if (sets > 0 && permute_.mask() / static_cast<uint64_t>(sets) >= 0xffffffffu) {
    throw std::logic_error("A tag has 32 bits: more sets are needed.");
  }
  uint64_t first = 0;
  for (const TieredTable& table : tables_) {
    first_keys_.push_back(first);
    first += static_cast<uint64_t>(table.rows);
  }
  for (const PoolPart& part : parts_) std::memset(part.memory + padding_slot() * part.bytes, 0, part.bytes);
  if (slot_ids_ != nullptr) std::fill_n(slot_ids_, capacity + 1, int64_t{-1});
}

void TieredRows::begin_change() {
  if (!whole_) {
    throw StorageError("The rows in " + log_.folder() + " are not whole after an earlier error; go back to a checkpoint.");
  }
  whole_ = false;
}

int64_t TieredRows::table_of(uint64_t key) const {
  return std::upper_bound(first_keys_.begin(), first_keys_.end(), key) - first_keys_.begin() - 1;
}

template <class Index>
void TieredRows::resolve(const TableValues* parts, int64_t num_parts, const Index* values, int32_t* slots,
                         uint32_t batch, bool trains) {
  begin_change();
  const uint32_t done = released_.load(std::memory_order_acquire);
  // Of a batch that was given up the rows are still to come: they could not leave.
  if (done > log_.arrived()) settle();
  log_.note_reads(done);
  collect();
  directory_.begin_batch(batch);
  const int64_t lookups = counted_.lookups, hits = counted_.hits;
  try {
    resolve_parts(parts, num_parts, values, slots, batch, trains);
  } catch (const CacheFull&) {
    // What was brought is held by this batch: the call may be made again.
    finish_moves();
    counted_.lookups = lookups;
    counted_.hits = hits;
    end_change();
    throw;
  }
  finish_moves();
  end_change();
}

// Calls use(i, id, place) for the values of a table, whose places in the directory are on their way by then.
template <class Index, class Use>
void TieredRows::with_places(const TableValues& part, const Index* values, const Use& use) const {
  constexpr int64_t kAhead = 16;
  CacheDirectory::Place ahead[kAhead];
  const auto look = [&](int64_t i) {
    ahead[i % kAhead] = directory_.place(permute_(key_of(part.table, static_cast<int64_t>(values[i]))));
    directory_.prefetch(ahead[i % kAhead]);
  };
  for (int64_t i = part.first; i < std::min(part.first + kAhead, part.last); ++i) look(i);
  for (int64_t i = part.first; i < part.last; ++i) {
    const CacheDirectory::Place now = ahead[i % kAhead];
    if (i + kAhead < part.last) look(i + kAhead);
    use(i, static_cast<int64_t>(values[i]), now);
  }
}

template <class Index>
void TieredRows::resolve_parts(const TableValues* parts, int64_t num_parts, const Index* values, int32_t* slots,
                               uint32_t batch, bool trains) {
  for (int64_t p = 0; p < num_parts; ++p) {
    const TableValues& part = parts[p];
    const TieredTable& table = tables_[static_cast<size_t>(part.table)];
    with_places(part, values, [&](int64_t i, int64_t id, const CacheDirectory::Place& now) {
      if (id < 0 || id >= table.rows) throw std::out_of_range("id " + std::to_string(id) + " is no row of its table");
      if (id == table.padding) {
        slots[i] = static_cast<int32_t>(padding_slot());
        return;
      }
      uint32_t slot = directory_.find(now);
      if (slot != CacheDirectory::kNoSlot) {
        if (trains && !directory_.is_dirty(slot)) {
          // Its record is still needed if it is being read.
          if (directory_.stamp(slot) > log_.arrived()) settle();
          if (directory_.can_move(slot, released())) slot = move_to_set(now, slot);
          directory_.set_dirty(slot, true);
          forget_record(now.permuted);
        }
        directory_.touch(slot, batch);
        ++counted_.hits;
      } else {
        slot = bring(now, part.table, id, batch, trains);
      }
      slots[i] = static_cast<int32_t>(slot);
    });
    counted_.lookups += part.last - part.first;
  }
}

template <class Index>
void TieredRows::expect(const TableValues* parts, int64_t num_parts, const Index* values, uint32_t batch) {
  if (!directory_.looks_ahead()) return;
  directory_.look_as_far_as(batch);
  for (int64_t p = 0; p < num_parts; ++p) {
    const TableValues& part = parts[p];
    const TieredTable& table = tables_[static_cast<size_t>(part.table)];
    with_places(part, values, [&](int64_t, int64_t id, const CacheDirectory::Place& now) {
      if (id == table.padding || id < 0 || id >= table.rows) return;
      directory_.expect(now, batch);
    });
  }
}

uint32_t TieredRows::bring(const CacheDirectory::Place& place, int64_t table, int64_t id, uint32_t batch,
                           bool trains) {
  const CacheDirectory::Room room = make_room(place, trains);
  const uint32_t slot = room.slot;
  const bool write = leave(room);
  directory_.put(place, slot, batch);
  if (slot_ids_ != nullptr) slot_ids_[slot] = id;
  directory_.set_dirty(slot, trains);
  move({slot, table, id, place.permuted, room.leaving, batch, write, returned_[slot], trains});
  return slot;
}

CacheDirectory::Room TieredRows::make_room(const CacheDirectory::Place& place, bool trains) {
  try {
    return directory_.make_room(place, released(), !trains);
  } catch (const CacheFull&) {
    // Batches that are done, but whose rows were still coming, make room once they came.
    if (released_.load(std::memory_order_acquire) <= log_.arrived()) throw;
    settle();
    return directory_.make_room(place, released(), !trains);
  }
}

// Takes note that a row leaves; whether it must be written.
bool TieredRows::leave(const CacheDirectory::Room& room) {
  if (!room.evicted) return false;
  ++counted_.evicted;
  return directory_.is_dirty(room.slot);
}

// What a move touches comes from memory while earlier ones are made; their order stays.
void TieredRows::move(const RowMove& next) {
  RowMove& place = moves_[num_moves_ % kMoves];
  if (num_moves_ >= kMoves) make(place);
  place = next;
  ++num_moves_;
  index_.prefetch(next.permuted);
  if (next.write) index_.prefetch(next.leaving);
  for (const PoolPart& part : parts_) {
    const char* row = part.memory + int64_t{next.slot} * part.bytes;
    for (int64_t byte = 0; byte < std::min<int64_t>(part.bytes, 512); byte += 64) __builtin_prefetch(row + byte, 1);
  }
}

void TieredRows::make(const RowMove& move) {
  if (move.write) write_back(move.slot, move.leaving, move.returning);
  // What training changes will be written again: its record is dead once it was read.
  const uint32_t record = move.trains ? index_.erase(move.permuted) : index_.find(move.permuted);
  returned_[move.slot] = record != KeyIndex::kNone && log_.is_young(record);
  if (record == KeyIndex::kNone) {
    begin(move.slot, move.table, move.id);
    ++counted_.new_rows;
  } else {
    log_.want({record, move.slot, key_of(move.table, move.id), move.batch, move.trains, &take_});
    ++counted_.read_rows;
  }
}

void TieredRows::make_moves() {
  for (size_t i = num_moves_ < kMoves ? 0 : num_moves_ - kMoves; i < num_moves_; ++i) make(moves_[i % kMoves]);
  num_moves_ = 0;
}

// Waits until nothing is on its way: files and records are then as the index has them.
void TieredRows::settle() {
  make_moves();
  log_.finish_reads();
}

uint32_t TieredRows::move_to_set(const CacheDirectory::Place& place, uint32_t slot) {
  make_moves();
  const uint32_t stamp = directory_.stamp(slot);
  directory_.take_out(slot);
  const CacheDirectory::Room room = make_room(place, true);
  if (leave(room)) {
    write_back(room.slot, room.leaving, returned_[room.slot]);
    directory_.set_dirty(room.slot, false);
  }
  directory_.put(place, room.slot, stamp);
  if (room.slot == slot) return slot;
  for (const PoolPart& part : parts_) {
    std::memcpy(part.memory + int64_t{room.slot} * part.bytes, part.memory + int64_t{slot} * part.bytes,
                static_cast<size_t>(part.bytes));
  }
  if (slot_ids_ != nullptr) slot_ids_[room.slot] = slot_ids_[slot];
  returned_[room.slot] = returned_[slot];
  return room.slot;
}

void TieredRows::write_back(uint32_t slot, uint64_t permuted, bool returning) {
  char* row;
  const uint32_t record = log_.append(returning ? SegmentLog::kReturning : SegmentLog::kEvicted, row);
  pack(slot, row);
  log_.sealed(record, permute_.inverse(permuted));
  const uint32_t before = index_.set(permuted, record);
  if (before != KeyIndex::kNone) {
    log_.drop(before);
    --num_flushed_dirty_;
  }
  ++counted_.written_back;
}

void TieredRows::forget_record(uint64_t permuted) {
  const uint32_t record = index_.erase(permuted);
  if (record != KeyIndex::kNone) log_.drop(record);
}

void TieredRows::collect() {
  if (!log_.wants_collection(num_dirty())) return;
  settle();
  while (log_.wants_collection(num_dirty())) {
    const bool any = log_.collect([this](uint32_t, uint64_t key, const char* row) {
      append(SegmentLog::kMoved, permute_(key), key, row);
    });
    if (!any) return;
  }
}

void TieredRows::append(SegmentLog::Stream stream, uint64_t permuted, uint64_t key, const char* from) {
  char* row;
  const uint32_t record = log_.append(stream, row);
  std::memcpy(row, from, static_cast<size_t>(log_.row_bytes()));
  log_.sealed(record, key);
  const uint32_t before = index_.set(permuted, record);
  if (before != KeyIndex::kNone) log_.drop(before);
}

void TieredRows::flush() {
  begin_change();
  settle();
  const uint32_t done = released();
  for (int64_t slot = 0; num_dirty() > 0 && slot < directory_.capacity(); ++slot) {
    const auto at = static_cast<uint32_t>(slot);
    if (!directory_.is_dirty(at)) continue;
    write_back(at, directory_.permuted_key(at), returned_[at]);
    if (directory_.stamp(at) <= done) {
      directory_.set_dirty(at, false);
    } else {
      ++num_flushed_dirty_;
    }
  }
  log_.sync();
  end_change();
}

void TieredRows::open(const std::vector<SegmentFile>& files) {
  begin_change();
  const uint64_t keys = num_keys(tables_);
  log_.open(files, [&](uint32_t record, uint64_t key) {
    const std::string& path = log_.path(record);
    if (key >= keys) throw StorageError(path + " is damaged: it holds a row beyond the last table; take another checkpoint.");
    const uint32_t before = index_.set(permute_(key), record);
    if (before != KeyIndex::kNone) {
      throw StorageError(path + " and " + log_.path(before) + " hold the same row; take another checkpoint.");
    }
  });
  end_change();
}

void TieredRows::pack(uint32_t slot, char* row) const {
  for (const PoolPart& part : parts_) {
    std::memcpy(row, part.memory + int64_t{slot} * part.bytes, static_cast<size_t>(part.bytes));
    row += part.bytes;
  }
}

void TieredRows::unpack(uint32_t slot, const char* row) {
  for (const PoolPart& part : parts_) {
    std::memcpy(part.memory + int64_t{slot} * part.bytes, row, static_cast<size_t>(part.bytes));
    row += part.bytes;
  }
}

void TieredRows::begin(uint32_t slot, int64_t table, int64_t id) {
  tables_[static_cast<size_t>(table)].start.fill(id, parts_[0].memory + int64_t{slot} * parts_[0].bytes);
  for (size_t p = 1; p < parts_.size(); ++p) std::memset(parts_[p].memory + int64_t{slot} * parts_[p].bytes, 0, parts_[p].bytes);
}

template void TieredRows::resolve(const TableValues*, int64_t, const int32_t*, int32_t*, uint32_t, bool);
template void TieredRows::resolve(const TableValues*, int64_t, const int64_t*, int32_t*, uint32_t, bool);
template void TieredRows::expect(const TableValues*, int64_t, const int32_t*, uint32_t);
template void TieredRows::expect(const TableValues*, int64_t, const int64_t*, uint32_t);

}  // namespace megalith
