#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <queue>

#include "base/error.h"
#include "base/utf8.h"

namespace cotune {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t slot_of(uint64_t key, size_t size) {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(key >> 20) & (size - 1);
}

struct Symbol {
  int32_t token;
  int32_t previous;  ///< -1 at the front
  int32_t next;      ///< -1 at the end
  bool alive;
};

struct Candidate {
  uint32_t rank;
  int32_t position;
  int32_t result;
};

struct LaterCandidate {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

}  // namespace

BpeModel::BpeModel(TokenIds vocabulary, const std::vector<Merge>& merges, BpeOptions options,
                   std::vector<int32_t> forbidden)
    : vocabulary_(std::move(vocabulary)),
      options_(options),
      forbidden_(std::move(forbidden)),
      ascii_(128, -1),
      table_(std::bit_ceil(std::max<size_t>(merges.size() * 2, 16))),
      cache_(std::make_unique<std::array<CacheShard, shard_count>>()) {
  std::sort(forbidden_.begin(), forbidden_.end());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto id_of = [&](const std::string& token) {
      const auto it = vocabulary_.find(token);
      if (it == vocabulary_.end()) throw_user_error("merges[{}]: no token '{}' in the vocabulary", i, token);
      return it->second;
    };
    const int32_t left = id_of(merges[i].left), right = id_of(merges[i].right);
    joined = merges[i].left + merges[i].right;
    const int32_t result = id_of(joined);
    insert({pair_key(left, right), static_cast<uint32_t>(i), result});
    can_make_forbidden_ = can_make_forbidden_ || is_forbidden(result);
  }
  for (int c = 0; c < 128; ++c) {
    const char text[] = {static_cast<char>(c)};
    if (const auto it = vocabulary_.find(std::string_view(text, 1)); it != vocabulary_.end()) ascii_[c] = it->second;
  }
  for (int b = 0; b < 256; ++b) {
    const auto it = vocabulary_.find(fmt::format("<0x{:02X}>", b));
    bytes_[b] = it != vocabulary_.end() ? it->second : -1;
  }
  // A single character that is an added token, or an added token that a whole word equals.
  can_make_forbidden_ = can_make_forbidden_ || std::any_of(vocabulary_.begin(), vocabulary_.end(), [&](const auto& t) {
    if (!is_forbidden(t.second)) return false;
    if (options_.ignore_merges) return true;
    size_t position = 0;
    if (t.first.empty()) return false;
    next_code_point(t.first, position);
    return position >= t.first.size();
  });
}

void BpeModel::insert(PairMerge merge) {
  size_t slot = slot_of(merge.pair, table_.size());
  while (table_[slot].pair != no_pair && table_[slot].pair != merge.pair) slot = (slot + 1) & (table_.size() - 1);
  table_[slot] = merge;
}

const BpeModel::PairMerge* BpeModel::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t slot = slot_of(pair, table_.size());; slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].pair == pair) return &table_[slot];
    if (table_[slot].pair == no_pair) return nullptr;
  }
}

std::vector<std::pair<int32_t, int32_t>> BpeModel::merges() const {
  std::vector<PairMerge> ranked;
  std::ranges::copy_if(table_, std::back_inserter(ranked), [](const PairMerge& merge) { return merge.pair != no_pair; });
  std::ranges::sort(ranked, {}, &PairMerge::rank);
  std::vector<std::pair<int32_t, int32_t>> out;
  for (const PairMerge& merge : ranked) out.emplace_back(merge.pair >> 32, merge.pair & 0xFFFFFFFF);
  return out;
}

bool BpeModel::is_forbidden(int32_t id) const { return std::binary_search(forbidden_.begin(), forbidden_.end(), id); }

void BpeModel::initial_tokens(std::string_view word, bool allow_forbidden, std::vector<int32_t>& out) const {
  bool unknown_pending = false;
  const auto flush_unknown = [&] {
    if (unknown_pending) out.push_back(*options_.unknown_id);
    unknown_pending = false;
  };
  for (size_t position = 0; position < word.size();) {
    const size_t begin = position;
    next_code_point(word, position);
    const std::string_view character = word.substr(begin, position - begin);
    int32_t id = -1;
    if (character.size() == 1) {
      id = ascii_[static_cast<uint8_t>(character[0])];
    } else if (const auto it = vocabulary_.find(character); it != vocabulary_.end()) {
      id = it->second;
    }
    if (id >= 0 && (allow_forbidden || !is_forbidden(id))) {
      flush_unknown();
      out.push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      const auto token = [&](char c) { return bytes_[static_cast<uint8_t>(c)]; };
      if (std::all_of(character.begin(), character.end(), [&](char c) { return token(c) >= 0; })) {
        // As in `tokenizers`, a pending unknown token comes behind the bytes.
        for (const char c : character) out.push_back(token(c));
        continue;
      }
    }
    if (!options_.unknown_id) continue;
    if (!options_.fuse_unknown) flush_unknown();
    unknown_pending = true;
  }
  flush_unknown();
}

void BpeModel::merge(bool allow_forbidden, std::vector<int32_t>& tokens) const {
  if (tokens.size() < 2) return;
  COTUNE_CHECK(tokens.size() <= INT32_MAX);
  const auto count = static_cast<int32_t>(tokens.size());
  std::vector<Symbol> symbols(tokens.size());
  std::vector<Candidate> heap;
  heap.reserve(tokens.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {tokens[i], i - 1, i + 1 < count ? i + 1 : -1, true};
    if (i + 1 == count) break;
    if (const PairMerge* m = find(tokens[i], tokens[i + 1])) heap.push_back({m->rank, i, m->result});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, LaterCandidate> queue(LaterCandidate(), std::move(heap));
  const auto offer = [&](int32_t left, int32_t right) {
    if (const PairMerge* m = find(symbols[left].token, symbols[right].token)) queue.push({m->rank, left, m->result});
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const PairMerge* now = find(left.token, right.token);
    if (now == nullptr || now->result != best.result) continue;
    if (!allow_forbidden && is_forbidden(best.result)) continue;
    left.token = best.result;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    if (left.previous >= 0) offer(left.previous, best.position);
    if (left.next >= 0) offer(best.position, left.next);
  }
  tokens.clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) tokens.push_back(symbols[i].token);
}

void BpeModel::encode(std::string_view word, bool allow_forbidden, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  allow_forbidden = allow_forbidden || !can_make_forbidden_;
  const bool cached = allow_forbidden && word.size() <= longest_cached_word;
  CacheShard* shard = nullptr;
  if (cached) {
    shard = &(*cache_)[StringHash()(word) % shard_count];
    const std::lock_guard lock(shard->mutex);
    if (const auto it = shard->words.find(word); it != shard->words.end()) {
      out.insert(out.end(), it->second.begin(), it->second.end());
      return;
    }
  }
  std::vector<int32_t> tokens;
  const auto whole = options_.ignore_merges ? vocabulary_.find(word) : vocabulary_.end();
  if (whole != vocabulary_.end() && (allow_forbidden || !is_forbidden(whole->second))) {
    tokens.push_back(whole->second);
  } else {
    initial_tokens(word, allow_forbidden, tokens);
    merge(allow_forbidden, tokens);
  }
  out.insert(out.end(), tokens.begin(), tokens.end());
  if (cached) {
    const std::lock_guard lock(shard->mutex);
    if (shard->words.size() < words_per_shard) shard->words.emplace(word, std::move(tokens));
  }
}

}  // namespace cotune
