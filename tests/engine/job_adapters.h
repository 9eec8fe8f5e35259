/// The adapters of random jobs, made anew, as gradients_of takes them.
#pragma once

#include <memory>
#include <vector>

#include "engine/random_job.h"

namespace cotune::testing {

/// In the order of the jobs, which it points to.
struct JobAdapters {
  JobAdapters(const std::vector<RandomJob>& of, const Backbone& backbone) {
    for (const RandomJob& job : of) {
      jobs.push_back(&job);
      owned.push_back(job.make_adapter(backbone.config(), backbone.compute()));
      pointers.push_back(owned.back().get());
    }
  }

  std::vector<const RandomJob*> jobs;
  std::vector<std::unique_ptr<Adapter>> owned;
  std::vector<Adapter*> pointers;
};

}  // namespace cotune::testing
