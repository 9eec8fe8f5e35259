#include "train/lost_checkpoints.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "train/checkpoint.h"
#include "train/metrics_file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// Whether a job's folder alone tells of checkpoints that were complete: these names move with `latest` or after it, and a folder is whole before
/// the first `latest` of a job where a kill came between them.
bool has_saved(const fs::path& job_folder) {
  std::error_code unknown;
  return fs::exists(job_folder / "previous", unknown) || fs::exists(job_folder / "best", unknown) || whole_checkpoints(job_folder).size() > 1;
}

}  // namespace

void check_lost_checkpoints(const fs::path& run, const std::vector<std::string>& jobs, Diagnostics& mistakes) {
  std::optional<std::map<std::string, NotedProgress>> noted;
  for (const std::string& job : jobs) {
    const fs::path folder = run / "jobs" / job, latest = folder / "latest";
    std::error_code unknown;
    if (fs::exists(latest, unknown)) continue;
    if (!noted) noted = noted_progress(run / "metrics.jsonl");
    const std::optional<int64_t> step = (*noted)[job].newest_checkpoint;
    if (!step && !has_saved(folder)) continue;
    mistakes.add("", 0, "",
                 fmt::format("{}: is missing, though job `{}` has saved checkpoints{}{}", latest.string(), job,
                             step ? fmt::format(" (metrics.jsonl tells of one of step {})", *step) : "", way_out_of_damage(folder)));
  }
}

}  // namespace cotune
