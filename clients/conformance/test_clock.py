"""The time of day steps by hours, forth and back. A library counts on the monotonic clock, so nothing happens."""

import mmap
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest
from kit import TTL

HOUR = 3600


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O", "-o", library, source], check=True)
    return library


def test_the_time_of_day_is_shifted(shim, tmp_path):
    """The control: by a program that reads it."""
    clock = Clock(tmp_path / "page")
    clock.step(-HOUR)
    env = os.environ | {"LD_PRELOAD": str(shim), "KIT_CLOCK": str(tmp_path / "page")}
    read = subprocess.run(["date", "+%s"], env=env, check=True, capture_output=True).stdout
    assert abs(int(read) + HOUR - time.time()) < 60
    assert clock.readings()[0] > 0


class Clock:
    """The time of day of the programs that are started meanwhile."""

    def __init__(self, file):
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as opened:
            self.page = mmap.mmap(opened.fileno(), mmap.PAGESIZE)

    def step(self, seconds):
        self.page[:8] = struct.pack("l", seconds)

    def readings(self):
        """Returns how often the time of day was read, and the monotonic clock."""
        return struct.unpack_from("ll", self.page, 8)


def test_a_clock_that_steps_ends_nothing(alone, shim, tmp_path, monkeypatch):
    clock = Clock(tmp_path / "page")
    with monkeypatch.context() as env:
        env.setenv("LD_PRELOAD", str(shim))
        env.setenv("KIT_CLOCK", str(tmp_path / "page"))
        program = alone.start()
    if program.language == "go":
        pytest.skip("Go asks the kernel for the time by itself, so its clock cannot be shifted for one program")
    program.do("lead", id="x", name="x")
    program.wait("wrote")
    before = clock.readings()
    lost = alone.lost()
    for hours in (3, -5):
        clock.step(hours * HOUR)
        since = len(program.events)
        time.sleep(1.2 * TTL)
        program.wait("wrote", since)
    assert clock.readings()[1] > before[1], "its clocks are not those of the test"
    assert alone.lost() == lost and not program.all("cancelled")
    assert {told["state"] for told in program.all("keeper")} <= {"starting", "trusted"}
    program.end()
