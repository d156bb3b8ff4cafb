// `Ranking`: which chunks of a pool live, when all that may live compete for bytes.
//
// Every chunk of a row with a record has a value, live or not, and so has every chunk of a candidate of the sketch. Rows
// keep a prefix of their chunks: a value is at most that of the chunk before it. A score is the value divided by the
// table's scale and a factor of the position; a key is the score's bits and 16 bits of a hash of (table, id, chunk), also
// at most that of the chunk before. What lives is what has a key of at least a threshold; callers find it by histograms
// of bytes, which can be added up over pools and ranks, as everything that is returned here.
//
// Rows whose weights lie elsewhere may compete too: a second pool has what is known of them, with the norm of a chunk as
// its only column. No row is in both pools, and the bytes of a row are those that it has in the first.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "chunks/chunked_rows.h"
#include "chunks/sketch.h"
#include "page_memory.h"

namespace megalith {

struct RankingSettings {
  float floor;       // of the norm of a live chunk's weights, in means of the table; that of all others
  float hysteresis;  // what values of chunks that do not live are divided by
};

// What values of a table are made with.
struct TableMagnitudes {
  float mean_norm;   // of live chunks
  float sixteenths;  // the power of magnitudes, 0 to 16
};

// A row of the second pool whose live chunks have changed.
struct OutlineChange {
  int64_t table, row, before, kept;
};

// By how much a threshold changes a pool; bytes are those that live then.
struct RankingChanges {
  int64_t pruned, grown, begun, removed, bytes;
};

class Ranking {
 public:
  // `factors` of positions do not fall. Tables that are exempt are left alone. `outlines` is the second pool, or null.
  Ranking(ChunkedRows& rows, ChunkedRows* outlines, std::vector<SketchTable> sketch, std::vector<uint8_t> exempt,
          const RankingSettings& settings, std::vector<float> factors);

  // Sums are exact: how many numbers, and their mantissas by exponent.
  static constexpr int64_t kSumNumbers = 257;
  // Norms of the live chunks of every table.
  void sums(int64_t* out) const;
  // Keeps the values of all that competes, and sums utility * magnitude over all chunks of every table; the number is
  // that of all chunks here. What follows is about these, and refuses a pool that has changed its rows.
  void score(const TableMagnitudes* magnitudes, int64_t* out);

  // Bytes of chunks by 16 bits of their key: those of the score's upper half, of its lower half where the upper is
  // `prefix`, of the hash where the score is `prefix`.
  static constexpr int64_t kHistogramSize = 1 << 16;
  void histogram(const float* scales, int64_t level, uint32_t prefix, int64_t* out) const;
  RankingChanges changes(const float* scales, uint64_t key) const;
  // Prunes and grows, and forgets the values.
  void apply(const float* scales, uint64_t key);
  void forget();
  // What the last `apply` changed of the second pool.
  const std::vector<OutlineChange>& outline_changes() const { return outline_changes_; }
  int64_t scratch_bytes() const { return values_.bytes(); }

 private:
  // Some rows of a table. Their values are one row after the other from `first` on: of live chunks, and one for all
  // others.
  struct Piece {
    ChunkedRows* rows;
    int64_t table, number, of, first = 0;
  };
  // Entries of a unit of the sketch, with a value for each.
  struct CandidateUnit {
    int64_t table, entry, count, first;
  };
  // A row that competes.
  struct RankedRow {
    ChunkedRows* rows;
    int64_t table;
    uint32_t id, slot;
    int64_t live;
    const float* values;
  };
  struct RowChange {
    uint32_t row;
    uint8_t kept;
    float utility, growth;
  };
  // Of all tables: what values are divided by, by chunk.
  using Divisors = std::vector<float>;

  std::vector<Piece> pieces() const;
  std::vector<int64_t> row_counts() const;
  void check_unchanged() const;
  int64_t num_values(int64_t live) const { return live + (live < pool_.chunks); }
  int64_t score_row(const Piece& piece, uint32_t slot, const TableMagnitudes& magnitudes, float* out,
                    int64_t* sums) const;
  float other_value(float utility, float magnitude, int64_t live) const;
  void score_candidates(const CandidateUnit& unit, float magnitude, int64_t* sums) const;
  Divisors divisors(const float* scales) const;
  uint32_t score_of(const RankedRow& row, const float* divisors, int64_t chunk) const;
  uint32_t tie_hash(const RankedRow& row, int64_t chunk) const;
  int64_t num_kept(const RankedRow& row, const Divisors& divisors, uint64_t key) const;
  RowChange changed_row(const RankedRow& row, int64_t kept) const;
  void drop_known_candidates() const;
  bool has_record(int64_t table, uint32_t row) const;
  static void rewrite(ChunkedRows& rows, int64_t table, const std::vector<RowChange>& changes);

  // Calls body(row, slot) for the rows of a piece that compete.
  template <class Body>
  void for_each_row(const Piece& piece, bool reads_records, Body body) const;
  // Calls body(ranked row) for a task of `num_tasks`: a piece, or a unit of candidates.
  template <class Body>
  void for_each_ranked(int64_t task, Body body) const;
  int64_t num_tasks() const { return static_cast<int64_t>(scored_.size() + candidates_.size()); }
  const SketchTable& sketch_of(int64_t table) const { return sketch_[static_cast<size_t>(table)]; }

  ChunkedRows& rows_;
  std::vector<ChunkedRows*> pools_;
  const ChunkedPool& pool_;
  std::vector<SketchTable> sketch_;
  std::vector<uint8_t> exempt_;
  RankingSettings settings_;
  std::vector<float> factors_;
  // What `score` found.
  std::vector<Piece> scored_;
  std::vector<CandidateUnit> candidates_;
  PageMemory values_{0};
  std::vector<int64_t> counts_;
  std::vector<OutlineChange> outline_changes_;
};

// Records are on their way to the cache some rows before they are read.
template <class Body>
void Ranking::for_each_row(const Piece& piece, bool reads_records, Body body) const {
  const TableIndex& index = std::as_const(*piece.rows).index(piece.table);
  const ChunkedPool& pool = piece.rows->pool();
  const int64_t ranked = rows_.tables()[static_cast<size_t>(piece.table)].ranked_rows;
  if (!reads_records) {
    index.for_each_of(piece.number, piece.of, [&](uint32_t row, uint32_t& slot) {
      if (row < ranked) body(row, slot);
    });
    return;
  }
  constexpr size_t kAhead = 16;
  struct {
    uint32_t row, slot;
  } ahead[kAhead];
  size_t count = 0;
  index.for_each_of(piece.number, piece.of, [&](uint32_t row, uint32_t& slot) {
    if (row >= ranked) return;
    auto& place = ahead[count++ % kAhead];
    if (count > kAhead) body(place.row, place.slot);
    place = {row, slot};
    const char* record = record_at(pool, slot);
    const int64_t bytes = pool.layouts[live_chunks(pool, slot)].bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(record + at);
  });
  for (size_t i = count < kAhead ? 0 : count - kAhead; i < count; ++i) {
    body(ahead[i % kAhead].row, ahead[i % kAhead].slot);
  }
}

template <class Body>
void Ranking::for_each_ranked(int64_t task, Body body) const {
  if (task < static_cast<int64_t>(scored_.size())) {
    const Piece& piece = scored_[static_cast<size_t>(task)];
    const float* values = values_.as<float>() + piece.first;
    for_each_row(piece, false, [&](uint32_t row, uint32_t slot) {
      const int64_t live = live_chunks(piece.rows->pool(), slot);
      body(RankedRow{piece.rows, piece.table, row, slot, live, values});
      values += num_values(live);
    });
    return;
  }
  const CandidateUnit& unit = candidates_[static_cast<size_t>(task) - scored_.size()];
  const SketchTable& sketch = sketch_of(unit.table);
  const float* values = values_.as<float>() + unit.first;
  for (int64_t i = 0; i < unit.count; ++i) {
    if (values[i] == 0) continue;
    const auto id = static_cast<uint32_t>(sketch.entries[unit.entry + i].row - sketch.first_row);
    body(RankedRow{&rows_, unit.table, id, 0, 0, values + i});
  }
}

}  // namespace megalith
