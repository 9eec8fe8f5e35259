// Frozen products with their additions, low-rank products and gradients: our kernels against dense arithmetic in f64.

#include "ops/call_counts.h"
#include "ops/frozen_product.h"
#include "ops/low_rank.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

/// Two weights side by side, two jobs with terms, a residual for some rows.
struct Operands {
  at::Tensor first, second, first_bias, second_bias, x, dy, residual;
  std::vector<at::Tensor> masters;
  std::vector<std::unique_ptr<LowRankFactor>> factors;
  std::vector<LowRankTerm> terms;
  std::vector<RowRange> residual_rows{{0, 3}, {9, 20}};

  Operands(at::ScalarType dtype, int64_t in, int64_t out) {
    const double scale = 1 / std::sqrt(static_cast<double>(in));
    first = random_tensor({out, in}, 1, dtype, scale);
    second = random_tensor({2 * out, in}, 2, dtype, scale);
    first_bias = random_tensor({out}, 3, dtype);
    second_bias = random_tensor({2 * out}, 4, dtype);
    x = random_tensor({23, in}, 5, dtype);
    dy = random_tensor({23, 3 * out}, 6, dtype);
    residual = random_tensor({23, 3 * out}, 7, dtype);
    add_term(dtype, {0, 9}, 5, 0, out);
    add_term(dtype, {2, 22}, 40, out, 2 * out);
  }

  void add_term(at::ScalarType dtype, RowRange rows, int64_t rank, int64_t column, int64_t width) {
    masters.push_back(random_tensor({rank, width}, 10 + masters.size(), accumulation_dtype(dtype)));
    factors.push_back(make_low_rank_factor(masters.back(), dtype));
    at::Tensor s = at::zeros({rows.count(), factors.back()->padded_rank()}, x.options());
    s.narrow(1, 0, rank).copy_(random_tensor({rows.count(), rank}, 20 + masters.size(), dtype));
    terms.push_back({rows, column, s, factors.back().get()});
  }

  /// In f64, from the operands as they are rounded.
  at::Tensor expected_forward() const {
    const at::Tensor weight = exact(at::cat({first, second}));
    at::Tensor y = at::mm(exact(x), weight.t()) + exact(at::cat({first_bias, second_bias}));
    for (size_t i = 0; i < terms.size(); ++i) {
      const at::Tensor master = exact(masters[i].to(x.scalar_type()));
      const at::Tensor s = exact(terms[i].s.narrow(1, 0, master.size(0)));
      y.narrow(0, terms[i].rows.begin, terms[i].rows.count())
          .narrow(1, terms[i].column_begin, master.size(1))
          .add_(at::mm(s, master));
    }
    for (const RowRange& rows : residual_rows) {
      y.narrow(0, rows.begin, rows.count()).add_(exact(residual.narrow(0, rows.begin, rows.count())));
    }
    return y;
  }
};

TEST(FrozenProduct, AddsBiasTermsAndResidualsOnEitherPath) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{64, 32}, {96, 64}, {72, 24}, {64, 40}}) {
      for (const bool portable : {false, true}) {
        std::optional<PortableKernels> scope;
        if (portable) scope.emplace();
        const Operands o(dtype, in, out);
        const auto product = make_frozen_product({o.first, o.second}, {o.first_bias, o.second_bias});
        const at::Tensor y = product->forward(o.x, {.terms = &o.terms, .residual = o.residual, .residual_rows = &o.residual_rows});
        EXPECT_LE(relative_error(y, o.expected_forward()), tolerance(dtype)) << dtype << " " << in << " " << out;
        EXPECT_EQ(y.scalar_type(), dtype);
        // A stream in the accumulation dtype is not rounded.
        Operands with_stream(dtype, in, out);
        with_stream.residual = random_tensor({23, 3 * out}, 7, accumulation_dtype(dtype), 1e3);
        const at::Tensor stream =
            product->forward(with_stream.x, {.terms = &with_stream.terms, .residual = with_stream.residual, .residual_rows = &with_stream.residual_rows});
        EXPECT_EQ(stream.scalar_type(), accumulation_dtype(dtype));
        EXPECT_LE(relative_error(stream, with_stream.expected_forward()), 2e-4) << dtype << " " << in << " " << out << (portable ? ", portable" : "");
        const at::Tensor dx = product->backward(o.dy, {});
        const at::Tensor weight = exact(at::cat({o.first, o.second}));
        EXPECT_LE(relative_error(dx, at::mm(exact(o.dy), weight)), tolerance(dtype));
        // A row's bits depend on that row alone.
        const at::Tensor all = product->forward(o.x, {.terms = &o.terms});
        for (const int64_t rows : {1, 2, 7, 8, 17}) {
          std::vector<LowRankTerm> terms;
          for (LowRankTerm term : o.terms) {
            term.rows.end = std::min(term.rows.end, rows);
            if (term.rows.count() <= 0) continue;
            term.s = term.s.narrow(0, 0, term.rows.count());
            terms.push_back(term);
          }
          const at::Tensor some = product->forward(o.x.narrow(0, 0, rows).contiguous(), {.terms = &terms});
          EXPECT_TRUE(same_products(some, all.narrow(0, 0, rows)))
              << dtype << " " << in << " " << out << ", " << rows << " rows" << (portable ? ", portable" : "");
        }
      }
    }
  }
}

TEST(FrozenProduct, KeepsNonFiniteRowsToThemselves) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{64, 32}, {72, 24}, {56, 101}}) {
      for (const bool portable : {false, true}) {
        std::optional<PortableKernels> scope;
        if (portable) scope.emplace();
        const Operands o(dtype, in, out);
        const auto product = make_frozen_product({o.first, o.second}, {o.first_bias, o.second_bias});
        const at::Tensor x = o.x.clone(), dy = o.dy.clone();
        x.narrow(0, 10, 2).fill_(NAN);
        dy.narrow(0, 10, 2).fill_(INFINITY);
        const auto expect_equal = [&](const at::Tensor& a, const at::Tensor& b) {
          EXPECT_TRUE(at::equal(a.narrow(0, 0, 10), b.narrow(0, 0, 10)) && at::equal(a.narrow(0, 12, 11), b.narrow(0, 12, 11)))
              << dtype << " " << in << " " << out << (portable ? ", portable" : "");
        };
        expect_equal(product->forward(x, {}), product->forward(o.x, {}));
        expect_equal(product->backward(dy, {}), product->backward(o.dy, {}));
      }
    }
  }
}

TEST(LowRank, ShrinkExpandAndGradientsAgreeWithDenseArithmetic) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    for (const int64_t width : {64, 72, 200}) {
      for (const int64_t rank : {1, 8, 33, 600}) {
        const at::Tensor x = random_tensor({30, width + 9}, 1, dtype).narrow(1, 4, width);  // a column slice
        const at::Tensor master = random_tensor({rank, width}, 2, accumulation_dtype(dtype), 0.2);
        const at::Tensor rounded = exact(master.to(dtype)), wide = exact(x);
        const auto factor = make_low_rank_factor(master, dtype);
        std::vector<ShrinkGroup> groups{{{0, 13}, factor.get(), 1, {}}, {{13, 13}, factor.get(), 1, {}}, {{14, 30}, factor.get(), 0.5, {}}};
        shrink(x, groups);
        for (const ShrinkGroup& group : groups) {
          ASSERT_EQ(group.s.sizes(), (std::vector<int64_t>{group.rows.count(), padded_rank(rank, dtype, test_device())}));
          if (group.rows.count() == 0) continue;
          const at::Tensor rows = wide.narrow(0, group.rows.begin, group.rows.count());
          EXPECT_LE(relative_error(group.s.narrow(1, 0, rank), group.scale * at::mm(rows, rounded.t())), tolerance(dtype));
          EXPECT_EQ(group.s.narrow(1, rank, group.s.size(1) - rank).abs().sum().item<double>(), 0);
          at::Tensor expanded = at::zeros({30, width}, x.options());
          add_expansions(expanded, {{.rows = group.rows, .s = group.s, .factor = factor.get()}});
          const at::Tensor own = expanded.narrow(0, group.rows.begin, group.rows.count());
          EXPECT_LE(relative_error(own, at::mm(exact(group.s.narrow(1, 0, rank)), rounded)), tolerance(dtype));
        }
        at::Tensor gradient = at::ones_like(master);
        accumulate_gradients(x, {{{14, 20}, groups[2].s.narrow(0, 0, 6), gradient}, {{0, 13}, groups[0].s, gradient}});
        const at::Tensor expected =
            1 + at::mm(exact(groups[2].s.narrow(0, 0, 6).narrow(1, 0, rank)).t(), wide.narrow(0, 14, 6)) +
            at::mm(exact(groups[0].s.narrow(1, 0, rank)).t(), wide.narrow(0, 0, 13));
        EXPECT_LE(relative_error(gradient, expected), dtype == at::kDouble ? 1e-12 : 2e-6) << dtype << " " << width;
      }
    }
  }
}

TEST(GradientCalls, OnAtenTakeWhatFitsInto32MiB) {
  // 1,000·500 values of a gradient and 2·1,500 of its rows, f64: 3.84 MiB, of which eight fit.
  const at::Tensor x = random_tensor({40, 500}, 1, at::kDouble), s = random_tensor({40, 1000}, 2, at::kDouble);
  for (const int64_t count : {1, 8, 9, 20}) {
    std::vector<GradientGroup> groups;
    for (int64_t i = 0; i < count; ++i) {
      groups.push_back({{2 * i, 2 * i + 2}, s.narrow(0, 2 * i, 2), at::zeros({1000, 500}, x.options())});
    }
    const CallCounts before = call_counts();
    accumulate_gradients(x, groups);
    EXPECT_EQ((call_counts() - before).adapter, (count + 7) / 8) << count << " jobs";
    for (const GradientGroup& group : groups) {
      const at::Tensor expected = at::mm(exact(group.left).t(), exact(x.narrow(0, group.rows.begin, 2)));
      EXPECT_LE(relative_error(group.gradient, expected), 1e-14);
    }
  }
}

TEST(LowRank, RefreshBringsANewMasterIn) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor master = random_tensor({4, 64}, 1, accumulation_dtype(dtype));
    const auto factor = make_low_rank_factor(master, dtype);
    master.mul_(2);
    factor->refresh(master);
    const at::Tensor x = random_tensor({10, 64}, 2, dtype);
    std::vector<ShrinkGroup> groups{{{0, 10}, factor.get(), 1, {}}};
    shrink(x, groups);
    EXPECT_LE(relative_error(groups[0].s.narrow(1, 0, 4), at::mm(exact(x), exact(master.to(dtype)).t())),
              tolerance(dtype));
  }
}

}  // namespace
}  // namespace cotune::testing
