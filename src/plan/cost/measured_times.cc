#include "plan/cost/measured_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/nonnegative_least_squares.h"
#include "plan/cost/operator_terms.h"

namespace cotune {
namespace {

double dot(const std::vector<double>& coefficients, const std::vector<double>& terms) {
  return std::inner_product(coefficients.begin(), coefficients.end(), terms.begin(), 0.0);
}

/// The terms of every shape for a model with the layers that were measured.
std::vector<std::map<std::string, StepTerms>> terms_of_shapes(const Profile& profile, const ModelConfig& config) {
  ModelConfig measured = config;
  measured.layer_count = profile.layer_count;
  std::vector<std::map<std::string, StepTerms>> terms;
  for (const ProfiledShape& shape : profile.shapes) terms.push_back(step_terms(measured, planned_step(measured, shape)));
  return terms;
}

OperatorFit fit(const std::vector<ProfiledTime>& times, const std::string& key,
                const std::vector<std::map<std::string, StepTerms>>& shapes) {
  std::vector<std::vector<double>> rows;
  for (const ProfiledTime& time : times) {
    if (time.median <= 0) continue;
    const auto found = shapes[static_cast<size_t>(time.shape)].find(key);
    if (found == shapes[static_cast<size_t>(time.shape)].end()) continue;
    std::vector<double> row = found->second.sums;
    for (double& value : row) value /= static_cast<double>(found->second.calls) * time.median;
    rows.push_back(std::move(row));
  }
  OperatorFit result;
  result.coefficients = nonnegative_least_squares(rows, std::vector<double>(rows.size(), 1.0));
  for (const std::vector<double>& row : rows) {
    const double error = std::abs(dot(result.coefficients, row) - 1);
    result.mean_error += error / static_cast<double>(rows.size());
    result.worst_error = std::max(result.worst_error, error);
  }
  return result;
}

}  // namespace

MeasuredTimes::MeasuredTimes(const Profile& profile, const ModelConfig& config, const std::string& file_name)
    : collectives_(profile.collectives), tensor_parallel_(profile.fingerprint.tensor_parallel) {
  const std::string shape = model_shape_text(config);
  if (profile.fingerprint.model != shape) {
    throw_user_error("{}: was measured for another model: {}; this one has {}", file_name, profile.fingerprint.model, shape);
  }
  const std::vector<std::map<std::string, StepTerms>> shapes = terms_of_shapes(profile, config);
  for (const auto& [key, times] : profile.operators) {
    if (operator_term_names(key).empty()) throw_user_error("{}: operators.{}: there is no such operator", file_name, key);
    fits_[key] = fit(times, key, shapes);
  }
  for (const auto& shape_terms : shapes) {
    for (const auto& [key, unused] : shape_terms) {
      const auto found = fits_.find(key);
      if (found == fits_.end() || found->second.coefficients.empty()) {
        throw_user_error("{}: operators.{}: has no times", file_name, key);
      }
    }
  }
}

const OperatorFit& MeasuredTimes::fit_for(const std::string& key) const {
  const auto found = fits_.find(key);
  if (found != fits_.end()) return found->second;
  const size_t suffix = key.rfind(alone_suffix);
  if (suffix != std::string::npos) return fit_for(key.substr(0, suffix));
  throw_user_error("the profile has no times of {}", key);
}

double MeasuredTimes::operator_seconds(const ModelConfig& config, const StageShape& stage, const Operator& op,
                                       const MicrobatchCounts& counts) const {
  if (!is_of(stage.tensor_parallel)) {
    throw_user_error("the profile was measured with tensor_parallel {}, and says nothing of {}", tensor_parallel_,
                     stage.tensor_parallel);
  }
  if (operator_term_names(profile_key(op)).empty()) return 0;
  const bool is_measured = stage.tensor_parallel == tensor_parallel_;
  return dot(fit_for(profile_key(op)).coefficients,
             is_measured ? operator_terms(config, stage, op, counts) : divided_operator_terms(config, stage, op, counts));
}

double MeasuredTimes::round_seconds(const std::vector<double>& terms) const { return dot(fit_for(round_key).coefficients, terms); }

MeasuredTimes MeasuredTimes::scaled(double factor) const {
  MeasuredTimes result = *this;
  for (auto& [key, fit] : result.fits_) {
    for (double& coefficient : fit.coefficients) coefficient *= factor;
  }
  return result;
}

StepSeconds MeasuredTimes::step_seconds(const ModelConfig& config, const PlannedStep& step) const {
  StepSeconds seconds;
  for (const auto& [key, terms] : step_terms(config, step)) {
    const double value = dot(fit_for(key).coefficients, terms.sums);
    seconds.by_operator[key] = value;
    seconds.total += value;
  }
  return seconds;
}

}  // namespace cotune
