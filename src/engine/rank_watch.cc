#include "engine/rank_watch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <nlohmann/json.hpp>

#include "comm/communicator.h"
#include "schedule/step_plan_json.h"

namespace cotune {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double least_allowed_task_s = 3600;  // large adapters go over slow links, and file servers come back
constexpr double looks_in_timeout = 10, longest_interval_s = 1, longest_delay_s = 5;
constexpr const char* failure_key = "failure";

std::string report_key(size_t rank) { return fmt::format("rank/{}", rank); }

RankProgress::State state_from_json(const Json& json) {
  return {json.at("count").get<int64_t>(), json.at("running").get<bool>(), action_from_json(json.at("action")),
          json.at("waits_for").get<std::vector<int32_t>>(), json.at("action_s").get<double>(), json.at("task").get<std::string>()};
}

double seconds_between(SeenRank::Time from, SeenRank::Time until) { return std::chrono::duration<double>(until - from).count(); }

/// `forward of microbatch 3 on stage 1`.
std::string text_of(const Action& action) {
  std::string text = to_string(action.kind);
  std::replace(text.begin(), text.end(), '_', ' ');
  if (action.microbatch >= 0) text += fmt::format(" of microbatch {}", action.microbatch);
  if (action.job >= 0) text += fmt::format(" of job {}, step {}", action.job, action.job_step);
  return text + fmt::format(" on stage {}", action.stage);
}

std::string name_of(size_t rank, const std::vector<std::string>& hosts) { return fmt::format("rank {} on {}", rank, hosts[rank]); }

/// `rank 1 (forward of microbatch 3 on stage 1)`: for whom a rank waits, and with which action.
std::string wait_text(const RankProgress::State& state, size_t rank) {
  std::vector<int32_t> others = state.waits_for;
  std::erase(others, static_cast<int32_t>(rank));
  return fmt::format("{} {} ({})", others.size() == 1 ? "rank" : "ranks", fmt::join(others, ", "), text_of(state.action));
}

/// What a rank that tells nothing more told last; "" where it had nothing to do.
std::string last_told(const RankProgress::State& state, size_t rank) {
  if (!state.task.empty()) return "; last " + state.task;
  if (!state.running) return "";
  return state.waits_for.empty() ? "; last in " + text_of(state.action) : "; it waited for " + wait_text(state, rank);
}

/// Tasks of other ranks, too: one that moves adapters waits for another one.
std::string other_tasks_text(const std::vector<SeenRank>& ranks, size_t hung, const std::vector<std::string>& hosts, SeenRank::Time now) {
  std::string text;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == hung || ranks[rank].state.task.empty()) continue;
    text += fmt::format("; {} has been {} for {:.0f} s", name_of(rank, hosts), ranks[rank].state.task, seconds_between(ranks[rank].advanced, now));
  }
  return text;
}

}  // namespace

double allowed_task_seconds(double hang_timeout_s) { return std::max(least_allowed_task_s, 10 * hang_timeout_s); }

bool was_away(SeenRank::Time last_look, SeenRank::Time now, double hang_timeout_s) {
  return seconds_between(last_look, now) > std::min(longest_delay_s, hang_timeout_s / 2);
}

std::chrono::milliseconds look_interval(double hang_timeout_s) {
  const double seconds = std::min(longest_interval_s, hang_timeout_s / looks_in_timeout);
  return std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(1000 * seconds)));
}

double allowed_seconds(const RankProgress::State& state, double hang_timeout_s) {
  return std::max(hang_timeout_s, 10 * state.action_s);
}

std::optional<std::string> find_hung_rank(const std::vector<SeenRank>& ranks, const std::vector<std::string>& hosts,
                                          SeenRank::Time now, double hang_timeout_s) {
  bool any_runs = false, all_wait = true;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const SeenRank& seen = ranks[rank];
    const double silent = seconds_between(seen.changed, now), still = seconds_between(seen.advanced, now);
    if (silent > hang_timeout_s) {
      return fmt::format("{} has not been heard of for {:.0f} s{}", name_of(rank, hosts), silent, last_told(seen.state, rank));
    }
    const bool late = still > allowed_seconds(seen.state, hang_timeout_s);
    const bool waits = seen.state.running && !seen.state.waits_for.empty();
    if (seen.state.running && !waits && late) {
      return fmt::format("{} hangs: {} has taken {:.0f} s", name_of(rank, hosts), text_of(seen.state.action), still);
    }
    const bool has_task = !seen.state.running && !seen.state.task.empty();
    if (has_task && still > allowed_task_seconds(hang_timeout_s)) {
      return fmt::format("{} hangs: {} has taken {:.0f} s{}", name_of(rank, hosts), seen.state.task, still,
                         other_tasks_text(ranks, rank, hosts, now));
    }
    any_runs = any_runs || seen.state.running;
    all_wait = all_wait && !has_task && (!seen.state.running || (waits && late));
  }
  if (!any_runs || !all_wait) return std::nullopt;
  std::string text;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankProgress::State& state = ranks[rank].state;
    if (!state.running) continue;
    text += fmt::format("{} {} for {}", text.empty() ? "" : ",", name_of(rank, hosts), wait_text(state, rank));
  }
  return "nobody goes on; there wait:" + text;
}

/// What is exchanged with the board.
struct RankWatch::Notices {
  std::unique_ptr<NoticeBoard> board;
  std::shared_ptr<const RankProgress> progress;
  std::vector<std::string> keys;   ///< that are read: the failure, then every rank's report
  std::string own_key;
  std::chrono::milliseconds interval;
  int64_t reports = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;             ///< to be put
  std::vector<std::string> texts;  ///< as they were read
  SeenRank::Time answered = Clock::now();
  std::string error;
  bool asking = false, over = false;

  std::string report() {
    const RankProgress::State state = progress->state();
    return Json({{"report", ++reports},
                 {"count", state.count},
                 {"running", state.running},
                 {"action", to_json(state.action)},
                 {"waits_for", state.waits_for},
                 {"action_s", state.action_s},
                 {"task", state.task}})
        .dump();
  }

  void exchange() {
    std::unique_lock lock(mutex);
    while (!over && error.empty()) {
      const std::string own_failure = failure;
      asking = true;
      lock.unlock();
      std::vector<std::string> read;
      std::string trouble;
      try {
        board->put(own_key, report());
        if (!own_failure.empty()) board->put(failure_key, own_failure);
        read = board->read(keys);
      } catch (const CommunicationEnded& ended) {
        trouble = ended.what();
      }
      lock.lock();
      asking = false;
      if (trouble.empty()) {
        texts = std::move(read);
        answered = Clock::now();
      }
      error = trouble;
      changed.notify_all();
      changed.wait_for(lock, interval, [&] { return over || (!failure.empty() && own_failure.empty()); });
    }
  }
};

RankWatch::RankWatch(Settings settings, std::unique_ptr<NoticeBoard> board, std::shared_ptr<const RankProgress> progress,
                     std::function<void(const std::string&)> end)
    : settings_(std::move(settings)),
      notices_(std::make_shared<Notices>()),
      end_(std::move(end)),
      seen_(settings_.hosts.size(), {.text = {}, .changed = Clock::now(), .state = {}, .advanced = Clock::now()}) {
  notices_->board = std::move(board);
  notices_->progress = std::move(progress);
  notices_->keys.push_back(failure_key);
  for (size_t rank = 0; rank < seen_.size(); ++rank) notices_->keys.push_back(report_key(rank));
  notices_->own_key = report_key(static_cast<size_t>(settings_.rank));
  notices_->interval = settings_.interval;
  exchanging_ = std::thread([notices = notices_] { notices->exchange(); });
  thread_ = std::thread([this] { work(); });
}

RankWatch::~RankWatch() {
  stand_down();
  thread_.join();
  bool is_held_up = false;
  {
    const std::lock_guard lock(notices_->mutex);
    notices_->over = true;
    is_held_up = notices_->asking && Clock::now() - notices_->answered > std::chrono::seconds(2) + settings_.interval;
  }
  notices_->changed.notify_all();
  is_held_up ? exchanging_.detach() : exchanging_.join();
}

void RankWatch::stand_down() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

void RankWatch::wait_for_end(std::chrono::milliseconds moment) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, moment, [this] { return over_ || has_ended_; });
}

void RankWatch::link_closed(int32_t peer) {
  {
    const std::lock_guard lock(mutex_);
    if (!over_ && !closed_) closed_ = peer;
  }
  changed_.notify_all();
}

void RankWatch::work() {
  while (true) {
    std::optional<std::string> trouble;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, settings_.interval, [this] { return over_ || closed_.has_value(); });
      if (closed_) {
        const auto peer = static_cast<size_t>(*closed_);
        trouble = fmt::format("{} has left the run{}", name_of(peer, settings_.hosts), last_told(seen_[peer].state, peer));
      }
      if (over_ && !trouble) return;
    }
    if (!trouble) {
      if (settings_.at_look) settings_.at_look();
      trouble = look();
      const std::lock_guard lock(mutex_);
      if (over_) return;
    }
    if (!trouble) continue;
    end_(*trouble);
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
    return;
  }
}

void RankWatch::forgive_own_absence() {
  const SeenRank::Time now = Clock::now();
  const bool is_back = was_away(std::exchange(last_look_, now), now, settings_.hang_timeout_s);
  if (!is_back) return;
  for (SeenRank& seen : seen_) seen.changed = seen.advanced = now;
  const std::lock_guard lock(notices_->mutex);
  notices_->answered = now;
}

std::optional<std::string> RankWatch::look() {
  forgive_own_absence();
  std::vector<std::string> texts;
  double unanswered = 0;
  {
    const std::lock_guard lock(notices_->mutex);
    if (!notices_->error.empty()) return fmt::format("{}: {}", name_of(0, settings_.hosts), notices_->error);
    texts = notices_->texts;
    unanswered = seconds_between(notices_->answered, Clock::now());
  }
  if (unanswered > settings_.hang_timeout_s) {
    return fmt::format("the master, with {}, has not answered {} for {:.0f} s{}", name_of(0, settings_.hosts),
                       name_of(static_cast<size_t>(settings_.rank), settings_.hosts), unanswered, last_told(seen_[0].state, 0));
  }
  if (texts.empty()) return std::nullopt;
  if (!texts.front().empty()) return texts.front();
  texts.erase(texts.begin());
  see(texts);
  const std::optional<std::string> trouble = find_hung_rank(seen_, settings_.hosts, Clock::now(), settings_.hang_timeout_s);
  if (trouble) tell_all(*trouble);
  return trouble;
}

/// Waits until it stands on the board, or a moment.
void RankWatch::tell_all(const std::string& trouble) {
  std::unique_lock lock(notices_->mutex);
  notices_->failure = trouble;
  notices_->changed.notify_all();
  notices_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return !notices_->texts.front().empty() || !notices_->error.empty(); });
}

void RankWatch::see(const std::vector<std::string>& texts) {
  const SeenRank::Time now = Clock::now();
  for (size_t rank = 0; rank < seen_.size(); ++rank) {
    SeenRank& seen = seen_[rank];
    if (texts[rank].empty() || texts[rank] == seen.text) continue;
    seen.text = texts[rank];
    seen.changed = now;
    seen.see(state_from_json(Json::parse(texts[rank])), now);
  }
}

}  // namespace cotune
