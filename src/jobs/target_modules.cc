#include "jobs/target_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "jobs/module_pattern.h"
#include "jobs/option_value.h"

namespace cotune {

namespace {

struct Module {
  int64_t layer = 0;
  Projection projection = Projection::q;
  std::string name;
};

std::vector<Module> modules_of(int64_t layer_count) {
  std::vector<Module> modules;
  for (int64_t layer = 0; layer < layer_count; ++layer) {
    for (Projection projection : all_projections) modules.push_back({layer, projection, module_name(layer, projection)});
  }
  return modules;
}

/// Which of the model's modules each entry of a field chooses.
class Choices {
 public:
  Choices() = default;
  /// matches(entry, name): whether the entry of that index chooses the module.
  template <typename Matches>
  Choices(size_t entry_count, const std::vector<Module>& modules, Matches matches) {
    for (size_t entry = 0; entry < entry_count; ++entry) {
      std::vector<bool>& chosen = chosen_.emplace_back();
      for (const Module& module : modules) chosen.push_back(matches(entry, module.name));
    }
  }

  bool chooses(size_t entry, size_t module) const { return chosen_[entry][module]; }
  bool is_unused(size_t entry) const { return std::ranges::find(chosen_[entry], true) == chosen_[entry].end(); }
  /// The first entry that chooses the module.
  std::optional<size_t> entry_of(size_t module) const {
    const auto found = std::ranges::find_if(chosen_, [&](const std::vector<bool>& chosen) { return chosen[module]; });
    return found == chosen_.end() ? std::nullopt : std::optional<size_t>(found - chosen_.begin());
  }

 private:
  std::vector<std::vector<bool>> chosen_;  ///< [entry][module]
};

class Resolver {
 public:
  Resolver(const JobSpec& job, int64_t layer_count, Unmatched unmatched)
      : job_(job),
        unmatched_(unmatched),
        adapter_(job.adapter),
        layer_count_(layer_count),
        modules_(modules_of(layer_count)),
        targets_(targets_of(job.adapter)),
        rank_keys_(keys_of(job.adapter.rank_pattern)),
        alpha_keys_(keys_of(job.adapter.alpha_pattern)) {}

  std::vector<AdaptedModule> resolve() {
    check_layers();
    const Choices targets = chosen_by_names("target_modules", targets_);
    const Choices excluded = chosen_by_names("exclude_modules", adapter_.exclude_modules);
    const Choices ranks = chosen_by_pattern("rank_pattern", rank_keys_);
    const Choices alphas = chosen_by_pattern("alpha_pattern", alpha_keys_);
    mistakes_.throw_if_any();
    std::vector<size_t> adapted;
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!targets.entry_of(i) || excluded.entry_of(i)) continue;
      const bool is_named_in_full = std::ranges::find(targets_, modules_[i].name) != targets_.end();
      if (is_named_in_full || is_layer_taken(modules_[i].layer)) adapted.push_back(i);
    }
    if (adapted.empty()) {
      report_nothing_left(targets, excluded);
    } else if (unmatched_ == Unmatched::refused) {
      report_without_effect("rank_pattern", rank_keys_, ranks, adapted);
      report_without_effect("alpha_pattern", alpha_keys_, alphas, adapted);
    }
    mistakes_.throw_if_any();
    std::vector<AdaptedModule> result;
    for (const size_t i : adapted) result.push_back(adapted_module(i, ranks.entry_of(i), alphas.entry_of(i)));
    return result;
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

  template <typename T>
  static std::vector<std::string> keys_of(const ModulePattern<T>& pattern) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : pattern) keys.push_back(key);
    return keys;
  }

  AdaptedModule adapted_module(size_t module, std::optional<size_t> rank, std::optional<size_t> alpha) const {
    const auto& [layer, projection, name] = modules_[module];
    switch (adapter_.method) {
      case AdapterMethod::lora:
        return {layer, projection, rank ? adapter_.rank_pattern[*rank].second : adapter_.r,
                alpha ? adapter_.alpha_pattern[*alpha].second : adapter_.alpha};
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
    if (absent.empty() || unmatched_ == Unmatched::ignored) return;
    constexpr size_t most_named = 8;
    const size_t more = absent.size() - std::min(absent.size(), most_named);
    absent.resize(absent.size() - more);
    add("layers_to_transform",
        fmt::format("must be layers from 0 to {} of this model, which has {}; got {}{}", layer_count_ - 1, counted(layer_count_, "layer"),
                    fmt::join(absent, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }

  /// An entry that chooses none of the model's modules is a mistake where such are refused, and so is always an expression that cannot be matched:
  /// it chooses none.
  template <typename MakeMatches>
  Choices chosen_by(const char* field, const std::vector<std::string>& entries, const std::string& accepted, MakeMatches make_matches) {
    Choices choices;
    try {
      choices = Choices(entries.size(), modules_, make_matches());
      for (size_t i = 0; i < entries.size(); ++i) {
        if (!choices.is_unused(i) || unmatched_ == Unmatched::ignored) continue;
        add(field, fmt::format("`{}` matches no module of this model; accepted: {}", shown(entries[i]), accepted));
      }
    } catch (const UserError& error) {
      add(field, error.what());
    }
    return choices;
  }

  Choices chosen_by_names(const char* field, const std::vector<std::string>& entries) {
    return chosen_by(field, entries, accepted_target_modules(), [&] {
      return [selector = ModuleSelector(entries)](size_t entry, const std::string& name) { return selector.chooses(entry, name); };
    });
  }

  Choices chosen_by_pattern(const char* field, const std::vector<std::string>& keys) {
    return chosen_by(field, keys, fmt::format("names or expressions of modules, such as {}", fmt::join(projection_names, ", ")), [&] {
      std::vector<ModuleExpression> expressions;
      for (const std::string& key : keys) expressions.push_back(pattern_key_expression(key));
      return [expressions](size_t entry, const std::string& name) { return expressions[entry].matches(name); };
    });
  }

  /// Of all that target_modules chooses something else leaves out.
  void report_nothing_left(const Choices& targets, const Choices& excluded) {
    size_t chosen = 0, taken_away = 0;
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!targets.entry_of(i)) continue;
      ++chosen;
      taken_away += excluded.entry_of(i) ? 1 : 0;
    }
    if (chosen == 0) return add("target_modules", fmt::format("nothing is left to adapt; accepted: {}", accepted_target_modules()));
    std::vector<std::string> reasons;
    if (taken_away > 0) reasons.push_back(fmt::format("exclude_modules leaves out {}", taken_away));
    if (taken_away < chosen) reasons.push_back(fmt::format("layers_to_transform leaves out {}", chosen - taken_away));
    add("target_modules",
        fmt::format("nothing is left to adapt: of {}, {}", counted(static_cast<int64_t>(chosen), "module"), fmt::join(reasons, ", ")));
  }

  void report_without_effect(const char* field, const std::vector<std::string>& keys, const Choices& choices,
                             const std::vector<size_t>& adapted) {
    std::set<Projection> projections;
    for (const size_t module : adapted) projections.insert(modules_[module].projection);
    std::vector<std::string_view> names;
    for (const Projection projection : projections) names.push_back(projection_name(projection));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (std::ranges::any_of(adapted, [&](size_t module) { return choices.chooses(i, module); })) continue;
      add(field, fmt::format("`{}` matches none of the job's target modules; accepted: names or expressions of those, {}", shown(keys[i]),
                             fmt::join(names, ", ")));
    }
  }

  const JobSpec& job_;
  Unmatched unmatched_;
  const AdapterSpec& adapter_;
  int64_t layer_count_;
  std::vector<Module> modules_;
  std::vector<std::string> targets_, rank_keys_, alpha_keys_;
  Diagnostics mistakes_;
};

}  // namespace

std::vector<AdaptedModule> resolve_target_modules(const JobSpec& job, int64_t layer_count, Unmatched unmatched) {
  return Resolver(job, layer_count, unmatched).resolve();
}

std::string accepted_target_modules() {
  return fmt::format("{}, `all-linear` or one regular expression", fmt::join(projection_names, ", "));
}

}  // namespace cotune
