# santa.h needs no build: copy it. This builds its tests, examples and benchmark; a C compiler and make are enough.
CC     ?= cc
CFLAGS ?= -O2 -Wall -Wextra
LDLIBS ?= -lm
BUILD  ?= build

# Examples that want ggml or MPI are built where pkg-config or mpicc is found.
comma   := ,
MPICC   := $(shell command -v mpicc 2>/dev/null)
GGML    := $(shell pkg-config --silence-errors --cflags --libs ggml 2>/dev/null)
GGML    += $(if $(strip $(GGML)),-Wl$(comma)--disable-new-dtags$(comma)-rpath$(comma)$(shell pkg-config --variable=libdir ggml))
EXAMPLES = $(patsubst examples/%.c,$(BUILD)/%,$(filter-out $(if $(GGML),,%/ggml_op.c) $(if $(MPICC),,%/sharded_mpi.c),\
             $(wildcard examples/*.c)))
TESTS    = $(patsubst test/%.c,$(BUILD)/test/%.o,$(filter-out test/impl.c,$(wildcard test/*.c)))

# One object with the library's code for all programs. Those that define SANTA_IMPLEMENTATION,
# as a single file must, are told that they have it already: its code takes ten times as long to
# compile as the rest of them.
LIBRARY  = $(BUILD)/santa.o
LINKED   = -DSANTA_IMPLEMENTATION_DONE

# The tests' own code: it compiles five times as fast as at -O2 and runs nearly as fast. The model
# that test_tasks.c runs in it does not.
TEST_CFLAGS ?= $(patsubst -O2,-Og,$(CFLAGS))
$(BUILD)/test/test_tasks.o: TEST_CFLAGS = $(CFLAGS)

accuracy_options = $(if $(N),--bodies $(N)) $(if $(LENGTH),--length $(LENGTH)) $(if $(TABLES),--tables $(TABLES))
mutants_options  = $(if $(COUNT),--count $(COUNT)) $(if $(SHARD),--shard $(SHARD)) $(if $(MINUTES),--minutes $(MINUTES)) \
                   $(if $(SECTION),--section $(SECTION))

help:
	@echo "make test       unit tests, examples, CUDA without a GPU: 2 minutes; last line: N passed, N failed, N skipped"
	@echo "make test-all   the rest: long tests in full, compilers and CPUs, examples alone, CUDA"
	@echo "make demo       small language models: text and answers, exactly and with sampled attention; times"
	@echo "make examples   every program of examples/ into $(BUILD)/"
	@echo "make bench      speed against exact attention and the read bandwidth; QUICK=1 for a short run"
	@echo "make bench-compare   two versions of santa.h in turns: OLD=file or git revision, NEW=, QUICK=1, DIM=80, COPY=1; 5 minutes"
	@echo "make accuracy   answers of a long-context model per method and budget, minutes; N=4 bodies of text, TABLES=1,2,3,4,5,6,7,8"
	@echo "make sanitize   the suite under ASan, UBSan, TSan, MSan and valgrind"
	@echo "make mutants    do the tests notice small changes to the code? 20 minutes on two cores; SHARD=today/8, COUNT=220, SECTION=draw"
	@echo "make coverage   branches of the library that the tests take, per section; make golden renews test/golden.h"
	@echo "make cuda       $(BUILD)/santa_cuda.o, where nvcc is; ARCH=sm_90"
	@echo "                cuda-test, cuda-bench (both with QUICK=1) and cuda-accuracy run on a GPU"
	@echo "make support    what each method takes: devices, types, layouts, scores"
	@echo "make install    the headers and santa.pc; PREFIX=/usr/local DESTDIR="
	@echo "make clean      remove $(BUILD)/"

test:
	@CC="$(CC)" BUILD="$(BUILD)" MAKE="$(MAKE)" sh test/run.sh

test-all:
	@CC="$(CC)" BUILD="$(BUILD)" MAKE="$(MAKE)" sh test/run.sh all

sanitize:
	@BUILD="$(BUILD)" sh test/sanitize.sh

mutants:
	@if command -v python3 >/dev/null; then CC="$(CC)" BUILD="$(BUILD)" python3 test/mutants/mutants.py $(mutants_options); \
	 else echo "skipped the mutation test: no python3"; echo "0 passed, 0 failed, 1 skipped"; fi

coverage:
	@BUILD="$(BUILD)" sh test/coverage.sh

golden: $(BUILD)/santa_test
	SANTA_WRITE_GOLDEN=test/golden.h $(BUILD)/santa_test golden/results

demo:
	@$(MAKE) -q $(LIBRARY) >/dev/null 2>&1 || echo "compiling santa.h once, about 15 s"
	@$(MAKE) -s --no-print-directory $(BUILD)/decode $(BUILD)/demo
	@$(BUILD)/decode --demo
	@$(BUILD)/demo

examples: $(EXAMPLES)

bench: $(BUILD)/bench
	$(BUILD)/bench $(if $(QUICK),--quick) --csv $(BUILD)/bench.csv

bench-compare: $(BUILD)/compare/compare
	$< $(if $(QUICK),--quick) --old "$(compare_old)" --new "$(compare_new)" $(if $(ISA),--isa $(ISA)) $(if $(COPY),--copy)

accuracy: $(BUILD)/accuracy
	$(BUILD)/accuracy --csv $(BUILD)/accuracy.csv $(accuracy_options)

# The headers and santa.pc, below $(DESTDIR)$(PREFIX); for CMake projects see examples/packaging.
PREFIX ?= /usr/local
version = $(shell sed -n '1s/.* - v\([0-9.]*\) - .*/\1/p' santa.h)

install:
	mkdir -p "$(DESTDIR)$(PREFIX)/include" "$(DESTDIR)$(PREFIX)/share/pkgconfig"
	cp santa.h santa_cuda.h "$(DESTDIR)$(PREFIX)/include"
	sed 's/@santa_version@/$(version)/; s/@CMAKE_INSTALL_INCLUDEDIR@/include/' examples/packaging/santa.pc.in >"$(DESTDIR)$(PREFIX)/share/pkgconfig/santa.pc"

clean:
	rm -rf $(BUILD)

$(LIBRARY): test/impl.c santa.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

$(BUILD)/santa_test: $(TESTS) $(LIBRARY)
	$(CC) $(CFLAGS) -pthread -o $@ $^ $(LDLIBS)

$(BUILD)/test/%.o: test/%.c $(wildcard test/*.h test/fuzz/* examples/*.h bench/gain.h bench/accuracy/*.h) santa.h
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -c -o $@ $<

$(BUILD)/%: examples/%.c $(wildcard examples/*.h) santa.h $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LINKED) -pthread -o $@ $< $(LIBRARY) $(LDLIBS)

# What santa_check takes, by method, device, type and layout.
support: $(BUILD)/support
	@$<

$(BUILD)/support: test/cuda/support.cpp test/cuda/launched.h $(wildcard test/cuda/standin/*) santa_cuda.cu santa_cuda.h santa.h
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -Itest/cuda/standin -o $@ $<

$(BUILD)/ggml_op: examples/ggml_op.c examples/data.h santa.h $(LIBRARY)
	$(CC) $(CFLAGS) $(LINKED) -o $@ $< $(LIBRARY) $(GGML) -lggml-base $(LDLIBS)

$(BUILD)/sharded_mpi: examples/sharded_mpi.c examples/data.h santa.h $(LIBRARY)
	$(MPICC) $(CFLAGS) $(LINKED) -o $@ $< $(LIBRARY) $(LDLIBS)

$(BUILD)/bench: bench/bench.c bench/bench.h bench/gain.h bench/program.h bench/prefill.h bench/products.h santa.h $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LINKED) -pthread -o $@ $< $(LIBRARY) $(LDLIBS)

# Two santa.h, each a file or that of a git revision, side by side in one program.
compare_old = $(or $(OLD),HEAD)
compare_new = $(or $(NEW),santa.h)

$(BUILD)/compare/old/santa.h $(BUILD)/compare/new/santa.h: $(BUILD)/compare/%/santa.h: FORCE
	@mkdir -p $(@D)
	@from="$(compare_$*)"; if [ -f "$$from" ]; then cat "$$from"; else git show "$$from:santa.h"; fi >$@.now
	@if cmp -s $@.now $@; then rm $@.now; else mv $@.now $@; fi

compare_dim = $(or $(DIM),128)
$(BUILD)/compare/dim: FORCE
	@mkdir -p $(@D)
	@echo $(compare_dim) | cmp -s - $@ || echo $(compare_dim) >$@

$(BUILD)/compare/%.o: bench/compare_unit.c bench/bench.h bench/gain.h bench/compare.h $(BUILD)/compare/%/santa.h $(BUILD)/compare/dim
	$(CC) $(CFLAGS) -DBENCH_DIM=$(compare_dim) -DSIDE=$*_side -I$(BUILD)/compare/$* -c -o $@ $<

$(BUILD)/compare/compare: bench/compare.c bench/bench.h bench/gain.h bench/program.h bench/compare.h santa.h \
                          $(BUILD)/compare/old.o $(BUILD)/compare/new.o $(BUILD)/compare/dim $(LIBRARY)
	$(CC) $(CFLAGS) -DBENCH_DIM=$(compare_dim) $(LINKED) -pthread -o $@ $(filter %.c %.o,$^) $(LDLIBS)

$(BUILD)/accuracy: bench/accuracy/accuracy.c bench/accuracy/tasks.h examples/llama.h examples/layer_budgets.h examples/saap.h santa.h $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LINKED) -pthread -o $@ $< $(LIBRARY) $(LDLIBS)

$(BUILD)/demo: bench/accuracy/demo.c bench/accuracy/tasks.h bench/bench.h bench/gain.h examples/llama.h santa.h $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LINKED) -o $@ $< $(LIBRARY) $(LDLIBS)

$(BUILD)/tasks_text: bench/accuracy/tasks_text.c bench/accuracy/tasks.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $< $(LDLIBS)

$(BUILD)/saap_dump: bench/accuracy/saap_dump.c bench/accuracy/tasks.h examples/llama.h santa.h $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LINKED) -pthread -o $@ $< $(LIBRARY) $(LDLIBS)

# The GPU half, where nvcc and santa_cuda.cu are: an object to link beside santa.h.
ifneq ($(and $(wildcard santa_cuda.cu),$(shell command -v nvcc 2>/dev/null)),)
# Of an H100 or H200 the code that only they have.
card      := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
ARCH      ?= $(if $(filter 9.0,$(card)),sm_90a,$(if $(card),native,sm_90))
NVCCFLAGS ?= -O3 $(if $(filter sm_90a,$(ARCH)),-gencode=arch=compute_90a$(comma)code=sm_90a,-arch=$(ARCH))

cuda: $(BUILD)/santa_cuda.o

cuda-test: $(BUILD)/test_cuda
	$(BUILD)/test_cuda $(if $(QUICK),--quick)
	@if command -v compute-sanitizer >/dev/null; then \
	    compute-sanitizer --error-exitcode 9 $(BUILD)/test_cuda --quick every_kernel; \
	else echo "no compute-sanitizer: kernels were not run under memcheck"; fi

cuda-bench: $(BUILD)/bench_cuda
	$(BUILD)/bench_cuda $(if $(QUICK),--quick) --csv $(BUILD)/bench_cuda.csv

cuda-accuracy: $(BUILD)/accuracy_cuda
	$(BUILD)/accuracy_cuda --csv $(BUILD)/accuracy_cuda.csv $(accuracy_options)

$(BUILD)/test_cuda: test/cuda/test_cuda.cu test/main.c $(wildcard test/*.h test/cuda/*.h) \
                    $(BUILD)/test/santa_cuda.o
	nvcc -std=c++17 $(NVCCFLAGS) -o $@ $< $(BUILD)/test/santa_cuda.o

# The tests' own has a list of its kernels.
$(BUILD)/test/santa_cuda.o: santa_cuda.cu $(wildcard santa_cuda.h) santa.h test/cuda/launched.h $(BUILD)/arch
	@mkdir -p $(@D)
	nvcc -std=c++17 $(NVCCFLAGS) -include test/cuda/launched.h -c -o $@ $<

$(BUILD)/bench_cuda: bench/bench_cuda.cu bench/gain.h $(BUILD)/santa_cuda.o
	nvcc -std=c++17 $(NVCCFLAGS) -o $@ $< $(BUILD)/santa_cuda.o

$(BUILD)/accuracy_cuda: bench/accuracy/accuracy_cuda.cu bench/accuracy/accuracy.c $(wildcard bench/accuracy/*.h examples/*.h) \
                        $(BUILD)/santa_cuda.o
	nvcc -std=c++17 $(NVCCFLAGS) -Xcompiler -pthread -o $@ $< $(BUILD)/santa_cuda.o

# Remembers the architecture: objects of another one are built again.
$(BUILD)/arch: FORCE
	@mkdir -p $(@D)
	@echo "$(NVCCFLAGS)" | cmp -s - $@ || echo "$(NVCCFLAGS)" >$@

$(BUILD)/santa_cuda.o: santa_cuda.cu $(wildcard santa_cuda.h) santa.h $(BUILD)/arch
	@mkdir -p $(@D)
	nvcc -std=c++17 $(NVCCFLAGS) -c -o $@ $<
else
cuda cuda-test cuda-bench cuda-accuracy:
	@echo "$@: no nvcc in PATH" >&2; exit 1
endif

.PHONY: FORCE help install support test test-all sanitize mutants demo examples bench bench-compare accuracy cuda cuda-test cuda-bench cuda-accuracy coverage golden clean
