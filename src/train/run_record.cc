#include "train/run_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_mistake.h"
#include "base/json_text.h"
#include "jobs/enum_names.h"
#include "jobs/jobs_file.h"
#include "jobs/settings.h"

namespace cotune {
namespace {

const JobSpec* find_job(const JobsFile& jobs_file, const std::string& name) {
  const auto found = std::find_if(jobs_file.jobs.begin(), jobs_file.jobs.end(),
                                  [&](const JobSpec& job) { return job.name == name; });
  return found == jobs_file.jobs.end() ? nullptr : &*found;
}

/// A sweep of the run tries more than it did.
bool is_further_candidate(const JobsFile& jobs_file, const JobSpec& job) {
  return std::any_of(jobs_file.jobs.begin(), jobs_file.jobs.end(), [&](const JobSpec& other) {
    SweepSpec rules = other.sweep, own = job.sweep;
    rules.values = own.values;
    own.max_concurrent = rules.max_concurrent;
    return !own.of.empty() && rules == own;
  });
}

/// Files that the job began with and no longer names.
std::vector<std::string> absent_files(const RunRecord& before, const RunRecord& now, const JobSpec& job) {
  std::vector<std::string> absent;
  const auto old_hashes = before.file_hashes.find(job.name), new_hashes = now.file_hashes.find(job.name);
  if (old_hashes == before.file_hashes.end() || new_hashes == now.file_hashes.end()) return absent;
  for (const auto& [file, hash] : old_hashes->second) {
    if (!new_hashes->second.contains(file)) absent.push_back(file);
  }
  return absent;
}

/// Those of a job's files that give other examples than before; all of them where that is not known, or their order alone is another.
std::vector<std::string> changed_files(const RunRecord& before, const RunRecord& now, const JobSpec& job) {
  std::vector<std::string> all, changed;
  for (const TrainFile& file : job.data.train) all.push_back(file.path);
  if (!job.data.eval.empty()) all.push_back(job.data.eval);
  const auto old_hashes = before.file_hashes.find(job.name), new_hashes = now.file_hashes.find(job.name);
  if (old_hashes == before.file_hashes.end() || new_hashes == now.file_hashes.end()) return all;
  for (const std::string& file : all) {
    const auto old_hash = old_hashes->second.find(file), new_hash = new_hashes->second.find(file);
    const bool is_same = old_hash != old_hashes->second.end() && new_hash != new_hashes->second.end() && old_hash->second == new_hash->second;
    if (!is_same && std::ranges::find(changed, file) == changed.end()) changed.push_back(file);
  }
  return changed.empty() ? all : changed;
}

/// What is wrong with the adapter that the job starts from; "": nothing. Of a run of an earlier version, which has no checksum, the path
/// must be the same.
std::string initial_adapter_difference(const RunRecord& before, const RunRecord& now, const JobSpec& old_job, const JobSpec& job) {
  const std::string &old_path = old_job.adapter.init_from, &path = job.adapter.init_from;
  if (old_path.empty() != path.empty()) return fmt::format("{}, now {}", path.empty() ? old_path : "none", path.empty() ? "none" : path);
  const auto old_checksum = before.initial_adapters.find(job.name), checksum = now.initial_adapters.find(job.name);
  if (checksum == now.initial_adapters.end()) return "";
  const bool is_known = old_checksum != before.initial_adapters.end();
  if (is_known ? old_checksum->second == checksum->second : old_path == path) return "";
  return fmt::format("{} does not hold the adapter that the job was to start from, and the job has no checkpoint yet", path);
}

}  // namespace

std::string RunRecord::to_json() const {
  const RunSpec& run = configuration.run;
  nlohmann::ordered_json json;
  json["cotune"] = 1;
  json["configuration"] = to_yaml(configuration);
  json["model_fingerprint"] = model_fingerprint;
  json["compute_dtype"] = compute_dtype;
  if (!launch.empty()) json["launch"] = launch;
  if (!emulated.empty()) json["emulated"] = emulated;
  json["instruction_set"] = instruction_set;
  json["token_budget"] = run.token_budget;
  json["sharing"] = std::string(name_of(run.sharing));
  json["layout"] = std::string(name_of(run.layout));
  json["recompute"] = std::string(name_of(run.recompute));
  json["memory_limit_bytes"] = memory_limit_bytes;
  json["data_hashes"] = data_hashes;
  json["file_hashes"] = file_hashes;
  if (!initial_adapters.empty()) json["initial_adapters"] = initial_adapters;
  if (relief) {
    json["relief"] = {{"requested_token_budget", relief->requested_token_budget},
                      {"token_budget", relief->token_budget},
                      {"recompute", relief->recompute}};
  }
  if (changes != JobChanges{}) {
    json["job_changes"] = {{"added", changes.added},
                           {"paused", changes.paused},
                           {"cancelled", changes.cancelled},
                           {"priorities", changes.priorities}};
  }
  // Paths need not be UTF-8; those of a record are for people.
  return text_of_json(json, 2) + "\n";
}

RunRecord RunRecord::from_json(const std::string& text, const std::string& file_name) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    RunRecord record;
    record.configuration = parse_configuration(json.at("configuration").get<std::string>(), file_name + ": configuration", Purpose::train);
    json.at("model_fingerprint").get_to(record.model_fingerprint);
    json.at("compute_dtype").get_to(record.compute_dtype);
    record.launch = json.value("launch", "");
    record.emulated = json.value("emulated", "");
    json.at("instruction_set").get_to(record.instruction_set);
    json.at("memory_limit_bytes").get_to(record.memory_limit_bytes);
    json.at("data_hashes").get_to(record.data_hashes);
    if (json.contains("file_hashes")) json.at("file_hashes").get_to(record.file_hashes);
    if (json.contains("initial_adapters")) json.at("initial_adapters").get_to(record.initial_adapters);
    if (json.contains("relief")) {
      const auto& relief = json.at("relief");
      record.relief = MemoryRelief{relief.at("requested_token_budget").get<int64_t>(),
                                   relief.at("token_budget").get<int64_t>(), relief.at("recompute").get<bool>()};
      if (record.relief->token_budget < 1) {
        throw_user_error("{}: relief.token_budget: must be at least 1, got {}", file_name, record.relief->token_budget);
      }
    }
    if (json.contains("job_changes")) {
      const auto& changes = json.at("job_changes");
      changes.at("added").get_to(record.changes.added);
      changes.at("paused").get_to(record.changes.paused);
      changes.at("cancelled").get_to(record.changes.cancelled);
      changes.at("priorities").get_to(record.changes.priorities);
    }
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{}: is not the record of a run: {}", file_name, json_reason(error));
  }
}

std::string recorded_launch(const std::filesystem::path& file) {
  try {
    return nlohmann::json::parse(read_file(file)).value("launch", "");
  } catch (const nlohmann::json::exception&) {
    return "";
  }
}

namespace {

/// As model.dtype has it; a record has c10's names.
std::string dtype_in_words(const std::string& recorded) {
  const std::map<std::string, std::string> words = {{"BFloat16", "bfloat16"}, {"Float", "float32"}, {"Double", "float64"}};
  const auto found = words.find(recorded);
  return found == words.end() ? recorded : found->second;
}

}  // namespace

std::vector<std::string> differences(const RunRecord& before, const RunRecord& now) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* what, const auto& old_value, const auto& new_value) {
    if (old_value != new_value) lines.push_back(fmt::format("{}: {}, now {}", what, old_value, new_value));
  };
  if (!before.emulated.empty()) {
    lines.push_back(fmt::format("an emulated run, by the times of {}: it has trained nothing that could be gone on with", before.emulated));
  }
  compare("model: weights and shape with fingerprint", before.model_fingerprint, now.model_fingerprint);
  compare("model.dtype", dtype_in_words(before.compute_dtype), dtype_in_words(now.compute_dtype));
  const RunSpec &old_run = before.configuration.run, &new_run = now.configuration.run;
  compare("run.layout", name_of(old_run.layout), name_of(new_run.layout));
  if (new_run.layout == Layout::chunked) compare("run.chunk_size", old_run.chunk_size, new_run.chunk_size);
  for (const JobSpec& job : now.configuration.jobs) {
    const JobSpec* old_job = find_job(before.configuration, job.name);
    if (old_job == nullptr && is_further_candidate(before.configuration, job)) continue;
    if (old_job == nullptr) {
      lines.push_back(fmt::format("jobs.{}: is not in the run", job.name));
      continue;
    }
    for (std::string& line : settings_differences(*old_job, job)) lines.push_back(std::move(line));
    if (const std::string difference = initial_adapter_difference(before, now, *old_job, job); !difference.empty()) {
      lines.push_back(fmt::format("jobs.{}.adapter.init_from: {}", job.name, difference));
    }
    const auto old_data = before.data_hashes.find(job.name), new_data = now.data_hashes.find(job.name);
    const bool known = old_data != before.data_hashes.end() && new_data != now.data_hashes.end();
    if (!known || old_data->second != new_data->second) {
      const std::vector<std::string> absent = absent_files(before, now, job), files = changed_files(before, now, job);
      if (!absent.empty()) {
        lines.push_back(fmt::format("jobs.{}.data: {} of what the job began with {} not among its files now", job.name, fmt::join(absent, ", "),
                                    absent.size() == 1 ? "is" : "are"));
      } else {
        lines.push_back(fmt::format("jobs.{}.data: {} {} not give the examples that the job began with", job.name, fmt::join(files, ", "),
                                    files.size() == 1 ? "does" : "do"));
      }
    }
  }
  for (const JobSpec& job : before.configuration.jobs) {
    if (find_job(now.configuration, job.name) == nullptr) {
      lines.push_back(fmt::format("jobs.{}: is in the run, and missing now", job.name));
    }
  }
  return lines;
}

}  // namespace cotune
