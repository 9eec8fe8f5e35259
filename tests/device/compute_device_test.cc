// Which device is chosen, and what is said where there is none: with stand-ins for driver and plugin (tests/fakes).

#include "device/compute_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fake(const std::string& name) { return std::string(COTUNE_FAKES) + "/lib" + name + ".so"; }

struct Case {
  std::string name;
  PluginSearch search;
  std::string problem;   ///< part of the message where cuda is wished for
  bool has_device = false;  ///< and so something to tell where it was not
};

std::ostream& operator<<(std::ostream& out, const Case& item) { return out << item.name; }

class WithoutDevice : public ::testing::TestWithParam<Case> {};

TEST_P(WithoutDevice, AutoTakesTheCpuAndCudaSaysWhatIsMissing) {
  const Case& c = GetParam();
  for (const char* wish : {"auto", "cpu"}) {
    const ComputeDevice chosen = choose_device(wish, "run.device", c.search);
    EXPECT_TRUE(chosen.is_cpu());
    EXPECT_TRUE(chosen.device.is_cpu());
    EXPECT_EQ(chosen.name, "cpu");
    const bool tells = c.has_device && std::string(wish) == "auto";
    EXPECT_EQ(chosen.notice.empty(), !tells) << chosen.notice;
    if (tells) {
      EXPECT_THAT(chosen.notice, AllOf(HasSubstr("the GPU is not used: "), HasSubstr(c.problem)));
    }
  }
  try {
    choose_device("cuda", "run.device", c.search);
    FAIL() << "no device, and no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("run.device: cuda: "), HasSubstr(c.problem), HasSubstr("`cpu` and `auto`")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Machines, WithoutDevice,
    ::testing::Values(
        Case{"NoDriver", {"libcotune_no_such_driver.so.1", {}}, "no NVIDIA driver is installed (libcotune_no_such_driver.so.1"},
        Case{"NotADriver", {fake("fake_plugin_working"), {}}, "is no NVIDIA driver"},
        Case{"DriverFails", {fake("fake_driver_failing"), {}}, "does not start (CUDA error 999)"},
        Case{"DriverWithoutDevice", {fake("fake_driver_without_device"), {}}, "finds no device"},
        Case{"DriverWithoutHardware", {fake("fake_driver_without_hardware"), {}}, "finds no device"},
        Case{"NoPlugin", {fake("fake_driver"), "/nowhere/libcotune_cuda.so"},
             "no CUDA plugin (/nowhere/libcotune_cuda.so is missing): run scripts/install-dependencies --cuda", true},
        Case{"PluginIsNoLibrary", {fake("fake_driver"), source_folder() / "README.md"}, "does not load (", true},
        Case{"PluginWithoutFunctions", {fake("fake_driver"), fake("fake_driver")}, "no interface", true},
        Case{"PluginOfAnotherBuild", {fake("fake_driver"), fake("fake_plugin_of_another_build")},
             "built for another cotune (another interface", true},
        Case{"PluginWithoutDevice", {fake("fake_driver"), fake("fake_plugin_without_device")}, "that CUDA 13 cannot use", true}),
    [](const auto& info) { return info.param.name; });

TEST(WithDevice, AutoAndCudaTakeAndActivateIt) {
  const PluginSearch search{fake("fake_driver"), fake("fake_plugin_working")};
  int64_t activations = 0;
  for (const char* wish : {"auto", "cuda"}) {
    const ComputeDevice chosen = choose_device(wish, "--device", search);
    ASSERT_FALSE(chosen.is_cpu());
    EXPECT_EQ(chosen.device, at::Device(at::kCUDA, 0));
    EXPECT_EQ(chosen.name, "fake device 0");
    EXPECT_EQ(chosen.notice, "");
    EXPECT_EQ(chosen.memory().allocated_bytes, ++activations);
  }
  EXPECT_TRUE(choose_device("cpu", "--device", search).is_cpu());
}

}  // namespace
}  // namespace cotune
