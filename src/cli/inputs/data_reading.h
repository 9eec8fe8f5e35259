#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "data/dataset_cache.h"
#include "jobs/job.h"

namespace cotune {

/// How a command reads the data of jobs: through the folder of tokenized data that run.data_cache names, with run.threads, and with
/// its progress on standard error.
class DataReading {
 public:
  explicit DataReading(const RunSpec& run);

  /// The same for a thread beside a run: alone, and silent.
  DataReading in_background() const;

  JobData read(const DataRequest& request, Diagnostics& mistakes) const;

 private:
  std::shared_ptr<DatasetCache> cache_;  ///< null: none
  int threads_ = 1;
  bool is_silent_ = false;
};

/// `data of 2 of 3 jobs were tokenized before: FOLDER`; empty where none were.
std::string reuse_text(const std::vector<JobData>& data);

/// The folder that run.data_cache means; empty: none.
std::filesystem::path data_cache_folder(const std::string& data_cache);

}  // namespace cotune
