"""A client that has lost an answer repeats the call: each verb answers what the reference says of a repetition."""

import re

import psycopg
import pytest
from client import Session, rows
from conftest import once
from documents import REFERENCE, code, sections, tables

pytestmark = once

REQUEST = "00000000-0000-0000-0000-000000000001"
# Repeated calls of these answer the same if nothing has happened in between.
ASK = {"session_heartbeat", "session_wait", "session_wait_many", "session_watch", "session_sweep", "lease_renew", "lease_refence_all", "fence_check", "group_assignment", "cursor_position"}


class Asker:
    """Makes every call twice."""

    def __init__(self, conn):
        self.conn, self.asked = conn, set()

    def ask(self, function, *args):
        """Returns the value, row or rows of an answer, or the SQLSTATE."""
        self.asked.add(function)
        try:
            found = rows(self.conn, function, *args)
        except psycopg.Error as error:
            return error.sqlstate
        if function.endswith("_many") or len(found) != 1:
            return [row[-1] for row in found]
        return found[0] if len(found[0]) > 1 else found[0][0]

    def __call__(self, function, *args):
        return self.ask(function, *args), self.ask(function, *args)


@pytest.fixture
def twice(connect):
    return Asker(connect())


def test_repetitions(twice):
    conn = twice.conn
    s = Session(conn, ttl="10 min").id
    # An acquire gives the same fence, a place in line stays the same, a lock is known by its request.
    first, again = twice("lease_acquire", "r", s)
    assert (first.reason, again.reason, again.fence) == ("granted", "already_held", first.fence)
    assert twice("lease_acquire_many", ["m", "n"], s) == (["granted"] * 2, ["already_held"] * 2)
    waiter = Session(conn, "waiter", "10 min").queue("r")
    assert waiter.queue("r") and conn.execute("SELECT count(*) FROM eskit_lease.waiters").fetchone() == (1,)
    first, again = twice("lock_acquire", "lock", "me", "1 min", REQUEST)
    assert (again.reason, again.fence) == ("already_held", first.fence)
    assert [answer.reason for answer in twice("lock_acquire", "other lock", "me", "1 min")] == ["granted", "held"]
    # The fence tells whether the attempt is the caller's.
    first, again = twice("execution_begin", "k", s)
    assert (first.first, again.first, again.state, again.fence) == (True, False, "running", first.fence)
    assert twice.ask("execution_begin", "k", waiter.id).fence is None
    assert twice("execution_finish", "k", first.fence) == (True, False)
    failed = [twice.ask("execution_begin", key, s).fence for key in ("f", "g")]
    assert twice("execution_fail", "f", failed[0], "error", True) == (True, False)
    assert twice("execution_fail", "g", failed[1], "error") == (True, False)
    assert twice("execution_resolve", "g", "failed") == (True, True)
    assert twice("execution_resolve", "g", "retry") == (True, False)
    # A partition, and its cursor.
    assert twice("group_create", "group", 1) == ("", "42710")
    assert twice("group_join", "group", s) == (1, 1)
    fence = twice.ask("group_assignment", "group", s).fence
    assert twice("cursor_commit", "group", 0, 5, fence, 0) == (True, False)
    assert twice("cursor_ack", "group", 0, 6, fence) == (6, 6)
    assert twice("cursor_report_head", "group", 0, 9) == (True, False)
    assert twice("group_release", "group", 0, fence) == (True, False)
    assert twice("group_release_many", "group", [0], [fence])[1] == [False]
    assert twice("group_leave", "group", s) == (True, False)
    assert twice("group_resize", "group", 2) == (True, True)
    assert twice("group_drop", "group") == (True, "42704")
    # A repeated add adds again; only the work's result tells whether a claimed item is done.
    assert twice("queue_create", "queue", 1) == ("", "42710")
    assert len(set(twice("item_add", "queue", "1"))) == 2
    twice("item_add_many", "queue", ["1"])
    assert conn.execute("SELECT items FROM eskit_lease.queues").fetchone() == (4,)
    for function, answer, *error in (("item_done", 1), ("item_unclaim", 1), ("item_fail", False, "error")):
        item = twice.ask("item_claim", "queue", s)
        assert twice(function, item.id if error else [item.id], item.fence, *error) == (answer, "LF001")
    first, again = twice("item_claim", "queue", s)
    assert first.id != again.id
    assert twice("item_requeue", conn.execute("SELECT id FROM eskit_lease.dead_items").fetchone()[0]) == ("", "42704")
    assert twice("queue_drop", "queue", True) == (True, "42704")
    # A second create or drop is an error. Other verbs that find nothing to do answer false.
    for function, args in (("semaphore_create", ("sem", 1)), ("bridge_create", ("bridge", 1)), ("lease_declare", ("name",))):
        assert twice(function, *args) == ("", "42710")
    assert twice("semaphore_drop", "sem") == twice("bridge_drop", "bridge") == twice("lease_undeclare", "name") == (True, "42704")
    conn.execute("CREATE TABLE fenced (i int)")
    assert twice("table_fence", "fenced", "r") == (True, False)
    assert twice("table_unfence", "fenced") == (True, "42704")
    assert twice("table_unfence", "fenced", True) == (False, False)
    assert twice("lease_cancel", "r", waiter.id) == (True, False)
    fence = twice.ask("lease_acquire", "r", s).fence
    assert twice("lease_release", "r", fence, "1 min") == (True, True)
    assert twice("lease_release", "r", fence) == (True, False)
    assert twice("lease_release_many", ["m"], s) == ([True], [False])
    fence = twice.ask("lease_acquire", "r", s).fence
    assert twice("lease_force_release", "r", fence, "test") == (True, False)
    # A session.
    attached, other = twice("session_open", "attached", "1 min", True)
    assert attached.session != other.session
    assert twice("notify_me", "1 s") == ("", "")
    assert twice("session_detach", attached.session) == (True, False)
    assert twice("session_drain", s) == (True, True)
    assert twice("session_close", s) == (True, False)
    # All verbs that the table lists, by name or by what they do.
    text = (REFERENCE / "README.md").read_text()
    named = [name for table in tables(text) if table.section == "after-a-lost-answer" for row in table.rows for name in code(row[0])]
    assert "after-a-lost-answer" in sections(text) and set(named) - {"missing_ok"} <= twice.asked
    verbs = {name for table in tables(text) if table.header == ["page", "functions"] for row in table.rows for name in code(row[1])}
    kinds = re.compile("(session|lease|lock|fence|semaphore|group|cursor|queue|item|execution|bridge|table)_")
    # Changes of settings, which have the same effect again; the twin of bridge_create; a run-once key.
    unasked = {name for name in verbs if kinds.match(name)} - twice.asked - ASK
    assert unasked == {"semaphore_resize", "group_alter", "queue_alter", "bridge_create_row", "group_lock_key"}
