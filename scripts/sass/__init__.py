"""What NVIDIA's assembler made of the kernels, read from nvdisasm's listings: `scripts/ptxas_facts.py`.

    listing     kernels, instructions and the ways between them
    lanes       which values and branches may differ within a warp, and where its threads have parted
    lint        what must not be, and how wide loads are
"""
