#include "train/tensorboard_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "train/small_run.h"

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

/// In the order of the files' events.
std::vector<std::string> tags_in(const fs::path& folder) {
  std::vector<std::string> tags;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = read_file(entry.path());
    for (const std::string_view record : whole_records(file)) {
      for (const TensorBoardValue& value : parse_record(record).values) tags.push_back(value.tag);
    }
  }
  return tags;
}

TEST(TensorBoardLog, OfAnEmulatedRunSaysSoOnceAndFirst) {
  const fs::path folder = fs::temp_directory_path() / ("cotune-tensorboard-emulated-" + std::to_string(::getpid()));
  JobData data{.train = small_data(7, 20, 40), .eval = small_data(9, 5, 30)};
  const TrainingJob job(0, small_job("a", AdapterMethod::lora, 1, 4), std::move(data), small_config(), at::kFloat, at::Device(at::kMeta), "small",
                        folder / "jobs" / "a");
  TensorBoardLog log(folder, [] { return 1.5e9; });
  log.on_job_started(job);
  log.on_job_started(job);  // it was paused
  for (const int64_t steps : {1, 2}) log.on_usage({.steps = steps, .emulated = true});
  const std::vector<std::string> usage{"memory/process_bytes", "memory/tensor_bytes", "tokens_per_second"};
  std::vector<std::string> expected{"emulated/text_summary"};
  EXPECT_EQ(tags_in(folder / "a"), expected);
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), usage.begin(), usage.end());
  EXPECT_EQ(tags_in(folder), expected);
  TensorBoardLog real(folder / "real", [] { return 1.5e9; });
  real.on_usage({.steps = 1});
  EXPECT_EQ(tags_in(folder / "real"), usage);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cotune::testing
