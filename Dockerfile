# Berth in a container: docker build -t berth . && docker run --rm --gpus all -v "$PWD:/pictures" berth generate --prompt "…"
#
# The daemon: docker run --rm --gpus all -p 8642:8642 -v berth:/var/lib/berth -v "$PWD/tokens:/tokens:ro" berth serve
# --listen 0.0.0.0:8642 --token-file /tokens; docs/serve.md has more.
#
# No CUDA is in it: the driver comes from the host by `--gpus all` (NVIDIA's container toolkit). Without a GPU Berth
# computes on the processor.

FROM rust:1-bookworm AS build
WORKDIR /berth
COPY . .
RUN cargo build --release --locked --package planner --bin berth \
    && mkdir -p man && target/release/berth man --output man

FROM debian:bookworm-slim
# libcuda and NVML, and nothing of graphics.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --uid 1000 --create-home --home-dir /var/lib/berth berth && mkdir /pictures && chown berth:berth /pictures
COPY --from=build /berth/target/release/berth /usr/local/bin/berth
COPY --from=build /berth/man/ /usr/local/share/man/man1/
COPY LICENSE-APACHE LICENSE-MIT README.md /usr/local/share/doc/berth/
USER berth
# Pictures go to the working directory; mount one that user 1000 can write to. The demo model and what is measured of the
# machine lie under the home, which a volume keeps: -v berth:/var/lib/berth
WORKDIR /pictures
# Of `berth serve`.
EXPOSE 8642
ENTRYPOINT ["berth"]
CMD ["--help"]
