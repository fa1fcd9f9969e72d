#!/bin/sh
# The whole suite that this machine can run; `make test` starts it. What needs a tool that is not here is skipped, by
# name. Last line: N passed, N failed, N skipped.
. "$(dirname "$0")/cells.sh"
. "$root/test/total.sh"

unit_tests() {
    "${MAKE:-make}" -s -j "$JOBS" CC="$CC" BUILD="$BUILD" "$BUILD/santa_test" "$BUILD/decode" "$BUILD/accuracy" || return 1
    SANTA_DECODE=$BUILD/decode SANTA_ACCURACY=$BUILD/accuracy "$BUILD/santa_test"
}

part "unit tests" unit_tests
part "examples"   sh test/examples.sh
part "matrix"     sh test/matrix.sh
part "cuda"       sh test/cuda.sh
total
