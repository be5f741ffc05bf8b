#!/usr/bin/env python3
"""What NVIDIA's assembler makes of the kernels that are shipped, executor/kernels/ptx, as a table in the repository: executor/kernels/ptxas.txt.

    scripts/ptxas_facts.py --write        compile all for each architecture, look through the code, write the table
    scripts/ptxas_facts.py --check        fail if the table is not of the shipped files, or, where the tools are, not what they say
    scripts/ptxas_facts.py --install      only put the tools' wheels into target/ptxas, where they are found from then on
    scripts/ptxas_facts.py --self-test    whether the lint finds what is planted in small listings, and, where the tools are, in a kernel
    scripts/ptxas_facts.py --loops NAME   of each kernel of a source its loops with products: their instructions, and the products among them

A line is a kernel on an architecture: registers, stack, spilled bytes, shared memory, how many blocks a multiprocessor runs together and
what bounds them, and how many loads there are of each width. A kernel to which a launch adds shared memory has lines where it is
started. Nothing is written where a kernel on tensor cores spills registers or uses local memory in a loop of products, where a warp may
have parted before an instruction that needs all of it, or where a kernel could not be launched.

The tools are ptxas of the version below and nvdisasm: of --ptxas and --nvdisasm, of BERTH_PTXAS and BERTH_NVDISASM, of target/ptxas, or of
PATH. Without them --check looks at digests only and says so. No GPU or driver is needed. A driver has an assembler of its own, of another version.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zlib

from sass import lint, listing, planted

ROOT = pathlib.Path(__file__).resolve().parent.parent
PTX = ROOT / "executor" / "kernels" / "ptx"
TABLE = ROOT / "executor" / "kernels" / "ptxas.txt"
VENV = ROOT / "target" / "ptxas"

PTXAS_VERSION = "12.9.86"
# Wheels for x86-64, with their digests.
WHEELS = {
    "nvidia-cuda-nvcc-cu12==12.9.86": "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
    "nvidia-cuda-nvdisasm==13.4.92": "f35a5b6ddb64b6758c22c0b078c5b6ff6d54f7c240cd74bf131ab5bf13b6c3fe",
}

# Of a multiprocessor: KiB of shared memory, threads and blocks (CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability").
MULTIPROCESSORS = {75: (64, 1024, 16), 80: (164, 2048, 32), 86: (100, 1536, 16), 89: (100, 1536, 24), 90: (228, 2048, 32), 120: (100, 1536, 24)}
REGISTERS = 65536
# Registers are handed out to a warp in pieces, warps to the four parts of a multiprocessor, shared memory in pieces, and from 8.0 on a
# block takes some for the system (CUDA occupancy calculator).
REGISTER_PIECE, PARTS = 256, 4
SHARED_PIECE = {75: 256}
SHARED_PIECE_LATER, SHARED_OF_SYSTEM = 128, 1024
# What is counted with for kernels that do not say how many threads a block has; they may have up to so many.
BLOCK, BLOCK_MAX = 256, 1024

# Whose code the self-test takes instructions out of.
CODE_OF_TEST = ("conv_half", 86)

HEAD = f"""# What ptxas {PTXAS_VERSION} makes of the kernels that are shipped: written by scripts/ptxas_facts.py --write, explained in docs/cuda.md.
# kernel                            arch cores  threads regs stack spills shared blocks (by shared memory/registers/threads) loads
"""


def sources() -> list[str]:
    return sorted({path.name.split(".")[0] for path in PTX.glob("*.ptx.z")})


def digest(source: str) -> str:
    """Of both shipped files of a source."""
    return "-".join(hashlib.sha256((PTX / f"{source}.{of}.ptx.z").read_bytes()).hexdigest()[:16] for of in (75, 80))


def text(source: str, architecture: int) -> str:
    """The PTX that is given to a GPU, as executor/src/backend/cuda/ptx.rs chooses it."""
    packed = (PTX / f"{source}.80.ptx.z").read_bytes() if architecture >= 80 else b""
    packed = packed or (PTX / f"{source}.75.ptx.z").read_bytes()
    return zlib.decompress(packed.partition(b"\n")[2]).decode()


def blocks(architecture: int, threads: int, registers: int, shared_bytes: int) -> tuple[int, int, int]:
    """How many blocks a multiprocessor runs together by shared memory, by registers, and by threads."""
    shared_kib, threads_max, blocks_max = MULTIPROCESSORS[architecture]
    piece = SHARED_PIECE.get(architecture, SHARED_PIECE_LATER)
    taken = -(-shared_bytes // piece) * piece + (SHARED_OF_SYSTEM if architecture >= 80 else 0)
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // REGISTER_PIECE) * REGISTER_PIECE
    by_registers = REGISTERS // PARTS // of_warp * PARTS // warps
    return shared_kib * 1024 // taken if taken else blocks_max, by_registers, min(threads_max // threads, blocks_max)


_SAID = re.compile(
    r"Compiling entry function '(\w+)'.*\n.*Function properties for \1\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*Used (\d+) registers(.*)"
)


def code(source: str, architecture: int, ptxas: str, nvdisasm: str | None, folder: str) -> tuple[str, str]:
    """What the assembler says of a source, and its code as a listing, empty without a disassembler."""
    path, cubin = pathlib.Path(folder, "kernels.ptx"), pathlib.Path(folder, "kernels.cubin")
    path.write_text(text(source, architecture))
    command = [ptxas, "-v", f"--gpu-name=sm_{architecture}", str(path), "-o", str(cubin)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    if not nvdisasm:
        return told, ""
    return told, subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout


def facts(task: tuple[str, int, str, str | None]) -> tuple[list[tuple[str, int, str]], list[tuple[str, int, str]]]:
    """The lines of a source on an architecture, by kernel, and what is wrong."""
    source, architecture, ptxas, nvdisasm = task
    ptx = text(source, architecture)
    bounds = dict(re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)", ptx))
    with tempfile.TemporaryDirectory() as folder:
        try:
            told, shown = code(source, architecture, ptxas, nvdisasm, folder)
        except subprocess.CalledProcessError as refused:
            return [], [(source, architecture, f"{refused.cmd[0]} fails: {refused.stderr.strip()}")]
    kernels = {kernel.name: kernel for kernel in listing.read(shown)}
    # Shared memory that a launch adds: a constant of the source.
    added = int(re.search(r"\bSHARED_BYTES = (\d+);", ptx)[1]) if ".extern .shared" in ptx else 0
    lines, problems = [], []
    said = {name: rest for name, *rest in _SAID.findall(told)}
    for name in re.findall(r"^\.visible \.entry (\w+)\(", ptx, re.MULTILINE):
        stack, stores, loads, registers, rest = said[name]
        shared = int(next(iter(re.findall(r"(\d+) bytes smem", rest)), 0)) + added
        threads = int(bounds.get(name, BLOCK))
        parts = blocks(architecture, threads, int(registers), shared)
        # The backend starts it where two blocks have room only.
        if added and parts[0] < 2:
            continue
        tensor = re.search(rf"\.entry {name}\((?:(?!\n}}\n).)*?\bmma\.sync", ptx, re.DOTALL) is not None
        widths = ", ".join(f"{space} {widths}" for space, widths in sorted(lint.loads(kernels[name]).items())) if nvdisasm else "?"
        line = (
            f"{name:35} {architecture / 10:>4} {'tensor' if tensor else '-':6} {bounds.get(name, '-'):>7} {registers:>4} {stack:>5} "
            f"{stores + '/' + loads:>6} {shared:>6} {min(parts):>6} ({'/'.join(map(str, parts))}) {widths}"
        )
        lines.append((name, architecture, line.rstrip()))
        wrong = lint.findings(kernels[name]) if nvdisasm else []
        if tensor and int(stores) + int(loads):
            wrong.append(f"{stores} bytes of spilled registers are stored and {loads} loaded")
        if name not in bounds and int(registers) * BLOCK_MAX > REGISTERS:
            wrong.append(f"{registers} registers are too many for a block of {BLOCK_MAX}: it needs __launch_bounds__")
        if min(parts) == 0:
            wrong.append("no block fits on a multiprocessor")
        problems += [(name, architecture, what) for what in wrong]
    return lines, problems


def version(tool: str) -> str:
    said = subprocess.run([tool, "--version"], capture_output=True, text=True)
    found = re.search(r"V(\d+\.\d+\.\d+)", said.stdout)
    return found[1] if found else "unknown"


def find(name: str, given: str | None) -> str | None:
    """A tool: the named one, else the first that is found."""
    named = given or os.environ.get(f"BERTH_{name.upper()}")
    if named:
        return named if shutil.which(named) else sys.exit(f"ptxas: there is no program {named}")
    installed = sorted(VENV.glob(f"lib/python3*/site-packages/nvidia/*/bin/{name}"))
    return str(installed[0]) if installed else shutil.which(name)


def install():
    """Puts the wheels into a virtual environment of their own."""
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pinned = VENV / "pinned.txt"
    pinned.write_text("".join(f"{wheel} --hash=sha256:{of}\n" for wheel, of in WHEELS.items()))
    pip = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", pinned], check=True)
    for tool in VENV.glob("lib/python3*/site-packages/nvidia/*/bin/*"):
        tool.chmod(tool.stat().st_mode | 0o111)


def table(ptxas: str, nvdisasm: str | None) -> tuple[str, list[str]]:
    """The table as it should be, and what is wrong."""
    tasks = [(source, architecture, ptxas, nvdisasm) for source in sources() for architecture in MULTIPROCESSORS]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(facts, tasks))
    parts = [HEAD]
    for source in sources():
        lines = sorted(line for task, (found, _) in zip(tasks, results) if task[0] == source for line in found)
        parts += [f"file {source} {digest(source)}\n", *(line + "\n" for _, _, line in lines)]
    problems = [f"{name} for sm_{architecture}: {what}" for _, found in results for name, architecture, what in found]
    return "".join(parts), problems


def without_loads(line: str) -> str:
    return line if line.startswith(("#", "file ")) else line.partition(")")[0]


def check(given) -> int:
    shown = TABLE.read_text().splitlines() if TABLE.exists() else []
    has = dict(line.split(" ")[1:] for line in shown if line.startswith("file "))
    failures = 0
    for source in sorted(set(sources()) | set(has)):
        is_shipped = source in sources()
        if not is_shipped or has.get(source) != digest(source):
            print(f"ptxas: {TABLE.relative_to(ROOT)} is not of {source} as it is shipped: run scripts/ptxas_facts.py --write")
            failures += 1
    ptxas, nvdisasm = find("ptxas", given.ptxas), find("nvdisasm", given.nvdisasm)
    of = version(ptxas) if ptxas else None
    if failures or of != PTXAS_VERSION:
        why = f"ptxas here is {of}" if ptxas else "no ptxas is here"
        if not failures:
            print(f"ptxas: {why}, and the table is by {PTXAS_VERSION}, so only digests were compared, of {len(has)} files: all good; "
                  "`scripts/ptxas_facts.py --install` fetches the tools")
        return 1 if failures or given.require else 0
    if not nvdisasm:
        print("ptxas: no nvdisasm is here, so the code is not looked through; `scripts/ptxas_facts.py --install` fetches it")
    wanted, problems = table(ptxas, nvdisasm)
    wanted = wanted.splitlines()
    compare = (lambda line: line) if nvdisasm else without_loads
    if list(map(compare, shown)) != list(map(compare, wanted)):
        different = [line for line in wanted if compare(line) not in set(map(compare, shown))]
        print(f"ptxas: {len(different)} lines of {TABLE.relative_to(ROOT)} are not what ptxas says: run scripts/ptxas_facts.py --write")
        print("\n".join(different[:5]))
        failures += 1
    for problem in problems:
        print(f"ptxas: {problem}")
    failures += len(problems)
    print(f"ptxas: {len(wanted)} lines: {f'{failures} failures' if failures else 'all good'}")
    return 1 if failures or given.require and not nvdisasm else 0


def write(given) -> int:
    ptxas, nvdisasm = find("ptxas", given.ptxas), find("nvdisasm", given.nvdisasm)
    if not ptxas or not nvdisasm or version(ptxas) != PTXAS_VERSION:
        print(f"ptxas: ptxas {PTXAS_VERSION} and nvdisasm are needed; `scripts/ptxas_facts.py --install` puts them into target/ptxas")
        return 1
    made, problems = table(ptxas, nvdisasm)
    for problem in problems:
        print(f"ptxas: {problem}")
    if problems:
        print("ptxas: nothing is written")
        return 1
    TABLE.write_text(made)
    print(f"ptxas: {len(made.splitlines())} lines written")
    return 0


def self_test(given) -> int:
    wrong = planted.wrong()
    for problem in wrong:
        print(f"ptxas: {problem}")
    print(f"ptxas: {len(planted.PLANTED) - len(wrong)} of {len(planted.PLANTED)} small listings read as they are")
    ptxas, nvdisasm = find("ptxas", given.ptxas), find("nvdisasm", given.nvdisasm)
    if ptxas and nvdisasm:
        with tempfile.TemporaryDirectory() as folder:
            kernels = listing.read(code(*CODE_OF_TEST, ptxas, nvdisasm, folder)[1])
        counts, missed = zip(*map(planted.unnoticed, kernels))
        wrong += sum(missed, [])
        for kernel in sum(missed, []):
            print(f"ptxas: not noticed where it is taken out: {kernel}")
        noticed = sum(counts) - len(sum(missed, []))
        print(f"ptxas: of {sum(counts)} instructions that join a warp in {CODE_OF_TEST[0]} {noticed} are noticed when they are taken out")
    return 1 if wrong else 0


def loops(given) -> int:
    ptxas, nvdisasm = find("ptxas", given.ptxas), find("nvdisasm", given.nvdisasm)
    if given.loops not in sources() or not ptxas or not nvdisasm:
        print(f"ptxas: ptxas and nvdisasm are needed, and one of {', '.join(sources())}")
        return 1
    for architecture in MULTIPROCESSORS:
        with tempfile.TemporaryDirectory() as folder:
            kernels = listing.read(code(given.loops, architecture, ptxas, nvdisasm, folder)[1])
        for kernel in kernels:
            told = ", within ".join(f"{count} instructions with {products} products" for count, products in lint.product_loops(kernel))
            print(f"{kernel.name} {architecture / 10}: {told or 'no loop with products'}")
    return 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the table")
    action.add_argument("--check", action="store_true", help="compare the table")
    action.add_argument("--install", action="store_true", help="only put the tools into target/ptxas; needs a network")
    action.add_argument("--self-test", action="store_true", help="only whether the lint finds what is planted")
    action.add_argument("--loops", metavar="NAME", help="only show a source's loops with products")
    parser.add_argument("--ptxas", metavar="PATH", help="the assembler")
    parser.add_argument("--nvdisasm", metavar="PATH", help="the disassembler")
    parser.add_argument("--require", action="store_true", help="fail where a tool is missing")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.install:
        install()
        return 0
    if given.self_test:
        return self_test(given)
    if given.loops:
        return loops(given)
    return write(given) if given.write else check(given)


if __name__ == "__main__":
    sys.exit(main())
