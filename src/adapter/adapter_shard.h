/// A job's adapter as the ranks of a tensor-parallel group have it. The whole adapter is what is saved,
/// loaded and left; each rank computes with a shard, an Adapter of its own whose widths are those of the
/// rank's part of the model, so that methods and kernels see plain smaller matrices. Shards step by
/// themselves: what is cut steps once, what is whole steps equally everywhere. Until copy_from_shard the
/// whole adapter's values and moments are old.
#pragma once

#include <memory>
#include <vector>

#include "adapter/adapter.h"

namespace cotune {

/// A shard with the whole's values, moments and structure. held: AdapterSetup::held.
std::unique_ptr<Adapter> make_adapter_shard(const Adapter& whole, const TensorShard& shard, std::vector<LayerRange> held = {});

/// Whether a method's selection has been made: whether its structure is all there.
bool has_ended_selection(const Adapter& adapter);

/// Values, moments and structure: after the whole was loaded, or its selection has ended. The shard is then
/// refreshed.
void copy_to_shard(const Adapter& whole, Adapter& shard);

/// Values and moments; with those of all shards the whole is complete. Does not refresh it.
void copy_from_shard(const Adapter& shard, Adapter& whole);

/// Where a shard's parameter lies in a tensor of the whole's shape: a view, where its values follow one
/// another there.
at::Tensor part_at(const at::Tensor& whole, const ShardPlace& place, const at::Tensor& part);

}  // namespace cotune
