#include "plan/budget_search.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/never.h"

namespace cotune {
namespace {

constexpr double small_bubble = 0.03;  // of a step, that no smaller microbatches are looked for
constexpr double near_fastest = 1.03;  // may be faster once hybrid tasks are exchanged
constexpr size_t most_exchanged = 3;

PlannedReplica filled(const PlannedReplica& empty, int64_t budget, int64_t least_microbatches, const PricedRows& priced,
                      const ReplicaPrediction& prediction) {
  PlannedReplica replica = empty;
  replica.token_budget = budget;
  replica.least_microbatches = least_microbatches;
  replica.hybrid_tasks = priced.hybrid_tasks;
  replica.buckets = priced.buckets;
  replica.microbatches = priced.microbatches;
  replica.tokens = priced.tokens;
  replica.processed_tokens = priced.processed_tokens;
  replica.seconds = prediction.seconds;
  replica.bubble = prediction.bubble;
  replica.backward_ratio = priced.backward_ratio;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    replica.stages[s].busy_s = prediction.busy_s[s];
    replica.stages[s].memory = prediction.memory[s];
  }
  return replica;
}

/// What its ranks compute, on average.
double mean_seconds(const ReplicaModel& replica, const PricedRows& priced) {
  const std::vector<double> of_rank = computing_seconds(replica, priced);
  return std::accumulate(of_rank.begin(), of_rank.end(), 0.0) / static_cast<double>(of_rank.size());
}

/// Whether there is anything to exchange.
bool has_several_tasks(const PricedRows& priced) {
  return std::ranges::any_of(priced.works, [](const PipelineWork& work) {
    const auto is_other = [&](const PipelineMicrobatch& each) { return each.hybrid_task != work.microbatches.front().hybrid_task; };
    return work.stage_count() > 1 && std::ranges::any_of(work.microbatches, is_other);
  });
}

/// Something that was predicted and fits.
struct Candidate {
  double seconds = 0;
  int64_t budget = 0;
  size_t choice = 0;
  bool is_final = true;  ///< no exchange of hybrid tasks is left to be tried
};

/// What one order has come to.
class OrderSearch {
 public:
  /// Keeps it where it is the best so far.
  bool consider(const PlannedReplica& empty, int64_t budget, int64_t least_microbatches, const PricedRows& priced,
                const ReplicaPrediction& prediction) {
    if (fits() && (!prediction.fits() || prediction.seconds >= choice_->replica.seconds)) return false;
    choice_ = {.replica = filled(empty, budget, least_microbatches, priced, prediction),
               .constraint = prediction.constraint,
               .overflow = prediction.overflow,
               .is_bound = prediction.is_bound};
    return true;
  }
  void remember(const Candidate& candidate) { candidates_.push_back(candidate); }

  /// What takes so long, or longer, cannot be it.
  double seconds_to_beat() const { return fits() ? choice_->replica.seconds : never; }

  /// All that fit, the fastest first, and how many of them may be the best once hybrid tasks are exchanged. Where there are any, nothing is
  /// held any longer.
  std::pair<std::vector<Candidate>, size_t> to_exchange() {
    std::ranges::stable_sort(candidates_, {}, &Candidate::seconds);
    const auto is_near = [&](const Candidate& each) { return each.seconds <= near_fastest * seconds_to_beat(); };
    const size_t count = std::min<size_t>(most_exchanged, static_cast<size_t>(std::ranges::count_if(candidates_, is_near)));
    if (std::ranges::all_of(std::span(candidates_).first(count), &Candidate::is_final)) return {{}, 0};
    choice_.reset();
    return {std::move(candidates_), count};
  }

  bool fits() const { return choice_ && choice_->constraint.empty(); }
  std::optional<ReplicaChoice> take() { return std::move(choice_); }

  int64_t in_vain = 0;  ///< halvings in a row that gained nothing
  bool is_done = false;
  // Of this budget:
  bool has_misfit = false, has_gained = false;
  bool waits = false;  ///< for memory, as the default order does

 private:
  std::optional<ReplicaChoice> choice_;
  std::vector<Candidate> candidates_;
};

class Searcher {
 public:
  Searcher(const ReplicaModel& replica, const PlannedReplica& empty, const BudgetSearch& tried, const PlanOptions& options, StagePrices& prices)
      : replica_(replica), empty_(empty), tried_(tried), options_(options), prices_(prices), orders_(tried.orders.size()) {
    for (const StepRow& row : empty.rows) tokens_ += row.tokens;
  }

  std::vector<std::optional<ReplicaChoice>> run() {
    if (tried_.budget > 0) {
      try_budget(tried_.budget);
    } else {
      halve();
    }
    std::vector<std::optional<ReplicaChoice>> found;
    for (size_t o = 0; o < orders_.size(); ++o) {
      exchange(o);
      found.push_back(orders_[o].take());
    }
    return found;
  }

 private:
  void halve() {
    const int64_t least = whole_chunk_steps(least_budget(options_));  // longer rows are chains, which fill a pipeline
    const bool is_fixed =
        options_.token_budget > 0 || (tried_.sharing == Sharing::batch_all && replica_.stages.size() == 1);  // no choice, or none that is read
    for (int64_t budget = options_.token_budget > 0 ? options_.token_budget : std::max(empty_.token_budget, least);;) {
      // No microbatch of a pipeline is larger than the budget.
      if (tried_.is_few && (tokens_ + budget - 1) / budget >= tried_.wanted) return;
      const int64_t microbatches = try_budget(budget);
      for (OrderSearch& each : orders_) {
        each.in_vain = each.has_gained ? 0 : each.in_vain + 1;
        // Smaller microbatches of padded rows have fewer pads; of others, more can be under way where memory is short.
        const bool may_gain = (options_.layout == Layout::padded || each.waits) && each.in_vain < 2;
        each.is_done = each.is_done || (!each.has_misfit && microbatches >= tried_.wanted && !may_gain);
      }
      const int64_t next = std::max(least, budget / 2 / 64 * 64);
      if (is_fixed || std::ranges::all_of(orders_, &OrderSearch::is_done) || next >= budget) return;
      budget = next;
    }
  }

  /// How many microbatches the last choice has.
  int64_t try_budget(int64_t budget) {
    for (OrderSearch& each : orders_) each.has_misfit = each.has_gained = each.waits = false;
    int64_t microbatches = 0;
    for (size_t c = 0; c < tried_.choices.size(); ++c) {
      const PricedRows priced = price(budget, tried_.choices[c]);
      microbatches = priced.microbatches;
      if (tried_.is_few && (microbatches < 2 || microbatches >= tried_.wanted)) continue;
      const double least_s = least_seconds(priced, options_.rounds);
      // Each order goes on by itself, so that what one finds does not depend on which others are asked for.
      for (size_t o = 0; o < orders_.size(); ++o) {
        if (!orders_[o].is_done && least_s < orders_[o].seconds_to_beat()) try_order(o, budget, c, priced);
      }
    }
    return microbatches;
  }

  void try_order(size_t o, int64_t budget, size_t choice, const PricedRows& priced) {
    OrderSearch& search = orders_[o];
    const bool is_only = tried_.budget > 0 && tried_.choices.size() == 1;
    const bool is_final = tried_.estimated || is_only || !takes_default_order(replica_, tried_.orders[o]) || !has_several_tasks(priced);
    PredictionLimits limits{.below_s = (is_final ? 1 : near_fastest) * search.seconds_to_beat()};
    if (!is_final) limits.most_exchanges = 0;
    const std::optional<ReplicaPrediction> prediction = tried_.estimated
                                                            ? estimate_replica(replica_, priced, *tried_.estimated, options_.rounds)
                                                            : predict_within(replica_, priced, tried_.orders[o], options_.rounds, limits);
    const bool keeps_within = tried_.orders[o] == PipelineOrder::automatic && tried_.estimated != EstimatedOrder::continuous_one_f_one_b;
    if (keeps_within && !holds_a_full_pipeline(replica_, priced)) {
      const double idle = prediction ? prediction->bubble : 1 - mean_seconds(replica_, priced) / search.seconds_to_beat();
      search.waits = search.waits || idle > small_bubble;
    }
    if (!prediction) return;
    search.has_misfit = search.has_misfit || !prediction->fits();
    search.has_gained = search.consider(empty_, budget, tried_.choices[choice].least_microbatches, priced, *prediction) || search.has_gained;
    if (prediction->fits()) search.remember({prediction->seconds, budget, choice, is_final});
  }

  /// Predicts anew, as a run orders them, those that exchanges may make the best, and others as long as none of them fits any more.
  void exchange(size_t o) {
    OrderSearch& search = orders_[o];
    const auto [candidates, count] = search.to_exchange();
    for (size_t i = 0; i < candidates.size() && (i < count || !search.fits()); ++i) {
      const Candidate& each = candidates[i];
      const TaskChoice& choice = tried_.choices[each.choice];
      const PricedRows priced = price(each.budget, choice);
      const std::optional<ReplicaPrediction> prediction =
          predict_within(replica_, priced, tried_.orders[o], options_.rounds, {.below_s = search.seconds_to_beat()});
      if (prediction) search.consider(empty_, each.budget, choice.least_microbatches, priced, *prediction);
    }
  }

  PricedRows price(int64_t budget, const TaskChoice& choice) {
    if (options_.stop != nullptr && *options_.stop) throw PlanningStopped();
    return price_rows(replica_, empty_.rows,
                      {tried_.sharing, options_.layout, options_.chunk_size, budget, choice.tasks, choice.buckets, choice.least_microbatches},
                      &prices_);
  }

  const ReplicaModel& replica_;
  const PlannedReplica& empty_;
  const BudgetSearch& tried_;
  const PlanOptions& options_;
  StagePrices& prices_;
  int64_t tokens_ = 0;
  std::vector<OrderSearch> orders_;
};

}  // namespace

int64_t least_budget(const PlanOptions& options) {
  return std::max(atom_tokens, options.layout == Layout::chunked ? options.chunk_size : 0);
}

std::vector<std::optional<ReplicaChoice>> search_budgets(const ReplicaModel& replica, const PlannedReplica& empty, const BudgetSearch& tried,
                                                         const PlanOptions& options, StagePrices& prices) {
  return Searcher(replica, empty, tried, options, prices).run();
}

}  // namespace cotune
