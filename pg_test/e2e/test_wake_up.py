"""No loop of the documentation sleeps through a change that comes between its question and its wait: each loop is run
with a hand-over between the two."""

import re
import threading
import time
from types import SimpleNamespace

import pytest
from client import Session, call, rows
from conftest import ROOT, once, wait_until
from documents import PAGES, examples
from languages import CONSUMERS, EXAMPLES, require
from paste import Psql
from psycopg.rows import namedtuple_row
from test_examples import TURN, Story, demo_program, demo_schema, only_waits
from test_recipes import RECIPES, SECTIONS

pytestmark = once

QUESTION = re.compile(r"eskit_lease\.(?:lease_acquire|group_assignment|item_claim|execution_begin)\(")
WAIT = re.compile(r"session_wait\(:'(\w+)', :(\w+)")


def by_psql(blocks):
    """Returns the examples of a page; those for the same psql are put together."""
    texts = {}
    for name, example in blocks:
        texts[name] = texts.get(name, "") + example
    return texts.values()


@pytest.mark.parametrize("page", [page for page in PAGES if WAIT.search(page.read_text())], ids=lambda page: str(page.relative_to(ROOT)))
def test_each_wait_has_a_revision_from_before_the_question(page):
    waits = 0
    for text in by_psql(examples(page.read_text())):
        for wait in WAIT.finditer(text):
            session, revision = wait.groups()
            before = text[: wait.start()].splitlines()
            questions = [number for number, line in enumerate(before) if QUESTION.search(line) and f":'{session}'" in line]
            known = [number for number, line in enumerate(before) if re.search(rf"\b{revision}\b.*\\gset", line)]
            assert questions and known, wait[0]
            assert known[-1] <= questions[-1], f"{before[known[-1]]} comes after {before[questions[-1]]}"
            waits += 1
    assert waits


def gaps():
    """Yields each wait of a recipe with the example that asks its question: an earlier one for the same psql."""
    for recipe in sorted(RECIPES):
        blocks = SECTIONS[recipe]
        for at, (name, example) in enumerate(blocks):
            asked = [before for before in range(at) if blocks[before][0] == name and QUESTION.search(blocks[before][1])]
            if WAIT.search(example) and asked:
                yield pytest.param(blocks, asked[-1], at, id=f"{recipe}-{name}")


def split(example):
    """Returns an example up to the answer to its last question, and the rest of it without answers, which are others in
    this test."""
    lines = example.splitlines(keepends=True)
    end = max(number for number, line in enumerate(lines) if QUESTION.search(line))
    while not re.search(r";$|\\gset$", lines[end]):
        end += 1
    while end + 1 < len(lines) and lines[end + 1].startswith("--  "):
        end += 1
    return "".join(lines[: end + 1]), "".join(line for line in lines[end + 1 :] if not line.startswith("--"))


@pytest.mark.parametrize(("blocks", "asked", "waits"), list(gaps()))
def test_a_recipe_is_told_of_what_comes_after_its_question(server, db, tmp_path, blocks, asked, waits):
    name = blocks[asked][0]
    opened = "".join(example for of, example in blocks[: asked + 1] if of == name)
    consumer = re.findall(r"session_open\('([^']+)'", opened)[-1]
    revision = lambda: server.query("SELECT revision FROM eskit_lease.sessions WHERE consumer = %s", consumer, dbname=db)[0][0]  # noqa: E731
    open_ones = {}

    def paste(of, example):
        if of not in open_ones:
            open_ones[of] = Psql(server.dsn(db), tmp_path / f"errors-{of}")
        return open_ones[of].paste(example)

    try:
        question, rest = split(blocks[asked][1])
        for block in (*blocks[:asked], (name, question)):
            paste(*block)
        before = revision()
        for block in blocks[asked + 1 : waits]:
            paste(*block)
        # The wait itself finds the rows of a table that its session watches.
        if "session_watch(" not in opened:
            wait_until(lambda: revision() > before)
        paste(name, rest)
        assert paste(*blocks[waits]) > 0  # among the answers that are compared is that of the wait
    finally:
        for psql in open_ones.values():
            psql.close()


# Each of these functions stands in for the real one of its name, and calls it. If a session has asked its question, its
# next heartbeat, watch or wait first waits for the gate.
GAP = """
    CREATE TABLE asked (session uuid);
    ALTER FUNCTION eskit_lease.lease_acquire RENAME TO real_acquire;
    ALTER FUNCTION eskit_lease.group_assignment RENAME TO real_assignment;
    ALTER FUNCTION eskit_lease.session_heartbeat RENAME TO real_heartbeat;
    ALTER FUNCTION eskit_lease.session_wait RENAME TO real_wait;
    ALTER FUNCTION eskit_lease.session_watch RENAME TO real_watch;
    CREATE FUNCTION eskit_lease.lease_acquire(resource text, session uuid, queue boolean DEFAULT false) RETURNS eskit_lease.lease_answer
        LANGUAGE plpgsql AS $$ BEGIN INSERT INTO asked VALUES ($2); RETURN eskit_lease.real_acquire($1, $2, $3); END $$;
    CREATE FUNCTION eskit_lease.group_assignment(group_name text, session uuid)
        RETURNS TABLE (partition integer, fence bigint, state text, revoke_in interval)
        LANGUAGE plpgsql AS $$ BEGIN INSERT INTO asked VALUES ($2); RETURN QUERY SELECT * FROM eskit_lease.real_assignment($1, $2); END $$;
    CREATE FUNCTION through_the_gate(session uuid) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM asked AS a WHERE a.session = $1;
        IF FOUND THEN
            PERFORM pg_advisory_lock_shared(42), pg_advisory_unlock_shared(42);
        END IF;
    END $$;
    CREATE FUNCTION eskit_lease.session_heartbeat(session uuid) RETURNS eskit_lease.session_state
        LANGUAGE plpgsql AS $$ BEGIN PERFORM through_the_gate($1); RETURN eskit_lease.real_heartbeat($1); END $$;
    CREATE FUNCTION eskit_lease.session_wait(session uuid, revision bigint, timeout interval DEFAULT NULL) RETURNS eskit_lease.session_state
        LANGUAGE plpgsql AS $$ BEGIN PERFORM through_the_gate($1); RETURN eskit_lease.real_wait($1, $2, $3); END $$;
    CREATE FUNCTION eskit_lease.session_watch(session uuid, outbox regclass) RETURNS eskit_lease.session_state
        LANGUAGE plpgsql AS $$ BEGIN PERFORM through_the_gate($1); RETURN eskit_lease.real_watch($1, $2); END $$;"""


class Gate:
    def __init__(self, conn):
        self.conn = conn
        conn.execute(GAP)

    def shut(self):
        self.conn.execute("SELECT pg_advisory_lock(42)")

    def open(self):
        self.conn.execute("SELECT pg_advisory_unlock(42)")

    def is_waited_at(self):
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND database = "
        return self.conn.execute(f"{waiting} (SELECT oid FROM pg_database WHERE datname = current_database()) AND NOT granted").fetchone() == (1,)


@pytest.mark.parametrize("language", CONSUMERS)
def test_an_example_is_told_of_what_comes_after_its_question(server, connect, db, language):
    """The program has half of the partitions. While it asks, because its session has got something else, the owner of the other half closes."""
    require(language)
    server.query((EXAMPLES / "schema.sql").read_text(), dbname=db)
    conn = connect()
    gate = Gate(conn)
    with (ROOT / f"target/log/examples-gap-{language}").open("w") as log:
        story = Story(server, db, server, log, ttl=120)  # too long for any wait
        try:
            story.start(language)
            story.until(story.shared)
            ((_, program),) = story.sessions()
            other = Session(connect(), "other", ttl="600 s").join("ledger")
            story.until(lambda: len([row for row in rows(other.conn, "real_assignment", "ledger", other.id) if row.state == "owned"]) == 6)
            gate.shut()
            assert call(conn, "real_acquire", "something else", program, False).granted
            story.until(gate.is_waited_at)
            other.close()
            owners = "SELECT count(*) FROM eskit_lease.group_partitions WHERE session = %s AND state = 'owned'"
            story.until(lambda: conn.execute(owners, (program,)).fetchone() == (12,))
            gate.open()
            story.query("INSERT INTO events (account, cents) SELECT 'account-' || i, i FROM generate_series(1, 100) AS i")
            story.until(lambda: story.query("SELECT (SELECT count(*) FROM events) = (SELECT count(*) FROM ledger)") == [(True,)])
        finally:
            story.end()


@pytest.fixture
def led(connect):
    """A leader, and a gate at which the next in line stops after its question."""
    conn = connect()
    gate = Gate(conn)
    leader = Session(connect(), "leader", ttl="600 s")
    fence = call(conn, "real_acquire", "sub:orders", leader.id, False).fence
    gate.shut()

    def hand_over():
        wait_until(gate.is_waited_at)
        assert call(leader.conn, "lease_release", "sub:orders", fence)
        gate.open()

    return SimpleNamespace(hand_over=hand_over)


def test_the_demo_is_told_of_what_comes_after_its_question(server, connect, db, long_waits, led):
    conn = connect()
    conn.execute(demo_schema())
    conn.execute("INSERT INTO order_events (customer, cents) VALUES (1, 100)")
    with demo_program(server, db, "consumer"):
        led.hand_over()
        wait_until(lambda: conn.execute("SELECT consumer FROM applied").fetchall() == [("program",)])


@pytest.fixture
def loop(connect):
    """Gives a function that starts the loop of docs/consumer.md by SQL as it stands there, and lists what it applies."""
    (code,) = re.findall(r"^```python\n(class.*?)^```", (ROOT / "docs/consumer.md").read_text(), re.M | re.S)
    applied, db = [], connect()
    db.execute("CREATE TABLE events (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next())")
    db.row_factory = namedtuple_row

    def read(db, position):
        return db.execute("SELECT position FROM events WHERE position > %s AND position < eskit_lease.position_horizon()", (position,)).fetchall()

    def apply(db, batch):
        applied.extend(batch)
        return batch[-1].position

    own = {
        "read_checkpoint": lambda _: applied[-1].position if applied else 0, "read_events": read, "apply_and_move_checkpoint": apply,
        "time": time, "TTL": TURN, "Lost": RuntimeError, "stopping": False,
    }  # fmt: skip
    exec(code, own)
    consumer = threading.Thread(target=lambda: own["consume"](db, own["Session"](db)), daemon=True)

    def start():
        consumer.start()
        return applied

    yield start
    own["stopping"] = True
    connect().execute("INSERT INTO events DEFAULT VALUES")
    consumer.join()


def test_the_loop_for_consumers_is_told_of_what_comes_after_its_question(connect, long_waits, led, loop):
    connect().execute("INSERT INTO events DEFAULT VALUES")
    applied = loop()
    led.hand_over()
    wait_until(lambda: applied)


def test_the_loop_for_consumers_only_waits_when_idle(connect, long_waits, loop):
    conn, applied = connect(), loop()
    query = lambda sql, *params: conn.execute(sql, params or None).fetchall()  # noqa: E731
    only_waits(query, lambda: conn.execute("INSERT INTO events DEFAULT VALUES"), lambda: len(applied))
