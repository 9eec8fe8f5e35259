/// LobRA's Table 6 (App. B.2; LB-33): GPU seconds of twelve tasks, each alone on 64 A800-80 with Llama-2-70B, by the plans of
/// Tables 7 and 8; and a model of them with four constants.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distributions.h"
#include "plan/deployment/configuration.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct Table6Task {
  const char* name;           ///< as in published_datasets
  double sequential;          ///< GPU seconds, Task-Sequential
  double lobra_sequential;
  std::vector<std::pair<std::string, int64_t>> sequential_plan, lobra_plan;
};
const std::vector<Table6Task>& table6_tasks();

/// What is fitted, on the column of Task-Sequential alone.
struct Table6Constants {
  double compute_efficiency = 0.5;  ///< share of the peak that products reach
  double node_bandwidth = 1e11;     ///< bytes per second of all-reduces within a node, whose sums are bf16
  double network_bandwidth = 1e10;  ///< the same across nodes: <16,1>
  double layer_seconds = 3e-3;      ///< of a layer for any chunk, forward and backward, however few tokens it has
};

/// The configurations of Tables 2, 7 and 8 with the longest rows that the plans imply, and their seconds by stage_seconds: of 70B, or of 32B
/// on the same machines.
class Table6Model {
 public:
  explicit Table6Model(const std::string& model = "llama-2-70b");  ///< or qwen2.5-32b
  std::vector<Configuration> configurations(const Table6Constants& constants) const;
  double trained_values() const;  ///< of one task's adapters

  /// Mean seconds of `steps` drawn steps. Like replicas (`is_lobra` false): rows padded to boundaries that were fixed for a
  /// sample beforehand, and dealt in turn. Unlike ones: every step in buckets of its own, dispatched so that the slowest
  /// replica ends first, whole chunks counted.
  double step_seconds(const std::vector<Configuration>& configurations, const std::vector<int64_t>& replicas,
                      const std::vector<TaskLengths>& tasks, int steps, bool is_lobra, uint64_t first_step = 2000) const;

  /// Of the planned deployment, its runners-up and what exchanging replicas makes of them the one that sampled steps end soonest with:
  /// planning charges a row its share of a full chunk, and its expected step has few of the rare long rows.
  std::vector<int64_t> best_of_samples(const std::vector<Configuration>& configurations, const std::vector<TaskLengths>& tasks, int64_t devices) const;

 private:
  static constexpr int sampled_steps = 40;

  struct Shape {
    int64_t tensor_parallel, stages, longest;
  };
  ModelConfig model_;
  std::vector<AdapterShape> adapters_;
  std::vector<Shape> shapes_;
};

/// Predicted over published GPU seconds of Task-Sequential, or of LobRA-Sequential, per task.
std::vector<double> table6_ratios(const Table6Model& model, const Table6Constants& constants, LengthFamily family, bool is_lobra);

/// From table6_constants.json, which fit_table6 wrote.
std::map<std::string, Table6Constants> read_table6_constants();

}  // namespace cotune
