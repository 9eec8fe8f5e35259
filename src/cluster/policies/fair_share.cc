#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// The tenant that has had least goes first: seconds of instances so far, and an hour ahead for each job that runs, so that
/// a tenant does not take everything that is free at one moment. First come first served within a tenant. A tenant that is
/// more than a day behind another pushes out one of its jobs.
class FairShare : public SchedulingPolicy {
 public:
  std::string_view name() const override { return "fair"; }
  double rank(const JobFacts&) const override { return 0; }
  bool orders_tenants() const override { return true; }
  double tenant_rank(const TenantFacts& tenant) const override {
    return tenant.service_s + ahead_s * static_cast<double>(tenant.running_jobs);
  }
  double tenant_lead() const override { return behind_s; }
  bool is_preemptive() const override { return true; }
  bool preempts(const Contender& waiting, const Contender& running) const override {
    return tenant_rank(waiting.tenant) + behind_s < tenant_rank(running.tenant);
  }

 private:
  static constexpr double ahead_s = 3600, behind_s = 24 * 3600;
};

}  // namespace

std::unique_ptr<SchedulingPolicy> fair_share() { return std::make_unique<FairShare>(); }

}  // namespace cotune
