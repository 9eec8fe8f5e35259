/// The commands that need the engine or the planner; those about runs are in console/run_commands.h.
#pragma once

namespace CLI {
class App;
}

namespace cotune {

void add_train_command(CLI::App& app);
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
