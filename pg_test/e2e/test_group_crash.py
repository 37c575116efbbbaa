"""Groups over a crash of the server, and in a dump."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from client import call
from conftest import Server, wait_until
from members import JOURNAL, Member, check_journal, create, owners, settled, write


@pytest.fixture
def durable():
    server = Server("e2e-groups", "fsync = on")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


@pytest.mark.parametrize("how", ["crash", "immediate"])
def test_crash_in_the_middle_of_revocations(durable, how):
    """Partitions revoked before the crash are revoked again, with the whole timeout; no partition has two owners."""
    conn = durable.connect()
    create(conn, 8, "3 s")
    conn.execute(JOURNAL)
    a, b = Member(conn, "a", ttl="60 s").join(), Member(conn, "b", ttl="60 s").join()
    generation = call(conn, "group_join", "g", a.id)
    a.assignment()
    asked, before = dict(a.revoking), dict(a.owned)
    assert len(asked) == 4
    given = next(iter(asked))
    assert call(conn, "group_release", "g", given, asked.pop(given))
    assert call(conn, "cursor_commit", "g", 0, 42, before[0]) if 0 not in asked else True
    assert len(b.assignment()) == 1
    for partition, fence in before.items():
        write(conn, partition, fence, a.id)
    recovering_at = time.monotonic()
    durable.crash() if how == "crash" else durable.restart("immediate")
    conn = durable.connect()
    for member in (a, b):
        member.conn = conn
    assert call(conn, "group_join", "g", a.id) == generation
    assert set(a.assignment()) == set(before) - {given}
    assert a.revoking == asked, "still asked for, under the same fences"
    assert list(b.assignment()) == [given]
    first, *rest = asked
    assert call(conn, "group_release", "g", first, asked[first]), "still to be answered"
    while not settled(conn, [a, b]):
        for member in (a, b):
            for partition, fence in member.assignment().items():
                write(conn, partition, fence, member.id)
        if any(partition in b.owned for partition in rest):
            assert time.monotonic() - recovering_at > 3, "no sooner than restart and timeout"
        time.sleep(0.02)
    assert time.monotonic() - recovering_at > 3
    for partition, fence in before.items():
        write(conn, partition, fence, a.id)
    for partition, fence in b.assignment().items():
        assert write(conn, partition, fence, b.id)
    check_journal(conn)
    conn.close()


# ---- dump ----


def test_dump_has_the_group_and_not_its_members(durable, tmp_path):
    with durable.connect() as conn:
        conn.execute("CREATE ROLE declarer")
        conn.execute("SELECT eskit_lease.grant_consumer('declarer')")
        conn.execute("SET ROLE declarer")
        create(conn, 4, "7 s", assignor="range", settle="10 ms")
        call(conn, "semaphore_create", "s", 3)
        member = Member(conn, "dumped member").join()
        wait_until(lambda: len(member.assignment()) == 4)
        call(conn, "cursor_commit", "g", 1, 17, member.owned[1])
        call(conn, "cursor_ack", "g", 2, 3, member.owned[2])
        conn.execute("RESET ROLE")
        generation = call(conn, "group_join", "g", member.id)
        fence = max(member.owned.values())
        dump = tmp_path / "dump.sql"
        tools = Path(os.environ["PG_BIN"])
        subprocess.run([tools / "pg_dump", "-d", durable.dsn(), "--no-owner", "--no-acl", "-f", dump], check=True)
        assert "dumped member" not in dump.read_text() and str(member.id) not in dump.read_text()
        conn.execute("CREATE DATABASE restored")
        member.close()
        conn.execute("SELECT eskit_lease.group_drop('g'), eskit_lease.semaphore_drop('s')")
        conn.execute("DROP OWNED BY declarer; DROP ROLE declarer")
    psql = [tools / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", durable.dsn("restored"), "-f", dump]
    subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)
    with durable.connect("restored") as conn:
        group = conn.execute("SELECT * FROM eskit_lease.groups").fetchone()
        assert (group[0], group[1], group[2], group[3].total_seconds(), group[5], group[6]) == ("g", 4, "range", 7, generation, 0)
        lag = conn.execute("SELECT position, acked_ahead FROM eskit_lease.group_lag ORDER BY partition").fetchall()
        assert lag == [(0, 0), (17, 0), (0, 1), (0, 0)]
        assert conn.execute("SELECT count(*) FROM eskit_lease.group_members").fetchone() == (0,)
        assert owners(conn) == [None] * 4
        member = Member(conn, "new").join()
        wait_until(lambda: len(member.assignment()) == 4)
        assert min(member.owned.values()) > fence
        assert call(conn, "group_join", "g", member.id) > generation
        assert call(conn, "cursor_commit", "g", 1, 18, member.owned[1])
        assert not call(conn, "cursor_commit", "g", 1, 17, member.owned[1])
        assert member.acquire("s").granted
        # The group's owner is a role that does not exist here, so only administrators may change the group.
        call(conn, "group_alter", "g", "sticky")
        call(conn, "semaphore_resize", "s", 4)
        member.close()
        call(conn, "group_drop", "g")
    durable.query("DROP DATABASE restored WITH (FORCE)")
