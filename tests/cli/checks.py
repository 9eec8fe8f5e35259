"""What the tests of refused starts share."""
from program import ProgramTest


class Check(ProgramTest):
    def refused(self, jobs, *options, starts=False):
        """The mistakes, one a line; nothing is written. starts: a start is refused in the same words."""
        options = ("--output-dir", self.path / "run", *options) if "--output-dir" not in options else options
        errors = self.run_program("train", jobs, "--check", *options, expect=2).stderr
        if starts:
            self.assertEqual(self.run_program("train", jobs, *options, expect=2).stderr, errors)
        self.assertFalse((self.path / "run").exists())
        return errors

    def write_jobs(self, *jobs, model="{config: ./config.json, weights: random}", more=""):
        path = self.path / "jobs.yaml"
        path.write_text(f"cotune: 1\nmodel: {model}\n{more}jobs:\n" + "".join(f"  - {job}\n" for job in jobs))
        return path
