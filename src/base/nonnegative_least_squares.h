#pragma once

#include <vector>

namespace cotune {

/// The x ≥ 0 that minimises |A·x − b|² (Lawson & Hanson 1974, chapter 23). rows: those of A, each as long as the first.
/// Columns are scaled to unit length; one that is zero, or that the others make up already, gets 0.
std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& rows, const std::vector<double>& b);

}  // namespace cotune
