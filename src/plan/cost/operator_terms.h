/// What an operator's time grows with: the terms that measured times are fitted to (plan/cost/measured_times.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "schedule/profile.h"

namespace cotune {

/// Terms of one call; each grows with what it is named for, so that a time with coefficients ≥ 0 does. T tokens of the
/// microbatch, n of one job; per adapter w its width, p = w rounded up to 32 (the panels of our kernels), in and out of its
/// projection, a its job's atoms.
///   every kind             1
///   embedding, norms, swiglu   T
///   attention              T, pairs, row parts
///   head, loss_head        T, labelled; and 1 only where labelled > 0
///   products               T, T rounded up to 64;  then the adapters' terms
///   adapter gradients      T;                      then the adapters' terms, and those of their gradients
/// Adapters: LoRA         sites, n·p·in, n·p·out, n·in where it drops
///           bottleneck   sites, n·w·out, n·out
///           diff pruning sites, n·entries, n·(in + out)
/// Where tokens are divided T of norms and n of bottlenecks are of the largest slice.
/// Gradients: a, a·w·(in + out) of LoRA; a·w·out of bottleneck; a·entries of diff pruning
std::vector<double> operator_terms(const ModelConfig& config, const StageShape& stage, const Operator& op,
                                   const MicrobatchCounts& counts);

/// The same of a divided stage, for coefficients that were fitted to whole layers: a rank takes the call, of the terms of frozen weights and
/// heads the share of their operations that is its own (operator_cost), and what the sizes of its parts of adapters make of theirs.
std::vector<double> divided_operator_terms(const ModelConfig& config, const StageShape& stage, const Operator& op,
                                           const MicrobatchCounts& counts);

/// The names of the same, in their order.
std::vector<std::string> operator_term_names(const std::string& profile_key);

/// Of one round, by profile_key: terms summed over all calls, and how many calls there are. `round` has one call and the
/// terms 1, microbatches, tokens, adapters of every microbatch, trained values, adapters of every job.
struct StepTerms {
  std::vector<double> sums;
  int64_t calls = 0;
};
std::map<std::string, StepTerms> step_terms(const ModelConfig& config, const PlannedStep& step);

}  // namespace cotune
