r"""Pace: about how long a job takes, said on standard error while it begins.

A job says how much of it is done; after two seconds the rest is judged by that. A job of ten
seconds or less says nothing.
"""

__all__ = ["SHORT", "Pace", "told", "words"]

import sys

from collections.abc import Callable
from time import perf_counter

LOOK = 2.0  # seconds after which the time of a job is judged
SHORT = 10.0  # seconds of a job of which nothing is said


def words(seconds: float) -> str:
    r"""Returns a time in words, with one digit or two.

    Example:
        >>> [words(t) for t in (42.0, 100.0, 6000.0)]
        ['40 seconds', '2 minutes', '1.7 hours']
    """
    if seconds < 90:
        return f"{round(seconds, -1):.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def told(line: str) -> None:
    r"""Writes a line to stderr at once."""
    print(f"fokker: {line}", file=sys.stderr, flush=True)


class Pace:
    r"""Creates the pace of a job that consists of parts of about one size.

    Arguments:
        job: What it is, in words.
        parts: The number of parts.
        say: Called with a line, once; nothing is said if it is `None`.

    Example:
        >>> pace = Pace("a long job", 2, print)
        >>> pace.start -= 30.0  # seconds ago
        >>> pace.within(10)(5)  # half of the first part is done
        a long job: about 2 minutes
    """

    def __init__(
        self, job: str, parts: float = 1.0, say: Callable[[str], None] | None = told
    ) -> None:
        self.job, self.parts, self.say = job, parts, say
        self.start, self.whole = perf_counter(), 0.0

    def done(self, parts: float = 1.0) -> None:
        r"""Takes it that so many more parts are done."""
        self.whole += parts
        self.look(0.0)

    def skip(self) -> None:
        r"""Takes it that a part need not be done."""
        self.parts -= 1.0

    def within(self, total: float, begin: float = 0.0) -> Callable[[float], None]:
        r"""Returns what takes how much of the current part is done, from `begin` to a total; the
        part is not counted until it is `done`."""
        return lambda k: self.look((k - begin) / max(total - begin, 1.0))

    def look(self, part: float) -> None:
        r"""Says about how long the whole takes, if that can be judged and has not been said."""
        spent, share = perf_counter() - self.start, self.whole + min(part, 1.0)
        if self.say is None or spent < LOOK or share <= 0:
            return
        seconds = spent * self.parts / share
        if seconds > max(SHORT, spent + LOOK):  # what was short may turn out to be long
            say, self.say = self.say, None
            say(f"{self.job}: about {words(seconds)}")
