// Tables taken out of a sharding plan and put in again, a few at a time: the search of the planner where it counts.
//
// A worker whose load of a phase is at most the phase's limit costs nothing; beyond it costs the value of the phase
// times a power of what is beyond. Memory is never exceeded; where it is costed too, it is filled evenly. A table that
// is put in takes, of its candidate options and the groups of workers that have room, what adds least: the price of the
// option, and what its blocks cost the workers. In every round tables of a worker that costs something and of others at
// random are taken out and put in again, and stay if that is no dearer. Before a round blocks are moved one by one, or
// swapped with one elsewhere, or a table is cut another way where it is, wherever that costs no more than a slack of its
// own: 250 of these take as long as a round. The twin (ops/sharding/reinsertion_twin.py) takes the same decisions: sums are in the same order.
#include "sharding/plan_state.h"

#include "abi.h"

using namespace megalith::sharding;

namespace {

constexpr double kWorst = 0.3;   // How often the dearest worker is relieved, and not any that costs something.
constexpr double kWide = 0.2;    // How often a block of several workers is taken where one was drawn.
constexpr double kMoved = 0.3;   // How often a block is moved, and not swapped.
constexpr double kCostly = 0.5;  // How often it is of a worker that costs something, and not of any.
constexpr double kRecut = 0.4;   // How often its table is cut another way instead.
constexpr int64_t kMostRecut = 8;  // Blocks of such a table, before and after.
constexpr double kSorted = 0.7;  // How often the largest tables are put in first, and not in any order.

class Reinsertion : private PlanState {
 public:
  using PlanState::PlanState;

  // Puts tables in, in this order; says how many found room before the first that did not.
  int64_t insert_all(const int64_t* order, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (!insert(order[i])) return i;
    }
    return count;
  }

  // Rounds whose change stayed.
  int64_t search(double slack, double exchange_slack) {
    int64_t kept = 0;
    for (int64_t round = 0; round < s_.rounds; ++round) {
      for (int64_t i = 0; i < s_.exchanges; ++i) exchange(exchange_slack);
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

  // Appends the groups that so many blocks of a variant add least to, but for those taken by the other; says what they
  // add.
  double rank(int64_t option, int64_t variant, int64_t count) {
    if (count == 0) return 0.0;
    const double* block = p_.shards + p_.starts[2 * option + variant] * columns_;
    ranked_.clear();
    for (int64_t group : reached_) {
      if (std::find(ranked_groups_.begin(), ranked_groups_.end(), group) != ranked_groups_.end()) continue;
      const double added = added_cost(group, p_.width[option], block);
      if (added != kNoRoom) ranked_.emplace_back(added, group);
    }
    if (static_cast<int64_t>(ranked_.size()) < count) return kNoRoom;
    std::partial_sort(ranked_.begin(), ranked_.begin() + count, ranked_.end());
    double added = 0.0;
    for (int64_t k = 0; k < count; ++k) {
      added += ranked_[k].first;
      ranked_groups_.push_back(ranked_[k].second);
    }
    return added;
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
      double total = p_.price[option];
      ranked_groups_.clear();
      if (s_.window == 0) {
        // With few workers memory decides, and a place that takes the larger block takes the other, too.
        total += rank(option, 0, count);
      } else {
        for (int64_t variant = 0; variant < 2 && total < best; ++variant) {
          total += rank(option, variant, p_.counts[2 * option + variant]);
        }
      }
      if (total < best) {
        best = total;
        best_option = option;
        best_groups_ = ranked_groups_;
      }
    }
    if (best_option < 0) return false;
    p_.choice[table] = best_option;
    std::copy(best_groups_.begin(), best_groups_.end(), p_.groups + p_.group_first[table]);
    put(table, 1.0);
    return true;
  }

  // The first worker from this one on that costs something, or -1.
  int64_t costly_from(int64_t begin) const {
    for (int64_t worker = begin; worker < s_.workers; ++worker) {
      if (cost_[worker] > 0.0) return worker;
    }
    for (int64_t worker = 0; worker < begin; ++worker) {
      if (cost_[worker] > 0.0) return worker;
    }
    return -1;
  }

  // What a worker costs once `more` is there and `less` is not; infinite where it has no room.
  double cost_after(int64_t worker, const double* more, const double* less) const {
    const double* load = p_.loads + worker * columns_;
    for (int64_t tier = 0; tier < s_.tiers; ++tier) {
      const int64_t k = s_.phases + tier;
      if (load[k] + more[k] - less[k] > p_.capacity[tier]) return kNoRoom;
    }
    double cost = 0.0;
    for (int64_t k = 0; k < s_.costed; ++k) {
      double beyond = std::max((load[k] + more[k] - less[k]) * p_.scale[k] - level_, 0.0);
      for (int64_t i = 0; i < s_.doublings; ++i) beyond *= beyond;
      cost += p_.value[k] * beyond;
    }
    return cost;
  }

  // A block of some worker and another group of workers as large: the block moves there, or swaps with one of theirs.
  void exchange(double slack) {
    const bool costly = draw_.uniform() < kCostly && !costly_.empty();
    const int64_t drawn = draw_.below(costly ? static_cast<int64_t>(costly_.size()) : s_.workers);
    const int64_t worker = costly ? costly_[drawn] : drawn;
    if (tables_on_[worker].empty()) return;
    const int64_t table = tables_on_[worker][draw_.below(static_cast<int64_t>(tables_on_[worker].size()))];
    const int64_t width = p_.width[p_.choice[table]], from = worker / width;
    if (width > 1 && draw_.uniform() >= kWide) return;
    if (draw_.uniform() < kRecut) return recut(table, slack);
    const int64_t to = draw_.below(num_groups(p_.choice[table]));
    if (to == from || holds(to * width, table)) return;
    const std::vector<int64_t>& theirs = tables_on_[to * width];
    int64_t back = -1;
    if (!theirs.empty() && draw_.uniform() >= kMoved) {
      // The first of theirs that is as wide, from any on.
      const int64_t count = static_cast<int64_t>(theirs.size()), begin = draw_.below(count);
      for (int64_t i = 0; i < count && back < 0; ++i) {
        const int64_t other = theirs[(begin + i) % count];
        if (p_.width[p_.choice[other]] == width) back = other;
      }
      if (back < 0 || holds(worker, back)) return;
    }
    const auto [slot, block] = block_at(table, from);
    const auto [back_slot, back_block] = back < 0 ? std::make_pair(slot, static_cast<const double*>(nothing_.data())) : block_at(back, to);
    const double allowed = slack * draw_.uniform();
    double before = 0.0, after = 0.0;
    for (int64_t i = 0; i < width; ++i) {
      const double *more = block + i * columns_, *less = back_block + i * columns_;
      before += cost_[from * width + i] + cost_[to * width + i];
      after += cost_after(from * width + i, less, more) + cost_after(to * width + i, more, less);
    }
    if (!(after - before <= allowed)) return;
    for (int64_t i = 0; i < width; ++i) {
      add(from * width + i, back_block + i * columns_, block + i * columns_);
      add(to * width + i, block + i * columns_, back_block + i * columns_);
      relist(from * width + i, table, back);
      relist(to * width + i, back, table);
    }
    *slot = to;
    if (back >= 0) *back_slot = from;
  }

  // Another option of a table, of blocks as wide: the first of these stay where the table is, in its order but for two
  // that change places, and further ones go anywhere.
  void recut(int64_t table, double slack) {
    const int64_t option = p_.choice[table], begin = p_.first[table], width = p_.width[option];
    const int64_t other = p_.candidates[begin + draw_.below(p_.first[table + 1] - begin)];
    const int64_t before = num_blocks(option), count = num_blocks(other), most = std::max(before, count);
    if (other == option || p_.width[other] != width || most > kMostRecut) return;
    int64_t* groups = p_.groups + p_.group_first[table];
    std::copy(groups, groups + before, recut_);
    for (int64_t i = before; i < count; ++i) {
      recut_[i] = draw_.below(num_groups(other));
      if (std::find(recut_, recut_ + i, recut_[i]) != recut_ + i) return;
    }
    const int64_t one = draw_.below(before), another = draw_.below(most);
    std::swap(recut_[one], recut_[another]);
    const double allowed = slack * draw_.uniform() + (p_.price[option] - p_.price[other]);
    double added = 0.0;
    for (int64_t i = 0; i < most; ++i) {
      const auto [more, less] = recut_blocks(option, other, groups, i);
      for (int64_t k = 0; k < width; ++k) {
        const int64_t worker = recut_[i] * width + k;
        added += cost_after(worker, more + k * columns_, less + k * columns_) - cost_[worker];
      }
    }
    if (!(added <= allowed)) return;
    for (int64_t i = 0; i < most; ++i) {
      const auto [more, less] = recut_blocks(option, other, groups, i);
      for (int64_t k = 0; k < width; ++k) {
        const int64_t worker = recut_[i] * width + k;
        add(worker, more + k * columns_, less + k * columns_);
        if (less == nothing_.data()) relist(worker, -1, table);
        if (more == nothing_.data()) relist(worker, table, -1);
      }
    }
    std::copy(recut_, recut_ + count, groups);
    p_.choice[table] = other;
  }

  const double* block_of(int64_t option, int64_t number) const {
    if (number >= num_blocks(option)) return nothing_.data();
    return p_.shards + p_.starts[2 * option + (number >= p_.counts[2 * option])] * columns_;
  }

  // What the group of this number in `recut_` gets, and what it has of the table now.
  std::pair<const double*, const double*> recut_blocks(int64_t option, int64_t other, const int64_t* groups,
                                                       int64_t number) const {
    const int64_t now = std::find(groups, groups + num_blocks(option), recut_[number]) - groups;
    return {block_of(other, number), block_of(option, now)};
  }

  bool choose_tables() {
    chosen_.clear();
    const bool worst = draw_.uniform() < kWorst;
    const int64_t begin = draw_.below(s_.workers);
    const int64_t relieved =
        worst ? std::max_element(cost_.begin(), cost_.end()) - cost_.begin() : costly_from(begin);
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

  std::vector<int64_t> chosen_, taken_, old_choice_, old_groups_, left_, reached_, ranked_groups_, best_groups_;
  std::vector<std::pair<double, int64_t>> ranked_;
  int64_t recut_[kMostRecut];
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
    found[1] = found[0] < read.num_inserted ? 0 : reinsertion.search(level_and_slack[1], level_and_slack[2]);
  });
}
