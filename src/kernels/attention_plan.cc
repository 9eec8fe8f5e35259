#include "kernels/attention_plan.h"

#include <algorithm>
#include <queue>

namespace cotune::kernels {
namespace {

constexpr int64_t blocks_per_key_block = attention_key_block / attention_query_block;
constexpr int64_t smallest_cut = 24;  // pairs of blocks: below this, packing keys again costs more than it frees

int64_t key_blocks_seen(int64_t query_block) { return query_block / blocks_per_key_block + 1; }

int64_t cost_of_queries(BlockRange range) {
  int64_t cost = 0;
  for (int64_t b = range.begin; b < range.end; ++b) cost += key_blocks_seen(b);
  return cost;
}

/// Query blocks of `all` that see key block b.
int64_t queries_that_see(BlockRange all, int64_t key_block) {
  return std::max<int64_t>(0, all.end - std::max(all.begin, key_block * blocks_per_key_block));
}

/// Cuts a range into runs whose cost reaches `grain`; cost(block) ≥ 0.
template <typename Cost>
std::vector<std::pair<BlockRange, int64_t>> cut(BlockRange all, int64_t grain, Cost cost) {
  std::vector<std::pair<BlockRange, int64_t>> runs;
  int64_t begin = all.begin, sum = 0;
  for (int64_t b = all.begin; b < all.end; ++b) {
    sum += cost(b);
    if (sum >= grain || b + 1 == all.end) {
      runs.push_back({{begin, b + 1}, sum});
      begin = b + 1;
      sum = 0;
    }
  }
  return runs;
}

void sort_longest_first(std::vector<AttentionTask>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const AttentionTask& a, const AttentionTask& b) { return a.cost > b.cost; });
}

/// The time of tasks given longest first to whichever thread is free.
int64_t makespan(const std::vector<AttentionTask>& tasks, size_t first, int64_t thread_count) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free_at;
  for (int64_t t = 0; t < thread_count; ++t) free_at.push(0);
  int64_t last = 0;
  for (size_t i = first; i < tasks.size(); ++i) {
    const int64_t end = free_at.top() + tasks[i].cost;
    free_at.pop();
    free_at.push(end);
    last = std::max(last, end);
  }
  return last;
}

void append_cut_backward(const AttentionTask& whole, int64_t grain, std::vector<AttentionTask>& tasks) {
  for (const auto& [range, cost] : cut(whole.query_blocks, grain, key_blocks_seen)) {
    AttentionTask task = whole;
    task.query_blocks = range;
    task.key_blocks = {0, key_blocks_seen(range.end - 1)};
    task.kv_gradient = false;
    task.cost = cost * 3 / 5;
    tasks.push_back(task);
  }
  const auto seen = [&](int64_t b) { return queries_that_see(whole.query_blocks, b); };
  for (const auto& [range, cost] : cut(whole.key_blocks, grain, seen)) {
    AttentionTask task = whole;
    task.query_blocks.begin = std::max(whole.query_blocks.begin, range.begin * blocks_per_key_block);
    task.key_blocks = range;
    task.query_gradient = false;
    task.cost = cost * 4 / 5;
    tasks.push_back(task);
  }
}

}  // namespace

BlockRange query_blocks_of(const AttentionSegment& segment) {
  const int64_t end = segment.position + segment.query_count;
  return {segment.position / attention_query_block, (end + attention_query_block - 1) / attention_query_block};
}

BlockRange key_blocks_of(const AttentionSegment& segment) {
  return {0, (segment.position + segment.query_count + attention_key_block - 1) / attention_key_block};
}

std::vector<AttentionTask> plan_attention_forward(const AttentionShape& shape,
                                                  std::span<const AttentionSegment> segments, int64_t thread_count) {
  int64_t total = 0;
  for (const AttentionSegment& segment : segments) {
    if (segment.query_count > 0) total += cost_of_queries(query_blocks_of(segment)) * shape.kv_heads;
  }
  const int64_t grain = std::max(smallest_cut, total / (thread_count * 4));
  std::vector<AttentionTask> tasks;
  for (size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].query_count == 0) continue;
    for (const auto& [range, cost] : cut(query_blocks_of(segments[s]), grain, key_blocks_seen)) {
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        tasks.push_back({.segment = int64_t(s),
                         .kv_head = h,
                         .query_blocks = range,
                         .key_blocks = {0, key_blocks_seen(range.end - 1)},
                         .cost = cost});
      }
    }
  }
  sort_longest_first(tasks);
  return tasks;
}

std::vector<AttentionTask> plan_attention_backward(const AttentionShape& shape,
                                                   std::span<const AttentionSegment> segments, int64_t thread_count) {
  std::vector<AttentionTask> whole;
  int64_t total = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].query_count == 0) continue;
    const BlockRange queries = query_blocks_of(segments[s]);
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      whole.push_back({int64_t(s), h, queries, key_blocks_of(segments[s]), true, true, cost_of_queries(queries)});
      total += whole.back().cost;
    }
  }
  sort_longest_first(whole);

  // How many of the longest to cut: cut work fills the threads evenly but costs 7/5.
  size_t cuts = 0;
  int64_t best = makespan(whole, 0, thread_count);
  int64_t cut_cost = 0;
  for (size_t n = 1; n <= whole.size() && int64_t(n) <= 2 * thread_count && thread_count > 1; ++n) {
    cut_cost += whole[n - 1].cost;
    const int64_t even = (total + cut_cost * 2 / 5) / thread_count;
    const int64_t time = std::max(even + even / 16, makespan(whole, n, thread_count));
    if (time < best && whole[n - 1].cost >= 2 * smallest_cut) {
      best = time;
      cuts = n;
    }
  }
  const int64_t grain = std::max(smallest_cut, total / (thread_count * 8));
  std::vector<AttentionTask> tasks(whole.begin() + cuts, whole.end());
  for (size_t n = 0; n < cuts; ++n) append_cut_backward(whole[n], grain, tasks);
  sort_longest_first(tasks);
  return tasks;
}

}  // namespace cotune::kernels
