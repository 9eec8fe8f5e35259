/// LobRA's ablation (§5.3, Fig. 8; LB-26) and the number of buckets (Fig. 12; LB-35): Llama-2-7B on sixteen devices by the
/// rates of Table 3, over the distributions of length_distributions.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "distributions.h"
#include "plan/cost/published_rates.h"
#include "plan/deployment/replica_counts.h"
#include "plan/deployment/system_deployments.h"
#include "rows.h"

namespace cotune {
namespace {

constexpr int64_t devices = 16;
constexpr uint64_t steps = 20, seeds = 5;

/// The first of the steps that are compared with a seed.
uint64_t first_step(uint64_t seed) { return 1000 + 10'000 * seed; }

/// Ragged: rows are not padded; a bucket's rows cost what rows of their mean length do.
struct RaggedBuckets {
  explicit RaggedBuckets(const Counts& lengths, std::span<const Configuration> configurations) {
    const LengthBuckets fine = bucket_lengths(lengths, {.buckets = 64});
    std::vector<double> tokens(fine.tokens.size(), 0);
    for (const int64_t length : lengths) {
      tokens[static_cast<size_t>(std::lower_bound(fine.tokens.begin(), fine.tokens.end(), length) - fine.tokens.begin())] +=
          static_cast<double>(length);
    }
    sequences = fine.sequences;
    for (const Configuration& each : configurations) {
      BucketCosts& cost = costs.emplace_back(BucketCosts{.devices = each.devices()});
      for (size_t j = 0; j < fine.tokens.size() && fine.tokens[j] <= each.chunk_tokens; ++j) {
        const double mean = tokens[j] / static_cast<double>(std::max<int64_t>(1, sequences[j]));
        const double rate = each.rate(std::max<int64_t>(1, std::llround(mean)));
        cost.seconds.push_back(mean / (static_cast<double>(each.devices()) * rate));
      }
    }
  }
  std::vector<BucketCosts> costs;
  Counts sequences;
};

/// Every plan of sixteen devices, with its seconds over sampled steps or what they are at least.
std::vector<std::pair<double, Counts>> all_plans(const LengthDistribution& distribution, std::span<const Configuration> configurations, const std::vector<uint64_t>& first_steps,
                                                 const std::function<double(const RaggedBuckets&, const Counts&)>& seconds) {
  std::vector<int64_t> sizes;
  for (const Configuration& each : configurations) sizes.push_back(each.devices());
  std::vector<std::pair<double, Counts>> plans;
  for_each_plan(sizes, devices, [&](std::span<const int64_t> plan) {
    plans.push_back({0, Counts(plan.begin(), plan.end())});
    return true;
  });
  for (const uint64_t first : first_steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      const RaggedBuckets rows(draw(distribution.tasks, first + step, 1), configurations);
      for (auto& [sum, plan] : plans) sum += seconds(rows, plan);
    }
  }
  std::sort(plans.begin(), plans.end());
  return plans;
}

/// The plan that twenty sampled steps end soonest with: the average step has no tail.
Counts best_ragged_plan(const LengthDistribution& distribution, std::span<const Configuration> configurations) {
  const auto plans = all_plans(distribution, configurations, {500}, [](const RaggedBuckets& rows, const Counts& plan) {
    const RowDispatch dispatch = dispatch_rows(rows.costs, plan, rows.sequences);
    return dispatch.empty() ? 1e9 : dispatch.makespan;
  });
  return plans.front().second;
}

/// What the steps of the comparison take at least on the plan that is best for them: the replicas of a configuration are
/// taken as one that is as many times as fast, which no dealing of rows to single ones beats.
double least_ragged_seconds(const LengthDistribution& distribution, std::span<const Configuration> configurations) {
  std::vector<uint64_t> compared;
  for (uint64_t seed = 0; seed < seeds; ++seed) compared.push_back(first_step(seed));
  const auto plans = all_plans(distribution, configurations, compared, [](const RaggedBuckets& rows, const Counts& plan) {
    std::vector<BucketCosts> costs = rows.costs;
    Counts one(plan.size(), 0);
    size_t reach = 0;
    double all = 0;
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i] == 0) continue;
      one[i] = 1;
      reach = std::max(reach, costs[i].reach());
      for (double& each : costs[i].seconds) each /= static_cast<double>(plan[i]);
      costs[i].devices *= plan[i];
    }
    for (size_t j = reach; j < rows.sequences.size(); ++j) all += static_cast<double>(rows.sequences[j]);
    return all > 0 ? 1e9 : dispatch_lower_bound(costs, one, rows.sequences, 400, 1e9);
  });
  return plans.front().first;
}

double percent(double value, double of) { return 100 * (value / of - 1); }

constexpr size_t systems = 4;  // Task-Fused; unlike replicas, dispatched greedily; + balanced; + buckets of the step
using SystemSeconds = std::array<double, systems>;

/// The boundaries that all but the last system pad to: those that are best for a sample (0), or so many tokens apart.
constexpr std::array<int64_t, 4> spacings = {0, 1024, 512, 256};

/// The systems with one kind of fixed boundaries, their seconds by seed.
struct Ablation {
  std::array<SystemSeconds, seeds> by_seed{};

  SystemSeconds sum() const {
    SystemSeconds sum{};
    for (const SystemSeconds& each : by_seed) {
      for (size_t k = 0; k < systems; ++k) sum[k] += each[k];
    }
    return sum;
  }

  /// Of all steps, the least and the most of a seed, and with how many seeds a system is strictly better than the one before.
  std::string text() const {
    std::vector<std::string> parts;
    for (size_t k = 1; k < systems; ++k) {
      double least = 1e9, most = -1e9;
      uint64_t better = 0;
      for (const SystemSeconds& each : by_seed) {
        least = std::min(least, percent(each[k], each[0]));
        most = std::max(most, percent(each[k], each[0]));
        better += each[k] < each[k - 1] * (1 - 1e-9) ? 1 : 0;
      }
      const SystemSeconds all = sum();
      parts.push_back(fmt::format("{:+.1f} ({:+.1f} to {:+.1f}) %, better with {} of {}{}", percent(all[k], all[0]), least, most, better, seeds, missed_unless(better == seeds)));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }
};

/// Of the three steps against Task-Fused, in percent, over the distributions.
struct Bands {
  std::array<double, systems> least{}, most{};
  bool is_first = true;

  void add(const SystemSeconds& seconds) {
    for (size_t k = 1; k < systems; ++k) {
      const double change = percent(seconds[k], seconds[0]);
      least[k] = is_first ? change : std::min(least[k], change);
      most[k] = is_first ? change : std::max(most[k], change);
    }
    is_first = false;
  }
  std::string text() const {
    constexpr double published[] = {0, -18.94, -36.65, -45.03};
    std::vector<std::string> parts;
    for (size_t k = 1; k < systems; ++k) {
      parts.push_back(fmt::format("{:+.1f} to {:+.1f} %{}", least[k], most[k], missed_unless(least[k] <= published[k] && published[k] <= most[k])));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }
};

void ablation(const LengthDistribution& distribution, std::array<Bands, spacings.size()>& bands) {
  const std::vector<Configuration> all = published_7b_configurations();
  const std::vector<Configuration> configurations = propose_configurations(all, table_lengths);
  const Counts sample = draw(distribution.tasks, 77, 100);
  const LengthBuckets expected = expected_of(sample);
  const StepWork work{bucket_costs(configurations, expected.tokens), expected.sequences};
  const Counts fused = deploy_alike(work, devices).replicas;
  const StepWork average{work.costs, average_step(bucket_lengths(sample).sequences, 100)};
  const Counts own = deploy_unlike(average, devices).replicas;
  const Counts theirs = distribution.is_fitted ? replicas_of(configurations, {{"<1,1>", 6}, {"<2,1>", 1}, {"<8,1>", 1}}) : own;
  // Of ragged rows: the plan for them, and the like replicas that are best for them.
  const RaggedBuckets ragged_sample(sample, configurations);
  StepWork ragged_work{ragged_sample.costs, ragged_sample.sequences};
  ragged_work.sequences = average_step(ragged_work.sequences, 100);
  const Counts ragged_plan = best_ragged_plan(distribution, configurations);
  const Counts ragged_fused = deploy_alike(ragged_work, devices).replicas;

  std::array<Ablation, spacings.size()> with;
  double own_seconds = 0, ragged = 0, ragged_alike = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    for (uint64_t step = 0; step < steps; ++step) {
      const Counts lengths = draw(distribution.tasks, first_step(seed) + step, 1);
      const LengthBuckets best = bucket_lengths(lengths);
      const auto best_costs = bucket_costs(configurations, best.tokens);
      const auto run = [&](const Counts& boundaries, SystemSeconds& seconds) {
        const LengthBuckets fixed = sort_into_buckets(lengths, boundaries);
        const auto costs = bucket_costs(configurations, fixed.tokens);
        seconds[0] += dispatch_balanced(costs, fused, fixed.sequences).makespan;
        seconds[1] += dispatch_greedily(costs, theirs, fixed.sequences).makespan;
        seconds[2] += dispatch_balanced(costs, theirs, fixed.sequences).makespan;
        seconds[3] += dispatch_balanced(best_costs, theirs, best.sequences).makespan;
      };
      for (size_t k = 0; k < spacings.size(); ++k) {
        Counts boundaries;
        for (int64_t tokens = spacings[k]; tokens > 0 && tokens <= table_lengths.back(); tokens += spacings[k]) boundaries.push_back(tokens);
        if (boundaries.empty()) {
          boundaries = expected.tokens;
          boundaries.back() = std::max(boundaries.back(), *std::max_element(lengths.begin(), lengths.end()));
        }
        run(boundaries, with[k].by_seed[seed]);
      }
      own_seconds += dispatch_balanced(best_costs, own, best.sequences).makespan;
      const RaggedBuckets rows(lengths, configurations);
      ragged += dispatch_rows(rows.costs, ragged_plan, rows.sequences).makespan;
      ragged_alike += dispatch_rows(rows.costs, ragged_fused, rows.sequences).makespan;
    }
  }
  const double fused_by_sample = with[0].sum()[0], fused_by_even = with[1].sum()[0];
  for (size_t k = 0; k < spacings.size(); ++k) bands[k].add(with[k].sum());
  const char* whose = distribution.is_fitted ? "published plan" : "our plan";
  print_row(fmt::format("7B ablation, {} lengths, padded, {}: unlike replicas, + balance, + buckets, against Task-Fused {}",
                        distribution.name, whose, plan_text(configurations, fused)),
            "−18.94, −36.65, −45.03 %", "the band below; each strictly better than the last with five seeds",
            fmt::format("fixed boundaries of a sample: {}. Equally far apart, 1,024 tokens: {}", with[0].text(), with[1].text()));
  print_row("the same, fixed boundaries 512 and 256 tokens apart", "–", "shown", fmt::format("512: {}. 256: {}", with[2].text(), with[3].text()));
  print_row(fmt::format("the same, our plan {}, + buckets", plan_text(configurations, own)), "–", "–",
            fmt::format("{:+.1f} %", percent(own_seconds, fused_by_sample)));
  print_row(fmt::format("the same, ragged, our plan {}: against padded, against ragged Task-Fused {}",
                        plan_text(configurations, ragged_plan), plan_text(configurations, ragged_fused)),
            "–", "at least −45 % against padded; the other shown",
            fmt::format("{:+.1f} %{} with a sample's boundaries (no plan of these configurations and no dispatch: below {:+.1f} %), {:+.1f} % with equal "
                        "ones; {:+.1f} % against ragged",
                        percent(ragged, fused_by_sample), missed_unless(percent(ragged, fused_by_sample) <= -45),
                        percent(least_ragged_seconds(distribution, configurations), fused_by_sample), percent(ragged, fused_by_even),
                        percent(ragged, ragged_alike)));
}

/// LB-35. Seconds over those of sixteen buckets, LobRA's default.
void bucket_counts(const LengthDistribution& distribution) {
  const std::vector<Configuration> configurations = propose_configurations(published_7b_configurations(), table_lengths);
  const Counts plan = replicas_of(configurations, {{"<1,1>", 6}, {"<2,1>", 1}, {"<8,1>", 1}});
  std::map<int64_t, double> seconds, padding;
  for (int64_t buckets = 4; buckets <= 32; buckets += 4) {
    for (uint64_t step = 0; step < steps; ++step) {
      const LengthBuckets best = bucket_lengths(draw(distribution.tasks, first_step(0) + step, 1), {.buckets = buckets});
      seconds[buckets] += dispatch_balanced(bucket_costs(configurations, best.tokens), plan, best.sequences).makespan;
      padding[buckets] += static_cast<double>(best.padding);
    }
  }
  std::string padding_text, seconds_text;
  double last = padding.at(4), furthest = 0;
  bool is_falling = true;
  for (const auto& [buckets, time] : seconds) {
    padding_text += fmt::format(" {:.2f}", padding.at(buckets) / padding.at(4));
    seconds_text += fmt::format(" {:.2f}", time / seconds.at(4));
    is_falling = is_falling && padding.at(buckets) <= last;
    last = padding.at(buckets);
    const double change = percent(time, seconds.at(16));
    if (buckets >= 12 && std::abs(change) > std::abs(furthest)) furthest = change;
  }
  print_row(fmt::format("7B, {} lengths, 4, 8, … 32 buckets (LB-35), over 4 buckets", distribution.name), "padding falls, time stable from 12 on",
            "monotone; from 12 on within 5 % of the time with 16",
            fmt::format("padding{}{}; time{}; from 12 on at most {:+.1f} % from that with 16{}", padding_text, missed_unless(is_falling), seconds_text, furthest,
                        missed_unless(std::abs(furthest) <= 5)));
}

}  // namespace

void ablation_rows() {
  std::array<Bands, spacings.size()> bands;
  for (const LengthDistribution& distribution : read_distributions()) ablation(distribution, bands);
  print_row("7B ablation, padded, over all distributions: the published figures inside the band of unlike replicas, + balance, + buckets",
            "−18.94, −36.65, −45.03 %", "inside the band of the distributions",
            fmt::format("fixed boundaries of a sample: {}; 1,024 tokens apart: {}; 512: {}; 256: {}", bands[0].text(), bands[1].text(), bands[2].text(), bands[3].text()));
  for (const LengthDistribution& distribution : read_distributions()) {
    if (distribution.is_fitted) bucket_counts(distribution);
  }
}

}  // namespace cotune
