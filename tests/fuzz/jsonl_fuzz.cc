/// Any bytes as a training file give examples whose tokens and labels agree, or mistakes with their lines.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "data/dataset_reader.h"
#include "data/records/compressed_stream.h"
#include "data/records/jsonl.h"

namespace {

/// One token per byte; <a> and <b> are special.
class ByteEncoder : public cotune::TextEncoder {
 public:
  std::vector<int32_t> encode_plain(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<cotune::SpecialMatch> find_special(std::string_view text) const override {
    std::vector<cotune::SpecialMatch> found;
    for (size_t i = 0; i + 3 <= text.size(); ++i) {
      if (text.substr(i, 3) == "<a>" || text.substr(i, 3) == "<b>") found.push_back({i, i + 3, 200 + text[i + 1]});
    }
    return found;
  }
  std::string token_bytes(int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string{'<', static_cast<char>(id - 200), '>'};
  }
  std::vector<int32_t> prefix() const override { return {297}; }
  std::optional<int32_t> eos_id() const override { return 298; }
  std::string hash() const override { return "bytes"; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const ByteEncoder encoder;
  static const cotune::ChatTemplate chat(
      "{% for m in messages %}<a>{{ m.role }}\n{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}<b>\n{% endfor %}"
      "{% if add_generation_prompt %}<a>assistant\n{% endif %}",
      "template", {});
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
