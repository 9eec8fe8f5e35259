#include "watch/live_view.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "watch/job_outcome.h"

namespace cotune {
namespace {

constexpr int milliseconds_between_frames = 250;
constexpr size_t most_lines = 2000;

void signal_event(const Descriptor& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof one);
}

}  // namespace

/// What has become of requests: outlives a view that has ended before its replies came.
struct LiveView::Replies {
  std::mutex mutex;
  std::string text;  ///< of the newest; "": nothing was asked since the last key
};

LiveView::LiveView(LiveSource source, std::string quit_key, std::string stop_key, std::function<void(const std::string&)> print)
    : source_(std::move(source)),
      quit_key_(std::move(quit_key)),
      stop_key_(std::move(stop_key)),
      print_(std::move(print)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      replies_(std::make_shared<Replies>()),
      terminal_(std::make_unique<Terminal>()) {
  if (wake_.get() < 0) throw SystemError("cannot make an event");
  thread_ = std::thread([this] { run(); });
}

LiveView::~LiveView() { end(); }

void LiveView::say(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (!open_) {
    if (print_) print_(line);
    return;
  }
  lines_.push_back(line);
  if (lines_.size() > most_lines) lines_.pop_front();
}

void LiveView::wait() {
  std::unique_lock lock(mutex_);
  closed_.wait(lock, [this] { return !open_; });
}

void LiveView::ask_to_end() {
  ends_ = true;
  signal_event(wake_);
}

void LiveView::end() {
  ask_to_end();
  if (thread_.joinable()) thread_.join();
}

void LiveView::close() {
  const std::string left = terminal_->messages();
  terminal_.reset();
  const std::lock_guard lock(mutex_);
  try {
    if (print_) {
      for (const std::string& line : lines_) print_(line);
    }
  } catch (const std::exception& error) {
    write_to_standard_error(fmt::format("{}\n", error.what()));
  }
  write_to_standard_error(left);
  lines_.clear();
  open_ = false;
  closed_.notify_all();
}

void LiveView::run() {
  try {
    while (!ends_ && !quits_) {
      std::optional<RunView> now = source_.view();
      if (!now) break;
      view_ = std::move(*now);
      read_keys();
      std::string messages = terminal_->messages();
      while (!messages.empty()) {
        const size_t end = std::min(messages.find('\n'), messages.size());
        say(messages.substr(0, end));
        messages.erase(0, end + 1);
      }
      const Terminal::Screen screen = terminal_->screen();
      if (screen != Terminal::Screen::away) draw(screen == Terminal::Screen::anew);
      std::array<pollfd, 2> events{pollfd{wake_.get(), POLLIN, 0}, pollfd{STDIN_FILENO, POLLIN, 0}};
      const bool listens = terminal_->has_keys() && screen != Terminal::Screen::away;
      ::poll(events.data(), listens ? 2 : 1, milliseconds_between_frames);
      if ((events[1].revents & (POLLHUP | POLLERR)) != 0) ::poll(events.data(), 1, milliseconds_between_frames);
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    }
  } catch (const std::exception& error) {  // of the source
    say(error.what());
  }
  close();
}

void LiveView::read_keys() {
  const std::string more = terminal_->keys();
  const bool is_rest = more.empty();
  typed_ += more;
  while (!typed_.empty()) {
    if (typed_[0] != '\x1b') {
      const char key = typed_[0];
      typed_.erase(0, 1);
      press(key);
      continue;
    }
    // The rest of a sequence may still be under way; an escape by itself is the key.
    const bool is_sequence = typed_.size() > 1 && (typed_[1] == '[' || typed_[1] == 'O');
    size_t end = 2;
    while (is_sequence && end < typed_.size() && (typed_[end] < 0x40 || typed_[end] > 0x7e)) ++end;
    if ((typed_.size() == 1 || (is_sequence && end >= typed_.size())) && !is_rest) return;
    const char last = is_sequence && end < typed_.size() ? typed_[end] : 'n';
    typed_.erase(0, is_sequence ? std::min(end + 1, typed_.size()) : 1);
    if (last == 'A') press('k');
    if (last == 'B') press('j');
    if (!is_sequence) press('n');
  }
}

void LiveView::press(char key) {
  {
    const std::lock_guard lock(replies_->mutex);
    replies_->text.clear();
  }
  if (!asked_to_cancel_.empty()) {
    if (key == 'y' || key == 'Y') {
      selected_ = asked_to_cancel_;
      ask(ControlAction::cancel);
    }
    asked_to_cancel_.clear();
    return;
  }
  switch (key) {
    case 'q': quits_ = true; break;
    case 'j': selected_ = neighbour(view_, selected_, 1); break;
    case 'k': selected_ = neighbour(view_, selected_, -1); break;
    case 'p': ask(ControlAction::pause); break;
    case 'r': ask(ControlAction::resume); break;
    case 'c': ask_whether_to_cancel(); break;
    case '\f': drawn_.clear(); break;
    default: break;
  }
}

/// Of a job that has ended the run says so itself.
void LiveView::ask_whether_to_cancel() {
  const auto found = std::ranges::find_if(view_.jobs, [&](const JobView& job) { return job.report.name == selected_; });
  if (found == view_.jobs.end()) return;
  const std::string& status = found->report.status;
  if (status == "waiting" || status == "running" || status == "paused") {
    asked_to_cancel_ = selected_;
  } else {
    ask(ControlAction::cancel);
  }
}

void LiveView::ask(ControlAction action) {
  if (selected_.empty()) return;
  {
    const std::lock_guard lock(replies_->mutex);
    replies_->text = fmt::format("{} {}: asked; it is done after the step under way", to_string(action), selected_);
  }
  ControlRequest request;
  request.action = action;
  request.job = selected_;
  source_.ask(std::move(request), [replies = replies_, action](const ControlReply& reply) {
    const std::lock_guard lock(replies->mutex);
    if (reply.error) {
      replies->text = reply.error->message;
    } else if (reply.jobs && !reply.jobs->empty()) {
      replies->text = job_outcome(reply.jobs->front(), action);
    }
  });
}

std::vector<std::string> LiveView::footer() const {
  if (!asked_to_cancel_.empty()) {
    return {fmt::format("cancel {}? y or n; {}", asked_to_cancel_,
                        view_.run.emulated ? "nothing of an emulated run is kept" : "its last step is kept as a checkpoint")};
  }
  {
    const std::lock_guard lock(replies_->mutex);
    if (!replies_->text.empty()) return {replies_->text};
  }
  const std::string stop = "Ctrl-C " + stop_key_;
  if (!terminal_->has_keys()) return {stop};
  return {"j k choose", "p pause", "r resume", "c cancel", "q " + quit_key_, stop};
}

void LiveView::draw(bool anew) {
  if (neighbour(view_, selected_, 0) != selected_) selected_ = neighbour(view_, selected_, 0);
  const auto [columns, rows] = terminal_size();
  ScreenState state{.selected = selected_, .events = {}, .footer = footer()};
  {
    const std::lock_guard lock(mutex_);
    state.events = view_.events;
    state.events.insert(state.events.end(), lines_.begin() + static_cast<std::ptrdiff_t>(lines_.size() - std::min(lines_.size(), rows)),
                        lines_.end());
  }
  const ScreenStyle style{.columns = columns, .rows = rows, .colour = wants_colour(), .unicode = shows_unicode()};
  std::string frame = "\x1b[H";
  const std::vector<std::string> lines = run_screen(view_, style, state);
  for (size_t i = 0; i < lines.size(); ++i) frame += (i > 0 ? "\r\n\x1b[K" : "\x1b[K") + lines[i];
  const std::string size = fmt::format("{}x{}", columns, rows);
  if (!anew && drawn_ == size + frame) return;
  terminal_->draw(anew ? "\x1b[2J" + frame : frame);
  drawn_ = size + frame;
}

}  // namespace cotune
