#!/usr/bin/env python3
"""Measures cotune against Hugging Face PEFT and writes the table of docs/benchmarks.md.

    .deps/venv/bin/python bench/compare.py [--only NAME...] [--repetitions 3] [--steps 4] [--no-docs]
    .deps/venv/bin/python bench/compare.py --device cuda
    .deps/venv/bin/python bench/compare.py --table-only

Needs `scripts/install-dependencies --comparisons`, a built build/cotune and the model of scripts/demo-data. Everything
else is made under build/bench (--work): the Hugging Face folder, the workloads (bench/workloads.py), the initial adapters both
programs start from. Per repetition and row of the table it runs cotune, PEFT as shipped and PEFT tuned (each of its ways to
batch, the best counts) right after each other, one program at a time, so that the machine's drift falls on all alike.
The page has a part for processors with AVX-512 BF16, with AMX, with AVX-512 alone, and with AVX2 alone. Every run is a line of
build/bench/results.jsonl, which starts empty unless --append is given (further runs beside those that are there) or
--replace (the rows that are measured lose their earlier runs, all others stay); --table-only writes the table from that
file again.

A row's figures are medians over its runs. A ratio is the median of the ratios of runs made right after each other, so that
a machine whose speed drifts from run to run does not decide it. A goal that is missed is marked so,
and so is a row whose losses are wrong: its speed counts for nothing. In f32 both programs' losses agree (LOSS_LIMIT); in bf16,
where each rounds in its own places, those of a run of cotune in f32 are the yardstick of both, and cotune's may not lie further
from it than PEFT's, but for FURTHER. Two cores run one benchmark at a time:
how many cores others keep busy is recorded before each run, and a table from a busy machine says so.

--device cuda measures both programs on the GPU (docs/gpu.md): memory is then that of tensors on the device, results go to
build/bench/results-cuda.jsonl and the table to build/bench/benchmarks-cuda.md. The goals are those of a CPU and left out.
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

import page_part
import workloads

ROOT = pathlib.Path(__file__).resolve().parents[1]

# One row of the table: cotune on a workload, against PEFT on the same one. Goals are ratios of real tokens per second.
# stored_bf16: both programs read a checkpoint stored in bfloat16, as Llama, Qwen and SmolLM2 are published.
Row = collections.namedtuple("Row", "name title workload dtype arguments goal_shipped goal_tuned stored_bf16", defaults=[False])
ROWS = [
    Row("four-jobs", "four jobs, rows to 32/64/128/256, batch 8", "four-jobs", "bfloat16", "", 5.0, 4.0),
    Row("four-jobs-f32", "the same in f32, checkpoint stored in bf16", "four-jobs", "float32", "", 4.5, None, True),
    Row("four-jobs-f32-weights", "the same in f32, weights of 24 bits", "four-jobs", "float32", "", 4.5, None),
    Row("four-jobs-full", "the same, every row at full length", "four-jobs-full", "bfloat16", "", 3.5, None),
    Row("four-jobs-quarter", "the same, a quarter of the tokens labelled", "four-jobs-quarter", "bfloat16", "", 5.5, None),
    Row("sixteen-jobs", "16 jobs of batch 1, rows to 64", "sixteen-jobs", "bfloat16", "", 4.5, None),
    Row("one-job", "one job alone, batch 8, rows to 256", "one-job", "bfloat16", "", 4.5, None),
    Row("portable", "four jobs, portable kernels", "four-jobs", "bfloat16", "--portable-kernels", 2.0, None),
]
MATRIX_RATES = {"four-jobs": ("matrix-rate", "bfloat16"), "four-jobs-f32": ("matrix-rate-f32", "float32")}  # measured before
METHODS_GOAL, MATRIX_GOAL, MEMORY_GOAL, START_GOAL_S = 0.85, 0.80, 0.25, 5.0
LOSS_LIMIT = 1e-5  # f32: largest relative difference of a step's loss from PEFT's as shipped
YARDSTICK = "cotune in f32"
FURTHER = 1.25  # bf16: of means over all steps
STOPPED = 130  # exit code of `cotune train` after Ctrl-C
SMOLLM2 = {"hidden": 576, "intermediate": 1536, "key_value": 192, "layers": 30, "vocabulary": 49152}


def rows_for(device):
    """On a GPU there are no kernels to take away, and the goals do not apply."""
    if device == "cpu":
        return ROWS
    return [row._replace(goal_shipped=None, goal_tuned=None) for row in ROWS if row.name != "portable"]


class BenchmarkError(Exception):
    """A program that is missing, fails, or prints something else than agreed."""


def run(command, what, timeout_s=None):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{what} took more than {timeout_s} s: {shlex.join(map(str, command))}") from error
    if done.returncode != 0:
        raise BenchmarkError(f"{what} ended with status {done.returncode}: {shlex.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def parse_summary(output, what):
    """The summary in a program's output: the last line that is a JSON object with these keys. Both programs print

    real_tokens, labelled_tokens, seconds_training   without the first step of every job (PEFT) or the first round
                                                      (cotune), in which libraries set themselves up
    peak_rss_bytes                                    of the process
    losses                                            {job: [loss of every step, the first included]}
    seconds_to_first_step                             cotune only: from program start to the end of the first step
    """
    for line in reversed(output.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "real_tokens" in value:
            missing = {"real_tokens", "labelled_tokens", "seconds_training", "peak_rss_bytes", "losses"} - value.keys()
            if missing:
                raise BenchmarkError(f"{what}: the summary lacks {', '.join(sorted(missing))}")
            return value
    raise BenchmarkError(f"{what}: no summary in its output:\n{output[-1000:]}")


def rounds_of_all_jobs(metrics):
    """Tokens and seconds of the rounds from the last job's second step to its last. (Jobs log a round's steps in their
    order, so that these rounds end with the last job's.) Before its first step the last job may choose what it trains."""
    steps = [event for event in map(json.loads, metrics.read_text().splitlines()) if event["event"] == "step"]
    jobs = list(dict.fromkeys(event["job"] for event in steps))  # as they come in a round
    ends = [event["seconds"] for event in steps if event["job"] == jobs[-1]]
    counted = [event for event in steps if ends[0] < event["seconds"] <= ends[-1]]
    if len(counted) != len(jobs) * (len(ends) - 1):
        raise BenchmarkError(f"{metrics}: not every job makes a step in each round from {ends[0]:.1f} to {ends[-1]:.1f} s")
    return {"real_tokens": sum(event["real_tokens"] for event in counted), "seconds_training": ends[-1] - ends[0]}


def rate(result):
    return result["real_tokens"] / result["seconds_training"]


def matrix_rate(dtype, model=None, tokens=2048, device="cpu"):
    """FLOP/s of torch's matrix product on the frozen products of a model (SmolLM2-135M) at so many tokens, forward and
    transposed; the share of each shape as in one layer. In a process of its own."""
    code = """
import json, sys, time, torch
dtype, device = getattr(torch, sys.argv[1]), sys.argv[2]
h, f, kv, tokens = map(int, sys.argv[3:])
work = seconds = 0
def multiply(x, y):
    start = time.perf_counter()
    torch.mm(x, y)
    if device != "cpu": torch.cuda.synchronize()
    return time.perf_counter() - start
def median(x, y):
    multiply(x, y), multiply(x, y)
    times = [multiply(x, y)]
    while len(times) < 10 and sum(times) < 2: times.append(multiply(x, y))  # some processors' bf16 takes seconds
    return sorted(times)[len(times) // 2]
for out, inner in ((h + 2 * kv, h), (h, h), (2 * f, h), (h, f)):
    w = torch.randn(out, inner, dtype=dtype, device=device)
    for x, y in ((torch.randn(tokens, inner, dtype=dtype, device=device), w.t()),
                 (torch.randn(tokens, out, dtype=dtype, device=device), w)):
        seconds += median(x, y)
        work += 2 * tokens * out * inner
print(json.dumps(work / seconds))
"""
    model = model or SMOLLM2
    sizes = [str(model[key]) for key in ("hidden", "intermediate", "key_value")]
    return json.loads(run([sys.executable, "-c", code, dtype, device, *sizes, str(tokens)], "measuring torch.mm", 120))


def parameters(model, lora_rank=16, projections=workloads.LINEAR):
    """Values of the frozen products of all layers, and of LoRA on these projections."""
    h, f, kv = (model[key] for key in ("hidden", "intermediate", "key_value"))
    shapes = {"q_proj": (h, h), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (h, h), "gate_proj": (h, f), "up_proj": (h, f),
              "down_proj": (f, h)}
    return (model["layers"] * sum(a * b for a, b in shapes.values()),
            model["layers"] * lora_rank * sum(sum(shapes[name]) for name in projections))


def arithmetic(result, lora_rank=16, model=None):
    """4·P_linear·tokens + 4·P_head·labelled + 6·P_adapter·tokens: forward and backward of frozen products and head,
    and the adapter's three products."""
    model = model or SMOLLM2
    linear, adapter = parameters(model, lora_rank)
    head = model["hidden"] * model["vocabulary"]
    return (4 * linear + 6 * adapter) * result["real_tokens"] + 4 * head * result["labelled_tokens"]


GROUPS = {  # of the operators in a summary's operator_seconds
    "frozen products": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "qkv_proj_backward", "o_proj_backward",
                        "gate_up_proj_backward", "down_proj_backward"),
    "head and loss": ("head",),
    "attention": ("attention", "attention_backward"),
    "adapter gradients": ("qkv_adapter_gradient", "o_adapter_gradient", "gate_up_adapter_gradient", "down_adapter_gradient"),
}


def title_among(row, by_row):
    """A row that is `the same` as the first one, where that was not measured."""
    return row.title if "four-jobs" in by_row else row.title.replace("the same", ROWS[0].title)


def where_time_goes(by_row, device):
    """A Markdown table: share of the operators' time by group, and the rate of the large products, per row. All rounds
    count, the first too."""
    lines = ["| where the time of cotune goes | " + " | ".join(GROUPS) + " | all else | frozen products, GFLOP/s | head, GFLOP/s |",
             "|---" * (len(GROUPS) + 4) + "|"]
    for row in rows_for(device):
        runs = by_row.get(row.name, {}).get("cotune")
        if not runs:
            continue
        result = sorted(runs, key=rate)[len(runs) // 2]
        seconds, jobs = result["operator_seconds"], result["jobs"]
        groups = {name: sum(seconds.get(operator, 0.0) for operator in operators) for name, operators in GROUPS.items()}
        all_tokens = {"real_tokens": sum(job["tokens"]["processed"] for job in jobs), "labelled_tokens": 0}
        head = 4 * SMOLLM2["hidden"] * SMOLLM2["vocabulary"] * sum(job["labelled_tokens"] for job in jobs)
        total = sum(seconds.values())
        shares = [f"{value / total:.0%}" for value in [*groups.values(), total - sum(groups.values())]]
        lines.append(f"| {title_among(row, by_row)} | " + " | ".join(shares) +
                     f" | {arithmetic(all_tokens, 0) / groups['frozen products'] / 1e9:.0f}"
                     f" | {head / groups['head and loss'] / 1e9:.0f} |")
    return lines


def processor_flags():
    return set(re.search(r"flags\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1).split())


def part_of_page():
    """The page has a part for each kind of processor, so that figures of one do not take the place of another's."""
    flags = processor_flags()
    if "amx_bf16" in flags:
        return "benchmarks amx"
    if "avx512_bf16" in flags:
        return "benchmarks"
    return "benchmarks avx512" if "avx512f" in flags else "benchmarks avx2"


def machine(device):
    """What a reader needs to place the figures, in one line."""
    name = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    features = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in processor_flags()]
    memory = int(re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) / 2**20
    host = f"{name.group(1) if name else platform.machine()}, {os.cpu_count()} cores ({', '.join(features)}), {memory:.0f} GiB"
    if device == "cpu":
        return host
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return f"{run(query, 'nvidia-smi').splitlines()[0]}; {host}"


class Runner:
    def __init__(self, options):
        self.options = options
        self.results_path = options.work / ("results.jsonl" if options.device == "cpu" else f"results-{options.device}.jsonl")

    def workload(self, name, dtype):
        """The folder of a workload with its initial adapters, made once per dtype and number of steps."""
        base = self.options.work / f"workloads-{dtype}-{self.options.steps}"
        folder = base / name
        if not (folder / "ready").exists():
            workloads.write_workload(str(base), name, str(self.options.model), self.options.steps, dtype)
            run([sys.executable, ROOT / "bench/peft_baseline.py", folder, "--model", self.hf_folder(False), "--prepare"],
                "making initial adapters")
            (folder / "ready").touch()
        return folder

    def hf_folder(self, stored_bf16):
        """The model as a Hugging Face folder with f32 weights, or with the same weights rounded to bfloat16."""
        folder = self.options.hf.with_name(self.options.hf.name + ("-bf16" if stored_bf16 else ""))
        if not (folder / "model.safetensors").exists():
            run([sys.executable, ROOT / "scripts/gguf-to-hf", self.options.model, folder,
                 "--dtype", "bfloat16" if stored_bf16 else "float32"], "converting the model")
        return folder

    def keep(self, row_name, program, result):
        if self.options.device != "cpu":  # what counts as memory there
            device = result.get("device_memory", {}).get("peak_allocated_bytes", result.get("peak_device_bytes"))
            if device is None:
                raise BenchmarkError(f"{program} did not compute on the device")
            result = {**result, "peak_rss_bytes": device, "host_peak_rss_bytes": result["peak_rss_bytes"]}
        record = {**result, "row": row_name, "program": program, "busy_before": self.load,
                  "date": datetime.date.today().isoformat()}
        self.write(record)
        print(f"  {program:16} {rate(result):8.1f} real tokens/s  {result['peak_rss_bytes'] / 2**30:5.2f} GiB", flush=True)

    def cotune(self, row_name, workload, dtype, arguments="", stored_bf16=False, program="cotune"):
        self.load = busy_cores()
        folder = self.workload(workload, dtype)
        output = self.options.work / "runs" / row_name
        subprocess.run(["rm", "-rf", output], check=True)
        command = self.options.cotune_command.format(program=self.options.cotune, jobs=folder / "jobs.yaml", output=output)
        command = shlex.split(command) + shlex.split(arguments) + ["--device", self.options.device]
        if stored_bf16:
            command += ["--set", f"model.path={self.hf_folder(True)}"]
        result = parse_summary(run(command, "cotune"), "cotune")
        if workload.startswith("methods"):
            result = {**result, **rounds_of_all_jobs(output / "metrics.jsonl")}
        self.keep(row_name, program, result)

    def yardstick(self, row):
        """The losses of the same steps in f32; its speed does not matter."""
        self.cotune(row.name, row.workload, row.dtype, "--set model.dtype=float32", row.stored_bf16, YARDSTICK)

    def peft(self, row_name, workload, dtype, mode, batching=None, stored_bf16=False):
        self.load = busy_cores()
        folder = self.workload(workload, dtype)
        command = [sys.executable, ROOT / "bench/peft_baseline.py", folder, "--model", self.hf_folder(stored_bf16), "--mode", mode,
                   "--device", self.options.device]
        program = "peft shipped"
        if mode == "tuned":
            command += ["--batching", batching]
            program = f"peft {batching}"
        self.keep(row_name, program, parse_summary(run(command, "PEFT"), "PEFT"))

    def matrix_rate(self, row_name, dtype):
        load, flops = busy_cores(), matrix_rate(dtype)
        self.write({"row": row_name, "program": "torch.mm", "flops": flops, "busy_before": load})
        print(f"  torch.mm         {flops / 1e9:8.0f} GFLOP/s", flush=True)

    def demo_start(self):
        """The first step of the demonstration, which is stopped after it."""
        load, demo, output = busy_cores(), ROOT / "examples/demo.yaml", self.options.work / "runs/demo-start"
        subprocess.run(["rm", "-rf", output], check=True)
        command = [self.options.cotune, "train", demo, "--json", "--sample-tokens", "40", "--output-dir", output, "--device", self.options.device]
        is_stopped = False
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as training:
            for line in training.stdout:
                event = json.loads(line)
                if event.get("event") == "step" and not is_stopped:
                    training.send_signal(signal.SIGINT)
                    is_stopped = True
        if training.returncode != STOPPED:
            sys.exit(f"bench/compare.py: the demonstration ended with {training.returncode}")
        self.write({"row": "demo-start", "program": "cotune", "seconds_to_first_step": event["seconds_to_first_step"],
                    "busy_before": load})
        print(f"the demonstration's first step ends after {event['seconds_to_first_step']:.1f} s", flush=True)

    def write(self, record):
        with open(self.results_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def start_results(self):
        """An empty results file, the old one (--append), or the old one without the rows that are measured now (--replace)."""
        kept = []
        if self.options.append:
            return
        if self.options.replace and self.results_path.exists():
            again = set(self.options.only or [])
            again |= {"methods-all-lora"} if "methods" in again else set()
            again |= {MATRIX_RATES[row][0] for row in again & set(MATRIX_RATES)}
            kept = [line for line in self.results_path.read_text().splitlines() if again and json.loads(line)["row"] not in again]
        self.results_path.write_text("".join(line + "\n" for line in kept))

    def measure(self):
        self.start_results()
        chosen = [row for row in rows_for(self.options.device) if not self.options.only or row.name in self.options.only]
        for repetition in range(self.options.repetitions):
            for row in chosen:
                print(f"{row.title} ({row.dtype}), run {repetition + 1}", flush=True)
                if self.options.device == "cpu" and row.name in MATRIX_RATES:
                    self.matrix_rate(*MATRIX_RATES[row.name])
                self.cotune(row.name, row.workload, row.dtype, row.arguments, row.stored_bf16)
                self.peft(row.name, row.workload, row.dtype, "shipped", None, row.stored_bf16)
                self.peft(row.name, row.workload, row.dtype, "tuned", "by-length", row.stored_bf16)
                self.peft(row.name, row.workload, row.dtype, "tuned", "flattened", row.stored_bf16)
                if row.dtype != "float32" and repetition == 0:
                    self.yardstick(row)
            if not self.options.only or "methods" in self.options.only:
                print(f"one job of each method, run {repetition + 1}", flush=True)
                self.cotune("methods", "methods", "bfloat16")
                self.cotune("methods-all-lora", "methods-all-lora", "bfloat16")
            if not self.options.only or "demo-start" in self.options.only:
                self.demo_start()


def busy_cores(seconds=1.0):
    """Cores that other programs keep busy now. (The load average would count the run before this one.)"""
    def ticks():
        fields = [int(field) for field in open("/proc/stat", encoding="utf-8").readline().split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    total, idle = ticks()
    time.sleep(seconds)
    new_total, new_idle = ticks()
    return (os.cpu_count() or 1) * (1 - (new_idle - idle) / max(1, new_total - total))


def loss_differences(ours, theirs):
    """Relative differences of the losses of every step of every job; infinite where a step is missing."""
    differences = []
    for job, losses in theirs["losses"].items():
        if len(ours["losses"].get(job, [])) != len(losses):
            return [float("inf")]
        differences += [abs(a - b) / abs(b) for a, b in zip(ours["losses"][job], losses)]
    return differences


def loss_text(records, dtype):
    wrong = " (**too large: the speed does not count**)"
    cotune, shipped = records["cotune"][-1], records["peft shipped"][-1]
    if dtype == "float32":
        largest = max(loss_differences(cotune, shipped))
        return f"apart by at most {largest:.0e}" + ("" if largest <= LOSS_LIMIT else wrong)
    if not records[YARDSTICK]:
        return "not compared" + wrong
    ours, theirs = (statistics.mean(loss_differences(each, records[YARDSTICK][-1])) for each in (cotune, shipped))
    return f"{ours:.2%} / {theirs:.2%}" + ("" if ours <= FURTHER * theirs else wrong)


def verdict(value, goal, at_least=True):
    if goal is None:
        return f"{value:.2f}×"
    met = value >= goal if at_least else value <= goal
    return f"{value:.2f}× ({'≥' if at_least else '≤'} {goal:g}" + (")" if met else ", **missed**)")


def ratios(results, row_name, program):
    """cotune's rate over that of `program`, for every run of `program` in a row and the run of cotune just before it."""
    found, last = [], None
    for record in results:
        if record["row"] != row_name:
            continue
        if record["program"] == "cotune":
            last = record
        elif record["program"] == program and last:
            found.append(rate(last) / rate(record))
    return found


def spread(values):
    return f", {min(values):.2f}–{max(values):.2f}" if len(values) > 1 else ""


def table(results, device):
    """The Markdown between the markers, from all records of the results file."""
    by_row = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in results:
        by_row[record["row"]][record["program"]].append(record)
    median_rate = lambda records: statistics.median(map(rate, records))
    median_memory = lambda records: statistics.median(r["peak_rss_bytes"] for r in records) / 2**30
    missing = []
    lines = ["| SmolLM2-135M, LoRA rank 16 on all seven projections, AdamW | dtype | cotune, tokens/s | PEFT shipped | PEFT tuned | "
             "over shipped | over tuned | memory cotune / PEFT, GiB | losses off those of f32, cotune / PEFT | runs |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows_for(device):
        records = by_row.get(row.name)
        tuned = {name: runs for name, runs in (records or {}).items() if name in ("peft by-length", "peft flattened")}
        if not records or not records["cotune"] or not records["peft shipped"] or not tuned:
            missing.append(row.name)
            continue
        cotune, shipped = records["cotune"], records["peft shipped"]
        best = max(tuned, key=lambda name: median_rate(tuned[name]))
        over_shipped, over_tuned = (ratios(results, row.name, program) for program in ("peft shipped", best))
        rates = sorted(map(rate, cotune))
        lines.append(
            f"| {title_among(row, by_row)} | {row.dtype} | {median_rate(cotune):.0f} ({rates[0]:.0f}–{rates[-1]:.0f}) | {median_rate(shipped):.0f} | "
            f"{median_rate(tuned[best]):.0f} ({best.removeprefix('peft ')}) | "
            f"{verdict(statistics.median(over_shipped), row.goal_shipped)}{spread(over_shipped)} | "
            f"{verdict(statistics.median(over_tuned), row.goal_tuned)}{spread(over_tuned)} | "
            f"{median_memory(cotune):.2f} / {median_memory(shipped):.2f} | {loss_text(records, row.dtype)} | {len(cotune)} |")
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)} (names of `--only`)."]
    lines += ["", "| | reached |", "|---|---|"]
    lines += [f"| {title} | {value} |" for title, value in single_figures(by_row, median_rate, median_memory, matrix_shares(results), device)]
    lines += ["", *where_time_goes(by_row, device)]
    busy = [record["busy_before"] for record in results if "busy_before" in record]
    versions = next((r["versions"] for r in results if r.get("versions")), {})
    about = [f"Machine: {machine(device)}. " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ". "
             f"{max(r.get('date', '') for r in results)}; cores busy with other work before a run: "
             + (f"median {statistics.median(busy):.1f}, highest {max(busy):.1f}." if busy else "not recorded.")]
    if busy and statistics.median(busy) > 0.25 * os.cpu_count():
        about.append("**The machine was busy with other work: these figures are worth little.**")
    return "\n".join([*about, "", *lines])


def matrix_shares(results):
    """What every run of four-jobs reached of torch.mm's rate as it was measured just before."""
    shares, flops = [], None
    for record in results:
        if record["row"] == "matrix-rate":
            flops = record["flops"]
        elif record["row"] == "four-jobs" and record["program"] == "cotune" and flops:
            shares.append(arithmetic(record) / record["seconds_training"] / flops)
            flops = None
    return shares


def single_figures(by_row, median_rate, median_memory, shares_of_matrix_rate, device):
    goal = lambda value: value if device == "cpu" else None
    four = by_row.get("four-jobs", {})
    cotune, shipped = four.get("cotune"), four.get("peft shipped")
    if by_row.get("methods") and by_row.get("methods-all-lora"):
        ratio = median_rate(by_row["methods"]["cotune"]) / median_rate(by_row["methods-all-lora"]["cotune"])
        yield "one job of each method together, over all-LoRA at equal tokens", verdict(ratio, goal(METHODS_GOAL))
    if shares_of_matrix_rate:
        flops = statistics.median(record["flops"] for record in by_row["matrix-rate"]["torch.mm"])
        yield (f"share of torch.mm's bf16 rate, {flops / 1e9:.0f} GFLOP/s just before (four jobs)",
               verdict(statistics.median(shares_of_matrix_rate), MATRIX_GOAL) + spread(shares_of_matrix_rate))
    if by_row.get("matrix-rate-f32"):
        flops = statistics.median(record["flops"] for record in by_row["matrix-rate-f32"]["torch.mm"])
        yield "torch.mm's f32 rate, which PEFT's f32 rows rest on", f"{flops / 1e9:.0f} GFLOP/s"
    if cotune and shipped:
        yield "peak memory over PEFT's (four jobs)", verdict(median_memory(cotune) / median_memory(shipped), goal(MEMORY_GOAL), False)
    starts = [r["seconds_to_first_step"] for r in by_row.get("demo-start", {}).get("cotune", [])]
    if starts:
        start = statistics.median(starts)
        yield ("from program start to the end of the demonstration's first step",
               f"{start:.1f} s" if device != "cpu" else
               f"{start:.1f} s (≤ {START_GOAL_S:g} s" + (")" if start <= START_GOAL_S else ", **missed**)"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS] + ["methods", "demo-start"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="steps of every job; the first is not timed (default 4)")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench", help="where workloads, runs and results lie")
    parser.add_argument("--hf", type=pathlib.Path, help="the same model as a Hugging Face folder; default: hf, below --work")
    parser.add_argument("--cotune", type=pathlib.Path, default=ROOT / "build/cotune")
    parser.add_argument("--cotune-command", default="{program} train {jobs} --json --output-dir {output}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    page_part.add_options(parser, "docs/benchmarks.md")
    parser.add_argument("--part", choices=["benchmarks", "benchmarks amx", "benchmarks avx2"], default=part_of_page(),
                        help="which part of the page; default: that of processors like this one")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--append", action="store_true", help="keep all earlier results: rows get further runs")
    kept.add_argument("--replace", action="store_true", help="keep the results of the rows that --only does not name")
    parser.add_argument("--table-only", action="store_true", help="measure nothing: the table from build/bench/results.jsonl")
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.hf = options.hf or options.work / "hf"
    runner = Runner(options)
    if not options.table_only:
        options.work.mkdir(parents=True, exist_ok=True)
        options.model = options.model.resolve()
        if not options.model.exists():
            raise BenchmarkError(f"no model {options.model}: scripts/demo-data fetches it")
        runner.measure()
    if not runner.results_path.exists():
        raise BenchmarkError(f"no {runner.results_path}: run without --table-only first")
    text = table([json.loads(line) for line in runner.results_path.read_text().splitlines()], options.device)
    print(text)
    if options.device != "cpu":
        (options.work / f"benchmarks-{options.device}.md").write_text(f"# Benchmarks\n\n{text}\n")
    elif not options.no_docs:
        page_part.change(options.docs, options.part, lambda _: text + "\n")


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench/compare.py: {error}")
