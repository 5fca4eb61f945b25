r"""How fast the studio draws while it trains, how large its page is, and its pictures.

The server is started as a user would start it, and a real browser (Chromium, without a window)
opens the page and presses train, with the settings that the page offers, first one objective and
then two side by side. An update is a frame of new weights that the page has drawn; they are
counted over the seconds in which all sides train, and the slower side is reported. Server, workers
and browser share the cores of one machine, with whatever else runs there; the load before, and the
priority that Linux gives to the session (`echo -15 > /proc/self/autogroup`, as root, puts it
before others), are written down. The size of the page is that of all its files, each compressed by
gzip.

    python studies/trust/studio.py --out results/studio.json
    python studies/trust/studio.py --figures docs/figures
"""

import argparse
import contextlib
import gzip
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable, Generator
from fokker.studio.server import STATIC
from pathlib import Path
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table
from studies import results

SECONDS = 10.0  # of a measurement
SECOND = "Score matching"  # the method beside the first


def page_bytes(folder: Path = STATIC) -> int:
    r"""Returns the size of the page over the wire."""
    files = [path for path in folder.iterdir() if path.name != "build.json"]
    return sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in files)


@contextlib.contextmanager
def studio(
    size: tuple[int, int] = (1360, 860), scheme: str = "light"
) -> Generator[Page, None, None]:
    r"""Starts a server and a browser, and yields the open page."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise ValueError("expected chromium on this machine, got none: apt-get install chromium")
    command = [sys.executable, "-m", "fokker", "studio", "--port", "0", "--no-browser"]
    with tempfile.TemporaryDirectory() as runs, sync_playwright() as playwright:
        server = subprocess.Popen([*command, "--runs", runs], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[1]
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(
                viewport={"width": size[0], "height": size[1]}, color_scheme="light"
            )
            page.goto(address)
            wait(lambda: page.locator("#data option").count() > 8)
            time.sleep(4)  # a worker wakes
            yield page
            browser.close()
        finally:
            server.terminate()
            server.wait(20)


def wait(test: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected the page to get on within {seconds:g} s, got nothing")
        time.sleep(0.05)


def begin(page: Page, compare: bool, steps: int | None = None) -> None:
    r"""Presses train."""
    page.set_checked("#compare", compare)
    if compare:
        page.select_option("#method-1", SECOND)
    if steps is not None:
        page.click("summary >> text=Optimization")
        page.locator("#optimization-form").get_by_label("steps", exact=True).fill(str(steps))
        page.click("summary >> text=Optimization")
    page.click("#train")


def measure(page: Page, compare: bool) -> results.Row:
    r"""Returns the updates a second of the slower side."""
    begin(page, compare, steps=20_000)
    sides = range(2 if compare else 1)
    read = lambda name: [int(page.get_attribute(f"#panel-{i}", name) or 0) for i in sides]
    wait(lambda: min(read("data-step")) >= 10)
    load = os.getloadavg()[0]
    start, frames, steps = time.perf_counter(), read("data-frames"), read("data-step")
    time.sleep(SECONDS)
    lapse = time.perf_counter() - start
    updates = [(b - a) / lapse for a, b in zip(frames, read("data-frames"), strict=True)]
    trained = [(b - a) / lapse for a, b in zip(steps, read("data-step"), strict=True)]
    page.click("#stop")
    wait(lambda: page.evaluate("document.documentElement.dataset.busy") == "false")
    return {
        "sides": len(sides),
        "updates_per_second": round(min(updates), 1),
        "steps_per_second": round(min(trained), 1),
        "seconds": round(lapse, 1),
        "load_before": round(load, 2),
    }


def done(page: Page) -> None:
    wait(lambda: page.evaluate("document.documentElement.dataset.busy") == "false")


def seek(page: Page, slider: str, index: int) -> None:
    page.fill(slider, str(index))
    page.dispatch_event(slider, "input")


def stroke(page: Page) -> None:
    r"""Draws a spiral by hand."""
    box = page.locator("#panel-data canvas").bounding_box()
    assert box is not None
    for k in range(90):
        radius, angle = 0.06 + 0.0031 * k, 0.13 * k
        x, y = 0.5 + radius * math.cos(angle), 0.5 + radius * math.sin(angle)
        page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
        if k == 0:
            page.mouse.down()
    page.mouse.up()


def figures(folder: Path, names: list[str]) -> None:
    r"""Takes the pictures of the documentation, all of them if none is named."""

    def shot(page: Page, name: str) -> None:
        path = folder / f"studio-{name}.png"
        page.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)  # a third of it

    def spirals(page: Page) -> None:
        page.select_option("#data", "2spirals")
        begin(page, compare=False)
        done(page)
        shot(page, "train-light")
        page.click("#theme")
        shot(page, "train-dark")
        page.click("#tab-evolve")
        wait(lambda: page.locator("#evolve-time").is_enabled())
        seek(page, "#evolve-time", 11)
        shot(page, "diffuse")

    def draw(page: Page) -> None:
        page.select_option("#data", "draw your own points")
        stroke(page)
        begin(page, compare=False)
        done(page)
        shot(page, "draw")

    def compare(page: Page) -> None:
        page.click("#theme")
        begin(page, compare=True)
        done(page)
        shot(page, "compare")
        seek(page, "#scrub", 200)
        page.click("#tab-meet")
        wait(lambda: page.locator("#meet-time").is_enabled())
        seek(page, "#meet-time", 8)
        shot(page, "meet")

    scenes = {"spirals": spirals, "draw": draw, "compare": compare}
    for name in names:
        if name not in scenes:
            raise ValueError(f"expected one of {', '.join(scenes)}, got {name!r}")
    for name in names or scenes:
        with studio() as page:
            scenes[name](page)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--figures", type=Path, default=None)
    parser.add_argument("scenes", nargs="*", help="spirals, draw, compare; all if none")
    given = parser.parse_args(args)
    if given.figures is not None:
        figures(given.figures, given.scenes)
        return
    rows = []
    with studio() as page:
        for compare in (False, True):
            rows.append({**measure(page, compare), "page_gzip_bytes": page_bytes()})
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)
    if given.out is not None:
        command = f"python studies/trust/studio.py --out {given.out}"
        group = Path("/proc/self/autogroup")
        config = {
            "data": "rings",
            "objectives": ["DCD at many times", SECOND],
            "priority": group.read_text().strip() if group.exists() else None,
        }
        results.save(given.out, rows, command, config)


if __name__ == "__main__":
    main()
