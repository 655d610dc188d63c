"""A browser to look at pages with: Chromium, spoken to over a pipe in the words of its debugging protocol."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Chromium:
    """One page in a browser.

    Attributes:
        problems: What was written to the console as an error, and what the page's policy forbade.
        requests: The addresses that were asked for.
    """

    def __init__(self, profile: Path, address: str, dark: bool = False) -> None:
        assert BROWSER is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [BROWSER, *FLAGS.split(), "--disable-component-update", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={profile}", "--window-size=1100,1000", "about:blank"]

        # The pipes of the protocol are files 3 and 4; a process in between makes them so.
        wired = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", wired, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session = b"", 0, None
        self.problems: list[Any] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{part}.enable")
        if dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            self.ask("Emulation.setEmulatedMedia", features=features)
        self.ask("Page.navigate", url=address)

    def ask(self, method: str, **params: Any) -> Any:
        """Sends a command, and waits for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 120.0) -> Any:
        """Waits until an expression is true in the page."""
        end = time.monotonic() + seconds
        while not (found := self.value(script)):
            assert time.monotonic() < end, f"{script} did not become true"
            time.sleep(0.05)
        return found

    def screenshot(self) -> bytes:
        """The page as a file of PNG."""
        import base64

        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def close(self) -> None:
        """Ends the browser."""
        self.process.kill()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown" or (kind == "Log.entryAdded" and params["entry"]["level"] == "error"):
            self.problems.append(params)
        if kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(params)
        if kind == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
