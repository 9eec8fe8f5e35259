#include "schedule/pipeline/exchange_times.h"

#include <algorithm>
#include <span>

namespace cotune {

ExchangeMessages exchange_messages(std::span<const GradientSlice> slices, std::vector<int32_t> ranks) {
  ExchangeMessages messages{.ranks = std::move(ranks), .given = {}, .returned = {}};
  for (const GradientSlice& slice : slices) {
    for (const std::vector<int32_t>& holders : slice.holders) {
      if (holders.front() != slice.owner) messages.given[{holders.front(), slice.owner}] += slice.values;
      for (const int32_t holder : holders) {
        if (holder != slice.owner) messages.returned[{slice.owner, holder}] += slice.values;
      }
    }
  }
  return messages;
}

ExchangeTimes::ExchangeTimes(const ExchangeCosts& costs, std::span<const JobStep> order) : costs_(costs) {
  for (const JobStep& step : order) {
    const auto messages = costs.messages.find(step.job);
    if (messages == costs.messages.end()) continue;
    place_[step] = exchanges_.size();
    exchanges_.push_back({step, &messages->second, {}});
  }
  for (size_t exchange = exchanges_.size(); exchange-- > 0;) {
    for (const int32_t rank : exchanges_[exchange].messages->ranks) of_rank_[rank].push_back(exchange);
  }
}

std::vector<ExchangeTimes::End> ExchangeTimes::post(const JobStep& step, int32_t rank, double at_s) {
  std::vector<End> ends;
  const auto found = place_.find(step);
  if (found == place_.end() || !std::ranges::binary_search(exchanges_[found->second].messages->ranks, rank)) return ends;
  exchanges_[found->second].posted_s[rank] = at_s;
  std::vector<size_t> candidates{found->second};
  while (!candidates.empty()) {
    const size_t next = candidates.back();
    candidates.pop_back();
    if (!may_begin(next)) continue;
    run(next, ends);
    for (const int32_t own : exchanges_[next].messages->ranks) {
      if (!of_rank_[own].empty()) candidates.push_back(of_rank_[own].back());
    }
  }
  return ends;
}

bool ExchangeTimes::may_begin(size_t exchange) const {
  const Exchange& own = exchanges_[exchange];
  return own.posted_s.size() == own.messages->ranks.size() &&
         std::ranges::all_of(own.messages->ranks, [&](int32_t rank) {
           const std::vector<size_t>& to_come = of_rank_.at(rank);
           return !to_come.empty() && to_come.back() == exchange;
         });
}

double ExchangeTimes::there_s(int32_t from, double from_s, int64_t bytes) {
  double& free_s = link_free_s_[from];
  free_s = std::max(free_s, from_s) + static_cast<double>(bytes) / costs_.link.bytes_per_s;
  return free_s + costs_.link.latency_s;
}

void ExchangeTimes::send(const ExchangeMessages::Values& values, const std::map<int32_t, double>& from_s,
                         std::map<int32_t, double>& arrived) {
  for (const auto& [ranks, count] : values) {
    const auto [from, to] = ranks;
    double& at_s = arrived.at(to);
    at_s = std::max(at_s, there_s(from, from_s.at(from), count * costs_.value_bytes));
  }
}

void ExchangeTimes::run(size_t exchange, std::vector<End>& ends) {
  const Exchange& own = exchanges_[exchange];
  std::map<int32_t, double> begin_s;
  for (const auto& [rank, posted_s] : own.posted_s) {
    begin_s[rank] = std::max(posted_s, free_s_[rank]);
    of_rank_.at(rank).pop_back();
  }
  std::map<int32_t, double> has_summands = begin_s;
  send(own.messages->given, begin_s, has_summands);
  std::map<int32_t, double> has_sums = has_summands;
  send(own.messages->returned, has_summands, has_sums);
  const int32_t first = own.messages->ranks.front();
  double has_records = has_sums.at(first);
  for (const int32_t rank : std::span(own.messages->ranks).subspan(1)) {
    has_records = std::max(has_records, there_s(rank, has_sums.at(rank), norm_message_bytes));
  }
  for (const int32_t rank : own.messages->ranks) {
    const double end_s = rank == first ? has_records : there_s(first, has_records, norm_message_bytes);
    free_s_[rank] = end_s;
    ends.push_back({own.step, rank, begin_s.at(rank), end_s});
  }
}

}  // namespace cotune
