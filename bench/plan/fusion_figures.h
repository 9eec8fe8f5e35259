/// How near the fused jobs are to the best, and how long it takes: rows of planning_bench's table.
#pragma once

namespace cotune {

void print_fusion_figures();

}  // namespace cotune
