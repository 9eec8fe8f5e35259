#include "cluster/hidden_exchange.h"

#include <algorithm>

#include "plan/cost/operator_seconds.h"
#include "schedule/adapter_shape.h"

namespace cotune {
namespace {

/// When the gradients of a layer are there, over all replicas.
double ready_s(const Plan& plan, const std::vector<std::vector<LastBackward>>& last, int64_t layer) {
  double ready = 0;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const std::vector<StageShape> runs = plan.replicas[r].layer_runs();
    for (size_t s = 0; s < runs.size(); ++s) {
      const StageShape& shape = runs[s];
      if (layer < shape.first_layer || layer >= shape.last_layer) continue;
      const LastBackward& backward = last[r][s];
      const double left = static_cast<double>(layer - shape.first_layer) / static_cast<double>(shape.last_layer - shape.first_layer);
      ready = std::max(ready, backward.end_s - left * (backward.end_s - backward.start_s));
    }
  }
  return ready;
}

class ExchangeHider {
 public:
  ExchangeHider(const Plan& plan, const ModelConfig& model, const std::vector<JobShape>& jobs, const LinkSpec& link,
                const std::vector<std::vector<LastBackward>>& last)
      : bytes_(static_cast<size_t>(model.layer_count), 0), link_(link), ranks_(static_cast<int64_t>(plan.replicas.size())) {
    const auto fewest = std::min_element(plan.replicas.begin(), plan.replicas.end(), [](const auto& a, const auto& b) {
      return a.stages.size() < b.stages.size();
    });
    stages_ = &fewest->stages;
    for (const JobShape& job : jobs) {
      for (const AdapterShape& each : job.adapters) {
        bytes_[static_cast<size_t>(each.layer)] += static_cast<double>(4 * parameter_count(model, each));
      }
    }
    for (int64_t layer = 0; layer < model.layer_count; ++layer) ready_s_.push_back(ready_s(plan, last, layer));
    for (const std::vector<LastBackward>& replica : last) {
      for (const LastBackward& each : replica) end_s_ = std::max(end_s_, each.end_s);
    }
  }

  HiddenExchange best() const {
    HiddenExchange best = in_buckets(1);
    const auto layers = static_cast<int64_t>(bytes_.size());
    for (int64_t buckets = 2; buckets <= layers; buckets *= 2) {
      const HiddenExchange more = in_buckets(buckets);
      if (more.exposed_s < best.exposed_s) best = more;
    }
    return best;
  }

 private:
  /// Every rank of the replica with the fewest stages, which hold most, exchanges its own layers.
  HiddenExchange in_buckets(int64_t buckets) const {
    HiddenExchange exchange{.buckets = buckets};
    double last_s = 0;
    for (const PlannedStage& stage : *stages_) {
      double done_s = 0, seconds = 0;
      std::vector<size_t> layers;
      for (const StageShape& run : stage.chunks()) {
        for (int64_t layer = run.first_layer; layer < run.last_layer; ++layer) layers.push_back(static_cast<size_t>(layer));
      }
      auto end = static_cast<int64_t>(layers.size());
      for (int64_t left = std::min(buckets, end); left > 0; --left) {
        const int64_t first = end - end / left;
        double bytes = 0, ready = 0;
        for (auto each = layers.begin() + first; each < layers.begin() + end; ++each) {
          bytes += bytes_[*each];
          ready = std::max(ready, ready_s_[*each]);
        }
        const double one = bytes > 0 ? all_reduce_seconds(bytes, ranks_, link_) : 0;
        done_s = std::max(done_s, ready) + one;
        seconds += one;
        end = first;
      }
      exchange.seconds = std::max(exchange.seconds, seconds);
      last_s = std::max(last_s, done_s);
    }
    exchange.exposed_s = std::max(0.0, last_s - end_s_);
    return exchange;
  }

  std::vector<double> bytes_, ready_s_;  // per layer
  const std::vector<PlannedStage>* stages_ = nullptr;
  LinkSpec link_;
  int64_t ranks_ = 1;
  double end_s_ = 0;  // of the last backward
};

}  // namespace

HiddenExchange hide_exchange(const Plan& plan, const ModelConfig& model, const std::vector<JobShape>& jobs, const LinkSpec& link,
                             const std::vector<std::vector<LastBackward>>& last) {
  return ExchangeHider(plan, model, jobs, link, last).best();
}

}  // namespace cotune
