#include "schedule/profile_grid.h"

#include <algorithm>
#include <utility>

namespace cotune {
namespace {

using Rows = std::vector<int64_t>;
using Projections = std::vector<Projection>;

const Projections everywhere(all_projections.begin(), all_projections.end());
const Projections query_and_value = {Projection::q, Projection::v};
const Projections feed_forward = {Projection::gate, Projection::up, Projection::down};
const Projections key_and_output = {Projection::k, Projection::o};
const Projections sublayer_ends = {Projection::o, Projection::down};

ProfiledJob lora(int64_t rank, Rows rows, const Projections& projections = everywhere, double dropout = 0) {
  return {AdapterMethod::lora, rank, 0, dropout, projections, std::move(rows)};
}
ProfiledJob bottleneck(int64_t width, Rows rows, const Projections& projections = sublayer_ends) {
  return {AdapterMethod::bottleneck, width, 0, 0, projections, std::move(rows)};
}
ProfiledJob diff(double density, Rows rows, const Projections& projections = everywhere) {
  return {AdapterMethod::diff_pruning, 0, density, 0, projections, std::move(rows)};
}

Rows repeated(size_t count, int64_t length) { return Rows(count, length); }

Rows within(const Rows& rows, int64_t context_length) {
  Rows cut;
  for (int64_t length : rows) {
    for (; length > context_length; length -= context_length) cut.push_back(context_length);
    cut.push_back(length);
  }
  return cut;
}

std::vector<ProfiledShape> all_shapes() {
  const std::vector<ProfiledJob> eight_jobs(8, lora(8, {32}));
  return {
      // One job of LoRA: tokens, lengths of rows, chains.
      {{lora(16, {24})}},
      {{lora(16, {64})}},
      {{lora(16, {90, 50})}},
      {{lora(16, {256})}},
      {{lora(16, repeated(16, 16))}},
      {{lora(16, repeated(8, 60))}},
      {{lora(16, {300, 150, 62})}},
      {{lora(16, {768})}},
      {{lora(16, repeated(4, 250))}},
      {{lora(16, {1200})}, 1, 512},
      // Labels.
      {{lora(16, {200})}, 0.25},
      {{lora(16, {300})}, 0.5},
      // Ranks, projections, dropout.
      {{lora(4, {128, 128})}},
      {{lora(32, {180})}},
      {{lora(64, {300}, feed_forward)}},
      {{lora(128, {160}, key_and_output)}},
      {{lora(16, {256}, query_and_value)}},
      {{lora(16, {150}, feed_forward)}},
      {{lora(48, {200}, key_and_output)}},
      {{lora(16, {256}, everywhere, 0.1)}},
      {{lora(8, {60, 40}, everywhere, 0.05)}},
      // The other methods.
      {{bottleneck(64, {256})}},
      {{bottleneck(16, {80})}},
      {{bottleneck(128, {200})}},
      {{bottleneck(32, {300, 60}), bottleneck(48, {40})}},
      {{diff(0.005, {256})}},
      {{diff(0.02, {100}, query_and_value)}},
      {{diff(0.01, {150}, feed_forward)}},
      {{diff(0.02, {300, 120}, sublayer_ends), diff(0.001, {40})}},
      // Jobs together.
      {{lora(16, {64, 64}), lora(8, {128}), lora(4, {90}), lora(32, {200})}},
      {eight_jobs},
      {{lora(16, {128}), bottleneck(64, {100}), diff(0.005, {64}), lora(8, {70}, query_and_value, 0.1)}},
  };
}

}  // namespace

std::vector<ProfiledShape> canonical_shapes(int64_t context_length) {
  std::vector<ProfiledShape> shapes = all_shapes();
  for (ProfiledShape& shape : shapes) {
    for (ProfiledJob& job : shape.jobs) job.row_lengths = within(job.row_lengths, context_length);
  }
  return shapes;
}

}  // namespace cotune
