#include "engine/test_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "device/compute_device.h"

namespace cotune::testing {
namespace {

/// Chooses before the first test: torch must not be asked for CUDA before the plugin is there.
class ChosenAtStart : public ::testing::Environment {
 public:
  void SetUp() override { test_device(); }
};

[[maybe_unused]] const auto* const chosen_at_start = ::testing::AddGlobalTestEnvironment(new ChosenAtStart);

}  // namespace

at::Device test_device() {
  static const at::Device device = [] {
    const char* name = std::getenv("COTUNE_TEST_DEVICE");
    if (name == nullptr) return at::Device(at::kCPU);
    try {
      return choose_device(name, "COTUNE_TEST_DEVICE").device;
    } catch (const UserError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(2);
    }
  }();
  return device;
}

}  // namespace cotune::testing
