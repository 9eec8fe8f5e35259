/// Small random traces, instances and rates for property tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "cluster/simulate_trace.h"

namespace cotune {

/// Rounds that grow with what is in them, in closed form: a start-up and a share per job. Monotone.
class AddedRates : public RoundRates, public RoundPredictor {
 public:
  AddedRates(double start_s, std::vector<double> job_s) : start_s_(start_s), job_s_(std::move(job_s)) {}
  double round_seconds(const JobMix& mix) override { return predicted_round_seconds(mix); }
  double predicted_round_seconds(const JobMix& mix) const override {
    double seconds = start_s_;
    for (const auto& [kind, count] : mix.counts()) seconds += count * job_s_[static_cast<size_t>(kind)];
    return seconds;
  }
  std::string describe() const override { return "a sum"; }
  std::vector<double> alone() const {
    std::vector<double> seconds;
    for (const double each : job_s_) seconds.push_back(start_s_ + each);
    return seconds;
  }

 private:
  double start_s_;
  std::vector<double> job_s_;
};

struct RandomTrace {
  explicit RandomTrace(uint64_t seed) : rates(0, {}) {
    uint64_t next = 0;
    const auto below = [&](uint64_t bound) { return uniform_below(seed, next++, bound); };
    const auto draw = [&] { return uniform(seed, next++); };
    const size_t kinds = 1 + below(4);
    std::vector<double> job_s;
    memory.padded = below(3) == 0;
    const size_t stages = 1 + below(3);
    for (size_t s = 0; s < stages; ++s) {
      memory.fixed_bytes.push_back(static_cast<int64_t>(below(50)));
      memory.limit_bytes.push_back(100 + static_cast<int64_t>(below(200)));
    }
    for (size_t k = 0; k < kinds; ++k) {
      trace.kinds.push_back({8, static_cast<int64_t>(16 * (k + 1)), AdapterMethod::lora, 8});
      job_s.push_back(0.1 + draw());
      JobMemory each{.row_tokens = trace.kinds.back().tokens};
      for (size_t s = 0; s < stages; ++s) {
        each.resident_bytes.push_back(static_cast<int64_t>(below(40)));
        each.activation_bytes.push_back(static_cast<int64_t>(below(80)));
      }
      memory.kinds.push_back(each);
    }
    rates = AddedRates(draw(), job_s);
    const size_t tenants = 1 + below(3);
    for (size_t t = 0; t < tenants; ++t) trace.tenants.push_back("t" + std::to_string(t));
    double now = 0;
    const size_t jobs = 1 + below(40);
    const bool at_once = below(5) == 0;
    for (size_t j = 0; j < jobs; ++j) {
      TraceJob job;
      job.name = "j" + std::to_string(j);
      job.kind = static_cast<int32_t>(below(kinds));
      job.tenant = static_cast<int32_t>(below(tenants));
      job.priority = static_cast<int64_t>(below(3));
      if (!at_once && below(3) != 0) now += 10 * draw();
      job.arrival_s = now;
      job.duration_s = 1 + 60 * draw() * draw();
      if (below(3) == 0) job.deadline_s = now + job.duration_s * (1 + 4 * draw());
      if (below(4) == 0) job.stops_after = 0.05 + 0.9 * draw();
      job.dedicated = below(8) == 0;
      trace.jobs.push_back(job);
    }
    options.instances = 1 + static_cast<int64_t>(below(4));
    options.most_jobs = below(3) == 0 ? 1 : static_cast<int64_t>(below(5));
    options.restart_s = below(2) == 0 ? 0 : 3 * draw();
    options.refuse_late = below(3) == 0;
  }

  Trace trace;
  InstanceMemory memory;
  AddedRates rates;
  TraceOptions options;

  TraceSimulation simulate(const std::string& policy_name) {
    const auto policy = make_policy(policy_name, rates, trace.kinds.size());
    return simulate_trace(trace, *policy, rates, memory, rates.alone(), options);
  }
};

}  // namespace cotune
