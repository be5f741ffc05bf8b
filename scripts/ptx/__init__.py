"""An interpreter of PTX, and what holds the kernels that are shipped against it: `scripts/ptx_check.py`.

Written from the PTX ISA's documentation; it shares nothing with `tests/simulator`, which runs the kernels' C++.

    text        PTX as modules, functions and instructions
    machine     the threads of some blocks: registers, who runs next, who waits where
    arithmetic, conversions, movement, warps    what instructions do, by kind
    floats      roundings that numpy lacks
    memory, shadow    buffers with exact bounds, shared memory, and who touched what since when
    launch      a grid, a few blocks at a time
    shipped     the files of executor/kernels/ptx
    storage     the reference of stored weights
    cases/      small cases of each kernel, with what must come out
    planted     faults that must be noticed
"""
