#include "engine/process_rank.h"

#include <chrono>

#include "base/error.h"

namespace cotune {
namespace {

double clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

BackboneUse backbone_use_of(const PipelineLayout& layout, int32_t rank, int64_t positions) {
  BackboneUse use{.positions = positions, .shard = layout.shard_of(rank)};
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    if (layout.stage_rank[i] == layout.place_of(rank)) use.stages.push_back(layout.stages[i]);
  }
  return use;
}

ProcessRank::ProcessRank(const std::shared_ptr<const Backbone>& backbone, PipelineLayout layout,
                         RankLinks links)
    : layout_(std::move(layout)),
      links_(std::move(links)),
      shard_(layout_.shard_of(rank())),
      layers_(layers_of(layout_, rank())),
      interpreter_(backbone, layout_, layout_.place_of(rank())) {
  COTUNE_CHECK(links_.control->size() == layout_.worker_count(), "a group of {} ranks for a layout of {}",
               links_.control->size(), layout_.worker_count());
  COTUNE_CHECK(backbone->shard() == shard_, "rank {} has another part of the layers than its weights",
               rank());
  interpreter_.progress = links_.progress;
  interpreter_.observe([this](const Operator& op, const MicrobatchState&, double seconds) {
    time_.operator_seconds[to_string(op.kind)] += seconds;
    if (after_operator) after_operator(op);
  });
  join();
}

std::exception_ptr ProcessRank::run(const RankPlan& plan, std::vector<JobRound>& rounds,
                                    double longest_action_s, const std::function<void()>& prepare) {
  time_ = {};
  has_begun_ = false;
  std::exception_ptr error;
  if (links_.progress != nullptr) links_.progress->begin_run(longest_action_s);
  const double begin_s = clock_s();
  std::optional<TensorGroup> group;
  if (links_.group != nullptr) group.emplace(*links_.group, links_.progress.get());
  try {
    prepare();
    has_begun_ = true;
    interpreter_.run(plan, rounds, *links_.messages, group ? &*group : nullptr);
  } catch (...) {
    error = std::current_exception();
    links_.abort();
    interpreter_.read_results();
  }
  if (links_.progress != nullptr) links_.progress->end_run();
  time_.seconds = clock_s() - begin_s;
  if (!has_begun_) return error;
  time_.waited = interpreter_.waited_s();
  time_.collectives = group ? group->collectives() : 0;
  time_.spans = interpreter_.spans();
  for (SimulatedSpan& span : time_.spans) {
    span.start_s -= begin_s;
    span.end_s -= begin_s;
  }
  return error;
}

MadeSteps ProcessRank::made_steps() const {
  return has_begun_ ? cotune::made_steps(interpreter_) : MadeSteps{};
}

/// Where this rank has not even begun, no step was made anywhere of a job that has layers here.
void ProcessRank::complete_steps(const MadeSteps& made, std::span<JobRound> rounds) {
  if (has_begun_) cotune::complete_steps(interpreter_, made, rounds);
  clear_gradients(rounds);
}

void ProcessRank::begin_selections(std::span<const JobRound> rounds) const {
  for (const JobRound& round : rounds) {
    if (round.purpose == RoundPurpose::select && round.batch->step == 0)
      round.adapter->begin_selection(round.selection_pass);
  }
}

std::vector<Adapter::NamedTensor> ProcessRank::end_selection(Adapter& adapter, int64_t pass,
                                                             const std::function<void()>& prepare) {
  try {
    if (prepare) prepare();
    return adapter.end_selection(pass, [&](at::Tensor& values) { links_.group->all_reduce(values); });
  } catch (...) {
    links_.abort();
    throw;
  }
}

}  // namespace cotune
