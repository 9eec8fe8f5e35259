#pragma once

#include <memory>
#include <string>

#include "engine/emulated_device.h"
#include "model/config/model_config.h"
#include "train/device_costs.h"

namespace cotune {

/// Times of a device that is not there (`device: emulated:FILE`): what the engine waits for, and what plans are priced by, which
/// is the same.
struct EmulatedTimes {
  std::shared_ptr<const EmulatedDevice> device;
  std::shared_ptr<const MeasuredTimes> measured;  ///< of a profile; nullptr: the roofline of a cluster file's device
  DeviceCosts costs;
  std::string dtype;  ///< bfloat16 or float32
};

/// file: a profile (ends in .json), or a cluster file, whose devices are of one kind.
/// ranks: of the run. They talk over the link of so many of the cluster's devices; under a profile over that of threads, since a
/// profile has none. dtype: as model.dtype has it; auto: the profile's, or bfloat16 where the device has a rate for it. tensor:
/// ranks that divide each layer. Throws UserError: files that cannot be read or are of another model, a dtype that they have no
/// times of, more ranks than devices, layers divided by another number of ranks than a profile's.
EmulatedTimes read_emulated_times(const std::string& file, const ModelConfig& model, const std::string& dtype, int64_t ranks, int64_t tensor);

}  // namespace cotune
