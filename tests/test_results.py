r"""Figures on disk, the tables made of them, and the command line."""

import json
import math
import pytest
import statistics
import subprocess
import sys

from fokker.app.cli import main
from fokker.data import PLANAR
from fokker.images.denoise import LEVELS
from pathlib import Path
from studies import denoising, results, tables
from studies.tables.cost import growth_table
from studies.tables.images import GOALS

ROOT = Path(__file__).parents[1]
NAMES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}


@pytest.mark.parametrize("path", tables.documents(ROOT), ids=lambda p: p.name)
def test_tables_are_those_of_the_results(path):
    text = path.read_text()
    assert tables.render(text, ROOT) == text, "run `fokker tables`"


def lines_of(name):
    return (ROOT / name).read_text().splitlines()


def words_of(name):
    return " ".join((ROOT / name).read_text().split())


def test_what_the_readme_says_of_the_demo():
    (row,) = results.load(ROOT / "results/demo.json")["rows"]
    assert "`make demo` takes about two minutes on two cores" in words_of("README.md")
    assert row["total_seconds"] == pytest.approx(120, abs=15)


def test_what_the_readme_says_of_the_2d_study():
    rows = results.load(ROOT / "results/toy.json")["rows"]
    own = [r for r in rows if (r["library"], r["preset"]) == ("fokker", "fokker")]
    kl = {}
    for method in ("dcd", "sm"):
        for data in {r["data"] for r in own}:
            group = [r for r in own if (r["data"], r["method"]) == (data, method)]
            assert [r["seed"] for r in group] == [0, 1, 2] and not any(
                r["diverged"] for r in group
            )
            kl[method, data] = statistics.fmean(r["kl"] for r in group)
    span = lambda method: sorted(v for k, v in kl.items() if k[0] == method)
    (*ours, edge), (*others, sharp) = span("dcd"), span("sm")
    assert len(ours) == 6 and (edge, sharp) == (
        kl["dcd", "checkerboard"],
        kl["sm", "checkerboard"],
    )
    said = (
        f"KL {ours[0]:.4f} to {ours[-1]:.4f} nats on six sets and {edge:.3f} on checkerboard;"
        f" score matching: {others[0]:.4f} to {others[-1]:.2f}, and {sharp:.0f}"
    )
    objective = "finite times (`MultiTimeDCD`)"
    assert f"| [2-D sets](docs/toy.md) | {objective} | 3 | {said} |" in lines_of("README.md")


def test_what_the_readme_says_of_denoising():
    rows = denoising.best(results.load(ROOT / "results/denoising.json")["rows"])
    found = {
        (r["data"], r["method"], r["sigma"]): r["rmse_mean"]
        for r in rows
        if r["preset"] == "fokker"
    }
    cells = [(data, k, sigma) for data in denoising.SETS for k, sigma in enumerate(LEVELS)]
    assert len(cells) == 12
    above = {"dcd-limit": {}, "dcd": {}}  # the plain denoiser, in percent
    for data, k, sigma in cells:
        for method, shares in above.items():
            assert found[data, method, sigma] < denoising.PAPER_TABLE_4[data]["dcd"][k]
            bound = found[data, "reference", sigma]
            shares[data, sigma] = 100 * (found[data, method, sigma] / bound - 1)
    limit, finite = (above[method].values() for method in above)
    said = (
        "RMSE below the paper's in 12 of 12 cells with either; at most"
        f" {max(limit):.1f} % above a plain denoiser with δ → 0, {min(finite):.1f} to"
        f" {max(finite):.1f} % with a finite step"
    )
    study = "[denoising](docs/denoising.md), 4 sets × 3 levels"
    assert f"| {study} | δ → 0; finite step | 1 | {said} |" in lines_of("README.md")
    docs = words_of("docs/denoising.md")
    assert f"at most {max(limit):.1f} % above the plain denoiser" in docs
    ranges = []
    for data, name in NAMES.items():
        shares = [v for (d, _), v in above["dcd"].items() if d == data]
        ranges.append(f"{min(shares):.1f} to {max(shares):.1f} % on {name}")
    *first, last = ranges
    assert f"{', '.join(first)} and {last}" in docs


def test_what_the_readme_says_of_cost():
    rows = results.load(ROOT / "results/bench.json")["rows"]
    cost = {
        r["name"]: r["x_plain"]
        for r in rows
        if (r["suite"], r["library"], r["net"]) == ("nets", "fokker", "wrn-28-10")
    }
    said = (
        f"{cost['dcd-limit']:.1f} plain steps with δ → 0, {cost['dcd']:.1f} with a finite step;"
        f" CD-1 costs {cost['cd-1']:.1f} and CD-10 {cost['cd-10']:.1f}"
    )
    study = "[cost of a step](docs/cost.md), WRN-28-10"
    assert f"| {study} | δ → 0; finite step | – | {said} |" in lines_of("README.md")


def test_what_the_readme_says_of_generation():
    rows = results.load(ROOT / "results/generation.json")["rows"]
    own = {"kind": "final", "preset": "fokker", "method": "dcd-limit", "size": "15m"}
    found = [r for r in rows if all(r.get(k) == v for k, v in own.items())]
    most = lambda data: max(r["fid_n"] for r in found if r["data"] == data)
    best = lambda data: min(
        (r for r in found if (r["data"], r["fid_n"]) == (data, most(data))), key=lambda r: r["fid"]
    )
    row, other = best("celeba32"), best("cifar10")
    (finite,) = (
        r
        for r in rows
        if (r["kind"], r["data"], r["preset"], r["method"], r["size"])
        == ("final", "celeba32", "fokker", "dcd", "15m")
    )
    ratios = [a["fid"] / b["fid"] for a, b in tables.pairs_of(rows)]
    words = " ".join((ROOT / "README.md").read_text().split())
    said = f"FID {min(ratios):.1f} to {max(ratios):.1f} times that of the limit"
    assert len(ratios) == 2 and said in words
    guided = {
        r["step"]: r["fid"]
        for r in rows
        if (r["kind"], r["data"], r.get("fid_n")) == ("guided", "cifar10", 50_000)
    }
    minutes = lambda r: f"{r['seconds'] / 60:.1f}"
    said = (
        f"δ → 0: FID {row['fid']:.2f} with {row['fid_n']:,} samples after {minutes(row)} minutes"
        f" (the paper: {tables.PUBLISHED['celeba32']}, samples not stated); finite step:"
        f" {finite['fid']:.2f} with {finite['fid_n']:,} after {minutes(finite)}"
    )
    study = "[generation](docs/generation.md)"
    lines = lines_of("README.md")
    assert f"| {study}, CelebA-32 | δ → 0; finite step | 1 | {said} |" in lines
    said = (
        f"FID {other['fid']:.2f} with {other['fid_n']:,} samples after {minutes(other)} minutes;"
        f" {guided[other['step']]:.2f} guided by a smaller energy"
    )
    assert f"| {study}, CIFAR-10 | δ → 0 | 1 | {said} |" in lines
    docs = words_of("docs/generation.md")
    assert f"**FID {other['fid']:.2f} with 50,000 samples**" in docs
    drl, cdrl = (GOALS["cifar10"][name] for name in ("DRL", "CDRL"))
    assert f"Published energy-based models have {drl} (DRL) and {cdrl} (CDRL)" in docs
    assert f"{other['step']:,} steps of 256, {other['train_images'] / 1e6:.1f} million" in docs
    assert f"in {other['seconds'] / 60:.1f} minutes" in docs and other["muon"]
    assert f"18 steps draws {other['images_per_second']:.0f} images per second" in docs
    assert f"Guided, w = 1.4, it is {guided[other['step']]:.2f}**" in docs
    (adam,) = (r for r in found if (r["data"], r.get("muon")) == ("cifar10", None))
    assert f"{adam['step']:,} steps in {adam['seconds'] / 60:.1f} minutes, has" in docs
    assert f"has {adam['fid']:.2f}, and {guided[adam['step']]:.2f} guided" in docs
    (half,) = (r for r in found if r["step"] == 12_950)
    assert f"restarted at step {half['step']:,}, where FID was {half['fid']:.2f}," in docs
    assert half["fid_n"] == 50_000
    low, high = (
        [
            f"{r['q50']:,.0f}"
            for name in ("generated", "train")
            for r in rows
            if (r["kind"], r["data"], r["step"]) == ("energy", "cifar10", other["step"])
            and (r["set"], r["sigma"]) == (name, sigma)
        ]
        for sigma in (0.05, 1.0)
    )
    said = (
        f"the median energy at σ = 0.05 is {low[0]} for samples and {low[1]} for training images"
    )
    assert f"{said}; at σ = 1 it is {high[0]} and {high[1]}." in docs
    near = {
        r["set"]: f"{r['q50']:.3f}"
        for r in rows
        if (r["kind"], r["data"], r["step"]) == ("nearest", "cifar10", other["step"])
    }
    assert f"RMSE of {near['generated']} from a sample and of {near['test']} from a test" in docs
    early = [r for r in rows if not r.get("muon") and r.get("sampler") == "heun"]
    plain, corrected = (
        next(r["fid"] for r in early if r["kind"] == kind and r["steps"] == 9)
        for kind in ("steps", "corrector")
    )
    assert f"it improves FID from {plain:.2f} to {corrected:.2f} for 8 more evaluations" in docs
    small = [  # those that come with the package, by Adam
        r for r in rows if (r["kind"], r["size"], r.get("muon")) == ("final", "small", None)
    ]
    said = " and ".join(f"{r['fid']:.2f}" for r in sorted(small, key=lambda r: r["data"]))
    assert f"FID {said} with 10,000 samples. Their bits" in docs
    small.sort(key=lambda r: r["data"])
    bits = " and ".join(f"{r['bpd']:.2f} ± {r['bpd_error']:.2f}" for r in small)
    assert f"of {small[0]['bpd_n']} test images only with one probe each, are {bits}." in docs
    said = f"FID {row['fid']:.2f} with {row['fid_n']:,} samples"
    (few,) = (r["fid"] for r in found if (r["step"], r["fid_n"]) == (row["step"], 10_000))
    assert (
        f"{row['step']:,} steps of 256 images, {minutes(row)} minutes of training: {said}" in docs
    )
    assert f"{said} and {few:.2f} with 10,000. The paper reports 13.85" in docs


def test_what_the_docs_say_of_generation_along_training_and_of_other_methods():
    docs = words_of("docs/generation.md")
    rows = results.load(ROOT / "results/generation.json")["rows"]
    own = [r for r in rows if r["data"] == "celeba32" and r.get("size") == "15m"]
    first, *_, last = sorted(
        (r for r in own if r["kind"] == "snapshot"), key=lambda r: r["seconds"]
    )
    minutes = lambda row: f"{row['seconds'] / 60:.1f} minutes"
    assert first["fid"] < tables.PUBLISHED["celeba32"]
    assert (
        f"after {minutes(first)} and {first['step']:,} steps, with FID {first['fid']:.2f}" in docs
    )
    assert f"{last['step']:,} steps after {minutes(last)} with {last['fid']:.2f}" in docs
    for preset, method in (("fokker", "dcd"), ("paper", "dcd"), ("paper", "dcd-limit")):
        (row,) = (
            r for r in own if (r["kind"], r["preset"], r["method"]) == ("final", preset, method)
        )
        assert f"FID {row['fid']:.2f} after {minutes(row)}" in docs
    for row in (r for r in rows if r["kind"] == "final" and r["bpd"] and r["size"] == "15m"):
        where = {"celeba32": "CelebA-32", "cifar10": "CIFAR-10"}[row["data"]]
        said = f"{row['bpd']:.2f} ± {row['bpd_error']:.2f} on {where}"
        assert said in docs and f"of {row['bpd_n']} test images only" in docs
    curve = sorted(
        (r for r in rows if (r["kind"], r["data"]) == ("snapshot", "cifar10")),
        key=lambda r: r["seconds"],
    )
    first, *middle, end = curve
    assert f"{first['fid']:.2f} after {minutes(first)} and {first['step']:,} steps, " in docs
    assert len(middle) == 3
    for row in middle:
        assert f"{row['fid']:.2f} after {minutes(row)} and {row['step']:,}, " in docs
    assert f"and {end['fid']:.2f} at the end" in docs
    more = {
        r["steps"]: f"{r['fid']:.2f}"
        for r in rows
        if (r["kind"], r["data"], r.get("sampler")) == ("steps", "cifar10", "heun")
        and not r.get("muon")
    }
    assert f"from {more[18]} to {more[27]} with 27 steps and to {more[36]} with 36" in docs
    fast = {
        (r["sampler"], r["steps"]): (r["nfe"], f"{r['fid']:.2f}")
        for r in rows
        if r["kind"] == "steps" and r.get("muon") and r["fid_n"] == 2500
    }
    assert f"from {fast['heun', 18][1]} to {fast['heun', 27][1]} with 27." in docs
    for pair in ((("multistep", 24), ("heun", 18)), (("multistep", 18), ("heun", 12))):
        (ours, first), (theirs, second) = ((fast[key][1], fast[key][0]) for key in pair)
        said = (
            f"{ours} with `multistep` and {first} evaluations, {theirs} with `heun` and {second}"
        )
        assert f"{said}." in docs


def test_what_the_docs_say_of_flows_and_optimizers():
    error = {
        (r["run"], r["sampler"], r["steps"]): r["error"]
        for r in results.load(ROOT / "results/flows.json")["rows"]
    }
    for run in ("celeba32", "cifar10"):
        assert error[run, "multistep", 24] < error[run, "heun", 18]
    rows = results.load(ROOT / "results/optimizers.json")["rows"]
    best = {
        kind: min((r for r in rows if r["optimizer"] == kind), key=lambda r: r["error"])
        for kind in ("adam", "muon")
    }
    assert best["muon"]["error"] < best["adam"]["error"] and best["muon"]["rate"] > 0.01
    rates = {kind: sorted(r["rate"] for r in rows if r["optimizer"] == kind) for kind in best}
    for kind, row in best.items():  # worse ones on both sides
        assert rates[kind][0] < row["rate"] < rates[kind][-1]


def test_a_method_of_which_a_seed_diverges_is_not_said_to_diverge_at_all():
    row = {"data": "rings", "library": "fokker", "preset": "paper", "method": "cd"}
    row |= {"fisher_gap": 0.1, "kl": 0.2, "off_mass": 0.3}
    cell = lambda *fates: tables.toy_matrix([row | {"diverged": f} for f in fates]).split("|")[-2]
    assert cell(True, True, True) == " diverged "
    assert cell(True, False, False) == " diverged 1 of 3 "
    assert cell(False, False, False) == " 10 / 0.2 / 30 "


def test_growth_is_a_table_a_quantity():
    row = lambda suite, name, batch, shape, x: {
        "suite": suite, "name": name, "batch": batch, "shape": shape, "x_plain": x
    }  # fmt: skip
    rows = [
        row("dimension", "plain", 1000, [2], 1.0),
        row("dimension", "dcd", 1000, [2], 4.5),
        row("dimension", "cd-1", 1000, [2], 2.0),
        row("dimension", "cd-1", 1000, [4096], 3.0),
        row("size", "cd-1", 16, [1, 28, 28], 2.25),
        row("nets", "cd-1", 16, [1, 28, 28], 9.0),
    ]
    points, images = growth_table(rows).split("\n\n")
    assert points.splitlines()[0] == "| step | D = 2 | D = 4,096 |"
    assert points.splitlines()[2:] == ["| dcd | 4.50 | – |", "| cd-1 | 2.00 | 3.00 |"]
    assert images.splitlines()[0] == "| step | 28×28 pixels |" and images.endswith("| 2.25 |")
    assert "--growth" in growth_table([])


def test_of_two_draws_by_the_same_weights_the_larger_is_shown():
    final = {"data": "celeba32", "kind": "final", "preset": "fokker", "method": "dcd-limit"}
    final |= {"size": "15m", "params": 1_500_000, "step": 7, "seconds": 60.0, "nfe": 35}
    final |= dict.fromkeys(("diverged", "convention", "kid", "bpd"))
    rows = [{**final, "fid": 4.0 + n, "fid_n": n} for n in (2, 3, 1)]
    (line,) = (line for line in tables.generation_rows(rows) if "fokker" in line[1])
    assert line[3:5] == ["7.00", "3"]
    # one by another optimizer is another model, and early rows do not say theirs
    rows.append({**final, "fid": 3.0, "fid_n": 3, "step": 5, "muon": 0.02})
    plain, muon = (line for line in tables.generation_rows(rows) if "fokker" in line[1])
    assert plain == line and muon[1] == f"{line[1]}, Muon" and muon[3] == "3.00"


def test_the_distance_is_the_published_one():
    (row,) = results.load(ROOT / "results/fid.json")["rows"]
    assert (row["convention"], row["train"], row["test"]) == ("tf", 50_000, 10_000)
    assert row["fid"] == pytest.approx(3.15, abs=0.02)


def test_a_changed_figure_changes_the_table(tmp_path):
    (tmp_path / "results").mkdir()
    content = json.loads((ROOT / "results/optima.json").read_text())
    content["rows"][0]["optimum"] -= 1
    (tmp_path / "results/optima.json").write_text(json.dumps(content))
    text = "<!-- results:optima -->\n<!-- /results -->"
    assert tables.render(text, tmp_path) != tables.render(text, ROOT)
    with pytest.raises(ValueError, match=r"expected a table, one of .* got 'nothing'"):
        results.render("<!-- results:nothing -->\n<!-- /results -->", {"a": str})


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda p: p.name)
def test_results_carry_their_provenance(path):
    content = results.load(path)
    assert content.keys() == {
        "command", "commit", "time", "hardware", "versions", "config", "rows"
    }  # fmt: skip
    assert content["rows"]


def test_committed_optima_are_exact():
    for row in results.load(ROOT / "results/optima.json")["rows"]:
        exact = PLANAR[row["data"]](scale=row["scale"], noise=row["noise"]).optimum()
        if row["optimum"] is None:
            assert exact == -math.inf
        else:
            assert row["optimum"] == pytest.approx(exact, rel=1e-6)


def test_optima_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = tmp_path / "optima.json"
    main(["optima", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "swissroll" in printed and "−199.7" in printed
    assert len(results.load(out)["rows"]) == len(PLANAR)


def test_save_is_whole_or_nothing(tmp_path):
    path = tmp_path / "a.json"
    results.save(path, [{"a": 1.0}], "test")
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.save(path, [{"a": math.nan}], "test")
    assert results.load(path)["rows"] == [{"a": 1.0}]


def test_bad_input_is_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["optima", "--scale", "-1"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error == "fokker: expected scale to be a finite number > 0, got -1.0\n"


def test_module_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "fokker", "--help"], capture_output=True, check=False
    )
    assert done.returncode == 0 and b"optima" in done.stdout


def test_what_the_docs_say_of_composition():
    rows = results.load(ROOT / "results/composition.json")["rows"]
    found = {(r["dimension"], r["composition"], r["sampler"]): r for r in rows}
    plane = {s: found[2, "ring · bar", s] for s in ("naive", "particles")}
    space = {s: found[64, "product", s] for s in ("naive", "corrected", "particles")}
    assert plane["particles"]["kl"] <= 0.01 and space["particles"]["tv"] <= 0.02
    docs = words_of("docs/densities.md")
    exact, naive = plane["particles"]["floor"], plane["naive"]["kl"]
    said = f"{plane['particles']['kl']:.4f} nats by particles, where as many exact samples have"
    assert f"{said} {exact:.4f}, and {naive:.2f} by the sum of scores" in docs
    off = {s: f"{100 * r['tv']:.1f} %" for s, r in space.items()}
    assert (
        f"off by {off['particles']} by particles, by {off['naive']} by the sum of scores" in docs
    )
    assert f"have {100 * space['naive']['width']:.0f} % of the right variance" in docs
    assert f"and by {off['corrected']} by the corrected flow" in docs
    assert abs(space["corrected"]["width"] - 1) < 0.05 < abs(space["naive"]["width"] - 1)


def test_what_the_docs_say_of_odd_images():
    rows = results.load(ROOT / "results/ood.json")["rows"]
    fields = {"train", "test", "rule", "level", "auroc", "images", "chosen"}
    assert all(fields <= set(row) for row in rows)
    found = {
        (r["test"], r["rule"], r["level"]): r["auroc"] for r in rows if r["run"] == "celeba32"
    }
    docs = words_of("docs/densities.md")
    svhn, blurred = (found[test, "energy", 0.03] for test in ("svhn", "blurred"))
    assert f"an AUROC of {svhn:.2f} against SVHN and {blurred:.2f} against its own test" in docs
    assert found["svhn", "score", 0.03] < 0.5 and found["blurred", "score", 0.03] < 0.5
    (n,) = {r["images"] for r in rows}
    (usual,) = {r["usual"] for r in rows}
    assert f"With {n} images of each set" in docs and f"{usual} training images are few" in docs
    assert round(0.5 / n**0.5, 2) == pytest.approx(0.07)  # sqrt(A (1 - A) / n) at most


def test_what_the_docs_say_of_scores_a_minute():
    content = results.load(ROOT / "results/tables_sizes.json")
    docs = words_of("docs/tables.md")
    assert "Up to 300 columns a million scores take less than a minute." in docs
    kinds = ("outlier", "density")
    for row in content["rows"]:
        if row["columns"] <= 300:
            assert max(row[f"{kind}_million_seconds"] for kind in kinds) < 60
    least = content["rows"][-1]["outlier_products_seconds"]
    speed = content["config"]["gigaflops"]
    assert f"take {least:.0f} seconds at the speed" in docs
    assert f"({speed:.0f} billion operations a second)" in docs
