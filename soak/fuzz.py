"""Search, guided by coverage, for bytes that break framing, messages, sessions or arguments.

Needs: atheris jsonschema-rs httptools h11

    scripts/soak fuzz                                          every target for a minute each
    scripts/soak fuzz --target session --executions 100000000 --jobs 2
    scripts/soak fuzz --target messages --seconds 600 --new    and keep inputs that reach new code

--new keeps them in fuzz/corpus.

The targets are in fuzz/, each with what must hold. One execution is one input given to a target:
for `session` that is up to 48 steps, for `framing` a stream in chunks; they are not counted as
more. What was found is made smaller and written to fuzz/findings with the command that shows it
again. Between runs the inputs that were worth keeping stay in fuzz/.work.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # before this folder, in which `fuzz` is this file

from fuzz import FOLDER, TARGETS, corpus, corpus_file, format_line, target  # noqa: E402
from fuzz.smaller import fault, smaller  # noqa: E402

FINDINGS = FOLDER / "findings"
WORK = FOLDER / ".work"
STATUS = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)", re.MULTILINE)


def main() -> int:
    """Run what the command line asks for. Exit code 0: nothing was found."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--target",
        action="append",
        choices=TARGETS,
        help="which; again for more (default: all in turn)",
    )
    parser.add_argument(
        "--executions",
        type=int,
        default=0,
        help="stop a target after so many, of all its jobs together",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0,
        help="stop a target after so long (default: 60, without --executions)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="processes at once on one target; they share what they find",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the search; 0 takes another each time"
    )
    parser.add_argument(
        "--new",
        action="store_true",
        help="afterwards, add inputs that reach new code to fuzz/corpus",
    )
    options = parser.parse_args()
    if options.executions < 0 or options.seconds < 0 or options.jobs < 1:
        parser.error(
            "--executions and --seconds: expected no less than 0; --jobs: expected 1 or more"
        )
    findings = 0
    for name in options.target or TARGETS:
        findings += campaign(name, options)
        if options.new:
            keep_new(name)
    print(f"=== {findings} findings")
    return 1 if findings else 0


def campaign(name: str, options: argparse.Namespace) -> int:
    """Search one target with all its jobs. Returns the number of findings."""
    work = WORK / name
    work.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(exist_ok=True)
    known = set(FINDINGS.iterdir())
    dictionary = WORK / f"{name}.dict"
    tokens = ("".join(f"\\x{byte:02x}" for byte in token) for token in target(name).TOKENS)
    dictionary.write_text("".join(f'"{token}"\n' for token in tokens))
    seconds = options.seconds or (0 if options.executions else 60)
    flags = [
        f"-dict={dictionary}",
        f"-max_len={target(name).MAX_BYTES}",
        f"-artifact_prefix={FINDINGS / name}-",
        f"-max_total_time={int(seconds)}",
        *([f"-runs={-(-options.executions // options.jobs)}"] if options.executions else []),
        "-timeout=20",
        "-print_final_stats=1",
        "-rss_limit_mb=1024",
        str(work),
        str(corpus_folder(name)),
    ]
    began = time.monotonic()
    logs = [WORK / f"{name}.{job}.log" for job in range(options.jobs)]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for job, log in enumerate(logs):
            seed = [f"-seed={options.seed + job}"] if options.seed else []
            command = [sys.executable, "-m", "fuzz", name, "--search", *seed, *flags]
            with log.open("wb") as output:
                workers.append(
                    subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
                )
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    took = time.monotonic() - began
    found = [
        path
        for path in sorted(set(FINDINGS.iterdir()) - known)
        if path.name.startswith(f"{name}-") and path.suffix == ""
    ]
    report(name, logs, took)
    for path in found:
        explain(name, path)
    broken = [log for log, code in zip(logs, codes, strict=True) if code != 0] if not found else []
    for log in broken:
        print(
            "    a worker ended badly and left no input; the end of"
            f" {log.relative_to(ROOT)}:\n{log.read_text()[-2000:]}"
        )
    return len(found) + len(broken)


def corpus_folder(name: str) -> Path:
    """Write the corpus of a target as libFuzzer wants it, one file per input, and return the
    folder.
    """
    folder = WORK / f"{name}.corpus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for line, data in corpus(name):
        (folder / f"line-{line}").write_bytes(data)
    return folder


def report(name: str, logs: list[Path], took: float) -> None:
    """One line: how often, how fast, how far."""
    executions, covered, features = 0, 0, 0
    for log in logs:
        seen = [tuple(map(int, item)) for item in STATUS.findall(log.read_text(errors="replace"))]
        last = re.search(
            r"stat::number_of_executed_units:\s*(\d+)", log.read_text(errors="replace")
        )
        executions += int(last[1]) if last else max((count for count, _, _ in seen), default=0)
        covered = max([covered, *(cov for _, cov, _ in seen)])
        features = max([features, *(ft for _, _, ft in seen)])
    rate = executions / took
    hours = 1e8 / rate / 3600 if rate else float("inf")
    print(
        f"{name}: {executions:,} executions in {took:.0f} s, {rate:,.0f}/s (1e8 in {hours:.1f} h); "
        f"{covered} edges, {features} features"
    )


def explain(name: str, path: Path) -> None:
    """Make a finding smaller and say how to see it again."""
    data = path.read_bytes()
    one = target(name).one
    why = fault(one, data)
    if why is None:  # a time-out, memory, or a thing of that process
        print(
            f"    {path.relative_to(ROOT)}: alone it does nothing wrong: too slow, too large, or"
            " the process was at fault"
        )
    else:
        small = smaller(one, data)
        if len(small) < len(data):
            path.with_suffix(".all").write_bytes(data)
            path.write_bytes(small)
        print(f"    FINDING {why}\n    {small!r}")
    print(f"    again: python -m fuzz {name} {path.relative_to(ROOT)}")


def keep_new(name: str) -> None:
    """Take over from fuzz/.work what reaches code that the kept corpus does not: as few inputs as
    libFuzzer can choose.
    """
    chosen = corpus_folder(name)
    known = {path.name for path in chosen.iterdir()}
    command = [
        sys.executable,
        "-m",
        "fuzz",
        name,
        "--search",
        "-set_cover_merge=1",
        f"-max_len={target(name).MAX_BYTES}",
    ]
    subprocess.run(
        [*command, str(chosen), str(WORK / name)], cwd=ROOT, check=True, capture_output=True
    )
    fresh = sorted(path for path in chosen.iterdir() if path.name not in known)
    with corpus_file(name).open("a", encoding="ascii") as file:
        for path in fresh:
            file.write(format_line(path.read_bytes()) + "\n")
    shutil.rmtree(chosen)
    print(
        f"    {len(fresh)} inputs added to {corpus_file(name).relative_to(ROOT)}; "
        "look at them before they are committed"
    )


if __name__ == "__main__":
    sys.exit(main())
