#include "support/test_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "support/guarded_device.h"

namespace cotune::testing {
namespace {

/// Chooses before the first test: torch must not be asked for CUDA before the plugin is there.
class ChosenAtStart : public ::testing::Environment {
 public:
  void SetUp() override { test_device(); }
};

[[maybe_unused]] const auto* const chosen_at_start = ::testing::AddGlobalTestEnvironment(new ChosenAtStart);

}  // namespace

const ComputeDevice& test_compute_device() {
  static const ComputeDevice device = [] {
    const char* name = std::getenv("COTUNE_TEST_DEVICE");
    if (name == nullptr) return ComputeDevice();
    if (name == std::string("guarded")) return guarded_device();
    try {
      return choose_device(name, "COTUNE_TEST_DEVICE");
    } catch (const UserError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(2);
    }
  }();
  return device;
}

}  // namespace cotune::testing
