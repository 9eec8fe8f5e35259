#include "cli/reporting/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "cli/reporting/plan_lines.h"
#include "console/name_column.h"
#include "console/output.h"
#include "train/training_job.h"
#include "watch/screen_text.h"

namespace cotune {
namespace {

/// Seconds between two blocks: seldom enough that a long run's log stays short.
double block_interval(double seconds) { return std::clamp(seconds / 20, 5.0, 60.0); }

/// Text on one line, so that a sample is one line of the log.
std::string on_one_line(std::string text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      line += c;
    }
  }
  return line;
}

/// At the mean tokens of the steps that it has made, or of its data's epochs before the first one.
double tokens_left(const TrainingJob& job) {
  const JobState& state = job.state();
  const double step_tokens = state.step > 0 ? static_cast<double>(state.trained_tokens) / static_cast<double>(state.step)
                                            : static_cast<double>(job.data().train.token_count()) / static_cast<double>(job.steps_per_epoch());
  return step_tokens * static_cast<double>(job.total_steps() - state.step);
}

}  // namespace

std::string ended_text(const JobState& state) {
  if (state.status == JobStatus::stopped_early) return "stopped early";
  return state.status == JobStatus::running ? "stopped" : to_string(state.status);
}

std::string accuracy_text(double accuracy) {
  return std::isnan(accuracy) ? "" : fmt::format("{:.1f}%", 100 * accuracy);
}

ProgressLines::ProgressLines(const std::vector<std::string>& names, int64_t total_steps)
    : name_width_(name_column_width(names)),
      step_width_(std::to_string(total_steps).size()),
      print_([](const std::string& text) { print_line(text); }) {}

void ProgressLines::print_with(std::function<void(const std::string&)> print, std::function<bool()> shows_steps) {
  print_ = std::move(print);
  shows_steps_ = std::move(shows_steps);
}

std::string ProgressLines::line(const TrainingJob& job, const std::string& text) const {
  return fmt::format("{}  {}", name_column(job.spec().name, name_width_), text);
}

void ProgressLines::tell(const std::string& text) const {
  print_(text);
  if (tell_) tell_(text);
}

void ProgressLines::tell(const TrainingJob& job, const std::string& text) const { tell(line(job, text)); }

void ProgressLines::make_room_for(const TrainingJob& job) {
  name_width_ = std::max(name_width_, name_column_width({job.spec().name}));
  step_width_ = std::max(step_width_, std::to_string(job.total_steps()).size());
}

void ProgressLines::on_job_started(const TrainingJob& job) {
  make_room_for(job);
  unfinished_[job.index()] = &job;
  if (const std::string& sweep = job.spec().sweep.of; !sweep.empty()) sweeps_.emplace(job.spec().name, sweep);
  if (job.state().step > 0) {
    tell(job, fmt::format("goes on at step {} of {}", job.state().step, job.total_steps()));
    return;
  }
  tell(job, fmt::format("starts: {} of {}; {} to train, {} held out", counted(job.total_steps(), "step"),
                        counted(job.spec().train.batch_size, "row"), job.data().train.size(), job.data().eval.size()));
}

void ProgressLines::on_job_waiting(const TrainingJob& job) {
  make_room_for(job);
  newest_.erase(job.index());
  const std::string& reason = job.state().wait_reason;
  const bool is_at_rung = reason.starts_with("halving:");
  if (is_at_rung) {
    unfinished_.erase(job.index());  // it may go no further
  } else {
    unfinished_[job.index()] = &job;
  }
  const bool is_kept_back = is_at_rung || reason.starts_with("sweep:");  // which is no news
  const bool is_told = reason.starts_with("memory: it and ");  // other reasons were told as notices
  if (!is_kept_back) tell(job, is_told ? "waits for " + reason : "waits for memory");
}

void ProgressLines::on_job_paused(const TrainingJob& job) {
  unfinished_.erase(job.index());
  newest_.erase(job.index());
  tell(job, fmt::format("paused at step {}", job.state().step));
}

void ProgressLines::on_selection(const TrainingJob& job) {
  if (selecting_.insert(job.index()).second) tell(job, "chooses its entries by their gradients");
}

void ProgressLines::on_step(const StepEvent& event) {
  if (event.job->done()) unfinished_.erase(event.job->index());
  newest_[event.job->index()] = event;
}

void ProgressLines::on_round_ended(double seconds) {
  const auto is_last = [](const auto& item) { return item.second.job->done(); };
  if (!shows_steps_()) return;
  const bool due = last_block_s_ < 0 || seconds - last_block_s_ >= block_interval(seconds);
  if (!due && std::none_of(newest_.begin(), newest_.end(), is_last)) return;
  for (const auto& item : newest_) {
    if (due || is_last(item)) step_line(item.second);
  }
  if (due && !newest_.empty() && unfinished_.size() > 1) total_line();
  if (due) {
    newest_.clear();
    last_block_s_ = seconds;
  } else {
    std::erase_if(newest_, is_last);
  }
}

void ProgressLines::step_line(const StepEvent& event) const {
  const std::string loss = event.job->is_emulated() ? "emulated    " : fmt::format("loss {:<7.4f}", event.loss);
  print_(line(*event.job, fmt::format("{:>{}}/{:<{}}  {} lr {:<8.2e} {:>6.0f} tok/s {:>6} left",
                               event.job->state().step, step_width_, event.job->total_steps(), step_width_, loss,
                               event.learning_rate, event.tokens_per_second, duration_text(event.seconds_left))));
}

void ProgressLines::total_line() const {
  double left = 0, rate = 0;
  for (const auto& [index, job] : unfinished_) left += tokens_left(*job);
  for (const auto& [job, event] : newest_) rate += event.tokens_per_second;
  print_(fmt::format("{}  {:<{}} {:>6.0f} tok/s {:>6} left", name_column("together", name_width_),
                         fmt::format("{} jobs", unfinished_.size()), 2 * step_width_ + 27, rate, duration_text(left / rate)));
}

void ProgressLines::on_evaluation(const EvaluationEvent& event) {
  if (event.job->is_emulated()) return tell(*event.job, fmt::format("{:>{}}/{:<{}}  evaluation emulated", event.step,
                                                                   step_width_, event.job->total_steps(), step_width_));
  tell(*event.job, fmt::format("{:>{}}/{:<{}}  held-out loss {:.4f}, {} right{}", event.step, step_width_,
                               event.job->total_steps(), step_width_, event.loss, accuracy_text(event.accuracy),
                               event.best || event.step == 0 ? "" : ", not the best"));
}

void ProgressLines::on_sample(const SampleEvent& event) {
  const TrainingJob& job = *event.job;
  std::string when = event.step == 0 ? "before training" : "after training";
  if (event.step > 0 && event.step != job.state().step) when += fmt::format(" (step {})", event.step);
  if (event.out_of_memory) return tell(job, fmt::format("no memory is left for a sample {}", when));
  tell(job, fmt::format("asked {}: {}", when, on_one_line(event.prompt)));
  tell(job, fmt::format("answers: {}", on_one_line(event.answer)));
}

void ProgressLines::on_rung(const RungEvent& event) {
  tell(*event.job, fmt::format("{:>{}}/{:<{}}  rung: rank {} of {}, {}", event.step, step_width_, event.job->total_steps(), step_width_,
                               event.rank, event.of, event.goes_on ? "goes on" : "stops"));
}

void ProgressLines::on_job_ended(const TrainingJob& job) {
  const JobState& state = job.state();
  unfinished_.erase(job.index());
  newest_.erase(job.index());
  std::string text = ended_text(state);
  text += fmt::format(" at step {}", state.step);
  const JobResult result = job.result();
  if (job.has_left_adapter() && result.step != state.step) text += fmt::format(", leaves step {}, its best", result.step);
  if (!state.end_reason().empty()) text += ": " + state.end_reason();
  tell(job, text);
}

void ProgressLines::on_hybrid_tasks(const PlannedRound& plan) {
  for (const std::string& text : plan_lines(plan, sweeps_)) tell(text);
}

void ProgressLines::on_swap(const DivisionSwap& swap) {
  tell(fmt::format("{}: the ranks are divided as {} now, {} before", swap.cause, swap.after, swap.before));
  tell(fmt::format("  {}; it took {:.2f} s", swap.reason, swap.seconds));
}

void ProgressLines::on_notice(const std::string& text) { tell(text); }

}  // namespace cotune
