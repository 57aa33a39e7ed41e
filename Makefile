# The two commands of the README are `make try` and `make test`.

PREFIX ?= /usr/local
DESTDIR ?=
# Where mount(8) looks for its helpers, and nowhere else. They are not installed without root.
HELPERS ?= /sbin
CARGO ?= cargo
# Cargo's output folder.
TARGET := $(or $(CARGO_TARGET_DIR),target)
PROGRAM := $(TARGET)/release/claviger

# How long `make soak` lasts, in seconds.
SECONDS ?= 3600

.PHONY: all build try test soak lint advisories man install uninstall clean

all: build

build:
	$(CARGO) build --release --locked -p claviger

# A tour in three minutes.
try:
	tools/install-deps.sh try
	$(CARGO) build --release --locked -p claviger
	tools/try.sh $(PROGRAM)

# Every test. A test that cannot run says SKIPPED and why; with CI=true in the environment it fails instead.
test:
	tools/install-deps.sh test
	$(CARGO) test --locked --workspace

# Every way to reach a volume, side by side, under random operations checked against a model, for SECONDS: make soak
# SECONDS=600. FSX_SEED=N repeats the same operations.
soak:
	tools/install-deps.sh test
	SECONDS=$(SECONDS) $(CARGO) test --locked --release -p claviger --test it -- --ignored --exact soak::soak --nocapture

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny --locked check licenses bans sources
	tools/advisories.sh

man: build
	$(PROGRAM) man --out $(TARGET)/man

install: man
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/claviger
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

uninstall:
	rm -f $(DESTDIR)$(HELPERS)/mount.fuse.claviger $(DESTDIR)$(HELPERS)/mount.claviger
	rm -f $(DESTDIR)$(PREFIX)/bin/claviger $(DESTDIR)$(PREFIX)/share/man/man1/claviger.1 \
	    $(DESTDIR)$(PREFIX)/share/man/man1/claviger-*.1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/claviger \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_claviger \
	    $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/claviger.fish

clean:
	$(CARGO) clean
