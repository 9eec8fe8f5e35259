#!/usr/bin/env python3
"""A disk that fills up at any change of files: the run ends with the file's name, leaves nothing half-written, and goes on
to equal bits once there is room. Standard library only.

    COTUNE=build/cotune COTUNE_FAKES=build/tests/fakes python3 tests/cli/full_disk_test.py [UNITTEST OPTIONS]

COTUNE_FULL_DISK_STRIDE: every so manieth change is tried (default 23; 1: all of them).
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import struct
import subprocess
import unittest

from program import LIMIT_S, METHODS, ProgramTest

STRIDE = int(os.environ.get("COTUNE_FULL_DISK_STRIDE", "23"))
FAKES = pathlib.Path(os.environ.get("COTUNE_FAKES", "build/tests/fakes")).resolve()


class FullDisk(ProgramTest):
    def train_until_full(self, change, *arguments):
        """Trains on a disk that is full from the so manieth change of files on."""
        with_asan = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")
        environment = dict(os.environ, LD_PRELOAD=FAKES / "libfake_file_changes.so", COTUNE_FULL_FROM=str(change),
                           ASAN_OPTIONS=with_asan)
        return subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, env=environment)

    def assert_readable(self, run):
        """Whatever a run has left is whole."""
        self.assertEqual(list(run.rglob("*.part")), [])
        for path in run.rglob("*.safetensors"):
            data = path.read_bytes()
            size, = struct.unpack("<Q", data[:8])
            header = json.loads(data[8:8 + size])
            header.pop("__metadata__", None)
            self.assertEqual(len(data), 8 + size + max(tensor["data_offsets"][1] for tensor in header.values()), path)
        for path in run.rglob("*.json"):
            json.loads(path.read_text())
        for name in ("latest", "previous", "best"):
            for path in run.glob(f"jobs/*/{name}"):
                files = {file.name for file in (path.parent / path.read_text().strip()).iterdir()}
                self.assertLessEqual({"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"}, files, path)
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0:
            self.metrics(run)

    def fill_up(self, change, command):
        """Whether a disk that is full from this change on ended a run, which must then have ended well."""
        run = self.path / f"full-{change}"
        done = self.train_until_full(change, *command, "--output-dir", run)
        if done.returncode == 0:
            return False
        where = f"change {change}: {done.stderr}"
        self.assertEqual(done.returncode, 1, where)
        self.assertRegex(done.stderr, rf"{run}\S*: [a-z ]+: No space left on device", where)
        self.assert_readable(run)
        self.run_program(*command, "--output-dir", run, *(["--resume"] if (run / "run.json").exists() else []))
        self.assertEqual(self.adapters(run.name), self.adapters("whole"), where)
        self.assertEqual(self.results(run.name), self.results("whole"), where)
        self.assert_readable(run)
        shutil.rmtree(run)
        return True

    def test_at_any_change_ends_the_run_and_a_resumed_one_has_equal_bits(self):
        jobs = self.jobs_file(steps=2, save_steps=1, train=", eval_steps: 1, load_best_model_at_end: true")
        command = ("train", jobs, "--threads", "1")
        self.run_program(*command, "--output-dir", self.path / "whole")
        ended = 0
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            while all(outcomes := list(pool.map(lambda i: self.fill_up(1 + i * STRIDE, command), range(ended, ended + 4)))):
                ended += 4
        ended += sum(outcomes)
        self.assertNotIn(True, outcomes[outcomes.index(False):])  # later changes than the run has cannot fail
        self.assertGreater(ended * STRIDE, 10 * len(METHODS))


if __name__ == "__main__":
    unittest.main(verbosity=2)
