/* Random calls of every method on a GPU against the CPU: part of test_cuda.cu. The problems are
   those of test/fuzz: any shape, type, layout, paging and option, and where a call must not
   read everything is NaN or a wild number. */
#define FUZZ_IN_SUITE
#define FUZZ_AREA_BITS 28                           /* for long contexts; unused memory costs nothing */
#include "../fuzz/problem.h"

/* What a call of SANTA_SAMPLE_ATTENTION reads and writes beside its tensors, in device
   memory. */
class masks_on_gpu {
public:
    masks_on_gpu(const fuzz_problem &p, santa_sample_attention_options *x) {
        const fuzz_spec &s = p.s;
        const int64_t heads = s.kv_heads * s.group;
        int64_t q_blocks = 0, k_blocks = 0;
        CHECK_STATUS(santa_mask_shape(&p.a, &p.o, &q_blocks, &k_blocks), SANTA_OK);
        const size_t mask = (size_t)(s.batch * heads * q_blocks * k_blocks);
        if (x->mask) add(&x->mask, mask, x->mask);
        if (x->mask_out) add(&x->mask_out, mask);
        if (x->audit) add(&x->audit, (size_t)(s.batch * heads) * sizeof *x->audit);
        if (x->row_mass) add(&x->row_mass, (size_t)(s.batch * s.q_len * heads) * 4);
    }
    ~masks_on_gpu() { for (block *b : blocks_) delete b; }
    masks_on_gpu(const masks_on_gpu &) = delete;
    masks_on_gpu &operator=(const masks_on_gpu &) = delete;

    bool intact() const {
        bool good = true;
        for (const block *b : blocks_) good &= b->intact();
        return good;
    }
private:
    std::vector<block *> blocks_;

    template <typename T> void add(T **field, size_t bytes, const void *from = nullptr) {
        blocks_.push_back(new block(std::max<size_t>(bytes, 1), 0xff));
        if (from) blocks_.back()->put(from, bytes);
        *field = (T *)blocks_.back()->data();
    }
};

/* What came of calls: rows, those whose out, lse or error bar is another one, those with values
   that are finite on one machine only, those that are zeros here alone or further off than some
   draws can do; calls in which all is alike but for what stats counts; rows that rounding may
   put off in a long context. */
struct any_totals {
    int64_t calls, rows, off, off_lse, bars, off_bars, spoilt, other_spoilt, lost, other_counts;
    double expected;
    void add(const any_totals &x) {
        expected += x.expected;
        calls += x.calls;     rows += x.rows;         off += x.off;   off_lse += x.off_lse;
        bars += x.bars;       off_bars += x.off_bars; lost += x.lost;
        spoilt += x.spoilt;   other_spoilt += x.other_spoilt;         other_counts += x.other_counts;
    }
};

static bool takes_heaviest(santa_method m) {
    return m == SANTA_TOP_K || m == SANTA_TOP_P || m == SANTA_VATTENTION;
}

/* Where a rounding decides much: equal keys, scores of hundreds, of which a weight may be 0 on
   one machine, and a NaN times that, copies of another K; for who takes the heaviest keys, a
   soft cap that many scores reach and then are nearly equal. */
static bool is_hard(const fuzz_spec &s) {
    return s.values == FUZZ_EQUAL || s.values == FUZZ_CLIFFS || s.copy >= FUZZ_STALE
        || (takes_heaviest(s.o.method)
            && s.soft_cap > 0.0f && (s.soft_cap < 2.0f || s.values == FUZZ_PEAKS));
}

/* Whether keys scored by a copy may be others: a long q leaves most of saap's buckets a share
   near 0, of which the probe takes one or another. */
static bool may_scan_others(const fuzz_spec &s) {
    return s.o.method == SANTA_SAAP && (s.q_power || is_hard(s));
}

/* How many of a row's draws rounding may move in a context of n keys, at most: a key's share
   falls with n, and errors of sums do not. Of blocks or keys that are as good as equal any may
   be taken. */
static double any_moves(const fuzz_spec &s) {
    const double any = 1e9;
    const santa_method m = s.o.method;
    const bool chosen = takes_heaviest(m);
    if (m == SANTA_SAMPLE_ATTENTION) return s.values >= FUZZ_PEAKS ? any : 0.0;
    if (is_hard(s) && (s.copy || chosen)) return any;
    if (chosen && s.values == FUZZ_TIES && s.soft_cap > 0.0f) return any;
    if (m == SANTA_DENSE || m == SANTA_TOP_K || m == SANTA_TOP_P || s.o.num_samples < 0) return 0.0;
    const double draws = s.o.num_samples ? (double)s.o.num_samples : 128.0;
    return draws * (double)s.n * (s.copy ? 1e-6 : 1e-7);
}

static bool any_near(float x, float y, double absolute, double relative) {
    if (!(fabs((double)x) < INFINITY) || !(fabs((double)y) < INFINITY)) return x != x ? y != y : x == y;
    return fabs((double)x - (double)y) <= absolute + relative * fabs((double)x);
}

/* A draw that moves does so for all heads of pps, saap and vattention, so of a group's rows one
   counts. Prefill rounds weights to the type of its tiles, and what has scales or lies in
   blocks. lse from a copy is a difference, of far larger numbers where scores spread. */
static void any_compare(const fuzz_problem &p, const result &r, bool is_long, any_totals *t) {
    const fuzz_spec &s = p.s;
    const double moves = is_long ? any_moves(s) : 0.0;
    const bool counts = is_long && s.o.method >= SANTA_IID && s.o.method <= SANTA_PROP && !s.copy;
    const double v_max = 2.0 * ldexp(sqrt((double)s.dim_v), s.v_power)  /* of fuzz_numbers */
                       * (s.v_scale != 0.0f ? (double)s.v_scale : 1.0),
                 of_out = s.out_type == SANTA_F32 ? 0.0 : 2.0 * ref_epsilon(s.out_type);
    const bool sparse = s.o.method == SANTA_SAMPLE_ATTENTION, prefill = s.q_len >= 32 || sparse,
               blocks = s.k_type == SANTA_Q8_0 || s.k_type == SANTA_Q4_0 || s.v_type == SANTA_Q8_0
                     || s.v_type == SANTA_Q4_0,
               rounded = prefill && (s.k_scales || s.v_scales || blocks),
               shared = s.o.method == SANTA_PPS || s.o.method == SANTA_SAAP
                     || s.o.method == SANTA_VATTENTION,
               has_lse = p.a.lse && (!s.copy || (s.values < FUZZ_PEAKS && !is_hard(s)));
    const bool bf16 = s.k_type == SANTA_BF16 || s.v_type == SANTA_BF16;
    const santa_dtype tiles = s.q_type != SANTA_F32 ? s.q_type : bf16 ? SANTA_BF16 : SANTA_F16;
    const double e = ref_epsilon(tiles),
                 absolute = v_max * (rounded ? 24.0 * e : prefill ? e : 1e-5),
                 of_lse = rounded ? 24.0 * e : 0.0;
    const int64_t heads = s.kv_heads * s.group;
    bool moved = false;
    for (int64_t row = 0; row < s.batch * s.q_len * heads; row++) {
        const int64_t b = row / heads / s.q_len, i = row / heads % s.q_len, h = row % heads;
        double  difference = 0.0, norm = 0.0, here = 0.0;
        int64_t spoilt = 0, spoilt_here = 0;
        for (int64_t c = 0; c < s.dim_v; c++) {
            const double x = ref_get(&p.a.out, b, i, h, c), y = ref_get(&r.out, b, i, h, c);
            spoilt += !(fabs(x) < REF_INF);
            spoilt_here += !(fabs(y) < REF_INF);
            norm += x * x;
            here += y * y;
            if (x != y) difference += (x - y) * (x - y);
        }
        t->rows++;
        t->spoilt += spoilt > 0;
        if (!shared || h % s.group == 0) moved = false;
        if (spoilt || spoilt_here) {
            t->other_spoilt += spoilt != spoilt_here && !moved;
            moved |= spoilt != spoilt_here;
            continue;
        }
        const double by_rounding = (1e-3 + of_out) * sqrt(norm) + absolute,
                     of_a_draw = v_max / (double)r.stats.draws * (double)r.stats.rows;
        const bool off = !(sqrt(difference) <= by_rounding);
        t->off += off && !moved;
        t->lost += here == 0.0 && off && !(is_long && s.dim_v == 1); /* a number of V may be 0 */
        t->expected += 1.0 - exp(-moves);
        t->lost += counts && !(sqrt(difference) <= by_rounding + (3.0 + 4.0 * moves) * of_a_draw);
        moved |= off;
        if (moved) continue;
        t->off_lse += has_lse && !any_near(p.a.lse[row], r.lse[(size_t)row], 1e-3 + of_lse, 2e-6 + of_lse);
        if (!p.a.std_error) continue;
        t->bars++;
        t->off_bars += !any_near(p.a.std_error[row], r.std_error[(size_t)row], 2e-3 * v_max, 0.02);
    }
}

/* Runs a call on both machines; t->calls stays 0 where it is not one for a GPU. False where
   something is not right. */
static bool any_call(fuzz_problem *p, bool is_long, any_totals *t) {
    const size_t bytes = santa_workspace_size(&p->a, &p->o);
    santa_options o = p->o;
    o.isa = SANTA_ISA_AUTO;                                             /* the CPU's */
    o.num_threads = 0;
    o.parallel_for = nullptr;
    o.parallel_user = nullptr;
    if (!CHECK_STATUS(santa_check(&p->a, &p->o), SANTA_OK)) return false;
    if (bytes > FUZZ_AREA) return true;
    std::unique_ptr<masks_on_gpu> masks;
    if (o.method == SANTA_SAMPLE_ATTENTION) masks.reset(new masks_on_gpu(*p, &o.sample_attention));
    on_gpu g(p->a, o);
    if (santa_check(&g.a, &g.o) != SANTA_OK) return true;
    t->calls = 1;
    santa_stats cpu;
    void *work = fuzz_memory(FUZZ_WORK, bytes, 1, 0xff);
    if (!g.run() || (masks && !CHECK(masks->intact()))
        || !CHECK_STATUS(santa_decode(&p->a, &p->o, work, bytes, &cpu), SANTA_OK)) return false;
    const result r = g.get();
    const santa_stats &x = r.stats;
    const bool same
        = CHECK_MSG(x.rows == cpu.rows && x.keys == cpu.keys
                        && (x.proxy_rows_read == cpu.proxy_rows_read || may_scan_others(p->s))
                        && (x.dense_rows == cpu.dense_rows || o.method == SANTA_SAMPLE_ATTENTION)
                        && x.far_rows == cpu.far_rows,
              "rows %lld %lld, keys %lld %lld, copied %lld %lld, dense %lld %lld, far %lld %lld",
              (long long)x.rows, (long long)cpu.rows, (long long)x.keys, (long long)cpu.keys,
              (long long)x.proxy_rows_read, (long long)cpu.proxy_rows_read, (long long)x.dense_rows,
              (long long)cpu.dense_rows, (long long)x.far_rows, (long long)cpu.far_rows) != 0;
    if (cpu.redone_rows || x.redone_rows) return same;                  /* exact here */
    any_compare(*p, r, is_long, t);
    t->other_counts = !t->off
                   && (x.k_rows_read != cpu.k_rows_read || x.v_rows_read != cpu.v_rows_read
                       || x.v_rows_head != cpu.v_rows_head || x.draws != cpu.draws
                       || x.rescued_rows != cpu.rescued_rows || x.exact_rows != cpu.exact_rows
                       || x.proxy_rows_read != cpu.proxy_rows_read       /* of saap's buckets, by a share */
                       || x.visited_rows != cpu.visited_rows || x.visited_buckets != cpu.visited_buckets);
    return same;
}

/* A type, a head_dim and a layout that the tuned kernels have. */
static void any_suit(test_rng *r, fuzz_spec *s) {
    s->q_type = test_below(r, 2) ? SANTA_F16 : SANTA_BF16;
    s->k_type = s->v_type = test_below(r, 4) ? s->q_type : SANTA_E4M3;
    const bool small = s->batch * s->kv_heads * s->n <= 8000;
    s->dim = small ? pick(r, {16, 64, 64, 128}) : (s->dim + 7) / 8 * 8;
    s->dim_v = small && test_below(r, 3) ? s->dim : (s->dim_v + 7) / 8 * 8;
    s->q_layout = s->k_layout = s->v_layout = test_below(r, 2) ? FUZZ_NHD : FUZZ_HND;
    if (s->page_size) s->page_size = pick(r, {16, 48, 64, 128});
    if (test_below(r, 3)) s->soft_cap = 0.0f;
    if (s->q_type == SANTA_F16) s->q_power = 0;
    if (s->v_type != SANTA_BF16) s->v_power = 0;
    if (s->o.scores == SANTA_SCORES_Q8) s->o.scores = SANTA_SCORES_EXACT;
}

/* A long context of few heads: what is split among CTAs, read in portions, or kept for some
   blocks alone. */
static void any_lengthen(test_rng *r, fuzz_spec *s) {
    const int64_t n = s->n;
    s->batch = std::min<int64_t>(s->batch, 2);
    s->kv_heads = std::min<int64_t>(s->kv_heads, 2);
    s->group = std::min<int64_t>(s->group, 8);
    s->q_len = pick(r, {1, 1, 1, 2, 5, 40});
    const int64_t room = FUZZ_AREA / 6 / (4 * s->batch * s->kv_heads * std::max(s->dim, s->dim_v)),
                  most = test_quick ? 20000 : std::min<int64_t>(room, 300000);
    s->n = 3000 + test_below(r, most - 3000) / (1 + test_below(r, 8));
    if (s->first_tokens) s->starts = 0;             /* see fuzz_choose */
    if (s->window) s->window = std::max<int64_t>(s->window * s->n / n, 1);
    if (s->chunk) s->chunk = std::max<int64_t>(s->chunk * s->n / n, 1);
    if (s->list && test_below(r, 2)) s->max_list *= 1 + test_below(r, s->n / 300);
    if (s->o.method == SANTA_VATTENTION && test_below(r, 2)) {
        s->o.vattention.heavy_tokens = 1 + test_below(r, s->n / 8);
        s->o.vattention.base_samples = 2 + test_below(r, s->n / 8);
    }
}

static void any_print(const fuzz_spec &s, int number, const any_totals &t) {
    const santa_options &o = s.o;
    printf("    call %d of seed %llu: %s, scores %d, num_samples %lld, combs %lld, stash %d, below %lld; "
           "batch %lld, q_len %lld, heads %lld x %lld, n %lld, dim %lld/%lld, types %d %d %d %d, layouts "
           "%d %d %d %d, page_size %lld, values %d, ragged %d, causal %d, window %lld, firsts %lld, starts "
           "%d, context %d, sinks %d, alibi %d, cap %g, scale %g, powers %d %d, poke %d, copy %d of %d "
           "bits, buckets %lld, list %d, scales %d %d\n",
           number, (unsigned long long)test_seed, santa_method_name(o.method), (int)o.scores,
           (long long)o.num_samples, (long long)o.num_combs, (int)o.stash, (long long)o.dense_below,
           (long long)s.batch, (long long)s.q_len, (long long)s.kv_heads, (long long)s.group,
           (long long)s.n, (long long)s.dim, (long long)s.dim_v, (int)s.q_type, (int)s.k_type,
           (int)s.v_type, (int)s.out_type, (int)s.q_layout, (int)s.k_layout, (int)s.v_layout,
           (int)s.out_layout, (long long)s.page_size, (int)s.values, s.ragged, s.causal,
           (long long)s.window, (long long)s.first_tokens, s.starts, s.context, s.sinks, s.alibi,
           (double)s.soft_cap, (double)s.sm_scale, s.q_power, s.v_power, s.poke, s.copy, s.bits,
           (long long)s.buckets, s.list, s.k_scales, s.v_scales);
    printf("        of %lld rows %lld off, %lld lost, %lld in lse, %lld of %lld bars, %lld other NaNs%s\n",
           (long long)t.rows, (long long)t.off, (long long)t.lost, (long long)t.off_lse,
           (long long)t.off_bars, (long long)t.bars, (long long)t.other_spoilt,
           t.other_counts ? ", other counts" : "");
}

/* few_calls: of each method there are so many at least. */
static void any_run(int calls, bool long_ones, int few_calls) {
    enum { BYTES = 400 };
    std::vector<any_totals> of(4 * SANTA_METHOD_COUNT);     /* by method, from a copy, hard */
    for (int i = 0; i < calls; i++) {
        uint8_t  bytes[BYTES];
        test_rng rng = test_rng_make((long_ones ? 40000 : 20000) + (uint64_t)i);
        for (uint8_t &x : bytes) x = (uint8_t)test_next(&rng);
        fuzz_source  source = {bytes, BYTES};
        fuzz_spec    s;
        fuzz_problem p;
        fuzz_choose(&source, &s);
        if (i % 2) any_suit(&rng, &s);
        if (long_ones) any_lengthen(&rng, &s);
        fuzz_build(&p, &s);
        any_totals t = {};
        if (!any_call(&p, long_ones, &t) || t.lost
            || (!is_hard(s) && ((double)t.off > 1.0 + t.expected || (t.off_lse && !long_ones)
                                || t.off_bars > 1 || t.other_spoilt)))
            any_print(s, i, t);
        of[(size_t)(4 * s.o.method + 2 * (s.copy != 0) + is_hard(s))].add(t);
        if (cudaGetLastError() != cudaSuccess) return;                  /* nothing works from here on */
    }
    for (int m = 0; m < 4 * SANTA_METHOD_COUNT; m++) {
        const any_totals &t = of[(size_t)m];
        const santa_method method = (santa_method)(m / 4);
        if ((m & 2) && !(santa_method_traits(method) & SANTA_PROXIES)) continue;
        const int64_t few = m & 1 ? 10 : m & 2 ? 300 : 1000;
        char what[240];
        snprintf(what, sizeof what,
                 "%s%s%s: %lld calls, %lld rows: %lld off, %lld lost, %lld in lse, %lld of %lld bars; "
                 "NaNs in %lld, in %lld others; %lld other counts",
                 santa_method_name(method), m & 2 ? " from a copy" : "", m & 1 ? ", hard" : "",
                 (long long)t.calls, (long long)t.rows, (long long)t.off, (long long)t.lost,
                 (long long)t.off_lse, (long long)t.off_bars, (long long)t.bars, (long long)t.spoilt,
                 (long long)t.other_spoilt, (long long)t.other_counts);
        if (t.calls) printf("        %s\n", what);
        const double most_off = 2.0 + (double)(t.rows / few) + t.expected;
        CHECK_MSG(((m & 1) || t.calls >= few_calls) && t.lost == 0 && (double)t.off <= most_off
                      && (double)t.off_lse <= most_off && t.off_bars <= 2 + t.bars / few
                      && ((m & 1) || t.other_spoilt <= t.rows / 1000)
                      && t.other_counts <= 2 + t.calls / 40,
                  "%s", what);
    }
}

static void any_calls(void) {
    NEED_DEVICE();
    any_run(test_quick ? 400 : 6000, false, test_quick ? 1 : 15);
}
static void any_long_calls(void) {
    NEED_DEVICE();
    any_run(test_quick ? 10 : 100, true, 0);
}

static const test_case any_cases[] = {{"any_calls", any_calls}, {"any_long_calls", any_long_calls}, {0, 0}};
