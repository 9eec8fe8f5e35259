/// The commands about runs that others train, which need no engine: they start in a hundredth of a second, and may be asked every second
/// beside a run.
#pragma once

namespace CLI {
class App;
}

namespace cotune {

void add_job_command(CLI::App& app);
void add_status_command(CLI::App& app);
void add_watch_command(CLI::App& app);
void add_report_command(CLI::App& app);

}  // namespace cotune
