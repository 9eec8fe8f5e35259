#include "jobs/schema.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "base/file.h"
#include "jobs/option_table.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

const std::filesystem::path root = source_folder();

bool is_update() { return std::getenv("COTUNE_UPDATE") != nullptr; }

TEST(JobsFileSchema, InTheRepositoryIsTheGeneratedOne) {
  const std::filesystem::path path = root / "schema/jobs.schema.json";
  if (is_update()) write_file_atomically(path, jobs_file_schema());
  EXPECT_EQ(read_file(path), jobs_file_schema()) << "run COTUNE_UPDATE=1 build/test_jobs";
}

TEST(OptionTables, InTheDocsAreTheGeneratedOnes) {
  const std::filesystem::path path = root / "docs/jobs-file.md";
  const std::string begin = "<!-- options:begin -->\n", end = "<!-- options:end -->";
  std::string page = read_file(path);
  const size_t from = page.find(begin) + begin.size(), to = page.find(end);
  ASSERT_LT(from, to + 1);
  if (is_update()) {
    page.replace(from, to - from, option_tables_markdown());
    write_file_atomically(path, page);
    return;
  }
  EXPECT_EQ(page.substr(from, to - from), option_tables_markdown()) << "run COTUNE_UPDATE=1 build/test_jobs";
}

TEST(OptionTables, NameEveryOptionAndAliasOnce) {
  for (Section section : all_sections) {
    std::set<std::string> names;
    for (const Option& option : option_table()) {
      if (option.section != section) continue;
      EXPECT_TRUE(names.insert(option.key).second) << option.key;
      for (const std::string& alias : option.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
      EXPECT_FALSE(option.description.empty()) << option.key;
    }
  }
}

TEST(JobsFileSchema, RefusesUnknownKeysEverywhereAndKnowsEveryName) {
  const auto schema = nlohmann::json::parse(jobs_file_schema());
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const Option& option : option_table()) {
    nlohmann::json section;
    switch (option.section) {
      case Section::model: section = schema["properties"]["model"]; break;
      case Section::run: section = schema["properties"]["run"]; break;
      case Section::job: section = schema["properties"]["jobs"]["items"]; break;
      default: section = schema["$defs"][std::string(section_name(option.section))];
    }
    EXPECT_EQ(section["additionalProperties"], false);
    EXPECT_TRUE(section["properties"].contains(option.key)) << option.path();
    for (const std::string& alias : option.aliases) EXPECT_TRUE(section["properties"].contains(alias)) << alias;
  }
}

TEST(JobsFileSchema, CarriesBoundsChoicesAndDefaults) {
  const auto adapter = nlohmann::json::parse(jobs_file_schema())["$defs"]["adapter"]["properties"];
  EXPECT_EQ(adapter["r"]["minimum"], 1);
  EXPECT_EQ(adapter["r"]["maximum"], 512);
  EXPECT_EQ(adapter["r"]["default"], 8);
  EXPECT_EQ(adapter["dropout"]["exclusiveMaximum"], 1.0);
  EXPECT_EQ(adapter["method"]["enum"], nlohmann::json({"lora", "bottleneck", "diff_pruning", "LORA", nullptr}));
  EXPECT_EQ(adapter["method"]["default"], "lora");
}

}  // namespace
}  // namespace cotune
