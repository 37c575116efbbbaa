"""TLS by the connection string alone: `sslmode=verify-full&sslrootcert=FILE`. The server's certificate is of a CA of the
test, for the host `localhost`."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from conftest import Server, wait_until
from kit import LANGUAGES, Program, World, url

PATIENCE = 30  # how long each library tries to open its first session


def authority(directory, name):
    """Makes a CA: its key, and its certificate."""
    key, cert = directory / f"{name}.key", directory / f"{name}.crt"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", cert)
    return key, cert


def openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A server with a certificate, and files with the CA that has signed it, and with another CA."""
    directory = tmp_path_factory.mktemp("tls")
    (ca_key, ca), (_, stranger) = authority(directory, "ca"), authority(directory, "stranger")
    key, request, cert, names = (directory / name for name in ("server.key", "server.csr", "server.crt", "names"))
    names.write_text("subjectAltName = DNS:localhost\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", names, "-out", cert)
    key.chmod(0o600)
    server = Server("tls", "ssl = on", f"ssl_cert_file = '{cert}'", f"ssl_key_file = '{key}'")
    with server.connect() as conn:
        conn.execute("CREATE DATABASE kit_tls")
    server.query("CREATE EXTENSION eskit_lease", dbname="kit_tls")
    yield SimpleNamespace(server=server, ca=ca, stranger=stranger)
    server.stop()


def dsn(tls, host, ca):
    return f"{url(tls.server.port, 'kit_tls', host)}?sslmode=verify-full&sslrootcert={ca}"


@pytest.fixture(scope="module")
def refused(tls, tmp_path_factory):
    """Programs that must refuse the server: its certificate is of another CA, or for another host. They try all at once."""
    asked = {(language, case): where for language in LANGUAGES for case, where in {
        "CA": dsn(tls, "localhost", tls.stranger), "host": dsn(tls, "127.0.0.1", tls.ca),
    }.items()}  # fmt: skip
    with (tmp_path_factory.mktemp("refused") / "errors").open("w") as log:
        with ThreadPoolExecutor() as pool:
            programs = dict(zip(asked, pool.map(lambda key: Program(key[0], "-".join(key), log), asked), strict=True))
        for key, program in programs.items():
            program.do("open", dsn=asked[key], work=url(tls.server.port, "kit_tls"), name=program.name, ttl=3)
        yield programs, time.monotonic() + PATIENCE + 1
        for program in programs.values():
            program.discard()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_string_is_enough(tls, tmp_path, language):
    with (tmp_path / "errors").open("w") as log:
        world = World(tls.server, "kit_tls", [language], log)
        try:
            program = world.start(dsn(tls, "localhost", tls.ca), work=world.url())
            program.do("lead", id="x", name="x")
            program.wait("wrote")
            plain = """SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                       WHERE datname = 'kit_tls' AND query ~ 'session_wait|lease_acquire' AND pid <> pg_backend_pid()"""
            secure, insecure = world.conn.execute(plain).fetchone()
            assert secure > 0 and insecure == 0
            program.end()
        finally:
            world.conn.execute("DROP TABLE kit_writes, kit_events, kit_applied, kit_done, kit_once")
            world.end()
            print((tmp_path / "errors").read_text()[-2000:])


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", ["CA", "host"])
def test_a_certificate_that_does_not_fit_is_refused(tls, refused, language, case):
    """Whether its program says so or not, no keeper opens within the library's patience."""
    programs, until = refused
    program = programs[language, case]
    over = lambda: program.all("error") or program.all("opened") or time.monotonic() > until  # noqa: E731
    wait_until(over, pause=0.1)
    assert not program.all("opened")
    name = "SELECT count(*) FROM eskit_lease.sessions WHERE consumer = %s"
    assert tls.server.query(name, program.name, dbname="kit_tls") == [(0,)]
