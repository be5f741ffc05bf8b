"""What stops a run: PTX that is wrong, or that the interpreter does not know."""


class Unsupported(Exception):
    """An instruction or a form of one that the interpreter lacks."""


class Fault(Exception):
    """Something that a kernel must not do. `kind` is one of KINDS."""

    def __init__(self, kind: str, message: str):
        assert kind in KINDS, kind
        super().__init__(f"{kind}: {message}")
        self.kind = kind


KINDS = {
    "bounds": "an address outside every buffer of the launch",
    "alignment": "an address that is no multiple of what is accessed",
    "uninitialised": "memory that nobody wrote is read",
    "read-only": "an input is written, or what is written is read as if it never changed",
    "written twice": "an element of a result that was written before",
    "not written": "an element of a result that nobody wrote",
    "race": "two threads touch the same memory, one of them writes, and nothing orders them",
    "pending": "memory is touched into which an asynchronous copy is still under way",
    "divergence": "an instruction of a whole warp that some of its threads do not execute",
    "deadlock": "threads wait for others that never come",
    "arithmetic": "an operation whose result is not defined",
    "endless": "more steps than any case takes",
    "difference": "a result is not what the reference gives",
}
