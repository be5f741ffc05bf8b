#!/usr/bin/env python3
"""Drives a running daemon with webuiapi, a client of A1111's routes, and says what is not as it should be.

Usage: webuiapi_client.py BASE_URL [--size 64x64] [--steps 2] [--other MODEL] [--token TOKEN]

BASE_URL is as http://127.0.0.1:8642. --other names a second model that checkpoints are changed to,
--token a token of the daemon, sent as the password of Basic authentication. Needs the packages
webuiapi and pillow. Exits with 0 where all is as it should be, with 1 at the first difference.
"""

import argparse
import sys
import threading
import time

import requests
import webuiapi
from PIL import Image

CHECKED = []

# What A1111 tells of a job: keys that clients read.
INFO_KEYS = """
prompt all_prompts negative_prompt all_negative_prompts seed all_seeds subseed all_subseeds
subseed_strength width height sampler_name cfg_scale steps batch_size restore_faces
face_restoration_model sd_model_name sd_model_hash sd_vae_name sd_vae_hash seed_resize_from_w
seed_resize_from_h denoising_strength extra_generation_params index_of_first_image infotexts styles
job_timestamp clip_skip is_using_inpainting_conditioning version
""".split()


def check(what, holds, *shown):
    """Ends the program where something does not hold."""
    if not holds:
        print(f"webuiapi_client: {what}: {' '.join(repr(one) for one in shown)}", file=sys.stderr)
        sys.exit(1)
    CHECKED.append(what)


def start(given):
    """A client, with what it asks for at its start."""
    base = given.base_url.rstrip("/") + "/sdapi/v1"
    login = {"username": "berth", "password": given.token} if given.token else {}
    api = webuiapi.WebUIApi(baseurl=base, sampler="Euler", steps=given.steps, **login)
    scripts = api.get_scripts()
    check("there are no scripts", scripts == {"txt2img": [], "img2img": []}, scripts)
    check("so none is looked for", not (api.has_controlnet or api.has_adetailer or api.has_animatediff))
    return api


def lists(api):
    titles = api.util_get_model_names()
    check("there are models", len(titles) > 0)
    check("samplers have names", "Euler" in api.util_get_sampler_names())
    check("schedulers have names", "automatic" in api.util_get_scheduler_names())
    check("upscalers begin with none", api.get_upscalers()[0]["name"] == "None")
    empty = {
        "hypernetworks": api.get_hypernetworks(),
        "face restorers": api.get_face_restorers(),
        "prompt styles": api.get_prompt_styles(),
        "VAEs": api.get_sd_vae(),
        "latent upscale modes": api.get_latent_upscale_modes(),
    }
    for name, got in empty.items():
        check(f"{name} are none", got == [], got)
    check("embeddings are none", api.get_embeddings() == {"loaded": {}, "skipped": {}})
    check("flags are an object", api.get_cmd_flags() == {})
    check("LoRA are a list", isinstance(api.get_loras(), list))
    memory = api.get_memory()
    check("memory has bytes", memory["ram"]["total"] > 0 and isinstance(memory["cuda"], dict), memory)
    check("checkpoints are looked for anew", api.refresh_checkpoints() is None)


def txt2img(api, width, height):
    result = api.txt2img(prompt="a red circle", seed=7, width=width, height=height)
    check("one picture", len(result.images) == 1, len(result.images))
    check("of its size", result.image.size == (width, height), result.image.size)
    missing = [key for key in INFO_KEYS if key not in result.info]
    check("info has all keys", missing == [], missing)
    info = result.info
    check("the prompt", info["prompt"] == "a red circle" and info["all_prompts"] == ["a red circle"], info)
    check("the seed", info["seed"] == 7 and info["all_seeds"] == [7], info)
    check("the sampler", info["sampler_name"] == "Euler", info["sampler_name"])
    check("the settings", len(info["infotexts"]) == 1 and "Seed: 7" in info["infotexts"][0], info)
    check("the file's settings", result.image.info["parameters"] == info["infotexts"][0])
    check("the request", result.parameters["prompt"] == "a red circle", result.parameters)
    again = api.txt2img(prompt="a red circle", seed=7, width=width, height=height)
    check("the same seed is the same picture", again.image.tobytes() == result.image.tobytes())
    four = api.txt2img(prompt="x", seed=1, width=width, height=height, batch_size=2, n_iter=2)
    check("four pictures", len(four.images) == 4 and four.info["all_seeds"] == [1, 2, 3, 4], four.info)
    check("of runs of two", four.info["batch_size"] == 2, four.info["batch_size"])
    none = api.txt2img(prompt="x", width=width, height=height, send_images=False)
    check("no pictures where none are wanted", none.images == [] and len(none.info["infotexts"]) == 1)
    drawn = api.txt2img(prompt="x", seed=-1, width=width, height=height).info["seed"]
    check("a drawn seed is told", 0 <= drawn < 2**32, drawn)


def samplers(api, given, width, height):
    result = api.txt2img(
        prompt="x", sampler_name="DPM++ 2M Karras", scheduler="karras", width=width, height=height
    )
    check("the model has it", result.info["sampler_name"] == "DPM++ 2M", result.info)
    body = {"prompt": "x", "sampler_name": "DDIM", "width": width, "height": height, "steps": given.steps}
    answer = post(given, "txt2img", body)
    told = answer.headers.get("Berth-Substituted", "")
    check("another stands for one that it has not", "DDIM -> Euler" in told, told)
    answer = post(given, "txt2img", {"prompt": "x", "sampler_name": "Better"})
    error = answer.json()
    check("an unknown sampler is not found", answer.status_code == 404, answer.status_code)
    check("in the words of the web UI", error["detail"].startswith("Sampler not found"), error)
    check("with its four keys", {"error", "detail", "body", "errors"} <= set(error), error)


def refusals(given):
    for body in [
        {"enable_hr": True},
        {"restore_faces": True},
        {"tiling": True},
        {"script_name": "X/Y/Z plot"},
        {"alwayson_scripts": {"ADetailer": {"args": [True]}}},
        {"steps": 0},
        {"width": 100},
        {"override_settings": {"sd_model_checkpoint": "there is none"}},
    ]:
        answer = post(given, "txt2img", {"prompt": "x", **body})
        check(f"{body} is refused", answer.status_code == 422, answer.status_code, answer.text)
    answer = post(given, "img2img", {"prompt": "x"})
    check("img2img needs a picture", answer.status_code == 404, answer.status_code)


def img2img(api, width, height):
    source = Image.new("RGB", (width, height), "red")
    result = api.img2img(
        images=[source], prompt="x", seed=3, steps=4, width=width, height=height, denoising_strength=0.5
    )
    check("a picture of a picture", result.image.size == (width, height), result.image.size)
    check("its strength", result.info["denoising_strength"] == 0.5, result.info)
    check("the start is not sent back", result.parameters["init_images"] is None)
    result = api.img2img(
        images=[source], prompt="x", steps=4, width=width, height=height, include_init_images=True
    )
    check("but where it is wanted", len(result.parameters["init_images"]) == 1)
    mask = Image.new("L", (width, height), 255)
    try:
        api.img2img(images=[source], mask_image=mask, prompt="x", width=width, height=height)
        check("a mask is refused", False)
    except RuntimeError as error:
        check("a mask is refused", error.args[0] == 422, error.args)


def options(api, given):
    before = api.get_options()
    for key in ["sd_model_checkpoint", "samples_format", "CLIP_stop_at_last_layers", "sd_vae"]:
        check(f"there is the option {key}", key in before, before)
    check("options are taken back whole", api.set_options(before) is None)
    check("and stay", api.get_options() == before)
    answer = post(given, "options", {"sd_model_checkpoint": "there is none"})
    check("an unknown checkpoint is refused", answer.status_code == 422, answer.status_code)
    check("and changes nothing", api.get_options() == before)
    current = api.util_get_current_model()
    api.util_set_model(given.other or current)
    api.util_wait_for_ready(check_interval=0.2)
    check("the checkpoint is set", api.util_get_current_model() == (given.other or current))
    if given.other:
        result = api.txt2img(prompt="x", width=64, height=64)
        check("and used", result.info["sd_model_name"] == given.other, result.info)
        result = api.txt2img(
            prompt="x", width=64, height=64, override_settings={"sd_model_checkpoint": current}
        )
        check("but where a request names one", result.info["sd_model_name"] == current, result.info)
        api.util_set_model(current)
        api.util_wait_for_ready(check_interval=0.2)


def idle(api):
    progress = api.get_progress()
    check("nothing runs", progress["progress"] == 0 and progress["state"]["job_count"] == 0, progress)
    keys = {"progress", "eta_relative", "state", "current_image", "textinfo"}
    check("progress has its keys", keys <= set(progress), progress)


def interrupt(api, given, width, height):
    """A job of many steps that is ended by hand, and seen while it runs."""
    ended = {}

    def run():
        body = {"prompt": "x", "steps": 1000, "width": width, "height": height, "force_task_id": "long"}
        ended["answer"] = post(given, "txt2img", body)

    job = threading.Thread(target=run)
    job.start()
    seen = {}
    deadline = time.monotonic() + 120
    while job.is_alive() and time.monotonic() < deadline:
        seen = api.get_progress()
        if seen["progress"] > 0.011:
            break
        time.sleep(0.02)
    check("a running job is seen", seen.get("state", {}).get("job_count") == 1, seen)
    by_name = get(given, "progress?id_task=long").json()
    check("by its client's name too", by_name["state"]["job"] == seen["state"]["job"], by_name)
    check("interrupt is an object", api.interrupt() == {})
    job.join(120)
    check("an interrupted job ends", not job.is_alive())
    answer = ended["answer"]
    check("with an answer", answer.status_code == 200, answer.status_code, answer.text)
    check("without pictures", answer.json()["images"] == [])
    check("which says so", '"interrupted":true' in answer.json()["info"].replace(" ", ""))
    check("skip is nothing", api.skip() is None)
    idle(api)


def png_info(api, width, height):
    made = api.txt2img(prompt="a red circle", seed=9, width=width, height=height)
    result = api.png_info(made.image)
    check("settings are read from a picture", result.info == made.info["infotexts"][0], result.info)
    check("and taken apart", result.parameters["Prompt"] == "a red circle", result.parameters)
    check("all as text", result.parameters["Seed"] == "9" and result.parameters["Size-1"] == str(width))
    plain = api.png_info(Image.new("RGB", (8, 8)))
    check("a picture without any has none", plain.info == "" and plain.parameters == {}, plain.info)


def memory_is_freed(api, given):
    for name in ["unload-checkpoint", "reload-checkpoint"]:
        answer = post(given, name, {})
        check(f"{name} is an object", answer.status_code == 200 and answer.json() == {}, answer.text)
    api.util_wait_for_ready(check_interval=0.2)


def url(given, path):
    return given.base_url.rstrip("/") + "/sdapi/v1/" + path


def auth(given):
    return ("berth", given.token) if given.token else None


def post(given, path, body):
    return requests.post(url(given, path), json=body, auth=auth(given), timeout=300)


def get(given, path):
    return requests.get(url(given, path), auth=auth(given), timeout=60)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("base_url")
    arguments.add_argument("--size", default="64x64", help="of pictures; 64x64")
    arguments.add_argument("--steps", type=int, default=2, help="of pictures; 2")
    arguments.add_argument("--other", help="a second model")
    arguments.add_argument("--token", help="of the daemon")
    given = arguments.parse_args()
    width, height = (int(side) for side in given.size.split("x"))
    if given.token:
        answer = requests.get(url(given, "options"), timeout=60)
        check("without a token nothing is told", answer.status_code == 401, answer.status_code)
    api = start(given)
    lists(api)
    txt2img(api, width, height)
    samplers(api, given, width, height)
    refusals(given)
    img2img(api, width, height)
    png_info(api, width, height)
    idle(api)
    options(api, given)
    interrupt(api, given, width, height)
    memory_is_freed(api, given)
    print(f"webuiapi: {len(CHECKED)} checks hold")


if __name__ == "__main__":
    main()
