/* The steps with device pointers: part of test_cuda.cu. */
#include <cmath>

/* Draws of all heads, on the device and as they came back. */
struct step_draws {
    int64_t heads, capacity;
    block index, weight, rows, lse;
    step_draws(int64_t heads_, int64_t capacity_)
        : heads(heads_), capacity(capacity_), index((size_t)(4 * heads * capacity)),
          weight((size_t)(4 * heads * capacity)), rows((size_t)(4 * heads)), lse((size_t)(4 * heads)) { }
    santa_cuda_draws get() const {
        return {(int32_t *)index.data(), (float *)weight.data(), (int32_t *)rows.data(),
                (float *)lse.data(), capacity};
    }
    template <typename T> std::vector<T> array(const block &b, int64_t each) const {
        std::vector<T> x((size_t)(heads * each));
        b.get(x.data(), x.size() * sizeof(T));
        return x;
    }
};

/* Draws from scores that are the same numbers on both sides: heads whose rows differ are
   counted. */
static void steps_draw(const std::vector<float> &scores, int64_t batch, int64_t heads, int64_t n,
                       int64_t stride, int64_t q_index, const santa_options &o, const block &on_device,
                       totals *t) {
    const int64_t all = batch * heads, capacity = santa_cuda_sample_capacity(n, &o);
    const size_t bytes = santa_cuda_sample_workspace_size(batch, heads, n, &o);
    if (!CHECK(capacity > 0 && bytes > 0)) return;
    step_draws d(all, capacity + 3);
    block work(bytes, 0xff);
    const santa_cuda_draws draws = d.get();
    if (!CHECK_STATUS(santa_cuda_sample((const float *)on_device.data(), stride, batch, heads, n, q_index,
                                        &o, &draws, work.data(), bytes),
                      SANTA_OK)
        || !CUDA(cudaDeviceSynchronize()))
        return;
    CHECK(d.index.intact() && d.weight.intact() && d.rows.intact() && d.lse.intact() && work.intact());
    const std::vector<int32_t> index = d.array<int32_t>(d.index, d.capacity),
                               rows = d.array<int32_t>(d.rows, 1);
    const std::vector<float> weight = d.array<float>(d.weight, d.capacity), lse = d.array<float>(d.lse, 1);
    const int64_t room = santa_sample_capacity(n, &o);
    std::vector<int32_t> at((size_t)room), count((size_t)room);
    std::vector<float> want((size_t)room);
    std::vector<char> scratch(santa_sample_workspace_size(n, &o));
    for (int64_t r = 0; r < all; r++) {
        santa_draws cpu = {at.data(), count.data(), want.data(), room, 0, 0, 0.0f};
        const santa_stream_id id = {(uint64_t)(r / heads), r % heads, q_index};
        if (!CHECK_STATUS(santa_sample(&scores[(size_t)(r * stride)], n, &o, id, &cpu, scratch.data(),
                                       scratch.size()),
                          SANTA_OK))
            return;
        const int64_t got = rows[(size_t)r];
        CHECK_MSG(got == cpu.draws, "%s: head %lld has %lld draws, want %lld", santa_method_name(o.method),
                  (long long)r, (long long)got, (long long)cpu.draws);
        const float x = lse[(size_t)r];
        CHECK_MSG(x == cpu.lse || fabsf(x - cpu.lse) <= 2e-5f, "%s: lse %g, want %g",
                  santa_method_name(o.method), (double)x, (double)cpu.lse);
        const size_t from = (size_t)(r * d.capacity);
        std::vector<double> sum((size_t)n), other((size_t)n);
        for (int64_t i = 0; i < got; i++) {
            const int64_t j = index[from + (size_t)i];
            if (!CHECK_MSG(j >= 0 && j < n, "row %lld of %lld", (long long)j, (long long)n)) return;
            CHECK(o.method == SANTA_IID || i == 0 || j >= index[from + (size_t)i - 1]);
            sum[(size_t)j] += (double)weight[from + (size_t)i];
        }
        for (int64_t i = 0; i < cpu.rows; i++) other[(size_t)at[(size_t)i]] += (double)want[(size_t)i];
        bool off = false;
        for (int64_t j = 0; j < n; j++)
            off |= fabs(sum[(size_t)j] - other[(size_t)j]) > 1e-5 + 1e-5 * other[(size_t)j];
        t->off += off;
        t->rows++;
        t->draws += cpu.draws;
    }
}

/* One problem through all steps. */
static void steps_chain(const ref_spec &s, totals *t) {
    problem p(s);
    if (s.window) p.a.first_tokens = 3;
    santa_options plain = options(SANTA_DENSE, 0);
    const int64_t q_index = s.q_len - 1, heads = s.batch * s.heads, group = s.heads / s.kv_heads,
                  dv = s.head_dim_v;
    on_gpu g(p.a, plain);
    const int64_t n = p.a.block_table ? p.a.max_pages * p.a.k.shape[1] : p.a.k.shape[1], stride = n + 5;
    std::vector<float> scores((size_t)(heads * stride), 7.0f);
    block on_device(4 * scores.size());
    on_device.put(scores.data(), 4 * scores.size());
    const size_t bytes = santa_cuda_scores_workspace_size(&g.a, &plain);
    block work(bytes, 0xff);
    if (!CHECK_STATUS(
            santa_cuda_scores(&g.a, &plain, q_index, (float *)on_device.data(), stride, work.data(), bytes),
            SANTA_OK)
        || !CUDA(cudaDeviceSynchronize()))
        return;
    CHECK(work.intact() && on_device.intact());
    on_device.get(scores.data(), 4 * scores.size());

    /* scores */
    std::vector<float> want((size_t)(group * n));
    std::vector<char> scratch(santa_workspace_size(&p.a, &plain));
    int64_t wrong = 0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t kv = 0; kv < s.kv_heads; kv++) {
            const int64_t len = p.a.seq_lens ? p.a.seq_lens[b] : n;
            if (!CHECK_STATUS(santa_scores(&p.a, &plain, b, q_index, kv, want.data(), n, scratch.data(),
                                           scratch.size()),
                              SANTA_OK))
                return;
            for (int64_t h = 0; h < group; h++)
                for (int64_t j = 0; j < stride; j++) {
                    const float x = scores[(size_t)((b * s.heads + kv * group + h) * stride + j)],
                                y = j >= n ? 7.0f : j < len ? want[(size_t)(h * n + j)] : -INFINITY;
                    wrong += !(x == y || fabsf(x - y) <= 1e-4f + 1e-4f * fabsf(y));
                }
        }
    CHECK_MSG(wrong == 0, "%lld of %lld scores differ", (long long)wrong, (long long)scores.size());

    /* draws and their rows of V */
    for (santa_method m :
         {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_PROP, SANTA_FLASH, SANTA_TOP_K, SANTA_TOP_P})
        for (int64_t samples : {1, 60, 300}) {
            santa_options o =
                options(m, samples, m <= SANTA_FLASH ? STASHES[samples % 3] : SANTA_STASH_F32);
            if (m == SANTA_FLASH) o.tile_size = samples == 60 ? 16 : 128;
            if (m == SANTA_PROP && samples == 60) o.num_combs = 4;
            steps_draw(scores, s.batch, s.heads, n, stride, q_index, o, on_device, t);
        }
    santa_options o = options(SANTA_PROP, 60);
    step_draws d(heads, santa_cuda_sample_capacity(n, &o));
    const size_t room = santa_cuda_sample_workspace_size(s.batch, s.heads, n, &o);
    block drawing(room, 0xff), out((size_t)(4 * heads * dv));
    santa_cuda_draws draws = d.get();
    CHECK_STATUS(santa_cuda_sample((const float *)on_device.data(), stride, s.batch, s.heads, n, q_index,
                                   &o, &draws, drawing.data(), room),
                 SANTA_OK);
    CHECK_STATUS(santa_cuda_gather(&g.a, &draws, (float *)out.data(), NULL), SANTA_OK);
    result decoded;
    if (!CUDA(cudaDeviceSynchronize()) || !run_on_gpu(p, o, &decoded)) return;
    std::vector<float> got((size_t)(heads * dv));
    out.get(got.data(), 4 * got.size());
    CHECK(out.intact());
    const double v_max = largest_row_of_v(p);
    int64_t off = 0;
    for (int64_t r = 0; r < heads; r++) {
        double difference = 0.0;
        for (int64_t c = 0; c < dv; c++) {
            const double x = ref_get(&decoded.out, r / s.heads, q_index, r % s.heads, c)
                             - (double)got[(size_t)(r * dv + c)];
            difference += x * x;
        }
        off += !(sqrt(difference) <= 1e-5 * v_max);
    }
    t->off += off;
    t->rows += heads;
    t->draws += 60 * heads;
    /* an entry past the sequence spoils its head alone */
    const int32_t beyond = (int32_t)n;
    const std::vector<int32_t> rows = d.array<int32_t>(d.rows, 1);
    if (rows[0] == 0) return;
    int32_t first;
    d.index.get(&first, 4);
    d.index.put(&beyond, 4);
    CHECK_STATUS(santa_cuda_gather(&g.a, &draws, (float *)out.data(), NULL), SANTA_OK);
    std::vector<float> spoilt(got.size());
    CUDA(cudaDeviceSynchronize());
    out.get(spoilt.data(), 4 * spoilt.size());
    for (int64_t c = 0; c < dv; c++) CHECK(test_is_nan(spoilt[(size_t)c]));
    CHECK(!memcmp(&spoilt[(size_t)dv], &got[(size_t)dv], (size_t)(4 * (heads - 1) * dv)));
    /* and so does left padding */
    std::vector<int32_t> starts((size_t)s.batch, 0);
    starts[0] = first + 1;
    block padding(4 * starts.size());
    padding.put(starts.data(), 4 * starts.size());
    d.index.put(&first, 4);
    santa_attention padded = g.a;
    padded.kv_start = (const int32_t *)padding.data();
    CHECK_STATUS(santa_cuda_gather(&padded, &draws, (float *)out.data(), NULL), SANTA_OK);
    CUDA(cudaDeviceSynchronize());
    out.get(spoilt.data(), 4 * spoilt.size());
    for (int64_t c = 0; c < dv; c++) CHECK(test_is_nan(spoilt[(size_t)c]));
}

static void steps_match_cpu(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3}) {
        ref_spec s = spec16(type == SANTA_F32 ? 10 : 4, 2, test_quick ? 150 : 1500, 64, type);
        if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
        s.batch = 2;
        s.q_len = 2;
        s.causal = 1;
        s.page_size = type == SANTA_F32 ? 16 : 0;
        s.window = type == SANTA_BF16 ? s.len - 20 : 0;
        s.alibi = type == SANTA_E4M3;
        s.head_dim_v = type == SANTA_F32 ? 136 : 64;
        steps_chain(s, &t);
        s.row_scales = 1;
        s.scale_type = type == SANTA_E4M3 ? SANTA_F32 : type;
        steps_chain(s, &t);
    }
    check_totals(t, "steps");
}

/* Masked heads, NaN, +inf; two parts merged as the CPU merges them. */
static void steps_edges(void) {
    NEED_DEVICE();
    enum { HEADS = 5, N = 70, DV = 200 };
    std::vector<float> scores(HEADS * N, -INFINITY);
    for (int j = 0; j < N; j++) {
        scores[(size_t)j] = j == 40 ? 0.5f : -INFINITY;
        scores[(size_t)(2 * N + j)] = j == 11 ? test_nan() : 0.1f;
        scores[(size_t)(3 * N + j)] = j == 69 ? INFINITY : 0.1f;
        scores[(size_t)(4 * N + j)] = -200.0f + (float)j;
    }
    block on_device(4 * scores.size());
    on_device.put(scores.data(), 4 * scores.size());
    for (santa_method m : {SANTA_IID, SANTA_PROP, SANTA_FLASH, SANTA_TOP_K, SANTA_TOP_P}) {
        santa_options o = options(m, 9);
        if (m == SANTA_FLASH) o.tile_size = 8;
        step_draws d(HEADS, santa_cuda_sample_capacity(N, &o));
        const size_t bytes = santa_cuda_sample_workspace_size(1, HEADS, N, &o);
        block work(bytes, 0xff);
        const santa_cuda_draws draws = d.get();
        if (!CHECK_STATUS(santa_cuda_sample((float *)on_device.data(), N, 1, HEADS, N, 3, &o, &draws,
                                            work.data(), bytes),
                          SANTA_OK)
            || !CUDA(cudaDeviceSynchronize()))
            return;
        const std::vector<int32_t> rows = d.array<int32_t>(d.rows, 1),
                                   index = d.array<int32_t>(d.index, d.capacity);
        const std::vector<float> lse = d.array<float>(d.lse, 1);
        CHECK(rows[0] > 0 && index[0] == 40 && fabsf(lse[0] - 0.5f) < 1e-6f);
        CHECK(rows[1] == 0 && lse[1] == -INFINITY);
        CHECK(rows[2] == 0 && test_is_nan(lse[2]) && rows[3] == 0 && test_is_nan(lse[3]));
        CHECK(rows[4] > 0 && fabsf(lse[4] - -130.54133f) < 1e-3f);
        CHECK_STATUS(santa_cuda_sample((float *)on_device.data(), N, 1, HEADS, N, -1, &o, &draws,
                                       work.data(), bytes),
                     SANTA_ERR_INDEX);
        CHECK_STATUS(santa_cuda_sample((float *)on_device.data(), N - 1, 1, HEADS, N, 0, &o, &draws,
                                       work.data(), bytes),
                     SANTA_ERR_CAPACITY);
        CHECK_STATUS(santa_cuda_sample((float *)on_device.data(), INT64_MAX / 2, 1, HEADS, N, 0, &o, &draws,
                                       work.data(), bytes),
                     SANTA_ERR_OVERFLOW);
        CHECK_STATUS(santa_cuda_sample((float *)on_device.data(), N, 1, HEADS, N, 0, &o, &draws,
                                       work.data(), bytes - 1),
                     SANTA_ERR_WORKSPACE_SIZE);
        CHECK_STATUS(
            santa_cuda_sample((float *)on_device.data(), N, 1, HEADS, N, 0, &o, &draws, NULL, bytes),
            SANTA_ERR_WORKSPACE_NULL);
        CHECK_STATUS(santa_cuda_sample(NULL, N, 1, HEADS, N, 0, &o, &draws, work.data(), bytes),
                     SANTA_ERR_NULL_ARGUMENT);
        o.method = SANTA_PPS;
        o.tile_size = 0;
        CHECK_STATUS(
            santa_cuda_sample((float *)on_device.data(), N, 1, HEADS, N, 0, &o, &draws, work.data(), bytes),
            SANTA_ERR_METHOD);
        CHECK_INT(santa_cuda_sample_capacity(N, &o), 0);
    }
    test_rng r = test_rng_make(7);
    std::vector<float> out[2], lse[2];
    const int rows = 8;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < rows * DV; k++) out[i].push_back((float)test_uniform(&r) - 0.5f);
        for (int k = 0; k < rows; k++) lse[i].push_back(8.0f * (float)test_uniform(&r));
    }
    lse[0][0] = lse[1][1] = lse[0][2] = lse[1][2] = -INFINITY;
    lse[0][3] = lse[1][4] = test_nan();
    lse[0][6] = lse[1][7] = INFINITY;
    lse[1][6] = -INFINITY;
    block a(4 * out[0].size()), b(4 * out[1].size()), x(4 * rows), y(4 * rows);
    a.put(out[0].data(), 4 * out[0].size());
    b.put(out[1].data(), 4 * out[1].size());
    x.put(lse[0].data(), 4 * rows);
    y.put(lse[1].data(), 4 * rows);
    CHECK_STATUS(santa_cuda_merge(rows, DV, (float *)a.data(), (float *)x.data(), (float *)b.data(),
                                  (float *)y.data(), NULL),
                 SANTA_OK);
    CHECK_STATUS(santa_cuda_merge(-1, DV, (float *)a.data(), (float *)x.data(), (float *)b.data(),
                                  (float *)y.data(), NULL),
                 SANTA_ERR_SHAPE);
    CHECK_STATUS(
        santa_cuda_merge(rows, DV, (float *)a.data(), NULL, (float *)b.data(), (float *)y.data(), NULL),
        SANTA_ERR_NULL_ARGUMENT);
    CHECK_STATUS(santa_merge(rows, DV, out[0].data(), lse[0].data(), out[1].data(), lse[1].data()),
                 SANTA_OK);
    CUDA(cudaDeviceSynchronize());
    std::vector<float> got(out[0].size()), got_lse(rows);
    a.get(got.data(), 4 * got.size());
    x.get(got_lse.data(), 4 * rows);
    CHECK(a.intact() && x.intact());
    for (int k = 0; k < rows * DV; k++)
        CHECK_MSG(test_is_nan(out[0][(size_t)k]) ? test_is_nan(got[(size_t)k])
                                                 : fabsf(out[0][(size_t)k] - got[(size_t)k]) <= 1e-6f,
                  "merged row %d: %g, want %g", k / DV, (double)got[(size_t)k], (double)out[0][(size_t)k]);
    for (int k = 0; k < rows; k++)
        CHECK(test_is_nan(lse[0][(size_t)k])
                  ? test_is_nan(got_lse[(size_t)k])
                  : lse[0][(size_t)k] == got_lse[(size_t)k]
                        || fabsf(lse[0][(size_t)k] - got_lse[(size_t)k]) < 1e-6f);
}

/* What the host refuses. */
static void steps_errors(void) {
    NEED_DEVICE();
    problem p(spec16(4, 2, 100, 64));
    santa_options o = options(SANTA_DENSE, 0);
    on_gpu g(p.a, o);
    const size_t bytes = santa_cuda_scores_workspace_size(&g.a, &o);
    block work(bytes), scores(4 * 4 * 100);
    float *const to = (float *)scores.data();
    const auto ask = [&](int64_t q, float *at, int64_t stride, void *with, size_t room) {
        return santa_cuda_scores(&g.a, &o, q, at, stride, with, room);
    };
    CHECK_STATUS(ask(0, to, 100, work.data(), bytes), SANTA_OK);
    CHECK_STATUS(ask(1, to, 100, work.data(), bytes), SANTA_ERR_INDEX);
    CHECK_STATUS(ask(0, to, 99, work.data(), bytes), SANTA_ERR_CAPACITY);
    CHECK_STATUS(ask(0, to, INT64_MAX / 15, work.data(), bytes), SANTA_ERR_OVERFLOW);
    CHECK_STATUS(ask(0, NULL, 100, work.data(), bytes), SANTA_ERR_NULL_ARGUMENT);
    CHECK_STATUS(ask(0, to, 100, NULL, bytes), SANTA_ERR_WORKSPACE_NULL);
    CHECK_STATUS(ask(0, to, 100, work.data(), bytes - 1), SANTA_ERR_WORKSPACE_SIZE);
    CHECK_STATUS(santa_cuda_scores(&p.a, &o, 0, to, 100, work.data(), bytes), SANTA_ERR_DEVICE);
    o.scores = SANTA_SCORES_GROUP_IID;
    CHECK_STATUS(ask(0, to, 100, work.data(), bytes), SANTA_ERR_BACKEND_SCORES);
    o = options(SANTA_DENSE, 0);
    o.ranks.count = 2;
    CHECK_STATUS(ask(0, to, 100, work.data(), bytes), SANTA_ERR_RANKS_METHOD);
    step_draws d(4, 100);
    santa_cuda_draws draws = d.get();
    santa_attention listed = g.a;                    /* it has no part in a gather */
    listed.key_list = (const int32_t *)work.data();
    listed.key_weights = (const float *)work.data();
    CHECK_STATUS(santa_cuda_gather(&listed, &draws, to, NULL), SANTA_OK);
    CHECK_STATUS(santa_cuda_gather(&p.a, &draws, to, NULL), SANTA_ERR_DEVICE);
    CHECK_STATUS(santa_cuda_gather(&g.a, &draws, NULL, NULL), SANTA_ERR_NULL_ARGUMENT);
    draws.capacity = 0;
    CHECK_STATUS(santa_cuda_gather(&g.a, &draws, to, NULL), SANTA_ERR_CAPACITY);
    draws.capacity = INT64_MAX;
    CHECK_STATUS(santa_cuda_gather(&g.a, &draws, to, NULL), SANTA_ERR_OVERFLOW);
    CUDA(cudaDeviceSynchronize());
}

/* Scores of `heads` heads of all sorts: many and few different ones, none, and some that are
   not there. */
static std::vector<float> selected_scores(int64_t heads, int64_t n) {
    test_rng r = test_rng_make((uint64_t)n);
    std::vector<float> x((size_t)(heads * n));
    for (int64_t h = 0; h < heads; h++)
        for (int64_t j = 0; j < n; j++) {
            const double g = test_normal(&r);
            const int64_t any = test_below(&r, 50);
            const double all[8] = {2.0 * g, 0.25 * (double)any, (double)(any % 3), 1.0,
                                   any < 30 ? g : -(double)INFINITY, 5.0 + 1e-5 * g, 1e30 * g,
                                   10.0 * (double)j / (double)n};
            x[(size_t)(h * n + j)] = (float)all[h % 8];
        }
    return x;
}

/* The keys that are chosen of given scores, for sets of all sizes: the first ones in descending
   order, of equal ones the lower key. */
static void selected_sets(void) {
    NEED_DEVICE();
    struct { int64_t batch, n; } shapes[] = {{1, 1},     {1, 100},    {1, 3000},
                                             {1, 20000}, {1, 300000}, {9, 140000}};
    for (const auto &shape : shapes) {
        const int64_t heads = 8, n = shape.n, all = shape.batch * heads;
        if (test_quick && n > 20000) break;
        const std::vector<float> scores = selected_scores(all, n);
        block on_device(4 * scores.size());
        on_device.put(scores.data(), 4 * scores.size());
        std::vector<std::vector<int32_t>> order((size_t)all);
        std::vector<std::vector<double>> mass((size_t)all);       /* up to and with each in that order */
        for (size_t h = 0; h < (size_t)all; h++) {
            std::vector<float> x((size_t)n);
            for (size_t j = 0; j < x.size(); j++) {
                x[j] = scores[h * (size_t)n + j] * 1.44269504088896340736f;
                if (x[j] >= -1e38f) order[h].push_back((int32_t)j);
            }
            std::stable_sort(order[h].begin(), order[h].end(),
                             [&](int32_t i, int32_t j) { return x[(size_t)i] > x[(size_t)j]; });
            double sum = 0.0;
            for (int32_t j : order[h])
                mass[h].push_back(sum += exp2((double)x[(size_t)j] - (double)x[(size_t)order[h][0]]));
        }
        const auto check = [&](const santa_options &o) {
            const int64_t capacity = santa_cuda_sample_capacity(n, &o);
            const size_t bytes = santa_cuda_sample_workspace_size(shape.batch, heads, n, &o);
            block work(bytes, 0xff);
            step_draws d(all, capacity);
            const santa_cuda_draws draws = d.get();
            if (!CHECK_STATUS(santa_cuda_sample((const float *)on_device.data(), n, shape.batch, heads, n,
                                                0, &o, &draws, work.data(), bytes),
                              SANTA_OK)
                || !CUDA(cudaDeviceSynchronize()))
                return;
            CHECK(d.index.intact() && work.intact());
            const std::vector<int32_t> index = d.array<int32_t>(d.index, capacity),
                                       rows = d.array<int32_t>(d.rows, 1);
            const std::vector<float> lse = d.array<float>(d.lse, 1);
            for (size_t h = 0; h < (size_t)all; h++) {
                const size_t there = order[h].size(), got = (size_t)rows[h];
                size_t want = std::min((size_t)o.num_samples, there);
                if (there == 0) {                   /* of one key in some seeds */
                    CHECK(got == 0 && lse[h] == -INFINITY);
                    continue;
                }
                if (o.method == SANTA_TOP_P) {      /* masses are rounded here and there */
                    const double least = o.top_p * mass[h].back();
                    want = got;
                    CHECK_MSG(got > 0 && got <= there && mass[h][got - 1] >= 0.999999 * least
                                  && (got == 1 || mass[h][got - 2] <= 1.000001 * least),
                              "%d of %d, head %d: %d keys of top-p %g", (int)n, (int)shape.batch, (int)h,
                              (int)got, o.top_p);
                    if (got > there) return;
                }
                std::vector<int32_t> first(order[h].begin(), order[h].begin() + (ptrdiff_t)want);
                std::sort(first.begin(), first.end());
                const int32_t *mine = &index[h * (size_t)capacity];
                CHECK_MSG(got == want && std::equal(first.begin(), first.end(), mine),
                          "%d of %d, head %d, %s %lld: %d keys, want %d", (int)n, (int)shape.batch, (int)h,
                          santa_method_name(o.method), (long long)o.num_samples, (int)got, (int)want);
                const float x = scores[h * (size_t)n + (size_t)order[h][0]];
                CHECK_NEAR(lse[h], (double)x + log(mass[h].back()), 1e-4, 1e-6);
            }
        };
        for (int64_t samples : std::vector<int64_t>{1, 2, 100, 513, 2048, n / 2, n - 1, n})
            if (samples >= 1 && samples <= n) check(options(SANTA_TOP_K, samples));
        for (double top_p : {0.01, 0.5, 0.9, 1.0}) {
            santa_options o = options(SANTA_TOP_P, 0);
            o.top_p = top_p;
            check(o);
        }
    }
}
