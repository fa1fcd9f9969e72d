/* The one file of the test program that holds the library's code. SANTA_TEST_ISA=scalar or avx2
   in the environment makes an x86 look like one that has no more than that: the library's
   questions to the CPU are answered here. Examples, benchmark and accuracy link the same
   object, so the environment is read once, before main. */
#ifdef __cplusplus
extern "C" const char *test_cpu_lacks;       /* as in harness.h */
#endif
const char *test_cpu_lacks;

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__) && !defined(SANTA_NO_SIMD)
#include <stdlib.h>
#include <string.h>

static const char *test_isa;
__attribute__((constructor)) static void read_environment(void) { test_isa = getenv("SANTA_TEST_ISA"); }

static int test_cpu_has(const char *feature) {
    if (test_cpu_lacks && !strcmp(feature, test_cpu_lacks)) return 0;
    if (!test_isa) return 1;
    if (!strcmp(test_isa, "scalar")) return 0;
    return strcmp(test_isa, "avx2") != 0 || strncmp(feature, "avx512", 6) != 0;
}
#define __builtin_cpu_supports(feature) (test_cpu_has(feature) && __builtin_cpu_supports(feature))
#endif

#define SANTA_IMPLEMENTATION
#include "../santa.h"
