/// Rounds by a table that was made beforehand: thousands of times faster than the planner, and without it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/instance_memory.h"
#include "cluster/round_rates.h"
#include "cluster/scheduling_policy.h"

namespace cotune {

struct RateTableSettings {
  int64_t samples = 600;   ///< mixes of three jobs and more that a fit is made from
  int64_t most_jobs = 0;   ///< of a mix; 0: as many as fit
  uint64_t seed = 1;
};

/// Seconds of a round of one and of two jobs as they were measured or planned; of more jobs
///   T(mix) = Σ_k n_k·c_k + r(number of jobs),   no less than that of any of its jobs alone
/// c_k a kind's share, r piecewise linear between knots: least squares of the relative error over sampled mixes that fit into
/// memory, half of them full. Where rows are padded to the longest of a mix, one fit per longest length. The worst and mean relative error over
/// mixes that the fit has not seen are part of the table.
class RateTable : public RoundRates, public RoundPredictor {
 public:
  /// Asks `source` for singles, pairs and samples.
  static RateTable make(RoundRates& source, const InstanceMemory& memory, const std::vector<JobKind>& kinds,
                        const RateTableSettings& settings);

  double round_seconds(const JobMix& mix) override { return predicted_round_seconds(mix); }
  double predicted_round_seconds(const JobMix& mix) const override;
  std::string describe() const override;

  double mean_error() const { return mean_error_; }    ///< relative, absolute values
  double worst_error() const { return worst_error_; }

  /// The file: {"cotune_rates": 1, "instance": TEXT, "most_jobs": N, "kinds": […], "alone_s": […], "pairs_s": [[…]], "fits": […]}.
  /// `instance` says what it was made for; reading refuses another, kinds that it lacks, and mixes of more jobs than it was made from.
  nlohmann::json to_json(const std::string& instance) const;
  static RateTable from_json(const nlohmann::json& json, const std::string& file_name, const std::string& instance,
                             const std::vector<JobKind>& kinds, int64_t most_jobs);
  static RateTable read(const std::filesystem::path& path, const std::string& instance, const std::vector<JobKind>& kinds, int64_t most_jobs);

 private:
  struct Fit {
    std::vector<double> kind_s;    // c, by kind
    std::vector<double> offset_s;  // r, by knot
  };
  int64_t fit_of(const JobMix& mix) const;  // key of fits_
  std::set<int64_t> fit_keys() const;
  std::vector<double> features(const JobMix& mix) const;
  void fit(const std::vector<std::pair<JobMix, double>>& samples);

  std::vector<JobKind> kinds_;
  bool padded_ = false;
  int64_t most_jobs_ = 0;  // of a mix; 0: as many as fit
  std::vector<double> alone_s_;
  std::vector<std::vector<double>> pairs_s_;  // [i][j], i >= j; empty: a mix has one job at most
  std::map<int64_t, Fit> fits_;               // by the longest row where rows are padded, else under 0
  double mean_error_ = 0, worst_error_ = 0;
};

}  // namespace cotune
