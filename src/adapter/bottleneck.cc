#include "adapter/bottleneck.h"

#include <ATen/ATen.h>

#include <cmath>

#include "adapter/activation.h"
#include "base/random.h"
#include "ops/backend.h"

namespace cotune {
namespace {

class BottleneckSite : public SiteAdapter {
 public:
  Adapter* owner = nullptr;
  size_t first_parameter = 0;  ///< D, b_down, U, b_up follow one another
  std::unique_ptr<LowRankFactor> down, up;
  Activation activation = Activation::relu;

  Parameter& down_weight() const { return owner->parameters()[first_parameter]; }
  Parameter& down_bias() const { return owner->parameters()[first_parameter + 1]; }
  Parameter& up_weight() const { return owner->parameters()[first_parameter + 2]; }
  Parameter& up_bias() const { return owner->parameters()[first_parameter + 3]; }
};

class BottleneckAdapter : public Adapter {
 public:
  BottleneckAdapter(const ModelConfig& config, AdapterSetup given) : Adapter(config, std::move(given)) {
    const auto options = at::TensorOptions().dtype(accumulation_dtype(setup().compute)).device(setup().device);
    for (const AdaptedModule& module : setup().modules) {
      const int64_t width = projection_shape(config, module.projection).out, size = module.r;
      const std::string name = module_name(module.layer, module.projection);
      const std::string prefix = "base_model.model." + name;
      auto site = std::make_unique<BottleneckSite>();
      site->owner = this;
      site->activation = setup().spec.activation;
      site->first_parameter = parameters_.size();
      at::Tensor start = at::empty({size, width}, at::kDouble);
      double* values = start.mutable_data_ptr<double>();
      const double bound = 1.0 / std::sqrt(static_cast<double>(width));
      const uint64_t key = mix_key(mix64(setup().seed), key_of(name));
      for (int64_t i = 0; i < start.numel(); ++i) values[i] = (2 * uniform(key, static_cast<uint64_t>(i)) - 1) * bound;
      parameters_.push_back(make_parameter(prefix + ".adapter_down.weight", start.to(options)));
      parameters_.push_back(make_parameter(prefix + ".adapter_down.bias", at::zeros({size}, options)));
      parameters_.push_back(make_parameter(prefix + ".adapter_up.weight", at::zeros({size, width}, options)));
      parameters_.back().transposed_in_file = true;
      parameters_.push_back(make_parameter(prefix + ".adapter_up.bias", at::zeros({width}, options)));
      site->down = make_low_rank_factor(site->down_weight().value, setup().compute, setup().factor_form);
      site->up = make_low_rank_factor(site->up_weight().value, setup().compute, setup().factor_form);
      place(module.layer, module.projection, site.get());
      sites_.push_back(std::move(site));
    }
  }

  void refresh() override {
    for (const auto& site : sites_) {
      site->down->refresh(site->down_weight().value);
      site->up->refresh(site->up_weight().value);
    }
  }

 private:
  std::vector<std::unique_ptr<BottleneckSite>> sites_;
};

BottleneckSite& site_of(const SiteUse& use) { return static_cast<BottleneckSite&>(*use.adapter); }

/// The jobs' rows of a tensor one after another, with each job's place among them: the operand of grouped calls.
struct Gathered {
  at::Tensor rows;
  std::vector<RowRange> places;  ///< per site
};

Gathered gather(const OperatorUse& use, const at::Tensor& tensor) {
  Gathered gathered;
  std::vector<at::Tensor> parts;
  int64_t count = 0;
  for (const SiteUse& site : use.sites) {
    parts.push_back(tensor.narrow(0, site.job->rows.begin, site.job->rows.count()));
    gathered.places.push_back({count, count + site.job->rows.count()});
    count = gathered.places.back().end;
  }
  gathered.rows = at::cat(parts);
  return gathered;
}

/// kept: y (of all jobs together, with the first site), z, f(z) and its gradient's place once backward has run.
enum Kept : size_t { kept_y = 0, kept_z = 1, kept_dz = 2 };

class BottleneckMethod : public Method {
 public:
  bool withholds_residual() const override { return true; }

  void after_forward(OperatorUse& use, const at::Tensor&, at::Tensor& y, const at::Tensor& residual) const override {
    const Gathered outputs = gather(use, y);
    std::vector<ShrinkGroup> groups;
    for (size_t i = 0; i < use.sites.size(); ++i) {
      groups.push_back({outputs.places[i], site_of(use.sites[i]).down.get(), 1.0, {}});
    }
    shrink(outputs.rows, groups);
    for (size_t i = 0; i < use.sites.size(); ++i) {
      const SiteUse& site = use.sites[i];
      const BottleneckSite& adapter = site_of(site);
      at::Tensor z = groups[i].s;
      z.narrow(1, 0, adapter.down->rank()).add_(adapter.down_bias().value);
      const at::Tensor added = expand({outputs.places[i], 0, activate(adapter.activation, z), adapter.up.get()});
      at::Tensor rows = y.narrow(0, site.job->rows.begin, site.job->rows.count());
      const at::Tensor skip = residual.narrow(0, site.job->rows.begin, site.job->rows.count());
      const at::ScalarType wide = adapter.up_bias().value.scalar_type();
      rows.copy_(skip.to(wide) + rows.to(wide) + added.to(wide) + adapter.up_bias().value);
      if (site.job->training) site.record->kept = {i == 0 ? outputs.rows : at::Tensor(), z};
    }
  }

  void before_backward(OperatorUse& use, at::Tensor& dy, std::vector<LowRankTerm>&) const override {
    std::vector<ShrinkGroup> groups;
    for (const SiteUse& site : use.sites) groups.push_back({site.job->rows, site_of(site).up.get(), 1.0, {}});
    shrink(dy, groups);
    at::Tensor replaced = dy.clone();
    for (size_t i = 0; i < use.sites.size(); ++i) {
      SiteUse& site = use.sites[i];
      const BottleneckSite& adapter = site_of(site);
      at::Tensor dz = activate_backward(adapter.activation, groups[i].s, site.record->kept[kept_z]);
      at::Tensor rows = replaced.narrow(0, site.job->rows.begin, site.job->rows.count());
      rows.add_(expand({site.job->rows, 0, dz, adapter.down.get()}));
      site.record->kept.push_back(std::move(dz));
    }
    dy = replaced;
  }

  void gradients(OperatorUse& use, const at::Tensor&, const at::Tensor& dy) const override {
    const at::Tensor y = use.sites.front().record->kept[kept_y];
    int64_t place = 0;
    std::vector<GradientGroup> down_weights, up_parts;
    for (SiteUse& site : use.sites) {
      const BottleneckSite& adapter = site_of(site);
      const int64_t begin = site.job->rows.begin, size = adapter.down->rank();
      const at::Tensor z = site.record->kept[kept_z], dz = site.record->kept[kept_dz];
      const at::Tensor active = activate(adapter.activation, z);
      const at::Tensor ones = at::ones({site.job->rows.count(), 1}, dy.options());
      std::vector<GradientGroup> down_bias;
      at::Tensor up_bias_gradient = adapter.up_bias().gradient.unsqueeze(0);
      at::Tensor down_bias_gradient = adapter.down_bias().gradient.unsqueeze(0);
      for (const RowRange& atom : site.job->atoms) {
        const int64_t first = atom.begin - begin;
        const RowRange local{first, first + atom.count()};
        down_weights.push_back({{place + local.begin, place + local.end}, dz.narrow(0, first, atom.count()),
                                adapter.down_weight().gradient});
        up_parts.push_back({atom, active.narrow(0, first, atom.count()), adapter.up_weight().gradient});
        up_parts.push_back({atom, ones.narrow(0, first, atom.count()), up_bias_gradient});
        down_bias.push_back({local, ones.narrow(0, first, atom.count()), down_bias_gradient});
      }
      accumulate_gradients(dz.narrow(1, 0, size), down_bias);
      place += site.job->rows.count();
    }
    accumulate_gradients(y, down_weights);
    accumulate_gradients(dy, up_parts);
    for (SiteUse& site : use.sites) site.record->kept.clear();
  }
};

}  // namespace

std::unique_ptr<Adapter> make_bottleneck(const ModelConfig& config, AdapterSetup setup) {
  return std::make_unique<BottleneckAdapter>(config, std::move(setup));
}

const Method& bottleneck_method() {
  static const BottleneckMethod method;
  return method;
}

}  // namespace cotune
