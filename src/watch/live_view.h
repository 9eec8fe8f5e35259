#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "control/protocol.h"
#include "control/socket.h"
#include "watch/run_screen.h"
#include "watch/terminal.h"

namespace cotune {

/// Where a live view has its run from. Both are called on the view's thread.
struct LiveSource {
  /// The run now; nothing: it has gone, and the view ends. Must not wait for a round of training.
  std::function<std::optional<RunView>()> view;
  /// Asks for something that `cotune job` could ask for; must not wait. The reply may come from any thread.
  std::function<void(ControlRequest, std::function<void(const ControlReply&)>)> ask;
};

/// A run in a terminal, drawn anew four times a second where it has changed, with keys that ask for what `cotune job` asks for. On a
/// thread of its own: nothing of it holds up the run.
class LiveView {
 public:
  /// quit_key: what `q` does, for the line of keys. stop_key: the same of Ctrl-C. print: where lines go that were said, when the view
  /// has ended; "" to keep none. Takes the terminal (terminal.h).
  LiveView(LiveSource source, std::string quit_key, std::string stop_key, std::function<void(const std::string&)> print);
  ~LiveView();
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  /// A line of what happens: below the table while the view is there, and printed when it has ended; at once after that.
  void say(const std::string& line);
  bool is_open() const { return open_; }
  /// Returns when the view has ended: by `q`, by its source or by end().
  void wait();
  /// Gives the terminal back and prints what was said.
  void end();
  /// Has the view end soon; may be called by a handler of signals.
  void ask_to_end();

 private:
  struct Replies;

  void run();
  void read_keys();
  void press(char key);
  void ask_whether_to_cancel();
  void ask(ControlAction action);
  void draw(bool anew);
  std::vector<std::string> footer() const;
  void close();

  LiveSource source_;
  std::string quit_key_, stop_key_;
  std::function<void(const std::string&)> print_;
  Descriptor wake_;
  std::atomic<bool> open_{true}, ends_{false};
  std::mutex mutex_;
  std::condition_variable closed_;
  std::deque<std::string> lines_;   ///< that were said, the newest
  std::shared_ptr<Replies> replies_;

  // Of the view's thread.
  std::unique_ptr<Terminal> terminal_;
  RunView view_;
  std::string selected_, asked_to_cancel_, typed_, drawn_;
  bool quits_ = false;
  std::thread thread_;
};

}  // namespace cotune
