"""The layer of `make oci`, found by a server's search paths, as CloudNativePG mounts it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from client import Session, call
from conftest import MAJOR, ROOT, Server, wait_until

pytestmark = pytest.mark.skipif(int(MAJOR) < 18, reason="extension_control_path is new in 18")
BARE = f"{MAJOR}-bare"
ARCHITECTURES = {62: "amd64", 183: "arm64"}
# A copy of the server without the extension. No other run builds meanwhile (pg_test/run).
BUILD = """
    . pg_test/env "$0" && copy_server "$1" &&
    rm -f "$(extension_dir "$1")"/eskit_lease* "$("$ROOT/target/pg/$1/bin/pg_config" --pkglibdir)/eskit_lease.so" &&
    flock 9 && packaging/oci/build "$0" dev 9>&-
"""


@pytest.fixture(scope="module")
def bare():
    done = subprocess.run(["bash", "-c", f"{{ {BUILD} }} 9>>target/log/lock", MAJOR, BARE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    layer = ROOT / done.stdout.splitlines()[-1]
    server = Server("e2e", f"extension_control_path = '$system:{layer}/share'", f"dynamic_library_path = '$libdir:{layer}/lib'", of=BARE)
    yield server
    server.stop()


def test_the_images_are_for_the_platform_of_the_library(bare):
    """An engine of another platform would otherwise build images of its own platform, whose server could not load the library."""
    layer = ROOT / f"target/oci/{MAJOR}"
    machine = int.from_bytes((layer / "lib/eskit_lease.so").read_bytes()[18:20], "little")  # e_machine of ELF
    lines = [line.split() for line in (layer / "Dockerfile").read_text().splitlines()]
    assert [line[1:] for line in lines if line[:1] == ["ARG"]][:2] == [[f"PG_MAJOR={MAJOR}"], [f"PLATFORM=linux/{ARCHITECTURES[machine]}"]]
    froms = [line[1:] for line in lines if line[:1] == ["FROM"]]
    assert [words[0] for words in froms] == ["--platform=$PLATFORM"] * 2
    assert [words[-1] for words in froms] == ["extension", "server"]
    copied = [line[1] for line in lines if line[:1] == ["COPY"] and not line[1].startswith("--from=")]
    assert copied == ["lib/", "share/"]
    assert all((layer / path).is_dir() for path in copied)


def libraries(pid):
    """Returns the files of ours that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "eskit_lease" in line}


def test_the_layer_serves_a_server_that_has_no_extension(bare):
    bare.query("CREATE EXTENSION eskit_lease")
    with bare.connect() as conn:
        session = Session(conn)
        call(conn, "fence_check", "orders", session.take("orders"))
        # The server preloads it by one name, and the functions name it by another: both must be the same file.
        assert libraries(conn.info.backend_pid) == libraries(bare.pid)
        (library,) = libraries(bare.pid)
        assert os.path.samefile(library, ROOT / f"target/oci/{MAJOR}/lib/eskit_lease.so")


def test_the_regress_files_pass_on_the_layer(bare, tmp_path):
    """As pg_test/run drives them: by the client and the driver of 15."""
    (tmp_path / "expected").symlink_to(ROOT / "pg_test/expected")
    tests = sorted(path.stem for path in (ROOT / "pg_test/sql").glob("*.sql"))
    command = f"""
        . pg_test/env 15
        exec "$("$PG_CONFIG" --pkglibdir)/pgxs/src/test/regress/pg_regress" --bindir="$PG_BIN" --inputdir=pg_test --outputdir={tmp_path} \
            --host={bare.host} --port={bare.port} --user=postgres --load-extension=eskit_lease {' '.join(tests)}
    """
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    diffs = tmp_path / "regression.diffs"
    assert done.returncode == 0, done.stdout + (diffs.read_text() if diffs.exists() else "")


def engine_answers():
    return shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0


@pytest.mark.skipif(not engine_answers(), reason="no container engine answers `docker info`")
def test_an_engine_builds_and_runs_the_images(bare):
    def docker(*words):
        return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()

    layer = str(ROOT / f"target/oci/{MAJOR}")
    docker("build", "--quiet", "--target", "extension", layer)
    container = docker("run", "--detach", "--env", "POSTGRES_PASSWORD=secret", docker("build", "--quiet", "--target", "server", layer))
    try:
        psql = ["exec", container, "psql", "--host=127.0.0.1", "--username=postgres", "--no-psqlrc", "--tuples-only", "--no-align", "--command"]
        create = ["docker", *psql, "CREATE EXTENSION IF NOT EXISTS eskit_lease"]
        wait_until(lambda: subprocess.run(create, capture_output=True).returncode == 0, pause=0.2)
        assert docker(*psql, "SELECT session IS NOT NULL FROM eskit_lease.session_open('container')") == "t"
    finally:
        docker("rm", "--force", "--volumes", container)
