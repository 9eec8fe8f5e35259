#include "train/sweep_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "adapter/adapter_file.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "base/json_text.h"
#include "jobs/enum_names.h"
#include "train/training_job.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* sweep_file = "sweep.json";

/// In this run, or before it was resumed.
bool has_adapter(const TrainingJob& job) {
  if (job.has_left_adapter()) return true;
  const bool was_left_before = job.is_at_its_end() && !has_ended(job.state().status) && !job.is_emulated();
  return was_left_before && fs::exists(job.folder() / "adapter" / adapter_config_file);
}

SweepStanding::Row row_of(const Sweeps::Candidate& candidate) {
  const TrainingJob& job = *candidate.job;
  SweepStanding::Row row{.job = &job, .rungs = candidate.rungs, .has_adapter = has_adapter(job)};
  const JobResult result = job.result();
  if (result.eval_step > 0) {
    row.eval_step = result.eval_step;
    row.loss = result.eval_loss;
    row.accuracy = result.eval_accuracy;
  }
  return row;
}

SweepStanding standing_of(const std::string& name, const Sweeps::Sweep& sweep) {
  SweepStanding standing{.name = name};
  for (const auto& [index, candidate] : sweep.candidates) {
    standing.rules = candidate.job->spec().sweep;
    for (const auto& [option, value] : candidate.job->spec().sweep.values) {
      if (!std::count(standing.options.begin(), standing.options.end(), option)) standing.options.push_back(option);
    }
    standing.rows.push_back(row_of(candidate));
  }
  standing.rules.values.clear();
  const auto score = [&](const SweepStanding::Row& row) { return score_of(standing.rules.metric, row.loss, row.accuracy); };
  std::stable_sort(standing.rows.begin(), standing.rows.end(), [&](const auto& a, const auto& b) {
    const bool a_counts = a.has_adapter && a.eval_step > 0, b_counts = b.has_adapter && b.eval_step > 0;
    return a_counts != b_counts ? a_counts : score(a).is_better_than(score(b));
  });
  int64_t rank = 0;
  for (SweepStanding::Row& row : standing.rows) {
    if (row.has_adapter && row.eval_step > 0) row.rank = ++rank;
  }
  return standing;
}

Json rung_json(const RungRecord& rung) {
  Json json{{"step", rung.step}, {"loss", number_or_null<Json>(rung.loss)}, {"accuracy", number_or_null<Json>(rung.accuracy)}};
  if (rung.judgement) {
    json["rank"] = rung.judgement->rank;
    json["of"] = rung.judgement->of;
    json["goes_on"] = rung.judgement->goes_on;
  }
  return json;
}

RungRecord rung_from(const nlohmann::json& json) {
  RungRecord rung{json.at("step").get<int64_t>(), number_from(json.at("loss")), number_from(json.at("accuracy")), {}};
  if (json.contains("goes_on")) {
    rung.judgement =
        RungJudgement{.rank = json.at("rank").get<int64_t>(), .of = json.at("of").get<int64_t>(), .goes_on = json.at("goes_on").get<bool>()};
  }
  return rung;
}

Json value_json(const std::string& yaml) {
  const Json value = Json::parse(yaml, nullptr, false);
  return value.is_discarded() ? Json(yaml) : value;
}

/// So that the folder holds an adapter only when all of it is there.
void export_adapter(const fs::path& from, const fs::path& to, const std::string& configuration) {
  std::error_code error;
  fs::remove(to / adapter_config_file, error);
  if (error) throw SystemError(fmt::format("{}: cannot be removed: {}", (to / adapter_config_file).string(), error.message()));
  write_file_atomically(to / "cotune.yaml", configuration);
  for (const char* file : {adapter_model_file, adapter_config_file}) copy_file_atomically(from / file, to / file);
}

}  // namespace

std::string swept_value(const JobSpec& job, const std::string& option) {
  for (const auto& [path, value] : job.sweep.values) {
    if (path == option) return value;
  }
  return "";
}

std::vector<SweepStanding> standings_of(const Sweeps& sweeps) {
  std::vector<SweepStanding> standings;
  for (const auto& [name, sweep] : sweeps.all()) standings.push_back(standing_of(name, sweep));
  return standings;
}

Json to_json(const SweepStanding& standing) {
  const SweepSpec& rules = standing.rules;
  Json json{{"sweep", standing.name},
            {"metric", std::string(name_of(rules.metric))},
            {"max_concurrent", rules.max_concurrent > 0 ? Json(rules.max_concurrent) : Json(nullptr)},
            {"halving", nullptr},
            {"options", standing.options},
            {"best", standing.best() != nullptr ? Json(standing.best()->job->spec().name) : Json(nullptr)}};
  if (rules.halving.is_on()) {
    json["halving"] = {{"factor", rules.halving.factor}, {"mode", std::string(name_of(rules.halving.mode))}};
    if (rules.halving.first_steps > 0) json["halving"]["first_steps"] = rules.halving.first_steps;
    if (rules.halving.first_fraction > 0) json["halving"]["first_fraction"] = rules.halving.first_fraction;
  }
  json["candidates"] = Json::array();
  for (const SweepStanding::Row& row : standing.rows) {
    const JobState& state = row.job->state();
    Json values = Json::object(), rungs = Json::array();
    for (const auto& [option, value] : row.job->spec().sweep.values) values[option] = value_json(value);
    for (const RungRecord& rung : row.rungs) rungs.push_back(rung_json(rung));
    json["candidates"].push_back({{"job", row.job->spec().name},
                                  {"values", std::move(values)},
                                  {"rank", row.rank > 0 ? Json(row.rank) : Json(nullptr)},
                                  {"status", to_string(state.status)},
                                  {"reason", state.end_reason()},
                                  {"step", state.step},
                                  {"steps", row.job->total_steps()},
                                  {"eval_step", row.eval_step > 0 ? Json(row.eval_step) : Json(nullptr)},
                                  {"eval_loss", number_or_null<Json>(row.loss)},
                                  {"eval_accuracy", number_or_null<Json>(row.accuracy)},
                                  {"rungs", std::move(rungs)}});
  }
  return json;
}

RungRecords read_rung_records(const fs::path& run_folder) {
  RungRecords records;
  std::error_code unknown;
  if (!fs::is_directory(run_folder / "sweeps", unknown)) return records;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_folder / "sweeps")) {
    const fs::path file = entry.path() / sweep_file;
    if (!fs::exists(file, unknown)) continue;
    try {
      const nlohmann::json json = nlohmann::json::parse(read_file(file));
      for (const auto& candidate : json.at("candidates")) {
        std::vector<RungRecord>& rungs = records[json.at("sweep").get<std::string>()][candidate.at("job").get<std::string>()];
        for (const auto& rung : candidate.at("rungs")) rungs.push_back(rung_from(rung));
      }
    } catch (const nlohmann::json::exception& error) {
      throw_user_error("{}: is not the record of a sweep: {}", file.string(), json_reason(error));
    }
  }
  return records;
}

void SweepFolder::on_sweep(const Sweeps& sweeps, const std::string& name) {
  const SweepStanding standing = standing_of(name, sweeps.all().at(name));
  const fs::path folder = folder_ / name;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError(fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  const SweepStanding::Row* best = standing.best();
  if (best != nullptr && exported_[name] != best->job->spec().name) {
    export_adapter(best->job->folder() / "adapter", folder, configuration_(*best->job));
    exported_[name] = best->job->spec().name;
  }
  write_file_atomically(folder / sweep_file, text_of_json(to_json(standing), 2) + "\n");
}

void SweepFolder::on_run_ended(const RunSummary&) {
  for (const auto& [name, sweep] : sweeps_.all()) on_sweep(sweeps_, name);
}

}  // namespace cotune
