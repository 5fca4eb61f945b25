r"""The examples and the README's code run as they stand, and a user's own piece is short."""

import ast
import pytest
import re
import runpy
import sys
import torch

from fokker.data.picture import read_png
from fokker.runs.config import DATA
from fokker.tasks import TASKS
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    r"""Runs a script in an empty folder and returns what it prints."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path / "cache"))

    def run(path, *args):
        monkeypatch.setattr(sys, "argv", [str(path), *args])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


def example(name):
    return ROOT / f"examples/{name}.py"


def shorter(code, **counts):
    r"""The code with fewer training steps, each replacement made exactly once."""
    for old, new in counts.values():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def test_plane(run):
    out = run(example("plane"), "--quick")
    assert "KL" in out and "200 points drawn" in out
    code = example("plane").read_text().split('"""')[2]
    assert sum(bool(line.strip()) and not line.startswith(("import", "from"))
               for line in code.splitlines()) <= 20  # fmt: skip


def test_tabular(run):
    out = run(example("tabular"), "--quick")
    assert len(re.findall(r"healthy -?\d+", out)) == 2


def test_denoise(run, tmp_path):
    out = run(example("denoise"), "--quick")
    estimate, before = (float(re.search(p, out)[1]) for p in (r"noise (\S+)", r"RMSE (\S+)"))
    assert estimate == pytest.approx(0.5, abs=0.15) and before == pytest.approx(0.5, abs=0.05)
    assert {read_png(tmp_path / f"{n}.png").shape for n in ("noisy", "denoised")} == {(1, 48, 80)}


def test_images(run, tmp_path):
    assert "4 digits" in run(example("images"), "--quick")
    assert read_png(tmp_path / "digits.png").shape == (1, 2 * 16 + 2, 2 * 16 + 2)


def test_compose(run):
    out = run(example("compose"), "--quick")
    entropy = {line.split("entropy")[0].strip(): float(line.split()[-2])
               for line in out.splitlines()}  # fmt: skip
    assert entropy["moons and circles"] < entropy["moons"] < entropy["moons, hot"]


def test_own_energy(run):
    out = run(example("own_energy"))
    learned, true = (ast.literal_eval(m) for m in re.findall(r"\[\[.*\]\]", out))
    assert learned[0][0] == pytest.approx(true[0][0], rel=0.3)
    assert learned[1][1] == pytest.approx(true[1][1], rel=0.3)


def test_own_diffusion(run):
    assert float(run(example("own_diffusion")).split()[-1]) < 0.2


def test_own_objective(run):
    assert float(run(example("own_objective")).split()[-2]) < 0.1


def test_windows(run):
    out = run(example("windows"), "--quick")
    TASKS.pop(DATA.pop("windows"))  # tests after this one register it again
    assert len(re.findall(r"neighbors differ by \d", out)) == 2 and "report of" in out


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_it_shows_and_how_long_it_takes(name):
    code = example(name).read_text()
    assert re.search(r"[Aa]bout (\d+ s|a minute) on one core", ast.get_docstring(ast.parse(code)))
    assert f"def test_{name}(" in Path(__file__).read_text()
    assert f"../examples/{name}.py" in (ROOT / "docs/examples.md").read_text()


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("own_energy", "Ellipse"),
        ("own_diffusion", "to_the_ring"),
        ("own_objective", "NoiseContrastive"),
    ],
)
def test_a_piece_of_your_own_is_under_15_lines(name, piece):
    tree = ast.parse(example(name).read_text())
    (node,) = (n for n in tree.body if getattr(n, "name", None) == piece)
    assert node.end_lineno - node.lineno + 1 < 15


def readme():
    r"""The code of the README, and what it says that this prints."""
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"prints, up to rounding:\n\n((?:    .*\n)+)", text)
    return code, [line.strip() for line in printed.splitlines()]


def words(line):
    return re.sub(r"-?\d+\.\d+", "NUMBER", line)


def test_readme_code(run, tmp_path):
    code, printed = readme()
    code = shorter(
        code,
        steps=("steps=800, batch=256", "steps=2, batch=16"),
        evaluate=("evaluate=400", "evaluate=1"),
        width=("width=64", "width=8"),
    )
    (tmp_path / "readme.py").write_text(code)
    out = run(tmp_path / "readme.py").splitlines()
    assert [words(line) for line in out] == [
        words(line).replace("step 400", "step 1").replace("step 800", "step 2") for line in printed
    ]


@pytest.mark.slow
def test_readme_code_prints_what_the_readme_says(run, tmp_path):
    code, printed = readme()
    (tmp_path / "readme.py").write_text(code)
    out = run(tmp_path / "readme.py").splitlines()
    assert [words(line) for line in out] == [words(line) for line in printed]
    numbers = lambda lines: [float(n) for n in re.findall(r"-?\d+\.\d+", " ".join(lines))]
    assert numbers(out) == pytest.approx(numbers(printed), rel=0.5)
    assert numbers(out)[1] <= 0.01  # KL at the end, in nats
