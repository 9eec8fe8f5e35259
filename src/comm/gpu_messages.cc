#include "comm/gpu_messages.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "base/error.h"
#include "comm/device_communicator.h"

namespace cotune {
namespace {

/// Why not all ranks have a device of their own; empty where they have.
std::string reason_for_hosts(const ComputeDevice& device, std::span<const RankHardware> ranks) {
  if (device.plugin->groups() == nullptr) return "NCCL is not there";
  std::map<std::pair<std::string, std::string>, size_t> owners;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankHardware& own = ranks[rank];
    if (own.device.empty()) return fmt::format("rank {} on {} has no NCCL", rank, own.host);
    const auto [owner, is_new] = owners.try_emplace({own.host, own.device}, rank);
    if (!is_new) return fmt::format("ranks {} and {} share a GPU of {}", owner->second, rank, own.host);
  }
  return "";
}

}  // namespace

std::string hardware_of(const ComputeDevice& device) {
  if (device.is_cpu() || device.plugin->groups() == nullptr) return "";
  return device.plugin->groups()->hardware_of(device.device);
}

GpuMessages choose_gpu_messages(const ComputeDevice& device, std::span<const RankHardware> ranks) {
  const char* const set = std::getenv("COTUNE_GPU_MESSAGES");
  const std::string wish = set != nullptr ? set : "";
  if (!wish.empty() && wish != "host" && wish != "device") {
    throw_user_error("COTUNE_GPU_MESSAGES: is `{}`; accepted: device (NCCL), host", wish);
  }
  if (device.is_cpu()) return {};
  const std::string reason = reason_for_hosts(device, ranks);
  if (wish == "device" && !reason.empty()) throw_user_error("COTUNE_GPU_MESSAGES: is `device`, but {}", reason);
  if (wish == "host") return {.between_devices = false, .text = "by way of the hosts, as COTUNE_GPU_MESSAGES asks"};
  if (!reason.empty()) return {.between_devices = false, .text = fmt::format("by way of the hosts: {}", reason)};
  return {.between_devices = true, .text = fmt::format("by {}", device.plugin->groups()->name())};
}

NewGroup between_devices(NewGroup groups, const ComputeDevice& device) {
  return [groups = std::move(groups), plugin = device.plugin, place = device.device](const std::vector<int32_t>& ranks) {
    std::unique_ptr<Communicator> host = groups(ranks);
    if (ranks.size() == 1) return host;
    return device_communicator(std::move(host), *plugin->groups(), place);
  };
}

}  // namespace cotune
