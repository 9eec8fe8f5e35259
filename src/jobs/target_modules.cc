#include "jobs/target_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "jobs/module_pattern.h"
#include "jobs/option_value.h"

namespace cotune {

namespace {

/// The values of a pattern for single modules; remembers which keys were needed.
template <typename T>
class PatternValues {
 public:
  explicit PatternValues(const ModulePattern<T>& pattern) : pattern_(pattern), matched_(pattern.size(), false) {
    for (const auto& [key, value] : pattern) expressions_.push_back(pattern_key_expression(key));
  }

  T value_for(const std::string& module, T fallback) {
    const T* value = nullptr;
    for (size_t i = 0; i < pattern_.size(); ++i) {
      if (!expressions_[i].matches(module)) continue;
      matched_[i] = true;
      if (value == nullptr) value = &pattern_[i].second;
    }
    return value == nullptr ? fallback : *value;
  }

  std::vector<std::string> unmatched_keys() const {
    std::vector<std::string> keys;
    for (size_t i = 0; i < pattern_.size(); ++i) {
      if (!matched_[i]) keys.push_back(pattern_[i].first);
    }
    return keys;
  }

 private:
  const ModulePattern<T>& pattern_;
  std::vector<ModuleExpression> expressions_;
  std::vector<bool> matched_;
};

class Resolver {
 public:
  Resolver(const JobSpec& job, int64_t layer_count)
      : job_(job), adapter_(job.adapter), layer_count_(layer_count), targets_(targets_of(job.adapter)) {}

  std::vector<AdaptedModule> resolve() {
    check_layers();
    std::vector<AdaptedModule> modules;
    try {
      if (mistakes_.empty()) modules = match_modules();
    } catch (const UserError& error) {
      const OptionPlace place = job_.place_of("adapter");
      mistakes_.add(place.file, place.line, place.field, error.what());
    }
    mistakes_.throw_if_any();
    return modules;
  }

 private:
  static std::vector<std::string> targets_of(const AdapterSpec& adapter) {
    const std::vector<std::string>& given = adapter.target_modules;
    switch (adapter.method) {
      case AdapterMethod::lora: return given.empty() ? std::vector<std::string>{"q_proj", "v_proj"} : given;
      case AdapterMethod::bottleneck: return {"o_proj", "down_proj"};
      case AdapterMethod::diff_pruning: return given.empty() ? std::vector<std::string>{std::string(all_linear)} : given;
    }
    COTUNE_CHECK(false, "unknown adapter method");
  }

  std::vector<AdaptedModule> match_modules() {
    const ModuleSelector targets(targets_);
    const ModuleSelector excluded(adapter_.exclude_modules);
    std::vector<bool> target_used(targets_.size(), false);
    std::vector<bool> exclusion_used(adapter_.exclude_modules.size(), false);
    PatternValues<int64_t> ranks(adapter_.rank_pattern);
    PatternValues<double> alphas(adapter_.alpha_pattern);
    std::vector<AdaptedModule> modules;
    for (int64_t layer = 0; layer < layer_count_; ++layer) {
      for (Projection projection : all_projections) {
        const std::string name = module_name(layer, projection);
        const int target = targets.match(name);
        const int exclusion = excluded.match(name);
        if (target >= 0) target_used[target] = true;
        if (exclusion >= 0) exclusion_used[exclusion] = true;
        if (target < 0 || exclusion >= 0 || !(is_layer_taken(layer) || targets_[target] == name)) continue;
        modules.push_back(adapted(layer, projection, name, ranks, alphas));
      }
    }
    report_unused("target_modules", targets_, target_used);
    report_unused("exclude_modules", adapter_.exclude_modules, exclusion_used);
    if (!mistakes_.empty()) return {};
    if (modules.empty()) {
      add("target_modules", fmt::format("nothing is left to adapt; accepted: {}", accepted_target_modules()));
    } else {
      for (const std::string& key : ranks.unmatched_keys()) report_unmatched("rank_pattern", key);
      for (const std::string& key : alphas.unmatched_keys()) report_unmatched("alpha_pattern", key);
    }
    return modules;
  }

  AdaptedModule adapted(int64_t layer, Projection projection, const std::string& name, PatternValues<int64_t>& ranks,
                        PatternValues<double>& alphas) {
    switch (adapter_.method) {
      case AdapterMethod::lora:
        return {layer, projection, ranks.value_for(name, adapter_.r), alphas.value_for(name, adapter_.alpha)};
      case AdapterMethod::bottleneck: return {layer, projection, adapter_.bottleneck_size, 0};
      case AdapterMethod::diff_pruning: return {layer, projection, 0, 0};
    }
    COTUNE_CHECK(false, "unknown adapter method");
  }

  bool is_layer_taken(int64_t layer) const {
    const std::vector<int64_t>& layers = adapter_.layers_to_transform;
    return layers.empty() || std::count(layers.begin(), layers.end(), layer) > 0;
  }

  void add(const char* field, const std::string& message) {
    const OptionPlace place = job_.place_of(fmt::format("adapter.{}", field));
    mistakes_.add(place.file, place.line, place.field, message);
  }

  void check_layers() {
    std::vector<int64_t> absent;
    std::ranges::copy_if(adapter_.layers_to_transform, std::back_inserter(absent),
                         [&](int64_t layer) { return layer < 0 || layer >= layer_count_; });
    if (absent.empty()) return;
    constexpr size_t most_named = 8;
    const size_t more = absent.size() - std::min(absent.size(), most_named);
    absent.resize(absent.size() - more);
    add("layers_to_transform", fmt::format("must be layers from 0 to {} of this model, which has {}; got {}{}", layer_count_ - 1,
                                           counted(layer_count_, "layer"), fmt::join(absent, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }

  void report_unused(const char* field, const std::vector<std::string>& entries, const std::vector<bool>& used) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (used[i] || std::find(entries.begin(), entries.begin() + i, entries[i]) != entries.begin() + i) continue;
      if (is_shadowed(entries, i)) continue;
      add(field, fmt::format("`{}` matches no module of this model; accepted: {}", shown(entries[i]), accepted_target_modules()));
    }
  }

  /// Whether every module that entry i chooses is chosen by an earlier entry, as `self_attn.q_proj` after `q_proj`.
  bool is_shadowed(const std::vector<std::string>& entries, size_t i) const {
    return std::any_of(entries.begin(), entries.begin() + i, [&](const std::string& earlier) {
      return ends_in_module_name(entries[i], earlier);
    });
  }

  void report_unmatched(const char* field, const std::string& key) {
    add(field, fmt::format("`{}` matches none of the job's target modules", shown(key)));
  }

  const JobSpec& job_;
  const AdapterSpec& adapter_;
  int64_t layer_count_;
  std::vector<std::string> targets_;
  Diagnostics mistakes_;
};

}  // namespace

std::vector<AdaptedModule> resolve_target_modules(const JobSpec& job, int64_t layer_count) {
  return Resolver(job, layer_count).resolve();
}

std::string accepted_target_modules() {
  return fmt::format("{}, `all-linear` or one regular expression", fmt::join(projection_names, ", "));
}

}  // namespace cotune
