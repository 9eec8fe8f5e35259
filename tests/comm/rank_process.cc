#include "comm/rank_process.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "base/error.h"
#include "comm/communicator.h"

namespace cotune {

RankProcess::RankProcess(const std::string& part, const Environment& launcher) {
  Environment environment = environment_of_this_process();
  for (const auto& [name, value] : launcher) environment[name] = value;
  environment["COTUNE_TEST_PART"] = part;
  std::vector<std::string> texts;
  for (const auto& [name, value] : environment) texts.push_back(name + "=" + value);
  std::vector<char*> variables;
  for (std::string& text : texts) variables.push_back(text.data());
  variables.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=RankProcess.PlaysItsPart";
  char* arguments[] = {program.data(), filter.data(), nullptr};

  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  EXPECT_EQ(posix_spawn(&process_, program.c_str(), &actions, nullptr, arguments, variables.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
}

RankProcess::~RankProcess() {
  if (process_ > 0) {
    kill();
    exit_status();
  }
  close(output_);
}

std::string RankProcess::line() {
  for (;;) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos) {
      const std::string text = read_.substr(0, end);
      read_.erase(0, end + 1);
      if (text.starts_with("> ")) return text.substr(2);
      other_lines_ += text + "\n";
      continue;
    }
    pollfd waiting{.fd = output_, .events = POLLIN};
    if (poll(&waiting, 1, 90000) != 1) {
      ADD_FAILURE() << "a rank says nothing; so far: " << read_;
      return "";
    }
    char buffer[4096];
    const ssize_t count = ::read(output_, buffer, sizeof buffer);
    if (count <= 0) return "";
    read_.append(buffer, count);
  }
}

void RankProcess::kill() {
  ::kill(process_, SIGKILL);
}

int RankProcess::exit_status() {
  int status = 0;
  waitpid(process_, &status, 0);
  process_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) {
    while (!line().empty()) {
    }
    fmt::print("{}", other_lines_);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

namespace {

void say(const std::string& text) {
  fmt::print("> {}\n", text);
  std::fflush(stdout);
}

void tell(const std::string& text) { say("told: " + text); }

std::string exchange(Communicator& self) {
  const int32_t next = (self.rank() + 1) % self.size(), previous = (self.rank() + self.size() - 1) % self.size();
  const at::Tensor mine = at::full({100000}, double(self.rank())), other = at::empty({100000});
  const auto receive = self.receive(other, previous, Channel::activation);
  const auto send = self.send(mine, next, Channel::activation);
  receive->wait();
  send->wait();
  at::Tensor sum = at::full({10}, self.rank() + 1.0);
  self.all_reduce(sum);
  at::Tensor root = at::full({10}, double(self.rank()));
  self.broadcast(root, self.size() - 1);
  self.barrier();
  return fmt::format("rank {} of {}: {} from {}, sum {}, root {}", self.rank(), self.size(), other[99999].item<int>(),
                     previous, sum[9].item<int>(), root[9].item<int>());
}

void play(const std::string& part) {
  if (part == "leave with threads' groups alive") {
    for (auto& rank : thread_communicators(2)) {
      rank->receive(at::empty({10}), 1 - rank->rank(), Channel::error);
      rank.release();
    }
    std::exit(0);
  }
  const LaunchedProcess process = launched_process(environment_of_this_process()).value();
  if (part == "join alone") {
    process_communicator(process, {.most = std::chrono::seconds(2), .quiet = std::chrono::milliseconds(300), .tell = tell});
    return;
  }
  if (part == "join nobody") {
    process_communicator(process, {.most = std::chrono::milliseconds(1500), .quiet = std::chrono::milliseconds(300), .tell = tell});
    return;
  }
  auto self = process_communicator(process);
  if (part == "exchange") {
    say(exchange(*self));
  } else if (part == "exchange in two groups") {
    say(exchange(*self));
    self->abort();
    self.reset();
    self = process_communicator(process);
    say(exchange(*self));
  } else if (part == "exchange in rows and columns of two") {
    const int32_t row = process.rank / 2, column = process.rank % 2;
    auto in_row = process_communicator(process, {2 * row, 2 * row + 1});
    auto in_column = process_communicator(process, {column, 2 + column});
    auto by_itself = process_communicator(process, {process.rank});
    at::Tensor sum = at::full({10}, std::pow(10.0, process.rank)), both = sum.clone(), own = sum.clone();
    in_row->all_reduce(sum);
    in_column->all_reduce(both);
    by_itself->all_reduce(own);
    say(fmt::format("rank {}{}: {} {} {}", in_column->rank(), in_row->rank(), sum[9].item<int>(), both[9].item<int>(),
                    own[9].item<int>()));
    self->barrier();
  } else if (part == "leave with a group alive") {
    say(exchange(*self));
    self->receive(at::empty({10}), (process.rank + 1) % process.size, Channel::error);
    self.release();
    std::exit(0);
  } else if (part == "outlive the last of four") {
    say("joined");
    if (process.rank == 0) self->receive(at::empty({10}), 3, Channel::error)->wait();
    if (process.rank == 1) self->send(at::empty({10}), 3, Channel::error)->wait();
    if (process.rank == 2) {
      at::Tensor sum = at::ones({10});
      self->all_reduce(sum);
    }
    if (process.rank == 3) pause();
  }
}

TEST(RankProcess, PlaysItsPart) {
  const char* part = std::getenv("COTUNE_TEST_PART");
  if (part == nullptr) GTEST_SKIP() << "a part of other tests, which start this program again";
  try {
    play(part);
  } catch (const CommunicationEnded& ended) {
    say(std::string("ended: ") + ended.what());
  } catch (const SystemError& error) {
    say(std::string("error: ") + error.what());
  }
}

}  // namespace
}  // namespace cotune
