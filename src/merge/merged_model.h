/// A model and an adapter as one model: a Hugging Face folder that transformers loads.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "adapter/weight_changes.h"
#include "model/weights/model_files.h"

namespace cotune {

struct MergeSettings {
  std::optional<at::ScalarType> dtype;  ///< of every weight; without it each as it is stored, and bfloat16 of quantised ones
  int64_t max_file_bytes = 5'000'000'000;
};

struct MergeReport {
  int64_t changed = 0, tensors = 0, bytes = 0, files = 0;
};

/// Writes the model's weights with the changes added (in f64, then rounded; to bf16 and f16 by way of f32), and the rest of its folder,
/// copied, or made of a GGUF file's metadata (merged_folder.h). One file of weights, or several with an index where they would exceed
/// max_file_bytes; config.json comes last, so that what a merge leaves that was killed is no model; where this or progress() throws, the
/// folder is empty again.
///
/// In memory are the adapter and a block of rows of one tensor; of a GGUF file one tensor in f32 where it is quantised, or has its rows in
/// another order. progress(done, all): bytes of weights. Throws UserError where `output` holds files, where a weight that is changed or
/// converted does not fit into its dtype, and as merged_config and write_other_files do.
MergeReport write_merged_model(const ModelFiles& model, const WeightChanges& changes, const std::filesystem::path& output,
                               const MergeSettings& settings, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace cotune
