r"""The tables of the studies of posteriors and of photographs."""

__all__ = [
    "coverage_table",
    "noise_table",
    "photograph_table",
    "posterior_table",
    "restoration_table",
]

from collections.abc import Sequence

from .cells import number
from .. import results


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def posterior_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of samples of posteriors against the closed form."""
    header = ("pixels", "operator", "transitions", "weights", "mean, %", "covariance, %",
              "mode weights, %", "acceptance", "particles", "s")  # fmt: skip
    lines = []
    for r in sorted(rows, key=lambda r: r["dimension"]):
        lines.append([
            str(r["dimension"]),
            r["operator"],
            "**corrected**" if r["corrected"] else "all taken",
            "yes" if r["weighted"] else "no",
            percent(r["mean_error"]),
            percent(r["covariance_error"]),
            percent(r["weight_error"]),
            f"{r['acceptance']:.2f}" if r["corrected"] else "–",
            f"{r['particles']:,}",
            f"{r['seconds']:.0f}",
        ])
    return results.markdown(header, lines)


def where(row: results.Row) -> str:
    r"""Returns which pictures a row is of."""
    side = "" if row["side"] is None else f", middle {row['side']}²"
    return f"{row['data']}, {row['pictures']} pictures{side}"


def photograph_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of denoised photographs: a line per method, with all levels."""
    found = [r for r in rows if r["task"] == "denoise"]
    sigmas = sorted({r["sigma"] for r in found})
    header = ("pictures", "method", *(f"σ = {s:g}: PSNR, SSIM" for s in sigmas), "s a picture",
              "within 68 / 95 %")  # fmt: skip
    lines = []
    for place, name in dict.fromkeys((where(r), r["method"]) for r in found):
        own = {r["sigma"]: r for r in found if (where(r), r["method"]) == (place, name)}
        cells = [
            f"{own[s]['psnr']:.2f}, {number(own[s]['ssim'])}" if s in own else "–" for s in sigmas
        ]
        mean = sum(r["seconds"] for r in own.values()) / len(own)
        sure = [
            f"{percent(r['coverage68'], 0)} / {percent(r['coverage95'], 0)}"
            for r in own.values()
            if r["coverage68"] is not None
        ]
        lines.append([place, name, *cells, f"{mean:.1f}", "; ".join(sure) or "–"])
    return results.markdown(header, lines)


def coverage_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of the share of pixels within the intervals, by local texture."""
    quarters = ("smoothest quarter", "second", "third", "roughest quarter")
    header = ("pictures", "method", "σ", *quarters)
    lines = [
        [
            where(r), r["method"], f"{r['sigma']:g}",
            *(
                f"{percent(a)} / {percent(b)}"
                for a, b in zip(r["quartiles68"], r["quartiles95"], strict=True)
            ),
        ]
        for r in rows
        if r.get("quartiles68") is not None and r["task"] == "denoise"
    ]  # fmt: skip
    return results.markdown(header, lines)


def restoration_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of restored photographs."""
    header = ("pictures", "task", "method", "PSNR", "SSIM", "s a picture", "within 68 / 95 %")
    lines = [
        [
            where(r), r["task"], r["method"], f"{r['psnr']:.2f}", number(r["ssim"]),
            f"{r['seconds']:.1f}",
            "–" if r["coverage68"] is None
            else f"{percent(r['coverage68'], 0)} / {percent(r['coverage95'], 0)}",
        ]
        for r in rows
        if r["task"] in {"deblur", "inpaint", "upscale"}
    ]  # fmt: skip
    return results.markdown(header, lines)


def noise_table(rows: Sequence[results.Row]) -> str:
    r"""Returns the table of estimates of the noise: a line per set, with all levels."""
    found = sorted((r for r in rows if r["task"] == "noise"), key=lambda r: r["sigma"])
    sigmas = sorted({r["sigma"] for r in found})
    header = ("pictures", "method", *(f"σ = {s:g}" for s in sigmas))
    lines = []
    for place, name in dict.fromkeys((where(r), r["method"]) for r in found):
        own = {r["sigma"]: r for r in found if (where(r), r["method"]) == (place, name)}
        cells = [
            f"{percent(own[s]['sigma_error'])}, {percent(own[s]['sigma_error_most'])}"
            if s in own else "–"
            for s in sigmas
        ]  # fmt: skip
        lines.append([place, name, *cells])
    return results.markdown(header, lines)
