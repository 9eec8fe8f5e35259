/// Fields that records have elsewhere and that no format here reads.
#pragma once

#include <string>
#include <vector>

namespace cotune {

/// How such records are written for us, to stand behind what was found: "; question and answer are …". "" where the fields say nothing.
std::string advice_for_fields(const std::vector<std::string>& found);

}  // namespace cotune
