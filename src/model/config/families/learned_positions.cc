/// GPT-3 and OPT: decoders with learned positions, layer norms, biases everywhere, a feed-forward block without gate and a
/// tied head. Shapes for planning only. Tensors are called as in Llama-shaped models, so that adapters find the same
/// places: up_proj and down_proj are the two products of the feed-forward block.
#include "model/config/families.h"

namespace cotune {
namespace {

void read_nothing(ConfigFields&, ModelConfig&) {}
void write_nothing(const ModelConfig&, nlohmann::ordered_json&) {}
void set_nothing(ModelConfig&) {}

ModelFamily shape_only_family(std::string_view name) {
  using enum Extent;
  ModelFamily family{name, "", "", read_nothing, write_nothing, set_nothing, {}, true};
  const auto add = [&](std::string_view tensor, std::vector<Extent> shape) {
    family.tensors.push_back({tensor, "", std::move(shape)});
  };
  add("model.embed_tokens.weight", {vocabulary, hidden});
  add("model.embed_positions.weight", {positions, hidden});
  add("model.layers.{}.input_layernorm.weight", {hidden});
  add("model.layers.{}.input_layernorm.bias", {hidden});
  add("model.layers.{}.self_attn.q_proj.weight", {query, hidden});
  add("model.layers.{}.self_attn.q_proj.bias", {query});
  add("model.layers.{}.self_attn.k_proj.weight", {key_value, hidden});
  add("model.layers.{}.self_attn.k_proj.bias", {key_value});
  add("model.layers.{}.self_attn.v_proj.weight", {key_value, hidden});
  add("model.layers.{}.self_attn.v_proj.bias", {key_value});
  add("model.layers.{}.self_attn.o_proj.weight", {hidden, query});
  add("model.layers.{}.self_attn.o_proj.bias", {hidden});
  add("model.layers.{}.post_attention_layernorm.weight", {hidden});
  add("model.layers.{}.post_attention_layernorm.bias", {hidden});
  add("model.layers.{}.mlp.up_proj.weight", {intermediate, hidden});
  add("model.layers.{}.mlp.up_proj.bias", {intermediate});
  add("model.layers.{}.mlp.down_proj.weight", {hidden, intermediate});
  add("model.layers.{}.mlp.down_proj.bias", {hidden});
  add("model.norm.weight", {hidden});
  add("model.norm.bias", {hidden});
  return family;
}

}  // namespace

ModelFamily gpt_family() {
  return shape_only_family("gpt");
}

ModelFamily opt_family() {
  return shape_only_family("opt");
}

}  // namespace cotune
