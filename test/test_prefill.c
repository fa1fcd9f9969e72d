/* Dense attention of many query rows against float64, and what its bits may not depend on: the
   batch, layout, pages, threads, items, and how a prompt is cut into calls. */
#include "prefill.h"
#if !defined(_WIN32)
#include <pthread.h>
#endif

static int64_t less(int64_t full, int64_t quick) { return test_quick ? quick : full; }

static ref_spec spec_of(int64_t heads, int64_t kv_heads, int64_t q_len, int64_t len, int64_t d) {
    ref_spec s = ref_spec_make(heads, kv_heads, len, d);
    s.q_len  = q_len;
    s.causal = 1;
    return s;
}

/* Where products are of pairs of bf16, if the machine has them. */
static void make_bf16(ref_spec *s) {
    s->q_type = s->k_type = s->v_type = s->out_type = SANTA_BF16;
    s->head_dim = 32;
}

static santa_options dense(santa_isa isa) {
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    o.isa = isa;
    return o;
}

/* What calls of one row count, added up. */
static int counts_are_right(const ref_problem *p, const santa_stats *x) {
    const ref_spec *s = &p->spec;
    int64_t keys = 0;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->q_len; i++) {
            const pf_range r = pf_range_of(p, b, i);
            keys += (r.end - r.begin - (r.gap_end - r.gap)) * s->kv_heads;
        }
    return CHECK_INT(x->rows, s->batch * s->q_len * s->heads) & CHECK_INT(x->keys, keys) &
           CHECK_INT(x->k_rows_read, keys) & CHECK_INT(x->v_rows_read, keys) &
           CHECK_INT(x->v_rows_head, keys * (s->heads / s->kv_heads)) &
           CHECK_INT(x->k_features_read, keys * s->head_dim) &
           CHECK_INT(x->k_features_head, keys * s->head_dim * (s->heads / s->kv_heads)) &
           CHECK_INT(x->dense_rows, 0) & CHECK_INT(x->draws, 0);
}

/* Every instruction set: one gets all rows compared, the others every third. */
static int matches(const ref_spec *spec, const char *what, double abs_tol) {
    int good = 1;
    FOR_EACH_ISA (isa) {
        ref_problem p;
        if (!good) break;
        ref_build(&p, spec);
        const santa_options o = dense(isa);
        santa_stats stats;
        pf_poison(&p);
        good = ref_run(&p, &o, &stats) &&
               pf_compare(&p, NULL, isa == SANTA_ISA_SCALAR ? 1 : 3, what, abs_tol) &&
               counts_are_right(&p, &stats);
        for (int64_t x = 0; x < spec->batch * spec->q_len * spec->heads; x++)
            good = good && CHECK(p.std_error[x] == 0.0f);
        ref_free(&p);
    }
    return good;
}

static void types(void) {
    char what[64];
    for (int mix = 0; mix < 5 * 5 * 9; mix++) {
        if (test_quick ? mix % 17 : mix % 3) continue;        /* 3 and 5 have no common divisor */
        ref_spec s = spec_of(4, 2, 33, 70, 32);
        s.stream     = (uint64_t)mix;
        s.k_type     = (santa_dtype)(mix % 5);
        s.v_type     = (santa_dtype)(mix / 5 % 5);
        s.q_type     = (santa_dtype)(mix / 25 % 3);
        s.out_type   = (santa_dtype)(mix / 75);
        s.head_dim_v = 64;
        snprintf(what, sizeof what, "types q %d k %d v %d out %d", s.q_type, s.k_type, s.v_type,
                 s.out_type);
        if (!matches(&s, what, 2e-5)) return;
    }
}

static void head_dims(void) {
    static const int64_t dims[][2] = {{1, 1},     {1, 200},  {7, 33},   {33, 7},    {64, 64},  {128, 128},
                                      {200, 128}, {15, 16},  {17, 31},  {576, 512}, {16, 256}, {96, 1}};
    char what[64];
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int type = 0; type < 3; type++) {
            ref_spec s = spec_of(2, 1, 34 + (int64_t)i, 75, dims[i][0]);
            s.head_dim_v = dims[i][1];
            s.k_type = s.v_type = (santa_dtype)type;
            snprintf(what, sizeof what, "head_dim %d, head_dim_v %d, type %d", (int)s.head_dim,
                     (int)s.head_dim_v, type);
            if (!matches(&s, what, 2e-5)) return;
        }
}

/* Pieces of a power of two of rows, or of one, with more queries than a piece has; panels that
   are not full, or hold rows of two heads. */
static void groups(void) {
    static const int64_t group[] = {1, 2, 3, 4, 7, 8, 40, 129, 300};
    char what[64];
    for (size_t i = 0; i < sizeof group / sizeof *group; i++)
        for (int64_t kv_heads = 1; kv_heads <= (group[i] < 40 ? 3 : 1); kv_heads += 2) {
            ref_spec s = spec_of(group[i] * kv_heads, kv_heads, i % 2 ? 37 : 101, 120, 8);
            if (group[i] > 40) s.q_len = 32;
            snprintf(what, sizeof what, "group %d, %d kv heads", (int)group[i], (int)kv_heads);
            if (!matches(&s, what, 2e-5)) return;
        }
}

static void lengths(void) {
    static const int64_t rows[] = {32, 33, 63, 64, 65, 100, 200},
                         lens[] = {1, 31, 63, 64, 65, 100, 128, 200, 257, 400};
    char what[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
            ref_spec s = spec_of(3, 1, rows[i], lens[k], 5);
            s.causal = (i + k) % 3 != 0;
            if (test_quick && (i + k) % 4) continue;
            snprintf(what, sizeof what, "%d rows, %d keys, causal %d", (int)rows[i], (int)lens[k],
                     s.causal);
            if (!matches(&s, what, 2e-5)) return;
            if (k % 3) continue;
            s.batch  = 6;
            s.ragged = 1;
            snprintf(what, sizeof what, "%d rows, ragged batch up to %d keys", (int)rows[i], (int)lens[k]);
            if (!matches(&s, what, 2e-5)) return;
        }
}

/* Everything that is not in use is NaN, and pages past the last one in use are wild. */
static void layouts_and_pages(void) {
    static const int64_t pages[] = {0, 1, 3, 16, 64, 100, 128};
    char what[80];
    for (int layout = 0; layout < REF_LAYOUTS; layout++)
        for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
            if (test_quick && (layout + (int)i) % 3) continue;
            ref_spec s = spec_of(4, 2, 40, 150, 33);
            s.layout    = (ref_layout)layout;
            s.page_size = pages[i];
            s.batch     = 6;
            s.ragged    = 1;
            s.k_type = s.v_type = (santa_dtype)((layout + (int)i) % 3);
            snprintf(what, sizeof what, "layout %d, page size %d", layout, (int)pages[i]);
            if (!matches(&s, what, 2e-5)) return;
        }
}

static void extras(void) {
    char what[96];
    for (int mix = 0; mix < 64; mix++) {
        if (test_quick && mix % 5) continue;
        ref_spec s = spec_of(6, 2, 32 + mix % 9 * 13, 100 + mix, 24);
        s.sinks    = mix & 1;
        s.alibi    = mix >> 1 & 1;
        s.soft_cap = mix & 4 ? 2.0f : 0.0f;
        s.window   = mix & 8 ? 1 + mix * 2 : 0;
        s.causal   = !(mix & 16);
        s.ragged   = mix >> 5;
        s.batch    = s.ragged ? 6 : 1;
        s.sm_scale = mix % 3 ? 0.0f : 0.4f;
        snprintf(what, sizeof what, "extras %d", mix);
        if (!matches(&s, what, 2e-5)) return;
    }
}

/* A cap far above all scores is none: what it takes off them is small, and not lost. */
static void large_caps(void) {
    static const float caps[] = {20.0f, 1e3f, 1e4f, 1e6f, 1e8f, 1e30f};
    char what[64];
    for (int i = 0; i < 6; i++)
        for (int gain = 1; gain <= 16; gain *= 4) {
            ref_spec s = spec_of(4, 2, 32, 130, 24);
            s.soft_cap = caps[i];
            s.gain     = (double)gain;
            snprintf(what, sizeof what, "soft cap %g, gain %d", (double)caps[i], gain);
            if (!matches(&s, what, 2e-5)) return;
        }
}

/* The mean of |v| by the softmax: what an error of the weights is times. */
static void means_of_sizes(ref_problem *p, int64_t step, double *mean) {
    const ref_spec *s = &p->spec;
    const int64_t count = s->batch * s->len * s->kv_heads * s->head_dim_v;
    double *v = p->v;
    p->v = ref_doubles(count);
    for (int64_t i = 0; i < count; i++) p->v[i] = fabs(v[i]);
    for (int64_t x = 0; x < s->batch * s->q_len * s->heads; x += step, mean += s->head_dim_v)
        pf_row(p, NULL, x / s->heads / s->q_len, x / s->heads % s->q_len, x % s->heads, mean, NULL);
    free(p->v);
    p->v = v;
}

/* Where q, K, V and out are bf16 weights may be rounded to bf16, each by 1/256 at most; where
   one of them is not, nothing is. Errors of that size in all of them would not be seen: so
   their sizes are added up. */
static void bf16_products(void) {
    static const int64_t dims[] = {32, 64, 96, 128, 160, 32}, dims_v[] = {32, 33, 1, 128, 200, 65};
    enum { STEP = 7 };
    for (int mix = 0; mix < 48; mix++) {
        if (test_quick && mix % 5) continue;
        ref_spec s = spec_of(mix % 3 ? 4 : 6, 2, 34 + mix * 3, 70 + mix * 5, dims[mix % 6]);
        make_bf16(&s);
        s.head_dim   = dims[mix % 6];
        s.head_dim_v = dims_v[mix % 6];
        s.out_type   = mix % 4 == 1 ? SANTA_F32 : SANTA_BF16;
        s.v_type     = mix % 4 == 2 ? SANTA_F16 : SANTA_BF16;
        s.window     = mix & 8 ? 31 + mix : 0;
        s.soft_cap   = mix % 7 == 5 ? 3.0f : 0.0f;
        s.alibi      = mix % 7 == 4;
        s.sinks      = mix % 5 == 3;
        s.batch      = mix % 9 == 8 ? 6 : 1;
        s.ragged     = s.batch > 1;
        s.layout     = (ref_layout)(mix / 3 % REF_LAYOUTS);
        s.page_size  = mix % 3 ? 0 : 1 + mix;
        ref_problem p;
        ref_build(&p, &s);
        const int64_t rows = s.batch * s.q_len * s.heads;
        const int is_exact = mix % 4 == 1 || mix % 4 == 2;
        const double eps = 1.0 / 256.0;
        double *mean = ref_doubles((rows / STEP + 1) * s.head_dim_v), *want = ref_doubles(s.head_dim_v),
               *got = ref_doubles(s.head_dim_v);
        means_of_sizes(&p, STEP, mean);
        FOR_EACH_ISA (isa) {
            const santa_options o = dense(isa);
            santa_stats stats;
            double error = 0.0, bound = 0.0;
            pf_poison(&p);
            if (!ref_run(&p, &o, &stats)) break;
            for (int64_t x = 0; x < rows; x += STEP) {
                const int64_t b = x / s.heads / s.q_len, i = x / s.heads % s.q_len, h = x % s.heads;
                const double lse = pf_row(&p, NULL, b, i, h, want, NULL), mine = (double)p.lse[x];
                ref_out(&p, b, i, h, got);
                if (!CHECK(lse == -REF_INF ? mine == lse : fabs(mine - lse) <= 2e-5)) break;
                for (int64_t c = 0; c < s.head_dim_v; c++) {
                    const double weights = is_exact ? 0.0 : eps * mean[x / STEP * s.head_dim_v + c],
                                 rounding = s.out_type == SANTA_F32 ? 0.0 : eps * fabs(want[c]),
                                 most = 2e-5 + 1.01 * (weights + rounding);
                    error += (got[c] - want[c]) * (got[c] - want[c]);
                    bound += most * most;
                    if (!CHECK_MSG(fabs(got[c] - want[c]) <= most,
                                   "mix %d, %s: row %d, head %d, feature %d: %.9g, not %.9g +- %.2g", mix,
                                   santa_isa_name(isa), (int)i, (int)h, (int)c, got[c], want[c], most))
                        break;
                }
            }
            CHECK_MSG(error <= 0.4 * bound, "mix %d, %s: errors are %.2g of the bound", mix,
                      santa_isa_name(isa), sqrt(error / bound));
        }
        free(mean);
        free(want);
        free(got);
        ref_free(&p);
    }
}

/* A part of a longer context; scales of K and V. */
static void parts_and_scales(void) {
    for (int mix = 0; mix < 18; mix++) {
        ref_spec s = spec_of(4, 2, 45, 130, 16);
        int32_t context[3], padding[3];
        ref_problem p;
        s.batch  = 3;
        s.window = mix % 3 ? 0 : 60;
        s.causal = mix % 4 != 3;
        s.alibi  = mix % 2;
        ref_build(&p, &s);
        for (int b = 0; b < 3; b++) padding[b] = (int32_t)(b * (60 + mix % 2 * 5));
        if (mix % 5 > 2) p.a.kv_start = padding;
        for (int b = 0; b < 3; b++) context[b] = (int32_t)(130 + 37 * b * (mix % 5) + 5);
        p.a.context_lens = context;
        p.a.first_key    = mix % 2 ? 5 : 0;
        if (s.window > 0 && mix > 5) p.a.first_tokens = 1 + mix * mix % 70;
        if (p.a.first_tokens && p.a.first_key) p.a.kv_start = NULL;
        p.a.k_scale      = mix % 2 ? 1.5f : 0.0f;
        p.a.v_scale      = mix % 3 == 1 ? 0.25f : 0.0f;
        FOR_EACH_ISA (isa) {
            const santa_options o = dense(isa);
            santa_stats stats;
            if (!ref_run(&p, &o, &stats) || !pf_compare(&p, NULL, 1, "a part of a context", 2e-5)) break;
            counts_are_right(&p, &stats);
        }
        ref_free(&p);
    }
}

/* One key has a score of 2^100, or scores go from 0 to -200 in both directions. */
static void large_and_wide_scores(void) {
    for (int kind = 0; kind < 8; kind++)
        FOR_EACH_ISA (isa) {
            ref_spec s = spec_of(2, 1, 70, 200, 8);
            ref_problem p;
            s.causal   = kind % 4 != 3;
            s.sm_scale = 1.0f;
            if (kind > 3) make_bf16(&s);
            s.out_type = SANTA_F32;
            const int64_t d = s.head_dim;
            ref_build(&p, &s);
            for (int64_t i = 0; i < s.q_len * s.heads * d; i++) p.q[i] = i % d ? 0.0 : 1.0;
            for (int64_t j = 0; j < s.len; j++)
                for (int64_t c = 0; c < d; c++)
                    p.k[j * d + c] =
                        c ? 0.0
                        : kind % 4 == 0 ? (j == 77 ? ldexp(1.0, 100) : -ldexp(1.0, (int)(j % 100)))
                        : kind % 4 == 1 ? -(double)j
                        : kind % 4 == 2 ? (double)j - 200.0
                                        : -200.0 * (double)(j % 2) - 3e36 * (double)(j % 3 == 0);
            ref_write(&p);
            const santa_options o = dense(isa);
            santa_stats stats;
            pf_poison(&p);
            if (ref_run(&p, &o, &stats)) pf_compare(&p, NULL, 1, "large or wide scores", 2e-5);
            ref_free(&p);
        }
}

/* ------------------------------------------------------------ bits */

typedef struct shape { ref_spec s; santa_options o; } shape;
enum { SHAPES = 7 };
static shape shape_of(int i) {
    shape x;
    x.s = spec_of(6, 2, 75, 333, 24);
    x.o = dense(SANTA_ISA_AUTO);
    x.s.batch = 6;
    x.s.ragged = 1;
    switch (i) {
        case 0: break;
        case 1: x.s.window = 100; x.s.alibi = x.s.sinks = 1; x.s.head_dim = 33; break;
        case 2: x.s.k_type = x.s.v_type = SANTA_BF16; x.s.heads = 8; x.s.head_dim_v = 65;
                x.s.soft_cap = 5.0f; break;
        case 3: x.s.heads = x.s.kv_heads = 3; x.s.q_len = 300; x.s.k_type = SANTA_E4M3; break;
        case 5: make_bf16(&x.s); x.s.window = 101; x.s.head_dim_v = 40; break;
        case 4: x.s.heads = 40; x.s.kv_heads = 1; x.s.q_len = 40; x.s.causal = 0; x.s.window = 90; break;
        default: x.s.head_dim = 32; x.s.k_type = x.s.v_type = SANTA_Q8_0; x.s.head_dim_v = 32; break;
    }
    return x;
}

#if !defined(_WIN32)
typedef struct thread { santa_task task; void *context; int64_t i; } thread;
static void *work(void *argument) {
    thread *t = (thread *)argument;
    t->task(t->context, t->i);
    return NULL;
}
static void threaded(void *user, int64_t count, santa_task task, void *context) {
    thread t[16];
    pthread_t id[16];
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        t[i].task    = task;
        t[i].context = context;
        t[i].i       = i;
        CHECK(pthread_create(&id[i], NULL, work, &t[i]) == 0);
    }
    for (int64_t i = 0; i < count; i++) pthread_join(id[i], NULL);
}
#endif

static void threads(void) {
    for (int i = 0; i < SHAPES; i++) {
        shape x = shape_of(i);
        ref_problem p;
        ref_build(&p, &x.s);
        const pf_bits want = pf_run(&p, &x.o);
        for (int64_t n = 2; n <= 13; n += less(1, 5)) {
            x.o.num_threads  = n;
            x.o.parallel_for = pf_shuffled;
            pf_bits got = pf_run(&p, &x.o);
            pf_same_all(&got, &want, "threads, shuffled");
            CHECK(pf_same_stats(&got.stats, &want.stats));
            free(got.number);
#if !defined(_WIN32)
            if (n % 3) continue;
            x.o.parallel_for = threaded;
            got = pf_run(&p, &x.o);
            pf_same_all(&got, &want, "threads");
            CHECK(pf_same_stats(&got.stats, &want.stats));
            free(got.number);
#endif
        }
        free(want.number);
        ref_free(&p);
    }
}

static void layouts_give_the_same(void) {
    for (int i = 0; i < SHAPES; i++) {
        shape x = shape_of(i);
        ref_problem p;
        pf_bits want;
        const int is_q8 = x.s.k_type == SANTA_Q8_0;
        ref_build(&p, &x.s);
        want = pf_run(&p, &x.o);
        ref_free(&p);
        for (int layout = 0; layout < (is_q8 ? REF_STRIDED : REF_LAYOUTS); layout++)
            for (int64_t page = 0; page <= 129; page = page * 3 + 16) {
                x.s.layout    = (ref_layout)layout;
                x.s.page_size = page;
                ref_build(&p, &x.s);
                const pf_bits got = pf_run(&p, &x.o);
                pf_same_all(&got, &want, "layout or page size");
                CHECK(pf_same_stats(&got.stats, &want.stats));
                free(got.number);
                ref_free(&p);
            }
        free(want.number);
    }
}

/* Each sequence alone, and each (sequence, KV head) as a range of items. */
static void batches_and_items(void) {
    for (int i = 0; i < SHAPES; i++) {
        shape x = shape_of(i);
        ref_problem p;
        ref_build(&p, &x.s);
        const pf_bits want = pf_run(&p, &x.o);
        const int64_t items = x.s.batch * x.s.kv_heads;
        santa_stats sum, one;
        memset(&sum, 0, sizeof sum);
        pf_poison(&p);
        for (int64_t at = 0, to; at < items; at = to) {
            to = ref_min(at + 1 + at % 3, items);
            x.o.item_begin = at;
            x.o.item_end   = to;
            if (!ref_run(&p, &x.o, &one)) break;
            sum.rows += one.rows;
            sum.keys += one.keys;
            sum.k_rows_read += one.k_rows_read;
            sum.v_rows_read += one.v_rows_read;
            sum.v_rows_head += one.v_rows_head;
            sum.k_features_read += one.k_features_read;
            sum.k_features_head += one.k_features_head;
        }
        const pf_bits got = pf_take(&p);
        pf_same_all(&got, &want, "items");
        CHECK(pf_same_stats(&sum, &want.stats));
        free(got.number);
        ref_free(&p);
        x = shape_of(i);
        for (int64_t b = 0; b < 6; b++) {
            ref_spec alone = x.s;
            alone.batch = 1;
            alone.first_sequence = b;
            ref_build(&p, &alone);
            const pf_bits single = pf_run(&p, &x.o);
            pf_same(&single, 0, &want, b * single.count, single.count, "a sequence alone");
            free(single.number);
            ref_free(&p);
        }
        free(want.number);
    }
}

static void workspaces(void) {
    for (int i = 0; i < SHAPES; i++) {
        const shape x = shape_of(i);
        ref_problem p;
        ref_build(&p, &x.s);
        const pf_bits want = pf_run(&p, &x.o);
        const size_t bytes = santa_workspace_size(&p.a, &x.o);
        unsigned char *w = (unsigned char *)test_alloc(bytes + 64);
        for (int at = 0; at < 64; at += 9) {
            memset(w, at % 2 ? 0xff : 0x7f, bytes + 64);
            pf_poison(&p);
            CHECK_STATUS(santa_decode(&p.a, &x.o, w + at, bytes, NULL), SANTA_OK);
            const pf_bits got = pf_take(&p);
            pf_same_all(&got, &want, "workspace");
            free(got.number);
        }
        CHECK_STATUS(santa_decode(&p.a, &x.o, w, bytes - 1, NULL), SANTA_ERR_WORKSPACE_SIZE);
        free(w);
        free(want.number);
        ref_free(&p);
    }
}

/* A prompt whose rows [from, to) are one call, its keys so far the context. */
static void cut_prompts(void) {
    static const int64_t cuts[][6] = {{0, 32, 64, 96, 128, 230},  {0, 33, 65, 97, 198, 230},
                                      {0, 100, 132, 164, 196, 230}, {0, 50, 114, 150, 190, 230}};
    for (int i = 0; i < 8; i++)
        FOR_EACH_ISA (isa) {
            int differ = 0;
            ref_spec s = spec_of(i % 2 ? 6 : 8, 2, 230, 230 + (i % 3) * 41, 24);
            ref_problem p;
            s.window   = i > 5 ? 35 : i % 3 == 1 ? 70 : 0;
            s.alibi    = i % 3 == 2;
            s.soft_cap = i == 4 ? 3.0f : 0.0f;
            s.k_type   = i % 2 ? SANTA_F32 : SANTA_BF16;
            s.page_size = i == 3 ? 16 : 0;
            if (i > 5) make_bf16(&s);
            ref_build(&p, &s);
            for (int64_t x = 0; i > 5 && x < s.q_len * s.heads * s.head_dim; x++) p.q[x] = 0.0;
            for (int64_t x = 0; i > 5 && x < s.len * s.kv_heads * s.head_dim_v; x++) {
                const int64_t key = x / s.kv_heads / s.head_dim_v;    /* what comes with what is seen */
                if (key % 4 < 2) p.v[x] = key % 4 ? -2097152.0 : 2097152.0;
            }
            if (i > 5) ref_write(&p);
            p.a.first_tokens = i == 7 ? 13 : 0;
            const santa_options o = dense(isa);
            const pf_bits whole = pf_run(&p, &o);
            const santa_attention all = p.a;
            const int64_t row = s.heads * (s.head_dim_v + 1);
            int32_t len;
            for (int c = 0; c < 5; c++) {                     /* the last turn: rows one by one */
                pf_poison(&p);
                for (int k = 0; k < (c < 4 ? 5 : 20); k++) {
                    const int64_t from = c < 4 ? cuts[c][k] : 11 * k,
                                  to = c < 4 ? cuts[c][k + 1] : from + 1;
                    santa_attention a = all;
                    a.q.shape[1] = a.out.shape[1] = to - from;
                    a.q.data   = (char *)all.q.data + ref_bytes(s.q_type, from * all.q.stride[1]);
                    a.out.data = (char *)all.out.data + ref_bytes(s.out_type, from * all.out.stride[1]);
                    a.lse      = all.lse + from * s.heads;
                    len        = (int32_t)(s.len - (s.q_len - to));
                    a.seq_lens = &len;
                    const size_t bytes = santa_workspace_size(&a, &o);
                    void *w = test_alloc(bytes);
                    CHECK_STATUS(santa_decode(&a, &o, w, bytes, NULL), SANTA_OK);
                    free(w);
                    const pf_bits got = pf_take(&p);
                    if (c < 4) pf_same(&got, from * row, &whole, from * row, (to - from) * row,
                                       "a part of a prompt");
                    else differ += memcmp(got.number + from * row, whole.number + from * row,
                                          (size_t)row * sizeof(float)) != 0;
                    free(got.number);
                }
            }
            CHECK_MSG(i > 5 || differ > 0,
                      "calls of one row give the same bits, so nothing was compared here");
            free(whole.number);
            ref_free(&p);
        }
}

/* ------------------------------------------------------------ numbers that are not finite */

static int row_is_nan(const ref_problem *p, const pf_bits *x, int64_t r, int *all) {
    const int64_t n = p->spec.head_dim_v + 1;
    int any = 0;
    *all = 1;
    for (int64_t c = 0; c < n; c++) {
        const int bad = test_is_nan(x->number[r * n + c]);
        any |= bad;
        *all &= bad;
    }
    return any;
}

/* What a NaN or infinity in K, V or q spoils is each row that sees it; others keep their
   bits. */
static void spoiled_rows(void) {
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int kind = 0; kind < 6; kind++)
        for (int value = 0; value < 3; value++)
            FOR_EACH_ISA (isa) {
                ref_spec s = spec_of(6, 2, 90, 170, 24);
                ref_problem p;
                s.window = value == 1 ? 60 : 0;
                if (kind > 2) make_bf16(&s);
                s.head_dim_v = s.head_dim;
                const int64_t d = s.head_dim, n = d + 1;
                ref_build(&p, &s);
                for (int64_t i = 0; i < 90 * 6; i++)
                    p.q[i * d + 5] = 0.5;                     /* no product is 0 times inf */
                ref_write(&p);
                const santa_options o = dense(isa);
                const pf_bits clean = pf_run(&p, &o);
                const int64_t key = 101, kv = 1, row = 33, head = 2;
                double *at = kind % 3 == 0 ? &p.k[(key * 2 + kv) * d + 5]
                           : kind % 3 == 1 ? &p.v[(key * 2 + kv) * d + 5]
                                       : &p.q[(row * 6 + head) * d + 5];
                *at = bad[value];
                ref_write(&p);
                const pf_bits got = pf_run(&p, &o);
                for (int64_t r = 0; r < 90 * 6; r++) {
                    const int64_t i = r / 6, h = r % 6;
                    const pf_range range = pf_range_of(&p, 0, i);
                    const int sees = kind % 3 == 2 ? i == row && h == head
                                               : h / 3 == kv && range.begin <= key && key < range.end;
                    int all;
                    const int any = row_is_nan(&p, &got, r, &all);
                    if (!sees) {
                        if (!pf_same(&got, r * n, &clean, r * n, n, "a row that does not see it")) break;
                        continue;
                    }
                    if (kind % 3 == 1) {                      /* its feature alone, lse stays */
                        const float x = got.number[r * n + 5];
                        CHECK(value == 0 ? test_is_nan(x) : !(fabsf(x) < 1e30f));
                        CHECK(got.number[r * n + d] == clean.number[r * n + d]);
                        for (int64_t c = 0; c < d; c++)
                            CHECK(c == 5 ||
                                  fabsf(got.number[r * n + c] - clean.number[r * n + c]) <
                                      (kind > 2 ? 2e-2f : 1e-5f));
                    } else if (kind % 3 == 0 && value == 2) { /* a score of -inf is no key */
                        CHECK(!any);
                    } else if (!CHECK_MSG(all, "kind %d, value %d: row %d, head %d of %s", kind, value,
                                          (int)i, (int)h, santa_isa_name(isa))) {
                        break;
                    }
                }
                free(clean.number);
                free(got.number);
                ref_free(&p);
            }
}

/* Rows before the first key, empty sequences, scores that are all -inf, and sinks. */
static void rows_without_keys(void) {
    for (int sinks = 0; sinks < 2; sinks++)
        FOR_EACH_ISA (isa) {
            ref_spec s = spec_of(4, 2, 150, 60, 16);
            ref_problem p;
            s.batch  = 6;
            s.ragged = 1;
            s.sinks  = sinks;
            ref_build(&p, &s);
            for (int64_t j = 0; j < 60; j++)
                p.k[(3 * 60 + j) * 2 * 16] = -REF_INF;        /* sequence 3, KV head 0 */
            for (int64_t i = 0; i < 6 * 150 * 4; i++) p.q[i * 16] = 1.0;
            ref_write(&p);
            const santa_options o = dense(isa);
            santa_stats stats;
            pf_poison(&p);
            if (ref_run(&p, &o, &stats)) pf_compare(&p, NULL, 1, "rows without keys", 2e-5);
            int64_t empty = 0;
            for (int64_t x = 0; x < 6 * 150 * 4; x++)
                empty += p.lse[x] == (sinks ? p.sinks[x % 4] : -INFINITY);
            CHECK_MSG(empty >= (150 + 90) * 4, "%d rows have no key", (int)empty);
            ref_free(&p);
        }
}

/* santa_scores of a call with many rows needs no more workspace than the call, and gives
   what one row has. */
static void scores_of_a_row(void) {
    ref_spec s = spec_of(6, 2, 70, 300, 24);
    ref_problem p;
    float got[3 * 300];
    double want[300];
    s.window = 80;
    ref_build(&p, &s);
    for (int m = 0; m < 2; m++) {
        santa_options o = ref_options(m ? SANTA_SAMPLE_ATTENTION : SANTA_DENSE, 0, 0);
        p.a.std_error = NULL;
        const size_t bytes = santa_workspace_size(&p.a, &o);
        unsigned char *w = (unsigned char *)test_alloc(bytes + 64);
        memset(w, 0xa5, bytes + 64);
        for (int64_t i = 0; i < 70; i += 23) {
            CHECK_STATUS(santa_scores(&p.a, &o, 0, i, 1, got, 300, w, bytes), SANTA_OK);
            for (int64_t g = 0; g < 3; g++) {
                const pf_range r = pf_scores(&p, 0, i, 3 + g, want);
                for (int64_t j = 0; j < 300; j++)
                    if (j < r.begin || j >= r.end) CHECK(got[g * 300 + j] == -INFINITY);
                    else CHECK_NEAR(got[g * 300 + j], want[j], 1e-5, 1e-6);
            }
        }
        for (int i = 0; i < 64; i++) CHECK(w[bytes + (size_t)i] == 0xa5);
        free(w);
    }
    ref_free(&p);
}

const test_case suite_prefill[] = {
    {"types of q, k, v, out", types},
    {"head_dim, head_dim_v", head_dims},
    {"group sizes", groups},
    {"rows and keys, ragged batch", lengths},
    {"layouts, page sizes", layouts_and_pages},
    {"soft cap, window, sinks, ALiBi, not causal", extras},
    {"soft caps up to 1e30", large_caps},
    {"pairs of bf16: what is rounded, and what not", bf16_products},
    {"parts of a longer context, scales of K and V", parts_and_scales},
    {"scores up to 2^100, from 0 to -200", large_and_wide_scores},
    {"rows without keys", rows_without_keys},
    {"a NaN or infinity spoils the rows that see it", spoiled_rows},
    {"same bits: threads", threads},
    {"same bits: layouts, pages", layouts_give_the_same},
    {"same bits: batch, items", batches_and_items},
    {"same bits: workspace", workspaces},
    {"same bits: a prompt cut into calls", cut_prompts},
    {"santa_scores of one of many rows", scores_of_a_row},
    {0, 0}
};
