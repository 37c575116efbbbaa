"""The reference describes exactly what a database with the extension has."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from documents import REFERENCE, code, prose, sections, tables

PAGES = {page.name: page.read_text() for page in REFERENCE.glob("*.md")}

# Functions for users have names without a leading underscore. The query gives their arguments, and the columns of
# composite answers.
FUNCTIONS = """
    SELECT p.proname,
           ARRAY(SELECT ARRAY[p.proargnames[n], format_type(p.proargtypes[n - 1], NULL), pg_get_function_arg_default(p.oid, n)]
                 FROM generate_series(1, p.pronargs) AS n),
           CASE WHEN p.proallargtypes IS NOT NULL
                THEN ARRAY(SELECT ARRAY[p.proargnames[n], format_type(p.proallargtypes[n], NULL)]
                           FROM generate_series(p.pronargs + 1, cardinality(p.proallargtypes)) AS n)
                ELSE ARRAY(SELECT ARRAY[a.attname, format_type(a.atttypid, a.atttypmod)]
                           FROM pg_attribute AS a JOIN pg_type AS t ON t.typrelid = a.attrelid
                           WHERE t.oid = p.prorettype AND a.attnum > 0 ORDER BY a.attnum) END,
           format_type(p.prorettype, NULL),
           obj_description(p.oid, 'pg_proc')
    FROM pg_proc AS p WHERE p.pronamespace = 'eskit_lease'::regnamespace AND p.proname NOT LIKE '\\_%'"""
VIEWS = """
    SELECT c.relname, obj_description(c.oid, 'pg_class'), a.attname, format_type(a.atttypid, a.atttypmod), col_description(c.oid, a.attnum)
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind = 'v' ORDER BY c.relname, a.attnum"""
SETTINGS = """
    SELECT name, boot_val, unit, min_val, max_val, context, coalesce(enumvals, '{on,off}') FROM pg_settings WHERE name LIKE 'eskit\\_lease.%'"""
CONTEXTS = {"postmaster": "restart", "sighup": "reload", "user": "any time", "superuser": "at once; superusers only"}
STATE = re.compile(r"\b(?:0[18A]|2[25]|3[9F]|4[02]|5[3457]|LF|P0)[0-9A-Z]{3}\b")
UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

@pytest.fixture
def conn(connect):
    return connect()

@pytest.fixture
def functions(conn):
    rows = conn.execute(FUNCTIONS).fetchall()
    assert len({name for name, *_ in rows}) == len(rows)  # no overloads: untyped parameters would be ambiguous
    return {name: rest for name, *rest in rows if not rest[-1].startswith("Deprecated: ")}


def test_former_names(conn):
    (table,) = [table for table in tables(PAGES["README.md"]) if table.header == ["former name", "name"]]
    described = {code(former)[0]: code(name)[0] for former, name in table.rows}
    told = re.compile(r"Deprecated: the former name of (\w+)\(.*\)\.")
    assert described == {name: told.fullmatch(about)[1] for name, *_, about in conn.execute(FUNCTIONS) if about.startswith("Deprecated")}

SHORT = {"int": "integer", "timestamptz": "timestamp with time zone"}

def spelled(type_name):
    """Returns a type as PostgreSQL spells it."""
    base, array = re.fullmatch(r"(.*?)((?:\[\])?)", type_name).groups()
    return SHORT.get(base, base) + array

def shortened(type_name):
    """Returns a type of the catalog as the pages spell it."""
    base, array = re.fullmatch(r"(.*?)((?:\[\])?)", type_name).groups()
    return {long: short for short, long in SHORT.items()}.get(base, base) + array

def columns(text):
    return [[name, spelled(kind)] for name, kind in (column.split(" ", 1) for column in text.split(", "))]

def signatures():
    """Returns {function: (page, arguments, answer)} from the pages' tables of functions."""
    found = {}
    for page, text in PAGES.items():
        for table in tables(text):
            if table.header == ["function", "returns"]:
                for row in table.rows:
                    name, arguments = re.fullmatch(r"(\w+)\((.*)\)", code(row[0])[0]).groups()
                    assert name not in found and len(code(row[0])) == 1, row[0]
                    found[name] = page, arguments, row[1]
    return found

def test_functions(conn, functions):
    described = signatures()
    assert sorted(described) == sorted(functions)
    for name, (_, arguments, answer) in described.items():
        takes, gives, kind, _ = functions[name]
        given = [re.fullmatch(r"(\w+) ([a-z]+(?:\[\])?)(?: = (.+))?", argument).groups() for argument in re.split(r", ", arguments) if argument]
        assert [[argument, spelled(is_a)] for argument, is_a, _ in given] == [take[:2] for take in takes], name
        for (argument, is_a, default), (_, _, has) in zip(given, takes, strict=True):
            assert (default is None) == (has is None), f"{name}: {argument}"
            if default:
                assert conn.execute(f"SELECT ({default})::{is_a} IS NOT DISTINCT FROM ({has})").fetchone()[0], f"{name}: {argument} is {has}"
        if kind == "void":
            assert answer.startswith("nothing"), name
        elif gives:
            told = code(answer)[0]
            assert (functions[told][1] if answer.startswith("the columns of ") else columns(told)) == gives, name
        else:
            assert spelled(code(answer)[0]) == kind, name

def test_functions_are_described(functions):
    """Each function has, besides its signature, a heading, a mention on its page, or an explanation after a colon in its
    row."""
    for name, (page, *_) in signatures().items():
        text = prose(PAGES[page])
        cell = next(row for table in tables(text) for row in table.rows if row[0].startswith(f"`{name}("))[1]
        mentioned = re.search(rf"`{name}\b", text.replace(f"`{name}(", "", 1))
        assert mentioned or ":" in cell, f"{page} says nothing of {name}"
    index = " ".join(cell for table in tables(PAGES["README.md"]) if table.header == ["page", "functions"] for row in table.rows for cell in row[1:])
    assert sorted(code(index)) == sorted(functions), "the overview has them all"

def test_topics_of_help(conn):
    """help() has a topic for each page, under its title, with its functions. Errors are no objects of the catalog."""
    (index,) = [table for table in tables(PAGES["README.md"]) if table.header == ["page", "functions"]]
    pages = {re.search(r"\((.+)\.md\)", page)[1].replace("-", "_"): (re.search(r"\[(.+)\]", page)[1], code(names)) for page, names in index.rows}
    pages.pop("errors")
    page = lambda topic: conn.execute("SELECT eskit_lease.help(%s)", (topic,)).fetchone()[0]
    assert re.findall(r"^    (\w+) +(.+)$", page(None), re.M) == [(name, title) for name, (title, _) in pages.items()]
    for name, (_, functions) in pages.items():
        assert sorted(re.findall(r"^    (\w+)\(", page(name), re.M)) == sorted(functions), name


def test_views(conn):
    expected = {}
    for view, about, column, kind, what in conn.execute(VIEWS):
        block = expected.setdefault(view, f"\n\n{about}\n\n| column | type | meaning |\n|---|---|---|\n")
        expected[view] = block + f"| `{column}` | {shortened(kind)} | {what} |\n"
    described = sections(PAGES["views.md"])
    described.pop("views")
    for view, block in expected.items():
        assert described.get(view, "").strip() == block.strip(), f"docs/reference/views.md is to have this:\n## `{view}`{block}"
    assert sorted(described) == sorted(expected)

def milliseconds(text):
    """Returns the value of a setting, in milliseconds if it has a unit."""
    number, unit = re.fullmatch(r"(-?\d+) ?([a-z]*)", text).groups()
    return int(number) * UNITS.get(unit, 1)

def test_settings(conn):
    (table,) = tables(PAGES["settings.md"])
    described = {code(row[0])[0]: row[1:4] for row in table.rows}
    settings = {name: rest for name, *rest in conn.execute(SETTINGS)}
    assert sorted(described) == sorted(settings)
    for name, (default, allowed, when) in described.items():
        boot, unit, least, most, context, words = settings[name]
        assert when == CONTEXTS[context], name
        if least is None:
            assert (default, allowed) == (boot, ", ".join(words)), name
        else:
            scale = UNITS.get(unit, 1)
            values = [int(value) * scale if int(value) != -1 else -1 for value in (boot, least, most)]
            assert [milliseconds(value) for value in (default, *allowed.split(" to "))] == values, f"{name}: {settings[name]}"

def listed(comment):
    """Returns the reasons that the comment of a function lists."""
    _, found, text = comment.partition("Reasons: ")
    text = re.split(r"\.(?: |$)", re.sub(r"\([^)]*\)", "", text))[0]
    return {word.split()[0] for word in re.split(r"[,;]", text)} if found else set()

def test_reasons(functions):
    """The functions' comments and the pages' tables list the same reasons, which are all that the sources give."""
    described = {}
    for text in PAGES.values():
        for table in tables(text):
            if table.header[0] == "reason":
                described[table.section] = {word for row in table.rows for word in code(row[0])}
    assert described == {name: listed(rest[-1]) for name, rest in functions.items() if listed(rest[-1])}

    files = ["lease/acquire.rs", "lease/answer.rs", "lease/fate.rs", "lease/verbs.rs", "lease/lock.rs", "session/touch.rs", "ending/verbs.rs", "ending/waits.rs"]
    files += [f"lease/acquire/{part}.rs" for part in ("grantee", "look", "take")]
    words = {word for file in files for word in re.findall(r'"([a-z][a-z_]*)"', (ROOT / "src" / file).read_text())}
    arguments = {argument for takes, *_ in functions.values() for argument, *_ in takes} | {"eskit_lease", "false"}
    reasons = set.union(*described.values())
    assert reasons <= words, "no source gives these"
    assert words - arguments <= reasons, "not described"

def sqlstates():
    """Returns the SQLSTATEs of all errors in the sources."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("error/*.rs"))
    include = subprocess.run([os.environ["PG_CONFIG"], "--includedir-server"], capture_output=True, text=True, check=True).stdout.strip()
    header = (Path(include) / "utils/errcodes.h").read_text()
    codes = {name: "".join(re.findall(r"'(.)'", chars)) for name, chars in re.findall(r"#define (ERRCODE_\w+) MAKE_SQLSTATE\((.*)\)", header)}
    named = {codes[name] for name in re.findall(r"Code::(ERRCODE_\w+)", source) if name != "ERRCODE_RAISE_EXCEPTION"}
    return named | set(re.findall(r'sqlstate\(\*b"(\w{5})"\)', source))

def test_sqlstates(functions):
    _, ours, others = tables(PAGES["errors.md"])
    described = {row[0].strip("`") for row in ours.rows}
    assert described == sqlstates()
    others = {row[0].strip("`") for row in others.rows}
    assert not described & others
    known = described | others
    for page, text in PAGES.items():
        for sentence in re.findall(r"\b[Rr]aises? [^.|]*", prose(text)):
            for state in STATE.findall(sentence):
                assert state in known, f"{page} has {state}: {sentence}"
    raised = {name: STATE.findall(rest[-1].partition("Raises ")[2]) for name, rest in functions.items()}
    missing = [(page, name, state) for name, (page, *_) in signatures().items() for state in raised[name] if state not in PAGES[page]]
    assert not missing
