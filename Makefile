# santa.h needs no build: copy it. This builds its tests, examples and benchmark; a C compiler and make are enough.
CC     ?= cc
CFLAGS ?= -O2 -Wall -Wextra
LDLIBS ?= -lm
BUILD  ?= build

EXAMPLES = $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/*.c))
TESTS    = $(patsubst test/%.c,$(BUILD)/test/%.o,$(wildcard test/*.c))

help:
	@echo "make test       the whole suite that this machine can run; last line: N passed, N failed, N skipped"
	@echo "make demo       a small language model decodes text, exactly and with sampled attention"
	@echo "make examples   every program of examples/ into $(BUILD)/"
	@echo "make bench      speed and accuracy against exact attention; QUICK=1 for a short run"
	@echo "make sanitize   the suite under ASan, UBSan, TSan, MSan and valgrind"
	@echo "make cuda       $(BUILD)/santa_cuda.o, where nvcc is; cuda-test and cuda-bench run on a GPU; ARCH=sm_90, QUICK=1"
	@echo "make clean      remove $(BUILD)/"

test:
	@CC="$(CC)" BUILD="$(BUILD)" MAKE="$(MAKE)" sh test/run.sh

sanitize:
	@BUILD="$(BUILD)" sh test/sanitize.sh

demo: $(BUILD)/decode
	$(BUILD)/decode --demo

examples: $(EXAMPLES)

bench: $(BUILD)/bench
	$(BUILD)/bench $(if $(QUICK),--quick)

clean:
	rm -rf $(BUILD)

$(BUILD)/santa_test: $(TESTS)
	$(CC) $(CFLAGS) -pthread -o $@ $^ $(LDLIBS)

$(BUILD)/test/%.o: test/%.c $(wildcard test/*.h) santa.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

$(BUILD)/%: examples/%.c $(wildcard examples/*.h) santa.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $< $(LDLIBS)

$(BUILD)/bench: bench/bench.c santa.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $< $(LDLIBS)

# The GPU half, where nvcc and santa_cuda.cu are: an object to link beside santa.h.
ifneq ($(and $(wildcard santa_cuda.cu),$(shell command -v nvcc 2>/dev/null)),)
ARCH      ?= $(if $(shell nvidia-smi -L 2>/dev/null),native,sm_90)
NVCCFLAGS ?= -O3 -arch=$(ARCH)

cuda: $(BUILD)/santa_cuda.o

cuda-test: $(BUILD)/test_cuda
	$(BUILD)/test_cuda $(if $(QUICK),--quick)

cuda-bench: $(BUILD)/bench_cuda
	$(BUILD)/bench_cuda $(if $(QUICK),--quick) --csv $(BUILD)/bench_cuda.csv

$(BUILD)/test_cuda: test/cuda/test_cuda.cu test/main.c $(wildcard test/*.h) $(BUILD)/santa_cuda.o
	nvcc -std=c++17 $(NVCCFLAGS) -o $@ $< $(BUILD)/santa_cuda.o

$(BUILD)/bench_cuda: bench/bench_cuda.cu $(BUILD)/santa_cuda.o
	nvcc -std=c++17 $(NVCCFLAGS) -o $@ $< $(BUILD)/santa_cuda.o

$(BUILD)/santa_cuda.o: santa_cuda.cu $(wildcard santa_cuda.h) santa.h
	@mkdir -p $(@D)
	nvcc -std=c++17 $(NVCCFLAGS) -c -o $@ $<
endif

.PHONY: help test sanitize demo examples bench cuda cuda-test cuda-bench clean
