/// Text generation with the base model and any mix of adapters: several sequences go through the model together, each
/// with its own adapter, by the operators that train.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "engine/sampling.h"
#include "engine/stage.h"

namespace cotune {

/// Tokens that went through the model, with their keys and values: 2 · layers · kv columns elements a token, charged as
/// chain_kv. Room for a feed is made at once; it grows by doubling, up to `longest` tokens. Belongs to one Generator's
/// backbone and one adapter, whose parameters must not change while it is used.
class CachedSequence {
 public:
  /// longest: the most tokens that it will hold; 0: as many as the model's context.
  explicit CachedSequence(Adapter* adapter = nullptr, int64_t longest = 0) : adapter_(adapter), longest_(longest) {}
  Adapter* adapter() const { return adapter_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  /// Forgets all tokens but the first `count`.
  void truncate(int64_t count) { tokens_.resize(static_cast<size_t>(count)); }
  /// Further tokens that its memory has a place for.
  int64_t room() const;
  /// With keys and values of its own, and room for exactly so many more tokens; it may become as long as this one.
  CachedSequence copy(int64_t more_tokens = 0) const;

 private:
  friend class Generator;
  Adapter* adapter_;
  int64_t longest_;
  std::vector<int32_t> tokens_;
  std::vector<ChainCache> layers_;
};

/// Of a token's keys and values in a CachedSequence.
int64_t cached_bytes_per_token(const Backbone& model);

struct GenerationRequest {
  std::vector<int32_t> prompt;       ///< at least one token
  Adapter* adapter = nullptr;        ///< nullptr: the base model. Not changed
  int64_t max_new_tokens = 256;
  SamplingSettings sampling;
  std::vector<int32_t> stop_ids;     ///< end the answer and are no part of it
  /// A conversation's memory, or nullptr: where the prompt begins with its tokens, they do not go through the model again.
  /// Afterwards it holds prompt and answer, without the last token of an answer that was cut off. Its adapter must be
  /// this request's.
  CachedSequence* memory = nullptr;
};

enum class StopReason {
  stop_token,
  stop_text,       ///< the caller found the text that was to end it
  max_new_tokens,
  context_length,  ///< prompt and answer fill the model's context
  interrupted,     ///< by the caller
  not_finite,      ///< the model's output holds NaN or infinity
};
std::string to_string(StopReason reason);

struct GeneratedAnswer {
  std::vector<int32_t> tokens;
  StopReason stop = StopReason::max_new_tokens;
  int64_t reused_tokens = 0;  ///< of the prompt, from memory, or as they went through the model for an equal request
};

/// Called on the thread that generates.
struct GenerationCallbacks {
  /// A new token of a request; a reason ends that answer.
  std::function<std::optional<StopReason>(size_t request, int32_t token)> on_token{};
  /// Asked before every pass through the model; true ends all answers.
  std::function<bool()> interrupted{};
};

/// Requests that begin while others are being answered: where an answer ends, another may take its place at once.
struct RequestSource {
  /// Asked before every pass, again and again until it gives no request: each one begins with that pass. Where it gives none and no
  /// answer is under way, all is done. A request's memory, where it has one, must outlive the answer.
  std::function<std::optional<GenerationRequest>()> next;
  /// An answer has ended. Requests count from 0 in the order of next().
  std::function<void(size_t request, GeneratedAnswer answer)> on_answer;
};

/// What a model says of given tokens.
struct Likelihood {
  double log_probability = 0;  ///< Σ ln p over the labels, f64
  int64_t labels = 0;
  bool is_greedy = true;       ///< each label is the likeliest token at its place
};

/// Not thread-safe. Keeps nothing between two calls, but that the backbone is ready for longer rows where tokens went beyond those that it
/// was ready for: nothing else may compute with it during a call then.
class Generator {
 public:
  /// token_budget: tokens that go through the model at once; longer prompts are cut. Results do not depend on it but for
  /// rounding.
  explicit Generator(std::shared_ptr<Backbone> backbone, int64_t token_budget = 1024);
  const Backbone& backbone() const { return stage_.backbone(); }

  /// Throws UserError for a prompt that is empty, has tokens beyond the model's vocabulary, or leaves no room in its context.
  void check(std::span<const GenerationRequest> requests) const;
  /// One answer per request, in their order. Of requests that begin together without memory, with equal prompts and adapters, one goes
  /// through the model with its prompt, and the others get copies of its keys and values. All run at once: memory for keys and values is the caller's
  /// to bound. An answer depends on its own request alone (equal bits where our kernels run; up to rounding elsewhere).
  /// Throws UserError as check() does, before anything is computed.
  std::vector<GeneratedAnswer> generate(std::span<const GenerationRequest> requests,
                                        const GenerationCallbacks& callbacks = {});
  /// The same for requests that come one after the other; how many are answered at once is the source's to say. A request that is
  /// refused ends the call with UserError; answers under way are then lost.
  void generate(const RequestSource& source, const GenerationCallbacks& callbacks = {});

  /// Tokens to go through the model behind those of a sequence.
  struct Feed {
    CachedSequence* sequence = nullptr;
    std::span<const int32_t> tokens;
  };
  /// Feeds several sequences (each at most once) and gives the logits behind each feed's last token, f64
  /// [vocabulary], to on_logits, in any order. Nothing is kept but keys and values. False where `interrupted` said so:
  /// some of the tokens are then in the sequences.
  bool feed(std::span<const Feed> feeds, const std::function<void(size_t feed, std::span<const double> logits)>& on_logits,
            const std::function<bool()>& interrupted = {});

  /// A feed with labels for its last tokens: what is said to come behind each of them. None: the tokens are only fed.
  struct LabelledFeed {
    Feed feed;
    std::span<const int32_t> labels;
  };
  /// Feeds sequences as feed() does; the likelihood of each feed's labels. Nothing where `interrupted` said so.
  std::optional<std::vector<Likelihood>> likelihoods(std::span<const LabelledFeed> feeds, const std::function<bool()>& interrupted = {});

 private:
  struct Piece;
  struct Answering;
  struct Group;
  /// A token of a feed whose hidden state is asked for.
  struct Place {
    size_t feed = 0, token = 0;
  };
  /// rows: normed hidden states [places, hidden].
  using OnRows = std::function<void(std::span<const Place> places, const at::Tensor& rows)>;

  void begin(GenerationRequest request, size_t number, std::vector<std::unique_ptr<Answering>>& active) const;
  static std::vector<Group> groups_of(const std::vector<std::unique_ptr<Answering>>& active);
  static void share_prompt(const Group& group);
  std::optional<StopReason> take_token(Answering& answering, const GenerationCallbacks& callbacks) const;
  /// first_places: of each feed, from which token on hidden states are asked for.
  bool feed_all(std::span<const Feed> feeds, std::span<const size_t> first_places, const OnRows& on_rows,
                const std::function<bool()>& interrupted);
  bool feed_for_logits(std::span<const Feed> feeds, const std::function<void(size_t, std::span<const double>)>& on_logits,
                       const std::function<bool()>& interrupted);
  void run_pass(std::span<const Piece> pieces, std::span<const Feed> feeds, std::span<const size_t> first_places, const OnRows& on_rows);
  void make_room(CachedSequence& sequence, int64_t tokens);

  std::shared_ptr<Backbone> backbone_;
  Stage stage_;
  int64_t token_budget_;
  std::vector<Adapter*> listed_adapters_;  ///< that operators_ are for
  std::vector<Operator> operators_;
};

}  // namespace cotune
