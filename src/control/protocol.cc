#include "control/protocol.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_mistake.h"
#include "base/json_text.h"

namespace cotune {
namespace {

using Json = nlohmann::json;                 // read: finds fields fast, however many there are
using OrderedJson = nlohmann::ordered_json;  // written

constexpr std::array<std::string_view, 9> action_names = {"status", "list",   "view",     "add",  "cancel",
                                                          "pause",  "resume", "priority", "drain"};
constexpr std::array<std::string_view, 7> code_names = {"bad_request", "too_long", "unknown_job", "conflict",
                                                        "refused",     "ended",    "failed"};
constexpr size_t longest_id = 200;

/// What was found, for a message: short, on one line.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr size_t most = 60;
  if (text.size() > most) text = text.substr(0, most) + "…";
  return text;
}

/// Reads the fields of one object, and knows which of them nobody asked for.
class Fields {
 public:
  /// fail: throws with the text.
  template <typename Fail>
  Fields(const Json& object, Fail fail) : object_(object), fail_(std::move(fail)) {
    if (!object_.is_object()) fail_(fmt::format("must be a JSON object, got {}", shown(object_)));
  }

  std::string text(const char* name) {
    const Json& value = at(name);
    if (!value.is_string()) fail_(fmt::format("`{}` must be a text, got {}", name, shown(value)));
    return value.get<std::string>();
  }
  std::string text_or_none(const char* name) { return present(name) ? text(name) : ""; }

  int64_t whole(const char* name, int64_t low, int64_t high) {
    const Json& value = at(name);
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(high)
                                                 : value.is_number_integer() && value.get<int64_t>() <= high;
    if (!fits || value.get<int64_t>() < low) {
      fail_(fmt::format("`{}` must be a whole number from {} to {}, got {}", name, low, high, shown(value)));
    }
    return value.get<int64_t>();
  }

  bool truth(const char* name) {
    const Json& value = at(name);
    if (!value.is_boolean()) fail_(fmt::format("`{}` must be true or false, got {}", name, shown(value)));
    return value.get<bool>();
  }

  /// null: not a number.
  double number(const char* name) {
    const Json& value = at(name);
    if (value.is_null()) return JobReport::unknown;
    if (!value.is_number()) fail_(fmt::format("`{}` must be a number or null, got {}", name, shown(value)));
    return value.get<double>();
  }

  std::vector<std::string> texts(const char* name) {
    std::vector<std::string> result;
    for (const Json& value : list(name)) {
      if (!value.is_string()) fail_(fmt::format("`{}` must be a list of texts, got {} in it", name, shown(value)));
      result.push_back(value.get<std::string>());
    }
    return result;
  }

  const Json& list(const char* name) {
    const Json& value = at(name);
    if (!value.is_array()) fail_(fmt::format("`{}` must be a list, got {}", name, shown(value)));
    return value;
  }

  const Json& at(const char* name) {
    known_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) fail_(fmt::format("`{}` is missing", name));
    return *found;
  }

  /// Whether it is there, and not null.
  bool present(const char* name) {
    known_.insert(name);
    return object_.contains(name) && !object_.at(name).is_null();
  }

  void refuse_others() const {
    for (const auto& item : object_.items()) {
      if (known_.contains(item.key())) continue;
      fail_(fmt::format("`{}` is no field of this; accepted: {}", Json(item.key()).dump(-1, ' ', true), fmt::join(known_, ", ")));
    }
  }

 private:
  const Json& object_;
  std::function<void(const std::string&)> fail_;
  std::set<std::string> known_;
};

template <size_t count>
std::optional<size_t> place_of(const std::array<std::string_view, count>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<size_t>(found - names.begin());
}

/// The id of a request as JSON, where it has one that may stand in a reply.
std::string id_in(const Json& json) {
  if (!json.is_object() || !json.contains("id")) return "";
  const Json& id = json.at("id");
  if (!id.is_string() && !id.is_number_integer()) return "";
  const std::string text = text_of_json(id);
  return text.size() <= longest_id ? text : "";
}

/// Brackets that are open at once, outside of texts.
size_t deepest_nesting(std::string_view line) {
  size_t depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

/// Values within values are few in this protocol; the library's recursion would follow any depth.
template <typename Fail>
Json parse_json(std::string_view line, Fail fail) {
  constexpr size_t most = 16;
  if (deepest_nesting(line) > most) fail(fmt::format("is nested more than {} deep", most));
  return Json::parse(line.begin(), line.end());
}

OrderedJson text_or_null(const std::string& text) { return text.empty() ? OrderedJson(nullptr) : OrderedJson(text); }

OrderedJson to_json(const JobReport& job) {
  return {{"name", job.name},
          {"tenant", text_or_null(job.tenant)},
          {"sweep", text_or_null(job.sweep)},
          {"by_accuracy", job.by_accuracy},
          {"status", job.status},
          {"priority", job.priority},
          {"deadline", text_or_null(job.deadline)},
          {"added", job.added},
          {"step", job.step},
          {"steps", job.steps},
          {"loss", number_or_null<OrderedJson>(job.loss)},
          {"eval_loss", number_or_null<OrderedJson>(job.eval_loss)},
          {"eval_accuracy", number_or_null<OrderedJson>(job.eval_accuracy)},
          {"result_loss", number_or_null<OrderedJson>(job.result_loss)},
          {"result_accuracy", number_or_null<OrderedJson>(job.result_accuracy)},
          {"tokens_per_second", number_or_null<OrderedJson>(job.tokens_per_second)},
          {"seconds_left", number_or_null<OrderedJson>(job.seconds_left)},
          {"reason", job.reason},
          {"checkpoint", text_or_null(job.checkpoint)},
          {"adapter", text_or_null(job.adapter)}};
}

constexpr int64_t any_whole = std::numeric_limits<int64_t>::max();

template <typename Fail>
JobReport job_from(const Json& json, Fail fail) {
  Fields fields(json, fail);
  JobReport job;
  job.name = fields.text("name");
  job.tenant = fields.text_or_none("tenant");
  job.sweep = fields.text_or_none("sweep");
  job.by_accuracy = fields.truth("by_accuracy");
  job.status = fields.text("status");
  job.priority = fields.whole("priority", -most_priority, most_priority);
  job.deadline = fields.text_or_none("deadline");
  job.added = fields.truth("added");
  job.step = fields.whole("step", 0, any_whole);
  job.steps = fields.whole("steps", 0, any_whole);
  job.loss = fields.number("loss");
  job.eval_loss = fields.number("eval_loss");
  job.eval_accuracy = fields.number("eval_accuracy");
  if (fields.present("result_loss")) job.result_loss = fields.number("result_loss");
  if (fields.present("result_accuracy")) job.result_accuracy = fields.number("result_accuracy");
  job.tokens_per_second = fields.number("tokens_per_second");
  job.seconds_left = fields.number("seconds_left");
  job.reason = fields.text("reason");
  job.checkpoint = fields.text_or_none("checkpoint");
  job.adapter = fields.text_or_none("adapter");
  return job;
}

OrderedJson to_json(const RunReport& run) {
  return {{"pid", run.pid},
          {"folder", run.folder},
          {"phase", run.phase},
          {"stay", run.stay},
          {"emulated", run.emulated},
          {"rounds", run.rounds},
          {"seconds", number_or_null<OrderedJson>(run.seconds)},
          {"jobs", run.jobs}};
}

template <typename Fail>
RunReport run_from(const Json& json, Fail fail) {
  Fields fields(json, fail);
  RunReport run;
  run.pid = fields.whole("pid", 0, any_whole);
  run.folder = fields.text("folder");
  run.phase = fields.text("phase");
  run.stay = fields.truth("stay");
  if (fields.present("emulated")) run.emulated = fields.truth("emulated");
  run.rounds = fields.whole("rounds", 0, any_whole);
  run.seconds = fields.number("seconds");
  const Json& jobs = fields.at("jobs");
  Fields counts(jobs, fail);
  for (const auto& item : jobs.items()) run.jobs[item.key()] = counts.whole(item.key().c_str(), 0, any_whole);
  return run;
}

OrderedJson to_json(const JobView& job) {
  OrderedJson json = to_json(job.report);
  json["learning_rate"] = number_or_null<OrderedJson>(job.learning_rate);
  json["losses"] = OrderedJson::array();
  for (const double loss : job.losses) json["losses"].push_back(number_or_null<OrderedJson>(loss));
  return json;
}

template <typename Fail>
JobView job_view_from(const Json& json, Fail fail) {
  JobView job{.report = job_from(json, fail)};
  Fields fields(json, fail);
  job.learning_rate = fields.number("learning_rate");
  for (const Json& loss : fields.list("losses")) {
    if (!loss.is_number() && !loss.is_null()) fail(fmt::format("`losses` must be a list of numbers, got {} in it", shown(loss)));
    job.losses.push_back(loss.is_null() ? JobReport::unknown : loss.get<double>());
  }
  return job;
}

OrderedJson to_json(const RankView& rank) {
  return {{"host", rank.host},
          {"layers", rank.layers},
          {"replica", rank.replica},
          {"part", rank.part},
          {"parts", rank.parts},
          {"busy", number_or_null<OrderedJson>(rank.busy)},
          {"exposed", number_or_null<OrderedJson>(rank.exposed)},
          {"bubble", number_or_null<OrderedJson>(rank.bubble)}};
}

template <typename Fail>
RankView rank_from(const Json& json, Fail fail) {
  Fields fields(json, fail);
  RankView rank{.host = fields.text("host"),
                .layers = {},
                .replica = fields.whole("replica", 0, any_whole),
                .part = fields.whole("part", 0, any_whole),
                .parts = fields.whole("parts", 1, any_whole),
                .busy = fields.number("busy"),
                .exposed = fields.number("exposed"),
                .bubble = fields.number("bubble")};
  for (const Json& layers : fields.list("layers")) {
    const auto is_layer = [](const Json& value) { return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{any_whole}; };
    if (!layers.is_array() || layers.size() != 2 || !is_layer(layers[0]) || !is_layer(layers[1])) {
      fail(fmt::format("`layers` must be a list of pairs of layers, got {} in it", shown(layers)));
    }
    rank.layers.emplace_back(layers[0].get<int64_t>(), layers[1].get<int64_t>());
  }
  return rank;
}

OrderedJson to_json(const RunView& view) {
  OrderedJson ranks = OrderedJson::array();
  for (const RankView& rank : view.ranks) ranks.push_back(to_json(rank));
  OrderedJson jobs = OrderedJson::array();
  for (const JobView& job : view.jobs) jobs.push_back(to_json(job));
  return {{"run", to_json(view.run)},
          {"jobs", std::move(jobs)},
          {"memory",
           {{"device", view.memory.device},
            {"used_bytes", view.memory.used_bytes},
            {"peak_bytes", view.memory.peak_bytes},
            {"limit_bytes", view.memory.limit_bytes}}},
          {"ranks", std::move(ranks)},
          {"events", view.events},
          {"tokens_per_second", number_or_null<OrderedJson>(view.tokens_per_second)},
          {"seconds_left", number_or_null<OrderedJson>(view.seconds_left)}};
}

template <typename Fail>
RunView view_from(const Json& json, Fail fail) {
  Fields fields(json, fail);
  RunView view{.run = run_from(fields.at("run"), fail)};
  for (const Json& job : fields.list("jobs")) view.jobs.push_back(job_view_from(job, fail));
  Fields memory(fields.at("memory"), fail);
  view.memory = {.device = memory.text("device"),
                 .used_bytes = memory.whole("used_bytes", 0, any_whole),
                 .peak_bytes = memory.whole("peak_bytes", 0, any_whole),
                 .limit_bytes = memory.whole("limit_bytes", 0, any_whole)};
  if (fields.present("ranks")) {
    for (const Json& rank : fields.list("ranks")) view.ranks.push_back(rank_from(rank, fail));
  }
  if (fields.present("events")) view.events = fields.texts("events");
  view.tokens_per_second = fields.number("tokens_per_second");
  view.seconds_left = fields.number("seconds_left");
  return view;
}

OrderedJson to_json(const ControlError& error) {
  OrderedJson json{{"code", to_string(error.code)}, {"message", error.message}};
  if (error.code != ControlErrorCode::refused) return json;
  json["mistakes"] = OrderedJson::array();
  for (const Diagnostic& mistake : error.mistakes) {
    json["mistakes"].push_back(
        {{"file", mistake.file}, {"line", mistake.line}, {"field", mistake.field}, {"message", mistake.message}});
  }
  return json;
}

template <typename Fail>
ControlError error_from(const Json& json, Fail fail) {
  Fields fields(json, fail);
  ControlError error;
  const std::string code = fields.text("code");
  const auto place = place_of(code_names, code);
  if (!place) fail(fmt::format("`code` must be one of {}, got `{}`", fmt::join(code_names, ", "), code));
  error.code = static_cast<ControlErrorCode>(*place);
  error.message = fields.text("message");
  if (!fields.present("mistakes")) return error;
  for (const Json& each : fields.list("mistakes")) {
    Fields mistake(each, fail);
    error.mistakes.push_back({mistake.text("file"), static_cast<int>(mistake.whole("line", 0, std::numeric_limits<int>::max())),
                              mistake.text("field"), mistake.text("message")});
  }
  return error;
}

void check_version(Fields& fields, const std::function<void(const std::string&)>& fail) {
  const Json& version = fields.at("cotune");
  if (version == Json(control_version)) return;
  fail(fmt::format("`cotune` must be {}, the version of the protocol that this program speaks, got {}", control_version,
                   shown(version)));
}

ControlRequest::JobsText read_add(Fields& fields, const std::function<void(const std::string&)>& fail) {
  ControlRequest::JobsText add;
  add.file = fields.text("jobs_file");
  add.text = fields.text("text");
  add.folder = fields.text("folder");
  if (fields.present("overrides")) add.overrides = fields.texts("overrides");
  add.working_directory = fields.text_or_none("working_directory");
  if (add.file.empty()) fail("`jobs_file` must name the file, for messages");
  if (!add.folder.starts_with('/')) fail("`folder` must be an absolute path");
  if (!add.working_directory.empty() && !add.working_directory.starts_with('/')) {
    fail("`working_directory` must be an absolute path");
  }
  return add;
}

}  // namespace

std::string_view to_string(ControlAction action) { return action_names[static_cast<size_t>(action)]; }
std::string_view to_string(ControlErrorCode code) { return code_names[static_cast<size_t>(code)]; }

ControlRequest parse_request(std::string_view line) {
  ControlRequest request;
  const std::function<void(const std::string&)> fail = [&](const std::string& text) {
    throw BadRequest("request: " + text, request.id);
  };
  try {
    const Json json = parse_json(line, fail);
    request.id = id_in(json);
    Fields fields(json, fail);
    check_version(fields, fail);
    const bool has_id = fields.present("id");
    if (has_id && request.id.empty()) fail(fmt::format("`id` must be a text or a whole number of at most {} bytes", longest_id));
    const std::string name = fields.text("request");
    const auto place = place_of(action_names, name);
    if (!place) fail(fmt::format("`request` must be one of {}, got {}", fmt::join(action_names, ", "), shown(Json(name))));
    request.action = static_cast<ControlAction>(*place);
    switch (request.action) {
      case ControlAction::status:
      case ControlAction::list:
      case ControlAction::view:
      case ControlAction::drain: break;
      case ControlAction::add: request.add = read_add(fields, fail); break;
      case ControlAction::priority:
        request.priority = fields.whole("priority", -most_priority, most_priority);
        [[fallthrough]];
      case ControlAction::cancel:
      case ControlAction::pause:
      case ControlAction::resume: request.job = fields.text("job"); break;
    }
    fields.refuse_others();
    return request;
  } catch (const Json::exception& error) {
    throw BadRequest(fmt::format("request: is not JSON: {}", json_reason(error)), request.id);
  }
}

ControlReply parse_reply(std::string_view line) {
  const std::function<void(const std::string&)> fail = [](const std::string& text) { throw UserError("reply: " + text); };
  try {
    const Json json = parse_json(line, fail);
    Fields fields(json, fail);
    check_version(fields, fail);
    ControlReply reply;
    if (!fields.truth("ok")) {
      reply.error = error_from(fields.at("error"), fail);
      return reply;
    }
    if (fields.present("run")) reply.run = run_from(fields.at("run"), fail);
    if (fields.present("jobs")) {
      reply.jobs.emplace();
      for (const Json& job : fields.list("jobs")) reply.jobs->push_back(job_from(job, fail));
    }
    if (fields.present("view")) reply.view = view_from(fields.at("view"), fail);
    return reply;
  } catch (const Json::exception& error) {
    throw UserError(fmt::format("reply: is not JSON: {}", json_reason(error)));
  }
}

std::string to_line(const ControlRequest& request) {
  OrderedJson json{{"cotune", control_version}};
  if (!request.id.empty()) json["id"] = OrderedJson::parse(request.id);
  json["request"] = to_string(request.action);
  switch (request.action) {
    case ControlAction::status:
    case ControlAction::list:
    case ControlAction::view:
    case ControlAction::drain: break;
    case ControlAction::priority: json["priority"] = request.priority; [[fallthrough]];
    case ControlAction::cancel:
    case ControlAction::pause:
    case ControlAction::resume: json["job"] = request.job; break;
    case ControlAction::add:
      json["jobs_file"] = request.add.file;
      json["text"] = request.add.text;
      json["folder"] = request.add.folder;
      json["overrides"] = request.add.overrides;
      if (!request.add.working_directory.empty()) json["working_directory"] = request.add.working_directory;
      break;
  }
  return text_of_json(json);
}

std::string to_line(const ControlReply& reply, const std::string& id) {
  OrderedJson json{{"cotune", control_version}};
  if (!id.empty()) json["id"] = OrderedJson::parse(id);
  json["ok"] = !reply.error.has_value();
  if (reply.error) json["error"] = to_json(*reply.error);
  if (reply.run) json["run"] = to_json(*reply.run);
  if (reply.jobs) {
    json["jobs"] = OrderedJson::array();
    for (const JobReport& job : *reply.jobs) json["jobs"].push_back(to_json(job));
  }
  if (reply.view) json["view"] = to_json(*reply.view);
  return text_of_json(json);
}

}  // namespace cotune
