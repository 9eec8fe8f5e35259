#include "jobs/job_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cotune {
namespace {

std::vector<std::string> numbered(const std::string& name, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("{}-{}", name, i));
  return names;
}

TEST(JobList, NamesAFewJobsInTheirOrder) {
  EXPECT_EQ(job_list({}), "");
  EXPECT_EQ(job_list(numbered("b", 6), {}, "+"), "b-0+b-1+b-2+b-3+b-4+b-5");
}

TEST(JobList, SaysHowManyAreLeftOut) { EXPECT_EQ(job_list(numbered("b", 7)), "b-0, b-1, b-2, b-3, b-4, 2 more"); }

TEST(JobList, TakesTheCandidatesOfASweepTogether) {
  std::vector<JobSpec> jobs;
  std::vector<std::string> names{"first"};
  for (const std::string& name : numbered("sql", 192)) {
    names.push_back(name);
    jobs.emplace_back().name = name;
    jobs.back().sweep.of = "sql";
  }
  for (const std::string& name : numbered("few", 3)) {
    names.push_back(name);
    jobs.emplace_back().name = name;
    jobs.back().sweep.of = "few";
  }
  const SweepOfJob sweeps = sweeps_of(jobs);
  EXPECT_EQ(sweeps.size(), 195U);
  EXPECT_EQ(job_list(names, sweeps), "first, sql (192 candidates), few-0, few-1, few-2");
  for (const std::string& name : numbered("b", 4)) names.insert(names.begin(), name);
  EXPECT_EQ(job_list(names, sweeps), "b-3, b-2, b-1, b-0, first, 195 more");
}

}  // namespace
}  // namespace cotune
