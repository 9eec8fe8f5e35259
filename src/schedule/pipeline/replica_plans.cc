#include "schedule/pipeline/replica_plans.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <tuple>

#include "base/error.h"
#include "schedule/pipeline/rank_place.h"

namespace cotune {
namespace {

bool is_message(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_error || kind == ActionKind::receive_activation ||
         kind == ActionKind::receive_error;
}

bool belongs_to_microbatch(const Action& action) { return action.microbatch >= 0; }

/// Job steps of every microbatch of a plan, counted over all rounds.
std::vector<std::set<JobStep>> steps_of_microbatches(const RankPlan& plan) {
  std::vector<std::set<JobStep>> steps;
  for (const StepPlan& round : plan.rounds) {
    std::map<int32_t, int64_t> step_of;
    for (const BatchShape& batch : round.batches) step_of[batch.job] = batch.step;
    for (const Microbatch& microbatch : round.microbatches) {
      std::set<JobStep>& own = steps.emplace_back();
      for (const Atom& atom : microbatch.atoms) own.insert({atom.job, step_of.at(atom.job)});
    }
  }
  return steps;
}

/// Of every clock; without clocks, of every microbatch.
std::vector<std::set<JobStep>> steps_of_clocks(const RankPlan& plan, const std::vector<std::set<JobStep>>& microbatches) {
  if (plan.clocks.empty()) return microbatches;
  std::vector<std::set<JobStep>> steps;
  for (const PipelineClock& clock : plan.clocks) {
    std::set<JobStep>& own = steps.emplace_back();
    for (const int32_t m : clock.microbatches) own.insert(microbatches[static_cast<size_t>(m)].begin(), microbatches[static_cast<size_t>(m)].end());
  }
  return steps;
}

/// What an action computes or moves: the steps of its microbatch, or of its clock.
struct ActionSteps {
  const std::vector<std::set<JobStep>>& microbatches;  ///< as Action::microbatch counts
  const std::vector<std::set<JobStep>>& clocks;        ///< as Action::clock counts

  const std::set<JobStep>& of(const Action& action) const {
    return action.clock < 0 ? microbatches[static_cast<size_t>(action.microbatch)] : clocks[static_cast<size_t>(action.clock)];
  }
};

/// The steps of a window, with the round of each.
struct Window {
  std::map<JobStep, size_t> round;
  std::map<JobStep, int64_t> lowest_layer;
  std::map<JobStep, JobStep> next;  ///< of the same job

  explicit Window(std::span<const std::vector<ExchangedStep>> rounds) {
    std::map<int32_t, JobStep> last;
    for (size_t index = 0; index < rounds.size(); ++index) {
      for (const ExchangedStep& each : rounds[index]) {
        round[each.step] = index;
        lowest_layer[each.step] = each.lowest_layer;
        const auto before = last.find(each.step.job);
        if (before != last.end()) next[before->second] = each.step;
        last[each.step.job] = each.step;
      }
    }
  }
};

/// Writes one rank's list anew.
class ListWriter {
 public:
  ListWriter(const Window& window, const PipelineLayout& layout, const ActionSteps& steps, const std::vector<Action>& actions, int32_t rank)
      : window_(window), layout_(layout), steps_(steps) {
    for (size_t stage = 0; stage < layout.stages.size(); ++stage) {
      if (layout.stage_rank[stage] == rank) stages_.push_back(static_cast<int32_t>(stage));
    }
    for (const Action& action : actions) {
      if (action.kind == ActionKind::optimizer_step || (is_message(action.kind) && !belongs_to_microbatch(action))) continue;
      kept_.push_back(action);
    }
  }

  std::vector<Action> run() {
    place_reductions();
    for (size_t i = 0; i < kept_.size(); ++i) {
      for (const JobStep& step : before_[i]) reduce(step);
      if (kept_[i].kind == ActionKind::forward) steps_before(kept_[i]);
      list_.push_back(kept_[i]);
      for (const JobStep& step : after_[i]) reduce(step);
    }
    for (const JobStep& step : at_end_) reduce(step);
    while (!open_.empty()) this->step(open_.front());
    return std::move(list_);
  }

 private:
  int32_t lowest_stage(const JobStep& step) const { return layout_.stage_of(window_.lowest_layer.at(step)); }
  bool has_part_of(const JobStep& step) const { return stages_.back() >= lowest_stage(step); }
  const std::set<JobStep>& steps_at(const Action& action) const { return steps_.of(action); }

  void place_reductions() {
    before_.resize(kept_.size());
    after_.resize(kept_.size());
    std::map<JobStep, size_t> last_free;
    std::vector<size_t> round(kept_.size());  // of each action
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (!belongs_to_microbatch(kept_[i])) continue;
      round[i] = window_.round.at(*steps_at(kept_[i]).begin());
      if (kept_[i].kind != ActionKind::free) continue;
      for (const JobStep& step : steps_at(kept_[i])) {
        if (kept_[i].stage >= lowest_stage(step)) last_free[step] = i;
      }
    }
    std::vector<std::pair<size_t, JobStep>> ordered;  // by round
    for (const auto& [step, index] : window_.round) ordered.push_back({index, step});
    std::sort(ordered.begin(), ordered.end());
    for (const std::pair<size_t, JobStep>& each : ordered) {
      const size_t index = each.first;
      const JobStep& step = each.second;
      if (!has_part_of(step)) continue;
      const auto found = last_free.find(step);
      if (found != last_free.end()) {
        after_[found->second].push_back(step);
        continue;
      }
      const auto later = std::find_if(round.begin(), round.end(), [&](size_t own) { return own > index; });
      (later == round.end() ? at_end_ : before_[static_cast<size_t>(later - round.begin())]).push_back(step);
    }
  }

  void reduce(const JobStep& step) {
    for (const JobStep& before : std::vector<JobStep>(open_)) {
      if (before.job == step.job) this->step(before);
    }
    list_.push_back({.kind = ActionKind::reduce_gradients, .job = step.job, .job_step = step.step, .stage = stages_.back()});
    open_.push_back(step);
  }

  void steps_before(const Action& forward) {
    for (const JobStep& before : std::vector<JobStep>(open_)) {
      if (forward.stage < lowest_stage(before)) continue;
      const auto next = window_.next.find(before);
      if (next != window_.next.end() && steps_at(forward).contains(next->second)) step(before);
    }
  }

  void step(JobStep step) {
    std::erase(open_, step);
    for (const int32_t stage : stages_) {
      if (stage < lowest_stage(step)) continue;
      list_.push_back({.kind = ActionKind::optimizer_step, .job = step.job, .job_step = step.step, .stage = stage});
    }
  }

  const Window& window_;
  const PipelineLayout& layout_;
  const ActionSteps& steps_;
  std::vector<int32_t> stages_;
  std::vector<Action> kept_, list_;
  std::vector<std::vector<JobStep>> before_, after_;  ///< gradients posted there
  std::vector<JobStep> at_end_;
  std::vector<JobStep> open_;  ///< posted, not stepped, in the order of posts
};

std::vector<int32_t> microbatches_of(const RankPlan& plan, const Action& action) {
  if (action.clock < 0) return {action.microbatch};
  return plan.clocks[static_cast<size_t>(action.clock)].microbatches;
}

/// What waits for what, over the actions of all ranks of all replicas and the exchanges.
class WaitGraph {
 public:
  explicit WaitGraph(const Window& window) {
    for (const auto& [step, round] : window.round) {
      exchange_of_[step] = static_cast<int32_t>(steps_.size());
      steps_.push_back(step);
      ranked_.push_back({round, step});
    }
    successors_.resize(steps_.size());
    predecessors_.resize(steps_.size());
  }

  void add(const RankPlan& plan) {
    using Message = std::tuple<ActionKind, int32_t, int32_t>;  // kind of the send, microbatch, stage
    std::map<Message, int32_t> after_send, uses, receives;
    std::map<Message, int32_t> sends;
    for (const std::vector<Action>& rank : plan.ranks) {
      int32_t previous = -1;
      std::vector<Message> open;  // sends whose rank goes on with the next action
      for (const Action& action : rank) {
        const int32_t node = add_node();
        if (previous >= 0) edge(previous, node);
        previous = node;
        for (const Message& message : open) after_send[message] = node;
        open.clear();
        const auto own = [&](ActionKind kind) { return Message{kind, action.microbatch, action.stage}; };
        switch (action.kind) {
          case ActionKind::send_activation:
          case ActionKind::send_error:
            sends[own(action.kind)] = node;
            open.push_back(own(action.kind));
            break;
          case ActionKind::receive_activation: receives[own(ActionKind::send_activation)] = node; break;
          case ActionKind::receive_error: receives[own(ActionKind::send_error)] = node; break;
          case ActionKind::forward:
          case ActionKind::backward: {
            const ActionKind brings = action.kind == ActionKind::forward ? ActionKind::send_activation : ActionKind::send_error;
            for (const int32_t microbatch : microbatches_of(plan, action)) uses.try_emplace({brings, microbatch, action.stage}, node);
            break;
          }
          case ActionKind::reduce_gradients: edge(node, exchange_of_.at({action.job, action.job_step})); break;
          case ActionKind::optimizer_step: edge(exchange_of_.at({action.job, action.job_step}), node); break;
          default: break;
        }
      }
    }
    for (const auto& [message, send] : sends) {
      edge(send, uses.at(message));
      const auto next = after_send.find(message);
      if (next != after_send.end()) edge(receives.at(message), next->second);
    }
  }

  /// The exchanges in an order that respects all waits, the earlier rounds first where there is a choice; nothing where they hold
  /// a cycle.
  std::optional<std::vector<JobStep>> exchanges() const {
    std::vector<int32_t> waits = predecessors_;
    std::vector<int32_t> ready;
    using Ranked = std::pair<std::pair<size_t, JobStep>, int32_t>;
    std::priority_queue<Ranked, std::vector<Ranked>, std::greater<>> ready_exchanges;
    const auto make_ready = [&](int32_t node) {
      if (node < static_cast<int32_t>(steps_.size())) {
        ready_exchanges.push({ranked_[static_cast<size_t>(node)], node});
      } else {
        ready.push_back(node);
      }
    };
    for (size_t node = 0; node < waits.size(); ++node) {
      if (waits[node] == 0) make_ready(static_cast<int32_t>(node));
    }
    std::vector<JobStep> order;
    size_t done = 0;
    while (!ready.empty() || !ready_exchanges.empty()) {
      int32_t node = 0;
      if (!ready.empty()) {
        node = ready.back();
        ready.pop_back();
      } else {
        node = ready_exchanges.top().second;
        ready_exchanges.pop();
        order.push_back(steps_[static_cast<size_t>(node)]);
      }
      ++done;
      for (const int32_t next : successors_[static_cast<size_t>(node)]) {
        if (--waits[static_cast<size_t>(next)] == 0) make_ready(next);
      }
    }
    if (done != waits.size()) return std::nullopt;
    return order;
  }

 private:
  int32_t add_node() {
    successors_.emplace_back();
    predecessors_.push_back(0);
    return static_cast<int32_t>(successors_.size()) - 1;
  }
  void edge(int32_t from, int32_t to) {
    successors_[static_cast<size_t>(from)].push_back(to);
    ++predecessors_[static_cast<size_t>(to)];
  }

  std::map<JobStep, int32_t> exchange_of_;
  std::vector<JobStep> steps_;
  std::vector<std::pair<size_t, JobStep>> ranked_;
  std::vector<std::vector<int32_t>> successors_;
  std::vector<int32_t> predecessors_;
};

}  // namespace

double ReplicaPlans::predicted_s() const {
  double slowest = 0;
  for (const RankPlan& plan : replicas) slowest = std::max(slowest, plan.predicted.makespan_s);
  return slowest;
}

std::optional<ReplicaPlans> with_exchanges(ReplicaPlans plans, std::span<const PipelineLayout> layouts,
                                           std::span<const std::vector<ExchangedStep>> rounds) {
  COTUNE_CHECK(plans.replicas.size() == layouts.size(), "plans of {} replicas for {}", plans.replicas.size(), layouts.size());
  const Window window(rounds);
  WaitGraph graph(window);
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    RankPlan& plan = plans.replicas[replica];
    const std::vector<std::set<JobStep>> microbatches = steps_of_microbatches(plan), clocks = steps_of_clocks(plan, microbatches);
    const ActionSteps scheduled{clocks, clocks}, executed{microbatches, clocks};
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      const auto with_reductions = [&](std::vector<Action>& list, const ActionSteps& steps) {
        list = ListWriter(window, layouts[replica], steps, list, static_cast<int32_t>(rank)).run();
      };
      with_reductions(plan.schedule.ranks[rank], scheduled);
      with_reductions(plan.ranks[rank], executed);
    }
    graph.add(plan);
  }
  std::optional<std::vector<JobStep>> order = graph.exchanges();
  if (!order) return std::nullopt;
  plans.exchanges = std::move(*order);
  return plans;
}

void predict_exchanges(ReplicaPlans& plans, std::span<const PipelineLayout> layouts, std::span<const ReplicaSeconds> seconds,
                       const PipelineCluster& cluster, const ExchangeCosts& costs) {
  std::vector<ExchangingReplica> replicas;
  for (size_t replica = 0; replica < layouts.size(); ++replica) {
    replicas.push_back({.work = &plans.replicas[replica].work,
                        .schedule = &plans.replicas[replica].schedule,
                        .cluster = cluster,
                        .optimizer_s = seconds[replica].optimizer_s,
                        .reduce_s = seconds[replica].reduce_s,
                        .first_rank = first_rank_of(layouts, replica),
                        .tensor_parallel = layouts[replica].tensor_parallel()});
  }
  std::vector<PipelineSimulation> predicted = simulate(replicas, costs, plans.exchanges);
  for (size_t replica = 0; replica < layouts.size(); ++replica) plans.replicas[replica].predicted = std::move(predicted[replica]);
}

}  // namespace cotune
