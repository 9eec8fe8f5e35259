#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

namespace cotune {

/// When a device that works while the host goes on has done what it was given: events in its stream, read when it has come to
/// their end. Costs a microsecond or two of the host per mark, and nothing of the device.
class DeviceTimes {
 public:
  /// device: not the CPU.
  explicit DeviceTimes(at::Device device);
  ~DeviceTimes();

  /// What was given to the device since the last mark goes by this name. The first mark after a collect() needs a begin().
  void begin();
  void mark(const std::string& name);

  /// Waits for the last mark, calls take(name, seconds) for each in order and forgets them.
  void collect(const std::function<void(const std::string& name, double seconds)>& take);

 private:
  struct Marks;
  at::Device device_;
  std::unique_ptr<Marks> marks_;
};

}  // namespace cotune
