/* One of the two that compare.c times: a santa.h, all of it static, behind compare.h. Compiled
   twice, with -DSIDE=old_side and -DSIDE=new_side and the -I that finds the santa.h. Keep to
   what 0.1.0 had, and to names where a version may have numbered things otherwise. */
#define _POSIX_C_SOURCE 200809L
#define SANTA_STATIC
#define SANTA_IMPLEMENTATION
#include "santa.h"
#include "bench.h"
#include "compare.h"

static int method_named(const char *name) {
    int m = 0;
    while (m < SANTA_METHOD_COUNT && strcmp(santa_method_name((santa_method)m), name)) m++;
    return m;
}

static int isa_named(const char *name) {
    int i = 0;
    while (i < SANTA_ISA_COUNT && strcmp(santa_isa_name((santa_isa)i), name)) i++;
    return i;
}

static santa_attention attention(const compare_call *c) {
    const santa_dtype type = element_named(c->type)->dtype;
    const layout *l = layout_named(c->layout);
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(c->q, type == SANTA_BF16 ? SANTA_BF16 : SANTA_F32, 1, 1, c->heads, DIM);
    a.k = l->k(c->k, type, c->n, c->kv_heads);
    a.v = l->v(c->v, type, c->n, c->kv_heads);
    a.out = santa_view(c->out, SANTA_F32, 1, 1, c->heads, DIM);
    a.lse = c->lse;
#if SANTA_VERSION >= 200
    a.proxy = c->copy;
#endif
    return a;
}

static santa_options options(const compare_call *c) {
    santa_options o;
    memset(&o, 0, sizeof o);
    o.method = (santa_method)method_named(c->method);
    o.isa = (santa_isa)isa_named(c->isa);
    o.num_samples = c->num_samples;
    o.offset = c->offset;
    o.num_threads = c->threads;
    o.parallel_for = c->threads > 1 ? c->parallel_for : NULL;
#if SANTA_VERSION >= 200
    if (c->copy) o.scores = SANTA_SCORES_PROXY;
#endif
    return o;
}

static const char *refusal(const compare_call *c) {
    int known = 0;
    for (int i = 0; i < ELEMENTS; i++) known |= !strcmp(elements[i].name, c->type);
    if (!known) return "it has no such type";
    const santa_attention a = attention(c);
    const santa_options o = options(c);
    const santa_status s = santa_check(&a, &o);
    if (c->copy && SANTA_VERSION < 200) return "it has no copies of K";
    return s == SANTA_OK ? NULL : santa_status_string(s);
}

static size_t workspace_size(const compare_call *c) {
    const santa_attention a = attention(c);
    const santa_options o = options(c);
    return santa_workspace_size(&a, &o);
}

static const char *decode(const compare_call *c) {
    const santa_attention a = attention(c);
    const santa_options o = options(c);
    const santa_status s = santa_decode(&a, &o, c->workspace, c->workspace_bytes, NULL);
    return s == SANTA_OK ? NULL : santa_status_string(s);
}

const compare_side SIDE = { SANTA_VERSION, refusal, workspace_size, decode };
