#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_mistake.h"
#include "model/config/families.h"
#include "model/config/model_config.h"
#include "model/config/size_limits.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

/// `parameters` is `rope_parameters`, or `rope_scaling` of the old style.
void read_rope(ConfigFields& parameters, ModelConfig& config) {
  const std::string field = parameters.has("rope_type") || !parameters.has("type") ? "rope_type" : "type";
  const std::string type = parameters.text(field, "default");
  config.rope_theta = parameters.positive_number("rope_theta", config.rope_theta);
  RopeScaling& scaling = config.rope_scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = parameters.positive_number("factor");
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::llama3;
    scaling.factor = parameters.positive_number("factor");
    scaling.low_freq_factor = parameters.positive_number("low_freq_factor");
    scaling.high_freq_factor = parameters.positive_number("high_freq_factor");
    scaling.original_context = parameters.count("original_max_position_embeddings", maximum_context);
    if (parameters.has("low_freq_factor") && parameters.has("high_freq_factor") &&
        scaling.high_freq_factor <= scaling.low_freq_factor) {
      parameters.refuse("high_freq_factor", "a number above low_freq_factor");
    }
  } else if (type != "default") {
    parameters.refuse(field, "\"default\", \"linear\", \"llama3\"");
  }
}

void read_common(ConfigFields& fields, ModelConfig& config) {
  config.layer_count = fields.count("num_hidden_layers", maximum_layers);
  config.hidden_size = fields.count("hidden_size", maximum_width);
  config.intermediate_size = fields.count("intermediate_size", maximum_width);
  config.head_count = fields.count("num_attention_heads", maximum_heads);
  config.vocabulary_size = fields.count("vocab_size", maximum_vocabulary);
  config.context_length = fields.count("max_position_embeddings", maximum_context);
  config.rms_norm_epsilon = fields.positive_number("rms_norm_eps", 1e-6);
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  config.activation = fields.text("hidden_act", "silu");
  if (config.activation != "silu") fields.refuse("hidden_act", "\"silu\"");
  config.dtype = fields.text(fields.has("dtype") ? "dtype" : "torch_dtype", "");

  if (fields.has("head_dim")) {
    config.head_dim = fields.count("head_dim", maximum_head_dim);
    if (config.head_dim % 2 != 0) fields.refuse("head_dim", "an even number");
  } else if (config.hidden_size % (2 * config.head_count) != 0) {
    if (fields.has("hidden_size")) {  // else that is the mistake
      fields.refuse("num_attention_heads", fmt::format("a divisor of half of hidden_size ({})", config.hidden_size));
    }
    config.head_dim = 2;
  } else {
    config.head_dim = config.hidden_size / config.head_count;
  }

  config.rope_theta = fields.positive_number("rope_theta", 10000);
  if (auto parameters = fields.object("rope_parameters")) {
    read_rope(*parameters, config);
    if (fields.has("rope_scaling")) fields.refuse("rope_scaling", "null where rope_parameters is given");
  } else if (auto scaling = fields.object("rope_scaling")) {
    read_rope(*scaling, config);
  }

  const std::vector<int32_t> bos = fields.token_ids("bos_token_id");
  if (!bos.empty()) config.bos_token_id = bos.front();
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void refuse_unsupported(ConfigFields& fields) {
  fields.require_off("quantization_config", "quantised safetensors are not supported; a GGUF file may be");
  if (fields.positive_number("partial_rotary_factor", 1.0) != 1.0)
    fields.refuse("partial_rotary_factor", "1");
  fields.require_off("attention_dropout", "probabilities of attention are not dropped here");
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::string& file_name) {
  const Json document = json_of_file(json, file_name);
  if (!document.is_object()) throw_user_error("{}: must be a JSON object", file_name);

  Diagnostics mistakes;
  ConfigFields fields(document, file_name, "", mistakes);
  ModelConfig config;
  config.family = fields.text("model_type", "");
  const std::vector<std::string> names = model_family_names();
  if (std::find(names.begin(), names.end(), config.family) == names.end()) {
    fields.refuse("model_type", fmt::format("\"{}\"", fmt::join(names, "\", \"")));
    mistakes.throw_if_any();
  }
  read_common(fields, config);
  refuse_unsupported(fields);
  model_family(config.family).read_specifics(fields, config);
  if (config.head_count % config.kv_head_count != 0) {
    fields.refuse("num_key_value_heads",
                  fmt::format("a divisor of num_attention_heads ({})", config.head_count));
  }
  mistakes.throw_if_any();
  return config;
}

}  // namespace cotune
