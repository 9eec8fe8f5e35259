/// Ranks that have a device each, and what they send from device to device without their hosts (between NVIDIA GPUs: NCCL). A run's
/// messages and collectives are made of it by comm/device_communicator.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cotune {

/// A place in what a device has been given to do (of CUDA: an event).
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Whether the device has come to it. Throws c10::Error where the device has failed.
  virtual bool reached() = 0;
  /// What this thread gives the device from now on is done after it. Returns at once.
  virtual void order_after() = 0;
};

/// One rank's end of a group. Calls return at once; the mark is where what they say is done, until when the tensors, contiguous and of
/// the device, must stay. One thread at a time calls, all but abort(); every rank makes the same collective calls in the same order.
/// Every call throws c10::Error where the transport refuses it.
class DeviceGroup {
 public:
  using Mark = std::unique_ptr<DeviceMark>;

  /// Ends what is still under way, here alone.
  virtual ~DeviceGroup() = default;
  /// Collectives: the device does them after what this thread has given it before, beside what it is given later.
  /// values := sum over the ranks, in their dtype; equal bits on all. Dtypes: f64, f32, f16, bf16, integers.
  virtual Mark all_reduce(at::Tensor& values) = 0;
  /// own [n, m], all [ranks · n, m]: the rows of all, in the order of the ranks.
  virtual Mark all_gather(const at::Tensor& own, at::Tensor& all) = 0;
  /// As Communicator::start_all_to_all.
  virtual Mark all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken,
                          const std::vector<int64_t>& taken_rows) = 0;
  virtual Mark broadcast(at::Tensor& values, int32_t root) = 0;
  /// Bytes, of which the peer's receive has as many. The device begins at once, beside whatever it has been given: a buffer's data are
  /// computed, and who has used its memory before is done.
  virtual Mark send(const at::Tensor& buffer, int32_t peer) = 0;
  virtual Mark receive(const at::Tensor& buffer, int32_t peer) = 0;

  /// From any thread: what is under way here ends soon, with whatever is in its tensors, and its marks are reached. So may what a peer has
  /// under way with this rank, as though it had gone well.
  virtual void abort() noexcept = 0;
  /// What the transport has found to be wrong meanwhile; empty: nothing.
  virtual std::string failure() = 0;
};

/// The groups of one kind of device. Every call may throw c10::Error.
class DeviceGroups {
 public:
  /// `NCCL 2.28.9`
  virtual std::string name() = 0;
  /// Of devices of one machine, equal where two are the same piece of hardware, which can be in a group once.
  virtual std::string hardware_of(at::Device device) = 0;
  /// New, and for the ranks of one group: one of them asks, and tells the others. u8 [id_bytes], on the host.
  virtual at::Tensor new_id() = 0;
  static constexpr int64_t id_bytes = 128;
  /// Returns when all ranks have joined. given_up: asked again and again; where it is true this throws.
  virtual std::unique_ptr<DeviceGroup> join(const at::Tensor& id, int32_t rank, int32_t size, at::Device device,
                                            const std::function<bool()>& given_up) = 0;
  /// After what this thread has given the device.
  virtual std::unique_ptr<DeviceMark> mark(at::Device device) = 0;

 protected:
  ~DeviceGroups() = default;  // as long as the process
};

}  // namespace cotune
