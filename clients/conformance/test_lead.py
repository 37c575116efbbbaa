"""Leading: one at a time, whatever happens to processes, networks and servers."""

import signal
import threading
import time
from itertools import pairwise

import pytest
from conftest import Pooler, Server, caught_up, promote, standby_of, wait_until
from kit import LATE, TTL, LosingLink, Program, judge_leads, judge_writes, url


def lead(programs, name="x", **given):
    for program in programs:
        program.do("lead", id=name, name=name, **given)


def leader(programs, since=None):
    """Waits for a program that has been granted the lease, of those that lead now, and writes."""

    def is_leading(program):
        granted = program.all("granted", (since or {}).get(program, 0))
        return granted and program.all("wrote", fence=granted[-1]["fence"]) and not program.all("cancelled", fence=granted[-1]["fence"])

    return wait_until(lambda: next((program for program in programs if is_leading(program)), None))


def marks(programs):
    return {program: len(program.events) for program in programs}


# The keepers' calls.
CALLS = "SELECT coalesce(sum(calls), 0)::int FROM pg_stat_user_functions WHERE funcname IN ('session_wait', 'session_watch', 'session_heartbeat')"


@pytest.fixture
def pooler(server, tmp_path):
    pooler = Pooler(server, tmp_path)
    yield pooler
    pooler.stop()


@pytest.mark.parametrize("via", ["direct", "pooler"])
def test_the_lead_goes_from_one_to_the_next(world, request, via):
    """By stop, drain, end and kill. Sessions of those that ended well are closed, and no connection is left."""
    port = request.getfixturevalue("pooler").port if via == "pooler" else None
    programs = world.several(5, world.url(port))
    lead(programs)
    ways = [
        lambda one: one.ask("stop", "stopped", id="x"),
        lambda one: one.ask("drain", "drained", seconds=5),
        lambda one: one.end(),
        lambda one: one.signal(signal.SIGTERM),
        lambda one: one.kill(),
    ]
    left = list(programs)
    for way in ways:
        one = leader(left)
        left.remove(one)
        way(one)
    assert len(judge_leads(programs, "x")) >= 5
    assert len(judge_writes(world.conn, "x")) > 0
    for program in programs:
        if program.process.poll() is None and not program.process.stdin.closed:
            program.end()
    wait_until(lambda: world.sessions() == 0)  # the one of the killed program by its TTL
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    if via == "direct":
        wait_until(lambda: world.has(others, world.dbname) == 0)


def test_an_idle_keeper_costs_one_connection_and_under_one_call_a_second(alone):
    alone.conn.execute(f"ALTER DATABASE {alone.dbname} SET track_functions = 'all'")
    program = alone.start(ttl=15, pool=1)
    mine = "FROM pg_stat_activity WHERE datname = %s AND query LIKE '%%eskit_lease.%%' AND pid <> pg_backend_pid()"
    wait_until(lambda: alone.has(f"SELECT count(*) {mine}", alone.dbname) == 1, timeout=30, pause=0.5)
    before, seconds = alone.has(CALLS), 20
    time.sleep(seconds)
    calls = alone.has(CALLS) - before
    assert 0 < calls < seconds
    alone.tell("idle: calls a minute, with a TTL of 15 s", calls * 60 / seconds)
    program.end()


def test_a_busy_pool_stops_no_heartbeat(alone):
    program = alone.start(pool=1)
    lead([program])
    leader([program])
    lost = alone.lost()
    program.ask("hold", "held", seconds=2 * TTL)
    program.wait("free")
    assert alone.lost() == lost and not program.all("cancelled")
    alone.tell("starved pool: sessions lost", alone.lost() - lost)
    since = len(program.events)
    program.wait("wrote", since)
    program.end()


def test_a_lost_connection_of_the_keeper_is_no_lost_session(world):
    """By a reset, by silence, and by an administrator: each time within the TTL."""
    link = world.link()
    programs = [world.start(world.url(link.port), work=world.url()) for _ in range(2)]
    lead(programs)
    one, lost = leader(programs), world.lost()
    find = "FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND query LIKE '%%session_wait%%'"
    for trouble in (
        link.forget,
        lambda: world.conn.execute(f"SELECT pg_terminate_backend(pid) {find}", (world.dbname,)),
    ):
        trouble()
        time.sleep(TTL * 1.2)
        assert world.lost() == lost and not one.all("cancelled")
    assert len(judge_leads(programs, "x")) == 1


def test_who_is_cut_off_stops_before_the_next_is_granted(world):
    """Its work sleeps, so only the keeper can tell that the trust is over."""
    link = world.link()
    cut = world.start(world.url(link.port), work=world.url())
    lead([cut], every=60)
    leader([cut])
    others = [world.start() for _ in range(2)]
    lead(others)
    programs = [cut, *others]
    # First the answer of the wait that is under way still comes, and no call arrives after it; then nothing.
    for ways in [(link.to_server,), ()]:
        time.sleep(TTL)  # so that it is a long wait
        before = marks(programs)
        link.cut(*ways)
        leader(others, before)
        cut.wait("cancelled", before[cut])
        before = marks(programs)
        link.mend()
        for other in others:
            other.ask("stop", "stopped", id="x")
        leader([cut], before)
        lead(others)
    found = judge_leads(programs, "x")
    assert len(found) >= 3
    judge_writes(world.conn, "x")
    margins = [granted - over for (*_, over), (_, _, granted, _) in pairwise(found) if over]
    world.tell(f"silent network, TTL {TTL:.0f} s: ms from the cancellation to the next grant, at least", min(margins) * 1000)


def test_who_is_stopped_writes_nothing_afterwards(world):
    programs = world.several(3)
    lead(programs)
    paused = []
    for _ in range(2):
        one, before = leader(programs), marks(programs)
        with one.stopped():
            leader([other for other in programs if other is not one], before)
        paused.append(one)
        one.wait("cancelled", before[one])
    judge_leads(programs, "x", paused)
    judge_writes(world.conn, "x")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_ends_no_session(world, mode):
    """The programs of a database wait for the server, and go on as they were."""
    programs = world.several(2, ttl=20)
    lead(programs)
    one, sessions = leader(programs), world.sessions()
    world.conn.close()
    world.server.restart(mode)
    world.conn = world.server.connect(world.dbname)
    since, up = marks(programs), time.monotonic()
    wrote = one.wait("wrote", since[one])
    assert world.sessions() == sessions
    world.tell(f"restart ({mode}): seconds until the leader writes again", max(wrote["at"] - up, 0))
    assert len(judge_leads(programs, "x")) == 1
    judge_writes(world.conn, "x")


def test_a_restart_of_the_pooler_ends_no_session(world, server, tmp_path):
    first = Pooler(server, tmp_path)
    link = world.link(first.port)
    programs = world.several(2, world.url(link.port), ttl=20)
    lead(programs)
    one, sessions = leader(programs), world.sessions()
    first.stop()
    (tmp_path / "second").mkdir()
    second = Pooler(server, tmp_path / "second")
    link.target = second.port
    link.forget()
    since, up = marks(programs), time.monotonic()
    wrote = one.wait("wrote", since[one])
    world.tell("pooler restarts: seconds until the leader writes again", max(wrote["at"] - up, 0))
    assert world.sessions() == sessions
    assert len(judge_leads(programs, "x")) == 1
    judge_writes(world.conn, "x")
    for program in programs:
        program.end()
    second.stop()


def test_a_fleet_with_default_settings(fleet):
    """Thirty processes: by default ten calls may wait. The others send heartbeats, and no session is lost."""
    fleet.conn.execute(f"ALTER DATABASE {fleet.dbname} SET track_functions = 'all'")
    programs = [program for _ in range(6) for program in fleet.several(5, ttl=10)]
    lost = fleet.lost()
    lead(programs)
    left = list(programs)
    for way in (Program.kill, Program.end, Program.kill):
        one = leader(left)
        left.remove(one)
        way(one)
    leader(left)
    assert len(judge_leads(programs, "x")) >= 4
    assert fleet.lost() - lost <= 2  # those of the two that were killed
    before, seconds = fleet.has(CALLS), 10
    time.sleep(seconds)
    calls = (fleet.has(CALLS) - before) / seconds / len(left)
    assert 0 < calls < 1.1
    fleet.tell("a fleet of 30 with default settings: calls a second of each process", calls)


def test_a_promotion(world):
    """Sessions live on, the leader gets a new fence, and nothing is written under two."""
    primary = Server("primary")
    try:
        primary.query("CREATE EXTENSION eskit_lease")
        primary.query("CREATE TABLE kit_writes (id bigserial, consumer text, name text, fence bigint)")
        standby = standby_of(primary, "standby")
        try:
            link = world.link(primary.port)
            programs = [world.start(url(link.port, "postgres"), ttl=20) for _ in range(2)]
            lead(programs)
            one = leader(programs)
            caught_up(primary, standby)
            link.cut()
            primary.stop("immediate")
            promote(standby)
            link.target = standby.port
            link.forget()
            since, up = marks(programs), time.monotonic()
            again = leader(programs, since)
            world.tell("promotion: seconds until a leader writes again", time.monotonic() - up)
            with standby.connect() as conn:
                judge_writes(conn, "x")
            judge_leads(programs, "x")
            assert again in programs and one in programs
        finally:
            standby.stop("immediate")
    finally:
        primary.stop("immediate")


def test_refused_waits_are_replaced_by_heartbeats(alone):
    alone.server.set(eskit_lease__max_waiting="1")
    try:
        programs = alone.several(3)
        lead(programs)
        one, lost = leader(programs), alone.lost()
        time.sleep(2 * TTL)
        assert alone.lost() == lost and not one.all("cancelled")
        before = marks(programs)
        one.ask("stop", "stopped", id="x")
        leader([other for other in programs if other is not one], before)
        judge_leads(programs, "x")
    finally:
        alone.server.set(eskit_lease__max_waiting=None)


def test_a_statement_timeout_below_a_wait_ends_no_session(world):
    world.conn.execute(f"ALTER DATABASE {world.dbname} SET statement_timeout = '500 ms'")
    programs = world.several(2, ttl=6)  # waits of 2 s
    lead(programs)
    one, lost = leader(programs), world.lost()
    time.sleep(9)
    assert world.lost() == lost and not one.all("cancelled")
    before = marks(programs)
    one.ask("stop", "stopped", id="x")
    leader([other for other in programs if other is not one], before)
    judge_leads(programs, "x")


def test_two_processes_of_one_name_do_not_end_each_other_for_ever(alone):
    first = alone.start(takeover=True)
    second = alone.start(opens=False)
    second.name = first.name
    second.open(alone.url(), takeover=True)
    first.wait("keeper", state="lost")
    first.wait("keeper", len(first.events), state="trusted", timeout=30) if first.events[-1].get("state") != "trusted" else None
    time.sleep(2 * TTL)
    assert alone.sessions() == 2
    assert len(first.all("keeper", state="lost")) == 1 and not second.all("keeper", state="lost")


@pytest.mark.parametrize("way", ["before", "after"])
def test_a_fence_is_not_used_after_an_unknown_commit(world, way):
    """A connection of the work breaks between COMMIT and its answer, while its transaction is open."""
    link = world.link(kind=LosingLink)
    programs = [world.start(work=world.url(link.port)) for _ in range(2)]
    lead(programs)
    for _ in range(3):
        one, before, lost = leader(programs), marks(programs), link.lost
        link.lose = way
        wait_until(lambda: link.lost > lost)  # noqa: B023
        unsure = threading.Timer(TTL / 3, link.let_go)
        unsure.start()
        used = [program for program in programs if wait_for_unsure(program, before[program])]
        assert used, f"no program is unsure: {one.events[-5:]}"
        unsure.join()
    judge_leads(programs, "x")
    judge_writes(world.conn, "x")
    for program in programs:
        for unknown in program.all("unsure"):
            later = [told for told in program.all("begin", fence=unknown["fence"]) if told["at"] > unknown["at"]]
            assert not later, f"{program.name} goes on under fence {unknown['fence']}"


def wait_for_unsure(program, since):
    deadline = time.monotonic() + 2 * LATE
    while not program.all("unsure", since) and time.monotonic() < deadline:
        time.sleep(0.01)
    return program.all("unsure", since)


def test_a_lease_taken_by_force_ends_the_scope(world):
    program = world.start()
    lead([program])
    fence, since = program.wait("granted")["fence"], len(program.events)
    world.conn.execute("SELECT eskit_lease.lease_force_release('x', %s, 'a test')", (fence,))
    program.wait("cancelled", fence=fence, timeout=10)
    assert program.wait("granted", since, timeout=10)["fence"] > fence


def test_who_does_not_know_of_its_loss_writes_nothing(world):
    """The lease is taken by force while the leader's keeper hears nothing. The leader still trusts its session."""
    link = world.link()
    deaf = world.start(world.url(link.port), work=world.url(), ttl=20)
    lead([deaf])
    leader([deaf])
    others = [world.start() for _ in range(2)]
    lead(others)
    fence = deaf.all("granted")[-1]["fence"]
    link.cut()
    world.conn.execute("SELECT eskit_lease.lease_force_release('x', %s, 'a test')", (fence,))
    leader(others)
    deaf.wait("cancelled", fence=fence)  # by its own refusal
    assert deaf.all("refused", fence=fence) or deaf.all("lost", fence=fence)
    link.mend()
    judge_leads([deaf, *others], "x", [deaf])
    judge_writes(world.conn, "x")


def test_no_grant_is_missed(world):
    """The leader lets go just as the next one asks."""
    programs = world.several(2)
    one, other = programs
    lead([one])
    for _ in range(100):
        one.wait("granted", timeout=10)
        since = marks(programs)
        lead([other])
        one.do("stop", id="x")
        other.wait("granted", since[other], timeout=10)
        one.wait("stopped", since[one])
        one, other = other, one
        one.events[: since[one]] = []
    judge_leads(programs, "x")


@pytest.mark.parametrize("verb", ["lead", "join"])
def test_an_ask_that_arrives_late_brings_nothing(alone, verb):
    """It was given up, asked again, granted and released; then the network delivers it."""
    if alone.which == "rust":
        pytest.skip("it has the kernel discard the call, by TCP_USER_TIMEOUT, which no proxy shows")
    alone.conn.execute("SELECT eskit_lease.group_create('g', 2)")
    link = alone.link()
    program = alone.start(alone.url(link.port), work=alone.url(), ttl=8)
    lead([program], "warm")  # opens the second connection
    leader([program])
    deliver = link.delay()
    program.do(verb, id="x", **({"name": "x"} if verb == "lead" else {"group": "g"}))
    program.wait("granted" if verb == "lead" else "started", id="x", timeout=30)
    program.ask("stop", "stopped", id="x")
    held = "SELECT (SELECT count(*) FROM eskit_lease.leases WHERE resource = 'x' AND state = 'held') + (SELECT count(*) FROM eskit_lease.group_members)"
    assert alone.has(held) == 0
    deliver()
    wait_until(lambda: alone.has(held) == 0)
    assert not program.all("cancelled", id="warm")


def test_a_release_that_is_given_up_does_not_go_on_waiting(alone):
    """It waits for a fenced transaction, longer than a call may take. Former repetitions do not wait on the server."""
    program = alone.start()
    lead([program])
    fence = program.wait("granted")["fence"]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%lease_release%%' AND wait_event_type = 'Lock'"
    with alone.server.connect(alone.dbname) as conn:
        conn.execute("SET idle_in_transaction_session_timeout = 0")
        with conn.transaction():
            conn.execute("SELECT eskit_lease.fence_check('x', %s)", (fence,))
            since = program.do("stop", id="x")
            wait_until(lambda: alone.has(waiting) == 1)
            until = time.monotonic() + 3 * TTL
            while time.monotonic() < until:
                assert alone.has(waiting) <= 2
                time.sleep(TTL / 20)
    program.wait("stopped", since)


MISUSES = {"before_open", "after_close", "open_twice", "no_transaction", "ended_scope", "two_threads"}


@pytest.mark.parametrize("case", sorted(MISUSES))
def test_misuse_is_a_clear_error(alone, case):
    program = alone.start()
    told = program.wait("misused", program.do("misuse", case=case), case=case)
    error = told["error"]
    # Where to make a keeper is to open it, there is none that is not open, and none is opened twice.
    assert case in ("before_open", "open_twice") or (error is None) == (case == "two_threads"), told
    assert error is None or not any(bad in error.lower() for bad in ("nullpointer", "attributeerror", "panic", "nil pointer"))
