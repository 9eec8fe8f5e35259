#!/usr/bin/env python3
"""Tokenized data that are kept: the second start takes them as they are, to equal bits; what is edited, damaged or cannot be written is
noticed; sets larger than memory are read from the disk.

    COTUNE=build/cotune python3 tests/cli/data_cache_test.py [UNITTEST OPTIONS]
"""
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

import memory_group
import needs
from program import CACHE, LIMIT_S, METHODS, ProgramTest
from terminal_screen import TerminalProgram


class DataCache(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.path / "cache"

    def sets(self):
        return sorted(self.cache.glob("*.tokens"))

    def cached(self, *arguments, cache=None, **options):
        return self.run_program(*arguments, "--set", f"run.data_cache={cache or self.cache}", **options)

    def train(self, run, *options, cache=None, jobs=None, **more):
        return self.run_program("train", jobs or self.jobs_file(steps=6), "--output-dir", self.path / run, "--data-cache",
                                cache or self.cache, *options, **more)

    def test_a_second_start_takes_what_is_there_to_equal_bits(self):
        self.train("none", cache="none")
        self.assertEqual(self.sets(), [])
        first = self.train("first")
        self.assertEqual(len(self.sets()), 3)
        self.assertNotIn("tokenized before", first.stdout)
        second = self.train("second")
        self.assertIn(f"data of 3 of 3 jobs were tokenized before: {self.cache}\n", second.stdout)
        self.assertEqual(self.adapters("none"), self.adapters("first"))
        self.assertEqual(self.adapters("none"), self.adapters("second"))
        self.assertEqual(self.results("none"), self.results("second"))

    def test_resuming_is_exact_whatever_became_of_the_cache(self):
        jobs = self.jobs_file(steps=12, save_steps=4)
        self.train("whole", jobs=jobs, cache="none")
        for number, (before, after) in enumerate([(self.cache, "none"), ("none", self.cache), (self.cache, self.cache)]):
            run = f"resumed-{number}"
            arguments = ["train", jobs, "--output-dir", self.path / run, "--data-cache"]
            process = self.start_program(*arguments, before, "--json")
            self.wait_for(process, lambda event: event["event"] == "step" and event["step"] == 5)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            for file in self.sets():
                file.unlink()
            self.run_program(*arguments, after, "--resume")
            self.assertEqual(self.adapters("whole"), self.adapters(run), run)

    def test_data_says_whether_they_were_tokenized_before(self):
        jobs = self.jobs_file()
        now = self.cached("data", jobs, "--job", "plain").stdout
        before = self.cached("data", jobs, "--job", "plain").stdout
        self.assertIn(f"  tokenized now: {self.sets()[0]}\n", now)
        self.assertEqual(before, now.replace("tokenized now", "tokenized before"))
        self.assertEqual(self.cached("data", jobs, "--job", "plain", cache="none").stdout,
                         now.replace(f"  tokenized now: {self.sets()[0]}\n", ""))

    def test_the_users_own_folder_is_the_default(self):
        jobs = self.jobs_file()
        self.run_program("data", jobs)
        self.assertEqual(len(list((pathlib.Path(CACHE.name) / "cotune" / "data").glob("*.tokens"))) >= 3, True)
        home = self.path / "home"
        home.mkdir()
        environment = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"} | {"HOME": str(home)}
        self.run_program("data", jobs, env=environment)
        self.assertEqual(len(list((home / ".cache" / "cotune" / "data").glob("*.tokens"))), 3)
        for variable in ("HOME", "XDG_CACHE_HOME"):
            environment.pop(variable, None)
        self.assertNotIn("tokenized", self.run_program("data", jobs, env=environment).stdout)

    def test_edited_data_are_noticed(self):
        jobs = self.jobs_file(jobs=["plain"])
        path = self.path / "plain.jsonl"
        self.cached("data", jobs)
        status = path.stat()
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")  # as many bytes
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.assertIn("tokenized now", self.cached("data", jobs).stdout)
        self.assertEqual(len(self.sets()), 2)

    def test_a_damaged_set_is_made_again(self):
        jobs = self.jobs_file(jobs=["plain"])
        shown = self.cached("data", jobs).stdout
        file = self.sets()[0]
        whole = file.read_bytes()
        for damaged in (whole[:len(whole) // 2], b"", b"x" * 9000, whole[:4200] + bytes([whole[4200] ^ 1]) + whole[4201:]):
            file.write_bytes(damaged)
            done = self.cached("data", jobs)
            self.assertEqual(done.stdout, shown)
            self.assertRegex(done.stderr, rf"^{file}: [^\n]*; the data are tokenized again\n$")
            self.assertEqual(file.read_bytes(), whole)

    def test_mistakes_are_told_at_every_start(self):
        jobs = self.jobs_file(jobs=["plain"])
        with (self.path / "plain.jsonl").open("a") as file:
            file.write('{"input_ids": [1, 900], "labels": [-100, 900]}\n')
        errors = self.cached("data", jobs, expect=2, cache="none").stderr
        self.assertIn("plain.jsonl:25: input_ids[1]: found 900", errors)
        for _ in range(2):
            self.assertEqual(self.cached("data", jobs, expect=2).stderr, errors)
        with (self.path / "plain.jsonl").open("a") as file:
            file.write("{\n")
        errors = self.cached("data", jobs, expect=2, cache="none").stderr
        self.assertIn("plain.jsonl:26: column 2: not JSON", errors)
        self.assertIn("plain.jsonl:25: input_ids[1]: found 900", errors)
        for _ in range(2):
            self.assertEqual(self.cached("data", jobs, expect=2).stderr, errors)

    def test_a_folder_that_cannot_be_written_is_said_once(self):
        blocked = self.path / "config.json" / "cache"
        done = self.train("blocked", cache=blocked)
        self.assertEqual(done.stderr.count("tokenized data are held in memory"), 1, done.stderr)
        self.assertIn(f"{blocked}: cannot create: Not a directory", done.stderr)

    def test_a_full_disk_is_no_reason_not_to_train(self):
        def limit():
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        done = self.cached("data", self.jobs_file(), "--count", "1", preexec_fn=limit)
        self.assertEqual(done.stderr.count("cannot write: File too large: tokenized data are held in memory"), 1, done.stderr)
        self.assertNotIn("tokenized now", done.stdout)
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_two_starts_at_once_both_succeed(self):
        jobs = self.jobs_file()
        command = self.command("data", jobs, "--set", f"run.data_cache={self.cache}", "--count", "0")
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        shown = set()
        for process in both:
            output, errors = process.communicate(timeout=LIMIT_S)
            self.assertEqual((process.returncode, errors), (0, ""))
            shown.add(output.replace("tokenized before", "tokenized now"))
        self.assertEqual(len(shown), 1)
        self.assertEqual(len(self.sets()), 3)
        self.assertEqual(sorted(self.cache.iterdir()), self.sets())

    def test_stopping_while_tokenizing_leaves_nothing(self):
        pipe = self.path / "slow.jsonl.gz"
        jobs = self.jobs_file(jobs=["plain"])
        rows = (self.path / "plain.jsonl").read_text()
        with gzip.open(pipe, "wt", compresslevel=1) as file:
            for _ in range(8000):
                file.write(rows)
        jobs.write_text(jobs.read_text().replace("plain.jsonl", pipe.name))
        for command in (("data", jobs), ("train", jobs, "--output-dir", self.path / "run")):
            process = self.start_program(*command, "--set", f"run.data_cache={self.cache}", "--set", "run.threads=1")
            while process.poll() is None and not list(self.cache.glob("*.part")):
                pass
            self.assertIn("unfinished: 1 file, ", self.run_program("cache", "list", "--folder", self.cache).stdout)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT_S)
            self.assertIn(process.returncode, (-signal.SIGTERM, 130))
            self.assertEqual(list(self.cache.iterdir()), [])

    def tokenize_slowly(self, process, is_told):
        """Has it take seconds on a machine of any speed, for nothing is said of what is done in less than two."""
        while process.poll() is None and not list(self.cache.glob("*.part")):
            time.sleep(0.001)
        for seconds in (2.1, *[0.3] * 1000):
            process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)
            if is_told() or process.poll() is not None:
                return

    def commands_that_tokenize(self):
        jobs = self.jobs_file(steps=1, jobs=["plain"])
        jobs.write_text(jobs.read_text().replace(", eval_fraction: 0.2", ""))
        rows = self.path / "plain.jsonl"
        rows.write_text(rows.read_text() * 2500)
        options = ("--set", f"run.data_cache={self.cache}", "--set", "run.threads=1")
        return ("data", jobs, *options), ("train", jobs, "--output-dir", self.path / "run", *options)

    def test_tokenizing_is_lines_on_a_terminal_that_cannot_draw(self):
        command, _ = self.commands_that_tokenize()
        program = TerminalProgram(self.command(*command), columns=40, TERM="dumb")
        self.addCleanup(program.close)

        def is_told():
            program.read()
            return "tokenizing: " in program.screen.normal

        self.tokenize_slowly(program.process, is_told)
        self.assertEqual(program.end(), 0, program.screen.normal)
        self.assertRegex(program.screen.normal, r"(?m)^tokenizing: .* of .*plain\.jsonl\r?$")
        self.assertNotIn("\rtokenizing", program.screen.normal)

    def test_tokenizing_is_one_line_on_a_terminal_that_goes_at_the_end(self):
        for command, first_words in zip(self.commands_that_tokenize(), ("job plain", "plain     starts: ")):
            with self.subTest(command[0]):
                program = TerminalProgram(self.command(*command), columns=40)
                self.addCleanup(program.close)
                drawn = re.compile(r"\r(tokenizing: [^\r]*)(?=\r)")

                def is_told():
                    program.read()
                    return len(drawn.findall(program.screen.normal)) > 2

                self.tokenize_slowly(program.process, is_told)
                self.assertEqual(program.end(), 0, program.screen.normal)
                lines = drawn.findall(program.screen.normal)
                self.assertGreater(len(lines), 2)
                for line in lines:
                    self.assertRegex(line, r"^tokenizing: \d+%, (\S+ left, )?[\d,]+ (t|re).*…$")
                    self.assertEqual(len(line), 39)
                shares = [int(re.search(r"\d+", line)[0]) for line in lines]
                self.assertEqual(shares, sorted(shares))
                left = "".join(character for _, (character, _) in sorted(program.screen.written_cells().items()))
                self.assertTrue(left.startswith(first_words), left)
                self.assertNotIn("tokenizing", left)
            for file in self.sets():
                file.unlink()

    def test_tokenizing_is_told_of_in_lines_where_there_is_no_terminal(self):
        command, _ = self.commands_that_tokenize()
        with (self.path / "errors").open("w") as errors:
            process = subprocess.Popen(self.command(*command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        self.running.append(process)
        self.tokenize_slowly(process, lambda: (self.path / "errors").stat().st_size > 0)
        self.assertEqual(process.wait(timeout=LIMIT_S), 0)
        self.assertRegex((self.path / "errors").read_text(),
                         rf"^(tokenizing: \d+%, (\S+ left, )?[\d,]+ tokens/s, [\d,]+ records of {self.path}/plain\.jsonl\n)+$")

    def test_jobs_that_join_take_what_is_there(self):
        self.train("first")
        jobs = self.jobs_file(steps=1_000_000, jobs=["plain"])
        run = self.path / "joined"
        process = self.start_quietly(jobs, "--output-dir", run, "--data-cache", self.cache)
        joining = self.path / "joining.yaml"
        joining.write_text("cotune: 1\njobs:\n  - {name: late, data: {train: bottleneck.jsonl, eval_fraction: 0.2}, "
                           f"adapter: {METHODS['bottleneck']}, train: {{batch_size: 4, steps: 2, lr: 3e-3}}}}\n")
        used = {file: file.stat().st_mtime_ns for file in self.sets()}
        self.run_program("job", "add", joining, "--run", run)
        self.assertEqual(len(self.sets()), 3)
        touched = [file for file in self.sets() if file.stat().st_mtime_ns > used[file]]
        self.assertEqual(len(touched), 1)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=LIMIT_S), 130)

    def test_list_and_clear(self):
        for action in ("list", "clear"):
            self.assertIn(f"--folder: there is no folder {self.cache}", self.run_program("cache", action, "--folder", self.cache, expect=2).stderr)
        self.cache.mkdir()
        self.assertIn("0 sets of tokenized data", self.run_program("cache", "list", "--folder", self.cache).stdout)
        self.cached("data", self.jobs_file(jobs=["plain", "sparse"]))
        listed = self.run_program("cache", "list", "--folder", self.cache).stdout
        self.assertRegex(listed, rf"^{self.cache}: 2 sets of tokenized data, [\d.]+ KiB\n")
        for name in ("plain", "sparse"):
            self.assertRegex(listed, rf"\n +[\d.]+ KiB  20\d\d-\d\d-\d\d \d\d:\d\d +24 +\d+  {(self.path / name).resolve()}.jsonl\n")
        (self.cache / "mine.txt").write_text("stays")
        self.assertRegex(self.run_program("cache", "clear", "--folder", self.cache).stdout, "removed 2 sets of tokenized data")
        self.assertEqual([file.name for file in self.cache.iterdir() if file.is_file()], ["mine.txt"])
        self.assertIn("a command is needed", self.run_program("cache", expect=2).stderr)

    def jobs_of_a_small_and_a_large_set(self, examples):
        """{name: jobs file}; an example of the large one is about 4 KiB of tokens."""
        model = self.model_with_text()
        config = model / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 1024}))
        (self.path / "small.jsonl").write_text(json.dumps({"text": "a" * 400}) + "\n")
        line = json.dumps({"text": "The quick brown fox jumps over the lazy dog. " * 22})
        with gzip.open(self.path / "large.jsonl.gz", "wt", compresslevel=1) as file:
            for number in range(examples):
                file.write(line.replace("quick", str(number)) + "\n")
        jobs = {}
        for name, data in (("small", "small.jsonl"), ("large", "large.jsonl.gz")):
            jobs[name] = self.path / f"{name}.yaml"
            jobs[name].write_text(f"cotune: 1\nmodel: {{path: {model}, dtype: float32}}\njobs:\n  - {{name: one, data: {{train: {data}, "
                                  "max_length: 900}, adapter: {method: lora, r: 2}, train: {steps: 2, batch_size: 2}}\n")
        return jobs

    def test_a_set_larger_than_memory_is_read_from_the_disk(self):
        """Peak memory is that of a small set, whether the large one is being tokenized or was before."""
        jobs = self.jobs_of_a_small_and_a_large_set(26000)

        def peak_bytes(*arguments):
            with (self.path / "log").open("w+b") as log:
                process = subprocess.Popen(self.command(*arguments, "--set", f"run.data_cache={self.cache}", "--set", "run.threads=2"),
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                log.seek(0)
                self.assertEqual(process.returncode, 0, log.read().decode())
            return usage.ru_maxrss * 1024
        small = peak_bytes("data", jobs["small"])
        building = peak_bytes("data", jobs["large"], "--count", "1")
        large_bytes = max(file.stat().st_size for file in self.sets())
        self.assertGreater(large_bytes, 90 << 20)
        self.assertLess(building - small, 64 << 20)
        self.assertLess(peak_bytes("data", jobs["large"], "--count", "1") - small, 48 << 20)
        trained = peak_bytes("train", jobs["small"], "--output-dir", self.path / "small")
        self.assertLess(peak_bytes("train", jobs["large"], "--output-dir", self.path / "large") - trained, 64 << 20)

    @needs.required("memory_groups")
    def test_a_set_larger_than_all_memory_there_is_trains(self):
        """In a control group whose limit holds for the kernel's cache of the set's file, too: tokenized, trained from, and found again."""
        jobs = self.jobs_of_a_small_and_a_large_set(80000)
        # The run's own limit counts the pages of libraries that others have read before, which the group's does not.
        options = ("--set", f"run.data_cache={self.cache}", "--set", "run.threads=2", "--set", "run.memory=1GiB")

        def run(group, *arguments):
            with (self.path / "log").open("w+b") as log:
                done = subprocess.run(self.command(*arguments, *options), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=group.enter)
                log.seek(0)
                self.assertEqual(done.returncode, 0, log.read().decode())
        with memory_group.group() as group:
            run(group, "train", jobs["small"], "--output-dir", self.path / "small")
            limit = group.peak_bytes() + (64 << 20)
        with memory_group.group() as group:
            group.set_limit(limit)
            for name in ("first", "again"):
                run(group, "train", jobs["large"], "--output-dir", self.path / name)
            self.assertGreater(group.peak_bytes(), limit - (1 << 20), "the set would have had room")
        self.assertGreater(max(file.stat().st_size for file in self.sets()), limit)
        self.assertEqual(self.adapter("first", "one"), self.adapter("again", "one"))


if __name__ == "__main__":
    unittest.main()
