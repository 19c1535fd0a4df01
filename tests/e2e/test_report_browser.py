"""A report in a real browser, with the network blocked: the charts draw, nothing is loaded, nothing complains."""

import json
import os
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import examined
from ampwise.report.html import render_html

pytestmark = pytest.mark.browser

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
)


@pytest.fixture(scope="module")
def browser():
    """Chromium's path; without it the tests are skipped, but in CI they fail."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("CI"):
        pytest.fail("CI must have Chromium; install Debian's package chromium")
    if found is None:
        pytest.skip("no Chromium found; install Debian's package chromium to run the browser tests")
    return found


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a page and returns its document, what its console said and the addresses the browser asked for."""

    def visit(page, *flags):
        log = tmp_path / "net.json"
        profile = tmp_path / "profile"
        own = [f"--user-data-dir={profile}", f"--log-net-log={log}", "--dump-dom"]
        done = subprocess.run(
            [browser, *_FLAGS, *own, *flags, page.as_uri()],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        shutil.rmtree(profile, ignore_errors=True)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, console, _asked(log)

    return visit


def _asked(log):
    """The http addresses that the page asked for; the browser's own services are "not an origin"."""
    events = [event.get("params", {}) for event in json.loads(log.read_text("utf-8", errors="replace"))["events"]]
    asked = {event.get("url", "") for event in events if event.get("initiator", "not an origin") != "not an origin"}
    return {url for url in asked if re.match(r"(https?|wss?):", url)}


def _write(folder, recording):
    page = folder / "report.html"
    page.write_text(render_html(recording), "utf-8")
    return page


def _num_drawn(document):
    """How many traces the page found to have a size on the screen."""
    return int(re.search(r'<html[^>]*data-traces-drawn="(\d+)"', document)[1])


@pytest.mark.parametrize(
    ("name", "num_traces"),
    [
        ("normal", 4 + 2 + 1),  # a line a run, a box a variant, the bars
        ("diverged", 2 + 2 + 2 + 2 + 1),  # and crosses and triangles, and the loss scale with its triangles
        ("crashed", 2 + 2 + 1),
        ("hostile", 2 + 2 + 1),
        ("empty", 0),
    ],
)
def test_the_charts_draw_and_nothing_is_loaded(made, visit, tmp_path, name, num_traces):
    document, console, asked = visit(_write(tmp_path, getattr(made, name)()))
    assert _num_drawn(document) == num_traces
    assert console == []
    assert asked == set()


def _write_examined(folder, recording, diagnosis):
    page = folder / "report.html"
    page.write_text(render_html(recording, diagnosis), "utf-8")
    return page


def test_an_examination_draws_what_can_be_seen_and_loads_nothing(visit, tmp_path):
    page = _write_examined(tmp_path, examined.faulty(), examined.FAULTY)
    document, console, asked = visit(page)
    lines, maps, bars, areas = 2 + 2, 2, 8, 2  # loss and step time of two runs; a map's two colours; formats; memory
    marks = 1 + 1 + 1 + 1 + 1  # the cross, the skips twice, the scale's line, the module without a finite number
    assert _num_drawn(document) == lines + maps + bars + areas + marks
    assert console == []
    assert asked == set()


def test_a_hostile_examination_does_not_come_to_life(visit, tmp_path):
    document, console, _ = visit(_write_examined(tmp_path, *examined.hostile()))
    found = _Tags(document).found
    assert not {"img", "bold"} & {tag for tag, _ in found}
    assert not [tag for tag, names in found if any(name.startswith("on") for name in names)]
    assert console == []


def test_another_map_is_drawn_when_it_is_asked_for(visit, tmp_path):
    page = _write_examined(tmp_path, examined.faulty(), examined.FAULTY)
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<iframe src='report.html' width=390 height=3000></iframe><script>"
        "const frame = document.querySelector('iframe');"
        "frame.onload = () => setTimeout(() => { const page = frame.contentDocument;"
        "page.querySelectorAll('[data-choices] button')[1].click();"
        "setTimeout(() => { const shown = [...page.querySelectorAll('[data-figure^=exponents]')];"
        "const widths = shown.map((one) => one.querySelectorAll('.hm').length > 0 && one.offsetWidth > 0);"
        "document.title = `${widths} ${page.documentElement.scrollWidth}`; }, 2000); }, 3000);"
        "</script>",
        "utf-8",
    )
    document, _, _ = visit(frame, "--allow-file-access-from-files")
    assert page.exists()
    assert re.search(r"<title>(.*?)</title>", document)[1] == "false,true,false,false,false 390"


class _Tags(HTMLParser):
    """The tags of a document, with the names of their attributes."""

    def __init__(self, document):
        super().__init__()
        self.found = []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, [name for name, _ in attrs]))


def test_no_hostile_name_comes_to_life(made, visit, tmp_path):
    document, console, _ = visit(_write(tmp_path, made.hostile()))
    found = _Tags(document).found
    assert "svg" in {tag for tag, _ in found}
    assert not {"img", "bold"} & {tag for tag, _ in found}
    assert not [tag for tag, names in found if any(name.startswith("on") for name in names)]
    assert console == []


def _smuggle(page):
    """What an escape forgotten somewhere would let in."""
    smuggled = "<script>document.title = 'owned'</script><img src='http://example.com/x.png'>"
    page.write_text(page.read_text("utf-8").replace("</main>", f"{smuggled}</main>"), "utf-8")


def test_the_policy_stops_what_is_smuggled_in(made, visit, tmp_path):
    page = _write(tmp_path, made.normal())
    _smuggle(page)
    document, console, asked = visit(page)
    assert "<title>owned" not in document
    assert sum("Content Security Policy" in line for line in console) >= 2
    assert asked == set()


def test_without_the_policy_it_would_be_seen(made, visit, tmp_path):
    page = _write(tmp_path, made.normal())
    _smuggle(page)
    page.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8")), "utf-8")
    document, _, asked = visit(page)
    assert "<title>owned" in document
    assert asked == {"http://example.com/x.png"}


def _size(png):
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_picture_is_taken(made, visit, tmp_path, scheme):
    picture = tmp_path / f"{scheme}.png"
    value = {"dark": 0, "light": 1}[scheme]
    page = _write(tmp_path, made.normal())
    visit(page, "--window-size=1280,1800", f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={value}")
    assert _size(picture)[0] == 1280
    assert picture.stat().st_size > 40_000  # an empty page compresses to a tenth of that
    keep = os.environ.get("AMPWISE_SCREENSHOTS")
    if keep:
        shutil.copy(picture, Path(keep) / f"report-{scheme}.png")


def test_on_a_phone_nothing_is_wider_than_the_screen(made, visit, tmp_path):
    _write(tmp_path, made.repeated())
    # The frame gives the page a phone's width; the browser's own windows are never that narrow.
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<iframe src='report.html' width=390 height=3000></iframe><script>"
        "const frame = document.querySelector('iframe');"
        "frame.onload = () => setTimeout(() => { const page = frame.contentDocument.documentElement;"
        "document.title = `${page.scrollWidth} of ${page.clientWidth}, ${page.dataset.tracesDrawn} drawn`; }, 3000);"
        "</script>",
        "utf-8",
    )
    document, _, _ = visit(frame, "--allow-file-access-from-files")
    assert re.search(r"<title>(.*?)</title>", document)[1] == f"390 of 390, {24 + 4 + 1} drawn"
