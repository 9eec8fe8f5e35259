/// Names that are safe as folder names and in URLs.
#pragma once

#include <algorithm>
#include <string_view>

namespace cotune {

/// [A-Za-z0-9._-]+, not starting with '.', at most 100 characters.
constexpr bool is_identifier(std::string_view text) {
  const auto allowed = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !text.empty() && text.size() <= 100 && text[0] != '.' && std::all_of(text.begin(), text.end(), allowed);
}

/// The same of what users call their jobs: it does not begin as an option of a command line does.
constexpr bool is_job_identifier(std::string_view text) { return is_identifier(text) && text[0] != '-'; }

}  // namespace cotune
