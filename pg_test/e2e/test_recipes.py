"""The recipes of the documentation, each pasted into a psql for each of its processes, answer what they say that they do."""

import re

import pytest
from conftest import ROOT, once
from documents import anchor, examples
from paste import paste

pytestmark = once

PAGE = (ROOT / "docs/recipes.md").read_text()
RECIPES = {anchor(recipe.partition("\n")[0]): examples(recipe) for recipe in re.split(r"^## ", PAGE, flags=re.M)[1:]}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(server, db, tmp_path, recipe):
    blocks = RECIPES[recipe]
    assert all(name for name, _ in blocks), "says which psql it is for"
    assert paste(server, db, tmp_path, blocks) > 2
