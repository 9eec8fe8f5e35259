#include "cli/inputs/data_reading.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <csignal>

#include "base/abrupt_exit.h"
#include "base/atomic_file.h"
#include "base/counted.h"
#include "watch/reading_lines.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

constexpr int64_t gib = int64_t{1} << 30;

extern "C" void on_signal_while_reading(int number) {
  remove_unfinished_files();
  before_sudden_end();
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when this handler returns
}

/// While it lives, signals that end the program remove what is written of a set first. Those that are caught otherwise, or ignored,
/// stay as they are.
class StopsWhileReading {
 public:
  StopsWhileReading() {
    struct sigaction action{};
    action.sa_handler = on_signal_while_reading;
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction before{};
      if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
      if (::sigaction(number, &action, nullptr) == 0) caught_.push_back(number);
    }
  }
  ~StopsWhileReading() {
    for (const int number : caught_) std::signal(number, SIG_DFL);
  }
  StopsWhileReading(const StopsWhileReading&) = delete;
  StopsWhileReading& operator=(const StopsWhileReading&) = delete;

 private:
  std::vector<int> caught_;
};

}  // namespace

std::filesystem::path data_cache_folder(const std::string& data_cache) {
  if (data_cache == "none") return {};
  return data_cache == "auto" ? default_dataset_cache() : std::filesystem::path(data_cache);
}

std::string reuse_text(const std::vector<JobData>& data) {
  const auto reused = [](const JobData& job) { return job.was_cached; };
  const auto first = std::find_if(data.begin(), data.end(), reused);
  if (first == data.end()) return {};
  return fmt::format("data of {} of {} were tokenized before: {}", std::count_if(data.begin(), data.end(), reused), counted(std::ssize(data), "job"),
                     std::filesystem::path(first->cache_file).parent_path().string());
}

DataReading::DataReading(const RunSpec& run) : threads_(run.threads > 0 ? static_cast<int>(run.threads) : omp_get_num_procs()) {
  const std::filesystem::path folder = data_cache_folder(run.data_cache);
  if (folder.empty()) return;
  cache_ = std::make_shared<DatasetCache>(folder, run.data_cache_gib * gib,
                                          [](const std::string& line) { write_to_standard_error(line + "\n"); });
}

DataReading DataReading::in_background() const {
  DataReading reading = *this;
  reading.threads_ = 1;
  reading.is_silent_ = true;
  return reading;
}

JobData DataReading::read(const DataRequest& request, Diagnostics& mistakes) const {
  ReadingOptions options{.threads = threads_};
  const int columns = has_drawing_error_terminal() ? static_cast<int>(error_terminal_columns()) : 0;
  ReadingLines lines(columns, shows_unicode(), [](const std::string& text) { write_to_standard_error(text); });
  if (!is_silent_) {
    options.progress = [&lines](const ReadingProgress& progress) { lines.show(progress, std::chrono::steady_clock::now()); };
  }
  const StopsWhileReading stops;
  return cache_ != nullptr ? cache_->read(request, mistakes, options) : read_job_data(request, mistakes, options);
}

}  // namespace cotune
