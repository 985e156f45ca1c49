# SPDX-License-Identifier: Apache-2.0
# The two commands of the README, and a few more. Each sets up what it needs.
.PHONY: demo check build check-long bench setup clean deb install format

BUILD ?= build
JOBS ?= $(shell nproc)

build: setup
	@cmake -S . -B $(BUILD) -G Ninja > $(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)

setup:
	@scripts/setup.sh build

demo: build
	@scripts/demo.sh $(BUILD)

check:
	@scripts/check.sh

check-long:
	@scripts/check-long.sh

bench:
	@scripts/bench.sh

deb: build
	@cd $(BUILD) && cpack -G DEB

install: build
	@cmake --install $(BUILD)

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	@rm -rf build build-* build.log out
