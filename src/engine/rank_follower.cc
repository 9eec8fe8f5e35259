#include "engine/rank_follower.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace cotune {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

RankFollower::RankFollower(std::shared_ptr<Backbone> backbone, PipelineLayout layout, RankLinks links)
    : layout_(std::move(layout)),
      links_(std::move(links)),
      backbone_(std::move(backbone)),
      rank_(links_.control->rank()),
      layers_(layers_of(layout_, rank_)),
      interpreter_(backbone_, layout_, rank_) {
  interpreter_.progress = links_.progress;
  interpreter_.observe([this](const Operator& op, const MicrobatchState&, double seconds) {
    operator_seconds_[to_string(op.kind)] += seconds;
  });
}

bool RankFollower::serve() {
  while (true) {
    const Json command = receive_broadcast(*links_.control);
    const RankCommand kind = command_of(command);
    if (kind != RankCommand::end) {
      take(kind, command);
      continue;
    }
    links_.end();
    return command.at("well").get<bool>();
  }
}

void RankFollower::take(RankCommand kind, const Json& command) {
  const Json answer = answer_to(kind, command);
  send_message(*links_.control, answer, 0);
  if (kind == RankCommand::complete) {
    links_.messages.reset();  // ended, it is of no more use
    links_.messages = links_.new_group();
  }
  if (answer.contains("error")) return;
  if (kind == RankCommand::share) take_state(adapter(command));
  if (kind == RankCommand::gather) {
    const at::Tensor state = flat_state(adapter(command), layers_);
    if (state.numel() > 0) links_.control->send(state, 0, Channel::activation)->wait();
  }
}

void RankFollower::take_state(Adapter& adapter) {
  const at::Tensor state = flat_state_like(adapter, layers_);
  if (state.numel() > 0) links_.control->receive(state, 0, Channel::activation)->wait();
  Json answer = Json::object();
  try {
    assign_flat_state(adapter, layers_, state);
  } catch (...) {
    answer["error"] = error_to_json(std::current_exception());
  }
  send_message(*links_.control, answer, 0);
}

RankFollower::Json RankFollower::answer_to(RankCommand kind, const Json& command) {
  Json answer = Json::object();
  try {
    switch (kind) {
      case RankCommand::run: return run(command);
      case RankCommand::complete: return complete(command);
      case RankCommand::share: share(command); break;
      case RankCommand::forget: adapters_.erase(command.at("job").get<int32_t>()); break;
      case RankCommand::gather: adapter(command); break;
      case RankCommand::end_selection: return end_selection(command);
      case RankCommand::end: break;
    }
  } catch (...) {
    answer["error"] = error_to_json(std::current_exception());
  }
  return answer;
}

/// Jobs that joined later may have longer rows than the first ones.
void RankFollower::allow_rows() {
  int64_t longest = 0;
  for (const Batch& batch : received_.batches) {
    for (const BatchRow& row : batch.rows) longest = std::max(longest, static_cast<int64_t>(row.tokens.size()));
  }
  backbone_->allow_rows(longest);
}

void RankFollower::begin_selections() {
  for (const JobRound& round : received_.rounds) {
    const bool begins = round.purpose == RoundPurpose::select && round.batch->step == 0;
    if (begins) round.adapter->begin_selection(round.selection_pass);
  }
}

RankFollower::Json RankFollower::run(const Json& command) {
  operator_seconds_.clear();
  if (links_.progress != nullptr) links_.progress->begin_run(command.at("longest_action_s").get<double>());
  const auto begin = Clock::now();
  Json answer;
  bool has_begun = false;
  try {
    const RankPlan plan = plan_from_json(command.at("plan"));
    received_ = rounds_from_json(command.at("rounds"));
    for (size_t i = 0; i < received_.rounds.size(); ++i) {
      if (received_.has_adapter[i]) received_.rounds[i].adapter = adapters_.at(received_.rounds[i].job).get();
    }
    if (before_work) before_work();
    allow_rows();
    begin_selections();
    has_begun = true;
    interpreter_.run(plan, received_.rounds, *links_.messages);
  } catch (...) {
    answer["error"] = error_to_json(std::current_exception());
    links_.messages->abort();
    interpreter_.read_results();
  }
  if (links_.progress != nullptr) links_.progress->end_run();
  if (!has_begun) return answer;
  answer["made"] = made_to_json(made_steps(interpreter_));
  answer["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
  answer["waited"] = interpreter_.waited_s();
  answer["operator_seconds"] = operator_seconds_;
  answer["spans"] = Json::array();
  const double begin_s = std::chrono::duration<double>(begin.time_since_epoch()).count();
  for (const SimulatedSpan& span : interpreter_.spans()) {
    answer["spans"].push_back({span.action, span.start_s - begin_s, span.end_s - begin_s});
  }
  answer["results"] = results_to_json(received_.rounds);
  return answer;
}

RankFollower::Json RankFollower::complete(const Json& command) {
  complete_steps(interpreter_, made_from_json(command.at("made"), backbone_->device()), received_.rounds);
  clear_gradients(received_.rounds);
  return {{"results", results_to_json(received_.rounds)}};
}

void RankFollower::share(const Json& command) {
  const auto job = command.at("job").get<int32_t>();
  adapters_.erase(job);
  if (before_work) before_work();
  AdapterSetup setup = setup_from_json(command.at("setup"));
  setup.compute = backbone_->compute();
  setup.device = backbone_->device();
  setup.held = layers_;
  std::unique_ptr<Adapter> adapter = make_adapter(backbone_->config(), std::move(setup));
  std::vector<Adapter::NamedTensor> structure = structure_from_json(command.at("structure"));
  std::erase_if(structure, [&](const Adapter::NamedTensor& item) {
    return std::none_of(layers_.begin(), layers_.end(), [&](const LayerRange& range) { return range.contains(item.layer); });
  });
  if (!command.at("structure").empty()) adapter->restore_structure(structure, command.at("complete").get<bool>());
  adapters_[job] = std::move(adapter);
}

RankFollower::Json RankFollower::end_selection(const Json& command) {
  adapter(command).end_selection(command.at("pass").get<int64_t>());
  return {{"structure", structure_to_json(adapter(command).structure())}};
}

}  // namespace cotune
