"""The `cotune` command of the Python package: starts the program beside this file.

The program finds libtorch in the torch package and Arrow in pyarrow where these stand beside this one. Where they are elsewhere on Python's
path, as those of the system are beside a package of the user, it is told by LD_LIBRARY_PATH.
"""
import importlib.util
import os
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent
LIBRARIES = {"torch": "lib", "pyarrow": "."}  # folders in these packages


def libraries_elsewhere():
    """Folders of libraries in packages that do not stand beside this one. Exits where there is no libtorch."""
    folders = []
    for name, folder in LIBRARIES.items():
        beside = PACKAGE.parent / name / folder
        if beside.is_dir():
            continue
        spec = importlib.util.find_spec(name)
        found = [pathlib.Path(place) / folder for place in spec.submodule_search_locations or ()] if spec else []
        there = [str(place) for place in found if place.is_dir()]
        if not there and name == "torch":
            sys.exit(f"cotune: libtorch is not in {beside}, where pip puts it beside {PACKAGE}, and Python finds no other torch package: "
                     "install cotune and torch in one environment (docs/installing.md)")
        folders += there
    return folders


def main():
    folders = libraries_elsewhere()
    if folders:
        os.environ["LD_LIBRARY_PATH"] = ":".join([*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    os.execv(str(PACKAGE / "cotune"), ["cotune", *sys.argv[1:]])
