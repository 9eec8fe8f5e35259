"""What the tests of `cotune generate` share."""
import json

from program import ProgramTest
from tiny_models import copy_model


class Generates(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = copy_model(self.path / "model")

    def generate(self, *options, expect=0, stdin=None, model=True, **more):
        """The finished program."""
        where = ("--model", self.model) if model else ()
        return self.run_program("generate", *where, "--dtype", "f64", *options, expect=expect, stdin_text=stdin, **more)

    def answer(self, *options, **more):
        """The JSON of one answer."""
        lines = self.generate("--json", *options, **more).stdout.splitlines()
        self.assertEqual(len(lines), 1, lines)
        return json.loads(lines[0])

    def refused(self, *options, expect=2, **more):
        done = self.generate(*options, expect=expect, **more)
        self.assertLess(len(done.stderr), 1500)
        return done.stderr
