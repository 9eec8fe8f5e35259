/// Adapters on disk, as PEFT has them: adapter_config.json and adapter_model.safetensors (f32, PEFT's tensor names).
/// LoRA loads in PEFT unchanged. Methods that PEFT lacks use the same two files with `peft_type` COTUNE_BOTTLENECK and
/// COTUNE_DIFF_PRUNING (docs/adapter-format.md).
#pragma once

#include <filesystem>
#include <string>

#include "adapter/adapter.h"
#include "base/file.h"

namespace cotune {

inline constexpr const char* adapter_config_file = "adapter_config.json";
inline constexpr const char* adapter_model_file = "adapter_model.safetensors";

/// The bytes of the two files, of tensors one after the other: no more than one is copied at a time. base_model: the model's path,
/// `base_model_name_or_path`; a folder of the Hugging Face cache is written as the model's name, with its commit as `revision`.
std::string adapter_config_bytes(const Adapter& adapter, const std::string& base_model);
void write_adapter_model(const Adapter& adapter, const TakeBytes& take);

/// The moments of every parameter, for checkpoints: `NAME.first_moment`, `NAME.second_moment`, in the accumulation dtype
/// and in the parameters' own layout.
void write_optimizer_state(const Adapter& adapter, const TakeBytes& take);

/// Refuses a folder that holds adapter_model.bin alone, saying how to make the file that is read of it.
void refuse_pickled(const std::filesystem::path& folder);

/// Assigns values (and the structure that a method needs first) from a folder with the two files, and refreshes.
/// Throws UserError naming file and tensor: missing, unknown or wrongly shaped tensors, another method; and a folder that
/// refuse_pickled refuses.
void load_adapter(Adapter& adapter, const std::filesystem::path& folder);
/// Assigns the moments from a file that write_optimizer_state made.
void load_optimizer_state(Adapter& adapter, const std::filesystem::path& file);

/// What an existing adapter folder says of itself: the spec and modules to make an Adapter for generation, or to start a
/// job from. As in PEFT, names, expressions, pattern keys and layers that match nothing in the model are ignored. Throws UserError with
/// every mistake, file and field named: what cannot be read, PEFT methods and options that are not supported (DoRA, bias,
/// modules_to_save), and target_modules of which nothing is left to adapt.
AdapterSetup read_adapter_setup(const std::filesystem::path& folder, const ModelConfig& config);

}  // namespace cotune
