/// Times predicted from a profile: per operator a sum of terms (plan/cost/operator_terms.h) with coefficients ≥ 0, fitted to
/// what was measured (MuxTune §4, MX-28).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/cost/measured_collectives.h"
#include "schedule/profile.h"

namespace cotune {

/// One operator's fit.
struct OperatorFit {
  std::vector<double> coefficients;  ///< seconds per unit of operator_term_names(key)
  double mean_error = 0;             ///< mean of |fitted − measured| / measured over the profile's shapes
  double worst_error = 0;
};

struct StepSeconds {
  double total = 0;
  std::map<std::string, double> by_operator;  ///< by profile_key, `round` among them
};

/// Monotone: more tokens, labels, pairs, adapters or width never take less time. Outside the measured range the terms go on
/// as they are.
class MeasuredTimes {
 public:
  /// Least squares of the relative errors. config: the model's, with any number of layers. Throws UserError, with
  /// file_name, when the model's shape is not the profile's, or the profile lacks an operator that training needs.
  MeasuredTimes(const Profile& profile, const ModelConfig& config, const std::string& file_name);

  /// One call of one operator; 0 for the gathers of sequence parallelism, which compute next to nothing. An operator of alone_suffix that
  /// the profile does not have takes the time of the one without. Of a stage that is divided otherwise than what was measured (whole layers)
  /// the time is estimated (divided_operator_terms). Throws UserError where is_of() is false.
  double operator_seconds(const ModelConfig& config, const StageShape& stage, const Operator& op,
                          const MicrobatchCounts& counts) const;

  /// What a round takes beside its operators, by the terms of round_key.
  double round_seconds(const std::vector<double>& terms) const;

  /// The same times, those of operators and rounds so many times as long.
  MeasuredTimes scaled(double factor) const;

  /// A whole round on one rank.
  StepSeconds step_seconds(const ModelConfig& config, const PlannedStep& step) const;

  const std::map<std::string, OperatorFit>& fits() const { return fits_; }
  const MeasuredCollectives& collectives() const { return collectives_; }
  /// The degree that was measured.
  int64_t tensor_parallel() const { return tensor_parallel_; }
  /// Whether there are times of this degree: that which was measured, and from whole layers any.
  bool is_of(int64_t tensor_parallel) const { return tensor_parallel_ == 1 || tensor_parallel == tensor_parallel_; }

 private:
  const OperatorFit& fit_for(const std::string& key) const;

  std::map<std::string, OperatorFit> fits_;
  MeasuredCollectives collectives_;
  int64_t tensor_parallel_ = 1;
};

}  // namespace cotune
