"""A headless Chromium, asked through the pipe of its DevTools protocol: what a page becomes once its scripts run, and its picture."""
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 120
COMPLAINTS = ("error", "warning", "assert")
AS_DESCRIPTORS_3_AND_4 = 'exec "${@:3}" 3<&"$1" 4>&"$2"'  # where the protocol has them


def path():
    """None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def pipe():
    """(read, write), both beyond the descriptors of the protocol."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high


class Browser:
    """One window with one page. complaints: what the page's scripts have thrown, and what the browser has warned of."""

    def __init__(self, width=1200, height=800):
        self.profile = tempfile.TemporaryDirectory(prefix="cotune-browser-", ignore_cleanup_errors=True)
        self.complaints, self.loads, self.asked, self.unread = [], 0, 0, b""
        its_input, self.requests = pipe()
        self.replies, its_output = pipe()
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [path(), "--headless", *as_root, "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
                   f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", AS_DESCRIPTORS_3_AND_4, "bash", str(its_input), str(its_output), *command],
                                        pass_fds=(its_input, its_output), start_new_session=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(its_input)
        os.close(its_output)
        self.session = {}
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    def close(self):
        os.close(self.requests)  # at which it ends
        os.close(self.replies)
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.profile.cleanup()

    def message(self, end):
        while b"\0" not in self.unread:
            assert select.select([self.replies], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            piece = os.read(self.replies, 1 << 20)
            assert piece, f"the browser has ended: {self.process.wait()}"
            self.unread += piece
        first, self.unread = self.unread.split(b"\0", 1)
        return json.loads(first)

    def take(self, message):
        """Of what the browser says unasked."""
        kind, told = message["method"], message["params"]
        if kind == "Page.loadEventFired":
            self.loads += 1
        elif kind == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif kind == "Runtime.consoleAPICalled" and told["type"] in COMPLAINTS:
            self.complaints.append(" ".join(str(each.get("value", each.get("description"))) for each in told["args"]))
        elif kind == "Log.entryAdded" and told["entry"]["level"] in COMPLAINTS:
            self.complaints.append(told["entry"]["text"])

    def ask(self, method, **parameters):
        self.asked += 1
        os.write(self.requests, json.dumps({"id": self.asked, "method": method, "params": parameters, **self.session}).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while True:
            message = self.message(end)
            if message.get("id") == self.asked:
                assert "error" not in message, (method, message)
                return message["result"]
            if "method" in message:
                self.take(message)

    def resize(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url):
        """Until the page and what it asks for at once have been read, and its scripts have run."""
        wanted = self.loads + 1
        told = self.ask("Page.navigate", url=url)
        assert "errorText" not in told, (url, told)
        end = time.monotonic() + LIMIT_S
        while self.loads < wanted:
            message = self.message(end)
            if "method" in message:
                self.take(message)

    def value(self, expression):
        """Of JavaScript in the page, as JSON has it."""
        told = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, (expression, told)
        return told["result"].get("value")

    def wait_for(self, expression):
        end = time.monotonic() + LIMIT_S
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.05)

    def point_at(self, x, y):
        """Moves the mouse there, in the window."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self):
        """PNG of the window."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])
