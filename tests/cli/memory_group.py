"""Programs that have no more memory than a limit, the kernel's cache of the files they read included: control groups of Linux, by root."""
import contextlib
import os
import pathlib
import subprocess
import tempfile
import time

# (where groups are made, the file that holds a group's limit, the one that counts what it took at most)
HIERARCHIES = ((pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),  # version 1
               (pathlib.Path("/sys/fs/cgroup"), "memory.max", "memory.peak"))


class Group:
    def __init__(self, folder, limit, peak):
        self.folder, self.limit, self.peak = folder, limit, peak

    def set_limit(self, count):
        (self.folder / self.limit).write_text(str(count))

    def peak_bytes(self):
        return int((self.folder / self.peak).read_text())

    def enter(self):
        """For subprocess.Popen's preexec_fn."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def group():
    """None where none can be made."""
    made = None
    for root, limit, peak in HIERARCHIES:
        folder = root / f"cotune-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists() and (folder / peak).exists():
                made = Group(folder, limit, peak)
                break
            folder.rmdir()
    try:
        yield made
    finally:
        if made is not None:
            remove(made.folder)


def remove(folder):
    """Its last process may still be ending."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return folder.rmdir()
        time.sleep(0.05)
    folder.rmdir()


def is_possible():
    """Temporary files that lie in memory themselves would count."""
    kind = subprocess.run(["stat", "--file-system", "--format=%T", tempfile.gettempdir()], capture_output=True, text=True).stdout.strip()
    with group() as made:
        return made is not None and kind not in ("tmpfs", "ramfs")
