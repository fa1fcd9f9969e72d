/* The tests' own float64 arithmetic: conversions, attention, samplers and variances written
   from the formulas, and a builder of attention problems of every type, layout and page size
   with the same logical values. Nothing in here calls the library but santa_random (whose bits
   test_random.c checks) and, in ref_run, santa_decode itself. */
#ifndef SANTA_TEST_REFERENCE_H
#define SANTA_TEST_REFERENCE_H

#include "harness.h"
#include <stdio.h>
#include <stdlib.h>

#define REF_INF ((double)INFINITY)

/* ------------------------------------------------------------ number formats */

/* 2^e of a normal double: ldexp took a tenth of the tests' time. */
static inline double ref_power(int e) {
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Format: mantissa bits, smallest normal exponent, bits of infinity. */
static inline void ref_format(santa_dtype type, int *mantissa, int *min_exponent, uint32_t *infinity) {
    *mantissa     = type == SANTA_F16 ? 10 : 7;
    *min_exponent = type == SANTA_F16 ? -14 : -126;
    *infinity     = type == SANTA_F16 ? 0x7c00u : 0x7f80u;
}

static inline double ref_decode16(santa_dtype type, uint16_t bits) {
    int mantissa, min_exponent;
    uint32_t infinity;
    ref_format(type, &mantissa, &min_exponent, &infinity);
    const uint32_t magnitude = bits & 0x7fffu, fraction = magnitude & ((1u << mantissa) - 1u);
    const int      exponent  = (int)(magnitude >> mantissa);
    double x;
    if (magnitude > infinity)       x = (double)test_nan();
    else if (magnitude == infinity) x = REF_INF;
    else if (exponent == 0)         x = fraction * ref_power(min_exponent - mantissa);
    else x = (fraction + (1u << mantissa)) * ref_power(exponent - 1 + min_exponent - mantissa);
    return bits & 0x8000u ? -x : x;
}

/* Sign of a double as 0 or 1, also of 0. */
static inline uint32_t ref_sign(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint32_t)(bits >> 63);
}

/* Magnitude of x >= 0 in a format of that many mantissa bits and that smallest normal exponent,
   or `most` if that is less. Round to nearest even by arithmetic: x is a whole number of quanta
   of the result's binade, plus a remainder. NaN is for the caller. */
static inline uint32_t ref_magnitude(double x, int mantissa, int min_exponent, uint32_t most) {
    uint64_t bits;
    if (x >= ref_power(129)) return most;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52) - 1023;
    const int binade = exponent < min_exponent ? min_exponent : exponent;
    const double quanta = x * ref_power(mantissa - binade);
    uint32_t whole = (uint32_t)quanta;
    const double rest = quanta - (double)whole;
    if (rest > 0.5 || (rest == 0.5 && whole % 2)) whole++;
    /* A normal's hidden bit carries into the exponent field by itself, and so does a mantissa
       rounded up to 2. */
    whole += (uint32_t)(binade - min_exponent) << mantissa;
    return whole > most ? most : whole;
}

static inline uint16_t ref_encode16(santa_dtype type, double x) {
    int mantissa, min_exponent;
    uint32_t infinity;
    ref_format(type, &mantissa, &min_exponent, &infinity);
    return (uint16_t)(ref_sign(x) << 15 | ref_magnitude(fabs(x), mantissa, min_exponent, infinity));
}

/* e4m3 by its definition: sign, 4 exponent bits of bias 7, 3 mantissa bits, no infinity, 127 is
   NaN. */
static inline double ref_decode8(int e) {
    const int exponent = e >> 3 & 15, mantissa = e & 7;
    const double v = (e & 127) == 127 ? (double)test_nan()
                   : exponent ? (1.0 + mantissa / 8.0) * ref_power(exponent - 7) : mantissa * ref_power(-9);
    return e & 128 ? -v : v;
}

/* Ties to the even code, beyond the largest the largest. NaN is for the caller. */
static inline uint8_t ref_encode8(double x) {
    return (uint8_t)((x < 0.0 ? 128u : 0u) | ref_magnitude(fabs(x), 3, -6, 126));
}

/* Whether it comes in blocks of 32 behind an f16 scale: 32 int8, or 32 half bytes. */
static inline int ref_is_blocks(santa_dtype type) { return type == SANTA_Q8_0 || type == SANTA_Q4_0; }

/* Bytes of n elements; of blocks n is a multiple of 32. */
static inline int64_t ref_bytes(santa_dtype type, int64_t n) {
    return type == SANTA_F32                          ? 4 * n
           : type == SANTA_E4M3 || type == SANTA_E5M2 ? n
           : ref_is_blocks(type)                      ? n / 32 * (type == SANTA_Q8_0 ? 34 : 18)
                                                      : 2 * n;
}

static inline uint16_t ref_half(const void *data) {
    uint16_t h;
    memcpy(&h, data, 2);
    return h;
}

/* e5m2: sign, 5 exponent bits of bias 15, 2 mantissa bits; exponent 31 is infinity or NaN. */
static inline double ref_decode52(int e) {
    const int exponent = e >> 2 & 31, mantissa = e & 3;
    const double v = exponent == 31 ? (mantissa ? (double)test_nan() : REF_INF)
                   : exponent       ? (1.0 + mantissa / 4.0) * ref_power(exponent - 15)
                                    : mantissa * ref_power(-16);
    return e & 128 ? -v : v;
}

/* Ties to the even code; 61440 = the middle between the largest and 2^16 is infinite. */
static inline uint8_t ref_encode52(double x) {
    return (uint8_t)((x < 0.0 ? 128u : 0u) | ref_magnitude(fabs(x), 2, -14, 0x7c));
}

/* Place of element i, maybe negative, in its block. */
static inline int64_t ref_in_block(int64_t i) { return (i % 32 + 32) % 32; }

static inline double ref_load(santa_dtype type, const void *data, int64_t i) {
    if (type == SANTA_F32) {
        float f;
        memcpy(&f, (const char *)data + 4 * i, 4);
        return (double)f;
    }
    if (type == SANTA_E4M3) return ref_decode8(((const uint8_t *)data)[i]);
    if (type == SANTA_E5M2) return ref_decode52(((const uint8_t *)data)[i]);
    if (ref_is_blocks(type)) {
        const int64_t at = ref_in_block(i);
        const uint8_t *block = (const uint8_t *)data + ref_bytes(type, i - at);
        const double scale = ref_decode16(SANTA_F16, ref_half(block));
        if (type == SANTA_Q8_0) return scale * (double)(signed char)block[2 + at];
        return scale * (double)((at < 16 ? block[2 + at] % 16 : block[2 + at - 16] / 16) - 8);
    }
    return ref_decode16(type, ref_half((const char *)data + 2 * i));
}

/* Element i of a block takes the scale that this has; NaN makes the whole block NaN. */
static inline void ref_store(santa_dtype type, void *data, int64_t i, double x) {
    const int nan = test_is_nan((float)x);
    if (type == SANTA_F32) {
        const float f = (float)x;
        memcpy((char *)data + 4 * i, &f, 4);
    } else if (type == SANTA_E4M3) {
        ((uint8_t *)data)[i] = nan ? 127 : ref_encode8(x);
    } else if (type == SANTA_E5M2) {
        ((uint8_t *)data)[i] = nan ? 0x7d : ref_encode52(x);
    } else if (type == SANTA_Q4_0) {
        const int64_t at = ref_in_block(i);
        uint8_t *block = (uint8_t *)data + ref_bytes(type, i - at), *byte = block + 2 + at % 16;
        const double scale = ref_decode16(SANTA_F16, ref_half(block));
        const uint16_t bad = 0x7e00;
        int code = 9;                                         /* 1, times NaN */
        if (nan) memcpy(block, &bad, 2);
        else code = scale != 0.0 ? (int)fmin(fmax(floor(x / scale + 8.5), 0.0), 15.0) : 8;
        *byte = (uint8_t)(at < 16 ? *byte / 16 * 16 + code : *byte % 16 + 16 * code);
    } else if (type == SANTA_Q8_0) {
        const uint16_t bad = 0x7e00;
        char *block = (char *)data + ref_bytes(type, i - ref_in_block(i)),
             *number = block + 2 + ref_in_block(i);
        *number = 1;
        if (nan) {
            memcpy(block, &bad, 2);
        } else {
            const double scale = ref_decode16(SANTA_F16, ref_half(block));
            *number =
                (char)(signed char)(scale > 0.0 ? fmin(fmax(floor(x / scale + 0.5), -127.0), 127.0) : 0.0);
        }
    } else {
        const uint16_t h = nan ? (uint16_t)(type == SANTA_F16 ? 0x7e01 : 0x7fc1) : ref_encode16(type, x);
        memcpy((char *)data + 2 * i, &h, 2);
    }
}

/* n elements side by side from element i on; blocks get the scale of their largest element,
   which is -8 in q4_0. */
static inline void ref_store_row(santa_dtype type, void *data, int64_t i, int64_t n, const double *x) {
    if (type == SANTA_F32) {
        for (int64_t c = 0; c < n; c++) {
            const float f = (float)x[c];
            memcpy((char *)data + 4 * (i + c), &f, 4);
        }
        return;
    }
    for (int64_t c = 0; c < n; c++) {
        if (ref_is_blocks(type) && c % 32 == 0) {
            double top = 0.0;
            for (int64_t e = c; e < c + 32; e++) if (fabs(x[e]) > fabs(top)) top = x[e];
            const uint16_t scale =
                ref_encode16(SANTA_F16, type == SANTA_Q8_0 ? fabs(top) / 127.0 : top / -8.0);
            memcpy((char *)data + ref_bytes(type, i + c), &scale, 2);
        }
        ref_store(type, data, i + c, x[c]);
    }
}

/* What the type, not one of blocks, makes of a float. */
static inline double ref_round(santa_dtype type, double x) {
    x = (double)(float)x;
    return type == SANTA_F32    ? x
           : type == SANTA_E4M3 ? ref_decode8(ref_encode8(x))
           : type == SANTA_E5M2 ? ref_decode52(ref_encode52(x))
                                : ref_decode16(type, ref_encode16(type, x));
}

/* The same for x[0..n), or whole blocks. */
static inline void ref_round_row(santa_dtype type, double *x, int64_t n) {
    char block[34];
    if (type == SANTA_F32) {
        for (int64_t i = 0; i < n; i++) x[i] = (double)(float)x[i];
        return;
    }
    if (!ref_is_blocks(type)) {
        for (int64_t i = 0; i < n; i++) x[i] = ref_round(type, x[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (i % 32 == 0) ref_store_row(type, block, 0, 32, x + i);
        x[i] = ref_load(type, block, i % 32);
    }
}

/* ------------------------------------------------------------ problems */

typedef enum ref_layout {
    REF_NHD, REF_HND,
    REF_PADDED,                    /* NHD, rows and heads apart by odd gaps, start off by one element */
    REF_BACKWARDS,                 /* tokens and heads with negative strides */
    REF_STRIDED,                   /* features 3 elements apart */
    REF_LAYOUTS
} ref_layout;

/* Start from ref_spec_make and change what the test is about. */
typedef struct ref_spec {
    int64_t batch, q_len, heads, kv_heads, len, head_dim, head_dim_v;
    int64_t page_size;      /* 0 = not paged */
    int64_t first_sequence; /* sequence b holds the values (and length) of number first_sequence + b */
    int64_t window;
    uint64_t stream;        /* of the values */
    ref_layout layout;
    santa_dtype q_type, k_type, v_type, out_type;
    int     ragged, causal, sinks, alibi;
    int     row_scales;            /* 0 none, 1 any, 2 powers of two */
    santa_dtype scale_type;        /* of these */
    float   sm_scale, soft_cap;
    double  gain;                  /* standard deviation of the scores at the default scale */
} ref_spec;

typedef struct ref_problem {
    ref_spec        spec;
    santa_attention a;             /* ready for santa_decode, lse and std_error included */
    double         *q, *k, *v;     /* values in [batch, len, heads, dim] order, rounded to their types;
                                      of k and v times their row's scale */
    double         *k_scales, *v_scales; /* [batch, len, kv_heads] or NULL */
    float          *sinks, *slopes, *lse, *std_error;
    int32_t        *seq_lens, *block_table;
    void           *memory[6];     /* of q, k, v, out, k_scales, v_scales */
    santa_buckets  *router;        /* what SANTA_SAAP routes by: a few centroids, all keys in buckets */
    float          *centroids;
    int32_t        *slots;
} ref_problem;

static inline ref_spec ref_spec_make(int64_t heads, int64_t kv_heads, int64_t len, int64_t head_dim) {
    ref_spec s;
    memset(&s, 0, sizeof s);
    s.batch    = s.q_len = 1;
    s.heads    = heads;
    s.kv_heads = kv_heads;
    s.len      = len;
    s.head_dim = s.head_dim_v = head_dim;
    s.gain     = 1.0;
    return s;
}

static inline santa_options ref_options(santa_method method, int64_t num_samples, uint64_t seed) {
    santa_options o;
    memset(&o, 0, sizeof o);
    o.method = method;
    o.seed   = seed;
    o.num_samples = num_samples;
    return o;
}

/* Whether the method has an estimate of its error, and whether its scores may be other than
   exact. */
static inline int ref_has_error(santa_method m) { return !(santa_method_traits(m) & SANTA_BIASED); }
static inline int ref_has_scores(santa_method m) { return !(santa_method_traits(m) & SANTA_SPARSE); }

static inline int64_t ref_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ref_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline double *ref_doubles(int64_t n) {
    return (double *)test_alloc((size_t)ref_max(n, 1) * sizeof(double));
}
static inline float *ref_floats(int64_t n) {
    return (float *)test_alloc((size_t)ref_max(n, 1) * sizeof(float));
}
static inline int32_t *ref_ints(int64_t n) {
    return (int32_t *)test_alloc((size_t)ref_max(n, 1) * sizeof(int32_t));
}

/* Memory for a tensor of that layout, NaN everywhere, gaps included. */
static inline santa_tensor ref_tensor(santa_dtype type, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
                                      ref_layout layout, void **memory) {
    const int64_t unit = ref_is_blocks(type) ? 32 : 1;      /* strides are whole blocks */
    const int64_t gap = layout == REF_PADDED ? 3 * unit : 0, step = layout == REF_STRIDED ? 3 : 1;
    santa_tensor t;
    memset(&t, 0, sizeof t);
    t.dtype    = type;
    t.shape[0] = n0; t.shape[1] = n1; t.shape[2] = n2; t.shape[3] = n3;
    t.stride[3] = step;
    if (layout == REF_HND) {
        t.stride[1] = n3;
        t.stride[2] = n1 * n3;
        t.stride[0] = n2 * t.stride[2];
    } else {
        t.stride[2] = n3 * step + gap;
        t.stride[1] = n2 * t.stride[2] + gap;
        t.stride[0] = n1 * t.stride[1] + gap;
    }
    const int64_t total = n0 * t.stride[0] + 2 * unit;
    int64_t origin = layout == REF_PADDED ? unit : 0;
    if (layout == REF_BACKWARDS) {
        origin = (n1 - 1) * t.stride[1] + (n2 - 1) * t.stride[2];
        t.stride[1] = -t.stride[1];
        t.stride[2] = -t.stride[2];
    }
    *memory = test_alloc((size_t)ref_bytes(type, total));
    /* blocks are written by parts that read them */
    memset(*memory, 0, (size_t)ref_bytes(type, total));
    for (int64_t i = 0; i < unit; i++) ref_store(type, *memory, i, (double)test_nan());
    for (int64_t done = unit; done < total; done *= 2)
        memcpy((char *)*memory + ref_bytes(type, done), *memory,
               (size_t)ref_bytes(type, done < total - done ? done : total - done));
    t.data = (char *)*memory + ref_bytes(type, origin);
    return t;
}

static inline int64_t ref_at(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + i3 * t->stride[3];
}

static inline double ref_get(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return ref_load(t->dtype, t->data, ref_at(t, i0, i1, i2, i3));
}

static inline void ref_set(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3,
                           double x) {
    ref_store(t->dtype, t->data, ref_at(t, i0, i1, i2, i3), x);
}

static inline void ref_set_row(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2, const double *x) {
    if (t->stride[3] == 1) ref_store_row(t->dtype, t->data, ref_at(t, i0, i1, i2, 0), t->shape[3], x);
    else for (int64_t c = 0; c < t->shape[3]; c++) ref_set(t, i0, i1, i2, c, x[c]);
}

/* Lengths of a ragged batch, by sequence number: full, empty, one key, about half, ... */
static inline int64_t ref_ragged_len(int64_t len, int64_t sequence) {
    switch (sequence % 6) {
        case 0:  return len;
        case 1:  return 0;
        case 2:  return 1;
        case 3:  return len / 2 + 1;
        case 4:  return len - 1;
        default: return ref_min(len, 65);
    }
}

static inline int64_t ref_len(const ref_problem *p, int64_t b) {
    return p->seq_lens ? p->seq_lens[b] : p->spec.len;
}

/* Where token j of sequence b lies: first two indices of the k and v tensors. */
static inline void ref_place(const ref_problem *p, int64_t b, int64_t j, int64_t *i0, int64_t *i1) {
    *i0 = p->spec.page_size ? p->block_table[b * p->a.max_pages + j / p->spec.page_size] : b;
    *i1 = p->spec.page_size ? j % p->spec.page_size : j;
}

/* Write a row of k or v, or with its scale what that is multiplied with: quotients that were
   products are exact. */
static inline void ref_write_row(const santa_tensor *t, const santa_tensor *scales, int64_t i0, int64_t i1,
                                 int64_t h, const double *x, const double *scale) {
    if (!scale) {
        ref_set_row(t, i0, i1, h, x);
        return;
    }
    double *raw = ref_doubles(t->shape[3]);
    for (int64_t c = 0; c < t->shape[3]; c++) raw[c] = x[c] / *scale;
    ref_set_row(t, i0, i1, h, raw);
    ref_set(scales, i0, i1, h, 0, *scale);
    free(raw);
}

/* Write the values of q, k and v to their tensors (after a change to p->q, p->k or p->v). */
static inline void ref_write(ref_problem *p) {
    const ref_spec *s = &p->spec;
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t i = 0; i < s->q_len; i++)
            for (int64_t h = 0; h < s->heads; h++)
                ref_set_row(&p->a.q, b, i, h, p->q + ((b * s->q_len + i) * s->heads + h) * s->head_dim);
        for (int64_t j = 0; j < ref_len(p, b); j++) {
            int64_t i0, i1;
            ref_place(p, b, j, &i0, &i1);
            for (int64_t h = 0; h < s->kv_heads; h++) {
                const int64_t row = (b * s->len + j) * s->kv_heads + h;
                ref_write_row(&p->a.k, &p->a.k_scales, i0, i1, h, p->k + row * s->head_dim,
                              p->k_scales ? p->k_scales + row : NULL);
                ref_write_row(&p->a.v, &p->a.v_scales, i0, i1, h, p->v + row * s->head_dim_v,
                              p->v_scales ? p->v_scales + row : NULL);
            }
        }
    }
}

/* Mean 0, variance 1, bell-shaped and cheap: four 16-bit uniforms of one word. */
static inline double ref_bell(test_rng *r) {
    const uint64_t w = test_next(r);
    const double sum = (double)(w & 0xffffu) + (double)(w >> 16 & 0xffffu) + (double)(w >> 32 & 0xffffu) +
                       (double)(w >> 48);
    return (sum / 65535.0 - 2.0) * 1.7320508075688772;
}

/* Puts the values of k into buckets anew. */
static inline void ref_assign(ref_problem *p) {
    const ref_spec *s = &p->spec;
    const int64_t n = s->batch * s->len * s->kv_heads * s->head_dim;
    float *keys = ref_floats(n);
    for (int64_t i = 0; i < n; i++) keys[i] = (float)p->k[i];
    const santa_tensor view = santa_view(keys, SANTA_F32, s->batch, s->len, s->kv_heads, s->head_dim);
    CHECK_STATUS(santa_buckets_assign(&p->a, &view, 0, NULL), SANTA_OK);
    free(keys);
}

static inline void ref_route(ref_problem *p) {
    const ref_spec *s = &p->spec;
    const int64_t n = s->kv_heads * 7 * s->head_dim;
    test_rng r = test_rng_make(s->stream + 99);
    p->router = (santa_buckets *)test_alloc(sizeof *p->router);
    memset(p->router, 0, sizeof *p->router);
    p->centroids = ref_floats(n);
    for (int64_t i = 0; i < n; i++) p->centroids[i] = (float)(test_uniform(&r) - 0.5);
    p->router->num_buckets = 7;
    p->router->centroids   = p->centroids;
    p->a.buckets = p->router;
    p->router->index = test_alloc(santa_buckets_size(&p->a));
    ref_assign(p);
}

/* A scale for each row of x. */
static inline double *ref_scale_rows(const ref_spec *s, uint64_t stream, int64_t dim, double *x) {
    const int64_t rows = s->batch * s->len * s->kv_heads;
    double *scale = ref_doubles(rows);
    test_rng r = test_rng_make(s->stream + stream);
    for (int64_t i = 0; i < rows; i++) {
        scale[i] = s->row_scales == 2 ? ldexp(1.0, (int)test_below(&r, 5) - 3)
                                      : ref_round(s->scale_type, 0.25 + test_uniform(&r));
        if (test_below(&r, 8) == 0) scale[i] = -scale[i];
        for (int64_t c = 0; c < dim; c++) x[i * dim + c] *= scale[i];
    }
    return scale;
}

/* Values of q, k and v of a spec, rounded to their types. Those of the last call are kept:
   often one problem after another differs in its layout alone. */
static inline void ref_draw(const ref_spec *s, double *q, double *k, double *v) {
    static struct { ref_spec spec; uint64_t seed; double *q, *k, *v; } last;
    const int64_t nq = s->q_len * s->heads * s->head_dim, nk = s->len * s->kv_heads * s->head_dim,
                  nv = s->len * s->kv_heads * s->head_dim_v, batch = s->batch;
    ref_spec key = *s;                                       /* without what they do not depend on */
    key.layout = REF_NHD;
    key.scale_type = key.out_type = SANTA_F32;
    key.page_size = key.window = 0;
    key.ragged = key.causal = key.sinks = key.alibi = key.row_scales = 0;
    key.sm_scale = key.soft_cap = 0.0f;
    if (!last.q || last.seed != test_seed || memcmp(&last.spec, &key, sizeof key) != 0) {
        for (int64_t b = 0; b < batch; b++) {
            test_rng r = test_rng_make(s->stream * 1000003u + (uint64_t)(s->first_sequence + b));
            for (int64_t i = 0; i < nq; i++) q[b * nq + i] = s->gain * ref_bell(&r);
            for (int64_t i = 0; i < nk; i++) k[b * nk + i] = ref_bell(&r);
            for (int64_t i = 0; i < nv; i++) v[b * nv + i] = 0.5 + ref_bell(&r);
            ref_round_row(s->q_type, q + b * nq, nq);
            ref_round_row(s->k_type, k + b * nk, nk);
            ref_round_row(s->v_type, v + b * nv, nv);
        }
        free(last.q); free(last.k); free(last.v);
        last.spec = key;
        last.seed = test_seed;
        last.q = ref_doubles(batch * nq);
        last.k = ref_doubles(batch * nk);
        last.v = ref_doubles(batch * nv);
        memcpy(last.q, q, (size_t)(batch * nq) * sizeof *q);
        memcpy(last.k, k, (size_t)(batch * nk) * sizeof *k);
        memcpy(last.v, v, (size_t)(batch * nv) * sizeof *v);
    } else {
        memcpy(q, last.q, (size_t)(batch * nq) * sizeof *q);
        memcpy(k, last.k, (size_t)(batch * nk) * sizeof *k);
        memcpy(v, last.v, (size_t)(batch * nv) * sizeof *v);
    }
}

static inline void ref_build(ref_problem *p, const ref_spec *spec) {
    memset(p, 0, sizeof *p);
    p->spec = *spec;
    const ref_spec *s = &p->spec;
    const int64_t   rows = s->batch * s->q_len * s->heads;
    p->q = ref_doubles(rows * s->head_dim);
    p->k = ref_doubles(s->batch * s->len * s->kv_heads * s->head_dim);
    p->v = ref_doubles(s->batch * s->len * s->kv_heads * s->head_dim_v);
    ref_draw(s, p->q, p->k, p->v);
    if (s->row_scales) {
        p->k_scales = ref_scale_rows(s, 1, s->head_dim, p->k);
        p->v_scales = ref_scale_rows(s, 2, s->head_dim_v, p->v);
    }

    p->a.q   = ref_tensor(s->q_type, s->batch, s->q_len, s->heads, s->head_dim, s->layout, &p->memory[0]);
    p->a.out =
        ref_tensor(s->out_type, s->batch, s->q_len, s->heads, s->head_dim_v, s->layout, &p->memory[3]);
    if (s->ragged) {
        p->a.seq_lens = p->seq_lens = ref_ints(s->batch);
        for (int64_t b = 0; b < s->batch; b++)
            p->seq_lens[b] = (int32_t)ref_ragged_len(s->len, s->first_sequence + b);
    }
    int64_t n0 = s->batch, n1 = s->len;
    if (s->page_size) {
        /* Pages in shuffled order, two spare ones, wild entries past the last page in use. */
        const int64_t max_pages = (s->len + s->page_size - 1) / s->page_size;
        n0 = s->batch * max_pages + 2;
        n1 = s->page_size;
        p->a.max_pages   = max_pages;
        p->a.block_table = p->block_table = ref_ints(s->batch * max_pages);
        test_rng r = test_rng_make(77);
        for (int64_t i = 0; i < s->batch * max_pages; i++) {
            const int64_t other = test_below(&r, i + 1);
            p->block_table[i] = p->block_table[other];
            p->block_table[other] = (int32_t)i + 1;
        }
        if (!p->seq_lens) {        /* the last page may be partial */
            p->a.seq_lens = p->seq_lens = ref_ints(s->batch);
            for (int64_t b = 0; b < s->batch; b++) p->seq_lens[b] = (int32_t)s->len;
        }
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t i = (p->seq_lens[b] + s->page_size - 1) / s->page_size; i < max_pages; i++)
                p->block_table[b * max_pages + i] = i % 2 ? INT32_MAX : -7;
    }
    p->a.k = ref_tensor(s->k_type, n0, n1, s->kv_heads, s->head_dim, s->layout, &p->memory[1]);
    p->a.v = ref_tensor(s->v_type, n0, n1, s->kv_heads, s->head_dim_v, s->layout, &p->memory[2]);
    if (s->row_scales) {           /* laid out in ways of their own */
        const ref_layout k = (ref_layout)((s->layout + 2) % REF_LAYOUTS),
                         v = (ref_layout)(s->len % REF_LAYOUTS);
        p->a.k_scales = ref_tensor(s->scale_type, n0, n1, s->kv_heads, 1, k, &p->memory[4]);
        p->a.v_scales = ref_tensor(s->scale_type, n0, n1, s->kv_heads, 1, v, &p->memory[5]);
    }
    p->a.lse       = p->lse       = ref_floats(rows);
    p->a.std_error = p->std_error = ref_floats(rows);
    if (s->sinks || s->alibi) {
        p->sinks  = ref_floats(s->heads);
        p->slopes = ref_floats(s->heads);
        for (int64_t h = 0; h < s->heads; h++) {
            p->sinks[h]  = h % 3 == 2 ? -INFINITY : 2.0f + 0.5f * (float)h;
            p->slopes[h] = 0.01f * (float)(h + 1);
        }
    }
    p->a.sinks        = s->sinks ? p->sinks : NULL;
    p->a.alibi_slopes = s->alibi ? p->slopes : NULL;
    p->a.sm_scale = s->sm_scale;
    p->a.soft_cap = s->soft_cap;
    p->a.causal   = s->causal;
    p->a.window   = s->window;
    ref_write(p);
    ref_route(p);
}

static inline void ref_free(ref_problem *p) {
    for (int i = 0; i < 6; i++) free(p->memory[i]);
    free(p->q); free(p->k); free(p->v); free(p->k_scales); free(p->v_scales);
    free(p->sinks); free(p->slopes); free(p->lse); free(p->std_error);
    free(p->seq_lens); free(p->block_table);
    if (p->router) free(p->router->index);
    free(p->router); free(p->centroids); free(p->slots);
}

/* Show one sequence as a batch of that many requests (batch stride 0): as many independent
   draws in one call. */
static inline void ref_replicate(ref_problem *p, int64_t requests) {
    const ref_spec *s = &p->spec;
    santa_tensor *t[5] = {&p->a.q, &p->a.k, &p->a.v, &p->a.k_scales, &p->a.v_scales};
    for (int i = 0; i < 5; i++) { t[i]->shape[0] = requests; t[i]->stride[0] = 0; }
    free(p->slots);
    p->router->slots     = p->slots = ref_ints(requests);
    p->router->num_slots = 1;
    memset(p->slots, 0, (size_t)requests * sizeof *p->slots);
    free(p->memory[3]); free(p->lse); free(p->std_error);
    p->a.out = ref_tensor(s->out_type, requests, s->q_len, s->heads, s->head_dim_v, REF_NHD, &p->memory[3]);
    p->a.lse       = p->lse       = ref_floats(requests * s->q_len * s->heads);
    p->a.std_error = p->std_error = ref_floats(requests * s->q_len * s->heads);
}

/* santa_decode in a workspace of exactly the queried size that holds rubbish, with a guard
   behind it. The result and stats are the caller's to check; a status other than OK is a
   failure here. */
static inline int ref_run(ref_problem *p, const santa_options *o, santa_stats *stats) {
    enum { GUARD = 256 };
    const size_t bytes = santa_workspace_size(&p->a, o);
    unsigned char *workspace = (unsigned char *)test_alloc(bytes + GUARD);
    memset(workspace, 0xa5, bytes + GUARD);
    const santa_status s = santa_decode(&p->a, o, workspace, bytes, stats);
    int written = 0;
    for (size_t i = bytes; i < bytes + GUARD; i++) written += workspace[i] != 0xa5;
    free(workspace);
    return CHECK_STATUS(s, SANTA_OK) &
           CHECK_MSG(written == 0, "%s wrote past its workspace", santa_method_name(o->method));
}

/* ------------------------------------------------------------ attention */

/* Scores of one query row and head; -inf = masked. Returns the number of keys. */
static inline int64_t ref_scores(const ref_problem *p, int64_t b, int64_t i, int64_t h, double *scores) {
    const ref_spec *s = &p->spec;
    const int64_t n = ref_len(p, b), position = n - s->q_len + i, kv = h / (s->heads / s->kv_heads);
    const double  scale = s->sm_scale != 0.0f ? (double)s->sm_scale : 1.0 / sqrt((double)s->head_dim);
    const double *q = p->q + ((b * s->q_len + i) * s->heads + h) * s->head_dim;
    for (int64_t j = 0; j < n; j++) {
        const double *k = p->k + ((b * s->len + j) * s->kv_heads + kv) * s->head_dim;
        double x = 0.0;
        for (int64_t c = 0; c < s->head_dim; c++) x += q[c] * k[c];
        x *= scale;
        if (s->soft_cap > 0.0f) x = (double)s->soft_cap * tanh(x / (double)s->soft_cap);
        if (s->alibi) x += (double)p->slopes[h] * (double)(j - position);
        const int64_t start = p->a.kv_start ? p->a.kv_start[b] : 0;
        if (s->causal && j > position) x = -REF_INF;
        if (s->window > 0 && j <= position - s->window && j >= start + p->a.first_tokens) x = -REF_INF;
        if (j < start) x = -REF_INF;
        scores[j] = x;
    }
    return n;
}

/* p = softmax with an extra logit in the denominator (-inf = none); returns the log of the sum.
   No key: p = 0, -inf. */
static inline double ref_softmax(const double *scores, int64_t n, double sink, double *p) {
    double max = sink, sum = 0.0;
    for (int64_t j = 0; j < n; j++) if (scores[j] > max) max = scores[j];
    if (max == -REF_INF) {
        for (int64_t j = 0; j < n; j++) p[j] = 0.0;
        return max;
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(scores[j] - max);
    sum += exp(sink - max);
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    return max + log(sum);
}

static inline double ref_sink(const ref_problem *p, int64_t h) {
    return p->a.sinks ? (double)p->sinks[h] : -REF_INF;
}

/* out += p . V for one sequence and head. */
static inline void ref_values(const ref_problem *p, int64_t b, int64_t h, const double *prob, double *out) {
    const ref_spec *s = &p->spec;
    const int64_t kv = h / (s->heads / s->kv_heads);
    for (int64_t c = 0; c < s->head_dim_v; c++) out[c] = 0.0;
    for (int64_t j = 0; j < ref_len(p, b); j++)
        for (int64_t c = 0; c < s->head_dim_v; c++)
            out[c] += prob[j] * p->v[((b * s->len + j) * s->kv_heads + kv) * s->head_dim_v + c];
}

/* Exact attention of one row: out[head_dim_v] and its lse; prob[len] too if wanted. */
static inline double ref_dense(const ref_problem *p, int64_t b, int64_t i, int64_t h, double *out,
                               double *prob) {
    double *scores = ref_doubles(2 * p->spec.len), *mine = prob ? prob : scores + p->spec.len;
    const int64_t n   = ref_scores(p, b, i, h, scores);
    const double  lse = ref_softmax(scores, n, ref_sink(p, h), mine);
    ref_values(p, b, h, mine, out);
    free(scores);
    return lse;
}

/* The library's out row as doubles. */
static inline void ref_out(const ref_problem *p, int64_t b, int64_t i, int64_t h, double *out) {
    for (int64_t c = 0; c < p->spec.head_dim_v; c++) out[c] = ref_get(&p->a.out, b, i, h, c);
}

/* |a - b|^2 and |a|^2. */
static inline double ref_distance2(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}
static inline double ref_length2(const double *a, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * a[i];
    return sum;
}

/* Exact attention of a problem of one query row, [heads, head_dim_v], and |out - exact|^2 over
   its heads. each: of a head, added up, or NULL. */
static inline double *ref_exact(const ref_problem *p) {
    const int64_t dv = p->spec.head_dim_v;
    double *exact = ref_doubles(p->spec.heads * dv);
    for (int64_t h = 0; h < p->spec.heads; h++) ref_dense(p, 0, 0, h, exact + h * dv, NULL);
    return exact;
}
static inline double ref_error2(const ref_problem *p, const double *exact, double *each) {
    const int64_t dv = p->spec.head_dim_v;
    double *out = ref_doubles(dv), sum = 0.0;
    for (int64_t h = 0; h < p->spec.heads; h++) {
        ref_out(p, 0, 0, h, out);
        const double one = ref_distance2(out, exact + h * dv, dv);
        if (each) each[h] += one;
        sum += one;
    }
    free(out);
    return sum;
}

/* What rounding to the type of out may change, relative. */
static inline double ref_epsilon(santa_dtype type) {
    return type == SANTA_F32 ? 1e-5 : type == SANTA_F16 ? 1.01 / 2048.0 : 1.01 / 256.0;
}

/* ------------------------------------------------------------ samplers */

static inline double ref_random(const santa_options *o, santa_stream_id id, int64_t index) {
    return ldexp((double)santa_random(o->seed, o->offset, id.request_id, 0, (uint32_t)id.head,
                                      (uint32_t)id.q_index, (uint32_t)index),
                 -32);
}

static inline santa_stream_id ref_stream(uint64_t request, int64_t head, int64_t q_index) {
    santa_stream_id id;
    id.request_id = request;
    id.head       = head;
    id.q_index    = q_index;
    return id;
}

static inline int ref_compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Thresholds in [0, 1) of iid, strat or sys (= prop), ascending. */
static inline void ref_thresholds(const santa_options *o, santa_stream_id id, double *t) {
    const double s = (double)o->num_samples;
    for (int64_t m = 0; m < o->num_samples; m++)
        t[m] = o->method == SANTA_IID   ? ref_random(o, id, m)
             : o->method == SANTA_STRAT ? ((double)m + ref_random(o, id, m)) / s
                                        : ((double)m + ref_random(o, id, 0)) / s;
    if (o->method == SANTA_IID) qsort(t, (size_t)o->num_samples, sizeof *t, ref_compare_doubles);
}

/* The library's draws for scores, in memory of their own. */
typedef struct ref_drawn {
    santa_draws d;
    santa_status status;
    int32_t *index, *count;
    float *weight;
} ref_drawn;
static inline ref_drawn ref_sample(const float *scores, int64_t n, const santa_options *o,
                                   santa_stream_id id) {
    ref_drawn r;
    memset(&r, 0, sizeof r);
    const int64_t capacity = santa_sample_capacity(n, o);
    const size_t  bytes    = santa_sample_workspace_size(n, o);
    r.d.capacity = capacity;
    r.d.index    = r.index  = ref_ints(capacity);
    r.d.count    = r.count  = ref_ints(capacity);
    r.d.weight   = r.weight = ref_floats(capacity);
    void *workspace = test_alloc(bytes);
    memset(workspace, 0xa5, bytes);
    r.status = santa_sample(scores, n, o, id, &r.d, workspace, bytes);
    free(workspace);
    return r;
}

/* The draws' estimate from rows of V. */
static inline void ref_drawn_sum(const ref_drawn *r, const double *v, int64_t dv, double *out) {
    for (int64_t c = 0; c < dv; c++) out[c] = 0.0;
    for (int64_t i = 0; i < r->d.rows; i++)
        for (int64_t c = 0; c < dv; c++) out[c] += (double)r->weight[i] * v[r->index[i] * dv + c];
}

static inline void ref_drawn_free(ref_drawn *r) { free(r->index); free(r->count); free(r->weight); }

/* ------------------------------------------------------------ variances */

/* Trace of the covariance of the mean of S draws; p sums to 1, V is [n, dv]. */
static inline double ref_variance_iid(const double *p, int64_t n, const double *v, int64_t dv,
                                      int64_t samples) {
    double second = 0.0, first = 0.0;
    for (int64_t c = 0; c < dv; c++) {
        double mean = 0.0;
        for (int64_t j = 0; j < n; j++) {
            mean   += p[j] * v[j * dv + c];
            second += p[j] * v[j * dv + c] * v[j * dv + c];
        }
        first += mean * mean;
    }
    return (second - first) / (double)samples;
}

/* One draw per stratum [m/S, (m+1)/S): the strata's own variances, added. */
static inline double ref_variance_strat(const double *p, int64_t n, const double *v, int64_t dv,
                                        int64_t samples) {
    double *mean = ref_doubles(dv), total = 0.0;
    for (int64_t m = 0; m < samples; m++) {
        const double low = (double)m / (double)samples, high = (double)(m + 1) / (double)samples;
        double end = 0.0, second = 0.0;
        for (int64_t c = 0; c < dv; c++) mean[c] = 0.0;
        for (int64_t j = 0; j < n; j++) {
            const double begin = end, share = (double)samples;
            end = j == n - 1 ? 1.0 : end + p[j];
            const double overlap = share * (fmin(end, high) - fmax(begin, low));
            if (overlap <= 0.0) continue;
            for (int64_t c = 0; c < dv; c++) {
                mean[c] += overlap * v[j * dv + c];
                second  += overlap * v[j * dv + c] * v[j * dv + c];
            }
        }
        for (int64_t c = 0; c < dv; c++) second -= mean[c] * mean[c];
        total += second;
    }
    free(mean);
    return total / ((double)samples * (double)samples);
}

/* Counts of the comb (m + u)/S, m < S, by walking keys and thresholds together. */
static inline void ref_comb(const double *p, int64_t n, double u, int64_t samples, int32_t *count) {
    double  end = 0.0;
    int64_t m = 0;
    for (int64_t j = 0; j < n; j++) {
        end = j == n - 1 ? 1.0 : end + p[j];
        count[j] = 0;
        while (m < samples && ((double)m + u) / (double)samples < end) { count[j]++; m++; }
    }
}

/* The comb's estimate is constant between the places where a tooth meets a boundary: u = frac(S
   F_j). One comb in the middle of each piece, weighted by its length: O(n^2 dv), exact. */
static inline double ref_variance_sys(const double *p, int64_t n, const double *v, int64_t dv,
                                      int64_t samples) {
    double *u = ref_doubles(n + 1), *mean = ref_doubles(dv), *got = ref_doubles(dv), total = 0.0, end = 0.0,
           last = 0.0;
    int32_t *count = ref_ints(n);
    for (int64_t c = 0; c < dv; c++) mean[c] = 0.0;
    for (int64_t j = 0; j < n; j++) {
        end += p[j];
        u[j] = (double)samples * end - floor((double)samples * end);
        for (int64_t c = 0; c < dv; c++) mean[c] += p[j] * v[j * dv + c];
    }
    u[n] = 1.0;
    qsort(u, (size_t)n, sizeof *u, ref_compare_doubles);
    for (int64_t i = 0; i <= n; i++) {
        if (!(u[i] > last)) continue;
        ref_comb(p, n, 0.5 * (last + u[i]), samples, count);
        for (int64_t c = 0; c < dv; c++) got[c] = 0.0;
        for (int64_t j = 0; j < n; j++)
            if (count[j])
                for (int64_t c = 0; c < dv; c++)
                    got[c] += (double)count[j] / (double)samples * v[j * dv + c];
        total += (u[i] - last) * ref_distance2(got, mean, dv);
        last = u[i];
    }
    free(u); free(mean); free(got); free(count);
    return total;
}

#endif
