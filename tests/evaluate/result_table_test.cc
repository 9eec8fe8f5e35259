#include "evaluate/result_table.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

const EvaluationResult two_models = {
    .data = "x.jsonl",
    .examples = 20,
    .tokens = 300,
    .adapters = {{"base", {{"loss", false, {2.5, 0.01}, {}}, {"exact_match", true, {0.1, 0.02}, {}}}},
                 {"support-r16", {{"loss", false, {1.25, 0.5}, {-1.25, 0.25}}, {"exact_match", true, {0.55, 0.1}, {0.45, 0.125}}}}}};

TEST(ResultTable, HasARowForEveryMetricAndAdapter) {
  EXPECT_EQ(result_table(two_models),
            "x.jsonl: 20 examples, 300 learned tokens\n"
            "metric       adapter      value             change from base\n"
            "loss         base         2.5000 ± 0.0100\n"
            "             support-r16  1.2500 ± 0.5000   -1.2500 ± 0.2500\n"
            "exact_match  base         10.0% ± 2.0\n"
            "             support-r16  55.0% ± 10.0      +45.0 ± 12.5\n");
}

TEST(ResultTable, IsAListWhereAWindowIsTooNarrowForARow) {
  EXPECT_EQ(result_table(two_models, true, 63), result_table(two_models));
  EXPECT_EQ(result_table(two_models, true, 40),
            "x.jsonl: 20 examples, 300 learned tokens\n"
            "loss\n"
            "  base\n"
            "    2.5000 ± 0.0100\n"
            "  support-r16\n"
            "    1.2500 ± 0.5000 (-1.2500 ± 0.2500)\n"
            "exact_match\n"
            "  base\n"
            "    10.0% ± 2.0\n"
            "  support-r16\n"
            "    55.0% ± 10.0 (+45.0 ± 12.5)\n"
            "(change from base)\n");
}

TEST(ResultTable, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(result_table({.data = "x", .examples = 1, .adapters = {{"a", {{"acc", true, {1.0, std::nan("")}, {}}}}}}, false),
            "x: 1 example\n"
            "metric  adapter  value\n"
            "acc     a        100.0%\n");
}

TEST(ResultTable, SaysWhatIsNotFinite) {
  const EvaluationResult result = {.data = "x", .examples = 1, .adapters = {{"a", {{"acc", true, {}, {}}}}, {"b", {{"acc", true, {1.0, std::nan("")}, {}}}}}};
  EXPECT_EQ(result_table(result),
            "x: 1 example\n"
            "metric  adapter  value       change from a\n"
            "acc     a        not finite\n"
            "        b        100.0%\n");
  EXPECT_EQ(result_lines(result)[0].dump(), R"({"data":"x","adapter":"a","examples":1,"acc":null,"acc_stderr":null})");
}

TEST(ResultTable, AsLinesHasWhatProgramsRead) {
  const auto lines = result_lines(two_models);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(
      lines[0].dump(),
      R"({"data":"x.jsonl","adapter":"base","examples":20,"tokens":300,"loss":2.5,"loss_stderr":0.01,"exact_match":0.1,"exact_match_stderr":0.02})");
  EXPECT_EQ(lines[1]["loss_change"], -1.25);
  EXPECT_EQ(lines[1]["exact_match_change_stderr"], 0.125);
}

}  // namespace
}  // namespace cotune
