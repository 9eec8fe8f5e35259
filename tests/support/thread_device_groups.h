#pragma once

#include "device/device_group.h"

namespace cotune::testing {

/// A stand-in for NCCL: groups of ranks that are threads of this process, on a device whose operators are done when they return, as the
/// guarded one's. Like it: calls return at once, a thread per group does what they say in their order, a rank that never comes is
/// waited for until this rank aborts, and then tensors hold anything. Sums are formed in the order of the ranks.
class ThreadDeviceGroups : public DeviceGroups {
 public:
  std::string name() override { return "threads"; }
  std::string hardware_of(at::Device) override { return "thread"; }
  at::Tensor new_id() override;
  std::unique_ptr<DeviceGroup> join(const at::Tensor& id, int32_t rank, int32_t size, at::Device device,
                                    const std::function<bool()>& given_up) override;
  std::unique_ptr<DeviceMark> mark(at::Device device) override;

  /// Sends and receives that the threads have begun.
  int64_t messages_begun() const;
  /// While held, what a thread has given its device is never done.
  void hold(bool held);
  /// What failure() of all groups says from now on.
  void fail(const std::string& text);

  static ThreadDeviceGroups& instance();

 private:
  ThreadDeviceGroups() = default;
};

}  // namespace cotune::testing
