"""What the tests of `cotune generate` share."""
import json
import random
import shutil
import struct

from program import ProgramTest
from tiny_models import TEMPLATE, copy_model


def trained_adapter(source, target, seed, spread=0.1):
    """A copy of a committed adapter with other values: those begin as the base model."""
    shutil.copytree(source, target)
    file, draw = target / "adapter_model.safetensors", random.Random(seed)
    content = bytearray(file.read_bytes())
    begin = 8 + struct.unpack_from("<Q", content)[0]
    for tensor in json.loads(content[8:begin]).values():
        if tensor.get("dtype") != "F32":
            continue
        first, last = (begin + offset for offset in tensor["data_offsets"])
        content[first:last] = struct.pack(f"<{(last - first) // 4}f", *(draw.gauss(0, spread) for _ in range((last - first) // 4)))
    file.write_bytes(content)
    return target


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

    def free_answer(self, question):
        """Of the base model, and a letter in it that stands neither in the question nor in a template."""
        text = self.answer("--prompt", question, "--max-new-tokens", "40")["text"]
        return text, next(letter for letter in text[1:] if "!" <= letter <= "~" and letter not in text[0] + question + TEMPLATE + "\\")

    def refused(self, *options, expect=2, **more):
        done = self.generate(*options, expect=expect, **more)
        self.assertLess(len(done.stderr), 1500)
        return done.stderr
