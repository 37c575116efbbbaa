"""Hundreds of sessions behind PgBouncer as it is installed: none is lost for want of a connection, and they ask little."""

import asyncio
import time

import psycopg
import pytest
from conftest import Pooler, Server, once
from psycopg.rows import namedtuple_row

pytestmark = once

SESSIONS, TTL, SECONDS = 200, 10, 60  # that of a session that asks for none
HOLDERS, HELD = 20, 2  # clients of the same pool, and for how long each transaction of theirs is open


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    server = Server("e2e-stock", "max_connections = 200", "log_min_messages = log")
    server.query("CREATE EXTENSION eskit_lease")
    pooler = Pooler(server, tmp_path_factory.mktemp("stock"), default_pool_size=20)
    yield server, pooler
    pooler.stop()
    server.stop()


class Host:
    """A process with some sessions on one connection of the pool. It asks, sleeps for as long as it is told, and asks again."""

    def __init__(self, pooler, sessions):
        self.pooler, self.sessions, self.calls, self.lost, self.late = pooler, sessions, 0, 0, []

    async def rows(self, sql, *args):
        return await (await self.conn.execute(sql, args)).fetchall()

    async def open(self):
        dsn = self.pooler.dsn("postgres")
        self.conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None, row_factory=namedtuple_row)
        opened = [(await self.rows("SELECT * FROM eskit_lease.session_open('consumer')"))[0] for _ in range(self.sessions)]
        self.known = {session.session: session.revision for session in opened}

    async def wait(self):
        ids, revisions = list(self.known), list(self.known.values())
        if self.sessions == 1:
            return await self.rows("SELECT %s AS session, * FROM eskit_lease.session_wait(%s, %s)", ids[0], ids[0], revisions[0])
        return await self.rows("SELECT * FROM eskit_lease.session_wait_many(%s, %s)", ids, revisions)

    async def run(self, until):
        while time.monotonic() < until:
            asked = time.monotonic()
            answers = await self.wait()
            took = time.monotonic() - asked
            self.calls += 1
            self.lost += sum(not answer.alive for answer in answers)
            # How long the heartbeat was under way to the server: the duration of the call, minus the part of its TTL
            # that the session has used since.
            self.late.append(max(took - (TTL - answer.trust_ms / 1000) for answer in answers if answer.alive))
            self.known |= {answer.session: answer.revision for answer in answers}
            if retry := max((answer.retry_ms or 0) for answer in answers):
                assert answers[0].reason == "wait_limit" and 0 < retry <= TTL * 1000 / 3
                await asyncio.sleep(retry / 1000)
        await self.conn.close()


async def hold(pooler, until):
    """Has a connection of the pool to itself for as long as its transactions take."""
    async with await psycopg.AsyncConnection.connect(pooler.dsn("postgres"), autocommit=True, prepare_threshold=None) as conn:
        while time.monotonic() < until:
            async with conn.transaction():
                await conn.execute("SELECT 1")
                await asyncio.sleep(HELD)


async def behind(pooler, hosts, holders):
    """Returns the calls per second, the sessions lost, and for how long at most 99 of 100 heartbeats were under way."""
    for host in hosts:
        await host.open()
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(host.run(until) for host in hosts), *(hold(pooler, until) for _ in range(holders)))
    late = sorted(late for host in hosts for late in host.late)
    return sum(host.calls for host in hosts) / SECONDS, sum(host.lost for host in hosts), late[len(late) * 99 // 100]


@pytest.mark.parametrize("holders", [0, HOLDERS])
@pytest.mark.parametrize("of_a_host, most", [(1, 90), (50, 10)])
def test_none_is_lost_and_few_ask(pool, of_a_host, most, holders):
    _, pooler = pool
    hosts = [Host(pooler, of_a_host) for _ in range(SESSIONS // of_a_host)]
    rate, lost, p99 = asyncio.run(behind(pooler, hosts, holders))
    print(f"{SESSIONS} sessions, {of_a_host} of a host, {holders} holders: {rate:.1f} calls a second, {lost} lost, p99 {p99 * 1000:.0f} ms")
    # On an idle machine a third of the TTL. Other tests may run beside this one.
    assert lost == 0 and rate < most and p99 < TTL * 2 / 3


def test_the_log_tells_of_refused_waits_once(pool):
    server, _ = pool
    assert len(server.logged("session_wait calls so far")) == 1
