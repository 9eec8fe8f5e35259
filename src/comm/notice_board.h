#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/launcher.h"

namespace cotune {

/// Short texts that ranks leave for each other at the master, beside messages. One thread uses it.
class NoticeBoard {
 public:
  virtual ~NoticeBoard() = default;
  /// Both throw CommunicationEnded where the master is gone.
  virtual void put(const std::string& key, const std::string& text) = 0;
  /// What stands under each key now; "" where nothing was put. Does not wait for others.
  virtual std::vector<std::string> read(const std::vector<std::string>& keys) = 0;
};

/// At the process's master, over a connection of its own. Throws SystemError where there is none.
std::unique_ptr<NoticeBoard> notice_board(const LaunchedProcess& process);

}  // namespace cotune
