#include "plan/cost/measured_times.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/nonnegative_least_squares.h"
#include "plan/cost/priced_stage.h"
#include "plan/cost/stage_cost.h"
#include "plan/synthetic_profile.h"

namespace cotune {
namespace {

double squared_error(const std::vector<std::vector<double>>& rows, const std::vector<double>& b, const std::vector<double>& x) {
  double sum = 0;
  for (size_t k = 0; k < rows.size(); ++k) {
    double value = -b[k];
    for (size_t i = 0; i < x.size(); ++i) value += rows[k][i] * x[i];
    sum += value * value;
  }
  return sum;
}

TEST(NonnegativeLeastSquares, RecoversNonnegativeCoefficientsOfScalesFarApart) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const size_t n = 1 + seed % 9;
    std::vector<double> truth(n);
    for (size_t i = 0; i < n; ++i) truth[i] = uniform(seed, i) < 0.3 ? 0 : uniform(seed, 50 + i) * std::pow(10, -static_cast<double>(i));
    std::vector<std::vector<double>> rows;
    std::vector<double> b;
    for (size_t k = 0; k < 3 * n + 2; ++k) {
      std::vector<double> row(n);
      double value = 0;
      for (size_t i = 0; i < n; ++i) {
        row[i] = uniform(seed, 1000 + k * n + i) * std::pow(10, static_cast<double>(i));
        value += row[i] * truth[i];
      }
      rows.push_back(row);
      b.push_back(value);
    }
    const std::vector<double> found = nonnegative_least_squares(rows, b);
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(found[i], truth[i], 1e-7 * (truth[i] + 1e-9)) << seed << " " << i;
  }
}

TEST(NonnegativeLeastSquares, IsNotBeatenByAnyFeasibleNeighbour) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const size_t n = 1 + seed % 6;
    std::vector<std::vector<double>> rows(10, std::vector<double>(n));
    std::vector<double> b(10);
    for (size_t k = 0; k < 10; ++k) {
      for (size_t i = 0; i < n; ++i) rows[k][i] = uniform(seed, k * 10 + i) - 0.3;
      b[k] = uniform(seed, 500 + k) - 0.5;
    }
    const std::vector<double> found = nonnegative_least_squares(rows, b);
    const double error = squared_error(rows, b, found);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_GE(found[i], 0);
      for (const double step : {-1e-3, 1e-3}) {
        std::vector<double> other = found;
        other[i] = std::max(0.0, other[i] + step);
        EXPECT_GE(squared_error(rows, b, other), error - 1e-12) << seed << " " << i;
      }
    }
  }
}

TEST(NonnegativeLeastSquares, GivesNothingToColumnsThatAreZeroOrRepeated) {
  const std::vector<double> found = nonnegative_least_squares({{1, 0, 1}, {2, 0, 2}, {3, 0, 3}}, {2, 4, 6});
  EXPECT_EQ(found[1], 0);
  EXPECT_NEAR(found[0] + found[2], 2, 1e-12);
}

/// A step that is none of the canonical shapes.
ProfiledShape other_shape(uint64_t seed) {
  ProfiledShape shape{.labelled_share = 0.2 + 0.8 * uniform(seed, 0),
                      .token_budget = 256 * (1 + static_cast<int64_t>(uniform_below(seed, 1, 6)))};
  const auto jobs = 1 + uniform_below(seed, 2, 6);
  for (uint64_t j = 0; j < jobs; ++j) {
    const auto draw = [&](uint64_t index, uint64_t end) { return static_cast<int64_t>(uniform_below(seed, 100 * (j + 1) + index, end)); };
    ProfiledJob job{.method = static_cast<AdapterMethod>(draw(0, 3)), .width = 1 + draw(1, 100)};
    if (job.method == AdapterMethod::diff_pruning) job = {.method = job.method, .density = 0.001 * static_cast<double>(1 + draw(1, 20))};
    if (job.method == AdapterMethod::lora && draw(2, 3) == 0) job.dropout = 0.1;
    job.projections = {Projection::o, Projection::down};
    if (job.method != AdapterMethod::bottleneck) job.projections.insert(job.projections.begin(), {Projection::q, Projection::k});
    const int64_t rows = 1 + draw(3, 8);
    for (int64_t r = 0; r < rows; ++r) job.row_lengths.push_back(2 + draw(10 + static_cast<uint64_t>(r), 700));
    shape.jobs.push_back(job);
  }
  return shape;
}

TEST(MeasuredTimes, PredictStepsThatWereNeverMeasured) {
  const ModelConfig config = model_preset("smollm2-135m");
  for (const auto& [noise, allowed] : {std::pair{0.0, 0.02}, std::pair{0.1, 0.1}}) {
    const MeasuredTimes times(synthetic_profile(config, noise), config, "profile.json");
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const PlannedStep step = planned_step(config, other_shape(seed));
      double truth = 0;
      for (const auto& [key, terms] : step_terms(config, step)) {
        const std::vector<std::string> names = operator_term_names(key);
        const size_t base_key = std::hash<std::string>{}(key) % 1000;
        for (size_t i = 0; i < names.size(); ++i) truth += true_coefficient(base_key, i, names[i]) * terms.sums[i];
      }
      const StepSeconds found = times.step_seconds(config, step);
      EXPECT_NEAR(found.total / truth, 1, allowed) << seed;
      double sum = 0;
      for (const auto& [key, seconds] : found.by_operator) sum += seconds;
      EXPECT_NEAR(sum, found.total, 1e-12 * found.total);
    }
  }
}

/// What a step takes on a device that is not of the form that is fitted: each call takes a launch at least, beside which all of its work is done.
struct LaunchedStep {
  struct Calls {
    double seconds = 0;
    int64_t count = 0;
  };
  std::map<std::string, Calls> calls;  ///< by profile_key
  double seconds = 0;                  ///< of all
  double waited_s = 0;                 ///< of them: for launches that take longer than the work
};

LaunchedStep launched(const ModelConfig& config, const PlannedStep& step, double launch_s) {
  const StageShape stage{.last_layer = config.layer_count};
  const StepOperators operators(config, step);
  LaunchedStep result;
  for (const Action& action : step.plan.actions) {
    for (const Operator* op : operators.of(action)) {
      const std::string key = profile_key(*op);
      const std::vector<double> terms = operator_terms(config, stage, *op, operators.counts(action.microbatch));
      const std::vector<std::string> names = operator_term_names(key);
      double work_s = 0;
      for (size_t i = 0; i < names.size(); ++i) {
        if (names[i] != "1") work_s += true_coefficient(std::hash<std::string>{}(key) % 1000, i, names[i]) * terms[i];
      }
      LaunchedStep::Calls& calls = result.calls[key];
      calls.seconds += std::max(launch_s, work_s);
      ++calls.count;
      result.seconds += std::max(launch_s, work_s);
      result.waited_s += std::max(0.0, launch_s - work_s);
    }
  }
  return result;
}

/// MX-10: mixes that were never measured.
TEST(MeasuredTimes, OfADeviceWithATermThatTheModelLacksAreOffByFifteenPercentAtMostOnAverage) {
  const ModelConfig config = model_preset("smollm2-135m");
  constexpr uint64_t mixes = 20;
  for (const double launch_s : {6e-3, 1e-2, 2e-2}) {
    Profile profile = synthetic_profile(config, 0);
    std::erase_if(profile.operators, [](const auto& each) { return each.first != round_key; });
    ModelConfig measured = config;
    measured.layer_count = profile.layer_count;
    for (size_t shape = 0; shape < profile.shapes.size(); ++shape) {
      for (const auto& [key, calls] : launched(measured, planned_step(measured, profile.shapes[shape]), launch_s).calls) {
        profile.operators[key].push_back({static_cast<int64_t>(shape), calls.count, calls.seconds / static_cast<double>(calls.count), 0, 5});
      }
    }
    const MeasuredTimes times(profile, config, "profile.json");
    double error = 0, waited = 0;
    for (uint64_t seed = 0; seed < mixes; ++seed) {
      const PlannedStep step = planned_step(config, other_shape(9000 + seed));
      const StepSeconds found = times.step_seconds(config, step);
      const LaunchedStep truth = launched(config, step, launch_s);
      const double operators_s = found.total - found.by_operator.at(round_key);  // the round itself has no such term
      error += std::abs(operators_s / truth.seconds - 1) / static_cast<double>(mixes);
      waited += truth.waited_s / truth.seconds / static_cast<double>(mixes);
    }
    EXPECT_LE(error, 0.15) << launch_s;
    EXPECT_GT(waited, 0.1) << launch_s << ": it hardly shows";
    RecordProperty("mean_error_" + std::to_string(std::lround(1e6 * launch_s)) + "_us", std::to_string(error));
    RecordProperty("waited_" + std::to_string(std::lround(1e6 * launch_s)) + "_us", std::to_string(waited));
  }
}

TEST(MeasuredTimes, NeverFallWhenAStepGrows) {
  const ModelConfig config = model_preset("smollm2-135m");
  const MeasuredTimes times(synthetic_profile(config, 0.5), config, "profile.json");
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ProfiledShape shape = other_shape(seed);
    shape.token_budget = 1 << 20;  // one microbatch: what grows is what the terms name
    const double before = times.step_seconds(config, planned_step(config, shape)).total;
    const auto job = static_cast<size_t>(uniform_below(seed, 7, shape.jobs.size()));
    const auto grown = [&](auto change) {
      ProfiledShape larger = shape;
      change(larger);
      return times.step_seconds(config, planned_step(config, larger)).total;
    };
    EXPECT_GE(grown([&](ProfiledShape& s) { s.jobs[job].row_lengths.push_back(40); }), before) << seed;
    EXPECT_GE(grown([&](ProfiledShape& s) { s.jobs[job].row_lengths[0] += 300; }), before) << seed;
    EXPECT_GE(grown([&](ProfiledShape& s) { s.labelled_share = 1; }), before) << seed;
    EXPECT_GE(grown([&](ProfiledShape& s) { s.jobs[job].density = std::min(1.0, s.jobs[job].density * 2); }), before) << seed;
    EXPECT_GE(grown([&](ProfiledShape& s) { s.jobs[job].width *= 2; }), before) << seed;
    EXPECT_GE(grown([&](ProfiledShape& s) { s.jobs.push_back(other_shape(seed + 1000).jobs[0]); }), before) << seed;
  }
}

TEST(MeasuredTimes, TakeThePlaceOfTheRoofline) {
  const ModelConfig config = model_preset("smollm2-135m");
  const MeasuredTimes times(synthetic_profile(config, 0), config, "profile.json");
  const PlannedStep step = planned_step(config, {{{AdapterMethod::lora, 12, 0, 0, {Projection::q, Projection::down}, {70, 35}}}});
  StageMachine machine{device_preset("A40"), link_preset("pcie4"), "bfloat16"};
  machine.measured = &times;
  const MicrobatchCounts counts = count_microbatch(step.plan.microbatches[0], step.labelled[0]);
  const StageSeconds stage = stage_seconds(config, {0, 30, true, true, 1}, step.adapters, counts, machine);
  const StepSeconds whole = times.step_seconds(config, step);
  EXPECT_NEAR(stage.total(), whole.total - whole.by_operator.at(round_key), 1e-9 * whole.total);
}

TEST(MeasuredTimes, OfWholeLayersGiveADividedStageItsCallsAndItsShareOfTheRest) {
  const ModelConfig config = model_preset("smollm2-135m");
  const MeasuredTimes times(synthetic_profile(config, 0), config, "profile.json");
  const PlannedStep step = planned_step(config, {{{AdapterMethod::lora, 12, 0, 0, {Projection::q, Projection::down}, {70, 35}}}});
  const MicrobatchCounts counts = count_microbatch(step.plan.microbatches[0], step.labelled[0]);
  const StageShape whole{0, 30, true, true, 1}, third{0, 30, true, true, 3};
  std::map<OperatorKind, int> checked;
  for (const Operator& op : stage_operators(config, third, step.adapters, Direction::forward)) {
    const std::vector<double>& c = times.fits().at(profile_key(op)).coefficients;
    const double tokens = static_cast<double>(counts.tokens), padded = static_cast<double>((counts.tokens + 63) / 64 * 64);
    double expected = 0;
    switch (op.kind) {
      case OperatorKind::attention:
        expected = c[0] + (c[1] * tokens + c[2] * static_cast<double>(counts.attention_pairs) + c[3] * static_cast<double>(counts.row_parts)) / 3;
        break;
      case OperatorKind::swiglu: expected = c[0] + c[1] * tokens / 3; break;
      case OperatorKind::attention_norm: expected = c[0] + c[1] * tokens; break;
      case OperatorKind::o_proj: expected = c[0] + (c[1] * tokens + c[2] * padded) / 3; break;
      case OperatorKind::qkv_proj:  // q is divided by its outputs: A is whole
        expected = c[0] + (c[1] * tokens + c[2] * padded) / 3 + c[3] + tokens * 32 * (c[4] * 576 + c[5] * 192);
        break;
      case OperatorKind::down_proj:  // by its inputs: B is whole
        expected = c[0] + (c[1] * tokens + c[2] * padded) / 3 + c[3] + tokens * 32 * (c[4] * 512 + c[5] * 576);
        break;
      default: continue;
    }
    EXPECT_NEAR(times.operator_seconds(config, third, op, counts), expected, 1e-9 * expected) << op.name();
    EXPECT_LE(times.operator_seconds(config, third, op, counts), times.operator_seconds(config, whole, op, counts)) << op.name();
    ++checked[op.kind];
  }
  EXPECT_EQ(checked.size(), 6u);
}

TEST(MeasuredTimes, OfDividedLayersSayNothingOfOtherDegrees) {
  const ModelConfig config = model_preset("smollm2-135m");
  Profile profile = synthetic_profile(config, 0);
  profile.fingerprint.tensor_parallel = 3;
  const MeasuredTimes times(profile, config, "profile.json");
  EXPECT_TRUE(times.is_of(3));
  EXPECT_FALSE(times.is_of(1));
  const Operator norm{.kind = OperatorKind::attention_norm};
  EXPECT_GT(times.operator_seconds(config, {0, 30, true, true, 3}, norm, {.tokens = 10}), 0);
  EXPECT_THROW(times.operator_seconds(config, {0, 30, true, true, 1}, norm, {.tokens = 10}), UserError);
}

TEST(MeasuredTimes, RefuseAProfileOfAnotherModelOrWithoutAnOperator) {
  const ModelConfig config = model_preset("smollm2-135m");
  Profile profile = synthetic_profile(config, 0);
  EXPECT_THROW(MeasuredTimes(profile, model_preset("tinyllama-1.1b"), "profile.json"), UserError);
  profile.operators.erase("swiglu");
  try {
    MeasuredTimes(profile, config, "profile.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "profile.json: operators.swiglu: has no times");
  }
}

/// A profile has times of operators alone: collectives are the link's with it and without.
TEST(MeasuredTimes, OfDividedTokensAreThoseOfSlicesAndOfTheLink) {
  const ModelConfig model = model_preset("smollm2-135m");
  Profile profile = synthetic_profile(model, 0);
  profile.fingerprint.tensor_parallel = 3;
  const MeasuredTimes times(profile, model, "profile.json");
  const StageShape slices{4, 9, false, false, 3, true};
  StageShape whole = slices;
  whole.is_sequence_parallel = false;
  const MicrobatchCounts counts{.tokens = 301, .labelled = 301, .attention_pairs = 40000, .job_tokens = {301}, .row_parts = 2, .job_atoms = {2}};
  MicrobatchCounts slice = counts;
  slice.tokens = slice.job_tokens[0] = 101;
  const Operator norm{.kind = OperatorKind::mlp_norm, .layer = 4};
  EXPECT_NEAR(times.operator_seconds(model, slices, norm, counts), times.operator_seconds(model, whole, norm, slice), 1e-15);
  // A bottleneck's own part of a product, which is computed whole.
  Operator product{.kind = OperatorKind::down_proj, .layer = 4};
  const auto own = [&](const StageShape& stage, const MicrobatchCounts& rows) {
    Operator adapted = product;
    adapted.adapters = {{0, AdapterMethod::bottleneck, 4, Projection::down, 16, 0}};
    return times.operator_seconds(model, stage, adapted, rows) - times.operator_seconds(model, stage, product, rows);
  };
  EXPECT_NEAR(own(slices, counts), own(whole, slice), 1e-15);
  EXPECT_LT(own(slices, counts), own(whole, counts));
  StageMachine measured{device_preset("cpu"), link_preset("pcie4"), "bfloat16"}, roofline = measured;
  measured.measured = &times;
  const std::vector<AdapterShape> adapters = {{0, AdapterMethod::lora, 5, Projection::q, 8, 0}};
  const StageSeconds of_profile = PricedStage(model, slices, adapters, measured).collectives(counts);
  EXPECT_GT(of_profile.backward, 0);
  EXPECT_EQ(of_profile, PricedStage(model, slices, adapters, roofline).collectives(counts));
}

}  // namespace
}  // namespace cotune
