#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/generating/answering.h"

namespace cotune {

/// How answers are shown on standard output.
enum class AnswerStyle {
  text,  ///< one as it comes; several with headings, on a terminal in panes while they come
  json,  ///< a line of JSON each, when it has ended
};

/// Shows the answers to one set of questions, until finish().
class AnswerDisplay : public AnswerWatcher {
 public:
  /// The rest of what is to be shown. Throws SystemError where a model's output was not finite.
  virtual void finish() = 0;
};

/// several_samples: headings name them. model: must outlive the display.
std::unique_ptr<AnswerDisplay> display_answers(AnswerStyle style, const std::vector<Question>& questions, const AdaptedModel& model,
                                               bool several_samples);

}  // namespace cotune
