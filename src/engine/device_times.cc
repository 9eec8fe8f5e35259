#include "engine/device_times.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

namespace cotune {

struct DeviceTimes::Marks {
  std::vector<c10::Event> events;  ///< used again from one collect to the next
  std::vector<std::string> names;  ///< of events[1], events[2], …
  size_t count = 0;                ///< of events in use
};

DeviceTimes::DeviceTimes(at::Device device) : device_(device), marks_(std::make_unique<Marks>()) {}
DeviceTimes::~DeviceTimes() = default;

void DeviceTimes::begin() {
  marks_->count = 0;
  marks_->names.clear();
  mark("");
  marks_->names.clear();
}

void DeviceTimes::mark(const std::string& name) {
  if (marks_->count == marks_->events.size()) marks_->events.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  marks_->events[marks_->count++].record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  marks_->names.push_back(name);
}

void DeviceTimes::collect(const std::function<void(const std::string& name, double seconds)>& take) {
  if (marks_->count == 0) return;
  marks_->events[marks_->count - 1].synchronize();
  for (size_t i = 0; i + 1 < marks_->count; ++i) {
    take(marks_->names[i], marks_->events[i].elapsedTime(marks_->events[i + 1]) / 1000);
  }
  marks_->count = 0;
  marks_->names.clear();
}

}  // namespace cotune
