/* santa.h as WebAssembly without a libc. check() returns 0, or the line that went wrong. */
#define SANTA_IMPLEMENTATION
#include "../../santa.h"

/* Not by memcpy itself: hence volatile. */
void *memcpy(void *to, const void *from, size_t n) { return memmove(to, from, n); }

void *memmove(void *to, const void *from, size_t n) {
    volatile unsigned char *t = (volatile unsigned char *)to;
    const unsigned char    *f = (const unsigned char *)from;
    size_t i;
    if ((uintptr_t)to < (uintptr_t)from) for (i = 0; i < n; i++) t[i] = f[i];
    else                                 for (i = n; i > 0; i--) t[i - 1] = f[i - 1];
    return to;
}

void *memset(void *to, int c, size_t n) {
    volatile unsigned char *t = (volatile unsigned char *)to;
    while (n > 0) t[--n] = (unsigned char)c;
    return to;
}

int memcmp(const void *a, const void *b, size_t n) {
    const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
    for (; n > 0; n--, x++, y++) if (*x != *y) return *x < *y ? -1 : 1;
    return 0;
}

int strcmp(const char *a, const char *b) {
    while (*a && *a == *b) { a++; b++; }
    return *a - *b;
}

/* The compiler's product of 128 bits, as its library has it. */
__extension__ typedef unsigned __int128 wide;
wide __multi3(wide a, wide b);
wide __multi3(wide a, wide b) {
    const uint64_t x = (uint64_t)a, y = (uint64_t)b, m = 0xffffffffu;
    const uint64_t low = (x & m) * (y & m), cross = (x >> 32) * (y & m) + (low >> 32),
                   other = (x & m) * (y >> 32) + (cross & m);
    const uint64_t high = (x >> 32) * (y >> 32) + (cross >> 32) + (other >> 32)
                          + x * (uint64_t)(b >> 64) + (uint64_t)(a >> 64) * y;
    return (wide)high << 64 | (x * y);
}

enum { N = 500, HEADS = 4, KV_HEADS = 2, DIM = 24 };
static float q[HEADS * DIM], k[N * KV_HEADS * DIM], v[N * KV_HEADS * DIM], out[HEADS * DIM], lse[HEADS];
static unsigned char workspace[1 << 20];

/* In [-1, 1). */
static float uniform(void) {
    static uint32_t random = 1;
    random = random * 1664525u + 1013904223u;
    return (float)(int32_t)random * 0x1p-31f;
}

static int near_to(double x, double y) { return x - y < 1e-4 && y - x < 1e-4; }

int check(void);
int check(void) {
    santa_attention a;
    santa_options   o;
    santa_stats     stats;
    int h, i, j, m;
    for (i = 0; i < HEADS * DIM; i++) q[i] = uniform();
    for (i = 0; i < N * KV_HEADS * DIM; i++) k[i] = uniform();
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, DIM);
    a.k   = santa_view(k, SANTA_F32, 1, N, KV_HEADS, DIM);
    a.v   = santa_view(v, SANTA_F32, 1, N, KV_HEADS, DIM);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM);
    a.lse = lse;
    /* all rows of V are equal: every method gives that row, but for those whose weights add up
       to 1 on average only */
    for (i = 0; i < N * KV_HEADS * DIM; i++) v[i] = (float)(i % DIM);
    for (m = 0; m < SANTA_METHOD_COUNT; m++) {
        o.method = (santa_method)m;
        o.num_samples = 32;
        if (m == SANTA_SAAP || m == SANTA_PPS) continue;
        if (santa_workspace_size(&a, &o) > sizeof workspace) return __LINE__;
        if (santa_decode(&a, &o, workspace, sizeof workspace, &stats) != SANTA_OK) return __LINE__;
        for (i = 0; i < HEADS * DIM; i++) if (!near_to((double)out[i], i % DIM)) return __LINE__;
        if (m == SANTA_VATTENTION) continue;
        for (h = 0; h < HEADS; h++) {
            double sum = 0.0;
            for (j = 0; j < N; j++) {
                double s = 0.0;
                for (i = 0; i < DIM; i++)
                    s += (double)q[h * DIM + i]
                         * (double)k[(j * KV_HEADS + h / (HEADS / KV_HEADS)) * DIM + i];
                sum += exp(s / sqrt((double)DIM));
            }
            if (!near_to((double)lse[h], log(sum))) return __LINE__;
        }
    }
    o.num_samples = -5;
    return santa_decode(&a, &o, workspace, sizeof workspace, NULL) != SANTA_ERR_NUM_SAMPLES ? __LINE__ : 0;
}
