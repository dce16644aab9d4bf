"""A headless Chromium, controlled over a pipe with the DevTools protocol."""

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
TIMEOUT_SECONDS = 600.0


class Browser:
    """One tab. `requests` and `errors` collect the URLs and console errors of all pages."""

    def __init__(self):
        self.requests, self.errors, self._message_id, self._buffer = [], [], 0, b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command_read, self._commands = os.pipe()
        self._events, event_write = os.pipe()

        def connect_pipes():  # Chromium reads from descriptor 3 and writes to 4
            for end, number in ((os.dup(command_read), 3), (os.dup(event_write), 4)):
                os.dup2(end, number, inheritable=True)

        self._process = subprocess.Popen(
            [CHROMIUM, *OPTIONS, *QUIET, "--remote-debugging-pipe",
             f"--user-data-dir={self._profile.name}"],
            preexec_fn=connect_pipes, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_read)
        os.close(event_write)
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
        self._process.wait(timeout=TIMEOUT_SECONDS)
        os.close(self._commands)
        os.close(self._events)
        self._profile.cleanup()

    def open(self, path, *, width=1200, height=900, theme="light", scripts=True):
        """Load a file and wait until it is complete."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.readyState == 'complete' && location.protocol == 'file:'")

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Evaluate an expression until it is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"timed out: {expression}; {self.errors}"

    def move_pointer(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path):
        """Save the visible part of the page as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(data["data"]))

    def call(self, method, **params):
        """Call a method of the DevTools protocol and return its result."""
        self._message_id += 1
        message = {"id": self._message_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read_message()
            if answer.get("id") == self._message_id:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._record_event(answer)

    def _read_message(self):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._events], [], [], deadline - time.monotonic())
            assert ready, "chromium does not respond"
            data = os.read(self._events, 1 << 20)
            assert data, "chromium has exited"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _record_event(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
