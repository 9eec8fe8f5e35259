#include "base/record_mistakes.h"

#include <fmt/format.h>

namespace cotune {

namespace {

constexpr int64_t most_reported = 20, most_alike = 3;

}  // namespace

void RecordMistakes::add(int line, const std::string& field, const std::string& message) {
  ++count_;
  if (reported_ == most_reported || ++alike_[field + message] > most_alike) {
    last_line_ = line;
    return;
  }
  ++reported_;
  diagnostics_.add(file_, line, field, message);
}

void RecordMistakes::finish() {
  if (count_ == reported_) return;
  diagnostics_.add(file_, last_line_, "", fmt::format("and {} more such {}s, this is the last", count_ - reported_, unit_));
}

}  // namespace cotune
