/// Many jobs on one line for people.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// Candidate → its sweep.
using SweepOfJob = std::map<std::string, std::string>;
SweepOfJob sweeps_of(std::span<const JobSpec> jobs);

/// The names in their order, but few entries: more than three candidates of one sweep are one, `sql (192 candidates)`, and of more than
/// six entries the last says how many jobs are left out, `24 more`.
std::vector<std::string> listed_jobs(std::span<const std::string> names, const SweepOfJob& sweeps = {});

/// The entries on one line: `a, b, sql (192 candidates)`.
std::string job_list(std::span<const std::string> names, const SweepOfJob& sweeps = {}, std::string_view between = ", ");

}  // namespace cotune
