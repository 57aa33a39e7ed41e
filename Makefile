# The README explains `make try`, `make deb` and `make test`.

PREFIX ?= /usr/local
DESTDIR ?=
# The only folder where mount(8) looks for helpers. Installing them needs root.
HELPERS ?= /sbin
# Where debuggers look for the line tables of programs in PREFIX.
TABLES = $(PREFIX)/lib/debug$(PREFIX)/bin
CARGO ?= cargo
# Cargo's output folder.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The optimised build, or with PROFILE=test the build of `make test`.
PROFILE ?= release
PROGRAM := $(TARGET)/$(if $(filter test,$(PROFILE)),debug,release)/claviger

# How long `make soak` lasts, in seconds.
SECONDS ?= 3600
# The oldest supported compiler.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
VERSION := $(shell sed -n '/^version/{s/^version = "\(.*\)"/\1/p;q}' Cargo.toml)
MUSL := $(shell uname -m)-unknown-linux-musl
AARCH64 := aarch64-unknown-linux-gnu
# Crates whose public API is listed in docs/api.
LIBRARIES := claviger-crypto claviger-engine claviger-serve

.PHONY: all build try window window-test window-lint window-screen window-pictures bindings bindings-test bindings-lint bindings-header bindings-install test build-tests authenticator test-aarch64 soak fuzz fuzz-check torture races lint dependencies sbom reproducible api api-check doc package msrv studies book man install uninstall deb deb-test static release clean

all: build

build:
	$(CARGO) build --locked $(if $(filter test,$(PROFILE)),--workspace --bin claviger,--release -p claviger)

# A tour in three minutes.
try:
	tools/install-deps.sh try
	$(CARGO) build --profile try --locked -p claviger
	tools/try.sh $(TARGET)/try/claviger

# The window, a program of its own: docs/guide/window.md. Its tests drive every page by the tree that screen readers see, without a
# screen. It is a workspace of its own, so that the program's own dependencies stay few.
DESKTOP = io.github.claviger.Claviger
WINDOW = $(TARGET)/window/release/claviger-window
BUILD_WINDOW = $(CARGO) build --release --locked --manifest-path window/Cargo.toml --target-dir $(TARGET)/window
window: build
	$(BUILD_WINDOW)
	PATH=$(abspath $(TARGET))/release:$$PATH $(WINDOW)

window-test:
	tools/install-deps.sh window
	# As the other tests have it.
	$(CARGO) build --locked --workspace --bin claviger
	CLAVIGER_TARGET=$(abspath $(TARGET)) $(CARGO) test --locked --manifest-path window/Cargo.toml --target-dir $(TARGET)/window

window-lint:
	$(CARGO) fmt --manifest-path window/Cargo.toml --check
	$(CARGO) clippy --locked --manifest-path window/Cargo.toml --target-dir $(TARGET)/window --all-targets -- -D warnings
	command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny
	cd window && $(CARGO) deny --locked check licenses bans sources

# The window itself on a virtual screen, driven by the keyboard.
window-screen:
	tools/install-deps.sh pictures
	$(CARGO) build --locked --workspace --bin claviger
	CLAVIGER_TARGET=$(abspath $(TARGET)) $(CARGO) test --locked --manifest-path window/Cargo.toml --target-dir $(TARGET)/window --test screen -- --ignored

# The pictures of the guide, from a real window on a virtual screen.
window-pictures: build
	tools/install-deps.sh pictures
	$(BUILD_WINDOW) --bins --examples
	tools/window-pictures.sh $(PROGRAM) $(WINDOW) docs/guide/pictures

# The wheel for Python and the libraries for C, in $(TARGET)/bindings and $(TARGET)/release: docs/guide/python.md and c.md. A workspace of
# its own, too, but in the same folder: it has the program's profiles, so that what both link is built once. BINDINGS=debug is what tests
# take.
BINDINGS ?= release
BINDINGS_PROFILE = $(if $(filter debug,$(BINDINGS)),dev,$(BINDINGS))
BINDINGS_CARGO = --locked --manifest-path bindings/Cargo.toml --target-dir $(TARGET)
BINDINGS_CRATES = -p claviger-bindings -p claviger-c -p claviger-python
PYTHON = $(HOME)/.cache/claviger-bindings-python/bin/python3
WHEELS = $(abspath $(TARGET))/bindings/$(BINDINGS)
# The settings that maturin gives pyo3. Without them, cargo and maturin would rebuild each other's output.
PYO3 = config=$$(ls $(abspath $(TARGET))/maturin/pyo3-config-*-abi3.txt 2>/dev/null | head -n 1); [ -z "$$config" ] || export PYO3_CONFIG_FILE="$$config";
bindings:
	tools/install-deps.sh bindings
	$(PYTHON) -m maturin build --locked -m bindings/python/Cargo.toml --profile $(BINDINGS_PROFILE) --target-dir $(TARGET) --out $(WHEELS)
	$(PYO3) $(CARGO) build $(BINDINGS_CARGO) $(BINDINGS_CRATES) --profile $(BINDINGS_PROFILE)

bindings-test: BINDINGS = debug
bindings-test: bindings
	# As the other tests have it.
	$(CARGO) build --locked --workspace --bin claviger
	rm -rf $(WHEELS)/site
	$(PYTHON) -m pip -q --disable-pip-version-check install --no-deps --no-index --target $(WHEELS)/site $(WHEELS)/claviger-*.whl
	CLAVIGER_TARGET=$(abspath $(TARGET)) PYTHONPATH=$(WHEELS)/site $(PYTHON) -m pytest -q -p no:cacheprovider bindings/tests
	$(CARGO) test $(BINDINGS_CARGO) -p claviger-header

bindings-lint:
	cd bindings && $(CARGO) fmt --check
	$(PYO3) $(CARGO) clippy $(BINDINGS_CARGO) $(BINDINGS_CRATES) --all-targets -- -D warnings
	$(CARGO) clippy $(BINDINGS_CARGO) -p claviger-header --all-targets -- -D warnings
	command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny
	cd bindings && $(CARGO) deny --locked check licenses bans sources

# claviger.h, from the comments of the library.
bindings-header:
	CLAVIGER_WRITE_HEADER=1 $(CARGO) test $(BINDINGS_CARGO) -p claviger-header

# The files for building C programs; install the wheel with `pip install`.
bindings-install:
	install -D -m 644 bindings/c/claviger.h $(DESTDIR)$(PREFIX)/include/claviger.h
	install -D -m 644 $(TARGET)/$(BINDINGS)/libclaviger.a $(DESTDIR)$(PREFIX)/lib/libclaviger.a
	install -D -m 755 $(TARGET)/$(BINDINGS)/libclaviger.so $(DESTDIR)$(PREFIX)/lib/libclaviger.so.0
	ln -sf libclaviger.so.0 $(DESTDIR)$(PREFIX)/lib/libclaviger.so
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(shell sed -n 's/^version = "\(.*\)"/\1/p' bindings/Cargo.toml)|' bindings/c/claviger.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/claviger.pc

# Every test. A test that cannot run says SKIPPED and why; with CI=true in the environment it fails instead.
test: authenticator
	tools/install-deps.sh test
	tools/test.sh $(CARGO)

build-tests: authenticator
	$(CARGO) test --locked --workspace --no-run

# A FIDO2 key in software, for tests. A workspace of its own, because its licence is not that of the program.
authenticator:
	$(CARGO) build --locked --manifest-path authenticator/Cargo.toml --target-dir $(TARGET)/authenticator

# The ciphers' kernels for AArch64, in an emulator: all lengths, alignments and modes. Tests that inspect memory in procfs, or
# another process, cannot run there.
test-aarch64:
	tools/install-deps.sh test
	if [ -d "$$(rustc --print target-libdir --target $(AARCH64))" ] || rustup target add $(AARCH64); then \
	    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
	    $(CARGO) test --config profile.dev.package.claviger-engine.opt-level=0 --locked -p claviger-crypto --target $(AARCH64) --test it -- kernels:: vectors:: xts:: legacy_modes::; \
	else echo "SKIPPED test-aarch64: there is no Rust library for $(AARCH64), and rustup cannot install it." >&2; fi

# Every way to reach a volume under random operations against a model, side by side, for SECONDS: make soak SECONDS=600.
# FSX_SEED=N repeats the same operations.
soak:
	tools/install-deps.sh test
	SECONDS=$(SECONDS) $(CARGO) test --locked --profile $(PROFILE) $(if $(filter test,$(PROFILE)),--workspace,-p claviger) --test it -- --ignored --exact soak::soak --nocapture

# Every parser of bytes from outside under libFuzzer and AddressSanitizer, for SECONDS in all, side by side. RUNS=N ends a target
# after N executions, JOBS=N runs N targets at a time, and TARGETS="luks2 nbd" selects some.
fuzz:
	tools/fuzz.py --seconds $(SECONDS) $(if $(RUNS),--runs $(RUNS)) $(if $(JOBS),--jobs $(JOBS)) $(TARGETS)

# Checks that the fuzz targets compile, without the sanitizer, which would rebuild everything, and as optimised as the tests, because
# then the crates below were checked before.
fuzz-check:
	CARGO_PROFILE_DEV_OPT_LEVEL=2 $(CARGO) check --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)

# The long tests of docs/reliability.md, one after the other, after every test of `make test` at its full length. They take some six
# hours on two processors; each prints its figures. TORTURE_POINTS=1000000 tries more crashes, FUZZ=N fuzzes for N seconds (default:
# about 10^8 executions), SECONDS=N is the time of the mount tests, and ENDURE=N that of the endurance tests.
TORTURE_POINTS ?= 100000
FUZZ ?= 6000
torture: authenticator
	tools/install-deps.sh test
	CLAVIGER_WHOLE=yes tools/test.sh $(CARGO)
	TORTURE_POINTS=$(TORTURE_POINTS) $(CARGO) test --locked --release -p claviger-engine --test it -- --ignored torture --nocapture --test-threads 1
	$(CARGO) test --locked --release -p claviger --test it -- --ignored torture --nocapture --test-threads 1
	$(MAKE) races
	$(MAKE) fuzz SECONDS=$(FUZZ)
	$(MAKE) soak

# What has several threads on one pool, key process, store or server, under ThreadSanitizer, on the stable compiler. The standard library is
# built with it as well: else whoever waits for a lock of its would count as not having it.
races:
	tools/install-deps.sh test
	tools/races.sh

lint:
	tools/dependencies.py check
	# Separate workspaces, whose lock files are checked as well.
	for folder in authenticator bench bindings fuzz window; do $(CARGO) metadata --locked --format-version=1 --manifest-path $$folder/Cargo.toml >/dev/null || exit; done
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	# It checks a few files: optimising it would take longer than its run.
	command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny
	$(CARGO) deny --locked check licenses bans sources
	tools/advisories.sh

# The linked crates: docs/dependencies.md, and a software bill of materials.
dependencies:
	tools/dependencies.py list

sbom:
	mkdir -p $(TARGET)
	tools/dependencies.py sbom $(TARGET)/claviger.cdx.json

# Builds the program twice, in two folders and from an empty target folder, and compares them.
reproducible:
	tools/reproducible.sh

doc:
	# Otherwise pages of removed items would stay.
	rm -rf $(TARGET)/doc/claviger_*
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps $(addprefix -p ,$(LIBRARIES) claviger-lab)

# The public API as text, in docs/api, for review.
api: doc
	tools/api.py write $(TARGET)/doc $(LIBRARIES)

api-check: doc
	tools/api.py check $(TARGET)/doc $(LIBRARIES)

# The crates for crates.io, packed and checked. Uploads nothing.
package:
	tools/packed.sh $(CARGO) $(TARGET)

# Builds the program with the oldest compiler and the other C library, so one build checks both. It has its own folder, since it rebuilds
# everything.
msrv:
	tools/install-deps.sh static
	if rustup run $(MSRV) cargo --version >/dev/null 2>&1 || rustup toolchain install --profile minimal $(MSRV) && \
	    rustup target add --toolchain $(MSRV) $(MUSL); then \
	    CC_$(subst -,_,$(MUSL))=musl-gcc rustup run $(MSRV) cargo check --locked -p claviger --target $(MUSL) --target-dir $(TARGET)/msrv; \
	else echo "SKIPPED msrv: there is no Rust $(MSRV) for $(MUSL), and rustup cannot install it." >&2; fi

# docs/studies.md, from the runs in docs/studies: each is a run.json, compressed.
studies:
	tools/studies.sh $(PROGRAM) docs/studies --undisturbed > $(TARGET)/studies.md
	mv $(TARGET)/studies.md docs/studies.md

# The guide as a website.
book:
	if command -v mdbook >/dev/null; then mdbook build docs --dest-dir $(abspath $(TARGET))/book; \
	else echo "SKIPPED book: there is no mdbook (cargo install --locked mdbook)." >&2; fi

man: build
	$(PROGRAM) man --out $(TARGET)/man

# Installs the program without its line tables, three quarters of its size, which go where debuggers look for them.
install: man
	objcopy --only-keep-debug $(PROGRAM) $(TARGET)/claviger.debug
	objcopy --strip-debug --add-gnu-debuglink=$(TARGET)/claviger.debug $(PROGRAM) $(TARGET)/claviger.stripped
	install -D -m 755 $(TARGET)/claviger.stripped $(DESTDIR)$(PREFIX)/bin/claviger
	install -D -m 644 $(TARGET)/claviger.debug $(DESTDIR)$(TABLES)/claviger.debug
	if mkdir -p $(DESTDIR)$(HELPERS) 2>/dev/null && [ -w $(DESTDIR)$(HELPERS) ]; then \
	    ln -sf $(PREFIX)/bin/claviger $(DESTDIR)$(HELPERS)/mount.fuse.claviger; \
	    ln -sf $(PREFIX)/bin/claviger $(DESTDIR)$(HELPERS)/mount.claviger; \
	else echo "No mount(8) helpers in $(HELPERS): they need root. To install them: sudo make install"; fi
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(TARGET)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(PROGRAM) completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/claviger
	$(PROGRAM) completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_claviger
	$(PROGRAM) completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/claviger.fish

	# The window, if it was built.
	if [ -x $(WINDOW) ]; then \
	    install -D -m 755 $(WINDOW) $(DESTDIR)$(PREFIX)/bin/claviger-window; \
	    install -D -m 644 window/desktop/$(DESKTOP).desktop $(DESTDIR)$(PREFIX)/share/applications/$(DESKTOP).desktop; \
	    install -D -m 644 window/desktop/$(DESKTOP).metainfo.xml $(DESTDIR)$(PREFIX)/share/metainfo/$(DESKTOP).metainfo.xml; \
	    install -D -m 644 window/desktop/$(DESKTOP).xml $(DESTDIR)$(PREFIX)/share/mime/packages/$(DESKTOP).xml; \
	    install -D -m 644 window/desktop/$(DESKTOP).svg $(DESTDIR)$(PREFIX)/share/icons/hicolor/scalable/apps/$(DESKTOP).svg; fi

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/claviger-window $(DESTDIR)$(PREFIX)/share/applications/$(DESKTOP).desktop \
	    $(DESTDIR)$(PREFIX)/share/metainfo/$(DESKTOP).metainfo.xml $(DESTDIR)$(PREFIX)/share/mime/packages/$(DESKTOP).xml \
	    $(DESTDIR)$(PREFIX)/share/icons/hicolor/scalable/apps/$(DESKTOP).svg
	rm -f $(DESTDIR)$(TABLES)/claviger.debug
	rm -f $(DESTDIR)$(HELPERS)/mount.fuse.claviger $(DESTDIR)$(HELPERS)/mount.claviger
	rm -f $(DESTDIR)$(PREFIX)/bin/claviger $(DESTDIR)$(PREFIX)/share/man/man1/claviger.1 \
	    $(DESTDIR)$(PREFIX)/share/man/man1/claviger-*.1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/claviger \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_claviger \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/claviger.fish

# Debian packages in target/deb: the program, and the window if it was built (`make window`).
deb: build
	rm -rf $(TARGET)/deb $(TARGET)/staged
	mkdir -p $(TARGET)/deb
	$(MAKE) install DESTDIR=$(abspath $(TARGET))/staged PREFIX=/usr HELPERS=/usr/sbin
	tools/deb.sh $(TARGET)/staged $(TARGET)/deb

# Tests the package and its next version in a fresh Debian.
deb-test: deb
	tools/install-deps.sh deb
	mkdir -p $(TARGET)/deb/next
	VERSION=$(VERSION)+next tools/deb.sh $(TARGET)/staged $(TARGET)/deb/next
	tools/deb-test.sh $(TARGET)/deb/claviger_*.deb $(TARGET)/deb/next/claviger_*.deb

# The program in one file for every Linux on this processor type. It cannot load PKCS#11 modules.
static:
	tools/install-deps.sh static
	rustup target add $(MUSL)
	CC_$(subst -,_,$(MUSL))=musl-gcc $(CARGO) build --locked --release -p claviger --target $(MUSL)

# Everything that is published for a version, in target/release-VERSION, from a clean checkout: docs/releasing.md.
release:
	tools/release.sh $(TARGET)

clean:
	$(CARGO) clean
