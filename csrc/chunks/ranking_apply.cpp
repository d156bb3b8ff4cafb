// What a threshold does to a pool and its sketch.
#include <algorithm>

#include "chunks/ranking.h"
#include "parallel.h"

namespace megalith {

bool Ranking::has_record(int64_t table, uint32_t row) const {
  return std::any_of(pools_.begin(), pools_.end(),
                     [&](const ChunkedRows* rows) { return rows->index(table).find(row) != 0; });
}

void Ranking::rewrite(ChunkedRows& rows, int64_t table, const std::vector<RowChange>& changes) {
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
    rows.rewrite(table, ids.data(), masks.data(), utilities.data(), growth.data(), static_cast<int64_t>(count));
  }
}

// Rows that have a record are no candidates.
void Ranking::drop_known_candidates() const {
  for (const CandidateUnit& unit : candidates_) {
    const SketchTable& sketch = sketch_of(unit.table);
    for (int64_t i = unit.count - 1; i >= 0; --i) {
      const SketchEntry entry = sketch.entries[unit.entry + i];
      if (!(entry.utility > 0)) continue;
      const auto id = static_cast<uint32_t>(entry.row - sketch.first_row);
      if (has_record(unit.table, id)) sketch_remove(sketch.bucket_of(entry.row), entry.row);
    }
  }
}

void Ranking::apply(const float* scales, uint64_t key) {
  check_unchanged();
  const Divisors dividing = divisors(scales);
  struct TaskChanges {
    ChunkedRows* rows = nullptr;
    int64_t table = 0;
    std::vector<RowChange> smaller, larger, begun;
    std::vector<OutlineChange> outlines;
  };
  std::vector<TaskChanges> found(static_cast<size_t>(num_tasks()));
  for_each_task(num_tasks(), [&](int64_t task) {
    TaskChanges& own = found[static_cast<size_t>(task)];
    for_each_ranked(task, [&](const RankedRow& row) {
      own.rows = row.rows;
      own.table = row.table;
      const int64_t kept = num_kept(row, dividing, key);
      if (kept == row.live) return;
      if (row.rows != &rows_) own.outlines.push_back({row.table, int64_t{row.id}, row.live, kept});
      (kept < row.live ? own.smaller : row.live ? own.larger : own.begun).push_back(changed_row(row, kept));
    });
  });
  drop_known_candidates();
  // What goes makes room for what comes.
  for (const TaskChanges& own : found) if (own.rows) rewrite(*own.rows, own.table, own.smaller);
  for (const TaskChanges& own : found) if (own.rows) rewrite(*own.rows, own.table, own.larger);
  for (const TaskChanges& own : found) if (own.rows) rewrite(*own.rows, own.table, own.begun);
  drop_known_candidates();
  outline_changes_.clear();
  for (const TaskChanges& own : found) {
    outline_changes_.insert(outline_changes_.end(), own.outlines.begin(), own.outlines.end());
    for (const RowChange& change : own.smaller) {
      if (change.kept != 0) continue;
      const int64_t row = sketch_of(own.table).row_of(change.row);
      sketch_insert(sketch_of(own.table).bucket_of(row), static_cast<uint32_t>(row), change.growth);
    }
  }
  forget();
}

}  // namespace megalith
