#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config/families.h"
#include "model/config/model_config.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

Json rope_scaling_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return nullptr;
    case RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_context}};
    case RopeScaling::Kind::table:
      break;
  }
  COTUNE_CHECK(false, "config.json has no rotary scaling by a table (rope.h, named_rope_scaling)");
}

Json end_tokens(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

}  // namespace

std::string format_model_config(const ModelConfig& config) {
  const ModelFamily& family = model_family(config.family);
  COTUNE_CHECK(!family.shape_only, "{}", config.family);
  Json json = {{"architectures", Json::array({family.class_name})},
               {"model_type", config.family},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.layer_count},
               {"num_attention_heads", config.head_count},
               {"num_key_value_heads", config.kv_head_count},
               {"head_dim", config.head_dim},
               {"hidden_act", config.activation},
               {"max_position_embeddings", config.context_length},
               {"rms_norm_eps", config.rms_norm_epsilon},
               {"rope_theta", config.rope_theta},
               {"rope_scaling", rope_scaling_json(config.rope_scaling)},
               {"vocab_size", config.vocabulary_size},
               {"tie_word_embeddings", config.tied_embeddings}};
  family.write_specifics(config, json);
  json["bos_token_id"] = config.bos_token_id ? Json(*config.bos_token_id) : Json();
  json["eos_token_id"] = end_tokens(config.eos_token_ids);
  if (!config.dtype.empty()) json["torch_dtype"] = config.dtype;
  return json.dump(2) + "\n";
}

}  // namespace cotune
