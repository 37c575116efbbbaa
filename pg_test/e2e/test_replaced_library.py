"""The library's file is replaced while the server runs. The old library is this source under a lower version, with
another layout of shared memory."""

import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from catalogs import differences, facts
from client import Session, call, rows
from conftest import MAJOR, ROOT, Server, once, wait_until

pytestmark = once
UPDATE = "ALTER EXTENSION eskit_lease UPDATE"
VARIANT = """
    rm -rf target/variant
    mkdir -p target/variant/debug target/variant/source
    cp -r Cargo.toml Cargo.lock src sql pg_test bench target/variant/source/
    cp -a target/debug/.fingerprint target/variant/debug/
    flock target/log/lock cp -al target/debug/{build,deps} target/variant/debug/
    rm -f target/variant/debug/deps/*eskit_lease*
    cd target/variant/source
    sed -i 's/^version = .*/version = "0.1.9"/' Cargo.toml
    sed -i 's/^    pub boot_id: AtomicI64,/    pub earlier: [AtomicI64; 3],\\n&/' src/shmem/parts.rs
    cargo build --target-dir .. --no-default-features --features "pg$PG_MAJOR"
"""


@pytest.fixture(scope="module")
def variant():
    """Builds the old library, and returns its file."""
    done = subprocess.run(["bash", "-ec", VARIANT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ROOT / "target/variant/debug/libeskit_lease.so"


class Replaceable:
    """A copy of the server with the old library."""

    def __init__(self, variant, name):
        self.home = f"{MAJOR}-{name}"
        subprocess.run(["bash", "-c", f'. pg_test/env {MAJOR} && copy_server "$0"', self.home], cwd=ROOT, check=True)
        tool = ROOT / f"target/pg/{self.home}/bin/pg_config"
        self.directory = Path(subprocess.run([tool, "--pkglibdir"], capture_output=True, text=True, check=True).stdout.strip())
        self.library = self.directory / "eskit_lease.so"
        self.current = self.library.read_bytes()
        self._put(variant.read_bytes())

    def _put(self, library):
        new = self.library.with_suffix(".new")
        new.write_bytes(library)
        shutil.copymode(self.library, new)
        os.replace(new, self.library)

    def replace(self):
        """Replaces the library as package managers and packaging/install do: by a new file of the same name."""
        self._put(self.current)


def libraries(conn):
    """Returns our files that the process of a connection has loaded, and whether they have been replaced."""
    maps = Path(f"/proc/{conn.info.backend_pid}/maps").read_text()
    return sorted({line.split(maxsplit=5)[5] for line in maps.splitlines() if "eskit_lease" in line})


@pytest.fixture
def start():
    started = []

    def start(files, *lines):
        started.append(Server("e2e", *lines, of=files.home))
        started[-1].query("CREATE EXTENSION eskit_lease VERSION '0.1.0'")
        return started[-1]

    yield start
    for server in started:
        server.stop("immediate")
        shutil.rmtree(ROOT / "target/pg" / server.home)


def test_the_running_library_goes_on_and_is_not_updated_for(variant, start):
    files = Replaceable(variant, "replaced")
    server = start(files)
    with server.connect() as old:
        holder = Session(old, "holder", ttl="60 s")
        fence = holder.take("r")
        files.replace()
        (worker,) = server.workers() or [None]
        with server.connect() as new:
            assert libraries(new) == [f"{files.library} (deleted)"]
            waiter = Session(new, "waiter", ttl="60 s").queue("r")
            if worker:
                assert server.query("SELECT pg_terminate_backend(%s)", worker) is not None
            holder.release("r")
            waiter.wait_for("r")
            assert waiter.fences["r"] > fence
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is of version 0.1.9, before") as refused:
                new.execute(UPDATE)
            assert "Restart the server" in refused.value.diag.message_hint
            assert new.execute("SELECT extversion FROM pg_extension WHERE extname = 'eskit_lease'").fetchone() == ("0.1.0",)
            assert waiter.renew("r").held
    server.restart()
    server.query("CREATE DATABASE fresh")
    server.query("CREATE EXTENSION eskit_lease", dbname="fresh")
    with server.connect() as new, server.connect("fresh") as fresh:
        assert libraries(new) == [str(files.library)]
        waiter.conn = new
        assert waiter.renew("r").held
        new.execute(UPDATE)
        assert waiter.renew("r").held
        assert not differences(facts(fresh), facts(new))


def test_a_second_library_beside_the_running_one_is_refused(variant, start):
    """The server loads the library by a symbolic link, and the functions by its own path. Functions that a connection
    has called before go on."""
    files = Replaceable(variant, "linked")
    link = files.directory.with_name("linked")
    link.symlink_to(files.directory)
    server = start(files, f"shared_preload_libraries = '{link}/eskit_lease'")
    with server.connect() as old:
        holder, waiter = Session(old, "holder", ttl="60 s"), Session(old, "waiter", ttl="60 s")
        for called in range(2):
            fence = holder.take("r")
            assert holder.renew("r").held and waiter.queue("r").wait("0 s").alive
            if not called:
                holder.release("r")
                waiter.wait_for("r")
                waiter.release("r")
        files.replace()
        with server.connect() as new:
            assert new.execute("SELECT eskit_lease.group_lock_key('default')").fetchone() == (4010717984327297149,)
            assert libraries(new) == sorted([f"{files.library} (deleted)", str(files.library)])
            for function, *args in (
                ("session_open", "a"), ("session_heartbeat", holder.id), ("lease_acquire", "r", holder.id), ("lease_renew", "r", fence),
                ("fence_check", "r", fence), ("session_close", holder.id), ("stats",), ("position_raise", 1), ("session_sweep",),
            ):  # fmt: skip
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="another build of eskit_lease") as refused:
                    rows(new, function, *args)
                assert refused.value.diag.message_hint == "Restart the server."
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="another build of eskit_lease"):
            call(old, "lease_cancel", "r", waiter.id)
        assert holder.renew("r").held
        # The launcher, and database workers that start now, run the code of the old library.
        wait_until(lambda: not server.workers())
        old.execute("LISTEN eskit_lease")
        holder.release("r")
        waiter.wait_for("r")
        assert waiter.fences["r"] > fence
        assert next(old.notifies(timeout=60))
    server.restart()
    with server.connect() as new:
        waiter.conn = new
        assert waiter.renew("r").held
        new.execute(UPDATE)
        assert call(new, "lease_release", "r", waiter.fences["r"])
