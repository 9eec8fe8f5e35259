#include "jobs/yaml_document.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "base/diagnostics.h"
#include "base/error.h"

namespace cotune {

namespace {

[[noreturn]] void fail(const std::string& file_name, int line, std::string message) {
  const Diagnostic mistake{file_name, line, "", std::move(message)};
  throw UserMistakes(mistake.to_string(), {mistake});
}

/// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629); npos when there is none.
size_t find_bad_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned lead = byte(i), second = byte(i + 1);
    const auto continues = [&](size_t at) { return (byte(at) & 0xC0) == 0x80; };
    if (lead < 0x80) {
      i += 1;
    } else if (lead >= 0xC2 && lead <= 0xDF && continues(i + 1)) {
      i += 2;
    } else if (lead >= 0xE0 && lead <= 0xEF && continues(i + 1) && continues(i + 2) &&
               !(lead == 0xE0 && second < 0xA0) && !(lead == 0xED && second > 0x9F)) {
      i += 3;
    } else if (lead >= 0xF0 && lead <= 0xF4 && continues(i + 1) && continues(i + 2) && continues(i + 3) &&
               !(lead == 0xF0 && second < 0x90) && !(lead == 0xF4 && second > 0x8F)) {
      i += 4;
    } else {
      return i;
    }
  }
  return std::string_view::npos;
}

/// Follows the parser through one document and refuses deep nesting before any node is made.
class NestingCheck : public YAML::EventHandler {
 public:
  explicit NestingCheck(const std::string& file_name) : file_name_(file_name) {}

  void OnDocumentStart(const YAML::Mark& mark) override { start_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    descend(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    descend(mark);
  }
  void OnMapEnd() override { --depth_; }

  const YAML::Mark& start() const { return start_; }

 private:
  static constexpr int deepest = 50;

  void descend(const YAML::Mark& mark) {
    if (++depth_ > deepest) fail(file_name_, mark.line + 1, fmt::format("nested deeper than {} levels", deepest));
  }

  const std::string& file_name_;
  int depth_ = 0;
  YAML::Mark start_;
};

/// LoadAll does not end on some malformed texts (`[],[]`), so documents are counted here.
void check_structure(const std::string& text, const std::string& file_name) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NestingCheck first(file_name), second(file_name);
  if (parser.HandleNextDocument(first) && parser.HandleNextDocument(second)) {
    fail(file_name, second.start().line + 1, "a second YAML document, or text after the end of the first");
  }
}

}  // namespace

YAML::Node load_yaml_document(std::string_view text, const std::string& file_name, size_t largest) {
  if (text.size() > largest) {
    fail(file_name, 0, fmt::format("{} bytes are too many for a jobs file; at most {} are accepted", text.size(),
                                   largest));
  }
  if (const size_t bad = find_bad_utf8(text); bad != std::string_view::npos) {
    const int line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + bad, '\n'));
    fail(file_name, line, fmt::format("byte 0x{:02x} is not UTF-8 text", static_cast<unsigned char>(text[bad])));
  }
  try {
    const std::string copy(text);
    check_structure(copy, file_name);
    return YAML::Load(copy);
  } catch (const YAML::Exception& error) {
    fail(file_name, error.mark.is_null() ? 0 : error.mark.line + 1, "not YAML: " + error.msg);
  }
}

int line_of(const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.is_null() ? 0 : mark.line + 1;
}

}  // namespace cotune
