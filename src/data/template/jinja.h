/// A small Jinja interpreter: the part of the template language that the chat templates of language models use, with
/// the results of jinja2 3.1 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, its own tojson,
/// raise_exception, strftime_now, immutable sandbox).
///
/// Has: text, {{ }}, {% if/elif/else, for (with `if`, `else`, unpacking), set (names, unpacking, namespace attributes,
///   blocks), macro, with, break, continue, raw, generation %}, {# #}, `-` and `+` at tags; `loop`, namespace(), dict(),
///   range(); literals, slices, arithmetic, ~, comparison chains, in, and/or/not, inline if; the filters, tests and
///   methods in jinja_filters.cc, jinja_tests.cc and jinja_methods.cc.
/// Has not: include, import, extends, block, call and filter blocks, recursive loops, unpacked arguments, integers
///   beyond 64 bits, dict keys that are not strings, letter case outside ASCII, Latin-1, Greek and Cyrillic. Using one
///   is an error that names it (but for letter case: such letters stay).
///
/// A template sees the variables it is given and nothing else: no files, no clock but `now`, no environment. It ends
/// within Limits, and its memory is bounded by them.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/template/jinja_runtime.h"
#include "data/template/jinja_value.h"

namespace cotune::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

/// A parsed template. Immutable; one object may render in several threads at once.
class Template {
 public:
  /// Parses. `name` stands in messages: the file, or what the template belongs to. Throws UserError `name:line: reason`.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// The rendered text, each byte with its origin. Throws UserError `name:line: reason` for whatever goes wrong, the
  /// template's own raise_exception included. Without `now` the function strftime_now is undefined, so that a
  /// template falls back to the fixed date it holds and equal data gives equal text on every day. `shared_steps`: how
  /// many are left to this rendering and others; those taken are subtracted, also where it throws. Throws StepsSpent
  /// where these are too few and the limits would allow more.
  Text render(const Variables& variables, std::optional<std::tm> now = std::nullopt, const Limits& limits = {},
              uint64_t* shared_steps = nullptr) const;

  const std::string& name() const { return name_; }

 private:
  struct Body;
  std::string name_;
  std::unique_ptr<const Body> body_;
};

}  // namespace cotune::jinja
