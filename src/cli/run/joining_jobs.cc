#include "cli/run/joining_jobs.h"

#include <fmt/format.h>

#include "base/home_folder.h"
#include "cli/inputs/emulated_run.h"
#include "cli/inputs/run_setup.h"
#include "jobs/emulated_file.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

bool is_same_place(const fs::path& a, const fs::path& b) {
  std::error_code unknown;
  return fs::equivalent(a, b, unknown) || fs::absolute(a).lexically_normal() == fs::absolute(b).lexically_normal();
}

/// Whether a value that was given for an option of `model` or `run` says what the run has.
bool agrees(const Option& option, const OptionValue& given, const OptionValue& of_run, const fs::path& working_directory) {
  if (given == of_run) return true;
  const std::string path = option.path();
  const auto* text = std::get_if<std::string>(&given);
  const auto* own = std::get_if<std::string>(&of_run);
  if (path == "model.dtype") return *text == "auto";
  if (path == "run.chunk_size") return text != nullptr;  // auto: what the run has found
  if (path == "model.path") return !own->empty() && is_same_place(*text, *own);
  if (path == "run.output_dir") return is_same_place(working_directory / with_home_folder(*text), *own);
  return false;
}

/// Options of `model` and `run` that were given and say something else than the run has.
void check_against(const RunToJoin& run, JobsFileReading& reading, const fs::path& working_directory, Diagnostics& mistakes) {
  JobsFile own = run.jobs_file;
  const OptionTarget given_target{&reading.jobs_file.model, &reading.jobs_file.run, nullptr};
  const OptionTarget own_target{&own.model, &own.run, nullptr};
  for (const auto* places : {&reading.model_places, &reading.run_places}) {
    for (const auto& [path, place] : *places) {
      for (const Option& option : option_table()) {
        if (option.path() != path) continue;
        const OptionValue given = option.get(given_target), of_run = option.get(own_target);
        if (agrees(option, given, of_run, working_directory)) continue;
        const std::string has = is_unset(of_run) && std::holds_alternative<std::string>(of_run) ? "none" : to_yaml_text(of_run);
        mistakes.add(place.file, place.line, place.field,
                     fmt::format("is {}, but the run that the jobs are to join has {}: leave it out", to_yaml_text(given), has));
      }
    }
  }
}

}  // namespace

JoiningJobs read_joining_jobs(const JobsText& text, const std::vector<std::string>& overrides, const RunToJoin& run,
                              const std::set<std::string>& taken, Diagnostics& mistakes) {
  JobsFileReading reading = read_jobs_text(text, overrides, Purpose::join, mistakes);
  check_against(run, reading, text.working_directory, mistakes);
  for (const JobSpec& job : reading.jobs_file.jobs) {
    if (!taken.contains(job.name)) continue;
    const OptionPlace place = job.place_of("name");
    mistakes.add(place.file, place.line, place.field, fmt::format("`{}` is the name of a job of the run already", job.name));
  }
  const bool is_emulated = !emulated_file(run.jobs_file.run.device).empty();
  for (const JobSpec& job : reading.jobs_file.jobs) {
    if (is_emulated) check_emulated_job(job, mistakes);
  }
  JoiningJobs joining;
  joining.data = read_jobs(reading, &run.files.config, &run.text, run.data, mistakes);
  if (mistakes.empty()) joining.initial_adapters = initial_adapters(reading);
  joining.specs = std::move(reading.jobs_file.jobs);
  return joining;
}

}  // namespace cotune
