/// Fuzz target (libFuzzer's entry point): any bytes as a jobs file give a configuration that round-trips through
/// to_yaml, or a UserError; then the first job's target modules are resolved.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "jobs/jobs_file.h"
#include "jobs/target_modules.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const JobsFile file = parse_jobs_file(text, "fuzz.yaml", "/folder", {}, Purpose::plan);
    COTUNE_CHECK(parse_jobs_file(to_yaml(file), "effective.yaml", "/other", {}, Purpose::plan) == file);
    resolve_target_modules(file.jobs.front(), 12);
  } catch (const UserError&) {
  }
  try {
    const std::string small = "{cotune: 1, model: {path: m}, jobs: [{name: a, data: {train: t}}]}";
    parse_jobs_file(small, "fuzz.yaml", "/folder", {std::string(text)}, Purpose::train);
  } catch (const UserError&) {
  }
  return 0;
}
