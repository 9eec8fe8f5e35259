/// Traces as CSV files.
///
///   arrival_min,duration_min,job,tenant,priority,deadline_min,rows,tokens,method,width,stops_after,dedicated
///   0.4,372,sql-r16,acme,1,1200,8,256,lora,16,1,0
///
/// The first line names the columns, in any order; fields may stand in double quotes. Lines that are empty or begin with #
/// are skipped.
///   arrival_min    required; minutes, at least 0. Lines need not be in its order
///   duration_min   required; above 0: minutes that all its steps take alone on an instance
///   job            name, of one line only; default: job and the number of the data line, from 0
///   tenant         default: default
///   priority       whole number, higher goes first; default 0
///   deadline_min   minutes, after the arrival; empty or inf: none
///   rows           examples of a step, 1 to 65536; default 8
///   tokens         of a row, 1 to 1048576; default 256
///   method         lora, bottleneck or diff_pruning; default lora
///   width          LoRA rank or bottleneck size, 1 to 4096; default 16
///   stops_after    above 0, at most 1: share of its steps after which the job stops early; default 1
///   dedicated      1: the job shares its instance with nobody; default 0
/// An empty field means the default. Columns of other names are ignored, and named in `ignored_columns`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/trace.h"

namespace cotune {

struct TraceFile {
  Trace trace;
  std::vector<int> lines;  ///< of each job
  std::vector<std::string> ignored_columns;
};

/// Throws UserError with one line per mistake: file, line, column, what was found and what is accepted.
TraceFile read_trace_file(const std::filesystem::path& path);
TraceFile parse_trace_file(std::string_view text, const std::string& file_name);

/// The trace as such a file: parse_trace_file reads the same trace from it, times to rounding.
std::string to_csv(const Trace& trace);

}  // namespace cotune
