/// Mistral 7B as Hugging Face's `MistralForCausalLM`, without its sliding window.
#include <nlohmann/json.hpp>

#include "model/config/families.h"
#include "model/config/size_limits.h"

namespace cotune {
namespace {

void read_specifics(ConfigFields& fields, ModelConfig& config) {
  if (fields.has("sliding_window")) {
    fields.refuse("sliding_window", "null (attention over a sliding window is not supported)");
  } else if (!fields.names("sliding_window")) {
    fields.refuse("sliding_window",
                  "null (a Mistral configuration without the field means a window of 4096)");
  }
  // transformers takes its default where the field is missing, and as many as there are query heads where it is null.
  config.kv_head_count = fields.count("num_key_value_heads", maximum_heads, fields.is_null("num_key_value_heads") ? config.head_count : 8);
}

void write_specifics(const ModelConfig&, nlohmann::ordered_json& json) {
  json["sliding_window"] = nullptr;
}

void set_gguf_specifics(ModelConfig&) {}

}  // namespace

ModelFamily mistral_family() {
  return {"mistral", "MistralForCausalLM", "", read_specifics, write_specifics, set_gguf_specifics, llama_shaped_tensors(GgufRows::rotary_pairs)};
}

}  // namespace cotune
