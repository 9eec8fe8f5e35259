#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cotune {

/// A line on standard error about work that goes on: drawn over four times a second on a terminal that can (TERM), elsewhere a further line every 30
/// seconds. Time counts from when it was made.
class StatusLine {
 public:
  StatusLine();
  /// Takes away what is drawn.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Whether it is time to show another text.
  bool is_due() const;
  void show(const std::string& text);
  /// The last text, which stays.
  void end_with(const std::string& text);

  double seconds() const;
  /// `, 12s left`, as fast as `done` of `all` were until now; "" where nothing is done yet.
  std::string time_left(int64_t done, int64_t all) const;

 private:
  using Clock = std::chrono::steady_clock;
  bool is_terminal_, is_drawn_ = false;
  Clock::time_point begun_at_ = Clock::now(), shown_at_ = begun_at_;
};

}  // namespace cotune
