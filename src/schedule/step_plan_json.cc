#include "schedule/step_plan_json.h"

#include <utility>

#include "base/error.h"
#include "base/json_mistake.h"
#include "jobs/enum_names.h"

namespace cotune {
namespace {

template <typename Enum>
Enum enum_from_json(const char* field, const nlohmann::json& name) {
  for (size_t i = 0; i < enum_names<Enum>.size(); ++i) {
    if (name == enum_names<Enum>[i]) return static_cast<Enum>(i);
  }
  throw_user_error("step plan: {}: unknown name {}", field, name.dump());
}

nlohmann::ordered_json policy_to_json(const PackingPolicy& policy) {
  return {{"sharing", name_of(policy.sharing)},
          {"layout", name_of(policy.layout)},
          {"token_budget", policy.token_budget},
          {"chunk_size", policy.chunk_size},
          {"recompute", policy.recompute},
          {"layer_count", policy.layer_count},
          {"hybrid_tasks", policy.hybrid_tasks},
          {"least_microbatches", policy.least_microbatches}};
}

PackingPolicy policy_from_json(const nlohmann::json& object) {
  return {.sharing = enum_from_json<Sharing>("policy.sharing", object.at("sharing")),
          .layout = enum_from_json<Layout>("policy.layout", object.at("layout")),
          .token_budget = object.at("token_budget").get<int64_t>(),
          .chunk_size = object.at("chunk_size").get<int64_t>(),
          .recompute = object.at("recompute").get<bool>(),
          .layer_count = object.at("layer_count").get<int64_t>(),
          .hybrid_tasks = object.at("hybrid_tasks").get<std::vector<std::vector<int32_t>>>(),
          .least_microbatches = object.at("least_microbatches").get<int64_t>()};
}

nlohmann::ordered_json atom_to_json(const Atom& atom) {
  nlohmann::ordered_json segments = nlohmann::ordered_json::array();
  for (const Segment& s : atom.segments) {
    segments.push_back(nlohmann::ordered_json::array({s.row, s.position, s.length, s.pad, s.row_length}));
  }
  return {{"job", atom.job}, {"index", atom.index}, {"segments", std::move(segments)}};
}

Atom atom_from_json(const nlohmann::json& object) {
  Atom atom{.job = object.at("job").get<int32_t>(), .index = object.at("index").get<int32_t>()};
  for (const nlohmann::json& s : object.at("segments")) {
    if (s.size() != 5) throw_user_error("step plan: a segment is five integers, got {}", s.dump());
    atom.segments.push_back({s.at(0).get<int32_t>(), s.at(1).get<int64_t>(), s.at(2).get<int64_t>(),
                             s.at(3).get<int64_t>(), s.at(4).get<int64_t>()});
  }
  return atom;
}

}  // namespace

nlohmann::ordered_json to_json(const StepPlan& plan) {
  nlohmann::ordered_json object;
  object["policy"] = policy_to_json(plan.policy);
  for (const char* list : {"batches", "microbatches", "actions"}) object[list] = nlohmann::ordered_json::array();
  for (const BatchShape& batch : plan.batches) {
    object["batches"].push_back({{"job", batch.job},
                                 {"step", batch.step},
                                 {"row_lengths", batch.row_lengths},
                                 {"lowest_layer", batch.lowest_layer}});
  }
  for (const Microbatch& microbatch : plan.microbatches) {
    nlohmann::ordered_json atoms = nlohmann::ordered_json::array();
    for (const Atom& atom : microbatch.atoms) atoms.push_back(atom_to_json(atom));
    object["microbatches"].push_back(std::move(atoms));
  }
  for (const Action& action : plan.actions) object["actions"].push_back(to_json(action));
  return object;
}

StepPlan step_plan_from_json(const nlohmann::json& object) {
  try {
    StepPlan plan{.policy = policy_from_json(object.at("policy"))};
    for (const nlohmann::json& batch : object.at("batches")) {
      plan.batches.push_back({.job = batch.at("job").get<int32_t>(),
                              .step = batch.at("step").get<int64_t>(),
                              .row_lengths = batch.at("row_lengths").get<std::vector<int64_t>>(),
                              .lowest_layer = batch.at("lowest_layer").get<int64_t>()});
    }
    for (const nlohmann::json& atoms : object.at("microbatches")) {
      Microbatch& microbatch = plan.microbatches.emplace_back();
      for (const nlohmann::json& atom : atoms) microbatch.atoms.push_back(atom_from_json(atom));
    }
    for (const nlohmann::json& action : object.at("actions")) plan.actions.push_back(action_from_json(action));
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("step plan: {}", json_reason(error));
  }
}

}  // namespace cotune
