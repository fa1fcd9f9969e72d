#!/bin/sh
# The GPU half: the host side of santa_cuda.cu with a stand-in for the CUDA runtime, its kernels on an
# emulated GPU, the whole compiled for every architecture, and its tests, which skip themselves one by
# one where there is no device. With `launches` only the first two, by one compiler. Last line: N
# passed, N failed, N skipped.
. "$(dirname "$0")/cells.sh"
. "$root/test/total.sh"

# Needs a C++17 compiler and nothing of CUDA. The library reads enums that a caller in C may have filled with
# any int, which C++'s -fsanitize=enum takes amiss.
launches_with() {
    need "$1"
    compiler=$1
    shift
    can_link "$compiler" -x c++ "$@"
    "$compiler" -std=c++17 -Wall -Wextra -Werror "$@" -Itest/cuda/standin -o "$dir/test" \
        test/cuda/test_launches.cpp && limited "$dir/test"
}

# emulated COMPILER FLAGS -- ARGUMENTS: the GPU's tests with the kernels run on the CPU.
emulated() {
    need "$1"
    compiler=$1
    shift
    flags=
    while [ "$1" != -- ]; do flags="$flags $1"; shift; done
    shift
    # shellcheck disable=SC2086
    set -- "$compiler -std=c++17 -fno-strict-aliasing -ffp-contract=off -w $flags $LINKED -Itest/cuda/emulator" "$@"
    "${MAKE:-make}" -s CC="$CC" BUILD="$BUILD" "$BUILD/santa.o" &&
    $1 -c -o "$dir/cuda.o" -x c++ santa_cuda.cu &&
    $1 -c -o "$dir/tests.o" -x c++ test/cuda/test_cuda.cu &&
    $1 -o "$dir/test" "$dir/cuda.o" "$dir/tests.o" "$BUILD/santa.o" -lm || return 1
    shift
    limited "$dir/test" "$@"
}

# The page of what is supported is what the library says.
support() {
    need "${CXX:-g++}"
    "${CXX:-g++}" -std=c++17 -O0 -Itest/cuda/standin -o "$dir/support" test/cuda/support.cpp &&
    "$dir/support" >"$dir/support.md" && diff bench/results/support.md "$dir/support.md"
}

launches_once() {
    cell "bench/results/support.md" support
    cell "launches on a stand-in runtime" launches_with "${CXX:-g++}" -O0
    cell "kernels on an emulated GPU" emulated "${CXX:-g++}" -O1 -- --quick methods_and_stashes cpu/types \
        head_dims groups paged extras nan_in_k graphs gpu/errors cuda_errors proxy_redo gpu_lists
}

launches() {
    cell "launches on a stand-in runtime, g++"     launches_with g++ -O1
    cell "launches on a stand-in runtime, clang++" launches_with clang++ -O1
    cell "launches on a stand-in runtime, clang++, ASan and UBSan" launches_with clang++ -O0 -g \
        -fsanitize=address,undefined -fno-sanitize=enum -fno-sanitize-recover=all
}

# -G, without optimisation: this is about errors and warnings, and an optimised build takes minutes for each.
compile_for() {
    need nvcc
    nvcc --list-gpu-arch | grep -q "^compute_$1\$" || skip "this nvcc has no compute_$1"
    nvcc -std=c++17 -G -gencode "arch=compute_$1,code=[sm_$1,compute_$1]" -Werror all-warnings \
         -c -o "$work/sm_$1.o" santa_cuda.cu
}

architectures() {
    for arch in 80 86 89 90 100 120; do
        cell "santa_cuda.cu for sm_$arch" compile_for "$arch"
    done
}

gpu_tests() {
    if ! command -v nvcc >/dev/null 2>&1; then
        echo "skipped test/cuda/test_cuda.cu: no nvcc"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    if nvidia-smi -L >/dev/null 2>&1; then
        kernels="-O3 -arch=native -include test/cuda/launched.h santa_cuda.cu"
    else
        kernels=$BUILD/cuda/sm_90.o
    fi
    # shellcheck disable=SC2086
    nvcc -std=c++17 -o "$BUILD/test_cuda" test/cuda/test_cuda.cu $kernels && "$BUILD/test_cuda"
}

if [ "${1:-}" = launches ]; then
    run_cells launches_once
    exit
fi
plan "launches" "architectures" "gpu tests"
part "launches"      run_cells launches
part "architectures" run_cells architectures
part "gpu tests"     gpu_tests
total
