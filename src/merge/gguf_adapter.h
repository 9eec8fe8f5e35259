/// A LoRA adapter as a GGUF file for llama.cpp (`llama-cli --lora FILE`), in the layout that its convert_lora_to_gguf.py writes and
/// its llama-adapter.cpp reads.
#pragma once

#include <filesystem>
#include <string>

#include "adapter/adapter.h"
#include "formats/gguf.h"

namespace cotune {

/// general.type adapter, general.architecture the model's, adapter.type lora, adapter.lora.alpha; for each adapted weight NAME (as
/// llama.cpp calls it) NAME.lora_a [r, in] and NAME.lora_b [out, r], of `type` F32 or F16. The rows of q and k stand in the order in
/// which the model's files have them there (GgufRows).
///
/// llama.cpp scales by alpha/r with one alpha for all. It is the adapter's own where every module says that; where some module's
/// scale is another (alpha_pattern, rsLoRA), its lora_b is multiplied by what is missing.
/// For an alpha of 0, which llama.cpp takes for none, the file says the first module's r, and lora_b holds the scale.
/// Throws UserError for a method that is not LoRA, and for values that `type` cannot hold.
void write_gguf_adapter(const std::filesystem::path& path, const Adapter& adapter, GgufType type, const std::string& name);

}  // namespace cotune
