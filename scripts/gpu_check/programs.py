"""The programs that the checks run: unpacked from what `--pack` wrote, named by a manifest, or built by cargo.

A manifest is `manifest.json`: `programs`, a file for each name, within the folder or anywhere; perhaps `archive`, which holds
those files and what tests read of the repository, and `models`, folders of models that are already written. Programs of Berth's
tests bake in the paths of the machine that built them; `BERTH_TEST_ROOT` and `BERTH_TEST_PROGRAM` tell them where they are now
(tests/support/place.rs).
"""

import json
import pathlib
import shutil
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MANIFEST = "manifest.json"
TESTS = ["engine", "gpu"]
EXAMPLES = ["wide_model", "sparse_flux_dev", "gpu_products"]


class NoPrograms(Exception):
    """There are none, and this is how to get them."""


class Programs:
    def __init__(self, paths, models=None, commit=None, root=ROOT):
        # `commit` is what packed programs were built from; those built now are from what is checked out. `root` is where tests
        # find what they read of the repository.
        self.paths, self.models, self.commit, self.root = paths, models or {}, commit, root

    def path(self, name):
        """Where a program is, or None."""
        return self.paths.get(name)


def given(folder, unpacked):
    """Those of a folder with a manifest; an archive goes into the folder `unpacked`."""
    if not (folder / MANIFEST).is_file():
        raise NoPrograms(f"{folder} has no {MANIFEST}: `scripts/gpu-check.sh --pack {folder}` writes one")
    manifest = json.loads((folder / MANIFEST).read_text())
    base, root = folder, ROOT
    if "archive" in manifest:
        unpack(folder / manifest["archive"], unpacked)
        base = root = unpacked
    paths = {name: (base / file).resolve() for name, file in manifest["programs"].items()}
    missing = [f"{name}: {path}" for name, path in paths.items() if not path.is_file()]
    if missing:
        raise NoPrograms(f"{folder / MANIFEST} names programs that are not there: {', '.join(missing)}")
    models = {name: pathlib.Path(path) for name, path in manifest.get("models", {}).items()}
    return Programs(paths, models, manifest.get("commit"), root)


def unpack(path, folder):
    """The plain files of an archive, into a folder of their own, and nothing outside of it."""
    folder.mkdir(parents=True)
    with tarfile.open(path) as archive:
        for member in archive:
            target = folder / member.name
            if not member.isfile() or not target.resolve().is_relative_to(folder.resolve()):
                raise NoPrograms(f"{path} has {member.name!r}, which is no file within a folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.extractfile(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(member.mode & 0o777)


def built():
    """Built now, by cargo."""
    if shutil.which("cargo") is None:
        raise NoPrograms(
            "there are no programs in target/gpu-check, and no cargo to build them: run `scripts/gpu-check.sh --pack` "
            "where there is one, and bring target/gpu-check here"
        )
    # Test programs are not for speed, and those of a development build also check their arithmetic.
    tests = [word for name in TESTS for word in ("--test", name)]
    paths = executables(["cargo", "test", "--locked", "-p", "planner", *tests, "--no-run"])
    examples = [word for name in EXAMPLES for word in ("--example", name)]
    release = ["cargo", "build", "--release", "--locked", "-p", "planner", "-p", "executor", "--bin", "berth"]
    # The later ones of a name count: the tests' own `berth` is one for development.
    paths |= executables([*release, *examples])
    return Programs({name: paths[name] for name in ["berth", *TESTS, *EXAMPLES]})


def executables(command):
    """What a build made, by the names of its targets."""
    done = subprocess.run([*command, "--message-format=json-render-diagnostics"], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise NoPrograms(f"{' '.join(command)} failed")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    made = [message for message in messages if message.get("executable")]
    return {message["target"]["name"]: pathlib.Path(message["executable"]) for message in made}
