/// Parts of planning_bench: each prints rows of the table in docs/planning.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/deployment/configuration.h"
#include "plan/shapes/length_buckets.h"

namespace cotune {

using Counts = std::vector<int64_t>;

void print_row(const std::string& what, const std::string& paper, const std::string& goal, const std::string& here);

/// " (**missed**)" behind a figure that does not meet its goal; "" behind one that does.
const char* missed_unless(bool is_met);

/// `<1,1>×6, <8,1>×1`, and the other way round by name.
std::string plan_text(std::span<const Configuration> configurations, const Counts& replicas);
Counts replicas_of(std::span<const Configuration> configurations, const std::vector<std::pair<std::string, int64_t>>& plan);

/// A hundred steps' buckets, with a hundredth of their sequences rounded up.
LengthBuckets expected_of(const Counts& lengths_of_a_hundred_steps);

/// The path of a file of bench/plan/data.
std::string data_file(const std::string& name);

void ablation_rows();
void table6_rows();
void published_7b_plan_rows();
void published_plan_rows();
void muxtune_throughput_rows();
void muxtune_memory_rows();
void mlora_throughput_rows();
void literal_form_rows();
void lobra_step_rows();
void chunk_time_rows();
void scaling_rows();
void dispatch_optimum_rows();
void order_rows();
void deployment_rows();
void sharing_curve_rows();

}  // namespace cotune
