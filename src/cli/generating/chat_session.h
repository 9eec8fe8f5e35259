#pragma once

#include "cli/generating/generate_options.h"
#include "cli/inputs/adapted_model.h"

namespace cotune {

/// `cotune generate --chat`: what is typed gets an answer from every adapter, each of which has a conversation of its own, kept in
/// --session. On a terminal mistakes are told and the chat goes on; a pipe that is mistaken ends it. Loads the model. Returns what to
/// exit with.
int chat(const GenerateOptions& options, AdaptedModel& model);

}  // namespace cotune
