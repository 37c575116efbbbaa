"""No crash, no internal error and nothing left behind, whatever a function is called with, by whom, and in which transaction.

The calls are drawn by Hypothesis (see extremes.py): always the same ones in `make test`, others at each turn of `make soak`."""

import itertools
import os
import re
import time
from collections import Counter
from contextlib import contextmanager

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import ROOT, Server, numbers, once, wait_until
from extremes import EXTREMES, OF_TYPE, at_extremes, transactions
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from psycopg.pq import TransactionStatus
from test_limits import refused

SECONDS, SEED = float(os.environ.get("SOAK_SECONDS", "0")) / 2, os.environ.get("SOAK_SEED", "1")
TURNS, EXAMPLES = 5, 120  # transactions of a turn; each turn has a database of its own, as its objects are soon used up
set_hypothesis_home_dir(ROOT / "target/hypothesis")

# All SQLSTATEs that a caller may get: from us, or from PostgreSQL about an argument or about the transaction.
TOLD = {
    "22004", "22023", "25006", "40001", "42501", "42703", "42704", "42710", "42804", "42809", "42P01", "53400", "54000", "55000", "55006", "55P03",
    "0A000", "LF001", "LF002", "LF003", "2200H",
    # about the arguments, before the function is called
    "22003", "22008", "22P02", "23514", "22015", "2202E", "54001", "22021", "22001",
    # about the statement or transaction around the call
    "25P02", "42883", "57014", "25001", "34000", "42P03", "42P05", "42P07", "42P16", "26000", "55P02", "0LP01", "2F003", "25P01",
}  # fmt: skip
ROLES = """
    CREATE ROLE extreme_consumer LOGIN; CREATE ROLE extreme_other LOGIN; CREATE ROLE extreme_monitor LOGIN; CREATE ROLE extreme_nobody;
    CREATE ROLE "eXtreme {role}; "
"""
STAGE = """
    CREATE EXTENSION eskit_lease;
    CREATE TABLE stage (name text PRIMARY KEY, uuid uuid, number bigint);
    CREATE TABLE stored (long text, json jsonb);
    ALTER TABLE stored ALTER long SET STORAGE EXTERNAL;
    INSERT INTO stored SELECT string_agg(md5(i::text), ''), jsonb_agg(md5(i::text)) FROM generate_series(1, 1000) AS i;
    CREATE DOMAIN nonempty AS text CHECK (VALUE <> '');
    GRANT SELECT ON stage, stored TO PUBLIC;
    GRANT CREATE ON SCHEMA public TO extreme_consumer;
    SELECT eskit_lease.grant_consumer('extreme_consumer'), eskit_lease.grant_consumer('extreme_other'), eskit_lease.grant_monitor('extreme_monitor'),
           eskit_lease.grant_monitor('extreme_consumer');
    CREATE TABLE theirs (i int);
    SET ROLE extreme_consumer;
    CREATE TABLE mine (i int PRIMARY KEY);
    CREATE TABLE partitioned (i int) PARTITION BY RANGE (i);
    CREATE TABLE mine_1 PARTITION OF partitioned FOR VALUES FROM (0) TO (9);
    CREATE VIEW a_view AS SELECT 1 AS i;
    CREATE MATERIALIZED VIEW kept AS SELECT 1 AS i;
    CREATE SEQUENCE a_sequence;
    CREATE INDEX an_index ON mine (i);
    CREATE TYPE a_type AS (i int);
    RESET ROLE;
"""


@pytest.fixture(scope="module")
def server():
    server = Server(
        "e2e-extremes", "eskit_lease.max_wait = '20ms'", "lock_timeout = '300ms'", "log_error_verbosity = verbose", "log_line_prefix = '%m [%p] %e '"
    )
    server.query(ROLES)
    yield server
    server.stop()


@contextmanager
def stage(server):
    """Gives a database with something of each kind for the calls."""
    name = f"stage_{next(numbers)}"
    # Other sessions may use the template, and the server's lock_timeout is for the calls.
    with server.connect(options="-c lock_timeout=0") as conn:
        conn.execute(f"CREATE DATABASE {name}")
    with server.connect(name, options="-c lock_timeout=0") as conn:
        conn.execute(STAGE)
    with server.connect(name) as owner, server.connect(name, user="extreme_consumer") as conn, server.connect(name, user="extreme_other") as other:
        session = Session(conn, "extreme consumer", ttl="60 s")
        sessions = {"mine": session.id, "drained": Session(conn, "d", ttl="60 s").id, "closed": Session(conn, "c", ttl="60 s").id}
        sessions["others"] = Session(other, "o", ttl="60 s").id
        call(conn, "session_drain", sessions["drained"])
        call(conn, "session_close", sessions["closed"])
        fences = {"lease": session.take("r"), "lock": call(conn, "lock_acquire", "r2", "owner", "60 s").fence}
        (sessions["private"],) = owner.execute("SELECT session FROM eskit_lease.sessions WHERE private").fetchone()
        call(conn, "semaphore_create", "sem", 2)
        call(conn, "group_create", "g", 3)
        fences["sem"] = session.take("sem")
        call(conn, "group_join", "g", session.id)
        fences["part"] = wait_until(lambda: rows(conn, "group_assignment", "g", session.id))[0].fence
        for queue, ordering, group in (("q", "none", None), ("qk", "key", None), ("qf", "fifo", None), ("qg", "none", "g")):
            call(conn, "queue_create", queue, 20, "1 s", ordering, group)
        fences["item"], fences["item2"], _ = (call(conn, "item_add", "q", "1") for _ in range(3))
        fences["claim"] = rows(conn, "item_claim", "q", session.id, 2)[0].fence
        fences["run"] = call(conn, "execution_begin", "k", session.id).fence
        found = [(name, uuid, None) for name, uuid in sessions.items()] + [(name, None, number) for name, number in fences.items()]
        owner.cursor().executemany("INSERT INTO stage VALUES (%s, %s, %s)", found)
    yield name
    server.query(f"DROP DATABASE {name} WITH (FORCE)")


class Caller:
    """One connection for each role, which is reused, so that later calls would meet anything that an error left behind
    in a backend."""

    def __init__(self, server, dbname, told):
        self.server, self.dbname, self.conns, self.told = server, dbname, {}, told

    def run(self, conn, statement):
        self.told["statements"] += 1
        try:
            conn.execute(statement)
        except psycopg.Error as error:
            assert error.sqlstate, f"the connection is gone: {error} by {statement[:2000]}"
            assert error.sqlstate in TOLD, f"{error.sqlstate}: {str(error)[:500]} by {statement[:2000]}"
            self.told[error.sqlstate] += 1

    def play(self, who, begin, savepoints, statements, end):
        if who not in self.conns:
            self.conns[who] = self.server.connect(self.dbname, user=who)
            self.conns[who].prepare_threshold = None
        conn = self.conns.pop(who)
        status = conn.info
        if begin:
            self.run(conn, begin)
        for statement in statements:
            if begin and savepoints:
                conn.execute("SAVEPOINT s")
            self.run(conn, statement)
            if begin and savepoints:
                conn.execute("ROLLBACK TO s" if status.transaction_status == TransactionStatus.INERROR else "RELEASE s")
        if begin:
            self.run(conn, end)
            if end.startswith("PREPARE"):
                conn.execute("ROLLBACK")
                if conn.execute("SELECT 1 FROM pg_prepared_xacts").fetchone():
                    conn.execute("ROLLBACK PREPARED 'extreme'" if self.told["statements"] % 2 else "COMMIT PREPARED 'extreme'")
        assert status.transaction_status == TransactionStatus.IDLE
        held = conn.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'").fetchone()
        assert held == (0,), "a guard has outlived its transaction"
        conn.execute("CLOSE ALL; DEALLOCATE ALL")
        self.conns[who] = conn

    def close(self):
        for conn in self.conns.values():
            conn.close()


def functions_of(server, dbname):
    """Returns all functions in the catalog, except one that has a test of its own because it would break the other
    calls."""
    found = server.query(
        """
        SELECT p.proname, ARRAY(SELECT format_type(type, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, n) ORDER BY n)
        FROM pg_proc AS p WHERE p.pronamespace = 'eskit_lease'::regnamespace AND p.prorettype <> 'trigger'::regtype
        ORDER BY p.proname
        """,
        dbname=dbname,
    )
    assert len(found) > 50
    undecided = {type for _, types in found for type in types} - (OF_TYPE.keys() & EXTREMES.keys())
    assert not undecided, f"no values for {undecided}"
    return [(name, types) for name, types in found if name != "position_raise"]


def require_sound(server):
    """Checks by the log, which has each error's SQLSTATE, that no process has crashed, each error is the caller's
    fault, and nothing leaks."""
    bad = re.compile(r"TRAP:|PANIC|was terminated by| XX\d{3} |WARNING:.*(leak|not closed|own a lock|still referenced)")
    assert [line for line in server.log.read_text(errors="replace").splitlines() if bad.search(line)] == []


def require_order(conn):
    """Checks that no session is alive without a row, no call waits, and a new caller is served."""
    wait_until(lambda: stat(conn, "calls_waiting") == 0)
    conn.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions")
    wait_until(lambda: stat(conn, "sessions_alive") == 0 and not conn.execute("TABLE eskit_lease.sessions").fetchall())
    session = Session(conn, "afterwards", ttl="60 s")
    assert session.take("new")
    assert session.close()


def test_no_call_has_more_effect_than_it_says(server):
    told, ends = Counter(), time.monotonic() + SECONDS
    for turn in itertools.count():
        if turn >= TURNS and time.monotonic() > ends:
            break
        with stage(server) as dbname:
            caller, functions = Caller(server, dbname, told), functions_of(server, dbname)

            # Nothing is shrunk, as the effect of a call depends on those before it.
            @seed(f"{SEED} {turn}")
            @settings(max_examples=EXAMPLES, phases=[Phase.generate], deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(transactions(functions))
            def play(transaction):
                caller.play(*transaction)

            play()
            caller.close()
            with server.connect(dbname) as conn:
                require_order(conn)
    print(f"{turn} turns with seed {SEED}: {dict(told)}")
    require_sound(server)


def test_each_argument_at_its_extremes(server):
    told = Counter()
    with stage(server) as dbname:
        caller = Caller(server, dbname, told)
        for number, made in enumerate(at_extremes(functions_of(server, dbname))):
            who = "postgres" if number % 4 == 0 else "extreme_consumer"
            caller.play(who, "BEGIN", False, [f"SELECT * FROM {made}"], "ROLLBACK")
        caller.close()
        with server.connect(dbname) as conn:
            require_order(conn)
    print(dict(told))
    require_sound(server)


@pytest.mark.parametrize("above", [None, -1, 0, 2**20 - 1, 2**62 - 1, 2**62, 2**63 - 1])
def test_positions_are_raised_within_limits(connect, above):
    conn = connect()
    if above is not None and 0 <= above < 2**62:
        call(conn, "position_raise", above)
        assert call(conn, "position_next") > above
    else:
        assert refused(call, conn, "position_raise", above).sqlstate == ("22004" if above is None else "22023")


@once
def test_no_payload_is_too_large_to_be_read(connect):
    """A payload that PostgreSQL can store but not print would be claimed in vain again and again, by each worker."""
    conn = connect()
    call(conn, "queue_create", "q")
    conn.execute("CREATE TABLE bomb AS SELECT to_jsonb(array_fill('1e131071'::numeric, ARRAY[9000])) AS payload")
    assert conn.execute("SELECT pg_column_size(payload) FROM bomb").fetchone()[0] < 200_000
    fewer = "to_jsonb(array_fill('1e131071'::numeric, ARRAY[150]))"
    for add in ("item_add('q', payload)", f"item_add('q', {fewer})", f"item_add_many('q', ARRAY['1', {fewer}])"):
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            conn.execute(f"SELECT eskit_lease.{add} FROM bomb")
    conn.execute("SELECT eskit_lease.item_add('q', to_jsonb(array_fill('1e131071'::numeric, ARRAY[120])))")
    claimed = "SELECT length(payload::text) FROM eskit_lease.item_claim('q', %s, 10)"
    assert conn.execute(claimed, (Session(conn).id,)).fetchall() == [(120 * 131_074,)]


@once
def test_the_last_time_that_there_is(connect):
    conn = connect()
    call(conn, "queue_create", "q")
    last = "294276-12-31 23:59:59.999999+00"
    call(conn, "item_add", "q", "1", None, last)
    assert conn.execute("SELECT run_at = %s::timestamptz FROM eskit_lease.items", (last,)).fetchone() == (True,)
    for other in ("2126-07-01 12:00:00.000001+00", "9999-12-31 23:59:59.999999+00", "200000-02-29 01:02:03.456789+00"):
        call(conn, "item_add", "q", "1", None, other)
        assert conn.execute("SELECT 1 FROM eskit_lease.items WHERE run_at = %s::timestamptz", (other,)).fetchone()


@once
def test_long_text(connect):
    """Functions that PUBLIC may call take text of 16 MiB."""
    conn = connect()
    for function in ("advisory_lock_id(long)", "group_lock_key(long)", "partition_for(long, 7)"):
        conn.execute(f"SELECT eskit_lease.{function} FROM (SELECT repeat('x', 1 << 24) AS long) AS x")
    for function in ("session_open(long)", "lease_renew(long, 1)", "queue_create(long)"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            conn.execute(f"SELECT eskit_lease.{function} FROM (SELECT repeat('x', 1 << 24) AS long) AS x")


@once
def test_bytes_that_are_no_text_are_no_names(server):
    """Encoding SQL_ASCII takes any bytes; two names must not become one."""
    server.query("CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with server.connect("bytes", client_encoding="SQL_ASCII") as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            for name in (r"E'caf\xe9'", r"E'caf\xe8'", r"E'\xc3'", r"E'\xed\xa0\x80'"):
                for function in (f"advisory_lock_id({name})", f"lock_acquire({name}, 'o', '1 min')", f"partition_assign('range', ARRAY[{name}], '{{x}}')"):
                    with pytest.raises(psycopg.errors.CharacterNotInRepertoire):
                        conn.execute(f"SELECT eskit_lease.{function}")
            assert conn.execute(r"SELECT eskit_lease.group_lock_key(E'caf\xc3\xa9')").fetchone() == (-8858723660289998967,)
            assert conn.execute(r"SELECT granted FROM eskit_lease.lock_acquire(E'caf\xc3\xa9', 'o', '1 min')").fetchone() == (True,)
    finally:
        server.query("DROP DATABASE bytes WITH (FORCE)")


@pytest.mark.parametrize("function", ["lease_acquire('r', %s)", "lease_renew('r', 1)", "session_heartbeat(%s)", "session_open('new')", "fence_check('r', 1)"])
def test_an_extension_that_goes_in_the_middle_of_a_statement(server, db, connect, background, function):
    """The extension may be dropped while a statement has not used it yet; the later call raises a clear error."""
    conn, gate, admin = connect(), connect(), connect()
    session = Session(conn, ttl="60 s")
    # The statement waits for the DROP.
    conn.execute("SET lock_timeout = '60 s'")
    gate.execute("SELECT pg_advisory_lock(1)")
    late = function.replace("%s", f"'{session.id}'")
    waiting = background(conn.execute, f"SELECT pg_advisory_lock(1), (SELECT count(*) FROM eskit_lease.{late})")
    waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
    wait_until(lambda: admin.execute(waits, (conn.info.backend_pid,)).fetchone())
    admin.execute("DROP EXTENSION eskit_lease")
    gate.execute("SELECT pg_advisory_unlock(1)")
    error = waiting.exception()
    assert error is None or error.sqlstate in ("42704", "42P01", "42883"), error


@pytest.mark.parametrize(
    ("encoding", "name", "shown"),
    [("UTF8", "注文", "注文"), ("SQL_ASCII", "注文", "注文"), ("EUC_JP", "注文", r"\u6ce8\u6587"), ("LATIN1", "für", r"f\u00fcr")],
)
def test_an_error_shows_names_in_any_encoding(server, encoding, name, shown):
    """PostgreSQL takes the text of an error for one in the encoding of the database."""
    server.query(f"CREATE DATABASE shown TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with server.connect("shown", client_encoding="UTF8") as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            session = Session(conn, "c")
            conn.execute("SET eskit_lease.declared_names = on")
            with pytest.raises(psycopg.Error) as error:
                conn.execute("SELECT eskit_lease.lease_acquire(%s, %s)", (name, session.id))
            assert error.value.sqlstate == "42704"
            assert f'"{shown}"' in error.value.diag.message_primary and f'"{shown}"' in error.value.diag.message_detail
            conn.execute("SET eskit_lease.declared_names = off")
            heard = []
            conn.add_notice_handler(lambda notice: heard.append(notice.message_primary))
            conn.execute("SET client_min_messages = log")
            session.take(name)
            assert conn.execute("SELECT eskit_lease.lease_force_release(%s, %s, %s)", (name, session.fences[name], name)).fetchone() == (True,)
            assert f'"{shown}"' in heard[0] and heard[0].endswith(shown)
    finally:
        server.query("DROP DATABASE shown WITH (FORCE)")


@once
def test_a_cancel_ends_an_acquire_of_many_names_with_many_declared_beginnings(connect):
    conn = connect()
    session = Session(conn, "c", ttl="600 s")
    conn.execute("SELECT eskit_lease.lease_declare(repeat('a', length), length = 1) FROM generate_series(1, 250) AS length")
    conn.execute("SET eskit_lease.declared_names = on")
    conn.execute("SET statement_timeout = '1 s'")
    began = time.monotonic()
    with pytest.raises(psycopg.errors.QueryCanceled):
        rows(conn, "lease_acquire_many", ["a" * 250 + f"{number:x}" for number in range(30_000)], session.id)
    assert time.monotonic() - began < 30
