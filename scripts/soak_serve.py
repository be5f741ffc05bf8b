#!/usr/bin/env python3
"""Puts a real daemon under mixed work for some minutes, on virtual devices, and looks at what it holds.

Clients submit jobs of several models, sizes, numbers of pictures and classes, and cancel some. Every job must end as
done, or as cancelled by its client; what each device and the host had at most must be within what its plan predicted
and what may be used. Then nothing is asked for `--idle-seconds`: the daemon must be idle, and small.

    python3 scripts/soak_serve.py --berth target/release/berth --minutes 10

Exit status 1 where anything was otherwise. Standard library only.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The models of tests/fixtures that a daemon serves, and the built-in one; with sizes that they all can make.
MODELS = ["demo", "flux_schnell", "flux_dev", "zimage_turbo"]
SIZES = [64, 128, 256]
CLIENTS = 4

# What a daemon that does nothing may take: half a percent of a core, and 40 MB in all beside what it was told to keep of
# text encoders' results (`conditioning_cache`).
IDLE_CPU_MAX = 0.005
IDLE_RSS_MAX = 40_000_000

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ask(address, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Daemon:
    """A daemon with a home of its own, and what it and its executors hold."""

    def __init__(self, berth, home, host):
        environment = dict(os.environ)
        for name in ["CACHE", "CONFIG", "STATE", "RUNTIME"]:
            folder = home / name.lower()
            folder.mkdir()
            environment[f"XDG_{name}_{'DIR' if name == 'RUNTIME' else 'HOME'}"] = str(folder)
        arguments = ["serve", "--listen", "127.0.0.1:0", "--host", host, "--models", ROOT / "tests/fixtures"]
        self.process = subprocess.Popen([berth, *arguments], stdout=subprocess.PIPE, env=environment, text=True)
        line = self.process.stdout.readline()
        self.address = line.strip().rsplit(" ", 1)[-1]
        assert self.address.startswith("http://"), line

    def children(self):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and fields(entry.name)[1:2] == [str(self.process.pid)]:
                found.append(entry.name)
        return found

    def cpu_s(self):
        found = fields(self.process.pid)
        return (int(found[11]) + int(found[12])) / TICKS_PER_S

    def end(self):
        self.process.terminate()
        return self.process.wait(timeout=180)


def fields(pid):
    """Of /proc/PID/stat, from the state on."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return []


def rss(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


def anonymous(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Soak:
    def __init__(self, daemon, seed):
        self.daemon = daemon
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.ended = collections.Counter()
        self.wrong = []
        self.peaks = collections.Counter()
        self.rss = collections.Counter()

    def tell(self, text):
        with self.lock:
            self.wrong.append(text)

    def job(self):
        with self.lock:
            chosen = self.random
            body = {
                "model": chosen.choice(MODELS),
                "prompt": " ".join(chosen.choices(["a", "red", "green", "large", "circle", "square"], k=chosen.randint(1, 40))),
                "width": chosen.choice(SIZES),
                "height": chosen.choice(SIZES),
                "steps": chosen.randint(1, 30),
                "n": chosen.choice([1, 1, 1, 2, 5]),
                "seed": chosen.randrange(1 << 32),
                "priority": chosen.choice(["interactive", "batch", "background"]),
            }
            cancel_after_s = chosen.random() * 2 if chosen.random() < 0.15 else None
        return body, cancel_after_s

    def client(self, until):
        while time.monotonic() < until:
            body, cancel_after_s = self.job()
            status, answer = ask(self.daemon.address, "POST", "/v1/jobs", body)
            if status in (429, 503):
                self.ended["refused: full"] += 1
                time.sleep(1)
            elif status != 202:
                self.tell(f"{status} for {body}: {answer}")
            else:
                self.follow(answer["id"], body, cancel_after_s)

    def follow(self, id, body, cancel_after_s):
        began = time.monotonic()
        while True:
            status, job = ask(self.daemon.address, "GET", f"/v1/jobs/{id}")
            if status != 200:
                return self.tell(f"{id} cannot be seen: {status} {job}")
            if job["state"] in ("done", "failed", "cancelled"):
                return self.check(job, body, cancel_after_s)
            if time.monotonic() - began > 600:
                return self.tell(f"{id} has not ended in 10 minutes: {job['state']}")
            if cancel_after_s is not None and time.monotonic() - began > cancel_after_s:
                ask(self.daemon.address, "POST", f"/v1/jobs/{id}/cancel")
                cancel_after_s = float("inf")
            time.sleep(0.05)

    def check(self, job, body, cancel_after_s):
        id = job["id"]
        with self.lock:
            self.ended[job["state"]] += 1
        if job["state"] == "failed" or job["state"] == "cancelled" and cancel_after_s is None:
            return self.tell(f"{id} is {job['state']}: {job['error']}")
        if job["state"] == "done" and len(job["pictures"]) != body["n"]:
            self.tell(f"{id} has {len(job['pictures'])} pictures of {body['n']}")
        if job["usage"] is None:
            return None
        budgets = {device["id"]: device["budget_bytes"] for device in job["plan"]["devices"]}
        budgets["host"] = job["plan"]["host"]["budget_bytes"]
        for device in job["usage"]["devices"]:
            name = device["id"]
            for phase in device["phases"]:
                measured, predicted = phase["measured_peak_bytes"], phase["predicted_peak_bytes"]
                if measured > predicted or measured > budgets[name]:
                    self.tell(f"{id}: {name} had {measured} in {phase['phase']}, predicted {predicted}")
                with self.lock:
                    self.peaks[name] = max(self.peaks[name], measured)
        return None

    def watch(self, until):
        while time.monotonic() < until:
            own, executors = rss(self.daemon.process.pid), [rss(pid) for pid in self.daemon.children()]
            for name, held in [("daemon", own), ("executors", sum(executors)), ("all", own + sum(executors))]:
                self.rss[name] = max(self.rss[name], held)
            time.sleep(0.5)

    def run(self, minutes):
        until = time.monotonic() + minutes * 60
        threads = [threading.Thread(target=self.client, args=[until]) for _ in range(CLIENTS)]
        threads.append(threading.Thread(target=self.watch, args=[until]))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def cached(self):
        """Bytes that the daemon was told to keep of text encoders' results."""
        with urllib.request.urlopen(self.daemon.address + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("berth_conditioning_cache_bytes "))

    def idle(self, seconds):
        pid = self.daemon.process.pid
        before, began = self.daemon.cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = (self.daemon.cpu_s() - before) / (time.monotonic() - began)
        cached = self.cached()
        held = rss(pid) - cached
        print(f"idle daemon: {share:.4%} of a core, RSS {held / 1e6:.1f} MB beside {cached / 1e6:.1f} MB of text encoders' results,")
        print(f"  of both {anonymous(pid) / 1e6:.1f} MB no file's")
        if share > IDLE_CPU_MAX:
            self.tell(f"the idle daemon takes {share:.4%} of a core")
        if held > IDLE_RSS_MAX:
            self.tell(f"the idle daemon holds {held / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--berth", default=ROOT / "target/release/berth", type=pathlib.Path)
    parser.add_argument("--host", default="virtual-2x2g", help="a host profile (default: virtual-2x2g)")
    parser.add_argument("--minutes", default=10, type=float)
    parser.add_argument("--idle-seconds", default=60, type=float)
    parser.add_argument("--seed", default=1, type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        daemon = Daemon(arguments.berth, pathlib.Path(home), arguments.host)
        soak = Soak(daemon, arguments.seed)
        try:
            if arguments.minutes > 0:
                soak.run(arguments.minutes)
            soak.idle(arguments.idle_seconds)
            _, queue = ask(daemon.address, "GET", "/v1/queue")
            if queue["jobs"]:
                soak.tell(f"jobs are left: {queue['jobs']}")
        finally:
            code = daemon.end()
    if code != 0:
        soak.tell(f"the daemon ended with {code}")
    print("jobs:", dict(soak.ended))
    print("peaks in MB:", {name: round(held / 1e6, 1) for name, held in soak.peaks.items()})
    print("greatest RSS in MB:", {name: round(held / 1e6, 1) for name, held in soak.rss.items()})
    for text in soak.wrong[:20]:
        print("wrong:", text)
    print(f"{len(soak.wrong)} wrong")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
