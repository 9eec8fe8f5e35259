#define USE_DISTRIBUTED
#include "comm/notice_board.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/failure_text.h"
#include "comm/quiet_c10d.h"

namespace cotune {
namespace {

constexpr std::chrono::milliseconds longest_answer = std::chrono::seconds(10);

class StoreBoard : public NoticeBoard {
 public:
  explicit StoreBoard(const LaunchedProcess& process) : prefix_(start_key(process) + "board/") {
    c10d::TCPStoreOptions options;
    options.port = process.master_port;
    options.waitWorkers = false;
    options.timeout = longest_answer;
    store_ = c10::make_intrusive<c10d::TCPStore>(process.master_host, options);
  }

  void put(const std::string& key, const std::string& text) override {
    guarded([&] { store_->set(prefix_ + key, std::vector<uint8_t>(text.begin(), text.end())); });
  }

  std::vector<std::string> read(const std::vector<std::string>& keys) override {
    std::vector<std::string> texts;
    guarded([&] {
      for (const std::string& key : keys) {
        if (!store_->check({prefix_ + key})) {
          texts.emplace_back();
          continue;
        }
        const std::vector<uint8_t> bytes = store_->get(prefix_ + key);
        texts.emplace_back(bytes.begin(), bytes.end());
      }
    });
    return texts;
  }

 private:
  template <typename Call>
  void guarded(Call call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw CommunicationEnded(fmt::format("the master's store is gone: {}", failure_text(error)));
    }
  }

  QuietC10d quiet_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<NoticeBoard> notice_board(const LaunchedProcess& process) {
  try {
    return std::make_unique<StoreBoard>(process);
  } catch (const std::exception& error) {
    throw SystemError(fmt::format("rank {}: no connection to the master {}:{}: {}", process.rank, process.master_host,
                                  process.master_port, failure_text(error)));
  }
}

}  // namespace cotune
