#pragma once

#include <string>
#include <vector>

namespace cotune {

/// What happened to the jobs of a run at once, for people.
class JobChangeTexts {
 public:
  /// what: `joins`, `leaves`, `pauses` or a status.
  void add(const std::string& job, const std::string& what);
  /// A text each: "`a` joins"; of more than three to which the same happened one: "12 jobs join".
  std::vector<std::string> texts() const;

 private:
  struct Change {
    std::string what;
    std::vector<std::string> jobs;
  };
  std::vector<Change> changes_;
};

}  // namespace cotune
