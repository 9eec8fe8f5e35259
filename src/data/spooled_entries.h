/// A long list of examples' places that is kept on disk while it grows.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace cotune {

/// Holds what was added in memory up to a limit, and then in a file without a name in `folder`.
class SpooledEntries {
 public:
  explicit SpooledEntries(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~SpooledEntries();
  SpooledEntries(const SpooledEntries&) = delete;
  SpooledEntries& operator=(const SpooledEntries&) = delete;

  /// Throws SystemError where the disk refuses.
  void add(const ExampleEntry& entry);
  size_t size() const { return size_; }
  /// Calls use with all of them, in order, a part at a time.
  void for_each_part(const std::function<void(std::span<const ExampleEntry>)>& use);

 private:
  void spill();

  std::filesystem::path folder_;
  int descriptor_ = -1;
  std::vector<ExampleEntry> latest_;
  size_t size_ = 0, spilled_ = 0;
};

}  // namespace cotune
