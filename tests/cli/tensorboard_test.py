#!/usr/bin/env python3
"""What `cotune train --tensorboard` writes: by a reader of our own, and by TensorBoard where it is installed.

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/tensorboard_test.py [UNITTEST OPTIONS]
"""
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import unittest

import needs
from program import ProgramTest

# Prints {run: {tag: [[step, value]]}} of a folder, as TensorBoard itself reads it.
READ_WITH_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing import event_multiplexer
reader = event_multiplexer.EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0}).AddRunsFromDirectory(sys.argv[1]).Reload()
runs = {}
for run, tags in reader.Runs().items():
    of_run = runs[run] = {}
    for tag in tags["scalars"]:
        of_run[tag] = [[event.step, event.value] for event in reader.Scalars(run, tag)]
    for tag in tags["tensors"]:
        plugin = reader.SummaryMetadata(run, tag).plugin_data.plugin_name
        of_run[tag] = [[event.step, plugin + ":" + event.tensor_proto.string_val[0].decode()] for event in reader.Tensors(run, tag)]
print(json.dumps(runs))
"""


def fields(data):
    """(number, value) of a protocol buffer: bytes of what has a length, whole numbers of the rest."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        key = varint()
        size = {0: 0, 1: 8, 2: None, 5: 4}[key & 7]
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if size is None else size
        yield key >> 3, data[position:position + size]
        position += size


def events(file):
    data = file.read_bytes()
    while data:
        size, = struct.unpack_from("<Q", data)
        assert len(data) >= size + 16, "half a record"
        yield dict(fields(data[12:12 + size])), list(fields(data[12:12 + size]))
        data = data[16 + size:]


def read(folder):
    """{run: {tag: [[step, value]]}}, in the order of files and events."""
    runs = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        run = str(file.parent.relative_to(folder))
        for event, _ in events(file):
            for number, value in fields(event.get(5, b"")):
                of_value = dict(fields(value))
                scalar = of_value.get(2)
                shown = struct.unpack("<f", scalar)[0] if scalar is not None else "text:" + dict(fields(of_value[8]))[8].decode()
                runs.setdefault(run, {}).setdefault(of_value[1].decode(), []).append([event.get(2, 0), shown])
    return runs


class TensorBoardTest(ProgramTest):
    def train(self, *arguments, **options):
        return self.run_program("train", self.jobs_file(**options), "--output-dir", self.path / "run", "--tensorboard", *arguments)

    def logged(self):
        """What the files say, which is what TensorBoard reads."""
        folder = self.path / "run" / "tensorboard"
        ours = read(folder)
        if needs.is_here("tensorboard"):
            done = subprocess.run([sys.executable, "-c", READ_WITH_TENSORBOARD, folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout), ours)
        return ours

    def expected(self, job):
        """Of metrics.jsonl, in floats of 32 bits."""
        single = lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
        curves = {}
        names = {"step": {"train/loss": "loss", "train/learning_rate": "learning_rate", "train/grad_norm": "gradient_norm", "train/epoch": "epoch"},
                 "evaluation": {"eval/loss": "loss", "eval/accuracy": "accuracy"}}
        for event in self.metrics("run"):
            for tag, field in names.get(event["event"], {}).items():
                if event["job"] == job:
                    curves.setdefault(tag, []).append([event["step"], single(event[field])])
        return curves

    def assert_as_metrics(self, logged):
        for job in ("plain", "bottleneck", "sparse"):
            rates = logged[job].pop("train/tokens_per_second")
            self.assertEqual([step for step, _ in rates], [step for step, _ in logged[job]["train/loss"]])
            self.assertTrue(all(math.isfinite(rate) and rate > 0 for _, rate in rates))
            self.assertEqual(logged[job], self.expected(job))

    def test_every_job_has_its_scalars_and_the_run_its_memory(self):
        self.train(steps=4, train=", eval_steps: 2")
        logged = self.logged()
        self.assertEqual(set(logged["."]), {"memory/process_bytes", "memory/tensor_bytes", "tokens_per_second"})
        self.assertEqual([step for step, _ in logged["plain"]["eval/loss"]], [0, 2, 4])
        self.assert_as_metrics(logged)
        self.run_program("train", self.path / "jobs.yaml", "--output-dir", self.path / "run", "--overwrite")
        self.assertFalse((self.path / "run" / "tensorboard").exists())  # nobody has asked for it this time

    def test_sample_answers_are_texts(self):
        model = self.model_with_text()
        (self.path / "text.jsonl").write_text('{"prompt": "a<b>", "completion": "c"}\n' * 4)
        jobs = self.path / "text.yaml"
        jobs.write_text(f"cotune: 1\nmodel: {{path: {model}, dtype: float32}}\njobs:\n"
                        "  - {name: talk, data: {train: text.jsonl}, adapter: {method: lora}, train: {batch_size: 2, steps: 2}}\n")
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--tensorboard", "--sample-tokens=4")
        samples = self.logged()["talk"]["sample/text_summary"]
        self.assertEqual([step for step, _ in samples], [0, 2])
        for _, text in samples:
            self.assertTrue(text.startswith("text:**asked**\n\n    a<b>"), text)
        asked = [event for event in self.metrics("run") if event["event"] == "sample"]
        self.assertEqual([(event["step"], event["prompt"]) for event in asked], [(0, "a<b>"), (2, "a<b>")])

    def test_only_jobs_that_run_hold_their_files_open(self):
        process = self.start_program("train", self.jobs_file(steps=1_000_000, save_steps=0), "--output-dir", self.path / "run", "--json",
                                     "--tensorboard", "--set", "jobs.plain.train.steps=2")
        self.wait_for(process, lambda event: event["event"] == "step" and event["step"] == 4)
        files = [os.readlink(file) for file in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
        folders = {pathlib.Path(file).parent.name for file in files if "events.out.tfevents" in file}
        self.assertEqual(folders, {"tensorboard", "bottleneck", "sparse"})
        self.kill(process)
        self.assertEqual([step for step, _ in self.logged()["plain"]["train/loss"]], [1, 2])

    def test_a_run_that_was_killed_and_resumed_has_every_point_once(self):
        jobs = self.jobs_file(steps=60, save_steps=4, train=", eval_steps: 5")
        for end in (7, 14):
            resume = ("--resume",) if end > 7 else ()
            process = self.start_program("train", jobs, "--output-dir", self.path / "run", "--json", "--tensorboard", *resume)
            self.wait_for(process, lambda event: event["event"] == "step" and event["step"] >= end)
            self.assertEqual(self.kill(process), -signal.SIGKILL)  # its pipe holds far fewer steps than are left
            files = sorted((self.path / "run" / "tensorboard" / "plain").iterdir())
            with open(files[-1], "ab") as file:  # as if it had been killed in the middle of a record
                file.write(b"\x20\0\0\0\0\0\0\0half")
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--tensorboard", "--resume")
        files = sorted((self.path / "run" / "tensorboard" / "plain").iterdir())
        self.assertEqual(len(files), 3)
        starts = [event for event, _ in events(files[-1]) if 7 in event]
        self.assertEqual([(dict(fields(event[7])), event[2] % 4) for event in starts], [({1: 1}, 1)])  # from the step after a checkpoint
        logged = self.logged()
        self.assertEqual([step for step, _ in logged["plain"]["train/loss"]], list(range(1, 61)))
        self.assert_as_metrics(logged)
        steps = [step for step, _ in logged["."]["tokens_per_second"]]
        self.assertEqual(steps, sorted(set(steps)))


if __name__ == "__main__":
    unittest.main()
