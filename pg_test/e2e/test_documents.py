"""The documentation is consistent: all link targets exist, and every page is linked to."""

import hashlib
import json
import re

from conftest import ROOT, once
from documents import PAGES, anchors, links, words

pytestmark = once

PICTURES = ROOT / "docs/pictures"


def targets(page):
    """Lists the project's files that a page links to, each with the anchor or ''."""
    for link in links(page.read_text()):
        if not link.startswith(("http://", "https://")):
            path, _, where = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, where


def test_links_lead_somewhere():
    broken = []
    for page in PAGES:
        for link, path, where in targets(page):
            if not path.exists() or where and where not in anchors(path.read_text()):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_headings_of_a_page_differ():
    named = {page: anchors(page.read_text()) for page in PAGES}
    assert not [(page.name, name) for page, names in named.items() for name in set(names) if names.count(name) > 1]


def test_every_page_is_found_from_the_front_page():
    found, new = set(), {ROOT / "README.md"}
    while new:
        found |= new
        new = {path for page in new for _, path, _ in targets(page) if path in PAGES} - found
    assert sorted(set(PAGES) - found) == []


def test_the_front_page_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 350
    assert len(text.split()) <= 1500


def test_the_pages_are_short():
    """Length is a cost for every reader. What two pages need is in one place, and the others link to it."""
    assert sum(words(page.read_text()) for page in ROOT.glob("docs/**/*.md")) <= 25_000


def test_pictures_are_those_of_their_sources():
    """docs/pictures/draw notes in each picture what it was drawn from."""
    sources = {source.with_suffix(".svg"): hashlib.sha256(source.read_bytes()).hexdigest() for source in PICTURES.glob("*.dot")}
    assert set(sources) == set(PICTURES.glob("*.svg"))
    stale = [picture.name for picture, drawn_from in sources.items() if drawn_from not in picture.read_text()]
    assert not stale, "run docs/pictures/draw"


def test_pictures_are_read_at_800_pixels():
    """A page shows a picture at its own size, and shrinks one that is wider than its column. Each is shown on a page."""
    pictures = {picture: picture.read_text() for picture in [*PICTURES.glob("*.svg"), *(ROOT / "bench/results").glob("*.svg")]}
    wide, small = [], []
    for picture, text in pictures.items():
        scale = 96 / 72  # pixels of a point, in which both programs count
        wide += [picture.name] if float(re.search(r'\bwidth="([\d.]+)pt"', text)[1]) * scale > 800 else []
        small += [picture.name] if min(float(size) * scale for size in re.findall(r'font-size(?:="|: )([\d.]+)', text)) < 12 else []
    assert (wide, small) == ([], [])
    shown = {(page.parent / picture).resolve() for page in PAGES for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())}
    assert set(pictures) == {picture for picture in shown if picture.suffix == ".svg"}


def test_the_case_on_the_page_of_the_protocol_is_a_vector():
    (shown,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "clients/PROTOCOL.md").read_text(), re.M | re.S)
    assert json.loads(shown) in json.loads((ROOT / "clients/vectors/keeper.json").read_text())
