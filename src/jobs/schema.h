/// What is generated from the option table for people and editors. schema/jobs.schema.json and the table in
/// docs/jobs-file.md are these texts; tests/jobs fails when they differ (COTUNE_UPDATE=1 rewrites them).
#pragma once

#include <string>

namespace cotune {

/// The JSON Schema (draft 2020-12) of a jobs file. It accepts every valid file; rules between keys (two names of one
/// option, keys of another method) are left to `cotune train --check`.
std::string jobs_file_schema();

/// Markdown: one table of options per section of the jobs file.
std::string option_tables_markdown();

}  // namespace cotune
