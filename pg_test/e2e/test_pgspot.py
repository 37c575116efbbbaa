"""pgspot checks the SQL that CREATE EXTENSION runs for calls that another role's objects could hijack, and finds none.

PostgreSQL runs that SQL with the search path pg_catalog, pg_temp. pgspot cannot know this, so the test
passes the path. Otherwise pgspot would report more than 200 unqualified operators and functions, all for this one
reason."""

import re
import subprocess
from pathlib import Path

from conftest import ROOT, once

pytestmark = once


def generated_sql():
    """Returns the SQL that creates the extension, and then all update scripts to this version."""
    share = subprocess.run(["pg_config", "--sharedir"], capture_output=True, text=True, check=True).stdout.strip()
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    directory = Path(share) / "extension"
    scripts = [directory / f"eskit_lease--{version}.sql", *sorted(directory.glob("eskit_lease--*--*.sql"))]
    return "".join(script.read_text() for script in scripts)


def findings(tmp_path, sql):
    script = tmp_path / "script.sql"
    script.write_text(sql)
    done = subprocess.run(["pgspot", script], capture_output=True, text=True)
    summary = re.search(r"Errors: (\d+) Warnings: (\d+) Unknown: (\d+)", done.stdout)
    assert summary, done.stdout + done.stderr
    found = [line for line in done.stdout.splitlines() if re.match(r"PS\d+: ", line)]
    assert len(found) == sum(map(int, summary.groups()))
    return found


def test_generated_sql(tmp_path):
    control = (ROOT / "eskit_lease.control").read_text()
    assert "schema = 'pg_catalog'" in control and "relocatable = false" in control
    path, sql = "SET LOCAL search_path TO pg_catalog, pg_temp;\n", generated_sql()
    assert findings(tmp_path, path + sql) == []
    # pgspot reads all of the SQL: it finds each of these at the end.
    for wrong in (
        "CREATE FUNCTION eskit_lease.f() RETURNS int SECURITY DEFINER LANGUAGE sql AS 'SELECT 1';",
        "CREATE TABLE IF NOT EXISTS public.t (i int);",
        "CREATE OR REPLACE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1';",
        "RESET search_path; CREATE VIEW eskit_lease.v AS SELECT 1 + 1;",
    ):
        assert findings(tmp_path, f"{path}{sql}\n{wrong}\n"), wrong
