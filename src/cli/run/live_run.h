#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "watch/live_view.h"

namespace cotune {

class ProgressLines;
class RunControl;

/// The run of this process on its terminal, with keys; lines are shown below it while it is there, and blocks of steps are left out.
/// Both must outlive it. saves: whether the run does before it stops, which one of the keys says.
std::unique_ptr<LiveView> live_view_of_this_run(RunControl& control, ProgressLines& lines, bool saves);

/// By job, the losses of its steps so far, from the folder of a run that is resumed.
std::map<std::string, std::vector<double>> logged_losses(const std::filesystem::path& run);

}  // namespace cotune
