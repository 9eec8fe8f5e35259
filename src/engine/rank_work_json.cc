#include "engine/rank_work_json.h"

#include <iterator>
#include <utility>

#include "engine/binary_json.h"
#include "schedule/pipeline/action_seconds.h"
#include "schedule/step_plan_json.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

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
          {"tokens", binary_json(tokens.data(), tokens.size())},
          {"learned", binary_json(learned.data(), learned.size())},
          {"keys", binary_json(keys.data(), keys.size())},
          {"lengths", lengths}};
}

Batch batch_from_json(const Json& json) {
  const auto tokens = values_of_binary<int32_t>(json.at("tokens"));
  const auto learned = values_of_binary<uint8_t>(json.at("learned"));
  const auto keys = values_of_binary<uint64_t>(json.at("keys"));
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
                      stage.is_sequence_parallel});
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
                             .is_sequence_parallel = stage.at(5).get<bool>()});
  }
  layout.stage_rank = json.at("stage_rank").get<std::vector<int32_t>>();
  layout.shards_weights = json.at("shards_weights").get<bool>();
  return layout;
}

Json clock_to_json(const PipelineClock& clock) {
  Json stages = Json::array();
  for (const auto& [forward, backward] : clock.stages) {
    stages.push_back({binary_json(forward.data(), forward.size()), binary_json(backward.data(), backward.size())});
  }
  return {{"microbatches", clock.microbatches}, {"stages", std::move(stages)}};
}

PipelineClock clock_from_json(const Json& json) {
  PipelineClock clock{.microbatches = json.at("microbatches").get<std::vector<int32_t>>(), .stages = {}};
  for (const Json& stage : json.at("stages")) {
    clock.stages.push_back({values_of_binary<Launch>(stage.at(0)), values_of_binary<Launch>(stage.at(1))});
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
  for (const auto& [step, rows] : shares) json.push_back({step.job, step.step, binary_json(rows.data(), rows.size())});
  return json;
}

RowShares rows_from_json(const Json& json) {
  RowShares shares;
  for (const Json& each : json) shares[{each.at(0).get<int32_t>(), each.at(1).get<int64_t>()}] = values_of_binary<int32_t>(each.at(2));
  return shares;
}

}  // namespace

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
      ranks.push_back(binary_json(seconds.data(), seconds.size()));
    }
  }
  return replicas;
}

std::vector<double> action_seconds_from_json(const Json& seconds, size_t replica, size_t rank) {
  return values_of_binary<double>(seconds.at(replica).at(rank));
}

Json exchange_to_json(const JobExchange& exchange) {
  Json slices = Json::array();
  for (const GradientSlice& slice : exchange.slices) {
    slices.push_back({slice.parameter, slice.dimension, slice.begin, slice.end, binary_json(slice.entries.data(), slice.entries.size()),
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
                               .entries = values_of_binary<int64_t>(slice.at(4)),
                               .values = slice.at(5).get<int64_t>(),
                               .holders = slice.at(6).get<std::vector<std::vector<int32_t>>>(),
                               .owner = slice.at(7).get<int32_t>()});
  }
  return exchange;
}

}  // namespace cotune
