#!/usr/bin/env python3
"""Ranks that are killed, that hang, whose links drop, and whose disk is full, at random moments: every run ends with an error in time, says
whom it has lost, and ends with the adapters of an undisturbed run when it is resumed. Standard library only.

    COTUNE=build/cotune python3 tests/cli/rank_failures_test.py [UNITTEST OPTIONS]

COTUNE_FAILURES: how many moments of each kind (default 3, one on each layout). Where it is set, the times that docs/ranks.md promises are held
to, else three times as much, for a machine that others keep busy cannot always keep them. Links and disks need the rights of root.
"""
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

import needs
from program import LIMIT_S
from rank_launch import EXACT, LaunchTest, free_port, torchrun

MOMENTS = int(os.environ.get("COTUNE_FAILURES", "3"))
PATIENCE = 1 if "COTUNE_FAILURES" in os.environ else 3  # promised times are held to so many times over
STEPS = 12
LAYOUTS = ("pp=2", "tp=2", "dp=2")
HANG_TIMEOUT_S = 4
MOST_S = {"kill": 5, "hang": HANG_TIMEOUT_S + 10, "dropped link": HANG_TIMEOUT_S + 10, "closed link": 5}

# What a rank was at, as the others last heard of it: nothing where it waited for something to do.
ACTION = r"[a-z]+( [a-z]+)*?( of microbatch \d+)?( of job \d+, step \d+)? on stage \d+"
TASK = r"[a-z]+ing [^;\n]+"  # between rounds
KNOWN = rf"(; last in {ACTION}|; last {TASK}|; it waited for ranks? [\d, ]+ \({ACTION}\))?"


def words_of_loss(rank=r"\d+"):
    """A line that says who is lost and how, and, where that was known, in which action and waiting for whom."""
    who = f"rank {rank} on {re.escape(socket.gethostname())}"
    return (rf"(?m)^({who} has left the run{KNOWN}|{who} has not been heard of for \d+ s{KNOWN}|{who} hangs: {ACTION} has taken \d+ s"
            rf"|the master, with {who}, has not answered rank \d+ on \S+ for \d+ s{KNOWN}|{who}: .+)$")


def is_gone(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Ranks:
    """The processes of a run: those that were started, and which of their children or themselves the ranks are."""

    def __init__(self, started, ids):
        self.started, self.ids = started, ids


class TwoHosts:
    """Two network namespaces with a third one between them that forwards, and may stop to."""
    MASTER = "10.77.1.1"
    FORWARDS = "/proc/sys/net/ipv4/ip_forward"

    def __init__(self):
        self.names = [f"cotune-{os.getpid()}-{end}" for end in ("a", "b", "router")]
        a, b, router = self.names
        commands = [["ip", "netns", "add", name] for name in self.names]
        for name, net in ((a, 1), (b, 2)):
            commands += [["ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"to{net}", "netns", router],
                         ["ip", "-n", name, "addr", "add", f"10.77.{net}.1/24", "dev", "eth0"],
                         ["ip", "-n", router, "addr", "add", f"10.77.{net}.2/24", "dev", f"to{net}"],
                         ["ip", "-n", name, "link", "set", "lo", "up"], ["ip", "-n", name, "link", "set", "eth0", "up"],
                         ["ip", "-n", router, "link", "set", f"to{net}", "up"],
                         ["ip", "-n", name, "route", "add", "default", "via", f"10.77.{net}.2"]]
        for command in commands:
            subprocess.run(command, check=True)
        self.mend()

    def before(self, rank):
        return ["ip", "netns", "exec", self.names[rank]]

    def forward(self, yes):
        subprocess.run(["ip", "netns", "exec", self.names[2], "tee", self.FORWARDS], input=b"1" if yes else b"0",
                       stdout=subprocess.DEVNULL, check=True)

    def mend(self):
        self.forward(True)

    def drop(self):
        """Nothing comes through any more, and nobody is told."""
        self.forward(False)

    def close_links(self):
        """As a firewall or a switched-off interface does that says so."""
        subprocess.run(["ip", "netns", "exec", self.names[0], "ss", "-K", "dst", "10.77.2.1"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=True)

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


class RankFailures(LaunchTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(os.environ.get("COTUNE_FAILURES_SEED", self.id()))
        self.jobs = self.jobs_file(steps=STEPS, save_steps=2)
        self.jobs.write_text(self.jobs.read_text().replace("batch_size: 4", "micro_batch_size: 2, gradient_accumulation_steps: 2"))
        self.place = self.path  # of the runs' folders
        self.times = {}         # of the undisturbed runs
        self.logs = []
        self.before, self.master = (lambda rank: []), "127.0.0.1"
        self.is_mounted = False

    def tearDown(self):
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.place])
        super().tearDown()

    def command_of(self, run, layout):
        return self.command("train", self.jobs, "--output-dir", run, "--token-budget=256", f"--parallel={layout}",
                            f"--hang-timeout={HANG_TIMEOUT_S}", *EXACT, *(["--resume"] if (run / "run.json").exists() else []))

    def launch_logged(self, rank, command, **options):
        self.logs.append(open(self.path / f"log-{rank}", "w"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.logs[-1], **options)
        self.running.append(process)
        return process

    def start(self, run, layout):
        return self.start_by_hand(self.command_of(run, layout))

    def start_by_hand(self, command, size=2):
        """Processes with a launcher's variables."""
        port = free_port()
        started = []
        for rank in range(size):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **torchrun(rank, size, port), "MASTER_ADDR": self.master}
            started.append(self.launch_logged(rank, [*self.before(rank), *command], env=environment))
        return Ranks(started, [process.pid for process in started])

    def start_by_torchrun(self, run, layout):
        agent = self.launch_logged(0, [needs.installed_program("torchrun"), "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port",
                                       str(free_port()), "--no-python", *self.command_of(run, layout)])
        ids = {}
        while len(ids) < 2:
            self.assertIsNone(agent.poll(), self.said(0))
            for child in pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split():
                variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                ids.update({int(each[5:]): int(child) for each in variables if each.startswith(b"RANK=")})
            time.sleep(0.01)
        return Ranks([agent], [ids[0], ids[1]])

    def said(self, rank):
        return (self.path / f"log-{rank}").read_text()

    def codes(self, ranks):
        codes = [process.wait(timeout=LIMIT_S) for process in ranks.started]
        while self.logs:
            self.logs.pop().close()
        return codes

    def end_well(self, ranks):
        self.assertEqual(set(self.codes(ranks)), {0}, [path.read_text() for path in sorted(self.path.glob("log-*"))])

    def wait_until_met(self, run, ranks):
        """The first rank takes the run's folder when all have joined."""
        while not (run / "lock").exists() and not is_gone(ranks.ids[0]):
            time.sleep(0.002)

    def seconds_of_whole(self, layout):
        """Of an undisturbed run, from when its ranks have met."""
        if layout not in self.times:
            run = self.place / f"whole-{layout}"
            ranks = self.start(run, layout)
            self.wait_until_met(run, ranks)
            begin = time.monotonic()
            self.end_well(ranks)
            self.times[layout] = time.monotonic() - begin
        return self.times[layout]

    def wait_for_end(self, ids):
        """Seconds that it took."""
        begin = time.monotonic()
        while not all(map(is_gone, ids)):
            self.assertLess(time.monotonic() - begin, LIMIT_S)
            time.sleep(0.005)
        return time.monotonic() - begin

    def resume_and_compare(self, run, layout, where):
        self.end_well(self.start(run, layout))
        own, whole = (str(folder.relative_to(self.path)) for folder in (run, self.place / f"whole-{layout}"))
        if layout != "dp=2":  # where a row's replica may be another one, and so the order in which gradients are added
            self.assertEqual(self.adapters(own), self.adapters(whole), where)
        self.assert_alike(own, whole, 1e-10)
        shutil.rmtree(run)

    def at_random_moments(self, kind, fail, most_s=None, mend=lambda ranks: None, by_torchrun=False):
        """fail(ranks, victim, number) returns the processes that are to end by themselves, within most_s(number) seconds."""
        took = []
        while len(took) < MOMENTS:
            number = len(took)
            layout = LAYOUTS[number % len(LAYOUTS)]
            lasts_s = self.seconds_of_whole(layout)
            run = self.place / f"failed-{number}"
            uses_torchrun = by_torchrun and number % 2 == 1 and needs.is_here("torchrun")
            ranks = (self.start_by_torchrun if uses_torchrun else self.start)(run, layout)
            self.wait_until_met(run, ranks)
            after_s, victim = self.random.uniform(0, lasts_s), self.random.randrange(2)
            time.sleep(after_s)
            left = fail(ranks, victim, number)
            took_s = self.wait_for_end(left)
            mend(ranks)
            codes = self.codes(ranks)
            if 0 in codes and (run / "summary.json").exists():  # it had ended, or nearly
                shutil.rmtree(run)
                continue
            where = (f"{kind} {number + 1}: {layout}{', torchrun' if uses_torchrun else ''}, rank {victim}, {after_s:.2f} s after the "
                     f"meeting: {took_s:.2f} s to the end")
            print(f"  {where}", file=sys.stderr, flush=True)
            self.assertNotIn(0, codes, where)
            if not uses_torchrun:
                self.check_words(kind, ranks, victim, left, where)
            if most_s is not None:
                self.assertLess(took_s, PATIENCE * most_s(number), where)
            took.append(took_s)
            self.resume_and_compare(run, layout, where)
        print(f"  {kind}: {MOMENTS} moments, {max(took):.2f} s to the end at most, {sorted(took)[len(took) // 2]:.2f} s in the median",
              file=sys.stderr, flush=True)

    def check_words(self, kind, ranks, victim, left, where):
        for rank, process in enumerate(ranks.ids):
            text = self.said(rank)
            if process not in left:
                continue
            if kind != "disk":  # of which the first rank tells
                self.assertNotEqual(text, "", where)
            if kind in ("kill", "hang"):
                self.assertRegex(text, words_of_loss(victim), where)
            if kind == "link":
                self.assertRegex(text, words_of_loss(), where)
            if kind == "disk" and rank == 0:
                self.assertIn("No space left on device", text, where)

    def test_a_killed_rank(self):
        def kill(ranks, victim, _):
            os.kill(ranks.ids[victim], signal.SIGKILL)
            return [ranks.ids[1 - victim]]
        self.at_random_moments("kill", kill, lambda _: MOST_S["kill"], by_torchrun=True)

    def test_a_rank_that_hangs(self):
        def stop(ranks, victim, _):
            os.kill(ranks.ids[victim], signal.SIGSTOP)
            return [ranks.ids[1 - victim]]

        def kill(ranks):
            for process in ranks.started:
                process.kill()
        self.at_random_moments("hang", stop, lambda _: MOST_S["hang"], mend=kill)

    def words_about_a_rank_that_waits(self, fail):
        """Of rank 0, when rank 1 fails, which the third rank has kept waiting."""
        run = self.path / "waits"
        jobs = self.jobs_file(steps=100000, save_steps=100000)
        jobs.write_text(jobs.read_text().replace("batch_size: 4", "batch_size: 24"))  # seldom between rounds
        ranks = self.start_by_hand(self.command("train", jobs, "--output-dir", run, "--token-budget=256", "--parallel=dp=3", "--hang-timeout=15"), size=3)
        metrics = run / "metrics.jsonl"
        while not (metrics.exists() and '"step"' in metrics.read_text()):
            self.assertFalse(any(map(is_gone, ranks.ids)), self.said(0))
            time.sleep(0.05)
        time.sleep(2)  # steps are told of between rounds, which then follow each other for some seconds
        os.kill(ranks.ids[2], signal.SIGSTOP)
        time.sleep(5)  # each tells the others every second
        os.kill(ranks.ids[1], fail)
        os.kill(ranks.ids[2], signal.SIGCONT)
        self.assertNotEqual(ranks.started[0].wait(timeout=LIMIT_S), 0)
        for process in ranks.started:
            process.kill()
        self.codes(ranks)
        text = self.said(0)
        shutil.rmtree(run)
        self.assertRegex(text, words_of_loss(1))
        return text

    def test_the_message_has_action_and_peer_of_a_rank_that_waited(self):
        for fail, how in ((signal.SIGKILL, "has left the run"), (signal.SIGSTOP, r"has not been heard of for \d+ s")):
            said = rf"rank 1 on {re.escape(socket.gethostname())} {how}; it waited for ranks 0, 2 \({ACTION}\)"
            texts = []
            while not any(re.search(said, text) for text in texts):
                self.assertLess(len(texts), 3, texts)  # the third rank may have been stopped between rounds
                texts.append(self.words_about_a_rank_that_waits(fail))

    def test_a_link_that_drops_or_closes(self):
        needs.require(self, "root")
        hosts = TwoHosts()
        self.addCleanup(hosts.close)
        self.before, self.master = hosts.before, hosts.MASTER

        def cut(ranks, _, number):
            hosts.drop() if number % 2 == 0 else hosts.close_links()
            return ranks.ids
        self.at_random_moments("link", cut, lambda number: MOST_S["dropped link" if number % 2 == 0 else "closed link"],
                               mend=lambda _: hosts.mend())

    def test_a_disk_that_is_full(self):
        self.place = self.path / "disk"
        self.place.mkdir()
        needs.require(self, "root")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", self.place], check=True)
        self.is_mounted = True
        ballast = self.place / "ballast"

        def fill(ranks, _, number):
            with open(ballast, "wb", buffering=0) as file:
                try:
                    while file.write(bytes(1 << 16)):
                        pass
                except OSError:
                    return ranks.ids
        self.at_random_moments("disk", fill, mend=lambda _: ballast.unlink())


if __name__ == "__main__":
    unittest.main(verbosity=2)
