/// Whole messages of bytes between ranks, whose length the receiver does not know beforehand.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace cotune {

/// From rank `root` to all; every rank calls it. Elsewhere than at the root `bytes` is replaced. Throws CommunicationEnded.
void broadcast_bytes(Communicator& communicator, std::vector<uint8_t>& bytes, int32_t root);

/// From one rank to another, which calls the other function. Both wait. Throw CommunicationEnded.
void send_bytes(Communicator& communicator, const std::vector<uint8_t>& bytes, int32_t peer);
std::vector<uint8_t> receive_bytes(Communicator& communicator, int32_t peer);

}  // namespace cotune
