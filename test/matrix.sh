#!/bin/sh
# The compile matrix: santa.h under compilers, dialects, switches and machines. Small cells compile, link and run
# compile/use.c, which calls every public function; large ones build the whole test program. Last line: the count.
. "$(dirname "$0")/cells.sh"

# Warnings are errors in every cell: users of a header see its warnings in their own build.
STRICT="-Wall -Wextra -pedantic -Werror -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion"
USE=test/compile/use.c
UNIT=test/compile/unit.c
ONE_UNIT="-DSANTA_IMPLEMENTATION"
ASSERT="-DSANTA_ASSERT(x)=assert(x)"
TEXT_LIMIT=372500               # gcc 12: 372441

# Splits "c++17" from "c99" and the like; g++ and clang++ are then told the language, as the files end in .c.
driver() {
    case $2 in
    *++*) case $1 in gcc) echo "g++ -x c++" ;; clang) echo "clang++ -x c++" ;; esac ;;
    *)    echo "$1" ;;
    esac
}

# use COMPILER STD FLAGS...: the small program
# shellcheck disable=SC2046,SC2086
use() {
    compiler=$(driver "$1" "$2")
    std=$2
    shift 2
    need ${compiler%% *}
    $compiler -std=$std $STRICT "$@" -o "$dir/use" -lm || return 1
    limited "$dir/use"
}

# A C++ program around an implementation that was compiled as C.
cpp_with_c() {
    need "$1" "$2"
    # shellcheck disable=SC2086
    "$1" -std=c99 $STRICT -O0 -DSANTA_NO_SIMD -c -o "$dir/unit.o" $UNIT &&
    "$2" -std=c++11 $STRICT -O2 -DTWO_UNITS -x c++ -c -o "$dir/use.o" $USE &&
    "$2" -o "$dir/use" "$dir/use.o" "$dir/unit.o" -lm &&
    limited "$dir/use"
}

# Two units with an implementation of their own each, static; and one more that uses a single function of it.
two_static() {
    need "$1"
    # shellcheck disable=SC2086
    for unit in $USE $UNIT; do
        object=$dir/$(basename "$unit").o
        "$1" -std=c99 $STRICT -O0 -DSANTA_NO_SIMD -DSANTA_STATIC $ONE_UNIT -DTWO_UNITS -c -o "$object" "$unit" ||
            return 1
    done
    printf '#include "santa.h"\nint main(void) { return (int)santa_offset(0, 0); }\n' >"$dir/one.c"
    # shellcheck disable=SC2086
    "$1" -o "$dir/use" "$dir"/*.o -lm && limited "$dir/use" &&
    "$1" -std=c99 $STRICT -O2 -DSANTA_STATIC -DSANTA_IMPLEMENTATION -I. -o "$dir/one" "$dir/one.c" -lm && "$dir/one" ||
        return 1
    # asked for too late, it says so
    printf '#include "santa.h"\n#define SANTA_STATIC\n#define SANTA_IMPLEMENTATION\n#include "santa.h"\n' >"$dir/late.c"
    ! "$1" -std=c99 -I. -fsyntax-only "$dir/late.c" 2>"$dir/late" && grep -q 'error.*SANTA_STATIC' "$dir/late"
}

# Nothing leaks into the linker's name space but santa_*, and no function of the API is missing from use.c.
names() {
    need nm
    "$CC" -O0 -c -o "$dir/unit.o" $UNIT || return 1
    nm -g --defined-only "$dir/unit.o" | awk '{print $NF}' | sed 's/^_//' >"$dir/symbols"
    grep -v '^santa_[a-z]' "$dir/symbols" | grep -v '^unit_decode' && return 1
    sed -n 's/^SANTADEF .*[ *]\(santa_[a-z0-9_]*\) *(.*/\1/p' santa.h | sort -u >"$dir/api"
    [ -s "$dir/api" ] || return 1
    status=0
    "$CC" -dM -E $UNIT | grep '#define SANTA__' && { echo "macros that outlive the code"; status=1; }
    while read -r name; do
        grep -q "$name *(" $USE || { echo "use.c does not call $name"; status=1; }
    done <"$dir/api"
    return $status
}

# whole COMPILER STD FLAGS...: the whole test program, in $dir/test
# shellcheck disable=SC2046
whole() {
    compiler=$(driver "$1" "$2")
    std=$2
    shift 2
    test_program "$compiler" -std="$std" "$@"
}

# Cases with one of the words in $FEW in their names, or all.
whole_native() {
    # shellcheck disable=SC2086
    whole "$@" $STRICT && limited "$dir/test" --quick ${FEW:-}
}

# What C++ may read in another way than C.
cpp_whole() {
    FEW="$SLOWEST_MACHINE model/ fuzz/"
    whole_native gcc c++11 -O1
}

# What is not finite shows whatever the compiler is told.
fast_math() {
    FEW="kernels/NaN kernels/infinities dense/a dense/merge dense/NaN scales/a prefill/a sparse/a q8_0/NaN
        sampling/NaN sampling/no pps/a pps/unread proxy/NaN bernoulli/NaN ranks/copies ranks/choices
        memory/NaN"
    whole_native "$1" c99 -O2 -ffast-math
}

# Options are looked at by their sizes.
short_enums() {
    FEW="errors/"
    whole_native gcc c99 -O1 -fshort-enums -DSANTA_NO_SIMD
}

# And as if the machine had less: the paths that it would not choose.
# shellcheck disable=SC2086
every_isa() {
    whole_native "$@" || return 1
    for isa in avx2 scalar; do
        SANTA_TEST_ISA=$isa limited "$dir/test" --quick $SLOWEST_MACHINE sampling/ sparse/ prefill/ || return 1
    done
}

# Sizes are what differs most.
whole_32_bit() {
    need gcc
    FEW="convert/ random/ q8_0/ proxy/format errors/ golden/ saap-file/ prefill/types sparse/masks, memory/
         lists/ ranks/dense sampling/ determinism/workspace fuzz/"
    can_link gcc -m32
    whole_native gcc c99 -O2 -m32 -idirafter "/usr/include/$(gcc -print-multiarch)"      # asm/ is there, and only there
}

# qemu PROGRAM COMPILER SUITES...: cross-compiled, statically linked, run under emulation. gnu99, because strict C99
# computes in double on s390x.
qemu() {
    program=$1
    compiler=$2
    shift 2
    need "$program" "$compiler"
    can_link "$compiler" -static
    # shellcheck disable=SC2086
    whole "$compiler" gnu99 -O2 -static ${ARCH:-} $STRICT && limited "$program" "$dir/test" --quick "$@"
}

# qemu_isa ISA PROGRAM COMPILER SUITES...: the same, where that instruction set must be the one that is chosen
qemu_isa() {
    isa=$1
    shift
    qemu "$@" && grep -q "^santa [0-9.]*, $isa," "$dir/log"
}

# The instructions that the NEON code takes where the compiler is told of them.
arm_products() {
    need aarch64-linux-gnu-gcc
    ARCH=-march=armv8.2-a+dotprod+bf16
    echo '#include <arm_neon.h>' | aarch64-linux-gnu-gcc $ARCH -x c -c -o "$dir/probe.o" - 2>"$dir/log" || skip "no $ARCH"
    SUITES="kernels q8_0 prefill"
    qemu_isa neon qemu-aarch64 aarch64-linux-gnu-gcc kernels/ q8_0/ \
        prefill/types prefill/pairs "prefill/a NaN" prefill/rows
}

# x86 CPU ISA SUITES...: such a CPU takes that code and meets no illegal instruction; with the Makefile's program.
# shellcheck disable=SC2086
x86() {
    cpu=$1
    isa=$2
    shift 2
    need gcc qemu-x86_64
    [ "$(uname -m)" = x86_64 ] || skip "not an x86-64"
    gcc $LINKED -o "$dir/use" $USE "$BUILD/santa.o" -lm || return 1
    limited qemu-x86_64 -cpu "$cpu" "$dir/use" >"$dir/isa" || return 1
    [ "$isa" != avx2 ] || grep -qx 'isa avx2' "$dir/isa" || skip "this qemu has no AVX2"
    grep -qx "isa $isa" "$dir/isa" || return 1
    limited qemu-x86_64 -cpu "$cpu" "$BUILD/santa_test" --quick "$@"
}

# The kernels' text includes its own file, by the name that it was given.
renamed() {
    need "$1"
    cp santa.h "$dir/attention.h"
    printf '#define SANTA_FILENAME "attention.h"\n#define SANTA_IMPLEMENTATION\n#include "attention.h"\n' >"$dir/one.c"
    printf 'int main(void) { return santa_best_isa() == SANTA_ISA_AUTO; }\n' >>"$dir/one.c"
    # shellcheck disable=SC2086
    "$1" -std=c99 $STRICT -O0 -o "$dir/one" "$dir/one.c" -lm && "$dir/one"
}

# Of a dialect's own warnings and errors the compiler needs no code.
# shellcheck disable=SC2046,SC2086
syntax() {
    compiler=$(driver "$1" "$2")
    need ${compiler%% *}
    $compiler -std=$2 $STRICT $ONE_UNIT -fsyntax-only $USE
}

# The code that one include costs, in every instruction set, has a limit: it tells how long it takes to compile, too.
text_size() {
    need gcc size
    [ "$(uname -m)" = x86_64 ] || skip "not an x86-64"
    gcc -O2 -c -o "$dir/unit.o" $UNIT || return 1
    bytes=$(size "$dir/unit.o" | awk 'NR == 2 { print $1 }')
    echo "$bytes bytes of text, $TEXT_LIMIT at most"
    [ "$bytes" -le "$TEXT_LIMIT" ]
}

mingw() {
    need x86_64-w64-mingw32-gcc
    # shellcheck disable=SC2086
    x86_64-w64-mingw32-gcc -std=c99 $STRICT -O2 $ONE_UNIT -o "$dir/use.exe" $USE -lm &&
    # its words: near, far, small, min, interface, ..
    x86_64-w64-mingw32-gcc -std=c99 -Wall -Wextra -Werror -O0 -include windows.h -c -o "$dir/unit.o" \
        $UNIT &&
    whole x86_64-w64-mingw32-gcc c99 -O0 -D__USE_MINGW_ANSI_STDIO=1
}

mingw_run() {
    need x86_64-w64-mingw32-gcc wine
    whole x86_64-w64-mingw32-gcc c99 -O2 -D__USE_MINGW_ANSI_STDIO=1 || return 1
    WINEDEBUG=-all WINEPREFIX=$(cd "$dir" && pwd)/wine limited wine "$dir/test.exe" --quick
}

# WebAssembly by clang alone; run where node is.
wasm() {
    need clang
    printf 'int main(void) { return 0; }' >"$dir/probe.c"
    clang --target=wasm32 -c -o "$dir/probe.o" "$dir/probe.c" 2>/dev/null || skip "clang has no wasm32"
    # shellcheck disable=SC2086
    clang --target=wasm32 -std=c99 $STRICT "$1" -Itest/wasm -c -o "$dir/santa.o" test/wasm/main.c || return 1
    need wasm-ld node
    wasm-ld --no-entry --export=check --allow-undefined -o "$dir/santa.wasm" "$dir/santa.o" &&
    limited node test/wasm/run.js "$dir/santa.wasm"
}

openmp() {
    need "$1"
    FEW="determinism/ saap/threads k-means/ prefill/same sparse/same ranks/ errors/ fuzz/ golden/"
    can_link "$1" -fopenmp
    whole_native "$1" c99 -O1 -fopenmp
}

# cmake_project WAY THREADS FLAGS...: a project that takes santa in that way, configured, built and run; without optimisation.
cmake_project() {
    need cmake ctest
    way=$1
    threads=$2
    shift 2
    if [ "$way" = package ]; then
        cmake -S examples/packaging -B "$dir/santa" -DCMAKE_BUILD_TYPE=Debug "$@" && cmake --build "$dir/santa" &&
        cmake --install "$dir/santa" --prefix "$dir/prefix" || return 1
        set -- "-DCMAKE_PREFIX_PATH=$root/$dir/prefix"
    fi
    cmake -S test/packaging -B "$dir/build" -DCMAKE_BUILD_TYPE=Debug "-DWAY=$way" "-DSANTA=$root" \
        "-DTHREADS=$threads" "$@" &&
    cmake --build "$dir/build" && cd "$dir/build" && ctest --output-on-failure
}

# The installed one with OpenMP is found from a project without C, too.
cmake_openmp() {
    can_link "$CC" -fopenmp
    (cmake_project package 2 -DSANTA_WITH_OPENMP=ON) || return 1
    cmake -S test/packaging -B "$dir/cpp" -DWAY=package "-DSANTA=$root" -DTHREADS=2 -DLANGUAGES=CXX \
        "-DCMAKE_PREFIX_PATH=$root/$dir/prefix" && cmake --build "$dir/cpp" && "$dir/cpp/only_cpp"
}

# Asked for nothing or for older cards it is compiled for those it has code for; who adds the folder without
# CUDA is told.
cmake_cuda() {
    need cmake nvcc
    (cmake_project package 1 -DSANTA_WITH_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 \
        "-DCMAKE_CUDA_FLAGS=$(in_a_hurry)") || return 1
    for asked in -DSANTA_INSTALL=ON -DCMAKE_CUDA_ARCHITECTURES=75; do
        rm -rf "$dir/default"
        cmake -S examples/packaging -B "$dir/default" -DSANTA_WITH_CUDA=ON "$asked" || return 1
        grep -x 'SANTA_CUDA_ARCHITECTURES:STRING=80;90a' "$dir/default/CMakeCache.txt" || return 1
    done
    cmake -S test/packaging -B "$dir/with" -DWAY=subdirectory "-DSANTA=$root" -DTHREADS=1 \
        -DSANTA_WITH_CUDA=ON "-DLANGUAGES=C;CXX;CUDA" || return 1
    ! cmake -S test/packaging -B "$dir/without" -DWAY=subdirectory "-DSANTA=$root" -DTHREADS=1 \
        -DSANTA_WITH_CUDA=ON >"$dir/said" 2>&1 && grep "linked by CUDA's rules" "$dir/said"
}

# What `make install` and cmake leave for pkg-config says the same, and moves with its folder.
pkg_config() {
    need pkg-config
    "${MAKE:-make}" -s install PREFIX="$root/$dir/first" && mv "$dir/first" "$dir/second" || return 1
    PKG_CONFIG_PATH=$root/$dir/second/share/pkgconfig
    export PKG_CONFIG_PATH
    pkg-config --atleast-version=0.2 santa && ! pkg-config --atleast-version=99 santa || return 1
    # shellcheck disable=SC2046
    "$CC" -DSANTA_IMPLEMENTATION $(pkg-config --cflags santa) -o "$dir/program" test/packaging/main.c \
        $(pkg-config --libs santa) && "$dir/program" || return 1
    command -v cmake >/dev/null 2>&1 || return 0
    cmake -S examples/packaging -B "$dir/cmake" && diff "$dir/cmake/santa.pc" "$dir/second/share/pkgconfig/santa.pc"
}

list() {
    # The longest first, so that the workers end together.
    # shellcheck disable=SC2086
    {
    cell "s390x, big-endian, under qemu"             qemu qemu-s390x s390x-linux-gnu-gcc $EMULATED
    cell "arm64 under qemu"                 qemu_isa neon qemu-aarch64 aarch64-linux-gnu-gcc $EMULATED \
        kernels/ dense/scale, determinism/instruction
    cell "arm64 with dotprod and bf16 under qemu"    arm_products
    cell "x86-64 without AVX2 under qemu"            x86 Nehalem scalar kernels/ golden/
    cell "x86-64 without AVX-512 under qemu"         x86 max avx2 q8_0/ dense/scale,
    }
    cell "32-bit"                                    whole_32_bit
    cell "gcc, OpenMP"                               openmp gcc
    cell "gcc -fshort-enums"                         short_enums
    cell "g++ c++11"                                 cpp_whole
    cell "clang c99, whole suite, every instruction set" every_isa clang c99 -O2
    cell "mingw, compile and link"                   mingw
    cell "mingw, run"                                mingw_run
    cell "WebAssembly -O0"                           wasm -O0
    cell "WebAssembly -O2"                           wasm -O2
    for compiler in gcc clang; do
        # Dialects differ in what they accept; what is optimised differs little between them.
        for std in c99 c++20; do
            cell "$compiler $std -O2"     use $compiler $std -O2 $ONE_UNIT $USE
        done
        cell "$compiler c99 -Ofast"       use $compiler c99 -Ofast $ONE_UNIT $USE
        cell "$compiler c99 -ffast-math, NaN" fast_math $compiler
        # What people debug with warns of other variables.
        cell "$compiler c99 -Og"          use $compiler c99 -Og -g $ONE_UNIT $USE
        cell "$compiler c++17 -O3 -march=native" use $compiler c++17 -O3 -march=native $ONE_UNIT $USE
        for std in c99 c++11; do
            cell "$compiler $std -O0"     use $compiler $std -O0 $ONE_UNIT $USE
        done
        for std in c11 c17 c++14 c++17 c++20; do
            cell "$compiler $std, syntax" syntax $compiler $std
        done
        cell "$compiler c99 no SIMD"      use $compiler c99 -O2 $ONE_UNIT -DSANTA_NO_SIMD $USE
        cell "$compiler c++17 no SIMD"    use $compiler c++17 -O0 $ONE_UNIT -DSANTA_NO_SIMD $USE
        cell "$compiler c99 no AMX"       use $compiler c99 -O2 $ONE_UNIT -DSANTA_NO_AMX $USE
        cell "$compiler c99 static"       use $compiler c99 -O1 $ONE_UNIT -DSANTA_STATIC $USE
        cell "$compiler c++17 static"     use $compiler c++17 -O0 $ONE_UNIT -DSANTA_STATIC $USE
        cell "$compiler c99 asserts"      use $compiler c99 -O1 $ONE_UNIT -include assert.h "$ASSERT" $USE
        cell "$compiler c++17 asserts"    use $compiler c++17 -O0 $ONE_UNIT -include assert.h "$ASSERT" $USE
        for std in c99 c++17; do
            cell "$compiler $std two units" use $compiler $std -O0 -DTWO_UNITS -DSANTA_NO_SIMD $USE $UNIT
        done
        cell "$compiler gnu99"            use $compiler gnu99 -O0 $ONE_UNIT $USE
        cell "$compiler two static units" two_static $compiler
        cell "$compiler renamed header"   renamed $compiler
    done
    cell "C++ around a C implementation, gcc"   cpp_with_c gcc g++
    cell "C++ around a C implementation, clang" cpp_with_c clang clang++
    cell "names"                                names
    cell "bytes of code"                        text_size
    cell "CMake, add_subdirectory"              cmake_project subdirectory 1
    cell "CMake, FetchContent"                  cmake_project fetch 1
    cell "CMake, install and find_package, OpenMP" cmake_openmp
    cell "CMake, find_package with CUDA"        cmake_cuda
    cell "make install and pkg-config"          pkg_config
}

# The Makefile's test program is that of several cells.
"${MAKE:-make}" -s -j "$JOBS" CC="$CC" BUILD="$BUILD" "$BUILD/santa.o" "$BUILD/santa_test" || exit 1
run_cells list
