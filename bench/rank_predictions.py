#!/usr/bin/env python3
"""How long a round of several ranks takes beside what the planner says, on the job mixes of bench/predictions.py, none of which was fitted.

    python3 bench/rank_predictions.py --model MODEL [--parallel DEGREES...] [--mixes N] [--rounds N] [--cotune build/cotune] [--no-docs]

`cotune profile --ranks 2` measures operators while both ranks compute; every mix trains with it on every division, a flush after each round.
Three errors of a round's seconds, |predicted - measured| / measured, each the mean over a run's rounds: by that profile alone; by prices as
earlier rounds of the same run had corrected them, which is what the planner goes by while a run lasts; and by what was planned with the prices of
stages that there were, from the first action to the last, in rounds that nothing disturbed: no action of a rank took half as much again as planned
(on machines whose cores others slow down for a second at a time). DEGREES are pipelines and replicas; of layers that ranks divide, plans have other actions.
Goal: within 10% (mean over mixes). Writes its part of docs/ranks.md. Python's standard library only.
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
DISTURBED = 1.5       # measured over planned, of an action
LEAST_US = 20_000     # shorter actions say little
COLUMNS = "profile; corrected; undisturbed"


def verdict(error):
    return f"{error:.1%}" + ("" if error <= GOAL else ", **missed**")


def rounds_of(trace):
    """(predicted s, measured s, whether something disturbed it) of each round of a run that flushes after each."""
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = lambda track: [event for event in events if event["ph"] == "X" and names[event["pid"]] == track]
    measured, planned = spans("measured, ranks"), spans("planned, ranks")
    assert [event["name"] for event in measured] == [event["name"] for event in planned]
    found = []
    for window in (event for event in events if event.get("cat") == "round"):
        end = window["ts"] + window["dur"]
        own = [(did, was_to) for did, was_to in zip(measured, planned) if window["ts"] <= did["ts"] < end]
        seconds = [(max(each["ts"] + each["dur"] for each in side) - min(each["ts"] for each in side)) / 1e6 for side in zip(*own)]
        disturbed = any(did["dur"] > DISTURBED * was_to["dur"] for did, was_to in own if max(did["dur"], was_to["dur"]) > LEAST_US)
        found.append((seconds[1], seconds[0], disturbed))
    return found


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
    lines = ["| mix (rows × longest) |" + "".join(f" {parallel}: {COLUMNS} |" for parallel in options.parallel), "|---|" + "---|" * len(options.parallel)]
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
                trace = own / "trace.json"
                output = predictions.run([options.cotune, "train", own / "jobs.yaml", "--profile", profile, "--parallel", parallel, "--rounds-at-once", "1",
                                          "--trace", trace, "--json", "--overwrite"])
                found = json.loads(output.strip().splitlines()[-1])["prediction_errors"]
                rounds = rounds_of(trace)[-found["rounds"]:]
                quiet = [abs(predicted - measured) / measured for predicted, measured, disturbed in rounds if not disturbed]
                errors[parallel].append((found["before"], found["after"], quiet))
                cells.append(f"{found['before']:.1%}; {found['after']:.1%}; "
                             + (f"{statistics.mean(quiet):.1%} ({len(quiet)} of {len(rounds)})" if quiet else "none"))
                print(f"mix {index:2} {parallel}: {cells[-1]}", file=sys.stderr, flush=True)
            lines.append(f"| {predictions.describe(jobs)} | {' | '.join(cells)} |")
    means = []
    for parallel in options.parallel:
        before, after, quiet = zip(*errors[parallel])
        undisturbed = [statistics.mean(each) for each in quiet if each]
        means.append("; ".join([verdict(statistics.mean(before)), verdict(statistics.mean(after)),
                                verdict(statistics.mean(undisturbed)) if undisturbed else "none"]))
    lines.append(f"| mean, goal 10% | {' | '.join(means)} |")
    text = f"{compare.machine('cpu')}. Cores busy with other work before a run: at most {max(busy):.1f}. Seed {predictions.SEED}, {len(mixes)} mixes, {options.rounds} rounds."
    page_part.put(options, "rank-predictions", "\n".join([text, "", *lines]))


if __name__ == "__main__":
    main()
