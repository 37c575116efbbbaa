"""What the programs in other languages need; pg_test/examples puts it under target/examples."""

import sys
import warnings
from pathlib import Path

import pytest
from conftest import ROOT

EXAMPLES, READY = ROOT / "examples", ROOT / "target/examples"
DRIVERS = Path(__file__).parent / "drivers"
JAR = READY / "java/usr/share/java/postgresql.jar"

CONSUMERS = {
    "python": ["env", f"PYTHONPATH={ROOT / 'clients/python'}", sys.executable, EXAMPLES / "python/consumer.py"],
    "typescript": ["node", READY / "typescript/dist/consumer.js"],
    "rust": [READY / "rust/debug/consumer"],
    "java": ["java", "-cp", ROOT / "target/clients/java/lib/*", EXAMPLES / "java/Consumer.java"],
    "go": [READY / "go/consumer"],
    "bash": [EXAMPLES / "bash/consumer"],
}
CALLERS = {
    "python": [sys.executable, DRIVERS / "driver.py"],
    "typescript": ["node", DRIVERS / "driver.cjs"],
    "rust": [READY / "rust/debug/driver-types"],
    "java": ["java", "-cp", JAR, DRIVERS / "Driver.java"],
}


def missing(language):
    """Returns why the language cannot be tested here, or None."""
    why = READY / language / "missing"
    return why.read_text().strip() if why.exists() else None


def require(language):
    if why := missing(language):
        warnings.warn(f"{language} is not tested: {why}", stacklevel=2)
        pytest.skip(f"{language}: {why}")
