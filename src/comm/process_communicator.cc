#define USE_DISTRIBUTED
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "comm/failure_text.h"
#include "comm/gloo_communicator.h"
#include "comm/launcher.h"
#include "comm/own_address.h"
#include "comm/quiet_c10d.h"

namespace cotune {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

struct Meeting {
  StorePointer store;   ///< at the master
  int group_count = 0;  ///< that this process has joined there
};

std::string place(const LaunchedProcess& process) {
  return fmt::format("rank {} of {}, master {}:{}", process.rank, process.size, process.master_host,
                     process.master_port);
}

/// The store of the next group at the process's master, which this rank is the first of. The connection, and at rank 0 the
/// listening socket, stay as long as the process, so that ranks may begin a new group while others leave the old one.
StorePointer next_store(const LaunchedProcess& process, int32_t first, std::chrono::milliseconds joining_time) {
  static std::mutex mutex;
  static auto* meetings = new std::map<std::string, Meeting>;  // never destroyed: threads of c10d's use it until exit
  std::lock_guard lock(mutex);
  Meeting& meeting = (*meetings)[fmt::format("{}:{}", process.master_host, process.master_port)];
  if (!meeting.store) {
    c10d::TCPStoreOptions options;
    options.port = process.master_port;
    options.isServer = process.rank == 0 && !process.launcher_listens;
    options.waitWorkers = false;
    options.timeout = joining_time;
    meeting.store = c10::make_intrusive<c10d::TCPStore>(process.master_host, options);
  }
  const std::string prefix = fmt::format("cotune/{}/{}/{}/", process.restart, meeting.group_count++, first);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, meeting.store);
}

std::string route_key(int32_t rank) {
  return fmt::format("route/{}", rank);
}

/// The route of each of these ranks, when all have come.
std::vector<RouteToMaster> exchange_routes(c10d::Store& store, const LaunchedProcess& process,
                                           const std::vector<int32_t>& ranks, const RouteToMaster& mine,
                                           std::chrono::milliseconds joining_time) {
  if (store.add(fmt::format("joined/{}", process.rank), 1) > 1) {
    throw SystemError(fmt::format("{}: another process has joined as this rank", place(process)));
  }
  const std::string text = fmt::format("{} {} {}", mine.own, mine.master, process.size);
  store.set(route_key(process.rank), std::vector<uint8_t>(text.begin(), text.end()));
  std::vector<std::string> keys;
  for (const int32_t rank : ranks) keys.push_back(route_key(rank));
  try {
    store.wait(keys, joining_time);
  } catch (const std::exception& error) {
    std::vector<int32_t> missing;
    for (const int32_t rank : ranks) {
      if (!store.check({route_key(rank)})) missing.push_back(rank);
    }
    if (missing.empty()) throw;
    throw SystemError(fmt::format("{}: {} {} {} not joined within {} s", place(process),
                                  missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                                  missing.size() == 1 ? "has" : "have",
                                  std::chrono::duration<double>(joining_time).count()));
  }
  std::vector<RouteToMaster> routes;
  for (const int32_t rank : ranks) {
    const std::vector<uint8_t> value = store.get(route_key(rank));
    std::istringstream words(std::string(value.begin(), value.end()));
    int32_t size = 0;
    RouteToMaster& route = routes.emplace_back();
    words >> route.own >> route.master >> size;
    if (size != process.size) throw SystemError(fmt::format("{}: rank {} is of {} ranks", place(process), rank, size));
  }
  return routes;
}

std::unique_ptr<Communicator> alone(std::chrono::milliseconds joining_time) {
  return gloo_communicator(c10::make_intrusive<c10d::HashStore>(), 0, 1, "127.0.0.1", joining_time);
}

std::unique_ptr<Communicator> join(const LaunchedProcess& process, const std::vector<int32_t>& ranks,
                                   std::chrono::milliseconds joining_time) {
  const QuietC10d quiet;
  const StorePointer store = next_store(process, ranks.front(), joining_time);
  if (ranks.size() == 1) return alone(joining_time);
  const RouteToMaster mine = route_to_master(process.master_host, process.master_port);
  const auto routes = exchange_routes(*store, process, ranks, mine, joining_time);
  const auto own = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), process.rank) - ranks.begin());
  return gloo_communicator(store, own, static_cast<int32_t>(ranks.size()), own_address(mine, routes), joining_time);
}

}  // namespace

std::unique_ptr<Communicator> process_communicator(const LaunchedProcess& process,
                                                   std::chrono::milliseconds joining_time) {
  std::vector<int32_t> all(static_cast<size_t>(process.size));
  std::iota(all.begin(), all.end(), 0);
  return process_communicator(process, all, joining_time);
}

std::unique_ptr<Communicator> process_communicator(const LaunchedProcess& process, const std::vector<int32_t>& ranks,
                                                   std::chrono::milliseconds joining_time) {
  COTUNE_CHECK(std::is_sorted(ranks.begin(), ranks.end()) && std::binary_search(ranks.begin(), ranks.end(), process.rank),
               "rank {} joins a group of ranks {}", process.rank, fmt::join(ranks, ", "));
  if (process.size == 1) return alone(joining_time);
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = join(process, ranks, joining_time);
  } catch (const SystemError&) {
    throw;
  } catch (const std::exception& error) {
    throw SystemError(fmt::format("{}: {}", place(process), failure_text(error)));
  }
  communicator->barrier();
  return communicator;
}

}  // namespace cotune
