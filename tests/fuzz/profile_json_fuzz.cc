/// Fuzz target: any bytes as profile.json give a profile that comes back from its JSON, and whose times are fitted where that is quick, or a
/// UserError.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "plan/cost/measured_times.h"
#include "schedule/profile.h"

namespace {

/// How much planned_step has to do: tokens and adapters of all layers.
double effort(const cotune::Profile& profile) {
  double effort = 0;
  for (const cotune::ProfiledShape& shape : profile.shapes) {
    for (const cotune::ProfiledJob& job : shape.jobs) {
      for (const int64_t length : job.row_lengths) effort += static_cast<double>(length);
      effort += static_cast<double>(job.projections.size()) * 100;
    }
  }
  return effort * static_cast<double>(profile.layer_count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  static const ModelConfig model = model_preset("tinyllama-1.1b");
  try {
    const Profile profile = parse_profile(std::string(reinterpret_cast<const char*>(data), size), "profile.json");
    COTUNE_CHECK(parse_profile(to_json(profile), "again.json") == profile);
    if (effort(profile) < 1e4) MeasuredTimes(profile, model, "profile.json");
  } catch (const UserError&) {
  }
  return 0;
}
