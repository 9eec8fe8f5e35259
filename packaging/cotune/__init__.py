"""The `cotune` command of the Python package: starts the program beside this file, which finds libtorch in the torch package."""
import os
import pathlib
import sys


def main():
    program = str(pathlib.Path(__file__).resolve().parent / "cotune")
    os.execv(program, ["cotune", *sys.argv[1:]])
