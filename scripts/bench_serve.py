#!/usr/bin/env python3
"""What the daemon costs: `python3 scripts/bench_serve.py [--program target/release/berth] [--only jobs,quotes,queue,memory,polls,models,batches,lanes]`.

Each part starts `berth serve` on virtual devices in a directory of its own and asks it over HTTP:

- jobs: warm jobs of the demo model, each from the request to its picture; what that takes beyond the executor's own time.
- quotes: `POST /v1/plan` with a survey that was made before.
- queue: answers and the loop's lag while 1,000 jobs wait.
- memory: what the idle daemon holds after 1,500 jobs.
- polls: a job's steps with 200 clients who ask for it once a second, and without, by turns; and what the daemon itself computes.
- models: two models in turns within a budget in which one and a half of them fit, several loaded or one at a time, and in the
  best order, one model after the other.
- batches: four jobs of a model whose weights are streamed, as one batch and one after another.
- lanes: jobs of two models on two devices with a thread each, two at once and one after another.

Prints a Markdown table; figures of one run. Python's standard library alone.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 4}
ENDED = ("done", "failed", "cancelled")


class Daemon:
    """A `berth serve` with a configuration; ends with the block that it is made for."""

    def __init__(self, program: str, config: str = "", host: str = "virtual-2x2g") -> None:
        self.home = tempfile.TemporaryDirectory()
        home = pathlib.Path(self.home.name)
        (home / "serve.toml").write_text(config)
        places = ["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"]
        environment = {**os.environ, **{name: str(home) for name in places}}
        command = [program, "serve", "--listen", "127.0.0.1:0", "--host", host, "--config", str(home / "serve.toml")]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        address = re.search(r"http://([\d.]+):(\d+)", line)
        if not address:
            raise SystemExit(f"no address in {line!r}")
        self.address = (address[1], int(address[2]))
        self.connection = http.client.HTTPConnection(*self.address, timeout=600)

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()

    def ask(self, path: str, body: dict | None = None) -> dict:
        method = "GET" if body is None else "POST"
        text = None if body is None else json.dumps(body)
        self.connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        read = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{path}: {answer.status} {read.decode()}")
        return json.loads(read) if read[:1] in b"{[" else {"text": read.decode()}

    def submit(self, **job: object) -> str:
        return self.ask("/v1/jobs", {**SMALL, **job})["id"]

    def ended(self, job: str, pause_s: float = 0.005) -> dict:
        while (record := self.ask(f"/v1/jobs/{job}"))["state"] not in ENDED:
            time.sleep(pause_s)
        if record["state"] != "done":
            raise SystemExit(f"{job}: {record.get('error')}")
        return record

    def cpu_s(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def ms(times: list[float]) -> str:
    return f"median {statistics.median(times) * 1e3:.1f} ms, nine in ten under {percentile(times, 0.9) * 1e3:.1f} ms"


def jobs(program: str, runs: int) -> None:
    """The daemon's share of warm jobs."""
    with Daemon(program) as daemon:
        daemon.ended(daemon.submit(seed=0))
        beyond, whole = [], []
        for seed in range(runs):
            begun = time.perf_counter()
            answer = daemon.ask("/v1/images/generations", {**image_request(), "seed": seed})
            took = time.perf_counter() - begun
            record = daemon.ask(f"/v1/jobs/{answer['berth']['job']}")
            whole.append(took)
            beyond.append(took - record["usage"]["measured_ms"]["total"] / 1e3)
        row("a warm job of 4 steps at 64x64, from the request to the answer", ms(whole))
        row("of that beyond the executor's own time", ms(beyond))


def image_request() -> dict:
    return {"prompt": SMALL["prompt"], "size": "64x64", "steps": SMALL["steps"], "response_format": "b64_json"}


def quotes(program: str, runs: int) -> None:
    """Questions that make nothing."""
    with Daemon(program) as daemon:
        for what, job in [("the loaded shape", SMALL), ("another shape", {**SMALL, "width": 128, "height": 96})]:
            daemon.ended(daemon.submit(seed=0))
            daemon.ask("/v1/plan", job)
            times = []
            for _ in range(runs):
                begun = time.perf_counter()
                daemon.ask("/v1/plan", job)
                times.append(time.perf_counter() - begun)
            row(f"a quote for {what}, surveyed before", ms(times))


def queue(program: str, runs: int) -> None:
    """A long queue that does not move."""
    config = "queue_max = 2000\n[quota]\nqueued = 2000\nqueued_seconds = 1000000\n"
    with Daemon(program, config) as daemon:
        daemon.ended(daemon.submit(seed=0))
        daemon.ask("/v1/queue/pause", {})
        begun = time.perf_counter()
        for seed in range(1000):
            daemon.submit(seed=seed)
        accepted = (time.perf_counter() - begun) / 1000
        before = lags(daemon)
        times = []
        for _ in range(10 * runs):
            begun = time.perf_counter()
            daemon.ask("/readyz")
            times.append(time.perf_counter() - begun)
        for seed in range(50):
            daemon.submit(seed=seed)
        row("a job accepted while up to 1,000 wait", f"{accepted * 1e3:.1f} ms each")
        row("/readyz, answered by the loop, while 1,000 wait", f"99 in 100 under {percentile(times, 0.99) * 1e3:.1f} ms")
        if (lag := lag_under(before, lags(daemon), 0.99)) is not None:
            row("the loop's own lag meanwhile", f"99 in 100 within {lag * 1e3:g} ms")


def memory(program: str, runs: int) -> None:
    """What the daemon holds of jobs that have ended."""
    with Daemon(program) as daemon:
        daemon.ended(daemon.submit(seed=0))
        row("an idle daemon with one ended job", held(daemon))
        for count in range(30 * runs):
            daemon.ask("/v1/images/generations", {**image_request(), "steps": 1, "seed": count})
        time.sleep(2)
        row(f"after {30 * runs:,} jobs, of which it keeps the last 1,000", held(daemon))


def held(daemon: Daemon) -> str:
    """Resident memory, and what of it is no file's."""
    lines = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    kib = {name: int(line.split()[1]) for line in lines for name in ["VmRSS", "RssAnon"] if line.startswith(name)}
    return f"{kib['VmRSS'] * 1024 / 1e6:.1f} MB, {kib['RssAnon'] * 1024 / 1e6:.1f} MB of them its own"


def lags(daemon: Daemon) -> dict[float, int]:
    """Events by how long they waited for the loop, counted up."""
    text = daemon.ask("/metrics")["text"]
    found = re.findall(r'berth_event_lag_seconds_bucket\{le="([^"]+)"\} (\d+)', text)
    return {float(bound): int(count) for bound, count in found}


def lag_under(before: dict[float, int], after: dict[float, int], part: float) -> float | None:
    counts = {bound: after[bound] - before.get(bound, 0) for bound in after}
    total = max(counts.values(), default=0)
    return next((bound for bound in sorted(counts) if counts[bound] >= part * total), None) if total else None


def polls(program: str, runs: int) -> None:
    """Steps of a job that is watched."""
    long = {"width": 512, "height": 512, "steps": 150}
    with Daemon(program) as daemon:
        daemon.ended(daemon.submit(seed=0, **long))
        alone, watched, computed = [], [], []
        for seed in range(max(3, runs // 2)):
            record = daemon.ended(daemon.submit(seed=seed, **long), 0.2)
            alone.append(record["usage"]["measured_ms"]["denoise_step"])
            job = daemon.submit(seed=seed, **long)
            with Polls(daemon.address, f"/v1/jobs/{job}", clients=200, every_s=1.0) as polled:
                begun, cpu = time.perf_counter(), daemon.cpu_s()
                record = daemon.ended(job, 0.2)
                took = time.perf_counter() - begun
                computed.append((daemon.cpu_s() - cpu) / took / (os.cpu_count() or 1))
            watched.append(record["usage"]["measured_ms"]["denoise_step"])
        ratio = statistics.median(watched) / statistics.median(alone)
        row("steps with 200 clients who ask each second, to those without", f"{ratio:.3f} ({polled.answers} answers, asked on the same cores)")
        row("what the daemon computes meanwhile, of all cores", f"{statistics.median(computed) * 100:.1f} %")


class Polls:
    """Clients of one thread, each of which asks once in a while over a connection of its own."""

    def __init__(self, address: tuple[str, int], path: str, clients: int, every_s: float) -> None:
        self.request = f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n\r\n".encode()
        # A client may have some connections only: each has an address of its own.
        self.sockets = [socket.create_connection(address, source_address=(f"127.0.1.{n + 1}", 0)) for n in range(clients)]
        self.every_s = every_s
        self.answers = 0
        self.ends = False
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> "Polls":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends = True
        self.thread.join()
        for one in self.sockets:
            one.close()

    def run(self) -> None:
        answer = bytearray(1 << 16)
        begun = time.monotonic()
        turn = 0
        while not self.ends:
            time.sleep(max(0.0, begun + turn * self.every_s / len(self.sockets) - time.monotonic()))
            one = self.sockets[turn % len(self.sockets)]
            # Who asks again has read the answer before: the script's own turns of the cores are to be few.
            if turn >= len(self.sockets):
                self.answers += one.recv_into(answer) > 0 and answer.startswith(b"HTTP/1.1 200")
            one.send(self.request)
            turn += 1


def models(program: str, runs: int) -> None:
    """Two models that do not both fit on one device."""
    fixtures = ROOT / "tests" / "fixtures"
    names = ["flux_schnell", "zimage_turbo"]
    count = max(4, runs)
    times: dict[str, list[float]] = {}
    for _ in range(5):
        for what, several, order in [
            ("in turns, several loaded", True, names * count),
            ("in turns, one at a time", False, names * count),
            ("in the best order", False, [name for name in names for _ in range(count)]),
        ]:
            config = f'models = ["{fixtures}"]\nseveral_loaded = {str(several).lower()}\n[policy]\nmax_vram = "4MiB"\n'
            with Daemon(program, config) as daemon:
                begun = time.perf_counter()
                for seed, model in enumerate(order):
                    # The answer comes with the picture: nothing is added by asking for it once in a while.
                    daemon.ask("/v1/images/generations", {**image_request(), "model": model, "seed": seed, "prompt": f"a red circle {seed}"})
                times.setdefault(what, []).append(time.perf_counter() - begun)
    best = statistics.median(times["in the best order"])
    for what, taken in times.items():
        median = statistics.median(taken)
        row(f"{2 * count} jobs of two models, {what}", f"{median:.2f} s, {median / best:.2f} of the best order")


STREAMED = """
name = "streamed"
[host]
compute = false
storage_bandwidth = "9GB/s"
[[device]]
kind = "virtual"
total = "2MiB"
overhead = "0MiB"
link = "16MiB/s"
"""


def batches(program: str, runs: int) -> None:
    """Four jobs of a model whose weights are streamed: as one batch, and one after another."""
    prompts = ["a red circle", "a blue square", "a green triangle", "a white circle"]
    times: dict[bool, list[float]] = {True: [], False: []}
    sizes: dict[bool, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "streamed.toml"
        profile.write_text(STREAMED)
        for joined in [True, False] * max(1, runs // 10):
            config = f'models = ["{ROOT / "tests" / "fixtures"}"]\njoin_jobs = {str(joined).lower()}\n'
            with Daemon(program, config, str(profile)) as daemon:
                shape = {"model": "flux_schnell", "steps": 8, "max_sequence_length": 32}
                daemon.ended(daemon.submit(prompt="to load it", **shape))
                daemon.ask("/v1/queue/pause", {})
                names = [daemon.submit(prompt=prompt, seed=seed, **shape) for seed, prompt in enumerate(prompts)]
                # The surveyor takes one question after the other: that about the batch is answered.
                daemon.ask("/v1/plan", {**SMALL, **shape})
                begun = time.perf_counter()
                daemon.ask("/v1/queue/resume", {})
                records = [daemon.ended(name) for name in names]
                times[joined].append(time.perf_counter() - begun)
                sizes[joined] = records[0]["plan"]["job"]["batch"]
    together, apart = (statistics.median(times[joined]) for joined in [True, False])
    row(
        f"4 jobs whose weights are streamed, in batches of {sizes[True]} and of {sizes[False]}",
        f"{together:.2f} s and {apart:.2f} s, {together / apart:.2f}",
    )


LANE = """
[[device]]
kind = "virtual"
total = "64MiB"
overhead = "0MiB"
link = "128MiB/s"
threads = 1
"""
LANES = f'name = "lanes"\n[host]\ncompute = false\nstorage_bandwidth = "9GB/s"\n{LANE}{LANE}'


def lanes(program: str, runs: int) -> None:
    """Jobs of two models that compute for seconds: on both devices at once, and one after another."""
    times: dict[int, list[float]] = {1: [], 2: []}
    names = ["flux_schnell", "zimage_turbo"]
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "lanes.toml"
        profile.write_text(LANES)
        for running in [2, 1] * max(1, runs // 10):
            config = f'models = ["{ROOT / "tests" / "fixtures"}"]\njoin_jobs = false\n[quota]\nrunning = {running}\n'
            with Daemon(program, config, str(profile)) as daemon:
                shape = {"width": 256, "height": 256, "steps": 60, "prompt": "a red circle"}
                # Both are loaded first, each on a device.
                for name in [daemon.submit(model=name, **shape) for name in names]:
                    daemon.ended(name)
                daemon.ask("/v1/queue/pause", {})
                jobs = [daemon.submit(model=names[seed % 2], seed=seed, **shape) for seed in range(8)]
                begun = time.perf_counter()
                daemon.ask("/v1/queue/resume", {})
                for name in jobs:
                    daemon.ended(name)
                times[running].append(time.perf_counter() - begun)
    at_once, apart = (statistics.median(times[running]) for running in [2, 1])
    row(
        "8 jobs of two models on two devices with a thread each, two at once, to one after another",
        f"{at_once:.2f} s and {apart:.2f} s, {at_once / apart:.2f}",
    )


def row(what: str, figure: str) -> None:
    print(f"| {what} | {figure} |", flush=True)


def main() -> None:
    parts = {"jobs": jobs, "quotes": quotes, "queue": queue, "memory": memory, "polls": polls, "models": models, "batches": batches, "lanes": lanes}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "target" / "release" / "berth"), help="the program to run")
    parser.add_argument("--runs", type=int, default=50, help="how often something short is measured")
    parser.add_argument("--only", default=",".join(parts), help="which parts, by name")
    arguments = parser.parse_args()
    print("| what | figure |\n|---|---|")
    for name in arguments.only.split(","):
        parts[name](arguments.program, arguments.runs)


if __name__ == "__main__":
    main()
