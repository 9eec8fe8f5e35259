#include "comm/host_lookup.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace cotune {
namespace {

constexpr std::chrono::milliseconds ask_again_after{1000};

/// What the resolver says; "" where it knows the host.
std::string lookup_failure(const std::string& host) {
  addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
  freeaddrinfo(found);
  return "";
}

}  // namespace

void wait_for_host(const std::string& host, std::chrono::milliseconds patience, const std::function<void(const std::string&)>& at_first_failure) {
  const auto last = std::chrono::steady_clock::now() + patience;
  bool is_told = false;
  for (std::string failure = lookup_failure(host); !failure.empty(); failure = lookup_failure(host)) {
    if (std::chrono::steady_clock::now() + ask_again_after >= last) throw SystemError(failure);
    if (!std::exchange(is_told, true)) at_first_failure(failure);
    std::this_thread::sleep_for(ask_again_after);
  }
}

}  // namespace cotune
