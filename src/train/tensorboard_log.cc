#include "train/tensorboard_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "train/training_job.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view file_prefix = "events.out.tfevents.";

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code unknown;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unknown)) {
    const bool is_ours = entry.path().filename().string().starts_with(file_prefix) && entry.is_regular_file(unknown);
    if (is_ours && !is_temporary_file(entry.path())) files.push_back(entry.path());
  }
  return files;
}

template <typename Stays>
void keep_events(const fs::path& folder, Stays stays) {
  for (const fs::path& file : event_files(folder)) {
    const std::string before = read_file(file);
    std::string after;
    for (const std::string_view record : whole_records(before)) {
      const TensorBoardEvent event = parse_record(record);
      if (event.values.empty() || stays(event)) after += record;
    }
    if (after != before) write_file_atomically(file, after);
  }
}

bool belongs_to_checkpoint(const TensorBoardEvent& event, const JobProgress& progress) {
  const std::string& tag = event.values.front().tag;
  if (tag.starts_with("eval/")) return event.step <= progress.last_eval_step;
  if (tag.starts_with("sample/")) return event.step == 0 && progress.step > 0;
  return event.step <= progress.step;
}

TensorBoardValue scalar(const char* tag, double value) { return {.tag = tag, .scalar = static_cast<float>(value), .text = {}}; }

/// Any text as it is, in Markdown.
std::string as_written(const std::string& text) {
  std::string block = "    ";
  for (const char c : text) {
    block += c;
    if (c == '\n') block += "    ";
  }
  return block;
}

}  // namespace

void trim_tensorboard(const fs::path& folder, const std::map<std::string, JobProgress>& jobs) {
  const int64_t steps = steps_of(jobs);
  keep_events(folder, [&](const TensorBoardEvent& event) { return event.step <= steps; });
  for (const auto& [name, progress] : jobs) {
    keep_events(folder / name, [&](const TensorBoardEvent& event) { return belongs_to_checkpoint(event, progress); });
  }
}

TensorBoardLog::TensorBoardLog(fs::path folder, std::function<double()> time_of_day)
    : folder_(std::move(folder)), time_of_day_(std::move(time_of_day)) {}

double TensorBoardLog::tensorboard_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

AppendedFile& TensorBoardLog::file_of(const std::string& run, int64_t step) {
  EventFile& file = files_[run];
  if (file.open != nullptr) return *file.open;
  if (!file.path.empty()) {
    file.open = std::make_unique<AppendedFile>(file.path, true);
    return *file.open;
  }
  const fs::path folder = folder_ / run;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError(fmt::format("{}: cannot create the folder: {}", folder.string(), error.message()));
  // TensorBoard reads the files of a folder in the order of their names.
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const std::vector<fs::path> before = event_files(folder);
  const double now = time_of_day_();
  const fs::path path = folder / fmt::format("{}{:010d}.{}.{:04d}", file_prefix, static_cast<int64_t>(now), host, before.size());
  file.open = std::make_unique<AppendedFile>(path, false);
  std::string begin =
      to_record({.wall_time = now, .step = 0, .file_version = tensorboard_file_version, .session_start = false, .values = {}});
  if (!before.empty()) begin += to_record({.wall_time = now, .step = step, .file_version = "", .session_start = true, .values = {}});
  file.open->write(begin);
  file.path = path;
  return *file.open;
}

void TensorBoardLog::write(const std::string& run, int64_t step, std::vector<TensorBoardValue> values) {
  const auto first = first_steps_.find(run);
  AppendedFile& file = file_of(run, first != first_steps_.end() ? first->second : step);
  file.write(
      to_record({.wall_time = time_of_day_(), .step = step, .file_version = "", .session_start = false, .values = std::move(values)}));
}

void TensorBoardLog::write(const TrainingJob& job, int64_t step, std::vector<TensorBoardValue> values) {
  write(job.spec().name, step, std::move(values));
  if (has_ended(job.state().status)) on_job_ended(job);  // a sample answer, say
}

void TensorBoardLog::on_job_paused(const TrainingJob& job) { files_[job.spec().name].open.reset(); }

void TensorBoardLog::on_job_ended(const TrainingJob& job) { files_[job.spec().name].open.reset(); }

void TensorBoardLog::write_emulated(const std::string& run) {
  write(run, 0,
        {{.tag = "emulated/text_summary", .scalar = {}, .text = "Emulated: nothing is computed; times are predicted, and there are no losses."}});
}

void TensorBoardLog::on_job_started(const TrainingJob& job) {
  const bool is_first = first_steps_.try_emplace(job.spec().name, job.state().step + 1).second;
  if (is_first && job.is_emulated()) write_emulated(job.spec().name);
}

void TensorBoardLog::on_step(const StepEvent& event) {
  std::vector<TensorBoardValue> values;
  if (!event.job->is_emulated()) values = {scalar("train/loss", event.loss), scalar("train/grad_norm", event.gradient_norm)};
  values.push_back(scalar("train/learning_rate", event.learning_rate));
  values.push_back(scalar("train/epoch", event.job->state().epoch));
  values.push_back(scalar("train/tokens_per_second", event.tokens_per_second));
  write(*event.job, event.job->state().step, std::move(values));
}

void TensorBoardLog::on_usage(const UsageEvent& event) {
  std::vector<TensorBoardValue> values = {scalar("memory/process_bytes", static_cast<double>(event.resident_bytes)),
                                          scalar("memory/tensor_bytes", static_cast<double>(event.tensor_bytes)),
                                          scalar("tokens_per_second", event.tokens_per_second)};
  if (event.device_memory) values.push_back(scalar("memory/device_bytes", static_cast<double>(event.device_memory->held_bytes)));
  if (event.emulated && !files_.contains("")) write_emulated("");
  write("", event.steps, std::move(values));
}

void TensorBoardLog::on_evaluation(const EvaluationEvent& event) {
  if (event.job->is_emulated()) return;
  write(*event.job, event.step, {scalar("eval/loss", event.loss), scalar("eval/accuracy", event.accuracy)});
}

void TensorBoardLog::on_sample(const SampleEvent& event) {
  const std::string answer = event.out_of_memory ? "*no memory was left for an answer*" : as_written(event.answer);
  write(*event.job, event.step,
        {{.tag = "sample/text_summary",
          .scalar = {},
          .text = fmt::format("**asked**\n\n{}\n\n**answers**\n\n{}", as_written(event.prompt), answer)}});
}

}  // namespace cotune
