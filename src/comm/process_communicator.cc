#define USE_DISTRIBUTED
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "comm/failure_text.h"
#include "comm/gloo_communicator.h"
#include "comm/host_lookup.h"
#include "comm/late_notice.h"
#include "comm/launcher.h"
#include "comm/own_address.h"
#include "comm/quiet_c10d.h"

namespace cotune {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;
using Clock = std::chrono::steady_clock;

struct Meeting {
  StorePointer store;   ///< at the master
  int group_count = 0;  ///< that this process has joined there
};

/// Where a group's ranks meet: at the master, and the part of it that is the group's alone.
struct MeetingPlace {
  StorePointer master, group;
};

constexpr std::chrono::milliseconds look_again_after{200};
/// Of one attempt to reach a store: c10d pauses ever longer between its own, and waits past its time in such a pause.
constexpr std::chrono::milliseconds longest_attempt{2000};
/// What the first rank's own store is for: restart and own_restart. And what is added to a start_key where one of that start's ranks has
/// been started again.
constexpr const char* start_of_store = "cotune/start";
constexpr const char* is_over = "over";

std::string place(const LaunchedProcess& process) {
  return fmt::format("rank {} of {}, master {}:{}", process.rank, process.size, process.master_host,
                     process.master_port);
}

std::string text_at(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void put_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

bool may_be_early(const LaunchedProcess& process) { return process.restart > 0 || process.own_restart > 0; }

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// TCPStore would look the name up again and again, in silence, for as long as it may wait for the master.
void wait_for_master_name(const LaunchedProcess& process, const Joining& joining) {
  const std::chrono::milliseconds patience = std::min(joining.most_for_name, joining.most);
  const LateNotice notice(joining.quiet, [&] {
    joining.tell(fmt::format("{}: waiting for an answer to who `{}` is", place(process), process.master_host));
  });
  try {
    wait_for_host(process.master_host, patience, [&](const std::string& failure) {
      joining.tell(fmt::format("{}: the name of the master, `{}`, cannot be looked up: {}; trying again for up to {} s", place(process),
                               process.master_host, failure, seconds(patience)));
    });
  } catch (const SystemError& error) {
    throw RanksMissing(fmt::format("{}: the name of the master, `{}`, cannot be looked up: {} (tried for {} s)", place(process),
                                   process.master_host, error.what(), seconds(patience)));
  }
}

bool listens(const LaunchedProcess& process) { return process.rank == 0 && !process.launcher_listens; }

/// Its store has joining_time for every answer.
StorePointer connect(const LaunchedProcess& process, std::chrono::milliseconds joining_time) {
  c10d::TCPStoreOptions options;
  options.port = process.master_port;
  options.isServer = listens(process);
  options.waitWorkers = false;
  options.timeout = listens(process) ? joining_time : std::min(joining_time, longest_attempt);
  const StorePointer store = c10::make_intrusive<c10d::TCPStore>(process.master_host, options);
  store->setTimeout(joining_time);
  return store;
}

void tell_that_it_is_over(c10d::Store& store, const LaunchedProcess& start) { put_text(store, start_key(start) + is_over, "yes"); }

/// Whether a first rank's store is for our start. Where it is for one before, those who wait there are told that it is over.
bool is_for_us(const LaunchedProcess& process, c10d::Store& store) {
  LaunchedProcess found = process;
  std::istringstream(text_at(store, start_of_store)) >> found.restart >> found.own_restart;
  const auto count = [](const LaunchedProcess& each) { return std::pair(each.restart, each.own_restart); };
  if (count(found) > count(process)) throw SystemError(fmt::format("{}: the run has been started again meanwhile", place(process)));
  if (count(found) == count(process)) return true;
  tell_that_it_is_over(store, found);
  return false;
}

/// At the store of the launcher, or of the first rank, which may still be ending what came before.
StorePointer connect_to_own_start(const LaunchedProcess& process, const Joining& joining) {
  const Clock::time_point last = Clock::now() + joining.most;
  wait_for_master_name(process, joining);
  const LateNotice notice(joining.quiet, [&] {
    const std::string what = process.launcher_listens ? process.launcher + " to listen there"
                             : process.rank == 0      ? "its own answer from there (is that a name of this machine?)"
                                                      : "the first rank to listen there";
    joining.tell(fmt::format("{}: waiting for {}, for up to {} s", place(process), what, seconds(joining.most)));
  });
  std::string failure = "the first rank has not been started again";
  while (true) {
    try {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(last - Clock::now());
      const StorePointer store = connect(process, std::max(left, std::chrono::milliseconds(1)));
      if (process.launcher_listens) {
        LaunchedProcess before = process;
        while (before.own_restart-- > 0) tell_that_it_is_over(*store, before);
        return store;
      }
      if (process.rank == 0) put_text(*store, start_of_store, fmt::format("{} {}", process.restart, process.own_restart));
      if (process.rank == 0 || is_for_us(process, *store)) return store;
    } catch (const SystemError&) {
      throw;
    } catch (const std::exception& error) {
      if (listens(process)) throw RanksMissing(fmt::format("{}: {}", place(process), failure_text(error)));
      if (!may_be_early(process)) failure = fmt::format("{} (tried for {} s)", failure_text(error), seconds(joining.most));
    }
    if (Clock::now() + look_again_after >= last) throw RanksMissing(fmt::format("{}: {}", place(process), failure));
    std::this_thread::sleep_for(look_again_after);
  }
}

/// Of the next group at the process's master, which this rank is the first of. The connection, and at rank 0 the
/// listening socket, stay as long as the process, so that ranks may begin a new group while others leave the old one.
MeetingPlace next_place(const LaunchedProcess& process, int32_t first, const Joining& joining) {
  static std::mutex mutex;
  static auto* meetings = new std::map<std::string, Meeting>;  // never destroyed: threads of c10d's use it until exit
  std::lock_guard lock(mutex);
  Meeting& meeting = (*meetings)[fmt::format("{}:{}", process.master_host, process.master_port)];
  if (!meeting.store) meeting.store = connect_to_own_start(process, joining);
  const std::string prefix = start_key(process) + fmt::format("{}/{}/", meeting.group_count++, first);
  return {meeting.store, c10::make_intrusive<c10d::PrefixStore>(prefix, meeting.store)};
}

std::string route_key(int32_t rank) {
  return fmt::format("route/{}", rank);
}

std::vector<int32_t> missing_ranks(c10d::Store& store, const std::vector<int32_t>& ranks) {
  std::vector<int32_t> missing;
  for (const int32_t rank : ranks) {
    if (!store.check({route_key(rank)})) missing.push_back(rank);
  }
  return missing;
}

/// `rank 3`, `ranks 1, 2`.
std::string ranks_text(const std::vector<int32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

/// Until the routes of all these ranks are there.
void wait_for_routes(const MeetingPlace& meeting, const LaunchedProcess& process, const std::vector<int32_t>& ranks, const Joining& joining) {
  std::vector<std::string> keys;
  for (const int32_t rank : ranks) keys.push_back(route_key(rank));
  const Clock::time_point start = Clock::now(), last = start + joining.most;
  bool is_told = process.rank != ranks.front();
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(last - Clock::now());
    try {
      return meeting.group->wait(keys, std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(1), std::chrono::seconds(1)));
    } catch (const std::exception&) {
      if (meeting.master->check({start_key(process) + is_over})) {
        throw SystemError(fmt::format("{}: a rank has been started again meanwhile", place(process)));
      }
      if (Clock::now() >= last) throw;
      if (Clock::now() < start + joining.quiet || std::exchange(is_told, true)) continue;
      const std::vector<int32_t> missing = missing_ranks(*meeting.group, ranks);
      if (missing.empty()) continue;
      joining.tell(fmt::format("{}: waiting for {} to join, for up to {} s", place(process), ranks_text(missing), seconds(joining.most)));
    }
  }
}

/// The route of each of these ranks, when all have come.
std::vector<RouteToMaster> exchange_routes(const MeetingPlace& meeting, const LaunchedProcess& process,
                                           const std::vector<int32_t>& ranks, const RouteToMaster& mine, const Joining& joining) {
  c10d::Store& store = *meeting.group;
  if (store.add(fmt::format("joined/{}", process.rank), 1) > 1) {
    throw SystemError(fmt::format("{}: another process has joined as this rank", place(process)));
  }
  put_text(store, route_key(process.rank), fmt::format("{} {} {}", mine.own, mine.master, process.size));
  try {
    wait_for_routes(meeting, process, ranks, joining);
  } catch (const SystemError&) {
    throw;
  } catch (const std::exception& error) {
    const std::vector<int32_t> missing = missing_ranks(store, ranks);
    if (missing.empty()) throw;
    throw RanksMissing(fmt::format("{}: {} {} not joined within {} s", place(process), ranks_text(missing),
                                  missing.size() == 1 ? "has" : "have", seconds(joining.most)));
  }
  std::vector<RouteToMaster> routes;
  for (const int32_t rank : ranks) {
    std::istringstream words(text_at(store, route_key(rank)));
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
                                   const Joining& joining) {
  const QuietC10d quiet;
  const MeetingPlace meeting = next_place(process, ranks.front(), joining);
  if (ranks.size() == 1) return alone(joining.most);
  const RouteToMaster mine = route_to_master(process.master_host, process.master_port);
  const auto routes = exchange_routes(meeting, process, ranks, mine, joining);
  const auto own = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), process.rank) - ranks.begin());
  // All are there: whoever does not answer within this time has ended meanwhile.
  const std::chrono::milliseconds answering_time = std::min<std::chrono::milliseconds>(joining.most, std::chrono::minutes(1));
  return gloo_communicator(meeting.group, own, static_cast<int32_t>(ranks.size()), own_address(mine, routes), answering_time);
}

}  // namespace

std::unique_ptr<Communicator> process_communicator(const LaunchedProcess& process, const Joining& joining) {
  std::vector<int32_t> all(static_cast<size_t>(process.size));
  std::iota(all.begin(), all.end(), 0);
  return process_communicator(process, all, joining);
}

std::unique_ptr<Communicator> process_communicator(const LaunchedProcess& process, const std::vector<int32_t>& ranks,
                                                   const Joining& joining) {
  COTUNE_CHECK(std::is_sorted(ranks.begin(), ranks.end()) && std::binary_search(ranks.begin(), ranks.end(), process.rank),
               "rank {} joins a group of ranks {}", process.rank, fmt::join(ranks, ", "));
  if (process.size == 1) return alone(joining.most);
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = join(process, ranks, joining);
  } catch (const SystemError&) {
    throw;
  } catch (const std::exception& error) {
    throw SystemError(fmt::format("{}: {}", place(process), failure_text(error)));
  }
  communicator->barrier();
  return communicator;
}

}  // namespace cotune
