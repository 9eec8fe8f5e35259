#include "train/adapter_folder.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "adapter/adapter_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "formats/safetensors.h"
#include "jobs/adapter_methods.h"
#include "jobs/enum_names.h"
#include "jobs/hub_cache.h"
#include "train/checkpoint.h"
#include "train/folder_checksums.h"
#include "train/run_record.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// Names the first of `values`, and how many more there are.
std::string first_of(const std::vector<std::string>& values, const char* others = " and {} more") {
  return values.front() + (values.size() > 1 ? fmt::format(fmt::runtime(others), values.size() - 1) : "");
}

/// How two sets of modules differ, as seen from the job.
void compare_modules(const std::vector<AdaptedModule>& adapter, const std::vector<AdaptedModule>& job,
                     std::vector<std::string>& differences) {
  const auto by_name = [](const std::vector<AdaptedModule>& modules) {
    std::map<std::string, AdaptedModule> result;
    for (const AdaptedModule& module : modules) result[module_name(module.layer, module.projection)] = module;
    return result;
  };
  const auto theirs = by_name(adapter), ours = by_name(job);
  std::vector<std::string> only_theirs, only_ours, ranks, alphas;
  for (const auto& [name, module] : theirs) {
    const auto found = ours.find(name);
    if (found == ours.end()) {
      only_theirs.push_back(name);
      continue;
    }
    if (module.r != found->second.r)
      ranks.push_back(fmt::format("{} has rank {}, not {}", name, module.r, found->second.r));
    if (module.alpha != found->second.alpha) {
      alphas.push_back(fmt::format("{} has alpha {}, not {}", name, module.alpha, found->second.alpha));
    }
  }
  for (const auto& [name, module] : ours) {
    if (!theirs.contains(name)) only_ours.push_back(name);
  }
  if (!only_theirs.empty()) differences.push_back("it adapts " + first_of(only_theirs));
  if (!only_ours.empty()) differences.push_back("it does not adapt " + first_of(only_ours));
  if (!ranks.empty()) differences.push_back(first_of(ranks, " ({} more differ)"));
  if (!alphas.empty()) differences.push_back(first_of(alphas, " ({} more differ)"));
}

/// What keeps a job from starting with an adapter.
std::vector<std::string> differences_of(const AdapterSetup& adapter, const AdapterSpec& job,
                                        const std::vector<AdaptedModule>& modules) {
  std::vector<std::string> differences;
  const AdapterSpec& spec = adapter.spec;
  if (spec.method != job.method) {
    differences.push_back(fmt::format("its method is {}, not {}", name_of(spec.method), name_of(job.method)));
    return differences;
  }
  compare_modules(adapter.modules, modules, differences);
  const std::string meaning = different_meaning(spec, job);
  if (!meaning.empty()) differences.push_back(meaning);
  return differences;
}

/// How the entries of an adapter that chooses some differ from those that the job's density keeps; "": they do not, or all are trained.
std::string different_entries(const Adapter& adapter, const AdapterSpec& job, const ModelConfig& config) {
  if (!selects_entries(job.method)) return "";
  const std::vector<AdaptedModule>& modules = adapter.setup().modules;
  COTUNE_CHECK(adapter.parameters().size() == modules.size(), "{} parameters of {} modules", adapter.parameters().size(), modules.size());
  std::vector<std::string> differences;
  for (size_t i = 0; i < modules.size(); ++i) {
    const ProjectionSize shape = projection_size(config, modules[i].projection);
    const int64_t entries = adapter.parameters()[i].value.numel(), kept = kept_entries(job.density, shape.in * shape.out);
    if (entries == kept) continue;
    differences.push_back(
        fmt::format("{} has {} entries, and density {} keeps {}", module_name(modules[i].layer, modules[i].projection), entries, job.density, kept));
  }
  if (differences.empty()) return "";
  return fmt::format("{}; its density is {}", first_of(differences, " ({} more differ)"), adapter.setup().spec.density);
}

[[noreturn]] void refuse_as_another(const fs::path& folder, const std::string& differences) {
  throw_user_error("{}: is another adapter than this job's: {}; give the job the adapter's settings", folder.string(), differences);
}

bool holds_adapter(const fs::path& folder) {
  return fs::exists(folder / adapter_config_file);
}

std::optional<fs::path> adapter_of_job(const fs::path& job) {
  if (holds_adapter(job / "adapter")) return job / "adapter";
  for (const auto& checkpoint : {best_checkpoint(job), latest_checkpoint(job)}) {
    if (checkpoint && holds_adapter(*checkpoint)) return checkpoint;
  }
  return std::nullopt;
}

/// As the run has them; jobs that it does not name (a folder without its record, one that was put there) come last, by name.
void sort_as_in_run(const fs::path& run, std::vector<JobAdapter>& adapters) {
  const fs::path file = run / "run.json";
  std::map<std::string, size_t> places;
  if (fs::exists(file)) {
    const RunRecord record = RunRecord::from_json(read_file(file), file.string());
    for (const JobSpec& job : record.configuration.jobs) places.emplace(job.name, places.size());
  }
  std::ranges::sort(adapters, {}, [&](const JobAdapter& adapter) {
    const auto place = places.find(adapter.job);
    return std::pair(place == places.end() ? places.size() : place->second, adapter.job);
  });
}

}  // namespace

std::vector<JobAdapter> find_adapter_folders(const fs::path& given) {
  const fs::path path = path_or_snapshot(given);
  if (!fs::is_directory(path)) {
    throw_user_error("{}: {}; a folder with {} is needed", path.string(),
                     fs::exists(path) ? "is no folder" : "does not exist" + hub_cache_hint(path), adapter_config_file);
  }
  if (holds_adapter(path)) return {{"", path}};
  if (const auto adapter = adapter_of_job(path)) return {{"", *adapter}};
  std::vector<JobAdapter> adapters;
  if (fs::is_directory(path / "jobs")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path / "jobs")) {
      if (const auto adapter = adapter_of_job(entry.path())) adapters.push_back({entry.path().filename().string(), *adapter});
    }
  }
  if (adapters.empty()) {
    throw_user_error(
        "{}: holds no adapter: accepted are a folder with {}, a job's folder (RUN/jobs/NAME) and a run's "
        "folder with one job{}",
        path.string(), adapter_config_file, hub_part_hint(path));
  }
  if (adapters.size() > 1) sort_as_in_run(path, adapters);
  return adapters;
}

fs::path find_adapter_folder(const fs::path& given) {
  const std::vector<JobAdapter> adapters = find_adapter_folders(given);
  if (adapters.size() == 1) return adapters.front().folder;
  const fs::path path = path_or_snapshot(given);
  std::string list;
  for (const JobAdapter& adapter : adapters) list += "\n  " + (path / "jobs" / adapter.job).string();
  throw_user_error("{}: holds the adapters of {} jobs: choose one:{}", path.string(), adapters.size(), list);
}

std::string recorded_base_model(const fs::path& adapter_folder) {
  const fs::path file = adapter_folder / adapter_config_file;
  check_adapter_config_checksum(adapter_folder);
  try {
    const auto config = nlohmann::json::parse(read_file(file));
    const auto text = [&config](const char* key) {
      const auto found = config.find(key);
      return found == config.end() || found->is_null() ? std::string() : found->get<std::string>();
    };
    const std::string model = text("base_model_name_or_path"), revision = text("revision");
    return revision.empty() || !parse_hub_name(model) || fs::exists(model) ? model : model + "@" + revision;
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{}: is not an adapter configuration: {}", file.string(), json_reason(error));
  }
}

std::string adapter_checksum(const fs::path& adapter_folder) {
  return checksum(checksum_of_file(adapter_folder / adapter_config_file) + checksum_of_file(adapter_folder / adapter_model_file));
}

bool is_choosing_entries(const fs::path& adapter_folder) {
  const fs::path weights = adapter_folder / adapter_model_file;
  if (!fs::exists(weights)) return false;
  const auto config = nlohmann::json::parse(read_file(adapter_folder / adapter_config_file), nullptr, false);
  if (!config.is_object() || config.value("peft_type", nlohmann::json()) != "COTUNE_DIFF_PRUNING") return false;
  const SafetensorsFile file(weights);
  return std::ranges::none_of(file.tensors(), [](const auto& tensor) { return tensor.first.ends_with(".values"); });
}

namespace {

std::unique_ptr<Adapter> open_fitting_adapter(const fs::path& adapter_folder, const ModelConfig& config, at::ScalarType compute,
                                              at::Device device) {
  refuse_pickled(adapter_folder);
  if (const fs::path weights = adapter_folder / adapter_model_file; !fs::exists(weights)) {
    throw_user_error("{}: cannot open: there is no such file{}", weights.string(), hub_part_hint(adapter_folder));
  }
  AdapterSetup setup = read_adapter_setup(adapter_folder, config);
  setup.optimizer = OptimizerKind::sgd;  // without momentum: no moments
  setup.compute = compute;
  setup.device = device;
  setup.factor_form = FactorForm::kept;
  std::unique_ptr<Adapter> adapter = make_adapter(config, std::move(setup));
  load_adapter(*adapter, adapter_folder);
  return adapter;
}

/// Whether an adapter's folder names a model, and not this one: neither by path nor, in the Hugging Face cache, by name.
bool names_another_model(const std::string& recorded, const fs::path& model) {
  if (recorded.empty() || model.empty()) return false;
  std::error_code unknown;
  return !fs::equivalent(model_path(recorded), model_path(model), unknown);
}

}  // namespace

std::unique_ptr<Adapter> open_adapter(const fs::path& adapter_folder, const ModelConfig& config, const fs::path& model,
                                      at::ScalarType compute, at::Device device) {
  check_adapter_checksums(adapter_folder);
  std::unique_ptr<Adapter> adapter;
  try {
    adapter = open_fitting_adapter(adapter_folder, config, compute, device);
  } catch (const UserError& error) {
    const std::string recorded = recorded_base_model(adapter_folder);
    if (!names_another_model(recorded, model)) throw;
    throw_user_error("{}: is an adapter of `{}` (base_model_name_or_path in {}), and the model that is opened is {}: {}", adapter_folder.string(),
                     recorded, adapter_config_file, model.string(), error.what());
  }
  if (adapter->selection_passes() > 0) {
    throw_user_error("{}: is of a job that was still choosing its entries: resume that run first", adapter_folder.string());
  }
  return adapter;
}

void check_initial_adapter(const JobSpec& job, const std::vector<AdaptedModule>& modules,
                           const ModelConfig& config, const fs::path& model) {
  Diagnostics mistakes;
  const OptionPlace place = job.place_of("adapter.init_from");
  try {
    const fs::path folder = find_adapter_folder(job.adapter.init_from);
    check_adapter_config_checksum(folder);
    const std::vector<std::string> differences =
        differences_of(read_adapter_setup(folder, config), job.adapter, modules);
    if (!differences.empty()) refuse_as_another(folder, fmt::format("{}", fmt::join(differences, "; ")));
    const std::unique_ptr<Adapter> adapter = open_adapter(folder, config, model, at::kFloat, at::kCPU);
    if (const std::string difference = different_entries(*adapter, job.adapter, config); !difference.empty()) {
      refuse_as_another(folder, difference);
    }
    for (const Parameter& parameter : adapter->parameters()) {
      if (at::isfinite(parameter.value).all().item<bool>()) continue;
      throw_user_error("{}: {}: holds values that are not finite", (folder / adapter_model_file).string(),
                       parameter.name);
    }
  } catch (const UserError& error) {
    mistakes.add(place.file, place.line, place.field, error.what());
  }
  mistakes.throw_if_any();
}

}  // namespace cotune
