#include "plan/cost/price_rows.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/error.h"
#include "plan/cost/overlapped_stage.h"
#include "schedule/adapter_shape.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

using JobRows = std::map<int32_t, std::vector<int64_t>>;

class RowPricer {
 public:
  RowPricer(const ReplicaModel& replica, const ReplicaPacking& packing, StagePrices& prices)
      : replica_(replica), packing_(packing), prices_(prices) {
    COTUNE_CHECK(replica.chunks == 1 || replica.sharding.shards == 1, "interleaved stages share no weights");
    priced_.resident.resize(replica.rank_count());
    priced_.largest_kept.assign(replica.rank_count(), 0);
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const StageShape& stage = replica.stages[s];
      const StageMemory own =
          with_sharded_weights(prices.resident(stage), replica.model, stage, replica.sharding, replica.machine);
      StageMemory& resident = priced_.resident[rank_of(s)];
      resident.weights += own.weights;
      resident.adapters += own.adapters;
      resident.workspace = std::max(resident.workspace, own.workspace);
      gathering_s_.push_back(gathering_seconds(replica.model, stage, replica.sharding, replica.machine.element_size(), replica.between_copies));
    }
  }

  PricedRows price(const std::vector<StepRow>& rows) {
    JobRows by_job;
    for (const StepRow& row : rows) {
      by_job[row.job].push_back(row.tokens);
      priced_.tokens += row.tokens;
    }
    priced_.rows = static_cast<int64_t>(rows.size());
    switch (packing_.sharing) {
      case Sharing::separate:
        for (const auto& [job, lengths] : by_job) {
          priced_.hybrid_tasks.push_back({job});
          add_work({pack_task({{job, lengths}})});
        }
        break;
      case Sharing::temporal:
        for (const auto& [job, lengths] : by_job) priced_.hybrid_tasks.push_back({job});
        add_work({plan_step(batches_of(by_job), policy(Sharing::temporal))});
        break;
      case Sharing::batch_all:
        priced_.hybrid_tasks.push_back(jobs_of(by_job));
        add_work({pack_slices(by_job)});
        break;
      case Sharing::hybrid: {
        std::vector<StepPlan> tasks;
        size_t jobs = 0;
        for (const std::vector<int32_t>& task : packing_.hybrid_tasks) {
          JobRows own;
          for (const int32_t job : task) own[job] = by_job.at(job);
          jobs += task.size();
          tasks.push_back(pack_task(own));
        }
        COTUNE_CHECK(jobs == by_job.size(), "hybrid tasks hold {} jobs, {} have rows", jobs, by_job.size());
        priced_.hybrid_tasks = packing_.hybrid_tasks;
        add_work(tasks);
        put_into_clocks(priced_.works.back());
        break;
      }
    }
    priced_.buckets = packing_.sharing == Sharing::hybrid ? packing_.buckets : std::vector<std::vector<int32_t>>();
    if (priced_.buckets.empty()) {
      for (size_t task = 0; task < priced_.hybrid_tasks.size(); ++task) {
        priced_.buckets.push_back({static_cast<int32_t>(task)});
      }
    }
    measure_works();
    return std::move(priced_);
  }

 private:
  size_t rank_of(size_t stage) const { return stage % replica_.rank_count(); }

  void count_workspace(size_t stage, int64_t bytes) {
    int64_t& workspace = priced_.resident[rank_of(stage)].workspace;
    workspace = std::max(workspace, bytes);
  }

  static std::vector<int32_t> jobs_of(const JobRows& rows) {
    std::vector<int32_t> jobs;
    for (const auto& [job, lengths] : rows) jobs.push_back(job);
    return jobs;
  }

  PackingPolicy policy(Sharing sharing) const {
    return {.sharing = sharing,
            .layout = packing_.layout,
            .token_budget = packing_.token_budget,
            .chunk_size = packing_.chunk_size,
            .least_microbatches = sharing == Sharing::hybrid && replica_.stages.size() > 1 ? packing_.least_microbatches : 1};
  }

  static std::vector<BatchShape> batches_of(const JobRows& rows) {
    std::vector<BatchShape> batches;
    for (const auto& [job, lengths] : rows) batches.push_back({.job = job, .row_lengths = lengths});
    return batches;
  }

  StepPlan pack_task(const JobRows& rows) const { return plan_step(batches_of(rows), policy(Sharing::hybrid)); }

  /// Every count-th row of every job, from the first-th on; and where these rows stand in their job.
  static JobRows slice_of(const JobRows& rows, size_t first, size_t count) {
    JobRows slice;
    for (const auto& [job, lengths] : rows) {
      for (size_t i = first; i < lengths.size(); i += count) slice[job].push_back(lengths[i]);
    }
    return slice;
  }

  /// Whether no slice's rows, without pads, are above the token budget.
  bool may_keep_within(const JobRows& rows, size_t count) const {
    for (size_t first = 0; first < count; ++first) {
      int64_t tokens = 0;
      for (const auto& [job, lengths] : rows) {
        for (size_t i = first; i < lengths.size(); i += count) tokens += lengths[i];
      }
      if (tokens > packing_.token_budget) return false;
    }
    return true;
  }

  /// The fewest slices that keep within the token budget.
  StepPlan pack_slices(const JobRows& rows) const {
    if (replica_.stages.size() == 1) return plan_step(batches_of(rows), policy(Sharing::batch_all));
    size_t most = 1;
    int64_t tokens = 0;
    for (const auto& [job, lengths] : rows) {
      most = std::max(most, lengths.size());
      for (const int64_t length : lengths) tokens += length;
    }
    for (auto count = static_cast<size_t>((tokens + packing_.token_budget - 1) / packing_.token_budget);; ++count) {
      count = std::min(count, most);
      if (count < most && !may_keep_within(rows, count)) continue;
      StepPlan sliced{.policy = policy(Sharing::batch_all), .batches = batches_of(rows)};
      bool keeps_within = true;
      for (size_t first = 0; first < count && (keeps_within || count == most); ++first) {
        for (Microbatch& microbatch :
             plan_step(batches_of(slice_of(rows, first, count)), sliced.policy).microbatches) {
          for (Atom& atom : microbatch.atoms) {
            for (Segment& segment : atom.segments)
              segment.row = static_cast<int32_t>(first + count * static_cast<size_t>(segment.row));
          }
          keeps_within = keeps_within && microbatch.token_count() <= packing_.token_budget;
          sliced.microbatches.push_back(std::move(microbatch));
        }
      }
      if (keeps_within || count == most) return sliced;
    }
  }

  /// The tasks' microbatches one after the other, as one work.
  void add_work(const std::vector<StepPlan>& tasks) {
    StepPlan together;
    for (const StepPlan& task : tasks) {
      together.batches.insert(together.batches.end(), task.batches.begin(), task.batches.end());
      together.microbatches.insert(together.microbatches.end(), task.microbatches.begin(),
                                   task.microbatches.end());
    }
    std::vector<StageCost> costs;
    counts_of_.clear();
    jobs_in_.clear();
    workspace_of_.clear();
    counts_of_.reserve(together.microbatches.size());
    for (const Microbatch& microbatch : together.microbatches) price_microbatch(microbatch, costs);
    std::vector<int32_t> lowest;
    for (const BatchShape& batch : together.batches) lowest.push_back(lowest_stage_of(batch.job));
    PipelineWork work =
        work_of(together, interleaved_stages(static_cast<int32_t>(replica_.rank_count()), static_cast<int32_t>(replica_.chunks)), costs,
                lowest, token_bytes(replica_.model.hidden_size, replica_.machine.element_size()), ranks_with_slices(replica_.stages.front()));
    step_together(work);
    priced_.works.push_back(std::move(work));
  }

  /// What follows from all works.
  void measure_works() {
    std::vector<StageSeconds> of_bucket(priced_.buckets.size());
    for (const PipelineWork& work : priced_.works) {
      priced_.microbatches += static_cast<int64_t>(work.microbatches.size());
      for (const PipelineMicrobatch& microbatch : work.microbatches) {
        StageSeconds& own = of_bucket[static_cast<size_t>(microbatch.hybrid_task)];
        const auto lowest = static_cast<size_t>(lowest_stage(work, microbatch));
        for (size_t s = 0; s < microbatch.cost.size(); ++s) {
          own.forward += microbatch.cost[s].forward_s;
          own.backward += s >= lowest ? microbatch.cost[s].backward_s : 0;
        }
      }
      for (const PipelineUnit& unit : units_of(work)) {
        std::vector<int64_t> kept(replica_.rank_count(), 0);
        for (size_t s = 0; s < replica_.stages.size(); ++s) {
          for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
            kept[rank_of(s)] += work.microbatches[static_cast<size_t>(m)].cost[s].kept_bytes;
          }
        }
        for (size_t rank = 0; rank < kept.size(); ++rank) priced_.largest_kept[rank] = std::max(priced_.largest_kept[rank], kept[rank]);
      }
    }
    for (const StageSeconds& each : of_bucket) priced_.backward_ratio.push_back(each.backward / each.forward);
  }

  /// Makes the n-th microbatches of a bucket's tasks one of the pipeline. A chain's stay as they are.
  void put_into_clocks(PipelineWork& work) {
    std::vector<bool> is_joined(work.microbatches.size(), false);
    for (size_t b = 0; b < packing_.buckets.size(); ++b) {
      const std::vector<int32_t>& bucket = packing_.buckets[b];
      if (bucket.size() < 2) continue;
      std::vector<std::vector<size_t>> of_task;
      for (const int32_t task : bucket) {
        std::vector<size_t>& own = of_task.emplace_back();
        for (size_t m = 0; m < work.microbatches.size(); ++m) {
          if (work.microbatches[m].hybrid_task == task && work.microbatches[m].chain < 0) own.push_back(m);
        }
      }
      for (size_t n = 0;; ++n) {
        std::vector<size_t> together;
        for (const std::vector<size_t>& own : of_task) {
          if (n < own.size()) together.push_back(own[n]);
        }
        if (together.size() < 2) break;
        join(work, together);
        for (size_t i = 1; i < together.size(); ++i) is_joined[together[i]] = true;
      }
    }
    name_buckets(work);
    size_t kept = 0;
    for (size_t m = 0; m < work.microbatches.size(); ++m) {
      if (is_joined[m]) continue;
      if (kept != m) work.microbatches[kept] = std::move(work.microbatches[m]);
      ++kept;
    }
    work.microbatches.resize(kept);
  }

  /// All into the first: seconds of their clock, everything else added up.
  void join(PipelineWork& work, const std::vector<size_t>& together) {
    PipelineMicrobatch& first = work.microbatches[together.front()];
    std::vector<ClockMicrobatch> clock;
    for (const size_t m : together) clock.push_back({jobs_in_[m], &counts_of_[m], lowest_stage(work, work.microbatches[m])});
    for (size_t s = 0; s < replica_.stages.size(); ++s) {
      int64_t workspace = 0, kept = 0;
      for (size_t i = 0; i < together.size(); ++i) {
        workspace += workspace_of_[together[i]][s];
        if (clock[i].lowest_stage <= static_cast<int32_t>(s)) kept += work.microbatches[together[i]].cost[s].kept_bytes;
      }
      const StageSeconds seconds = gathered(s, overlapped_seconds(prices_, replica_.stages[s], s, clock));
      first.cost[s] = {seconds.forward, seconds.backward, kept};
      count_workspace(s, workspace);
    }
    for (size_t i = 1; i < together.size(); ++i) {
      const PipelineMicrobatch& other = work.microbatches[together[i]];
      first.jobs.insert(first.jobs.end(), other.jobs.begin(), other.jobs.end());
      first.message_bytes += other.message_bytes;
    }
    std::sort(first.jobs.begin(), first.jobs.end());
  }

  /// To the pipeline a bucket is what a hybrid task is without them.
  void name_buckets(PipelineWork& work) const {
    std::map<int32_t, int32_t> bucket_of;
    for (size_t b = 0; b < packing_.buckets.size(); ++b) {
      for (const int32_t task : packing_.buckets[b]) bucket_of[task] = static_cast<int32_t>(b);
    }
    for (PipelineMicrobatch& microbatch : work.microbatches) {
      const auto found = bucket_of.find(microbatch.hybrid_task);
      if (found != bucket_of.end()) microbatch.hybrid_task = found->second;
    }
  }

  StageSeconds gathered(size_t s, const StageSeconds& seconds) const {
    return with_gathered_weights(seconds, gathering_s_[s], replica_.sharding);
  }

  /// Makes the jobs of a hybrid task one job of the pipeline.
  void step_together(PipelineWork& work) const {
    std::map<int32_t, PipelineJob> tasks;
    for (PipelineMicrobatch& microbatch : work.microbatches) {
      const int32_t task = task_of(microbatch.jobs.front().job);
      PipelineJob& together =
          tasks.try_emplace(task, PipelineJob{task, work.stage_count() - 1, 0}).first->second;
      together.lowest_stage = std::min(together.lowest_stage, lowest_stage(work, microbatch));
      microbatch.hybrid_task = task;
      microbatch.jobs = {{task, 0}};
    }
    work.jobs.clear();
    for (auto& [task, together] : tasks) {
      for (const int32_t job : priced_.hybrid_tasks[static_cast<size_t>(task)])
        together.optimizer_s += optimizer_seconds(job);
      work.jobs.push_back(together);
    }
  }

  int32_t task_of(int32_t job) const {
    const auto& tasks = priced_.hybrid_tasks;
    const auto found = std::find_if(tasks.begin(), tasks.end(), [job](const auto& task) {
      return std::count(task.begin(), task.end(), job) > 0;
    });
    return static_cast<int32_t>(found - tasks.begin());
  }

  void price_microbatch(const Microbatch& microbatch, std::vector<StageCost>& costs) {
    int64_t labelled = 0;
    std::vector<int32_t> jobs;
    for (const Atom& atom : microbatch.atoms) {
      jobs.push_back(atom.job);
      for (const Segment& segment : atom.segments) labelled += segment.length;
    }
    MicrobatchCounts counts = count_microbatch(microbatch, labelled);
    counts.job_tokens.resize(replica_.jobs.size(), 0);
    counts.job_atoms.resize(replica_.jobs.size(), 0);
    priced_.processed_tokens += counts.tokens;
    std::sort(jobs.begin(), jobs.end());
    jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
    const size_t jobs_number = prices_.jobs_number(jobs);
    const bool hides = packing_.sharing == Sharing::hybrid && has_clocks(replica_.stages.front());
    std::vector<int64_t>& workspace = workspace_of_.emplace_back();
    int64_t of_chains = 0;
    for (const RowPart& part : row_parts(microbatch)) {
      if (part.length < part.row_length) of_chains += part.length + part.pad;
    }
    std::map<const PricedStage*, size_t> known;  // stages that cost the same are priced once
    const size_t first_cost = costs.size();
    for (size_t s = 0; s < replica_.stages.size(); ++s) {
      const PricedStage& stage = prices_.at(replica_.stages[s], jobs_number);
      const auto [found, is_new] = known.try_emplace(&stage, s);
      if (is_new) {
        const PricedClockTask alone{&stage, &counts};
        const StageSeconds seconds = gathered(s, hides ? overlapped_seconds(std::span(&alone, 1)) : stage.seconds(counts));
        const int64_t chains = chain_bytes(replica_.model, replica_.stages[s], of_chains, replica_.machine.element_size());
        costs.push_back({seconds.forward, seconds.backward, stage.kept_bytes(counts) + chains});
        workspace.push_back(stage.workspace_bytes(counts));
      } else {
        costs.push_back(costs[first_cost + found->second]);
        workspace.push_back(workspace[found->second]);
      }
      count_workspace(s, workspace.back());
    }
    counts_of_.push_back(std::move(counts));
    jobs_in_.push_back(jobs_number);
  }

  int32_t lowest_stage_of(int32_t job) const {
    int64_t lowest = replica_.model.layer_count;
    for (const AdapterShape& each : replica_.jobs[static_cast<size_t>(job)].adapters)
      lowest = std::min(lowest, each.layer);
    int32_t stage = 0;
    while (stage + 1 < static_cast<int32_t>(replica_.stages.size()) &&
           replica_.stages[static_cast<size_t>(stage)].last_layer <= lowest) {
      ++stage;
    }
    return stage;
  }

  /// On the stage with most of the job's parameters.
  double optimizer_seconds(int32_t job) const {
    const JobShape& shape = replica_.jobs[static_cast<size_t>(job)];
    const StageMachine& machine = replica_.machine;
    double most = 0;
    for (const StageShape& stage : replica_.stages) {
      int64_t parameters = 0, summands = 0;
      for (const AdapterShape& each : shape.adapters) {
        if (each.layer < stage.first_layer || each.layer >= stage.last_layer) continue;
        parameters += parameter_count(replica_.model, each);
        summands += summand_count(replica_.model, stage, each);
      }
      const double sums_s = summands > 0 ? sum_seconds(summands, stage.tensor_parallel, machine) : 0;
      most = std::max(most, sums_s + cotune::optimizer_seconds(parameters, shape.moment_count, machine.device));
    }
    return most;
  }

  const ReplicaModel& replica_;
  const ReplicaPacking& packing_;
  StagePrices& prices_;
  PricedRows priced_;
  std::vector<double> gathering_s_;  ///< of a pass, by stage
  // Of the work under way, per microbatch:
  std::vector<MicrobatchCounts> counts_of_;
  std::vector<size_t> jobs_in_;
  std::vector<std::vector<int64_t>> workspace_of_;  ///< by stage
};

}  // namespace

PricedRows price_rows(const ReplicaModel& replica, const std::vector<StepRow>& rows,
                      const ReplicaPacking& packing, StagePrices* prices) {
  if (prices != nullptr) return RowPricer(replica, packing, *prices).price(rows);
  StagePrices own(replica.model, replica.jobs, replica.machine);
  return RowPricer(replica, packing, own).price(rows);
}

}  // namespace cotune
