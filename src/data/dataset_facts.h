/// The facts in a file of tokenized data (dataset_file.h), as JSON.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace cotune {

struct DatasetFacts {
  std::vector<FileReport> reports;               ///< without names; a count that JSON lacks is 0
  std::array<std::vector<int64_t>, 2> sources;   ///< where the examples of each file begin, in train and in eval
  std::array<std::vector<std::string>, 2> source_hashes;  ///< of these examples (Dataset::source_hash); none where JSON has none
  std::vector<std::string> original_paths;
};

std::string to_json(const DatasetFacts& facts);
/// Throws UserError, without the file's name.
DatasetFacts facts_of(std::string_view json);

}  // namespace cotune
