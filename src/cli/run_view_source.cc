#include "cli/run_view_source.h"

#include <unistd.h>

#include "base/error.h"
#include "cli/output.h"
#include "control/client.h"
#include "watch/run_log.h"
#include "watch/run_screen.h"
#include "watch/terminal.h"

namespace cotune {

RunView current_view(const std::filesystem::path& run) {
  try {
    ControlClient client(run);
    ControlRequest request;
    request.action = ControlAction::view;
    const ControlReply reply = client.ask(request);
    if (reply.error) throw UserError(reply.error->message);
    if (reply.view) return *reply.view;
  } catch (const NobodyListens&) {
  } catch (const SystemError&) {  // it has ended just now
  }
  return view_of(read_run_log(run), is_being_trained(run));
}

void print_view(const RunView& view) {
  constexpr size_t widest = 120;
  const bool on_terminal = ::isatty(STDOUT_FILENO);
  const ScreenStyle style{.columns = on_terminal ? terminal_size().first : widest,
                          .colour = on_terminal && has_live_terminal() && wants_colour(),
                          .unicode = shows_unicode()};
  for (const std::string& line : run_screen(view, style)) print_line(line.substr(0, line.find_last_not_of(' ') + 1));
}

}  // namespace cotune
