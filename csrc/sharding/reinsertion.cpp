// Tables taken out of a sharding plan and put in again, a few at a time: the search of the planner where it counts.
//
// A worker whose load of a phase is at most the phase's limit costs nothing; beyond it costs the value of the phase
// times a power of what is beyond. Memory is never exceeded; where it is costed too, it is filled evenly. A table that is put in takes, of its candidate options and
// the groups of workers that have room, what adds least: the price of the option, and what its blocks cost the workers.
// In every round tables of a worker that costs something and of others at random are taken out and put in again, and
// stay if that is no dearer. The twin (ops/sharding/reinsertion.py) takes the same decisions: sums are in the same order.
#include <algorithm>
#include <limits>
#include <vector>

#include "abi.h"

namespace {

constexpr double kNoRoom = std::numeric_limits<double>::infinity();
constexpr double kWorst = 0.3;   // How often the dearest worker is relieved, and not any that costs something.
constexpr double kSorted = 0.7;  // How often the largest tables are put in first, and not in any order.

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
  int64_t workers, phases, tiers, costed, tables, num_inserted, rounds, seed, most_workers, most_tables, window, doublings;
};

struct Plan {
  const int64_t *first, *candidates, *width, *counts, *starts;
  const double *shards, *price, *size, *scale, *value, *capacity;
  int64_t* choice;
  const int64_t* group_first;
  int64_t* groups;
  double* loads;
};

class Reinsertion {
 public:
  Reinsertion(const Settings& settings, const Plan& plan, double level)
      : s_(settings), p_(plan), level_(level), columns_(settings.phases + settings.tiers),
        draw_(static_cast<uint64_t>(settings.seed)), cost_(settings.workers), tables_on_(settings.workers) {
    for (int64_t worker = 0; worker < s_.workers; ++worker) total_ += cost_[worker] = cost_of(worker, nullptr);
    for (int64_t table = 0; table < s_.tables; ++table) {
      if (p_.choice[table] >= 0) list(table, true);
    }
  }

  // Puts tables in, in this order; says how many found room before the first that did not.
  int64_t insert_all(const int64_t* order, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (!insert(order[i])) return i;
    }
    return count;
  }

  // Rounds whose change stayed.
  int64_t search(double slack) {
    int64_t kept = 0;
    for (int64_t round = 0; round < s_.rounds; ++round) {
      if (!choose_tables()) continue;
      double before = total_;
      for (int64_t table : chosen_) before += p_.price[p_.choice[table]];
      take_out();
      arrange();
      const int64_t inserted = insert_all(chosen_.data(), static_cast<int64_t>(chosen_.size()));
      double after = inserted < static_cast<int64_t>(chosen_.size()) ? kNoRoom : total_;
      if (after != kNoRoom) {
        for (int64_t table : taken_) after += p_.price[p_.choice[table]];
      }
      const double allowed = before + slack * draw_.uniform();
      if (after <= allowed) {
        ++kept;
      } else {
        restore(inserted);
      }
    }
    return kept;
  }

 private:
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

  bool has_room(int64_t worker, const double* shard) const {
    const double* load = p_.loads + worker * columns_ + s_.phases;
    bool room = true;
    for (int64_t tier = 0; tier < s_.tiers; ++tier) {
      room &= load[tier] + shard[s_.phases + tier] <= p_.capacity[tier];
    }
    return room;
  }

  double added_cost(int64_t group, int64_t width, const double* block) const {
    double added = 0.0;
    for (int64_t member = 0; member < width; ++member) {
      const int64_t worker = group * width + member;
      const double* shard = block + member * columns_;
      if (!has_room(worker, shard)) return kNoRoom;
      added += cost_of(worker, shard) - cost_[worker];
    }
    return added;
  }

  // Groups that a block of an option may go to: all, or those of a window and of tables that were taken out.
  void list_groups(int64_t option) {
    const int64_t width = p_.width[option], groups = num_groups(option);
    const int64_t window = s_.window / width;
    reached_.clear();
    if (s_.window == 0 || groups <= 2 * window || num_blocks(option) >= window) {
      for (int64_t group = 0; group < groups; ++group) reached_.push_back(group);
      return;
    }
    const int64_t begin = draw_.below(groups);
    for (int64_t i = 0; i < window; ++i) reached_.push_back((begin + i) % groups);
    if (width > 1) return;
    for (int64_t worker : left_) {
      if ((worker - begin + groups) % groups >= window) reached_.push_back(worker);
    }
  }

  bool insert(int64_t table) {
    double best = kNoRoom;
    int64_t best_option = -1;
    for (int64_t i = p_.first[table]; i < p_.first[table + 1]; ++i) {
      const int64_t option = p_.candidates[i], count = num_blocks(option);
      // Candidates come by rising price, and blocks add nothing less than 0.
      if (p_.price[option] >= best) break;
      if (count > num_groups(option)) continue;
      list_groups(option);
      const double* block = p_.shards + p_.starts[2 * option] * columns_;
      ranked_.clear();
      for (int64_t group : reached_) {
        const double added = added_cost(group, p_.width[option], block);
        if (added != kNoRoom) ranked_.emplace_back(added, group);
      }
      if (static_cast<int64_t>(ranked_.size()) < count) continue;
      std::partial_sort(ranked_.begin(), ranked_.begin() + count, ranked_.end());
      double total = p_.price[option];
      for (int64_t k = 0; k < count; ++k) total += ranked_[k].first;
      if (total < best) {
        best = total;
        best_option = option;
        best_groups_.clear();
        for (int64_t k = 0; k < count; ++k) best_groups_.push_back(ranked_[k].second);
      }
    }
    if (best_option < 0) return false;
    p_.choice[table] = best_option;
    std::copy(best_groups_.begin(), best_groups_.end(), p_.groups + p_.group_first[table]);
    put(table, 1.0);
    return true;
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
          total_ -= cost_[worker];
          total_ += cost_[worker] = cost_of(worker, nullptr);
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

  bool choose_tables() {
    chosen_.clear();
    const bool worst = draw_.uniform() < kWorst;
    const int64_t begin = draw_.below(s_.workers);
    int64_t relieved = -1;
    if (worst) {
      relieved = std::max_element(cost_.begin(), cost_.end()) - cost_.begin();
    } else {
      for (int64_t i = 0; i < s_.workers && relieved < 0; ++i) {
        if (cost_[(begin + i) % s_.workers] > 0.0) relieved = (begin + i) % s_.workers;
      }
    }
    if (relieved < 0 || cost_[relieved] <= 0.0) return false;
    const int64_t others = 1 + draw_.below(s_.most_workers);
    for (int64_t i = 0; i <= others; ++i) {
      const std::vector<int64_t>& mine = tables_on_[i == 0 ? relieved : draw_.below(s_.workers)];
      const int64_t count = 1 + draw_.below(s_.most_tables);
      for (int64_t k = 0; k < count && !mine.empty(); ++k) {
        const int64_t table = mine[draw_.below(static_cast<int64_t>(mine.size()))];
        if (std::find(chosen_.begin(), chosen_.end(), table) == chosen_.end()) chosen_.push_back(table);
      }
    }
    return !chosen_.empty();
  }

  void take_out() {
    taken_ = chosen_;
    old_choice_.clear();
    old_groups_.clear();
    left_.clear();
    for (int64_t table : taken_) {
      const int64_t option = p_.choice[table];
      const int64_t* group = p_.groups + p_.group_first[table];
      old_choice_.push_back(option);
      old_groups_.insert(old_groups_.end(), group, group + num_blocks(option));
      if (p_.width[option] == 1) left_.insert(left_.end(), group, group + num_blocks(option));
      put(table, -1.0);
    }
    std::sort(left_.begin(), left_.end());
    left_.erase(std::unique(left_.begin(), left_.end()), left_.end());
  }

  void arrange() {
    for (int64_t i = static_cast<int64_t>(chosen_.size()); i > 1; --i) {
      std::swap(chosen_[i - 1], chosen_[draw_.below(i)]);
    }
    if (draw_.uniform() < kSorted) {
      std::stable_sort(chosen_.begin(), chosen_.end(), [&](int64_t one, int64_t other) {
        return p_.size[p_.choice[one]] > p_.size[p_.choice[other]];
      });
    }
  }

  // Puts tables back as they were; the first `inserted` are elsewhere.
  void restore(int64_t inserted) {
    for (int64_t i = 0; i < inserted; ++i) put(chosen_[i], -1.0);
    const int64_t* groups = old_groups_.data();
    for (size_t i = 0; i < taken_.size(); ++i) {
      const int64_t table = taken_[i], count = num_blocks(old_choice_[i]);
      p_.choice[table] = old_choice_[i];
      std::copy(groups, groups + count, p_.groups + p_.group_first[table]);
      groups += count;
      put(table, 1.0);
    }
  }

  const Settings s_;
  const Plan p_;
  const double level_;
  const int64_t columns_;
  Draw draw_;
  std::vector<double> cost_;
  std::vector<std::vector<int64_t>> tables_on_;
  double total_ = 0.0;
  std::vector<int64_t> chosen_, taken_, old_choice_, old_groups_, left_, reached_, best_groups_;
  std::vector<std::pair<double, int64_t>> ranked_;
};

}  // namespace

// `settings` are those above; `inserted` are tables without an option to begin with. `found` is how many of them found
// room, and how many rounds changed the plan. `choice`, `groups` and `loads` are read and written.
MG_EXPORT int32_t mg_reinsert_tables(const int64_t* settings, const int64_t* first, const int64_t* candidates,
                                     const int64_t* width, const int64_t* counts, const int64_t* starts,
                                     const double* shards, const double* price, const double* size,
                                     const double* scale, const double* value, const double* capacity,
                                     const double* level_and_slack, const int64_t* inserted, int64_t* choice,
                                     const int64_t* group_first, int64_t* groups, double* loads, int64_t* found) {
  return megalith::guarded("look for a better plan", [&] {
    const Settings& read = *reinterpret_cast<const Settings*>(settings);
    const Plan plan{first, candidates, width, counts, starts, shards, price,       size,
                    scale, value,      capacity, choice, group_first, groups, loads};
    if (read.phases + read.tiers > 16) throw std::invalid_argument("more than 16 columns of loads");
    Reinsertion reinsertion(read, plan, level_and_slack[0]);
    found[0] = reinsertion.insert_all(inserted, read.num_inserted);
    found[1] = found[0] < read.num_inserted ? 0 : reinsertion.search(level_and_slack[1]);
  });
}
