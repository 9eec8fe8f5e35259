"""The rules of the Trace Event Format that a viewer goes by, as Google's document of that name has them, and what Perfetto draws of it,
which judges itself where it is installed."""
import json
import math
import tempfile

import needs
import perfetto

PHASES = {"X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "ph", "pid", "tid", "args"},
          "C": {"name", "ph", "ts", "pid", "args"}, "s": {"name", "cat", "ph", "id", "ts", "pid", "tid"},
          "f": {"name", "cat", "ph", "bp", "id", "ts", "pid", "tid"}}
OPTIONAL = {"X": {"args"}, "M": {"tid"}}
METADATA = {"process_name", "thread_name"}


def checked_events(text):
    """The events of a trace file. AssertionError where a viewer would refuse, drop or misplace one."""
    trace = json.loads(text)
    assert trace["displayTimeUnit"] in ("ms", "ns"), trace["displayTimeUnit"]
    events = trace["traceEvents"]
    for event in events:
        assert event["ph"] in PHASES, event
        fields = PHASES[event["ph"]]
        assert fields - OPTIONAL.get(event["ph"], set()) <= event.keys() <= fields, event
        assert isinstance(event["name"], str) and event["name"], event
        for number in ("pid", "tid", "id"):
            assert isinstance(event.get(number, 0), int), event
        for number in ("pid", "tid"):  # 0 is no number of a thread to Perfetto, which takes that of the process in its place
            assert event.get(number, 1) >= 1, event
        assert event.get("tid") != event["pid"], event  # a main thread to Perfetto, which shows it above the others
        for time in ("ts", "dur"):
            assert isinstance(event.get(time, 0), (int, float)) and math.isfinite(event.get(time, 0)) and event.get(time, 0) >= 0, event
    check_names(events)
    slices = slices_of_tracks(events)
    for track, own in slices.items():
        check_nesting(track, own)
    check_counters(events)
    check_flows(events, slices)
    if needs.is_here("perfetto"):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            perfetto.assert_shows(file.name, events)
    return events


def check_names(events):
    """Every process and thread has one name."""
    named = {}
    for event in events:
        if event["ph"] == "M":
            assert event["name"] in METADATA and list(event["args"]) == ["name"] and event["args"]["name"], event
            key = (event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else None)
            assert key not in named, (event, named[key])
            named[key] = event
    for event in events:
        if event["ph"] != "M":
            assert ("process_name", event["pid"], None) in named, event
            assert event["ph"] == "C" or ("thread_name", event["pid"], event["tid"]) in named, event


def slices_of_tracks(events):
    slices = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    return slices


def nanoseconds(microseconds):
    """In which Perfetto counts."""
    whole = round(1000 * microseconds)
    assert math.isclose(1000 * microseconds, whole, rel_tol=1e-15, abs_tol=1e-6), microseconds
    return whole


def check_nesting(track, slices):
    """Complete events of a thread lie within each other or apart: of two that overlap otherwise a viewer drops one."""
    open_until = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        begin = nanoseconds(event["ts"])
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        end = begin + nanoseconds(event["dur"])
        assert not open_until or end <= open_until[-1], (track, event, open_until[-1])
        open_until.append(end)


def check_counters(events):
    for event in events:
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, (int, float)) for value in event["args"].values()), event


def check_flows(events, slices):
    """A flow begins and ends once, in this order, and both within a slice of their thread: others are dropped."""
    ends = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            assert event["id"] not in ends[event["ph"]], event
            ends[event["ph"]][event["id"]] = event
            assert event["ph"] == "s" or event["bp"] == "e", event
            time = nanoseconds(event["ts"])
            assert any(nanoseconds(one["ts"]) <= time <= nanoseconds(one["ts"]) + nanoseconds(one["dur"])
                       for one in slices.get((event["pid"], event["tid"]), [])), event
    assert ends["s"].keys() == ends["f"].keys()
    for flow, begin in ends["s"].items():
        end = ends["f"][flow]
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"]), (begin, end)
        assert nanoseconds(begin["ts"]) <= nanoseconds(end["ts"]), (begin, end)
