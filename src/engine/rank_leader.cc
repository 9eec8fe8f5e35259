#include "engine/rank_leader.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace cotune {
namespace {

using Clock = std::chrono::steady_clock;

std::string rank_name(size_t rank) { return fmt::format("rank {}", rank); }

double longest_action_s(const RankPlan& plan) {
  double longest = 0;
  for (const SimulatedRank& rank : plan.predicted.ranks) {
    for (const SimulatedSpan& span : rank.spans) longest = std::max(longest, span.end_s - span.start_s);
  }
  return longest;
}

bool failed(const nlohmann::json& answer) { return answer.contains("error"); }

}  // namespace

RankLeader::RankLeader(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, RankLinks links)
    : layout_(std::move(layout)), links_(std::move(links)), device_(backbone->device()), interpreter_(backbone, layout_, 0) {
  COTUNE_CHECK(links_.control->rank() == 0 && links_.control->size() == layout_.rank_count(),
               "a group of {} ranks, of which this is {}, for a layout of {}", links_.control->size(), links_.control->rank(),
               layout_.rank_count());
  interpreter_.progress = links_.progress;
  interpreter_.observe([this](const Operator& op, const MicrobatchState&, double seconds) {
    operator_seconds_[to_string(op.kind)] += seconds;
    if (after_operator_) after_operator_(0, op);
  });
}

RankLeader::~RankLeader() {
  try {
    Json command = to_json(RankCommand::end);
    command["well"] = std::uncaught_exceptions() == 0;
    tell(command);
    links_.end();
  } catch (const std::exception&) {
    // A rank is gone: the others see it as this one does.
  }
}

void RankLeader::tell(const Json& command) { broadcast_message(*links_.control, command); }

std::vector<RankLeader::Json> RankLeader::answers_of_all() {
  std::vector<Json> answers(static_cast<size_t>(rank_count()));
  for (int32_t rank = 1; rank < rank_count(); ++rank) {
    answers[static_cast<size_t>(rank)] = receive_message(*links_.control, rank);
  }
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

std::vector<RankLeader::Json> RankLeader::answers() {
  std::vector<Json> all = answers_of_all();
  throw_first_error(all, nullptr);
  return all;
}

std::exception_ptr RankLeader::run_here(const RankPlan& plan, std::span<JobRound> rounds) {
  const auto begin = Clock::now();
  std::exception_ptr error;
  operator_seconds_.clear();
  if (links_.progress != nullptr) links_.progress->begin_run(longest_action_s(plan));
  try {
    interpreter_.run(plan, rounds, *links_.messages);
  } catch (...) {
    error = std::current_exception();
    links_.messages->abort();
  }
  if (links_.progress != nullptr) links_.progress->end_run();
  seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  spans_ = interpreter_.spans();
  const double begin_s = std::chrono::duration<double>(begin.time_since_epoch()).count();
  for (SimulatedSpan& span : spans_) {
    span.start_s -= begin_s;
    span.end_s -= begin_s;
  }
  return error;
}

void RankLeader::run(const RankPlan& plan, std::span<JobRound> rounds) {
  COTUNE_CHECK(plan.ranks.size() == static_cast<size_t>(rank_count()), "a plan of {} ranks for {}", plan.ranks.size(), rank_count());
  Json command = to_json(RankCommand::run);
  command["plan"] = plan_to_json(plan);
  command["longest_action_s"] = longest_action_s(plan);
  command["rounds"] = rounds_to_json(rounds);
  tell(command);
  std::vector<std::vector<JobRound>> by_rank(static_cast<size_t>(rank_count()), {rounds.begin(), rounds.end()});
  const std::exception_ptr error = run_here(plan, by_rank.front());
  const std::vector<Json> answers = answers_of_all();
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    if (answers[rank].contains("results")) take_results(answers[rank].at("results"), by_rank[rank]);
  }
  take_times(answers);
  const bool broke_off = error != nullptr || std::any_of(answers.begin(), answers.end(), failed);
  if (broke_off) complete_steps(answers, by_rank);
  std::vector<JobRound> merged = merged_rounds(static_cast<size_t>(layout_.stage_rank.back()), by_rank);
  std::move(merged.begin(), merged.end(), rounds.begin());
  if (!broke_off) return;
  clear_gradients(rounds);
  throw_first_error(answers, error);
}

void RankLeader::complete_steps(const std::vector<Json>& answers, std::vector<std::vector<JobRound>>& by_rank) {
  interpreter_.read_results();
  MadeSteps made = made_steps(interpreter_);
  for (size_t rank = 1; rank < answers.size(); ++rank) made.merge(made_from_json(answers[rank].value("made", Json::array()), device_));
  Json command = to_json(RankCommand::complete);
  command["made"] = made_to_json(made);
  tell(command);
  std::string trouble;
  try {
    cotune::complete_steps(interpreter_, made, by_rank.front());
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  const std::vector<Json> completed = answers_of_all();
  for (size_t rank = 1; rank < completed.size(); ++rank) {
    if (failed(completed[rank])) {
      trouble = fmt::format("{}: {}", rank_name(rank), completed[rank].at("error").at("text").get<std::string>());
    } else {
      take_results(completed[rank].at("results"), by_rank[rank]);
    }
  }
  links_.messages.reset();  // ended, it is of no more use
  links_.messages = links_.new_group();
  if (!trouble.empty()) throw SystemError("a step that some ranks have made cannot be made on all: " + trouble);
}

void RankLeader::take_times(const std::vector<Json>& answers) {
  times_ = {};
  std::vector<double> seconds{seconds_};
  times_.waited.push_back(interpreter_.waited_s());
  times_.spans.push_back(spans_);
  times_.collectives.assign(static_cast<size_t>(rank_count()), 0);
  times_.operator_seconds.push_back(operator_seconds_);
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    const Json& answer = answers[rank];
    seconds.push_back(answer.value("seconds", 0.0));
    times_.waited.push_back(answer.value("waited", 0.0));
    times_.operator_seconds.push_back(answer.value("operator_seconds", std::map<std::string, double>()));
    std::vector<SimulatedSpan>& spans = times_.spans.emplace_back();
    for (const Json& span : answer.value("spans", Json::array())) {
      spans.push_back({span.at(0).get<size_t>(), span.at(1).get<double>(), span.at(2).get<double>()});
    }
  }
  times_.seconds = *std::max_element(seconds.begin(), seconds.end());
  for (const double each : seconds) times_.idle.push_back(times_.seconds - each);
}

void RankLeader::observe(std::function<void(int32_t rank, const Operator&)> after_operator) {
  after_operator_ = std::move(after_operator);
}

void RankLeader::share(int32_t job, const Adapter& adapter) {
  const std::vector<Adapter::NamedTensor> structure = adapter.structure();
  Json command = to_json(RankCommand::share);
  command["job"] = job;
  command["setup"] = setup_to_json(adapter.setup());
  command["structure"] = structure_to_json(structure);
  command["complete"] = adapter.finished_selection_passes() > 0 && adapter.selection_passes() == 0;
  tell(command);
  std::vector<Json> answers = answers_of_all();
  for (int32_t rank = 1; rank < rank_count(); ++rank) {
    Json& answer = answers[static_cast<size_t>(rank)];
    if (failed(answer)) continue;
    const at::Tensor state = flat_state(adapter, layers_of(layout_, rank));
    if (state.numel() > 0) links_.control->send(state, rank, Channel::activation)->wait();
    answer = receive_message(*links_.control, rank);
  }
  throw_first_error(answers, nullptr);
}

void RankLeader::forget(int32_t job) {
  Json command = to_json(RankCommand::forget);
  command["job"] = job;
  tell(command);
  answers();
}

void RankLeader::gather(int32_t job, Adapter& adapter) {
  Json command = to_json(RankCommand::gather);
  command["job"] = job;
  tell(command);
  answers();
  std::exception_ptr error;  // what the others send is taken in any case
  for (int32_t rank = 1; rank < rank_count(); ++rank) {
    const std::vector<LayerRange> layers = layers_of(layout_, rank);
    const at::Tensor state = flat_state_like(adapter, layers);
    if (state.numel() == 0) continue;
    links_.control->receive(state, rank, Channel::activation)->wait();
    try {
      assign_flat_state(adapter, layers, state);
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void RankLeader::end_selection(int32_t job, Adapter& adapter, int64_t pass) {
  Json command = to_json(RankCommand::end_selection);
  command["job"] = job;
  command["pass"] = pass;
  tell(command);
  std::map<std::string, at::Tensor> chosen;
  for (const Json& answer : answers()) {
    if (answer.is_null()) continue;
    for (Adapter::NamedTensor& item : structure_from_json(answer.at("structure"))) chosen[item.name] = std::move(item.tensor);
  }
  std::vector<Adapter::NamedTensor> structure = adapter.structure();
  for (Adapter::NamedTensor& item : structure) {
    const auto found = chosen.find(item.name);
    if (found != chosen.end()) item.tensor = found->second;
  }
  adapter.restore_structure(structure, adapter.selection_passes() == 0);
}

}  // namespace cotune
