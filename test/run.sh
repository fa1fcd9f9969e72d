#!/bin/sh
# `make test` starts this: unit tests, examples and what the GPU half would launch, minutes.
# With `all`, for `make test-all`, the rest of what this machine can run. What needs a tool that
# is not here is skipped, by name. Last line: N passed, N failed, N skipped.
. "$(dirname "$0")/cells.sh"
. "$root/test/total.sh"

unit_tests() {
    "${MAKE:-make}" -s -j "$JOBS" CC="$CC" BUILD="$BUILD" "$BUILD/santa_test" "$BUILD/decode" "$BUILD/accuracy" \
        "$BUILD/saap_dump" || return 1
    SANTA_DECODE=$BUILD/decode SANTA_ACCURACY=$BUILD/accuracy SANTA_SAAP_DUMP=$BUILD/saap_dump "$BUILD/santa_test"
}

if [ "${1:-}" = all ]; then
    plan "examples one by one" "matrix" "cuda"
    part "examples one by one" sh test/examples.sh alone
    part "matrix"              sh test/matrix.sh
    part "cuda"                sh test/cuda.sh
else
    plan "unit tests" "the tests' own tools" "examples" "CUDA launches"
    part "unit tests"            unit_tests
    part "the tests' own tools"  sh test/self.sh
    part "examples"              sh test/examples.sh
    part "CUDA launches"         sh test/cuda.sh launches
fi
total
