#!/usr/bin/env python3
"""How long a round of several ranks takes beside what the planner says, on the job mixes of bench/predictions.py, none of which was fitted.

    python3 bench/rank_predictions.py --model MODEL [--parallel DEGREES...] [--mixes N] [--rounds N] [--cotune build/cotune] [--no-docs]

`cotune profile --ranks 2` measures operators while both ranks compute; every mix trains with it on every division, a flush after each round.
`before` is by that profile alone; `after` by prices as earlier rounds of the same run had corrected them, which is what the planner goes by
while a run lasts. Each is the mean over a run's rounds of |predicted - measured| / measured. Goal: within 10% (mean over mixes). Writes its part
of docs/ranks.md. Python's standard library only.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import compare
import page_part
import predictions

GOAL = 0.10


def verdict(error):
    return f"{error:.1%}" + ("" if error <= GOAL else ", **missed**")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--parallel", nargs="+", default=["pp=2", "dp=2"], help="divisions of two ranks")
    parser.add_argument("--mixes", type=int, default=predictions.MIXES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile-seconds", type=float, default=60)
    parser.add_argument("--cotune", default="build/cotune")
    page_part.add_options(parser, "docs/ranks.md")
    options = parser.parse_args()
    mixes = predictions.draw_mixes()[:options.mixes]
    errors, busy = {parallel: [] for parallel in options.parallel}, [compare.busy_cores()]
    lines = ["| mix (rows × longest) |" + "".join(f" {parallel}: before, after |" for parallel in options.parallel), "|---|" + "---|" * len(options.parallel)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        profile = folder / "profile.json"
        predictions.run([options.cotune, "profile", options.model, "--ranks", "2", "--seconds", str(options.profile_seconds), "--output", profile])
        for index, jobs in enumerate(mixes):
            own = folder / f"mix{index:02d}"
            predictions.write_mix(own, jobs, options.model, options.rounds, "auto")
            cells = []
            for parallel in options.parallel:
                busy.append(compare.busy_cores())
                output = predictions.run([options.cotune, "train", own / "jobs.yaml", "--profile", profile, "--parallel", parallel, "--rounds-at-once", "1",
                                          "--json", "--overwrite"])
                found = json.loads(output.strip().splitlines()[-1])["prediction_errors"]
                errors[parallel].append((found["before"], found["after"]))
                cells.append(f"{found['before']:.1%}, {found['after']:.1%}")
                print(f"mix {index:2} {parallel}: {cells[-1]} of {found['rounds']} rounds", file=sys.stderr, flush=True)
            lines.append(f"| {predictions.describe(jobs)} | {' | '.join(cells)} |")
    lines.append("| mean, goal 10% |" + "".join(f" {verdict(statistics.mean(before))}; {verdict(statistics.mean(after))} |"
                                                for before, after in (zip(*errors[parallel]) for parallel in options.parallel)))
    text = f"{compare.machine('cpu')}. Cores busy with other work before a run: at most {max(busy):.1f}. Seed {predictions.SEED}, {len(mixes)} mixes, {options.rounds} rounds."
    page_part.put(options, "rank-predictions", "\n".join([text, "", *lines]))


if __name__ == "__main__":
    main()
