"""Where checks run: the GPU, the programs, models, homes for `berth`, and a log for each check.

A check gets a `Stand` and says `stand.berth(…)` or `stand.command(…)`; both write all that was run and answered into the log, and
end what they started. `stand.simulated` is true on the simulated driver: sizes are small there, and times mean nothing.
"""

import json
import os
import shutil
import time

import nvml
import processes
from results import Failed, Skipped

# What a job on the small models is: for the simulated GPU the shape of tests/cuda.rs.
SMALL_SHAPE = ["--width", "32", "--height", "32", "--steps", "2", "--max-sequence-length", "16"]


class Stand:
    def __init__(self, out, quick):
        self.out, self.quick, self.programs = out, quick, None
        self.simulated = "BERTH_SIMULATOR" in os.environ
        self.work = out / "work"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        # The driver compiles each kernel once for all checks, and anew for each run of them.
        os.environ["CUDA_CACHE_PATH"] = str(self.work / "compiled")
        self.log_path, self.ends_at = out / "setup.log", time.monotonic() + 60
        self.kept, self.homes, self.left_behind = {}, 0, []

    def begin(self, name, seconds):
        """The next check, and the time that it has."""
        self.log_path, self.ends_at = self.out / f"{name}.log", time.monotonic() + seconds
        self.log_path.write_text("")

    def log(self, text):
        with self.log_path.open("a") as file:
            file.write(text.rstrip("\n") + "\n")

    def seconds_left(self):
        return max(self.ends_at - time.monotonic(), 0.1)

    def check_time(self):
        if time.monotonic() > self.ends_at:
            raise Failed("its time is over")

    def remove_later(self, folder):
        """A folder outside of `out` that is to be gone at the end."""
        self.left_behind.append(folder)

    def clear(self):
        """The models and homes go; logs stay."""
        for folder in [self.work, *self.left_behind]:
            shutil.rmtree(folder, ignore_errors=True)

    def need(self, name):
        path = self.programs.path(name)
        if path is None:
            raise Skipped(f"there is no program {name} among those given")
        return path

    def command(self, command, cwd=None, env=None, code=0):
        """Runs to the end within the check's time; any exit code with `code=None`."""
        self.log("$ " + " ".join(str(word) for word in command))
        try:
            ended = processes.run(command, self.seconds_left(), cwd, env)
        except processes.TooLong as error:
            self.log(str(error))
            raise Failed(str(error).splitlines()[0]) from None
        self.log(f"{ended.stdout}\n{ended.stderr}\nexit code {ended.code}, {ended.seconds:.1f} s")
        if code is not None and ended.code != code:
            raise Failed(f"exit code {ended.code}: {last_line(ended.stderr)}")
        return ended

    def home(self, name=None):
        """A new directory to run `berth` in, with nothing learnt; or the one of that name."""
        self.homes += name is None
        return Home(self, self.work / (name or f"home{self.homes}"))

    def keep(self, name, make):
        """What `make` gives, made once; what it raised is raised again."""
        if name not in self.kept:
            try:
                self.kept[name] = (make(), None)
            except (Failed, Skipped) as error:
                self.kept[name] = (None, error)
        value, error = self.kept[name]
        if error:
            raise error
        return value

    def devices(self):
        """The GPUs, as `berth devices` tells them."""

        def ask():
            found = json.loads(self.home("devices").berth(["devices", "--json"]).stdout)
            gpus = [device for device in found["devices"] if device["kind"] == "cuda"]
            why_none = found["why_no_devices"] or found["why_no_cuda"]
            if why_none or not gpus:
                raise Failed(f"no GPU: {why_none}")
            return gpus

        return self.keep("devices", ask)

    def device(self):
        """The first of them."""
        return self.devices()[0]

    def gpu(self):
        """The first GPU, as NVML tells it."""

        def ask():
            try:
                return nvml.Nvml().gpu(self.device()["uuid"])
            except OSError as error:
                raise Failed(f"NVML: {error}") from None

        return self.keep("gpu", ask)

    def wide(self):
        """The small model whose matrices can be split by rows."""

        def write():
            if "wide" in self.programs.models:
                return self.programs.models["wide"]
            folder = self.work / "wide"
            self.command([self.need("wide_model"), folder], env=self.environment())
            return folder

        return self.keep("wide", write)

    def environment(self):
        """For programs of Berth's tests and examples."""
        told = {"BERTH_TEST_ROOT": self.programs.root, "BERTH_TEST_GPU": "1", "BERTH_TEST_PROGRAM": self.need("berth")}
        return {**os.environ, **{name: str(value) for name, value in told.items()}}


class Home:
    """A directory of its own for `berth`: cache, settings and what it learns lie within."""

    def __init__(self, stand, folder):
        self.stand, self.folder, self.variables = stand, folder, {}
        for name in ("runtime", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def path(self, name):
        return self.folder / name

    def environment(self):
        own = {
            "XDG_CACHE_HOME": "cache",
            "XDG_CONFIG_HOME": "config",
            "XDG_STATE_HOME": "state",
            "XDG_RUNTIME_DIR": "runtime",
            "BERTH_SYSTEM_DIR": "system",
            "TMPDIR": "tmp",
        }
        others = ("BERTH_HOST", "BERTH_EXECUTOR", "BERTH_LOG", "BERTH_STATE_DIR")
        kept = {name: value for name, value in os.environ.items() if name not in others}
        return {**kept, **{name: str(self.folder / value) for name, value in own.items()}, **self.variables}

    def profile(self, ordinals=(0,), share=1.0):
        """Writes `host.toml`: these GPUs as devices, which together have at most this share of a GPU's memory."""
        text = 'name = "gpu-check"\n[host]\ncompute = false\n'
        for ordinal in ordinals:
            total_bytes = int(self.stand.devices()[ordinal]["total_bytes"] * share) // len(ordinals)
            text += f'[[device]]\nkind = "cuda"\nordinal = {ordinal}\ntotal = "{total_bytes}B"\n'
        (self.folder / "host.toml").write_text(text)
        return self

    def without_library(self):
        """Products by our kernels alone: cuBLASLt chooses by the whole shape, so that parts differ from a whole in the last bits."""
        self.variables["BERTH_CUDA_PATH"] = ""
        return self

    def berth(self, arguments, code=0):
        return self.stand.command([self.stand.need("berth"), *arguments], self.folder, self.environment(), code)

    def generate(self, model, arguments, code=0, shape=SMALL_SHAPE):
        """A picture `picture.png`, from a seed; what was said of it, as JSON."""
        job = ["--prompt", "a red circle", "--seed", "7", "--output", "picture.png", "--json", "--host", "./host.toml"]
        return json.loads(self.berth(["generate", *filter(None, [model]), *shape, *job, *arguments], code).stdout)

    def plan(self, model, arguments, code=0, shape=SMALL_SHAPE):
        job = ["--dry-run", "--json", "--host", "./host.toml"]
        return json.loads(self.berth(["plan", *filter(None, [model]), *shape, *job, *arguments], code).stdout)


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def peaks(document):
    """Predicted and measured peak bytes of each device in each phase."""
    for device in document["usage"]["devices"]:
        for phase in device["phases"]:
            yield device["id"], phase["phase"], phase["predicted_peak_bytes"], phase["measured_peak_bytes"]


def require_exact(document, what):
    for device, phase, predicted, measured in peaks(document):
        if predicted != measured:
            raise Failed(f"{what}: {device} {phase}: {measured} B measured, {predicted} B predicted")


def component(plan, name):
    return next(component for component in plan["components"] if component["name"] == name)


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"
