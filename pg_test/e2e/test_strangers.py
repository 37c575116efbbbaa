"""Throw-away servers on a machine that others use: only their owner can connect."""

import os
from pathlib import Path

import psycopg
import pytest
from conftest import ROOT, Server, once


def private(path):
    status = Path(path).stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


@once
@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_tcp_asks_for_the_password(server, pgbouncer, monkeypatch, way):
    address = {"host": "127.0.0.1", "port": (server if way == "direct" else pgbouncer).port, "user": "postgres", "dbname": "postgres"}
    psycopg.connect(**address).close()
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(**address, password="guessed")
    monkeypatch.delenv("PGPASSWORD")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(**address, passfile="/dev/null")


@once
def test_the_socket_and_the_password_are_private(server):
    assert private(server.host)
    assert private(ROOT / "target/password")
    assert (ROOT / "target/password").read_text() == os.environ["PGPASSWORD"]


@once
def test_a_socket_elsewhere_is_private():
    """If the cluster's own directory has too long a path, the socket is elsewhere, and private there."""
    name = "e2e-" + 80 * "x"
    server = Server(name)
    first = Path(server.host)
    try:
        assert first.parent == Path("/tmp") and private(first)
        server.stop()
        first.chmod(0o777)
        with pytest.raises(AssertionError, match="not its owner's alone"):
            server.restart()
        server = Server(name)
        assert server.query("SELECT 1") == [(1,)]
        assert not first.exists()
    finally:
        server.stop()
        Path(server.host).rmdir()
