#include "engine/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ops/cross_entropy_head.h"
#include "ops/memory.h"
#include "ops/rms_norm.h"

namespace cotune {
namespace {

constexpr int64_t room_step = 64;   // tokens
constexpr int64_t logit_rows = 64;  // that exist at once

at::Tensor grown(const at::Tensor& tensor, int64_t used, int64_t capacity) {
  at::Tensor larger = at::empty({capacity, tensor.size(1)}, tensor.options());
  larger.narrow(0, 0, used).copy_(tensor.narrow(0, 0, used));
  return larger;
}

void check_request(const GenerationRequest& request, const Backbone& model) {
  const ModelConfig& config = model.config();
  if (request.prompt.empty()) throw_user_error("the prompt is empty");
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length >= model.positions()) {
    throw_user_error("the prompt has {} tokens; the model's context holds {}, an answer included", length,
                     model.positions());
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config.vocabulary_size) {
      throw_user_error("the prompt holds token {}, but the model's vocabulary has {} tokens", token,
                       config.vocabulary_size);
    }
  }
  COTUNE_CHECK(request.memory == nullptr || request.memory->adapter() == request.adapter);
}

/// Shortens the memory to what it has in common with the prompt; one token of the prompt at least is left to feed.
void keep_common_prefix(CachedSequence& memory, const std::vector<int32_t>& prompt) {
  const std::vector<int32_t>& tokens = memory.tokens();
  const auto last = prompt.begin() + static_cast<ptrdiff_t>(std::min(tokens.size(), prompt.size() - 1));
  memory.truncate(std::mismatch(prompt.begin(), last, tokens.begin()).first - prompt.begin());
}

}  // namespace

/// Tokens of one feed that go through the model in one pass.
struct Generator::Piece {
  size_t feed = 0;
  int64_t begin = 0, count = 0;  ///< among the feed's tokens
};

std::string to_string(StopReason reason) {
  switch (reason) {
    case StopReason::stop_token: return "stop_token";
    case StopReason::max_new_tokens: return "max_new_tokens";
    case StopReason::context_length: return "context_length";
    case StopReason::interrupted: return "interrupted";
    case StopReason::not_finite: return "not_finite";
  }
  return "";
}

Generator::Generator(std::shared_ptr<const Backbone> backbone, int64_t token_budget)
    : stage_(backbone, whole_model(backbone->config())), token_budget_(token_budget) {
  COTUNE_CHECK(token_budget_ > 0);
}

std::vector<GeneratedAnswer> Generator::generate(std::span<const GenerationRequest> requests,
                                                 const GenerationCallbacks& callbacks) {
  operators_.clear();
  std::vector<GeneratedAnswer> answers(requests.size());
  std::vector<CachedSequence> own;
  std::vector<Feed> feeds;
  std::vector<size_t> active;  ///< request of each feed
  own.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerationRequest& request = requests[i];
    check_request(request, stage_.backbone());
    own.emplace_back(request.adapter);
    if (request.max_new_tokens <= 0) continue;
    CachedSequence* sequence = request.memory != nullptr ? request.memory : &own.back();
    keep_common_prefix(*sequence, request.prompt);
    answers[i].reused_tokens = static_cast<int64_t>(sequence->tokens().size());
    feeds.push_back({sequence, std::span(request.prompt).subspan(sequence->tokens().size())});
    active.push_back(i);
  }
  while (!active.empty()) {
    std::vector<std::optional<int32_t>> chosen(active.size());
    const auto choose = [&](size_t feed, std::span<const double> logits) {
      const GenerationRequest& request = requests[active[feed]];
      const size_t position = request.prompt.size() + answers[active[feed]].tokens.size();
      chosen[feed] = sample_token(logits, request.sampling, position);
    };
    if (!feed_all(feeds, choose, callbacks.interrupted)) {
      for (const size_t i : active) answers[i].stop = StopReason::interrupted;
      break;
    }
    std::vector<Feed> next_feeds;
    std::vector<size_t> still_active;
    for (size_t feed = 0; feed < active.size(); ++feed) {
      const size_t i = active[feed];
      const GenerationRequest& request = requests[i];
      GeneratedAnswer& answer = answers[i];
      std::optional<StopReason> end;
      if (!chosen[feed]) {
        end = StopReason::not_finite;
      } else if (std::ranges::find(request.stop_ids, *chosen[feed]) != request.stop_ids.end()) {
        end = StopReason::stop_token;
      } else {
        answer.tokens.push_back(*chosen[feed]);
        const auto count = static_cast<int64_t>(answer.tokens.size());
        const auto total = static_cast<int64_t>(request.prompt.size()) + count;
        if (total >= stage_.backbone().positions()) end = StopReason::context_length;
        if (count >= request.max_new_tokens) end = StopReason::max_new_tokens;
        if (callbacks.on_token && !callbacks.on_token(i, *chosen[feed])) end = StopReason::interrupted;
      }
      if (end) {
        answer.stop = *end;
        own[i] = CachedSequence();
        continue;
      }
      next_feeds.push_back({feeds[feed].sequence, std::span(&answer.tokens.back(), 1)});
      still_active.push_back(i);
    }
    feeds = std::move(next_feeds);
    active = std::move(still_active);
  }
  return answers;
}

bool Generator::feed(std::span<const Feed> feeds,
                     const std::function<void(size_t feed, std::span<const double> logits)>& on_logits,
                     const std::function<bool()>& interrupted) {
  operators_.clear();
  return feed_all(feeds, on_logits, interrupted);
}

bool Generator::feed_all(std::span<const Feed> feeds,
                         const std::function<void(size_t, std::span<const double>)>& on_logits,
                         const std::function<bool()>& interrupted) {
  std::vector<Adapter*> adapters;
  for (const Feed& feed : feeds) {
    if (std::ranges::find(adapters, feed.sequence->adapter()) == adapters.end()) {
      adapters.push_back(feed.sequence->adapter());
    }
  }
  // A feed is cut at multiples of the budget from its own start: where depends on no other feed. Rows of one adapter lie
  // together.
  std::vector<Piece> pieces;
  for (const Adapter* adapter : adapters) {
    for (size_t i = 0; i < feeds.size(); ++i) {
      if (feeds[i].sequence->adapter() != adapter) continue;
      const auto count = static_cast<int64_t>(feeds[i].tokens.size());
      COTUNE_CHECK(count > 0, "feed {} has no tokens", i);
      for (int64_t begin = 0; begin < count; begin += token_budget_) {
        pieces.push_back({i, begin, std::min(token_budget_, count - begin)});
      }
    }
  }
  for (size_t first = 0; first < pieces.size();) {
    if (interrupted && interrupted()) return false;
    size_t last = first;
    int64_t tokens = 0;
    while (last < pieces.size() && tokens + pieces[last].count <= token_budget_) tokens += pieces[last++].count;
    run_pass(std::span(pieces).subspan(first, last - first), feeds, on_logits);
    first = last;
  }
  return true;
}

void Generator::make_room(CachedSequence& sequence, int64_t tokens) const {
  const Backbone& model = stage_.backbone();
  const auto used = static_cast<int64_t>(sequence.tokens_.size());
  COTUNE_CHECK(used + tokens <= model.positions(), "{} tokens behind {} exceed the context", tokens, used);
  const int64_t capacity = sequence.layers_.empty() ? 0 : sequence.layers_.front().keys.size(0);
  if (used + tokens <= capacity) return;
  const int64_t wanted = std::max(2 * capacity, (used + tokens + room_step - 1) / room_step * room_step);
  const int64_t larger = std::min(wanted, model.positions());
  const MemoryScope scope(MemoryKind::chain_kv);
  if (sequence.layers_.empty()) {
    const at::Tensor empty = at::empty({0, model.attention_shape().kv_columns()},
                                       at::TensorOptions().dtype(model.compute()).device(model.device()));
    sequence.layers_.assign(static_cast<size_t>(model.config().layer_count), {empty, empty, {}, {}});
  }
  for (ChainCache& layer : sequence.layers_) {
    layer.keys = grown(layer.keys, used, larger);
    layer.values = grown(layer.values, used, larger);
  }
}

void Generator::run_pass(std::span<const Piece> pieces, std::span<const Feed> feeds,
                         const std::function<void(size_t, std::span<const double>)>& on_logits) {
  const Backbone& model = stage_.backbone();
  const MemoryScope scope(MemoryKind::workspace);
  std::vector<int64_t> tokens, last_rows;
  std::vector<int32_t> positions;
  std::vector<size_t> finished;  ///< the feed of each of last_rows
  std::vector<JobRound> rounds;
  std::vector<JobRows> job_rows;
  MicrobatchState state;
  for (const Piece& piece : pieces) {
    const Feed& feed = feeds[piece.feed];
    CachedSequence& sequence = *feed.sequence;
    make_room(sequence, piece.count);
    const auto begin = static_cast<int64_t>(tokens.size()), position = static_cast<int64_t>(sequence.tokens_.size());
    if (rounds.empty() || rounds.back().adapter != sequence.adapter()) {
      JobRound round;
      round.job = static_cast<int32_t>(rounds.size());
      round.adapter = sequence.adapter();
      round.purpose = RoundPurpose::evaluate;
      rounds.push_back(round);
      job_rows.push_back({{begin, begin}, {}, 0, false});
    }
    for (int64_t i = 0; i < piece.count; ++i) {
      tokens.push_back(feed.tokens[static_cast<size_t>(piece.begin + i)]);
      positions.push_back(static_cast<int32_t>(position + i));
    }
    state.segments.push_back({begin, piece.count, position, nullptr});
    state.segment_chains.emplace_back(std::shared_ptr<void>(), &sequence.layers_);  // the sequence is its owner
    job_rows.back().rows.end = begin + piece.count;
    if (piece.begin + piece.count == static_cast<int64_t>(feed.tokens.size())) {
      last_rows.push_back(begin + piece.count - 1);
      finished.push_back(piece.feed);
    }
  }
  for (JobRound& round : rounds) state.jobs.push_back(&round);
  state.job_rows = std::move(job_rows);
  state.tokens = at::tensor(tokens, at::kLong).to(model.device());
  state.positions = at::tensor(positions, at::kInt).to(model.device());
  state.example_keys = at::zeros_like(state.tokens);
  state.layers.resize(static_cast<size_t>(model.config().layer_count));
  for (LayerRecord& layer : state.layers) layer.sites.resize(state.jobs.size());

  std::vector<Adapter*> adapters;
  for (const JobRound& round : rounds) adapters.push_back(round.adapter);
  if (operators_.empty() || adapters != listed_adapters_) {
    operators_ = stage_.operators(state, Direction::forward);
    listed_adapters_ = std::move(adapters);
  }
  for (const Operator& op : operators_) {
    stage_.execute(op, state);
    if (op.kind == OperatorKind::down_proj) state.layers[static_cast<size_t>(op.layer)] = {};
  }
  for (const Piece& piece : pieces) {
    const auto part = feeds[piece.feed].tokens.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count));
    std::vector<int32_t>& done = feeds[piece.feed].sequence->tokens_;
    done.insert(done.end(), part.begin(), part.end());
  }
  if (last_rows.empty()) return;

  const MemoryScope logits_scope(MemoryKind::logits);
  const at::Tensor rows = state.final_hidden.index_select(0, at::tensor(last_rows, at::kLong).to(model.device()));
  at::Tensor inverse_rms;
  const at::Tensor normed =
      rms_norm(rows, model.final_norm(), model.config().rms_norm_epsilon, inverse_rms);
  for (int64_t begin = 0; begin < normed.size(0); begin += logit_rows) {
    const int64_t count = std::min(logit_rows, normed.size(0) - begin);
    const at::Tensor logits = output_logits(normed.narrow(0, begin, count), model.head()).to(at::kCPU);
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor row = logits.select(0, i).to(at::kDouble).contiguous();
      on_logits(finished[static_cast<size_t>(begin + i)],
                {row.const_data_ptr<double>(), static_cast<size_t>(row.numel())});
    }
  }
}

}  // namespace cotune
