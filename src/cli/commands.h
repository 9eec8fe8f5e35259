#pragma once

namespace CLI {
class App;
}

namespace cotune {

/// The whole program: parses the command line, runs one subcommand, and turns failures into messages and exit codes:
/// 0 done; 1 the machine or a job failed; 2 the user's mistake; 3 a bug in cotune; 130 stopped by a signal after saving.
int run_command_line(int argc, char** argv);

/// What the subcommand that ran wants the program to exit with.
int& exit_code();

/// One file per subcommand: each adds itself to the app with its options and its callback.
void add_train_command(CLI::App& app);
void add_job_command(CLI::App& app);
void add_status_command(CLI::App& app);
void add_watch_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_cache_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_evaluate_command(CLI::App& app);
void add_merge_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_simulate_command(CLI::App& app);
void add_profile_command(CLI::App& app);
void add_completion_command(CLI::App& app);
void add_manual_command(CLI::App& app);

}  // namespace cotune
