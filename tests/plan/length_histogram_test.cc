#include "plan/shapes/length_histogram.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "plan/shapes/published_lengths.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

std::string refusal(const std::string& json) {
  try {
    parse_histogram(json, "h.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(LengthHistogram, OfAFileIsSortedAndDescribesItself) {
  const LengthHistogram histogram = parse_histogram(R"({"300": 1, "20": 2, "100": 1})", "h.json");
  EXPECT_EQ(histogram.weights, (std::vector<std::pair<int64_t, double>>{{20, 2}, {100, 1}, {300, 1}}));
  EXPECT_EQ(histogram.mean(), 110);
  EXPECT_EQ(histogram.longest(), 300);
  EXPECT_GT(histogram.skewness(), 0);
  EXPECT_EQ(histogram_of(std::vector<int64_t>{300, 20, 20, 100}), histogram);
  EXPECT_EQ(truncated(histogram, 100).weights, (std::vector<std::pair<int64_t, double>>{{20, 2}, {100, 2}}));
}

TEST(LengthHistogram, RefusesWhatIsNoHistogram) {
  EXPECT_THAT(refusal("{"), testing::HasSubstr("h.json:1: column 2: not JSON: unexpected end"));
  EXPECT_THAT(refusal("{}"), testing::HasSubstr("not empty"));
  EXPECT_EQ(refusal(R"({"0": 1, "x": 2, "7": 0, "8": "a"})"),
            "h.json: 0: a length must be a whole number from 1 to 1048576\n"
            "h.json: 7: must be a count above 0, got 0\n"
            "h.json: 8: must be a count above 0, got \"a\"\n"
            "h.json: x: a length must be a whole number from 1 to 1048576");
}

TEST(LengthHistogram, RefusesALengthThatIsGivenTwice) {
  EXPECT_EQ(refusal(R"({"100": 1e3, "20": 1, "100": 5})"), "h.json: 100: the length is given twice");
  EXPECT_EQ(refusal(R"({"100": 1, "0100": 5})"), "h.json: 100: length 100 is given twice");
}

TEST(LengthHistogram, SamplesFollowTheWeights) {
  const LengthHistogram histogram{{{10, 1}, {20, 3}, {1000, 0.5}}};
  const std::vector<int64_t> drawn = sample_lengths(histogram, 7, 90'000);
  EXPECT_EQ(drawn, sample_lengths(histogram, 7, 90'000));
  const LengthHistogram counts = histogram_of(drawn);
  ASSERT_EQ(counts.weights.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(counts.weights[i].second / 20'000, histogram.weights[i].second, 0.03);
}

TEST(PublishedLengths, HaveTheMeanAndSkewnessOfTable4BeforeTheirCut) {
  for (const PublishedDataset& dataset : published_datasets()) {
    for (const LengthFamily family : all_length_families) {
      const LengthHistogram histogram = fitted_lengths(family, dataset.mean, dataset.skewness, 1 << 17, 16);
      EXPECT_NEAR(histogram.total(), 1, 1e-4) << dataset.name;
      // Lengths are rounded up to steps of 16, so the mean is up to 16 too long.
      EXPECT_NEAR(histogram.mean() - 8, dataset.mean, 8.5) << dataset.name << " " << to_string(family);
      if (dataset.skewness > 4) continue;  // tails beyond the grid
      EXPECT_NEAR(histogram.skewness(), dataset.skewness, 0.05 * dataset.skewness) << dataset.name;
    }
  }
}

/// The cut takes from the mean; docs/planning.md says how much.
TEST(PublishedLengths, HaveTheMeansThatTheDocumentationSays) {
  std::ifstream file(source_folder() / "docs" / "planning.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const PublishedDataset& dataset : published_datasets()) {
    std::string row = fmt::format("| {} | {:.0f}", dataset.name, dataset.mean);
    for (const LengthFamily family : all_length_families) {
      row += fmt::format(" | {:.0f}", published_lengths(fmt::format("{}-{}", dataset.name, to_string(family))).mean());
    }
    EXPECT_THAT(page, testing::HasSubstr(row + " |\n"));
  }
}

TEST(PublishedLengths, AreFoundByNameAndCutAtTheirClass) {
  EXPECT_EQ(published_length_names().size(), 36u + 4);
  for (const std::string& name : published_length_names()) EXPECT_NEAR(published_lengths(name).total(), 1, 1e-4) << name;
  for (const PublishedDataset& dataset : published_datasets()) {
    for (const LengthFamily family : all_length_families) {
      EXPECT_EQ(published_lengths(fmt::format("{}-{}", dataset.name, to_string(family))).longest(), dataset.longest) << dataset.name;
    }
  }
  EXPECT_EQ(find_histogram({.histogram = "xsum-gamma"}), published_lengths("xsum-gamma"));
  EXPECT_THROW(published_lengths("xsum"), UserError);
}

TEST(PublishedLengths, OfMuxTuneAndMLoRAAreOneLengthEach) {
  const auto only = [](int64_t tokens) { return LengthHistogram{.weights = {{tokens, 1.0}}}; };
  EXPECT_EQ(find_histogram({.histogram = "muxtune-sst2"}), only(64));
  EXPECT_EQ(find_histogram({.histogram = "muxtune-openbookqa"}), only(128));
  EXPECT_EQ(find_histogram({.histogram = "muxtune-rte"}), only(256));
  EXPECT_EQ(find_histogram({.histogram = "mlora-512"}), only(512));
  try {
    published_lengths("muxtune-sst");
    FAIL() << "it is no name";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean 'muxtune-sst2'?"));
    EXPECT_THAT(error.what(), testing::HasSubstr("muxtune-openbookqa, muxtune-rte, mlora-512"));
  }
}

}  // namespace
}  // namespace cotune
