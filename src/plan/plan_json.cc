#include "plan/plan_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"

namespace cotune {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

OrderedJson to_json(const StageMemory& memory) {
  return {{"weights", memory.weights},
          {"adapters", memory.adapters},
          {"activations", memory.activations},
          {"workspace", memory.workspace}};
}

OrderedJson to_json(const PlannedStage& stage) {
  OrderedJson devices = OrderedJson::array();
  for (const PlannedDevice& device : stage.devices) {
    devices.push_back(OrderedJson::array({device.nodes, device.node, device.device}));
  }
  OrderedJson layers = OrderedJson::array();
  for (const StageShape& run : stage.chunks()) {
    layers.push_back(run.first_layer);
    layers.push_back(run.last_layer);
  }
  return {{"layers", std::move(layers)},
          {"embedding", stage.shape.has_embedding},
          {"head", stage.chunks().back().has_head},
          {"devices", std::move(devices)},
          {"busy_s", stage.busy_s},
          {"memory", to_json(stage.memory)}};
}

OrderedJson to_json(const PlannedReplica& replica, size_t job_count) {
  OrderedJson stages = OrderedJson::array();
  std::vector<std::vector<int64_t>> rows(job_count);
  for (const StepRow& row : replica.rows) rows[static_cast<size_t>(row.job)].push_back(row.tokens);
  for (const PlannedStage& stage : replica.stages) stages.push_back(to_json(stage));
  return {{"tensor_parallel", replica.tensor_parallel},
          {"sequence_parallel", replica.is_sequence_parallel},
          {"token_budget", replica.token_budget},
          {"longest_row", replica.longest_row},
          {"shards", replica.shards},
          {"least_microbatches", replica.least_microbatches},
          {"stages", std::move(stages)},
          {"hybrid_tasks", replica.hybrid_tasks},
          {"buckets", replica.buckets},
          {"rows", std::move(rows)},
          {"microbatches", replica.microbatches},
          {"tokens", replica.tokens},
          {"processed_tokens", replica.processed_tokens},
          {"seconds", replica.seconds},
          {"bubble", replica.bubble},
          {"backward_ratio", replica.backward_ratio}};
}

/// A value with its place in the file: every access is checked.
class Place {
 public:
  Place(const Json& value, std::string file, std::string field)
      : value_(value), file_(std::move(file)), field_(std::move(field)) {}

  /// The members of an object with exactly these keys.
  void expect_keys(std::initializer_list<const char*> keys) const {
    if (!value_.is_object()) refuse("an object");
    const std::set<std::string> accepted(keys.begin(), keys.end());
    for (const auto& [key, value] : value_.items()) {
      if (!accepted.contains(key)) {
        throw_user_error("{}: {}: unknown key; accepted: {}", file_, path_of(key), fmt::join(keys, ", "));
      }
    }
    for (const char* key : keys) {
      if (!value_.contains(key)) throw_user_error("{}: {}: is missing", file_, path_of(key));
    }
  }

  Place at(const char* key) const { return {value_.at(key), file_, path_of(key)}; }

  std::vector<Place> items(size_t least) const {
    if (!value_.is_array() || value_.size() < least)
      refuse(least > 0 ? "a list that is not empty" : "a list");
    std::vector<Place> places;
    for (const Json& item : value_)
      places.emplace_back(item, file_, fmt::format("{}[{}]", field_, places.size()));
    return places;
  }

  int64_t whole(int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const bool is_whole = value_.is_number_unsigned()
                              ? value_.get<uint64_t>() <= std::numeric_limits<int64_t>::max()
                              : value_.is_number_integer();
    if (!is_whole || value_.get<int64_t>() < least || value_.get<int64_t>() > most) {
      refuse(most == std::numeric_limits<int64_t>::max()
                 ? fmt::format("a whole number of at least {}", least)
                 : fmt::format("a whole number from {} to {}", least, most));
    }
    return value_.get<int64_t>();
  }

  double number(double most = std::numeric_limits<double>::infinity()) const {
    if (!value_.is_number() || !std::isfinite(value_.get<double>()) || value_.get<double>() < 0 ||
        value_.get<double>() > most) {
      refuse(std::isfinite(most) ? fmt::format("a number from 0 to {}", most) : "a number of at least 0");
    }
    return value_.get<double>();
  }

  bool is_null() const { return value_.is_null(); }

  bool truth() const {
    if (!value_.is_boolean()) refuse("true or false");
    return value_.get<bool>();
  }

  std::string text() const {
    if (!value_.is_string()) refuse("a text");
    return value_.get<std::string>();
  }

  template <typename Enum>
  Enum name() const {
    for (size_t i = 0; i < enum_names<Enum>.size(); ++i) {
      if (value_.is_string() && value_.get<std::string>() == enum_names<Enum>[i]) return static_cast<Enum>(i);
    }
    refuse(fmt::format("one of {}", fmt::join(enum_names<Enum>, ", ")));
  }

  /// One of these texts.
  std::string one_of(const std::vector<std::string>& accepted) const {
    if (!value_.is_string() || std::find(accepted.begin(), accepted.end(), value_.get<std::string>()) == accepted.end()) {
      refuse(fmt::format("one of {}", fmt::join(accepted, ", ")));
    }
    return value_.get<std::string>();
  }

  /// Lists of indices below `count`, each index at most once over all lists.
  std::vector<std::vector<int32_t>> groups(size_t count) const {
    std::vector<std::vector<int32_t>> result;
    std::set<int64_t> seen;
    for (const Place& group : items(0)) {
      auto& members = result.emplace_back();
      for (const Place& member : group.items(1)) {
        const int64_t index = member.whole(0, static_cast<int64_t>(count) - 1);
        if (!seen.insert(index).second) member.refuse("an index that stands nowhere else");
        members.push_back(static_cast<int32_t>(index));
      }
    }
    return result;
  }

  [[noreturn]] void refuse(const std::string& accepted) const {
    std::string found = value_.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    throw_user_error("{}: {}: must be {}, got {}", file_, field_.empty() ? "plan" : field_, accepted, found);
  }

 private:
  std::string path_of(const std::string& key) const { return field_.empty() ? key : field_ + "." + key; }

  const Json& value_;
  std::string file_, field_;
};

StageMemory memory_from(const Place& place) {
  place.expect_keys({"weights", "adapters", "activations", "workspace"});
  return {.weights = place.at("weights").whole(0),
          .adapters = place.at("adapters").whole(0),
          .activations = place.at("activations").whole(0),
          .workspace = place.at("workspace").whole(0)};
}

PlannedDevice device_from(const Place& place) {
  const std::vector<Place> parts = place.items(0);
  if (parts.size() != 3) place.refuse("[name of the nodes, node, device]");
  return {.nodes = parts[0].text(), .node = parts[1].whole(0), .device = parts[2].whole(0)};
}

/// Its layers are read by read_layers.
PlannedStage stage_from(const Place& place, int64_t tensor_parallel, bool is_first, bool is_last) {
  place.expect_keys({"layers", "embedding", "head", "devices", "busy_s", "memory"});
  PlannedStage stage;
  if (place.at("embedding").truth() != is_first) place.at("embedding").refuse("true on the first stage and nowhere else");
  if (place.at("head").truth() != is_last) place.at("head").refuse("true on the last stage and nowhere else");
  for (const Place& device : place.at("devices").items(1)) stage.devices.push_back(device_from(device));
  if (static_cast<int64_t>(stage.devices.size()) != tensor_parallel) {
    place.at("devices").refuse(
        fmt::format("a list of {} devices, one per tensor-parallel rank", tensor_parallel));
  }
  stage.busy_s = place.at("busy_s").number();
  stage.memory = memory_from(place.at("memory"));
  return stage;
}

/// Runs of layers from the embedding to the head, each stage's first, then each stage's second, and so on.
void read_layers(const std::vector<Place>& stages, PlannedReplica& replica) {
  std::vector<std::vector<Place>> layers;
  for (const Place& stage : stages) layers.push_back(stage.at("layers").items(0));
  const size_t numbers = layers.front().size();
  if (numbers < 2 || numbers % 2 != 0) {
    stages.front().at("layers").refuse("[first layer, one past the last], and the same again for every further run of layers");
  }
  int64_t next = 0;
  for (size_t n = 0; n < numbers; n += 2) {
    for (size_t s = 0; s < stages.size(); ++s) {
      if (layers[s].size() != numbers) stages[s].at("layers").refuse(fmt::format("a list of {} numbers, as on the first stage", numbers));
      const StageShape run{.first_layer = layers[s][n].whole(next, next),
                           .last_layer = layers[s][n + 1].whole(next + 1),
                           .has_embedding = n == 0 && s == 0,
                           .has_head = n + 2 == numbers && s + 1 == stages.size(),
                           .tensor_parallel = replica.tensor_parallel,
                           .is_sequence_parallel = replica.is_sequence_parallel};
      next = run.last_layer;
      if (n == 0) {
        replica.stages[s].shape = run;
      } else {
        replica.stages[s].further.push_back(run);
      }
    }
  }
}

/// No model's context is longer, by far.
constexpr int64_t longest_row = int64_t{1} << 24;

std::vector<StepRow> rows_from(const Place& place, size_t job_count) {
  const std::vector<Place> of_jobs = place.items(0);
  if (of_jobs.size() != job_count) place.refuse(fmt::format("a list of {} lists of lengths, one for every job", job_count));
  std::vector<StepRow> rows;
  for (size_t job = 0; job < job_count; ++job) {
    int64_t least = 1;
    for (const Place& row : of_jobs[job].items(0)) {
      least = row.whole(least, longest_row);
      rows.push_back({static_cast<int32_t>(job), least});
    }
  }
  return rows;
}

PlannedReplica replica_from(const Place& place, size_t job_count) {
  place.expect_keys({"tensor_parallel", "sequence_parallel", "token_budget", "longest_row", "shards", "least_microbatches", "stages", "hybrid_tasks",
                     "buckets", "rows", "microbatches", "tokens", "processed_tokens", "seconds", "bubble", "backward_ratio"});
  PlannedReplica replica;
  replica.tensor_parallel = place.at("tensor_parallel").whole(1, 1 << 20);
  replica.is_sequence_parallel = place.at("sequence_parallel").truth();
  if (replica.is_sequence_parallel && replica.tensor_parallel == 1) place.at("sequence_parallel").refuse("false where tensor_parallel is 1");
  replica.token_budget = place.at("token_budget").whole(1);
  replica.longest_row = place.at("longest_row").whole(1);
  replica.shards = place.at("shards").whole(1);
  replica.least_microbatches = place.at("least_microbatches").whole(1);
  const std::vector<Place> stages = place.at("stages").items(1);
  for (size_t s = 0; s < stages.size(); ++s) {
    replica.stages.push_back(stage_from(stages[s], replica.tensor_parallel, s == 0, s + 1 == stages.size()));
  }
  read_layers(stages, replica);
  replica.hybrid_tasks = place.at("hybrid_tasks").groups(job_count);
  replica.buckets = place.at("buckets").groups(replica.hybrid_tasks.size());
  replica.rows = rows_from(place.at("rows"), job_count);
  replica.microbatches = place.at("microbatches").whole(0);
  replica.tokens = place.at("tokens").whole(0);
  replica.processed_tokens = place.at("processed_tokens").whole(0);
  replica.seconds = place.at("seconds").number();
  replica.bubble = place.at("bubble").number(1);
  for (const Place& ratio : place.at("backward_ratio").items(0)) replica.backward_ratio.push_back(ratio.number());
  return replica;
}

/// Copies that share weights stand in a row, as many as they say, of one shape.
void check_shards(const Place& place, const std::vector<PlannedReplica>& replicas) {
  const std::vector<Place> places = place.items(1);
  for (size_t first = 0; first < replicas.size(); first += static_cast<size_t>(replicas[first].shards)) {
    const auto shards = static_cast<size_t>(replicas[first].shards);
    for (size_t r = first; r < first + shards; ++r) {
      const bool is_like = r < replicas.size() && replicas[r].shards == replicas[first].shards &&
                           replicas[r].tensor_parallel == replicas[first].tensor_parallel &&
                           replicas[r].is_sequence_parallel == replicas[first].is_sequence_parallel &&
                           replicas[r].stages.size() == replicas[first].stages.size();
      if (!is_like) {
        places[first].at("shards").refuse(fmt::format("as many as the like replicas in a row from here, {}", r - first));
      }
    }
  }
}

/// No device is that of two ranks.
void check_devices(const Place& place, const std::vector<PlannedReplica>& replicas) {
  std::set<std::tuple<std::string, int64_t, int64_t>> seen;
  const std::vector<Place> places = place.items(1);
  for (size_t r = 0; r < replicas.size(); ++r) {
    const std::vector<Place> stages = places[r].at("stages").items(1);
    for (size_t s = 0; s < stages.size(); ++s) {
      const std::vector<Place> devices = stages[s].at("devices").items(1);
      for (size_t d = 0; d < devices.size(); ++d) {
        const PlannedDevice& device = replicas[r].stages[s].devices[d];
        if (!seen.emplace(device.nodes, device.node, device.device).second) devices[d].refuse("a device that stands nowhere else");
      }
    }
  }
}

/// Under sharing hybrid every job that has rows on a replica is in one of its hybrid tasks.
void check_tasks(const Place& place, const Plan& plan) {
  const std::vector<Place> places = place.items(1);
  for (size_t r = 0; r < plan.replicas.size() && plan.sharing == Sharing::hybrid; ++r) {
    std::set<int32_t> jobs;
    for (const std::vector<int32_t>& task : plan.replicas[r].hybrid_tasks) jobs.insert(task.begin(), task.end());
    for (const StepRow& row : plan.replicas[r].rows) {
      if (jobs.contains(row.job)) continue;
      places[r].at("hybrid_tasks").refuse(fmt::format("tasks of every job that has rows here, {} (`{}`) among them", row.job,
                                                      plan.jobs[static_cast<size_t>(row.job)]));
    }
  }
}

PredictedStep step_from(const Place& place) {
  place.expect_keys({"seconds", "exchange_s", "tokens", "processed_tokens", "device_seconds", "bubble",
                     "idle", "fullest_bytes", "cost"});
  return {.seconds = place.at("seconds").number(),
          .exchange_s = place.at("exchange_s").number(),
          .tokens = place.at("tokens").whole(0),
          .processed_tokens = place.at("processed_tokens").whole(0),
          .device_seconds = place.at("device_seconds").number(),
          .bubble = place.at("bubble").number(1),
          .idle = place.at("idle").number(1),
          .fullest_bytes = place.at("fullest_bytes").whole(0),
          .cost = place.at("cost").is_null() ? 0 : place.at("cost").number()};
}

}  // namespace

OrderedJson to_json(const PredictedStep& step) {
  return {{"seconds", step.seconds},
          {"exchange_s", step.exchange_s},
          {"tokens", step.tokens},
          {"processed_tokens", step.processed_tokens},
          {"device_seconds", step.device_seconds},
          {"bubble", step.bubble},
          {"idle", step.idle},
          {"fullest_bytes", step.fullest_bytes},
          {"cost", step.cost > 0 ? OrderedJson(step.cost) : OrderedJson(nullptr)}};
}

OrderedJson to_json(const Plan& plan) {
  OrderedJson replicas = OrderedJson::array();
  for (const PlannedReplica& replica : plan.replicas) replicas.push_back(to_json(replica, plan.jobs.size()));
  return {{"cotune_plan", plan.format},
          {"planner", plan.planner},
          {"model", plan.model_hash},
          {"cluster", plan.cluster_hash},
          {"profile", plan.profile_hash},
          {"dtype", plan.dtype},
          {"jobs", plan.jobs},
          {"deployment", name_of(plan.deployment)},
          {"sharing", name_of(plan.sharing)},
          {"layout", name_of(plan.layout)},
          {"chunk_size", plan.chunk_size},
          {"order", name_of(plan.order)},
          {"recompute", name_of(plan.recompute)},
          {"replicas", std::move(replicas)},
          {"predicted", to_json(plan.predicted)}};
}

Plan plan_from_json(std::string_view text, const std::string& file_name) {
  const Json document = json_of_file(text, file_name);
  const Place place(document, file_name, "");
  if (document.is_object() && document.contains("cotune_plan")) place.at("cotune_plan").whole(1, 1);
  place.expect_keys({"cotune_plan", "planner", "model", "cluster", "profile", "dtype", "jobs", "deployment",
                     "sharing", "layout", "chunk_size", "order", "recompute", "replicas", "predicted"});
  Plan plan;
  plan.planner = place.at("planner").text();
  plan.model_hash = place.at("model").text();
  plan.cluster_hash = place.at("cluster").text();
  plan.profile_hash = place.at("profile").text();
  plan.dtype = place.at("dtype").one_of({"bfloat16", "float32", "float64"});
  std::set<std::string> names;
  for (const Place& job : place.at("jobs").items(1)) {
    plan.jobs.push_back(job.text());
    if (!names.insert(plan.jobs.back()).second) job.refuse("a name that stands nowhere else");
  }
  plan.deployment = place.at("deployment").name<System>();
  plan.sharing = place.at("sharing").name<Sharing>();
  plan.layout = place.at("layout").name<Layout>();
  plan.chunk_size = place.at("chunk_size").whole(1);
  plan.order = place.at("order").name<PipelineOrder>();
  plan.recompute = place.at("recompute").name<Recompute>();
  for (const Place& replica : place.at("replicas").items(1))
    plan.replicas.push_back(replica_from(replica, plan.jobs.size()));
  check_shards(place.at("replicas"), plan.replicas);
  check_devices(place.at("replicas"), plan.replicas);
  check_tasks(place.at("replicas"), plan);
  plan.predicted = step_from(place.at("predicted"));
  return plan;
}

Plan read_plan(const std::string& file) {
  return plan_from_json(read_file(file), file);
}

}  // namespace cotune
