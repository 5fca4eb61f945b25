r"""Convolutions and the networks built on them."""

import math
import pytest
import torch
import torch.nn.functional as F

from fokker.derivatives import gradient
from fokker.networks import Conv2d, Linear, UNetDenoiser, UNetEnergy, WideResNet, convolve
from fokker.networks.normalization import EPSILON, normalize
from fokker.networks.unet import Attention, double, fold_pixels, halve, unfold_pixels
from fokker.networks.wideresnet import Block, gain
from fokker.objectives import Denoising
from fokker.runs.config import Config, ImageData, UNet
from fokker.runs.toml import dumps, loads
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

# the compiler's own warnings are not ours
COMPILER = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def count(module):
    return sum(p.numel() for p in module.parameters())


def parameters(module):
    return {k: p.detach() for k, p in module.named_parameters()}


def matching(energy, x, noise):
    r"""Denoising score matching at standard deviation one."""
    return (gradient(energy, x + noise)[1] - noise).square().sum()


def network_gradient(net):
    r"""The gradient of denoising score matching as a function of the parameters."""

    def loss(theta, x, noise, *sigma):
        return matching(lambda x: functional_call(net, theta, (x, *sigma)), x, noise)

    return grad(loss)


def close(a, b, **tolerance):
    return all(torch.allclose(a[k], b[k], **tolerance) for k in a)


def convolutions(graph):
    r"""The images and the kernel of each convolution of a traced graph, forward and backward."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.convolution.default:
            x, w = (arg.meta["val"] for arg in node.args[:2])
            yield [x], w
        elif node.target is torch.ops.aten.convolution_backward.default:
            *images, w = (arg.meta["val"] for arg in node.args[:3])
            yield images, w


def largest_kernel(graph):
    return max(max(w.shape[2:]) for _, w in convolutions(graph))


def is_channels_last(graph):
    images = [x for xs, _ in convolutions(graph) for x in xs]
    return all(x.is_contiguous(memory_format=torch.channels_last) for x in images)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [(4, 5), (5, 4)])
def test_convolution_and_its_derivatives(stride, kernel, size):
    x = torch.randn(2, 2, *size, requires_grad=True)
    w = torch.randn(3, 2, kernel, kernel, requires_grad=True)
    b = torch.randn(3, requires_grad=True)
    f = lambda x, w, b: convolve(x, w, b, stride, kernel // 2)
    assert torch.allclose(f(x, w, b), F.conv2d(x, w, b, stride, kernel // 2))
    assert gradcheck(f, (x, w, b))
    assert gradgradcheck(f, (x, w, b))


def third(f, x, w):
    r"""A parameter gradient of a Hessian-vector product, three derivatives deep."""
    slope = grad(lambda x, w: f(x, w).sin().sum())
    return grad(lambda w: grad(lambda x: slope(x, w).square().sum())(x).square().sum())(w)


def test_convolution_has_derivatives_of_any_order():
    x, w = torch.randn(2, 2, 4, 5), torch.randn(3, 2, 3, 3)
    ours = third(lambda x, w: convolve(x, w, None, 2, 1), x, w)
    theirs = third(lambda x, w: F.conv2d(x, w, None, 2, 1), x, w)
    assert torch.allclose(ours, theirs)


def test_convolution_under_vmap():
    x, w, noise = torch.randn(3, 2, 2, 4, 4), torch.randn(3, 2, 2, 3, 3), torch.randn(2, 2, 4, 4)

    def loss(w, x):
        return matching(lambda x: convolve(x, w, None, 2, 1).sin().sum((1, 2, 3)), x, noise)

    each = torch.stack([grad(loss)(*pair) for pair in zip(w, x, strict=True)])
    assert torch.allclose(vmap(grad(loss))(w, x), each)
    each = torch.stack([grad(loss)(v, x[0]) for v in w])
    assert torch.allclose(vmap(grad(loss), (0, None))(w, x[0]), each)


def two_layers(convolution):
    r"""The parameter gradient of score matching with a net of two convolutions."""

    def energy(w, x):
        h = convolution(x, w[0], None, 1, 1).sin()
        return convolution(h, w[1], None, 2, 1).sin().sum((1, 2, 3))

    return grad(lambda w, x: matching(lambda y: energy(w, y), x, x.sin()))


def test_traced_convolutions_keep_small_kernels():
    x, w = torch.randn(2, 2, 8, 8), (torch.randn(3, 2, 3, 3), torch.randn(3, 3, 3, 3))
    ours = make_fx(two_layers(convolve), tracing_mode="fake")(w, x)
    theirs = make_fx(two_layers(F.conv2d), tracing_mode="fake")(w, x)
    assert all(torch.allclose(a, b) for a, b in zip(ours(w, x), theirs(w, x), strict=True))
    assert largest_kernel(ours) == 3
    assert largest_kernel(theirs) >= 8  # the kernel as large as the image that we avoid


def test_compiled_convolution_agrees_with_eager():
    x, w = torch.randn(2, 2, 8, 8), (torch.randn(3, 2, 3, 3), torch.randn(3, 3, 3, 3))
    step = two_layers(convolve)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(w, x)
    assert all(torch.allclose(a, b) for a, b in zip(compiled, step(w, x), strict=True))


def test_convolution_keeps_channels_last():
    layer = Conv2d(4, 5, 3)
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    g = grad(lambda x: layer(x).sin().sum())(x)
    for part in (layer.weight, layer(x), layer(x.contiguous()), g):
        assert part.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layer", [Conv2d(40, 50, 3, gain=0.5), Linear(300, 400, gain=0.5)])
def test_layers_compute_in_the_dtype_of_their_input(layer):
    x = torch.randn(8, 40, 7, 7) if isinstance(layer, Conv2d) else torch.randn(8, 300)
    y = layer(x.float())
    assert y.dtype == torch.float32
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    inner = y[..., 1:-1, 1:-1] if isinstance(layer, Conv2d) else y
    assert abs(inner.std() / 0.5 - 1) < 0.1


def test_layers_say_what_is_wrong():
    with pytest.raises(ValueError, match="expected kernel to be odd, got 2"):
        Conv2d(3, 3, 2)
    with pytest.raises(ValueError, match="expected stride to be an integer >= 1, got 0"):
        Conv2d(3, 3, 3, 0)


def test_wide_resnet_has_the_parameters_of_the_paper():
    # WRN-28-10 by hand: weights and biases of stem, groups, shortcuts and head
    def group(c, out, n):
        first = 9 * c * out + out + 9 * out**2 + out + c * out
        return first + (n - 1) * 2 * (9 * out**2 + out)

    by_hand = 27 * 16 + 16 + group(16, 160, 4) + group(160, 320, 4) + group(320, 640, 4) + 641
    with torch.device("meta"):
        net = WideResNet()
    assert count(net) == by_hand
    assert 36.4e6 < count(net) < 36.6e6


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_wide_resnet_keeps_its_scale(activation):
    net = WideResNet(depth=40, widen=2, activation=activation)
    stds = []
    for module in (net.stem, *net.blocks):
        module.register_forward_hook(lambda _, __, h: stds.append(h.std().item()))
    net(torch.randn(4, 3, 16, 16))
    assert len(stds) == 19
    assert max(stds) / min(stds) < 3


def test_a_branch_has_the_scale_asked_for():
    h = torch.randn(4, 64, 9, 9)
    branch = Block(64, 64, 1, F.silu, 0.3)(h) - h
    rms = branch[..., 2:-2, 2:-2].square().mean().sqrt()  # away from the zeros around the image
    assert abs(rms / 0.3 - 1) < 0.15


def test_gain_is_one_over_the_root_of_the_second_moment():
    assert math.isclose(gain(F.relu), math.sqrt(2), rel_tol=1e-4)  # He's
    assert math.isclose(gain(lambda z: z), 1, rel_tol=1e-9)


FORMS = ["pool", "sum", "square"]


def wide(form="pool", dtype="float64", depth=10, channels=1):
    return WideResNet(channels, depth, 1, form=form, dtype=dtype)


@pytest.mark.parametrize("form", FORMS)
def test_wide_resnet_derivatives(form):
    net, x = wide(form), torch.randn(2, 1, 4, 3, requires_grad=True)
    assert gradcheck(net, x)
    assert gradgradcheck(net, x)
    # and in a parameter, through the score
    noise, theta = torch.randn(2, 1, 4, 3), parameters(net)
    slope = network_gradient(net)(theta, x.detach(), noise)["blocks.0.first.weight"]
    key, h = "blocks.0.first.weight", 1e-5
    v = torch.randn_like(theta[key])
    loss = lambda s: matching(
        lambda x: functional_call(net, {**theta, key: theta[key] + s * v}, x), x.detach(), noise
    )
    assert torch.allclose((loss(h) - loss(-h)) / (2 * h), (slope * v).sum(), rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_wide_resnet_forms(form):
    net = wide(form)
    torch.nn.init.normal_(net.head.bias)
    for size in ((1, 1), (8, 8), (7, 10)):
        assert net(torch.randn(3, 1, *size)).shape == (3,)
    # with one linear map for its layers, every position has the same features
    net.blocks, net.stem = torch.nn.Identity(), torch.nn.Conv2d(1, 64, 1)
    small, large = net(torch.ones(1, 1, 4, 4)), net(torch.ones(1, 1, 8, 8))
    assert torch.allclose(large, small if form == "pool" else 4 * small)
    h = F.silu(net.stem(torch.ones(1, 1, 1, 1))).flatten()
    z = net.head(h)
    assert torch.allclose(small, {"pool": z, "sum": 16 * z, "square": 8 * z**2}[form])


@pytest.mark.parametrize("form", FORMS)
def test_wide_resnet_in_bfloat16(form):
    net, x = wide(form, "float32", channels=3).float(), torch.randn(4, 3, 8, 8).float()
    e, g = gradient(net, x)
    net.dtype = torch.bfloat16
    low, slope = gradient(net, x)
    assert low.dtype == slope.dtype == torch.float32
    assert not torch.equal(low, e)
    assert (low - e).abs().max() < 0.05 * e.abs().max()
    assert (slope - g).norm() < 0.05 * g.norm()


@COMPILER
def test_wide_resnet_traced_and_compiled():
    net = wide()
    net.blocks, net.head = net.blocks[1:2], Linear(32, 1)  # a block of stride 2, quick to compile
    x, noise = torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4)
    theta, step = parameters(net), network_gradient(net)
    graph = make_fx(step, tracing_mode="fake")(theta, x, noise)
    assert largest_kernel(graph) == 3
    assert is_channels_last(graph)
    assert close(torch.compile(graph)(theta, x, noise), step(theta, x, noise))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"depth": 4}, "expected depth to be 6 n \\+ 4 with n >= 1, got 4"),
        ({"depth": 27}, "expected depth to be 6 n \\+ 4 with n >= 1, got 27"),
        ({"widen": 0}, "expected widen to be an integer >= 1, got 0"),
        ({"form": "max"}, "expected form to be one of pool, sum, square, got 'max'"),
        ({"dtype": "int8"}, "expected dtype to be one of float32, bfloat16, float64, got 'int8'"),
        ({"activation": "relu"}, "expected activation to be one of gelu, silu"),
    ],
)
def test_wide_resnet_says_what_is_wrong(options, line):
    with pytest.raises(ValueError, match=line):
        WideResNet(**options)


def test_images_say_what_is_wrong():
    line = r"expected images of shape \(B, 1, H, W\), got \(2, 3, 4, 4\)"
    with pytest.raises(ValueError, match=line):
        wide()(torch.randn(2, 3, 4, 4))
    with pytest.raises(
        ValueError, match=r"expected images of shape \(B, 1, H, W\), got \(2, 16\)"
    ):
        wide()(torch.randn(2, 16))
    with pytest.raises(ValueError, match=r"expected images of a floating dtype, got torch.uint8"):
        wide()(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))


UNET_FORMS = ["inner", "square", "pool", "sum"]


def unet(form="inner", dtype="float64", channels=1, multipliers=(1, 2), **options):
    r"""A small U-Net that is past its start: no layer is zero."""
    net = UNetEnergy(channels, 4, multipliers, 1, head=4, form=form, dtype=dtype, **options)
    for p in net.parameters():
        p.data.normal_(0, 0.5 / math.sqrt(p[0].numel()))
    return net


def test_the_sum_over_positions_is_the_mean_times_their_number():
    pool, total = unet("pool"), UNetEnergy(1, 4, (1, 2), 1, head=4, form="sum", dtype="float64")
    total.load_state_dict(pool.state_dict())
    sigma, head = torch.tensor(0.5), pool.head
    for h, w in ((4, 4), (6, 10)):
        u = torch.randn(2, 1, h, w)
        mean, bias = pool.scalar(u, sigma), 0.0 if head.bias is None else head.bias
        expected = h * w / 4 * (mean - bias) + bias
        assert torch.allclose(total.scalar(u, sigma), expected)


def test_unet_has_about_the_parameters_of_ddpm():
    with torch.device("meta"):
        assert 15e6 < count(UNetEnergy()) < 16.2e6


@pytest.mark.parametrize("form", UNET_FORMS)
def test_unet_denoiser_is_that_of_edm(form):
    net, x = unet(form, sigma_data=0.7), torch.randn(3, 1, 4, 4)
    for sigma in (torch.tensor(0.3), torch.tensor([0.01, 0.5, 80.0])):
        e, g = gradient(net.at(sigma), x)
        s = sigma.reshape(-1, 1, 1, 1)
        d = x - s**2 * g
        assert torch.allclose(net.denoise(x, sigma), d, atol=1e-9)
        # EDM, Table 1, with the gradient of g for its network
        c_in = (s**2 + 0.7**2).rsqrt()
        _, f = gradient(lambda u, sigma=sigma: net.scalar(u, sigma), c_in * x)
        assert torch.allclose(d, 0.7**2 * c_in**2 * x + s * 0.7 * c_in * f, atol=1e-9)
        scalar = net.scalar(c_in * x, sigma)
        flat = (c_in * x).square().sum((1, 2, 3)) / 2
        constant = -16 * torch.log(c_in.flatten() / math.sqrt(2 * math.pi))
        assert torch.allclose(e, flat + constant - 0.7 / sigma * scalar)


@pytest.mark.parametrize("form", ["inner", "pool", "sum"])
def test_unet_starts_as_the_gaussian(form):
    net = UNetEnergy(1, 4, (1, 2), 1, head=4, form=form, sigma_data=0.7, dtype="float64")
    x, sigma = torch.randn(2, 1, 4, 4), torch.tensor([0.1, 2.0])
    v = sigma**2 + 0.7**2
    exact = torch.distributions.Normal(0.0, v.sqrt()[:, None, None, None])
    assert torch.allclose(net(x, sigma), -exact.log_prob(x).sum((1, 2, 3)))
    assert torch.allclose(net.denoise(x, sigma), (0.49 / v)[:, None, None, None] * x)


@pytest.mark.parametrize("form", UNET_FORMS)
def test_unet_leaves_its_start(form):
    net = UNetEnergy(1, 4, (1, 2), 1, head=4, form=form, dtype="float64")
    x, noise = torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4)
    theta, step = parameters(net), network_gradient(net)
    for _ in range(6):  # zeros in a row wake one after the other
        slope = step(theta, x, noise, torch.tensor(1.0))
        theta = {k: theta[k] - 1e-3 * g for k, g in slope.items()}
    silent = [k for k, g in slope.items() if not g.any()]
    # the score does not see a constant
    assert silent == (["head.bias"] if form in {"pool", "sum"} else [])


@pytest.mark.parametrize("form", UNET_FORMS)
def test_unet_treats_points_on_their_own(form):
    net, x, sigma = unet(form), torch.randn(3, 1, 4, 8), torch.tensor([0.1, 1.0, 1.0])
    e = net(x, sigma)
    each = torch.stack([net(x[i : i + 1], float(sigma[i]))[0] for i in range(3)])
    assert e.shape == (3,)
    assert torch.allclose(e, each)
    assert torch.allclose(net.at(sigma)(x.repeat(2, 1, 1, 1)), e.repeat(2))
    # the network itself is told of the noise
    assert not torch.allclose(net.scalar(x, sigma), net.scalar(x, 2 * sigma))


@pytest.mark.parametrize("form", UNET_FORMS)
def test_unet_derivatives(form):
    net, x = unet(form), torch.randn(2, 1, 2, 4, requires_grad=True)
    energy = net.at(torch.tensor([0.5, 2.0]))
    assert gradcheck(energy, x)
    assert gradgradcheck(energy, x)


def test_unet_of_any_size():
    net = unet(multipliers=(1, 2, 2))
    for size in ((4, 4), (8, 12), (20, 4)):
        x = torch.randn(2, 1, *size)
        assert net(x, 0.5).shape == (2,)
        assert net.denoise(x, 0.5).shape == x.shape
    deep = unet(multipliers=(1, 1, 1, 1), attention=(0, 3))
    assert deep(torch.randn(2, 1, 8, 16), 0.5).shape == (2,)


@pytest.mark.parametrize("form", UNET_FORMS)
def test_unet_in_bfloat16(form):
    net, x = unet(form, "float32", channels=3).float(), torch.randn(4, 3, 8, 8).float()
    e, d = net(x, 0.5), net.denoise(x, 0.5)
    net.dtype = torch.bfloat16
    low, denoised = net(x, 0.5), net.denoise(x, 0.5)
    assert low.dtype == denoised.dtype == torch.float32
    assert not torch.equal(low, e)
    assert torch.allclose(low, e, rtol=0.02)
    assert (denoised - d).norm() < 0.02 * d.norm()


def test_resampling():
    x = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    assert torch.allclose(halve(x), F.avg_pool2d(x, 2))
    assert torch.allclose(double(x), F.interpolate(x, scale_factor=2, mode="nearest"))
    for h in (halve(x), double(x)):
        assert h.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_folding(n):
    x = torch.randn(2, 3, 2 * n, 4 * n).to(memory_format=torch.channels_last)
    h = fold_pixels(x, n)
    assert h.shape == (2, 3 * n * n, 2, 4)
    assert torch.equal(unfold_pixels(h, n), x)
    assert torch.equal(fold_pixels(unfold_pixels(h, n), n), h)
    for i in range(n):  # rows and columns of every block, by index
        for j in range(n):
            own = h[:, (i * n + j) * 3 : (i * n + j + 1) * 3]
            assert torch.equal(own, x[:, :, i::n, j::n])
    # as torch does it, but for the order of channels
    order = torch.arange(3 * n * n).reshape(3, n * n).T.flatten()
    assert torch.equal(h, F.pixel_unshuffle(x, n)[:, order])
    for t in (h, unfold_pixels(h, n)):
        assert t.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("form", UNET_FORMS)
def test_folded_unet_denoiser_is_that_of_its_energy(form):
    net, x = unet(form, fold=2, sigma_data=0.7), torch.randn(3, 1, 4, 8)
    assert net.stem.weight.shape[1] == 4
    for sigma in (torch.tensor(0.3), torch.tensor([0.01, 0.5, 80.0])):
        _, g = gradient(net.at(sigma), x)
        d = x - sigma.reshape(-1, 1, 1, 1) ** 2 * g
        assert torch.allclose(net.denoise(x, sigma), d, atol=1e-9)


@pytest.mark.parametrize("form", UNET_FORMS)
def test_folded_unet_derivatives(form):
    net = unet(form, fold=2, multipliers=(1,), attention=(0,))
    x = torch.randn(2, 1, 2, 4, requires_grad=True)
    energy = net.at(torch.tensor([0.5, 2.0]))
    assert gradcheck(energy, x)
    assert gradgradcheck(energy, x)


@pytest.mark.parametrize("form", ["inner", "square"])
def test_a_folded_unet_is_one_of_folded_images(form):
    r"""Folding moves pixels and nothing else: g is that of the plain network on folded images."""
    net = unet(form, fold=2, channels=3)
    plain = UNetEnergy(12, 4, (1, 2), 1, head=4, form=form, dtype="float64")
    plain.load_state_dict(net.state_dict())
    u, sigma = torch.randn(2, 3, 8, 4), torch.tensor([0.5, 2.0])
    assert torch.allclose(net.scalar(u, sigma), plain.scalar(fold_pixels(u, 2), sigma))


def test_a_folded_unet_has_sides_of_its_own():
    net = unet(fold=2, multipliers=(1, 2, 2))
    assert net.multiple == 8 and net(torch.randn(2, 1, 8, 16), 0.5).shape == (2,)
    with pytest.raises(ValueError, match=r"H and W multiples of 8, got \(2, 1, 8, 12\)"):
        net(torch.randn(2, 1, 8, 12), 0.5)


def test_one_head_has_all_channels():
    net = unet(multipliers=(1, 2), attention=(0, 1), heads=1)
    found = {m.head for m in net.modules() if isinstance(m, Attention)}
    assert found == {4, 8}
    both = unet(multipliers=(1, 2), attention=(0, 1), heads=2)
    assert {m.head for m in both.modules() if isinstance(m, Attention)} == {2, 4}


@pytest.mark.parametrize("form", ["inner", "denoiser", "sum"])
def test_unets_of_old_configurations_are_the_same(form):
    r"""A configuration without the newer keys gives the network it always gave, bit for bit."""
    text = f'''
    [data]
    kind = "images"
    [objective]
    kind = "denoising"
    [network]
    kind = "unet"
    width = 8
    blocks = 1
    form = "{form}"
    sigma_data = 0.5
    precision = "float32"
    '''
    config = loads(text)
    assert config.network == UNet(8, 1, form)
    assert loads(dumps(config)) == config
    torch.manual_seed(0)
    found = config.network.build((3, 8, 8)).state_dict()
    torch.manual_seed(0)
    kind = UNetDenoiser if form == "denoiser" else UNetEnergy
    options = {} if form == "denoiser" else {"form": form}
    expected = kind(3, 8, blocks=1, head=16, **options).state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[k], v) for k, v in expected.items())


def test_unets_of_a_configuration():
    network = UNet(8, 1, fold=2, multipliers=(1, 2), attention=(0, 1), heads=1)
    config = Config(ImageData(), Denoising(0.3), network)
    assert loads(dumps(config)) == config
    net = network.build((3, 8, 12))
    assert net.fold == 2 and net.multiple == network.multiple == 4
    assert {m.head for m in net.modules() if isinstance(m, Attention)} == {8, 16}
    odd = UNet(12, 1, multipliers=(1, 3), attention=(0,))  # heads divide all levels with attention
    assert {m.head for m in odd.build((1, 8, 8)).modules() if isinstance(m, Attention)} == {4}
    for sides, own in (((12, 16), UNet(8, fold=2)), ((30, 32), UNet(8))):
        line = f"sides that are multiples of {own.multiple}, got {sides[1]}x{sides[0]}; a size, such as 32"
        with pytest.raises(ValueError, match=line):
            own.build((3, *sides))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"fold": 0}, "expected fold to be an integer >= 1, got 0"),
        ({"heads": 0}, "expected heads to be an integer >= 1, got 0"),
        ({"multipliers": ()}, "expected the number of multipliers .*got 0"),
        ({"multipliers": (1, 0)}, r"expected multipliers\[1\] to be an integer >= 1, got 0"),
        ({"multipliers": [1, 2]}, r"expected multipliers to be a tuple of integers, got \[1, 2\]"),
        (
            {"attention": (3,)},
            r"expected attention at levels 0 to 2, one a multiplier, got \(3,\)",
        ),
        ({"attention": (1.0,)}, r"expected attention to be a tuple of integers, got \(1\.0,\)"),
    ],
)
def test_configurations_of_unets_say_what_is_wrong(edit, message):
    with pytest.raises(ValueError, match=message):
        UNet(**edit)


@pytest.mark.parametrize("dim", [1, 2])
def test_derivatives_of_the_normalization(dim: int) -> None:
    plain = lambda h: h * torch.rsqrt(h.square().mean(dim, keepdim=True) + EPSILON)
    h, u, v = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3))
    assert torch.allclose(normalize(h, dim), plain(h))

    def third(f):  # a derivative of every order up to three
        slope = lambda h: torch.func.vjp(f, h)[1](u)[0]
        curve = lambda h: torch.func.vjp(slope, h)[1](v)[0]
        return slope(h), curve(h), torch.func.vjp(curve, h)[1](u * v)[0]

    for a, b in zip(third(lambda h: normalize(h, dim)), third(plain), strict=True):
        assert torch.allclose(a, b, rtol=1e-10)
    free = h.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda h: normalize(h, dim), free)


def test_normalization():
    h = normalize(10 * torch.randn(2, 5, 3, 4))
    assert torch.allclose(h.square().mean(1), torch.ones(2, 3, 4), atol=1e-4)
    assert normalize(h.bfloat16()).dtype == torch.float32


def attention(fused=False):
    layer = Attention(8, 4, fused)
    torch.nn.init.normal_(layer.outward.weight)
    return layer


def test_attention_in_words():
    layer, h = attention(), torch.randn(1, 8, 2, 3)
    tokens = normalize(h).flatten(2)[0].T  # (6, 8)
    q, k, v = layer.inward(tokens).chunk(3, dim=1)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        logits = 2 * F.cosine_similarity(q[:, None, part], k[None, :, part], dim=2)
        heads.append(logits.softmax(1) @ v[:, part])
    out = h + layer.outward(torch.cat(heads, 1)).T.reshape(1, 8, 2, 3)
    assert torch.allclose(layer(h), out, atol=1e-3)  # the norm is regularized


def test_fused_attention_agrees():
    explicit, fused, h = attention(), attention(True), torch.randn(2, 8, 3, 4)
    fused.load_state_dict(explicit.state_dict())
    assert torch.allclose(explicit(h), fused(h))
    slopes = [grad(lambda h, f=f: f(h).sin().sum())(h) for f in (explicit, fused)]
    assert torch.allclose(*slopes)
    assert not torch.allclose(explicit(h), h)


@pytest.mark.slow
@COMPILER
@pytest.mark.parametrize("fold", [1, 2])
def test_unet_traced_and_compiled(fold):
    net = unet(attention=(), fold=fold)  # that of the middle stays
    side = 4 * fold
    batch = torch.randn(2, 1, side, side), torch.randn(2, 1, side, side), torch.tensor([0.5, 2.0])
    theta, step = parameters(net), network_gradient(net)
    graph = make_fx(step, tracing_mode="fake")(theta, *batch)
    assert largest_kernel(graph) == 3
    assert is_channels_last(graph)
    # decomposed as for Inductor, whose own code takes minutes to build on a CPU
    compiled = torch.compile(graph, backend="aot_eager_decomp_partition")
    assert close(compiled(theta, *batch), step(theta, *batch))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"width": 0}, "expected width to be an integer >= 1, got 0"),
        ({"multipliers": (1, 0)}, r"expected multipliers\[1\] to be an integer >= 1, got 0"),
        (
            {"attention": (3,)},
            r"expected attention at levels 0 to 2, one a multiplier, got \(3,\)",
        ),
        ({"width": 80}, "expected heads that divide 160 channels, got head 64"),
        ({"heads": 5}, "expected heads that divide 192 channels, got 5 heads"),
        ({"fold": 0}, "expected fold to be an integer >= 1, got 0"),
        ({"form": "mean"}, "expected form to be one of inner, square, pool, sum, got 'mean'"),
        ({"sigma_data": -1.0}, "expected sigma_data to be a finite number > 0, got -1.0"),
        ({"dtype": "int8"}, "expected dtype to be one of float32, bfloat16, float64, got 'int8'"),
    ],
)
def test_unet_says_what_is_wrong(options, line):
    with torch.device("meta"), pytest.raises(ValueError, match=line):
        UNetEnergy(**options)


def test_unet_says_what_is_wrong_with_points():
    net, x = unet(), torch.randn(2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"H and W multiples of 2, got \(2, 1, 4, 3\)"):
        net(x[..., :3], 1.0)
    with pytest.raises(ValueError, match=r"expected sigma of shape \(\) or \(2,\), got \(3,\)"):
        net(x, torch.ones(3))
    with pytest.raises(ValueError, match=r"expected sigma to be a finite number > 0, got 0\.0"):
        net.denoise(x, 0.0)
