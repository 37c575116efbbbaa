"""The queries of docs/watching.md and monitoring/, unchanged: each shows what is wrong."""

import json
import os
import re
import subprocess
import urllib.request

import pytest
from client import Session, call
from conftest import ROOT, once, wait_until
from night import ROLE, night
from stack import Program, free_port

pytestmark = once
UNPACKED = ROOT / "target/monitoring"
QUERIES = (ROOT / "monitoring/queries.yaml").read_text()
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


def declared():
    """Returns the statement, labels and metrics of each of the exporter's queries."""
    for name, query, metrics in re.findall(r"^(\w+):\n  query: \|\n((?:    .*\n)+)  metrics:\n((?:    .*\n)+)", QUERIES, re.M):
        columns = re.findall(r"- (\w+):\n +usage: (\w+)\n", metrics)
        yield name, query, [column for column, usage in columns if usage == "LABEL"], [column for column, usage in columns if usage != "LABEL"]


METRICS = {f"{name}_{metric}" for name, _, _, metrics in declared() for metric in metrics}


def test_each_query_of_the_exporter_has_the_columns_that_it_declares(server, no_worker, connect):
    assert len(list(declared())) == len(re.findall(r"^\w+:", QUERIES, re.M)) == 5
    with night(server, connect) as (seen, watch):
        for name, query, labels, metrics in declared():
            columns, rows = answers(seen, watch, query)
            assert [column.name for column in columns] == labels + metrics, name
            keys = [row[: len(labels)] for row in rows]
            assert len(set(keys)) == len(keys), "a metric has one value for each of its labels"


def measured(conn):
    """Returns what the exporter would report of the database as a whole."""
    _, query, labels, metrics = next(query for query in declared() if query[0] == "eskit_lease")
    return dict(zip(labels + metrics, conn.execute(query).fetchone(), strict=True))


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
    counters = (ROOT / "src/shmem/databases.rs").read_text()
    assert all(f'"{event}"' in counters for event in counted)


@needs_prometheus
def test_alerts_are_rules_that_fire():
    tool = UNPACKED / "usr/bin/promtool"
    for arguments in (["check", "rules", ROOT / "monitoring/alerts.yaml"], ["test", "rules", ROOT / "pg_test/e2e/alerts_test.yaml"]):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_scraped(server, no_worker, connect, tmp_path, monkeypatch):
    with night(server, connect) as (seen, _):
        port, dbname = free_port(), seen.conn.info.dbname
        monkeypatch.setenv("DATA_SOURCE_NAME", f"postgresql://{ROLE}:{os.environ['PGPASSWORD']}@127.0.0.1:{server.port}/{dbname}?sslmode=disable")
        exporter = Program(
            tmp_path, "exporter", UNPACKED / "usr/bin/prometheus-postgres-exporter", "--extend.query-path", ROOT / "monitoring/queries.yaml",
            "--web.listen-address", f"127.0.0.1:{port}", "--disable-default-metrics", "--disable-settings-metrics",
        )  # fmt: skip

        def scraped():
            assert exporter.process.poll() is None, (tmp_path / "exporter.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    return answer.read().decode()
            except OSError:
                return None

        try:
            text = wait_until(scraped, pause=0.1)
        finally:
            exporter.kill()
        found = {name: float(value) for name, value in re.findall(r"^(\w+)(?:{[^\n]*})? (\S+)$", text, re.M)}
        ours = {name for name in found if name.startswith("eskit_lease_")}
        assert ours <= METRICS and METRICS - ours <= {"eskit_lease_confirmed_seconds_ago"}  # without standbys nothing is confirmed
        wrong = ("leaderless_seconds", "blocked_seconds", "horizon_seconds", "executions_in_doubt", "tables_unfenced", "group_lag", "queue_dead")
        assert all(found[f"eskit_lease_{name}"] > 0 for name in wrong), found
        assert found["pg_exporter_last_scrape_error"] == 0
        assert f'datname="{dbname}"' in text
