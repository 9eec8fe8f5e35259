#!/usr/bin/env python3
"""The commands of the pages that fetch gigabytes or take an hour, each as it stands there.

    COTUNE_TEST_LARGE=1 COTUNE=build/cotune python3 tests/cli/large_blocks_test.py [UNITTEST OPTIONS]

`scripts/test --large -R large_blocks` is the same, hours on two cores. In a clone of HEAD, one after another: docs/installing.md's build, docs/gpu.md's,
and docs/correctness.md's comparisons. In bare systems (scripts/test-packages, as root): what docs/installing.md says of packages.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import needs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from large_blocks import IN_CLONE, LARGE, PACKAGES, text_of  # noqa: E402

# What a block leaves in the clone.
LEAVES = {"docs/installing.md": "build/cotune", "docs/gpu.md": "build/libcotune_cuda.so", "docs/correctness.md": "build/references/long"}


@needs.required("large")
class LargeBlocks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="cotune-blocks-", dir="/var/tmp"))
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.clone = folder / "cotune"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, cls.clone], check=True)

    def run_in_clone(self, page):
        key = next(key for key, way in LARGE.items() if way == IN_CLONE and key[0] == page)
        own = {name: value for name, value in os.environ.items() if name != "COTUNE"}  # the clone's program, not the one that this suite tests
        subprocess.run(["bash", "-euo", "pipefail", "-c", text_of(key)], cwd=self.clone, env=own, check=True, stdin=subprocess.DEVNULL)
        self.assertTrue((self.clone / LEAVES[page]).exists())

    def test_packages_in_bare_systems(self):
        needs.require(self, "root")
        needs.require(self, "debootstrap")
        listed = subprocess.run([ROOT / "scripts/test-packages", "--list"], check=True, capture_output=True, text=True).stdout.splitlines()
        self.assertEqual(listed, [text_of(key).splitlines()[0] for key, way in LARGE.items() if way == PACKAGES])
        subprocess.run([ROOT / "scripts/test-packages"], check=True, stdin=subprocess.DEVNULL)


for number, page_in_clone in enumerate(LEAVES, 1):  # in this order
    setattr(LargeBlocks, f"test_{number}_" + re.sub(r"\W", "_", page_in_clone), lambda self, page=page_in_clone: self.run_in_clone(page))


if __name__ == "__main__":
    unittest.main(verbosity=2)
