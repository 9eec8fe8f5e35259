"""A Slurm cluster of two nodes that are both this machine, by Slurm's own daemons, for as long as a test takes.

Needs what Debian 12's packages slurmctld, slurmd and slurm-client hold, and root. Nobody is authenticated and nothing is kept: the
daemons listen on this machine's own address, and their files lie in the test's folder.
"""
import ctypes
import glob
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

DAEMONS = ("slurmctld", "slurmd")
LIMIT_S = 120


def is_installed():
    programs = all(shutil.which(name, path=f"/usr/sbin:{os.environ['PATH']}") for name in (*DAEMONS, "srun", "sbatch"))
    without_keys = glob.glob("/usr/lib/*/slurm-wlm/auth_none.so")  # later versions than Debian 12's need a daemon for keys
    return os.geteuid() == 0 and programs and bool(without_keys)


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def end_with_parent():
    """However the test ends, its daemons end too."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    os.setsid()


class OneMachineSlurm:
    """The first node has the machine's name, which can be looked up; the other is second in every list of nodes."""

    def __init__(self, folder):
        self.folder, self.running = pathlib.Path(folder), []
        self.folder.mkdir()
        controller, first, second = free_ports(3)
        host = socket.gethostname().split(".")[0]
        node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN"
        (self.folder / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
NodeName={host} {node} Port={first}
NodeName={host}-2 {node} Port={second}
PartitionName=all Nodes={host},{host}-2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
""")
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.start("slurmctld", "-D", "-c", "-i")
        for name in (host, f"{host}-2"):
            self.start("slurmd", "-D", "-N", name)
        self.wait_for_nodes()

    def start(self, *command):
        with open(self.folder / f"{command[0]}.out", "a") as log:
            self.running.append(subprocess.Popen(command, env=self.with_path(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                 preexec_fn=end_with_parent))

    def with_path(self):
        return {**os.environ, **self.environment, "PATH": f"/usr/sbin:{os.environ['PATH']}"}

    def wait_for_nodes(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            shown = subprocess.run(["sinfo", "--noheader", "--format=%T %D"], env=self.with_path(), capture_output=True, text=True)
            if shown.stdout.split() == ["idle", "2"]:
                return
            time.sleep(0.1)  # leaves the daemons the processor
        logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
        self.stop()
        raise AssertionError(f"the nodes are not there: {shown.stdout}{shown.stderr}\n{logs}")

    def stop(self):
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
