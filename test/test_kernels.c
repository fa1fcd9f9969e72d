/* The inner loops: every instruction set of this machine, every type of K and V, head dims that
   fill no vector, blocks that are not full, rows at odd addresses. Scores against float64
   within a proven bound, results against float64 and against the scalar code; NaN and
   infinities of every type. */
#include "reference.h"

enum { HALF_EPS = 24 };                      /* a float rounds off at most 2^-24 of itself */

static const char *const type_names[] = {"f32", "f16", "bf16", "e4m3", "q8_0", "e5m2", "q4_0"};

/* The head dims that type can have: within, at and beyond one vector of each instruction
   set. */
static int dims_of(santa_dtype type, const int64_t **dims) {
    static const int64_t any[] = {1, 7, 33, 80, 96, 128}, blocks[] = {32, 96, 128};
    *dims = ref_is_blocks(type) ? blocks : any;
    return ref_is_blocks(type) ? 3 : 6;
}

/* K and V once more, `at` bytes into memory of their own. */
static void *moved(santa_tensor *t, size_t at) {
    const size_t bytes = (size_t)ref_bytes(t->dtype, t->shape[0] * t->stride[0]);
    char *memory = (char *)test_alloc(bytes + at);
    t->data = memcpy(memory + at, t->data, bytes);
    return memory;
}

/* |score - exact| <= (head_dim + 3) 2^-24 sum |q_c k_c| |scale|: a product, a sum and a scaled
   q each round once, and no order of head_dim terms rounds a term more than head_dim times.
   Numbers of all types are exact as floats. */
static int scores_are_close(const ref_problem *p, const float *got, int64_t kv, const char *what) {
    const ref_spec *s = &p->spec;
    const int64_t group = s->heads / s->kv_heads;
    double *want = ref_doubles(s->len);
    int good = 1;
    for (int64_t g = 0; g < group && good; g++) {
        const double *q = p->q + (kv * group + g) * s->head_dim;
        (void)ref_scores(p, 0, 0, kv * group + g, want);
        for (int64_t j = 0; j < s->len && good; j++) {
            const double *k = p->k + (j * s->kv_heads + kv) * s->head_dim;
            double size = 0.0;
            for (int64_t c = 0; c < s->head_dim; c++) size += fabs(q[c] * k[c]);
            const double bound =
                ldexp((double)(s->head_dim + 3) * size / sqrt((double)s->head_dim), -HALF_EPS);
            good = CHECK_MSG(fabs((double)got[g * s->len + j] - want[j]) <= bound,
                             "%s: score of head %d, key %d: got %.9g, want %.9g within %.2g", what, (int)g,
                             (int)j, (double)got[g * s->len + j], want[j], bound);
        }
    }
    free(want);
    return good;
}

static int dense_is_close(const ref_problem *p, const char *what) {
    const ref_spec *s = &p->spec;
    double *want = ref_doubles(s->head_dim_v);
    int good = 1;
    for (int64_t h = 0; h < s->heads && good; h++) {
        const double lse = ref_dense(p, 0, 0, h, want, NULL);
        good = CHECK_MSG(fabs((double)p->lse[h] - lse) <= 1e-5, "%s: lse %.9g, want %.9g", what,
                         (double)p->lse[h], lse) &&
               check_array_near(what, (const float *)p->a.out.data + h * s->head_dim_v, want, s->head_dim_v,
                                2e-5, 1e-5);
    }
    free(want);
    return good;
}

/* One problem on all instruction sets. */
static void on_every_isa(const ref_spec *spec, size_t at) {
    ref_problem p;
    ref_build(&p, spec);
    void *k = moved(&p.a.k, at), *v = moved(&p.a.v, at);
    const int64_t group = spec->heads / spec->kv_heads, numbers = spec->heads * spec->head_dim_v;
    float  *scores = ref_floats(group * spec->len);
    double *scalar = ref_doubles(numbers);
    FOR_EACH_ISA (isa) {
        char what[128];
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        o.isa = isa;
        snprintf(what, sizeof what, "%s, %s, head dims %d and %d, group %d, %d keys, at +%d",
                 santa_isa_name(isa), type_names[spec->k_type], (int)spec->head_dim, (int)spec->head_dim_v,
                 (int)group, (int)spec->len, (int)at);
        const size_t bytes = santa_workspace_size(&p.a, &o);
        void *workspace = test_alloc(bytes);
        for (int64_t kv = 0; kv < spec->kv_heads; kv++)
            if (CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, kv, scores, spec->len, workspace, bytes),
                             SANTA_OK))
                scores_are_close(&p, scores, kv, what);
        free(workspace);
        if (!ref_run(&p, &o, NULL)) break;
        dense_is_close(&p, what);
        if (isa == SANTA_ISA_SCALAR)
            for (int64_t i = 0; i < numbers; i++) scalar[i] = (double)((const float *)p.a.out.data)[i];
        else
            check_array_near(what, (const float *)p.a.out.data, scalar, numbers, 4e-6, 4e-6);
    }
    free(scores);
    free(scalar);
    free(k);
    free(v);
    ref_free(&p);
}

static void every_type(santa_dtype type, santa_dtype q_type) {
    static const int64_t lens[] = {1, 63, 64, 65, 200};
    const int64_t *dims;
    const int count = dims_of(type, &dims);
    int turn = 0;
    for (int d = 0; d < count; d++)
        for (int64_t group = 1; group <= 9; group++)
            for (int n = 0; n < 5; n++, turn++) {
                /* what becomes f32 first has less code of its own; no number divides what
                   turns */
                if (turn % (test_quick ? 11 : type == SANTA_E5M2 || type == SANTA_Q4_0 ? 7 : 1)) continue;
                const int64_t kv_heads = 1 + turn % 2;
                ref_spec s = ref_spec_make(group * kv_heads, kv_heads, lens[n], dims[d]);
                s.k_type = s.v_type = type;
                s.q_type = q_type;
                s.head_dim_v = dims[(d + group) % count];
                s.layout     = turn % 3 == 2 ? REF_HND : REF_NHD;
                s.stream     = (uint64_t)turn;
                on_every_isa(&s, turn % 4 ? (size_t)(2 * turn % 64 + 1) : 0);
            }
}
static void kernels_f32(void)  { every_type(SANTA_F32, SANTA_F32); }
static void kernels_f16(void)  { every_type(SANTA_F16, SANTA_F32); }
static void kernels_bf16(void) { every_type(SANTA_BF16, SANTA_F32); }
static void kernels_bf16_query(void) { every_type(SANTA_BF16, SANTA_BF16); }
static void kernels_e4m3(void) { every_type(SANTA_E4M3, SANTA_F32); }
static void kernels_q8_0(void) { every_type(SANTA_Q8_0, SANTA_F32); }
/* Rows so long that they become f32 part by part. */
static void long_rows(santa_dtype type) {
    for (int64_t group = 1; group <= 6; group++) {
        ref_spec s = ref_spec_make(2 * group, 2, 30 + 9 * group, type == SANTA_Q4_0 ? 544 : 600 + group);
        s.k_type = s.v_type = type;
        s.layout = group % 2 ? REF_NHD : REF_HND;
        on_every_isa(&s, 3);
    }
}
static void kernels_e5m2(void) { every_type(SANTA_E5M2, SANTA_F32); long_rows(SANTA_E5M2); }
static void kernels_q4_0(void) { every_type(SANTA_Q4_0, SANTA_F32); long_rows(SANTA_Q4_0); }

/* The library's exp, to the last bit, by way of vAttention's full guarantee: of two fixed keys
   the first scores 0 with V = 0, the second x with V = 1, and the sample has V = 0 at score 0;
   so the audit's |N|, a double, is the float exp(x). */
static void exponentials(void) {
    enum { KEYS = 66, HEADS = 64, FIXED = 2 };
    static float q[HEADS], k[KEYS], v[KEYS], out[HEADS];
    static santa_audit audit[HEADS];
    k[1] = v[1] = 1.0f;
    FOR_EACH_ISA (isa) {
        santa_attention a;
        santa_options o = ref_options(SANTA_VATTENTION, 0, 1);
        test_rng r = test_rng_make(4);
        double worst = 0.0, at = 0.0;
        memset(&a, 0, sizeof a);
        a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, 1);
        a.k   = santa_view(k, SANTA_F32, 1, KEYS, 1, 1);
        a.v   = santa_view(v, SANTA_F32, 1, KEYS, 1, 1);
        a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, 1);
        a.sm_scale = 1.0f;
        o.isa = isa;
        o.vattention.sink_tokens  = FIXED;
        o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
        o.vattention.base_samples = 2;
        o.vattention.epsilon   = 0.9;
        o.vattention.guarantee = SANTA_GUARANTEE_FULL;
        o.vattention.audit     = audit;
        const size_t bytes = santa_workspace_size(&a, &o);
        void *workspace = test_alloc(bytes);
        for (int turn = 0; turn < (test_quick ? 40 : 400); turn++) {
            /* everywhere, near 0, at multiples of ln 2 / 2, at the edge */
            for (int h = 0; h < HEADS; h++)
                q[h] = turn % 4 == 0   ? (float)(-87.0 * test_uniform(&r))
                       : turn % 4 == 1 ? (float)-ldexp(1.0, (int)(-40.0 * test_uniform(&r)))
                       : turn % 4 == 2 ? (float)(-0.34657359 * (double)test_below(&r, 251)
                                                 + 1e-6 * (test_uniform(&r) - 1.0))
                                       : (float)(-86.9 - 0.2 * test_uniform(&r));
            q[0] = turn % 2 ? -87.0f : -0.0f;
            q[1] = -88.0f;
            if (!CHECK_STATUS(santa_decode(&a, &o, workspace, bytes, NULL), SANTA_OK)) break;
            for (int h = 0; h < HEADS; h++) {
                const double x = (double)q[h], got = audit[h].norm, error = fabs(got / exp(x) - 1.0);
                CHECK(audit[h].num_base == 2 && audit[h].trace == 0.0);
                if (x < -87.0) CHECK_MSG(got == 0.0, "%s: exp(%.9g) = %g", santa_isa_name(isa), x, got);
                else if (!(error <= worst)) { worst = error; at = x; }
            }
        }
        CHECK_MSG(worst <= 1.25e-7, "%s: exp(%.9g) is off by %.3g of itself", santa_isa_name(isa), at,
                  worst);
        free(workspace);
    }
}

/* ------------------------------------------------------------ which code runs */

/* AUTO is the last one that the machine has; the names are all there; each rounds in its own
   way, so a forced one that ran other code would show. (With FMA everywhere the compiler may
   make AVX2 of the scalar code.) */
static void choice(void) {
    enum { NUMBERS = 16 * 128 };
    float last[NUMBERS] = {0.0f};
    santa_isa best = SANTA_ISA_AUTO;
    ref_spec s = ref_spec_make(16, 2, 200, 128);
    ref_problem p;
    s.k_type = SANTA_BF16;                     /* of groups of eight, for AMX */
    ref_build(&p, &s);
    FOR_EACH_ISA (isa) {
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        int fused = 0;
#ifdef __FMA__
        fused = isa == SANTA_ISA_AVX2;
#endif
        o.isa = best = isa;
        if (!ref_run(&p, &o, NULL)) break;
        CHECK_MSG(fused || memcmp(last, p.a.out.data, sizeof last), "%s has the bits of the one before",
                  santa_isa_name(isa));
        memcpy(last, p.a.out.data, sizeof last);
    }
    CHECK_INT(santa_best_isa(), best);
    const santa_options automatic = ref_options(SANTA_DENSE, 0, 0);
    if (ref_run(&p, &automatic, NULL)) CHECK(!memcmp(last, p.a.out.data, sizeof last));
    ref_free(&p);
    for (int i = 0; i < SANTA_ISA_COUNT; i++)
        for (int j = 0; j < i; j++)
            CHECK(strcmp(santa_isa_name((santa_isa)i), santa_isa_name((santa_isa)j)));
    CHECK(!strcmp(santa_isa_name(SANTA_ISA_COUNT), "not a santa_isa"));
    CHECK(!santa_isa_supported(SANTA_ISA_COUNT));
    CHECK(santa_isa_supported(SANTA_ISA_AUTO) && santa_isa_supported(SANTA_ISA_SCALAR));
}

/* An instruction set needs every one of the features that its kernels are compiled with. */
static void isa_needs_its_features(void) {
    static const char *const feature[] = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                                          "avx512vnni"};
    const int avx2 = santa_isa_supported(SANTA_ISA_AVX2);
    if (!avx2) SKIP("no x86 with AVX2");
    for (int i = 0; i < 7; i++) {
        test_cpu_lacks = feature[i];
        CHECK_INT(santa_isa_supported(SANTA_ISA_AVX2), i >= 2);
        CHECK_MSG(!santa_isa_supported(SANTA_ISA_AVX512), "AVX-512 without %s", feature[i]);
        CHECK_MSG(!santa_isa_supported(SANTA_ISA_AMX), "AMX without %s", feature[i]);
        CHECK_INT(santa_best_isa(), i >= 2 ? SANTA_ISA_AVX2 : SANTA_ISA_SCALAR);
    }
    test_cpu_lacks = NULL;
}

/* ------------------------------------------------------------ not a number */

/* Overwrites number c of a row with the type's bits; in blocks they are the scale of the
   number's own. */
static void put_bits(const santa_tensor *t, int64_t j, int64_t h, int64_t c, uint32_t bits) {
    char *row = (char *)t->data + ref_bytes(t->dtype, ref_at(t, 0, j, h, 0));
    const uint8_t  e = (uint8_t)bits;
    const uint16_t half = (uint16_t)bits;
    if (t->dtype == SANTA_F32)       memcpy(row + 4 * c, &bits, 4);
    else if (t->dtype == SANTA_E4M3 || t->dtype == SANTA_E5M2) memcpy(row + c, &e, 1);
    else if (ref_is_blocks(t->dtype)) memcpy(row + ref_bytes(t->dtype, c / 32 * 32), &half, 2);
    else                             memcpy(row + 2 * c, &half, 2);
}

/* Quiet and signalling, of both signs; then the infinities. q8_0's infinite scale times an int8
   of 0 is NaN, times others not. */
static const uint32_t nans[7][4] = {
    {0x7fc00000u, 0xffc00001u, 0x7f800001u, 0xff800001u}, {0x7e00u, 0xfe01u, 0x7c01u, 0xfc01u},
    {0x7fc0u, 0xffc1u, 0x7f81u, 0xff81u}, {0x7fu, 0xffu, 0x7fu, 0xffu},
    {0x7e00u, 0xfe01u, 0x7c01u, 0xfc01u}, {0x7eu, 0xffu, 0x7du, 0xfdu},
    {0x7e00u, 0xfe01u, 0x7c01u, 0xfc01u},
};
static const uint32_t plus_infinity[3] = {0x7f800000u, 0x7c00u, 0x7f80u},
                      sign_bit[3] = {0x80000000u, 0x8000u, 0x8000u};

enum { NAN_KEYS = 130, NAN_HEADS = 6, NAN_KV = 2 };

static ref_spec nan_spec(int type, int wide) {
    const santa_dtype t = (santa_dtype)type;
    ref_spec s = ref_spec_make(NAN_HEADS, NAN_KV, NAN_KEYS, wide ? 96 : ref_is_blocks(t) ? 32 : 33);
    s.k_type = s.v_type = t;
    if (type == SANTA_BF16 && wide) s.q_type = SANTA_BF16; /* products of bf16, where the CPU has them */
    return s;
}

static int row_is_nan(const ref_problem *p, int64_t h) {
    int all = test_is_nan(p->lse[h]);
    for (int64_t c = 0; c < p->spec.head_dim_v; c++)
        all = all && test_is_nan((float)ref_get(&p->a.out, 0, 0, h, c));
    return all;
}
static int row_is_finite(const ref_problem *p, int64_t h) {
    int all = fabs((double)p->lse[h]) < 1e30;
    for (int64_t c = 0; c < p->spec.head_dim_v; c++)
        all = all && fabs(ref_get(&p->a.out, 0, 0, h, c)) < 1e30;
    return all;
}

/* A NaN anywhere in K spoils the rows of that KV head, for every method that reads it, and no
   others. */
static void nan_in_k(void) {
    static const int64_t keys[] = {0, 63, 64, 129};
    for (int type = SANTA_F32; type <= SANTA_Q4_0; type++)
        for (int turn = 0; turn < 8 * 4; turn++) {
            const ref_spec s = nan_spec(type, turn & 1);
            ref_problem p;
            if (test_quick && turn % 5) continue;
            ref_build(&p, &s);
            const int64_t feature = turn / 8 == 0   ? 0
                                    : turn / 8 == 1 ? s.head_dim - 1
                                    : turn / 8 == 2 ? s.head_dim / 2
                                                    : 31;
            put_bits(&p.a.k, keys[turn / 2 % 4], turn % 2, feature, nans[type][turn % 4]);
            for (int m = 0; m < SANTA_VATTENTION; m++)
                FOR_EACH_ISA (isa) {
                    santa_options o = ref_options((santa_method)m, 8, 1);
                    o.isa = isa;
                    p.a.std_error = ref_has_error((santa_method)m) ? p.std_error : NULL;
                    if (!ref_run(&p, &o, NULL)) break;
                    for (int64_t h = 0; h < NAN_HEADS; h++)
                        CHECK_MSG(h / (NAN_HEADS / NAN_KV) == turn % 2 ? row_is_nan(&p, h)
                                                                       : row_is_finite(&p, h),
                                  "%s, %s, %s, turn %d: head %d", santa_isa_name(isa), type_names[type],
                                  santa_method_name(o.method), turn, (int)h);
                }
            ref_free(&p);
        }
}

/* A NaN in V shows in its column (of q8_0 in its block's columns) of the heads that read the
   row, and nowhere else. */
static void nan_in_v(void) {
    for (int type = SANTA_F32; type <= SANTA_Q4_0; type++)
        for (int turn = 0; turn < 8; turn++) {
            const ref_spec s = nan_spec(type, turn & 1);
            ref_problem p;
            ref_build(&p, &s);
            const int64_t bad = turn / 2 % 2 ? s.head_dim_v - 1 : 0;
            put_bits(&p.a.v, turn < 4 ? 0 : 129, 1, bad, nans[type][turn / 2]);
            FOR_EACH_ISA (isa) {
                santa_options o = ref_options(SANTA_DENSE, 0, 0);
                o.isa = isa;
                if (!ref_run(&p, &o, NULL)) break;
                for (int64_t h = 0; h < NAN_HEADS; h++)
                    for (int64_t c = 0; c < s.head_dim_v; c++) {
                        const int there = ref_is_blocks((santa_dtype)type) ? c / 32 == bad / 32 : c == bad;
                        const int want  = there && h / (NAN_HEADS / NAN_KV) == 1;
                        CHECK_MSG(test_is_nan((float)ref_get(&p.a.out, 0, 0, h, c)) == want &&
                                      !test_is_nan(p.lse[h]),
                                  "%s, %s, turn %d: head %d, column %d", santa_isa_name(isa),
                                  type_names[type], turn, (int)h, (int)c);
                    }
            }
            ref_free(&p);
        }
}

/* An infinite score of plus sign is as bad as NaN, one of minus sign a masked key. */
static void infinite_k(void) {
    for (int type = SANTA_F32; type <= SANTA_BF16; type++)
        for (int turn = 0; turn < 4; turn++) {
            const ref_spec s = nan_spec(type, turn & 1);
            ref_problem p;
            ref_build(&p, &s);
            const int64_t key = turn < 2 ? 5 : 129, c = s.head_dim - 1;
            for (int sign = 0; sign < 2; sign++) {
                for (int64_t h = 0; h < NAN_HEADS; h++) p.q[h * s.head_dim + c] = 1.0;
                ref_write(&p);
                put_bits(&p.a.k, key, 0, c, plus_infinity[type] | (sign ? sign_bit[type] : 0u));
                p.k[key * NAN_KV * s.head_dim + c] = sign ? -REF_INF : REF_INF;
                FOR_EACH_ISA (isa) {
                    santa_options o = ref_options(SANTA_DENSE, 0, 0);
                    o.isa = isa;
                    if (!ref_run(&p, &o, NULL)) break;
                    for (int64_t h = 0; h < 3 && !sign; h++) CHECK(row_is_nan(&p, h));
                    for (int64_t h = 3; h < 6 && !sign; h++) CHECK(row_is_finite(&p, h));
                    if (sign) dense_is_close(&p, "a key at minus infinity");
                }
            }
            ref_free(&p);
        }
}

/* ------------------------------------------------------------ groups of many heads */

/* bf16 keys for groups that AMX takes and those around them: queries of few bits and of many,
   zeros, numbers beyond all others, infinities and NaN on both sides. Scores are of the same
   kind as the scalar code's, and within rounding where finite. */
static void many_heads_and_no_numbers(void) {
    enum { MOST = 17, N = 131 };
    static const int64_t groups[] = {4, 5, 8, 9, 12, 13, 17}, dims[] = {32, 64, 128, 288};
    static const double odd[] = {0.0, -0.0, 1.0, -0.5, 1e30, -1e30, REF_INF, -REF_INF, (double)NAN, 1e-30};
    static float scores[SANTA_ISA_COUNT][MOST * N];
    test_rng state = test_rng_make(1);
    for (int turn = 0; turn < (test_quick ? 28 : 280); turn++) {
        ref_spec s = ref_spec_make(groups[turn % 7], 1, N - turn % 19, dims[turn / 7 % 4]);
        const int64_t group = s.heads, d = s.head_dim;
        ref_problem p;
        s.k_type = SANTA_BF16;
        if (turn & 1) s.q_type = SANTA_BF16;
        if (turn & 2) s.page_size = 7;
        if (turn & 4) s.sm_scale = 0.125f;     /* queries of bf16 keep their few bits */
        ref_build(&p, &s);
        for (int i = 0; i < turn % 5; i++) {
            p.q[test_below(&state, group) * d + test_below(&state, d)] = odd[test_below(&state, 10)];
            p.k[test_below(&state, s.len) * d + test_below(&state, d)] = odd[test_below(&state, 10)];
        }
        ref_write(&p);
        FOR_EACH_ISA (isa) {
            santa_options o = ref_options(SANTA_DENSE, 0, 0);
            o.isa = isa;
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *workspace = test_alloc(bytes);
            CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores[isa], s.len, workspace, bytes), SANTA_OK);
            free(workspace);
            for (int64_t i = 0; i < group * s.len; i++) {
                const float want = scores[SANTA_ISA_SCALAR][i], got = scores[isa][i];
                const int is_number = !test_is_nan(want) && want > -1e38f && want < 1e38f;
                double size = 0.0;                                     /* of the products */
                for (int64_t c = 0; c < d && is_number; c++)
                    size += fabs(p.q[i / s.len * d + c] * p.k[i % s.len * d + c]);
                if (is_number ? !(fabs((double)got - (double)want) <= 1e-6 * (size + 1.0))
                              : test_is_nan(want) ? !test_is_nan(got) : !(got == want)) {
                    CHECK_MSG(0, "%s, turn %d, group %d, head dim %d, score %d: %g, not %g",
                              santa_isa_name(isa), turn, (int)group, (int)d, (int)i, (double)got,
                              (double)want);
                    break;
                }
            }
        }
        ref_free(&p);
    }
}

const test_case suite_kernels[] = {
    {"an instruction set needs all its features", isa_needs_its_features},
    {"the choice of an instruction set", choice},
    {"f32: scores and dense, all shapes", kernels_f32},
    {"f16: scores and dense, all shapes", kernels_f16},
    {"bf16: scores and dense, all shapes", kernels_bf16},
    {"bf16 with a bf16 query: scores and dense, all shapes", kernels_bf16_query},
    {"e4m3: scores and dense, all shapes", kernels_e4m3},
    {"q8_0: scores and dense, all shapes", kernels_q8_0},
    {"e5m2: scores and dense, all shapes", kernels_e5m2},
    {"q4_0: scores and dense, all shapes", kernels_q4_0},
    {"exp against double", exponentials},
    {"NaN in K", nan_in_k},
    {"NaN in V", nan_in_v},
    {"infinities in K", infinite_k},
    {"bf16 for many heads, with no numbers", many_heads_and_no_numbers},
    {0, 0},
};
