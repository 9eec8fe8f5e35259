#include "data/lost_examples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/counted.h"
#include "data/records/chat_record.h"

namespace cotune {
namespace {

std::string limit_of(const DataRequest& request) {
  const int64_t most = longest_example(request);
  return fmt::format("{} tokens ({})", most, request.spec.max_length == most ? "max_length" : "the model's context");
}

/// "24 records are cut to …", and what to do about it.
std::string reason(Loss loss, int64_t count, const DataRequest& request) {
  const DataSpec& spec = request.spec;
  const bool is_one = count == 1, may_be_raised = spec.max_length == longest_example(request);
  const char *are = is_one ? "is" : "are", *have = is_one ? "has" : "have";
  const std::string records = counted(count, "record");
  switch (loss) {
    case Loss::none: break;
    case Loss::too_long:
      return fmt::format("{} {} longer than {} and left out (truncation: drop); {}`truncation: right` or `left` cuts them", records, are,
                         limit_of(request), may_be_raised ? "raise max_length, or " : "");
    case Loss::cut:
      if (spec.truncation == Truncation::left) {
        return fmt::format("{} {} cut to the last {}, of which none is learned{}", records, are, limit_of(request),
                           may_be_raised ? "; raise max_length" : "");
      }
      return fmt::format("{} {} cut to the first {}, before anything that is learned; {}`truncation: left` keeps the ends", records, are,
                         limit_of(request), may_be_raised ? "raise max_length, or " : "");
    case Loss::not_rendered:
      return fmt::format("the chat template renders no assistant message of {}; {}", records,
                         spec.chat_template.empty() ? "`data.chat_template` names another" : "accepted is one that does");
    case Loss::no_answer: return fmt::format("{} {} no assistant message that is learned", records, have);
    case Loss::not_labelled: return fmt::format("{} {} no label but -100 behind the first token", records, have);
    case Loss::nothing_learned: return fmt::format("{} {} nothing to learn behind the first token", records, have);
  }
  return "";
}

/// The option of the job to which the mistake belongs.
std::string option_at_fault(Loss loss, const JobSpec& job, DataPart part) {
  const bool is_length = loss == Loss::too_long || loss == Loss::cut;
  if (is_length && job.places.contains("data.max_length")) return "data.max_length";
  if (loss == Loss::not_rendered && job.places.contains("data.chat_template")) return "data.chat_template";
  return part == DataPart::eval ? "data.eval" : "data.train";
}

}  // namespace

Loss loss_of_whole(const nlohmann::ordered_json& record, DataFormat format, bool train_on_prompt) {
  if (format == DataFormat::tokens) return Loss::not_labelled;
  if (!is_chat(record, format)) return Loss::nothing_learned;
  const nlohmann::ordered_json chat = chat_of(record, format, train_on_prompt);
  const bool has_answer = std::ranges::any_of(chat["messages"], [&](const nlohmann::ordered_json& message) {
    const bool is_learned = !message.contains("weight") || message["weight"] != 0;
    return is_learned && (train_on_prompt || message.value("role", "") == "assistant");
  });
  return has_answer ? Loss::not_rendered : Loss::no_answer;
}

void add_nothing_left(const std::string& file, const std::map<Loss, int64_t>& losses, const DataRequest& request, DataPart part,
                      Diagnostics& mistakes) {
  std::vector<std::string> reasons;
  for (const auto& [loss, count] : losses) reasons.push_back(reason(loss, count, request));
  const std::string why = fmt::format("{}", fmt::join(reasons, "; "));
  const auto most = std::ranges::max_element(losses, {}, [](const auto& lost) { return lost.second; });
  const std::string option = request.job != nullptr && most != losses.end() ? option_at_fault(most->first, *request.job, part) : "";
  if (option.empty() || !request.job->places.contains(option)) return mistakes.add(file, 0, "", "no example is left: " + why);
  const OptionPlace place = request.job->place_of(option);
  mistakes.add(place.file, place.line, place.field, fmt::format("no example of {} is left to job `{}`: {}", file, request.job->name, why));
}

}  // namespace cotune
