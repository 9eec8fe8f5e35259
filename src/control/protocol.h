/// What is asked of a run while it goes on, and what it answers: one JSON object a line (docs/control.md). Plain values;
/// server.h and client.h carry them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "control/run_view.h"

namespace cotune {

/// Every request and reply names it; another version is refused.
inline constexpr int control_version = 1;

/// A job's priority is from −most_priority to this, as in a jobs file.
inline constexpr int64_t most_priority = 1'000'000;

enum class ControlAction { status, list, view, add, cancel, pause, resume, priority, drain };
std::string_view to_string(ControlAction action);

struct ControlRequest {
  /// Of the action `add`: a jobs file as text.
  struct JobsText {
    std::string file;               ///< what messages call it
    std::string text;
    std::string folder;             ///< absolute: what relative paths in the text are resolved against
    std::vector<std::string> overrides;  ///< as given to --set
    std::string working_directory;  ///< absolute: the same for relative paths in overrides; "": folder
    bool operator==(const JobsText&) const = default;
  };

  ControlAction action = ControlAction::status;
  std::string id;        ///< JSON of a text or a whole number, which the reply repeats; "": none
  std::string job;       ///< of cancel, pause, resume, priority
  int64_t priority = 0;  ///< of priority
  JobsText add;          ///< of add
  bool operator==(const ControlRequest&) const = default;
};

enum class ControlErrorCode {
  bad_request,  ///< the line is no request of this version
  too_long,     ///< the line is longer than a request may be; the connection is closed
  unknown_job,
  conflict,     ///< the job's state does not allow it: to pause a job that has ended
  refused,      ///< jobs that are to be added have mistakes
  ended,        ///< the run has ended, or ends now
  failed        ///< the machine refused something
};
std::string_view to_string(ControlErrorCode code);

/// Why a request was not done.
struct ControlError {
  ControlErrorCode code = ControlErrorCode::failed;
  std::string message;                ///< for people; may have several lines
  std::vector<Diagnostic> mistakes;   ///< of refused: each with its place
  bool operator==(const ControlError&) const = default;
};

/// A line that is no request. The id is what could be read of it.
class BadRequest : public UserError {
 public:
  BadRequest(const std::string& message, std::string id) : UserError(message), id_(std::move(id)) {}
  const std::string& id() const { return id_; }

 private:
  std::string id_;
};

/// Either an error, or what was asked for: jobs (list: all; else those that were changed), the run (status, drain, list), or all that
/// a screen shows (view).
struct ControlReply {
  std::optional<ControlError> error;
  std::optional<RunReport> run;
  std::optional<std::vector<JobReport>> jobs;
  std::optional<RunView> view;
};

/// Throws BadRequest, which names the field and what is accepted.
ControlRequest parse_request(std::string_view line);
/// Throws UserError: the line is no reply of this version.
ControlReply parse_reply(std::string_view line);

/// Without the end of line. Text that is not UTF-8 (paths) comes out with replacement characters.
std::string to_line(const ControlRequest& request);
std::string to_line(const ControlReply& reply, const std::string& id);

}  // namespace cotune
