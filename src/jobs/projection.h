/// The seven frozen products of a layer that an adapter can attach to, under the names Hugging Face gives them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace cotune {

enum class Projection { q, k, v, o, gate, up, down };

inline constexpr int projection_count = 7;

/// In the order of the enumeration.
inline constexpr std::array<std::string_view, projection_count> projection_names = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

inline constexpr std::array<Projection, projection_count> all_projections = {
    Projection::q,    Projection::k,  Projection::v,   Projection::o,
    Projection::gate, Projection::up, Projection::down};

/// `q_proj`, …, `down_proj`.
constexpr std::string_view projection_name(Projection projection) {
  return projection_names[static_cast<size_t>(projection)];
}

/// The submodule that holds the projection: `self_attn` or `mlp`.
constexpr std::string_view projection_parent(Projection projection) {
  return projection <= Projection::o ? "self_attn" : "mlp";
}

/// The module's full name in the Hugging Face model: `model.layers.3.self_attn.q_proj`.
inline std::string module_name(int64_t layer, Projection projection) {
  return "model.layers." + std::to_string(layer) + "." + std::string(projection_parent(projection)) + "." +
         std::string(projection_name(projection));
}

}  // namespace cotune
