"""Crash restarts, and promotions of a synchronous and of an asynchronous standby, with items and keys in every state:
nothing that was confirmed is lost; after a promotion of an asynchronous standby, only what it had not received is
lost."""

import itertools
import random

import psycopg
import pytest
from client import Session, Stubborn, call, rows
from conftest import Server, caught_up, cut_off, promote, standby_of, wait_until
from psycopg.types.json import Jsonb

RESULTS = "CREATE TABLE results (what text, by text)"  # No unique key: only the claims make each row unique.


class Fault:
    server = None

    def connect(self):
        """Connects to the server that clients must use now."""
        return self.server.connect()


class Restart(Fault):
    """A server that is killed and recovers, with all that was confirmed."""

    loses = False

    def __init__(self, how):
        self.how, self.server = how, Server("e2e-work", "fsync = on")

    def strike(self):
        self.server.crash() if self.how == "crash" else self.server.restart("immediate")

    def end(self):
        self.server.stop("immediate")


class Promotion(Fault):
    """A primary that is killed, and its standby, which is promoted instead."""

    def __init__(self, how):
        self.loses = how == "asynchronous"
        self.server = self.primary = Server("e2e-primary", "max_wal_senders = 4", "hot_standby = on")
        self.standby = standby_of(self.primary)
        if not self.loses:
            self.primary.set(synchronous_standby_names="*")
            wait_until(lambda: self.primary.query("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))

    def cut_off(self):
        """Cuts the standby off from its primary."""
        caught_up(self.primary, self.standby)
        cut_off(self.standby)

    def strike(self):
        self.primary.stop("immediate")
        promote(self.standby)
        self.server = self.standby

    def end(self):
        self.standby.stop("immediate")
        self.primary.stop("immediate")


@pytest.fixture
def fault(request):
    made = (Restart if request.param in ("crash", "immediate") else Promotion)(request.param)
    made.server.query("CREATE EXTENSION eskit_lease")
    made.server.query(RESULTS)
    yield made
    made.end()


def apply(session, what, *finish):
    """Writes a result and ends the work, in one transaction."""
    with session.conn.transaction():
        session.conn.execute("INSERT INTO results VALUES (%s, %s)", (what, session.consumer))
        return call(session.conn, *finish)


def done(session, item):
    assert apply(session, item.payload, "item_done", [item.id], item.fence) == 1


def state(conn, but):
    """Returns the state of items and keys, without some items, and without whether a session still exists."""
    found = {
        view: conn.execute(f"SELECT {columns} FROM eskit_lease.{view} ORDER BY 1").fetchall()
        for view, columns in {
            "items": "id, payload, attempt, error, run_at, fence, state",
            "dead_items": "id, payload, attempt, error",
            "queues": "queue, items, later, dead",
            "executions": "key, fence, attempts, result, error, replace(state, 'in_doubt', 'running')",
        }.items()
    }
    found["items"] = [row for row in found["items"] if row[0] not in but]
    return found


@pytest.mark.parametrize("fault", ["crash", "immediate", "synchronous", "asynchronous"], indirect=True)
def test_all_is_as_it_was(fault):
    conn = fault.server.connect()
    lives, gone = Session(conn, "lives", ttl="60 s"), Session(conn, "gone", ttl="2 s")
    call(conn, "queue_create", "q", 10)
    call(conn, "queue_create", "brittle", 1)
    ids = call(conn, "item_add_many", "q", [Jsonb(f"item {i}") for i in range(12)])
    ids.append(call(conn, "item_add", "q", Jsonb("much later"), None, "2100-01-01"))
    ids.append(call(conn, "item_add", "brittle", Jsonb("dies")))
    (dies,) = rows(conn, "item_claim", "brittle", lives.id)
    assert not call(conn, "item_fail", dies.id, dies.fence, "died")
    first, again, *claimed = rows(conn, "item_claim", "q", lives.id, 5)
    left = rows(conn, "item_claim", "q", gone.id, 2)
    done(lives, first)
    assert call(conn, "item_fail", again.id, again.fence, "failed", "3 s")
    keys = {key: call(conn, "execution_begin", key, lives.id).fence for key in ("done", "failed", "free", "running")}
    lost_key = call(conn, "execution_begin", "lost", gone.id).fence
    assert apply(lives, "key done", "execution_finish", "done", keys["done"], "1")
    assert call(conn, "execution_fail", "failed", keys["failed"], "error")
    assert call(conn, "execution_fail", "free", keys["free"], "error", True)
    of_the_dead = [item.id for item in left]
    before = state(conn, of_the_dead)
    given = [dies.fence, first.fence, left[0].fence, lost_key, *keys.values()]
    # Work that is not confirmed, or has not reached the standby, must have no effect.
    if fault.loses:
        fault.cut_off()
        more = fault.server.connect()
        ids += call(more, "item_add_many", "q", [Jsonb(f"lost {i}") for i in range(200)])
        given += [rows(more, "item_claim", "q", lives.id)[0].fence for _ in range(50)]
        given += [call(more, "execution_begin", f"lost {i}", lives.id).fence for i in range(50)]
    else:
        more = fault.server.connect()
        more.execute("BEGIN")
    lives.conn = more
    done(lives, claimed[0])
    assert apply(lives, "key running", "execution_finish", "running", keys["running"])
    call(more, "item_add", "q", Jsonb("not confirmed"))
    assert call(more, "execution_begin", "not confirmed", lives.id).first
    fault.strike()

    conn = lives.conn = fault.server.connect()
    assert state(conn, of_the_dead) == before
    assert lives.heartbeat().alive
    other = Session(conn, "other", ttl="60 s")
    # Living sessions go on with what they have.
    for item in claimed:
        done(lives, item)
    assert apply(lives, "key running", "execution_finish", "running", keys["running"])
    # The items of dead sessions are free a TTL later; failed items, when they are due.
    got = []

    def all_but_the_latest():
        for item in rows(conn, "item_claim", "q", other.id, 4):
            got.append(item)
            done(other, item)
        return len(got) == 12 - 4

    wait_until(all_but_the_latest, pause=0.02)
    assert {item.id: item.attempt for item in got if item.attempt > 1} == {item.id: 2 for item in [again, *left]}
    gone.conn = conn
    with pytest.raises(psycopg.Error) as stale:
        done(gone, left[0])
    assert stale.value.sqlstate == "LF001"
    wait_until(lambda: call(conn, "execution_begin", "lost", other.id).state == "in_doubt")
    again = call(conn, "execution_begin", "free", other.id)
    assert again.first and min(again.fence, *(item.fence for item in got)) > max(given)
    assert apply(other, "key free", "execution_finish", "free", again.fence)
    assert call(conn, "execution_begin", "not confirmed", other.id).first
    assert call(conn, "item_add", "q", Jsonb("new")) > max(ids)
    results = sorted(what for (what,) in conn.execute("SELECT what FROM results").fetchall())
    assert results == sorted([f"item {i}" for i in range(12)] + ["key done", "key free", "key running"])
    conn.close()


class Client(Stubborn):
    """Goes on with its session, on the server that is up."""

    numbers = itertools.count()

    def __init__(self, fault):
        super().__init__(fault)
        self.session, self.confirmed, self.fences = None, [], []

    def prepare(self):
        if self.session is None:
            self.session = Session(self.conn, self.name, ttl="2 s")
        self.session.conn = self.conn

    def work(self):
        try:
            self.step()
        except psycopg.Error as error:
            if error.sqlstate == "LF003":  # the client was disconnected for too long
                self.session = None
                self.prepare()
            elif error.sqlstate not in ("55P03", "LF001"):
                raise


class Adder(Client):
    def step(self):
        what = f"item {next(self.numbers)}"
        self.confirmed.append((call(self.conn, "item_add", "q", Jsonb(what)), what))


class Worker(Client):
    hand, asked = (), False

    def prepare(self):
        if self.asked and self.session:
            # The claim's answer is lost. Its items are free again when the session has ended.
            call(self.conn, "session_close", self.session.id)
            self.session = None
        self.asked = False
        super().prepare()

    def step(self):
        if not self.hand:
            self.asked = True
            self.hand = rows(self.conn, "item_claim", "q", self.session.id, random.randint(1, 5))
            self.asked = False
            self.fences += {item.fence for item in self.hand}
        while self.hand:
            try:
                done(self.session, self.hand[0])
                self.confirmed.append(self.hand[0].payload)
            except psycopg.Error as error:
                if error.sqlstate != "LF001":  # the item was done before the connection broke, or is no longer the client's
                    raise
            self.hand = self.hand[1:]


class Runner(Client):
    def step(self):
        key = f"key {next(self.numbers)}" if random.random() < 0.5 else f"key {random.randrange(100)}"
        with self.conn.transaction():
            answer = call(self.conn, "execution_begin", key, self.session.id)
            if answer.first:
                self.conn.execute("INSERT INTO results VALUES (%s, %s)", (key, self.name))
                assert call(self.conn, "execution_finish", key, answer.fence)
        if answer.first:
            self.confirmed.append(key)
            self.fences.append(answer.fence)


@pytest.mark.parametrize("fault", ["immediate", "synchronous"], indirect=True)
def test_clients_go_on(fault):
    """The server is killed while clients add, claim, finish and begin: confirmed work survives, and each result exists
    once."""
    fault.server.query("SELECT eskit_lease.queue_create('q', max_attempts => 1000)")
    adders, workers, runners = [Adder(fault) for _ in range(3)], [Worker(fault) for _ in range(5)], [Runner(fault) for _ in range(2)]
    clients = [*adders, *workers, *runners]
    for client in clients:
        client.start()

    def go_on():
        before = [len(client.confirmed) for client in clients]

        def each_did_some():
            assert not [client.failure for client in clients if client.failure]
            return all(len(client.confirmed) > count + 10 for client, count in zip(clients, before, strict=True))

        wait_until(each_did_some)

    go_on()
    fault.strike()
    before = max(fence for client in clients for fence in list(client.fences))
    go_on()
    for client in (*adders, *runners):
        client.end()
    conn = fault.server.connect()
    wait_until(lambda: conn.execute("SELECT items, later, dead FROM eskit_lease.queues").fetchone() == (0, 0, 0), pause=0.05)
    for client in workers:
        client.end()
    results = [what for (what,) in conn.execute("SELECT what FROM results").fetchall()]
    assert len(results) == len(set(results)), "each once"
    assert {what for client in adders for _, what in client.confirmed} <= set(results)
    assert {what for client in (*workers, *runners) for what in client.confirmed} <= set(results)
    assert {key for (key,) in conn.execute("SELECT key FROM eskit_lease.executions WHERE state = 'done'").fetchall()} == {
        what for what in results if what.startswith("key")
    }
    ids = [id for client in adders for id, _ in client.confirmed]
    fences = [fence for client in clients for fence in client.fences]
    assert len(ids) == len(set(ids)) and len(fences) == len(set(fences)), "none is given twice"
    assert max(fences) > before
    conn.close()
