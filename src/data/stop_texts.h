/// Texts that end an answer, looked for while it comes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cotune {

/// Takes an answer piece by piece, however it is cut, and gives out what is certainly before every stop text: of a piece that may be the
/// beginning of one nothing is given out until it has turned out not to be. The stop text that is complete first ends the answer (of
/// several that end together, the longest); it and what follows are never given out.
class StopTexts {
 public:
  /// Empty texts stop nothing.
  explicit StopTexts(std::vector<std::string> texts);

  /// What can be shown now.
  std::string add(std::string_view piece);
  /// The answer has ended otherwise: what was held back.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> texts_;
  std::string held_;
  bool found_ = false;
};

}  // namespace cotune
