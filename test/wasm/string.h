/* What santa.h wants of <string.h>, for a clang without a libc. */
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t n), *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);
int   memcmp(const void *a, const void *b, size_t n), strcmp(const char *a, const char *b);
