/// Fuzz target: any bytes as plan.json give a plan that comes back from its JSON, and that a run follows or refuses, or a UserError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/diagnostics.h"
#include "base/error.h"
#include "plan/followed_plan.h"
#include "plan/plan_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  try {
    const Plan plan = plan_from_json({reinterpret_cast<const char*>(data), size}, "plan.json");
    COTUNE_CHECK(plan_from_json(to_json(plan).dump(), "again.json") == plan);
    COTUNE_CHECK(!replicas_text(plan).empty());
    Diagnostics mistakes;
    follow(plan, {.jobs = plan.jobs, .model = nullptr, .dtype = plan.dtype}, "plan.json", mistakes);
  } catch (const UserError&) {
  }
  return 0;
}
