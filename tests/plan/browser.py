"""A headless Chromium for tests of pages, driven by ChromeDriver over plain HTTP: the W3C's protocol, no library."""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = dict(Enter="\ue007", Escape="\ue00c", Down="\ue015", Up="\ue013", Left="\ue012", Right="\ue014", Tab="\ue004",
            Home="\ue011", End="\ue010")  # fmt: skip

_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --force-color-profile=srgb "
    # nothing outside this machine can be reached, whatever a page may ask for
    "--host-resolver-rules=MAP\t*\t~NOTFOUND"
).split(" ")


def why_not():
    """Why there is no browser here; empty where there is one."""
    driver, browser = _driver(), _browser()
    missing = [name for name, found in (("chromedriver", driver), ("chromium", browser)) if found is None]
    if missing:
        return f"no {' and no '.join(missing)} on this machine; on Debian: apt-get install chromium chromium-driver"
    return ""


def _driver():
    return os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")


def _browser():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One window of a browser."""

    def __init__(self, address, session):
        self._address = f"{address}/session/{session}"

    def open(self, path):
        self.do("POST", "url", url=path.as_uri())

    def do(self, method, command, **given):
        return _asked(method, f"{self._address}/{command}", given if method == "POST" else None)

    def run(self, script, *args):
        """What a function's body in JavaScript returns."""
        return self.do("POST", "execute/sync", script=script, args=list(args))

    def find(self, css):
        return self.do("POST", "element", using="css selector", value=css)[ELEMENT]

    def click(self, css):
        """A real click: it fails where something else lies over the element."""
        self.do("POST", f"element/{self.find(css)}/click")

    def press(self, *keys):
        """Keys pressed one after the other, each by its name or as it is typed."""
        for key in keys:
            value = KEYS.get(key, key)
            steps = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
            self.do("POST", "actions", actions=[{"type": "key", "id": "keys", "actions": steps}])

    def text(self, css):
        return self.run("return document.querySelector(arguments[0]).textContent", css)

    def size(self, width, height):
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def scheme(self, name):
        """As if the user's system were light or dark."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def devtools(self, command, **params):
        return self.do("POST", "goog/cdp/execute", cmd=command, params=params)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.do("GET", "screenshot")))

    def complaints(self):
        """What the browser has written to its console since it was asked last."""
        return [entry["message"] for entry in self.do("POST", "se/log", type="browser")]


@contextlib.contextmanager
def browser(folder):
    """A browser with a profile of its own in a folder."""
    log = (folder / "driver.log").open("w+")
    driver = subprocess.Popen([_driver(), "--port=0"], stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        address = f"http://127.0.0.1:{_port(folder / 'driver.log')}"
        profile = f"--user-data-dir={folder / 'profile'}"
        options = {"binary": _browser(), "args": [*(o.replace("\t", " ") for o in _OPTIONS), profile]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = _asked("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        yield Browser(address, session)
        _asked("DELETE", f"{address}/session/{session}")
    finally:
        driver.terminate()
        driver.wait(timeout=20)
        log.close()


def _port(log):
    for _ in range(200):
        if found := re.search(r"started successfully on port (\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"ChromeDriver did not start: {log.read_text()}")


def _asked(method, url, given=None):
    body = json.dumps(given).encode() if given is not None else None
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.loads(error.read())["value"]["message"]) from None
