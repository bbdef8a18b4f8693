"""A headless Chromium, driven over the WebDriver protocol of its chromedriver: JSON over HTTP, so it takes no library.

Both are Debian's packages `chromium` and `chromium-driver`. Chromium talks to nobody but the pages that a test opens.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from statecache.clock import monotonic
from tests.support.polling import pause_thread

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WHY_NOT = "" if CHROMIUM and DRIVER else "there is no chromium with its chromedriver on PATH"
WAIT_S, UNTIL_S = 60.0, 20.0
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Left": "\ue012", "Right": "\ue014", "Home": "\ue011", "End": "\ue010"}


class Refused(Exception):
    """What chromedriver answered where a command failed."""


class Browser:
    """One window of a browser."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._session = ""

    def open(self, folder: Path) -> None:
        """Open the window, with a profile of its own."""
        flags = [*_FLAGS, f"--user-data-dir={folder}"]
        options = {"binary": CHROMIUM, "args": flags}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        found = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def close(self) -> None:
        """Close the window and end the browser."""
        self._ask("DELETE", self._session)

    def _ask(self, method: str, path: str, given: Mapping[str, Any] | None = None) -> Any:
        data = None if method != "POST" else json.dumps(given or {}).encode()
        request = urllib.request.Request(self._driver + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise Refused(f"{told['error']}: {told['message'].splitlines()[0]}") from None

    def go(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._ask("POST", f"{self._session}/url", {"url": url})

    def size(self, width: int, height: int) -> None:
        """Give the window a size."""
        self._ask("POST", f"{self._session}/window/rect", {"width": width, "height": height})

    def scheme(self, scheme: Literal["light", "dark"]) -> None:
        """Have pages believe that the user wants light, or dark."""
        given = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": given})

    def scripts(self, on: bool) -> None:
        """Have pages run their scripts, or not."""
        given = {"cmd": "Emulation.setScriptExecutionDisabled", "params": {"value": not on}}
        self._ask("POST", f"{self._session}/goog/cdp/execute", given)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return what it returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something true, which may be on the next page, and return it."""
        end = monotonic() + UNTIL_S
        while True:
            try:
                found = self.run(script, *arguments)
            except Refused:  # the page is being left
                found = None
            if found or monotonic() > end:
                assert found, f"never true: {script}\n{self.url}\n{self.text('main')[:2000]}"
                return found
            pause_thread()

    def arrives(self, part: str) -> None:
        """Wait until the page is one whose address has that part: a click may return before its page has come."""
        end = monotonic() + UNTIL_S
        while part not in self.url:
            assert monotonic() < end, f"no {part} in {self.url}"
            pause_thread()

    def text(self, selector: str) -> str:
        """Return the text of the first element that a selector means."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def press(self, *names: str) -> None:
        """Press and release keys, one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": KEYS.get(name, name)} for name in names for kind in ("keyDown", "keyUp")]
        given = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        self._ask("POST", f"{self._session}/actions", given)

    def click(self, selector: str) -> None:
        """Click on the first element that a selector means."""
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"{self._session}/element/{found[_ELEMENT]}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Put text into the first field that a selector means."""
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"{self._session}/element/{found[_ELEMENT]}/clear", {})
        self._ask("POST", f"{self._session}/element/{found[_ELEMENT]}/value", {"text": text})

    @property
    def url(self) -> str:
        """The address of the page."""
        return str(self._ask("GET", f"{self._session}/url"))

    def complaints(self) -> list[str]:
        """Return what the browser has logged as errors since it was asked last: what a policy blocked, and the like."""
        found = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [one["message"] for one in found if one["level"] == "SEVERE"]

    def picture(self) -> bytes:
        """Return what the window shows, as a PNG."""
        return base64.b64decode(self._ask("GET", f"{self._session}/screenshot"))


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a new profile, and end it behind the block."""
    assert DRIVER
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert driver.stdout
        told = next(found for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        with tempfile.TemporaryDirectory(prefix="sct", ignore_cleanup_errors=True) as folder:
            window = Browser(f"http://127.0.0.1:{told[1]}")
            window.open(Path(folder))
            try:
                yield window
            finally:
                window.close()
    finally:
        driver.terminate()
        driver.wait(WAIT_S)
        if driver.stdout:
            driver.stdout.close()
