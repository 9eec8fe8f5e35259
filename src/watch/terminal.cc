#include "watch/terminal.h"

#include <fcntl.h>
#include <langinfo.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/descriptor.h"
#include "base/error.h"

namespace cotune {
namespace {

constexpr std::string_view enter_screen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view leave_screen = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

// What handlers of signals read: plain values, written while `alive` is false or by the handler itself.
std::atomic<bool> alive{false}, shown{false};
bool keys_are_ours = false, was_away = false;
termios before{}, ours{};
int error_before = -1;                       // standard error's terminal; -1: it goes elsewhere
std::array<int, 2> error_pipe = {-1, -1};
// Those whose default is to kill, without the ones that the program catches itself: SIGINT, SIGTERM, SIGHUP, SIGBUS.
constexpr std::array<int, 16> deadly = {SIGSEGV, SIGABRT,   SIGFPE,  SIGILL,  SIGQUIT, SIGSYS, SIGTRAP,   SIGXCPU,
                                        SIGALRM, SIGVTALRM, SIGPROF, SIGUSR1, SIGUSR2, SIGIO,  SIGSTKFLT, SIGPWR};
std::array<struct sigaction, deadly.size()> deadly_before;
struct sigaction stop_before;

bool in_foreground() { return ::tcgetpgrp(STDOUT_FILENO) == ::getpgrp(); }

bool draws(int descriptor) {
  const char* kind = std::getenv("TERM");
  return ::isatty(descriptor) != 0 && kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

/// While it lives, use of a terminal in whose background this process has come to be fails, or works, but stops nobody.
class NotStopped {
 public:
  NotStopped() {
    sigset_t of_background;
    ::sigemptyset(&of_background);
    ::sigaddset(&of_background, SIGTTIN);
    ::sigaddset(&of_background, SIGTTOU);
    ::pthread_sigmask(SIG_BLOCK, &of_background, &mask_);
  }
  ~NotStopped() { ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr); }
  NotStopped(const NotStopped&) = delete;
  NotStopped& operator=(const NotStopped&) = delete;

 private:
  sigset_t mask_;
};

void hide() {
  if (!shown.exchange(false)) return;
  const NotStopped here;
  write_all(STDOUT_FILENO, leave_screen);
  if (keys_are_ours && in_foreground()) ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

/// In the foreground.
void show() {
  if (shown.exchange(true)) return;
  const NotStopped here;
  if (keys_are_ours) ::tcsetattr(STDIN_FILENO, TCSANOW, &ours);
  write_all(STDOUT_FILENO, enter_screen);
}

extern "C" void on_deadly_signal(int number) {
  give_terminal_back();
  for (size_t i = 0; i < deadly.size(); ++i) {
    if (deadly[i] == number) ::sigaction(number, &deadly_before[i], nullptr);
  }
  std::raise(number);
}

extern "C" void on_stop_key(int);

void catch_stop_key(struct sigaction* former) {
  struct sigaction action{};
  action.sa_handler = on_stop_key;
  ::sigaction(SIGTSTP, &action, former);
}

/// Stops as without us: not at all in a process group that no shell could set going again, or where the signal is ignored. The screen
/// comes back when it is drawn in the foreground.
extern "C" void on_stop_key(int) {
  const int reason = errno;
  hide();
  ::sigaction(SIGTSTP, &stop_before, nullptr);
  std::raise(SIGTSTP);
  sigset_t stop, mask;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &stop, &mask);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  if (alive) catch_stop_key(nullptr);
  errno = reason;
}

void keep_standard_error() {
  if (!::isatty(STDERR_FILENO)) return;
  if (::pipe2(error_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;  // nobody waits for who reads it
  error_before = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (error_before < 0 || ::dup2(error_pipe[1], STDERR_FILENO) < 0) {
    if (error_before >= 0) ::close(error_before);
    error_before = -1;
    for (int& end : error_pipe) ::close(std::exchange(end, -1));
  }
}

}  // namespace

bool has_drawing_terminal() { return draws(STDOUT_FILENO); }

bool has_drawing_error_terminal() { return draws(STDERR_FILENO); }

bool has_live_terminal() {
  struct stat input{}, output{};
  return has_drawing_terminal() && in_foreground() && ::isatty(STDIN_FILENO) && ::fstat(STDIN_FILENO, &input) == 0 &&
         ::fstat(STDOUT_FILENO, &output) == 0 && input.st_rdev == output.st_rdev;
}

bool wants_colour() {
  const char* wish = std::getenv("NO_COLOR");
  return wish == nullptr || *wish == '\0';
}

bool shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set counts
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    return ::strcasestr(value, "utf-8") != nullptr || ::strcasestr(value, "utf8") != nullptr;
  }
  return false;
}

std::pair<size_t, size_t> terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24};
  return {size.ws_col, size.ws_row};
}

size_t error_terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

Terminal::Terminal() {
  COTUNE_CHECK(!alive, "there is one terminal");
  keys_are_ours = ::tcgetattr(STDIN_FILENO, &before) == 0;
  ours = before;
  ours.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  ours.c_cc[VMIN] = 0;
  ours.c_cc[VTIME] = 0;
  keep_standard_error();
  alive = true;
  struct sigaction action{};
  action.sa_handler = on_deadly_signal;
  for (size_t i = 0; i < deadly.size(); ++i) {
    ::sigaction(deadly[i], &action, &deadly_before[i]);
    if (deadly_before[i].sa_handler == SIG_IGN) ::sigaction(deadly[i], &deadly_before[i], nullptr);
  }
  catch_stop_key(&stop_before);
  call_before_sudden_end(give_terminal_back);
  [[maybe_unused]] static const int at_exit = std::atexit(give_terminal_back);
}

Terminal::~Terminal() {
  give_terminal_back();
  for (size_t i = 0; i < deadly.size(); ++i) ::sigaction(deadly[i], &deadly_before[i], nullptr);
  ::sigaction(SIGTSTP, &stop_before, nullptr);
  if (error_before >= 0) ::close(std::exchange(error_before, -1));
  for (int& end : error_pipe) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
}

bool Terminal::has_keys() const { return keys_are_ours; }

Terminal::Screen Terminal::screen() {
  if (!in_foreground()) {
    was_away = true;
    return Screen::away;
  }
  if (std::exchange(was_away, false)) shown = false;  // whoever had the terminal meanwhile has made it theirs
  const bool was_shown = shown;
  if (alive) show();
  return !shown ? Screen::away : was_shown ? Screen::held : Screen::anew;
}

void Terminal::draw(std::string_view bytes) {
  const NotStopped here;
  if (shown && in_foreground()) write_all(STDOUT_FILENO, bytes);
}

std::string Terminal::keys() {
  const NotStopped here;
  if (!keys_are_ours || !shown || !in_foreground()) return "";
  char bytes[256];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
  return count > 0 ? std::string(bytes, static_cast<size_t>(count)) : "";
}

std::string Terminal::messages() {
  std::string text;
  char bytes[4096];
  ssize_t count = 0;
  while (error_before >= 0 && (count = ::read(error_pipe[0], bytes, sizeof bytes)) > 0) text.append(bytes, static_cast<size_t>(count));
  return text;
}

TerminalOfAnother::TerminalOfAnother() { is_there_ = has_live_terminal() && ::tcgetattr(STDIN_FILENO, &was_) == 0; }

void TerminalOfAnother::mend() const {
  termios now{};
  if (!is_there_ || !in_foreground() || ::tcgetattr(STDIN_FILENO, &now) != 0 || now.c_lflag == was_.c_lflag) return;
  const NotStopped here;
  write_all(STDOUT_FILENO, leave_screen);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &was_);
}

void give_terminal_back() {
  if (!alive.exchange(false)) return;
  hide();
  if (error_before < 0) return;
  ::dup2(error_before, STDERR_FILENO);
  char bytes[4096];
  ssize_t count = 0;
  while ((count = ::read(error_pipe[0], bytes, sizeof bytes)) > 0) write_all(error_before, {bytes, static_cast<size_t>(count)});
}

}  // namespace cotune
