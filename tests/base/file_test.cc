#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/diagnostics.h"
#include "base/error.h"

namespace cotune {
namespace {

std::filesystem::path scratch_folder() {
  auto folder = std::filesystem::temp_directory_path() / ("cotune-file-test-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(File, WrittenBytesAreReadBackAndMapped) {
  const auto path = scratch_folder() / "a.bin";
  const std::string bytes("x\0y\n", 4);
  write_file_atomically(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(MappedFile(path).text(), bytes);
  write_file_atomically(path, "");
  EXPECT_EQ(MappedFile(path).text(), "");
}

TEST(File, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const auto folder = scratch_folder() / "occupied";
  std::filesystem::create_directories(folder / "target" / "child");  // a non-empty folder cannot be replaced by a file
  EXPECT_THROW(write_file_atomically(folder / "target", "new"), SystemError);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
  EXPECT_EQ(entries, 1);
}

TEST(File, AMissingFileIsTheUsersMistakeAndIsNamed) {
  try {
    MappedFile file("/nonexistent/model.safetensors");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/nonexistent/model.safetensors"));
  }
}

TEST(Diagnostics, AreReportedTogetherInLineOrder) {
  Diagnostics diagnostics;
  diagnostics.add("jobs.yaml", 14, "jobs[2].adapter.r", "must be between 1 and 512, got 0");
  diagnostics.add("jobs.yaml", 3, "model", "is required");
  try {
    diagnostics.throw_if_any();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "jobs.yaml:3: model: is required\n"
                 "jobs.yaml:14: jobs[2].adapter.r: must be between 1 and 512, got 0");
  }
}

TEST(Diagnostics, SuggestTheNearestName) {
  EXPECT_EQ(nearest_name("lora_dropuot", {"dropout", "lora_dropout", "r"}), "lora_dropout");
  EXPECT_EQ(nearest_name("zzzzzz", {"dropout", "r"}), "");
}

}  // namespace
}  // namespace cotune
