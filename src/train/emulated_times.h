#pragma once

#include <memory>
#include <string>

#include "engine/emulated_device.h"
#include "jobs/parallel.h"
#include "model/config/model_config.h"
#include "train/device_costs.h"

namespace cotune {

/// Times of a device that is not there (`device: emulated:FILE`): what the engine waits for, and what plans are priced by, which
/// is the same.
struct EmulatedTimes {
  std::shared_ptr<const EmulatedDevice> device;
  std::shared_ptr<const MeasuredTimes> measured;  ///< of a profile; nullptr: the roofline of a cluster file's device
  DeviceCosts costs;         ///< its link is that of a replica's ranks
  LinkSpec between_replicas;
  std::string dtype;  ///< bfloat16 or float32
};

/// file: a profile (ends in .json), or a cluster file, whose devices are of one kind.
/// parallel: of the run. Ranks of a replica talk over the link of as many of the cluster's devices as the largest replica has, replicas over
/// that of all of them; under a profile over that of threads, as the profile has measured their messages if it has. dtype: as model.dtype has it;
/// auto: the profile's, or bfloat16 where the device has a rate for it. Throws UserError: files that cannot be read or are of another model, a dtype
/// that they have no times of, more ranks than devices, layers divided by another number of ranks than a profile's.
EmulatedTimes read_emulated_times(const std::string& file, const ModelConfig& model, const std::string& dtype, const Parallel& parallel);

}  // namespace cotune
