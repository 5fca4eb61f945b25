r"""The cells of the documentation run, page by page, without sphinx; and its pages are all
linked."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import re
import torch

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    str(path.relative_to(DOCS)): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
    if "_build" not in path.parts
}
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")


def cells(page):
    r"""The code of a page, each cell on its own lines, so that an error names the line."""
    text = PAGES[page]
    return [(text[: found.start(1)].count("\n"), found[1]) for found in CELL.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if cells(page)])
def test_cells_run(page, monkeypatch, capsys, tmp_path):
    mpl.use("Agg")
    monkeypatch.chdir((DOCS / page).parent)
    monkeypatch.setenv("FOKKER_CACHE", str(tmp_path))
    torch.set_default_dtype(torch.float32)
    names = {"__name__": "__main__"}
    for line, code in cells(page):
        exec(compile("\n" * line + code, page, "exec"), names)
    plt.close("all")
    assert capsys.readouterr().out


def test_pages_with_cells_say_so():
    for page, text in PAGES.items():
        assert text.startswith("---\nfile_format: mystnb\n") == bool(cells(page)), page
        assert text.count("{code-cell}") == len(cells(page)), page


def test_links_lead_to_pages():
    for page, text in PAGES.items():
        for link in LINK.findall(text):
            if not link.startswith("http"):
                assert (DOCS / page).parent.joinpath(link).is_file(), (page, link)


def test_every_page_is_in_the_table_of_contents():
    index = PAGES["index.md"]
    entries = "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)).splitlines()
    patterns = [entry for entry in entries if entry and not entry.startswith(":")]
    for page in PAGES:
        name = page.removesuffix(".md")
        assert name == "index" or any(Path(name).match(p) for p in patterns), page


def test_every_module_is_in_the_reference():
    import fokker
    import pkgutil

    modules = {f"fokker.{m.name}" for m in pkgutil.iter_modules(fokker.__path__)}
    listed = re.findall(r"^   (fokker\.\w+)$", PAGES["api/index.md"], re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == modules - {"fokker.__main__"}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *(f"docs/{p}" for p in PAGES)])
def test_lines_are_short(name):
    lines = (DOCS.parent / name).read_text().splitlines()
    assert not [line for line in lines if len(line) > 99 and not line.startswith("|")]


def test_places_named_to_contributors_exist():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    places = re.findall(r"`((?:src|studies|tests|docs|examples|studio)/[\w./]*)`", text)
    assert len(places) > 15
    assert [place for place in places if not (DOCS.parent / place).exists()] == []
