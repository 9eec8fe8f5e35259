#include "train/emulated_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/cost/overlapped_stage.h"
#include "plan/cost/stage_cost.h"
#include "plan/shapes/cluster_file.h"
#include "train/thread_link.h"

namespace cotune {
namespace {

void check_dtype(const std::string& asked, const std::string& has, const std::string& file) {
  if (asked == "auto" || asked == has) return;
  throw_user_error("model.dtype: is {}, but {} has times of {}", asked, file, has);
}

EmulatedTimes of_profile(const std::string& file, const ModelConfig& model, const std::string& dtype, const Parallel& parallel) {
  const Profile profile = read_profile(file);
  const ProfileFingerprint& of = profile.fingerprint;
  check_dtype(dtype, of.dtype, file);
  if (of.dtype == "float64") throw_user_error("{}: is of float64; accepted are bfloat16 and float32", file);
  for (const int64_t tensor : parallel.tensor()) {
    if (of.tensor_parallel == tensor) continue;
    throw_user_error("run.parallel: {} ranks divide each layer, but {} was measured with {}: a cluster file has times of any number", tensor,
                     file, of.tensor_parallel);
  }
  EmulatedTimes times;
  times.measured = std::make_shared<MeasuredTimes>(profile, model, file);
  times.dtype = of.dtype;
  const std::vector<std::string> presets = device_preset_names();
  times.costs.machine.device = device_preset(std::ranges::find(presets, of.device) != presets.end() ? of.device : "cpu");
  times.costs.machine.device.name = of.device;
  times.costs.machine.measured = times.measured.get();
  const LinkSpec messages = link_between_threads(times.measured.get());
  times.costs.machine.link = times.between_replicas = {.bandwidth = messages.bandwidth, .latency = messages.latency};
  return times;
}

EmulatedTimes of_cluster(const std::string& file, const std::string& dtype, const Parallel& parallel) {
  const ClusterSpec cluster = read_cluster_file(file);
  const NodeGroup& first = cluster.nodes.front();
  for (const NodeGroup& group : cluster.nodes) {
    if (group.device != first.device) throw_user_error("{}: nodes of {} and of {}: ranks are of one device", file, first.name, group.name);
  }
  int64_t largest = 0;  // replica
  for (const ReplicaDegrees& replica : parallel.replicas) largest = std::max(largest, replica.ranks());
  const int64_t ranks = parallel.ranks();
  if (ranks > cluster.device_count()) throw_user_error("run.ranks: {} ranks, but {} has {} devices", ranks, file, cluster.device_count());
  EmulatedTimes times;
  times.costs.machine.device = first.device;
  if (largest > 1) times.costs.machine.link = cluster.link_of(first, largest);
  if (parallel.replicas.size() > 1) times.between_replicas = cluster.link_of(first, ranks);
  times.dtype = dtype != "auto" ? dtype : first.device.flops.contains("bfloat16") ? "bfloat16" : "float32";
  if (!first.device.flops.contains(times.dtype)) {
    throw_user_error("model.dtype: is {}, for which {} has no rate: accepted are bfloat16 and float32 as its devices have them", times.dtype, file);
  }
  return times;
}

}  // namespace

EmulatedTimes read_emulated_times(const std::string& file, const ModelConfig& model, const std::string& dtype, const Parallel& parallel) {
  EmulatedTimes times = file.ends_with(".json") ? of_profile(file, model, dtype, parallel) : of_cluster(file, dtype, parallel);
  StageMachine& machine = times.costs.machine;
  machine.dtype = times.dtype;
  times.costs.source = file;
  auto device = std::make_shared<EmulatedDevice>();
  device->name = fmt::format("emulated {}", machine.device.name.empty() ? "device" : machine.device.name);
  device->operator_seconds = [model, machine, measured = times.measured](const StageShape& stage, const Operator& op,
                                                                        const MicrobatchCounts& counts) {
    if (op.kind != OperatorKind::loss_head || measured == nullptr) return OperatorParts(op).seconds(model, stage, counts, machine);
    Operator head = op;  // profiles are of training: the head without its backward, one product of two
    head.kind = OperatorKind::head;
    return OperatorParts(head).seconds(model, stage, counts, machine) / 2;
  };
  device->optimizer_seconds = [spec = machine.device](int64_t values, int64_t moments) { return optimizer_seconds(values, moments, spec); };
  device->all_reduce_seconds = [link = machine.link](int64_t bytes, int64_t count) {
    return all_reduce_seconds(static_cast<double>(bytes), count, link);
  };
  device->rates = stream_rates(machine);
  const auto as_link = [](const LinkSpec& link) {  // unset: nothing is sent there
    return link == LinkSpec{} ? Link{} : Link{.latency_s = link.latency, .bytes_per_s = link.bandwidth};
  };
  device->link = as_link(machine.link);
  device->exchange_link = as_link(times.between_replicas);
  times.device = std::move(device);
  return times;
}

}  // namespace cotune
