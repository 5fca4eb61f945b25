r"""Two nodes: one run on two machines, one of which is killed and joins again.

The machines are two network namespaces, joined by a pair of virtual interfaces. Each starts
`torchrun` with one rank; they meet by the rendezvous of the first and train one run, with Gloo.
All processes of the second are killed (SIGKILL) once the run has saved a checkpoint; a torchrun
that has ended is started again, as a scheduler does; all ranks go on from the newest checkpoint.
In the end the run must be the same as that of two ranks on one machine left alone, bit for bit.
Needs Linux, and root for the namespaces.

    python studies/trust/nodes.py --out results/trust.json
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

from fokker.objectives import MultiTimeDCD
from fokker.runs.checkpoints import names, newest
from fokker.runs.config import Config, Network, Optimization, ToyData
from fokker.runs.toml import dumps
from pathlib import Path
from studies.trust import record
from studies.trust.kill import difference

ADDRESS = "10.77.0.1"
PORT = 29517
STARTS = 8  # of torchrun after the death of a node
TIMES = "read_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=2"  # of the rendezvous
CONFIG = Config(
    ToyData("moons"),
    MultiTimeDCD(points=16),
    Network(16, 3, confine=0.7),
    Optimization(steps=1500, batch=64),
    evaluate=100,
)
DRIVER = """
import sys, torch
from fokker import fit
from fokker.runs.toml import loads
torch.set_num_threads(1)
fit(loads(open(sys.argv[1]).read()), sys.argv[2], resume="if-any")
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def connect(names: tuple[str, str]) -> None:
    r"""Makes two network namespaces that see each other."""
    for name in names:
        ip("netns", "add", name)
    ip("link", "add", "fokker0", "netns", names[0], "type", "veth", "peer", "fokker1", "netns",
       names[1])  # fmt: skip
    for i, name in enumerate(names):
        ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"fokker{i}")
        ip("-n", name, "link", "set", f"fokker{i}", "up")
        ip("-n", name, "link", "set", "lo", "up")


def start(
    name: str | None, i: int, nodes: int, ranks: int, root: Path, run: Path
) -> subprocess.Popen[bytes]:
    r"""Starts torchrun on a node, in a session of its own."""
    inside = [] if name is None else ["ip", "netns", "exec", name]
    command = [
        *inside, sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes),
        "--nproc-per-node", str(ranks), "--max-restarts", "5", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"{ADDRESS if name else '127.0.0.1'}:{PORT}", "--rdzv-id", "fokker",
        str(root / "driver.py"), str(root / "config.toml"), str(run),
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if name is not None:
        env |= {"GLOO_SOCKET_IFNAME": f"fokker{i}"}
        command[command.index("--rdzv-id") : command.index("--rdzv-id")] = [
            "--local-addr", f"10.77.0.{i + 1}", "--rdzv-conf", f"is_host={i == 0},{TIMES}",
        ]  # fmt: skip
    log = (root / f"log-{run.name}-{i}").open("ab")
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="that the run may take")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    spaces = (f"fokker-a-{os.getpid()}", f"fokker-b-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        root, run = Path(folder), Path(folder, "run")
        (root / "driver.py").write_text(DRIVER)
        (root / "config.toml").write_text(dumps(CONFIG))
        if start(None, 0, 1, 2, root, root / "whole").wait(60 * given.minutes):
            raise SystemExit((root / "log-whole-0").read_text()[-2000:])
        begin, nodes = time.perf_counter(), []
        try:
            connect(spaces)
            nodes = [start(name, i, 2, 1, root, run) for i, name in enumerate(spaces)]
            while not names(run / "checkpoint") and nodes[0].poll() is None:
                time.sleep(0.05)
            pids = subprocess.run(
                ["ip", "netns", "pids", spaces[1]], check=True, capture_output=True, text=True
            ).stdout.split()
            for pid in pids:  # the whole node
                os.kill(int(pid), signal.SIGKILL)
            nodes[1].wait()
            at, starts = names(run / "checkpoint")[-1].step, 0
            while any(node.poll() != 0 for node in nodes):
                for i, node in enumerate(nodes):
                    if node.poll() and starts < STARTS:  # as a scheduler does
                        nodes[i], starts = start(spaces[i], i, 2, 1, root, run), starts + 1
                if time.perf_counter() - begin > 60 * given.minutes:
                    break
                time.sleep(0.1)
            codes = [node.poll() for node in nodes]
        finally:
            for node in nodes:
                if node.poll() is None:
                    os.killpg(node.pid, signal.SIGKILL)
            for name in spaces:
                subprocess.run(["ip", "netns", "del", name], check=False)
            print((root / "log-run-0").read_text()[-1500:])
        where = difference(newest(run), newest(root / "whole"))
        seconds = time.perf_counter() - begin
    faults = sum(code != 0 for code in codes) + (where is not None)
    same = "equal bit for bit to" if where is None else "other than"
    detail = (
        "2 network namespaces as nodes, torchrun with a c10d rendezvous, Gloo, one rank each; the"
        f" second node killed after step {at} of {CONFIG.optimization.steps} and joined again:"
        f" {starts} starts of torchrun, {seconds:.0f} s; the end {same} 2 ranks on one machine;"
        f" {faults} faults"
    )
    print(detail, where, codes)
    if given.out is not None:
        row = {"value": faults, "unit": "faults in 1 run", "detail": detail}
        record(given.out, "nodes", [row], f"python studies/trust/nodes.py --out {given.out}")
    if faults:
        raise SystemExit(f"expected no fault, got {faults}: {where}, exit codes {codes}")


if __name__ == "__main__":
    main()
