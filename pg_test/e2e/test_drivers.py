"""Each function, called from each driver with its ordinary types, as docs/drivers.md says.

A program for each driver (drivers/) reads a call from each line: the function, and for each argument its type and its
value, all separated by tabs. A value is \\N for NULL; elements of an array are separated by |. The program answers with
the rows as JSON, or with ! and the SQLSTATE."""

import json
import os
import subprocess
import uuid

import pytest
from conftest import once
from languages import CALLERS, READY, require

SURFACE = """SELECT proname, ARRAY(SELECT format_type(type, NULL) FROM unnest(proargtypes) WITH ORDINALITY AS a (type, at) ORDER BY at)
             FROM pg_proc WHERE pronamespace = 'eskit_lease'::regnamespace AND proname NOT LIKE '\\_%' AND prorettype <> 'trigger'::regtype"""
NULL = r"\N"
A_TIME = "2026-01-01T00:00:00+00:00"


class Caller:
    def __init__(self, surface, language, style, url):
        self.types, self.called = dict(surface), set()
        self.process = subprocess.Popen(
            [*CALLERS[language], url, style], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"NODE_PATH": str(READY / "typescript/node_modules")},
        )  # fmt: skip

    def rows(self, function, *values):
        types = self.types[function]
        assert len(values) == len(types), f"{function}: every argument must be passed"
        self.called.add(function)
        words = [word for type, value in zip(types, values, strict=True) for word in (type, str(value))]
        print(*[function, *words], sep="\t", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer.startswith("["), f"{function}{values}: {answer}"
        return json.loads(answer)

    def __call__(self, function, *values):
        """Returns the one row, or its one column."""
        (row,) = self.rows(function, *values)
        return row if len(row) > 1 else next(iter(row.values()))

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


def sessions(call):
    opened = call("session_open", "billing-1", "60 seconds", "false", "0 seconds", "false")
    me, other = opened["session"], call("session_open", "billing-2", NULL, "false", "0 seconds", "false")["session"]
    assert call("session_heartbeat", me)["alive"]
    assert call("session_wait", me, opened["revision"], "0 seconds")["alive"]
    assert [row["alive"] for row in call.rows("session_wait_many", f"{me}|{other}", "0|0", "0 seconds")] == [True, True]
    assert call("session_watch", me, "totals")["alive"] and call("session_watch", me, NULL)["alive"]
    return me, other


def leases(call, me, other):
    lease = call("lease_acquire", "r", me, "false")
    assert lease["granted"]
    assert call("lease_acquire", "r", other, "true")["reason"] == "queued"
    assert call("lease_cancel", "r", other) is True
    assert call("lease_renew", "r", lease["fence"])["reason"] == "held"
    call("fence_check", "r", lease["fence"])
    assert call("lease_force_release", "r", lease["fence"], "it is a test") is True
    assert [row["granted"] for row in call.rows("lease_acquire_many", "r1|r2", me)] == [True, True]
    assert [row["released"] for row in call.rows("lease_release_many", "r1|r2", me)] == [True, True]
    assert call("lease_release", "r3", call("lease_acquire", "r3", me, "false")["fence"], "0 seconds") is True
    request = uuid.uuid4()
    first, again = (call("lock_acquire", "nightly", "host-7", "60 seconds", request) for _ in range(2))
    assert first["granted"] and first["fence"] == again["fence"]
    assert call("lock_acquire", "nightly", "host-8", "60 seconds", NULL)["holder"] == "host-7"
    call("semaphore_create", "gpu", 2)
    call("semaphore_resize", "gpu", 3)
    assert call("semaphore_drop", "gpu", "false") is True
    call("lease_declare", "jobs/", "true")
    assert call("lease_undeclare", "jobs/", "false") is True
    call("bridge_create", "former", -6664241359945616607)
    assert call("bridge_drop", "former", "false") is True
    call("bridge_create_row", "former", "leased", "k", "owner", "until")
    assert call("bridge_drop", "former", "false") is True
    assert call("table_fence", "totals", "r", NULL) is True
    assert call("table_unfence", "totals", "false") is True


def groups(call, me):
    call("group_create", "g", 4, "sticky", "30 seconds", "0 seconds")
    call("group_alter", "g", "range", "20 seconds", NULL)
    assert call("group_join", "g", me) > 0
    one, other, *_ = call.rows("group_assignment", "g", me)
    assert call("cursor_commit", "g", one["partition"], 10, one["fence"], 0) is True
    assert call("cursor_ack", "g", one["partition"], 12, one["fence"]) == 10
    assert call("cursor_position", "g", one["partition"]) == 10
    assert call("cursor_report_head", "g", one["partition"], 2**53 + 1) is True
    assert call("group_release", "g", other["partition"], other["fence"]) is True
    assert call("group_release_many", "g", one["partition"], one["fence"]) == {"partition": one["partition"], "released": True}
    assert call("group_leave", "g", me) is True
    assert call("group_resize", "g", 8, "false") is True
    assert call("group_drop", "g", "false") is True


def items(call, me):
    call("queue_create", "q", 2, "1 seconds", "none", NULL)
    call("queue_alter", "q", 1, "0 seconds")
    payloads = [{"to": "bob", "n": [1, 'a "quoted" word']}, {"to": "eve"}, {"to": "joe"}]
    as_json = [json.dumps(payload) for payload in payloads]
    ids = [call("item_add", "q", as_json[0], "a key", A_TIME), *call("item_add_many", "q", "|".join(as_json[1:]), f"k1|{NULL}", NULL)]
    claimed = call.rows("item_claim", "q", me, 10)
    assert sorted((item["id"], item["payload"]["to"]) for item in claimed) == list(zip(ids, ["bob", "eve", "joe"], strict=True))
    assert payloads[0] in [item["payload"] for item in claimed]
    fence = claimed[0]["fence"]
    assert call("item_fail", ids[0], fence, "it is a test", "0 seconds") is False  # the item's last attempt
    call("item_requeue", ids[0])
    assert call("item_unclaim", ids[1], fence) == 1
    assert call("item_done", ids[2], fence) == 1
    assert call("queue_drop", "q", "true", "false") is True


def executions(call, me):
    begun = call("execution_begin", "mail:1", me, "false")
    assert begun["first"]
    assert call("execution_finish", "mail:1", begun["fence"], '{"message_id": "42"}') is True
    assert call("execution_begin", "mail:1", me, "false")["result"] == {"message_id": "42"}
    assert call("execution_fail", "mail:2", call("execution_begin", "mail:2", me, "true")["fence"], "it is a test", "false") is True
    assert call("execution_resolve", "mail:2", "done", '{"by": "hand"}') is True


def keys_and_positions(call):
    assert call("group_lock_key", "default") == 4010717984327297149
    assert call("advisory_lock_id", "sub:orders") == -1214547986480760684
    assert call("partition_for", "customer-42", 16) == 14
    assert call("partition_of_uuid", "80000000-0000-4000-8000-000000000000", 16) == 8
    assert call("partition_assign", "range", "a|b", "|".join([NULL] * 4), "") == ["a", "a", "b", "b"]
    assert call("position_next") > 0 and call("position_horizon") > 0
    assert call("position_raise", 1) is False


def former_names(call):
    """Former names warn, which is no error in any driver."""
    call("group_create", "former", 1, "sticky", "30 seconds", "0 seconds")
    assert call("cursor_head", "former", 0, 1) is True
    assert call("next_position") > 0
    assert call("fence_table", "totals", "r", NULL) is True
    assert call("unfence_table", "totals") is True


def administration(call, me, other):
    call("grant_consumer", "pg_monitor")
    call("grant_monitor", "pg_monitor")
    assert {row["name"] for row in call.rows("stats")} >= {"heartbeats"}
    assert call("help", "session_close").startswith("eskit_lease.session_close(session uuid)")
    call("session_sweep", 100)
    call("notify_me", "1 second")
    assert call("lease_refence_all") > 0
    assert call("session_detach", other) is False
    assert call("session_drain", other) is True
    assert call("session_close", me) is True


@once
@pytest.mark.parametrize(
    "language, style",
    [(language, style) for language in CALLERS for style in ("native", "text", *(["unspecified"] if language == "java" else []))],
)
def test_every_function_from_every_driver(server, db, language, style):
    require(language)
    server.query("CREATE TABLE totals (customer text)", dbname=db)
    server.query("CREATE TABLE leased (key text PRIMARY KEY, owner text, until timestamptz)", dbname=db)
    server.query("INSERT INTO leased VALUES ('k')", dbname=db)
    call = Caller(server.query(SURFACE, dbname=db), language, style, f"postgresql://127.0.0.1:{server.port}/{db}?user=postgres")
    me, other = sessions(call)
    leases(call, me, other)
    groups(call, me)
    items(call, me)
    executions(call, me)
    keys_and_positions(call)
    former_names(call)
    administration(call, me, other)
    call.end()
    assert call.called == call.types.keys()
