/* What compare.c and the copies of compare_unit.c tell each other. Nothing of santa.h is in it:
   the two that are compared may differ in their structs and in the values of their enums. */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include <stddef.h>
#include <stdint.h>

/* One decode step, batch 1. */
typedef struct compare_call {
    const char *type, *layout;         /* names of elements and layouts of bench.h */
    const char *method, *isa;          /* santa_method_name, santa_isa_name */
    int64_t     n, heads, kv_heads, num_samples, threads;
    uint64_t    offset;
    void      (*parallel_for)(void *user, int64_t count, void (*task)(void *context, int64_t i),
                              void *context);
    const void *q;                     /* [heads, DIM] f32; bf16 where the type is */
    const void *k, *v;
    void       *copy;                  /* of K in 4 bits, to score by, or NULL */
    float      *out, *lse;             /* [heads, DIM]; [heads] */
    void       *workspace;
    size_t      workspace_bytes;
} compare_call;

typedef struct compare_side {
    int         version;               /* SANTA_VERSION */
    const char *(*refusal)(const compare_call *c);        /* why it does not take the call, or NULL */
    size_t      (*workspace_size)(const compare_call *c);
    const char *(*decode)(const compare_call *c);         /* NULL, or what went wrong */
} compare_side;

extern const compare_side old_side, new_side;

#endif
