#include "engine/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "engine/memory_facts.h"
#include "ops/backend.h"
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
  if (length >= config.context_length) {
    throw_user_error("the prompt has {}; the model's context holds {}, an answer included", counted(length, "token"),
                     config.context_length);
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
    case StopReason::stop_text: return "stop_text";
    case StopReason::max_new_tokens: return "max_new_tokens";
    case StopReason::context_length: return "context_length";
    case StopReason::interrupted: return "interrupted";
    case StopReason::not_finite: return "not_finite";
  }
  return "";
}

int64_t cached_bytes_per_token(const Backbone& model) {
  return 2 * model.config().layer_count * model.attention_shape().kv_columns() * static_cast<int64_t>(c10::elementSize(model.compute()));
}

CachedSequence CachedSequence::copy(int64_t more_tokens) const {
  const MemoryScope scope(MemoryKind::chain_kv);
  CachedSequence other(adapter_, longest_);
  other.tokens_ = tokens_;
  const auto used = static_cast<int64_t>(tokens_.size());
  for (const ChainCache& layer : layers_) {
    other.layers_.push_back({grown(layer.keys, used, used + more_tokens), grown(layer.values, used, used + more_tokens), {}, {}});
  }
  return other;
}

int64_t CachedSequence::room() const {
  return layers_.empty() ? 0 : layers_.front().keys.size(0) - static_cast<int64_t>(tokens_.size());
}

Generator::Generator(std::shared_ptr<Backbone> backbone, int64_t token_budget)
    : backbone_(std::move(backbone)), stage_(backbone_, whole_model(backbone_->config())), token_budget_(token_budget) {
  COTUNE_CHECK(token_budget_ > 0);
}

/// An answer under way.
struct Generator::Answering {
  size_t number = 0;
  GenerationRequest request;
  GeneratedAnswer answer;
  CachedSequence own;
  CachedSequence* sequence = nullptr;
  std::optional<int32_t> chosen;

  std::span<const int32_t> to_feed() const {
    if (answer.tokens.empty()) return std::span(request.prompt).subspan(sequence->tokens().size());
    return std::span(&answer.tokens.back(), 1);
  }
  bool has_fed_nothing() const { return request.memory == nullptr && sequence->tokens().empty(); }
  bool begins_like(const Answering& other) const {
    return other.has_fed_nothing() && request.adapter == other.request.adapter && request.prompt == other.request.prompt;
  }
};

/// Answers under way that feed the same: the first of them does, for all.
struct Generator::Group {
  std::vector<Answering*> answers;
};

std::vector<Generator::Group> Generator::groups_of(const std::vector<std::unique_ptr<Answering>>& active) {
  std::vector<Group> groups;
  for (const auto& answering : active) {
    const auto first = answering->has_fed_nothing() ? groups.begin() : groups.end();
    const auto like = std::find_if(first, groups.end(), [&](const Group& group) { return answering->begins_like(*group.answers.front()); });
    if (like == groups.end()) {
      groups.push_back({{answering.get()}});
    } else {
      like->answers.push_back(answering.get());
    }
  }
  return groups;
}

void Generator::share_prompt(const Group& group) {
  const CachedSequence& fed = *group.answers.front()->sequence;
  for (Answering* answering : std::span(group.answers).subspan(1)) {
    const auto used = static_cast<int64_t>(fed.tokens().size());
    const int64_t longest = answering->own.longest_;
    answering->own = fed.copy(std::min(fed.room(), longest - used));
    answering->own.longest_ = longest;
    answering->answer.reused_tokens = used;
  }
}

void Generator::check(std::span<const GenerationRequest> requests) const {
  for (const GenerationRequest& request : requests) check_request(request, stage_.backbone());
}

std::vector<GeneratedAnswer> Generator::generate(std::span<const GenerationRequest> requests,
                                                 const GenerationCallbacks& callbacks) {
  check(requests);
  std::vector<GeneratedAnswer> answers(requests.size());
  size_t begun = 0;
  RequestSource source;
  source.next = [&]() -> std::optional<GenerationRequest> {
    if (begun == requests.size()) return std::nullopt;
    return requests[begun++];
  };
  source.on_answer = [&](size_t request, GeneratedAnswer answer) { answers[request] = std::move(answer); };
  generate(source, callbacks);
  return answers;
}

void Generator::begin(GenerationRequest request, size_t number, std::vector<std::unique_ptr<Answering>>& active) const {
  check_request(request, stage_.backbone());
  auto answering = std::make_unique<Answering>();
  answering->number = number;
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t left = stage_.backbone().config().context_length - length;
  answering->own = CachedSequence(request.adapter, length + std::min(request.max_new_tokens, left));
  answering->sequence = request.memory != nullptr ? request.memory : &answering->own;
  keep_common_prefix(*answering->sequence, request.prompt);
  answering->answer.reused_tokens = static_cast<int64_t>(answering->sequence->tokens().size());
  answering->request = std::move(request);
  active.push_back(std::move(answering));
}

std::optional<StopReason> Generator::take_token(Answering& answering, const GenerationCallbacks& callbacks) const {
  const GenerationRequest& request = answering.request;
  GeneratedAnswer& answer = answering.answer;
  if (!answering.chosen) return StopReason::not_finite;
  if (std::ranges::find(request.stop_ids, *answering.chosen) != request.stop_ids.end()) return StopReason::stop_token;
  answer.tokens.push_back(*answering.chosen);
  std::optional<StopReason> end;
  const auto count = static_cast<int64_t>(answer.tokens.size());
  if (static_cast<int64_t>(request.prompt.size()) + count >= stage_.backbone().config().context_length) end = StopReason::context_length;
  if (count >= request.max_new_tokens) end = StopReason::max_new_tokens;
  if (callbacks.on_token) {
    if (const auto wish = callbacks.on_token(answering.number, *answering.chosen)) end = wish;
  }
  return end;
}

void Generator::generate(const RequestSource& source, const GenerationCallbacks& callbacks) {
  operators_.clear();
  std::vector<std::unique_ptr<Answering>> active;
  size_t begun = 0;
  const auto finish = [&](Answering& answering, StopReason reason) {
    answering.answer.stop = reason;
    answering.own = CachedSequence();
    source.on_answer(answering.number, std::move(answering.answer));
  };
  while (true) {
    while (std::optional<GenerationRequest> request = source.next()) {
      const bool wants_tokens = request->max_new_tokens > 0;
      begin(std::move(*request), begun++, active);
      if (wants_tokens) continue;
      const std::unique_ptr<Answering> empty = std::move(active.back());
      active.pop_back();
      finish(*empty, StopReason::max_new_tokens);
    }
    if (active.empty()) return;
    const std::vector<Group> groups = groups_of(active);
    std::vector<Feed> feeds;
    for (const Group& group : groups) {
      for (Answering* answering : group.answers) answering->chosen.reset();
      feeds.push_back({group.answers.front()->sequence, group.answers.front()->to_feed()});
    }
    const auto choose = [&](size_t feed, std::span<const double> logits) {
      for (Answering* answering : groups[feed].answers) {
        const size_t position = answering->request.prompt.size() + answering->answer.tokens.size();
        answering->chosen = sample_token(logits, answering->request.sampling, position, feeds[feed].sequence->tokens());
      }
    };
    if (!feed_for_logits(feeds, choose, callbacks.interrupted)) {
      for (const auto& answering : active) finish(*answering, StopReason::interrupted);
      return;
    }
    for (const Group& group : groups) share_prompt(group);
    std::erase_if(active, [&](const std::unique_ptr<Answering>& answering) {
      const std::optional<StopReason> end = take_token(*answering, callbacks);
      if (end) finish(*answering, *end);
      return end.has_value();
    });
  }
}

bool Generator::feed(std::span<const Feed> feeds,
                     const std::function<void(size_t feed, std::span<const double> logits)>& on_logits,
                     const std::function<bool()>& interrupted) {
  operators_.clear();
  return feed_for_logits(feeds, on_logits, interrupted);
}

bool Generator::feed_for_logits(std::span<const Feed> feeds,
                                const std::function<void(size_t, std::span<const double>)>& on_logits,
                                const std::function<bool()>& interrupted) {
  std::vector<size_t> last;
  for (const Feed& feed : feeds) last.push_back(feed.tokens.size() - 1);
  const auto give_logits = [&](std::span<const Place> places, const at::Tensor& rows) {
    for (int64_t begin = 0; begin < rows.size(0); begin += logit_rows) {
      const int64_t count = std::min(logit_rows, rows.size(0) - begin);
      const at::Tensor logits = output_logits(rows.narrow(0, begin, count), stage_.backbone().head()).to(at::kCPU);
      for (int64_t i = 0; i < count; ++i) {
        const at::Tensor row = logits.select(0, i).to(at::kDouble).contiguous();
        on_logits(places[static_cast<size_t>(begin + i)].feed, {row.const_data_ptr<double>(), static_cast<size_t>(row.numel())});
      }
    }
  };
  return feed_all(feeds, last, give_logits, interrupted);
}

std::optional<std::vector<Likelihood>> Generator::likelihoods(std::span<const LabelledFeed> labelled,
                                                              const std::function<bool()>& interrupted) {
  operators_.clear();
  std::vector<Feed> feeds;
  std::vector<size_t> first_places;
  for (const LabelledFeed& feed : labelled) {
    COTUNE_CHECK(feed.labels.size() <= feed.feed.tokens.size());
    feeds.push_back(feed.feed);
    first_places.push_back(feed.feed.tokens.size() - feed.labels.size());
  }
  const Backbone& model = stage_.backbone();
  const int64_t workspace = memory_facts(model.compute(), model.device()).head_workspace_bytes;
  std::vector<Likelihood> results(labelled.size());
  const auto add_losses = [&](std::span<const Place> places, const at::Tensor& rows) {
    std::vector<int32_t> labels;
    for (const Place& place : places) labels.push_back(labelled[place.feed].labels[place.token - first_places[place.feed]]);
    const at::Tensor label_tensor = at::tensor(labels, at::kInt).to(model.device());
    const at::Tensor scale =
        at::ones({rows.size(0)}, at::TensorOptions().dtype(accumulation_dtype(model.compute())).device(model.device()));
    const HeadResult head = cross_entropy_head(rows, label_tensor, scale, model.head(), false, workspace);
    const at::Tensor losses = head.losses.to(at::kCPU).to(at::kDouble).contiguous();
    const at::Tensor predictions = head.predictions.to(at::kCPU).contiguous();
    for (size_t i = 0; i < places.size(); ++i) {
      Likelihood& result = results[places[i].feed];
      result.log_probability -= losses.const_data_ptr<double>()[i];
      result.is_greedy &= predictions.const_data_ptr<int64_t>()[i] == labels[i];
      ++result.labels;
    }
  };
  if (!feed_all(feeds, first_places, add_losses, interrupted)) return std::nullopt;
  return results;
}

bool Generator::feed_all(std::span<const Feed> feeds, std::span<const size_t> first_places, const OnRows& on_rows,
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
    run_pass(std::span(pieces).subspan(first, last - first), feeds, first_places, on_rows);
    first = last;
  }
  return true;
}

void Generator::make_room(CachedSequence& sequence, int64_t tokens) {
  const Backbone& model = stage_.backbone();
  const int64_t context = model.config().context_length;
  const int64_t longest = sequence.longest_ > 0 ? std::min(sequence.longest_, context) : context;
  const auto used = static_cast<int64_t>(sequence.tokens_.size());
  COTUNE_CHECK(used + tokens <= longest, "{} tokens behind {} exceed the {} of the sequence", tokens, used, longest);
  if (used + tokens > model.positions()) backbone_->allow_rows(std::max(used + tokens, 2 * model.positions()));
  const int64_t capacity = sequence.layers_.empty() ? 0 : sequence.layers_.front().keys.size(0);
  if (used + tokens <= capacity) return;
  const int64_t wanted = std::max(2 * capacity, (used + tokens + room_step - 1) / room_step * room_step);
  const int64_t larger = std::min(wanted, longest);
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

void Generator::run_pass(std::span<const Piece> pieces, std::span<const Feed> feeds, std::span<const size_t> first_places,
                         const OnRows& on_rows) {
  const Backbone& model = stage_.backbone();
  const MemoryScope scope(MemoryKind::workspace);
  std::vector<int64_t> tokens, asked_rows;
  std::vector<int32_t> positions;
  std::vector<Place> places;  ///< of asked_rows
  std::vector<JobRound> rounds;
  std::vector<JobRows> job_rows;
  MicrobatchState state;
  for (const Piece& piece : pieces) {
    const Feed& feed = feeds[piece.feed];
    CachedSequence& sequence = *feed.sequence;
    make_room(sequence, static_cast<int64_t>(feed.tokens.size()) - piece.begin);
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
    for (int64_t i = std::max<int64_t>(0, static_cast<int64_t>(first_places[piece.feed]) - piece.begin); i < piece.count; ++i) {
      asked_rows.push_back(begin + i);
      places.push_back({piece.feed, static_cast<size_t>(piece.begin + i)});
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
  if (asked_rows.empty()) return;

  const MemoryScope logits_scope(MemoryKind::logits);
  const at::Tensor rows = state.final_hidden.index_select(0, at::tensor(asked_rows, at::kLong).to(model.device()));
  at::Tensor inverse_rms;
  on_rows(places, rms_norm(rows, model.final_norm(), model.config().rms_norm_epsilon, model.compute(), inverse_rms));
}

}  // namespace cotune
