#include "console/run_view_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/shell_quoted.h"
#include "base/visible_text.h"
#include "console/output.h"
#include "control/client.h"
#include "watch/run_log.h"
#include "watch/run_screen.h"
#include "watch/screen_text.h"
#include "watch/terminal.h"

namespace cotune {

RunView current_view(const std::filesystem::path& run, std::vector<std::string>& damage) {
  bool is_silent = false;
  try {
    ControlClient client(run);
    ControlRequest request;
    request.action = ControlAction::view;
    const std::optional<ControlReply> reply = client.ask_within(most_seconds_to_answer, request);
    if (reply && reply->error) throw UserError(reply->error->message);
    if (reply && reply->view) return *reply->view;
    is_silent = !reply;
  } catch (const CannotBeAsked&) {
  } catch (const SystemError&) {  // it has ended just now
  }
  const bool goes_on = is_being_trained(run);
  if (goes_on && !is_silent && is_starting(run)) return view_of_start(run);
  const RunLog log = read_run_log(run);
  damage = log.damage;
  RunView view = view_of(log, goes_on);
  if (is_silent && goes_on) view.run.phase = "unresponsive";
  return view;
}

void tell_of_damage(const std::vector<std::string>& damage) {
  for (const std::string& each : damage) write_to_standard_error(visible_text(each) + "\n");
}

void print_view(const RunView& view) {
  constexpr size_t widest = 120;
  const bool on_terminal = ::isatty(STDOUT_FILENO);
  const ScreenStyle style{.columns = on_terminal ? terminal_size().first : widest,
                          .colour = has_drawing_terminal() && wants_colour(),
                          .unicode = shows_unicode()};
  for (const std::string& line : run_screen(view, style)) print_line(line.substr(0, line.find_last_not_of(' ') + 1));
  if (!can_be_resumed(view.run)) return;
  print_line("");
  print_line(fmt::format("`cotune train JOBS_FILE --resume --output-dir {}` goes on with it", printable(shell_quoted(view.run.folder))));
}

}  // namespace cotune
