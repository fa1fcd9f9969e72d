#!/bin/sh
# The GPU half: the host side of santa_cuda.cu with a stand-in for the CUDA runtime, its kernels on an
# emulated GPU, the whole compiled for every architecture, and its tests, which skip themselves one by
# one where there is no device. With `launches` only the first two, by one compiler. Last line: N
# passed, N failed, N skipped.
. "$(dirname "$0")/cells.sh"
. "$root/test/total.sh"

# Cases of the GPU's tests that an emulator takes seconds for; fewer ones.
FEW="--quick methods_and_stashes cpu/types gpu/errors cuda_errors saap_limits steps_edges scales_errors
     items_means coded_buckets"
EMULATED="--quick methods_and_stashes cpu/types head_dims groups paged extras nan_in_k graphs gpu/errors
          cuda_errors proxy_redo gpu_lists left_padding std_errors gpu_steps gpu_saap va_short_rows va_exact
          va_poison va_nan va_errors gpu_prefill scales_errors items_of_many_heads items_means
          coded_budgets coded_buckets rows_nan"
# Under sanitizers, where each takes five times as long.
SANITIZED="--quick methods_and_stashes cpu/types head_dims groups paged extras nan_in_k graphs gpu/errors
           cuda_errors gpu_lists std_errors gpu_steps saap_limits saap_graphs va_exact va_poison va_nan va_errors
           prefill_dense sparse_like_cpu first_tokens scales_with_options scales_errors items_of_arrays many_heads
           items_means coded_errors coded_budgets coded_buckets coded_copies rows_nan rows_of_any_length"

# Needs a C++17 compiler and nothing of CUDA. The library reads enums that a caller in C may have filled with
# any int, which C++'s -fsanitize=enum takes amiss.
launches_with() {
    need "$1"
    compiler=$1
    shift
    can_link "$compiler" -x c++ "$@"
    # Memory that a call gives back the next one wants again: with glibc the process keeps it.
    "$compiler" -std=c++17 -Wall -Wextra -Werror "$@" -Itest/cuda/standin -o "$dir/test" \
        test/cuda/test_launches.cpp && MALLOC_TOP_PAD_=67108864 limited "$dir/test"
}

# emulated COMPILER FLAGS -- ARGUMENTS: the GPU's tests with the kernels run on the CPU. The library is
# compiled with the same flags if these are a sanitizer's.
# shellcheck disable=SC2086
emulated() {
    need "$1"
    compiler=$1
    shift
    flags=
    while [ "$1" != -- ]; do flags="$flags $1"; shift; done
    shift
    can_link "$compiler" -x c++ $flags
    library=$BUILD/santa.o
    case $flags in
    *-fsanitize*)
        library=$dir/santa.o
        "$compiler" -x c -DSANTA_NO_SIMD $flags -c -o "$library" test/impl.c || return 1 ;;
    *)  "${MAKE:-make}" -s CC="$CC" BUILD="$BUILD" "$library" || return 1 ;;
    esac
    compiler="$compiler -std=c++17 -fno-strict-aliasing -ffp-contract=off -w $flags $LINKED -Itest/cuda/emulator"
    for source in santa_cuda.cu test/cuda/test_cuda.cu test/cuda/test_emulator.cpp; do
        $compiler -c -o "$dir/$(basename "$source").o" -x c++ "$source" || return 1
    done
    $compiler -o "$dir/test" "$dir/santa_cuda.cu.o" "$dir/test_cuda.cu.o" "$library" -lm &&
    $compiler -o "$dir/itself" "$dir/test_emulator.cpp.o" "$library" -lm &&
    limited "$dir/itself" && limited "$dir/test" "$@"
}

# On a card before sm_90, and with CTAs, warps and lanes in another order.
emulated_older() {
    SANTA_EMULATED_CARD=sm_86 SANTA_EMULATED_ORDER=reverse emulated "$@"
}

# The decoder's text is the CPU's, with keys in buckets too, and the accuracy program comes to its end: what
# they give the GPU lies where it reaches it.
programs() {
    need g++
    "${MAKE:-make}" -s CC="$CC" BUILD="$BUILD" "$BUILD/santa.o" "$BUILD/decode" || return 1
    emulator="g++ -std=c++17 -O1 -fno-strict-aliasing -ffp-contract=off -w $LINKED -Itest/cuda/emulator"
    for source in santa_cuda.cu examples/decode_cuda.cu bench/accuracy/accuracy_cuda.cu; do
        $emulator -c -o "$dir/$(basename "$source").o" -x c++ "$source" || return 1
    done
    for program in decode accuracy; do
        $emulator -o "$dir/$program" "$dir/${program}_cuda.cu.o" "$dir/santa_cuda.cu.o" "$BUILD/santa.o" \
            -lm -pthread || return 1
    done
    for options in "dense" "saap --samples 0 --local 16" "saap --samples 40" "sys --samples 8"; do
        # shellcheck disable=SC2086
        set -- --prompt-file examples/model/heldout.txt --prompt-tokens 150 --steps 12 --temperature 0 \
            --method $options
        limited "$BUILD/decode" "$@" >"$dir/cpu" && limited "$dir/decode" "$@" >"$dir/gpu" &&
            cmp "$dir/cpu" "$dir/gpu" || return 1
    done
    limited "$dir/accuracy" --methods sys,pps --length 512 --bodies 1 --queries 1 --tasks QA1 --threads 1 \
        >"$dir/table" && grep -q "^pps, 2 bits" "$dir/table"
}

# The page of what is supported is what the library says.
support() {
    need "${CXX:-g++}"
    "${CXX:-g++}" -std=c++17 -O0 -Itest/cuda/standin -o "$dir/support" test/cuda/support.cpp &&
    "$dir/support" >"$dir/support.md" && diff bench/results/support.md "$dir/support.md"
}

launches_once() {
    # shellcheck disable=SC2086
    cell "kernels on an emulated GPU" emulated "${CXX:-g++}" -Og -- $FEW
    cell "launches on a stand-in runtime" launches_with "${CXX:-g++}" -O0
    cell "bench/results/support.md" support
}

# The longest ones first, so that no worker waits for another one at the end.
kernels() {
    exec 3>&1                               # a cell's own output is shown when it fails
    # In parts, so that two workers share them.
    # shellcheck disable=SC2046
    if [ -n "$(today 8)" ]; then
        cell "kernels on an emulated GPU, an eighth of all tests" emulated g++ -O1 -- --quick $(today 8 1)
    else
        for part in 3 1 2; do
            cell "kernels on an emulated GPU, all tests, part $part of 3" emulated g++ -O1 -- --quick --part $part/3
        done
    fi
    # What nobody wrote is the same in every run, so that a mistake shows in all of them or in none.
    # shellcheck disable=SC2046,SC2086
    cell "kernels on an emulated GPU, ASan and UBSan" emulated g++ -O1 -g1 -fsanitize=address,undefined \
        -fno-sanitize=enum -fno-sanitize-recover=all -ftrivial-auto-var-init=pattern -- $SANITIZED $(today 4)
    # shellcheck disable=SC2046,SC2086
    cell "kernels on an emulated sm_86, clang++" emulated_older clang++ -O1 -D__CUDA_ARCH__=800 -- $EMULATED \
        every_kernel $(today 2)
    cell "programs on an emulated GPU" programs
    cell "launches on a stand-in runtime, clang++, ASan and UBSan" launches_with clang++ -O0 -g \
        -fsanitize=address,undefined -fno-sanitize=enum -fno-sanitize-recover=all
    for arch in 90a 100 120 90 89 86 80; do
        cell "santa_cuda.cu for sm_$arch" compile_for "$arch"
    done
    cell "santa_cuda.o's size" object_size
    for file in examples/*.cu; do cell "$file, compiled" example "$file"; done
}

# This is about errors and warnings: in a hurry a build takes a quarter of the time.
compile_for() {
    need nvcc
    nvcc --list-gpu-arch | grep -q "^compute_${1%a}\$" || skip "this nvcc has no compute_$1"
    # shellcheck disable=SC2046
    nvcc -std=c++17 $(in_a_hurry) -gencode "arch=compute_$1,code=[sm_$1,compute_$1]" -Werror all-warnings \
         -c -o "$work/sm_$1.o" santa_cuda.cu
}

# What a program takes in, compiled as the README says, for one architecture: the file's size has a
# limit, and the compiler has nothing to say, ptxas' notes included. Shells count the CPU time of what
# they ran: user and system of the last line.
OBJECT_MOST=6000000
object_size() {
    need nvcc
    nvcc --list-gpu-arch | grep -q "^compute_90$" || skip "this nvcc has no compute_90"
    sh -c 'nvcc -O3 -gencode=arch=compute_90a,code=sm_90a -c -o "$1" santa_cuda.cu >"$2" 2>&1 && times' \
        sh "$dir/object.o" "$dir/said" >"$dir/times" || { cat "$dir/said"; return 1; }
    cat "$dir/said"
    [ ! -s "$dir/said" ] || return 1
    bytes=$(wc -c <"$dir/object.o")
    echo "santa_cuda.o: $bytes bytes of $OBJECT_MOST at most, CPU time $(tail -n 1 "$dir/times")" >&3
    [ "$bytes" -le "$OBJECT_MOST" ]
}

# Examples for GPUs, compiled; without NCCL its header is missing.
example() {
    need nvcc
    case $1 in *nccl*)
        echo '#include <nccl.h>' >"$dir/probe.cu"
        nvcc -c -o "$dir/probe.o" "$dir/probe.cu" 2>/dev/null || skip "no nccl.h" ;;
    esac
    "${MAKE:-make}" -s CC="$CC" BUILD="$BUILD" "$BUILD/santa.o" &&
    nvcc -std=c++17 -O0 -DSANTA_IMPLEMENTATION_DONE -Werror all-warnings -c -o "$dir/example.o" "$1"
}

gpu_tests() {
    if ! command -v nvcc >/dev/null 2>&1; then
        echo "skipped test/cuda/test_cuda.cu: no nvcc"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    if nvidia-smi -L >/dev/null 2>&1; then
        arch=-arch=native
        nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^9\.0$' &&
            arch=-gencode=arch=compute_90a,code=sm_90a
        kernels="-O3 $arch -include test/cuda/launched.h santa_cuda.cu"
    else
        kernels=$BUILD/cuda/sm_90a.o
    fi
    # shellcheck disable=SC2086
    nvcc -std=c++17 -o "$BUILD/test_cuda" test/cuda/test_cuda.cu $kernels && "$BUILD/test_cuda"
}

if [ "${1:-}" = launches ]; then
    run_cells launches_once
    exit
fi
plan "kernels" "gpu tests"
part "kernels"   run_cells kernels
part "gpu tests" gpu_tests
total
