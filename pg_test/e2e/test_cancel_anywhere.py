"""Every function is interrupted at any moment: cancelled, terminated, timed out, by itself, in a transaction and in a
savepoint. An interrupted call has changed nothing and holds nothing, and the same call then works."""

import itertools
import os
import random
import threading
import time

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import Server, once, wait_until
from faults import IS_LEFT, LOGS_SQLSTATES, Log, nothing_left
from psycopg.types.json import Jsonb

SEED = os.environ.get("SOAK_SEED", "5")
SECONDS = float(os.environ.get("SOAK_SECONDS", "12")) / 2

FUNCTIONS = """
    SELECT proname FROM pg_proc
    WHERE pronamespace = 'eskit_lease'::regnamespace AND proname NOT LIKE '\\_%' AND prorettype <> 'trigger'::regtype ORDER BY 1"""
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'eskit_lease'::regnamespace AND relkind = 'r' ORDER BY 1"

# How to call each function so that it works on the stage, see below.
CALLS = {
    "advisory_lock_id": lambda s: ("x",),
    "bridge_create": lambda s: (s.fresh, 7),
    "bridge_create_row": lambda s: (s.fresh, "leased", "k", "owner", "until"),
    "bridge_drop": lambda s: ("spare bridge",),
    "cursor_ack": lambda s: ("g", s.partition, 7, s.partition_fence),
    "cursor_commit": lambda s: ("g", s.partition, 5, s.partition_fence),
    "cursor_head": lambda s: ("g", s.partition, 9),
    "cursor_position": lambda s: ("g", s.partition),
    "cursor_report_head": lambda s: ("g", s.partition, 9),
    "execution_begin": lambda s: (s.fresh, s.me.id),
    "execution_fail": lambda s: (s.running, s.attempt, "error"),
    "execution_finish": lambda s: (s.running, s.attempt, "1"),
    "execution_resolve": lambda s: (s.in_doubt, "failed"),
    "fence_check": lambda s: ("held", s.fence),
    "fence_table": lambda s: ("plain", "held"),
    "grant_consumer": lambda s: ("somebody",),
    "grant_monitor": lambda s: ("somebody",),
    "group_alter": lambda s: ("g", None, "20 s"),
    "group_assignment": lambda s: ("g", s.me.id),
    "group_create": lambda s: (s.fresh, 4),
    "group_drop": lambda s: ("spare group",),
    "group_join": lambda s: ("spare group", s.me.id),
    "group_leave": lambda s: ("g", s.me.id),
    "group_lock_key": lambda s: ("x",),
    "group_release": lambda s: ("g", s.partition, s.partition_fence),
    "group_release_many": lambda s: ("g", [s.partition], [s.partition_fence]),
    "group_resize": lambda s: ("g", random.choice([4, 6]), True),
    "help": lambda s: (random.choice([None, "leases", "lease_acquire"]),),
    "item_add": lambda s: ("q", Jsonb(1), random.choice([None, "key"]), random.choice([None, "2100-01-01"])),
    "item_add_many": lambda s: ("q", [Jsonb(1)] * 30),
    "item_claim": lambda s: ("q", s.me.id, 3),
    "item_done": lambda s: ([s.item], s.claim),
    "item_fail": lambda s: (s.item, s.claim, "error"),
    "item_requeue": lambda s: (s.dead_item,),
    "item_unclaim": lambda s: ([s.item], s.claim),
    "lease_acquire": lambda s: (random.choice(["permits", "held", "wanted", s.fresh]), s.me.id, random.random() < 0.5),
    "lease_acquire_many": lambda s: ([f"many {i}" for i in range(300)], s.me.id),
    "lease_cancel": lambda s: ("held", s.rival.id),
    "lease_declare": lambda s: (s.fresh, random.random() < 0.5),
    "lease_force_release": lambda s: ("held", s.fence, "a test"),
    "lease_refence_all": lambda s: (),
    "lease_release": lambda s: ("held", s.fence, random.choice(["0", "5 s"])),
    "lease_release_many": lambda s: (["held", "also held"], s.me.id),
    "lease_renew": lambda s: ("held", s.fence),
    "lease_undeclare": lambda s: ("spare name",),
    "lock_acquire": lambda s: (s.fresh, "owner", "5 s"),
    "next_position": lambda s: (),
    "partition_assign": lambda s: ("sticky", ["a", "b"], ["a", None, "a"], "g"),
    "partition_for": lambda s: ("x", 3),
    "partition_of_uuid": lambda s: (s.me.id, 3),
    "position_horizon": lambda s: (),
    "position_next": lambda s: (),
    "position_raise": lambda s: (1,),
    "queue_alter": lambda s: ("q", 3),
    "queue_create": lambda s: (s.fresh,),
    "queue_drop": lambda s: ("spare queue", True),
    "semaphore_create": lambda s: (s.fresh, 3),
    "semaphore_drop": lambda s: ("spare semaphore",),
    "semaphore_resize": lambda s: ("spare semaphore", 5),
    "session_close": lambda s: (s.me.id,),
    "session_detach": lambda s: (s.me.id,),
    "notify_me": lambda s: ("1 s",),
    "session_drain": lambda s: (s.me.id,),
    "session_heartbeat": lambda s: (s.me.id,),
    "session_open": lambda s: ("me", "5 s", random.random() < 0.5, "0", random.random() < 0.5),
    "session_sweep": lambda s: (),
    "session_wait": lambda s: (s.me.id, s.me.heartbeat().revision, "20 ms"),
    "session_wait_many": lambda s: ([s.me.id, s.rival.id], [s.me.heartbeat().revision, s.rival.heartbeat().revision], "20 ms"),
    "session_watch": lambda s: (s.me.id, random.choice(["plain", None])),
    "stats": lambda s: (),
    "table_fence": lambda s: ("plain", "held"),
    "table_unfence": lambda s: ("fenced",),
    "unfence_table": lambda s: ("fenced",),
}  # fmt: skip

SETUP = """
    CREATE EXTENSION eskit_lease;
    CREATE ROLE somebody;
    CREATE TABLE plain (i int);
    CREATE TABLE fenced (i int);
    CREATE TABLE leased (key text PRIMARY KEY, owner text, until timestamptz);
    INSERT INTO leased VALUES ('k');
    SELECT eskit_lease.semaphore_create('permits', 2), eskit_lease.group_create('g', 4), eskit_lease.queue_create('q'),
           eskit_lease.queue_create('brittle', 1)"""
# Recreates what calls have removed.
AGAIN = """
    SELECT eskit_lease.group_create('spare group', 4) WHERE NOT EXISTS (SELECT FROM eskit_lease.groups WHERE group_name = 'spare group');
    SELECT eskit_lease.semaphore_create('spare semaphore', 2)
        WHERE NOT EXISTS (SELECT FROM eskit_lease.semaphores WHERE name = 'spare semaphore');
    SELECT eskit_lease.lease_declare('spare name') WHERE NOT EXISTS (SELECT FROM eskit_lease.declared_names WHERE name = 'spare name');
    SELECT eskit_lease.bridge_drop(resource) FROM eskit_lease.bridges WHERE resource LIKE 'fresh %'; -- there may be so many
    SELECT eskit_lease.bridge_create('spare bridge', 7) WHERE NOT EXISTS (SELECT FROM eskit_lease.bridges WHERE resource = 'spare bridge');
    SELECT eskit_lease.queue_create('spare queue') WHERE NOT EXISTS (SELECT FROM eskit_lease.queues WHERE queue = 'spare queue');
    SELECT eskit_lease.table_unfence('plain', true), eskit_lease.table_fence('fenced', 'held')"""


class Stage:
    """Sessions with something of everything, for one call, on a connection that is not interrupted."""

    numbers = itertools.count()

    def __init__(self, conn):
        self.fresh = f"fresh {next(self.numbers)}"
        conn.execute(AGAIN)
        gone = Session(conn, "gone")
        self.in_doubt = f"in doubt {self.fresh}"
        assert call(conn, "execution_begin", self.in_doubt, gone.id).first
        gone.close()
        self.me, self.rival = Session(conn, "me", ttl="60 s"), Session(conn, "rival", ttl="60 s")
        self.fence = self.me.take("held")
        self.me.take("also held")
        self.rival.take("wanted")
        self.rival.take("permits")
        self.rival.queue("held")
        self.me.join("g")
        (owned, *_) = self.me.assignment("g")
        self.partition, self.partition_fence = owned.partition, owned.fence
        self.running = f"running {self.fresh}"
        self.attempt = call(conn, "execution_begin", self.running, self.me.id).fence
        call(conn, "item_add_many", "q", [Jsonb(1)] * 5)
        (claimed,) = rows(conn, "item_claim", "q", self.me.id)
        self.item, self.claim = claimed.id, claimed.fence
        call(conn, "item_add", "brittle", Jsonb("dies"))
        (dies,) = rows(conn, "item_claim", "brittle", self.me.id)
        assert not call(conn, "item_fail", dies.id, dies.fence, "died")
        self.dead_item = dies.id


class Theatre:
    """A server, a connection that is interrupted, and one that watches."""

    def __init__(self, server, seed):
        self.server, self.random = server, random.Random(seed)
        random.seed(seed)
        self.watcher, self.helper, self.conn = server.connect(), server.connect(), None
        self.names = [name for (name,) in self.watcher.execute(FUNCTIONS)]
        assert self.names == sorted(CALLS), "each function is called here"
        tables = [name for (name,) in self.watcher.execute(TABLES)]
        self.tables = ", ".join(f"eskit_lease.{name}" for name in tables)
        self.state = "SELECT " + ", ".join(
            f"(SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM eskit_lease.{name} AS t)" for name in tables
        )
        self.given_up = 0

    def set(self):
        """Opens a connection, and sets a stage."""
        if self.conn is None or self.conn.closed or self.conn.broken:
            self.conn = self.server.connect()
        self.stage = Stage(self.watcher)
        return self.stage

    def what_stands(self):
        return self.watcher.execute(self.state).fetchone()

    def queue_is_new(self):
        """Drops and creates the queue, once the interrupted call no longer holds it."""
        try:
            return self.watcher.execute("SELECT eskit_lease.queue_drop('q', true), eskit_lease.queue_create('q')")
        except psycopg.errors.LockNotAvailable:
            return None

    def clear(self):
        """Closes all sessions, and waits until sweeps have removed all that remains."""
        if self.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            calm(self.conn)
        else:
            self.conn.close()
        self.watcher.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions")
        wait_until(self.queue_is_new)

        def nothing_is_left():
            self.watcher.execute("SELECT eskit_lease.session_sweep()")
            return not [found for found in self.watcher.execute(IS_LEFT).fetchall() if found[1]]

        wait_until(nothing_is_left)

    def end(self):
        for conn in (self.conn, self.watcher, self.helper):
            conn.close()


def calm(conn):
    """Resets timeouts. One may strike meanwhile, and so may a cancel meant for the call before."""
    while not conn.broken:
        try:
            return conn.execute("RESET ALL")
        except psycopg.OperationalError:
            pass


@pytest.fixture(scope="module")
def cancelled():
    # Without a worker only the call itself changes anything.
    server = Server("e2e-cancel", "eskit_lease.worker = off", "max_locks_per_transaction = 256", LOGS_SQLSTATES)
    server.query(SETUP)
    yield server
    server.stop()


@pytest.fixture
def theatre(cancelled):
    log, pid = Log(cancelled), cancelled.pid
    theatre = Theatre(cancelled, SEED)
    yield theatre
    theatre.end()
    nothing_left(cancelled)
    log.is_clean()
    assert cancelled.pid == pid


GIVEN_UP = {"cancel": "57014", "terminate": "57P01", "statement_timeout": "57014", "lock_timeout": "55P03"}


@pytest.mark.parametrize("how", ["cancel", pytest.param("terminate", marks=once), pytest.param("statement_timeout", marks=once), "lock_timeout"])
def test_while_it_waits(theatre, how):
    """Another session has locked all tables."""
    for name in theatre.names:
        stage = theatre.set()
        args, conn, before = CALLS[name](stage), theatre.conn, theatre.what_stands()
        if how.endswith("timeout"):
            conn.execute(f"SET {how} = '10 ms'")
        pid, waits = conn.info.backend_pid, "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
        done = threading.Event()

        def interrupt():
            while not done.is_set() and not theatre.helper.execute(waits, (pid,)).rowcount:
                time.sleep(0.001)
            if not done.is_set():
                theatre.helper.execute(f"SELECT pg_{how}_backend({pid})")

        with theatre.watcher.transaction():
            theatre.watcher.execute(f"LOCK TABLE {theatre.tables} IN ACCESS EXCLUSIVE MODE")
            interrupter = threading.Thread(target=interrupt)
            if not how.endswith("timeout"):
                interrupter.start()
            try:
                rows(conn, name, *args)
                error = None
            except psycopg.Error as raised:
                error = raised
            done.set()
            if interrupter.ident:
                interrupter.join()
        if error:
            # Most calls give up a locked table by themselves, before a watcher sees them wait.
            assert error.sqlstate in (GIVEN_UP[how], "55P03"), (name, error)
            theatre.given_up += 1
            assert theatre.what_stands() == before, name
            if conn.broken:
                conn = theatre.conn = theatre.server.connect()
            calm(conn)
            rows(conn, name, *args)
        theatre.clear()
    print(f"{theatre.given_up} of {len(theatre.names)} functions were given up while they waited")
    assert theatre.given_up > len(theatre.names) / 2


class Interrupter(threading.Thread):
    """Interrupts another connection's call some microseconds from now."""

    def __init__(self, conn, how, pid, delay):
        super().__init__()
        self.call, self.conn, self.delay = f"SELECT pg_{how}_backend({pid})", conn, delay

    def run(self):
        until = time.perf_counter() + self.delay
        while time.perf_counter() < until:
            pass
        self.conn.execute(self.call)


class Act:
    """One or more calls in one of several shapes, interrupted at a random moment or not at all."""

    # The answers of a call when an earlier one of the same transaction has changed its object.
    ANSWERS = {"LF001", "40001", "55P03", "55000", "LF003", "42710", "42704", "42809", "55006", "22023"}

    def __init__(self, theatre):
        choose = theatre.random.choice
        self.theatre, self.shape, self.how = theatre, choose(["alone", "transaction", "savepoint"]), choose(list(GIVEN_UP)[:3])
        self.names = [theatre.names[next(turn) % len(theatre.names)] for _ in range(1 if self.shape == "alone" else 2)]
        self.delay = theatre.random.expovariate(1000)  # mostly within a millisecond, as long as a call takes

    def play(self):
        theatre = self.theatre
        stage = theatre.set()
        self.conn, self.args = theatre.conn, [CALLS[name](stage) for name in self.names]
        before = theatre.what_stands()
        interrupter = None
        if self.how == "statement_timeout":
            self.conn.execute(f"SET statement_timeout = {theatre.random.randint(1, 5)}")
        else:
            interrupter = Interrupter(theatre.helper, self.how, self.conn.info.backend_pid, self.delay)
            interrupter.start()
        try:
            getattr(self, self.shape)()
            error = None
        except psycopg.Error as raised:
            error = raised
        if interrupter:
            interrupter.join()
        if error is None:
            return
        what = (self.names, self.shape, self.how, error)
        refused = error.sqlstate in self.ANSWERS and self.shape != "alone"
        refused |= error.sqlstate == "25P02" and self.shape == "savepoint"  # the end of the savepoint was interrupted
        assert refused or error.sqlstate == GIVEN_UP[self.how] or isinstance(error, psycopg.OperationalError) and not error.sqlstate, what
        if self.conn.broken or self.conn.closed:
            # The call may have been committed when the connection was terminated.
            wait_until(lambda: not theatre.watcher.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (self.conn.info.backend_pid,)).rowcount)
            return
        assert theatre.what_stands() == before, what
        theatre.given_up += not refused
        if self.shape == "alone":
            calm(self.conn)
            rows(self.conn, self.names[0], *self.args[0])

    def each(self):
        return zip(self.names, self.args, strict=True)

    def alone(self):
        rows(self.conn, self.names[0], *self.args[0])

    def transaction(self):
        with self.conn.transaction():
            for name, args in self.each():
                rows(self.conn, name, *args)

    def savepoint(self):
        """Makes a call in a savepoint, and again after it if the first was interrupted."""
        with self.conn.transaction():
            for name, args in self.each():
                try:
                    with self.conn.transaction():
                        rows(self.conn, name, *args)
                except psycopg.errors.QueryCanceled:
                    self.conn.execute("SET LOCAL statement_timeout = 0")
                    rows(self.conn, name, *args)


turn = itertools.count()


@pytest.mark.parametrize("worker", ["off", "on"])
def test_at_random_moments(theatre, worker):
    theatre.server.set(eskit_lease__worker=worker)
    wait_until(lambda: theatre.watcher.execute("SHOW eskit_lease.worker").fetchone() == (worker,))
    if worker == "on":
        theatre.state = "SELECT"  # the worker may change what stands at any time
    ends, acts = time.monotonic() + SECONDS, 0
    try:
        while time.monotonic() < ends:
            Act(theatre).play()
            theatre.clear()
            acts += 1
    finally:
        theatre.server.set(eskit_lease__worker=None)
    print(f"seed {SEED}: {acts} acts, {theatre.given_up} of them given up while their connections went on")
    assert stat(theatre.watcher, "calls_waiting") == 0
