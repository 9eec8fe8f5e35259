#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace cotune {

/// Waits until the system can look the host up, by name or numeric address. at_first_failure: told why it cannot, at once. Throws
/// SystemError with the resolver's words where it still cannot after `patience`: names of machines that start together may be known a
/// little later than the first of them asks.
void wait_for_host(const std::string& host, std::chrono::milliseconds patience, const std::function<void(const std::string&)>& at_first_failure);

}  // namespace cotune
