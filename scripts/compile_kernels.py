#!/usr/bin/env python3
"""Compiles executor/kernels/*.cu with NVRTC for every architecture, and writes or checks the PTX that is shipped.

    scripts/compile_kernels.py               compile for every architecture; any warning is a failure
    scripts/compile_kernels.py --write       the same, then write executor/kernels/ptx/ and executor/kernels/compiled.txt
    scripts/compile_kernels.py --check       fail if executor/kernels/ptx/ is not of the sources; compile what compiled.txt lacks
    scripts/compile_kernels.py --install     only put NVRTC's wheels into target/nvrtc, where they are found from then on
    scripts/compile_kernels.py --install-if-needed    the same, if compiled.txt lacks a kernel
    scripts/compile_kernels.py --resources norm --arch 80    registers, spills and shared memory of each kernel of norm.cu

No GPU, driver or CUDA toolkit is needed, only Python and NVRTC: the wheels in target/nvrtc or of the running Python, or
what --nvrtc names. Two versions are used: an old one makes what is shipped, so that drivers of its age take it, and a
newer one compiles for the architectures that came after. What is shipped is marked as an older version of PTX than the compiler
writes, and an assembler of that age must take it. Without NVRTC it says so and succeeds, unless --require is given.
compiled.txt has the digests of the sources that were compiled for all architectures, by those versions, without a warning.
"""

import argparse
import ctypes
import hashlib
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "executor" / "kernels"
PTX = KERNELS / "ptx"
COMPILED = KERNELS / "compiled.txt"
VENV = ROOT / "target" / "nvrtc"

# Every generation from compute capability 7.5 on that has consumer or data-centre cards.
ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
ALL_ARCHITECTURES = ",".join(map(str, ARCHITECTURES))
# What is shipped; a driver compiles it for every later architecture.
SHIPPED = [75, 80]
# The version that makes it. It writes PTX 8.4.
SHIPPING_VERSION = (12, 4)
COMPILERS = ["nvidia-cuda-nvrtc-cu12==12.4.127", "nvidia-cuda-nvrtc==13.5.37"]
VERSIONS = {tuple(map(int, re.search(r"==(\d+)\.(\d+)", wheel).groups())) for wheel in COMPILERS}
# What it is shipped as, so that older drivers take it: versions that have all that the kernels use. PTX 7.1 is of CUDA 11.1, and 6.5
# of 10.2 (PTX ISA, "Release Notes"); executor/src/backend/cuda/driver.rs says which driver is the oldest for other reasons.
PTX_VERSIONS = {75: "6.5", 80: "7.1"}
# The oldest assembler that there is as a wheel: it knows nothing of later versions.
ASSEMBLER = "nvidia-cuda-nvcc-cu11==11.7.99"
WHEELS = [*COMPILERS, ASSEMBLER]


class Nvrtc:
    """One library of NVRTC."""

    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.library.nvrtcGetErrorString(code).decode()}")

    def architectures(self):
        count = ctypes.c_int()
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", found)
        return list(found)

    def text(self, program, what):
        """The log or the PTX of a program."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def compile(self, source, architecture, options):
        """The log, and the PTX if there was no error. It goes through the assembler too."""
        program = ctypes.c_void_p()
        code = source.read_bytes()
        self.call("nvrtcCreateProgram", ctypes.byref(program), code, source.name.encode(), 0, None, None)
        options = [f"--gpu-architecture=sm_{architecture}", f"--include-path={KERNELS}", "--std=c++17", *options]
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), encoded) != 0
        log = self.text(program, "ProgramLog").strip()
        # Calls are numbered through all that this process has compiled.
        ptx = None if failed else re.sub(r"callseq \d+", "callseq", self.text(program, "PTX"))
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return (log or "it failed without a word" if failed else log), ptx


def candidates(named):
    """Where NVRTC may be, the first wins among those of one version."""
    for path in map(pathlib.Path, named):
        yield from [path] if path.is_file() else sorted(path.rglob("libnvrtc.so*"))
    places = [*VENV.glob("lib/python*/site-packages"), pathlib.Path(sysconfig.get_path("purelib"))]
    for place in places:
        yield from sorted(place.glob("nvidia/*/lib/libnvrtc.so.*"))


def lowered(ptx, architecture):
    """PTX of the compiler as an older version of the same. What it says of bytes that no load uses is a hint (PTX ISA 8.3), and new."""
    ptx = re.sub(r'^[ \t]*\.pragma "used_bytes_mask [^\n]*\n', "", ptx, flags=re.MULTILINE)
    return re.sub(r"^\.version .*$", f".version {PTX_VERSIONS[architecture]}", ptx, count=1, flags=re.MULTILINE)


def find_assembler():
    """The old assembler, where it is: a program."""
    places = [*VENV.glob("lib/python*/site-packages"), pathlib.Path(sysconfig.get_path("purelib"))]
    paths = [place / "nvidia" / "cuda_nvcc" / "bin" / "ptxas" for place in places]
    return next((path for path in paths if path.exists()), None)


def refused(assembler, ptx, architecture):
    """What the assembler has against PTX, if anything."""
    command = [assembler, "--opt-level", "0", "--gpu-name", f"sm_{architecture}", "--output-file", os.devnull, "/dev/stdin"]
    done = subprocess.run(command, input=ptx, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{assembler.name} {done.stderr.strip()[:500]}"


def is_library(path):
    return "builtins" not in path.name and ".alt." not in path.name


def find(named):
    """Every NVRTC that is here, by its version."""
    found = {}
    for path in filter(is_library, candidates(named)):
        library = Nvrtc(path)
        found.setdefault(library.version, library)
    return found


def install():
    """Puts the wheels into a virtual environment of their own."""
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    # Not two versions in one folder: the compilers' wheels lie in different ones.
    command = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *WHEELS]
    subprocess.run(command, check=True)


def choose(libraries, architecture):
    """The version that compiles for an architecture: the shipping one where it can, else the newest."""
    able = [version for version, library in libraries.items() if architecture in library.architectures()]
    if SHIPPING_VERSION in able:
        return SHIPPING_VERSION
    return max(able, default=None)


LOADED = {}


def work(task):
    """One compilation, in a process of its own: a library compiles one program at a time."""
    source, version, path, architecture, options, assembler = task
    if path not in LOADED:
        LOADED[path] = Nvrtc(path)
    log, ptx = LOADED[path].compile(source, architecture, options)
    if ptx and version == SHIPPING_VERSION and architecture in SHIPPED:
        ptx = lowered(ptx, architecture)
        log += refused(assembler, ptx, architecture) if assembler else ""
    return source, version, architecture, log, ptx


def tasks(sources, architectures, libraries, options, assembler):
    """Every compilation, those that took longest before first, and the architectures that no library here can do."""
    pairs = [(architecture, choose(libraries, architecture)) for architecture in architectures]
    missing = [architecture for architecture, version in pairs if version is None]
    # The newest compiler's warnings are seen for all kernels on the oldest architecture too.
    newest = max(libraries)
    if 75 in architectures and 75 in libraries[newest].architectures():
        pairs = dict.fromkeys([*pairs, (75, newest)])
    todo = [
        (source, version, libraries[version].path, architecture, options, assembler)
        for source in sorted(sources, key=lambda source: -ptx_bytes(source))
        for architecture, version in pairs
        if version is not None
    ]
    return todo, missing


# A shipped file is a line with the names of its kernels and the digest of its source, then PTX as a zlib stream, as
# executor/src/backend/cuda/ptx.rs reads it. One for a later architecture is empty where that of the first would be the same.
# The compiler does not give the same text each time: what tells whether a file is that of its source is the digest.


def digest(source):
    """Of a source, of all that it includes, and of the versions of compiler and PTX."""
    seen, open_files = {}, [source]
    while open_files:
        path = open_files.pop()
        if path.name not in seen:
            seen[path.name] = path.read_bytes()
            named = re.findall(r'^#include "(\w+\.cuh)"', seen[path.name].decode(), re.MULTILINE)
            open_files += [KERNELS / name for name in named]
    whole = hashlib.sha256(repr((SHIPPING_VERSION, PTX_VERSIONS)).encode())
    for name in sorted(seen):
        whole.update(name.encode() + b"\n" + seen[name])
    return f"source={whole.hexdigest()[:16]}"


def ptx_path(source, architecture):
    return PTX / f"{source.stem}.{architecture}.ptx.z"


def ptx_bytes(source):
    path = ptx_path(source, SHIPPED[0])
    return path.stat().st_size if path.exists() else 0


def write_ptx(path, text, source):
    names = re.findall(r"^\.visible \.entry (\w+)\($", text, re.MULTILINE)
    line = " ".join([*names, digest(source)]).encode()
    path.write_bytes(line + b"\n" + zlib.compress(text.encode(), 9) if text else b"")


def without_copies(compiled):
    """What is shipped of the PTX of each source and architecture, by path."""
    shipped = {}
    for (source, architecture), text in compiled.items():
        first = compiled.get((source, SHIPPED[0]))
        same = architecture != SHIPPED[0] and first == text.replace(f".target sm_{architecture}\n", f".target sm_{SHIPPED[0]}\n")
        shipped[ptx_path(source, architecture)] = "" if same else text
    return shipped


def stale(source):
    """Whether the shipped files of a source are of another state of it."""
    first = ptx_path(source, SHIPPED[0])
    line = first.read_bytes().partition(b"\n")[0].decode() if first.exists() else ""
    there = all(ptx_path(source, architecture).exists() for architecture in SHIPPED)
    return not there or digest(source) not in line.split(" ")


def left_over():
    """Files of the PTX folder without a source."""
    known = {ptx_path(source, architecture) for source in KERNELS.glob("*.cu") for architecture in SHIPPED}
    return [path for path in PTX.glob("*") if path not in known]


def compiled_by():
    """The first line of compiled.txt: what its kernels were compiled by, and for."""
    return f"{' '.join(WHEELS)} for {ALL_ARCHITECTURES}"


def recorded():
    """The digests of the sources that were compiled for every architecture without a warning, by name."""
    lines = COMPILED.read_text().splitlines() if COMPILED.exists() else []
    if lines[:1] != [compiled_by()]:
        return {}
    return dict(line.split(" ") for line in lines[1:])


def unrecorded(sources):
    """The sources that were not, as they are."""
    known = recorded()
    return [source for source in sources if known.get(source.stem) != digest(source)]


def record(sources):
    """Notes that these were; forgets those that are gone."""
    known = recorded() | {source.stem: digest(source) for source in sources}
    lines = [f"{name} {known[name]}" for name in sorted(known) if (KERNELS / f"{name}.cu").exists()]
    COMPILED.write_text("\n".join([compiled_by(), *lines]) + "\n")


def check_shipped(sources):
    """How many shipped files are not of their source; tells of each."""
    wrong = [ptx_path(source, SHIPPED[0]) for source in sources if stale(source)] + left_over()
    for path in wrong:
        print(f"{path.relative_to(ROOT)} is not what its source gives: run scripts/compile_kernels.py --write")
    return len(wrong)


def write(sources, shipped):
    PTX.mkdir(exist_ok=True)
    for source in filter(stale, sources):
        for architecture in SHIPPED:
            path = ptx_path(source, architecture)
            write_ptx(path, shipped[path], source)
    for path in left_over():
        path.unlink()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help="names of .cu files, without the ending; all if there is none")
    parser.add_argument("--arch", default=ALL_ARCHITECTURES, help="for example 75,80")
    parser.add_argument("--nvrtc", action="append", default=[], metavar="PATH", help="a libnvrtc.so, or a folder with some")
    parser.add_argument("--install", action="store_true", help="only put the wheels into target/nvrtc; needs a network")
    parser.add_argument("--install-if-needed", action="store_true", help="the same, where a kernel must be compiled")
    parser.add_argument("--require", action="store_true", help="fail where a compiler is missing")
    parser.add_argument("--resources", action="store_true", help="print what the assembler says of each kernel")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write the PTX that is shipped")
    action.add_argument("--check", action="store_true", help="compare the PTX that is shipped, compile what changed")
    return parser.parse_args()


def main():
    given = arguments()
    sources = sorted(KERNELS.glob("*.cu"))
    if given.kernels:
        sources = [KERNELS / f"{name}.cu" for name in given.kernels]
    if given.install or given.install_if_needed:
        if given.install or unrecorded(sources):
            install()
        return 0
    failures, known = 0, 0
    if given.check:
        failures = check_shipped(sources)
        changed = unrecorded(sources)
        known, sources = len(sources) - len(changed), changed
        if not sources:
            print(f"kernels: {known} files as they were compiled: {f'{failures} failures' if failures else 'all good'}")
            return 1 if failures else 0
    libraries = find(given.nvrtc)
    needs_shipping = (given.write or given.check) and SHIPPING_VERSION not in libraries
    if not libraries or needs_shipping:
        version = "12.4 " if libraries else ""
        print(f"kernels: no NVRTC {version}is here; `scripts/compile_kernels.py --install` puts it into target/nvrtc")
        return 1 if given.require or given.write or failures else 0
    assembler = find_assembler()
    if assembler is None:
        print("kernels: no old assembler is here, so whether older drivers take the PTX is not checked; --install fetches it")
        failures += 1 if given.require or given.write else 0
    options = ["--ptxas-options=-v"] if given.resources else []
    todo, missing = tasks(sources, [int(text) for text in given.arch.split(",")], libraries, options, assembler)
    # A forked process would share the parent's compiler.
    with multiprocessing.get_context("spawn").Pool(min(os.cpu_count() or 1, len(todo) or 1)) as pool:
        results = pool.map(work, todo, chunksize=1)

    compiled = {}
    for source, version, architecture, log, ptx in results:
        if log and not (given.resources and ptx):
            failures += 1
        if log:
            print(f"{source.name} for sm_{architecture} by {'.'.join(map(str, version))}:\n{log}\n")
        if ptx and version == SHIPPING_VERSION and architecture in SHIPPED:
            compiled[source, architecture] = ptx
    shipped = without_copies(compiled)
    for architecture in missing:
        print(f"kernels: no NVRTC here compiles for sm_{architecture}")
    failures += len(missing) if given.require else 0
    if given.write and failures == 0:
        write(sources, shipped)
        # What the assembler says of resources hides its warnings.
        if given.arch == ALL_ARCHITECTURES and VERSIONS <= set(libraries) and not given.resources:
            record(sources)
    done = f"{len(sources)} files, {len(todo)} compilations, NVRTC {' and '.join('.'.join(map(str, v)) for v in sorted(libraries))}"
    print(f"kernels: {done}: {f'{failures} failures' if failures else 'all good'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
