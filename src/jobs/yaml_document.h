/// YAML text to nodes, safe for hostile text.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

namespace cotune {

/// Largest text that is read, in bytes.
inline constexpr size_t largest_jobs_file = 1 << 20;
/// Of effective configurations, which spell out every job.
inline constexpr size_t largest_configuration = 64 << 20;

/// The one document in the text; a null node when there is none. Throws UserError naming file and line: malformed or
/// too large text, bytes that are not UTF-8, several documents, nesting deeper than 50 levels.
/// Aliases are shared nodes: walking a document may visit far more nodes than it has bytes.
YAML::Node load_yaml_document(std::string_view text, const std::string& file_name, size_t largest = largest_jobs_file);

/// 1-based line of a node; 0 when it has none.
int line_of(const YAML::Node& node);

}  // namespace cotune
