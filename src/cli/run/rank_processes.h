#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/run/supervised_run.h"
#include "comm/launcher.h"
#include "device/compute_device.h"
#include "engine/backbone.h"
#include "engine/rank_links.h"
#include "jobs/job.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// What the first rank's process tells the others before they load anything.
struct RankSetup {
  JobsFile jobs_file;
  std::string compute_dtype;  ///< as c10::toString has it
  bool on_cpu = true;
  int64_t positions = 0;      ///< BackboneUse::positions
  std::vector<PipelineLayout> layouts;  ///< of the replicas
  std::string model_fingerprint;
};

/// A rank's process, as the first one knows it.
struct RankProcess {
  std::string host;
  int32_t local_rank = 0;     ///< among those of its host
  std::vector<int32_t> cores; ///< that it may compute on
  int64_t weight_bytes = 0;   ///< once it has loaded them
  int64_t tensor_limit_bytes = 0;  ///< then; 0: none
};

/// The processes of a run that torchrun or Slurm has started, from the first one's side: it reads the jobs file and the data,
/// plans, and writes everything; the others load their part of the model and do as they are told. If this is destroyed before
/// they have been set up they end without a word. All watch each other from the meeting on (rank_watch.h): where a rank is gone or hangs
/// this process says so, and ends within seconds.
class RankProcesses {
 public:
  /// Meets the others. hang_timeout_s: of find_hung_rank. supervised: this process, where it is; else nullptr; must stand as long as the
  /// links do. Throws as process_communicator does.
  RankProcesses(const LaunchedProcess& process, double hang_timeout_s, SupervisedRun* supervised);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  const LaunchedProcess& process() const { return process_; }
  const std::vector<RankProcess>& ranks() const { return ranks_; }
  /// How many of them are on a rank's machine, it included; and how many of these may compute on some of its cores.
  int32_t on_host_of(size_t rank) const;
  /// Hosts, where all have as many; else 1.
  int32_t host_count() const;
  int32_t on_cores_of(size_t rank) const;

  /// Of this process, until the links are taken: for what it does before the run that may hang (RankTask).
  RankProgress* progress() const { return links_.progress.get(); }

  /// They begin to load their stages.
  void set_up(const RankSetup& setup);
  /// When all have loaded them: the links for the run. own: this process's weights, on the device. Throws what failed on a rank.
  RankLinks take_links(const Backbone& own, const ComputeDevice& device);
  /// Unless the links have been taken: when this is destroyed the others are told that no start will follow. Whether they are.
  bool end_for_good();
  /// Between ranks that exchange messages, sums or gradients: the slowest that was measured, by messages of one byte and of 4 MiB.
  Link measured_link() const { return link_; }
  /// How tensors go between GPUs, or why they go by way of the hosts; empty where ranks compute on CPUs.
  const std::string& gpu_messages() const { return gpu_messages_; }

 private:

  LaunchedProcess process_;
  std::vector<RankProcess> ranks_;
  RankLinks links_;
  std::vector<PipelineLayout> layouts_;
  Link link_;
  std::string gpu_messages_;
  bool is_set_up_ = false;  ///< and the others' answers have not been taken
  bool for_good_ = false;
};

/// Any other rank's process, from its start to its end. supervised: this process, where it is; else nullptr. Returns the exit code.
int follow_first_rank(const LaunchedProcess& process, SupervisedRun* supervised);

/// Threads that each of so many processes on the same cores computes with: run.threads, or all cores, divided among them;
/// OMP_NUM_THREADS where only that says something.
int threads_of_process(const RunSpec& run, int32_t processes);

}  // namespace cotune
