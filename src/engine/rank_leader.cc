#include "engine/rank_leader.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/adapter_state.h"
#include "engine/rank_results_json.h"
#include "engine/rank_work_json.h"
#include "engine/replica_rounds.h"
#include "engine/shared_adapter_json.h"
#include "ops/within_memory.h"
#include "schedule/pipeline/rank_place.h"
#include "schedule/pipeline/weight_copies.h"

namespace cotune {
namespace {

std::string rank_name(size_t rank) {
  return fmt::format("rank {}", rank);
}

bool failed(const nlohmann::json& answer) {
  return answer.contains("error");
}

}  // namespace

RankLeader::RankLeader(std::shared_ptr<const Backbone> backbone, std::vector<PipelineLayout> layouts, RankLinks links)
    : backbone_(std::move(backbone)), rank_(backbone_, std::move(layouts), std::move(links)) {
  COTUNE_CHECK(rank_.rank() == 0, "rank {} leads", rank_.rank());
  use_shards();
}

void RankLeader::use_shards() {
  shards_.reset();
  if (!rank_.shard().is_whole() || rank_.layouts().size() > 1) shards_.emplace(rank_.shard(), rank_.layers());
}

RankLeader::~RankLeader() {
  if (!is_answered_) {
    rank_.at_loss();
    rank_.control().abort();
    return;
  }
  try {
    const bool well = std::uncaught_exceptions() == 0;
    Json command = to_json(RankCommand::end);
    command["well"] = well;
    command["exit_code"] = exit_code ? exit_code() : well ? 0 : 1;
    tell(command);
    rank_.end();
  } catch (const std::exception&) {
    // A rank is gone: the others see it as this one does.
  }
}

void RankLeader::tell(const Json& command) {
  is_answered_ = false;
  broadcast_message(rank_.control(), command);
}

RankTask RankLeader::take_up(const Json& command) {
  RankTask task(progress(), task_text(command));
  tell(command);
  return task;
}

std::vector<RankLeader::Json> RankLeader::answers_of_all() {
  std::vector<Json> answers(static_cast<size_t>(rank_.control().size()));
  for (int32_t rank = 1; rank < rank_.control().size(); ++rank) {
    answers[static_cast<size_t>(rank)] = receive_message(rank_.control(), rank);
  }
  is_answered_ = true;
  return answers;
}

/// What broke a run off somewhere ends messages everywhere: an exception that says more than that goes first.
void RankLeader::throw_first_error(const std::vector<Json>& answers, std::exception_ptr own) const {
  std::exception_ptr ended;
  const auto consider = [&](const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const CommunicationEnded&) {
      ended = error;
    }
  };
  if (own != nullptr) consider(own);
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    if (failed(answers[rank])) consider(error_from_json(answers[rank].at("error"), rank_name(rank)));
  }
  if (ended != nullptr) std::rethrow_exception(ended);
}

std::vector<RankLeader::Json> RankLeader::answers(std::exception_ptr own) {
  std::vector<Json> all = answers_of_all();
  throw_first_error(all, std::move(own));
  return all;
}

void RankLeader::run(const ReplicaPlans& plans, std::span<JobRound> rounds) {
  COTUNE_CHECK(plans.replicas.size() == layouts().size(), "plans of {} replicas for {}", plans.replicas.size(), layouts().size());
  for (size_t replica = 0; replica < layouts().size(); ++replica) {
    const size_t lists = plans.replicas[replica].ranks.size();
    COTUNE_CHECK(lists == static_cast<size_t>(layouts()[replica].rank_count()), "a plan of {} ranks for {}", lists,
                 layouts()[replica].rank_count());
  }
  agree_on_exchanges(plans, rounds);
  Json command = to_json(RankCommand::run);
  command["plans"] = plans_to_json(plans);
  command["action_s"] = action_seconds_to_json(plans);
  command["rounds"] = rounds_to_json(rounds);
  tell(command);
  std::vector<JobRound> nothing_known(rounds.begin(), rounds.end());
  for (JobRound& round : nothing_known) {  // of an attempt before
    round.row_predicted.clear();
    round.row_loss_sums.clear();
  }
  std::vector<std::vector<JobRound>> by_rank(static_cast<size_t>(rank_.control().size()), nothing_known);
  ProcessRank::Work work{.plan = {}, .rounds = by_rank.front(), .batches = {}, .exchanges = {}, .action_s = {}};
  const std::exception_ptr error = rank_.run(work, [&] {
    rank_.take_work(plans, shards_ ? shards_->rounds_of(rounds) : std::vector<JobRound>(rounds.begin(), rounds.end()), work);
    work.action_s = action_seconds_from_json(command.at("action_s"), 0, 0);
    if (shards_) within_memory([&] { rank_.begin_selections(work.rounds); });
  });
  by_rank.front() = work.rounds;
  const std::vector<Json> answers = answers_of_all();
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    if (answers[rank].contains("results")) take_results(answers[rank].at("results"), by_rank[rank]);
  }
  take_times(answers);
  const bool broke_off = error != nullptr || std::any_of(answers.begin(), answers.end(), failed);
  if (broke_off) complete_steps(answers, by_rank);
  merge_results(layouts(), plans, by_rank, rounds);
  if (broke_off) throw_first_error(answers, error);
}

ExchangeMessages RankLeader::exchange_messages_of(int32_t job, const Adapter& adapter) {
  if (layouts().size() == 1) return {};
  if (!rank_.has_exchange(job)) agree_on_exchange(job, adapter);
  return rank_.exchange_of(job).messages;
}

void RankLeader::agree_on_exchanges(const ReplicaPlans& plans, std::span<const JobRound> rounds) {
  if (plans.exchanges.empty()) return;
  for (const JobRound& round : rounds) {
    if (round.purpose == RoundPurpose::train && !rank_.has_exchange(round.job)) agree_on_exchange(round.job, *round.adapter);
  }
}

void RankLeader::agree_on_exchange(int32_t job, const Adapter& whole) {
  Json command = to_json(RankCommand::exchange);
  command["job"] = job;
  const RankTask task = take_up(command);
  const std::vector<Json> answers = answers_of_all();
  is_answered_ = false;
  std::exception_ptr error;
  JobExchange exchange;
  try {
    throw_first_error(answers, nullptr);
    std::vector<HeldAdapter> held;
    for (int32_t rank = 0; rank < rank_.control().size(); ++rank) {
      const std::vector<LayerRange> layers = layers_of(rank);
      held.push_back({static_cast<int32_t>(place_of_rank(layouts(), rank).replica), layers,
                      rank == 0 ? parts_of(shards_->at(job), layers)
                                : parts_from_json(answers[static_cast<size_t>(rank)].at("parts"))});
    }
    exchange = exchange_of(whole, held);
  } catch (...) {
    error = std::current_exception();
  }
  for (int32_t rank = 1; rank < rank_.control().size(); ++rank) {
    if (failed(answers[static_cast<size_t>(rank)])) continue;
    send_message(rank_.control(), exchange_to_json(part_of_exchange(exchange, whole, rank, layers_of(rank))), rank);
  }
  is_answered_ = true;
  if (error != nullptr) std::rethrow_exception(error);
  rank_.set_exchange(job, part_of_exchange(exchange, whole, 0, layers_of(0)));
}

void RankLeader::complete_steps(const std::vector<Json>& answers,
                                std::vector<std::vector<JobRound>>& by_rank) {
  MadeSteps made = rank_.made_steps();
  for (size_t rank = 1; rank < answers.size(); ++rank)
    made.merge(made_from_json(answers[rank].value("made", Json::array()), backbone_->device()));
  Json command = to_json(RankCommand::complete);
  command["made"] = made_to_json(made);
  const RankTask task = take_up(command);
  std::string trouble;
  try {
    rank_.complete_steps(made, by_rank.front());
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  const std::vector<Json> completed = answers_of_all();
  for (size_t rank = 1; rank < completed.size(); ++rank) {
    if (failed(completed[rank])) {
      trouble =
          fmt::format("{}: {}", rank_name(rank), completed[rank].at("error").at("text").get<std::string>());
    } else {
      take_results(completed[rank].at("results"), by_rank[rank]);
    }
  }
  join_anew();
  if (!trouble.empty())
    throw SystemError("a step that some ranks have made cannot be made on all: " + trouble);
}

void RankLeader::join_anew() {
  const RankTask task = take_up(to_json(RankCommand::join));
  rank_.join();
  answers();
}

int64_t RankLeader::divide(std::vector<PipelineLayout> layouts) {
  Json command = to_json(RankCommand::divide);
  command["layouts"] = layouts_to_json(layouts);
  const RankTask task = take_up(command);
  std::exception_ptr error;
  try {
    shards_.reset();
    rank_.divide(std::move(layouts), change_weights);
    use_shards();
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<Json> all = answers(error);
  int64_t most = backbone_->weight_bytes();
  std::vector<std::string> forms{backbone_->weight_forms()};
  for (size_t rank = 1; rank < all.size(); ++rank) {
    most = std::max(most, all[rank].at("weight_bytes").get<int64_t>());
    forms.push_back(all[rank].at("weight_forms").get<std::string>());
  }
  if (const auto unlike = ranks_of_unlike_forms(this->layouts(), forms)) {
    throw_user_error("rank {} and rank {} would share weights, but have processors with different kernels", unlike->first, unlike->second);
  }
  try {
    join_anew();
  } catch (const CommunicationEnded&) {
    throw;
  } catch (const std::exception& error) {  // some have the new groups, others not: nothing more can be asked of them
    is_answered_ = false;
    throw CommunicationEnded(error.what());
  }
  return most;
}

void RankLeader::take_times(const std::vector<Json>& answers) {
  std::vector<RankTime> all{rank_.time()};
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    all.push_back(answers[rank].contains("time") ? time_from_json(answers[rank].at("time")) : RankTime{});
  }
  times_ = times_of_ranks(layouts(), std::move(all));
}

void RankLeader::observe(std::function<void(int32_t rank, const Operator&)> after_operator) {
  rank_.after_operator = nullptr;
  if (after_operator)
    rank_.after_operator = [after = std::move(after_operator)](const Operator& op) { after(0, op); };
}

void RankLeader::share(int32_t job, const Adapter& adapter) {
  rank_.forget_exchange(job);
  const std::vector<Adapter::NamedTensor> structure = adapter.structure();
  Json command = to_json(RankCommand::share);
  command["job"] = job;
  command["setup"] = setup_to_json(adapter.setup());
  command["structure"] = structure_to_json(structure);
  command["complete"] = has_ended_selection(adapter);
  const RankTask task = take_up(command);
  std::exception_ptr error;
  const auto attempt = [&](const auto& part) {
    try {
      part();
    } catch (...) {
      error = std::current_exception();
    }
  };
  if (shards_) attempt([&] { shards_->share(job, adapter); });
  std::vector<Json> answers = answers_of_all();
  is_answered_ = false;
  for (int32_t rank = 1; rank < rank_.control().size(); ++rank) {
    Json& answer = answers[static_cast<size_t>(rank)];
    if (failed(answer)) continue;
    const std::vector<LayerRange> layers = layers_of(rank);
    const std::vector<ParameterPart> parts = parts_from_json(answer.at("parts"));
    const at::Tensor state = flat_state_like(adapter, layers, parts);
    attempt([&] {
      copy_flat_state(adapter, layers, parts, state);
    });  // if it fails the job is not shared, whatever is sent
    if (state.numel() > 0) rank_.control().send(state, rank, Channel::activation)->wait();
    answer = receive_message(rank_.control(), rank);
  }
  is_answered_ = true;
  throw_first_error(answers, error);
}

void RankLeader::forget(int32_t job) {
  rank_.forget_exchange(job);
  if (shards_) shards_->forget(job);
  Json command = to_json(RankCommand::forget);
  command["job"] = job;
  const RankTask task = take_up(command);
  answers();
}

void RankLeader::gather(int32_t job, Adapter& adapter) {
  Json command = to_json(RankCommand::gather);
  command["job"] = job;
  const RankTask task = take_up(command);
  const std::vector<Json> answers = answers_of_all();
  is_answered_ = false;
  std::exception_ptr error;  // what the others send is taken in any case
  for (int32_t rank = 1; rank < rank_.control().size(); ++rank) {
    const Json& answer = answers[static_cast<size_t>(rank)];
    if (!answer.contains("parts")) continue;  // of another replica, which has the same values; or failed
    const std::vector<LayerRange> layers = layers_of(rank);
    const std::vector<ParameterPart> parts = parts_from_json(answer.at("parts"));
    const at::Tensor state = flat_state_like(adapter, layers, parts);
    if (state.numel() == 0) continue;
    rank_.control().receive(state, rank, Channel::activation)->wait();
    try {
      assign_flat_state(adapter, layers, parts, state);
    } catch (...) {
      error = std::current_exception();
    }
  }
  is_answered_ = true;
  throw_first_error(answers, error);
  if (!shards_) return;
  shards_->gather(job, adapter);
  for (const LayerRange& layers : rank_.layers()) adapter.refresh(layers);
}

void RankLeader::end_selection(int32_t job, Adapter& adapter, int64_t pass) {
  rank_.forget_exchange(job);
  Json command = to_json(RankCommand::end_selection);
  command["job"] = job;
  command["pass"] = pass;
  const RankTask task = take_up(command);
  std::vector<Adapter::NamedTensor> chosen;
  std::exception_ptr error;
  try {
    if (shards_) chosen = rank_.end_selection(shards_->at(job), pass);
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<Json> answers = answers_of_all();
  const bool broke_off = error != nullptr || std::any_of(answers.begin(), answers.end(), failed);
  if (broke_off) join_anew();
  throw_first_error(answers, error);
  for (const Json& answer : answers) {
    if (answer.is_null()) continue;
    for (Adapter::NamedTensor& item : structure_from_json(answer.at("structure")))
      chosen.push_back(std::move(item));
  }
  std::vector<Adapter::NamedTensor> structure = adapter.structure();
  for (Adapter::NamedTensor& item : structure) {
    const auto found = std::ranges::find(chosen, item.name, &Adapter::NamedTensor::name);
    if (found != chosen.end()) item.tensor = found->tensor;
  }
  adapter.restore_structure(structure, adapter.selection_passes() == 0);
}

}  // namespace cotune
