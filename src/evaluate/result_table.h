/// What an evaluation has found, for people and for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluate/estimate.h"

namespace cotune {

struct MetricValue {
  std::string name;       ///< `loss`, `exact_match`, …
  bool is_share = false;  ///< of examples: shown in percent
  Estimate value;         ///< NaN: the model's output was not finite
  Estimate change;        ///< from the first adapter; NaN: of that one, or not meant
};

struct AdapterResult {
  std::string adapter;
  std::vector<MetricValue> metrics;  ///< the same ones in the same order for every adapter
};

/// One set of examples.
struct EvaluationResult {
  std::string data;
  int64_t examples = 0;
  int64_t tokens = 0;  ///< learned; 0: none are counted
  std::vector<AdapterResult> adapters;
};

/// A heading and a table: a block a metric, a row an adapter, with standard errors. Where that is wider than so many columns, a list of
/// the same. Ends with a newline.
std::string result_table(const EvaluationResult& result, bool unicode = true, size_t columns = std::string::npos);

/// A JSON object an adapter: data, adapter, examples, tokens, then of each metric `NAME`, `NAME_stderr`, `NAME_change` and
/// `NAME_change_stderr`. Values that are not finite are null.
std::vector<nlohmann::ordered_json> result_lines(const EvaluationResult& result);

}  // namespace cotune
