#include "evaluate/held_out_loss.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>

#include "engine/interpreter.h"

namespace cotune {
namespace {

/// Examples of one data set that go through the model before the next ones do.
constexpr int64_t rows_at_once = 32;

/// Leaves an evaluation that was broken off.
class EvaluationStopped : public std::exception {};

Batch batch_of(const Dataset& data, int64_t begin, int64_t end) {
  Batch batch;
  for (int64_t i = begin; i < end; ++i) {
    const auto tokens = data.tokens(i);
    const auto learned = data.learned(i);
    batch.rows.push_back({{tokens.begin(), tokens.end()}, {learned.begin(), learned.end()}, static_cast<uint64_t>(i)});
  }
  return batch;
}

int64_t longest_row(std::span<const EvaluationPair> pairs) {
  int64_t longest = 0;
  for (const EvaluationPair& pair : pairs) {
    for (int64_t i = 0; i < pair.data->size(); ++i) longest = std::max(longest, pair.data->length(i));
  }
  return longest;
}

void take(const JobRound& round, ExampleLosses& losses) {
  for (size_t row = 0; row < round.batch->rows.size(); ++row) {
    const auto& learned = round.batch->rows[row].learned;
    losses.loss_sums.push_back(round.row_loss_sums[row]);
    losses.token_counts.push_back(
        static_cast<double>(std::count_if(learned.begin() + 1, learned.end(), [](uint8_t flag) { return flag != 0; })));
    losses.all_right.push_back(std::isfinite(round.row_loss_sums[row]) ? round.row_predicted[row] : std::nan(""));
  }
}

}  // namespace

std::optional<std::vector<ExampleLosses>> held_out_losses(const std::shared_ptr<Backbone>& backbone, std::span<const EvaluationPair> pairs,
                                                          const EvaluationCallbacks& callbacks, int64_t token_budget) {
  backbone->allow_rows(longest_row(pairs));
  Interpreter interpreter(backbone);
  interpreter.observe([&](const Operator&, const MicrobatchState&, double) {
    if (callbacks.interrupted && callbacks.interrupted()) throw EvaluationStopped();
  });
  std::vector<ExampleLosses> results(pairs.size());
  int64_t all = 0, done = 0, longest = 0;
  for (const EvaluationPair& pair : pairs) {
    all += pair.data->size();
    longest = std::max(longest, pair.data->size());
  }
  for (int64_t begin = 0; begin < longest; begin += rows_at_once) {
    std::map<const Dataset*, Batch> batches;
    std::vector<JobRound> rounds;
    std::vector<BatchShape> shapes;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const Dataset& data = *pairs[i].data;
      const int64_t end = std::min(begin + rows_at_once, data.size());
      if (begin >= end) continue;
      const auto [batch, is_new] = batches.try_emplace(&data);
      if (is_new) batch->second = batch_of(data, begin, end);
      JobRound round;
      round.job = static_cast<int32_t>(i);
      round.adapter = pairs[i].adapter;
      round.batch = &batch->second;
      round.purpose = RoundPurpose::evaluate;
      rounds.push_back(round);
      shapes.push_back(round.batch->shape(round.job, 0));
    }
    PackingPolicy policy;
    policy.token_budget = token_budget;
    try {
      interpreter.run(plan_step(shapes, policy), rounds);
    } catch (const EvaluationStopped&) {
      return std::nullopt;
    }
    for (const JobRound& round : rounds) {
      take(round, results[static_cast<size_t>(round.job)]);
      done += static_cast<int64_t>(round.batch->rows.size());
    }
    if (callbacks.on_progress) callbacks.on_progress(done, all);
  }
  return results;
}

}  // namespace cotune
