#pragma once

#include <cstdint>
#include <vector>

namespace cotune {

/// Those that this process may run on, ascending: launchers and containers often bind it to cores of its own. Empty where the system does not say.
std::vector<int32_t> cores_of_this_process();

}  // namespace cotune
