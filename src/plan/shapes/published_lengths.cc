#include "plan/shapes/published_lengths.h"

#include <fmt/ranges.h>

#include <cmath>
#include <functional>

#include "base/diagnostics.h"
#include "base/error.h"

namespace cotune {
namespace {

constexpr PublishedDataset datasets[] = {
    {"dolly", 207, 7.11, 256, 8192},          {"python-code", 269, 10.01, 128, 16384},
    {"evol-instruct", 702, 6.59, 128, 16384}, {"commitpackft", 663, 0.79, 128, 8192},
    {"mathinstruct", 252, 3.03, 128, 4096},   {"metamathqa", 236, 2.56, 128, 4096},
    {"numinamath", 543, 1.52, 256, 8192},     {"pubmedqa", 371, 0.73, 64, 4096},
    {"xsum", 526, 7.49, 128, 16384},          {"billsum", 3903, 0.85, 32, 16384},
    {"cnn-dailymail", 947, 0.89, 256, 8192},  {"meetingbank", 3622, 4.35, 64, 16384},
};

/// A data set whose rows are all padded or cut to one length.
struct FixedLength {
  std::string_view name;
  int64_t tokens = 0;
};
constexpr FixedLength of_one_length[] = {
    {"muxtune-sst2", 64}, {"muxtune-openbookqa", 128}, {"muxtune-rte", 256}, {"mlora-512", 512}};

/// The root of an increasing function between low and high.
double root(const std::function<double(double)>& increasing, double low, double high) {
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (increasing(middle) < 0 ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

/// Regularised lower incomplete gamma function P(k, x): series below k + 1, continued fraction (Lentz) above.
double gamma_share(double k, double x) {
  if (x <= 0) return 0;
  const double scale = std::exp(-x + k * std::log(x) - std::lgamma(k));
  if (x < k + 1) {
    double term = 1 / k, sum = term;
    for (int n = 1; n < 1000 && term > sum * 1e-16; ++n) sum += term *= x / (k + n);
    return sum * scale;
  }
  constexpr double tiny = 1e-300;
  double b = x + 1 - k, c = 1 / tiny, d = 1 / b, h = d;
  for (int i = 1; i < 1000; ++i) {
    const double a = -i * (i - k);
    b += 2;
    d = a * d + b;
    d = 1 / (std::abs(d) < tiny ? tiny : d);
    c = b + a / c;
    if (std::abs(c) < tiny) c = tiny;
    h *= c * d;
    if (std::abs(c * d - 1) < 1e-15) break;
  }
  return 1 - scale * h;
}

double weibull_skewness(double shape) {
  const double g1 = std::tgamma(1 + 1 / shape), g2 = std::tgamma(1 + 2 / shape), g3 = std::tgamma(1 + 3 / shape);
  const double variance = g2 - g1 * g1;
  return (g3 - 3 * g1 * variance - g1 * g1 * g1) / std::pow(variance, 1.5);
}

/// Share of examples of at most x tokens.
std::function<double(double)> distribution(LengthFamily family, double mean, double skewness) {
  switch (family) {
    case LengthFamily::lognormal: {
      const double w = root([=](double v) { return (v + 2) * std::sqrt(v - 1) - skewness; }, 1, 1e6);
      const double sigma = std::sqrt(std::log(w)), mu = std::log(mean) - 0.5 * sigma * sigma;
      return [=](double x) { return 0.5 * std::erfc((mu - std::log(x)) / (sigma * std::sqrt(2.0))); };
    }
    case LengthFamily::gamma: {
      const double shape = 4 / (skewness * skewness), scale = mean / shape;
      return [=](double x) { return gamma_share(shape, x / scale); };
    }
    case LengthFamily::weibull: {
      const double shape = root([=](double k) { return skewness - weibull_skewness(k); }, 0.1, 3.5);
      const double scale = mean / std::tgamma(1 + 1 / shape);
      return [=](double x) { return 1 - std::exp(-std::pow(x / scale, shape)); };
    }
  }
  COTUNE_CHECK(false, "length family {}", static_cast<int>(family));
}

}  // namespace

std::span<const PublishedDataset> published_datasets() {
  return datasets;
}

std::string_view to_string(LengthFamily family) {
  switch (family) {
    case LengthFamily::lognormal: return "lognormal";
    case LengthFamily::gamma: return "gamma";
    case LengthFamily::weibull: return "weibull";
  }
  return "";
}

LengthHistogram fitted_lengths(LengthFamily family, double mean, double skewness, int64_t longest, int64_t step) {
  COTUNE_CHECK(mean > 0 && skewness > 0 && longest > 0 && step > 0);
  const auto share = distribution(family, mean, skewness);
  LengthHistogram histogram;
  double before = 0;
  for (int64_t length = std::min(step, longest); length < longest; length = std::min(length + step, longest)) {
    const double now = share(static_cast<double>(length));
    if (now - before >= 1e-9) histogram.weights.emplace_back(length, now - before);
    before = now;
  }
  histogram.weights.emplace_back(longest, std::max(1e-12, 1 - before));
  return histogram;
}

std::vector<std::string> published_length_names() {
  std::vector<std::string> names;
  for (const PublishedDataset& dataset : datasets) {
    for (const LengthFamily family : all_length_families) names.push_back(fmt::format("{}-{}", dataset.name, to_string(family)));
  }
  for (const FixedLength& each : of_one_length) names.emplace_back(each.name);
  return names;
}

LengthHistogram published_lengths(std::string_view name) {
  for (const PublishedDataset& dataset : datasets) {
    for (const LengthFamily family : all_length_families) {
      if (name != fmt::format("{}-{}", dataset.name, to_string(family))) continue;
      return fitted_lengths(family, dataset.mean, dataset.skewness, dataset.longest);
    }
  }
  for (const FixedLength& each : of_one_length) {
    if (name == each.name) return {.weights = {{each.tokens, 1.0}}};
  }
  const std::string near = nearest_name(std::string(name.substr(0, 60)), published_length_names());
  throw_user_error("length histogram '{}' is not known{}; accepted: a file, or one of {}", name.substr(0, 60),
                   near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), fmt::join(published_length_names(), ", "));
}

}  // namespace cotune
