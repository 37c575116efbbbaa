"""Old workers lease a row by timestamp, beside new workers that hold the lease bridged to that row. Meanwhile the
worker and the server are killed, and the owner of the table or of its schema tampers with the table."""

import random
import threading
import time

import psycopg
import pytest
from client import Session, Stubborn, call
from conftest import Pooler, Server, once, wait_until
from test_bridges import OVERLAPS, WORK, New, done, kill, workers

pytestmark = once
TOPICS = """CREATE TABLE topics (topic text PRIMARY KEY, owner text, until timestamptz, position bigint NOT NULL DEFAULT 0);
    INSERT INTO topics (topic) VALUES ('orders'), ('invoices')"""
TAKE = """UPDATE topics SET owner = %(me)s, until = clock_timestamp() + interval '5 s'
    WHERE topic = 'orders' AND (owner IS NULL OR until IS NULL OR until < clock_timestamp() OR owner = %(me)s)"""
REFUSED = "nobody new gets the lease"


@pytest.fixture(scope="module")
def bridged():
    server = Server("e2e-bridged-rows")
    yield server
    server.stop()


@pytest.fixture
def scene(bridged):
    """Gives a new holder, and a connection of an old worker."""
    reset(bridged)
    with bridged.connect() as new, bridged.connect() as old:
        session = Session(new, "new", ttl="60 s")
        session.queue("r").wait_for("r")
        yield session, old
    bridged.set(eskit_lease__worker=None)


def reset(server):
    server.query("DROP EXTENSION IF EXISTS eskit_lease")
    server.query("DROP TABLE IF EXISTS topics CASCADE")
    server.query("CREATE EXTENSION eskit_lease")
    server.query(TOPICS)
    server.query("SELECT eskit_lease.bridge_create_row('r', 'topics', 'orders', 'owner', 'until')")


def takes(conn, me="old"):
    return conn.execute(TAKE, {"me": me}).rowcount == 1


def frees(conn, me="old"):
    conn.execute("UPDATE topics SET until = clock_timestamp() WHERE topic = 'orders' AND owner = %s", (me,))


def due(server):
    """Makes the worker write the row at its next look."""
    server.query("UPDATE topics SET until = clock_timestamp() + interval '8 s' WHERE topic = 'orders'")


def kept(server):
    return server.query("SELECT until > clock_timestamp() + interval '15 s' FROM topics WHERE topic = 'orders'") == [(True,)]


def held(server, resource="r"):
    return server.query("SELECT held FROM eskit_lease.bridges WHERE resource = %s", resource) == [(True,)]


def checks(session):
    try:
        session.check("r")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def goes_on(session):
    """Returns whether the lease goes on under a newer fence than the last."""
    before = session.fences["r"]
    wait_until(lambda: (session.acquire("r").fence or 0) > before)
    with pytest.raises(psycopg.Error) as lost:
        call(session.conn, "fence_check", "r", before)
    return lost.value.sqlstate == "LF001" and wait_until(lambda: checks(session))


def test_the_row_outlives_the_worker_and_the_server(bridged, scene):
    """The row has the proof: the fence stays as long as no other worker has owned the row."""
    session, _ = scene
    fence = session.fences["r"]
    (worker,) = workers(bridged)
    bridged.query("SELECT pg_terminate_backend(%s)", worker)
    assert checks(session)
    wait_until(lambda: workers(bridged) not in ([], [worker]))
    due(bridged)
    wait_until(lambda: kept(bridged))
    kill(bridged, workers(bridged)[0])
    bridged.restart()
    with bridged.connect() as session.conn, bridged.connect() as old:
        assert checks(session) and session.heartbeat().alive
        due(bridged)
        wait_until(lambda: kept(bridged))
        assert session.acquire("r").fence == fence and checks(session) and not takes(old)
        session.close()
        wait_until(lambda: takes(old))


def test_without_a_worker(bridged, scene):
    """Checks go on. Past the deadline in the row an old worker may take it, and then the lease goes on under a new
    fence."""
    session, old = scene
    bridged.set(eskit_lease__worker="off")
    wait_until(lambda: not workers(bridged))
    bridged.query("UPDATE topics SET until = clock_timestamp() WHERE topic = 'orders'")
    assert checks(session)
    assert takes(old) and not checks(session)
    bridged.set(eskit_lease__worker=None)
    wait_until(lambda: workers(bridged))
    assert not checks(session) and session.renew("r").held
    frees(old)
    assert goes_on(session) and not takes(old)


def test_a_name_that_only_looks_like_the_worker_s(bridged, scene):
    """If the number in such a name counted, and were above all fences, no new fence would ever exceed it, and the
    holder would get new ones without end."""
    session, _ = scene
    fence = session.fences["r"]
    bridged.query("UPDATE topics SET owner = 'eskit_lease:r:9000000000000000000' WHERE topic = 'orders'")
    wait_until(lambda: bridged.query("SELECT trouble FROM eskit_lease.bridges WHERE resource = 'r'") != [(None,)])
    assert session.acquire("r").fence == fence and not checks(session)
    bridged.query("UPDATE topics SET owner = NULL WHERE topic = 'orders'")
    assert goes_on(session)


def test_a_table_that_becomes_unfit(bridged, scene):
    """The worker gives the row up, the log says why, once, and others do not wait.

    Fenced work goes on until an old worker takes the row."""
    session, old = scene
    fence, told = session.fences["r"], len(bridged.logged(REFUSED))
    bridged.query("SELECT eskit_lease.bridge_create_row('s', 'topics', 'invoices', 'owner', 'until')")
    bridged.query("CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'")
    bridged.query("CREATE TRIGGER nosy BEFORE UPDATE ON topics FOR EACH ROW EXECUTE FUNCTION nothing()")
    due(bridged)
    wait_until(lambda: not held(bridged))
    (line,) = bridged.logged(REFUSED)[told:]
    assert 'bridge "r" in database "postgres"' in line and 'row "orders" of table "topics"' in line and '"nosy"' in line
    trouble = "SELECT trouble FROM eskit_lease.bridges WHERE resource = 'r'"
    assert '"nosy"' in bridged.query(trouble)[0][0]
    assert checks(session)
    bridged.query("UPDATE topics SET until = clock_timestamp() WHERE topic = 'orders'")
    assert takes(old) and not checks(session)
    plain, waiting = Session(session.conn, "plain"), Session(session.conn, "waiting")
    plain.take("plain")
    waiting.queue("plain")
    plain.close()
    waiting.wait_for("plain")
    bridged.query("DROP FUNCTION nothing CASCADE")
    frees(old)
    assert goes_on(session) and session.fences["r"] > fence
    assert len(bridged.logged(REFUSED)) == told + 1 and bridged.logged("can be kept again")
    assert bridged.query(trouble) == [(None,)]


def test_a_table_that_is_dropped(bridged, scene):
    session, _ = scene
    told = len(bridged.logged(REFUSED))
    bridged.query("DROP TABLE topics")
    wait_until(lambda: not held(bridged))
    assert not checks(session)
    (line,) = bridged.logged(REFUSED)[told:]
    assert "It is no more" in line
    session.release("r")
    assert call(session.conn, "bridge_drop", "r")
    wait_until(lambda: not workers(bridged))


@pytest.fixture
def waiter(bridged):
    """Gives a session that waits, beside others, for a row that its test makes."""
    reset(bridged)
    with bridged.connect() as conn:
        yield Session(conn, "waiter", ttl="60 s")


def others_are_served(session):
    """Checks that the same worker serves other sessions, before they would look by themselves."""
    plain, other = Session(session.conn, "plain", ttl="1 s"), Session(session.conn, "other", ttl="60 s")
    plain.take("plain")
    other.queue("plain").wait_for("plain", limit=4)
    other.close()


def test_an_owner_column_that_becomes_short(bridged, waiter):
    """PostgreSQL checks no length of a value that is written by address; the worker does."""
    told = len(bridged.logged(REFUSED))
    bridged.query("ALTER TABLE topics ALTER owner TYPE varchar(5)")
    waiter.queue("r")
    wait_until(lambda: bridged.logged(REFUSED)[told:])
    assert "holds 5 characters" in bridged.logged(REFUSED)[told]
    assert bridged.query("SELECT owner FROM topics WHERE topic = 'orders'") == [(None,)]
    bridged.query("ALTER TABLE topics ALTER owner TYPE text")
    waiter.wait_for("r")


def test_long_values_that_are_locked(bridged, waiter):
    """An administrator rebuilds the index of the TOAST table, and the owner is a long value in it."""
    bridged.query("ALTER TABLE topics ALTER owner SET STORAGE EXTERNAL")
    bridged.query("UPDATE topics SET owner = repeat('x', 5000), until = clock_timestamp() WHERE topic = 'orders'")
    ((toast,),) = bridged.query("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'topics'")
    with bridged.connect() as conn, conn.transaction():
        conn.execute(f"REINDEX TABLE {toast}")
        waiter.queue("r")
        for _ in range(3):
            others_are_served(waiter)
        assert not held(bridged)
    waiter.wait_for("r")


def test_an_owner_of_any_length(bridged, waiter):
    """The row has another owner, whose long name the worker does not read, because it would read the name again and
    again."""
    bridged.query("UPDATE topics SET owner = repeat('x', 300000000), until = clock_timestamp() + interval '1 h' WHERE topic = 'orders'")
    waiter.queue("r")
    for _ in range(3):
        others_are_served(waiter)
    (pid,) = workers(bridged)
    with open(f"/proc/{pid}/status") as status:
        (peak,) = (int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 400_000, f"{peak} kB"
    bridged.query("UPDATE topics SET until = clock_timestamp() WHERE topic = 'orders'")
    waiter.wait_for("r")


class Old(Stubborn):
    """An old worker, which works while it owns the row."""

    def __init__(self, server, me):
        super().__init__(server)
        self.me = me

    def work(self):
        if not takes(self.conn, self.me):
            time.sleep(random.uniform(0.001, 0.02))
            return
        (unit,) = self.conn.execute("INSERT INTO work (side, began) VALUES ('old', clock_timestamp()) RETURNING id").fetchone()
        time.sleep(random.uniform(0, 0.02))
        with self.conn.transaction():
            self.conn.execute("UPDATE work SET ended = clock_timestamp() WHERE id = %s", (unit,))
            # If the old worker was stopped past its deadline, its work does not count.
            mine = "UPDATE topics SET position = position + 1 WHERE topic = 'orders' AND owner = %s AND until > clock_timestamp()"
            if not self.conn.execute(mine, (self.me,)).rowcount:
                raise psycopg.Rollback
        frees(self.conn, self.me)
        time.sleep(random.uniform(0.02, 0.1))


class ByPooler:
    def __init__(self, pooler):
        self.pooler = pooler

    def connect(self):
        return psycopg.connect(self.pooler.dsn("postgres"), autocommit=True, prepare_threshold=None)


def test_old_and_new_workers_never_overlap(bridged, tmp_path):
    reset(bridged)
    bridged.query(WORK)
    pooler = Pooler(bridged, tmp_path)
    crew = [Old(bridged, "old-1"), Old(bridged, "old-2"), New(bridged), New(ByPooler(pooler))]
    for worker in crew:
        worker.start()
    try:
        for round in range(10):
            # Both sides make progress, whatever is killed.
            before = done(bridged)
            wait_until(lambda: all(done(bridged).get(side, 0) > before.get(side, 0) + 3 for side in ("old", "new")))
            if round == 5:
                kill(bridged, wait_until(lambda: workers(bridged))[0])
            else:
                bridged.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'eskit_lease worker'")
    finally:
        for worker in crew:
            worker.end()
        pooler.stop()
    assert bridged.query(OVERLAPS) == []
    print(done(bridged))


SPY = """
    CREATE TABLE seen (pid int, who text);
    CREATE FUNCTION note() RETURNS void LANGUAGE plpgsql VOLATILE AS 'BEGIN INSERT INTO public.seen VALUES (pg_backend_pid(), current_user); END';
    CREATE FUNCTION spy(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.note(); RETURN t; END';
    CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.note(); RETURN coalesce(new, old); END';
    GRANT ALL ON seen TO PUBLIC;
"""


def mischief(server, statements):
    """Repeats these statements, each in a transaction of its own; a refused one is tried again."""
    stop = threading.Event()

    def loop():
        with server.connect(user="mallory") as conn:
            conn.execute("SET lock_timeout = '200 ms'")
            while not stop.is_set():
                for statement in statements:
                    try:
                        conn.execute(statement)
                    except psycopg.Error as refused:
                        refusals.append(f"{statement}: {refused}")

    refusals = []
    thread = threading.Thread(target=loop)
    thread.start()
    return thread, stop, refusals


@pytest.fixture
def mallory(bridged):
    bridged.query("DROP EXTENSION IF EXISTS eskit_lease")
    bridged.query("CREATE EXTENSION eskit_lease")
    bridged.query("CREATE ROLE mallory LOGIN; GRANT CREATE ON DATABASE postgres TO mallory")
    bridged.query(SPY)
    yield
    bridged.query("DROP EXTENSION eskit_lease")
    bridged.query("DROP OWNED BY mallory CASCADE")
    bridged.query("DROP TABLE seen; DROP FUNCTION note, spy(text), spy(); DROP ROLE mallory")


def is_kept_through(server, schema, statements, enough):
    """Checks that beside these statements the worker keeps the row of a bridge, and its fence passes checks; neither
    runs any of their code."""
    server.query(f"SELECT eskit_lease.bridge_create_row('m', '{schema}.topics', 'orders', 'owner', 'until')")
    (table,) = server.query("SELECT target::oid FROM eskit_lease.bridges WHERE resource = 'm'")[0]
    with server.connect() as conn:
        session = Session(conn, "new", ttl="60 s")
        session.queue("m").wait_for("m")
        pids = {conn.info.backend_pid, *workers(server)}
        thread, stop, refusals = mischief(server, statements)
        try:
            passed = closed = 0
            until = time.monotonic() + 6
            while time.monotonic() < until or passed < enough:
                assert time.monotonic() < until + 30, (passed, closed, refusals[-3:])
                try:
                    session.check("m")
                    passed += 1
                except psycopg.errors.LockNotAvailable:
                    closed += 1
                if passed % 20 == 0:
                    # Makes the worker write the row again and again.
                    session.release("m")
                    session.queue("m").wait_for("m")
        finally:
            stop.set()
            thread.join()
        pids.update(workers(server))
        assert server.query("SELECT * FROM seen WHERE pid = ANY (%s) OR who = 'postgres'", list(pids)) == []
        assert server.query("SELECT 1 FROM pg_class WHERE oid = %s", table) == [(1,)]
        print(schema, passed, closed, len(refusals))
        session.close()
    server.query("SELECT eskit_lease.bridge_drop('m')")


def test_whoever_owns_the_schema(bridged, mallory):
    """The schema's owner renames it, and puts a view of the same name where the table was."""
    bridged.query("CREATE SCHEMA theirs AUTHORIZATION mallory")
    bridged.query(TOPICS.replace("topics", "theirs.topics"))
    view = "CREATE VIEW theirs.topics AS SELECT public.spy('orders') AS topic, public.spy('x') AS owner, now() AS until"
    statements = [
        "ALTER SCHEMA theirs RENAME TO away", "CREATE SCHEMA theirs", view,
        "CREATE TRIGGER spy INSTEAD OF UPDATE ON theirs.topics FOR EACH ROW EXECUTE FUNCTION public.spy()",
        "DROP VIEW theirs.topics", "DROP SCHEMA theirs", "ALTER SCHEMA away RENAME TO theirs",
    ]  # fmt: skip
    is_kept_through(bridged, "theirs", statements, 200)
    bridged.query("DROP SCHEMA IF EXISTS theirs, away CASCADE")


def test_whoever_owns_the_table(bridged, mallory):
    """The table's owner attaches to the table all kinds of code that a write would run."""
    bridged.query("CREATE SCHEMA hers AUTHORIZATION mallory")
    bridged.query(TOPICS.replace("topics", "hers.topics"))
    # Makes each write of the row also write to all indexes.
    bridged.query("CREATE INDEX ON hers.topics (until)")
    bridged.query("ALTER TABLE hers.topics OWNER TO mallory")
    statements = [
        "CREATE TRIGGER spy BEFORE UPDATE ON hers.topics FOR EACH ROW WHEN (new.topic = 'orders') EXECUTE FUNCTION public.spy()",
        "DROP TRIGGER IF EXISTS spy ON hers.topics",
        "CREATE INDEX CONCURRENTLY spy ON hers.topics (public.spy(topic))", "DROP INDEX CONCURRENTLY IF EXISTS hers.spy",
        "ALTER TABLE hers.topics ADD CONSTRAINT spy CHECK (public.spy(owner) IS NOT NULL) NOT VALID", "ALTER TABLE hers.topics DROP CONSTRAINT IF EXISTS spy",
        "CREATE POLICY spy ON hers.topics USING (public.spy(topic) IS NOT NULL)", "ALTER TABLE hers.topics ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "ALTER TABLE hers.topics DISABLE ROW LEVEL SECURITY", "DROP POLICY IF EXISTS spy ON hers.topics",
        "CREATE RULE spy AS ON UPDATE TO hers.topics DO ALSO SELECT public.spy(new.topic)", "DROP RULE IF EXISTS spy ON hers.topics",
        "SELECT pg_sleep(0.3)",
    ]  # fmt: skip
    is_kept_through(bridged, "hers", statements, 20)
    assert bridged.query("SELECT 1 FROM seen LIMIT 1") == [(1,)], "what mallory does herself is seen"
    bridged.query("DROP SCHEMA hers CASCADE")
