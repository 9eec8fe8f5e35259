/// Any bytes as a file of tokenized data give examples that lie within them, or a reason why they are none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset_file.h"

namespace {

/// Reads everything of a file that was taken for sound.
void walk(std::span<const std::byte> bytes, cotune::DatasetCheck check) {
  try {
    const cotune::DatasetFile file = cotune::DatasetFile::of_bytes(bytes, check);
    const cotune::JobData data = file.data(std::vector<std::string>(file.file_count(), "name"));
    uint64_t sum = 0;
    for (const cotune::Dataset* dataset : {&data.train, &data.eval}) {
      for (int64_t i = 0; i < dataset->size(); ++i) {
        if (dataset->tokens(i).size() != dataset->learned(i).size()) std::abort();
        for (const int32_t token : dataset->tokens(i)) sum += static_cast<uint32_t>(token);
        for (const uint8_t flag : dataset->learned(i)) sum += flag;
        sum += dataset->source(i).size() + static_cast<uint64_t>(dataset->length(i));
      }
      for (size_t source = 0; source < dataset->source_count(); ++source) {
        if (dataset->source_size(source) < 0) std::abort();
      }
      cotune::lengths_of(*dataset);
    }
    for (const cotune::FileReport& report : data.files) sum += report.to_string().size();
    volatile uint64_t read = sum;  // all of it
    (void)read;
  } catch (const cotune::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<cotune::ExampleEntry> aligned((size + sizeof(cotune::ExampleEntry) - 1) / sizeof(cotune::ExampleEntry));
  if (size > 0) std::memcpy(aligned.data(), data, size);
  const auto bytes = std::as_bytes(std::span(aligned)).first(size);
  walk(bytes, cotune::DatasetCheck::places);  // as if all checksums were right
  walk(bytes, cotune::DatasetCheck::all);
  return 0;
}
