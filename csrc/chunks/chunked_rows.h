// `ChunkedRows`: rows of some tables of one shape, cut into chunks of which only the live ones are stored.
//
// Tables share an arena of records (chunk_arena.h); each has an index of its rows (table_index.h). Records move in
// `rewrite`, `load` and `compact` alone: slots that were resolved before are then no longer right, which the generation
// tells. New rows come in `resolve`, in the order of batches. All of it depends on the calls and not on threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "chunks/chunk_arena.h"
#include "chunks/record.h"
#include "chunks/table_index.h"
#include "stores/start_values.h"

namespace megalith {

struct ChunkedTable {
  int64_t rows;
  int64_t padding;  // an id that reads as zeros, or -1
  StartValues start;
  // Beneath a map of ids, which ids have the rows; null where a row is its id.
  const int64_t* raw_ids = nullptr;
  // Rows from here on compete for nothing: they stay as they are.
  int64_t ranked_rows = int64_t{1} << 32;

  // What start values and ties depend on.
  int64_t id_of(int64_t row) const { return raw_ids ? raw_ids[row] : row; }
};

struct ChunkShape {
  int64_t dim, width, dtype, first_state, second_state;
};

// Values [first, last) of a batch are ids of a table.
struct ChunkedLookup {
  int64_t table, first, last;
};

// An id without a record, in the order in which a batch first has it.
struct AbsentRow {
  int64_t table, id;
};

// How a batch that trains makes new rows: with so many first chunks, while they take no more than `room` bytes.
struct NewRows {
  int64_t chunks = 0, room = 0;
};

struct ChunkedBytes {
  int64_t weights = 0, state = 0, utility = 0, index = 0, free = 0, bookkeeping = 0;
};

// Rows with their chunks one after the other, in the order of `ids`; null pointers are not wanted, or not given.
struct ChunkedBlock {
  const int64_t* ids;
  int64_t count;
  uint64_t* masks;
  uint16_t* growth;     // bfloat16, as utilities
  uint16_t* utilities;  // a number for each live chunk
  char* weights;        // of live columns, as all that follow where they are not one a row
  float* first_state;
  float* second_state;
};

// Where the parts of a record are.
struct RecordParts {
  char* record;
  int64_t live;
  uint16_t* growth;
  uint16_t* utilities;
  char *id, *first, *second, *weights;
};

class ChunkedRows {
 public:
  ChunkedRows(std::vector<ChunkedTable> tables, const ChunkShape& shape, int64_t capacity);

  // Slots of the ids of a batch: of their records, of padding, or numbers from kFirstAbsent on of the ids without one,
  // which `absent` lists; it has room for all. Without `trains` all these are the first number, and none is listed.
  // New rows may come only if it `trains`; their room is taken from `made.room`. Returns how many are absent.
  template <class Index>
  int64_t resolve(const ChunkedLookup* lookups, int64_t num_lookups, const Index* values, int32_t* slots, bool trains,
                  NewRows& made, AbsentRow* absent, bool parallel);

  // Gives rows other live chunks. Chunks that a row gains begin with their start values, state 0 and `utilities`; state
  // for a whole row stays. No chunk at all removes a row, and a row that was not there begins. `growth` replaces the
  // growth utility. Both may be null: then utilities begin at 0, and growth stays.
  void rewrite(int64_t table, const int64_t* ids, const uint64_t* masks, const float* utilities, const float* growth,
               int64_t count);
  // Moves records together and gives memory back; gives every index its smallest form.
  void compact();
  // Multiplies every utility, growth included; to the nearest.
  void scale_utilities(int64_t table, float factor);

  // The lowest ids of a table from `first` on.
  std::vector<uint32_t> ids_from(int64_t table, int64_t first, int64_t count) const;
  // Which chunks live, 0 for a row that is not there.
  void masks(int64_t table, const int64_t* ids, int64_t count, uint64_t* out) const;
  // Of the weights of live chunks, one row after the other; every id must have a record.
  void norms(int64_t table, const int64_t* ids, int64_t count, float* out) const;
  // Copies rows out; every id must have a record.
  void read(int64_t table, const ChunkedBlock& block) const;
  // Takes rows as given, whatever was there before.
  void load(int64_t table, const ChunkedBlock& block);

  // Says which ids the rows of a table have, and which rows compete; the memory is the caller's, who may change ids of
  // rows without a record.
  void map_rows(int64_t table, const int64_t* raw_ids, int64_t ranked_rows);

  ChunkedBytes bytes() const;
  int64_t record_bytes(int64_t live) const { return arena_.record_bytes(live) + kIndexBytes; }
  int64_t num_rows(int64_t table) const { return index(table).size(); }
  int64_t num_records(int64_t live) const { return arena_.num_records(live); }
  IndexForm form(int64_t table) const { return index(table).form(); }
  int64_t generation() const { return generation_; }
  const ChunkedPool& pool() const { return pool_; }
  const TableIndex& index(int64_t table) const { return *indices_[static_cast<size_t>(table)]; }
  const std::vector<ChunkedTable>& tables() const { return tables_; }

  // What a row is counted with beside its record, about what a hash takes: the same wherever and whenever it is counted.
  static constexpr int64_t kIndexBytes = 11;

 private:
  TableIndex& index(int64_t table) { return *indices_[static_cast<size_t>(table)]; }
  void check(int64_t table, const int64_t* ids, int64_t count) const;
  RecordParts parts(uint32_t slot) const;
  uint32_t begin(int64_t table, int64_t id, uint64_t mask);
  void start_chunk(int64_t table, int64_t id, int64_t chunk, char* weights) const;
  void rewrite_row(int64_t table, int64_t id, uint64_t mask, uint16_t utility, const float* growth);
  void copy_chunks(uint32_t before, uint64_t old_mask, uint32_t slot, uint64_t mask, uint16_t utility) const;
  uint32_t begin_absent(const AbsentRow& row, NewRows& made);

  std::vector<ChunkedTable> tables_;
  ChunkShape shape_;
  ChunkArena arena_;
  ChunkedPool pool_{};
  std::vector<std::unique_ptr<TableIndex>> indices_;
  int64_t generation_ = 0;
};

}  // namespace megalith
