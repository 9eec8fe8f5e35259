/// Ranks that are processes: what the launcher says about this one, and how it joins the others.
///
/// torchrun, and whatever else sets the same variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; also
/// TORCHELASTIC_USE_AGENT_STORE (`True`: torchrun itself listens on the port) and TORCHELASTIC_RESTART_COUNT.
/// Recognised by RANK or WORLD_SIZE, and taken before Slurm's where both are there.
///
/// Slurm, in the tasks of an srun: SLURM_STEP_ID, by which it is recognised (a batch script outside srun has none, and
/// is alone), SLURM_PROCID, SLURM_STEP_NUM_TASKS or else SLURM_NTASKS, SLURM_LOCALID. The master is MASTER_ADDR, or
/// else the first host of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST. The port is MASTER_PORT, or else
/// 12000 + (SLURM_JOB_ID + 1009 · SLURM_STEP_ID) mod 20000, below the ports that systems hand out by themselves. Of a job that
/// was put back into the queue: SLURM_RESTART_COUNT.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace cotune {

class Communicator;

/// This process among those that were launched together.
struct LaunchedProcess {
  std::string launcher;  ///< `torchrun` or `Slurm`
  int32_t rank = 0;
  int32_t size = 1;        ///< of the group; with 1 the process is alone, as though it had no launcher
  int32_t local_rank = 0;  ///< among the processes of this machine
  std::string master_host;
  uint16_t master_port = 0;
  bool launcher_listens = false;  ///< on master_port; otherwise rank 0 does
  int32_t restart = 0;            ///< how often the launcher has started the group again
  int32_t own_restart = 0;        ///< how often the processes have started themselves again since

  bool operator==(const LaunchedProcess&) const = default;
};

/// Before what the processes of one start leave at the master, which may be there for several.
std::string start_key(const LaunchedProcess& process);

using Environment = std::map<std::string, std::string>;
Environment environment_of_this_process();

/// None where no launcher is recognised. Throws UserMistakes that name every variable which is missing or wrong, what
/// was found in it and what is accepted.
std::optional<LaunchedProcess> launched_process(const Environment& environment);

/// What started this process, and may start it again.
struct Launching {
  std::string name;     ///< equal at all starts of one launch; "": of none that counts them
  int64_t restart = 0;  ///< how often it has started the process again

  bool operator==(const Launching&) const = default;
};

/// `parent`: names this process's parent (name_of_process), which stays where an agent of torchrun starts ranks again and nobody has given the
/// launch an id (TORCHELASTIC_RUN_ID). Slurm: the job, and its step where there is one, with SLURM_RESTART_COUNT. Throws as above.
Launching launch_of(const Environment& environment, const std::string& parent);

/// Of this boot of this machine alone: its id and when it started. A process that is gone or hidden is named by its id.
std::string name_of_process(int64_t id);

class RanksMissing : public SystemError {
 public:
  using SystemError::SystemError;
};

/// How long a process waits for the others, and who is told what it waits for.
struct Joining {
  std::chrono::milliseconds most = std::chrono::minutes(5);          ///< for the slowest process to come
  std::chrono::milliseconds most_for_name = std::chrono::seconds(40);  ///< for the master's name to be known
  std::chrono::milliseconds quiet = std::chrono::seconds(10);        ///< before anything is told; of a name that is not known at once
  std::function<void(const std::string&)> tell = [](const std::string&) {};  ///< a line, from any thread
};

/// Meets the other processes at the master and joins them; returns when all have joined. Messages take the interface
/// from which this machine reaches the master. May be called again once the former communicator is gone, as often by
/// every rank. Whoever waits says so: for the master's name, for the master, and, the first of the ranks, for which others.
///
/// Throws RanksMissing where the master's name cannot be looked up, the master cannot be reached or a rank does not come (the message
/// names it), SystemError where one comes twice or has been started again meanwhile (own_restart: this one must be too), and
/// CommunicationEnded where one leaves while the last ones join.
std::unique_ptr<Communicator> process_communicator(const LaunchedProcess& process, const Joining& joining = {});

/// A group of some of them: element r of `ranks`, which ascend and this process's is among, becomes rank r. All processes join
/// groups equally often; those that they join at the same time have no process in common.
std::unique_ptr<Communicator> process_communicator(const LaunchedProcess& process, const std::vector<int32_t>& ranks,
                                                   const Joining& joining = {});

}  // namespace cotune
