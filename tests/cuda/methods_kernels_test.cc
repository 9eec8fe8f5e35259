// The GPU's kernels of bottleneck adapters and diff pruning, through the operators, against f64 on the CPU: any shapes and
// groups, jobs that do not know of one another. Run on a GPU only: COTUNE_TEST_DEVICE=cuda build/test_cuda.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <random>
#include <tuple>

#include "adapter/activation.h"
#include "cuda/gpu_test.h"
#include "ops/call_counts.h"
#include "ops/low_rank.h"
#include "ops/select_entries.h"
#include "ops/sparse_delta.h"

namespace cotune::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class MethodsKernels : public GpuTest<std::tuple<int, at::ScalarType>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    at::manual_seed(static_cast<uint64_t>(seed()));
    random_.seed(static_cast<unsigned>(seed()));
  }

  static int seed() { return std::get<0>(GetParam()); }
  static at::ScalarType dtype() { return std::get<1>(GetParam()); }
  /// Of results rounded to the dtype, in the norm.
  static double limit() { return dtype() == at::kFloat ? 2e-6 : 6e-3; }

  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  /// Normal values of the dtype, on the device.
  static at::Tensor values(int64_t rows, int64_t columns) { return on_device(at::randn({rows, columns}).to(dtype())); }

  std::mt19937 random_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, MethodsKernels,
                         ::testing::Combine(::testing::Range(0, 8), ::testing::Values(at::kBFloat16, at::kFloat)));


int64_t adapter_calls(const std::function<void()>& run) {
  const CallCounts before = call_counts();
  run();
  return (call_counts() - before).adapter;
}

// ---- biases and activations of bottleneck adapters ----

TEST_P(MethodsKernels, SumsOfRowsAreAddedAtomByAtom) {
  const int64_t jobs = seed() == 0 ? 300 : 1 + below(9);  // one launch holds 256 gradients
  std::vector<RowSum> sums;
  std::vector<at::Tensor> gradients, before, expected;
  std::vector<size_t> first_sum;
  for (int64_t job = 0; job < jobs; ++job) {
    const int64_t columns = below(3) == 0 ? 1 + below(4100) : 1 + below(70), beside = below(9);
    gradients.push_back(on_device(at::randn({columns})));
    before.push_back(gradients.back().clone());
    expected.push_back(exact(gradients.back()));
    first_sum.push_back(sums.size());
    for (int64_t atom = below(4); atom > 0; --atom) {  // none at all for some
      const at::Tensor right = values(below(4) == 0 ? 0 : below(300), columns + beside).narrow(1, below(beside + 1), columns);
      sums.push_back({right, gradients.back()});
      expected.back() = expected.back() + exact(right).sum(0);
    }
  }
  first_sum.push_back(sums.size());
  if (sums.empty()) return;
  EXPECT_EQ(adapter_calls([&] { accumulate_row_sums(sums); }), 1);
  for (size_t job = 0; job < gradients.size(); ++job) {
    EXPECT_LT(norm_error(gradients[job], expected[job]), 2e-6) << "job " << job;
    const at::Tensor together = gradients[job].clone();
    gradients[job].copy_(before[job]);
    accumulate_row_sums({sums.begin() + static_cast<int64_t>(first_sum[job]), sums.begin() + static_cast<int64_t>(first_sum[job + 1])});
    EXPECT_TRUE(equal_bits(gradients[job], together)) << "job " << job << " alone";
  }
}

TEST_P(MethodsKernels, ASumThatIsNoNumberIsItsJobsAlone) {
  std::vector<at::Tensor> rows, gradients;
  for (int job = 0; job < 3; ++job) rows.push_back(values(40, 97));
  rows[1].select(0, 7).fill_(not_a_number);
  std::vector<RowSum> sums;
  for (const at::Tensor& right : rows) {
    gradients.push_back(on_device(at::zeros({97})));
    sums.push_back({right, gradients.back()});
  }
  accumulate_row_sums(sums);
  EXPECT_TRUE(gradients[0].isfinite().all().item<bool>());
  EXPECT_TRUE(gradients[1].isnan().all().item<bool>());
  EXPECT_TRUE(gradients[2].isfinite().all().item<bool>());
}

at::Tensor function_of(Activation activation, const at::Tensor& z) {
  switch (activation) {
    case Activation::relu: return at::relu(z);
    case Activation::gelu: return at::gelu(z);
    case Activation::silu: return at::silu(z);
    case Activation::tanh: return at::tanh(z);
  }
  return z;
}

TEST_P(MethodsKernels, ActivationsAreTheFormulasInAnyCompany) {
  const std::vector<Activation> functions{Activation::relu, Activation::gelu, Activation::silu, Activation::tanh};
  const int64_t jobs = seed() == 0 ? 300 : 1 + below(9);
  const bool padded = below(2) == 0;  // all of them read by 16 bytes
  std::vector<ActivationGroup> groups, alone;
  std::vector<at::Tensor> inputs;
  for (int64_t job = 0; job < jobs; ++job) {
    const int64_t rows = below(5) == 0 ? 0 : below(90), columns = padded ? 8 * (1 + below(9)) : 1 + below(70);
    inputs.push_back(values(rows, columns) * 3);
    const at::Tensor bias = below(3) == 0 ? at::Tensor() : on_device(at::randn({1 + below(columns)}));
    groups.push_back({functions[static_cast<size_t>(below(4))], inputs.back().clone(), bias, values(rows, columns)});
    alone.push_back(groups.back());
    alone.back().z = inputs.back().clone();
  }
  std::vector<at::Tensor> y, dz;
  EXPECT_EQ(adapter_calls([&] { y = activate(groups); }), 1);
  EXPECT_EQ(adapter_calls([&] { dz = activate_backward(groups); }), 1);
  for (size_t job = 0; job < groups.size(); ++job) {
    const ActivationGroup& group = groups[job];
    at::Tensor biased = exact(inputs[job]).clone();
    if (group.bias.defined()) biased.narrow(1, 0, group.bias.size(0)).add_(exact(group.bias));
    EXPECT_LT(norm_error(group.z, biased), limit()) << "job " << job;
    const at::Tensor z = exact(group.z);
    EXPECT_LT(norm_error(y[job], function_of(group.activation, z)), limit()) << "job " << job;
    const double step = 1e-6;
    const at::Tensor slope = group.activation == Activation::relu
                                 ? z.gt(0).to(at::kDouble)
                                 : (function_of(group.activation, z + step) - function_of(group.activation, z - step)) / (2 * step);
    EXPECT_LT(norm_error(dz[job], exact(group.gradient) * slope), limit()) << "job " << job;
    EXPECT_TRUE(equal_bits(activate({alone[job]}).front(), y[job])) << "job " << job << " alone";
    EXPECT_TRUE(equal_bits(alone[job].z, group.z)) << "job " << job << " alone";
    EXPECT_TRUE(equal_bits(activate_backward({alone[job]}).front(), dz[job])) << "job " << job << " alone";
  }
}

// ---- diff pruning ----

/// Jobs with one to three projections side by side that read the same x; some have no rows, gaps belong to nobody.
struct SparseJob {
  RowRange rows;
  std::vector<const SparseDelta*> deltas;
  std::vector<at::Tensor> dense;   ///< f64 on the CPU
  std::vector<at::Tensor> values;  ///< f32
  std::vector<int64_t> columns;    ///< of y
};
struct SparseSite {
  int64_t tokens = 0, in = 0, out = 0;
  std::vector<SparseJob> jobs;
  std::deque<SparseDelta> deltas;
};

/// The dense matrix of values.
at::Tensor dense_of(const SparseDelta& delta, const at::Tensor& values) {
  const at::Tensor offsets = on_host(delta.column_offsets), rows = on_host(delta.row_indices).to(at::kLong);
  const at::Tensor columns = at::repeat_interleave(offsets.diff());
  const at::Tensor dense = at::zeros({delta.in_features, delta.out_features}, at::kDouble);
  return dense.index_put_({rows, columns}, exact(values));
}

SparseSite random_sparse_site(std::mt19937& random, int64_t job_count) {
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  SparseSite site;
  const bool many = job_count > 10;  // more than a launch holds: small ones will do
  const std::vector<int64_t> widths{1, 33, 64, 200, 576, 1500};
  const auto any_width = [&] { return widths[static_cast<size_t>(below(many ? 3 : 6))]; };
  site.in = any_width();
  std::vector<int64_t> widths_out, begins;
  for (int i = 0; i < 3; ++i) {
    begins.push_back(site.out);
    widths_out.push_back(any_width());
    site.out += widths_out.back();
  }
  for (int64_t i = 0; i < job_count; ++i) {
    SparseJob job;
    const int64_t count = below(4) == 0 ? below(2) : below(many ? 40 : 200);
    site.tokens += below(3);
    job.rows = {site.tokens, site.tokens + count};
    site.tokens += count;
    for (size_t projection = 0; projection < 3; ++projection) {
      if (projection > 0 && below(3) == 0) continue;
      const int64_t out = widths_out[projection];
      at::Tensor importance = at::rand({site.in, out});
      if (below(2) == 0) {  // entries crowd in few rows and columns
        importance.select(0, below(site.in)).add_(1);
        importance.select(1, below(out)).add_(1);
      }
      const double density = below(5) == 0 ? 1.0 : 0.005 + 0.02 * static_cast<double>(below(5));
      const auto keep = std::max<int64_t>(1, static_cast<int64_t>(density * static_cast<double>(importance.numel())));
      site.deltas.push_back(select_entries(on_device(importance), keep));
      job.deltas.push_back(&site.deltas.back());
      job.values.push_back(on_device(at::randn({keep}) / 8));
      job.dense.push_back(dense_of(site.deltas.back(), job.values.back()));
      job.columns.push_back(begins[projection]);
    }
    site.jobs.push_back(std::move(job));
  }
  site.tokens += 1 + below(4);
  return site;
}

std::vector<SparseDeltaGroup> products_of(const std::vector<SparseJob>& jobs, bool forward) {
  std::vector<SparseDeltaGroup> groups;
  for (const SparseJob& job : jobs) {
    for (size_t i = 0; i < job.deltas.size(); ++i) {
      groups.push_back({job.deltas[i], job.values[i], job.rows, forward ? 0 : job.columns[i], forward ? job.columns[i] : 0});
    }
  }
  return groups;
}

TEST_P(MethodsKernels, SparseDeltasAreAddedLikeDenseOnesAndKeepOtherBits) {
  const SparseSite site = random_sparse_site(random_, seed() == 0 ? 200 : 1 + below(6));
  const at::Tensor wide_x = values(site.tokens, site.in + below(3)), x = wide_x.narrow(1, 0, site.in),
                   dy = values(site.tokens, site.out + below(3)), y_start = values(site.tokens, site.out + below(3)),
                   dx_start = values(site.tokens, site.in);
  at::Tensor y = y_start.clone(), dx = dx_start.clone();
  const std::vector<SparseDeltaGroup> forward = products_of(site.jobs, true), backward = products_of(site.jobs, false);
  EXPECT_EQ(adapter_calls([&] { add_sparse_deltas(forward, x, y); }), 1);
  EXPECT_EQ(adapter_calls([&] { add_sparse_delta_input_gradients(backward, dy, dx); }), 1);
  const at::Tensor exact_x = exact(x), exact_dy = exact(dy);
  at::Tensor expected_y = exact(y_start).clone(), expected_dx = exact(dx_start).clone();
  at::Tensor untouched = at::ones(y.sizes(), at::kBool);
  for (const SparseJob& job : site.jobs) {
    for (size_t i = 0; i < job.deltas.size(); ++i) {
      const at::Tensor& dense = job.dense[i];
      rows_of(expected_y, job.rows).narrow(1, job.columns[i], dense.size(1)).add_(rows_of(exact_x, job.rows).matmul(dense));
      rows_of(expected_dx, job.rows).add_(rows_of(exact_dy, job.rows).narrow(1, job.columns[i], dense.size(1)).matmul(dense.t()));
      const at::Tensor empty = dense.ne(0).any(0).logical_not();
      rows_of(untouched, job.rows).narrow(1, job.columns[i], dense.size(1)).logical_and_(empty);
    }
  }
  EXPECT_LT(norm_error(y, expected_y), limit());
  EXPECT_LT(norm_error(dx, expected_dx), limit());
  EXPECT_TRUE(equal_bits(on_host(y).masked_select(untouched), on_host(y_start).masked_select(untouched)));
  at::Tensor alone = y_start.clone(), alone_dx = dx_start.clone();
  for (const SparseJob& job : site.jobs) {
    add_sparse_deltas(products_of({job}, true), x, alone);
    add_sparse_delta_input_gradients(products_of({job}, false), dy, alone_dx);
  }
  EXPECT_TRUE(equal_bits(alone, y)) << "jobs alone";
  EXPECT_TRUE(equal_bits(alone_dx, dx)) << "jobs alone";
}

TEST_P(MethodsKernels, GradientsOfSparseValuesAreAddedAtomByAtom) {
  SparseSite site = random_sparse_site(random_, seed() == 0 ? 200 : 1 + below(4));
  if (seed() % 3 == 1) {  // an atom of more than one slab
    site.jobs.front().rows = {site.tokens, site.tokens + 1100};
    site.tokens += 1100;
  }
  const at::Tensor x = values(site.tokens, site.in), dy = values(site.tokens, site.out + below(3));
  const at::Tensor exact_x = exact(x), exact_dy = exact(dy);
  std::vector<std::vector<SparseDeltaGradient>> of_gradients;
  std::vector<SparseDeltaGradient> all;
  std::vector<at::Tensor> gradients, before, expected;
  for (const SparseJob& job : site.jobs) {
    std::vector<RowRange> atoms{{job.rows.begin, job.rows.begin}};  // the first is empty
    for (int64_t begin = job.rows.begin; begin < job.rows.end; begin = atoms.back().end) {
      const int64_t count = job.rows.count() > 1000 ? 800 : 1 + below(90);
      atoms.push_back({begin, std::min(job.rows.end, begin + count)});
    }
    for (size_t i = 0; i < job.deltas.size(); ++i) {
      gradients.push_back(on_device(at::randn({job.deltas[i]->entry_count()})));
      before.push_back(gradients.back().clone());
      const at::Tensor incoming = rows_of(exact_dy, job.rows).narrow(1, job.columns[i], job.deltas[i]->out_features);
      const at::Tensor full = rows_of(exact_x, job.rows).t().matmul(incoming);
      const at::Tensor ones = dense_of(*job.deltas[i], at::ones({gradients.back().numel()}));
      expected.push_back(dense_of(*job.deltas[i], gradients.back()) + full * ones);
      of_gradients.emplace_back();
      for (const RowRange& atom : atoms) of_gradients.back().push_back({job.deltas[i], atom, job.columns[i], gradients.back()});
      all.insert(all.end(), of_gradients.back().begin(), of_gradients.back().end());
    }
  }
  EXPECT_EQ(adapter_calls([&] { add_sparse_delta_value_gradients(all, x, dy); }), 1);
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LT(norm_error(dense_of(*of_gradients[i].front().delta, gradients[i]), expected[i]), 2e-6) << "gradient " << i;
    const at::Tensor together = gradients[i].clone();
    gradients[i].copy_(before[i]);
    add_sparse_delta_value_gradients(of_gradients[i], x, dy);
    EXPECT_TRUE(equal_bits(gradients[i], together)) << "gradient " << i << " alone";
  }
}

TEST_P(MethodsKernels, WhatIsNoNumberInSparseDeltasStaysWithItsJob) {
  SparseSite site = random_sparse_site(random_, 3);
  const at::Tensor x = values(site.tokens, site.in), dy = values(site.tokens, site.out);
  const auto run = [&] {
    at::Tensor y = on_device(at::zeros({site.tokens, site.out}, dtype())), dx = on_device(at::zeros({site.tokens, site.in}, dtype()));
    std::vector<SparseDeltaGradient> sums;
    std::vector<at::Tensor> results{y, dx};
    for (const SparseJob& job : site.jobs) {
      for (size_t i = 0; i < job.deltas.size(); ++i) {
        results.push_back(on_device(at::zeros({job.deltas[i]->entry_count()})));
        sums.push_back({job.deltas[i], job.rows, job.columns[i], results.back()});
      }
    }
    add_sparse_deltas(products_of(site.jobs, true), x, y);
    add_sparse_delta_input_gradients(products_of(site.jobs, false), dy, dx);
    add_sparse_delta_value_gradients(sums, x, dy);
    return results;
  };
  const std::vector<at::Tensor> clean = run();
  const SparseJob& hurt = site.jobs[1];
  rows_of(x, hurt.rows).fill_(not_a_number);
  rows_of(dy, hurt.rows).fill_(not_a_number);
  hurt.values.front().fill_(not_a_number);
  const std::vector<at::Tensor> poisoned = run();
  for (size_t i = 0; i < 2; ++i) {
    const int64_t rest = site.tokens - hurt.rows.end;
    EXPECT_TRUE(equal_bits(poisoned[i].narrow(0, 0, hurt.rows.begin), clean[i].narrow(0, 0, hurt.rows.begin)));
    EXPECT_TRUE(equal_bits(poisoned[i].narrow(0, hurt.rows.end, rest), clean[i].narrow(0, hurt.rows.end, rest)));
  }
  const size_t first = 2 + site.jobs[0].deltas.size(), last = first + hurt.deltas.size();
  for (size_t i = 2; i < clean.size(); ++i) {
    if (i >= first && i < last) continue;
    EXPECT_TRUE(equal_bits(poisoned[i], clean[i])) << "gradient " << i;
  }
  if (hurt.rows.count() > 0) {
    EXPECT_TRUE(poisoned[first].isnan().all().item<bool>());
  }
}

}  // namespace
}  // namespace cotune::testing
