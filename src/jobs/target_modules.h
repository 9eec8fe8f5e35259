/// Which projections of which layers a job adapts, by the rules of PEFT 0.21 (`check_target_module_exists`,
/// `get_pattern_key`), on the module names `model.layers.N.self_attn.q_proj`, `model.layers.N.mlp.gate_proj`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "jobs/projection.h"

namespace cotune {

/// One adapted projection.
struct AdaptedModule {
  int64_t layer = 0;
  Projection projection = Projection::q;
  int64_t r = 0;      ///< LoRA: rank (rank_pattern or r). Bottleneck: bottleneck_size. Diff pruning: 0.
  double alpha = 0;   ///< LoRA: alpha_pattern or alpha; the scale is alpha/r, or alpha/sqrt(r) with use_rslora. Else 0.
  bool operator==(const AdaptedModule&) const = default;
};

/// Names, expressions, keys and layers that match nothing are slips of who wrote a job. PEFT ignores them, so that one configuration serves
/// several architectures: in an adapter's own configuration its tensors tell what it adapts.
enum class Unmatched { refused, ignored };

/// The job's adapted modules, ordered by layer, then as in Projection.
///
/// target_modules
///   empty            LoRA: q_proj and v_proj (PEFT's default for Llama). Diff pruning: all-linear.
///   {"all-linear"}   the seven projections of every layer.
///   plain names      a module is taken when its full name is a name or ends in `.name`.
///   one expression   (text with a character outside [A-Za-z0-9_.]) a module is taken when the whole name matches.
/// exclude_modules    names or one expression, as above; what matches is left out.
/// layers_to_transform  other layers are left out, except where target_modules gives a module's full name.
/// rank_pattern, alpha_pattern   the first key with which `(.*\.)?(key)$` matches the full name gives the value.
/// Bottleneck adapters always sit on o_proj and down_proj; of the above only layers_to_transform applies.
///
/// Throws UserError with every mistake, job and field named: a name, expression or pattern key matches no module of the model,
/// a layer is outside 0..layer_count-1, an expression is malformed or needs too much backtracking; where there is none of these:
/// nothing is left to adapt, or a pattern key matches no adapted module. Unmatched::ignored: entries and layers that match nothing are no
/// mistakes, unless nothing is left to adapt.
std::vector<AdaptedModule> resolve_target_modules(const JobSpec& job, int64_t layer_count, Unmatched unmatched = Unmatched::refused);

/// What target_modules accepts, for messages: "q_proj, k_proj, …, down_proj, `all-linear` or one regular expression".
std::string accepted_target_modules();

}  // namespace cotune
