/// What is to come in a simulation of pipelines, in the order of time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace cotune {

/// Something that happens in a simulated pipeline.
struct PipelineEvent {
  enum Kind { computed, copied, link_free, arrived, pace_changes, exchanged };
  double time_s = 0;
  int64_t number = 0;
  Kind kind = computed;
  size_t replica = 0;
  size_t index = 0;     ///< of the rank; link_free, arrived: of the link
  int64_t version = 0;  ///< computed: void unless the rank's
  bool operator>(const PipelineEvent& other) const {
    return std::pair(time_s, number) > std::pair(other.time_s, other.number);
  }
};

/// Those to come, of all replicas, and the time: that of the last one taken. Of simultaneous ones the first pushed comes first.
class PipelineEvents {
 public:
  double now_s() const { return now_s_; }
  /// Ascending with every call: an order of things that happen at one time.
  int64_t number() { return number_++; }
  void push(PipelineEvent event) {
    event.number = number();
    events_.push(event);
  }
  bool empty() const { return events_.empty(); }
  PipelineEvent pop() {
    const PipelineEvent event = events_.top();
    events_.pop();
    now_s_ = event.time_s;
    return event;
  }

 private:
  std::priority_queue<PipelineEvent, std::vector<PipelineEvent>, std::greater<>> events_;
  int64_t number_ = 0;
  double now_s_ = 0;
};

}  // namespace cotune
