/// Weights of a GGUF file.
#pragma once

#include <memory>

#include "formats/gguf.h"
#include "model/config/families.h"
#include "model/weights/model_files.h"

namespace cotune {

/// Checks the file's tensors against the configuration. Throws UserError with every tensor that is missing,
/// unknown, of another shape or of a type that cannot be dequantised. Ignored: `rope_freqs.weight`, which the
/// configuration holds.
std::shared_ptr<const WeightSource> open_gguf_weights(std::shared_ptr<const GgufFile> file,
                                                      const ModelConfig& config);

/// Where row `row` of the canonical tensor is in the file (families.h, GgufRows).
int64_t gguf_row(GgufRows rows, int64_t row, int64_t head_dim);

/// Canonical rows of whole heads [rows, columns] in the file's order: themselves where it is the same.
at::Tensor in_gguf_rows(const at::Tensor& canonical, GgufRows rows, int64_t head_dim);

}  // namespace cotune
