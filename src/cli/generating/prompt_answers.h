#pragma once

#include "cli/generating/generate_options.h"
#include "cli/inputs/adapted_model.h"

namespace cotune {

/// `cotune generate --prompts`: answers every prompt of a file by every adapter, as many at once as memory allows; an answer that ends
/// gives its place to the next at once. All prompts are read and checked before the model is loaded. Returns what to exit with.
int answer_prompts(const GenerateOptions& options, AdaptedModel& model);

}  // namespace cotune
