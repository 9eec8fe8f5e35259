"""Programs that run under `cotune train --restarts`: the process that trains is a child of the one that a test starts."""
import pathlib
import time


def run_of(supervisor, other_than=None):
    """The process that trains now; not `other_than`, which has been killed. None where the supervisor has ended."""
    while supervisor.poll() is None:
        children = pathlib.Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
        try:
            processes = [int(word) for word in children.read_text().split() if int(word) != other_than]
        except OSError:
            return None
        if processes:
            return processes[0]
        time.sleep(0.005)
    return None
