#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "evaluate/choice_likelihoods.h"
#include "evaluate/held_out_loss.h"
#include "evaluate/last_answer.h"
#include "evaluate/random_tokens.h"
#include "model/weights/model_files.h"
#include "ops/memory.h"
#include "support/source_folder.h"
#include "support/test_device.h"

namespace cotune::testing {
namespace {

/// positions: of rows that it is ready for; 0: all of its context.
std::shared_ptr<Backbone> tiny_model(int64_t positions = 0) {
  return Backbone::load(open_model(source_folder() / "tests/model_weights/data/smollm2"), at::kDouble,
                        test_device(), {.training = false, .positions = positions});
}

/// −Σ ln p of the tokens from `begin` > 0 on, each of them in a pass of its own.
double plain_loss(Generator& generator, const std::vector<int32_t>& tokens, size_t begin) {
  double loss = 0;
  CachedSequence sequence;
  for (size_t i = begin; i < tokens.size(); ++i) {
    const Generator::Feed feed{&sequence, std::span(tokens).subspan(sequence.tokens().size(), i - sequence.tokens().size())};
    generator.feed({&feed, 1}, [&](size_t, std::span<const double> logits) {
      double highest = logits[0], sum = 0;
      for (const double logit : logits) highest = std::max(highest, logit);
      for (const double logit : logits) sum += std::exp(logit - highest);
      loss -= logits[static_cast<size_t>(tokens[i])] - highest - std::log(sum);
    });
  }
  return loss;
}

TEST(HeldOutLosses, AreThoseOfEveryExampleHoweverManyThereAre) {
  const auto model = tiny_model();
  Generator generator(model);
  Dataset few("few"), many("many");
  std::vector<double> expected;
  for (uint64_t i = 0; i < 40; ++i) {
    Example example;
    example.tokens = random_tokens(i, 2 + i * 7 % 90);
    const size_t begin = example.tokens.size() - 1 - i % std::min<size_t>(example.tokens.size() - 1, 4);
    example.learned.assign(example.tokens.size(), 0);
    std::fill(example.learned.begin() + static_cast<std::ptrdiff_t>(begin), example.learned.end(), 1);
    many.add(example);
    if (i < 3) few.add(example);
    expected.push_back(plain_loss(generator, example.tokens, begin));
  }
  const std::vector<EvaluationPair> pairs = {{nullptr, &many}, {nullptr, &few}, {nullptr, &many}};
  int64_t last = 0;
  const auto losses = held_out_losses(model, pairs, {.on_progress = [&](int64_t done, int64_t all) {
                                        EXPECT_GT(done, last);
                                        EXPECT_EQ(all, 83);
                                        last = done;
                                      }});
  ASSERT_TRUE(losses);
  EXPECT_EQ(last, 83);
  for (const size_t pair : {0, 2}) {
    ASSERT_EQ((*losses)[pair].loss_sums.size(), 40u);
    for (size_t i = 0; i < 40; ++i) EXPECT_NEAR((*losses)[pair].loss_sums[i], expected[i], 1e-9 * expected[i]);
  }
  ASSERT_EQ((*losses)[1].loss_sums.size(), 3u);
  EXPECT_EQ((*losses)[0].token_counts[5], 2.0);
  EXPECT_FALSE(held_out_losses(model, pairs, {.interrupted = [] { return true; }}));
}

TEST(HeldOutLosses, OfRowsBeyondThoseThatTheModelIsReadyForAreTheSame) {
  Dataset data("long");
  for (uint64_t i = 0; i < 3; ++i) {
    Example example;
    example.tokens = random_tokens(i, 10 + 70 * i);
    example.learned.assign(example.tokens.size(), 1);
    data.add(example);
  }
  const EvaluationPair pair{nullptr, &data};
  const auto few = tiny_model(8);
  const auto found = held_out_losses(few, {&pair, 1}), expected = held_out_losses(tiny_model(), {&pair, 1});
  EXPECT_EQ(few->positions(), 150);
  EXPECT_EQ(found->front().loss_sums, expected->front().loss_sums);
}

TEST(ChoiceLikelihoods, BeyondTheRowsThatTheModelIsReadyForAreTheSame) {
  const std::vector<TokenizedChoices> questions = {{random_tokens(1, 40), {random_tokens(2, 3), random_tokens(3, 30)}}};
  const std::vector<Adapter*> base = {nullptr};
  const auto likelihoods = [&](int64_t positions) {
    Generator generator(tiny_model(positions));
    std::vector<double> values;
    const auto found = choice_likelihoods(generator, base, questions, 10000 * cached_bytes_per_token(generator.backbone()));
    for (const Likelihood& choice : found->front().front()) values.push_back(choice.log_probability);
    return values;
  };
  EXPECT_EQ(likelihoods(8), likelihoods(0));
}

TEST(ChoiceLikelihoods, AreThoseOfTheWholeText) {
  Generator generator(tiny_model(), 50), plain(tiny_model());
  std::vector<TokenizedChoices> questions;
  for (uint64_t i = 0; i < 30; ++i) {
    TokenizedChoices& question = questions.emplace_back(TokenizedChoices{random_tokens(i, 1 + i * 11 % 130), {}});
    for (uint64_t k = 0; k < 2 + i % 3; ++k) question.choices.push_back(random_tokens(100 * i + k, 1 + (i + k) % 5));
  }
  std::vector<Adapter*> adapters = {nullptr, nullptr};
  const int64_t token = cached_bytes_per_token(generator.backbone());
  const auto found = choice_likelihoods(generator, adapters, questions, 10000 * token);
  ASSERT_TRUE(found);
  for (const auto& of_adapter : *found) {
    ASSERT_EQ(of_adapter.size(), questions.size());
    for (size_t i = 0; i < questions.size(); ++i) {
      ASSERT_EQ(of_adapter[i].size(), questions[i].choices.size());
      for (size_t k = 0; k < questions[i].choices.size(); ++k) {
        std::vector<int32_t> whole = questions[i].question;
        whole.insert(whole.end(), questions[i].choices[k].begin(), questions[i].choices[k].end());
        EXPECT_NEAR(of_adapter[i][k].log_probability, -plain_loss(plain, whole, questions[i].question.size()), 1e-9) << i << " " << k;
        EXPECT_EQ(of_adapter[i][k].labels, static_cast<int64_t>(questions[i].choices[k].size()));
      }
    }
  }
  for (const int64_t tokens : {0, 100, 300, 700}) {
    size_t done = 0;
    const auto few = choice_likelihoods(generator, adapters, questions, tokens * token, {}, [&](size_t now) {
      EXPECT_GE(now, done);
      done = now;
    });
    ASSERT_TRUE(few);
    EXPECT_EQ(done, questions.size());
    for (size_t adapter = 0; adapter < adapters.size(); ++adapter) {
      for (size_t i = 0; i < questions.size(); ++i) {
        ASSERT_EQ((*few)[adapter][i].size(), questions[i].choices.size());
        for (size_t k = 0; k < questions[i].choices.size(); ++k) {
          EXPECT_NEAR((*few)[adapter][i][k].log_probability, (*found)[adapter][i][k].log_probability, 1e-9) << tokens << " " << i << " " << k;
        }
      }
    }
  }
  EXPECT_FALSE(choice_likelihoods(generator, adapters, questions, 0, [] { return true; }));
}

TEST(ChoiceLikelihoods, HoldNoMoreKeysAndValuesThanTheyMay) {
  install_counting_allocator();
  const auto model = tiny_model();
  Generator generator(model);
  TokenizedChoices question{random_tokens(1, 129), {}};
  for (uint64_t k = 0; k < 20; ++k) question.choices.push_back(random_tokens(100 + k, 11));
  const std::vector<Adapter*> adapters(3, nullptr);
  const std::vector<TokenizedChoices> questions = {question, question};
  for (const int64_t tokens : {300, 1000, 4000}) {
    const int64_t before = memory_usage()[MemoryKind::chain_kv];
    reset_memory_peaks();
    ASSERT_TRUE(choice_likelihoods(generator, adapters, questions, tokens * cached_bytes_per_token(*model)));
    EXPECT_LE(memory_usage().peak_bytes[static_cast<size_t>(MemoryKind::chain_kv)] - before, tokens * cached_bytes_per_token(*model)) << tokens;
  }
}

TEST(LastAnswer, IsTheLastRunOfLearnedTokens) {
  Dataset data("x");
  data.add({.tokens = {1, 2, 3, 4, 5, 6}, .learned = {0, 1, 0, 1, 1, 0}, .source = "", .line = 1});
  data.add({.tokens = {1, 2}, .learned = {0, 0}, .source = "", .line = 2});
  const LastAnswer last = last_answer_of(data, 0).value();
  EXPECT_EQ(std::vector<int32_t>(last.prompt.begin(), last.prompt.end()), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(std::vector<int32_t>(last.answer.begin(), last.answer.end()), (std::vector<int32_t>{4, 5}));
  EXPECT_FALSE(last_answer_of(data, 1));
}

}  // namespace
}  // namespace cotune::testing
