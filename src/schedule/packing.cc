#include "schedule/packing.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

/// What a set of whole row parts takes in a microbatch. Sets without a common row add up.
struct Extent {
  int64_t tokens = 0;   // with pads to chunks
  int64_t parts = 0;
  int64_t longest = 0;  // real tokens of the longest part

  Extent operator+(const Extent& other) const {
    return {tokens + other.tokens, parts + other.parts, std::max(longest, other.longest)};
  }
  int64_t size(Layout layout) const { return layout == Layout::padded ? parts * longest : tokens; }
};

Extent extent_of(std::span<const Atom> atoms) {
  Extent extent;
  int64_t part = 0;
  for (const Atom& atom : atoms) {
    for (const Segment& segment : atom.segments) {
      const bool continues = extent.parts > 0 && segment.position > 0;
      if (!continues) {
        extent.parts += 1;
        part = 0;
      }
      part += segment.length;
      extent.longest = std::max(extent.longest, part);
      extent.tokens += segment.length + segment.pad;
    }
  }
  return extent;
}

/// A job's atoms, taken from the end: `left` atoms are not placed yet.
class JobQueue {
 public:
  explicit JobQueue(std::span<const Atom> atoms) : atoms_(atoms), left_(atoms.size()) {
    for (const Atom& atom : atoms) tokens_left_ += atom.token_count();
    find_unit();
  }

  bool empty() const { return left_ == 0; }
  int64_t tokens_left() const { return tokens_left_; }
  size_t left() const { return left_; }
  size_t unit_begin() const { return unit_begin_; }
  const Extent& unit() const { return unit_; }
  std::span<const Atom> atoms() const { return atoms_; }

  /// Takes the atoms from `begin` on.
  void take_from(size_t begin) {
    for (size_t i = begin; i < left_; ++i) tokens_left_ -= atoms_[i].token_count();
    left_ = begin;
    find_unit();
  }

 private:
  void find_unit() {
    if (left_ == 0) return;
    unit_begin_ = left_ - 1;
    while (unit_begin_ > 0 && atoms_[unit_begin_].segments.front().position > 0) --unit_begin_;
    unit_ = extent_of(atoms_.subspan(unit_begin_, left_ - unit_begin_));
  }

  std::span<const Atom> atoms_;
  size_t left_;
  int64_t tokens_left_ = 0;
  size_t unit_begin_ = 0;
  Extent unit_;
};

class Packer {
 public:
  /// share: what microbatches of several units keep within; at most the token budget.
  Packer(std::span<const std::vector<Atom>> jobs, const PackingPolicy& policy, int64_t share) : policy_(policy), share_(share) {
    for (const std::vector<Atom>& atoms : jobs) {
      for (const Atom& atom : atoms) check_fits(atom);
      queues_.emplace_back(atoms);
    }
  }

  std::vector<MicrobatchGroup> pack() {
    std::vector<MicrobatchGroup> groups;
    for (size_t first = pick({}); first != none; first = pick({})) {
      MicrobatchGroup& group = groups.emplace_back();
      const size_t unit_begin = queues_[first].unit_begin();
      for (bool placed_whole = false; !placed_whole;) {
        start();
        place(first, begin_of_last_atoms_that_fit(queues_[first]));
        placed_whole = queues_[first].left() == unit_begin;
        fill(placed_whole ? none : first);
        group.push_back(finish());
      }
    }
    return groups;
  }

 private:
  static constexpr size_t none = static_cast<size_t>(-1);

  void check_fits(const Atom& atom) const {
    const int64_t size = extent_of({&atom, 1}).size(policy_.layout);
    if (size <= policy_.token_budget) return;
    throw_user_error(
        "token_budget: must be at least {} (the largest unit that is never split{}), got {}", size,
        policy_.layout == Layout::chunked ? ", with chunk_size " + std::to_string(policy_.chunk_size) : "",
        policy_.token_budget);
  }

  bool fits(const Extent& more, const Extent& used) const {
    return (used + more).size(policy_.layout) <= (used.tokens > 0 ? share_ : policy_.token_budget);
  }

  /// The job with most tokens left; with something in the microbatch, among those whose next unit fits beside it.
  size_t pick(const Extent& used, size_t except = none) const {
    size_t best = none;
    for (size_t i = 0; i < queues_.size(); ++i) {
      if (i == except || queues_[i].empty()) continue;
      if (used.tokens > 0 && !fits(queues_[i].unit(), used)) continue;
      if (best == none || queues_[i].tokens_left() > queues_[best].tokens_left()) best = i;
    }
    return best;
  }

  /// The longest run at the end of the next unit that fits into an empty microbatch: all of it, but for chains.
  size_t begin_of_last_atoms_that_fit(const JobQueue& queue) const {
    size_t begin = queue.left() - 1;
    while (begin > queue.unit_begin() &&
           fits(extent_of(queue.atoms().subspan(begin - 1, queue.left() - begin + 1)), {})) {
      --begin;
    }
    return begin;
  }

  void start() {
    used_ = {};
    begins_.resize(queues_.size());
    ends_.resize(queues_.size());
    for (size_t i = 0; i < queues_.size(); ++i) begins_[i] = ends_[i] = queues_[i].left();
  }

  void place(size_t job, size_t begin) {
    JobQueue& queue = queues_[job];
    used_ = used_ + extent_of(queue.atoms().subspan(begin, queue.left() - begin));
    queue.take_from(begin);
    begins_[job] = begin;
  }

  void fill(size_t except) {
    for (size_t job = pick(used_, except); job != none; job = pick(used_, except)) {
      place(job, queues_[job].unit_begin());
    }
  }

  Microbatch finish() {
    Microbatch microbatch;
    for (size_t i = 0; i < queues_.size(); ++i) {
      for (size_t a = begins_[i]; a < ends_[i]; ++a) microbatch.atoms.push_back(queues_[i].atoms()[a]);
    }
    used_ = {};
    return microbatch;
  }

  const PackingPolicy& policy_;
  int64_t share_;
  std::vector<JobQueue> queues_;
  Extent used_;                        // of the open microbatch
  std::vector<size_t> begins_, ends_;  // of each job's atoms in the open microbatch
};

}  // namespace

namespace {

struct Units {
  int64_t count = 0;
  int64_t tokens = 0;  // of all, as the layout counts them one by one
};

Units units_of(std::span<const std::vector<Atom>> jobs, Layout layout) {
  Units units;
  for (const std::vector<Atom>& atoms : jobs) {
    for (JobQueue queue(atoms); !queue.empty(); queue.take_from(queue.unit_begin())) {
      ++units.count;
      units.tokens += queue.unit().size(layout);
    }
  }
  return units;
}

int64_t microbatch_count(const std::vector<MicrobatchGroup>& groups) {
  int64_t count = 0;
  for (const MicrobatchGroup& group : groups) count += std::ssize(group);
  return count;
}

}  // namespace

std::vector<MicrobatchGroup> pack_together(std::span<const std::vector<Atom>> jobs, const PackingPolicy& policy) {
  std::vector<MicrobatchGroup> packed = Packer(jobs, policy, policy.token_budget).pack();
  if (microbatch_count(packed) >= policy.least_microbatches) return packed;
  const Units units = units_of(jobs, policy.layout);
  const int64_t least = std::min(policy.least_microbatches, units.count);
  std::optional<std::vector<MicrobatchGroup>> best;
  const auto consider = [&](int64_t share) {
    std::vector<MicrobatchGroup> groups = Packer(jobs, policy, share).pack();
    const int64_t count = microbatch_count(groups);
    if (count >= least && (!best || count < microbatch_count(*best))) best = std::move(groups);
  };
  const int64_t even = units.tokens / std::max<int64_t>(least, 1);
  constexpr int64_t steps = 8;
  for (int64_t step = 0; step <= steps; ++step) {
    if (const int64_t share = even + even * step / steps; share < policy.token_budget) consider(share);
  }
  for (int64_t share = even / 2; !best; share /= 2) consider(share);
  return std::move(*best);
}

Microbatch pack_everything(std::span<const std::vector<Atom>> jobs) {
  Microbatch microbatch;
  for (const std::vector<Atom>& atoms : jobs) {
    microbatch.atoms.insert(microbatch.atoms.end(), atoms.begin(), atoms.end());
  }
  return microbatch;
}

void pad_to_longest(Microbatch& microbatch) {
  const std::vector<RowPart> parts = row_parts(microbatch);
  int64_t longest = 0;
  for (const RowPart& part : parts) longest = std::max(longest, part.length);
  for (const RowPart& part : parts) {
    if (!ends_row(part)) continue;  // pads would stand where the row goes on
    microbatch.atoms[static_cast<size_t>(part.last_atom)].segments[static_cast<size_t>(part.last_segment)].pad =
        longest - part.length;
  }
}

}  // namespace cotune
