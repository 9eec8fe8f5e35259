#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/run/supervised_run.h"
#include "comm/gpu_messages.h"
#include "comm/launcher.h"
#include "device/compute_device.h"
#include "engine/backbone.h"
#include "engine/rank_links.h"
#include "jobs/job.h"
#include "model/weights/model_files.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// What the first rank's process tells the others before they load anything. All else that they need comes with the rounds.
struct RankSetup {
  JobsFile jobs_file;
  std::string compute_dtype;  ///< as c10::toString has it
  bool on_cpu = true;
  int64_t positions = 0;      ///< BackboneUse::positions
  std::vector<PipelineLayout> layouts = {};        ///< of the replicas
  std::function<std::string()> model_fingerprint;  ///< of the first rank's model: asked where a rank reads other files than that one
  bool loads = true;          ///< false: they only compare their models with the first rank's
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
/// they have been set up they end without a word, with this one's exit code. All watch each other from the meeting on (engine/rank_watch.h): where a
/// rank is gone or hangs this process says so, and ends within seconds.
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

  /// They open their models, and those who read other files than this one, each set of files once, compare them with its; then they load their
  /// stages. Returns when all have opened them: throws where a rank cannot.
  void set_up(const RankSetup& setup, const ModelFiles& own);
  /// Where they load nothing: returns when all have compared. Throws what failed on a rank: a model that is another one there, with what differs.
  void wait_until_compared();
  /// Where they do: returns when all have loaded, too. own: this process's weights, on the device. Throws also where what ranks have
  /// does not go together.
  void wait_until_loaded(const Backbone& own, const ComputeDevice& device);
  /// Then: the links for the run.
  RankLinks take_links(const ComputeDevice& device);

  /// Calls part. From then on the others end as this process does: with the exit code that part returns, or that of what it throws.
  int ending_all_with_code_of(const std::function<int()>& part);
  /// As the last one said; 1 before.
  int exit_code() const { return exit_code_; }
  /// Unless the links have been taken: when this is destroyed the others are told that no start will follow. Whether they are.
  bool end_for_good();
  /// Between ranks that exchange messages, sums or gradients: the slowest that was measured, by messages of one byte and of 4 MiB.
  Link measured_link() const { return link_; }
  /// How tensors go between GPUs, or why they go by way of the hosts; empty where ranks compute on CPUs.
  const std::string& gpu_messages() const { return gpu_messages_.text; }

 private:
  /// Throws the first error among their answers when all have come.
  void take_answers(const std::function<void(int32_t rank, const nlohmann::json& answer)>& take);

  LaunchedProcess process_;
  std::vector<RankProcess> ranks_;
  RankLinks links_;
  std::vector<PipelineLayout> layouts_;
  Link link_;
  GpuMessages gpu_messages_;
  bool is_set_up_ = false;  ///< and the others' answers have not been taken
  bool for_good_ = false;
  int exit_code_ = 1;
};

/// Any other rank's process, from its start to its end. supervised: this process, where it is; else nullptr. Returns the exit code: the first
/// rank's. A mistake that this one alone can see is told here, too.
int follow_first_rank(const LaunchedProcess& process, SupervisedRun* supervised);

/// Threads that each of so many processes on the same cores computes with: run.threads, or all cores, divided among them;
/// OMP_NUM_THREADS where only that says something.
int threads_of_process(const RunSpec& run, int32_t processes);

}  // namespace cotune
