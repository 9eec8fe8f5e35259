#include "cli/reporting/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "cli/reporting/progress.h"
#include "cli/reporting/rank_view.h"
#include "cli/reporting/run_prediction.h"
#include "cli/reporting/sweep_table.h"
#include "console/name_column.h"
#include "console/output.h"
#include "plan/plan.h"
#include "schedule/token_counts.h"
#include "train/training_job.h"
#include "watch/rank_text.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

std::string arrow(const std::string& before, const std::string& after) {
  return before.empty() || before == after ? after : before + " -> " + after;
}

std::string loss_text(double loss) { return std::isnan(loss) ? "" : fmt::format("{:.4f}", loss); }

/// Of which step the held-out results are, and the adapter, where that is not the last one.
std::string result_text(const TrainingJob& job) {
  const JobResult result = job.result();
  if (result.eval_step < 0) return "";
  if (!job.spec().train.load_best || result.step != result.eval_step) {
    return result.eval_step == job.state().step ? "" : fmt::format("was evaluated at step {}", result.eval_step);
  }
  const char* what = job.has_left_adapter() ? "leaves" : "at its best at";
  return fmt::format("{} step {}{}{}", what, result.step, job.has_left_adapter() ? ", its best" : "",
                     result.starts_better ? "; the loss was lower at step 0" : "");
}

/// What there is to say of the speed: the first round, which warms up, is no measure of it.
std::string speed_text(const RunSummary& summary) {
  if (summary.rounds == 0) return "no step was made";
  const std::string first = fmt::format("first step after {:.1f} s", summary.seconds_to_first_step);
  if (summary.rounds == 1) return first;
  return fmt::format("{:.0f} real tokens/s in training, {}", summary.tokens_per_second(), first);
}

void print_speed(const RunSummary& summary) {
  const char* stopped = summary.emulated ? "Stopped" : "Stopped and saved";
  if (summary.emulated) print_line(fmt::format("\nEmulated, {}: nothing was computed, and no adapter is left", summary.device));
  print_line(fmt::format("\n{} in {}: {}", summary.interrupted ? stopped : "Done",
                         duration_text(summary.seconds), speed_text(summary)));
  print_line(fmt::format("{} in {}, {} in {}", counted(summary.rounds, "training round"),
                         duration_text(summary.seconds_training), counted(summary.evaluation_rounds, "evaluation"),
                         duration_text(summary.seconds_evaluating)));
}

void print_results(const std::vector<const TrainingJob*>& jobs, size_t width) {
  print_line(fmt::format("\n{}  {:<13}  {:>8}  {:>18}  {:>16}", name_column("job", width), "ended", "steps", "held-out loss",
                         "rows right"));
  for (const TrainingJob* job : jobs) {
    const JobState& state = job->state();
    const JobResult result = job->result();
    print_line(fmt::format(
        "{}  {:<13}  {:>8}  {:>18}  {:>16}", name_column(job->spec().name, width), ended_text(state), state.step,
        arrow(loss_text(state.start_eval_loss), loss_text(result.eval_loss)),
        arrow(accuracy_text(state.start_eval_accuracy), accuracy_text(result.eval_accuracy))));
  }
  for (const TrainingJob* job : jobs) {
    const std::string text = result_text(*job);
    if (!text.empty()) print_line(fmt::format("{}  {}", name_column(job->spec().name, width), text));
  }
}

void print_tokens(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs, size_t width) {
  if (summary.tokens.empty()) return;
  print_line(fmt::format("\n{}  {:>12}  {:>12}  {:>12}", name_column("tokens", width), "real", "labelled", "padded"));
  int64_t real = 0, labelled = 0, padded = 0;
  const auto row = [&](const std::string& name, int64_t of_real, int64_t of_labelled, int64_t of_padded) {
    print_line(fmt::format("{}  {:>12}  {:>12}  {:>12}", name_column(name, width), of_real, of_labelled, of_padded));
  };
  for (const TrainingJob* job : jobs) {
    const auto found = summary.tokens.find(job->index());
    if (found == summary.tokens.end()) continue;
    const TokenCounts& counts = found->second;
    const int64_t learned = summary.labelled.at(job->index()), pads = counts.processed() - counts.real;
    row(job->spec().name, counts.real, learned, pads);
    real += counts.real;
    labelled += learned;
    padded += pads;
  }
  if (summary.tokens.size() > 1) row("together", real, labelled, padded);
}

void print_operators(const RunSummary& summary, size_t width) {
  constexpr size_t most = 8;
  std::vector<std::pair<double, std::string>> operators;
  double total = 0;
  for (const auto& [name, seconds] : summary.operator_seconds) {
    operators.emplace_back(seconds, name);
    total += seconds;
  }
  if (total <= 0) return;
  std::sort(operators.rbegin(), operators.rend());
  const size_t name_width = std::max<size_t>(width, 24);
  print_line(fmt::format("\n{}  {:>9}  {:>6}", name_column("time by operator", name_width), "seconds", "share"));
  double rest = total;
  const auto row = [&](const std::string& name, double seconds) {
    print_line(fmt::format("{}  {:>9.2f}  {:>5.1f}%", name_column(name, name_width), seconds, 100 * seconds / total));
  };
  for (size_t i = 0; i < std::min(most, operators.size()); ++i) {
    row(operators[i].second, operators[i].first);
    rest -= operators[i].first;
  }
  if (operators.size() > most) row(counted(std::ssize(operators) - static_cast<int64_t>(most), "other"), rest);
}

/// Of a process.
std::string weights_text(const RankSummary& rank) {
  constexpr double mib = 1 << 20;
  if (rank.weight_bytes == 0) return "";
  const auto weights = static_cast<double>(rank.weight_bytes) / mib, whole = static_cast<double>(rank.whole_weight_bytes) / mib;
  if (rank.weight_bytes >= rank.whole_weight_bytes) return fmt::format("  weights {:.0f} MiB", weights);
  return fmt::format("  weights {:.0f} of {:.0f} MiB, gathering exposed {:.1f}%", weights, whole,
                     rank.seconds > 0 ? 100 * rank.gathering_seconds / rank.seconds : 0);
}

/// Of one replica of several.
std::string replica_text(const RankSummary& rank) {
  if (rank.replicas == 1) return "";
  return fmt::format("  replica {} of {}, sent {:.1f} MiB of gradients, exchanging exposed {:.1f}%", rank.replica + 1, rank.replicas,
                     static_cast<double>(rank.exchanged_bytes) / (1 << 20),
                     rank.seconds > 0 ? 100 * rank.exchanging_seconds / rank.seconds : 0);
}

void print_ranks(const RunSummary& summary, size_t width) {
  if (summary.ranks.empty() || summary.rounds == 0) return;
  print_line(fmt::format("\n{}  {:>9}  {:>6}  {:>9}  {:>7}  {:>9}  {:>6}  {:>9}", name_column("ranks", width), "layers", "busy", "predicted",
                         "exposed", "predicted", "bubble", "predicted"));
  for (size_t i = 0; i < summary.ranks.size(); ++i) {
    const RankSummary& rank = summary.ranks[i];
    const RankSummary::Shares measured = rank.measured(), predicted = rank.predicted();
    print_line(fmt::format("{}  {:>9}  {:>5.1f}%  {:>8.1f}%  {:>6.1f}%  {:>8.1f}%  {:>5.1f}%  {:>8.1f}%",
                           name_column(rank.host.empty() ? std::to_string(i) : fmt::format("{} {}", i, rank.host), width),
                           layers_text(rank_view(rank)), 100 * measured.busy, 100 * predicted.busy, 100 * measured.exposed, 100 * predicted.exposed,
                           100 * measured.bubble, 100 * predicted.bubble) +
               (rank.peak_bytes > 0 ? fmt::format("  peak {:.0f} MiB, predicted {:.0f} MiB", static_cast<double>(rank.peak_bytes) / (1 << 20),
                                                  static_cast<double>(rank.predicted_peak_bytes) / (1 << 20))
                                    : "") +
               weights_text(rank) + replica_text(rank) +
               (rank.parts > 1 ? fmt::format("  part {} of {}, {} collectives", rank.part + 1, rank.parts, rank.collectives) : ""));
  }
  print_line(fmt::format("rounds took {:.2f} s, predicted {:.2f} s ({:+.1f}%)", summary.ranks_seconds, summary.ranks_predicted_seconds,
                         100 * (summary.ranks_predicted_seconds / summary.ranks_seconds - 1)));
  print_line(fmt::format("planning them took {:.3f} s, of which {:.3f} s beside no round; {} of {} were planned while others ran",
                         summary.planning_seconds, summary.planning_exposed_seconds, summary.rounds_planned_ahead, summary.rounds));
  if (summary.rounds_split > 0) {
    print_line(fmt::format("steps were cut into more microbatches than the token budget asks for in {} of {}, so that ranks wait less",
                           summary.rounds_split, counted(summary.rounds, "round")));
  }
  for (const DivisionSwap& swap : summary.swaps) {
    print_line(fmt::format("after round {}: {} in place of {} ({}), in {:.2f} s", swap.round, swap.after, swap.before, swap.cause, swap.seconds));
  }
}

void print_prediction_errors(const PredictionErrors& times, const PredictionErrors& peaks) {
  if (times.rounds > 0) {
    print_line(fmt::format("predicted times of {} were off by {:.1f}%, refitted ones by {:.1f}%", counted(times.rounds, "round"),
                           100 * times.before(), 100 * times.after()));
  }
  if (peaks.rounds > 0) {
    print_line(fmt::format("predicted peaks of {} were off by {:.1f}%, learned ones by {:.1f}%", counted(peaks.rounds, "round"),
                           100 * peaks.before(), 100 * peaks.after()));
  }
}

void print_backward_ratio(const StageSeconds& microbatches) {
  if (microbatches.forward <= 0) return;
  const double ratio = microbatches.backward / microbatches.forward;
  print_line(fmt::format("backward took {:.2f} times as long as forward{}", ratio,
                         ratio > uneven_backward ? fmt::format(": far from equal (above {})", uneven_backward) : ""));
}

void print_predicted_time(const RunPrediction& prediction) {
  const std::vector<RunPrediction::Round>& rounds = prediction.rounds();
  if (rounds.size() < 2) return;
  double predicted = 0;
  for (size_t i = 1; i < rounds.size(); ++i) predicted += rounds[i].predicted / static_cast<double>(rounds.size() - 1);
  const double ratio = prediction.predicted_over_measured();
  print_line(fmt::format("a round took {:.3f} s, predicted {:.3f} s ({:+.1f}%)", predicted / ratio, predicted, 100 * (ratio - 1)));
}

void print_memory(const RunSummary& summary, const RunPrediction& prediction, size_t width) {
  const size_t name_width = std::max<size_t>(width, 24);
  const bool predicts = prediction.knows_memory();
  print_line(fmt::format("\n{}  {:>12}{}", name_column("memory", name_width), "peak", predicts ? "     predicted" : ""));
  const auto predicted = [&](const std::string& kind) {
    const auto found = prediction.bytes().find(kind);
    return predicts && found != prediction.bytes().end() ? fmt::format("  {:>12}", bytes_text(found->second.predicted)) : "";
  };
  for (int kind = 0; kind < memory_kind_count; ++kind) {
    const int64_t bytes = summary.memory.peak_bytes[static_cast<size_t>(kind)];
    const std::string name = to_string(static_cast<MemoryKind>(kind));
    if (bytes > 0) print_line(fmt::format("{}  {:>12}{}", name_column(name, name_width), bytes_text(bytes), predicted(name)));
  }
  const std::string process =
      prediction.process() ? fmt::format("  {:>12}", bytes_text(prediction.process()->predicted)) : "";
  const std::string of_limit = summary.memory_limit_bytes > 0 ? "  of " + bytes_text(summary.memory_limit_bytes) : "";
  print_line(fmt::format("{}  {:>12}{}{}", name_column("the whole process", name_width), bytes_text(summary.peak_rss_bytes), process,
                         summary.device_memory ? "" : of_limit));
  if (summary.device_memory) {
    print_line(fmt::format("{}  {:>12}{}", name_column("the device", name_width), bytes_text(summary.device_memory->peak_held_bytes), of_limit));
  }
}

void print_places(const std::vector<const TrainingJob*>& jobs, const std::filesystem::path& run_folder) {
  print_line("");
  for (const TrainingJob* job : jobs) {
    if (job->has_left_adapter()) print_line(fmt::format("adapter  {}", (job->folder() / "adapter").string()));
  }
  print_line(fmt::format("log      {}", (run_folder / "metrics.jsonl").string()));
}

}  // namespace

void print_run_report(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs,
                      const std::vector<SweepStanding>& sweeps, const std::filesystem::path& run_folder, const RunPrediction& prediction) {
  std::vector<std::string> names;
  for (const TrainingJob* job : jobs) names.push_back(job->spec().name);
  const size_t columns = terminal_size().first, width = name_column_width(names, columns);
  print_speed(summary);
  print_predicted_time(prediction);
  print_ranks(summary, width);
  print_backward_ratio(summary.microbatches);
  print_prediction_errors(summary.prediction_errors, summary.peak_prediction_errors);
  print_operators(summary, width);
  print_memory(summary, prediction, width);
  print_tokens(summary, jobs, width);
  print_results(jobs, width);
  for (const SweepStanding& sweep : sweeps) {
    print_line("");
    for (const std::string& line : sweep_table(sweep, run_folder / "sweeps" / sweep.name, columns)) {
      print_line(line);
    }
  }
  print_places(jobs, run_folder);
}

}  // namespace cotune
