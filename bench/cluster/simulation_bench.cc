/// Figures of docs/simulation.md (bench/simulation.py puts them there): MuxTune's cluster simulation over its free parameters,
/// policies compared, the planner in the loop against a rate table, stragglers. Times are of the CPU.
///
///   simulation_bench PARAMETERS.json week FOLDER [SHARING…]   the nominal week: sharing policies, and charts into FOLDER
///   simulation_bench PARAMETERS.json ranges          a day of it, one parameter varied at a time
///   simulation_bench PARAMETERS.json corners         a quarter of a day, all parameters drawn at once
///   simulation_bench PARAMETERS.json policies        scheduling policies on a week of a twentieth of the arrivals
///   simulation_bench PARAMETERS.json overloaded FOLDER   scheduling policies under more load than there is room for
///   simulation_bench PARAMETERS.json tenants FOLDER      scheduling policies for tenants of different habits
///   simulation_bench PARAMETERS.json stragglers FOLDER
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "cluster/instance_plan.h"
#include "cluster/philly_trace.h"
#include "cluster/plan_study.h"
#include "cluster/trace_charts.h"
#include "cluster/trace_study.h"
#include "schedule/pipeline/render.h"

using namespace cotune;

namespace {

using Json = nlohmann::json;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Values of all parameters by name.
using Values = std::map<std::string, Json>;

Values nominal_values(const Json& file) {
  Values values;
  for (const Json& each : file.at("parameters")) values[each.at("name")] = each.at("nominal");
  return values;
}

ClusterSpec cluster_for(const Json& file, const Values& values) {
  const Json& given = file.at("given");
  NodeGroup group{.name = "node", .count = given.at("devices").get<int64_t>() / 8, .devices = 8, .device = device_preset(given.at("device").get<std::string>())};
  group.link = link_preset(values.at("link").get<std::string>());
  group.device.compute_efficiency = values.at("compute_efficiency");
  return {{group}, link_preset("infiniband-100")};
}

InstancesOfCluster instances_for(const Json& file, const Values& values) {
  const Json& given = file.at("given");
  const ClusterSpec cluster = cluster_for(file, values);
  const auto text = values.at("instance").get<std::string>();
  const size_t sign = text.find('x');
  InstancesOfCluster instances = instances_of(cluster, model_preset(given.at("model").get<std::string>()), std::stoll(text.substr(0, sign)),
                                              std::stoll(text.substr(sign + 1)));
  instances.spec.microbatches = values.at("microbatches");
  return instances;
}

Trace trace_for(const Json& file, const Values& values, bool uniform, double days, double load = 1) {
  const Json& given = file.at("given");
  PhillyTrace settings{.seed = values.at("seed"), .minutes = days * 24 * 60, .arrivals_per_minute = load * given.at("arrivals_per_minute").get<double>()};
  settings.mean_minutes = given.at("mean_minutes");
  settings.deviation_minutes = given.at("deviation_minutes");
  if (uniform) settings.row_tokens = {values.at("uniform_tokens").get<int64_t>()};
  settings.rows = values.at("rows").get<std::vector<int64_t>>();
  settings.ranks = values.at("ranks").get<std::vector<int64_t>>();
  return philly_trace(settings);
}

const std::vector<std::string> compared = {"separate", "temporal", "batch-all/padded", "batch-all", "hybrid"};

StudySettings settings_for(const std::vector<std::string>& sharings, bool use_table) {
  StudySettings settings{.use_table = use_table};
  settings.sharings.clear();
  for (const std::string& each : sharings) settings.sharings.push_back(parse_sharing(each));
  return settings;
}

std::string row(const TraceSummary& each, const TraceSummary& first) {
  return fmt::format("{:.0f} | {:.2f}× | {:.0f} | {:.2f}× | {:.0f} | {:.0f} | {:.0f} | {:.1f}", each.tokens_per_s, each.tokens_per_s / first.tokens_per_s,
                     each.completion_min.mean, each.completion_min.mean / first.completion_min.mean, each.completion_min.median,
                     each.completion_min.p95, each.completion_min.p99, each.jobs_per_instance);
}

void write(const std::filesystem::path& path, const std::string& text) { write_file_atomically(path, text); }

/// `only`: sharing policies, and then no charts; empty: all.
void week(const Json& file, const std::filesystem::path& folder, const std::vector<std::string>& only) {
  const Values values = nominal_values(file);
  const InstancesOfCluster instances = instances_for(file, values);
  const Trace trace = trace_for(file, values, false, file.at("given").at("days"));
  fmt::print("| sharing | rates | tokens/s | of separate | mean JCT, min | of separate | median | p95 | p99 | jobs on an instance | mixes remembered | CPU |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<StudyResult> charted;
  for (const bool use_table : {true, false}) {
    std::optional<TraceSummary> first;
    for (const std::string& sharing : only.empty() ? compared : only) {
      const double before = cpu_seconds();
      StudyResult result = run_study(trace, instances, settings_for({sharing}, use_table)).front();
      if (!first) first = result.summary;
      const std::string& rates = result.summary.rates;
      const size_t percent = rates.rfind("% remembered");
      const bool remembers = percent != std::string::npos;
      const size_t begin = remembers ? rates.rfind(' ', percent) + 1 : 0;
      fmt::print("| {} | {} | {} | {} | {:.1f} s |\n", sharing, use_table ? "table" : "planner", row(result.summary, *first),
                 remembers ? rates.substr(begin, percent + 1 - begin) : "–", cpu_seconds() - before);
      std::fflush(stdout);
      if (use_table) charted.push_back(std::move(result));
    }
    if (!use_table || !only.empty()) continue;
    std::vector<ChartedTrace> curves;
    for (const StudyResult& each : charted) curves.push_back({each.summary.sharing, &trace, &each.simulation});
    write(folder / "simulation-completion.svg", completion_chart(curves));
    write(folder / "simulation-timeline.svg", timeline_chart(curves));
  }
}

/// What a setting of the parameters gives, for rows of one length and of mixed ones; rates by table.
struct Gains {
  double over_separate, over_padded, padded_over_separate, completion_over_separate;
};
struct SettingGains {
  Gains one, mixed;
  /// Some job is trained under every sharing.
  bool has_figures() const { return std::isfinite(one.over_separate + one.over_padded + mixed.over_separate + mixed.over_padded); }
  bool has_highest() const {
    return std::min(one.over_separate, mixed.over_separate) > 1 && std::min(one.over_padded, mixed.over_padded) > 1;
  }
  bool is_wider_for_mixed() const { return mixed.over_padded > one.over_padded; }
};

SettingGains gains_of(const Json& file, const Values& values, double days) {
  const auto of = [&](bool uniform) -> Gains {
    const auto results = run_study(trace_for(file, values, uniform, days), instances_for(file, values),
                                   settings_for({"separate", "batch-all/padded", "hybrid"}, true));
    const TraceSummary &separate = results[0].summary, &padded = results[1].summary, &hybrid = results[2].summary;
    return {hybrid.tokens_per_s / separate.tokens_per_s, hybrid.tokens_per_s / padded.tokens_per_s, padded.tokens_per_s / separate.tokens_per_s,
            hybrid.completion_min.mean / separate.completion_min.mean};
  };
  return {of(true), of(false)};
}

std::string text_of(const Json& value) {
  std::string text = value.dump();
  std::erase(text, '"');
  return text;
}

/// Ranges and directions over settings.
class FoundGains {
 public:
  void add(const SettingGains& each) {
    add("one", each.one);
    add("mixed", each.mixed);
    ++settings_;
    highest_ += each.has_highest() ? 1 : 0;
    wider_ += each.is_wider_for_mixed() ? 1 : 0;
  }
  void print() const {
    const auto missed = [this](int64_t count) { return count < settings_ ? " (**missed**)" : ""; };
    for (const auto& [name, range] : ranges_) fmt::print("- {}: {:.2f}× to {:.2f}×\n", name, range.first, range.second);
    fmt::print("- hybrid has the highest throughput in {} of {} settings, for one length and for mixed ones{}\n", highest_, settings_, missed(highest_));
    fmt::print("- its lead over batch-all/padded is larger for mixed lengths in {} of {}{}\n", wider_, settings_, missed(wider_));
  }

 private:
  void add(const std::string& kind, const Gains& each) {
    for (const auto& [name, value] : {std::pair{", over separate", each.over_separate}, std::pair{", over batch-all/padded", each.over_padded},
                                      std::pair{", mean JCT over separate", each.completion_over_separate}}) {
      auto& range = ranges_.try_emplace(kind + name, value, value).first->second;
      range = {std::min(range.first, value), std::max(range.second, value)};
    }
  }

  std::map<std::string, std::pair<double, double>> ranges_;
  int64_t settings_ = 0, highest_ = 0, wider_ = 0;
};

void ranges(const Json& file) {
  fmt::print("| parameter | value | lengths | hybrid over separate | hybrid over batch-all/padded | batch-all/padded over separate | mean JCT, hybrid over separate |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  FoundGains found;
  const auto look = [&](const std::string& name, const std::string& value, const Values& values) {
    const SettingGains gains = gains_of(file, values, 1);
    found.add(gains);
    for (const auto& [kind, each] : {std::pair{"one", gains.one}, std::pair{"mixed", gains.mixed}}) {
      fmt::print("| {} | {} | {} | {:.2f}× | {:.2f}× | {:.2f}× | {:.2f}× |\n", name, value, kind, each.over_separate, each.over_padded,
                 each.padded_over_separate, each.completion_over_separate);
    }
    std::fflush(stdout);
  };
  look("nominal", "", nominal_values(file));
  for (const Json& each : file.at("parameters")) {
    for (const Json& other : each.at("others")) {
      Values values = nominal_values(file);
      values[each.at("name")] = other;
      look(each.at("name"), text_of(other), values);
    }
  }
  fmt::print("\n");
  found.print();
}

/// All parameters at once: each drawn from its values, on a quarter of a day. Shown are the settings in which a direction turns.
void corners(const Json& file) {
  constexpr uint64_t seed = 20261126;
  constexpr int64_t settings = 200;
  FoundGains found;
  std::vector<std::string> turned;
  int64_t untrained = 0;
  for (int64_t i = 0; i < settings; ++i) {
    Values values;
    std::string text;
    uint64_t draw = 0;
    for (const Json& each : file.at("parameters")) {
      Json all = each.at("others");
      all.push_back(each.at("nominal"));
      const Json& value = all.at(uniform_below(seed + static_cast<uint64_t>(i), draw++, all.size()));
      values[each.at("name")] = value;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", each.at("name").get<std::string>(), text_of(value));
    }
    const SettingGains gains = gains_of(file, values, 0.25);
    if (!gains.has_figures()) {
      ++untrained;
      continue;
    }
    found.add(gains);
    if (gains.has_highest() && gains.is_wider_for_mixed()) continue;
    turned.push_back(fmt::format("{}: one {:.2f}× and {:.2f}×, mixed {:.2f}× and {:.2f}×", text, gains.one.over_separate, gains.one.over_padded,
                                 gains.mixed.over_separate, gains.mixed.over_padded));
  }
  found.print();
  fmt::print("- left out: {} settings in which an instance is too small for any job of one of the two kinds\n", untrained);
  for (const std::string& each : turned) fmt::print("- turned (hybrid over separate and over batch-all/padded): {}\n", each);
}

std::string speeds_of(const TraceSummary& each) {
  std::string text;
  for (const TenantSummary& tenant : each.tenants) text += fmt::format(" {:.1f}× |", tenant.slowdown);
  return text;
}

/// Every policy on a trace, and admission by deadlines. `by_tenant`: a column of mean slowdown for each tenant.
std::vector<StudyResult> compare_policies(const Trace& trace, const InstancesOfCluster& instances, int64_t most_jobs, bool by_tenant) {
  StudySettings settings = settings_for({"hybrid"}, true);
  settings.policies = policy_names();
  settings.options.most_jobs = most_jobs;
  std::string names, lines;
  if (by_tenant) {
    for (const std::string& tenant : trace.tenants) names += fmt::format(" {} |", tenant), lines += "---|";
  }
  fmt::print("| policy | tokens/s | mean JCT, min | median | p95 | p99 | waiting | fairness | deadlines missed | pre-emptions |{}\n|---|---|---|---|---|---|---|---|---|---|{}\n",
             names, lines);
  const auto print = [&](const TraceSummary& each, const std::string& name) {
    fmt::print("| {} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.3f} | {}/{} | {} |{}\n", name, each.tokens_per_s, each.completion_min.mean,
               each.completion_min.median, each.completion_min.p95, each.completion_min.p99, each.waiting_min.mean, each.fairness, each.missed,
               each.deadlines, each.preemptions, by_tenant ? speeds_of(each) : "");
    std::fflush(stdout);
  };
  std::vector<StudyResult> results = run_study(trace, instances, settings);
  for (const StudyResult& each : results) print(each.summary, each.summary.policy);
  settings.options.refuse_late = true;
  settings.policies = {"fcfs"};
  const TraceSummary admitted = run_study(trace, instances, settings).front().summary;
  print(admitted, fmt::format("fcfs, admission by deadlines ({} refused)", admitted.refused));
  return results;
}

void policies(const Json& file) {
  // A twentieth of the arrivals: what hybrid instances can carry.
  const Values values = nominal_values(file);
  compare_policies(trace_for(file, values, false, 7, 0.05), instances_for(file, values), 0, false);
}

void write_policy_charts(const std::filesystem::path& folder, const std::string& name, const Trace& trace, const std::vector<StudyResult>& results) {
  std::vector<ChartedTrace> curves;
  std::vector<TraceSummary> summaries;
  for (const StudyResult& each : results) {
    curves.push_back({each.summary.policy, &trace, &each.simulation});
    summaries.push_back(each.summary);
  }
  write(folder / fmt::format("simulation-{}-tenants.svg", name), tenant_chart(summaries));
  if (name == "tenants") {
    write(folder / "simulation-tenants-timeline.svg", timeline_chart(curves));
  } else {
    write(folder / fmt::format("simulation-{}-completion.svg", name), completion_chart(curves));
  }
}

Json policy_traces(const std::filesystem::path& parameters) {
  return Json::parse(read_file(parameters.parent_path() / "policy_traces.json"));
}

void overloaded(const Json& file, const std::filesystem::path& parameters, const std::filesystem::path& folder) {
  const Values values = nominal_values(file);
  const Json settings = policy_traces(parameters), &own = settings.at("overloaded");
  const Trace trace = trace_for(file, values, false, own.at("days"), own.at("load"));
  write_policy_charts(folder, "overloaded", trace, compare_policies(trace, instances_for(file, values), settings.at("most_jobs"), false));
}

/// One trace of tenants that are drawn apart.
Trace trace_of_tenants(const Json& settings) {
  Trace trace;
  std::vector<JobKind> kinds;
  uint64_t seed = 1;
  for (const Json& each : settings.at("tenants")) {
    PhillyTrace drawn{.seed = seed++, .minutes = settings.at("days").get<double>() * 24 * 60, .arrivals_per_minute = each.at("arrivals_per_minute")};
    drawn.mean_minutes = each.at("mean_minutes");
    drawn.deviation_minutes = each.at("deviation_minutes");
    drawn.rows = each.at("rows").get<std::vector<int64_t>>();
    drawn.row_tokens = each.at("tokens").get<std::vector<int64_t>>();
    drawn.tenants = 1;
    drawn.deadline_share = each.at("deadline_share");
    const double burst_s = 60 * each.value("burst_minutes", 0.0);
    const Trace own = philly_trace(drawn);
    for (TraceJob job : own.jobs) {
      kinds.push_back(own.kinds[static_cast<size_t>(job.kind)]);
      job.name = fmt::format("{}-{}", each.at("name").get<std::string>(), job.name);
      job.tenant = static_cast<int32_t>(trace.tenants.size());
      job.priority = each.at("priority");
      if (burst_s > 0) {
        const double moved = std::floor(job.arrival_s / burst_s) * burst_s - job.arrival_s;
        job.arrival_s += moved;
        job.deadline_s += moved;
      }
      trace.jobs.push_back(job);
    }
    trace.tenants.push_back(each.at("name"));
  }
  trace.kinds = kinds;
  std::sort(trace.kinds.begin(), trace.kinds.end());
  trace.kinds.erase(std::unique(trace.kinds.begin(), trace.kinds.end()), trace.kinds.end());
  for (size_t k = 0; k < kinds.size(); ++k) {
    trace.jobs[k].kind = static_cast<int32_t>(std::lower_bound(trace.kinds.begin(), trace.kinds.end(), kinds[k]) - trace.kinds.begin());
  }
  std::stable_sort(trace.jobs.begin(), trace.jobs.end(), [](const TraceJob& a, const TraceJob& b) { return a.arrival_s < b.arrival_s; });
  return trace;
}

void tenants(const Json& file, const std::filesystem::path& parameters, const std::filesystem::path& folder) {
  const Json settings = policy_traces(parameters);
  const Trace trace = trace_of_tenants(settings.at("tenants"));
  write_policy_charts(folder, "tenants", trace, compare_policies(trace, instances_for(file, nominal_values(file)), settings.at("most_jobs"), true));
}

void stragglers(const Json& file, const std::filesystem::path& folder) {
  const InstanceSpec instance = instances_for(file, nominal_values(file)).spec;
  std::vector<JobShape> jobs;
  for (const int64_t tokens : {64, 128, 128, 256, 256, 512}) {
    JobShape& job = jobs.emplace_back();
    job.name = fmt::format("job{}-{}", jobs.size() - 1, tokens);
    job.batch_size = 16;
    job.lengths.weights = {{tokens, 1.0}};
    job.adapters = adapter_shapes(JobKind{16, tokens, AdapterMethod::lora, 16}, static_cast<int32_t>(jobs.size()) - 1, instance.model);
  }
  const ClusterSpec cluster = cluster_for(file, nominal_values(file));
  const Plan plan = plan_instance(instance.model, cluster, jobs, {instance.tensor_parallel, instance.pipeline_stages}, {});
  fmt::print("| slow | step | over planned | idle |\n|---|---|---|---|\n");
  const auto look = [&](const std::string& what, const Disturbances& slow) {
    const PlanStudy study = study_plan(plan, instance.model, cluster, jobs, slow);
    fmt::print("| {} | {:.0f} ms | {:.3f}× | {:.1f}% |\n", what, 1e3 * study.step_s, study.step_s / study.planned_step_s,
               100 * study.replicas.front().idle);
    return study;
  };
  look("nothing", {});
  for (const double factor : {1.1, 1.25, 1.5, 2.0}) {
    for (const int32_t rank : {0, 3}) {
      const PlanStudy study = look(fmt::format("stage {}, {}×", rank, factor), {{{.rank = rank, .factor = factor}}, {}});
      if (factor != 1.5 || rank != 3) continue;
      const ReplicaRun& run = study.replicas.front().runs.front().run;
      write(folder / "simulation-step.svg", render_svg(run.schedule, run.simulation, {.title = "Two steps of six jobs; the last stage is 1.5 times slower than planned"}));
    }
  }
  for (const double factor : {4.0, 16.0, 64.0}) look(fmt::format("link 1-2, {}×", factor), {{}, {{1, 2, factor}}});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw_user_error("usage: simulation_bench PARAMETERS.json week|ranges|corners|policies|overloaded|tenants|stragglers [FOLDER]");
    const Json file = Json::parse(read_file(argv[1]));
    const std::string what = argv[2];
    const std::filesystem::path folder = argc > 3 ? argv[3] : ".";
    if (what == "week") week(file, folder, {argv + std::min(argc, 4), argv + argc});
    if (what == "ranges") ranges(file);
    if (what == "corners") corners(file);
    if (what == "policies") policies(file);
    if (what == "overloaded") overloaded(file, argv[1], folder);
    if (what == "tenants") tenants(file, argv[1], folder);
    if (what == "stragglers") stragglers(file, folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
