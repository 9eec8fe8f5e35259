#include "cli/run/live_run.h"

#include "cli/reporting/progress.h"
#include "cli/run/run_control.h"
#include "console/output.h"
#include "watch/run_log.h"

namespace cotune {

std::unique_ptr<LiveView> live_view_of_this_run(RunControl& control, ProgressLines& lines, bool saves) {
  LiveSource source{.view = [&control] {
                      RunView view = control.view();
                      view.events.clear();  // they come as lines
                      return view;
                    },
                    .ask = [&control](ControlRequest request, auto answer) { control.take(std::move(request), std::move(answer)); }};
  auto view = std::make_unique<LiveView>(std::move(source), "lines instead", saves ? "saves and stops" : "stops",
                                         [](const std::string& line) { print_line(line); });
  lines.print_with([shown = view.get()](const std::string& line) { shown->say(line); }, [shown = view.get()] { return !shown->is_open(); });
  return view;
}

std::map<std::string, std::vector<double>> logged_losses(const std::filesystem::path& run) {
  std::map<std::string, std::vector<double>> losses;
  for (const LoggedJob& job : read_run_log(run).jobs) {
    for (const LoggedStep& step : job.made) losses[job.spec.name].push_back(step.loss);
  }
  return losses;
}

}  // namespace cotune
