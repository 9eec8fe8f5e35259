"""What the tests of the command line share: a tiny model with data for a job of every method, and ways to run cotune.

The program under test is $COTUNE (default build/cotune). Nothing here waits for a time to pass: tests wait for lines of
output, and LIMIT_S only keeps a program that hangs from hanging the test run.
"""
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.path.abspath(os.environ.get("COTUNE", "build/cotune"))
LIMIT_S = 900
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup: what is caught here is not ignored by the programs we start
    signal.signal(signal.SIGHUP, lambda *_: None)
CACHE = tempfile.TemporaryDirectory(prefix="cotune-cache-")  # of these tests, in place of the user's
os.environ["XDG_CACHE_HOME"] = CACHE.name
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 160, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
METHODS = {
    "plain": "{method: lora, r: 4, alpha: 8, dropout: 0.1, target_modules: all-linear}",
    "bottleneck": "{method: bottleneck, bottleneck_size: 8}",
    "sparse": "{method: diff_pruning, density: 0.02, selection_batches: 2}",
}


def values_of(adapter):
    """The tensors of floating point of a safetensors file."""
    size = struct.unpack_from("<Q", adapter)[0]
    header = json.loads(adapter[8:8 + size])
    values = {}
    for name, tensor in header.items():
        element = {"F32": "f", "F64": "d"}.get(tensor.get("dtype"))
        if element is None:
            continue
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        values[name] = struct.unpack(f"<{(end - begin) // struct.calcsize(element)}{element}", adapter[begin:end])
    return values


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cotune-cli-")
        self.path = pathlib.Path(self.folder.name)
        self.running = []
        (self.path / "config.json").write_text(json.dumps(CONFIG))
        generator = random.Random(7)
        for name in METHODS:
            rows = []
            for _ in range(24):
                ids = [generator.randrange(3, 15) for _ in range(generator.randrange(4, 60))]
                rows.append(json.dumps({"input_ids": ids, "labels": [-100] + ids[1:]}))
            (self.path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")

    def tearDown(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.folder.cleanup()

    def jobs_file(self, steps=30, save_steps=3, train="", name="jobs.yaml", jobs=tuple(METHODS)):
        text = "cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float32}\n"
        text += f"defaults: {{train: {{batch_size: 4, steps: {steps}, lr: 3e-3, save_steps: {save_steps}{train}}}}}\njobs:\n"
        for job in jobs:
            text += f"  - {{name: {job}, data: {{train: {job}.jsonl, eval_fraction: 0.2}}, adapter: {METHODS[job]}}}\n"
        path = self.path / name
        path.write_text(text)
        return path

    def model_with_text(self):
        """A folder with a model of 160 tokens and a byte-level tokenizer that has as many."""
        model = self.path / "model"
        shutil.copytree(ROOT / "tests" / "model_weights" / "data" / "llama2", model)
        letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 228))]
        (model / "tokenizer.json").write_text(json.dumps({
            "model": {"type": "BPE", "vocab": {letter: number for number, letter in enumerate(letters)}, "merges": []},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}}))
        return model

    def command(self, *arguments):
        return [PROGRAM, *map(str, arguments)]

    def run_program(self, *arguments, expect=0, stdin_text=None, **options):
        """Runs cotune to its end. stdin_text: what a pipe gives it."""
        options = {"stdout": subprocess.PIPE, "text": True, **options}
        source = {"stdin": subprocess.DEVNULL} if stdin_text is None else {"input": stdin_text}
        done = subprocess.run(self.command(*arguments), stderr=subprocess.PIPE, timeout=LIMIT_S, **source, **options)
        self.assertEqual(done.returncode, expect, (done.stdout, done.stderr))
        return done

    def start_program(self, *arguments, **options):
        """Starts cotune. Its pipe holds 4 KiB and we read it unbuffered, so that it cannot run further ahead of us."""
        process = subprocess.Popen(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, bufsize=0, pipesize=4096, **options)
        self.running.append(process)
        return process

    def start_quietly(self, *arguments):
        """Starts a run whose lines nobody reads, and waits until it can be asked."""
        log = open(self.path / "log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(self.command("train", *arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.running.append(process)
        run = arguments[arguments.index("--output-dir") + 1]
        while not (run / "control.sock").exists():
            self.assertIsNone(process.poll(), (self.path / "log").read_text())
            time.sleep(0.01)  # leaves it the processor
        return process

    def wait_for(self, process, wanted):
        """Reads JSON lines until wanted(event) holds."""
        for line in process.stdout:
            event = json.loads(line)
            if wanted(event):
                return event
        self.fail("the program ended before the event that the test waits for: " + process.stderr.read().decode())

    def end(self, process, expect):
        output, errors = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, expect, output + errors)
        return output.decode(), errors.decode()

    def kill(self, process):
        """The exit status: 0 where the program had ended before."""
        process.send_signal(signal.SIGKILL)
        output, errors = process.communicate(timeout=LIMIT_S)
        self.assertIn(process.returncode, (0, -signal.SIGKILL), output + errors)
        return process.returncode

    def adapter(self, run, job):
        return (self.path / run / "jobs" / job / "adapter" / "adapter_model.safetensors").read_bytes()

    def assert_alike(self, run, other, bound=1e-3, jobs=tuple(METHODS)):
        """Adapters of two runs, as far as their products were added in another order."""
        for job in jobs:
            left, right = values_of(self.adapter(run, job)), values_of(self.adapter(other, job))
            self.assertEqual(left.keys(), right.keys())
            for name in left:
                largest = max(abs(value) for value in left[name])
                apart = max(abs(a - b) for a, b in zip(left[name], right[name]))
                self.assertLessEqual(apart, bound * largest, (job, name))

    def assert_equal_adapters(self, run, other, jobs):
        """To the bit; where they are not, the message says from which step on losses and norms differ, and in which tensors."""
        for job in jobs:
            if self.adapter(run, job) == self.adapter(other, job):
                continue
            left, right = values_of(self.adapter(run, job)), values_of(self.adapter(other, job))
            tensors = [name for name in left.keys() | right.keys() if left.get(name) != right.get(name)]
            steps = [[(event["step"], event["loss"], event["gradient_norm"]) for event in self.metrics(each)
                      if event["event"] == "step" and event["job"] == job] for each in (run, other)]
            parted = [pair for pair in zip(*steps) if pair[0] != pair[1]]
            self.fail(f"{job} of {run} and {other}: {len(tensors)} of {len(left)} tensors differ, as {sorted(tensors)[:3]}; "
                      f"steps (number, loss, gradient norm) that differ: {parted[:3]}; {self.adapter_digests(run, jobs)}, "
                      f"{self.adapter_digests(other, jobs)}")

    def adapter_digests(self, run, jobs):
        return {job: hashlib.sha256(self.adapter(run, job)).hexdigest()[:8] for job in jobs}

    def adapters(self, run, jobs=tuple(METHODS)):
        return {name: self.adapter(run, name) for name in jobs}

    def metrics(self, run):
        """The events of a run; every line must be whole."""
        text = (self.path / run / "metrics.jsonl").read_text()
        self.assertTrue(text.endswith("\n"))
        return [json.loads(line) for line in text.splitlines()]

    def results(self, run):
        """What metrics.jsonl says of results, in order, per job: no event twice, and without times."""
        results = {}
        for event in self.metrics(run):
            if event["event"] not in ("step", "evaluation", "end"):
                continue
            line = tuple((key, value) for key, value in event.items() if key not in ("job", "seconds"))
            results.setdefault(event["job"], []).append(line)
        for job, lines in results.items():
            self.assertEqual(len(lines), len(set(lines)), f"{job}: an event stands twice")
        return results
