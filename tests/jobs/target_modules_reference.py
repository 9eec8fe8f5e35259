"""Writes tests/jobs/data/target_modules.json: which modules PEFT adapts, with which rank and alpha, per configuration.

Run with torch, transformers and peft installed: python tests/jobs/target_modules_reference.py
"""
import json
import pathlib
import warnings

import peft
import transformers

LAYERS = 12
CASES = [
    {},
    {"target_modules": "all-linear"},
    {"target_modules": ["q_proj"]},
    {"target_modules": ["q_proj", "down_proj", "self_attn.q_proj"]},
    {"target_modules": ["mlp.up_proj", "layers.1.self_attn.k_proj"]},
    {"target_modules": ["1.self_attn.k_proj"]},
    {"target_modules": ["model.layers.3.mlp.gate_proj"]},
    {"target_modules": ["model.layers.3.mlp.gate_proj", "o_proj"], "layers_to_transform": [0, 11]},
    {"target_modules": r".*\.(q|v)_proj"},
    {"target_modules": r"model\.layers\.(1|10)\..*proj"},
    {"target_modules": r".*layers\.\d\.mlp\.(?!gate).*_proj"},
    {"target_modules": ["q_proj", "v_proj", "o_proj"], "layers_to_transform": [1, 4]},
    {"target_modules": ["q_proj", "v_proj", "up_proj"], "exclude_modules": ["layers.0.self_attn.q_proj", "up_proj"]},
    {"target_modules": "all-linear", "exclude_modules": r".*layers\.(\d|10)\..*"},
    {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"v_proj": 2}},
    {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"layers.1.self_attn.q_proj": 3, "q_proj": 5}},
    {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"q_proj": 5, "layers.1.self_attn.q_proj": 3}},
    {"target_modules": ["q_proj", "k_proj"], "rank_pattern": {r"layers\.(1|2)\.self_attn\..*": 16, r"model.*k_proj": 6}},
    {"target_modules": ["q_proj", "k_proj"], "alpha_pattern": {r"(0|3).self_attn.q_proj": 1.5, ".*": 7}},
    {"target_modules": "all-linear", "rank_pattern": {"q_proj|k_proj": 2}},
    {"target_modules": r".*layers\.(0|1\d{,1})\..*q_proj"},
    {"target_modules": ["q_proj"], "rank_pattern": {r"layers\.1[]{,1}\d]{,}\..*q_proj": 2, r"layers\.\d{1,}\..*": 3}},
]


def resolve(case):
    config = transformers.LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS,
                                      num_attention_heads=2, num_key_value_heads=1)
    model = transformers.LlamaForCausalLM(config)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, **case)
    model = peft.get_peft_model(model, lora)
    modules = {}
    for name, module in model.base_model.model.named_modules():
        if isinstance(module, peft.tuners.lora.Linear):
            modules[name] = [module.r["default"], module.lora_alpha["default"]]
    return modules


warnings.simplefilter("ignore")
result = {"peft": peft.__version__, "layers": LAYERS, "r": 8, "alpha": 16,
          "cases": [{"config": case, "modules": resolve(case)} for case in CASES]}
path = pathlib.Path(__file__).parent / "data" / "target_modules.json"
path.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n")
