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
      if (!setup().holds(module.layer)) continue;
      const int64_t width = projection_size_of(module.projection).out, size = module.r;
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
      parameters_.push_back(make_parameter(prefix + ".adapter_down.weight", module.layer, start.to(options)));
      parameters_.push_back(make_parameter(prefix + ".adapter_down.bias", module.layer, at::zeros({size}, options)));
      parameters_.back().decays = false;  // as transformers leaves biases out
      parameters_.push_back(make_parameter(prefix + ".adapter_up.weight", module.layer, at::zeros({size, width}, options)));
      parameters_.back().transposed_in_file = true;
      parameters_.push_back(make_parameter(prefix + ".adapter_up.bias", module.layer, at::zeros({width}, options)));
      parameters_.back().decays = false;
      // It reads and changes an operator's whole output: every rank of a group computes all of it, from equal bits, or the slice of the
      // tokens that it has.
      for (size_t i = site->first_parameter; i < parameters_.size(); ++i) parameters_[i].place = whole_place(setup().shard.is_sequence_parallel);
      site->down = make_low_rank_factor(site->down_weight().value, setup().compute, setup().factor_form);
      site->up = make_low_rank_factor(site->up_weight().value, setup().compute, setup().factor_form);
      place(module.layer, module.projection, site.get());
      sites_.push_back(std::move(site));
    }
  }

  void refresh(LayerRange layers) override {
    std::vector<FactorRefresh> refreshes;
    for (const auto& site : sites_) {
      if (!layers.contains(site->down_weight().layer)) continue;
      refreshes.push_back({site->down.get(), site->down_weight().value});
      refreshes.push_back({site->up.get(), site->up_weight().value});
    }
    refresh_factors(refreshes);
  }

 private:
  std::vector<std::unique_ptr<BottleneckSite>> sites_;
};

BottleneckSite& site_of(const SiteUse& use) { return static_cast<BottleneckSite&>(*use.adapter); }

/// The jobs' rows of a tensor one after another, in compute dtype, with each job's place among them: the operand of grouped calls.
struct Gathered {
  at::Tensor rows;
  std::vector<RowRange> places;  ///< per site
};

Gathered gather(const OperatorUse& use, const at::Tensor& tensor, at::ScalarType compute) {
  Gathered gathered;
  int64_t count = 0;
  for (const SiteUse& site : use.sites) {
    gathered.places.push_back({count, count + site.job->rows.count()});
    count = gathered.places.back().end;
  }
  gathered.rows = at::empty({count, tensor.size(1)}, tensor.options().dtype(compute));
  for (size_t i = 0; i < use.sites.size(); ++i) {
    const RowRange &from = use.sites[i].job->rows, &to = gathered.places[i];
    gathered.rows.narrow(0, to.begin, to.count()).copy_(tensor.narrow(0, from.begin, from.count()));
  }
  return gathered;
}

/// kept: y (of all jobs together, with the first site), z, f(z) and its gradient's place once backward has run.
enum Kept : size_t { kept_y = 0, kept_z = 1, kept_dz = 2 };

/// z of every site, with what activates it.
std::vector<ActivationGroup> kept_activations(const OperatorUse& use) {
  std::vector<ActivationGroup> groups;
  for (const SiteUse& site : use.sites) groups.push_back({site_of(site).activation, site.record->kept[kept_z]});
  return groups;
}

class BottleneckMethod : public Method {
 public:
  bool withholds_residual() const override { return true; }

  void after_forward(OperatorUse& use, const at::Tensor&, at::Tensor& y, const at::Tensor& residual) const override {
    const Gathered outputs = gather(use, y, site_of(use.sites.front()).owner->setup().compute);
    std::vector<ShrinkGroup> down;
    for (size_t i = 0; i < use.sites.size(); ++i) {
      down.push_back({outputs.places[i], site_of(use.sites[i]).down.get(), 1.0, {}});
    }
    shrink(outputs.rows, down);
    std::vector<ActivationGroup> activations;
    for (size_t i = 0; i < use.sites.size(); ++i) {
      const BottleneckSite& adapter = site_of(use.sites[i]);
      activations.push_back({adapter.activation, down[i].s, adapter.down_bias().value});
    }
    const std::vector<at::Tensor> active = activate(activations);
    std::vector<ExpandGroup> up;
    for (size_t i = 0; i < use.sites.size(); ++i) {
      const SiteUse& site = use.sites[i];
      const BottleneckSite& adapter = site_of(site);
      up.push_back({.rows = site.job->rows, .s = active[i], .factor = adapter.up.get(), .bias = adapter.up_bias().value});
      if (site.job->training) site.record->kept = {i == 0 ? outputs.rows : at::Tensor(), down[i].s};
    }
    add_expansions(y, up, {.residual = residual});
  }

  void before_backward(OperatorUse& use, at::Tensor& dy, std::vector<LowRankTerm>&) const override {
    std::vector<ShrinkGroup> up;
    for (const SiteUse& site : use.sites) up.push_back({site.job->rows, site_of(site).up.get(), 1.0, {}});
    shrink(dy, up);
    std::vector<ActivationGroup> activations = kept_activations(use);
    for (size_t i = 0; i < use.sites.size(); ++i) activations[i].gradient = up[i].s;
    const std::vector<at::Tensor> dz = activate_backward(activations);
    std::vector<ExpandGroup> down;
    for (size_t i = 0; i < use.sites.size(); ++i) {
      SiteUse& site = use.sites[i];
      down.push_back({.rows = site.job->rows, .s = dz[i], .factor = site_of(site).down.get()});
      site.record->kept.push_back(dz[i]);
    }
    dy = dy.clone();
    add_expansions(dy, down);
  }

  void gradients(OperatorUse& use, const at::Tensor&, const at::Tensor& dy) const override {
    const at::Tensor y = use.sites.front().record->kept[kept_y];
    const std::vector<at::Tensor> active = activate(kept_activations(use));
    int64_t place = 0;
    std::vector<GradientGroup> down_weights, up_weights;
    std::vector<RowSum> down_biases, up_biases;
    for (size_t i = 0; i < use.sites.size(); ++i) {
      const SiteUse& site = use.sites[i];
      const BottleneckSite& adapter = site_of(site);
      const at::Tensor dz = site.record->kept[kept_dz];
      for (const RowRange& atom : site.job->atoms) {
        const int64_t first = atom.begin - site.job->rows.begin;
        const at::Tensor dz_rows = dz.narrow(0, first, atom.count());
        down_weights.push_back({{place + first, place + first + atom.count()}, dz_rows, adapter.down_weight().gradient});
        down_biases.push_back({dz_rows.narrow(1, 0, adapter.down->rank()), adapter.down_bias().gradient});
        up_weights.push_back({atom, active[i].narrow(0, first, atom.count()), adapter.up_weight().gradient});
        up_biases.push_back({dy.narrow(0, atom.begin, atom.count()), adapter.up_bias().gradient});
      }
      place += site.job->rows.count();
    }
    accumulate_gradients(y, down_weights);
    accumulate_gradients(dy, up_weights);
    accumulate_row_sums(down_biases);
    accumulate_row_sums(up_biases);
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
