r"""The tables of the README and the docs, each made from a file in `results/`."""

__all__ = [
    "BENCH_HEADER",
    "DENOISING_HEADER",
    "GENERATION_HEADER",
    "NETWORKS_HEADER",
    "OPTIMA_HEADER",
    "PAPER_TABLE_2",
    "PUBLISHED",
    "TOY_HEADER",
    "bench_rows",
    "denoising_rows",
    "documents",
    "generation_rows",
    "minutes_to",
    "mixture_matrix",
    "networks_rows",
    "optima_rows",
    "pairs_of",
    "render",
    "toy_matrix",
    "toy_rows",
]

from pathlib import Path

from .cost import (
    BENCH_HEADER,
    bench_rows,
    bench_table,
    estimator_table,
    growth_table,
    kernel_table,
    variance_table,
)
from .densities import composition_table, one_pass_table, ood_table
from .house import demo_table, house_table, studio_table, trust_table
from .images import (
    DENOISING_HEADER,
    GENERATION_HEADER,
    NETWORKS_HEADER,
    PUBLISHED,
    denoising_rows,
    draw_table,
    fid_table,
    flow_table,
    generation_rows,
    generation_table,
    minutes_to,
    networks_rows,
    optimizer_table,
    pairs_of,
    pairs_table,
    schedule_table,
)
from .photographs import (
    coverage_table,
    noise_table,
    photograph_table,
    posterior_table,
    restoration_table,
)
from .planar import (
    OPTIMA_HEADER,
    PAPER_TABLE_2,
    TOY_HEADER,
    ablation_matrix,
    cd_matrix,
    mixture_matrix,
    optima_rows,
    toy_matrix,
    toy_rows,
)
from .sampling import (
    normalizer_table,
    refusal_table,
    rivals_table,
    samples_table,
    tables_table,
)
from .tabular import (
    anomaly_table,
    correction_table,
    fit_table,
    likelihood_table,
    size_table,
    trial_table,
)
from .. import results


def documents(root: Path) -> list[Path]:
    r"""Returns the documents that hold tables."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]


def render(text: str, root: Path) -> str:
    r"""Returns a document with its tables made anew from `results/`."""
    rows = lambda name: results.load(root / "results" / f"{name}.json")["rows"]
    tables = {
        "optima": lambda: results.markdown(OPTIMA_HEADER, optima_rows(rows("optima"))),
        "toy": lambda: toy_matrix(rows("toy")),
        "toy-full": lambda: results.markdown(TOY_HEADER, toy_rows(rows("toy"))),
        "mixtures": lambda: mixture_matrix(rows("mixtures")),
        "bench": lambda: bench_table(rows("bench"), gpu=True),
        "bench-cpu": lambda: bench_table(rows("bench"), gpu=False),
        "kernels": lambda: kernel_table(rows("bench"), "unet-15m"),
        "growth": lambda: growth_table(rows("bench")),
        "flows": lambda: flow_table(root / "results/flows.json"),
        "schedules": lambda: schedule_table(root / "results/flows.json"),
        "fid": lambda: fid_table(root / "results/fid.json"),
        "denoising": lambda: results.markdown(DENOISING_HEADER, denoising_rows(rows("denoising"))),
        "estimators": lambda: estimator_table(root / "results/estimators.json"),
        "ablation": lambda: ablation_matrix(rows("ablation")),
        "cd": lambda: cd_matrix(rows("cd")),
        "variance": lambda: variance_table(rows("variance")),
        "house": lambda: house_table(root / "results/house.json"),
        "demo": lambda: demo_table(root / "results/demo.json"),
        "trust": lambda: trust_table(root / "results/trust.json"),
        "scaling": lambda: trust_table(root / "results/trust.json", "scaling"),
        "generation": lambda: generation_table(root / "results/generation.json"),
        "pairs": lambda: pairs_table(rows("generation")),
        "draws": lambda: draw_table(rows("generation")),
        "networks": lambda: results.markdown(NETWORKS_HEADER, networks_rows(rows("networks"))),
        "optimizers": lambda: optimizer_table(root / "results/optimizers.json"),
        "normalizer": lambda: normalizer_table(rows("normalizer")),
        "normalizer-tables": lambda: tables_table(rows("normalizer")),
        "samples": lambda: samples_table(rows("samples")),
        "refusals": lambda: refusal_table(rows("samples")),
        "samplers": lambda: rivals_table(rows("samplers")),
        "tables": lambda: anomaly_table(root / "results/tables.json"),
        "tables-trials": lambda: trial_table(root / "results/tables_trials.json"),
        "tables-correction": lambda: correction_table(root / "results/tables_trials.json"),
        "likelihood-tables": lambda: likelihood_table(root / "results/likelihood_tables.json"),
        "tables-fits": lambda: fit_table(root / "results/tables_fits.json"),
        "tables-sizes": lambda: size_table(root / "results/tables_sizes.json"),
        "composition": lambda: composition_table(rows("composition")),
        "ood": lambda: ood_table(rows("ood")),
        "one-pass": lambda: one_pass_table(root / "results/likelihood.json"),
        "posterior": lambda: posterior_table(rows("posterior")),
        "photographs": lambda: photograph_table(rows("photographs")),
        "coverage": lambda: coverage_table(rows("photographs")),
        "noise": lambda: noise_table(rows("photographs")),
        "restored": lambda: restoration_table(rows("photographs")),
        "studio": lambda: studio_table(root / "results/studio.json"),
    }
    return results.render(text, tables)
