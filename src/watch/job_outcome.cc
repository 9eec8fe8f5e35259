#include "watch/job_outcome.h"

#include <fmt/format.h>

#include "base/counted.h"

namespace cotune {
namespace {

std::string kept(const JobReport& job) {
  return job.checkpoint.empty() ? "no checkpoint was made" : "checkpoint " + job.checkpoint;
}

}  // namespace

std::string job_outcome(const JobReport& job, ControlAction action) {
  switch (action) {
    case ControlAction::cancel: return fmt::format("{}: cancelled at step {}; {}", job.name, job.step, kept(job));
    case ControlAction::pause: return fmt::format("{}: paused at step {}; {}", job.name, job.step, kept(job));
    case ControlAction::priority: return fmt::format("{}: priority {}", job.name, job.priority);
    default: break;
  }
  if (job.status == "waiting") return fmt::format("{}: waits: {}", job.name, job.reason);
  if (job.status != "running") return fmt::format("{}: {}{}", job.name, job.status, job.reason.empty() ? "" : ": " + job.reason);
  return job.step > 0 ? fmt::format("{}: goes on at step {} of {}", job.name, job.step, job.steps)
                      : fmt::format("{}: starts; {}", job.name, counted(job.steps, "step"));
}

}  // namespace cotune
