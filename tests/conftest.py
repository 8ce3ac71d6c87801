"""Settings of coverage, of Hypothesis and of signals, for all tests."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell starts a command in the background with SIGINT and SIGQUIT ignored, and children inherit
# that: servers under test would not notice Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# `nohup scripts/test` ignores SIGHUP, which ends some of the programs under test.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# As hypothesis does it where it knows that it runs in CI: the same examples each time, and no
# example fails for its time, since machines are busy. `pytest --hypothesis-profile=default` looks
# for new ones.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


# The file whose test ran last.
FILE = pytest.StashKey[str]()
# What servers behind a proxy offer, and indexes of searches, stay out of the user's cache.
CACHE = tempfile.TemporaryDirectory(prefix="concertino-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Leave the coverage of workers to pytest-cov, which the mark `no_cover` stops.

    They are subprocesses, so coverage would start in them by itself too, and go on there.
    """
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Trace nothing while a test with the mark `no_cover` runs.

    In a worker, pytest-cov starts two measurements and stops only the second for such a test. The
    first would go on, and take three times as long as the test.
    """
    trace = sys.gettrace()
    if trace is not None and item.get_closest_marker("no_cover") is not None:
        sys.settrace(None)
        try:
            return (yield)
        finally:
            sys.settrace(trace)
    return (yield)


# The tests themselves live until the end. The collector would take a fifth of the time of their
# collection by pytest, and later visit hundreds of thousands of their objects again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Start the garbage collector, which leaves alone what there is by now."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Name the coverage data after the file whose test runs: scripts/own_coverage.py reads that.

    --cov-context=test would begin new data three times for each of thousands of tests.
    """
    file = item.nodeid.partition("::")[0]
    if (coverage := sys.modules.get("coverage")) is None or file == item.session.stash.get(
        FILE, ""
    ):
        return
    item.session.stash[FILE] = file
    if (measurement := coverage.Coverage.current()) is not None:
        measurement.switch_context(file)


@pytest.fixture(autouse=True)
def _forget_secrets() -> Iterator[None]:
    """Forget the secrets that a test has taught this process: they would hide texts of the next."""
    yield
    redact = sys.modules.get("concertino.logs.redact")
    if redact is not None and (
        redact._exact_secrets or redact._named_secrets or redact._owner_secrets
    ):
        redact._exact_secrets.clear()
        redact._owner_secrets.clear()
        redact._named_secrets.clear()
        redact.refresh()
