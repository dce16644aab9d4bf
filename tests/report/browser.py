"""A headless Chromium on a pipe: what a page asks for, what it complains of, how it looks."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
PATIENCE = 60.0


class Browser:
    """One tab; `requests` and `complaints` gather from the first page on."""

    def __init__(self):
        self.requests, self.complaints, self._number, self._left = [], [], 0, b""
        self._branch_path = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        down_read, self._down = os.pipe()
        self._up, up_write = os.pipe()

        def ends():  # Chromium reads from 3 and writes to 4
            for end, number in ((os.dup(down_read), 3), (os.dup(up_write), 4)):
                os.dup2(end, number, inheritable=True)

        self._process = subprocess.Popen(
            [CHROMIUM, *OPTIONS, *QUIET, "--remote-debugging-pipe",
             f"--user-data-dir={self._home.name}"],
            preexec_fn=ends, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(down_read)
        os.close(up_write)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        os.close(self._down)
        os.close(self._up)
        self._branch_path.cleanup()

    def open(self, path, *, width=1200, height=900, theme="light", scripts=True):
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.pause_step("document.readyState == 'complete' && location.protocol == 'file:'")

    def run(self, expression):
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression):
        """Ask until it is so."""
        end = time.monotonic() + PATIENCE
        while not self.run(expression):
            assert time.monotonic() < end, f"never came true: {expression}; {self.complaints}"

    def press(self, x, y, kind="mouseMoved"):
        """Move the pointer there."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y)

    def picture(self, path):
        """The whole page, or what the window shows of it, as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(data["data"]))

    def call(self, method, **values):
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._down, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._note(answer)

    def _next(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._up], [], [], end - time.monotonic())
            assert ready, "chromium does not answer"
            got = os.read(self._up, 1 << 20)
            assert got, "chromium has ended"
            self._left += got
        line, self._left = self._left.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event):
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
