#include "cli/run/rank_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/counted.h"
#include "jobs/enum_names.h"
#include "jobs/parallel.h"
#include "model/config/tensor_shard.h"

namespace cotune {

namespace {

void check_interleaving(const RunSpec& run, const std::map<std::string, OptionPlace>& places, Diagnostics& mistakes) {
  const auto found = places.find("run.interleave");
  if (run.interleave != Interleave::always || found == places.end()) return;
  if (run.recompute == Recompute::always) {
    mistakes.add(found->second.file, found->second.line, found->second.field,
                 "is always, but run.recompute is always, and rounds that recompute activations wait for every all-reduce; accepted are auto and "
                 "never");
  }
  if (parallel_of(run).is_sequence_parallel()) {
    mistakes.add(found->second.file, found->second.line, found->second.field,
                 fmt::format("is always, but run.parallel is {}, and ranks with seq wait for every collective; accepted are auto and never",
                             run.parallel));
  }
}

}  // namespace

void check_ranks(const RunSpec& run, const std::map<std::string, OptionPlace>& places, const ModelConfig& config,
                 const LaunchedRanks& launched, const std::string& plan, Diagnostics& mistakes) {
  check_interleaving(run, places, mistakes);
  const auto found = places.find(names_degrees(run) ? "run.parallel" : "run.ranks");
  if (found == places.end() && plan.empty()) return;
  const OptionPlace place = found != places.end() ? found->second : OptionPlace{.file = plan, .field = "replicas"};
  const auto add = [&](const std::string& message) { mistakes.add(place.file, place.line, place.field, message); };
  const Parallel parallel = parallel_of(run);
  const std::string given = names_degrees(run) ? run.parallel : std::to_string(run.ranks);
  if (launched.count > 0 && run.ranks != launched.count && found == places.end()) {
    add(fmt::format("are of {}, but {} processes were launched, each of which is one", counted(run.ranks, "device"), launched.count));
  } else if (launched.count > 0 && run.ranks != launched.count) {
    add(fmt::format("is {}, but {} processes were launched: each is one rank, and this is better left out", given, launched.count));
  }
  if (run.parallel != parallel_as_planned && parallel.stages() > config.layer_count) {
    add(fmt::format("is {}, but the model has {}: at most one {} for each", given, counted(config.layer_count, "layer"),
                    names_degrees(run) ? "stage" : "rank"));
  }
  const auto has_several = [](const ReplicaDegrees& each) { return each.stages_per_rank > 1; };
  const bool orders_several =
      run.pipeline_order == RankOrder::automatic || run.pipeline_order == RankOrder::split || run.pipeline_order == RankOrder::gpipe;
  if (!orders_several && std::ranges::any_of(parallel.replicas, has_several)) {
    add(fmt::format("is {}, but run.pipeline_order {} wants one stage a rank; accepted with several are auto, split (interleaved 1F1B) and gpipe",
                    given, name_of(run.pipeline_order)));
  }
  if (launched.count > 0 && !launched.on_cpu && parallel.shards_weights()) {
    add(fmt::format("is {}, but shard is for processes that compute on the CPU: slices would go from device to device through the host", given));
  }
  if (!std::ranges::all_of(parallel.tensor(), [&](int64_t degree) { return can_be_sharded(config, degree); })) {
    add(fmt::format("is {}, but the model has {}, {} and {} inner features; accepted are tp {}: they divide heads "
                    "and inner features, and divide the kv heads or are a multiple of them",
                    given, counted(config.head_count, "head"), counted(config.kv_head_count, "kv head"), config.intermediate_size,
                    fmt::join(shard_counts(config), ", ")));
  }
}

}  // namespace cotune
