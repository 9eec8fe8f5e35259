"""Builds the Python wheel (pyproject.toml): scikit-build-core, told where libtorch is.

libtorch is taken from .deps/python where scripts/install-dependencies has put it, else from the torch package, which pip then
fetches for the build. Compilers and libraries of the distribution must be there: scripts/install-dependencies names them all.
"""
import importlib.util
import os
import pathlib

from scikit_build_core import build as backend
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist, prepare_metadata_for_build_wheel  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEPENDENCIES = ROOT / ".deps/python"
TORCH = "torch==2.11.0"
COMPILER_BYTES = 1.5 * 2**30


def has_libtorch():
    return (DEPENDENCIES / "torch/lib/libtorch_cpu.so").is_file()


def get_requires_for_build_wheel(config_settings=None):
    return [*backend.get_requires_for_build_wheel(config_settings), *([] if has_libtorch() else [TORCH])]


def compilers():
    """As many as there are cores, and no more than free memory allows."""
    with open("/proc/meminfo", encoding="ascii") as facts:
        free = next(int(line.split()[1]) * 1024 for line in facts if line.startswith("MemAvailable:"))
    return max(1, min(len(os.sched_getaffinity(0)), int(free / COMPILER_BYTES)))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = dict(config_settings or {})
    if not has_libtorch():
        site_packages = pathlib.Path(importlib.util.find_spec("torch").origin).parents[1]
        settings.setdefault("cmake.define.COTUNE_SITE_PACKAGES", str(site_packages))
    os.environ.setdefault("CXX", "c++")  # as scripts/build has it: ccache then finds what that has compiled
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(compilers()))
    return backend.build_wheel(wheel_directory, settings, metadata_directory)
