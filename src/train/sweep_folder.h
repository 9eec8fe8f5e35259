/// What a run leaves of its sweeps: RUN/sweeps/NAME with the best candidate's adapter and sweep.json.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/run_observer.h"
#include "train/sweeps.h"

namespace cotune {

/// A sweep's candidates as far as they have come.
struct SweepStanding {
  struct Row {
    const TrainingJob* job = nullptr;
    std::vector<RungRecord> rungs;
    int64_t eval_step = -1;       ///< of the adapter that it leaves or would leave now; -1: it was not evaluated after a step
    double loss = std::numeric_limits<double>::quiet_NaN(), accuracy = std::numeric_limits<double>::quiet_NaN();
    bool has_adapter = false;     ///< that it has left
    int64_t rank = 0;             ///< among those that have left one; 0: it has not
  };
  std::string name;
  SweepSpec rules;
  std::vector<std::string> options;  ///< that differ or were tried, by path, in the order of the jobs file
  std::vector<Row> rows;             ///< best first: those with a rank, then by loss, then without
  const Row* best() const { return !rows.empty() && rows.front().rank == 1 ? &rows.front() : nullptr; }
};

std::vector<SweepStanding> standings_of(const Sweeps& sweeps);

/// The value of an option in a candidate, as YAML; "" where the sweep has not set it there.
std::string swept_value(const JobSpec& job, const std::string& option);

nlohmann::ordered_json to_json(const SweepStanding& standing);

/// The rungs in RUN/sweeps/*/sweep.json. Throws UserError naming a damaged file.
RungRecords read_rung_records(const std::filesystem::path& run_folder);

/// Keeps RUN/sweeps up to date: a sweep's sweep.json whenever a rung was judged or a candidate has ended, and the adapter of the best
/// candidate that has left one. Throws SystemError.
class SweepFolder : public RunObserver {
 public:
  /// The jobs file that trains a candidate again, alone.
  using CandidateConfiguration = std::function<std::string(const TrainingJob&)>;

  /// folder: RUN/sweeps, which is made when there is something to write.
  SweepFolder(std::filesystem::path folder, const Sweeps& sweeps, CandidateConfiguration configuration)
      : folder_(std::move(folder)), sweeps_(sweeps), configuration_(std::move(configuration)) {}
  void on_sweep(const Sweeps& sweeps, const std::string& name) override;
  void on_run_ended(const RunSummary&) override;

 private:
  std::filesystem::path folder_;
  const Sweeps& sweeps_;
  CandidateConfiguration configuration_;
  std::map<std::string, std::string> exported_;  ///< by sweep, whose adapter its folder holds, as far as this run knows
};

}  // namespace cotune
