/* Valid calls of the whole API: the status is ok, nothing beside the results is read or
   written, the workspace may be just as large as asked for, dense is close to float64, a
   sampled row lies among the rows of V and its lse is exact, and what must not matter (threads,
   layout, pages, batch, items, tiles of prop) changes no bit; the steps give what the call
   gives, merged halves are the whole; budgets, variances and conversions are right against the
   formulas. */
#include "problem.h"
#include "../ranks.h"

enum { API_ROWS = 4096, API_NUMBERS = 1 << 17 };

/* What a call wrote, in [batch, q_len, heads] order, bits of floats; NaN is one NaN. */
typedef struct api_result {
    int64_t     rows, dv;
    uint32_t    out[API_NUMBERS], lse[API_ROWS], std_error[API_ROWS];
    santa_audit audit[API_ROWS];
    santa_stats stats;
} api_result;

static api_result api_first, api_second;

static uint32_t api_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u;
}
static float api_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static float api_load(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return (float)ref_load(t->dtype, t->data, fuzz_at(t, i0, i1, i2, i3));
}

static void api_take(const fuzz_problem *p, api_result *r) {
    const int64_t heads = p->s.kv_heads * p->s.group, rows = p->s.batch * p->s.q_len * heads;
    r->rows = rows;
    r->dv   = p->s.dim_v;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < r->dv; c++)
            r->out[i * r->dv + c] = api_bits(
                api_load(&p->a.out, i / (p->s.q_len * heads), i / heads % p->s.q_len, i % heads, c));
        r->lse[i]       = p->a.lse ? api_bits(p->a.lse[i]) : 0;
        r->std_error[i] = p->a.std_error ? api_bits(p->a.std_error[i]) : 0;
        if (p->o.vattention.audit) r->audit[i] = p->o.vattention.audit[i];
        else                       memset(&r->audit[i], 0, sizeof r->audit[i]);
    }
}

/* Bytes of out's memory that are not an element of it still hold their poison. */
static int api_gaps_untouched(const santa_tensor *t) {
    const fuzz_area *a = &fuzz_areas[FUZZ_OUT];
    unsigned char *mine = (unsigned char *)test_alloc(a->bytes);
    int whole = 1;
    memset(mine, 0, a->bytes);
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t e = 0; e < t->shape[3]; e++)
                    memset(mine + ((const unsigned char *)t->data - (a->memory + a->at)) +
                               fuzz_byte_count(t->dtype, fuzz_at(t, i, j, h, e)),
                           1, (size_t)fuzz_byte_count(t->dtype, 1));
    for (size_t i = 0; i < a->bytes; i++) whole &= mine[i] || a->memory[a->at + i] == 0xff;
    free(mine);
    return whole;
}

/* santa_decode in a workspace that ends (or begins) at a guard, after one that is a byte short.
   -1: too large to be tried. */
static int api_decode(fuzz_problem *p, santa_stats *stats) {
    const size_t bytes = santa_workspace_size(&p->a, &p->o);
    int ok = CHECK_STATUS(santa_check(&p->a, &p->o), SANTA_OK) & CHECK(bytes != 0);
    if (!ok) return 0;
    if (bytes > FUZZ_AREA) return -1;
    void *work = fuzz_memory(FUZZ_WORK, bytes, p->s.at_end, p->s.shuffle % 3 ? 0xff : 0x3f);
    ok &= CHECK_STATUS(santa_decode(&p->a, &p->o, work, bytes - 1, stats), SANTA_ERR_WORKSPACE_SIZE);
    for (size_t i = 0; ok && i < fuzz_areas[FUZZ_OUT].bytes; i++)
        if (fuzz_areas[FUZZ_OUT].memory[fuzz_areas[FUZZ_OUT].at + i] != 0xff)
            ok &= CHECK_MSG(0, "an error wrote to out");
    ok &= CHECK_STATUS(santa_decode(&p->a, &p->o, work, bytes, stats), SANTA_OK);
    for (int area = FUZZ_Q; area <= FUZZ_WORK; area++)
        if (fuzz_areas[area].memory) ok &= CHECK_MSG(fuzz_memory_whole(area), "wrote beside area %d", area);
    if (p->s.copy) ok &= CHECK(fuzz_memory_whole(FUZZ_COPY));
    if (p->s.o.method == SANTA_SAAP) ok &= CHECK(fuzz_memory_whole(FUZZ_BUCKETS));
    for (int area = FUZZ_MASK_OUT; area <= FUZZ_ROW_MASS; area++)
        if (p->s.o.method == SANTA_SAMPLE_ATTENTION && fuzz_areas[area].memory)
            ok &= CHECK_MSG(fuzz_memory_whole(area), "wrote beside area %d", area);
    return ok & CHECK_MSG(api_gaps_untouched(&p->a.out), "wrote into the gaps of out");
}

/* Builds and runs the call; with half set, as two calls with half of the items each. */
static int api_run(fuzz_problem *p, const fuzz_spec *s, int half, api_result *r) {
    fuzz_build(p, s);
    const int64_t items = s->batch * s->kv_heads;
    if (half && items > 1) {
        santa_stats one, two;
        int64_t sum[sizeof one / sizeof(int64_t)], add[sizeof one / sizeof(int64_t)];
        p->o.item_end = items / 2;
        int ok = api_decode(p, &one);
        if (ok != 1) return ok;
        p->o.item_begin = items / 2;
        p->o.item_end   = items;
        const size_t bytes = santa_workspace_size(&p->a, &p->o);
        if (bytes > FUZZ_AREA) return -1;
        ok &= CHECK_STATUS(
            santa_decode(&p->a, &p->o, fuzz_memory(FUZZ_WORK, bytes, s->at_end, 0xff), bytes, &two),
            SANTA_OK);
        memcpy(sum, &one, sizeof one);
        memcpy(add, &two, sizeof two);
        for (size_t i = 0; i < offsetof(santa_stats, expected_variance) / sizeof *sum; i++)
            sum[i] += add[i];
        memcpy(&r->stats, sum, sizeof sum);                    /* means and largest ones do not add up */
        r->stats.expected_variance = r->stats.expected_variance_max = 0.0;
        r->stats.found_variance = r->stats.found_variance_max = 0.0;
        r->stats.imbalance = r->stats.largest_bucket = r->stats.covered_mass = 0.0;
        api_take(p, r);
        return ok;
    }
    const int ok = api_decode(p, &r->stats);
    if (ok == 1) api_take(p, r);
    return ok;
}

/* ------------------------------------------------------------ float64 */

/* One row: exact attention, and bounds of what f32 may add to it. */
typedef struct api_exact {
    double *p, *score;             /* [n]                                                   */
    double  lse, keys_share;       /* of the keys in the mass, the rest is the sink's        */
    double  noise;                 /* sum of p times the relative error of each weight      */
    int64_t begin, end;
} api_exact;

/* What a key counts in a row: by the caller's list, or by the mask that the call gave back. */
static double api_reads(const fuzz_problem *p, int64_t b, int64_t h, int64_t first, int64_t position,
                        int64_t j) {
    const santa_sample_attention_options *x = &p->o.sample_attention;
    const int64_t block = x->block_size ? x->block_size : 64;
    int64_t q_blocks, k_blocks;
    if (p->s.list) return fuzz_listed(p, b, position - first, h / p->s.group, j);
    if (!x->mask_out || santa_mask_shape(&p->a, &p->o, &q_blocks, &k_blocks) != SANTA_OK) return 1.0;
    const int64_t far = block << 40, row = (position + far) / block - (first + far) / block;
    const int64_t head = b * p->s.kv_heads * p->s.group + h;
    return (double)x->mask_out[(head * q_blocks + row) * k_blocks + j / block];
}

static api_exact api_scores64(const fuzz_problem *p, int64_t b, int64_t i, int64_t h) {
    const fuzz_spec *s = &p->s;
    const double eps = 6e-8,
                 scale = (p->a.sm_scale != 0.0f ? (double)p->a.sm_scale : 1.0 / sqrt((double)s->dim)) *
                         (s->k_scale > 0.0f ? (double)s->k_scale : 1.0);
    api_exact x;
    int64_t position;
    double  max, total = 0.0, *noise = ref_doubles(s->n);
    fuzz_range(s, b, i, &x.begin, &x.end, &position);
    x.p     = ref_doubles(s->n);
    x.score = ref_doubles(s->n);
    x.noise = 0.0;
    max = p->a.sinks ? (double)p->a.sinks[h] : -REF_INF;
    for (int64_t j = x.begin; j < x.end; j++) {
        int64_t i0, i1;
        double  dot = 0.0, size = 0.0;
        x.p[j] = noise[j] = 0.0;
        x.score[j] = -REF_INF;
        if (fuzz_is_hidden(s, b, i, j)) continue;
        fuzz_place(p, b, j, &i0, &i1);
        const double row = scale * fuzz_row_scale(&p->a.k_scales, i0, i1, h / s->group);
        for (int64_t c = 0; c < s->dim; c++) {
            const double product = row * ref_load(s->q_type, p->a.q.data, fuzz_at(&p->a.q, b, i, h, c)) *
                                   ref_load(s->k_type, p->a.k.data,
                                            fuzz_at(&p->a.k, i0, i1, h / s->group, c));
            dot  += product;
            size += fabs(product);
        }
        noise[j] = eps * ((double)s->dim / 4.0 + 16.0) * size;
        if (s->soft_cap > 0.0f) {
            dot = (double)s->soft_cap * tanh(dot / (double)s->soft_cap);
            noise[j] += eps * 4.0 * fabs(dot);
        }
        if (s->alibi) {
            const double bias = (double)p->a.alibi_slopes[h] * (double)(j - position);
            dot += bias;
            noise[j] += eps * 4.0 * (fabs(bias) + fabs(dot));
        }
        noise[j] += eps * 4.0 * fabs(dot) + 1e-6;
        x.score[j] = dot;
        x.p[j] = api_reads(p, b, h, position - i, position, j);
        if (x.p[j] > 0.0 && dot > max) max = dot;
    }
    for (int64_t j = x.begin; j < x.end; j++) total += x.p[j] *= x.p[j] > 0.0 ? exp(x.score[j] - max) : 0.0;
    const double keys = total;
    if (p->a.sinks) total += exp((double)p->a.sinks[h] - max);
    x.lse = total > 0.0 ? max + log(total) : -REF_INF;
    x.keys_share = total > 0.0 ? keys / total : 0.0;
    for (int64_t j = x.begin; j < x.end; j++) {
        if (total > 0.0) x.p[j] /= total;
        x.noise += x.p[j] * expm1(noise[j]);
        noise[j] = expm1(noise[j]);
    }
    free(noise);
    return x;
}

static void api_free(api_exact x) { free(x.p); free(x.score); }

/* Whether the call sums this row exactly. */
static int api_row_is_dense(const fuzz_problem *p, const api_result *r, int64_t slot, int64_t keys) {
    const santa_options *o = &p->o;
    const int64_t samples = o->num_samples ? o->num_samples : 128;
    if (o->method == SANTA_DENSE || o->method == SANTA_SAMPLE_ATTENTION) return 1;
    if (o->method == SANTA_VATTENTION) return p->o.vattention.audit && r->audit[slot].exact && keys > 0;
    return fuzz_has_draws(o->method) &&
           keys < (o->dense_below == SANTA_AUTO ? 16 * samples : o->dense_below);
}

/* Whether saap may find nothing to read: no fixed keys, no draws, and in the probed buckets, if
   any, no key of this row. */
static int api_may_read_nothing(const santa_options *o) {
    return o->method == SANTA_SAAP && o->num_samples < 0 && o->saap.sink_tokens < 0 &&
           o->saap.local_tokens < 0;
}

/* out, lse and std_error of one row against float64. */
static int api_check_row(const fuzz_problem *p, const api_result *r, int64_t b, int64_t i, int64_t h) {
    const fuzz_spec *s = &p->s;
    const int64_t slot = (b * s->q_len + i) * s->kv_heads * s->group + h;
    const int     exact_scores = s->o.scores == SANTA_SCORES_EXACT;
    const double  v_scale = s->v_scale > 0.0f ? (double)s->v_scale : 1.0;
    api_exact x = api_scores64(p, b, i, h);
    const int64_t keys = fuzz_num_keys(s, b, i);
    const int dense = api_row_is_dense(p, r, slot, keys);
    const int unread = api_may_read_nothing(&p->o) && !p->a.sinks && p->a.lse &&
                       (double)api_float(r->lse[slot]) == -REF_INF;
    int ok = 1;
    for (int64_t c = 0; c < s->dim_v; c++) {
        const double out = (double)api_float(r->out[slot * s->dim_v + c]),
                     half = ref_epsilon(s->out_type) + 1e-6;
        double sum = 0.0, size = 0.0, low = REF_INF, high = -REF_INF, top = 0.0;
        for (int64_t j = x.begin; j < x.end; j++) {
            int64_t i0, i1;
            if (fuzz_is_hidden(s, b, i, j)) continue;
            fuzz_place(p, b, j, &i0, &i1);
            const double v = v_scale * fuzz_row_scale(&p->a.v_scales, i0, i1, h / s->group) *
                             ref_load(s->v_type, p->a.v.data, fuzz_at(&p->a.v, i0, i1, h / s->group, c));
            sum  += x.p[j] * v;
            size += x.p[j] * fabs(v);
            if (v < low)        low  = v;
            if (v > high)       high = v;
            if (fabs(v) > top)  top  = fabs(v);
        }
        if (keys == 0 || unread) {
            ok &= CHECK_MSG(r->out[slot * s->dim_v + c] << 1 == 0, "out[%lld] = %g of a row without keys",
                            (long long)c, out);
        } else if (dense && exact_scores) {
            /* prefill of bf16 alone rounds each weight, by 1/256 at most */
            const int rounds = s->q_len >= 32 && s->q_type == SANTA_BF16 && s->k_type == SANTA_BF16 &&
                               s->v_type == SANTA_BF16 && s->out_type == SANTA_BF16;
            const double allowed = half * fabs(sum) + (1e-4 + rounds / 256.0) * size +
                                   4.0 * x.noise * top + 1e-7;
            ok &= CHECK_MSG(fabs(out - sum) <= allowed,
                            "out[%lld] = %.9g, float64 %.9g, off by more than %g", (long long)c, out, sum,
                            allowed);
        } else {                                              /* weights that add up to at most 1 */
            const double allowed = half * top + 1e-4 * top + 1e-7;
            if (p->a.sinks || api_may_read_nothing(&p->o)) { low = fmin(low, 0.0); high = fmax(high, 0.0); }
            if (s->o.method == SANTA_PPS) {                   /* on average: a key counts 1 / S at most */
                high = (double)(s->group + 1) * top;
                low  = -high;
            }
            ok &= CHECK_MSG(out >= low - allowed && out <= high + allowed,
                            "out[%lld] = %.9g is not in [%.9g, %.9g]", (long long)c, out, low, high);
        }
    }
    if (p->a.lse) {
        const double lse = (double)api_float(r->lse[slot]);
        if (x.lse == -REF_INF || unread) ok &= CHECK_MSG(lse == -REF_INF, "lse = %g without keys", lse);
        else if (exact_scores && (!(santa_method_traits(s->o.method) & SANTA_ADAPTS) || dense))
            ok &= CHECK_MSG(fabs(lse - x.lse) <= 4.0 * x.noise + 3e-6 * (1.0 + fabs(x.lse)),
                            "lse = %.9g, float64 %.9g", lse, x.lse);
        else ok &= CHECK_MSG(fuzz_is_finite((float)lse), "lse = %g", lse);
    }
    if (p->a.std_error) {
        const float e = api_float(r->std_error[slot]);
        ok &= CHECK_MSG(e >= 0.0f, "std_error = %g", (double)e);
        if (dense || keys == 0)
            ok &= CHECK_MSG(e == 0.0f, "std_error = %g of an exact row", (double)e);
    }
    if (p->o.vattention.audit && x.begin < x.end) {
        const santa_audit *a = &r->audit[slot];
        ok &= CHECK_INT(a->num_keys, x.end - x.begin);
        ok &= CHECK_INT(a->num_fixed + a->num_residual, a->num_keys);
        ok &= CHECK(a->budget >= 0 && a->budget <= a->num_residual && a->needed <= a->num_residual);
        ok &= CHECK(a->sigma >= 0.0 && a->denominator >= 0.0 && a->density > 0.0 && a->density <= 1.0);
    }
    api_free(x);
    if (!ok)
        CHECK_MSG(0, "%s, batch %lld, row %lld, head %lld", santa_method_name(s->o.method), (long long)b,
                  (long long)i, (long long)h);
    return ok;
}

static int api_check_stats(const fuzz_problem *p, const santa_stats *x) {
    const fuzz_spec *s = &p->s;
    int64_t keys = 0;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->q_len; i++) {
            keys += fuzz_num_keys(s, b, i) * s->kv_heads;
        }
    const int64_t most = s->list ? s->batch * s->q_len * s->kv_heads * s->max_list : keys;
    return CHECK_INT(x->keys, keys) & CHECK_INT(x->rows, s->batch * s->q_len * s->kv_heads * s->group) &
           CHECK(x->k_rows_read >= 0 &&
                 x->k_rows_read <= most * (s->copy ? 2 * s->group + 1
                                           : s->o.method == SANTA_SAMPLE_ATTENTION ? 2 : 1)) &
           CHECK(x->v_rows_read >= 0 && x->v_rows_read <= most && x->v_rows_read <= x->v_rows_head) &
           CHECK(x->v_rows_head <= most * s->group * (s->copy ? 2 : 1) && x->draws >= 0) &
           CHECK(x->proxy_rows_read >= 0 && x->proxy_rows_read <= (s->copy ? keys : 0)) &
           CHECK(x->rescued_rows >= 0 && x->rescued_rows <= (s->copy ? x->rows : 0)) &
           CHECK(x->redone_rows >= 0 && x->redone_rows <= (s->copy ? x->rows : 0)) &
           CHECK(x->expected_variance >= 0.0 && x->found_variance >= 0.0) &
           CHECK(x->far_rows >= 0 && x->far_rows <= keys && x->visited_rows <= x->far_rows) &
           CHECK(x->imbalance >= 0.0 && x->imbalance <= (double)s->buckets * 1.001) &
           CHECK(x->covered_mass >= 0.0 && x->covered_mass <= 1.0) &
           CHECK(x->k_features_read <= x->k_rows_read * s->dim &&
                 x->k_features_head <= x->k_rows_read * s->dim * s->group) &
           CHECK(x->tiles_skipped >= 0 && x->tiles_skipped <= x->tiles);
}

/* Rows against float64: all of a small call, some of a large one. */
static int api_check_result(const fuzz_problem *p, const api_result *r) {
    const int64_t heads = p->s.kv_heads * p->s.group, rows = p->s.batch * p->s.q_len * heads;
    const int64_t step = 1 + rows * p->s.n / 2000;
    int ok = api_check_stats(p, &r->stats);
    for (int64_t i = (int64_t)(p->s.shuffle % (uint64_t)step); ok && i < rows; i += step)
        ok &= api_check_row(p, r, i / (p->s.q_len * heads), i / heads % p->s.q_len, i % heads);
    return ok;
}

/* ------------------------------------------------------------ the same bits */

static int api_same(const api_result *x, int64_t x_row, const api_result *y, int64_t y_row, int64_t rows,
                    const fuzz_spec *a, const fuzz_spec *b, const char *what) {
    int ok = 1;
    for (int64_t i = 0; ok && i < rows; i++) {
        const int64_t k = x_row + i, l = y_row + i;
        for (int64_t c = 0; ok && c < x->dv; c++)
            ok &= CHECK_MSG(
                x->out[k * x->dv + c] == y->out[l * x->dv + c], "%s, %s: out[%lld][%lld] %.9g became %.9g",
                what, santa_method_name(a->o.method), (long long)k, (long long)c,
                (double)api_float(x->out[k * x->dv + c]), (double)api_float(y->out[l * x->dv + c]));
        if (!a->no_lse && !b->no_lse)
            ok &= CHECK_MSG(x->lse[k] == y->lse[l], "%s, %s: lse[%lld] %.9g became %.9g", what,
                            santa_method_name(a->o.method), (long long)k, (double)api_float(x->lse[k]),
                            (double)api_float(y->lse[l]));
        if (!a->no_error && !b->no_error)
            ok &= CHECK_MSG(x->std_error[k] == y->std_error[l], "%s, %s: std_error[%lld] %.9g became %.9g",
                            what, santa_method_name(a->o.method), (long long)k,
                            (double)api_float(x->std_error[k]), (double)api_float(y->std_error[l]));
        if (a->o.method == SANTA_VATTENTION && !a->no_audit && !b->no_audit && !a->poke)
            ok &= CHECK_MSG(memcmp(&x->audit[k], &y->audit[l], sizeof x->audit[k]) == 0,
                            "%s: audit[%lld] changed", what, (long long)k);
    }
    return ok;
}

static fuzz_layout api_other_layout(fuzz_source *f, fuzz_layout layout) {
    return layout < FUZZ_ADJACENT ? (fuzz_layout)fuzz_below(f, FUZZ_ADJACENT) : layout;
}

/* Another way to the same numbers. The sums of scores follow the features where they are not
   side by side, so that such a view keeps its layout and pages. */
static int api_check_variation(fuzz_source *f, const fuzz_spec *spec, const api_result *first) {
    fuzz_problem p;
    fuzz_spec    s = *spec;
    const int    adjacent = s.k_layout < FUZZ_ADJACENT && s.v_layout < FUZZ_ADJACENT;
    const int64_t per_sequence = s.q_len * s.kv_heads * s.group;
    const char  *what = "threads";
    int          half = 0, stats = 1;
    int64_t      b = 0;
    s.at_end  = !s.at_end;
    s.shuffle = fuzz_take(f, 2);
    s.chunk   = fuzz_between(f, 1, 300);
    s.spare_slots = fuzz_below(f, 3);
    switch (fuzz_below(f, 6)) {
    case 0:
        what = "layout";
        s.k_layout = api_other_layout(f, s.k_layout);
        s.v_layout = api_other_layout(f, s.v_layout);
        s.q_layout = (fuzz_layout)fuzz_below(f, FUZZ_LAYOUTS);
        s.out_layout = (fuzz_layout)fuzz_below(f, FUZZ_LAYOUTS);
        s.broadcast = 0;
        break;
    case 1:
        what = "pages";
        if (adjacent && !s.copy)
            s.page_size = s.page_size && fuzz_chance(f, 2) ? 0 : fuzz_between(f, 1, 40);
        if (adjacent && s.copy && s.page_size % 64 == 0) s.page_size = 64 * fuzz_between(f, 0, 3);
        s.wide_table = !s.wide_table;
        break;
    case 2:
        what = "batch";
        stats = 0;
        b = s.poke ? 0 : fuzz_below(f, s.batch);                /* the poke is in sequence 0 */
        s.batch = 1;
        s.first += b;
        break;
    case 3:
        what = "items";
        half = 1;
        break;
    case 4:
        what = "tiles, or what is asked for";
        if (s.o.method == SANTA_PROP && !s.copy) s.o.tile_size = 64 * fuzz_between(f, 1, 9);
        s.no_lse   = fuzz_chance(f, 2);
        s.no_error = s.no_error || fuzz_chance(f, 2);
        s.no_audit = fuzz_chance(f, 2);
        stats = 0;
        break;
    default: break;
    }
    if (fuzz_chance(f, 2)) s.o.num_threads = fuzz_between(f, 0, 7);
    const int ok = api_run(&p, &s, half, &api_second);
    if (ok != 1) return ok != 0;
    if (!api_same(first, b * per_sequence, &api_second, 0, s.batch * per_sequence, spec, &s, what))
        return 0;
    int64_t field[2][sizeof first->stats / sizeof(int64_t)];
    memcpy(field[0], &first->stats, sizeof first->stats);
    memcpy(field[1], &api_second.stats, sizeof first->stats);
    const size_t fields =
        (half ? offsetof(santa_stats, expected_variance) : sizeof first->stats) / sizeof(int64_t);
    for (size_t i = 0; stats && i < fields; i++)
        if (!CHECK_MSG(field[0][i] == field[1][i], "%s, %s: stats[%d] was %lld, became %lld", what,
                       santa_method_name(s.o.method), (int)i, (long long)field[0][i],
                       (long long)field[1][i]))
            return 0;
    return 1;
}

/* ------------------------------------------------------------ ranks */

/* Keys from .. from + n of the call, as a part of its context. */
static santa_attention api_part(const fuzz_problem *p, int64_t from, int64_t n, int32_t *lens,
                                int32_t *context, int32_t *starts) {
    const fuzz_spec *s = &p->s;
    const int64_t first = s->first_key;
    santa_attention a = p->a;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t len = fuzz_len(s, b);
        lens[b]    = (int32_t)ref_max(ref_min(len - from, n), 0);
        starts[b]  = (int32_t)ref_min(ref_max(fuzz_start(s, b) - from, 0), lens[b]);
        context[b] = (int32_t)(first + ref_max(len, from) + (s->context ? s->later_keys : 0));
    }
    a.seq_lens     = lens;
    a.context_lens = context;
    a.first_key    = first + from;
    if (s->starts) a.kv_start = starts;
    a.k.shape[1] = a.v.shape[1] = ref_max(n, 1);
    a.k.data = (char *)a.k.data + fuzz_byte_count(s->k_type, from * a.k.stride[1]);
    a.v.data = (char *)a.v.data + fuzz_byte_count(s->v_type, from * a.v.stride[1]);
    for (int i = 0; i < 2; i++) {
        santa_tensor *t = i ? &a.v_scales : &a.k_scales;
        t->shape[1] = a.k.shape[1];
        if (t->data) t->data = (char *)t->data + fuzz_byte_count(t->dtype, from * t->stride[1]);
    }
    return a;
}

/* The same call with its keys over ranks: each has the same bits, and what one process has, but
   where a draw moved to a neighbour. */
static int api_check_ranks(fuzz_source *f, const fuzz_spec *spec, const api_result *first) {
    const int64_t ranks = fuzz_between(f, 2, MOST_RANKS), heads = spec->kv_heads * spec->group,
                  samples = spec->o.num_samples ? spec->o.num_samples : 128;
    fuzz_problem p;
    fuzz_spec    s = *spec;
    int64_t      cuts[MOST_RANKS + 1] = {0};
    int          ok = 1, again = 1, is_refused = 0;
    talk         t;
    if (s.first_tokens && s.starts) return 1;
    if (s.copy || s.o.method == SANTA_SAMPLE_ATTENTION) return 1; /* blocks would want cuts of their own */
    s.page_size = s.no_lse = 0;
    s.no_error  = 1;
    fuzz_build(&p, &s);
    memset(&t, 0, sizeof t);
    t.ranks  = ranks;
    t.broken = -1;
    p.o.ranks.count      = ranks;
    p.o.ranks.all_gather = talk_all_gather;
    p.o.ranks.user       = &t;
    for (int64_t r = 1; r < ranks; r++)
        cuts[r] = ref_max(cuts[r - 1], ref_min(s.n - 1, fuzz_chance(f, 3) ? cuts[r - 1] + fuzz_below(f, 2)
                                                                           : fuzz_below(f, s.n)));
    cuts[ranks] = s.n;
    int32_t *lens = ref_ints(s.batch), *context = ref_ints(s.batch), *starts = ref_ints(s.batch);
    for (; ok && again && !is_refused && t.known < MOST_EXCHANGES; t.known++) {
        again = 0;
        for (t.rank = 0; ok && !is_refused && t.rank < ranks; t.rank++) {
            fuzz_problem    mine = p;
            const int64_t   from = ref_min(cuts[t.rank], s.n - 1);
            santa_stats     stats;
            mine.a = api_part(&p, from, cuts[t.rank + 1] - cuts[t.rank], lens, context, starts);
            mine.o.ranks.rank = t.rank;
            t.exchange = 0;
            const size_t bytes = santa_workspace_size(&mine.a, &mine.o);
            if (!bytes) {
                ok &= CHECK_STATUS(santa_check(&mine.a, &mine.o), SANTA_ERR_RANKS_METHOD);
                is_refused = 1;
            }
            if (bytes > FUZZ_AREA) is_refused = 1;
            if (is_refused) continue;
            const santa_status status = santa_decode(
                &mine.a, &mine.o, fuzz_memory(FUZZ_WORK, bytes, s.at_end, 0xff), bytes, &stats);
            if (status == SANTA_ERR_RANKS_EXCHANGE) { again = 1; continue; }
            ok &= CHECK_STATUS(status, SANTA_OK);
            for (int area = FUZZ_OUT; area <= FUZZ_WORK; area++)
                if (fuzz_areas[area].memory) ok &= CHECK(fuzz_memory_whole(area));
            if (again) continue;
            static api_result other;
            api_take(&p, t.rank ? &other : &api_second);
            if (ok && t.rank) ok &= api_same(&api_second, 0, &other, 0, api_second.rows, &s, &s, "ranks");
        }
    }
    talk_free(&t);
    free(lens);
    free(context);
    free(starts);
    if (!ok || again || s.poke || is_refused) return ok;    /* again: more exchanges than a talk has */
    for (int64_t i = 0; ok && i < api_second.rows; i++) {
        const int64_t head = i % heads;
        double low = 0.0, high = 0.0;
        for (int64_t b = i / heads / s.q_len, j = fuzz_start(&s, b); j < fuzz_len(&s, b); j++) {
            int64_t i0, i1, begin, end, position;
            fuzz_range(&s, b, i / heads % s.q_len, &begin, &end, &position);
            if (j < begin || j >= end || fuzz_is_hidden(&s, b, i / heads % s.q_len, j)) continue;
            fuzz_place(&p, b, j, &i0, &i1);
            for (int64_t c = 0; c < s.dim_v; c++) {
                const double v = (double)api_load(&p.a.v, i0, i1, head / s.group, c);
                low  = fmin(low, v);
                high = fmax(high, v);
            }
        }
        const double range = (high - low) * (s.v_scale > 0.0f ? (double)s.v_scale : 1.0);
        /* Draws that move: rarely one. A block of coarse weights ends with the rank, and a tile
           of flash with one draw more draws anew. */
        const int    is_loose = s.o.stash == SANTA_STASH_U8 || s.o.method == SANTA_FLASH;
        const double moved = s.o.method == SANTA_DENSE ? 0.0 : 2.0 / (double)samples + 0.5 * is_loose;
        for (int64_t c = 0; ok && c < s.dim_v; c++) {
            const double one = (double)api_float(first->out[i * s.dim_v + c]),
                         all = (double)api_float(api_second.out[i * s.dim_v + c]);
            ok &= CHECK_MSG(fabs(one - all) <= (1e-4 + 2.0 * ref_epsilon(s.out_type) + moved) * range,
                            "%s over %d ranks: out[%lld][%lld] = %.9g, in one piece %.9g",
                            santa_method_name(s.o.method), (int)ranks, (long long)i, (long long)c,
                            all, one);
        }
        if (!spec->no_lse && ok)
            ok &= CHECK_NEAR(api_float(api_second.lse[i]), (double)api_float(first->lse[i]), 1e-4, 1e-5);
    }
    return ok;
}

/* ------------------------------------------------------------ steps */

/* scores, sample and gather of one row's group, as santa_decode did them in one go (or, dense,
   nearly so). */
static int api_check_steps(fuzz_source *f, fuzz_problem *p, const api_result *r) {
    const fuzz_spec *s = &p->s;
    const int64_t b = fuzz_below(f, s->batch), i = fuzz_below(f, s->q_len), kv = fuzz_below(f, s->kv_heads);
    const int64_t len = fuzz_len(s, b), stride = len + fuzz_below(f, 5);
    const size_t  bytes = santa_workspace_size(&p->a, &p->o);
    const int     at_end = s->at_end;
    if (len == 0 || bytes > FUZZ_AREA || s->list) return 1;
    float *scores = (float *)fuzz_memory(
        FUZZ_SCORES, (size_t)((s->group - 1) * stride + len) * sizeof *scores, at_end, 0xff);
    void  *work   = fuzz_memory(FUZZ_WORK, bytes, at_end, 0xff);
    int ok = CHECK_STATUS(santa_scores(&p->a, &p->o, b, i, kv, scores, stride, work, bytes - 1),
                          SANTA_ERR_WORKSPACE_SIZE);
    ok &= CHECK_STATUS(santa_scores(&p->a, &p->o, b, i, kv, scores, stride, work, bytes), SANTA_OK);
    ok &= CHECK(fuzz_memory_whole(FUZZ_SCORES) && fuzz_memory_whole(FUZZ_WORK));
    for (int64_t g = 0; ok && g < s->group; g++) {
        const int64_t head = kv * s->group + g, slot = (b * s->q_len + i) * s->kv_heads * s->group + head;
        if (s->o.scores == SANTA_SCORES_EXACT && !s->poke) {
            api_exact x = api_scores64(p, b, i, head);
            for (int64_t j = 0; ok && j < len; j++) {
                const float got = scores[g * stride + j];
                if (j < x.begin || j >= x.end || fuzz_is_hidden(s, b, i, j))
                    ok &= CHECK_MSG(got == -INFINITY, "score %g of masked key %lld", (double)got,
                                    (long long)j);
                else
                    ok &= CHECK_MSG(
                        fabs((double)got - x.score[j]) <= 2e-4 * (1.0 + fabs(x.score[j])) + x.noise,
                        "score[%lld] = %.9g, float64 %.9g", (long long)j, (double)got, x.score[j]);
            }
            api_free(x);
        }
        santa_options o = p->o;
        if (s->own_seeds)   o.seed   = o.seeds[b];
        if (s->own_offsets) o.offset = o.offsets[b];
        if ((santa_method_traits(o.method) & SANTA_ADAPTS) || s->poke || s->copy) continue;
        santa_stream_id id;
        santa_draws     d;
        id.request_id = p->o.request_ids ? p->o.request_ids[b] : (uint64_t)b;
        id.head       = head;
        id.q_index    = i;
        memset(&d, 0, sizeof d);
        d.capacity = santa_sample_capacity(len, &o);
        d.index    = (int32_t *)fuzz_memory(FUZZ_INDEX, (size_t)d.capacity * 4, at_end, 0xff);
        d.count = fuzz_chance(f, 2)
                      ? NULL
                      : (int32_t *)fuzz_memory(FUZZ_COUNT, (size_t)d.capacity * 4, at_end, 0xff);
        d.weight   = (float *)fuzz_memory(FUZZ_WEIGHT, (size_t)d.capacity * 4, at_end, 0xff);
        const size_t need = santa_sample_workspace_size(len, &o);
        if (need > FUZZ_AREA) return ok;
        work = fuzz_memory(FUZZ_WORK, need, at_end, 0xff);
        ok &= CHECK_STATUS(santa_sample(scores + g * stride, len, &o, id, &d, work, need - 1),
                           SANTA_ERR_WORKSPACE_SIZE);
        ok &= CHECK_STATUS(santa_sample(scores + g * stride, len, &o, id, &d, work, need), SANTA_OK);
        for (int area = FUZZ_WORK; area <= FUZZ_WEIGHT; area++)
            if (fuzz_areas[area].memory)
                ok &= CHECK_MSG(fuzz_memory_whole(area), "wrote beside area %d", area);
        int64_t draws = 0, begin, end, position;
        double  sum = 0.0;
        fuzz_range(s, b, i, &begin, &end, &position);
        ok &= CHECK(d.rows >= 0 && d.rows <= d.capacity);
        for (int64_t k = 0; ok && k < d.rows; k++) {
            ok &= CHECK(!fuzz_is_hidden(s, b, i, d.index[k]));
            ok &= CHECK_MSG(d.index[k] >= begin && d.index[k] < end &&
                                (k == 0 || d.index[k] > d.index[k - 1]),
                            "index %d", (int)d.index[k]);
            ok &= CHECK_MSG(d.weight[k] >= 0.0f && d.weight[k] <= (o.method == SANTA_PPS ? 2.0f : 1.0f),
                            "weight %.9g", (double)d.weight[k]);
            if (d.count) draws += d.count[k];
            sum += (double)d.weight[k];
        }
        if (d.count) ok &= CHECK_INT(draws, d.draws);
        if (d.rows)  ok &= CHECK_NEAR(sum, 1.0, o.method == SANTA_PPS ? 1.0 : 1e-4, 0.0);
        if (o.method == SANTA_PPS && s->group > 1) continue;    /* santa_decode draws for the group */
        const int64_t keys = fuzz_num_keys(s, b, i);
        ok &= CHECK_INT(d.rows == 0, keys == 0);
        /* Bits only where santa_decode sums as santa_gather does; a sink takes its share behind
           the sum. Where features are not side by side, or Bernoulli picks some, the keys that
           lie side by side in a block are scored together: tiles of flash that are shorter than
           a block may round their scores otherwise, and a draw may move. */
        const santa_isa isa = p->o.isa == SANTA_ISA_AUTO ? santa_best_isa() : p->o.isa;
        const int plain = (s->k_layout < FUZZ_ADJACENT && s->o.scores == SANTA_SCORES_EXACT) ||
                          s->o.scores == SANTA_SCORES_Q8;
        const int short_tiles = o.method == SANTA_FLASH && o.tile_size > 0 && o.tile_size < SANTA_BLOCK;
        if (!plain && short_tiles) continue;
        if (p->a.lse && !p->a.sinks && !api_row_is_dense(p, r, slot, keys))
            ok &= CHECK_MSG(api_bits(d.lse) == r->lse[slot],
                            "lse %.9g of santa_sample, %.9g of santa_decode", (double)d.lse,
                            (double)api_float(r->lse[slot]));
        float *row = (float *)fuzz_memory(FUZZ_ROW, (size_t)s->dim_v * sizeof *row, at_end, 0xff);
        ok &= CHECK_STATUS(santa_gather(&p->a, b, kv, d.index, d.weight, d.rows, row), SANTA_OK);
        ok &= CHECK(fuzz_memory_whole(FUZZ_ROW));
        const int bits = isa == santa_best_isa() && !p->a.sinks &&
                         !api_row_is_dense(p, r, slot, keys);
        for (int64_t c = 0; ok && c < s->dim_v && begin < end; c++) {
            const float out  = api_float(r->out[slot * s->dim_v + c]);
            const float want = s->out_type == SANTA_F16    ? santa_f16_to_f32(santa_f32_to_f16(row[c]))
                               : s->out_type == SANTA_BF16 ? santa_bf16_to_f32(santa_f32_to_bf16(row[c]))
                                                           : row[c];
            if (bits)
                ok &= CHECK_MSG(api_bits(want) == r->out[slot * s->dim_v + c],
                                "%s: steps give out[%lld] = %.9g, decode %.9g", santa_method_name(o.method),
                                (long long)c, (double)want, (double)out);
            else if (!p->a.sinks && (o.method == SANTA_DENSE || !api_row_is_dense(p, r, slot, keys)))
                ok &= CHECK_MSG(fabs((double)want - (double)out) <=
                                    2.1 * ref_epsilon(s->out_type) * fabs((double)out) + 2e-3,
                                "%s: steps give out[%lld] = %.9g, decode %.9g", santa_method_name(o.method),
                                (long long)c, (double)want, (double)out);
        }
    }
    return ok;
}

/* Exact attention over the first keys and over the others as parts of one context, merged; the
   second part gets the sinks. */
static int api_check_merge(fuzz_source *f, fuzz_spec s) {
    fuzz_problem p;
    s.o.method = SANTA_DENSE;
    s.o.scores = SANTA_SCORES_EXACT;
    s.copy = FUZZ_NO_COPY;
    s.predictor = 0;
    fuzz_keep_used(&s.o);
    s.page_size = 0;
    s.poke = s.no_lse = 0;
    s.no_error = 1;
    s.out_type = SANTA_F32;
    s.out_layout = FUZZ_NHD;
    s.list = 0;
    if (s.starts) s.first_tokens = 0;
    if (s.n < 2) return 1;
    if (api_run(&p, &s, 0, &api_first) != 1) return 1;
    const int64_t rows = s.batch * s.q_len * s.kv_heads * s.group, cut = fuzz_between(f, 1, s.n - 1);
    float *part[4] = {ref_floats(rows * s.dim_v), ref_floats(rows), ref_floats(rows * s.dim_v),
                      ref_floats(rows)};
    int32_t *lens = ref_ints(s.batch), *context = ref_ints(s.batch), *starts = ref_ints(s.batch);
    int ok = 1;
    for (int k = 0; ok && k < 2; k++) {
        santa_attention a = api_part(&p, k ? cut : 0, k ? s.n - cut : cut, lens, context, starts);
        a.sinks = k ? p.a.sinks : NULL;
        a.lse = part[2 * k + 1];
        a.out = santa_view(part[2 * k], SANTA_F32, s.batch, s.q_len, s.kv_heads * s.group, s.dim_v);
        const size_t bytes = santa_workspace_size(&a, &p.o);
        void *work = test_alloc(bytes);
        ok &= CHECK_STATUS(santa_decode(&a, &p.o, work, bytes, NULL), SANTA_OK);
        free(work);
    }
    ok &= CHECK_STATUS(santa_merge(rows, s.dim_v, part[0], part[1], part[2], part[3]), SANTA_OK);
    if (ok) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t c = 0; c < s.dim_v; c++)
                api_first.out[i * s.dim_v + c] = api_bits(part[0][i * s.dim_v + c]);
            api_first.lse[i] = api_bits(part[1][i]);
        }
        ok &= api_check_result(&p, &api_first);
    }
    for (int k = 0; k < 4; k++) free(part[k]);
    free(lens);
    free(context);
    free(starts);
    return ok;
}

/* K turned to feature-major holds the same numbers. */
static int api_check_feature_major(const fuzz_problem *p) {
    const santa_tensor *k = &p->a.k;
    const int64_t numbers = k->shape[0] * k->shape[1] * k->shape[2] * k->shape[3];
    if (p->s.page_size) return 1;
    void *copy = fuzz_memory(FUZZ_SCORES, (size_t)fuzz_byte_count(k->dtype, numbers), p->s.at_end, 0xff);
    const santa_tensor t = santa_keys_feature_major(k, copy);
    int ok = CHECK(fuzz_memory_whole(FUZZ_SCORES));
    if (ref_is_blocks(k->dtype)) return ok & CHECK(t.data == NULL);
    ok &= CHECK(t.stride[1] == 1 && t.data == copy);
    for (int64_t b = 0; ok && b < k->shape[0]; b++)
        for (int64_t j = 0; ok && j < k->shape[1]; j++)
            for (int64_t h = 0; ok && h < k->shape[2]; h++)
                for (int64_t c = 0; ok && c < k->shape[3]; c++)
                    ok &= CHECK(api_bits(api_load(k, b, j, h, c)) == api_bits(api_load(&t, b, j, h, c)));
    return ok;
}

/* ------------------------------------------------------------ numbers */

static int api_check_conversions(fuzz_source *f) {
    const uint32_t bits = (uint32_t)fuzz_take(f, 4);
    const float    x = api_float(api_bits(api_float(bits)));
    const uint16_t half = (uint16_t)fuzz_take(f, 2);
    float  block[32], back[32], top = 0.0f;
    double want[32];
    char   q8[34];
    int    ok = 1;
    if (test_is_nan(x)) {
        ok &= CHECK(test_is_nan(santa_f16_to_f32(santa_f32_to_f16(x))) &&
                    test_is_nan(santa_bf16_to_f32(santa_f32_to_bf16(x))));
        ok &= CHECK(test_is_nan(santa_e4m3_to_f32(santa_f32_to_e4m3(x))));
    } else {
        ok &= CHECK_INT(santa_f32_to_f16(x), ref_encode16(SANTA_F16, (double)x));
        ok &= CHECK_INT(santa_f32_to_bf16(x), ref_encode16(SANTA_BF16, (double)x));
        ok &= CHECK_INT(santa_f32_to_e4m3(x), ref_encode8((double)x) | (bits >> 31 ? 128 : 0));
    }
    ok &= CHECK_INT(api_bits(santa_f16_to_f32(half)), api_bits((float)ref_decode16(SANTA_F16, half)));
    ok &= CHECK_INT(api_bits(santa_bf16_to_f32(half)), api_bits((float)ref_decode16(SANTA_BF16, half)));
    ok &= CHECK_INT(api_bits(santa_e4m3_to_f32((uint8_t)half)), api_bits((float)ref_decode8(half & 255)));
    for (int i = 0; i < 32; i++) {
        block[i] = (float)((int)fuzz_below(f, 2001) - 1000) * 0.01f;
        want[i]  = (double)block[i];
        if (fabsf(block[i]) > top) top = fabsf(block[i]);
    }
    santa_f32_to_q8_0(block, 32, q8);
    santa_q8_0_to_f32(q8, 32, back);
    for (int i = 0; i < 32; i++)
        ok &= CHECK_NEAR(back[i], want[i], (double)top * (0.502 / 127.0 + 1e-3) + 1e-6, 0.0);
    return ok;
}

static int api_check_measures(fuzz_source *f) {
    enum { N = 24, DIM = 5 };
    const int64_t n = fuzz_between(f, 1, N), dv = fuzz_between(f, 1, DIM), draws = fuzz_between(f, 1, 40),
                  stride = dv + fuzz_below(f, 3);
    float  p[N], *v = (float *)fuzz_memory(FUZZ_V, (size_t)((n - 1) * stride + dv) * sizeof *v, 1, 0xff);
    double weight[N], exact[N], values[N * DIM], total = 0.0, square = 0.0;
    int    ok = 1;
    for (int64_t j = 0; j < n; j++) total += weight[j] = (double)fuzz_below(f, 100) + (j == 0);
    for (int64_t j = 0; j < n; j++) { p[j] = (float)(weight[j] / total); exact[j] = (double)p[j]; }
    total = 0.0;
    for (int64_t j = 0; j < n; j++) total += exact[j];
    for (int64_t j = 0; j < n; j++) { exact[j] /= total; square += exact[j] * exact[j]; }
    for (int64_t j = 0; j < n; j++)
        for (int64_t c = 0; c < dv; c++)
            values[j * dv + c] = (double)(v[j * stride + c] = (float)fuzz_below(f, 21) - 10.0f);
    const double want[3] = {ref_variance_iid(exact, n, values, dv, draws),
                            ref_variance_strat(exact, n, values, dv, draws),
                            ref_variance_sys(exact, n, values, dv, draws)};
    const size_t bytes = santa_variance_workspace_size(n, dv);
    void  *work = fuzz_memory(FUZZ_WORK, bytes, 1, 0xff);
    double got[3] = {0.0, 0.0, 0.0}, rows = 0.0;
    ok &= CHECK_STATUS(santa_variance_iid(p, n, v, stride, dv, draws, &got[0], work, bytes), SANTA_OK);
    ok &= CHECK_STATUS(santa_variance_strat(p, n, v, stride, dv, draws, &got[1], work, bytes), SANTA_OK);
    ok &= CHECK_STATUS(santa_variance_sys(p, n, v, stride, dv, draws, &got[2], work, bytes), SANTA_OK);
    for (int i = 0; i < 3; i++)
        ok &= CHECK_MSG(fabs(got[i] - want[i]) <= 1e-5 * (1.0 + want[i]), "variance %d: %.9g, formula %.9g",
                        i, got[i], want[i]);
    ok &= CHECK_STATUS(santa_variance_sys(p, n, v, stride, dv, draws, &got[2], work, bytes - 1),
                       SANTA_ERR_WORKSPACE_SIZE);
    ok &= CHECK_NEAR(santa_effective_keys(p, n), 1.0 / square, 0.0, 1e-5);
    ok &= CHECK_STATUS(santa_expected_distinct(SANTA_IID, p, n, draws, &rows), SANTA_OK);
    for (int64_t j = 0; j < n; j++) rows -= 1.0 - pow(1.0 - exact[j], (double)draws);
    ok &= CHECK_NEAR(rows, 0.0, 1e-4, 0.0);
    ok &= CHECK_NEAR(santa_relative_l2(v, v, dv), 0.0, 0.0, 0.0);
    return ok & CHECK(fabs(santa_cosine(v, v, dv) - 1.0) < 1e-6 || santa_relative_l2(v, v, dv) != 0.0 ||
                      v[0] == 0.0f);
}

/* Bounds that hold for any budget: none is above the population, more precision never costs
   less, the full guarantee costs no less than each half of it. */
static int api_check_budgets(fuzz_source *f) {
    santa_budget in;
    int64_t b[3], fine[3];
    int     ok = 1;
    memset(&in, 0, sizeof in);
    in.epsilon     = (double)fuzz_between(f, 2, 99) / 100.0;
    in.delta       = (double)fuzz_between(f, 2, 21) / 100.0;
    in.population  = fuzz_between(f, 0, 100000);
    in.sigma       = (double)fuzz_below(f, 1000) / 100.0;
    in.denominator = (double)fuzz_below(f, 60000) + 0.01;
    in.trace       = (double)fuzz_below(f, 1000) / 100.0;
    in.norm        = (double)fuzz_below(f, 60000) + 0.01;
    in.bound       = (santa_bound)fuzz_below(f, 2);
    for (int turn = 0; turn < 2; turn++) {
        int64_t *to = turn ? fine : b;
        ok &= CHECK_STATUS(santa_budget_denominator(&in, &to[0]), SANTA_OK);
        ok &= CHECK_STATUS(santa_budget_numerator(&in, &to[1]), SANTA_OK);
        ok &= CHECK_STATUS(santa_budget_full(&in, &to[2]), SANTA_OK);
        if (fuzz_chance(f, 2)) in.epsilon *= 0.5;
        else                   in.delta *= 0.5;
    }
    for (int i = 0; i < 3; i++) {
        ok &= CHECK_MSG(b[i] >= 0 && b[i] <= in.population, "budget %d is %lld of %lld", i, (long long)b[i],
                        (long long)in.population);
        ok &= CHECK_MSG(fine[i] >= b[i], "budget %d fell from %lld to %lld", i, (long long)b[i],
                        (long long)fine[i]);
        ok &= CHECK_MSG(b[2] >= b[i], "full %lld, budget %d %lld", (long long)b[2], i, (long long)b[i]);
    }
    const double tail = (double)fuzz_between(f, 1, 65535) / 65536.0;
    return ok & CHECK_NEAR(0.5 * erfc(-santa_normal_quantile(tail) / sqrt(2.0)), tail, 1e-12, 1e-9);
}

static int api_one(const uint8_t *data, size_t size) {
    fuzz_source  f = {data, size};
    fuzz_spec    s;
    fuzz_problem p;
    const int64_t kind = fuzz_below(&f, 16);
    if (kind == 0) return api_check_conversions(&f) & api_check_measures(&f) & api_check_budgets(&f);
    fuzz_choose(&f, &s);
    if (kind == 1) return api_check_merge(&f, s);
    const int ran = api_run(&p, &s, 0, &api_first);
    if (ran != 1) return ran != 0;
    int ok = s.poke || api_check_result(&p, &api_first);
    if (ok && kind < 6) ok &= api_check_steps(&f, &p, &api_first);
    if (ok && kind == 6) ok &= api_check_feature_major(&p);
    if (ok && kind > 12) return api_check_ranks(&f, &s, &api_first);
    for (int turn = 0; ok && turn < (kind < 6 ? 1 : 2); turn++)
        ok &= api_check_variation(&f, &s, &api_first);
    return ok;
}

static size_t api_seed(int number, uint8_t *data, size_t capacity) {
    return fuzz_random_seed(number, 96, data, capacity < 128 ? capacity : 128);
}

FUZZ_TARGET(api, api_one, api_seed);
