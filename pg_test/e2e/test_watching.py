"""The queries of docs/watching.md and monitoring/, unchanged: each shows what is wrong."""

import contextlib
import json
import os
import re
import subprocess
import urllib.error
import urllib.request

import psycopg
import pytest
from client import Session, call, rows
from conftest import ROOT, once, wait_until
from exported import QUERIES, declared, measured
from night import ROLE, night
from psycopg.types.json import Jsonb
from stack import Program, free_port

pytestmark = once
UNPACKED = ROOT / "target/monitoring"
needs_prometheus = pytest.mark.skipif(
    not (UNPACKED / ".ready").exists(), reason="Prometheus and its exporter for PostgreSQL could not be had (see pg_test/setup)"
)


def answers(seen, watch, statement):
    """Returns the rows of a statement, and waits until it has some, as some problems show only for a moment."""

    def found():
        seen.be_late()
        cursor = watch.execute(statement)
        return (cursor.description, cursor.fetchall()) if cursor.rowcount else None

    return wait_until(found, timeout=20, pause=0.05)


def test_each_question_of_the_documentation_has_an_answer(server, no_worker, connect):
    blocks = re.findall(r"^```sql\n(.*?)^```", (ROOT / "docs/watching.md").read_text(), re.M | re.S)
    statements = [statement for block in blocks for statement in re.findall(r".*?;\n", block, re.S)]
    assert "".join(statements) == "".join(blocks) and len(statements) > 20
    with night(server, connect) as (seen, watch):
        watch.execute("SET default_transaction_read_only = on")
        for statement in statements:
            answers(seen, watch, statement)


def test_each_panel_of_the_dashboard_has_an_answer(server, no_worker, connect):
    dashboard = json.loads((ROOT / "monitoring/grafana.json").read_text())
    sources = [variable["name"] for variable in dashboard["templating"]["list"] if variable["query"] == "postgres"]
    targets = [(panel, target) for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(targets) == len(dashboard["panels"]) > 10
    with night(server, connect) as (seen, watch):
        for panel, target in targets:
            assert target["datasource"] == panel["datasource"] == {"type": "postgres", "uid": f"${{{sources[0]}}}"}
            columns, rows = answers(seen, watch, target["rawSql"])
            if target["format"] == "time_series":
                assert [column.name for column in columns][:2] == ["time", "metric"]
            if panel["type"] == "stat":
                assert len(columns) == len(rows) == 1


def test_processes_of_one_name_are_told_apart(no_worker, connect):
    """The views have the address, the program and the user of the connection that opened a session, whatever becomes of that connection."""
    # One connects over the network, one by the socket.
    first, second = connect(host="127.0.0.1", application_name="pod-1"), connect(application_name="pod-2")
    holder, waiter = Session(first, "billing"), Session(second, "billing")
    holder.take("r"), waiter.queue("r")
    first.execute("SET application_name = 'renamed'")
    conn = connect()
    conn.execute("CREATE ROLE borrowed; SELECT eskit_lease.grant_consumer('borrowed')")
    try:
        conn.execute("SET ROLE borrowed")
        call(conn, "lock_acquire", "lock", "cron", "1 min")
        conn.execute("RESET ROLE")
        opened = "SELECT consumer, host(address), application_name, login, role FROM eskit_lease.sessions ORDER BY opened_at"
        assert conn.execute(opened).fetchall() == [
            ("billing", "127.0.0.1", "pod-1", "postgres", "postgres"), ("billing", None, "pod-2", "postgres", "postgres"),
            ("cron", None, "", "postgres", "borrowed"),
        ]  # fmt: skip
        waiting = "SELECT consumer, holder, host(address), application_name FROM eskit_lease.waiters"
        assert conn.execute(waiting).fetchall() == [("billing", "billing", None, "pod-2")]
        held = "SELECT host(address), application_name FROM eskit_lease.leases WHERE resource = 'r'"
        assert conn.execute(held).fetchone() == ("127.0.0.1", "pod-1")
    finally:
        conn.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions; DROP OWNED BY borrowed; DROP ROLE borrowed")


REFUSALS = "SELECT resource, consumer, reason, holder FROM eskit_lease.refusals ORDER BY resource, consumer"


def test_why_a_consumer_was_refused(server, no_worker, connect):
    """The view tells it even of a consumer that has gone since, in its own database alone. The note costs no row, no
    transaction id and no WAL."""
    conn, asking = connect(), connect()
    holder, asker = Session(conn, "consumer-1"), Session(asking, "consumer-3")
    holder.take("r"), holder.take("lock")
    asking.execute("BEGIN")
    assert asker.acquire("r").reason == "held"
    assert asking.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    asking.execute("ROLLBACK")
    assert call(asking, "lock_acquire", "lock", "cron", "1 min").reason == "held"
    call(conn, "semaphore_create", "permit", 1), holder.take("permit")
    assert asker.acquire("permit").reason == "held"
    asker.queue("r")
    Session(connect(), "consumer-4").queue("r")
    known = [("lock", "cron", "held", "consumer-1"), ("permit", "consumer-3", "held", None), ("r", "consumer-3", "held", "consumer-1")]
    assert conn.execute(REFUSALS).fetchall() == known
    # The last refusal counts. A session that has ended is told so, and a crowd of names takes no more than its share.
    asker.close()
    assert asker.acquire("r").reason in ("expired", "unknown_session")
    crowd = Session(asking, "crowd")
    names = [f"name {n}" for n in range(200)]
    for name in names:
        holder.take(name)
    assert all(answer.reason == "held" for answer in rows(asking, "lease_acquire_many", names, crowd.id))
    found = conn.execute(REFUSALS).fetchall()
    assert len([consumer for _, consumer, *_ in found if consumer == "crowd"]) == 64
    assert ("r", "consumer-3") in [(resource, consumer) for resource, consumer, *_ in found]
    recent = "SELECT bool_and(refused_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp()) FROM eskit_lease.refusals"
    assert conn.execute(recent).fetchone() == (True,)
    assert server.query("SELECT to_regclass('eskit_lease.refusals')") == [(None,)] or server.query(REFUSALS) == []


METRICS = {f"{name}_{metric}" for name, _, _, metrics in declared() for metric in metrics}


def test_each_query_of_the_exporter_has_the_columns_that_it_declares(server, no_worker, connect):
    assert len(list(declared())) == len(re.findall(r"^\w+:", QUERIES, re.M)) == 14
    with night(server, connect) as (seen, watch):
        for name, query, labels, metrics in declared():
            columns, rows = answers(seen, watch, query)
            assert [column.name for column in columns] == labels + metrics, name
            keys = [row[: len(labels)] for row in rows]
            assert len(set(keys)) == len(keys), "a metric has one value for each of its labels"


LARGE = 60_000


def fill(conn, rows=LARGE):
    """Makes run-once keys that are done, items of a queue, and leases of a living session, as the verbs would make
    them."""
    for queue in ("large", "small"):
        call(conn, "queue_create", queue)
    session = Session(conn, "holder", ttl="600 s")
    conn.execute("""INSERT INTO eskit_lease._executions (key, state, session, consumer, role, fence, attempts, retry_in_doubt, started_at, finished_at)
                    SELECT 'done/' || n, 'done', gen_random_uuid(), 'c', 'r', n, 1, false, now(), now() FROM generate_series(1, %s) AS n""", (rows,))  # fmt: skip
    conn.execute("""INSERT INTO eskit_lease._items (queue, partition, place, id, added_at, payload)
                    SELECT q.number, 0, n, n, now() - interval '1 hour', '0'
                    FROM generate_series(1, %s) AS n, eskit_lease._queues AS q WHERE q.queue = 'large'""", (rows,))  # fmt: skip
    call(conn, "item_add_many", "small", [Jsonb(n) for n in range(300)])
    conn.execute("""INSERT INTO eskit_lease._leases (resource, slot, session, fence, timeline, granted_at)
                    SELECT 'large/' || n, 0, %s, n, 1, now() FROM generate_series(1, %s) AS n""", (session.id, rows))  # fmt: skip
    waiter = Session(conn, "waiter", ttl="600 s")
    for number in range(1, 6):
        waiter.queue(f"large/{number}")
    conn.execute("SELECT pg_stat_force_next_flush()")  # so that the statistics know the rows
    return session


def plan(conn, query):
    """Runs a statement. Returns the number of pages that it reads, whether it is compiled, and its plan as text."""
    (found,) = conn.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query).fetchone()
    top = found[0]["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"], "JIT" in found[0], json.dumps(found)


def test_no_metric_reads_more_the_more_there_is(no_worker, connect):
    """This holds before and after PostgreSQL has analyzed the tables. To count all keys, items or leases would read as
    many pages as the tables have. An open transaction with a fence changes nothing."""
    conn, fenced = connect(), connect(autocommit=False)
    fill(conn)
    call(fenced, "fence_check", "large/9", 9)
    sizes = [conn.execute(f"SELECT pg_relation_size('eskit_lease.{name}') / 8192").fetchone()[0] for name in ("_executions", "_items", "_leases")]
    assert min(sizes) > 500
    for _ in range(2):
        read = {}
        for name, query, _, _ in declared():
            plan(conn, query)  # the first one fills caches of the catalog
            read[name], compiled, text = plan(conn, query)
            assert not compiled, text
        pages = plan(conn, "SELECT * FROM eskit_lease.queues")[0]
        conn.execute("VACUUM ANALYZE")
        assert max(read.values()) < min(sizes), (read, sizes)
        assert pages < min(sizes), pages


def test_a_backlog_is_counted_or_estimated_with_its_time(no_worker, connect):
    conn = connect()
    queues = "SELECT items, later, dead, clock_timestamp() - counted_at < interval '5 s' AS now FROM eskit_lease.queues ORDER BY queue"
    held = "SELECT held, clock_timestamp() - counted_at < interval '5 s' FROM eskit_lease._count_held()"
    conn.execute("ALTER TABLE eskit_lease._items SET (autovacuum_enabled = off)")
    session = fill(conn, 9_000)
    assert conn.execute(queues).fetchall() == [(9_000, 0, 0, True), (300, 0, 0, True)]
    assert conn.execute(held).fetchone() == (9_000, True)
    conn.execute("INSERT INTO eskit_lease._items SELECT queue, partition, n, n, claim, attempt, added_at, key, error, payload "
                 "FROM (SELECT * FROM eskit_lease._items LIMIT 1) AS i, generate_series(10000, 60999) AS n")  # fmt: skip
    # Nothing tells how many of the table's new rows are of this queue, until PostgreSQL has analyzed the table: all may be.
    wait_until(lambda: abs(conn.execute(queues).fetchone()[0] - 60_300) < 3_000)
    assert conn.execute(queues).fetchall()[1] == (300, 0, 0, True)
    conn.execute("ANALYZE eskit_lease._items")
    (items, *others), small = conn.execute(queues).fetchall()
    assert abs(items - 60_000) < 3_000 and others == [0, 0, True] and small == (300, 0, 0, True)
    conn.execute("INSERT INTO eskit_lease._items SELECT queue, partition, n, n, claim, attempt, added_at, key, error, payload "
                 "FROM (SELECT * FROM eskit_lease._items LIMIT 1) AS i, generate_series(61000, 90999) AS n")  # fmt: skip
    wait_until(lambda: abs(conn.execute(queues).fetchone()[0] - 90_000) < 4_500)
    # If there is only one queue, all rows of the table are its items.
    call(conn, "queue_drop", "small", True)
    conn.execute("INSERT INTO eskit_lease._items SELECT queue, partition, n, n, claim, attempt, added_at, key, error, payload "
                 "FROM (SELECT * FROM eskit_lease._items LIMIT 1) AS i, generate_series(100000, 199999) AS n")  # fmt: skip
    wait_until(lambda: abs(conn.execute(queues).fetchone()[0] - 190_000) < 9_500, timeout=60)
    session.close()
    conn.execute("DELETE FROM eskit_lease._items WHERE place > 5000")
    wait_until(lambda: conn.execute(queues).fetchone() == (5_000, 0, 0, True))
    wait_until(lambda: conn.execute(held).fetchone() == (5, True))


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_backlog_beside_an_old_snapshot(no_worker, connect, ordering):
    """Finished items stay in the index. They are not told as a backlog, and a ready item behind them is found."""
    conn, old = connect(), connect()
    call(conn, "queue_create", "q", 20, "1 s", ordering)
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM eskit_lease.items")
    session = Session(conn, "worker", ttl="600 s")
    for batch in range(32):
        keys = [f"{batch} {number}" for number in range(1_000)]
        call(conn, "item_add_many", "q", [Jsonb(1)] * len(keys), keys)
        claimed = rows(conn, "item_claim", "q", session.id, 1_000)
        call(conn, "item_done", [item.id for item in claimed], claimed[0].fence)
    (items, ready) = conn.execute("SELECT items, ready_since FROM eskit_lease.queues").fetchone()
    assert items < 10_000 and ready is None
    call(conn, "item_add", "q", Jsonb(1), "last")
    (items, ready) = conn.execute("SELECT items, ready_since FROM eskit_lease.queues").fetchone()
    assert items < 10_000 and ready is not None
    old.execute("ROLLBACK")


def test_counting_items_is_bounded(connect):
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        connect().execute("SELECT eskit_lease._count_items(1, 'none', 1000000)")


def test_a_lease_without_a_living_session_is_not_held(no_worker, connect):
    conn = connect()
    short, long = Session(conn, "short", ttl="2 s"), Session(conn, "long", ttl="600 s")
    short.take("a"), long.take("b"), long.take("c")
    assert measured(conn)["leases_held"] == 3
    wait_until(lambda: short.expired(conn))
    assert measured(conn)["leases_held"] == 2
    assert long.release("b")
    assert measured(conn)["leases_held"] == 1


def test_a_release_with_grace_that_stays_open_blocks(no_worker, connect):
    """Such a release holds no guard, so the view finds it in another way."""
    conn, other = connect(), connect(autocommit=False)
    holder = Session(conn, "holder", ttl="600 s")
    fence = holder.take("r")
    assert measured(conn)["blocked_seconds"] == 0
    other.execute("SELECT eskit_lease.lease_release('r', %s, '60 s')", (fence,))
    wait_until(lambda: measured(conn)["blocked_seconds"] > 0, timeout=30)
    other.rollback()
    assert measured(conn)["blocked_seconds"] == 0


def test_a_bridge_is_led_by_whoever_has_its_lock(no_worker, connect):
    conn, former = connect(), connect()
    former.execute("SELECT pg_advisory_lock(4711)")
    call(conn, "bridge_create", "reports", 4711)
    Session(conn, "new", ttl="600 s").queue("reports")
    found = measured(conn)
    assert (found["waiters"], found["leaderless_seconds"]) == (1, 0)
    former.execute("SELECT pg_advisory_unlock(4711)")
    assert measured(conn)["leaderless_seconds"] > 0


def test_a_bridge_to_a_row_is_led_by_whoever_owns_it(no_worker, connect):
    conn = connect()
    conn.execute("CREATE TABLE leased (key text PRIMARY KEY, owner text, until timestamptz)")
    conn.execute("INSERT INTO leased VALUES ('k', 'old', 'infinity')")
    call(conn, "bridge_create_row", "reports", "leased", "k", "owner", "until")
    Session(conn, "new", ttl="600 s").queue("reports")
    found = measured(conn)
    assert (found["waiters"], found["leaderless_seconds"]) == (1, 0)
    conn.execute("UPDATE eskit_lease._bridges SET trouble = 'It is no more.'")
    assert measured(conn)["leaderless_seconds"] > 0


def test_no_confirmation_is_missed_that_nobody_asks_for(server, connect):
    conn = connect()
    assert measured(conn)["confirm_interval_seconds"] == 0
    server.set(eskit_lease__confirm_interval="100ms")
    try:
        found = wait_until(lambda: (now := measured(conn))["confirmed_seconds_ago"] is not None and now)
        assert found["confirmed_seconds_ago"] < 15 and found["confirm_interval_seconds"] == 0.1
    finally:
        server.set(eskit_lease__confirm_interval=None)
    wait_until(lambda: measured(conn)["confirmed_seconds_ago"] is None)


def test_alerts_ask_for_what_there_is():
    expressions = re.findall(r"expr: (.*)", (ROOT / "monitoring/alerts.yaml").read_text())
    names = {name for expression in expressions for name in re.findall(r"\beskit_lease_\w+", expression)}
    assert len(expressions) > 10 and names <= METRICS
    counted = {event for expression in expressions for event in re.findall(r'event="(\w+)"', expression)}
    counters = (ROOT / "src/shmem/counters.rs").read_text()
    assert all(f'"{event}"' in counters for event in counted)


@needs_prometheus
def test_alerts_are_rules_that_fire():
    tool = UNPACKED / "usr/bin/promtool"
    for arguments in (["check", "rules", ROOT / "monitoring/alerts.yaml"], ["test", "rules", ROOT / "pg_test/e2e/alerts_test.yaml"]):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def other_database(server):
    """Gives the name of a second database that the role may watch."""
    server.query("CREATE DATABASE other_watched")
    try:
        with server.connect("other_watched") as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            call(conn, "grant_monitor", ROLE)
        yield "other_watched"
    finally:
        server.query("DROP DATABASE other_watched WITH (FORCE)")


@needs_prometheus
def test_scraped(server, no_worker, connect, tmp_path, monkeypatch):
    """The documented command, with two databases."""
    (command,) = re.findall(r"^prometheus-postgres-exporter (.*)$", (ROOT / "docs/watching.md").read_text(), re.M)
    flags = command.replace("queries.yaml", str(ROOT / "monitoring/queries.yaml")).split()
    with night(server, connect) as (seen, _), other_database(server) as other:
        port, dbname = free_port(), seen.conn.info.dbname
        address = f"postgresql://{ROLE}:{os.environ['PGPASSWORD']}@127.0.0.1:{server.port}"
        monkeypatch.setenv("DATA_SOURCE_NAME", ",".join(f"{address}/{name}?sslmode=disable&jit=off" for name in (dbname, other)))
        program = UNPACKED / "usr/bin/prometheus-postgres-exporter"
        exporter = Program(tmp_path, "exporter", program, "--web.listen-address", f"127.0.0.1:{port}", *flags)

        def scraped():
            assert exporter.process.poll() is None, (tmp_path / "exporter.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as refused:
                pytest.fail(refused.read().decode())
            except OSError:
                return None

        try:
            text = wait_until(scraped, pause=0.1)
        finally:
            exporter.kill()
        of_other = f'datname="{other}"'
        assert of_other in text
        lines = "\n".join(line for line in text.splitlines() if of_other not in line)
        found = {name: float(value) for name, value in re.findall(r"^(\w+)(?:{[^\n]*})? (\S+)$", lines, re.M)}
        assert re.search(r'^eskit_lease_hand_over_seconds_bucket{.*le="0.001".*} \d+$', lines, re.M)
        ours = {name for name in found if name.startswith("eskit_lease_")}
        assert ours <= METRICS and METRICS - ours <= {"eskit_lease_confirmed_seconds_ago"}  # without standbys nothing is confirmed
        wrong = ("leaderless_seconds", "blocked_seconds", "horizon_seconds", "executions_in_doubt", "tables_unfenced", "group_lag", "queue_dead")
        assert all(found[f"eskit_lease_{name}"] > 0 for name in wrong), found
        assert found["pg_exporter_last_scrape_error"] == 0
        assert f'datname="{dbname}"' in text


def test_the_end_of_the_last_holder_counts(no_worker, connect):
    """What counts is the end of the last holder, not the hand-over, which an open transaction delays, and not the time
    at which the first waiter queued."""
    conn, fenced = connect(), connect(autocommit=False)
    waiter, holder = Session(conn, "waiter", ttl="600 s"), Session(conn, "holder", ttl="1 s")
    fence = holder.take("r")
    fenced.execute("SELECT eskit_lease.fence_check('r', %s)", (fence,))
    holder.heartbeat()
    (deadline,) = conn.execute("SELECT expires_at FROM eskit_lease.sessions WHERE consumer = 'holder'").fetchone()
    waiter.queue("r")
    conn.execute("UPDATE eskit_lease._waiters SET queued_at = queued_at - interval '1 hour'")
    wait_until(lambda: conn.execute("SELECT clock_timestamp() > %s + interval '1 s'", (deadline,)).fetchone()[0])
    assert 1 <= measured(conn)["leaderless_seconds"] < 600
    (ended_at,) = conn.execute("SELECT ended_at FROM eskit_lease.leases WHERE resource = 'r'").fetchone()
    fenced.rollback()
    assert waiter.take("r") > fence
    event, at, told = conn.execute("SELECT event, at, ended_at FROM eskit_lease.history").fetchone()
    assert event == "expired" and (at - told).total_seconds() >= 1
    assert all(abs((end - deadline).total_seconds()) < 0.5 for end in (ended_at, told))
    assert conn.execute("SELECT ended_at FROM eskit_lease.leases WHERE resource = 'r'").fetchone() == (None,)


def ends_told(server, db):
    """Returns how many expired sessions and how many take-overs the log has told of, and in how many lines."""
    lines = [line for line in server.logged(f'in database "{db}"') if " LOG: " in line]
    count = lambda what: sum(int(found) for line in lines for found in re.findall(rf"(\d+) sessions? {what}", line))  # noqa: E731
    return count("expired"), count("taken over"), len([line for line in lines if re.search("expired|taken over", line)])


def test_the_log_tells_of_all_ends_without_a_worker(server, db, no_worker, connect):
    """The first end has a line at once. The others follow though no pass comes any more, as in a database that has had
    its turn while others wait."""
    conn = connect()
    for _ in range(20):
        Session(conn, "again", ttl="60 s", takeover=True)
    wait_until(lambda: ends_told(server, db)[:2] == (0, 19))
    assert ends_told(server, db)[2] <= 10


def test_the_log_tells_of_ends(server, db, connect):
    """In a storm the log gets few lines, each with a count of ends; with the level off it gets none."""
    conn = connect()
    for number in range(100):
        Session(conn, f"storm {number}", ttl="1 s")
    wait_until(lambda: ends_told(server, db)[0] == 100)
    assert ends_told(server, db)[2] <= 5
    for _ in range(20):
        Session(conn, "again", ttl="60 s", takeover=True)
    wait_until(lambda: ends_told(server, db)[:2] == (100, 19))
    assert ends_told(server, db)[2] <= 10
    lines = ends_told(server, db)[2]
    server.set(eskit_lease__log_ends="off")
    try:
        wait_until(lambda: conn.execute("SHOW eskit_lease.log_ends").fetchone() == ("off",))
        Session(conn, "short", ttl="1 s")
        wait_until(lambda: conn.execute("SELECT FROM eskit_lease.sessions WHERE consumer = 'short'").rowcount == 0)
        assert ends_told(server, db) == (100, 19, lines)
    finally:
        server.set(eskit_lease__log_ends=None)
