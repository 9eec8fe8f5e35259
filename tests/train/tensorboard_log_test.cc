#include "train/tensorboard_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"

namespace cotune::testing {
namespace {

namespace fs = std::filesystem;

std::string scalar(const char* tag, int64_t step) {
  return to_record({.wall_time = 1.5e9, .step = step, .values = {{.tag = tag, .scalar = 1.0f}}});
}

std::string sample(int64_t step) {
  return to_record({.wall_time = 1.5e9, .step = step, .values = {{.tag = "sample/text_summary", .text = "asked"}}});
}

TEST(TensorBoardLog, GoesOnFromTheCheckpoints) {
  const fs::path folder = fs::temp_directory_path() / ("cotune-tensorboard-" + std::to_string(::getpid()));
  for (const char* job : {"a", "b"}) fs::create_directories(folder / job);
  const std::string first = to_record({.wall_time = 1.5e9, .file_version = tensorboard_file_version});
  const std::string start = to_record({.wall_time = 1.5e9, .step = 9, .session_start = true});
  const std::string kept = first + start + sample(0) + scalar("train/loss", 2) + scalar("eval/loss", 1);
  const auto file = [&](const char* job) { return folder / job / "events.out.tfevents.1500000000.host.0000"; };
  write_file_atomically(file("a"), kept + scalar("train/loss", 3) + scalar("eval/loss", 2) + sample(2) + scalar("train/loss", 3).substr(0, 20));
  write_file_atomically(file("b"), first + sample(0) + scalar("eval/loss", 0));
  write_file_atomically(folder / "events.out.tfevents.1500000000.host.0000", first + scalar("tokens_per_second", 2) + scalar("tokens_per_second", 3));
  write_file_atomically(folder / "a" / "notes.txt", "not ours");
  trim_tensorboard(folder, {{"a", {2, 1}}, {"b", {0, -1}}});
  EXPECT_EQ(read_file(file("a")), kept);
  EXPECT_EQ(read_file(file("b")), first);
  EXPECT_EQ(read_file(folder / "events.out.tfevents.1500000000.host.0000"), first + scalar("tokens_per_second", 2));
  EXPECT_EQ(read_file(folder / "a" / "notes.txt"), "not ours");
  trim_tensorboard(folder / "none", {{"a", {2, 1}}});
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cotune::testing
