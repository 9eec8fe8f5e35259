#include "engine/microbatch_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

template <typename T>
at::Tensor to_tensor(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, dtype);
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.mutable_data_ptr()));
  return tensor.to(device, dtype, /*non_blocking=*/true);  // the host need not wait for a device to have it
}

/// The rows of the microbatch one by one, as they are filled in.
struct Rows {
  std::vector<int64_t> tokens, example_keys, scored_rows;
  std::vector<int32_t> positions, labels;
  std::vector<double> scales;
};

void add_row(Rows& rows, int32_t token, int64_t position, uint64_t key) {
  rows.tokens.push_back(token);
  rows.positions.push_back(static_cast<int32_t>(position));
  rows.example_keys.push_back(static_cast<int64_t>(key));
}

/// The next row to be added enters the head.
void score_next_row(Rows& rows, int32_t label, double scale) {
  rows.scored_rows.push_back(static_cast<int64_t>(rows.tokens.size()));
  rows.labels.push_back(label);
  rows.scales.push_back(scale);
}

void add_real_rows(Rows& rows, const Segment& segment, const BatchRow& row, double scale) {
  for (int64_t position = segment.position; position < segment.position + segment.length; ++position) {
    const auto next = static_cast<size_t>(position + 1);
    if (next < row.tokens.size() && row.learned[next] != 0) score_next_row(rows, row.tokens[next], scale);
    add_row(rows, row.tokens[static_cast<size_t>(position)], position, row.key);
  }
}

/// Pads go through every operator, the head too. They repeat the last position, so that they never lie beyond the model's context.
void add_pads(Rows& rows, const Segment& segment, const BatchRow& row) {
  for (int64_t i = 0; i < segment.pad; ++i) {
    score_next_row(rows, 0, 0);
    add_row(rows, 0, segment.position + segment.length - 1, row.key);
  }
}

/// The rows over which gradients are summed before they are added to one another. An atom is one such run, but in layout padded,
/// where pads follow from the neighbours: there each segment's real rows are one, and its pads another.
std::vector<RowRange> runs_of(const Atom& atom, int64_t first_row, Layout layout) {
  if (layout != Layout::padded) return {{first_row, first_row + atom.token_count()}};
  std::vector<RowRange> runs;
  for (const Segment& segment : atom.segments) {
    runs.push_back({first_row, first_row + segment.length});
    first_row += segment.length + segment.pad;
    if (segment.pad > 0) runs.push_back({first_row - segment.pad, first_row});
  }
  return runs;
}

std::shared_ptr<ChainLayers> chain_of(const RowPart& part, int64_t step, ChainCaches& chains, LayerRange layers,
                                  const AttentionShape& attention, at::ScalarType compute, at::Device device) {
  if (part.position == 0 && part.length == part.row_length) return nullptr;
  const ChainCaches::key_type key{part.job, step, part.row};
  std::shared_ptr<ChainLayers>& known = chains[key];
  if (known == nullptr) known = std::make_shared<ChainLayers>();
  const std::shared_ptr<ChainLayers> chain = known;
  if (ends_row(part)) chains.erase(key);
  ChainLayers& caches = *chain;
  const MemoryScope scope(MemoryKind::chain_kv);
  caches.resize(static_cast<size_t>(layers.end));
  // Only the last part has pads, and which there are depends on its microbatch: the caches grow when it comes.
  const int64_t rows = std::max(part.row_length, part.position + part.length + part.pad);
  for (auto cache = caches.begin() + layers.begin; cache != caches.end(); ++cache) {
    for (at::Tensor* tensor : {&cache->keys, &cache->values}) {
      if (tensor->defined() && tensor->size(0) >= rows) continue;
      const at::Tensor grown =
          at::empty({rows, attention.kv_columns()}, at::TensorOptions().dtype(compute).device(device));
      if (tensor->defined()) grown.narrow(0, 0, tensor->size(0)).copy_(*tensor);
      *tensor = grown;
    }
  }
  return chain;
}

/// What of the rows lies in the slice, counted from its first.
RowRange within(const RowRange& rows, const RowRange& slice) {
  const int64_t begin = std::clamp(rows.begin, slice.begin, slice.end);
  return {begin - slice.begin, std::clamp(rows.end, begin, slice.end) - slice.begin};
}

TokenSlices slices_of(const Rows& rows, const std::vector<JobRows>& jobs, const TensorShard& shard) {
  TokenSlices slices{.tokens = token_slices(static_cast<int64_t>(rows.tokens.size()), shard.count), .scored = {}, .job_rows = {}};
  for (const int64_t begin : slices.tokens) {
    slices.scored.push_back(std::ranges::lower_bound(rows.scored_rows, begin) - rows.scored_rows.begin());
  }
  const auto own = static_cast<size_t>(shard.index);
  slices.own = {slices.tokens[own], slices.tokens[own + 1]};
  slices.own_scored = {slices.scored[own], slices.scored[own + 1]};
  for (const JobRows& job : jobs) {
    JobRows& here = slices.job_rows.emplace_back(job);
    here.rows = within(job.rows, slices.own);
    here.atoms.clear();
    for (const RowRange& atom : job.atoms) {
      const RowRange part = within(atom, slices.own);
      if (part.count() > 0) here.atoms.push_back(part);
    }
  }
  return slices;
}

}  // namespace

int64_t LayerRecord::bytes() const {
  std::unordered_set<const void*> seen;
  int64_t total = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.nbytes() > 0 && seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      total += static_cast<int64_t>(tensor.storage().nbytes());
    }
  };
  for (const at::Tensor* tensor : {&stream, &input, &attention_inverse_rms, &mlp_inverse_rms, &qkv, &attention.out,
                                   &attention.lse, &middle, &gate_up}) {
    add(*tensor);
  }
  for (const at::Tensor& lse : attention.flash_lse) add(lse);
  for (const auto& job : sites) {
    for (const SiteRecord& site : job) {
      for (const at::Tensor& tensor : site.kept) add(tensor);
    }
  }
  return total;
}

MicrobatchState make_microbatch_state(const Microbatch& microbatch, Layout layout, const std::map<int32_t, JobRound*>& rounds, ChainCaches& chains,
                                      LayerRange layers, const AttentionShape& attention, at::ScalarType compute, at::Device device,
                                      const TensorShard& shard) {
  const MemoryScope scope(MemoryKind::workspace);
  MicrobatchState state;
  Rows rows;
  for (const Atom& atom : microbatch.atoms) {
    JobRound* round = rounds.at(atom.job);
    const auto first_row = static_cast<int64_t>(rows.tokens.size());
    if (state.jobs.empty() || state.jobs.back() != round) {
      state.jobs.push_back(round);
      state.job_rows.push_back({{first_row, first_row}, {}, round->dropout_key, round->purpose != RoundPurpose::evaluate});
    }
    const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, round->labelled_tokens));
    const auto scored_count = [&rows] { return static_cast<int64_t>(rows.labels.size()); };
    std::vector<RowRange> spans{{scored_count(), scored_count()}};
    for (const Segment& segment : atom.segments) {
      const BatchRow& row = round->batch->rows[static_cast<size_t>(segment.row)];
      if (layout != Layout::ragged) spans.push_back({scored_count(), scored_count()});
      add_real_rows(rows, segment, row, scale);
      spans.back().end = scored_count();
      state.label_rows.resize(rows.labels.size(), {round, segment.row});
      add_pads(rows, segment, row);
      state.label_rows.resize(rows.labels.size(), {nullptr, segment.row});
    }
    for (const RowRange& span : spans) state.loss_spans.push_back({state.jobs.size() - 1, span.begin, span.end});
    JobRows& job = state.job_rows.back();
    job.rows.end = static_cast<int64_t>(rows.tokens.size());
    const std::vector<RowRange> runs = runs_of(atom, first_row, layout);
    job.atoms.insert(job.atoms.begin(), runs.begin(), runs.end());
  }
  std::reverse(state.loss_spans.begin(), state.loss_spans.end());
  for (const RowPart& part : row_parts(microbatch)) {
    state.segments.push_back({part.first_token, part.length + part.pad, part.position, nullptr});
    state.segment_chains.push_back(chain_of(part, rounds.at(part.job)->batch->step, chains, layers, attention, compute, device));
  }
  if (!device.is_cpu()) {
    std::vector<int32_t> begins{0};
    for (const AttentionSegment& segment : state.segments) begins.push_back(static_cast<int32_t>(segment.begin + segment.count));
    state.segment_begins = to_tensor(begins, at::kInt, device);
  }
  if (shard.is_sequence_parallel) state.slices = slices_of(rows, state.job_rows, shard);
  state.tokens = to_tensor(rows.tokens, at::kLong, device);
  state.positions = to_tensor(rows.positions, at::kInt, device);
  state.example_keys = to_tensor(rows.example_keys, at::kLong, device);
  state.scored_rows = to_tensor(rows.scored_rows, at::kLong, device);
  state.labels = to_tensor(rows.labels, at::kInt, device);
  state.row_scale = to_tensor(rows.scales, at::kDouble, device).to(accumulation_dtype(compute));
  state.layers.resize(static_cast<size_t>(layers.end));
  for (LayerRecord& layer : state.layers) layer.sites.resize(state.jobs.size());
  return state;
}

}  // namespace cotune
