"""Every placement and residency, over parts of one GPU and over two GPUs: one picture to the byte, in the planned bytes."""

import png
from results import Failed, Figure, Skipped
from stand import component, require_exact

PARTS = 4

# What is asked, and what the plan must say: component, placement, residency, and on how many devices.
CASES = [
    (["--backend", "all=cuda0", "--params-backend", "all=device"], "dit", "one", "resident", 1),
    (["--backend", "all=cuda1", "--params-backend", "all=disk"], "dit", "one", "lazy", 1),
    (["--backend", "all=cuda0", "--params-backend", "dit=cpu", "--lookahead", "1"], "dit", "one", "streamed", 1),
    (["--backend", "all=cuda0", "--params-backend", "all=cpu"], "t5", "one", "streamed", 1),
    (["--backend", "all=cuda0,dit=cuda1&cuda0&cuda2", "--params-backend", "all=device"], "dit", "layer", "resident", 3),
    (["--backend", "all=cuda0,dit=cuda0&cuda3", "--params-backend", "dit=cpu"], "dit", "layer", "streamed", 2),
    (["--backend", "all=cuda0,dit=cuda0&cuda1", "--split-mode", "row", "--params-backend", "all=device"], "dit", "row", "resident", 2),
    (["--backend", "all=cuda0,dit=cuda2:1&cuda1:3", "--split-mode", "row", "--params-backend", "dit=cpu"], "dit", "row", "streamed", 2),
    (["--backend", "all=cuda0,t5=cuda3&cuda1", "--split-mode", "t5=row", "--params-backend", "all=device"], "t5", "row", "resident", 2),
    (["--backend", "all=cuda0,vae=cuda1,clip=cuda2", "--params-backend", "all=device"], "vae", "one", "resident", 1),
]


# Of those above, what two devices can do, and all of them with copies between GPUs.
OVER_TWO = [
    (["--backend", "all=cuda0", "--params-backend", "all=device"], "dit", "one", "resident", 1),
    (["--backend", "all=cuda0,dit=cuda1&cuda0", "--params-backend", "all=device"], "dit", "layer", "resident", 2),
    (["--backend", "all=cuda0,dit=cuda0&cuda1", "--params-backend", "dit=cpu"], "dit", "layer", "streamed", 2),
    (["--backend", "all=cuda0,dit=cuda0&cuda1", "--split-mode", "row", "--params-backend", "all=device"], "dit", "row", "resident", 2),
]


def placements(stand):
    # Half of the memory: others' may be in the rest.
    one_picture(stand, stand.home().without_library().profile([0] * PARTS, 0.5), CASES)
    return Figure(f"{len(CASES)} placements over {PARTS} parts", "one picture, planned bytes")


def gpus(stand):
    if len(stand.devices()) < 2:
        raise Skipped("there is one GPU only")
    one_picture(stand, stand.home().without_library().profile([0, 1], 0.5), OVER_TWO)
    return Figure(f"{len(OVER_TWO)} placements over 2 GPUs", "one picture, planned bytes")


def one_picture(stand, home, cases):
    first = None
    for arguments, name, placement, residency, devices in cases:
        document = home.generate(stand.wide(), [*arguments, "--vae-tile", "off"])
        found = component(document["plan"], name)
        asked = [placement, residency, devices]
        planned = [found["placement"], found["residency"], len(found["devices"])]
        what = " ".join(arguments)
        if planned != asked:
            raise Failed(f"{what}: {planned} was planned for {asked}")
        require_exact(document, what)
        picture = png.pixels(home.path("picture.png"))
        first = first or picture
        if picture != first:
            raise Failed(f"{what}: another picture, up to {png.levels_apart(picture, first)} levels")
