#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "engine/emulated_device.h"
#include "schedule/pipeline/exchange_times.h"

namespace cotune {

/// One rank's end of exchanges of gradients on a device that is not there, beside its computation: the messages of GradientExchange, but
/// what they carry is when they are there on the device's exchange_link, over which a rank's messages leave one after another. Whichever
/// is later counts, that or when a message came. With a clock that stands still it takes the times of ExchangeTimes. One thread.
class EmulatedExchange {
 public:
  /// The communicator is of the ranks of all replicas and serves nothing else. Both outlive this.
  EmulatedExchange(Communicator& communicator, const EmulatedDevice& device) : communicator_(communicator), clock_(device) {}

  /// Of all steps in which this rank takes part, in one order on all ranks. Returns when it has the sums, by the device's clock.
  double exchange(const ExchangeMessages& messages, int64_t value_bytes, double posted_s);

  /// Bytes of gradients that it would have sent.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  void send(int32_t to, int64_t bytes, Channel channel);
  void receive(int32_t from, Channel channel);
  void pass_on(const ExchangeMessages::Values& values, int64_t value_bytes, Channel channel);
  void exchange_records(const ExchangeMessages& messages);

  Communicator& communicator_;
  EmulatedClock clock_;
  double link_free_s_ = 0;
  int64_t sent_bytes_ = 0;
};

}  // namespace cotune
