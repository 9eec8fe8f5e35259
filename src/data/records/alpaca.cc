#include "data/records/alpaca.h"

#include <fmt/format.h>

#include "data/records/record_error.h"

namespace cotune {

std::string alpaca_prompt(const nlohmann::ordered_json& record) {
  const std::string& instruction = string_field(record, "instruction");
  const auto input = record.find("input");
  if (input == record.end() || input->is_null() || string_field(record, "input").empty()) {
    return fmt::format(
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        "\n\n### Instruction:\n{}\n\n### Response:\n",
        instruction);
  }
  return fmt::format(
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
      instruction, string_field(record, "input"));
}

}  // namespace cotune
