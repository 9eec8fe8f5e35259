"""What tests of ranks that are processes share: starting them as torchrun and Slurm do."""
import os
import random
import socket
import subprocess

from program import LIMIT_S, ProgramTest

# Orders of sums show in nothing else: f64, and an epsilon of Adam far above what sums in another order are apart.
EXACT = ("--set", "model.dtype=float64", "--set", "defaults.train.epsilon=1e-5")


def free_port():
    """A port nobody listens on, below those that the system hands out by itself."""
    while True:
        port = random.SystemRandom().randrange(12000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def torchrun(rank, size, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def slurm(rank, size, port):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_LOCALID": str(rank), "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port)}


class LaunchTest(ProgramTest):
    def launch(self, *arguments, size=2, launcher=torchrun, extra=None, before=lambda rank: []):
        """before: the command that starts a rank's program in another place."""
        port = free_port()
        ranks = []
        for rank in range(size):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **launcher(rank, size, port), **(extra or {})}
            ranks.append(subprocess.Popen([*before(rank), *self.command(*arguments)], env=environment, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, pipesize=4096))
        self.running += ranks
        return ranks

    def train(self, run, *options, steps=12, **launched):
        return self.launch("train", self.jobs_file(steps=steps), "--output-dir", self.path / run, "--json", "--token-budget=256",
                           *options, **launched)

    def end_all(self, ranks, expect=0):
        """What each wrote: (output, errors)."""
        written = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [expect] * len(ranks), written)
        return [(output.decode(), errors.decode()) for output, errors in written]

    def assert_like_one_rank(self, run, *options, steps=12, bound=1e-3):
        one = f"{run}-one"
        self.run_program("train", self.jobs_file(steps=steps), "--output-dir", self.path / one, "--json", "--token-budget=256",
                         "--threads=1", *options)
        self.assert_alike(run, one, bound)
