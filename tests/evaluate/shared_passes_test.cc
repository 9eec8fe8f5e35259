// Evaluation of several adapters takes the frozen products of one: counted where they are made.
#include <gtest/gtest.h>

#include "adapter/adapter.h"
#include "evaluate/choice_likelihoods.h"
#include "evaluate/held_out_loss.h"
#include "evaluate/random_tokens.h"
#include "jobs/target_modules.h"
#include "model/weights/model_files.h"
#include "ops/call_counts.h"
#include "support/source_folder.h"
#include "support/test_device.h"

namespace cotune::testing {
namespace {

constexpr int64_t row_tokens = 16;

Dataset rows(const std::string& name, uint64_t count) {
  Dataset data(name);
  for (uint64_t i = 0; i < count; ++i) {
    data.add({.tokens = random_tokens(i, row_tokens), .learned = std::vector<uint8_t>(row_tokens, 1), .source = "", .line = 1});
  }
  return data;
}

/// What an evaluation has called.
struct Calls {
  int64_t operators = 0;  ///< of all microbatches
  int64_t frozen = 0;
  bool operator==(const Calls&) const = default;
};
void PrintTo(const Calls& calls, std::ostream* out) { *out << calls.operators << " operators, " << calls.frozen << " frozen products"; }

class SharedPasses : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  SharedPasses() {
    for (const int64_t size : {4, 8, 3, 16}) {
      JobSpec job;
      job.adapter.r = size;
      if (size == 8) job.adapter.method = AdapterMethod::bottleneck;
      AdapterSetup setup;
      setup.spec = job.adapter;
      setup.modules = resolve_target_modules(job, model_->config().layer_count);
      setup.compute = GetParam();
      setup.device = test_device();
      adapters_.push_back(make_adapter(model_->config(), std::move(setup)));
      all_.push_back(adapters_.back().get());
    }
  }

  Calls calls_of(std::span<const EvaluationPair> pairs, int64_t token_budget = 1024) const {
    Calls calls;
    const CallCounts before = call_counts();
    const auto count = [&] {
      ++calls.operators;
      return false;
    };
    EXPECT_TRUE(held_out_losses(model_, pairs, {.on_progress = {}, .interrupted = count}, token_budget));
    calls.frozen = (call_counts() - before).frozen;
    return calls;
  }

  /// q|k|v, o, gate|up, down; the logits of the loss.
  int64_t products_of_a_microbatch() const { return 4 * model_->config().layer_count + 1; }

  std::shared_ptr<Backbone> model_ = Backbone::load(
      open_model(source_folder() / "tests/model_weights/data/smollm2"), GetParam(), test_device(), {.training = false});
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::vector<Adapter*> all_ = {nullptr};
};

TEST_P(SharedPasses, LossesOfSeveralAdaptersTakeTheFrozenProductsOfOne) {
  const Dataset data = rows("held out", 12);
  std::vector<Dataset> own;
  for (size_t i = 0; i < all_.size(); ++i) own.push_back(rows("own", 12));
  std::vector<EvaluationPair> on_one_set, on_their_own;
  for (size_t i = 0; i < all_.size(); ++i) {
    const EvaluationPair alone{all_[i], &data};
    const Calls one = calls_of({&alone, 1});
    EXPECT_EQ(one.frozen, products_of_a_microbatch());
    on_one_set.push_back(alone);
    on_their_own.push_back({all_[i], &own[i]});
    EXPECT_EQ(calls_of(on_one_set), one) << i + 1 << " adapters";
    EXPECT_EQ(calls_of(on_their_own), one) << i + 1 << " adapters on sets of their own";
  }
}

TEST_P(SharedPasses, LossesTakeAsManyMicrobatchesAsTheirTokensFillWhoseverTheyAre) {
  constexpr uint64_t count = 32;
  constexpr int64_t budget = row_tokens * count;
  const Dataset data = rows("held out", count);
  std::vector<EvaluationPair> pairs;
  for (Adapter* adapter : all_) {
    pairs.push_back({adapter, &data});
    const auto k = static_cast<int64_t>(pairs.size());
    EXPECT_EQ(calls_of(pairs, budget).frozen, k * products_of_a_microbatch());
    EXPECT_EQ(calls_of(pairs, k * budget).frozen, products_of_a_microbatch());
  }
}

TEST_P(SharedPasses, ChoicesOfSeveralAdaptersTakeTheFrozenProductsOfOne) {
  std::vector<TokenizedChoices> questions;
  for (uint64_t i = 0; i < 4; ++i) questions.push_back({random_tokens(i, 20), {random_tokens(10 + i, 3), random_tokens(20 + i, 4)}});
  Generator generator(model_);
  const auto frozen = [&](std::span<Adapter* const> adapters) {
    const CallCounts before = call_counts();
    EXPECT_TRUE(choice_likelihoods(generator, adapters, questions, int64_t{1} << 30));
    return (call_counts() - before).frozen;
  };
  // The questions, of which nothing is asked yet, and the choices behind them.
  const int64_t expected = 2 * products_of_a_microbatch() - 1;
  for (size_t k = 1; k <= all_.size(); ++k) EXPECT_EQ(frozen(std::span(all_).first(k)), expected) << k << " adapters";
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SharedPasses, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace cotune::testing
