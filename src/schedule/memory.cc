#include "schedule/memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "model/config/tensor_shard.h"
#include "schedule/evaluation_policy.h"
#include "schedule/replica_memory.h"
#include "schedule/sequence_parallel.h"
#include "schedule/worst_case_on_ranks.h"

namespace cotune {
namespace {

constexpr int64_t forms_of_layer = 8;    // four products in two directions, each in slices of whole
constexpr int64_t slice_alignment = 64;  // bytes
constexpr int64_t row_grid = 64;  // microbatches are rounded up to multiples of it

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t accumulation_size(const MemoryFacts& facts) { return accumulation_bytes(facts.element_size); }

/// A matrix [k, n] in panels of 32 columns; bf16 pads k, and so do parts.
int64_t panel_bytes(int64_t k, int64_t n, int64_t element_size, int parts) {
  if (parts > 0) return round_up(k, 32) * round_up(n, 32) * 2 * parts;
  return (element_size == 2 ? round_up(k, 32) : k) * round_up(n, 32) * element_size;
}

/// Of what forward or backward reads, the larger; and of both.
struct FrozenBytes {
  int64_t form = 0;
  int64_t all = 0;
};

bool fits_panels(int64_t in, int64_t out) { return in % 32 == 0 && out % 32 == 0; }

FrozenBytes frozen_bytes(int64_t in, int64_t out, const MemoryFacts& facts) {
  const bool packed = facts.packed && facts.element_size != 8 && fits_panels(in, out);
  if (!packed) return {in * out * facts.element_size, in * out * facts.element_size};
  const int64_t forward = panel_bytes(in, out, facts.element_size, facts.parts), backward = panel_bytes(out, in, facts.element_size, facts.parts);
  return {std::max(forward, backward), forward + backward};
}

bool factor_is_packed(int64_t columns, const MemoryFacts& facts) {
  return facts.packed && facts.element_size != 8 && columns % 32 == 0;
}

/// What stays of an adapter's factor [rank, columns] beside its master: ATen's copy in the compute dtype. Packed forms
/// come and go with the calls that read them.
int64_t factor_bytes(int64_t rank, int64_t columns, const MemoryFacts& facts) {
  return factor_is_packed(columns, facts) ? 0 : rank * columns * facts.element_size;
}

int64_t form_bytes_at_most(int64_t rank, int64_t columns, const MemoryFacts& facts) {
  if (!factor_is_packed(columns, facts)) return 0;
  return std::max(shrink_form_bytes(rank, columns, facts), expand_form_bytes(rank, columns, facts));
}

/// The packed forms that one grouped call makes of these jobs' factors, at most: those of one operator.
int64_t largest_forms(const ModelConfig& config, std::span<const JobFootprint> jobs, const MemoryFacts& facts) {
  std::map<std::pair<int64_t, Projection>, int64_t> bytes;  // by layer and the first projection of the operator
  const auto operator_of = [](Projection projection) {
    if (projection == Projection::k || projection == Projection::v) return Projection::q;
    return projection == Projection::up ? Projection::gate : projection;
  };
  int64_t largest = 0;
  for (const JobFootprint& job : jobs) {
    for (const AdapterShape& adapter : job.adapters) {
      if (adapter.width == 0) continue;  // no factors
      const ProjectionSize size = projection_size(config, adapter.projection);
      const int64_t forms = std::max(form_bytes_at_most(adapter.width, size.in, facts),
                                     form_bytes_at_most(adapter.width, size.out, facts));
      largest = std::max(largest, bytes[{adapter.layer, operator_of(adapter.projection)}] += forms);
    }
  }
  return largest;
}

/// The stages of which one is a process's, if it has not the whole model.
std::vector<StageShape> stages_here(const ModelConfig& config, const MemoryFacts& facts) {
  if (!facts.process_stages.empty()) return facts.process_stages;
  StageShape whole = whole_model(config);
  whole.tensor_parallel = facts.tensor_parallel;
  whole.divides_tokens = facts.divides_tokens;
  return {whole};
}

/// Of the ranks that divide a layer, those in this process.
int64_t parts_here(const MemoryFacts& facts) { return facts.process_stages.empty() ? facts.tensor_parallel : 1; }

/// The most layers of them.
int64_t layers_here(const ModelConfig& config, const MemoryFacts& facts) {
  int64_t layers = 0;
  for (const StageShape& stage : stages_here(config, facts)) layers = std::max(layers, stage.last_layer - stage.first_layer);
  return layers;
}

/// Saved bytes per token, in all and of the layer that saves most.
struct SavedPerToken {
  int64_t model = 0;
  int64_t layer = 0;
};

SavedPerToken saved_per_token(const ModelConfig& config, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                              const std::vector<int64_t>& job_tokens, const MemoryFacts& facts) {
  const int64_t slices = stage.divides_tokens ? stage.tensor_parallel : 1;
  MicrobatchCounts one_each{.tokens = slices, .job_tokens = job_tokens};  // so that every slice has a token
  for (int64_t& tokens : one_each.job_tokens) tokens *= slices;
  SavedPerToken saved;
  std::map<int64_t, int64_t> layers;
  for (const Operator& op : stage_operators(config, stage, adapters, Direction::forward)) {
    const int64_t bytes = divide_up(parts_here(facts) * saved_bytes(config, stage, op, one_each, facts.element_size), slices);
    saved.model += bytes;
    saved.layer = std::max(saved.layer, layers[op.layer] += bytes);
  }
  return saved;
}

int64_t lowest_layer(const ModelConfig& config, const JobFootprint& job) {
  int64_t lowest = config.layer_count;
  for (const AdapterShape& adapter : job.adapters) lowest = std::min(lowest, adapter.layer);
  return lowest;
}

/// Of the dearest stage, which may be another one for each kind.
class SavedBytes {
 public:
  SavedBytes(const ModelConfig& config, const MemoryFacts& facts) : config_(config), facts_(facts), stages_(stages_here(config, facts)) {}

  /// Of the frozen model, under adapters from `lowest_layer` up.
  SavedPerToken by_model(int64_t lowest_layer) {
    SavedPerToken dearest;
    for (const SavedPerToken& saved : frozen(lowest_layer)) take(saved, dearest);
    return dearest;
  }

  /// What a job's adapters add to that.
  SavedPerToken by_adapters(const JobFootprint& job) {
    std::vector<int64_t> job_tokens(static_cast<size_t>(job.job) + 1, 0);
    job_tokens.back() = 1;
    const std::vector<SavedPerToken>& without = frozen(lowest_layer(config_, job));
    SavedPerToken dearest;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      const SavedPerToken with = saved_per_token(config_, stages_[stage], job.adapters, job_tokens, facts_);
      take({with.model - without[stage].model, with.layer - without[stage].layer}, dearest);
    }
    return dearest;
  }

 private:
  static void take(const SavedPerToken& saved, SavedPerToken& dearest) {
    dearest = {std::max(dearest.model, saved.model), std::max(dearest.layer, saved.layer)};
  }
  /// On each stage.
  const std::vector<SavedPerToken>& frozen(int64_t lowest_layer) {
    const auto [found, is_new] = frozen_.try_emplace(lowest_layer);
    for (size_t stage = 0; is_new && stage < stages_.size(); ++stage) {
      found->second.push_back(saved_per_token(config_, stages_[stage], {{.layer = lowest_layer}}, {}, facts_));
    }
    return found->second;
  }

  const ModelConfig& config_;
  const MemoryFacts& facts_;
  std::vector<StageShape> stages_;
  std::map<int64_t, std::vector<SavedPerToken>> frozen_;  ///< by lowest layer
};

/// Tokens of one job's whole batch, pads included, in a microbatch whose longest row is `width`.
int64_t batch_tokens(const JobFootprint& job, const PackingPolicy& policy, int64_t width) {
  switch (policy.layout) {
    case Layout::ragged:
      return job.row_count * job.longest_row;
    case Layout::padded:
      return job.row_count * width;
    case Layout::chunked:
      return job.row_count * round_up(job.longest_row, policy.chunk_size);
  }
  return 0;
}

bool fuses(const PackingPolicy& policy) {
  return policy.sharing == Sharing::hybrid || policy.sharing == Sharing::batch_all;
}

int64_t longest_row(std::span<const JobFootprint> jobs) {
  int64_t longest = 0;
  for (const JobFootprint& job : jobs) longest = std::max(longest, job.longest_row);
  return longest;
}

/// The jobs as an evaluation has them.
std::vector<JobFootprint> of_held_out_rows(std::span<const JobFootprint> jobs) {
  std::vector<JobFootprint> held_out(jobs.begin(), jobs.end());
  for (JobFootprint& job : held_out) {
    job.row_count = job.eval_row_count;
    job.longest_row = job.longest_eval_row;
  }
  return held_out;
}

/// Of a sparse delta's entries: row indices and column offsets.
int64_t place_bytes(const ModelConfig& config, const AdapterShape& adapter) {
  if (adapter.method != AdapterMethod::diff_pruning) return 0;
  return adapter.entries * 4 + (projection_size(config, adapter.projection).out + 1) * 8;
}

/// `tokens` tokens of all jobs, each job at most its batch, dearest first: the sum of their adapters' bytes.
int64_t dearest_mix(std::vector<std::pair<int64_t, int64_t>> bytes_and_tokens, int64_t tokens) {
  std::sort(bytes_and_tokens.rbegin(), bytes_and_tokens.rend());
  int64_t bytes = 0;
  for (const auto& [per_token, available] : bytes_and_tokens) {
    const int64_t taken = std::min(tokens, available);
    bytes += taken * per_token;
    tokens -= taken;
  }
  // The rows that round microbatches up belong to no job and carry nothing of adapters.
  return bytes;
}

/// What adapters of one job keep.
struct AdapterRows {
  int64_t bytes_per_token = 0, tokens = 0;
  int64_t of_one_rank = 1;  ///< so many times bytes_per_token for a row on one rank, which then has one in so many of all rows
};

/// A job's rows are not spread over the slices of the tokens: those of one rank may be its alone.
int64_t rows_that_one_rank_may_have(const JobFootprint& job, const MemoryFacts& facts) {
  const bool in_slices = std::ranges::any_of(job.adapters, [](const AdapterShape& adapter) { return adapts_slices(adapter.method); });
  return facts.divides_tokens && parts_here(facts) == 1 && in_slices ? facts.tensor_parallel : 1;
}

/// The most that so many tokens of a microbatch keep.
int64_t dearest_rows(const std::vector<AdapterRows>& all, int64_t tokens) {
  std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> mixes;  // by of_one_rank
  for (const AdapterRows& rows : all) mixes[rows.of_one_rank].push_back({rows.bytes_per_token * rows.of_one_rank, rows.tokens});
  int64_t bytes = 0;
  for (const auto& [of_one_rank, mix] : mixes) bytes += dearest_mix(mix, divide_up(tokens, of_one_rank));
  return bytes;
}

/// What a method's calls take beside what the operators take anyhow, per token: `e` of the compute dtype, `a` of accumulations.
int64_t method_workspace_per_token(const ModelConfig& config, AdapterMethod method, int64_t e, int64_t a) {
  switch (method) {
    case AdapterMethod::lora:  // masked inputs are counted for everyone
    case AdapterMethod::diff_pruning: return 0;
    case AdapterMethod::bottleneck: return config.hidden_size * (e + 4 * a);
  }
  return 0;
}

/// Where microbatches run side by side the ranks see them as one; those of a chain stay alone.
WorstCase in_clocks(WorstCase lead, int64_t everything, const PackingPolicy& policy, const MemoryFacts& facts) {
  if (policy.recompute) return lead;
  lead.microbatch_tokens = std::max(lead.microbatch_tokens, std::min(facts.clock_microbatches * lead.microbatch_tokens, everything));
  lead.alive_tokens = std::max(lead.alive_tokens, lead.microbatch_tokens);
  return lead;
}

/// Tokens alive on all ranks together; `everything`: of a round.
int64_t alive_on_ranks(const WorstCase& lead, int64_t everything, const MemoryFacts& facts) {
  if (facts.rank_order == RankOrder::gpipe) return std::max(lead.alive_tokens, everything);
  if (facts.stages() == 1) return lead.alive_tokens;
  // Interleaved 1F1B: rank 0 of p with v stages takes 2(p - 1) + (v - 1)p + 1 forwards of one stage ahead, less than 2p microbatches.
  if (facts.interleaves) return std::max(lead.alive_tokens, std::min(2 * facts.stages() * lead.alive_tokens, everything));
  const int64_t at_once = facts.rank_order == RankOrder::one_f_one_b ? lead.alive_tokens : lead.microbatch_tokens;
  return std::max(lead.alive_tokens, std::min(facts.stages() * at_once, everything));
}

/// Tokens of a round.
int64_t round_tokens(std::span<const JobFootprint> jobs, const PackingPolicy& policy) {
  const int64_t widest = fuses(policy) ? longest_row(jobs) : 0;
  int64_t tokens = 0;
  for (const JobFootprint& job : jobs) tokens += batch_tokens(job, policy, std::max(widest, job.longest_row));
  return round_up(tokens, row_grid);
}

/// worst_case, with what all ranks of a pipeline have at once, as if each had the whole model. everything: round_tokens.
WorstCase lead_on_ranks(std::span<const JobFootprint> jobs, size_t leading, int64_t everything, const PackingPolicy& policy,
                        const MemoryFacts& facts) {
  WorstCase lead = in_clocks(worst_case(jobs, leading, policy), everything, policy, facts);
  lead.alive_tokens = alive_on_ranks(lead, everything, facts);
  lead.chain_tokens *= facts.stages();
  return lead;
}

/// What GPU kernels take beside tensors of the operator list: sums of the chunks of a gradient's rows (cuda/outer_products.cu:
/// 1,024 rows, ranks by 16, three projections of a call), and panels of transposed rows for sparse deltas
/// (ops/sparse_delta_gpu.cc).
int64_t gpu_kernel_bytes(const ModelConfig& config, std::span<const JobFootprint> jobs, int64_t tokens, const MemoryFacts& facts) {
  constexpr int64_t chunk_rows = 1024, tile_ranks = 16, projections = 3, panel_bytes = int64_t{64} << 20, panel_rows = 512;
  int64_t widest = 0, panel = 0;
  for (const JobFootprint& job : jobs) {
    for (const AdapterShape& adapter : job.adapters) {
      const ProjectionSize size = projection_size(config, adapter.projection);
      if (adapter.method == AdapterMethod::diff_pruning) {
        panel = std::max({panel, panel_bytes, panel_rows * (size.in + size.out) * facts.element_size});
      } else {
        widest = std::max(widest, round_up(adapter.width, tile_ranks) * std::max(size.in, size.out));
      }
    }
  }
  const int64_t chunks = tokens / chunk_rows + static_cast<int64_t>(jobs.size());
  return chunks * projections * widest * accumulation_size(facts) + panel;
}

/// Of products whose sizes keep them from our kernels, where ATen multiplies bf16 in f32 (ops/aten_products.h): both sides of the widest, and a
/// block of its weight.
int64_t widened_bytes(const ModelConfig& config, int64_t tokens, const MemoryFacts& facts) {
  if (facts.product_block_bytes == 0) return 0;
  const int64_t hidden = config.hidden_size, query = config.query_size(), intermediate = config.intermediate_size;
  int64_t widest = 0;
  bool any = !fits_panels(hidden, config.vocabulary_size);
  for (const auto& [in, out] : {std::pair(hidden, query + 2 * config.key_value_size()), {query, hidden}, {hidden, 2 * intermediate}, {intermediate, hidden}}) {
    if (fits_panels(in, out)) continue;
    any = true;
    widest = std::max(widest, in + out);
  }
  return any ? accumulation_size(facts) * tokens * widest + facts.product_block_bytes : 0;
}

int64_t workspace_bytes(const ModelConfig& config, std::span<const JobFootprint> jobs, int64_t tokens,
                        const MemoryFacts& facts) {
  const int64_t e = facts.element_size, a = accumulation_size(facts);
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t mlp = 3 * hidden + 4 * intermediate;
  const int64_t attention = 3 * hidden + 2 * config.query_size() + 2 * config.key_value_size();
  int64_t per_token = e * (std::max(mlp, attention) + std::max(3 * hidden, intermediate));
  per_token += 2 * hidden * (a - e);  // the residual stream, before and after a product
  int64_t of_methods = 0;
  for (const JobFootprint& job : jobs) {
    for (const AdapterShape& adapter : job.adapters) {
      of_methods = std::max(of_methods, method_workspace_per_token(config, adapter.method, e, a));
    }
  }
  per_token += of_methods;
  if (facts.packed) return tokens * per_token + widened_bytes(config, tokens, facts);
  const int64_t own = facts.gpu_kernels ? gpu_kernel_bytes(config, jobs, tokens, facts) : facts.product_block_bytes;
  if (config.head_dim % 8 == 0 && config.head_dim <= facts.widest_flash_head) return 3 * tokens * per_token + own;
  const int64_t longest = longest_row(jobs);
  const int64_t queries = std::min({tokens, round_up(longest, row_grid), facts.attention_queries});
  return 3 * tokens * per_token + own + 6 * a * (config.head_count * queries + config.key_value_size()) * longest;
}

}  // namespace

int64_t shrink_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts) {
  return panel_bytes(width, rank, facts.element_size, 0);
}

int64_t expand_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts) {
  return panel_bytes(rank, width, facts.element_size, facts.parts);
}

int64_t MemoryEstimate::total() const {
  return weights + adapters + gradients + optimizer + std::max(activations + chain_kv + workspace + logits, files);
}

std::string MemoryEstimate::overflowing_term(int64_t limit) const {
  const std::array<std::pair<const char*, int64_t>, 8> terms = {{{"weights", weights},
                                                                 {"adapters", adapters},
                                                                 {"gradients", gradients},
                                                                 {"optimizer", optimizer},
                                                                 {"activations", activations},
                                                                 {"chain_kv", chain_kv},
                                                                 {"workspace", workspace},
                                                                 {"logits", logits}}};
  int64_t sum = 0;
  for (const auto& [name, bytes] : terms) {
    sum += bytes;
    if (sum > limit) return name;
  }
  return total() > limit ? "files" : "";
}

WorstCase worst_case(std::span<const JobFootprint> jobs, size_t leading, const PackingPolicy& policy) {
  const JobFootprint& lead = jobs[leading];
  int64_t everything = 0;
  if (fuses(policy)) {
    for (const JobFootprint& job : jobs) everything += batch_tokens(job, policy, longest_row(jobs));
  } else {
    everything = batch_tokens(lead, policy, lead.longest_row);
  }
  if (policy.sharing == Sharing::batch_all) {
    const int64_t tokens = round_up(everything, row_grid);
    return {.microbatch_tokens = tokens, .alive_tokens = tokens};
  }

  int64_t capacity = atom_tokens;
  int64_t row = lead.longest_row;
  if (policy.layout == Layout::chunked) {
    capacity = std::max<int64_t>(1, atom_tokens / policy.chunk_size) * policy.chunk_size;
    row = round_up(row, policy.chunk_size);
  }
  // A budget below an atom's capacity still takes any single atom that plan_step accepts.
  const int64_t atoms_at_once = std::max<int64_t>(1, policy.token_budget / capacity);
  const int64_t atoms = divide_up(row, capacity);
  const int64_t length = policy.layout == Layout::padded && atoms > 1 ? 1 + divide_up(atoms - 1, atoms_at_once)
                                                                       : divide_up(atoms, atoms_at_once);
  WorstCase worst;
  worst.microbatch_tokens = round_up(std::min(policy.token_budget, everything), row_grid);
  // Layout padded pads every part of a row to the longest in its own microbatch: the row's pads may come `length` times.
  const int64_t with_pads = policy.layout == Layout::padded ? length * everything : everything;
  worst.alive_tokens =
      std::min(length * round_up(policy.token_budget, row_grid), with_pads + length * (row_grid - 1));
  worst.chain_tokens = length > 1 ? row : 0;
  return worst;
}

WorstCase worst_case_on_ranks(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                              const MemoryFacts& facts) {
  const int64_t everything = round_tokens(jobs, policy);
  if (!facts.replicas.empty()) return worst_case_of_replicas(config, jobs, policy, facts, everything);
  WorstCase worst;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const WorstCase lead = lead_on_ranks(jobs, i, everything, policy, facts);
    worst.microbatch_tokens = std::max(worst.microbatch_tokens, lead.microbatch_tokens);
    worst.alive_tokens = std::max(worst.alive_tokens, lead.alive_tokens);
    worst.chain_tokens = std::max(worst.chain_tokens, lead.chain_tokens);
  }
  if (facts.process_stages.empty()) return worst;
  const auto here = [&](int64_t tokens) { return divide_up(tokens * layers_here(config, facts), config.layer_count); };
  return {here(worst.microbatch_tokens), here(worst.alive_tokens), here(worst.chain_tokens)};
}

int64_t MemoryFacts::with_holes(int64_t bytes) const {
  return static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * fragmentation));
}

int64_t parameter_count(const ModelConfig& config, const AdapterShape& adapter) {
  const ProjectionSize size = projection_size(config, adapter.projection);
  switch (adapter.method) {
    case AdapterMethod::lora:
      return adapter.width * (size.in + size.out);
    case AdapterMethod::bottleneck:
      return 2 * adapter.width * size.out + adapter.width + size.out;
    case AdapterMethod::diff_pruning:
      return adapter.entries;
  }
  return 0;
}

int64_t parameter_count(const ModelConfig& config, std::span<const AdapterShape> adapters) {
  int64_t count = 0;
  for (const AdapterShape& adapter : adapters) count += parameter_count(config, adapter);
  return count;
}

int64_t predict_weight_bytes(const ModelConfig& config, const MemoryFacts& facts) {
  // Parts of layers that are in one process take together what the whole takes.
  const int64_t parts = facts.tensor_parallel / parts_here(facts);
  const ModelConfig own = sharded_config(config, parts);
  const int64_t vocabulary = divide_up(config.vocabulary_size, parts);
  const int64_t hidden = own.hidden_size, query = own.query_size(), key_value = own.key_value_size();
  const int64_t qkv = query + 2 * key_value;
  const int64_t a = accumulation_size(facts);
  int64_t products = 0, gathered = 0;  // of a layer
  const std::array<std::pair<int64_t, int64_t>, 4> sizes{
      {{hidden, qkv}, {query, hidden}, {hidden, 2 * own.intermediate_size}, {own.intermediate_size, hidden}}};
  for (const auto& [in, out] : sizes) {
    const FrozenBytes product = frozen_bytes(in, out, facts);
    products += product.all;
    gathered = std::max(gathered, 2 * product.form);
  }
  const int64_t vectors = 2 * hidden * a + (own.qkv_bias ? qkv * a : 0);
  int64_t dearest = 0;
  for (const StageShape& stage : stages_here(config, facts)) {
    const int64_t layers = stage.last_layer - stage.first_layer;
    const bool head_embeds = config.tied_embeddings && stage.has_head;
    const int64_t embedding = stage.has_embedding && !head_embeds ? vocabulary * hidden * facts.element_size : 0;
    int64_t bytes = divide_up(layers * products + embedding, facts.weight_copies) + layers * vectors;
    const int64_t head = stage.has_head ? hidden * a + frozen_bytes(hidden, vocabulary, facts).all : 0;
    if (facts.weight_copies > 1) {
      const int64_t answers = embedding > 0 ? (facts.weight_copies - 1) * embedding_rows_at_once * hidden * facts.element_size : 0;
      bytes += gathered + answers + layers * forms_of_layer * slice_alignment;
      bytes = std::max(bytes, embedding + divide_up(embedding, facts.weight_copies));  // while it is cut, before the layers come
    }
    bytes += head;
    dearest = std::max(dearest, bytes);
  }
  return dearest;
}

namespace {

/// Of one adapter's parameters, or of a shard of it where config is that of a part of the model.
void add_resident(const ModelConfig& config, const AdapterShape& adapter, int64_t moment_count, int64_t copies,
                  const MemoryFacts& facts, MemoryEstimate& estimate) {
  const int64_t a = accumulation_size(facts);
  const ProjectionSize size = projection_size(config, adapter.projection);
  const int64_t parameters = copies * parameter_count(config, adapter);
  estimate.adapters += parameters * a;
  estimate.gradients += parameters * a;
  estimate.optimizer += parameters * a * moment_count;
  int64_t forms = 0;
  switch (adapter.method) {
    case AdapterMethod::lora:
      forms = factor_bytes(adapter.width, size.in, facts) + factor_bytes(adapter.width, size.out, facts);
      break;
    case AdapterMethod::bottleneck:
      forms = 2 * factor_bytes(adapter.width, size.out, facts);
      break;
    case AdapterMethod::diff_pruning:
      forms = place_bytes(config, adapter);
      if (facts.gpu_kernels) forms += adapter.entries * 8 + (size.in + 1) * 8;  // the entries by row too
      break;
  }
  estimate.adapters += copies * forms;
}

}  // namespace

MemoryEstimate resident_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts) {
  if (!facts.replicas.empty()) return resident_bytes_of_replicas(config, job, facts);
  const int64_t a = accumulation_size(facts), tensor = facts.tensor_parallel, parts = parts_here(facts);
  MemoryEstimate estimate;
  std::map<int64_t, int64_t> dense_by_layer;
  int64_t widest = 0;
  const auto is_stepped_here = [&](int64_t layer) {  // of processes, by the first one, which alone has whole adapters
    if (facts.process_stages.empty()) return true;
    const StageShape& first = facts.process_stages.front();
    return first.first_layer <= layer && layer < first.last_layer;
  };
  for (const AdapterShape& adapter : job.adapters) {
    add_resident(config, adapter, job.moment_count, 1, facts, estimate);
    if (tensor > 1 && is_stepped_here(adapter.layer)) {  // and the shards that the ranks step
      AdapterShape shard = adapter;
      shard.entries = divide_up(adapter.entries * ranks_with_same_outputs(config, adapter.projection, tensor), tensor);
      add_resident(sharded_config(config, tensor), shard, job.moment_count, parts, facts, estimate);
    }
    if (adapter.method != AdapterMethod::diff_pruning) continue;
    const ProjectionSize size = projection_size(config, adapter.projection);
    dense_by_layer[adapter.layer] += size.in * size.out * a;
    widest = std::max(widest, size.in * size.out * a);
  }
  int64_t densest = 0, dense = 0;
  for (const auto& [layer, bytes] : dense_by_layer) {
    densest = std::max(densest, bytes);
    dense += bytes;
  }
  const int64_t selected = std::max(densest, std::min(dense, facts.selection_bytes));
  estimate.gradients += selected;
  if (tensor > 1) estimate.gradients += divide_up(selected * ranks_with_same_outputs(config, Projection::k, tensor) * parts, tensor);
  if (parts < tensor) estimate.gradients += widest;  // of one weight, as its ranks sum it
  return estimate;
}

int64_t file_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts) {
  int64_t places = 0, largest = 0;
  for (const AdapterShape& adapter : job.adapters) {
    places += place_bytes(config, adapter);
    largest = std::max(largest, parameter_count(config, {adapter}) * accumulation_size(facts));
  }
  return largest + places;
}

MemoryEstimate predict_rounds(const ModelConfig& config, std::span<const JobFootprint> all_jobs, const PackingPolicy& asked_policy,
                              const MemoryFacts& facts, RoundKind kind) {
  if (!facts.replicas.empty()) return predict_rounds_of_replicas(config, all_jobs, asked_policy, facts, kind);
  const bool evaluates = kind == RoundKind::evaluation;
  const PackingPolicy policy = evaluates ? evaluation_policy(asked_policy) : asked_policy;
  const std::vector<JobFootprint> jobs = evaluates ? of_held_out_rows(all_jobs) : std::vector<JobFootprint>(all_jobs.begin(), all_jobs.end());
  const int64_t e = facts.element_size, a = accumulation_size(facts);
  MemoryEstimate estimate;
  estimate.weights = facts.weight_bytes > 0 ? facts.weight_bytes : predict_weight_bytes(config, facts);
  if (jobs.empty()) return estimate;

  SavedBytes saved_bytes_here(config, facts);
  std::vector<AdapterRows> model_mix, layer_mix;
  int64_t lowest_of_all = config.layer_count, reduced_gradients = 0;
  for (const JobFootprint& job : jobs) {
    const MemoryEstimate resident = resident_bytes(config, job, facts);
    estimate.adapters += resident.adapters;
    estimate.gradients += resident.gradients;
    estimate.optimizer += resident.optimizer;
    reduced_gradients = std::max(reduced_gradients, resident.gradients);
    const SavedPerToken saved = saved_bytes_here.by_adapters(job);
    const int64_t tokens = batch_tokens(job, policy, fuses(policy) ? longest_row(jobs) : job.longest_row);
    const int64_t rows_of_one = rows_that_one_rank_may_have(job, facts);
    model_mix.push_back({saved.model, tokens, rows_of_one});
    layer_mix.push_back({saved.layer, tokens, rows_of_one});
    lowest_of_all = std::min(lowest_of_all, lowest_layer(config, job));
  }

  const int64_t tensor = facts.tensor_parallel, parts = parts_here(facts), slices = facts.divides_tokens ? tensor : 1;
  const int64_t key_value_size = parts * projection_size(config, Projection::k, tensor).out;
  const int64_t everything = round_tokens(jobs, policy);
  int64_t microbatch_tokens = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const WorstCase lead = lead_on_ranks(jobs, i, everything, policy, facts);
    const int64_t lowest = fuses(policy) ? lowest_of_all : lowest_layer(config, jobs[i]);
    const int64_t layers = layers_here(config, facts);
    const int64_t trained_layers = std::min(config.layer_count - lowest, layers);
    const SavedPerToken frozen = saved_bytes_here.by_model(lowest);
    const auto mix = [&](const std::vector<AdapterRows>& all, int64_t tokens) {
      return dearest_rows(fuses(policy) ? all : std::vector{all[i]}, tokens);
    };
    const int64_t of_a_layer = lead.microbatch_tokens * frozen.layer + mix(layer_mix, lead.microbatch_tokens);
    int64_t kept = lead.alive_tokens * frozen.model + mix(model_mix, lead.alive_tokens);
    if (policy.recompute) {
      kept = lead.alive_tokens * (trained_layers + 1) * divide_up(parts * config.hidden_size * a, slices) + of_a_layer;
    }
    if (evaluates) kept = (facts.process_stages.empty() ? facts.stages() : 1) * of_a_layer;
    estimate.activations = std::max(estimate.activations, kept);
    estimate.chain_kv =
        std::max(estimate.chain_kv, lead.chain_tokens * 2 * key_value_size *
                                        (layers * e + (evaluates ? 0 : trained_layers * a)));
    microbatch_tokens = std::max(microbatch_tokens, lead.microbatch_tokens);
  }
  const int64_t head_bytes = facts.head_workspace_bytes / 3 * 4;
  const int64_t head_rows = tensor * std::max<int64_t>(row_grid, head_bytes / (config.vocabulary_size * e));
  estimate.activations = facts.with_holes(estimate.activations);
  estimate.chain_kv = facts.with_holes(estimate.chain_kv);
  const int64_t ranks_here = facts.process_stages.empty() ? facts.ranks : 1;
  const int64_t neighbours = facts.process_stages.empty() ? facts.ranks - 1 : std::min<int64_t>(2, facts.stages() - 1);
  int64_t messages = 4 * neighbours * microbatch_tokens * config.hidden_size * (a + e);
  if (tensor > 1) messages += ranks_here * microbatch_tokens * config.hidden_size * (e + 2 * a) + reduced_gradients;
  if (facts.divides_tokens) messages += ranks_here * microbatch_tokens * config.hidden_size * 2 * e;  // an error, and an input, of all rows
  estimate.workspace = facts.with_holes(
      ranks_here * (workspace_bytes(config, jobs, microbatch_tokens, facts) + largest_forms(config, jobs, facts)) + messages);
  const bool widens_head = facts.product_block_bytes > 0 && !fits_panels(config.hidden_size, config.vocabulary_size);
  const int64_t logit_bytes = (facts.packed && !widens_head) || (facts.gpu_kernels && tensor == 1) ? e : e + 4 * a;
  estimate.logits = facts.with_holes(std::min(microbatch_tokens, head_rows) * divide_up(config.vocabulary_size, tensor / parts) * logit_bytes);
  return estimate;
}

MemoryEstimate at_worst_moment(const MemoryEstimate& training, const ModelConfig& config, std::span<const JobFootprint> jobs,
                               const PackingPolicy& policy, const MemoryFacts& facts) {
  MemoryEstimate worst = training;
  if (std::ranges::any_of(jobs, [](const JobFootprint& job) { return job.eval_row_count > 0; })) {
    const MemoryEstimate evaluation = predict_rounds(config, jobs, policy, facts, RoundKind::evaluation);
    if (evaluation.total() > worst.total()) worst = evaluation;
  }
  for (const JobFootprint& job : jobs) worst.files = std::max(worst.files, file_bytes(config, job, facts));
  return worst;
}

MemoryEstimate predict_memory(const ModelConfig& config, std::span<const JobFootprint> jobs,
                              const PackingPolicy& policy, const MemoryFacts& facts) {
  return at_worst_moment(predict_rounds(config, jobs, policy, facts, RoundKind::training), config, jobs, policy, facts);
}

}  // namespace cotune
