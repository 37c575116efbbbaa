"""The SQL that the project keeps makes what the SQL that pgrx generates from the code makes."""

import subprocess

from catalogs import differences, facts
from conftest import MAJOR, ROOT, Server

COPY = f"{MAJOR}-generated"
# No other run builds meanwhile (pg_test/run).
GENERATE = """
    . pg_test/env "$0" && copy_server "$1" && flock 9 &&
    cargo pgrx schema "pg$0" --no-default-features --features "pg$0" --out "$(extension_dir "$1")/eskit_lease--generated.sql" 9>&-
"""


def test_the_kept_sql_makes_what_is_generated():
    done = subprocess.run(["bash", "-c", f"{{ {GENERATE} }} 9>>target/log/lock", MAJOR, COPY], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server = Server("e2e", of=COPY)
    for name in ("kept", "generated"):
        server.query(f"CREATE DATABASE {name}")
    server.query("CREATE EXTENSION eskit_lease", dbname="kept")
    server.query("CREATE EXTENSION eskit_lease VERSION 'generated'", dbname="generated")
    with server.connect("kept") as kept, server.connect("generated") as generated:
        found = [facts(kept), facts(generated)]
    for side in found:
        del side["extension eskit_lease", "pg_extension.extversion"]
    assert not differences(*found)
    server.stop()
