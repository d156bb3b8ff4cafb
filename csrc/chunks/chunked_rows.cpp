#include "chunks/chunked_rows.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <stdexcept>
#include <string>

#include "chunks/chunk_norm.h"

namespace megalith {
namespace {

std::vector<RecordLayout> layouts_of(const ChunkShape& shape) {
  const int64_t chunks = shape.dim / shape.width, words = (chunks + 15) / 16;
  const auto state = [&](int64_t kind, int64_t live) {
    return kind == kNoState ? 0 : kind == kRowState ? 4 : 4 * live * shape.width;
  };
  std::vector<RecordLayout> layouts;
  for (int64_t live = 0; live <= chunks; ++live) {
    const int64_t utilities = 2 + 2 * words, id = (utilities + 2 * live + 3) / 4 * 4;
    const int64_t first = id + (shape.dtype == 0 ? 0 : 4), second = first + state(shape.first_state, live);
    const int64_t weights = second + state(shape.second_state, live);
    const int64_t bytes = (weights + live * shape.width * dtype_bytes(shape.dtype) + 3) / 4 * 4;
    layouts.push_back({static_cast<uint32_t>(utilities), static_cast<uint32_t>(id), static_cast<uint32_t>(first),
                       static_cast<uint32_t>(second), static_cast<uint32_t>(weights),
                       // The mask is read as eight bytes.
                       static_cast<uint32_t>(bytes < 12 ? 12 : bytes)});
  }
  return layouts;
}

uint16_t rounded_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float widened_bfloat(uint16_t stored) {
  const uint32_t bits = uint32_t{stored} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

ChunkedRows::ChunkedRows(std::vector<ChunkedTable> tables, const ChunkShape& shape, int64_t capacity)
    : tables_(std::move(tables)), shape_(shape), arena_(layouts_of(shape), capacity) {
  const int64_t chunks = shape.dim / shape.width;
  for (const ChunkedTable& table : tables_) {
    // Indices and records keep an id in 32 bits.
    if (table.rows >= int64_t{1} << 32) throw std::invalid_argument("a table has 2^32 rows or more");
  }
  arena_.describe(pool_);
  pool_.dim = shape.dim;
  pool_.width = shape.width;
  pool_.chunks = chunks;
  pool_.dtype = shape.dtype;
  pool_.first_shape = shape.first_state;
  pool_.second_shape = shape.second_state;
  pool_.all_chunks = chunks == 64 ? ~uint64_t{0} : (uint64_t{1} << chunks) - 1;
  for (const ChunkedTable& table : tables_) indices_.push_back(std::make_unique<TableIndex>(table.rows));
}

RecordParts ChunkedRows::parts(uint32_t slot) const {
  char* record = record_at(pool_, slot);
  const int64_t live = live_chunks(pool_, slot);
  const RecordLayout& layout = pool_.layouts[live];
  return {record, live, reinterpret_cast<uint16_t*>(record), reinterpret_cast<uint16_t*>(record + layout.utilities),
          record + layout.id, record + layout.first, record + layout.second, record + layout.weights};
}

void ChunkedRows::start_chunk(int64_t table, int64_t id, int64_t chunk, char* weights) const {
  const ChunkedTable& own = tables_[static_cast<size_t>(table)];
  StartValues start = own.start;
  start.first_column += chunk * shape_.width;
  start.dim = shape_.width;
  start.fill(own.id_of(id), weights);
}

// A new record: utilities and state 0, weights as they begin.
uint32_t ChunkedRows::begin(int64_t table, int64_t id, uint64_t mask) {
  const uint32_t slot = arena_.allocate(__builtin_popcountll(mask));
  const RecordParts own = parts(slot);
  std::memset(own.record, 0, pool_.layouts[own.live].bytes);
  std::memcpy(own.record + 2, &mask, static_cast<size_t>((pool_.chunks + 15) / 16 * 2));
  if (shape_.dtype != 0) {
    const auto number = static_cast<uint32_t>(id);
    std::memcpy(own.id, &number, 4);
  }
  const int64_t bytes = shape_.width * dtype_bytes(shape_.dtype);
  char* weights = own.weights;
  for (uint64_t rest = mask; rest; rest &= rest - 1, weights += bytes) {
    start_chunk(table, id, __builtin_ctzll(rest), weights);
  }
  try {
    index(table).set(static_cast<uint32_t>(id), slot);
  } catch (...) {
    arena_.free(slot);
    throw;
  }
  return slot;
}

void ChunkedRows::check(int64_t table, const int64_t* ids, int64_t count) const {
  const int64_t rows = tables_[static_cast<size_t>(table)].rows;
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < rows) continue;
    throw std::out_of_range("id " + std::to_string(ids[i]) + " of a table of " + std::to_string(rows) + " rows");
  }
}

void ChunkedRows::rewrite(int64_t table, const int64_t* ids, const uint64_t* masks, const float* utilities,
                          const float* growth, int64_t count) {
  check(table, ids, count);
  for (int64_t i = 0; i < count; ++i) {
    if (masks[i] & ~pool_.all_chunks) throw std::out_of_range("a mask names chunks that a row has not");
  }
  ++generation_;
  for (int64_t i = 0; i < count; ++i) {
    rewrite_row(table, ids[i], masks[i], utilities ? rounded_bfloat(utilities[i]) : 0, growth ? growth + i : nullptr);
  }
}

void ChunkedRows::rewrite_row(int64_t table, int64_t id, uint64_t mask, uint16_t utility, const float* growth) {
  const auto row = static_cast<uint32_t>(id);
  const uint32_t before = index(table).find(row);
  const uint64_t old_mask = before ? record_mask(pool_, record_at(pool_, before)) : 0;
  if (mask == 0) {
    if (before) {
      arena_.free(before);
      index(table).erase(row);
    }
    return;
  }
  if (mask != old_mask) {
    // The new record first: without memory for it the row stays as it is.
    const uint32_t slot = begin(table, id, mask);
    if (before) {
      copy_chunks(before, old_mask, slot, mask, utility);
      arena_.free(before);
    } else {
      std::fill_n(parts(slot).utilities, __builtin_popcountll(mask), utility);
    }
  }
  if (growth) *parts(index(table).find(row)).growth = rounded_bfloat(*growth);
}

// What a row keeps when its live chunks change; those that it gains have this utility.
void ChunkedRows::copy_chunks(uint32_t before, uint64_t old_mask, uint32_t slot, uint64_t mask, uint16_t utility) const {
  const RecordParts old = parts(before), own = parts(slot);
  const int64_t bytes = shape_.width * dtype_bytes(shape_.dtype), full_bytes = 4 * shape_.width;
  *own.growth = *old.growth;
  if (shape_.first_state == kRowState) std::memcpy(own.first, old.first, 4);
  if (shape_.second_state == kRowState) std::memcpy(own.second, old.second, 4);
  int64_t to = 0;
  for (uint64_t rest = mask; rest; rest &= rest - 1, ++to) {
    const uint64_t bit = rest & -rest;
    if (!(old_mask & bit)) {
      own.utilities[to] = utility;
      continue;
    }
    const int64_t from = __builtin_popcountll(old_mask & (bit - 1));
    own.utilities[to] = old.utilities[from];
    const auto copy = [&](char* out, const char* in, int64_t size) {
      std::memcpy(out + to * size, in + from * size, static_cast<size_t>(size));
    };
    copy(own.weights, old.weights, bytes);
    if (shape_.first_state == kFullState) copy(own.first, old.first, full_bytes);
    if (shape_.second_state == kFullState) copy(own.second, old.second, full_bytes);
  }
}

void ChunkedRows::compact() {
  ++generation_;
  arena_.compact([&](const ChunkArena::MoveSlot& move) {
    for (const auto& index : indices_) index->for_each([&](uint32_t, uint32_t& slot) { slot = move(slot); });
  });
  for (const auto& index : indices_) index->rebuild();
#if defined(__GLIBC__)
  // What indices and bitmaps of before took is given back, too.
  malloc_trim(0);
#endif
}

void ChunkedRows::scale_utilities(int64_t table, float factor) {
  const auto scale = [&](uint32_t slot) {
    const RecordParts own = parts(slot);
    *own.growth = rounded_bfloat(widened_bfloat(*own.growth) * factor);
    for (int64_t i = 0; i < own.live; ++i) {
      own.utilities[i] = rounded_bfloat(widened_bfloat(own.utilities[i]) * factor);
    }
  };
  if (table < 0) return arena_.for_each_record(scale);
  index(table).for_each([&](uint32_t, uint32_t& slot) { scale(slot); });
}

std::vector<uint32_t> ChunkedRows::ids_from(int64_t table, int64_t first, int64_t count) const {
  return index(table).rows_from(first, count);
}

void ChunkedRows::masks(int64_t table, const int64_t* ids, int64_t count, uint64_t* out) const {
  check(table, ids, count);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t slot = index(table).find(static_cast<uint32_t>(ids[i]));
    out[i] = slot ? record_mask(pool_, record_at(pool_, slot)) : 0;
  }
}

void ChunkedRows::norms(int64_t table, const int64_t* ids, int64_t count, float* out) const {
  check(table, ids, count);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t slot = index(table).find(static_cast<uint32_t>(ids[i]));
    if (slot == 0) throw std::out_of_range("row " + std::to_string(ids[i]) + " is not there");
    const RecordParts own = parts(slot);
    for (int64_t chunk = 0; chunk < own.live; ++chunk) {
      *out++ = chunk_norm(own.weights + chunk * shape_.width * dtype_bytes(shape_.dtype), shape_.width, shape_.dtype);
    }
  }
}

namespace {

// Copies a part of a record out of it or into it, and goes on behind it.
template <class Outside>
void copy_part(Outside*& outside, char* inside, int64_t bytes, bool in) {
  if (outside == nullptr) return;
  if (in) {
    std::memcpy(inside, outside, static_cast<size_t>(bytes));
  } else {
    std::memcpy(outside, inside, static_cast<size_t>(bytes));
  }
  outside = reinterpret_cast<Outside*>(reinterpret_cast<char*>(outside) + bytes);
}

int64_t state_bytes(int64_t kind, int64_t columns) { return kind == kNoState ? 0 : kind == kRowState ? 4 : 4 * columns; }

}  // namespace

void ChunkedRows::read(int64_t table, const ChunkedBlock& block) const {
  check(table, block.ids, block.count);
  ChunkedBlock to = block;
  for (int64_t i = 0; i < block.count; ++i) {
    const uint32_t slot = index(table).find(static_cast<uint32_t>(block.ids[i]));
    if (slot == 0) throw std::out_of_range("row " + std::to_string(block.ids[i]) + " is not there");
    const RecordParts own = parts(slot);
    const int64_t columns = own.live * shape_.width;
    if (to.masks) *to.masks++ = record_mask(pool_, own.record);
    copy_part(to.growth, own.record, 2, false);
    copy_part(to.utilities, reinterpret_cast<char*>(own.utilities), 2 * own.live, false);
    copy_part(to.weights, own.weights, columns * dtype_bytes(shape_.dtype), false);
    copy_part(to.first_state, own.first, state_bytes(shape_.first_state, columns), false);
    copy_part(to.second_state, own.second, state_bytes(shape_.second_state, columns), false);
  }
}

void ChunkedRows::load(int64_t table, const ChunkedBlock& block) {
  check(table, block.ids, block.count);
  for (int64_t i = 0; i < block.count; ++i) {
    if (block.masks[i] & ~pool_.all_chunks) throw std::out_of_range("a mask names chunks that a row has not");
  }
  ++generation_;
  ChunkedBlock from = block;
  for (int64_t i = 0; i < block.count; ++i) {
    const auto row = static_cast<uint32_t>(block.ids[i]);
    const uint64_t mask = block.masks[i];
    if (const uint32_t before = index(table).find(row)) {
      arena_.free(before);
      index(table).erase(row);
    }
    if (mask == 0) {
      if (from.growth) ++from.growth;
      if (from.first_state && shape_.first_state == kRowState) ++from.first_state;
      if (from.second_state && shape_.second_state == kRowState) ++from.second_state;
      continue;
    }
    const RecordParts own = parts(begin(table, block.ids[i], mask));
    const int64_t columns = own.live * shape_.width;
    copy_part(from.growth, own.record, 2, true);
    copy_part(from.utilities, reinterpret_cast<char*>(own.utilities), 2 * own.live, true);
    copy_part(from.weights, own.weights, columns * dtype_bytes(shape_.dtype), true);
    copy_part(from.first_state, own.first, state_bytes(shape_.first_state, columns), true);
    copy_part(from.second_state, own.second, state_bytes(shape_.second_state, columns), true);
  }
}

void ChunkedRows::map_rows(int64_t table, const int64_t* raw_ids, int64_t ranked_rows) {
  ChunkedTable& own = tables_[static_cast<size_t>(table)];
  own.raw_ids = raw_ids;
  own.ranked_rows = ranked_rows;
}

ChunkedBytes ChunkedRows::bytes() const {
  ChunkedBytes found;
  const ArenaBytes arena = arena_.bytes();
  found.free = arena.free;
  found.bookkeeping = arena.bookkeeping + static_cast<int64_t>(sizeof *this);
  for (int64_t live = 1; live <= pool_.chunks; ++live) {
    const int64_t count = arena_.num_records(live), columns = live * shape_.width;
    const int64_t weights = columns * dtype_bytes(shape_.dtype);
    const int64_t state = state_bytes(shape_.first_state, columns) + state_bytes(shape_.second_state, columns);
    found.weights += count * weights;
    found.state += count * state;
    // Masks, utilities, ids and what rounds a record up.
    found.utility += count * (arena_.record_bytes(live) - weights - state);
  }
  for (const auto& index : indices_) found.index += index->bytes();
  return found;
}

}  // namespace megalith
