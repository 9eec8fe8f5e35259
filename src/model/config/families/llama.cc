/// Llama 2 and 3, TinyLlama, SmolLM2 and others of Hugging Face's `LlamaForCausalLM`. GGUF files of
/// architecture `llama` also hold Mistral models, which compute the same.
#include <nlohmann/json.hpp>

#include "model/config/families.h"
#include "model/config/size_limits.h"

namespace cotune {
namespace {

void read_specifics(ConfigFields& fields, ModelConfig& config) {
  fields.require_off("attention_bias", "the llama family has no biases here");
  fields.require_off("mlp_bias", "the llama family has no biases here");
  config.kv_head_count = fields.count("num_key_value_heads", maximum_heads, config.head_count);
}

void write_specifics(const ModelConfig&, nlohmann::ordered_json& json) {
  json["attention_bias"] = json["mlp_bias"] = false;
}

void set_gguf_specifics(ModelConfig&) {}

}  // namespace

ModelFamily llama_family() {
  return {"llama", "LlamaForCausalLM", "llama", read_specifics, write_specifics, set_gguf_specifics, llama_shaped_tensors(GgufRows::rotary_pairs)};
}

}  // namespace cotune
