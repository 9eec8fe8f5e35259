#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "jobs/enum_names.h"
#include "schedule/profile.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t version = 1;
constexpr int64_t most = int64_t{1} << 53;  // what JSON's numbers hold exactly
constexpr int64_t most_tokens = 1 << 20, most_width = 1 << 16, most_layers = 10'000;  // of a row, an adapter, a model
constexpr int64_t most_ranks = 1 << 20;
constexpr const char* version_key = "cotune_profile";

Json shape_json(const ProfiledShape& shape) {
  Json jobs = Json::array();
  for (const ProfiledJob& job : shape.jobs) {
    Json projections = Json::array();
    for (const Projection projection : job.projections) projections.push_back(projection_name(projection));
    jobs.push_back({{"method", name_of(job.method)},
                    {"width", job.width},
                    {"density", job.density},
                    {"dropout", job.dropout},
                    {"projections", std::move(projections)},
                    {"row_lengths", job.row_lengths}});
  }
  return {{"jobs", std::move(jobs)}, {"labelled_share", shape.labelled_share}, {"token_budget", shape.token_budget}};
}

/// A JSON value with its place, for messages.
class Value {
 public:
  Value(const nlohmann::json& json, std::string place) : json_(json), place_(std::move(place)) {}

  [[noreturn]] void refuse(const char* accepted) const {
    throw_user_error("{}: must be {}, got {}", place_, accepted, json_.dump().substr(0, 80));
  }
  Value at(const std::string& key) const {
    if (!json_.is_object()) refuse("an object");
    const auto found = json_.find(key);
    if (found == json_.end()) throw_user_error("{}.{}: is missing", place_, key);
    return {*found, place_ + "." + key};
  }
  int64_t integer(int64_t least, int64_t greatest = most) const {
    if (!json_.is_number_integer() || json_ > greatest || json_ < least) {
      refuse(fmt::format("an integer from {} to {}", least, greatest).c_str());
    }
    return json_.get<int64_t>();
  }
  double number(double greatest) const {
    if (!json_.is_number() || !(json_.get<double>() >= 0 && json_.get<double>() <= greatest)) {
      refuse(fmt::format("a number from 0 to {:g}", greatest).c_str());
    }
    return json_.get<double>();
  }
  std::string text() const {
    if (!json_.is_string()) refuse("a string");
    return json_.get<std::string>();
  }
  std::vector<Value> list() const {
    if (!json_.is_array()) refuse("a list");
    std::vector<Value> values;
    for (size_t i = 0; i < json_.size(); ++i) values.emplace_back(json_[i], fmt::format("{}[{}]", place_, i));
    return values;
  }
  std::vector<std::pair<std::string, Value>> members() const {
    if (!json_.is_object()) refuse("an object");
    std::vector<std::pair<std::string, Value>> values;
    for (const auto& [key, value] : json_.items()) values.emplace_back(key, Value(value, place_ + "." + key));
    return values;
  }
  /// The place of this text among names.
  template <typename Names>
  size_t one_of(const Names& names) const {
    for (size_t i = 0; i < names.size(); ++i) {
      if (json_ == names[i]) return i;
    }
    refuse(fmt::format("one of {}", fmt::join(names, ", ")).c_str());
  }

 private:
  const nlohmann::json& json_;
  std::string place_;
};

ProfiledShape shape_of(const Value& value) {
  ProfiledShape shape{.labelled_share = value.at("labelled_share").number(1),
                      .token_budget = value.at("token_budget").integer(atom_tokens, most_tokens)};
  for (const Value& each : value.at("jobs").list()) {
    ProfiledJob job{.method = static_cast<AdapterMethod>(each.at("method").one_of(enum_names<AdapterMethod>)),
                    .width = each.at("width").integer(0, most_width),
                    .density = each.at("density").number(1),
                    .dropout = each.at("dropout").number(1)};
    for (const Value& name : each.at("projections").list()) {
      job.projections.push_back(static_cast<Projection>(name.one_of(projection_names)));
    }
    for (const Value& length : each.at("row_lengths").list()) job.row_lengths.push_back(length.integer(1, most_tokens));
    if (job.projections.empty() || job.row_lengths.empty()) each.refuse("a job with projections and rows");
    shape.jobs.push_back(std::move(job));
  }
  if (shape.jobs.empty()) value.refuse("a shape with jobs");
  return shape;
}

ProfiledTime time_of(const Value& value, size_t shape_count) {
  const Value shape = value.at("shape");
  ProfiledTime time{.shape = shape.integer(0),
                    .calls = value.at("calls").integer(1),
                    .median = value.at("median_s").number(1e9),
                    .spread = value.at("spread").number(1e9),
                    .count = value.at("count").integer(1)};
  if (static_cast<size_t>(time.shape) >= shape_count) shape.refuse("the number of a shape");
  return time;
}

ProfiledCollective collective_of(const Value& value) {
  ProfiledCollective collective{.kind = static_cast<CollectiveKind>(value.at("kind").one_of(collective_names)),
                                .ranks = value.at("ranks").integer(2, most_ranks),
                                .bytes = value.at("bytes").integer(1),
                                .median = value.at("median_s").number(1e9),
                                .spread = value.at("spread").number(1e9),
                                .count = value.at("count").integer(1)};
  if (collective.kind == CollectiveKind::message && collective.ranks != 2) value.at("ranks").refuse("2 for a message");
  return collective;
}

}  // namespace

std::string to_json(const Profile& profile) {
  const ProfileFingerprint& f = profile.fingerprint;
  Json json;
  json[version_key] = version;
  json["fingerprint"] = {{"device", f.device},   {"kernels", f.kernels}, {"libraries", f.libraries},
                         {"model", f.model},     {"dtype", f.dtype},     {"threads", f.threads},
                         {"ranks", f.ranks},     {"tensor_parallel", f.tensor_parallel}};
  json["layer_count"] = profile.layer_count;
  json["process_bytes"] = profile.process_bytes;
  json["shapes"] = Json::array();
  for (const ProfiledShape& shape : profile.shapes) json["shapes"].push_back(shape_json(shape));
  json["operators"] = Json::object();
  for (const auto& [name, times] : profile.operators) {
    Json& list = json["operators"][name] = Json::array();
    for (const ProfiledTime& time : times) {
      list.push_back({{"shape", time.shape},
                      {"calls", time.calls},
                      {"median_s", time.median},
                      {"spread", time.spread},
                      {"count", time.count}});
    }
  }
  json["collectives"] = Json::array();
  for (const ProfiledCollective& each : profile.collectives) {
    json["collectives"].push_back({{"kind", collective_names[static_cast<size_t>(each.kind)]},
                                   {"ranks", each.ranks},
                                   {"bytes", each.bytes},
                                   {"median_s", each.median},
                                   {"spread", each.spread},
                                   {"count", each.count}});
  }
  return json.dump(1) + "\n";
}

Profile parse_profile(const std::string& text, const std::string& file_name) {
  const nlohmann::json json = json_of_file(text, file_name);
  if (!json.is_object() || json.find(version_key) == json.end()) {
    throw_user_error("{}: is not a profile: must be an object with `{}`, which `cotune profile` writes, got {}", file_name, version_key,
                     json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 60));
  }
  const Value root(json, file_name + ": profile");
  if (root.at(version_key).integer(0) != version) root.at(version_key).refuse("1");
  Profile profile;
  const Value f = root.at("fingerprint");
  profile.fingerprint = {.device = f.at("device").text(),
                         .kernels = f.at("kernels").text(),
                         .libraries = f.at("libraries").text(),
                         .model = f.at("model").text(),
                         .dtype = f.at("dtype").text(),
                         .threads = f.at("threads").integer(1),
                         .ranks = f.at("ranks").integer(1),
                         .tensor_parallel = f.at("tensor_parallel").integer(1)};
  profile.layer_count = root.at("layer_count").integer(1, most_layers);
  profile.process_bytes = root.at("process_bytes").integer(0);
  for (const Value& shape : root.at("shapes").list()) profile.shapes.push_back(shape_of(shape));
  for (const auto& [name, times] : root.at("operators").members()) {
    for (const Value& time : times.list()) {
      profile.operators[name].push_back(time_of(time, profile.shapes.size()));
    }
  }
  if (json.contains("collectives")) {
    for (const Value& each : root.at("collectives").list()) profile.collectives.push_back(collective_of(each));
  }
  return profile;
}

Profile read_profile(const std::filesystem::path& file) { return parse_profile(read_file(file), file.string()); }

}  // namespace cotune
