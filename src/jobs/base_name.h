/// The one name that no job may have.
#pragma once

namespace cotune {

/// What stands for the model without an adapter, where adapters are chosen and in tables of results.
inline constexpr const char* base_name = "base";

}  // namespace cotune
