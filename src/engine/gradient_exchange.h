#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "adapter/adapter.h"
#include "comm/communicator.h"
#include "engine/adapter_state.h"
#include "engine/emulated_exchange.h"
#include "ops/memory.h"
#include "schedule/gradient_slices.h"
#include "schedule/pipeline/pipeline_work.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// What a rank has of an adapter.
struct HeldAdapter {
  int32_t replica = 0;
  std::vector<LayerRange> layers;    ///< of which it computes the gradients
  std::vector<ParameterPart> parts;  ///< of the whole adapter's parameters of these layers, in its order
};

/// How ranks exchange the gradients of one job. Valid while its structure stays.
struct JobExchange {
  std::vector<GradientSlice> slices;  ///< of Adapter::parameters()
  std::vector<int32_t> ranks;         ///< that take part; the first adds up what is known of the step
  ExchangeMessages messages;        ///< between all of them; a process other than the first has none
};

/// whole: any adapter with all of the job's parameters at their whole sizes. ranks: of all replicas, in the order of their numbers. A
/// rank takes part where it has layers from the job's lowest one up. The slices' parameters are the whole adapter's.
JobExchange exchange_of(const Adapter& whole, std::span<const HeldAdapter> ranks);

/// What a rank needs of it whose adapter has the parameters of its layers alone: the slices that it holds, with the places of their
/// parameters in that adapter.
JobExchange part_of_exchange(const JobExchange& exchange, const Adapter& whole, int32_t rank, std::span<const LayerRange> layers);

/// One rank's end of the exchange of gradients between replicas, for one run: in a thread of its own, so that the rank computes
/// meanwhile. Steps are exchanged in one order on all ranks:
///   every rank sends the slices of its gradient to their owners, which add those of all replicas, in the replicas' order,
///   and send the sums to everyone that holds them;
///   owners send Σ g² of their slices, and ranks with a head the loss, to the first rank that takes part, which adds them in the
///   ranks' order and sends the record (optimizer.h) to all. By then everyone has the sums.
/// So all replicas go on from equal bits. It adds nothing of one job to another's.
class GradientExchange {
 public:
  struct Step {
    JobStep step;
    const JobExchange* exchange = nullptr;
    Adapter* adapter = nullptr;
  };

  using OnFailure = std::function<void(std::exception_ptr)>;
  using OnProgress = std::function<void()>;

  /// The communicator is of all replicas' ranks, serves nothing else, and outlives this. steps: in which this rank takes part, in order.
  /// on_failure: called once, on the thread, with what broke the exchange off: its rank may not come to wait() while others wait for
  /// it. It may abort communicators. on_progress: called on the thread when a message has come or gone; may be empty.
  GradientExchange(Communicator& communicator, std::vector<Step> steps, OnFailure on_failure, OnProgress on_progress = {});
  /// What has not been exchanged must have been given up: the communicator is aborted then.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// On an emulated device, before the first post: gradients are not sent, and exchanging them takes the device's time, beside that of
  /// the rank, whose clock outlives this.
  void keep_time(EmulatedClock& clock);

  /// The step's gradients are complete here, and not touched until wait() has returned. loss: f64 scalar; of ranks without a head 0.
  /// action: the place of its reduce_gradients in the rank's list.
  void post(const JobStep& step, const at::Tensor& loss, size_t action);
  /// Ranks that take part in a step.
  const std::vector<int32_t>& ranks_of(const JobStep& step) const;
  /// Gradients are now the job's; returns its record. Throws what broke the exchange off.
  at::Tensor wait(const JobStep& step);

  /// Seconds in wait(), also for replicas that were not as far yet.
  double waited_s() const { return waited_s_; }
  /// Bytes of gradients that this rank has sent.
  int64_t sent_bytes() const { return sent_bytes_; }
  /// SimulatedRank::exchanges of those that wait() has returned, by std::chrono::steady_clock in seconds, or the clock of keep_time.
  std::vector<SimulatedSpan> spans();

 private:
  /// What a rank has posted, and when by that clock.
  struct Posted {
    at::Tensor loss;
    size_t action = 0;
    double at_s = 0;
  };
  /// Of a step that has been exchanged, and since when by that clock.
  struct Exchanged {
    at::Tensor record;
    double at_s = 0;
  };

  void run();
  Exchanged emulate(const Step& step, const Posted& posted);
  Exchanged exchange(const Step& step, const at::Tensor& loss);
  at::Tensor add_slices(const Step& step);
  void wait_for(std::vector<std::shared_ptr<Transfer>>& transfers);
  at::Tensor add_records(const Step& step, const at::Tensor& own);

  Communicator& communicator_;
  const std::vector<Step> steps_;
  const OnFailure on_failure_;
  const OnProgress on_progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<JobStep, Posted> posted_;
  std::map<JobStep, Exchanged> exchanged_;
  std::exception_ptr failure_;
  bool closing_ = false;
  double waited_s_ = 0;
  std::atomic<int64_t> sent_bytes_ = 0;  ///< read while a broken exchange may still be ending
  std::vector<SimulatedSpan> spans_;
  EmulatedClock* clock_ = nullptr;
  std::optional<EmulatedExchange> emulated_;
  const MemoryAccount account_ = MemoryAccount::of_this_thread();  ///< of the rank
  std::thread thread_;
};

}  // namespace cotune
