r"""Wide tables: no likelihood that is printed beats the entropy.

Tables are drawn from laws of known density, in 1 to 300 columns: independent normals, correlated
normals, a mixture of two, and normals offset by 3e7. Both kinds of energy of `fokker train table`
are trained on each, a mixture under a correction with its defaults and a network for a few steps,
and the likelihood is printed or not. Where it is printed, the mean over the
test rows of :math:`\log p_{true} - \log p_{model}` estimates a KL divergence, which is not
negative; a fault is a mean below zero by more than four standard errors, that of :math:`\log Z`
among them.

    python studies/trust/wide_tables.py --out results/trust.json
"""

import argparse
import itertools
import math
import torch

from collections.abc import Callable
from dataclasses import replace
from fokker import fit
from fokker.analytic import GaussianMixture
from fokker.files import save_npy
from fokker.runs.config import Config, Network, Optimization
from fokker.runs.presets import mixture_config, table_config
from fokker.tasks.table import PointEnergy
from pathlib import Path
from studies.trust import record
from tempfile import TemporaryDirectory
from torch import Tensor

DIMENSIONS = (1, 2, 3, 5, 10, 20, 30, 60, 100, 200, 300)
ROWS = 600
KINDS = ("mixture", "network")
ERRORS = 4.0


def laws(dim: int) -> dict[str, tuple[GaussianMixture, float]]:
    r"""Returns laws by name, each with an offset of the columns."""
    generator = torch.Generator().manual_seed(dim)
    eye, zero = torch.eye(dim).double(), torch.zeros(1, dim).double()
    a = torch.randn(dim, dim, generator=generator).double()
    two = torch.cat((zero - 2, zero + 2))
    return {
        "independent normals": (GaussianMixture(zero, eye), 0.0),
        "correlated normals": (GaussianMixture(zero, a @ a.T / dim + 0.1 * eye), 0.0),
        "a mixture of two": (GaussianMixture(two / math.sqrt(dim), 0.5 * eye), 0.0),
        "normals offset by 3e7": (GaussianMixture(zero, eye), 3e7),
    }


def gain(energy: PointEnergy, test: Tensor, law: GaussianMixture, offset: float) -> Tensor:
    r"""Returns by how much each row is more likely under the model than in truth."""
    with torch.no_grad():
        return law(test - offset).double() - energy(test).double()


def config_of(kind: str, path: Path, steps: int, seed: int) -> Config:
    r"""Returns the configuration of a kind of energy on a table."""
    if kind == "mixture":
        return replace(mixture_config(str(path)), seed=seed)
    return replace(
        table_config(str(path)),
        network=Network(width=64, layers=3, confine=3.0),
        optimization=Optimization(steps=steps, batch=200, rate=3e-3),
        evaluate=steps // 2,
        seed=seed,
    )


def judge(
    kind: str, law: GaussianMixture, offset: float, steps: int, seed: int
) -> tuple[float, float] | str:
    r"""Returns the KL divergence of an energy trained on a table, and its standard error; why it
    is not known, if no likelihood is printed."""
    generator = torch.Generator().manual_seed(1000 * law.means.shape[1] + seed)
    x = law.sample(ROWS, generator) + offset
    with TemporaryDirectory() as place:
        save_npy(Path(place, "x.npy"), x.numpy())
        run = fit(config_of(kind, Path(place, "x.npy"), steps, seed), Path(place, "run"))
        task = run.loaded()
        test = task.values[task.rows["test"]]
    assert isinstance(run.energy, PointEnergy)
    if not run.energy.normalized:
        return run.energy.unknown
    rows = gain(run.energy, test, law, offset)
    spread = float(rows.std()) / math.sqrt(len(rows))
    return -float(rows.mean()), math.hypot(spread, run.judged["log_z_error"])


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dimensions", type=int, nargs="+", default=DIMENSIONS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="training steps of a network")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    printed, silent, faults = 0, 0, []
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    cases = itertools.product(given.dimensions, KINDS, range(given.seeds))
    for dim, kind, seed in cases:
        for name, (law, offset) in laws(dim).items():
            case = f"D = {dim}, {name}, {kind}, seed {seed}"
            found = judge(kind, law, offset, given.steps, seed)
            if isinstance(found, str):
                silent += 1
                say(f"{case}: not known: {found}")
                continue
            kl, error = found
            printed += 1
            say(f"{case}: KL {kl:.3f} ± {error:.3f} nats")
            if kl < -ERRORS * error:
                faults.append(case)
    count = printed + silent
    detail = (
        f"{count} energies of tables of known entropy in {min(given.dimensions)} to"
        f" {max(given.dimensions)} columns: {printed} likelihoods printed, {silent} said not to be"
        f" known; {len(faults)} beat the entropy by more than {ERRORS:g} standard errors"
    )
    say("\n".join([detail, *faults]))
    if given.out is not None:
        row = {"value": len(faults), "unit": "faults", "detail": detail}
        some = " ".join(map(str, given.dimensions))
        only = "" if tuple(given.dimensions) == DIMENSIONS else f" --dimensions {some}"
        command = f"python studies/trust/wide_tables.py --steps {given.steps}{only}"
        command += f" --out {given.out}"
        record(given.out, "wide-tables", [row], command)
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
