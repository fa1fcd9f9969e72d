/* Sparse prefill against a float64 model of its three stages, written from the manual: which
   blocks it keeps, what it promises of the sampled rows, what it gives; masks of the caller's
   own; what it reads and does not read. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS under -std=c99 */
#define HAVE_MMAP 1
#include <sys/mman.h>
#include <unistd.h>
#endif
#include "prefill.h"

/* ------------------------------------------------------------ the model */

/* What the manual says of one head: its sets, the share of blocks that it and its group keep,
   and how far each decision is from another one, as a share of all mass. */
typedef struct model {
    int64_t block, k_blocks, first_block, first_row, rows, sampled;  /* rows: that see a key */
    int64_t *row;                                                    /* [sampled] */
    double  *prob;                                                   /* [sampled][len] */
    uint8_t *column, *slash;                                         /* [k_blocks] */
    double   margin;
} model;

/* Rows of the slices: whole blocks of rows by position, equidistant, the last ending with the
   last row; all rows where slices would meet. */
static void slices(const ref_problem *p, int64_t b, const santa_sample_attention_options *o, model *m) {
    const int64_t q_len = p->spec.q_len, n = ref_len(p, b), position = n - q_len;
    const int64_t chunks = o->num_chunks ? o->num_chunks : 2;
    m->block = o->block_size ? o->block_size : 64;
    const int64_t padding = p->a.kv_start ? p->a.kv_start[b] : 0;
    m->first_block = padding / m->block;
    m->first_row = ref_min(ref_max(padding - position, 0), q_len);
    m->rows = q_len - m->first_row;
    m->row = (int64_t *)test_alloc((size_t)(q_len + 1) * sizeof *m->row);
    m->sampled = 0;
    for (int64_t c = 0; c < chunks && m->rows / chunks >= m->block; c++) {
        const int64_t start = position + m->first_row;
        int64_t to = start + m->rows * (c + 1) / chunks;
        if (c < chunks - 1) to -= to % m->block;
        for (int64_t at = ref_max(to - m->block, start); at < to; at++)
            m->row[m->sampled++] = at - position;
    }
    if (m->rows / chunks < m->block)
        for (int64_t i = m->first_row; i < q_len; i++) m->row[m->sampled++] = i;
}

/* The fewest blocks that hold alpha of the mass: the largest ones, ties to the lower number.
   Returns how far from alpha the sum is with and without the last one, and how close the last
   one is to the next. */
static double fewest(const double *mass, int64_t n, double alpha, uint8_t *set) {
    double total = 0.0, held = 0.0, margin = 1.0, last = 0.0;
    for (int64_t i = 0; i < n; i++) total += mass[i];
    memset(set, alpha >= 1.0, (size_t)n);
    if (alpha >= 1.0 || alpha <= 0.0 || total <= 0.0) return 1.0;
    while (held < alpha * total) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!set[i] && (best < 0 || mass[i] > mass[best])) best = i;
        if (best < 0) break;
        set[best] = 1;
        held += last = mass[best];
        margin = fmin(margin, fabs(held / total - alpha));
    }
    for (int64_t i = 0; i < n; i++)
        if (!set[i] && mass[i] > 0.0) margin = fmin(margin, (last - mass[i]) / total);
    return margin;
}

static model model_make(const ref_problem *p, const santa_options *all, int64_t b, int64_t h) {
    const santa_sample_attention_options *o = &all->sample_attention;
    const int64_t n = ref_len(p, b);
    model m;
    memset(&m, 0, sizeof m);
    slices(p, b, o, &m);
    m.k_blocks = n / m.block + 1;
    m.prob   = ref_doubles(m.sampled * ref_max(n, 1));
    m.column = (uint8_t *)test_alloc((size_t)m.k_blocks);
    m.slash  = (uint8_t *)test_alloc((size_t)m.k_blocks);
    double *columns = ref_doubles(m.k_blocks), *slashes = ref_doubles(m.k_blocks), *scores = ref_doubles(n);
    for (int64_t i = 0; i < m.k_blocks; i++) columns[i] = slashes[i] = 0.0;
    for (int64_t x = 0; x < m.sampled; x++) {
        const pf_range r = pf_scores(p, b, m.row[x], h, scores);
        double top = -REF_INF, sum = 0.0;
        for (int64_t j = 0; j < n; j++) m.prob[x * n + j] = 0.0;
        for (int64_t j = r.begin; j < r.end; j++) top = fmax(top, scores[j]);
        for (int64_t j = r.begin; j < r.end; j++) sum += m.prob[x * n + j] = exp(scores[j] - top);
        for (int64_t j = r.begin; j < r.end; j++) {
            m.prob[x * n + j] /= sum;
            columns[j / m.block] += m.prob[x * n + j];
            slashes[(r.position - j) / m.block] += m.prob[x * n + j];
        }
    }
    const double ac = o->alpha_columns, as = o->alpha_slashes;
    m.margin = fmin(fewest(columns, m.k_blocks, ac < 0.0 ? 0.0 : ac > 0.0 ? ac : 0.95, m.column),
                    fewest(slashes, m.k_blocks, as < 0.0 ? 0.0 : as > 0.0 ? as : 0.95, m.slash));
    free(columns); free(slashes); free(scores);
    return m;
}

static void model_free(model *m) { free(m->row); free(m->prob); free(m->column); free(m->slash); }

/* Whether a head takes the block kb of keys for rows in block qb, both by position. */
static int takes(const model *m, int64_t qb, int64_t kb) {
    if (kb > qb) return 0;
    if (kb <= m->first_block || kb == qb || m->column[kb] || m->slash[qb - kb]) return 1;
    return m->slash[qb - kb - 1];                             /* the slash that ends in this block */
}

/* Share of the blocks of a head that some row sees, by any rule. */
typedef int (*rule)(const void *context, int64_t qb, int64_t kb);
static double share_of(const ref_problem *p, int64_t b, const model *m, rule keeps, const void *context) {
    int64_t all = 0, kept = 0, last = -1;
    for (int64_t i = m->first_row; i < p->spec.q_len; i++) {
        const int64_t qb = pf_range_of(p, b, i).position / m->block;
        pf_range seen;
        if (qb == last) continue;
        last = qb;
        seen = pf_range_of(p, b, i);
        for (int64_t k = i; k < p->spec.q_len && pf_range_of(p, b, k).position / m->block == qb; k++)
            seen.end = pf_range_of(p, b, k).end;
        for (int64_t kb = seen.begin / m->block; kb * m->block < seen.end; kb++) {
            all++;
            kept += keeps(context, qb, kb);
        }
    }
    return all ? (double)kept / (double)all : 1.0;
}

typedef struct group { model m[48]; int64_t heads; } group;
static int group_takes(const void *context, int64_t qb, int64_t kb) {
    const group *g = (const group *)context;
    for (int64_t h = 0; h < g->heads; h++) if (takes(&g->m[h], qb, kb)) return 1;
    return 0;
}
static int head_takes(const void *context, int64_t qb, int64_t kb) {
    return takes((const model *)context, qb, kb);
}

/* ------------------------------------------------------------ calls */

/* A call that gives all there is. */
typedef struct call {
    ref_problem p;
    santa_options o;
    santa_stats stats;
    int64_t q_blocks, k_blocks, heads;
    uint8_t *mask;
    santa_sample_audit *audit;
    float *row_mass;
} call;

static void call_make(call *c, const ref_spec *s) {
    memset(c, 0, sizeof *c);
    ref_build(&c->p, s);
    c->p.a.std_error = NULL;
    c->o = ref_options(SANTA_SAMPLE_ATTENTION, 0, 0);
    c->heads    = s->batch * s->heads;
    c->audit    = (santa_sample_audit *)test_alloc((size_t)c->heads * sizeof *c->audit);
    c->row_mass = ref_floats(s->batch * s->q_len * s->heads);
    c->o.sample_attention.audit    = c->audit;
    c->o.sample_attention.row_mass = c->row_mass;
    c->o.sample_attention.dense_above = SANTA_NONE;
}

static int call_run(call *c) {
    free(c->mask);
    santa_clear_unused_options(&c->o);              /* with a mask nothing is sampled */
    CHECK_STATUS(santa_mask_shape(&c->p.a, &c->o, &c->q_blocks, &c->k_blocks), SANTA_OK);
    const size_t bytes = (size_t)(c->heads * c->q_blocks * c->k_blocks);
    c->mask = (uint8_t *)test_alloc(bytes);
    memset(c->mask, 0xee, bytes);
    c->o.sample_attention.mask_out = c->mask;
    pf_poison(&c->p);
    return ref_run(&c->p, &c->o, &c->stats);
}

static void call_free(call *c) {
    ref_free(&c->p);
    free(c->mask); free(c->audit); free(c->row_mass);
}

/* alphas that leave random heads some blocks only: a few columns, or a few slashes. */
static void few_blocks(santa_options *o, int slashes) {
    o->sample_attention.alpha_columns = slashes ? (double)SANTA_NONE : 0.25;
    o->sample_attention.alpha_slashes = slashes ? 0.25 : (double)SANTA_NONE;
}

static int64_t block_of(const call *c) {
    return c->o.sample_attention.block_size ? c->o.sample_attention.block_size : 64;
}

/* Whether head h reads block kb for the row. */
static int reads(const call *c, int64_t b, int64_t h, int64_t i, int64_t kb) {
    const pf_mask m = {c->mask, c->q_blocks, c->k_blocks, block_of(c)};
    return pf_mask_row(&c->p, &m, b, i, h)[kb];
}

static ref_spec spec_of(int64_t heads, int64_t kv_heads, int64_t q_len, int64_t len, int64_t d) {
    ref_spec s = ref_spec_make(heads, kv_heads, len, d);
    s.q_len  = q_len;
    s.causal = 1;
    s.gain   = 3.0;
    return s;
}

/* Features 0 and 1 of K and q let chosen rows look at chosen keys, each with a weight of its
   own. */
static void lift(ref_problem *p, int64_t kv, int64_t key, double by) {
    p->k[(key * p->spec.kv_heads + kv) * p->spec.head_dim] = by;
}

static void point_up(ref_problem *p, int64_t from, int64_t to) {    /* rows that look at lifted keys */
    for (int64_t i = 0; i < p->spec.q_len; i++)
        for (int64_t h = 0; h < p->spec.heads; h++)
            p->q[(i * p->spec.heads + h) * p->spec.head_dim] = i >= from && i < to ? 4.0 : 0.0;
}

static void quiet(ref_problem *p) {
    const ref_spec *s = &p->spec;
    for (int64_t i = 0; i < s->batch * s->len * s->kv_heads * s->head_dim; i++)
        p->k[i] = i % s->head_dim ? 0.1 * p->k[i] : 0.0;
}

/* out, lse, row_mass, cra and low_mass as the mask that came out has them. */
static int matches_mask(const call *c, const char *what, double abs_tol) {
    const pf_mask m = {c->mask, c->q_blocks, c->k_blocks, block_of(c)};
    const ref_spec *s = &c->p.spec;
    double *out = ref_doubles(s->head_dim_v), *share = ref_doubles(s->q_len);
    int good = pf_compare(&c->p, &m, 1, what, abs_tol);
    for (int64_t x = 0; x < c->heads && good; x++) {
        const int64_t b = x / s->heads, h = x % s->heads, worst = (s->q_len + 99) / 100;
        double low = 0.0;
        for (int64_t i = 0; i < s->q_len && good; i++) {
            pf_row(&c->p, &m, b, i, h, out, &share[i]);
            good = CHECK_NEAR(c->row_mass[(b * s->q_len + i) * s->heads + h], share[i], 3e-6, 0.0);
        }
        qsort(share, (size_t)s->q_len, sizeof *share, ref_compare_doubles);
        for (int64_t i = 0; i < worst; i++) low += share[i];
        good = good && CHECK_NEAR(c->audit[x].cra, share[0], 3e-6, 0.0) &&
               CHECK_NEAR(c->audit[x].low_mass, low / (double)worst, 3e-6, 0.0);
    }
    free(out);
    free(share);
    return good;
}

/* All that the manual says of a call that samples. Returns how many heads have no decision
   within 1e-5. */
static int64_t matches_model(call *c, const char *what) {
    const ref_spec *s = &c->p.spec;
    const santa_sample_attention_options *o = &c->o.sample_attention;
    const int64_t size = s->heads / s->kv_heads;
    int64_t clear = 0;
    int good = call_run(c) && matches_mask(c, what, 3e-5);
    for (int64_t item = 0; item < s->batch * s->kv_heads && good; item++) {
        const int64_t b = item / s->kv_heads, n = ref_len(&c->p, b);
        group g;
        double kept = 0.0, cost = 0.0, margin = 1.0;
        memset(&g, 0, sizeof g);
        g.heads = size;
        for (int64_t x = 0; x < size; x++) {
            g.m[x] = model_make(&c->p, &c->o, b, item % s->kv_heads * size + x);
            margin = fmin(margin, g.m[x].margin);
        }
        if (g.m[0].rows > 0) cost = (double)g.m[0].sampled / (double)g.m[0].rows;
        for (int64_t x = 0; x < size; x++)
            kept += (o->per_head ? share_of(&c->p, b, &g.m[x], head_takes, &g.m[x])
                                 : share_of(&c->p, b, &g.m[0], group_takes, &g)) / (double)size;
        const double above = o->dense_above < 0.0 ? 1e300 : o->dense_above > 0.0 ? o->dense_above : 0.85;
        const int dense = kept + cost > above;
        for (int64_t x = 0; x < size && good; x++) {
            const int64_t h = item % s->kv_heads * size + x;
            const santa_sample_audit *a = &c->audit[b * s->heads + h];
            const model *m = &g.m[x];
            double mean = 0.0, *each = ref_doubles(m->sampled);
            int64_t columns = 0, slashes = 0;
            for (int64_t r = 0; r < m->sampled; r++) {        /* by the head's own sets */
                const int64_t qb = pf_range_of(&c->p, b, m->row[r]).position / m->block;
                each[r] = 0.0;
                for (int64_t j = 0; j < n; j++)
                    if (takes(m, qb, j / m->block)) each[r] += m->prob[r * n + j];
                mean += each[r];
            }
            for (int64_t k = 0; k < m->k_blocks && k * m->block < n; k++) {
                columns += m->column[k];
                slashes += m->slash[k];
            }
            good &= CHECK_NEAR(a->cost, cost, 1e-9, 0.0);
            if (m->sampled) {
                const double least = fmax(o->alpha_columns, o->alpha_slashes);
                good &= CHECK_MSG(a->sampled_mass >= (least > 0.0 ? least : 0.0) - 1e-6,
                                  "%s: %g kept of alpha %g", what, a->sampled_mass, least);
            }
            if (margin > 1e-5) {
                const int64_t worst = (m->sampled + 99) / 100;
                double low = 0.0;
                clear++;
                qsort(each, (size_t)m->sampled, sizeof *each, ref_compare_doubles);
                for (int64_t r = 0; r < worst; r++) low += each[r];
                good &= CHECK_INT(a->columns, columns) & CHECK_INT(a->slashes, slashes) &
                        CHECK_NEAR(a->sampled_mass, m->sampled ? mean / (double)m->sampled : 1.0, 1e-5,
                                   0.0) &
                        CHECK_NEAR(a->sampled_low, m->sampled ? low / (double)worst : 1.0, 1e-5, 0.0) &
                        CHECK_INT(a->is_dense, dense) &
                        CHECK_NEAR(a->kept_share, dense ? 1.0
                                   : o->per_head ? share_of(&c->p, b, m, head_takes, m)
                                                 : share_of(&c->p, b, m, group_takes, &g), 1e-9, 0.0);
                for (int64_t i = m->first_row; i < s->q_len && good; i++)
                    for (int64_t kb = 0; kb * m->block < n && good; kb++) {
                        const int64_t qb = pf_range_of(&c->p, b, i).position / m->block;
                        const int want = kb <= qb && (dense || (o->per_head ? takes(m, qb, kb)
                                                                            : group_takes(&g, qb, kb)));
                        good = CHECK_MSG(reads(c, b, h, i, kb) == want,
                                         "%s: head %d, row %d of %d, %d keys, block %d: reads %d", what,
                                         (int)h, (int)i, (int)s->q_len, (int)n, (int)kb, !want);
                    }
            }
            free(each);
        }
        for (int64_t x = 0; x < size; x++) model_free(&g.m[x]);
    }
    return good ? clear : -1;
}

static void against_the_model(void) {
    static const int64_t shape[][2] = {{1, 90},    {20, 150},  {64, 64},   {65, 300}, {100, 70},
                                       {200, 200}, {257, 400}, {130, 333}, {40, 1},   {300, 300}};
    int64_t clear = 0, all = 0;
    for (int turn = 0; turn < (test_quick ? 20 : 60); turn++) {
        const int64_t heads[6] = {1, 3, 4, 9, 8, 6}, kv[6] = {1, 1, 2, 1, 1, 2};
        ref_spec s = spec_of(heads[turn % 6], kv[turn % 6], shape[turn % 10][0], shape[turn % 10][1],
                             4 + turn % 9);
        call c;
        char what[64];
        int32_t padding[4];
        s.stream    = (uint64_t)turn;
        s.gain      = 2.0 + turn % 4;
        s.batch     = turn % 7 == 3 ? 4 : 1;
        s.ragged    = s.batch > 1;
        s.window    = turn % 5 == 2 ? 100 + turn : 0;
        s.sinks     = turn % 5 == 3;
        s.alibi     = turn % 6 == 4;
        s.soft_cap  = turn % 7 == 1 ? 6.0f : 0.0f;
        s.page_size = turn % 4 == 1 ? 1 + 5 * (turn % 9) : 0;
        s.k_type    = s.v_type = (santa_dtype)(turn % 4);
        call_make(&c, &s);
        for (int b = 0; b < 4; b++)
            padding[b] = (int32_t)(ref_len(&c.p, ref_min(b, s.batch - 1)) * (b + turn % 3) / 5);
        if (turn % 6 >= 4) c.p.a.kv_start = padding;
        santa_sample_attention_options *o = &c.o.sample_attention;
        o->alpha_columns = turn % 11 == 5 ? (double)SANTA_NONE : 0.3 + 0.06 * (turn % 11);
        o->alpha_slashes = turn % 13 == 6 ? (double)SANTA_NONE : 0.95 - 0.06 * (turn % 13);
        o->num_chunks    = turn % 8 < 5 ? turn % 8 : 0;
        o->block_size    = turn % 3 == 2 ? 128 : 0;
        o->per_head      = turn % 2;
        o->dense_above   = turn % 4 == 0 ? 0.0 : turn % 4 == 3 ? 1.2 : (double)SANTA_NONE;
        c.o.isa = test_isa_from(turn % SANTA_ISA_COUNT);
        if (c.o.isa == SANTA_ISA_COUNT) c.o.isa = SANTA_ISA_AUTO;
        snprintf(what, sizeof what, "turn %d", turn);
        const int64_t more = matches_model(&c, what);
        all += c.heads;
        call_free(&c);
        if (more < 0) return;
        clear += more;
    }
    CHECK_MSG(clear * 10 >= all * 8, "of %d heads only %d have no close decision", (int)all, (int)clear);
}

/* ------------------------------------------------------------ what is kept */

/* alpha 1 of either kind is exact attention, for each head alone or for a group. */
static void alpha_one_is_dense(void) {
    for (int turn = 0; turn < 8; turn++) {
        ref_spec s = spec_of(6, 2, 130, 200, 24);
        call c;
        santa_options dense = ref_options(SANTA_DENSE, 0, 0);
        call_make(&c, &s);
        santa_sample_attention_options *o = &c.o.sample_attention;
        o->per_head = turn % 2;
        (turn & 2 ? &o->alpha_columns : &o->alpha_slashes)[0] = 1.0;
        (turn & 2 ? &o->alpha_slashes : &o->alpha_columns)[0] = turn & 4 ? 0.1 : (double)SANTA_NONE;
        if (call_run(&c)) {
            const pf_bits got = pf_take(&c.p), want = pf_run(&c.p, &dense);
            pf_same_all(&got, &want, "alpha 1");
            free(got.number);
            free(want.number);
        }
        for (int h = 0; h < 6; h++)
            CHECK(c.audit[h].kept_share == 1.0 && c.audit[h].is_dense == 0 && c.audit[h].cra == 1.0);
        for (int h = 0; h < 6; h++) CHECK_INT(turn & 2 ? c.audit[h].columns : c.audit[h].slashes, 4);
        call_free(&c);
    }
}

/* One set of blocks for a head: the promise, and masks that only grow, as alpha grows. */
static void masks_grow(void) {
    for (int turn = 0; turn < 6; turn++) {
        ref_spec s = spec_of(4, turn % 2 ? 2 : 4, 300, 500, 8);
        call c;
        uint8_t *before = NULL;
        double share = 0.0;
        s.stream = (uint64_t)turn + 100;
        s.gain   = 6.0;
        call_make(&c, &s);
        santa_sample_attention_options *o = &c.o.sample_attention;
        o->per_head   = turn % 3 != 2;
        o->num_chunks = 1 + turn;
        for (double alpha = 0.05; alpha <= 1.0; alpha += 0.19) {
            o->alpha_columns = turn % 3 ? alpha : (double)SANTA_NONE;
            o->alpha_slashes = turn % 3 != 1 ? alpha : (double)SANTA_NONE;
            if (!call_run(&c)) break;
            const int64_t bytes = c.heads * c.q_blocks * c.k_blocks;
            for (int64_t i = 0; before && i < bytes; i++)
                if (!CHECK(c.mask[i] == 0xee ? before[i] == 0xee : c.mask[i] >= before[i])) break;
            for (int64_t h = 0; h < c.heads; h++) CHECK(c.audit[h].sampled_mass >= alpha - 1e-6);
            CHECK(c.audit[0].kept_share >= share);
            share = c.audit[0].kept_share;
            free(before);
            before = (uint8_t *)test_alloc((size_t)bytes);
            memcpy(before, c.mask, (size_t)bytes);
        }
        CHECK(share > 0.9);
        free(before);
        call_free(&c);
    }
}

/* No column and no slash: the first block and the diagonal, for any lengths; never a block
   behind it. */
static void always_kept(void) {
    static const int64_t shape[][2] = {{1, 1}, {1, 300}, {33, 400}, {90, 60}, {200, 201}, {129, 500}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int wide = 0; wide < 2; wide++) {
            ref_spec s = spec_of(2, 2, shape[i][0], shape[i][1], 4);
            call c;
            call_make(&c, &s);
            c.o.sample_attention.block_size = wide ? 128 : 64;
            c.o.sample_attention.alpha_columns = c.o.sample_attention.alpha_slashes = SANTA_NONE;
            if (call_run(&c) && matches_mask(&c, "diagonal", 3e-5))
                for (int64_t q = 0; q < s.q_len; q++)
                    for (int64_t kb = 0; kb < c.k_blocks; kb++) {
                        const int64_t at = pf_range_of(&c.p, 0, q).position;
                        if (at >= 0)
                            CHECK_INT(reads(&c, 0, 1, q, kb), kb == at / block_of(&c) || (kb == 0));
                    }
            CHECK(c.audit[0].columns == 0 && c.audit[0].slashes == 0);
            call_free(&c);
        }
}

/* ------------------------------------------------------------ what is found */

static void planted_columns(void) {
    ref_spec s = spec_of(2, 2, 640, 640, 16);
    call c;
    call_make(&c, &s);
    quiet(&c.p);
    point_up(&c.p, 0, 640);
    lift(&c.p, 0, 77, 14.0);                                  /* column 1 of one head, 3 of the other */
    lift(&c.p, 1, 200, 14.0);
    ref_write(&c.p);
    c.o.sample_attention.alpha_columns = 0.9;
    c.o.sample_attention.alpha_slashes = SANTA_NONE;
    if (call_run(&c) && matches_mask(&c, "columns", 3e-5))
        for (int64_t i = 320; i < 640; i++)
            for (int64_t h = 0; h < 2; h++) {
                CHECK(reads(&c, 0, h, i, h ? 3 : 1));
                CHECK(c.row_mass[i * 2 + h] > 0.9f);
                CHECK(!reads(&c, 0, h, i, 2));
            }
    CHECK(c.audit[0].columns == 1 && c.audit[1].columns == 1 && c.audit[0].kept_share < 0.5);
    call_free(&c);
}

/* Each row looks at the key `lag` before it: one slash, both of the blocks that it touches. */
static void planted_slashes(void) {
    static const int64_t lags[] = {64, 100, 127, 128, 190, 320};
    for (size_t k = 0; k < sizeof lags / sizeof *lags; k++)
        for (int wide = 0; wide < 2; wide++) {
            const int64_t lag = lags[k], block = wide ? 128 : 64;
            ref_spec s = spec_of(1, 1, 700, 700, 64);
            call c;
            call_make(&c, &s);
            test_rng r = test_rng_make(k);
            for (int64_t i = 0; i < 700 * 64; i++) c.p.k[i] = test_below(&r, 2) ? 1.0 : -1.0;
            for (int64_t i = 0; i < 700; i++)
                for (int64_t d = 0; d < 64; d++)
                    c.p.q[i * 64 + d] = i >= lag ? 3.0 * c.p.k[(i - lag) * 64 + d] : 0.0;
            ref_write(&c.p);
            c.o.sample_attention.block_size    = block;
            c.o.sample_attention.num_chunks    = 1;
            c.o.sample_attention.alpha_slashes = 0.9;
            c.o.sample_attention.alpha_columns = SANTA_NONE;
            if (call_run(&c) && matches_mask(&c, "slashes", 3e-5)) {
                CHECK_INT(c.audit[0].slashes, 1);
                for (int64_t i = lag; i < 700; i++) {
                    CHECK(reads(&c, 0, 0, i, (i - lag) / block) && c.row_mass[i] > 0.99f);
                    CHECK(reads(&c, 0, 0, i, ref_max(i / block - lag / block, 0)));
                    CHECK(reads(&c, 0, 0, i, ref_max(i / block - lag / block - 1, 0)));
                }
                CHECK(c.audit[0].kept_share < (wide ? 0.9 : 0.65));
            }
            call_free(&c);
        }
}

/* A column that only rows of the upper half look at: seen by two slices, not by one at the
   end. */
static void faded_column(void) {
    for (int chunks = 1; chunks <= 2; chunks++) {
        ref_spec s = spec_of(1, 1, 1024, 1024, 16);
        call c;
        call_make(&c, &s);
        quiet(&c.p);
        point_up(&c.p, 0, 512);
        lift(&c.p, 0, 100, 8.0);
        for (int64_t i = 512; i < 1024; i++)                  /* the others look at a key of their own */
            c.p.q[i * 16 + 1] = 8.0;
        for (int64_t j = 0; j < 1024; j++) c.p.k[j * 16 + 1] = j == 600 ? 8.0 : 0.0;
        ref_write(&c.p);
        c.o.sample_attention.num_chunks    = chunks;
        c.o.sample_attention.alpha_columns = 0.9;
        c.o.sample_attention.alpha_slashes = SANTA_NONE;
        if (call_run(&c) && matches_mask(&c, "a column that fades", 3e-5)) {
            CHECK_INT(reads(&c, 0, 0, 400, 1), chunks == 2);
            CHECK(chunks == 2 ? c.row_mass[400] > 0.9f : c.row_mass[400] < 0.1f);
            CHECK(reads(&c, 0, 0, 1000, 9) && c.row_mass[1000] > 0.9f);
            CHECK(c.audit[0].sampled_mass >= 0.9 - 1e-6);
        }
        call_free(&c);
    }
}

/* What only unsampled rows look at is lost, however large alpha is: the audit of the sampled
   rows says nothing of it, row_mass does. */
static void unsampled_key_is_lost(void) {
    ref_spec s = spec_of(1, 1, 1024, 1024, 16);
    call c;
    call_make(&c, &s);
    quiet(&c.p);
    point_up(&c.p, 600, 640);                                 /* sampled: 448 .. 511 and 960 .. 1023 */
    lift(&c.p, 0, 100, 14.0);
    for (int64_t i = 0; i < 1024; i++) c.p.q[i * 16 + 1] = i >= 600 && i < 640 ? 0.0 : 8.0;
    for (int64_t j = 0; j < 1024; j++) c.p.k[j * 16 + 1] = j == 300 ? 8.0 : 0.0;
    ref_write(&c.p);
    c.o.sample_attention.alpha_columns = c.o.sample_attention.alpha_slashes = 0.98;
    if (call_run(&c) && matches_mask(&c, "a key that is lost", 3e-5)) {
        for (int64_t i = 600; i < 640; i++) CHECK(!reads(&c, 0, 0, i, 1) && c.row_mass[i] < 0.05f);
        CHECK(c.row_mass[700] > 0.98f && c.audit[0].sampled_mass >= 0.98 - 1e-6 && c.audit[0].cra < 0.05);
        CHECK(c.audit[0].low_mass < 0.05);
    }
    call_free(&c);
}

/* ------------------------------------------------------------ masks that are given */

static void given_masks(void) {
    for (int turn = 0; turn < (test_quick ? 8 : 24); turn++) {
        ref_spec s = spec_of(turn % 3 ? 6 : 5, turn % 3 ? 2 : 1, 1 + turn * 37 % 190,
                             40 + turn * 53 % 300, 12);
        call c;
        int32_t context[3];
        char what[64];
        int64_t kept = 0, empty = 0;
        test_rng r = test_rng_make(900 + (uint64_t)turn);
        s.batch  = 1 + turn % 3;
        s.ragged = s.batch == 3;
        s.causal = turn % 4 != 2;
        s.window = turn % 5 == 4 ? 90 : 0;
        s.sinks  = turn % 6 == 5;
        s.page_size = turn % 4 == 3 ? 11 : 0;
        call_make(&c, &s);
        for (int b = 0; b < 3; b++) context[b] = (int32_t)(s.len + 30 * b + 7);
        if (turn % 5 == 1) { c.p.a.context_lens = context; c.p.a.first_key = turn % 2 ? 7 : 0; }
        c.o.sample_attention.block_size = turn % 2 ? 128 : 64;
        c.o.sample_attention.dense_above = 0.0;
        CHECK_STATUS(santa_mask_shape(&c.p.a, &c.o, &c.q_blocks, &c.k_blocks), SANTA_OK);
        const int64_t bytes = c.heads * c.q_blocks * c.k_blocks;
        uint8_t *mask = (uint8_t *)test_alloc((size_t)bytes);
        for (int64_t i = 0; i < bytes; i++)
            mask[i] = test_below(&r, 3) ? 0 : (uint8_t)(1 + test_below(&r, 255));
        for (int64_t i = 0; i < bytes; i += c.k_blocks)
            if (i / c.k_blocks % 4 == 1) memset(mask + i, 0, (size_t)c.k_blocks);
        c.o.sample_attention.mask = mask;
        snprintf(what, sizeof what, "given mask %d", turn);
        if (call_run(&c) && matches_mask(&c, what, 3e-5)) {
            for (int64_t i = 0; i < bytes; i++) if (c.mask[i] != 0xee) CHECK_INT(c.mask[i], mask[i] != 0);
            for (int64_t i = 0; i < bytes; i++) kept += c.mask[i] == 1;
            CHECK(kept > 0 || bytes < 20);
            for (int64_t x = 0; x < s.batch * s.q_len * s.heads; x++) empty += c.row_mass[x] <= 0.0f;
            CHECK(empty > 0 || s.q_len < 64);                 /* rows that are left no key */
            for (int64_t h = 0; h < c.heads; h++) {           /* nothing was sampled */
                const santa_sample_audit *a = &c.audit[h];
                CHECK(!a->is_dense && a->cost == 0.0 && a->columns == 0 && a->slashes == 0);
                CHECK(a->sampled_mass == 1.0 && a->sampled_low == 1.0);
            }
            CHECK_INT(c.stats.dense_rows, 0);
        }
        free(mask);
        call_free(&c);
    }
}

/* The mask that came out, given back: the same bits as one mask for each head. */
static void mask_comes_back(void) {
    for (int turn = 0; turn < 4; turn++) {
        ref_spec s = spec_of(6, 2, 230, 400, 16);
        call c;
        s.window = turn == 3 ? 150 : 0;
        s.gain   = 6.0;
        call_make(&c, &s);
        c.o.sample_attention.per_head   = turn != 2;
        c.o.sample_attention.block_size = turn == 1 ? 128 : 64;
        few_blocks(&c.o, turn % 2);
        if (call_run(&c)) {
            const pf_bits first = pf_take(&c.p);
            const double share = c.audit[3].kept_share;
            uint8_t *mask = c.mask;
            c.mask = NULL;
            c.o.sample_attention.mask = mask;
            CHECK(share < 0.95);
            if (call_run(&c)) {
                const pf_bits again = pf_take(&c.p);
                pf_same_all(&again, &first, "a mask that came out");
                CHECK_NEAR(c.audit[3].kept_share, share, 1e-12, 0.0);
                const int64_t diagonal = pf_range_of(&c.p, 0, 0).position / block_of(&c) + 1;
                CHECK(mask[c.k_blocks + diagonal] == 1);
                mask[c.k_blocks + diagonal] = 0;
                call_run(&c);
                const pf_bits other = pf_take(&c.p);
                CHECK(memcmp(other.number, first.number, (size_t)first.count * sizeof(float)) != 0);
                free(again.number);
                free(other.number);
            }
            free(first.number);
            free(mask);
        }
        call_free(&c);
    }
}

/* ------------------------------------------------------------ what is read */

#if defined(HAVE_MMAP)
/* K and V of one head, 64 keys of which are 16 KB; blocks that may not be read are out of
   reach. Returns whether all went well (a fault ends the program). */
static float *map_keys(int64_t bytes) {
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : (float *)at;
}

static void blocks_out_of_reach(void) {
    enum { D = 64, N = 640, ROWS = 320, BLOCKS = N / 64 };
    const int64_t bytes = (int64_t)N * D * 4;
    if (sysconf(_SC_PAGESIZE) > 16384 || 16384 % sysconf(_SC_PAGESIZE)) SKIP("pages larger than blocks");
    for (int given = 0; given < 2; given++) {
        ref_spec s = spec_of(2, 1, ROWS, N, D);
        call c;
        int64_t away = 0;
        call_make(&c, &s);
        quiet(&c.p);
        point_up(&c.p, 0, ROWS);
        lift(&c.p, 0, 100, 40.0);
        ref_write(&c.p);
        float *k = map_keys(bytes), *v = map_keys(bytes);
        if (!CHECK(k && v)) return;
        memcpy(k, c.p.a.k.data, (size_t)bytes);
        memcpy(v, c.p.a.v.data, (size_t)bytes);
        c.p.a.k.data = k;
        c.p.a.v.data = v;
        c.o.sample_attention.alpha_columns = 0.9;
        c.o.sample_attention.alpha_slashes = SANTA_NONE;
        c.o.sample_attention.row_mass = NULL;
        if (call_run(&c)) {
            const pf_bits want = pf_take(&c.p);
            uint8_t *mask = (uint8_t *)test_alloc((size_t)(c.heads * c.q_blocks * c.k_blocks));
            memcpy(mask, c.mask, (size_t)(c.heads * c.q_blocks * c.k_blocks));
            if (given) c.o.sample_attention.mask = mask;
            for (int64_t kb = 0; kb < BLOCKS; kb++) {
                int is_read = 0;
                for (int64_t x = 0; x < 2 * ROWS; x++) is_read |= reads(&c, 0, x % 2, x / 2, kb);
                if (is_read) continue;
                away++;
                CHECK(mprotect(v + kb * 64 * D, 64 * D * 4, PROT_NONE) == 0);
                if (given) CHECK(mprotect(k + kb * 64 * D, 64 * D * 4, PROT_NONE) == 0);
            }
            CHECK(away >= 2);
            if (call_run(&c)) {
                const pf_bits got = pf_take(&c.p);
                pf_same_all(&got, &want, "blocks out of reach");
                free(got.number);
            }
            free(want.number);
            free(mask);
        }
        munmap(k, (size_t)bytes);
        munmap(v, (size_t)bytes);
        call_free(&c);
    }
}
#else
static void blocks_out_of_reach(void) { SKIP("needs mmap"); }
#endif

/* NaN in V shows in the rows that read it and no others; in K that no sampled row sees
   likewise, whether or not row_mass, which looks at all keys, is asked for. */
static void nan_outside_of_the_mask(void) {
    for (int turn = 0; turn < 4; turn++) {
        const int of_k = turn % 2;
        ref_spec s = spec_of(3, 1, 300, 300, 16);
        call c;
        int64_t spoiled = 0, clean = 0;
        call_make(&c, &s);
        CHECK_STATUS(santa_mask_shape(&c.p.a, &c.o, &c.q_blocks, &c.k_blocks), SANTA_OK);
        const int64_t bytes = c.heads * c.q_blocks * c.k_blocks;
        uint8_t *mask = (uint8_t *)test_alloc((size_t)bytes);
        for (int64_t i = 0; i < bytes; i++) mask[i] = i % 3 != 1;
        c.o.sample_attention.mask = mask;
        if (turn < 2) c.o.sample_attention.row_mass = NULL;
        if (call_run(&c)) {
            const pf_bits before = pf_take(&c.p);
            (of_k ? c.p.k : c.p.v)[130 * 16 + 3] = (double)test_nan();
            ref_write(&c.p);
            call_run(&c);
            const pf_bits after = pf_take(&c.p);
            for (int64_t x = 0; x < 900; x++) {
                if (turn > 1) CHECK_INT(test_is_nan(c.row_mass[x]), of_k && x / 3 >= 130);
                if (x / 3 >= 130 && reads(&c, 0, x % 3, x / 3, 2)) {
                    spoiled++;
                    CHECK(test_is_nan(after.number[x * 17 + 3]));
                    if (of_k) CHECK(test_is_nan(after.number[x * 17 + 16]) &&
                                    test_is_nan(after.number[x * 17]));
                } else {
                    clean++;
                    if (!pf_same(&after, x * 17, &before, x * 17, 17, "a row that does not read it")) break;
                }
            }
            CHECK(spoiled > 100 && clean > 400);
            free(before.number);
            free(after.number);
        }
        free(mask);
        call_free(&c);
    }
}

/* A NaN or +inf among the scores of sampled rows makes the KV head run dense, and no other
   one. */
static void nan_among_the_sampled(void) {
    for (int kind = 0; kind < 4; kind++) {
        ref_spec s = spec_of(4, 2, 300, 300, 16);
        call c;
        s.gain = 6.0;
        call_make(&c, &s);
        c.o.sample_attention.alpha_columns = c.o.sample_attention.alpha_slashes = 0.5;
        c.o.sample_attention.per_head = kind % 2;
        for (int64_t i = 0; i < 300 * 4; i++) c.p.q[i * 16 + 3] = 0.5;
        if (kind < 2) c.p.k[(130 * 2 + 1) * 16 + 3] = kind ? REF_INF : (double)test_nan();
        else c.p.q[((kind == 2 ? 290 : 60) * 4 + 2) * 16 + 3] =
                 (double)test_nan();                          /* a sampled row; another */
        ref_write(&c.p);
        if (call_run(&c)) {
            const pf_bits got = pf_take(&c.p);
            for (int64_t h = 0; h < 4; h++) {
                const int bad = kind < 3 && h >= 2, own = kind < 2 ? h >= 2 : kind == 2 && h == 2;
                CHECK_INT(c.audit[h].is_dense, bad);
                CHECK_INT(test_is_nan((float)c.audit[h].sampled_mass), own);
                CHECK_INT(test_is_nan((float)c.audit[h].sampled_low), own);
                const int in_rows = kind < 2 ? h >= 2 : h == 2;
                CHECK_INT(test_is_nan((float)c.audit[h].cra), in_rows);
                CHECK_INT(test_is_nan((float)c.audit[h].low_mass), in_rows);
                for (int64_t i = 0; i < 300; i++) {
                    const int sees = kind < 2 ? h >= 2 && i >= 130 : h == 2 && i == (kind == 2 ? 290 : 60);
                    const float x = got.number[(i * 4 + h) * 17 + 5];
                    if (!CHECK_MSG(test_is_nan(x) == sees, "kind %d, head %d, row %d: %g", kind, (int)h,
                                   (int)i, (double)x)) break;
                    CHECK_INT(test_is_nan(c.row_mass[i * 4 + h]), sees);
                }
            }
            CHECK_INT(c.stats.dense_rows, kind < 3 ? 600 : 0);
            free(got.number);
        }
        call_free(&c);
    }
}

/* ------------------------------------------------------------ dense by itself, counts */

/* A KV head whose share and cost are above the limit runs dense, by itself. */
static void dense_above(void) {
    ref_spec s = spec_of(4, 2, 512, 512, 16);
    call c;
    call_make(&c, &s);
    for (int64_t i = 0; i < 512 * 2 * 16; i++) if (i / 16 % 2) c.p.k[i] = 0.0;   /* KV head 1 is flat */
    quiet(&c.p);
    point_up(&c.p, 0, 512);
    lift(&c.p, 0, 3, 14.0);                                   /* KV head 0 looks at block 0 */
    ref_write(&c.p);
    c.o.sample_attention.dense_above = 0.0;
    c.o.sample_attention.alpha_slashes = SANTA_NONE;
    if (call_run(&c)) {
        CHECK(!c.audit[0].is_dense && !c.audit[1].is_dense && c.audit[0].kept_share < 0.5);
        CHECK(c.audit[2].is_dense && c.audit[3].is_dense && c.audit[2].kept_share == 1.0);
        CHECK_INT(c.stats.dense_rows, 2 * 512);
        CHECK(matches_mask(&c, "dense above", 3e-5));
        CHECK_NEAR(c.audit[0].cost, 128.0 / 512.0, 1e-12, 0.0);
        for (int64_t i = 0; i < 512; i++) CHECK(c.row_mass[i * 4 + 2] == 1.0f);
        const double total = c.audit[0].kept_share + c.audit[0].cost;
        c.o.sample_attention.dense_above = total + 1e-9;
        CHECK(call_run(&c) && !c.audit[0].is_dense);
        c.o.sample_attention.dense_above = total - 1e-9;
        CHECK(call_run(&c) && c.audit[0].is_dense && c.stats.dense_rows == 4 * 512);
    }
    call_free(&c);
}

/* Below 32 rows, and nothing asked for: dense, with its bits; causal need not be. */
static void few_rows(void) {
    ref_spec s = spec_of(4, 2, 31, 300, 16);
    ref_problem p;
    s.causal = 0;
    ref_build(&p, &s);
    const santa_options sparse = ref_options(SANTA_SAMPLE_ATTENTION, 0, 0),
                        dense = ref_options(SANTA_DENSE, 0, 0);
    const pf_bits got = pf_run(&p, &sparse), want = pf_run(&p, &dense);
    pf_same_all(&got, &want, "31 rows");
    CHECK_INT(got.stats.dense_rows, 4 * 31);
    CHECK_INT(got.stats.v_rows_read, want.stats.v_rows_read);
    free(got.number);
    free(want.number);
    ref_free(&p);
}

/* Rows of K and V that a call reads, by its mask and its slices. */
static void counts(void) {
    for (int turn = 0; turn < 6; turn++) {
        ref_spec s = spec_of(6, 2, 300, 430, 16);
        call c;
        int64_t read[2] = {0, 0}, head = 0, all = 0, sampled = 0;
        s.gain   = 6.0;
        s.window = turn == 5 ? 200 : 0;
        call_make(&c, &s);
        c.o.sample_attention.per_head = turn % 2;
        c.o.sample_attention.num_chunks = 1 + turn % 3;
        few_blocks(&c.o, turn > 3);
        if (turn % 3) c.o.sample_attention.row_mass = NULL;
        if (call_run(&c)) {
            model m;
            memset(&m, 0, sizeof m);
            slices(&c.p, 0, &c.o.sample_attention, &m);
            for (int64_t x = 0; x < m.sampled; x++) {
                const pf_range r = pf_range_of(&c.p, 0, m.row[x]);
                sampled += 2 * (r.end - r.begin);
            }
            for (int64_t i = 0; i < 300; i++) {
                const pf_range r = pf_range_of(&c.p, 0, i);
                for (int64_t kv = 0; kv < 2; kv++)
                    for (int64_t j = r.begin; j < r.end; j++) {
                        int any = 0;
                        for (int64_t h = kv * 3; h < kv * 3 + 3; h++) {
                            const int one = reads(&c, 0, h, i, j / 64);
                            head += one;
                            any |= one;
                        }
                        read[0] += any;
                        all++;
                    }
            }
            read[1] = c.o.sample_attention.row_mass ? all : read[0];
            CHECK_INT(c.stats.rows, 6 * 300);
            CHECK_INT(c.stats.keys, all);
            CHECK_INT(c.stats.v_rows_read, read[0]);
            CHECK_INT(c.stats.v_rows_head, head);
            CHECK_INT(c.stats.k_rows_read, read[1] + sampled);
            CHECK_INT(c.stats.k_features_read, (read[1] + sampled) * 16);
            CHECK(read[0] < all);
            if (!c.o.sample_attention.row_mass)
                CHECK(c.audit[0].cra == SANTA_NONE && c.audit[0].low_mass == SANTA_NONE);
            free(m.row);
        }
        call_free(&c);
    }
}

/* ------------------------------------------------------------ the same bits */

static call shape_call(int i, int64_t first, int64_t batch) {
    ref_spec s = spec_of(i == 2 ? 40 : 6, i == 2 ? 1 : 2, i == 2 ? 70 : 210, 333, 24);
    call c;
    s.batch  = batch;
    s.ragged = 1;
    s.first_sequence = first;
    s.gain   = 8.0;
    if (i == 1) {
        s.window = 120; s.sinks = s.alibi = 1; s.k_type = s.v_type = SANTA_BF16; s.head_dim = 33;
    }
    call_make(&c, &s);
    few_blocks(&c.o, i == 1);
    if (i) *(i == 1 ? &c.o.sample_attention.alpha_slashes : &c.o.sample_attention.alpha_columns) = 0.02;
    c.o.sample_attention.per_head      = i == 1 || i == 2;
    c.o.sample_attention.block_size    = i == 3 ? 128 : 64;
    c.o.sample_attention.num_chunks    = 1 + i % 2;
    c.o.sample_attention.dense_above   = i ? (double)SANTA_NONE : 1.15;
    return c;
}

/* Results, row masses, masks and audits of heads [h0, h0 + heads) of `whole` are those of
   `part`. */
static int same_call(const call *part, const pf_bits *a, const call *whole, const pf_bits *b, int64_t h0,
                     const char *what) {
    const ref_spec *s = &part->p.spec;
    const int64_t heads = part->heads, at = h0 / s->heads * s->q_len * s->heads;
    int good = pf_same(a, 0, b, at * (s->head_dim_v + 1), a->count, what);
    good &= CHECK_MSG(!memcmp(part->audit, whole->audit + h0, (size_t)heads * sizeof *part->audit),
                      "%s: audit", what);
    good &= CHECK_MSG(!memcmp(part->row_mass, whole->row_mass + at,
                              (size_t)(heads * s->q_len) * sizeof(float)),
                      "%s: row_mass", what);
    const int64_t k_blocks = ref_min(part->k_blocks, whole->k_blocks);
    for (int64_t i = 0; i < heads * part->q_blocks && good; i++)
        good &= CHECK_MSG(!memcmp(part->mask + i * part->k_blocks,
                                  whole->mask + (h0 * part->q_blocks + i) * whole->k_blocks,
                                  (size_t)k_blocks),
                          "%s: mask", what);
    return good;
}

static void same_bits(void) {
    for (int i = 0; i < 4; i++) {
        call want = shape_call(i, 0, 6);
        if (!call_run(&want)) return;
        const pf_bits bits = pf_take(&want.p);
        const ref_spec s = want.p.spec;
        int64_t sparse = 0;
        for (int64_t h = 0; h < want.heads; h++)
            sparse += !want.audit[h].is_dense && want.audit[h].kept_share < 1.0;
        CHECK_MSG(sparse > 0, "shape %d has nothing sparse", i);
        call got = shape_call(i, 0, 6);
        for (int64_t threads = 2; threads < 12; threads += test_quick ? 5 : 3) {
            got.o.num_threads  = threads;
            got.o.parallel_for = pf_shuffled;
            if (!call_run(&got)) break;
            const pf_bits x = pf_take(&got.p);
            same_call(&got, &x, &want, &bits, 0, "threads");
            CHECK(pf_same_stats(&got.stats, &want.stats));
            free(x.number);
        }
        got.o.num_threads = 0;
        memset(got.audit, 0,
               (size_t)got.heads * sizeof *got.audit);        /* items, into the same arrays */
        pf_poison(&got.p);
        memset(got.mask, 0xee, (size_t)(got.heads * got.q_blocks * got.k_blocks));
        santa_stats sum;
        memset(&sum, 0, sizeof sum);
        for (int64_t at = 0, to; at < s.batch * s.kv_heads; at = to) {
            to = ref_min(at + 1 + at % 3, s.batch * s.kv_heads);
            got.o.item_begin = at;
            got.o.item_end   = to;
            if (!ref_run(&got.p, &got.o, &got.stats)) break;
            sum.v_rows_read += got.stats.v_rows_read;
            sum.k_rows_read += got.stats.k_rows_read;
            sum.dense_rows += got.stats.dense_rows;
        }
        const pf_bits x = pf_take(&got.p);
        same_call(&got, &x, &want, &bits, 0, "items");
        CHECK(sum.v_rows_read == want.stats.v_rows_read && sum.k_rows_read == want.stats.k_rows_read &&
              sum.dense_rows == want.stats.dense_rows);
        free(x.number);
        call_free(&got);
        for (int64_t b = 0; b < 6; b++) {
            got = shape_call(i, b, 1);
            if (!call_run(&got)) break;
            const pf_bits one = pf_take(&got.p);
            same_call(&got, &one, &want, &bits, b * s.heads, "a sequence alone");
            free(one.number);
            call_free(&got);
        }
        for (int layout = 0; layout < REF_LAYOUTS; layout++)
            for (int64_t page = layout == 0 ? 7 : 0; page <= 64; page = page * 9 + 64) {
                got = shape_call(i, 0, 6);
                ref_spec other = s;
                other.layout    = (ref_layout)layout;
                other.page_size = page;
                ref_free(&got.p);
                ref_build(&got.p, &other);
                got.p.a.std_error = NULL;
                if (!call_run(&got)) break;
                const pf_bits moved = pf_take(&got.p);
                same_call(&got, &moved, &want, &bits, 0, "layout or pages");
                free(moved.number);
                call_free(&got);
            }
        free(bits.number);
        call_free(&want);
    }
}

/* Rows without a key, in the middle of a block and at its end, count no blocks. */
static void no_keys(void) {
    enum { N = 128, ROWS = 64, DIM = 8 };
    static float q[ROWS * DIM], k[N * DIM], v[N * DIM], out[ROWS * DIM];
    static const uint8_t mask[4] = {1, 0, 0, 1};
    for (int32_t len = 64; len <= 100; len += 36) {
        santa_sample_audit audit;
        santa_attention a;
        santa_options o = ref_options(SANTA_SAMPLE_ATTENTION, 0, 1);
        memset(&a, 0, sizeof a);
        a.q   = santa_view(q, SANTA_F32, 1, ROWS, 1, DIM);
        a.k   = santa_view(k, SANTA_F32, 1, N, 1, DIM);
        a.v   = santa_view(v, SANTA_F32, 1, N, 1, DIM);
        a.out = santa_view(out, SANTA_F32, 1, ROWS, 1, DIM);
        a.seq_lens = a.kv_start = &len;
        o.sample_attention.mask  = mask;
        o.sample_attention.audit = &audit;
        const size_t bytes = santa_workspace_size(&a, &o);
        void *work = test_alloc(bytes);
        if (CHECK_STATUS(santa_decode(&a, &o, work, bytes, NULL), SANTA_OK))
            CHECK_NEAR(audit.kept_share, 1.0, 0.0, 0.0);
        free(work);
    }
}

const test_case suite_sparse[] = {
    {"masks, audits and results against a float64 model", against_the_model},
    {"alpha 1 is dense", alpha_one_is_dense},
    {"masks grow with alpha, the promise holds", masks_grow},
    {"the first block and the diagonal", always_kept},
    {"planted columns are found", planted_columns},
    {"planted slashes are found, with both blocks", planted_slashes},
    {"a column of the upper half: two slices find it, one does not", faded_column},
    {"a key that no sampled row looks at is lost", unsampled_key_is_lost},
    {"masks that are given", given_masks},
    {"a mask that came out is given back", mask_comes_back},
    {"blocks outside of the mask are not read", blocks_out_of_reach},
    {"a NaN outside of the mask does not show", nan_outside_of_the_mask},
    {"a NaN among the sampled rows", nan_among_the_sampled},
    {"dense_above", dense_above},
    {"fewer rows than 32", few_rows},
    {"rows of K and V that were read", counts},
    {"no key at all: nothing was left out", no_keys},
    {"same bits: threads, items, batch, layouts, pages", same_bits},
    {0, 0}
};
