#include "plan/cost/priced_stage.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/cost/recomputation.h"
#include "schedule/operator_cost.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

constexpr int64_t few_clock_layers = 3, more_clock_layers = 5;

/// Equal costs: everything but the layer and what comes before.
bool costs_the_same(const Operator& a, const Operator& b) {
  if (a.kind != b.kind || a.communicates != b.communicates || a.without_input_gradient != b.without_input_gradient ||
      a.adapters.size() != b.adapters.size()) {
    return false;
  }
  return std::equal(a.adapters.begin(), a.adapters.end(), b.adapters.begin(), [](AdapterShape x, const AdapterShape& y) {
    x.layer = y.layer;
    return x == y;
  });
}

/// The list with only those operators, and predecessors among them.
std::vector<Operator> without_others(const std::vector<Operator>& kept, const std::vector<Operator>& all) {
  std::vector<int32_t> place(all.size(), -1);
  std::vector<Operator> list;
  size_t next = 0;
  for (size_t i = 0; i < all.size() && next < kept.size(); ++i) {
    if (all[i].kind != kept[next].kind || all[i].layer != kept[next].layer) continue;
    place[i] = static_cast<int32_t>(next);
    Operator& op = list.emplace_back(kept[next++]);
    std::vector<int32_t> before;
    for (const int32_t other : op.predecessors) {
      if (place[static_cast<size_t>(other)] >= 0) before.push_back(place[static_cast<size_t>(other)]);
    }
    op.predecessors = std::move(before);
  }
  return list;
}

}  // namespace

bool has_clocks(const StageShape& stage) { return stage.tensor_parallel > 1 && !stage.is_sequence_parallel; }

int64_t PricedStage::Bytes::of(const MicrobatchCounts& counts, int64_t ranks) const {
  int64_t bytes = all.of(counts.tokens, ranks);
  for (size_t job = 0; job < std::min(of_job.size(), counts.job_tokens.size()); ++job) {
    bytes += of_job[job].of(counts.job_tokens[job], ranks);
  }
  return bytes;
}

PricedStage::PricedStage(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                         const StageMachine& machine, LayerPricing pricing, bool has_clocks)
    : model_(model),
      stage_(stage),
      machine_(machine),
      workspace_(stage_workspace(model, stage, machine.element_size())),
      is_alike_(pricing == LayerPricing::alike || (pricing == LayerPricing::find_out && layers_are_alike(model, adapters))) {
  for (const AdapterShape& each : adapters) job_count_ = std::max<int64_t>(job_count_, each.job + 1);
  const int64_t layers = stage.last_layer - stage.first_layer;
  const bool is_whole = layers <= 3 || !is_alike_;
  // Layers that are alike: from two on one more is one more in the middle.
  const auto add = [&](int64_t count, double times, Bytes& kept) {
    const StageOfLayers part = is_whole ? StageOfLayers{model, stage, adapters} : stage_of_layers(model, stage, adapters, count);
    const auto list = [&](Direction direction) { return stage_operators(part.model, part.stage, part.adapters, direction); };
    const std::vector<Operator> forward = list(Direction::forward);
    const size_t place = add_part(part);
    const auto add_terms = [&](const std::vector<Operator>& operators, double Term::*runs) {
      for (const Operator& op : operators) terms_[term_of(place, op)].*runs += times;
    };
    add_terms(forward, &Term::forward);
    add_terms(list(Direction::backward), &Term::backward);
    if (machine.recompute) add_terms(recomputed_operators(forward), &Term::backward);
    if (machine.recompute) {
      find_recomputed_bytes(part, forward, kept, layer_bytes_);
    } else {
      for (const Operator& op : forward) add_saved_bytes(part, op, kept);
    }
  };
  if (is_whole) {
    add(layers, 1, kept_);
  } else {
    Bytes two, three;
    add(2, static_cast<double>(3 - layers), two);
    add(3, static_cast<double>(layers - 2), three);
    kept_.all = extrapolated(two.all, three.all, layers);
    for (size_t job = 0; job < two.of_job.size(); ++job) kept_.of_job.push_back(extrapolated(two.of_job[job], three.of_job[job], layers));
  }
  if (!has_clocks || !cotune::has_clocks(stage)) return;
  few_ = clock_of(adapters, clock_layers(ClockLayers::few));
  more_ = clock_of(adapters, clock_layers(ClockLayers::more));
}

size_t PricedStage::add_part(const StageOfLayers& part) {
  parts_.push_back({part.model, part.stage, {}});
  return parts_.size() - 1;
}

size_t PricedStage::term_of(size_t part, const Operator& op) {
  for (size_t t = 0; t < terms_.size(); ++t) {
    if (costs_the_same(terms_[t].op.whole, op)) return t;
  }
  terms_.push_back({part, OperatorParts(op)});
  return terms_.size() - 1;
}

double PricedStage::seconds_of(const Term& term, const MicrobatchCounts& counts) const {
  const StageOfLayers& part = parts_[term.part];
  return term.op.seconds(part.model, part.stage, counts, machine_);
}

void PricedStage::add_saved_bytes(const StageOfLayers& part, const Operator& op, Bytes& saved) const {
  const int64_t element = machine_.element_size(), ranks = ranks_with_slices(part.stage);
  MicrobatchCounts counts{.job_tokens = std::vector<int64_t>(static_cast<size_t>(job_count_), 0)};
  saved.of_job.resize(counts.job_tokens.size());
  saved.all += bytes_of_tokens(ranks, [&](int64_t tokens) {
    counts.tokens = tokens;
    return saved_bytes(part.model, part.stage, op, counts, element);
  });
  counts.tokens = 0;
  // A job's tokens count at its own adapters, which stand together.
  Operator own = op;
  for (auto first = op.adapters.begin(); first != op.adapters.end();) {
    const int32_t job = first->job;
    const auto end = std::find_if(first, op.adapters.end(), [job](const AdapterShape& each) { return each.job != job; });
    own.adapters.assign(first, end);
    int64_t& job_tokens = counts.job_tokens[static_cast<size_t>(job)];
    saved.of_job[static_cast<size_t>(job)] += bytes_of_tokens(ranks, [&](int64_t tokens) {
      job_tokens = tokens;
      return saved_bytes(part.model, part.stage, own, counts, element);
    });
    job_tokens = 0;
    first = end;
  }
}

void PricedStage::find_recomputed_bytes(const StageOfLayers& part, const std::vector<Operator>& forward, Bytes& kept,
                                        std::vector<Bytes>& layers) const {
  std::map<int64_t, Bytes> of_layer;
  for (const Operator& op : forward) {
    add_saved_bytes(part, op, of_layer[op.layer]);
    kept.all += bytes_of_tokens(ranks_with_slices(part.stage), [&](int64_t tokens) {
      return kept_input_bytes(part.model, part.stage, op, {.tokens = tokens}, machine_.element_size());
    });
  }
  for (auto& [layer, bytes] : of_layer) {
    if (std::find(layers.begin(), layers.end(), bytes) == layers.end()) layers.push_back(std::move(bytes));
  }
}

std::vector<double> PricedStage::term_seconds(const MicrobatchCounts& counts) const {
  std::vector<double> seconds;
  seconds.reserve(terms_.size());
  for (const Term& term : terms_) seconds.push_back(seconds_of(term, counts));
  return seconds;
}

double PricedStage::collective(const Term& term, const MicrobatchCounts& counts) const {
  const Operator& whole = term.op.whole;
  if (!whole.communicates) return 0;
  const auto has_tokens = [&](const AdapterShape& each) {
    const auto job = static_cast<size_t>(each.job);
    return job < counts.job_tokens.size() && counts.job_tokens[job] > 0;
  };
  if (!stage_.is_sequence_parallel || std::ranges::all_of(whole.adapters, has_tokens))
    return collective_seconds(model_, stage_, whole, counts.tokens, machine_);
  Operator present = whole;  // what adapters send along is theirs
  std::erase_if(present.adapters, [&](const AdapterShape& each) { return !has_tokens(each); });
  return collective_seconds(model_, stage_, present, counts.tokens, machine_);
}

StageSeconds PricedStage::collectives(const MicrobatchCounts& counts) const {
  StageSeconds sum;
  if (stage_.tensor_parallel == 1) return sum;
  for (const Term& term : terms_) {
    const double seconds = collective(term, counts);
    sum.forward += term.forward * seconds;
    sum.backward += term.backward * seconds;
  }
  return sum;
}

StageSeconds PricedStage::seconds(const MicrobatchCounts& counts) const {
  StageSeconds sum;
  for (const Term& term : terms_) {
    if (term.forward == 0 && term.backward == 0) continue;
    const double own = seconds_of(term, counts) + collective(term, counts);
    sum.forward += term.forward * own;
    sum.backward += term.backward * own;
  }
  return sum;
}

int64_t PricedStage::kept_bytes(const MicrobatchCounts& counts) const { return kept_.of(counts, ranks_with_slices(stage_)); }

int64_t PricedStage::layer_bytes(const MicrobatchCounts& counts) const {
  int64_t layer = 0;
  for (const Bytes& each : layer_bytes_) layer = std::max(layer, each.of(counts, ranks_with_slices(stage_)));
  return layer;
}

int64_t PricedStage::workspace_bytes(const MicrobatchCounts& counts) const {
  return workspace_.bytes(counts) + layer_bytes(counts);
}

int64_t PricedStage::clock_layers(ClockLayers layers) const {
  const int64_t all = stage_.last_layer - stage_.first_layer;
  if (!is_alike_ || all <= more_clock_layers) return all;
  return layers == ClockLayers::few ? few_clock_layers : more_clock_layers;
}

auto PricedStage::list_of(size_t part, std::vector<Operator> operators) -> List {
  List list{.operators = std::move(operators), .terms = {}, .graph = {}};
  for (const Operator& op : list.operators) list.terms.push_back(term_of(part, op));
  list.graph = subgraphs_of(list.operators, std::vector<OperatorTime>(list.operators.size()));
  return list;
}

auto PricedStage::clock_of(const std::vector<AdapterShape>& adapters, int64_t layers) -> Clock {
  const bool is_whole = layers == stage_.last_layer - stage_.first_layer;
  const StageOfLayers part =
      is_whole ? StageOfLayers{model_, stage_, adapters} : stage_of_layers(model_, stage_, adapters, layers);
  const std::vector<Operator> forward = stage_operators(part.model, part.stage, part.adapters, Direction::forward);
  const size_t place = add_part(part);
  Clock made;
  made.forward = list_of(place, forward);
  if (machine_.recompute) made.again = list_of(place, without_others(recomputed_operators(forward), forward));
  made.backward = list_of(place, stage_operators(part.model, part.stage, part.adapters, Direction::backward));
  return made;
}

SubgraphDag PricedStage::graph_of(const List& list, const std::vector<double>& seconds, const MicrobatchCounts& counts) const {
  SubgraphDag graph = list.graph;
  for (Subgraph& subgraph : graph) {
    for (const int32_t op : subgraph.operators) {
      subgraph.compute_s += seconds[list.terms[static_cast<size_t>(op)]];
      subgraph.communication_s += collective(terms_[list.terms[static_cast<size_t>(op)]], counts);
    }
  }
  return graph;
}

auto PricedStage::clock_graphs(const MicrobatchCounts& counts, ClockLayers layers, bool has_backward) const -> ClockGraphs {
  const Clock& lists = layers == ClockLayers::few ? few_ : more_;
  const std::vector<double> seconds = term_seconds(counts);
  ClockGraphs graphs{.forward = graph_of(lists.forward, seconds, counts), .again = {}, .backward = {}};
  if (!has_backward) return graphs;
  graphs.again = graph_of(lists.again, seconds, counts);
  graphs.backward = graph_of(lists.backward, seconds, counts);
  return graphs;
}

}  // namespace cotune
