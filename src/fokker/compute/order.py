r"""The order of a flat graph: the same operations, holding less at once.

Autograd runs all of a loss forward and then all of it backward. Where a loss is a sum of terms
that share only their inputs, as the two energies of a central difference, the terms could run
forward and backward one after another, and hold the activations of one at a time.

The order is that of a list schedule. A result takes its bytes when it is computed and frees them
after its last use; a view takes none. Of the operations whose operands are there

1. the first that frees at least what it takes, up to a tolerance, runs next;
2. if there is none, the first,

where the first is that of a depth-first order (`depth_first`): all that one output needs comes
before what the next needs, so one term is finished before another begins. A constant does not wait
for the tensor whose shape it has (`detach_constants`): the ones that a backward pass begins with
have the shape of the loss. The schedule is taken if its peak is lower than that of the traced
order. Operations on memory that some operation writes to keep their order.
"""

__all__ = ["held", "reorder", "written"]

import heapq
import operator
import torch
import torch.utils._pytree as pytree

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten
SMALL = 0.01  # tolerance, as a share of the largest result


def is_part(node: Node) -> bool:
    r"""Returns whether a node is one result of an operation that has several."""
    return node.target is operator.getitem


def size_of(node: Node) -> int:
    r"""Returns the bytes of the result of a node, zero unless it is a tensor."""
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def aliases(node: Node) -> list[tuple[Node, bool]]:
    r"""Returns the operands whose memory the result of a node shares, and whether it writes to
    each."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    schema = node.target._schema.arguments
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
    return [
        (held, argument.alias_info.is_write)
        for argument in schema
        if argument.alias_info is not None
        for held in pytree.tree_leaves(given.get(argument.name))
        if isinstance(held, Node)
    ]


def roots_of(graph: Graph) -> tuple[dict[Node, Node], set[Node]]:
    r"""Returns the node that first had the memory of each node, and the roots written to."""
    roots: dict[Node, Node] = {}
    dirty: set[Node] = set()
    for node in graph.nodes:
        roots[node] = node
        if is_part(node) and roots[node.args[0]] is not node.args[0]:  # of a view, as by split
            roots[node] = roots[node.args[0]]
        for held, is_write in aliases(node):
            roots[node] = roots[held]
            dirty |= {roots[held]} if is_write else set()
    return roots, dirty


def written(graph: Graph) -> set[Node]:
    r"""Returns the nodes whose memory some operation of a graph writes to: results, and views of
    them."""
    roots, dirty = roots_of(graph)
    parts = {node for node in graph.nodes if is_part(node) and roots[node.args[0]] in dirty}
    return {node for node, root in roots.items() if root in dirty} | parts


class Ledger:
    r"""What each operation of a graph takes and frees.

    Arguments:
        graph: The graph; its nodes have the tensors of the trace in `meta`.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = [n for n in graph.nodes if n.op not in {"placeholder", "output"}]
        roots, _ = roots_of(graph)
        kept = {roots[n] for n in graph.nodes if n.op in {"placeholder", "get_attr"}}
        kept |= {roots[n] for n in graph.output_node().all_input_nodes}
        users: dict[Node, set[Node]] = defaultdict(set)
        for node in self.nodes:
            for operand in node.all_input_nodes:
                users[roots[operand]].add(node)
        self.takes: dict[Node, int] = defaultdict(int)  # bytes
        self.uses: dict[Node, set[Node]] = defaultdict(set)  # the roots that each node is a use of
        self.bytes: dict[Node, int] = {}
        for root in set(roots.values()):
            if root.op != "call_function":
                continue
            maker = root.args[0] if is_part(root) else root  # several results are made together
            assert isinstance(maker, Node)
            self.takes[maker] += size_of(root)
            if root not in kept:
                self.bytes[root] = size_of(root)
                for user in users[root]:
                    self.uses[user].add(root)
        self.left = {root: len(users[root]) for root in self.bytes}
        self.users = users

    def frees(self, node: Node) -> int:
        r"""Returns the bytes that a node frees if it runs next."""
        return sum(self.bytes[root] for root in self.uses[node] if self.left[root] == 1)

    def run(self, node: Node) -> tuple[int, list[Node]]:
        r"""Runs a node; returns the bytes it freed, and the roots with one use left."""
        freed, last = 0, []
        for root in self.uses[node]:
            self.left[root] -= 1
            if self.left[root] == 0:
                freed += self.bytes[root]
            elif self.left[root] == 1:
                last.append(root)
        return freed, last


def held(graph: Graph, order: Sequence[Node] | None = None) -> int:
    r"""Returns the most bytes of results that are held at once in an order, that of the graph if
    not given."""
    ledger = Ledger(graph)
    now = most = 0
    for node in ledger.nodes if order is None else order:
        now += ledger.takes[node]
        most = max(most, now)
        now -= ledger.run(node)[0]
    return most


def depth_first(nodes: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    r"""Returns operations in a depth-first order from the outputs, deepest first.

    Of the operands of an operation that of the longest chain comes first: the gradient that a
    backward pass carries along before what it meets at each layer.

    Arguments:
        nodes: The operations, as traced.
        outputs: The outputs.
    """
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth.get(o, 0) for o in node.all_input_nodes), default=0)
    deepest = lambda found: sorted({n for n in found if n in depth}, key=lambda n: depth[n])
    order: dict[Node, None] = {}
    stack = [(n, False) for n in deepest(outputs)]
    while stack:
        node, entered = stack.pop()
        if node in order:
            continue
        if entered:
            order[node] = None
        else:
            stack.append((node, True))
            stack += [
                (o, False) for o in deepest(node.all_input_nodes)
            ]  # the last is popped first
    order |= dict.fromkeys(nodes)  # those that write to memory and return nothing that is used
    return list(order)


def schedule(graph: Graph) -> list[Node]:
    r"""Returns the operations of a graph in the order of the list schedule."""
    ledger = Ledger(graph)
    first = depth_first(ledger.nodes, graph.output_node().all_input_nodes)
    place = {node: i for i, node in enumerate(first)}
    tolerance = int(SMALL * max((size_of(n) for n in ledger.nodes), default=0))
    needs = {n: {o for o in n.all_input_nodes if o in place} for n in ledger.nodes}
    roots, dirty = roots_of(graph)
    touching: dict[Node, list[Node]] = defaultdict(list)
    for node in ledger.nodes:
        for root in {roots[o] for o in (node, *node.all_input_nodes)} & dirty:
            touching[root].append(node)
    for nodes in touching.values():
        for before, after in pairwise(nodes):
            needs[after].add(before)
    feeds: dict[Node, list[Node]] = defaultdict(list)
    for node, operands in needs.items():
        for operand in operands:
            feeds[operand].append(node)
    waits = {node: len(operands) for node, operands in needs.items()}
    ready: list[int] = []  # heaps of places
    shrinking: list[int] = []
    done: set[Node] = set()
    order: list[Node] = []

    def offer(node: Node) -> None:
        if ledger.takes[node] - ledger.frees(node) <= tolerance:
            heapq.heappush(shrinking, place[node])

    def enter(node: Node) -> None:
        heapq.heappush(ready, place[node])
        offer(node)

    for node in ledger.nodes:
        if waits[node] == 0:
            enter(node)
    while len(order) < len(ledger.nodes):
        node = first[heapq.heappop(shrinking or ready)]
        if node in done:
            continue
        done.add(node)
        order.append(node)
        for after in feeds[node]:
            waits[after] -= 1
            if waits[after] == 0:
                enter(after)
        for root in ledger.run(node)[1]:  # its last use now frees it
            for user in ledger.users[root]:
                if user not in done and waits[user] == 0:
                    offer(user)
    return order


def detach_constants(graph: Graph) -> None:
    r"""Makes constants that have the shape of another tensor independent of that tensor."""
    values = {aten.ones_like.default: 1, aten.zeros_like.default: 0}
    for node in list(graph.nodes):
        like = node.meta.get("val")
        if node.target not in values or not like.is_contiguous():
            continue
        options = {"dtype": like.dtype, "device": like.device}
        with graph.inserting_before(node):
            constant = graph.call_function(
                aten.full.default, (list(like.shape), values[node.target]), options
            )
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        graph.erase_node(node)


def reorder(graph: Graph) -> None:
    r"""Puts the operations of a graph into an order that holds less at once, where there is a
    better one than its own."""
    detach_constants(graph)
    order = schedule(graph)
    if held(graph, order) >= held(graph):
        return
    end = graph.output_node()
    for node in order:
        end.prepend(node)
