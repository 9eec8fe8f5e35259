#include "console/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// Of a beginning of a file, as much as `begins` has without white space.
bool begins_so(std::string_view text, std::string_view begins) {
  for (const char c : text) {
    if (begins.empty()) return true;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    if (c != begins.front()) return false;
    begins.remove_prefix(1);
  }
  return begins.empty();
}

constexpr std::string_view not_standard_output = "`-` is not standard output here: give a name; `./-` makes what is called `-`";

/// Nothing is lost where the file is replaced.
bool is_of_kind(const fs::path& file, const OutputKind& kind) {
  std::string head(1 << 10, '\0');
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return false;
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(stream.gcount()));
  return head.empty() || begins_so(head, kind.begins);
}

}  // namespace

void refuse_standard_output(std::string_view option, const fs::path& output) {
  if (output == "-") throw_user_error("{}: {}", option, not_standard_output);
}

void check_output(std::string_view option, const fs::path& file, const OutputKind& kind, Diagnostics& mistakes) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const auto mistake = [&](std::string text) { mistakes.add(std::string(option), 0, "", std::move(text)); };
  std::error_code unknown;
  if (file == "-") {
    mistake(std::string(not_standard_output));
  } else if (!fs::is_directory(folder, unknown)) {
    mistake(fmt::format("{} is no folder", folder.string()));
  } else if (fs::is_directory(file, unknown)) {
    mistake(fmt::format("{} is a folder; accepted is a file", file.string()));
  } else if (fs::exists(file, unknown) && !fs::is_regular_file(file, unknown)) {
    mistake(fmt::format("{} is no regular file, and would be replaced", file.string()));
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    mistake(fmt::format("no file can be made in {}: {}", folder.string(), std::strerror(errno)));
  } else if (fs::exists(file, unknown) && !is_of_kind(file, kind)) {
    mistake(fmt::format("{} is there, and is not {}: only such a file is replaced; name another one, or remove it", file.string(), kind.name));
  }
}

void check_output(std::string_view option, const fs::path& file, const OutputKind& kind) {
  Diagnostics mistakes;
  check_output(option, file, kind, mistakes);
  mistakes.throw_if_any();
}

void check_outputs(std::span<const Output> outputs) {
  Diagnostics mistakes;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, file, kind] = outputs[i];
    if (file.empty()) continue;
    check_output(option, file, kind, mistakes);
    for (const Output& before : outputs.first(i)) {
      if (before.file.empty() || fs::weakly_canonical(before.file) != fs::weakly_canonical(file)) continue;
      mistakes.add(std::string(option), 0, "", fmt::format("{} is that of {}, too; give each a file of its own", file.string(), before.option));
    }
  }
  mistakes.throw_if_any();
}

void write_output(std::string_view option, const fs::path& file, const OutputKind& kind, std::string_view text) {
  COTUNE_CHECK(begins_so(text, kind.begins), "{} begins as {}", kind.name, text.substr(0, 80));
  check_output(option, file, kind);
  write_file_atomically(where_link_leads(file), text);
}

}  // namespace cotune
