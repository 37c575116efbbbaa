"""Updates from former versions, whose SQL is frozen in pg_test/upgrade, to this version. The suite `upgrade` of
pg_test/run tests what both can do."""

import contextlib
import os
import subprocess
from pathlib import Path

import psycopg
import pytest
from catalogs import differences, facts
from client import Session, Stubborn, call, rows
from conftest import once, wait_until
from psycopg.types.json import Jsonb

UPDATE = "ALTER EXTENSION eskit_lease UPDATE"


@pytest.fixture(params=("0.1.0", "0.2.0"))
def before(request):
    """A former version."""
    return request.param


@pytest.fixture
def former(server, db, before):
    """Gives a database with a former version."""
    name = f"{db}_former"
    server.query(f"CREATE DATABASE {name}")
    server.query(f"CREATE EXTENSION eskit_lease VERSION '{before}'", dbname=name)
    yield name
    server.query(f"DROP DATABASE {name} WITH (FORCE)")


def version(conn):
    return conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'eskit_lease'").fetchone()[0]


def test_an_updated_database_is_as_a_fresh_one(connect, former, before):
    fresh, updated = connect(), connect(dbname=former)
    assert version(updated) == before
    updated.execute(UPDATE)
    assert version(updated) == version(fresh)
    found = differences(facts(fresh), facts(updated))
    assert not found, "sql/eskit_lease--*.sql does not lead to what a new database has:\n" + "\n".join(found)


TAMPERED = {
    "function eskit_lease.session_drain(uuid)": "ALTER FUNCTION eskit_lease.session_drain COST 7",
    "function eskit_lease.session_detach(uuid)": "ALTER FUNCTION eskit_lease.session_detach STABLE PARALLEL SAFE",
    "function eskit_lease.session_close(uuid)": "ALTER FUNCTION eskit_lease.session_close SET search_path = pg_catalog",
    "function eskit_lease.position_horizon()":
        "CREATE OR REPLACE FUNCTION eskit_lease.position_horizon() RETURNS bigint LANGUAGE c AS '$libdir/eskit_lease', 'next_position_wrapper'",
    "function eskit_lease.lease_release(text,bigint,interval)":
        "CREATE OR REPLACE FUNCTION eskit_lease.lease_release(resource text, fence bigint, grace interval DEFAULT '1 s') RETURNS boolean "
        "LANGUAGE c AS '$libdir/eskit_lease', 'lease_release_wrapper'",
    "function eskit_lease.stats()": "GRANT EXECUTE ON FUNCTION eskit_lease.stats() TO PUBLIC",
    "function eskit_lease.item_done(bigint[],bigint)": "COMMENT ON FUNCTION eskit_lease.item_done IS 'something else'",
    "function eskit_lease.item_fail(bigint,bigint,text,interval)":
        "ALTER EXTENSION eskit_lease DROP FUNCTION eskit_lease.item_fail(bigint, bigint, text, interval)",
    "default value for column draining of table eskit_lease._sessions": "ALTER TABLE eskit_lease._sessions ALTER draining SET DEFAULT true",
    "column 3 of table eskit_lease._waiters": "ALTER TABLE eskit_lease._waiters ALTER session DROP NOT NULL",
    "column 4 of table eskit_lease._cursors": "ALTER TABLE eskit_lease._cursors ALTER acked SET STORAGE MAIN",
    "column 15 of table eskit_lease._sessions": "ALTER TABLE eskit_lease._sessions ADD more text",
    "table eskit_lease._items": "ALTER TABLE eskit_lease._items SET (fillfactor = 90)",
    "constraint _waiters_pkey on table eskit_lease._waiters": "ALTER TABLE eskit_lease._waiters DROP CONSTRAINT _waiters_pkey",
    "index eskit_lease._leases_released_at":
        "DROP INDEX eskit_lease._leases_released_at; CREATE INDEX _leases_released_at ON eskit_lease._leases (released_at)",
    "rule _RETURN on view eskit_lease.dead_items": "ALTER VIEW eskit_lease.dead_items RENAME id TO other",
    "view eskit_lease.items": "ALTER VIEW eskit_lease.items SET (security_barrier)",
    "view eskit_lease.queues": "REVOKE ALL ON eskit_lease.queues FROM CURRENT_USER",
    "column 2 of composite type eskit_lease.lease_state": "ALTER TYPE eskit_lease.lease_state ALTER ATTRIBUTE trust_ms TYPE bigint CASCADE",
    "type eskit_lease.lease_answer": "GRANT USAGE ON TYPE eskit_lease.lease_answer TO PUBLIC",
    "sequence eskit_lease.fence_seq": "ALTER SEQUENCE eskit_lease.fence_seq CACHE 2",
    "schema eskit_lease": "REVOKE USAGE ON SCHEMA eskit_lease FROM PUBLIC",
    "extension eskit_lease": "UPDATE pg_extension SET extcondition[5] = 'WHERE false' WHERE extname = 'eskit_lease'",
}  # fmt: skip


@once
def test_the_comparison_misses_nothing(server, connect, db):
    """In one of two equal databases one thing at a time is changed, and the comparison finds it."""
    fresh = facts(connect())
    copy = f"{db}_tampered"
    server.query(f"CREATE DATABASE {copy}")
    server.query("CREATE EXTENSION eskit_lease", dbname=copy)
    tampered = connect(dbname=copy, autocommit=False)
    try:
        for what, change in TAMPERED.items():
            tampered.execute(change)
            found = differences(fresh, facts(tampered))
            assert any(what in text.splitlines()[0] for text in found), (what, found)
            tampered.rollback()
        assert not differences(fresh, facts(tampered))
    finally:
        tampered.close()
        server.query(f"DROP DATABASE {copy} WITH (FORCE)")


SIGNATURES = """
    SELECT prosrc, proargtypes::regtype[]::text, prorettype::regtype::text, proisstrict, proretset, fmgr_c_validator(p.oid)
    FROM pg_proc AS p WHERE probin = '$libdir/eskit_lease'"""


def test_the_library_has_each_function_of_before(connect, former, before):
    functions = connect(dbname=former).execute(SIGNATURES).fetchall()
    now = {symbol: signature for symbol, *signature in connect().execute(SIGNATURES)}
    assert len(functions) == {"0.1.0": 62, "0.2.0": 66}[before]
    # Symbols that are still in use have the same arguments as before. PostgreSQL's validator has found the others.
    assert [(symbol, *now.get(symbol, signature)) for symbol, *signature in functions] == functions


@contextlib.contextmanager
def told(conn):
    """Collects the notices that a connection gets."""
    notices = []

    def hear(notice):
        notices.append((notice.severity, notice.sqlstate, notice.message_primary, notice.message_hint))

    conn.add_notice_handler(hear)
    yield notices
    conn.remove_notice_handler(hear)


def former_name(former, today):
    return ("WARNING", "01P01", f"{former}() is the former name of {today}(), and deprecated", f"Call eskit_lease.{today}().")


def test_the_objects_of_before_answer_as_they_did(connect, former, before):
    conn = connect(dbname=former)
    call(conn, "semaphore_create", "s", 1), call(conn, "group_create", "g", 1), call(conn, "queue_create", "q")
    conn.execute("CREATE TABLE work (i int)")
    with told(conn) as notices:
        assert call(conn, "next_position") > 0
        assert call(conn, "cursor_head", "g", 0, 1) is True
        assert [call(conn, "fence_table", "work", "r"), call(conn, "unfence_table", "work"), call(conn, "unfence_table", "work")] == [True, True, False]
        assert [call(conn, "semaphore_drop", "s"), call(conn, "group_drop", "g"), call(conn, "queue_drop", "q", True)] == [""] * 3
        for function in ("semaphore_drop", "group_drop", "queue_drop"):
            with pytest.raises(psycopg.errors.UndefinedObject):
                call(conn, function, "none")
        if before != "0.1.0":
            assert call(conn, "bridge_drop", "none") is False
    assert notices == []


def test_a_session_that_has_ended_is_told_as_before_until_the_update(connect, former):
    """The SQLSTATE on which clients begin anew comes with the objects, not with the library."""
    conn = connect(dbname=former)
    call(conn, "group_create", "g", 1), call(conn, "queue_create", "q")
    session, closing = Session(conn), Session(conn)
    session.close()
    begins = [("group_join", "g"), ("item_claim", "q"), ("execution_begin", "k")]
    other = connect(dbname=former, autocommit=False)
    call(other, "session_close", closing.id)

    def told_of(ended, asks=(*begins, ("group_assignment", "g"))):
        states = set()
        for function, name in asks:
            with pytest.raises(psycopg.Error) as raised:
                rows(conn, function, name, ended)
            states.add(raised.value.sqlstate)
        return states

    unknown = "00000000-0000-4000-8000-000000000000"
    assert [told_of(session.id), told_of(unknown), told_of(closing.id, begins)] == [{"55000"}] * 3
    other.rollback()
    conn.execute(UPDATE)
    call(other, "session_close", closing.id)
    assert [told_of(session.id), told_of(unknown), told_of(closing.id, begins)] == [{"LF003"}, {"LF003"}, {"55P03"}]
    other.rollback()


def test_an_answer_has_the_columns_of_before_until_the_update(connect, former):
    """A prepared statement and a view made before the update also keep their columns."""
    conn = connect(dbname=former)
    conn.prepare_threshold = 0
    session = Session(conn, ttl="60 s")
    fence = session.take("r")
    conn.execute("CREATE TABLE asked (session uuid)")
    conn.execute("CREATE VIEW answers AS SELECT a.* FROM asked, eskit_lease.lease_acquire('r', session) AS a")
    conn.execute("INSERT INTO asked VALUES (%s)", (session.id,))

    def answers():
        of_view = conn.execute("TABLE answers").fetchall()
        return [call(conn, "lease_acquire", "r", session.id), call(conn, "execution_begin", "k", session.id), call(conn, "lease_renew", "r", fence)], of_view

    before, of_view = answers()
    assert [answer._fields[-1] for answer in before] == ["reason", "started_at", "reason"]
    conn.execute(UPDATE)
    after, again = answers()
    assert [answer.fence for answer in after[:2]] == [answer.fence for answer in before[:2]]
    assert [answer._fields[-1] for answer in after] == ["revision", "revision", "holder"]
    assert after[0].revision == session.heartbeat().revision
    assert again == of_view


def test_a_refusal_is_in_the_words_of_before_until_the_update(connect, former):
    conn = connect(dbname=former)
    holder, waiter = Session(conn, "holder", ttl="60 s"), Session(conn, "waiter", ttl="60 s")
    released, fence = holder.take("released"), holder.take("r")
    waiter.queue("r")
    call(conn, "lease_release", "released", released), waiter.take("released")
    forced = holder.take("forced")
    assert call(conn, "lease_force_release", "forced", forced, "test")

    def told():
        renewed = [call(conn, "lease_renew", resource, f).reason for resource, f in (("released", released), ("forced", forced), ("r", fence))]
        return [*renewed, waiter.acquire("r").reason]

    assert told() == ["superseded by waiter", "released", "held", "held"]
    conn.execute(UPDATE)
    assert told()[::2] == ["superseded", "held"] and told()[3] == "queued"


def test_what_names_the_functions_of_before(connect, former):
    """A default, a view and a trigger know former functions by oid. The body of a function knows them by name, and gets
    one warning."""
    conn = connect(dbname=former)
    conn.execute("""
        CREATE TABLE outbox (position bigint DEFAULT eskit_lease.next_position(), what text);
        CREATE TABLE copied (LIKE outbox);
        CREATE VIEW positions AS SELECT eskit_lease.next_position() AS position;
        CREATE FUNCTION copy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO copied VALUES (NEW.position, NEW.what); RETURN NULL; END $$;
        CREATE TRIGGER copy AFTER INSERT ON outbox FOR EACH ROW WHEN (NEW.position <= eskit_lease.next_position()) EXECUTE FUNCTION copy();
        CREATE FUNCTION number() RETURNS SETOF bigint LANGUAGE plpgsql AS $$
        BEGIN RETURN QUERY SELECT eskit_lease.next_position() FROM generate_series(1, 9); END $$""")
    conn.execute("INSERT INTO outbox (what) VALUES ('before')")
    conn.execute(UPDATE)
    with told(conn) as notices:
        for _ in range(2):
            conn.execute("INSERT INTO outbox (what) SELECT 'after' FROM generate_series(1, 9)")
            conn.execute("TABLE positions")
    assert notices == []
    assert conn.execute("SELECT count(*), count(DISTINCT position), min(position) > 0 FROM copied").fetchone() == (19, 19, True)
    now = conn.execute("SELECT pg_get_expr(adbin, adrelid), pg_get_viewdef('positions'::regclass) FROM pg_attrdef WHERE adrelid = 'outbox'::regclass")
    assert all("eskit_lease.position_next()" in definition for definition in now.fetchone())
    with told(conn) as notices:
        assert len({position for _ in range(2) for (position,) in conn.execute("SELECT number()")}) == 18
    assert notices == [former_name("next_position", "position_next")]


@once
def test_objects_that_are_missing(server, connect, former):
    """An object that the library needs is missing: the error says so, and the hint says what to do."""
    changes = {
        "ALTER TABLE eskit_lease._sessions RENAME consumer TO other": ("session_open", "a"),
        "ALTER INDEX eskit_lease._sessions_pkey RENAME TO other": ("lease_acquire", "r", "{session}"),
        "ALTER SEQUENCE eskit_lease.fence_seq RENAME TO other": ("lease_acquire", "r", "{session}"),
        "ALTER TABLE eskit_lease._executions RENAME TO other": ("execution_begin", "k", "{session}"),
        "ALTER TYPE eskit_lease.session_state ADD ATTRIBUTE other text": ("session_heartbeat", "{session}"),
    }
    session = Session(connect(dbname=former), ttl="60 s")
    for change, (function, *args) in changes.items():
        conn = connect(dbname=former, autocommit=False)
        conn.execute(change)
        with pytest.raises(psycopg.Error) as raised:
            call(conn, function, *(session.id if arg == "{session}" else arg for arg in args))
            pytest.fail(change)
        assert raised.value.sqlstate == "55000", change
        assert "ALTER EXTENSION eskit_lease UPDATE" in raised.value.diag.message_hint, change
        conn.close()
    assert session.heartbeat().alive


def test_declared_names_before_the_update(connect, former):
    """Objects of before cannot say which names are declared: no session gets another name, and the hint says what to do.
    What sessions have, wait for or declared by a semaphore goes on."""
    conn = connect(dbname=former)
    holder, waiter = Session(conn, "holder", ttl="60 s"), Session(conn, "waiter", ttl="60 s")
    fence = holder.take("r")
    waiter.queue("r")
    call(conn, "semaphore_create", "s", 1)
    conn.execute("SET eskit_lease.declared_names = on")
    for function, *args in [("lease_acquire", "other", holder.id), ("lease_acquire", "other", holder.id, True), ("lock_acquire", "other", "me", "60 s")]:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as raised:
            call(conn, function, *args)
        assert raised.value.diag.message_detail == "There is no relation _lease_names.", function
        assert raised.value.diag.message_hint.startswith("Run ALTER EXTENSION eskit_lease UPDATE."), function
    assert [holder.acquire("r").reason, holder.acquire("s").reason, waiter.acquire("r", queue=True).granted] == ["already_held", "granted", False]
    assert call(conn, "lease_renew", "r", fence).held and call(conn, "lease_release", "r", fence)
    assert waiter.acquire("r").reason == "already_held"
    conn.execute(UPDATE)
    with pytest.raises(psycopg.errors.UndefinedObject):
        call(conn, "lease_acquire", "other", holder.id)
    call(conn, "lease_declare", "other")
    assert holder.acquire("other").granted


class Worker(Stubborn):
    """Waits in line, works under its fence in a transaction, and releases, again and again."""

    def __init__(self, server, db, number):
        super().__init__(server)
        self.db, self.number, self.done = db, number, 0

    def run(self):
        with self.server.connect(self.db) as conn:
            conn.prepare_threshold = 1
            session = Session(conn, f"worker {self.number}", ttl="60 s")
            while not self.stopping.is_set():
                answer = session.acquire("busy", queue=True)
                if answer.reason == "busy":
                    continue  # the update has locked a table, so the session got no place in line
                if not answer.granted:
                    session.wait_for("busy")
                try:
                    with conn.transaction():
                        session.check("busy")
                        conn.execute("UPDATE counter SET n = n + 1, fence = %s WHERE fence <= %s", (session.fences["busy"],) * 2)
                    self.done += 1
                except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable):
                    pass  # a rewritten table, with all its rows, is newer than the snapshot, and it is locked meanwhile
                unlocked(session.release, "busy")
            unlocked(session.close)


def unlocked(call, *arguments):
    """Repeats a call as long as the update has locked a table."""
    while True:
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            return call(*arguments)


# Changes to tables, indexes and functions such as a later update may make.
OTHER_OIDS = """
    ALTER TABLE eskit_lease._sessions ADD more text DEFAULT 'a';
    ALTER TABLE eskit_lease._leases ADD more integer NOT NULL DEFAULT 1;
    ALTER TABLE eskit_lease._items ADD more jsonb;
    ALTER TABLE eskit_lease._leases ALTER timeline TYPE integer USING timeline + 0;
    DROP INDEX eskit_lease._leases_session;
    CREATE INDEX _leases_session ON eskit_lease._leases (session, resource) WHERE session IS NOT NULL;
    ALTER TABLE eskit_lease._waiters DROP CONSTRAINT _waiters_pkey, ADD PRIMARY KEY (resource, place);
    ALTER EXTENSION eskit_lease DROP FUNCTION eskit_lease.session_drain(uuid);
    DROP FUNCTION eskit_lease.session_drain;
    CREATE FUNCTION eskit_lease.session_drain(session uuid) RETURNS boolean LANGUAGE c AS '$libdir/eskit_lease', 'session_drain_wrapper';"""


def patiently(conn, changes):
    """Makes the changes. Gives way to transactions that lock the tables in another order, and tries again."""
    conn.execute("SET lock_timeout = '100 ms'")

    def done():
        try:
            with conn.transaction():
                conn.execute(changes)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    wait_until(done)


def test_an_update_while_everything_is_in_use(server, connect, former, background):
    """Holders go on holding, even in the middle of a transaction; waiters are woken; cached plans and oids are
    refreshed."""
    conn, fencing, admin = connect(dbname=former), connect(dbname=former, autocommit=False), connect(dbname=former)
    admin.execute("CREATE TABLE counter (n bigint, fence bigint)")
    admin.execute("INSERT INTO counter VALUES (0, 0)")
    holder, waiter = Session(conn, "holder", ttl="60 s"), Session(connect(dbname=former), "waiter", ttl="60 s")
    drained = Session(connect(dbname=former), "drained", ttl="60 s")
    for resource in ("r", "fenced"):
        holder.take(resource)
    waiter.queue("r")
    waiting = background(waiter.wait_for, "r")
    call(conn, "group_create", "g", 4)
    holder.join("g")
    wait_until(lambda: holder.owns(conn, "g") == 4)
    call(conn, "queue_create", "q")
    rows(conn, "item_add_many", "q", [Jsonb(i) for i in range(10)])
    items = rows(conn, "item_claim", "q", holder.id, 5)
    execution = call(conn, "execution_begin", "k", holder.id)
    workers = [Worker(server, former, number) for number in range(3)]
    for worker in workers:
        worker.start()

    def worked():
        done = [worker.done for worker in workers]
        wait_until(lambda: all(worker.done > before + 3 or worker.failure for worker, before in zip(workers, done, strict=True)))
        assert not any(worker.failure for worker in workers)

    worked()
    fencing.execute("SELECT eskit_lease.fence_check('fenced', %s)", (holder.fences["fenced"],))
    # The update makes an index on leases, so it waits for that transaction, and gives way to all others.
    updating = background(patiently, admin, UPDATE)
    worked()
    assert not updating.done()
    fencing.execute("UPDATE counter SET fence = fence")
    fencing.commit()
    updating.result()
    worked()
    patiently(admin, OTHER_OIDS)
    worked()

    assert {holder.renew(resource).reason for resource in ("r", "fenced")} == {"held"}
    assert holder.acquire("fenced").reason == "already_held"
    fencing.execute("SELECT eskit_lease.fence_check('fenced', %s)", (holder.fences["fenced"],))
    fencing.commit()
    assert [partition.state for partition in holder.assignment("g")] == ["owned"] * 4
    assert call(conn, "cursor_commit", "g", 0, 7, holder.assignment("g")[0].fence)
    assert call(conn, "item_done", [item.id for item in items], items[0].fence) == 5
    assert len(rows(conn, "item_claim", "q", holder.id, 10)) == 5
    assert call(conn, "execution_finish", "k", execution.fence)
    assert call(drained.conn, "session_drain", drained.id)
    assert drained.acquire("other").reason == "draining"
    assert not waiting.done()
    holder.release("r")
    waiting.result()
    assert waiter.fences["r"] > holder.fences["r"]
    for worker in workers:
        worker.end()
    assert admin.execute("SELECT n FROM counter").fetchone()[0] == sum(worker.done for worker in workers)
    assert admin.execute("SELECT count(*) FROM eskit_lease.leases WHERE resource = 'busy' AND state = 'held'").fetchone() == (0,)


@once
def test_who_may_update(server, connect, former, before):
    admin = connect(dbname=former)
    admin.execute("CREATE ROLE upgrades_nobody LOGIN")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner of extension eskit_lease"):
            connect(dbname=former, user="upgrades_nobody").execute(UPDATE)
        assert version(admin) == before
        admin.execute(UPDATE)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function _require_library"):
            connect(dbname=former, user="upgrades_nobody").execute("SELECT eskit_lease._require_library('0.1.0')")
    finally:
        admin.execute("DROP ROLE upgrades_nobody")


def test_who_watches_goes_on_watching(connect, former):
    """Roles that could read a view before can still read it, even if it calls a new function."""
    admin, role = connect(dbname=former), f"{former}_monitor"
    admin.execute(f'CREATE ROLE "{role}"')
    try:
        call(admin, "grant_monitor", role)
        admin.execute(UPDATE)
        admin.execute(f'SET ROLE "{role}"')
        views = admin.execute("""SELECT oid::regclass::text FROM pg_class
                                 WHERE relnamespace = 'eskit_lease'::regnamespace AND relkind = 'v' AND has_table_privilege(oid, 'SELECT')""")
        for (view,) in views.fetchall():
            admin.execute(f"SELECT FROM {view}")
    finally:
        admin.execute(f'RESET ROLE; DROP OWNED BY "{role}"; DROP ROLE "{role}"')


@once
def test_a_function_that_is_made_anew_keeps_its_grants(server, connect, former, before):
    """cursor_commit, partition_assign and the functions that drop have one argument more than in 0.2.0. Others have a
    new name, and also keep the former one."""
    conn = connect(dbname=former)
    anew = ["cursor_commit", "semaphore_drop", "queue_drop", "next_position", "unfence_table"]
    pure = "SELECT proacl FROM pg_proc WHERE proname = 'partition_assign'"
    of_all = conn.execute(pure).fetchone()
    acl = """SELECT proname, coalesce(rolname, 'PUBLIC'), is_grantable FROM pg_proc, aclexplode(proacl) LEFT JOIN pg_roles AS r ON r.oid = grantee
             WHERE pronamespace = 'eskit_lease'::regnamespace AND proname = ANY (%s) ORDER BY 1, 2"""
    roles, other = (f"{former}_user", f"{former} giver"), f"{former}_other"
    for role in (*roles, other):
        conn.execute(f'CREATE ROLE "{role}"')
    conn.execute(f'ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO "{other}"')
    try:
        for role, option in zip(roles, ("", "WITH GRANT OPTION"), strict=True):
            conn.execute(f'GRANT EXECUTE ON FUNCTION {", ".join(f"eskit_lease.{name}" for name in anew)} TO "{role}" {option}')
        granted = conn.execute(acl, (anew,)).fetchall()
        assert len(granted) == 3 * len(anew)
        conn.execute(f'GRANT SELECT ON eskit_lease.waiters TO "{roles[0]}"')
        conn.execute(f'GRANT EXECUTE ON FUNCTION eskit_lease._standing(uuid, bigint, integer) TO "{roles[0]}"')
        conn.execute(UPDATE)
        # Roles that could read the views can also read the new view, and all roles can call help().
        conn.execute(f'SET ROLE "{roles[0]}"')
        conn.execute("SELECT FROM eskit_lease.waiters, eskit_lease.refusals")
        conn.execute(f'RESET ROLE; SET ROLE "{roles[1]}"')
        assert "refusals" in call(conn, "help", "leases")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("TABLE eskit_lease.refusals")
        conn.execute("RESET ROLE")
        assert conn.execute(acl, (anew,)).fetchall() == granted
        today = {"next_position": "position_next", "unfence_table": "table_unfence"}
        renamed = [(today[name], role, option) for name, role, option in granted if name in today]
        assert conn.execute(acl, ([*today.values()],)).fetchall() == renamed
        assert conn.execute(pure).fetchone() == of_all
        command = [Path(os.environ["PG_BIN"]) / "pg_dump", "-d", server.dsn(former)]
        dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        grants = [line for line in dump if line.startswith("GRANT") and "cursor_commit" in line and "expected bigint" in line]
        assert all(any(role in line for line in grants) for role in roles), grants
    finally:
        for role in (*roles, other):
            conn.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


@once
def test_what_stands_in_the_way_of_an_update(connect, former, before):
    """The update drops none of a user's objects together with a function; the error names all of them."""
    conn = connect(dbname=former)
    conn.execute("""
        CREATE TABLE done (ok boolean DEFAULT eskit_lease.cursor_commit('g', 0, 1, 1));
        CREATE VIEW "A view" AS SELECT 1 AS n WHERE eskit_lease.group_drop('g') IS NULL OR eskit_lease.queue_drop('q') IS NULL;
        CREATE FUNCTION assigned() RETURNS text[] LANGUAGE sql BEGIN ATOMIC SELECT eskit_lease.partition_assign('range', '{a}', '{NULL}'); END""")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refused:
        conn.execute(UPDATE)
    assert refused.value.diag.message_detail.splitlines() == [
        "default value for column ok of table public.done depends on function eskit_lease.cursor_commit",
        "function public.assigned() depends on function eskit_lease.partition_assign",
        'view public."A view" depends on function eskit_lease.group_drop',
        'view public."A view" depends on function eskit_lease.queue_drop',
    ]
    assert refused.value.diag.message_hint == "Drop these objects, update, and make them anew."
    assert version(conn) == before
    conn.execute('DROP TABLE done; DROP VIEW "A view"; DROP FUNCTION assigned')
    conn.execute("CREATE TABLE kept (answer eskit_lease.lease_answer, others eskit_lease.execution_answer[])")
    conn.execute("CREATE VIEW asked AS SELECT eskit_lease.lease_acquire('r', NULL) AS answer")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refused:
        conn.execute(UPDATE)
    assert refused.value.diag.message_detail.splitlines() == [
        "column answer of table public.kept is of type eskit_lease.lease_answer",
        "column others of table public.kept is of type eskit_lease.execution_answer",
    ]
    conn.execute("DROP TABLE kept")
    conn.execute(UPDATE)


def test_an_update_moves_no_partition(connect, former):
    """Versions up to 0.2.0 left many small groups to the member that came first. That member keeps them until a member
    comes or goes."""
    conn, names = connect(dbname=former), [f"g{number}" for number in range(20)]
    members = [Session(conn, f"member {number}", ttl="600 s") for number in range(4)]
    for name in names:
        call(conn, "group_create", name, 1)
        for member in members:
            member.join(name)
    first = members[0].id
    conn.execute("SELECT eskit_lease.group_release(group_name, partition, fence) FROM eskit_lease.group_partitions WHERE state = 'revoking'")
    wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease.group_partitions WHERE state = 'owned'").fetchone() == (20,))
    # No group has a member that its next rebalance would count.
    wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._members WHERE counted IS DISTINCT FROM 'active'").fetchone() == (0,))
    with conn.transaction():
        conn.execute("UPDATE eskit_lease._partitions SET target = %s", (first,))
        conn.execute("UPDATE eskit_lease._leases SET session = %s", (first,))
    owned = "SELECT group_name, session, fence, state, target FROM eskit_lease.group_partitions ORDER BY 1"
    generations = "SELECT group_name, generation FROM eskit_lease.groups ORDER BY 1"
    before = [conn.execute(query).fetchall() for query in (owned, generations)]
    assert {row[1] for row in before[0]} == {first}
    conn.execute(UPDATE)
    for name in names:
        assert [len(member.assignment(name)) for member in members] == [1, 0, 0, 0]
    while conn.execute("SELECT more FROM eskit_lease.session_sweep()").fetchone()[0]:
        pass
    assert [conn.execute(query).fetchall() for query in (owned, generations)] == before


@once
def test_there_is_no_way_back(connect):
    conn = connect()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f'no update path from version "{version(conn)}" to version "0.1.0"'):
        conn.execute(f"{UPDATE} TO '0.1.0'")


def test_a_dump_of_before_restores(server, connect, former, tmp_path):
    conn = connect(dbname=former)
    session = Session(conn, ttl="60 s")
    call(conn, "semaphore_create", "s", 2)
    call(conn, "group_create", "g", 1)
    session.join("g")
    wait_until(lambda: session.owns(conn, "g") == 1)
    call(conn, "cursor_commit", "g", 0, 42, session.assignment("g")[0].fence)
    call(conn, "execution_finish", "k", call(conn, "execution_begin", "k", session.id).fence, Jsonb("result"))
    call(conn, "queue_create", "q")
    call(conn, "item_add", "q", Jsonb("payload"))
    fence = session.take("r")
    conn.execute("CREATE TABLE outbox (position bigint DEFAULT eskit_lease.next_position(), what text)")
    conn.execute("INSERT INTO outbox (what) VALUES ('before')")
    position = call(conn, "next_position")

    tool, file, restored = Path(os.environ["PG_BIN"]), tmp_path / "dump", f"{former}_restored"
    subprocess.run([tool / "pg_dump", "-Fc", "-f", file, server.dsn(former)], check=True)
    server.query(f"CREATE DATABASE {restored}")
    try:
        subprocess.run([tool / "pg_restore", "--exit-on-error", "-d", server.dsn(restored), file], check=True)
        with server.connect(restored) as conn:
            assert not differences(facts(connect()), facts(conn))
            assert call(conn, "cursor_position", "g", 0) == 42
            assert conn.execute("SELECT state, result FROM eskit_lease.executions").fetchall() == [("done", "result")]
            assert conn.execute("SELECT state, payload FROM eskit_lease.items").fetchall() == [("ready", "payload")]
            assert conn.execute("SELECT count(*) FROM eskit_lease.sessions").fetchone() == (0,)
            session = Session(conn)
            assert session.take("r") > fence
            assert session.acquire("s").granted
            assert call(conn, "position_next") > position
            # The dump's column has a default that calls a former name.
            with told(conn) as notices:
                conn.execute("INSERT INTO outbox (what) VALUES ('after'), ('and again')")
                conn.execute("INSERT INTO outbox (what) VALUES ('and again')")
            assert notices == [former_name("next_position", "position_next")]
            assert conn.execute("SELECT what FROM outbox ORDER BY position LIMIT 2").fetchall() == [("before",), ("after",)]
    finally:
        server.query(f"DROP DATABASE {restored} WITH (FORCE)")
