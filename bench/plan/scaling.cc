/// More devices and more tasks: LobRA's Fig. 11 (LB-34) and MuxTune's Fig. 21(a) (MX-41).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "plan/cost/pipeline_seconds.h"
#include "plan/deployment/system_deployments.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "rows.h"
#include "table6.h"

namespace cotune {
namespace {

constexpr int steps = 10;

/// Adapters of rank 16 of every task, summed over replicas once a step: each rank of the smallest replica sends its share.
double exchange_seconds(const Table6Model& model, const std::vector<Configuration>& configurations, const Counts& replicas, size_t tasks) {
  int64_t count = 0, smallest = 64;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] == 0) continue;
    count += replicas[i];
    smallest = std::min(smallest, configurations[i].devices());
  }
  const double bytes = 4.0 * static_cast<double>(tasks) * model.trained_values() / static_cast<double>(smallest);
  return count > 1 ? all_reduce_seconds(bytes, count, link_preset("infiniband-200")) : 0;
}

/// `copies` of the four tasks of the scalability study.
std::vector<TaskLengths> copies_of_tasks(LengthFamily family, int copies) {
  std::vector<TaskLengths> tasks;
  for (int copy = 0; copy < copies; ++copy) {
    for (TaskLengths task : published_tasks(family, {"evol-instruct", "commitpackft", "billsum", "pubmedqa"})) {
      if (copy > 0) task.name += fmt::format(" {}", copy + 1);
      tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

struct Scaled {
  double fused = 0, lobra = 0, published = 0;  ///< GPU seconds
  std::string plan;
};

Scaled scaled(const Table6Model& model, const Table6Constants& constants, LengthFamily family, int64_t devices, int copies,
              const std::vector<std::pair<std::string, int64_t>>& published) {
  const std::vector<Configuration> configurations = model.configurations(constants);
  const std::vector<TaskLengths> tasks = copies_of_tasks(family, copies);
  const auto gpu_seconds = [&](const Counts& replicas, bool is_lobra) {
    const double seconds = model.step_seconds(configurations, replicas, tasks, steps, is_lobra) +
                           exchange_seconds(model, configurations, replicas, tasks.size());
    return static_cast<double>(devices) * seconds;
  };
  const Counts plan = model.best_of_samples(configurations, tasks, devices);
  Scaled result{.fused = gpu_seconds(replicas_of(configurations, {{"<16,1>", devices / 16}}), false), .plan = plan_text(configurations, plan)};
  result.lobra = gpu_seconds(plan, true);
  result.published = gpu_seconds(replicas_of(configurations, published), true);
  return result;
}

/// Of a straight line through the points.
double r_squared(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0, syy = 0;
  for (size_t k = 0; k < x.size(); ++k) sx += x[k], sy += y[k], sxx += x[k] * x[k], sxy += x[k] * y[k], syy += y[k] * y[k];
  const double covariance = n * sxy - sx * sy;
  return covariance * covariance / ((n * sxx - sx * sx) * (n * syy - sy * sy));
}

void lobra_scaling() {
  const Table6Model model;
  const auto constants = read_table6_constants();
  for (const LengthFamily family : all_length_families) {
    const Table6Constants& fitted = constants.at(std::string(to_string(family)));
    std::vector<std::string> parts;
    double padded_less = 0;  // share, on 16 devices, where both have one replica
    const std::map<int64_t, std::vector<std::pair<std::string, int64_t>>> by_devices = {
        {16, {{"<16,1>", 1}}},
        {32, {{"<2,4>", 1}, {"<4,2>", 1}, {"<16,1>", 1}}},
        {64, {{"<2,4>", 3}, {"<4,2>", 1}, {"<8,1>", 2}, {"<16,1>", 1}}}};
    for (const auto& [devices, published] : by_devices) {
      const Scaled at = scaled(model, fitted, family, devices, 1, published);
      parts.push_back(fmt::format("{}: {:.0f}, {:.0f} ({}), {:.0f}", devices, at.fused, at.lobra, at.plan, at.published));
      if (devices == 16) padded_less = 1 - at.published / at.fused;
    }
    print_row(
        fmt::format(
            "LB-34: 70B, four tasks, {} lengths, GPU s of a step on 16, 32 and 64 devices: Task-Fused, LobRA with our plan, with the published one",
            to_string(family)),
        "equal at 16; Task-Fused rises slightly, LobRA falls", "1.0 at 16; LobRA falls",
        fmt::format("{}; of one replica on 16 LobRA's {:.1f} % are what buckets of each step pad less", fmt::join(parts, "; "), 100 * padded_less));
    parts.clear();
    std::vector<double> tasks, fused, lobra;
    for (const int copies : {1, 2, 3, 4}) {
      const std::vector<std::pair<std::string, int64_t>> published =
          copies == 1 ? by_devices.at(64) : std::vector<std::pair<std::string, int64_t>>{{"<2,4>", 3}, {"<4,2>", 2}, {"<8,1>", 1}, {"<16,1>", 1}};
      const Scaled at = scaled(model, fitted, family, 64, copies, published);
      tasks.push_back(4.0 * copies);
      fused.push_back(at.fused);
      lobra.push_back(at.lobra);
      parts.push_back(fmt::format("{}: {:.0f}, {:.0f}, {:.0f}", 4 * copies, at.fused, at.lobra, at.published));
    }
    print_row(fmt::format("LB-34: the same on 64 devices, 4, 8, 12 and 16 tasks (the four, repeated)"), "near-linear; LobRA always lower", "R² at least 0.98; LobRA lower",
              fmt::format("{}; R² {:.3f} and {:.3f}", fmt::join(parts, "; "), r_squared(tasks, fused), r_squared(tasks, lobra)));
  }
}

/// Two tasks a device, batch 128 of 128 tokens, 16 microbatches: one pipeline over all devices, or instances of four.
void instance_scaling() {
  struct Rates {
    double ours = 0, separate = 0;  ///< tokens/s
  };
  const auto rates_of = [](int64_t stages, int32_t tasks) {
    ReplicaJobs replica{.model = model_preset("llama-2-7b")};
    for (int32_t j = 0; j < tasks; ++j) {
      JobSpec spec;
      spec.adapter.r = 16;
      JobShape shape{.batch_size = 128, .adapters = adapter_shapes(spec, j, replica.model)};
      shape.lengths.weights = {{128, 1.0}};
      replica.jobs.push_back(std::move(shape));
    }
    replica.stages = even_stages(replica.model, stages, 1);
    replica.machine = {device_preset("A40"), {}, "bfloat16"};
    // A node has eight; beyond them stages talk over the network.
    replica.between_stages = link_preset(stages > 8 ? "infiniband-100" : "nvlink-112");
    const FusionProblem problem = fusion_problem(replica, 16);
    double alone = 0;
    for (const StageCost& stage : problem.cost(std::vector<int32_t>{0}).stages) alone = std::max(alone, stage.forward_s + stage.backward_s);
    const double tokens = 128.0 * 128 * tasks;
    return Rates{tokens / choose_hybrid_tasks(std::span(&problem, 1)).chosen.seconds, tokens / (tasks * even_chunks_seconds(alone, 16, stages))};
  };
  std::vector<std::string> up;
  const Rates four = rates_of(4, 8);
  for (const int64_t devices : {4, 8, 16, 32}) {
    const Rates deep = rates_of(devices, static_cast<int32_t>(2 * devices));
    const auto times = static_cast<double>(devices) / 4;
    up.push_back(fmt::format("{}: {:.2f}, {:.2f}, {:.2f}×", devices, deep.ours / four.ours / times, deep.separate / four.separate / times, deep.ours / deep.separate));
  }
  print_row("MX-41: LLaMA-7B on 4, 8, 16 and 32 × A40, two tasks a device, one pipeline: efficiency against four devices, ours and NeMo's way; ours over it",
            "growing alone: sub-linear, MuxTune above NeMo", "sub-linear; above 1×", fmt::format("{}", fmt::join(up, "; ")));
  print_row("the same, grown to four devices, then replicated", "near-linear for both", "efficiency at least 0.9",
            fmt::format("instances share nothing, tasks are whole on one of them: 1.00 by construction; {:.0f} tokens/s an instance, {:.2f}× NeMo's way", four.ours,
                        four.ours / four.separate));
}

}  // namespace

void scaling_rows() {
  lobra_scaling();
  instance_scaling();
}

}  // namespace cotune
