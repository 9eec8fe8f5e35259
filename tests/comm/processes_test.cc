#define USE_DISTRIBUTED
#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/communicator.h"
#include "comm/rank_process.h"

namespace cotune {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAre;

/// A port nobody listens on, below those that the system hands out by itself; another one at every call.
int free_port() {
  static int next = getpid() * 61 % 20000;
  for (;;) {
    next = (next + 1) % 20000;
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(12000 + next)};
    const bool free = bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(socket);
    if (free) return 12000 + next;
  }
}

Environment as_torchrun(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

Environment as_torchrun_that_listens(int rank, int size, int port) {
  Environment environment = as_torchrun(rank, size, port);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  environment["TORCHELASTIC_RESTART_COUNT"] = "0";
  return environment;
}

Environment of_start(int number, int rank, int port) {
  Environment environment = as_torchrun(rank, 2, port);
  environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(number);
  return environment;
}

Environment as_slurm(int rank, int size, int port) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", std::to_string(size)},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_JOB_ID", std::to_string(port - 12000)},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "localhost"}};
}

std::vector<std::unique_ptr<RankProcess>> start(const std::string& part, int size, decltype(as_torchrun) environment,
                                                int port) {
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<RankProcess>(part, environment(rank, size, port)));
  return ranks;
}

void expect_exchange(std::vector<std::unique_ptr<RankProcess>>& ranks) {
  const int size = ranks.size();
  for (int rank = 0; rank < size; ++rank) {
    const int previous = (rank + size - 1) % size;
    EXPECT_EQ(ranks[rank]->line(), fmt::format("rank {} of {}: {} from {}, sum {}, root {}", rank, size, previous,
                                               previous, size * (size + 1) / 2, size - 1));
  }
}

void expect_exchange_and_end(std::vector<std::unique_ptr<RankProcess>>& ranks) {
  expect_exchange(ranks);
  for (auto& rank : ranks) EXPECT_EQ(rank->exit_status(), 0);
}

TEST(Processes, UnderTorchrunsVariablesExchangeMessagesAndSums) {
  auto ranks = start("exchange", 3, as_torchrun, free_port());
  expect_exchange_and_end(ranks);
}

TEST(Processes, MeetAtTorchrunWhereItListensItself) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  auto ranks = start("exchange", 2, as_torchrun_that_listens, store->getPort());
  expect_exchange_and_end(ranks);
}

TEST(Processes, UnderSlurmsVariablesExchangeMessagesAndSums) {
  auto ranks = start("exchange", 2, as_slurm, free_port());
  expect_exchange_and_end(ranks);
}

TEST(Processes, BeginAgainInANewGroup) {
  auto ranks = start("exchange in two groups", 3, as_torchrun, free_port());
  expect_exchange(ranks);
  expect_exchange_and_end(ranks);
}

TEST(Processes, JoinGroupsOfSomeOfThem) {
  auto ranks = start("exchange in rows and columns of two", 4, as_torchrun, free_port());
  const std::vector<std::string> expected{"rank 00: 11 101 1", "rank 01: 11 1010 10", "rank 10: 1100 101 100",
                                          "rank 11: 1100 1010 1000"};
  for (size_t rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(ranks[rank]->line(), expected[rank]);
  for (auto& rank : ranks) EXPECT_EQ(rank->exit_status(), 0);
}

TEST(Processes, ExitWithAGroupAlive) {
  auto ranks = start("leave with a group alive", 2, as_torchrun, free_port());
  expect_exchange_and_end(ranks);
}

TEST(Processes, ExitWithGroupsOfThreadsAlive) {
  RankProcess process("leave with threads' groups alive", {});
  EXPECT_EQ(process.exit_status(), 0);
}

TEST(Processes, AKilledRankEndsTheOthersWaits) {
  auto ranks = start("outlive the last of four", 4, as_torchrun, free_port());
  for (auto& rank : ranks) EXPECT_EQ(rank->line(), "joined");
  ranks[3]->kill();
  EXPECT_EQ(ranks[3]->exit_status(), 128 + SIGKILL);
  EXPECT_THAT(ranks[0]->line(), StartsWith("ended: rank 0: receiving 40 bytes (error) from rank 3: "));
  EXPECT_THAT(ranks[1]->line(), StartsWith("ended: rank 1: sending 40 bytes (error) to rank 3: "));
  EXPECT_THAT(ranks[2]->line(), StartsWith("ended: rank 2: all_reduce of 40 bytes of 4 ranks: "));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks[rank]->exit_status(), 0);
}

/// What a process is told, up to its error.
std::vector<std::string> lines_to_error(RankProcess& process) {
  std::vector<std::string> lines;
  while (lines.empty() || lines.back().starts_with("told: ")) lines.push_back(process.line());
  return lines;
}

TEST(Processes, ARankThatDoesNotComeIsNamed) {
  const int port = free_port();
  RankProcess only("join alone", as_torchrun(0, 3, port));
  const std::vector<std::string> lines = lines_to_error(only);
  const std::string place = fmt::format("rank 0 of 3, master 127.0.0.1:{}: ", port);
  EXPECT_THAT(lines, Contains("told: " + place + "waiting for ranks 1, 2 to join, for up to 2 s"));
  EXPECT_EQ(lines.back(), "error: " + place + "ranks 1, 2 have not joined within 2 s");
}

TEST(Processes, TwoOfOneRankAreNamed) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto environment = as_torchrun_that_listens(1, 2, store->getPort());
  RankProcess one("join alone", environment), other("join alone", environment);
  EXPECT_THAT(
      (std::vector{lines_to_error(one).back(), lines_to_error(other).back()}),
      UnorderedElementsAre(HasSubstr("another process has joined as this rank"), HasSubstr("rank 0 has not joined")));
}

TEST(Processes, AMasterThatIsNotThereIsNamed) {
  const int port = free_port();
  RankProcess only("join nobody", as_torchrun(1, 2, port));
  const std::vector<std::string> lines = lines_to_error(only);
  const std::string place = fmt::format("rank 1 of 2, master 127.0.0.1:{}: ", port);
  EXPECT_THAT(lines, Contains("told: " + place + "waiting for the first rank to listen there, for up to 1.5 s"));
  EXPECT_THAT(lines.back(), AllOf(StartsWith("error: " + place), HasSubstr("(tried for 1.5 s)")));
}

TEST(Processes, AMasterWhoseNameIsNotKnownIsNamedWithTheResolversWords) {
  for (const int rank : {0, 1}) {
    Environment environment = as_torchrun(rank, 2, 12345);
    environment["MASTER_ADDR"] = "nosuchhost.invalid";
    RankProcess only("join nobody", environment);
    const std::vector<std::string> lines = lines_to_error(only);
    const std::string start = fmt::format("rank {} of 2, master nosuchhost.invalid:12345: the name of the master, `nosuchhost.invalid`, cannot be looked up: ", rank);
    EXPECT_THAT(lines, Contains(AllOf(StartsWith("told: " + start), HasSubstr("; trying again for up to 1.5 s"))));
    EXPECT_THAT(lines.back(), AllOf(StartsWith("error: " + start), HasSubstr("(tried for 1.5 s)")));
    EXPECT_EQ(only.exit_status(), 0);
  }
}

TEST(Processes, OfALaterStartEndTheMeetingOfTheOneBeforeAndMeetAtTheSamePort) {
  const int port = free_port();
  RankProcess before("exchange", of_start(0, 0, port));
  std::vector<std::unique_ptr<RankProcess>> ranks(2);
  ranks[1] = std::make_unique<RankProcess>("exchange", of_start(1, 1, port));
  EXPECT_THAT(before.line(), HasSubstr("a rank has been started again meanwhile"));
  EXPECT_EQ(before.exit_status(), 0);
  ranks[0] = std::make_unique<RankProcess>("exchange", of_start(1, 0, port));
  expect_exchange_and_end(ranks);
}

TEST(Processes, OfAStartThatIsOverAreToldSo) {
  const int port = free_port();
  RankProcess first("exchange", of_start(2, 0, port)), late("exchange", of_start(1, 1, port));
  EXPECT_THAT(late.line(), HasSubstr("the run has been started again meanwhile"));
}

TEST(Processes, OneProcessIsItsOwnGroup) {
  auto self = process_communicator(LaunchedProcess{.launcher = "torchrun"});
  EXPECT_EQ(self->size(), 1);
  at::Tensor values = at::ones({3});
  self->all_reduce(values);
  self->broadcast(values, 0);
  self->barrier();
  EXPECT_TRUE(at::equal(values, at::ones({3})));
  self->abort();
  EXPECT_THROW(self->barrier(), CommunicationEnded);
}

}  // namespace
}  // namespace cotune
