#include "schedule/stage/subgraphs.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace cotune {
namespace {

bool is_adapter_gradient(OperatorKind kind) {
  return kind == OperatorKind::down_adapter_gradient || kind == OperatorKind::gate_up_adapter_gradient ||
         kind == OperatorKind::o_adapter_gradient || kind == OperatorKind::qkv_adapter_gradient;
}

}  // namespace

SubgraphDag subgraphs_of(std::span<const Operator> operators, std::span<const OperatorTime> times) {
  COTUNE_CHECK(operators.size() == times.size(), "{} times for {} operators", times.size(), operators.size());
  SubgraphDag dag;
  std::vector<int32_t> home(operators.size());
  int32_t open = -1;  // the subgraph that the next operator of the main path joins
  for (size_t i = 0; i < operators.size(); ++i) {
    const bool is_adapter = is_adapter_gradient(operators[i].kind);
    const bool opens = is_adapter || open < 0;
    home[i] = opens ? static_cast<int32_t>(dag.size()) : open;
    if (opens) dag.push_back({.is_adapter = is_adapter});
    Subgraph& subgraph = dag[static_cast<size_t>(home[i])];
    subgraph.operators.push_back(static_cast<int32_t>(i));
    subgraph.compute_s += times[i].compute_s;
    if (!is_adapter) open = operators[i].communicates ? -1 : home[i];
    if (operators[i].communicates) subgraph.communication_s += times[i].communication_s;
  }
  for (Subgraph& subgraph : dag) {
    std::set<int32_t> before;
    for (const int32_t op : subgraph.operators) {
      for (const int32_t predecessor : operators[static_cast<size_t>(op)].predecessors) {
        const int32_t other = home[static_cast<size_t>(predecessor)];
        if (&dag[static_cast<size_t>(other)] != &subgraph) before.insert(other);
      }
    }
    subgraph.predecessors.assign(before.begin(), before.end());
    for (const int32_t other : before)
      subgraph.depth = std::max(subgraph.depth, dag[static_cast<size_t>(other)].depth + 1);
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
