"""The benchmarks that need no libtorch, built in a folder of their own."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build-planning"


def add_option(parser):
    parser.add_argument("--build", type=pathlib.Path, help=f"a folder where they are built already (default: builds them in {FOLDER.name})")


def program(options, name):
    """Its path, after it was built."""
    if options.build is not None:
        return options.build / name
    subprocess.run(["cmake", "-S", ROOT, "-B", FOLDER, "-G", "Ninja", "-DCOTUNE_TORCH=OFF", "-DCOTUNE_TESTS=OFF", "-DCOTUNE_BENCH=ON"],
                   check=True, stdout=sys.stderr)
    subprocess.run(["ninja", "-C", FOLDER, name], check=True, stdout=sys.stderr)
    return FOLDER / name
