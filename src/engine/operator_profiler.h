#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/interpreter.h"
#include "schedule/profile.h"

namespace cotune {

/// Measures operators over canonical shapes by training rounds of them: what is timed is what the engine executes, with
/// the weights of all layers passing through the caches in between.
///
/// A machine's speed drifts while it is measured, so each shape is measured once per sweep and a time is the median over
/// sweeps. Adapters stay between sweeps; jobs of different shapes that are alike share one.
class OperatorProfiler {
 public:
  /// Makes the adapters; diff pruning selects its entries by rounds on random tokens.
  OperatorProfiler(std::shared_ptr<const Backbone> backbone, std::vector<ProfiledShape> shapes);

  /// One round of every shape, in an order that differs from sweep to sweep.
  void sweep();
  /// Forgets what was measured: after a first sweep, which warms up.
  void forget() { samples_.clear(); }

  /// Adds what another one, of the same shapes, has measured.
  void absorb(const OperatorProfiler& other);

  /// By operator and shape, of the sweeps so far.
  std::map<std::string, std::vector<ProfiledTime>> times() const;

 private:
  struct Job {
    Adapter* adapter = nullptr;
    Batch batch;
  };
  struct Samples {
    int64_t calls = 0;
    std::vector<double> seconds;  ///< of one call, per sweep
  };

  Adapter* adapter_for(const ProfiledJob& job, int like_ones_before);
  void select_entries(Adapter& adapter);
  Batch random_batch(const ProfiledJob& job, double labelled_share);
  void run(size_t shape);

  std::shared_ptr<const Backbone> backbone_;
  std::vector<ProfiledShape> shapes_;
  std::vector<std::vector<Job>> jobs_;  ///< per shape
  std::map<std::string, std::unique_ptr<Adapter>> adapters_;
  Interpreter interpreter_;
  int64_t step_ = 0;
  std::mt19937_64 random_{1};
  std::map<std::pair<std::string, size_t>, Samples> samples_;
};

}  // namespace cotune
