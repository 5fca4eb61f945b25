r"""The order of a traced function: the same results, holding less."""

import torch

from fokker.compute import order
from fokker.compute.tracing import trace
from test_slices import Live
from torch.fx.experimental.proxy_tensor import make_fx

N = 1000


def chain(x, w):
    r"""A term that keeps five results of the size of x for its derivative."""
    for _ in range(5):
        x = torch.sin(x * w)
    return x.sum()


def two_terms(w, a, b):
    return torch.func.grad(lambda w: chain(a, w) - chain(b, w))(w)


def graph_of(function, *inputs):
    traced = make_fx(function, tracing_mode="fake")(*inputs).graph
    traced.eliminate_dead_code()
    return traced


def inputs():
    return torch.tensor(1.5), torch.randn(N), torch.randn(N)


def test_terms_run_one_after_another():
    graph = graph_of(two_terms, *inputs())
    before = order.held(graph)
    order.reorder(graph)
    graph.lint()
    one = graph_of(lambda w, a: torch.func.grad(lambda w: chain(a, w))(w), *inputs()[:2])
    order.reorder(one)
    assert before > 1.8 * order.held(one)
    size = torch.get_default_dtype().itemsize * N
    assert order.held(graph) <= order.held(one) + 1.1 * size  # one result beside


def test_what_is_held_is_what_is_counted():
    given = inputs()
    traced = trace(two_terms, *given)
    with Live() as live:
        traced(*given, noise=[])
    counted = order.held(traced.graph.graph)
    assert abs(live.peak - counted) <= 0.02 * counted


def test_the_results_are_the_same():
    given = inputs()
    traced = trace(two_terms, *given)
    assert torch.equal(traced(*given, noise=[]), two_terms(*given))


def test_writes_keep_their_order():
    def function(x):
        y = x * 2
        before = y.sin()
        y.add_(1)
        after = y.cos()
        z = torch.empty_like(x)
        z.fill_(3.0)
        first, second = torch.split(z, N // 2)
        low = first + 0
        first.mul_(2)
        return before.sum() + after.sum(), low, z.sum() + second.sum()

    x = torch.randn(N)
    traced = trace(function, x)
    nodes = list(traced.graph.graph.nodes)
    for shuffled in (order.schedule(traced.graph.graph), nodes):
        place = {node: k for k, node in enumerate(shuffled)}
        write = next(n for n in nodes if "add_" in str(n.target))
        sine = next(n for n in nodes if "sin" in str(n.target) and "cos" not in str(n.target))
        cosine = next(n for n in nodes if "cos" in str(n.target))
        assert place[sine] < place[write] < place[cosine]
    for a, b in zip(traced(x, noise=[]), function(x), strict=True):
        assert torch.equal(a, b)


def test_parts_of_a_tensor_hold_all_of_it():
    def function(x):
        first, _ = torch.split(x * 2, N // 2)
        total = x.exp().exp().sum()
        return first.sum() + total

    graph = graph_of(function, torch.randn(N))
    whole = next(n for n in graph.nodes if "mul" in str(n.target))
    roots, dirty = order.roots_of(graph)
    views = [n for n in graph.nodes if roots[n] is whole]
    assert len(views) >= 3 and not dirty  # the product, its split, and the half


def test_constants_wait_for_nothing():
    graph = graph_of(lambda x: torch.ones_like(x.exp().sum()) + torch.zeros_like(x), torch.ones(3))
    order.detach_constants(graph)
    assert not any("like" in str(n.target) for n in graph.nodes)
    full = [n for n in graph.nodes if "full" in str(n.target)]
    assert len(full) == 2 and not any(n.all_input_nodes for n in full)
