"""What an administrator does to the table of leases while leases are granted and freed, by writes of single rows and by
statements."""

import psycopg
import pytest
from client import Session, rows
from conftest import wait_until

MANY = [f"many/{n}" for n in range(600)]  # more than are granted in one batch


def stands(conn, by):
    """Returns what the rows say, by a query that takes the index."""
    conn.execute("SET enable_seqscan = off")
    return conn.execute(f"SELECT count(*) FROM eskit_lease._leases WHERE {by}").fetchone()[0]


def each_way(conn):
    """Grants leases in every way: new, taken again, handed over, in bulk, and from the dead; and frees them. Checks
    that their fences rise."""
    first, second = Session(conn, "first", ttl="60 s"), Session(conn, "second", ttl="60 s")
    fences = [first.take("one")]
    second.queue("one")
    assert first.release("one")  # to the second
    assert second.holds("one")
    fences.append(second.fences["one"])
    assert second.release("one")
    fences.append(first.take("one"))
    granted = rows(conn, "lease_acquire_many", MANY, second.id)
    assert all(row.granted for row in granted)
    fences += [row.fence for row in granted]
    assert stands(conn, f"session = '{second.id}'") == len(MANY)
    assert all(row.released for row in rows(conn, "lease_release_many", MANY, second.id))
    assert stands(conn, f"session = '{second.id}'") == 0
    dead = Session(conn, "dead", ttl="1 s")
    fences.append(dead.take("of the dead"))
    wait_until(lambda: dead.expired(conn))
    fences.append(second.take("of the dead"))
    assert first.close() and second.close()
    assert stands(conn, "session IS NULL AND released_at IS NOT NULL") == len(MANY) + 2
    assert sorted(set(fences)) == fences


@pytest.mark.parametrize(
    "index", ["(fence)", "(released_at) INCLUDE (fence)", "((fence + 1)) WHERE NOT declared", "USING brin (granted_at)"]
)
def test_where_there_is_another_index(connect, index):
    conn = connect()
    conn.execute(f"CREATE INDEX extra ON eskit_lease._leases {index}")
    each_way(conn)


def test_where_there_is_a_trigger(connect):
    """The trigger sees every change, as rows are then written by statements."""
    conn = connect()
    conn.execute("""
        CREATE TABLE seen (what text);
        GRANT INSERT ON seen TO PUBLIC;
        CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES (TG_OP); RETURN NEW; END';
        CREATE TRIGGER see AFTER INSERT OR UPDATE ON eskit_lease._leases FOR EACH ROW EXECUTE FUNCTION see()""")
    each_way(conn)
    inserts, updates = (conn.execute("SELECT count(*) FROM seen WHERE what = %s", (what,)).fetchone()[0] for what in ("INSERT", "UPDATE"))
    # Each name is inserted once and freed in the end. Before that, one is handed over, freed and taken again, and one
    # is taken from the dead session, which may have been swept.
    assert inserts == len(MANY) + 2 and updates - inserts in (4, 5)


@pytest.mark.parametrize("index", ["_leases_seat", "_leases_session", "_leases_released_at"])
def test_while_an_index_is_made_again(connect, background, index):
    """REINDEX CONCURRENTLY works in several steps, and each step waits for transactions that began before."""
    conn, old, reindexing = connect(), connect(autocommit=False), connect()
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM pg_class")  # REINDEX waits for this snapshot, which keeps every version
    reindex = background(reindexing.execute, f"REINDEX INDEX CONCURRENTLY eskit_lease.{index}")
    wait_until(lambda: conn.execute("SELECT FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for%'").rowcount == 1)
    session = Session(conn, "holder", ttl="60 s")
    for n in range(50):
        session.take(f"r/{n % 5}")
        assert session.release(f"r/{n % 5}")
    session.take("r/0")
    old.rollback()
    reindex.result()
    assert session.acquire("r/0").reason == "already_held"
    assert stands(conn, f"session = '{session.id}'") == 1
    assert stands(conn, "session IS NULL AND released_at > now() - interval '1 h'") == 4
    assert stands(conn, "resource >= 'r/' AND resource < 'r0'") == 5
    conn.execute(f"REINDEX INDEX eskit_lease.{index}")  # fails if a row exists twice


@pytest.mark.parametrize("then", ["", "ALTER TABLE eskit_lease._leases DROP COLUMN note"])
def test_where_there_is_another_column(connect, then):
    """With a further column, or a dropped one, which leaves a gap, rows are written by statements, and none is
    missed."""
    conn = connect()
    conn.execute("ALTER TABLE eskit_lease._leases ADD COLUMN note text NOT NULL DEFAULT 'none'")
    conn.execute(then)
    holder, other = Session(conn, "holder", ttl="60 s"), Session(conn, "other", ttl="60 s")
    holder.take("r")
    assert other.acquire("r").reason == "held"
    each_way(conn)


@pytest.mark.parametrize("index", ["(adm.known(resource))", "(fence) WHERE adm.known(resource) <> ''"])
def test_what_an_index_computes_is_the_owners(server, connect, db, index):
    """The caller may have fewer rights than the index's owner, or more, or objects of its own in its search path."""
    conn, caller = connect(), connect()
    role = f"caller_of_{db}"
    conn.execute(f"""
        CREATE ROLE {role};
        SELECT eskit_lease.grant_consumer('{role}');
        CREATE SCHEMA adm;
        CREATE FUNCTION adm.known(name text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
            RAISE NOTICE '% by %', current_user, current_setting('search_path'); RETURN name; END$$;
        REVOKE ALL ON FUNCTION adm.known(text) FROM PUBLIC;
        CREATE INDEX computed ON eskit_lease._leases {index}""")
    seen = []
    caller.add_notice_handler(lambda notice: seen.append(notice.message_primary))
    try:
        for who in (role, "postgres"):
            caller.execute(f"SET ROLE {who}; SET search_path = public")
            session = Session(caller, "caller", ttl="60 s")
            for _ in range(3):
                session.take("r")
                assert session.release("r")
            assert session.close()
            assert caller.execute("SELECT current_user, current_setting('search_path')").fetchone() == (who, "public")
        assert set(seen) == {"postgres by pg_catalog, pg_temp"} and len(seen) >= 12
    finally:
        caller.close()
        server.query(f"DROP OWNED BY {role}", dbname=db)
        server.query(f"DROP ROLE {role}")


def test_freeing_many_is_cancelled_in_the_middle(connect, background):
    """The cancel comes while the release works, and does not wait for another process."""
    conn, watcher = connect(), connect()
    names = [f"freed/{n}" for n in range(20_000)]
    session = Session(conn, "holder", ttl="600 s")

    def log_written():
        return watcher.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()[0]

    def take():
        assert all(row.granted for row in rows(conn, "lease_acquire_many", names, session.id))
        return log_written()

    before = take()
    rows(conn, "lease_release_many", names, session.id)
    whole = log_written() - before
    before = take()
    releasing = background(rows, conn, "lease_release_many", names, session.id)
    wait_until(lambda: log_written() > before + whole / 3)  # all rows are locked, which takes less WAL than that, and some are free
    watcher.execute("SELECT pg_cancel_backend(%s)", (conn.info.backend_pid,))
    assert isinstance(releasing.exception(), psycopg.errors.QueryCanceled)
    assert log_written() < before + whole * 0.9
    assert stands(conn, f"session = '{session.id}'") == len(names)
