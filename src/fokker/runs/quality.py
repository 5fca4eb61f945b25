r"""The judgement of samples at the milestones of a run (`fokker.runs.milestones`).

The averaged weights of the step are judged, after they were saved and before the next step is
taken. The time of it does not count as training.
"""

__all__ = ["judge_samples"]

import time

from collections.abc import Callable
from datetime import UTC, datetime

from .history import commit, hardware
from .milestones import read_quality, write_quality
from .state import Line, State, writing


def judge_samples(run: State, left: Callable[[], float | None]) -> list[Line]:
    r"""Judges the samples that are due after the last step, unless they were judged before;
    returns the new rows.

    Arguments:
        run: The run; its last step is saved.
        left: The seconds that are left, `None` without a limit. Where they do not suffice,
            `fokker.tasks.TooLate` is raised, and the next call judges.
    """
    batch, ranks = run.config.optimization.batch, run.ranks
    due = run.config.milestones.counts(run.done, batch) if run.done else []
    rows = ranks.once(lambda: read_quality(run.folder)) if due else []
    rows = [row for row in rows if row["step"] <= run.done]  # of a run that was rolled back
    known = {(row["step"], row["fid_n"]) for row in rows}
    counts = [n for n in due if (run.done, n) not in known]
    if not counts:
        return []
    clock = time.perf_counter()
    seconds = run.seconds
    run.shadow.load_state_dict(run.averaged())
    found = run.task.quality(run.shadow, counts, ranks.device, ranks, left)
    place = hardware(ranks.device)
    head = {
        "step": run.done,
        "images_seen": run.done * batch,
        "seconds": round(seconds, 3),
        "gpu_minutes": seconds / 60 if ranks.device.type != "cpu" else None,
    }
    made = {"commit": commit(), "hardware": place}
    made["time"] = datetime.now(UTC).isoformat(timespec="seconds")
    fresh = [{**head, **row, **made} for row in found]
    run.clock += time.perf_counter() - clock  # it is no training

    def keep() -> None:
        with writing(run.folder, run.saved):
            run.owner.check()
            write_quality(run.folder, [*rows, *fresh])

    ranks.once(keep)
    return fresh
