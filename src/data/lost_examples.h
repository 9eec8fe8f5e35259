/// Why nothing is left of records, for messages.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/diagnostics.h"
#include "data/dataset_reader.h"
#include "jobs/job.h"

namespace cotune {

/// What became of a record, where it gives no example.
enum class Loss {
  none,
  too_long,         ///< truncation: drop
  cut,              ///< to tokens of which none is learned
  not_rendered,     ///< a chat with an assistant message that is to be learned, and the template has none of its text
  no_answer,        ///< a chat without one
  not_labelled,     ///< tokens whose labels are all -100, but perhaps the first one's, which nothing predicts
  nothing_learned,  ///< of another format, the same
};

/// That of a record in whose example nothing is learned, before it is cut.
Loss loss_of_whole(const nlohmann::ordered_json& record, DataFormat format, bool train_on_prompt);

/// Adds that no example is left of the file: at the job's max_length or chat_template where the job gives it and it is the cause
/// of most, else at the option that names the file, else at the file. losses: how many records each cause has taken.
void add_nothing_left(const std::string& file, const std::map<Loss, int64_t>& losses, const DataRequest& request, DataPart part,
                      Diagnostics& mistakes);

}  // namespace cotune
