/// Any bytes as a template either render a chat within small limits or are refused as the user's mistake.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/template/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune::jinja;
  static const nlohmann::ordered_json messages = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": " hé\u4e00 "}, {"role": "assistant", "content": "x", "tool_calls": [{"n": 1.5}]}])");
  const Limits limits{200'000, size_t{1} << 20, 400};
  try {
    Template(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz")
        .render({{"messages", from_json(messages, 1)},
                 {"tools", None{}},
                 {"bos_token", Value::text("<s>")},
                 {"eos_token", Value::text("</s>")},
                 {"add_generation_prompt", true}},
                std::nullopt, limits);
  } catch (const cotune::UserError&) {
  }
  return 0;
}
