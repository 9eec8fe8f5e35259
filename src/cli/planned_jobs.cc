#include "cli/planned_jobs.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/diagnostics.h"
#include "cli/model_text.h"
#include "cli/run_setup.h"

namespace cotune {
namespace {

/// Lengths of the tokenised examples of data.train.
ReadLengths length_reader(const ModelFiles& files, std::map<std::string, double>& truncated_shares) {
  auto text = std::make_shared<ModelText>(files);
  return [text, config = files.config, &truncated_shares](const JobSpec& job) {
    Diagnostics diagnostics;
    const JobData data = read_data(job, *text, config, diagnostics);
    diagnostics.throw_if_any();
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < data.train.size(); ++i)
      lengths.push_back(static_cast<int64_t>(data.train.tokens(i).size()));
    if (!lengths.empty()) {
      truncated_shares[job.name] = static_cast<double>(data.files.front().truncated) / static_cast<double>(lengths.size());
    }
    return histogram_of(lengths);
  };
}

}  // namespace

PlannedJobs planned_jobs(const JobsFile& jobs_file) {
  const ModelFiles files = model_without_weights(jobs_file.model);
  const bool reads_data = std::any_of(jobs_file.jobs.begin(), jobs_file.jobs.end(),
                                      [](const JobSpec& job) { return job.data.lengths.empty(); });
  std::map<std::string, double> truncated_shares;  // by job
  PlannedJobs planned{files.config, job_shapes(jobs_file.jobs, files.config,
                                               reads_data ? length_reader(files, truncated_shares) : ReadLengths(nullptr))};
  for (JobShape& job : planned.jobs) {
    const auto read = truncated_shares.find(job.name);
    if (read != truncated_shares.end()) job.truncated_share = read->second;
  }
  return planned;
}

}  // namespace cotune
