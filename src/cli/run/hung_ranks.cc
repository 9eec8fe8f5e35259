#include "cli/run/hung_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <thread>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "comm/failure_text.h"
#include "ops/memory.h"

namespace cotune {
namespace {

std::string* own_rank = nullptr;  // never freed: threads may end the process at any time
std::terminate_handler before_ours = nullptr;

[[noreturn]] void end_by_uncaught() {
  if (const std::exception_ptr uncaught = std::current_exception()) {
    try {
      std::rethrow_exception(uncaught);
    } catch (const SystemError&) {  // ours, as the next two: no link's
    } catch (const UserError&) {
    } catch (const MemoryLimitExceeded&) {
    } catch (const std::runtime_error& error) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      before_sudden_end();
      write_to_standard_error(fmt::format("{}: a link to another rank has broken: {}\n", *own_rank, failure_text(error)));
      ::_exit(1);
    } catch (...) {
    }
  }
  before_ours();
  std::abort();
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void end_soon(const std::string& trouble) {
  before_sudden_end();
  write_to_standard_error(trouble + "\n");
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::_exit(1);
  }).detach();
}

void tell_of_broken_links(const std::string& rank) {
  if (own_rank != nullptr) return;
  own_rank = new std::string(rank);
  before_ours = std::set_terminate(end_by_uncaught);
}

}  // namespace cotune
