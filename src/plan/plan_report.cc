#include "plan/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "plan/deployment/configuration.h"
#include "plan/placement.h"

namespace cotune {
namespace {

std::string share_text(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

std::string money_text(double cost) {
  return cost > 0 ? fmt::format("{:.4g}", cost) : "-";
}

/// a100[0].0-3: runs of devices of a node.
std::string devices_text(const PlannedReplica& replica) {
  std::vector<PlannedDevice> all;
  for (const PlannedStage& stage : replica.stages)
    all.insert(all.end(), stage.devices.begin(), stage.devices.end());
  std::vector<std::string> parts;
  for (size_t first = 0; first < all.size();) {
    size_t last = first;
    while (last + 1 < all.size() && all[last + 1].nodes == all[first].nodes &&
           all[last + 1].node == all[first].node && all[last + 1].device == all[last].device + 1) {
      ++last;
    }
    parts.push_back(first == last
                        ? fmt::format("{}[{}].{}", all[first].nodes, all[first].node, all[first].device)
                        : fmt::format("{}[{}].{}-{}", all[first].nodes, all[first].node, all[first].device,
                                      all[last].device));
    first = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

constexpr size_t most_buckets_shown = 16;

/// `a + b | c & d`: a and b share microbatches; those of c and of d run in one clock.
std::string tasks_text(const Plan& plan, const PlannedReplica& replica, const SweepOfJob& sweeps) {
  std::vector<std::string> buckets;
  for (const std::vector<int32_t>& bucket : replica.buckets) {
    if (buckets.size() == most_buckets_shown) {
      buckets.push_back(fmt::format("{} more", replica.buckets.size() - buckets.size()));
      break;
    }
    std::vector<std::string> tasks;
    for (const int32_t task : bucket) {
      tasks.push_back(job_list(names_of_jobs(plan, replica.hybrid_tasks[static_cast<size_t>(task)]), sweeps, " + "));
    }
    buckets.push_back(fmt::format("{}", fmt::join(tasks, " & ")));
  }
  return fmt::format("{}", fmt::join(buckets, " | "));
}

/// `1.05 | 1.42`, in the order of tasks_text.
std::string backward_text(const PlannedReplica& replica) {
  std::vector<std::string> ratios;
  for (const double ratio : replica.backward_ratio) {
    if (ratios.size() == most_buckets_shown) break;
    ratios.push_back(fmt::format("{:.2f}", ratio));
  }
  return fmt::format("{}", fmt::join(ratios, " | "));
}

/// "" where all backwards are about as long as their forwards.
std::string uneven_text(const PlannedReplica& replica) {
  const size_t count = replica.uneven_buckets().size();
  return count == 0 ? "" : fmt::format("; above {} in {}: far from equal", uneven_backward, counted(static_cast<int64_t>(count), "bucket"));
}

void explain_replica(std::string& text, const Plan& plan, size_t index, const SweepOfJob& sweeps) {
  const PlannedReplica& replica = plan.replicas[index];
  text += fmt::format("  replica {}: {} on {}{}{}\n", index,
                      configuration_name(replica.tensor_parallel, replica.is_sequence_parallel, replica.pipeline_stages(), 1), devices_text(replica),
                      replica.is_sequence_parallel ? ", whose ranks divide the tokens, too, where they do not divide layers" : "",
                      replica.shards > 1 ? fmt::format(", its frozen weights shared out over {} like it", replica.shards) : "");
  if (replica.rows.empty()) {
    text += "    no rows of the typical step\n";
    return;
  }
  const bool has_chains = std::ranges::any_of(replica.rows, [&](const StepRow& row) { return row.tokens > replica.token_budget; });
  text += fmt::format(
      "    {}, {} ({} with pads) in {} of at most {} tokens{}: {}, bubble {}\n",
      counted(std::ssize(replica.rows), "row"), counted(replica.tokens, "token"), replica.processed_tokens,
      counted(replica.microbatches, "microbatch", "microbatches"), replica.token_budget, has_chains ? ", longer rows as chains of them" : "",
      seconds_text(replica.seconds, false), share_text(replica.bubble));
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const PlannedStage& stage = replica.stages[s];
    std::vector<std::string> layers;
    for (const StageShape& run : stage.chunks()) layers.push_back(fmt::format("{}-{}", run.first_layer, run.last_layer - 1));
    text += fmt::format(
        "    stage {}: layers {}{}{}, busy {}; {} = weights {} + adapters {} + activations {} + workspace "
        "{}\n",
        s, fmt::join(layers, " and "), stage.shape.has_embedding ? ", embedding" : "",
        stage.chunks().back().has_head ? ", head" : "",
        seconds_text(stage.busy_s, false), bytes_text(stage.memory.total()), bytes_text(stage.memory.weights),
        bytes_text(stage.memory.adapters), bytes_text(stage.memory.activations),
        bytes_text(stage.memory.workspace));
  }
  const bool interleaves = replica.buckets.size() < replica.hybrid_tasks.size();
  text += fmt::format("    share microbatches (+){}: {}\n", interleaves ? ", are interleaved to hide communication (&)" : "",
                      tasks_text(plan, replica, sweeps));
  text += fmt::format("    their backwards take {} times as long as their forwards{}\n", backward_text(replica), uneven_text(replica));
  if (replica.least_microbatches > 1) {
    text += fmt::format("    a step of each is split into {} microbatches, so that few fill the pipeline\n", replica.least_microbatches);
  }
}

/// The first of each shape in full, the others in a line.
void explain_replicas(std::string& text, const Plan& plan, const SweepOfJob& sweeps) {
  std::map<std::tuple<int64_t, bool, int64_t, int64_t, int64_t>, int64_t> seen;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const PlannedReplica& replica = plan.replicas[r];
    if (seen[{replica.tensor_parallel, replica.is_sequence_parallel, replica.pipeline_stages(), replica.shards, replica.chunks()}]++ == 0) {
      explain_replica(text, plan, r, sweeps);
    } else {
      const std::string uneven = uneven_text(replica);
      text += fmt::format("  replica {}: likewise on {}; {}, {}, {}{}\n", r, devices_text(replica),
                          counted(std::ssize(replica.rows), "row"), counted(replica.tokens, "token"), seconds_text(replica.seconds, false),
                          uneven.empty() ? "" : "; backwards over forwards" + uneven.substr(1));
    }
  }
}

void explain_choice(std::string& text, const Plan& plan, const ClusterSpec& cluster, const SweepOfJob& sweeps) {
  const PredictedStep& step = plan.predicted;
  const NodeGroup& group = nodes_called(cluster, plan.replicas.front().stages.front().devices.front().nodes);
  const int64_t devices = group.count * group.devices;
  text += fmt::format("Plan: {} on {} of {} ({}), sharing {}, order {}, layout {}, {}{}\n",
                      replicas_text(plan), counted(devices, "device"), group.name,
                      group.device.name.empty() ? "device of the file" : group.device.name,
                      name_of(plan.sharing), name_of(plan.order), name_of(plan.layout), plan.dtype,
                      plan.recompute == Recompute::always ? ", activations recomputed" : "");
  const double slowest = step.seconds - step.exchange_s;
  text += fmt::format("  a step of {}: {} = slowest replica {} + exchange of gradients {}\n",
                      plan.jobs.size() == 1 ? "the job" : fmt::format("all {} jobs", plan.jobs.size()), seconds_text(step.seconds, false),
                      seconds_text(slowest, false), seconds_text(step.exchange_s, false));
  text +=
      fmt::format("  throughput: {:.0f} tokens/s = {} / {}; {} processed with pads\n",
                  step.tokens_per_s(), counted(step.tokens, "token"), seconds_text(step.seconds, false), step.processed_tokens);
  text += fmt::format("  device seconds: {:.3g} per step = {} x {}\n", step.device_seconds, counted(devices, "device"),
                      seconds_text(step.seconds, false));
  text += fmt::format("  idle: {} of {} until the step ends, of that in pipelines (bubble) {}\n", share_text(step.idle),
                      cluster.nodes.size() > 1 ? fmt::format("all devices of {}", group.name) : "all devices", share_text(step.bubble));
  for (const NodeGroup& other : cluster.nodes) {
    if (other.name != group.name)
      text += fmt::format("  {} of {} stay free, and are in no figure\n", counted(other.count * other.devices, "device"), other.name);
  }
  text += fmt::format("  fullest device: {} of {} that may be used of {}\n", bytes_text(step.fullest_bytes),
                      bytes_text(group.device.usable_bytes()), bytes_text(group.device.memory_bytes));
  if (step.cost > 0) {
    text += fmt::format("  cost: {:.4g} per step, {:.4g} per million tokens, at {:.4g} per device hour\n",
                        step.cost, step.cost / static_cast<double>(step.tokens) * 1e6,
                        group.device.cost_per_hour);
  }
  explain_replicas(text, plan, sweeps);
}

/// `<1,4>/2 r`: with its shards, and r where activations are recomputed.
std::string configuration_text(const ConsideredConfiguration& each) {
  return configuration_name(each.tensor_parallel, each.is_sequence_parallel, each.pipeline_stages, each.shards) + (each.recompute ? " r" : "");
}

/// Those that save memory as the plan does; all of them where there is none.
bool is_shown(const ConsideredConfiguration& each, const PlanningResult& result) {
  if (!result.chosen) return true;
  const Alternative& chosen = result.alternatives[*result.chosen];
  return each.recompute == chosen.recompute && (each.shards == 1 || chosen.shards_weights);
}

void explain_configurations(std::string& text, const PlanningResult& result) {
  text +=
      "\nConfigurations <tensor parallel, pipeline stages> (+seq: ranks divide the tokens, too), with the most tokens of a microbatch that fit\n"
      "(in brackets of the longest row, where that is longer):\n";
  int64_t left_out = 0;
  for (const ConsideredConfiguration& each : result.configurations) {
    if (!is_shown(each, result)) {
      ++left_out;
      continue;
    }
    const std::string longer = each.longest_row > each.chunk_tokens ? fmt::format(" ({})", each.longest_row) : "";
    const std::string reach = each.chunk_tokens == 0 ? "none" : fmt::format("{}{} tokens", each.chunk_tokens, longer);
    const std::string rate = each.tokens_per_device_s > 0
                                 ? fmt::format("{:.0f} tokens/s per device", each.tokens_per_device_s)
                                 : "";
    text += fmt::format("  {:<10} {:<10} {:>21}  {:>9}  {:<26} {}\n", each.nodes, configuration_text(each), reach,
                        bytes_text(each.memory.total()), rate,
                        each.rejected_for.empty() ? "considered" : each.rejected_for);
  }
  if (left_out > 0) {
    text += fmt::format("  and {} with activations recomputed or weights sharded, in --json\n", left_out);
  }
}

/// r: activations recomputed; s: weights sharded.
std::string saving_text(const Alternative& each) {
  return each.recompute ? (each.shards_weights ? "r+s" : "r") : each.shards_weights ? "s" : "-";
}

void explain_deployments(std::string& text, const PlanningResult& result) {
  if (result.deployments.empty()) return;
  text +=
      "\nDeployments (seconds of a step: linear model of dispatch, estimate, best simulated in full):\n";
  int64_t left_out = 0;
  for (const ConsideredDeployment& each : result.deployments) {
    if (each.simulated_s == 0) {
      ++left_out;
      continue;
    }
    text += fmt::format("  {:<10} {:<11} {:<36} {:>9} {:>9} {:>9}\n", each.nodes, name_of(each.system),
                        each.replicas + (each.recompute ? " r" : ""), seconds_text(each.dispatch_s, false),
                        seconds_text(each.estimated_s, false),
                        each.simulated_s > 0 ? seconds_text(each.simulated_s, false) : "-");
  }
  if (left_out > 0) text += fmt::format("  and {} whose estimate is longer, or of which nothing fits, in --json\n", left_out);
  const Deployment& lobra = result.lobra;
  if (lobra.enumerated > 0) {
    text += fmt::format(
        "  of {} of replica counts {} hold not every row, {} are ruled out by a lower bound, {} were "
        "solved, {} are "
        "open;\n  by the linear model, which is of large microbatches and bounds no simulated step, no deployment of the configurations that are "
        "proposed for unlike replicas takes less than {}\n",
        counted(lobra.enumerated, "vector"), lobra.unable, lobra.bounded, lobra.solved, lobra.open, seconds_text(lobra.lower_bound, false));
  }
}

/// Seconds of an alternative: in parentheses where it does not fit, `≥` where it takes at least so long; `-` where nothing was planned.
std::string seconds_of(const Alternative& each, double seconds) {
  const std::string text = fmt::format("{:.4g}", seconds);
  if (each.fits()) return text;
  if (seconds == 0) return "-";
  return fmt::format("({}{})", each.is_bound ? "≥" : "", text);
}

}  // namespace

std::vector<std::string> names_of_jobs(const Plan& plan, const std::vector<int32_t>& jobs) {
  std::vector<std::string> names;
  for (const int32_t job : jobs) names.push_back(plan.jobs[static_cast<size_t>(job)]);
  return names;
}

std::string comparison_table(const PlanningResult& result) {
  const bool has_cost = std::any_of(result.alternatives.begin(), result.alternatives.end(),
                                    [](const Alternative& each) { return each.predicted.cost > 0; });
  std::string text =
      fmt::format("{:<16} {:<9} {:<11} {:<6} {:>11} {:>9} {:>11} {}{:>9} {:>6} {:>6}  {:<24} {}\n", "deployment",
                  "sharing", "order", "saving", "s/step", "tokens/s", "device s",
                  has_cost ? fmt::format("{:>9} ", "cost") : "", "memory", "bubble", "idle", "replicas", "");
  // Of several kinds of nodes those of the plan's; all where there is none.
  const std::string nodes = result.chosen ? result.alternatives[*result.chosen].nodes : "";
  int64_t elsewhere = 0;
  for (const Alternative& each : result.alternatives) {
    if (!nodes.empty() && each.nodes != nodes) {
      ++elsewhere;
      continue;
    }
    const PredictedStep& step = each.predicted;
    const auto shown = [&](const std::string& value) { return each.fits() ? value : std::string("-"); };
    const std::string replicas = each.plans.size() > 1 ? fmt::format("{} plans in turn", each.plans.size())
                                 : each.plans.empty()  ? "-"
                                                       : replicas_text(each.plans.front());
    text += fmt::format(
        "{:<16} {:<9} {:<11} {:<6} {:>11} {:>9} {:>11} {}{:>9} {:>6} {:>6}  {:<24} {}\n", name_of(each.deployment),
        name_of(each.sharing), name_of(each.order), saving_text(each), seconds_of(each, step.seconds),
        shown(fmt::format("{:.0f}", step.tokens_per_s())), seconds_of(each, step.device_seconds),
        has_cost ? fmt::format("{:>9} ", shown(money_text(step.cost))) : "",
        step.fullest_bytes > 0 ? bytes_text(step.fullest_bytes) : "-", shown(share_text(step.bubble)),
        shown(share_text(step.idle)), replicas, each.rejected_for.empty() ? "chosen" : each.rejected_for);
  }
  if (elsewhere > 0) text += fmt::format("and {} on other kinds of nodes, in --json\n", elsewhere);
  return text;
}

std::string explain(const std::vector<NodeChange>& changes, const PredictedStep& before) {
  if (changes.empty()) return "";
  std::string text = fmt::format("\nOne node of {} more or fewer than {}:\n", changes.front().nodes, changes.front().from);
  for (const NodeChange& each : changes) {
    if (!each.fits()) {
      text += fmt::format("  {}: {}\n", each.to, each.constraint);
      continue;
    }
    text += fmt::format(
        "  {}: {} per step, {:.2f} times as fast, {:.0f} tokens/s{}; {}{}{}\n", each.to, seconds_text(each.predicted.seconds, false),
        each.speed_up(before), each.predicted.tokens_per_s(),
        before.cost > 0 ? fmt::format(", cost {:.4g} per step, {:.2f} times as much", each.predicted.cost, each.predicted.cost / before.cost) : "",
        each.replicas, each.saves_memory ? ", saving memory" : "",
        each.assumed_network.empty() ? "" : fmt::format("; over {}, which is assumed (`network` of the cluster file says)", each.assumed_network));
  }
  return text;
}

std::string other_groupings(const Plan& plan, std::span<const ConsideredGrouping> groupings, const SweepOfJob& sweeps) {
  constexpr size_t most_lines = 8, most_tasks = 6;
  std::string text;
  size_t lines = 0;
  for (const ConsideredGrouping& each : groupings) {
    if (each.rejected_for.empty() || ++lines > most_lines) continue;
    std::vector<std::string> tasks;
    for (const std::vector<int32_t>& bucket : each.buckets) {
      for (const int32_t task : bucket) tasks.push_back(job_list(names_of_jobs(plan, each.hybrid_tasks[static_cast<size_t>(task)]), sweeps, " + "));
    }
    if (tasks.size() > most_tasks) tasks.back() = fmt::format("… {} in all", counted(std::ssize(tasks), "hybrid task"));
    if (tasks.size() > most_tasks) tasks.erase(tasks.begin() + most_tasks - 1, tasks.end() - 1);
    text += fmt::format("  {}: {}{}, {}: {}\n", fmt::join(tasks, " | "), each.is_bound ? "≥" : "", seconds_text(each.seconds, false),
                        bytes_text(each.fullest_bytes), each.rejected_for);
  }
  if (lines > most_lines) text += fmt::format("  and {} more, in --json\n", lines - most_lines);
  return text.empty() ? text : "Other groupings of the jobs, with everything at its speed:\n" + text;
}

std::string explain(const PlanningResult& result, const ClusterSpec& cluster, const SweepOfJob& sweeps) {
  std::string text;
  if (const Plan* plan = result.plan()) {
    explain_choice(text, *plan, cluster, sweeps);
  } else {
    text += "No plan: nothing that was tried fits.\n";
    if (!result.advice.empty()) text += "What would:\n" + result.advice;
  }
  if (result.groupings.size() > 1) {
    const auto slower = std::count_if(result.groupings.begin(), result.groupings.end(),
                                      [](const ConsideredGrouping& each) { return !each.rejected_for.empty(); });
    text += fmt::format("  {} of jobs {} simulated, in --json\n", counted(slower, "other grouping"), slower == 1 ? "was" : "were");
  }
  text += "\nAlternatives (saving r: activations recomputed, s: frozen weights sharded over replicas;\n"
          "in parentheses: does not fit; what it would take as it was tried last, ≥ at least):\n" +
          comparison_table(result);
  explain_deployments(text, result);
  explain_configurations(text, result);
  return text;
}

}  // namespace cotune
