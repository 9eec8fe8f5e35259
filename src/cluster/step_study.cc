#include "cluster/step_study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/fusion/replica_jobs.h"
#include "schedule/pipeline/render.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30); }

/// `a + b | c`: tasks between bars, their jobs joined.
std::string bucket_text(const StepStudy& study, const std::vector<int32_t>& bucket) {
  std::vector<std::string> tasks;
  for (const int32_t task : bucket) {
    std::vector<std::string> names;
    for (const int32_t job : study.chosen.chosen.tasks[static_cast<size_t>(task)]) names.push_back(study.jobs[static_cast<size_t>(job)]);
    tasks.push_back(fmt::format("{}", fmt::join(names, " + ")));
  }
  return fmt::format("{}", fmt::join(tasks, " | "));
}

int64_t peak_bytes(const StepStudy& study, size_t stage) {
  return study.resident_bytes[stage] + study.simulated.ranks[stage].peak_bytes + study.chosen.chosen.workspace_bytes[stage];
}

}  // namespace

StepStudy study_step(const InstanceSpec& instance, const std::vector<JobShape>& jobs, const std::vector<Slowdown>& stragglers) {
  StepStudy study{.tensor_parallel = instance.tensor_parallel, .stragglers = stragglers, .memory_bytes = instance.memory_bytes};
  for (const Slowdown& each : stragglers) {
    if (each.rank < 0 || each.rank >= instance.pipeline_stages) {
      throw_user_error("--slow: there is no rank {}; there are 0 to {}, one per pipeline stage", each.rank, instance.pipeline_stages - 1);
    }
  }
  const ReplicaJobs replica{.model = instance.model,
                            .jobs = jobs,
                            .stages = even_stages(instance.model, instance.pipeline_stages, instance.tensor_parallel),
                            .machine = instance.machine,
                            .between_stages = instance.between_stages,
                            .memory_bytes = instance.memory_bytes};
  for (const JobShape& job : jobs) {
    study.jobs.push_back(job.name);
    study.tokens += static_cast<int64_t>(std::llround(static_cast<double>(job.batch_size) * job.lengths.mean()));
  }
  for (const StageMemory& memory : resident_memory(replica)) study.resident_bytes.push_back(memory.total());
  const std::vector<FusionProblem> problems = fusion_problems(replica);
  study.chosen = choose_hybrid_tasks(problems);
  if (!study.chosen.chosen.fits()) {
    std::vector<std::string> reasons;
    for (const HybridTaskChoice& each : study.chosen.rejected) {
      reasons.push_back(fmt::format("{} microbatches, {}: {}", each.microbatches, each.name, each.rejected_for));
    }
    throw_user_error("the jobs do not fit on {} devices of {:.1f} GiB:\n  {}", instance.devices(), gib(instance.memory_bytes),
                     fmt::join(reasons, "\n  "));
  }
  PipelineCluster cluster = problems.front().cluster;
  study.schedule = make_schedule(study.chosen.work, study.chosen.compute_order, cluster);
  verify(study.chosen.work, study.schedule);
  study.planned = simulate(study.chosen.work, study.schedule, cluster);
  cluster.slowdowns = stragglers;
  study.simulated = simulate(study.chosen.work, study.schedule, cluster);
  return study;
}

std::string to_text(const StepStudy& study) {
  const HybridTaskChoice& chosen = study.chosen.chosen;
  std::string text = fmt::format("{} jobs on {} stages of {} devices: {}, {} microbatches of each task, order {}\n", study.jobs.size(),
                                 study.simulated.ranks.size(), study.tensor_parallel, chosen.name, chosen.microbatches, chosen.order);
  for (size_t b = 0; b < chosen.buckets.size(); ++b) {
    text += fmt::format("  bucket {}: {}\n", static_cast<char>('A' + b % 26), bucket_text(study, chosen.buckets[b]));
  }
  for (const HybridTaskChoice& each : study.chosen.rejected) {
    text += fmt::format("  not {} microbatches, {}: {}\n", each.microbatches, each.name, each.rejected_for);
  }
  text += "\n" + render_text(study.schedule, study.simulated);
  const double seconds = study.simulated.makespan_s;
  text += fmt::format("\nround of every job: {:.1f} ms, {:.0f} tokens/s, {:.1f}% idle\n", 1e3 * seconds, static_cast<double>(study.tokens) / seconds,
                      100 * study.simulated.bubble_ratio());
  if (!study.stragglers.empty()) {
    text += fmt::format("as planned, without stragglers: {:.1f} ms; they cost {:.1f}%\n", 1e3 * study.planned.makespan_s,
                        100 * (seconds / study.planned.makespan_s - 1));
  }
  text += fmt::format("messages: {}, {:.1f} MiB\n", study.simulated.message_count,
                      static_cast<double>(study.simulated.message_bytes) / static_cast<double>(1 << 20));
  for (size_t s = 0; s < study.simulated.ranks.size(); ++s) {
    text += fmt::format("stage {}: busy {:.1f} ms, memory {:.1f} of {:.1f} GiB\n", s, 1e3 * study.simulated.ranks[s].busy_s, gib(peak_bytes(study, s)),
                        gib(study.memory_bytes));
  }
  return text;
}

nlohmann::json to_json(const StepStudy& study) {
  const HybridTaskChoice& chosen = study.chosen.chosen;
  nlohmann::json json{{"jobs", study.jobs},
                      {"tensor_parallel", study.tensor_parallel},
                      {"choice", chosen.name},
                      {"order", chosen.order},
                      {"microbatches", chosen.microbatches},
                      {"hybrid_tasks", chosen.tasks},
                      {"buckets", chosen.buckets},
                      {"tokens", study.tokens},
                      {"seconds", study.simulated.makespan_s},
                      {"planned_seconds", study.planned.makespan_s},
                      {"idle_share", study.simulated.bubble_ratio()},
                      {"messages", study.simulated.message_count},
                      {"message_bytes", study.simulated.message_bytes}};
  json["stages"] = nlohmann::json::array();
  for (size_t s = 0; s < study.simulated.ranks.size(); ++s) {
    json["stages"].push_back({{"busy_s", study.simulated.ranks[s].busy_s}, {"memory_bytes", peak_bytes(study, s)},
                              {"memory_limit_bytes", study.memory_bytes}});
  }
  json["rejected"] = nlohmann::json::array();
  for (const HybridTaskChoice& each : study.chosen.rejected) {
    nlohmann::json one{{"choice", each.name}, {"microbatches", each.microbatches}, {"why", each.rejected_for}};
    if (each.fits()) one["seconds"] = each.seconds;
    json["rejected"].push_back(one);
  }
  return json;
}

}  // namespace cotune
