/// The deployments that LobRA prints beside those found here, by the same model of seconds: Tables 2, 7 and 8 for 7B by the rates of Table 3,
/// for 32B and 70B by the constants that were fitted on 70B (table6.h), and Table 5's over 16 to 256 devices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plan/cost/published_rates.h"
#include "plan/deployment/system_deployments.h"
#include "rows.h"
#include "table6.h"

namespace cotune {
namespace {

using Plan = std::vector<std::pair<std::string, int64_t>>;

struct TaskPlans {
  const char* name;  ///< as in published_datasets
  Plan alike;        ///< Table 7, Task-Sequential
  Plan unlike;       ///< Table 8, LobRA-Sequential
};

const std::vector<TaskPlans> plans_7b = {
    {"python-code", {{"<8,1>", 2}}, {{"<2,1>", 2}, {"<4,1>", 1}, {"<8,1>", 1}}},
    {"dolly", {{"<4,1>", 4}}, {{"<1,1>", 4}, {"<1,4>", 2}, {"<4,1>", 1}}},
    {"commitpackft", {{"<4,1>", 4}}, {{"<1,1>", 10}, {"<2,1>", 1}, {"<4,1>", 1}}},
    {"evol-instruct", {{"<8,1>", 2}}, {{"<1,1>", 6}, {"<2,1>", 1}, {"<8,1>", 1}}},
    {"xsum", {{"<8,1>", 2}}, {{"<1,1>", 6}, {"<2,1>", 1}, {"<8,1>", 1}}},
    {"meetingbank", {{"<8,1>", 2}}, {{"<1,4>", 2}, {"<8,1>", 1}}},
};

const std::vector<TaskPlans> plans_32b = {
    {"mathinstruct", {{"<2,2>", 16}}, {{"<1,2>", 2}, {"<2,1>", 26}, {"<1,4>", 1}, {"<2,2>", 1}}},
    {"python-code", {{"<8,1>", 8}}, {{"<1,2>", 2}, {"<2,1>", 2}, {"<4,1>", 10}, {"<8,1>", 2}}},
    {"dolly", {{"<4,1>", 16}}, {{"<1,4>", 2}, {"<2,1>", 6}, {"<2,2>", 9}, {"<4,1>", 2}}},
    {"billsum", {{"<8,1>", 8}}, {{"<2,2>", 9}, {"<4,1>", 3}, {"<8,1>", 2}}},
    {"commitpackft", {{"<4,1>", 16}}, {{"<2,2>", 12}, {"<4,1>", 4}}},
    {"numinamath", {{"<4,1>", 16}}, {{"<1,4>", 4}, {"<2,1>", 20}, {"<4,1>", 2}}},
    {"pubmedqa", {{"<4,1>", 16}}, {{"<1,2>", 10}, {"<2,1>", 14}, {"<4,1>", 4}}},
    {"metamathqa", {{"<2,2>", 16}}, {{"<1,4>", 14}, {"<2,1>", 2}, {"<2,2>", 1}}},
    {"evol-instruct", {{"<8,1>", 8}}, {{"<2,1>", 16}, {"<2,2>", 1}, {"<4,1>", 3}, {"<8,1>", 2}}},
    {"cnn-dailymail", {{"<4,1>", 16}}, {{"<1,4>", 1}, {"<2,1>", 14}, {"<4,1>", 8}}},
    {"xsum", {{"<8,1>", 8}}, {{"<1,2>", 8}, {"<4,1>", 8}, {"<8,1>", 2}}},
    {"meetingbank", {{"<8,1>", 8}}, {{"<1,2>", 6}, {"<1,4>", 3}, {"<8,1>", 5}}},
};

/// Table 5: 70B, the four tasks of the scalability study.
const std::vector<std::pair<int64_t, Plan>> plans_by_devices = {
    {16, {{"<16,1>", 1}}},
    {24, {{"<2,4>", 1}, {"<16,1>", 1}}},
    {32, {{"<2,4>", 1}, {"<4,2>", 1}, {"<16,1>", 1}}},
    {40, {{"<2,4>", 1}, {"<4,2>", 1}, {"<8,1>", 1}, {"<16,1>", 1}}},
    {48, {{"<2,4>", 2}, {"<4,2>", 1}, {"<8,1>", 1}, {"<16,1>", 1}}},
    {64, {{"<2,4>", 3}, {"<4,2>", 1}, {"<8,1>", 2}, {"<16,1>", 1}}},
    {128, {{"<2,4>", 5}, {"<8,1>", 9}, {"<16,1>", 1}}},
    {256, {{"<2,4>", 3}, {"<4,1>", 16}, {"<4,2>", 6}, {"<8,1>", 13}, {"<16,1>", 1}}},
};

constexpr int steps = 100;

/// `NAME found`, or `NAME PLAN RATIO` of our seconds over those of the published plan, marked where they are more by over a thousandth.
std::string found_or(const std::string& name, std::span<const Configuration> configurations, const Counts& ours, const Counts& theirs, double seconds, double published) {
  if (ours == theirs) return name + " found";
  return fmt::format("{} {} {:.3f}{}", name, plan_text(configurations, ours), seconds / published, missed_unless(seconds <= 1.001 * published));
}

void seven_billion(LengthFamily family) {
  const auto configurations = propose_configurations(published_7b_configurations(), table_lengths);
  const auto step_of = [&](const std::vector<std::string>& tasks) {
    const LengthBuckets step = expected_of(draw(published_tasks(family, tasks), 77, 100));
    return StepWork{bucket_costs(configurations, step.tokens), step.sequences};
  };
  const auto compared = [&](const std::string& name, const StepWork& work, const Deployment& ours, const Plan& published) {
    const Counts theirs = replicas_of(configurations, published);
    if (ours.replicas == theirs) return name + " found";
    const double seconds = dispatch_balanced(work.costs, theirs, work.sequences).makespan;
    return fmt::format("{} {:.3f} to {:.3f} s{}", name, seconds, ours.dispatch.makespan, missed_unless(ours.dispatch.makespan <= 1.001 * seconds));
  };
  const Plan published = {{"<1,1>", 6}, {"<2,1>", 1}, {"<8,1>", 1}};
  const StepWork all = step_of(six_tasks);
  const Deployment plan = plan_deployment(all.costs, all.sequences, 16);
  const double theirs = dispatch_balanced(all.costs, replicas_of(configurations, published), all.sequences).makespan;
  print_row(fmt::format("7B, 16 devices, {} lengths", to_string(family)), fmt::format("<1,1>×6, <2,1>×1, <8,1>×1; {:.3f} s by our model", theirs), "found or beaten",
            fmt::format("{}; {:.3f} s, at least {:.3f} s{}", plan_text(configurations, plan.replicas), plan.dispatch.makespan, plan.lower_bound,
                        missed_unless(plan.dispatch.makespan <= 1.001 * theirs)));
  std::vector<std::string> alike, unlike;
  for (const TaskPlans& each : plans_7b) {
    const StepWork work = step_of({each.name});
    unlike.push_back(compared(each.name, work, plan_deployment(work.costs, work.sequences, 16), each.unlike));
    alike.push_back(compared(each.name, work, deploy_alike(work, 16), each.alike));
  }
  print_row(fmt::format("7B, 16 devices, {} lengths, the published like replicas of Task-Sequential's tasks (Table 7) to ours, by our model", to_string(family)), "–",
            "found or beaten", fmt::format("{}", fmt::join(alike, ", ")));
  print_row(fmt::format("7B, 16 devices, {} lengths, the published plans of LobRA-Sequential's tasks (Table 8) to ours, by our model", to_string(family)), "–", "found or beaten",
            fmt::format("{}", fmt::join(unlike, ", ")));
}

/// Of all like replicas those that sampled steps end soonest with, padded to fixed boundaries as Task-Sequential's.
Counts best_alike(const Table6Model& model, const std::vector<Configuration>& configurations, const std::vector<TaskLengths>& tasks, int64_t devices) {
  const LengthBuckets sample = bucket_lengths(draw(tasks, 77, 100));
  Counts best;
  double least = 0;
  for (const Counts& each : like_replicas(bucket_costs(configurations, sample.tokens), sample.sequences, devices)) {
    const double seconds = model.step_seconds(configurations, each, tasks, 5, false, 4000);
    if (best.empty() || seconds < least) best = each, least = seconds;
  }
  return best;
}

void tasks_alone(const char* name, const Table6Model& model, const std::vector<Configuration>& configurations, const std::vector<TaskPlans>& plans, LengthFamily family,
                 bool is_lobra) {
  std::vector<std::string> parts;
  double published = 0, own = 0;
  for (const TaskPlans& each : plans) {
    const std::vector<TaskLengths> task = published_tasks(family, {each.name});
    const Counts theirs = replicas_of(configurations, is_lobra ? each.unlike : each.alike);
    const Counts ours = is_lobra ? model.best_of_samples(configurations, task, 64) : best_alike(model, configurations, task, 64);
    const double by_theirs = model.step_seconds(configurations, theirs, task, steps, is_lobra), by_ours = model.step_seconds(configurations, ours, task, steps, is_lobra);
    published += 64 * by_theirs;
    own += 64 * by_ours;
    parts.push_back(found_or(each.name, configurations, ours, theirs, by_ours, by_theirs));
  }
  print_row(fmt::format("{}, 64 devices, {} lengths, {}, ours over theirs by our model", name, to_string(family),
                        is_lobra ? "LobRA-Sequential's plan of each task (Table 8)" : "Task-Sequential's like replicas of each task (Table 7)"),
            "–", "found or beaten", fmt::format("{:.0f} to {:.0f} GPU s; {}", published, own, fmt::join(parts, ", ")));
}

void thirty_two_billion(const Table6Constants& constants, LengthFamily family) {
  const Table6Model model("qwen2.5-32b");
  const std::vector<Configuration> configurations = model.configurations(constants);
  const std::vector<TaskLengths> tasks = published_tasks(family);
  const auto gpu_seconds = [&](const Counts& replicas, bool is_lobra) { return 64 * model.step_seconds(configurations, replicas, tasks, steps, is_lobra); };
  const Counts like = best_alike(model, configurations, tasks, 64), plan = model.best_of_samples(configurations, tasks, 64);
  const Counts published_like = replicas_of(configurations, {{"<8,1>", 8}});
  const Counts published = replicas_of(configurations, {{"<1,6>", 4}, {"<2,2>", 4}, {"<4,1>", 2}, {"<8,1>", 2}});
  const double fused = gpu_seconds(published_like, false), theirs = gpu_seconds(published, true), ours = gpu_seconds(plan, true);
  print_row(fmt::format("32B, 64 devices, {} lengths, twelve tasks (Table 2), by the constants of 70B: Task-Fused, LobRA", to_string(family)),
            "<8,1>×8; <1,6>×4, <2,2>×4, <4,1>×2, <8,1>×2", "found or beaten",
            fmt::format("{}; {}; {:.0f} GPU s fused, {:.0f} with the published plan ({:.1f} % saved), {:.0f} with ours ({:.1f} %)",
                        found_or("Task-Fused", configurations, like, published_like, gpu_seconds(like, false), fused),
                        found_or("LobRA", configurations, plan, published, ours, theirs), fused, theirs, 100 * (1 - theirs / fused), ours,
                        100 * (1 - ours / fused)));
  for (const bool is_lobra : {false, true}) tasks_alone("32B", model, configurations, plans_32b, family, is_lobra);
}

void seventy_billion(const Table6Constants& constants, LengthFamily family) {
  const Table6Model model;
  const std::vector<Configuration> configurations = model.configurations(constants);
  std::vector<TaskPlans> plans;
  for (const Table6Task& task : table6_tasks()) plans.push_back({task.name, task.sequential_plan, task.lobra_plan});
  tasks_alone("70B", model, configurations, plans, family, false);  // Table 8: table6_rows
  const std::vector<TaskLengths> tasks = published_tasks(family, four_tasks);
  std::vector<std::string> parts;
  for (const auto& [devices, published] : plans_by_devices) {
    const Counts theirs = replicas_of(configurations, published), ours = model.best_of_samples(configurations, tasks, devices);
    parts.push_back(found_or(fmt::format("{}:", devices), configurations, ours, theirs, model.step_seconds(configurations, ours, tasks, steps, true),
                             model.step_seconds(configurations, theirs, tasks, steps, true)));
  }
  print_row(fmt::format("70B, four tasks, {} lengths, the plans of Table 5 for 16 to 256 devices, ours over theirs by our model", to_string(family)), "–", "found or beaten",
            fmt::format("{}", fmt::join(parts, "; ")));
}

}  // namespace

void published_7b_plan_rows() {
  for (const LengthFamily family : all_length_families) seven_billion(family);
}

void published_plan_rows() {
  const auto constants = read_table6_constants();
  for (const LengthFamily family : all_length_families) {
    const Table6Constants& fitted = constants.at(std::string(to_string(family)));
    thirty_two_billion(fitted, family);
    seventy_billion(fitted, family);
  }
}

}  // namespace cotune
