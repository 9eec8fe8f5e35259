/// Which jobs run now, so that the predicted peak stays under the limit (mLoRA §3.4).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "schedule/memory/memory_facts.h"

namespace cotune {

struct AdmissionCandidate {
  int32_t job = 0;
  int64_t priority = 0;   ///< higher goes first
  int64_t arrival = 0;    ///< lower goes first within a priority and deadline; ties: lower job index
  bool running = false;   ///< keeps its place: admit() never pre-empts, jobs_to_put_out says who makes way
  /// Seconds since 1970: earlier ones go first within a priority, jobs without one last.
  int64_t deadline = std::numeric_limits<int64_t>::max();
};

/// Whose turn comes first: by priority (descending), deadline, arrival and index.
bool goes_before(const AdmissionCandidate& a, const AdmissionCandidate& b);

struct AdmissionRefusal {
  int32_t job = 0;
  std::string term;         ///< the kind of memory that overflows (MemoryEstimate::overflowing_term)
  int64_t needed_bytes = 0; ///< with this job alone
  int64_t limit_bytes = 0;
  /// One sentence for the user. asked_bytes: the limit as it was asked for, of which limit_bytes are what admission may
  /// give away; 0: they are the same.
  std::string to_string(int64_t asked_bytes = 0) const;
  bool operator==(const AdmissionRefusal&) const = default;
};

struct Admission {
  std::vector<int32_t> admitted;  ///< running ones first, then in order of priority, deadline and arrival
  std::vector<int32_t> waiting;   ///< in the same order
  std::vector<AdmissionRefusal> refused;  ///< can never fit, even alone
};

/// The predicted peak with exactly these jobs. Adding a job must never lower it.
using PredictPeak = std::function<MemoryEstimate(std::span<const int32_t> jobs)>;

/// Walks the candidates in the order of goes_before, and admits each that fits beside those already in: a job
/// that does not fit waits, and later ones may start before it (backfill). So no waiting job fits beside the admitted.
Admission admit(std::span<const AdmissionCandidate> candidates, int64_t limit_bytes, const PredictPeak& predict);

/// Who makes way for `waiting`, a job that does not fit beside the running ones: running jobs of strictly lower priority, as few
/// as their order gives, the last of it first, so that it fits beside the others (mLoRA §3.4: pre-emption). Empty where that
/// does not make it fit. candidates: all that run, and the waiting one.
std::vector<int32_t> jobs_to_put_out(std::span<const AdmissionCandidate> candidates, int32_t waiting, int64_t limit_bytes,
                                     const PredictPeak& predict);

/// Whom to pause when memory runs out all the same: the last in that order (the youngest of the lowest priority) among the
/// running; -1 where none runs.
int32_t job_to_pause(std::span<const AdmissionCandidate> candidates);

}  // namespace cotune
