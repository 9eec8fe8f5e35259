#pragma once

#include <filesystem>
#include <vector>

#include "train/run_summary.h"

namespace cotune {

class RunPrediction;
struct SweepStanding;

/// What a run has done, for people, on standard output: speed, memory by kind, time by operator, and per job its losses,
/// its tokens (real, labelled, padded) and where its adapter is; then the candidates of each sweep, best first.
/// Speed and memory with what was predicted.
void print_run_report(const RunSummary& summary, const std::vector<const TrainingJob*>& jobs,
                      const std::vector<SweepStanding>& sweeps, const std::filesystem::path& run_folder, const RunPrediction& prediction);

}  // namespace cotune
