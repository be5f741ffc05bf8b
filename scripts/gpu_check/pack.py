"""`--pack`: a folder with all that a machine without Rust and without the repository needs.

In it are these scripts, a manifest, and an archive of the programs, stripped, and of what the tests read of the repository.
The programs need a libc that is no older than this machine's (`ldd --version`); nothing else but the driver. The archive is
compressed by xz, which Python reads on every machine with liblzma. The folder should stay within `CARRIED_BYTES_MAX`.
"""

import json
import pathlib
import platform
import shutil
import subprocess
import tarfile
import tempfile

import programs

ARCHIVE = "programs.tar.xz"
# What a machine with a GPU was seen to take.
CARRIED_BYTES_MAX = 64 << 20
# What those tests read that run on a GPU, as patterns of git, and the scripts themselves.
FIXTURES = [
    "flux_dev",
    "flux_schnell",
    "flux_single",
    "golden/demo.*",
    "golden/flux_[ds]*",
    "golden/quant_blocks.*",
    "golden/clip_full.*",
    "gguf/flux_dev-Q8_0.*",
    "gguf/flux_single-*",
    "single/flux_single_[acft]*",
]
READ = [*(f"tests/fixtures/{name}" for name in FIXTURES), "planner/demo/model", "executor/src/tokenizer/builtin"]
SCRIPTS = ["scripts/gpu-check.sh", "scripts/gpu_check", "scripts/torch_reference.py", "scripts/gguf_transformer.py"]


def pack(folder):
    """Writes scripts, archive and manifest; the exit code."""
    built_from = commit()
    made = programs.built()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        stripped = pathlib.Path(name)
        with tarfile.open(folder / ARCHIVE, "w:xz", preset=6) as archive:
            for program, path in made.paths.items():
                shutil.copy(path, stripped / program)
                subprocess.run(["strip", stripped / program], check=True)
                archive.add(stripped / program, arcname=program)
                print(f"{program}: {(stripped / program).stat().st_size >> 10} KiB")
            for path in tracked(READ):
                archive.add(programs.ROOT / path, arcname=path)
    for path in tracked(SCRIPTS):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(programs.ROOT / path, target)
    libc = " ".join(platform.libc_ver())
    manifest = {
        "archive": ARCHIVE,
        "programs": {program: program for program in made.paths},
        "commit": built_from,
        "machine": platform.machine(),
        "libc": libc,
    }
    (folder / programs.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    packed_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {mib(packed_bytes)} of at most {mib(CARRIED_BYTES_MAX)}, for {platform.machine()} with {libc} or later")
    return 0 if packed_bytes <= CARRIED_BYTES_MAX else 1


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=programs.ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def commit():
    """The commit that is checked out, with `+` where files differ from it; `unknown` without git."""
    head = git("rev-parse", "--short=12", "HEAD").strip()
    return (head + ("+" if git("status", "--porcelain") else "")) or "unknown"


def tracked(places):
    """The files below these places of the repository that git knows."""
    names = git("ls-files", "-z", "--", *places).split("\0")
    return [name for name in names if name and (programs.ROOT / name).is_file()]
