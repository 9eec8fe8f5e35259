#include "train/metrics_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/counted.h"
#include "base/file.h"
#include "base/json_text.h"
#include "train/job_events.h"
#include "train/planning_events.h"
#include "train/training_job.h"

namespace cotune {

using Json = nlohmann::ordered_json;

namespace {

/// The line of a checkpoint event.
std::string checkpoint_line(const std::string& job, int64_t step) {
  return text_of_json(Json{{"event", "checkpoint"}, {"job", job}, {"step", step}});
}

enum class Fate { stays, goes, is_damaged };

/// What becomes of a line when jobs go on from these steps. noted: by job, the newest checkpoint's line so far.
Fate fate_of(const std::string& line, const std::map<std::string, JobProgress>& jobs, std::map<std::string, int64_t>& noted) {
  const auto stays_if = [](bool stays) { return stays ? Fate::stays : Fate::goes; };
  try {
    const Json json = Json::parse(line);
    const auto event = json.at("event").get<std::string>();
    if (event == "notice" || event == "plan" || event == "refit" || event == "peak" || event == "swap" || event == "resume") return Fate::stays;
    if (event == "usage") return stays_if(json.at("steps").get<int64_t>() <= steps_of(jobs));
    const auto job = json.at("job").get<std::string>();
    const auto step = json.at("step").get<int64_t>();
    const JobProgress& progress = jobs.at(job);
    // A job that goes on after its first step says the one answer again that comes at its end.
    if (event == "sample") return stays_if(step == 0 && progress.step > 0);
    if (event == "end" || step > (event == "evaluation" ? progress.last_eval_step : progress.step)) return Fate::goes;
    if (event == "checkpoint") noted[job] = step;
    return Fate::stays;
  } catch (const Json::exception&) {
    return Fate::is_damaged;
  } catch (const std::out_of_range&) {
    return Fate::goes;  // of no job of the run
  }
}

/// Calls take(line, number) for every whole line, which has its end; half a line of a run that was killed is none.
void for_lines(const std::string& text, const std::function<void(const std::string& line, int64_t number)>& take) {
  int64_t number = 0;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take(text.substr(begin, end - begin + 1), ++number);
  }
}

}  // namespace

int64_t steps_of(const std::map<std::string, JobProgress>& jobs) {
  int64_t steps = 0;
  for (const auto& [name, progress] : jobs) steps += progress.step;
  return steps;
}

std::map<std::string, NotedProgress> noted_progress(const std::filesystem::path& path) {
  std::map<std::string, NotedProgress> noted;
  if (!std::filesystem::exists(path)) return noted;
  for_lines(read_file(path), [&](const std::string& line, int64_t) {
    try {
      const Json json = Json::parse(line);
      if (!json.contains("job")) return;
      NotedProgress& job = noted[json.at("job").get<std::string>()];
      const auto step = json.at("step").get<int64_t>();
      job.newest_step = std::max(job.newest_step, step);
      if (json.at("event") == "checkpoint") job.newest_checkpoint = step;
    } catch (const Json::exception&) {  // who resumes the run is told of it (trim_metrics)
    }
  });
  return noted;
}

std::string trim_metrics(const std::filesystem::path& path, const std::map<std::string, JobProgress>& jobs) {
  if (!std::filesystem::exists(path)) return "";
  std::string after;
  std::map<std::string, int64_t> noted;  // by job, the newest checkpoint's line
  std::vector<int64_t> damaged;
  for_lines(read_file(path), [&](const std::string& line, int64_t number) {
    const Fate fate = fate_of(line, jobs, noted);
    if (fate == Fate::stays) after += line;
    if (fate == Fate::is_damaged) damaged.push_back(number);
  });
  for (const auto& [job, progress] : jobs) {
    if (progress.step > 0 && noted[job] != progress.step) after += checkpoint_line(job, progress.step) + "\n";
  }
  write_file_atomically(path, after);
  if (damaged.empty()) return "";
  return fmt::format("{}:{}: is not as `cotune train` writes it; {} dropped", path.string(), damaged.front(),
                     damaged.size() == 1 ? "the line was" : fmt::format("it and {} were", counted(std::ssize(damaged) - 1, "other line")));
}

MetricsFile::MetricsFile(const std::filesystem::path& path, bool append) : file_(path, append) {
  if (append) write(text_of_json(Json{{"event", "resume"}}));
}

void MetricsFile::write(const std::string& line) { file_.write(line + "\n"); }

void MetricsFile::on_job_started(const TrainingJob& job) { write(text_of_json(start_event(job))); }

void MetricsFile::on_step(const StepEvent& event) {
  Json json;
  json["event"] = "step";
  json["job"] = event.job->spec().name;
  json["step"] = event.job->state().step;
  json["epoch"] = event.job->state().epoch;
  json["loss"] = event.loss;
  json["learning_rate"] = event.learning_rate;
  json["gradient_norm"] = event.gradient_norm;
  json["real_tokens"] = event.tokens.real;
  json["processed_tokens"] = event.tokens.processed();
  json["labelled_tokens"] = event.labelled;
  if (event.job->is_emulated()) json["emulated"] = true;
  json["seconds"] = event.seconds;
  write(text_of_json(json));
}

void MetricsFile::on_usage(const UsageEvent& event) {
  Json json;
  json["event"] = "usage";
  json["steps"] = event.steps;
  json["resident_bytes"] = event.resident_bytes;
  json["tensor_bytes"] = event.tensor_bytes;
  if (event.device_memory) json["device_bytes"] = event.device_memory->held_bytes;
  json["tokens_per_second"] = event.tokens_per_second;
  if (event.planning_seconds) json["planning_seconds"] = *event.planning_seconds;
  if (event.planning_exposed_seconds) json["planning_exposed_seconds"] = *event.planning_exposed_seconds;
  if (event.emulated) json["emulated"] = true;
  json["seconds"] = event.seconds;
  write(text_of_json(json));
}

void MetricsFile::on_sample(const SampleEvent& event) { write(text_of_json(sample_event(event))); }

void MetricsFile::on_rung(const RungEvent& event) { write(text_of_json(rung_event(event))); }

void MetricsFile::on_evaluation(const EvaluationEvent& event) {
  Json json;
  json["event"] = "evaluation";
  json["job"] = event.job->spec().name;
  json["step"] = event.step;
  json["loss"] = event.loss;
  json["accuracy"] = event.accuracy;
  json["best"] = event.best;
  if (event.job->is_emulated()) json["emulated"] = true;
  json["seconds"] = event.seconds;
  write(text_of_json(json));
}

void MetricsFile::on_saving(const TrainingJob&) { file_.sync(); }

void MetricsFile::on_checkpoint(const TrainingJob& job) {
  write(checkpoint_line(job.spec().name, job.state().step));
}

void MetricsFile::on_job_paused(const TrainingJob& job) {
  write(text_of_json(Json{{"event", "pause"}, {"job", job.spec().name}, {"step", job.state().step}}));
}

void MetricsFile::on_job_ended(const TrainingJob& job) {
  write(text_of_json(end_event(job)));
}

void MetricsFile::on_hybrid_tasks(const PlannedRound& plan) {
  Json json{{"event", "plan"}};
  json.update(to_json(plan));
  write(text_of_json(json));
}

void MetricsFile::on_refit(const RefitEvent& event) { write(text_of_json(refit_event(event))); }

void MetricsFile::on_peak(const PeakEvent& event) { write(text_of_json(peak_event(event))); }

void MetricsFile::on_swap(const DivisionSwap& swap) { write(text_of_json(swap_event(swap))); }

void MetricsFile::on_notice(const std::string& text) { write(text_of_json(Json{{"event", "notice"}, {"text", text}})); }

}  // namespace cotune
