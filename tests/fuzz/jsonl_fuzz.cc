/// Any bytes as a training file give examples whose tokens and labels agree, or mistakes with their lines.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "byte_encoder.h"
#include "data/dataset_reader.h"
#include "data/records/compressed_stream.h"
#include "data/records/jsonl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const cotune::ByteEncoder encoder;
  static const cotune::ChatTemplate chat(
      "{% for m in messages %}<a>{{ m.role }}\n{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}<b>\n{% endfor %}"
      "{% if add_generation_prompt %}<a>assistant\n{% endif %}",
      "template", {}, {}, {.steps = 5'000'000});
  cotune::DataSpec spec;
  spec.truncation = static_cast<cotune::Truncation>(data[0] % 4);
  spec.max_length = data[0] / 4;
  spec.eval_fraction = 0.3;
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  const cotune::Compression compression = cotune::compression_of(stream);
  std::unique_ptr<std::istream> content;
  if (compression != cotune::Compression::none) content = cotune::decompress(stream, compression, {1 << 16, 20});
  cotune::JsonlReader lines(content ? *content : stream);
  cotune::Dataset train, eval;
  cotune::Diagnostics diagnostics;
  try {
    cotune::ExamplesInMemory sink(train, eval);
    cotune::read_records(lines, "fuzz", {spec, encoder, &chat, 64}, true, sink, diagnostics);
  } catch (const cotune::UserError&) {  // the compressed data are damaged
  }
  for (const cotune::Diagnostic& mistake : diagnostics.items()) {
    if (mistake.message.starts_with("bug in cotune")) std::abort();
  }
  for (const cotune::Dataset* dataset : {&train, &eval}) {
    for (int64_t i = 0; i < dataset->size(); ++i) {
      const cotune::Example example = dataset->example(i);
      if (example.tokens.size() != example.learned.size() || example.tokens.size() > 64 || example.learned[0] != 0) std::abort();
      cotune::describe_example(example, encoder, cotune::Marking::brackets);
    }
    dataset->content_hash();
  }
  return 0;
}
