"""What single roundings to bf16 cost SmolLM2: all is in f32, and what is rounded is chosen place by place.

Per choice: how far a held-out loss moves before training, on the sentiment set of long_runs.py, and how far the gradients of the
first step turn per adapted module, on the rows of gradient_cosines.py. So it shows what no kernel can avoid: products of bf16 read
rounded weights and inputs.
"""
import json
import math

import gradient_cosines
import long_runs
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROJECTIONS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
RANK = 16

# Forward: weights; inputs of products (normalised stream, attention's output, activation); outputs of q, k, v before and after the
# rotary embedding; probabilities; outputs of gate and up. Backward: gradients where they enter products and where they leave them.
WEIGHTS, INPUTS, HEADS, ROTATED, PROBABILITIES, GATES, GRADIENTS = PLACES = (
    "weights", "inputs", "q, k, v", "rotated q, k", "probabilities", "gate, up", "gradients")
CHOICES = {**{place: {place} for place in PLACES}, "weights, inputs": {WEIGHTS, INPUTS}, "all": set(PLACES)}


def bf16(values, rounded):
    return values.to(torch.bfloat16).float() if rounded else values


class Rounded(torch.autograd.Function):
    """Values rounded on their way forward, gradients on their way back."""
    @staticmethod
    def forward(context, values, forward, backward):
        context.backward_too = backward
        return bf16(values, forward)

    @staticmethod
    def backward(context, gradient):
        return bf16(gradient, context.backward_too), None, None


class Product(torch.autograd.Function):
    """x Wᵀ, W frozen; the gradient of LoRA's B where A is at its initial values goes to `found`."""
    @staticmethod
    def forward(context, x, weight, a, places, found, name):
        x = bf16(x, INPUTS in places)
        context.save_for_backward(x, weight, a)
        context.about = places, found, name
        return x @ weight.T

    @staticmethod
    def backward(context, gradient):
        (x, weight, a), (places, found, name) = context.saved_tensors, context.about
        gradient = bf16(gradient, GRADIENTS in places)
        found[name] = found.get(name, 0) + (gradient.T @ (x @ a.T)).double().flatten()
        return bf16(gradient @ weight, GRADIENTS in places), None, None, None, None, None


class RoundedLlama:
    def __init__(self, folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.config, self.exact = model.config, dict(model.state_dict())
        self.rounded = {name: bf16(value, True) for name, value in self.exact.items()}
        self.head_dim = self.config.hidden_size // self.config.num_attention_heads
        torch.manual_seed(1)
        self.a = {}
        for layer in range(self.config.num_hidden_layers):
            for projection in PROJECTIONS:
                name = f"model.layers.{layer}.{projection}"
                width = self.exact[name + ".weight"].shape[1]
                self.a[name] = (2 * torch.rand(RANK, width) - 1) / math.sqrt(width)

    def rotate(self, x):
        theta = getattr(self.config, "rope_theta", None) or self.config.rope_parameters["rope_theta"]
        half = self.head_dim // 2
        angles = torch.arange(x.shape[1]).float()[:, None] / theta ** (torch.arange(half).float() / half)
        cosine, sine, left, right = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)

    def attention(self, q, k, v, places):
        """[heads, tokens, head_dim] each."""
        gradients = GRADIENTS in places
        scores = Rounded.apply(q @ k.transpose(1, 2) * self.head_dim ** -0.5, False, gradients)
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -math.inf)
        powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        return Rounded.apply(powers, PROBABILITIES in places, False) @ v / powers.sum(-1, keepdim=True)

    def logits(self, tokens, places, found):
        weights = self.rounded if WEIGHTS in places else self.exact
        config, count = self.config, len(tokens)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

        def norm(values, name):
            return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * weights[name + ".weight"]

        def product(values, name):
            return Product.apply(values, weights[name + ".weight"], self.a[name], places, found, name)

        def split(values, head_count):
            return values.view(count, head_count, self.head_dim).transpose(0, 1)

        stream = weights["model.embed_tokens.weight"][tokens].clone().requires_grad_()
        for layer in range(config.num_hidden_layers):
            at = f"model.layers.{layer}."
            normed = norm(stream, at + "input_layernorm")
            q, k, v = (Rounded.apply(product(normed, at + name), HEADS in places, GRADIENTS in places) for name in PROJECTIONS[:3])
            q, k = (Rounded.apply(self.rotate(split(values, n)), ROTATED in places, False) for values, n in ((q, heads), (k, kv_heads)))
            k, v = (values.repeat_interleave(heads // kv_heads, 0) for values in (k, split(v, kv_heads)))
            out = self.attention(q, k, v, places).transpose(0, 1).reshape(count, -1)
            stream = stream + product(out, at + "self_attn.o_proj")
            normed = norm(stream, at + "post_attention_layernorm")
            gate, up = (Rounded.apply(product(normed, at + name), GATES in places, GRADIENTS in places) for name in PROJECTIONS[4:6])
            stream = stream + product(torch.nn.functional.silu(gate) * up, at + "mlp.down_proj")
        return Rounded.apply(norm(stream, "model.norm"), INPUTS in places, GRADIENTS in places) @ weights["model.embed_tokens.weight"].T

    def losses(self, rows, places, found, learn):
        """Mean over labelled tokens, summed up; learn: gradients of all rows go to `found`."""
        labels = [torch.tensor(row["labels"][1:]) for row in rows]
        labelled, total = sum((each >= 0).sum().item() for each in labels), 0.0
        for row, label in zip(rows, labels):
            with torch.set_grad_enabled(learn):
                scores = self.logits(torch.tensor(row["input_ids"]), places, found)[:-1]
                loss = torch.nn.functional.cross_entropy(scores, label, ignore_index=-100, reduction="sum") / labelled
            if learn:
                loss.backward()
            total += loss.item()
        return total


def show(folder):
    """Prints the table."""
    model = RoundedLlama(folder)
    text = [{"input_ids": row, "labels": row} for row in json.loads(gradient_cosines.ROWS.read_text())]
    tokens = torch.tensor(text[0]["input_ids"])
    with torch.no_grad():
        exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens[None]).logits[0]
        worst = (model.logits(tokens, set(), {}) - exact).abs().max().item()
    assert worst < 1e-3, f"this model is not transformers': logits are {worst} apart"
    answers = long_runs.demonstration_rows("sentiment", "test", AutoTokenizer.from_pretrained(folder), long_runs.LONG["held_out"])
    before, gradients = model.losses(answers, set(), {}, False), {}
    model.losses(text, set(), gradients, True)
    print(f"  rounded to bf16, all else f32: sentiment's held-out loss before training (f32 {before:.4f}), and cosines of the first gradient")
    for name, places in CHOICES.items():
        turned = {}
        moved = model.losses(answers, places, {}, False) / before - 1
        model.losses(text, places, turned, True)
        cosines = sorted((gradients[n] @ turned[n] / (gradients[n].norm() * turned[n].norm())).item() for n in gradients)
        print(f"    {name:<18} {100 * moved:+.2f}%   lowest {cosines[0]:.4f}   median {cosines[len(cosines) // 2]:.4f}", flush=True)
