/// What planning had taken when the first rounds of a run had run.
#pragma once

#include <optional>

#include "train/run_observer.h"

namespace cotune::testing {

class FirstUsage : public RunObserver {
 public:
  void on_usage(const UsageEvent& event) override {
    if (!first) first = event;
  }
  std::optional<UsageEvent> first;
};

}  // namespace cotune::testing
