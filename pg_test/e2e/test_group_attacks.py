"""What a hostile reader found in groups: second owners, lost wake-ups, a worker that was blocked or that spun."""

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import Server, wait_until
from crossing import opened, prepare, waits, worker_passes, worker_serves_others

PATIENT = {"options": "-c lock_timeout=20s"}  # a call that must not wait fails by itself


@pytest.fixture(scope="module")
def narrow():
    """A server with a dirty ring that a few groups fill."""
    server = Server("e2e-group-attacks", "eskit_lease.ring_size = 16")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def group(conn, partitions=4, name="g", **settings):
    settings = "".join(f", {key} => '{value}'" for key, value in settings.items())
    conn.execute(f"SELECT eskit_lease.group_create('{name}', {partitions}{settings})")


def partitions(conn, name="g"):
    return conn.execute("SELECT partitions FROM eskit_lease.groups WHERE group_name = %s", (name,)).fetchone()[0]


def release_revoked(session, name="g"):
    """Releases all revoked partitions, once there are any."""
    revoked = wait_until(lambda: [row for row in session.assignment(name) if row.state == "revoking"])
    for row in revoked:
        assert call(session.conn, "group_release", name, row.partition, row.fence)


def resize_meets_a_grant(connect, background, asks):
    """A resize is stopped halfway, and a member that is the target of all partitions asks for them meanwhile."""
    conn, altering, closing = connect(), connect(autocommit=False), connect(autocommit=False)
    group(conn)
    member = Session(connect(), "member", "60 s")
    call(altering, "group_alter", "g", None, "9 s")
    member.join("g")
    assert call(closing, "session_close", member.id)  # no session can grant to the member until this is rolled back
    altering.rollback()
    call(conn, "group_alter", "g", None, "9 s")
    targeted = "SELECT count(*) FROM eskit_lease.group_partitions WHERE target = 'member' AND state = 'free'"
    wait_until(lambda: conn.execute(targeted).fetchone() == (4,))
    blocking, resizing = connect(autocommit=False), connect()
    cursor = "INSERT INTO eskit_lease._cursors (group_name, partition, position, fence, committed_at) VALUES ('g', 0, 1, 1, now())"
    conn.execute(cursor)
    blocking.execute("SELECT FROM eskit_lease._cursors FOR UPDATE")
    resize = background(call, resizing, "group_resize", "g", 8)
    wait_until(lambda: waits(conn, resizing))
    closing.rollback()
    asks(conn, member)
    assert member.owns(conn, "g") == 0
    blocking.rollback()
    assert resize.result()
    wait_until(lambda: asks(conn, member) or member.owns(conn, "g") == 8)
    assert partitions(conn) == 8


def test_a_resize_and_a_grant_of_the_worker(connect, background):
    resize_meets_a_grant(connect, background, lambda conn, member: worker_passes(conn))


def test_a_resize_and_a_grant_of_a_member(connect, background, no_worker):
    def asks(conn, member):
        member.assignment("g")

    resize_meets_a_grant(connect, background, asks)


def test_an_open_report_of_a_head_blocks_nobody(connect):
    conn, reporting = connect(**PATIENT), connect(autocommit=False)
    group(conn, 2)
    member = Session(conn, ttl="60 s").join("g")
    call(conn, "cursor_report_head", "g", 0, 1)
    for partition in (0, 1):
        assert call(reporting, "cursor_report_head", "g", partition, 2)
    assert [call(conn, "cursor_report_head", "g", partition, 3) for partition in (0, 1)] == [False, False]
    assert call(conn, "group_resize", "g", 4, True) is False
    release_revoked(member)
    wait_until(lambda: partitions(conn) == 4)
    worker_serves_others(connect)
    wait_until(lambda: len(member.assignment("g")) == 4)


def test_an_open_report_of_a_head_blocks_nobody_without_the_worker(connect, no_worker):
    conn, reporting = connect(**PATIENT), connect(autocommit=False)
    group(conn, 2)
    member = Session(conn, ttl="60 s").join("g")
    call(conn, "cursor_report_head", "g", 0, 1)
    assert call(reporting, "cursor_report_head", "g", 0, 2)
    assert call(conn, "group_resize", "g", 4, True) is False
    release_revoked(member)
    wait_until(lambda: len(member.assignment("g")) == 4)


def test_thousands_of_overdue_partitions_all_move(connect):
    conn, rival = connect(), connect()
    group(conn, 3_000, rebalance_timeout="1 s")
    member = Session(conn, "member", "60 s").join("g")
    wait_until(lambda: member.owns(conn, "g") == 3_000)
    other = Session(rival, "other", "60 s").join("g")
    wait_until(lambda: other.owns(conn, "g") > 0)
    worker_serves_others(connect)
    wait_until(lambda: other.owns(conn, "g") == member.owns(conn, "g") == 1_500)


def test_a_member_in_transactions_without_a_worker():
    """The launcher takes the only background worker slot, so a transaction block does the work itself."""
    server = Server("e2e-no-worker", "max_worker_processes = 1", "max_logical_replication_workers = 0")
    try:
        server.query("CREATE EXTENSION eskit_lease")
        conn = server.connect()
        group(conn)
        member = opened(server.connect(), "member", "60 s")
        member.conn.autocommit = False
        member.join("g")
        member.conn.commit()

        def owned():
            found = member.assignment("g")
            member.conn.commit()
            return len(found) == 4

        wait_until(owned, timeout=30, pause=0.1)
        assert not server.workers()
    finally:
        server.stop()


def test_a_join_does_not_wait_for_the_same_join(connect):
    conn, joining = connect(**PATIENT), connect(autocommit=False)
    group(conn)
    member = Session(conn, ttl="60 s")
    call(joining, "group_join", "g", member.id)
    with pytest.raises(psycopg.errors.LockNotAvailable, match="membership"):
        member.join("g")
    prepare(joining, "joining")
    with pytest.raises(psycopg.errors.LockNotAvailable, match="membership"):
        member.join("g")
    conn.execute("COMMIT PREPARED 'joining'")
    wait_until(lambda: member.owns(conn, "g") == 4)


def test_a_drop_and_a_join_are_not_both_done(connect):
    conn, other = connect(**PATIENT), connect(autocommit=False)
    group(conn)
    member = Session(conn, ttl="60 s")
    call(other, "group_join", "g", member.id)
    with pytest.raises(psycopg.errors.LockNotAvailable, match="being"):
        call(conn, "group_drop", "g")
    other.rollback()
    call(other, "group_drop", "g")
    with pytest.raises(psycopg.errors.LockNotAvailable, match="being"):
        member.join("g")
    other.commit()
    with pytest.raises(psycopg.errors.UndefinedObject):
        member.join("g")


def test_two_predecessors_in_one_group_leave_a_fair_share(connect):
    conn = connect()
    group(conn, 12, rebalance_timeout="0 s")
    for consumer in ("a", "a", "b"):
        Session(conn, consumer, "60 s").join("g")
    shares = "SELECT array_agg(partitions ORDER BY consumer) FROM eskit_lease.group_members"
    wait_until(lambda: conn.execute(shares).fetchone()[0] == [4, 4, 4])
    Session(connect(), "a", "60 s", takeover=True)
    wait_until(lambda: conn.execute(shares).fetchone()[0] == [6, 6])


def worker_spins(conn, session, heartbeats=4_000):
    """Returns whether the worker made more passes during so many statements than its backoff allows."""
    before = stat(conn, "sweeps")
    for _ in range(heartbeats):
        session.heartbeat()
    passes = stat(conn, "sweeps") - before
    print(f"{passes} passes during {heartbeats} heartbeats")
    return passes > heartbeats / 80


def test_the_worker_does_not_spin_for_what_is_fenced(connect):
    conn, work = connect(), connect(autocommit=False)
    group(conn, rebalance_timeout="0 s")
    member = Session(conn, "member", "60 s").join("g")
    for row in member.assignment("g"):
        call(work, "fence_check", "g", row.fence)
    Session(conn, "other", "60 s").join("g")
    wait_until(lambda: any(row.state == "revoking" for row in member.assignment("g")))
    assert not worker_spins(conn, member)
    work.commit()
    wait_until(lambda: member.owns(conn, "g") == 2)
    assert not worker_spins(conn, member)


def test_the_worker_does_not_spin_for_a_group_that_is_held(connect):
    conn, altering = connect(), connect(autocommit=False)
    group(conn)
    member = Session(conn, "member", "60 s").join("g")
    call(altering, "group_alter", "g", None, "9 s")
    prepare(altering, "altering")
    Session(conn, "other", "60 s").join("g")
    assert not worker_spins(conn, member)
    conn.execute("ROLLBACK PREPARED 'altering'")
    release_revoked(member)


def test_the_worker_does_not_spin_for_more_revocations_than_the_ring_has_room_for(narrow):
    with narrow.connect() as conn:
        member, other = Session(conn, "member", "60 s"), Session(conn, "other", "60 s")
        for number in range(20):
            group(conn, 2, f"g{number}", rebalance_timeout="60 s")
            for session in (member, other):
                session.join(f"g{number}")
        revoking = "SELECT count(*) FROM eskit_lease.group_partitions WHERE state = 'revoking'"
        wait_until(lambda: conn.execute(revoking).fetchone() == (20,))
        assert not worker_spins(conn, member)


def test_ranges_go_by_the_names_alone(connect):
    """The separator between name and session sorts before all bytes that a name may have."""
    conn = connect()
    group(conn, 2, assignor="range", settle_delay="100 ms")
    for consumer in ("a-b", "a"):
        Session(conn, consumer, "60 s").join("g")
    owners = "SELECT array_agg(owner ORDER BY partition) FROM eskit_lease.group_partitions"
    wait_until(lambda: conn.execute(owners).fetchone()[0] == ["a", "a-b"])


@pytest.mark.parametrize("drains", [False, True])
def test_a_resize_takes_back_what_an_owner_does_not_release(connect, drains):
    """A draining member keeps its partitions in a rebalance, but not in a resize; the worker takes them without a
    call."""
    conn = connect()
    group(conn, 2, rebalance_timeout="2 s")
    member = Session(conn, ttl="60 s").join("g")
    wait_until(lambda: member.owns(conn, "g") == 2)
    if drains:
        assert call(conn, "session_drain", member.id)
    assert call(conn, "group_resize", "g", 4, True) is False
    asked = "SELECT count(*) FROM eskit_lease.group_partitions WHERE state = 'revoking' AND revoke_in IS NOT NULL"
    assert conn.execute(asked).fetchone() == (2,)
    wait_until(lambda: partitions(conn) == 4, timeout=30)
    assert member.heartbeat().alive
