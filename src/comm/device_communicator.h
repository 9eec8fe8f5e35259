/// Messages and collectives of tensors on devices, from device to device; what is on hosts goes as without it.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "comm/communicator.h"
#include "device/device_group.h"

namespace cotune {

/// host: of the same ranks, each of which does the same; carries what is on hosts, and knows when a rank is lost. device: this rank's,
/// hardware of its own, current for the calling thread. groups: outlives this.
///
/// A message is begun when both ends are ready: the sender's data computed, the receiver's buffer posted; they tell each other through
/// `host`. So no device ever waits for a message, on which its other work could come to depend. It is over when the sender says that it has gone well
/// there, too: where one end is stopped the other's may end as though nothing had been. Each peer, channel and direction has
/// a group of its own, made at the first message; collectives have one, made at the first of them.
///
/// Collectives return at once, all_reduce and broadcast too: settle() waits for them, and for every rank to say that they have gone well. Who has
/// come back from it knows that all before it are sound, which is so before a step is made. The first one throws SystemError where
/// the group cannot be made.
std::unique_ptr<Communicator> device_communicator(std::unique_ptr<Communicator> host, DeviceGroups& groups, c10::Device device);

}  // namespace cotune
