// The loads of workers under a sharding plan, what they cost, and which tables each worker has, kept while tables are
// taken out and put in (reinsertion.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace megalith::sharding {

constexpr double kNoRoom = std::numeric_limits<double>::infinity();

// SplitMix64.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}

  double uniform() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
  }

  int64_t below(int64_t count) { return static_cast<int64_t>(uniform() * static_cast<double>(count)); }

 private:
  uint64_t state_;
};

// Counts that describe a problem, and how to look for a better plan.
struct Settings {
  int64_t workers, phases, tiers, costed, tables, num_inserted, rounds, seed, most_workers, most_tables, window, doublings, exchanges;
};

struct Plan {
  const int64_t *first, *candidates, *width, *counts, *starts;
  const double *shards, *price, *size, *scale, *value, *capacity;
  int64_t* choice;
  const int64_t* group_first;
  int64_t* groups;
  double* loads;
};

class PlanState {
 public:
  PlanState(const Settings& settings, const Plan& plan, double level)
      : s_(settings), p_(plan), level_(level), columns_(settings.phases + settings.tiers),
        draw_(static_cast<uint64_t>(settings.seed)), cost_(settings.workers), tables_on_(settings.workers),
        nothing_(settings.workers * columns_, 0.0), place_(settings.workers, -1) {
    for (int64_t worker = 0; worker < s_.workers; ++worker) set_cost(worker, cost_of(worker, nullptr));
    for (int64_t table = 0; table < s_.tables; ++table) {
      if (p_.choice[table] >= 0) list(table, true);
    }
  }

 protected:
  int64_t num_blocks(int64_t option) const { return p_.counts[2 * option] + p_.counts[2 * option + 1]; }

  int64_t num_groups(int64_t option) const {
    const int64_t width = p_.width[option];
    return width == s_.workers ? 1 : s_.workers / width;
  }

  // What a worker costs, with a shard more.
  double cost_of(int64_t worker, const double* shard) const {
    static const double kNothing[16] = {};
    const double* load = p_.loads + worker * columns_;
    if (!shard) shard = kNothing;
    return s_.doublings == 1 && s_.costed == 4 ? squares_of_four(load, shard) : powers(load, shard);
  }

  double powers(const double* load, const double* shard) const {
    double cost = 0.0;
    for (int64_t k = 0; k < s_.costed; ++k) {
      double beyond = std::max((load[k] + shard[k]) * p_.scale[k] - level_, 0.0);
      for (int64_t i = 0; i < s_.doublings; ++i) beyond *= beyond;
      cost += p_.value[k] * beyond;
    }
    return cost;
  }

  // The same, unrolled: most of the time of a search is spent here.
  double squares_of_four(const double* load, const double* shard) const {
    double cost = 0.0;
    for (int64_t k = 0; k < 4; ++k) {
      const double beyond = std::max((load[k] + shard[k]) * p_.scale[k] - level_, 0.0);
      cost += p_.value[k] * (beyond * beyond);
    }
    return cost;
  }

  // Keeps the sum of costs, and which workers cost something, in no order.
  void set_cost(int64_t worker, double cost) {
    total_ -= cost_[worker];
    total_ += cost_[worker] = cost;
    const int64_t place = place_[worker];
    if (cost > 0.0 && place < 0) {
      place_[worker] = static_cast<int64_t>(costly_.size());
      costly_.push_back(worker);
    } else if (cost <= 0.0 && place >= 0) {
      costly_[place] = costly_.back();
      place_[costly_[place]] = place;
      costly_.pop_back();
      place_[worker] = -1;
    }
  }

  bool has_room(int64_t worker, const double* shard) const {
    const double* load = p_.loads + worker * columns_ + s_.phases;
    bool room = true;
    for (int64_t tier = 0; tier < s_.tiers; ++tier) {
      room &= load[tier] + shard[s_.phases + tier] <= p_.capacity[tier];
    }
    return room;
  }

  // Adds a table's blocks to the loads of their workers, or takes them off.
  void put(int64_t table, double sign) {
    const int64_t option = p_.choice[table], width = p_.width[option];
    const int64_t* group = p_.groups + p_.group_first[table];
    for (int64_t variant = 0; variant < 2; ++variant) {
      const double* block = p_.shards + p_.starts[2 * option + variant] * columns_;
      for (int64_t i = 0; i < p_.counts[2 * option + variant]; ++i, ++group) {
        for (int64_t member = 0; member < width; ++member) {
          const int64_t worker = *group * width + member;
          double* load = p_.loads + worker * columns_;
          for (int64_t k = 0; k < columns_; ++k) load[k] += sign * block[member * columns_ + k];
          set_cost(worker, cost_of(worker, nullptr));
        }
      }
    }
    list(table, sign > 0);
  }

  // Keeps which tables a worker has; those of all workers are not taken out.
  void list(int64_t table, bool added) {
    const int64_t option = p_.choice[table], width = p_.width[option];
    if (width == s_.workers) return;
    const int64_t* group = p_.groups + p_.group_first[table];
    for (int64_t i = 0; i < num_blocks(option); ++i) {
      for (int64_t worker = group[i] * width; worker < (group[i] + 1) * width; ++worker) {
        std::vector<int64_t>& mine = tables_on_[worker];
        if (added) {
          mine.push_back(table);
        } else {
          *std::find(mine.begin(), mine.end(), table) = mine.back();
          mine.pop_back();
        }
      }
    }
  }

  bool holds(int64_t worker, int64_t table) const {
    const std::vector<int64_t>& there = tables_on_[worker];
    return std::find(there.begin(), there.end(), table) != there.end();
  }

  // Where the groups of a table have this one, and what its block there adds to loads.
  std::pair<int64_t*, const double*> block_at(int64_t table, int64_t group) const {
    const int64_t option = p_.choice[table];
    int64_t* begin = p_.groups + p_.group_first[table];
    int64_t* found = std::find(begin, begin + num_blocks(option), group);
    const int64_t variant = found - begin >= p_.counts[2 * option];
    return {found, p_.shards + p_.starts[2 * option + variant] * columns_};
  }

  void add(int64_t worker, const double* more, const double* less) {
    double* load = p_.loads + worker * columns_;
    for (int64_t k = 0; k < columns_; ++k) load[k] = load[k] + more[k] - less[k];
    set_cost(worker, cost_of(worker, nullptr));
  }

  // A worker has another table instead of one; -1 for none.
  void relist(int64_t worker, int64_t gone, int64_t come) {
    std::vector<int64_t>& mine = tables_on_[worker];
    if (gone < 0) {
      mine.push_back(come);
      return;
    }
    const auto found = std::find(mine.begin(), mine.end(), gone);
    *found = come >= 0 ? come : mine.back();
    if (come < 0) mine.pop_back();
  }

  const Settings s_;
  const Plan p_;
  const double level_;
  const int64_t columns_;
  Draw draw_;
  std::vector<double> cost_;
  std::vector<std::vector<int64_t>> tables_on_;
  const std::vector<double> nothing_;
  std::vector<int64_t> place_;  // Of a worker among those that cost something, or -1.
  double total_ = 0.0;
  std::vector<int64_t> costly_;
};

}  // namespace megalith::sharding
