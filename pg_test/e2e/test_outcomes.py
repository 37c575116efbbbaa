"""What remains of a session that a take-over or a close has ended, with the worker off: a place that the take-over
could not move, and a slot that stays frozen after COMMIT PREPARED."""

import psycopg
import pytest
from client import Session, call, rows
from psycopg.types.json import Jsonb


def prepared_takeover(connect, conn, former):
    """Takes over from a session in a transaction that is prepared and committed."""
    taking = connect(autocommit=False)
    heir = Session(taking, former.consumer, "1 h", takeover=True)
    taking.execute("PREPARE TRANSACTION 'taking over'")
    taking.commit()
    conn.execute("COMMIT PREPARED 'taking over'")
    heir.conn = conn
    return heir


@pytest.fixture(params=["lease", "permit"])
def left_place(connect, no_worker, request):
    """A free resource, and the place of a session that was taken over before that place was committed."""
    conn, queuing = connect(), connect(autocommit=False)
    if request.param == "permit":
        call(conn, "semaphore_create", "r", 1)
    holder, former, other = (Session(conn, name, "1 h") for name in ("holder", "former", "other"))
    holder.take("r")
    call(queuing, "lease_acquire", "r", former.id, True)
    heir = Session(conn, "former", "1 h", takeover=True)
    queuing.commit()
    assert holder.release("r")
    assert other.acquire("r").reason == "awaited", "it is behind the successor"
    return conn, heir, other


def test_a_place_that_was_left_is_its_successors(left_place):
    conn, heir, other = left_place
    assert heir.acquire("r").reason == "granted"
    assert heir.release("r")
    assert other.acquire("r").reason == "granted"


def test_a_wait_serves_the_successor(left_place):
    conn, heir, other = left_place
    heir.wait_for("r", limit=20)


def test_a_successor_gives_up_what_was_left(left_place):
    conn, heir, other = left_place
    assert call(conn, "lease_cancel", "r", heir.id)
    assert other.acquire("r").reason == "granted"


@pytest.mark.parametrize("act", ["cancels", "queues", "acquires", "releases", "waits"])
def test_a_successor_in_an_open_block_touches_no_other_left_place(connect, no_worker, act):
    """A take-over left the successor two places, for r and for s. What the successor does about s in a block that stays
    open is in the way of no session that needs r."""
    conn, queuing, block = connect(), connect(autocommit=False), connect(autocommit=False)
    holder, former, other = (Session(conn, name, "1 h") for name in ("holder", "former", "other"))
    for resource in ("r", "s"):
        holder.take(resource)
        call(queuing, "lease_acquire", resource, former.id, True)
    heir = Session(conn, "former", "1 h", takeover=True)
    queuing.commit()
    fence = heir.take("t")
    if act == "acquires":
        assert holder.release("s")
    if act == "cancels":
        assert call(block, "lease_cancel", "s", heir.id)
    elif act == "releases":
        assert call(block, "lease_release", "t", fence)
    elif act == "waits":
        revision = call(conn, "session_heartbeat", heir.id).revision
        assert call(block, "session_wait", heir.id, revision, "0").reason == "timeout"
    else:
        assert call(block, "lease_acquire", "s", heir.id, True).reason == {"queues": "queued", "acquires": "granted"}[act]
    assert holder.release("r")
    assert other.acquire("r").reason == "awaited", "it is behind the successor"
    assert heir.acquire("r").reason == "granted"
    assert heir.release("r") and other.acquire("r").reason == "granted"
    block.rollback()


@pytest.mark.parametrize("asks", [True, False])
def test_a_place_that_was_left_to_the_holder_of_a_permit_keeps_no_permit(connect, no_worker, asks):
    conn, queuing = connect(), connect(autocommit=False)
    call(conn, "semaphore_create", "r", 2)
    first, second, former, other = (Session(conn, name, "1 h") for name in ("first", "second", "former", "other"))
    first.take("r"), second.take("r")
    call(queuing, "lease_acquire", "r", former.id, True)
    heir = Session(conn, "former", "1 h", takeover=True)
    assert first.release("r")
    heir.take("r")
    queuing.commit()
    assert second.release("r")
    if asks:
        assert heir.acquire("r", queue=True).reason == "already_held"
    assert other.acquire("r").reason == "granted"


def test_a_place_whose_cancel_is_rolled_back_goes_with_the_lease(connect, no_worker):
    conn, cancelling = connect(), connect(autocommit=False)
    holder, former, other = (Session(conn, name, "1 h") for name in ("holder", "former", "other"))
    holder.take("r")
    former.queue("r")
    call(cancelling, "lease_cancel", "r", former.id)
    heir = Session(conn, "former", "1 h", takeover=True)
    assert holder.release("r")
    heir.take("r")
    cancelling.rollback()
    assert heir.release("r")
    assert other.acquire("r").reason == "granted"


def test_others_take_what_a_committed_end_has_left(connect, no_worker):
    conn, work = connect(), connect(autocommit=False)
    former, other = Session(conn, "former", "1 h"), Session(conn, "other", "1 h")
    call(conn, "group_create", "g", 2)
    other.join("g")
    former.join("g")
    call(work, "fence_check", "r", former.take("r"))
    heir = prepared_takeover(connect, conn, former)
    work.commit()
    heir.take("r")
    assert call(conn, "group_join", "g", Session(conn, "newcomer", "1 h").id)
    assert {row.state for row in heir.assignment("g") + other.assignment("g")} <= {"owned", "revoking"}


def test_work_of_a_session_that_has_ended_is_lost_and_not_in_flight(connect, no_worker):
    conn, work = connect(), connect(autocommit=False)
    former = Session(conn, "former", "1 h")
    call(conn, "queue_create", "q")
    call(conn, "item_add", "q", Jsonb(1))
    (item,) = rows(conn, "item_claim", "q", former.id)
    attempt = call(conn, "execution_begin", "k", former.id).fence
    call(work, "fence_check", "r", former.take("r"))
    prepared_takeover(connect, conn, former)
    work.commit()
    for verb, *arguments in (
        ("execution_finish", "k", attempt),
        ("item_done", [item.id], item.fence),
        ("fence_check", "r", former.fences["r"]),
    ):
        with pytest.raises(psycopg.Error) as lost:
            call(conn, verb, *arguments)
        assert lost.value.sqlstate == "LF001", verb
