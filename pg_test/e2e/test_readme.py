"""The examples of the documentation, pasted into psql as by a reader, answer what the pages say."""

import pytest
from conftest import ROOT
from documents import PAGES, examples
from paste import paste

# test_recipes.py pastes the recipes one by one; watching.md has a test of its own.
PASTED = [page for page in PAGES if examples(page.read_text()) and page.name not in ("recipes.md", "moving.md", "watching.md")]


@pytest.fixture
def empty(server):
    """Gives a database without the extension."""
    server.query("CREATE DATABASE readme")
    yield "readme"
    server.query("DROP DATABASE readme WITH (FORCE)")
    server.query("DROP ROLE IF EXISTS billing, metrics")


@pytest.mark.parametrize("page", PASTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples(server, empty, tmp_path, page):
    if page != ROOT / "README.md":  # it begins by creating the extension
        server.query("CREATE EXTENSION eskit_lease", dbname=empty)
    text = page.read_text()
    compared = paste(server, empty, tmp_path, examples(text))
    assert compared or "\n--  " not in text
