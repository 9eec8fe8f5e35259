// What libcotune_commands.so exports: the program with all its commands, for console/main.cc.
#include <array>
#include <chrono>

#include "cli/commands.h"
#include "cli/manual/build_facts.h"
#include "console/command_line.h"
#include "console/run_commands.h"

extern "C" __attribute__((visibility("default"))) int cotune_run_command_line(int argc, char** argv, std::chrono::steady_clock::time_point start) {
  using namespace cotune;
  program_start() = start;
  constexpr std::array<AddCommand, 16> commands{
      add_train_command,    add_job_command,   add_status_command,   add_watch_command, add_report_command, add_data_command,
      add_cache_command,    add_generate_command, add_evaluate_command, add_merge_command, add_export_command, add_plan_command,
      add_simulate_command, add_profile_command,  add_completion_command, add_manual_command};
  return run_command_line(commands, build_facts, argc, argv);
}
