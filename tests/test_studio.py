r"""The studio without a browser: forms, requests, pictures, export, and a server that stands."""

import dataclasses
import hashlib
import itertools
import json
import math
import multiprocessing
import numpy as np
import pytest
import re
import runpy
import subprocess
import sys
import time
import torch
import urllib.request
import warnings

from concurrent.futures import ThreadPoolExecutor
from fokker import load
from fokker.analytic import Gaussian
from fokker.app import cli
from fokker.energies import Energy, Quadratic
from fokker.objectives import OBJECTIVES, MultiTimeDCD, Objective, ScoreMatching
from fokker.runs.config import Config, Network, Optimization, TableData, ToyData
from fokker.runs.toml import REGISTRIES, decode, encode
from fokker.runs.training import Interrupted, fit
from fokker.studio import request, server, worker
from fokker.studio.export import export, script
from fokker.studio.form import describe, first_sentence, presets
from fokker.studio.server import HOSTS, STATIC, app
from fokker.studio.session import Session
from fokker.studio.view import View, pack
from fokker.studio.worker import AHEAD, KEPT, Worker
from pathlib import Path
from studies.trust.attempts import attempt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another HTTP library
    from starlette.testclient import TestClient, WebSocketDenialResponse

ROOT = Path(__file__).parents[1]
HOST = {"host": "127.0.0.1:8377", "origin": "http://127.0.0.1:8377"}
SMALL = {
    "network": {"width": 8, "layers": 2, "confine": 0.7},
    "optimization": {"steps": 6, "batch": 8},
}
TINY = {"objective": ScoreMatching(), "network": Network(width=8, layers=2, confine=0.7)}
TRAIN = {"op": "train", "data": "moons", "objectives": [{"kind": "sm"}], **SMALL}


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


def unpack(message: bytes):
    r"""Reads a message as the page does."""
    length = int.from_bytes(message[:8], "little")
    header, at, arrays = json.loads(message[8 : 8 + length]), 8 + length, {}
    for part in header["arrays"]:
        dtype, count = np.dtype(part["dtype"]), math.prod(part["shape"])
        arrays[part["name"]] = np.frombuffer(message, dtype, count, at).reshape(part["shape"])
        at += -(-count * dtype.itemsize // 8) * 8
    assert at == len(message)
    return header, arrays


# ------------------------------------------------------------------------------- forms


@pytest.mark.parametrize("which", ["set", "points"])
def test_every_preset_is_read_back_as_it_was(which):
    told = presets()
    for image in told[which]["objectives"].values():
        assert encode(decode(Objective, image)) == image
        asked = {"op": "train", "objectives": [image], "optimization": told[which]["optimization"]}
        assert encode(request.parse(asked).configs[0].objective) == image
    assert decode(Network, told[which]["network"]).width == 64
    assert set(told["forms"]["objectives"]) == set(request.OFFERED)


def walk(fields, kind):
    r"""Checks a form against the dataclass it describes, and those within it."""
    own = {field.name: field for field in dataclasses.fields(kind)}
    for field in fields:
        assert field["doc"], f"{kind.__name__}.{field['name']} has no documentation"
        assert not re.search(r"[\\`{}]|:math:", field["doc"]), field["doc"]
        default = own[field["name"]].default
        missing = default is dataclasses.MISSING or default is None
        assert field["default"] == (None if missing else encode(default))
        for name, inner in field.get("kinds", {}).items():
            walk(inner, next(r[name] for r in REGISTRIES if name in r))
    return {field["name"] for field in fields}


@pytest.mark.parametrize("kind", request.OFFERED)
def test_forms_are_those_of_the_dataclasses(kind):
    names = walk(describe(OBJECTIVES[kind]), OBJECTIVES[kind])
    assert names == {field.name for field in dataclasses.fields(OBJECTIVES[kind])}
    assert len(first_sentence(OBJECTIVES[kind])) > 10


def test_forms_of_network_and_optimization():
    names = {field.name for field in dataclasses.fields(Optimization)}
    listed = {"restarts", "widths"}  # no plain values, and a run there begins once
    assert walk(describe(Network), Network) == {f.name for f in dataclasses.fields(Network)}
    assert walk(describe(Optimization), Optimization) == names - listed
    shown = {field["name"] for field in presets()["forms"]["optimization"]}
    assert shown == names - listed - {"muon"}  # no U-Net


# ---------------------------------------------------------------------------- requests

NAN = '{"op": "train", "seed": NaN}'
HOSTILE = [
    ("{", "expected a message in JSON"),
    ("[1, 2]", "expected a JSON object"),
    ('{"op": 3}', "expected a JSON object"),
    ("[" * 100_000, "nested too deeply"),
    ('"' + "x" * request.LIMIT, "at most 262144 characters"),
    (NAN, "expected finite numbers, got NaN"),
    ('{"op": "exec"}', "expected op to be one of"),
    ('{"op": "stop", "now": 1}', "got also 'now'"),
    ('{"op": "ack", "side": 7}', "expected side to be an integer from 0 to 1"),
    ('{"op": "evolve", "side": 0, "step": -1}', "expected step"),
    ('{"op": "evolve", "side": 1, "step": 0}', "expected a side that has been trained"),
    ('{"op": "export", "side": 0}', "expected a side that has been trained"),
    ('{"op": "look", "data": "../../etc/passwd"}', "expected a planar set"),
]
ABSURD = [
    ({"data": "teapots"}, "expected a planar set"),
    ({"data": 4}, "expected str at data"),
    ({"objectives": []}, "expected a list of 1 to 2 objectives"),
    ({"objectives": [{"kind": "sm"}] * 3}, "expected a list of 1 to 2 objectives"),
    ({"objectives": [{"kind": "gan"}]}, "expected a kind at objectives[0]"),
    ({"objectives": [{"kind": ["sm"]}]}, "expected a kind at objectives[0]"),
    ({"objectives": [{"kind": "level-dcd"}]}, "expected a kind at objectives[0]"),
    ({"objectives": ["sm"]}, "expected a kind at objectives[0]"),
    ({"objectives": [{"kind": "cd", "steps": 10**6}]}, "config.objective.steps from 1 to 200"),
    ({"objectives": [{"kind": "cd", "steps": 10**400}]}, "expected a number of 64 bits"),
    ({"objectives": [{"kind": "cd", "step_size": 10**400}]}, "expected a number of 64 bits"),
    ({"objectives": [{"kind": "ed", "samples": 10**9}]}, "config.objective.samples"),
    ({"objectives": [{"kind": "ed", "sigma": -1.0}]}, "expected sigma"),
    ({"objectives": [{"kind": "dcd", "step": {"kind": "log-uniform"}}]}, "expected the key 'low'"),
    ({"network": {"width": 10**7}}, "config.network.width from 1 to 512"),
    ({"network": {"kind": "unet"}}, "expected a kind at network"),
    ({"network": 5}, "expected Network at network"),
    ({"optimization": {"steps": 10**9}}, "config.optimization.steps from 1 to 20000"),
    ({"optimization": {"momentum": 1}}, "expected a key at optimization"),
    ({"optimization": {"batch": 2.5}}, "expected int at optimization.batch"),
    ({"seed": -1}, "expected seed"),
    ({"seed": True}, "expected seed"),
    ({"device": "cuda"}, "got also 'device'"),
    ({"points": [[0, 0]]}, "expected 20 to 2000 drawn points, got 1 points"),
    ({"points": [[0, 0]] * 3000}, "expected 20 to 2000 drawn points, got 3000 points"),
    ({"points": "all"}, "expected 20 to 2000 drawn points"),
    ({"points": [[0, 2]] * 30}, "expected point 0 to be a pair within [-1, 1]"),
    ({"points": [[0, None]] * 30}, "expected point 0"),
    ({"points": [[0, 1, 2]] * 30}, "expected point 0"),
]


@pytest.mark.parametrize("change, words", ABSURD, ids=lambda v: str(v)[:40])
def test_absurd_settings_get_one_line(change, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        request.parse({**TRAIN, **change})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_request_becomes_configurations():
    job = request.parse({
        **TRAIN,
        "objectives": [{"kind": "sm"}, {"kind": "cd", "steps": 2}],
        "seed": 3,
    })
    assert [config.seed for config in job.configs] == [3, 3]
    assert job.configs[0] == dataclasses.replace(job.configs[1], objective=ScoreMatching())
    assert job.configs[0].data == ToyData("moons") and job.points is None
    drawn = request.parse({**TRAIN, "points": [[0.1, k / 50] for k in range(30)]})
    assert isinstance(drawn.configs[0].data, TableData) and len(drawn.points) == 30
    assert drawn.configs[0].data.path == "points.csv"  # whatever a page says


# ---------------------------------------------------------------------------- pictures


class Known(Energy):
    r"""A mixture as an energy in float32, with the Laplacian by autograd."""

    def __init__(self, law):
        super().__init__()
        self.law = law

    def forward(self, x):
        return self.law(x.double()).to(x.dtype)


def test_a_message_is_aligned():
    arrays = {"a": np.arange(3, dtype=np.uint8), "b": np.arange(4, dtype=np.float32).reshape(2, 2)}
    header, back = unpack(pack({"op": "x"}, **arrays))
    assert header["op"] == "x"
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
    with pytest.raises(ValueError, match="Out of range float"):
        pack({"loss": math.nan})


@pytest.fixture(scope="module")
def circles():
    torch.set_default_dtype(torch.float32)
    return View(Config(ToyData("circles")))


def density(header, image, size):
    logs = header["top"] + header.get("range", 30.0) * (image.astype(float) / 65535 - 1)
    return np.exp(logs)


def test_a_frame_of_the_truth_has_no_error(circles):
    data = ToyData("circles").build()
    energy = data.energy()
    header, arrays = unpack(circles.frame(energy, {"op": "frame"}, [1.0, 2.0]))
    assert header["kl"] < 1e-4 and header["fisher_gap"] < 1e-6
    assert header["off_mass"] == pytest.approx(1e-4, rel=0.1)
    p = density(header, arrays["log_density"], 80)
    assert p.sum() * circles.grid.cell == pytest.approx(1, abs=1e-3)
    # rows from the top: the value of a cell is the density at its center
    x, y = circles.grid.axis()[20], circles.grid.axis()[60]
    there = float(data.log_density(torch.tensor([[x, y]]).double()))
    assert math.log(p[79 - 60, 20]) == pytest.approx(there, abs=5e-3)
    assert arrays["losses"].tolist() == [1.0, 2.0]
    # the score at a node, x first
    node, side = circles.nodes[19 * 4 + 7], 19
    np.testing.assert_allclose(arrays["score"][side * 4 + 7], data.score(node[None])[0], rtol=1e-4)


def test_a_frame_that_is_not_finite_is_an_error(circles):
    class Broken(Energy):
        def forward(self, x):
            return x.sum(1) * math.inf

    with pytest.raises(FloatingPointError, match="finite energies"):
        circles.frame(Broken(), {}, [])


def test_particles_come_to_the_model(circles):
    view = View(Config(ToyData("circles")))
    view.sampler = dataclasses.replace(view.sampler, step_size=0.05)
    for _ in range(60):
        view.move(Quadratic(0.3))
    torch.testing.assert_close(view.particles.std(0), torch.tensor([0.3, 0.3]), rtol=0.25, atol=0)


def test_the_taylor_step_errs_as_the_square_of_the_time(circles):
    r"""On N(0, v) the evolved energy is x²/2(v + t) + log(v + t), the step x²/2v + log v + t (2/v
    - x²/v²)/2; of second order, and known under N(0, v + t)."""
    v = 0.05
    header, arrays = unpack(circles.evolve(Known(Gaussian(torch.zeros(2).double(), v)), {}))
    times, errors = header["times"], header["errors"]
    assert errors[0] == 0 and arrays["evolved"].shape == (25, 120, 120)
    generator = torch.Generator().manual_seed(0)
    for i in (8, 14):
        t = times[i]
        r2 = (v + t) * torch.randn(200_000, 2, generator=generator).double().square().sum(1)
        right = r2 / (2 * (v + t)) + math.log(v + t)
        wrong = r2 / (2 * v) + math.log(v) + t / 2 * (2 / v - r2 / v**2)
        miss = (wrong - right).abs()
        five = 5 * float(miss.std()) / math.sqrt(len(miss))
        assert errors[i] == pytest.approx(float(miss.mean()), abs=five + 2e-6)
    slope = math.log(errors[8] / errors[5]) / math.log(times[8] / times[5])
    assert slope == pytest.approx(2, abs=0.1)


def test_data_and_model_meet(circles):
    model = Known(Gaussian(torch.tensor([0.2, 0.0]).double(), 0.15))
    header, arrays = unpack(circles.meet(model, {}))
    for name in ("kl_langevin", "kl_diffusion"):
        kl = header[name]
        assert all(b <= a + 1e-9 for a, b in itertools.pairwise(kl)), name
        assert kl[-1] < 0.2 * kl[0], name
    assert header["kl_langevin"][0] == pytest.approx(header["kl_diffusion"][0], rel=1e-3)
    # the points that Brownian motion carries spread by the time
    paths = arrays["data_paths"]
    spread = (paths[-1] - paths[0]).var()
    assert spread == pytest.approx(header["times"][-1], rel=0.3)
    assert np.isfinite(arrays["langevin_paths"]).all()


def test_a_worker_keeps_weights_evenly():
    worker = Worker(None, 0)
    for step in range(1000):
        worker.keep(step, {})
    steps = sorted(worker.kept)
    assert len(steps) <= KEPT and steps[0] == 0 and steps[-1] == 999
    assert np.diff(steps).max() <= 2 * 1000 / (KEPT / 2)


# ------------------------------------------------------------------------------ export


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_an_exported_run_is_a_run_and_its_script_makes_it_again(tmp_path, drawn, stopped, capsys):
    data = ToyData("moons")
    if drawn:
        points = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)) - 0.5
        lines = [f"{x:.5f},{y:.5f}" for x, y in points.tolist()]
        (tmp_path / "drawn.csv").write_text("\n".join(["x,y", *lines]))
        data = TableData(str(tmp_path / "drawn.csv"))
    objective = MultiTimeDCD(points=8)
    network, optimization = Network(8, 3, features=4, confine=0.7), Optimization(6, 16)
    config = Config(data, objective, network, optimization, evaluate=2 if drawn else 6)
    if stopped:
        with pytest.raises(Interrupted):
            fit(config, tmp_path / "run", watch=lambda step, *_: step == 3)
    else:
        fit(config, tmp_path / "run")
    folder, text = export(tmp_path / "run", tmp_path / "runs", "mine", 3 if stopped else 6)
    second, _ = export(tmp_path / "run", tmp_path / "runs", "mine", 3 if stopped else 6)
    assert (folder.name, second.name) == ("mine", "mine-2")
    for path in tmp_path.glob("drawn.csv"):
        path.unlink()  # the export has its own
    run = load(folder)
    assert run.step == (3 if stopped else 6)
    cli.main(["evaluate", str(folder), "--json"])
    assert json.loads(capsys.readouterr().out)["nll"] is not None

    threads = torch.get_num_threads()
    again = runpy.run_path(str(folder / "script.py"))["run"]
    torch.set_num_threads(threads)
    torch.testing.assert_close(
        again.energy.state_dict(), run.energy.state_dict(), rtol=0, atol=0, check_dtype=True
    )
    if not drawn:  # only the path of the points may differ
        assert again.config == run.config == config
    assert text == (folder / "script.py").read_text()


def test_a_script_is_laid_out_in_lines():
    lines = script(Config(), 5000).splitlines()
    assert max(map(len, lines)) <= 100 and "config = Config(" in lines


# ------------------------------------------------------------------------------ server


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return TestClient(app(tmp_path_factory.mktemp("runs")), headers=HOST)


def listen(socket, *ops, most=400):
    r"""Receives until one of these arrives; acknowledges frames; returns all by their op."""
    heard = {}
    for _ in range(most):
        message = socket.receive()
        if message.get("bytes") is not None:
            header, arrays = unpack(message["bytes"])
            if header["op"] == "frame":
                socket.send_json({"op": "ack", "side": header["side"]})
            header = {**header, "data": arrays}
        else:
            header = json.loads(message["text"])
        heard.setdefault(header["op"], []).append(header)
        if header["op"] in ops:
            return heard
    raise AssertionError(f"expected one of {ops}, heard {list(heard)}")


@pytest.fixture(scope="module")
def socket(client):
    with client.websocket_connect("/socket", headers=HOST) as socket:
        assert socket.receive_json()["op"] == "hello"
        yield socket


def test_the_page_comes_with_headers_that_keep_it_to_itself(client):
    page = client.get("/")
    assert page.status_code == 200 and "fokker <em>studio</em>" in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="\./([^"]+)"', page.text):
        assert client.get(f"/{name}").status_code == 200
    outside = re.findall(r"https?://[^\"'\s]+", page.text + client.get("/studio.js").text)
    assert all(url.startswith("http://www.w3.org") for url in outside), outside
    for path in ("/../server.py", "/%2e%2e/server.py", "/nothing"):
        assert client.get(path).status_code == 404
    assert client.post("/", content=b"x" * 10**6).status_code == 405


@pytest.mark.parametrize(
    "headers, words",
    [
        ({"host": "evil.example"}, "expected the host to be localhost"),
        ({"host": "127.0.0.1.evil.example:8377"}, "expected the host"),
        ({"host": "localhost:8377", "origin": "http://evil.example"}, "expected a page of"),
        ({"host": "localhost:8377", "origin": "http://localhost:3000"}, "expected a page of"),
        ({"host": "localhost:8377", "origin": "null"}, "expected a page of"),
    ],
)
def test_other_hosts_and_origins_are_refused(client, headers, words):
    answer = client.get("/", headers={**HOST, **headers})
    assert answer.status_code == 403 and words in answer.text
    with (
        pytest.raises(WebSocketDenialResponse) as caught,
        client.websocket_connect("/socket", headers={**HOST, **headers}),
    ):
        pass
    assert caught.value.status_code == 403


def test_a_socket_without_an_origin_is_refused():
    assert all(HOSTS.fullmatch(h) for h in ("localhost", "127.0.0.1:80", "[::1]:9000"))
    bare = TestClient(app(), headers={"host": "localhost"})
    assert bare.get("/").status_code == 200
    with (
        pytest.raises(WebSocketDenialResponse),
        bare.websocket_connect("/socket", headers={"host": "localhost"}),
    ):
        pass


def test_hostile_messages_get_one_line_and_the_session_goes_on(socket):
    for text, words in HOSTILE:
        socket.send_text(text)
        (answer,) = listen(socket, "error")["error"]
        assert words in answer["message"] and "\n" not in answer["message"], text[:60]
        assert len(answer["message"]) < 400
    for change, words in ABSURD:
        socket.send_json({**TRAIN, **change})
        assert words in listen(socket, "error")["error"][0]["message"]
    socket.send_bytes(b"\x00" * 1000)
    assert "got bytes" in listen(socket, "error")["error"][0]["message"]
    # what is only found out while it trains: a Laplacian that needs noise, points on a line
    stein = {"kind": "sm", "laplacian": {"kind": "stein"}}
    socket.send_json({**TRAIN, "objectives": [stein]})
    assert "Stein" in listen(socket, "done")["done"][0]["message"]
    socket.send_json({**TRAIN, "points": [[0.1, k / 50] for k in range(30)]})
    assert "to vary" in listen(socket, "done")["done"][0]["message"]
    socket.send_json(TRAIN)
    assert listen(socket, "done")["done"][0]["state"] == "done"


def test_train_compare_animate_and_export(socket, tmp_path):
    socket.send_json({"op": "look", "data": "moons"})
    look = listen(socket, "look")["look"][0]
    assert look["exact"] and look["data"]["truth"].shape == (80, 80)
    objectives = [{"kind": "sm"}, {"kind": "ed", "sigma": 0.05}]
    socket.send_json({**TRAIN, "objectives": objectives})
    heard = listen(socket, "done")
    if len(heard["done"]) < 2:
        for op, more in listen(socket, "done").items():
            heard.setdefault(op, []).extend(more)
    assert [done["state"] for done in heard["done"]] == ["done", "done"]
    first = [next(f for f in heard["frame"] if f["side"] == side) for side in (0, 1)]
    assert first[0]["step"] == first[1]["step"] == 0
    # the same seed: the same energy to begin with
    for name in ("log_density", "particles"):
        np.testing.assert_array_equal(first[0]["data"][name], first[1]["data"][name])
    last = [[f for f in heard["frame"] if f["side"] == side][-1] for side in (0, 1)]
    assert last[0]["step"] == last[1]["step"] == 6
    assert not np.array_equal(last[0]["data"]["log_density"], last[1]["data"]["log_density"])
    judged = {done["side"]: done["judged"] for done in heard["done"]}
    for name in ("kl", "off_mass", "fisher_gap"):  # of the picture, and of a fine grid
        assert last[0][name] == pytest.approx(judged[0][name], rel=0.05), name

    for op in ("evolve", "meet"):
        socket.send_json({"op": op, "side": 1, "step": 4})
        assert listen(socket, op)[op][0]["side"] == 1
    socket.send_json({"op": "export", "side": 0})
    told = listen(socket, "exported")["exported"][0]
    run = load(told["path"])
    assert run.step == 6 and run.judged["kl"] == judged[0]["kl"]
    assert (Path(told["path"]) / "script.py").read_text() == told["script"]


def test_stop_and_no_second_training_meanwhile(socket):
    socket.send_json({**TRAIN, "optimization": {"steps": 20_000, "batch": 8}})
    listen(socket, "start")
    socket.send_json(TRAIN)
    assert "press stop first" in listen(socket, "error")["error"][0]["message"]
    socket.send_json({"op": "export", "side": 0})
    assert "got one that is training" in listen(socket, "error")["error"][0]["message"]
    socket.send_json({"op": "stop"})
    done = listen(socket, "done", most=5000)["done"][0]
    assert done["state"] == "stopped" and 0 < done["step"] < 20_000


def test_a_run_that_diverges_says_so_at_once(socket):
    wild = {"kind": "cd", "steps": 30, "step_size": 1e38}
    steps = {"steps": 5000, "batch": 8}
    socket.send_json({**TRAIN, "objectives": [wild], "optimization": steps})
    done = listen(socket, "done", most=5000)["done"][0]
    assert done["state"] == "diverged" and "not finite" in done["message"]
    assert 1 <= done["step"] < 50
    socket.send_json({"op": "export", "side": 0})
    assert "got one that is diverged" in listen(socket, "error")["error"][0]["message"]


def test_frames_wait_for_the_page(socket):
    r"""Without acknowledgements at most three frames are on their way, besides the last."""
    socket.send_json({**TRAIN, "optimization": {"steps": 60, "batch": 8}})
    frames, done = [], None
    while done is None:
        message = socket.receive()
        if message.get("bytes") is None:
            done = json.loads(message["text"])
        elif (header := unpack(message["bytes"])[0])["op"] == "frame":
            frames.append(header)
    assert len(frames) <= AHEAD + 1 and frames[-1]["step"] == 60
    # nothing is lost but pictures: every loss has come
    shapes = {part["name"]: part["shape"] for part in frames[-1]["arrays"]}
    assert frames[-1]["first_loss"] + shapes["losses"][0] - 1 == 60


def test_only_so_many_pages(client, socket, monkeypatch):
    monkeypatch.setattr(server, "SESSIONS", 2)  # with the one that these tests keep open
    with client.websocket_connect("/socket", headers=HOST) as second:
        assert second.receive_json()["op"] == "hello"
        with client.websocket_connect("/socket", headers=HOST) as third:
            assert "at most 2 open pages" in third.receive_json()["message"]
            assert third.receive()["type"] == "websocket.close"
    with client.websocket_connect("/socket", headers=HOST) as fourth:  # the second has gone
        assert fourth.receive_json()["op"] == "hello"


def test_a_worker_that_dies_is_replaced(socket):
    socket.send_json({**TRAIN, "optimization": {"steps": 20_000, "batch": 8}})
    listen(socket, "frame")
    killed = multiprocessing.active_children()
    for child in killed:
        child.kill()
    for _ in killed:
        heard = listen(socket, "error", most=5000)
        assert "ended unexpectedly" in heard["error"][0]["message"] and heard["error"][0]["over"]
    socket.send_json(TRAIN)
    assert listen(socket, "done")["done"][0]["state"] == "done"


# ------------------------------------------------------------------------------- build


def test_the_committed_page_is_built_from_the_sources():
    r"""As `vite.config.ts` does it, without node."""
    root = ROOT / "studio"
    names = ["index.html", "package.json", "tsconfig.json", "vite.config.ts"]
    names += [f"src/{path.name}" for path in (root / "src").iterdir()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\n".encode() + (root / name).read_bytes())
    built = json.loads((STATIC / "build.json").read_text())["sources"]
    assert built == digest.hexdigest(), "build the page anew: cd studio && npm ci && npm run build"


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["studio", "--no-browser"])
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert "pip install 'fokker[studio]'" in line and line.count("\n") == 1


def test_a_port_that_is_taken_or_none(capsys):
    import socket as sockets

    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for port, words in ((taken.getsockname()[1], "expected a free port"), (70_000, "--port")):
            with pytest.raises(SystemExit) as stop:
                cli.main(["studio", "--no-browser", "--port", str(port)])
            assert stop.value.code == 2 and words in capsys.readouterr().err


# ------------------------------------------------------------------------------- strangers


def test_without_the_token_nothing_is_answered(tmp_path):
    guarded = TestClient(app(tmp_path, "secret"), headers=HOST, follow_redirects=False)
    for path in ("/", "/studio.js", "/?token=other", "/?token=", "/studio.js?token=secret"):
        answer = guarded.get(path)
        assert answer.status_code == 403 and "the token" in answer.text
    with (
        pytest.raises(WebSocketDenialResponse) as caught,
        guarded.websocket_connect("/socket?token=secret", headers=HOST),
    ):
        pass
    assert caught.value.status_code == 403
    wrong = {**HOST, "cookie": "fokker-studio-8377=wrong; fokker-studio-1=secret"}
    assert guarded.get("/", headers=wrong).status_code == 403
    answer = guarded.get("/?token=secret")
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    own = {**HOST, "cookie": cookie.split(";")[0]}
    assert guarded.get("/", headers=own).status_code == 200
    with guarded.websocket_connect("/socket", headers=own) as socket:
        assert socket.receive_json()["op"] == "hello"


def test_many_quick_messages_do_not_stop_the_server(client):
    with client.websocket_connect("/socket", headers=HOST) as socket:
        assert socket.receive_json()["op"] == "hello"
        for _ in range(400):  # each answer fills the pipe of the worker
            socket.send_json({"op": "look", "data": "moons"})
        heard = listen(socket, "error", most=1000)
        assert "at most 64 requests at once" in heard["error"][0]["message"]
        assert client.get("/").status_code == 200
        socket.send_json({"op": "nothing"})
        for _ in range(1000):
            if "one of look" in listen(socket, "error", most=1000)["error"][0]["message"]:
                break


def test_settings_that_are_large_together_are_one_line():
    def work():
        worker.MEMORY = 2**28
        worker.bound_memory()
        try:
            torch.zeros(2**28)
        except RuntimeError as error:
            raise ValueError(worker.in_words(error)) from None

    found = attempt(work)  # in a process of its own
    assert found.end == "refused" and "settings that fit into 0.2 GiB, got more" in found.said


def test_few_weights_are_kept_of_a_large_network():
    own = Worker(None, 0)
    for step in range(20):
        own.keep(step, {"w": torch.empty(2**24)})  # 64 MiB, never touched
    assert len(own.kept) == 4 and {0, 19} <= own.kept.keys()


def test_half_open_connections_do_not_keep_the_page_out(tmp_path):
    import socket as sockets

    command = [sys.executable, "-m", "fokker", "studio", "--port", "0", "--no-browser"]
    limited = f"ulimit -n 256; exec {' '.join(command)} --runs {tmp_path}"
    own = subprocess.Popen(
        ["bash", "-c", limited], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    place, held = own.stdout.readline().split()[1], []
    port = int(place.split(":")[2].split("/")[0])
    try:
        for _ in range(300):
            one = sockets.create_connection(("127.0.0.1", port), timeout=5)
            one.sendall(b"GET / HTTP/1.1\r\nHost: x")  # and no more
            held.append(one)
        begin = time.perf_counter()
        answer = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(place)
        assert answer.status == 200 and b"studio" in answer.read()
        assert time.perf_counter() - begin < 5
    finally:
        for one in held:
            one.close()
        own.terminate()
        said = own.communicate(timeout=20)[1]
    assert len(said) < 2000, said[:2000]


def test_what_a_killed_session_left_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr("fokker.studio.session.PLACE", tmp_path / "fokker-studio")
    left = tmp_path / ".fokker-studio.0123abcd.partial"
    (left / "run-1-0").mkdir(parents=True)
    live = Session(None, None, tmp_path)
    assert not left.exists() and live.folder.is_dir()
    other = Session(None, None, tmp_path)
    assert live.folder.is_dir() and other.folder != live.folder
    live.close()
    other.close()
    assert not any(tmp_path.iterdir())


def test_two_exports_at_once_are_two_folders(tmp_path):
    run = fit(Config(**{**TINY, "optimization": Optimization(steps=2, batch=8)}), tmp_path / "r")
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(export, run.path, tmp_path / "runs", "x", 2) for _ in range(8)]
        places = {future.result()[0] for future in made}
    assert len(places) == 8 and all(load(place).step == 2 for place in places)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {place.name for place in places}
