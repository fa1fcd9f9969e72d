#!/bin/sh
# `make test` starts this: unit tests, the longest of them with fewer seeds, examples and what the GPU
# half would launch, minutes. With `all`, for `make test-all`, the rest of what this machine can run,
# these in full. What needs a tool that is not here is skipped, by name. Last line: N passed, N failed,
# N skipped.
. "$(dirname "$0")/cells.sh"
. "$root/test/total.sh"

# unit_tests HOW: --brief or --longest, see main.c.
unit_tests() {
    "${MAKE:-make}" -s -j "$JOBS" CC="$CC" BUILD="$BUILD" "$BUILD/santa_test" "$BUILD/decode" "$BUILD/accuracy" \
        "$BUILD/saap_dump" || return 1
    SANTA_DECODE=$BUILD/decode SANTA_ACCURACY=$BUILD/accuracy SANTA_SAAP_DUMP=$BUILD/saap_dump
    export SANTA_DECODE SANTA_ACCURACY SANTA_SAAP_DUMP
    shards "$BUILD/santa_test" "$1"
}

# A share of the suites for every processor, each in a process of its own: the first prints as it goes, the others
# after it. Adds up their last lines; a share without one, or with a bad end and no failure in its count, is a failure.
shards() {
    number=$JOBS
    [ "$number" -le 16 ] || number=16
    log=$BUILD/shard
    rm -f "$log".*
    shard=1
    while [ "$shard" -lt "$number" ]; do
        shard=$((shard + 1))
        { "$@" --part "$shard/$number" >"$log.$shard" 2>&1; echo "status $?" >"$log.$shard.status"; } &
    done
    { "$@" --part "1/$number" 2>&1; echo "status $?" >"$log.1.status"; } | tee "$log.1"
    wait
    shard=1
    while [ "$shard" -lt "$number" ]; do
        shard=$((shard + 1))
        cat "$log.$shard"
    done
    awk -v number="$number" '
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { passed += $1; failed += bad = $3; skipped += $5; counts++ }
        /^status / { ended++; if ($2 && !bad) failed++; bad = 0 }
        END {
            if (ended < number || counts < number && !failed) failed++
            printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
            exit failed > 0
        }' "$log".*
}

if [ "${1:-}" = all ]; then
    plan "longest unit tests" "examples one by one" "matrix" "cuda"
    part "longest unit tests"  unit_tests --longest
    part "examples one by one" sh test/examples.sh alone
    part "matrix"              sh test/matrix.sh
    part "cuda"                sh test/cuda.sh
else
    plan "unit tests" "the tests' own tools" "examples" "CUDA launches"
    part "unit tests"            unit_tests --brief
    part "the tests' own tools"  sh test/self.sh
    part "examples"              sh test/examples.sh
    part "CUDA launches"         sh test/cuda.sh launches
fi
total
