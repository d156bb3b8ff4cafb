// `Ranking`: which chunks of a pool live, when all that may live compete for bytes.
//
// Every live chunk has a score, and so have the next chunk of every row that is not whole and the first of every
// candidate of the sketch. Rows keep a prefix of their chunks: a score is at most that of the chunk before it. A key is
// the score's bits and 16 bits of a hash of (table, id, chunk), also at most that of the chunk before. What lives is
// what has a key of at least a threshold; callers find it by histograms of bytes, which can be added up over pools and
// ranks, as everything that is returned here.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "chunks/chunked_rows.h"
#include "chunks/sketch.h"
#include "stores/page_memory.h"

namespace megalith {

struct RankingSettings {
  float floor, ceiling;  // of the norm of a live chunk's weights, in means of the table
  float dead;            // the same of a chunk that has none yet
  float hysteresis;      // what scores of these are divided by
  float new_utility;     // a chunk begins with so many mean utilities at least
};

// What a table's numbers are divided by.
struct TableMeans {
  float utility, norm;
};

// By how much a threshold changes a pool; bytes are those that live then.
struct RankingChanges {
  int64_t pruned, grown, begun, removed, bytes;
};

class Ranking {
 public:
  // `factors` divide scores, by the chunk's position. Tables that are exempt are left alone.
  Ranking(ChunkedRows& rows, std::vector<SketchTable> sketch, std::vector<uint8_t> exempt,
          const RankingSettings& settings, std::vector<float> factors);

  // Of every table, of utilities and then of norms of live chunks: how many, and mantissas by exponent.
  static constexpr int64_t kSumNumbers = 257;
  void sums(int64_t* out) const;

  // Keeps the scores of all that compete; what follows is about these, and refuses a pool that has changed its rows.
  void score(const TableMeans* means);
  // Bytes of chunks by 16 bits of their key: those of the score's upper half, of its lower half where the upper is
  // `prefix`, of the hash where the score is `prefix`.
  static constexpr int64_t kHistogramSize = 1 << 16;
  void histogram(int64_t level, uint32_t prefix, int64_t* out) const;
  RankingChanges changes(uint64_t key) const;
  // Prunes and grows, and forgets the scores.
  void apply(const TableMeans* means, uint64_t key);
  void forget();
  int64_t scratch_bytes() const { return scores_.bytes(); }

 private:
  // Some rows of a table. Their scores are one row after the other from `first` on: of live chunks and of the next.
  struct Piece {
    int64_t table, number, of, first = 0;
  };
  // Entries of a unit of the sketch, with a score for each.
  struct CandidateUnit {
    int64_t table, entry, count, first;
  };
  struct RowChange {
    uint32_t row;
    uint8_t kept;
    float utility, growth;
  };

  float live_score(float utility, float norm, const TableMeans& means, int64_t chunk) const;
  float next_score(float utility, const TableMeans& means, int64_t live) const;
  int64_t score_row(const Piece& piece, uint32_t slot, const TableMeans& means, uint32_t* out) const;
  int64_t num_scores(int64_t live) const { return live + (live < pool_.chunks); }
  int64_t cost(int64_t chunk) const { return rows_.record_bytes(chunk + 1) - (chunk ? rows_.record_bytes(chunk) : 0); }
  uint32_t tie_hash(int64_t table, int64_t row, int64_t chunk) const;
  int64_t num_kept(int64_t table, int64_t row, const uint32_t* scores, int64_t count, int64_t optional,
                   uint64_t key) const;
  bool is_begun(const CandidateUnit& unit, int64_t at, uint64_t key) const;
  RowChange changed_row(uint32_t row, uint32_t slot, int64_t kept, const TableMeans& means) const;
  RowChange begun_chunk(uint32_t row, int64_t live, float growth, const TableMeans& means) const;
  void check_unchanged() const;
  void rewrite(int64_t table, const std::vector<RowChange>& changes);

  template <class Body>
  void for_each_row(const Piece& piece, bool reads_records, Body body) const;
  template <class Body>
  void for_each_scored(const Piece& piece, Body body) const;
  std::vector<Piece> pieces() const;
  const SketchTable& sketch_of(const CandidateUnit& unit) const { return sketch_[static_cast<size_t>(unit.table)]; }
  const uint32_t* scores_from(int64_t first) const { return scores_.as<uint32_t>() + first; }
  std::vector<int64_t> row_counts() const;
  const TableIndex& index_of(int64_t table) const { return std::as_const(rows_).index(table); }

  ChunkedRows& rows_;
  const ChunkedPool& pool_;
  std::vector<SketchTable> sketch_;
  std::vector<uint8_t> exempt_;
  RankingSettings settings_;
  std::vector<float> factors_;
  // What `score` found.
  std::vector<Piece> scored_;
  std::vector<CandidateUnit> candidates_;
  PageMemory scores_{0};
  std::vector<int64_t> counts_;
};

// Calls body(row, slot); records are on their way to the cache some rows before they are read.
template <class Body>
void Ranking::for_each_row(const Piece& piece, bool reads_records, Body body) const {
  const TableIndex& index = index_of(piece.table);
  if (!reads_records) {
    index.for_each_of(piece.number, piece.of, [&](uint32_t row, uint32_t& slot) { body(row, slot); });
    return;
  }
  constexpr size_t kAhead = 16;
  struct {
    uint32_t row, slot;
  } ahead[kAhead];
  size_t count = 0;
  index.for_each_of(piece.number, piece.of, [&](uint32_t row, uint32_t& slot) {
    auto& place = ahead[count++ % kAhead];
    if (count > kAhead) body(place.row, place.slot);
    place = {row, slot};
    const char* record = record_at(pool_, slot);
    const int64_t bytes = pool_.layouts[live_chunks(pool_, slot)].bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(record + at);
  });
  for (size_t i = count < kAhead ? 0 : count - kAhead; i < count; ++i) {
    body(ahead[i % kAhead].row, ahead[i % kAhead].slot);
  }
}

// Calls body(row, slot, live chunks, scores, number of scores).
template <class Body>
void Ranking::for_each_scored(const Piece& piece, Body body) const {
  const uint32_t* scores = scores_from(piece.first);
  for_each_row(piece, false, [&](uint32_t row, uint32_t slot) {
    const int64_t live = live_chunks(pool_, slot), count = num_scores(live);
    body(row, slot, live, scores, count);
    scores += count;
  });
}

}  // namespace megalith
