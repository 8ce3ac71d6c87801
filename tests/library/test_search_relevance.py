"""What is meant is found near the top: the held-out test of bench/library.py, on a corpus that other people wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the sample corpus lies beside the repository, and not everywhere")
def test_relevance_is_what_was_promised_and_better_than_tantivy_s_own(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "bench/library.py", "--relevance", "--json", tmp_path / "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert done.returncode == 0, done.stdout
    assert figures["line"] >= 0.60
    assert figures["four"] >= 0.45
    assert figures["line above stock"] >= 0.04
    assert figures["four above stock"] >= 0.04
