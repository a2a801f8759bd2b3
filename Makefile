# make demo: builds, prints a plan and a published figure.   make test: everything that CI checks.
# What they need besides a Rust toolchain and make, they install themselves where they may.

# One seed for property tests, so that a run can be repeated; `make explore` draws others.
export PROPTEST_RNG_SEED ?= 1

PURE_CRATES := -p treecast-fabric -p treecast-plan -p treecast-sim
TREECAST := target/debug/treecast

.PHONY: demo test set-up format lint pure unit explore clean

demo:
	cargo build --package treecast-cli
	$(TREECAST) plan --fabric icpp98 --scheme k-binomial --order cco --dests random:15
	$(TREECAST) paper run icpp98 fig6 --out out/icpp98

test: set-up format lint pure demo unit

# Chromium opens the charts' page in a test (apt-get, if we are root); the wasm32 target is for the pure crates (rustup).
set-up:
	@command -v chromium >/dev/null || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || true
	@command -v chromium >/dev/null || echo "skipped: no chromium, so the test of the charts' page does nothing"
	@rustup target add wasm32-unknown-unknown 2>/dev/null || true

format:
	cargo fmt --all --check

lint:
	cargo clippy --workspace --all-targets -- -D warnings

# Libraries that ask the operating system for entropy or threads do not build for this target.
pure:
	@if rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then \
		cargo check --quiet --target wasm32-unknown-unknown $(PURE_CRATES); \
	else echo "skipped: no target wasm32-unknown-unknown, so the pure crates are checked by clippy alone"; fi

unit:
	cargo test --workspace

# Property tests on new seeds, round after round: make explore ROUNDS=100
ROUNDS ?= 20
explore:
	@for round in $$(seq $(ROUNDS)); do \
		seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); echo "PROPTEST_RNG_SEED=$$seed"; \
		PROPTEST_RNG_SEED=$$seed cargo test --quiet --workspace --tests || exit 1; \
	done

clean:
	cargo clean
	rm -rf out
