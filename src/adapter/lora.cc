#include "adapter/lora.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "ops/backend.h"

namespace cotune {
namespace {

class LoraSite : public SiteAdapter {
 public:
  size_t a_index = 0, b_index = 0;  ///< of the parameters
  Adapter* owner = nullptr;
  std::unique_ptr<LowRankFactor> a, b;
  double scale = 1;
  double dropout = 0;
  uint64_t key = 0;  ///< of the module's name, for dropout
  int64_t first_input = 0;  ///< of the module's inputs, where this is a part of them

  const at::Tensor& a_gradient() const { return owner->parameters()[a_index].gradient; }
  const at::Tensor& b_gradient() const { return owner->parameters()[b_index].gradient; }
};

class LoraAdapter : public Adapter {
 public:
  LoraAdapter(const ModelConfig& config, AdapterSetup given) : Adapter(config, std::move(given)) {
    const AdapterSpec& spec = setup().spec;
    const auto options =
        at::TensorOptions().dtype(accumulation_dtype(setup().compute)).device(setup().device);
    for (const AdaptedModule& module : setup().modules) {
      if (!setup().holds(module.layer)) continue;
      const ProjectionSize shape = projection_size_of(module.projection);
      const std::string name = module_name(module.layer, module.projection);
      auto site = std::make_unique<LoraSite>();
      site->owner = this;
      site->key = key_of(name);
      site->dropout = spec.dropout;
      site->scale = module.alpha / (spec.use_rslora ? std::sqrt(static_cast<double>(module.r))
                                                    : static_cast<double>(module.r));
      const FeatureRange inputs = inputs_of(module.projection);
      site->first_input = inputs.begin;
      const int64_t all_inputs = projection_size(model_config(), module.projection).in;
      at::Tensor start = at::empty({module.r, all_inputs}, at::kDouble);
      const double bound = 1.0 / std::sqrt(static_cast<double>(all_inputs));
      double* values = start.mutable_data_ptr<double>();
      const uint64_t key = mix_key(mix64(setup().seed), site->key);
      for (int64_t i = 0; i < start.numel(); ++i) values[i] = (2 * uniform(key, static_cast<uint64_t>(i)) - 1) * bound;
      start = start.narrow(1, inputs.begin, inputs.count).contiguous();
      site->a_index = parameters_.size();
      parameters_.push_back(make_parameter("base_model.model." + name + ".lora_A.weight", module.layer, start.to(options)));
      parameters_.back().place = place_by_inputs(module.projection, 1);
      site->b_index = parameters_.size();
      parameters_.push_back(
          make_parameter("base_model.model." + name + ".lora_B.weight", module.layer, at::zeros({module.r, shape.out}, options)));
      parameters_.back().transposed_in_file = true;
      parameters_.back().learning_rate_ratio = spec.lora_plus_ratio;
      parameters_.back().place = place_by_outputs(module.projection, 1);
      site->a = make_low_rank_factor(parameters_[site->a_index].value, setup().compute, setup().factor_form);
      site->b = make_low_rank_factor(parameters_[site->b_index].value, setup().compute, setup().factor_form);
      place(module.layer, module.projection, site.get());
      sites_.push_back(std::move(site));
    }
  }

  void refresh(LayerRange layers) override {
    std::vector<FactorRefresh> refreshes;
    for (const auto& site : sites_) {
      if (!layers.contains(parameters_[site->a_index].layer)) continue;
      refreshes.push_back({site->a.get(), parameters_[site->a_index].value});
      refreshes.push_back({site->b.get(), parameters_[site->b_index].value});
    }
    refresh_factors(refreshes);
  }

 private:
  std::vector<std::unique_ptr<LoraSite>> sites_;
};

LoraSite& lora_of(const SiteUse& use) { return static_cast<LoraSite&>(*use.adapter); }

bool drops(const SiteUse& use) { return use.job->training && lora_of(use).dropout > 0; }

DropoutKey mask_of(const SiteUse& site) {
  return {mix_key(site.job->dropout_key, lora_of(site).key), lora_of(site).dropout, lora_of(site).first_input};
}

/// The masked inputs of every site that drops, one after another: x of the grouped calls for those sites.
struct MaskedInputs {
  at::Tensor x;
  std::vector<RowRange> rows;  ///< per masked site, in the order of the sites
};

MaskedInputs masked_inputs(const OperatorUse& use, const at::Tensor& x) {
  MaskedInputs masked;
  std::vector<DropoutGroup> groups;
  int64_t count = 0;
  for (const SiteUse& site : use.sites) {
    if (!drops(site)) continue;
    const RowRange rows = site.input_rows().rows;
    masked.rows.push_back({count, count + rows.count()});
    count = masked.rows.back().end;
    if (rows.count() > 0) groups.push_back({mask_of(site), rows});
  }
  if (count > 0) masked.x = apply_dropout(groups, use.rows, x);
  return masked;
}

/// Calls body(first, last) for the sites of each projection: they read the same columns.
template <typename Body>
void for_each_projection(const OperatorUse& use, Body body) {
  for (size_t first = 0, last = 0; first < use.sites.size(); first = last) {
    while (last < use.sites.size() && use.sites[last].projection == use.sites[first].projection) ++last;
    body(first, last);
  }
}

class LoraMethod : public Method {
 public:
  void before_forward(OperatorUse& use, const at::Tensor& x, std::vector<LowRankTerm>& terms) const override {
    const MaskedInputs masked = masked_inputs(use, x);
    std::vector<ShrinkGroup> plain, dropped;
    for (const SiteUse& site : use.sites) {
      const bool drop = drops(site);
      std::vector<ShrinkGroup>& groups = drop ? dropped : plain;
      const RowRange rows = drop ? masked.rows[dropped.size()] : site.job->rows;
      groups.push_back({rows, lora_of(site).a.get(), lora_of(site).scale, {}});
    }
    shrink(x, plain);
    if (!dropped.empty()) shrink(masked.x, dropped);
    size_t next_plain = 0, next_dropped = 0;
    for (SiteUse& site : use.sites) {
      at::Tensor s = drops(site) ? dropped[next_dropped++].s : plain[next_plain++].s;
      if (site.job->training) site.record->kept = {s};
      terms.push_back({site.job->rows, site.column_begin, std::move(s), lora_of(site).b.get()});
    }
  }

  void before_backward(OperatorUse& use, at::Tensor& dy, std::vector<LowRankTerm>& terms) const override {
    for_each_projection(use, [&](size_t first, size_t last) {
      std::vector<ShrinkGroup> groups;
      for (size_t i = first; i < last; ++i) {
        groups.push_back({use.sites[i].job->rows, lora_of(use.sites[i]).b.get(), lora_of(use.sites[i]).scale, {}});
      }
      shrink(dy.narrow(1, use.sites[first].column_begin, use.sites[first].column_count), groups);
      for (size_t i = first; i < last; ++i) {
        SiteUse& site = use.sites[i];
        site.record->kept.push_back(groups[i - first].s);
        if (!drops(site)) terms.push_back({site.job->rows, 0, groups[i - first].s, lora_of(site).a.get()});
      }
    });
  }

  void after_backward(OperatorUse& use, const at::Tensor&, at::Tensor& dx) const override {
    std::vector<ExpandGroup> groups;
    for (const SiteUse& site : use.sites) {
      if (!drops(site)) continue;
      groups.push_back({.rows = site.job->rows, .s = site.record->kept[1], .factor = lora_of(site).a.get(), .dropout = mask_of(site)});
    }
    add_expansions(dx, groups, {.dropout = use.rows});
  }

  LowRankRows summands(SiteUse& use) const override { return {&use.record->kept[1], lora_of(use).b->rank()}; }

  void gradients(OperatorUse& use, const at::Tensor& x, const at::Tensor& dy) const override {
    const MaskedInputs masked = masked_inputs(use, x);
    std::vector<GradientGroup> plain, dropped;
    size_t next_masked = 0;
    for (const SiteUse& site : use.sites) {
      const int64_t begin = site.input_rows().rows.begin;
      const bool drop = drops(site);
      const int64_t shift = drop ? masked.rows[next_masked++].begin - begin : 0;
      for (const RowRange& atom : site.input_rows().atoms) {
        (drop ? dropped : plain)
            .push_back({{atom.begin + shift, atom.end + shift},
                        site.record->kept[1].narrow(0, atom.begin - begin, atom.count()),
                        lora_of(site).a_gradient()});
      }
    }
    accumulate_gradients(x, plain);
    if (!dropped.empty()) accumulate_gradients(masked.x, dropped);
    for_each_projection(use, [&](size_t first, size_t last) {
      std::vector<GradientGroup> groups;
      for (size_t i = first; i < last; ++i) {
        const SiteUse& site = use.sites[i];
        for (const RowRange& atom : site.job->atoms) {
          groups.push_back({atom, site.record->kept[0].narrow(0, atom.begin - site.job->rows.begin, atom.count()),
                            lora_of(site).b_gradient()});
        }
      }
      accumulate_gradients(dy.narrow(1, use.sites[first].column_begin, use.sites[first].column_count), groups);
    });
    for (SiteUse& site : use.sites) site.record->kept.clear();
  }
};

}  // namespace

std::unique_ptr<Adapter> make_lora(const ModelConfig& config, AdapterSetup setup) {
  return std::make_unique<LoraAdapter>(config, std::move(setup));
}

const Method& lora_method() {
  static const LoraMethod method;
  return method;
}

}  // namespace cotune
