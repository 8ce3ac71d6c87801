"""Check that each module of the protocol layers is covered completely, every branch of it, by its own test file alone.

    python scripts/own_coverage.py [MODULE...]

A module that only the tests of another exercise is not specified by anything. Exit code 1 if one is not covered.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "concertino"
PACKAGES = ("jsonrpc", "types", "schema", "protocol")


def check(module: str) -> str:
    """Nothing if the module is covered, else what pytest and coverage said about it."""
    package, _, name = module.partition(".")
    test = ROOT / "tests" / package / f"test_{name}.py"
    if not test.exists():
        return f"{test.relative_to(ROOT)} does not exist"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", str(test), f"--cov=concertino.{module}"]
        options = [
            "--cov-branch",
            "--cov-report=term-missing",
            "--cov-fail-under=100",
            "-q",
            "--no-header",
        ]
        environment = os.environ | {"COVERAGE_FILE": f"{folder}/coverage"}
        done = subprocess.run(
            [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True
        )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    modules = sys.argv[1:] or sorted(
        f"{package}.{path.stem}"
        for package in PACKAGES
        for path in (SOURCE / package).glob("*.py")
        if path.stem != "__init__"
    )
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        outcomes = dict(zip(modules, pool.map(check, modules), strict=True))
    for module, problem in outcomes.items():
        if problem:
            print(f"{module} is not covered by its own tests:\n{problem}")
    covered = [module for module, problem in outcomes.items() if not problem]
    print(
        f"{len(covered)} of {len(modules)} modules of the protocol layers are covered completely by their own tests"
    )
    return 0 if len(covered) == len(modules) else 1


if __name__ == "__main__":
    sys.exit(main())
