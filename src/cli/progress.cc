#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "train/training_job.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

/// Seconds between two lines of one job.
constexpr double line_interval_s = 5;

void print_line(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

std::string accuracy_text(double accuracy) {
  return std::isnan(accuracy) ? "" : fmt::format(", {:.1f}% of rows right", 100 * accuracy);
}

Json tokens_json(const TokenCounts& counts) {
  return {{"real", counts.real},
          {"padded_to_row", counts.pad_to_row},
          {"padded_to_mix", counts.pad_to_mix},
          {"padded_to_chunk", counts.pad_to_chunk},
          {"processed", counts.processed()}};
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

std::string bytes_text(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib >= 1024 ? fmt::format("{:.2f} GiB", mib / 1024) : fmt::format("{:.1f} MiB", mib);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto whole = static_cast<int64_t>(std::lround(std::max(0.0, seconds)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

void ProgressLines::on_job_started(const TrainingJob& job) {
  const LengthReport lengths = lengths_of(job.data().train);
  print_line(fmt::format("{:<16} starts: {} steps of {} examples, {} to train ({} to {} tokens, median {}), {} held out",
                         job.spec().name, job.total_steps(), job.spec().train.batch_size, lengths.examples, lengths.min,
                         lengths.max, lengths.median, job.data().eval.size()));
}

void ProgressLines::on_job_waiting(const TrainingJob& job) {
  print_line(fmt::format("{:<16} waits for memory", job.spec().name));
}

void ProgressLines::on_step(const StepEvent& event) {
  total_tokens_ += static_cast<double>(event.tokens.real);
  double& last = last_line_s_[event.job];
  const int64_t step = event.job->state().step, total = event.job->total_steps();
  if (step != 1 && step != total && event.seconds - last < line_interval_s) return;
  last = event.seconds;
  print_line(fmt::format("{:<16} step {:>5}/{:<5} loss {:<8.4f} lr {:<9.3g} {:>6.0f} tokens/s  {} left  (all jobs {:.0f} tokens/s)",
                         event.job->spec().name, step, total, event.loss, event.learning_rate, event.tokens_per_second,
                         duration_text(event.seconds_left), total_tokens_ / std::max(1e-9, event.seconds)));
}

void ProgressLines::on_evaluation(const EvaluationEvent& event) {
  print_line(fmt::format("{:<16} held-out loss {:.4f} at step {}{}{}", event.job->spec().name, event.loss,
                         event.job->state().step, accuracy_text(event.accuracy), event.best ? "" : " (not the best)"));
}

void ProgressLines::on_job_ended(const TrainingJob& job) {
  const JobState& state = job.state();
  std::string text = fmt::format("{:<16} {} at step {}", job.spec().name, to_string(state.status), state.step);
  if (!state.failure.empty()) text += ": " + state.failure;
  print_line(text);
}

void ProgressLines::on_notice(const std::string& text) { print_line(text); }

void ProgressLines::on_run_ended(const RunSummary& summary) {
  print_line("");
  print_line(fmt::format("{} in {}: {:.0f} real tokens/s in training, first step after {:.1f} s",
                         summary.interrupted ? "Stopped and saved" : "Done", duration_text(summary.seconds),
                         summary.tokens_per_second(), summary.seconds_to_first_step));
  print_line(fmt::format("memory: peak {} of the process{}", bytes_text(summary.peak_rss_bytes),
                         summary.memory_limit_bytes > 0 ? fmt::format(", limit {}", bytes_text(summary.memory_limit_bytes))
                                                        : std::string()));
  std::string kinds;
  for (int kind = 0; kind < memory_kind_count; ++kind) {
    const int64_t bytes = summary.memory.peak_bytes[static_cast<size_t>(kind)];
    if (bytes > 0) kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", to_string(static_cast<MemoryKind>(kind)), bytes_text(bytes));
  }
  print_line("  peak by kind: " + kinds);
  std::vector<std::pair<double, std::string>> operators;
  double total = 0;
  for (const auto& [name, seconds] : summary.operator_seconds) {
    operators.emplace_back(seconds, name);
    total += seconds;
  }
  std::sort(operators.rbegin(), operators.rend());
  std::string times;
  for (size_t i = 0; i < std::min<size_t>(8, operators.size()); ++i) {
    times += fmt::format("{}{} {:.0f}%", i == 0 ? "" : ", ", operators[i].second, 100 * operators[i].first / total);
  }
  if (total > 0) print_line("time by operator: " + times);
}

void JsonLines::on_step(const StepEvent& event) {
  print_line(Json{{"event", "step"},
                  {"job", event.job->spec().name},
                  {"step", event.job->state().step},
                  {"steps", event.job->total_steps()},
                  {"loss", number(event.loss)},
                  {"learning_rate", event.learning_rate},
                  {"tokens_per_second", number(event.tokens_per_second)},
                  {"seconds_left", number(event.seconds_left)}}
                 .dump());
}

void JsonLines::on_evaluation(const EvaluationEvent& event) {
  print_line(Json{{"event", "evaluation"},
                  {"job", event.job->spec().name},
                  {"step", event.job->state().step},
                  {"loss", number(event.loss)},
                  {"accuracy", number(event.accuracy)}}
                 .dump());
}

void JsonLines::on_job_ended(const TrainingJob& job) {
  print_line(Json{{"event", "end"},
                  {"job", job.spec().name},
                  {"step", job.state().step},
                  {"status", to_string(job.state().status)},
                  {"reason", job.state().failure}}
                 .dump());
}

void JsonLines::on_notice(const std::string& text) { print_line(Json{{"event", "notice"}, {"text", text}}.dump()); }

std::string summary_json(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs) {
  Json json;
  json["event"] = "summary";
  json["interrupted"] = summary.interrupted;
  json["seconds"] = summary.seconds;
  json["seconds_training"] = summary.seconds_training;
  json["seconds_evaluating"] = summary.seconds_evaluating;
  json["seconds_to_first_step"] = summary.seconds_to_first_step;
  json["rounds"] = summary.rounds;
  json["real_tokens"] = summary.real_tokens;
  json["labelled_tokens"] = summary.labelled_tokens;
  json["tokens_per_second"] = summary.tokens_per_second();
  json["peak_rss_bytes"] = summary.peak_rss_bytes;
  json["peak_held_bytes"] = summary.memory.peak_held_bytes;
  json["peak_live_bytes"] = summary.memory.peak_live_bytes;
  json["memory_limit_bytes"] = summary.memory_limit_bytes;
  for (int kind = 0; kind < memory_kind_count; ++kind) {
    json["peak_bytes"][to_string(static_cast<MemoryKind>(kind))] = summary.memory.peak_bytes[static_cast<size_t>(kind)];
  }
  json["operator_seconds"] = summary.operator_seconds;
  json["losses"] = Json::object();
  json["jobs"] = Json::array();
  for (const TrainingJob* job : jobs) {
    const JobState& state = job->state();
    const auto losses = summary.losses.find(job->index());
    json["losses"][job->spec().name] = losses == summary.losses.end() ? std::vector<double>{} : losses->second;
    Json entry{{"name", job->spec().name},
               {"status", to_string(state.status)},
               {"step", state.step},
               {"reason", state.failure},
               {"start_eval_loss", number(state.start_eval_loss)},
               {"eval_loss", number(state.last_eval_loss)},
               {"start_eval_accuracy", number(state.start_eval_accuracy)},
               {"eval_accuracy", number(state.last_eval_accuracy)},
               {"best_eval_loss", number(state.best_eval_loss)},
               {"trained_tokens", state.trained_tokens},
               {"labelled_tokens", state.labelled_tokens}};
    const auto tokens = summary.tokens.find(job->index());
    if (tokens != summary.tokens.end()) entry["tokens"] = tokens_json(tokens->second);
    json["jobs"].push_back(std::move(entry));
  }
  return json.dump();
}

}  // namespace cotune
