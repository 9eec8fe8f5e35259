/// Under which address the other ranks reach this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cotune {

/// What a rank sees of the way to the master: numeric addresses.
struct RouteToMaster {
  std::string own;  ///< of this machine, at the end of that way
  std::string master;
};

/// Asks the system without sending anything; IPv4 where the master has it. Throws SystemError where no way is known.
RouteToMaster route_to_master(const std::string& host, uint16_t port);

/// The address for the rank with route `mine`, of all ranks' `routes`. A machine often knows its own name by a loopback
/// address: where the run has other machines, those on the master's go by the address under which the others see it.
std::string own_address(const RouteToMaster& mine, const std::vector<RouteToMaster>& routes);

}  // namespace cotune
