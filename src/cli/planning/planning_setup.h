/// What `cotune plan` and `cotune simulate` read before they predict anything.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "jobs/jobs_file.h"
#include "model/config/model_config.h"
#include "plan/cost/measured_times.h"
#include "plan/plan_options.h"
#include "plan/shapes/cluster.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct PlanningSources {
  std::string command;                 ///< `plan`, `simulate`: in messages
  std::string jobs_file;
  std::vector<std::string> overrides;  ///< of --set
  std::string cluster;                 ///< file; "": this machine's CPU
  std::string profile;                 ///< file; "": none
  std::string dtype;                   ///< where model.dtype is auto and nothing was measured; "": bfloat16 where every device has a rate for it
  bool has_dtype_option = false;       ///< whether the command has --dtype: in messages
  std::set<std::string> read;          ///< paths of the options of `run` that the command reads: `run.layout`
};

/// A profile with its fits, for jobs and a cluster that it holds for.
struct PlanProfile {
  Profile profile;
  MeasuredTimes times;
};

struct PlanningSetup {
  JobsFile jobs_file;
  std::map<std::string, OptionPlace> run_places;
  ModelConfig model;
  std::vector<JobShape> jobs;
  std::map<std::string, int64_t> steps;  ///< PlannedJobs::steps
  ClusterSpec cluster;                   ///< with the links that the profile has measured
  std::unique_ptr<PlanProfile> profile;  ///< null: none
  PlanOptions options;                   ///< dtype, layout, chunk size, recomputation and profile are set; it points into this
};

/// Throws UserError: the mistakes of read_jobs_file, given_lengths and read_cluster_file at once, else what planned_jobs and read_profile throw; an
/// option of `run` that --set gives and the command does not read; a profile of another dtype, model or machine. A profile without a cluster file
/// must be of this machine; the devices of a cluster must be of one kind, and are taken to be the profile's.
PlanningSetup read_planning_setup(const PlanningSources& sources);

}  // namespace cotune
