"""The documentation, as tests read it: its pages, with their headings, links, tables and examples."""

import re
from typing import NamedTuple

from conftest import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "bench/README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/*.md")), *sorted(ROOT.glob("clients/**/*.md"))]
REFERENCE = ROOT / "docs/reference"


class Table(NamedTuple):
    section: str  # the heading above it, as an anchor
    header: list[str]
    rows: list[list[str]]


def prose(text):
    """Returns the text without the examples."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def words(text):
    """Counts the words of the prose and of the tables, without the examples and the bars."""
    return sum(any(map(str.isalnum, word)) for word in re.split(r"\s|(?<!\\)\|", prose(text)))


def anchor(heading):
    """Returns the anchor that GitHub makes of a heading."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text):
    return [anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose(text), re.M)]


def links(text):
    """Lists the targets of its links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(text)))


def sections(text):
    """Returns {anchor: the text under that heading, up to the next one}."""
    parts = re.split(r"^#+ (.*)$", prose(text), flags=re.M)
    return {anchor(heading): body for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def tables(text):
    found = []
    for section, body in sections(text).items():
        for block in re.findall(r"(?:^\|.*\n)+", body, re.M):
            header, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines())
            found.append(Table(section, header, rows))
    return found


def code(cell):
    """Lists the code spans of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def examples(text):
    """Returns the examples in SQL, in order, each with the name of its psql: '' for the reader's only one, or the name
    in its first line."""
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.M | re.S)
    named = (re.match(r"-- \[([\w-]+)\]", block) for block in blocks)
    return [(name[1] if name else "", block) for name, block in zip(named, blocks, strict=True)]


def files(text):
    """Returns {path: example} of the examples that begin with the path of their file."""
    return {path: block for block, path in re.findall(r"^```\w+\n(# ([\w/.]+)\n.*?)^```", text, re.M | re.S)}
