"""Memory does not grow with the number of calls: of a backend, in many transactions and in one, also when calls fail;
and of the worker.

A loop in the server makes the calls. The process's own memory is compared between the middle, when plans, caches and
lists exist, and the end. MEMORY_CALLS is the number of calls."""

import os
from pathlib import Path

import psycopg
import pytest
from client import Session, call, stat
from conftest import Server, once, wait_until

pytestmark = once

CALLS = int(os.environ.get("MEMORY_CALLS", "100000"))
MOST = 1 << 18  # bytes by which memory may vary, whatever the number of calls

# The calls of every turn; CHANGES or ERRORS may follow them.
TURN = """
    PERFORM * FROM eskit_lease.session_heartbeat(s);
    PERFORM * FROM eskit_lease.lease_acquire('kept', s);
    PERFORM eskit_lease.fence_check('kept', kept);
    PERFORM * FROM eskit_lease.lease_renew('kept', kept);
    PERFORM * FROM eskit_lease.lease_acquire('held', s, false);
    PERFORM eskit_lease.advisory_lock_id(repeat('x', 1000));
    PERFORM * FROM eskit_lease.lease_acquire_many(ARRAY['kept', 'held', 'other'], s);
"""
CHANGES = """
    SELECT fence INTO f FROM eskit_lease.lease_acquire('turn', s);
    PERFORM eskit_lease.lease_release('turn', f);
    PERFORM eskit_lease.item_add('q', '{"a": [1, 2, 3]}');
    PERFORM eskit_lease.item_done(ARRAY[c.id], c.fence) FROM eskit_lease.item_claim('q', s) AS c;
"""
ERRORS = """
    BEGIN PERFORM eskit_lease.fence_check('kept', 1); EXCEPTION WHEN SQLSTATE 'LF001' THEN errors := errors + 1; END;
    BEGIN PERFORM * FROM eskit_lease.session_open(repeat('x', 1000)); EXCEPTION WHEN invalid_parameter_value THEN errors := errors + 1; END;
    BEGIN INSERT INTO fenced VALUES (1); EXCEPTION WHEN SQLSTATE 'LF002' THEN errors := errors + 1; END;
    BEGIN PERFORM eskit_lease.fence_check('kept', kept); RAISE 'undone'; EXCEPTION WHEN raise_exception THEN errors := errors + 1; END;
"""
# The statements of a turn, how many calls it has, and whether it is a transaction of its own.
WAYS = {
    "in transactions": (TURN + CHANGES, 12, True),
    "in one transaction": (TURN, 7, False),
    "with errors": (TURN + ERRORS, 11, True),
    "with errors in one transaction": (TURN + ERRORS, 11, False),
}


@pytest.fixture(scope="module")
def server():
    server = Server("e2e-memory", "statement_timeout = 0", "max_connections = 20")
    server.query("CREATE EXTENSION eskit_lease")
    server.query("CREATE TABLE fenced (i int)")
    yield server
    server.stop()


def own_memory(pid):
    """Returns the bytes of the process's own memory, without shared buffers."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def contexts(conn):
    return conn.execute("SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts").fetchone()[0]


def require_flat(what, before, after):
    print(f"{what}: {before} bytes in the middle, {after} at the end")
    assert after - before < MOST


@pytest.mark.parametrize("way", WAYS)
def test_memory_of_a_backend(server, way):
    body, calls, commits = WAYS[way]
    with server.connect() as conn, server.connect() as other:
        if not conn.execute("SELECT 1 FROM eskit_lease.queues").fetchone():
            call(conn, "queue_create", "q")
            call(conn, "table_fence", "fenced", "kept nowhere")
        session, holder = Session(conn, way, ttl="1 hour"), Session(other, "holder", ttl="1 hour")
        kept = session.take("kept")
        holder.take("held")

        def loop(turns):
            end = "COMMIT;" if commits else ""
            conn.execute(
                f"DO $$ DECLARE s uuid := '{session.id}'; kept bigint := {kept}; f bigint; errors int := 0; "
                f"BEGIN FOR i IN 1..{turns} LOOP {body} {end} END LOOP; END $$"
            )
            return own_memory(conn.info.backend_pid), contexts(conn)

        turns = CALLS // len(WAYS) // calls // 2
        loop(turns // 4)
        middle = loop(turns)
        end = loop(turns)
        require_flat(f"{way}, {2 * turns * calls} calls, process", middle[0], end[0])
        require_flat(f"{way}, contexts", middle[1], end[1])
        session.close(), holder.close()


def test_memory_of_the_worker(server):
    """The worker hands over and sweeps without a pause, so it stays one process, as the launcher does."""
    with server.connect() as conn, server.connect() as other:
        (launcher,) = server.workers("launcher")
        holder = Session(other, "holder", ttl="1 hour")
        holder.take("wanted")
        turns = CALLS // 100

        def loop():
            """Each turn makes work for the worker: an awaited lease is released, and a session ends with its lease."""
            conn.execute(
                f"DO $$ DECLARE s uuid; f bigint; BEGIN FOR i IN 1..{turns} LOOP "
                f"SELECT session INTO s FROM eskit_lease.session_open('short', '1 s'); SELECT fence INTO f FROM eskit_lease.lease_acquire('r' || i % 50, s); "
                f"PERFORM * FROM eskit_lease.lease_acquire('wanted', s, true); COMMIT; PERFORM eskit_lease.session_close(s); COMMIT; "
                f"END LOOP; END $$"
            )
            wait_until(lambda: stat(conn, "resources_dirty") == 0)
            (worker,) = wait_until(server.workers)
            return worker, own_memory(worker), own_memory(launcher), stat(conn, "sweeps")

        loop()
        middle, end = loop(), loop()
        assert middle[0] == end[0], "the worker is another one"
        assert end[3] - middle[3] > turns / 100, "the worker had little to do"
        require_flat(f"worker over {2 * turns} sessions, {end[3]} passes", middle[1], end[1])
        require_flat("launcher", middle[2], end[2])
        assert holder.renew("wanted").held
