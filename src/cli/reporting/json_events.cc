#include "cli/reporting/json_events.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/reporting/run_prediction.h"
#include "console/output.h"
#include "schedule/token_counts.h"
#include "train/job_events.h"
#include "train/planning_events.h"
#include "train/sweep_folder.h"
#include "train/training_job.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

Json tokens_json(const TokenCounts& counts) {
  return {{"real", counts.real},
          {"padded_to_row", counts.pad_to_row},
          {"padded_to_mix", counts.pad_to_mix},
          {"padded_to_chunk", counts.pad_to_chunk},
          {"processed", counts.processed()}};
}

void print_event(const Json& json) { print_line(text_of_json(json)); }

Json bytes_json(const PredictedBytes& bytes) { return {{"predicted", bytes.predicted}, {"measured", bytes.measured}}; }

Json prediction_json(const RunPrediction& prediction) {
  Json json = Json::object();
  if (prediction.knows_memory()) {
    for (const auto& [kind, bytes] : prediction.bytes()) json["bytes"][kind] = bytes_json(bytes);
    for (const auto& [job, bytes] : prediction.job_bytes()) json["job_bytes"][job] = bytes_json(bytes);
  }
  if (prediction.process()) json["process_bytes"] = bytes_json(*prediction.process());
  if (prediction.rounds().empty()) return json;
  for (const RunPrediction::Round& round : prediction.rounds()) {
    json["rounds"].push_back({{"predicted_s", round.predicted}, {"measured_s", round.measured}});
  }
  json["operator_seconds"] = prediction.operator_seconds();
  return json;
}

Json step_or_null(int64_t step) { return step >= 0 ? Json(step) : Json(nullptr); }

Json shares_json(const RankSummary::Shares& shares) { return {{"busy", shares.busy}, {"exposed", shares.exposed}, {"bubble", shares.bubble}}; }

}  // namespace

void JsonEvents::on_job_started(const TrainingJob& job) {
  print_event(start_event(job));
}

void JsonEvents::on_job_waiting(const TrainingJob& job) {
  print_event(Json{{"event", "wait"}, {"job", job.spec().name}, {"step", job.state().step}, {"reason", job.state().wait_reason}});
}

void JsonEvents::on_job_paused(const TrainingJob& job) {
  print_event(Json{{"event", "pause"}, {"job", job.spec().name}, {"step", job.state().step}});
}

void JsonEvents::on_selection(const TrainingJob& job) {
  print_event(Json{{"event", "selection"}, {"job", job.spec().name}});
}

void JsonEvents::on_step(const StepEvent& event) {
  Json json{{"event", "step"},
            {"job", event.job->spec().name},
            {"step", event.job->state().step},
            {"steps", event.job->total_steps()},
            {"loss", number_or_null<Json>(event.loss)},
            {"learning_rate", event.learning_rate},
            {"tokens_per_second", number_or_null<Json>(event.tokens_per_second)},
            {"seconds_left", number_or_null<Json>(event.seconds_left)}};
  print_event(marked(std::move(json), *event.job));
}

void JsonEvents::on_evaluation(const EvaluationEvent& event) {
  Json json{{"event", "evaluation"},
            {"job", event.job->spec().name},
            {"step", event.step},
            {"loss", number_or_null<Json>(event.loss)},
            {"accuracy", number_or_null<Json>(event.accuracy)},
            {"best", event.best}};
  print_event(marked(std::move(json), *event.job));
}

void JsonEvents::on_checkpoint(const TrainingJob& job) {
  print_event(Json{{"event", "checkpoint"}, {"job", job.spec().name}, {"step", job.state().step}});
}

void JsonEvents::on_job_ended(const TrainingJob& job) {
  print_event(end_event(job));
}

void JsonEvents::on_hybrid_tasks(const PlannedRound& plan) {
  Json json{{"event", "plan"}};
  json.update(to_json(plan));
  print_event(json);
}

void JsonEvents::on_refit(const RefitEvent& event) { print_event(refit_event(event)); }

void JsonEvents::on_peak(const PeakEvent& event) { print_event(peak_event(event)); }

void JsonEvents::on_swap(const DivisionSwap& swap) { print_event(swap_event(swap)); }

void JsonEvents::on_notice(const std::string& text) { print_event(Json{{"event", "notice"}, {"text", text}}); }

void JsonEvents::on_rung(const RungEvent& event) { print_event(rung_event(event)); }

void JsonEvents::on_sample(const SampleEvent& event) { print_event(sample_event(event)); }

std::string summary_json(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs,
                         const std::vector<SweepStanding>& sweeps, const RunPrediction& prediction) {
  Json json;
  json["event"] = "summary";
  json["interrupted"] = summary.interrupted;
  json["seconds"] = summary.seconds;
  json["seconds_training"] = summary.seconds_training;
  json["seconds_evaluating"] = summary.seconds_evaluating;
  json["seconds_to_first_step"] = summary.rounds > 0 ? Json(summary.seconds_to_first_step) : Json(nullptr);
  json["seconds_telling"] = summary.seconds_telling;
  json["rounds"] = summary.rounds;
  json["evaluation_rounds"] = summary.evaluation_rounds;
  json["real_tokens"] = summary.real_tokens;
  json["labelled_tokens"] = summary.labelled_tokens;
  json["tokens_per_second"] = summary.seconds_training > 0 ? Json(summary.tokens_per_second()) : Json(nullptr);
  json["device"] = summary.device;
  if (!summary.gpu_messages.empty()) json["gpu_messages"] = summary.gpu_messages;
  json["emulated"] = summary.emulated;
  json["peak_rss_bytes"] = summary.peak_rss_bytes;
  json["peak_held_bytes"] = summary.memory.peak_held_bytes;
  json["peak_live_bytes"] = summary.memory.peak_live_bytes;
  json["memory_limit_bytes"] = summary.memory_limit_bytes;
  for (int kind = 0; kind < memory_kind_count; ++kind) {
    json["peak_bytes"][to_string(static_cast<MemoryKind>(kind))] = summary.memory.peak_bytes[static_cast<size_t>(kind)];
  }
  if (summary.device_memory) {
    json["device_memory"] = {{"peak_allocated_bytes", summary.device_memory->peak_allocated_bytes},
                             {"peak_held_bytes", summary.device_memory->peak_held_bytes},
                             {"total_bytes", summary.device_memory->total_bytes}};
  }
  json["operator_seconds"] = summary.operator_seconds;
  if (!summary.ranks.empty()) {
    json["ranks"] = Json::array();
    json["ranks_seconds"] = summary.ranks_seconds;
    json["ranks_predicted_seconds"] = summary.ranks_predicted_seconds;
    json["planning"] = {{"seconds", summary.planning_seconds},
                        {"exposed_seconds", summary.planning_exposed_seconds},
                        {"rounds_ahead", summary.rounds_planned_ahead},
                        {"rounds_split", summary.rounds_split}};
  }
  for (const RankSummary& rank : summary.ranks) {
    Json layers = Json::array();
    for (const LayerRange& range : rank.layers) layers.push_back({range.begin, range.end - 1});
    json["ranks"].push_back({{"host", rank.host},
                             {"layers", std::move(layers)},
                             {"first_layer", rank.layers.front().begin},
                             {"last_layer", rank.layers.back().end - 1},
                             {"part", rank.part},
                             {"parts", rank.parts},
                             {"messages", rank.sent.count},
                             {"message_bytes", rank.sent.bytes},
                             {"collectives", rank.collectives},
                             {"exposed_seconds", rank.exposed_seconds},
                             {"replica", rank.replica},
                             {"exchanged_bytes", rank.exchanged_bytes},
                             {"exchanging_seconds", rank.exchanging_seconds},
                             {"gathering_seconds", rank.gathering_seconds},
                             {"weight_bytes", rank.weight_bytes > 0 ? Json(rank.weight_bytes) : Json()},
                             {"whole_weight_bytes", rank.whole_weight_bytes > 0 ? Json(rank.whole_weight_bytes) : Json()},
                             {"peak_bytes", rank.peak_bytes > 0 ? Json(rank.peak_bytes) : Json()},
                             {"seconds", rank.seconds},
                             {"waited_seconds", rank.waited_seconds},
                             {"measured", shares_json(rank.measured())},
                             {"predicted", shares_json(rank.predicted())},
                             {"predicted_seconds", rank.predicted_seconds},
                             {"predicted_peak_bytes", rank.predicted_peak_bytes > 0 ? Json(rank.predicted_peak_bytes) : Json()}});
  }
  json["prediction_errors"] = to_json(summary.prediction_errors);
  json["microbatches"] = {{"forward_seconds", summary.microbatches.forward}, {"backward_seconds", summary.microbatches.backward}};
  json["peak_prediction_errors"] = to_json(summary.peak_prediction_errors);
  json["swaps"] = Json::array();
  for (const DivisionSwap& swap : summary.swaps) json["swaps"].push_back(to_json(swap));
  json["plans"] = Json::array();
  for (const PlannedRound& plan : summary.plans) json["plans"].push_back(to_json(plan));
  json["prediction"] = prediction_json(prediction);
  json["losses"] = Json::object();
  json["jobs"] = Json::array();
  for (const TrainingJob* job : jobs) {
    const JobState& state = job->state();
    const JobResult result = job->result();
    const auto losses = summary.losses.find(job->index());
    json["losses"][job->spec().name] = losses == summary.losses.end() ? std::vector<double>{} : losses->second;
    Json entry{{"name", job->spec().name},
               {"status", to_string(state.status)},
               {"step", state.step},
               {"reason", state.end_reason()},
               {"deadline", job->spec().deadline.empty() ? Json(nullptr) : Json(job->spec().deadline)},
               {"missed_deadline", state.missed_deadline},
               {"start_eval_loss", number_or_null<Json>(state.start_eval_loss)},
               {"eval_step", step_or_null(result.eval_step)},
               {"eval_loss", number_or_null<Json>(result.eval_loss)},
               {"start_eval_accuracy", number_or_null<Json>(state.start_eval_accuracy)},
               {"eval_accuracy", number_or_null<Json>(result.eval_accuracy)},
               {"best_step", step_or_null(state.best_step)},
               {"best_eval_loss", number_or_null<Json>(state.best_eval_loss)},
               {"adapter_step", job->has_left_adapter() ? Json(result.step) : Json(nullptr)},
               {"trained_tokens", state.trained_tokens},
               {"labelled_tokens", state.labelled_tokens}};
    const auto tokens = summary.tokens.find(job->index());
    entry["tokens"] = tokens_json(tokens != summary.tokens.end() ? tokens->second : TokenCounts{});
    json["jobs"].push_back(std::move(entry));
  }
  json["sweeps"] = Json::array();
  for (const SweepStanding& sweep : sweeps) json["sweeps"].push_back(to_json(sweep));
  return text_of_json(json);
}

std::string with_figures_of(const std::string& earlier, const std::string& summary) {
  const Json before = Json::parse(earlier, nullptr, /*allow_exceptions=*/false);
  if (!before.is_object()) return summary;
  Json json = Json::parse(summary);
  for (const auto& [name, value] : before.items()) {
    if (json.contains(name) && name != "interrupted" && name != "jobs" && name != "sweeps") json[name] = value;
  }
  std::map<std::string, Json> tokens;
  for (const Json& job : before.value("jobs", Json::array())) {
    if (job.is_object() && job.contains("tokens")) tokens[job.value("name", "")] = job["tokens"];
  }
  for (Json& job : json["jobs"]) {
    const auto found = tokens.find(job["name"].get<std::string>());
    if (found != tokens.end()) job["tokens"] = found->second;
  }
  return text_of_json(json);
}

}  // namespace cotune
