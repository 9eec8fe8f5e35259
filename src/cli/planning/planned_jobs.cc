#include "cli/planning/planned_jobs.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/diagnostics.h"
#include "cli/inputs/model_text.h"
#include "cli/inputs/run_setup.h"

namespace cotune {
namespace {

/// What the lengths do not say of data.train, by job.
struct ReadFacts {
  std::map<std::string, double> truncated_shares;
  std::map<std::string, int64_t> steps, batch_sizes;
};

/// Lengths of the tokenized examples that an epoch takes of data.train.
ReadLengths length_reader(const ModelFiles& files, const RunSpec& run, ReadFacts& facts) {
  auto text = std::make_shared<ModelText>(files);
  return [text, reading = DataReading(run), config = files.config, &facts](const JobSpec& job) {
    Diagnostics diagnostics;
    const JobData data = read_data(job, *text, config, reading, diagnostics);
    diagnostics.throw_if_any();
    std::vector<int64_t> lengths;
    const BatchOrder order = batch_order(job, data.train);
    facts.batch_sizes[job.name] = std::min(job.train.batch_size, order.example_count);
    facts.steps[job.name] = total_steps(order, job.train.steps, job.train.epochs);
    for (const int64_t example : epoch_order(order, 0)) lengths.push_back(data.train.length(example));
    int64_t truncated = 0;
    for (size_t i = 0; i < job.data.train.size(); ++i) truncated += data.files[i].truncated;
    const int64_t rows = data.train.size() + (job.data.eval.empty() ? data.eval.size() : 0);  // as many as the files have
    if (rows > 0) facts.truncated_shares[job.name] = static_cast<double>(truncated) / static_cast<double>(rows);
    return histogram_of(lengths);
  };
}

}  // namespace

PlannedJobs planned_jobs(const JobsFile& jobs_file) {
  const ModelFiles files = model_without_weights(jobs_file.model);
  const bool reads_data = std::any_of(jobs_file.jobs.begin(), jobs_file.jobs.end(),
                                      [](const JobSpec& job) { return job.data.lengths.empty(); });
  ReadFacts facts;
  PlannedJobs planned{files.config, job_shapes(jobs_file.jobs, files.config,
                                               reads_data ? length_reader(files, jobs_file.run, facts) : ReadLengths(nullptr)), {}};
  planned.steps = std::move(facts.steps);
  for (const JobSpec& job : jobs_file.jobs) {
    if (!job.data.lengths.empty() && job.train.steps > 0) planned.steps[job.name] = job.train.steps;  // the others were read
  }
  for (JobShape& job : planned.jobs) {
    const auto read = facts.truncated_shares.find(job.name);
    if (read != facts.truncated_shares.end()) job.truncated_share = read->second;
    const auto batch = facts.batch_sizes.find(job.name);
    if (batch != facts.batch_sizes.end()) job.batch_size = batch->second;
  }
  return planned;
}

}  // namespace cotune
