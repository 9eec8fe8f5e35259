#include "schedule/pipeline/default_order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "schedule/pipeline/least_makespan.h"
#include "schedule/pipeline/lorapp.h"
#include "schedule/pipeline/one_f_one_b.h"
#include "schedule/pipeline/structured_template.h"

namespace cotune {
namespace {

constexpr int64_t computations_to_spend = 200'000;  // on exchanges
constexpr double as_short = 1.001;                  // of makespans that differ by less, memory decides

class Chooser {
 public:
  Chooser(const PipelineWork& work, const PipelineCluster& cluster, const std::vector<int64_t>& limit,
          int64_t most_exchanges)
      : work_(work),
        limit_(limit),
        most_exchanges_(most_exchanges),
        graph_(work, cluster),
        units_(units_of(work)) {}

  ChosenOrder run() {
    consider("lorapp", lorapp(work_, graph_, true, limit_));
    if (work_.stage_count() == 1 && !kept_.empty()) return chosen();  // which no order is shorter than
    consider("lorapp, forward first", lorapp(work_, graph_, false, limit_));
    try_list("template", {.launch_order = descending_launch_order(work_), .strict = true});
    try_list("tasks in turn", {.strict = true});
    if (work_.stage_rank == one_stage_per_rank(work_.rank_count)) {
      consider("1F1B, continuous", one_f_one_b(work_, BatchBoundary::continuous));
    }
    exchange_tasks();
    return chosen();
  }

 private:
  /// An order that is about as short as the shortest.
  struct Kept {
    size_t tried = 0;  ///< index of tried_
    double makespan_s = 0;
    int64_t peak = 0;  ///< of kept bytes, on any rank
    ComputeOrder order;
  };

  const Kept& best() const {
    return *std::ranges::min_element(kept_,
                                     [](const Kept& a, const Kept& b) { return std::pair(a.peak, a.makespan_s) < std::pair(b.peak, b.makespan_s); });
  }

  ChosenOrder chosen() {
    if (kept_.empty()) return {.tried = std::move(tried_)};
    Kept taken = best();
    return {.order = std::move(taken.order), .name = tried_[taken.tried].name, .makespan_s = taken.makespan_s, .tried = std::move(tried_)};
  }

  void try_list(const std::string& name, ListPolicy policy) {
    policy.kept_bytes_limit = limit_;
    consider(name, list_schedule(work_, graph_, policy));
  }

  bool consider(const std::string& name, ComputeOrder order) {
    const auto times = graph_.times(order);
    COTUNE_CHECK(times.has_value(), "the order '{}' holds a cycle of waits", name);
    TriedOrder tried{
        .name = name, .makespan_s = makespan_s(*times), .peak_kept_bytes = peak_kept_bytes(work_, order)};
    for (size_t rank = 0; rank < limit_.size(); ++rank) {
      tried.fits = tried.fits && tried.peak_kept_bytes[rank] <= limit_[rank];
    }
    const bool is_better = tried.fits && keep(tried, std::move(order));
    tried_.push_back(std::move(tried));
    return is_better;
  }

  /// Whether it is the one to take of all that were tried up to it, and better than the one before by more than rounding.
  bool keep(const TriedOrder& tried, ComputeOrder order) {
    const bool is_first = kept_.empty();
    const double before_s = is_first ? 0 : best().makespan_s;
    const int64_t peak_before = is_first ? 0 : best().peak;
    shortest_s_ = is_first ? tried.makespan_s : std::min(shortest_s_, tried.makespan_s);
    kept_.push_back({tried_.size(), tried.makespan_s, highest(tried), std::move(order)});
    std::erase_if(kept_, [&](const Kept& each) { return each.makespan_s > as_short * shortest_s_; });
    const Kept& now = best();
    return now.tried == tried_.size() && (is_first || as_short * now.makespan_s < before_s || now.peak < peak_before);
  }

  static int64_t highest(const TriedOrder& tried) {
    return tried.peak_kept_bytes.empty()
               ? 0
               : *std::max_element(tried.peak_kept_bytes.begin(), tried.peak_kept_bytes.end());
  }

  /// Units by round, then by their hybrid task's place in `tasks`, then as they stand.
  std::vector<int32_t> launch_order(const std::vector<int32_t>& tasks) const {
    std::map<int32_t, size_t> place;
    for (size_t i = 0; i < tasks.size(); ++i) place[tasks[i]] = i;
    std::vector<int32_t> launch(units_.size());
    std::iota(launch.begin(), launch.end(), 0);
    std::stable_sort(launch.begin(), launch.end(), [&](int32_t a, int32_t b) {
      const auto key = [&](int32_t unit) {
        const PipelineMicrobatch& microbatch =
            work_.microbatches[static_cast<size_t>(units_[static_cast<size_t>(unit)].first)];
        return std::pair(microbatch.round, place.at(microbatch.hybrid_task));
      };
      return key(a) < key(b);
    });
    return launch;
  }

  void exchange_tasks() {
    if (shortest_s_ <= as_short * least_makespan_s(work_)) return;
    std::vector<int32_t> tasks;  // in the template's order, which is a good start
    for (const int32_t unit : descending_launch_order(work_)) {
      const int32_t task =
          work_.microbatches[static_cast<size_t>(units_[static_cast<size_t>(unit)].first)].hybrid_task;
      if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
    }
    int64_t left = std::min(most_exchanges_, computations_to_spend / std::max(1, graph_.size()));
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 0; i + 1 < tasks.size(); ++i) {
        if (left-- <= 0) return;
        std::swap(tasks[i], tasks[i + 1]);
        if (try_tasks(tasks)) {
          moved = true;
        } else {
          std::swap(tasks[i], tasks[i + 1]);
        }
      }
    }
  }

  bool try_tasks(const std::vector<int32_t>& tasks) {
    bool is_better = false;
    for (const bool strict : {true, false}) {
      ListPolicy policy{.launch_order = launch_order(tasks), .strict = strict, .kept_bytes_limit = limit_};
      std::string name = strict ? "tasks in turn:" : "tasks by readiness:";
      for (const int32_t task : tasks) name += fmt::format(" {}", task);
      is_better = consider(name, list_schedule(work_, graph_, policy)) || is_better;
    }
    return is_better;
  }

  const PipelineWork& work_;
  const std::vector<int64_t>& limit_;
  const int64_t most_exchanges_;
  const ComputeGraph graph_;
  const std::vector<PipelineUnit> units_;
  double shortest_s_ = 0;
  std::vector<Kept> kept_;  ///< within a thousandth of it
  std::vector<TriedOrder> tried_;
};

}  // namespace

std::vector<int64_t> peak_kept_bytes(const PipelineWork& work, const ComputeOrder& order) {
  std::vector<int64_t> peaks;
  for (const std::vector<Compute>& rank : order) {
    int64_t kept = 0;
    int64_t peak = 0;
    for (const Compute& compute : rank) {
      const PipelineMicrobatch& microbatch = work.microbatches[static_cast<size_t>(compute.microbatch)];
      if (lowest_stage(work, microbatch) > compute.stage) continue;
      kept += (compute.backward ? -1 : 1) * microbatch.cost[static_cast<size_t>(compute.stage)].kept_bytes;
      peak = std::max(peak, kept);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

ChosenOrder choose_order(const PipelineWork& work, const PipelineCluster& cluster,
                         const std::vector<int64_t>& kept_bytes_limit, int64_t most_exchanges) {
  check(work);
  return Chooser(work, cluster, kept_bytes_limit, most_exchanges).run();
}

}  // namespace cotune
