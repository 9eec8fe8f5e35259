/// How long replicas take to exchange a job's gradients (engine/gradient_exchange.h), without a model.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "schedule/gradient_slices.h"
#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// What ranks send each other in one exchange of a job's gradients.
struct ExchangeMessages {
  using Values = std::map<std::pair<int32_t, int32_t>, int64_t>;  ///< by (from, to)
  std::vector<int32_t> ranks;  ///< that take part, ascending; the first adds up what is known of the step
  Values given;                ///< summands, to the owners of their slices
  Values returned;             ///< sums, to all that hold them
  bool operator==(const ExchangeMessages&) const = default;
};

ExchangeMessages exchange_messages(std::span<const GradientSlice> slices, std::vector<int32_t> ranks);

struct ExchangeCosts {
  std::map<int32_t, ExchangeMessages> messages;  ///< by job; of jobs that are not here nothing is exchanged
  int64_t value_bytes = 4;
  Link link;  ///< over which a rank's messages to others leave one after another
};

/// When exchanges end on each rank, from when the ranks post what they have. Beside their computation ranks exchange in one order; each
/// begins an exchange when it has posted its gradients and is through with the exchange before, and
///   sends its summands to the owners of slices, by ascending rank;
///   sends back the sums of slices that it owns when it has all their summands;
///   sends a record of norm_message_bytes to the first rank when it has the sums, which answers with the whole one when it has all.
/// It has the step when that is there; the first rank, when it has all records. Adding takes no time.
class ExchangeTimes {
 public:
  /// order: of all exchanges. costs must outlive this.
  ExchangeTimes(const ExchangeCosts& costs, std::span<const JobStep> order);

  bool has(const JobStep& step) const { return place_.contains(step); }

  /// Of the exchange on a rank, and when it began it.
  struct End {
    JobStep step;
    int32_t rank = 0;
    double begin_s = 0, at_s = 0;
  };
  /// A rank's gradients are complete, at a moment that is not before earlier calls'. Returns what is known by that: all ends of a
  /// step at once, none of them earlier. Ranks that take no part are passed over.
  std::vector<End> post(const JobStep& step, int32_t rank, double at_s);

 private:
  struct Exchange {
    JobStep step;
    const ExchangeMessages* messages = nullptr;
    std::map<int32_t, double> posted_s;  ///< by rank
  };
  bool may_begin(size_t exchange) const;
  void run(size_t exchange, std::vector<End>& ends);
  /// When the values are there that leave from these moments on, by rank: the later of that and `arrived`.
  void send(const ExchangeMessages::Values& values, const std::map<int32_t, double>& from_s, std::map<int32_t, double>& arrived);
  double there_s(int32_t from, double from_s, int64_t bytes);

  const ExchangeCosts& costs_;
  std::vector<Exchange> exchanges_;
  std::map<JobStep, size_t> place_;
  std::map<int32_t, std::vector<size_t>> of_rank_;  ///< those to come, the next one last
  std::map<int32_t, double> free_s_;                ///< when a rank is through with its exchanges so far
  std::map<int32_t, double> link_free_s_;
};

}  // namespace cotune
