#include "comm/own_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace cotune {
namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  const int error = getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) throw SystemError(fmt::format("an address of this machine: {}", gai_strerror(error)));
  return host;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

RouteToMaster route_to_master(const std::string& host, uint16_t port) {
  std::string failure = "no address";
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints{.ai_family = family, .ai_socktype = SOCK_DGRAM};
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
      failure = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
      continue;
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      const int socket = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      sockaddr_storage own{};
      socklen_t length = sizeof own;
      // Of a datagram socket, connect() only chooses the route.
      const bool routed = socket >= 0 && connect(socket, address->ai_addr, address->ai_addrlen) == 0 &&
                          getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0;
      if (!routed) failure = std::strerror(errno);
      if (socket >= 0) close(socket);
      if (routed) {
        return {numeric(reinterpret_cast<sockaddr*>(&own), length), numeric(address->ai_addr, address->ai_addrlen)};
      }
    }
  }
  throw SystemError(fmt::format("no way to the master '{}': {}", host, failure));
}

std::string own_address(const RouteToMaster& mine, const std::vector<RouteToMaster>& routes) {
  if (!is_loopback(mine.own)) return mine.own;
  for (const RouteToMaster& route : routes) {
    if (!is_loopback(route.own)) return route.master;
  }
  return mine.own;
}

}  // namespace cotune
