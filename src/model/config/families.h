/// Model families: for each, what its config files mean and how its tensors are called. A family is one file
/// in families/ and one line in families.cc; docs/adding-a-model-family.md walks through it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config_fields.h"
#include "model/config/model_config.h"

namespace cotune {

/// A dimension of a tensor, in terms of the configuration.
enum class Extent { hidden, query, key_value, intermediate, vocabulary, positions };
int64_t extent_of(Extent extent, const ModelConfig& config);

/// Order of rows in a GGUF file. llama.cpp stores the q and k rows of architecture `llama` so that the two
/// values of a rotary pair are neighbours: within a head, row 2i + j there is row j · head_dim/2 + i here.
enum class GgufRows { same, rotary_pairs };

struct TensorRule {
  enum class When { always, qkv_bias, untied };
  std::string_view name;       ///< canonical, that is Hugging Face's; `{}` stands for the layer
  std::string_view gguf_name;  ///< `{}` stands for the layer
  std::vector<Extent> shape;   ///< [out, in] of a projection, [size] of a norm or bias
  When when = When::always;
  GgufRows gguf_rows = GgufRows::same;
};

struct ModelFamily {
  std::string_view name;  ///< `model_type` of config.json
  std::string_view class_name;  ///< transformers' class, the one in `architectures` of config.json; "" of a family without operators
  std::string_view
      gguf_architecture;  ///< `general.architecture` of GGUF files; "" when another family reads them
  /// Reads and checks what this family's config.json has beyond the fields that all share.
  void (*read_specifics)(ConfigFields& fields, ModelConfig& config);
  /// Adds the fields that read_specifics reads and those that transformers would take another default for.
  void (*write_specifics)(const ModelConfig& config, nlohmann::ordered_json& json);
  /// Sets what the architecture implies in a GGUF file (for example biases).
  void (*set_gguf_specifics)(ModelConfig& config);
  std::vector<TensorRule> tensors;
  bool shape_only = false;  ///< for plan and simulate: the engine has no operators for it
};

/// Throws UserError listing the families for an unknown name.
const ModelFamily& model_family(std::string_view name);
/// Throws UserError when the family can only be planned.
void require_engine_support(const ModelConfig& config);
/// nullptr when no family reads that architecture.
const ModelFamily* family_of_gguf(std::string_view architecture);
std::vector<std::string> model_family_names();  ///< those that can be trained
std::vector<std::string> gguf_architecture_names();

/// The tensors shared by Llama-shaped decoders: embedding, per layer two norms, q, k, v, o, gate, up, down,
/// then the final norm and the head. `query_key_rows` is the GGUF order of q_proj and k_proj.
std::vector<TensorRule> llama_shaped_tensors(GgufRows query_key_rows);

/// One tensor that a model has.
struct ModelTensor {
  std::string name;       ///< canonical: `model.layers.3.self_attn.q_proj.weight`
  std::string gguf_name;  ///< `blk.3.attn_q.weight`
  std::vector<int64_t> shape;
  GgufRows gguf_rows = GgufRows::same;
};

/// Every tensor of a model, in the order of computation: embedding, layers, final norm, head (absent when
/// tied).
std::vector<ModelTensor> model_tensors(const ModelConfig& config);

}  // namespace cotune
