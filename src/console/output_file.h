/// Files that a command is told to write: whatever else stands there is not lost by a slip.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "base/diagnostics.h"

namespace cotune {

/// Of a kind of file that commands write whole: what it is, and how each begins, without white space.
struct OutputKind {
  std::string_view name, begins;
};

inline constexpr OutputKind plan_output{"a plan", R"({"cotune_plan":)"};
inline constexpr OutputKind profile_output{"a profile", R"({"cotune_profile":)"};
inline constexpr OutputKind trace_output{"a trace for ui.perfetto.dev", R"({"displayTimeUnit":)"};
inline constexpr OutputKind picture_output{"an SVG picture", "<svg"};
inline constexpr OutputKind report_output{"a report", R"(<!DOCTYPEhtml><htmllang="en"><head><metacharset="utf-8">)"};
inline constexpr OutputKind evaluation_output{"answers of this command", R"({"data":)"};
inline constexpr OutputKind answers_output{"answers of this command", R"({"index":)"};

/// Throws UserError where it is `-`, which elsewhere means standard output. output: a file or a folder.
void refuse_standard_output(std::string_view option, const std::filesystem::path& output);

/// Adds a mistake where no file of this kind may be made: it is `-`, which elsewhere means standard output; there is no such folder, or
/// none that takes files; or what stands there is no regular file, or neither empty nor begins as the kind does. option: which names it.
void check_output(std::string_view option, const std::filesystem::path& file, const OutputKind& kind, Diagnostics& mistakes);
/// The same for one file; throws UserError.
void check_output(std::string_view option, const std::filesystem::path& file, const OutputKind& kind);

struct Output {
  std::string_view option;
  std::filesystem::path file;  ///< empty: not asked for
  OutputKind kind;
};

/// The same for all of a command, of which no two may be one file. Throws UserError with all mistakes.
void check_outputs(std::span<const Output> outputs);

/// Checks, then writes the whole file at once. Throws UserError, SystemError; InternalError where the text does not begin as its kind does.
void write_output(std::string_view option, const std::filesystem::path& file, const OutputKind& kind, std::string_view text);

}  // namespace cotune
