/* Tests of santa_cuda.cu: the CPU and the GPU on the same problems, statistics, poison, graphs,
   streams and errors.
     mkdir -p build
     nvcc -std=c++17 -O2 -arch=native test/cuda/test_cuda.cu santa_cuda.cu -o build/test_cuda
     build/test_cuda
   --quick keeps the work small, for compute-sanitizer and the emulator of a GPU in
   test/cuda/emulator. Without a device every case is skipped. The case every_kernel wants
   santa_cuda.cu with -include test/cuda/launched.h, which lists all kernels. */
#define SANTA_IMPLEMENTATION
#include "../../santa_cuda.h"
#include "../lists.h"
#include "launched.h"
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <vector>

/* -------------------------------------------------------------------------- device memory */

static bool cuda_ok(cudaError_t e, const char *what, const char *file, int line) {
    return test_check(e == cudaSuccess, file, line, "%s: %s", what, cudaGetErrorString(e)) != 0;
}
#define CUDA(call) cuda_ok(call, #call, __FILE__, __LINE__)

static bool no_device(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
}
#define NEED_DEVICE() do { if (no_device()) SKIP("no device"); } while (0)

/* See test/cuda/emulator: a thread takes microseconds there. */
#ifdef SANTA_CUDA_EMULATED
static const bool on_emulator = true;
#else
static const bool on_emulator = false;
#endif

/* Device memory between two guards. */
class block {
public:
    explicit block(size_t bytes, int fill = CANARY) : bytes_(bytes) {
        CUDA(cudaMalloc(&base_, bytes + 2 * GUARD));
        CUDA(cudaMemset(base_, CANARY, bytes + 2 * GUARD));
        CUDA(cudaMemset(data(), fill, bytes));
    }
    ~block() { CUDA(cudaFree(base_)); }
    block(const block &) = delete;
    block &operator=(const block &) = delete;

    char *data() const { return (char *)base_ + GUARD; }
    void  put(const void *from, size_t bytes, size_t at = 0) {
        CUDA(cudaMemcpy(data() + at, from, bytes, cudaMemcpyHostToDevice));
    }
    void get(void *to, size_t bytes, size_t at = 0) const {
        CUDA(cudaMemcpy(to, data() + at, bytes, cudaMemcpyDeviceToHost));
    }
    bool intact() const {
        std::vector<unsigned char> guard(2 * GUARD);
        CUDA(cudaMemcpy(guard.data(), base_, GUARD, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(guard.data() + GUARD, data() + bytes_, GUARD, cudaMemcpyDeviceToHost));
        return std::count(guard.begin(), guard.end(), (unsigned char)CANARY) == 2 * GUARD;
    }

private:
    enum { GUARD = 256, CANARY = 0xa5 };
    void  *base_ = nullptr;
    size_t bytes_;
};

static int64_t size_of(santa_dtype t) {
    return t == SANTA_F32 ? 4 : t == SANTA_E4M3 || t == SANTA_E5M2 ? 1 : 2;
}
/* Of n numbers, of q8_0 and q4_0 whole blocks. */
static int64_t bytes_of(santa_dtype t, int64_t n) {
    return ref_is_blocks(t) ? n / 32 * (t == SANTA_Q8_0 ? 34 : 18) : n * size_of(t);
}
/* Types that the GPU reads a number at a time. */
static bool is_coded(santa_dtype t) { return ref_is_blocks(t) || t == SANTA_E5M2; }

/* The elements that a view touches: count of them from offset low (<= 0) on. */
struct extent { int64_t low, count; };
static extent extent_of(const santa_tensor &t) {
    extent e = {0, 1};
    for (int i = 0; i < 4; i++) {
        const int64_t span = (t.shape[i] - 1) * t.stride[i];
        e.low   += std::min<int64_t>(span, 0);
        e.count += span < 0 ? -span : span;
    }
    return e;
}

/* out and lse as the GPU left them. Moved, never copied: out points into bytes. */
struct result {
    result() = default;
    result(result &&) = default;
    result &operator=(result &&) = default;

    std::vector<char>  bytes;                /* of out, gaps included      */
    santa_tensor       out;                  /* the view of it on the host */
    std::vector<float> lse, std_error;
    santa_stats        stats;

    bool same(const result &x) const {
        return bytes == x.bytes && lse.size() == x.lse.size()
               && !memcmp(lse.data(), x.lse.data(), 4 * lse.size());
    }
    /* one row of heads of one request, for results of different batches */
    bool same_request(int64_t b, const result &x, int64_t other) const {
        for (int64_t i = 0; i < out.shape[1]; i++)
            for (int64_t h = 0; h < out.shape[2]; h++) {
                const int64_t row = (b * out.shape[1] + i) * out.shape[2] + h;
                if (memcmp(&lse[(size_t)row],
                           &x.lse[(size_t)((other * out.shape[1] + i) * out.shape[2] + h)], 4))
                    return false;
                if (!same_row(b, i, h, x, other)) return false;
            }
        return true;
    }
    bool same_row(int64_t b, int64_t i, int64_t h, const result &x, int64_t other) const {
        const int64_t size = size_of(out.dtype);
        for (int64_t c = 0; c < out.shape[3]; c++)
            if (memcmp((const char *)out.data + size * ref_at(&out, b, i, h, c),
                       (const char *)x.out.data + size * ref_at(&x.out, other, i, h, c), (size_t)size))
                return false;
        return true;
    }
    /* how many values of the row and its lse are NaN */
    int64_t nans(int64_t b, int64_t i, int64_t h) const {
        int64_t n = test_is_nan(lse[(size_t)((b * out.shape[1] + i) * out.shape[2] + h)]);
        for (int64_t c = 0; c < out.shape[3]; c++) n += test_is_nan((float)ref_get(&out, b, i, h, c));
        return n;
    }
};

/* Device copies of everything that an attention and its options point to. */
class on_gpu {
public:
    santa_attention a;
    santa_options   o;
    santa_stats    *stats;

    on_gpu(const santa_attention &host, const santa_options &options, int workspace_fill = 0xff)
        : a(host), o(options) {
        const size_t batch = (size_t)a.q.shape[0], heads = (size_t)a.q.shape[2],
                     rows = batch * heads * (size_t)a.q.shape[1];
        for (santa_tensor *t : {&a.q, &a.k}) view(t);
        const int64_t on = (char *)a.v.data - (char *)host.k.data;       /* V's rows may lie in K's */
        if (on >= 0 && on < bytes_of(a.k.dtype, host.k.shape[3]) && a.v.dtype == a.k.dtype) {
            a.v.data = (char *)a.k.data + on;
            a.v.device = SANTA_CUDA;
        } else view(&a.v);
        view(&a.out);
        out_index_ = blocks_.size() - 1;
        if (a.lse) lse_ = new_block(4 * rows), a.lse = (float *)lse_->data();
        if (a.std_error) error_ = new_block(4 * rows), a.std_error = (float *)error_->data();
        const size_t shift = out_shift_;
        for (santa_tensor *t : {&a.k_scales, &a.v_scales}) if (t->data) view(t);
        out_shift_ = shift;
        array(&a.seq_lens, batch);
        array(&a.context_lens, batch);
        array(&a.kv_start, batch);
        array(&a.block_table, batch * (size_t)(a.block_table_stride ? a.block_table_stride : a.max_pages));
        array(&a.sinks, heads);
        array(&a.alibi_slopes, heads);
        array(&a.proxy_lens, batch);
        const size_t lists = batch * (size_t)a.k.shape[2] * (a.key_list_rows ? (size_t)a.q.shape[1] : 1),
                     pitch = (size_t)(a.key_list_stride ? a.key_list_stride : a.max_list);
        const size_t entries = (lists - 1) * pitch + (size_t)a.max_list;
        array(&a.key_list, entries);
        array(&a.key_list_lens, lists);
        array(&a.key_weights, entries);
        if (a.proxy) {
            const size_t bytes = santa_proxy_size(&a);
            proxy_ = new_block(std::max<size_t>(bytes, 16));
            proxy_->put(a.proxy, bytes);
            a.proxy = proxy_->data();
        }
        array(&o.seeds, batch);
        array(&o.offsets, batch);
        array(&o.request_ids, batch);
        if (o.vattention.heavy_index)
            array(&o.vattention.heavy_index,
                  rows * (size_t)std::max(o.vattention.heavy_stride, o.vattention.heavy_tokens));
        if (o.vattention.audit) {
            audit_ = new_block(rows * sizeof(santa_audit));
            o.vattention.audit = (santa_audit *)audit_->data();
        }
        if (a.buckets) copy_router(*a.buckets);
        bytes_     = santa_workspace_size(&a, &o);
        workspace_ = new_block(bytes_, workspace_fill);
        stats_     = new_block(sizeof *stats);
        stats      = (santa_stats *)stats_->data();
    }
    ~on_gpu() { for (block *b : blocks_) delete b; }
    on_gpu(const on_gpu &) = delete;
    on_gpu &operator=(const on_gpu &) = delete;

    santa_status start(cudaStream_t stream = 0) {
        o.stream = stream;
        return santa_decode(&a, &o, workspace_->data(), bytes_, stats);
    }
    /* A whole run: call, wait, guards. */
    bool run() {
        if (!CHECK_STATUS(start(), SANTA_OK)) return false;
        if (!CUDA(cudaDeviceSynchronize())) return false;
        bool good = true;
        for (const block *b : blocks_) good &= b->intact();
        return CHECK_MSG(good, "%s wrote outside its memory", santa_method_name(o.method)) != 0;
    }
    result get() const {
        result r;
        const extent  e = extent_of(a.out);
        const int64_t size = size_of(a.out.dtype);
        r.bytes.resize((size_t)(e.count * size));
        blocks_[out_index_]->get(r.bytes.data(), r.bytes.size(), out_shift_);
        r.out      = a.out;
        r.out.data = r.bytes.data() - e.low * size;
        r.lse.resize(lse_ ? (size_t)(a.q.shape[0] * a.q.shape[1] * a.q.shape[2]) : 0);
        if (lse_) lse_->get(r.lse.data(), 4 * r.lse.size());
        r.std_error.resize(error_ ? (size_t)(a.q.shape[0] * a.q.shape[1] * a.q.shape[2]) : 0);
        if (error_) error_->get(r.std_error.data(), 4 * r.std_error.size());
        stats_->get(&r.stats, sizeof r.stats);
        return r;
    }
    std::vector<char> copy_of_k() const {
        std::vector<char> bytes(santa_proxy_size(&a));
        proxy_->get(bytes.data(), bytes.size());
        return bytes;
    }
    std::vector<santa_audit> audits() const {
        std::vector<santa_audit> x((size_t)(a.q.shape[0] * a.q.shape[1] * a.q.shape[2]));
        audit_->get(x.data(), x.size() * sizeof x[0]);
        return x;
    }
    const block &index() const { return *index_; }
    char  *workspace() const { return workspace_->data(); }
    size_t workspace_bytes() const { return bytes_; }

private:
    std::vector<block *> blocks_;
    block *lse_ = nullptr, *error_ = nullptr, *proxy_ = nullptr, *audit_ = nullptr, *index_ = nullptr,
          *workspace_, *stats_;
    santa_buckets router_;
    size_t out_index_, out_shift_ = 0, bytes_;

    block *new_block(size_t bytes, int fill = 0xa5) {
        blocks_.push_back(new block(bytes, fill));
        return blocks_.back();
    }
    /* The index as the host has it. */
    void copy_router(const santa_buckets &host) {
        const size_t heads = (size_t)a.k.shape[2], d = (size_t)a.k.shape[3], n = (size_t)host.num_buckets,
                     units = (size_t)host.hidden, size = (size_t)size_of(host.dtype);
        router_ = host;
        a.buckets = &router_;
        const auto bytes = [&](const void **p, size_t count) {
            if (!*p || !count) return;
            block *b = new_block(count);
            b->put(*p, count);
            *p = b->data();
        };
        bytes(&router_.centroids, heads * n * d * size);
        bytes(&router_.w1, heads * units * d * size);
        bytes(&router_.w2, heads * n * units * size);
        bytes((const void **)&router_.b1, heads * units * 4);
        bytes((const void **)&router_.b2, heads * n * 4);
        array(&router_.slots, (size_t)a.q.shape[0]);
        if (router_.q.data) {
            const size_t shift = out_shift_;
            view(&router_.q);
            out_shift_ = shift;
        }
        const size_t all = santa_buckets_size(&a);
        index_ = new_block(all);
        index_->put(host.index, all);
        router_.index = index_->data();
    }
    void view(santa_tensor *t) {             /* aligned to 16 bytes where the host's is */
        const extent  e = extent_of(*t);
        const int64_t low = bytes_of(t->dtype, e.low);
        const char   *from = (const char *)t->data + low;
        const size_t  shift = (uintptr_t)from % 16, bytes = (size_t)bytes_of(t->dtype, e.count);
        block *b = new_block(bytes + shift);
        b->put(from, bytes, shift);
        t->data   = b->data() + shift - low;
        t->device = SANTA_CUDA;
        out_shift_ = shift;                  /* out comes last */
    }
    template <typename T> void array(const T **p, size_t n) {
        if (!*p) return;
        block *b = new_block(n * sizeof(T));
        b->put(*p, n * sizeof(T));
        *p = (const T *)b->data();
    }
};

/* ------------------------------------------------------------------------------- problems */

static const santa_method METHODS[] = {SANTA_DENSE, SANTA_IID,   SANTA_STRAT, SANTA_SYS,
                                       SANTA_PROP,  SANTA_FLASH, SANTA_PPS};
static const santa_method SELECTING[] = {SANTA_TOP_K, SANTA_TOP_P};
static const santa_stash  STASHES[] = {SANTA_STASH_F32, SANTA_STASH_F16, SANTA_STASH_U8};

static ref_spec spec16(int64_t heads, int64_t kv_heads, int64_t len, int64_t dim,
                       santa_dtype type = SANTA_BF16) {
    ref_spec s = ref_spec_make(heads, kv_heads, len, dim);
    s.q_type = s.k_type = s.v_type = type;
    s.out_type = SANTA_F32;
    s.stream = 11;
    return s;
}

static santa_options options(santa_method method, int64_t samples, santa_stash stash = SANTA_STASH_F32) {
    santa_options o = ref_options(method, samples, test_seed);
    o.offset = santa_offset(3, 5);
    o.stash  = stash;
    santa_clear_unused_options(&o);
    return o;
}

/* What calls(stream) puts on a stream, as a graph: it returns the first status that is not
   SANTA_OK. */
class captured {
public:
    template <typename Calls> explicit captured(Calls calls) {
        if (!CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking))
            || !CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal)))
            return;
        const santa_status status = calls(stream_);
        const cudaError_t end = cudaStreamEndCapture(stream_, &graph_);
        good = CHECK_STATUS(status, SANTA_OK) && CUDA(end) && CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
    }
    ~captured() {
        if (exec_) CUDA(cudaGraphExecDestroy(exec_));
        if (graph_) CUDA(cudaGraphDestroy(graph_));
        if (stream_) CUDA(cudaStreamDestroy(stream_));
    }
    captured(const captured &) = delete;
    captured &operator=(const captured &) = delete;

    /* Once, from a workspace full of other bytes; its results are g's. */
    void replay(on_gpu &g) {
        CUDA(cudaMemset(g.workspace(), 0xff, g.workspace_bytes()));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaGraphLaunch(exec_, stream_));
        CUDA(cudaStreamSynchronize(stream_));
    }

    bool good = false;

private:
    cudaStream_t stream_ = NULL;
    cudaGraph_t graph_ = NULL;
    cudaGraphExec_t exec_ = NULL;
};

/* A ref_problem that frees itself. */
struct problem : ref_problem {
    explicit problem(const ref_spec &s) {
        ref_build(this, &s);
        a.std_error = NULL;
    }
    ~problem() { ref_free(this); }
    problem(const problem &) = delete;
    problem &operator=(const problem &) = delete;

    void replicate(int64_t requests) {
        ref_replicate(this, requests);
        a.std_error = NULL;
    }
};

/* NaN in all heads of key j, in K and V; head_dim_v is head_dim. */
static void spoil_key(ref_problem *p, int64_t b, int64_t j) {
    int64_t i0, i1;
    ref_place(p, b, j, &i0, &i1);
    for (int64_t h = 0; h < p->spec.kv_heads; h++)
        for (int64_t c = 0; c < p->spec.head_dim; c++) {
            ref_set(&p->a.k, i0, i1, h, c, (double)test_nan());
            ref_set(&p->a.v, i0, i1, h, c, (double)test_nan());
        }
}

static bool run_on_gpu(const problem &p, const santa_options &o, result *r) {
    on_gpu g(p.a, o);
    if (!g.run()) return false;
    *r = g.get();
    return true;
}

/* ------------------------------------------------------------------------ CPU against GPU */

/* Rounding may move a draw across a boundary between keys; such heads are counted and must stay
   rare. */
struct totals { int64_t rows, off, draws; };

static void check_totals(const totals &t, const char *what) {
    const int64_t allowed = std::min(2 + t.draws / 1000, t.rows / 2 + 1);
    CHECK_MSG(t.off <= allowed, "%s: %lld of %lld sampled heads differ, %lld draws, allowed %lld", what,
              (long long)t.off, (long long)t.rows, (long long)t.draws, (long long)allowed);
}

static double largest_row_of_v(const problem &p) {
    const int64_t dv = p.spec.head_dim_v, rows = p.spec.batch * p.spec.len * p.spec.kv_heads;
    double most = 0.0;
    for (int64_t j = 0; j < rows; j++) {
        double x = 0.0;
        for (int64_t c = 0; c < dv; c++) x += p.v[j * dv + c] * p.v[j * dv + c];
        most = std::max(most, x);
    }
    return 1.1 * sqrt(most)
           * (p.a.v_scale != 0.0f ? (double)p.a.v_scale : 1.0); /* e4m3 rounds up to 1/16 */
}

/* The square of what a row of out on the GPU is off by from the one on the CPU, and of the
   latter. */
static double apart(const problem &p, const result &r, int64_t b, int64_t i, int64_t h, double *norm) {
    double difference = 0.0;
    *norm = 0.0;
    for (int64_t c = 0; c < p.spec.head_dim_v; c++) {
        const double x = ref_get(&p.a.out, b, i, h, c), d = ref_get(&r.out, b, i, h, c) - x;
        difference += d * d;
        *norm += x * x;
    }
    return difference;
}

static bool check_gaps(const result &r, const std::vector<char> &before, const char *what) {
    const int64_t size = size_of(r.out.dtype), low = extent_of(r.out).low;
    std::vector<char> now = r.bytes;
    for (int64_t b = 0; b < r.out.shape[0]; b++)
        for (int64_t i = 0; i < r.out.shape[1]; i++)
            for (int64_t h = 0; h < r.out.shape[2]; h++)
                for (int64_t c = 0; c < r.out.shape[3]; c++) {
                    const int64_t at = size * (ref_at(&r.out, b, i, h, c) - low);
                    memcpy(&now[(size_t)at], &before[(size_t)at], (size_t)size);
                }
    return CHECK_MSG(now == before, "%s: wrote between the rows of out", what) != 0;
}

/* Returns whether all checks held; moved draws are for the caller to judge. */
static bool compare(problem &p, const santa_options &o, totals *t) {
    const ref_spec &s = p.spec;
    if (o.method == SANTA_PPS && s.head_dim_v > 256) return true;       /* refused */
    const bool sampled = o.method != SANTA_DENSE,
               all_f32 = p.a.q.dtype == SANTA_F32 && p.a.k.dtype == SANTA_F32;
    const double eps = s.out_type == SANTA_F32 ? 0.0 : 2.0 * ref_epsilon(s.out_type),
                 v_max = largest_row_of_v(p);
    /* a score at the edge of a step of bytes: all borders behind it move, each by 1 / 255 of a
       largest mass, which takes this share of the draws along where a mean mass is 1 / 8 of
       it */
    const double flip = o.stash == SANTA_STASH_U8 ? 8.0 / 255.0 : 0.0;
    char what[160];
    snprintf(what, sizeof what,
             "%s S %lld stash %d, types %d%d%d%d, %lld x %lld keys, heads %lld/%lld, dim %lld/%lld, "
             "page %lld, layout %d",
             santa_method_name(o.method), (long long)o.num_samples, (int)o.stash, (int)p.a.q.dtype,
             (int)p.a.k.dtype, (int)p.a.v.dtype, (int)s.out_type, (long long)s.batch, (long long)s.len,
             (long long)s.heads, (long long)s.kv_heads, (long long)s.head_dim, (long long)s.head_dim_v,
             (long long)s.page_size, (int)s.layout);

    on_gpu g(p.a, o);
    const result before = g.get();
    if (!g.run()) return CHECK_MSG(0, "in %s", what) != 0;
    const result r = g.get();
    bool good = check_gaps(r, before.bytes, what);
    santa_stats cpu;
    if (!ref_run(&p, &o, &cpu)) return false;

    /* heads that one comb serves, and that one moved draw moves */
    const int64_t shared = o.method == SANTA_PPS ? s.heads / s.kv_heads : 1;
    double all_difference = 0.0, all_norm = 0.0;
    int64_t off = 0, bad_lse = 0, too_far = 0, faint = 0;
    int moved = 0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++) {
                double norm;
                const double difference = apart(p, r, b, i, h, &norm);
                faint += s.sinks && norm > 0.0 && sqrt(norm) < 1e-3 * v_max;
                all_difference += difference;
                all_norm += norm;
                const int is_off = !(sqrt(difference) <= (1e-4 + eps) * sqrt(norm) + 1e-6 * v_max);
                moved = h % shared && moved ? 1 : is_off;
                if ((h + 1) % shared == 0) off += moved;
                /* flash gives a draw up to a whole tile's weight; elsewhere this is what four
                   moved draws can do */
                const double reach = o.method == SANTA_FLASH
                                         ? 2.0 * v_max
                                         : 2.0 * v_max * (4.0 / (double)ref_max(o.num_samples, 1) + flip)
                                               + eps * sqrt(norm);
                too_far += !(sqrt(difference) <= reach);
                const size_t row = (size_t)((b * s.q_len + i) * s.heads + h);
                const float  x = p.lse[row], y = r.lse[row];
                bad_lse +=
                    !(x == y || fabs((double)x - (double)y) <= (p.a.q.dtype == p.a.k.dtype ? 1e-4 : 1e-3));
            }
    good &= CHECK_MSG(bad_lse == 0, "%s: %lld lse differ", what, (long long)bad_lse);
    good &= CHECK_MSG(r.stats.rows == cpu.rows && r.stats.keys == cpu.keys
                          && r.stats.k_rows_read == cpu.k_rows_read
                          && r.stats.k_features_read == cpu.k_features_read
                          && r.stats.dense_rows == cpu.dense_rows,
                      "%s: stats of rows, keys or K differ", what);
    good &= CHECK_MSG(r.stats.draws == cpu.draws, "%s: %lld draws, the CPU %lld", what,
                      (long long)r.stats.draws, (long long)cpu.draws);
    if (!sampled) {
        const double error = all_norm > 0.0 ? sqrt(all_difference / all_norm) : sqrt(all_difference),
                     most = all_f32 ? 2e-5 : 2e-3;
        return CHECK_MSG(error <= most + eps, "%s: relative error %g", what, error) && good;
    }
    good &= CHECK_MSG(too_far == 0, "%s: %lld heads are farther off than moved draws can bring them", what,
                      (long long)too_far);
    /* a moved draw shows in off, unless out is rounded too much, or a sink has left next to
       nothing of it */
    if (off == 0 && faint == 0 && eps * (double)o.num_samples < 0.6)
        good &= CHECK_MSG(r.stats.v_rows_read == cpu.v_rows_read && r.stats.v_rows_head == cpu.v_rows_head,
                          "%s: stats of V differ", what);
    t->rows  += s.batch * s.q_len * s.heads / shared;
    t->draws += cpu.draws;
    t->off   += off;
    return good;
}

/* Every method on one problem. */
static void compare_all(const ref_spec &s, int64_t samples, const char *what, float k_scale = 0.0f,
                        float v_scale = 0.0f) {
    problem p(s);
    p.a.k_scale = k_scale;
    p.a.v_scale = v_scale;
    totals t = {0, 0, 0};
    for (santa_method m : METHODS) compare(p, options(m, samples), &t);
    for (santa_method m : SELECTING) compare(p, options(m, samples), &t);
    check_totals(t, what);
}

static void methods_and_stashes(void) {
    NEED_DEVICE();
    ref_spec s = spec16(32, 8, test_quick ? 200 : 1000, 128);
    s.batch  = 3;
    s.ragged = 1;
    problem p(s);
    for (santa_stash stash : STASHES) {
        totals t = {0, 0, 0};
        for (santa_method m : METHODS) compare(p, options(m, 128, stash), &t);
        check_totals(t, "stash");
    }
}

static void types(void) {
    NEED_DEVICE();
    static const santa_dtype t[][4] = {
        {SANTA_F32,  SANTA_F32,  SANTA_F32,  SANTA_F32},  {SANTA_F16,  SANTA_F16,  SANTA_F16,  SANTA_F16},
        {SANTA_BF16, SANTA_BF16, SANTA_BF16, SANTA_BF16}, {SANTA_F32,  SANTA_BF16, SANTA_BF16, SANTA_F32},
        {SANTA_F32,  SANTA_F16,  SANTA_F16,  SANTA_F32},  {SANTA_F16,  SANTA_BF16, SANTA_F16,  SANTA_BF16},
        {SANTA_BF16, SANTA_F32,  SANTA_E4M3, SANTA_F16},  {SANTA_BF16, SANTA_E4M3, SANTA_E4M3, SANTA_BF16},
        {SANTA_F16,  SANTA_E4M3, SANTA_E4M3, SANTA_F32},  {SANTA_F32,  SANTA_E4M3, SANTA_E4M3, SANTA_F32},
        {SANTA_BF16, SANTA_E4M3, SANTA_F32,  SANTA_F32},  {SANTA_BF16, SANTA_BF16, SANTA_F32,  SANTA_F32},
        {SANTA_F32,  SANTA_Q8_0, SANTA_Q8_0, SANTA_F32},  {SANTA_BF16, SANTA_BF16, SANTA_Q8_0, SANTA_BF16},
        {SANTA_F16,  SANTA_Q8_0, SANTA_F16,  SANTA_F32},  {SANTA_F32,  SANTA_E5M2, SANTA_E5M2, SANTA_F32},
        {SANTA_BF16, SANTA_E5M2, SANTA_E4M3, SANTA_BF16}, {SANTA_BF16, SANTA_Q4_0, SANTA_Q4_0, SANTA_F32},
        {SANTA_F16,  SANTA_F16,  SANTA_Q4_0, SANTA_F32},  {SANTA_F32,  SANTA_Q4_0, SANTA_BF16, SANTA_F32},
        {SANTA_F16,  SANTA_E5M2, SANTA_F16,  SANTA_F16},
    };
    for (const santa_dtype *x : t) {
        ref_spec s = spec16(8, 2, test_quick ? 150 : 500, 128);
        s.q_type = x[0]; s.k_type = x[1]; s.v_type = x[2]; s.out_type = x[3];
        compare_all(s, 64, "types");
        if (!is_coded(s.k_type) && !is_coded(s.v_type)) continue;
        totals moved = {0, 0, 0};
        problem p(s);
        compare(p, options(SANTA_TOP_K, 30), &moved);
        p.spec.window = p.a.window = 60;
        p.a.first_tokens = 5;
        compare(p, options(SANTA_DENSE, 0), &moved);         /* a list */
        check_totals(moved, "types");
    }
}

static void head_dims(void) {
    NEED_DEVICE();
    static const int64_t dims[][2] = {{8, 8},     {40, 40},   {64, 64},   {80, 80},   {96, 96},
                                      {112, 112}, {128, 128}, {192, 192}, {256, 256}, {320, 320},
                                      {128, 72},  {64, 256},  {192, 128}, {128, 320}, {33, 17}};
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3})
        for (const int64_t *d : dims) {
            if (type == SANTA_E4M3 && d[0] % 64) continue;
            ref_spec s = spec16(8, 2, test_quick ? 130 : 700, d[0]);
            s.k_type = s.v_type = type;
            s.head_dim_v = d[1];
            compare_all(s, 64, "head_dims");
        }
}

static void groups(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3, SANTA_F32})
        for (int64_t group : {1, 4, 5, 7, 8, 16, 20}) {
            ref_spec s = spec16(2 * group, 2, test_quick ? 130 : 700, 64);
            s.k_type = s.v_type = type;
            compare_all(s, 64, "groups");
        }
}

/* Wide heads in large groups, where at its end dense's merge needs more shared memory than its
   ring. */
static void wide_groups(void) {
    NEED_DEVICE();
    totals none = {0, 0, 0};
    for (santa_dtype type : {SANTA_BF16, SANTA_F16})
        for (int64_t dim : {160, 192, 256})
            for (int64_t group : {5, 8})
                for (int64_t page : {0, 16}) {
                    ref_spec s = spec16(2 * group, 2, test_quick ? 130 : 1100, dim, type);
                    s.page_size = page;
                    problem p(s);
                    compare(p, options(SANTA_DENSE, 0), &none);
                }
    /* pairs of warps that share rows; a last slice that is missing, and one of two rings'
       turns */
    for (santa_dtype type : {SANTA_BF16, SANTA_F16, SANTA_E4M3})
        for (int64_t dim : {96, 128})
            for (int64_t group : {9, 16, 20})
                for (int64_t page : {0, 16, 12}) {
                    if (test_quick && (group == 16) != (page == 16)) continue;
                    ref_spec s = spec16(2 * group, 2, test_quick ? 700 : 2900, dim, type);
                    if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
                    s.page_size = page;
                    problem p(s);
                    compare(p, options(SANTA_DENSE, 0), &none);
                }
}

/* What comes to the rings of plain kernels by pieces of each size, or number by number; several
   steps to a row; a query without room. */
static void plain_rows(void) {
    NEED_DEVICE();
    static const struct { santa_dtype type; int64_t d, dv; } rows[] = {
        {SANTA_F32, 33, 17},    {SANTA_F32, 40, 72},    {SANTA_F32, 192, 128}, {SANTA_F32, 256, 256},
        {SANTA_F32, 320, 576},  {SANTA_F32, 900, 100}, {SANTA_Q8_0, 64, 96},  {SANTA_Q8_0, 192, 256},
        {SANTA_Q8_0, 160, 64},  {SANTA_Q4_0, 64, 96},   {SANTA_Q4_0, 256, 32}, {SANTA_E5M2, 80, 208},
        {SANTA_E4M3, 100, 100}, {SANTA_BF16, 520, 300},
    };
    totals t = {0, 0, 0};
    for (const auto &x : rows)
        for (int64_t group : {3, 9})
            for (int how = 0; how < 3; how++) {
                if (test_quick && (group == 9) != (how == 1)) continue;
                ref_spec s = spec16(2 * group, 2, test_quick ? 300 : 1500, x.d, x.type);
                s.q_type = s.out_type = SANTA_F32;
                s.head_dim_v = x.dv;
                s.page_size = how == 2 ? 16 : 0;
                if (how) s.layout = REF_HND;
                problem p(s);
                for (santa_method m : {SANTA_DENSE, SANTA_PROP}) compare(p, options(m, 64), &t);
            }
    check_totals(t, "plain rows");
    /* an infinity has no lower part, nor has the largest number: such keys have no weight */
    static const struct { santa_dtype type; double most; } least[] = {
        {SANTA_F32, 3.4028234663852886e38}, {SANTA_F16, 65504.0}, {SANTA_BF16, 3.3895313892515355e38},
        {SANTA_E5M2, 57344.0},
    };
    for (const auto &type : least) {
        ref_spec s = spec16(8, 2, 300, 128, type.type);
        s.q_type = s.out_type = SANTA_F32;
        problem p(s), other(s);
        for (int64_t h = 0; h < 8; h++) {
            ref_set(&p.a.q, 0, 0, h, 5, 1.0);
            ref_set(&other.a.q, 0, 0, h, 5, 1.0);
        }
        for (int64_t kv = 0; kv < 2; kv++) {
            ref_set(&p.a.k, 0, 70, kv, 5, -(double)INFINITY);
            ref_set(&other.a.k, 0, 70, kv, 5, -type.most);
        }
        result x, y;
        if (!run_on_gpu(p, options(SANTA_DENSE, 0), &x) || !run_on_gpu(other, options(SANTA_DENSE, 0), &y))
            return;
        int64_t wrong = 0;
        for (int64_t h = 0; h < 8; h++) {
            wrong += x.nans(0, 0, h) != 0;
            for (int64_t c = 0; c < 128; c++)
                wrong += !(fabs(ref_get(&x.out, 0, 0, h, c) - ref_get(&y.out, 0, 0, h, c)) < 1e-5);
        }
        CHECK_MSG(wrong == 0, "%lld numbers of type %d know an infinity", (long long)wrong, (int)type.type);
    }
    /* a scale that is not a number is its KV head's, and no other's */
    for (santa_dtype type : {SANTA_Q8_0, SANTA_Q4_0})
        for (bool of_v : {false, true}) {
            ref_spec s = spec16(8, 2, 300, 128, type);
            s.q_type = s.out_type = SANTA_F32;
            problem p(s);
            const santa_tensor &t = of_v ? p.a.v : p.a.k;
            const unsigned short scale = 0x7e00;
            char *const row = (char *)t.data + bytes_of(type, ref_at(&t, 0, 70, 1, 0));
            memcpy(row + bytes_of(type, 64), &scale, 2);
            result x;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &x)) return;
            for (int64_t h = 0; h < 8; h++)
                CHECK_INT(x.nans(0, 0, h), h < 4 ? 0 : of_v ? 32 : 129);
        }
}

static void lengths(void) {
    NEED_DEVICE();
    ref_spec s = spec16(8, 2, 700, 64);
    s.batch  = 6;                            /* full, none, one, half, all but one, 65 */
    s.ragged = 1;
    compare_all(s, 64, "ragged");
    for (int64_t n : {1, 2, 63, 64, 65, 1023, 1024, 1025}) {
        if (test_quick && n > 65) break;
        compare_all(spec16(8, 2, n, 128), 16, "short");
    }
}

static void paged(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int64_t page : {1, 16, 64, 96}) {
            ref_spec s = spec16(8, 2, test_quick ? 200 : 950, 64);
            s.k_type = s.v_type = type;
            s.batch  = 4;
            s.ragged = 1;                    /* the slots behind a sequence are wild: see ref_build */
            s.page_size = page;
            compare_all(s, 64, "paged");
            if (test_quick && page != 16) continue;
            s.layout = REF_HND;
            compare_all(s, 64, "paged HND");
        }
}

static void layouts(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int layout = 0; layout < REF_LAYOUTS; layout++)
            for (int64_t page : {0, 16}) {
                ref_spec s = spec16(8, 2, test_quick ? 130 : 500, 64);
                s.k_type = s.v_type = type;
                s.batch  = 2;
                s.layout = (ref_layout)layout;
                s.page_size = page;
                compare_all(s, 64, "layouts");
            }
}

static void query_rows(void) {
    NEED_DEVICE();
    for (int causal = 0; causal < 2; causal++)
        for (santa_dtype type : {SANTA_BF16, SANTA_F32}) {
            ref_spec s = spec16(8, 2, 150, 64, type);
            s.batch  = 3;
            s.q_len  = 5;
            s.ragged = 1;                    /* sequence 1 is empty, sequence 2 shorter than q_len */
            s.causal = causal;
            compare_all(s, 64, "query_rows");
        }
}

static void extras(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3, SANTA_F32})
        for (int extra = 0; extra < 6; extra++) {
            ref_spec s = spec16(8, 2, test_quick ? 200 : 1000, 128);
            s.k_type = s.v_type = type;
            s.batch  = 2;
            if (extra == 0 || extra == 5) s.soft_cap = 2.0f;
            if (extra == 1 || extra == 5) s.window = 2 * s.len / 3 + 1;
            if (extra == 2 || extra == 5) s.sinks = 1;
            if (extra == 3 || extra == 5) s.alibi = 1;
            if (extra == 4 || extra == 5) s.sm_scale = 0.05f;
            if (extra == 5) { s.q_len = 2; s.causal = 1; s.page_size = 16; }
            compare_all(s, 64, "extras");
        }
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3}) {
        ref_spec s = spec16(8, 2, test_quick ? 200 : 1000, 64);
        s.k_type = s.v_type = type;
        compare_all(s, 64, "k_scale, v_scale", 0.37f, 5.5f);
    }
    /* a scale of 1, as is what scores have left to be multiplied with behind a cap or a bias */
    for (santa_dtype type : {SANTA_F16, SANTA_E4M3})
        for (int alibi = 0; alibi < 2; alibi++) {
            ref_spec s = spec16(8, 2, 200, 64);
            s.q_type = SANTA_BF16;
            s.k_type = s.v_type = type;
            s.sm_scale = 1.0f;
            s.gain     = 0.25;
            s.alibi    = alibi;
            s.soft_cap = alibi ? 0.0f : 4.0f;
            compare_all(s, 64, "a scale of 1");
        }
    /* a cap that no score comes near */
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3, SANTA_F32}) {
        ref_spec s = spec16(8, 2, 200, 128);
        s.k_type = s.v_type = type;
        s.soft_cap = 3e38f;
        problem p(s);
        totals t = {0, 0, 0};
        for (santa_method m : {SANTA_DENSE, SANTA_PROP}) compare(p, options(m, 64), &t);
        check_totals(t, "a large soft cap");
    }
    /* ALiBi so steep that a key behind the last one, or before the window, would outweigh
       all */
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3})
        for (int64_t len : {1, 5, 70, 200})
            for (float slope : {50.0f, -50.0f}) {
                ref_spec s = spec16(8, 2, len, 64);
                s.k_type = s.v_type = type;
                s.alibi  = 1;
                s.window = 3;
                problem p(s);
                totals t = {0, 0, 0};
                for (int h = 0; h < 8; h++) p.slopes[h] = slope;
                for (santa_method m : METHODS) compare(p, options(m, 64), &t);
                check_totals(t, "steep ALiBi");
            }
    /* a head whose q is far larger than that of the others that share its tensor core */
    for (santa_dtype type : {SANTA_F16, SANTA_E4M3, SANTA_E5M2})
        for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_TOP_K}) {
            ref_spec s = spec16(4, 1, 70, 64);
            s.k_type = s.v_type = type;
            problem p(s);
            ref_set(&p.a.q, 0, 0, 0, 3, 1e7);
            const santa_options o = options(m, 16);
            santa_stats cpu;
            result r;
            if (!run_on_gpu(p, o, &r) || !ref_run(&p, &o, &cpu)) return;
            for (int h = 0; h < 4; h++)
                CHECK_NEAR((double)r.lse[(size_t)h], (double)p.lse[h], 1e-3, h == 0 ? 1e-6 : 0.0);
        }
}

/* Parts of longer contexts: positions count from the context's end, the part's end or
   neither. */
static void shards(void) {
    NEED_DEVICE();
    static const int32_t context[2] = {5000, 4300};
    for (int extra = 0; extra < 4; extra++) {
        ref_spec s = spec16(8, 2, test_quick ? 200 : 1000, 128);
        s.batch  = 2;
        s.q_len  = 3;
        s.causal = 1;
        s.alibi  = extra & 1;
        s.window = extra & 2 ? 1000 : 0;
        problem p(s);
        p.a.first_key = 4300 - s.len; /* of the second context all keys, of the first earlier ones */
        p.a.context_lens = context;
        totals t = {0, 0, 0};
        for (santa_method m : METHODS) compare(p, options(m, 64), &t);
        check_totals(t, "shards");
    }
}

static void sample_counts(void) {
    NEED_DEVICE();
    for (int64_t samples : {1, 2, 255, 256, 257, 4096}) {        /* 256 draws are one CTA's share */
        if (test_quick && samples > 257) break;
        problem p(spec16(8, 2, test_quick ? 300 : 5000, 128));
        for (santa_stash stash : STASHES) {
            totals t = {0, 0, 0};
            for (santa_method m : METHODS) compare(p, options(m, samples, stash), &t);
            check_totals(t, "sample_counts");
        }
    }
}

/* Errors from the same draws are the CPU's; heads with a moved draw are left out, and rare. */
static void compare_errors(problem &p, const santa_options &o, totals *t, const char *what) {
    p.a.std_error = p.std_error;
    result r;
    santa_stats cpu;
    if (!run_on_gpu(p, o, &r) || !ref_run(&p, &o, &cpu)) return;
    const ref_spec &s = p.spec;
    const double v_max = largest_row_of_v(p);
    int64_t off = 0, wrong = 0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++) {
                double norm;
                const double difference = apart(p, r, b, i, h, &norm);
                const size_t row = (size_t)((b * s.q_len + i) * s.heads + h);
                const float x = p.std_error[row], y = r.std_error[row];
                if (!(sqrt(difference) <= 1e-4 * sqrt(norm) + 1e-6 * v_max)) { off++; continue; }
                wrong += !(x == y || fabs((double)x - (double)y) <= 1e-3 * (double)x + 1e-6 * v_max);
            }
    CHECK_MSG(wrong == 0, "%s, %s, %lld draws, %lld combs: %lld errors differ", what,
              santa_method_name(o.method), (long long)o.num_samples, (long long)o.num_combs,
              (long long)wrong);
    t->rows  += s.batch * s.q_len * s.heads;
    t->draws += cpu.draws;
    t->off   += off;
}

static void std_errors(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    for (int turn = 0; turn < 6; turn++) {
        ref_spec s = spec16(8, 2, test_quick ? 200 : 900, 64, turn == 1 ? SANTA_F32 : SANTA_BF16);
        s.batch = 2;
        if (turn == 0) { s.batch = 3; s.ragged = 1; }        /* sequence 1 is empty */
        if (turn == 2) { s.q_len = 3; s.causal = 1; s.page_size = 16; }
        if (turn == 3) { s.sinks = 1; s.head_dim_v = 200; s.window = 100; }
        if (turn == 4) { s.k_type = s.v_type = SANTA_E4M3; s.layout = REF_HND; }
        if (turn == 5) { s.head_dim_v = 17; s.v_type = SANTA_F32; }
        problem p(s);
        p.a.v_scale = turn == 4 ? 2.5f : 0.0f;
        for (santa_method m : METHODS)
            for (int64_t samples : {1, 2, 64, 300}) {
                santa_options o = options(m, samples);
                if (m == SANTA_FLASH) o.tile_size = 64;
                compare_errors(p, o, &t, "std_errors");
                if (m == SANTA_DENSE) break;
            }
    }
    check_totals(t, "std_errors");

    /* a row that is NaN has such an error, and no other row has */
    ref_spec s = spec16(8, 2, 300, 64);
    s.batch = 2;
    problem p(s);
    p.a.std_error = p.std_error;
    ref_set(&p.a.k, 1, 70, 1, 5, (double)test_nan());
    for (santa_method m : METHODS) {
        result r;
        if (!run_on_gpu(p, options(m, 32), &r)) return;
        int64_t wrong = 0;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t h = 0; h < s.heads; h++)
                wrong += test_is_nan(r.std_error[(size_t)(b * s.heads + h)]) != (b == 1 && h >= 4);
        CHECK_MSG(wrong == 0, "%s: %lld errors", santa_method_name(m), (long long)wrong);
    }

    /* so has one whose out is NaN because of V, though no draw was off; column 70 is not the
       first */
    s.head_dim_v = 80;
    problem spoilt(s);
    spoilt.a.std_error = spoilt.std_error;
    for (int64_t i = 0; i < 300; i++) ref_set(&spoilt.a.v, 1, i, 1, 70, (double)test_nan());
    for (santa_method m : {SANTA_DENSE, SANTA_IID, SANTA_PROP, SANTA_PPS}) {
        santa_options o = options(m, m == SANTA_DENSE ? 0 : m == SANTA_IID ? 1 : 32);
        if (m == SANTA_PROP) o.dense_below = 1000;
        if (m == SANTA_PPS) o.num_samples = 100000;          /* all keys are sure */
        result r;
        if (!run_on_gpu(spoilt, o, &r) || !ref_run(&spoilt, &o, nullptr)) return;
        for (int64_t x = 0; x < s.batch * s.heads; x++) {
            const bool bad = x >= s.heads + 4;
            CHECK_MSG(test_is_nan(r.std_error[(size_t)x]) == bad && test_is_nan(spoilt.std_error[x]) == bad,
                      "%s, head %lld: %g, the CPU's %g", santa_method_name(m), (long long)x,
                      (double)r.std_error[(size_t)x], (double)spoilt.std_error[x]);
        }
    }
}

/* Several combs: the CPU's rows and errors. */
static void combs(void) {
    NEED_DEVICE();
    for (santa_method m : {SANTA_SYS, SANTA_PROP, SANTA_FLASH})
        for (int64_t n : {2, 3, 4, 16}) {
            totals t = {0, 0, 0};
            for (int64_t each : {1, 4, 40}) {
                if (test_quick && n == 16 && each == 40) break;
                ref_spec s = spec16(8, 2, test_quick ? 300 : 2000, 64);
                s.batch  = 3;
                s.ragged = 1;
                problem p(s);
                santa_options o = options(m, n * each, STASHES[each % 3]);
                o.num_combs = n;
                if (m == SANTA_FLASH) o.tile_size = each == 4 ? 128 : 64;
                compare(p, o, &t);
                compare_errors(p, o, &t, "combs");
                p.a.std_error = NULL;
            }
            check_totals(t, "combs");
        }
    if (test_quick) return;
    totals t = {0, 0, 0};
    problem p(spec16(2, 1, 147457, 8, SANTA_F32));    /* more tiles than shared memory holds */
    for (int64_t samples : {96, 9000}) {
        santa_options o = options(SANTA_FLASH, samples);
        o.num_combs = 3;
        o.tile_size = 64;
        compare(p, o, &t);
    }
    check_totals(t, "combs of many tiles");
}

static void flash_tiles(void) {
    NEED_DEVICE();
    ref_spec s = spec16(8, 2, test_quick ? 400 : 3000, 64);
    s.batch  = 4;
    s.ragged = 1;
    s.window = s.len - 100;
    problem p(s);
    totals t = {0, 0, 0};
    for (int64_t tile : {8, 16, 32})
        for (int64_t samples : {3, 100, 1000})
            for (santa_stash stash : STASHES) {
                santa_options o = options(SANTA_FLASH, samples, stash);
                o.tile_size = tile;
                compare(p, o, &t);
            }
    for (int64_t tile : {64, 128, 192, 256, 1024, 4096})
        for (int64_t samples : {1, 3, 16, 100, 1000}) {          /* fewer draws than tiles, and more */
            santa_options o = options(SANTA_FLASH, samples);
            o.tile_size = tile;
            compare(p, o, &t);
        }
    check_totals(t, "flash_tiles");
}

/* The only key of a row, whose random 16 bits are the largest that there are: it keeps its mass
   of 255. What lies behind it is NaN. */
static void largest_dither(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3}) {
        ref_spec s = spec16(1, 1, 64, 64, type);
        if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
        s.ragged = 1;
        s.first_sequence = 2;
        problem p(s);
        totals t = {0, 0, 0};
        for (santa_method m : METHODS) {
            santa_options o = options(m, 4, SANTA_STASH_U8);
            if (m == SANTA_FLASH) o.tile_size = 8;
            while ((santa_random(o.seed, o.offset, 0, 3, 0, 0, 0) & 0xffffu) != 0xffffu) o.seed++;
            compare(p, o, &t);
        }
        CHECK_INT(t.off, 0);
    }
}

static void long_context(void) {
    NEED_DEVICE();
    if (test_quick) SKIP("--quick");
    compare_all(spec16(4, 1, 200000, 64), 256, "long_context");
    ref_spec s = spec16(2, 1, 147457, 8, SANTA_F32);              /* more tiles than shared memory holds */
    compare_all(s, 64, "long_context f32");

    /* the same with several shares of draws, and flash with fewer draws than tiles and with
       more */
    problem p(s);
    totals t = {0, 0, 0};
    for (santa_method m : {SANTA_IID, SANTA_STRAT, SANTA_PROP}) compare(p, options(m, 600), &t);
    static const int64_t flash[][2] = {{100, 64}, {5000, 64}, {1000, 1024}};
    for (const int64_t *x : flash) {
        santa_options o = options(SANTA_FLASH, x[0]);
        o.tile_size = x[1];
        compare(p, o, &t);
    }
    check_totals(t, "long_context, shares");
}

/* --------------------------------------------------------------------------- every kernel */

static void saap_kernels(void);
static void steps_edges(void);
static void steps_errors(void);
static bool check_ranges(const santa_attention &a, santa_options o, test_rng *r, const char *what);
static void steps_chain(const ref_spec &s, totals *t);

#include "test_ranks.h"

/* All that the choice of a kernel depends on, each problem against the CPU: every instance that
   a launch was compiled for must have run. */
static void every_kernel(void) {
    NEED_DEVICE();
    int count = 0;
    for (launched *k = all_launched; k; k = k->next) k->count = 0;
    totals t = {0, 0, 0};
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {64, 128, 256, 320})
            for (int64_t dv : {64, 256})
                for (int64_t group : {4, 5})
                    for (int64_t page : {0, 16})
                        for (float soft_cap : {0.0f, 20.0f}) {
                            ref_spec s = spec16(group, 1, test_quick ? 70 : 300, d, type);
                            if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
                            s.head_dim_v = dv;
                            s.page_size  = page;
                            s.soft_cap   = soft_cap;
                            problem p(s);
                            for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_FLASH, SANTA_PPS}) {
                                /* combinations that lead to no other kernel */
                                const bool again = (soft_cap > 0.0f && page)
                                                   || (m != SANTA_DENSE && group == 5)
                                                   || (m == SANTA_FLASH
                                                       && (d != 64 || page || soft_cap > 0.0f));
                                if (!test_quick || !again) compare(p, options(m, 64), &t);
                            }
                        }
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3})
        for (int64_t page : {0, 16})
            for (int64_t d : {128, 256}) {
                ref_spec s = spec16(9, 1, 300, d, type);
                if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
                s.page_size = page;
                problem p(s);
                compare(p, options(SANTA_DENSE, 0), &t);
                if (d == 128) compare(p, options(SANTA_PROP, 64), &t);
            }
    for (int64_t d : {64, 128}) {                    /* rows that share a pass */
        ref_spec s = spec16(8, 1, 300, d);
        s.q_len = 2;
        problem p(s);
        compare(p, options(SANTA_DENSE, 0), &t);
        compare(p, options(SANTA_PROP, 64), &t);
    }
    for (int64_t batch : {1, 60}) {                  /* splits joined by k_dense, and by another kernel */
        ref_spec s = spec16(4, 1, batch > 1 ? 300 : 100, 128);
        s.batch = batch;
        problem p(s);
        compare(p, options(SANTA_DENSE, 0), &t);
    }
    for (santa_dtype type : {SANTA_BF16, SANTA_Q8_0, SANTA_E5M2}) {
        ref_spec s = spec16(4, 1, 300, 128, type);
        s.q_type = SANTA_F32;
        problem p(s);
        compare(p, options(SANTA_DENSE, 0), &t);
        if (type != SANTA_BF16) compare(p, options(SANTA_PROP, 64), &t);
    }
    check_totals(t, "every_kernel");
    result r;
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {64, 256}) {
            ref_spec s = spec16(4, 1, 300, d, type);
            if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
            problem p(s);
            p.a.std_error = p.std_error;
            if (!run_on_gpu(p, options(SANTA_PROP, 64), &r)) return;
            test_rng rng = test_rng_make(76);
            key_lists x = lists_build(&p, d == 64 ? 100 : 5000, 0, 0, &rng);   /* few splits, many */
            const bool good = run_on_gpu(p, options(SANTA_DENSE, 0), &r);
            lists_free(&x);
            if (!good) return;
        }
    for (santa_method m : {SANTA_PPS, SANTA_DENSE}) {               /* errors of pps; first tokens */
        ref_spec s = spec16(4, 1, 300, 64);
        s.window = m == SANTA_PPS ? 0 : 100;
        problem p(s);
        if (s.window) p.a.first_tokens = 4;
        else p.a.std_error = p.std_error;
        if (!run_on_gpu(p, options(m, 64), &r)) return;
        if (s.window && !run_on_gpu(p, options(SANTA_PROP, 64), &r)) return;
    }
    problem selected(spec16(4, 1, 300, 64));
    if (!run_on_gpu(selected, options(SANTA_TOP_K, 9), &r)) return;
    for (santa_guarantee guarantee : {SANTA_GUARANTEE_DENOMINATOR, SANTA_GUARANTEE_FULL}) {
        problem p(spec16(4, 1, 300, 64));
        santa_options o = options(SANTA_VATTENTION, 0);
        o.vattention.guarantee = guarantee;
        if (!run_on_gpu(p, o, &r)) return;
    }
    for (int64_t d : {64, 65, 128, 129, 160}) {       /* an odd one: of several rows */
        ref_spec s = spec16(4, 1, 300, d / 2 * 2);
        s.q_len = d % 2 ? 3 : 1;
        if (d == 65) s.page_size = 16;               /* blocks of fewer keys than a warpgroup has */
        problem p(s);
        santa_options o = options(SANTA_PROP, 64, SANTA_STASH_U8);
        o.scores = SANTA_SCORES_PROXY;
        std::vector<char> copy(santa_proxy_size(&p.a), 1);
        p.a.proxy = copy.data();
        on_gpu g(p.a, o);
        CHECK_STATUS(santa_proxy_encode(&g.a, 0, 300, NULL), SANTA_OK);
        CHECK(g.run());
    }
    for (santa_dtype type : {SANTA_F32, SANTA_BF16}) {
        static const int64_t cuts[] = {0, 128, 300};
        problem p(spec16(4, 1, 300, 64, type));
        result r;
        santa_stats sum;
        for (santa_method m : {SANTA_PROP, SANTA_FLASH})
            CHECK_STATUS(gpu_ranks(p, options(m, 64), cuts, 2, &r, &sum), SANTA_OK);
        for (santa_method m : {SANTA_TOP_K, SANTA_TOP_P})
            CHECK_STATUS(gpu_ranks(p, options(m, 9), cuts, 2, &r, &sum), SANTA_OK);
        santa_options o = options(SANTA_PROP, 64);
        o.scores = SANTA_SCORES_PROXY;
        CHECK_STATUS(gpu_ranks(p, o, cuts, 2, &r, &sum), SANTA_OK);
        o = options(SANTA_VATTENTION, 0);
        o.vattention = few_tokens();
        CHECK_STATUS(gpu_ranks(p, o, cuts, 2, &r, &sum), SANTA_OK);
    }
    saap_kernels();
    steps_edges();
    steps_errors();
    totals steps = {0, 0, 0};
    steps_chain(spec16(4, 1, 100, 64), &steps);
    /* prefill: those for sm_90a are there only where they were compiled for it, and others take
       their place */
    for (santa_dtype type : {SANTA_F16, SANTA_BF16})
        for (int64_t d : {128, 192}) {
            ref_spec s = spec16(4, 1, 100, d, type);
            s.q_len = 40;
            s.causal = 1;
            problem p(s);
            block audit(4 * sizeof(santa_sample_audit)), mask(4096), mass(4 * 40 * 4);
            santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
            o.sample_attention.audit = (santa_sample_audit *)audit.data();
            o.sample_attention.mask_out = (uint8_t *)mask.data();
            o.sample_attention.row_mass = (float *)mass.data();
            on_gpu g(p.a, o);
            CHECK(g.run());
        }
    {
        ref_spec s = spec16(4, 1, 100, 64);         /* an f32 q, which tiles take as a copy */
        s.q_type = SANTA_F32;
        s.q_len = 40;
        problem p(s);
        on_gpu g(p.a, options(SANTA_DENSE, 0));
        CHECK(g.run());
    }
    {
        ref_spec s = spec16(20, 1, 100, 320);       /* V in K's rows: for sm_90a a kernel of its own */
        s.head_dim_v = 264;
        problem p(s);
        p.a.v = p.a.k;
        p.a.v.shape[3] = s.head_dim_v;
        on_gpu g(p.a, options(SANTA_DENSE, 0));
        CHECK(g.run());
    }
    for (const launched *k = all_launched; k; k = k->next, count++) {
        cudaFuncAttributes compiled = {};
        if (k->name.compare(0, 16, "k_prefill_groups") == 0) continue;
        if (k->name.find("_groups") != std::string::npos
            && (cudaFuncGetAttributes(&compiled, k->kernel) != cudaSuccess || compiled.numRegs <= 64))
            continue;                               /* empty */
        CHECK_MSG(k->count > 0, "%s was not launched", k->name.c_str());
    }
    printf("        %d kernels\n", count);
    CHECK_MSG(count > 20, "no list of kernels: santa_cuda.cu wants -include test/cuda/launched.h");
}

/* ------------------------------------------------------------------------ random problems */

static int64_t pick(test_rng *r, std::initializer_list<int64_t> list) {
    return list.begin()[test_below(r, (int64_t)list.size())];
}

/* Half of the problems suit the tuned kernels, the others may be anything. */
static ref_spec random_spec(test_rng *r, uint64_t stream) {
    const bool suits = test_below(r, 2) != 0;
    const int64_t kv_heads = pick(r, {1, 1, 2, 3, 4}), group = 1 + test_below(r, 16);
    int64_t dim[2];
    for (int64_t &x : dim) {
        const int64_t step = suits ? pick(r, {8, 16, 64}) : pick(r, {1, 8, 16, 64}),
                      most = suits ? 256 : 320;
        x = step * (1 + test_below(r, most / step));
    }
    ref_spec s = ref_spec_make(kv_heads * group, kv_heads,
                               1 + test_below(r, (int64_t)1 << (1 + test_below(r, 12))), dim[0]);
    if (test_below(r, 2)) s.head_dim_v = dim[1];
    s.stream = stream;
    s.batch  = pick(r, {1, 1, 2, 3, 5});
    s.q_len  = pick(r, {1, 1, 1, 2, 4});
    s.page_size = test_below(r, 2) ? pick(r, {1, 8, 12, 16, 64, 96, 256}) : 0;
    s.layout    = (ref_layout)test_below(r, suits ? REF_PADDED : REF_LAYOUTS);
    s.first_sequence = test_below(r, 6);
    s.ragged = (int)test_below(r, 2);
    s.causal = (int)test_below(r, 2);
    if (test_below(r, 3) == 0) s.window = 1 + test_below(r, s.len + 20);
    s.sinks = test_below(r, 4) == 0;
    s.alibi = !suits && test_below(r, 4) == 0;
    if (!suits && test_below(r, 4) == 0) s.soft_cap = 5.0f;
    if (test_below(r, 6) == 0) s.sm_scale = 0.3f / (float)sqrt((double)s.head_dim);
    s.gain = 0.5 + 2.0 * test_uniform(r);
    s.q_type = s.k_type = s.v_type = (santa_dtype)(suits ? SANTA_F16 + test_below(r, 3) : test_below(r, 4));
    if (s.k_type == SANTA_E4M3) s.q_type = test_below(r, 2) ? SANTA_F16 : SANTA_BF16;
    if (!suits && test_below(r, 2) == 0) {
        s.q_type = (santa_dtype)test_below(r, 3);
        s.k_type = (santa_dtype)test_below(r, 4);
        s.v_type = (santa_dtype)test_below(r, 4);
    }
    s.out_type = test_below(r, 2) ? SANTA_F32 : (santa_dtype)test_below(r, 3);
    const bool quants = s.layout < REF_PADDED && test_below(r, 3) == 0;
    if (quants && s.head_dim % 32 == 0 && test_below(r, 3))
        s.k_type = (santa_dtype)pick(r, {SANTA_Q8_0, SANTA_Q4_0, SANTA_E5M2});
    if (quants && s.head_dim_v % 32 == 0 && test_below(r, 3))
        s.v_type = (santa_dtype)pick(r, {SANTA_Q8_0, SANTA_Q4_0, SANTA_E5M2});
    const int64_t most = test_quick ? 300000 : 8000000;    /* multiplications in float64 */
    const int64_t per_key = s.batch * s.q_len * s.heads * (s.head_dim + s.head_dim_v);
    s.len = ref_max(ref_min(s.len, most / per_key), 1);
    if (stream % 4 == 3) {                                  /* a fourth has a scale for each row */
        s.row_scales = 1;
        s.scale_type = (santa_dtype)(stream / 4 % 3);
    }
    return s;
}

static void print_problem(const ref_spec &s, const santa_options &o, int number) {
    printf("    problem %d of seed %llu: batch %lld, q_len %lld, heads %lld/%lld, len %lld, head_dim "
           "%lld/%lld, "
           "page_size %lld, layout %d, first_sequence %lld, ragged %d, causal %d, window %lld, sinks %d, "
           "alibi %d, soft_cap %g, sm_scale %g, gain %g, types %d %d %d %d, scales %d of type %d, stream "
           "%llu; %s, num_samples "
           "%lld, "
           "tile_size %lld, stash %d\n",
           number, (unsigned long long)test_seed, (long long)s.batch, (long long)s.q_len,
           (long long)s.heads, (long long)s.kv_heads, (long long)s.len, (long long)s.head_dim,
           (long long)s.head_dim_v, (long long)s.page_size, (int)s.layout, (long long)s.first_sequence,
           s.ragged, s.causal, (long long)s.window, s.sinks, s.alibi, (double)s.soft_cap,
           (double)s.sm_scale, s.gain, (int)s.q_type, (int)s.k_type, (int)s.v_type, (int)s.out_type,
           s.row_scales, (int)s.scale_type, (unsigned long long)s.stream, santa_method_name(o.method),
           (long long)o.num_samples,
           (long long)o.tile_size, (int)o.stash);
}

/* Dense on the GPU against float64. q of f32 with K of 16 or 8 bits is split into two numbers
   of few bits. */
static bool dense_is_exact(const problem &p, double *worst) {
    const ref_spec &s = p.spec;
    const bool   mixed = s.q_type != s.k_type, floats = s.q_type == SANTA_F32 && s.k_type == SANTA_F32;
    const double rounding = ref_epsilon(s.out_type),
                 scores = floats ? 2e-6 : mixed ? 5e-5 : 5e-6, v_max = largest_row_of_v(p);
    std::vector<double> want((size_t)s.head_dim_v);
    result r;
    if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return false;
    bool good = true;
    for (int64_t b = 0; b < s.batch && good; b++)
        for (int64_t i = 0; i < s.q_len && good; i++)
            for (int64_t h = 0; h < s.heads && good; h++) {
                const double lse = ref_dense(&p, b, i, h, want.data(), NULL);
                double difference = 0.0, norm = 0.0;
                for (int64_t c = 0; c < s.head_dim_v; c++) {
                    const double x = want[(size_t)c], d = ref_get(&r.out, b, i, h, c) - x;
                    difference += d * d;
                    norm += x * x;
                }
                difference = sqrt(difference);
                good &= CHECK_MSG(difference <= rounding * sqrt(norm) + scores * v_max,
                                  "row %lld, %lld, %lld is %g off, its length %g, V's %g", (long long)b,
                                  (long long)i, (long long)h, difference, sqrt(norm), v_max)
                        != 0;
                const double got = (double)r.lse[(size_t)((b * s.q_len + i) * s.heads + h)];
                good &= CHECK_MSG(got == lse || fabs(got - lse) <= 10.0 * scores + 1e-6 * fabs(lse),
                                  "lse of row %lld, %lld, %lld: %g, want %g", (long long)b, (long long)i,
                                  (long long)h, got, lse)
                        != 0;
                if (v_max > 0.0)
                    *worst = std::max(*worst, (difference - rounding * sqrt(norm)) / (scores * v_max));
            }
    return good;
}

static void random_problems(void) {
    NEED_DEVICE();
    const int problems = test_quick ? 20 : 500;
    totals same = {0, 0, 0}, mixed = {0, 0, 0};
    double worst = 0.0;
    for (int i = 0; i < problems; i++) {
        test_rng rng = test_rng_make(1000 + (uint64_t)i);
        const ref_spec s = random_spec(&rng, 1000 + (uint64_t)i);
        problem p(s);
        santa_options o = options(SANTA_DENSE, 0);
        if (!dense_is_exact(p, &worst)) {
            print_problem(s, o, i);
            if (cudaGetLastError() != cudaSuccess) return;       /* nothing works from here on */
            continue;
        }
        for (int k = 0; k < 2; k++) {
            o = options((santa_method)(SANTA_IID + test_below(&rng, 5)),
                        pick(&rng, {1, 3, 16, 64, 128, 256, 300, 700}), STASHES[test_below(&rng, 3)]);
            if (o.method == SANTA_FLASH) o.tile_size = 8 * pick(&rng, {1, 2, 4, 8, 8, 16, 24, 128, 800});
            if (test_below(&rng, 4) == 0)
                o.dense_below = pick(&rng, {(int64_t)SANTA_AUTO, s.len / 2 + 1, s.len + 1});
            if (!compare(p, o, s.q_type == s.k_type ? &same : &mixed)) print_problem(s, o, i);
            test_rng other = test_rng_make(5000 + (uint64_t)i);
            if (k == i % 3 && !check_ranges(p.a, o, &other, "ranges")) print_problem(s, o, i);
        }
    }
    printf("        seed %llu: dense at most %.3f of its bound off; moved: %lld of %lld heads, %lld draws; "
           "with q and k of two types %lld of %lld, %lld\n",
           (unsigned long long)test_seed, worst, (long long)same.off, (long long)same.rows,
           (long long)same.draws, (long long)mixed.off, (long long)mixed.rows, (long long)mixed.draws);
    check_totals(same, "random_problems");
    check_totals(mixed, "random_problems, q and k of two types");
}

/* Methods with what may go with them, in one call what else has a case of its own, against the
   CPU: windows with first tokens, left padding, a part of a longer context, error bars, a NaN
   in q. Few draws and selected keys may move, and with them a whole group of pps or
   vattention. */
static void random_methods(void) {
    NEED_DEVICE();
    const santa_method methods[] = {SANTA_PPS, SANTA_TOP_K, SANTA_TOP_P, SANTA_VATTENTION,
                                    SANTA_DENSE, SANTA_STRAT, SANTA_SYS, SANTA_FLASH};
    const int problems = test_quick ? 60 : 500;
    int64_t compared = 0, rows = 0, off = 0, off_lse = 0, bars = 0, off_bars = 0, nans = 0;
    for (int i = 0; i < problems; i++) {
        test_rng  rng = test_rng_make(9000 + (uint64_t)i);
        ref_spec  s = random_spec(&rng, 9000 + (uint64_t)i);
        if (test_below(&rng, 2)) s.out_type = SANTA_F32;
        problem   p(s);
        santa_options o = options(methods[i % 8], pick(&rng, {1, 3, 16, 64, 128, 300}));
        std::vector<int32_t> start, context;
        const auto len = [&](int64_t b) { return p.a.seq_lens ? (int64_t)p.a.seq_lens[b] : s.len; };
        if (test_below(&rng, 3) == 0) {
            for (int64_t b = 0; b < s.batch; b++) start.push_back((int32_t)test_below(&rng, len(b) + 1));
            p.a.kv_start = start.data();
        } else if (test_below(&rng, 3) == 0) {
            p.a.first_key = test_below(&rng, 500);
            for (int64_t b = 0; b < s.batch; b++)
                context.push_back((int32_t)(p.a.first_key + len(b) + test_below(&rng, 40)));
            p.a.context_lens = context.data();
        }
        if (s.window && test_below(&rng, 2)) p.a.first_tokens = 1 + test_below(&rng, 60);
        if (o.method == SANTA_SYS && test_below(&rng, 2)) o.num_combs = 2;
        if (o.method == SANTA_VATTENTION) {
            o.vattention.sink_tokens  = pick(&rng, {0, SANTA_NONE, 4});
            o.vattention.local_tokens = pick(&rng, {0, SANTA_NONE, 9});
            o.vattention.heavy_tokens = pick(&rng, {0, SANTA_NONE, 20});
            o.vattention.guarantee    = (santa_guarantee)test_below(&rng, 2);
        }
        const bool has_bars = test_below(&rng, 2) && !(santa_method_traits(o.method) & SANTA_BIASED);
        if (has_bars) p.a.std_error = p.std_error;
        const bool has_nan = o.method != SANTA_VATTENTION && test_below(&rng, 5) == 0;
        if (has_nan)
            ref_set(&p.a.q, test_below(&rng, s.batch), test_below(&rng, s.q_len), test_below(&rng, s.heads),
                    test_below(&rng, s.head_dim), (double)test_nan());
        if (santa_check(&p.a, &o) != SANTA_OK) continue;
        on_gpu g(p.a, o);
        if (santa_check(&g.a, &g.o) != SANTA_OK) continue;
        santa_stats cpu;
        if (!g.run() || !ref_run(&p, &o, &cpu)) { print_problem(s, o, i); return; }
        const result r = g.get();
        const double eps = s.out_type == SANTA_F32 ? 0.0 : 2.0 * ref_epsilon(s.out_type),
                     v_max = largest_row_of_v(p);
        int64_t other_nans = 0;
        compared++;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t q = 0; q < s.q_len; q++)
                for (int64_t h = 0; h < s.heads; h++) {
                    const size_t row = (size_t)((b * s.q_len + q) * s.heads + h);
                    const float  x = p.lse[row], y = r.lse[row];
                    double       norm;
                    const double difference = apart(p, r, b, q, h, &norm);
                    int64_t      of_cpu = x != x;                     /* and lse */
                    for (int64_t c = 0; c < s.head_dim_v; c++) {
                        const double z = ref_get(&p.a.out, b, q, h, c);
                        of_cpu += z != z;
                    }
                    rows++;
                    nans += of_cpu > 0;
                    other_nans += of_cpu != r.nans(b, q, h);
                    if (of_cpu) continue;
                    off     += !(sqrt(difference) <= (1e-3 + eps) * sqrt(norm) + 1e-5 * v_max);
                    off_lse += !(x == y || fabs((double)x - (double)y) <= 1e-3);
                    if (!has_bars || s.out_type != SANTA_F32) continue;
                    const double bar = (double)p.std_error[row], bar_here = (double)r.std_error[row];
                    bars++;
                    off_bars += !(bar == bar_here || fabs(bar - bar_here) <= 0.02 * bar + 2e-3 * v_max);
                }
        if (!CHECK_MSG(other_nans == 0, "%lld rows have other NaNs than on the CPU", (long long)other_nans)
            || !CHECK_MSG(r.stats.rows == cpu.rows && r.stats.keys == cpu.keys
                              && r.stats.k_rows_read == cpu.k_rows_read
                              && r.stats.dense_rows == cpu.dense_rows,
                          "stats of rows, keys or K differ"))
            print_problem(s, o, i);
    }
    printf("        seed %llu: %lld problems, %lld rows, %lld of them NaN: %lld off, %lld in lse; %lld of "
           "%lld error bars\n",
           (unsigned long long)test_seed, (long long)compared, (long long)rows, (long long)nans,
           (long long)off, (long long)off_lse, (long long)off_bars, (long long)bars);
    CHECK(compared * 2 > problems && nans > 0 && bars * 20 > rows);
    CHECK(off * 200 <= rows && off_lse * 1000 <= rows && off_bars * 100 <= bars);
}

/* ------------------------------------------------------------------------------ a large K */

/* One sequence of 2^24 + 12345 keys, 128 features of f16: K's elements and bytes are beyond
   2^31 and 2^32, and its keys beyond 2^24. Row j is row mix(j) % 4096 of a table, but for
   feature 0, so that the host has all scores from 4096 products. The keys past 2^24 take about
   half of the mass. V: whether the key is past 2^24, 1, the key's place, and five of noise. All
   numbers are exact in f16. */
namespace large {
enum { DIM = 128, DIM_V = 8, ROWS = 4096, HEADS = 2, PAGE = 4096 };
const int64_t EDGE = (int64_t)1 << 24, KEYS = EDGE + 12345, PADDED = (KEYS + PAGE - 1) / PAGE * PAGE;

__host__ __device__ inline uint64_t mix(uint64_t x) {
    x = (x + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}
/* In [-1, 1), exact in f16. */
__host__ __device__ inline float number(uint64_t x) {
    return (float)((int)(mix(x) >> 20 & 1023) - 512) / 512.0f;
}
__host__ __device__ inline float feature(int64_t j, int c) {
    if (c > 0) return number(1000003u + (mix((uint64_t)j) % ROWS) * DIM + (uint64_t)c);
    const float fraction = (float)(mix((uint64_t)j + 77u) >> 30 & 255) / 256.0f;
    return j >= EDGE ? 7.0f + fraction : fraction;
}
__host__ __device__ inline float value(int64_t j, int c) {
    return c == 0   ? (j >= EDGE ? 1.0f : 0.0f)
           : c == 1 ? 1.0f
           : c == 2 ? (float)(j >> 14) / 1024.0f
                    : number((uint64_t)(j * 8 + c));
}
inline float query(int h, int c) { return c > 0 ? number(555u + (uint64_t)(h * DIM + c)) : 8.0f; }

__global__ void fill(__half *k, __half *v) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < PADDED * DIM; i += step)
        k[i] = __float2half_rn(i < KEYS * DIM ? feature(i / DIM, (int)(i % DIM))
                                              : __int_as_float(0x7fc00000));
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < PADDED * DIM_V; i += step)
        v[i] = __float2half_rn(i < KEYS * DIM_V ? value(i / DIM_V, (int)(i % DIM_V))
                                                : __int_as_float(0x7fc00000));
}

/* Exact attention of a head, and prop's estimate from the draws of its comb. */
struct expected { double dense[DIM_V], prop[DIM_V], lse; };
static expected reference(int h, float soft_cap, const santa_options &o) {
    std::vector<double> table((size_t)ROWS), mass((size_t)KEYS);
    for (int t = 0; t < ROWS; t++)
        for (int c = 1; c < DIM; c++)
            table[(size_t)t] += (double)query(h, c)
                                * (double)number(1000003u + (uint64_t)t * DIM + (uint64_t)c);
    expected e = {};
    double total = 0.0, before = 0.0;
    const auto add = [](double *to, int64_t j, double w) {
        for (int c = 0; c < DIM_V; c++) to[c] += w * (double)value(j, c);
    };
    for (int64_t j = 0; j < KEYS; j++) {
        double s = 0.125
                   * (table[(size_t)(mix((uint64_t)j) % ROWS)]
                      + (double)query(h, 0) * (double)feature(j, 0));
        if (soft_cap > 0.0f) s = (double)soft_cap * tanh(s / (double)soft_cap);
        total += mass[(size_t)j] = exp(s - 8.0);
        add(e.dense, j, mass[(size_t)j]);
    }
    for (double &x : e.dense) x /= total;
    e.lse = 8.0 + log(total);
    const double u = ref_random(&o, ref_stream(0, h, 0), 0), samples = (double)o.num_samples;
    int64_t m = 0;
    for (int64_t j = 0; j < KEYS; before += mass[(size_t)j++])
        for (; m < o.num_samples && ((double)m + u) / samples * total < before + mass[(size_t)j]; m++)
            add(e.prop, j, 1.0 / samples);
    return e;
}
}  /* namespace large */

static santa_tensor large_tensor(const block &x, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
                                 santa_dtype type) {
    santa_tensor t = {x.data(), {n0, n1, n2, n3}, {n1 * n2 * n3, n2 * n3, n3, 1}, type, SANTA_CUDA};
    return t;
}

static void large_k(void) {
    using namespace large;
    NEED_DEVICE();
    if (test_quick) SKIP("--quick");
    const size_t k_bytes = (size_t)PADDED * DIM * 2, v_bytes = (size_t)PADDED * DIM_V * 2;
    size_t free_bytes = 0, all_bytes = 0;
    if (!CUDA(cudaMemGetInfo(&free_bytes, &all_bytes))) return;
    if (free_bytes < k_bytes + v_bytes + ((size_t)1 << 30)) SKIP("less than 6 GB free on the card");
    block k(k_bytes), v(v_bytes), q(HEADS * DIM * 2), out(HEADS * DIM_V * 4), lse(HEADS * 4), lens(4),
        pages(PADDED / PAGE * 4);
    cudaLaunchConfig_t config = {};
    config.gridDim  = dim3(4096);
    config.blockDim = dim3(256);
    if (!CUDA(cudaLaunchKernelEx(&config, fill, (__half *)k.data(), (__half *)v.data()))
        || !CUDA(cudaDeviceSynchronize()))
        return;
    std::vector<uint16_t> q_host((size_t)(HEADS * DIM));
    for (int i = 0; i < HEADS * DIM; i++)
        ref_store(SANTA_F16, q_host.data(), i, (double)query(i / DIM, i % DIM));
    q.put(q_host.data(), 2 * q_host.size());
    const int32_t keys = (int32_t)KEYS;
    lens.put(&keys, 4);
    std::vector<int32_t> table((size_t)(PADDED / PAGE));
    for (size_t i = 0; i < table.size(); i++) table[i] = (int32_t)i;
    pages.put(table.data(), 4 * table.size());

    for (float soft_cap : {0.0f, 1000.0f}) {         /* the tuned kernels, the plain ones */
        santa_options o = options(SANTA_PROP, 1000);
        o.offset = 3;
        expected want[HEADS];
        for (int h = 0; h < HEADS; h++) want[h] = reference(h, soft_cap, o);
        for (int64_t page : {0, (int)PAGE})
            for (santa_method m : {SANTA_DENSE, SANTA_PROP}) {
                santa_attention a;
                memset(&a, 0, sizeof a);
                const int64_t n0 = page ? PADDED / PAGE : 1, n1 = page ? page : PADDED;
                a.q   = large_tensor(q, 1, 1, HEADS, DIM, SANTA_F16);
                a.k   = large_tensor(k, n0, n1, 1, DIM, SANTA_F16);
                a.v   = large_tensor(v, n0, n1, 1, DIM_V, SANTA_F16);
                a.out = large_tensor(out, 1, 1, HEADS, DIM_V, SANTA_F32);
                a.lse      = (float *)lse.data();
                a.seq_lens = (const int32_t *)lens.data();
                a.sm_scale = 0.125f;
                a.soft_cap = soft_cap;
                a.block_table = page ? (const int32_t *)pages.data() : NULL;
                a.max_pages   = page ? n0 : 0;
                o.method      = m;
                o.num_samples = m == SANTA_PROP ? 1000 : 0;
                const size_t bytes = santa_workspace_size(&a, &o);
                block workspace(bytes, 0xff);
                if (!CHECK_STATUS(santa_decode(&a, &o, workspace.data(), bytes, NULL), SANTA_OK)) return;
                if (!CUDA(cudaDeviceSynchronize())) return;
                CHECK(workspace.intact() && out.intact() && lse.intact());
                float got[HEADS * DIM_V], got_lse[HEADS];
                out.get(got, sizeof got);
                lse.get(got_lse, sizeof got_lse);
                for (int h = 0; h < HEADS; h++) {
                    CHECK_NEAR(got_lse[h], want[h].lse, 1e-4, 0.0);
                    for (int c = 0; c < DIM_V; c++) {
                        /* keys are so light that rounding moves many a draw to a neighbour:
                           next to nothing in the first three columns, but for one at the edge;
                           noise in the rest */
                        const bool   dense = m == SANTA_DENSE, noise = c >= 3;
                        const double x = (double)got[h * DIM_V + c],
                                     y = dense || noise ? want[h].dense[c] : want[h].prop[c];
                        const double most = dense    ? 2e-4
                                            : noise  ? 6.0 * 0.58 / sqrt(1000.0)
                                            : c == 0 ? 1.001e-3
                                                     : 1e-4;
                        CHECK_MSG(fabs(x - y) <= most,
                                  "%s, page %lld, soft cap %g, head %d, column %d: %g, want %g",
                                  santa_method_name(m), (long long)page, (double)soft_cap, h, c, x, y);
                    }
                }
            }
    }
}

/* ---------------------------------------------------------------------------- moved draws */

/* V[j] = (j, j^2 mod 1021, 1, 0): sums of draws in whole numbers. Counts how many heads have
   other rows than the CPU's, and with one draw a head, that both rows are neighbours: next to
   no mass lies between. */
static void moved_draws(void) {
    NEED_DEVICE();
    ref_spec s = spec16(8, 2, 512, 64);
    s.v_type     = SANTA_F32;
    s.head_dim_v = 4;
    s.gain       = 1.5;
    problem p(s);
    for (int64_t j = 0; j < s.len; j++)
        for (int64_t kv = 0; kv < s.kv_heads; kv++) {
            double *v = p.v + (j * s.kv_heads + kv) * 4;
            v[0] = (double)j;
            v[1] = (double)(j * j % 1021);
            v[2] = 1.0;
            v[3] = 0.0;
        }
    ref_write(&p);
    std::vector<std::vector<double>> prob((size_t)s.heads, std::vector<double>((size_t)s.len));
    double exact[4];
    for (int64_t h = 0; h < s.heads; h++) ref_dense(&p, 0, 0, h, exact, prob[(size_t)h].data());
    const int64_t requests = test_quick ? 50 : 1000;
    p.replicate(requests);

    for (santa_stash stash : STASHES) {
        const double most_between = stash == SANTA_STASH_U8 ? 0.05 : 1e-4; /* u8 drops the lightest keys */
        int64_t draws = 0, moved = 0, jumps = 0, broken = 0;
        for (santa_method m : {SANTA_IID, SANTA_STRAT, SANTA_PROP, SANTA_FLASH})
            for (int64_t samples : {1, 64}) {
                santa_options o = options(m, samples, stash);
                o.tile_size = m == SANTA_FLASH ? 512 : 0;        /* one tile: weights are 1/S */
                result r;
                if (!run_on_gpu(p, o, &r) || !ref_run(&p, &o, NULL)) return;
                for (int64_t b = 0; b < requests; b++)
                    for (int64_t h = 0; h < s.heads; h++) {
                        const double S = (double)samples;
                        const int64_t x = llround(S * ref_get(&p.a.out, b, 0, h, 0)),
                                      y = llround(S * ref_get(&r.out, b, 0, h, 0));
                        const int64_t x2 = llround(S * ref_get(&p.a.out, b, 0, h, 1));
                        const int64_t y2 = llround(S * ref_get(&r.out, b, 0, h, 1));
                        broken += llround(S * ref_get(&r.out, b, 0, h, 2)) != samples
                                  || ref_get(&r.out, b, 0, h, 3) != 0.0;
                        draws  += samples;
                        if (x == y && x2 == y2) continue;
                        moved++;
                        if (samples > 1) continue;
                        const int64_t low = ref_min(x, y), high = ref_max(x, y);
                        double between = 0.0;
                        if (low < 0 || high >= s.len || low == high) { jumps++; continue; }
                        for (int64_t j = low + 1; j < high; j++) between += prob[(size_t)h][(size_t)j];
                        jumps += between > most_between || prob[(size_t)h][(size_t)y] <= 0.0;
                    }
            }
        printf("        stash %d: %lld of %lld draws moved\n", (int)stash, (long long)moved,
               (long long)draws);
        CHECK_INT(broken, 0);
        CHECK_INT(jumps, 0);
        CHECK_MSG(moved * 1000 < draws, "stash %d: %lld of %lld draws moved", (int)stash, (long long)moved,
                  (long long)draws);
    }
}

/* ----------------------------------------------------------------------------- statistics */

/* Thousands of requests on one K and V (batch stride 0), each with a seed in device memory: the
   mean of every column against the exact result, and the mean square error against the closed
   forms. */
static void unbiased(void) {
    NEED_DEVICE();
    enum { DV = 8 };
    const int64_t requests = test_quick ? 400 : 20000, samples = 16;
    ref_spec s = spec16(8, 2, 300, 64);
    s.head_dim_v = DV;
    s.v_type     = SANTA_F32;
    s.gain       = 1.5;
    problem p(s);
    std::vector<double> exact((size_t)(s.heads * DV)), prob((size_t)(s.heads * s.len)),
        v((size_t)(s.kv_heads * s.len * DV));
    for (int64_t h = 0; h < s.heads; h++)
        ref_dense(&p, 0, 0, h, &exact[(size_t)(h * DV)], &prob[(size_t)(h * s.len)]);
    for (int64_t kv = 0; kv < s.kv_heads; kv++)
        for (int64_t j = 0; j < s.len; j++)
            std::copy_n(p.v + (j * s.kv_heads + kv) * DV, (size_t)DV, &v[(size_t)((kv * s.len + j) * DV)]);
    p.replicate(requests);
    std::vector<uint64_t> seeds((size_t)requests);
    test_rng rng = test_rng_make(5);
    for (uint64_t &x : seeds) x = test_next(&rng);

    static const struct { santa_method method; santa_stash stash;
    } runs[] = {
        {SANTA_IID, SANTA_STASH_F32},  {SANTA_STRAT, SANTA_STASH_F32}, {SANTA_FLASH, SANTA_STASH_F32},
        {SANTA_FLASH, SANTA_STASH_U8}, {SANTA_PROP, SANTA_STASH_F32},  {SANTA_PROP, SANTA_STASH_F16},
        {SANTA_PROP, SANTA_STASH_U8},  {SANTA_PPS, SANTA_STASH_F32},   {SANTA_PPS, SANTA_STASH_F16},
        {SANTA_PPS, SANTA_STASH_U8},
    };
    for (const auto &x : runs) {
        santa_options o = options(x.method, samples, x.stash);
        o.tile_size = x.method == SANTA_FLASH ? 64 : 0;
        o.seeds     = seeds.data();
        result r;
        if (!run_on_gpu(p, o, &r)) return;
        double worst = 0.0, worst_z = 0.0;
        for (int64_t h = 0; h < s.heads; h++) {
            double error = 0.0, error_squares = 0.0;
            double sum[DV] = {0}, squares[DV] = {0};
            for (int64_t b = 0; b < requests; b++) {
                double e2 = 0.0;
                for (int c = 0; c < DV; c++) {
                    const double y = ref_get(&r.out, b, 0, h, c), d = y - exact[(size_t)(h * DV + c)];
                    sum[c] += y;
                    squares[c] += y * y;
                    e2 += d * d;
                }
                error += e2;
                error_squares += e2 * e2;
            }
            char name[64];
            snprintf(name, sizeof name, "%s, stash %d, head %d", santa_method_name(x.method), (int)x.stash,
                     (int)h);
            for (int c = 0; c < DV; c++) {
                const double want = exact[(size_t)(h * DV + c)];
                CHECK_MEAN_Z(name, sum[c], squares[c], requests, want, 5.5);
                worst   = std::max(worst, fabs(sum[c] / (double)requests - want));
                worst_z = std::max(worst_z, test_mean_z(sum[c], squares[c], (double)requests, want));
            }
            if (x.stash != SANTA_STASH_F32 || x.method == SANTA_FLASH || x.method == SANTA_PPS) continue;
            const double *pr = &prob[(size_t)(h * s.len)],
                         *vr = &v[(size_t)(h / (s.heads / s.kv_heads) * s.len * DV)];
            const double want = x.method == SANTA_IID ? ref_variance_iid(pr, s.len, vr, DV, samples)
                              : x.method == SANTA_STRAT ? ref_variance_strat(pr, s.len, vr, DV, samples)
                                                        : ref_variance_sys(pr, s.len, vr, DV, samples);
            CHECK_MEAN_Z("mean square error", error, error_squares, requests, want, 5.5);
        }
        printf("        %-5s stash %d: largest bias %.1e, z %.1f\n", santa_method_name(x.method),
               (int)x.stash, worst, worst_z);
    }
}

/* --------------------------------------------------------------------------------- poison */

/* NaN before the window and behind seq_lens (there by ref_build), against the same problem with
   plain values there. */
static void poison_is_not_read(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int64_t page : {0, 16}) {
            ref_spec s = spec16(8, 2, 300, 64);
            s.k_type = s.v_type = type;
            s.batch  = 4;
            s.ragged = 1;
            s.window = 100;
            s.page_size = page;
            problem clean(s), bad(s);
            for (int64_t b = 0; b < s.batch; b++) {
                const int64_t n = ref_len(&bad, b);
                for (int64_t j = 0; j < n - s.window; j++) spoil_key(&bad, b, j);
                for (int64_t j = n; !page && j < s.len; j++)
                    for (int64_t h = 0; h < s.kv_heads; h++)
                        for (int64_t c = 0; c < s.head_dim; c++) {
                            ref_set(&clean.a.k, b, j, h, c, 1.0);
                            ref_set(&clean.a.v, b, j, h, c, 1.0);
                        }
            }
            for (santa_method m : METHODS) {
                result x, y;
                if (!run_on_gpu(clean, options(m, 64), &x) || !run_on_gpu(bad, options(m, 64), &y)) return;
                int64_t nans = 0;
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t h = 0; h < s.heads; h++) nans += y.nans(b, 0, h);
                CHECK_MSG(nans == 0 && x.same(y), "%s, type %d, page %lld: %lld NaN", santa_method_name(m),
                          (int)type, (long long)page, (long long)nans);
            }
        }
}

/* A NaN in a K row that is read makes its KV head's rows NaN and no other. */
/* A sink is device memory: the host does not see what it holds. */
static void nan_in_sinks(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32})
        for (int64_t n : {40, 3000})
            for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
                if (santa_method_traits((santa_method)m) & (SANTA_ROUTES | SANTA_SPARSE)) continue;
                ref_spec s = spec16(8, 2, n, 64, type);
                s.sinks = 1;
                problem clean(s), bad(s);
                ((float *)bad.a.sinks)[3] = test_nan();
                result x, y;
                const santa_options o = options((santa_method)m, 30);
                if (!run_on_gpu(clean, o, &x) || !run_on_gpu(bad, o, &y)) return;
                CHECK_MSG(y.nans(0, 0, 3) == 65, "%s, type %d, %lld keys: a sink of NaN leaves numbers",
                          santa_method_name((santa_method)m), (int)type, (long long)n);
                for (int64_t h = 4; h < 8; h++) CHECK(y.same_row(0, 0, h, x, 0));
            }
}

static void nan_in_k_shows(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F16, SANTA_F32})
        for (int64_t j : {0, 70, 299}) {
            ref_spec s = spec16(8, 2, 300, 64, type);
            s.batch = 2;
            problem clean(s), bad(s);
            ref_set(&bad.a.k, 1, j, 1, 5, (double)test_nan());
            for (santa_method m : METHODS) {
                result x, y;
                if (!run_on_gpu(clean, options(m, 64), &x) || !run_on_gpu(bad, options(m, 64), &y)) return;
                int64_t wrong = 0;
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t h = 0; h < s.heads; h++)
                        wrong += b == 1 && h >= 4 ? y.nans(b, 0, h) != s.head_dim_v + 1
                                                  : !y.same_row(b, 0, h, x, b);
                CHECK_MSG(wrong == 0, "%s, type %d, key %lld: %lld rows are wrong", santa_method_name(m),
                          (int)type, (long long)j, (long long)wrong);
            }
        }
}

/* A bad block table entry in use makes the sequence's rows NaN; a bad seq_lens entry is
   clamped. */
/* Of heads that read rows together one has no mass, its scores are -inf: nothing, whatever V
   holds. */
static void no_mass_beside_nan(void) {
    NEED_DEVICE();
    for (int type = 0; type < 2; type++) {
        ref_spec s = spec16(4, 2, 300, 64, type ? SANTA_F32 : SANTA_BF16);
        problem p(s);
        for (int64_t h = 0; h < 4; h++)
            for (int64_t c = 0; c < 64; c++)
                ref_set(&p.a.q, 0, 0, h, c, h % 2 || c ? 0.0 : -1e20);
        for (int64_t j = 0; j < 300; j++)
            for (int64_t h = 0; h < 2; h++) {
                ref_set(&p.a.k, 0, j, h, 0, 1e20);
                ref_set(&p.a.v, 0, j, h, 5, (double)test_nan());
            }
        for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
            santa_options o = options((santa_method)m, 16);
            santa_clear_unused_options(&o);
            p.a.std_error = santa_method_traits((santa_method)m) & SANTA_BIASED ? nullptr : p.std_error;
            if (m == SANTA_SAAP || m == SANTA_SAMPLE_ATTENTION) continue;
            result r;
            if (!run_on_gpu(p, o, &r) || !ref_run(&p, &o, nullptr)) return;
            for (int64_t h = 0; h < 4; h++) {
                CHECK_MSG(r.nans(0, 0, h) == h % 2, "%s: head %lld has %lld NaNs",
                          santa_method_name(o.method), (long long)h, (long long)r.nans(0, 0, h));
                if (h % 2) continue;
                CHECK(r.lse[(size_t)h] == -INFINITY && p.lse[h] == -INFINITY);
                CHECK(ref_get(&r.out, 0, 0, h, 5) == 0.0 && ref_get(&p.a.out, 0, 0, h, 5) == 0.0);
                if (p.a.std_error) CHECK(r.std_error[(size_t)h] == 0.0f && p.std_error[h] == 0.0f);
            }
        }
    }
}

static void bad_tables(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int32_t entry :
             {-1, INT32_MIN, INT32_MAX, -2}) { /* -2 stands for the first page past the end */
            ref_spec s = spec16(8, 2, 300, 64);
            s.k_type = s.v_type = type;
            s.batch     = 3;
            s.page_size = 16;
            problem clean(s), bad(s);
            bad.block_table[1 * bad.a.max_pages + 7] = entry == -2 ? (int32_t)bad.a.k.shape[0] : entry;
            for (santa_method m : METHODS) {
                result x, y;
                if (!run_on_gpu(clean, options(m, 64), &x) || !run_on_gpu(bad, options(m, 64), &y)) return;
                int64_t wrong = !y.same_request(0, x, 0) + !y.same_request(2, x, 2);
                for (int64_t h = 0; h < s.heads; h++) wrong += y.nans(1, 0, h) != s.head_dim_v + 1;
                CHECK_MSG(wrong == 0, "%s, type %d, entry %d: %lld rows are wrong", santa_method_name(m),
                          (int)type, (int)entry, (long long)wrong);
            }
        }
    ref_spec s = spec16(8, 2, 300, 64);
    s.batch  = 3;
    s.ragged = 1;
    problem clean(s);
    problem bad(s);
    for (int64_t j = 0; j < s.len; j++)
        for (int64_t h = 0; h < s.kv_heads; h++)
            for (int64_t c = 0; c < s.head_dim; c++) { /* sequence 2 has one key of 300: fill it up */
                ref_set(&clean.a.k, 2, j, h, c, 1.0); ref_set(&clean.a.v, 2, j, h, c, 1.0);
                ref_set(&bad.a.k, 2, j, h, c, 1.0);   ref_set(&bad.a.v, 2, j, h, c, 1.0);
            }
    clean.seq_lens[2] = 300; bad.seq_lens[2] = INT32_MAX;
    clean.seq_lens[1] = 0;   bad.seq_lens[1] = INT32_MIN;
    for (santa_method m : METHODS) {
        result x, y;
        if (!run_on_gpu(clean, options(m, 64), &x) || !run_on_gpu(bad, options(m, 64), &y)) return;
        CHECK_MSG(x.same(y), "%s: bad seq_lens", santa_method_name(m));
    }
}

/* --------------------------------------------------------------------------------- graphs */

static void graphs(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32})
        for (santa_method m : METHODS) {
            ref_spec s = spec16(8, 2, 700, 64, type);
            s.batch = 2;
            problem p(s);
            const uint64_t first[2] = {1, 2}, second[2] = {3, 2};
            santa_options o = options(m, 32);
            o.offsets = first;
            on_gpu g(p.a, o);
            if (!g.run()) break;
            const result direct = g.get();
            captured graph([&](cudaStream_t stream) { return g.start(stream); });
            if (!graph.good) break;
            const auto replay = [&](const uint64_t *offsets) {
                CUDA(cudaMemcpy((void *)g.o.offsets, offsets, 16, cudaMemcpyHostToDevice));
                graph.replay(g);
                return g.get();
            };
            const result x = replay(first), y = replay(second), z = replay(first);
            const char *name = santa_method_name(m);
            CHECK_MSG(x.same(direct) && z.same(x), "%s: a replay differs from the call", name);
            CHECK_MSG(y.same(x) == (m == SANTA_DENSE), "%s: a replay with another offset", name);
            CHECK_MSG(y.same_request(1, x, 1), "%s: a replay with another request's offset", name);
            CHECK_MSG(x.stats.draws == direct.stats.draws
                          && z.stats.v_rows_read == direct.stats.v_rows_read,
                      "%s: stats", name);
        }
}

/* ---------------------------------------------------------------------------- determinism */

static void same_in_any_batch(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (santa_method m : METHODS) {
            ref_spec s = spec16(8, 2, test_quick ? 300 : 2500, 64);
            s.k_type = s.v_type = type;
            s.batch  = 5;
            s.ragged = 1;
            const uint64_t ids[5] = {90, 91, 92, 93, (uint64_t)1 << 40}, seeds[5] = {5, 6, 7, 8, 9};
            problem all(s);
            santa_options o = options(m, 64);
            o.request_ids = ids;
            o.seeds       = seeds;
            result whole, alone;
            if (!run_on_gpu(all, o, &whole)) return;
            for (int64_t b = 0; b < s.batch; b++) {
                ref_spec one = s;
                one.batch = 1;
                one.first_sequence = b;
                problem p(one);
                o.request_ids = ids + b;
                o.seeds       = seeds + b;
                if (!run_on_gpu(p, o, &alone)) return;
                CHECK_MSG(whole.same_request(b, alone, 0), "%s, type %d: sequence %lld differs alone",
                          santa_method_name(m), (int)type, (long long)b);
            }
        }
}

static void same_on_any_page_size(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (santa_stash stash : {SANTA_STASH_F32, SANTA_STASH_U8})
            for (santa_method m : METHODS) {
                ref_spec s = spec16(8, 2, test_quick ? 300 : 1100, 64);
                s.k_type = s.v_type = type;
                s.batch  = 4;
                s.ragged = 1;
                result flat, pages;
                problem p(s);
                if (!run_on_gpu(p, options(m, 64, stash), &flat)) return;
                for (int64_t page : {1, 16, 64, 96}) {
                    s.page_size = page;
                    problem x(s);
                    if (!run_on_gpu(x, options(m, 64, stash), &pages)) return;
                    CHECK_MSG(flat.same(pages), "%s, type %d, page size %lld", santa_method_name(m),
                              (int)type, (long long)page);
                }
                s.page_size = 0;
                s.layout    = REF_HND;
                problem x(s);
                if (!run_on_gpu(x, options(m, 64, stash), &pages)) return;
                for (int64_t b = 0; b < s.batch; b++)
                    CHECK_MSG(flat.same_request(b, pages, b), "%s, type %d, HND", santa_method_name(m),
                              (int)type);
            }
}

/* f32 keys are read by 16 bytes where they lie so, and else number by number: the sums are the
   same. */
static void same_at_any_alignment(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16}) {
        ref_spec s = spec16(8, 2, 300, 68, type);
        s.k_type = SANTA_F32;
        s.batch  = 2;
        s.ragged = 1;
        problem p(s);
        const extent e = extent_of(p.a.k);
        std::vector<char> room(4 * (size_t)e.count + 32);
        char *const start = room.data() + (16 - (uintptr_t)room.data() % 16) % 16;
        for (santa_method m : METHODS) {
            result by[2];
            for (int i = 0; i < 2; i++) {
                santa_attention a = p.a;
                void *const to =
                    memcpy(start + 4 * i, (const float *)p.a.k.data + e.low, 4 * (size_t)e.count);
                a.k.data = (float *)to - e.low;
                on_gpu g(a, options(m, 64));
                if (!g.run()) return;
                by[i] = g.get();
            }
            CHECK_MSG(by[0].same(by[1]), "%s, q of type %d", santa_method_name(m), (int)type);
        }
    }
    /* rows that come by pieces, and number by number: too long for the fast kernels, which
       round in another order and want pieces */
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3, SANTA_E5M2, SANTA_Q8_0,
                             SANTA_Q4_0}) {
        ref_spec s = spec16(8, 2, 300, 288, type);
        s.q_type = s.out_type = SANTA_F32;
        problem p(s);
        result by[2];
        for (int i = 0; i < 2; i++) {
            santa_attention a = p.a;
            std::vector<char> room[2];
            santa_tensor *const moved[2] = {&a.k, &a.v};
            for (int j = 0; j < 2; j++) {
                const size_t bytes = (size_t)bytes_of(type, extent_of(*moved[j]).count);
                room[j].resize(bytes + 32);
                char *const start = room[j].data() + (16 - (uintptr_t)room[j].data() % 16) % 16,
                     *const to = start + i * (ref_is_blocks(type) ? 2 : size_of(type));
                moved[j]->data = memcpy(to, moved[j]->data, bytes);
            }
            on_gpu g(a, options(SANTA_DENSE, 0));
            if (!g.run()) return;
            by[i] = g.get();
        }
        CHECK_MSG(by[0].same(by[1]), "K and V of type %d", (int)type);
    }
}

static void same_on_every_run(void) {
    NEED_DEVICE();
    const int runs = test_quick ? 2 : 20;
    cudaStream_t stream[2];
    for (cudaStream_t &x : stream) if (!CUDA(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking))) return;
    for (santa_method m : METHODS) {
        ref_spec s = spec16(32, 8, test_quick ? 300 : 6000, 128);
        s.batch = 2;
        problem p(s), q(s);
        const santa_options o =
            options(m, 600, SANTA_STASH_U8); /* three shares of draws: the last CTA adds them */
        on_gpu x(p.a, o, 0xff), y(q.a, o, 0x00);
        if (!x.run() || !y.run()) return;
        const result first = x.get();
        CHECK_MSG(first.same(y.get()), "%s: the workspace's contents matter", santa_method_name(m));
        for (int i = 0; i < runs; i++) {
            CHECK_STATUS(x.start(stream[0]), SANTA_OK);
            CHECK_STATUS(y.start(stream[1]), SANTA_OK);
        }
        if (!CUDA(cudaDeviceSynchronize())) return;
        CHECK_MSG(first.same(x.get()) && first.same(y.get()), "%s: two streams", santa_method_name(m));
        for (int i = 0; i < runs; i++) {
            if (!x.run()) return;
            CHECK_MSG(first.same(x.get()), "%s: run %d differs", santa_method_name(m), i);
        }
    }
    for (cudaStream_t x : stream) CUDA(cudaStreamDestroy(x));
}

/* ---------------------------------------------------------------------------------- merge */

/* Two halves of the keys, merged on the host: dense gives the whole, sampled the mass-weighted
   mean of the halves. */
static void merge(void) {
    NEED_DEVICE();
    ref_spec s = spec16(8, 2, 1001, 64);
    s.batch = 2;
    for (santa_method m : METHODS) {
        problem p(s);
        result whole, half[2];
        if (!run_on_gpu(p, options(m, 64), &whole)) return;
        const santa_tensor k = p.a.k, v = p.a.v;
        const int64_t cut = 400, from[2] = {0, cut}, keys[2] = {cut, s.len - cut};
        for (int i = 0; i < 2; i++) {
            p.a.k = k; p.a.v = v;
            p.a.k.data = (char *)k.data + 2 * from[i] * k.stride[1];
            p.a.v.data = (char *)v.data + 2 * from[i] * v.stride[1];
            p.a.k.shape[1] = p.a.v.shape[1] = keys[i];
            if (!run_on_gpu(p, options(m, 64), &half[i])) return;
        }
        const int64_t rows = s.batch * s.heads, dv = s.head_dim_v;
        const float *x = (const float *)half[0].out.data, *y = (const float *)half[1].out.data,
                    *z = (const float *)whole.out.data;
        std::vector<float> out(x, x + rows * dv), lse = half[0].lse;
        CHECK_STATUS(santa_merge(rows, dv, out.data(), lse.data(), y, half[1].lse.data()), SANTA_OK);
        for (int64_t i = 0; i < rows; i++) {
            const double share =
                1.0 / (1.0 + exp((double)half[1].lse[(size_t)i] - (double)half[0].lse[(size_t)i]));
            CHECK_NEAR(lse[(size_t)i], whole.lse[(size_t)i], 1e-5, 0.0);
            for (int64_t c = i * dv; c < (i + 1) * dv; c++) {
                const double want =
                    m == SANTA_DENSE ? (double)z[c] : share * (double)x[c] + (1.0 - share) * (double)y[c];
                if (!CHECK_NEAR(out[(size_t)c], want, 2e-5, 1e-5)) return;
            }
        }
    }
}

/* --------------------------------------------------------------------------------- errors */

/* A call that must fail with that status and leave out, lse and stats alone. */
static void refuse(on_gpu &g, const santa_attention &a, const santa_options &o, void *workspace,
                   size_t bytes, santa_stats *stats, santa_status want, const char *what) {
    const result before = g.get();
    const santa_status s = santa_decode(&a, &o, workspace, bytes, stats);
    CHECK_MSG(s == want, "%s: got \"%s\", want \"%s\"", what, santa_status_string(s),
              santa_status_string(want));
    if (!CUDA(cudaDeviceSynchronize())) return;
    const result after = g.get();
    CHECK_MSG(before.same(after) && !memcmp(&before.stats, &after.stats, sizeof before.stats),
              "%s: something was written", what);
}

static void errors(void) {
    NEED_DEVICE();
    problem p(spec16(8, 2, 300, 64));
    const santa_options good = options(SANTA_PROP, 32);
    on_gpu g(p.a, good);
    static float host[4096];
    const auto with = [&](const char *what, santa_status want,
                          void (*change)(santa_attention *, santa_options *)) {
        santa_attention a = g.a;
        santa_options   o = g.o;
        change(&a, &o);
        refuse(g, a, o, g.workspace(), (size_t)1 << 40, g.stats, want, what);
        const bool form = want != SANTA_ERR_HOST_POINTER && want != SANTA_ERR_NULL_DATA;
        CHECK_MSG(!form || santa_workspace_size(&a, &o) == 0, "%s: has a workspace size", what);
    };
    with("bernoulli", SANTA_ERR_BACKEND_SCORES,
         [](santa_attention *, santa_options *o) { o->scores = SANTA_SCORES_BERNOULLI_IID; });
    with("std_error on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->std_error = host; });
    with("kv_start on the host", SANTA_ERR_HOST_POINTER, [](santa_attention *a, santa_options *) {
        static const int32_t none[16] = {0};
        a->kv_start = none;
    });
    with("too many keys", SANTA_ERR_BACKEND_TOO_LONG,
         [](santa_attention *a, santa_options *) { a->k.shape[1] = a->v.shape[1] = INT32_MAX - 62; });
    with("a wide head", SANTA_ERR_BACKEND_SIZE, [](santa_attention *a, santa_options *) {
        a->q.shape[3] = a->k.shape[3] = ((int64_t)1 << 32) + 64;
        a->q.stride[3] = a->k.stride[3] = 0;
    });
    with("k at an odd address", SANTA_ERR_BACKEND_ALIGNMENT,
         [](santa_attention *a, santa_options *) { a->k.data = (char *)a->k.data + 1; });
    with("lse at an odd address", SANTA_ERR_BACKEND_ALIGNMENT,
         [](santa_attention *a, santa_options *) { a->lse = (float *)((char *)a->lse + 2); });
    with("lengths at an odd address", SANTA_ERR_BACKEND_ALIGNMENT,
         [](santa_attention *a, santa_options *) { a->seq_lens = (const int32_t *)((char *)a->lse + 1); });
    with("seeds at an odd address", SANTA_ERR_BACKEND_ALIGNMENT,
         [](santa_attention *a, santa_options *o) { o->seeds = (const uint64_t *)((char *)a->lse + 4); });
    with("q on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->q.data = host; });
    with("k on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->k.data = host; });
    with("v on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->v.data = host; });
    with("out on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->out.data = host; });
    with("lse on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->lse = host; });
    with("NULL k", SANTA_ERR_NULL_DATA, [](santa_attention *a, santa_options *) { a->k.data = NULL; });
    with("k on the CPU", SANTA_ERR_DEVICE_MISMATCH,
         [](santa_attention *a, santa_options *) { a->k.device = SANTA_CPU; });
    with("q of e4m3", SANTA_ERR_DTYPE,
         [](santa_attention *a, santa_options *) { a->q.dtype = SANTA_E4M3; });
    with("k_scale", SANTA_ERR_SCALE, [](santa_attention *a, santa_options *) { a->k_scale = -1.0f; });

    santa_stats on_host;
    refuse(g, g.a, g.o, host, (size_t)1 << 40, g.stats, SANTA_ERR_HOST_POINTER, "workspace on the host");
    refuse(g, g.a, g.o, g.workspace(), g.workspace_bytes(), &on_host, SANTA_ERR_HOST_POINTER,
           "stats on the host");
    refuse(g, g.a, g.o, NULL, g.workspace_bytes(), g.stats, SANTA_ERR_WORKSPACE_NULL, "workspace NULL");
    refuse(g, g.a, g.o, g.workspace(), g.workspace_bytes() - 1, g.stats, SANTA_ERR_WORKSPACE_SIZE,
           "workspace short");

    CHECK_STATUS(santa_register_backend(SANTA_CUDA, NULL), SANTA_OK);
    refuse(g, g.a, g.o, g.workspace(), g.workspace_bytes(), g.stats, SANTA_ERR_NO_BACKEND, "no backend");
    CHECK_STATUS(santa_cuda_init(), SANTA_OK);
    CHECK(g.run());

    /* optional outputs, and stats in pinned memory */
    santa_stats *pinned = NULL;
    if (!CUDA(cudaMallocHost((void **)&pinned, sizeof *pinned))) return;
    const result all = g.get();
    g.a.lse = NULL;
    CHECK_STATUS(santa_decode(&g.a, &g.o, g.workspace(), g.workspace_bytes(), pinned), SANTA_OK);
    CUDA(cudaDeviceSynchronize());
    CHECK_INT(memcmp(pinned, &all.stats, sizeof all.stats), 0);
    CHECK_STATUS(santa_decode(&g.a, &g.o, g.workspace(), g.workspace_bytes(), NULL), SANTA_OK);
    CUDA(cudaDeviceSynchronize());
    CHECK(all.same(g.get()));
    CUDA(cudaFreeHost(pinned));
}

/* A CUDA failure of a call: the legacy stream may not be used while a blocking stream
   captures. */
static void cuda_errors(void) {
    NEED_DEVICE();
    CHECK_INT(santa_cuda_error(SANTA_OK), 0);
    CHECK_INT(santa_cuda_error(SANTA_ERR_HOST_POINTER), 0);
    CHECK_INT(santa_cuda_error((santa_status)(SANTA_ERR_CUDA + (int)cudaErrorIllegalAddress)),
              cudaErrorIllegalAddress);
    CHECK_INT(strcmp(santa_status_string((santa_status)(SANTA_ERR_CUDA + 700)),
                     santa_status_string(SANTA_ERR_CUDA)),
              0);

    problem p(spec16(8, 2, 300, 64));
    for (santa_method m : {SANTA_DENSE, SANTA_PROP}) {
        on_gpu g(p.a, options(m, 32));
        const result before = g.get();
        cudaStream_t stream;
        cudaGraph_t  graph = NULL;
        if (!CUDA(cudaStreamCreate(&stream))
            || !CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)))
            return;
        const santa_status s = g.start(0);
        const cudaError_t  end = cudaStreamEndCapture(stream, &graph);
        (void)cudaGetLastError();
        CHECK_MSG(santa_cuda_error(s) > 0, "got \"%s\"", santa_status_string(s));
        if (end == cudaSuccess && graph) CUDA(cudaGraphDestroy(graph));
        CUDA(cudaStreamDestroy(stream));
        CUDA(cudaDeviceSynchronize());
        CHECK(before.same(g.get()));
        CHECK(g.run());                      /* nothing sticks */
    }
}

static void second_device(void) {
    NEED_DEVICE();
    int count = 0, now = 0;
    if (!CUDA(cudaGetDeviceCount(&count)) || !CUDA(cudaGetDevice(&now))) return;
    if (count < 2) SKIP("one device");
    result x, y;
    ref_spec s = spec16(8, 2, 700, 128);
    s.batch = 2;
    problem p(s), q(s);
    for (santa_method m : METHODS) {
        const bool good = run_on_gpu(p, options(m, 64), &x) && CUDA(cudaSetDevice(now ? 0 : 1))
                          && run_on_gpu(q, options(m, 64), &y);
        CUDA(cudaSetDevice(now));
        if (!good) return;
        CHECK_MSG(x.same(y), "%s: the second device differs", santa_method_name(m));
    }
}

/* ---------------------------------------------------------------------------- copies of K */

static ref_spec proxy_spec(int64_t len, int64_t d, santa_dtype type, int64_t page) {
    ref_spec s = spec16(8, 2, len, d, type);
    s.q_type    = type == SANTA_E4M3 ? SANTA_BF16 : type;
    s.page_size = page;
    s.batch     = 2;
    return s;
}

/* The copy of a problem's K, made on the CPU; none where head_dim has none. */
struct with_copy : problem {
    std::vector<char> copy;

    explicit with_copy(const ref_spec &s, int bits = 4) : problem(s) {
        a.proxy_bits = bits;
        copy.assign(santa_proxy_size(&a), 0);
        if (copy.empty()) return;
        a.proxy = copy.data();
        encode();
    }
    void encode() { CHECK_STATUS(santa_proxy_encode(&a, 0, INT32_MAX, NULL), SANTA_OK); }
};

/* Each of these tests runs with both. */
static santa_method copy_method = SANTA_PROP;
template <void (*test)()> void both_ways() {
    for (santa_method m : {SANTA_PROP, SANTA_PPS}) {
        copy_method = m;
        test();
    }
}

static santa_options proxy_options(int64_t samples, santa_stash stash = SANTA_STASH_F32) {
    santa_options o = options(copy_method, samples, stash);
    o.scores = SANTA_SCORES_PROXY;
    return o;
}

static santa_options unguarded(int64_t samples, santa_stash stash = SANTA_STASH_F32) {
    santa_options o = proxy_options(samples, stash);
    o.proxy.rescue_above = o.proxy.exact_above = SANTA_NONE;
    return o;
}

/* Bytes of a copy that the GPU made against the CPU's. */
struct copy_totals {
    int64_t all, off, far;
    void add(const std::vector<char> &got, const std::vector<char> &want) {
        for (size_t i = 0; i < got.size(); i++) {
            const int x = (unsigned char)got[i], y = (unsigned char)want[i], step = abs(x - y);
            all++;
            off += x != y;
            far += step > 1 && step != 4 && step != 16 && step != 64 && step != 255;
        }
    }
    void print() const {
        printf("        %lld of %lld bytes differ, %lld by more than a step\n", (long long)off,
               (long long)all, (long long)far);
    }
};
static bool compare_encoded(with_copy &p, copy_totals *t) {
    std::vector<char> from(santa_proxy_size(&p.a), (char)0x5a), want = from;
    p.a.proxy = from.data();
    on_gpu g(p.a, options(SANTA_DENSE, 0));
    p.a.proxy = want.data();
    p.encode();
    /* ranges in any order; then what is there already, once more */
    CHECK_STATUS(santa_proxy_encode(&g.a, 100, 1000, NULL), SANTA_OK);
    CHECK_STATUS(santa_proxy_encode(&g.a, 0, 37, NULL), SANTA_OK);
    CHECK_STATUS(santa_proxy_encode(&g.a, 37, 100, NULL), SANTA_OK);
    CHECK_STATUS(santa_proxy_append(&g.a, 70, NULL), SANTA_OK);
    if (!CUDA(cudaDeviceSynchronize())) return false;
    t->add(g.copy_of_k(), want);
    return true;
}

/* Sums are taken in another precision, so that a number on the border of two codes may fall on
   either side. */
static void proxy_encode(void) {
    NEED_DEVICE();
    copy_totals t = {0, 0, 0};
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {8, 24, 32, 40, 64, 80, 96, 128, 192, 256, 320, 512})
            for (int64_t page : {0, 16, 96, 64, 128})
                for (int bits : {4, 2})
                    for (int scales : {0, 1}) {
                        if (test_quick && (d % 32 || d > 256)) continue;
                        if (scales && (d % 64 || page == 128)) continue;
                        ref_spec s = proxy_spec(d > 256 ? 150 : 390, d, type, page);
                        s.ragged = 1;
                        s.layout = (ref_layout)((d / 8 + page) % REF_LAYOUTS);
                        s.row_scales = scales;
                        if (scales) s.scale_type = (santa_dtype)(d / 64 % 3);
                        with_copy p(s, bits);
                        if (!compare_encoded(p, &t)) return;
                    }
    t.print();
    CHECK(t.off * 10000 <= t.all && t.far * 100000 <= t.all);
}

/* Keys that are zero, not finite, or as large and as small as the type has them. */
static void proxy_encode_extremes(void) {
    NEED_DEVICE();
    copy_totals t = {0, 0, 0};
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {64, 128, 256})
            for (int64_t page : {0, 16, 64}) {
                const double inf = type == SANTA_E4M3 ? (double)test_nan() : (double)INFINITY,
                             most = type == SANTA_E4M3 ? 448.0 : type == SANTA_F16 ? 65504.0 : 1e37,
                             least = type == SANTA_E4M3 ? 0x1p-9 : type == SANTA_F16 ? 0x1p-24 : 0x1p-126;
                with_copy p(proxy_spec(390, d, type, page));
                const auto set = [&](int64_t b, int64_t j, int64_t h, int64_t c, double x) {
                    const int64_t at = page ? p.a.block_table[b * p.a.max_pages + j / page] : b;
                    ref_set(&p.a.k, at, page ? j % page : j, h, c, x);
                };
                for (int64_t c = 0; c < d; c++)
                    for (int64_t h = 0; h < p.spec.kv_heads; h++) {
                        for (int64_t j = 64; j < 128; j++) set(0, j, h, c, 0.0);
                        set(0, 200, h, c, most * sin((double)(c * 7 + h)));
                        for (int64_t j = 256; j < 320; j++)
                            set(0, j, h, c, least * (double)((c * j) % 3 - 1));
                        set(1, 40, h, c, 0.0);
                    }
                set(1, 5, 0, 3, (double)test_nan());
                set(1, 70, 1, d - 1, inf);
                set(1, 140, 0, 0, -inf);
                for (int64_t j = 192; j < 256; j++) set(1, j, 1, 0, (double)test_nan());
                for (int bits : {4, 2}) {
                    p.a.proxy_bits = bits;
                    if (!compare_encoded(p, &t)) return;
                }
            }
    t.print();
    CHECK(t.off * 2000 <= t.all && t.far * 5000 <= t.all);
}

/* So many sequences that a CTA takes more blocks than it looks for at a time. They share their
   pages; some are short, and some have bad pages, which the others make. */
static void proxy_encode_many(void) {
    NEED_DEVICE();
    copy_totals t = {0, 0, 0};
    for (int64_t d : {64, 128}) {
        if (test_quick && d == 128) continue;
        ref_spec s = proxy_spec(33 * 64 + 10, d, d == 64 ? SANTA_BF16 : SANTA_E4M3, 64);
        const int64_t batch = d == 64 ? 331 : 265;
        s.batch = s.heads = s.kv_heads = 1;
        with_copy p(s);
        std::vector<char> from(santa_proxy_size(&p.a), (char)0x5a), want = from,
                          q((size_t)(4 * batch * d));
        std::vector<int32_t> table, lens;
        for (int64_t i = 0; i < batch; i++) {
            for (int64_t j = 0; j < p.a.max_pages; j++)
                table.push_back(i % 3 != 1 || j % 7 != i % 7 ? p.a.block_table[j]
                                : i % 2 ? -1 : INT32_MAX);
            lens.push_back(i % 5 == 4 ? (int32_t)(i * 7 % s.len) : (int32_t)s.len);
        }
        p.a.proxy = want.data();
        p.encode();
        santa_attention a = p.a;
        a.q = a.out = santa_view(q.data(), s.q_type, batch, 1, 1, d);
        a.block_table = table.data();
        a.seq_lens = lens.data();
        a.proxy = from.data();
        a.lse = NULL;
        a.buckets = NULL;
        on_gpu g(a, options(SANTA_DENSE, 0));
        CHECK_STATUS(santa_proxy_encode(&g.a, 0, INT32_MAX, NULL), SANTA_OK);
        if (!CUDA(cudaDeviceSynchronize())) return;
        t.add(g.copy_of_k(), want);
    }
    t.print();
    CHECK(t.off * 2000 <= t.all && t.far * 5000 <= t.all);         /* few bytes: a gain's two count more */
}

/* The GPU's result from the CPU's copy against the CPU's: the same rows, but for draws that
   rounding moves. */
static void compare_copies(problem &p, const santa_options &o, totals *t, const char *name) {
    const ref_spec &s = p.spec;
    const double v_max = largest_row_of_v(p),
          eps = s.out_type == SANTA_F32 ? 0.0 : 2.0 * ref_epsilon(s.out_type);
    char what[160];
    snprintf(
        what, sizeof what,
        "%s, %s: S %lld, types %d%d%d, %lld x %lld x %lld keys, heads %lld/%lld, dim %lld/%lld, page %lld, "
        "bits %d, stash %d",
        name, santa_method_name(o.method), (long long)o.num_samples, (int)p.a.q.dtype, (int)p.a.k.dtype,
        (int)p.a.v.dtype, (long long)s.batch, (long long)s.q_len, (long long)s.len, (long long)s.heads,
        (long long)s.kv_heads, (long long)s.head_dim, (long long)s.head_dim_v, (long long)s.page_size,
        p.a.proxy_bits, (int)o.stash);
    p.a.std_error = santa_method_traits(o.method) & SANTA_BIASED ? NULL : p.std_error;
    on_gpu g(p.a, o);
    const result before = g.get();
    if (!g.run()) { CHECK_MSG(0, "in %s", what); return; }
    const result r = g.get();
    check_gaps(r, before.bytes, what);
    santa_stats cpu;
    if (!ref_run(&p, &o, &cpu)) return;
    int64_t off = 0, too_far = 0, errors = 0;
    bool moved = false;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++) {
                double norm;
                const double difference = apart(p, r, b, i, h, &norm);
                const size_t row = (size_t)((b * s.q_len + i) * s.heads + h);
                const double x = (double)p.lse[row], y = (double)r.lse[row];
                const bool lse = x == y || fabs(x - y) <= 3e-4;
                /* the heads of a group have one comb in pps: a draw moves in all of them */
                if (o.method != SANTA_PPS || h % (s.heads / s.kv_heads) == 0) moved = false;
                const bool differs
                    = !(sqrt(difference) <= (3e-4 + eps) * sqrt(norm) + 1e-5 * v_max) || !lse;
                off += differs && !moved;
                moved |= differs;
                too_far += !(sqrt(difference) <= 4.0 * v_max);
                /* what is done again is exact here, and its error 0 */
                if (!p.a.std_error || moved || cpu.redone_rows) continue;
                const double e = (double)p.std_error[row], z = (double)r.std_error[row];
                errors += !(e == z || fabs(e - z) <= (5e-3 + eps) * e + 1e-5 * v_max);
            }
    /* a score that rounding moves by a step of a byte is a draw that moves a little */
    CHECK_MSG(errors <= (o.stash > SANTA_STASH_F32), "%s: %lld errors differ", what, (long long)errors);
    CHECK_MSG(too_far == 0, "%s: %lld heads are NaN or far off", what, (long long)too_far);
    CHECK_MSG(r.stats.rows == cpu.rows && r.stats.keys == cpu.keys
              && r.stats.proxy_rows_read == cpu.proxy_rows_read
                  && r.stats.redone_rows == cpu.redone_rows,
              "%s: stats: keys %lld, %lld; copied %lld, %lld; redone %lld, %lld", what,
              (long long)r.stats.keys,
              (long long)cpu.keys, (long long)r.stats.proxy_rows_read, (long long)cpu.proxy_rows_read,
              (long long)r.stats.redone_rows, (long long)cpu.redone_rows);
    CHECK_MSG(fabs(r.stats.expected_variance - cpu.expected_variance) <= 1e-3 * cpu.expected_variance
              + 2e-6,
              "%s: expected variance %g, %g", what, r.stats.expected_variance, cpu.expected_variance);
    if (off == 0)
        CHECK_MSG(r.stats.v_rows_read == cpu.v_rows_read && r.stats.v_rows_head == cpu.v_rows_head
                      && r.stats.k_rows_read == cpu.k_rows_read && r.stats.draws == cpu.draws,
                  "%s: stats: V %lld, %lld; of heads %lld, %lld; K %lld, %lld; draws %lld, %lld", what,
                  (long long)r.stats.v_rows_read, (long long)cpu.v_rows_read,
                  (long long)r.stats.v_rows_head,
                  (long long)cpu.v_rows_head, (long long)r.stats.k_rows_read, (long long)cpu.k_rows_read,
                  (long long)r.stats.draws, (long long)cpu.draws);
    t->rows += s.batch * s.q_len * s.heads;
    t->draws += cpu.draws;
    t->off += off;
}

static void check_copies(const totals &t, const char *what) {
    printf("        %s: %lld combs of %lld heads differ, %lld draws\n", what, (long long)t.off,
           (long long)t.rows, (long long)t.draws);
    check_totals(t, what);
}

static void proxy_same_rows(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    int turn = 0;
    const auto run = [&](const ref_spec &s, int bits, int64_t samples, const char *name) {
        with_copy p(s, bits);
        if (copy_method != SANTA_PPS || s.heads <= 64 * s.kv_heads)
            compare_copies(p, unguarded(samples, STASHES[turn++ % 3]), &t, name);
    };
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {64, 128, 256})
            for (int bits : {4, 2})
                for (int64_t page : {0, 16, 96, 128}) {
                    if (test_quick && (page || d != 128)) continue;
                    ref_spec s = proxy_spec(900, d, type, page);
                    s.ragged = (int)(d / 64 & 1);
                    run(s, bits, 64, "types");
                }
    check_copies(t, "types");
    t = {0, 0, 0};
    for (int64_t d : {8, 24, 40, 80, 96, 192}) {
        ref_spec s = proxy_spec(500, d, SANTA_BF16, 0);
        s.head_dim_v = d + 8;
        run(s, 4, 32, "head_dim");
        run(s, 2, 32, "head_dim");
    }
    for (int64_t dv : {8, 17, 136, 250}) {
        ref_spec s = proxy_spec(500, 128, SANTA_BF16, 0);
        s.head_dim_v = dv;
        s.v_type = dv == 17 ? SANTA_F32 : SANTA_BF16;
        run(s, 4, 32, "head_dim_v");
    }
    for (int64_t group : {1, 2, 3, 5, 8, 9, 20}) {
        ref_spec s = proxy_spec(500, 128, SANTA_BF16, 0);
        s.heads = 2 * group;
        run(s, 4, 32, "groups");
    }
    for (int layout = 0; layout < REF_LAYOUTS; layout++)
        for (santa_dtype type : {SANTA_BF16, SANTA_F32}) {
            ref_spec s = proxy_spec(500, 64, type, 0);
            s.layout = (ref_layout)layout;
            run(s, 4, 32, "layouts");
        }
    check_copies(t, "shapes");
    t = {0, 0, 0};
    for (int64_t n : {1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 131, 132, 133, 191, 192, 193, 1000})
        run(proxy_spec(n, 128, SANTA_BF16, 0), 4, 16, "lengths");
    for (int64_t samples : {1, 2, 31, 33, 255, 256, 257, 600, 5000})
        run(proxy_spec(test_quick ? 400 : 3000, 128, SANTA_BF16, 0), 4, samples, "samples");
    check_copies(t, "lengths");
    t = {0, 0, 0};
    for (int extra = 0; extra < 10; extra++)
        for (int64_t page : {0, 16}) {
            ref_spec s = proxy_spec(700, 128, extra == 9 ? SANTA_E4M3 : SANTA_BF16, page);
            if (extra > 6) { s.row_scales = 1; s.scale_type = (santa_dtype)(extra - 7); }
            if (extra == 8) s.layout = REF_STRIDED;
            if (extra == 0 || extra == 6) s.soft_cap = 2.0f;
            if (extra == 1 || extra == 6) s.window = 500;
            if (extra == 2 || extra == 6) s.sinks = 1;
            if (extra == 3 || extra == 6) s.alibi = 1;
            if (extra == 4 || extra == 6) s.sm_scale = 0.05f;
            if (extra == 5 || extra == 6) { s.q_len = 3; s.causal = 1; s.ragged = 1; }
            with_copy p(s);
            p.a.k_scale = extra == 4 ? 0.37f : 0.0f;
            p.a.v_scale = extra == 4 ? 5.5f : 0.0f;
            compare_copies(p, unguarded(64), &t, "extras");
            const int32_t lens[2] = {300, 100};
            p.a.proxy_lens = lens;
            santa_options o = unguarded(64);
            o.proxy.sink_tokens  = extra & 1 ? SANTA_NONE : 70;
            o.proxy.local_tokens = extra & 1 ? SANTA_NONE : 130;
            compare_copies(p, o, &t, "fixed keys");
        }
    check_copies(t, "extras");
    if (test_quick) return;
    t = {0, 0, 0};
    ref_spec s = proxy_spec(200000, 64, SANTA_BF16, 0);
    s.heads = 4;
    s.kv_heads = 1;
    s.batch = 1;
    turn = 0;                                /* in bytes each key that moves by a step moves others */
    run(s, 4, 300, "long");
    check_copies(t, "long");
}

/* Whatever the copy holds: random codes, gains and centres. With so many draws that all keys
   are there surely, the result is exact attention. */
static void proxy_any_copy(void) {
    NEED_DEVICE();
    for (santa_stash stash : {SANTA_STASH_F32, SANTA_STASH_U8})
        for (int64_t page : {0, 32})
            for (int bits : {4, 2}) {
                ref_spec s = proxy_spec(on_emulator ? 130 : test_quick ? 300 : 700, 128, SANTA_BF16, page);
                if (on_emulator) s.heads = 2, s.batch = 1;
                with_copy p(s, bits);
                test_rng rng = test_rng_make(3);
                for (char &x : p.copy) x = (char)test_next(&rng);
                const int64_t keys = page ? page : 64, chunks = bits, gains = 16 * chunks * keys,
                      centre = gains + 2 * keys,
                              scale = centre + chunks * 128 / bits, bytes = (scale + 4 + 63) / 64 * 64;
                for (size_t at = 0; at + (size_t)bytes <= p.copy.size(); at += (size_t)bytes) {
                    for (int64_t i = 0; i < keys; i++) {
                        const uint16_t gain = santa_f32_to_f16((float)test_uniform(&rng)
                                                               * (bits == 4 ? 0.05f : 0.2f));
                        memcpy(&p.copy[at + (size_t)(gains + 2 * i)], &gain, 2);
                    }
                    const float f = 0.002f;
                    memcpy(&p.copy[at + (size_t)scale], &f, 4);
                }
                result r;
                if (!run_on_gpu(p, unguarded(on_emulator ? 8000 : SANTA_MAX_SAMPLES, stash), &r)) return;
                std::vector<double> want((size_t)s.head_dim_v);
                const double v_max = largest_row_of_v(p);
                double worst = 0.0, worst_lse = 0.0;
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t h = 0; h < s.heads; h++) {
                        const double lse = ref_dense(&p, b, 0, h, want.data(), NULL);
                        for (int64_t c = 0; c < s.head_dim_v; c++)
                            worst = std::max<double>(worst,
                                                     fabs(ref_get(&r.out, b, 0, h, c)
                                                          - want[(size_t)c]) / v_max);
                        worst_lse = std::max<double>(worst_lse,
                                                     fabs((double)r.lse[(size_t)(b * s.heads + h)] - lse));
                    }
                printf("        stash %d, page %lld, %d bits: off by %.1e, lse %.1e\n", (int)stash,
                       (long long)page, bits, worst,
                       worst_lse);
                CHECK(worst <= 2e-5 && worst_lse <= 2e-4);

                /* fewer draws: right on average */
                ref_spec one = s;
                one.batch = 1;
                if (page) continue;
                with_copy x(one, bits);
                std::copy_n(p.copy.begin(), x.copy.size() - 64, x.copy.begin());
                const int64_t requests = test_quick ? 300 : 8000;
                std::vector<char> many;
                for (int64_t i = 0; i < requests; i++)
                    many.insert(many.end(), x.copy.begin(), x.copy.end() - 64);
                std::vector<std::vector<double>> exact((size_t)s.heads,
                                                       std::vector<double>((size_t)s.head_dim_v));
                for (int64_t h = 0; h < s.heads; h++) ref_dense(&x, 0, 0, h, exact[(size_t)h].data(), NULL);
                x.replicate(requests);
                x.a.k.shape[0] = x.a.v.shape[0] = requests;
                x.a.proxy = many.data();
                result y;
                if (!run_on_gpu(x, unguarded(128, stash), &y)) return;
                double worst_z = 0.0, bias = 0.0;
                for (int64_t h = 0; h < s.heads; h++)
                    for (int64_t c = 0; c < s.head_dim_v; c += 7) {
                        double sum = 0.0, squares = 0.0;
                        for (int64_t i = 0; i < requests; i++) {
                            const double z = ref_get(&y.out, i, 0, h, c) - exact[(size_t)h][(size_t)c];
                            sum += z;
                            squares += z * z;
                        }
                        const double mean = sum / (double)requests, sd = sqrt(squares / (double)requests);
                        /* a ratio: a bias of a small part of its spread is its own */
                        const double beyond = std::max<double>(fabs(mean) - 0.1 * sd, 0.0);
                        worst_z = std::max<double>(worst_z, beyond / (sd / sqrt((double)requests) + 1e-30));
                        bias = std::max<double>(bias, fabs(mean) / (sd + 1e-30));
                    }
                printf("        128 draws: z %.1f beyond a tenth, bias %.3f of the spread\n", worst_z,
                       bias);
                CHECK(worst_z < 5.0);
            }
}

/* A NaN of a row of V that is read exactly shows where its weight is 0, too: a first key far
   below a last one. */
static void proxy_nan_in_v(void) {
    NEED_DEVICE();
    for (int64_t dim_v : {7, 64}) {                 /* rows by loads, rows by pieces */
        ref_spec s = proxy_spec(600, 64, SANTA_F16, 0);
        s.head_dim_v = dim_v;
        with_copy p(s);
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t h = 0; h < s.kv_heads; h++) {
                for (int64_t c = 0; c < s.head_dim; c++) {
                    double sum = 0.0;
                    for (int64_t g = 0; g < 4; g++) sum += ref_get(&p.a.q, b, 0, 4 * h + g, c);
                    ref_set(&p.a.k, b, 1, h, c, -60.0 * sum);
                    ref_set(&p.a.k, b, 599, h, c, 60.0 * sum);
                }
                ref_set(&p.a.v, b, 1, h, 3, (double)test_nan());
            }
        p.encode();
        result x;
        if (!run_on_gpu(p, unguarded(32, SANTA_STASH_U8), &x)) return;
        int64_t wrong = 0;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t h = 0; h < s.heads; h++) wrong += x.nans(b, 0, h) != 1;
        CHECK_MSG(wrong == 0, "head_dim_v %lld: %lld rows", (long long)dim_v, (long long)wrong);
    }
}

/* How many draws fall on a neighbouring key grows with the context, as sums of weights that
   round otherwise are a larger part of a key's: the rows that are off say so. */
static void moved_draws_long(void) {
    NEED_DEVICE();
    if (test_quick) SKIP("--quick");
    enum { SAMPLES = 64 };
    for (int64_t len : {2048, 8192, 32768, 131072}) {
        ref_spec s = proxy_spec(len, 64, SANTA_BF16, 0);
        s.batch  = 1;
        s.q_len  = 64;
        s.causal = 0;
        s.gain   = 1.5;
        with_copy p(s);
        for (int way = 0; way < 3; way++)
            for (santa_stash stash : {SANTA_STASH_F32, SANTA_STASH_U8}) {
                const bool copied = way > 0;
                copy_method = way < 2 ? SANTA_PROP : SANTA_PPS;
                const santa_options o
                    = copied ? unguarded(SAMPLES, stash) : options(SANTA_PROP, SAMPLES, stash);
                result r;
                if (!run_on_gpu(p, o, &r) || !ref_run(&p, &o, NULL)) return;
                const double rows = (double)(s.q_len * s.heads);
                double off = 0.0, norm;
                for (int64_t i = 0; i < s.q_len; i++)
                    for (int64_t h = 0; h < s.heads; h++)
                        off += apart(p, r, 0, i, h, &norm) > 1e-8 * norm;
                const double moved = -log(1.0 - std::min(off / rows, 0.999)) / SAMPLES,
                             per_key = moved / (double)len;
                printf("        %lld keys, %s%s, stash %d: %.0f of %.0f rows, %.1e of the draws\n",
                       (long long)len, santa_method_name(o.method), copied ? " from a copy" : "",
                       (int)stash, off, rows, moved);
                CHECK(per_key < (copied ? 1.5e-6 : 3e-8) || off <= 3.0);
            }
    }
}

/* Rows that are not drawn are not read: all of the copied keys but 64 likely ones are NaN. And
   a NaN that the copy knows makes its heads NaN, and no others. */
static void proxy_poison(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (santa_stash stash : {SANTA_STASH_F32, SANTA_STASH_U8})
            for (int64_t page : {0, 16}) {
                ref_spec s = proxy_spec(600, 64, type, page);
                with_copy p(s);
                const santa_options o = unguarded(32, stash);
                with_copy bad(s);
                int64_t i0, i1;
                for (int64_t c = 0; c < s.head_dim; c++) {
                    ref_place(&bad, 1, 70, &i0, &i1);
                    ref_set(&bad.a.k, i0, i1, 1, c, (double)test_nan());
                }
                bad.encode();
                for (int guards = 0; guards < 2; guards++) {
                    result x, y;
                    const santa_options with = guards ? proxy_options(32, stash) : o;
                    if (!run_on_gpu(p, with, &x) || !run_on_gpu(bad, with, &y)) return;
                    int64_t wrong = 0;
                    for (int64_t b = 0; b < s.batch; b++)
                        for (int64_t h = 0; h < s.heads; h++)
                            wrong += b == 1 && h >= 4 ? y.nans(b, 0, h) != s.head_dim_v + 1
                                : !y.same_row(b, 0, h, x, b);
                    CHECK_MSG(wrong == 0, "type %d, stash %d, page %lld: %lld rows are wrong", (int)type,
                              (int)stash,
                              (long long)page, (long long)wrong);
                }

                /* a key that the copy calls likely, and NaN in K and V of all others that it
                   stands for */
                with_copy few(s), spoilt(s);
                for (problem *z : {(problem *)&few, (problem *)&spoilt})
                    for (int64_t b = 0; b < s.batch; b++)
                        for (int64_t h = 0; h < s.kv_heads; h++)
                            for (int64_t j = 64; j < 128; j++)
                                for (int64_t c = 0; c < s.head_dim; c++) {
                                    double sum = 0.0;
                                    for (int64_t g = 0; g < 4; g++)
                                        sum += ref_get(&z->a.q, b, 0, 4 * h + g, c);
                                    ref_place(z, b, j, &i0, &i1);
                                    ref_set(&z->a.k, i0, i1, h, c, 40.0 * sum
                                            * (type == SANTA_E4M3 ? 0.25 : 1.0));
                                }
                few.encode();
                spoilt.encode();
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t j = 4; j < 512; j++) {
                        if (j >= 64 && j < 128) continue;
                        spoil_key(&spoilt, b, j);
                    }
                result x, y;
                if (!run_on_gpu(few, o, &x) || !run_on_gpu(spoilt, o, &y)) return;
                /* heads whose own scores of these keys are low may draw others: those are NaN,
                   the rest equal */
                int64_t nans = 0, other = 0;
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t h = 0; h < s.heads; h++) {
                        if (y.nans(b, 0, h)) nans++;
                        else other += !y.same_row(b, 0, h, x, b);
                    }
                CHECK_MSG(other == 0 && nans <= s.heads,
                          "type %d, stash %d, page %lld: %lld heads read NaN, %lld differ", (int)type,
                          (int)stash, (long long)page, (long long)nans, (long long)other);
            }
}

/* Heads that the guards send back are exact attention. */
static void proxy_redo(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int64_t page : {0, 16})
            for (int64_t requests : {1, 5, 40}) {
                    if (test_quick && requests == 40 && (type != SANTA_BF16 || page)) break;
                    ref_spec s = proxy_spec(600, 128, type, page);
                    s.batch = requests;
                    s.sinks = 1;
                    s.ragged = requests > 1;
                    s.gain = 2.0;
                    with_copy p(s, 2);
                    santa_options o = proxy_options(64);
                    o.proxy.rescue_above = SANTA_NONE;
                    o.proxy.exact_above  = 1e-9;
                    result r;
                    if (!run_on_gpu(p, o, &r)) return;
                    std::vector<double> want((size_t)s.head_dim_v);
                    int64_t redone = 0;
                    double worst = 0.0;
                    const double v_max = largest_row_of_v(p);
                    for (int64_t b = 0; b < s.batch; b++)
                        for (int64_t h = 0; h < s.heads; h++) {
                            const double lse = ref_dense(&p, b, 0, h, want.data(), NULL),
                                  got = (double)r.lse[(size_t)(b * s.heads + h)];
                            redone += ref_len(&p, b) >= 200;
                            worst = std::max<double>(worst, got == lse ? 0.0 : fabs(got - lse));
                            for (int64_t c = 0; c < s.head_dim_v; c++)
                                worst = std::max<double>(worst,
                                                         fabs(ref_get(&r.out, b, 0, h, c)
                                                              - want[(size_t)c]) / v_max);
                        }
                    CHECK_MSG(worst <= 1e-4 && r.stats.redone_rows == redone,
                              "type %d, page %lld: off by %g, %lld heads of %lld",
                              (int)type, (long long)page, worst, (long long)r.stats.redone_rows,
                              (long long)redone);
                }
}

/* Heads of wide scores and keys with a large mean: what the copy expects of them is wrong, and
   the exact scores of the likeliest keys make up for it. The CPU rescues the same keys. */
static void proxy_rescue(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    int64_t rescued = 0;
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int64_t page : {0, 16})
            for (double gain : {1.0, 3.0, 8.0})
                for (int64_t keys : {0, 5, 100000}) {
                    if (test_quick && (page || type != SANTA_BF16)) continue;
                    ref_spec s = proxy_spec(test_quick ? 500 : 3000, 128, type, page);
                    s.gain = gain;
                    with_copy p(s, gain < 2.0 ? 2 : 4);
                    santa_options o = unguarded(64);
                    o.proxy.rescue_above = 0.05;
                    o.proxy.rescue_keys  = keys;
                    compare_copies(p, o, &t, "rescue");
                    result r;
                    if (!run_on_gpu(p, o, &r)) return;
                    rescued += r.stats.rescued_rows;
                    o.stash = SANTA_STASH_U8;
                    compare_copies(p, o, &t, "rescue");
                    if (keys == 100000) {
                        std::vector<double> want((size_t)s.head_dim_v);
                        const double v_max = largest_row_of_v(p);
                        o.num_samples = 4000;
                        double worst = 0.0;
                        if (!run_on_gpu(p, o, &r)) return;
                        for (int64_t b = 0; b < s.batch; b++)
                            for (int64_t h = 0; h < s.heads; h++) {
                                const double lse = ref_dense(&p, b, 0, h, want.data(), NULL);
                                worst = std::max<double>(
                                    worst, fabs((double)r.lse[(size_t)(b * s.heads + h)] - lse));
                                for (int64_t c = 0; c < s.head_dim_v; c++)
                                    worst = std::max<double>(worst, fabs(ref_get(&r.out, b, 0, h, c)
                                                                         - want[(size_t)c]) / v_max);
                            }
                        CHECK_MSG(worst <= 0.03, "gain %g: off by %g with all scores exact", gain, worst);
                    }
                }
    CHECK(rescued > t.rows / 6);                             /* of one of the two stashes */
    /* heads with a CTA each, whose warps rescue more keys than their lists have room for */
    for (double gain : {0.5, 2.0}) {
        ref_spec s = proxy_spec(on_emulator ? 1300 : 5000, 64, SANTA_BF16, 0);
        s.batch = 17;
        s.gain = gain;
        with_copy p(s);
        santa_options o = unguarded(64);
        o.proxy.rescue_above = 1e-30;
        o.proxy.rescue_keys = s.len - 200;
        if (gain > 1.0) o.stash = SANTA_STASH_F16;
        compare_copies(p, o, &t, "many keys rescued");
    }
    check_copies(t, "rescue");
    /* a q 2^70 times as long, with scores that are the same */
    ref_spec s = proxy_spec(500, 128, SANTA_BF16, 0);
    s.q_type = SANTA_F32;
    s.gain = 3.0;
    with_copy p(s);
    santa_options o = unguarded(64);
    o.proxy.rescue_above = 0.05;
    result r, longer;
    p.a.sm_scale = 0.09f;
    if (!run_on_gpu(p, o, &r)) return;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t c = 0; c < s.head_dim; c++)
                ref_set(&p.a.q, b, 0, h, c, ldexp(ref_get(&p.a.q, b, 0, h, c), 70));
    p.a.sm_scale = ldexpf(0.09f, -70);
    if (!run_on_gpu(p, o, &longer)) return;
    CHECK(r.stats.rescued_rows > 0 && r.same(longer));
    CHECK_INT(longer.stats.rescued_rows, r.stats.rescued_rows);
}

/* Rescued keys tell of a copy of other keys, of which the drawn ones may say little: such heads
   are done again; those of a right copy are not. Where scores spread by far more they are all
   far off; then nearly all, and as on the CPU. */
static void proxy_rescue_tells(void) {
    NEED_DEVICE();
    for (santa_method method : {SANTA_SYS, SANTA_PPS})
        for (santa_stash stash : {SANTA_STASH_F32, SANTA_STASH_U8})
            for (int turn = 0; turn < 4; turn++) {
                const bool spoilt = turn > 0;
                ref_spec s = proxy_spec(1500, 64, SANTA_BF16, 0);
                s.batch = 3;
                s.gain = turn < 2 ? 1.5 : turn < 3 ? 8.0 : 20.0;
                with_copy p(s);
                problem other([&] { ref_spec x = s; x.stream += 9; return x; }());
                if (spoilt) {
                    santa_attention a = other.a;
                    a.proxy = p.a.proxy;
                    a.proxy_bits = p.a.proxy_bits;
                    if (santa_proxy_encode(&a, 0, s.len, NULL) != SANTA_OK) { CHECK(0); return; }
                }
                santa_options o = proxy_options(128, stash);
                o.method = method;
                o.proxy.rescue_above = 1e-9;
                result r;
                if (!run_on_gpu(p, o, &r)) return;
                const int64_t heads = s.batch * s.heads, again = r.stats.redone_rows;
                santa_stats cpu;
                if (!ref_run(&p, &o, &cpu)) return;
                CHECK_MSG(r.stats.rescued_rows == heads
                              && (turn < 2 ? again == (spoilt ? heads : 0)
                                           : again * 8 >= heads * 7 && llabs(again - cpu.redone_rows) <= 1),
                          "method %d, stash %d, gain %g, %s copy: of %lld heads %lld rescued, %lld done "
                          "again, %lld on the CPU",
                          (int)method, (int)stash, s.gain, spoilt ? "a wrong" : "the right",
                          (long long)heads, (long long)r.stats.rescued_rows, (long long)again,
                          (long long)cpu.redone_rows);
            }
}

static void proxy_graphs(void) {
    NEED_DEVICE();
    for (int64_t requests : {1, 9}) {
        ref_spec s = proxy_spec(2000, 128, SANTA_BF16, 0);
        s.batch = requests;
        with_copy p(s);
        on_gpu g(p.a, proxy_options(128, SANTA_STASH_U8));
        if (!g.run()) break;
        const result direct = g.get();
        for (int i = 0; i < (test_quick ? 2 : 20); i++) {
            if (!g.run()) return;
            CHECK_MSG(direct.same(g.get()), "run %d differs", i);
        }
        captured graph([&](cudaStream_t stream) {
            const santa_status append = santa_proxy_append(&g.a, 100, stream);
            return append == SANTA_OK ? g.start(stream) : append;
        });
        if (!graph.good) break;
        graph.replay(g);
        const result x = g.get();
        int64_t off = 0;
        for (int64_t b = 0; b < requests; b++) off += !x.same_request(b, direct, b);
        CHECK_MSG(off * 20 <= requests + 19, "%lld requests of a replay differ", (long long)off);
    }
}

static void proxy_errors(void) {
    NEED_DEVICE();
    with_copy p(proxy_spec(300, 64, SANTA_BF16, 0));
    on_gpu g(p.a, proxy_options(32));
    const auto with = [&](const char *what, santa_status want,
                          void (*change)(santa_attention *, santa_options *)) {
        santa_attention a = g.a;
        santa_options   o = g.o;
        change(&a, &o);
        refuse(g, a, o, g.workspace(), (size_t)1 << 40, g.stats, want, what);
    };
    with("dense", SANTA_ERR_PROXY_METHOD,
         [](santa_attention *, santa_options *o) { o->method = SANTA_DENSE; });
    with("no copy", SANTA_ERR_PROXY_NULL, [](santa_attention *a, santa_options *) { a->proxy = NULL; });
    with("a copy at an odd address", SANTA_ERR_BACKEND_ALIGNMENT,
         [](santa_attention *a, santa_options *) { a->proxy = (char *)a->proxy + 8; });
    static char host[64];
    with("a copy on the host", SANTA_ERR_HOST_POINTER,
         [](santa_attention *a, santa_options *) { a->proxy = (char *)(((uintptr_t)host + 15) / 16 * 16);
         });
    santa_attention a = g.a;
    a.proxy = (char *)a.proxy + 4;
    CHECK_STATUS(santa_proxy_encode(&a, 0, 100, NULL), SANTA_ERR_BACKEND_ALIGNMENT);
    CHECK_STATUS(santa_proxy_append(&g.a, -1, NULL), SANTA_ERR_PROXY_RANGE);
    CHECK_STATUS(santa_proxy_append(&g.a, 0, NULL), SANTA_OK);
    CHECK_STATUS(santa_proxy_encode(&g.a, 1000, 2000, NULL), SANTA_OK);
    CHECK_STATUS(santa_proxy_append(&g.a, INT64_MAX, NULL), SANTA_OK);
    CUDA(cudaDeviceSynchronize());
}

/* -------------------------------------------------------------------------- selected keys */

/* Scores that are equal go to the lower key, whatever share of them is taken. */
static void selected_ties(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    for (int64_t kinds : {1, 5, 350}) {
        ref_spec s = spec16(8, 2, 700, 64);
        s.batch  = 2;
        s.ragged = 1;
        problem p(s);
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t j = kinds; j < s.len; j++)
                memcpy(p.k + (b * s.len + j) * 2 * 64, p.k + (b * s.len + j % kinds) * 2 * 64,
                       2 * 64 * sizeof *p.k);
        ref_write(&p);
        for (int64_t samples : {1, 3, 100, 139, 140, 141, 699, 700, 5000})
            compare(p, options(SANTA_TOP_K, samples), &t);
        for (double top_p : {0.001, 0.1, 0.5, 0.9, 1.0}) {
            santa_options o = options(SANTA_TOP_P, 0);
            o.top_p = top_p;
            compare(p, o, &t);
        }
    }
    CHECK_MSG(t.off <= 2, "%lld of %lld heads chose others among equals", (long long)t.off,
              (long long)t.rows);
}

/* Scores of 1e9 and more, which two kernels round otherwise: lse is that of the highest. */
static void selected_large_scores(void) {
    NEED_DEVICE();
    for (float scale : {1e8f, 1e12f, 1e30f})
        for (santa_dtype type : {SANTA_F32, SANTA_BF16}) {
            ref_spec s = spec16(8, 2, 70, 32);
            s.q_len    = 12;
            s.sm_scale = scale;
            s.q_type = s.k_type = s.v_type = type;
            problem p(s);
            std::vector<double> prob((size_t)s.len), out((size_t)s.head_dim_v);
            for (santa_method m : {SANTA_TOP_K, SANTA_TOP_P, SANTA_DENSE}) {
                result y;
                if (!run_on_gpu(p, options(m, m == SANTA_TOP_K ? 8 : 0), &y)) return;
                for (int64_t t = 0; t < s.q_len; t++)
                    for (int64_t h = 0; h < s.heads; h++) {
                        const double want = ref_dense(&p, 0, t, h, out.data(), prob.data());
                        CHECK_NEAR(y.lse[(size_t)(t * s.heads + h)], want, 0.0, 1e-5);
                    }
            }
        }
}

/* Equal scores far below 0, of which top-p takes as many as hold its mass; one key far above
   all others, each of which is next to nothing, and together they are not. */
static void selected_alike(void) {
    NEED_DEVICE();
    for (double score : {-1e6, -1e5, 1e5}) {
        ref_spec s = spec16(2, 1, 500, 64, SANTA_F32);
        s.sm_scale = 1.0f;
        problem p(s);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t c = 0; c < 64; c++) ref_set(&p.a.q, 0, 0, h, c, score / 64.0);
        for (int64_t j = 0; j < 500; j++) for (int64_t c = 0; c < 64; c++) ref_set(&p.a.k, 0, j, 0, c, 1.0);
        result r;
        if (!run_on_gpu(p, options(SANTA_TOP_P, 0), &r)) return;
        CHECK_MSG(r.stats.v_rows_head == 900, "score %g: %lld keys of two heads, not 900", score,
                  (long long)r.stats.v_rows_head);
    }
    const int64_t n = on_emulator ? 60000 : 1000000;
    ref_spec s = spec16(1, 1, n, 8, SANTA_F32);
    s.sm_scale = 1.0f;
    problem p(s);
    for (int64_t c = 0; c < 8; c++) ref_set(&p.a.q, 0, 0, 0, c, c ? 0.0 : 1.0);
    for (int64_t j = 0; j < n; j++) ref_set(&p.a.k, 0, j, 0, 0, j == n / 3 ? 22.2 : 0.0);
    result r;
    if (!run_on_gpu(p, options(SANTA_TOP_K, n), &r)) return;
    CHECK_NEAR(r.lse[0], log(exp((double)22.2f) + (double)(n - 1)), 4e-6, 0.0);
}

static void selected_lengths(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    for (int64_t n : {1, 63, 65, 1000, 20000}) {
        if (test_quick && n > 1000) break;
        ref_spec s = spec16(8, 2, n, 128);
        s.sinks  = 1;
        s.q_len  = n > 3 ? 3 : 1;
        s.causal = 1;
        s.window = n > 500 ? n - 100 : 0;
        problem p(s);
        for (int64_t samples : {1, 16, 200, 3000}) compare(p, options(SANTA_TOP_K, samples), &t);
        for (double top_p : {0.05, 0.7, 0.99}) {
            santa_options o = options(SANTA_TOP_P, 0);
            o.top_p = top_p;
            compare(p, o, &t);
        }
    }
    check_totals(t, "selected_lengths");
}

/* A NaN among the scores makes the head NaN; in V it shows where the row is chosen. A replay of
   a graph and another run give the same bits. */
static void selected_behaviour(void) {
    NEED_DEVICE();
    ref_spec s = spec16(8, 2, 900, 64);
    problem p(s);
    result good;
    for (santa_method m : SELECTING) {
        const santa_options o = options(m, 20);
        on_gpu g(p.a, o);
        if (!g.run()) return;
        good = g.get();
        CHECK(g.run() && good.same(g.get()));
        captured graph([&](cudaStream_t stream) { return g.start(stream); });
        if (!graph.good) return;
        graph.replay(g);
        CHECK(good.same(g.get()));
    }
    const santa_options o = options(SANTA_TOP_K, 20);
    for (int64_t j = 0; j < s.len; j++) { /* the last key of each head's order is far from chosen */
        double scores[900];
        ref_scores(&p, 0, 0, 0, scores);
        int64_t higher = 0;
        for (int64_t i = 0; i < s.len; i++) higher += scores[i] > scores[j];
        if (higher < 800) continue;
        result r;
        if (!run_on_gpu(p, o, &r)) return;
        for (int64_t c = 0; c < 64; c++) ref_set(&p.a.v, 0, j, 0, c, (double)test_nan());
        result other;
        if (!run_on_gpu(p, o, &other)) return;
        CHECK_INT(other.nans(0, 0, 0), 0);
        CHECK(other.same_row(0, 0, 0, r, 0));
        ref_set(&p.a.k, 0, j, 0, 0, (double)test_nan());
        if (!run_on_gpu(p, o, &other)) return;
        for (int64_t h = 0; h < 8; h++) CHECK_INT(other.nans(0, 0, h), h < 4 ? 65 : 0);
        break;
    }
}

/* From a copy of K: the CPU's keys, also where a byte has a score. */
static void selected_by_copy(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    int turn = 0;
    const auto run = [&](const ref_spec &s, int bits, int64_t samples, const char *name) {
        with_copy p(s, bits);
        santa_options o = unguarded(samples, STASHES[s.sm_scale > 1e3f ? 0 : turn++ % 3]);
        for (santa_method m : SELECTING) {
            o.method = m;
            if (m == SANTA_TOP_P) o.top_p = 0.1 * (double)(turn % 10);        /* 0: by default */
            santa_clear_unused_options(&o);
            compare_copies(p, o, &t, name);
        }
    };
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {64, 128, 256})
            for (int64_t page : {0, 16, 96}) {
                if (test_quick && (page || d != 128)) continue;
                ref_spec s = proxy_spec(900, d, type, page);
                s.ragged = (int)(d / 64 & 1);
                run(s, 4, 64, "types");
                run(s, 2, 200, "types");
            }
    for (int64_t samples : {1, 40, 300, 5000})
        run(proxy_spec(600, 64, SANTA_BF16, 0), 4, samples, "samples");
    for (int stash = 0; stash < 3; stash++)
        run(proxy_spec(test_quick ? 600 : 3000, 128, SANTA_BF16, 0), 4, 100, "many keys");
    for (int64_t n : {1, 64, 70, 200}) run(proxy_spec(n, 64, SANTA_BF16, 0), 4, 30, "lengths");
    for (float scale : {1e4f, 1e6f}) {                  /* scores far beyond what a byte holds */
        ref_spec s = proxy_spec(600, 64, SANTA_BF16, 0);
        s.sm_scale = scale;
        run(s, 4, 64, "far scores");
    }
    for (int64_t group : {1, 5, 9}) {
        ref_spec s = proxy_spec(500, 64, SANTA_F16, 0);
        s.heads  = 2 * group;
        s.sinks  = 1;
        s.q_len  = 2;
        s.causal = 1;
        s.window = 400;
        with_copy p(s);
        const int32_t lens[2] = {300, 100};
        for (santa_method m : SELECTING) {
            santa_options o = unguarded(50);
            o.method = m;
            santa_clear_unused_options(&o);
            p.a.proxy_lens = nullptr;
            compare_copies(p, o, &t, "groups");
            p.a.proxy_lens = lens;
            compare_copies(p, o, &t, "proxy_lens");
        }
    }
    CHECK_MSG(t.off * 20 <= t.rows, "%lld of %lld heads chose other keys", (long long)t.off,
              (long long)t.rows);
    printf("        %lld of %lld heads differ\n", (long long)t.off, (long long)t.rows);
}

/* -------------------------------------------------------------------------- lists of keys */

/* Rows of one head against float64. */
static bool lists_compare(const problem &p, const result &r, const char *what) {
    const ref_spec &s = p.spec;
    const bool wide = p.a.k.dtype == SANTA_F32;
    const double most = wide ? 2e-5 : 1e-3;         /* q is in two parts: products are nearly exact */
    std::vector<double> want((size_t)s.head_dim_v), got((size_t)s.head_dim_v);
    int64_t rows = 0, off = 0;
    double worst = 0.0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++) {
                int64_t count;
                const double lse = lists_dense(&p, b, i, h, want.data(), &count);
                const float mine = r.lse[(size_t)((b * s.q_len + i) * s.heads + h)];
                rows += count;
                double difference = 0.0, norm = 0.0;
                for (int64_t c = 0; c < s.head_dim_v; c++) {
                    const double d = ref_get(&r.out, b, i, h, c) - want[(size_t)c];
                    difference += d * d;
                    norm += want[(size_t)c] * want[(size_t)c];
                }
                const double error = sqrt(difference) / (sqrt(norm) + 0.05);
                worst = std::max(worst, error == error ? error : 1e30);
                off += !(error <= most)
                       || !(lse == -REF_INF ? (double)mine == lse : fabs((double)mine - lse) <= 2e-4);
            }
    return CHECK_MSG(off == 0, "%s: %lld heads are off, by up to %g", what, (long long)off, worst)
         & CHECK_MSG(r.stats.k_rows_read * (s.heads / s.kv_heads) == rows && r.stats.v_rows_head == rows,
                     "%s: stats differ", what);
}

static void lists_match_float64(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(73);
    for (int64_t n = 0; n < (test_quick ? 40 : 400); n++) {
        const ref_spec s = lists_spec(&r, n, n % 10 == 9 ? 3000 : 400);
        problem p(s);
        key_lists x = lists_build(&p, 1 + test_below(&r, n % 10 == 9 ? 20000 : 500), (int)test_below(&r, 2),
                                  (int)test_below(&r, 2), &r);
        lists_poison(&p);
        char what[160];
        snprintf(what, sizeof what,
                 "problem %d: types %d %d %d, heads %d/%d, dim %d/%d, page %d, layout %d, list %d", (int)n,
                 (int)s.q_type, (int)s.k_type, (int)s.v_type, (int)s.heads, (int)s.kv_heads,
                 (int)s.head_dim, (int)s.head_dim_v, (int)s.page_size, (int)s.layout, (int)p.a.max_list);
        result out;
        const bool good = run_on_gpu(p, options(SANTA_DENSE, 0), &out) && lists_compare(p, out, what);
        lists_free(&x);
        if (!good) break;
    }
}

/* Keys before kv_start are NaN and never read: every method and K, rows, pages, windows, lists
   and copies. */
/* First tokens beside a window: the CPU's rows and errors, for windows and first tokens that
   end within a block, in the same one, next to each other or overlap; what lies between is NaN,
   its pages are wild. */
static void first_tokens(void) {
    NEED_DEVICE();
    static const struct { int64_t window, first; } sizes[] = {
        {100, 4}, {250, 3}, {90, 64}, {128, 130}, {20, 90}, {275, 20}, {298, 5}, {7, 1000}, {66, 1}
    };
    static const int32_t starts[] = {0, 70, 10}, shorter[] = {285, 130, 300}, context[] = {300, 340, 320};
    totals t = {0, 0, 0};
    int turn = 0;
    for (const auto &size : sizes)
        for (santa_dtype type : {SANTA_BF16, SANTA_E4M3, SANTA_F32}) {
            turn++;
            if (test_quick && turn % 3 && turn > 6) continue;
            ref_spec s = spec16(8, 2, 300, 64, type);
            if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
            s.batch     = 3;
            s.ragged    = turn % 4 == 1;
            s.page_size = turn % 3 == 2 ? 16 : 0;
            s.q_len     = turn % 2 ? 3 : 1;
            s.causal    = turn % 4 != 3;
            s.sinks     = turn % 5 == 4;
            s.window    = size.window;
            problem p(s);
            const bool padded = turn % 3 == 1, shard = turn % 6 == 5 && !s.ragged;
            p.a.first_tokens = size.first;
            if (padded && !s.ragged) p.a.kv_start = starts;
            if (shard) {                            /* first tokens and the window may lie in others */
                p.a.first_key    = turn % 4 == 3 ? 0 : 15;
                p.a.context_lens = turn % 12 == 5 && turn > 6 ? nullptr : context;
                p.a.seq_lens     = shorter;
                p.a.kv_start     = NULL;
            }
            for (int64_t b = 0; b < s.batch; b++) {
                const int64_t len = s.ragged ? p.seq_lens[b] : s.len, all = shard ? context[b] : len,
                              from = (p.a.kv_start ? starts[b] : 0) + size.first,
                              to = all - s.q_len - s.window + 1;
                for (int64_t j = from; !shard && j < to && j < len; j++) spoil_key(&p, b, j);
                const int64_t pages = s.page_size && !shard ? to / 16 : 0;
                for (int64_t page = (from + 15) / 16; page < pages; page++)
                    p.block_table[b * p.a.max_pages + page] = 1 << 30;
            }
            for (santa_method m : METHODS) {
                p.a.std_error = NULL;
                santa_options o = options(m, 48, STASHES[turn % 3]);
                if (m == SANTA_FLASH) o.tile_size = turn % 2 ? 16 : 64;
                compare(p, o, &t);
                if (turn % 2 == 0) compare_errors(p, o, &t, "first_tokens");
            }
            p.a.std_error = NULL;
            compare(p, options(SANTA_TOP_K, 20), &t);
            santa_options o = options(SANTA_TOP_P, 0);
            o.top_p = 0.6;
            compare(p, o, &t);
        }
    check_totals(t, "first_tokens");

    /* many query rows, which dense's tiles would take */
    ref_spec s = spec16(8, 2, 300, 64);
    s.q_len  = 40;
    s.causal = 1;
    s.window = 60;
    problem many(s);
    many.a.first_tokens = 4;
    compare(many, options(SANTA_DENSE, 0), &t);

    /* a window that all keys are in leaves the bits of the call without first tokens */
    s = spec16(8, 2, 300, 64);
    s.window = 300;
    problem p(s);
    for (santa_method m : {SANTA_PROP, SANTA_FLASH, SANTA_PPS, SANTA_TOP_K}) {
        result with, without;
        p.a.first_tokens = 5;
        if (!run_on_gpu(p, options(m, 32), &with)) return;
        p.a.first_tokens = 0;
        if (!run_on_gpu(p, options(m, 32), &without)) return;
        CHECK(with.same(without));
    }
}

static void left_padding(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0}, copied = {0, 0, 0};
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3, SANTA_F32})
        for (int turn = 0; turn < 5; turn++) {
            static const int32_t starts[5][3] = {{0, 64, 77}, {299, 1, 300}, {65, 127, 128}, {5, 190, 40},
                                                 {150, 3, 290}};
            ref_spec s = spec16(8, 2, 300, 64);
            s.k_type = s.v_type = type;
            s.batch     = 3;
            s.page_size = turn == 3 ? 16 : 0;
            s.q_len     = turn == 2 ? 3 : 1;
            s.causal    = turn == 2;
            s.window    = turn == 4 ? 180 : 0;
            problem p(s);
            with_copy x(s);
            for (problem *y : {(problem *)&x, &p}) {
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t j = 0; j < starts[turn][b]; j++) spoil_key(y, b, j);
                y->a.kv_start = starts[turn];
            }
            for (santa_method m : METHODS) compare(p, options(m, 64, STASHES[turn % 3]), &t);
            compare_copies(x, unguarded(32), &copied, "left padding");
            result r;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
            for (int64_t b = 0; b < s.batch; b++)
                for (int64_t h = 0; h < s.heads; h++)
                    CHECK_MSG(r.nans(b, s.q_len - 1, h) == 0, "type %d, turn %d: NaN was read", (int)type,
                              turn);
            test_rng rng = test_rng_make(75);
            key_lists l = lists_build(&p, 200, 0, 1, &rng);
            if (run_on_gpu(p, options(SANTA_DENSE, 0), &r)) lists_compare(p, r, "left padding, lists");
            lists_free(&l);
        }
    check_totals(t, "left_padding");
    check_copies(copied, "left padding");

    /* what is out of range counts as the nearest that is not */
    ref_spec s = spec16(8, 2, 300, 64);
    s.batch = 2;
    problem p(s);
    static const int32_t wild[2] = {INT32_MIN, INT32_MAX}, tame[2] = {0, 300};
    for (int64_t first : {0, 4})                    /* of these, too, the first ones */
        for (santa_method m : METHODS) {
            result x, y;
            p.a.window = first ? 100 : 0;
            p.a.first_tokens = first;
            p.a.kv_start = wild;
            if (!run_on_gpu(p, options(m, 32), &x)) return;
            p.a.kv_start = tame;
            if (!run_on_gpu(p, options(m, 32), &y)) return;
            CHECK_MSG(x.same(y), "%s: wild kv_start, %lld first tokens", santa_method_name(m),
                      (long long)first);
        }
    s = spec16(8, 2, 300, 64);                      /* rows that are sampled may see no key */
    s.batch  = 2;
    s.q_len  = 100;
    s.causal = 1;
    problem many(s);
    santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
    o.sample_attention.dense_above = SANTA_NONE;
    o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = 0.3;
    result x, y;
    many.a.kv_start = wild;
    if (!run_on_gpu(many, o, &x)) return;
    many.a.kv_start = tame;
    if (!run_on_gpu(many, o, &y)) return;
    CHECK_MSG(x.same(y), "sample-attention: wild kv_start");
}

/* Keys past the sequence, bad weights and bad pages give NaN, in the rows that read them alone;
   padding and masked keys do not. */
static void lists_bad_entries(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int bad = 0; bad < 6; bad++) {
            ref_spec s = spec16(8, 2, 300, 64, SANTA_BF16);
            test_rng r = test_rng_make(74);
            s.k_type = s.v_type = type;
            s.batch = 2;
            s.page_size = 16;
            problem p(s);
            key_lists x = lists_build(&p, 200, 0, 1, &r);
            x.lens[2] = 200;                        /* sequence 1, KV head 0 */
            for (int i = 0; i < 200; i++) {
                x.keys[2 * x.stride + i] = i;
                x.weights[2 * x.stride + i] = 1.0f;
            }
            int32_t *const key = &x.keys[2 * x.stride + 150];
            float *const weight = &x.weights[2 * x.stride + 150];
            if (bad == 0) *key = 300;
            else if (bad == 1) *weight = -1.0f;
            else if (bad == 2) *weight = test_nan();
            else if (bad == 3) *weight = INFINITY;
            else if (bad == 4) p.block_table[p.a.max_pages + 3] = 1 << 20;
            else *key = -7, *weight = -1.0f;
            result out;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &out)) { lists_free(&x); return; }
            for (int64_t b = 0; b < 2; b++)
                for (int64_t h = 0; h < 8; h++) {
                    const bool hit = b == 1 && (h < 4 || bad == 4) && bad < 5;
                    const int64_t nans = out.nans(b, 0, h);
                    if (bad == 4 && h >= 4 && b == 1) continue;       /* if its list has a key there */
                    CHECK_MSG(nans == (hit ? 65 : 0), "type %d, bad %d: %d NaN in sequence %d, head %d",
                              (int)type, bad, (int)nans, (int)b, (int)h);
                }
            lists_free(&x);
        }
}

static void lists_same_bits(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(75);
    for (santa_dtype type : {SANTA_BF16, SANTA_F32}) {
        ref_spec s = spec16(8, 2, 3000, 128, type);
        s.batch = 3;
        problem p(s);
        key_lists x = lists_build(&p, 2500, 0, 1, &r);
        on_gpu g(p.a, options(SANTA_DENSE, 0));
        if (!g.run()) { lists_free(&x); return; }
        const result first = g.get();
        CHECK(g.run() && first.same(g.get()));
        /* a graph, whose lists change between replays */
        captured graph([&](cudaStream_t stream) { return g.start(stream); });
        if (!graph.good) return;
        const auto replay = [&] {
            graph.replay(g);
            return g.get();
        };
        CHECK(first.same(replay()));
        const std::vector<int32_t> none((size_t)x.count, 0);
        CUDA(cudaMemcpy((void *)g.a.key_list_lens, none.data(), 4 * none.size(), cudaMemcpyHostToDevice));
        const result empty = replay();
        int64_t not_empty = 0;
        for (float lse : empty.lse) not_empty += lse != -INFINITY;
        CHECK_INT(not_empty, 0);
        CUDA(cudaMemcpy((void *)g.a.key_list_lens, x.lens, 4 * none.size(), cudaMemcpyHostToDevice));
        CHECK(first.same(replay()));
        /* room for longer lists changes nothing, nor does the rest of the batch */
        std::vector<int32_t> more((size_t)(x.count * 4000), 1 << 30);
        std::vector<float> weights(more.size(), test_nan());
        for (int64_t i = 0; i < x.count; i++) {
            memcpy(&more[(size_t)(4000 * i)], x.keys + i * x.stride, 4 * 2500);
            memcpy(&weights[(size_t)(4000 * i)], x.weights + i * x.stride, 4 * 2500);
        }
        p.a.key_list = more.data();
        p.a.key_weights = weights.data();
        p.a.max_list = p.a.key_list_stride = 4000;
        result out;
        CHECK(run_on_gpu(p, options(SANTA_DENSE, 0), &out) && first.same(out));
        lists_free(&x);
    }
}
#include "test_below.h"
#include "test_steps.h"
#include "test_saap.h"
#include "test_prefill.h"
#include "test_rows.h"

/* ----------------------------------------------------------------------------------- list */

#include "test_vattention.h"
#include "test_scales.h"
#include "test_types.h"
#include "test_items.h"
#include "test_coded.h"
#include "test_any.h"
#include "test_many.h"

static const test_case against_cpu[] = {{"methods_and_stashes", methods_and_stashes},
                                        {"types", types},
                                        {"head_dims", head_dims},
                                        {"groups", groups},
                                        {"wide_groups", wide_groups},
                                        {"plain_rows", plain_rows},
                                        {"lengths", lengths},
                                        {"paged", paged},
                                        {"layouts", layouts},
                                        {"query_rows", query_rows},
                                        {"extras", extras},
                                        {"left_padding", left_padding},
                                        {"first_tokens", first_tokens},
                                        {"shards", shards},
                                        {"sample_counts", sample_counts},
                                        {"std_errors", std_errors},
                                        {"dense_below", dense_below},
                                        {"combs", combs},
                                        {"flash_tiles", flash_tiles},
                                        {"largest_dither", largest_dither},
                                        {"long_context", long_context},
                                        {"moved_draws", moved_draws},
                                        {"every_kernel", every_kernel},
                                        {"random_problems", random_problems},
                                        {"random_methods", random_methods},
                                        {"large_k", large_k},
                                        {0, 0}};
static const test_case behaviour[] = {
    {"unbiased", unbiased}, {"poison_is_not_read", poison_is_not_read}, {"nan_in_k_shows", nan_in_k_shows},
    {"nan_in_sinks", nan_in_sinks}, {"no_mass_beside_nan", no_mass_beside_nan},
    {"bad_tables", bad_tables}, {"graphs", graphs}, {"same_in_any_batch", same_in_any_batch},
    {"same_on_any_page_size", same_on_any_page_size}, {"same_at_any_alignment", same_at_any_alignment},
    {"same_on_every_run", same_on_every_run}, {"merge", merge},
    {"errors", errors}, {"cuda_errors", cuda_errors}, {"second_device", second_device},
    {0, 0}
};
static const test_case copies[] = {{"proxy_encode", proxy_encode},
                                   {"proxy_encode_extremes", proxy_encode_extremes},
                                   {"proxy_encode_many", proxy_encode_many},
                                   {"proxy_same_rows", both_ways<proxy_same_rows>},
                                   {"proxy_any_copy", both_ways<proxy_any_copy>},
                                   {"moved_draws_long", moved_draws_long},
                                   {"proxy_nan_in_v", both_ways<proxy_nan_in_v>},
                                   {"proxy_poison", both_ways<proxy_poison>},
                                   {"proxy_redo", both_ways<proxy_redo>},
                                   {"proxy_rescue", both_ways<proxy_rescue>},
                                   {"proxy_rescue_tells", both_ways<proxy_rescue_tells>},
                                   {"proxy_graphs", both_ways<proxy_graphs>},
                                   {"proxy_errors", proxy_errors},
                                   {0, 0}};

static const test_case selected[] = {
    {"selected_ties", selected_ties}, {"selected_lengths", selected_lengths},
    {"selected_large_scores", selected_large_scores}, {"selected_alike", selected_alike},
    {"selected_sets", selected_sets}, {"selected_behaviour", selected_behaviour},
    {"selected_by_copy", selected_by_copy},
    {0, 0}
};
static const test_case lists[] = {
    {"many_heads", many_heads}, {"many_heads_apart", many_heads_apart},
    {"latents_of_many_sequences", latents_of_many_sequences},
    {"latents_of_far_scores", latents_of_far_scores},
    {"many_scores_a_step_apart", many_scores_a_step_apart},
    {"lists_match_float64", lists_match_float64}, {"lists_bad_entries", lists_bad_entries},
    {"lists_same_bits", lists_same_bits},
    {0, 0}
};

static const test_case steps[] = {
    {"steps_match_cpu", steps_match_cpu}, {"steps_edges", steps_edges}, {"steps_errors", steps_errors},
    {0, 0}
};

#define TEST_SUITES                                                                                        \
    {"gpu_against_cpu", against_cpu}, {"gpu", behaviour}, {"gpu_proxy", copies}, {"gpu_lists", lists},     \
        {"gpu_selected", selected}, {"gpu_ranks", over_ranks}, {"gpu_vattention", va_cases},               \
        {"gpu_saap", saap_cases}, {"gpu_prefill", prefill_cases}, {"gpu_rows", row_cases},                 \
        {"gpu_steps", steps},                                                                              \
        {"gpu_scales", scale_cases}, {"gpu_types", type_cases}, {"gpu_items", item_cases},                 \
        {"gpu_coded", coded_cases}, {"gpu_any", any_cases},
#include "../main.c"
