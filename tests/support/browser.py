"""Chromium for tests: one page, driven over a pair of pipes, without a driver of its own."""

import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: What to drive, if it is called otherwise.
NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser() -> str:
    """The browser's command. The test is skipped where there is none: nothing else can show it."""
    found = next(filter(None, map(shutil.which, [os.environ.get("CHROMIUM", ""), *NAMES])), None)
    if found is None:
        pytest.skip("no Chromium; apt-get install chromium, or name another one by CHROMIUM")
    return found


class Page:
    """One page. Commands and answers are JSON, each with a null byte behind it."""

    def __init__(self, writing: int, reading: int) -> None:
        self._writing, self._reading = writing, reading
        self._waiting = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        (target,) = [
            each["targetId"]
            for each in self.send("Target.getTargets")["targetInfos"]
            if each["type"] == "page"
        ]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Give a command, and return its answer. Errors of the page are noted on the way."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            self._waiting += os.read(self._reading, 1 << 16)
        text, _, self._waiting = self._waiting.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(str(told["entry"]))
        if event.get("method") == "Network.requestWillBeSent":
            url = told["request"]["url"]
            if not url.startswith(("http://127.0.0.1:", "data:")):
                self.errors.append(f"asked elsewhere: {url}")

    def open(self, url: str) -> None:
        """Open an address."""
        self.send("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60) -> Any:
        """Wait until an expression is true. What it looks for may not be there yet."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.value(f"(() => {{ try {{ return !!({expression}); }} catch {{ }} }})()")
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"never true: {expression}\n{self.value('document.body.innerText')}")

    def look(self, width: int, *, is_dark: bool = False) -> None:
        """Set the width of the window and the colours of the system."""
        mode = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **mode)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(b64decode(found["data"]))


@contextmanager
def opened(home: Path) -> Iterator[Page]:
    """A browser of its own, without a window, that reaches this machine alone."""
    ours, theirs = os.pipe(), os.pipe()  # commands, answers
    command = [
        *(browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe"),
        *(f"--user-data-dir={home}", "about:blank"),
    ]

    def pipes() -> None:  # where the browser expects them
        first, second = os.dup(ours[0]), os.dup(theirs[1])
        os.dup2(first, 3)
        os.dup2(second, 4)

    process = subprocess.Popen(
        command, preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL
    )
    os.close(ours[0])
    os.close(theirs[1])
    try:
        yield Page(ours[1], theirs[0])
    finally:
        os.close(ours[1])
        process.terminate()
        process.wait(20)
        os.close(theirs[0])
