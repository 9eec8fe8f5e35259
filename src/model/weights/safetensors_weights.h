/// Weights of a Hugging Face folder.
#pragma once

#include <filesystem>
#include <memory>

#include "model/weights/model_files.h"

namespace cotune {

/// Maps the folder's safetensors and checks them against the configuration. Throws UserError with every
/// tensor that is missing, unknown, of another shape or not of a floating type. Ignored: a head beside tied
/// embeddings, and the rotary tables (`*.rotary_emb.inv_freq`) of old checkpoints.
std::shared_ptr<const WeightSource> open_safetensors_weights(const std::filesystem::path& folder,
                                                             const ModelConfig& config);

}  // namespace cotune
