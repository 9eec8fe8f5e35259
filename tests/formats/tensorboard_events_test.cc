#include "formats/tensorboard_events.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

/// What scripts/reference/tensorboard_reference.py writes.
std::vector<TensorBoardEvent> reference_events() {
  return {{.wall_time = 1.5e9, .file_version = tensorboard_file_version},
          {.wall_time = 1.5e9 + 0.25, .step = 8, .session_start = true},
          {.wall_time = 1.5e9 + 0.5,
           .step = 300,
           .values = {{.tag = "train/loss", .scalar = 2.5f}, {.tag = "train/grad_norm", .scalar = std::numeric_limits<float>::infinity()}}},
          {.wall_time = 1.5e9 + 0.75, .step = int64_t{1} << 40, .values = {{.tag = "sample/text_summary", .text = "größe\n<b>"}}}};
}

std::string file_of(const std::vector<TensorBoardEvent>& events) {
  std::string file;
  for (const TensorBoardEvent& event : events) file += to_record(event);
  return file;
}

TEST(TensorBoardEvents, HaveTheBytesThatTensorBoardItselfWrites) {
  const std::string reference = read_file(source_folder() / "tests/formats/data/tensorboard.events");
  EXPECT_EQ(file_of(reference_events()), reference);
  std::vector<TensorBoardEvent> read;
  for (const std::string_view record : whole_records(reference)) read.push_back(parse_record(record));
  EXPECT_EQ(read, reference_events());
}

TEST(TensorBoardEvents, AreReadUpToTheFirstThatIsCutOffOrDamaged) {
  const std::vector<TensorBoardEvent> events = reference_events();
  const std::string file = file_of(events), head = file_of({events[0], events[1]});
  for (size_t end = 0; end <= file.size(); ++end) {
    const std::string beginning = file.substr(0, end);
    std::string read;
    for (const std::string_view record : whole_records(beginning)) read += record;
    EXPECT_TRUE(file.starts_with(read));
    EXPECT_EQ(read.size() == file.size(), end == file.size());
  }
  for (size_t place = head.size(); place < head.size() + to_record(events[2]).size(); ++place) {
    std::string damaged = file;
    damaged[place] ^= 4;
    EXPECT_EQ(whole_records(damaged).size(), 2u) << place;
  }
}

TEST(TensorBoardEvents, ThatAreNoneAreRefused) {
  EXPECT_THROW(parse_record(""), UserError);
  for (const std::string data : {"\xff", "\x0a\x7f", "\x09\x01", "\x0f", "\x2a\x02\x0a\x09"}) {
    EXPECT_THROW(parse_record(std::string(12, ' ') + data + std::string(4, ' ')), UserError);
  }
}

TEST(Crc32c, OfTheCheckText) { EXPECT_EQ(crc32c("123456789"), 0xE3069283u); }

}  // namespace
}  // namespace cotune
