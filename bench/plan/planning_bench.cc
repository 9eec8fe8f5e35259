/// The planner's figures beside the papers', as the rows of docs/planning.md (bench/planning.py puts them there). Times are
/// of the CPU, so that other programs on the machine do not count, but for all of `cotune plan`, which takes all cores.
///
///   planning_bench [PART…]     all parts, or those named
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/process_cores.h"
#include "base/random.h"
#include "base/steady_seconds.h"
#include "dispatch_study.h"
#include "distributions.h"
#include "plan/cost/published_rates.h"
#include "plan/cost/replica_costs.h"
#include "plan/deployment/deployment.h"
#include "plan/fusion_figures.h"
#include "plan/node_changes.h"
#include "plan/shapes/length_buckets.h"
#include "plan/shapes/length_histogram.h"
#include "plan/shapes/published_lengths.h"
#include "rows.h"

using namespace cotune;

namespace {

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// The expected step of tasks of Table 4.
LengthBuckets expected_step(const std::vector<std::string>& tasks, LengthFamily family) {
  return expected_of(draw(published_tasks(family, tasks), 77, 100));
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

void worked_example() {
  std::vector<Configuration> configurations;
  for (const Configuration& each : published_7b_configurations()) {
    if (each.pipeline_stages == 1) configurations.push_back(each);
  }
  const DeploymentLimits exact = {.gap = 0, .dispatch = {.gap = 0, .nodes = 10'000'000}};
  const Deployment plan = plan_deployment(bucket_costs(configurations, table_lengths), Counts{196, 62, 16, 4}, 16, exact);
  fmt::print("| LobRA's worked example, Table 3's rates | <1,1>×4, <2,1>×2, <8,1>×1; 14.829 s by those rates | the same | {}; {:.3f} s |\n",
             plan_text(configurations, plan.replicas), plan.dispatch.makespan);
}

void proposal() {
  const auto proposed = propose_configurations(published_7b_configurations(), table_lengths);
  std::vector<std::string> names;
  for (const Configuration& each : proposed) names.push_back(each.name());
  fmt::print("| configurations proposed from Table 3 | six | the six | {} |\n", fmt::join(names, " "));
}

void dispatch() {
  const DispatchStudy study;
  std::vector<double> seconds, gaps;
  for (uint64_t round = 0; round < DispatchStudy::rounds; ++round) {
    const Counts lengths = study.lengths(round);
    const double start = cpu_seconds();
    const Dispatch result = DispatchStudy::solve(study.problem(lengths));
    seconds.push_back(cpu_seconds() - start);
    gaps.push_back(result.gap());
  }
  fmt::print("| dispatch of a round with its buckets, 16 × 5, 300 rounds | – | median 20 ms, p99 100 ms, within 1 % | median {:.1f} ms, "
             "p99 {:.1f} ms{}; by its own bound within {:.1f} % in the median, {:.1f} % in the worst (by HiGHS: below) |\n",
             1e3 * quantile(seconds, 0.5), 1e3 * quantile(seconds, 0.99), missed_unless(quantile(seconds, 0.5) <= 0.02 && quantile(seconds, 0.99) <= 0.1),
             100 * quantile(gaps, 0.5), 100 * quantile(gaps, 1));
}

/// Boundaries alone, of a round of LobRA's 7B study.
void bucketing_time() {
  constexpr int64_t rows = 1696, intervals = 64, rounds = 100;
  std::vector<double> seconds;
  for (uint64_t round = 0; round < rounds; ++round) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < rows; ++i) lengths.push_back(1 + static_cast<int64_t>(uniform(round, static_cast<uint64_t>(i)) * 256 * intervals));
    const double start = cpu_seconds();
    bucket_lengths(lengths);
    seconds.push_back(cpu_seconds() - start);
  }
  print_row("LB-20: boundaries of 16 buckets for 1,696 rows over 64 intervals", "–", "5 ms",
            fmt::format("median {:.2f} ms, at most {:.2f} ms{}", 1e3 * quantile(seconds, 0.5), 1e3 * quantile(seconds, 1),
                        missed_unless(quantile(seconds, 0.5) <= 0.005)));
}

/// Llama-2-70B with the tasks of the scalability study.
std::vector<JobShape> scalability_jobs(const ModelConfig& model) {
  std::vector<JobShape> jobs;
  for (const std::string& task : four_tasks) {
    for (const PublishedDataset& dataset : published_datasets()) {
      if (dataset.name != task) continue;
      JobShape& job = jobs.emplace_back();
      job.name = task;
      job.batch_size = dataset.batch;
      job.lengths = published_lengths(task + "-lognormal");
      JobSpec spec;
      spec.adapter.r = 16;
      job.adapters = adapter_shapes(spec, static_cast<int32_t>(jobs.size()) - 1, model);
    }
  }
  return jobs;
}

/// Nodes of eight A800 with 80 GB.
ClusterSpec a800_nodes(int64_t count) {
  ClusterSpec cluster;
  cluster.nodes = {{.name = "a800", .count = count, .devices = 8, .device = device_preset("A800-80"),
                    .link = link_preset("nvlink-400")}};
  cluster.network = link_preset("infiniband-200");
  return cluster;
}

/// What `cotune plan` does: all alternatives simulated, and what a node more or fewer would change. On all cores, by the clock on the wall.
void whole_plan_time() {
  const ModelConfig model = model_preset("llama-2-70b");
  const std::vector<JobShape> jobs = scalability_jobs(model);
  for (const auto& [nodes, goal] : {std::pair<int64_t, double>{2, 0.5}, {8, 3}, {32, 10}}) {
    const ClusterSpec cluster = a800_nodes(nodes);
    const PlanOptions options{.threads = static_cast<int64_t>(cores_of_this_process().size())};
    const double start = steady_seconds();
    const PlanningResult result = make_plan(model, cluster, jobs, options);
    const double planned = steady_seconds() - start;
    const size_t changes = node_changes(model, cluster, jobs, options, result).size();
    const double seconds = steady_seconds() - start;
    print_row(fmt::format("all of cotune plan, 70B, four tasks, {} devices", cluster.device_count()), "–",
              fmt::format("{:g} s", goal),
              fmt::format("{:.2f} s{}, of them {:.2f} s for {} other counts of nodes; {} alternatives; {}, {:.2f} s a step",
                          seconds, seconds > goal ? " (**missed**)" : "", seconds - planned, changes,
                          result.alternatives.size(), replicas_text(*result.plan()), result.plan()->predicted.seconds));
  }
}

/// MuxTune's Table 2 four times, on one core (MX-28).
void time_of_many_jobs() {
  const ModelConfig model = model_preset("llama-2-7b");
  constexpr std::array<int64_t, 8> batches{4, 2, 4, 4, 8, 2, 4, 4}, lengths{256, 64, 256, 64, 64, 256, 256, 256};  // as the tests' stand-ins
  std::vector<JobShape> jobs;
  for (int32_t i = 0; i < 32; ++i) {
    JobShape& job = jobs.emplace_back();
    job.name = fmt::format("job {}", i);
    job.batch_size = batches[static_cast<size_t>(i) % batches.size()];
    job.lengths = histogram_of({&lengths[static_cast<size_t>(i) % lengths.size()], 1});
    JobSpec spec;
    spec.adapter.r = 16;
    job.adapters = adapter_shapes(spec, i, model);
  }
  ClusterSpec cluster;
  cluster.nodes = {{.name = "a40", .count = 1, .devices = 4, .device = device_preset("A40"), .link = link_preset("pcie4")}};
  const double start = cpu_seconds();
  const PlanningResult result = make_plan(model, cluster, jobs, {.threads = 1});
  const double seconds = cpu_seconds() - start;
  print_row("MX-28: all of cotune plan, Llama-2-7B, 32 jobs, 4 devices, one core", "under 10 s", "1 s",
            fmt::format("{:.2f} s{}; {} alternatives; {}", seconds, missed_unless(seconds <= 1), result.alternatives.size(), replicas_text(*result.plan())));
}

void planning_time() {
  const ModelConfig model = model_preset("llama-2-70b");
  const std::vector<JobShape> jobs = scalability_jobs(model);
  const LengthBuckets step = expected_step(four_tasks, LengthFamily::lognormal);
  struct Case {
    int64_t nodes;
    const char* paper;
    const char* goal;
  };
  for (const Case& each : {Case{2, "0.014", "0.014"}, Case{8, "148.81", "1"}, Case{32, "428.08", "5"}}) {
    const ClusterSpec cluster = a800_nodes(each.nodes);
    const double before = cpu_seconds();
    std::vector<Configuration> candidates;
    for (const ReplicaCandidate& candidate : replica_candidates(model, jobs, cluster, cluster.nodes[0], "bfloat16", {.most_devices = 16})) {
      if (candidate.configuration.chunk_tokens > 0) candidates.push_back(candidate.configuration);
    }
    const double pricing = cpu_seconds() - before;
    for (const bool is_proposed : {true, false}) {
      const double begun = cpu_seconds();
      const auto configurations = is_proposed ? propose_configurations(candidates, step.tokens) : candidates;
      const auto costs = bucket_costs(configurations, step.tokens);
      const double preparing = pricing + cpu_seconds() - begun;  // whatever the dealing
      for (const Dealing dealing : {Dealing::by_row, Dealing::evenly}) {
        const double start = cpu_seconds();
        const Deployment plan = plan_deployment(costs, step.sequences, cluster.device_count(), {.dealing = dealing});
        const double seconds = preparing + cpu_seconds() - start;
        print_row(fmt::format("planning, 70B, four tasks, {} devices, {}{}", cluster.device_count(),
                              dealing == Dealing::by_row ? "rows dealt to single replicas" : "Eq. 2 to the letter",
                              is_proposed ? "" : ", all configurations"),
                  fmt::format("{} s", each.paper), fmt::format("{} s, equal quality proven", each.goal),
                  fmt::format("{:.3f} s{}; {} configurations, {} plans; {}; {:.2f} s, at least {:.2f} s: within {:.1f} %{}", seconds,
                              missed_unless(seconds <= std::stod(each.goal)), configurations.size(), plan.enumerated,
                              plan_text(configurations, plan.replicas), plan.dispatch.makespan, plan.lower_bound,
                              100 * (plan.dispatch.makespan / plan.lower_bound - 1),
                              missed_unless(plan.dispatch.makespan <= 1.0011 * plan.lower_bound)));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  struct Part {
    std::string_view name;
    void (*print)();
  };
  const Part parts[] = {
      {"lobra", [] { worked_example(), proposal(), published_7b_plan_rows(); }},
      {"ablation", ablation_rows},
      {"70b", table6_rows},
      {"plans", published_plan_rows},
      {"planning", [] { dispatch(), bucketing_time(), planning_time(); }},
      {"optima", dispatch_optimum_rows},
      {"plan", [] { whole_plan_time(), time_of_many_jobs(); }},
      {"deployments", deployment_rows},
      {"fusion", print_fusion_figures},
      {"order", order_rows},
      {"headlines", [] { muxtune_throughput_rows(), muxtune_memory_rows(), mlora_throughput_rows(); }},
      {"steps", lobra_step_rows},
      {"chunks", chunk_time_rows},
      {"scaling", scaling_rows},
      {"curves", sharing_curve_rows},
      {"literal", literal_form_rows},
  };
  const std::vector<std::string_view> asked(argv + 1, argv + argc);
  for (const std::string_view name : asked) {
    if (std::any_of(std::begin(parts), std::end(parts), [&](const Part& each) { return each.name == name; })) continue;
    fmt::print(stderr, "there is no part `{}`; there are", name);
    for (const Part& each : parts) fmt::print(stderr, " {}", each.name);
    fmt::print(stderr, "\n");
    return 2;
  }
  fmt::print("| what | paper | goal | here |\n|---|---|---|---|\n");
  for (const Part& each : parts) {
    if (asked.empty() || std::count(asked.begin(), asked.end(), each.name) > 0) each.print();
    std::fflush(stdout);
  }
}
