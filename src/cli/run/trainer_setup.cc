#include "cli/run/trainer_setup.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cli/run/hung_ranks.h"
#include "cli/run/planned_division.h"
#include "cli/run/rank_processes.h"
#include "cli/terminal/stop_signals.h"
#include "engine/rank_leader.h"

namespace cotune {
namespace {

void add_processes(const ReadRun& read, const LoadedRun& loaded, TrainerOptions& options) {
  RankProcesses& processes = *read.processes;
  const std::shared_ptr<Backbone>& backbone = loaded.backbone();
  const auto leader = std::make_shared<RankLeader>(backbone, loaded.process_layouts, processes.take_links(read.device));
  leader->change_weights = [backbone, &files = read.files()](const BackboneUse& use_now) { backbone->use_for(files, use_now); };
  leader->exit_code = [&processes] { return processes.exit_code(); };
  options.rank_group = leader;
  options.rank_link = processes.measured_link();
  options.gpu_messages = processes.gpu_messages();
  for (const RankProcess& rank : processes.ranks()) {
    options.rank_hosts.push_back(rank.host);
    options.largest_rank_weight_bytes = std::max(options.largest_rank_weight_bytes, rank.weight_bytes);
    if (rank.tensor_limit_bytes > 0) options.rank_tensor_limits.push_back(rank.tensor_limit_bytes);
  }
}

/// Processes watch each other.
void watch_threads(const ReadRun& read, TrainerOptions& options) {
  options.host = host_name();
  const bool knows_times = read.profile != nullptr || read.emulated.has_value();
  options.hang_timeout_s = read.arguments.hang_timeout_s.value_or(knows_times ? default_hang_timeout_s : unmeasured_hang_timeout_s);
  options.at_hang = end_soon;
}

}  // namespace

TrainerOptions trainer_options(ReadRun& read, const LoadedRun& loaded) {
  const RunSpec& run = read.run();
  TrainerOptions options;
  if (read.processes != nullptr) {
    add_processes(read, loaded, options);
  } else {
    watch_threads(read, options);
  }
  if (read.emulated) {
    options.rank_link = read.emulated->device->link;
    options.exchange_link = read.emulated->device->exchange_link;
  }
  options.policy = loaded.policy;
  options.recompute = run.recompute;
  options.ranks = run.ranks;
  options.parallel = loaded.parallel;
  options.dispatch = run.dispatch;
  options.length_buckets = run.length_buckets;
  for (const auto& [degree, own] : loaded.parts) options.parts[degree].assign(own.begin(), own.end());
  options.pipeline_order = run.pipeline_order;
  options.rounds_at_once = run.rounds_at_once;
  options.interleave = run.interleave;
  options.fusion = run.fusion;
  options.device = read.device;
  options.costs = read.costs;
  options.refits_prices = options.learns_peaks = read.arguments.replan != "never";
  if (read.is_planned && read.arguments.replan == "auto") {
    options.plan_division = [question = read.division_question()](const DivisionRequest& request) { return plan_division_anew(question, request); };
  }
  if (read.followed) {
    options.followed = std::move(read.followed->tasks);
    options.packing = std::move(read.followed->packing);
  }
  options.layouts = std::move(read.layouts);
  options.memory_limit_bytes = read.limit_bytes;
  options.relief = loaded.record.relief;
  options.stop = &stop_requested();
  return options;
}

}  // namespace cotune
