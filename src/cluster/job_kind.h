/// Kinds of jobs: what a job costs a step, whoever owns it and however long it runs. Simulation counts jobs of a kind.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "jobs/job.h"

namespace cotune {

struct JobKind {
  int64_t rows = 8;      ///< examples of one optimizer step
  int64_t tokens = 256;  ///< of a row: the length that the job pads or cuts its rows to
  AdapterMethod method = AdapterMethod::lora;
  int64_t width = 16;  ///< LoRA rank, bottleneck size; 0 for diff pruning
  auto operator<=>(const JobKind&) const = default;

  int64_t step_tokens() const { return rows * tokens; }
  std::string name() const;  ///< `lora16-8x256`
};

/// How many jobs of each kind share an instance: (kind, count), kinds ascending, counts above 0. Canonical: equal mixes
/// compare equal.
class JobMix {
 public:
  JobMix() = default;
  explicit JobMix(std::vector<int32_t> kinds);  ///< one entry per job, in any order

  void add(int32_t kind);
  void remove(int32_t kind);  ///< which must be there
  const std::vector<std::pair<int32_t, int32_t>>& counts() const { return counts_; }
  int64_t job_count() const { return job_count_; }
  bool empty() const { return counts_.empty(); }
  std::vector<int32_t> kinds() const;  ///< one entry per job, ascending
  bool operator==(const JobMix&) const = default;

 private:
  std::vector<std::pair<int32_t, int32_t>> counts_;
  int64_t job_count_ = 0;
};

struct JobMixHash {
  size_t operator()(const JobMix& mix) const;
};

}  // namespace cotune
