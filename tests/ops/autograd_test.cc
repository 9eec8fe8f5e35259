// Every operator's hand-written backward against autograd of a plain form and against central differences, f64, on
// ragged edge cases: no tokens, one token, many jobs of one token, ranks that differ, no bias, odd sizes.

#include <ATen/ATen.h>

#include "kernels/dropout.h"
#include "ops/attention.h"
#include "ops/cross_entropy_head.h"
#include "ops/dropout.h"
#include "ops/low_rank.h"
#include "ops/memory.h"
#include "ops/rms_norm.h"
#include "ops/select_entries.h"
#include "ops/sparse_delta.h"
#include "ops/swiglu.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

constexpr double autograd_limit = 1e-12, difference_limit = 1e-7;

/// A leaf of autograd on the CPU.
at::Tensor leaf_of(const at::Tensor& values) {
  return on_host(values).clone().requires_grad_(true);
}

/// The gradient that autograd gives a leaf when y's is d.
at::Tensor autograd_gradient(const at::Tensor& y, const at::Tensor& d, const at::Tensor& leaf) {
  leaf.mutable_grad() = at::zeros_like(leaf);
  (y * exact(d)).sum().backward({}, true);
  return leaf.grad();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (exact(a) - exact(b)).abs().max().item<double>();
}

TEST(OperatorBackward, OfRmsNormIsAutograds) {
  for (const int64_t tokens : {0, 1, 3}) {
    for (const int64_t hidden : {1, 7, 12}) {
      const at::Tensor x = random_tensor({tokens, hidden}, 1, at::kDouble),
                       d = random_tensor({tokens, hidden}, 2, at::kDouble),
                       weight = random_tensor({hidden}, 3, at::kDouble),
                       residual = random_tensor({tokens, hidden}, 4, at::kDouble);
      at::Tensor inverse, unused;
      const at::Tensor y = rms_norm(x, weight, 1e-5, x.scalar_type(), inverse), ours = rms_norm_backward(d, x, weight, inverse, {});
      ASSERT_EQ(ours.sizes(), x.sizes());
      if (tokens == 0) continue;
      const at::Tensor leaf = leaf_of(x);
      const at::Tensor plain = leaf / (leaf.square().mean(-1, true) + 1e-5).sqrt() * exact(weight);
      EXPECT_LE(relative_error(y, plain.detach()), autograd_limit);
      const at::Tensor expected = autograd_gradient(plain, d, leaf);
      EXPECT_LE(largest_difference(ours, expected), autograd_limit * (1 + d.abs().max().item<double>()));
      EXPECT_LE(largest_difference(rms_norm_backward(d, x, weight, inverse, residual), expected + exact(residual)), 1e-11);
      if (hidden == 1) continue;  // the gradient is nearly zero: nothing to compare differences with
      EXPECT_LE(
          relative_error(ours, numeric_gradient(x, [&] { return weighted_sum(rms_norm(x, weight, 1e-5, x.scalar_type(), unused), d); })),
          difference_limit);
    }
  }
}

TEST(OperatorBackward, OfSwigluIsAutograds) {
  for (const int64_t tokens : {0, 1, 5}) {
    for (const int64_t width : {1, 3, 8}) {
      const at::Tensor x = random_tensor({tokens, 2 * width}, 1, at::kDouble, 3),
                       d = random_tensor({tokens, width}, 2, at::kDouble);
      const SwigluGradient ours = swiglu_backward(d, x);
      ASSERT_EQ(ours.d_gate_up.sizes(), x.sizes());
      if (tokens == 0) continue;
      const at::Tensor leaf = leaf_of(x);
      const at::Tensor gate = leaf.narrow(1, 0, width);
      const at::Tensor plain = gate * at::sigmoid(gate) * leaf.narrow(1, width, width);
      EXPECT_LE(relative_error(ours.y, plain.detach()), autograd_limit);
      EXPECT_LE(relative_error(ours.d_gate_up, autograd_gradient(plain, d, leaf)), autograd_limit);
      EXPECT_LE(relative_error(ours.d_gate_up, numeric_gradient(x, [&] { return weighted_sum(swiglu(x), d); })),
                difference_limit);
    }
  }
}

/// Attention by dense matrices, segment by segment and head by head.
at::Tensor plain_attention(const at::Tensor& qkv, const std::vector<AttentionSegment>& segments,
                           const AttentionShape& shape) {
  std::vector<at::Tensor> rows{qkv.narrow(0, 0, 0).narrow(1, 0, shape.query_columns())};
  for (const AttentionSegment& segment : segments) {
    const at::Tensor part = qkv.narrow(0, segment.begin, segment.count);
    const at::Tensor later = at::ones({segment.count, segment.count}, at::kBool).triu(1);
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv = head / (shape.heads / shape.kv_heads) * shape.head_dim;
      const at::Tensor q = part.narrow(1, head * shape.head_dim, shape.head_dim),
                       k = part.narrow(1, shape.query_columns() + kv, shape.head_dim),
                       v = part.narrow(1, shape.query_columns() + shape.kv_columns() + kv, shape.head_dim);
      const at::Tensor scores = at::mm(q, k.t()) / std::sqrt(static_cast<double>(shape.head_dim));
      heads.push_back(at::mm(at::softmax(scores.masked_fill(later, -INFINITY), -1), v));
    }
    rows.push_back(at::cat(heads, 1));
  }
  return at::cat(rows);
}

TEST(OperatorBackward, OfAttentionIsAutograds) {
  for (const AttentionShape shape :
       {AttentionShape{1, 1, 2}, AttentionShape{3, 1, 6}, AttentionShape{4, 2, 4}, AttentionShape{3, 3, 10}}) {
    for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{}, {1}, {1, 1, 1, 1}, {5, 1, 9}, {13}, {128, 300, 129}}) {
      std::vector<AttentionSegment> segments;
      int64_t tokens = 0;
      for (const int64_t length : lengths) {
        segments.push_back({tokens, length, 0, nullptr});
        tokens += length;
      }
      const at::Tensor qkv = random_tensor({tokens, shape.qkv_columns()}, 1, at::kDouble),
                       d = random_tensor({tokens, shape.query_columns()}, 2, at::kDouble);
      const AttentionResult result = attention(qkv, segments, shape);
      const at::Tensor ours = attention_backward(d, qkv, result, segments, shape), leaf = leaf_of(qkv);
      ASSERT_EQ(result.out.sizes(), d.sizes());
      ASSERT_EQ(ours.sizes(), qkv.sizes());
      const at::Tensor plain = plain_attention(leaf, segments, shape);
      EXPECT_LE(relative_error(result.out, plain.detach()), autograd_limit);
      EXPECT_LE(relative_error(ours, autograd_gradient(plain, d, leaf)), 1e-11);
      if (qkv.numel() > 150) continue;  // central differences of every element take long
      EXPECT_LE(relative_error(
                    ours, numeric_gradient(qkv, [&] { return weighted_sum(attention(qkv, segments, shape).out, d); })),
                difference_limit);
    }
  }
}

TEST(OperatorBackward, OfRotationIsAutograds) {
  const std::vector<double> frequencies{1, 0.2, 0.01};
  const RotaryTable table = rotary_table(frequencies, 64, at::kDouble, test_device());
  for (const int64_t tokens : {0, 1, 4}) {
    const at::Tensor positions = on_device(at::arange(tokens, at::kInt) * 9), x = random_tensor({tokens, 18}, 1, at::kDouble),
                     d = random_tensor({tokens, 18}, 2, at::kDouble), leaf = leaf_of(x);
    const at::Tensor angles =
        exact(positions).unsqueeze(1) * at::tensor(frequencies, at::kDouble).unsqueeze(0);
    std::vector<at::Tensor> parts;
    for (int64_t head = 0; head < 2; ++head) {
      const at::Tensor a = leaf.narrow(1, 6 * head, 3), b = leaf.narrow(1, 6 * head + 3, 3);
      parts.push_back(a * angles.cos() - b * angles.sin());
      parts.push_back(b * angles.cos() + a * angles.sin());
    }
    parts.push_back(leaf.narrow(1, 12, 6));
    at::Tensor y = x.clone(), ours = d.clone();
    rotate_in_place(y, positions, table, 2, 6, 1);
    rotate_in_place(ours, positions, table, 2, 6, -1);
    const at::Tensor plain = at::cat(parts, 1);
    EXPECT_LE(relative_error(y, plain.detach()), autograd_limit);
    EXPECT_LE(relative_error(ours, autograd_gradient(plain, d, leaf)), autograd_limit);
    const auto rotated = [&] {
      at::Tensor turned = x.clone();
      rotate_in_place(turned, positions, table, 2, 6, 1);
      return weighted_sum(turned, d);
    };
    EXPECT_LE(relative_error(ours, numeric_gradient(x, rotated)), difference_limit);
  }
}

TEST(OperatorBackward, OfTheHeadAndItsLossIsAutograds) {
  for (const int64_t rows : {0, 1, 2, 9}) {
    for (const int64_t vocabulary : {2, 13}) {
      const at::Tensor hidden = random_tensor({rows, 5}, 1, at::kDouble),
                       weight = random_tensor({vocabulary, 5}, 2, at::kDouble);
      const at::Tensor scale = random_tensor({rows}, 3, at::kDouble).abs(),
                       labels = on_device((at::arange(rows, at::kLong) * 7).remainder(vocabulary).to(at::kInt));
      scale.narrow(0, 0, std::min<int64_t>(rows, 1)).fill_(0);  // a row that its job does not count
      const auto head = make_frozen_product({weight}, {});
      const HeadResult ours = cross_entropy_head(hidden, labels, scale, *head, true, 1);
      ASSERT_EQ(ours.losses.sizes(), scale.sizes());
      ASSERT_EQ(ours.gradient.sizes(), hidden.sizes());
      if (rows == 0) continue;
      const at::Tensor leaf = leaf_of(hidden);
      const at::Tensor losses =
          -at::log_softmax(at::mm(leaf, exact(weight).t()), -1).gather(1, on_host(labels).to(at::kLong).unsqueeze(1)).squeeze(1);
      EXPECT_LE(relative_error(ours.losses, losses.detach()), autograd_limit);
      const at::Tensor expected = autograd_gradient(losses, scale, leaf);
      EXPECT_LE(largest_difference(ours.gradient, expected), autograd_limit);
      EXPECT_EQ(ours.gradient[0].abs().max().item<double>(), 0);
    }
  }
}

/// The ragged jobs of these tests. ranks: of low-rank terms.
struct Jobs {
  std::vector<RowRange> rows;
  std::vector<int64_t> ranks;
  int64_t tokens = 0;
};
const std::vector<Jobs> ragged_jobs = {
    {{{0, 0}}, {2}, 0},                                               // no tokens
    {{{0, 1}}, {1}, 1},
    {{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}, {1, 2, 3, 1, 33}, 5},  // many jobs of one token
    {{{0, 4}, {4, 4}, {6, 11}}, {3, 2, 7}, 12},                       // a job without tokens, rows of no job
};

double scale_of(size_t job) { return 0.5 + static_cast<double>(job); }

/// The frozen product of x and every job's s x Aᵀ B, whose factors are made of the values as they are now.
at::Tensor with_low_rank_jobs(const FrozenProduct& product, const at::Tensor& x, const Jobs& jobs, const std::vector<at::Tensor>& a_values,
                              const std::vector<at::Tensor>& b_values) {
  std::vector<std::unique_ptr<LowRankFactor>> a_factors, b_factors;
  std::vector<ShrinkGroup> groups;
  for (size_t job = 0; job < jobs.rows.size(); ++job) {
    a_factors.push_back(make_low_rank_factor(a_values[job], at::kDouble));
    b_factors.push_back(make_low_rank_factor(b_values[job], at::kDouble));
    groups.push_back({jobs.rows[job], a_factors[job].get(), scale_of(job), {}});
  }
  shrink(x, groups);
  std::vector<LowRankTerm> terms;
  for (size_t job = 0; job < jobs.rows.size(); ++job) terms.push_back({jobs.rows[job], 0, groups[job].s, b_factors[job].get()});
  return product.forward(x, {.terms = &terms});
}

TEST(OperatorBackward, OfAFrozenProductWithLowRankJobsIsAutograds) {
  for (const Jobs& jobs : ragged_jobs) {
    for (const bool bias : {false, true}) {
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 3}, {8, 11}}) {
        const at::Tensor weight = random_tensor({out, in}, 1, at::kDouble), b = random_tensor({out}, 2, at::kDouble),
                         x = random_tensor({jobs.tokens, in}, 3, at::kDouble),
                         d = random_tensor({jobs.tokens, out}, 4, at::kDouble);
        const auto product =
            make_frozen_product({weight}, bias ? std::vector<at::Tensor>{b} : std::vector<at::Tensor>{});
        const at::Tensor x_leaf = leaf_of(x);
        at::Tensor plain = at::mm(x_leaf, exact(weight).t());
        if (bias) plain = plain + exact(b);
        std::vector<at::Tensor> a_values, b_values, a_leaves, b_leaves;
        std::vector<std::unique_ptr<LowRankFactor>> a_factors, b_factors;
        std::vector<ShrinkGroup> forward, backward;
        for (size_t job = 0; job < jobs.rows.size(); ++job) {
          a_values.push_back(random_tensor({jobs.ranks[job], in}, 10 + job, at::kDouble));
          b_values.push_back(random_tensor({jobs.ranks[job], out}, 20 + job, at::kDouble));
          a_leaves.push_back(leaf_of(a_values[job]));
          b_leaves.push_back(leaf_of(b_values[job]));
          a_factors.push_back(make_low_rank_factor(a_values[job], at::kDouble));
          b_factors.push_back(make_low_rank_factor(b_values[job], at::kDouble));
          const double scale = scale_of(job);
          forward.push_back({jobs.rows[job], a_factors[job].get(), scale, {}});
          backward.push_back({jobs.rows[job], b_factors[job].get(), scale, {}});
          const at::Tensor low =
              scale * at::mm(at::mm(x_leaf.narrow(0, jobs.rows[job].begin, jobs.rows[job].count()), a_leaves[job].t()),
                             b_leaves[job]);
          plain = plain + at::constant_pad_nd(low, {0, 0, jobs.rows[job].begin, jobs.tokens - jobs.rows[job].end});
        }
        shrink(x, forward);
        shrink(d, backward);
        std::vector<LowRankTerm> terms, input_terms;
        for (size_t job = 0; job < jobs.rows.size(); ++job) {
          terms.push_back({jobs.rows[job], 0, forward[job].s, b_factors[job].get()});
          input_terms.push_back({jobs.rows[job], 0, backward[job].s, a_factors[job].get()});
        }
        EXPECT_LE(relative_error(product->forward(x, {.terms = &terms}), plain.detach()), autograd_limit);
        (plain * exact(d)).sum().backward();
        const at::Tensor dx = product->backward(d, {.terms = &input_terms});
        EXPECT_LE(relative_error(dx, x_leaf.grad()), autograd_limit);
        for (size_t job = 0; job < jobs.rows.size(); ++job) {
          at::Tensor a_gradient = at::zeros(a_leaves[job].sizes(), x.options()),
                     b_gradient = at::zeros(b_leaves[job].sizes(), x.options());
          accumulate_gradients(x, {{jobs.rows[job], backward[job].s, a_gradient}});
          accumulate_gradients(d, {{jobs.rows[job], forward[job].s, b_gradient}});
          EXPECT_LE(relative_error(a_gradient + 1, a_leaves[job].grad() + 1), autograd_limit) << "job " << job;
          EXPECT_LE(relative_error(b_gradient + 1, b_leaves[job].grad() + 1), autograd_limit) << "job " << job;
          if (out == 3) {
            const auto moved = [&] { return weighted_sum(with_low_rank_jobs(*product, x, jobs, a_values, b_values), d); };
            EXPECT_LE(relative_error(a_gradient + 1, numeric_gradient(a_values[job], moved) + 1), difference_limit) << "job " << job;
            EXPECT_LE(relative_error(b_gradient + 1, numeric_gradient(b_values[job], moved) + 1), difference_limit) << "job " << job;
          }
        }
        const auto moved = [&] { return weighted_sum(with_low_rank_jobs(*product, x, jobs, a_values, b_values), d); };
        EXPECT_LE(relative_error(dx, numeric_gradient(x, moved)), difference_limit);
      }
    }
  }
}

TEST(OperatorBackward, OfSparseDeltasIsAutograds) {
  const std::vector<double> densities{0.3, 1.0, 1e-9};  // of one job and the next
  for (const Jobs& jobs : ragged_jobs) {
    for (size_t first = 0; first < densities.size(); ++first) {
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 3}, {4, 9}}) {
        const at::Tensor x = random_tensor({jobs.tokens, in}, 2, at::kDouble),
                         d = random_tensor({jobs.tokens, out}, 3, at::kDouble), x_leaf = leaf_of(x);
        at::Tensor y = at::zeros({jobs.tokens, out}, x.options()), dx = at::zeros_like(x), plain = at::zeros({jobs.tokens, out}, at::kDouble);
        std::vector<SparseDelta> deltas(jobs.rows.size());
        std::vector<at::Tensor> leaves;
        std::vector<SparseDeltaGroup> groups;
        std::vector<SparseDeltaGradient> gradients;
        for (size_t job = 0; job < jobs.rows.size(); ++job) {
          SparseDelta& delta = deltas[job];
          delta = select_entries(random_tensor({in, out}, 10 + job, at::kDouble),
                                 kept_of(in * out, densities[(first + job) % densities.size()]));
          groups.push_back({&delta, random_tensor({delta.entry_count()}, 20 + job, at::kDouble), jobs.rows[job]});
          gradients.push_back({&delta, jobs.rows[job], 0, at::zeros_like(groups[job].values)});
          leaves.push_back(leaf_of(groups[job].values));
          const at::Tensor offsets = on_host(delta.column_offsets);
          const at::Tensor columns =
              at::repeat_interleave(at::arange(out, at::kLong), offsets.narrow(0, 1, out) - offsets.narrow(0, 0, out));
          const at::Tensor dense = at::zeros({in * out}, at::kDouble)
                                       .scatter(0, on_host(delta.row_indices).to(at::kLong) * out + columns, leaves[job])
                                       .view({in, out});
          plain = plain + at::constant_pad_nd(at::mm(x_leaf.narrow(0, jobs.rows[job].begin, jobs.rows[job].count()), dense),
                                              {0, 0, jobs.rows[job].begin, jobs.tokens - jobs.rows[job].end});
        }
        (plain * exact(d)).sum().backward();
        add_sparse_deltas(groups, x, y);
        add_sparse_delta_input_gradients(groups, d, dx);
        add_sparse_delta_value_gradients(gradients, x, d);
        EXPECT_LE(relative_error(y, plain.detach()), autograd_limit);
        EXPECT_LE(relative_error(dx, x_leaf.grad()), autograd_limit);
        const auto moved = [&] {
          at::Tensor result = at::zeros({jobs.tokens, out}, x.options());
          add_sparse_deltas(groups, x, result);
          return weighted_sum(result, d);
        };
        EXPECT_LE(relative_error(dx, numeric_gradient(x, moved)), difference_limit);
        for (size_t job = 0; job < jobs.rows.size(); ++job) {
          EXPECT_LE(relative_error(gradients[job].gradient, leaves[job].grad()), autograd_limit) << "job " << job;
          EXPECT_LE(relative_error(gradients[job].gradient, numeric_gradient(groups[job].values, moved)), difference_limit) << "job " << job;
        }
      }
    }
  }
}

TEST(OperatorBackward, OfDropoutReplaysItsMask) {
  const std::vector<double> probabilities{0.1, 0.5, 0.9};  // of one job and the next
  for (const Jobs& jobs : ragged_jobs) {
    for (const int64_t features : {1, 5}) {
      for (size_t first = 0; first < probabilities.size(); ++first) {
        const DropoutRows coordinates{on_device(at::arange(jobs.tokens, at::kLong) * 91), on_device(at::arange(jobs.tokens, at::kInt))};
        const at::Tensor x = random_tensor({jobs.tokens, features}, 1, at::kDouble);
        // The gradient comes through a factor: here the unit matrix.
        const auto unit = make_low_rank_factor(on_device(at::eye(features, at::kDouble)), at::kDouble);
        at::Tensor dx = at::zeros_like(x);
        std::vector<DropoutGroup> groups;
        std::vector<ExpandGroup> expansions;
        std::vector<at::Tensor> d, factors, plain;
        const at::Tensor leaf = leaf_of(x);
        for (size_t job = 0; job < jobs.rows.size(); ++job) {
          const RowRange rows = jobs.rows[job];
          const DropoutKey mask{7 + job, probabilities[(first + job) % probabilities.size()]};
          groups.push_back({mask, rows});
          d.push_back(random_tensor({rows.count(), features}, 10 + job, at::kDouble));
          expansions.push_back({.rows = rows, .s = d[job], .factor = unit.get(), .dropout = mask});
          factors.push_back(at::zeros({rows.count(), features}, at::kDouble));
          for (int64_t row = 0; row < rows.count(); ++row) {
            const int64_t token = rows.begin + row;
            for (int64_t feature = 0; feature < features; ++feature) {
              const bool kept = kernels::dropout_keeps({mask.key, static_cast<float>(mask.probability)}, static_cast<uint64_t>(token * 91),
                                                       static_cast<int32_t>(token), feature);
              factors[job][row][feature] = kept ? 1 / (1 - mask.probability) : 0.0;
            }
          }
          plain.push_back(leaf.narrow(0, rows.begin, rows.count()) * factors[job]);
        }
        const at::Tensor y = apply_dropout(groups, coordinates, x), all = at::cat(plain), d_all = at::cat(d);
        add_expansions(dx, expansions, {.dropout = coordinates});
        ASSERT_EQ(y.sizes(), all.sizes());
        const at::Tensor gradient = autograd_gradient(all, d_all, leaf);
        const at::Tensor numeric = numeric_gradient(x, [&] { return weighted_sum(apply_dropout(groups, coordinates, x), d_all); });
        if (x.numel() == 0) continue;
        EXPECT_LE(largest_difference(y, all.detach()), autograd_limit);
        EXPECT_LE(largest_difference(dx, gradient), autograd_limit);
        EXPECT_LE(largest_difference(dx, numeric), difference_limit);
      }
    }
  }
}

/// Eight jobs of rank 4 to 64 and 1 to 512 rows (MX-19).
TEST(GroupedLowRank, HasTheBitsOfALoopOverTheJobs) {
  const std::vector<int64_t> ranks{4, 64, 8, 33, 16, 5, 48, 32}, counts{1, 512, 17, 100, 64, 2, 255, 33};
  for (const at::ScalarType dtype : kernel_dtypes()) {
    const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
      return low_rank_kernels_run(dtype) ? at::equal(a, b) : relative_error(a, b) <= tolerance(dtype);
    };
    const int64_t tokens = 1 + 512 + 17 + 100 + 64 + 2 + 255 + 33, width = 96;
    const at::Tensor x = random_tensor({tokens, width}, 1, dtype);
    std::vector<std::unique_ptr<LowRankFactor>> factors;
    std::vector<ShrinkGroup> groups;
    std::vector<GradientGroup> gradients;
    int64_t begin = 0;
    for (size_t job = 0; job < ranks.size(); ++job) {
      factors.push_back(make_low_rank_factor(random_tensor({ranks[job], width}, 2 + job, at::kFloat), dtype));
      groups.push_back({{begin, begin + counts[job]}, factors.back().get(), 0.5 * static_cast<double>(job + 1), {}});
      begin += counts[job];
    }
    shrink(x, groups);
    for (size_t job = 0; job < ranks.size(); ++job) {
      gradients.push_back({groups[job].rows, groups[job].s, at::zeros({ranks[job], width}, x.options().dtype(at::kFloat))});
    }
    accumulate_gradients(x, gradients);
    for (size_t job = 0; job < ranks.size(); ++job) {
      std::vector<ShrinkGroup> alone{{groups[job].rows, factors[job].get(), groups[job].scale, {}}};
      shrink(x, alone);
      EXPECT_TRUE(same(alone[0].s, groups[job].s)) << dtype << " job " << job;
      const at::Tensor gradient = at::zeros_like(gradients[job].gradient);
      accumulate_gradients(x, {{groups[job].rows, alone[0].s, gradient}});
      EXPECT_TRUE(same(gradient, gradients[job].gradient)) << dtype << " job " << job;
    }
  }
}

/// One job's rows are no numbers and another's factor is infinite: the jobs beside them have what they have alone, on our
/// kernels and on ATen's batches, at widths that end inside a block as well.
TEST(GroupedLowRank, KeepsWhatIsNoNumberWithItsJob) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const bool portable : {false, true}) {
      std::optional<PortableKernels> scope;
      if (portable) scope.emplace();
      for (const int64_t width : {96, 72, 33}) {
        const std::vector<int64_t> ranks{4, 40, 8, 33}, counts{70, 3, 130, 9};
        at::Tensor x = random_tensor({70 + 3 + 130 + 9, width}, 1, dtype);
        x.narrow(0, 70, 3).fill_(NAN);
        std::vector<std::unique_ptr<LowRankFactor>> factors;
        std::vector<ShrinkGroup> groups;
        int64_t begin = 0;
        for (size_t job = 0; job < ranks.size(); ++job) {
          at::Tensor master = random_tensor({ranks[job], width}, 2 + job, accumulation_dtype(dtype), 0.2);
          if (job == 3) master.narrow(0, 2, 1).fill_(INFINITY);
          factors.push_back(make_low_rank_factor(master, dtype));
          groups.push_back({{begin, begin + counts[job]}, factors.back().get(), 0.5, {}});
          begin += counts[job];
        }
        const auto run = [&](std::vector<ShrinkGroup> jobs) {
          shrink(x, jobs);
          at::Tensor y = at::zeros_like(x);
          std::vector<ExpandGroup> expansions;
          std::vector<GradientGroup> gradients;
          std::vector<RowSum> sums;
          std::vector<at::Tensor> results;
          for (const ShrinkGroup& job : jobs) {
            const at::Tensor gradient = at::zeros({job.factor->rank(), width}, x.options().dtype(accumulation_dtype(dtype)));
            const at::Tensor sum = at::zeros({width}, gradient.options());
            expansions.push_back({.rows = job.rows, .s = job.s, .factor = job.factor});
            gradients.push_back({job.rows, job.s, gradient});
            sums.push_back({x.narrow(0, job.rows.begin, job.rows.count()), sum});
            results.insert(results.end(), {gradient, sum});
          }
          add_expansions(y, expansions);
          accumulate_gradients(x, gradients);
          accumulate_row_sums(sums);
          for (size_t i = 0; i < jobs.size(); ++i) {
            results.insert(results.end(), {jobs[i].s, y.narrow(0, jobs[i].rows.begin, jobs[i].rows.count())});
          }
          return results;
        };
        const std::vector<at::Tensor> together = run(groups);
        for (const size_t job : {0, 2}) {
          const std::vector<at::Tensor> alone = run({groups[job]});
          const std::vector<at::Tensor> own{together[2 * job], together[2 * job + 1], together[8 + 2 * job], together[9 + 2 * job]};
          for (size_t i = 0; i < own.size(); ++i) {
            EXPECT_TRUE(own[i].isfinite().all().item<bool>()) << dtype << " " << width << " " << portable << " " << i;
            EXPECT_LE(relative_error(own[i], alone[i]), tolerance(dtype)) << dtype << " " << width << " " << portable << " " << i;
          }
        }
        EXPECT_TRUE(together[2].isnan().all().item<bool>()) << "the gradient of what is no number";
      }
    }
  }
}

/// Graph pruning (mLoRA §3.3.1; ML-18, ML-21): the jobs' parts of an input gradient are added inside the product. The
/// form that autograd would make, a consolidated tensor of the parts and one more of their sum, needs O·h values beside
/// it.
TEST(PrunedInputGradient, IsTheUnprunedOneWithoutItsSecondTensor) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  install_counting_allocator();
  for (const at::ScalarType dtype : kernel_dtypes()) {
    const int64_t tokens = 256, hidden = 320, out = 96, element = static_cast<int64_t>(c10::elementSize(dtype));
    const at::Tensor weight = random_tensor({out, hidden}, 1, dtype, 0.1), d = random_tensor({tokens, out}, 2, dtype);
    const auto product = make_frozen_product({weight}, {});
    for (const int64_t jobs : {1, 4}) {
      std::vector<std::unique_ptr<LowRankFactor>> a, b;
      std::vector<ShrinkGroup> groups;
      for (int64_t job = 0; job < jobs; ++job) {
        a.push_back(
            make_low_rank_factor(random_tensor({8, hidden}, 3 + static_cast<uint64_t>(job), at::kFloat), dtype));
        b.push_back(make_low_rank_factor(random_tensor({8, out}, 9 + static_cast<uint64_t>(job), at::kFloat), dtype));
        groups.push_back({{tokens * job / jobs, tokens * (job + 1) / jobs}, b.back().get(), 1, {}});
      }
      shrink(d, groups);
      std::vector<LowRankTerm> terms;
      for (int64_t job = 0; job < jobs; ++job) {
        terms.push_back({groups[static_cast<size_t>(job)].rows, 0, groups[static_cast<size_t>(job)].s,
                         a[static_cast<size_t>(job)].get()});
      }
      // Nothing else runs: the peak is the call's own.
      const auto peak_of = [&](const auto& call) {
        reset_memory_peaks();
        const int64_t before = memory_usage().live_bytes();
        const at::Tensor result = call();
        int64_t peaks = 0;
        for (const int64_t bytes : memory_usage().peak_bytes) peaks += bytes;
        return std::pair(result, peaks - before);
      };
      const auto [pruned, pruned_peak] = peak_of([&] { return product->backward(d, {.terms = &terms}); });
      const auto [unpruned, unpruned_peak] = peak_of([&] {
        const at::Tensor dx = product->backward(d, {}), parts = at::zeros({tokens, hidden}, d.options());
        at::Tensor sum_of_parts = parts;
        for (const LowRankTerm& term : terms) add_expansions(sum_of_parts, {{.rows = term.rows, .s = term.s, .factor = term.factor}});
        return dx + parts;
      });
      EXPECT_LE(relative_error(pruned, unpruned), tolerance(dtype));
      EXPECT_GE(unpruned_peak - pruned_peak, tokens * hidden * element) << dtype << ", " << jobs << " jobs";
      EXPECT_LT(pruned_peak, 2 * tokens * hidden * element) << dtype << ", " << jobs << " jobs";
    }
  }
}

}  // namespace
}  // namespace cotune::testing
