/// A hundred steps of LobRA on 7B: planning hidden behind training (LB-19), four systems over the same steps (LB-24), and how
/// evenly replicas end and what planning in two stages loses (LB-27).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <numeric>

#include "chunked_step.h"
#include "distributions.h"
#include "plan/cost/published_rates.h"
#include "plan/deployment/system_deployments.h"
#include "rows.h"

namespace cotune {
namespace {

constexpr int64_t devices = 16;
constexpr uint64_t steps = 100;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// A hundred steps of the six tasks on the published plan of 7B.
struct Steps {
  explicit Steps(LengthFamily family)
      : tasks(published_tasks(family, six_tasks)),
        configurations(propose_configurations(published_7b_configurations(), table_lengths)),
        plan(replicas_of(configurations, {{"<1,1>", 6}, {"<2,1>", 1}, {"<8,1>", 1}})),
        sample(bucket_lengths(draw(tasks, 77, 100))) {}
  Counts lengths(uint64_t step) const { return draw(tasks, 3000 + step, 1); }

  std::vector<TaskLengths> tasks;
  std::vector<Configuration> configurations;
  Counts plan;
  LengthBuckets sample;
};

/// LB-19: the next round's buckets and dispatch are found while this one runs.
void hidden_planning() {
  for (const LengthFamily family : all_length_families) {
    const Steps study(family);
    std::vector<double> planning, joint, step_seconds;
    double exposed = 0, hidden = 0;
    for (uint64_t step = 0; step < steps; ++step) {
      const Counts lengths = study.lengths(step);
      double start = cpu_seconds();
      const LengthBuckets buckets = bucket_lengths(lengths);
      const auto costs = bucket_costs(study.configurations, buckets.tokens);
      const Dispatch dispatch = dispatch_balanced(costs, study.plan, buckets.sequences, {.gap = 0.005});
      planning.push_back(cpu_seconds() - start);
      start = cpu_seconds();
      plan_deployment(costs, buckets.sequences, devices);
      joint.push_back(cpu_seconds() - start);
      // Planned behind the step before, which takes step_seconds.back(); the first has none.
      if (step > 0) {
        const double late = std::max(0.0, planning.back() - step_seconds.back());
        exposed += late;
        hidden += planning.back() - late;
      }
      step_seconds.push_back(dispatch.makespan);
    }
    print_row(fmt::format("LB-19: planning of the next step beside the step that hides it, 7B, 16 devices, {} lengths, 100 steps", to_string(family)),
              "fully hidden; Eq. 1 anew in every step takes longer than a step", "nothing exposed from the second step on",
              fmt::format("median {:.1f} ms, longest {:.1f} ms, of steps of {:.1f} to {:.1f} s: exposed {:.3f} s, hidden {:.2f} s; Eq. 1 anew: "
                          "median {:.0f} ms, longest {:.0f} ms",
                          1e3 * quantile(planning, 0.5), 1e3 * quantile(planning, 1), quantile(step_seconds, 0), quantile(step_seconds, 1), exposed,
                          hidden, 1e3 * quantile(joint, 0.5), 1e3 * quantile(joint, 1)));
  }
}

/// The slowest replica over the mean of all devices.
double unevenness(const Steps& study, const std::vector<double>& replica_seconds) {
  double busy = 0;
  size_t next = 0;
  for (size_t i = 0; i < study.plan.size(); ++i) {
    for (int64_t k = 0; k < study.plan[i]; ++k) busy += static_cast<double>(study.configurations[i].devices()) * replica_seconds[next++];
  }
  return *std::max_element(replica_seconds.begin(), replica_seconds.end()) * static_cast<double>(devices) / busy;
}

/// LB-27, Fig. 9: how evenly the replicas end, and how long the rows are that each kind of replica gets.
void case_study() {
  for (const LengthFamily family : all_length_families) {
    const Steps study(family);
    double uneven[3] = {};
    std::vector<double> tokens(study.configurations.size(), 0), rows(study.configurations.size(), 0);
    double origin_worst = 0;
    std::vector<double> over_origin, over_estimate;
    for (uint64_t step = 0; step < steps; ++step) {
      const Counts lengths = study.lengths(step);
      Counts boundaries = study.sample.tokens;
      boundaries.back() = std::max(boundaries.back(), *std::max_element(lengths.begin(), lengths.end()));
      const LengthBuckets fixed = sort_into_buckets(lengths, boundaries), best = bucket_lengths(lengths);
      const auto fixed_costs = bucket_costs(study.configurations, fixed.tokens), costs = bucket_costs(study.configurations, best.tokens);
      const Dispatch dispatches[] = {dispatch_greedily(fixed_costs, study.plan, fixed.sequences), dispatch_balanced(fixed_costs, study.plan, fixed.sequences),
                                     dispatch_balanced(costs, study.plan, best.sequences)};
      for (size_t k = 0; k < 3; ++k) {
        const auto each = replica_seconds(study.configurations, study.plan, k < 2 ? fixed : best, dispatches[k]);
        uneven[k] += unevenness(study, each) / static_cast<double>(steps);
        if (k == 2) over_estimate.push_back(*std::max_element(each.begin(), each.end()) / dispatches[k].makespan - 1);
      }
      for (size_t i = 0; i < study.configurations.size(); ++i) {
        for (size_t j = 0; j < dispatches[2].sequences[i].size(); ++j) {
          rows[i] += static_cast<double>(dispatches[2].sequences[i][j]);
          tokens[i] += static_cast<double>(dispatches[2].sequences[i][j] * best.tokens[j]);
        }
      }
      const double origin = plan_deployment(costs, best.sequences, devices).dispatch.makespan;
      over_origin.push_back(dispatches[2].makespan / origin);
      origin_worst = std::max(origin_worst, over_origin.back());
    }
    std::vector<std::string> lengths;
    for (size_t i = 0; i < study.configurations.size(); ++i) {
      if (rows[i] > 0) lengths.push_back(fmt::format("{} {:.0f}", study.configurations[i].name(), tokens[i] / rows[i]));
    }
    print_row(fmt::format("LB-27: slowest replica over the mean of all devices, 7B, published plan, {} lengths, 100 steps: greedy, balanced, + buckets", to_string(family)),
              "severely uneven; near equal; near equal", "above 1.3; at most 1.05; at most 1.05",
              fmt::format("{:.2f}{}, {:.2f}{}, {:.2f}{}; mean tokens of a row, padded: {}", uneven[0], missed_unless(uneven[0] > 1.3), uneven[1],
                          missed_unless(uneven[1] <= 1.05), uneven[2], missed_unless(uneven[2] <= 1.05), fmt::join(lengths, ", ")));
    // Our own plan for the expected step, which is what the first stage of the decomposition makes.
    const StepWork average{bucket_costs(study.configurations, study.sample.tokens), average_step(study.sample.sequences, 100)};
    const Counts own = deploy_unlike(average, devices).replicas;
    std::vector<double> own_over_origin;
    for (uint64_t step = 0; step < steps; ++step) {
      const LengthBuckets best = bucket_lengths(study.lengths(step));
      const auto costs = bucket_costs(study.configurations, best.tokens);
      own_over_origin.push_back(dispatch_balanced(costs, own, best.sequences).makespan / plan_deployment(costs, best.sequences, devices).dispatch.makespan);
    }
    print_row(fmt::format("LB-27: step of two-stage planning over that of Eq. 1 anew, 7B, {} lengths, 100 steps", to_string(family)),
              "within 15 %, mostly equal", "median at most 1.05, worst 1.15",
              fmt::format("our plan {}: median {:.3f}{}, worst {:.3f}{}; the published plan: {:.3f}, {:.3f}; dealt to replicas and cut into chunks, over the "
                          "estimate: {:+.1f} to {:+.1f} %",
                          plan_text(study.configurations, own), quantile(own_over_origin, 0.5), missed_unless(quantile(own_over_origin, 0.5) <= 1.05),
                          quantile(own_over_origin, 1), missed_unless(quantile(own_over_origin, 1) <= 1.15), quantile(over_origin, 0.5),
                          origin_worst, 100 * quantile(over_estimate, 0), 100 * quantile(over_estimate, 1)));
  }
}

/// LB-24: the four systems over the same hundred steps.
void protocol() {
  for (const LengthFamily family : all_length_families) {
    const Steps study(family);
    struct Plan {
      Counts together;
      std::vector<Counts> alone;
    };
    const auto work_of = [&](const std::vector<TaskLengths>& tasks) {
      const LengthBuckets sample = bucket_lengths(draw(tasks, 77, 100));
      return StepWork{bucket_costs(study.configurations, sample.tokens), average_step(sample.sequences, 100)};
    };
    Plan alike, unlike;
    alike.together = deploy_alike(work_of(study.tasks), devices).replicas;
    unlike.together = deploy_unlike(work_of(study.tasks), devices).replicas;
    for (const TaskLengths& task : study.tasks) {
      alike.alone.push_back(deploy_alike(work_of({task}), devices).replicas);
      unlike.alone.push_back(deploy_unlike(work_of({task}), devices).replicas);
    }
    std::map<System, std::vector<double>> seconds;
    const auto run = [&](const Counts& lengths, const Counts& plan) {
      const LengthBuckets best = bucket_lengths(lengths);
      return static_cast<double>(devices) * dispatch_balanced(bucket_costs(study.configurations, best.tokens), plan, best.sequences).makespan;
    };
    for (uint64_t step = 0; step < steps; ++step) {
      seconds[System::task_fused].push_back(run(study.lengths(step), alike.together));
      seconds[System::lobra].push_back(run(study.lengths(step), unlike.together));
      double sequential = 0, lobra_sequential = 0;
      for (size_t k = 0; k < study.tasks.size(); ++k) {
        const Counts own = draw({study.tasks[k]}, 3000 + step, 1);
        sequential += run(own, alike.alone[k]);
        lobra_sequential += run(own, unlike.alone[k]);
      }
      seconds[System::task_sequential].push_back(sequential);
      seconds[System::lobra_sequential].push_back(lobra_sequential);
    }
    std::vector<std::string> parts;
    std::map<System, double> means;
    for (const System system : all_systems) {
      const std::vector<double>& values = seconds[system];
      const double mean = mean_of(values);
      double squares = 0;
      for (const double each : values) squares += (each - mean) * (each - mean);
      const double deviation = 100 * std::sqrt(squares / static_cast<double>(steps)) / mean;
      means[system] = mean;
      parts.push_back(fmt::format("{} {:.0f} GPU s ± {:.1f} %{}", to_string(system), mean, deviation, missed_unless(deviation <= 10)));
    }
    const bool in_order = means[System::lobra] < means[System::lobra_sequential] && means[System::lobra_sequential] < means[System::task_sequential] &&
                          means[System::task_sequential] < means[System::task_fused];
    print_row(fmt::format("LB-24: four systems over the same 100 steps, 7B, 16 devices, {} lengths, every step in buckets of its own", to_string(family)),
              "deviation within 10 %; LobRA < LobRA-Sequential < Task-Sequential < Task-Fused", "the same",
              fmt::format("{}; the order{}", fmt::join(parts, ", "), in_order ? " holds" : missed_unless(false)));
  }
}

}  // namespace

void lobra_step_rows() {
  hidden_planning();
  case_study();
  protocol();
}

}  // namespace cotune
