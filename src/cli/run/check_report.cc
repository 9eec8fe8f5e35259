#include "cli/run/check_report.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/json_text.h"
#include "base/quantity_text.h"
#include "cli/reporting/plan_lines.h"
#include "cli/reporting/progress.h"
#include "cli/reporting/sweep_table.h"
#include "jobs/enum_names.h"
#include "train/learning_rate.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

std::string adapter_text(const TrainingJob& job, const PredictedMemory::Job& predicted) {
  return fmt::format("{} on {}: {}; {}; by itself at most {}",
                     name_of(job.spec().adapter.method), counted(predicted.module_count, "module"), counted(predicted.value_count, "value"),
                     counted(job.total_steps(), "step"), bytes_text(predicted.alone_bytes));
}

Json lengths_json(const Dataset& dataset) {
  const LengthReport lengths = lengths_of(dataset);
  return {{"examples", lengths.examples},
          {"tokens", lengths.tokens},
          {"learned", lengths.learned},
          {"min", lengths.min},
          {"median", lengths.median},
          {"p95", lengths.p95},
          {"max", lengths.max}};
}

Json file_json(const FileReport& file) {
  return {{"file", file.file},
          {"format", std::string(name_of(file.format))},
          {"records", file.records},
          {"repaired", file.repaired},
          {"truncated", file.truncated},
          {"dropped_long", file.dropped_long},
          {"dropped_unlearned", file.dropped_unlearned},
          {"without_tool_calls", file.without_tool_calls},
          {"without_tools", file.without_tools},
          {"without_system", file.without_system},
          {"without_history", file.without_history},
          {"without_context", file.without_context}};
}

std::string warmup_warning_of(const TrainingJob& job) { return warmup_warning(job.spec().train, job.total_steps()); }

}  // namespace

void print_check(const CheckReport& report) {
  for (size_t i = 0; i < report.jobs.size(); ++i) {
    const TrainingJob& job = *report.jobs[i];
    fmt::print("{:<16} {}\n", job.spec().name, lengths_of(job.data().train).to_string());
    if (!job.data().eval.empty())
      fmt::print("{:<16} held out: {}\n", "", lengths_of(job.data().eval).to_string());
    for (const FileReport& file : job.data().files) {
      fmt::print("{:<16} {}\n", "", file.to_string());
      for (const std::string& warning : file.warnings()) fmt::print("{:<16} warning: {}\n", "", warning);
    }
    fmt::print("{:<16} {}\n", "", adapter_text(job, report.memory.jobs[i]));
    const std::string warning = warmup_warning_of(job);
    if (!warning.empty()) fmt::print("{:<16} warning: {}\n", "", warning);
  }
  std::map<std::string, std::vector<const TrainingJob*>> sweeps;
  SweepOfJob sweep_of_job;
  for (const auto& job : report.jobs) {
    const std::string& sweep = job->spec().sweep.of;
    if (sweep.empty()) continue;
    sweeps[sweep].push_back(job.get());
    sweep_of_job.emplace(job->spec().name, sweep);
  }
  for (const auto& [name, candidates] : sweeps) fmt::print("{}\n", sweep_line(name, candidates));
  if (!report.chosen_dtype.empty()) fmt::print("{}\n", report.chosen_dtype);
  const PredictedMemory& memory = report.memory;
  fmt::print("together at most {} of tensors, of {}{}\n", bytes_text(memory.together_bytes),
             bytes_text(memory.limit_bytes),
             memory.together_bytes > memory.limit_bytes
                 ? ": some jobs will wait for others, or rounds be smaller"
                 : "");
  if (report.plan) {
    for (const std::string& line : plan_lines(*report.plan, sweep_of_job)) fmt::print("{}\n", line);
  }
  fmt::print("{} ready to train\n", counted(std::ssize(report.jobs), "job is", "jobs are"));
}

std::string check_json(const CheckReport& report) {
  Json json{{"event", "check"}, {"ready", report.mistakes.empty()}};
  json["mistakes"] = Json::array();
  for (const Diagnostic& mistake : report.mistakes) {
    json["mistakes"].push_back({{"file", mistake.file},
                                {"line", mistake.line},
                                {"field", mistake.field},
                                {"message", mistake.message}});
  }
  json["jobs"] = Json::array();
  for (size_t i = 0; i < report.jobs.size(); ++i) {
    const TrainingJob& job = *report.jobs[i];
    const PredictedMemory::Job& predicted = report.memory.jobs[i];
    Json entry{{"name", job.spec().name},
               {"method", std::string(name_of(job.spec().adapter.method))},
               {"modules", predicted.module_count},
               {"values", predicted.value_count},
               {"step", job.state().step},
               {"steps", job.total_steps()},
               {"sweep", job.spec().sweep.of.empty() ? Json(nullptr) : Json(job.spec().sweep.of)},
               {"peak_bytes", predicted.alone_bytes},
               {"train", lengths_json(job.data().train)},
               {"held_out", lengths_json(job.data().eval)}};
    entry["files"] = Json::array();
    entry["warnings"] = Json::array();
    for (const FileReport& file : job.data().files) {
      entry["files"].push_back(file_json(file));
      for (const std::string& warning : file.warnings()) entry["warnings"].push_back(warning);
    }
    if (const std::string warning = warmup_warning_of(job); !warning.empty()) entry["warnings"].push_back(warning);
    json["jobs"].push_back(std::move(entry));
  }
  if (!report.jobs.empty()) {
    json["peak_bytes"] = report.memory.together_bytes;
    json["memory_limit_bytes"] = report.memory.limit_bytes;
    if (report.plan) json["plan"] = to_json(*report.plan);
  }
  return text_of_json(json);
}

}  // namespace cotune
