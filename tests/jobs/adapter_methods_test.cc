#include "jobs/adapter_methods.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(AdapterMethods, KeptEntriesAreTheShareRoundedUpAndAtLeastOne) {
  EXPECT_EQ(kept_entries(0.005, 1000), 5);
  EXPECT_EQ(kept_entries(0.0051, 1000), 6);
  EXPECT_EQ(kept_entries(1e-12, 1000), 1);
  EXPECT_EQ(kept_entries(1, 1000), 1000);
}

TEST(AdapterMethods, OnlyDiffPruningSelectsEntries) {
  EXPECT_FALSE(selects_entries(AdapterMethod::lora));
  EXPECT_FALSE(selects_entries(AdapterMethod::bottleneck));
  EXPECT_TRUE(selects_entries(AdapterMethod::diff_pruning));
}

TEST(AdapterMethods, AnAdapterMadeUnderAnotherMeaningIsNamed) {
  AdapterSpec adapter, job;
  EXPECT_EQ(different_meaning(adapter, job), "");
  adapter.use_rslora = true;
  EXPECT_EQ(different_meaning(adapter, job), "its use_rslora is true, not false");
  adapter.method = job.method = AdapterMethod::bottleneck;
  EXPECT_EQ(different_meaning(adapter, job), "");
  job.activation = Activation::gelu;
  EXPECT_EQ(different_meaning(adapter, job), "its activation is relu, not gelu");
}

}  // namespace
}  // namespace cotune
