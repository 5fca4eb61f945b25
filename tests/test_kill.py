r"""A run that is killed at random moments ends as if it had been left alone."""

import pytest
import subprocess
import sys

from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "studies/trust/kill.py"


@pytest.mark.slow
def test_three_kills_are_survived():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--kills", "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3 kills in" in done.stdout and "all equal bit for bit" in done.stdout
