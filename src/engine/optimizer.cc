#include "engine/optimizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/adamw.h"
#include "ops/memory.h"

namespace cotune {
namespace {

/// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
constexpr double clipping_epsilon = 1e-6;

/// Returns whether everything written is finite.
bool adamw_on_host(Parameter& p, const OptimizerSettings& settings, double multiplier) {
  const double rate = settings.learning_rate * p.learning_rate_ratio;
  const double decay = p.decays ? settings.weight_decay : 0;
  return kernels::adamw_step({rate, settings.beta1, settings.beta2, settings.epsilon, decay}, settings.step,
                             static_cast<float>(multiplier), p.value.numel(), p.gradient.const_data_ptr<float>(),
                             p.value.mutable_data_ptr<float>(), p.first_moment.mutable_data_ptr<float>(),
                             p.second_moment.mutable_data_ptr<float>());
}

bool sgd_on_host(Parameter& p, const OptimizerSettings& settings, double multiplier) {
  const double rate = settings.learning_rate * p.learning_rate_ratio;
  const double decay = p.decays ? settings.weight_decay : 0;
  kernels::SgdSettings sgd_settings{.lr = rate, .momentum = settings.momentum, .weight_decay = decay};
  return kernels::sgd_step(sgd_settings, settings.step, static_cast<float>(multiplier), p.value.numel(),
                           p.gradient.const_data_ptr<float>(), p.value.mutable_data_ptr<float>(),
                           p.first_moment.defined() ? p.first_moment.mutable_data_ptr<float>() : nullptr);
}

void step_on_host(JobRound& round) {
  std::vector<Parameter>& parameters = round.adapter->parameters();
  const OptimizerSettings& settings = round.optimizer;
  double squares = 0;
  for (const Parameter& p : parameters) {
    squares += kernels::sum_of_squares(p.gradient.const_data_ptr<float>(), p.gradient.numel());
  }
  const double norm = std::sqrt(squares);
  bool finite = true;
  if (std::isfinite(round.loss_sum) && std::isfinite(norm)) {
    const double multiplier =
        settings.max_grad_norm > 0 ? std::min(1.0, settings.max_grad_norm / (norm + clipping_epsilon)) : 1.0;
    for (Parameter& p : parameters) {
      finite = (settings.kind == OptimizerKind::adamw ? adamw_on_host(p, settings, multiplier)
                                                      : sgd_on_host(p, settings, multiplier)) &&
               finite;
    }
  }
  for (Parameter& p : parameters) p.gradient.zero_();
  conclude_step(round, norm, finite);
  if (round.stepped) round.adapter->refresh();
}

/// The parameters that share a learning rate and a weight decay, as lists: one call serves all tensors of a list.
struct ParameterGroup {
  double learning_rate = 0, weight_decay = 0;
  std::vector<at::Tensor> values, gradients, first_moments, second_moments;
};

std::vector<ParameterGroup> groups_of(const std::vector<Parameter>& parameters, const OptimizerSettings& settings) {
  std::vector<ParameterGroup> groups;
  for (const Parameter& p : parameters) {
    const double rate = settings.learning_rate * p.learning_rate_ratio, decay = p.decays ? settings.weight_decay : 0;
    auto group = std::ranges::find_if(groups, [&](const ParameterGroup& other) {
      return other.learning_rate == rate && other.weight_decay == decay;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), ParameterGroup{rate, decay, {}, {}, {}, {}});
    group->values.push_back(p.value);
    group->gradients.push_back(p.gradient);
    if (p.first_moment.defined()) group->first_moments.push_back(p.first_moment);
    if (p.second_moment.defined()) group->second_moments.push_back(p.second_moment);
  }
  return groups;
}

/// A step that a flag on the device calls off: every factor is what changes nothing where the flag is false.
class GuardedStep {
 public:
  GuardedStep(const OptimizerSettings& settings, at::Tensor sound, at::Tensor multiplier, at::ScalarType dtype)
      : settings_(settings), sound_(std::move(sound)), multiplier_(std::move(multiplier)), dtype_(dtype) {}

  void run(ParameterGroup& group) const {
    // Everything is allocated before anything changes: where memory runs out the parameters are those before the step.
    std::vector<at::Tensor> work = clipped_gradients(group);
    settings_.kind == OptimizerKind::adamw ? adamw(group, work) : sgd(group, work);
  }

 private:
  /// `value` where the step is made, `otherwise` where it is not.
  at::Tensor factor(double value, double otherwise) const {
    return at::full({}, otherwise, sound_.options().dtype(dtype_)).masked_fill_(sound_, value);
  }

  /// Zero where the step is not made: what is not finite goes no further.
  std::vector<at::Tensor> clipped_gradients(const ParameterGroup& group) const {
    std::vector<at::Tensor> clipped;
    for (const at::Tensor& gradient : group.gradients) {
      clipped.push_back((gradient * multiplier_).masked_fill_(sound_.eq(false), 0));
    }
    return clipped;
  }

  void adamw(ParameterGroup& group, std::vector<at::Tensor>& work) const {
    const auto step = static_cast<double>(settings_.step);
    const double correction1 = 1 - std::pow(settings_.beta1, step), correction2 = 1 - std::pow(settings_.beta2, step);
    const at::Tensor keep1 = factor(settings_.beta1, 1), keep2 = factor(settings_.beta2, 1),
                     decay = factor(1 - group.learning_rate * group.weight_decay, 1),
                     rate = factor(-group.learning_rate / correction1, 0);
    std::vector<at::Tensor> denominators;
    for (const at::Tensor& moment : group.second_moments) denominators.push_back(at::empty_like(moment));
    at::_foreach_mul_(group.first_moments, keep1);
    at::_foreach_add_(group.first_moments, work, 1 - settings_.beta1);
    at::_foreach_mul_(group.second_moments, keep2);
    at::_foreach_addcmul_(group.second_moments, work, work, 1 - settings_.beta2);
    at::_foreach_copy_(denominators, group.second_moments);
    at::_foreach_sqrt_(denominators);
    at::_foreach_div_(denominators, std::sqrt(correction2));
    at::_foreach_add_(denominators, settings_.epsilon);
    at::_foreach_copy_(work, group.first_moments);
    at::_foreach_div_(work, denominators);
    at::_foreach_mul_(work, rate);
    at::_foreach_mul_(group.values, decay);
    at::_foreach_add_(group.values, work);
  }

  /// torch.optim.SGD: its first step takes the gradient as the momentum, which is what a buffer of zeros gives.
  void sgd(ParameterGroup& group, std::vector<at::Tensor>& work) const {
    const at::Tensor keep = factor(settings_.momentum, 1), decay = factor(group.weight_decay, 0),
                     rate = factor(-group.learning_rate, 0);
    std::vector<at::Tensor> decayed;
    for (const at::Tensor& value : group.values) decayed.push_back(value * decay);
    at::_foreach_add_(work, decayed);
    if (!group.first_moments.empty()) {
      at::_foreach_mul_(group.first_moments, keep);
      at::_foreach_add_(group.first_moments, work);
      at::_foreach_copy_(work, group.first_moments);
    }
    at::_foreach_mul_(work, rate);
    at::_foreach_add_(group.values, work);
  }

  const OptimizerSettings& settings_;
  at::Tensor sound_;       ///< bool scalar: loss and gradient are finite
  at::Tensor multiplier_;  ///< scalar of the gradient: clipping
  at::ScalarType dtype_;
};

void step_on_device(JobRound& round, UnreadResults& unread) {
  const MemoryScope scope(MemoryKind::workspace);
  std::vector<Parameter>& parameters = round.adapter->parameters();
  const OptimizerSettings& settings = round.optimizer;
  std::vector<at::Tensor> gradients, values;
  for (const Parameter& p : parameters) {
    gradients.push_back(p.gradient);
    values.push_back(p.value);
  }
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2, at::kDouble)), 2);
  const at::Tensor sound = at::isfinite(unread.loss_sum(round)) * at::isfinite(norm);
  at::Tensor multiplier = at::ones_like(norm);
  if (settings.max_grad_norm > 0) {
    multiplier = (settings.max_grad_norm / (norm + clipping_epsilon)).clamp_max_(1.0);
  }
  const GuardedStep step(settings, sound, multiplier, values.front().scalar_type());
  for (ParameterGroup& group : groups_of(parameters, settings)) step.run(group);
  at::_foreach_zero_(gradients);
  round.adapter->refresh();
  const at::Tensor largest = at::stack(at::_foreach_norm(values, std::numeric_limits<double>::infinity()));
  unread.add_step(round, norm, at::isfinite(largest).all());
}

}  // namespace

bool steps_on_host(const Adapter& adapter) {
  return adapter.setup().device.is_cpu() && adapter.setup().compute != at::kDouble;
}

void optimizer_step(JobRound& round, UnreadResults& unread) {
  if (steps_on_host(*round.adapter)) {
    step_on_host(round);
  } else {
    step_on_device(round, unread);
  }
}

void conclude_step(JobRound& round, double gradient_norm, bool finite_parameters) {
  const OptimizerSettings& settings = round.optimizer;
  round.gradient_norm = gradient_norm;
  if (!std::isfinite(round.loss_sum)) {
    round.failure = fmt::format("the loss of step {} is not finite ({})", settings.step, round.loss());
  } else if (!std::isfinite(gradient_norm)) {
    round.failure = fmt::format("the gradient of step {} is not finite (loss {:.4g})", settings.step, round.loss());
  } else if (!finite_parameters) {
    round.failure = fmt::format("the parameters are not finite after step {} (learning rate {:g})", settings.step,
                                settings.learning_rate);
  }
  round.stepped = round.failure.empty();
}

}  // namespace cotune
