/// Byte-pair encoding of one word (Sennrich et al. 2016), with the order of merges of the Hugging Face `tokenizers`
/// library: among all neighbouring pairs the merge of lowest rank first, the leftmost on a tie.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cotune {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// Token text to id.
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

struct BpeOptions {
  std::optional<int32_t> unknown_id;  ///< for characters without a token; without it they vanish
  bool fuse_unknown = false;          ///< one unknown token for a run of such characters
  bool byte_fallback = false;         ///< such characters become their bytes' tokens <0x00> ... <0xFF>, where all exist
  bool ignore_merges = false;         ///< a word that is a token is not built from merges
};

/// Immutable but for a bounded cache of words behind locks; const use is thread-safe.
class BpeModel {
 public:
  struct Merge {
    std::string left;
    std::string right;
  };

  /// `vocabulary` may hold ids in any order; a later merge of the same pair replaces an earlier one. `forbidden` are the
  /// ids that encode(..., false) never gives (added tokens). Throws UserError naming the merge (`merges[3]: ...`) whose
  /// parts or result have no token.
  BpeModel(TokenIds vocabulary, const std::vector<Merge>& merges, BpeOptions options, std::vector<int32_t> forbidden);

  /// Appends the tokens of one word (valid UTF-8). O(n log n) for n bytes. allow_forbidden false: merges into, and whole
  /// words of, a forbidden id are not used.
  void encode(std::string_view word, bool allow_forbidden, std::vector<int32_t>& out) const;

  const TokenIds& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }
  /// The pairs of tokens that are merged, best first.
  std::vector<std::pair<int32_t, int32_t>> merges() const;

 private:
  struct PairMerge {
    uint64_t pair = no_pair;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t no_pair = ~uint64_t{0};

  /// One shard of the word cache.
  struct CacheShard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, StringHash, std::equal_to<>> words;
  };
  static constexpr size_t shard_count = 16;
  static constexpr size_t words_per_shard = 4096;
  static constexpr size_t longest_cached_word = 64;

  void insert(PairMerge merge);
  const PairMerge* find(int32_t left, int32_t right) const;
  bool is_forbidden(int32_t id) const;
  void initial_tokens(std::string_view word, bool allow_forbidden, std::vector<int32_t>& out) const;
  void merge(bool allow_forbidden, std::vector<int32_t>& tokens) const;

  TokenIds vocabulary_;
  BpeOptions options_;
  std::vector<int32_t> forbidden_;   ///< sorted
  bool can_make_forbidden_ = false;  ///< some merge, character or byte token is forbidden
  std::vector<int32_t> ascii_;       ///< token of each ASCII character, -1 for none
  std::array<int32_t, 256> bytes_;   ///< tokens <0x00>..<0xFF>, -1 for none
  std::vector<PairMerge> table_;     ///< open addressing, a power of two
  std::unique_ptr<std::array<CacheShard, shard_count>> cache_;
};

}  // namespace cotune
