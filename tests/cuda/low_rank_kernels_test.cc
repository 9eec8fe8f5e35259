// The GPU's low-rank kernels, through the operators, against f64 on the CPU: any ranks, widths and groups, jobs that do not
// know of one another. Run on a GPU only: COTUNE_TEST_DEVICE=cuda build/test_cuda.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "cuda/gpu_test.h"
#include "ops/frozen_product.h"
#include "ops/low_rank.h"

namespace cotune::testing {
namespace {

class LowRankKernels : public GpuTest<int> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    at::manual_seed(static_cast<uint64_t>(GetParam()));
    random_.seed(static_cast<unsigned>(GetParam()));
  }

  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  /// Normal values that bf16 holds exactly, on the device.
  at::Tensor values(int64_t rows, int64_t columns, double scale = 1) {
    return (at::randn({rows, columns}) * scale).to(at::kBFloat16).to(test_device());
  }

  std::mt19937 random_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, LowRankKernels, ::testing::Range(0, 12));


struct Job {
  RowRange rows;
  at::Tensor down, up;  ///< masters, f32: [rank, in], [rank, out]
  std::unique_ptr<LowRankFactor> a, b;
  double scale = 1;
};

/// Jobs with disjoint rows, some with none; gaps between them belong to nobody.
struct Site {
  int64_t tokens = 0, in = 0, out = 0;
  std::vector<Job> jobs;
};

Site random_site(std::mt19937& random, int64_t job_count, int64_t most_rows = 150) {
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  const std::vector<int64_t> widths{8, 40, 64, 72, 576, 1032, 4096}, ranks{1, 2, 3, 7, 8, 9, 16, 17, 24, 32, 33, 64, 100};
  Site site;
  site.in = widths[static_cast<size_t>(below(7))];
  site.out = widths[static_cast<size_t>(below(7))];
  for (int64_t i = 0; i < job_count; ++i) {
    Job job;
    site.tokens += below(3) == 0 ? below(5) : 0;
    const int64_t count = below(4) == 0 ? below(3) : below(most_rows);
    job.rows = {site.tokens, site.tokens + count};
    site.tokens += count;
    const int64_t rank = ranks[static_cast<size_t>(below(static_cast<int64_t>(ranks.size())))];
    job.down = (at::randn({rank, site.in}) / std::sqrt(static_cast<double>(site.in))).to(test_device());
    job.up = (at::randn({rank, site.out}) / std::sqrt(static_cast<double>(rank))).to(test_device());
    job.a = make_low_rank_factor(job.down, at::kBFloat16);
    job.b = make_low_rank_factor(job.up, at::kBFloat16);
    job.scale = 0.25 * static_cast<double>(1 + below(8));
    site.jobs.push_back(std::move(job));
  }
  site.tokens += below(4);
  return site;
}

at::Tensor rounded(const at::Tensor& master) { return exact(master.to(at::kBFloat16)); }

TEST_P(LowRankKernels, ShrinkIsTheProductOfEveryGroupAndZeroBesideTheRank) {
  const Site site = random_site(random_, GetParam() == 0 ? 230 : 1 + below(9));
  const at::Tensor wide = values(site.tokens, site.in + 16), x = wide.narrow(1, 8, site.in);
  std::vector<ShrinkGroup> groups;
  for (const Job& job : site.jobs) groups.push_back({job.rows, job.a.get(), job.scale, {}});
  shrink(x, groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const Job& job = site.jobs[i];
    const at::Tensor expected = rows_of(exact(x), job.rows).matmul(rounded(job.down).t()) * job.scale;
    ASSERT_EQ(groups[i].s.size(1), (job.a->rank() + 7) / 8 * 8);
    EXPECT_LT(norm_error(groups[i].s.narrow(1, 0, job.a->rank()), expected), 6e-3) << "job " << i;
    EXPECT_EQ(groups[i].s.narrow(1, job.a->rank(), groups[i].s.size(1) - job.a->rank()).ne(0).sum().item<int64_t>(), 0);
    std::vector<ShrinkGroup> alone{{job.rows, job.a.get(), job.scale, {}}};
    shrink(x, alone);
    EXPECT_TRUE(equal_bits(alone[0].s, groups[i].s)) << "job " << i << " alone";
  }
}

TEST_P(LowRankKernels, ANanStaysInItsRow) {
  const Site site = random_site(random_, 3);
  if (site.jobs[1].rows.count() == 0) return;
  const at::Tensor x = values(site.tokens, site.in), poisoned = x.clone();
  const int64_t row = site.jobs[1].rows.begin;
  poisoned.select(0, row).fill_(std::numeric_limits<float>::quiet_NaN());
  std::vector<ShrinkGroup> clean, hurt;
  for (const Job& job : site.jobs) clean.push_back({job.rows, job.a.get(), job.scale, {}});
  hurt = clean;
  shrink(x, clean);
  shrink(poisoned, hurt);
  EXPECT_TRUE(equal_bits(clean[0].s, hurt[0].s));
  EXPECT_TRUE(equal_bits(clean[2].s, hurt[2].s));
  EXPECT_TRUE(equal_bits(clean[1].s.narrow(0, 1, clean[1].s.size(0) - 1), hurt[1].s.narrow(0, 1, hurt[1].s.size(0) - 1)));
  EXPECT_TRUE(hurt[1].s[0].narrow(0, 0, site.jobs[1].a->rank()).isnan().all().item<bool>());
}

/// s of a job: zero beside the rank, as shrink leaves it.
at::Tensor inner_values(const Job& job) {
  const at::Tensor s = at::zeros({job.rows.count(), job.b->padded_rank()}, at::kBFloat16);
  s.narrow(1, 0, job.b->rank()).copy_(at::randn({job.rows.count(), job.b->rank()}));
  return s.to(test_device());
}

TEST_P(LowRankKernels, ExpansionsAddMaskedProductsBiasesAndTheResidual) {
  const Site site = random_site(random_, GetParam() == 0 ? 200 : 1 + below(9));
  const bool masked = below(2) == 0, with_residual = below(2) == 0, biased = below(2) == 0;
  const int64_t before = with_residual ? 0 : 8, after = with_residual ? 0 : 16;  // columns of y that get nothing
  const at::Tensor wide = values(site.tokens, before + site.out + after), residual = values(site.tokens, site.out);
  ExpandOptions options;
  if (with_residual) options.residual = residual;
  options.dropout = {at::randint(1 << 30, {site.tokens}, at::kLong).to(test_device()),
                     at::randint(4000, {site.tokens}, at::kInt).to(test_device())};
  std::vector<ExpandGroup> groups;
  for (const Job& job : site.jobs) {
    ExpandGroup group{.rows = job.rows, .column_begin = before, .s = inner_values(job), .factor = job.b.get()};
    if (masked) group.dropout = DropoutKey{random_(), 0.3};
    if (biased) group.bias = at::randn({site.out}).to(test_device());
    groups.push_back(group);
  }
  const std::vector<ExpandGroup> once = groups;
  for (const ExpandGroup& group : once) {  // a second term of the same rows
    if (below(2) == 0) groups.push_back(group);
  }
  at::Tensor expected = exact(wide).clone();
  for (size_t i = 0; i < groups.size(); ++i) {
    const ExpandGroup& group = groups[i];
    const at::Tensor rows = rows_of(expected, group.rows);
    at::Tensor product = exact(group.s).narrow(1, 0, group.factor->rank())
                             .matmul(rounded(site.jobs[i < once.size() ? i : [&] {
                               for (size_t j = 0; j < once.size(); ++j) {
                                 if (once[j].factor == group.factor) return j;
                               }
                               return size_t{0};
                             }()].up));
    if (masked) {
      product = product * exact(dropout_masks({{*group.dropout, group.rows}}, options.dropout, site.out, at::kFloat));
    }
    if (biased) product = product + exact(group.bias);
    rows.narrow(1, before, site.out).add_(product);
    if (with_residual && i < once.size()) rows.add_(rows_of(exact(residual), group.rows));
  }
  at::Tensor y = wide.clone();
  add_expansions(y, groups, options);
  EXPECT_LT(norm_error(y, expected), 6e-3);
  EXPECT_TRUE(equal_bits(wide.narrow(1, 0, before), y.narrow(1, 0, before)));
  EXPECT_TRUE(equal_bits(wide.narrow(1, before + site.out, after), y.narrow(1, before + site.out, after)));
  at::Tensor again = wide.clone();
  add_expansions(again, groups, options);
  EXPECT_TRUE(equal_bits(y, again));
}

TEST_P(LowRankKernels, GradientsAreAddedAtomByAtomInOrder) {
  // Beyond 1,024 rows a gradient is summed in chunks.
  const Site site = random_site(random_, GetParam() == 0 ? 150 : 1 + below(6), GetParam() % 3 == 1 ? 2600 : 150);
  const at::Tensor wide = values(site.tokens, site.in + 8), right = wide.narrow(1, 0, site.in);
  std::vector<GradientGroup> groups;
  std::vector<at::Tensor> gradients, expected;
  for (const Job& job : site.jobs) {
    const at::Tensor s = inner_values(job);
    gradients.push_back(at::randn({job.b->rank(), site.in}).to(test_device()));
    expected.push_back(exact(gradients.back()) +
                       exact(s).narrow(1, 0, job.b->rank()).t().matmul(rows_of(exact(right), job.rows)));
    std::vector<GradientGroup> atoms;
    for (int64_t begin = 0; begin < job.rows.count();) {
      const int64_t count = std::min(job.rows.count() - begin, 1 + below(70));
      atoms.push_back({{job.rows.begin + begin, job.rows.begin + begin + count}, s.narrow(0, begin, count), gradients.back()});
      begin += count;
    }
    groups.insert(groups.end(), atoms.rbegin(), atoms.rend());
  }
  std::vector<at::Tensor> before;
  for (const at::Tensor& gradient : gradients) before.push_back(gradient.clone());
  accumulate_gradients(right, groups);
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LT(norm_error(gradients[i], expected[i]), 2e-6) << "job " << i;
    const at::Tensor together = gradients[i].clone();
    gradients[i].copy_(before[i]);
    std::vector<GradientGroup> alone;
    for (const GradientGroup& group : groups) {
      if (group.gradient.is_same(gradients[i])) alone.push_back(group);
    }
    accumulate_gradients(right, alone);
    EXPECT_TRUE(equal_bits(gradients[i], together)) << "job " << i << " alone";
  }
}

TEST_P(LowRankKernels, FrozenProductsTakeTermsResidualAndBias) {
  const Site site = random_site(random_, 1 + below(5));
  const at::Tensor weight = values(site.out, site.in, 1 / std::sqrt(static_cast<double>(site.in)));
  const bool biased = below(2) == 0, with_residual = below(2) == 0, some_rows = below(2) == 0;
  const at::Tensor bias = values(1, site.out).squeeze(0);
  const auto product = make_frozen_product({weight}, biased ? std::vector<at::Tensor>{bias} : std::vector<at::Tensor>{});
  const at::Tensor x = values(site.tokens, site.in), residual = values(site.tokens, site.out);
  std::vector<LowRankTerm> terms;
  at::Tensor expected = exact(x).matmul(exact(weight).t());
  if (biased) expected = expected + exact(bias);
  std::vector<RowRange> residual_rows;
  for (const Job& job : site.jobs) {
    terms.push_back({job.rows, 0, inner_values(job), job.b.get()});
    rows_of(expected, job.rows).add_(exact(terms.back().s).narrow(1, 0, job.b->rank()).matmul(rounded(job.up)));
    if (with_residual && some_rows && below(2) == 0) {
      residual_rows.push_back(job.rows);
      rows_of(expected, job.rows).add_(rows_of(exact(residual), job.rows));
    }
  }
  ProductOptions options{.terms = &terms};
  if (with_residual) {
    options.residual = residual;
    if (some_rows) {
      options.residual_rows = &residual_rows;
    } else {
      expected = expected + exact(residual);
    }
  }
  EXPECT_LT(norm_error(product->forward(x, options), expected), 6e-3);
}

/// What adapters add early in training is far below the last bit of a residual or a bias of bf16: it must count all the same,
/// on the average over elements.
TEST_P(LowRankKernels, SmallTermsSurviveALargeResidualAndBias) {
  const int64_t tokens = 512, width = 512;
  const at::Tensor weight = values(width, width, 0.02), x = values(tokens, width), residual = values(tokens, width, 20);
  const at::Tensor bias = values(1, width, 20).squeeze(0), master = (at::randn({16, width}) * 0.002).to(test_device());
  const auto factor = make_low_rank_factor(master, at::kBFloat16);
  const std::vector<LowRankTerm> terms{{{0, tokens}, 0, values(tokens, 16), factor.get()}};
  const at::Tensor added = exact(terms[0].s).matmul(rounded(master));
  for (const bool with_bias : {false, true}) {
    const auto product = make_frozen_product({weight}, with_bias ? std::vector<at::Tensor>{bias} : std::vector<at::Tensor>{});
    ProductOptions options{.terms = &terms};
    if (!with_bias) options.residual = residual;
    at::Tensor rest = exact(x).matmul(exact(weight).t());
    rest = rest + (with_bias ? exact(bias) : exact(residual));
    const at::Tensor found = exact(product->forward(x, options)) - rest;
    EXPECT_NEAR(((found * added).sum() / added.square().sum()).item<double>(), 1, 0.2) << with_bias;
  }
}

}  // namespace
}  // namespace cotune::testing
