#include "data/spooled_entries.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/descriptor.h"
#include "base/error.h"

namespace cotune {
namespace {

constexpr size_t most_in_memory = size_t{1} << 16;

[[noreturn]] void fail(const char* action, const std::filesystem::path& folder) {
  throw SystemError(fmt::format("{}: cannot {} a temporary file: {}", folder.string(), action, std::strerror(errno)));
}

int open_without_name(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0) return descriptor;
  std::string name = (folder / "spool.XXXXXX").string();  // a file system without such files
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) fail("create", folder);
  ::unlink(name.c_str());
  return named;
}

}  // namespace

SpooledEntries::~SpooledEntries() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SpooledEntries::add(const ExampleEntry& entry) {
  latest_.push_back(entry);
  ++size_;
  if (latest_.size() == most_in_memory) spill();
}

void SpooledEntries::spill() {
  if (descriptor_ < 0) descriptor_ = open_without_name(folder_);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(latest_));
  if (!write_all(descriptor_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()})) fail("write", folder_);
  spilled_ += latest_.size();
  latest_.clear();
}

void SpooledEntries::for_each_part(const std::function<void(std::span<const ExampleEntry>)>& use) {
  std::vector<ExampleEntry> part;
  for (size_t at = 0; at < spilled_; at += part.size()) {
    part.resize(std::min(most_in_memory, spilled_ - at));
    std::span<std::byte> bytes = std::as_writable_bytes(std::span(part));
    auto offset = static_cast<off_t>(at * sizeof(ExampleEntry));
    while (!bytes.empty()) {
      const ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("read", folder_);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += count;
    }
    use(part);
  }
  use(latest_);
}

}  // namespace cotune
