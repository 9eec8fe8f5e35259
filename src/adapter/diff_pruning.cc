#include "adapter/diff_pruning.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "jobs/adapter_methods.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "ops/select_entries.h"
#include "ops/sparse_delta.h"

namespace cotune {
namespace {

class DiffSite : public SiteAdapter {
 public:
  Adapter* owner = nullptr;
  AdaptedModule module;
  ProjectionSize shape;        ///< of the part of the weight that is here, as are the members below
  SparseDelta delta;            ///< row_indices undefined until the selection is made
  size_t values_index = 0;
  at::Tensor dense_gradient;    ///< [in, out], during this site's selection pass only

  bool selected() const { return delta.row_indices.defined(); }
  Parameter& values() const { return owner->parameters()[values_index]; }
};

std::string entry_name(const AdaptedModule& module, const char* part) {
  return "base_model.model." + module_name(module.layer, module.projection) + ".diff_pruning." + part;
}

class DiffPruningAdapter : public Adapter {
 public:
  DiffPruningAdapter(const ModelConfig& config, AdapterSetup given) : Adapter(config, std::move(given)) {
    const auto element = static_cast<int64_t>(c10::elementSize(accumulation_dtype(setup().compute)));
    int64_t pass_bytes = 0, pass_layer = -1;
    for (const AdaptedModule& module : setup().modules) {
      const ProjectionSize whole = projection_size(config, module.projection);  // a pass has the same sites on every rank
      const bool next_layer = module.layer != pass_layer;
      if (passes_.empty() || (next_layer && pass_bytes + layer_bytes(module.layer, element) > selection_bytes)) {
        passes_.emplace_back();
        pass_bytes = 0;
      }
      pass_layer = module.layer;
      pass_bytes += whole.in * whole.out * element;
      if (!setup().holds(module.layer)) continue;
      auto site = std::make_unique<DiffSite>();
      site->owner = this;
      site->module = module;
      site->shape = projection_size_of(module.projection);
      passes_.back().push_back(site.get());
      place(module.layer, module.projection, site.get());
      sites_.push_back(std::move(site));
    }
  }

  void refresh(LayerRange) override {}
  int64_t selection_passes() const override {
    const auto passes = static_cast<int64_t>(passes_.size());
    return finished_passes_ < passes ? passes : 0;
  }
  int64_t finished_selection_passes() const override { return finished_passes_; }

  void begin_selection(int64_t pass) override {
    const MemoryScope scope(MemoryKind::gradients);
    const auto options = at::TensorOptions().dtype(accumulation_dtype(setup().compute)).device(setup().device);
    for (DiffSite* site : passes_[static_cast<size_t>(pass)]) {
      site->dense_gradient = at::zeros({site->shape.in, site->shape.out}, options);
    }
  }

  std::vector<NamedTensor> end_selection(int64_t pass, const SumOverRanks& sum) override {
    const MemoryScope scope(MemoryKind::adapters);
    std::vector<NamedTensor> chosen;
    for (DiffSite* site : passes_[static_cast<size_t>(pass)]) {
      const at::Tensor gradient = whole_gradient(*site, sum);
      site->dense_gradient.reset();
      pending_.push_back({site, select_entries(gradient, kept_entries(setup().spec.density, gradient.numel()))});
      add_structure(*site, pending_.back().second, chosen);
    }
    finished_passes_ = pass + 1;
    if (finished_passes_ == static_cast<int64_t>(passes_.size())) install_pending();
    return chosen;
  }

  std::vector<NamedTensor> structure() const override {
    COTUNE_CHECK(setup().shard.is_whole(), "the structure of a shard");
    std::vector<NamedTensor> tensors;
    for (const auto& site : sites_) {
      if (!site->selected()) continue;
      add_structure(*site, site->delta, tensors);
    }
    for (const auto& [site, delta] : pending_) add_structure(*site, delta, tensors);
    return tensors;
  }

  void restore_structure(const std::vector<NamedTensor>& extra, bool complete) override {
    std::map<std::string, at::Tensor> by_name;
    for (const NamedTensor& item : extra) by_name[item.name] = item.tensor;
    parameters_.clear();
    pending_.clear();
    finished_passes_ = 0;
    for (const auto& pass : passes_) {
      if (by_name.empty() && !complete) return;  // of this pass on nothing is chosen yet
      ++finished_passes_;
      for (DiffSite* site : pass) pending_.push_back({site, take_entries(*site, by_name)});
    }
    if (!by_name.empty()) throw_user_error("`{}` does not belong to this adapter", by_name.begin()->first);
    install_pending();
  }

  void add_selection_to(Adapter& to) override {
    auto& whole = static_cast<DiffPruningAdapter&>(to);
    for (size_t i = 0; i < sites_.size(); ++i) {
      at::Tensor& gathered = sites_[i]->dense_gradient;
      if (!gathered.defined()) continue;
      own_part(whole.sites_[i]->dense_gradient, sites_[i]->module.projection).add_(gathered);
      gathered.reset();
    }
  }

 private:
  /// The view of a whole weight's gradient that is here.
  at::Tensor own_part(const at::Tensor& whole, Projection projection) const {
    const FeatureRange inputs = inputs_of(projection), outputs = outputs_of(projection);
    return whole.narrow(0, inputs.begin, inputs.count).narrow(1, outputs.begin, outputs.count);
  }

  /// Of a whole weight, where each rank has gathered that of its part.
  at::Tensor whole_gradient(const DiffSite& site, const SumOverRanks& sum) const {
    at::Tensor whole = site.dense_gradient;
    if (!setup().shard.is_whole()) {
      const MemoryScope scope(MemoryKind::gradients);
      const ProjectionSize shape = projection_size(model_config(), site.module.projection);
      whole = at::zeros({shape.in, shape.out}, site.dense_gradient.options());
      own_part(whole, site.module.projection).copy_(site.dense_gradient);
    }
    if (sum) sum(whole, site.module.layer);
    return whole;
  }

  /// The entries that are here, of those chosen in a whole weight.
  SparseDelta part_of(const SparseDelta& whole, Projection projection, ShardPlace& place) const {
    if (setup().shard.is_whole()) return whole;
    const bool by_columns = divides_outputs(projection);
    SparseDelta part = by_columns ? columns_of(whole, outputs_of(projection), place) : rows_of(whole, inputs_of(projection), place);
    if (by_columns) place.holders = ranks_with_same_outputs(model_config(), projection, setup().shard.count);
    place.is_summand = place.holders > 1;
    return part;
  }

  /// The entries of some columns; they follow one another.
  static SparseDelta columns_of(const SparseDelta& whole, const FeatureRange& columns, ShardPlace& place) {
    const at::Tensor offsets = whole.column_offsets.narrow(0, columns.begin, columns.count + 1);
    const int64_t begin = offsets[0].item<int64_t>(), end = offsets[columns.count].item<int64_t>();
    place = {0, begin, whole.entry_count(), {}, 1, false};
    return {whole.in_features, columns.count, offsets - begin, whole.row_indices.narrow(0, begin, end - begin).clone()};
  }

  /// The entries of some rows: a few of each column.
  static SparseDelta rows_of(const SparseDelta& whole, const FeatureRange& rows, ShardPlace& place) {
    const at::Tensor own = whole.row_indices.ge(rows.begin).logical_and_(whole.row_indices.lt(rows.begin + rows.count));
    const at::Tensor entries = own.nonzero().squeeze(1);
    const at::Tensor before = at::cat({at::zeros({1}, whole.column_offsets.options()), own.cumsum(0, at::kLong)});
    place = {0, 0, whole.entry_count(), entries, 1, false};
    return {rows.count, whole.out_features, before.index_select(0, whole.column_offsets),
            whole.row_indices.index_select(0, entries).sub_(rows.begin)};
  }

  static void add_structure(const DiffSite& site, const SparseDelta& delta, std::vector<NamedTensor>& tensors) {
    tensors.push_back({entry_name(site.module, "rows"), delta.row_indices, site.module.layer});
    tensors.push_back({entry_name(site.module, "column_offsets"), delta.column_offsets, site.module.layer});
  }

  /// Takes the site's tensors out of `by_name`.
  SparseDelta take_entries(const DiffSite& site, std::map<std::string, at::Tensor>& by_name) const {
    const auto take = [&](const char* part, at::ScalarType dtype) {
      const auto found = by_name.find(entry_name(site.module, part));
      if (found == by_name.end()) throw_user_error("`{}` is missing", entry_name(site.module, part));
      at::Tensor tensor = found->second.to(setup().device, dtype).contiguous();
      by_name.erase(found);
      return tensor;
    };
    const ProjectionSize whole = projection_size(model_config(), site.module.projection);
    SparseDelta delta{whole.in, whole.out, take("column_offsets", at::kLong), take("rows", at::kInt)};
    check(site, delta);
    return delta;
  }

  int64_t layer_bytes(int64_t layer, int64_t element) const {
    int64_t bytes = 0;
    for (const AdaptedModule& module : setup().modules) {
      const ProjectionSize shape = projection_size(model_config(), module.projection);
      if (module.layer == layer) bytes += shape.in * shape.out * element;
    }
    return bytes;
  }

  static void check(const DiffSite& site, const SparseDelta& delta) {
    const std::string name = entry_name(site.module, "column_offsets");
    if (delta.column_offsets.sizes() != at::IntArrayRef{delta.out_features + 1}) {
      throw_user_error("`{}` has shape [{}], [{}] is expected", name, fmt::join(delta.column_offsets.sizes(), ", "), delta.out_features + 1);
    }
    if (delta.row_indices.dim() != 1) {
      throw_user_error("`{}` has shape [{}], one dimension is expected", entry_name(site.module, "rows"),
                       fmt::join(delta.row_indices.sizes(), ", "));
    }
    const at::Tensor offsets = delta.column_offsets.cpu(), rows = delta.row_indices.cpu();
    const int64_t* offset = offsets.const_data_ptr<int64_t>();
    bool sound = offset[0] == 0 && offset[delta.out_features] == rows.numel();
    for (int64_t column = 0; sound && column < delta.out_features; ++column) sound = offset[column] <= offset[column + 1];
    if (!sound) throw_user_error("`{}` does not ascend from 0 to the number of entries", name);
    const int32_t* row = rows.const_data_ptr<int32_t>();
    for (int64_t column = 0; column < delta.out_features; ++column) {
      for (int64_t entry = offset[column]; entry < offset[column + 1]; ++entry) {
        if (row[entry] < 0 || row[entry] >= delta.in_features || (entry > offset[column] && row[entry] <= row[entry - 1])) {
          throw_user_error("`{}`: entry {} is {}: rows ascend within a column and are below {}",
                           entry_name(site.module, "rows"), entry, row[entry], delta.in_features);
        }
      }
    }
  }

  /// Every site's entries are chosen: they get values.
  void install_pending() {
    for (const auto& [site, delta] : pending_) install(*site, delta);
    pending_.clear();
  }

  void install(DiffSite& site, const SparseDelta& whole) {
    ShardPlace place;
    site.delta = part_of(whole, site.module.projection, place);
    site.values_index = parameters_.size();
    const auto options = at::TensorOptions().dtype(accumulation_dtype(setup().compute)).device(setup().device);
    parameters_.push_back(
        make_parameter(entry_name(site.module, "values"), site.module.layer, at::zeros({site.delta.entry_count()}, options)));
    parameters_.back().place = std::move(place);
  }

  std::vector<std::unique_ptr<DiffSite>> sites_;
  std::vector<std::vector<DiffSite*>> passes_;  ///< of the whole adapter, each with the sites that are held
  int64_t finished_passes_ = 0;
  std::vector<std::pair<DiffSite*, SparseDelta>> pending_;  ///< chosen in whole weights
};

DiffSite& diff_of(const SiteUse& use) { return static_cast<DiffSite&>(*use.adapter); }

/// The sites whose entries are chosen, for grouped products: forward reads all columns of x, backward those of the site.
enum class Pass { forward, backward };
std::vector<SparseDeltaGroup> chosen_sites(const OperatorUse& use, Pass pass) {
  std::vector<SparseDeltaGroup> groups;
  for (const SiteUse& site : use.sites) {
    const DiffSite& diff = diff_of(site);
    if (!diff.selected() || diff.delta.entry_count() == 0) continue;  // a rank's part may have none
    const bool forward = pass == Pass::forward;
    groups.push_back({&diff.delta, diff.values().value, site.job->rows, forward ? 0 : site.column_begin,
                      forward ? site.column_begin : 0});
  }
  return groups;
}

class DiffPruningMethod : public Method {
 public:
  void after_forward(OperatorUse& use, const at::Tensor& x, at::Tensor& y, const at::Tensor&) const override {
    add_sparse_deltas(chosen_sites(use, Pass::forward), x, y);
  }

  void after_backward(OperatorUse& use, const at::Tensor& dy, at::Tensor& dx) const override {
    add_sparse_delta_input_gradients(chosen_sites(use, Pass::backward), dy, dx);
  }

  void gradients(OperatorUse& use, const at::Tensor& x, const at::Tensor& dy) const override {
    std::vector<SparseDeltaGradient> chosen;
    for (const SiteUse& site : use.sites) {
      const DiffSite& diff = diff_of(site);
      for (const RowRange& atom : site.job->atoms) {
        if (diff.selected() && diff.delta.entry_count() > 0) chosen.push_back({&diff.delta, atom, site.column_begin, diff.values().gradient});
      }
    }
    add_sparse_delta_value_gradients(chosen, x, dy);
    add_dense_gradients(use, x, dy);
  }

 private:
  /// dense += x[atom]ᵀ·dy[atom] for the sites of a selection pass; one call per projection, whose columns of dy they read.
  static void add_dense_gradients(const OperatorUse& use, const at::Tensor& x, const at::Tensor& dy) {
    for (size_t first = 0, last = 0; first < use.sites.size(); first = last) {
      std::vector<GradientGroup> groups;
      for (; last < use.sites.size() && use.sites[last].projection == use.sites[first].projection; ++last) {
        const DiffSite& diff = diff_of(use.sites[last]);
        for (const RowRange& atom : use.sites[last].job->atoms) {
          if (diff.dense_gradient.defined()) groups.push_back({atom, x.narrow(0, atom.begin, atom.count()), diff.dense_gradient});
        }
      }
      accumulate_gradients(dy.narrow(1, use.sites[first].column_begin, use.sites[first].column_count), groups);
    }
  }
};

}  // namespace

std::unique_ptr<Adapter> make_diff_pruning(const ModelConfig& config, AdapterSetup setup) {
  return std::make_unique<DiffPruningAdapter>(config, std::move(setup));
}

const Method& diff_pruning_method() {
  static const DiffPruningMethod method;
  return method;
}

}  // namespace cotune
