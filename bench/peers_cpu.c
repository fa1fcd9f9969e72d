/* What bench/peers_cpu.py calls by ctypes; it compiles this file as a shared library. Every
   field of peer_case has 8 bytes, so that its mirror in Python cannot be laid out otherwise. */
#define _POSIX_C_SOURCE 200809L
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "bench.h"

typedef struct peer_case {
    const char *type, *layout;         /* names of elements and layouts of bench.h          */
    int64_t     n, heads, kv_heads;
    int64_t     num_samples;           /* of sys or pps; 0 = dense                          */
    int64_t     threads;
    int64_t     q8;                    /* an 8-bit query, as ggml's for K of q8_0           */
    int64_t     from_copy;             /* pps from a copy of K in 4 bits instead            */
    uint64_t    seed;
    const float *q;                    /* [heads, DIM]                                      */
    const void *k, *v;
    float      *out;                   /* [heads, DIM]                                      */
    void       *copy;                  /* of peer_copy_size bytes; NULL without from_copy   */
    void       *workspace;
    size_t      workspace_bytes;
} peer_case;

static santa_attention attention(const peer_case *c) {
    const santa_dtype type = element_named(c->type)->dtype;
    const layout *l = layout_named(c->layout);
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(c->q, SANTA_F32, 1, 1, c->heads, DIM);
    a.k = l->k(c->k, type, c->n, c->kv_heads);
    a.v = l->v(c->v, type, c->n, c->kv_heads);
    a.out = santa_view(c->out, SANTA_F32, 1, 1, c->heads, DIM);
    a.proxy = c->copy;
    return a;
}

static santa_options options(const peer_case *c) {
    santa_options o;
    memset(&o, 0, sizeof o);
    o.method = !c->num_samples ? SANTA_DENSE : c->from_copy ? SANTA_PPS : SANTA_SYS;
    o.num_samples = c->num_samples;
    o.num_threads = c->threads;
    o.scores = c->from_copy ? SANTA_SCORES_PROXY : c->q8 ? SANTA_SCORES_Q8 : SANTA_SCORES_EXACT;
    o.seed = c->seed;
    return o;
}

/* Why santa.h refuses the case, or NULL. */
const char *peer_check(const peer_case *c) {
    const santa_attention a = attention(c);
    const santa_options o = options(c);
    const santa_status s = santa_check(&a, &o);
    return s == SANTA_OK ? NULL : santa_status_string(s);
}

size_t peer_copy_size(const peer_case *c) {
    const santa_attention a = attention(c);
    return santa_proxy_size(&a);
}

/* NULL, or what went wrong. */
const char *peer_copy(const peer_case *c) {
    const santa_attention a = attention(c);
    const santa_status s = santa_proxy_encode(&a, 0, c->n, NULL);
    return s == SANTA_OK ? NULL : santa_status_string(s);
}

size_t peer_workspace_size(const peer_case *c) {
    const santa_attention a = attention(c);
    const santa_options o = options(c);
    return santa_workspace_size(&a, &o);
}

/* NULL, or what went wrong. */
const char *peer_decode(const peer_case *c) {
    const santa_attention a = attention(c);
    const santa_options o = options(c);
    const santa_status s = santa_decode(&a, &o, c->workspace, c->workspace_bytes, NULL);
    return s == SANTA_OK ? NULL : santa_status_string(s);
}

/* The floor: bytes of data once. The sum keeps the reads alive. */
uint64_t peer_read(const void *data, size_t bytes, int64_t threads) {
    uint64_t sum = 0;
    int64_t i;
#pragma omp parallel for schedule(static, 1) reduction(+ : sum) num_threads((int)threads)
    for (i = 0; i < threads; i++) sum += read_part(data, bytes, threads, i);
    return sum;
}

/* count floats, a multiple of DIM, as elements of a type. */
void peer_encode(const char *type, const float *from, void *to, int64_t count) {
    const element *e = element_named(type);
    int64_t row;
#pragma omp parallel for
    for (row = 0; row < count / DIM; row++)
        for (int64_t i = row * DIM; i < (row + 1) * DIM; i += e->block)
            e->encode((char *)to + bytes_of(e, i), from + i);
}

/* Prefill: q and out are [n, heads, DIM], of bf16 where K is, causal, exact. */
static santa_attention prefill_attention(const peer_case *c) {
    santa_attention a = attention(c);
    const santa_dtype type = a.k.dtype == SANTA_BF16 ? SANTA_BF16 : SANTA_F32;
    a.q = santa_view(c->q, type, 1, c->n, c->heads, DIM);
    a.out = santa_view(c->out, type, 1, c->n, c->heads, DIM);
    a.causal = 1;
    return a;
}

size_t peer_prefill_workspace_size(const peer_case *c) {
    const santa_attention a = prefill_attention(c);
    const santa_options o = options(c);
    return santa_workspace_size(&a, &o);
}

/* NULL, or what went wrong. */
const char *peer_prefill(const peer_case *c) {
    const santa_attention a = prefill_attention(c);
    const santa_options o = options(c);
    const santa_status s = santa_decode(&a, &o, c->workspace, c->workspace_bytes, NULL);
    return s == SANTA_OK ? NULL : santa_status_string(s);
}
