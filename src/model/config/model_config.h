/// The shape of a model: everything about the backbone that planning, memory prediction and the engine need
/// to know, without its weights and without torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace cotune {

/// How rotary frequencies are stretched for long contexts. See rope.h for the formulas.
struct RopeScaling {
  enum class Kind {
    none,
    linear,  ///< every frequency divided by `factor`
    llama3,  ///< Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between
    table,   ///< each frequency divided by its entry of `divisors` (`rope_freqs.weight` of GGUF files)
  };
  Kind kind = Kind::none;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 0;  ///< tokens
  std::vector<double> divisors;  ///< [head_dim / 2], with Kind::table only
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  std::string family;  ///< "llama", "mistral", "qwen2", or one that can only be planned: "gpt", "opt" (families.h)
  int64_t layer_count = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  ///< of the feed-forward block: down(silu(gate(x)) · up(x))
  int64_t head_count = 0;         ///< query heads
  int64_t kv_head_count = 0;      ///< divides head_count
  int64_t head_dim = 0;           ///< even; head_count · head_dim may differ from hidden_size
  int64_t vocabulary_size = 0;    ///< rows of the embedding and of the output head
  int64_t context_length = 0;     ///< tokens
  double rms_norm_epsilon = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tied_embeddings = false;  ///< the output head is the embedding
  bool qkv_bias = false;         ///< q, k and v projections have biases
  bool gated = true;             ///< false: the feed-forward block is down(activation(up(x))), without gate_proj
  int64_t learned_positions = 0; ///< rows of a table of position embeddings; 0: rotary positions
  std::string activation = "silu";
  std::string dtype;  ///< "float32", "bfloat16" or "float16": as the checkpoint says; "" where it does not
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  bool operator==(const ModelConfig&) const = default;

  int64_t query_size() const { return head_count * head_dim; }  ///< outputs of q_proj, inputs of o_proj
  int64_t key_value_size() const { return kv_head_count * head_dim; }  ///< outputs of k_proj and of v_proj
};

/// Reads a Hugging Face config.json, as transformers 4 (`rope_theta`, `rope_scaling`) or 5
/// (`rope_parameters`) write it. Throws UserError with one line per mistake, naming file, field, what was
/// found and what is accepted: missing or impossible sizes, unknown model_type, and features that the engine
/// lacks (other activations or rope types, sliding windows, biases where the family has none, quantised
/// checkpoints). Unknown fields are ignored, as there.
ModelConfig parse_model_config(std::string_view json, const std::string& file_name);

/// The text of a config.json that parse_model_config reads as this configuration, and that every transformers reads (with the names of
/// version 4, which 5 knows too). The family has operators, and the rotary scaling is no table.
std::string format_model_config(const ModelConfig& config);

/// Reads the metadata of a GGUF file. Throws UserError as parse_model_config does.
ModelConfig model_config_from_gguf(const GgufFile& file);

/// The shapes of published models by name ("llama-2-7b", "qwen2.5-0.5b", …; case does not matter). Throws
/// UserError listing the names for an unknown one.
ModelConfig model_preset(std::string_view name);
std::vector<std::string> model_preset_names();

/// What `model: {config: …}` names: a preset, a config.json, a folder with one, a GGUF file, or a model in the Hugging Face cache
/// (jobs/hub_cache.h). Throws UserError.
ModelConfig find_model_config(const std::string& preset_or_path);

/// Values in all tensors of the model; a tied head counts once.
int64_t parameter_count(const ModelConfig& config);

}  // namespace cotune
