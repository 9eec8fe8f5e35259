#include "engine/rank_follower.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "adapter/adapter_shard.h"
#include "base/error.h"
#include "engine/adapter_state.h"
#include "engine/rank_results_json.h"
#include "engine/shared_adapter_json.h"
#include "ops/memory.h"

namespace cotune {

RankFollower::RankFollower(std::shared_ptr<Backbone> backbone, std::vector<PipelineLayout> layouts, RankLinks links)
    : rank_(backbone, std::move(layouts), std::move(links)), backbone_(std::move(backbone)) {}

WorkEnd RankFollower::serve() try {
  while (true) {
    const Json command = receive_broadcast(rank_.control());
    const RankCommand kind = command_of(command);
    if (kind != RankCommand::end) {
      take(kind, command);
      continue;
    }
    rank_.end();
    return {command.at("well").get<bool>(), command.at("exit_code").get<int>()};
  }
} catch (const CommunicationEnded&) {
  rank_.at_loss();
  throw;
}

void RankFollower::take(RankCommand kind, const Json& command) {
  const RankTask task(rank_.progress(), task_text(command));
  const Json answer = answer_to(kind, command);
  send_message(rank_.control(), answer, 0);
  if (answer.contains("error")) return;
  if (kind == RankCommand::share) take_state(adapter(command));
  if (kind == RankCommand::exchange) {
    rank_.set_exchange(command.at("job").get<int32_t>(), exchange_from_json(receive_message(rank_.control(), 0)));
  }
  if (kind == RankCommand::gather && answer.contains("parts")) {
    const at::Tensor state = flat_state(adapter(command), rank_.layers());
    if (state.numel() > 0) rank_.control().send(state, 0, Channel::activation)->wait();
  }
}

void RankFollower::take_state(Adapter& adapter) {
  const at::Tensor state = flat_state_like(adapter, rank_.layers());
  if (state.numel() > 0) rank_.control().receive(state, 0, Channel::activation)->wait();
  Json answer = Json::object();
  try {
    assign_flat_state(adapter, rank_.layers(), {}, state);
  } catch (...) {
    answer["error"] = error_to_json(std::current_exception());
  }
  send_message(rank_.control(), answer, 0);
}

RankFollower::Json RankFollower::answer_to(RankCommand kind, const Json& command) {
  Json answer = Json::object();
  try {
    switch (kind) {
      case RankCommand::run:
        return run(command);
      case RankCommand::complete:
        return complete(command);
      case RankCommand::join:
        rank_.join();
        break;
      case RankCommand::share:
        return share(command);
      case RankCommand::forget:
        adapters_.erase(command.at("job").get<int32_t>());
        rank_.forget_exchange(command.at("job").get<int32_t>());
        break;
      case RankCommand::gather:
        if (rank_.replica() > 0) break;  // the first replica has the same values
        return parts_answer(adapter(command));
      case RankCommand::exchange:
        return parts_answer(adapter(command));
      case RankCommand::divide:
        return divide(command);
      case RankCommand::end_selection:
        return end_selection(command);
      case RankCommand::end:
        break;
    }
  } catch (...) {
    answer["error"] = error_to_json(std::current_exception());
  }
  return answer;
}

RankFollower::Json RankFollower::parts_answer(const Adapter& adapter) const {
  return {{"parts", parts_to_json(parts_of(adapter, rank_.layers()))}};
}

void RankFollower::take_work(const Json& command) {
  const ReplicaPlans plans = plans_from_json(command.at("plans"), rank_.replica());
  received_ = rounds_from_json(command.at("rounds"));
  int64_t longest = 0;
  for (size_t i = 0; i < received_.rounds.size(); ++i) {
    JobRound& round = received_.rounds[i];
    if (received_.has_adapter[i]) round.adapter = adapters_.at(round.job).get();
    for (const BatchRow& row : round.batch->rows)
      longest = std::max(longest, static_cast<int64_t>(row.tokens.size()));
  }
  rank_.take_work(plans, received_.rounds, work_);
  work_.action_s = action_seconds_from_json(command.at("action_s"), rank_.replica(), static_cast<size_t>(rank_.pipeline_rank()));
  if (before_work) before_work();
  backbone_->allow_rows(longest);  // jobs that joined later may have longer rows than the first ones
  rank_.begin_selections(work_.rounds);
}

RankFollower::Json RankFollower::run(const Json& command) {
  work_ = {};
  const std::exception_ptr error = rank_.run(work_, [&] { take_work(command); });
  Json answer{{"made", made_to_json(rank_.made_steps())}, {"time", time_to_json(rank_.time())}};
  if (rank_.has_begun()) answer["results"] = results_to_json(work_.rounds);
  if (error != nullptr) answer["error"] = error_to_json(error);
  return answer;
}

RankFollower::Json RankFollower::complete(const Json& command) {
  rank_.complete_steps(made_from_json(command.at("made"), backbone_->device()), work_.rounds);
  return {{"results", results_to_json(work_.rounds)}};
}

RankFollower::Json RankFollower::share(const Json& command) {
  const auto job = command.at("job").get<int32_t>();
  adapters_.erase(job);
  if (before_work) before_work();
  AdapterSetup setup = setup_from_json(command.at("setup"));
  setup.compute = backbone_->compute();
  setup.device = backbone_->device();
  setup.shard = rank_.shard();
  setup.held = rank_.layers();
  std::unique_ptr<Adapter> adapter = make_adapter(backbone_->config(), std::move(setup));
  std::vector<Adapter::NamedTensor> structure = structure_from_json(command.at("structure"));
  std::erase_if(structure,
                [&](const Adapter::NamedTensor& item) { return !adapter->setup().holds(item.layer); });
  adapter->restore_structure(structure, command.at("complete").get<bool>());
  Json answer = parts_answer(*adapter);
  adapters_[job] = std::move(adapter);
  return answer;
}

RankFollower::Json RankFollower::divide(const Json& command) {
  adapters_.clear();
  received_ = {};
  work_ = {};
  rank_.divide(layouts_from_json(command.at("layouts")), [this](const BackboneUse& use) {
    if (before_work) before_work();
    change_weights(use);
  });
  release_unused_memory();
  return {{"weight_bytes", backbone_->weight_bytes()}, {"weight_forms", backbone_->weight_forms()}};
}

RankFollower::Json RankFollower::end_selection(const Json& command) {
  const std::vector<Adapter::NamedTensor> chosen =
      rank_.end_selection(adapter(command), command.at("pass").get<int64_t>(), before_work);
  const bool says = rank_.replica() == 0 && rank_.shard().index == 0;  // the others have chosen the same
  return {{"structure", says ? structure_to_json(chosen) : Json::array()}};
}

}  // namespace cotune
