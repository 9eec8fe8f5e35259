#include "jobs/job.h"

namespace cotune {

std::string names_of_train_files(const DataSpec& data) {
  std::string names;
  for (const TrainFile& file : data.train) names += (names.empty() ? "" : ", ") + file.path;
  return names;
}

}  // namespace cotune
