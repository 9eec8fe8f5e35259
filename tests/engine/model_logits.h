/// Logits of whole rows, by the operators of the list: for comparison with other implementations.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/backbone.h"
#include "engine/job_round.h"

namespace cotune::testing {

/// The rows of a [rows, tokens] tensor of token ids.
std::vector<BatchRow> rows_of(const at::Tensor& ids);

/// [all tokens, vocabulary], f64 on the CPU, the rows one after another in one microbatch. adapter: nullptr for the base model.
at::Tensor model_logits(const std::shared_ptr<const Backbone>& backbone, Adapter* adapter, std::vector<BatchRow> rows);

}  // namespace cotune::testing
