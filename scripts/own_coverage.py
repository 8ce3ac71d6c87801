"""Check that each module of the protocol layers is covered by its own test file alone.

    python scripts/own_coverage.py [MODULE...]

Every line and every branch of jsonrpc/peer.py must be reached by tests/jsonrpc/test_peer.py, and so
on: a module that only the tests of another reach is not specified by anything.

The coverage data (.coverage, or COVERAGE_FILE) must have been recorded by all tests of these
packages with `pytest --cov`: tests/conftest.py gives each line the names of the files whose tests
reached it. Lines that run when a module is imported have no file and count for every module.
Exit code 1 if a module is not covered.
"""

import io
import re
import sys
from pathlib import Path

from coverage import Coverage
from coverage.exceptions import NoDataError

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "concertino"
PACKAGES = ("jsonrpc", "types", "schema", "protocol")
AT_IMPORT = "^$"


def check(coverage: Coverage, module: str) -> str:
    """Return "" if the module is covered by its own tests, else what they leave out."""
    package, _, name = module.partition(".")
    test = f"tests/{package}/test_{name}.py"
    if not (ROOT / test).exists():
        return f"{test} does not exist"

    report = io.StringIO()
    try:
        percent = coverage.report(
            include=[str(SOURCE / package / f"{name}.py")],
            contexts=[AT_IMPORT, f"^{re.escape(test)}$"],
            show_missing=True,
            skip_covered=False,
            file=report,
        )
    except NoDataError:
        return f"no coverage data of it in {coverage.get_data().base_filename()}"
    return "" if percent == 100 else report.getvalue()


def main() -> int:
    """Print what is missing, and return the exit code."""
    modules = sys.argv[1:] or sorted(
        f"{package}.{path.stem}"
        for package in PACKAGES
        for path in (SOURCE / package).glob("*.py")
        if path.stem != "__init__"
    )
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    # pytest-cov has mapped the paths; to do it again for each module would take ten seconds.
    coverage.set_option("paths", {})
    coverage.load()
    if not any(coverage.get_data().measured_contexts()):
        print("there are no contexts in the coverage data: run pytest with --cov")
        return 1

    problems = {module: check(coverage, module) for module in modules}
    for module, problem in problems.items():
        if problem:
            print(f"{module} is not covered by its own tests:\n{problem}")
    covered = list(problems.values()).count("")
    print(
        f"{covered} of {len(modules)} modules of the protocol layers are covered by their own tests"
    )
    return 0 if covered == len(modules) else 1


if __name__ == "__main__":
    sys.exit(main())
