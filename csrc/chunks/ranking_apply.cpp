// What a threshold does to a pool and its sketch.
#include <algorithm>
#include <cstring>

#include "chunks/chunk_norm.h"
#include "chunks/ranking.h"
#include "parallel.h"

namespace megalith {
namespace {

float utility_of(const char* record, int64_t at) {
  uint16_t bits;
  std::memcpy(&bits, record + at, 2);
  return float_of(uint32_t{bits} << 16);
}

void forget_row(const SketchTable& sketch, int64_t row) {
  sketch_remove(sketch.bucket_of(row), static_cast<uint32_t>(row));
}

}  // namespace

// A chunk that begins takes its share of the growth utility with it; those that go leave theirs there.
Ranking::RowChange Ranking::changed_row(uint32_t row, uint32_t slot, int64_t kept, const TableMeans& means) const {
  const char* record = record_at(pool_, slot);
  const int64_t live = live_chunks(pool_, slot);
  float growth = utility_of(record, 0);
  if (kept > live) return begun_chunk(row, live, growth, means);
  for (int64_t chunk = kept; chunk < live; ++chunk) {
    growth += utility_of(record, pool_.layouts[live].utilities + 2 * chunk);
  }
  return {row, static_cast<uint8_t>(kept), 0.0f, growth};
}

Ranking::RowChange Ranking::begun_chunk(uint32_t row, int64_t live, float growth, const TableMeans& means) const {
  const float share = growth / static_cast<float>(pool_.chunks - live), least = settings_.new_utility * means.utility;
  const float rest = growth - share;
  return {row, static_cast<uint8_t>(live + 1), share > least ? share : least, rest > 0 ? rest : 0.0f};
}

void Ranking::rewrite(int64_t table, const std::vector<RowChange>& changes) {
  constexpr size_t kRows = 4096;
  std::vector<int64_t> ids(kRows);
  std::vector<uint64_t> masks(kRows);
  std::vector<float> utilities(kRows), growth(kRows);
  for (size_t first = 0; first < changes.size(); first += kRows) {
    const size_t count = std::min(kRows, changes.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const RowChange& change = changes[first + i];
      ids[i] = change.row;
      masks[i] = change.kept == 64 ? ~uint64_t{0} : (uint64_t{1} << change.kept) - 1;
      utilities[i] = change.utility;
      growth[i] = change.growth;
    }
    rows_.rewrite(table, ids.data(), masks.data(), utilities.data(), growth.data(), static_cast<int64_t>(count));
  }
}

void Ranking::apply(const TableMeans* means, uint64_t key) {
  check_unchanged();
  const auto num_pieces = static_cast<int64_t>(scored_.size()), num_units = static_cast<int64_t>(candidates_.size());
  std::vector<std::vector<RowChange>> smaller(scored_.size()), larger(scored_.size()), begun(candidates_.size());
  std::vector<std::vector<uint32_t>> live_rows(candidates_.size());
  for_each_task(num_pieces + num_units, [&](int64_t task) {
    if (task < num_pieces) {
      const auto at = static_cast<size_t>(task);
      const Piece& piece = scored_[at];
      for_each_scored(piece, [&](uint32_t row, uint32_t slot, int64_t live, const uint32_t* scores, int64_t count) {
        const int64_t kept = num_kept(piece.table, row, scores, count, live, key);
        if (kept != live) (kept < live ? smaller : larger)[at].push_back(changed_row(row, slot, kept, means[piece.table]));
      });
      return;
    }
    const auto at = static_cast<size_t>(task - num_pieces);
    const CandidateUnit& unit = candidates_[at];
    const SketchTable& sketch = sketch_of(unit);
    for (int64_t i = 0; i < unit.count; ++i) {
      const SketchEntry& entry = sketch.entries[unit.entry + i];
      if (!(entry.utility > 0)) continue;
      const auto id = static_cast<uint32_t>(entry.row - sketch.first_row);
      if (is_begun(unit, i, key)) {
        begun[at].push_back(begun_chunk(id, 0, entry.utility, means[unit.table]));
      } else if (index_of(unit.table).find(id) != 0) {
        live_rows[at].push_back(entry.row);
      }
    }
  });
  // What goes makes room for what comes.
  for (size_t i = 0; i < scored_.size(); ++i) rewrite(scored_[i].table, smaller[i]);
  for (size_t i = 0; i < scored_.size(); ++i) rewrite(scored_[i].table, larger[i]);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const SketchTable& sketch = sketch_of(candidates_[i]);
    rewrite(candidates_[i].table, begun[i]);
    for (const RowChange& change : begun[i]) forget_row(sketch, sketch.first_row + change.row);
    for (const uint32_t row : live_rows[i]) forget_row(sketch, row);
  }
  for (size_t i = 0; i < scored_.size(); ++i) {
    const SketchTable& sketch = sketch_[static_cast<size_t>(scored_[i].table)];
    for (const RowChange& change : smaller[i]) {
      if (change.kept != 0) continue;
      const int64_t row = sketch.row_of(change.row);
      sketch_insert(sketch.bucket_of(row), static_cast<uint32_t>(row), change.growth);
    }
  }
  forget();
}

}  // namespace megalith
