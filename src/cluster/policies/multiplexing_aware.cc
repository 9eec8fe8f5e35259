#include <limits>

#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// Places a job where the predicted joint throughput gains most (named as future work in MuxTune §6; MX-43). The throughput
/// of a mix is Σ_k T_k / T(mix): the number of dedicated instances that it is worth. The gain of a job on an instance is
/// the difference that it makes; where that is less than 3% of a dedicated instance the job waits, since it would only slow
/// the others down. Whoever has waited for four hours goes first when the queue is next looked at, wherever it loses least, and
/// has an instance held for it where there is no room.
class MultiplexingAware : public SchedulingPolicy {
 public:
  MultiplexingAware(const RoundPredictor& predictor, size_t kind_count) : predictor_(predictor) {
    for (size_t kind = 0; kind < kind_count; ++kind) {
      JobMix alone;
      alone.add(static_cast<int32_t>(kind));
      alone_s_.push_back(predictor.predicted_round_seconds(alone));
    }
  }
  std::string_view name() const override { return "multiplexing"; }
  double rank(const JobFacts&) const override { return 0; }
  bool values_placements() const override { return true; }
  double patience_s() const override { return most_wait_s; }

  double placement_value(const PlacementOption& option) override {
    const double gain = gain_of(*option.residents, option.kind);
    if (option.waited_s > most_wait_s) return urgent + option.waited_s + gain;
    return gain < least_gain && !option.residents->empty() ? -std::numeric_limits<double>::infinity() : gain;
  }

 private:
  double throughput(const JobMix& mix) const {
    if (mix.empty()) return 0;
    double alone = 0;
    for (const auto& [kind, count] : mix.counts()) alone += count * alone_s_[static_cast<size_t>(kind)];
    return alone / predictor_.predicted_round_seconds(mix);
  }

  double gain_of(const JobMix& residents, int32_t kind) const {
    JobMix joint = residents;
    joint.add(kind);
    return throughput(joint) - throughput(residents);
  }

  static constexpr double most_wait_s = 4 * 3600, least_gain = 0.03, urgent = 1e9;
  const RoundPredictor& predictor_;
  std::vector<double> alone_s_;  // by kind
};

}  // namespace

std::unique_ptr<SchedulingPolicy> multiplexing_aware(const RoundPredictor& predictor, size_t kind_count) {
  return std::make_unique<MultiplexingAware>(predictor, kind_count);
}

}  // namespace cotune
