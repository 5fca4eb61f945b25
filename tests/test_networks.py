r"""Convolutions and the networks built on them."""

import math
import pytest
import torch
import torch.nn.functional as F

from fokker.derivatives import gradient
from fokker.networks import Conv2d, Linear, WideResNet, convolve
from fokker.networks.wideresnet import gain
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx


def count(module):
    return sum(p.numel() for p in module.parameters())


def parameters(module):
    return {k: p.detach() for k, p in module.named_parameters()}


def matching(energy, x, noise):
    r"""Denoising score matching at standard deviation one."""
    return (gradient(energy, x + noise)[1] - noise).square().sum()


def network_gradient(net, *args):
    r"""The gradient of denoising score matching as a function of the parameters."""

    def loss(theta, x, noise):
        return matching(lambda x: functional_call(net, theta, (x, *args)), x, noise)

    return grad(loss)


def close(a, b, **tolerance):
    return all(torch.allclose(a[k], b[k], **tolerance) for k in a)


def kernels(graph):
    r"""The sizes of the kernels of the convolutions of a traced graph, forward and backward."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.convolution.default:
            yield max(node.args[1].meta["val"].shape[2:])
        elif node.target is torch.ops.aten.convolution_backward.default:
            yield max(node.args[2].meta["val"].shape[2:])


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
    assert max(kernels(ours)) == 3
    assert max(kernels(theirs)) >= 8  # the kernel as large as the image that we avoid


def test_compiled_convolution_agrees_with_eager():
    x, w = torch.randn(2, 2, 8, 8), (torch.randn(3, 2, 3, 3), torch.randn(3, 3, 3, 3))
    step = two_layers(convolve)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(w, x)
    assert all(torch.allclose(a, b) for a, b in zip(compiled, step(w, x), strict=True))


def test_convolution_keeps_channels_last():
    layer = Conv2d(4, 5, 3)
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    g = grad(lambda x: layer(x).sin().sum())(x)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    assert g.is_contiguous(memory_format=torch.channels_last)


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


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of the compiler's own
def test_wide_resnet_traced_and_compiled():
    net, x, noise = wide(), torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4)
    theta, step = parameters(net), network_gradient(net)
    graph = make_fx(step, tracing_mode="fake")(theta, x, noise)
    assert max(kernels(graph)) == 3
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
