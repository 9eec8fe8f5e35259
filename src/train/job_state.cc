#include "train/job_state.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_mistake.h"
#include "base/json_text.h"

namespace cotune {
namespace {

constexpr const char* status_names[] = {"waiting",       "running", "paused",  "finished",
                                        "stopped_early", "failed",  "refused", "cancelled"};

}  // namespace

std::string to_string(JobStatus status) { return status_names[static_cast<size_t>(status)]; }

bool has_ended(JobStatus status) {
  return status != JobStatus::waiting && status != JobStatus::running && status != JobStatus::paused;
}

std::string JobState::to_json() const {
  nlohmann::ordered_json json;
  json["step"] = step;
  json["epoch"] = epoch;
  json["trained_tokens"] = trained_tokens;
  json["labelled_tokens"] = labelled_tokens;
  json["last_loss"] = number_or_null(last_loss);
  json["start_eval_loss"] = number_or_null(start_eval_loss);
  json["last_eval_loss"] = number_or_null(last_eval_loss);
  json["start_eval_accuracy"] = number_or_null(start_eval_accuracy);
  json["last_eval_accuracy"] = number_or_null(last_eval_accuracy);
  json["last_eval_step"] = last_eval_step;
  json["best_eval_loss"] = number_or_null(best_eval_loss);
  json["best_eval_accuracy"] = number_or_null(best_eval_accuracy);
  json["best_step"] = best_step;
  json["evaluations_without_improvement"] = evaluations_without_improvement;
  if (!stopped.empty()) json["stopped"] = stopped;
  if (missed_deadline) json["missed_deadline"] = true;
  json["data_hash"] = data_hash;
  json["spec_hash"] = spec_hash;
  return json.dump(2);
}

JobState JobState::from_json(const std::string& text, const std::string& file_name) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    JobState state;
    state.step = json.at("step").get<int64_t>();
    state.epoch = json.at("epoch").get<double>();
    state.trained_tokens = json.at("trained_tokens").get<int64_t>();
    state.labelled_tokens = json.at("labelled_tokens").get<int64_t>();
    state.last_loss = number_from(json.at("last_loss"));
    state.start_eval_loss = number_from(json.at("start_eval_loss"));
    state.last_eval_loss = number_from(json.at("last_eval_loss"));
    state.start_eval_accuracy = number_from(json.at("start_eval_accuracy"));
    state.last_eval_accuracy = number_from(json.at("last_eval_accuracy"));
    state.last_eval_step = json.at("last_eval_step").get<int64_t>();
    state.best_eval_loss = number_from(json.at("best_eval_loss"));
    state.best_eval_accuracy = number_from(json.at("best_eval_accuracy"));
    state.best_step = json.at("best_step").get<int64_t>();
    state.evaluations_without_improvement = json.at("evaluations_without_improvement").get<int64_t>();
    state.stopped = json.value("stopped", "");
    state.missed_deadline = json.value("missed_deadline", false);
    state.data_hash = json.at("data_hash").get<std::string>();
    state.spec_hash = json.at("spec_hash").get<std::string>();
    if (state.step < 0) throw_user_error("{}: step: must be at least 0, got {}", file_name, state.step);
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{}: is not a job state: {}", file_name, json_reason(error));
  }
}

}  // namespace cotune
