"""A hostile user puts its own objects before PostgreSQL's in the search path: functions, operators, types and tables,
with a trap in each of them. None of our functions may run into one, for any caller: a trap runs with the rights of its
caller, and our statements run with the owner's."""

import psycopg
import pytest
from client import Session, call, rows
from conftest import ROOT, Server, once, wait_until
from psycopg.types.json import Jsonb

pytestmark = once

# Objects that a statement could find instead of those it means: the same operator or function for its argument types
# (also for types that PostgreSQL would convert first, such as integer / numeric), in a schema before pg_catalog.
OPERATORS = """
    SELECT DISTINCT o.oprname, l.type, r.type
    FROM pg_operator AS o, unnest(ARRAY['text', 'uuid', 'integer', 'bigint', 'numeric', 'oid', 'name', 'boolean', 'timestamptz', 'interval', 'float8',
                                        'bytea', 'text[]', 'uuid[]', 'bigint[]', 'int8range', 'int8multirange', 'jsonb', 'tid', 'bit']) AS l (type),
         LATERAL (SELECT l.type UNION SELECT unnest(ARRAY['text', 'integer', 'bigint', 'numeric', 'interval', 'tid[]', 'float8', 'name'])) AS r (type)
    WHERE o.oprname IN ('=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '%', '||', '&', '|', '<<', '@>', '->', '->>') AND l.type <> ''
"""
FUNCTIONS = """
    SELECT DISTINCT p.proname, pg_get_function_identity_arguments(p.oid), format_type(p.prorettype, NULL), p.proretset
    FROM pg_proc AS p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0 AND p.proallargtypes IS NULL
      AND p.proname IN ('nextval', 'setval', 'currval', 'clock_timestamp', 'statement_timestamp', 'now', 'unnest', 'coalesce', 'pg_has_role',
                        'pg_get_userbyid', 'pg_notify', 'set_config', 'current_setting', 'current_database', 'substr', 'substring', 'md5', 'format',
                        'gen_random_uuid', 'rtrim', 'decode', 'convert_from', 'getdatabaseencoding', 'position', 'make_interval', 'generate_series',
                        'upper', 'lower', 'int8range', 'int8multirange', 'replace', 'right', 'array_agg', 'aclexplode', 'date_part', 'extract',
                        'floor', 'age', 'pg_backend_pid', 'quote_literal', 'pg_advisory_lock', 'greatest', 'least', 'text', 'int8', 'int4', 'float8')
      AND NOT EXISTS (SELECT FROM unnest(p.proargtypes || p.prorettype) AS a (type) WHERE a.type IN (SELECT t.oid FROM pg_type AS t WHERE t.typtype = 'p'))
"""


def lay_traps(conn, schema):
    """Makes all traps in a schema of `mallory`. A trap that is called logs its caller and fails."""
    operators, functions = conn.execute(OPERATORS).fetchall(), conn.execute(FUNCTIONS).fetchall()
    conn.execute(f"CREATE SCHEMA {schema} AUTHORIZATION mallory")
    conn.execute(f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC")
    conn.execute("SET ROLE mallory")
    conn.execute("SET check_function_bodies = off")
    conn.execute(
        f"CREATE FUNCTION {schema}.trap() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'trapped as % for %', current_user, session_user; END$$"
    )
    with conn.transaction():
        for number, (operator, left, right) in enumerate(operators):
            result = "boolean" if operator[0] in "=<>@" else left
            conn.execute(
                f"CREATE FUNCTION {schema}.op_{number}({left}, {right}) RETURNS {result} LANGUAGE sql AS 'SELECT NULL::{result} WHERE {schema}.trap()'"
            )
            conn.execute(f"CREATE OPERATOR {schema}.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {schema}.op_{number})")
        for name, arguments, result, many in functions:
            returns = f"SETOF {result}" if many else result
            conn.execute(
                f'CREATE FUNCTION {schema}."{name}"({arguments}) RETURNS {returns} LANGUAGE sql AS '
                f"'SELECT NULL::{result} WHERE {schema}.trap()'"
            )
    for name in ("uuid", "text", "jsonb", "regclass", "timestamptz"):
        conn.execute(f"CREATE DOMAIN {schema}.{name} AS pg_catalog.int4 CHECK ({schema}.trap())")
    for name in ("_sessions", "_leases", "_waiters", "_items", "pg_extension", "pg_class", "pg_locks", "pg_namespace", "pg_proc", "pg_trigger"):
        conn.execute(f"CREATE TABLE {schema}.{name} (session pg_catalog.uuid, oid pg_catalog.oid)")
    conn.execute("RESET ROLE")
    return len(operators) + len(functions)


@pytest.fixture
def mallory(server):
    server.query("CREATE ROLE mallory LOGIN")
    yield "mallory"
    for (name,) in server.query("SELECT datname FROM pg_database WHERE datallowconn AND datname <> 'template1'"):
        server.query("DROP OWNED BY mallory CASCADE", dbname=name)
    server.query("DROP ROLE mallory")


def use_everything(conn, watcher, prefix):
    """Uses each concept once, by a caller that has the traps in its path."""
    session, other = Session(conn, f"{prefix} one", ttl="60 s"), Session(conn, f"{prefix} two", ttl="60 s")
    resource, group, queue, key = f"{prefix} r", f"{prefix} g", f"{prefix} q", f"{prefix} k"
    fence = session.take(resource)
    other.queue(resource)
    assert session.renew(resource).held and session.heartbeat().alive
    assert all(row.granted for row in rows(conn, "lease_acquire_many", [f"{prefix}-{i}" for i in range(3)], session.id))
    rows(conn, "lease_release_many", [f"{prefix}-0"], session.id)
    call(conn, "semaphore_create", f"{prefix} s", 2)
    call(conn, "semaphore_resize", f"{prefix} s", 3)
    assert session.acquire(f"{prefix} s").granted
    watcher.execute("INSERT INTO kept.leased VALUES (%s)", (prefix,))
    for to, *what in (("bridge_create", 7), ("bridge_create_row", "kept.leased", prefix, "owner", "until")):
        call(conn, to, f"{prefix} b", *what)
        session.queue(f"{prefix} b")
        bridged = wait_until(lambda: session.acquire(f"{prefix} b").fence)
        call(conn, "fence_check", f"{prefix} b", bridged)
        assert call(conn, "lease_release", f"{prefix} b", bridged) and call(conn, "bridge_drop", f"{prefix} b")
    assert call(conn, "lock_acquire", f"{prefix} l", "owner", "30 s").granted
    call(conn, "group_create", group, 2)
    call(conn, "group_alter", group, "range")
    call(conn, "group_join", group, session.id)
    part = wait_until(lambda: rows(conn, "group_assignment", group, session.id))[0]
    assert call(conn, "cursor_commit", group, part.partition, 3, part.fence)
    assert call(conn, "cursor_ack", group, part.partition, 5, part.fence) == 3
    call(conn, "cursor_report_head", group, part.partition, 9)
    call(conn, "cursor_position", group, part.partition)
    call(conn, "queue_create", queue, 3, "0 s", "key")
    call(conn, "queue_alter", queue, 4)
    ids = [call(conn, "item_add", queue, "1", "key"), *call(conn, "item_add_many", queue, [Jsonb(2), Jsonb(3)])]
    call(conn, "item_add", queue, "4", None, "2200-01-01")
    claimed = rows(conn, "item_claim", queue, session.id, 10)
    assert {item.id for item in claimed} == set(ids)
    call(conn, "item_done", [claimed[0].id], claimed[0].fence)
    call(conn, "item_fail", claimed[1].id, claimed[1].fence, "failed")
    call(conn, "item_unclaim", [claimed[2].id], claimed[2].fence)
    begun = call(conn, "execution_begin", key, session.id)
    assert call(conn, "execution_finish", key, begun.fence, "1")
    call(conn, "position_next"), call(conn, "position_horizon")
    with conn.transaction():
        session.check(resource)
    for (view,) in watcher.execute("SELECT viewname FROM pg_views WHERE schemaname = 'eskit_lease'"):
        conn.execute(f"TABLE eskit_lease.{view}").fetchall()
    conn.execute("SELECT * FROM eskit_lease.stats()").fetchall()
    assert session.release(resource)
    assert other.take(resource) > fence
    assert call(conn, "session_drain", other.id) and call(conn, "session_close", other.id)
    again = call(conn, "session_open", f"{prefix} one", "60 s", False, "0 s", True)
    assert call(conn, "session_close", again.session)


@pytest.mark.parametrize("who", ["mallory", "postgres"])
def test_nothing_of_ours_meets_an_object_of_the_users(server, connect, db, mallory, who):
    """The traps are in the search path of the role and of the database, so also of the worker; a superuser is the most
    worthwhile victim."""
    owner = connect()
    assert lay_traps(owner, "hostile") > 1000
    call(owner, "grant_consumer", mallory)
    owner.execute(f"GRANT EXECUTE ON FUNCTION eskit_lease.bridge_create, eskit_lease.bridge_create_row, eskit_lease.bridge_drop TO {mallory}")
    owner.execute(f"CREATE SCHEMA kept; GRANT USAGE ON SCHEMA kept TO {mallory}")
    owner.execute(f"CREATE TABLE kept.leased (key text PRIMARY KEY, owner text, until timestamptz); ALTER TABLE kept.leased OWNER TO {mallory}")
    call(owner, "grant_monitor", mallory)
    path = "hostile, pg_temp, eskit_lease, pg_catalog"
    server.query(f"ALTER ROLE mallory IN DATABASE {db} SET search_path = {path}")
    server.query(f"ALTER DATABASE {db} SET search_path = {path}")
    conn = connect(user=who)
    assert conn.execute("SHOW search_path").fetchone() == (path,)
    with pytest.raises(psycopg.errors.RaiseException, match="trapped as"):
        conn.execute("SELECT 1 + 1")  # the traps are set
    conn.execute("CREATE TEMP TABLE _sessions (session pg_catalog.uuid)")
    use_everything(conn, owner, who)
    # table_fence makes the triggers as the caller, with the caller's path.
    table = "hostile.fenced" if who == "mallory" else "public.fenced"
    conn.execute(f"CREATE TABLE {table} (i pg_catalog.int4)")
    call(conn, "table_fence", table, "r")
    with pytest.raises(psycopg.Error) as error:
        conn.execute(f"INSERT INTO {table} VALUES (1)")
    assert error.value.sqlstate == "LF002"
    call(conn, "table_unfence", table)
    assert not server.logged("trapped as postgres for mallory")


def test_the_worker_has_a_path_of_its_own(server, connect, db, mallory):
    lay_traps(connect(), "hostile")
    server.query(f"ALTER DATABASE {db} SET search_path = hostile, pg_catalog")
    plain = "-c search_path=pg_catalog"
    holder, waiter = Session(connect(options=plain), ttl="1 s"), Session(connect(options=plain), ttl="60 s")
    holder.take("r")
    waiter.queue("r")
    wait_until(lambda: waiter.holds("r"))


def test_what_create_extension_makes_refers_to_nothing_else(server, mallory):
    """A superuser with the traps in its path creates the extension in a database where a hostile user may create
    objects beforehand."""
    server.query("CREATE DATABASE trapped")
    server.query("GRANT CREATE ON DATABASE trapped TO mallory")
    try:
        with server.connect("trapped") as conn:
            lay_traps(conn, "hostile")
            conn.execute("GRANT CREATE ON SCHEMA public TO mallory")
        server.query("ALTER DATABASE trapped SET search_path = hostile, public, pg_temp, pg_catalog")
        with server.connect("trapped") as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            conn.execute("SET search_path = pg_catalog")
            foreign = conn.execute(
                """
                SELECT pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0)
                FROM pg_depend AS d
                JOIN pg_namespace AS n ON n.nspname = 'hostile'
                WHERE d.refobjid IN (SELECT oid FROM pg_proc WHERE pronamespace = n.oid UNION SELECT oid FROM pg_operator WHERE oprnamespace = n.oid
                                     UNION SELECT oid FROM pg_type WHERE typnamespace = n.oid UNION SELECT oid FROM pg_class WHERE relnamespace = n.oid)
                  AND pg_describe_object(d.classid, d.objid, 0) LIKE '%eskit_lease%'
                """
            ).fetchall()
            assert foreign == []
    finally:
        server.query("DROP DATABASE trapped WITH (FORCE)")


def test_a_schema_that_was_there_before(server, mallory):
    """The owner of such a schema gains nothing: CREATE EXTENSION refuses it with all its objects, and once it is gone
    the new schema has none of them."""
    server.query("CREATE DATABASE squatted")
    server.query("GRANT CREATE ON DATABASE squatted TO mallory")
    try:
        with server.connect("squatted", user="mallory") as conn, server.connect("squatted") as admin:
            conn.execute("CREATE SCHEMA eskit_lease")
            conn.execute("CREATE FUNCTION eskit_lease._standing(uuid, bigint, integer) RETURNS text LANGUAGE sql AS 'SELECT 1::text'")
            conn.execute("CREATE TABLE eskit_lease._sessions (session uuid)")
            conn.execute("CREATE TYPE eskit_lease.session_state AS (alive boolean)")
            conn.execute("CREATE FUNCTION eskit_lease.session_heartbeat(uuid) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
            for create in ("CREATE EXTENSION eskit_lease", "CREATE EXTENSION IF NOT EXISTS eskit_lease", "CREATE EXTENSION eskit_lease CASCADE"):
                with pytest.raises(psycopg.errors.DuplicateSchema):
                    admin.execute(create)
            for schema in ("eskit_lease", "public"):
                with pytest.raises(psycopg.errors.FeatureNotSupported):
                    admin.execute(f"CREATE EXTENSION eskit_lease SCHEMA {schema}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("CREATE EXTENSION eskit_lease")
            assert admin.execute("SELECT count(*) FROM pg_extension WHERE extname = 'eskit_lease'").fetchone() == (0,)
            conn.execute("ALTER SCHEMA eskit_lease RENAME TO mine")
            admin.execute("CREATE EXTENSION eskit_lease")
            for take in (
                "ALTER SCHEMA mine RENAME TO eskit_lease", "ALTER SCHEMA eskit_lease RENAME TO yours", "DROP SCHEMA eskit_lease CASCADE",
                "CREATE TABLE eskit_lease.t ()", "ALTER TABLE mine._sessions SET SCHEMA eskit_lease", "DROP EXTENSION eskit_lease",
                "ALTER EXTENSION eskit_lease DROP FUNCTION eskit_lease.stats()", "ALTER SCHEMA eskit_lease OWNER TO mallory",
            ):  # fmt: skip
                with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.DuplicateSchema)):
                    conn.execute(take)
            others = admin.execute(
                "SELECT count(*) FROM pg_class WHERE relnamespace = 'eskit_lease'::regnamespace AND relowner = 'mallory'::regrole"
            )
            assert others.fetchone() == (0,)
    finally:
        server.query("DROP DATABASE squatted WITH (FORCE)")


@pytest.fixture
def trusting():
    """A server of its own, as the hostile role tries to bring all of it down."""
    server = Server("e2e-trusting")
    server.query("CREATE ROLE mallory LOGIN")
    server.query("GRANT CREATE ON DATABASE postgres TO mallory")
    yield server
    server.stop()


def squat(conn):
    """Makes a schema with the extension's name, and a table with the name of one of its tables but other types."""
    conn.execute("CREATE SCHEMA eskit_lease")
    conn.execute("CREATE TABLE eskit_lease._sessions (session bigint PRIMARY KEY)")
    conn.execute("INSERT INTO eskit_lease._sessions VALUES (1)")


def forge(conn):
    """Makes the extension's tables as its script does, with rows that would make the worker lease a row of a
    superuser's table to mallory."""
    script = (ROOT / "sql/schema.sql").read_text().splitlines()
    conn.execute("\n".join(line for line in script if "pg_extension_config_dump" not in line))
    session = "11111111-1111-4111-8111-111111111111"
    conn.execute(f"""
        INSERT INTO eskit_lease._sessions
        SELECT '{session}', 'x', oid, 3600000, 1, now(), false, false FROM pg_roles WHERE rolname = 'mallory';
        INSERT INTO eskit_lease._declarations VALUES ('job', 'bridge', 1, 'mallory');
        INSERT INTO eskit_lease._bridges VALUES ('job', NULL, 'public.jobs'::regclass, 'orders', 'owner', 'leased_until', NULL);
        INSERT INTO eskit_lease._waiters (resource, session, queued_at) VALUES ('job', '{session}', now())""")


@pytest.mark.parametrize("make", [squat, forge])
def test_the_worker_believes_no_schema_by_its_name(trusting, make):
    """The schema's database lacks the extension. The worker is a superuser, and visits all databases after a restart."""
    trusting.query("CREATE TABLE public.jobs (topic text PRIMARY KEY, owner text, leased_until timestamptz)")
    trusting.query("INSERT INTO public.jobs VALUES ('orders', 'alice', '2000-01-01')")
    trusting.query("CREATE DATABASE other")
    trusting.query("CREATE EXTENSION eskit_lease", dbname="other")
    with trusting.connect(user="mallory") as conn:
        make(conn)
    trusting.restart()
    with trusting.connect("other") as conn:
        # Workers of databases start in turn: once these hand-overs are done, the schema's database has had a worker.
        for number in range(3):
            holder, waiter = Session(conn, "holder", ttl="1 s"), Session(conn, "waiter", ttl="60 s")
            holder.take(f"r{number}")
            waiter.queue(f"r{number}")
            wait_until(lambda waiter=waiter, number=number: waiter.holds(f"r{number}"))
    assert not trusting.logged("was terminated by signal")
    assert trusting.query("SELECT owner FROM public.jobs") == [("alice",)]


def test_a_schema_that_has_been_renamed(trusting):
    """Calls fail, and another schema of its name is not trusted, until the schema has its name back."""
    trusting.query("CREATE EXTENSION eskit_lease")
    trusting.query("SELECT eskit_lease.grant_consumer('mallory')")
    with trusting.connect() as conn, trusting.connect(user="mallory") as hostile:
        session = Session(conn, "there", ttl="60 s")
        session.take("r")
        own = Session(hostile, "mallory's", ttl="60 s")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            conn.execute("ALTER EXTENSION eskit_lease SET SCHEMA public")
        conn.execute("ALTER SCHEMA eskit_lease RENAME TO lease")
        squat(hostile)
        for caller in (conn, hostile):
            for what in ("session_open('x')", f"session_heartbeat('{own.id}')", f"lease_acquire('r', '{own.id}')", "session_sweep()"):
                if caller is hostile and what == "session_sweep()":
                    continue
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="has been renamed"):
                    caller.execute(f"SELECT lease.{what}")
        hostile.execute("DROP SCHEMA eskit_lease CASCADE")
        conn.execute("ALTER SCHEMA lease RENAME TO eskit_lease")
        assert session.renew("r").held and own.take("free")
    assert not trusting.logged("was terminated by signal")


@pytest.mark.parametrize("former", [False, True], ids=["new", "updated"])
def test_default_privileges_give_nothing_away(server, mallory, former):
    """Default privileges of a database may grant an application all that its owner creates. Objects of an older version
    keep their privileges."""
    server.query("CREATE DATABASE generous")
    try:
        with server.connect("generous") as admin:
            create = "CREATE EXTENSION eskit_lease"
            if former:
                admin.execute(f"{create} VERSION '0.1.0'")
                create = "ALTER EXTENSION eskit_lease UPDATE"
            for kind in ("TABLES", "SEQUENCES", "FUNCTIONS", "TYPES", "SCHEMAS"):
                admin.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO mallory")
            admin.execute(create)
            given = admin.execute("""
                SELECT c.relname FROM pg_class AS c, aclexplode(c.relacl) AS a
                WHERE c.relnamespace = 'eskit_lease'::regnamespace AND a.grantee = 'mallory'::regrole
                UNION ALL
                SELECT p.proname FROM pg_proc AS p, aclexplode(p.proacl) AS a
                WHERE p.pronamespace = 'eskit_lease'::regnamespace AND a.grantee = 'mallory'::regrole""")
            assert given.fetchall() == []
        with server.connect("generous", user="mallory") as conn:
            for wrong in ("SELECT FROM eskit_lease._sessions", "UPDATE eskit_lease._leases SET session = NULL", "CREATE TABLE eskit_lease.t ()"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(wrong)
    finally:
        server.query("DROP DATABASE generous WITH (FORCE)")


def test_a_publication_of_all_tables(connect):
    """The publication breaks none of our deletes, as each of our tables has a replica identity."""
    conn = connect()
    conn.execute("SET client_min_messages = error; CREATE PUBLICATION everything FOR ALL TABLES")
    dead, heir = Session(conn, "dead", ttl="1 s"), Session(conn, "heir", ttl="1 h")
    dead.take("r")
    heir.queue("r")
    wait_until(lambda: heir.holds("r"))
    wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._sessions").fetchone() == (1,))
    assert heir.close()
