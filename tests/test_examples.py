r"""The examples and the README's code run as they stand, and a user's own piece is short."""

import ast
import os
import pytest
import re
import subprocess
import sys

from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(code, tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def shorter(code, **counts):
    r"""The code with fewer training steps, each replacement made exactly once."""
    for old, new in counts.values():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def test_own_energy(tmp_path):
    out = run((ROOT / "examples/own_energy.py").read_text(), tmp_path)
    learned, true = (ast.literal_eval(m) for m in re.findall(r"\[\[.*\]\]", out))
    assert learned[0][0] == pytest.approx(true[0][0], rel=0.3)
    assert learned[1][1] == pytest.approx(true[1][1], rel=0.3)


def test_own_diffusion(tmp_path):
    out = run((ROOT / "examples/own_diffusion.py").read_text(), tmp_path)
    assert float(out.split()[-1]) < 0.2


def test_own_objective(tmp_path):
    out = run((ROOT / "examples/own_objective.py").read_text(), tmp_path)
    assert float(out.split()[-2]) < 0.1


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("own_energy", "Ellipse"),
        ("own_diffusion", "to_the_ring"),
        ("own_objective", "NoiseContrastive"),
    ],
)
def test_a_piece_of_your_own_is_under_15_lines(name, piece):
    tree = ast.parse((ROOT / f"examples/{name}.py").read_text())
    (node,) = (n for n in tree.body if getattr(n, "name", None) == piece)
    assert node.end_lineno - node.lineno + 1 < 15


def test_readme_code(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    code = shorter(
        "\n".join(blocks),
        steps=("range(5000)", "range(3)"),
        batch=("data.sample(1000)", "data.sample(64)"),
        chain=(
            "warmup=500).run(energy, start, steps=500)",
            "warmup=5).run(energy, start, steps=5)",
        ),
    )
    assert "PlanarReport" in run(code, tmp_path)
