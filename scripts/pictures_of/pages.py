"""Pictures of pages: PNG as Chromium shows them."""
import contextlib
import json
import math
import re
import subprocess
import sys
import time
import urllib.parse

import needs
import perfetto
from browser import Browser
from pictures_of.screens import PROGRAM

PAGE_WIDTH = 1000
TOP_OF_HEADING = """text => [...document.querySelectorAll('h2')].find(each => each.innerText === text)?.getBoundingClientRect().top
  ?? document.documentElement.scrollHeight"""
SCALARS = "#scalars&tagFilter=(train|eval)%2F&_smoothingWeight=0"
# TensorBoard's page has its charts in shadow trees.
HAS_CHARTS = """(() => {const found = (root, name) => [...root.querySelectorAll('*')].flatMap(each =>
  [...(each.matches(name) ? [each] : []), ...(each.shadowRoot ? found(each.shadowRoot, name) : [])]);
  return found(document, 'vz-line-chart2').length > 0 && found(document, 'paper-spinner-lite[active]').length == 0})()"""

OPEN_TRACKS = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}]


def write(file, png):
    file.write_bytes(png)
    print(file)


def write_report(run, file, until=None):
    """From top to bottom, or to above a heading."""
    report = run / "report.html"
    subprocess.run([PROGRAM, "report", "--run", run, "--output", report], check=True, stdout=subprocess.DEVNULL)
    with contextlib.closing(Browser(PAGE_WIDTH)) as browser:
        browser.open(report.as_uri())
        browser.resize(PAGE_WIDTH, math.floor(browser.value(f"({TOP_OF_HEADING})({json.dumps(until)})")))
        write(file, browser.picture())


def still_picture(browser):
    """When nothing has moved for a second."""
    before, now = None, browser.picture()
    while now != before:
        time.sleep(1)
        before, now = now, browser.picture()
    return now


@contextlib.contextmanager
def served(*command):
    """The address that a server says it has."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield next(found[0] for found in map(re.compile(r"http://[\w.]+:\d+/").search, server.stdout) if found)
    finally:
        server.terminate()
        server.communicate()


def write_tensorboard(run, file):
    server = (needs.installed_program("tensorboard"), "--logdir", run / "tensorboard", "--host", "localhost", "--port", "0")
    with served(*server) as address, contextlib.closing(Browser(1060, 1030)) as browser:
        browser.open(address + SCALARS)
        browser.wait_for(HAS_CHARTS)
        write(file, still_picture(browser))


def write_trace(trace, file):
    """All its tracks, in Perfetto's viewer."""
    viewer = trace.parent / "perfetto"
    viewer.mkdir()
    for part in (trace, *perfetto.folder().parent.iterdir()):
        (viewer / part.name).symlink_to(part)
    server = (sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", viewer, "0")
    with served(*server) as address, contextlib.closing(Browser(1200, 545)) as browser:
        route = urllib.parse.urlencode({"url": address + trace.name, "hideSidebar": "true", "startupCommands": json.dumps(OPEN_TRACKS)},
                                       quote_via=urllib.parse.quote)
        browser.open(f"{address}?testing=1#!/?{route}")
        browser.wait_for("window.app?.trace !== undefined")
        browser.value("waitForPerfettoIdle()")
        write(file, still_picture(browser))
