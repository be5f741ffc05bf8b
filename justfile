# What CI runs.
check:
    ./scripts/check.sh

# Licences, advisories and sources of all dependencies; needs cargo-deny.
deny:
    cargo deny check

# The picture of the README.
demo:
    cargo run --release -- generate --prompt "a large red circle on a white background" --output circle.png
