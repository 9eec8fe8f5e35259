/// What is asked of a run while it goes on, and what it answers: one JSON object a line (docs/control.md). Plain values;
/// server.h and client.h carry them.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"

namespace cotune {

/// Every request and reply names it; another version is refused.
inline constexpr int control_version = 1;

enum class ControlAction { status, list, add, cancel, pause, resume, priority, drain };
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

/// One job as it stands. NaN: not known yet.
struct JobReport {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  std::string name, tenant;
  std::string status;      ///< waiting, running, paused, finished, stopped_early, failed, refused, cancelled
  int64_t priority = 0;
  std::string deadline;    ///< as the jobs file has it
  bool added = false;      ///< while the run went on
  int64_t step = 0, steps = 0;
  double loss = unknown, eval_loss = unknown;
  double tokens_per_second = unknown, seconds_left = unknown;  ///< while it runs
  std::string reason;      ///< why it waits, or failed
  std::string checkpoint;  ///< folder of the newest one; "": none
  std::string adapter;     ///< folder of the result; "": none yet
};

/// The run as it stands.
struct RunReport {
  int64_t pid = 0;
  std::string folder;
  std::string phase;   ///< training, idle (nothing to do: it waits for jobs), stopping
  bool stay = false;   ///< waits for further jobs when all have ended
  int64_t rounds = 0;  ///< of training
  double seconds = 0;  ///< since the run began
  std::map<std::string, int64_t> jobs;  ///< how many, by status
};

/// Either an error, or what was asked for: jobs (list: all; else those that were changed), or the run (status, drain).
struct ControlReply {
  std::optional<ControlError> error;
  std::optional<RunReport> run;
  std::optional<std::vector<JobReport>> jobs;
};

/// Throws BadRequest, which names the field and what is accepted.
ControlRequest parse_request(std::string_view line);
/// Throws UserError: the line is no reply of this version.
ControlReply parse_reply(std::string_view line);

/// Without the end of line. Text that is not UTF-8 (paths) comes out with replacement characters.
std::string to_line(const ControlRequest& request);
std::string to_line(const ControlReply& reply, const std::string& id);

}  // namespace cotune
