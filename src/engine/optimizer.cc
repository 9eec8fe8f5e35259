#include "engine/optimizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "kernels/adamw.h"

namespace cotune {
namespace {

bool plain_f32(const Parameter& parameter) {
  return parameter.value.device().is_cpu() && parameter.value.scalar_type() == at::kFloat;
}

double sum_of_squares(const Parameter& parameter) {
  if (plain_f32(parameter)) {
    return kernels::sum_of_squares(parameter.gradient.const_data_ptr<float>(), parameter.gradient.numel());
  }
  return parameter.gradient.to(at::kDouble).square().sum().item<double>();
}

/// Returns whether everything written is finite.
bool adamw(Parameter& p, const OptimizerSettings& settings, double multiplier) {
  const double rate = settings.learning_rate * p.learning_rate_ratio;
  const double decay = p.decays ? settings.weight_decay : 0;
  if (plain_f32(p)) {
    return kernels::adamw_step({rate, settings.beta1, settings.beta2, settings.epsilon, decay}, settings.step,
                               static_cast<float>(multiplier), p.value.numel(), p.gradient.const_data_ptr<float>(),
                               p.value.mutable_data_ptr<float>(), p.first_moment.mutable_data_ptr<float>(),
                               p.second_moment.mutable_data_ptr<float>());
  }
  const at::Tensor gradient = p.gradient * multiplier;
  p.value.mul_(1 - rate * decay);
  p.first_moment.lerp_(gradient, 1 - settings.beta1);
  p.second_moment.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
  const auto step = static_cast<double>(settings.step);
  const double correction1 = 1 - std::pow(settings.beta1, step), correction2 = 1 - std::pow(settings.beta2, step);
  const at::Tensor denominator = (p.second_moment.sqrt() / std::sqrt(correction2)).add_(settings.epsilon);
  p.value.addcdiv_(p.first_moment, denominator, -rate / correction1);
  return at::isfinite(p.value).all().item<bool>();
}

bool sgd(Parameter& p, const OptimizerSettings& settings, double multiplier) {
  const double rate = settings.learning_rate * p.learning_rate_ratio;
  const double decay = p.decays ? settings.weight_decay : 0;
  if (plain_f32(p)) {
    kernels::SgdSettings sgd_settings{.lr = rate, .momentum = settings.momentum, .weight_decay = decay};
    return kernels::sgd_step(sgd_settings, settings.step, static_cast<float>(multiplier), p.value.numel(),
                             p.gradient.const_data_ptr<float>(), p.value.mutable_data_ptr<float>(),
                             p.first_moment.defined() ? p.first_moment.mutable_data_ptr<float>() : nullptr);
  }
  at::Tensor gradient = p.gradient * multiplier + p.value * decay;
  if (p.first_moment.defined()) {
    if (settings.step == 1) {
      p.first_moment.copy_(gradient);
    } else {
      p.first_moment.mul_(settings.momentum).add_(gradient);
    }
    gradient = p.first_moment;
  }
  p.value.add_(gradient, -rate);
  return at::isfinite(p.value).all().item<bool>();
}

}  // namespace

void optimizer_step(JobRound& round) {
  std::vector<Parameter>& parameters = round.adapter->parameters();
  const OptimizerSettings& settings = round.optimizer;
  double squares = 0;
  for (const Parameter& parameter : parameters) squares += sum_of_squares(parameter);
  round.gradient_norm = std::sqrt(squares);
  const auto zero_gradients = [&parameters] {
    for (Parameter& parameter : parameters) parameter.gradient.zero_();
  };
  if (!std::isfinite(round.loss_sum)) {
    round.failure = fmt::format("the loss of step {} is not finite ({})", settings.step, round.loss());
  } else if (!std::isfinite(round.gradient_norm)) {
    round.failure = fmt::format("the gradient of step {} is not finite (loss {:.4g})", settings.step, round.loss());
  }
  if (!round.failure.empty()) {
    zero_gradients();
    return;
  }
  // torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
  const double multiplier =
      settings.max_grad_norm > 0 ? std::min(1.0, settings.max_grad_norm / (round.gradient_norm + 1e-6)) : 1.0;
  bool finite = true;
  for (Parameter& parameter : parameters) {
    finite = (settings.kind == OptimizerKind::adamw ? adamw(parameter, settings, multiplier)
                                                    : sgd(parameter, settings, multiplier)) &&
             finite;
  }
  zero_gradients();
  if (!finite) {
    round.failure = fmt::format("the parameters are not finite after step {} (learning rate {:g})", settings.step,
                                settings.learning_rate);
    return;
  }
  round.adapter->refresh();
  round.stepped = true;
}

}  // namespace cotune
