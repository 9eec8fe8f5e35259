"""How far PEFT's own bf16 gradients point from its f32 ones: a cosine per adapted module at the first step, as PEFT is and with a
residual stream in f32.

The rows, all of whose tokens are learned, and the adapter (LoRA of rank 16 on every linear module) are those of
tests/engine/bf16_gradient_test.cc.
"""
import contextlib
import json
import pathlib
from unittest import mock

import peft_reference
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

ROWS = pathlib.Path(__file__).resolve().parents[2] / "tests/engine/data/gradient_rows.json"


def gradients(folder, rows, dtype):
    """By module, its parameters' one after another, f64. Equal initial values whatever the dtype: PEFT keeps adapters in f32."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    adapter = dict(r=16, alpha=16, target_modules=peft_reference.LINEAR)
    model = get_peft_model(model, peft_reference.lora_config(adapter)).train()
    labelled = sum(len(row) - 1 for row in rows)
    for row in rows:
        ids = torch.tensor([row])
        scores = model(input_ids=ids).logits[0, :-1].float()
        (torch.nn.functional.cross_entropy(scores, ids[0, 1:], reduction="sum") / labelled).backward()
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found.setdefault(name.split(".lora_")[0], []).append(parameter.grad.double().flatten())
    return {name: torch.cat(parts) for name, parts in found.items()}


@contextlib.contextmanager
def f32_residual_stream():
    """Layers of Llama whose residual stream, and its gradient, are in f32, and what they compute in the weights' dtype."""
    as_it_is = modeling_llama.LlamaDecoderLayer.forward

    def layer(self, hidden_states, *positional, **named):
        return as_it_is(self, hidden_states.float(), *positional, **named)

    def norm(self, hidden_states):
        hidden = hidden_states.float()
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * hidden).to(self.weight.dtype)

    with (mock.patch.object(modeling_llama.LlamaDecoderLayer, "forward", layer),
          mock.patch.object(modeling_llama.LlamaRMSNorm, "forward", norm)):
        yield


def peft_cosines(folder):
    """Ascending: as PEFT is, and with the residual stream in f32."""
    rows = json.loads(ROWS.read_text())
    f32, bf16 = (gradients(folder, rows, dtype) for dtype in (torch.float32, torch.bfloat16))
    with f32_residual_stream():
        f32_stream = gradients(folder, rows, torch.bfloat16)
    return tuple(sorted((f32[name] @ other[name] / (f32[name].norm() * other[name].norm())).item() for name in f32)
                 for other in (bf16, f32_stream))
