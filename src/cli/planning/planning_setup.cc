#include "cli/planning/planning_setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "base/process_cores.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/inputs/profile_fingerprint.h"
#include "cli/inputs/run_setup.h"
#include "cli/inputs/unread_overrides.h"
#include "cli/planning/planned_jobs.h"
#include "jobs/found_chunk_size.h"
#include "plan/plan_json.h"
#include "plan/shapes/cluster_file.h"
#include "schedule/chunk_size.h"

namespace cotune {
namespace {

/// This machine: one device, the preset `cpu`, which is two cores, for every two that there are, with the memory that the machine has.
ClusterSpec this_machine() {
  DeviceSpec device = device_preset("cpu");
  const double times = static_cast<double>(std::max<size_t>(1, cores_of_this_process().size())) / 2;
  for (auto& [dtype, flops] : device.flops) flops *= times;
  device.memory_bandwidth *= times;
  const auto pages = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)),
             page_bytes = static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  if (pages > 0 && page_bytes > 0) device.memory_bytes = pages * page_bytes;
  return {.nodes = {{.name = "this-machine", .device = device}}, .network = {}};
}

std::string planned_dtype(const PlanningSources& sources, const ModelSpec& model, const ClusterSpec& cluster) {
  if (model.dtype != "auto") {
    if (sources.dtype.empty() || sources.dtype == model.dtype) return model.dtype;
    throw_user_error("--dtype: is {}, but model.dtype is {}: leave one of the two out", sources.dtype, model.dtype);
  }
  if (!sources.dtype.empty()) return sources.dtype;
  for (const NodeGroup& group : cluster.nodes) {
    if (group.device.flops.contains("bfloat16")) continue;
    fmt::print(stderr, "dtype: float32, for nodes `{}` have no rate for bfloat16; {} needs a cluster file without them\n", group.name,
               sources.has_dtype_option ? "--dtype bfloat16" : "--set model.dtype=bfloat16");
    return "float32";
  }
  return "bfloat16";
}

/// What says in which dtype to plan, in words.
std::string dtype_source(const PlanningSources& sources, const ModelSpec& model) {
  if (model.dtype != "auto") return "model.dtype";
  if (!sources.profile.empty()) return sources.profile;
  return sources.dtype.empty() ? "model.dtype auto" : "--dtype";
}

ClusterSpec planned_cluster(const PlanningSources& sources, Diagnostics& mistakes) {
  if (sources.cluster.empty()) return this_machine();
  try {
    return read_cluster_file(sources.cluster);
  } catch (const UserError& error) {
    mistakes.add(error);
    return {};
  }
}

/// As `cotune train` finds it for these jobs.
int64_t planned_chunk_size(const RunSpec& run, const std::vector<JobShape>& jobs) {
  if (run.chunk_size != chunk_size_as_found) return run.chunk_size;
  std::vector<int64_t> longest;
  for (const JobShape& job : jobs) longest.push_back(job.lengths.longest());
  return chunk_size_for(longest, run.token_budget);
}

std::unique_ptr<PlanProfile> profile_for(const PlanningSources& sources, const ModelSpec& model, const ModelConfig& config,
                                         const ClusterSpec& cluster) {
  Profile profile = read_profile(sources.profile);
  const std::string& dtype = model.dtype == "auto" ? sources.dtype : model.dtype;
  if (!dtype.empty() && dtype != "auto" && dtype != profile.fingerprint.dtype) {
    throw_user_error("{}: was measured in {}, {} is {}", sources.profile, profile.fingerprint.dtype,
                     model.dtype == "auto" ? "--dtype" : "model.dtype", dtype);
  }
  if (sources.cluster.empty()) {
    ModelSpec measured = model;
    measured.dtype = profile.fingerprint.dtype;
    const ComputeDevice device = choose_device("cpu", "--profile");
    check_fingerprint(profile, fingerprint_here(config, compute_dtype(measured, device), device), sources.profile);
  }
  for (const NodeGroup& group : cluster.nodes) {
    if (group.device != cluster.nodes.front().device) {
      throw_user_error("{}: nodes of {} and of {}: a profile is of one device", sources.cluster, cluster.nodes.front().name,
                       group.name);
    }
  }
  MeasuredTimes times(profile, config, sources.profile);
  return std::make_unique<PlanProfile>(PlanProfile{std::move(profile), std::move(times)});
}

}  // namespace

PlanningSetup read_planning_setup(const PlanningSources& sources) {
  Diagnostics mistakes;
  JobsFileReading reading = read_jobs_file(sources.jobs_file, sources.overrides, Purpose::plan, mistakes);
  refuse_unread(reading.run_places, sources.read, sources.command, mistakes);
  check_preset(reading, mistakes);
  for (const JobSpec& job : reading.jobs_file.jobs) {
    if (!job.data.lengths.empty()) given_lengths(job, mistakes);
  }
  ClusterSpec cluster = planned_cluster(sources, mistakes);
  mistakes.throw_if_any();
  PlanningSetup setup{.jobs_file = std::move(reading.jobs_file), .run_places = std::move(reading.run_places), .cluster = std::move(cluster)};
  const ModelSpec& model = setup.jobs_file.model;
  PlannedJobs planned = planned_jobs(setup.jobs_file);
  setup.model = std::move(planned.model);
  setup.jobs = std::move(planned.jobs);
  setup.steps = std::move(planned.steps);
  PlanOptions& options = setup.options;
  options.layout = setup.jobs_file.run.layout;
  options.chunk_size = planned_chunk_size(setup.jobs_file.run, setup.jobs);
  options.recompute = setup.jobs_file.run.recompute;
  if (!sources.profile.empty()) setup.profile = profile_for(sources, model, setup.model, setup.cluster);
  options.dtype = setup.profile != nullptr ? setup.profile->profile.fingerprint.dtype : planned_dtype(sources, model, setup.cluster);
  const std::string name = sources.cluster.empty() ? "this machine" : sources.cluster;
  check_rates(setup.cluster, name, options.dtype, dtype_source(sources, model));
  if (setup.profile != nullptr) {
    setup.cluster = with_measured_links(std::move(setup.cluster), setup.profile->times.collectives());
    options.measured = &setup.profile->times;
    options.profile_hash = checksum(read_file(sources.profile));
  }
  return setup;
}

}  // namespace cotune
