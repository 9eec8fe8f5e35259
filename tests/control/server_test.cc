// The control socket under clients that are slow, hostile or gone. Everything waits for bytes that come, never for a time.
#include "control/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>

#include "base/error.h"
#include "control/client.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Answers status with a report, list with many long ones, pause when it is told to.
class Answering {
 public:
  explicit Answering(fs::path run, ControlLimits limits = {})
      : server_(std::move(run), [this](ControlRequest request, ControlServer::Answer answer) { take(request, std::move(answer)); },
                limits) {}

  /// Waits until so many requests to pause are held back.
  void wait_for_held(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() >= count; });
  }
  void answer_held() {
    const std::lock_guard lock(mutex_);
    for (const auto& answer : held_) answer({});
    held_.clear();
  }

 private:
  void take(const ControlRequest& request, ControlServer::Answer answer) {
    ControlReply reply;
    if (request.action == ControlAction::pause) {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(answer));
      changed_.notify_all();
      return;
    }
    if (request.action == ControlAction::list) {
      reply.jobs.emplace(16, JobReport{.name = std::string(1 << 16, 'x'), .status = "running"});
    } else {
      reply.run = RunReport{.pid = 42, .folder = "/run", .phase = "training"};
    }
    answer(reply);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ControlServer::Answer> held_;
  ControlServer server_;  // last: its thread ends first
};

/// A connection of bytes.
class Raw {
 public:
  explicit Raw(const fs::path& run) : socket_(connect_to(run)) {}
  /// As many bytes as the other side takes; returns whether all went.
  bool send(const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t count = ::send(socket_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }
  std::string line() {
    while (input_.find('\n') == std::string::npos) {
      char bytes[1 << 14];
      const ssize_t count = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (count <= 0) break;
      input_.append(bytes, static_cast<size_t>(count));
    }
    const size_t end = std::min(input_.find('\n'), input_.size());
    const std::string text = input_.substr(0, end);
    input_.erase(0, end + 1);
    return text;
  }
  /// Whether the other side closes, with nothing more said.
  bool is_closed() {
    char c = 0;
    return input_.empty() && ::recv(socket_.get(), &c, 1, 0) <= 0;
  }
  void send_no_more() { ::shutdown(socket_.get(), SHUT_WR); }
  void take_few_bytes() {
    const int few = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
  }

 private:
  Descriptor socket_;
  std::string input_;
};

const std::string status_line = to_line(ControlRequest{});

class ControlSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cotune-control-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    run = name;
  }
  void TearDown() override { fs::remove_all(run); }
  void expect_served(const fs::path& at) { EXPECT_EQ(ControlClient(at).ask({}).run.value().pid, 42); }

  fs::path run;
};

TEST_F(ControlSocket, IsItsOwnersAloneAndGoesWithTheServer) {
  {
    Answering server(run);
    struct stat status{};
    ASSERT_EQ(::stat(control_socket(run).c_str(), &status), 0);
    EXPECT_TRUE(S_ISSOCK(status.st_mode));
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    expect_served(run);
  }
  EXPECT_FALSE(fs::exists(control_socket(run)));
  EXPECT_THAT([&] { ControlClient client(run); }, ThrowsMessage<UserError>(HasSubstr("holds no run: run.json is missing")));
  std::ofstream(run / "run.json") << "{}";
  EXPECT_THAT([&] { ControlClient client(run); }, ThrowsMessage<CannotBeAsked>(HasSubstr("nobody listens")));
  EXPECT_THROW(ControlClient(run / "none"), UserError);
}

TEST_F(ControlSocket, OfAnotherUserCannotBeAsked) {
  Answering server(run);
  constexpr uid_t nobody = 65534;
  const bool is_root = ::geteuid() == 0;  // to whom every file is open
  fs::permissions(run, fs::perms::owner_all | fs::perms::others_exec);
  if (!is_root) fs::permissions(control_socket(run), fs::perms::none);
  ASSERT_TRUE(!is_root || ::seteuid(nobody) == 0);
  EXPECT_THAT([&] { ControlClient client(run); }, ThrowsMessage<CannotBeAsked>(HasSubstr("cannot connect: Permission denied: a run is changed by the user who trains it")));
  ASSERT_TRUE(!is_root || ::seteuid(0) == 0);
}

TEST_F(ControlSocket, ThatAKilledProcessLeftIsReplaced) {
  listen_at(run);  // and closes it, as a kill does
  ASSERT_TRUE(fs::exists(control_socket(run)));
  EXPECT_THROW(ControlClient{run}, UserError);
  Answering server(run);
  expect_served(run);
}

/// A run whose folder was removed or taken over ends later than the next one begins there.
TEST_F(ControlSocket, OfTheRunThatTookTheFolderOverStaysWhenTheOneBeforeEnds) {
  auto before = std::make_unique<Answering>(run);
  Answering server(run);
  before.reset();
  expect_served(run);
}

TEST_F(ControlSocket, WorksInFoldersWhosePathsAreLongerThanItsAddress) {
  fs::path deep = run;
  for (int i = 0; i < 4; ++i) deep /= std::string(60, static_cast<char>('a' + i));
  fs::create_directories(deep);
  ASSERT_GT(control_socket(deep).string().size(), sizeof(sockaddr_un::sun_path));
  Answering server(deep);
  expect_served(deep);
  EXPECT_TRUE(fs::exists(control_socket(deep)));
}

TEST_F(ControlSocket, ThatCannotBeMadeSaysWhy) {
  fs::create_directories(control_socket(run) / "in-the-way");
  try {
    listen_at(run);
    FAIL() << "made over a folder";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr((control_socket(run)).string()));
    EXPECT_EQ(std::distance(fs::directory_iterator(run), fs::directory_iterator()), 1) << "nothing is left of it";
  }
}

TEST_F(ControlSocket, AnswersRequestsOfAConnectionInOrderWithTheirIds) {
  Answering server(run);
  Raw client(run);
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += to_line({.id = std::to_string(i)}) + "\n";
  ASSERT_TRUE(client.send(lines + "nonsense\n" + to_line({.id = "\"last\""}) + "\n"));
  for (int i = 0; i < 100; ++i) EXPECT_THAT(client.line(), HasSubstr("\"id\":" + std::to_string(i) + ","));
  EXPECT_THAT(client.line(), HasSubstr("bad_request"));
  EXPECT_THAT(client.line(), HasSubstr("\"id\":\"last\""));
}

TEST_F(ControlSocket, IsNotHeldUpByClientsThatStopInALineSayNothingOrHangUp) {
  Answering server(run);
  Raw half(run), silent(run), garbage(run);
  half.send(R"({"cotune":1,"requ)");
  { Raw gone(run); gone.send(status_line.substr(0, 10)); }
  { Raw gone(run); gone.send(status_line + "\n"); }  // before it has read its reply
  garbage.send(std::string("\0\x01\xff{{{[[\n\n", 10));
  EXPECT_THAT(garbage.line(), HasSubstr("bad_request"));
  EXPECT_THAT(garbage.line(), HasSubstr("bad_request"));
  expect_served(run);
  half.send(R"(est":"status"})" "\n");  // a slow one is served when it is through
  EXPECT_THAT(half.line(), HasSubstr("\"pid\":42"));
}

TEST_F(ControlSocket, ClosesAConnectionWhoseLineIsTooLong) {
  Answering server(run, {.line_bytes = 10'000});
  Raw endless(run);
  for (int i = 0; i < 100 && endless.send(std::string(10'000, 'x')); ++i) {
  }
  EXPECT_THAT(endless.line(), HasSubstr("too_long"));
  EXPECT_TRUE(endless.is_closed());
  Raw long_line(run);
  long_line.send(std::string(10'001, ' ') + "\n");
  EXPECT_THAT(long_line.line(), HasSubstr("too_long"));
  Raw fits(run);
  fits.send(std::string(10'000 - status_line.size(), ' ') + status_line + "\n");
  EXPECT_THAT(fits.line(), HasSubstr("\"pid\":42"));
  expect_served(run);
}

TEST_F(ControlSocket, IsNotHeldUpByAClientThatNeverReads) {
  Answering server(run);
  Raw deaf(run);
  deaf.take_few_bytes();
  const std::string list = to_line({.action = ControlAction::list}) + "\n";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(deaf.send(list));  // replies of a MiB each
  for (int i = 0; i < 3; ++i) expect_served(run);
  // What it asked is there when it reads after all.
  for (int i = 0; i < 3; ++i) EXPECT_GT(deaf.line().size(), size_t{16} << 16);
}

TEST_F(ControlSocket, AnswersAClientThatSendsNothingMore) {
  Answering server(run);
  Raw client(run);
  client.send(status_line + "\n" + status_line + "\n" + status_line);  // the third without an end of line
  client.send_no_more();
  EXPECT_THAT(client.line(), HasSubstr("\"pid\":42"));
  EXPECT_THAT(client.line(), HasSubstr("\"pid\":42"));
  EXPECT_TRUE(client.is_closed());
}

TEST_F(ControlSocket, CarriesARequestOutWhoseClientIsGoneAndServesOthersMeanwhile) {
  Answering server(run);
  const std::string pause = to_line({.action = ControlAction::pause, .job = "a"}) + "\n";
  Raw waiting(run);
  {
    Raw gone(run);
    gone.send(pause);
    waiting.send(pause + status_line + "\n");
    server.wait_for_held(2);
  }
  expect_served(run);
  server.answer_held();
  EXPECT_THAT(waiting.line(), HasSubstr("\"ok\":true"));
  EXPECT_THAT(waiting.line(), HasSubstr("\"pid\":42"));  // only now: one request of a connection at a time
}

TEST_F(ControlSocket, ClosesTheMostSilentOfTooManyConnections) {
  Answering server(run, {.connections = 3});
  Raw first(run);
  first.send(status_line + "\n");
  first.line();
  Raw second(run);
  second.send(status_line + "\n");
  second.line();
  Raw third(run);
  third.send(status_line + "\n");
  third.line();
  first.send(status_line + "\n");
  first.line();
  expect_served(run);  // a fourth
  EXPECT_TRUE(second.is_closed());
  first.send(status_line + "\n");
  EXPECT_THAT(first.line(), HasSubstr("\"pid\":42"));
}

TEST_F(ControlSocket, SendsRepliesThatWereGivenBeforeItEnds) {
  Raw* waiting = nullptr;
  std::unique_ptr<Raw> client;
  {
    Answering server(run);
    client = std::make_unique<Raw>(run);
    waiting = client.get();
    waiting->send(to_line({.action = ControlAction::pause, .job = "a"}) + "\n");
    server.wait_for_held(1);
    server.answer_held();
  }
  EXPECT_THAT(waiting->line(), HasSubstr("\"ok\":true"));
  EXPECT_TRUE(waiting->is_closed());
}

TEST_F(ControlSocket, TellsAClientThatTheRunEndedBeforeItAnswered) {
  auto server = std::make_unique<Answering>(run);
  ControlClient client(run);
  std::thread asking([&] { EXPECT_THROW(client.ask({.action = ControlAction::pause, .job = "a"}), SystemError); });
  server->wait_for_held(1);
  server.reset();
  asking.join();
}

}  // namespace
}  // namespace cotune
