/* Errors: every status is produced here, and whatever the status, nothing is written. Each line
   names one change to a valid call and the status that it must give; the last case fails for a
   status that no line produced. */
#include "harness.h"
#include <stdlib.h>

enum { BATCH = 2, ROWS = 2, HEADS = 4, KV_HEADS = 2, LEN = 96, DIM = 8, DIM_V = 6, PAGE = 16,
       MAX_PAGES = LEN / PAGE, OUT_ROWS = BATCH * ROWS * HEADS, SCRATCH = 1 << 18, WIDE = 64,
       BLOCKS = BATCH * LEN * KV_HEADS * WIDE / 32 };

static const struct { const char *name, *text; } statuses[] = {
#define ENTRY(name, text) {#name, text},
    SANTA_STATUS_LIST(ENTRY)
#undef ENTRY
};
static char produced[SANTA_STATUS_COUNT];

static float q[BATCH * ROWS * HEADS * DIM], k[BATCH * LEN * KV_HEADS * DIM],
    v[BATCH * LEN * KV_HEADS * DIM_V];
static float   sinks[HEADS], slopes[HEADS], wide[OUT_ROWS * WIDE];
static unsigned char blocks[BLOCKS * 34];
static int32_t lens[BATCH], table[BATCH * MAX_PAGES];

/* Everything a call may write, in one block that is compared byte by byte. */
static struct outputs {
    float         out[OUT_ROWS * DIM_V], wide[OUT_ROWS * WIDE], lse[OUT_ROWS], std_error[OUT_ROWS];
    santa_audit   audit[OUT_ROWS];
    santa_sample_audit sampled[BATCH * HEADS];
    float         row_mass[OUT_ROWS];
    uint8_t       mask[256];                                                     /* see reset_sparse */
    santa_stats   stats;
    unsigned char copy[1 << 16];                                                 /* of K, see reset_proxy */
    unsigned char workspace[SCRATCH];
} got;

static santa_attention a;
static santa_options   o;
static test_router     router;

/* A valid call with everything switched on. */
static void reset(void) {
    test_rng r = test_rng_make(1);
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = (float)test_normal(&r);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = (float)test_normal(&r);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = (float)test_normal(&r);
    for (int i = 0; i < HEADS; i++) { sinks[i] = 0.5f; slopes[i] = 0.01f; }
    lens[0] = 50;
    lens[1] = LEN;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    a.q   = santa_view(q, SANTA_F32, BATCH, ROWS, HEADS, DIM);
    a.k   = santa_view(k, SANTA_F32, BATCH, LEN, KV_HEADS, DIM);
    a.v   = santa_view(v, SANTA_F32, BATCH, LEN, KV_HEADS, DIM_V);
    a.out = santa_view(got.out, SANTA_F32, BATCH, ROWS, HEADS, DIM_V);
    a.lse          = got.lse;
    a.std_error    = got.std_error;
    a.seq_lens     = lens;
    a.causal       = 1;
    a.sinks        = sinks;
    a.alibi_slopes = slopes;
    o.method           = SANTA_IID;
    o.num_samples      = 16;
    test_unroute(&router);
    test_route(&router, &a);
}

/* The same call with K and V in pages; the batch's second sequence starts with the last
   page. */
static void reset_paged(void) {
    reset();
    a.k = santa_view(k, SANTA_F32, BATCH * MAX_PAGES, PAGE, KV_HEADS, DIM);
    a.v = santa_view(v, SANTA_F32, BATCH * MAX_PAGES, PAGE, KV_HEADS, DIM_V);
    for (int i = 0; i < BATCH * MAX_PAGES; i++)
        table[i] = i < MAX_PAGES ? i : BATCH * MAX_PAGES - 1 - (i - MAX_PAGES);
    a.block_table = table;
    a.max_pages   = MAX_PAGES;
    test_unroute(&router);
    test_route(&router, &a);
}

static int is_biased(int m) { return (santa_method_traits((santa_method)m) & SANTA_BIASED) != 0; }

/* The call by another method, without what that does not read. */
static void set_method(int m) {
    o.method = (santa_method)m;
    if (is_biased(m)) a.std_error = NULL;
    santa_clear_unused_options(&o);
}

static void reset_vattention(void) {
    reset();
    set_method(SANTA_VATTENTION);
    o.vattention.audit = got.audit;
    o.vattention.sink_tokens = o.vattention.local_tokens = 4;
}

/* The same call with K and V in q8_0, whose rows are blocks of 32. */
static void reset_q8_0(void) {
    reset();
    for (int i = 0; i < BLOCKS * 34; i++) blocks[i] = (unsigned char)(i % 34 < 2 ? 0x2c : i);
    a.q = santa_view(wide, SANTA_F32, BATCH, ROWS, HEADS, WIDE);
    a.k = santa_view(blocks, SANTA_Q8_0, BATCH, LEN, KV_HEADS, WIDE);
    a.v = a.k;
    a.out = santa_view(got.wide, SANTA_F32, BATCH, ROWS, HEADS, WIDE);
}

/* A call that draws from a copy of K; what is in the copy does not matter to the checks. */
static void reset_proxy(void) {
    reset();
    o.method = SANTA_SYS;
    o.scores = SANTA_SCORES_PROXY;
    a.proxy  = got.copy;
}

/* Sparse prefill that looks at blocks although it has few rows. */
static void reset_sparse(void) {
    reset();
    set_method(SANTA_SAMPLE_ATTENTION);
    o.sample_attention.mask_out = got.mask;
    o.sample_attention.audit    = got.sampled;
    o.sample_attention.row_mass = got.row_mass;
}

static void reset_proxy_paged(void) {
    reset_paged();
    o.method = SANTA_PPS;
    o.scores = SANTA_SCORES_PROXY;
    a.proxy  = got.copy;
}

static void clear_outputs(void) { memset(&got, 0xa5, sizeof got); }

static int untouched(void) {
    const unsigned char *bytes = (const unsigned char *)&got;
    for (size_t i = 0; i < sizeof got; i++)
        if (bytes[i] != 0xa5) return 0;
    return 1;
}

/* One status of one function, with nothing written when it is an error. */
static void expect_status(santa_status status, santa_status want, const char *call, int line) {
    test_check(status == want, __FILE__, line, "%s: got \"%s\", want \"%s\"", call,
               santa_status_string(status), santa_status_string(want));
    if (status != SANTA_OK)
        test_check(untouched(), __FILE__, line, "%s: wrote something in spite of its error", call);
    if (status >= 0 && status < SANTA_STATUS_COUNT) produced[status] = 1;
}
#define EXPECT(want, call) (clear_outputs(), expect_status(call, SANTA_##want, #call, __LINE__))

/* The call as it now is: santa_check and santa_decode agree on the status. */
static void expect_decode(santa_status want, const char *change, int line) {
    clear_outputs();
    const santa_status checked = santa_check(&a, &o);
    test_check(checked == want, __FILE__, line, "santa_check after %s: got \"%s\", want \"%s\"", change,
               santa_status_string(checked), santa_status_string(want));
    expect_status(santa_decode(&a, &o, got.workspace, SCRATCH, &got.stats), want, change, line);
}

#define CHANGED(reset, status, change) \
    do { reset(); change; expect_decode(SANTA_##status, #change, __LINE__); } while (0)
#define BAD(status, change)            CHANGED(reset, status, change)
#define BAD_PAGED(status, change)      CHANGED(reset_paged, status, change)
#define BAD_VATTENTION(status, change) CHANGED(reset_vattention, status, change)
#define BAD_Q8_0(status, change)       CHANGED(reset_q8_0, status, change)
#define BAD_PROXY(status, change)      CHANGED(reset_proxy, status, change)
#define BAD_PROXY_PAGED(status, change) CHANGED(reset_proxy_paged, status, change)
#define GOOD_PROXY(change)            BAD_PROXY(OK, change)
#define GOOD_PROXY_PAGED(change)      BAD_PROXY_PAGED(OK, change)
#define BAD_SPARSE(status, change)    CHANGED(reset_sparse, status, change)
#define GOOD_SPARSE(change)           BAD_SPARSE(OK, change)
#define GOOD(change)                  BAD(OK, change)
#define GOOD_PAGED(change)            BAD_PAGED(OK, change)
#define GOOD_VATTENTION(change)       BAD_VATTENTION(OK, change)
#define GOOD_Q8_0(change)             BAD_Q8_0(OK, change)

/* An enum field gets a value that is none of its enumerators; a cast would be undefined in
   C++. */
static void set_enum(void *field, int value) { memcpy(field, &value, sizeof value); }

static float positive_infinity(void) {
    const uint32_t bits = 0x7f800000u;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static double infinity_d(void) { return (double)positive_infinity(); }
static double nan_d(void)      { return (double)test_nan(); }

/* ------------------------------------------------------------ the cases */

static void texts(void) {
    for (int i = 0; i < SANTA_STATUS_COUNT; i++) {
        const char *text = santa_status_string((santa_status)i);
        CHECK_MSG(text && !strcmp(text, statuses[i].text), "status %d (%s) has another text", i,
                  statuses[i].name);
        CHECK_MSG(text && *text, "status %d (%s) has no text", i, statuses[i].name);
        for (int j = 0; j < i; j++)
            CHECK_MSG(strcmp(text, santa_status_string((santa_status)j)), "%s and %s have the same text",
                      statuses[i].name, statuses[j].name);
    }
    santa_status wild = SANTA_STATUS_COUNT;                    /* out of range: some text, no crash */
    CHECK(santa_status_string(wild) != NULL);
    set_enum(&wild, -1);
    CHECK(!strcmp(santa_status_string(wild), "not a santa_status"));
    CHECK(!strcmp(santa_status_name(wild), "not a santa_status"));
    CHECK_INT(SANTA_OK, 0);
}

static void names(void) {
    santa_status cuda;
    for (int i = 0; i < SANTA_STATUS_COUNT; i++) {
        const char *name = santa_status_name((santa_status)i);
        CHECK_MSG(!strncmp(name, "SANTA_", 6) && !strcmp(name + 6, statuses[i].name),
                  "status %d is named %s, not SANTA_%s", i, name, statuses[i].name);
    }
    CHECK(!strcmp(santa_status_name(SANTA_OK), "SANTA_OK"));
    CHECK(!strcmp(santa_status_name(SANTA_ERR_SHAPE), "SANTA_ERR_SHAPE"));
    set_enum(&cuda, SANTA_ERR_CUDA + 700);
    CHECK(!strcmp(santa_status_name(cuda), "SANTA_ERR_CUDA"));
}

/* By hand, so that a line missing in SANTA_STRUCT_LIST shows. */
static void version_and_structs(void) {
    const struct { const char *name; size_t size; } structs[] = {
#define STRUCT(type) {#type, sizeof(type)}
        STRUCT(santa_tensor), STRUCT(santa_buckets), STRUCT(santa_attention), STRUCT(santa_audit),
        STRUCT(santa_vattention_options), STRUCT(santa_proxy_options), STRUCT(santa_saap_options),
        STRUCT(santa_sample_audit), STRUCT(santa_sample_attention_options), STRUCT(santa_ranks_options),
        STRUCT(santa_options), STRUCT(santa_stats), STRUCT(santa_problem), STRUCT(santa_backend),
        STRUCT(santa_stream_id), STRUCT(santa_draws), STRUCT(santa_budget)
#undef STRUCT
    };
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++)
        CHECK_MSG(santa_struct_size(structs[i].name) == structs[i].size, "%s has %lu bytes, said %lu",
                  structs[i].name, (unsigned long)structs[i].size,
                  (unsigned long)santa_struct_size(structs[i].name));
    CHECK_INT(santa_struct_size("santa_status"), 0);
    CHECK_INT(santa_struct_size("options"), 0);
    CHECK_INT(santa_struct_size("santa_"), 0);
    CHECK_INT(santa_struct_size(""), 0);
    CHECK_INT(santa_struct_size(NULL), 0);
    CHECK_INT(santa_version(), SANTA_VERSION);
}

static void valid_calls(void) {
    GOOD((void)0);
    GOOD_PAGED((void)0);
    GOOD_VATTENTION((void)0);
    GOOD(a.lse = a.std_error = NULL; a.sinks = a.alibi_slopes = NULL; a.seq_lens = NULL);
    GOOD_VATTENTION(o.vattention.audit = NULL);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        GOOD(set_method(m));
    reset();
    EXPECT(OK, santa_decode(&a, &o, got.workspace, SCRATCH, NULL));              /* stats may be NULL */
}

static void null_pointers(void) {
    reset();
    EXPECT(ERR_NULL_ARGUMENT, santa_check(NULL, &o));
    EXPECT(ERR_NULL_ARGUMENT, santa_check(&a, NULL));
    EXPECT(ERR_NULL_ARGUMENT, santa_decode(NULL, &o, got.workspace, SCRATCH, &got.stats));
    EXPECT(ERR_NULL_ARGUMENT, santa_decode(&a, NULL, got.workspace, SCRATCH, &got.stats));
    CHECK_INT(santa_workspace_size(NULL, &o), 0);
    CHECK_INT(santa_workspace_size(&a, NULL), 0);
    BAD(ERR_NULL_DATA, a.q.data   = NULL);
    BAD(ERR_NULL_DATA, a.k.data   = NULL);
    BAD(ERR_NULL_DATA, a.v.data   = NULL);
    BAD(ERR_NULL_DATA, a.out.data = NULL);
}

static void types_and_devices(void) {
    santa_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.out};
    for (int i = 0; i < 4; i++) {
        BAD(ERR_DTYPE,           set_enum(&tensors[i]->dtype, 7));
        BAD(ERR_DTYPE,           set_enum(&tensors[i]->dtype, -1));
        BAD(ERR_DEVICE,          tensors[i]->device = SANTA_DEVICE_COUNT);
        BAD(ERR_DEVICE,          set_enum(&tensors[i]->device, -1));
        BAD(ERR_DEVICE_MISMATCH, tensors[i]->device = SANTA_CUDA);
    }
    BAD(ERR_DTYPE, a.q.dtype   = SANTA_E4M3);
    BAD(ERR_DTYPE, a.out.dtype = SANTA_E4M3);
    BAD_Q8_0(ERR_DTYPE, a.q.dtype   = SANTA_Q8_0);
    BAD_Q8_0(ERR_DTYPE, a.out.dtype = SANTA_Q8_0);
    BAD(ERR_NO_BACKEND, a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA);
}

/* The same of q4_0, and of e5m2, which may have any strides. */
static void q4_0_and_e5m2(void) {
    santa_tensor *const kv[] = {&a.k, &a.v};
    for (int i = 0; i < 2; i++) {
        GOOD_Q8_0(kv[i]->dtype = SANTA_Q4_0);
        for (int d = 0; d < 3; d++)
            for (int64_t off = -1; off <= 16; off += 17)
                BAD_Q8_0(ERR_Q4_0, kv[i]->dtype = SANTA_Q4_0; kv[i]->stride[d] += off);
        BAD_Q8_0(ERR_Q4_0, kv[i]->dtype = SANTA_Q4_0; kv[i]->stride[3] = 2);
        BAD_Q8_0(ERR_Q4_0, kv[i]->dtype = SANTA_Q4_0; kv[i]->shape[3] = 33);
        GOOD(kv[i]->dtype = SANTA_E5M2);
        GOOD(kv[i]->dtype = SANTA_E5M2; kv[i]->stride[1]--; kv[i]->stride[3] = 3);
    }
    BAD(ERR_DTYPE, a.q.dtype   = SANTA_E5M2);
    BAD(ERR_DTYPE, a.out.dtype = SANTA_E5M2);
    BAD_Q8_0(ERR_DTYPE, a.q.dtype   = SANTA_Q4_0);
    BAD_Q8_0(ERR_DTYPE, a.out.dtype = SANTA_Q4_0);
    BAD_Q8_0(ERR_SCORES_Q8, o.scores = SANTA_SCORES_Q8; a.k.dtype = SANTA_Q4_0);
    reset_q8_0();
    a.k.dtype = SANTA_Q4_0;
    CHECK(santa_keys_feature_major(&a.k, got.out).data == NULL);
    reset();
    CHECK(santa_keys_feature_major(NULL, got.out).data == NULL);
    CHECK(santa_keys_feature_major(&a.k, NULL).data == NULL);
    santa_tensor views[4] = {a.k, a.k, a.k, a.k};
    views[0].data = NULL;
    set_enum(&views[1].dtype, 7);
    views[2].device = SANTA_CUDA;
    views[3].shape[1] = 0;
    for (int i = 0; i < 4; i++) CHECK(santa_keys_feature_major(&views[i], got.out).shape[3] == 0);
}

/* Whole blocks in every dimension that is walked, features side by side. */
static void q8_0(void) {
    santa_tensor *const kv[] = {&a.k, &a.v};
    GOOD_Q8_0((void)0);
    for (int i = 0; i < 2; i++) {
        for (int d = 0; d < 3; d++)
            for (int64_t off = -1; off <= 16; off += 17) BAD_Q8_0(ERR_Q8_0, kv[i]->stride[d] += off);
        BAD_Q8_0(ERR_Q8_0, kv[i]->stride[3] = 2);
        BAD_Q8_0(ERR_Q8_0, kv[i]->stride[3] = 0);
        BAD_Q8_0(ERR_Q8_0, kv[i]->stride[3] = -1);
        BAD_Q8_0(ERR_Q8_0, kv[i]->stride[3] = 32);
        BAD_Q8_0(ERR_Q8_0, kv[i]->shape[3] = 33);
        BAD_Q8_0(ERR_Q8_0, kv[i]->shape[3] = 16);
        BAD_Q8_0(ERR_Q8_0, a.q.shape[3] = a.k.shape[3] = a.v.shape[3] = a.out.shape[3] = 48);
        GOOD_Q8_0(kv[i]->stride[1] = 0);                                         /* one row shown as many */
    }
    GOOD_Q8_0(a.q.shape[3] = a.k.shape[3] = 32);
    GOOD_Q8_0(a.k.dtype = SANTA_E4M3);
    GOOD_Q8_0(a.k.data = blocks + (LEN - 1) * KV_HEADS * WIDE / 32 * 34; a.k.stride[1] = -a.k.stride[1]);
    /* the stride of a dimension of size 1 is never used */
    GOOD_Q8_0(a.q.shape[2] = a.out.shape[2] = a.k.shape[2] = a.v.shape[2] = 1; a.k.stride[2] = 5;
              a.sinks = a.alibi_slopes = NULL);
}

static void shapes(void) {
    santa_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.out};
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 4; d++) {
            BAD(ERR_SHAPE, tensors[i]->shape[d] = 0);
            BAD(ERR_SHAPE, tensors[i]->shape[d] = -1);
            BAD(ERR_SHAPE, tensors[i]->shape[d] = INT64_MIN);
        }
    BAD(ERR_BATCH,      a.q.shape[0]   = 1);
    BAD(ERR_BATCH,      a.k.shape[0]   = 1);
    BAD(ERR_BATCH,      a.v.shape[0]   = 1);
    BAD(ERR_BATCH,      a.out.shape[0] = 1);
    BAD(ERR_Q_LEN,      a.q.shape[1]   = 1);
    BAD(ERR_Q_LEN,      a.out.shape[1] = 1);
    BAD(ERR_HEADS,      a.q.shape[2]   = 2);
    BAD(ERR_HEADS,      a.out.shape[2] = 2);
    BAD(ERR_KV_HEADS,   a.k.shape[2]   = 1);
    BAD(ERR_KV_HEADS,   a.v.shape[2]   = 1);
    BAD(ERR_GROUP,      a.q.shape[2]   = a.out.shape[2] = 3);
    BAD(ERR_GROUP,      a.q.shape[2]   = a.out.shape[2] = 1);
    BAD(ERR_HEAD_DIM,   a.q.shape[3]   = DIM - 1);
    BAD(ERR_HEAD_DIM,   a.k.shape[3]   = DIM - 1);
    BAD(ERR_HEAD_DIM_V, a.v.shape[3]   = DIM_V - 1);
    BAD(ERR_HEAD_DIM_V, a.out.shape[3] = DIM_V - 1);
    BAD(ERR_KV_LEN,     a.k.shape[1]   = LEN - 1; a.seq_lens = NULL);
    BAD(ERR_KV_LEN,     a.v.shape[1]   = LEN - 1; a.seq_lens = NULL);
    BAD_PAGED(ERR_KV_LEN, a.v.shape[0] -= 1);
    BAD_PAGED(ERR_KV_LEN, a.k.shape[1] -= 1);
    BAD(ERR_OUT_STRIDE, a.out.stride[0] = 0);
    BAD(ERR_OUT_STRIDE, a.out.stride[1] = 0);
    BAD(ERR_OUT_STRIDE, a.out.stride[2] = 0);
    BAD(ERR_OUT_STRIDE, a.out.stride[3] = 0);
    BAD(ERR_OUT_OVERLAP, a.out.stride[2] = DIM_V - 1); /* a head's row ends in the next one's */
    BAD(ERR_OUT_OVERLAP, a.out.stride[2] = -(DIM_V - 1));
    BAD(ERR_OUT_OVERLAP, a.out.stride[1] = DIM_V * HEADS - 1);
    BAD(ERR_OUT_OVERLAP, a.out.stride[0] = a.out.stride[1]);
    BAD(ERR_OUT_OVERLAP, a.out.stride[3] = DIM_V; a.out.stride[2] = DIM_V);
    GOOD(a.out.stride[3] = HEADS; a.out.stride[2] = 1);      /* heads within features: each has its own */
    GOOD(a.out.data = got.wide; a.out.stride[2] = DIM_V + 1; a.out.stride[1] = WIDE;
         a.out.stride[0] = 2 * WIDE);
    GOOD(a.q.stride[2] = a.k.stride[1] = a.v.stride[0] = 0); /* inputs may repeat themselves */
}

/* Sizes near the end of int64, where a product or a sum formed carelessly wraps into something
   harmless. */
static void overflows(void) {
    static const int64_t wild[] = {INT64_MAX, INT64_MIN, INT64_MAX / 2, INT64_MIN / 2, INT64_MAX / 4 + 1,
                                   INT64_MIN + 1, (int64_t)1 << 62};
    santa_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.out};
    for (size_t w = 0; w < sizeof wild / sizeof *wild; w++)
        for (int i = 0; i < 4; i++)
            for (int d = 0; d < 4; d++) BAD(ERR_OVERFLOW, tensors[i]->stride[d] = wild[w]);
    BAD(ERR_OVERFLOW, a.q.stride[0] = INT64_MAX; a.q.stride[1] = INT64_MIN);     /* would cancel */
    BAD(ERR_OVERFLOW, a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = INT64_MAX;
        a.seq_lens = NULL);
    BAD(ERR_OVERFLOW, a.q.shape[1] = a.out.shape[1] = INT64_MAX);
    BAD(ERR_OVERFLOW, a.q.shape[2] = a.out.shape[2] = INT64_MAX - 1);
    BAD(ERR_OVERFLOW, a.q.shape[3] = a.k.shape[3] = INT64_MAX);
    BAD(ERR_OVERFLOW, a.v.shape[3] = a.out.shape[3] = INT64_MAX);
    /* 2^33 heads of 2^33 elements: the product of two sizes that fit is 0 modulo 2^64 */
    BAD(ERR_OVERFLOW, a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = (int64_t)1 << 33;
                      a.q.shape[1] = a.out.shape[1] = (int64_t)1 << 31;
                      a.q.stride[0] = a.q.stride[1] = 0; a.seq_lens = NULL);
    /* the inputs repeat themselves, so that only batch x heads x rows itself is too large */
    BAD(ERR_OVERFLOW, for (int d = 0; d < 4; d++) a.q.stride[d] = a.k.stride[d] = a.v.stride[d] = 0;
                      a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = (int64_t)1 << 40;
                      a.q.shape[1] = a.out.shape[1] = (int64_t)1 << 40; a.seq_lens = NULL);
    /* tensors that overlap themselves fit in memory where the workspace of so many heads and
       keys cannot */
    BAD(ERR_OVERFLOW, a.q.shape[2] = a.out.shape[2] = INT32_MAX - 1; a.q.stride[2] = 0;
        a.out.stride[2] = DIM_V; a.out.stride[1] = (int64_t)1 << 36; a.out.stride[0] = (int64_t)1 << 38;
        a.k.shape[1] = a.v.shape[1] = INT32_MAX; a.k.stride[1] = a.v.stride[1] = 0; a.seq_lens = NULL;
        a.sinks = a.alibi_slopes = NULL);
    BAD(ERR_TOO_LONG, a.k.shape[1] = a.v.shape[1] = (int64_t)1 << 31; a.k.stride[1] = a.v.stride[1] = 0);
    BAD(ERR_TOO_LONG, a.k.shape[1] = a.v.shape[1] = INT64_MAX;        a.k.stride[1] = a.v.stride[1] = 0);
    BAD_PAGED(ERR_TOO_LONG, a.max_pages = ((int64_t)1 << 31) / PAGE);
    BAD_PAGED(ERR_TOO_LONG, a.max_pages = INT64_MAX / PAGE + 1); /* max_pages * PAGE wraps */
    BAD_PAGED(ERR_OVERFLOW, a.block_table_stride = INT64_MAX);
}

/* Each stride fits; only what the whole tensor spans does not. Where a product or a sum wraps,
   it wraps into something small. */
static void overflowing_spans(void) {
    santa_tensor *const kv[] = {&a.k, &a.v};
    for (int i = 0; i < 2; i++) {
#define LONGEST \
    a.k.shape[1] = a.v.shape[1] = INT32_MAX; a.k.stride[1] = a.v.stride[1] = 0; a.seq_lens = NULL
        BAD(ERR_OVERFLOW, LONGEST; kv[i]->stride[1] = (int64_t)1 << 33);
        BAD(ERR_OVERFLOW, LONGEST; kv[i]->stride[1] = -((int64_t)1 << 33));
        BAD(ERR_OVERFLOW, LONGEST; kv[i]->stride[1] = (int64_t)1 << 31);     /* 2^62 elements of 4 bytes */
        BAD(ERR_OVERFLOW,
            LONGEST; kv[i]->stride[1] = (int64_t)1 << 33; kv[i]->stride[2] = (int64_t)1 << 35);
        BAD(ERR_OVERFLOW,
            a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = ((int64_t)1 << 31) + 1;
                          a.q.stride[0] = a.k.stride[0] = a.v.stride[0] = 0; a.seq_lens = NULL;
                          kv[i]->stride[0] = (int64_t)1 << 33);      /* 2^31 of these are 0 modulo 2^64 */
        reset();
        LONGEST;
        kv[i]->stride[1] = (int64_t)1 << 30; /* the largest power of two that fits */
        CHECK_STATUS(santa_check(&a, &o), sizeof(void *) < 8 ? SANTA_ERR_OVERFLOW : SANTA_OK);
    }
#undef LONGEST
}

/* Rows of results: as many as an audit of each has room for in memory, and one more. */
static void overflowing_rows(void) {
    const int64_t most = PTRDIFF_MAX / (int64_t)sizeof(santa_audit);
#define ONE_HEAD(rows) \
    a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = rows; \
    a.q.stride[0] = a.k.stride[0] = a.v.stride[0] = 0; \
    a.q.shape[1] = a.out.shape[1] = a.q.shape[2] = a.out.shape[2] = a.k.shape[2] = a.v.shape[2] = 1; \
    a.v.shape[3] = a.out.shape[3] = a.out.stride[0] = 1; a.seq_lens = NULL; a.sinks = a.alibi_slopes = NULL
    reset();
    ONE_HEAD(most);
    CHECK_STATUS(santa_check(&a, &o), SANTA_OK);
    BAD(ERR_OVERFLOW, ONE_HEAD(most + 1));
    BAD(ERR_OVERFLOW, ONE_HEAD(1); a.q.shape[1] = a.out.shape[1] = (int64_t)INT32_MAX + 1;
                      a.q.stride[1] = 0; a.out.stride[1] = 1);
    BAD(ERR_OVERFLOW, ONE_HEAD(1); a.q.shape[2] = a.out.shape[2] = (int64_t)INT32_MAX + 1;
                      a.q.stride[2] = 0; a.out.stride[2] = 1);
#undef ONE_HEAD
    /* 2^30 x 2^15 x 2^15 of them: the results themselves would fit */
    BAD(ERR_OVERFLOW, a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = (int64_t)1 << 30;
                      a.q.shape[1] = a.out.shape[1] = a.q.shape[2] = a.out.shape[2] = (int64_t)1 << 15;
                      for (int d = 0; d < 3; d++) a.q.stride[d] = a.k.stride[d] = a.v.stride[d] = 0;
                      a.v.shape[3] = a.out.shape[3] = 1; a.out.stride[0] = (int64_t)1 << 30;
                      a.out.stride[1] = (int64_t)1 << 15;
                      a.out.stride[2] = 1; a.seq_lens = NULL; a.sinks = a.alibi_slopes = NULL);
}

/* Heads times what each one's plan counts with may reach 2^56 and no more. Tensors of that size
   fit in 64 bits of address. */
static void overflowing_plans(void) {
    const int64_t heads = (int64_t)1 << 20, most = ((int64_t)1 << 36) - LEN - DIM;
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        for (int more = 0; more < 2; more++) {
            reset();
            set_method(m);
            a.std_error  = NULL;
            a.q.shape[2] = a.out.shape[2] = heads;
            a.k.shape[2] = a.v.shape[2] = 1;
            a.v.shape[3] = a.out.shape[3] = most + more;
            a.q.stride[2] = a.v.stride[0] = a.v.stride[1] = a.v.stride[2] = 0;
            a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = a.q.shape[1] = a.out.shape[1] = 1;
            a.out.stride[2] = most + more;
            a.sinks = a.alibi_slopes = NULL;
            const santa_status want = more || sizeof(void *) < 8 ? SANTA_ERR_OVERFLOW : SANTA_OK;
            CHECK_STATUS(santa_check(&a, &o), want);
            CHECK((santa_workspace_size(&a, &o) > 0) == (want == SANTA_OK));
        }
}

static void sequences(void) {
    BAD(ERR_SEQ_LEN, lens[0] = -1);
    BAD(ERR_SEQ_LEN, lens[1] = LEN + 1);
    BAD(ERR_SEQ_LEN, lens[1] = INT32_MAX);
    BAD(ERR_SEQ_LEN, lens[1] = INT32_MIN);
    GOOD(lens[0] = 0; lens[1] = LEN);
    BAD_PAGED(ERR_SEQ_LEN, lens[1] = LEN + 1);
    BAD_PAGED(ERR_SEQ_LEN, lens[0] = -1);
    BAD_PAGED(ERR_BLOCK_TABLE_SHAPE, a.max_pages = 0);
    BAD_PAGED(ERR_BLOCK_TABLE_SHAPE, a.max_pages = -1);
    BAD_PAGED(ERR_BLOCK_TABLE_SHAPE, a.block_table_stride = MAX_PAGES - 1);
    BAD_PAGED(ERR_BLOCK_TABLE_SHAPE, a.block_table_stride = -MAX_PAGES);
    static const int32_t wild[] = {-1, BATCH * MAX_PAGES, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        BAD_PAGED(ERR_BLOCK_TABLE, table[0] = wild[i]);
        BAD_PAGED(ERR_BLOCK_TABLE, table[3] = wild[i]); /* keys 48, 49: two of the 16 in use */
        BAD_PAGED(ERR_BLOCK_TABLE, table[2 * MAX_PAGES - 1] = wild[i]);
        GOOD_PAGED(table[4] = table[5] = wild[i]);                               /* past seq_lens[0] = 50 */
        BAD_PAGED(ERR_BLOCK_TABLE, table[4] = wild[i]; a.seq_lens = NULL);       /* now in use */
        GOOD_PAGED(lens[0] = 0; table[0] = wild[i]);
        GOOD_PAGED(lens[0] = 48; table[3] = wild[i]);                            /* three full pages */
        BAD_PAGED(ERR_BLOCK_TABLE, lens[0] = 49; table[3] = wild[i]);        /* and one key on the fourth */
        BAD_PAGED(ERR_BLOCK_TABLE, lens[0] = 1; table[0] = wild[i]);
        GOOD_PAGED(lens[0] = 1; table[1] = wild[i]);
        BAD_PAGED(ERR_BLOCK_TABLE, lens[1] = 5 * PAGE + 1; table[2 * MAX_PAGES - 1] = wild[i]);
        /* row 0 of sequence 1 is at 94: of 15 keys all are on the last page, the 16th is on the
           one before */
        GOOD_PAGED(a.window = 15; table[2 * MAX_PAGES - 2] = wild[i]);
        BAD_PAGED(ERR_BLOCK_TABLE, a.window = 16; table[2 * MAX_PAGES - 2] = wild[i]);
        GOOD_PAGED(a.window = 16; table[2 * MAX_PAGES - 3] = wild[i]);
        BAD_PAGED(ERR_BLOCK_TABLE, a.window = 15; a.first_tokens = 1; table[MAX_PAGES] = wild[i]);
        GOOD_PAGED(a.window = 15; a.first_tokens = PAGE; table[MAX_PAGES + 1] = wild[i]);
        BAD_PAGED(ERR_BLOCK_TABLE, a.window = 15; a.first_tokens = PAGE + 1;
                  table[MAX_PAGES + 1] = wild[i]);
        /* left padding that all rows but the last end in, or all of them */
        static const int32_t padded[BATCH] = {49, 0}, all_padded[BATCH] = {50, 0};
        GOOD_PAGED(a.causal = 1; a.kv_start = padded; table[0] = table[1] = table[2] = wild[i]);
        BAD_PAGED(ERR_BLOCK_TABLE, a.causal = 1; a.kv_start = padded; table[3] = wild[i]);
        GOOD_PAGED(a.causal = 1; a.kv_start = all_padded; table[3] = wild[i]);
    }
}

/* A scale for each row; the strides may be any, 0, too. */
static void set_scales(santa_tensor *t, santa_dtype type) {
    *t = santa_view(k, type, BATCH, LEN, KV_HEADS, 1);
}

static void row_scales(void) {
    santa_tensor *const scales[] = {&a.k_scales, &a.v_scales};
    for (int i = 0; i < 2; i++) {
        for (int type = SANTA_F32; type <= SANTA_BF16; type++)
            GOOD(set_scales(scales[i], (santa_dtype)type));
        GOOD(set_scales(scales[i], SANTA_F32); for (int d = 0; d < 4; d++) scales[i]->stride[d] = 0);
        GOOD(set_scales(scales[i], SANTA_Q8_0); scales[i]->shape[1] = -1; scales[i]->data = NULL);
        for (int d = 0; d < 4; d++) {
            BAD(ERR_ROW_SCALES, set_scales(scales[i], SANTA_F32); scales[i]->shape[d]++);
            BAD(ERR_SHAPE,      set_scales(scales[i], SANTA_F32); scales[i]->shape[d] = 0);
            BAD(ERR_OVERFLOW,   set_scales(scales[i], SANTA_F32); scales[i]->stride[d] = INT64_MAX);
        }
        BAD(ERR_ROW_SCALES,      set_scales(scales[i], SANTA_E4M3));
        BAD(ERR_DTYPE,           set_scales(scales[i], SANTA_F32); set_enum(&scales[i]->dtype, -1));
        BAD(ERR_DEVICE,          set_scales(scales[i], SANTA_F32); set_enum(&scales[i]->device, -1));
        BAD(ERR_DEVICE_MISMATCH, set_scales(scales[i], SANTA_F32); scales[i]->device = SANTA_CUDA);
        BAD_PAGED(ERR_ROW_SCALES, set_scales(scales[i], SANTA_F32));
        GOOD_PAGED(*scales[i] = santa_view(k, SANTA_F32, BATCH * MAX_PAGES, PAGE, KV_HEADS, 1));
    }
    reset_proxy();
    set_scales(&a.k_scales, SANTA_F32);
    a.k_scales.shape[2]++;
    EXPECT(ERR_ROW_SCALES, santa_proxy_encode(&a, 0, LEN, NULL));
    reset();
    set_scales(&a.v_scales, SANTA_E4M3);
    const int32_t index = 0;
    const float weight = 1.0f;
    EXPECT(ERR_ROW_SCALES, santa_gather(&a, 0, 0, &index, &weight, 1, got.out));
}

static void score_extras(void) {
    BAD(ERR_CAUSAL, a.causal = 2);
    BAD(ERR_CAUSAL, a.causal = -1);
    BAD(ERR_SM_SCALE, a.sm_scale = test_nan());
    BAD(ERR_SM_SCALE, a.sm_scale = positive_infinity());
    BAD(ERR_SM_SCALE, a.sm_scale = -positive_infinity());
    GOOD(a.sm_scale = -0.5f);
    BAD(ERR_SCALE, a.k_scale = test_nan());
    BAD(ERR_SCALE, a.k_scale = -1.0f);
    BAD(ERR_SCALE, a.v_scale = positive_infinity());
    BAD(ERR_SCALE, a.v_scale = -1e-30f);
    GOOD(a.k_scale = 0.5f; a.v_scale = 2.0f);
    row_scales();
    BAD(ERR_SOFT_CAP, a.soft_cap = test_nan());
    BAD(ERR_SOFT_CAP, a.soft_cap = positive_infinity());
    BAD(ERR_SOFT_CAP, a.soft_cap = -1.0f);
    GOOD(a.soft_cap = 20.0f);
    BAD(ERR_WINDOW, a.window = -1);
    BAD(ERR_WINDOW, a.window = INT64_MIN);
    GOOD(a.window = INT64_MAX);
    GOOD(a.window = 1);
    BAD(ERR_FIRST_TOKENS, a.first_tokens = 1);
    BAD(ERR_FIRST_TOKENS, a.window = 9; a.first_tokens = -1);
    BAD(ERR_FIRST_TOKENS, a.window = 9; a.first_tokens = (int64_t)1 << 31);
    GOOD(a.window = 9; a.first_tokens = INT32_MAX);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        const unsigned traits = santa_method_traits((santa_method)m);
        const int refused = (traits & (SANTA_ADAPTS | SANTA_SPARSE)) != 0;
        if (refused) BAD(ERR_FIRST_TOKENS_METHOD, a.window = 9; a.first_tokens = 4; set_method(m));
        else GOOD(a.window = 9; a.first_tokens = 4; set_method(m));
    }
    BAD(ERR_SINKS, sinks[0] = test_nan());
    BAD(ERR_SINKS, sinks[HEADS - 1] = positive_infinity());
    GOOD(sinks[1] = -positive_infinity());
    BAD(ERR_ALIBI, slopes[0] = test_nan());
    BAD(ERR_ALIBI, slopes[HEADS - 1] = positive_infinity());
    BAD(ERR_ALIBI, slopes[1] = -positive_infinity());
    GOOD(slopes[1] = -0.25f);
    static int32_t context[BATCH];
    context[0] = 60;
    context[1] = LEN + 10;
    BAD(ERR_FIRST_KEY, a.first_key = -1);
    BAD(ERR_FIRST_KEY, a.first_key = (int64_t)1 << 31);
    BAD(ERR_CONTEXT_LEN, a.first_key = 11; a.context_lens = context); /* 50 keys from 11 on are 61 */
    GOOD(a.first_key = 10; a.context_lens = context);
    BAD(ERR_CONTEXT_LEN, a.first_key = 10; a.context_lens = context; context[1]--);
    GOOD(a.first_key = INT32_MAX - LEN);               /* this part is the last one */
    BAD(ERR_FIRST_KEY, a.first_key = INT32_MAX - LEN + 1);
    static int32_t ended[BATCH];                       /* sequences that end before this part has a key */
    BAD(ERR_CONTEXT_LEN, a.first_key = 70; a.context_lens = context);
    GOOD(a.first_key = 70; a.context_lens = context; a.seq_lens = ended);
    GOOD(a.first_key = 70; a.context_lens = a.seq_lens = ended);
    BAD(ERR_CONTEXT_LEN, a.first_key = 70; a.context_lens = context; a.seq_lens = ended; context[1] = -1);
    context[1] = LEN + 9;
    static int32_t padding[BATCH];
    padding[0] = 0;
    padding[1] = 5;
    BAD(ERR_FIRST_TOKENS, a.first_key = 10; a.context_lens = context; a.window = 9; a.first_tokens = 4;
        context[1]++; a.kv_start = padding);
    GOOD(a.context_lens = context; a.window = 9; a.first_tokens = 4; a.kv_start = padding);
    GOOD(a.context_lens = context; a.window = 9; a.first_tokens = LEN - 5; a.kv_start = padding);
    BAD(ERR_FIRST_TOKENS,
        a.context_lens = context; a.window = 9; a.first_tokens = LEN - 4; a.kv_start = padding);
    GOOD(a.window = 9; a.first_tokens = LEN - 4; a.kv_start = padding);
    GOOD(a.first_key = 10; a.context_lens = context; a.window = 9; a.first_tokens = 4; a.kv_start = padding;
         padding[1] = 0);
    static int32_t start[BATCH];
    start[0] = 0;
    start[1] = (int32_t)lens[1];
    GOOD(a.kv_start = start);
    BAD(ERR_KV_START, a.kv_start = start; start[1]++);
    BAD(ERR_KV_START, a.kv_start = start; start[1] = 0; start[0] = -1);
    static int32_t keys[BATCH * KV_HEADS * 3], counts[BATCH * KV_HEADS];
    static float counted[BATCH * KV_HEADS * 3];
    for (int i = 0; i < BATCH * KV_HEADS * 3; i++) { keys[i] = i % 3 - 1; counted[i] = 1.0f; }
    for (int i = 0; i < BATCH * KV_HEADS; i++) counts[i] = 3;
#define LISTS set_method(SANTA_DENSE); a.std_error = NULL; a.key_list = keys; a.key_list_lens = counts; \
              a.key_weights = counted; a.max_list = 3
    GOOD(LISTS);
    GOOD(LISTS; counted[0] = 0.0f; counts[1] = 0);
    BAD(ERR_KEY_LIST_SHAPE, LISTS; a.max_list = 0);
    BAD(ERR_KEY_LIST_SHAPE, LISTS; a.key_list_stride = 2);
    BAD(ERR_KEY_LIST_SHAPE, LISTS; a.key_list_rows = -1);
    BAD(ERR_TOO_LONG, LISTS; a.max_list = (int64_t)1 << 31);
    BAD(ERR_OVERFLOW, LISTS; a.key_list_stride = INT64_MAX);
    BAD(ERR_KEY_LIST_METHOD, LISTS; o.method = SANTA_IID);
    BAD(ERR_KEY_LIST_METHOD, LISTS; o.scores = SANTA_SCORES_BERNOULLI_IID);
    BAD(ERR_KEY_LIST, LISTS; counts[1] = 3; keys[5] = (int32_t)lens[0]);
    BAD(ERR_KEY_LIST, LISTS; keys[5] = 1; counts[1] = 4);
    BAD(ERR_KEY_LIST, LISTS; counts[1] = -1);
    BAD(ERR_KEY_WEIGHT, LISTS; counts[1] = 3; counted[5] = -0.5f);
    BAD(ERR_KEY_WEIGHT, LISTS; counted[5] = test_nan());
    BAD(ERR_KEY_WEIGHT, LISTS; counted[5] = 1.0f; a.key_list = NULL);
#undef LISTS
}

static int no_exchange(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    (void)user; (void)mine; (void)bytes; (void)all; (void)stream;
    return 1;
}

static void ranks(void) {
    BAD(ERR_RANKS, o.ranks.count = -1);
    BAD(ERR_RANKS, o.ranks.count = 65537; o.ranks.all_gather = no_exchange);
    BAD(ERR_RANKS, o.ranks.count = 2);
    BAD(ERR_RANKS, o.ranks.rank = 1);
    BAD(ERR_RANKS, o.ranks.count = 2; o.ranks.rank = 2; o.ranks.all_gather = no_exchange);
    BAD(ERR_RANKS, o.ranks.count = 2; o.ranks.rank = -1; o.ranks.all_gather = no_exchange);
    GOOD(o.ranks.count = 1; o.ranks.all_gather = no_exchange);
    BAD(ERR_RANKS_METHOD, o.method = SANTA_SAMPLE_ATTENTION; o.ranks.count = 2;
        o.ranks.all_gather = no_exchange);
    BAD(ERR_RANKS_METHOD, o.method = SANTA_SYS; o.dense_below = 9; o.ranks.count = 2;
        o.ranks.all_gather = no_exchange);
    reset();
    set_method(SANTA_DENSE);
    a.std_error = NULL;
    o.ranks.count = 2;
    o.ranks.all_gather = no_exchange;
    static unsigned char workspace[SCRATCH];        /* it is written: the call had begun */
    EXPECT(ERR_RANKS_EXCHANGE, santa_decode(&a, &o, workspace, SCRATCH, &got.stats));
}

/* Every method has a name of its own that leads back to it, and a problem has no zero that
   means something else. */
static void methods_and_problems(void) {
    santa_problem p;
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        CHECK_INT(santa_method_from_name(santa_method_name((santa_method)m)), m);
        CHECK(santa_method_traits((santa_method)m) != 0);
    }
    CHECK_INT(santa_method_from_name("topk"), SANTA_METHOD_COUNT);
    CHECK_INT(santa_method_from_name(""), SANTA_METHOD_COUNT);
    CHECK_INT(santa_method_from_name(NULL), SANTA_METHOD_COUNT);
    CHECK(!strcmp(santa_method_name(SANTA_METHOD_COUNT), "not a santa_method"));
    CHECK_INT(santa_method_traits(SANTA_METHOD_COUNT), 0);
    CHECK(!strcmp(santa_method_name(SANTA_TOP_K), "top-k") &&
          santa_method_traits(SANTA_DENSE) == SANTA_EXACT);
    reset();
    o.num_samples = 0;
    CHECK_STATUS(santa_problem_make(&a, &o, &p), SANTA_OK);
    CHECK(p.batch == BATCH && p.q_len == ROWS && p.heads == HEADS && p.kv_heads == KV_HEADS &&
          p.group == HEADS / KV_HEADS);
    CHECK(p.head_dim == DIM && p.head_dim_v == DIM_V && p.capacity == LEN);
    CHECK(p.o.num_samples == 128 && p.o.tile_size == 256 && p.o.num_combs == 1 && p.o.bernoulli_draws == 4);
    CHECK(p.o.stash == SANTA_STASH_F32 && p.o.num_threads == 1 && p.o.dense_below == 0);
    CHECK_INT(p.a.proxy_bits, 4);
    const santa_isa best = santa_best_isa();         /* AMX has nothing to do here */
    CHECK(p.o.isa == (best == SANTA_ISA_AMX ? SANTA_ISA_AVX512 : best));
    CHECK(p.o.item_begin == 0 && p.o.item_end == BATCH * KV_HEADS);
    CHECK(p.o.vattention.sink_tokens == 128 && p.o.vattention.heavy_tokens == SANTA_AUTO);
    CHECK(p.o.vattention.base_samples == SANTA_AUTO);
    CHECK_NEAR(p.o.vattention.epsilon, 0.05, 0.0, 0.0);
    CHECK_NEAR(p.scale, 1.0 / sqrt((double)DIM), 0.0, 1e-7);
    CHECK_NEAR(p.v_scale, 1.0, 0.0, 0.0);
    o.dense_below = SANTA_AUTO;
    a.sm_scale = 0.5f; a.k_scale = 4.0f; a.v_scale = 3.0f;
    CHECK_STATUS(santa_problem_make(&a, &o, &p), SANTA_OK);
    CHECK_INT(p.o.dense_below, 16 * 128);
    set_method(SANTA_VATTENTION);
    o.vattention.sink_tokens = SANTA_NONE;
    CHECK_STATUS(santa_problem_make(&a, &o, &p), SANTA_OK);
    CHECK_INT(p.o.vattention.sink_tokens, 0);
    CHECK_NEAR(p.scale, 2.0, 0.0, 0.0);
    CHECK_NEAR(p.v_scale, 3.0, 0.0, 0.0);
    memset(&p, 0x5a, sizeof p);
    const santa_problem before = p;
    o.num_samples = -1;
    CHECK_STATUS(santa_problem_make(&a, &o, &p), SANTA_ERR_NUM_SAMPLES);
    CHECK(!memcmp(&p, &before, sizeof p));
    CHECK_STATUS(santa_problem_make(&a, &o, NULL), SANTA_ERR_NULL_ARGUMENT);
    CHECK_STATUS(santa_problem_make(NULL, &o, &p), SANTA_ERR_NULL_ARGUMENT);
    CHECK_STATUS(santa_problem_make(&a, NULL, &p), SANTA_ERR_NULL_ARGUMENT);
}

static void method_options(void) {
    BAD(ERR_METHOD, o.method = SANTA_METHOD_COUNT);
    BAD(ERR_METHOD, set_enum(&o.method, -1));
    const int wild[] = { -1, SANTA_METHOD_COUNT, INT32_MAX };
    for (int i = 0; i < 3; i++) {                   /* what looks at a method before a problem is checked */
        int64_t rows, columns;
        reset();
        set_enum(&o.method, wild[i]);
        CHECK_STATUS(santa_mask_shape(&a, &o, &rows, &columns), SANTA_ERR_METHOD);
        CHECK_INT(santa_sample_capacity(LEN, &o), 0);
        CHECK_INT(santa_sample_workspace_size(LEN, &o), 0);
        CHECK_INT(santa_method_traits(o.method), 0);
    }
    BAD(ERR_NUM_SAMPLES, o.num_samples = -1);
    BAD(ERR_NUM_SAMPLES, o.num_samples = INT64_MIN);
    for (int m = SANTA_IID; m <= SANTA_FLASH; m++) {
        BAD(ERR_NUM_SAMPLES, o.method = (santa_method)m; o.num_samples = SANTA_MAX_SAMPLES + 1);
        BAD(ERR_NUM_SAMPLES, o.method = (santa_method)m; o.num_samples = INT64_MAX);
        reset();
        o.method      = (santa_method)m;
        o.num_samples = SANTA_MAX_SAMPLES;
        CHECK_STATUS(santa_check(&a, &o), SANTA_OK);
        CHECK(santa_workspace_size(&a, &o) > 0 && santa_sample_capacity(LEN, &o) == LEN);
    }
    CHECK_INT(SANTA_MAX_SAMPLES, 1 << 20);
    BAD(ERR_NUM_SAMPLES, o.method = SANTA_TOP_K; a.std_error = NULL; o.num_samples = -1);
    static const int64_t bad_tiles[] = {-64, -1, 1, 7, 63, 65, 100, INT64_MIN};
    for (size_t i = 0; i < sizeof bad_tiles / sizeof *bad_tiles; i++) {
        BAD(ERR_TILE_SIZE, o.method = SANTA_PROP;  o.tile_size = bad_tiles[i]);
        BAD(ERR_TILE_SIZE, o.method = SANTA_FLASH; o.tile_size = bad_tiles[i]);
    }
    for (int t = 8; t <= 32; t *= 2) {
        BAD(ERR_TILE_SIZE, o.method = SANTA_PROP; o.tile_size = t);
        GOOD(o.method = SANTA_FLASH; o.tile_size = t);
    }
    GOOD(o.method = SANTA_PROP; o.tile_size = 64);
    BAD(ERR_OPTION_UNUSED, o.method = SANTA_SYS; o.tile_size = 64); /* not accepted and ignored */
    static const double bad_p[] = {-0.1, -1.0, 1.0000001, 2.0};
    for (int i = 0; i < 4; i++)
        BAD(ERR_TOP_P, o.method = SANTA_TOP_P; a.std_error = NULL; o.top_p = bad_p[i]);
    BAD(ERR_TOP_P, o.method = SANTA_TOP_P; a.std_error = NULL; o.top_p = nan_d());
    BAD(ERR_TOP_P, o.method = SANTA_TOP_P; a.std_error = NULL; o.top_p = infinity_d());
    GOOD(set_method(SANTA_TOP_P); o.top_p = 1.0);
    GOOD(set_method(SANTA_TOP_P); o.top_p = 1e-300);
    BAD(ERR_STASH, set_enum(&o.stash, 4));
    BAD(ERR_STASH, set_enum(&o.stash, -1));
    for (int s = SANTA_STASH_DEFAULT; s <= SANTA_STASH_U8; s++) GOOD(o.stash = (santa_stash)s);
    BAD(ERR_SCORES, set_enum(&o.scores, SANTA_SCORES_PROXY + 1));
    BAD(ERR_SCORES_Q8, o.scores = SANTA_SCORES_Q8);
    BAD_Q8_0(ERR_SCORES_Q8, o.scores = SANTA_SCORES_Q8; a.k.dtype = SANTA_F16);
    GOOD_Q8_0(o.scores = SANTA_SCORES_Q8);
    GOOD_Q8_0(o.scores = SANTA_SCORES_Q8; a.v.dtype = SANTA_E4M3);
    BAD(ERR_SCORES, set_enum(&o.scores, -1));
    for (int s = SANTA_SCORES_BERNOULLI_IID; s <= SANTA_SCORES_GROUP_STRAT; s++) {
        BAD(ERR_BERNOULLI_DRAWS, o.scores = (santa_scores_method)s; o.bernoulli_draws = -1);
        BAD(ERR_BERNOULLI_DRAWS, o.scores = (santa_scores_method)s; o.bernoulli_draws = 65537);
        BAD(ERR_BERNOULLI_DRAWS, o.scores = (santa_scores_method)s; o.bernoulli_draws = INT64_MAX);
        GOOD(o.scores = (santa_scores_method)s; o.bernoulli_draws = 65536; a.seq_lens = NULL);
    }
    BAD(ERR_STD_ERROR, o.method = SANTA_TOP_K);
    BAD(ERR_STD_ERROR, o.method = SANTA_TOP_P);
    BAD(ERR_ISA, set_enum(&o.isa, 99));
    BAD(ERR_ISA, set_enum(&o.isa, -1));
    for (int i = SANTA_ISA_AUTO; i < SANTA_ISA_COUNT; i++) {
        if (santa_isa_supported((santa_isa)i)) GOOD(o.isa = (santa_isa)i);
        else                                   BAD(ERR_ISA, o.isa = (santa_isa)i);
    }
    CHECK(!santa_isa_supported(SANTA_ISA_AVX512) || santa_isa_supported(SANTA_ISA_AVX2));
    CHECK(!santa_isa_supported(SANTA_ISA_NEON) || !santa_isa_supported(SANTA_ISA_AVX2));
    BAD(ERR_COMBS, o.method = SANTA_SYS; o.num_combs = -1);
    BAD(ERR_COMBS, o.method = SANTA_SYS; o.num_combs = SANTA_MAX_COMBS + 1; o.num_samples = 17 * 16);
    BAD(ERR_COMBS, o.method = SANTA_SYS; o.num_combs = 3);                       /* of 16 draws */
    BAD(ERR_COMBS, o.method = SANTA_FLASH; o.num_combs = 16; o.num_samples = 8);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        const int has = m == SANTA_SYS || m == SANTA_PROP || m == SANTA_FLASH;
        if (has) GOOD(o.method = (santa_method)m; o.num_combs = SANTA_MAX_COMBS);
        else     BAD(ERR_OPTION_UNUSED, o.method = (santa_method)m; a.std_error = NULL; o.num_combs = 2);
        GOOD(set_method(m); o.num_combs = 1);
    }
    GOOD(o.method = SANTA_SYS; o.num_samples = 0; o.num_combs = 4); /* the default, 128, divides */
    BAD(ERR_DENSE_BELOW, o.dense_below = SANTA_AUTO - 1);
    BAD(ERR_DENSE_BELOW, o.dense_below = INT64_MIN);
    GOOD(o.dense_below = SANTA_AUTO);
    GOOD(o.dense_below = INT64_MAX);
    GOOD(set_method(SANTA_TOP_K); o.num_samples = INT64_MAX); /* of which no default may be made */
    for (int m = SANTA_TOP_K; m <= SANTA_VATTENTION; m++)
        BAD(ERR_OPTION_UNUSED, set_method(m); o.dense_below = SANTA_AUTO);
}

static void serial_for(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = count; i-- > 0;) task(context, i);
}

static int64_t no_keys(void *user, int64_t batch, int64_t q_index, int64_t head, const float *query,
                       int64_t begin, int64_t end, int64_t count, int32_t *index) {
    (void)user; (void)batch; (void)q_index; (void)head; (void)query;
    (void)begin; (void)end; (void)count; (void)index;
    return 0;
}

/* The call as it is, in which `name` is set: whether it is refused for that, and what clearing
   does. */
static void expect_unused(const char *name, int is_unused, santa_status without, int line) {
    const char *unused = santa_unused_option(&o);
    const santa_options before = o;
    test_check(is_unused ? unused && !strcmp(unused, name) : !unused, __FILE__, line,
               "%s of %s: %s is unused, want %s", name, santa_method_name(o.method),
               unused ? unused : "nothing", is_unused ? "that it is" : "nothing");
    if (is_unused && without == SANTA_OK) expect_decode(SANTA_ERR_OPTION_UNUSED, name, line);
    santa_clear_unused_options(&o);
    test_check(!santa_unused_option(&o), __FILE__, line, "%s of %s stays", name,
               santa_method_name(o.method));
    test_check(is_unused == (memcmp(&o, &before, sizeof o) != 0), __FILE__, line, "%s of %s: %s", name,
               santa_method_name(o.method), is_unused ? "is not cleared" : "something is cleared");
}

/* Which options each method reads, by hand; the values are valid and no defaults. */
static void unused_options(void) {
    static const santa_scores_method scores[] = {SANTA_SCORES_EXACT, SANTA_SCORES_BERNOULLI_IID,
                                                 SANTA_SCORES_GROUP_STRAT, SANTA_SCORES_PROXY};
    static const int32_t keys[8 * BATCH * HEADS] = {0};
    static const uint8_t mask[256] = {0};
    enum { B = 6, C = 8, ANY = 15 };         /* of scores: Bernoulli's, the copy's, all */
#define M(method) (1u << SANTA_##method)
    const unsigned combs = M(SYS) | M(PROP) | M(FLASH), all = (1u << SANTA_METHOD_COUNT) - 1,
                   draws = M(IID) | M(STRAT) | combs | M(PPS);
#define OPTION(field, value, methods, by)                                                                  \
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)                                                           \
        for (int s = 0; s < 4; s++) {                                                                      \
            reset();                                                                                       \
            o.scores = scores[s];                                                                          \
            a.proxy  = got.copy;                                                                           \
            set_method(m);                                                                                 \
            const santa_status without = santa_check(&a, &o);                                              \
            o.field = value;                                                                               \
            expect_unused(#field, !((methods) >> m & 1u && (by) >> s & 1), without, __LINE__);             \
        }
    OPTION(num_samples, 32, all, ANY)               /* of all, whoever draws */
    OPTION(top_p, 0.5, M(TOP_P), ANY)
    OPTION(tile_size, 64, M(PROP) | M(FLASH), ANY - C)
    OPTION(stash, SANTA_STASH_U8, draws | (scores[s] == SANTA_SCORES_PROXY ? M(TOP_K) : 0u), ANY)
    OPTION(num_combs, 2, combs, ANY)
    OPTION(dense_below, SANTA_AUTO, draws, ANY)
    OPTION(dense_below, 500, draws, ANY)
    OPTION(bernoulli_draws, 5, all, B)
    OPTION(vattention.sink_tokens, SANTA_NONE, M(VATTENTION), ANY)
    OPTION(vattention.local_tokens, 7, M(VATTENTION), ANY)
    OPTION(vattention.heavy_tokens, 7, M(VATTENTION), ANY)
    OPTION(vattention.base_samples, 7, M(VATTENTION), ANY)
    OPTION(vattention.epsilon, 0.1, M(VATTENTION), ANY)
    OPTION(vattention.delta, 0.1, M(VATTENTION), ANY)
    OPTION(vattention.guarantee, SANTA_GUARANTEE_FULL, M(VATTENTION), ANY)
    OPTION(vattention.bound, SANTA_BOUND_HOEFFDING, M(VATTENTION), ANY)
    OPTION(vattention.audit, got.audit, M(VATTENTION), ANY)
    OPTION(proxy.sink_tokens, SANTA_NONE, all - M(SAAP), C)
    OPTION(proxy.local_tokens, 7, all - M(SAAP), C)
    OPTION(proxy.rescue_keys, 7, draws, C)
    OPTION(proxy.rescue_above, 0.5, draws, C)
    OPTION(proxy.exact_above, SANTA_NONE, draws, C)
    OPTION(saap.num_probes, 7, M(SAAP), ANY)
    OPTION(saap.sink_tokens, 7, M(SAAP), ANY)
    OPTION(saap.local_tokens, 7, M(SAAP), ANY)
    OPTION(saap.uniform_share, 0.5, M(SAAP), ANY)
    OPTION(saap.measure_mass, 1, M(SAAP), ANY)
    OPTION(sample_attention.alpha_columns, 0.5, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.alpha_slashes, SANTA_NONE, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.num_chunks, 3, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.block_size, 128, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.per_head, 1, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.dense_above, 0.5, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.mask, mask, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.mask_out, got.mask, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.audit, got.sampled, M(SAMPLE_ATTENTION), ANY)
    OPTION(sample_attention.row_mass, got.row_mass, M(SAMPLE_ATTENTION), ANY)
#undef OPTION
#undef M
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {                  /* what fits every call */
        reset();
        set_method(m);
        o.seed = o.offset = 5;
        o.parallel_for = serial_for;
        o.vattention.heavy_user = o.parallel_user = o.stream = o.ranks.user = &o;
        o.num_threads = 2;
        o.item_end = 1;
        CHECK(!santa_unused_option(&o));
    }
    BAD_VATTENTION(ERR_OPTION_UNUSED, o.vattention.heavy_stride = 3);
    GOOD_VATTENTION(o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys;
                    o.vattention.heavy_stride = 3);
    BAD(ERR_OPTION_UNUSED, o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys);
    BAD(ERR_OPTION_UNUSED, o.vattention.heavy = no_keys);
#define BY_COPY reset_vattention(); o.scores = SANTA_SCORES_PROXY; a.proxy = got.copy
    GOOD(BY_COPY);
    BAD(ERR_OPTION_UNUSED, BY_COPY; o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys);
    BAD(ERR_OPTION_UNUSED, BY_COPY; o.vattention.heavy = no_keys);
    CHECK(!strcmp(santa_unused_option(&o), "scores"));
    BAD(ERR_OPTION_UNUSED, BY_COPY; o.vattention.heavy_tokens = SANTA_NONE);
#undef BY_COPY
    GOOD_SPARSE(o.sample_attention.mask = mask; o.sample_attention.block_size = 128);
    BAD_SPARSE(ERR_OPTION_UNUSED, o.sample_attention.mask = mask; o.sample_attention.per_head = 1);
    CHECK(!strcmp(santa_unused_option(&o), "sample_attention.per_head"));
    GOOD(set_method(SANTA_SAAP); a.std_error = NULL; o.num_samples = SANTA_NONE);
    BAD(ERR_OPTION_UNUSED, set_method(SANTA_SAAP); a.std_error = NULL; o.num_samples = SANTA_NONE;
        o.saap.uniform_share = 0.5);
    CHECK(!santa_unused_option(NULL));
    santa_clear_unused_options(NULL);
    reset();
    set_enum(&o.method, SANTA_METHOD_COUNT);
    const santa_options before = o;
    CHECK(!santa_unused_option(&o));
    santa_clear_unused_options(&o);
    CHECK(!memcmp(&o, &before, sizeof o));
}

/* Zeros and the defaults, written out, are read by every method as nothing at all; no option is
   missing in the list. */
static void option_list(void) {
    unsigned char known[sizeof(santa_options)] = {0};
    santa_problem p;
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        for (int s = 0; s <= SANTA_SCORES_PROXY; s++) {
#define X(field, kind, by_default, reader)                                                                 \
    memset(&o, 0, sizeof o);                                                                               \
    o.method = (santa_method)m;                                                                            \
    o.scores = (santa_scores_method)s;                                                                     \
    CHECK(!santa_unused_option(&o));                                                                       \
    o.field = by_default;                                                                                  \
    CHECK_MSG(!santa_unused_option(&o), "%s: the default of %s", santa_method_name(o.method), #field);
            SANTA_OPTION_LIST(X)
#undef X
        }
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {                  /* the defaults are those in the list */
        reset();
        memset(&o, 0, sizeof o);
        set_method(m);
        if (!CHECK_STATUS(santa_problem_make(&a, &o, &p), SANTA_OK)) continue;
        CHECK_INT(p.o.proxy.rescue_keys, 256);
        p.o.vattention.heavy_tokens = p.o.vattention.base_samples = 0;
        p.o.proxy.rescue_keys = p.o.saap.num_probes = p.o.saap.local_tokens = 0;
        p.o.proxy.exact_above = 0.0;
        const char *name = santa_unused_option(&p.o);
        CHECK_MSG(!name, "%s: %s", santa_method_name(o.method), name);
    }
#define KNOWN(field) \
    for (size_t i = 0; i < sizeof o.field; i++) known[offsetof(santa_options, field) + i] = 1;
#define X(field, kind, by_default, reader) KNOWN(field)
    SANTA_OPTION_LIST(X)
#undef X
    KNOWN(method) KNOWN(num_samples) KNOWN(seed) KNOWN(offset) KNOWN(seeds) KNOWN(offsets)
    KNOWN(request_ids) KNOWN(vattention.heavy_user) KNOWN(ranks) KNOWN(isa) KNOWN(num_threads)
    KNOWN(parallel_for) KNOWN(parallel_user) KNOWN(item_begin) KNOWN(item_end) KNOWN(stream)
#undef KNOWN
    int run = 0; /* what lies between fields is shorter than one */
    for (size_t i = 0; i < sizeof o; i++) {
        run = known[i] ? 0 : run + 1;
        CHECK_MSG(run < 8, "the option %lu bytes from the start is not in the list", (unsigned long)i - 7);
    }
}

static void threads_and_items(void) {
    BAD(ERR_THREADS, o.num_threads = -1);
    BAD(ERR_THREADS, o.num_threads = INT64_MIN);
#ifdef _OPENMP
    GOOD(o.num_threads = 2);
#else
    BAD(ERR_THREADS, o.num_threads = 2);
#endif
    GOOD(o.num_threads = 1);
    GOOD(o.num_threads = 3; o.parallel_for = serial_for);
    BAD(ERR_THREADS, o.num_threads = (int64_t)INT32_MAX + 1; o.parallel_for = serial_for);
    GOOD(o.parallel_for = serial_for);
    const int64_t items = BATCH * KV_HEADS;
    BAD(ERR_ITEMS, o.item_begin = -1; o.item_end = 1);
    BAD(ERR_ITEMS, o.item_end = items + 1);
    BAD(ERR_ITEMS, o.item_end = -1);
    BAD(ERR_ITEMS, o.item_begin = 2; o.item_end = 1);
    BAD(ERR_ITEMS, o.item_begin = 1); /* end 0 means "all" only with begin 0 */
    BAD(ERR_ITEMS, o.item_begin = INT64_MIN; o.item_end = INT64_MAX);
    GOOD(o.item_end = items);
    GOOD(o.item_begin = items - 1; o.item_end = items);
}

static void vattention_options(void) {
    BAD_VATTENTION(ERR_VATTENTION_TOKENS, o.vattention.sink_tokens  = -2);
    BAD_VATTENTION(ERR_VATTENTION_TOKENS, o.vattention.local_tokens = -2);
    BAD_VATTENTION(ERR_VATTENTION_TOKENS, o.vattention.heavy_tokens = INT64_MIN);
    static const int32_t keys[8 * BATCH * HEADS] = {0};
    GOOD_VATTENTION(o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys);
    GOOD_VATTENTION(o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys;
                    o.vattention.heavy_stride = 2);
    BAD_VATTENTION(ERR_OPTION_UNUSED, o.vattention.heavy_stride = 3);
    BAD_VATTENTION(ERR_OPTION_UNUSED, o.vattention.heavy = no_keys; o.vattention.heavy_tokens = SANTA_NONE);
    CHECK(!strcmp(santa_unused_option(&o), "vattention.heavy"));
    BAD_VATTENTION(ERR_HEAVY_INDEX, o.vattention.heavy_index = keys);
    BAD_VATTENTION(ERR_HEAVY_INDEX, o.vattention.heavy_stride = -1);
    BAD_VATTENTION(ERR_HEAVY_INDEX, o.vattention.heavy_tokens = SANTA_NONE;
                   o.vattention.heavy_index = keys);
    BAD_VATTENTION(ERR_HEAVY_INDEX, o.vattention.heavy_tokens = 3; o.vattention.heavy_index = keys;
                   o.vattention.heavy_stride = 2);
    BAD_VATTENTION(ERR_HEAVY_INDEX, o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys;
                   o.vattention.heavy = no_keys);
    BAD_VATTENTION(ERR_OVERFLOW, o.vattention.heavy_tokens = INT64_MAX; o.vattention.heavy_index = keys);
    BAD_VATTENTION(ERR_OVERFLOW, o.vattention.heavy_tokens = 2; o.vattention.heavy_index = keys;
                   o.vattention.heavy_stride = INT64_MAX);
    BAD_VATTENTION(ERR_BASE_SAMPLES,      o.vattention.base_samples = 1);
    BAD_VATTENTION(ERR_BASE_SAMPLES,      o.vattention.base_samples = -1);
    BAD_VATTENTION(ERR_BASE_SAMPLES,      o.vattention.base_samples = INT64_MIN);
    static const double outside[] = {-0.05, 1.0, 1.5, 1e300};
    for (int i = 0; i < 4; i++) {
        BAD_VATTENTION(ERR_EPSILON, o.vattention.epsilon = outside[i]);
        BAD_VATTENTION(ERR_DELTA,   o.vattention.delta   = outside[i]);
    }
    BAD_VATTENTION(ERR_EPSILON, o.vattention.epsilon = nan_d());
    BAD_VATTENTION(ERR_DELTA,   o.vattention.delta   = nan_d());
    BAD_VATTENTION(ERR_EPSILON, o.vattention.epsilon = infinity_d());
    BAD_VATTENTION(ERR_DELTA,   o.vattention.delta   = -infinity_d());
    BAD_VATTENTION(ERR_DELTA,   o.vattention.delta   = 4.9e-324);
    BAD_VATTENTION(ERR_DELTA,   o.vattention.delta   = 0.99e-290);
    GOOD_VATTENTION(o.vattention.delta = 1e-290);
    BAD_VATTENTION(ERR_BOUND,     set_enum(&o.vattention.bound, 2));
    BAD_VATTENTION(ERR_BOUND,     set_enum(&o.vattention.bound, -1));
    BAD_VATTENTION(ERR_GUARANTEE, set_enum(&o.vattention.guarantee, 2));
    BAD_VATTENTION(ERR_GUARANTEE, set_enum(&o.vattention.guarantee, -1));
    GOOD_VATTENTION(o.vattention.delta = 0.9; o.vattention.epsilon = 1e-300);
    GOOD_VATTENTION(o.vattention.delta = 0.9; o.vattention.guarantee = SANTA_GUARANTEE_FULL);
    GOOD_VATTENTION(o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens =
                        SANTA_NONE);
    GOOD_VATTENTION(o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens =
                        INT64_MAX);
    GOOD_VATTENTION(o.vattention.base_samples = INT64_MAX);
}

static void sparse_options(void) {
    static const double bad[] = {-0.5, 1.0000001, 2.0, -1.0000001, -1e300};
    static const int64_t chunks[] = {-1, 65, INT64_MAX, INT64_MIN},
                         sizes[] = {-64, 1, 32, 63, 65, 127, 129, 256};
    static const int32_t context[BATCH] = {120, 130};
    static uint8_t mask[256];
    int64_t q_blocks, k_blocks;
    memset(mask, 1, sizeof mask);
    BAD_SPARSE(ERR_STD_ERROR, a.std_error = got.std_error);
    GOOD_SPARSE((void)0);
    for (int i = 0; i < 5; i++) {
        BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.alpha_columns = bad[i]);
        BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.alpha_slashes = bad[i]);
        BAD(ERR_SAMPLE_ATTENTION, o.sample_attention.alpha_slashes = bad[i]);    /* of any method */
    }
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.alpha_columns = nan_d());
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.alpha_slashes = nan_d());
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.alpha_slashes = infinity_d());
    for (int i = 0; i < 4; i++) BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.num_chunks = chunks[i]);
    for (int i = 0; i < 8; i++) BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.block_size = sizes[i]);
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.per_head = 2);
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.per_head = -1);
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.dense_above = -0.5);
    BAD_SPARSE(ERR_SAMPLE_ATTENTION, o.sample_attention.dense_above = nan_d());
    GOOD_SPARSE(o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = SANTA_NONE);
    GOOD_SPARSE(o.sample_attention.alpha_columns = 1e-300; o.sample_attention.alpha_slashes = 1.0);
    GOOD_SPARSE(o.sample_attention.num_chunks = 64);
    GOOD_SPARSE(o.sample_attention.num_chunks = 1; o.sample_attention.block_size = 128);
    GOOD_SPARSE(o.sample_attention.per_head = 1; o.sample_attention.dense_above = SANTA_NONE);
    GOOD_SPARSE(o.sample_attention.mask = mask);
    BAD_SPARSE(ERR_SAMPLE_CAUSAL, a.causal = 0);
    BAD_SPARSE(ERR_SAMPLE_CAUSAL, a.context_lens = context);
    GOOD_SPARSE(o.sample_attention.mask = mask; a.causal = 0);
    GOOD_SPARSE(o.sample_attention.mask = mask; a.context_lens = context);
    GOOD_SPARSE(memset(&o.sample_attention, 0, sizeof o.sample_attention); a.causal = 0);
    BAD_SPARSE(ERR_SAMPLE_CAUSAL, memset(&o.sample_attention, 0, sizeof o.sample_attention); a.causal = 0;
               a.q.shape[1] = a.out.shape[1] = 32; a.out.stride[0] = 32 * HEADS * DIM_V);
    for (int s = SANTA_SCORES_BERNOULLI_IID; s <= SANTA_SCORES_GROUP_STRAT; s++)
        BAD_SPARSE(ERR_SAMPLE_SCORES, o.scores = (santa_scores_method)s);
    reset_sparse();
    EXPECT(ERR_NULL_ARGUMENT, santa_mask_shape(&a, &o, NULL, &k_blocks));
    EXPECT(ERR_NULL_ARGUMENT, santa_mask_shape(&a, &o, &q_blocks, NULL));
    EXPECT(ERR_NULL_ARGUMENT, santa_mask_shape(NULL, &o, &q_blocks, &k_blocks));
    EXPECT(OK, santa_mask_shape(&a, &o, &q_blocks, &k_blocks));
    CHECK_INT(q_blocks, 2);
    CHECK_INT(k_blocks, 2);
    o.sample_attention.block_size = 128;
    EXPECT(OK, santa_mask_shape(&a, &o, &q_blocks, &k_blocks));
    CHECK_INT(k_blocks, 1);
    o.sample_attention.block_size = 100;
    EXPECT(ERR_SAMPLE_ATTENTION, santa_mask_shape(&a, &o, &q_blocks, &k_blocks));
    /* more blocks than there are numbers */
    BAD_SPARSE(ERR_OVERFLOW, a.q.shape[2] = a.out.shape[2] = (int64_t)1 << 30; a.q.stride[2] = 0;
               a.q.shape[1] = a.out.shape[1] = INT32_MAX; a.q.stride[1] = 0; a.out.stride[2] = 1;
               a.v.shape[3] = a.out.shape[3] = 1; a.out.stride[1] = (int64_t)1 << 30;
               a.k.shape[1] = a.v.shape[1] = INT32_MAX; a.k.stride[1] = a.v.stride[1] = 0);
}

static void proxy_options(void) {
    static const double bad[] = {-0.5, -2.0, -1e300};
    GOOD_PROXY((void)0);
    GOOD_PROXY_PAGED((void)0);
    BAD_PROXY(ERR_PROXY_NULL, a.proxy = NULL);
    BAD_PROXY_PAGED(ERR_PROXY_NULL, a.proxy = NULL);
    GOOD_PROXY(a.proxy = NULL; o.scores = SANTA_SCORES_EXACT);
    static const int bad_bits[] = {-4, -1, 1, 3, 5, 8, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 8; i++) {
        BAD_PROXY(ERR_PROXY_BITS, a.proxy_bits = bad_bits[i]);
        GOOD_PROXY(a.proxy_bits = bad_bits[i]; o.scores = SANTA_SCORES_EXACT);   /* not looked at */
    }
    GOOD_PROXY(a.proxy_bits = 2);
    GOOD_PROXY(a.proxy_bits = 4);
    BAD_PROXY(ERR_PROXY_HEAD_DIM, a.q.shape[3] = a.k.shape[3] = 4);
    BAD_PROXY(ERR_PROXY_HEAD_DIM, a.q.shape[3] = a.k.shape[3] = 7);
    BAD_PROXY(ERR_PROXY_HEAD_DIM, a.q.shape[3] = a.k.shape[3] = 1032);
    static const int bad_pages[] = {1, 8, 15, 17, 24, 40};
    for (int i = 0; i < 6; i++) {
        BAD_PROXY_PAGED(ERR_PROXY_PAGE, a.k.shape[1] = a.v.shape[1] = bad_pages[i]);
        GOOD_PAGED(o.method = SANTA_PPS; a.k.shape[1] = a.v.shape[1] = 15; lens[1] = 90);
    }
    static const int32_t below[BATCH] = {64, -1}, far[BATCH] = {INT32_MAX, INT32_MAX}, none[BATCH] = {0, 0};
    BAD_PROXY(ERR_PROXY_LEN, a.proxy_lens = below);
    GOOD_PROXY(a.proxy_lens = below; o.scores = SANTA_SCORES_EXACT);
    GOOD_PROXY(a.proxy_lens = far);
    GOOD_PROXY(a.proxy_lens = none);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        const int has = m == SANTA_SYS || m == SANTA_PROP || m == SANTA_PPS || m == SANTA_TOP_K
                     || m == SANTA_TOP_P || m == SANTA_VATTENTION || m == SANTA_SAAP;
        CHECK_INT((santa_method_traits((santa_method)m) & SANTA_PROXIES) != 0, has);
        if (has)
            GOOD_PROXY(set_method(m));
        else     BAD_PROXY(ERR_PROXY_METHOD, o.method = (santa_method)m; a.std_error = NULL);
    }
    BAD_PROXY(ERR_STD_ERROR, o.method = SANTA_TOP_K);
    BAD_PROXY(ERR_COMBS, o.num_combs = 2);
    BAD_PROXY(ERR_COMBS, o.method = SANTA_PROP; o.num_combs = 16);
    GOOD_PROXY(o.num_combs = 1);
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.sink_tokens = -2);
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.local_tokens = -2);
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.rescue_keys = INT64_MIN);
    BAD(ERR_PROXY_OPTIONS, o.proxy.rescue_keys = -2);                            /* without a copy, too */
    for (int i = 0; i < 3; i++) {
        BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.rescue_above = bad[i]);
        BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.exact_above = bad[i]);
    }
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.rescue_above = nan_d());
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.exact_above = nan_d());
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.rescue_above = infinity_d());
    BAD_PROXY(ERR_PROXY_OPTIONS, o.proxy.exact_above = infinity_d());
    GOOD_PROXY(o.proxy.sink_tokens = o.proxy.local_tokens = o.proxy.rescue_keys = SANTA_NONE);
    GOOD_PROXY(o.proxy.sink_tokens = o.proxy.local_tokens = o.proxy.rescue_keys = INT64_MAX);
    GOOD_PROXY(o.proxy.rescue_above = o.proxy.exact_above = SANTA_NONE);
    GOOD_PROXY(o.proxy.rescue_above = o.proxy.exact_above = 1e-300);
    BAD_PROXY(ERR_STASH, set_enum(&o.stash, 4));
}

/* Size, encode and append; the copy is not touched by an error. */
static void proxy_copies(void) {
    enum { BLOCK = (16 + 2) * SANTA_BLOCK + 32 + 4 + 28 }; /* of a chunk of 32 features */
    reset_proxy();
    CHECK_INT(santa_proxy_size(&a), BATCH * KV_HEADS * BLOCK);
    CHECK(sizeof got.copy >= BATCH * KV_HEADS * BLOCK);
    CHECK_INT(santa_proxy_size(NULL), 0);
    a.k.shape[1] = SANTA_BLOCK - 1;                            /* no whole block, and still no error */
    CHECK_INT(santa_proxy_size(&a), 64);
    reset_proxy();
    EXPECT(OK, santa_proxy_encode(&a, 0, LEN, NULL));
    EXPECT(OK, santa_proxy_append(&a, 1, NULL));
    EXPECT(OK, santa_proxy_append(&a, 0, NULL));
    EXPECT(OK, santa_proxy_append(&a, INT64_MAX, NULL));
    EXPECT(OK, santa_proxy_encode(&a, 0, INT64_MAX, NULL));
    EXPECT(OK, santa_proxy_encode(&a, INT64_MAX, INT64_MAX, NULL));
    EXPECT(OK, santa_proxy_encode(&a, INT64_MAX - 1, INT64_MAX, NULL));
    CHECK(untouched());
#define BAD_COPY(status, change)                                                                           \
    do {                                                                                                   \
        reset_proxy();                                                                                     \
        change;                                                                                            \
        EXPECT(status, santa_proxy_encode(&a, 0, LEN, NULL));                                              \
        EXPECT(status, santa_proxy_append(&a, LEN, NULL));                                                 \
    } while (0)
#define BAD_COPY_PAGED(status, change)                                                                     \
    do {                                                                                                   \
        reset_proxy_paged();                                                                               \
        change;                                                                                            \
        EXPECT(status, santa_proxy_encode(&a, 0, LEN, NULL));                                              \
        EXPECT(status, santa_proxy_append(&a, LEN, NULL));                                                 \
    } while (0)
#define NO_SIZE(change) do { reset_proxy(); change; CHECK_INT(santa_proxy_size(&a), 0); } while (0)
    NO_SIZE(a.k.shape[1] = (int64_t)1 << 31; a.k.stride[1] = 0);
    EXPECT(ERR_NULL_ARGUMENT, santa_proxy_encode(NULL, 0, 1, NULL));
    EXPECT(ERR_NULL_ARGUMENT, santa_proxy_append(NULL, 1, NULL));
    EXPECT(ERR_PROXY_RANGE, santa_proxy_encode(&a, -1, 4, NULL));
    EXPECT(ERR_PROXY_RANGE, santa_proxy_encode(&a, 5, 4, NULL));
    EXPECT(ERR_PROXY_RANGE, santa_proxy_encode(&a, INT64_MIN, INT64_MAX, NULL));
    EXPECT(ERR_PROXY_RANGE, santa_proxy_append(&a, -1, NULL));
    EXPECT(ERR_PROXY_RANGE, santa_proxy_append(&a, INT64_MIN, NULL));
    BAD_COPY(ERR_PROXY_NULL, a.proxy = NULL);
    BAD_COPY(ERR_NULL_DATA, a.k.data = NULL);
    BAD_COPY(ERR_PROXY_BITS, a.proxy_bits = 3);
    BAD_COPY(ERR_PROXY_HEAD_DIM, a.k.shape[3] = 6);
    BAD_COPY(ERR_PROXY_HEAD_DIM, a.k.shape[3] = 2048);
    BAD_COPY(ERR_DTYPE, set_enum(&a.k.dtype, 9));
    BAD_COPY(ERR_DEVICE, set_enum(&a.k.device, 9));
    BAD_COPY(ERR_SHAPE, a.k.shape[0] = 0);
    BAD_COPY(ERR_SHAPE, a.k.shape[1] = -1);
    BAD_COPY(ERR_OVERFLOW, a.k.stride[1] = INT64_MAX);
    BAD_COPY(ERR_OVERFLOW, a.k.shape[0] = INT64_MAX / 64; a.k.stride[0] = 0);
    if (sizeof(void *) > 4) /* else its copy does not fit in the address space */
        BAD_COPY(ERR_TOO_LONG, a.k.shape[1] = (int64_t)1 << 31; a.k.stride[1] = 0; a.k.shape[0] = 1);
    BAD_COPY(ERR_SEQ_LEN, lens[1] = LEN + 1);
    BAD_COPY(ERR_SEQ_LEN, lens[0] = -1);
    BAD_COPY(ERR_NO_BACKEND, a.k.device = SANTA_CUDA);
    BAD_COPY_PAGED(ERR_PROXY_PAGE, a.k.shape[1] = 8);
    BAD_COPY_PAGED(ERR_SHAPE, a.q.shape[0] = 0);
    BAD_COPY_PAGED(ERR_SHAPE, a.q.shape[0] = -3);
    BAD_COPY_PAGED(ERR_BLOCK_TABLE_SHAPE, a.max_pages = 0);
    BAD_COPY_PAGED(ERR_OVERFLOW, a.q.shape[0] = INT64_MAX; a.block_table_stride = 0);
    BAD_COPY_PAGED(ERR_OVERFLOW, a.q.shape[0] = INT64_MAX; a.block_table_stride = MAX_PAGES);
    BAD_COPY_PAGED(ERR_BLOCK_TABLE_SHAPE, a.block_table_stride = MAX_PAGES - 1);
    BAD_COPY_PAGED(ERR_BLOCK_TABLE, table[0] = -1);
    BAD_COPY_PAGED(ERR_BLOCK_TABLE, table[BATCH * MAX_PAGES - 1] = BATCH * MAX_PAGES); /* the last, first */
    BAD_COPY_PAGED(ERR_TOO_LONG, a.max_pages = INT32_MAX);
    NO_SIZE(a.proxy_bits = 3);
    NO_SIZE(a.k.shape[3] = 6);
    NO_SIZE(a.k.shape[2] = 0);
    NO_SIZE(a.k.shape[0] = INT64_MAX / 64; a.k.stride[0] = 0);
    NO_SIZE(a.block_table = table; a.k.shape[1] = 8);
    reset_proxy_paged();
    table[4] = 99; /* pages that a call does not encode */
    lens[0] = 63;
    EXPECT(OK, santa_proxy_encode(&a, 0, LEN, NULL));
    EXPECT(OK, santa_proxy_append(&a, 3, NULL));
    lens[0] = 80;
    EXPECT(ERR_BLOCK_TABLE, santa_proxy_append(&a, 1, NULL));
    EXPECT(OK, santa_proxy_encode(&a, 0, 79, NULL));
#undef BAD_COPY
#undef BAD_COPY_PAGED
#undef NO_SIZE
}

/* A call by buckets, and keys to assign. */
static santa_tensor new_keys;
static int32_t slot[BATCH];
static void reset_saap(void) {
    reset();
    o.method = SANTA_SAAP;
    new_keys = a.k;
    for (int b = 0; b < BATCH; b++) slot[b] = b;
}

static void buckets(void) {
#define BAD_SAAP(status, change)  CHANGED(reset_saap, status, change)
#define GOOD_SAAP(change)         BAD_SAAP(OK, change)
#define BAD_ASSIGN(status, change)                                                                         \
    do {                                                                                                   \
        reset_saap();                                                                                      \
        change;                                                                                            \
        EXPECT(status, santa_buckets_assign(&a, &new_keys, 0, NULL));                                      \
    } while (0)
    santa_buckets none;
    memset(&none, 0, sizeof none);
    GOOD_SAAP((void)0);
    for (int i = 0; i < 2; i++)
        GOOD_SAAP(o.num_samples = i ? SANTA_NONE : 0; if (i) a.std_error = NULL);
    BAD_SAAP(ERR_NUM_SAMPLES, o.num_samples = -2);
    BAD_SAAP(ERR_NUM_SAMPLES, o.num_samples = SANTA_MAX_SAMPLES + 1);
    BAD(ERR_NUM_SAMPLES, o.num_samples = SANTA_NONE);                            /* of another method */
    BAD_SAAP(ERR_STD_ERROR, o.num_samples = SANTA_NONE);
    GOOD_SAAP(o.scores = SANTA_SCORES_PROXY; a.proxy = got.copy);
    GOOD_SAAP(o.scores = SANTA_SCORES_PROXY; a.proxy = got.copy; o.saap.num_probes = SANTA_NONE);
    BAD_SAAP(ERR_PROXY_NULL, o.scores = SANTA_SCORES_PROXY);
    BAD_SAAP(ERR_PROXY_BITS, o.scores = SANTA_SCORES_PROXY; a.proxy = got.copy; a.proxy_bits = 3);
    BAD_SAAP(ERR_SAAP_COPY, o.scores = SANTA_SCORES_PROXY; a.proxy = got.copy; o.num_samples = SANTA_NONE);
    BAD_SAAP(ERR_OPTION_UNUSED, o.scores = SANTA_SCORES_PROXY; a.proxy = got.copy;
             o.proxy.exact_above = 9.0);
    BAD_SAAP(ERR_OPTION_UNUSED, o.num_combs = 2);
    BAD_SAAP(ERR_BUCKETS_NULL, a.buckets = NULL);
    BAD_SAAP(ERR_BUCKETS_NULL, router.r->centroids = NULL);
    BAD_SAAP(ERR_BUCKETS_NULL, router.r->hidden = 5);                            /* without weights */
    BAD_SAAP(ERR_BUCKETS_SHAPE, a.buckets = &none);
    for (int i = 0; i < 2; i++) {
        BAD_SAAP(ERR_BUCKETS_SHAPE, router.r->num_buckets = i ? 65537 : -1);
        BAD_SAAP(ERR_BUCKETS_SHAPE, router.r->hidden = i ? 65537 : -1);
        BAD_SAAP(ERR_BUCKETS_DTYPE, router.r->dtype = i ? SANTA_E4M3 : SANTA_Q8_0);
        BAD_SAAP(ERR_BUCKETS_NORM, router.r->key_norm = i ? -1.0f : test_nan());
        BAD_SAAP(ERR_BUCKETS_SLOT, router.r->num_slots = i ? -1 : BATCH - 1);
        BAD_SAAP(ERR_BUCKETS_SLOT, slot[i] = i ? BATCH : -1; router.r->slots = slot);
        BAD_SAAP(ERR_SAAP_OPTIONS, o.saap.uniform_share = i ? -0.1 : 1.01);
        BAD_SAAP(ERR_SAAP_OPTIONS, o.saap.measure_mass = i ? -1 : 2);
        BAD_SAAP(ERR_BUCKETS_Q, router.r->q = a.q; router.r->q.shape[1 + i]++);
    }
    BAD_SAAP(ERR_SAAP_OPTIONS, o.saap.uniform_share = nan_d());
    BAD_SAAP(ERR_SAAP_OPTIONS, o.saap.num_probes = -2);
    BAD_SAAP(ERR_SAAP_OPTIONS, o.saap.sink_tokens = -2);
    BAD_SAAP(ERR_SAAP_OPTIONS, o.saap.local_tokens = INT64_MIN);
    BAD(ERR_SAAP_OPTIONS, o.saap.local_tokens = INT64_MIN);                      /* of any method */
    GOOD_SAAP(o.saap.num_probes = o.saap.sink_tokens = o.saap.local_tokens = SANTA_NONE);
    GOOD_SAAP(o.saap.num_probes = o.saap.sink_tokens = o.saap.local_tokens = INT64_MAX);
    BAD_SAAP(ERR_DTYPE, router.r->q = a.q; router.r->q.dtype = SANTA_E4M3);
    BAD_SAAP(ERR_BUCKETS_Q, router.r->q = a.q; router.r->q.device = SANTA_CUDA);
    BAD_SAAP(ERR_BUCKETS_INDEX, router.r->num_buckets = 8);
    BAD_SAAP(ERR_BUCKETS_INDEX, memset(router.r->index, 0, 64));
    GOOD_SAAP(router.r->slots = slot);
    GOOD_SAAP(router.r->q = a.q);

    BAD_ASSIGN(OK, (void)0);
    EXPECT(ERR_NULL_ARGUMENT, santa_buckets_assign(NULL, &new_keys, 0, NULL));
    EXPECT(ERR_NULL_ARGUMENT, santa_buckets_assign(&a, NULL, 0, NULL));
    EXPECT(ERR_BUCKETS_RANGE, santa_buckets_assign(&a, &new_keys, -2, NULL));
    EXPECT(OK, santa_buckets_assign(&a, &new_keys, -1, NULL));
    BAD_ASSIGN(ERR_BUCKETS_NULL, a.buckets = NULL);
    BAD_ASSIGN(ERR_OVERFLOW, a.k.shape[0] = new_keys.shape[0] = INT64_MAX;
               a.k.stride[0] = new_keys.stride[0] = 0; router.r->slots = slot);
    BAD_ASSIGN(ERR_BUCKETS_NULL, new_keys.data = NULL);
    BAD_ASSIGN(ERR_BUCKETS_NULL, none = *router.r; none.index = NULL; a.buckets = &none);
    BAD_ASSIGN(ERR_BUCKETS_INDEX, none = *router.r; none.index = (char *)none.index + 2; a.buckets = &none);
    BAD_ASSIGN(ERR_BUCKETS_KEYS, new_keys.shape[0]++);
    BAD_ASSIGN(ERR_BUCKETS_KEYS, new_keys.shape[2]--);
    BAD_ASSIGN(ERR_BUCKETS_KEYS, new_keys.shape[3]--);
    BAD_ASSIGN(ERR_BUCKETS_KEYS, new_keys.device = SANTA_CUDA);
    BAD_ASSIGN(ERR_SHAPE, new_keys.shape[1] = 0);
    BAD_ASSIGN(ERR_SHAPE, a.k.shape[1] = -5);
    BAD_ASSIGN(ERR_SEQ_LEN, lens[0] = LEN + 1);
    BAD_ASSIGN(ERR_BUCKETS_SLOT, slot[0] = slot[1]; router.r->slots = slot);
    BAD_ASSIGN(ERR_BUCKETS_HEAD_DIM, a.k.shape[3] = new_keys.shape[3] = 1025);
    BAD_ASSIGN(ERR_NO_BACKEND, a.k.device = new_keys.device = SANTA_CUDA);
    reset_saap();
    o.num_threads = -1;
    EXPECT(ERR_THREADS, santa_buckets_assign(&a, &new_keys, 0, &o));
    reset_saap();
    o.item_end = BATCH * KV_HEADS + 1;
    EXPECT(ERR_ITEMS, santa_buckets_assign(&a, &new_keys, 0, &o));
    reset_saap();
    new_keys.shape[1] = 4;
    EXPECT(OK, santa_buckets_assign(&a, &new_keys, 0, NULL));
    EXPECT(OK, santa_buckets_assign(&a, &new_keys, 4, NULL));
    EXPECT(ERR_BUCKETS_RANGE, santa_buckets_assign(&a, &new_keys, 9, NULL));
    EXPECT(ERR_BUCKETS_RANGE, santa_buckets_assign(&a, &new_keys, -1, NULL));
    EXPECT(OK, santa_buckets_assign(&a, &new_keys, INT64_MAX, NULL));     /* past the end: no key */
    CHECK_INT(santa_buckets_find(&a, 0, 0, 8), -1);
    CHECK(santa_buckets_find(&a, 0, 0, 7) >= 0);
    CHECK_INT(santa_buckets_find(&a, -1, 0, 1), -1);
    CHECK_INT(santa_buckets_find(&a, BATCH, 0, 1), -1);
    CHECK_INT(santa_buckets_find(&a, 0, KV_HEADS, 1), -1);
    CHECK_INT(santa_buckets_find(&a, 0, 0, -1), -1);
    CHECK_INT(santa_buckets_find(NULL, 0, 0, 1), -1);
    memset(router.r->index, 0xff, 64);
    EXPECT(ERR_BUCKETS_INDEX, santa_buckets_assign(&a, &new_keys, 8, NULL));
    CHECK_INT(santa_buckets_size(NULL), 0);
    a.buckets = NULL;
    CHECK_INT(santa_buckets_size(&a), 0);
#undef BAD_ASSIGN
#undef BAD_SAAP
#undef GOOD_SAAP
}

static void kmeans(void) {
    enum { N = 20, D = 6, C = 4 };
    static float x[N * D], centroids[C * D];
    const size_t bytes = santa_kmeans_workspace_size(N, D, C);
    void *w = test_alloc(bytes);
    reset();
    memset(&o, 0, sizeof o);
    memcpy(x, k, sizeof x);
    CHECK(bytes > 0);
    EXPECT(OK, santa_kmeans(x, N, D, D, C, 3, 1, centroids, &o, w, bytes));
    EXPECT(ERR_NULL_ARGUMENT, santa_kmeans(NULL, N, D, D, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_NULL_ARGUMENT, santa_kmeans(x, N, D, D, C, 3, 1, NULL, NULL, w, bytes));
    EXPECT(ERR_SHAPE, santa_kmeans(x, 0, D, D, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_SHAPE, santa_kmeans(x, N, D, -1, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_SHAPE, santa_kmeans(x, N, D - 1, D, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_OVERFLOW, santa_kmeans(x, N, INT64_MAX, D, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_TOO_LONG, santa_kmeans(x, (int64_t)1 << 31, D, D, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_BUCKETS_SHAPE, santa_kmeans(x, N, D, D, 0, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_BUCKETS_SHAPE, santa_kmeans(x, N, D, D, 65537, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_BUCKETS_HEAD_DIM, santa_kmeans(x, N, 2000, 1025, C, 3, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_KMEANS, santa_kmeans(x, N, D, D, C, -1, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_KMEANS, santa_kmeans(x, N, D, D, C, (1 << 20) + 1, 1, centroids, NULL, w, bytes));
    EXPECT(ERR_WORKSPACE_NULL, santa_kmeans(x, N, D, D, C, 3, 1, centroids, NULL, NULL, bytes));
    EXPECT(ERR_WORKSPACE_SIZE, santa_kmeans(x, N, D, D, C, 3, 1, centroids, NULL, w, bytes - 1));
    set_enum(&o.isa, 77);
    EXPECT(ERR_ISA, santa_kmeans(x, N, D, D, C, 3, 1, centroids, &o, w, bytes));
    EXPECT(ERR_ISA, santa_buckets_assign(&a, &a.k, 0, &o));
    memset(&o, 0, sizeof o);
    o.num_threads = INT64_MIN;
    EXPECT(ERR_THREADS, santa_kmeans(x, N, D, D, C, 3, 1, centroids, &o, w, bytes));
    x[7] = test_nan();
    EXPECT(ERR_KMEANS, santa_kmeans(x, N, D, D, C, 3, 1, centroids, NULL, w, bytes));
    x[7] = INFINITY;
    EXPECT(ERR_KMEANS, santa_kmeans(x, N, D, D, C, 3, 1, centroids, NULL, w, bytes));
    CHECK_INT(santa_kmeans_workspace_size(0, D, C), 0);
    CHECK_INT(santa_kmeans_workspace_size(N, D, 0), 0);
    free(w);
}

/* The size query is exact in one direction: one byte less is refused. test_memory.c looks at
   the other. */
static void workspaces(void) {
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        reset();
        set_method(m);
        const size_t bytes = santa_workspace_size(&a, &o);
        if (!CHECK_MSG(bytes > 0 && bytes <= SCRATCH, "%s: workspace of %lu bytes",
                       santa_method_name(o.method), (unsigned long)bytes))
            continue;
        EXPECT(ERR_WORKSPACE_NULL, santa_decode(&a, &o, NULL, bytes, &got.stats));
        EXPECT(ERR_WORKSPACE_NULL, santa_decode(&a, &o, NULL, 0, &got.stats));
        EXPECT(ERR_WORKSPACE_SIZE, santa_decode(&a, &o, got.workspace, bytes - 1, &got.stats));
        EXPECT(ERR_WORKSPACE_SIZE, santa_decode(&a, &o, got.workspace, 0, &got.stats));
        EXPECT(OK,                 santa_decode(&a, &o, got.workspace, bytes, &got.stats));
        lens[0]   = 0; /* the size depends on shapes and options, not on data */
        lens[1]   = -1;
        sinks[0]  = test_nan();
        slopes[0] = test_nan();
        CHECK_INT(santa_workspace_size(&a, &o), bytes);
        a.q.data = a.k.data = a.v.data = a.out.data = NULL;
        CHECK_INT(santa_workspace_size(&a, &o), bytes);
        a.seq_lens = NULL;
        CHECK_INT(santa_workspace_size(&a, &o), bytes);
        a.q.shape[0] = 0;
        CHECK_INT(santa_workspace_size(&a, &o), 0);
    }
}

static void steps(void) {
    static float     scores[HEADS / KV_HEADS * LEN], merged[DIM_V], other[DIM_V], lse[1], other_lse[1];
    static float     weight[LEN], row[DIM_V];
    static int32_t   index[LEN], count[LEN];
    reset();
    const size_t bytes = santa_workspace_size(&a, &o);
    EXPECT(OK,                 santa_scores(&a, &o, 0, 0, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_NULL_ARGUMENT,  santa_scores(NULL, &o, 0, 0, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_NULL_ARGUMENT,  santa_scores(&a, NULL, 0, 0, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_NULL_ARGUMENT,  santa_scores(&a, &o, 0, 0, 0, NULL, LEN, got.workspace, bytes));
    EXPECT(ERR_INDEX,          santa_scores(&a, &o, BATCH, 0, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_INDEX,          santa_scores(&a, &o, -1, 0, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_INDEX,          santa_scores(&a, &o, 0, ROWS, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_INDEX,          santa_scores(&a, &o, 0, -1, 0, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_INDEX,          santa_scores(&a, &o, 0, 0, KV_HEADS, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_INDEX,          santa_scores(&a, &o, 0, 0, -1, scores, LEN, got.workspace, bytes));
    EXPECT(ERR_CAPACITY,       santa_scores(&a, &o, 1, 0, 0, scores, LEN - 1, got.workspace, bytes));
    EXPECT(ERR_OVERFLOW,       santa_scores(&a, &o, 1, 0, 0, scores, INT64_MAX, got.workspace, bytes));
    EXPECT(ERR_OVERFLOW,       santa_scores(&a, &o, 1, 0, 0, scores, INT64_MAX / 7, got.workspace, bytes));
    EXPECT(ERR_WORKSPACE_NULL, santa_scores(&a, &o, 0, 0, 0, scores, LEN, NULL, bytes));
    EXPECT(ERR_WORKSPACE_SIZE, santa_scores(&a, &o, 0, 0, 0, scores, LEN, got.workspace, bytes - 1));
    a.k.shape[3] = 0;
    EXPECT(ERR_SHAPE,          santa_scores(&a, &o, 0, 0, 0, scores, LEN, got.workspace, bytes));
    reset();
    a.q.data = NULL;
    EXPECT(ERR_NULL_DATA,      santa_scores(&a, &o, 0, 0, 0, scores, LEN, got.workspace, bytes));

    reset();
    const santa_stream_id id = {0, 0, 0};
    santa_draws d = {index, count, weight, LEN, -7, -7, 0.0f};
    const size_t need = santa_sample_workspace_size(LEN, &o);
    const int64_t capacity = santa_sample_capacity(LEN, &o);
    CHECK(need > 0 && need <= SCRATCH && capacity > 0 && capacity <= LEN);
    for (int j = 0; j < LEN; j++) scores[j] = 0.1f * (float)(j % 7);
    EXPECT(ERR_NULL_ARGUMENT,  santa_sample(NULL, LEN, &o, id, &d, got.workspace, need));
    EXPECT(ERR_NULL_ARGUMENT,  santa_sample(scores, LEN, NULL, id, &d, got.workspace, need));
    EXPECT(ERR_NULL_ARGUMENT,  santa_sample(scores, LEN, &o, id, NULL, got.workspace, need));
    const santa_stream_id nobody[] = {{0, -1, 0}, {0, 0, -1}, {0, (int64_t)1 << 31, 0},
                                      {0, 0, (int64_t)1 << 31}};
    for (int i = 0; i < 4; i++)
        EXPECT(ERR_INDEX, santa_sample(scores, LEN, &o, nobody[i], &d, got.workspace, need));
    EXPECT(ERR_SHAPE,          santa_sample(scores, -1, &o, id, &d, got.workspace, need));
    EXPECT(ERR_TOO_LONG,       santa_sample(scores, (int64_t)1 << 31, &o, id, &d, got.workspace, need));
    EXPECT(ERR_WORKSPACE_NULL, santa_sample(scores, LEN, &o, id, &d, NULL, need));
    EXPECT(ERR_WORKSPACE_SIZE, santa_sample(scores, LEN, &o, id, &d, got.workspace, need - 1));
    EXPECT(ERR_WORKSPACE_SIZE, santa_sample(scores, LEN, &o, id, &d, got.workspace, 0));
    d.index = NULL;
    EXPECT(ERR_NULL_ARGUMENT,  santa_sample(scores, LEN, &o, id, &d, got.workspace, need));
    d.index  = index;
    d.weight = NULL;
    EXPECT(ERR_NULL_ARGUMENT,  santa_sample(scores, LEN, &o, id, &d, got.workspace, need));
    d.weight   = weight;
    d.capacity = capacity - 1;
    EXPECT(ERR_CAPACITY,       santa_sample(scores, LEN, &o, id, &d, got.workspace, need));
    d.capacity = -1;
    EXPECT(ERR_CAPACITY,       santa_sample(scores, LEN, &o, id, &d, got.workspace, need));
    d.capacity = capacity;
    o.method = SANTA_VATTENTION;
    EXPECT(ERR_METHOD,         santa_sample(scores, LEN, &o, id, &d, got.workspace, SCRATCH));
    CHECK_INT(santa_sample_capacity(LEN, &o), 0);
    CHECK_INT(santa_sample_workspace_size(LEN, &o), 0);
    reset();
    o.num_samples = -1;
    EXPECT(ERR_NUM_SAMPLES,    santa_sample(scores, LEN, &o, id, &d, got.workspace, SCRATCH));
    CHECK_INT(santa_sample_capacity(LEN, &o), 0);
    CHECK_INT(santa_sample_workspace_size(LEN, &o), 0);
    CHECK_INT(santa_sample_workspace_size(LEN, NULL), 0);
    CHECK_INT(santa_sample_capacity(-1, &o), 0);
    /* options that a whole call has must be in range, read or not */
#define BAD_SAMPLE(status, change)                                                                         \
    do {                                                                                                   \
        reset();                                                                                           \
        change;                                                                                            \
        EXPECT(status, santa_sample(scores, LEN, &o, id, &d, got.workspace, need));                        \
    } while (0)
    BAD_SAMPLE(ERR_SCORES, set_enum(&o.scores, 99));
    BAD_SAMPLE(ERR_SCORES, set_enum(&o.scores, -1));
    BAD_SAMPLE(ERR_BERNOULLI_DRAWS, o.scores = SANTA_SCORES_BERNOULLI_IID; o.bernoulli_draws = -5);
    BAD_SAMPLE(ERR_PROXY_OPTIONS, o.scores = SANTA_SCORES_PROXY; o.proxy.rescue_above = nan_d());
    BAD_SAMPLE(ERR_PROXY_OPTIONS, o.scores = SANTA_SCORES_PROXY; o.proxy.sink_tokens = -7);
    BAD_SAMPLE(ERR_THREADS, o.num_threads = -3);
    BAD_SAMPLE(ERR_ITEMS, o.item_begin = -1);
    BAD_SAMPLE(ERR_RANKS, o.ranks.count = -5);
    BAD_SAMPLE(ERR_RANKS, o.ranks.rank = 3);
    reset();
    scores[LEN - 1] = test_nan();
    EXPECT(ERR_NAN,            santa_sample(scores, LEN, &o, id, &d, got.workspace, need));
    scores[LEN - 1] = positive_infinity();
    EXPECT(ERR_NAN,            santa_sample(scores, LEN, &o, id, &d, got.workspace, need));
    CHECK_MSG(d.rows == -7 && d.draws == -7, "an error wrote to the draw list");
    scores[LEN - 1] = -positive_infinity();
    EXPECT(OK,                 santa_sample(scores, LEN, &o, id, &d, got.workspace, need));

    index[0] = 0;
    index[1] = 49;
    weight[0] = weight[1] = 0.5f;
    EXPECT(OK,                santa_gather(&a, 0, 1, index, weight, 2, row));
    EXPECT(OK,                santa_gather(&a, 0, 1, index, weight, 0, row));
    EXPECT(ERR_OVERFLOW,      santa_gather(&a, 0, 1, index, weight, INT64_MAX, got.out));
    a.key_list = index;                              /* no part of a gather, whatever it holds */
    a.key_weights = weight;
    a.max_list = INT64_MAX;
    a.key_list_stride = -1000000;
    a.key_list_rows = 7;
    EXPECT(OK,                santa_gather(&a, 0, 1, index, weight, 2, row));
    reset();
    EXPECT(ERR_NULL_ARGUMENT, santa_gather(NULL, 0, 1, index, weight, 2, got.out));
    EXPECT(ERR_NULL_ARGUMENT, santa_gather(&a, 0, 1, NULL, weight, 2, got.out));
    EXPECT(ERR_NULL_ARGUMENT, santa_gather(&a, 0, 1, index, NULL, 2, got.out));
    EXPECT(ERR_NULL_ARGUMENT, santa_gather(&a, 0, 1, index, weight, 2, NULL));
    EXPECT(ERR_INDEX,         santa_gather(&a, BATCH, 1, index, weight, 2, got.out));
    EXPECT(ERR_INDEX,         santa_gather(&a, 0, KV_HEADS, index, weight, 2, got.out));
    EXPECT(ERR_INDEX,         santa_gather(&a, 0, -1, index, weight, 2, got.out));
    EXPECT(ERR_SHAPE,         santa_gather(&a, 0, 1, index, weight, -1, got.out));
    a.v.shape[3] = 0;
    EXPECT(ERR_SHAPE,         santa_gather(&a, 0, 1, index, weight, 2, got.out));
    reset();
    a.window = -1;
    EXPECT(ERR_WINDOW,        santa_gather(&a, 0, 1, index, weight, 2, got.out));
    reset();
    lens[0] = -1;
    EXPECT(ERR_SEQ_LEN,       santa_gather(&a, 0, 1, index, weight, 2, got.out));
    reset();
    index[1] = 50;                                                               /* seq_lens[0] is 50 */
    EXPECT(ERR_INDEX,         santa_gather(&a, 0, 1, index, weight, 2, got.out));
    index[1] = -1;
    EXPECT(ERR_INDEX,         santa_gather(&a, 0, 1, index, weight, 2, got.out));
    int32_t starts[BATCH] = {1};                                   /* index[0] is the padding's last key */
    index[0] = 0;
    index[1] = 1;
    EXPECT(OK,                santa_gather(&a, 0, 1, index, weight, 2, row));
    a.kv_start = starts;
    EXPECT(ERR_INDEX,         santa_gather(&a, 0, 1, index, weight, 2, got.out));
    EXPECT(OK,                santa_gather(&a, 0, 1, index + 1, weight, 1, row));
    reset_paged();
    a.window = 8;                                                /* which has freed the first page */
    table[0] = -1;
    index[1] = 49;
    EXPECT(OK,                santa_gather(&a, 0, 1, index + 1, weight, 1, row));
    EXPECT(ERR_BLOCK_TABLE,   santa_gather(&a, 0, 1, index, weight, 2, got.out));
    reset();

    lse[0] = other_lse[0] = 0.0f;
    EXPECT(OK,                santa_merge(1, DIM_V, merged, lse, other, other_lse));
    EXPECT(ERR_NULL_ARGUMENT, santa_merge(1, DIM_V, NULL, got.lse, other, other_lse));
    EXPECT(ERR_NULL_ARGUMENT, santa_merge(1, DIM_V, got.out, NULL, other, other_lse));
    EXPECT(ERR_NULL_ARGUMENT, santa_merge(1, DIM_V, got.out, got.lse, NULL, other_lse));
    EXPECT(ERR_NULL_ARGUMENT, santa_merge(1, DIM_V, got.out, got.lse, other, NULL));
    EXPECT(ERR_SHAPE,         santa_merge(-1, DIM_V, got.out, got.lse, other, other_lse));
    EXPECT(ERR_SHAPE,         santa_merge(1, 0, got.out, got.lse, other, other_lse));
    EXPECT(ERR_OVERFLOW,      santa_merge(INT64_MAX, INT64_MAX, got.out, got.lse, other, other_lse));
}

static santa_budget budget_in(void) {
    santa_budget b;
    memset(&b, 0, sizeof b);
    b.epsilon = b.delta = 0.05;
    b.population  = 10000;
    b.sigma       = 1.0;
    b.denominator = 20000.0;
    b.trace       = 1.0;
    b.norm        = 20000.0;
    return b;
}

static void budgets(void) {
    typedef santa_status (*budget_function)(const santa_budget *in, int64_t *budget);
    static const budget_function functions[] = {santa_budget_denominator, santa_budget_numerator,
                                                santa_budget_full};
    int64_t budget = -7;
    santa_budget in;
#define BAD_BUDGET(status, change) \
    do { in = budget_in(); change; EXPECT(status, functions[f](&in, &budget)); } while (0)
    for (int f = 0; f < 3; f++) {
        in = budget_in();
        EXPECT(ERR_NULL_ARGUMENT, functions[f](NULL, &budget));
        EXPECT(ERR_NULL_ARGUMENT, functions[f](&in, NULL));
        BAD_BUDGET(ERR_EPSILON, in.epsilon = 0.0);
        BAD_BUDGET(ERR_EPSILON, in.epsilon = 1.0);
        BAD_BUDGET(ERR_EPSILON, in.epsilon = nan_d());
        BAD_BUDGET(ERR_DELTA, in.delta = 0.0);
        BAD_BUDGET(ERR_DELTA, in.delta = 1.0);
        BAD_BUDGET(ERR_DELTA, in.delta = nan_d());
        BAD_BUDGET(ERR_DELTA, in.delta = 4.9e-324);
        BAD_BUDGET(ERR_DELTA, in.delta = 0.99e-290);
        BAD_BUDGET(ERR_BOUND, set_enum(&in.bound, 2));
        BAD_BUDGET(ERR_BUDGET_INPUT, in.population = -1);
        if (f != 1) { /* the denominator's share */
            BAD_BUDGET(ERR_BUDGET_INPUT, in.sigma = -1.0);
            BAD_BUDGET(ERR_BUDGET_INPUT, in.sigma = nan_d());
            BAD_BUDGET(ERR_BUDGET_INPUT, in.denominator = -1.0);
            BAD_BUDGET(ERR_BUDGET_INPUT, in.denominator = infinity_d());
        }
        if (f != 0) {                                                            /* the numerator's */
            BAD_BUDGET(ERR_BUDGET_INPUT, in.trace = -1.0);
            BAD_BUDGET(ERR_BUDGET_INPUT, in.trace = infinity_d());
            BAD_BUDGET(ERR_BUDGET_INPUT, in.norm = nan_d());
        }
        if (f == 1) { /* full gives the numerator less */
            BAD_BUDGET(ERR_DELTA_VECTOR, in.delta = 0.3);
            BAD_BUDGET(OK, in.delta = 0.3; in.bound = SANTA_BOUND_HOEFFDING);
            budget = -7;
        }
        CHECK_MSG(budget == -7, "an error wrote a budget");
        in = budget_in();
        EXPECT(OK, functions[f](&in, &budget));
        CHECK_MSG(budget > 0 && budget <= in.population, "budget %lld of %lld", (long long)budget,
                  (long long)in.population);
        budget = -7;
    }
#undef BAD_BUDGET
}

static santa_status variance_pps(const float *p, int64_t n, const float *rows, int64_t stride, int64_t dv,
                                 int64_t num_samples, double *variance, void *workspace, size_t bytes) {
    return santa_variance_pps(p, NULL, n, rows, stride, dv, num_samples, variance, workspace, bytes);
}

static void measures(void) {
    typedef santa_status (*variance_function)(const float *p, int64_t n, const float *rows, int64_t stride,
                                              int64_t dv, int64_t num_samples, double *variance,
                                              void *workspace, size_t bytes);
    static const variance_function functions[] = {santa_variance_iid, santa_variance_strat,
                                                  santa_variance_sys, variance_pps};
    static float p[LEN];
    double       result = -7.0;
    const size_t bytes  = santa_variance_workspace_size(LEN, DIM_V);
    reset();
    CHECK(bytes <= SCRATCH);
    CHECK_INT(santa_variance_workspace_size(0, DIM_V), 0);
    CHECK_INT(santa_variance_workspace_size(LEN, -1), 0);
    CHECK_INT(santa_variance_workspace_size(INT64_MAX, INT64_MAX), 0);
    for (int f = 0; f < 4; f++) {
        for (int j = 0; j < LEN; j++) p[j] = 1.0f / (float)LEN;
#define VARIANCE(p, n, v, dv, samples, result, w, size)                                                    \
    functions[f](p, n, v, DIM_V, dv, samples, result, w, size)
        EXPECT(ERR_NULL_ARGUMENT, VARIANCE(NULL, LEN, v, DIM_V, 8, &result, got.workspace, bytes));
        EXPECT(ERR_NULL_ARGUMENT, VARIANCE(p, LEN, NULL, DIM_V, 8, &result, got.workspace, bytes));
        EXPECT(ERR_NULL_ARGUMENT, VARIANCE(p, LEN, v, DIM_V, 8, NULL, got.workspace, bytes));
        EXPECT(ERR_SHAPE,         VARIANCE(p, 0, v, DIM_V, 8, &result, got.workspace, bytes));
        EXPECT(ERR_SHAPE,         VARIANCE(p, LEN, v, 0, 8, &result, got.workspace, bytes));
        EXPECT(ERR_SHAPE,         functions[f](p, LEN, v, -1, DIM_V, 8, &result, got.workspace, bytes));
        EXPECT(ERR_TOO_LONG,
               VARIANCE(p, (int64_t)1 << 31, v, DIM_V, 8, &result, got.workspace, bytes));
        EXPECT(ERR_OVERFLOW,
               functions[f](p, LEN, v, 0, PTRDIFF_MAX / 4, 8, &result, got.workspace, bytes));
        EXPECT(ERR_NUM_SAMPLES,   VARIANCE(p, LEN, v, DIM_V, -1, &result, got.workspace, bytes));
        EXPECT(ERR_WORKSPACE_NULL, VARIANCE(p, LEN, v, DIM_V, 8, &result, NULL, bytes));
        EXPECT(ERR_WORKSPACE_SIZE, VARIANCE(p, LEN, v, DIM_V, 8, &result, got.workspace, bytes - 1));
        p[3] = 1.0f;
        EXPECT(ERR_PROBABILITIES, VARIANCE(p, LEN, v, DIM_V, 8, &result, got.workspace, bytes));
        p[3] = test_nan();
        EXPECT(ERR_PROBABILITIES, VARIANCE(p, LEN, v, DIM_V, 8, &result, got.workspace, bytes));
        p[3] = -1.0f / (float)LEN;
        EXPECT(ERR_PROBABILITIES, VARIANCE(p, LEN, v, DIM_V, 8, &result, got.workspace, bytes));
        CHECK_MSG(result == -7.0, "an error wrote a variance");
        p[3] = 1.0f / (float)LEN;
        EXPECT(ERR_NUM_SAMPLES,
               VARIANCE(p, LEN, v, DIM_V, SANTA_MAX_SAMPLES + 1, &result, got.workspace, bytes));
        CHECK_MSG(result == -7.0, "an error wrote a variance");
        EXPECT(OK, VARIANCE(p, LEN, v, DIM_V, SANTA_MAX_SAMPLES, &result, got.workspace, bytes));
        EXPECT(OK, VARIANCE(p, LEN, v, DIM_V, 8, &result, got.workspace, bytes));
        CHECK(result >= 0.0);
        /* a key that is sure adds no variance, but its NaN or infinity shows, whichever it
           is */
        for (int i = 0; i < 3 * LEN; i++) {
            static const int64_t samples[] = {5, LEN, 2 * LEN};
            const float kept = v[i / 3 * DIM_V + 1];
            v[i / 3 * DIM_V + 1] = i % 2 ? test_nan() : positive_infinity();
            for (int j = 0; j < LEN; j++) p[j] = (j % 2 ? 0.5f : 1.5f) / (float)LEN;
            EXPECT(OK, VARIANCE(p, LEN, v, DIM_V, samples[i % 3], &result, got.workspace, bytes));
            CHECK_MSG(!(fabs(result) <= 1e300), "variance %d of a bad key %d: %g", f, i / 3, result);
            v[i / 3 * DIM_V + 1] = kept;
        }
        for (int j = 0; j < LEN; j++) p[j] = 1.0f / (float)LEN;
        result = -7.0;
#undef VARIANCE
        /* rows beyond the address space: only sizes show it, so nothing may be read */
        static const int64_t strides[] = {(int64_t)1 << 62, INT64_MAX, PTRDIFF_MAX / 4 / (LEN - 1) + 1};
        for (int i = 0; i < 3; i++)
            EXPECT(ERR_OVERFLOW,
                   functions[f](p, LEN, v, strides[i], DIM_V, 8, &result, got.workspace, bytes));
        CHECK_MSG(result == -7.0, "an error wrote a variance");
    }
    for (int j = 0; j < LEN; j++) p[j] = 1.0f / (float)LEN;
    EXPECT(OK,                santa_expected_distinct(SANTA_IID, p, LEN, 8, &result));
    EXPECT(ERR_NULL_ARGUMENT, santa_expected_distinct(SANTA_IID, NULL, LEN, 8, &result));
    EXPECT(ERR_NULL_ARGUMENT, santa_expected_distinct(SANTA_IID, p, LEN, 8, NULL));
    EXPECT(ERR_SHAPE,         santa_expected_distinct(SANTA_IID, p, -1, 8, &result));
    EXPECT(ERR_METHOD,        santa_expected_distinct(SANTA_TOP_K, p, LEN, 8, &result));
    EXPECT(ERR_METHOD,        santa_expected_distinct(SANTA_METHOD_COUNT, p, LEN, 8, &result));
    EXPECT(ERR_NUM_SAMPLES,   santa_expected_distinct(SANTA_SYS, p, LEN, -1, &result));
    EXPECT(ERR_NUM_SAMPLES,   santa_expected_distinct(SANTA_SYS, p, LEN, SANTA_MAX_SAMPLES + 1, &result));
    EXPECT(OK,                santa_expected_distinct(SANTA_SYS, p, LEN, SANTA_MAX_SAMPLES, &result));
    p[0] = 0.5f;
    EXPECT(ERR_PROBABILITIES, santa_expected_distinct(SANTA_SYS, p, LEN, 8, &result));
    const double keys = santa_effective_keys(p, LEN);
    CHECK_MSG(test_is_nan((float)keys), "effective keys of no distribution: %g", keys);
    CHECK(test_is_nan((float)santa_normal_quantile(0.0)));
    CHECK(test_is_nan((float)santa_normal_quantile(1.0)));
    CHECK(test_is_nan((float)santa_normal_quantile(nan_d())));
}

/* A backend that writes down what reaches it, and refuses 17 samples. */
static struct {
    int           decodes;
    santa_problem problem;
    void         *workspace;
    size_t        bytes;
} seen;

static santa_status fake_check(const santa_problem *problem) {
    return problem->o.method == SANTA_VATTENTION ? SANTA_ERR_BACKEND_SCORES : SANTA_OK;
}

static size_t fake_workspace_size(const santa_problem *problem) {
    (void)problem;
    return 4711;
}

static santa_status fake_decode(const santa_problem *problem, void *workspace, size_t bytes,
                                santa_stats *stats) {
    seen.decodes++;
    seen.problem   = *problem;
    seen.workspace = workspace;
    seen.bytes     = bytes;
    if (stats) stats->draws = 42;
    return problem->o.num_samples == 17 ? SANTA_ERR_BACKEND_SCORES : SANTA_OK;
}

static struct { int calls; int64_t from, to; void *stream; } encoded;

static santa_status fake_encode(const santa_attention *x, int64_t from, int64_t to, void *stream) {
    (void)x;
    encoded.calls++;
    encoded.from = from;
    encoded.to = to;
    encoded.stream = stream;
    return SANTA_OK;
}

static void move_to(santa_device device) { a.q.device = a.k.device = a.v.device = a.out.device = device; }

static void backend(void) {
    static const santa_backend fake = {"fake", fake_check, fake_workspace_size, fake_decode, NULL, NULL};
    santa_backend broken = fake;
    EXPECT(ERR_BACKEND, santa_register_backend(SANTA_CPU, &fake));
    EXPECT(ERR_BACKEND, santa_register_backend(SANTA_DEVICE_COUNT, &fake));
    santa_device wild = SANTA_DEVICE_COUNT;
    set_enum(&wild, -1);
    EXPECT(ERR_BACKEND, santa_register_backend(wild, &fake));
    broken.decode = NULL;
    EXPECT(ERR_BACKEND, santa_register_backend(SANTA_CUDA, &broken));
    broken = fake;
    broken.workspace_size = NULL;
    EXPECT(ERR_BACKEND, santa_register_backend(SANTA_CUDA, &broken));
    broken = fake;
    broken.check = NULL;
    EXPECT(ERR_BACKEND, santa_register_backend(SANTA_CUDA, &broken));
    broken = fake;
    broken.name = NULL;
    EXPECT(ERR_BACKEND, santa_register_backend(SANTA_CUDA, &broken));
    BAD(ERR_NO_BACKEND, move_to(SANTA_CUDA)); /* none of these took effect */
    CHECK_INT(santa_workspace_size(&a, &o), 0);

    seen.decodes = 0;
    EXPECT(OK, santa_register_backend(SANTA_CUDA, &fake));
    reset();
    move_to(SANTA_CUDA);
    set_method(SANTA_VATTENTION); /* what the backend's own check refuses */
    CHECK_STATUS(santa_check(&a, &o), SANTA_ERR_BACKEND_SCORES);
    CHECK_STATUS(santa_decode(&a, &o, got.workspace, 4711, NULL), SANTA_ERR_BACKEND_SCORES);
    CHECK_INT(santa_workspace_size(&a, &o), 0);
    o.method = SANTA_IID;
    o.num_samples = 16;
    CHECK_INT(santa_workspace_size(&a, &o), 4711);
    EXPECT(OK, santa_decode(&a, &o, got.workspace, 4711, &got.stats));
    CHECK(seen.decodes == 1 && seen.workspace == got.workspace && seen.bytes == 4711);
    CHECK(seen.problem.a.q.data == a.q.data && seen.problem.o.num_samples == 16 &&
          seen.problem.group == HEADS / KV_HEADS);
    CHECK_INT(got.stats.draws, 42);
    o.num_samples = 17;
    /* its own answer */
    CHECK_STATUS(santa_decode(&a, &o, got.workspace, 4711, NULL), SANTA_ERR_BACKEND_SCORES);
    o.num_samples = -1;
    /* the common checks come first */
    EXPECT(ERR_NUM_SAMPLES, santa_decode(&a, &o, got.workspace, 4711, &got.stats));
    o.num_samples = 16;
    a.k.device = SANTA_CPU;
    EXPECT(ERR_DEVICE_MISMATCH, santa_decode(&a, &o, got.workspace, 4711, &got.stats));
    CHECK_INT(seen.decodes, 2);
    move_to(SANTA_CPU);
    clear_outputs();
    CHECK_STATUS(santa_decode(&a, &o, got.workspace, SCRATCH, &got.stats), SANTA_OK);
    CHECK_INT(seen.decodes, 2);
    CHECK_INT(got.stats.draws, lens[0] > 0 ? (int64_t)OUT_ROWS * 16 : 0);
    move_to(SANTA_CUDA); /* the steps are for CPU tensors only */
    static float scores[HEADS / KV_HEADS * LEN];
    EXPECT(ERR_DEVICE, santa_scores(&a, &o, 0, 0, 0, scores, LEN, got.workspace, SCRATCH));
    static const int32_t index[1] = {0};
    static const float   weight[1] = {1.0f};
    EXPECT(ERR_DEVICE, santa_gather(&a, 0, 0, index, weight, 1, got.out));

    reset_proxy(); /* a copy of K, by who can make one */
    a.k.device = SANTA_CUDA;
    EXPECT(ERR_BACKEND_PROXY, santa_proxy_encode(&a, 0, LEN, NULL));
    EXPECT(ERR_BACKEND_PROXY, santa_proxy_append(&a, 1, NULL));
    new_keys = a.k;
    EXPECT(ERR_BACKEND_BUCKETS, santa_buckets_assign(&a, &new_keys, 0, NULL));
    santa_backend able = fake;
    able.proxy_encode = fake_encode;
    EXPECT(OK, santa_register_backend(SANTA_CUDA, &able));
    lens[0] = -7;                                                           /* not ours to read there */
    EXPECT(OK, santa_proxy_encode(&a, 3, 9, &able));
    CHECK(encoded.calls == 1 && encoded.from == 3 && encoded.to == 9 && encoded.stream == &able);
    EXPECT(OK, santa_proxy_append(&a, 5, NULL));
    CHECK(encoded.calls == 2 && encoded.from == -5 && encoded.stream == NULL);
    EXPECT(ERR_PROXY_RANGE, santa_proxy_encode(&a, -3, 9, NULL));
    a.proxy = NULL;
    EXPECT(ERR_PROXY_NULL, santa_proxy_append(&a, 5, NULL));
    CHECK_INT(encoded.calls, 2);
    EXPECT(OK, santa_register_backend(SANTA_CUDA, NULL));                        /* takes it out again */
    reset();
    move_to(SANTA_CUDA);
    EXPECT(ERR_NO_BACKEND, santa_decode(&a, &o, got.workspace, 4711, &got.stats));
}

static void every_status(void) {
    /* from ERR_BACKEND_SPARSE on it is the GPU backend that refuses: test/cuda produces
       those */
    for (int i = 0; i < SANTA_ERR_BACKEND_SPARSE; i++)
        CHECK_MSG(produced[i], "no case of this suite produced %s", statuses[i].name);
}

/* every_status counts what the cases before it produced, so with a filter that leaves them out
   it runs them first. */
static void all_statuses(void) {
    static void (*const parts[])(void) = {
        valid_calls, null_pointers, types_and_devices, q8_0, q4_0_and_e5m2, shapes, overflows,
        overflowing_spans, overflowing_rows, overflowing_plans, sequences, score_extras,
        method_options, threads_and_items, ranks, vattention_options, sparse_options, proxy_options,
        proxy_copies, workspaces, steps, budgets, measures
    };
    if (!produced[SANTA_OK])
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) parts[i]();
    if (!produced[SANTA_ERR_BACKEND]) backend();
    every_status();
}

const test_case suite_errors[] = {
    {"statuses have distinct texts", texts},
    {"statuses have their names", names},
    {"version and sizes of structs", version_and_structs},
    {"valid calls", valid_calls},
    {"null pointers", null_pointers},
    {"types and devices", types_and_devices},
    {"q8_0", q8_0},
    {"q4_0 and e5m2", q4_0_and_e5m2},
    {"shapes", shapes},
    {"overflowing sizes and strides", overflows},
    {"overflowing spans of a tensor", overflowing_spans},
    {"overflowing rows of results", overflowing_rows},
    {"overflowing plans", overflowing_plans},
    {"seq_lens and block_table", sequences},
    {"score extras", score_extras},
    {"method options", method_options},
    {"options that a method does not read", unused_options},
    {"the list of options", option_list},
    {"names and traits of methods, problems", methods_and_problems},
    {"ranks", ranks},
    {"threads and items", threads_and_items},
    {"vattention options", vattention_options},
    {"sample-attention options", sparse_options},
    {"proxy options", proxy_options},
    {"copies of K", proxy_copies},
    {"buckets", buckets},
    {"k-means", kmeans},
    {"workspace", workspaces},
    {"steps", steps},
    {"budgets", budgets},
    {"measures", measures},
    {"a second backend", backend},
    {"every status was produced", all_statuses},
    {0, 0}
};
