#include "watch/run_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "control/no_run.h"
#include "control/socket.h"
#include "jobs/jobs_file.h"
#include "watch/trend.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

double number(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() || found->is_null() ? JobReport::unknown : found->get<double>();
}

std::string text(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() || found->is_null() ? "" : found->get<std::string>();
}

/// A whole number of 64 bits. The JSON library alone would take a fraction, and of 1e57 what the processor makes of it.
int64_t whole(const Json& value) {
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                                               : value.is_number_integer();
  if (!fits)
    throw Json::type_error::create(302, "expected a whole number, found " + value.dump(-1, ' ', true, Json::error_handler_t::replace), &value);
  return value.get<int64_t>();
}

int64_t whole_or_zero(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() ? 0 : whole(*found);
}

/// Times of a run that was resumed begin again: what came before is added.
class Clock {
 public:
  void begin_anew() { before_ += std::exchange(last_, 0); }
  double at(double seconds) {
    if (seconds < last_) begin_anew();  // of a log that does not say it
    last_ = seconds;
    return before_ + seconds;
  }

 private:
  double before_ = 0, last_ = 0;
};

void add_step(LoggedJob& job, const Json& json, double seconds) {
  job.step = whole(json.at("step"));
  job.status = "running";
  job.made.push_back({.step = job.step,
                      .loss = number(json, "loss"),
                      .learning_rate = number(json, "learning_rate"),
                      .gradient_norm = number(json, "gradient_norm"),
                      .real_tokens = whole_or_zero(json, "real_tokens"),
                      .seconds = seconds});
}

void add_evaluation(LoggedJob& job, const Json& json, double seconds) {
  job.evaluations.push_back({.step = whole(json.at("step")),
                             .loss = number(json, "loss"),
                             .accuracy = number(json, "accuracy"),
                             .best = json.value("best", false),
                             .seconds = seconds});
  const LoggedEvaluation& evaluation = job.evaluations.back();
  job.eval_loss = evaluation.loss;
  job.eval_accuracy = evaluation.accuracy;
  if (evaluation.step == 0) {
    job.start_eval_loss = evaluation.loss;
    job.start_eval_accuracy = evaluation.accuracy;
  } else if (evaluation.best || !job.spec.train.load_best) {
    job.result_loss = evaluation.loss;
    job.result_accuracy = evaluation.accuracy;
  }
}

void add_event(RunLog& log, const Json& json, Clock& clock) {
  const auto event = json.at("event").get<std::string>();
  if (event == "notice") {
    log.notices.push_back(text(json, "text"));
    return;
  }
  if (event == "swap") {
    log.notices.push_back(
        fmt::format("{}: the ranks are divided as {} now, {} before", text(json, "cause"), text(json, "after"), text(json, "before")));
    return;
  }
  if (event == "plan" || event == "refit" || event == "peak") return;
  if (event == "resume") return clock.begin_anew();
  if (json.contains("seconds")) log.seconds = std::max(log.seconds, clock.at(json.at("seconds").get<double>()));
  if (event == "usage") {
    log.usage.push_back({.seconds = log.seconds,
                         .resident_bytes = whole_or_zero(json, "resident_bytes"),
                         .tensor_bytes = whole_or_zero(json, "tensor_bytes"),
                         .tokens_per_second = number(json, "tokens_per_second")});
    if (json.contains("device_bytes")) log.usage.back().device_bytes = whole(json.at("device_bytes"));
    return;
  }
  const auto name = json.at("job").get<std::string>();
  const auto found = std::find_if(log.jobs.begin(), log.jobs.end(), [&](const LoggedJob& job) { return job.spec.name == name; });
  if (found == log.jobs.end()) return;
  LoggedJob& job = *found;
  if (event == "start") {
    job.status = "running";
    job.step = whole(json.at("step"));
    job.steps = whole(json.at("steps"));
  } else if (event == "step") {
    add_step(job, json, log.seconds);
  } else if (event == "evaluation") {
    add_evaluation(job, json, log.seconds);
  } else if (event == "sample") {
    LoggedSample sample{.step = whole(json.at("step")), .prompt = text(json, "prompt"), .answer = {}};
    if (json.contains("answer") && !json.at("answer").is_null()) sample.answer = json.at("answer").get<std::string>();
    job.samples.push_back(std::move(sample));
  } else if (event == "pause") {
    job.status = "paused";
  } else if (event == "end") {
    job.status = json.at("status").get<std::string>();
    job.step = whole(json.at("step"));
    job.reason = text(json, "reason");
    if (json.contains("adapter_step") && !json.at("adapter_step").is_null()) job.adapter_step = whole(json.at("adapter_step"));
  }
}

RankView rank_of(const Json& json) {
  const Json& measured = json.at("measured");
  RankView rank{.host = text(json, "host"),
                .layers = {},
                .replica = whole_or_zero(json, "replica"),
                .part = whole_or_zero(json, "part"),
                .parts = whole(json.at("parts")),
                .busy = number(measured, "busy"),
                .exposed = number(measured, "exposed"),
                .bubble = number(measured, "bubble")};
  for (const Json& layers : json.at("layers")) rank.layers.emplace_back(whole(layers.at(0)), whole(layers.at(1)));
  return rank;
}

void read_summary(RunLog& log, const std::string& content) {
  const Json json = Json::parse(content);
  LoggedSummary summary{.interrupted = json.value("interrupted", false),
                        .seconds = number(json, "seconds"),
                        .seconds_training = number(json, "seconds_training"),
                        .seconds_evaluating = number(json, "seconds_evaluating"),
                        .tokens_per_second = number(json, "tokens_per_second"),
                        .rounds = whole_or_zero(json, "rounds"),
                        .real_tokens = whole_or_zero(json, "real_tokens"),
                        .labelled_tokens = whole_or_zero(json, "labelled_tokens"),
                        .peak_resident_bytes = whole_or_zero(json, "peak_rss_bytes"),
                        .device = text(json, "device")};
  if (json.contains("device_memory")) {
    summary.peak_device_bytes = whole_or_zero(json.at("device_memory"), "peak_held_bytes");
    summary.device_bytes = whole_or_zero(json.at("device_memory"), "total_bytes");
  }
  for (const Json& each : json.value("ranks", Json::array())) summary.ranks.push_back(rank_of(each));
  for (const Json& each : json.at("jobs")) {
    const auto name = each.at("name").get<std::string>();
    for (LoggedJob& job : log.jobs) {
      if (job.spec.name != name) continue;
      job.status = each.at("status").get<std::string>();
      job.step = whole(each.at("step"));
      job.reason = text(each, "reason");
      job.start_eval_loss = number(each, "start_eval_loss");
      job.start_eval_accuracy = number(each, "start_eval_accuracy");
      job.eval_loss = number(each, "eval_loss");
      job.eval_accuracy = number(each, "eval_accuracy");
      if (number(each, "eval_step") > 0) {
        job.result_loss = job.eval_loss;
        job.result_accuracy = job.eval_accuracy;
      }
      if (each.contains("adapter_step") && !each.at("adapter_step").is_null()) job.adapter_step = whole(each.at("adapter_step"));
    }
  }
  log.summary = std::move(summary);
}

std::string complaint(const std::string& place, const Json::exception& error) {
  return fmt::format("{}: is not as `cotune train` writes it: {}", place, json_reason(error));
}

/// Of a summary that cannot be read as much is known: the run has ended, by what the jobs' last events say.
LoggedSummary summary_of_events(const RunLog& log) {
  LoggedSummary summary;
  summary.interrupted = std::ranges::any_of(log.jobs, [](const LoggedJob& job) {
    return job.status == "running" || job.status == "waiting" || job.status == "paused" || job.status == "stopped";
  });
  summary.seconds = log.seconds;
  for (const LoggedUsage& usage : log.usage) {
    summary.peak_resident_bytes = std::max(summary.peak_resident_bytes, usage.device_bytes.value_or(usage.resident_bytes));
  }
  return summary;
}

std::string newest_checkpoint(const fs::path& job) {
  std::error_code unknown;
  if (!fs::exists(job / "latest", unknown)) return "";
  std::string name = read_file(job / "latest");
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  return fs::exists(job / name, unknown) ? (job / name).string() : "";
}

/// Absolute, without a slash at its end.
fs::path name_of(const fs::path& folder) {
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

}  // namespace

void add_metrics(RunLog& log, std::string_view text, const std::string& file_name) {
  Clock clock;
  int64_t line_number = 0, left_out = 0;
  std::string first;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    ++line_number;
    const std::string_view line = text.substr(begin, end - begin);
    try {
      add_event(log, Json::parse(line), clock);
    } catch (const Json::exception& error) {
      if (left_out++ == 0) first = complaint(fmt::format("{}:{}", file_name, line_number), error);
    }
  }
  if (left_out == 0) return;
  const std::string others = left_out == 1 ? "the line is" : fmt::format("it and {} are", counted(left_out - 1, "other line"));
  log.damage.push_back(fmt::format("{}; {} left out", first, others));
}

RunLog read_run_log(const fs::path& folder) {
  const fs::path run_file = folder / "run.json", metrics = folder / "metrics.jsonl", summary = folder / "summary.json";
  if (!fs::exists(run_file)) throw_no_run(folder);
  RunLog log;
  log.folder = name_of(folder);
  try {
    const Json json = Json::parse(read_file(run_file));
    log.configuration = json.at("configuration").get<std::string>();
    log.compute_dtype = text(json, "compute_dtype");
    log.instruction_set = text(json, "instruction_set");
    log.memory_limit_bytes = whole_or_zero(json, "memory_limit_bytes");
    log.emulated = json.contains("emulated");
  } catch (const Json::exception& error) {
    throw UserError(complaint(run_file.string(), error));
  }
  const JobsFile configuration = parse_configuration(log.configuration, run_file.string() + ": configuration", Purpose::train);
  log.model = configuration.model.path.empty() ? configuration.model.config : configuration.model.path;
  for (const JobSpec& spec : configuration.jobs) {
    log.jobs.push_back({.spec = spec, .status = "waiting"});
    log.jobs.back().steps = spec.train.steps;
  }
  if (fs::exists(metrics)) add_metrics(log, read_file(metrics), metrics.string());
  if (fs::exists(summary)) {
    try {
      read_summary(log, read_file(summary));
    } catch (const Json::exception& error) {
      log.damage.push_back(complaint(summary.string(), error) + "; what metrics.jsonl says is shown");
      log.summary = summary_of_events(log);
    }
  }
  if (!is_being_trained(log.folder)) {
    for (LoggedJob& job : log.jobs) {
      if (job.status == "running") job.status = "stopped";
    }
  }
  return log;
}

bool is_being_trained(const fs::path& folder) {
  const fs::path file = folder / "lock", summary = folder / "summary.json";
  const Descriptor lock(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() < 0 || ::flock(lock.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return false;
  std::error_code unknown;  // who takes the folder writes the lock, and the summary at the end
  return !fs::exists(summary, unknown) || fs::last_write_time(file, unknown) > fs::last_write_time(summary, unknown);
}

bool is_starting(const fs::path& folder) {
  std::error_code unknown;
  const fs::path record = folder / "run.json";
  return is_being_trained(folder) &&
         (!fs::exists(record, unknown) || fs::last_write_time(folder / "lock", unknown) > fs::last_write_time(record, unknown));
}

RunView view_of_start(const fs::path& folder) {
  RunView view;
  view.run.folder = name_of(folder).string();
  view.run.phase = "loading";
  return view;
}

RunView view_of(const RunLog& log, bool is_being_trained) {
  RunView view;
  view.run.folder = log.folder.string();
  view.run.emulated = log.emulated;
  view.run.seconds = log.seconds;
  view.memory.limit_bytes = log.memory_limit_bytes;
  view.run.phase = is_being_trained ? "training" : !log.summary ? "killed" : log.summary->interrupted ? "interrupted" : "ended";
  if (log.summary) {
    const LoggedSummary& summary = *log.summary;
    view.run.rounds = summary.rounds;
    view.run.seconds = summary.seconds;
    view.tokens_per_second = summary.tokens_per_second;
    const bool on_device = summary.peak_device_bytes > 0;
    if (on_device) view.memory = {.device = summary.device, .limit_bytes = summary.device_bytes};
    view.memory.peak_bytes = on_device ? summary.peak_device_bytes : summary.peak_resident_bytes;
    view.ranks = summary.ranks;
  }
  for (const LoggedUsage& usage : log.usage) {
    if (!log.summary) view.memory.peak_bytes = std::max(view.memory.peak_bytes, usage.device_bytes.value_or(usage.resident_bytes));
  }
  for (const LoggedJob& logged : log.jobs) {
    JobView job;
    JobReport& report = job.report;
    report.name = logged.spec.name;
    report.tenant = logged.spec.tenant;
    report.sweep = logged.spec.sweep.of;
    report.by_accuracy = logged.spec.sweep.metric == SweepMetric::eval_accuracy;
    report.priority = logged.spec.priority;
    report.deadline = logged.spec.deadline;
    report.status = logged.status;
    report.step = logged.step;
    report.steps = logged.steps;
    report.eval_loss = logged.eval_loss;
    report.eval_accuracy = logged.eval_accuracy;
    report.result_loss = logged.result_loss;
    report.result_accuracy = logged.result_accuracy;
    report.reason = logged.reason;
    if (!logged.made.empty()) {
      report.loss = logged.made.back().loss;
      job.learning_rate = logged.made.back().learning_rate;
    }
    Trend trend;
    for (const LoggedStep& step : logged.made) trend.add(step.loss);
    job.losses = trend.points();
    const fs::path folder = log.folder / "jobs" / report.name;
    report.checkpoint = newest_checkpoint(folder);
    std::error_code unknown;
    if (fs::exists(folder / "adapter", unknown)) report.adapter = (folder / "adapter").string();
    ++view.run.jobs[report.status];
    view.jobs.push_back(std::move(job));
  }
  return view;
}

}  // namespace cotune
