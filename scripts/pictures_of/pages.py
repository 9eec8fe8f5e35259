"""Pictures of pages: PNG as Chromium shows them."""
import contextlib
import json
import math
import re
import subprocess
import time

import needs
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
def tensorboard(folder):
    """Its address."""
    command = [needs.installed_program("tensorboard"), "--logdir", folder, "--host", "localhost", "--port", "0"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield next(found[0] for found in map(re.compile(r"http://localhost:\d+/").search, server.stderr) if found)
    finally:
        server.terminate()
        server.communicate()


def write_tensorboard(run, file):
    with tensorboard(run / "tensorboard") as address, contextlib.closing(Browser(1060, 1030)) as browser:
        browser.open(address + SCALARS)
        browser.wait_for(HAS_CHARTS)
        write(file, still_picture(browser))
