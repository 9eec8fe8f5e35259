// What travels between stages in bf16 (ML-7, ML-13): activations up in the accumulation dtype, errors down in the compute dtype, counted
// from the buffers themselves and from whole rounds.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/rank_messages.h"
#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"

namespace cotune {
namespace {

using namespace testing;

/// One rank's end of a group that counts the bytes of the buffers that are sent through it. Nothing else is called.
class CountsBuffers : public Communicator {
 public:
  explicit CountsBuffers(Communicator& communicator) : communicator_(communicator) {}
  int32_t rank() const override { return communicator_.rank(); }
  int32_t size() const override { return communicator_.size(); }
  std::shared_ptr<SendTransfer> send(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    bytes[channel].push_back(static_cast<int64_t>(buffer.nbytes()));
    return communicator_.send(buffer, peer, channel);
  }
  std::shared_ptr<Transfer> receive(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    return communicator_.receive(buffer, peer, channel);
  }
  void all_reduce(at::Tensor& values) override { communicator_.all_reduce(values); }
  std::shared_ptr<Transfer> start_all_reduce(at::Tensor& values) override { return communicator_.start_all_reduce(values); }
  std::shared_ptr<Transfer> start_all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken,
                                             const std::vector<int64_t>& taken_rows) override {
    return communicator_.start_all_to_all(given, given_rows, taken, taken_rows);
  }
  std::shared_ptr<Transfer> start_all_gather(const at::Tensor& own, at::Tensor& all) override { return communicator_.start_all_gather(own, all); }
  void broadcast(at::Tensor& values, int32_t root) override { communicator_.broadcast(values, root); }
  void barrier() override { communicator_.barrier(); }
  void settle() override { communicator_.settle(); }
  void watch_links(std::function<void(int32_t peer)> on_closed) override { communicator_.watch_links(std::move(on_closed)); }
  void abort() noexcept override { communicator_.abort(); }

  std::map<Channel, std::vector<int64_t>> bytes;

 private:
  Communicator& communicator_;
};

TEST(BytesOfMessages, AreThoseOfTheBuffersThatTravel) {
  constexpr int64_t hidden_size = 48, tokens = 7;
  const auto ranks = thread_communicators(2);
  CountsBuffers low(*ranks[0]), high(*ranks[1]);
  RankMessages lower{low, hidden_size, at::kBFloat16, at::kCPU}, upper{high, hidden_size, at::kBFloat16, at::kCPU};
  const at::Tensor activation = at::randn({tokens, hidden_size}), error = activation.to(at::kBFloat16);
  for (const int64_t records : {0, 1, 4, 5}) {
    const at::Tensor record = at::ones({records, 2}, at::kDouble);
    const auto microbatch = static_cast<int32_t>(records);
    const int64_t record_bytes = (16 * records + 63) / 64 * 64;
    const SentMessages before_up = lower.sent(), before_down = upper.sent();
    upper.post({.kind = ActionKind::receive_activation, .microbatch = microbatch, .stage = 1, .peer = 0}, tokens, records);
    lower.send({.kind = ActionKind::send_activation, .microbatch = microbatch, .stage = 0, .peer = 1}, 0, activation, record);
    const Message& up = upper.wait(ActionKind::receive_activation, 1, microbatch);
    EXPECT_EQ(up.rows.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(up.rows, activation)) << "no bit is lost on the way up";
    lower.post({.kind = ActionKind::receive_error, .microbatch = microbatch, .stage = 0, .peer = 1}, tokens, records);
    upper.send({.kind = ActionKind::send_error, .microbatch = microbatch, .stage = 1, .peer = 0}, 0, error, record);
    const Message& down = lower.wait(ActionKind::receive_error, 0, microbatch);
    EXPECT_EQ(down.rows.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(down.rows, error));
    EXPECT_EQ(low.bytes[Channel::activation].back(), tokens * hidden_size * 4 + record_bytes);
    EXPECT_EQ(high.bytes[Channel::error].back(), tokens * hidden_size * 2 + record_bytes);
    EXPECT_EQ(lower.sent().bytes - before_up.bytes, low.bytes[Channel::activation].back());
    EXPECT_EQ(upper.sent().bytes - before_down.bytes, high.bytes[Channel::error].back());
    EXPECT_EQ(lower.sent().count - before_up.count, 1);
    EXPECT_EQ(upper.sent().count - before_down.count, 1);
  }
  lower.finish();
  upper.finish();
  for (const CountsBuffers* end : {&low, &high}) EXPECT_EQ(end->bytes.size(), 1u) << "one kind each";
}

TEST(BytesOfMessages, OfRoundsInBf16AreActivationsOfFourBytesUpAndErrorsOfTwoDown) {
  const ModelConfig config = kernel_friendly_config(4);
  const std::shared_ptr<const Backbone> model = random_backbone(config, at::kBFloat16, at::kCPU);
  std::vector<RandomJob> jobs;
  for (uint64_t i = 0; i < 3; ++i) jobs.push_back(lora_job("job", i, 4, 0, {"all-linear"}, {60, 30, static_cast<int64_t>(10 + i)}));
  jobs.front().row_lengths = {600};  // a chain
  PackingPolicy fused = small_microbatches();
  fused.sharing = Sharing::hybrid;
  fused.token_budget = 512;
  for (const int32_t depth : {2, 4}) {
    RankThreads ranks(model, even_layout(config, depth), 1);
    for (const PackingPolicy& policy : {small_microbatches(), fused}) {
      int64_t rounds = 0;
      train(jobs, *model, policy, [&](Round& round) {
        const RankPlan plan = plan_ranks({round.plan}, ranks.layout(), one_unit,
                                         {.cluster = {}, .bytes_per_token = token_bytes(config.hidden_size, 2), .most_in_flight = depth});
        ranks.run(plan, round.rounds);
        // Of one boundary: what goes up, and down.
        int64_t up = 0, down = 0, microbatches = 0;
        for (const Microbatch& microbatch : round.plan.microbatches) {
          std::set<int32_t> present;
          for (const Atom& atom : microbatch.atoms) present.insert(atom.job);
          const int64_t record_bytes = (16 * static_cast<int64_t>(present.size()) + 63) / 64 * 64;
          up += microbatch.token_count() * config.hidden_size * 4 + record_bytes;
          down += microbatch.token_count() * config.hidden_size * 2 + record_bytes;
          ++microbatches;
        }
        const auto norms = static_cast<int64_t>(round.rounds.size());  // of each job one goes alone, for no step of it follows
        for (int32_t rank = 0; rank < depth; ++rank) {
          const bool sends_up = rank + 1 < depth, sends_down = rank > 0;
          const SentMessages expected{.count = (sends_up ? microbatches + norms : 0) + (sends_down ? microbatches : 0),
                                      .bytes = (sends_up ? up + 64 * norms : 0) + (sends_down ? down : 0)};
          const SentMessages& sent = ranks.times().ranks.at(static_cast<size_t>(rank)).sent;
          EXPECT_EQ(sent.count, expected.count) << "rank " << rank << " of " << depth;
          EXPECT_EQ(sent.bytes, expected.bytes) << "rank " << rank << " of " << depth;
        }
        ++rounds;
      });
      EXPECT_EQ(rounds, jobs.front().steps);
    }
  }
}

}  // namespace
}  // namespace cotune
