"""pg_upgrade from 15 to 17 and from 18 to 19, by copies and by links: everything is there, and living sessions go on, as after a
restart."""

import shutil
import subprocess
import tempfile
import time
import warnings

import pytest
from conftest import MAJOR, ROOT, Server, wait_until
from estate import Estate

OLD = {"17": "15", "19": "18"}.get(MAJOR)
pytestmark = pytest.mark.skipif(OLD is None, reason="it is for these majors")
# 15.20 writes an option of its own to each column, which the installed 17 may be too old to know; 15.19 writes none.
WITHOUT_VERSIONS = "UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%'"


@pytest.fixture(scope="module")
def installed():
    """Installs the extension into the older server, which only this test of the major needs. It does not build while
    another run does, or replace a library as new as the sources, which another run may be using."""
    if not (ROOT / f"target/pg/{OLD}/.ready").exists():
        warnings.warn(f"there is no PostgreSQL {OLD} to upgrade: pg_test/setup {OLD} {MAJOR}", stacklevel=2)
        pytest.skip(f"no PostgreSQL {OLD}")
    script = """
        . pg_test/env "$0"
        library=$("$PG_CONFIG" --pkglibdir)/eskit_lease.so
        flock 9
        [ -e "$library" ] && [ -z "$(find src sql Cargo.toml Cargo.lock -newer "$library")" ] || install_extension "$0" 9>&-
    """
    done = subprocess.run(["bash", "-c", f"{{ {script} }} 9>>target/log/lock", OLD], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def pg_upgrade(old, new, *options):
    """Runs pg_upgrade on two stopped servers. It makes files in its working directory, and sockets, whose paths must be
    short."""
    here = tempfile.mkdtemp(prefix="eskit-")
    binaries = [f"{ROOT}/target/pg/{major}/bin" for major in (OLD, MAJOR)]
    command = ["pg_upgrade", "-U", "postgres", "-b", binaries[0], "-B", binaries[1], "-d", old.data, "-D", new.data,
               "-p", str(old.port), "-P", str(new.port), "-s", here, *options]  # fmt: skip
    as_server = '. "$0" "$1" && cd "$2" && as_server "${@:3}"'
    done = subprocess.run(["bash", "-c", as_server, ROOT / "pg_test/env", MAJOR, here, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(here)


def test_everything_goes_on(installed):
    """In the second case the old server is on a new timeline, on which no client has acquired anything again; the
    upgraded server begins at timeline 1."""
    old = Server("e2e-old", of=OLD)
    estate = Estate(old)
    with old.connect(options="-c allow_system_table_mods=on") as conn:
        conn.execute(WITHOUT_VERSIONS)
    old.stop()
    (old.data / "recovery.signal").touch()
    promoted = Server("e2e-old-promoted", "restore_command = 'false'", copy_of=old.data, of=OLD)
    (old.data / "recovery.signal").unlink()
    wait_until(lambda: promoted.query("SELECT pg_is_in_recovery()") == [(False,)])
    promoted.stop()
    for origin, mode in ((old, "--copy"), (promoted, "--link")):
        new = Server("e2e-upgraded")
        try:
            new.stop()
            pg_upgrade(origin, new, mode)
            since = time.monotonic()
            new.restart()
            estate.goes_on(new, since, timeline_is_new=False)
        finally:
            new.stop("immediate")
