#include "train/metrics_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "train/training_job.h"

namespace cotune {

using Json = nlohmann::ordered_json;

MetricsFile::MetricsFile(const std::filesystem::path& path, bool append)
    : path_(path), stream_(path, append ? std::ios::app : std::ios::trunc) {
  if (!stream_) throw SystemError(fmt::format("{}: cannot be written", path.string()));
}

void MetricsFile::write(const std::string& line) {
  stream_ << line << '\n' << std::flush;
  if (!stream_) throw SystemError(fmt::format("{}: cannot be written (is the disk full?)", path_.string()));
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
  json["seconds"] = event.seconds;
  write(json.dump());
}

void MetricsFile::on_evaluation(const EvaluationEvent& event) {
  Json json;
  json["event"] = "evaluation";
  json["job"] = event.job->spec().name;
  json["step"] = event.job->state().step;
  json["loss"] = event.loss;
  json["accuracy"] = event.accuracy;
  json["best"] = event.best;
  json["seconds"] = event.seconds;
  write(json.dump());
}

void MetricsFile::on_checkpoint(const TrainingJob& job) {
  write(Json{{"event", "checkpoint"}, {"job", job.spec().name}, {"step", job.state().step}}.dump());
}

void MetricsFile::on_job_ended(const TrainingJob& job) {
  write(Json{{"event", "end"},
             {"job", job.spec().name},
             {"step", job.state().step},
             {"status", to_string(job.state().status)},
             {"reason", job.state().failure}}
            .dump());
}

void MetricsFile::on_notice(const std::string& text) { write(Json{{"event", "notice"}, {"text", text}}.dump()); }

}  // namespace cotune
