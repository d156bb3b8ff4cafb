#include "ids/id_map.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "parallel.h"

namespace megalith {
namespace {

// Takes from each list what belongs to a table, and so on with the next: lists are by table each.
template <class Row, class ListOf>
void append_by_table(std::vector<IdChanges>& from, size_t num_tables, const ListOf& list_of, std::vector<Row>& out) {
  size_t total = out.size();
  for (IdChanges& changes : from) total += list_of(changes).size();
  out.reserve(total);
  std::vector<size_t> at(from.size(), 0);
  for (size_t table = 0; table < num_tables; ++table) {
    for (size_t p = 0; p < from.size(); ++p) {
      const std::vector<Row>& list = list_of(from[p]);
      for (; at[p] < list.size() && list[at[p]].table == static_cast<int64_t>(table); ++at[p]) out.push_back(list[at[p]]);
    }
  }
}

}  // namespace

IdMap::IdMap(const IdMapSettings& settings, const IdTableSettings* tables, int64_t num_tables)
    : settings_(settings), here_{settings.first_partition, settings.last_partition} {
  for (int64_t t = 0; t < num_tables; ++t) tables_.push_back(std::make_unique<IdTable>(t, tables[t], here_));
  by_partition_.resize(static_cast<size_t>(here_.count()));
}

void IdMap::check_whole() const {
  if (!whole_) throw std::runtime_error("an earlier change failed half-way; load the ids of a checkpoint into a new map");
}

void IdMap::begin_change() {
  check_whole();
  whole_ = false;
  changes_.clear();
  for (IdChanges& changes : by_partition_) changes.clear();
}

void IdMap::end_change() {
  append_by_table(by_partition_, tables_.size(), [](IdChanges& of) -> auto& { return of.begun; }, changes_.begun);
  append_by_table(by_partition_, tables_.size(), [](IdChanges& of) -> auto& { return of.left; }, changes_.left);
  whole_ = true;
}

void IdMap::check_order(int64_t batch) const {
  if (batch < 1 || batch < batch_ || batch > UINT32_MAX) {
    throw std::runtime_error("batch " + std::to_string(batch) + " comes after batch " + std::to_string(batch_));
  }
}

void IdMap::begin_segments(const int64_t* segments) {
  for (size_t t = 0; t < tables_.size(); ++t) tables_[t]->begin_segment(segments[t]);
}

// Calls body(partition, worker) for every partition here.
template <class Body>
void IdMap::for_each_partition(const Body& body) {
  const int64_t most = settings_.threads == 0 ? here_.count() : settings_.threads;
  const int64_t workers = most == 1 ? 1 : std::min(num_workers(here_.count()), most);
  misses_.resize(std::max(misses_.size(), static_cast<size_t>(workers)));
  if (workers <= 1) {
    for (int64_t p = here_.first; p < here_.last; ++p) body(p, 0);
  } else {
    for_each_task(here_.count(), workers, [&](int64_t task, int64_t worker) { body(here_.first + task, worker); });
  }
}

void IdMap::resolve(const IdLookup* lookups, int64_t num_lookups, int64_t num_values, const IdBatch& batch,
                    const ScoreClock& clock) {
  if (batch.trains) check_order(batch.number);
  const bool guessed = std::any_of(batch.rows, batch.rows + num_values, [](int32_t row) { return row >= 0; });
  // What is refused, an id of another process, is refused before anything changes; guesses come from an earlier call.
  if (!guessed || !batch.trains) search(lookups, num_lookups, batch);
  begin_change();
  if (!batch.trains) {
    end_change();
    return;
  }
  batch_ = batch.number;
  begin_segments(clock.segments);
  confirm(lookups, num_lookups, batch, clock);
  group(lookups, num_lookups, num_values, batch);
  for_each_partition([&](int64_t partition, int64_t worker) {
    resolve_partition(partition, lookups, num_lookups, batch, clock, misses_[static_cast<size_t>(worker)]);
  });
  end_change();
}

void IdMap::search(const IdLookup* lookups, int64_t num_lookups, const IdBatch& batch) const {
  const int64_t workers = settings_.threads == 1 ? 1 : num_workers(num_lookups);
  const auto one = [&](int64_t l) {
    const IdLookup& lookup = lookups[l];
    tables_.at(static_cast<size_t>(lookup.table))->search(batch, lookup.first, lookup.last);
  };
  if (workers <= 1) {
    for (int64_t l = 0; l < num_lookups; ++l) one(l);
  } else {
    for_each_task(num_lookups, std::min(workers, settings_.threads == 0 ? workers : settings_.threads),
                  [&](int64_t l, int64_t) { one(l); });
  }
}

void IdMap::confirm(const IdLookup* lookups, int64_t num_lookups, const IdBatch& batch, const ScoreClock& clock) {
  for (int64_t l = 0; l < num_lookups; ++l) {
    const IdLookup& lookup = lookups[l];
    table(lookup.table).confirm(batch, lookup.first, lookup.last, clock.weights[lookup.table]);
  }
}

// Counts, then places: the order of the values within a partition and a lookup stays. Values that have a row are left out.
void IdMap::group(const IdLookup* lookups, int64_t num_lookups, int64_t num_values, const IdBatch& batch) {
  const int64_t* values = batch.values;
  grouped_.order.resize(static_cast<size_t>(num_lookups));
  std::iota(grouped_.order.begin(), grouped_.order.end(), 0);
  std::stable_sort(grouped_.order.begin(), grouped_.order.end(),
                   [&](int64_t a, int64_t b) { return lookups[a].table < lookups[b].table; });
  grouped_.partitions.resize(static_cast<size_t>(num_values));
  std::vector<int64_t>& ends = grouped_.ends;
  ends.assign(static_cast<size_t>(here_.count() * num_lookups), 0);
  int64_t total = 0;
  for (int64_t l = 0; l < num_lookups; ++l) {
    const IdLookup& lookup = lookups[grouped_.order[static_cast<size_t>(l)]];
    for (int64_t i = lookup.first; i < lookup.last; ++i) {
      if (batch.rows[i] >= 0) continue;
      ++total;
      const int64_t partition = id_partition(hash_id(values[i]));
      if (!here_.has(partition)) {
        throw std::runtime_error("id " + std::to_string(values[i]) + " is of partition " + std::to_string(partition) +
                                 ", which another process has");
      }
      grouped_.partitions[static_cast<size_t>(i)] = static_cast<uint8_t>(partition - here_.first);
      ++ends[static_cast<size_t>((partition - here_.first) * num_lookups + l)];
    }
  }
  int64_t before = 0;
  for (int64_t& end : ends) {
    const int64_t count = end;
    end = before;  // where the next one is put: its end when all are
    before += count;
  }
  grouped_.positions.resize(static_cast<size_t>(total));
  for (int64_t l = 0; l < num_lookups; ++l) {
    const IdLookup& lookup = lookups[grouped_.order[static_cast<size_t>(l)]];
    for (int64_t i = lookup.first; i < lookup.last; ++i) {
      if (batch.rows[i] >= 0) continue;
      int64_t& to = ends[static_cast<size_t>(grouped_.partitions[static_cast<size_t>(i)] * num_lookups + l)];
      grouped_.positions[static_cast<size_t>(to++)] = static_cast<uint32_t>(i);
    }
  }
}

void IdMap::resolve_partition(int64_t partition, const IdLookup* lookups, int64_t num_lookups, const IdBatch& batch,
                              const ScoreClock& clock, std::vector<IdMiss>& misses) {
  const int64_t first = (partition - here_.first) * num_lookups;
  int64_t begin = first == 0 ? 0 : grouped_.ends[static_cast<size_t>(first - 1)];
  misses.clear();
  for (int64_t l = 0; l < num_lookups; ++l) {
    const int64_t end = grouped_.ends[static_cast<size_t>(first + l)];
    const int64_t number = lookups[grouped_.order[static_cast<size_t>(l)]].table;
    IdPartition& ids = tables_[static_cast<size_t>(number)]->partition(partition);
    const double weight = clock.weights[number];
    if (begin != end) ids.look_up(batch, grouped_.positions.data() + begin, end - begin, weight, misses);
    begin = end;
    // A table may have several lookups: it decides after the last.
    const bool more = l + 1 < num_lookups && lookups[grouped_.order[static_cast<size_t>(l + 1)]].table == number;
    if (more || misses.empty()) continue;
    ids.decide(batch, weight, misses, by_partition_[static_cast<size_t>(partition - here_.first)]);
    misses.clear();
  }
}

void IdMap::expire(int64_t batch, int64_t time, const ScoreClock& clock, const double* least_scores) {
  check_order(batch);
  begin_change();
  batch_ = batch;
  begin_segments(clock.segments);
  for_each_partition([&](int64_t partition, int64_t) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      tables_[t]->partition(partition).expire(static_cast<uint32_t>(batch), protected_from(batch), time, least_scores[t],
                                              by_partition_[static_cast<size_t>(partition - here_.first)]);
    }
  });
  end_change();
}

void IdMap::change_bound(int64_t number, int64_t bound) {
  begin_change();
  table(number).change_bound(bound, changes_);
  end_change();
}

void IdMap::load(int64_t number, const IdBlockArrays& block, int64_t count) {
  begin_change();
  table(number).load(block, count, changes_);
  end_change();
}

void IdMap::clear(int64_t number) {
  begin_change();
  auto empty = std::make_unique<IdTable>(number, table(number).settings(), here_);
  empty->set_segment(table(number).segment());
  tables_[static_cast<size_t>(number)] = std::move(empty);
  end_change();
}

int64_t IdMap::scratch_bytes() const {
  size_t bytes = grouped_.order.capacity() * 8 + grouped_.positions.capacity() * 4 + grouped_.ends.capacity() * 8 +
                 grouped_.partitions.capacity();
  for (const auto& misses : misses_) bytes += misses.capacity() * sizeof(IdMiss);
  for (const IdChanges& changes : by_partition_) bytes += static_cast<size_t>(changes.bytes());
  return static_cast<int64_t>(bytes) + changes_.bytes();
}

void IdMap::resume(int64_t batch, const int64_t* segments) {
  batch_ = batch;
  for (size_t t = 0; t < tables_.size(); ++t) tables_[t]->set_segment(segments[t]);
}

}  // namespace megalith
