/* The bytes of a copy of K, written from the manual: where they lie, what they mean. */
#ifndef SANTA_TEST_COPY_H
#define SANTA_TEST_COPY_H
#include "reference.h"

typedef struct ref_copy {
    int     bits;
    int64_t keys, chunk, chunks, blocks, gains, centre, scale, bytes;
    double  middle, step;
} ref_copy;

static inline ref_copy ref_copy_shape(const ref_problem *p) {
    ref_copy s;
    s.bits = p->a.proxy_bits ? p->a.proxy_bits : 4;
    s.keys = 64;
    while (p->spec.page_size && p->spec.page_size % s.keys) s.keys /= 2;
    s.chunk  = s.bits == 4 ? 32 : 64;
    s.chunks = (p->spec.head_dim + s.chunk - 1) / s.chunk;
    s.blocks = (p->spec.page_size ? p->spec.page_size : p->spec.len) / s.keys;
    s.gains  = s.chunks * s.keys * 16;
    s.centre = s.gains + 2 * s.keys;
    s.scale  = s.centre + s.chunks * s.chunk;
    s.bytes  = (s.scale + 4 + 63) / 64 * 64;
    s.middle = s.bits == 4 ? 7.5 : 1.5;
    s.step   = s.bits == 4 ? 0.3352 : 0.9957;
    return s;
}

/* The block with key j. */
static inline unsigned char *ref_copy_block(const ref_problem *p, const ref_copy *s, int64_t b,
                                            int64_t h, int64_t j) {
    int64_t at, in;
    ref_place(p, b, j, &at, &in);
    return (unsigned char *)p->a.proxy +
           ((at * p->spec.kv_heads + h) * s->blocks + in / s->keys) * s->bytes;
}

static inline int ref_code(const ref_copy *s, const unsigned char *block, int64_t i, int64_t c) {
    const unsigned char byte = block[(c / s->chunk * s->keys + i) * 16 + c % 16];
    return byte >> (c % s->chunk / 16 * s->bits) & ((1 << s->bits) - 1);
}

static inline double ref_gain(const ref_copy *s, const unsigned char *block, int64_t i) {
    uint16_t half;
    memcpy(&half, block + s->gains + 2 * i, sizeof half);
    return ref_decode16(SANTA_F16, half);
}

static inline void ref_set_gain(const ref_copy *s, unsigned char *block, int64_t i, double gain) {
    const uint16_t bits = test_is_nan((float)gain) ? 0x7e00 : ref_encode16(SANTA_F16, gain);
    memcpy(block + s->gains + 2 * i, &bits, sizeof bits);
}

static inline void ref_set_code(const ref_copy *s, unsigned char *block, int64_t i, int64_t c, int code) {
    const int64_t shift = c % s->chunk / 16 * s->bits, all = (1 << s->bits) - 1;
    unsigned char *byte = &block[(c / s->chunk * s->keys + i) * 16 + c % 16];
    *byte = (unsigned char)((*byte & ~(all << shift)) | code << shift);
}

static inline double ref_centre(const ref_copy *s, const unsigned char *block, int64_t c) {
    const unsigned char *at = block + s->scale;
    float scale;
    memcpy(&scale, at, sizeof scale);
    return (double)scale * (double)(signed char)block[s->centre + c];
}

static inline double ref_turn(int64_t f) {
    const uint32_t key[2] = {0x5eedu, 0x70726f78u}, counter[4] = {(uint32_t)(f / 128), 0, 0, 0};
    uint32_t word[4];
    santa_philox(counter, key, word);
    return word[f / 32 % 4] >> (f % 32) & 1u ? -1.0 : 1.0;
}

static inline double ref_parity_sign(int64_t i, int64_t k) {
    int odd = 0;
    for (int64_t both = i & k; both; both &= both - 1) odd ^= 1;
    return odd ? -1.0 : 1.0;
}

/* y = H D x by the definition: entry (i, k) of H has the sign of the parity of i & k. */
static inline void ref_rotate(const double *x, int64_t d, double *y) {
    int64_t piece = 1;
    double *t = ref_doubles(d);
    while (d % (2 * piece) == 0) piece *= 2;
    for (int64_t f = 0; f < d; f++) t[f] = ref_turn(f) * x[f];
    for (int64_t f = 0; f < d; f++) {
        const double *part = t + f / piece * piece;
        y[f] = 0.0;
        for (int64_t k = 0; k < piece; k++) y[f] += ref_parity_sign(f % piece, k) * part[k];
        y[f] /= sqrt((double)piece);
    }
    free(t);
}

#endif
