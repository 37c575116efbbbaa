"""SQLsmith: random statements over all our functions, views and types, by a role that may call everything. No crash, no
internal error."""

import os
import subprocess

from client import Session, call, stat
from conftest import Server, once, wait_until
from test_extremes import require_sound

pytestmark = once

QUERIES = os.environ.get("SMITH_QUERIES", "1500")
SEED = os.environ.get("SOAK_SEED", "1")

# SQLsmith reads functions from pg_proc, by the unqualified name, so it finds this table first. It has our functions and
# a few that produce their arguments. Otherwise only one call in sixty would be to a function of ours.
SMITH = """
    CREATE SCHEMA smith;
    CREATE TABLE smith.pg_proc AS
    SELECT p.oid, p.pronamespace, p.proname, p.prorettype, p.proretset, p.prokind, p.proargtypes
    FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = 'eskit_lease'::regnamespace
       OR p.pronamespace = 'pg_catalog'::regnamespace
          AND p.proname IN ('gen_random_uuid', 'now', 'md5', 'make_interval', 'int4', 'int8', 'random', 'count');
    GRANT USAGE ON SCHEMA smith TO PUBLIC;
    GRANT SELECT ON smith.pg_proc TO PUBLIC;
    CREATE TABLE samples (u uuid, n bigint, i integer, t text, v interval, w timestamptz, j jsonb, b boolean, c regclass, ts text[], ns bigint[], js jsonb[]);
    INSERT INTO samples VALUES
        (gen_random_uuid(), 1, 0, 'r', '1 s', now(), '1', true, 'samples', '{r,q}', '{1}', '{1}'),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        ('00000000-0000-0000-0000-000000000000', 9223372036854775807, 2147483647, '', '178000000 years', 'infinity', 'null', false, 0, '{}', '{}', '{}'),
        ('ffffffff-ffff-ffff-ffff-ffffffffffff', -9223372036854775808, -2147483648, repeat('x', 300), '-1 s', '-infinity', '{"a": [1e1000]}', NULL,
         4294967295, '{NULL,g}', '{NULL}', '{NULL}');
"""


def test_random_statements():
    server = Server(
        "e2e-smith", "eskit_lease.max_wait = '10ms'", "lock_timeout = '200ms'", "statement_timeout = '1s'", "log_error_verbosity = verbose",
        "log_line_prefix = '%m [%p] %e '",
    )  # fmt: skip
    with server.connect() as conn:
        conn.execute("CREATE EXTENSION eskit_lease")
        conn.execute(SMITH)
        conn.execute("CREATE ROLE smith LOGIN")
        call(conn, "grant_monitor", "smith")
        conn.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA eskit_lease TO smith")
        conn.execute("GRANT ALL ON samples TO smith")
        conn.execute("ALTER ROLE smith SET search_path = smith, public, pg_catalog")
        with server.connect(user="smith") as smith:
            session = Session(smith, "smith", ttl="1 hour")
            fence = session.take("r")
            call(smith, "queue_create", "q")
            conn.execute("UPDATE samples SET u = %s, n = %s WHERE t = 'r'", (session.id, fence))
        target = f"host={server.host} port={server.port} user=smith dbname=postgres"
        done = subprocess.run(
            ["sqlsmith", f"--target={target}", "--exclude-catalog", f"--seed={SEED}", f"--max-queries={QUERIES}", "--dump-all-queries", "--verbose"],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        called = sum(line.count("eskit_lease.") for line in done.stdout.splitlines())
        print(f"seed {SEED}: {QUERIES} statements, {called} mentions of ours; {done.stderr[-400:]}")
        assert called > int(QUERIES) / 10, done.stderr[-2000:]
        require_sound(server)
        wait_until(lambda: stat(conn, "calls_waiting") == 0)
        assert not conn.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone()
    server.stop()
