#include "engine/plain_model.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "model/config/families.h"
#include "model/config/rope.h"

namespace cotune::testing {
namespace {

/// kernels/dropout.h's formula.
uint32_t round_bits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

at::Tensor dropout_mask(uint64_t site_key, const BatchRow& row, int64_t features, double probability) {
  const auto tokens = static_cast<int64_t>(row.tokens.size());
  at::Tensor mask = at::empty({tokens, features}, at::kDouble);
  const auto threshold = static_cast<uint32_t>(std::floor(static_cast<double>(static_cast<float>(probability)) * 0x1p32));
  double* value = mask.mutable_data_ptr<double>();
  for (int64_t t = 0; t < tokens; ++t) {
    const uint64_t r = mix_key(mix_key(site_key, row.key), static_cast<uint64_t>(t));
    for (int64_t f = 0; f < features; ++f) {
      const uint32_t h = round_bits(round_bits((static_cast<uint32_t>(f) * 0x9E3779B1u) ^ static_cast<uint32_t>(r)) ^
                                    static_cast<uint32_t>(r >> 32));
      *value++ = h >= threshold ? 1 / (1 - probability) : 0;
    }
  }
  return mask;
}

at::Tensor activated(Activation activation, const at::Tensor& z) {
  switch (activation) {
    case Activation::relu: return at::relu(z);
    case Activation::gelu: return at::gelu(z);
    case Activation::silu: return at::silu(z);
    case Activation::tanh: return at::tanh(z);
  }
  COTUNE_CHECK(false, "an activation without a plain form");
}

at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x / (x.square().mean(-1, true) + epsilon).sqrt() * weight;
}

/// x [tokens, heads, head_dim], rotate-half.
at::Tensor rotated(const at::Tensor& x, const std::vector<double>& frequencies) {
  const int64_t tokens = x.size(0), half = x.size(2) / 2;
  const at::Tensor angles = at::arange(tokens, at::kDouble).unsqueeze(1) * at::tensor(frequencies, at::kDouble).unsqueeze(0);
  const at::Tensor cos = angles.cos().unsqueeze(1), sin = angles.sin().unsqueeze(1);
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
}

std::string layer_name(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

}  // namespace

PlainAdapter::PlainAdapter(const Adapter& adapter) : spec_(adapter.setup().spec) {
  for (const Parameter& parameter : adapter.parameters()) {
    leaves_.push_back(parameter.value.to(at::kDouble).clone().requires_grad_(true));
    first_moments_.push_back(at::zeros_like(parameter.value, at::kDouble));
    second_moments_.push_back(at::zeros_like(parameter.value, at::kDouble));
    rate_ratios_.push_back(parameter.name.ends_with("lora_B.weight") ? spec_.lora_plus_ratio : 1);
  }
  const std::vector<Adapter::NamedTensor> structure = adapter.structure();
  const size_t leaves_each = leaves_.size() / adapter.setup().modules.size();
  for (const AdaptedModule& module : adapter.setup().modules) {
    Site site{module, sites_.size() * leaves_each, {}};
    if (spec_.method == AdapterMethod::diff_pruning) {
      const at::Tensor rows = structure[2 * sites_.size()].tensor.to(at::kLong),
                       offsets = structure[2 * sites_.size() + 1].tensor;
      const int64_t out = offsets.numel() - 1;
      at::Tensor columns = at::repeat_interleave(at::arange(out, at::kLong), offsets.narrow(0, 1, out) - offsets.narrow(0, 0, out));
      site.flat_places = rows * out + columns;
    }
    sites_.push_back(std::move(site));
  }
}

at::Tensor PlainAdapter::apply(int64_t layer, Projection projection, const at::Tensor& x, const at::Tensor& y0,
                               const BatchRow& row, uint64_t dropout_key, bool training) const {
  for (const Site& site : sites_) {
    if (site.module.layer != layer || site.module.projection != projection) continue;
    const auto leaf = [&](size_t index) -> const at::Tensor& { return leaves_[site.first_leaf + index]; };
    switch (spec_.method) {
      case AdapterMethod::lora: {
        const auto r = static_cast<double>(site.module.r);
        const double scale = site.module.alpha / (spec_.use_rslora ? std::sqrt(r) : r);
        at::Tensor input = x;
        if (training && spec_.dropout > 0) {
          const uint64_t key = mix_key(dropout_key, key_of(module_name(layer, projection)));
          input = x * dropout_mask(key, row, x.size(1), spec_.dropout);
        }
        return y0 + scale * at::mm(at::mm(input, leaf(0).t()), leaf(1));
      }
      case AdapterMethod::bottleneck: {
        const at::Tensor hidden = activated(spec_.activation, at::mm(y0, leaf(0).t()) + leaf(1));
        return y0 + at::mm(hidden, leaf(2)) + leaf(3);
      }
      case AdapterMethod::diff_pruning: {
        const at::Tensor delta =
            at::zeros({x.size(1) * y0.size(1)}, at::kDouble).scatter(0, site.flat_places, leaf(0)).view({x.size(1), y0.size(1)});
        return y0 + at::mm(x, delta);
      }
    }
  }
  return y0;
}

void PlainAdapter::step(const OptimizerSettings& settings) {
  double squares = 0;
  for (const at::Tensor& leaf : leaves_) squares += leaf.grad().square().sum().item<double>();
  const double clip =
      settings.max_grad_norm > 0 ? std::min(1.0, settings.max_grad_norm / (std::sqrt(squares) + 1e-6)) : 1;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const at::Tensor gradient = leaves_[i].grad() * clip;
    at::Tensor value = leaves_[i].detach();
    const double rate = settings.learning_rate * rate_ratios_[i];
    if (settings.kind == OptimizerKind::sgd) {
      const at::Tensor decayed = gradient + settings.weight_decay * value;
      first_moments_[i] = settings.step == 1 ? decayed : settings.momentum * first_moments_[i] + decayed;
      value.sub_(rate * first_moments_[i]);
    } else {
      value.mul_(1 - rate * settings.weight_decay);
      first_moments_[i] = settings.beta1 * first_moments_[i] + (1 - settings.beta1) * gradient;
      second_moments_[i] = settings.beta2 * second_moments_[i] + (1 - settings.beta2) * gradient.square();
      const auto t = static_cast<double>(settings.step);
      const at::Tensor mean = first_moments_[i] / (1 - std::pow(settings.beta1, t));
      const at::Tensor square = second_moments_[i] / (1 - std::pow(settings.beta2, t));
      value.sub_(rate * mean / (square.sqrt() + settings.epsilon));
    }
    leaves_[i].mutable_grad().zero_();
  }
}

PlainModel::PlainModel(const ModelFiles& files) : config_(files.config), frequencies_(rope_inverse_frequencies(files.config)) {
  for (const ModelTensor& tensor : model_tensors(files.config)) {
    weights_[tensor.name] = files.load(tensor.name, at::kDouble).clone();
  }
}

at::Tensor PlainModel::logits(const BatchRow& row, const PlainAdapter* adapter, uint64_t dropout_key, bool training) const {
  const auto tokens = static_cast<int64_t>(row.tokens.size());
  const int64_t heads = config_.head_count, kv_heads = config_.kv_head_count, head_dim = config_.head_dim;
  const auto project = [&](int64_t layer, Projection projection, const at::Tensor& x) {
    const std::string name = module_name(layer, projection);
    at::Tensor y = at::mm(x, weight(name + ".weight").t());
    if (weights_.contains(name + ".bias")) y = y + weight(name + ".bias");
    return adapter ? adapter->apply(layer, projection, x, y, row, dropout_key, training) : y;
  };
  at::Tensor hidden = weight("model.embed_tokens.weight").index_select(0, at::tensor(row.tokens, at::kInt));
  const at::Tensor later = at::ones({tokens, tokens}, at::kBool).triu(1);
  for (int64_t layer = 0; layer < config_.layer_count; ++layer) {
    const at::Tensor x = normed(hidden, weight(layer_name(layer) + "input_layernorm.weight"), config_.rms_norm_epsilon);
    const at::Tensor q = rotated(project(layer, Projection::q, x).view({tokens, heads, head_dim}), frequencies_);
    const at::Tensor k = rotated(project(layer, Projection::k, x).view({tokens, kv_heads, head_dim}), frequencies_);
    const at::Tensor v = project(layer, Projection::v, x).view({tokens, kv_heads, head_dim});
    std::vector<at::Tensor> outputs;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t kv = head / (heads / kv_heads);
      const at::Tensor scores = at::mm(q.select(1, head), k.select(1, kv).t()) / std::sqrt(static_cast<double>(head_dim));
      outputs.push_back(at::mm(at::softmax(scores.masked_fill(later, -INFINITY), -1), v.select(1, kv)));
    }
    hidden = hidden + project(layer, Projection::o, at::cat(outputs, 1));
    const at::Tensor y =
        normed(hidden, weight(layer_name(layer) + "post_attention_layernorm.weight"), config_.rms_norm_epsilon);
    const at::Tensor gate = project(layer, Projection::gate, y), up = project(layer, Projection::up, y);
    hidden = hidden + project(layer, Projection::down, gate * at::sigmoid(gate) * up);
  }
  const at::Tensor last = normed(hidden, weight("model.norm.weight"), config_.rms_norm_epsilon);
  return at::mm(last, weight(config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight").t());
}

at::Tensor PlainModel::loss(const Batch& batch, const PlainAdapter* adapter, uint64_t dropout_key, bool training) const {
  at::Tensor sum = at::zeros({}, at::kDouble);
  int64_t count = 0;
  for (const BatchRow& row : batch.rows) {
    const at::Tensor log_p = at::log_softmax(logits(row, adapter, dropout_key, training), -1);
    for (size_t i = 1; i < row.tokens.size(); ++i) {
      if (row.learned[i] == 0) continue;
      sum = sum - log_p[static_cast<int64_t>(i) - 1][row.tokens[i]];
      ++count;
    }
  }
  return count > 0 ? sum / static_cast<double>(count) : sum;
}

double PlainModel::backward(const Batch& batch, PlainAdapter& adapter, uint64_t dropout_key) const {
  for (at::Tensor& leaf : adapter.leaves()) leaf.mutable_grad() = at::zeros_like(leaf);
  const at::Tensor value = loss(batch, &adapter, dropout_key);
  if (value.requires_grad()) value.backward();
  return value.item<double>();
}

}  // namespace cotune::testing
