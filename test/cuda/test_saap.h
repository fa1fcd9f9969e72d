/* SANTA_SAAP on the GPU: the index byte for byte as the CPU has it but for rounding, what is
   read and what comes out against the model of routed.h. For test_cuda.cu. */
#include "../routed.h"

/* ------------------------------------------------------------------------------ the index */

/* A view's memory on the device. */
class gpu_view {
public:
    santa_tensor t;
    explicit gpu_view(const santa_tensor &host) : t(host) {
        const extent  e = extent_of(host);
        const int64_t size = size_of(host.dtype);
        const char   *from = (const char *)host.data + e.low * size;
        const size_t  shift = (uintptr_t)from % 16, bytes = (size_t)(e.count * size);
        memory_ = new block(bytes + shift);
        memory_->put(from, bytes, shift);
        t.data   = memory_->data() + shift - e.low * size;
        t.device = SANTA_CUDA;
    }
    ~gpu_view() { delete memory_; }
    gpu_view(const gpu_view &) = delete;
    gpu_view &operator=(const gpu_view &) = delete;

private:
    block *memory_;
};

/* A problem of routed.h that frees itself. */
struct routed_problem : routed {
    explicit routed_problem(const shape &as) { build(this, &as); }
    ~routed_problem() { release(this); }
    routed_problem(const routed_problem &) = delete;
    routed_problem &operator=(const routed_problem &) = delete;
};

/* Keys from .. from + count - 1 on the device, as assign of routed.h has them. */
static santa_status assign_on_gpu(const on_gpu &g, const santa_tensor &keys, int64_t from, int64_t count,
                                  cudaStream_t stream = 0) {
    santa_options o;
    memset(&o, 0, sizeof o);
    o.stream = stream;
    santa_tensor t = keys;
    t.data = (char *)t.data + size_of(t.dtype) * from * t.stride[1];
    t.shape[1] = count;
    return santa_buckets_assign(&g.a, &t, from, &o);
}

/* The lengths of the device's sequences become those of the host. */
static void put_lens(const on_gpu &g, const routed &x) {
    CUDA(
        cudaMemcpy((void *)g.a.seq_lens, x.p.a.seq_lens, 4 * (size_t)x.as.s.batch, cudaMemcpyHostToDevice));
}

static std::vector<int32_t> index_of(const on_gpu &g) {
    std::vector<int32_t> bytes(santa_buckets_size(&g.a) / 4);
    g.index().get(bytes.data(), 4 * bytes.size());
    return bytes;
}

/* Where two indices differ in what they mean: of all ints of a slot and KV head the header,
   offsets, sorted keys and buckets of keys. Only those whose header has been written. */
static int64_t index_differs(const routed &x, const int32_t *a, const int32_t *b) {
    const santa_attention &p = x.p.a;
    const int64_t n = x.as.buckets, capacity = p.block_table ? p.max_pages * p.k.shape[1] : p.k.shape[1],
                  slots = x.r.num_slots ? x.r.num_slots : x.as.s.batch,
                  ints = (int64_t)(x.bytes / 4) / (slots * x.as.s.kv_heads);
    int64_t bad = 0;
    for (int64_t i = 0; i < slots * x.as.s.kv_heads; i++, a += ints, b += ints) {
        if (a[0] != 0x53414150 && b[0] != 0x53414150) continue;
        if (memcmp(a, b, 20)) { bad++; continue; }
        const int32_t *keys = a + 16 + 2 * (n + 1), *other = b + 16 + 2 * (n + 1);
        bad += memcmp(a + 16, b + 16, 4 * (size_t)(n + 1)) != 0;
        bad += memcmp(keys, other, 4 * (size_t)a[4]) != 0;
        bad += memcmp(keys + capacity, other + capacity, 2 * (size_t)a[3]) != 0;
    }
    return bad;
}

/* All keys, and then the host has the device's index. */
static bool assign_both(routed &x, on_gpu &g, const santa_tensor &keys) {
    if (!CHECK_STATUS(assign_on_gpu(g, keys, 0, x.as.s.len), SANTA_OK)) return false;
    if (!CUDA(cudaDeviceSynchronize()) || !CHECK_MSG(g.index().intact(), "written past the index"))
        return false;
    const std::vector<int32_t> index = index_of(g);
    memcpy(x.memory[5], index.data(), x.bytes);
    return true;
}

/* What the device wrote becomes the host's result, and is held against the model. */
static bool verify_on_gpu(routed &x, on_gpu &g, rows_counted *rows, const char *what) {
    if (!g.run()) return CHECK_MSG(0, "in %s", what) != 0;
    const result r = g.get();
    const ref_spec &s = x.as.s;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++)
                for (int64_t c = 0; c < s.head_dim_v; c++)
                    ref_set(&x.p.a.out, b, i, h, c, ref_get(&r.out, b, i, h, c));
    memcpy(x.p.lse, r.lse.data(), 4 * r.lse.size());
    if (x.p.a.std_error) memcpy(x.p.std_error, r.std_error.data(), 4 * r.std_error.size());
    return verify(&x, &g.o, &r.stats, rows, what) != 0;
}

/* Whole numbers, so that all sums are exact, CPU and GPU. */
static void whole_keys(routed &x, uint64_t seed) {
    test_rng r = test_rng_make(seed);
    const ref_spec &s = x.as.s;
    for (int64_t i = 0; i < s.batch * s.len * s.kv_heads * s.head_dim; i++)
        x.pre[i] = (double)(test_below(&r, 5) - 2);
    for (int64_t i = 0; i < s.kv_heads * x.as.buckets * s.head_dim; i++) {
        x.centroid[i] = (double)(test_below(&r, 5) - 2);
        ref_store(x.r.dtype, x.memory[1], i, x.centroid[i]);
    }
    write_keys(&x);
}

/* Ties, NaN, any type and layout; a batch in other slots. */
static void saap_nearest(void) {
    NEED_DEVICE();
    static const santa_dtype types[] = {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3};
    static const int64_t dims[] = {128, 64, 40, 1, 256, 96, 7, 32},
                         counts[] = {1, 5, 64, 130, 300, 1024, 2000};
    for (int t = 0; t < (test_quick ? 6 : 28); t++) {
        shape as = shape_make(2, 2, 150, dims[t % 8], counts[t % 7]);
        as.s.batch = 2;
        as.s.ragged = t % 2;
        as.s.stream = (uint64_t)t;
        as.key_type = types[t % 4];
        as.weights  = types[t / 2 % 3];
        as.key_layout = (ref_layout)(t % REF_LAYOUTS);
        as.permuted = t % 3 == 0;
        routed_problem x(as);
        whole_keys(x, (uint64_t)t);
        for (int64_t j = 50; j < 60; j++)
            x.pre[(j * 2 + 1) * as.s.head_dim + j % as.s.head_dim] = (double)test_nan();
        write_keys(&x);
        if (!assign_all(&x)) return;
        on_gpu g(x.p.a, plain(1));
        gpu_view keys(x.keys);
        CUDA(cudaMemset(g.index().data(), 0xa5, x.bytes));
        if (!CHECK_STATUS(assign_on_gpu(g, keys.t, 0, 150), SANTA_OK) || !CUDA(cudaDeviceSynchronize()))
            return;
        CHECK_MSG(g.index().intact(), "written past the index");
        CHECK_MSG(index_differs(x, (const int32_t *)x.memory[5], index_of(g).data()) == 0, "turn %d", t);
    }
}

/* Gaussian keys: another bucket only where two are equally near to rounding. */
static void saap_rounding(void) {
    NEED_DEVICE();
    int64_t seen = 0, other = 0;
    for (int t = 0; t < (test_quick ? 1 : 6); t++) {
        shape as = shape_make(4, 2, test_quick ? 300 : 4000, 128, 256);
        as.key_type = t % 3 == 0 ? SANTA_F32 : t % 3 == 1 ? SANTA_BF16 : SANTA_F16;
        as.weights  = t < 3 ? as.key_type : SANTA_F32;
        as.s.stream = (uint64_t)(70 + t);
        routed_problem x(as);
        if (!assign_all(&x)) return;
        on_gpu g(x.p.a, plain(1));
        gpu_view keys(x.keys);
        CHECK_STATUS(assign_on_gpu(g, keys.t, 0, as.s.len), SANTA_OK);
        CUDA(cudaDeviceSynchronize());
        std::vector<int32_t> cpu(x.bytes / 4), gpu = index_of(g);
        memcpy(cpu.data(), x.memory[5], x.bytes);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t j = 0; j < as.s.len; j++) {
                memcpy(x.memory[5], cpu.data(), x.bytes);
                const int64_t a = bucket_of(&x, 0, h, j);
                memcpy(x.memory[5], gpu.data(), x.bytes);
                const int64_t b = bucket_of(&x, 0, h, j);
                const double *k = x.pre + (j * 2 + h) * 128, *ca = x.centroid + (h * 256 + a) * 128,
                             *cb = x.centroid + (h * 256 + b) * 128;
                double near = 0.0, scale = 0.0;
                seen++;
                if (a == b) continue;
                other++;
                for (int c = 0; c < 128 && b >= 0; c++) {
                    near += k[c] * (ca[c] - cb[c]);
                    scale += fabs(k[c] * ca[c]);
                }
                if (!CHECK_MSG(b >= 0 && fabs(near) <= 2e-6 * scale, "key %d: bucket %d, the CPU %d",
                               (int)j, (int)b, (int)a))
                    return;
            }
    }
    CHECK_MSG(other * 1000 <= seen, "%lld of %lld keys are elsewhere", (long long)other, (long long)seen);
}

/* Keys arrive in one call, in pieces, one by one, and again after wrong ones: at every step the
   index is the CPU's. */
static void saap_arrivals(void) {
    NEED_DEVICE();
    for (int turn = 0; turn < 4; turn++) {
        shape as = shape_make(4, 2, test_quick ? 140 : 230, 16, test_quick ? 5 : turn % 2 ? 20 : 90);
        as.s.batch     = turn == 3 ? 1 : 5;                      /* with an empty one */
        as.s.ragged    = turn != 3;
        as.s.page_size = turn == 1 ? 16 : 0;
        as.permuted    = turn == 2;
        as.key_type    = turn == 2 ? SANTA_F16 : SANTA_F32;
        as.s.stream    = 40;
        routed_problem x(as);
        whole_keys(x, 3);
        const int64_t len = as.s.len;
        int32_t lens[5];
        if (!x.p.seq_lens) x.p.a.seq_lens = x.p.seq_lens = ref_ints(1);
        if (turn == 3) x.p.seq_lens[0] = (int32_t)len;
        memcpy(lens, x.p.seq_lens, 4 * (size_t)as.s.batch);
        on_gpu g(x.p.a, plain(1));
        gpu_view keys(x.keys);
        test_rng r = test_rng_make(8 + (uint64_t)turn);
        for (int way = 0; way < 5; way++) {
            int64_t step, at = way == 3 ? 77 : 0;
            if (way != 4) {
                memset(x.memory[5], 0xa5, x.bytes);
                CUDA(cudaMemset(g.index().data(), 0xa5, x.bytes));
            }
            memcpy(x.p.seq_lens, lens, 4 * (size_t)as.s.batch);
            put_lens(g, x);
            if (way == 3) {
                CHECK_STATUS(assign(&x, 0, len, NULL), SANTA_OK);
                CHECK_STATUS(assign_on_gpu(g, keys.t, 0, len), SANTA_OK);
            }
            for (; at < len; at += step) {
                step = ref_min(way == 0   ? 1 + test_below(&r, 90)
                               : way == 1 ? 1
                               : way == 2 ? 3
                                          : len - at,
                               len - at);
                for (int64_t b = 0; b < as.s.batch; b++)
                    x.p.seq_lens[b] = (int32_t)ref_min(at + step, lens[b]);
                put_lens(g, x);
                CHECK_STATUS(assign(&x, at, step, NULL), SANTA_OK);
                CHECK_STATUS(assign_on_gpu(g, keys.t, at, step), SANTA_OK);
                if (!CUDA(cudaDeviceSynchronize())) return;
                CHECK_MSG(g.index().intact(), "written past the index");
                const std::vector<int32_t> index = index_of(g);
                if (!CHECK_MSG(index_differs(x, (const int32_t *)x.memory[5], index.data()) == 0,
                               "turn %d, way %d, keys %d to %d", turn, way, (int)at, (int)(at + step)))
                    return;
            }
        }
        /* what a decode step calls: the last key, and more than there are */
        for (int64_t count : {1, 3, 30}) {
            void *memory;
            santa_tensor last = ref_tensor(as.key_type, as.s.batch, count, 2, 16, REF_NHD, &memory);
            for (int64_t b = 0; b < as.s.batch; b++)
                for (int64_t i = 0; i < count; i++)
                    if (lens[b] - count + i >= 0) put_key(&x, &last, b, lens[b] - count + i, i);
            CHECK_STATUS(santa_buckets_assign(&x.p.a, &last, -1, NULL), SANTA_OK);
            gpu_view gpu_last(last);
            CHECK_STATUS(santa_buckets_assign(&g.a, &gpu_last.t, -1, NULL), SANTA_OK);
            CUDA(cudaDeviceSynchronize());
            CHECK_MSG(index_differs(x, (const int32_t *)x.memory[5], index_of(g).data()) == 0,
                      "turn %d, the last %d", turn, (int)count);
            free(memory);
        }
    }
}

/* --------------------------------------------------------------------------------- decode */

static shape random_shape(test_rng *r, int number) {
    static const int64_t dims[] = {64, 128, 8, 256, 40, 96, 128, 33},
                         counts[] = {1, 3, 16, 40, 64, 200, 1500};
    static const santa_dtype types[] = {SANTA_F32, SANTA_BF16, SANTA_F16, SANTA_E4M3, SANTA_BF16};
    const int64_t kv_heads = 1 + test_below(r, 2), group = number % 7 == 0 ? 17 : 1 + test_below(r, 6);
    shape as = shape_make(kv_heads * group, kv_heads, 1 + test_below(r, test_quick ? 200 : MAX_LEN),
                          dims[number % 8], counts[test_below(r, 7)]);
    ref_spec &s = as.s;
    s.stream = (uint64_t)(3000 + number);
    s.batch  = 1 + test_below(r, 3);
    s.q_len  = 1 + test_below(r, 2);
    s.head_dim_v = test_below(r, 3) ? s.head_dim : dims[test_below(r, 8)];
    s.page_size = test_below(r, 2) ? 0 : 1 + test_below(r, 20);
    s.layout    = (ref_layout)test_below(r, REF_LAYOUTS);
    s.k_type = types[test_below(r, 5)];
    s.v_type = test_below(r, 6) ? s.k_type : types[test_below(r, 5)];
    s.q_type = s.k_type == SANTA_E4M3 || test_below(r, 4) == 0 ? types[test_below(r, 3)] : s.k_type;
    s.out_type = SANTA_F32;
    s.ragged = (int)test_below(r, 2);
    s.causal = (int)test_below(r, 2);
    s.window = test_below(r, 4) ? 0 : 1 + test_below(r, s.len);
    s.sinks  = (int)test_below(r, 2);
    s.alibi  = test_below(r, 5) == 0;
    s.soft_cap = test_below(r, 4) ? 0.0f : 3.0f;
    as.hidden  = test_below(r, 3) ? pick(r, {1, 24, 64, 130, 300}) : 0;
    as.weights = types[test_below(r, 3)];
    as.key_type = types[test_below(r, 5)];
    as.q0_type  = types[test_below(r, 3)];
    as.key_layout = (ref_layout)test_below(r, REF_LAYOUTS);
    as.own_q    = (int)test_below(r, 2);
    as.permuted = (int)test_below(r, 2);
    as.no_error = number % 4 == 3;
    return as;
}

static santa_options random_options(test_rng *r, const shape &as) {
    santa_options o = test_below(r, 3) ? drawn(pick(r, {1, 2, 17, 64, 200, 600}), 0) : plain(0);
    o.saap.num_probes   = pick(r, {0, SANTA_NONE, 1, 2, as.buckets / 2 + 1, as.buckets, 100000});
    o.saap.sink_tokens  = pick(r, {0, SANTA_NONE, 1, 7, 100});
    o.saap.local_tokens = pick(r, {0, SANTA_NONE, 1, 20, 130});
    if (test_below(r, 3) == 0) o.saap.uniform_share = pick(r, {1, 2, 4}) * 0.25;
    o.saap.measure_mass = (int)test_below(r, 2);
    santa_clear_unused_options(&o);
    return o;
}

/* Rows whose choice hangs on rounding are counted and left out. */
static void saap_random(void) {
    NEED_DEVICE();
    rows_counted rows = {0, 0};
    test_rng r = test_rng_make(test_seed + 99);
    for (int t = 0; t < (test_quick ? 6 : 120); t++) {
        const shape as = random_shape(&r, t);
        routed_problem x(as);
        const santa_options o = random_options(&r, as);
        if (o.num_samples == SANTA_NONE) x.p.a.std_error = NULL;     /* its error is bias */
        on_gpu g(x.p.a, o);
        gpu_view keys(x.keys);
        char what[200];
        snprintf(what, sizeof what,
                 "problem %d of seed %llu: %lld/%lld heads, %lld keys, dim %lld/%lld, %lld buckets, %lld "
                 "hidden, types %d%d%d w %d, S %lld, l %lld",
                 t, (unsigned long long)test_seed, (long long)as.s.heads, (long long)as.s.kv_heads,
                 (long long)as.s.len, (long long)as.s.head_dim, (long long)as.s.head_dim_v,
                 (long long)as.buckets, (long long)as.hidden, (int)as.s.q_type, (int)as.s.k_type,
                 (int)as.s.v_type, (int)as.weights, (long long)g.o.num_samples,
                 (long long)g.o.saap.num_probes);
        if (!assign_both(x, g, keys.t) || !verify_on_gpu(x, g, &rows, what)) return;
    }
    CHECK_MSG(rows.near * 20 <= rows.seen, "%lld of %lld rows hang on rounding", (long long)rows.near,
              (long long)rows.seen);
}

/* The same with a copy of K, of either bits; also with one that holds other keys than K has. */
static void saap_copies(void) {
    NEED_DEVICE();
    rows_counted rows = {0, 0};
    test_rng r = test_rng_make(test_seed + 77);
    for (int t = 0; t < (test_quick ? 8 : 120); t++) {
        shape as = random_shape(&r, t);
        as.s.stream += 2000;
        as.s.head_dim = (as.s.head_dim + 7) / 8 * 8;
        if (as.s.page_size) as.s.page_size = pick(&r, {16, 48, 32, 64, 128});
        routed_problem x(as);
        santa_options o = random_options(&r, as);
        if (o.num_samples == SANTA_NONE) o.num_samples = pick(&r, {3, 40, 128});
        o.scores = SANTA_SCORES_PROXY;
        if (t % 3 == 0) o.saap.num_probes = 0;
        if (!give_copy(&x, t % 3 ? 4 : 2)) return;
        int32_t lens[3];
        for (int64_t b = 0; b < as.s.batch; b++) lens[b] = (int32_t)test_below(&r, as.s.len + 50);
        if (t % 5 == 0) x.p.a.proxy_lens = lens;
        for (int64_t i = 0; t % 7 == 1 && i < as.s.batch * as.s.len * as.s.kv_heads * as.s.head_dim; i++)
            x.p.k[i] = ref_round(as.s.k_type, 0.7 * x.p.k[i]);
        if (t % 7 == 1) ref_write(&x.p);
        on_gpu g(x.p.a, o);
        gpu_view keys(x.keys);
        char what[200];
        snprintf(what, sizeof what,
                 "copy %d of seed %llu: %lld/%lld heads, %lld keys, pages %lld, dim %lld/%lld, "
                 "%lld buckets, %d bits, S %lld, l %lld",
                 t, (unsigned long long)test_seed, (long long)as.s.heads, (long long)as.s.kv_heads,
                 (long long)as.s.len, (long long)as.s.page_size, (long long)as.s.head_dim,
                 (long long)as.s.head_dim_v, (long long)as.buckets, x.p.a.proxy_bits,
                 (long long)g.o.num_samples, (long long)g.o.saap.num_probes);
        if (!assign_both(x, g, keys.t) || !verify_on_gpu(x, g, &rows, what)) return;
    }
    CHECK_MSG(rows.near * 10 <= rows.seen, "%lld of %lld rows hang on rounding", (long long)rows.near,
              (long long)rows.seen);
}

/* More buckets than threads: scanned ones beside those that are drawn from. */
static void saap_many_copied(void) {
    NEED_DEVICE();
    rows_counted rows = {0, 0};
    for (int t = 0; t < 6; t++) {
        shape as = shape_make(8, 2, MAX_LEN, 32, 1100 + 100 * t);
        as.s.stream = (uint64_t)(8000 + t);
        routed_problem x(as);
        if (!give_copy(&x, 4)) return;
        on_gpu g(x.p.a, by_copy(20, as.buckets / 8));
        gpu_view keys(x.keys);
        if (!assign_both(x, g, keys.t) || !verify_on_gpu(x, g, &rows, "many buckets")) return;
    }
    CHECK_MSG(rows.near * 4 <= 3 * rows.seen, "%lld of %lld rows hang on rounding", (long long)rows.near,
              (long long)rows.seen);
}

/* A copy without a number: among the scanned keys exact attention, told by stats, elsewhere
   nothing. Blocks of other sizes, a page that is none. */
static void saap_bad_copy(void) {
    NEED_DEVICE();
    for (int way = 0; way < 4; way++) {
        shape as = shape_make(6, 2, 300, 64, 12);
        as.s.stream = (uint64_t)(5000 + way);
        as.s.page_size = way == 1 ? 32 : 0;
        as.no_error = 1;
        routed_problem x(as);
        gpu_view keys(x.keys);
        const santa_options o = by_copy(20, 3), dense = ref_options(SANTA_DENSE, 0, 0);
        if (!give_copy(&x, way == 2 ? 2 : 4) || !assign_all(&x) || !ref_run(&x.p, &dense, NULL)) return;
        row *m = (row *)test_alloc(sizeof *m);
        model(&x, &o, 0, 0, 1, -1.0, m);
        const ref_copy f = ref_copy_shape(&x.p);
        result clean;
        {
            on_gpu g(x.p.a, o);
            if (!assign_both(x, g, keys.t) || !g.run()) return;
            clean = g.get();
            CHECK_INT(clean.stats.redone_rows, 0);
        }
        int64_t scanned = -1;
        for (int64_t j = m->from; j < m->to; j++) {              /* spoils all codes but the scanned */
            unsigned char *block = ref_copy_block(&x.p, &f, 0, 1, j);
            if (m->scored[j]) scanned = j;
            else ref_set_gain(&f, block, j % f.keys, (double)test_nan());
        }
        {
            on_gpu g(x.p.a, o);
            if (!assign_both(x, g, keys.t) || !g.run()) return;
            CHECK_MSG(clean.same(g.get()), "way %d: a code that is not scanned was read", way);
        }
        unsigned char *block = ref_copy_block(&x.p, &f, 0, 1, scanned);
        if (way == 3) memset(block + f.scale, 0xff, 4);
        else ref_set_gain(&f, block, scanned % f.keys, (double)test_nan());
        on_gpu g(x.p.a, o);
        if (!assign_both(x, g, keys.t) || !g.run()) return;
        const result r = g.get();
        CHECK_INT(r.stats.redone_rows, 3);
        for (int64_t h = 3; h < 6; h++) {
            CHECK_NEAR((double)r.lse[(size_t)h], (double)x.p.lse[h], 1e-5, 1e-5);
            for (int64_t c = 0; c < 64; c++)
                CHECK_NEAR(ref_get(&r.out, 0, 0, h, c), ref_get(&x.p.a.out, 0, 0, h, c), 2e-5, 1e-4);
        }
        free(m);
        if (way != 1) continue;                                  /* a wild page: NaN, nothing else */
        const int32_t wild = 1 << 30;
        CUDA(cudaMemcpy((void *)(g.a.block_table + 3), &wild, 4, cudaMemcpyHostToDevice));
        if (!g.run()) return;
        CHECK_INT(g.get().nans(0, 0, 0), 65);
    }
}

/* A router's two layers by one kernel: as the model has it, and the bits of the kernel for one
   layer, which takes q of f32. */
static void saap_layers(void) {
    NEED_DEVICE();
    static const int64_t hidden[] = {128, 1024, 32, 256, 512, 64}, dims[] = {128, 64, 32};
    rows_counted rows = {0, 0};
    for (int t = 0; t < (test_quick ? 6 : 24); t++) {
        const int64_t d = dims[t / 2 % 3], group = t % 4 == 2 ? 11 : 4;
        shape as = shape_make(2 * group, 2, 300 + 7 * t, d, t % 3 == 1 ? 300 : 1000 + t);
        as.s.stream = (uint64_t)(4000 + t);
        as.s.batch = t % 4 == 3 ? 4 : 2;
        as.s.q_len = 1 + t % 2;
        as.s.k_type = as.s.v_type = as.s.q_type = as.weights = t % 5 % 2 ? SANTA_F16 : SANTA_BF16;
        as.hidden = hidden[t % 6];
        as.no_error = 1;
        routed_problem x(as);
        on_gpu g(x.p.a, t % 2 ? plain(20) : drawn(30, 5));
        gpu_view keys(x.keys);
        char what[100];
        snprintf(what, sizeof what, "%d: %lld hidden, dim %lld, group %lld", t, (long long)as.hidden,
                 (long long)d, (long long)group);
        if (!assign_both(x, g, keys.t) || !verify_on_gpu(x, g, &rows, what)) return;
        const result at_once = g.get();
        const ref_spec &s = x.as.s;
        std::vector<float> q((size_t)(s.batch * s.q_len * s.heads * d));
        for (size_t i = 0; i < q.size(); i++) {
            const int64_t row = (int64_t)i / d;
            q[i] = (float)ref_get(&x.p.a.q, row / s.heads / s.q_len, row / s.heads % s.q_len, row % s.heads,
                                  (int64_t)i % d);
        }
        gpu_view wide(santa_view(q.data(), SANTA_F32, s.batch, s.q_len, s.heads, d));
        santa_buckets r = *g.a.buckets;
        r.q = wide.t;
        g.a.buckets = &r;
        if (!CHECK_MSG(g.run(), "in %s", what)) return;
        const result by_layers = g.get();
        for (int64_t b = 0; b < s.batch; b++)
            CHECK_MSG(at_once.same_request(b, by_layers, b), "%s: sequence %lld has other bits", what,
                      (long long)b);
    }
    CHECK_MSG(rows.near * 20 <= rows.seen, "%lld of %lld rows hang on rounding", (long long)rows.near,
              (long long)rows.seen);
}

static void saap_limits(void) {
    NEED_DEVICE();
    shape as = shape_make(8, 2, test_quick ? 300 : MAX_LEN, 64, 40);
    as.s.k_type = as.s.v_type = as.s.q_type = SANTA_BF16;
    as.hidden = 64;
    as.weights = SANTA_BF16;
    as.no_error = 1;
    routed_problem x(as);
    gpu_view keys(x.keys);
    /* every bucket is dense; so are as many draws as keys */
    if (!give_copy(&x, 4)) return;
    for (int way = 0; way < 3; way++) {
        on_gpu g(x.p.a, way == 2 ? by_copy(1000, 0) : way ? drawn(1000, SANTA_NONE) : plain(40));
        if (!assign_both(x, g, keys.t) || !g.run()) return;
        const result r = g.get();
        santa_options dense = ref_options(SANTA_DENSE, 0, 0);
        if (!ref_run(&x.p, &dense, NULL)) return;
        for (int64_t h = 0; h < 8; h++) {
            CHECK_NEAR((double)r.lse[(size_t)h], (double)x.p.lse[h], 1e-5, 1e-5);
            for (int64_t c = 0; c < 64; c++)
                CHECK_NEAR(ref_get(&r.out, 0, 0, h, c), ref_get(&x.p.a.out, 0, 0, h, c), 2e-5, 1e-4);
        }
    }
    /* errors need an lse, and have their own where none is asked for */
    x.p.a.std_error = x.p.std_error;
    santa_options o = drawn(20, 1);
    o.saap.measure_mass = 1;
    on_gpu with(x.p.a, o);
    x.p.a.lse = NULL;
    on_gpu without(x.p.a, o);
    x.p.a.lse = x.p.lse;
    x.p.a.std_error = NULL;
    if (!assign_both(x, with, keys.t) || !assign_both(x, without, keys.t) || !with.run() || !without.run())
        return;
    CHECK(with.get().std_error[0] > 0.0f && with.get().std_error == without.get().std_error);
    rows_counted rows = {0, 0};
    on_gpu none(x.p.a, plain(SANTA_NONE)), more(x.p.a, plain(1));
    none.o.saap.local_tokens = more.o.saap.local_tokens = 20;
    CHECK(assign_both(x, none, keys.t) && verify_on_gpu(x, none, &rows, "no bucket"));
    CHECK_INT(none.get().stats.visited_rows, 0);
    CHECK(assign_both(x, more, keys.t) && verify_on_gpu(x, more, &rows, "one bucket"));
    CHECK(more.get().stats.visited_rows > 0);
}

/* NaN in all rows that are not read changes nothing; in one that is, it shows. */
static void saap_poison(void) {
    NEED_DEVICE();
    for (int way = 0; way < 4; way++) {
        shape as = shape_make(4, 2, test_quick ? 260 : 500, 64, 30);
        as.s.k_type = as.s.v_type = as.s.q_type = way == 2 ? SANTA_F32 : SANTA_BF16;
        as.s.page_size = way == 1 ? 16 : 0;
        as.no_error = 1;
        routed_problem x(as);
        gpu_view keys(x.keys);
        santa_options o = way == 3 ? by_copy(20, 0) : way ? drawn(20, 2) : plain(3);
        o.saap.local_tokens = 20;
        if (way == 3 && !give_copy(&x, 4)) return;
        row *m = (row *)test_alloc(sizeof *m);
        result clean;
        {
            on_gpu g(x.p.a, o);
            if (!assign_both(x, g, keys.t) || !g.run()) return;
            clean = g.get();
        }
        int64_t near = 0, read[2] = {-1, -1};
        for (int64_t kv = 0; kv < 2; kv++) {
            model(&x, &o, 0, 0, kv, -1.0, m);
            near += m->near;
            for (int64_t j = 0; j < as.s.len; j++) {
                int64_t i0, i1;
                if (m->count[j] > 0.0) { if (j >= m->from && j < m->to) read[kv] = j; continue; }
                ref_place(&x.p, 0, j, &i0, &i1);
                for (int64_t c = 0; c < 64; c++) {
                    ref_set(&x.p.a.k, i0, i1, kv, c, (double)test_nan());
                    ref_set(&x.p.a.v, i0, i1, kv, c, (double)test_nan());
                }
            }
        }
        free(m);
        if (near) continue;
        {
            on_gpu g(x.p.a, o);
            if (!assign_both(x, g, keys.t) || !g.run()) return;
            CHECK_MSG(clean.same(g.get()), "way %d: poison was read", way);
        }
        int64_t i0, i1;
        if (!CHECK(read[0] >= 0)) return;
        ref_place(&x.p, 0, read[0], &i0, &i1);
        ref_set(&x.p.a.k, i0, i1, 0, 3, (double)test_nan());
        on_gpu g(x.p.a, o);
        if (!assign_both(x, g, keys.t) || !g.run()) return;
        const result r = g.get();
        CHECK_INT(r.nans(0, 0, 0), 65);
        CHECK_INT(r.nans(0, 0, 3), 0);
    }
}

/* What the host cannot see: NaN, and nothing is read or written elsewhere. */
static void saap_broken(void) {
    NEED_DEVICE();
    shape as = shape_make(4, 2, 300, 64, 30);
    as.s.batch = 2;
    as.permuted = 1;
    as.no_error = 1;
    routed_problem x(as);
    gpu_view keys(x.keys);
    santa_options o = drawn(30, 10);
    o.saap.local_tokens = 100; /* keys 192 to 255 are sorted, and not far */
    const int64_t ints = (int64_t)(x.bytes / 4) / (4 * 2),
                  first = 2 * 2 * ints; /* sequence 0 is in slot 2 */
    const int64_t at_keys = 16 + 2 * 31;
    if (!give_copy(&x, 4)) return;
    for (int turn = 0; turn < 28; turn++) {                      /* then with a copy of K */
        const int way = turn % 14;
        santa_options how = o;
        if (turn >= 14) how.scores = SANTA_SCORES_PROXY;
        on_gpu g(x.p.a, how);
        if (!assign_both(x, g, keys.t)) return;
        std::vector<int32_t> index = index_of(g);
        int32_t *own = index.data() + first;
        if (way < 5) own[way] ^= way == 4 ? 64 : 1;
        if (way == 5) own[16 + 3] = -5;
        if (way == 6) own[16 + 30] = 1 << 30;
        if (way == 7) own[16 + 3] = own[16 + 5] + 1;
        if (way == 8) for (int64_t i = 0; i < 192; i++) own[at_keys + i] = INT32_MAX - (int32_t)i;
        if (way == 9) for (int64_t i = 0; i < 192; i++) own[at_keys + i] = -1 - (int32_t)i;
        if (way == 10) for (int64_t i = 0; i < 192; i++) own[at_keys + i] = 299;     /* not far */
        if (way == 11) for (int64_t i = 96; i < 100; i++) own[at_keys + 300 + i] = -1;
        CHECK(x.bytes == 4 * index.size());
        CUDA(cudaMemcpy(g.index().data(), index.data(), x.bytes, cudaMemcpyHostToDevice));
        int32_t slots[2] = {2, 1};
        if (way == 12) slots[0] = 4;
        if (way == 13) slots[0] = -1;
        CUDA(cudaMemcpy((void *)g.a.buckets->slots, slots, 8, cudaMemcpyHostToDevice));
        if (!g.run()) return;
        const result r = g.get();
        CHECK_MSG(r.nans(0, 0, 0) == 65, "turn %d: %d NaN", turn, (int)r.nans(0, 0, 0));
        CHECK_INT(r.nans(1, 0, 0), 0);
    }
    /* a gap, one slot twice, wild slots; then a new beginning */
    for (int way = 0; way < 4; way++) {
        int32_t *lens = ref_ints(2);
        lens[0] = lens[1] = 300;
        x.p.a.seq_lens = lens;
        on_gpu g(x.p.a, o);
        const int32_t slots[2] = {way == 2 ? 99 : way == 3 ? -7 : 2, way == 1 ? 2 : 1}, right[2] = {2, 1};
        lens[0] = 100;
        CUDA(cudaMemset(g.index().data(), 0xa5, x.bytes));
        CUDA(cudaMemcpy((void *)g.a.seq_lens, lens, 8, cudaMemcpyHostToDevice));
        CHECK_STATUS(assign_on_gpu(g, keys.t, 0, 200), SANTA_OK);
        lens[0] = 300;
        CUDA(cudaMemcpy((void *)g.a.seq_lens, lens, 8, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy((void *)g.a.buckets->slots, slots, 8, cudaMemcpyHostToDevice));
        CHECK_STATUS(assign_on_gpu(g, keys.t, way ? 0 : 200, way ? 300 : 100), SANTA_OK);
        if (!g.run()) return;
        const result r = g.get();
        CHECK_MSG(r.nans(0, 0, 0) == 65, "way %d: %d NaN", way, (int)r.nans(0, 0, 0));
        CHECK_INT(r.nans(1, 0, 0), way == 1 ? 65 : 0);
        CUDA(cudaMemcpy((void *)g.a.buckets->slots, right, 8, cudaMemcpyHostToDevice));
        CHECK_STATUS(assign_on_gpu(g, keys.t, 0, 300), SANTA_OK);
        if (!g.run()) return;
        CHECK_INT(g.get().nans(0, 0, 0), 0);
        x.p.a.seq_lens = NULL;
        free(lens);
    }
}

/* A NaN in the query, in a weight. */
static void saap_nan(void) {
    NEED_DEVICE();
    for (int way = 0; way < 3; way++) {
        shape as = shape_make(4, 2, 300, 64, 30);
        as.hidden = 40;
        as.own_q = 1;
        as.no_error = 1;
        routed_problem x(as);
        if (way == 0) ref_set(&x.r.q, 0, 0, 1, 5, (double)test_nan());
        if (way == 1) ref_store(SANTA_F32, x.memory[2], 7 * 64 + 3, HUGE_VAL);
        if (way == 2) x.b2[11] = test_nan();
        if (!give_copy(&x, 4)) return;
        for (const santa_options &o : { drawn(20, 2), by_copy(20, 2) }) {
            on_gpu g(x.p.a, o);
            gpu_view keys(x.keys);
            if (!assign_both(x, g, keys.t) || !g.run()) return;
            CHECK_INT(g.get().nans(0, 0, 0), 65);
            CHECK_INT(g.get().nans(0, 0, 2), 0);
        }
    }
}

/* Assign and decode in a graph; every run has the same bits, and each sequence those it has
   alone. */
static void replay_routed(const santa_options &how) {
    shape as = shape_make(8, 2, 500, 64, 64);
    as.s.k_type = as.s.v_type = as.s.q_type = as.key_type = as.weights = SANTA_BF16;
    as.hidden = 128;
    as.s.batch = 3;
    as.no_error = 1;
    routed_problem x(as);
    if (!give_copy(&x, 4)) return;
    on_gpu g(x.p.a, how);
    gpu_view keys(x.keys);
    if (!assign_both(x, g, keys.t) || !g.run()) return;
    const result direct = g.get();
    for (int i = 0; i < (test_quick ? 2 : 20); i++) {
        if (!g.run()) return;
        CHECK_MSG(direct.same(g.get()), "run %d differs", i);
    }
    captured graph([&](cudaStream_t stream) {
        santa_status s = assign_on_gpu(g, keys.t, 0, 400, stream);
        if (s == SANTA_OK) s = assign_on_gpu(g, keys.t, 400, 100, stream);
        return s == SANTA_OK ? g.start(stream) : s;
    });
    if (!graph.good) return;
    CUDA(cudaMemset(g.index().data(), 0xa5, x.bytes));
    graph.replay(g);
    CHECK_MSG(direct.same(g.get()), "a replay differs");
    for (int64_t b = 0; b < 3; b++) {
        shape one = as;
        one.s.batch = 1;
        one.s.first_sequence = b;
        routed_problem y(one);
        uint64_t id = (uint64_t)b;
        santa_options o = how;
        o.request_ids = &id;
        if (!give_copy(&y, 4)) return;
        y.r.centroids = x.r.centroids; y.r.w1 = x.r.w1; y.r.w2 = x.r.w2; y.r.b1 = x.r.b1; y.r.b2 = x.r.b2;
        on_gpu alone(y.p.a, o);
        gpu_view own(y.keys);
        if (!assign_both(y, alone, own.t) || !alone.run()) return;
        CHECK_MSG(alone.get().same_request(0, direct, b), "sequence %d alone differs", (int)b);
    }
}

static void saap_graphs(void) {
    NEED_DEVICE();
    replay_routed(drawn(40, 3));
    replay_routed(by_copy(40, 16));
}

/* For the list of all kernels. */
static void saap_kernels(void) {
    for (int plain_keys = 0; plain_keys < 2; plain_keys++) {
        shape as = shape_make(4, 1, 100, 64, 40);
        as.s.k_type = as.s.v_type = as.s.q_type = as.weights = SANTA_BF16;
        as.key_type = plain_keys ? SANTA_F32 : SANTA_BF16;
        as.no_error = 1;
        routed_problem x(as);
        x.p.a.std_error = x.p.std_error;
        santa_options o = drawn(10, 1);
        o.saap.measure_mass = 1;
        on_gpu g(x.p.a, o);
        gpu_view keys(x.keys);
        if (!assign_both(x, g, keys.t)) return;
        CHECK_STATUS(assign_on_gpu(g, keys.t, 99, 1), SANTA_OK);
        CHECK(g.run());
    }
    for (int other = 0; other < 2; other++) {       /* routers of both types; many buckets */
        shape as = shape_make(4, 1, 100, 64, other ? 1500 : 40);
        as.s.k_type = as.s.v_type = as.s.q_type = as.weights = other ? SANTA_F16 : SANTA_BF16;
        as.hidden = 128;
        as.no_error = 1;
        routed_problem x(as);
        if (!give_copy(&x, 4)) return;
        for (const santa_options &o : { plain(20), by_copy(20, 0) }) {
            on_gpu g(x.p.a, o);
            gpu_view keys(x.keys);
            if (!assign_both(x, g, keys.t)) return;
            CHECK(g.run());
        }
    }
}

static void saap_errors(void) {
    NEED_DEVICE();
    shape as = shape_make(4, 2, 300, 64, 30);
    as.no_error = 1;
    routed_problem x(as);
    on_gpu g(x.p.a, drawn(20, 2));
    gpu_view keys(x.keys);
    if (!assign_both(x, g, keys.t)) return;
    const auto with = [&](const char *what, santa_status want,
                          void (*change)(santa_buckets *, santa_options *)) {
        santa_attention a = g.a;
        santa_options   o = g.o;
        santa_buckets   r = *g.a.buckets;
        a.buckets = &r;
        change(&r, &o);
        refuse(g, a, o, g.workspace(), (size_t)1 << 40, g.stats, want, what);
    };
    static float host[64];
    with("no index", SANTA_ERR_BUCKETS_NULL, [](santa_buckets *r, santa_options *) { r->index = NULL; });
    with("an index on the host", SANTA_ERR_HOST_POINTER,
         [](santa_buckets *r, santa_options *) { r->index = host; });
    with("centroids on the host", SANTA_ERR_HOST_POINTER,
         [](santa_buckets *r, santa_options *) { r->centroids = host; });
    with("an odd index", SANTA_ERR_BUCKETS_INDEX,
         [](santa_buckets *r, santa_options *) { r->index = (char *)r->index + 2; });
    santa_tensor k = keys.t;
    k.dtype = SANTA_Q8_0;
    CHECK_STATUS(santa_buckets_assign(&g.a, &k, 0, NULL), SANTA_ERR_BACKEND_DTYPE);
    k = keys.t;
    k.data = host;
    CHECK_STATUS(santa_buckets_assign(&g.a, &k, 0, NULL), SANTA_ERR_HOST_POINTER);
    CHECK_STATUS(santa_buckets_assign(&g.a, &keys.t, -2, NULL), SANTA_ERR_BUCKETS_RANGE);
    santa_options some = {};
    some.item_end = 1;                               /* of two: it does them all */
    CHECK_STATUS(santa_buckets_assign(&g.a, &keys.t, 0, &some), SANTA_ERR_ITEMS);
    CUDA(cudaDeviceSynchronize());
}

static const test_case saap_cases[] = {{"saap_nearest", saap_nearest},
                                       {"saap_rounding", saap_rounding},
                                       {"saap_arrivals", saap_arrivals},
                                       {"saap_random", saap_random},
                                       {"saap_copies", saap_copies},
                                       {"saap_bad_copy", saap_bad_copy},
                                       {"saap_many_copied", saap_many_copied},
                                       {"saap_layers", saap_layers},
                                       {"saap_limits", saap_limits},
                                       {"saap_poison", saap_poison},
                                       {"saap_broken", saap_broken},
                                       {"saap_nan", saap_nan},
                                       {"saap_graphs", saap_graphs},
                                       {"saap_errors", saap_errors},
                                       {0, 0}};
