#include "schedule/memory/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace cotune {

bool goes_before(const AdmissionCandidate& a, const AdmissionCandidate& b) {
  return std::tuple(-a.priority, a.deadline, a.arrival, a.job) < std::tuple(-b.priority, b.deadline, b.arrival, b.job);
}

std::string AdmissionRefusal::to_string(int64_t asked_bytes) const {
  constexpr double mib = 1024.0 * 1024.0;
  const double needed = static_cast<double>(needed_bytes) / mib, given = static_cast<double>(limit_bytes) / mib;
  if (asked_bytes == 0 || asked_bytes == limit_bytes) {
    return fmt::format("needs {:.1f} MiB by itself, the limit is {:.1f} MiB; it is exceeded at {}", needed, given, term);
  }
  return fmt::format("needs {:.1f} MiB by itself, model included; the limit of {:.1f} MiB leaves {:.1f} MiB beside the program "
                     "itself; it is exceeded at {}",
                     needed, static_cast<double>(asked_bytes) / mib, given, term);
}

Admission admit(std::span<const AdmissionCandidate> candidates, int64_t limit_bytes, const PredictPeak& predict) {
  std::vector<AdmissionCandidate> order(candidates.begin(), candidates.end());
  std::sort(order.begin(), order.end(), goes_before);
  Admission admission;
  for (const AdmissionCandidate& candidate : order) {
    if (candidate.running) admission.admitted.push_back(candidate.job);
  }
  for (const AdmissionCandidate& candidate : order) {
    if (candidate.running) continue;
    admission.admitted.push_back(candidate.job);
    if (predict(admission.admitted).total() <= limit_bytes) continue;
    admission.admitted.pop_back();
    const MemoryEstimate alone = predict(std::array{candidate.job});
    if (alone.total() > limit_bytes) {
      admission.refused.push_back(
          {candidate.job, alone.overflowing_term(limit_bytes), alone.total(), limit_bytes});
    } else {
      admission.waiting.push_back(candidate.job);
    }
  }
  return admission;
}

std::vector<int32_t> jobs_to_put_out(std::span<const AdmissionCandidate> candidates, int32_t waiting, int64_t limit_bytes,
                                     const PredictPeak& predict) {
  const auto high = std::find_if(candidates.begin(), candidates.end(), [&](const auto& each) { return each.job == waiting; });
  std::vector<AdmissionCandidate> lower;
  std::vector<int32_t> together;
  for (const AdmissionCandidate& candidate : candidates) {
    if (!candidate.running) continue;
    together.push_back(candidate.job);
    if (candidate.priority < high->priority) lower.push_back(candidate);
  }
  together.push_back(waiting);
  const auto fits = [&] { return predict(together).total() <= limit_bytes; };
  std::sort(lower.begin(), lower.end(), [](const auto& a, const auto& b) { return goes_before(b, a); });
  std::vector<int32_t> out;
  for (size_t i = 0; i < lower.size() && !fits(); ++i) {
    out.push_back(lower[i].job);
    std::erase(together, lower[i].job);
  }
  if (!fits()) return {};
  // One that was put out before a larger one may stay after all; the first in the order has the first chance.
  for (size_t i = out.size(); i-- > 0;) {
    together.push_back(out[i]);
    if (fits()) {
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      together.pop_back();
    }
  }
  return out;
}

int32_t job_to_pause(std::span<const AdmissionCandidate> candidates) {
  const AdmissionCandidate* last = nullptr;
  for (const AdmissionCandidate& candidate : candidates) {
    if (candidate.running && (last == nullptr || goes_before(*last, candidate))) last = &candidate;
  }
  return last == nullptr ? -1 : last->job;
}

}  // namespace cotune
