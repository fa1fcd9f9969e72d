#!/bin/sh
# The test program under the sanitizers and valgrind; `make sanitize` starts it. Last line: the count.
. "$(dirname "$0")/cells.sh"

DEBUG="-g1 -O1 -fno-omit-frame-pointer"
MEMORY="-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"
# For the examples, whose own code is in question: every instruction set's kernels take these
# compilers a minute, and run in the tests.
PLAIN="-DSANTA_NO_SIMD"

# sanitized COMPILER FLAGS ARGUMENTS...: the test program. The decoder is built the same way,
# with the same object of the library, and handed to the model cases, which feed it broken files.
# shellcheck disable=SC2086
sanitized() {
    compiler=$1
    flags="$DEBUG $2"
    shift 2
    need "$compiler"
    can_link "$compiler" $flags
    test_program "$compiler" $flags || return 1
    "$compiler" $flags $LINKED -o "$dir/decode" examples/decode.c "$dir/impl.o" -lm || return 1
    SANTA_DECODE=$dir/decode
    export SANTA_DECODE
    limited "$dir/test" "$@"
}

# The same, and then as if the machine had less, see impl.c.
# shellcheck disable=SC2086
every_isa() {
    sanitized "$@" || return 1
    for isa in avx2 scalar; do
        SANTA_TEST_ISA=$isa limited "$dir/test" --quick $SLOWEST_MACHINE || return 1
    done
}

# shellcheck disable=SC2086
examples() {
    need "$1"
    can_link "$1" $DEBUG $MEMORY
    "$1" $DEBUG $MEMORY $PLAIN -c -o "$dir/impl.o" test/impl.c || return 1
    for example in examples/*.c; do
        case $example in examples/decode.c | examples/ggml_op.c | examples/sharded_mpi.c | examples/prefill_tune.c) continue ;; esac
        "$1" $DEBUG $MEMORY $LINKED -pthread -o "$dir/example" "$example" "$dir/impl.o" -lm &&
            limited "$dir/example" || return 1
    done
}

# The cases that use threads, and the example that does; no OpenMP, whose run-time library is not instrumented.
# shellcheck disable=SC2086
threads() {
    SUITES="determinism saap kmeans"
    sanitized "$1" -fsanitize=thread --quick determinism/ saap/threads k-means/ || return 1
    "$1" $DEBUG -fsanitize=thread $LINKED -pthread -o "$dir/example" examples/threads.c "$dir/impl.o" -lm &&
        limited "$dir/example"
}

# It takes fifty times as long as the program alone, and MSan knows what it knows of clang's code: a few cases of
# each kernel, conversion, format and way of asking, in the Makefile's program.
memcheck() {
    need valgrind
    limited valgrind -q --error-exitcode=9 --leak-check=full "$BUILD/santa_test" --quick convert/ random/ \
        kernels/bf16 kernels/q8_0 kernels/e5m2 dense/types dense/head_dim dense/feature prefill/types \
        q8_0/gather sampling/flash sampling/iid, "sampling/gather against" proxy/format saap-file/ \
        errors/overflowing memory/workspace
}

# What the other compiler's code may do to memory: gcc's build runs all suites.
clang_memory() {
    # shellcheck disable=SC2046,SC2086
    sanitized clang "$MEMORY" --quick $SLOWEST_MACHINE memory/ fuzz/ model/ $(today 2)
}

list() {
    # shellcheck disable=SC2046
    cell "gcc, ASan and UBSan, every instruction set" every_isa gcc "$MEMORY" --quick $(today 4)
    cell "clang, ASan and UBSan"   clang_memory
    # shellcheck disable=SC2046,SC2086
    cell "clang, MSan"             sanitized clang "-fsanitize=memory -fsanitize-memory-track-origins" --quick \
        $SLOWEST_MACHINE memory/ fuzz/ sampling/ vattention/ bernoulli/ ranks/ lists/ sparse/ prefill/ $(today 2 1)
    cell "valgrind"                memcheck
    cell "gcc, TSan"               threads gcc
    cell "clang, TSan"             threads clang
    cell "examples, ASan and UBSan" examples gcc
}

"${MAKE:-make}" -s -j "$JOBS" CC="$CC" BUILD="$BUILD" "$BUILD/santa_test" || exit 1     # valgrind's
run_cells list
