#include "schedule/stage/subgraphs.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace cotune {
namespace {

/// 0 … 3 of the adapter gradients, -1 of other kinds.
int32_t gradient_number(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::qkv_adapter_gradient: return 0;
    case OperatorKind::o_adapter_gradient: return 1;
    case OperatorKind::gate_up_adapter_gradient: return 2;
    case OperatorKind::down_adapter_gradient: return 3;
    default: return -1;
  }
}

/// Subgraphs of the layers, each ending where the next one begins, and the adapter gradients of what each has made.
struct Clusters {
  std::vector<std::vector<int32_t>> main;
  std::vector<std::vector<int32_t>> gradients;  ///< after main[i - 1], before main[i]; one list more than there are of main
};

Clusters clusters_of(std::span<const Operator> operators) {
  Clusters clusters{.main = {}, .gradients = {{}}};
  std::vector<size_t> home(operators.size(), 0);  // main subgraphs up to and with that of the operator
  bool is_open = false;
  for (size_t i = 0; i < operators.size(); ++i) {
    if (gradient_number(operators[i].kind) >= 0) {
      for (const int32_t before : operators[i].predecessors) home[i] = std::max(home[i], home[static_cast<size_t>(before)]);
      clusters.gradients[home[i]].push_back(static_cast<int32_t>(i));
      continue;
    }
    if (!is_open) {
      clusters.main.emplace_back();
      clusters.gradients.emplace_back();
    }
    clusters.main.back().push_back(static_cast<int32_t>(i));
    home[i] = clusters.main.size();
    is_open = !operators[i].communicates;
  }
  return clusters;
}

}  // namespace

SubgraphDag subgraphs_of(std::span<const Operator> operators, std::span<const OperatorTime> times) {
  COTUNE_CHECK(operators.size() == times.size(), "{} times for {} operators", times.size(), operators.size());
  const Clusters clusters = clusters_of(operators);
  SubgraphDag dag;
  std::vector<int32_t> home(operators.size(), -1);
  const auto add = [&](const std::vector<int32_t>& members) {
    Subgraph& subgraph = dag.emplace_back();
    subgraph.operators = members;
    for (const int32_t op : members) {
      const auto i = static_cast<size_t>(op);
      home[i] = static_cast<int32_t>(dag.size()) - 1;
      subgraph.compute_s += times[i].compute_s;
      if (operators[i].communicates) subgraph.communication_s += times[i].communication_s;
    }
  };
  std::vector<int32_t> waiting;  // gradients that the next subgraph of the layers comes after
  const auto add_gradients = [&](const std::vector<int32_t>& gradients) {
    for (const int32_t op : gradients) {
      const Operator& gradient = operators[static_cast<size_t>(op)];
      add({op});
      dag.back().is_adapter = true;
      dag.back().site = static_cast<int32_t>(4 * gradient.layer) + gradient_number(gradient.kind);
      waiting.push_back(static_cast<int32_t>(dag.size()) - 1);
    }
  };
  add_gradients(clusters.gradients.front());
  for (size_t m = 0; m < clusters.main.size(); ++m) {
    add(clusters.main[m]);
    dag.back().predecessors = std::move(waiting);
    waiting.clear();
    add_gradients(clusters.gradients[m + 1]);
  }
  for (Subgraph& subgraph : dag) {
    std::set<int32_t> before(subgraph.predecessors.begin(), subgraph.predecessors.end());
    for (const int32_t op : subgraph.operators) {
      for (const int32_t predecessor : operators[static_cast<size_t>(op)].predecessors) {
        const int32_t other = home[static_cast<size_t>(predecessor)];
        if (&dag[static_cast<size_t>(other)] != &subgraph) before.insert(other);
      }
    }
    subgraph.predecessors.assign(before.begin(), before.end());
    for (const int32_t other : before) {
      const Subgraph& earlier = dag[static_cast<size_t>(other)];
      if (!earlier.is_adapter) subgraph.depth = std::max(subgraph.depth, earlier.depth + 1);
    }
  }
  check(dag);
  return dag;
}

void check(const SubgraphDag& dag) {
  for (size_t i = 0; i < dag.size(); ++i) {
    for (const int32_t before : dag[i].predecessors) {
      COTUNE_CHECK(before >= 0 && before < static_cast<int32_t>(i), "subgraph {} follows subgraph {}", i,
                   before);
    }
    COTUNE_CHECK(dag[i].compute_s >= 0 && dag[i].communication_s >= 0, "subgraph {} takes {} and {} s", i,
                 dag[i].compute_s, dag[i].communication_s);
  }
}

}  // namespace cotune
