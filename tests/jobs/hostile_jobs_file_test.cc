/// Texts made to crash or stall a YAML reader; each must end quickly with a UserError or a configuration.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "jobs/jobs_file.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

const std::string model = "cotune: 1\nmodel: {path: m}\n";

std::string repeat(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string outcome(const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  std::string result;
  try {
    parse_jobs_file(text, "j", "/f", {}, Purpose::plan);
  } catch (const UserError& error) {
    result = error.what();
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_LT(taken.count(), 60) << text.substr(0, 40);
  return result;
}

TEST(HostileJobsFile, NestedDeeplyIsRefused) {
  for (const char* opening : {"[", "{", "- ", "? ", "[a: ", "[? ", "!x [", "&a ["}) {
    EXPECT_NE(outcome(repeat(opening, 100'000)), "") << opening;
  }
  EXPECT_EQ(outcome(model + "jobs: " + repeat("[", 60) + repeat("]", 60)), "j:3: nested deeper than 50 levels");
}

TEST(HostileJobsFile, OfAliasesOfAliasesIsRefused) {
  std::string bomb = model + "a0: &a0 [x]\n";
  for (int i = 1; i < 30; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeat(before + ", ", 9) + before + "]\n";
  }
  EXPECT_NE(outcome(bomb + "jobs: *a29\n"), "");
}

TEST(HostileJobsFile, WhoseAliasesMakeItHugeIsRefused) {
  const std::string lengths = "[" + repeat("7,", 50'000) + "7]";
  EXPECT_EQ(outcome(model + "jobs:\n  - {name: a, data: {lengths: &l " + lengths + "}}\n" +
                    repeat("  - {name: b, data: {lengths: *l}}\n", 1000))
                .substr(0, 40),
            "j:83: aliases make this file larger than");
}

TEST(HostileJobsFile, ThatContainsItselfIsRefused) {
  EXPECT_NE(outcome(model + "jobs: &a [*a, *a]\n"), "");
  EXPECT_NE(outcome("&a {cotune: 1, model: *a, jobs: [*a], defaults: *a}"), "");
}

TEST(HostileJobsFile, TooLargeIsRefused) {
  EXPECT_EQ(outcome(std::string((1 << 20) + 1, ' ')),
            "j: 1048577 bytes are too many for a jobs file; at most 1048576 are accepted");
  EXPECT_EQ(outcome(model + "jobs: [" + repeat("1,", 10'000) + "1]"), "j:3: jobs: must be at most 10000 jobs, got 10001");
}

TEST(HostileJobsFile, OfEveryKindOfRepetitionEndsSoon) {
  for (const char* text : {"[],", "{a: b}, ", "1,", "- 1\n", "a: 1\n", "---\n", "? a\n", ":", "\"a\"", "!", "&a ", "%YAML 1.2\n",
                           "a:\n", "'", "|\n", "#\n", "- - \n", "*a ", "\t", "\r", "\"\\x41\"\n"}) {
    outcome(repeat(text, 20'000));
  }
}

TEST(HostileJobsFile, OfChangedExamplesEndsWithAMistakeOrAConfiguration) {
  std::ifstream stream(source_folder() / "examples/four-methods.yaml");
  const std::string example{std::istreambuf_iterator<char>(stream), {}};
  const std::string bytes = std::string("\0\n\t :-#[]{}'\"&*!|>%@,?\xff\xc3\x80", 26) + "0aA9.";
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::string text = example;
    for (uint64_t i = 0, count = 1 + uniform_below(seed, 0, 4); i < count; ++i) {
      const size_t place = uniform_below(seed, 3 * i + 1, text.size());
      const char byte = bytes[uniform_below(seed, 3 * i + 2, bytes.size())];
      switch (uniform_below(seed, 3 * i + 3, 3)) {
        case 0: text[place] = byte; break;
        case 1: text.insert(place, 1, byte); break;
        default: text.erase(place, 1 + uniform_below(seed, i + 100, 20));
      }
    }
    outcome(text);
  }
}

}  // namespace
}  // namespace cotune
