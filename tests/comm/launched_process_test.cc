#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/diagnostics.h"
#include "comm/launcher.h"
#include "comm/own_address.h"

namespace cotune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Environment torchrun = {
    {"RANK", "3"},    {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"},
    {"HOME", "/root"}};
const Environment slurm = {{"SLURM_JOB_ID", "123456"}, {"SLURM_STEP_ID", "2"},
                           {"SLURM_PROCID", "5"},      {"SLURM_NTASKS", "6"},
                           {"SLURM_LOCALID", "0"},     {"SLURM_JOB_NODELIST", "gpu[07-09,11],login"}};

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::vector<std::string> mistakes_in(const Environment& environment) {
  std::vector<std::string> texts;
  try {
    launched_process(environment);
  } catch (const UserMistakes& mistakes) {
    for (const Diagnostic& item : mistakes.items()) texts.push_back(item.to_string());
  }
  return texts;
}

TEST(LaunchedProcess, IsNoneWithoutALauncher) {
  EXPECT_EQ(launched_process({}), std::nullopt);
  EXPECT_EQ(launched_process({{"MASTER_ADDR", "a"}, {"LOCAL_RANK", "x"}, {"PATH", "/bin"}}), std::nullopt);
}

TEST(LaunchedProcess, OfABatchScriptWithoutSrunIsAlone) {
  EXPECT_EQ(launched_process(without(slurm, "SLURM_STEP_ID")), std::nullopt);
}

TEST(LaunchedProcess, ReadsTorchrunsVariables) {
  LaunchedProcess expected{
      .launcher = "torchrun", .rank = 3, .size = 8, .local_rank = 1, .master_host = "node7", .master_port = 29500};
  EXPECT_EQ(launched_process(torchrun), expected);
  expected.launcher_listens = true;
  expected.restart = 2;
  const auto elastic = with(with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RESTART_COUNT", "2");
  EXPECT_EQ(launched_process(elastic), expected);
  EXPECT_FALSE(launched_process(with(elastic, "TORCHELASTIC_USE_AGENT_STORE", "False"))->launcher_listens);
}

TEST(Launch, OfTorchrunIsNamedByItsIdOrElseByTheAgent) {
  EXPECT_EQ(launch_of(torchrun, "agent 7"), (Launching{"torchrun agent 7", 0}));
  EXPECT_EQ(launch_of(with(with(torchrun, "TORCHELASTIC_RUN_ID", "none"), "TORCHELASTIC_RESTART_COUNT", "2"), "agent 7"), (Launching{"torchrun agent 7", 2}));
  EXPECT_EQ(launch_of(with(torchrun, "TORCHELASTIC_RUN_ID", "x"), "agent 7"), (Launching{"torchrun x", 0}));
}

TEST(Launch, OfSlurmIsItsJobWithOrWithoutSrun) {
  EXPECT_EQ(launch_of(with(slurm, "SLURM_RESTART_COUNT", "3"), "shell"), (Launching{"Slurm job 123456, step 2", 3}));
  EXPECT_EQ(launch_of(with(without(slurm, "SLURM_STEP_ID"), "SLURM_RESTART_COUNT", "1"), "shell"), (Launching{"Slurm job 123456, step none", 1}));
  EXPECT_EQ(launch_of({}, "shell"), Launching{});
}

TEST(Launch, ProcessesAreNamedWithTheirStart) {
  EXPECT_EQ(name_of_process(::getpid()), name_of_process(::getpid()));
  EXPECT_NE(name_of_process(::getpid()), name_of_process(1));
  EXPECT_NE(name_of_process(::getpid()).find("process " + std::to_string(::getpid()) + " of "), std::string::npos);
  EXPECT_EQ(name_of_process(::getpid()).find("since ?"), std::string::npos);
}

TEST(LaunchedProcess, ReadsSlurmsVariables) {
  LaunchedProcess expected{.launcher = "Slurm",
                           .rank = 5,
                           .size = 6,
                           .local_rank = 0,
                           .master_host = "gpu07",
                           .master_port = 12000 + (123456 + 2 * 1009) % 20000};
  EXPECT_EQ(launched_process(slurm), expected);
  expected.size = 7;
  EXPECT_EQ(launched_process(with(slurm, "SLURM_STEP_NUM_TASKS", "7")), expected);
  expected.master_host = "login";
  EXPECT_EQ(launched_process(with(with(slurm, "SLURM_STEP_NUM_TASKS", "7"), "SLURM_STEP_NODELIST", "login")), expected);
  expected.master_host = "10.1.2.3";
  expected.master_port = 4000;
  const auto chosen = with(with(slurm, "MASTER_ADDR", "10.1.2.3"), "MASTER_PORT", "4000");
  EXPECT_EQ(launched_process(with(chosen, "SLURM_STEP_NUM_TASKS", "7")), expected);
}

TEST(LaunchedProcess, PrefersTorchrunInsideATaskOfSlurm) {
  Environment both = slurm;
  both.insert(torchrun.begin(), torchrun.end());
  EXPECT_EQ(launched_process(both)->launcher, "torchrun");
}

TEST(LaunchedProcess, TakesTheFirstHostOfAnyListOfSlurm) {
  const std::map<std::string, std::string> hosts = {{"node", "node"},
                                                    {"a,b", "a"},
                                                    {"n[3]", "n3"},
                                                    {"n[001-128]", "n001"},
                                                    {"r[2,4]n[05-06]x.lan,z", "r2n05x.lan"},
                                                    {"my-host_1", "my-host_1"}};
  for (const auto& [list, host] : hosts) {
    EXPECT_EQ(launched_process(with(slurm, "SLURM_JOB_NODELIST", list))->master_host, host);
  }
  for (const std::string list : {"n[1-2", "n[]", "n[a]", ",b", "n]", "a b", "[-3]"}) {
    EXPECT_THAT(
        mistakes_in(with(slurm, "SLURM_JOB_NODELIST", list)),
        ElementsAre("environment: SLURM_JOB_NODELIST: must list hosts as in node[01-04,07],other, got '" + list + "'"));
  }
}

TEST(LaunchedProcess, NamesEveryMistakeInTorchrunsVariables) {
  const std::string set = "; torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT";
  for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(mistakes_in(without(torchrun, name)), ElementsAre("environment: " + name + ": is missing" + set));
    EXPECT_THAT(mistakes_in(with(torchrun, name, "")), ElementsAre("environment: " + name + ": is empty" + set));
  }
  for (const std::string value : {"8", "-1", "three", "3 ", "+3", "99999999999999999999", "0x1"}) {
    const std::string range = "must be a whole number from 0 to 7 (WORLD_SIZE is 8), got '" + value + "'";
    EXPECT_THAT(mistakes_in(with(torchrun, "RANK", value)), ElementsAre("environment: RANK: " + range));
    EXPECT_THAT(mistakes_in(with(torchrun, "LOCAL_RANK", value)), ElementsAre("environment: LOCAL_RANK: " + range));
  }
  EXPECT_THAT(mistakes_in(with(torchrun, "WORLD_SIZE", "0")),
              ElementsAre("environment: WORLD_SIZE: must be a whole number from 1 to 65536, got '0'"));
  EXPECT_THAT(mistakes_in(with(torchrun, "MASTER_PORT", "65536")),
              ElementsAre("environment: MASTER_PORT: must be a whole number from 1 to 65535, got '65536'"));
  EXPECT_THAT(mistakes_in(with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "1")),
              ElementsAre("environment: TORCHELASTIC_USE_AGENT_STORE: must be True or False, got '1'"));
  EXPECT_THAT(mistakes_in({{"RANK", "x"}, {"MASTER_PORT", "0"}}), testing::SizeIs(5));
}

TEST(LaunchedProcess, NamesEveryMistakeInSlurmsVariables) {
  for (const std::string name : {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}) {
    EXPECT_THAT(mistakes_in(without(slurm, name)),
                ElementsAre("environment: " + name + ": is missing; srun sets it for each of its tasks"));
    EXPECT_THAT(mistakes_in(with(slurm, name, "?")),
                ElementsAre(HasSubstr("environment: " + name + ": must be a whole number")));
  }
  EXPECT_THAT(mistakes_in(without(slurm, "SLURM_JOB_NODELIST")),
              ElementsAre(HasSubstr("SLURM_JOB_NODELIST: is missing")));
  EXPECT_THAT(
      mistakes_in(with(slurm, "SLURM_PROCID", "6")),
      ElementsAre("environment: SLURM_PROCID: must be a whole number from 0 to 5 (SLURM_NTASKS is 6), got '6'"));
}

TEST(OwnAddress, IsTheOneTowardsTheMaster) {
  EXPECT_EQ(route_to_master("127.0.0.1", 4000).own, "127.0.0.1");
  EXPECT_EQ(route_to_master("localhost", 4000).master, "127.0.0.1");
  EXPECT_THROW(route_to_master("no.such.host.invalid", 4000), SystemError);
}

TEST(OwnAddress, OnTheMastersMachineIsTheOneThatOtherMachinesSee) {
  const RouteToMaster at_master{"127.0.0.1", "127.0.1.1"}, elsewhere{"10.0.0.2", "10.0.0.1"};
  EXPECT_EQ(own_address(at_master, {at_master, at_master}), "127.0.0.1");
  EXPECT_EQ(own_address(at_master, {at_master, elsewhere}), "10.0.0.1");
  EXPECT_EQ(own_address(elsewhere, {at_master, elsewhere}), "10.0.0.2");
}

}  // namespace
}  // namespace cotune
