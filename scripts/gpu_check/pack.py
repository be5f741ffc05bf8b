"""`--pack`: the programs, stripped, in one archive beside a manifest, for a machine without Rust.

They need a libc that is no older than this machine's (`ldd --version`); nothing else but the driver. The archive is
compressed by xz, which Python reads on every machine with liblzma: a carried copy of the repository with it should stay within
`CARRIED_BYTES_MAX`, which is reported.
"""

import json
import os
import pathlib
import platform
import shutil
import subprocess
import tarfile
import tempfile

import programs

ARCHIVE = "programs.tar.xz"
# What a machine with a GPU was seen to take of a working tree.
CARRIED_BYTES_MAX = 64 << 20


def pack(folder):
    """Writes archive and manifest; the exit code."""
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
    libc = " ".join(platform.libc_ver())
    manifest = {
        "archive": ARCHIVE,
        "programs": {program: program for program in made.paths},
        "commit": built_from,
        "machine": platform.machine(),
        "libc": libc,
    }
    (folder / programs.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    packed_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    tree_bytes = tree()
    print(f"{folder}: {mib(packed_bytes)}, for {platform.machine()} with {libc} or later")
    sums = f"{mib(tree_bytes)} of the repository's files, {mib(tree_bytes + packed_bytes)} in all"
    print(f"to carry: {sums}, of at most {mib(CARRIED_BYTES_MAX)}")
    return 0 if tree_bytes + packed_bytes <= CARRIED_BYTES_MAX else 1


def mib(count):
    return f"{count / (1 << 20):.1f} MiB"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=programs.ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def commit():
    """The commit that is checked out, with `+` where files differ from it; `unknown` without git."""
    head = git("rev-parse", "--short=12", "HEAD").strip()
    return (head + ("+" if git("status", "--porcelain") else "")) or "unknown"


def tree():
    """Bytes of the files that are tracked, or new and not ignored."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    paths = [os.path.join(programs.ROOT, name) for name in names if name]
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
