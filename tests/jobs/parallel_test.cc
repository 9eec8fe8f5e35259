#include "jobs/parallel.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "jobs/jobs_file.h"

namespace cotune {
namespace {

TEST(ParallelDegrees, AreOneOrBothInAnyOrder) {
  EXPECT_EQ(parse_parallel("pp=2,tp=3"), (Parallel{2, 3}));
  EXPECT_EQ(parse_parallel("tp=3,pp=2"), (Parallel{2, 3}));
  EXPECT_EQ(parse_parallel("tp=4"), (Parallel{1, 4}));
  EXPECT_EQ(parse_parallel("pp=64"), (Parallel{64, 1}));
  for (const char* wrong : {"", "2", "pp", "pp=", "pp=0", "pp=-1", "pp=2,", ",tp=2", "pp=2,pp=2", "dp=2", "pp=2 ,tp=2", "pp=2,tp=2,tp=2",
                            "tp=65", "pp=8,tp=9", "tp=2x", "tp=99999999999999999999"}) {
    EXPECT_FALSE(parse_parallel(wrong)) << wrong;
  }
}

JobsFile read(const std::string& run) {
  return parse_jobs_file("cotune: 1\nmodel: {path: /m}\nrun: {" + run + "}\njobs: [{name: a, data: {train: t}}]\n", "j", "/f", {},
                         Purpose::train);
}

TEST(ParallelDegrees, SetTheNumberOfRanks) {
  EXPECT_EQ(parallel_of(read("").run), (Parallel{1, 1}));
  EXPECT_EQ(parallel_of(read("ranks: 3").run), (Parallel{3, 1}));
  EXPECT_EQ(read("parallel: 'pp=2,tp=2'").run.ranks, 4);
  EXPECT_EQ(read("ranks: 4, parallel: 'pp=2,tp=2', pipeline_order: gpipe").run.ranks, 4);
  const JobsFile file = read("parallel: 'tp=2', pipeline_order: gpipe");
  EXPECT_EQ(parallel_of(file.run), (Parallel{1, 2}));
  EXPECT_EQ(parse_jobs_file(to_yaml(file), "again", "/f", {}, Purpose::train).run, file.run);
  for (const char* wrong : {"ranks: 2, parallel: 'pp=2,tp=2'", "ranks: 1, parallel: 'tp=2'"}) {
    try {
      read(wrong);
      FAIL() << wrong;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("run.parallel: `"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("but run.ranks is"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cotune
