#include "schedule/pipeline/verify_pipeline.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"

namespace cotune {
namespace {

struct Channel {
  std::vector<Action> sent;
  std::vector<Action> posted;
};

/// What a message is about: error or activation, stage, and microbatch or job step.
using MessageKey = std::tuple<bool, int32_t, int32_t, int32_t, int64_t>;

/// Messages of a work: a flag for each that its microbatches could need, and the norms by themselves.
class MessageSet {
 public:
  explicit MessageSet(const PipelineWork& work)
      : stages_(static_cast<size_t>(work.stage_count())), of_microbatches_(2 * work.microbatches.size() * stages_, false) {}

  bool contains(const MessageKey& key) const { return is_norm(key) ? norms_.contains(key) : of_microbatches_[place(key)]; }
  /// Whether it was not there.
  bool insert(const MessageKey& key) {
    if (is_norm(key)) return norms_.insert(key).second;
    const bool is_new = !of_microbatches_[place(key)];
    of_microbatches_[place(key)] = true;
    return is_new;
  }

 private:
  static bool is_norm(const MessageKey& key) { return std::get<2>(key) < 0; }
  size_t place(const MessageKey& key) const {
    const auto [is_error, stage, microbatch, job, step] = key;
    return 2 * (static_cast<size_t>(microbatch) * stages_ + static_cast<size_t>(stage)) + (is_error ? 1 : 0);
  }

  size_t stages_;
  std::vector<bool> of_microbatches_;
  std::set<MessageKey> norms_;
};

class Execution {
 public:
  Execution(const PipelineWork& work, const PipelineSchedule& schedule,
            const std::vector<int64_t>& limit_bytes)
      : work_(work),
        schedule_(schedule),
        limit_bytes_(limit_bytes),
        at_(schedule.ranks.size(), 0),
        send_counted_(schedule.ranks.size(), false),
        states_(work.microbatches.size() * static_cast<size_t>(work.stage_count())),
        posted_(work),
        arrived_(work) {
    COTUNE_CHECK(schedule.ranks.size() == static_cast<size_t>(work.rank_count),
                 "{} action lists for {} ranks", schedule.ranks.size(), work.rank_count);
    COTUNE_CHECK(limit_bytes.empty() || limit_bytes.size() == schedule.ranks.size(), "{} limits for {} ranks",
                 limit_bytes.size(), schedule.ranks.size());
    facts_.peak_in_flight.resize(schedule.ranks.size());
    facts_.peak_kept_bytes.resize(schedule.ranks.size());
    facts_.peak_bytes.resize(schedule.ranks.size());
    in_flight_.resize(schedule.ranks.size());
    kept_bytes_.resize(schedule.ranks.size());
    buffer_bytes_.resize(schedule.ranks.size());
    for (const PipelineJob& job : work.jobs) jobs_[job.job] = &job;
    for (size_t m = 0; m < work.microbatches.size(); ++m) {
      int32_t lowest = work.stage_count();
      for (const JobStep& step : work.microbatches[m].jobs) {
        lowest = std::min(lowest, jobs_.at(step.job)->lowest_stage);
        microbatches_of_[step].push_back(static_cast<int32_t>(m));
      }
      lowest_.push_back(lowest);
    }
  }

  PipelineFacts run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        while (at_[rank] < schedule_.ranks[rank].size() && step(rank)) {
          ++at_[rank];
          moved = true;
        }
      }
    }
    check_deadlock();
    check_complete();
    return facts_;
  }

 private:
  struct State {  // of a microbatch on a stage
    bool forwarded = false;
    bool through = false;  // backward
    bool freed = false;
    bool activation_sent = false;
    bool error_sent = false;
  };

  std::string here() const {
    const Action& action = schedule_.ranks[rank_][at_[rank_]];
    return fmt::format("rank {}, action {} ({})", rank_, at_[rank_], to_json_line(action));
  }

  /// Takes the rank's next action; false when it has to wait.
  bool step(size_t rank) {
    rank_ = rank;
    const Action& action = schedule_.ranks[rank][at_[rank]];
    COTUNE_CHECK(action.stage >= 0 && action.stage < work_.stage_count(), "{}: there is no such stage",
                 here());
    check_unused(action);
    switch (action.kind) {
      case ActionKind::forward:
        return forward(action);
      case ActionKind::backward:
        return backward(action);
      case ActionKind::free:
        return release(action);
      case ActionKind::send_activation:
      case ActionKind::send_error:
        return send(action);
      case ActionKind::receive_activation:
      case ActionKind::receive_error:
        return receive(action);
      case ActionKind::optimizer_step:
        return optimizer_step(action);
      default:
        COTUNE_CHECK(false, "{}: not an action of a pipeline schedule", here());
    }
    return false;
  }

  int32_t rank_of(int32_t stage) const { return work_.stage_rank[static_cast<size_t>(stage)]; }
  bool is_mine(int32_t stage) const { return rank_of(stage) == static_cast<int32_t>(rank_); }
  State& state(int32_t microbatch, int32_t stage) {
    return states_[static_cast<size_t>(microbatch * work_.stage_count() + stage)];
  }
  const PipelineMicrobatch& microbatch(const Action& action) const {
    return work_.microbatches[static_cast<size_t>(action.microbatch)];
  }
  int32_t lowest(const Action& action) const { return lowest_[static_cast<size_t>(action.microbatch)]; }
  bool is_in_work(const JobStep& step) const { return microbatches_of_.contains(step); }

  /// Fields that an action does not use stand at their defaults: what it does it does whole and by itself.
  void check_unused(const Action& action) const {
    const bool is_message = action.kind == ActionKind::send_activation || action.kind == ActionKind::receive_activation ||
                            action.kind == ActionKind::send_error || action.kind == ActionKind::receive_error;
    Action used{.kind = action.kind, .stage = action.stage};
    if (action.microbatch >= 0 && action.kind != ActionKind::optimizer_step) {
      used.hybrid_task = action.hybrid_task;
      used.microbatch = action.microbatch;
    } else {
      used.job = action.job;
      used.job_step = action.job_step;
    }
    if (is_message) {
      used.peer = action.peer;
      used.bytes = action.bytes;
    }
    COTUNE_CHECK(action == used, "{}: sets a field that it does not use", here());
  }

  void check_hybrid_task(const Action& action) const {
    COTUNE_CHECK(action.hybrid_task == microbatch(action).hybrid_task, "{}: of hybrid task {}", here(),
                 microbatch(action).hybrid_task);
  }

  void check_compute(const Action& action) const {
    COTUNE_CHECK(
        action.microbatch >= 0 && action.microbatch < static_cast<int32_t>(work_.microbatches.size()),
        "{}: there is no such microbatch", here());
    COTUNE_CHECK(is_mine(action.stage), "{}: the stage is rank {}'s", here(), rank_of(action.stage));
    check_hybrid_task(action);
  }

  static MessageKey key_of(const Action& message) {
    return {goes_down(message.kind), message.stage, message.microbatch, message.microbatch < 0 ? message.job : -1,
            message.microbatch < 0 ? message.job_step : -1};
  }

  /// Whether a message that this rank needs is there; throws when this rank has not posted its receive.
  bool has_arrived(const MessageKey& key) const {
    COTUNE_CHECK(posted_.contains(key), "{}: uses a message whose receive is not posted", here());
    return arrived_.contains(key);
  }

  bool forward(const Action& action) {
    check_compute(action);
    State& own = state(action.microbatch, action.stage);
    COTUNE_CHECK(!own.forwarded, "{}: goes forward twice", here());
    if (action.stage > 0 && is_mine(action.stage - 1)) {
      COTUNE_CHECK(state(action.microbatch, action.stage - 1).forwarded, "{}: before the stage below",
                   here());
    } else if (action.stage > 0 && !has_arrived({false, action.stage, action.microbatch, -1, -1})) {
      return false;
    }
    check_chain(action);
    for (const JobStep& step : microbatch(action).jobs) {
      const JobStep last{step.job, step.step - 1};
      if (!is_in_work(last) || jobs_.at(step.job)->lowest_stage > action.stage) continue;
      COTUNE_CHECK(stepped_.contains({last, action.stage}),
                   "{}: before the optimizer step of job {}, step {}", here(), last.job, last.step);
    }
    own.forwarded = true;
    if (lowest(action) <= action.stage) {
      in_flight_[rank_] += 1;
      kept_bytes_[rank_] += microbatch(action).cost[static_cast<size_t>(action.stage)].kept_bytes;
    }
    account();
    if (action.stage > 0 && !is_mine(action.stage - 1))
      buffer_bytes_[rank_] -= microbatch(action).message_bytes.of(action.kind);
    return true;
  }

  void check_chain(const Action& action) {
    const int32_t chain = microbatch(action).chain;
    const auto next = static_cast<size_t>(action.microbatch) + 1;
    if (chain < 0 || next == work_.microbatches.size() || work_.microbatches[next].chain != chain) return;
    COTUNE_CHECK(state(action.microbatch + 1, action.stage).forwarded,
                 "{}: before the earlier part of its chain, microbatch {}", here(), action.microbatch + 1);
  }

  bool backward(const Action& action) {
    check_compute(action);
    State& own = state(action.microbatch, action.stage);
    COTUNE_CHECK(lowest(action) <= action.stage, "{}: below its lowest stage", here());
    COTUNE_CHECK(own.forwarded, "{}: backward before forward", here());
    COTUNE_CHECK(!own.through, "{}: goes backward twice", here());
    const bool is_top = action.stage + 1 == work_.stage_count();
    if (!is_top && is_mine(action.stage + 1)) {
      COTUNE_CHECK(state(action.microbatch, action.stage + 1).through, "{}: before the stage above", here());
      COTUNE_CHECK(state(action.microbatch, action.stage + 1).freed, "{}: before the free of the stage above, which hands its error down",
                   here());
    } else if (!is_top && !has_arrived({true, action.stage, action.microbatch, -1, -1})) {
      return false;
    }
    for (const JobStep& step : microbatch(action).jobs) {
      if (jobs_.at(step.job)->lowest_stage > action.stage) continue;
      size_t& through = through_[{step, action.stage}];
      const std::vector<int32_t>& all = microbatches_of_.at(step);
      COTUNE_CHECK(all[through] == action.microbatch,
                   "{}: backward before microbatch {} of the same step of job {}", here(), all[through],
                   step.job);
      ++through;
    }
    own.through = true;
    if (!is_top && !is_mine(action.stage + 1)) buffer_bytes_[rank_] -= microbatch(action).message_bytes.of(action.kind);
    return true;
  }

  bool release(const Action& action) {
    check_compute(action);
    State& own = state(action.microbatch, action.stage);
    const bool has_backward = lowest(action) <= action.stage;
    COTUNE_CHECK(!own.freed, "{}: freed twice", here());
    COTUNE_CHECK(has_backward ? own.through : own.forwarded, "{}: freed before its last computation", here());
    COTUNE_CHECK(own.activation_sent || !sends_activation(action.stage),
                 "{}: freed before its activation is sent", here());
    COTUNE_CHECK(own.error_sent || !sends_error(action.stage, lowest(action)),
                 "{}: freed before its error is sent", here());
    own.freed = true;
    if (has_backward) {
      in_flight_[rank_] -= 1;
      kept_bytes_[rank_] -= microbatch(action).cost[static_cast<size_t>(action.stage)].kept_bytes;
    }
    return true;
  }

  bool sends_activation(int32_t stage) const {
    return stage + 1 < work_.stage_count() && rank_of(stage) != rank_of(stage + 1);
  }
  bool sends_error(int32_t stage, int32_t lowest) const {
    return stage > lowest && rank_of(stage) != rank_of(stage - 1);
  }

  /// Checks what a message says of itself; `source`: the stage it comes from.
  void check_message(const Action& action, int32_t source, int32_t peer) const {
    COTUNE_CHECK(source >= 0 && source < work_.stage_count() && rank_of(source) != rank_of(action.stage),
                 "{}: no message goes to this stage", here());
    COTUNE_CHECK(action.peer == peer, "{}: the peer is rank {}", here(), peer);
    const bool is_error = source > action.stage;
    if (action.microbatch < 0) {
      const auto job = jobs_.find(action.job);
      COTUNE_CHECK(!is_error && job != jobs_.end() && is_in_work({action.job, action.job_step}) &&
                       !is_in_work({action.job, action.job_step + 1}) &&
                       job->second->lowest_stage < action.stage,
                   "{}: nobody needs this norm", here());
      COTUNE_CHECK(action.bytes == norm_message_bytes, "{}: a norm has {} bytes", here(), norm_message_bytes);
      return;
    }
    COTUNE_CHECK(action.microbatch < static_cast<int32_t>(work_.microbatches.size()),
                 "{}: there is no such microbatch", here());
    check_hybrid_task(action);
    COTUNE_CHECK(!is_error || lowest(action) <= action.stage, "{}: nobody needs this error", here());
    COTUNE_CHECK(action.bytes == microbatch(action).message_bytes.of(action.kind), "{}: the message has {} bytes", here(),
                 microbatch(action).message_bytes.of(action.kind));
  }

  bool send(const Action& action) {
    const bool is_error = action.kind == ActionKind::send_error;
    const int32_t source = is_error ? action.stage + 1 : action.stage - 1;
    Channel& channel = channels_[{static_cast<int32_t>(rank_), action.peer, is_error}];
    if (!send_counted_[rank_]) {
      check_message(action, source, rank_of(action.stage));
      COTUNE_CHECK(is_mine(source), "{}: rank {} sends this", here(), rank_of(source));
      if (action.microbatch < 0) {
        COTUNE_CHECK(stepped_.contains({{action.job, action.job_step}, source}),
                     "{}: before the optimizer step", here());
        COTUNE_CHECK(norms_sent_.insert(key_of(action)).second, "{}: sent twice", here());
        facts_.norm_message_count += 1;
      } else {
        State& own = state(action.microbatch, source);
        bool& sent = is_error ? own.error_sent : own.activation_sent;
        COTUNE_CHECK(is_error ? own.through : own.forwarded, "{}: sent before it is computed", here());
        COTUNE_CHECK(!sent, "{}: sent twice", here());
        COTUNE_CHECK(!own.freed, "{}: sent after its free", here());
        sent = true;
        facts_.message_count += 1;
        facts_.message_bytes += action.bytes;
      }
      channel.sent.push_back(action);
      send_counted_[rank_] = true;
    }
    if (channel.posted.size() < channel.sent.size()) return false;
    match(channel, channel.sent.size() - 1);
    send_counted_[rank_] = false;
    return true;
  }

  bool receive(const Action& action) {
    const bool is_error = action.kind == ActionKind::receive_error;
    const int32_t source = is_error ? action.stage + 1 : action.stage - 1;
    COTUNE_CHECK(source >= 0 && source < work_.stage_count(), "{}: no message goes to this stage", here());
    check_message(action, source, rank_of(source));
    COTUNE_CHECK(is_mine(action.stage), "{}: the stage is rank {}'s", here(), rank_of(action.stage));
    COTUNE_CHECK(posted_.insert(key_of(action)), "{}: received twice", here());
    Channel& channel = channels_[{action.peer, static_cast<int32_t>(rank_), is_error}];
    channel.posted.push_back(action);
    if (channel.sent.size() >= channel.posted.size()) match(channel, channel.posted.size() - 1);
    buffer_bytes_[rank_] += action.bytes;
    account();
    return true;
  }

  void match(const Channel& channel, size_t i) {
    COTUNE_CHECK(key_of(channel.sent[i]) == key_of(channel.posted[i]),
                 "{}: message {} of its channel is sent as {} and received as {}", here(), i,
                 to_json_line(channel.sent[i]), to_json_line(channel.posted[i]));
    arrived_.insert(key_of(channel.sent[i]));
  }

  bool optimizer_step(const Action& action) {
    const JobStep step{action.job, action.job_step};
    COTUNE_CHECK(is_in_work(step), "{}: there is no such step", here());
    const int32_t job_lowest = jobs_.at(action.job)->lowest_stage;
    COTUNE_CHECK(is_mine(action.stage), "{}: the stage is rank {}'s", here(), rank_of(action.stage));
    COTUNE_CHECK(job_lowest <= action.stage, "{}: the job has no adapter on this stage", here());
    const size_t through = through_[{step, action.stage}];
    COTUNE_CHECK(through == microbatches_of_.at(step).size(),
                 "{}: before the job's last backward on this stage", here());
    COTUNE_CHECK(!stepped_.contains({step, action.stage}), "{}: steps twice", here());
    if (action.stage > job_lowest) {
      if (is_mine(action.stage - 1)) {
        COTUNE_CHECK(stepped_.contains({step, action.stage - 1}), "{}: before the stage below knows the norm",
                     here());
      } else if (!norm_has_arrived(step, action.stage)) {
        return false;
      }
    }
    stepped_.insert({step, action.stage});
    if (action.stage > job_lowest && !is_mine(action.stage - 1) && !is_in_work({step.job, step.step + 1})) {
      buffer_bytes_[rank_] -= norm_message_bytes;
    }
    return true;
  }

  bool norm_has_arrived(const JobStep& step, int32_t stage) const {
    const auto next = microbatches_of_.find({step.job, step.step + 1});
    if (next == microbatches_of_.end()) return has_arrived({false, stage, -1, step.job, step.step});
    bool posted = false;
    for (const int32_t m : next->second) {
      const MessageKey key{false, stage, m, -1, -1};
      if (arrived_.contains(key)) return true;
      posted = posted || posted_.contains(key);
    }
    COTUNE_CHECK(posted, "{}: no message that brings the norm is posted", here());
    return false;
  }

  void account() {
    const int64_t bytes = kept_bytes_[rank_] + buffer_bytes_[rank_];
    facts_.peak_in_flight[rank_] = std::max(facts_.peak_in_flight[rank_], in_flight_[rank_]);
    facts_.peak_kept_bytes[rank_] = std::max(facts_.peak_kept_bytes[rank_], kept_bytes_[rank_]);
    facts_.peak_bytes[rank_] = std::max(facts_.peak_bytes[rank_], bytes);
    COTUNE_CHECK(limit_bytes_.empty() || bytes <= limit_bytes_[rank_],
                 "{}: {} bytes in flight, the limit is {}", here(), bytes, limit_bytes_[rank_]);
  }

  void check_deadlock() const {
    std::string waiting;
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] == schedule_.ranks[rank].size()) continue;
      waiting += fmt::format("; rank {} waits at action {}: {}", rank, at_[rank],
                             to_json_line(schedule_.ranks[rank][at_[rank]]));
    }
    COTUNE_CHECK(waiting.empty(), "deadlock{}", waiting);
  }

  void check_complete() {
    for (int32_t m = 0; m < static_cast<int32_t>(work_.microbatches.size()); ++m) {
      for (int32_t s = 0; s < work_.stage_count(); ++s) {
        COTUNE_CHECK(state(m, s).freed, "microbatch {} is not trained and freed on stage {}", m, s);
      }
    }
    for (const auto& [step, microbatches] : microbatches_of_) {
      for (int32_t s = jobs_.at(step.job)->lowest_stage; s < work_.stage_count(); ++s) {
        COTUNE_CHECK(stepped_.contains({step, s}), "job {} makes no optimizer step {} on stage {}", step.job,
                     step.step, s);
      }
    }
    for (const auto& [key, channel] : channels_) {
      COTUNE_CHECK(channel.sent.size() == channel.posted.size(),
                   "{} receives from rank {} on rank {} get nothing",
                   channel.posted.size() - channel.sent.size(), std::get<0>(key), std::get<1>(key));
    }
  }

  const PipelineWork& work_;
  const PipelineSchedule& schedule_;
  const std::vector<int64_t>& limit_bytes_;
  std::vector<size_t> at_;          // next action of each rank
  std::vector<bool> send_counted_;  // the rank stands at a send that is on its channel
  std::vector<State> states_;
  size_t rank_ = 0;  // whose action is taken
  std::map<int32_t, const PipelineJob*> jobs_;
  std::vector<int32_t> lowest_;  // lowest stage by microbatch
  std::map<JobStep, std::vector<int32_t>> microbatches_of_;
  std::map<std::pair<JobStep, int32_t>, size_t> through_;  // backwards of a job step on a stage
  std::set<std::pair<JobStep, int32_t>> stepped_;
  std::map<std::tuple<int32_t, int32_t, bool>, Channel> channels_;  // from, to, error
  MessageSet posted_;
  MessageSet arrived_;
  std::set<MessageKey> norms_sent_;
  std::vector<int32_t> in_flight_;  // by rank
  std::vector<int64_t> kept_bytes_;
  std::vector<int64_t> buffer_bytes_;
  PipelineFacts facts_;
};

}  // namespace

PipelineFacts verify(const PipelineWork& work, const PipelineSchedule& schedule,
                     const std::vector<int64_t>& limit_bytes) {
  check(work);
  return Execution(work, schedule, limit_bytes).run();
}

}  // namespace cotune
