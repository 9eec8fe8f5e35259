#include "cluster/trace_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "base/least_bytes.h"
#include "cluster/kind_costs.h"
#include "cluster/planned_rates.h"
#include "model/config/tensor_shard.h"
#include "plan/plan.h"
#include "plan/row_needs.h"
#include "plan/shapes/replica_sizes.h"

namespace cotune {
namespace {

std::string_view sharing_name(Sharing sharing) {
  switch (sharing) {
    case Sharing::separate:
      return "separate";
    case Sharing::temporal:
      return "temporal";
    case Sharing::batch_all:
      return "batch-all";
    case Sharing::hybrid:
      break;
  }
  return "hybrid";
}

/// Whether a job of each of these kinds fits alone.
bool holds(const InstanceSpec& instance, const std::vector<JobKind>& kinds) {
  const KindCosts costs(instance, kinds);
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (!costs.memory().fits(JobMix({static_cast<int32_t>(k)}))) return false;
  }
  return true;
}

constexpr Sharing every_sharing[] = {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid};

}  // namespace

std::string SharingChoice::name() const {
  return fmt::format("{}{}", sharing_name(sharing), layout == Layout::padded ? "/padded" : "");
}

std::vector<std::string> sharing_choices() {
  std::vector<std::string> names;
  for (const Layout layout : {Layout::ragged, Layout::padded}) {
    for (const Sharing sharing : every_sharing) names.push_back(SharingChoice{sharing, layout}.name());
  }
  return names;
}

SharingChoice parse_sharing(const std::string& text) {
  for (const Sharing sharing : every_sharing) {
    if (text == sharing_name(sharing) || text == fmt::format("{}/ragged", sharing_name(sharing))) return {sharing, Layout::ragged};
    if (text == fmt::format("{}/padded", sharing_name(sharing))) return {sharing, Layout::padded};
  }
  throw_user_error("--sharing: there is no `{}`; there are separate, temporal, batch-all, hybrid, each also as NAME/padded", text);
}

std::optional<int64_t> microbatches_that_fit(const InstanceSpec& instance, const std::vector<JobKind>& kinds) {
  const int64_t most_rows = std::ranges::max(kinds, {}, &JobKind::rows).rows;
  InstanceSpec each = instance;
  do {
    if (holds(each, kinds)) return each.microbatches;
    each.microbatches *= 2;
  } while (each.microbatches <= most_rows);
  return std::nullopt;
}

std::optional<InstanceSpec> instance_that_holds(const ClusterSpec& cluster, const InstanceSpec& instance, const std::vector<JobKind>& kinds) {
  std::optional<InstanceSpec> best;
  const auto consider = [&](InstanceSpec each) {
    const std::optional<int64_t> microbatches = microbatches_that_fit(each, kinds);
    if (!microbatches || (best && best->microbatches <= *microbatches)) return;
    each.microbatches = *microbatches;
    best = std::move(each);
  };
  consider(instance);
  const NodeGroup& group = cluster.nodes.front();
  for (int64_t devices = 1; devices <= group.count * group.devices && !best; ++devices) {
    for (int64_t tensor_parallel = 1; tensor_parallel <= devices; ++tensor_parallel) {
      const bool is_possible = devices % tensor_parallel == 0 && can_be_sharded(instance.model, tensor_parallel) &&
                               devices / tensor_parallel <= instance.model.layer_count && stands_on_nodes(group, devices);
      if (!is_possible) continue;
      InstanceSpec other = instances_of(cluster, instance.model, tensor_parallel, devices / tensor_parallel).spec;
      other.machine.dtype = instance.machine.dtype;
      other.microbatches = instance.microbatches;
      consider(std::move(other));
    }
  }
  return best;
}

std::optional<InstanceSpec> instance_of_more_nodes(const ClusterSpec& cluster, const InstanceSpec& instance, const std::vector<JobKind>& kinds) {
  ClusterSpec larger = with_network(cluster, cluster.nodes.front());
  larger.nodes.front().count *= 64;
  return instance_that_holds(larger, instance, kinds);
}

std::optional<InstanceSpec> instance_of_more_memory(const ClusterSpec& cluster, const InstanceSpec& instance, const std::vector<JobKind>& kinds) {
  std::optional<InstanceSpec> best;
  least_bytes(cluster.nodes.front().device.memory_bytes, [&](int64_t bytes) {
    ClusterSpec larger = cluster;
    DeviceSpec& device = larger.nodes.front().device;
    device.memory_bytes = bytes;
    InstanceSpec same = instance;
    same.machine.device = device;
    same.memory_bytes = device.usable_bytes();
    std::optional<InstanceSpec> held = instance_that_holds(larger, same, kinds);
    const bool does_hold = held.has_value();
    if (does_hold) best = std::move(held);
    return does_hold;
  });
  return best;
}

std::string describe(const InstanceSpec& instance) {
  return fmt::format("{} of {}, {} {}, tp {}, pp {}, {}", counted(instance.model.layer_count, "layer"), instance.model.hidden_size,
                     instance.machine.device.name, instance.machine.dtype, instance.tensor_parallel, instance.pipeline_stages,
                     counted(instance.microbatches, "microbatch", "microbatches"));
}

std::string rates_origin(const InstanceSpec& instance) {
  const ClusterSpec here{{{"instance", 1, instance.devices(), instance.machine.device, instance.machine.link}}, instance.between_stages};
  return fmt::format("{}, {} ({})", describe(instance), SharingChoice{instance.sharing, instance.layout}.name(),
                     checksum(hash_of(instance.model) + hash_of(here) + std::to_string(instance.memory_bytes)));
}

std::vector<double> dedicated_rounds(const InstanceSpec& instance, const std::vector<JobKind>& kinds) {
  InstanceSpec dedicated = instance;
  dedicated.sharing = Sharing::separate;
  dedicated.layout = Layout::ragged;
  PlannedRates alone(dedicated, kinds);
  std::vector<double> seconds;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const JobMix mix({static_cast<int32_t>(kind)});
    seconds.push_back(alone.memory().fits(mix) ? alone.round_seconds(mix) : std::numeric_limits<double>::infinity());
  }
  return seconds;
}

std::vector<StudyResult> run_study(const Trace& trace, const InstancesOfCluster& instances, const StudySettings& settings,
                                   const std::function<void(const StudyResult&)>& finished) {
  if (settings.sharings.size() != 1 && !(settings.rates_file.empty() && settings.save_rates.empty())) {
    throw_user_error("--rates FILE and --save-rates are of one sharing policy, found {}", settings.sharings.size());
  }
  for (const std::string& name : settings.policies) make_policy(name, RateTable(), 0);  // an unknown one is named at once
  std::vector<double> dedicated_round_s = dedicated_rounds(instances.spec, trace.kinds);
  // What fits nowhere is refused when it arrives; its duration is kept in seconds.
  std::replace(dedicated_round_s.begin(), dedicated_round_s.end(), std::numeric_limits<double>::infinity(), 1.0);
  std::vector<StudyResult> results;
  for (const SharingChoice& choice : settings.sharings) {
    InstanceSpec instance = instances.spec;
    instance.sharing = choice.sharing;
    instance.layout = choice.layout;
    TraceOptions options = settings.options;
    options.instances = instances.count;
    if (choice.sharing == Sharing::separate) options.most_jobs = 1;
    // Policies that predict do so by a table, whatever the simulated rounds come from.
    const bool predicts = std::count(settings.policies.begin(), settings.policies.end(), "multiplexing") > 0;
    std::optional<RateTable> table;
    if (!settings.rates_file.empty()) {
      table = RateTable::read(settings.rates_file, rates_origin(instance), trace.kinds, options.most_jobs);
    } else if (settings.use_table || !settings.save_rates.empty() || predicts) {
      PlannedRates source(instance, trace.kinds);
      table = RateTable::make(source, source.memory(), trace.kinds, {.most_jobs = options.most_jobs});
    } else {
      table.emplace();
    }
    if (!settings.save_rates.empty()) {
      write_file_atomically(settings.save_rates, table->to_json(rates_origin(instance)).dump(1) + "\n");
    }
    for (const std::string& name : settings.policies) {
      PlannedRates planned(instance, trace.kinds);
      const bool by_table = settings.use_table || !settings.rates_file.empty();
      RoundRates& rates = by_table ? static_cast<RoundRates&>(*table) : planned;
      const auto policy = make_policy(name, *table, name == "multiplexing" ? trace.kinds.size() : 0);
      StudyResult& result = results.emplace_back();
      result.simulation = simulate_trace(trace, *policy, rates, planned.memory(), dedicated_round_s, options);
      result.summary = summarise(trace, result.simulation, dedicated_round_s, instances.count);
      result.summary.policy = name;
      result.summary.sharing = choice.name();
      result.summary.rates = rates.describe();
      result.summary.devices = instances.count * instance.devices();
      if (finished) finished(result);
    }
  }
  return results;
}

}  // namespace cotune
