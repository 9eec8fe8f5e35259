#include "data/tokenizer/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace cotune {
namespace {

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

/// What one thread needs to match: kept between calls, because its stack is large.
struct MatchScratch {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, 4 * 1024 * 1024, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);

  MatchScratch() {
    COTUNE_CHECK(context != nullptr && stack != nullptr && data != nullptr, "out of memory for a regular expression");
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, 256 * 1024);  // KiB
  }
  ~MatchScratch() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;
};

}  // namespace

struct TokenizerRegex::Code {
  std::string source;
  pcre2_code* compiled = nullptr;
  ~Code() { pcre2_code_free(compiled); }
};

TokenizerRegex::TokenizerRegex(std::string_view oniguruma_pattern) {
  const std::string pattern = translate_oniguruma(oniguruma_pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->source = oniguruma_pattern;
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                 nullptr);
  if (code->compiled == nullptr) {
    throw_user_error("regular expression {} (translated to {}): {} at byte {}", oniguruma_pattern, pattern,
                     message_of(error), offset);
  }
  pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE);  // where it fails, PCRE2 interprets
  code_ = std::move(code);
}

void TokenizerRegex::split(std::string_view utf8, std::vector<RegexPiece>& out) const {
  thread_local MatchScratch scratch;
  const auto limit = static_cast<uint32_t>(std::min<size_t>(100'000 + 16 * utf8.size(), UINT32_MAX));
  pcre2_set_match_limit(scratch.context, limit);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(utf8.data());
  size_t search = 0;    // where the next search begins
  size_t covered = 0;   // end of what is in `out`
  bool any_match = false;
  while (search <= utf8.size()) {
    int result = pcre2_match(code_->compiled, subject, utf8.size(), search, PCRE2_NO_UTF_CHECK, scratch.data,
                             scratch.context);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(code_->compiled, subject, utf8.size(), search, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           scratch.data, scratch.context);
    }
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw_user_error("the tokenizer's regular expression gives up on this text at byte {}: {}", search,
                       message_of(result));
    }
    const PCRE2_SIZE* place = pcre2_get_ovector_pointer(scratch.data);
    const size_t begin = place[0], end = place[1];
    if (begin > end) throw_user_error("the tokenizer's regular expression uses \\K inside an assertion");
    if (begin == end && any_match && covered == end) {  // no empty match right behind the last match
      if (search >= utf8.size()) break;
      do {
        ++search;
      } while (search < utf8.size() && (static_cast<uint8_t>(utf8[search]) & 0xC0) == 0x80);
      continue;
    }
    if (begin < covered) throw_user_error("the tokenizer's regular expression matches the same text twice");
    if (begin != covered) out.push_back({covered, begin, false});
    if (begin != end) out.push_back({begin, end, true});
    covered = search = end;
    any_match = true;
  }
  if (covered != utf8.size()) out.push_back({covered, utf8.size(), false});
}

const std::string& TokenizerRegex::pattern() const { return code_->source; }

}  // namespace cotune
