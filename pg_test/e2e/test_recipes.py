"""The recipes of the documentation, pasted into a psql for each of their processes, answer what the pages say."""

import re

import pytest
from conftest import ROOT, once
from documents import anchor, examples
from paste import paste

pytestmark = once

PAGES = [ROOT / "docs/recipes.md", ROOT / "docs/moving.md"]
SECTIONS = {
    f"{page.stem}-{anchor(section.splitlines()[0])}": examples(section)
    for page in PAGES
    for section in re.split(r"^## ", page.read_text(), flags=re.M)[1:]
}
WITHOUT_SQL = {"moving-rules-for-a-bridge"}
RECIPES = SECTIONS.keys() - WITHOUT_SQL


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_recipe(server, db, tmp_path, recipe):
    blocks = SECTIONS[recipe]
    assert all(name for name, _ in blocks), "says which psql it is for"
    assert paste(server, db, tmp_path, blocks) > 2


def test_the_other_sections_have_no_sql():
    assert [name for name in WITHOUT_SQL if SECTIONS[name]] == []
