#include "engine/rank_commands.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "comm/byte_messages.h"
#include "comm/host_buffer.h"
#include "ops/memory.h"
#include "schedule/pipeline/action_seconds.h"
#include "schedule/step_plan_json.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 10> command_names = {"run",    "exchange", "complete", "join",          "share",
                                                       "forget", "gather",   "divide",   "end_selection", "end"};

template <typename Value>
Json binary(const Value* values, size_t count) {
  std::vector<uint8_t> bytes(count * sizeof(Value));
  if (count > 0) std::memcpy(bytes.data(), values, bytes.size());
  return Json::binary(std::move(bytes));
}

template <typename Value>
std::vector<Value> values_of(const Json& json) {
  const auto& bytes = json.get_binary();
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Json batch_to_json(const Batch& batch) {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;
  std::vector<uint64_t> keys;
  std::vector<int64_t> lengths;
  for (const BatchRow& row : batch.rows) {
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    learned.insert(learned.end(), row.learned.begin(), row.learned.end());
    keys.push_back(row.key);
    lengths.push_back(static_cast<int64_t>(row.tokens.size()));
  }
  return {{"step", batch.step},
          {"tokens", binary(tokens.data(), tokens.size())},
          {"learned", binary(learned.data(), learned.size())},
          {"keys", binary(keys.data(), keys.size())},
          {"lengths", lengths}};
}

Batch batch_from_json(const Json& json) {
  const auto tokens = values_of<int32_t>(json.at("tokens"));
  const auto learned = values_of<uint8_t>(json.at("learned"));
  const auto keys = values_of<uint64_t>(json.at("keys"));
  Batch batch{json.at("step").get<int64_t>(), {}};
  auto token = tokens.begin();
  auto is_learned = learned.begin();
  auto key = keys.begin();
  for (const auto length : json.at("lengths").get<std::vector<int64_t>>()) {
    batch.rows.push_back({{token, token + length}, {is_learned, is_learned + length}, *key++});
    token += length;
    is_learned += length;
  }
  return batch;
}

Json optimizer_to_json(const OptimizerSettings& settings) {
  return {static_cast<int>(settings.kind), settings.step,     settings.learning_rate, settings.weight_decay, settings.beta1,
          settings.beta2,                  settings.epsilon,  settings.momentum,      settings.max_grad_norm};
}

OptimizerSettings optimizer_from_json(const Json& json) {
  OptimizerSettings settings;
  settings.kind = static_cast<OptimizerKind>(json.at(0).get<int>());
  settings.step = json.at(1).get<int64_t>();
  double* const values[] = {&settings.learning_rate, &settings.weight_decay, &settings.beta1,        &settings.beta2,
                            &settings.epsilon,       &settings.momentum,     &settings.max_grad_norm};
  for (size_t i = 0; i < std::size(values); ++i) *values[i] = json.at(i + 2).get<double>();
  return settings;
}

Json layout_to_json(const PipelineLayout& layout) {
  Json stages = Json::array();
  for (const StageShape& stage : layout.stages) {
    stages.push_back({stage.first_layer, stage.last_layer, stage.has_embedding, stage.has_head, stage.tensor_parallel,
                      stage.divides_tokens});
  }
  return {{"stages", std::move(stages)}, {"stage_rank", layout.stage_rank}, {"shards_weights", layout.shards_weights}};
}

PipelineLayout layout_from_json(const Json& json) {
  PipelineLayout layout;
  for (const Json& stage : json.at("stages")) {
    layout.stages.push_back({.first_layer = stage.at(0).get<int64_t>(),
                             .last_layer = stage.at(1).get<int64_t>(),
                             .has_embedding = stage.at(2).get<bool>(),
                             .has_head = stage.at(3).get<bool>(),
                             .tensor_parallel = stage.at(4).get<int64_t>(),
                             .divides_tokens = stage.at(5).get<bool>()});
  }
  layout.stage_rank = json.at("stage_rank").get<std::vector<int32_t>>();
  layout.shards_weights = json.at("shards_weights").get<bool>();
  return layout;
}

}  // namespace

Json to_json(RankCommand command) { return {{"command", command_names[static_cast<size_t>(command)]}}; }

RankCommand command_of(const Json& message) {
  const auto name = message.at("command").get<std::string>();
  const auto found = std::find(command_names.begin(), command_names.end(), name);
  COTUNE_CHECK(found != command_names.end(), "there is no command `{}`", name);
  return static_cast<RankCommand>(found - command_names.begin());
}

std::string task_text(const Json& command) {
  const auto of_job = [&](const char* what) { return fmt::format("{} of job {}", what, command.at("job").get<int32_t>()); };
  switch (command_of(command)) {
    case RankCommand::exchange:
      return of_job("agreeing on the exchange of gradients");
    case RankCommand::complete:
      return "completing steps";
    case RankCommand::join:
      return "joining the other ranks";
    case RankCommand::share:
      return of_job("sharing the adapter");
    case RankCommand::forget:
      return of_job("freeing the adapter");
    case RankCommand::gather:
      return of_job("gathering the adapter");
    case RankCommand::divide:
      return "reading its part of the model";
    case RankCommand::end_selection:
      return of_job("ending a selection pass");
    case RankCommand::run:
    case RankCommand::end:
      break;
  }
  return "";
}

Json layouts_to_json(std::span<const PipelineLayout> layouts) {
  Json json = Json::array();
  for (const PipelineLayout& layout : layouts) json.push_back(layout_to_json(layout));
  return json;
}

std::vector<PipelineLayout> layouts_from_json(const Json& layouts) {
  std::vector<PipelineLayout> all;
  for (const Json& layout : layouts) all.push_back(layout_from_json(layout));
  return all;
}

Json rounds_to_json(std::span<const JobRound> rounds) {
  Json json = Json::array();
  for (const JobRound& round : rounds) {
    json.push_back({{"job", round.job},
                    {"has_adapter", round.adapter != nullptr},
                    {"purpose", static_cast<int>(round.purpose)},
                    {"selection_pass", round.selection_pass},
                    {"dropout_key", round.dropout_key},
                    {"optimizer", optimizer_to_json(round.optimizer)},
                    {"batch", batch_to_json(*round.batch)}});
  }
  return json;
}

ReceivedRounds rounds_from_json(const Json& rounds) {
  ReceivedRounds received;
  for (const Json& json : rounds) {
    received.batches.push_back(batch_from_json(json.at("batch")));
    received.has_adapter.push_back(json.at("has_adapter").get<bool>());
    JobRound& round = received.rounds.emplace_back();
    round.job = json.at("job").get<int32_t>();
    round.batch = &received.batches.back();
    round.purpose = static_cast<RoundPurpose>(json.at("purpose").get<int>());
    round.selection_pass = json.at("selection_pass").get<int64_t>();
    round.dropout_key = json.at("dropout_key").get<uint64_t>();
    round.optimizer = optimizer_from_json(json.at("optimizer"));
  }
  return received;
}

namespace {

Json clock_to_json(const PipelineClock& clock) {
  Json stages = Json::array();
  for (const auto& [forward, backward] : clock.stages) {
    stages.push_back({binary(forward.data(), forward.size()), binary(backward.data(), backward.size())});
  }
  return {{"microbatches", clock.microbatches}, {"stages", std::move(stages)}};
}

PipelineClock clock_from_json(const Json& json) {
  PipelineClock clock{.microbatches = json.at("microbatches").get<std::vector<int32_t>>(), .stages = {}};
  for (const Json& stage : json.at("stages")) {
    clock.stages.push_back({values_of<Launch>(stage.at(0)), values_of<Launch>(stage.at(1))});
  }
  return clock;
}

Json plan_to_json(const RankPlan& plan) {
  Json rounds = Json::array(), ranks = Json::array();
  for (StepPlan round : plan.rounds) {
    round.actions.clear();  // those of one rank
    rounds.push_back(Json(to_json(round)));
  }
  for (const std::vector<Action>& actions : plan.ranks) {
    Json& list = ranks.emplace_back(Json::array());
    for (const Action& action : actions) list.push_back(Json(to_json(action)));
  }
  Json clocks = Json::array();
  for (const PipelineClock& clock : plan.clocks) clocks.push_back(clock_to_json(clock));
  return {{"rounds", std::move(rounds)}, {"clocks", std::move(clocks)}, {"ranks", std::move(ranks)}};
}

RankPlan plan_from_json(const Json& json) {
  RankPlan plan;
  for (const Json& round : json.at("rounds")) plan.rounds.push_back(step_plan_from_json(round));
  for (const Json& clock : json.at("clocks")) plan.clocks.push_back(clock_from_json(clock));
  for (const Json& list : json.at("ranks")) {
    std::vector<Action>& actions = plan.ranks.emplace_back();
    for (const Json& action : list) actions.push_back(action_from_json(action));
  }
  return plan;
}

Json rows_to_json(const RowShares& shares) {
  Json json = Json::array();
  for (const auto& [step, rows] : shares) json.push_back({step.job, step.step, binary(rows.data(), rows.size())});
  return json;
}

RowShares rows_from_json(const Json& json) {
  RowShares shares;
  for (const Json& each : json) shares[{each.at(0).get<int32_t>(), each.at(1).get<int64_t>()}] = values_of<int32_t>(each.at(2));
  return shares;
}

}  // namespace

Json plans_to_json(const ReplicaPlans& plans) {
  Json replicas = Json::array(), rows = Json::array(), exchanges = Json::array();
  for (const RankPlan& plan : plans.replicas) replicas.push_back(plan_to_json(plan));
  for (const RowShares& shares : plans.rows) rows.push_back(rows_to_json(shares));
  for (const JobStep& step : plans.exchanges) exchanges.push_back({step.job, step.step});
  return {{"replicas", std::move(replicas)}, {"rows", std::move(rows)}, {"exchanges", std::move(exchanges)}};
}

ReplicaPlans plans_from_json(const Json& json, size_t replica) {
  ReplicaPlans plans;
  plans.replicas.resize(json.at("replicas").size());
  plans.replicas.at(replica) = plan_from_json(json.at("replicas").at(replica));
  plans.rows.resize(json.at("rows").size());
  if (!plans.rows.empty()) plans.rows.at(replica) = rows_from_json(json.at("rows").at(replica));
  for (const Json& step : json.at("exchanges")) plans.exchanges.push_back({step.at(0).get<int32_t>(), step.at(1).get<int64_t>()});
  return plans;
}

Json action_seconds_to_json(const ReplicaPlans& plans) {
  Json replicas = Json::array();
  for (const RankPlan& plan : plans.replicas) {
    Json& ranks = replicas.emplace_back(Json::array());
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      const std::vector<double> seconds = action_seconds(plan, rank, plans.longest_exchange_s);
      ranks.push_back(binary(seconds.data(), seconds.size()));
    }
  }
  return replicas;
}

std::vector<double> action_seconds_from_json(const Json& seconds, size_t replica, size_t rank) {
  return values_of<double>(seconds.at(replica).at(rank));
}

Json exchange_to_json(const JobExchange& exchange) {
  Json slices = Json::array();
  for (const GradientSlice& slice : exchange.slices) {
    slices.push_back({slice.parameter, slice.dimension, slice.begin, slice.end, binary(slice.entries.data(), slice.entries.size()),
                      slice.values, slice.holders, slice.owner});
  }
  return {{"slices", std::move(slices)}, {"ranks", exchange.ranks}};
}

JobExchange exchange_from_json(const Json& json) {
  JobExchange exchange{.slices = {}, .ranks = json.at("ranks").get<std::vector<int32_t>>()};
  for (const Json& slice : json.at("slices")) {
    exchange.slices.push_back({.parameter = slice.at(0).get<size_t>(),
                               .dimension = slice.at(1).get<int64_t>(),
                               .begin = slice.at(2).get<int64_t>(),
                               .end = slice.at(3).get<int64_t>(),
                               .entries = values_of<int64_t>(slice.at(4)),
                               .values = slice.at(5).get<int64_t>(),
                               .holders = slice.at(6).get<std::vector<std::vector<int32_t>>>(),
                               .owner = slice.at(7).get<int32_t>()});
  }
  return exchange;
}

Json results_to_json(std::span<const JobRound> rounds) {
  Json json = Json::array();
  for (const JobRound& round : rounds) {
    json.push_back({round.loss_sum, round.labelled_tokens, round.gradient_norm, round.stepped, round.failure,
                    binary(round.row_predicted.data(), round.row_predicted.size()),
                    binary(round.row_loss_sums.data(), round.row_loss_sums.size())});
  }
  return json;
}

void take_results(const Json& results, std::span<JobRound> rounds) {
  COTUNE_CHECK(results.size() == rounds.size(), "results of {} rounds for {}", results.size(), rounds.size());
  for (size_t i = 0; i < rounds.size(); ++i) {
    const Json& result = results[i];
    rounds[i].loss_sum = result.at(0).get<double>();
    rounds[i].labelled_tokens = result.at(1).get<int64_t>();
    rounds[i].gradient_norm = result.at(2).get<double>();
    rounds[i].stepped = result.at(3).get<bool>();
    rounds[i].failure = result.at(4).get<std::string>();
    rounds[i].row_predicted = values_of<uint8_t>(result.at(5));
    rounds[i].row_loss_sums = values_of<double>(result.at(6));
  }
}

Json made_to_json(const MadeSteps& made) {
  Json json = Json::array();
  for (const auto& [step, record] : made) {
    const at::Tensor values = record.cpu();
    const auto* value = values.const_data_ptr<double>();
    json.push_back({step.job, step.step, value[0], value[1]});
  }
  return json;
}

MadeSteps made_from_json(const Json& json, at::Device device) {
  MadeSteps made;
  for (const Json& each : json) {
    const at::Tensor record = host_buffer({2}, at::kDouble);  // memory may have run out
    record.mutable_data_ptr<double>()[0] = each.at(2).get<double>();
    record.mutable_data_ptr<double>()[1] = each.at(3).get<double>();
    made[{each.at(0).get<int32_t>(), each.at(1).get<int64_t>()}] = record.to(device);
  }
  return made;
}

Json setup_to_json(const AdapterSetup& setup) {
  Json modules = Json::array();
  for (const AdaptedModule& module : setup.modules) {
    modules.push_back({module.layer, static_cast<int>(module.projection), module.r, module.alpha});
  }
  return {{"method", static_cast<int>(setup.spec.method)},
          {"dropout", setup.spec.dropout},
          {"use_rslora", setup.spec.use_rslora},
          {"lora_plus_ratio", setup.spec.lora_plus_ratio},
          {"activation", static_cast<int>(setup.spec.activation)},
          {"density", setup.spec.density},
          {"modules", std::move(modules)},
          {"seed", setup.seed},
          {"optimizer", static_cast<int>(setup.optimizer)},
          {"momentum", setup.momentum},
          {"factor_form", static_cast<int>(setup.factor_form)}};
}

AdapterSetup setup_from_json(const Json& json) {
  AdapterSetup setup;
  setup.spec.method = static_cast<AdapterMethod>(json.at("method").get<int>());
  setup.spec.dropout = json.at("dropout").get<double>();
  setup.spec.use_rslora = json.at("use_rslora").get<bool>();
  setup.spec.lora_plus_ratio = json.at("lora_plus_ratio").get<double>();
  setup.spec.activation = static_cast<Activation>(json.at("activation").get<int>());
  setup.spec.density = json.at("density").get<double>();
  for (const Json& module : json.at("modules")) {
    setup.modules.push_back({module.at(0).get<int64_t>(), static_cast<Projection>(module.at(1).get<int>()),
                             module.at(2).get<int64_t>(), module.at(3).get<double>()});
  }
  setup.seed = json.at("seed").get<uint64_t>();
  setup.optimizer = static_cast<OptimizerKind>(json.at("optimizer").get<int>());
  setup.momentum = json.at("momentum").get<double>();
  setup.factor_form = static_cast<FactorForm>(json.at("factor_form").get<int>());
  return setup;
}

Json spans_to_json(std::span<const SimulatedSpan> spans) {
  Json json = Json::array();
  for (const SimulatedSpan& span : spans) json.push_back({span.action, span.start_s, span.end_s});
  return json;
}

std::vector<SimulatedSpan> spans_from_json(const Json& json) {
  std::vector<SimulatedSpan> spans;
  for (const Json& span : json) spans.push_back({span.at(0).get<size_t>(), span.at(1).get<double>(), span.at(2).get<double>()});
  return spans;
}

Json time_to_json(const RankTime& time) {
  return {{"seconds", time.seconds},
          {"waited", time.waited},
          {"messages", time.sent.count},
          {"message_bytes", time.sent.bytes},
          {"collectives", time.collectives},
          {"group_bytes", time.group_bytes},
          {"exposed", time.exposed},
          {"exchanged_bytes", time.exchanged_bytes},
          {"peak_bytes", time.peak_bytes},
          {"round_bytes", time.round_bytes},
          {"gathering", time.gathering},
          {"exchanging", time.exchanging},
          {"weight_bytes", time.weight_bytes},
          {"whole_weight_bytes", time.whole_weight_bytes},
          {"spans", spans_to_json(time.spans)},
          {"sent_spans", spans_to_json(time.sent_spans)},
          {"exchange_spans", spans_to_json(time.exchange_spans)},
          {"operator_seconds", time.operator_seconds}};
}

RankTime time_from_json(const Json& json) {
  return {.seconds = json.at("seconds").get<double>(),
          .waited = json.at("waited").get<double>(),
          .sent = {json.at("messages").get<int64_t>(), json.at("message_bytes").get<int64_t>()},
          .collectives = json.at("collectives").get<int64_t>(),
          .group_bytes = json.at("group_bytes").get<int64_t>(),
          .exposed = json.at("exposed").get<double>(),
          .gathering = json.at("gathering").get<double>(),
          .exchanging = json.at("exchanging").get<double>(),
          .exchanged_bytes = json.at("exchanged_bytes").get<int64_t>(),
          .peak_bytes = json.at("peak_bytes").get<int64_t>(),
          .round_bytes = json.at("round_bytes").get<int64_t>(),
          .weight_bytes = json.at("weight_bytes").get<int64_t>(),
          .whole_weight_bytes = json.at("whole_weight_bytes").get<int64_t>(),
          .spans = spans_from_json(json.at("spans")),
          .sent_spans = spans_from_json(json.at("sent_spans")),
          .exchange_spans = spans_from_json(json.at("exchange_spans")),
          .operator_seconds = json.at("operator_seconds").get<std::map<std::string, double>>()};
}

Json structure_to_json(std::span<const Adapter::NamedTensor> structure) {
  Json json = Json::array();
  for (const Adapter::NamedTensor& item : structure) {
    const at::Tensor values = item.tensor.to(at::kCPU, at::kLong).contiguous();
    json.push_back({{"name", item.name},
                    {"layer", item.layer},
                    {"type", static_cast<int>(item.tensor.scalar_type())},
                    {"values", binary(values.const_data_ptr<int64_t>(), static_cast<size_t>(values.numel()))}});
  }
  return json;
}

std::vector<Adapter::NamedTensor> structure_from_json(const Json& json) {
  std::vector<Adapter::NamedTensor> structure;
  for (const Json& item : json) {
    const auto values = values_of<int64_t>(item.at("values"));
    at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
    structure.push_back({item.at("name").get<std::string>(), tensor.to(static_cast<at::ScalarType>(item.at("type").get<int>())),
                         item.at("layer").get<int64_t>()});
  }
  return structure;
}

Json error_to_json(const std::exception_ptr& error) {
  const auto json = [](const char* kind, const std::exception& each) { return Json{{"kind", kind}, {"text", each.what()}}; };
  try {
    std::rethrow_exception(error);
  } catch (const CommunicationEnded& each) {
    return json("communication", each);
  } catch (const MemoryLimitExceeded& each) {
    return json("memory", each);
  } catch (const UserError& each) {
    return json("user", each);
  } catch (const std::exception& each) {
    return json("system", each);
  }
}

std::exception_ptr error_from_json(const Json& error, const std::string& rank_name) {
  const std::string text = rank_name + ": " + error.at("text").get<std::string>();
  const auto kind = error.at("kind").get<std::string>();
  if (kind == "communication") return std::make_exception_ptr(CommunicationEnded(text));
  if (kind == "memory") return std::make_exception_ptr(MemoryLimitExceeded(text));
  if (kind == "user") return std::make_exception_ptr(UserError(text));
  return std::make_exception_ptr(SystemError(text));
}

void broadcast_message(Communicator& communicator, const Json& message) {
  std::vector<uint8_t> bytes = Json::to_cbor(message);
  broadcast_bytes(communicator, bytes, communicator.rank());
}

Json receive_broadcast(Communicator& communicator) {
  std::vector<uint8_t> bytes;
  broadcast_bytes(communicator, bytes, 0);
  return Json::from_cbor(bytes);
}

void send_message(Communicator& communicator, const Json& message, int32_t peer) {
  send_bytes(communicator, Json::to_cbor(message), peer);
}

Json receive_message(Communicator& communicator, int32_t peer) { return Json::from_cbor(receive_bytes(communicator, peer)); }

}  // namespace cotune
