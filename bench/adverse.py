"""The cost of adverse conditions. Each row compares one call under a load, which should not slow it down, with the same
call without that load, in turns on one server."""

import contextlib
import statistics
import threading
import time

import tenants
from cluster import cluster
from harness import REPEAT, number, one
from old_snapshot import old_snapshot

HOLDERS = number("BENCH_ADVERSE_HOLDERS", 3_000)  # of one semaphore
PARTITIONS = number("BENCH_ADVERSE_PARTITIONS", 8_192)  # of a queue's group, all owned by one session
WIDEST = number("BENCH_ADVERSE_WIDEST", 32_768)  # partitions of the group that releases are measured in
BATCH = number("BENCH_ADVERSE_BATCH", 1_000)  # items in one claim
NESTED = number("BENCH_ADVERSE_NESTED", 2_000)  # subtransactions in one transaction
DATABASES = number("BENCH_ADVERSE_DATABASES", 10)
BLOCKED = number("BENCH_ADVERSE_BLOCKED", 100_000)  # keys whose first item has failed, each with one that waits
WORKERS = 8  # sessions that wait for items
RESTARTED = number("BENCH_ADVERSE_RESTARTED", 50)  # databases that the worker visits after a restart
CALLS = 20  # in one measurement
ROUNDS = 60  # hand-overs, over all databases
POLLS = 2_000  # polls of one name during a hand-over in another database


def adverse(report):
    room = f"eskit_lease.max_sessions = {HOLDERS + 20_000}"
    with cluster("adverse", room, "max_locks_per_transaction = 256") as server, server.connect() as db:
        semaphore(report, db)
        partitions(report, db)
        shares(report, db)
        releases(report, db)
        claims(report, db)
        subtransactions(report, db)
        polls(report, server)
        blocked_keys(report, db, server)
    for slots in (1, 0):
        few_slots(report, slots)
    restart(report)
    old_snapshot(report)


def session(db, consumer):
    return one(db, "SELECT session FROM eskit_lease.session_open(%s, '1 h')", consumer)


def milliseconds(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1_000


def beside(report, what, loaded, against, without, at_most, calls=CALLS):
    """Reports the milliseconds of a call under the load and without it. The first median of each does not count."""
    ours, theirs = [], []
    for _ in range(REPEAT + 1):
        for values, call in ((ours, loaded), (theirs, without)):
            values.append(statistics.median(milliseconds(call) for _ in range(calls)))
    report.ratio(what, ours[1:], against, theirs[1:], unit="ms", at_most=at_most)


def semaphore(report, db):
    newcomer = session(db, "newcomer")

    def filled(name, holders, more):
        one(db, "SELECT eskit_lease.semaphore_create(%s, %s)", name, holders + more)
        held = one(
            db,
            """SELECT count(*) FILTER (WHERE a.granted) FROM generate_series(1, %s) AS n,
               eskit_lease.session_open(%s || n, '1 h') AS s, eskit_lease.lease_acquire(%s, s.session) AS a""",
            holders, f"{name}-", name)  # fmt: skip
        assert held == holders, held

    def come_and_go(name):
        granted, fence = one(db, "SELECT granted, fence FROM eskit_lease.lease_acquire(%s, %s)", name, newcomer)
        assert granted and one(db, "SELECT eskit_lease.lease_release(%s, %s)", name, fence)

    def refused(name):
        assert one(db, "SELECT reason FROM eskit_lease.lease_acquire(%s, %s)", name, newcomer) == "held"

    for name, holders, more in (("few", 10, 1), ("many", HOLDERS, 1), ("few, all", 10, 0), ("many, all", HOLDERS, 0)):
        filled(name, holders, more)
    db.execute("ANALYZE")
    for what, call, names in (
        ("had and given back", come_and_go, ("many", "few")), ("refused", refused, ("many, all", "few, all")),
    ):  # fmt: skip
        many, few = ((lambda name=name: call(name)) for name in names)
        beside(report, f"permit {what}, {HOLDERS:,} holders", many, "10 holders", few, 2)


def group_queue(db, name, owner, count):
    one(db, "SELECT eskit_lease.group_create(%s, %s)", name, count)
    one(db, "SELECT eskit_lease.group_join(%s, %s)", name, owner)
    owned = "SELECT count(*) FILTER (WHERE state = 'owned') FROM eskit_lease.group_assignment(%s, %s)"
    end = time.monotonic() + 60
    while one(db, owned, name, owner) < count:
        assert time.monotonic() < end, name
        time.sleep(0.05)
    one(db, "SELECT eskit_lease.queue_create(%s, group_name => %s)", name, name)


def partitions(report, db):
    owner = session(db, "owner of all")
    for name, count in (("narrow", 2), ("wide", PARTITIONS)):
        group_queue(db, name, owner, count)

    def empty(name):
        assert not db.execute("SELECT id FROM eskit_lease.item_claim(%s, %s, 10)", (name, owner)).fetchall()

    def one_item(name):
        one(db, "SELECT eskit_lease.item_add(%s, '{}', key => gen_random_uuid()::text)", name)
        id, fence = one(db, "SELECT id, fence FROM eskit_lease.item_claim(%s, %s, 1)", name, owner)
        assert one(db, "SELECT eskit_lease.item_done(ARRAY[%s::bigint], %s)", id, fence) == 1

    for what, call in (("claim of nothing", empty), ("add, claim and done", one_item)):
        wide, narrow = ((lambda name=name: call(name)) for name in ("wide", "narrow"))
        beside(report, f"{what}, {PARTITIONS:,} partitions", wide, "2 partitions", narrow, 10)


def shares(report, db):
    """Two sessions on one connection claim in turn from partitions that are always full."""
    sessions = [session(db, f"pooled {n}") for n in range(2)]
    one(db, "SELECT eskit_lease.group_create('shared', 8)")
    for who in sessions:
        one(db, "SELECT eskit_lease.group_join('shared', %s)", who)
    one(db, "SELECT eskit_lease.queue_create('shared', group_name => 'shared')")
    one(db, """SELECT count(*) FROM eskit_lease.item_add_many('shared', array_fill('{}'::jsonb, ARRAY[8000]),
               keys => ARRAY(SELECT n::text FROM generate_series(1, 8000) AS n))""")  # fmt: skip
    owned = """SELECT count(*) FILTER (WHERE l.session IS NOT DISTINCT FROM p.target)
               FROM eskit_lease._partitions AS p
               JOIN eskit_lease._leases AS l ON (l.resource, l.slot) = (p.group_name, p.partition)
               WHERE p.group_name = 'shared'"""
    end = time.monotonic() + 60
    while one(db, owned) < 8:
        assert time.monotonic() < end
        one(db, """SELECT count(eskit_lease.group_release('shared', a.partition, a.fence)) FROM unnest(%s::uuid[]) AS s,
                   eskit_lease.group_assignment('shared', s) AS a WHERE a.state = 'revoking'""", sessions)  # fmt: skip
        time.sleep(0.05)
    had = dict.fromkeys(range(8), 0)
    for n in range(400):
        claimed = "SELECT eskit_lease.partition_for(key, 8) FROM eskit_lease.item_claim('shared', %s, 1)"
        had[one(db, claimed, sessions[n % 2])] += 1
    least = min(had.values()) / 50
    shown = f"{least:.2f} of a fair one"
    report.check("least share of 8 full partitions, one connection", shown, ">= 0.5", least >= 0.5)


def releases(report, db):
    """Partitions are released one by one, and many in one call, in a small group and in one with the most partitions
    allowed."""
    given = {}
    for name, count in (("small", 64), ("huge", WIDEST)):
        owner, heir = (session(db, f"{who} of {name}") for who in ("owner", "heir"))
        one(db, "SELECT eskit_lease.group_create(%s, %s, rebalance_timeout => '1 hour')", name, count)
        for who in (owner, heir):
            one(db, "SELECT eskit_lease.group_join(%s, %s)", name, who)
        revoked = "SELECT partition, fence FROM eskit_lease.group_assignment(%s, %s) WHERE state = 'revoking'"
        given[name] = iter(wait_for_rows(db, revoked, (name, owner), count // 2))

    def release(name):
        assert one(db, "SELECT eskit_lease.group_release(%s, %s, %s)", name, *next(given[name]))

    what = f"group_release, {WIDEST:,} partitions"
    beside(report, what, lambda: release("huge"), "64 partitions", lambda: release("small"), 2, calls=32 // (REPEAT + 1))
    rest = list(given["huge"])[:1_024]
    took = milliseconds(lambda: db.execute(
        "SELECT count(*) FROM eskit_lease.group_release_many('huge', %s, %s)", [list(of) for of in zip(*rest, strict=True)]))  # fmt: skip
    report.check("group_release_many of 1,024", f"{took:,.0f} ms", "<= 500 ms", took <= 500)


def wait_for_rows(db, query, values, count):
    end = time.monotonic() + 60
    while len(found := db.execute(query, values).fetchall()) < count:
        assert time.monotonic() < end, (len(found), count)
        time.sleep(0.05)
    return found


def claims(report, db):
    worker = session(db, "worker")
    one(db, "SELECT eskit_lease.queue_create('batch')")

    def finished(order):
        """Returns the milliseconds to finish all items of one claim, one by one in one transaction."""
        one(db, "SELECT count(*) FROM eskit_lease.item_add_many('batch', array_fill('{}'::jsonb, ARRAY[%s]))", BATCH)
        items = db.execute("SELECT id, fence FROM eskit_lease.item_claim('batch', %s, %s)", (worker, BATCH)).fetchall()
        assert len(items) == BATCH

        def all_of_them():
            with db.transaction():
                for id, fence in order(items):
                    db.execute("SELECT eskit_lease.item_done(ARRAY[%s::bigint], %s)", (id, fence), prepare=True)

        return milliseconds(all_of_them)

    ends, begins = [], []
    for _ in range(REPEAT + 1):
        ends.append(finished(lambda items: items[::-1]))
        begins.append(finished(lambda items: items))
    what = f"{BATCH:,} items done from the end of a claim"
    report.ratio(what, ends[1:], "from its beginning", begins[1:], unit="ms", at_most=2)


def subtransactions(report, db):
    one(db, "SELECT eskit_lease.queue_create('nested')")

    def added(count):
        """Returns the milliseconds of one call, the mean of `count` calls in one transaction, each in a savepoint of
        its own."""
        with db.transaction(force_rollback=True):
            return milliseconds(lambda: db.execute(f"""DO $$ BEGIN FOR n IN 1..{count} LOOP
                BEGIN PERFORM eskit_lease.item_add('nested', '{{}}'); EXCEPTION WHEN division_by_zero THEN NULL; END;
            END LOOP; END $$""")) / count  # fmt: skip

    many, few = [], []
    for _ in range(REPEAT + 1):
        many.append(added(NESTED))
        few.append(statistics.median(added(NESTED // 20) for _ in range(5)))
    what = f"item_add in {NESTED:,} subtransactions, each"
    report.ratio(what, many[1:], f"in {NESTED // 20:,}", few[1:], unit="ms", at_most=1.5)


def polls(report, server):
    """Hand-overs by the worker while another database polls one name, which a dead holder's open transaction blocks."""
    server.create("polled")
    with server.connect("polled") as polling, server.connect("polled") as fenced, server.connect() as db:
        dead, poller = one(polling, "SELECT session FROM eskit_lease.session_open('dead', '1 s')"), session(polling, "poller")
        fence = one(polling, "SELECT fence FROM eskit_lease.lease_acquire('r', %s)", dead)
        polls = f"PERFORM FROM eskit_lease.lease_acquire('r', '{poller}', true)"
        ours, theirs = [], []
        with fenced.transaction():
            one(fenced, "SELECT eskit_lease.fence_check('r', %s)", fence)
            time.sleep(1.1)
            for round in range(REPEAT + 1):
                theirs.append(cut_off(server, db, f"alone {round}"))
                thread = threading.Thread(
                    target=polling.execute, args=(f"DO $$ BEGIN FOR n IN 1..{POLLS} LOOP {polls}; COMMIT; END LOOP; END $$",)
                )
                thread.start()
                time.sleep(0.2)
                ours.append(cut_off(server, db, f"polled {round}"))
                thread.join()
    what = f"hand-over while another database is polled {POLLS:,} times"
    report.ratio(what, ours[1:], "while it is not", theirs[1:], unit="ms", at_most=3)


def cut_off(server, db, name):
    """Closes the connection of an attached holder. Returns the milliseconds until the waiter's session_wait answers."""
    heir, told = session(db, "heir"), []
    with server.connect() as holder:
        dying = one(holder, "SELECT session FROM eskit_lease.session_open('dying', '1 h', true)")
        assert one(holder, "SELECT granted FROM eskit_lease.lease_acquire(%s, %s)", name, dying)
        revision = one(db, "SELECT revision FROM eskit_lease.session_heartbeat(%s)", heir)
        assert one(db, "SELECT reason FROM eskit_lease.lease_acquire(%s, %s, true)", name, heir) == "queued"

        def wait():
            told.append((one(db, "SELECT reason FROM eskit_lease.session_wait(%s, %s)", heir, revision), time.perf_counter()))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        start = time.perf_counter()
    thread.join()
    ((reason, at),) = told
    assert reason == "changed", reason
    one(db, "SELECT eskit_lease.session_close(%s)", heir)
    return (at - start) * 1_000


def blocked_keys(report, db, server):
    worker = session(db, "worker")
    for name, count in (("clear", 0), ("blocked", BLOCKED)):
        one(db, "SELECT eskit_lease.queue_create(%s, ordering => 'key')", name)
        for _ in range(2 if count else 0):
            one(db, """SELECT cardinality(eskit_lease.item_add_many(%s, array_fill('{}'::jsonb, ARRAY[%s]),
                       keys => ARRAY(SELECT n::text FROM generate_series(1, %s) AS n)))""", name, count, count)  # fmt: skip
        failed = 0
        while failed < count:
            failed += one(db, """SELECT count(eskit_lease.item_fail(i.id, i.fence, 'blocked', '1 h'))
                                FROM eskit_lease.item_claim(%s, %s, 1000) AS i""", name, worker)  # fmt: skip

    def claim_and_done(name):
        one(db, "SELECT eskit_lease.item_add(%s, '{}', 'well')", name)
        id, fence = one(db, "SELECT id, fence FROM eskit_lease.item_claim(%s, %s)", name, worker)
        assert one(db, "SELECT eskit_lease.item_done(ARRAY[%s::bigint], %s)", id, fence) == 1

    blocked, clear = ((lambda name=name: claim_and_done(name)) for name in ("blocked", "clear"))
    beside(report, f"add, claim and done, {BLOCKED:,} keys blocked", blocked, "none", clear, 1.5)
    over, late = threading.Event(), []

    def work(db):
        me = session(db, "worker")
        while not over.is_set():
            revision = one(db, "SELECT revision FROM eskit_lease.session_heartbeat(%s)", me)
            item = one(db, "SELECT id, fence, payload FROM eskit_lease.item_claim('blocked', %s)", me)
            if item is None:
                one(db, "SELECT alive FROM eskit_lease.session_wait(%s, %s, '1 s')", me, revision)
            else:
                late.append((time.time() - item[2]) * 1_000)
                one(db, "SELECT eskit_lease.item_done(ARRAY[%s::bigint], %s)", item[0], item[1])

    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=work, args=(stack.enter_context(server.connect()),)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        for n in range(ROUNDS):
            one(db, "SELECT eskit_lease.item_add('blocked', to_jsonb(%s::float8), %s)", time.time(), f"new {n}")
            time.sleep(0.05)
        over.set()
        for thread in threads:
            thread.join()
    median = statistics.median(late)
    report.check(
        f"item added until one of {WORKERS} waiting workers has it", f"p50 {median:.1f} ms", "<= 10 ms", median <= 10
    )


def few_slots(report, slots):
    """Hand-overs in many databases while parallel queries take the background workers."""
    late = []
    # The launcher has one slot, logical replication another.
    with cluster("adverse-slots", f"max_worker_processes = {2 + slots}") as server:
        for n in range(2, DATABASES + 1):
            server.create(f"tenant{n}")

        def tenant(number):
            with tenants.connect(server, number) as db, tenants.connect(server, number) as dying:
                for round in range(ROUNDS // DATABASES):
                    late.append(death(db, dying, f"r{round}"))

        threads = [threading.Thread(target=tenant, args=(n,)) for n in range(1, DATABASES + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    late.sort()
    worst, bound = late[len(late) * 99 // 100], 250 if slots else 500
    shown = f"p50 {statistics.median(late):,.0f} ms, p99 {worst:,.0f} ms"
    what = f"hand-over in {DATABASES} databases, {slots} free worker slots"
    report.check(what, shown, f"<= {bound} ms", worst <= bound)


def death(db, other, name):
    """A holder expires while an heir waits by session_wait. Returns the milliseconds from the holder's deadline until
    the heir has the lease."""
    heir, dying = session(db, "heir"), one(other, "SELECT session FROM eskit_lease.session_open('dying', '1 s')")
    assert one(other, "SELECT granted FROM eskit_lease.lease_acquire(%s, %s)", name, dying)
    revision = one(db, "SELECT revision FROM eskit_lease.session_heartbeat(%s)", heir)
    assert one(db, "SELECT reason FROM eskit_lease.lease_acquire(%s, %s, true)", name, heir) == "queued"
    deadline = one(other, "SELECT expires_at FROM eskit_lease.session_heartbeat(%s)", dying).timestamp()
    while True:
        revision = one(db, "SELECT revision FROM eskit_lease.session_wait(%s, %s)", heir, revision)
        if one(db, "SELECT granted FROM eskit_lease.lease_acquire(%s, %s, true)", name, heir):
            break
    late = (time.time() - deadline) * 1_000
    one(db, "SELECT eskit_lease.session_close(%s)", heir)
    return late


def restart(report):
    """After a restart the worker hands over leases whose grace ends, once it has visited each database."""
    with cluster("adverse-restart", f"eskit_lease.max_databases = {RESTARTED + 14}", "max_connections = 200") as server:
        waits = []
        for n in range(1, RESTARTED + 1):
            if n > 1:
                server.create(f"tenant{n}")
            with tenants.connect(server, n) as db:
                holder, heir = (session(db, who) for who in ("holder", "heir"))
                fence = one(db, "SELECT fence FROM eskit_lease.lease_acquire('r', %s)", holder)
                waits.append((n, heir, fence))
                # The grace and the place in line are from before the restart, and nothing tells the worker about that
                # place.
                one(db, "SELECT eskit_lease.lease_release('r', %s, '1 s')", fence)
                assert one(db, "SELECT reason FROM eskit_lease.lease_acquire('r', %s, true)", heir) == "queued"
        server.restart()
        start, late = time.monotonic(), []
        with contextlib.ExitStack() as stack:
            connections = [(stack.enter_context(tenants.connect(server, n)), heir, fence) for n, heir, fence in waits]
            ready = time.monotonic() - start
            while connections and time.monotonic() < start + 60:
                for found in list(connections):
                    db, heir, fence = found
                    held = one(db, "SELECT count(*) FROM eskit_lease.leases WHERE resource = 'r' AND fence > %s", fence)
                    if held:
                        late.append(time.monotonic() - start)
                        connections.remove(found)
                time.sleep(0.01)
    last = max(late) if len(late) == RESTARTED else float("inf")
    # A grace of a second begins again when the server starts.
    shown = f"the last after {last:.2f} s (connected after {ready:.2f})"
    report.check(f"{RESTARTED} databases looked into after a restart", shown, "<= 3 s", last <= 3)
