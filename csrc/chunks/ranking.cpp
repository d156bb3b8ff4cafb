#include "chunks/ranking.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>

#include "chunks/chunk_norm.h"
#include "chunks/exact_sums.h"
#include "parallel.h"

namespace megalith {
namespace {

constexpr int64_t kPieceRows = 1 << 13, kMostPieces = 256;

float utility_at(const char* stored) {
  uint16_t bits;
  std::memcpy(&bits, stored, 2);
  return float_of(uint32_t{bits} << 16);
}

// 0 for what is below and for what is no number.
float positive(float number) { return number > 0 ? number : 0.0f; }

}  // namespace

Ranking::Ranking(ChunkedRows& rows, ChunkedRows* outlines, std::vector<SketchTable> sketch,
                 std::vector<uint8_t> exempt, const RankingSettings& settings, std::vector<float> factors)
    : rows_(rows), pools_(outlines ? std::vector<ChunkedRows*>{&rows, outlines} : std::vector<ChunkedRows*>{&rows}), pool_(rows.pool()), sketch_(std::move(sketch)), exempt_(std::move(exempt)), settings_(settings),
      factors_(std::move(factors)) {}

std::vector<Ranking::Piece> Ranking::pieces() const {
  std::vector<Piece> found;
  for (ChunkedRows* rows : pools_) {
    for (int64_t table = 0; table < static_cast<int64_t>(rows_.tables().size()); ++table) {
      if (exempt_[static_cast<size_t>(table)]) continue;
      const int64_t of = std::clamp<int64_t>(rows->num_rows(table) / kPieceRows, 1, kMostPieces);
      for (int64_t number = 0; number < of; ++number) found.push_back({rows, table, number, of});
    }
  }
  return found;
}

std::vector<int64_t> Ranking::row_counts() const {
  std::vector<int64_t> counts;
  for (const ChunkedRows* rows : pools_) {
    counts.push_back(rows->generation());
    for (size_t table = 0; table < rows_.tables().size(); ++table) counts.push_back(rows->num_rows(static_cast<int64_t>(table)));
  }
  return counts;
}

void Ranking::check_unchanged() const {
  if (counts_ != row_counts()) throw std::logic_error("rows of the pool have changed since their chunks were scored");
}

void Ranking::sums(int64_t* out) const {
  std::fill_n(out, static_cast<int64_t>(rows_.tables().size()) * kSumNumbers, 0);
  const std::vector<Piece> found = pieces();
  std::mutex adding;
  for_each_task(static_cast<int64_t>(found.size()), [&](int64_t task) {
    const Piece& piece = found[static_cast<size_t>(task)];
    const ChunkedPool& pool = piece.rows->pool();
    const int64_t chunk_bytes = pool.width * dtype_bytes(pool.dtype);
    int64_t own[kSumNumbers] = {};
    for_each_row(piece, true, [&](uint32_t, uint32_t slot) {
      const int64_t live = live_chunks(pool, slot);
      const char* weights = record_at(pool, slot) + pool.layouts[live].weights;
      for (int64_t chunk = 0; chunk < live; ++chunk, weights += chunk_bytes) {
        own[0] += add_exactly(own + 1, chunk_norm(weights, pool.width, pool.dtype));
      }
    });
    const std::lock_guard<std::mutex> lock(adding);
    for (int64_t i = 0; i < kSumNumbers; ++i) out[piece.table * kSumNumbers + i] += own[i];
  });
}

// Of every chunk that does not live of a row with so many that do. The order of operations is part of what a value is.
float Ranking::other_value(float utility, float magnitude, int64_t live) const {
  const float share = utility / static_cast<float>(pool_.chunks - live);
  return positive(share * magnitude / settings_.hysteresis);
}

// Writes the values of a row's live chunks and of all others; how many.
int64_t Ranking::score_row(const Piece& piece, uint32_t slot, const TableMagnitudes& magnitudes, float* out,
                           int64_t* sums) const {
  const ChunkedPool& pool = piece.rows->pool();
  const char* record = record_at(pool, slot);
  const int64_t live = live_chunks(pool, slot), chunk_bytes = pool.width * dtype_bytes(pool.dtype);
  const RecordLayout& layout = pool.layouts[live];
  const uint64_t mask = record_mask(pool, record);
  if ((mask & (mask + 1)) != 0) {
    throw std::logic_error("a row of table " + std::to_string(piece.table) + " keeps others than its first chunks");
  }
  const int power = static_cast<int>(magnitudes.sixteenths);
  float least = std::numeric_limits<float>::infinity();
  for (int64_t chunk = 0; chunk < live; ++chunk) {
    const float norm = chunk_norm(record + layout.weights + chunk * chunk_bytes, pool.width, pool.dtype);
    const float size = norm / magnitudes.mean_norm;
    const float magnitude = power_of_sixteenths(size > settings_.floor ? size : settings_.floor, power);
    const float value = positive(utility_at(record + layout.utilities + 2 * chunk) * magnitude);
    add_exactly(sums, value);
    least = std::min(least, value);
    out[chunk] = least;
  }
  if (live < pool_.chunks) {
    const float magnitude = power_of_sixteenths(settings_.floor, power), growth = utility_at(record);
    add_exactly(sums, positive(growth * magnitude));
    out[live] = std::min(least, other_value(growth, magnitude, live));
  }
  return num_values(live);
}

void Ranking::score_candidates(const CandidateUnit& unit, float magnitude, int64_t* sums) const {
  const SketchTable& own = sketch_of(unit.table);
  float* values = values_.as<float>() + unit.first;
  for (int64_t i = 0; i < unit.count; ++i) {
    const SketchEntry& entry = own.entries[unit.entry + i];
    if (!(entry.utility > 0)) continue;
    // A row that has begun since is no candidate.
    if (has_record(unit.table, static_cast<uint32_t>(entry.row - own.first_row))) continue;
    add_exactly(sums, positive(entry.utility * magnitude));
    values[i] = other_value(entry.utility, magnitude, 0);
  }
}

void Ranking::score(const TableMagnitudes* magnitudes, int64_t* out) {
  forget();
  std::vector<Piece> found = pieces();
  const auto num_pieces = static_cast<int64_t>(found.size());
  for_each_task(num_pieces, [&](int64_t task) {
    int64_t count = 0;
    const Piece& piece = found[static_cast<size_t>(task)];
    for_each_row(piece, false, [&](uint32_t, uint32_t slot) {
      count += num_values(live_chunks(piece.rows->pool(), slot));
    });
    found[static_cast<size_t>(task)].first = count;
  });
  int64_t total = 0;
  for (Piece& piece : found) total += std::exchange(piece.first, total);
  std::fill_n(out, static_cast<int64_t>(sketch_.size()) * kSumNumbers, 0);
  std::vector<CandidateUnit> units;
  for (int64_t table = 0; table < static_cast<int64_t>(sketch_.size()); ++table) {
    if (exempt_[static_cast<size_t>(table)]) continue;
    const SketchTable& own = sketch_of(table);
    const int64_t entries = own.buckets * own.bucket_entries, here = own.last_unit - own.first_unit;
    for (int64_t unit = 0; unit < here; ++unit, total += entries) units.push_back({table, unit * entries, entries, total});
    out[table * kSumNumbers] = own.num_rows() * pool_.chunks;
  }
  PageMemory(4 * total).swap(values_);
  std::mutex adding;
  for_each_task(num_pieces + static_cast<int64_t>(units.size()), [&](int64_t task) {
    int64_t own[kSumNumbers - 1] = {};
    int64_t table;
    if (task < num_pieces) {
      const Piece& piece = found[static_cast<size_t>(task)];
      table = piece.table;
      float* values = values_.as<float>() + piece.first;
      for_each_row(piece, true, [&](uint32_t, uint32_t slot) {
        values += score_row(piece, slot, magnitudes[table], values, own);
      });
    } else {
      const CandidateUnit& unit = units[static_cast<size_t>(task - num_pieces)];
      table = unit.table;
      const int power = static_cast<int>(magnitudes[table].sixteenths);
      score_candidates(unit, power_of_sixteenths(settings_.floor, power), own);
    }
    const std::lock_guard<std::mutex> lock(adding);
    for (int64_t i = 1; i < kSumNumbers; ++i) out[table * kSumNumbers + i] += own[i - 1];
  });
  scored_ = std::move(found);
  candidates_ = std::move(units);
  counts_ = row_counts();
}

void Ranking::forget() {
  scored_.clear();
  candidates_.clear();
  counts_.clear();
  PageMemory(0).swap(values_);
}

Ranking::Divisors Ranking::divisors(const float* scales) const {
  Divisors found;
  for (size_t table = 0; table < rows_.tables().size(); ++table) {
    for (const float factor : factors_) found.push_back(scales[table] * factor);
  }
  return found;
}

// Scores of a row's chunks do not rise, as values do not and factors do not fall.
inline uint32_t Ranking::score_of(const RankedRow& row, const float* divisors, int64_t chunk) const {
  return bits_of_float(positive(row.values[std::min(chunk, row.live)] / divisors[row.table * pool_.chunks + chunk]));
}

uint32_t Ranking::tie_hash(const RankedRow& row, int64_t chunk) const {
  const ChunkedTable& table = rows_.tables()[static_cast<size_t>(row.table)];
  const uint64_t key = table.start.row_key(table.id_of(row.id));
  return static_cast<uint32_t>(mix64(key ^ (0xa24baed4963ee407ull + static_cast<uint64_t>(chunk))) >> 48);
}

void Ranking::histogram(const float* scales, int64_t level, uint32_t prefix, int64_t* out) const {
  check_unchanged();
  std::vector<int64_t> costs;
  for (int64_t chunk = 0; chunk < pool_.chunks; ++chunk) {
    costs.push_back(rows_.record_bytes(chunk + 1) - (chunk ? rows_.record_bytes(chunk) : 0));
  }
  const Divisors dividing = divisors(scales);
  const auto count_row = [&](int64_t* own, const RankedRow& row) {
    uint32_t hash = kHistogramSize - 1;
    for (int64_t chunk = 0; chunk < pool_.chunks; ++chunk) {
      const uint32_t score = score_of(row, dividing.data(), chunk);
      // Chunks that nothing asked for do not compete.
      if (score == 0 && chunk >= row.live) return;
      if (level == 0) {
        own[score >> 16] += costs[static_cast<size_t>(chunk)];
      } else if (level == 1) {
        if (score >> 16 < prefix) return;
        if (score >> 16 == prefix) own[score & 0xffff] += costs[static_cast<size_t>(chunk)];
      } else {
        if (score < prefix) return;
        if (score > prefix) continue;
        hash = std::min(hash, tie_hash(row, chunk));
        own[hash] += costs[static_cast<size_t>(chunk)];
      }
    }
  };
  const int64_t workers = std::max<int64_t>(1, num_workers(num_tasks()));
  std::vector<int64_t> counted(static_cast<size_t>(workers * kHistogramSize), 0);
  for_each_task(num_tasks(), workers, [&](int64_t task, int64_t worker) {
    int64_t* own = counted.data() + worker * kHistogramSize;
    for_each_ranked(task, [&](const RankedRow& row) { count_row(own, row); });
  });
  std::fill_n(out, kHistogramSize, 0);
  for (int64_t worker = 0; worker < workers; ++worker) {
    for (int64_t i = 0; i < kHistogramSize; ++i) out[i] += counted[static_cast<size_t>(worker * kHistogramSize + i)];
  }
}

// How many of a row's chunks have a key of at least this: the first ones.
int64_t Ranking::num_kept(const RankedRow& row, const Divisors& divisors, uint64_t key) const {
  const uint64_t limit = key >> 16, least_hash = key & 0xffff;
  uint64_t hash = kHistogramSize - 1;
  int64_t chunk = 0;
  for (; chunk < pool_.chunks; ++chunk) {
    const uint32_t score = score_of(row, divisors.data(), chunk);
    if (score < limit || (score == 0 && chunk >= row.live)) break;
    if (score > limit || least_hash == 0) continue;
    hash = std::min<uint64_t>(hash, tie_hash(row, chunk));
    if (hash < least_hash) break;
  }
  return chunk;
}

RankingChanges Ranking::changes(const float* scales, uint64_t key) const {
  check_unchanged();
  const Divisors dividing = divisors(scales);
  RankingChanges total{};
  std::mutex adding;
  for_each_task(num_tasks(), [&](int64_t task) {
    RankingChanges own{};
    for_each_ranked(task, [&](const RankedRow& row) {
      const int64_t kept = num_kept(row, dividing, key);
      own.pruned += std::max<int64_t>(row.live - kept, 0);
      own.grown += std::max<int64_t>(kept - row.live, 0);
      own.begun += row.live == 0 && kept > 0;
      own.removed += row.live > 0 && kept == 0;
      own.bytes += kept ? rows_.record_bytes(kept) : 0;
    });
    const std::lock_guard<std::mutex> lock(adding);
    total.pruned += own.pruned;
    total.grown += own.grown;
    total.begun += own.begun;
    total.removed += own.removed;
    total.bytes += own.bytes;
  });
  return total;
}

// A chunk that begins takes its share of the growth utility with it; those that go leave theirs there.
Ranking::RowChange Ranking::changed_row(const RankedRow& row, int64_t kept) const {
  const ChunkedPool& pool = row.rows->pool();
  const char* record = row.live ? record_at(pool, row.slot) : nullptr;
  const auto count = static_cast<uint8_t>(kept);
  float growth = 0;
  if (record) {
    growth = utility_at(record);
  } else {
    const SketchTable& sketch = sketch_of(row.table);
    growth = sketch_utility(sketch.bucket_of(sketch.first_row + row.id), static_cast<uint32_t>(sketch.first_row + row.id));
  }
  if (kept > row.live) {
    const int64_t others = pool_.chunks - row.live, gained = kept - row.live;
    const float share = growth / static_cast<float>(others), rest = growth - share * static_cast<float>(gained);
    return {row.id, count, share, gained == others ? 0.0f : positive(rest)};
  }
  for (int64_t chunk = kept; chunk < row.live; ++chunk) {
    growth += utility_at(record + pool.layouts[row.live].utilities + 2 * chunk);
  }
  return {row.id, count, 0.0f, growth};
}

}  // namespace megalith
