/// A GGUF model and an adapter as one GGUF file, for llama.cpp and whatever else reads such files.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "adapter/weight_changes.h"
#include "merge/merged_model.h"
#include "model/weights/model_files.h"

namespace cotune {

/// Writes the model's file again: its metadata (general.file_type says `dtype`) and the weights that do not change byte for byte; those
/// that do are dequantised in f32, get the changes in f64, and are rounded to `dtype` (float32, bfloat16 or float16). Without it dense ones
/// keep their type, and quantised ones become float16, as llama.cpp's export of merged models makes them. Rows of q and k stay in the
/// file's order (GgufRows).
///
/// In memory are one tensor in f32, and the adapter. progress(done, all): bytes written; where it throws, no file is there.
/// Throws UserError where `output` exists, and as write_merged_model does of values.
MergeReport write_merged_gguf(const ModelFiles& model, const WeightChanges& changes, const std::filesystem::path& output,
                              std::optional<at::ScalarType> dtype, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace cotune
