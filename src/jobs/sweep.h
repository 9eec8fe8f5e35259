/// A search over options of a job (docs/sweeps.md): what a job's `sweep` says. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cotune {

/// What an evaluation says of a candidate: the lowest held-out loss is best, or the largest share of held-out rows that are
/// predicted in full, and of equal shares the lowest loss.
enum class SweepMetric { eval_loss, eval_accuracy };

/// asynchronous: a candidate is judged as it reaches a rung, against those that have been there. synchronous: it waits there,
/// out of memory, until all have come.
enum class HalvingMode { asynchronous, synchronous };

/// Successive halving: candidates are compared at rungs, and the best 1/factor of those that came to a rung go on.
struct HalvingSpec {
  int64_t factor = 3;
  int64_t first_steps = 0;    ///< the first rung; each further one is at factor times the steps. One of the two is set, or neither:
  double first_fraction = 0;  ///< as a share of the candidate's own steps. Neither: every candidate trains to its end
  HalvingMode mode = HalvingMode::asynchronous;
  bool is_on() const { return first_steps > 0 || first_fraction > 0; }
  bool operator==(const HalvingSpec&) const = default;
};

/// What a sweep tries for one option: values one by one, or a range to draw from.
struct SweptField {
  std::string option;               ///< its path, `train.learning_rate`; or a section, `adapter`, of which each value is a map
  std::vector<std::string> values;  ///< as YAML in flow style; none: a range
  double low = 0, high = 0;
  double step = 0;                  ///< draws are low + k·step; 0: any value
  bool is_log = false;              ///< uniform in the logarithm
  int line = 0;                     ///< where it was given; 0: on the command line
  bool operator==(const SweptField&) const = default;
};

struct SweepSpec {
  // What to try, as it was asked for; a candidate has none of it.
  std::vector<SweptField> grid;     ///< every combination
  std::vector<SweptField> random;   ///< `samples` draws, each with every combination of the grid
  int64_t samples = 0;
  uint64_t seed = 0;
  // Which candidate goes on: equal for all of them.
  SweepMetric metric = SweepMetric::eval_loss;
  int64_t max_concurrent = 0;       ///< candidates that train at a time; 0: as many as memory takes
  HalvingSpec halving;
  // A candidate's own.
  std::string of;                   ///< the sweep's name; "": the job is no candidate
  std::vector<std::pair<std::string, std::string>> values;  ///< the options that the sweep has set, by path → value as YAML
  bool operator==(const SweepSpec&) const = default;
};

}  // namespace cotune
