#include "cluster/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/counted.h"
#include "base/csv_field.h"

namespace cotune {
namespace {

/// Name, value as text of every number of a summary: one list for CSV and JSON.
std::vector<std::pair<std::string, double>> numbers_of(const TraceSummary& each) {
  std::vector<std::pair<std::string, double>> numbers = {
      {"instances", static_cast<double>(each.instances)},
      {"devices", static_cast<double>(each.devices)},
      {"jobs", static_cast<double>(each.jobs)},
      {"finished", static_cast<double>(each.finished)},
      {"refused", static_cast<double>(each.refused)},
      {"end_min", each.end_min},
      {"window_min", each.window_min},
      {"tokens_per_s", each.tokens_per_s},
      {"utilisation", each.utilisation},
      {"jobs_per_instance", each.jobs_per_instance},
  };
  for (const auto& [name, spread] : {std::pair{"completion", &each.completion_min}, std::pair{"waiting", &each.waiting_min}}) {
    numbers.emplace_back(fmt::format("{}_mean_min", name), spread->mean);
    numbers.emplace_back(fmt::format("{}_median_min", name), spread->median);
    numbers.emplace_back(fmt::format("{}_p95_min", name), spread->p95);
    numbers.emplace_back(fmt::format("{}_p99_min", name), spread->p99);
  }
  numbers.emplace_back("fairness", each.fairness);
  numbers.emplace_back("deadlines", static_cast<double>(each.deadlines));
  numbers.emplace_back("deadlines_missed", static_cast<double>(each.missed));
  numbers.emplace_back("preemptions", static_cast<double>(each.preemptions));
  numbers.emplace_back("lost_share", each.lost_share);
  numbers.emplace_back("highest_memory_share", each.highest_memory);
  return numbers;
}

std::string minutes(double value) { return fmt::format("{:.{}f}", value, value < 100 ? 1 : 0); }

std::string block(const TraceSummary& each) {
  std::string text = fmt::format("{}, {} of {}, policy {}, sharing {}\n", counted(each.jobs, "job"), counted(each.instances, "instance"),
                                 counted(each.instances > 0 ? each.devices / each.instances : 0, "device"), each.policy, each.sharing);
  const auto line = [&text](const char* name, const std::string& value) { text += fmt::format("  {:<22}{}\n", name, value); };
  const auto spread = [](const Spread& one) {
    return fmt::format("mean {}, median {}, p95 {}, p99 {} min", minutes(one.mean), minutes(one.median), minutes(one.p95), minutes(one.p99));
  };
  line("finished", fmt::format("{}, refused {}; the last after {} min", each.finished, each.refused, minutes(each.end_min)));
  for (const auto& [reason, jobs] : each.refusals) line("refused", fmt::format("{}: {}", counted(jobs, "job"), reason));
  line("throughput", fmt::format("{:.0f} tokens/s in the first {} min", each.tokens_per_s, minutes(each.window_min)));
  line("utilisation", fmt::format("{:.1f}% of the instances' time, {:.1f} jobs on an instance", 100 * each.utilisation, each.jobs_per_instance));
  line("completion time", spread(each.completion_min));
  line("of it waiting", spread(each.waiting_min));
  line("fairness", fmt::format("{:.3f} (Jain's index over tenants; 1: all alike)", each.fairness));
  line("deadlines missed", fmt::format("{} of {}", each.missed, each.deadlines));
  line("pre-emptions", fmt::format("{}; {:.2f}% of all running time lost by them", each.preemptions, 100 * each.lost_share));
  line("memory", fmt::format("at most {:.1f}% of a device's limit", 100 * each.highest_memory));
  line("rates", each.rates);
  if (each.tenants.size() < 2) return text;
  size_t widest = 6;
  for (const TenantSummary& tenant : each.tenants) widest = std::max(widest, tenant.name.size());
  text += fmt::format("\n  {:<{}}  jobs  finished  mean JCT  of alone  waiting  missed  instance hours\n", "tenant", widest);
  for (const TenantSummary& tenant : each.tenants) {
    text += fmt::format("  {:<{}}  {:>4}  {:>8}  {:>8}  {:>7.1f}x  {:>7}  {:>6}  {:>14.1f}\n", tenant.name, widest, tenant.jobs, tenant.finished,
                        minutes(tenant.completion_mean_min), tenant.slowdown, minutes(tenant.waiting_mean_min),
                        fmt::format("{}/{}", tenant.missed, tenant.deadlines), tenant.instance_hours);
  }
  return text;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto quantile = [&](double share) {
    const auto place = static_cast<size_t>(std::max(0.0, std::ceil(share * count - 1e-9) - 1));
    return values[std::min(place, values.size() - 1)];
  };
  return {std::accumulate(values.begin(), values.end(), 0.0) / count, quantile(0.5), quantile(0.95), quantile(0.99)};
}

double jain_index(std::span<const double> values) {
  double sum = 0, squares = 0;
  for (const double each : values) {
    sum += each;
    squares += each * each;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(values.size()) * squares) : 1;
}

TraceSummary summarise(const Trace& trace, const TraceSimulation& simulation, const std::vector<double>& dedicated_round_s,
                       int64_t instances) {
  TraceSummary summary{.instances = instances, .jobs = static_cast<int64_t>(trace.jobs.size())};
  std::vector<double> completion, waiting;
  std::vector<double> speed(trace.tenants.size(), 0);  // summed over a tenant's finished jobs
  std::vector<TenantSummary> tenants(trace.tenants.size());
  for (size_t k = 0; k < tenants.size(); ++k) {
    tenants[k].name = trace.tenants[k];
    tenants[k].instance_hours = simulation.tenant_service_s[k] / 3600;
  }
  double ran_s = 0, lost_s = 0;
  for (size_t j = 0; j < trace.jobs.size(); ++j) {
    const TraceJob& job = trace.jobs[j];
    const JobOutcome& outcome = simulation.jobs[j];
    TenantSummary& tenant = tenants[static_cast<size_t>(job.tenant)];
    tenant.jobs += 1;
    summary.preemptions += outcome.preemptions;
    ran_s += outcome.ran_s;
    const double trained_s = outcome.ran_s - outcome.restarting_s;
    lost_s += outcome.restarting_s + (outcome.rounds > 0 ? trained_s * outcome.lost_steps / outcome.rounds : 0);
    if (std::isfinite(job.deadline_s)) {
      const bool is_missed = outcome.finished_s > job.deadline_s;
      tenant.deadlines += 1;
      tenant.missed += is_missed ? 1 : 0;
      summary.deadlines += 1;
      summary.missed += is_missed ? 1 : 0;
    }
    if (!outcome.finished()) {
      summary.refused += 1;
      summary.refusals[outcome.refusal] += 1;
      continue;
    }
    summary.finished += 1;
    const double took_s = outcome.finished_s - job.arrival_s;
    completion.push_back(took_s / 60);
    waiting.push_back(std::max(0.0, took_s - outcome.ran_s) / 60);
    const double alone_s = static_cast<double>(outcome.steps) * dedicated_round_s[static_cast<size_t>(job.kind)];
    speed[static_cast<size_t>(job.tenant)] += took_s > 0 ? alone_s / took_s : 1;
    tenant.finished += 1;
    tenant.completion_mean_min += completion.back();
    tenant.waiting_mean_min += waiting.back();
    tenant.slowdown += took_s / alone_s;
  }
  std::vector<double> speeds;
  for (size_t k = 0; k < tenants.size(); ++k) {
    const auto count = static_cast<double>(tenants[k].finished);
    if (count == 0) continue;
    speeds.push_back(speed[k] / count);
    for (double* sum : {&tenants[k].completion_mean_min, &tenants[k].waiting_mean_min, &tenants[k].slowdown}) *sum /= count;
  }
  std::erase_if(tenants, [](const TenantSummary& each) { return each.jobs == 0; });
  summary.tenants = std::move(tenants);
  summary.end_min = simulation.end_s / 60;
  summary.window_min = simulation.window_s / 60;
  const auto per = [](double value, double over) { return over > 0 ? value / over : 0; };
  summary.tokens_per_s = per(simulation.window_tokens, simulation.window_s);
  summary.utilisation = per(simulation.window_busy_s, simulation.window_s * static_cast<double>(instances));
  summary.jobs_per_instance = per(simulation.window_running_s, simulation.window_busy_s);
  summary.completion_min = spread_of(std::move(completion));
  summary.waiting_min = spread_of(std::move(waiting));
  summary.fairness = jain_index(speeds);
  summary.lost_share = per(lost_s, ran_s);
  summary.highest_memory = simulation.highest_memory_share;
  return summary;
}

std::string to_text(std::span<const TraceSummary> summaries) {
  if (summaries.size() == 1) return block(summaries.front());
  std::vector<std::vector<std::string>> rows = {{"policy", "sharing", "tokens/s", "of first", "mean JCT", "of first", "median", "p95", "p99",
                                                 "waiting", "busy", "jobs/inst", "fairness", "missed", "refused", "pre-empt"}};
  const TraceSummary* first = summaries.empty() ? nullptr : &summaries.front();
  for (const TraceSummary& each : summaries) {
    const auto ratio = [](double value, double base) { return base > 0 ? fmt::format("{:.2f}x", value / base) : std::string("-"); };
    rows.push_back({each.policy, each.sharing, fmt::format("{:.0f}", each.tokens_per_s), ratio(each.tokens_per_s, first->tokens_per_s),
                    minutes(each.completion_min.mean), ratio(each.completion_min.mean, first->completion_min.mean),
                    minutes(each.completion_min.median), minutes(each.completion_min.p95), minutes(each.completion_min.p99),
                    minutes(each.waiting_min.mean), fmt::format("{:.0f}%", 100 * each.utilisation), fmt::format("{:.1f}", each.jobs_per_instance),
                    fmt::format("{:.3f}", each.fairness), fmt::format("{}/{}", each.missed, each.deadlines), fmt::format("{}", each.refused),
                    fmt::format("{}", each.preemptions)});
  }
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i < 2 ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + "Times in minutes; JCT: from arrival to end; tokens/s, busy and jobs/inst of the window.\n";
}

std::string to_csv(std::span<const TraceSummary> summaries) {
  std::string text = "policy,sharing";
  for (const auto& [name, value] : numbers_of({})) text += "," + name;
  text += "\n";
  for (const TraceSummary& each : summaries) {
    text += csv_field(each.policy) + "," + csv_field(each.sharing);
    for (const auto& [name, value] : numbers_of(each)) text += fmt::format(",{}", value);
    text += "\n";
  }
  return text;
}

std::string jobs_csv(const Trace& trace, const TraceSimulation& simulation) {
  std::string text = "job,tenant,kind,priority,arrival_min,started_min,finished_min,ran_min,steps,lost_steps,preemptions,deadline_min,refusal\n";
  const auto moment = [](double seconds) { return std::isfinite(seconds) ? fmt::format("{}", seconds / 60) : std::string(); };
  for (size_t j = 0; j < trace.jobs.size(); ++j) {
    const TraceJob& job = trace.jobs[j];
    const JobOutcome& outcome = simulation.jobs[j];
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_field(job.name), csv_field(trace.tenants[static_cast<size_t>(job.tenant)]),
                        trace.kinds[static_cast<size_t>(job.kind)].name(), job.priority, moment(job.arrival_s), moment(outcome.started_s),
                        moment(outcome.finished_s), outcome.ran_s / 60, outcome.steps, outcome.lost_steps, outcome.preemptions,
                        moment(job.deadline_s - job.arrival_s), csv_field(outcome.refusal));
  }
  return text;
}

nlohmann::json to_json(const TraceSummary& summary) {
  nlohmann::json json{{"policy", summary.policy}, {"sharing", summary.sharing}, {"rates", summary.rates}};
  for (const auto& [name, value] : numbers_of(summary)) {
    // Whole numbers as such.
    if (value == std::floor(value) && std::abs(value) < 1e15) {
      json[name] = static_cast<int64_t>(value);
    } else {
      json[name] = value;
    }
  }
  json["refusals"] = nlohmann::json::array();
  for (const auto& [reason, jobs] : summary.refusals) json["refusals"].push_back({{"reason", reason}, {"jobs", jobs}});
  json["tenants"] = nlohmann::json::array();
  for (const TenantSummary& each : summary.tenants) {
    json["tenants"].push_back({{"name", each.name},
                               {"jobs", each.jobs},
                               {"finished", each.finished},
                               {"completion_mean_min", each.completion_mean_min},
                               {"slowdown", each.slowdown},
                               {"waiting_mean_min", each.waiting_mean_min},
                               {"deadlines", each.deadlines},
                               {"deadlines_missed", each.missed},
                               {"instance_hours", each.instance_hours}});
  }
  return json;
}

}  // namespace cotune
