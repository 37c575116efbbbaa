"""Restores to an earlier time or to another cluster: by point-in-time recovery, or by a dump."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from client import Session, call, rows
from conftest import ROOT, Server, once, wait_until
from estate import Estate
from psycopg.types.json import Jsonb

TOOLS = Path(os.environ["PG_BIN"])


def run(tool, *args):
    done = subprocess.run([TOOLS / tool, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("target", ["name", pytest.param("time", marks=once)])
def test_point_in_time(tmp_path, target):
    """Restores a base backup and the archived WAL up to a time before the last grants."""
    archive = tmp_path / "archive"
    archive.mkdir()
    origin = Server("e2e-pitr", "archive_mode = on", f"archive_command = 'cp %p {archive}/part && mv {archive}/part {archive}/%f'")
    try:
        run("pg_basebackup", "-d", origin.dsn(), "-D", tmp_path / "base", "-c", "fast", "-X", "none", "--no-sync")
        estate = Estate(origin)
        origin.query("SELECT pg_create_restore_point('here')")
        ((here, last),) = origin.query("SELECT clock_timestamp(), pg_walfile_name(pg_current_wal_lsn())")
        estate.change(origin)
        ((last,),) = origin.query("SELECT pg_walfile_name(pg_switch_wal())")
        wait_until((archive / last).exists)
    finally:
        origin.stop("immediate")
    (tmp_path / "base" / "recovery.signal").touch()
    since = time.monotonic()
    restored = Server(
        "e2e-pitr-restored", f"restore_command = 'cp {archive}/%f %p'", "recovery_target_action = 'promote'",
        "recovery_target_name = 'here'" if target == "name" else f"recovery_target_time = '{here}'", copy_of=tmp_path / "base",
    )  # fmt: skip
    try:
        wait_until(lambda: restored.query("SELECT pg_is_in_recovery()") == [(False,)])
        estate.goes_on(restored, since, timeline_is_new=True)
    finally:
        restored.stop("immediate")


def restore_plain(directory, server, dbname):
    run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.dsn(dbname), "-f", directory / "plain")


def restore_custom(directory, server, dbname):
    run("pg_restore", "--exit-on-error", "-d", server.dsn(dbname), directory / "custom")


def restore_sections(directory, server, dbname):
    for section in ("pre-data", "data", "post-data"):
        run("pg_restore", "--exit-on-error", f"--section={section}", "-d", server.dsn(dbname), directory / "custom")


WAYS = {"plain": restore_plain, "custom": restore_custom, "sections": restore_sections}


def test_dump_and_restore(tmp_path):
    origin = Server("e2e-dumped")
    fresh, unloaded = Server("e2e-restored"), Server("e2e-restored-plain", "shared_preload_libraries = ''")
    try:
        origin.query("CREATE DATABASE origin")
        estate = Estate(origin, "origin")
        for form in ("plain", "custom"):
            assert run("pg_dump", "-d", origin.dsn("origin"), f"--format={form}", "-f", tmp_path / form).stderr == ""
        run("pg_dumpall", "-d", origin.dsn(), "-f", tmp_path / "all")
        done = run("psql", "-X", "-q", "-d", fresh.dsn(), "-f", tmp_path / "all")
        assert [line for line in done.stderr.splitlines() if "postgres\" already exists" not in line] == []
        estate.begins_anew(fresh, "origin")
        unloaded.query("CREATE ROLE app")
        for server in (fresh, unloaded):
            for dbname, way in WAYS.items():
                server.query(f"CREATE DATABASE {dbname}")
                way(tmp_path, server, dbname)
        # On this server the library is loaded only after the restore, with the same result.
        unloaded.query("ALTER SYSTEM SET shared_preload_libraries = 'eskit_lease'")
        unloaded.restart()
        for server in (fresh, unloaded):
            for dbname in WAYS:
                estate.begins_anew(server, dbname)
    finally:
        for server in (origin, fresh, unloaded):
            server.stop("immediate")


@pytest.mark.parametrize("first", ["former", "used"])
def test_data_alone_into_a_database_that_is_used(tmp_path, first):
    """After a sweep, items that were claimed in the dump can be claimed, and fences and ids are above those of both
    databases, whichever of them drew first."""
    server, dbnames = Server("e2e-data-alone"), ("former", "used")
    try:
        conns, sessions, ids, fences = {}, {}, {}, {}
        for dbname in dbnames if first == "former" else reversed(dbnames):
            server.query(f"CREATE DATABASE {dbname}")
            server.query("CREATE EXTENSION eskit_lease", dbname=dbname)
            conns[dbname] = conn = server.connect(dbname)
            sessions[dbname] = Session(conn, dbname, "60 s")
            call(conn, "queue_create", dbname)
            ids[dbname] = call(conn, "item_add", dbname, Jsonb(dbname))
            fences[dbname] = rows(conn, "item_claim", dbname, sessions[dbname].id)[0].fence
        call(conns["used"], "queue_drop", "used", True)  # the other database's queue has the same number
        assert min(fences, key=fences.get) == min(ids, key=ids.get) == first
        run("pg_dump", "-d", server.dsn("former"), "--data-only", "-f", tmp_path / "data")
        run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.dsn("used"), "-f", tmp_path / "data")
        conn = conns["used"]
        call(conn, "session_sweep")
        assert call(conn, "item_add", "former", Jsonb("later")) > max(ids.values())
        item, _ = rows(conn, "item_claim", "former", sessions["used"].id, 10)
        assert item.id == ids["former"] and item.fence > max(fences.values())
        assert sessions["used"].take("r") > item.fence
    finally:
        server.stop("immediate")


def documented(section):
    """Returns the blocks of a section of docs/operations.md, without their indentation."""
    text = (ROOT / "docs/operations.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [re.sub("^ +", "", block, flags=re.M) for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S)]


@once
def test_dump_by_the_owner_of_a_database(tmp_path):
    """The owner is no superuser, and dumps after the documented grant. The dump can be restored, and contains the
    grant."""
    server, (grant, *_) = Server("e2e-owned"), documented("Backups and restores")
    try:
        server.query("CREATE ROLE owner LOGIN")
        server.query("CREATE DATABASE owned OWNER owner")
        estate = Estate(server, "owned")
        dump = [TOOLS / "pg_dump", "-d", server.dsn("owned", user="owner"), "-f", tmp_path / "plain"]
        assert "permission denied" in subprocess.run(dump, capture_output=True, text=True).stderr
        with server.connect("owned") as conn:
            conn.execute(grant)
            conn.execute("GRANT SELECT ON ledger, leased TO owner")  # tables of the estate's own role
        assert run(*dump).stderr == ""
        server.query("CREATE DATABASE restored")
        restore_plain(tmp_path, server, "restored")
        estate.begins_anew(server, "restored")
        assert subprocess.run([TOOLS / "pg_dump", "-d", server.dsn("restored", user="owner")], capture_output=True).returncode == 0
    finally:
        server.stop("immediate")


@once
def test_dump_of_a_part(tmp_path):
    """The documented command; without the extension, tables come back without their fence."""
    server, (_, command, *_) = Server("e2e-part"), documented("Backups and restores")
    try:
        server.query("CREATE DATABASE whole")
        estate = Estate(server, "whole")
        environment = os.environ | {"PGHOST": str(server.host), "PGPORT": str(server.port), "PGUSER": "postgres"}
        command = command.replace("DATABASE", "whole").replace("part.dump", str(tmp_path / "custom")).split()
        done = subprocess.run([TOOLS / command[0], *command[1:]], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        server.query("CREATE DATABASE part TEMPLATE template0")
        done = subprocess.run([TOOLS / "pg_restore", "-d", server.dsn("part"), tmp_path / "custom"], capture_output=True, text=True)
        errors = [line for line in done.stderr.splitlines() if line.startswith("pg_restore: error")]
        assert all('schema "public" already exists' in line for line in errors), errors  # as each restore of a part says
        estate.begins_anew(server, "part")
        assert "CREATE" not in run("pg_dump", "-n", "eskit_lease", "-d", server.dsn("whole")).stdout
    finally:
        server.stop("immediate")
