#include "chunks/ranking.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <stdexcept>

#include "chunks/chunk_norm.h"
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
uint32_t score_bits(float score) { return score > 0 ? bits_of_float(score) : 0; }

// Adds a number to its exponent's mantissas, unless it is negative or not finite.
void add_exactly(int64_t* sums, float number) {
  const uint32_t bits = bits_of_float(number), exponent = bits >> 23;
  if (bits >= 0x7f800000) return;
  ++sums[0];
  sums[1 + exponent] += (bits & 0x7fffff) | (exponent ? 0x800000 : 0);
}

}  // namespace

Ranking::Ranking(ChunkedRows& rows, std::vector<SketchTable> sketch, std::vector<uint8_t> exempt,
                 const RankingSettings& settings, std::vector<float> factors)
    : rows_(rows), pool_(rows.pool()), sketch_(std::move(sketch)), exempt_(std::move(exempt)), settings_(settings),
      factors_(std::move(factors)) {}

std::vector<Ranking::Piece> Ranking::pieces() const {
  std::vector<Piece> found;
  for (int64_t table = 0; table < static_cast<int64_t>(rows_.tables().size()); ++table) {
    if (exempt_[static_cast<size_t>(table)]) continue;
    const int64_t of = std::clamp<int64_t>(rows_.num_rows(table) / kPieceRows, 1, kMostPieces);
    for (int64_t number = 0; number < of; ++number) found.push_back({table, number, of});
  }
  return found;
}

std::vector<int64_t> Ranking::row_counts() const {
  std::vector<int64_t> counts = {rows_.generation()};
  for (int64_t table = 0; table < static_cast<int64_t>(rows_.tables().size()); ++table) {
    counts.push_back(rows_.num_rows(table));
  }
  return counts;
}

void Ranking::sums(int64_t* out) const {
  const auto all = static_cast<size_t>(rows_.tables().size()) * 2 * kSumNumbers;
  std::fill_n(out, all, 0);
  const std::vector<Piece> found = pieces();
  std::mutex adding;
  for_each_task(static_cast<int64_t>(found.size()), [&](int64_t task) {
    const Piece& piece = found[static_cast<size_t>(task)];
    int64_t own[2 * kSumNumbers] = {};
    const int64_t chunk_bytes = pool_.width * dtype_bytes(pool_.dtype);
    for_each_row(piece, true, [&](uint32_t, uint32_t slot) {
      const char* record = record_at(pool_, slot);
      const int64_t live = live_chunks(pool_, slot);
      const RecordLayout& layout = pool_.layouts[live];
      for (int64_t chunk = 0; chunk < live; ++chunk) {
        add_exactly(own, utility_at(record + layout.utilities + 2 * chunk));
        add_exactly(own + kSumNumbers, chunk_norm(record + layout.weights + chunk * chunk_bytes, pool_.width, pool_.dtype));
      }
    });
    const std::lock_guard<std::mutex> lock(adding);
    int64_t* table = out + piece.table * 2 * kSumNumbers;
    for (int64_t i = 0; i < 2 * kSumNumbers; ++i) table[i] += own[i];
  });
}

// The order of operations is part of what a score is.
float Ranking::live_score(float utility, float norm, const TableMeans& means, int64_t chunk) const {
  float magnitude = norm / means.norm;
  magnitude = magnitude > settings_.floor ? magnitude : settings_.floor;
  magnitude = magnitude < settings_.ceiling ? magnitude : settings_.ceiling;
  return utility / means.utility * magnitude / factors_[static_cast<size_t>(chunk)];
}

float Ranking::next_score(float utility, const TableMeans& means, int64_t live) const {
  const float share = utility / static_cast<float>(pool_.chunks - live);
  return share / means.utility * settings_.dead / factors_[static_cast<size_t>(live)] / settings_.hysteresis;
}

// Writes the scores of a row's live chunks and of its next; how many.
int64_t Ranking::score_row(const Piece& piece, uint32_t slot, const TableMeans& means, uint32_t* out) const {
  const char* record = record_at(pool_, slot);
  const int64_t live = live_chunks(pool_, slot), chunk_bytes = pool_.width * dtype_bytes(pool_.dtype);
  const RecordLayout& layout = pool_.layouts[live];
  if ((record_mask(pool_, record) & (record_mask(pool_, record) + 1)) != 0) {
    throw std::logic_error("a row of table " + std::to_string(piece.table) + " keeps others than its first chunks");
  }
  uint32_t least = ~uint32_t{0};
  for (int64_t chunk = 0; chunk < live; ++chunk) {
    const float norm = chunk_norm(record + layout.weights + chunk * chunk_bytes, pool_.width, pool_.dtype);
    const float utility = utility_at(record + layout.utilities + 2 * chunk);
    least = std::min(least, score_bits(live_score(utility, norm, means, chunk)));
    out[chunk] = least;
  }
  if (live < pool_.chunks) out[live] = std::min(least, score_bits(next_score(utility_at(record), means, live)));
  return num_scores(live);
}

void Ranking::score(const TableMeans* means) {
  forget();
  scored_ = pieces();
  const auto num_pieces = static_cast<int64_t>(scored_.size());
  for_each_task(num_pieces, [&](int64_t task) {
    int64_t count = 0;
    for_each_row(scored_[static_cast<size_t>(task)], false,
                 [&](uint32_t, uint32_t slot) { count += num_scores(live_chunks(pool_, slot)); });
    scored_[static_cast<size_t>(task)].first = count;
  });
  int64_t total = 0;
  for (Piece& piece : scored_) {
    const int64_t count = piece.first;
    piece.first = total;
    total += count;
  }
  for (int64_t table = 0; table < static_cast<int64_t>(sketch_.size()); ++table) {
    if (exempt_[static_cast<size_t>(table)]) continue;
    const SketchTable& own = sketch_[static_cast<size_t>(table)];
    const int64_t entries = own.buckets * kBucketEntries;
    for (int64_t unit = 0; unit < own.last_unit - own.first_unit; ++unit, total += entries) {
      candidates_.push_back({table, unit * entries, entries, total});
    }
  }
  PageMemory(4 * total).swap(scores_);
  const auto num_units = static_cast<int64_t>(candidates_.size());
  for_each_task(num_pieces + num_units, [&](int64_t task) {
    auto* scores = scores_.as<uint32_t>();
    if (task < num_pieces) {
      const Piece& piece = scored_[static_cast<size_t>(task)];
      scores += piece.first;
      for_each_row(piece, true, [&](uint32_t, uint32_t slot) {
        scores += score_row(piece, slot, means[piece.table], scores);
      });
      return;
    }
    const CandidateUnit& unit = candidates_[static_cast<size_t>(task - num_pieces)];
    const SketchTable& own = sketch_of(unit);
    for (int64_t i = 0; i < unit.count; ++i) {
      const SketchEntry& entry = own.entries[unit.entry + i];
      if (!(entry.utility > 0)) continue;
      // A row that has begun since is no candidate.
      const auto id = static_cast<uint32_t>(entry.row - own.first_row);
      if (index_of(unit.table).find(id) != 0) continue;
      scores[unit.first + i] = score_bits(next_score(entry.utility, means[unit.table], 0));
    }
  });
  counts_ = row_counts();
}

void Ranking::forget() {
  scored_.clear();
  candidates_.clear();
  counts_.clear();
  PageMemory(0).swap(scores_);
}

void Ranking::check_unchanged() const {
  if (counts_ != row_counts()) throw std::logic_error("rows of the pool have changed since their chunks were scored");
}

uint32_t Ranking::tie_hash(int64_t table, int64_t row, int64_t chunk) const {
  const uint64_t key = rows_.tables()[static_cast<size_t>(table)].start.row_key(row);
  return static_cast<uint32_t>(mixed(key ^ (0xa24baed4963ee407ull + static_cast<uint64_t>(chunk))) >> 48);
}

void Ranking::histogram(int64_t level, uint32_t prefix, int64_t* out) const {
  check_unchanged();
  std::vector<int64_t> costs;
  for (int64_t chunk = 0; chunk < pool_.chunks; ++chunk) costs.push_back(cost(chunk));
  // Counts the chunks of a row, of which the one at `optional` does not compete with a score of 0.
  const auto count_row = [&](int64_t* own, int64_t table, int64_t row, const uint32_t* scores, int64_t count,
                             int64_t optional) {
    uint32_t hash = kHistogramSize - 1;
    for (int64_t chunk = 0; chunk < count; ++chunk) {
      const uint32_t score = scores[chunk];
      if (chunk == optional && score == 0) return;
      if (level == 0) {
        own[score >> 16] += costs[static_cast<size_t>(chunk)];
      } else if (level == 1 && score >> 16 == prefix) {
        own[score & 0xffff] += costs[static_cast<size_t>(chunk)];
      } else if (level == 2 && score == prefix) {
        hash = std::min(hash, tie_hash(table, row, chunk));
        own[hash] += costs[static_cast<size_t>(chunk)];
      }
    }
  };
  const auto num_pieces = static_cast<int64_t>(scored_.size());
  const int64_t tasks = num_pieces + static_cast<int64_t>(candidates_.size()), workers = num_workers(tasks);
  std::vector<int64_t> counted(static_cast<size_t>(std::max<int64_t>(workers, 1) * kHistogramSize), 0);
  for_each_task(tasks, workers, [&](int64_t task, int64_t worker) {
    int64_t* own = counted.data() + worker * kHistogramSize;
    if (task < num_pieces) {
      const Piece& piece = scored_[static_cast<size_t>(task)];
      for_each_scored(piece, [&](uint32_t row, uint32_t, int64_t live, const uint32_t* scores, int64_t count) {
        count_row(own, piece.table, row, scores, count, live);
      });
      return;
    }
    const CandidateUnit& unit = candidates_[static_cast<size_t>(task - num_pieces)];
    const SketchTable& sketch = sketch_of(unit);
    for (int64_t i = 0; i < unit.count; ++i) {
      count_row(own, unit.table, sketch.entries[unit.entry + i].row - sketch.first_row, scores_from(unit.first + i), 1, 0);
    }
  });
  std::fill_n(out, kHistogramSize, 0);
  for (int64_t worker = 0; worker < workers; ++worker) {
    for (int64_t i = 0; i < kHistogramSize; ++i) out[i] += counted[static_cast<size_t>(worker * kHistogramSize + i)];
  }
}

// How many of a row's chunks have a key of at least this: the first ones.
int64_t Ranking::num_kept(int64_t table, int64_t row, const uint32_t* scores, int64_t count, int64_t optional,
                          uint64_t key) const {
  const uint64_t limit = key >> 16, least_hash = key & 0xffff;
  uint64_t hash = kHistogramSize - 1;
  int64_t chunk = 0;
  for (; chunk < count; ++chunk) {
    if (chunk == optional && scores[chunk] == 0) break;
    if (scores[chunk] > limit) continue;
    if (scores[chunk] < limit) break;
    if (least_hash == 0) continue;
    hash = std::min<uint64_t>(hash, tie_hash(table, row, chunk));
    if (hash < least_hash) break;
  }
  return chunk;
}

bool Ranking::is_begun(const CandidateUnit& unit, int64_t at, uint64_t key) const {
  const SketchTable& sketch = sketch_of(unit);
  const int64_t id = sketch.entries[unit.entry + at].row - sketch.first_row;
  return num_kept(unit.table, id, scores_from(unit.first + at), 1, 0, key) == 1;
}

RankingChanges Ranking::changes(uint64_t key) const {
  check_unchanged();
  RankingChanges total{};
  std::mutex adding;
  const auto num_pieces = static_cast<int64_t>(scored_.size());
  for_each_task(num_pieces + static_cast<int64_t>(candidates_.size()), [&](int64_t task) {
    RankingChanges own{};
    if (task < num_pieces) {
      const Piece& piece = scored_[static_cast<size_t>(task)];
      for_each_scored(piece, [&](uint32_t row, uint32_t, int64_t live, const uint32_t* scores, int64_t count) {
        const int64_t kept = num_kept(piece.table, row, scores, count, live, key);
        own.pruned += std::max<int64_t>(live - kept, 0);
        own.grown += std::max<int64_t>(kept - live, 0);
        own.removed += kept == 0;
        own.bytes += kept == 0 ? 0 : rows_.record_bytes(kept);
      });
    } else {
      const CandidateUnit& unit = candidates_[static_cast<size_t>(task - num_pieces)];
      for (int64_t i = 0; i < unit.count; ++i) own.begun += is_begun(unit, i, key);
      own.grown = own.begun;
      own.bytes = own.begun * rows_.record_bytes(1);
    }
    const std::lock_guard<std::mutex> lock(adding);
    total.pruned += own.pruned;
    total.grown += own.grown;
    total.begun += own.begun;
    total.removed += own.removed;
    total.bytes += own.bytes;
  });
  return total;
}

}  // namespace megalith
