#include "engine/optimizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/optimizer_steps.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "ops/square_sums.h"

namespace cotune {
namespace {

/// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
constexpr double clipping_epsilon = 1e-6;

std::vector<Parameter*> parameters_of(const JobRound& round, LayerRange layers) {
  std::vector<Parameter*> parameters;
  for (Parameter& p : round.adapter->parameters()) {
    if (layers.contains(p.layer)) parameters.push_back(&p);
  }
  return parameters;
}

/// Of the ranks of a tensor-parallel group that have the same part, one counts its gradient.
bool counts(const JobRound& round, const Parameter& parameter) {
  return round.adapter->setup().shard.index % parameter.place.holders == 0;
}

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

void step_on_host(JobRound& round, LayerRange layers, const at::Tensor& record) {
  const std::vector<Parameter*> parameters = parameters_of(round, layers);
  const OptimizerSettings& settings = round.optimizer;
  const double norm = std::sqrt(record.const_data_ptr<double>()[0]);
  round.loss_sum = record.const_data_ptr<double>()[1];
  bool finite = true;
  if (std::isfinite(round.loss_sum) && std::isfinite(norm)) {
    const double multiplier =
        settings.max_grad_norm > 0 ? std::min(1.0, settings.max_grad_norm / (norm + clipping_epsilon)) : 1.0;
    for (Parameter* p : parameters) {
      finite = (settings.kind == OptimizerKind::adamw ? adamw_on_host(*p, settings, multiplier)
                                                      : sgd_on_host(*p, settings, multiplier)) &&
               finite;
    }
  }
  for (Parameter* p : parameters) p->gradient.zero_();
  conclude_step(round, norm, finite);
  if (round.stepped) round.adapter->refresh(layers);
}

/// The parameters that share a learning rate and a weight decay, as lists: one call serves all tensors of a list.
struct ParameterGroup {
  double learning_rate = 0, weight_decay = 0;
  std::vector<at::Tensor> values, gradients, first_moments, second_moments;
};

std::vector<ParameterGroup> groups_of(const std::vector<Parameter*>& parameters, const OptimizerSettings& settings) {
  std::vector<ParameterGroup> groups;
  for (const Parameter* parameter : parameters) {
    const Parameter& p = *parameter;
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

/// The step of one group, called off by a flag on the device: every factor is what changes nothing where the flag is
/// false. All memory is taken when it is made, so that nothing has changed where memory runs out.
class GuardedStep {
 public:
  /// sound: bool scalar, loss and gradient are finite. multiplier: scalar of the gradient, for clipping.
  GuardedStep(const OptimizerSettings& settings, ParameterGroup group, at::Tensor sound, const at::Tensor& multiplier)
      : settings_(settings), group_(std::move(group)), sound_(std::move(sound)) {
    // What is not finite goes no further than here.
    for (const at::Tensor& gradient : group_.gradients) {
      work_.push_back((gradient * multiplier).masked_fill_(sound_.eq(false), 0));
      more_work_.push_back(at::empty_like(gradient));
    }
    const double rate = group_.learning_rate, decay = group_.weight_decay;
    if (settings_.kind == OptimizerKind::adamw) {
      keep_first_ = factor(settings_.beta1, 1);
      keep_second_ = factor(settings_.beta2, 1);
      decay_ = factor(1 - rate * decay, 1);
      rate_ = factor(-rate / correction(settings_.beta1), 0);
    } else {
      keep_first_ = factor(settings_.momentum, 1);
      decay_ = factor(decay, 0);
      rate_ = factor(-rate, 0);
    }
  }

  /// Changes moments and values; takes no memory.
  void apply() {
    if (settings_.kind == OptimizerKind::adamw) {
      adamw();
    } else {
      sgd();
    }
    at::_foreach_zero_(group_.gradients);
  }

 private:
  /// `value` where the step is made, `otherwise` where it is not.
  at::Tensor factor(double value, double otherwise) const {
    const auto options = sound_.options().dtype(group_.values.front().scalar_type());
    return at::full({}, otherwise, options).masked_fill_(sound_, value);
  }

  double correction(double beta) const { return 1 - std::pow(beta, static_cast<double>(settings_.step)); }

  void adamw() {
    std::vector<at::Tensor>& denominators = more_work_;
    at::_foreach_mul_(group_.first_moments, keep_first_);
    at::_foreach_add_(group_.first_moments, work_, 1 - settings_.beta1);
    at::_foreach_mul_(group_.second_moments, keep_second_);
    at::_foreach_addcmul_(group_.second_moments, work_, work_, 1 - settings_.beta2);
    at::_foreach_copy_(denominators, group_.second_moments);
    at::_foreach_sqrt_(denominators);
    at::_foreach_div_(denominators, std::sqrt(correction(settings_.beta2)));
    at::_foreach_add_(denominators, settings_.epsilon);
    at::_foreach_copy_(work_, group_.first_moments);
    at::_foreach_div_(work_, denominators);
    at::_foreach_mul_(work_, rate_);
    at::_foreach_mul_(group_.values, decay_);
    at::_foreach_add_(group_.values, work_);
  }

  /// torch.optim.SGD: its first step takes the gradient as the momentum, which is what a buffer of zeros gives.
  void sgd() {
    at::_foreach_copy_(more_work_, group_.values);
    at::_foreach_mul_(more_work_, decay_);
    at::_foreach_add_(work_, more_work_);
    if (!group_.first_moments.empty()) {
      at::_foreach_mul_(group_.first_moments, keep_first_);
      at::_foreach_add_(group_.first_moments, work_);
      at::_foreach_copy_(work_, group_.first_moments);
    }
    at::_foreach_mul_(work_, rate_);
    at::_foreach_add_(group_.values, work_);
  }

  const OptimizerSettings& settings_;
  ParameterGroup group_;
  at::Tensor sound_;
  std::vector<at::Tensor> work_, more_work_;  ///< like the gradients; work_: the clipped ones at first
  at::Tensor keep_first_, keep_second_, decay_, rate_;
};

/// What the GPU's AdamW takes of a group.
std::vector<GpuParameter> gpu_parameters(const ParameterGroup& group) {
  std::vector<GpuParameter> parameters;
  for (size_t i = 0; i < group.values.size(); ++i) {
    parameters.push_back({group.values[i].mutable_data_ptr<float>(), group.gradients[i].mutable_data_ptr<float>(),
                          group.first_moments[i].mutable_data_ptr<float>(),
                          group.second_moments[i].mutable_data_ptr<float>(), group.values[i].numel()});
  }
  return parameters;
}

void step_on_device(JobRound& round, LayerRange layers, const at::Tensor& record, UnreadResults& unread) {
  const MemoryScope scope(MemoryKind::workspace);
  const OptimizerSettings& settings = round.optimizer;
  const at::Tensor norm = record[0].sqrt();
  const at::Tensor sound = at::isfinite(record).all();
  at::Tensor multiplier = at::ones_like(norm);
  if (settings.max_grad_norm > 0) {
    multiplier = (settings.max_grad_norm / (norm + clipping_epsilon)).clamp_max_(1.0);
  }
  std::vector<ParameterGroup> groups = groups_of(parameters_of(round, layers), settings);
  const bool has_kernel = settings.kind == OptimizerKind::adamw && !groups.empty();
  if (GpuKernels* kernels = has_kernel ? gpu_kernels_for(groups.front().values.front()) : nullptr) {
    std::vector<std::vector<GpuParameter>> parameters;  // before anything changes
    for (const ParameterGroup& group : groups) parameters.push_back(gpu_parameters(group));
    unread.add_step(round, layers, record);
    for (size_t i = 0; i < groups.size(); ++i) {
      kernels->adamw(parameters[i],
                     {groups[i].learning_rate, groups[i].weight_decay, settings.beta1, settings.beta2, settings.epsilon, settings.step},
                     sound.const_data_ptr<bool>(), multiplier.const_data_ptr<double>());
    }
    round.adapter->refresh(layers);
    return;
  }
  std::vector<GuardedStep> steps;
  for (ParameterGroup& group : groups) steps.emplace_back(settings, std::move(group), sound, multiplier);
  unread.add_step(round, layers, record);
  for (GuardedStep& step : steps) step.apply();
  round.adapter->refresh(layers);
}

}  // namespace

bool steps_on_host(const Adapter& adapter) {
  return adapter.setup().device.is_cpu() && adapter.setup().compute != at::kDouble;
}

at::Tensor step_record(const JobRound& round, LayerRange layers, bool has_head, const UnreadResults& unread) {
  const MemoryScope scope(MemoryKind::workspace);
  const std::vector<Parameter*> parameters = parameters_of(round, layers);
  if (steps_on_host(*round.adapter)) {
    const at::Tensor record = at::zeros({2}, at::kDouble);
    double* value = record.mutable_data_ptr<double>();
    for (const Parameter* p : parameters) {
      if (!counts(round, *p)) continue;
      value[0] += kernels::sum_of_squares(p->gradient.const_data_ptr<float>(), p->gradient.numel());
    }
    if (has_head) value[1] = round.loss_sum;
    return record;
  }
  const at::Tensor record = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(round.adapter->setup().device));
  if (!parameters.empty()) {
    std::vector<at::Tensor> gradients;
    for (const Parameter* p : parameters) {
      if (counts(round, *p)) gradients.push_back(p->gradient);
    }
    if (!gradients.empty()) record[0].copy_(sum_of_squares(gradients));
  }
  if (has_head) record[1].copy_(unread.loss_sum(round));
  return record;
}

void optimizer_step(JobRound& round, LayerRange layers, const at::Tensor& record, UnreadResults& unread) {
  if (steps_on_host(*round.adapter)) {
    step_on_host(round, layers, record);
  } else {
    step_on_device(round, layers, record, unread);
  }
}

void conclude_step(JobRound& round, double gradient_norm, bool finite_parameters) {
  const OptimizerSettings& settings = round.optimizer;
  round.gradient_norm = gradient_norm;
  if (!std::isfinite(round.loss_sum)) {
    const double loss = std::abs(round.loss());  // losses are not negative, but a NaN has a sign that would be printed
    round.failure = fmt::format("the loss of step {} is not finite ({})", settings.step, loss);
  } else if (!std::isfinite(gradient_norm)) {
    round.failure = fmt::format("the gradient of step {} is not finite (loss {:.4g})", settings.step, round.loss());
  } else if (!finite_parameters) {
    round.failure = fmt::format("the parameters are not finite after step {} (learning rate {:g})", settings.step,
                                settings.learning_rate);
  }
  round.stepped = round.failure.empty();
}

}  // namespace cotune
