#include "cli/adapter_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "adapter/adapter_file.h"
#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

bool holds_adapter(const fs::path& folder) { return fs::exists(folder / adapter_config_file); }

std::optional<fs::path> adapter_of_job(const fs::path& job) {
  if (holds_adapter(job / "adapter")) return job / "adapter";
  for (const auto& checkpoint : {best_checkpoint(job), latest_checkpoint(job)}) {
    if (checkpoint && holds_adapter(*checkpoint)) return checkpoint;
  }
  return std::nullopt;
}

}  // namespace

fs::path find_adapter_folder(const fs::path& path) {
  if (!fs::is_directory(path)) {
    throw_user_error("{}: {}; a folder with {} is needed", path.string(),
                     fs::exists(path) ? "is no folder" : "does not exist", adapter_config_file);
  }
  if (holds_adapter(path)) return path;
  if (const auto adapter = adapter_of_job(path)) return *adapter;
  std::vector<fs::path> jobs, adapters;
  if (fs::is_directory(path / "jobs")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path / "jobs")) jobs.push_back(entry.path());
    std::sort(jobs.begin(), jobs.end());
    for (const fs::path& job : jobs) {
      if (const auto adapter = adapter_of_job(job)) adapters.push_back(*adapter);
    }
  }
  if (adapters.size() == 1) return adapters.front();
  if (adapters.empty()) {
    throw_user_error("{}: holds no adapter: accepted are a folder with {}, a job's folder (RUN/jobs/NAME) and a run's "
                     "folder with one job",
                     path.string(), adapter_config_file);
  }
  std::string list;
  for (const fs::path& job : jobs) {
    if (adapter_of_job(job)) list += "\n  " + job.string();
  }
  throw_user_error("{}: holds the adapters of {} jobs: choose one:{}", path.string(), adapters.size(), list);
}

std::string recorded_base_model(const fs::path& adapter_folder) {
  const fs::path file = adapter_folder / adapter_config_file;
  try {
    const auto config = nlohmann::json::parse(read_file(file));
    const auto found = config.find("base_model_name_or_path");
    return found == config.end() || found->is_null() ? std::string() : found->get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{}: is not an adapter configuration: {}", file.string(), error.what());
  }
}

std::unique_ptr<Adapter> open_adapter(const fs::path& adapter_folder, const ModelConfig& config,
                                      at::ScalarType compute, at::Device device) {
  AdapterSetup setup = read_adapter_setup(adapter_folder, config);
  setup.optimizer = OptimizerKind::sgd;  // without momentum: no moments
  setup.compute = compute;
  setup.device = device;
  std::unique_ptr<Adapter> adapter = make_adapter(config, std::move(setup));
  load_adapter(*adapter, adapter_folder);
  return adapter;
}

}  // namespace cotune
