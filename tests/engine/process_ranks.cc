#include "engine/process_ranks.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "comm/gpu_messages.h"
#include "engine/rank_follower.h"
#include "schedule/pipeline/rank_place.h"

namespace cotune::testing {
namespace {

/// The calling thread computes by itself, and not with others that would wait for cores of other ranks.
void compute_alone() {
  at::get_num_threads();  // which sets the calling thread's count to that of the process, the first time
  omp_set_num_threads(1);
}

}  // namespace

RankLinks ThreadGroups::links(int32_t rank) {
  const auto new_group = [this, rank](const std::vector<int32_t>& ranks) {
    if (refused == rank) throw SystemError("too many open files");
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Communicator>>& group = groups_[{asked_[static_cast<size_t>(rank)]++, ranks}];
    if (group.empty()) group = thread_communicators(static_cast<int32_t>(ranks.size()));
    return std::move(group[static_cast<size_t>(std::ranges::find(ranks, rank) - ranks.begin())]);
  };
  RankLinks links(new_group, size_);
  if (!device_.is_cpu()) links.new_group = between_devices(new_group, device_);
  links.progress = std::make_shared<RankProgress>();  // as it is told where ranks are watched
  return links;
}

std::shared_ptr<Backbone> backbone_of_rank(const ModelConfig& config, std::span<const PipelineLayout> layouts, int32_t rank,
                                           at::ScalarType compute, at::Device device) {
  return Backbone::load(random_model(config, 5), compute, device, backbone_use_of(layouts, rank));
}

Processes::Processes(const ModelConfig& config, const std::vector<PipelineLayout>& layouts, std::function<void(int32_t rank)> before_work,
                     at::ScalarType compute, const ComputeDevice& device)
    : threads_before_(omp_get_max_threads()), groups_(rank_count_of(layouts), device), ended_(static_cast<size_t>(rank_count_of(layouts))) {
  for (int32_t rank = 1; rank < rank_count_of(layouts); ++rank) {
    threads_.emplace_back([=, this] {
      compute_alone();
      const std::shared_ptr<Backbone> backbone = backbone_of_rank(config, layouts, rank, compute, device.device);
      RankFollower follower(backbone, layouts, groups_.links(rank));
      follower.change_weights = [&](const BackboneUse& use) { backbone->use_for(random_model(config, 5), use); };
      if (before_work) follower.before_work = [=] { before_work(rank); };
      try {
        follower.serve();
      } catch (const std::exception& error) {
        ended_[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  compute_alone();
  const std::shared_ptr<Backbone> backbone = backbone_of_rank(config, layouts, 0, compute, device.device);
  leader_ = std::make_unique<RankLeader>(backbone, layouts, groups_.links(0));
  leader_->change_weights = [=](const BackboneUse& use) { backbone->use_for(random_model(config, 5), use); };
}

Processes::~Processes() {
  end();
  omp_set_num_threads(threads_before_);
}

LifeEvents Processes::events() {
  return {.begins = [this](JobLife& life, int32_t job) { leader_->share(job, life.adapter()); },
          .selected = [this](JobLife& life, int32_t job, int64_t pass) { leader_->end_selection(job, life.adapter(), pass); },
          .ends =
              [this](JobLife& life, int32_t job) {
                leader_->gather(job, life.adapter());
                leader_->forget(job);
              }};
}

const std::vector<std::string>& Processes::end() {
  leader_.reset();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  return ended_;
}

}  // namespace cotune::testing
