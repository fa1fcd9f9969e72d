/* The host side of santa_cuda.cu with a stand-in for the CUDA runtime: checks, layouts and
   launches, on any machine.
     mkdir -p build
     g++ -std=c++17 -Itest/cuda/standin test/cuda/test_launches.cpp -o build/test_launches
   Pointers to device memory are numbers here. What a launch may be is decided by
   standin/cuda_runtime.h; what it must be for its problem is worked out below from the problem
   alone. */
#define SANTA_CUDA_TILE_ROWS ((i64)512 << 20)         /* as it is shipped */
#include "launched.h"
#define SANTA_IMPLEMENTATION
#define SANTA_NO_SIMD
#include "../../santa_cuda.cu"
#include "../harness.h"
#include <stdio.h>
#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

static char produced[SANTA_STATUS_COUNT];            /* which statuses were seen */

static santa_status note(santa_status s) {
    if ((unsigned)s < (unsigned)SANTA_STATUS_COUNT) produced[s] = 1;
    return s;
}

/* ------------------------------------------------------------------------------- problems */

enum region {
    R_Q, R_K, R_V, R_OUT, R_LSE, R_STATS, R_WORKSPACE, R_LENS, R_TABLE, R_SINKS, R_SLOPES, R_SEEDS,
    R_OFFSETS, R_IDS, R_COPY, R_COPY_LENS, R_LIST, R_LIST_LENS, R_WEIGHTS, R_HEAVY, R_AUDIT, R_ERROR,
    R_MASK, R_MASK_OUT, R_BLOCK_AUDIT, R_ROW_MASS, R_K_SCALES, R_V_SCALES, REGIONS,
    R_ROUTER = R_LIST                                /* there are no lists beside it */
};

/* Not where programs lie: 0x55.. */
static char *address(int r) { return (char *)((uintptr_t)(r < 20 ? r + 1 : r + 8) << 42); }

/* Every region is device memory from its address on; workspace and stats are as large as they
   must be. */
static void map_memory(size_t workspace, size_t shift) {
    standin.memory.clear();
    for (int r = 0; r < REGIONS; r++) {
        const uint64_t bytes = r == R_WORKSPACE ? shift + workspace
                               : r == R_STATS   ? sizeof(santa_stats)
                                                : (uint64_t)1 << 42;
        const cudaMemoryType type = r == R_STATS ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
        standin.memory.push_back({(uintptr_t)address(r), bytes, type});
    }
}

struct problem {
    santa_attention a;
    santa_options   o;
    santa_stats    *stats;
    santa_buckets   router;                          /* see add_router: a points to it then */
    santa_method    asked;                           /* dense stands for it, see as_dense; 0: no other */
    int64_t         d;                               /* head_dim, where k's rows are filled up; or 0 */

    santa_tensor *tensor(int i) { return i == 0 ? &a.q : i == 1 ? &a.k : i == 2 ? &a.v : &a.out; }
};

enum order { NHD, HND, BACKWARDS, STRIDED, ONE_BATCH, ORDERS };

/* Products of wild sizes wrap: the library has to look at what comes of it. */
static int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

static void set_strides(santa_tensor *t, int how) {
    t->stride[3] = how == STRIDED ? 3 : 1;
    if (how == HND) {
        t->stride[1] = t->shape[3];
        t->stride[2] = times(t->shape[1], t->stride[1]);
        t->stride[0] = times(t->shape[2], t->stride[2]);
    } else {
        t->stride[2] = times(t->shape[3], t->stride[3]);
        t->stride[1] = times(t->shape[2], t->stride[2]);
        t->stride[0] = how == ONE_BATCH ? 0 : times(t->shape[1], t->stride[1]);
    }
    if (how == BACKWARDS) t->stride[1] = times(t->stride[1], -1);
}

struct sizes {
    int64_t batch, q_len, heads, kv_heads, keys, d, dv, page;
    santa_dtype type;
    int order;
};

static problem make(const sizes &s, santa_method method) {
    problem p;
    memset(&p, 0, sizeof p);
    const int64_t pages = s.page ? (s.keys - 1) / s.page + 1 : 0;
    const int64_t n0 = s.page ? times(s.batch, pages) : s.batch, n1 = s.page ? s.page : s.keys;
    const int64_t shape[4][4] = {{s.batch, s.q_len, s.heads, s.d},
                                 {n0, n1, s.kv_heads, s.d},
                                 {n0, n1, s.kv_heads, s.dv},
                                 {s.batch, s.q_len, s.heads, s.dv}};
    for (int i = 0; i < 4; i++) {
        santa_tensor *t = p.tensor(i);
        t->data   = address(R_Q + i);
        t->dtype  = s.type == SANTA_E4M3 && (i == 0 || i == 3) ? SANTA_BF16 : s.type;
        t->device = SANTA_CUDA;
        for (int k = 0; k < 4; k++) t->shape[k] = shape[i][k];
        set_strides(t, s.order == ONE_BATCH && i == 3 ? (int)NHD : s.order);
    }
    if (s.page) {
        p.a.block_table = (const int32_t *)address(R_TABLE);
        p.a.max_pages   = pages;
    }
    p.a.lse    = (float *)address(R_LSE);
    p.o.method = method;
    return p;
}

static const sizes SMALL = {2, 1, 8, 2, 1000, 128, 128, 0, SANTA_BF16, NHD};

/* ------------------------------------------------------------------ what a launch must be */

static int64_t over(int64_t n, int64_t size) { return (n - 1) / size + 1; }
static int64_t bytes_of(santa_dtype t) {
    return t == SANTA_F32 ? 4 : t == SANTA_E4M3 || t == SANTA_E5M2 ? 1 : 2;
}
static int64_t byte_stride(const santa_tensor &t, int i) {
    const int64_t block = t.dtype == SANTA_Q8_0 ? 34 : t.dtype == SANTA_Q4_0 ? 18 : 0;
    return block ? t.stride[i] / 32 * block : t.stride[i] * bytes_of(t.dtype);
}

/* A part of the workspace that a kernel is given: its place and how much of it is used. */
struct part { const char *what; const void *at; uint64_t bytes; unsigned align; };

static void check_parts(const std::vector<part> &parts, const char *workspace, uint64_t bytes,
                        const std::string &name) {
    const uintptr_t begin = (uintptr_t)workspace, end = begin + bytes;
    for (size_t i = 0; i < parts.size(); i++) {
        const part &x = parts[i];
        const uintptr_t at = (uintptr_t)x.at;
        CHECK_MSG(at >= begin && at <= end && x.bytes <= end - at, "%s: %s leaves the workspace",
                  name.c_str(), x.what);
        CHECK_MSG(at % x.align == 0, "%s: %s is not aligned", name.c_str(), x.what);
        for (size_t k = 0; k < i; k++) {
            const uintptr_t other = (uintptr_t)parts[k].at;
            CHECK_MSG(at + x.bytes <= other || other + parts[k].bytes <= at, "%s: %s and %s overlap",
                      name.c_str(), x.what, parts[k].what);
        }
    }
}

/* Rows start on 16 bytes, features are side by side. */
static bool in_pieces(const santa_tensor &t) {
    const int64_t size = bytes_of(t.dtype);
    for (int i = 0; i < 3; i++) if (t.stride[i] * size % 16) return false;
    return t.stride[3] == 1 && (uintptr_t)t.data % 16 == 0;
}
static bool aligned(const santa_tensor &t) { return t.dtype < SANTA_Q8_0 && in_pieces(t); }
static bool is_eight(santa_dtype t) { return t == SANTA_E4M3 || t == SANTA_E5M2; }

/* f16 and bf16 share kernels. */
static const char *kernel_type(santa_dtype t) {
    return t == SANTA_F32 ? "float" : is_eight(t) ? "e4m3" : "sixteen";
}

static bool divides_by(const divisor &d, int64_t n) {
    return d.d == (unsigned)n && d.quotient(0) == 0 && d.quotient(INT32_MAX) == (unsigned)(INT32_MAX / n)
           && d.quotient((unsigned)(INT32_MAX / n * n) - 1u) == (unsigned)((INT32_MAX / n * n - 1) / n);
}

/* What a split of dense holds of a row of so many keys, by kernels that know 0, 1 or 2 of the
   smaller sizes; splits that a row of up to `most` keys can have, where it may begin within
   one. */
static int64_t split_size(int64_t keys, int smaller) {
    return keys <= 512 && smaller ? 128 : keys <= 2048 && smaller == 2 ? 256 : keys <= 8192 ? 512 : 1024;
}
/* Of so many rows; not causal, the first one sees the later ones' keys. */
static int64_t keys_seen(const santa_attention &a, int64_t capacity, int64_t rows = 1) {
    const int64_t later = a.causal ? rows - 1 : a.q.shape[1] - 1;
    return a.window && a.window < capacity && later < capacity - a.window ? a.window + later : capacity;
}
static int64_t dense_splits(const santa_attention &a, int64_t most, int smaller = 2, int64_t rows = 1) {
    const int64_t capacity = a.block_table ? a.max_pages * a.k.shape[1] : a.k.shape[1];
    int64_t room = 0;
    const int64_t seen = keys_seen(a, capacity, rows);
    if (seen < most) most = seen;
    for (const int64_t longest : {(int64_t)512, (int64_t)2048, (int64_t)8192, most}) {
        const int64_t keys = longest < most ? longest : most, size = split_size(keys, smaller),
                      all = over(capacity, size), here = over(keys, size) + (a.window || a.kv_start);
        if (room < (here < all ? here : all)) room = here < all ? here : all;
    }
    return room;
}

/* Parts of k_list_many and k_list_groups: the most of any list of up to so many keys. */
static int64_t many_parts(int64_t keys) {
    const struct { int64_t most, size; } kinds[] = {{512, 128},   {1024, 192},   {2048, 256},
                                                    {4096, 384},  {8192, 512},   {16384, 768},
                                                    {32768, 1024}, {65536, 1536}, {INT64_MAX, 2048}};
    int64_t parts = 0;
    for (const auto &kind : kinds) {
        parts = std::max(parts, over(std::min(keys, kind.most), kind.size));
        if (keys <= kind.most) break;
    }
    return parts;
}
/* Whether that takes K and V, but for how they lie. */
static bool is_many(const santa_attention &a) {
    const int64_t d = a.k.shape[3], dv = a.v.shape[3];
    return (a.k.dtype == SANTA_F16 || a.k.dtype == SANTA_BF16) && a.v.dtype == a.k.dtype
        && a.q.dtype == a.k.dtype && !a.k_scales.data && !a.v_scales.data && (d > 256 || dv > 256)
        && d <= 576 && dv <= 512 && d % 8 == 0 && dv % 8 == 0;
}

static bool is_copied(const problem &x) { return x.o.scores == SANTA_SCORES_PROXY; }
static bool is_drawn(const problem &x) { return is_copied(x) || x.o.method == SANTA_PPS; }
/* For k_weighed_error, which reads it. */
static bool keeps_lse(const problem &x) {
    return x.a.std_error && !x.a.lse && (is_drawn(x) || x.o.method == SANTA_VATTENTION);
}
/* Head_dims with two sets of slots in k_scores. */
static bool knows_two_sets(int type, int64_t d) { return d <= 128 && (d > 64 || type != SANTA_E4M3); }
/* Query rows of a pass of dense that the workspace has room for, however K and V lie. */
static int64_t rows_room(const santa_attention &a, int64_t below) {
    const int64_t group = a.q.shape[2] / a.k.shape[2], d = a.k.shape[3], dv = a.v.shape[3],
                  most = d > dv ? d : dv, rows = group < 16 ? 16 / group : 1;
    const bool wide = a.k.dtype == SANTA_F16 || a.k.dtype == SANTA_BF16,
               q_suits = wide ? a.q.dtype == a.k.dtype : a.q.dtype == SANTA_F16 || a.q.dtype == SANTA_BF16;
    const bool suits = (wide ? most <= 256 : is_eight(a.k.dtype) && knows_two_sets(a.k.dtype, most))
                    && q_suits && a.v.dtype == a.k.dtype && !a.k_scales.data && !a.v_scales.data
                    && !a.alibi_slopes && !a.std_error && !a.first_tokens && below <= 0;
    return !suits ? 1 : rows < a.q.shape[1] ? rows : a.q.shape[1];
}
/* What is the same in every launch: the problem. */
static void check_parameters(const problem &x, const params &p, int64_t row, const std::string &name,
                             int64_t splits = -1) {
    const santa_attention &a = x.a;
    const char *const kernel = name.c_str();
    const void *const data[4] = {p.q, p.k, p.v, p.out};
    const i64 *const stride[4] = {p.q_stride, p.k_stride, p.v_stride, p.out_stride};
    const bool tiles = (name.compare(0, 9, "k_prefill") == 0 && name != "k_prefill_stats")
                    || name == "k_sample";
    const int type[4] = {p.q_type, p.k_type, p.v_type, p.out_type};
    for (int i = 0; i < 4; i++) {
        const santa_tensor &t = *const_cast<problem &>(x).tensor(i);
        bool same = data[i] == t.data && type[i] == (int)t.dtype;
        if (tiles && i == 0) same &= p.q_numbers == t.shape[3] && p.q_chunks == over(t.shape[3], 64);
        for (int k = 0; k < 4; k++) same &= stride[i][k] == byte_stride(t, k);
        CHECK_MSG(same, "%s: tensor %d is another", kernel, i);
    }
    CHECK_MSG(p.q_len == a.q.shape[1] && p.heads == a.q.shape[2] && p.group == a.q.shape[2] / a.k.shape[2]
                  && p.d == (x.d ? x.d : a.k.shape[3]) && p.dv == a.out.shape[3] && p.q_index == row,
              "%s: sizes", kernel);
    const int64_t keys = a.block_table ? a.max_pages * a.k.shape[1] : a.k.shape[1];
    const bool dense = x.o.method == SANTA_DENSE || x.o.method == SANTA_SAMPLE_ATTENTION;
    const bool filled_up = a.v.shape[3] != p.dv || a.k.shape[3] != p.d;
    const bool listable = keys <= INT32_MAX - 65536 * 128;
    const int64_t of_many = is_many(a) && !filled_up && listable ? many_parts(keys) : 0,
                  of_rows = dense ? dense_splits(a, keys, 2, rows_room(a, x.o.dense_below)) : 0,
                  of_dense = dense ? std::max(of_rows, of_many) : 0;
    CHECK_MSG(p.capacity == keys && p.blocks == over(keys, 64)
                  && (a.key_list || p.splits == (splits < 0 ? of_dense : splits)), "%s: keys", kernel);
    CHECK_MSG((int64_t)p.blocks * 64 <= INT32_MAX, "%s: the last block ends outside int", kernel);
    CHECK_MSG(p.table == a.block_table && p.seq_lens == a.seq_lens && p.sinks == a.sinks
                  && p.slopes == a.alibi_slopes && (keeps_lse(x) || p.lse == a.lse) && p.stats == x.stats
                  && p.std_error == a.std_error && p.kv_start == a.kv_start,
              "%s: pointers", kernel);
    CHECK_MSG(p.seeds == (const u64 *)x.o.seeds && p.offsets == (const u64 *)x.o.offsets
                  && p.ids == (const u64 *)x.o.request_ids && p.seed == x.o.seed && p.offset == x.o.offset,
              "%s: random", kernel);
    CHECK_MSG(p.method == (int)(x.asked ? x.asked : x.o.method) && p.causal == a.causal
                  && p.window == a.window && p.soft_cap == a.soft_cap,
              "%s: options", kernel);
    for (int i = 0; i < 2; i++) {
        const santa_tensor &t = i ? a.v_scales : a.k_scales;
        const row_scales &got = i ? p.v_scales : p.k_scales;
        bool same = got.data == t.data;
        for (int k = 0; k < 3 && t.data; k++)
            same &= got.type == (int)t.dtype && got.stride[k] == byte_stride(t, k);
        CHECK_MSG(same, "%s: other scales of rows", kernel);
    }
    CHECK_MSG(!(a.k_scales.data || a.v_scales.data)
                  || (!tiles && name.compare(0, 9, "k_encode_") != 0 && name.compare(0, 7, "k_list<") != 0),
              "%s knows no scales of rows", kernel);
    const int64_t page = a.k.shape[1], pages = a.k.shape[0] < INT32_MAX ? a.k.shape[0] : INT32_MAX;
    CHECK_MSG(p.eights == (!a.block_table || page % 8 == 0), "%s: keys that share a page", kernel);
    if (!a.block_table) return;
    CHECK_MSG(divides_by(p.by_page, page) && p.pages == pages
                  && p.table_stride == (a.block_table_stride ? a.block_table_stride : a.max_pages),
              "%s: pages", kernel);
}

static void check_grid(const standin_launch &l, int64_t x, int64_t y, int64_t z, const std::string &name) {
    CHECK_MSG(l.grid.x == x && l.grid.y == y && l.grid.z == z,
              "%s: grid %u x %u x %u, want %lld x %lld x %lld", name.c_str(), l.grid.x, l.grid.y, l.grid.z,
              (long long)x, (long long)y, (long long)z);
}

/* K and its features fit the tensor cores' kernels. */
static void check_cores(const problem &x, const char *type, int C, const std::string &name) {
    const santa_tensor &k = x.a.k;
    CHECK_MSG(!strcmp(type, kernel_type(k.dtype)), "%s: K is another type", name.c_str());
    CHECK_MSG(aligned(k) && k.shape[3] <= 32 * C && k.shape[3] % (k.dtype == SANTA_E4M3 ? 16 : 8) == 0,
              "%s: K does not suit", name.c_str());
}

/* Numbers that a q has in K's type on tensor cores; 0: it is as it is. Slots of 8 for each. */
static int query_parts(const santa_attention &a) {
    const santa_dtype q = a.q.dtype, k = a.k.dtype;
    const int64_t group = a.q.shape[2] / a.k.shape[2];
    if (q == k) return 0;
    if (q == SANTA_F32) return k == SANTA_BF16 && group < 3 ? 3 : 2;
    return is_eight(k) ? 0 : k == SANTA_BF16 ? 2 : 1;
}
static int64_t stream_slices(const params &p) { return over(p.group, p.q_parts > 1 ? 4 : 8); }

/* The same for the streams. */
static void check_stream(const problem &x, const params &p, const char *type, int C, const char *paged,
                         const std::string &name) {
    const santa_tensor &k = x.a.k;
    const bool any = k.dtype == SANTA_E5M2 || (k.dtype == SANTA_E4M3 && C == 4 && !strcmp(paged, "true"));
    CHECK_MSG(!strcmp(type, any ? "any_eight" : kernel_type(k.dtype)), "%s: K is another type",
              name.c_str());
    CHECK_MSG((aligned(k) || (k.dtype == SANTA_E5M2 && in_pieces(k))) && k.shape[3] <= 32 * C
                  && k.shape[3] % (is_eight(k.dtype) ? 16 : 8) == 0,
              "%s: K does not suit", name.c_str());
    const bool extras = x.a.soft_cap > 0.0f || x.a.alibi_slopes;
    CHECK_INT(p.q_parts, query_parts(x.a));
    CHECK_INT(p.slice_heads, p.q_parts > 1 ? 4 : 8);
    const int64_t heads = p.group > 4 ? 4 : p.group;
    CHECK_MSG(p.q_parts < 2 ? p.part_shift == 3
                            : p.q_parts <= 8 >> p.part_shift && heads <= 1 << p.part_shift,
              "%s: slots of a part", name.c_str());
    CHECK_MSG(p.special == (p.q_parts || extras)
                  && p.block_scale == (extras ? 1.0f : p.scale),
              "%s: what scores are", name.c_str());
}

static uint64_t ring_bytes(const problem &x, int C) {
    /* of 32 lanes, 16 bytes each */
    const uint64_t loads = (uint64_t)(is_eight(x.a.k.dtype) ? C : 2 * C);
    return 8 * (24 / loads) * loads * 32 * 16;
}

/* The rings of 4 warps, behind `before` bytes, and q, so many times: what comes there by
   pieces, and what is not f32 then. */
static void check_plain(const problem &x, const standin_launch &l, const params &p, uint64_t before,
                        uint64_t queries, const std::string &name) {
    const auto staged = [](santa_tensor t) {        /* pieces of 1 << this bytes */
        const int64_t block = t.dtype == SANTA_Q8_0 ? 34 : t.dtype == SANTA_Q4_0 ? 18 : 0, d = t.shape[3];
        if (!block) {
            if (t.dtype == SANTA_E5M2) t.dtype = SANTA_E4M3;
            return aligned(t) && d * bytes_of(t.dtype) % 16 == 0 ? 4 : 0;
        }
        for (int piece : {8, 4}) {
            bool good = (uintptr_t)t.data % piece == 0 && d / 32 * block % piece == 0;
            for (int i = 0; i < 3; i++) good = good && byte_stride(t, i) % piece == 0;
            /* a lane has one piece of up to 128 numbers */
            if (good && (d < 128 ? d : 128) / 32 * block <= 32 * piece) return piece == 8 ? 3 : 2;
        }
        return 0;
    };
    santa_tensor k = x.a.k, v = x.a.v;
    k.shape[3] = p.d;                                /* of rows that are filled up as well */
    v.shape[3] = p.dv;
    CHECK_INT(p.staged_k, staged(k));
    CHECK_INT(p.staged_v, staged(v));
    CHECK_MSG(p.query_pitch == 0 || (p.query_pitch >= k.shape[3] && p.query_pitch % 32 == 0),
              "%s: %d floats of a query", name.c_str(), p.query_pitch);
    CHECK_MSG(p.query_pitch > 0 || k.shape[3] > 256, "%s: q has no room", name.c_str());
    CHECK_MSG(p.plain_slots == 2 || p.plain_slots == 3, "%s: %d slots", name.c_str(), p.plain_slots);
    const uint64_t bytes = before + (uint64_t)(4 * p.plain_slots * 16 * 512)
                         + queries * 8 * (uint64_t)p.query_pitch * 4;
    CHECK_MSG(l.dynamic == bytes, "%s: %llu bytes of shared memory", name.c_str(),
              (unsigned long long)l.dynamic);
}

/* dense_below: the number, which is 0 where there is none; whether every row is below it; how
   many splits dense has of the rows that are, where some may be. */
static int64_t dense_below(const problem &x) {
    const int64_t samples = x.o.num_samples ? x.o.num_samples : 128;
    if (!(santa_method_traits(x.o.method) & SANTA_DRAWS)) return 0;
    return x.o.dense_below == SANTA_AUTO ? 16 * samples : x.o.dense_below;
}
static int64_t capacity_of(const santa_attention &a) {
    return a.block_table ? times(a.max_pages, a.k.shape[1]) : a.k.shape[1];
}
static bool all_below(const problem &x) { return dense_below(x) > keys_seen(x.a, capacity_of(x.a)); }
/* As the host can know. */
static bool none_below(const problem &x) {
    const santa_attention &a = x.a;
    const int64_t keys = capacity_of(a), least = a.causal ? keys - a.q.shape[1] + 1 : keys,
                  below = dense_below(x);
    const bool alike = !a.seq_lens && !a.context_lens && !a.kv_start;
    return !below || (alike && below <= least && (!a.window || below <= a.window));
}
static int64_t short_splits(const problem &x, const params &p) {
    if (none_below(x) || all_below(x)) return 0;
    return dense_splits(x.a, dense_below(x) < p.capacity ? dense_below(x) : p.capacity);
}
static problem as_dense(const problem &x) {
    problem y = x;
    if (!all_below(x)) return y;
    y.asked = x.o.method;
    y.o.method = SANTA_DENSE;
    y.o.scores = SANTA_SCORES_EXACT;
    return y;
}

/* K or V of blocks that tensor cores take as they are: rows of 64 or 128 numbers, by pieces of
   8 or 4 bytes. */
static bool are_blocks(const santa_tensor &t) {
    const int64_t d = t.shape[3], bytes = d / 32 * (t.dtype == SANTA_Q8_0 ? 34 : 18);
    if ((t.dtype != SANTA_Q8_0 && t.dtype != SANTA_Q4_0) || (d != 64 && d != 128)) return false;
    int64_t all = bytes | (int64_t)(uintptr_t)t.data;
    for (int i = 0; i < 3; i++) all |= byte_stride(t, i);
    return all % 4 == 0 && (all % 8 == 0 || bytes <= 128);
}
static bool suits_score_blocks(const santa_attention &a) {
    return are_blocks(a.k) && !a.k_scales.data && !a.v_scales.data;
}
static bool suits_blocks(const santa_attention &a) { return suits_score_blocks(a) && are_blocks(a.v); }

/* Query rows whose heads fit in so many slots, if a grid has places for them. */
static int64_t rows_in(int64_t slots, const santa_attention &a) {
    const int64_t group = a.q.shape[2] / a.k.shape[2], most = group < slots ? slots / group : 1,
                  rows = most < a.q.shape[1] ? most : a.q.shape[1];
    return rows * a.q.shape[0] > 65535 ? 1 : rows;
}
/* In those of k_scores. */
static int64_t rows_in_slots(const santa_attention &a) {
    const int64_t slots = knows_two_sets(a.k.dtype, a.k.shape[3]) ? 16 : 8;
    return rows_in(slots, a);
}

/* Digits of q and their places for either kernel of blocks. */
static void check_digits(const params &p, const std::string &name) {
    CHECK_MSG(p.staged_k >= 2 && p.staged_k <= 3, "%s: pieces", name.c_str());
    CHECK_MSG((p.group < 8 ? p.group : 8) <= 1 << p.part_shift && 3 << p.part_shift <= 8 * p.q_sets
                  && p.q_sets <= 3, "%s: slots", name.c_str());
}

/* e5m2, e4m3 of head_dims other than 128, and rows with scales, go by the kernels with a table,
   if there is one or not. */
static const char *by_pages(const santa_attention &a, int C, bool scaled, bool for_both = false) {
    const bool shares = a.k.dtype == SANTA_E5M2 || (is_eight(a.k.dtype) && C != 4) || scaled
                     || for_both;
    return a.block_table || shares ? "true" : "false";
}

/* k_dense that joins its splits itself, see check_dense. */
static bool is_joined(const std::string &name) {
    const std::string way = "(dense_way)" + std::to_string(JOINS_SPLITS) + ">";
    return name.compare(0, 8, "k_dense<") == 0 && name.rfind(way) == name.size() - way.size();
}
/* Query rows of a pass of dense, of those from `row` on. */
static int64_t dense_rows(const santa_attention &a, int64_t row) {
    const int64_t most = rows_room(a, 0), left = a.q.shape[1] - row;
    const bool suits = in_pieces(a.k) && in_pieces(a.v) && (!a.block_table || a.k.shape[1] % 8 == 0);
    const int64_t rows = suits ? most : 1;
    return rows < left ? rows : left;
}
/* What joins splits: of many heads, or 8 splits at most, a warp for each. */
static bool is_combine(const std::string &name) { return name == "k_combine" || name == "k_combine_few"; }
static void check_combine(const problem &x, const standin_launch &l, const params &p,
                          const std::string &name) {
    const int64_t heads = p.heads, batch = x.a.q.shape[0], pieces = over(p.dv, 128);
    const bool many = heads * p.rows * batch * pieces > standin.card->multiprocessors,
               few = p.splits <= 8 || (p.splits <= 32 && many);
    CHECK_MSG(name == (few ? "k_combine_few" : "k_combine"), "%s for %d splits", name.c_str(), p.splits);
    CHECK_MSG(p.pad == (p.list_heads && !p.list_keys ? 6 : 0), "%s: sums are %d floats apart", name.c_str(),
              p.pad);
    check_grid(l, few ? over(heads * p.rows, 8) : heads * p.rows, batch, pieces, name);
}

/* Rows of 16 bits and more than 256 numbers, of lists of up to `most` keys. */
static bool is_many_name(const std::string &name) {
    return name == "k_list_many" || name == "k_list_groups";
}
static void check_many(const problem &x, const standin_launch &l, const params &p, int64_t most,
                       const std::string &name) {
    const santa_attention &a = x.a;
    const int64_t d = p.d, dv = p.dv, slices = over(p.list_heads, 64), parts = many_parts(most),
                  lists = p.heads / p.list_heads * a.q.shape[0];
    CHECK_MSG(is_many(a) && in_pieces(a.q) && in_pieces(a.k) && in_pieces(a.v),
              "%s: q, K or V does not suit", name.c_str());
    const int64_t lead = 2 * over(d, 64), on = (char *)a.v.data - (char *)a.k.data;
    const bool inside = on >= 0 && on % 16 == 0 && on + 2 * dv <= 2 * d
                        && !memcmp(a.v.stride, a.k.stride, 3 * sizeof a.k.stride[0]);
    CHECK_MSG(p.slices == slices && divides_by(p.by_slices, slices) && p.list_keys == 0 && p.pad == 6
                  && p.splits >= parts,
              "%s: slices, splits", name.c_str());
    const bool groups = standin.card->major == 9 && standin.warpgroups && inside && on == 0;
    CHECK_MSG(name == (groups ? "k_list_groups" : "k_list_many"), "%s", name.c_str());
    if (groups) {
        const int64_t ctas = l.grid.x / slices;
        const auto time = [&](int64_t n) {
            return over(lists * slices * n, standin.card->multiprocessors)
                 * (over(parts, n) * over(most, parts) + 192);
        };
        for (int64_t n = 1; n <= std::min(parts, 2 * (int64_t)standin.card->multiprocessors); n++)
            CHECK(time(ctas) <= time(n));
        CHECK(l.dynamic + sizeof(list_groups_memory) <= 227 * 1024);
        return check_grid(l, ctas * slices, p.heads / p.list_heads, a.q.shape[0], name);
    }
    CHECK_MSG(p.k_lead == lead && p.k_pitch == 64 * lead + 16, "%s: K's rows",
              name.c_str());
    CHECK_MSG(inside ? p.v_pitch == 0 && p.v_inside == on : p.v_pitch == over(2 * dv, 128) * 128 + 16,
              "%s: V's rows", name.c_str());
    CHECK_MSG(p.many_slots >= 2 && p.many_slots <= 4
                  && l.dynamic >= (uint64_t)(p.many_slots * 32 * (p.k_pitch + p.v_pitch))
                  && l.dynamic <= (uint64_t)standin.card->shared,
              "%s: %d slots", name.c_str(), p.many_slots);
    check_grid(l, parts * slices, p.heads / p.list_heads, a.q.shape[0], name);
}

static void check_dense(const problem &x, const standin_launch &l, const params &p,
                        const std::string &name) {
    const santa_attention &a = x.a;
    if (is_many_name(name)) {
        CHECK(p.lists_all && p.list_heads == p.group && !p.list && !p.list_lens && !p.list_weights
              && !p.list_ranges && p.list_most == 0 && !p.is_short);
        return check_many(x, l, p, p.capacity, name);
    }
    const int64_t group = p.group, dv = p.dv;
    char type[40], paged[8];
    int C = 0, GS = 8, way = -1;
    int64_t slices = over(group, GS);
    const bool alike = !a.seq_lens && !a.context_lens && !a.kv_start && !a.window && a.q.shape[1] == 1;
    const int64_t below = dense_below(x), most = below && below < p.capacity ? below : p.capacity;
    const auto splits_of = [&](int smaller) {
        return alike && !below ? over(p.capacity, split_size(p.capacity, smaller))
                               : dense_splits(a, most, smaller);
    };
    if (sscanf(name.c_str(), "k_dense<%39[^,], %d, %7[a-z], (dense_way)%d>", type, &C, paged, &way) == 4) {
        check_stream(x, p, type, C, paged, name);
        slices = stream_slices(p);
        const bool scaled = a.k_scales.data || a.v_scales.data, eight = is_eight(a.k.dtype),
                   two = (slices > 1 || p.rows > 1) && (eight ? C == 4 : !scaled);
        CHECK_MSG(!scaled || a.k.dtype != SANTA_E4M3 || C != 2, "%s: scales", name.c_str());
        if (two) slices = over(slices, 2);
        CHECK_MSG(p.rows == 1 || (two && p.rows * p.group <= 16 && divides_by(p.by_group, p.group)),
                  "%s: rows", name.c_str());
        CHECK_MSG(!strcmp(paged, by_pages(a, C, scaled, way == SHARES_ROWS)), "%s: pages", name.c_str());
        CHECK_MSG(a.v.dtype == a.k.dtype && in_pieces(a.v) && dv <= 32 * C
                      && dv % (is_eight(a.k.dtype) ? 16 : 8) == 0,
                  "%s: V does not suit", name.c_str());
        const uint64_t merge = (uint64_t)(8 * 8 * (32 * C + 4) * 4);  /* [warp][head][columns + 4] */
        CHECK_MSG(l.dynamic >= ring_bytes(x, C) / (two && eight ? 2 : 1) && l.dynamic >= merge,
                  "%s: %llu bytes of shared memory",
                  name.c_str(), (unsigned long long)l.dynamic);
        CHECK_MSG(l.dynamic <= 99 * 1024, "%s: not on every card", name.c_str());
        const int smaller = two ? 0 : is_eight(a.k.dtype) ? 1 : C < 8 ? 2 : 0;
        const int64_t splits = splits_of(smaller), ctas = splits * a.k.shape[2] * slices * a.q.shape[0];
        const bool at_once = standin.card->major >= 9 && ctas <= standin.card->multiprocessors,
                   joining = C == 4 && !two && !is_eight(a.k.dtype) && !a.block_table && !scaled,
                   join = joining && splits <= 8 && (splits == 1 || at_once);
        const int wanted = join                         ? JOINS_SPLITS
                         : !two                         ? ONE_SLICE
                         : eight || C != 4 || p.rows > 1 ? SHARES_ROWS : BOTH_SLICES;
        CHECK_MSG(way == wanted, "%s: wanted %d", name.c_str(), wanted);
        CHECK_INT(l.cluster, join ? splits : 1);
        CHECK(!join || (!p.heads_inner && l.dynamic >= merge / 8 * 9));
        CHECK_INT(p.short_keys & 0xffff, smaller ? 512 : 0);
        CHECK_INT(p.short_keys >> 16, smaller == 2 ? 2048 : 0);
        check_grid(l, splits, a.k.shape[2] * slices, a.q.shape[0], name);
    } else if (name == "k_dense_blocks") {
        CHECK_MSG(suits_blocks(a), "%s: K or V does not suit", name.c_str());
        CHECK_MSG(l.dynamic <= 99 * 1024 && l.dynamic >= 8 * 5 * 16 * 144 + 3 * 1024 + 32,
                  "%s: shared memory", name.c_str());
        CHECK_MSG(p.staged_v >= 2 && p.staged_v <= 3, "%s: pieces", name.c_str());
        check_digits(p, name);
        /* rows of 2^once keys have 512 CTAs of 1,024 keys each: from twice that on splits
           grow */
        const int64_t each = a.k.shape[2] * slices;
        int once = 10;
        while (each << (once - 10) < 512) once++;
        CHECK(p.short_keys < 0);
        CHECK_INT(p.short_keys & 0xffff, 0);
        CHECK_INT(p.short_keys >> 16 & 31, once);
        const int64_t longer = std::max<int64_t>((int64_t)2 << (once - 10), p.capacity >> 13) + 2;
        check_grid(l, std::min(splits_of(0), longer), each, a.q.shape[0], name);
    } else if (name == "k_dense_plain") {
        CHECK_MSG(!suits_blocks(a), "%s: blocks", name.c_str());
        check_plain(x, l, p, 64 * GS * 4 * 4 + GS * 4 * 4, 1, name);
        CHECK_INT(p.short_keys, 0);
        check_grid(l, splits_of(0), a.k.shape[2] * slices * over(dv, 256), a.q.shape[0], name);
    } else {
        CHECK_MSG(0, "%s in dense", name.c_str());
    }
    CHECK_MSG(p.slices == slices && divides_by(p.by_slices, p.slices), "%s: %d slices",
              name.c_str(), p.slices);
}

/* A caller's lists: one for each KV head, of up to so many keys. */
static int64_t list_keys(const santa_attention &a) {
    const int64_t dim = a.k.shape[3] > a.v.shape[3] ? a.k.shape[3] : a.v.shape[3];
    return dim * bytes_of(a.k.dtype) > 256 ? 64 : 128;
}

/* Parts of a list, or as many as are enough CTAs. */
static void check_list_grid(const standin_launch &l, int64_t parts, int64_t y, int64_t z,
                            const std::string &name, int64_t usual = INT64_MAX) {
    const int64_t enough = std::max<int64_t>(over(32 * standin.card->multiprocessors, y * z), 32);
    check_grid(l, std::min(std::min(parts, enough), usual), y, z, name);
}

/* CTAs of a list where they are full: 12 a multiprocessor, of up to four parts. */
static int64_t most_of_full_lists(int64_t parts, int64_t lists) {
    return std::max(12 * (int64_t)standin.card->multiprocessors / lists, over(parts, 4));
}

static void check_listed(const problem &x, const standin_launch &l, const params &p,
                         const std::string &name) {
    const santa_attention &a = x.a;
    const int64_t group = p.group, dv = p.dv, kv_heads = a.k.shape[2],
                  first = a.key_list_rows ? p.q_index * kv_heads : 0,
                  lists = kv_heads * (a.key_list_rows ? a.q.shape[1] : 1),
                  pitch = a.key_list_stride ? a.key_list_stride : a.max_list;
    char type[40];
    if (is_many_name(name)) {
        check_many(x, l, p, a.max_list, name);
        CHECK(p.list == (const int *)a.key_list + first * pitch && p.list_most == a.max_list
              && !p.lists_all);
        return;
    }
    int row = 0, slots = 8;
    if (sscanf(name.c_str(), "k_list<%39[^,], %d>", type, &row) == 2) {
        const int64_t size = bytes_of(a.k.dtype);
        check_cores(x, type, 8, name);
        CHECK_MSG(a.v.dtype == a.k.dtype && aligned(a.v) && dv % (16 / size) == 0, "%s: V does not suit",
                  name.c_str());
        CHECK_MSG(p.d * size <= row && dv * size <= row, "%s: a row is %d bytes", name.c_str(), row);
        CHECK(l.dynamic > (uint64_t)(2 * list_keys(a) * row));
    } else if (name == "k_list_plain") {
        slots = 4;
    } else {
        CHECK_MSG(0, "%s for a list", name.c_str());
    }
    const int64_t splits = over(a.max_list, list_keys(a)),
                  y = kv_heads * over(group, slots) * (slots == 4 ? over(dv, 256) : 1), z = a.q.shape[0],
                  each = 2 * standin.card->multiprocessors / (y * z);
    int64_t parts = splits;
    if (slots == 8 && !a.key_list_lens) {            /* all lists are full: a CTA has several parts */
        if (!each) parts = std::min(parts, most_of_full_lists(splits, y * z));
        else if (each * 16 >= splits && 8 * each * y * z > 7 * 2 * standin.card->multiprocessors)
            parts = std::min(parts, each);
    }
    check_list_grid(l, parts, y, z, name);
    CHECK_MSG(p.slices == over(group, slots) && p.splits == splits && p.list_keys == list_keys(a),
              "%s: slices, splits", name.c_str());
    CHECK_MSG(p.list == (const int *)a.key_list + first * pitch && p.list_pitch == pitch
                  && p.list_batch == lists * pitch && p.lens_batch == lists && p.list_most == a.max_list
                  && p.list_heads == group && !p.list_ranges
                  && p.list_lens == (a.key_list_lens ? (const int *)a.key_list_lens + first : NULL)
                  && p.list_weights == (a.key_weights ? a.key_weights + first * pitch : NULL),
              "%s: lists", name.c_str());
}

static const std::string &name_of(const standin_launch &l);

static bool read_parameters(const standin_launch &l, params *p) {
    if (!CHECK(l.parameters.size() == sizeof *p || l.parameters.size() == sizeof(groups_params)
               || l.parameters.size() == sizeof(rows_params)))
        return false;
    memcpy((void *)p, l.parameters.data(), sizeof *p);
    return true;
}

/* SANTA_SAAP: the router's products, its choice, a list for each KV head. which: of a row's
   kernels, those of the router counted from the last one, which is 1. */
static std::vector<part> routed_parts(const problem &x, const params &p) {
    const uint64_t rows = (uint64_t)x.a.q.shape[0] * (uint64_t)p.heads,
                   items = (uint64_t)(x.a.q.shape[0] * x.a.k.shape[2]), n = (uint64_t)x.router.num_buckets,
                   entries = items * (uint64_t)(p.samples + 1);
    std::vector<part> parts = {
        {"logits", p.logits, rows * n * 4, 4},
        {"list", p.list, entries * 4, 4},
        {"parts of the softmax", p.logit_parts, rows * ((n + 127) / 128) * 8, 8},
        {"lengths", p.list_lens, items * 4, 4},
        {"ranges", p.list_ranges, items * 8, 4},
        {"pieces", p.pieces, items * 8, 4},
        {"table of pieces", p.piece_table, items * n * 8, 4},
        {"partial results", p.partial, rows * (uint64_t)p.splits * ((uint64_t)p.dv + 2) * 4, 4}};
    if (p.samples) parts.push_back({"weights", p.list_weights, entries * 4, 4});
    else CHECK(!p.list_weights);
    if (n > ROUTE_SPANS || is_copied(x))
        parts.push_back({"spans", p.spans, items * n * sizeof(bucket_span), 4});
    else CHECK(!p.spans);
    if (x.stats) parts.push_back({"counts", p.routed, items * sizeof(routed_row), 8});
    else CHECK(!p.routed);
    const uint64_t blocks = (uint64_t)p.blocks;
    if (is_copied(x)) {
        parts.push_back({"buckets that are scanned", p.scan.use, items * ((n + 31) / 32) * 4, 4});
        parts.push_back({"rows without a route", p.scan.bad, items * 4, 4});
        parts.push_back({"shares of scanned buckets", p.scan.share, rows * 4, 4});
        parts.push_back({"scores by the copy", p.scan.scores, rows * blocks * 256, 16});
        parts.push_back({"their sums", p.scan.sums, rows * (uint64_t)p.scan.ctas * 8, 8});
        parts.push_back({"sums of sizes", p.scan.sizes, items * blocks * 8, 8});
        parts.push_back({"scanned keys", p.scan.keys, items * blocks * 64, 16});
        parts.push_back({"how many", p.scan.counts, items * blocks, 1});
    } else CHECK(!p.scans && !p.scan.use);
    return parts;
}

static void check_index(const problem &x, const params &p, const std::string &name) {
    const santa_buckets &r = x.router;
    const int64_t slots = r.num_slots ? r.num_slots : x.a.q.shape[0];
    CHECK_MSG(p.index == (int *)r.index && p.buckets == r.num_buckets && p.slots == (const int *)r.slots
                  && p.num_slots == slots
                  && (size_t)(slots * x.a.k.shape[2] * p.index_ints) * 4 == santa_buckets_size(&x.a),
              "%s: the index is another", name.c_str());
}

enum { BEFORE_SCAN = 20, SCAN, SCAN_SIZES };
static void check_routed(const problem &x, const standin_launch &l, const params &p, int which,
                         const std::string &name) {
    const santa_buckets &r = x.router;
    const santa_attention &a = x.a;
    const int64_t group = p.group, kv_heads = a.k.shape[2], batch = a.q.shape[0],
                  samples = x.o.num_samples == SANTA_NONE ? 0 : x.o.num_samples ? x.o.num_samples : 128,
                  draws = samples < p.capacity ? samples : p.capacity,
                  splits = over(p.capacity + draws + 1 + 128, list_keys(a));
    check_index(x, p, name);
    CHECK_MSG(p.samples == draws && p.list_heads == group && p.list_most == draws + 1 && p.splits == splits
                  && p.list_pitch == draws + 1 && p.list_batch == kv_heads * (draws + 1)
                  && p.lens_batch == kv_heads && p.ranges_batch == kv_heads,
              "%s: lists", name.c_str());
    if (which <= 0) {
        const row_product &y = p.product;
        const bool units = which < 0, direct = r.hidden == 0;
        const int64_t size = units || direct ? p.d : r.hidden, pieces = over(size, 32);
        const int splits_of = pieces >= 8 ? 8 : pieces >= 4 ? 4 : pieces >= 2 ? 2 : 1;
        CHECK_MSG(name == "k_rows", "%s for the router", name.c_str());
        CHECK_MSG(y.rows == (const char *)(units ? r.w1 : direct ? r.centroids : r.w2)
                      && y.bias == (units ? r.b1 : direct ? NULL : r.b2)
                      && y.count == (units ? r.hidden : r.num_buckets) && y.size == size
                      && y.row_type == (int)r.dtype && y.vectors == group && y.splits == splits_of
                      && y.step == (units ? STEP_UNITS : STEP_LOGITS),
                  "%s: product", name.c_str());
        CHECK_MSG(units ? (const float *)y.out != p.logits : (const float *)y.out == p.logits,
                  "%s: where to", name.c_str());
        check_grid(l, over(y.count, 16 * (8 / splits_of)), kv_heads, over(batch * group, 32), name);
    } else if (which == SCAN || which == SCAN_SIZES) {
        const int64_t many = batch * kv_heads * over(group, 8) * p.blocks / 8192,
                      each = 8 * std::min(std::max(many, (int64_t)4), (int64_t)16),
                      ctas = over(p.blocks, each), most = which == SCAN ? ctas : over(ctas, 2);
        CHECK_MSG(name == (which == SCAN ? "k_scan" : "k_scan_sizes"), "%s for the scan", name.c_str());
        CHECK(p.proxy == x.a.proxy && p.scans && p.slices == over(group, 8)
              && p.scan.ctas == ctas);
        check_grid(l, most, which == SCAN ? kv_heads * p.slices : kv_heads, batch, name);
    } else if (which == 1 || which == BEFORE_SCAN) {
        CHECK_MSG(name == (is_copied(x) ? "k_route<true>" : "k_route<false>"), "%s for the choice",
                  name.c_str());
        CHECK(p.scans == is_copied(x) && !p.proxy && p.scan.is_done == (is_copied(x) && which == 1));
        CHECK_INT(p.logit_tiles, over(r.num_buckets, 16 * (8 / p.product.splits)));
        check_grid(l, kv_heads, batch, 1, name);
    } else if (which == 2) {
        const bool fast = name.compare(0, 7, "k_list<") == 0;
        CHECK_MSG(name == "k_list_plain" || fast, "%s for the list", name.c_str());
        /* half as many again as there are parts of usual lists */
        const double keys = (double)p.capacity, near = (double)p.sink_tokens + (double)p.local_tokens,
                     probes = is_copied(x) ? 0.0 : (double)p.num_probes,
                     far = keys * fmin(probes / (double)r.num_buckets, 1.0),
                     read = fmin(near + far, keys) + (double)draws;
        check_list_grid(l, splits, kv_heads * over(group, fast ? 8 : 4) * (fast ? 1 : over(p.dv, 256)),
                        batch, name, p.list_early ? (int64_t)(1.5 * read) / list_keys(a) + 2 : INT64_MAX);
    } else if (which == 3) {
        check_combine(x, l, p, name);
    } else {
        CHECK(name == "k_route_stats");
        check_grid(l, 1, 1, 1, name);
    }
}

static void check_scores(const problem &x, const standin_launch &l, const params &p,
                         const std::string &name);

/* Both layers of a router at once: tiles of buckets in clusters, each of which has all
   units. */
struct layers_tiles { int64_t buckets, cluster, x, z, vectors; };
static layers_tiles layers_tiles_of(const problem &x) {
    const int64_t h = x.router.hidden, n = x.a.q.shape[0] * (x.a.q.shape[2] / x.a.k.shape[2]);
    layers_tiles t;
    t.buckets = h <= 128 ? 128 : h == 256 ? 64 : h == 512 ? 32 : 16;
    t.cluster = over(h, 128);
    t.x = over(over(x.router.num_buckets, t.buckets), t.cluster) * t.cluster;
    t.vectors = h <= 256 ? 32 : 8192 / h;
    t.z = over(n, t.vectors);
    return t;
}
static bool has_layers(const problem &x) {
    const santa_buckets &r = x.router;
    const santa_tensor &q = r.q.data ? r.q : x.a.q;
    const int64_t h = r.hidden, d = x.a.k.shape[3];
    if (h < 32 || h > 1024 || (h & (h - 1)) || (d != 32 && d != 64 && d != 128)) return false;
    if (r.dtype != SANTA_BF16 || q.dtype != SANTA_BF16 || !aligned(q)) return false;
    if ((uintptr_t)r.w1 % 16 || (uintptr_t)r.w2 % 16 || (standin.card->major < 9 && h > 128)) return false;
    const layers_tiles t = layers_tiles_of(x);
    return t.x * x.a.k.shape[2] * t.z <= LAYERS_WAVES * standin.card->multiprocessors;
}
static void check_layers(const problem &x, const standin_launch &l, const params &next,
                         const std::string &name) {
    const santa_buckets &r = x.router;
    const layers_tiles t = layers_tiles_of(x);
    layers_params p;
    if (!CHECK(l.parameters.size() == sizeof p)) return;
    memcpy((void *)&p, l.parameters.data(), sizeof p);
    CHECK_MSG(name == "k_layers", "%s", name.c_str());
    CHECK(p.w1 == r.w1 && p.w2 == r.w2 && p.b1 == r.b1 && p.b2 == r.b2);
    CHECK(p.logits == next.logits && p.parts == next.logit_parts && p.logit_tiles == next.logit_tiles);
    CHECK(p.d == next.d && p.hidden == r.hidden && p.buckets == r.num_buckets);
    CHECK(p.kv_heads == next.kv_heads);
    CHECK(p.vectors == next.group && p.all == next.batch * next.group && p.here == t.vectors);
    CHECK(p.cluster == t.cluster && divides_by(p.by_vectors, p.vectors));
    CHECK(1 << p.splits_shift == next.product.splits);
    CHECK(256 << p.links_shift == (r.hidden > 256 ? r.hidden : 256));
    CHECK(l.dynamic >= (uint64_t)(t.vectors * (r.hidden + 4) * 4));
    check_grid(l, t.x, x.a.k.shape[2], t.z, name);
}

static void check_routed_launches(const problem &x, const char *workspace, uint64_t bytes) {
    const bool measures = x.stats && x.o.saap.measure_mass, layers = has_layers(x);
    const int64_t rows = x.a.q.shape[1], before = x.router.hidden && !layers ? 2 : 1,
                  scans = is_copied(x) ? 3 : 0,
                  each = before + scans + 3 + 2 * measures + (x.a.std_error != NULL) + (x.stats ? 1 : 0);
    if (!CHECK_INT(standin.launches.size(), rows * each)) return;
    for (int64_t i = 0; i < rows * each; i++) {
        const standin_launch &l = standin.launches[(size_t)i];
        const std::string &name = name_of(l);
        const int at = (int)(i % each) - measures;               /* -1: scores for the mass */
        int which = at - (int)before + 1;
        if (which > 0) which = which <= scans ? BEFORE_SCAN + which - 1 : which - (int)scans;
        params p;
        CHECK_MSG(l.stream == (cudaStream_t)x.o.stream, "%s: another stream", name.c_str());
        CHECK_MSG(l.overlap == (at > 0 && (which < 4 || which >= BEFORE_SCAN) && standin.card->major >= 9),
                  "%s: launched %s",
                  name.c_str(), l.overlap ? "early" : "late");
        if (layers && at == 0) {
            memcpy((void *)&p, standin.launches[(size_t)i + 1].parameters.data(), sizeof p);
            check_layers(x, l, p, name);
            continue;
        }
        memcpy((void *)&p, l.parameters.data(), sizeof p);
        if (measures) {
            const uint64_t heads = (uint64_t)(x.a.q.shape[0] * p.heads),
                           blocks = heads * (uint64_t)p.blocks;
            check_parts({{"block sums", p.block_sums, blocks * 8, 8}, {"scores", p.stash, blocks * 256, 16},
                         {"covered", p.covered, heads * 8, 8}}, workspace, bytes, name);
        }
        if (at < 0) {
            CHECK(p.raw == 1 && p.rows == 1);
            check_scores(x, l, p, name);
            continue;
        }
        if (which >= 4 && which < BEFORE_SCAN) {                 /* mass, error, stats */
            const char *const want = measures && which == 4                   ? "k_route_mass"
                                     : x.a.std_error && which == 4 + measures ? "k_route_error"
                                                                              : "k_route_stats";
            CHECK_MSG(name == want, "%s, want %s", name.c_str(), want);
            if (strcmp(want, "k_route_stats")) check_grid(l, p.heads, x.a.q.shape[0], 1, name);
            if (x.a.std_error && !x.a.lse)
                check_parts({{"lse", p.lse, (uint64_t)(x.a.q.shape[0] * rows * p.heads) * 4, 4}}, workspace,
                            bytes, name);
            if (strcmp(want, "k_route_stats")) continue;
            which = 4;
        }
        check_parts(routed_parts(x, p), workspace, bytes, name);
        check_routed(x, l, p, which, name);
    }
}

static void check_scores(const problem &x, const standin_launch &l, const params &p,
                         const std::string &name) {
    char type[40], paged[8];
    int C = 0, sets = 1;
    const char *const format = "k_scores<%39[^,], %d, %7[a-z], %d>";
    const bool streams = sscanf(name.c_str(), format, type, &C, paged, &sets) == 4;
    const int64_t q_slices = stream_slices(p), slices = over(q_slices, sets),
                  work = x.a.q.shape[0] * x.a.k.shape[2] * slices * p.blocks;
    const int64_t counters = (int64_t)p.rows * x.a.q.shape[0] * p.heads * over(p.dv, 256);
    CHECK_INT(p.arrivals, p.portions > 1 ? counters : 0);
    CHECK_MSG(work < INT32_MAX && p.work == work && p.slices == slices, "%s: work", name.c_str());
    CHECK_MSG(divides_by(p.by_slices, slices)
                  && divides_by(p.by_inner, p.heads_inner ? x.a.k.shape[2] : p.blocks)
                  && divides_by(p.by_outer, p.heads_inner ? p.blocks : x.a.k.shape[2]),
              "%s: divisors", name.c_str());
    if (streams) {
        check_stream(x, p, type, C, paged, name);
        CHECK_MSG(!strcmp(paged, by_pages(x.a, C, x.a.k_scales.data, sets == 2)), "%s: pages",
                  name.c_str());
        const bool two = C <= 4 && knows_two_sets(p.k_type, p.d)
                      && (q_slices > (p.q_parts ? 2 : 1) || p.group * p.rows > 8);
        CHECK_MSG(sets == (two ? 2 : 1), "%s: sets", name.c_str());
        CHECK_MSG(l.dynamic >= ring_bytes(x, C), "%s: %llu bytes of shared memory", name.c_str(),
                  (unsigned long long)l.dynamic);
        CHECK_MSG((int64_t)l.grid.x * p.steps + p.longer == over(work, 8) && p.longer < l.grid.x
                      && p.steps > 0,
                  "%s: steps", name.c_str());
    } else if (name == "k_scores_blocks") {
        CHECK_MSG(suits_score_blocks(x.a), "%s: K does not suit", name.c_str());
        CHECK_MSG(l.dynamic <= 99 * 1024 && l.dynamic >= 8 * (4 * 16 * 144 + 3 * 1024 + 32),
                  "%s: shared memory", name.c_str());
        check_digits(p, name);
        CHECK_MSG((int64_t)l.grid.x * p.steps + p.longer == over(work, 8) && p.longer < l.grid.x
                      && p.steps > 0,
                  "%s: steps", name.c_str());
    } else if (name == "k_scores_plain") {
        CHECK_MSG(!suits_score_blocks(x.a), "%s: blocks", name.c_str());
        check_plain(x, l, p, 0, 4, name);
        CHECK_MSG(l.grid.x % 2 == 0 && (int64_t)l.grid.x / 2 * p.steps + p.longer == over(work, 8)
                      && p.longer < l.grid.x / 2 && p.steps > 0,
                  "%s: steps", name.c_str());
    } else {
        CHECK_MSG(0, "%s for scores", name.c_str());
    }
}


/* Bytes and keys of a block of the copy of K, from the definition in santa.h. */
struct copy_of { int64_t keys, bytes, chunks, bits; };
static copy_of copy_block(const santa_attention &a) {
    copy_of c = {64, 0, 0, a.proxy_bits ? a.proxy_bits : 4};
    while (a.block_table && a.k.shape[1] % c.keys) c.keys /= 2;
    c.chunks = over(a.k.shape[3], 128 / c.bits);
    c.bytes  = over(16 * c.chunks * c.keys + 2 * c.keys + c.chunks * 128 / c.bits + 4, 64) * 64;
    return c;
}

static void check_copy(const problem &x, const params &p, const std::string &name) {
    const copy_of c = copy_block(x.a);
    CHECK_MSG(p.copy.keys == c.keys && p.copy.bytes == c.bytes && 1 << p.copy.shift == c.keys
              && p.copy.chunks == c.chunks
                  && p.copy.blocks == x.a.k.shape[1] / c.keys && p.copy.bits == c.bits
                      && p.kv_heads == x.a.k.shape[2]
                  && p.proxy == x.a.proxy,
              "%s: the copy is another", name.c_str());
}

/* Slices of a KV head's slots, where a group has them all or each has those of whole rows. */
static int64_t copied_slices(int64_t group, int64_t rows) {
    return rows == 1 ? over(group, 8) : over(rows, 8 / group);
}
/* Query rows that share the scores of a copy, and are drawn together. */
static int64_t copied_rows(const problem &x) {
    const int64_t group = x.a.q.shape[2] / x.a.k.shape[2], batch = x.a.q.shape[0], q_len = x.a.q.shape[1],
                  keys = x.a.block_table ? x.a.max_pages * x.a.k.shape[1] : x.a.k.shape[1];
    if (x.o.ranks.count > 1 || group > 8) return 1;
    const int64_t rows = 16 / group < q_len ? 16 / group : q_len,
                  works = batch * x.a.k.shape[2] * copied_slices(group, rows) * over(keys, 64);
    return rows * batch > 65535 || works >= INT32_MAX ? 1 : rows;
}

/* Scores from a copy: each CTA has a run of blocks, and there are enough of them. */
static void check_copied_scores(const problem &x, const standin_launch &l, const params &p,
                                const std::string &name) {
    const copy_of c = copy_block(x.a);
    const bool draws = x.o.method != SANTA_TOP_K && x.o.method != SANTA_TOP_P;
    const int64_t slices = copied_slices(p.group, p.rows),
                  pairs = x.a.q.shape[0] * x.a.k.shape[2], items = pairs * slices,
                  fixed = draws ? pairs * over(p.group, SLICE) * FIXED_PARTS * p.rows : 0;
    check_copy(x, p, name);
    const std::string want = std::string("k_proxy_scores<") + (c.bits == 4 && c.chunks == 4 ? "4" : "0")
                           + (p.rows > 1 ? ", true>" : ", false>");
    CHECK_MSG(name == want, "%s for scores", name.c_str());
    CHECK(p.rows == 1 || (divides_by(p.by_group, p.group) && p.slice_heads % p.group == 0
                          && p.slice_heads <= 8
                              && slices * p.slice_heads >= p.rows * p.group));
    CHECK_MSG(p.chunk_blocks > 0 && (int64_t)p.chunk_blocks * p.proxy_chunks >= p.blocks
                  && (int64_t)p.chunk_blocks * (p.proxy_chunks - 1) < p.blocks,
              "%s: %d x %d blocks of %d", name.c_str(), p.proxy_chunks, p.chunk_blocks, p.blocks);
    CHECK_INT(p.fixed_ctas, fixed);
    CHECK_MSG(p.by_fixed.d >= 1 && (p.by_fixed.d == 1
                                     || (fixed - 1) * (int64_t)p.by_fixed.d < (int64_t)l.grid.x),
              "%s: keys read exactly", name.c_str());
    check_grid(l, fixed + items * p.proxy_chunks, 1, 1, name);
    CHECK_MSG(divides_by(p.by_slices, slices) && divides_by(p.by_kv, x.a.k.shape[2])
                  && divides_by(p.by_chunks, p.proxy_chunks),
              "%s: divisors", name.c_str());
    CHECK_MSG(p.ring_slots >= 1 && p.ring_slots <= RING_SLOTS && p.slot_bytes == 64 / c.keys * c.bytes
                  && l.dynamic >= (uint64_t)(8 * p.ring_slots * p.slot_bytes),
              "%s: ring", name.c_str());
    if (draws) CHECK_INT(p.arrivals, p.portions > 1 ? p.rows * x.a.q.shape[0] * p.heads : 0);
    CHECK(l.dynamic >= sizeof(rows_memory) + (uint64_t)p.stage_bytes);
}

/* Heads that draw together, by k_draw. */
static void check_draw(const problem &x, const standin_launch &l, const params &p,
                       const std::string &name) {
    const int64_t samples = x.o.num_samples ? x.o.num_samples : 128,
                  together = x.o.method == SANTA_PPS ? p.group : 1, teams = p.heads / together,
                  ctas = 1 << p.cluster_shift;
    if (is_copied(x)) check_copy(x, p, name);
    if (is_copied(x) && together == 1) {
        const char *const kernel = x.o.ranks.count > 1 ? "k_proxy_gather<true>" : "k_proxy_gather<false>";
        CHECK_MSG(name == kernel, "%s", name.c_str());
        CHECK_MSG(p.samples == samples && p.max_draws == samples && p.portions == over(samples, 128),
                  "%s: draws", name.c_str());
        const int64_t heads = p.heads * x.a.q.shape[0] * p.rows * over(samples, 128),
                      most = standin.card->multiprocessors;
        const bool rescues = x.o.ranks.count <= 1 && standin.card->major >= 9 && p.rescue_keys > 0
                          && p.rescue_above < INFINITY;
        int64_t cluster = 1;
        while (rescues && cluster < 8 && 2 * cluster * heads <= most) cluster *= 2;
        CHECK_INT(ctas, cluster);
        CHECK_INT(l.cluster, cluster);
        const bool small = x.o.ranks.count <= 1 && heads > 2 * most
                        && standin.card->shared >= 4 * 37 * 1024 && x.a.q.shape[3] <= 128
                        && x.a.v.shape[3] <= 128;
        CHECK_INT(l.threads, small ? 128 : 256);
        check_grid(l, p.heads * cluster, x.a.q.shape[0] * p.rows, over(samples, 128), name);
        return;
    }
    CHECK_MSG(name == "k_draw", "%s", name.c_str());
    CHECK_MSG(p.samples == samples && p.max_draws == together * samples + 2 && p.together == together,
              "%s: draws", name.c_str());
    CHECK_MSG(ctas <= 8
                  && (ctas == 1
                      || (standin.card->major >= 9
                          && ctas * teams * x.a.q.shape[0] * p.rows <= standin.card->multiprocessors)),
              "%s: a cluster of %d", name.c_str(), (int)ctas);
    check_grid(l, teams * ctas, x.a.q.shape[0] * p.rows, 1, name);
    CHECK_MSG(p.stage_at >= (int)sizeof(draw_memory) && l.dynamic >= (uint64_t)(p.stage_at + p.stage_bytes)
                  && (!p.staged || (aligned(x.a.v) && (!is_copied(x) || aligned(x.a.k)))),
              "%s: shared memory", name.c_str());
}

static std::vector<part> drawn_parts(const problem &x, const params &p) {
    const uint64_t rows = (uint64_t)p.rows * (uint64_t)x.a.q.shape[0] * (uint64_t)p.heads,
          teams = rows / (uint64_t)p.together,
          blocks = rows * (uint64_t)p.blocks, dv = (uint64_t)p.dv;
    const santa_stash stash = x.o.stash == SANTA_STASH_DEFAULT ? SANTA_STASH_F32 : x.o.stash;
    const uint64_t entry = stash == SANTA_STASH_F32 ? 4 : stash == SANTA_STASH_F16 && !is_copied(x) ? 2 : 1;
    std::vector<part> parts = {{"block sums", p.block_sums, blocks * 8, 8},
                               {"stash", p.stash, blocks * 64 * entry, 16},
                               {"units", p.share_units, blocks * 4, 4},
                               {"ticks", p.ticks, teams * (uint64_t)p.blocks * 8, 8}};
    CHECK(p.copied == is_copied(x) && p.share_units);
    if (p.sums) parts.push_back({"sums", p.sums, rows * 8 * dv * 4, 4});
    if (is_copied(x)) {
        CHECK(p.spreads == p.share_units);
        parts.push_back({"fixed", p.fixed, FIXED_PARTS * rows * (dv + 2) * 4, 4});
        if (p.together == 1) parts.push_back({"mended", p.mended, blocks * 8, 8});
    }
    if (p.portions > 1 && is_copied(x)) {
        parts.push_back({"portions", p.partial, rows * (uint64_t)p.portions * (dv + 4) * 4, 4});
        parts.push_back({"arrivals", p.arrived, rows * 4, 4});
    }
    if (keeps_lse(x)) parts.push_back({"lse", p.lse, rows / (uint64_t)p.rows * (uint64_t)p.q_len * 4, 4});
    if (x.stats || x.a.std_error) {
        parts.push_back({"keys", p.keys, teams * (uint64_t)p.max_draws * 4, 4});
        parts.push_back({"draws", p.draws, rows * 4, 4});
        if (is_copied(x)) {
            parts.push_back({"found", p.found, rows * 16, 16});
            parts.push_back({"rescued", p.rescued, rows * 4, 4});
        }
    } else {
        CHECK(!p.keys && !p.draws && !p.found && !p.rescued);
    }
    return parts;
}

static int64_t most_draws(const problem &x, const params &p) {
    const int64_t samples = x.o.num_samples ? x.o.num_samples : 128,
                  tile = x.o.tile_size ? x.o.tile_size : 256, combs = x.o.num_combs ? x.o.num_combs : 1;
    const int64_t tiles = x.o.method == SANTA_FLASH ? combs * over(p.capacity, tile) : 0;
    return samples > tiles ? samples : tiles;
}

static void check_gather(const problem &x, const standin_launch &l, const params &p,
                         const std::string &name) {
    const bool flash = x.o.method == SANTA_FLASH;
    char flag[8];
    int CH = 0;
    if (!CHECK_MSG(sscanf(name.c_str(), "k_gather<%d, %7[a-z]>", &CH, flag) == 2, "%s", name.c_str()))
        return;
    CHECK_MSG(!strcmp(flag, flash ? "flash" : "comb"), "%s: method", name.c_str());
    CHECK_MSG(p.portions == over(most_draws(x, p), 256) && p.max_draws == most_draws(x, p), "%s: draws",
              name.c_str());
    CHECK_MSG(!flash || (p.flash_blocks >= 1 && p.flash_blocks <= p.blocks),
              "%s: a flash tile of %d x 64 keys", name.c_str(), p.flash_blocks);
    CHECK_MSG(p.samples == (x.o.num_samples ? x.o.num_samples : 128) && p.per_sample == 1.0 / p.samples
                  && p.combs == (x.o.num_combs ? x.o.num_combs : 1) && p.each * p.combs == p.samples,
              "%s: samples", name.c_str());
    check_grid(l, p.heads, x.a.q.shape[0], p.portions * over(p.dv, 128 * CH), name);
}

static const std::string &name_of(const standin_launch &l) {
    static const std::string unknown = "an unknown kernel";
    for (const launched *k = all_launched; k; k = k->next) if (k->kernel == l.kernel) return k->name;
    return unknown;
}

static bool asks_for_blocks(const problem &x) {
    const santa_sample_attention_options &o = x.o.sample_attention;
    return x.o.method == SANTA_SAMPLE_ATTENTION && (o.mask || o.mask_out || o.audit || o.row_mass);
}
/* Prefill: calls of 32 rows and more whose q, K and V are of one 16-bit type in 16-byte rows,
   or are copied to such. */
struct tile_copies { bool good, q, keys; santa_dtype type; };
static tile_copies copies_for_tiles(const santa_attention &a) {
    const auto is_half = [](santa_dtype t) { return t == SANTA_F16 || t == SANTA_BF16; };
    const auto suits = [&](const santa_tensor &t, santa_dtype type, const santa_tensor &scales) {
        return t.dtype == type && in_pieces(t) && t.shape[3] % 8 == 0 && !scales.data;
    };
    santa_dtype type = a.q.dtype;
    if (type == SANTA_F32)
        type = is_half(a.k.dtype) ? a.k.dtype : is_half(a.v.dtype) ? a.v.dtype : SANTA_F16;
    tile_copies c = {a.k.shape[3] <= (a.q.dtype == SANTA_F32 ? 128 : 256), false, false, type};
    for (const santa_tensor *t : {&a.k, &a.v})
        c.good &= t->dtype != SANTA_F32 && (t->dtype == type || !is_half(t->dtype));
    c.q = !suits(a.q, type, santa_tensor());
    c.keys = !suits(a.k, type, a.k_scales) || !suits(a.v, type, a.v_scales)
        || (a.block_table && a.k.shape[1] % 32 && a.q.shape[1] >= 1024);
    return c;
}
static bool is_tiled(const problem &x) {
    const santa_attention &a = x.a;
    const bool sparse = x.o.method == SANTA_SAMPLE_ATTENTION;
    if ((x.o.method != SANTA_DENSE && !sparse) || a.key_list || a.std_error || a.first_tokens)
        return false;
    if (a.q.shape[1] < 32 && !asks_for_blocks(x)) return false;
    if (!sparse && !none_below(x)) return false;
    const tile_copies c = copies_for_tiles(a);
    const int64_t group = a.q.shape[2] / a.k.shape[2], slices = over(a.v.shape[3], 128);
    if ((c.q || c.keys) && a.q.shape[2] * slices > 65535) return false;
    if (!sparse && a.k.shape[2] * over(group, 16) * slices > 65535) return false;
    return c.good;
}

/* Splits of the keys of a call that has few tiles for a KV head: 16 CTAs of one, or fewer of
   several. */
static int64_t tile_splits(const problem &x) {
    const santa_attention &a = x.a;
    const int64_t group = a.q.shape[2] / a.k.shape[2], slices = over(group, 16),
                  tiles = over(a.q.shape[1], 128 / over(group, slices)) * slices, keys = capacity_of(a),
                  seen = a.window && a.window < keys ? std::min(keys, a.window + a.q.shape[1] - 1) : keys;
    if (x.o.method != SANTA_DENSE || seen <= 2048) return 0;
    return tiles == 1 ? 16 : tiles == 2 ? 8 : tiles <= 4 ? 4 : tiles <= 8 ? 2 : 0;
}

static std::vector<part> tiled_parts(const problem &x, const params &p) {
    const santa_sample_attention_options &o = x.o.sample_attention;
    const uint64_t rows = (uint64_t)x.a.q.shape[0] * (uint64_t)p.heads;
    const uint64_t splits = (uint64_t)tile_splits(x) + 1, row = ((uint64_t)p.dv + 2) * 4;
    if (x.o.method == SANTA_DENSE && splits > 1)
        return {{"splits", p.partial, rows * (uint64_t)x.a.q.shape[1] * splits * row, 4}};
    if (x.o.method == SANTA_DENSE || o.mask) return {};
    const uint64_t chunks = (uint64_t)(o.num_chunks ? o.num_chunks : 2),
                   size = o.block_size == 128 ? 128 : 64, blocks = (uint64_t)over(p.capacity, 64),
                   k_blocks = (uint64_t)over(p.capacity, (int64_t)size),
                   units = rows * chunks * (size / 64),
                   sums = units * (uint64_t)over((int64_t)blocks, 32) * 64,
                   words = rows * 2 * (uint64_t)over((int64_t)k_blocks, 32);
    std::vector<part> parts = {
        {"row sums", p.row_sums, sums * 8, 8},
        {"masses", p.masses, units * blocks * 16, 16},
        {"set masses", p.set_masses, rows * 2 * k_blocks * 4, 4},
        {"raw sets", p.raw_sets, words * 4, 4},
        {"own sets", p.own, words * 4, 4},
        {"sets", p.sets, words * 4, 4},
        {"picked", p.picked, rows * 8, 4},
        {"runs dense", p.runs_dense, (uint64_t)(x.a.q.shape[0] * x.a.k.shape[2]) * 4, 4}};
    if (o.audit) parts.push_back({"shares", p.shares, sums * 4, 4});
    return parts;
}

/* K and V of 16 bits come by boxes of at most 64 keys of a page, if that makes 32, where the
   tensor copy engine can have their strides. */
static void check_boxes(const problem &x, const standin_launch &l, const std::string &name) {
    const santa_attention &a = x.a;
    const int64_t page = a.block_table ? a.k.shape[1] : 64,
                  keys = page % 64 == 0 ? 64 : page % 32 == 0 ? 32 : 0;
    bool good = true;
    for (const santa_tensor *t : {&a.k, &a.v})
        for (int i = 0; i < 3; i++)
            good &= t->shape[i] == 1 || (t->stride[i] > 0 && t->stride[i] < 1ll << 39);
    groups_params p;
    memcpy((void *)&p, l.parameters.data(), sizeof p);
    CHECK_MSG(p.box_keys == (good ? keys : 0), "%s: boxes of %d keys", name.c_str(), p.box_keys);
    if (p.box_keys)
        CHECK_MSG(p.k_map.data == a.k.data && p.v_map.data == a.v.data
                      && p.v_map.shape[0] == (uint64_t)a.v.shape[3]
                      && p.k_map.shape[3] == (uint64_t)a.k.shape[0] && p.k_map.box[1] == (uint32_t)keys,
                  "%s: maps of boxes", name.c_str());
}

/* A tile has all heads of a group, or up to 16, but for masks of each head; its rows are as
   many as fit in 128 queries, and where blocks are looked at a power of two that divides
   them. */
static void check_tiles(const problem &x, const standin_launch &l, const params &p,
                        const std::string &name) {
    const santa_attention &a = x.a;
    const santa_sample_attention_options &o = x.o.sample_attention;
    const bool sparse = x.o.method == SANTA_SAMPLE_ATTENTION;
    const int64_t group = p.group, most = sparse && (o.per_head || o.mask) ? 1 : 16,
                  slices = over(group, most), heads = over(group, slices), q_len = a.q.shape[1];
    int64_t rows = 128 / heads, block = o.block_size == 128 ? 128 : 64;
    if (sparse) {
        int64_t power = 1;
        while (2 * power <= rows && 2 * power <= block) power *= 2;
        rows = power;
    }
    const bool in_parts = over(a.q.shape[3], 64) > over(p.d, 64);
    const bool groups = standin.card->major == 9 && standin.warpgroups && p.d <= 128 && p.dv <= 128
                     && p.soft_cap == 0.0f && !p.slopes && p.scale > 0.0f
                     && (!in_parts || a.k.dtype == SANTA_F16);
    const int64_t tiles = over(q_len + (sparse ? rows - 1 : 0), rows),
                  others = a.k.shape[2] * slices * over(p.dv, 128);
    int64_t together = 1;                           /* tiles of a CTA */
    if (groups && sparse && l.parameters.size() == sizeof(groups_params)) {
        groups_params all;
        memcpy((void *)&all, l.parameters.data(), sizeof all);
        together = tiles * others * a.q.shape[0] / (6 * standin.card->multiprocessors);
        if (together > 4) together = 4;
        CHECK_MSG(all.own_tiles == together, "%s: %d tiles together", name.c_str(), all.own_tiles);
        if (!all.box_keys || together < 1 || a.q.dtype == SANTA_F16) together = 1;
    }
    const std::string type = a.q.dtype == SANTA_F16 ? "__half" : "__nv_bfloat16",
                      many = together > 1 ? ", true, false>" : in_parts ? ", false, true>"
                                                                        : ", false, false>",
                      want = groups ? "k_prefill_groups<" + type + many : "k_prefill";
    CHECK_MSG(name == want, "%s, want %s", name.c_str(), want.c_str());
    if (groups && l.parameters.size() == sizeof(groups_params)) check_boxes(x, l, name);
    CHECK_MSG(p.tile_heads == heads && p.tile_slices == slices && p.tile_rows == rows
                  && p.by_position == sparse && divides_by(p.by_tile_heads, heads)
                  && p.v_slices == over(p.dv, 128),
              "%s: tiles of %d rows, %d heads", name.c_str(), p.tile_rows, p.tile_heads);
    const int64_t splits = tile_splits(x);
    CHECK_MSG(p.tile_splits == splits, "%s: %d splits, want %lld", name.c_str(), p.tile_splits,
              (long long)splits);
    check_grid(l, over(tiles, together) * (splits ? splits + 1 : 1), others, a.q.shape[0], name);
    CHECK_MSG(p.sixteens == (!a.block_table || a.k.shape[1] % 16 == 0), "%s: pages", name.c_str());
    CHECK_MSG(p.is_sparse == sparse
                  && (!sparse || (p.mask == o.mask && p.block_shift == (block == 64 ? 6 : 7))),
              "%s: mask", name.c_str());
    bool pairs = a.out.dtype != SANTA_F32 && a.out.shape[3] % 2 == 0 && a.out.stride[3] == 1
              && (uintptr_t)a.out.data % 4 == 0;
    for (int i = 0; i < 3; i++) pairs &= a.out.stride[i] % 2 == 0;
    CHECK_MSG(p.pair_out == pairs, "%s: pairs of out", name.c_str());
}

/* Of a range of items: each launch does a part of it, and the parts are the range; what they
   launch is that of calls of their sizes, which test_items.h compares. Returns the largest
   part. */
static int64_t check_range(const problem &x, int64_t at, int64_t last) {
    const int64_t kv_heads = x.a.k.shape[2], group = x.a.q.shape[2] / kv_heads;
    int64_t end = at, most = 0;
    for (const standin_launch &l : standin.launches) {
        params p;
        if (name_of(l).compare(0, 8, "k_layers") == 0) continue;       /* has others */
        if (!read_parameters(l, &p)) return most;
        const int64_t first = p.first_sequence * kv_heads + p.first_head / group;
        CHECK(l.stream == (cudaStream_t)x.o.stream && p.all_heads == x.a.q.shape[2]);
        CHECK(p.all_kv_heads == kv_heads && (p.kv_heads == kv_heads || p.batch == 1));
        if (first == end) at = first;
        CHECK_MSG(first == at, "%s: a part from item %lld on, not %lld", name_of(l).c_str(),
                  (long long)first, (long long)at);
        end = at + p.batch * p.kv_heads;
        most = std::max(most, (int64_t)(p.batch * p.kv_heads));
    }
    CHECK_INT(end, last);
    return most;
}

static float scale_of(const santa_attention &a) {
    const float scale = a.sm_scale != 0.0f ? a.sm_scale : (float)(1.0 / sqrt((double)a.k.shape[3]));
    return a.k_scale > 0.0f ? scale * a.k_scale : scale;
}
/* What a q in two parts is multiplied by, so that the scale is as large as the default. */
static float factor_of_q(const santa_attention &a) {
    if (a.q.dtype != SANTA_F32) return 1.0f;
    return ldexpf(1.0f, ilogbf(scale_of(a)) - ilogb(1.0 / sqrt((double)a.k.shape[3])));
}

/* Rows that are copied first: of q, of K and V together, which are at the beginning of the
   workspace then. Returns what the other launches see, and how many these are; none if the call
   is done in parts. */
static problem check_tile_rows(const problem &x, const char *workspace, uint64_t bytes, size_t *launches) {
    const santa_attention &a = x.a;
    const tile_copies c = copies_for_tiles(a);
    const int64_t batch = a.q.shape[0], keys = a.block_table ? a.max_pages * a.k.shape[1] : a.k.shape[1],
                  d = a.k.shape[3], kv_heads = a.k.shape[2];
    const bool in_parts = a.q.dtype == SANTA_F32;
    char *at = (char *)(((uintptr_t)workspace + 255) / 256 * 256);
    problem y = x;
    *launches = 0;
    for (int i = 0; i < 3; i++) {
        if (!(i ? c.keys : c.q)) continue;
        const santa_tensor &from = *const_cast<problem &>(x).tensor(i);
        santa_tensor *const to = y.tensor(i);
        const int64_t n = from.shape[3], pitch = i == 0 && in_parts ? 2 * over(n, 64) * 64 : over(n, 8) * 8,
                      rows = i ? keys : a.q.shape[1], heads = i ? kv_heads : a.q.shape[2];
        *to = i ? santa_view_hnd(at, c.type, batch, rows, heads, pitch)
                : santa_view(at, c.type, batch, rows, heads, pitch);
        to->device = SANTA_CUDA;
        const int64_t size = 2 * batch * rows * heads * pitch;
        rows_params p;
        if (!CHECK(*launches < standin.launches.size())) return y;
        const standin_launch &l = standin.launches[(*launches)++];
        const std::string &name = name_of(l);
        if (!CHECK_INT(l.parameters.size(), sizeof p)) return y;
        memcpy((void *)&p, l.parameters.data(), sizeof p);
        CHECK_MSG(name == "k_tile_rows", "%s, want k_tile_rows", name.c_str());
        problem uncounted = x;
        uncounted.stats = NULL;
        check_parameters(uncounted, p, 0, name, 0);
        check_parts({{"rows", p.to, (uint64_t)size, 16}}, workspace, bytes, name);
        check_grid(l, over(rows, 64), heads, batch, name);
        bool same = p.from == from.data && p.to == at && p.type == (int)from.dtype
                 && p.to_type == (int)c.type && p.numbers == n && p.pitch == pitch
                 && p.of_keys == (i > 0) && p.of_k == (i == 1)
                 && p.in_parts == (i == 0 && in_parts) && p.factor == (i == 0 ? factor_of_q(a) : 1.0f)
                 && divides_by(p.by_pieces, pitch / (i == 0 && in_parts ? 16 : 8));
        for (int k = 0; k < 4; k++) same &= p.from_stride[k] == byte_stride(from, k);
        same &= p.scales.data == (i == 0 ? NULL : i == 1 ? a.k_scales.data : a.v_scales.data);
        CHECK_MSG(same, "%s: tensor %d", name.c_str(), i);
        const bool blocks = from.dtype == SANTA_Q8_0 || from.dtype == SANTA_Q4_0;
        CHECK_MSG(p.vector == (blocks || in_pieces(from)), "%s: loads of tensor %d", name.c_str(), i);
        at += over(size, 256) * 256;
    }
    y.d = d;
    if (!c.keys) return y;
    y.a.block_table = NULL;
    y.a.k_scales = y.a.v_scales = santa_tensor();
    return y;
}

/* Bytes of the copies, and sums of splits, of an item. */
static double tile_row_bytes(const problem &x) {
    const santa_attention &a = x.a;
    const tile_copies c = copies_for_tiles(a);
    const double group = (double)(a.q.shape[2] / a.k.shape[2]), rows = (double)a.q.shape[1],
                 filled = (double)(over(a.k.shape[3], 8) * 8),
                 of_q = a.q.dtype == SANTA_F32 ? (double)(2 * over(a.k.shape[3], 64) * 64) : filled,
                 of_keys = filled + (double)(over(a.v.shape[3], 8) * 8);
    const int64_t splits = tile_splits(x);
    const double sums = splits ? group * rows * (double)(splits + 1) * (double)(a.v.shape[3] + 2) : 0.0;
    return 2.0 * ((c.q ? group * rows * of_q : 0.0) + (c.keys ? (double)capacity_of(a) * of_keys : 0.0))
         + 4.0 * sums;
}

/* All launches of a call of prefill. */
static void check_prefill(const problem &asked, const char *workspace, uint64_t bytes) {
    size_t begin;
    const double each = tile_row_bytes(asked), room = (double)SANTA_CUDA_TILE_ROWS;
    const int64_t items = asked.a.q.shape[0] * asked.a.k.shape[2];
    if ((double)items * each > room && items > 1) {  /* so many at a time as have room, or one */
        const int64_t most = check_range(asked, 0, items);
        CHECK(most == 1 || most <= over(items, 4096) || (double)most * each <= room);
        return;
    }
    const problem x = check_tile_rows(asked, workspace, bytes, &begin);
    const santa_sample_attention_options &o = x.o.sample_attention;
    const bool sparse = x.o.method == SANTA_SAMPLE_ATTENTION, sampled = sparse && !o.mask;
    const int64_t batch = x.a.q.shape[0], heads = x.a.q.shape[2], kv_heads = x.a.k.shape[2];
    const int64_t size = o.block_size == 128 ? 128 : 64, chunks = o.num_chunks ? o.num_chunks : 2;
    const std::string sample = "k_sample";
    std::vector<std::string> want;
    if (sampled) want.insert(want.end(), {sample, sample, "k_select"});
    if (sparse && (sampled || o.audit)) want.push_back("k_join");
    if (sampled && o.audit) want.insert(want.end(), {sample, "k_audit"});
    if (sparse && o.mask_out) want.push_back("k_mask");
    want.push_back("k_prefill");
    const int64_t splits = tile_splits(x);
    if (splits) want.push_back("k_combine");
    /* rows that share a pass of k_scores */
    const int64_t q_len = x.a.q.shape[1];
    const bool pages = x.a.block_table && x.a.k.shape[1] % 8,
               eights = is_eight(x.a.k.dtype),
               plain = x.a.alibi_slopes || (eights && x.a.k.shape[3] % 16) || x.d % 8,
               one = plain || pages;
    const int64_t pass = one ? 1 : rows_in_slots(x.a);
    for (int64_t row = 0; sparse && o.row_mass && row < q_len; row++) {
        if (row % pass == 0) want.push_back("k_scores");
        want.push_back("k_row_mass");
    }
    if (sparse && o.row_mass && o.audit) want.push_back("k_row_audit");
    if (x.stats) want.push_back("k_prefill_stats");
    if (!CHECK_INT(standin.launches.size() - begin, want.size())) return;
    CHECK_INT(standin.cleared.size(), x.stats ? 1 : 0);
    int stage = 0;
    int64_t row = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const standin_launch &l = standin.launches[begin + i];
        const std::string &name = name_of(l);
        params p;
        if (!read_parameters(l, &p)) return;
        const bool joins = want[i] == "k_combine";
        CHECK_MSG(l.stream == (cudaStream_t)x.o.stream && l.overlap == (joins && standin.card->major >= 9),
                  "%s: stream", name.c_str());
        const bool scores = want[i].compare(0, 8, "k_scores") == 0, mass = want[i] == "k_row_mass";
        check_parameters(x, p, scores || mass ? row : 0, name, splits ? splits + 1 : -1);
        CHECK_MSG(p.scale == scale_of(asked.a) / factor_of_q(asked.a), "%s: scale", name.c_str());
        check_parts(tiled_parts(x, p), workspace, bytes, name);
        if (joins) {
            CHECK(p.tile_splits == splits && p.rows == q_len);
            check_combine(x, l, p, name);
            continue;
        }
        if (want[i] == "k_prefill") { check_tiles(x, l, p, name); continue; }
        if (scores || mass) {
            const uint64_t blocks = (uint64_t)(batch * heads * p.rows) * (uint64_t)p.blocks;
            check_parts({{"block sums", p.block_sums, blocks * 8, 8}, {"stash", p.stash, blocks * 256, 16}},
                        workspace, bytes, name);
            CHECK(p.row_mass == o.row_mass);
        }
        if (scores) {
            CHECK_INT(p.rows, q_len - row < pass ? q_len - row : pass);
            check_scores(x, l, p, name);
            continue;
        }
        row += mass;
        CHECK_MSG(name == want[i], "%s, want %s", name.c_str(), want[i].c_str());
        if (name == sample) {
            const int64_t splits = over(over(p.capacity, 64), 32), units = chunks * size / 64;
            check_grid(l, units * splits, heads, batch, name);
            CHECK_MSG(p.stage == stage++ && p.chunks == chunks && p.units == units
                          && p.sample_splits == splits && p.tile_heads == 1,
                      "%s: slices", name.c_str());
        } else if (mass || name == "k_row_audit") check_grid(l, heads, batch, 1, name);
        else if (name == "k_select") check_grid(l, 2, heads, batch, name);
        else if (name == "k_audit") check_grid(l, heads, batch, 1, name);
        else if (name == "k_mask") {
            CHECK(p.mask_out == o.mask_out && p.q_blocks == (x.a.q.shape[1] + 2 * size - 2) / size
                  && p.k_blocks == over(p.capacity, size));
            check_grid(l, p.q_blocks, heads, batch, name);
        } else check_grid(l, kv_heads, batch, 1, name);
    }
}

/* The parts of the workspace that a call's kernels share, by what they index. */
static std::vector<part> parts_of(const problem &x, const params &p) {
    const uint64_t rows = (uint64_t)x.a.q.shape[0] * (uint64_t)p.heads, columns = (uint64_t)over(p.dv, 256);
    const uint64_t width = p.dv > 128 ? 256 : 128, shares = (uint64_t)p.portions;
    if (is_drawn(x)) return drawn_parts(x, p);
    if (x.o.method == SANTA_DENSE || x.o.method == SANTA_SAMPLE_ATTENTION)
        return {{"partial results", p.partial,
                 (uint64_t)p.rows * rows * (uint64_t)p.splits * ((uint64_t)p.dv + 2) * 4, 4}};
    const santa_stash stash = x.o.stash == SANTA_STASH_DEFAULT ? SANTA_STASH_F32 : x.o.stash;
    const uint64_t entry = stash == SANTA_STASH_F32 ? 4 : stash == SANTA_STASH_F16 ? 2 : 1;
    CHECK_INT(p.stash_type, stash);
    /* of as many query rows as the pass has: gather is given one of them */
    const uint64_t blocks = (uint64_t)p.rows * rows * (uint64_t)p.blocks;
    std::vector<part> parts = {{"block sums", p.block_sums, blocks * 8 * (64u >> p.unit_shift), 8},
                               {"stash", p.stash, blocks * 64 * entry, 16}};
    if (x.stats || x.a.std_error) {
        parts.push_back({"keys", p.keys, rows * (uint64_t)p.max_draws * 4, 4});
        parts.push_back({"draws", p.draws, rows * 4, 4});
    } else {
        CHECK(!p.keys && !p.draws);
    }
    CHECK((p.weights != NULL) == (x.a.std_error && x.o.method == SANTA_FLASH));
    if (p.weights) parts.push_back({"weights", p.weights, rows * (uint64_t)p.max_draws * 4, 4});
    if (shares > 1) {
        parts.push_back({"portions", p.partial, rows * columns * shares * width * 4, 4});
        parts.push_back({"arrivals", p.arrived, (uint64_t)p.rows * rows * columns * 4, 4});
    }
    return parts;
}

/* How many query rows the first kernel of a call is launched for: only the stream takes more
   than one, and only if all heads of a group fit for each. */
static int64_t rows_of_pass(const problem &x) {
    const santa_attention &a = x.a;
    if (is_copied(x)) return copied_rows(x);
    const bool pages = a.block_table && a.k.shape[1] % 8;
    const bool stream = !standin.launches.empty()
                        && name_of(standin.launches[0]).compare(0, 9, "k_scores<") == 0;
    if (!stream || pages || query_parts(a) || a.alibi_slopes) return 1;
    return rows_in_slots(a);
}

/* vAttention: for each pass the scores, if heavy tokens are taken by them, then six launches;
   errors for each of its rows. */
static void check_adaptive(const problem &x, const char *workspace, uint64_t bytes) {
    const santa_vattention_options &v = x.o.vattention;
    const bool by_scores = !v.heavy_index && v.heavy_tokens != SANTA_NONE,
               by_copy = by_scores && is_copied(x);
    const int64_t rows = x.a.q.shape[1], kv_heads = x.a.k.shape[2], errors = x.a.std_error != NULL,
                  pass = by_scores ? rows_of_pass(x) : rows_in(16, x.a);
    if (!CHECK_INT(standin.launches.size(), over(rows, pass) * (6 + by_scores) + rows * errors)) return;
    CHECK_INT(standin.cleared.size(), x.stats ? 1 : 0);
    size_t launched = 0;
    for (int64_t i = 0; i < 8 * rows; i++) {
        const int64_t row = i / 8, begin = !by_scores, here = pass < rows - row ? pass : rows - row;
        const int which = (int)(i % 8);                           /* 0: scores .. 6: combine, 7: error */
        if (which < begin || (which < 7 && row % pass) || (which == 7 && !errors)) continue;
        const standin_launch &l = standin.launches[launched++];
        const std::string &name = name_of(l);
        params p;
        if (!read_parameters(l, &p)) return;
        check_parameters(x, p, row, name, (int64_t)p.va.portions);
        CHECK(l.stream == (cudaStream_t)x.o.stream);
        CHECK_MSG(l.overlap == (which > begin && which < 7 && standin.card->major >= 9),
                  "%s: launched %s", name.c_str(), l.overlap ? "early" : "late");
        CHECK_INT(p.rows, which < 7 ? here : 1);
        const int64_t batch = x.a.q.shape[0] * p.rows;           /* sequences of the pass */
        const uint64_t heads = (uint64_t)(batch * p.heads), items = (uint64_t)(batch * kv_heads),
                       blocks = heads * (uint64_t)p.blocks,
                       portions = (uint64_t)(over(p.capacity, list_keys(x.a)) + 2),
                       words = 4 * (uint64_t)over(p.capacity, 128), dv = (uint64_t)p.dv,
                       counters = 4 * heads + (items + 3) / 4 * 4;
        const bool shared = p.va.shared_words > 0;
        CHECK_INT(p.va.portions, portions);
        CHECK_INT(p.va.list_pitch, portions * (uint64_t)list_keys(x.a));
        CHECK_INT(p.va.words, words);
        CHECK(shared == (words <= 12288) && (!shared || p.va.shared_words == (int64_t)words));
        CHECK(p.raw == 1 && p.va.by_scores == by_scores && p.va.by_copy == by_copy && p.va.audit == v.audit
              && p.va.index == v.heavy_index);
        CHECK(p.va.epsilon > 0.0 && p.va.delta > 0.0 && p.va.z > 0.0);
        CHECK(which == 7 || p.partial == p.va.sums);
        std::vector<part> parts = {{"lists", p.va.list, 4 * items * portions * (uint64_t)p.list_keys, 4},
                                   {"rows", p.va.rows, items * sizeof(va_row), 8}};
        if (keeps_lse(x))
            parts.push_back({"lse", p.lse, (uint64_t)(x.a.q.shape[0] * rows * p.heads) * 4, 4});
        if (which == 7) {
            CHECK(name == "k_weighed_error");
            check_parts(parts, workspace, bytes, name);
            check_grid(l, p.heads, batch, 1, name);
            continue;
        }
        parts.push_back({"counters", p.arrived, 4 * (counters + items * words), 16});
        parts.push_back({"heads", p.va.heads, heads * sizeof(va_head), 8});
        parts.push_back({"sums", p.va.sums, 4 * heads * portions * (dv + 4), 4});
        if (by_scores) {
            const uint64_t most = (uint64_t)p.va.most_candidates;
            parts.push_back({"block sums", p.block_sums, blocks * 8, 8});
            parts.push_back({"scores", p.stash, blocks * 256, 16});
            parts.push_back({"candidates", p.va.candidates, heads * most * 8, 8});
            if (by_copy) parts.push_back({"spreads", p.spreads, blocks * 4, 4});
            CHECK_INT(p.arrivals, counters + items * words);
        }
        parts.push_back({"taken", p.va.taken, 4 * items * words, 16});
        CHECK(p.va.listed == (shared ? p.va.taken : p.va.bits));
        check_parts(parts, workspace, bytes, name);
        CHECK((const int *)p.va.heads_done == p.arrived + 4 * heads
              && (const int *)p.va.bits == p.arrived + counters);
        if (which == 0) {
            if (by_copy) CHECK(name.compare(0, 14, "k_proxy_scores") == 0 && p.fixed_ctas == 0);
            else CHECK(name.compare(0, 8, "k_scores") == 0);
        } else if (which == 1) {
            CHECK(name == "k_va_choose");
            const bool halves
                = over(p.capacity, 16384) * batch * p.heads <= 2 * standin.card->multiprocessors;
            CHECK_INT(p.va.choose_keys, halves ? 16384 : 32768);
            if (by_scores) check_grid(l, over(p.capacity, p.va.choose_keys), p.heads, batch, name);
            else check_grid(l, 1, kv_heads, batch, name);
            CHECK_INT(l.dynamic, by_scores ? 73728 : 0);
        } else if (which == 2) {
            CHECK(name == "k_va_fill");
            CHECK(l.grid.x >= 1 && l.grid.x <= (shared ? 16 : 1));
            CHECK(l.grid.y == kv_heads && l.grid.z == batch);
            CHECK_INT(l.dynamic, shared ? 4 * words : 0);
        } else if (which == 4) {
            CHECK(name == "k_va_budget");
            check_grid(l, kv_heads, batch, 1, name);
            CHECK_INT(l.dynamic, shared ? 4 * words : 0);
        } else if (which == 6) {
            CHECK(name == "k_va_result");
            check_grid(l, p.heads, batch, over(p.dv, 128), name);
            CHECK_INT(p.va.pass, 2);
            CHECK_INT(l.dynamic, 0);
        } else {
            CHECK_INT(p.va.pass, which == 5);
            const bool fast = name.compare(0, 7, "k_list<") == 0;
            CHECK_MSG(fast || name == "k_va_attend", "%s for sums", name.c_str());
            CHECK(!fast || v.guarantee == SANTA_GUARANTEE_DENOMINATOR);
            const int64_t slices = over(p.group, fast ? 8 : FIXED_HEADS);
            CHECK_INT(p.slices, slices);
            if (fast) CHECK(l.grid.y == kv_heads * slices && l.grid.z == batch);
            else CHECK(l.grid.x == (int64_t)items * slices && divides_by(p.by_slices, slices)
                       && divides_by(p.by_kv, kv_heads));
        }
    }
}

/* Top-k and top-p: for each pass scores, selection, a list for each head, the merge; for each
   row stats. */
static void check_selected(const problem &x, const char *workspace, uint64_t bytes) {
    const santa_attention &a = x.a;
    const int64_t rows = a.q.shape[1], each = x.stats ? 5 : 4, heads = a.q.shape[2], pass = rows_of_pass(x);
    const bool copied = is_copied(x);
    if (!CHECK_INT(standin.launches.size(), over(rows, pass) * 4 + rows * (each - 4))) return;
    size_t launched = 0;
    for (int64_t i = 0; i < rows * each; i++) {
        const int64_t which = i % each, row = i / each;
        if (which < 4 && row % pass) continue;       /* an earlier one's pass had it */
        const standin_launch &l = standin.launches[launched++];
        const std::string &name = name_of(l);
        params p;
        if (!read_parameters(l, &p)) return;
        CHECK_MSG(l.stream == (cudaStream_t)x.o.stream, "%s: another stream", name.c_str());
        CHECK_MSG(l.overlap == (which > 0 && which < 4 && standin.card->major >= 9), "%s: launched %s",
                  name.c_str(), l.overlap ? "early" : "late");
        check_parameters(x, p, i / each, name, p.splits);
        const int64_t keys = p.capacity,
                      most = x.o.method == SANTA_TOP_P ? keys : x.o.num_samples ? x.o.num_samples : 128;
        const int64_t batch = a.q.shape[0] * p.rows; /* sequences of the pass */
        const uint64_t lists = (uint64_t)(batch * heads), blocks = lists * (uint64_t)p.blocks;
        const bool in_bytes = p.stash_type != SANTA_STASH_F32;
        CHECK_INT(p.rows, which == 4 ? 1 : pass < rows - row ? pass : rows - row);
        CHECK(p.raw == !in_bytes && p.max_draws == (most < keys ? most : keys) && p.samples == p.max_draws);
        if (which == 4) {
            check_parts({{"keys", p.keys, lists * (uint64_t)p.max_draws * 4, 4},
                         {"lengths", p.draws, lists * 4, 4}}, workspace, bytes, name);
            CHECK(name == (copied ? "k_draw_stats" : "k_stats"));
            continue;
        }
        CHECK(p.list_heads == 1 && p.list == p.keys && p.list_lens == p.draws);
        CHECK(copied || !in_bytes);
        std::vector<part> parts = {{"block sums", p.block_sums, blocks * 8, 8},
                                   {"stash", p.stash, blocks * 64 * (in_bytes ? 1 : 4), 16},
                                   {"keys", p.keys, lists * (uint64_t)p.max_draws * 4, 4},
                                   {"lengths", p.draws, lists * 4, 4},
                                   {"rest", p.list_rest, lists * sizeof(rest_mass), 8}};
        if (copied) {
            parts.push_back({"spreads", p.spreads, blocks * 4, 4});
            parts.push_back({"ranges", p.list_ranges, lists * sizeof(list_range), 4});
            check_copy(x, p, name);
        }
        if (which >= 2)
            parts.push_back(
                {"partial results", p.partial, lists * (uint64_t)p.splits * ((uint64_t)p.dv + 2) * 4, 4});
        check_parts(parts, workspace, bytes, name);
        if (which == 0) {
            if (copied) check_copied_scores(x, l, p, name); else check_scores(x, l, p, name);
        } else if (which == 1) {
            const int64_t ctas = 1 << p.cluster_shift;
            CHECK(name == "k_top");
            CHECK_MSG(ctas == 1
                          || (standin.card->major >= 9 && ctas <= 8 && ctas * 16 <= p.blocks
                              && ctas * (int64_t)lists <= standin.card->multiprocessors),
                      "k_top: a cluster of %d", (int)ctas);
            check_grid(l, heads * ctas, batch, 1, name);
        } else if (which == 2) {
            const bool fast = name.compare(0, 7, "k_list<") == 0;
            CHECK_MSG(fast || name == "k_list_plain", "%s for the lists", name.c_str());
            CHECK(p.slices == 1 && p.list_keys == list_keys(a));
            CHECK((int64_t)p.splits * p.list_keys >= p.max_draws);
            /* of top-k a CTA has up to four parts where there are many lists */
            const int64_t most = most_of_full_lists(p.splits, heads * batch);
            const bool limits = fast && x.o.method == SANTA_TOP_K && p.splits > most;
            check_list_grid(l, limits ? most : p.splits, heads * (fast ? 1 : over(p.dv, 256)), batch, name);
        } else {
            check_combine(x, l, p, name);
        }
    }
}

/* First tokens beside a window: for each row, dense: ranges, their list, the merge; else the
   window's scores, those of the first tokens, draws or a selection with a list and its merge;
   then errors and stats. */
static void check_firsts(const problem &x, const char *workspace, uint64_t bytes) {
    const santa_attention &a = x.a;
    const bool dense = x.o.method == SANTA_DENSE,
               selects = x.o.method == SANTA_TOP_K || x.o.method == SANTA_TOP_P;
    const int64_t rows = a.q.shape[1], batch = a.q.shape[0], heads = a.q.shape[2], kv_heads = a.k.shape[2],
                  first = dense ? 3 : selects ? 5 : 3,
                  each = first + (a.std_error != NULL) + (x.stats != NULL);
    if (!CHECK_INT(standin.launches.size(), rows * each)) return;
    for (int64_t i = 0; i < rows * each; i++) {
        const int64_t which = i % each;
        const standin_launch &l = standin.launches[(size_t)i];
        const std::string &name = name_of(l);
        params p;
        if (!read_parameters(l, &p)) return;
        const bool scores = !dense && which == 0, list = name.compare(0, 6, "k_list") == 0;
        CHECK(l.stream == (cudaStream_t)x.o.stream && p.q_index == i / each && p.rows == 1);
        CHECK(p.first_tokens == a.first_tokens && p.first_window == a.window);
        CHECK_MSG(p.window == (scores ? a.window : 0), "%s: a window of %lld", name.c_str(),
                  (long long)p.window);
        CHECK_MSG(!l.overlap || (which > (dense ? 0 : 1) && which < first), "%s: early", name.c_str());
        const uint64_t sums = (uint64_t)(batch * heads), blocks = sums * (uint64_t)p.blocks;
        std::vector<part> parts;
        if (dense) parts.push_back({"ranges", p.first_ranges, (uint64_t)(batch * kv_heads) * 8, 4});
        else {
            parts.push_back({"block sums", p.block_sums, blocks * 8 * (64u >> p.unit_shift), 8});
            parts.push_back({"stash", p.stash, blocks * 64, 16});
        }
        if (list || is_combine(name)) {
            const int64_t most = a.window < p.capacity ? a.window : p.capacity;
            if (dense)
                CHECK(p.list_ranges == p.first_ranges && p.list_heads == p.group && !p.list && !p.list_lens
                      && p.list_most == 0
                      && (p.list_keys ? (int64_t)p.splits * p.list_keys >= most
                                      : p.splits >= many_parts(most)));
            parts.push_back({"partial results", p.partial,
                             sums * (uint64_t)p.splits * (uint64_t)(p.dv + 2 + p.pad) * 4, 4});
        }
        check_parts(parts, workspace, bytes, name);
        const char *const error = is_drawn(x) ? "k_weighed_error" : "k_error";
        if (which >= first) {
            const bool fails = which == first && a.std_error;
            const char *const stats = is_drawn(x) ? "k_draw_stats" : "k_stats";
            CHECK_MSG(name == (fails ? error : stats), "%s", name.c_str());
        } else if (dense && which == 0) {
            CHECK(name == "k_first_ranges");
            check_grid(l, batch, 1, 1, name);
        } else if (dense) {
            CHECK_MSG(which == 1 ? list : is_combine(name), "%s", name.c_str());
        } else if (scores) {
            check_scores(x, l, p, name);
        } else if (which == 1) {
            CHECK(name == "k_first_scores");
            check_grid(l, over(batch * kv_heads * stream_slices(p) * p.blocks, 8), 1, 1, name);
        } else if (selects) {
            CHECK_MSG(which == 2 ? name == "k_top" : which == 3 ? list : is_combine(name), "%s",
                      name.c_str());
        } else if (is_drawn(x)) {
            check_draw(x, l, p, name);
        } else {
            check_gather(x, l, p, name);
        }
    }
}

/* Dense of query rows that share passes: of each k_dense and its combination, stats of all rows
   behind the first. */
static bool shares_dense_rows(const problem &x) {
    const bool dense = (x.o.method == SANTA_DENSE && !x.asked) || x.o.method == SANTA_SAMPLE_ATTENTION;
    return dense && !x.a.key_list && !standin.launches.empty()
        && name_of(standin.launches[0]).compare(0, 8, "k_dense<") == 0 && dense_rows(x.a, 0) > 1;
}
static void check_shared_rows(const problem &x, const char *workspace, uint64_t bytes) {
    const int64_t q_len = x.a.q.shape[1];
    size_t i = 0;
    bool joined = false;                             /* a last row by itself may be */
    for (int64_t row = 0; row < q_len; row += dense_rows(x.a, row))
        for (int which = 0; which < 2 + (row == 0 && x.stats); which++) {
            if (which == 1 && joined) continue;
            if (!CHECK(i < standin.launches.size())) return;
            const standin_launch &l = standin.launches[i++];
            const std::string &name = name_of(l);
            params p;
            if (!read_parameters(l, &p)) return;
            CHECK(l.stream == (cudaStream_t)x.o.stream);
            CHECK(l.overlap == (which == 1 && standin.card->major >= 9));
            CHECK_INT(p.rows, which < 2 ? dense_rows(x.a, row) : 1);
            check_parameters(x, p, row, name);
            check_parts(parts_of(x, p), workspace, bytes, name);
            if (which == 0) {
                joined = is_joined(name);
                CHECK(!joined || p.rows == 1);
                check_dense(x, l, p, name);
            } else if (which == 1) check_combine(x, l, p, name);
            else {
                CHECK(name == "k_prefill_stats");
                check_grid(l, x.a.k.shape[2], x.a.q.shape[0], 1, name);
            }
        }
    CHECK_INT(standin.launches.size(), i);
    CHECK_INT(standin.cleared.size(), x.stats ? 1 : 0);
}

/* All launches of a call that succeeded: for each pass its first kernel, then for each of its
   rows the second, and others for errors and stats. */
static void check_launches(const problem &asked, const char *workspace, uint64_t bytes) {
    const problem x = as_dense(asked);
    if (x.o.method == SANTA_SAAP) { check_routed_launches(x, workspace, bytes); return; }
    bool joined = false;
    for (const standin_launch &l : standin.launches) joined |= is_joined(name_of(l));
    const int brief = none_below(x) ? 0 : 2;         /* launches for rows below dense_below */
    const int64_t rows = x.a.q.shape[1], pass = rows_of_pass(x),
                  each = 1 + brief + (x.a.std_error != NULL) + (x.stats != NULL);
    const bool dense = x.o.method == SANTA_DENSE || x.o.method == SANTA_SAMPLE_ATTENTION;
    if (x.a.first_tokens) { check_firsts(x, workspace, bytes); return; }
    if (is_tiled(x)) { check_prefill(x, workspace, bytes); return; }
    if (shares_dense_rows(x)) { check_shared_rows(x, workspace, bytes); return; }
    if (x.o.method == SANTA_VATTENTION) { check_adaptive(x, workspace, bytes); return; }
    if (x.o.method == SANTA_TOP_K || x.o.method == SANTA_TOP_P) {
        check_selected(x, workspace, bytes);
        return;
    }
    const int64_t together = is_drawn(x) && !dense ? 2 : 1;            /* launches for all rows of a pass */
    if (!CHECK_INT(standin.launches.size(),
                   together * over(rows, pass) + rows * (each + 1 - together - joined)))
        return;
    CHECK_INT(standin.cleared.size(), x.stats ? 1 : 0);
    for (const standin_memory &m : standin.cleared)
        CHECK(m.begin == (uintptr_t)x.stats && m.bytes == sizeof(santa_stats));
    params first = {};
    size_t i = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t which = row % pass ? together : 0; which <= each; which++) {
            if (joined && which == (brief ? 3 : 1)) continue;         /* there is no k_combine */
            const standin_launch &l = standin.launches[i++];
            const std::string &name = name_of(l);
            params p;
            if (!read_parameters(l, &p)) return;
            CHECK_MSG(l.stream == (cudaStream_t)x.o.stream, "%s: another stream", name.c_str());
            const bool early = which == 1 || (brief && (which == 2 || which == 3));
            CHECK_MSG(l.overlap == (early && standin.card->major >= 9), "%s: launched %s", name.c_str(),
                      l.overlap ? "early" : "late");
            const int64_t splits = short_splits(x, p);
            if (brief && (which == 2 || which == 3)) {
                std::vector<part> parts = parts_of(x, p);
                CHECK(p.is_short == 1 && p.rows == 1);
                check_parameters(x, p, row, name, splits);
                for (size_t k = 0; k < parts.size(); k++)           /* it is the short rows' here */
                    if (!strcmp(parts[k].what, "portions")) parts.erase(parts.begin() + (int64_t)k--);
                parts.push_back({"short rows", p.partial,
                                 (uint64_t)(x.a.q.shape[0] * p.heads * splits) * ((uint64_t)p.dv + 2) * 4,
                                 4});
                check_parts(parts, workspace, bytes, name);
                if (which == 2) { check_dense(x, l, p, name); continue; }
                check_combine(x, l, p, name);
                continue;
            }
            /* sample-attention that looks at no blocks: all rows count as dense */
            if (x.o.method == SANTA_SAMPLE_ATTENTION)
                CHECK(p.is_short == 1 && p.dense_below == p.capacity + 1);
            else
                CHECK(p.is_short == (x.asked != SANTA_DENSE)
                      && (x.asked || p.dense_below == (none_below(x) ? 0 : dense_below(x))));
            check_parameters(x, p, row, name);
            check_parts(parts_of(x, p), workspace, bytes, name);
            CHECK_INT(p.rows, which >= together ? 1 : pass < rows - row ? pass : rows - row);
            if (which == 0) first = p;
            const uint64_t heads = (uint64_t)(row % pass) * (uint64_t)(x.a.q.shape[0] * x.a.q.shape[2]);
            if (which == 1 && !dense && !is_copied(x)) {
                const uint64_t blocks = heads * (uint64_t)p.blocks;
                const uint64_t entry = x.o.stash == SANTA_STASH_F16  ? 2
                                       : x.o.stash == SANTA_STASH_U8 ? 1
                                                                     : 4;
                CHECK_MSG(
                    (const char *)p.block_sums
                            == (const char *)first.block_sums + blocks * 8 * (64u >> p.unit_shift)
                        && p.stash == first.stash + blocks * 64 * entry
                        && (is_drawn(x) || p.arrived == first.arrived + heads * (uint64_t)over(p.dv, 256)),
                    "%s: another row's scores", name.c_str());
            }
            if (which >= 2 && is_drawn(x) && !dense && p.draws)
                CHECK_MSG(p.draws == first.draws + heads
                              && p.keys == first.keys
                                         + heads / (uint64_t)p.together * (uint64_t)p.max_draws,
                          "%s: another row's draws", name.c_str());
            if (which == 2 + brief && x.a.std_error) {
                CHECK(name == (is_drawn(x) ? "k_weighed_error" : "k_error"));
                check_grid(l, x.a.q.shape[2], x.a.q.shape[0], 1, name);
            } else if (which >= 2) {
                CHECK(name == (is_drawn(x) ? "k_draw_stats" : x.a.key_list ? "k_list_stats" : "k_stats"));
                check_grid(l, x.a.k.shape[2], x.a.q.shape[0], 1, name);
            } else if (which == 0) {
                if (x.a.key_list) check_listed(x, l, p, name);
                else if (dense) check_dense(x, l, p, name);
                else if (is_copied(x)) check_copied_scores(x, l, p, name);
                else check_scores(x, l, p, name);
            } else if (dense) {
                check_combine(x, l, p, name);
            } else if (is_drawn(x)) {
                check_draw(x, l, p, name);
            } else {
                check_gather(x, l, p, name);
            }
        }
}

/* k_query_parts, which k_scores or k_dense follows at once, with its slots for q. It is taken
   out, and the other looks then as if q were its own. */
static void check_query_parts(const problem &x, const char *workspace, uint64_t bytes) {
    std::vector<standin_launch> others;
    for (size_t i = 0; i < standin.launches.size(); i++) {
        standin_launch l = standin.launches[i];
        params p, q;
        const bool digits = name_of(l) == "k_query_digits";
        if (name_of(l) != "k_query_parts" && !digits) { others.push_back(l); continue; }
        if (!read_parameters(l, &q) || !CHECK(i + 1 < standin.launches.size())) return;
        CHECK(!l.overlap && l.stream == (cudaStream_t)x.o.stream);
        l = standin.launches[++i];
        if (!read_parameters(l, &p)) return;
        const std::string name = name_of(l);
        if (digits) {
            const int64_t slices = over(p.group, 8), items = x.a.q.shape[0] * x.a.k.shape[2] * slices;
            CHECK(name == "k_dense_blocks" || name == "k_scores_blocks");
            CHECK(l.overlap == (standin.card->major >= 9));
            check_grid(standin.launches[i - 1], x.a.k.shape[2] * slices, x.a.q.shape[0], 1,
                       "k_query_digits");
            CHECK(q.q == x.a.q.data && q.q_slots == p.q_slots && q.q_unscale == p.q_unscale
                  && q.q_index == p.q_index && q.part_shift == p.part_shift && q.q_sets == p.q_sets
                  && q.q_slices == slices);
            check_parts({{"digits of q", p.q_slots, (uint64_t)(items * p.q_sets * 8 * 128), 16},
                         {"their units", p.q_unscale, (uint64_t)(items * 32), 4}}, workspace, bytes, name);
            l.overlap = p.is_short && short_splits(x, p) && standin.card->major >= 9;
            others.push_back(l);
            continue;
        }
        const int64_t batch = x.a.q.shape[0], kv_heads = x.a.k.shape[2],
                      items = batch * kv_heads * stream_slices(p), d = x.a.k.shape[3];
        CHECK(name.compare(0, 9, "k_scores<") == 0 || name.compare(0, 8, "k_dense<") == 0);
        CHECK_MSG(l.overlap == (standin.card->major >= 9), "%s: launched late", name.c_str());
        check_grid(standin.launches[i - 1], kv_heads * stream_slices(p), batch, 1, "k_query_parts");
        CHECK(q.q == x.a.q.data && q.q_type == (int)x.a.q.dtype && q.q_index == p.q_index
              && q.q_parts == p.q_parts && q.part_shift == p.part_shift && q.slice_heads == p.slice_heads
              && q.q_slices == p.q_slices && q.q_slots == p.q_slots && q.q_unscale == p.q_unscale
              && p.q_slices == stream_slices(p));
        CHECK(p.q == p.q_slots && p.vector_q && p.q_stride[3] == 2 && p.q_stride[2] == 2 * d
              && p.q_stride[1] == 0 && p.q_stride[0] == kv_heads * p.q_slices * 16 * d
              && p.q_type == (x.a.k.dtype == SANTA_BF16 ? SANTA_BF16 : SANTA_F16));
        check_parts({{"slots of q", p.q_slots, (uint64_t)(items * 16 * d), 16},
                     {"its scales", p.q_unscale, (uint64_t)(items * 4), 4}}, workspace, bytes, name);
        p.q = q.q;
        p.q_type = q.q_type;
        p.vector_q = q.vector_q;
        memcpy(p.q_stride, q.q_stride, sizeof p.q_stride);
        memcpy(l.parameters.data(), (const void *)&p, sizeof p);
        l.overlap = p.is_short && short_splits(x, p) && standin.card->major >= 9;
        others.push_back(l);
    }
    standin.launches = others;
}

/* ---------------------------------------------------------------------------------- calls */

/* Check, workspace query and call of a problem on the card that is set. Returns santa_check's
   status. */
static santa_status run(const problem &x, size_t shift = 0) {
    enum { PATIENCE = 200 };                         /* a long q_len is cut off by a call that fails */
    const santa_status s = note(santa_check(&x.a, &x.o));
    const size_t bytes = santa_workspace_size(&x.a, &x.o);
    char *const workspace = address(R_WORKSPACE) + shift;
    map_memory(bytes, shift);
    standin.start();
    if (s != SANTA_OK) {
        CHECK_MSG(bytes == 0 || s == SANTA_ERR_NULL_DATA || s == SANTA_ERR_PROXY_NULL
                      || s == SANTA_ERR_BUCKETS_NULL,
                  "\"%s\", but a workspace of %llu",
                  santa_status_string(s), (unsigned long long)bytes);
        CHECK_STATUS(santa_decode(&x.a, &x.o, workspace, bytes, x.stats), s);
        CHECK_MSG(standin.calls == 0, "\"%s\", but %lld CUDA calls", santa_status_string(s),
                  (long long)standin.calls);
        return s;
    }
    CHECK(bytes > 0);
    const problem dense = as_dense(x);
    if (is_tiled(dense)) {                           /* no patience for more parts */
        const double items = (double)x.a.q.shape[0] * (double)x.a.k.shape[2], each = tile_row_bytes(dense);
        if (std::min(items, items * each / (double)SANTA_CUDA_TILE_ROWS) > (double)PATIENCE) return s;
    }
    note(CHECK_STATUS(santa_decode(&x.a, &x.o, NULL, bytes, x.stats), SANTA_ERR_WORKSPACE_NULL)
             ? SANTA_ERR_WORKSPACE_NULL
             : s);
    note(CHECK_STATUS(santa_decode(&x.a, &x.o, workspace, bytes - 1, x.stats), SANTA_ERR_WORKSPACE_SIZE)
         ? SANTA_ERR_WORKSPACE_SIZE : s);
    CHECK_INT(standin.calls, 0);
    const bool none = x.o.item_end && x.o.item_begin == x.o.item_end,
               endless = x.a.q.shape[1] > PATIENCE && !none
                      && (!is_tiled(as_dense(x)) || x.o.sample_attention.row_mass);
    standin.fail_at = endless ? PATIENCE : 0;
    const santa_status got = santa_decode(&x.a, &x.o, workspace, bytes, x.stats);
    standin.fail_at = 0;
    CHECK_MSG(standin.broken.empty(), "a launch that is not legal: %s", standin.broken.c_str());
    if (endless && standin.calls >= PATIENCE) {       /* fewer where rows share theirs */
        CHECK_STATUS(got, (santa_status)(SANTA_ERR_CUDA + cudaErrorInvalidValue));
        CHECK_INT(standin.calls, PATIENCE);
        return s;
    }
    if (!CHECK_STATUS(got, SANTA_OK)) return s;
    if (x.o.item_end) { check_range(x, x.o.item_begin, x.o.item_end); return s; }
    check_query_parts(x, workspace, bytes);
    check_launches(x, workspace, bytes);
    return s;
}

static void run_on_cards(const problem &x, santa_status want, const char *what) {
    for (const standin_card &card : standin_cards) {
        standin.card = &card;
        const santa_status s = run(x);
        CHECK_MSG(s == want, "%s: got \"%s\", want \"%s\"", what, santa_status_string(s),
                  santa_status_string(want));
    }
}

/* ---------------------------------------------------------------------------------- cases */

static const santa_method METHODS[] = {SANTA_DENSE, SANTA_IID,  SANTA_STRAT,
                                       SANTA_SYS,   SANTA_PROP, SANTA_FLASH,
                                       SANTA_VATTENTION, SANTA_SAMPLE_ATTENTION, SANTA_PPS};

static void add_lists(problem *x, int64_t most, int rows) {
    x->a.key_list      = (const int32_t *)address(R_LIST);
    x->a.key_list_lens = (const int32_t *)address(R_LIST_LENS);
    x->a.key_weights   = (const float *)address(R_WEIGHTS);
    x->a.max_list      = most;
    x->a.key_list_rows = rows;
}

/* x stays where it is from here on. */
static void add_router(problem *x, int64_t buckets, int64_t hidden, santa_dtype type) {
    santa_buckets *r = &x->router;
    r->num_buckets = buckets;
    r->hidden = hidden;
    r->dtype  = type;
    r->centroids = address(R_ROUTER);
    r->w1 = address(R_ROUTER) + ((int64_t)1 << 38);
    r->b1 = (const float *)(address(R_ROUTER) + ((int64_t)1 << 39));
    r->w2 = address(R_ROUTER) + ((int64_t)1 << 40);
    r->b2 = (const float *)(address(R_ROUTER) + ((int64_t)1 << 41));
    r->index = (address(R_ROUTER) + ((int64_t)3 << 40));
    x->a.buckets = r;
}

/* What santa_buckets_assign launches for new keys of this number and type. */
static void check_assign(problem *x, int64_t count, santa_dtype type, const char *what) {
    const santa_tensor &k = x->a.k;
    const int64_t batch = x->a.q.shape[0], d = k.shape[3], n = x->router.num_buckets, kv_heads = k.shape[2];
    santa_tensor keys = santa_view(address(R_Q), type, batch, count, kv_heads, d);
    keys.device = SANTA_CUDA;
    santa_options o;
    memset(&o, 0, sizeof o);
    o.stream = (void *)0x5000;
    map_memory(1, 0);
    standin.start();
    const santa_status s = santa_buckets_assign(&x->a, &keys, 0, &o);
    if (d > 256) { CHECK_STATUS(s, SANTA_ERR_BACKEND_SIZE); return; }
    CHECK_STATUS(s, SANTA_OK);
    CHECK_MSG(standin.broken.empty(), "%s: %s", what, standin.broken.c_str());
    if (!CHECK_INT(standin.launches.size(), 2)) return;
    params p;
    const standin_launch *l = &standin.launches[0];
    memcpy((void *)&p, l->parameters.data(), sizeof p);
    check_index(*x, p, name_of(*l));
    CHECK(p.new_count == count && p.new_from == 0 && p.product.step == STEP_NEAREST
          && l->stream == (cudaStream_t)o.stream);
    const bool cores = type == x->router.dtype && bytes_of(type) == 2 && d <= 128 && d % 8 == 0;
    if (p.new_tiles) {
        CHECK(count <= NEW_FEW && name_of(*l) == "k_rows");
        /* a product and its bucket for each key and tile, in the index's scratch */
        CHECK_MSG(2 * p.new_tiles * count <= n, "%s: %d tiles", what, p.new_tiles);
        check_grid(*l, p.new_tiles, kv_heads, over(batch * count, 32), what);
    } else {
        CHECK(name_of(*l) == (cores ? "k_nearest" : "k_nearest_plain"));
        const int64_t most = count < p.capacity ? count : p.capacity;
        check_grid(*l, over(most, cores ? 256 : 64), kv_heads, batch, what);
    }
    l = &standin.launches[1];
    CHECK(name_of(*l) == "k_index");
    CHECK_MSG(over(n, l->grid.x) <= INDEX_BUCKETS && l->grid.x <= n && l->grid.y == kv_heads
                  && l->grid.z == batch,
              "%s: %u ranges of %lld buckets", what, l->grid.x, (long long)n);
}

/* The steps of santa_cuda.h: what they launch, in a workspace as large as they say. */
static void check_steps(void) {
    char *const work = address(R_WORKSPACE);
    float *const scores = (float *)address(R_Q);
    const santa_cuda_draws draws = {(int32_t *)address(R_LIST), (float *)address(R_WEIGHTS),
                                    (int32_t *)address(R_LIST_LENS), (float *)address(R_LSE), 100000};
    const auto names = [](std::initializer_list<const char *> want) {
        CHECK_MSG(standin.broken.empty(), "%s", standin.broken.c_str());
        if (!CHECK_INT(standin.launches.size(), want.size())) return;
        for (size_t i = 0; i < want.size(); i++) {
            const std::string &name = name_of(standin.launches[i]);
            CHECK_MSG(name.compare(0, strlen(want.begin()[i]), want.begin()[i]) == 0, "%s, want %s",
                      name.c_str(), want.begin()[i]);
        }
    };
    problem x = make(SMALL, SANTA_DENSE);
    size_t bytes = santa_cuda_scores_workspace_size(&x.a, &x.o);
    map_memory(bytes, 0);
    standin.start();
    CHECK_STATUS(santa_cuda_scores(&x.a, &x.o, 0, (float *)address(R_LSE), 1000, work, bytes), SANTA_OK);
    names({"k_scores<sixteen, 4, false, 1>", "k_step_scores"});
    check_grid(standin.launches[1], 4, 8, 2, "k_step_scores");
    for (int m = SANTA_DENSE; m < SANTA_METHOD_COUNT; m++)
        for (int64_t samples : {100, 1000}) {
            santa_options o = {};
            o.method = (santa_method)m;
            o.num_samples = samples;
            if (m == SANTA_FLASH) o.tile_size = 8;
            const bool draws_rows = m >= SANTA_IID && m <= SANTA_FLASH,
                       selects = m == SANTA_TOP_K || m == SANTA_TOP_P;
            bytes = santa_cuda_sample_workspace_size(3, 20, 5000, &o);
            CHECK((bytes > 0) == (draws_rows || selects));
            map_memory(bytes, 0);
            standin.start();
            CHECK_STATUS(santa_cuda_sample(scores, 5000, 3, 20, 5000, 2, &o, &draws, work, bytes),
                         bytes ? SANTA_OK : SANTA_ERR_METHOD);
            if (!bytes) continue;
            names({"k_step_masses", selects ? "k_top" : "k_gather<", "k_step_draws"});
            check_grid(standin.launches[0], 10, 3, 3, "k_step_masses");
            check_grid(standin.launches[2], 20, 3, 1, "k_step_draws");
            params p;
            memcpy((void *)&p, standin.launches[1].parameters.data(), sizeof p);
            const uint64_t rows = 60, entries = rows * 79, units = entries * (64u >> p.unit_shift);
            std::vector<part> parts = {{"block sums", p.block_sums, units * 8, 8},
                                       {"stash", p.stash, entries * 256, 16},
                                       {"keys", p.keys, rows * (uint64_t)p.max_draws * 4, 4},
                                       {"draws", p.draws, rows * 4, 4},
                                       {"V", p.v, 16, 16},
                                       {"out", p.out, rows * 16, 4}};
            if (selects) parts.push_back({"rest", p.list_rest, rows * sizeof(rest_mass), 8});
            CHECK((p.weights != NULL) == (m == SANTA_FLASH));
            if (p.weights) parts.push_back({"weights", p.weights, rows * (uint64_t)p.max_draws * 4, 4});
            if (!selects && p.portions > 1) {
                CHECK_INT(p.arrivals, rows);
                parts.push_back({"arrivals", p.arrived, rows * 4, 4});
                parts.push_back({"portions", p.partial, rows * (uint64_t)p.portions * 128 * 4, 4});
            }
            check_parts(parts, work, bytes, "steps");
            CHECK(p.max_draws == santa_cuda_sample_capacity(5000, &o) && p.q_index == 2);
            memcpy((void *)&p, standin.launches[2].parameters.data(), sizeof p);
            CHECK(p.step.scores == scores && p.step.stride == 5000 && p.step.capacity == draws.capacity);
            CHECK(p.step.index == draws.index && p.step.weight == draws.weight
                  && p.step.rows == draws.rows && p.step.lse == draws.lse);
        }
    standin.start();
    CHECK_STATUS(santa_cuda_gather(&x.a, &draws, (float *)address(R_OUT), NULL), SANTA_OK);
    names({"k_step_gather"});
    check_grid(standin.launches[0], 8, 2, 1, "k_step_gather");
    standin.start();
    CHECK_STATUS(santa_cuda_merge(70000, 64, scores, (float *)address(R_LSE), (float *)address(R_OUT),
                                  (float *)address(R_K), NULL), SANTA_OK);
    names({"k_step_merge"});
    check_grid(standin.launches[0], 70000, 1, 1, "k_step_merge");
    standin.start();
    CHECK_STATUS(
        santa_cuda_merge(1, 64, scores, (float *)64, (float *)address(R_OUT), (float *)address(R_K), NULL),
        SANTA_ERR_HOST_POINTER);
    CHECK_STATUS(santa_cuda_merge((int64_t)1 << 31, 64, scores, scores, scores, scores, NULL),
                 SANTA_ERR_BACKEND_SIZE);
}

/* Arrays off the border of their numbers: refused before anything is launched. */
static void odd_addresses(void) {
    char *const odd = address(R_WEIGHTS) + 2, *const half = address(R_WEIGHTS) + 4;
    const auto refused = [](santa_status s, const char *what) {
        CHECK_MSG(s == SANTA_ERR_BACKEND_ALIGNMENT && standin.launches.empty(), "%s: %s", what,
                  santa_status_string(s));
    };
    standin.card = &standin_cards[3];
    const auto decode = [&](problem &x, santa_stats *stats, const char *what) {
        const size_t bytes = (size_t)1 << 30;
        standin.start();
        refused(santa_decode(&x.a, &x.o, address(R_WORKSPACE), bytes, stats), what);
    };
    {
        problem x = make(SMALL, SANTA_PROP);
        decode(x, (santa_stats *)half, "stats");
    }
    for (int i = 0; i < 2; i++) {
        problem x = make({1, 64, 8, 2, 3000, 64, 64, 0, SANTA_BF16, NHD}, SANTA_SAMPLE_ATTENTION);
        x.a.causal = 1;
        if (i) x.o.sample_attention.audit = (santa_sample_audit *)half;
        else x.o.sample_attention.row_mass = (float *)odd;
        decode(x, NULL, i ? "audit" : "row_mass");
    }
    {
        problem x = make(SMALL, SANTA_SAAP);
        add_router(&x, 40, 0, SANTA_BF16);
        x.router.slots = (const int32_t *)odd;
        decode(x, NULL, "slots");
        santa_tensor keys = x.a.k;
        keys.data = address(R_K);
        keys.shape[1] = 4;
        santa_options o;
        memset(&o, 0, sizeof o);
        standin.start();
        refused(santa_buckets_assign(&x.a, &keys, 0, &o), "slots of new keys");
        x.router.slots = NULL;
        x.a.seq_lens = (const int32_t *)odd;
        refused(santa_buckets_assign(&x.a, &keys, 0, &o), "lengths of new keys");
    }
    {
        problem x = make(SMALL, SANTA_PROP);
        x.a.proxy    = address(R_COPY);
        x.a.seq_lens = (const int32_t *)odd;
        standin.start();
        refused(santa_proxy_encode(&x.a, 0, 100, NULL), "lengths of a copy");
    }
    problem x = make(SMALL, SANTA_PROP);
    float *const good = (float *)address(R_LSE), *const bad = (float *)odd;
    const size_t bytes = (size_t)1 << 30;
    standin.start();
    santa_options plain;
    memset(&plain, 0, sizeof plain);
    refused(santa_cuda_scores(&x.a, &plain, 0, bad, 100000, address(R_WORKSPACE), bytes), "scores");
    for (int i = 0; i < 8; i++) {
        int32_t *const keys = (int32_t *)address(R_LIST), *const rows = (int32_t *)address(R_LIST_LENS);
        santa_cuda_draws d = {keys, good, rows, good, 1 << 20};
        santa_options o = plain;
        o.method      = SANTA_SYS;
        o.num_samples = 32;
        if (i == 1) d.index = (int32_t *)odd;
        if (i == 2) d.weight = bad;
        if (i == 3) d.rows = (int32_t *)odd;
        if (i == 4) d.lse = bad;
        if (i == 5) o.seeds = (const uint64_t *)half;
        if (i == 6) o.offsets = (const uint64_t *)half;
        if (i == 7) o.request_ids = (const uint64_t *)half;
        refused(santa_cuda_sample(i ? good : bad, 5000, 3, 20, 5000, 2, &o, &d, address(R_WORKSPACE),
                                  bytes), "sample");
        if (i < 4) refused(santa_cuda_gather(&x.a, &d, i ? good : bad, NULL), "gather");
        if (i < 4)
            refused(santa_cuda_merge(7, 64, i == 0 ? bad : good, i == 1 ? bad : good, i == 2 ? bad : good,
                                     i == 3 ? bad : good, NULL), "merge");
    }
}

/* Sixteen-bit K, wide heads, large groups: the merge at the end of dense is larger than its
   ring. */
static void wide_groups(void) {
    for (santa_dtype type : {SANTA_BF16, SANTA_F16})
        for (int64_t d : {160, 192, 256})
            for (int64_t group : {5, 8})
                for (int64_t page : {0, 16}) {
                    sizes s = SMALL;
                    s.d = s.dv = d;
                    s.heads = 2 * group;
                    s.page  = page;
                    s.type  = type;
                    run_on_cards(make(s, SANTA_DENSE), SANTA_OK, "wide_groups");
                    standin.card = &standin_cards[3];
                    run(make(s, SANTA_DENSE));
                    const std::string name = name_of(standin.launches[0]);
                    CHECK_MSG(name.find("k_dense<sixteen, 8, ") != std::string::npos, "sm_90 runs %s",
                              name.c_str());
                    CHECK_INT(standin.launches[0].dynamic, 8 * 8 * (256 + 4) * 4);
                }
}

/* Each limit from both sides: the largest size that is taken, which must launch legally, and
   one more. */
static void limits(void) {
    const int64_t TWO31 = (int64_t)1 << 31, TWO32 = (int64_t)1 << 32;
    const auto expect = [](const char *what, santa_status want, santa_method m,
                           void (*change)(sizes *, int64_t), int64_t n) {
        sizes s = {1, 1, 1, 1, 100, 8, 8, 0, SANTA_BF16, ONE_BATCH};
        change(&s, n);
        problem x = make(s, m);
        if (s.d >= INT32_MAX)
            for (int i = 0; i < 2; i++) /* so wide that only stride 0 fits in memory */
                for (int64_t &stride : x.tensor(i)->stride) stride = 0;
        char name[100];
        snprintf(name, sizeof name, "%s %lld, %s", what, (long long)n, santa_method_name(m));
        run_on_cards(x, want, name);
    };
    for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_FLASH}) {
        const auto batch = [](sizes *s, int64_t n) { s->batch = n; };
        expect("batch", SANTA_OK, m, batch, 65535);
        expect("batch", SANTA_ERR_BACKEND_SIZE, m, batch, 65536);
        expect("batch", SANTA_ERR_BACKEND_SIZE, m, batch, TWO32 + 1);
        const auto heads = [](sizes *s, int64_t n) { s->heads = s->kv_heads = n; };
        expect("heads", SANTA_OK, m, heads, 65535);
        expect("heads", SANTA_ERR_BACKEND_SIZE, m, heads, 65536);
        const auto group = [](sizes *s, int64_t n) { s->heads = n; };
        expect("group", SANTA_OK, m, group, 65535);
        expect("group", SANTA_ERR_BACKEND_SIZE, m, group, 65536);
        const auto keys = [](sizes *s, int64_t n) { s->keys = n; };
        expect("keys", SANTA_OK, m, keys, TWO31 - 64);
        expect("keys", SANTA_ERR_BACKEND_TOO_LONG, m, keys, TWO31 - 63);
        expect("keys", SANTA_ERR_BACKEND_TOO_LONG, m, keys, TWO31 - 1);
        expect("keys", SANTA_ERR_TOO_LONG, m, keys, TWO31);
        const auto pages = [](sizes *s, int64_t n) { s->page = 64; s->keys = n; };
        expect("keys in pages", SANTA_OK, m, pages, TWO31 - 64);
        const auto pages7 = [](sizes *s, int64_t n) { s->page = 7; s->keys = n; };
        expect("keys in pages of 7", SANTA_ERR_BACKEND_TOO_LONG, m, pages7, TWO31 - 2);
        const auto d = [](sizes *s, int64_t n) { s->d = n; };
        expect("head_dim", SANTA_OK, m, d, TWO31 - 1);
        expect("head_dim", SANTA_ERR_BACKEND_SIZE, m, d, TWO31);
        expect("head_dim", SANTA_ERR_BACKEND_SIZE, m, d, TWO32 + 64);
        const auto dv = [](sizes *s, int64_t n) { s->dv = n; };
        expect("head_dim_v", SANTA_OK, m, dv, 8388480);
        expect("head_dim_v", SANTA_ERR_BACKEND_SIZE, m, dv, TWO31 - 1);
        expect("head_dim_v", SANTA_ERR_BACKEND_SIZE, m, dv, TWO31);
        expect("head_dim_v", SANTA_ERR_BACKEND_SIZE, m, dv, TWO32 + 64);
        /* heads * columns of V is dense's grid, not that of the others */
        const auto wide_heads = [](sizes *s, int64_t n) { s->heads = s->kv_heads = 65535; s->dv = n; };
        expect("65535 heads, head_dim_v", SANTA_OK, m, wide_heads, 256);
        expect("65535 heads, head_dim_v", m == SANTA_DENSE ? SANTA_ERR_BACKEND_SIZE : SANTA_OK, m,
               wide_heads, 257);
        expect("65535 heads, head_dim_v", m == SANTA_DENSE ? SANTA_ERR_BACKEND_SIZE : SANTA_OK, m,
               wide_heads, 8192);
        /* 64 x 32 x n tiles: the sampled methods count them in int */
        const auto work = [](sizes *s, int64_t n) {
            s->batch = 64;
            s->heads = s->kv_heads = 32;
            s->keys = 64 * n;
        };
        expect("64 x 32 x tiles", SANTA_OK, m, work, (1 << 20) - 1);
        expect("64 x 32 x tiles", m == SANTA_DENSE ? SANTA_OK : SANTA_ERR_BACKEND_SIZE, m, work, 1 << 20);
    }
    const auto columns = [](sizes *s, int64_t n) { s->dv = n; };
    expect("head_dim_v", SANTA_ERR_BACKEND_SIZE, SANTA_DENSE, columns, 8388481); /* grid of combine */
    expect("head_dim_v", SANTA_OK, SANTA_PROP, columns, 65535 * 256); /* grid of gather */
    expect("head_dim_v", SANTA_ERR_BACKEND_SIZE, SANTA_PROP, columns, 65535 * 256 + 1);
    expect("head_dim_v of pps", SANTA_OK, SANTA_PPS, columns, 256);
    expect("head_dim_v of pps", SANTA_ERR_BACKEND_SIZE, SANTA_PPS, columns, 257);
    const auto one_group = [](sizes *s, int64_t n) { s->kv_heads = 1; s->heads = n; };
    expect("a group of pps", SANTA_OK, SANTA_PPS, one_group, 64);
    expect("a group of pps", SANTA_ERR_BACKEND_SIZE, SANTA_PPS, one_group, 65);
    for (int64_t columns_of_v : {15, 16}) {                      /* x 4096 shares of 256 draws */
        sizes s = SMALL;
        s.dv = 256 * columns_of_v;
        problem x = make(s, SANTA_PROP);
        x.o.num_samples = SANTA_MAX_SAMPLES;
        run_on_cards(x, columns_of_v < 16 ? SANTA_OK : SANTA_ERR_BACKEND_SIZE, "draws x head_dim_v");
    }
}

/* A tile of flash may be longer than the keys, by any amount: it is one tile then. */
static void long_tiles(void) {
    for (int64_t tile :
         {(int64_t)64, (int64_t)1024, (int64_t)1 << 31, (int64_t)1 << 32, ((int64_t)1 << 32) + 64,
          ((int64_t)1 << 32) - 64, (int64_t)1 << 62, INT64_MAX - 63}) {
        problem x = make(SMALL, SANTA_FLASH);
        x.o.tile_size = tile;
        run_on_cards(x, SANTA_OK, "long_tiles");
        params p;
        memcpy((void *)&p, standin.launches[0].parameters.data(), sizeof p);
        CHECK_INT(p.flash_blocks, tile == 64 ? 1 : 16);
        x.o.method = SANTA_PROP;                     /* its tiles have no say here */
        run_on_cards(x, SANTA_OK, "long_tiles");
    }
}

/* The counters that the scores kernel clears are more than an int can count. */
static void many_arrivals(void) {
    sizes s = {65535, 1, 65528, 1, 1, 8, 8, 0, SANTA_BF16, ONE_BATCH};
    problem x = make(s, SANTA_PROP);
    x.o.num_samples = 257;
    run_on_cards(x, SANTA_OK, "many_arrivals");
    params p;
    memcpy((void *)&p, standin.launches[0].parameters.data(), sizeof p);
    CHECK_INT(p.arrivals, (int64_t)65535 * 65528);
}

static void divisors(void) {
    test_rng r = test_rng_make(1);
    for (int i = 0; i < 2000000; i++) {
        const unsigned d = (unsigned)(test_next(&r) >> (33 + test_below(&r, 31))),
                       n = (unsigned)(test_next(&r) >> 33);
        if (d == 0) continue;
        const unsigned near = n / d * d, x[3] = {n, near, near ? near - 1 : 0};
        const divisor by = divide_by(d);
        for (unsigned y : x)
            if (!CHECK_MSG(by.quotient(y) == y / d, "%u / %u is not %u", y, d, by.quotient(y))) return;
    }
}

/* Each of a problem's calls to the runtime fails: that is the status, and no other one
   follows. */
static void fail_each_call(const problem &x, std::initializer_list<int> codes) {
    const size_t bytes = santa_workspace_size(&x.a, &x.o);
    standin.start();
    CHECK_STATUS(santa_decode(&x.a, &x.o, address(R_WORKSPACE), bytes, x.stats), SANTA_OK);
    const int64_t calls = standin.calls;
    for (int64_t k = 1; k <= calls; k++)
        for (int code : codes) {
            standin.start();
            standin.fail_at   = k;
            standin.fail_with = (cudaError_t)code;
            const santa_status got = santa_decode(&x.a, &x.o, address(R_WORKSPACE), bytes, x.stats);
            CHECK_STATUS(got, (santa_status)(SANTA_ERR_CUDA + code));
            CHECK_INT(santa_cuda_error(got), code);
            CHECK_MSG(standin.calls == k, "call %lld of %lld fails, and another follows", (long long)k,
                      (long long)calls);
        }
    standin.fail_at   = 0;
    standin.fail_with = cudaErrorInvalidValue;
}

/* A CUDA call that fails ends the call with its code, whichever it is, and nothing follows
   it. */
static void failures_of_calls(void) {
    for (const standin_card &card : standin_cards)
        for (santa_method m : METHODS)
            for (santa_dtype type : {SANTA_BF16, SANTA_F32})
                for (int with_stats = 0; with_stats < 2; with_stats++) {
                    sizes s = SMALL;
                    s.q_len = 2;
                    s.type  = type;
                    problem x = make(s, m);
                    if (with_stats) x.stats = (santa_stats *)address(R_STATS);
                    standin.card = &card;
                    if (!CHECK_STATUS(run(x), SANTA_OK)) return;
                    fail_each_call(x, {1, 719});
                }
    CHECK_INT(santa_cuda_error(SANTA_OK), 0);
    CHECK_INT(santa_cuda_error(SANTA_ERR_BACKEND_SIZE), 0);
}

/* The same of a prefill, with all that it may launch. */
static void failures_of_prefill(void) {
    for (const standin_card &card : standin_cards)
        for (santa_method m : {SANTA_DENSE, SANTA_SAMPLE_ATTENTION}) {
            sizes s = SMALL;
            s.q_len = 64;
            problem x = make(s, m);
            x.a.causal = 1;
            x.stats = (santa_stats *)address(R_STATS);
            x.o.sample_attention.mask_out = (uint8_t *)address(R_MASK_OUT);
            x.o.sample_attention.audit = (santa_sample_audit *)address(R_BLOCK_AUDIT);
            santa_clear_unused_options(&x.o);
            standin.card = &card;
            if (!CHECK_STATUS(run(x), SANTA_OK)) return;
            fail_each_call(x, {1});
        }
}

/* Rows of K in which V lies, `on` features from their beginning. */
static problem latent(int64_t batch, int64_t heads, int64_t keys, int64_t on) {
    problem x = make({batch, 1, heads, 1, keys, 576, 512, 0, SANTA_BF16, NHD}, SANTA_DENSE);
    for (int i = 0; i < 3; i++) x.a.v.stride[i] = x.a.k.stride[i];
    x.a.v.data = (char *)x.a.k.data + 2 * on;
    return x;
}

/* The same where a call asks what was compiled for the card. */
static void failures_of_latents(void) {
    for (const standin_card &card : standin_cards) {
        const problem x = latent(2, 128, 5000, 0);
        standin.card = &card;
        if (!CHECK_STATUS(run(x), SANTA_OK)) return;
        fail_each_call(x, {1});
    }
}

/* What sample-attention on this device does not take. */
static void sparse_errors(void) {
    sizes s = SMALL;
    s.q_len = 64;
    const int refused[] = {1, 3, 4, 9};
    for (int i = 0; i < 10; i++) {
        problem x = make(s, SANTA_SAMPLE_ATTENTION);
        x.a.causal = 1;
        if (i >= 8) x.a.q.dtype = SANTA_F32;
        if (i == 7) x.a.v.dtype = SANTA_E4M3;
        if (i == 1) x.a.q.dtype = SANTA_F16;
        if (i == 2) x.a.k.data = (char *)x.a.k.data + 2;
        if (i == 3) x.a.v.dtype = SANTA_F32;
        if (i == 4)
            x = make({2, 64, 8, 2, 1000, 264, 128, 0, SANTA_BF16, NHD}, SANTA_SAMPLE_ATTENTION),
            x.a.causal = 1;
        if (i == 5)
            x = make({2, 64, 8, 2, 1000, 128, 12, 0, SANTA_BF16, NHD}, SANTA_SAMPLE_ATTENTION),
            x.a.causal = 1;
        if (i == 6 || i == 9) x.o.sample_attention.row_mass = (float *)address(R_ROW_MASS);
        bool bad = false;
        for (int r : refused) bad |= i == r;
        run_on_cards(x, bad ? SANTA_ERR_BACKEND_SPARSE : SANTA_OK, "sparse");
        x.a.q.shape[1] = x.a.out.shape[1] = 31;      /* runs dense */
        if (i < 6) run_on_cards(x, SANTA_OK, "sparse, few rows");
    }
}

static void add_scales(santa_tensor *scales, const santa_tensor &t, void *data, santa_dtype type) {
    *scales = t;
    scales->data = data;
    scales->dtype = type;
    scales->shape[3] = 1;
}

/* Each pointer in turn is to host memory: refused before anything is launched. */
static void host_pointers(void) {
    static double host[8];
    for (int i = 0; i < REGIONS; i++) {
        sizes s = SMALL;
        const bool blocks = i >= R_MASK && i <= R_ROW_MASS;
        if (blocks) s.q_len = 64;
        problem x = make(s, blocks ? SANTA_SAMPLE_ATTENTION : i < R_HEAVY ? SANTA_PROP : SANTA_VATTENTION);
        x.a.causal = 1;
        x.o.sample_attention.mask = (const uint8_t *)address(R_MASK);
        x.o.sample_attention.mask_out = (uint8_t *)address(R_MASK_OUT);
        x.o.sample_attention.audit = (santa_sample_audit *)address(R_BLOCK_AUDIT);
        x.o.sample_attention.row_mass = (float *)address(R_ROW_MASS);
        santa_clear_unused_options(&x.o);
        x.a.seq_lens     = (const int32_t *)address(R_LENS);
        x.a.sinks        = (const float *)address(R_SINKS);
        x.a.alibi_slopes = (const float *)address(R_SLOPES);
        x.o.seeds        = (const uint64_t *)address(R_SEEDS);
        x.o.offsets      = (const uint64_t *)address(R_OFFSETS);
        x.o.request_ids  = (const uint64_t *)address(R_IDS);
        x.a.block_table  = (const int32_t *)address(R_TABLE);
        x.a.max_pages    = 1;
        x.stats = (santa_stats *)address(R_STATS);
        if (!CHECK_STATUS(run(x), SANTA_OK)) return;
        const size_t bytes = santa_workspace_size(&x.a, &x.o);
        void *workspace = address(R_WORKSPACE);
        switch (i) {
            case R_Q: case R_K: case R_V: case R_OUT: x.tensor(i - R_Q)->data = host; break;
            case R_LSE: x.a.lse = (float *)host; break;
            case R_STATS: x.stats = (santa_stats *)host; break;
            case R_WORKSPACE: workspace = host; break;
            case R_LENS: x.a.seq_lens = (const int32_t *)host; break;
            case R_TABLE: x.a.block_table = (const int32_t *)host; break;
            case R_SINKS: x.a.sinks = (const float *)host; break;
            case R_SLOPES: x.a.alibi_slopes = (const float *)host; break;
            case R_SEEDS: x.o.seeds = (const uint64_t *)host; break;
            case R_OFFSETS: x.o.offsets = (const uint64_t *)host; break;
            case R_HEAVY:
                x.o.vattention.heavy_tokens = 1;
                x.o.vattention.heavy_index  = (const int32_t *)host;
                break;
            case R_AUDIT: x.o.vattention.audit = (santa_audit *)host; break;
            case R_MASK: x.o.sample_attention.mask = (const uint8_t *)host; break;
            case R_MASK_OUT: x.o.sample_attention.mask_out = (uint8_t *)host; break;
            case R_BLOCK_AUDIT: x.o.sample_attention.audit = (santa_sample_audit *)host; break;
            case R_ROW_MASS: x.o.sample_attention.row_mass = (float *)host; break;
            case R_K_SCALES: add_scales(&x.a.k_scales, x.a.k, host, SANTA_F32); break;
            case R_V_SCALES: add_scales(&x.a.v_scales, x.a.v, host, SANTA_F32); break;
            default: x.o.request_ids = (const uint64_t *)host; break;
        }
        standin.start();
        CHECK_STATUS(note(santa_decode(&x.a, &x.o, workspace, bytes, x.stats)), SANTA_ERR_HOST_POINTER);
        /* another device's memory, which the current one does not reach */
        standin.memory.push_back({(uintptr_t)host, sizeof host, cudaMemoryTypeDevice, true});
        CHECK_STATUS(note(santa_decode(&x.a, &x.o, workspace, bytes, x.stats)), SANTA_ERR_DEVICE_MISMATCH);
        standin.memory.pop_back();
        CHECK_MSG(standin.launches.empty() && standin.cleared.empty(), "region %d: launched", i);
    }
}

/* An exchange that only notes where it was asked to read and write. */
struct exchange { uintptr_t mine, all; size_t bytes, after; };
static std::vector<exchange> exchanges;
static int note_exchange(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    CHECK(user == &exchanges && stream == (void *)0x5000);
    exchanges.push_back({(uintptr_t)mine, (uintptr_t)all, bytes, standin.launches.size()});
    return standin.launches.size() > 90;
}
static int no_exchange(void *, const void *, size_t, void *, void *) { return 1; }

/* A call of one of five ranks, whose exchanges are noted; the bytes of its workspace. */
static size_t run_rank(problem *x, int rank) {
    x->o.ranks.count = 5;
    x->o.ranks.rank = rank;
    x->o.ranks.all_gather = note_exchange;
    x->o.ranks.user = &exchanges;
    x->o.stream = (void *)0x5000;
    const size_t bytes = santa_workspace_size(&x->a, &x->o);
    map_memory(bytes, 0);
    standin.start();
    exchanges.clear();
    CHECK_STATUS(santa_decode(&x->a, &x->o, address(R_WORKSPACE), bytes, x->stats), SANTA_OK);
    CHECK_MSG(standin.broken.empty(), "%s", standin.broken.c_str());
    return bytes;
}

/* What it reads and writes lies apart, in the workspace. */
static void check_place(const exchange &e, size_t bytes) {
    const uintptr_t begin = (uintptr_t)address(R_WORKSPACE), end = begin + bytes;
    CHECK(e.mine >= begin && e.mine + e.bytes <= end);
    CHECK(e.all >= begin && e.all + 5 * e.bytes <= end);
    CHECK(e.mine + e.bytes <= e.all || e.all + 5 * e.bytes <= e.mine);
}

/* For each query row of a sampler: scores, masses, the exchange of them, draws; at the end that
   of the results and what joins them. Dense has the latter only, pps an exchange of ticks
   before the draws. */
static void over_ranks(void) {
    for (santa_method m : {SANTA_DENSE, SANTA_SYS, SANTA_PPS})
        for (santa_dtype type : {SANTA_F32, SANTA_BF16})
            for (int64_t dv : {64, 256}) {
                const sizes s = {2, 3, 4, 1, 300, 128, dv, 0, type, NHD};
                const bool pps = m == SANTA_PPS, errors = !pps && (dv == 64) == (type == SANTA_F32);
                problem x = make(s, m);
                x.a.std_error = errors ? (float *)address(R_ERROR) : NULL;
                const size_t bytes = run_rank(&x, 3);
                const size_t rows = 3, heads = 2 * 4,
                             doubles = errors && m == SANTA_SYS ? 2 + 2 * (size_t)dv : 0,
                             sure = pps ? (size_t)(dv + 2) * 4 : 0,
                             results = rows * heads * ((size_t)(dv + 1) * 4 + sure + doubles * 8);
                const char *const draw = m == SANTA_DENSE ? "k_combin" : doubles ? "k_error"
                                       : pps ? "k_draw" : "k_gather";
                CHECK_INT(exchanges.size(), m == SANTA_DENSE ? 1 : (pps ? 2 * rows : rows) + 1);
                for (const exchange &e : exchanges) {
                    const bool last = &e == &exchanges.back(),
                               ticks = pps && !last && (&e - exchanges.data()) % 2;
                    const std::string &before = name_of(standin.launches[e.after - 1]);
                    CHECK_INT(e.bytes, last ? results : ticks ? 2 * 8 : heads * 16);
                    check_place(e, bytes);
                    CHECK_MSG(last ? before.compare(0, strlen(draw), draw) == 0
                                         || (m == SANTA_DENSE && is_joined(before))
                                   : before == (ticks ? "k_draw" : "k_rank_mass"),
                              "an exchange behind %s", before.c_str());
                }
                CHECK(name_of(standin.launches.back()) == "k_join_ranks");
                x.o.ranks.all_gather = no_exchange;
                CHECK_STATUS(note(santa_decode(&x.a, &x.o, address(R_WORKSPACE), bytes, NULL)),
                             SANTA_ERR_RANKS_EXCHANGE);
                x.o.ranks.rank = 5;
                CHECK_STATUS(note(santa_check(&x.a, &x.o)), SANTA_ERR_RANKS);
                x.o.ranks.rank = 0;
                x.a.std_error = NULL;
                {
                    const int32_t *const context = x.a.context_lens;
                    x.a.context_lens = (const int32_t *)address(R_WORKSPACE);
                    x.o.method = SANTA_FLASH;
                    CHECK_STATUS(note(santa_check(&x.a, &x.o)), SANTA_OK);
                    x.a.first_key = 32;              /* of whole blocks, as its ranges */
                    CHECK_STATUS(note(santa_check(&x.a, &x.o)), SANTA_ERR_BACKEND_RANKS);
                    x.a.first_key = 64;
                    x.o.tile_size = 32;
                    CHECK_STATUS(note(santa_check(&x.a, &x.o)), SANTA_ERR_BACKEND_RANKS);
                    x.o.tile_size = 0;
                    x.a.first_key = 0;
                    x.a.context_lens = context;
                }
                x.o.method = m;
                x.o.ranks.count = 1;
                CHECK(santa_workspace_size(&x.a, &x.o) < bytes);
            }
}

/* Methods that select: the best scores of each rank; or, where these would be many or of top-p,
   four times how many keys have which bits of the score next; of top-p also masses. */
static void choices_over_ranks(void) {
    for (int64_t budget : {2048, 2049, 0, -2500}) {    /* below 0: from a copy of K */
        const sizes s = {2, 3, 4, 1, 3000, 128, 64, 0, SANTA_BF16, NHD};
        const size_t rows = 3, heads = 2 * 4, count = (size_t)llabs(budget);
        const bool copied = budget < 0, best = copied || budget == 2048;
        const bool masses = budget == 0;
        const size_t each = best ? 1 : masses ? 5 : 4;
        problem x = make(s, budget ? SANTA_TOP_K : SANTA_TOP_P);
        if (budget) x.o.num_samples = (int64_t)count;
        if (copied) { x.o.scores = SANTA_SCORES_PROXY; x.a.proxy = address(R_COPY); }
        const size_t bytes = run_rank(&x, 3);
        if (!CHECK_INT(exchanges.size(), rows * each + 1)) continue;
        for (size_t i = 0; i <= rows * each; i++) {
            const exchange &e = exchanges[i];
            const std::string &before = name_of(standin.launches[e.after - 1]);
            CHECK_INT(e.bytes, i == rows * each ? rows * heads * 66 * 4
                             : heads * (best ? 4 * count : masses && i % 5 == 0 ? 24 : 256 * 12));
            if (i == rows * each) CHECK(is_combine(before));
            else CHECK(before == (best ? "k_rank_best"
                                  : masses && i % 5 == 0 ? "k_rank_mass" : "k_rank_bins"));
            check_place(e, bytes);
        }
        CHECK(name_of(standin.launches.back()) == "k_join_ranks");
    }
}

/* vAttention: for each row how many keys there are; the choice of heavy tokens, where scores
   make it; how many keys are left; twice two of words, between them sums; at the end the
   results. */
static void budgets_over_ranks(void) {
    enum { BY_INDEX, BY_BEST, BY_BINS, BY_COPY, KINDS };
    for (int kind = 0; kind < KINDS; kind++)
        for (int full = 0; full < 2; full++) {
            const sizes s = {2, 3, 4, 1, 3000, 128, 64, 0, SANTA_BF16, NHD};
            const size_t rows = 3, heads = 2 * 4, choices = kind == BY_INDEX ? 0 : kind == BY_BINS ? 4 : 1;
            problem x = make(s, SANTA_VATTENTION);
            santa_vattention_options &v = x.o.vattention;
            v.heavy_tokens = kind == BY_BINS ? (full ? 0 : 2049) : 70;
            v.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
            if (kind == BY_INDEX) v.heavy_index = (const int32_t *)address(R_LENS);
            if (kind == BY_COPY) { x.o.scores = SANTA_SCORES_PROXY; x.a.proxy = address(R_COPY); }
            x.stats = (santa_stats *)address(R_STATS);
            std::vector<size_t> told = {2 * 8};
            told.insert(told.end(), choices, heads * (kind == BY_BINS ? 256 * 12 : 4 * 70));
            told.insert(told.end(), {2 * 8, 2 * 4096, 2 * 4096, heads * (full ? 32 + 8 * 64 : 32), 2 * 4096,
                                     2 * 4096});
            const size_t bytes = run_rank(&x, 3), each = told.size();
            if (!CHECK_INT(exchanges.size(), rows * each + 1)) continue;
            for (size_t i = 0; i <= rows * each; i++) {
                const bool last = i == rows * each, choice = i % each > 0 && i % each <= choices;
                CHECK_INT(exchanges[i].bytes, last ? rows * heads * 66 * 4 : told[i % each]);
                const char *const behind = last || !choice ? "k_va_ranks"
                                         : kind == BY_BINS ? "k_rank_bins" : "k_rank_best";
                CHECK(name_of(standin.launches[exchanges[i].after - 1]) == behind);
                check_place(exchanges[i], bytes);
            }
            CHECK(name_of(standin.launches.back()) == "k_join_ranks");
        }
}

/* The same of flash, and from copies of K: for each row an exchange of what the copy says, two
   of a rescue if the options have one, one of the drawn keys; then that of the results. */
static void copies_over_ranks(void) {
    /* flash: masses and those of two tiles, how many tiles have mass */
    {
        const sizes s = {2, 3, 4, 1, 300, 128, 64, 0, SANTA_BF16, NHD};
        problem x = make(s, SANTA_FLASH);
        x.a.context_lens = (const int32_t *)address(R_LENS);
        x.a.first_key = 640;
        x.o.tile_size = 128;
        run_rank(&x, 0);
        if (CHECK_INT(exchanges.size(), 7))
            for (size_t i = 0; i < 7; i++)
                CHECK_INT(exchanges[i].bytes, 8 * (i == 6 ? 3 * 65 * 4 : i % 2 ? 8 : 64));
    }

    for (int rescue = 0; rescue < 3; rescue++)       /* none by the keys or by the limit; there is one */
        for (int64_t samples : {64, 300}) {
            const int has_rescue = rescue == 2;
            const sizes s = {2, 3, 4, 1, 300, 128, 64, 0, SANTA_BF16, NHD};
            problem x = make(s, SANTA_SYS);
            const size_t rows = 3, heads = 2 * 4, keys = 70, each = has_rescue ? 4 : 2;
            x.o.scores = SANTA_SCORES_PROXY;
            x.o.num_samples = samples;
            x.o.proxy.rescue_keys = rescue ? (int64_t)keys : SANTA_NONE;
            x.o.proxy.rescue_above = rescue == 1 ? SANTA_NONE : 0.0;
            x.a.proxy = address(R_COPY);
            x.stats = (santa_stats *)address(R_STATS);
            const size_t told[2][4] = {{40, 16, 0, 0}, {40, 4 * keys, 40, 16}};
            const char *const behind[2][4] = {{"k_rank_copied", "k_proxy_gather<true>", "", ""},
                                              {"k_rank_copied", "k_proxy_gather<false>", "k_rank_copied",
                                               "k_proxy_gather<true>"}};
            const size_t bytes = run_rank(&x, 3);
            if (!CHECK_INT(exchanges.size(), rows * each + 1)) continue;
            for (size_t i = 0; i <= rows * each; i++) {
                const exchange &e = exchanges[i];
                const bool last = i == rows * each;
                CHECK_INT(e.bytes, last ? rows * heads * 65 * 4 : heads * told[has_rescue][i % each]);
                check_place(e, bytes);
                if (!last) CHECK(name_of(standin.launches[e.after - 1]) == behind[has_rescue][i % each]);
            }
            CHECK(name_of(standin.launches.back()) == "k_join_ranks");
            /* heads that draw together: ticks before the draws */
            x.o.method = SANTA_PPS;
            run_rank(&x, 3);
            if (!CHECK_INT(exchanges.size(), rows * (each + 1) + 1)) continue;
            for (size_t i = 0; i < rows * (each + 1); i++) {
                const size_t at = i % (each + 1);
                const std::string &before = name_of(standin.launches[exchanges[i].after - 1]);
                if (at + 2 > each) CHECK(before == "k_draw");
                CHECK_INT(exchanges[i].bytes, at + 1 == each ? 2 * 8
                                            : heads * (at == each ? 16 : told[has_rescue][at]));
            }
        }
}

static int64_t ask_nothing(void *, int64_t, int64_t, int64_t, const float *, int64_t, int64_t, int64_t,
                           int32_t *) {
    return 0;
}

/* Of latents all keys, and lists. */
static void latents(void) {
    for (const standin_card &card : standin_cards)
        for (int warpgroups = 0; warpgroups < 2; warpgroups++)
            for (int64_t heads : {1, 16, 64, 128, 200})
                for (int64_t keys : {1, 129, 5000, 32768, 131072})
                    for (int64_t batch : {1, 7, 100})
                        for (int64_t on : {0, 8, 64}) {
                            problem x = latent(batch, heads, keys, on);
                            standin.card = &card;
                            standin.warpgroups = warpgroups;
                            CHECK_STATUS(run(x), SANTA_OK);
                            add_lists(&x, keys < 4096 ? keys : 2048, 0);
                            CHECK_STATUS(run(x), SANTA_OK);
                        }
    standin.warpgroups = true;
}

/* Everything that the choice of a kernel depends on, in all combinations: each compiled one is
   reached. */
static void every_kernel(void) {
    for (launched *k = all_launched; k; k = k->next) k->count = 0;
    for (const standin_card *card : {&standin_cards[1], &standin_cards[3]})
        for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_FLASH, SANTA_PPS})
            for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
                for (int64_t d : {64, 128, 256, 320})
                    for (int64_t dv : {64, 256})
                        for (int64_t group : {4, 5, 9})
                            for (int64_t page : {0, 16})
                                for (float soft_cap : {0.0f, 1.0f}) {
                                    const sizes s = {1, 1, group, 1, 300, d, dv, page, type, NHD};
                                    problem x = make(s, m);
                                    x.a.soft_cap = soft_cap;
                                    x.stats = (santa_stats *)address(R_STATS);
                                    if (group == 5) x.a.std_error = (float *)address(R_ERROR);
                                    standin.card = card;
                                    CHECK_STATUS(run(x), SANTA_OK);
                                }
    for (santa_method m : {SANTA_DENSE, SANTA_PROP})
        for (int64_t group : {1, 2, 4, 5, 9}) {
            problem x = make({2, 1, 2 * group, 2, 300, 64, 64, 0, SANTA_BF16, NHD}, m);
            x.a.q.dtype = SANTA_F32;
            CHECK_STATUS(run(x), SANTA_OK);
            problem y = make({2, 1, 2 * group, 2, 300, 128, 64, 0, SANTA_Q8_0, NHD}, m);
            y.a.q.dtype = y.a.out.dtype = SANTA_F32;
            CHECK_STATUS(run(y), SANTA_OK);
            x.a.k_scales = {address(R_K_SCALES), {2, 300, 2, 1}, {600, 2, 1, 1}, SANTA_F32, SANTA_CUDA};
            CHECK_STATUS(run(x), SANTA_OK);
        }
    for (santa_method m : {SANTA_DENSE, SANTA_SYS}) {
        problem x = make({1, 1, 4, 1, 300, 64, 64, 0, SANTA_BF16, NHD}, m);
        x.a.window = 100;
        x.a.first_tokens = 4;
        CHECK_STATUS(run(x), SANTA_OK);
    }
    for (const standin_card &card : standin_cards)
        for (int64_t q_len : {3000, 100000}) {      /* tiles of a CTA of their own, or together */
            problem x =
                make({1, q_len, 8, 2, 100000, 128, 128, 0, SANTA_BF16, NHD}, SANTA_SAMPLE_ATTENTION);
            x.a.causal = 1;
            standin.card = &card;
            standin.warpgroups = true;
            CHECK_STATUS(run(x), SANTA_OK);
        }
    for (const standin_card &card : standin_cards)
        for (int warpgroups = 0; warpgroups < 2; warpgroups++)
            for (santa_dtype type : {SANTA_F16, SANTA_BF16})
                for (int64_t d : {8, 64, 128, 256})
                    for (int64_t group : {1, 4, 5, 71})
                        for (int how = 0; how < 8; how++) {
                            problem x = make({2, 50 + 40 * how, 2 * group, 2, 3000, d, d == 8 ? 264 : d,
                                              how % 3 ? 0 : 16, type, NHD},
                                             how < 2 ? SANTA_DENSE : SANTA_SAMPLE_ATTENTION);
                            x.a.causal = 1;
                            if (how % 2) x.stats = (santa_stats *)address(R_STATS);
                            if (how % 2)
                                x.o.sample_attention.audit = (santa_sample_audit *)address(R_BLOCK_AUDIT);
                            if (how % 2) x.o.sample_attention.row_mass = (float *)address(R_ROW_MASS);
                            if (how > 3) x.o.sample_attention.mask_out = (uint8_t *)address(R_MASK_OUT);
                            if (how > 5) x.o.sample_attention.mask = (const uint8_t *)address(R_MASK);
                            if (how % 4 > 1) x.o.sample_attention.block_size = 128;
                            x.o.sample_attention.per_head = how == 5;
                            x.o.sample_attention.num_chunks = how;
                            santa_clear_unused_options(&x.o);
                            standin.card = &card;
                            standin.warpgroups = warpgroups;
                            CHECK_STATUS(run(x), SANTA_OK);
                        }
    for (const standin_card &card : standin_cards)
        for (int64_t d : {64, 128, 256, 1024})
            for (int64_t page : {0, 16, 96})
                for (int bits : {2, 4}) {
                    const sizes s = {3, 2, 20, 2, 3000, d, d, page, SANTA_BF16, NHD};
                    problem x = make(s, bits == 2 ? SANTA_PPS : SANTA_PROP);
                    x.o.scores     = SANTA_SCORES_PROXY;
                    x.a.proxy      = address(R_COPY);
                    x.a.proxy_bits = bits;
                    x.a.proxy_lens = (const int32_t *)address(R_COPY_LENS);
                    x.o.num_samples = 300;
                    x.stats = (santa_stats *)address(R_STATS);
                    standin.card = &card;
                    CHECK_STATUS(run(x), d <= 256 ? SANTA_OK : SANTA_ERR_BACKEND_SIZE);
                    standin.warpgroups = bits == 4 || page;
                    standin.start();
                    CHECK_STATUS(santa_proxy_encode(&x.a, 100, 1000, (void *)0x5000),
                                 d <= 512 ? SANTA_OK : SANTA_ERR_BACKEND_SIZE);
                    if (d > 512) continue;
                    CHECK_STATUS(santa_proxy_append(&x.a, 1, NULL), SANTA_OK);
                    if (!CHECK_INT(standin.launches.size(), 2)) continue;
                    const int64_t keys = copy_block(x.a).keys;
                    for (int i = 0; i < 2; i++) {
                        const standin_launch &l = standin.launches[(size_t)i];
                        params p;
                        memcpy((void *)&p, l.parameters.data(), sizeof p);
                        check_copy(x, p, name_of(l));
                        /* by tensor cores 64 keys at a time, or a block of fewer than 16 a
                           warp; by warpgroups as evenly as all CTAs at once allow */
                        const bool groups = card.major == 9 && standin.warpgroups && keys == 64 && d <= 128;
                        const int64_t blocks = i ? 1 : 1000 / keys - 100 / keys,
                                      ctas = (d == 128 ? 4 : 5) * card.multiprocessors / (2 * 3),
                                      of_cta = groups ? (blocks + ctas - 1) / ctas
                                             : d > 128 ? 1 : keys > 16 ? 64 / keys : 4;
                        check_grid(l, (blocks + of_cta - 1) / of_cta, 2, 3, name_of(l));
                        CHECK(name_of(l) == (groups && d == 128 ? "k_encode_groups<128>"
                                             : groups ? "k_encode_groups<64>"
                                             : d <= 128 ? "k_encode_cores" : "k_encode"));
                    }
                    CHECK_MSG(standin.broken.empty(), "%s", standin.broken.c_str());
                }
    standin.warpgroups = true;
    over_ranks();
    choices_over_ranks();
    budgets_over_ranks();
    copies_over_ranks();
    check_steps();
    for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (int64_t d : {64, 256, 320})
            for (int rows : {0, 1}) {
                const sizes s = {3, 2, 20, 2, 3000, d, d, 16, type, NHD};
                problem x = make(s, SANTA_DENSE);
                add_lists(&x, 5000, rows);
                x.stats = (santa_stats *)address(R_STATS);
                CHECK_STATUS(run(x), SANTA_OK);
                x.o.method = SANTA_PROP;
                CHECK_STATUS(run(x), SANTA_ERR_KEY_LIST_METHOD);
            }
    latents();
    for (int full = 0; full < 2; full++) {
        problem x = make(SMALL, SANTA_VATTENTION);
        x.o.vattention.guarantee = (santa_guarantee)full;
        x.o.vattention.audit = (santa_audit *)address(R_AUDIT);
        standin.card = &standin_cards[3];
        CHECK_STATUS(run(x), SANTA_OK);
        x.o.vattention.heavy = ask_nothing;
        CHECK_STATUS(run(x), SANTA_ERR_BACKEND_HEAVY);
    }
    for (santa_method m : {SANTA_TOP_K, SANTA_TOP_P})
        for (bool copied : {false, true}) {
            problem x = make(SMALL, m);
            x.stats = (santa_stats *)address(R_STATS);
            if (copied) {
                x.o.scores = SANTA_SCORES_PROXY;
                x.a.proxy  = address(R_COPY);
            }
            for (const standin_card &card : standin_cards) {
                standin.card = &card;
                CHECK_STATUS(run(x), SANTA_OK);
            }
        }
    for (const standin_card &card : standin_cards)
        for (santa_dtype type : {SANTA_F32, SANTA_F16, SANTA_BF16})
            for (int64_t d : {33, 64, 256, 320})
                for (int64_t buckets : {1, 40, 1024, 65536})
                    for (int64_t hidden : {0, 40, 64, 256, 1024}) {
                        const sizes s = {3, 2, 20, 2, 3000, d, 64, d == 64 ? 16 : 0, type, NHD};
                        problem x = make(s, SANTA_SAAP);
                        add_router(&x, buckets, hidden, type);
                        x.o.num_samples = hidden == 40 ? SANTA_NONE : 0;
                        x.stats = hidden ? (santa_stats *)address(R_STATS) : NULL;
                        standin.card = &card;
                        CHECK_STATUS(run(x), d <= 256 ? SANTA_OK : SANTA_ERR_BACKEND_SIZE);
                        for (int64_t count : {1, 4, 5, 3000, 100000})
                            for (santa_dtype key : {SANTA_F16, SANTA_E4M3})
                                check_assign(&x, count, key, "new keys");
                        x.o.saap.measure_mass = 1;
                        if (x.o.num_samples != SANTA_NONE) x.a.std_error = (float *)address(R_ERROR);
                        if (hidden) x.a.lse = NULL;
                        CHECK_STATUS(run(x), d <= 256 ? SANTA_OK : SANTA_ERR_BACKEND_SIZE);
                        if (x.o.num_samples == SANTA_NONE || d % 8) continue;
                        x.o.scores = SANTA_SCORES_PROXY;
                        x.a.proxy  = address(R_COPY);
                        CHECK_STATUS(run(x), d <= 256 ? SANTA_OK : SANTA_ERR_BACKEND_SIZE);
                    }
    for (const standin_card &card : standin_cards)      /* rows that share a pass over a copy */
        for (santa_method m : {SANTA_PROP, SANTA_PPS, SANTA_TOP_K})
            for (int64_t d : {64, 128})
                for (int64_t group : {1, 3, 4, 8, 12})
                    for (int64_t q_len : {2, 4, 5, 21}) {
                        problem x = make({3, q_len, 2 * group, 2, 3000, d, d, 0, SANTA_BF16, NHD}, m);
                        x.o.scores = SANTA_SCORES_PROXY;
                        x.o.num_samples = 300;
                        x.a.proxy  = address(R_COPY);
                        if (q_len > 4) x.stats = (santa_stats *)address(R_STATS);
                        if (q_len > 4 && m != SANTA_TOP_K) x.a.std_error = (float *)address(R_ERROR);
                        standin.card = &card;
                        CHECK_STATUS(run(x), SANTA_OK);
                    }
    for (santa_dtype type : {SANTA_BF16, SANTA_F16, SANTA_Q8_0}) {
        problem rows = make({1, 40, 4, 1, 300, 64, 64, 0, type, NHD}, SANTA_DENSE);
        rows.a.q.dtype = rows.a.out.dtype = SANTA_F32;
        standin.card = &standin_cards[3];
        standin.warpgroups = true;
        CHECK_STATUS(run(rows), SANTA_OK);
    }
    problem eights = make(SMALL, SANTA_DENSE);
    eights.a.k.dtype = eights.a.v.dtype = SANTA_E5M2;
    CHECK_STATUS(run(eights), SANTA_OK);
    int count = 0;
    for (launched *k = all_launched; k; k = k->next, count++)
        CHECK_MSG(k->count > 0, "%s is never launched", k->name.c_str());
    printf("        %d kernels\n", count);
    CHECK(count > 20);
}

/* ------------------------------------------------------------------------ random problems */

static int64_t pick(test_rng *r, std::initializer_list<int64_t> list) {
    return list.begin()[test_below(r, (int64_t)list.size())];
}
static int one_in(test_rng *r, int64_t n) { return test_below(r, n) == 0; }

static int64_t wild_size(test_rng *r) {
    const int64_t two[] = {0, 1, 8, 16, 20, 24, 25, 31, 32, 33, 40, 53, 61, 62},
                  base = (int64_t)1 << two[test_below(r, 14)];
    switch (test_below(r, 6)) {
        case 0: return pick(r, {0, -1, INT64_MAX, INT64_MIN, INT64_MAX - 63, -64, 65535, 65536});
        case 1: return (int64_t)test_next(r);
        case 2: return base;
        case 3: return base + pick(r, {-65, -64, -63, -1, 1, 63, 64, 65});     /* base is at most 2^62 */
        default: return times(base, 1 + test_below(r, 3));
    }
}

/* Options of vAttention, and its ways to heavy tokens. */
static void set_adaptive(problem *x, test_rng *r) {
    santa_vattention_options *v = &x->o.vattention;
    v->heavy_tokens = pick(r, {0, SANTA_NONE, 1, 30, 100000});
    v->base_samples = pick(r, {0, 2, 300});
    v->guarantee = (santa_guarantee)test_below(r, 2);
    v->bound = (santa_bound)test_below(r, 2);
    if (one_in(r, 3)) v->audit = (santa_audit *)address(R_AUDIT);
    if (one_in(r, 40)) v->heavy = ask_nothing;
    if (one_in(r, 3) && v->heavy_tokens > 0) {
        v->heavy_index  = (const int32_t *)address(R_HEAVY);
        v->heavy_stride = pick(r, {0, 100000});
    }
}

static problem random_problem(test_rng *r) {
    sizes s;
    s.batch    = pick(r, {1, 1, 2, 3, 7, 64, 300});
    s.q_len    = pick(r, {1, 1, 1, 2, 5, 31, 32, 100, 3000});
    s.kv_heads = pick(r, {1, 1, 2, 3, 8, 32});
    s.heads    = s.kv_heads * pick(r, {1, 2, 4, 5, 7, 8, 9, 16, 20});
    s.keys     = 1 + test_below(r, (int64_t)1 << test_below(r, 22));
    s.d = pick(r, {1, 7, 8, 16, 33, 40, 64, 64, 80, 96, 128, 128, 160, 192, 256, 256, 264, 320, 4096});
    s.dv       = one_in(r, 2) ? s.d : pick(r, {1, 3, 4, 8, 17, 64, 72, 128, 136, 256, 257, 320, 1024});
    s.page     = one_in(r, 3) ? pick(r, {1, 5, 16, 64, 96, 4096}) : 0;
    s.type     = (santa_dtype)test_below(r, 4);
    s.order    = (int)test_below(r, 2 * ORDERS) % ORDERS;
    if (one_in(r, 3)) s.order = NHD;
    if (one_in(r, 8)) { /* one size that is wild, and the tensors agree on it */
        int64_t *const of[] = {&s.batch, &s.q_len, &s.heads, &s.kv_heads, &s.keys, &s.d, &s.dv, &s.page};
        const int64_t size = wild_size(r), mask = one_in(r, 4) ? -1 : INT64_MAX >> test_below(r, 50);
        *of[test_below(r, 8)] = size & mask;
        if (s.kv_heads > 0 && s.heads % s.kv_heads) s.heads = s.kv_heads;
        if (s.page < 0) s.page = 0;
        if (s.keys < 0) s.keys = -1;
        s.order = ONE_BATCH;
    }
    problem x = make(s, (santa_method)test_below(r, 8 * SANTA_METHOD_COUNT));
    if (x.o.method >= SANTA_METHOD_COUNT)
        x.o.method = METHODS[test_below(r, sizeof METHODS / sizeof *METHODS)];
    if (x.o.method == SANTA_SAMPLE_ATTENTION) {
        santa_sample_attention_options &b = x.o.sample_attention;
        if (one_in(r, 3)) b.block_size = 128;
        if (one_in(r, 3)) b.per_head = 1;
        if (one_in(r, 3)) b.num_chunks = 1 + test_below(r, 64);
        if (one_in(r, 4)) b.mask = (const uint8_t *)address(R_MASK);
        if (one_in(r, 3)) b.mask_out = (uint8_t *)address(R_MASK_OUT);
        if (one_in(r, 3)) b.audit = (santa_sample_audit *)address(R_BLOCK_AUDIT);
        if (one_in(r, 6)) b.row_mass = (float *)address(R_ROW_MASS);
    }
    const santa_dtype q_types[] = {SANTA_F32, SANTA_F16, SANTA_BF16};
    if (one_in(r, 3)) x.a.q.dtype = q_types[test_below(r, 3)];
    if (one_in(r, 3)) x.a.out.dtype = q_types[test_below(r, 3)];
    if (one_in(r, 6)) x.a.v.dtype = (santa_dtype)test_below(r, 4);
    if (one_in(r, 10)) x.a.v.dtype = (santa_dtype)pick(r, {SANTA_Q8_0, SANTA_E5M2, SANTA_Q4_0});
    if (one_in(r, 10)) x.a.k.dtype = (santa_dtype)pick(r, {SANTA_Q8_0, SANTA_E5M2, SANTA_Q4_0});
    if (one_in(r, 8)) x.o.method = SANTA_SAAP;
    for (int i = 0; i < 4; i++)
        if (one_in(r, 8)) x.tensor(i)->data = (char *)x.tensor(i)->data + pick(r, {1, 2, 4, 8, 16, 32});
    if (one_in(r, 4)) x.a.seq_lens = (const int32_t *)address(R_LENS);
    if (one_in(r, 6)) x.a.sinks = (const float *)address(R_SINKS);
    if (one_in(r, 6)) x.a.alibi_slopes = (const float *)address(R_SLOPES);
    if (one_in(r, 6)) x.o.seeds = (const uint64_t *)address(R_SEEDS);
    if (one_in(r, 6)) x.o.offsets = (const uint64_t *)address(R_OFFSETS);
    if (one_in(r, 6)) x.o.request_ids = (const uint64_t *)address(R_IDS);
    if (one_in(r, 4)) x.a.lse = NULL;
    if (one_in(r, 3)) x.stats = (santa_stats *)address(R_STATS);
    if (one_in(r, 6)) x.a.soft_cap = 30.0f;
    if (one_in(r, 4) || (x.o.method == SANTA_SAMPLE_ATTENTION && !one_in(r, 8))) x.a.causal = 1;
    if (one_in(r, 4)) x.a.window = 1 + test_below(r, 1000);
    if (x.a.window && one_in(r, 3)) x.a.first_tokens = 1 + test_below(r, one_in(r, 2) ? 8 : 100000);
    if (one_in(r, 8)) x.a.sm_scale = ldexpf(one_in(r, 2) ? 0.5f : -0.7f, (int)test_below(r, 100) - 50);
    if (one_in(r, 2)) x.o.num_samples = 1 + test_below(r, (int64_t)1 << test_below(r, 21));
    if (x.o.method == SANTA_FLASH && one_in(r, 2))
        x.o.tile_size = 64 * (1 + test_below(r, (int64_t)1 << test_below(r, 30)));
    if (x.o.method == SANTA_FLASH && one_in(r, 8)) x.o.tile_size = pick(r, {8, 16, 32});
    if (one_in(r, 20)) x.o.num_combs = pick(r, {2, 3, 4, 16});
    if (one_in(r, 8)) x.a.std_error = (float *)address(R_ERROR);
    if (one_in(r, 8)) x.a.kv_start = (const int32_t *)address(R_LENS);
    if (one_in(r, 8)) x.a.first_key = test_below(r, 100000);
    if (one_in(r, 4)) x.o.dense_below = pick(r, {SANTA_AUTO, 1, 200, 3000, 100000, INT64_MAX});
    if (x.o.method == SANTA_VATTENTION) set_adaptive(&x, r);
    if ((x.o.method == SANTA_SYS || x.o.method == SANTA_PROP || x.o.method == SANTA_VATTENTION
         || x.o.method == SANTA_PPS || x.o.method == SANTA_TOP_K || x.o.method == SANTA_SAAP)
        && one_in(r, 2)) {
        x.o.scores     = SANTA_SCORES_PROXY;
        x.a.proxy      = address(R_COPY) + (one_in(r, 20) ? 8 : 0);
        x.a.proxy_bits = (int)pick(r, {0, 2, 4});
        if (one_in(r, 3)) x.a.proxy_lens = (const int32_t *)address(R_COPY_LENS);
    }
    if (x.o.method == SANTA_DENSE && one_in(r, 3)) {
        add_lists(&x, 1 + test_below(r, (int64_t)1 << test_below(r, 20)), one_in(r, 2));
        if (one_in(r, 3)) x.a.key_list_lens = NULL;
        if (one_in(r, 3)) x.a.key_weights = NULL;
        if (one_in(r, 3)) x.a.key_list_stride = x.a.max_list + test_below(r, 100);
    }
    for (int i = 0; i < 2; i++)
        if (one_in(r, 8)) {
            const santa_dtype type = q_types[test_below(r, 3)];
            char *const data = address(i ? R_V_SCALES : R_K_SCALES) + pick(r, {0, 0, 0, 0, 2, 4});
            add_scales(i ? &x.a.v_scales : &x.a.k_scales, i ? x.a.v : x.a.k, data, type);
        }
    x.o.stash  = (santa_stash)test_below(r, 4);
    if (!one_in(r, 16)) santa_clear_unused_options(&x.o);
    x.o.seed   = test_next(r);
    x.o.stream = one_in(r, 2) ? NULL : (void *)0x5000;
    return x;
}


/* One field gets a value that it should hardly have. */
static void mutate(problem *x, test_rng *r) {
    santa_attention *a = &x->a;
    santa_options   *o = &x->o;
    santa_tensor    *t = x->tensor((int)test_below(r, 4));
    const float floats[] = {(float)NAN, (float)INFINITY, (float)-INFINITY, -1.0f, 0.0f, 1e-40f};
    const float f = floats[test_below(r, 6)];
    int64_t *const wide[] = {&t->shape[0],
                             &t->shape[1],
                             &t->shape[2],
                             &t->shape[3],
                             &t->stride[0],
                             &t->stride[1],
                             &t->stride[2],
                             &t->stride[3],
                             &a->max_pages,
                             &a->block_table_stride,
                             &a->window,
                             &a->first_tokens,
                             &o->num_samples,
                             &o->tile_size,
                             &o->dense_below,
                             &o->num_combs,
                             &a->first_key,
                             &a->max_list,
                             &a->key_list_stride,
                             &o->bernoulli_draws,
                             &o->num_threads,
                             &o->item_begin,
                             &o->item_end,
                             &o->vattention.base_samples,
                             &o->vattention.heavy_tokens};
    const int which = (int)test_below(r, 12),
              enumerator = (int)pick(r, {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000});
    switch (which) {
        case 0: t->data = NULL; break;
        case 1: t->dtype = (santa_dtype)enumerator; break;
        case 2: t->device = (santa_device)enumerator; break;
        case 3: o->method = (santa_method)enumerator; break;
        case 4: o->scores = (santa_scores_method)enumerator; break;
        case 5: o->stash = (santa_stash)enumerator; break;
        case 6: *(one_in(r, 2) ? &a->sm_scale : &a->soft_cap) = f; break;
        case 7: *(one_in(r, 2) ? &a->k_scale : &a->v_scale) = f; break;
        case 8:
            *(one_in(r, 3)   ? &o->top_p
              : one_in(r, 2) ? &o->vattention.epsilon
                             : &o->vattention.delta) = (double)f;
            break;
        case 9:
            if (one_in(r, 2)) a->causal = enumerator;
            else if (one_in(r, 2)) a->kv_start = (const int32_t *)address(R_LSE);
            else if (one_in(r, 2)) { o->ranks.count = -1; }
            else a->std_error = (float *)address(R_ERROR);
            break;
        default: *wide[test_below(r, (int64_t)(sizeof wide / sizeof *wide))] = wild_size(r); break;
    }
}

/* A workspace has room for several query rows only where they share a pass; the scores step has
   one. */
static void room_for_rows(void) {
    standin.card = &standin_cards[0];
    for (santa_method m : {SANTA_PROP, SANTA_TOP_K, SANTA_TOP_P, SANTA_VATTENTION}) {
        size_t bytes[2][6];
        for (int many = 0; many < 2; many++)
            for (int kind = 0; kind < 6; kind++) {
                problem x = make({2, many ? 16 : 1, 4, 4, 3000, 128, 128, kind == 1 ? 12 : 16, SANTA_BF16,
                                  NHD}, m);
                if (kind == 2) x.a.q.dtype = SANTA_F32;
                if (kind == 3) x.a.alibi_slopes = (const float *)address(R_SLOPES);
                if (kind == 4) { x.a.window = 100; x.a.first_tokens = 4; }
                if (m == SANTA_VATTENTION && kind == 4) x.a.window = x.a.first_tokens = 0;
                if (kind == 5) x.a.q.shape[1] = x.a.out.shape[1] = 1;
                bytes[many][kind] = santa_workspace_size(&x.a, &x.o);
                CHECK_MSG(bytes[many][kind] > 0, "%s, kind %d", santa_method_name(m), kind);
            }
        CHECK_MSG(bytes[1][0] > 15 * bytes[0][0], "%s: %llu bytes of 16 rows", santa_method_name(m),
                  (unsigned long long)bytes[1][0]);
        for (int kind = 1; kind < 6; kind++)
            if (m != SANTA_VATTENTION || kind != 4)
                CHECK_MSG(bytes[1][kind] == bytes[0][kind], "%s, kind %d: %llu bytes, but one row %llu",
                          santa_method_name(m), kind, (unsigned long long)bytes[1][kind],
                          (unsigned long long)bytes[0][kind]);
    }
    problem one  = make({2, 1, 4, 4, 3000, 128, 128, 16, SANTA_BF16, NHD}, SANTA_DENSE),
            many = make({2, 16, 4, 4, 3000, 128, 128, 16, SANTA_BF16, NHD}, SANTA_DENSE);
    CHECK(santa_cuda_scores_workspace_size(&one.a, &one.o)
          == santa_cuda_scores_workspace_size(&many.a, &many.o));
}

static void random_calls(void) {
    const int calls = test_quick ? 4000 : 60000;
    test_rng r = test_rng_make(2);
    int accepted = 0, refused = 0;
    for (int i = 0; i < calls; i++) {
        problem x = random_problem(&r);
        if (x.o.method == SANTA_SAAP && test_below(&r, 8)) {
            add_router(&x, 1 + test_below(&r, (int64_t)1 << test_below(&r, 18)),
                       one_in(&r, 2) ? 0 : 1 + test_below(&r, 2000), (santa_dtype)test_below(&r, 3));
            if (one_in(&r, 3)) x.o.num_samples = SANTA_NONE;
            x.o.saap.measure_mass = one_in(&r, 3);
            if (one_in(&r, 3)) {
                x.router.slots = (const int32_t *)(address(R_ROUTER) + ((int64_t)1 << 37));
                x.router.num_slots = test_below(&r, 100);
            }
            if (one_in(&r, 8)) x.router.index = (char *)x.router.index + 2;
            if (one_in(&r, 3)) x.router.q = x.a.q;
        }
        if (one_in(&r, 5)) {
            const int64_t batch = x.a.q.shape[0], kv_heads = x.a.k.shape[2], most = (int64_t)1 << 31;
            const bool usual = batch > 0 && batch < most && kv_heads > 0 && kv_heads < most;
            const int64_t items = usual ? batch * kv_heads : most;
            x.o.item_begin = test_below(&r, items + 1);
            x.o.item_end = x.o.item_begin + test_below(&r, items - x.o.item_begin + 1);
        }
        for (int k = 0; k < 2 && one_in(&r, 4); k++) mutate(&x, &r);
        standin.card = &standin_cards[i % (int)(sizeof standin_cards / sizeof *standin_cards)];
        standin.warpgroups = one_in(&r, 2);
        if (x.a.q.device == SANTA_CPU && x.a.k.device == SANTA_CPU && x.a.v.device == SANTA_CPU
            && x.a.out.device == SANTA_CPU)
            continue;                                /* mutated into a problem of another backend */
        (run(x, (size_t)test_below(&r, 300)) == SANTA_OK ? accepted : refused)++;
    }
    printf("        %d accepted, %d refused\n", accepted, refused);
    CHECK(accepted > calls / 4 && refused > calls / 10);
    CHECK_STATUS(santa_check(NULL, NULL), SANTA_ERR_NULL_ARGUMENT);
    const problem x = make(SMALL, SANTA_PROP);
    CHECK_STATUS(santa_decode(NULL, &x.o, NULL, 0, NULL), SANTA_ERR_NULL_ARGUMENT);
    CHECK_STATUS(santa_decode(&x.a, NULL, NULL, 0, NULL), SANTA_ERR_NULL_ARGUMENT);
}

/* The statuses of which test_errors.c says that the GPU backend produces them. Last: it looks
   at the other cases. */
static void every_status(void) {
    if (!produced[SANTA_ERR_WORKSPACE_NULL]) random_calls();     /* this case alone */
    if (!produced[SANTA_ERR_HOST_POINTER]) host_pointers();
    if (!produced[SANTA_ERR_BACKEND_TOO_LONG]) limits();
    if (!produced[SANTA_ERR_BACKEND_SPARSE]) sparse_errors();
    problem routed = make(SMALL, SANTA_SAAP);
    add_router(&routed, 64, 0, SANTA_BF16);
    santa_tensor blocks = routed.a.k;
    blocks.dtype = SANTA_Q8_0;
    map_memory(1, 0);
    note(santa_buckets_assign(&routed.a, &blocks, 0, &routed.o));
    CHECK(produced[SANTA_ERR_BACKEND_DTYPE]);
    problem first = make(SMALL, SANTA_SYS);
    first.a.window = 100;
    first.a.first_tokens = 4;
    first.o.dense_below = 10;
    run_on_cards(first, SANTA_ERR_BACKEND_FIRST_TOKENS, "first tokens");
    sizes many = SMALL;
    many.q_len = 64;
    many.type = SANTA_F32;
    problem scaled = make(many, SANTA_SAMPLE_ATTENTION);
    scaled.a.causal = 1;
    santa_clear_unused_options(&scaled.o);
    add_scales(&scaled.a.v_scales, scaled.a.v, address(R_V_SCALES), SANTA_F16);
    run_on_cards(scaled, SANTA_ERR_BACKEND_ROW_SCALES, "scales of rows");
    for (int s = SANTA_ERR_BACKEND_SPARSE; s < SANTA_ERR_CUDA; s++)
        CHECK_MSG(produced[s], "never seen: %s", santa_status_string((santa_status)s));
}

static const test_case launches[] = {{"wide_groups", wide_groups},
                                     {"limits", limits},
                                     {"long_tiles", long_tiles},
                                     {"many_arrivals", many_arrivals},
                                     {"divisors", divisors},
                                     {"failures_of_calls", failures_of_calls},
                                     {"failures_of_prefill", failures_of_prefill},
                                     {"failures_of_latents", failures_of_latents},
                                     {"sparse_errors", sparse_errors},
                                     {"host_pointers", host_pointers},
                                     {"odd_addresses", odd_addresses},
                                     {"room_for_rows", room_for_rows},
                                     {"every_kernel", every_kernel},
                                     {"random_calls", random_calls},
                                     {"every_status", every_status},
                                     {0, 0}};

#define TEST_SUITES {"cuda_launches", launches},
#include "../main.c"
