/* loaders.h - examples/llama.h, its allocations watched: a broken file must not make it ask for
   much more than the file holds. */
#ifndef SANTA_FUZZ_LOADERS_H
#define SANTA_FUZZ_LOADERS_H

#include "fuzz.h"

static size_t fuzz_largest; /* bytes asked for at once since it was set to 0 */

static inline void *fuzz_malloc(size_t n) {
    if (n > fuzz_largest) fuzz_largest = n;
    return n > (size_t)1 << 30 ? NULL : malloc(n);
}
static inline void *fuzz_realloc(void *p, size_t n) {
    if (n > fuzz_largest) fuzz_largest = n;
    return n > (size_t)1 << 30 ? NULL : realloc(p, n);
}

#define malloc(n)     fuzz_malloc(n)
#define realloc(p, n) fuzz_realloc(p, n)
#include "../../examples/llama.h"
#undef malloc
#undef realloc

static inline int fuzz_is_message(const char *text) { return text[0] != 0 && memchr(text, 0, 400) != NULL; }

#endif
