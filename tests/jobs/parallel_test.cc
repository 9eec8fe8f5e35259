#include "jobs/parallel.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "jobs/jobs_file.h"

namespace cotune {
namespace {

Parallel one(int64_t pipeline, int64_t tensor) { return {.replicas = {{.pipeline = pipeline, .tensor = tensor}}}; }

TEST(ParallelDegrees, AreAnyInAnyOrder) {
  EXPECT_EQ(parse_parallel("pp=2,tp=3"), one(2, 3));
  EXPECT_EQ(parse_parallel("tp=3,pp=2"), one(2, 3));
  EXPECT_EQ(parse_parallel("tp=4"), one(1, 4));
  EXPECT_EQ(parse_parallel("pp=64"), one(64, 1));
  EXPECT_EQ(parse_parallel("seq,tp=2,pp=3"), (Parallel{.replicas = {{.pipeline = 3, .tensor = 2, .is_sequence_parallel = true}}}));
  EXPECT_EQ(parse_parallel("vp=3,pp=2"), (Parallel{.replicas = {{.pipeline = 2, .stages_per_rank = 3}}}));
  for (const char* wrong : {"", "2", "pp", "pp=", "pp=0", "pp=-1", "pp=2,", ",tp=2", "pp=2,pp=2", "pp=2 ,tp=2", "pp=2,tp=2,tp=2",
                            "tp=65", "pp=8,tp=9", "tp=2x", "tp=99999999999999999999", "dp=2,pp=33", "dp=65", "len=0", "len512", "dp=2,len=512",
                            "vp=2", "seq", "pp=2,seq", "tp=1,seq", "tp=2,seq,seq", "tp=2,seq=1", "tp=2+seq", "shard", "dp=1,shard",
                            "dp=2,shard,shard", "dp=2,shard=1", "pp=2,vp=0", "dp=2+", "+tp=2", "tp=2++tp=2", "dp=1+dp=64"}) {
    EXPECT_FALSE(parse_parallel(wrong)) << wrong;
  }
}

TEST(ParallelDegrees, AreThoseOfEveryReplica) {
  EXPECT_EQ(parse_parallel("dp=2"), (Parallel{.replicas = {{}, {}}}));
  EXPECT_EQ(parse_parallel("tp=2,dp=2,pp=3"), (Parallel{.replicas = {{3, 2}, {3, 2}}}));
  const Parallel unlike = *parse_parallel("dp=2,len=512+tp=4+pp=2,tp=2");
  EXPECT_EQ(unlike, (Parallel{.replicas = {{1, 1, 512}, {1, 1, 512}, {1, 4}, {2, 2}}}));
  EXPECT_EQ(unlike.ranks(), 10);
  EXPECT_EQ(unlike.stages(), 2);
  EXPECT_EQ(unlike.tensor(), (std::vector<int64_t>{1, 2, 4}));
  EXPECT_TRUE(unlike.divides_layers());
  EXPECT_FALSE(parse_parallel("dp=3+pp=2")->divides_layers());
  EXPECT_TRUE(parse_parallel("dp=1+tp=2,seq")->is_sequence_parallel());
  EXPECT_FALSE(unlike.is_sequence_parallel());
}

JobsFile read(const std::string& run) {
  return parse_jobs_file("cotune: 1\nmodel: {path: /m}\nrun: {" + run + "}\njobs: [{name: a, data: {train: t}}]\n", "j", "/f", {},
                         Purpose::train);
}

TEST(ParallelDegrees, AreReadAsTheyAreWritten) {
  for (const char* text : {"pp=2,tp=3", "dp=2,len=512+tp=4+pp=2,tp=2,vp=3", "dp=3", "pp=2,tp=2,seq", "shard,dp=3,tp=2,seq+dp=2,pp=2,shard,len=9"}) {
    const Parallel parallel = *parse_parallel(text);
    EXPECT_EQ(parse_parallel(to_string(parallel)), parallel) << to_string(parallel);
  }
}

TEST(ParallelDegrees, SetTheNumberOfRanks) {
  EXPECT_EQ(parallel_of(read("").run), one(1, 1));
  EXPECT_EQ(parallel_of(read("ranks: 3").run), one(3, 1));
  EXPECT_EQ(read("parallel: 'pp=2,tp=2'").run.ranks, 4);
  EXPECT_EQ(read("parallel: 'dp=2+tp=2', dispatch: even").run.ranks, 4);
  EXPECT_EQ(read("ranks: 4, parallel: 'pp=2,tp=2', pipeline_order: gpipe").run.ranks, 4);
  const JobsFile file = read("parallel: 'tp=2', pipeline_order: gpipe");
  EXPECT_EQ(parallel_of(file.run), one(1, 2));
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
