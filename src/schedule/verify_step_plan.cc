#include "schedule/verify_step_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

struct RowKey {
  int32_t job;
  int32_t row;
  auto operator<=>(const RowKey&) const = default;
};

/// The parts of the plan that do not depend on the order of work.
class ContentCheck {
 public:
  explicit ContentCheck(const StepPlan& plan) : plan_(plan) {
    for (const BatchShape& batch : plan.batches) {
      COTUNE_CHECK(batches_.emplace(batch.job, &batch).second, "job {} has two batches", batch.job);
    }
  }

  void run() {
    std::set<int32_t> named;
    for (const std::vector<int32_t>& task : plan_.policy.hybrid_tasks) {
      for (const int32_t job : task) COTUNE_CHECK(named.insert(job).second, "job {} is in two hybrid tasks", job);
    }
    for (size_t m = 0; m < plan_.microbatches.size(); ++m) check_microbatch(plan_.microbatches[m], m);
    for (const auto& [job, batch] : batches_) {
      check_atoms(job);
      for (size_t row = 0; row < batch->row_lengths.size(); ++row) {
        check_row({job, static_cast<int32_t>(row)}, batch->row_lengths[row]);
      }
    }
  }

 private:
  struct Piece {
    int64_t position;
    int64_t length;
    int32_t atom;
    auto operator<=>(const Piece&) const = default;
  };

  void check_microbatch(const Microbatch& microbatch, size_t m) {
    COTUNE_CHECK(!microbatch.atoms.empty(), "microbatch {} is empty", m);
    std::set<int32_t> closed_jobs;
    const Atom* before = nullptr;
    for (const Atom& atom : microbatch.atoms) {
      COTUNE_CHECK(batches_.count(atom.job), "microbatch {} holds an atom of job {}, which has no batch", m, atom.job);
      COTUNE_CHECK(!atom.segments.empty(), "atom {} of job {} is empty", atom.index, atom.job);
      if (before != nullptr && before->job == atom.job) {
        COTUNE_CHECK(before->index < atom.index, "microbatch {}: atoms of job {} are not in ascending index", m, atom.job);
      } else {
        COTUNE_CHECK(closed_jobs.insert(atom.job).second, "microbatch {}: atoms of job {} are not adjacent", m, atom.job);
      }
      before = &atom;
      atoms_[atom.job].push_back(atom.index);
      for (const Segment& segment : atom.segments) check_segment(atom, segment);
    }
    const bool fuses = plan_.policy.sharing == Sharing::hybrid || plan_.policy.sharing == Sharing::batch_all;
    COTUNE_CHECK(fuses || closed_jobs.size() == 1, "microbatch {} fuses jobs", m);
    check_hybrid_task(closed_jobs, m);
    COTUNE_CHECK(plan_.policy.sharing == Sharing::batch_all || microbatch.token_count() <= plan_.policy.token_budget,
                 "microbatch {} has {} tokens, above the budget of {}", m, microbatch.token_count(),
                 plan_.policy.token_budget);
    check_row_parts(microbatch, m);
  }

  void check_hybrid_task(const std::set<int32_t>& jobs, size_t m) const {
    const auto& tasks = plan_.policy.hybrid_tasks;
    if (plan_.policy.sharing != Sharing::hybrid || tasks.empty() || jobs.size() == 1) return;
    const bool is_one = std::any_of(tasks.begin(), tasks.end(), [&](const std::vector<int32_t>& task) {
      return std::all_of(jobs.begin(), jobs.end(),
                         [&](int32_t job) { return std::find(task.begin(), task.end(), job) != task.end(); });
    });
    COTUNE_CHECK(is_one, "microbatch {} fuses jobs of two hybrid tasks", m);
  }

  void check_segment(const Atom& atom, const Segment& segment) {
    const std::vector<int64_t>& rows = batches_.at(atom.job)->row_lengths;
    COTUNE_CHECK(segment.row >= 0 && segment.row < static_cast<int64_t>(rows.size()), "job {} has no row {}", atom.job,
                 segment.row);
    COTUNE_CHECK(segment.row_length == rows[static_cast<size_t>(segment.row)],
                 "job {}, row {}: row_length {} of a segment is wrong", atom.job, segment.row, segment.row_length);
    COTUNE_CHECK(segment.length >= 1 && segment.pad >= 0, "job {}, row {}: a segment of {} tokens and {} pads",
                 atom.job, segment.row, segment.length, segment.pad);
    pieces_[{atom.job, segment.row}].push_back({segment.position, segment.length, atom.index});
  }

  void check_row_parts(const Microbatch& microbatch, size_t m) {
    const std::vector<RowPart> parts = row_parts(microbatch);
    std::set<RowKey> seen;
    int64_t longest = 0;
    for (const RowPart& part : parts) {
      COTUNE_CHECK(seen.insert({part.job, part.row}).second,
                   "microbatch {}: the segments of job {}, row {} are not one run", m, part.job, part.row);
      longest = std::max(longest, part.length);
      const Atom& atom = microbatch.atoms[static_cast<size_t>(part.last_atom)];
      COTUNE_CHECK(atom.segments[static_cast<size_t>(part.last_segment)].pad == part.pad,
                   "microbatch {}: pads inside job {}, row {}", m, part.job, part.row);
    }
    for (const RowPart& part : parts) {
      const Layout layout = plan_.policy.layout;
      const int64_t expected = layout == Layout::padded && ends_row(part) ? longest - part.length : 0;
      const bool right = layout == Layout::chunked ? part.pad < plan_.policy.chunk_size : part.pad == expected;
      COTUNE_CHECK(right, "microbatch {}: job {}, row {} has {} pads", m, part.job, part.row, part.pad);
    }
  }

  void check_atoms(int32_t job) {
    std::vector<int32_t>& indices = atoms_[job];
    std::sort(indices.begin(), indices.end());
    for (size_t i = 0; i < indices.size(); ++i) {
      COTUNE_CHECK(indices[i] == static_cast<int32_t>(i), "job {}: atom {} is missing or there twice", job, i);
    }
  }

  void check_row(RowKey key, int64_t row_length) {
    std::vector<Piece>& pieces = pieces_[key];
    std::sort(pieces.begin(), pieces.end());
    int64_t covered = 0;
    int32_t atom = 0;
    for (const Piece& piece : pieces) {
      COTUNE_CHECK(piece.position == covered, "job {}, row {}: tokens from {} on are missing or there twice", key.job,
                   key.row, std::min(piece.position, covered));
      COTUNE_CHECK(piece.atom >= atom, "job {}, row {}: later tokens are in an earlier atom", key.job, key.row);
      covered += piece.length;
      atom = piece.atom;
    }
    COTUNE_CHECK(covered == row_length, "job {}, row {}: {} of {} tokens are in the plan", key.job, key.row, covered,
                 row_length);
  }

  const StepPlan& plan_;
  std::map<int32_t, const BatchShape*> batches_;
  std::map<int32_t, std::vector<int32_t>> atoms_;
  std::map<RowKey, std::vector<Piece>> pieces_;
};

/// Runs the actions without a model. Presumes that the content is right.
class OrderCheck {
 public:
  OrderCheck(const StepPlan& plan, int64_t layer_count)
      : plan_(plan), layer_count_(layer_count), states_(plan.microbatches.size()) {
    for (const BatchShape& batch : plan.batches) jobs_[batch.job].batch = &batch;
    for (const Microbatch& microbatch : plan.microbatches) {
      parts_.push_back(row_parts(microbatch));
      for (const Atom& atom : microbatch.atoms) jobs_[atom.job].atoms_left += 1;
    }
  }

  void run() {
    for (at_ = 0; at_ < plan_.actions.size(); ++at_) {
      const Action& action = plan_.actions[at_];
      COTUNE_CHECK(open_ < 0 || action.microbatch == open_, "action {}: microbatch {}'s backward is not through", at_,
                   open_);
      switch (action.kind) {
        case ActionKind::forward: forward(action); break;
        case ActionKind::recompute: recompute(action); break;
        case ActionKind::backward: backward(action); break;
        case ActionKind::free: release(action); break;
        case ActionKind::optimizer_step: step(action); break;
        default: COTUNE_CHECK(false, "action {}: no {} in a step plan of one rank", at_, to_string(action.kind));
      }
    }
    for (size_t m = 0; m < states_.size(); ++m) {
      COTUNE_CHECK(states_[m].phase == Phase::freed, "microbatch {} is not trained and freed at the end", m);
    }
    for (const auto& [job, state] : jobs_) COTUNE_CHECK(state.stepped, "job {} has no optimizer step", job);
  }

 private:
  enum class Phase { untouched, forwarded, through, freed };
  struct MicrobatchState {
    Phase phase = Phase::untouched;
    int64_t layers_left = -1;      // whose backward is to come; -1: the head too
    bool recomputed = false;       // the top one of them
  };
  struct JobState {
    const BatchShape* batch = nullptr;
    int64_t atoms_left = 0;
    bool stepped = false;
  };
  struct RowState {
    int64_t forwarded = 0;  // tokens from the start of the row
    int64_t kept = 0;       // of these, tokens whose backward is to come
  };

  MicrobatchState& state_of(const Action& action) {
    COTUNE_CHECK(action.microbatch >= 0 && action.microbatch < static_cast<int64_t>(states_.size()),
                 "action {}: there is no microbatch {}", at_, action.microbatch);
    return states_[static_cast<size_t>(action.microbatch)];
  }

  void forward(const Action& action) {
    MicrobatchState& state = state_of(action);
    COTUNE_CHECK(state.phase == Phase::untouched, "action {}: microbatch {} goes forward twice", at_,
                 action.microbatch);
    COTUNE_CHECK(action.first_layer == -1 && action.last_layer == -1, "action {}: forward of a part", at_);
    for (const RowPart& part : parts_[static_cast<size_t>(action.microbatch)]) {
      RowState& row = rows_[{part.job, part.row}];
      COTUNE_CHECK(row.forwarded == part.position && row.kept == part.position,
                   "action {}: job {}, row {} goes forward from token {}, but {} are through and {} kept", at_,
                   part.job, part.row, part.position, row.forwarded, row.kept);
      row.forwarded = row.kept = part.position + part.length;
    }
    state.phase = Phase::forwarded;
  }

  void recompute(const Action& action) {
    MicrobatchState& state = state_of(action);
    COTUNE_CHECK(plan_.policy.recompute, "action {}: recompute, which the policy excludes", at_);
    COTUNE_CHECK(state.phase == Phase::forwarded && !state.recomputed && state.layers_left > 0 &&
                     action.last_layer == state.layers_left && action.first_layer == action.last_layer - 1,
                 "action {}: recompute of layers [{}, {}), where the backward of {} layers is to come", at_,
                 action.first_layer, action.last_layer, state.layers_left);
    state.recomputed = true;
  }

  void backward(const Action& action) {
    MicrobatchState& state = state_of(action);
    COTUNE_CHECK(state.phase == Phase::forwarded, "action {}: microbatch {} goes backward before its forward or twice",
                 at_, action.microbatch);
    const int64_t first = action.first_layer;
    const int64_t last = action.last_layer;
    const int64_t lowest = lowest_layer(action.microbatch);
    if (first == -1 && last == -1) {
      COTUNE_CHECK(state.layers_left == -1 && !plan_.policy.recompute,
                   "action {}: backward of all of microbatch {}, of which a part is through or not recomputed", at_,
                   action.microbatch);
      begin_backward(action.microbatch);
      state.layers_left = lowest;
    } else if (state.layers_left == -1) {
      COTUNE_CHECK(first == layer_count_ && last == layer_count_, "action {}: the head's backward comes first", at_);
      begin_backward(action.microbatch);
      state.layers_left = layer_count_;
    } else {
      COTUNE_CHECK(last == state.layers_left && first < last && first >= lowest,
                   "action {}: backward of layers [{}, {}), where {} down to {} are to come", at_, first, last,
                   state.layers_left - 1, lowest);
      COTUNE_CHECK(!plan_.policy.recompute || (state.recomputed && first == last - 1),
                   "action {}: backward of layers [{}, {}) without recompute directly before", at_, first, last);
      state.layers_left = first;
      state.recomputed = false;
    }
    open_ = action.microbatch;
    if (state.layers_left == lowest) finish_backward(action.microbatch);
  }

  /// Every row part: nothing of the row after it may still be kept.
  void begin_backward(int32_t microbatch) {
    for (const RowPart& part : parts_[static_cast<size_t>(microbatch)]) {
      RowState& row = rows_[{part.job, part.row}];
      COTUNE_CHECK(row.forwarded == part.row_length,
                   "action {}: job {}, row {} goes backward before its later chunks went forward", at_, part.job,
                   part.row);
      COTUNE_CHECK(row.kept == part.position + part.length,
                   "action {}: job {}, row {} goes backward before its later chunks", at_, part.job, part.row);
      row.kept = part.position;
    }
    const std::vector<Atom>& atoms = plan_.microbatches[static_cast<size_t>(microbatch)].atoms;
    for (auto atom = atoms.rbegin(); atom != atoms.rend(); ++atom) {
      JobState& job = jobs_.at(atom->job);
      COTUNE_CHECK(job.atoms_left - 1 == atom->index, "action {}: atom {} of job {} goes backward, expected {}", at_,
                   atom->index, atom->job, job.atoms_left - 1);
      job.atoms_left -= 1;
    }
  }

  void finish_backward(int32_t microbatch) {
    states_[static_cast<size_t>(microbatch)].phase = Phase::through;
    open_ = -1;
  }

  void release(const Action& action) {
    MicrobatchState& state = state_of(action);
    COTUNE_CHECK(state.phase == Phase::through, "action {}: microbatch {} is freed before its backward or twice", at_,
                 action.microbatch);
    state.phase = Phase::freed;
  }

  void step(const Action& action) {
    const auto found = jobs_.find(action.job);
    COTUNE_CHECK(found != jobs_.end(), "action {}: optimizer step of job {}, which has no batch", at_, action.job);
    JobState& job = found->second;
    COTUNE_CHECK(job.atoms_left == 0, "action {}: optimizer step of job {} with {} atoms to come", at_, action.job,
                 job.atoms_left);
    COTUNE_CHECK(!job.stepped, "action {}: second optimizer step of job {}", at_, action.job);
    COTUNE_CHECK(action.job_step == job.batch->step, "action {}: job {} is at step {}, not {}", at_, action.job,
                 job.batch->step, action.job_step);
    job.stepped = true;
  }

  int64_t lowest_layer(int32_t microbatch) const {
    int64_t lowest = layer_count_;
    for (const Atom& atom : plan_.microbatches[static_cast<size_t>(microbatch)].atoms) {
      lowest = std::min(lowest, jobs_.at(atom.job).batch->lowest_layer);
    }
    return lowest;
  }

  const StepPlan& plan_;
  const int64_t layer_count_;
  std::vector<MicrobatchState> states_;
  std::vector<std::vector<RowPart>> parts_;
  std::map<int32_t, JobState> jobs_;
  std::map<RowKey, RowState> rows_;
  size_t at_ = 0;
  int32_t open_ = -1;  // the microbatch whose backward is under way
};

}  // namespace

void verify(const StepPlan& plan, int64_t layer_count) {
  COTUNE_CHECK(!plan.policy.recompute || plan.policy.layer_count == layer_count, "planned for {} layers, not {}",
               plan.policy.layer_count, layer_count);
  ContentCheck(plan).run();
  OrderCheck(plan, layer_count).run();
}

}  // namespace cotune
