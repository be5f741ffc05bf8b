#!/usr/bin/env python3
"""Drives a running daemon with OpenAI's own library and says where an answer is not as it should be.

Usage: openai_client.py BASE_URL [--size 64x64] [--steps 2] [--full URL] [--broken URL]

BASE_URL is as http://127.0.0.1:8642. --full names a daemon that takes no more jobs (503), --broken
one whose jobs fail (500): what needs them is left out without. Needs the packages openai and pillow.
Exits with 0 where all is as it should be, with 1 at the first difference.
"""

import argparse
import base64
import io
import sys

import openai
from PIL import Image

CHECKED = []


def check(what, holds, *shown):
    """Ends the program where something does not hold."""
    if not holds:
        print(f"openai_client: {what}: {' '.join(repr(one) for one in shown)}", file=sys.stderr)
        sys.exit(1)
    CHECKED.append(what)


class Counted:
    """A client, and how many requests it has sent."""

    def __init__(self, base_url, **options):
        self.sent = 0
        http = openai.DefaultHttpxClient(event_hooks={"request": [self.count]})
        self.client = openai.OpenAI(
            base_url=base_url.rstrip("/") + "/v1", api_key="none", http_client=http, timeout=300, **options
        )

    def count(self, _request):
        self.sent += 1

    def refused(self, kind, **request):
        """The error that a request ends with, and how many requests that took."""
        self.sent = 0
        try:
            self.client.images.generate(**request)
        except openai.OpenAIError as error:
            check(f"{kind.__name__} is raised", type(error) is kind, type(error), str(error))
            return error
        check(f"{kind.__name__} is raised", False, "the request was answered")


def picture(datum, size, kind="PNG"):
    """The picture of an answer, whole."""
    image = Image.open(io.BytesIO(base64.b64decode(datum.b64_json)))
    image.load()
    check(f"a picture in {kind}", image.format == kind, image.format)
    check("a picture has its size", f"{image.width}x{image.height}" == size, image.size, size)
    return image


def png(colour, side=64):
    """A file of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(out, format="PNG")
    return out.getvalue()


def models(client):
    found = list(client.models.list())
    check("there are models", len(found) > 0)
    check("models are Berth's", all(m.owned_by == "berth" and m.object == "model" for m in found))
    one = client.models.retrieve(found[0].id)
    check("a model is found by its name", one.id == found[0].id)


def generate(client, size, steps):
    more = {"steps": steps, "seed": 7, "something_new": 1}
    answer = client.images.generate(prompt="a red circle", size=size, extra_body=more)
    check("one picture", len(answer.data) == 1)
    check("created is a time", answer.created > 1_600_000_000, answer.created)
    check("background", answer.background == "opaque", answer.background)
    check("output_format", answer.output_format == "png", answer.output_format)
    check("quality", answer.quality == "medium", answer.quality)
    check("size", answer.size == size, answer.size)
    check("usage is zeros", answer.usage.total_tokens == 0 and answer.usage.input_tokens == 0)
    check("no address beside the picture", answer.data[0].url is None)
    berth = answer.berth
    check("the seed is told", berth["seeds"] == [7], berth)
    check("the job is told", isinstance(berth["job"], str) and len(berth["job"]) == 26, berth)
    check("what is not known is told", any("something_new" in n for n in berth["notices"]), berth)
    check("times are told", berth["predicted_ms"] > 0 and berth["measured_ms"] > 0, berth)
    first = picture(answer.data[0], size)
    text = first.info.get("parameters", "")
    check("the file has its settings", "a red circle" in text and "Seed: 7" in text, text)
    again = client.images.generate(prompt="a red circle", size=size, extra_body=more)
    same = picture(again.data[0], size).tobytes() == first.tobytes()
    check("the same seed is the same picture", same)


def several(client, size, steps):
    answer = client.images.generate(prompt="x", n=4, size=size, extra_body={"steps": steps, "seed": 5})
    check("four pictures", len(answer.data) == 4, len(answer.data))
    check("seeds count up", answer.berth["seeds"] == [5, 6, 7, 8], answer.berth)
    kinds = {picture(datum, size).tobytes() for datum in answer.data}
    check("four different pictures", len(kinds) == 4, len(kinds))


def formats(client, size, steps):
    for name, kind in [("jpeg", "JPEG"), ("webp", "WEBP"), ("png", "PNG")]:
        answer = client.images.generate(
            prompt="x", size=size, output_format=name, extra_body={"steps": steps, "seed": 1}
        )
        check("the format is told", answer.output_format == name, answer.output_format)
        image = picture(answer.data[0], size, kind)
        if kind == "PNG":
            check("webp loses nothing", image.tobytes() == webp)
        webp = image.convert("RGB").tobytes()
    answer = client.images.generate(
        prompt="x", size=size, response_format="url", extra_body={"steps": steps}
    )
    datum = answer.data[0]
    check("an address in place of a picture", datum.b64_json is None and "/v1/jobs/" in datum.url)
    fetched = client._client.get(datum.url, headers={"Authorization": "Bearer none"})
    check("the picture is at its address", fetched.status_code == 200, fetched.status_code)
    check("it is a picture", Image.open(io.BytesIO(fetched.content)).format == "PNG")


def qualities(client, size):
    steps = {}
    for quality in ["low", "auto"]:
        answer = client.images.generate(prompt="x", size=size, quality=quality)
        text = picture(answer.data[0], size).info["parameters"]
        steps[quality] = int(text.split("Steps: ")[1].split(",")[0])
    check("low quality takes no more steps", 1 <= steps["low"] <= steps["auto"], steps)


def stream(client, size, steps):
    events = list(
        client.images.generate(
            prompt="x", size=size, stream=True, partial_images=2, extra_body={"steps": max(steps, 6)}
        )
    )
    kinds = [event.type for event in events]
    partials = [e for e in events if e.type == "image_generation.partial_image"]
    check("one picture is done, at the end", kinds[-1] == "image_generation.completed", kinds)
    check("one picture is done", kinds.count("image_generation.completed") == 1, kinds)
    check("at most two on the way", len(partials) <= 2 and len(partials) == len(kinds) - 1, kinds)
    check("they are counted", [e.partial_image_index for e in partials] == list(range(len(partials))))
    for event in partials:
        check("one on the way is a picture", Image.open(io.BytesIO(base64.b64decode(event.b64_json))))
    done = events[-1]
    picture(done, size)
    check("its size is told", done.size == size, done.size)
    check("its usage is zeros", done.usage.total_tokens == 0)
    events = list(client.images.generate(prompt="x", n=2, size=size, stream=True, extra_body={"steps": steps}))
    check("an event for each picture", [e.type for e in events] == ["image_generation.completed"] * 2)


def edit(client, size, steps):
    more = {"steps": max(steps, 4), "seed": 3}
    answer = client.images.edit(image=png("red"), prompt="x", size=size, extra_body=more)
    text = picture(answer.data[0], size).info["parameters"]
    check("an edit has its strength", "Denoising strength: 0.75" in text, text)
    two = [("a.png", png("red"), "image/png"), ("b.png", png("blue"), "image/png")]
    second = client.images.edit(image=two, prompt="x", size=size, extra_body=more)
    check("of two pictures the first counts", second.data[0].b64_json == answer.data[0].b64_json)
    check("which is told", any("first" in n for n in second.berth["notices"]), second.berth)
    own = client.images.edit(image=png("red", 80), prompt="x", extra_body=more)
    picture(own.data[0], "80x80")
    events = list(client.images.edit(image=png("red"), prompt="x", size=size, stream=True, extra_body=more))
    check("an edit is streamed", [e.type for e in events] == ["image_edit.completed"], events)


def errors(base_url, size):
    counted = Counted(base_url)
    cases = [
        (openai.BadRequestError, "size", "bad_value", {"size": "100x100"}),
        (openai.BadRequestError, "n", "bad_value", {"n": 11}),
        (openai.BadRequestError, "quality", "bad_value", {"quality": "best"}),
        (openai.BadRequestError, "background", "unsupported_value", {"background": "transparent"}),
        (openai.BadRequestError, "output_format", "unsupported_value", {"output_format": "svg"}),
        (openai.NotFoundError, "model", "no_model", {"model": "there-is-none"}),
        (openai.UnprocessableEntityError, "deadline_ms", "deadline", {"size": size, "extra_body": {"deadline_ms": 1}}),
    ]
    for kind, param, code, request in cases:
        error = counted.refused(kind, prompt="x", **request)
        check(f"{code} names its field", error.param == param and error.code == code, error.param, error.code)
        check(f"{code} is of its type", error.type == "invalid_request_error", error.type)
        check(f"{code} takes one request", counted.sent == 1, counted.sent)
        check(f"{code} has a request's id", error.request_id)
    sizes = counted.refused(openai.BadRequestError, prompt="x", size="100x100").body
    check("the nearest sizes are told", "96x96" in sizes["message"] and "112x112" in sizes["message"], sizes)
    try:
        counted.client.images.create_variation(image=png("red"))
        check("variations are retired", False)
    except openai.NotFoundError as error:
        check("variations are retired", error.code == "no_route" and "retired" in str(error), error)


def full(base_url, size):
    counted = Counted(base_url)
    error = counted.refused(openai.InternalServerError, prompt="x", size=size)
    check("503 says why", error.status_code == 503 and error.code in ("queue_full", "draining", "store"), error.body)
    check("503 takes three requests", counted.sent == 3, counted.sent)
    check("503 says when", int(error.response.headers["retry-after"]) in range(1, 121))


def broken(base_url, size):
    counted = Counted(base_url)
    error = counted.refused(openai.InternalServerError, prompt="x", size=size)
    check("500 says why", error.status_code == 500 and error.type == "server_error", error.body)
    check("500 takes one request", counted.sent == 1, counted.sent)
    check("500 names its job", error.body["berth"]["job"], error.body)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("base_url")
    arguments.add_argument("--size", default="64x64", help="of pictures; 64x64")
    arguments.add_argument("--steps", type=int, default=2, help="of pictures; 2")
    arguments.add_argument("--full", help="a daemon that takes no more jobs")
    arguments.add_argument("--broken", help="a daemon whose jobs fail")
    given = arguments.parse_args()
    client = Counted(given.base_url, max_retries=0).client
    models(client)
    generate(client, given.size, given.steps)
    several(client, given.size, given.steps)
    formats(client, given.size, given.steps)
    qualities(client, given.size)
    stream(client, given.size, given.steps)
    edit(client, given.size, given.steps)
    errors(given.base_url, given.size)
    if given.full:
        full(given.full, given.size)
    if given.broken:
        broken(given.broken, given.size)
    print(f"openai {openai.__version__}: {len(CHECKED)} checks hold")


if __name__ == "__main__":
    main()
