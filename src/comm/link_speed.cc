#include "comm/link_speed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "comm/host_buffer.h"

namespace cotune {
namespace {

/// Seconds one way.
double fastest_of(int times, const at::Tensor& buffer, Communicator& communicator, int32_t peer, bool begins) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (begins) communicator.send(buffer, peer, Channel::activation)->wait();
    communicator.receive(buffer, peer, Channel::activation)->wait();
    if (!begins) communicator.send(buffer, peer, Channel::activation)->wait();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    fastest = std::min(fastest, seconds / 2);
  }
  return fastest;
}

}  // namespace

LinkSpeed measure_link(Communicator& communicator, int32_t peer, bool begins, c10::Device device) {
  constexpr int64_t large = int64_t{4} << 20;
  const auto buffer = [&](int64_t bytes) {
    return device.is_cpu() ? host_buffer({bytes}, at::kByte).zero_() : at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  };
  const double latency = fastest_of(8, buffer(1), communicator, peer, begins);
  const double seconds = fastest_of(3, buffer(large), communicator, peer, begins);
  return {latency, static_cast<double>(large) / std::max(seconds - latency, 1e-9)};
}

}  // namespace cotune
