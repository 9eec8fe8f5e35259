#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "base/diagnostics.h"

namespace cotune {

/// The folder with adapter_config.json that a path means: an adapter folder itself; a job's folder
/// (RUN/jobs/NAME: its finished adapter, else its best checkpoint, else its latest); a run's folder with
/// one job; or, where no such path exists, the adapter's name in the Hugging Face cache (jobs/hub_cache.h). Throws UserError that lists the jobs of a
/// run with several, and says what is accepted for anything else.
std::filesystem::path find_adapter_folder(const std::filesystem::path& path);

struct JobAdapter {
  std::string job;  ///< "": the path is of one adapter
  std::filesystem::path folder;
};
/// The same, and of a run's folder with several jobs the adapters of all that have one, in the run's order (its run.json; by name where
/// there is none). Throws UserError for a run.json that cannot be read.
std::vector<JobAdapter> find_adapter_folders(const std::filesystem::path& path);

/// `base_model_name_or_path` of an adapter folder, a Hugging Face name with `@revision` where the folder says one; "" where it says
/// nothing. Throws UserError, also where a checkpoint's is damaged (folder_checksums.h).
std::string recorded_base_model(const std::filesystem::path& adapter_folder);

/// Of the two files of an adapter's folder: equal where a job that starts from it starts equally. 32 hexadecimal digits. Throws UserError
/// naming a file that cannot be read.
std::string adapter_checksum(const std::filesystem::path& adapter_folder);

/// Whether it is a checkpoint of a job that was still choosing its entries (diff pruning), which open_adapter() refuses. Throws UserError
/// for a file that is damaged.
bool is_choosing_entries(const std::filesystem::path& adapter_folder);

/// The adapter for use without training: no optimizer state. model: the path of the one that `config` is of, for messages; empty: it
/// has none. Throws UserError as read_adapter_setup and load_adapter do, with the model that the adapter was made for where its folder
/// names another; for a checkpoint that is damaged, and for one from before the end of a job's selection.
std::unique_ptr<Adapter> open_adapter(const std::filesystem::path& adapter_folder, const ModelConfig& config, const std::filesystem::path& model,
                                      at::ScalarType compute, at::Device device);

/// Checks that a job can start from the adapter that its init_from means: the files are read, and every value
/// must be a finite number. modules: the job's. Throws UserError that names the place where init_from was
/// given, and lists every difference: method, modules, ranks, alphas, scale (rsLoRA), activation; where there is none of these, numbers of
/// entries that the job's density does not keep. model: as of open_adapter.
void check_initial_adapter(const JobSpec& job, const std::vector<AdaptedModule>& modules,
                           const ModelConfig& config, const std::filesystem::path& model);

}  // namespace cotune
