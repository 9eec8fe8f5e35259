"""What the comparisons of scripts/compare-references share: their lines, the models, and training with cotune."""
import json
import os
import pathlib
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
COTUNE = os.environ.get("COTUNE", str(ROOT / "build/cotune"))
GGUF = ROOT / "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"

failures = []


def report(name, worst, limit, asked=None):
    """One line per comparison. Where less was `asked` than what is held, missing that is said, and is no failure."""
    good = worst <= limit
    verdict = ("ok" if asked is None or worst <= asked else f"missed: {asked:.1e} was asked") if good else "FAILED"
    print(f"{name:<58} worst {worst:9.2e}   limit {limit:7.1e}   {verdict}", flush=True)
    if not good:
        failures.append(name)


def report_run(name, command, **options):
    """A comparison that is another program's verdict: its exit status."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    verdict = ("equal", "ok") if done.returncode == 0 else ("different", "FAILED")
    print(f"{name:<58} {verdict[0]:<36}{verdict[1]}", flush=True)
    if done.returncode != 0:
        failures.append(name)
        print((done.stdout + done.stderr)[-3000:], file=sys.stderr)
    return done


def need(path, what):
    if not path.exists():
        sys.exit(f"scripts/compare-references: no {path}: {what}")


def smollm2(work):
    """The Hugging Face folder of the demonstration's model, converted once."""
    need(GGUF, "scripts/demo-data --model-only fetches it")
    folder = work / "smollm2"
    if not (folder / "model.safetensors").exists():
        subprocess.run([sys.executable, ROOT / "scripts/gguf-to-hf", GGUF, folder], check=True, capture_output=True)
    return folder


def load(folder, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    return model.eval()


def cotune_train(folder, model_path, jobs, dtype, steps):
    """Trains jobs {name: (adapter, train, data)} together; returns the summary. Rows in file order."""
    need(pathlib.Path(COTUNE), "scripts/build cotune builds it")
    lines = ["cotune: 1", f"model: {json.dumps({'path': str(model_path), 'dtype': dtype})}",
             f"run: {json.dumps({'output_dir': str(folder / 'run')})}", "jobs:"]
    for name, (adapter, train, data) in jobs.items():
        lines += [f"  - name: {name}", f"    data: {json.dumps(data)}", f"    adapter: {json.dumps(adapter)}",
                  f"    train: {json.dumps({**train, 'steps': steps, 'shuffle': 'none'})}"]
    (folder / "jobs.yaml").write_text("\n".join(lines) + "\n")
    done = subprocess.run([COTUNE, "train", str(folder / "jobs.yaml"), "--overwrite", "--json"], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"scripts/compare-references: {COTUNE} train {folder / 'jobs.yaml'} ended with {done.returncode}:\n"
                 + done.stderr[-2000:])
    return json.loads((folder / "run/summary.json").read_text())


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
