r"""Parts of the page of a report: pictures and tables in HTML."""

__all__ = ["embed", "figure", "picture", "put", "rows", "writing"]

import base64
import html
import io

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from matplotlib.figure import Figure
from pathlib import Path

from ...files import read_regular, write_bytes

LARGEST = 2**26  # bytes of a picture


def figure(width: float, height: float) -> Figure:
    r"""Returns an empty figure of a width and height in inches."""
    return Figure(figsize=(width, height), layout="constrained")


@contextmanager
def writing(path: Path) -> Generator[None, None, None]:
    r"""Says which folder a report could not be written to."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"expected a folder that a report can be written to, got {path.parent}: {error};"
            " the run itself is kept"
        ) from error


def put(path: Path, data: bytes) -> None:
    r"""Writes a file of a report."""
    with writing(path):
        write_bytes(path, data)


def embed(fig: Figure, path: Path, alt: str) -> str:
    r"""Saves a figure as a picture of its own and returns it as an HTML image."""
    buffer = io.BytesIO()
    fig.savefig(buffer, dpi=140, format="png")
    put(path, buffer.getvalue())
    code = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{code}">'


def picture(path: Path, alt: str, root: Path) -> str:
    r"""Returns a PNG file below a folder as an HTML image, pixels kept sharp."""
    code = base64.b64encode(read_regular(path, LARGEST, root)).decode()
    return (
        f'<img alt="{html.escape(alt)}" style="image-rendering: pixelated"'
        f' src="data:image/png;base64,{code}">'
    )


def rows(lines: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    r"""Returns an HTML table."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    content = [row(header, "th")] if header else []
    content += [row(line, "td") for line in lines]
    return f'<div class="wide"><table>{"".join(content)}</table></div>'
