/// A model on disk: its configuration, its tokenizer's files and its tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "model/config/model_config.h"
#include "model/config/tokenizer_files.h"

namespace cotune {

/// Reads tensors by canonical name (`model.layers.0.self_attn.q_proj.weight`; families.h). Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// The tensor on the CPU, contiguous, in `dtype` (float32, bfloat16, float16 or float64), in Hugging Face's
  /// row order. Where the file holds that dtype the result is a view of the read-only mapping, which it keeps
  /// alive: writing to it ends the program. Else the values are converted, quantised ones in f32, and rounded
  /// once. Throws InternalError for a name that the model does not have.
  virtual at::Tensor load(const std::string& name, at::ScalarType dtype) const = 0;

  /// Dtype of the tensor in the file; float32 for quantised ones.
  virtual at::ScalarType stored_dtype(const std::string& name) const = 0;
  /// Whether the file has the tensor in blocks of few bits.
  virtual bool is_quantised(const std::string&) const { return false; }

  /// Checksum of every tensor's name and stored bytes: reads them all.
  virtual std::string content_hash() const = 0;

  /// Pages of the mapping that were read no longer count as this process's memory. Views stay valid; reading
  /// them again reads the file.
  virtual void drop_pages() const = 0;
};

struct ModelFiles {
  std::filesystem::path path;
  ModelConfig config;
  TokenizerFiles tokenizer;
  std::shared_ptr<const WeightSource> weights;

  at::Tensor load(const std::string& name, at::ScalarType dtype) const { return weights->load(name, dtype); }
};

/// Opens a Hugging Face folder (config.json with model.safetensors or an index of several) or a GGUF file;
/// maps the weights and reads none of them, but for a head that is stored beside the embedding that it is tied to. Throws
/// UserError: what is missing in the folder, mistakes in the configuration, every tensor that is missing, unknown, of another
/// shape or of a type that cannot be read, and a tied head with values of its own, all at once.
ModelFiles open_model(const std::filesystem::path& path);

/// As much of a model as can be read.
struct ModelParts {
  ModelFiles files;
  bool has_config = false;     ///< without it there is nothing else
  bool has_tokenizer = false;  ///< the tokenizer's files could be read, if there are any
  bool has_weights = false;
};

/// The same, with mistakes added to `mistakes`.
ModelParts open_model(const std::filesystem::path& path, Diagnostics& mistakes);

/// Checksum of everything that training computes with: the configuration's shape and rotary settings, and all
/// weights as stored. The same wherever the files lie; another for another file format. Reads every weight
/// once.
std::string model_fingerprint(const ModelFiles& model);

/// Names the files that the configuration and the weights are read from, and the state they are in, as this machine's system knows them: two of its
/// processes that have equal names read the very same files, wherever these seem to lie. "" where that cannot be told.
std::string model_files_identity(const ModelFiles& model);

/// A model without files, for tests and benchmarks: values from (seed, tensor name, index) alone, so the same
/// on every machine and for every dtype up to its rounding. Uniform with standard deviation 1/√columns for
/// matrices, 1 ± 0.1 for norms, ± 0.1 for biases. The tokenizer's files are empty. Throws UserError for a
/// family that can only be planned.
ModelFiles random_model(const ModelConfig& config, uint64_t seed);

}  // namespace cotune
