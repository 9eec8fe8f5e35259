#include "train/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "train/job_events.h"
#include "train/training_job.h"

namespace cotune {

using Json = nlohmann::ordered_json;

namespace {

/// One line. Paths, which stand in reasons, need not be UTF-8.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The line of a checkpoint event.
std::string checkpoint_line(const std::string& job, int64_t step) {
  return text_of(Json{{"event", "checkpoint"}, {"job", job}, {"step", step}});
}

/// Whether a line stays when jobs go on from these steps. noted: by job, the newest checkpoint's line so far.
bool belongs_to_checkpoint(const std::string& line, const std::map<std::string, JobProgress>& jobs,
                           std::map<std::string, int64_t>& noted) {
  try {
    const Json json = Json::parse(line);
    const auto event = json.at("event").get<std::string>();
    if (event == "notice" || event == "plan") return true;
    const auto job = json.at("job").get<std::string>();
    const auto step = json.at("step").get<int64_t>();
    const JobProgress& progress = jobs.at(job);
    if (event == "end" || step > (event == "evaluation" ? progress.last_eval_step : progress.step)) return false;
    if (event == "checkpoint") noted[job] = step;
    return true;
  } catch (const Json::exception&) {
    return false;  // half a line
  } catch (const std::out_of_range&) {
    return false;  // of no job of the run
  }
}

[[noreturn]] void throw_system_error(const std::filesystem::path& path, const char* action) {
  throw SystemError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(errno)));
}

}  // namespace

void trim_metrics(const std::filesystem::path& path, const std::map<std::string, JobProgress>& jobs) {
  if (!std::filesystem::exists(path)) return;
  const std::string before = read_file(path);
  std::string after;
  std::map<std::string, int64_t> noted;  // by job, the newest checkpoint's line
  for (size_t begin = 0, end = 0; (end = before.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = before.substr(begin, end - begin + 1);
    if (!belongs_to_checkpoint(line, jobs, noted)) continue;
    after += line;
  }
  for (const auto& [job, progress] : jobs) {
    if (progress.step > 0 && noted[job] != progress.step) after += checkpoint_line(job, progress.step) + "\n";
  }
  write_file_atomically(path, after);
}

MetricsFile::MetricsFile(const std::filesystem::path& path, bool append)
    : path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0644)) {
  if (descriptor_ < 0) throw_system_error(path_, "open");
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::write(std::string line) {
  line += '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t count = ::write(descriptor_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      const off_t end = ::lseek(descriptor_, 0, SEEK_CUR);
      const auto written = static_cast<off_t>(line.size() - rest.size());
      // A full disk leaves no half line where it lets files be shortened.
      if (written > 0 && end >= written) [[maybe_unused]] const int shortened = ::ftruncate(descriptor_, end - written);
      errno = reason;
      throw_system_error(path_, "write");
    }
    rest.remove_prefix(static_cast<size_t>(count));
  }
}

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
  write(text_of(json));
}

void MetricsFile::on_evaluation(const EvaluationEvent& event) {
  Json json;
  json["event"] = "evaluation";
  json["job"] = event.job->spec().name;
  json["step"] = event.job->state().step;
  json["loss"] = event.loss;
  json["accuracy"] = event.accuracy;
  json["best"] = event.best;
  if (event.job->is_emulated()) json["emulated"] = true;
  json["seconds"] = event.seconds;
  write(text_of(json));
}

void MetricsFile::on_saving(const TrainingJob&) {
  if (::fdatasync(descriptor_) != 0 && errno != EINVAL) throw_system_error(path_, "write");
}

void MetricsFile::on_checkpoint(const TrainingJob& job) {
  write(checkpoint_line(job.spec().name, job.state().step));
}

void MetricsFile::on_job_paused(const TrainingJob& job) {
  write(text_of(Json{{"event", "pause"}, {"job", job.spec().name}, {"step", job.state().step}}));
}

void MetricsFile::on_job_ended(const TrainingJob& job) {
  write(text_of(end_event(job)));
}

void MetricsFile::on_hybrid_tasks(const PlannedRound& plan) {
  Json json{{"event", "plan"}};
  json.update(to_json(plan));
  write(text_of(json));
}

void MetricsFile::on_notice(const std::string& text) { write(text_of(Json{{"event", "notice"}, {"text", text}})); }

}  // namespace cotune
