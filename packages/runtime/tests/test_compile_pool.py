"""Worker processes: order, failures, deaths, many threads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from dovetail_runtime import compile_pool
from dovetail_runtime.compile_pool import CompilePool, JobFailed, JobTooLong, WorkerDied

WORKER = """
import json, os, sys
for line in sys.stdin:
    job = json.loads(line)
    if job["do"] == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if job["do"] == "hang":
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, file=open(job["file"], "w"), flush=True)
        time.sleep(600)
    if job["do"] == "fail":
        print(json.dumps({"error": "cannot"}), flush=True)
    else:
        print(json.dumps({"twice": job["n"] * 2, "pid": os.getpid(), "x": os.environ.get("X")}),
              flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return str(path)


def test_jobs_from_many_threads(script: str) -> None:
    pool = CompilePool([sys.executable, script], 2, {"X": "extra"})
    results: dict[int, dict[str, object]] = {}

    def ask(first: int) -> None:
        futures = {n: pool.submit({"do": "double", "n": n}) for n in range(first, first + 20)}
        results.update({n: f.result(timeout=60) for n, f in futures.items()})

    threads = [threading.Thread(target=ask, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(r["twice"] == 2 * n and r["x"] == "extra" for n, r in results.items())
    assert 1 <= len({r["pid"] for r in results.values()}) <= 2
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit({"do": "double", "n": 1})


def test_a_failed_job_and_a_dead_worker(script: str) -> None:
    pool = CompilePool([sys.executable, script], 1)
    with pytest.raises(JobFailed, match="cannot"):
        pool.submit({"do": "fail"}).result(timeout=60)
    with pytest.raises(WorkerDied, match=r"(?s)status 3.*last words"):
        pool.submit({"do": "die"}).result(timeout=60)
    assert pool.submit({"do": "double", "n": 4}).result(timeout=60)["twice"] == 8
    pool.close()


def test_workers_start_when_needed(script: str) -> None:
    pool = CompilePool([sys.executable, script], 3)
    assert pool._threads == []
    first = pool.submit({"do": "double", "n": 1}).result(timeout=60)
    second = pool.submit({"do": "double", "n": 2}).result(timeout=60)
    assert first["pid"] == second["pid"]
    pool.warm(0)
    assert len(pool._threads) == 1
    pool.warm(9)
    assert len(pool._threads) == 3
    pool.close()


def test_idle_workers_end(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "_IDLE_SECONDS", 0.2)
    pool = CompilePool([sys.executable, script], 2)
    first = pool.submit({"do": "double", "n": 1}).result(timeout=60)
    pool.warm(2)
    for thread in list(pool._threads):
        thread.join(timeout=60)
    assert pool._threads == [] and not Path("/proc", str(first["pid"])).exists()
    second = pool.submit({"do": "double", "n": 2}).result(timeout=60)
    assert second["twice"] == 4 and second["pid"] != first["pid"]
    pool.close()


def test_a_hung_worker_is_ended(script: str, tmp_path: Path) -> None:
    """With what it has started; the next job gets a new one."""
    pool = CompilePool([sys.executable, script], 1, seconds=3)
    first = pool.submit({"do": "double", "n": 4}).result(timeout=60)
    with pytest.raises(JobTooLong, match="within 3 seconds, the limit that DOVETAIL_COMPILE"):
        pool.submit({"do": "hang", "file": str(tmp_path / "child")}).result(timeout=60)
    second = pool.submit({"do": "double", "n": 5}).result(timeout=60)
    assert second["twice"] == 10 and second["pid"] != first["pid"]
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert not child.exists() or child.read_text().split()[2] in "ZX"
    pool.close()
