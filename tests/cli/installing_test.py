#!/usr/bin/env python3
"""What installing leaves for Python to start: the package's program, and torchrun of the environment that judges. Standard library only.

    python3 tests/cli/installing_test.py [UNITTEST OPTIONS]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

from program import ROOT


class Installing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cotune installing ")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def write_program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start_package(self, *folders, **environment):
        """The package in the first of these folders, which are Python's path beside its own library."""
        shutil.copytree(ROOT / "packaging/cotune", folders[0] / "cotune")
        self.write_program(folders[0] / "cotune/cotune", '#!/bin/sh\necho "$LD_LIBRARY_PATH|$*"\n')
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(map(str, folders)), **environment}
        # -S: not the packages of this Python
        done = subprocess.run([sys.executable, "-S", "-m", "cotune", "train", "a b.yaml"], env=environment, capture_output=True, text=True)
        shutil.rmtree(folders[0] / "cotune")
        return done

    def make_package(self, folder, name, libraries):
        (folder / name / libraries).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('is not to be imported')\n")

    def test_the_package_finds_libraries_beside_it_and_elsewhere_on_pythons_path(self):
        own, system = self.path / "own", self.path / "system"
        self.make_package(system, "torch", "lib")
        self.assertEqual(self.start_package(own, system).stdout, f"{system}/torch/lib|train a b.yaml\n")
        self.assertEqual(self.start_package(own, system, LD_LIBRARY_PATH="/other").stdout, f"{system}/torch/lib:/other|train a b.yaml\n")
        self.make_package(system, "pyarrow", ".")
        self.assertEqual(self.start_package(own, system).stdout, f"{system}/torch/lib:{system}/pyarrow|train a b.yaml\n")
        self.make_package(own, "torch", "lib")
        self.make_package(own, "pyarrow", ".")
        self.assertEqual(self.start_package(own, system).stdout, "|train a b.yaml\n")

    def test_without_libtorch_the_package_names_where_it_looked(self):
        done = self.start_package(self.path / "own")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"libtorch is not in {self.path}/own/torch/lib, where pip puts it beside {self.path}/own/cotune, and", done.stderr)

    def test_torchrun_starts_from_a_path_with_spaces(self):
        lend_torch = types.ModuleType("lend_torch")
        exec((ROOT / "scripts/lend-torch").read_text(), lend_torch.__dict__)
        python = self.path / "bin/python"
        self.write_program(self.path / "bin/torchrun", lend_torch.TORCHRUN.format(python=python))
        python.symlink_to(sys.executable)
        self.write_program(self.path / "torch/distributed/run.py", "import sys\ndef main():\n    print(sys.argv[1:])\n    return 3\n")
        done = subprocess.run([self.path / "bin/torchrun", "--nproc-per-node", "a b"], capture_output=True, text=True,
                              env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.path)})
        self.assertEqual((done.returncode, done.stdout), (3, "['--nproc-per-node', 'a b']\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
