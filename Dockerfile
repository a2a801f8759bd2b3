# An image with the static command, and what labs and copies need: docker build --tag treecast .
#
# Nodes and copies need no rights; the kernel engine and labs need --privileged.

# The first call of cargo installs the compiler of rust-toolchain.toml, if the image has another
# one.
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools
WORKDIR /treecast
COPY . .
# Of the sources, for `treecast --version`: --build-arg TREECAST_COMMIT=$(git rev-parse --short=10
# HEAD)
ARG TREECAST_COMMIT
RUN target=$(uname -m)-unknown-linux-musl \
    && cargo --version \
    && rustup target add "$target" \
    && cargo build --locked --profile dist --package treecast-cli --target "$target" \
    && install -D --strip -t /image/usr/bin "target/$target/dist/treecast" \
    && install -D --strip -t /image/usr/lib/treecast "target/$target/dist/treecast-receiver"

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iproute2 openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /image /
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/treecast/
ENTRYPOINT ["treecast"]
CMD ["--help"]
