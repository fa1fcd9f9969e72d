/* Prints bench/results/support.md: what santa_check takes, asked for small problems. The GPU's
   side is that of santa_cuda.cu beside a stand-in for the CUDA runtime, so this runs on any
   machine.
     mkdir -p build
     g++ -std=c++17 -Itest/cuda/standin test/cuda/support.cpp -o build/support */
#include "launched.h"
#define SANTA_IMPLEMENTATION
#define SANTA_NO_SIMD
#include "../../santa_cuda.cu"
#include <stdio.h>
#include <string>

namespace {

enum { N = 128, HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE = 16, BUCKETS = 4 };

alignas(16) char  memory[4][N * KV_HEADS * DIM * 4], copy_of_k[1 << 16];
float   lse[HEADS], error[HEADS], sinks[HEADS], slopes[HEADS], centroids[KV_HEADS * BUCKETS * DIM];
int32_t table[N / PAGE], bucket_index[1 << 12];

const char *const types[] = {
#define TYPE(type, name, bytes, numbers) #name,
    SANTA_DTYPE_LIST(TYPE)
#undef TYPE
};
enum { TYPES = sizeof types / sizeof *types };

/* N token-major, H head-major, F token-major with K feature-major, P pages of 16 tokens */
const char layouts[] = "NHFP";

const char *const method_names[] = {
#define METHOD(method, name, traits, capacity, needs, draw, phases) name,
    SANTA_METHOD_LIST(METHOD)
#undef METHOD
};

struct request {
    santa_attention a;
    santa_options   o;
    santa_buckets   router;
};

/* A call of a method on K and V of a type, laid out in a way; device: SANTA_CPU or
   SANTA_CUDA. */
void make(request *c, santa_method method, santa_device device, santa_dtype type, char layout) {
    memset((void *)c, 0, sizeof *c);
    santa_attention &a = c->a;
    a.q   = santa_view(memory[0], SANTA_F32, 1, 1, HEADS, DIM);
    a.out = santa_view(memory[3], SANTA_F32, 1, 1, HEADS, DIM);
    for (int i = 0; i < 2; i++)
        (i ? a.v : a.k) = layout == 'H' ? santa_view_hnd(memory[1 + i], type, 1, N, KV_HEADS, DIM)
                        : layout == 'P' ? santa_view(memory[1 + i], type, N / PAGE, PAGE, KV_HEADS, DIM)
                                        : santa_view(memory[1 + i], type, 1, N, KV_HEADS, DIM);
    if (layout == 'F') { a.k.stride[1] = 1; a.k.stride[2] = N * DIM; a.k.stride[3] = N; }
    if (layout == 'P') { a.block_table = table; a.max_pages = N / PAGE; }
    c->o.method = method;
    c->o.num_samples = 16;
    if (santa_method_traits(method) & SANTA_ROUTES) {
        c->router.num_buckets = BUCKETS;
        c->router.centroids = centroids;
        c->router.index = bucket_index;
        a.buckets = &c->router;
        const santa_tensor keys = santa_view(memory[1], SANTA_F32, 1, N, KV_HEADS, DIM);
        if (santa_buckets_size(&a) > sizeof bucket_index) abort();
        if (santa_buckets_assign(&a, &keys, 0, NULL) != SANTA_OK)
            memset(bucket_index, 0, sizeof bucket_index);
    }
    a.q.device = a.k.device = a.v.device = a.out.device = device;
}

bool taken(request *c) {
    c->a.buckets = c->a.buckets ? &c->router : NULL;
    return santa_check(&c->a, &c->o) == SANTA_OK;
}

/* Layouts that are taken, "all" or "-". */
std::string layouts_of(int method, santa_device device, int type) {
    std::string some;
    for (const char *l = layouts; *l; l++) {
        request c;
        make(&c, (santa_method)method, device, (santa_dtype)type, *l);
        if (taken(&c)) some += *l;
    }
    return some.empty() ? "-" : some == layouts ? "all" : some;
}

void with_scores(request *c, int scores) { c->o.scores = (santa_scores_method)scores; }

struct feature { const char *name; santa_dtype type; void (*set)(request *c); };

const feature scores[] = {
    {"exact", SANTA_F16, [](request *c) { with_scores(c, SANTA_SCORES_EXACT); }},
    {"Bernoulli, iid", SANTA_F16, [](request *c) { with_scores(c, SANTA_SCORES_BERNOULLI_IID); }},
    {"strat", SANTA_F16, [](request *c) { with_scores(c, SANTA_SCORES_BERNOULLI_STRAT); }},
    {"for the group, iid", SANTA_F16, [](request *c) { with_scores(c, SANTA_SCORES_GROUP_IID); }},
    {"strat", SANTA_F16, [](request *c) { with_scores(c, SANTA_SCORES_GROUP_STRAT); }},
    {"8-bit query, K of q8_0", SANTA_Q8_0, [](request *c) { with_scores(c, SANTA_SCORES_Q8); }},
    {"copy of K", SANTA_F16,
     [](request *c) {
         with_scores(c, SANTA_SCORES_PROXY);
         c->a.proxy = copy_of_k;
     }},
};

void over_ranks(request *c) {
    static const int32_t context[] = { N };
    c->a.context_lens = context;
    c->o.ranks.count = 2;
    c->o.ranks.all_gather = [](void *, const void *, size_t, void *, void *) { return 1; };
}

const feature extras[] = {
    { "lse",         SANTA_F16, [](request *c) { c->a.lse = lse; } },
    { "std_error",   SANTA_F16, [](request *c) { c->a.std_error = error; } },
    { "causal, window", SANTA_F16, [](request *c) { c->a.causal = 1; c->a.window = 50; } },
    { "first_tokens", SANTA_F16, [](request *c) { c->a.window = 50; c->a.first_tokens = 4; } },
    { "k_scales, v_scales", SANTA_F16,
      [](request *c) {
          c->a.k_scales = c->a.k; c->a.v_scales = c->a.v;
          c->a.k_scales.shape[3] = c->a.v_scales.shape[3] = 1;
      } },
    { "kv_start",    SANTA_F16, [](request *c) { c->a.kv_start = table; } },
    { "sinks, soft_cap, ALiBi", SANTA_F16,
      [](request *c) { c->a.sinks = sinks; c->a.soft_cap = 30.0f; c->a.alibi_slopes = slopes; } },
    { "num_combs = 4", SANTA_F16, [](request *c) { c->o.num_combs = 4; } },
    { "tile_size = 64", SANTA_F16, [](request *c) { c->o.tile_size = 64; } },
    { "key_list",    SANTA_F16, [](request *c) { c->a.key_list = table; c->a.max_list = 2; } },
    { "item range",  SANTA_F16, [](request *c) { c->o.item_end = 1; } },
    { "ranks",       SANTA_F16, over_ranks },
    { "ranks, copy of K", SANTA_F16,
      [](request *c) {
          over_ranks(c);
          with_scores(c, SANTA_SCORES_PROXY);
          c->a.proxy = copy_of_k;
      } },
};

/* "CPU, GPU", "CPU" or "-" */
std::string devices_of(int method, const feature &f) {
    std::string some;
    for (santa_device device : { SANTA_CPU, SANTA_CUDA }) {
        request c;
        make(&c, (santa_method)method, device, f.type, 'N');
        f.set(&c);
        if (taken(&c)) some += some.empty() ? device == SANTA_CPU ? "CPU" : "GPU" : ", GPU";
    }
    return some.empty() ? "-" : some;
}

template <size_t count> void print_features(const char *title, const feature (&features)[count]) {
    printf("\n%s\n\n| method |", title);
    for (const feature &f : features) printf(" %s |", f.name);
    printf("\n|---|");
    for (size_t i = 0; i < count; i++) printf("---|");
    printf("\n");
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        printf("| %s |", method_names[m]);
        for (const feature &f : features) printf(" %s |", devices_of(m, f).c_str());
        printf("\n");
    }
}

/* Whether q and out may be of any type that is not for K and V alone, on every device that has
   the method. */
bool q_and_out_vary() {
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        for (santa_device device : { SANTA_CPU, SANTA_CUDA })
            for (santa_dtype type : { SANTA_F16, SANTA_BF16 })
                for (int i = 0; i < 3; i++) {
                    request c;
                    make(&c, (santa_method)m, device, SANTA_F16, 'N');
                    const bool without = taken(&c);
                    if (i != 1) c.a.q.dtype = type;
                    if (i != 0) c.a.out.dtype = type;
                    if (taken(&c) != without) return false;
                }
    return true;
}

}  // namespace

int main() {
    if (!q_and_out_vary()) { fprintf(stderr, "q or out of 16 bits is refused somewhere\n"); return 1; }
    printf("# What is supported\n\n"
           "`make support` prints this page: `santa_check` was asked for a small problem in each place.\n"
           "q and out may be f32, f16 or bf16 everywhere.\n\n"
           "K and V of one type, exact scores; layouts N token-major (NHD), H head-major (HND), F with K\n"
           "feature-major, P pages of %d tokens:\n\n| method |", PAGE);
    for (const char *device : { "CPU", "GPU" })
        for (const char *type : types) printf(" %s %s |", device, type);
    printf("\n|---|");
    for (int i = 0; i < 2 * TYPES; i++) printf("---|");
    printf("\n");
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        printf("| %s |", method_names[m]);
        for (santa_device device : { SANTA_CPU, SANTA_CUDA })
            for (int t = 0; t < TYPES; t++) printf(" %s |", layouts_of(m, device, t).c_str());
        printf("\n");
    }
    printf("\nThis asks for one query row. From 32 on sample-attention is sparse, and on the GPU wants "
           "types as prefill's\n"
           "tiles do: no K or V of f32, no f16 and bf16 beside each other, head_dim up to 256, with an "
           "f32 q 128.\n");
    print_features("Where the scores come from; f16, token-major:", scores);
    print_features("What may be asked for beside that; f16, token-major:", extras);
    return 0;
}
