#include "engine/generation.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "adapter/adapter_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "engine/model_logits.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "ops/call_counts.h"
#include "ops/memory.h"
#include "support/source_folder.h"

namespace cotune::testing {
namespace {

std::vector<int32_t> random_prompt(uint64_t key, int64_t length, int64_t vocabulary) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>(uniform_below(key, static_cast<uint64_t>(i), static_cast<uint64_t>(vocabulary))));
  }
  return prompt;
}

at::Tensor to_tensor(std::span<const double> values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<double>());
  return tensor;
}

at::Tensor whole_logits(const std::shared_ptr<const Backbone>& backbone, Adapter* adapter,
                        const std::vector<int32_t>& tokens) {
  return model_logits(backbone, adapter, {BatchRow{tokens, std::vector<uint8_t>(tokens.size(), 1), 0}});
}

/// The base model and one adapter of each method, their values as after long training.
struct MixedAdapters {
  std::vector<std::unique_ptr<Adapter>> owned;
  std::vector<Adapter*> all = {nullptr};

  explicit MixedAdapters(const std::shared_ptr<const Backbone>& backbone) {
    const std::vector<RandomJob> jobs = {lora_job("lora", 1, 5, 0.3, {"all-linear"}, {12}),
                                         bottleneck_job("bottleneck", 2, 7, Activation::gelu, {12}),
                                         diff_pruning_job("diff", 3, 0.05, {12}),
                                         lora_job("upper", 4, 33, 0, {"q_proj", "down_proj"}, {12})};
    Interpreter interpreter(backbone);
    for (const RandomJob& job : jobs) {
      owned.push_back(job.make_adapter(backbone->config(), backbone->compute()));
      select_alone(interpreter, job, *owned.back());
      randomise(*owned.back(), job.seed, 0.1);
      all.push_back(owned.back().get());
    }
  }
};

GenerationRequest request_for(std::vector<int32_t> prompt, Adapter* adapter = nullptr, int64_t max_new_tokens = 12) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.adapter = adapter;
  request.max_new_tokens = max_new_tokens;
  return request;
}

void expect_answers_alone(Generator& generator, std::span<const GenerationRequest> requests, std::span<const GeneratedAnswer> together) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const GeneratedAnswer alone = generator.generate(requests.subspan(i, 1)).front();
    EXPECT_EQ(together[i].tokens, alone.tokens) << i;
    EXPECT_EQ(alone.reused_tokens, 0);
  }
}

/// Products with frozen weights of each pass through the model, one after another.
std::vector<int64_t> frozen_calls(Generator& generator, std::span<const GenerationRequest> requests) {
  std::vector<int64_t> until, calls;
  generator.generate(requests, {.interrupted = [&] {
                       until.push_back(call_counts().frozen);
                       return false;
                     }});
  until.push_back(call_counts().frozen);
  for (size_t i = 1; i < until.size(); ++i) calls.push_back(until[i] - until[i - 1]);
  return calls;
}

class GenerationIn : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  /// Of logits, relative to the largest.
  double tolerance() const {
    if (GetParam() == at::kDouble) return 1e-10;
    return GetParam() == at::kFloat ? 1e-4 : 0.05;
  }
};

TEST_P(GenerationIn, PrefillAndDecodeEqualAWholeForwardForEveryMethod) {
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  MixedAdapters adapters(backbone);
  const std::vector<int32_t> tokens = random_prompt(7, 90, 256);
  for (Adapter* adapter : adapters.all) {
    const at::Tensor expected = whole_logits(backbone, adapter, tokens);
    const double allowed = tolerance() * expected.abs().max().item<double>();
    for (const int64_t budget : {5, 64, 1024}) {
      Generator generator(backbone, budget);
      CachedSequence sequence(adapter);
      for (size_t fed = 0; fed < tokens.size();) {
        const size_t count = fed == 0 ? 75 : 1;
        const Generator::Feed feed{&sequence, std::span(tokens).subspan(fed, count)};
        fed += count;
        generator.feed({&feed, 1}, [&](size_t, std::span<const double> logits) {
          const at::Tensor row = expected[static_cast<int64_t>(fed) - 1];
          ASSERT_LE((to_tensor(logits) - row).abs().max().item<double>(), allowed)
              << "token " << fed << " budget " << budget;
        });
      }
      EXPECT_EQ(sequence.tokens(), tokens);
    }
  }
}

TEST_P(GenerationIn, AnAnswerIsTheSameAloneAndInCompany) {
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  MixedAdapters adapters(backbone);
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 11; ++i) {
    requests.push_back(request_for(random_prompt(i, static_cast<int64_t>(1 + 9 * i), 256),
                                   adapters.all[i * 3 % adapters.all.size()], static_cast<int64_t>(3 + 4 * i)));
    if (i % 2 == 0) requests.back().sampling = {.temperature = 0.8, .top_k = 50, .top_p = 0.9, .seed = i};
  }
  if (!test_device().is_cpu() && GetParam() != at::kDouble) GTEST_SKIP() << "rounding may choose another token there";
  Generator generator(backbone, 64);
  const std::vector<GeneratedAnswer> together = generator.generate(requests);
  expect_answers_alone(generator, requests, together);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].tokens.size(), static_cast<size_t>(requests[i].max_new_tokens));
  }
}

TEST_P(GenerationIn, LikelihoodsAreThoseOfAWholeForwardAlsoBehindASharedBeginning) {
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  MixedAdapters adapters(backbone);
  const std::vector<int32_t> tokens = random_prompt(11, 60, 256), labels(tokens.begin() + 41, tokens.end());
  const std::span<const int32_t> beginning = std::span(tokens).first(40), rest = std::span(tokens).subspan(40, 19);
  for (const int64_t budget : {7, 1024}) {
    Generator generator(backbone, budget);
    std::vector<CachedSequence> shared, own;
    for (Adapter* adapter : adapters.all) shared.emplace_back(adapter);
    std::vector<Generator::LabelledFeed> feeds;
    for (CachedSequence& sequence : shared) feeds.push_back({{&sequence, beginning}, {}});
    const std::vector<Likelihood> none = generator.likelihoods(feeds).value();
    for (const Likelihood& nothing : none) EXPECT_EQ(nothing.labels, 0);
    feeds.clear();
    for (const CachedSequence& sequence : shared) own.push_back(sequence.copy());
    for (CachedSequence& sequence : own) feeds.push_back({{&sequence, rest}, labels});
    for (CachedSequence& sequence : shared) feeds.push_back({{&sequence, rest.first(1)}, std::span(labels).first(1)});
    const std::vector<Likelihood> found = generator.likelihoods(feeds).value();
    for (size_t i = 0; i < adapters.all.size(); ++i) {
      const at::Tensor log_probabilities = whole_logits(backbone, adapters.all[i], tokens).to(at::kDouble).log_softmax(1);
      double expected = 0;
      bool greedy = true;
      for (size_t at = 40; at + 1 < tokens.size(); ++at) {
        const at::Tensor row = log_probabilities[static_cast<int64_t>(at)];
        expected += row[tokens[at + 1]].item<double>();
        greedy &= row.argmax().item<int64_t>() == tokens[at + 1];
      }
      EXPECT_NEAR(found[i].log_probability, expected, tolerance() * std::abs(expected)) << i;
      EXPECT_EQ(found[i].labels, 19);
      EXPECT_EQ(found[i].is_greedy, greedy);
      EXPECT_EQ(found[adapters.all.size() + i].labels, 1);
      EXPECT_EQ(own[i].tokens().size(), 59u);
      EXPECT_EQ(shared[i].tokens().size(), 41u);
    }
  }
}

TEST_P(GenerationIn, AnAnswerThatEndsGivesItsPlaceToTheNextAtOnce) {
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  if (!test_device().is_cpu() && GetParam() != at::kDouble) GTEST_SKIP() << "rounding may choose another token there";
  MixedAdapters adapters(backbone);
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 9; ++i) {
    requests.push_back(request_for(random_prompt(i, static_cast<int64_t>(1 + 5 * i), 256), adapters.all[i % adapters.all.size()],
                                   static_cast<int64_t>(i == 0 ? 40 : 2 + i)));
  }
  requests[3].max_new_tokens = 0;
  Generator generator(backbone);
  const std::vector<GeneratedAnswer> expected = generator.generate(requests);
  constexpr size_t places = 3;
  size_t begun = 0, ended = 0, largest = 0;
  std::vector<size_t> order;
  RequestSource source;
  source.next = [&]() -> std::optional<GenerationRequest> {
    if (begun == requests.size() || begun - ended == places) return std::nullopt;
    largest = std::max(largest, ++begun - ended);
    return requests[begun - 1];
  };
  source.on_answer = [&](size_t request, const GeneratedAnswer& answer) {
    ++ended;
    order.push_back(request);
    EXPECT_EQ(answer.tokens, expected[request].tokens) << request;
  };
  generator.generate(source);
  EXPECT_EQ(ended, requests.size());
  EXPECT_EQ(largest, places);
  EXPECT_EQ(order.back(), 0u) << "the long one does not hold up the others";
}

TEST_P(GenerationIn, EqualPromptsThatBeginTogetherGoThroughTheModelOnce) {
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  MixedAdapters adapters(backbone);
  const std::vector<int32_t> prompt = random_prompt(5, 70, 256);
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 8; ++i) {
    requests.push_back(request_for(prompt, adapters.all[i % 3], static_cast<int64_t>(1 + 2 * i)));
    requests.back().sampling = {.temperature = 1, .top_k = 50, .top_p = 0.9, .repetition_penalty = 1.1, .seed = i};
  }
  requests[7].prompt.back() ^= 1;
  if (!test_device().is_cpu() && GetParam() != at::kDouble) GTEST_SKIP() << "rounding may choose another token there";
  Generator generator(backbone, 64);
  const std::vector<GeneratedAnswer> together = generator.generate(requests);
  expect_answers_alone(generator, requests, together);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i].reused_tokens, i < 3 || i == 7 ? 0 : 70) << i;
}

TEST_P(GenerationIn, SeveralAdaptersOnOnePromptTakeTheFrozenProductsOfOne) {
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  const int64_t products = 4 * backbone->config().layer_count + 1;  // q|k|v, o, gate|up, down; logits
  MixedAdapters adapters(backbone);
  const std::vector<int32_t> prompt = random_prompt(5, 40, 256);
  std::vector<GenerationRequest> requests;
  Generator generator(backbone), narrow(backbone, 40);
  for (Adapter* adapter : adapters.all) {
    requests.push_back(request_for(prompt, adapter, 6));
    const GenerationRequest& own = requests.back();
    EXPECT_EQ(frozen_calls(generator, {&own, 1}), std::vector<int64_t>(6, products)) << "the prompt's pass and one for each further token";
    EXPECT_EQ(frozen_calls(generator, requests), std::vector<int64_t>(6, products)) << requests.size() << " adapters";
    // Where prompts do not fit into one pass, they take several; decoding does not.
    std::vector<int64_t> passes(requests.size(), products);
    passes.insert(passes.end(), 5, products);
    EXPECT_EQ(frozen_calls(narrow, requests), passes) << requests.size() << " adapters";
  }
}

TEST_P(GenerationIn, NothingStaysInMemory) {
  install_counting_allocator();
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam());
  Generator generator(backbone);
  const GenerationRequest request = request_for(random_prompt(1, 40, 256));
  const MemoryUsage before = memory_usage();
  generator.generate({&request, 1});
  const MemoryUsage after = memory_usage();
  for (const MemoryKind kind : {MemoryKind::chain_kv, MemoryKind::activations, MemoryKind::logits, MemoryKind::workspace}) {
    EXPECT_EQ(after[kind], before[kind]) << to_string(kind);
  }
}

TEST_P(GenerationIn, BeyondTheRowsThatTheModelIsReadyForAnswersAreTheSame) {
  const ModelFiles files = random_model(kernel_friendly_config(), 5);
  const auto few = Backbone::load(files, GetParam(), test_device(), {.training = false, .positions = 16});
  const auto all = Backbone::load(files, GetParam(), test_device(), {.training = false});
  const std::vector<GenerationRequest> requests = {request_for(random_prompt(1, 5, 256), nullptr, 60),
                                                   request_for(random_prompt(2, 40, 256), nullptr, 60)};
  const std::vector<GeneratedAnswer> expected = Generator(all).generate(requests), found = Generator(few).generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(found[i].tokens, expected[i].tokens) << i;
  EXPECT_EQ(expected[1].tokens.size(), 60u);
  EXPECT_GE(few->positions(), 99);
  EXPECT_LT(few->positions(), all->positions());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GenerationIn, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Generation, GreedyTokensEqualTransformersAndPeft) {
  const auto cases = nlohmann::json::parse(
      read_file(source_folder() / "tests/engine/data/generation.json"));
  std::map<std::string, std::shared_ptr<Backbone>> backbones;
  std::map<std::string, std::vector<GenerationRequest>> requests;
  std::map<std::string, std::vector<std::vector<int32_t>>> expected;
  std::vector<std::unique_ptr<Adapter>> adapters;
  for (const auto& item : cases) {
    const auto family = item.at("model").get<std::string>();
    auto& backbone = backbones[family];
    if (backbone == nullptr) backbone = tiny_backbone(family, at::kDouble);
    Adapter* adapter = nullptr;
    if (!item.at("adapter").is_null()) {
      const auto folder = source_folder() / "tests/engine/data/peft" / family /
                          item.at("adapter").get<std::string>();
      AdapterSetup setup = read_adapter_setup(folder, backbone->config());
      setup.compute = at::kDouble;
      setup.device = test_device();
      adapters.push_back(make_adapter(backbone->config(), setup));
      load_adapter(*adapters.back(), folder);
      adapter = adapters.back().get();
    }
    expected[family].push_back(item.at("tokens").get<std::vector<int32_t>>());
    requests[family].push_back(request_for(item.at("prompt").get<std::vector<int32_t>>(), adapter,
                                           static_cast<int64_t>(expected[family].back().size())));
  }
  EXPECT_EQ(backbones.size(), 5u);
  for (const auto& [family, list] : requests) {
    const std::vector<GeneratedAnswer> answers = Generator(backbones.at(family)).generate(list);
    for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(answers[i].tokens, expected[family][i]) << family << " " << i;
  }
}

TEST(Generation, ASequenceHasNoRoomBeyondItsLength) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kFloat);
  Generator generator(backbone);
  const std::vector<int32_t> tokens = random_prompt(1, 200, 256);
  for (const int64_t longest : {1, 63, 64, 70, 140}) {
    CachedSequence sequence(nullptr, longest);
    const auto feed = [&](CachedSequence& to) {
      const Generator::Feed next{&to, std::span(tokens).subspan(to.tokens().size(), 1)};
      generator.feed({&next, 1}, [](size_t, std::span<const double>) {});
    };
    for (int64_t used = 1; used <= longest; ++used) {
      feed(sequence);
      EXPECT_LE(used + sequence.room(), longest);
    }
    EXPECT_EQ(sequence.room(), 0);
  }
}

TEST(Generation, KeysAndValuesOfAnswersAreNoMoreThanThoseOfTheirTokens) {
  install_counting_allocator();
  if (!test_device().is_cpu()) GTEST_SKIP() << "memory is counted on the CPU";
  const auto backbone = random_backbone(kernel_friendly_config(8), at::kFloat);
  Generator generator(backbone);
  const auto peak_tokens = [&](std::span<const GenerationRequest> requests) {
    const int64_t before = memory_usage()[MemoryKind::chain_kv];
    reset_memory_peaks();
    generator.generate(requests);
    return (memory_usage().peak_bytes[static_cast<size_t>(MemoryKind::chain_kv)] - before) / cached_bytes_per_token(*backbone);
  };
  // With 128 tokens of room after 64; while it grows, one tensor of one layer is there twice.
  const std::vector<int32_t> prompt = random_prompt(3, 60, 256);
  const std::vector<GenerationRequest> both = {request_for(prompt, nullptr, 8), request_for(prompt, nullptr, 3)};
  EXPECT_LE(peak_tokens(std::span(both).first(1)), 68 + 68 / 8);
  EXPECT_LE(peak_tokens(both), 68 + 63 + 68 / 8);
}

class Generating : public ::testing::Test {
 protected:
  std::shared_ptr<Backbone> backbone_ = tiny_backbone("smollm2", at::kDouble);
  Generator generator_{backbone_};
  int64_t vocabulary_ = backbone_->config().vocabulary_size;
  int64_t context_ = backbone_->config().context_length;
  GenerationRequest request_ = request_for(random_prompt(3, 20, vocabulary_));

  GeneratedAnswer answer(const GenerationCallbacks& callbacks = {}) {
    return generator_.generate({&request_, 1}, callbacks).front();
  }
};

TEST_F(Generating, AStopTokenEndsTheAnswerAndIsNoPartOfIt) {
  const std::vector<int32_t> free = answer().tokens;
  request_.stop_ids = {free[5]};
  const auto first = std::find(free.begin(), free.end(), free[5]);
  const GeneratedAnswer stopped = answer();
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(free.begin(), first));
  EXPECT_EQ(stopped.stop, StopReason::stop_token);
}

TEST_F(Generating, EndsAtTheMostNewTokensAndAtTheContext) {
  EXPECT_EQ(answer().stop, StopReason::max_new_tokens);
  request_.max_new_tokens = 0;
  EXPECT_TRUE(answer().tokens.empty());
  request_.max_new_tokens = 1000;
  request_.prompt = random_prompt(3, context_ - 4, vocabulary_);
  const GeneratedAnswer full = answer();
  EXPECT_EQ(full.tokens.size(), 4u);
  EXPECT_EQ(full.stop, StopReason::context_length);
}

TEST_F(Generating, TheCallerEndsAnAnswerAtATokenOrBeforeAPass) {
  std::vector<int32_t> seen;
  const GenerationCallbacks third{.on_token = [&](size_t, int32_t token) {
    seen.push_back(token);
    return seen.size() < 3 ? std::nullopt : std::optional(StopReason::stop_text);
  }};
  const GeneratedAnswer ended = answer(third);
  EXPECT_EQ(ended.tokens, seen);
  EXPECT_EQ(ended.tokens.size(), 3u);
  EXPECT_EQ(ended.stop, StopReason::stop_text);
  const GeneratedAnswer none = answer({.interrupted = [] { return true; }});
  EXPECT_TRUE(none.tokens.empty());
  EXPECT_EQ(none.stop, StopReason::interrupted);
}

TEST_F(Generating, AConversationFeedsOnlyWhatIsNew) {
  CachedSequence memory;
  request_.memory = &memory;
  const GeneratedAnswer first = answer();
  EXPECT_EQ(first.reused_tokens, 0);
  const std::vector<int32_t> held = memory.tokens();
  EXPECT_EQ(held.size(), request_.prompt.size() + first.tokens.size() - 1);

  request_.prompt.insert(request_.prompt.end(), first.tokens.begin(), first.tokens.end());
  request_.prompt.push_back(5);
  const GeneratedAnswer second = answer();
  EXPECT_EQ(second.reused_tokens, static_cast<int64_t>(held.size()));
  request_.memory = nullptr;
  EXPECT_EQ(second.tokens, answer().tokens);

  // A changed history is kept up to where it changed; an equal prompt is fed its last token again.
  request_.memory = &memory;
  request_.prompt[10] = (request_.prompt[10] + 1) % static_cast<int32_t>(vocabulary_);
  const GeneratedAnswer third = answer();
  EXPECT_EQ(third.reused_tokens, 10);
  const GeneratedAnswer again = answer();
  EXPECT_EQ(again.reused_tokens, static_cast<int64_t>(request_.prompt.size()) - 1);
  EXPECT_EQ(again.tokens, third.tokens);
}

TEST_F(Generating, PromptsThatCannotBeAnsweredAreTheUsersMistake) {
  const auto mistake = [&](std::vector<int32_t> prompt) {
    request_.prompt = std::move(prompt);
    try {
      answer();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(mistake({}), ::testing::HasSubstr("empty"));
  EXPECT_THAT(mistake({0, static_cast<int32_t>(vocabulary_)}), ::testing::HasSubstr("vocabulary"));
  EXPECT_THAT(mistake(random_prompt(1, context_, vocabulary_)), ::testing::HasSubstr("context"));
}

TEST_F(Generating, AnAdapterWithoutFiniteValuesEndsItsOwnAnswerOnly) {
  MixedAdapters adapters(backbone_);
  for (Parameter& parameter : adapters.all[1]->parameters()) parameter.value.fill_(std::nan(""));
  adapters.all[1]->refresh();
  const GeneratedAnswer healthy = answer();
  const std::vector<GenerationRequest> both = {request_for(request_.prompt, adapters.all[1]), request_};
  const std::vector<GeneratedAnswer> answers = generator_.generate(both);
  EXPECT_EQ(answers[0].stop, StopReason::not_finite);
  EXPECT_EQ(answers[1].tokens, healthy.tokens);
}

}  // namespace
}  // namespace cotune::testing
