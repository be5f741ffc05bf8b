"""What is here: the GPU, its driver, NVML, and libraries that may help."""

import ctypes
import ctypes.util
import json
import os
import pathlib
import statistics
import sys

import nvml
from results import Failed, Figure
from stand import last_line

# 11.4 and 7.5: what docs/cuda.md promises to run on.
DRIVER_MIN, CAPABILITY_MIN = 11040, (7, 5)

# Starts of `berth devices` that are timed.
STARTS = 5


def environment(stand):
    try:
        driver = ctypes.CDLL(os.environ.get("BERTH_CUDA_DRIVER", "libcuda.so.1"))
    except OSError as error:
        raise Failed(f"no CUDA driver: {error}") from None
    code = driver.cuInit(0)
    if code != 0:
        raise Failed(f"cuInit answers {code}")
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    gpu = stand.gpu()
    capability, name = gpu.capability(), stand.device()["name"]
    lt = cublaslt()
    stand.log(f"cuBLASLt: {lt or 'not found'}")
    found = f"{name}, {capability}, CUDA {version.value // 1000}.{version.value % 1000 // 10}, driver {nvml.Nvml().driver()}"
    major, minor = capability.split(".")
    if version.value < DRIVER_MIN or (int(major), int(minor)) < CAPABILITY_MIN:
        raise Failed(found, "CUDA 11.4, capability 7.5")
    text = f"{found}, cuBLASLt {'found' if lt else 'not found'}"
    return Figure(text, "CUDA 11.4, capability 7.5", {"capability": capability, "cublaslt": lt})


def cublaslt():
    """Where a cuBLASLt is: beside the toolkit, of the system, or of a wheel that torch came with."""
    folders = [pathlib.Path(folder) for folder in (os.environ.get("BERTH_CUDA_PATH"), "/usr/local/cuda") if folder]
    folders = [folder / below for folder in folders for below in ("lib64", "lib", "")]
    for entry in map(pathlib.Path, sys.path):
        folders += sorted(entry.glob("nvidia/*/lib"))
    for folder in folders:
        for path in sorted(folder.glob("libcublasLt.so.*")):
            return str(path)
    return ctypes.util.find_library("cublasLt")


def start(stand):
    times = []
    for _ in range(STARTS):
        times.append(stand.home("devices").berth(["devices", "--json"]).seconds)
    device = stand.device()
    text = f"{device['id']}, {device['total_bytes'] >> 20} MiB, {1e3 * statistics.median(times):.0f} ms"
    return Figure(text, "a cuda device", {"ms": [1e3 * time for time in times]})


def self_test(stand):
    """Twice: the driver compiles the kernels in the first, and has them in its cache in the second."""
    home = stand.home().profile()
    times_ms, commands_ms = [], []
    for _ in range(2):
        ended = home.berth(["calibrate", "--self-test", "--json", "--host", "./host.toml"], code=None)
        if not ended.stdout.strip():
            raise Failed(f"exit code {ended.code}: {last_line(ended.stderr)}")
        device = json.loads(ended.stdout)["devices"][0]
        times_ms.append(device["ms"])
        commands_ms.append(1e3 * ended.seconds)
        if device["differences"] or ended.code != 0:
            kernels = sorted({kernel for difference in device["differences"] for kernel in difference["kernels"]})
            raise Failed(f"exit code {ended.code}, wrong: {', '.join(kernels)}"[:160], "as the host")
    first, compiled = (f"{ms:.0f} ms, {command:.0f} ms by the whole command" for ms, command in zip(times_ms, commands_ms))
    text = f"{len(device['families'])} families in {first}; {compiled} when compiled"
    figures = {"first_ms": times_ms[0], "compiled_ms": times_ms[1], "first_command_ms": commands_ms[0], "compiled_command_ms": commands_ms[1]}
    return Figure(text, "as the host", figures)
