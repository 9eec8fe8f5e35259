#include "cli/run/overwritten_inputs.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/path_passes_through.h"
#include "jobs/emulated_file.h"
#include "train/adapter_folder.h"
#include "train/run_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

class OverwrittenInputs {
 public:
  /// output: without links.
  OverwrittenInputs(fs::path output, Diagnostics& mistakes)
      : output_(std::move(output)), removed_(RunFolder::removed_by_overwrite(output_)), mistakes_(mistakes) {}

  void check(const fs::path& input, const OptionPlace& place) {
    if (input.empty() || !is_lost(input)) return;
    mistakes_.add(place.file, place.line, place.field,
                  fmt::format("{} lies in the earlier run in {}, which --overwrite would remove: give another output folder (run.output_dir or "
                              "--output-dir), or copy it elsewhere first",
                              input.string(), output_.string()));
  }

 private:
  /// It, or a file of the folder that it is, where that is a link.
  bool is_lost(const fs::path& input) const {
    if (path_passes_through(input, removed_)) return true;
    std::error_code unknown;
    for (const fs::directory_entry& entry : fs::directory_iterator(input, unknown)) {
      if (entry.is_symlink(unknown) && entry.is_regular_file(unknown) && path_passes_through(entry.path(), removed_)) return true;
    }
    return false;
  }

  fs::path output_;
  std::vector<fs::path> removed_;
  Diagnostics& mistakes_;
};

/// Of a run's folder, its job's. Where none is found, which those who read it tell: the path itself.
fs::path adapter_of(const std::string& init_from) {
  if (init_from.empty()) return {};
  try {
    return find_adapter_folder(init_from);
  } catch (const UserError&) {
    return init_from;
  }
}

}  // namespace

void check_overwritten_inputs(const JobsFileReading& reading, const fs::path& jobs_file, const std::vector<std::pair<const char*, fs::path>>& files,
                              Diagnostics& mistakes) {
  std::error_code unknown;
  fs::path output = fs::canonical(reading.jobs_file.run.output, unknown);
  if (unknown) return;  // there is nothing to remove
  OverwrittenInputs inputs(std::move(output), mistakes);
  inputs.check(jobs_file, {.file = jobs_file.string()});
  for (const auto& [option, file] : files) inputs.check(file, {.file = option});
  const auto device = reading.run_places.find("run.device");
  if (device != reading.run_places.end()) inputs.check(emulated_file(reading.jobs_file.run.device), device->second);
  const auto check_model = [&](const char* option, const std::string& path) {
    const auto place = reading.model_places.find(option);
    if (place != reading.model_places.end()) inputs.check(path, place->second);
  };
  check_model("model.path", reading.jobs_file.model.path);
  check_model("model.config", reading.jobs_file.model.config);
  for (const JobSpec& job : reading.jobs_file.jobs) {
    inputs.check(adapter_of(job.adapter.init_from), job.place_of("adapter.init_from"));
    for (const TrainFile& file : job.data.train) inputs.check(file.path, job.place_of("data.train"));
    inputs.check(job.data.eval, job.place_of("data.eval"));
    inputs.check(job.data.lengths.histogram, job.place_of("data.lengths"));
    inputs.check(job.data.chat_template, job.place_of("data.chat_template"));
  }
}

}  // namespace cotune
