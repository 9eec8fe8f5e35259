#include "data/dataset_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "formats/temporary_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string key(32, 'a');

class DatasetFiles : public testing::Test {
 protected:
  /// Two train files, of which the first holds nothing of eval.
  void write(int64_t examples = 200) {
    DatasetFileWriter writer(path, 0600);
    memory = {};
    ExamplesInMemory sink(memory.train, memory.eval);
    for (ExampleSink* to : {static_cast<ExampleSink*>(&writer), static_cast<ExampleSink*>(&sink)}) {
      for (int file = 0; file < 2; ++file) {
        const std::string name = file == 0 ? "one.jsonl" : "two.jsonl";
        to->begin_source(DataPart::train, name);
        to->begin_source(DataPart::eval, name);
        for (int64_t i = 0; i < examples; ++i) {
          Example example;
          example.line = static_cast<int>(i + 1);
          const uint64_t own = mix_key(static_cast<uint64_t>(file), static_cast<uint64_t>(i));
          example.tokens.resize(1 + uniform_below(own, 0, 30));
          for (size_t t = 0; t < example.tokens.size(); ++t) example.tokens[t] = static_cast<int32_t>(uniform_below(own, t + 1, 70000));
          example.learned.resize(example.tokens.size(), static_cast<uint8_t>(i % 2));
          to->add(file == 1 && i % 5 == 0 ? DataPart::eval : DataPart::train, example);
        }
      }
    }
    memory.files = {{.file = "one.jsonl", .format = DataFormat::text, .format_line = 3, .records = examples, .repaired = 1},
                    {.file = "two.jsonl", .format = DataFormat::tokens, .records = examples, .truncated = 7, .dropped_long = 2}};
    writer.finish(key, memory.files, {"/data/one.jsonl", "/data/two.jsonl"});
    writer.commit();
  }

  std::string damage(const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      const DatasetFile file(path, DatasetCheck::all);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryFolder own;
  const fs::path folder = own.path(), path = folder / "set.tokens";
  JobData memory;
};

TEST_F(DatasetFiles, HoldWhatWasRead) {
  write();
  const DatasetFile file(path, DatasetCheck::all);
  const JobData data = file.data({"one.jsonl", "two.jsonl"});
  EXPECT_EQ(file.key(), key);
  EXPECT_EQ(data.files, memory.files);
  EXPECT_EQ(data.cache_file, path);
  for (const auto& [mapped, own] : {std::pair(&data.train, &memory.train), std::pair(&data.eval, &memory.eval)}) {
    ASSERT_EQ(mapped->size(), own->size());
    for (int64_t i = 0; i < own->size(); ++i) ASSERT_EQ(mapped->example(i), own->example(i));
    EXPECT_EQ(mapped->content_hash(), own->content_hash());
    EXPECT_EQ(mapped->token_count(), own->token_count());
    EXPECT_EQ(mapped->learned_count(), own->learned_count());
    EXPECT_EQ(mapped->largest_token(), own->largest_token());
    EXPECT_EQ(mapped->source_count(), own->source_count());
    EXPECT_EQ(mapped->source_size(1), own->source_size(1));
    for (size_t source = 0; source < own->source_count(); ++source) EXPECT_EQ(mapped->source_hash(source), own->source_hash(source));
    EXPECT_EQ(lengths_of(*mapped).to_string(), lengths_of(*own).to_string());
  }
  EXPECT_EQ(content_hash(data), content_hash(memory));
  EXPECT_EQ(file_hashes(data), file_hashes(memory));
}

TEST_F(DatasetFiles, SayOfEveryFileWhetherItGivesOtherExamples) {
  write();
  const auto before = file_hashes(memory);
  const int64_t last = memory.eval.size() - 1;
  Example added = memory.eval.example(last);
  memory.eval.add(added);
  const auto after = file_hashes(memory);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before.at("one.jsonl"), after.at("one.jsonl"));
  EXPECT_NE(before.at("two.jsonl"), after.at("two.jsonl")) << "an example more is held out";
}

TEST_F(DatasetFiles, TakeTheNamesOfTheJobThatOpensThem) {
  write();
  const JobData data = DatasetFile(path).data({"a", "b"});
  EXPECT_EQ(data.train.source(0), "a");
  EXPECT_EQ(data.train.source(data.train.size() - 1), "b");
  EXPECT_EQ(data.eval.source(0), "b");
  EXPECT_EQ(data.files[1].file, "b");
}

TEST_F(DatasetFiles, StayMappedWhileDataOfThemLive) {
  write();
  Dataset train = DatasetFile(path).data({"a", "b"}).train;
  fs::remove(path);
  const Dataset copy = train;
  train = {};
  EXPECT_EQ(copy.content_hash(), memory.train.content_hash());
  EXPECT_EQ(copy.example(5).tokens, memory.train.example(5).tokens);
}

TEST_F(DatasetFiles, HaveTheirNameWhenTheyAreWhole) {
  {
    DatasetFileWriter writer(path, 0600);
    writer.begin_source(DataPart::train, "a");
    writer.finish(key, {{}}, {"a"});
    EXPECT_FALSE(fs::exists(path));
    EXPECT_TRUE(fs::exists(writer.temporary()));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(DatasetFiles, KeepPlacesOfManyExamplesOnDiskWhileTheyAreWritten) {
  write(150'000);  // more than are kept in memory
  const JobData data = DatasetFile(path, DatasetCheck::all).data({"one.jsonl", "two.jsonl"});
  ASSERT_EQ(data.train.size(), memory.train.size());
  EXPECT_EQ(data.train.content_hash(), memory.train.content_hash());
  for (int64_t i = 0; i < data.train.size(); i += 997) ASSERT_EQ(data.train.example(i), memory.train.example(i));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(DatasetFiles, AreRefusedWithOneChangedByteAnywhere) {
  write(20);
  const std::string whole = read_file(path);
  std::vector<ExampleEntry> aligned(whole.size() / sizeof(ExampleEntry) + 1);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(aligned)).first(whole.size());
  std::memcpy(bytes.data(), whole.data(), whole.size());
  EXPECT_NO_THROW(DatasetFile::of_bytes(bytes, DatasetCheck::all));
  for (size_t at = 0; at < whole.size(); ++at) {
    if (at >= sizeof(DatasetFileHeader) && at < dataset_header_bytes) continue;  // nothing is there
    bytes[at] ^= std::byte{0x20};
    try {
      DatasetFile::of_bytes(bytes, DatasetCheck::all);
      EXPECT_EQ(whole[at], '\0') << at;  // before the index
    } catch (const UserError&) {
    }
    bytes[at] ^= std::byte{0x20};
  }
}

TEST_F(DatasetFiles, AreRefusedWhereTheyWereCutOffOrAreSomethingElse) {
  write(20);
  const std::string whole = read_file(path);
  for (size_t size = 0; size < whole.size(); size += 7) EXPECT_NE(damage(whole.substr(0, size)), "") << size;
  EXPECT_THAT(damage(whole + "x"), HasSubstr("do not fit its"));
  EXPECT_THAT(damage(std::string(10000, 'x')), HasSubstr(path.string() + ": is no file of tokenized data"));
  EXPECT_THAT(damage(""), HasSubstr("cut off: it has 0 bytes"));
  std::string newer = whole;
  newer[8] = 9;
  EXPECT_THAT(damage(newer), HasSubstr("has version 9, and 1 is read"));
}

}  // namespace
}  // namespace cotune
