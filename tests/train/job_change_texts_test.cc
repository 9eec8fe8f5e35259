#include "train/job_change_texts.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

using Texts = std::vector<std::string>;

TEST(JobChangeTexts, NameFewJobsAndCountMany) {
  JobChangeTexts changes;
  EXPECT_EQ(changes.texts(), Texts{});
  changes.add("a", "finished");
  changes.add("b", "joins");
  changes.add("c", "finished");
  EXPECT_EQ(changes.texts(), (Texts{"`a` finished", "`c` finished", "`b` joins"}));
  for (const char* name : {"d", "e", "f"}) changes.add(name, "joins");
  EXPECT_EQ(changes.texts(), (Texts{"`a` finished", "`c` finished", "4 jobs join"}));
}

}  // namespace
}  // namespace cotune
