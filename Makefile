# The two commands of the README are `make try` and `make test`.

PREFIX ?= /usr/local
DESTDIR ?=
# Where mount(8) looks for its helpers, and nowhere else. They are not installed without root.
HELPERS ?= /sbin
# Where a debugger looks for the line tables of what is in PREFIX.
TABLES = $(PREFIX)/lib/debug$(PREFIX)/bin
CARGO ?= cargo
# Cargo's output folder.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The optimised build, or with PROFILE=test what `make test` has built.
PROFILE ?= release
PROGRAM := $(TARGET)/$(if $(filter test,$(PROFILE)),debug,release)/claviger

# How long `make soak` lasts, in seconds.
SECONDS ?= 3600
# The oldest compiler that builds what is published.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
VERSION := $(shell sed -n '/^version/{s/^version = "\(.*\)"/\1/p;q}' Cargo.toml)
MUSL := $(shell uname -m)-unknown-linux-musl
AARCH64 := aarch64-unknown-linux-gnu
# Crates whose public API is listed in docs/api.
LIBRARIES := claviger-crypto claviger-engine claviger-serve

.PHONY: all build try window window-test window-lint window-screen window-pictures bindings bindings-test bindings-lint bindings-header bindings-install test build-tests test-aarch64 soak fuzz fuzz-check torture races lint dependencies sbom reproducible api api-check doc package msrv studies book man install uninstall deb deb-test static release clean

all: build

build:
	$(CARGO) build --locked $(if $(filter test,$(PROFILE)),--workspace --bin claviger,--release -p claviger)

# A tour in three minutes.
try:
	tools/install-deps.sh try
	$(CARGO) build --release --locked -p claviger
	tools/try.sh $(PROGRAM)

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

# The window itself on a screen in memory, led by its keyboard.
window-screen:
	tools/install-deps.sh pictures
	$(CARGO) build --locked --workspace --bin claviger
	CLAVIGER_TARGET=$(abspath $(TARGET)) $(CARGO) test --locked --manifest-path window/Cargo.toml --target-dir $(TARGET)/window --test screen -- --ignored

# The pictures of the guide, from a real window on a screen in memory.
window-pictures: build
	tools/install-deps.sh pictures
	$(BUILD_WINDOW)
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
# What maturin tells pyo3 of Python: without the same for cargo, each would build what the other has built.
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

# What programs in C are built with; `pip install` has the wheel.
bindings-install:
	install -D -m 644 bindings/c/claviger.h $(DESTDIR)$(PREFIX)/include/claviger.h
	install -D -m 644 $(TARGET)/$(BINDINGS)/libclaviger.a $(DESTDIR)$(PREFIX)/lib/libclaviger.a
	install -D -m 755 $(TARGET)/$(BINDINGS)/libclaviger.so $(DESTDIR)$(PREFIX)/lib/libclaviger.so.0
	ln -sf libclaviger.so.0 $(DESTDIR)$(PREFIX)/lib/libclaviger.so
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(shell sed -n 's/^version = "\(.*\)"/\1/p' bindings/Cargo.toml)|' bindings/c/claviger.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/claviger.pc

# Every test. A test that cannot run says SKIPPED and why; with CI=true in the environment it fails instead.
test:
	tools/install-deps.sh test
	$(CARGO) test --locked --workspace

build-tests:
	$(CARGO) test --locked --workspace --no-run

# The ciphers' kernels for AArch64, in an emulator: all lengths, alignments and modes. What looks at its own memory in procfs, or at
# another process, cannot run there.
test-aarch64:
	tools/install-deps.sh test
	if [ -d "$$(rustc --print target-libdir --target $(AARCH64))" ] || rustup target add $(AARCH64); then \
	    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
	    $(CARGO) test --locked -p claviger-crypto --target $(AARCH64) --test it -- kernels:: vectors:: xts:: legacy_modes::; \
	else echo "SKIPPED test-aarch64: there is no Rust library for $(AARCH64), and rustup cannot install it." >&2; fi

# Every way to reach a volume under random operations against a model, side by side, for SECONDS: make soak SECONDS=600.
# FSX_SEED=N has the same operations again.
soak:
	tools/install-deps.sh test
	SECONDS=$(SECONDS) $(CARGO) test --locked --profile $(PROFILE) $(if $(filter test,$(PROFILE)),--workspace,-p claviger) --test it -- --ignored --exact soak::soak --nocapture

# Every parser of bytes from outside under libFuzzer and AddressSanitizer, for SECONDS in all, side by side. RUNS=N ends a target after
# so many executions, JOBS=N has so many side by side, and TARGETS="luks2 nbd" are those that are to run.
fuzz:
	tools/fuzz.py --seconds $(SECONDS) $(if $(RUNS),--runs $(RUNS)) $(if $(JOBS),--jobs $(JOBS)) $(TARGETS)

# Whether what fuzzes compiles, without the sanitizer, which would have everything built anew.
fuzz-check:
	$(CARGO) check --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)/fuzz-check

# All that is to show that nothing is lost, one part after the other: docs/reliability.md. Some six hours on two processors; each part
# prints its figures. TORTURE_POINTS=1000000 looks at more crashes, FUZZ=N fuzzes for so many seconds (by itself about 10^8 executions),
# SECONDS=N exercises mounts for so long, and ENDURE=N has what is to last last for so long.
TORTURE_POINTS ?= 100000
FUZZ ?= 6000
torture:
	tools/install-deps.sh test
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
	# Workspaces of their own, whose locked versions have to be right all the same.
	for folder in bench bindings fuzz window; do $(CARGO) metadata --locked --format-version=1 --manifest-path $$folder/Cargo.toml >/dev/null || exit; done
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	# It checks a few files: optimising it takes longer than all that it does.
	command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny
	$(CARGO) deny --locked check licenses bans sources
	tools/advisories.sh

# What is linked in: docs/dependencies.md, and the same as a software bill of materials.
dependencies:
	tools/dependencies.py list

sbom:
	mkdir -p $(TARGET)
	tools/dependencies.py sbom $(TARGET)/claviger.cdx.json

# Builds the program twice, in two folders and from an empty target folder, and compares them.
reproducible:
	tools/reproducible.sh

doc:
	# Pages of what is gone would stay.
	rm -rf $(TARGET)/doc/claviger_*
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps $(addprefix -p ,$(LIBRARIES) claviger-lab)

# The public API as text, in docs/api: a change of it is seen in review.
api: doc
	tools/api.py write $(TARGET)/doc $(LIBRARIES)

api-check: doc
	tools/api.py check $(TARGET)/doc $(LIBRARIES)

# What crates.io would be given, packed and built in order. Uploads nothing.
package:
	# Anew each time: cargo takes a packed crate of the same version for the same crate, and keeps what it unpacked where no
	# checkout ends, under a hash of the folder's path.
	rm -rf $(TARGET)/packed $(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src/-*/claviger-*
	CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) publish --dry-run --locked --allow-dirty --workspace --target-dir $(TARGET)/packed

# The program, by the oldest compiler, as it is for the other C library: what is wrong with either is seen at once. In a folder of its
# own, since it builds everything anew.
msrv:
	tools/install-deps.sh static
	if rustup run $(MSRV) cargo --version >/dev/null 2>&1 || rustup toolchain install --profile minimal $(MSRV) && \
	    rustup target add --toolchain $(MSRV) $(MUSL); then \
	    CC_$(subst -,_,$(MUSL))=musl-gcc rustup run $(MSRV) cargo check --locked -p claviger --target $(MUSL) --target-dir $(TARGET)/msrv; \
	else echo "SKIPPED msrv: there is no Rust $(MSRV) for $(MUSL), and rustup cannot install it." >&2; fi

# docs/studies.md, from the runs in docs/studies: each is a run.json, compressed.
studies:
	tools/studies.sh $(PROGRAM) docs/studies > $(TARGET)/studies.md
	mv $(TARGET)/studies.md docs/studies.md

# The guide as a website.
book:
	if command -v mdbook >/dev/null; then mdbook build docs --dest-dir $(abspath $(TARGET))/book; \
	else echo "SKIPPED book: there is no mdbook (cargo install --locked mdbook)." >&2; fi

man: build
	$(PROGRAM) man --out $(TARGET)/man

# The program without its line tables, which are three quarters of it: they go where debuggers look for them.
install: man
	objcopy --only-keep-debug $(PROGRAM) $(TARGET)/claviger.debug
	objcopy --strip-debug --add-gnu-debuglink=$(TARGET)/claviger.debug $(PROGRAM) $(TARGET)/claviger.stripped
	install -D -m 755 $(TARGET)/claviger.stripped $(DESTDIR)$(PREFIX)/bin/claviger
	install -D -m 644 $(TARGET)/claviger.debug $(DESTDIR)$(TABLES)/claviger.debug
	if mkdir -p $(DESTDIR)$(HELPERS) 2>/dev/null && [ -w $(DESTDIR)$(HELPERS) ]; then \
	    ln -sf $(PREFIX)/bin/claviger $(DESTDIR)$(HELPERS)/mount.fuse.claviger; \
	    ln -sf $(PREFIX)/bin/claviger $(DESTDIR)$(HELPERS)/mount.claviger; \
	else echo "No helpers for mount(8) in $(HELPERS): that takes root."; fi
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

# The package and the next version of it, in a fresh Debian.
deb-test: deb
	tools/install-deps.sh deb
	mkdir -p $(TARGET)/deb/next
	VERSION=$(VERSION)+next tools/deb.sh $(TARGET)/staged $(TARGET)/deb/next
	tools/deb-test.sh $(TARGET)/deb/claviger_*.deb $(TARGET)/deb/next/claviger_*.deb

# The program in one file that runs on every Linux of its kind of processor. It cannot load PKCS#11 modules.
static:
	tools/install-deps.sh static
	rustup target add $(MUSL)
	CC_$(subst -,_,$(MUSL))=musl-gcc $(CARGO) build --locked --release -p claviger --target $(MUSL)

# All that is published for a version, in target/release-VERSION, from a clean checkout: docs/releasing.md.
release:
	tools/release.sh $(TARGET)

clean:
	$(CARGO) clean
