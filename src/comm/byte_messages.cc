#include "comm/byte_messages.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/host_buffer.h"

namespace cotune {
namespace {

at::Tensor length_of(const std::vector<uint8_t>& bytes) {
  at::Tensor length = host_buffer({1}, at::kLong);
  *length.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  return length;
}

}  // namespace

void broadcast_bytes(Communicator& communicator, std::vector<uint8_t>& bytes, int32_t root) {
  at::Tensor length = length_of(bytes);
  communicator.broadcast(length, root);
  at::Tensor content = host_buffer({*length.const_data_ptr<int64_t>()}, at::kByte);
  uint8_t* begin = content.mutable_data_ptr<uint8_t>();
  if (communicator.rank() == root) std::copy(bytes.begin(), bytes.end(), begin);
  communicator.broadcast(content, root);
  bytes.assign(begin, begin + content.numel());
}

void send_bytes(Communicator& communicator, const std::vector<uint8_t>& bytes, int32_t peer) {
  communicator.send(length_of(bytes), peer, Channel::activation)->wait();
  if (bytes.empty()) return;
  // A message that is broken off may still be read after this call: it owns its bytes.
  at::Tensor content = host_buffer({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), content.mutable_data_ptr<uint8_t>());
  communicator.send(content, peer, Channel::activation)->wait();
}

std::vector<uint8_t> receive_bytes(Communicator& communicator, int32_t peer) {
  const at::Tensor length = host_buffer({1}, at::kLong);
  communicator.receive(length, peer, Channel::activation)->wait();
  at::Tensor content = host_buffer({*length.const_data_ptr<int64_t>()}, at::kByte);
  if (content.numel() > 0) communicator.receive(content, peer, Channel::activation)->wait();
  const uint8_t* begin = content.const_data_ptr<uint8_t>();
  return {begin, begin + content.numel()};
}

}  // namespace cotune
