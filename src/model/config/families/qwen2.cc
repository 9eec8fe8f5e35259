/// Qwen 2 and 2.5 as Hugging Face's `Qwen2ForCausalLM`: biases on q, k and v.
#include <nlohmann/json.hpp>

#include "model/config/families.h"
#include "model/config/size_limits.h"

namespace cotune {
namespace {

void read_specifics(ConfigFields& fields, ModelConfig& config) {
  fields.require_off("use_sliding_window", "attention over a sliding window is not supported");
  // transformers takes its default where the field is missing, and as many as there are query heads where it is null.
  config.kv_head_count = fields.count("num_key_value_heads", maximum_heads, fields.is_null("num_key_value_heads") ? config.head_count : 32);
  config.qkv_bias = true;
}

void write_specifics(const ModelConfig&, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
}

void set_gguf_specifics(ModelConfig& config) {
  config.qkv_bias = true;
}

}  // namespace

ModelFamily qwen2_family() {
  return {"qwen2", "Qwen2ForCausalLM", "qwen2", read_specifics, write_specifics, set_gguf_specifics, llama_shaped_tensors(GgufRows::same)};
}

}  // namespace cotune
