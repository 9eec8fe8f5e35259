/// The tensors of a step, made and dropped as the engine does: what step_memory counts. Actions are in step_memory.cc, operators with their
/// adapters in step_memory_operators.cc.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "schedule/memory/block_ledger.h"
#include "schedule/memory/step_memory.h"
#include "schedule/operator_cost.h"

namespace cotune {

class StepMemorySimulation {
 public:
  StepMemorySimulation(const ModelConfig& config, const PlannedStep& step, const MemoryFacts& facts)
      : config_(config),
        step_(step),
        operators_(config, step),
        facts_(facts),
        e_(facts.element_size),
        a_(accumulation_bytes(e_)),
        head_workspace_(facts.head_workspace_bytes),
        hidden_(config.hidden_size),
        query_(config.query_size()),
        kv_(config.key_value_size()),
        qkv_(query_ + 2 * kv_),
        intermediate_(config.intermediate_size) {}

  StepMemory run();

 private:
  using Block = BlockLedger::Block;
  using enum BlockKind;

  /// What an adapter keeps at one projection of one layer, per job and projection.
  struct SiteBlocks {
    std::vector<Block> kept;
  };

  struct LayerBlocks {
    Block stream, input, attention_rms, mlp_rms, qkv, attention_out, lse, middle, gate_up;
    std::map<std::pair<int32_t, Projection>, SiteBlocks> sites;
  };

  /// engine/microbatch_state.h, as blocks.
  struct MicrobatchBlocks {
    std::vector<Block> inputs;
    std::vector<LayerBlocks> layers;
    Block hidden, x, final_hidden, d_hidden, d_x, d_qkv, d_gate_up, activated;
  };

  /// Keys, values and their gradients of one chain, over all layers.
  struct ChainBlocks {
    int64_t rows = 0;
    std::vector<std::pair<Block, Block>> keys_and_values, gradients;
  };

  Block allocate(int64_t values, int64_t size) { return ledger_.allocate(kind_, values * size); }

  void begin(const Action& action);
  int64_t tokens_of(const AdapterShape& adapter) const { return counts_->job_tokens[static_cast<size_t>(adapter.job)]; }

  // ---- microbatches ----

  void make_state(int32_t microbatch);
  void make_chains(int32_t microbatch);
  void free_chains(int32_t microbatch);
  void forward(const Action& action);
  void recompute(const Action& action);
  void backward(const Action& action);
  /// Before an optimizer step the losses of all heads so far are read, as f64.
  void read_losses();

  // ---- products with adapters ----

  LayerBlocks& layer(const Operator& op) { return state_->layers[static_cast<size_t>(op.layer)]; }
  SiteBlocks& site(const Operator& op, const AdapterShape& adapter);
  std::vector<const AdapterShape*> adapters_of(const Operator& op, AdapterMethod method) const;
  /// The inputs of LoRA sites that drop, one after another.
  Block masked_inputs(const Operator& op);

  // Packed forms of the factors of one grouped call, for as long as it runs.

  struct Form {
    int64_t width = 0, rank = 0;
  };
  Block shrink_forms(const std::vector<Form>& forms);
  Block expand_forms(const std::vector<Form>& forms);
  Block shrunk(const AdapterShape& adapter);
  /// x·Aᵀ of the LoRA sites that drop, or of the others.
  void shrink_inputs(const Operator& op, bool drops);
  /// size: of an element of y.
  Block forward_product(const Operator& op, int64_t out, int64_t size);
  void apply_bottlenecks(const Operator& op, int64_t out);
  /// f(z), or its gradient.
  Block activated(const AdapterShape& adapter) { return shrunk(adapter); }

  Block backward_product(const Operator& op, int64_t in, int64_t out);
  /// What the methods make of the incoming gradient; returns the copy that bottlenecks put in its place.
  Block enter_backward(const Operator& op, int64_t out);
  void adapter_gradient(const Operator& op, int64_t out);

  // ---- the operators of engine/stage.cc ----

  void run_head();
  /// Scratch of all threads, while attention of the microbatch runs.
  void attend(Direction direction);
  void attention_backward(int64_t layer);
  void run_operator(const Operator& op);

  const ModelConfig& config_;
  const PlannedStep& step_;
  StepOperators operators_;
  const MemoryFacts& facts_;
  int64_t e_, a_, head_workspace_;
  int64_t hidden_, query_, kv_, qkv_, intermediate_;

  BlockLedger ledger_;
  BlockKind kind_ = activations;
  std::map<int32_t, MicrobatchBlocks> live_;
  std::map<std::pair<int32_t, int32_t>, ChainBlocks> chains_;
  std::vector<std::pair<Block, int64_t>> losses_;
  // Of the action at hand.
  MicrobatchBlocks* state_ = nullptr;
  const MicrobatchCounts* counts_ = nullptr;
  int64_t tokens_ = 0;
  int32_t microbatch_ = -1;
};

}  // namespace cotune
