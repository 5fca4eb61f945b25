r"""The studio in a real browser: train, compare, scrub, draw, diffuse, export."""

import itertools
import math
import pytest
import shutil
import subprocess
import sys
import time
import torch

from fokker import load
from fokker.data import Circles
from fokker.studio.request import FEWEST_POINTS

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
MAGMA_TOP, MAGMA_LOW = (252, 253, 191), (0, 0, 4)


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def address(runs):
    command = [sys.executable, "-m", "fokker", "studio", "--port", "0", "--no-browser"]
    server = subprocess.Popen(
        [*command, "--runs", str(runs)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = server.stdout.readline()
    assert line.startswith("studio: http://127.0.0.1:"), line + server.stderr.read()
    yield line.split()[1]
    server.terminate()
    rest = server.communicate(timeout=20)
    assert "Traceback" not in rest[1], rest[1]


@pytest.fixture(scope="module")
def page(address):
    with api.sync_playwright() as playwright:
        # as root, as in a container, chromium has no sandbox
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        faults = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda r: (
                r.url.startswith((address.split("?")[0], "data:", "ws:", "blob:"))
                or faults.append(r.url)
            ),
        )
        page.goto(address)
        until(page, "document.querySelectorAll('#data option').length > 8")
        # small and short: this is about the page
        page.evaluate(
            "document.querySelectorAll('#settings details').forEach((d) => (d.open = true))"
        )
        yield page
        assert not faults, faults  # errors, or calls to any other place
        browser.close()


def until(page, test, seconds=40):
    deadline = time.monotonic() + seconds
    while not page.evaluate(test):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"expected {test}; {page.inner_text('#status')} {page.inner_text('#alert')}"
            )
        time.sleep(0.03)


def train(page, steps):
    page.locator("#optimization-form").get_by_label("steps", exact=True).fill(str(steps))
    page.locator("#network-form").get_by_label("width", exact=True).fill("16")
    page.click("#train")
    until(page, "document.documentElement.dataset.busy === 'true'")
    until(page, "document.documentElement.dataset.busy === 'false'")
    assert page.is_hidden("#alert"), page.inner_text("#alert")


def pixel(page, panel, x, y, half):
    r"""Returns the color of the pixel at a point of the plane."""
    return tuple(
        page.evaluate(
            """([panel, u, v]) => {
                const canvas = document.querySelector(`#${panel} canvas`);
                const [i, j] = [Math.floor(u * canvas.width), Math.floor(v * canvas.height)];
                const { data } = canvas.getContext("2d").getImageData(i, j, 1, 1);
                return Array.from(data.slice(0, 3));
            }""",
            [panel, (x / half + 1) / 2, (1 - y / half) / 2],
        )
    )


def picture(page, panel):
    return page.evaluate(
        "(panel) => document.querySelector(`#${panel} canvas`).toDataURL()", panel
    )


def number(page, panel, key):
    return float(page.get_attribute(f"#{panel} [data-key={key}]", "data-value"))


def near(a, b, most=12):
    return max(abs(i - j) for i, j in zip(a, b, strict=True)) <= most


def test_train(page):
    page.select_option("#data", "circles")
    page.check("#show-data")
    page.uncheck("#show-data")
    train(page, 40)
    assert page.get_attribute("#panel-0", "data-step") == "40"
    assert int(page.get_attribute("#panel-0", "data-frames")) >= 5
    assert 0 < number(page, "panel-0", "kl") < 20

    # the truth: bright on the inner circle, of radius 1.5 / 4, which is its densest; dark between
    data = Circles()
    half = 1.1 * data.box(3.0)
    for angle in (0.0, 1.0, 2.5, 4.0):
        on = pixel(page, "panel-data", 0.375 * math.cos(angle), 0.375 * math.sin(angle), half)
        assert near(on, MAGMA_TOP, 25), on
    assert near(pixel(page, "panel-data", 0.98 * half, 0.98 * half, half), MAGMA_LOW)
    outer = pixel(page, "panel-data", 0.75, 0, half)
    assert sum(MAGMA_LOW) + 100 < sum(outer) < sum(MAGMA_TOP) - 100, outer


def test_layers_change_the_picture(page):
    seen = {picture(page, "panel-0")}
    for box in ("#show-score", "#show-particles", "#show-data", "input[value=energy]"):
        page.click(box)
        seen.add(picture(page, "panel-0"))
    assert len(seen) == 5
    for box in ("#show-score", "#show-particles", "#show-data", "input[value=density]"):
        page.click(box)


def test_compare_and_scrub(page):
    page.check("#compare")
    page.select_option("#method-1", "Score matching")
    train(page, 24)
    ends = [picture(page, f"panel-{i}") for i in (0, 1)]
    assert ends[0] != ends[1]
    kl = number(page, "panel-0", "kl")
    page.focus("#scrub")
    page.keyboard.press("Home")
    assert page.inner_text("#scrub-step") == "0 of 24"
    assert [page.get_attribute(f"#panel-{i}", "data-step") for i in (0, 1)] == ["0", "0"]
    # one seed: both sides begin as the same energy, with the same particles
    assert picture(page, "panel-0") == picture(page, "panel-1") != ends[0]
    assert number(page, "panel-0", "kl") == number(page, "panel-1", "kl") != kl
    page.click("#live")
    assert [picture(page, f"panel-{i}") for i in (0, 1)] == ends
    assert number(page, "panel-0", "kl") == kl


def test_diffuse(page):
    page.focus("#tab-train")
    page.keyboard.press("ArrowRight")
    until(page, "!document.getElementById('evolve-time').disabled")
    page.focus("#evolve-time")
    errors, pictures = [], set()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
        errors.append(float(page.get_attribute("#evolve-value", "data-error")))
        pictures.add(picture(page, "evolve-panels figure:first-child"))
    assert all(b > a for a, b in itertools.pairwise(errors))
    assert len(pictures) > 6


def test_meet(page):
    page.click("#tab-meet")
    until(page, "!document.getElementById('meet-time').disabled")
    read = lambda: [
        float(page.get_attribute("#meet-value", f"data-{n}")) for n in ("langevin", "diffusion")
    ]
    early = read()
    assert early[0] == pytest.approx(early[1], rel=0.02)  # the same KL at time zero
    page.focus("#meet-time")
    page.keyboard.press("End")
    assert all(b < 0.7 * a for a, b in zip(early, read(), strict=True))


def test_export(page, runs):
    page.click("#tab-train")
    page.click("#panel-1 .save")
    page.wait_for_selector("#exported[open]")
    path = page.inner_text("#exported-path")
    assert path.startswith(str(runs))
    run = load(path)
    assert run.step == 24 and type(run.config.objective).__name__ == "ScoreMatching"
    assert (run.path / "script.py").read_text() == page.text_content("#exported-script")
    assert number(page, "panel-1", "kl") == pytest.approx(run.judged["kl"], rel=0.05)
    page.keyboard.press("Escape")
    assert page.is_hidden("#exported")


def test_draw(page):
    page.uncheck("#compare")
    page.select_option("#data", "draw your own points")
    page.click("#train")
    until(page, "!document.getElementById('alert').hidden")
    assert "drawn points, got 0 points" in page.inner_text("#alert-text")
    assert page.inner_text("#status") == "Not trained"
    until(page, "document.documentElement.dataset.busy === 'false'")
    page.click("#alert-close")

    canvas = page.locator("#panel-data canvas")
    before = picture(page, "panel-data")
    box = canvas.bounding_box()
    at = lambda x, y: (box["x"] + box["width"] * x, box["y"] + box["height"] * y)
    page.mouse.move(*at(0.25, 0.3))
    page.mouse.down()
    for k in range(1, 20):
        page.mouse.move(*at(0.25 + 0.025 * k, 0.3 + 0.15 * math.sin(k / 3)))
    page.mouse.up()
    count = lambda: int(page.inner_text("#count").split()[0])
    drawn = count()
    assert drawn >= FEWEST_POINTS and picture(page, "panel-data") != before

    canvas.focus()
    for key in ("ArrowLeft", "ArrowDown", "Space", "ArrowUp", "Space"):
        page.keyboard.press(key)
    assert count() == drawn + 2
    page.keyboard.press("Backspace")
    assert count() == drawn + 1
    train(page, 30)
    assert math.isfinite(number(page, "panel-0", "nll_validation"))


def test_theme_focus_and_labels(page):
    ground = lambda: page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    light = ground()
    page.click("#theme")
    dark = ground()
    shade = lambda text: sum(int(v) for v in text[4:-1].split(","))
    assert shade(light) > 600 and shade(dark) < 200
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(outline[:-2]) >= 2
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, canvas")].filter((node) =>
            !node.labels?.length && !node.getAttribute("aria-label") && !node.textContent.trim()
        ).map((node) => node.outerHTML)"""
    )
    assert nameless == []


def test_a_narrow_page_does_not_scroll_sideways(page):
    page.set_viewport_size({"width": 360, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for view in ("train", "evolve", "meet"):
        page.click(f"#tab-{view}")
        beyond = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, canvas, h2, p")].filter(
                (node) => node.getBoundingClientRect().right > 361).map((node) => node.outerHTML)"""
        )
        assert not beyond
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
