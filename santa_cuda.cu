/* santa_cuda.cu - v0.2.0 - attention on NVIDIA GPUs - MIT or public domain, as santa.h
   How to use it: santa_cuda.h. This file holds the kernels and their launches.

   CONTENTS   params, shared-memory, instructions, device-base, scoring, scores-kernel,
              gather-kernel, dense-kernel, prefill-kernel, sparse-kernel, stats-kernel,
              error-kernel, copy-kernel, take-rows, proxy-scores-kernel, proxy-gather-kernel,
              draw-kernel, select-kernel, list-kernel, vattention-kernels, weighed-error-kernel,
              buckets-kernel, route-kernel, steps-kernel, launch, steps

   A decode step by sampling is two kernels:
     scores   reads K once: for 64 keys and a query head the maximum, the sum of
              u = exp(s - max), and the stash of all u.
     gather   a CTA per query head and 256 draws: scan of the block sums, the comb (or strata,
              or draws) by binary search, V's rows.
   Dense is a split-KV kernel and a merge of the splits; of many query rows, prefill, one kernel
   of two. Sparse prefill finds the blocks to read first, with three kernels more.
   With SANTA_SCORES_PROXY the two kernels are others: scores reads the copy of K, gather K and
   V of the drawn keys. A third one makes the copy.
   vAttention takes the scores of either, and makes lists of keys of them: see there.

   With SANTA_SAAP a router's products, twice with a hidden layer, choose the keys of a list;
   santa_buckets_assign is the nearest centroids, and the index that they change.

   What each step won on an H200 is in bench/ladder.md.
*/
#include "santa_cuda.h"
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <initializer_list>
#include <type_traits>

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
#error "santa_cuda.cu wants sm_80 or later, for instance nvcc -arch=native"
#endif

/* --------------------------------------------------------------------------------- >>params */

/* The host's part runs a few times a call: less code, in half the time. */
#if defined __CUDACC__ && defined __GNUC__ && !defined __clang__
#pragma nv_diag_suppress 1675                       /* it is for the host's compiler alone */
#pragma GCC optimize("Os")
#pragma nv_diag_default 1675
#endif

/* Not an unnamed one: nvcc gives that a name of 46 letters, which each symbol of the object
   repeats. */
namespace santa_gpu {

enum { BLOCK = SANTA_BLOCK };                       /* keys of a block; a warp owns one */
enum { PASS_HEADS = 8 };                            /* query heads per pass: the N side of the mma */
/* Keys of a dense CTA are 1 << this, of a row that has more than MIDDLE_KEYS, HALF_KEYS,
   SHORT_KEYS, or less; fixed, so that sums are. Not all kernels know the two smaller ones. */
enum { SPLIT_SHIFT = 10, MIDDLE_SHIFT = 9, HALF_SHIFT = 8, SHORT_SHIFT = 7 };
enum { MIDDLE_KEYS = 8192, HALF_KEYS = 2048, SHORT_KEYS = 512 };
/* Blocks': twice as many for each doubling of a row that has enough CTAs by then, up to so
   often. */
enum { LONG_CTAS = 512, MOST_LONGER = 3 };
enum { DENSE_WARPS = 4, SCORE_WARPS = 8, GATHER_WARPS = 8 };
enum { PORTION = GATHER_WARPS * 32 };               /* draws of a CTA: one for each thread */
enum { MOST_CLUSTER = 8 };                          /* CTAs of a cluster */
enum { KEPT = 8 };                                  /* block sums that such a thread keeps: 131072 keys */

static_assert(BLOCK == 64, "a warp's lanes hold 8 x 8 keys, and find_keys 4 x 16");
static_assert((1 << MIDDLE_SHIFT) % BLOCK == 0, "a split of dense is whole blocks");
static_assert(1 << SHORT_SHIFT == SCORE_WARPS * 16, "k_dense: a warp has 16 keys of a short row's split");
static_assert((KEPT & (KEPT - 1)) == 0, "a thread has a power of two of blocks");

#define FULL 0xffffffffu
#define LOG2E 1.44269504088896340736f
#define MASKED (-3.0e38f)
#define MASK_LIMIT (-1.44269504e38f)                /* santa.h's, in base 2 */

typedef unsigned long long u64;
typedef long long i64;

/* n / d for n < 2^31 by a multiplication: a division is 20 instructions, and these stand before
   a kernel's first load. */
struct divisor {
    unsigned d, factor, shift;
    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        return (__umulhi(n, factor) + n) >> shift;
    }
};

/* The shape of a copy of K, see >>proxy in santa.h. */
struct copy_shape {
    int keys, shift;                                /* of a block: 1 << shift */
    int bits, chunks;                               /* of a feature; of a key, 16 bytes each */
    int gains, centre, scale, bytes;                /* where these begin in a block; its size */
    int features;                                   /* of a key, padded to whole chunks */
    i64 blocks;                                     /* of a sequence (a page) and KV head */
};

/* What each row of K or V is multiplied with; strides in bytes: of a batch (a page), token,
   head. */
struct row_scales { const char *data; i64 stride[3]; int type; };

/* Keys that a list has beside its entries: of a row's keys those before `to` and those from
   `from` on. */
struct list_range { int to, from; };
/* vAttention, see >>vattention-kernels. A KV head's row: how many keys its list has of each
   kind. */
struct va_row {
    int fixed, residual;                            /* read exactly; others that there are */
    int base, budget;                               /* the sample; base 0: all others at once */
    int looked;                                     /* rows of K that the choice took */
    int step;                                       /* 1: sums of pass 0 are there, 2: the budget */
    u64 at;                                         /* the next word for the sample */
};
/* A head's demand, relative to 2^top. */
struct va_head { double sigma, denominator, trace, norm; float top; int needed; };
/* A head's candidates for heavy tokens: how many, the largest, CTAs that are done; a NaN or
   +inf. */
struct va_counts { unsigned entries, top, done, bad; };

struct va_params {
    int sink_tokens, local_tokens, heavy_tokens, base_samples;        /* the last two: -1 by default */
    int by_scores, by_copy;                         /* heavy tokens by scores; those of the copy */
    int full, bound, pass, choose_keys;             /* choose_keys: of a CTA of k_va_choose */
    double epsilon, delta, z;                       /* z of delta, for the denominator */
    const int *index;                               /* the caller's heavy tokens, or NULL */
    i64 index_stride;
    santa_audit *audit;                             /* [batch, q_len, heads] or NULL */
    u64 *candidates;                                /* [batch, heads, most_candidates] */
    unsigned *heads_done, *bits, *taken;            /* [batch, kv_heads]; the others * words */
    unsigned *listed;                               /* likewise: bits and the base sample */
    int most_candidates, words, shared_words, portions;
    int *list;                                      /* [batch, kv_heads, list_pitch] */
    i64 list_pitch;
    va_row *rows;                                   /* [batch, kv_heads] */
    va_head *heads;                                 /* [batch, heads] */
    float *sums;                                    /* [batch, heads, portions, dv + 4] */
};

/* Numbers of keys by the words that name them, of a KV head and rank: 4096 bytes, whatever is
   counted. */
enum { WORD_BINS = 1024 };

/* relative to 2^top; NaN: the head is bad */
struct rest_mass { double sum; float top; };

/* Of >>steps-kernel. Of a query head `capacity` entries, `stride` scores; the last three of a
   merge. */
struct step_params {
    const float *scores;                            /* [batch, heads, stride] */
    int *index, *rows;                              /* [batch, heads, capacity]; [batch, heads] */
    float *weight, *lse;                            /* as index; as rows or NULL; of a merge [rows] */
    i64 stride, capacity;
    float *out;                                     /* [batch, heads, dv]; of a merge [rows, dv] */
    const float *other_out, *other_lse;
};

/* What pass p.va.pass draws for a KV head: `count` of the `left` free keys of all ranks, or,
   with `rest`, all of them but `draws`; 0: nothing is to be drawn. From `at` on more words are
   tried than ever needed. Each draws at least one of left - draws + 1 keys of all_mid; that so
   many are too few has a chance of e^-32 or less. They lie in up to 2^22 units of 1 << unit
   words, and these in steps of 1 << step units, 2^12 at most. */
struct word_plan { int count, left, draws, unit, step; bool rest; u64 at; unsigned words; };
/* What PICK goes by: units below the edge are drawn, and so many keys of it; the row here
   before. */
struct pick_plan { word_plan x; unsigned edge, ties; va_row row; };

/* vAttention over ranks, see k_va_ranks. A KV head's keys here are counted and listed in
   slices: those of a slice that are in the set, that are drawn for their first words, that are
   drawn or not as others of these words are. */
enum { PICK_SLICES = 32 };
struct slice_keys { int in, below, tied; };
struct joint_params {
    pick_plan *plans;                               /* [batch, kv_heads] */
    slice_keys *slices;                             /* [batch, kv_heads, PICK_SLICES] */
    va_row *rows;                                   /* [batch, kv_heads]: of all ranks */
    unsigned *first;                                /* [batch, kv_heads, 32 * va.words] */
    unsigned *bins;                                 /* [2, batch, kv_heads, WORD_BINS] */
    const unsigned *all_bins;                       /* [2, ranks, batch, kv_heads, WORD_BINS] */
    float *told;                                    /* [batch, heads, 2, width] */
    const float *all_told;                          /* [ranks, batch, heads, 2, width] */
    float *parts;                                   /* [batch, heads, 2, dv + 4]: of all ranks */
    int width;                                      /* 4, or with the full guarantee dv + 4 */
};

/* Rows times vectors, both as they lie in memory, see k_rows. Strides in bytes: of a sequence,
   KV head, vector, feature. */
struct row_product {
    const char *rows;                               /* [kv_heads, count, size] */
    const float *bias;                              /* [kv_heads, count] or NULL */
    const char *x;
    i64 x_stride[4];
    float *out;                                     /* [batch, kv_heads, vectors, count] */
    int row_type, x_type, row_bytes;                /* of a number */
    int vector_rows, vector_x;                      /* they are 16-byte pieces */
    int count, size, vectors;                       /* vectors of a sequence and KV head */
    int splits;                                     /* warps that share the features of a row */
    int step;                                       /* what becomes of the products: row_step */
    float scale;                                    /* of x */
};
enum row_step { STEP_UNITS, STEP_LOGITS, STEP_NEAREST };

/* Both layers of a router, see k_layers: what they need and no more, as it comes from
   memory. */
struct layers_params {
    const char *w1, *w2;                            /* [kv_heads, hidden, d]; [kv_heads, buckets, hidden] */
    const float *b1, *b2;                           /* [kv_heads, hidden], [kv_heads, buckets], or NULL */
    const char *q;
    i64 q_stride[3];                                /* bytes: sequence, KV head, vector */
    float *logits;                                  /* [batch, kv_heads, vectors, buckets] */
    float2 *parts;                                  /* [batch, kv_heads, vectors, logit_tiles] */
    int kv_heads, all, vectors, here;               /* vectors: all, of a KV head, of a CTA */
    int d, hidden, buckets, logit_tiles, cluster;
    int splits_shift, links_shift;                  /* parts of a row, see k_rows; pieces of a part */
    divisor by_vectors;
};

/* Where far keys of a bucket begin in the index, how many; sum of its shares, then chance of a
   key; largest share. */
struct bucket_span { int first, count; float sum, top; };

/* A bucket that is read whole: where its keys begin, among all such keys and in the index. Of a
   list: how many, and their keys. */
struct list_piece { int at, first; };
struct list_pieces { int count, keys; };

/* What a query row reads of a KV head's keys, for stats; the last two in millionths. */
struct routed_row {
    int keys, far, whole, drawn, segments, has_far;
    int copied, redone;                             /* keys scored by a copy of K; it had no number */
    i64 imbalance, largest;
};

/* SANTA_SAAP with a copy of K, see >>scan-kernel. The scanned keys are those of the buckets
   that the router chose; in their block they have the first slots, in order. */
struct scan_params {
    unsigned *use;                                  /* [batch, kv_heads, words]: a bit for each bucket */
    int *bad;                                       /* [batch, kv_heads] */
    float *share;                                   /* [batch, heads]: of the scanned buckets */
    float *scores;                                  /* [batch, heads, blocks, 64]: base 2; then sizes */
    float2 *sums;                                   /* [batch, heads, CTAs]: max, sum of 2^(x - max) */
    int ctas, is_done;                              /* of k_scan, for a KV head; for k_route */
    float2 *sizes;                                  /* [batch, kv_heads, blocks]: sum, largest */
    unsigned char *keys;                            /* [batch, kv_heads, blocks, 64]: in a block */
    unsigned char *counts;                          /* [batch, kv_heads, blocks] */
};

/* A head's mass over all ranks, relative to 2^m: what the ranks before this one hold, and those
   up to and with it. */
struct rank_share { double before, end, total; float m; };
/* flash's tiles with mass over all ranks: all, those before the first one here, those here; the
   first draw here and how many; the first and the last tile here, which other ranks may have
   keys of. */
struct tiles_of_ranks { int all, before, here, draws; i64 first_draw; int tile[2]; rank_share edge[2]; };

/* top-p over ranks: the bits of the last score taken that are known; how much of those that
   have them is wanted, in keys or mass; keys here above them. Scores of a rank by their next 8
   bits. */
struct choice_of_ranks { unsigned value, mask; double want; int own; };
struct bins_of_rank { u64 sum[256]; int count[256]; };

/* Everything a kernel needs, by value. Strides in bytes: of a batch (k, v: a page), token,
   head, feature. */
struct params {
    /* First what a scores kernel needs before its first load: few lines of constants. */
    unsigned steps, longer;                         /* of a CTA; the first `longer` have one more */
    unsigned work;                                  /* warps: batch * kv_heads * slices * blocks */
    divisor by_slices, by_inner, by_outer;          /* from a warp to its work */
    divisor by_group;
    int heads_inner;                                /* warps, CTAs: all heads of a place, or a head's all */
    int rows;                                       /* query rows of a pass, from q_index on; see slot_of */
    int capacity, q_len, q_index, causal, d;
    int k_row, v_row;                               /* k_stride[1], v_stride[1] */
    int once;                                       /* K is the first that L2 gives up */
    const int *seq_lens, *context_lens, *kv_start;  /* [batch] or NULL */
    int first_key;                                  /* 0 without context_lens */
    /* k_dense_plain: floats from a head of q to the next one, 0: it has no room; rows come to
       the ring as they are, by pieces of 1 << this bytes, 0: they do not */
    int query_pitch, staged_k, staged_v, plain_slots;
    int dense_below, is_short;                      /* 0 or keys, see key_range */
    i64 window;

    const char *k;                                  /* [batch or pages, capacity or page, kv_heads, d] */
    i64 k_stride[4];
    const char *q;                                  /* [batch, q_len, heads, d] */
    const char *v;                                  /* as k, dv */
    char *out;                                      /* as q, dv */
    float *lse;                                     /* [batch, q_len, heads] or NULL */
    i64 q_stride[4], v_stride[4], out_stride[4];
    int q_type, k_type, v_type, out_type;           /* santa_dtype */
    int vector_q, vector_v;                         /* rows are 16-byte pieces; q has 16 bits */
    int batch, heads, group, slices, dv;            /* slices: of a group, each a kernel's pass */
    int blocks, splits;                             /* of 64 keys in capacity; that a row has at most */
    /* rows of at most so many have the smallest splits, and 16 bits higher the next ones, or,
       negative, what k_dense_blocks has: another line of constants costs k_dense 1 to 4 % */
    int short_keys;
    const int *table;                               /* [batch, table_stride]: a sequence's pages, or NULL */
    i64 table_stride;
    divisor by_page;                                /* keys of a page, with a table */
    int pages;
    int eights;                                     /* 8 keys share a page; always without a table */
    float scale, soft_cap, v_scale;
    const float *sinks, *slopes;                    /* [heads] or NULL */

    int method, samples, flash_blocks, stash_type;  /* flash_blocks: units in a flash tile */
    int unit_shift;                                 /* of block_sums: 1 << it keys, 64 or a flash tile's */
    double per_sample;                              /* 1 / samples */
    u64 seed, offset;
    const u64 *seeds, *offsets, *ids;               /* [batch] or NULL */
    float2 *block_sums;                             /* [rows, batch, heads, units]: max, sum of u */
    char *stash;                                    /* [rows, batch, heads, blocks, 64]: u */
    int portions;                                   /* of a head's draws: PORTION each */
    /* exact: [batch, heads, splits, dv + 2]: sums, maximum, denominator;
       drawn: [batch, heads, 256s of dv, portions, 128 * CH]: sums */
    float *partial;
    int *arrived;                                   /* [rows, batch, heads, 256s of dv]: done */
    i64 arrivals;                                   /* counters in arrived, which scores sets to 0 */

    santa_stats *stats;
    int *keys;                                      /* [batch, heads, max_draws]: drawn; for stats */
    int *draws;                                     /* [batch, heads]: how many; NULL if nothing is drawn */
    /* (from a copy of K: -1 is no draw, -2 one of a key that an earlier one has) */
    i64 max_draws;

    char *proxy;                                    /* [batch or pages, kv_heads, blocks, bytes] */
    copy_shape copy;
    i64 kv_heads;
    i64 from, to;                                   /* k_encode: keys; from < 0: the last -from */
    int any_vector_k;                               /* rows of K are 16-byte pieces, of any type */
    const int *proxy_lens;                          /* [batch] or NULL */
    int sink_tokens, local_tokens;
    float noise;                                    /* of a score, see >>proxy */
    float rescue_above, exact_above;                /* of the expected and found variance; or infinity */
    int k_size, v_size;                             /* bytes of a number */
    unsigned signs[512 / 32];                       /* of the rotation's features */
    int piece;                                      /* features that it turns into each other */
    float norm;                                     /* 1 / sqrt(piece) */
    int ring_slots, slot_bytes;                     /* of a warp; each holds 64 keys */
    int chunk_blocks, proxy_chunks;                 /* blocks of a CTA; such CTAs of an item */
    divisor by_chunks, by_kv, by_fixed;
    float *spreads;                                 /* [batch, heads, blocks]: sum of u * gain^2 */
    /* [batch, heads] of row q_index, behind those of earlier ones: expected and found variance,
       redone, has keys */
    float4 *found;

    /* k_draw; a team: the heads that draw together */
    int copied;                                     /* scores are those of a copy */
    int together, cluster_shift;                    /* heads of a team; 1 << shift CTAs have one */
    int rescue_keys;
    unsigned fixed_ctas;                            /* of k_proxy_scores: one in by_fixed, first */
    float *fixed;                                   /* [FIXED_PARTS, batch, heads, dv + 2], see fixed_of */
    float2 *mended;                                 /* [batch, heads, blocks]: block_sums behind a rescue */
    int staged, stage_at, stage_bytes;              /* whether rows come to shared memory; where it is */
    float *share_units;                             /* [batch, heads, blocks]: a mass times it is a share */
    i64 *ticks;                                     /* [batch, teams, blocks], see walk */
    float *sums;                                    /* [batch, heads, 8 parts, dv], or in shared memory */
    int *rescued;                                   /* [batch, heads]: keys; for stats */

    /* One context over ranks, see >>ranks-kernel. */
    int ranks, rank;                                /* 0, 0: there are no others */
    /* what ranks tell of [batch, heads]: mass_doubles each; of all ranks [ranks, batch,
       heads] */
    double *rank_mass;
    const double *rank_masses;
    int mass_doubles;
    /* of a copy of K: before a rescue, as rank_masses; largest masses; of the drawn keys */
    const double *rank_copies;
    float *rank_best;                               /* [batch, heads, rescue_keys] */
    const float *rank_bests;
    float4 *rank_drawn;                             /* [batch, heads] */
    const float4 *rank_drawns;
    unsigned char *rank_again;                      /* of each row of out; or NULL */
    /* of flash: its tiles with mass here, in order, and how many are between the first and the
       last; of pps ticks of the comb */
    int *tile_list, max_tiles;                      /* [batch, heads, max_tiles] */
    i64 *tile_count;                                /* [batch, heads or teams] */
    const i64 *tile_counts;
    tiles_of_ranks *tiles_met;                      /* [batch, heads] */
    int rank_step;                                  /* of k_proxy_gather, k_rank_tiles, k_draw */
    /* of methods that select: lse of all keys here of each row of out; lse has those taken; or
       NULL */
    float *rank_lse;
    bins_of_rank *rank_bins;                        /* [4, batch, heads] */
    const bins_of_rank *all_bins;                   /* [ranks, batch, heads] */
    choice_of_ranks *choices;                       /* [5, batch, heads] */
    double wanted;                                  /* of all ranks: keys, or a share of the mass */
    int *wants;                                     /* [batch, heads]: keys that k_top takes; or NULL */
    /* pps: of each row of out dv sums of the sure keys, that of their weights, that of all
       weights */
    float *sure;
    const float *parts;                             /* [ranks, part_floats]: the rows of out, lse, errors */
    i64 rows_in_all, part_floats;
    i64 errors_at, error_doubles;                   /* where errors begin in a part; of each row of out */
    double *errors;                                 /* this rank's, see error_of_rank; NULL: no others */
    /* Lists of keys, see >>list-kernel; list_heads > 0 if there are any. Of a sequence: one for
       each list_heads query heads. Strides in entries: of a batch, a list */
    const int *list;                                /* [batch, lists, list_most], or NULL: ranges alone */
    const int *list_lens;                           /* [batch, lists], or NULL: list_most each */
    const float *list_weights;                      /* as list, or NULL: 1 */
    const list_range *list_ranges;                  /* [batch, lists], or NULL: none */
    i64 list_batch, list_pitch;
    i64 lens_batch, ranges_batch;                   /* of list_lens, list_ranges; a list's is 1 */
    int list_heads, list_most;
    int raw;                                        /* the stash is of scores, not of masses; f32 */
    va_params va;
    int list_keys;                                  /* of a part, whose sums are in partial; 0: part_keys */
    int lists_all;                                  /* the list is all keys that a row sees */
    /* of k_list_many: slots; steps of half of K's features; bytes from row to row in a slot, of
       V 0 where its rows lie in K's, v_inside bytes on */
    int many_slots, k_lead, k_pitch, v_pitch, v_inside;
    /* [batch, heads], or NULL: mass of the keys that are in no list */
    rest_mass *list_rest;
    double top_p;
    /* Several combs, and errors, see >>error-kernel */
    int combs, each;                                /* each: draws of a comb; with one, p.samples */
    float *std_error;                               /* [batch, q_len, heads] or NULL */
    float *weights;                                 /* of flash's draws, as keys, times samples; or NULL */

    /* SANTA_SAAP and its index of keys, see >>saap */
    int *index;                                     /* [slots, kv_heads, index_ints] */
    i64 index_ints;
    const int *slots;                               /* [batch] or NULL */
    int num_slots, buckets;
    int num_probes, scans;                          /* scans: with a copy of K */
    double uniform_share;
    /* behind a list's ranges: keys that lie together in the index. [batch, lists]; [..,
       buckets] */
    const list_pieces *pieces;
    const list_piece *piece_table;
    int sixteens;                                   /* 16 keys share a page; always without a table */
    union {                                         /* one of them, which a method's kernels have */
        struct {
            /* of >>prefill-kernel: a tile's query rows and heads; tiles of a group, of a
               sequence's rows; of 128 columns of V */
            int tile_rows, tile_heads, tile_slices, tiles, v_slices;
            bool by_position;                       /* tiles begin at positions that tile_rows divides */
            bool pair_out;                          /* two numbers of out are an aligned word */
            bool one_tile;                          /* K and V take turns in it */
            int eight[2];                           /* tiles' K and V: of 8 bits, this type; -1: as q */
            divisor by_tile_heads;
            /* of >>sparse-kernel: blocks of 1 << block_shift keys and rows */
            int is_sparse, block_shift, mask_words, per_head;
            i64 q_blocks, k_blocks;
            const unsigned char *mask;              /* [batch, heads, q_blocks, k_blocks] or NULL */
            unsigned char *mask_out;                /* likewise */
            santa_sample_audit *audit;              /* [batch, heads] or NULL */
            float *row_mass;                        /* [batch, q_len, heads] or NULL */
            int chunks, units, sample_splits, stage; /* units: of 64 sampled rows; stage: of k_sample */
            double alpha_columns, alpha_slashes, dense_above;
            float2 *row_sums;                       /* [batch, heads, units, splits, 64]: max, sum */
            float *shares;                          /* likewise: of a row, in its head's own sets */
            float4 *masses;                         /* [batch, heads, units, blocks]: three slashes */
            float *set_masses;                      /* [batch, heads, columns and slashes, k_blocks] */
            /* [batch, heads, columns and slashes, mask_words]: of each head; as it is to be
               read, see set_word */
            unsigned *raw_sets, *own, *sets;
            int *picked;                            /* [batch, heads, columns and slashes]; -1: a NaN */
            int *runs_dense;                        /* [batch, kv_heads] */
        };
        struct {                                    /* of SAAP and its index */
            row_product product;                    /* of k_rows or k_nearest */
            i64 new_count, new_from;                /* santa_buckets_assign's keys; -1: the last ones */
            int new_tiles;                          /* CTAs of k_rows whose nearest k_index joins, or 0 */
            const float *logits;                    /* [batch, heads, buckets] */
            routed_row *routed;                     /* [batch, kv_heads] */
            /* [batch, heads] of row q_index, behind those of earlier ones: millionths, or -1 */
            i64 *covered;
            bucket_span *spans;                     /* [batch, kv_heads, buckets], if not shared memory */
            float2 *logit_parts;                    /* [batch, heads, logit_tiles]: max, sum of exp */
            int logit_tiles;
        };
        step_params step;
        joint_params joint;
    };
    /* First tokens beside a window, see gap_of; 0: none. Behind the scores, where there are
       any, window is 0, and this has it. */
    i64 first_tokens, first_window;
    list_range *first_ranges;                       /* of k_first_ranges: [batch, kv_heads] */
    int list_early;                                 /* the ranges of a list are known before it is */
    row_scales k_scales, v_scales;                  /* data NULL: none */
    /* A q that is no number of the tensor cores, in parts that are, see k_query_parts: how
       many, 0: there are none; slots of a part, 1 << part_shift. For k_scores and k_dense they
       are q then. special: scores are more than e4m3's or 16-bit products and a factor. */
    int q_parts, part_shift, q_slices, special;
    int slice_heads;                                /* PASS_HEADS; with parts there may be fewer */
    float *q_unscale;                               /* [batch, kv_heads, q_slices] */
    char *q_slots;                                  /* [batch, kv_heads, q_slices, PASS_HEADS, d] */
    float block_scale;                              /* scale, or 1 where finish_products had it */
    int q_sets;                                     /* of digits: eights of slots */
    /* A range of items, see parts_of: which of the caller's sequences and heads come first,
       whose numbers random numbers are drawn by; heads in the caller's arrays [.., heads], in
       lse, which may be the call's own, and KV heads in a copy or index */
    int first_sequence, first_head, all_heads, lse_heads;
    i64 all_kv_heads;
    i64 *means;                                     /* [5]: sums of earlier parts, see mean_sum; or NULL */
    double per_cap;                                 /* 1 / soft_cap, see cap_score */
    float quick_per_cap;                            /* the same, finite, see quick_cap */
    scan_params scan;                               /* of SAAP: here, as the lines before are few */
};

/* -------------------------------------------------------------------------- >>shared-memory */

/* What a CTA of each kernel needs of shared memory: the kernels declare it, the launches ask
   for it, both by these. */

constexpr int LEAST_SHARED = 99 * 1024;             /* a CTA can have so much on every card from sm_80 on */

template <int N> struct a_number { enum { value = N }; };

struct e4m3 { unsigned char x; };
struct any_eight { unsigned char x; };              /* e4m3 or e5m2, asked for each step */
struct sixteen { unsigned short x; };               /* f16 or bf16, see with_type */

template <typename K> constexpr bool eight_bits = false;              /* of the types on tensor cores */
template <> constexpr bool eight_bits<e4m3> = true;
template <> constexpr bool eight_bits<any_eight> = true;
/* Whether k_dense with a table knows scales of rows. Of e4m3 of head_dim 64 they cost 2 to 3 %,
   of others nothing that was measured. */
template <typename K, int C> constexpr bool may_have_scales = true;
template <> constexpr bool may_have_scales<e4m3, 2> = false;

/* k_scores and k_dense: rows of K (and V) on their way, see k_scores. */
template <typename K, int C> struct ring {
    enum { LOADS = 2 * (eight_bits<K> ? C / 2 : C) };                 /* uint4 per lane and step: 2 rows */
    enum { STEPS = 24 / LOADS };                                      /* 12 KB per warp, or 8 */
    enum { BYTES = SCORE_WARPS * STEPS * LOADS * 32 * 16 };
    static_assert(STEPS >= 1, "a step does not fit in a warp's part of the ring");
    static_assert((int)BYTES <= LEAST_SHARED, "the ring of k_scores does not fit on every card");
};

struct parts_memory { float top[SCORE_WARPS]; };    /* k_query_parts */

/* A warp's sums for GS heads, and behind them each head's maximum and denominator. */
template <int GS, int COLUMNS> struct warp_sums { float head[GS][COLUMNS + 4]; };

/* K whose splits k_dense may join itself: of the numbers most used, as code counts. */
template <typename K, int C> constexpr bool joins_splits = false;
template <> constexpr bool joins_splits<sixteen, 4> = true;

/* k_dense: the ring, where at the end the warps' sums lie. */
template <typename K, int C> struct dense_memory {
    enum { LANES = 2 * ring<K, C>::LOADS, COLUMNS = 16 / (int)sizeof(K) * LANES, TILES = COLUMNS / 16 };
    /* behind the warps' sums those of the split */
    enum { RING = ring<K, C>::BYTES,
           MERGE = (SCORE_WARPS + (int)joins_splits<K, C>) * sizeof(warp_sums<PASS_HEADS, COLUMNS>) };
    static constexpr int BYTES = (int)RING > (int)MERGE ? (int)RING : (int)MERGE;
    static_assert(32 % (int)LANES == 0, "a row of V is copied by a power of two of lanes");
    static_assert(BYTES <= LEAST_SHARED, "the ring of k_dense does not fit on every card");
};

/* Query heads of k_list_plain. */
enum { PLAIN_HEADS = 4 };

/* k_dense_plain: a warp's weights. Behind it the ring, where at the end the warps' sums lie,
   and q. */
enum { PLAIN_ROWS = 16, PLAIN_NUMBERS = 128 };      /* of a step; of each row, in f32 */
struct alignas(16) plain_memory {
    float weight[DENSE_WARPS][BLOCK * PASS_HEADS];
    float factor[DENSE_WARPS][PASS_HEADS];
};
/* The ring and q, of heads that are so many floats apart together; with those weights. */
constexpr int plain_ring(int slots, int query_pitch) {
    return (DENSE_WARPS * slots * PLAIN_ROWS * PLAIN_NUMBERS + PASS_HEADS * query_pitch) * 4;
}
constexpr int plain_bytes(int slots, int query_pitch) {
    return (int)sizeof(plain_memory) + plain_ring(slots, query_pitch);
}
static_assert(plain_bytes(2, 0) <= LEAST_SHARED, "the ring of k_dense_plain does not fit on every card");
static_assert(DENSE_WARPS * sizeof(warp_sums<PASS_HEADS, 2 * PLAIN_NUMBERS>)
                  <= DENSE_WARPS * 2 * PLAIN_ROWS * PLAIN_NUMBERS * 4, "nor do its sums");

/* k_dense_blocks and k_scores_blocks: rows of up to 128 numbers in rings, where at the end the
   warps' sums lie; q's digits, see k_query_digits, and what their sums are multiplied with.
   Rows are a multiple of 32 banks and four apart. */
enum { BLOCK_WORDS = 36, BLOCK_DIM = 128, MOST_DIGITS = 3 };
enum { BLOCK_STEPS = 5, BLOCK_SCORE_STEPS = 4 };
struct alignas(16) block_digits {
    uint2 digits[MOST_DIGITS][BLOCK_DIM / 32][32];
    float unit[PASS_HEADS];
};
struct alignas(16) blocks_memory {
    unsigned ring[SCORE_WARPS][BLOCK_STEPS][16 * BLOCK_WORDS];
    block_digits q;
};
struct alignas(16) block_scores_memory {            /* warps have queries of their own */
    unsigned ring[SCORE_WARPS][BLOCK_SCORE_STEPS][16 * BLOCK_WORDS];
    block_digits q[SCORE_WARPS];
};
static_assert(sizeof(blocks_memory) <= (size_t)LEAST_SHARED, "k_dense_blocks does not fit on every card");
static_assert(sizeof(block_scores_memory) <= (size_t)LEAST_SHARED, "nor does k_scores_blocks");
static_assert(SCORE_WARPS * sizeof(warp_sums<PASS_HEADS, BLOCK_DIM>) <= sizeof(blocks_memory::ring),
              "nor do its sums");

/* k_gather draws by a Pick: which block each draw falls in, and the weight of its row. A Pick
   holds what it keeps in registers, its `memory` what it keeps in shared memory; see
   >>gather-kernel for what it has to say when. Thread t owns 1 << shift neighbouring blocks;
   its k-th one is at [k][t]. */
struct gather_head;                                 /* the query head and what is known of its masses */
struct portion;                                     /* which of its draws are whose */
struct place;                                       /* where a draw fell */
template <typename Pick> struct scan_memory {
    typename Pick::memory pick;
    /* sums up to and with a thread, from the start of its warp; before, a Pick's */
    double ends[PORTION];
    double totals[GATHER_WARPS], scratch[GATHER_WARPS];
    float tops[GATHER_WARPS];
    rank_share share;                               /* only with p.ranks */
};

/* sys, prop, strat, iid: positions in the mass of all keys. */
struct comb {
    typedef scan_memory<comb> scan;
    enum { OVER_RANKS = 0, UNITS = 0 };
    struct memory {
        double prefix[KEPT * PORTION];              /* up to and with a block, from its thread's first */
    };
    double u;                                       /* this lane's threshold, within its stratum */

    __device__ static const float2 *copied(memory &, bool fits);
    __device__ void prepare(const params &p, scan_memory<comb> &s, const gather_head &x,
                            const portion &mine);
    __device__ void recall(scan_memory<comb> &s);
    __device__ void keep(memory &s, int k, int i, float2 sums, double mass);
    __device__ void settle(const params &p, scan_memory<comb> &s, const gather_head &x, portion &mine);
    __device__ place find(const params &p, scan_memory<comb> &s, const gather_head &x, int draw);
};

/* The same, also for a context over ranks: of all positions those in this rank's part of the
   mass. */
struct comb_over_ranks : comb {
    enum { OVER_RANKS = 1 };
    __device__ void settle(const params &p, scan_memory<comb> &s, const gather_head &x, portion &mine);
    __device__ place find(const params &p, scan_memory<comb> &s, const gather_head &x, int draw);
};

/* flash: every flash tile, p.flash_blocks units, that has mass draws by itself. A unit is a
   block, or a tile of fewer keys. */
struct flash {
    typedef scan_memory<flash> scan;
    enum { OVER_RANKS = 0, UNITS = 1 };
    struct memory {
        int tile_of[KEPT * PORTION];                /* flash tiles that have mass */
        float2 sums[KEPT * PORTION];                /* p.block_sums of this head */
        u64 key;                                    /* row_key */
    };
    i64 from;                                       /* order of the first flash tile in tile_of */
    int groups;                                     /* flash tiles that have mass */

    __device__ static const float2 *copied(memory &s, bool fits);
    __device__ void prepare(const params &p, scan_memory<flash> &s, const gather_head &x,
                            const portion &mine);
    __device__ void recall(scan_memory<flash> &s);
    __device__ void keep(memory &s, int k, int i, float2 sums, double mass);
    __device__ void settle(const params &p, scan_memory<flash> &s, const gather_head &x, portion &mine);
    __device__ place find(const params &p, scan_memory<flash> &s, const gather_head &x, int draw);
};

template <int CH, typename Pick> struct gather_memory {
    typename Pick::scan scan;
    union {
        struct { i64 at[32]; float weight[32]; };   /* a warp's draws: bytes from p.v to the row, weight */
        alignas(16) float sum[128 * CH];            /* then the sums of its rows */
    } warps[GATHER_WARPS];
    int last_one;
    static_assert(128 * CH <= PORTION, "a thread adds up a column");
    static_assert(PORTION == GATHER_WARPS * 32, "a lane has one draw");
};
static_assert(sizeof(gather_memory<2, comb>) <= 48 * 1024 && sizeof(gather_memory<2, flash>) <= 48 * 1024,
              "declared shared memory ends at 48 KB");

/* Tiles of >>prefill-kernel: queries, threads that copy them, columns of V. */
enum { TILE_QUERIES = 128, TILE_THREADS = 128, TILE_COLUMNS = 128 };

/* k_prefill: q and K in lines of 64 features, 128 columns of V; or K and V in one place. */
constexpr int prefill_bytes(i64 d, bool one_tile) {
    const int chunks = (int)((d + 63) / 64), line = 128;
    return chunks * (TILE_QUERIES + BLOCK) * line + (one_tile ? 0 : TILE_COLUMNS / 64 * BLOCK * line);
}
static_assert(prefill_bytes(256, true) <= LEAST_SHARED - 16, "k_prefill does not fit on every card");

/* k_prefill: keys of V that have numbers which are not finite. */
struct screened { unsigned of_warp[4]; };
/* k_prefill_groups: for each place of K, then of V, a barrier that it is full, then that it is
   empty; first keys of the blocks in it, or -1: the end; the same as in screened. The tiles are
   beside it, from a multiple of 1 KB on: q, the places of K, those of V. */
enum { PLACES = 3, PLACE_BYTES = 128 * 256, OWN_TILES = 4 };
struct groups_memory {
    u64 barrier[4 * PLACES + 4];                    /* queries are there, V has landed; a group's turn */
    int first[PLACES][2];
    unsigned bad[PLACES][2][4], found[2][4];        /* found: before the one that arrives has it */
    struct { int place, is_v, first, second; } landed;                /* place < 0: there is no more */
    int landed_tile;                                /* MANY: whose K it is */
};
enum { GROUPS_BYTES = (1 + 2 * PLACES) * PLACE_BYTES + 1024 };
/* What it takes: how the tensor copy engine finds K and V, whose boxes are so many keys, 32 or
   64, by 64 features; 0: threads copy. */
struct groups_params : params {
    CUtensorMap k_map, v_map;
    int box_keys;
    int own_tiles;                                  /* MANY: of a CTA, but for the last one */
};
/* k_sample: q and two tiles of K. Each CTA has SAMPLE_BLOCKS blocks of a unit. */
enum { SAMPLE_THREADS = 128, SAMPLE_BLOCKS = 32 };
enum { AT_MAXIMA, AT_MASSES, AT_SHARES };           /* what it is run for */
struct sample_memory {
    float2 row[BLOCK];                              /* maximum, 1 / sum */
    float bins[2][4][4];                            /* of each warp, for this block and the last one */
};
constexpr int sample_bytes(i64 d) { return (int)((d + 63) / 64) * 3 * BLOCK * 128; }
static_assert(sample_bytes(256) + sizeof(sample_memory) <= LEAST_SHARED,
              "k_sample does not fit on every card");
struct select_memory {
    double scratch[8];
    float least[8];
};
enum { NO_BLOCK = 0x7f000000 };                     /* first key of a block that is not there */
/* Rows of a call from which on tiles are taken; heads of a tile at most. */
enum { PREFILL_ROWS = 32, TILE_HEADS = 16 };
enum { RANK_BEST = 2048 };                          /* scores that a rank tells of a head, at most */
enum { DRAW, TELL, MEND, FINISH, LIST, PLACE };     /* steps over ranks; DRAW is also without them */
/* Those of k_va_ranks. */
enum va_step { COUNT, MASK, MARK, WORDS, STEPS, UNITS, SLICES, PICK, SUMS, JOIN, RESULT };
struct rank_memory { double scratch[GATHER_WARPS]; float tops[GATHER_WARPS]; };
struct bins_memory : bins_of_rank {
    double scratch[GATHER_WARPS];
    int chosen, lowest, own;
    choice_of_ranks met;
};
struct join_memory { double warps[4]; };

struct combine_memory {
    double scratch[16];
    float weight[128];
    alignas(16) float tops[16];
    float sums[4][128];
};

enum { COPY_DIM = 512 };                            /* head_dim of a copy at most: 16 features a lane */
/* k_encode: rotated mean of a block, its rows' scales, signs of the rotation, keys that are not
   finite. */
struct copy_memory {
    float centre[COPY_DIM], scale[BLOCK];
    unsigned signs[COPY_DIM / 32];
    unsigned char bad[BLOCK];
};
/* k_encode_cores: warps, each with 16 keys; head_dim at most; a mean from each, and its
   centre. */
enum { ENCODE_WARPS = BLOCK / 16, ENCODE_DIM = 128 };
struct alignas(16) encode_memory {
    float sums[ENCODE_WARPS][ENCODE_DIM], centre[ENCODE_WARPS][ENCODE_DIM];
    unsigned char bad[ENCODE_WARPS][BLOCK];         /* keys that are not finite */
};

/* k_error: 128 columns and eighths of the draws. */
enum { ERROR_PARTS = 8 };
struct error_memory {
    double sum[ERROR_PARTS][128], squares[ERROR_PARTS][128];
    double warps[4 * ERROR_PARTS];
};

/* Kernels that read a copy: their head_dim and head_dim_v at most. */
enum { PROXY_DIM = 256 };

/* k_weighed_error: keys that its warps weigh at a time, and three weights of each. A thread has
   a column of 256 and a fourth of the keys. */
enum { WEIGHED_KEYS = 128 * ERROR_PARTS };
struct weighed_memory : error_memory {
    double weight[3][WEIGHED_KEYS];
    int key[WEIGHED_KEYS];
};
static_assert(sizeof(weighed_memory) <= 48 * 1024, "declared shared memory ends at 48 KB");
static_assert(WEIGHED_KEYS % PROXY_DIM == 0, "a thread has a column");
enum { PROXY_DRAWS = 16 * GATHER_WARPS };           /* of k_proxy_gather at a time */
enum { FIXED_HEADS = 4 };                           /* that an attend takes together */
/* attend: q, scores or weights of some keys, and what the warps have summed up. */
template <int HEADS> struct alignas(16) attend_memory {
    enum { KEYS = 256 };
    float q[HEADS][PROXY_DIM];
    float score[KEYS][HEADS];
    float merge[GATHER_WARPS][HEADS][128];
    float top[HEADS], sum[HEADS], keep[HEADS], squares[HEADS], trace[GATHER_WARPS][HEADS];
    int key[KEYS];
};

/* vAttention: threads of a CTA that chooses keys, the keys whose scores it looks at, digits of
   a score, keys of its sample. */
enum { CHOOSE = 512, CHOOSE_KEYS = 64 * CHOOSE, CHOOSE_BINS = 2048, CHOOSE_SAMPLES = 2048 };
/* Candidates of a head in shared memory, and its set; before, twice as many keys of a CTA. */
enum { CHOOSE_ROOM = 9216, CHOOSE_KEPT = 2 * CHOOSE_ROOM };
struct set_memory {                                 /* what a sample of keys is drawn with */
    u64 at;
    unsigned totals[CHOOSE / 32], sums[3][CHOOSE / 32], needed;
};
struct choose_memory : set_memory {
    alignas(16) unsigned bins[CHOOSE_BINS];
    u64 few[CHOOSE], result;
    unsigned bin, above, inside, few_count, first, is_last, ends_group, kept_count;
};
static_assert(sizeof(choose_memory) <= 48 * 1024, "declared shared memory ends at 48 KB");
struct word_memory : set_memory {
    alignas(16) unsigned bins[WORD_BINS];           /* or of parts of a list, see add_sums */
    unsigned left;
    int bin;
};
enum { FILL_PARTS = 16 };                           /* CTAs of a KV head's list, at most */
enum { CHOOSE_WORDS = 12288 };                      /* of a set's bits beside it, at most */
static_assert(sizeof(choose_memory) + 8 * CHOOSE_ROOM + 1024 <= LEAST_SHARED, "not on every card");

enum { RING_SLOTS = 4, PROXY_CTAS = 2 };
enum { PROXY_STEPS = 8 };                           /* blocks of a warp in a long stream's CTA */
/* k_proxy_scores: a barrier for each slot of a warp's ring; q in two parts of 8 bits. The ring
   is beside it. */
struct proxy_scores_memory {
    u64 full[SCORE_WARPS][RING_SLOTS];
    signed char q[2][PASS_HEADS][PROXY_DIM];
    float unit[PASS_HEADS], middle[PASS_HEADS];
};

/* The keys of a row that the copy of K stands for: from .. to - 1, beside them [begin, from)
   and [to, end) are read exactly. All of them are if none can be taken from the copy. */
struct proxy_range { int begin, end, position, from, to; };

/* The team of a CTA: the heads that draw together, their keys. */
struct team {
    int b, head, heads, kv;                         /* head: the first one */
    i64 row;                                        /* its number */
    proxy_range range;                              /* from .. to - 1 are drawn from */
    int first, blocks, part_blocks;                 /* of these; of a part of them */
    int cta, parts, lo, hi;                         /* this CTA's: parts, blocks */
};

/* k_draw. Its rows and keys are dealt to DRAW_PARTS; SLICE heads take rows together, DRAW_ROWS
   at a time; a list has up to DRAW_LIST of them. */
enum { DRAW_PARTS = 8, DRAW_HEADS = 64, SLICE = 4, DRAW_ROWS = 64, DRAW_LIST = 1024, DRAW_RUNS = 1024 };
static_assert((int)DRAW_PARTS == (int)MOST_CLUSTER, "a CTA has whole parts");
enum { FIXED_PARTS = 2 };                           /* of the keys that are read exactly: a CTA each */
enum { DRAW_SUMS = 16 * 1024 };                     /* bytes of the parts' sums, beside it, at most */
struct alignas(16) rows_memory {
    float q[SLICE][PROXY_DIM];
    float weight[DRAW_ROWS][SLICE];
    i64 at[DRAW_ROWS];                              /* of rows that are not staged: bytes from p.v */
    float warp_extra[GATHER_WARPS][3 * SLICE], high[SLICE], keep[SLICE];
};
/* What a CTA chooses with among the best of all ranks, see best_of_ranks. */
struct best_memory { int count[PORTION], warp_count[GATHER_WARPS], chosen, before, inside, counts[3]; };
struct best_keys_memory : best_memory { double scratch[GATHER_WARPS]; };
enum { RESCUE_KEYS = 128 };                         /* of a warp's list, see rescue; two blocks' at least */
struct alignas(16) rescue_memory : rows_memory, best_memory {
    unsigned char start[GATHER_WARPS * RESCUE_KEYS];              /* in these, of blocks */
    int other_count[PORTION];                       /* counts take turns */
    u64 tally[3];                                   /* over keys of 1, x, x^2, see FAR_OFF */
    unsigned equal;
};
struct alignas(16) draw_memory : rescue_memory {
    i64 run_end[DRAW_RUNS];                         /* ticks up to and with a run: 1 << run_shift blocks */
    int key[DRAW_LIST];
    float chance[DRAW_LIST];
    /* of each head of the team */
    double all[DRAW_HEADS];
    float result[DRAW_HEADS], top[DRAW_HEADS], inverse[DRAW_HEADS], log_inverse[DRAW_HEADS],
          factor[DRAW_HEADS], fixed_share[DRAW_HEADS], expected[DRAW_HEADS], squares[DRAW_HEADS],
          off[DRAW_HEADS];
    unsigned char draws[DRAW_HEADS], bad[DRAW_HEADS], again[DRAW_HEADS];
    /* of each part, in every CTA of the cluster */
    double part_sum[DRAW_PARTS][DRAW_HEADS];
    float part_top[DRAW_PARTS][DRAW_HEADS], part_spread[DRAW_PARTS][DRAW_HEADS];
    float2 part_again[DRAW_PARTS][DRAW_HEADS];      /* of heads that take all of their keys */
    i64 ticks[DRAW_PARTS];
    /* of this CTA's parts */
    float extra[DRAW_PARTS][DRAW_HEADS][3];
    i64 scan[GATHER_WARPS];
    team own;                                       /* registers are short beside a rescue */
    int run_shift;
    unsigned word;
};
static_assert(sizeof(draw_memory) % 16 == 0, "what follows is aligned");
enum { RESCUE_SCRATCH = GATHER_WARPS * RESCUE_KEYS * 8 };         /* bytes */
static_assert(sizeof(draw_memory::key) + sizeof(draw_memory::chance) >= RESCUE_SCRATCH
                  && sizeof(scan_memory<comb>) >= RESCUE_SCRATCH, "rescue's scratch");

/* k_list: rows of K and V of some keys, 16 for each warp, of at most ROW bytes each; their
   weights, ready for the tensor cores; maxima and sums of the warps. */
enum { LIST_KEYS = 128, LIST_WIDE_KEYS = 64 };      /* of a part of a list; where rows are wide */
template <typename K, int ROW> struct list_memory {
    enum { KEYS = ROW <= 256 ? LIST_KEYS : LIST_WIDE_KEYS, WARPS = KEYS / 16 };
    enum { LANES = ROW / 16, COLUMNS = ROW / (int)sizeof(K), CHUNKS = COLUMNS / 32 };
    enum { TILES = COLUMNS / 16 / WARPS };          /* of 16 columns, a warp's */
    uint4 k[KEYS * LANES], v[KEYS * LANES];
    uint4 weight[WARPS][32];
    float top[WARPS][PASS_HEADS], sum[WARPS][PASS_HEADS], square[WARPS][PASS_HEADS];
};
static_assert(sizeof(list_memory<e4m3, 256>) <= (size_t)LEAST_SHARED
                  && sizeof(list_memory<sixteen, 512>) <= (size_t)LEAST_SHARED,
              "the rows of k_list do not fit on every card");
enum { LIST_CTAS = 32, LIST_LEAST = 32 };           /* of a multiprocessor, of a list: enough of them */

/* The keys of one list, see >>list-kernel: i < count, then those of the ranges, then of
   pieces. */
struct listed {
    const int *keys;
    const float *weights;
    int count, front, back, pieces, all;            /* entries; keys of ranges, of pieces */
    int begin, end, position, len;
    int piece_count, from, to;                      /* keys that a piece may have */
    int head, places;                               /* see place_of */
};

/* k_list_many: 64 heads of a CTA, blocks of 32 keys in up to four slots behind this. Weights
   lie as registers of the tensor cores' left side: of two blocks, in two parts, for each 16
   heads and 16 keys. */
enum { MANY_HEADS = 64, MANY_KEYS = 32, MANY_WARPS = 8, MANY_SLOTS = 4 };
enum { MANY_LEAST = 7, MANY_MOST = 11, MANY_PARTS = 5 };              /* logarithms, see part_keys */
enum { MANY_DIM = 576, MANY_COLUMNS = 512 };        /* of K and V, at most */
/* A head's sums so far are made smaller when a weight would be more than 2^this, not at each
   new maximum, of which there are some in most blocks. */
constexpr float MANY_SLACK = 6.0f;
struct many_memory {
    uint4 weight[2][2][MANY_HEADS / 16][MANY_KEYS / 16][32];
    float4 scores[MANY_HEADS / 16][MANY_KEYS / 8][32];              /* of the second half of K's features */
    float keep[2][MANY_HEADS];                      /* what sums so far are multiplied with */
    int changes[2][MANY_HEADS / 16];                /* whether that is not 1 for any of 16 heads */
    float bias[MANY_SLOTS][MANY_KEYS];
    int key[MANY_SLOTS][MANY_KEYS];
    alignas(16) listed list;
};
/* The last warp reads columns that V does not have, so many bytes behind the last slot. */
enum { MANY_BEHIND = 2 * MANY_COLUMNS / MANY_WARPS };
/* Steps of 16 features of K that either half of the warps has, whole pairs. */
constexpr int many_lead(i64 d) { return (int)((d + 63) / 64 * 2); }
/* Bytes from row to row in a slot, whole 128 and 16, so that 8 rows' pieces are in different
   banks. */
constexpr int many_k_pitch(i64 d) { return many_lead(d) * 64 + 16; }
constexpr int many_v_pitch(i64 dv) { return (int)(dv + 63) / 64 * 128 + 16; }
static_assert(sizeof(many_memory) + 2 * MANY_KEYS * many_k_pitch(MANY_DIM) + MANY_BEHIND
                      <= (size_t)LEAST_SHARED
                  && sizeof(many_memory) % 16 == 0,
              "the slots of k_list_many do not fit on every card");
enum { TOP_CTAS = 12, TOP_PARTS = 4 };              /* of lists that are full: that, parts of a CTA */
enum { LIST_PARTS = 16 };                           /* of a CTA that has a share of a list, at most */
/* k_top: bins of scores, four to a thread; keys of one bin, a thread each; blocks of a warp at
   a time; blocks whose keys have a mark at once; CTAs of a head. */
enum { SELECT_THREADS = 512, SELECT_WARPS = SELECT_THREADS / 32, SELECT_BINS = 4 * SELECT_THREADS };
enum { SELECT_SPAN = 16, SELECT_TILE = SELECT_BINS, SELECT_CLUSTER = MOST_CLUSTER };
struct top_memory {
    alignas(16) unsigned count[SELECT_BINS + 4];    /* behind the last bin: those that do not count */
    union {
        alignas(16) u64 mass[SELECT_BINS];
        unsigned marks[2 * SELECT_TILE];
    };
    u64 list[SELECT_THREADS];
    union { double wide[SELECT_WARPS]; u64 whole[SELECT_WARPS]; } scratch;
    float tops[SELECT_WARPS], lows[SELECT_WARPS];
    int marked[SELECT_WARPS];
    unsigned char pick[SELECT_WARPS][SELECT_SPAN];
    u64 want, cut, own_mass, masses[SELECT_CLUSTER];
    int bin, own_above, above[SELECT_CLUSTER];
    unsigned have, prior, listed;
};
static_assert(sizeof(top_memory) <= 48 * 1024, "declared shared memory ends at 48 KB");
enum { LIST_PLAIN_KEYS = 4 };                       /* k_list_plain: keys of a warp at a time */
struct list_plain_memory { warp_sums<PLAIN_HEADS, 256> merge[DENSE_WARPS]; };

/* Of a head over ranks, from a copy of K: before a rescue, and what it is drawn by. */
struct rank_guard { float m, fixed_top, expected; double total, fixed; bool some, rescued; };
struct copied_rank { rank_share share; double all, to_own; float fixed_top; bool finite, light, draws; };
/* What a rescue finds: sums of 1, x, x^2, x: log2 of e^s / e^s^ */
struct rescued_keys { int rows; float off[3]; };
struct proxy_gather_memory {
    scan_memory<comb> scan;
    alignas(16) float q[PROXY_DIM];
    union {
        struct { i64 at[32]; float weight[32]; };   /* a warp's drawn rows: bytes from p.k or p.v, weight */
        alignas(16) float sum[PROXY_DIM];           /* then the sums of its rows */
    } warps[GATHER_WARPS];
    float spreads[GATHER_WARPS], weights[GATHER_WARPS][3];
    /* of q, and where the comb begins: here, as registers are short beside a rescue */
    float squares;
    double u;
    int last_one;
    union { attend_memory<1> redo; rescue_memory rescue; };
    float state[PROXY_DIM + 2];
    copied_rank met;                                /* with p.ranks */
    rank_guard guard;
    rescued_keys rescued;
};
static_assert(sizeof(proxy_gather_memory) <= 48 * 1024, "declared shared memory ends at 48 KB");
/* k_rows: 8 vectors, and the next ones, up to 1024 features of each; at the end the warps'
   sums. The pitch keeps 8 lanes apart in the banks. */
enum { ROWS_VECTORS = 32 };                         /* of a CTA */
struct rows_sums {
    float warps[8][ROWS_VECTORS][16];
    float products[ROWS_VECTORS][128];
};
constexpr int rows_bytes(int splits) {
    const int vectors = 2 * 8 * (128 * splits + 4) * 4;
    return vectors > (int)sizeof(rows_sums) ? vectors : (int)sizeof(rows_sums);
}
static_assert(rows_bytes(8) <= LEAST_SHARED, "k_rows does not fit on every card");

/* k_layers: a row of the units of each vector, then the sums of the warps, or products. */
enum { LAYERS_MOST = 1024, LAYERS_UNITS = 128 };    /* hidden, at most; units of a CTA at a time */
enum { LAYERS_WAVES = 4 };                          /* CTAs of a multiprocessor, at most */
struct layers_sums {
    float part[32][8][16];                          /* 16 rows each */
    float products[8][128];
};
enum { LAYERS_GAP = 4 };                            /* keeps 8 lanes apart in the banks */
/* as many vectors as rows of 8192 units have */
constexpr int layers_vectors(int hidden) { return hidden <= 256 ? ROWS_VECTORS : 8192 / hidden / 8 * 8; }
constexpr int layers_bytes(int hidden) { return layers_vectors(hidden) * (hidden + LAYERS_GAP) * 4; }
static_assert(layers_bytes(LAYERS_MOST) + (int)sizeof(layers_sums) <= LEAST_SHARED
                  && layers_bytes(256) + (int)sizeof(layers_sums) <= LEAST_SHARED,
              "k_layers does not fit on every card");

/* k_nearest: centroids that are multiplied, and the next ones. The pitch of a row keeps 8 lanes
   apart in the banks. */
enum { NEAREST_KEYS = 256, NEAREST_ROWS = 64, NEAREST_DIM = 128 };
struct nearest_memory {
    enum { PITCH = NEAREST_DIM / 8 + 4 };
    alignas(16) char rows[2][NEAREST_ROWS * PITCH * 16];
};

/* k_nearest_plain: keys, and of the centroids 32 features; both in f32. */
enum { PLAIN_NEAR_KEYS = 64, PLAIN_NEAR_ROWS = 128, PLAIN_NEAR_PITCH = 32 + 16 };
enum { ROUTE_DIM = 256 };                           /* head_dim of routers and new keys, at most */
struct near_bucket { float product; int bucket; };
struct plain_nearest_memory { near_bucket best[4][PLAIN_NEAR_KEYS]; };
constexpr int plain_nearest_bytes(int d) {
    return (PLAIN_NEAR_KEYS * ((d + 31) / 32 * 32 + 16) + PLAIN_NEAR_ROWS * PLAIN_NEAR_PITCH) * 4;
}
static_assert(plain_nearest_bytes(ROUTE_DIM) + (int)sizeof(plain_nearest_memory) <= LEAST_SHARED,
              "k_nearest_plain does not fit on every card");

/* k_index: keys of each bucket in each warp's part. */
enum { INDEX_BUCKETS = 256, NEW_FEW = 4 };          /* of a CTA, at most; new keys for k_rows */
enum { INDEX_WARPS = 32 };
struct index_memory {
    int count[INDEX_WARPS][INDEX_BUCKETS];
    double scratch[INDEX_WARPS];
    int fresh[NEW_FEW];
};

enum { ROUTE_THREADS = 1024, ROUTE_SPANS = 1024, ROUTE_HEADS = 4, ROUTE_PIECES = 256 };
enum { SCAN_THREADS = 256 };
struct copied_keys_memory {
    alignas(16) signed char q[2][PASS_HEADS][PROXY_DIM];
    float unit[PASS_HEADS], middle[PASS_HEADS];
    unsigned use[65536 / 32];                       /* buckets that are scanned */
    unsigned char key[SCAN_THREADS / 32][BLOCK];
    float2 sums[SCAN_THREADS / 32][PASS_HEADS];
};
enum { SCAN_HEADS = 1024 };                         /* of a group, at most */
struct copied_sizes_memory { float2 head[SCAN_HEADS]; };                /* max, factor */

template <bool SCANS> struct route_memory {
    bucket_span span[ROUTE_SPANS];
    double teeth[ROUTE_THREADS], scratch[2][32];
    u64 rows[32];
    unsigned read[32];                              /* buckets of a warp that are read */
    list_piece piece[ROUTE_PIECES];                 /* how many keys, where they begin in the index */
    int whole;
    alignas(16) int bins[4][256];
    float2 head[ROUTE_HEADS];
    int drawn;
    double scanned[SCANS ? ROUTE_THREADS : 1];      /* teeth of the blocks of a copy of K */
};

/* A host compiler alone, with the runtime of test/cuda/standin, takes this file without its
   kernels. There each one states its threads and what it declares and needs of shared
   memory. */
#ifdef SANTA_CUDA_STANDIN

void k_query_parts(const params) { standin_kernel(SCORE_WARPS * 32, sizeof(parts_memory), 0); }
void k_scores_plain(const params p) {
    standin_kernel(DENSE_WARPS * 32, 0, (size_t)plain_ring(p.plain_slots, DENSE_WARPS * p.query_pitch));
}
template <typename K, int C, bool PAGED> void k_scores(const params) {
    standin_kernel(SCORE_WARPS * 32, 0, ring<K, C>::BYTES);
}
void k_first_scores(const params) { standin_kernel(SCORE_WARPS * 32, 0, 0); }
void k_first_ranges(const params) { standin_kernel(128, 0, 0); }
template <int CH, typename Pick> void k_gather(const params) {
    standin_kernel(PORTION, sizeof(gather_memory<CH, Pick>), 0);
}
void k_dense_plain(const params p) {
    standin_kernel(DENSE_WARPS * 32, 0, (size_t)plain_bytes(p.plain_slots, p.query_pitch));
}
template <typename K, int C, bool PAGED, bool PAIRS, bool JOINS> void k_dense(const params) {
    standin_kernel(SCORE_WARPS * 32, 0, dense_memory<K, C>::BYTES);
}
void k_query_digits(const params) { standin_kernel(SCORE_WARPS * 32, 0, 0); }
void k_scores_blocks(const params) { standin_kernel(SCORE_WARPS * 32, 0, sizeof(block_scores_memory)); }
void k_dense_blocks(const params) { standin_kernel(SCORE_WARPS * 32, 0, sizeof(blocks_memory)); }
void k_combine(const params) { standin_kernel(512, sizeof(combine_memory), 0); }
void k_combine_few(const params) { standin_kernel(256, 0, 0); }
void k_prefill(const params p) {
    standin_kernel(TILE_THREADS, sizeof(screened), (size_t)prefill_bytes(p.d, p.one_tile));
}
template <typename T, bool MANY> void k_prefill_groups(const groups_params) {
    standin_kernel(3 * 128, sizeof(groups_memory), GROUPS_BYTES);
}
void k_sample(const params p) {
    standin_kernel(SAMPLE_THREADS, sizeof(sample_memory), (size_t)sample_bytes(p.d));
}
void k_select(const params) { standin_kernel(256, sizeof(select_memory), 0); }
void k_join(const params) { standin_kernel(256, sizeof(select_memory), 0); }
void k_audit(const params) { standin_kernel(256, sizeof(select_memory), 0); }
void k_row_mass(const params) { standin_kernel(256, sizeof(select_memory), 0); }
void k_row_audit(const params) { standin_kernel(256, sizeof(select_memory), 0); }
void k_mask(const params) { standin_kernel(128, 0, 0); }
void k_prefill_stats(const params) { standin_kernel(256, 0, 0); }
void k_stats(const params) { standin_kernel(256, 0, 0); }
void k_error(const params) { standin_kernel(128 * ERROR_PARTS, sizeof(error_memory), 0); }
void k_weighed_error(const params) { standin_kernel(WEIGHED_KEYS, sizeof(weighed_memory), 0); }
void k_rank_mass(const params) { standin_kernel(PORTION, sizeof(rank_memory), 0); }
void k_rank_best(const params) { standin_kernel(PORTION, sizeof(best_keys_memory), 0); }
void k_rank_bins(const params) { standin_kernel(PORTION, sizeof(bins_memory), 0); }
void k_rank_copied(const params) { standin_kernel(PORTION, sizeof(rank_memory), 0); }
void k_rank_tiles(const params) { standin_kernel(PORTION, sizeof(rank_memory), 0); }
void k_join_ranks(const params) { standin_kernel(128, sizeof(join_memory), 0); }
void k_encode(const params p) {
    standin_kernel(256, sizeof(copy_memory), (size_t)(p.copy.keys * (p.d / 8 + 1) * 4));
}
void k_encode_cores(const params) { standin_kernel(32 * ENCODE_WARPS, sizeof(encode_memory), 0); }
template <int G> void k_proxy_scores(const params p) {
    const size_t ring = (size_t)(SCORE_WARPS * p.ring_slots * p.slot_bytes),
          other = sizeof(rows_memory) + (size_t)p.stage_bytes;
    standin_kernel(SCORE_WARPS * 32, sizeof(proxy_scores_memory), ring > other ? ring : other);
}
template <bool RANKS> void k_proxy_gather(const params) {             /* 8 warps, or 4 */
    const bool small = !RANKS && standin.launches.back().threads == PORTION / 2;
    standin_kernel(small ? PORTION / 2 : PORTION, sizeof(proxy_gather_memory), 0);
}
void k_draw(const params p) { standin_kernel(PORTION, 0, (size_t)(p.stage_at + p.stage_bytes)); }
void k_draw_stats(const params) { standin_kernel(256, 0, 0); }
template <typename K, int ROW> void k_list(const params) {
    standin_kernel(32 * list_memory<K, ROW>::WARPS, 0, sizeof(list_memory<K, ROW>));
}
void k_top(const params) { standin_kernel(SELECT_THREADS, sizeof(top_memory), 0); }
void k_list_plain(const params) { standin_kernel(DENSE_WARPS * 32, sizeof(list_plain_memory), 0); }
void k_list_many(const params p) {
    standin_kernel(MANY_WARPS * 32, 0,
                   sizeof(many_memory)
                       + (size_t)(p.many_slots * MANY_KEYS * (p.k_pitch + p.v_pitch))
                       + MANY_BEHIND);
}
void k_list_stats(const params) { standin_kernel(256, 0, 0); }
void k_va_choose(const params p) {
    standin_kernel(CHOOSE, sizeof(choose_memory), p.va.by_scores ? 8 * CHOOSE_ROOM : 0);
}
void k_va_fill(const params p) {
    standin_kernel(CHOOSE, sizeof(set_memory), (size_t)p.va.shared_words * sizeof(unsigned));
}
void k_va_attend(const params) {
    standin_kernel(SCORE_WARPS * 32, 0, sizeof(attend_memory<FIXED_HEADS>));
}
void k_va_budget(const params p) {
    standin_kernel(CHOOSE, sizeof(set_memory), (size_t)p.va.shared_words * sizeof(unsigned));
}
void k_va_result(const params) { standin_kernel(CHOOSE, sizeof(combine_memory), 0); }
void k_va_ranks(const params) { standin_kernel(CHOOSE, sizeof(word_memory), 0); }

void k_rows(const params p) { standin_kernel(256, 0, (size_t)rows_bytes(p.product.splits)); }
void k_layers(const layers_params p) {
    standin_kernel(256, sizeof(layers_sums), (size_t)layers_bytes(p.hidden));
}
void k_nearest(const params) { standin_kernel(256, sizeof(nearest_memory), 0); }
void k_nearest_plain(const params p) {
    standin_kernel(256, sizeof(plain_nearest_memory), (size_t)plain_nearest_bytes(p.product.size));
}
void k_index(const params) { standin_kernel(32 * INDEX_WARPS, sizeof(index_memory), 0); }
void k_scan(const params) { standin_kernel(SCAN_THREADS, sizeof(copied_keys_memory), 0); }
void k_scan_sizes(const params) { standin_kernel(SCAN_THREADS, sizeof(copied_sizes_memory), 0); }
template <bool SCANS> void k_route(const params) {
    standin_kernel(ROUTE_THREADS, sizeof(route_memory<SCANS>), 0);
}
void k_route_error(const params) { standin_kernel(PORTION, sizeof(rank_memory), 0); }
void k_route_mass(const params) { standin_kernel(PORTION, sizeof(rank_memory), 0); }
void k_route_stats(const params) { standin_kernel(256, 0, 0); }
void k_step_scores(const params) { standin_kernel(256, 0, 0); }
void k_step_masses(const params) { standin_kernel(SCORE_WARPS * 32, 0, 0); }
void k_step_draws(const params) { standin_kernel(PORTION, sizeof(rank_memory), 0); }
void k_step_gather(const params) { standin_kernel(128, 0, 0); }
void k_step_merge(const params) { standin_kernel(128, 0, 0); }

#else

/* --------------------------------------------------------------------------- >>instructions */

/* What has no intrinsic: all of the assembly there is. The tests' emulator has its own, and of
   the two macros, too: a CTA's shared memory, by `name`. */
#ifndef SANTA_CUDA_EMULATED

#define DYNAMIC_SHARED(name) extern __shared__ uint4 name[]
#define SHARED(name, ...) __shared__ alignas(16) __VA_ARGS__ name

/* 2^x for x <= 0 (or NaN): one instruction, 2 ulp; below 2^-126 it is 0. */
__device__ __forceinline__ float pow2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x of 20 bits or so; of 0 and infinities one another. */
__device__ __forceinline__ double near_reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}

/* x is computed here, not again wherever it is used. */
__device__ __forceinline__ void keep(unsigned &x) { asm volatile("" : "+r"(x)); }

__device__ __forceinline__ float max_or_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

__device__ __forceinline__ void prefetch(const char *at) {             /* to L2: a line of 128 bytes */
    asm volatile("prefetch.global.L2 [%0];" :: "l"(at));
}

/* The next kernel starts early where the card can, and waits here for all that came before. */
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* CTAs of a cluster: a barrier of all their threads, and the same variable of another one. */
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int cta_in_cluster() {
    int cta;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(cta));
    return cta;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}
/* The two halves of one that orders nothing. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
template <typename T> __device__ __forceinline__ T *in_cta(T *at, int cta) {
    u64 other;
    asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"((u64)at), "r"(cta));
    return (T *)other;
}
#else
__device__ __forceinline__ int cta_in_cluster() { return 0; }
__device__ __forceinline__ void cluster_sync() { __syncthreads(); }
__device__ __forceinline__ void cluster_arrive() { }
__device__ __forceinline__ void cluster_wait() { }
template <typename T> __device__ __forceinline__ T *in_cta(T *at, int) { return at; }
#endif

/* Copies to shared memory that go on by themselves, in groups of a thread. */
__device__ __forceinline__ void copy16(uint4 *to, const char *from) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(dst), "l"(from) : "memory");
}
/* Its line is the first that L2 gives up: data are read once, and what the GPU wrote before
   stays where it is. A policy chosen at run time costs k_scores 13 %. */
__device__ __forceinline__ void copy16_once(uint4 *to, const char *from) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(to);
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(dst), "l"(from), "l"(policy) : "memory");
}
__device__ __forceinline__ void copy16_or_zero(uint4 *to, const char *from, bool have) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(dst), "l"(from), "r"(have ? 16 : 0) : "memory");
}
/* The same to an address in shared memory; and four words x, at once. */
__device__ __forceinline__ void copy16_or_zero_at(unsigned to, const char *from, bool have) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(have ? 16 : 0) : "memory");
}
__device__ __forceinline__ void store16_at(unsigned to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
                 :: "r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
/* 4 or 8 bytes, or zeros. */
__device__ __forceinline__ void copy_some_or_zero(void *to, const char *from, int bytes, bool have) {
    const unsigned dst = (unsigned)__cvta_generic_to_shared(to);
    if (bytes == 8)
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;"
                     :: "r"(dst), "l"(from), "r"(have ? 8 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;"
                     :: "r"(dst), "l"(from), "r"(have ? 4 : 0) : "memory");
}
template <int BYTES> __device__ __forceinline__ void copy_some_at(unsigned to, const char *from) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;"
                 :: "r"(to), "l"(from), "n"(BYTES) : "memory");
}
/* Waits for all of so many threads, whole warps; id from 1 to 15. */
__device__ __forceinline__ void barrier_among(int id, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* Tensor cores: 16 x 16 by 16 x 8, sums in f32; the last argument is the type. */
__device__ __forceinline__ void mma(float *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                    unsigned b0, unsigned b1, __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                    unsigned b0, unsigned b1, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* 16 x 8 by 8 x 8 in tf32, which looks at the upper 19 bits of each number. */
__device__ __forceinline__ void mma_tf32(float *c, const float *a, const float *b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* u8 x s8 and s8 x s8 on tensor cores, sums in int. */
__device__ __forceinline__ void mma_codes(int *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                          uint2 b) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void mma_centre(int *c, const unsigned (&a)[4], uint2 b) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
/* The same where sums begin at `first`. */
__device__ __forceinline__ void mma_bytes(int *c, const unsigned (&a)[4], uint2 b, int first) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(first));
}
/* Sums of two pairs of bf16. */
__device__ __forceinline__ unsigned add_pairs(unsigned a, unsigned b) {
    unsigned y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return y;
}
/* Four matrices of 8 rows of 16 bytes: lane 8 i + r has row r of matrix i at `at`, and gets
   word c of row r of each. */
__device__ __forceinline__ void load_matrices(unsigned at, unsigned w[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at) : "memory");
}
/* The same with rows and columns exchanged: word c of column r. */
__device__ __forceinline__ void load_transposed(unsigned at, unsigned w[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at) : "memory");
}
/* A matrix of 8 x 8 16-bit numbers that lies in registers so. */
__device__ __forceinline__ unsigned transpose(unsigned x) {
    unsigned y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* A barrier in shared memory that a copy of bytes completes. Below sm_90 the lanes of the warp
   copy themselves, and each says so. */
__device__ __forceinline__ void barrier_make(unsigned at) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");
#else
    asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at) : "memory");
#endif
}
__device__ __forceinline__ void barriers_are_made() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    __syncwarp();
}
__device__ __forceinline__ void barrier_wait(unsigned at, unsigned phase) {
    unsigned done = 0;
    while (!done) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], %2; "
                     "selp.u32 %0, 1, 0, q; }"
                     : "=r"(done) : "r"(at), "r"(phase) : "memory");
#else
        asm volatile("{ .reg .pred q; mbarrier.test_wait.parity.shared.b64 q, [%1], %2; "
                     "selp.u32 %0, 1, 0, q; }"
                     : "=r"(done) : "r"(at), "r"(phase) : "memory");
#endif
    }
}
/* An arrival, once all copies of this thread are done. What a card has decides who calls it. */
[[maybe_unused]] __device__ __forceinline__ void barrier_after_copies(unsigned at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at) : "memory");
}
#if __CUDA_ARCH__ >= 900
/* One arrival, and so many bytes to come by copy_bytes. */
__device__ __forceinline__ void barrier_expect(unsigned at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_bytes(unsigned to, const char *from, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
#else
__device__ __forceinline__ void copy16_to(unsigned dst, const char *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(from) : "memory");
}
#endif

/* What only the code for sm_90a has: products of a warpgroup, and its registers. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WARPGROUPS 1
#else
#define HAS_WARPGROUPS 0
#endif

#if HAS_WARPGROUPS
__device__ __forceinline__ void barrier_make_for(unsigned at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned at) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
}
/* A box of 64 features of 16 bits, whose pieces lie as piece_at has them, for a barrier that
   expects its bytes; zeros for what is outside of the tensor. */
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap *map, int feature, int row,
                                         int head, int plane, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 :: "r"(to), "l"(map), "r"(feature), "r"(row), "r"(head), "r"(plane), "r"(barrier)
                 : "memory");
}
/* What this thread knows to be written to shared memory, before the tensor cores read it. */
__device__ __forceinline__ void fence_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
template <int N> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* At most N groups are still at work. The sums of those that are done may be looked at after
   products_are. */
template <int N> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void products_are(float (&x)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3]) :: "memory");
}

#define SUMS_4(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define SUMS_16(x, i) SUMS_4(x, i), SUMS_4(x, i + 1), SUMS_4(x, i + 2), SUMS_4(x, i + 3)
#define SUMS_64(x) SUMS_16(x, 0), SUMS_16(x, 4), SUMS_16(x, 8), SUMS_16(x, 12)
#define SUMS_LIST                                                                                        \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"    \
    "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"   \
    "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

/* 64 x 16 by 16 x 128: both from shared memory, rows along the features; sums may begin at
   0. */
#define PRODUCTS_BY_ROWS(type)                                                                           \
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32."   \
                 type "." type " " SUMS_LIST ", %64, %65, q, 1, 1, 0, 0; }"                              \
                 : SUMS_64(x) : "l"(a), "l"(b), "r"(more))
__device__ __forceinline__ void products(float (&x)[16][4], u64 a, u64 b, int more, __nv_bfloat16) {
    PRODUCTS_BY_ROWS("bf16");
}
__device__ __forceinline__ void products(float (&x)[16][4], u64 a, u64 b, int more, __half) {
    PRODUCTS_BY_ROWS("f16");
}
/* The same with the left side in registers, as in mma, and columns along the right side's
   rows. */
#define PRODUCTS_BY_COLUMNS(type)                                                                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " SUMS_LIST              \
                 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                 \
                 : SUMS_64(x) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
__device__ __forceinline__ void products(float (&x)[16][4], const unsigned (&a)[4], u64 b, __nv_bfloat16) {
    PRODUCTS_BY_COLUMNS("bf16");
}
__device__ __forceinline__ void products(float (&x)[16][4], const unsigned (&a)[4], u64 b, __half) {
    PRODUCTS_BY_COLUMNS("f16");
}
#endif

#endif

/* ---------------------------------------------------------------------------- >>device-base */

/* AT_ONCE: rounds that stand in the code. */
template <int AT_ONCE = 10>
__device__ __forceinline__ uint4 philox(u64 key, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll AT_ONCE
    for (int round = 0; round < 10; round++) {
        u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        c0 = (unsigned)(b >> 32) ^ c1 ^ k0;
        c1 = (unsigned)b;
        c2 = (unsigned)(a >> 32) ^ c3 ^ k1;
        c3 = (unsigned)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* 1 / x within 2^-52, and x / y as `/` rounds it: the instructions that nvcc makes of that,
   less its check and call, of 1.6 kB in each kernel, for what these cannot divide by: 0,
   infinities and numbers near the ends of f64. */
__device__ __forceinline__ double reciprocal(double x) {
    const double y = __hiloint2double(__double2hiint(near_reciprocal(x)), 1), e = fma(-x, y, 1.0),
                 z = fma(y, fma(e, e, e), y);
    return fma(z, fma(-x, z, 1.0), z);
}
__device__ __forceinline__ double quotient(double x, double y) {
    const double z = reciprocal(y), q = z * x;
    return isinf(x) ? q : fma(z, fma(-y, q, x), q);
}

/* The same of floats: such a quotient is further from the middle of two floats than what is
   rounded here is off. */
__device__ __forceinline__ float quotient_of_floats(float x, float y) {
    return (float)((double)x * reciprocal((double)y));
}

__device__ __forceinline__ bool is_first_cta() { return !(blockIdx.x | blockIdx.y | blockIdx.z); }

/* What all lanes of a warp have alike, so that the compiler knows it: for lanes that may not
   agree each shuffle behind a branch costs ten instructions of its own. */
__device__ __forceinline__ int this_warp() { return __shfl_sync(FULL, (int)(threadIdx.x >> 5), 0); }
__device__ __forceinline__ bool agreed(bool x) { return __any_sync(FULL, x); }

/* The head and sequence that random numbers are drawn by, and where their results are. */
__device__ __forceinline__ unsigned random_head(const params &p, int head) {
    return (unsigned)(p.first_head + head);
}
__device__ __forceinline__ i64 result_of(const params &p, i64 b, i64 row, int head) {
    return (b * p.q_len + row) * p.all_heads + head;
}
__device__ __forceinline__ i64 lse_of(const params &p, i64 b, i64 row, int head) {
    return (b * p.q_len + row) * p.lse_heads + head;
}

/* First step of >>random in santa.h. AT_ONCE: 1 where little code matters more, see philox. */
template <int AT_ONCE = 10> __device__ __forceinline__ u64 row_key(const params &p, int b) {
    u64 offset = p.offsets ? p.offsets[b] : p.offset, id = p.ids ? p.ids[b] : (u64)(b + p.first_sequence);
    const uint4 r = philox<AT_ONCE>(p.seeds ? p.seeds[b] : p.seed, (unsigned)offset,
                                    (unsigned)(offset >> 32), (unsigned)id, (unsigned)(id >> 32));
    return (u64)r.y << 32 | r.x;
}

__device__ __forceinline__ double uniform(u64 key, unsigned stream, unsigned head, unsigned row,
                                          unsigned index) {
    uint4 r = philox(key, index >> 2, head, row, stream);
    unsigned w = (index & 2) ? ((index & 1) ? r.w : r.z) : ((index & 1) ? r.y : r.x);
    return (double)w * (1.0 / 4294967296.0);
}

/* Keys of left padding before a sequence. */
__device__ __forceinline__ int padding_of(const params &p, int b) {
    return p.kv_start ? max(p.kv_start[b], 0) : 0;
}
/* The keys of query row `row`, or of `rows` from it on, and the row's position. */
__device__ __forceinline__ void row_range(const params &p, int b, int row, int rows, int &begin, int &end,
                                          int &position) {
    int len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity;
    int all = p.context_lens ? p.context_lens[b] - p.first_key : len; /* counted from the first key here */
    position = all - p.q_len + row;
    end = p.causal ? min(max(position + rows, 0), len) : len;
    begin = p.window > 0 && position >= p.window ? (int)(position - p.window + 1) : 0;
    if (p.kv_start) begin = max(begin, p.kv_start[b]);
    begin = min(begin, end);
}
/* The same for p.q_index. With p.dense_below rows of fewer keys are dense's, and to the kernels
   that draw they have none; p.is_short: the kernels of dense, to which the other rows have
   none. */
__device__ __forceinline__ void key_range(const params &p, int b, int &begin, int &end, int &position,
                                          int rows = 1) {
    row_range(p, b, p.q_index, rows, begin, end, position);
    if (p.dense_below && (end - begin < p.dense_below) != p.is_short) begin = end = 0;
}
/* The splits that a row of dense has keys in: first, count from there on, each of 1 << shift
   keys. */
struct row_splits { int first, count, shift; };
__device__ __forceinline__ row_splits splits_of(const params &p, int begin, int end) {
    const int keys = end - begin,
              shift = keys <= (p.short_keys & 0xffff) ? SHORT_SHIFT
                    : keys <= p.short_keys >> 16    ? HALF_SHIFT
                    : keys <= MIDDLE_KEYS           ? MIDDLE_SHIFT
                    : p.short_keys >= 0             ? SPLIT_SHIFT
                    : SPLIT_SHIFT
                          + min(31 - __clz(max(keys >> (p.short_keys >> 16 & 31), 1)), (int)MOST_LONGER);
    const int first = begin >> shift;
    return { first, keys > 0 ? ((end - 1) >> shift) + 1 - first : 0, shift };
}
/* The keys of row p.q_index, and whether it is dense because they are few. */
__device__ __forceinline__ bool is_short_row(const params &p, int b, int &begin, int &end) {
    int position;
    row_range(p, b, p.q_index, 1, begin, end, position);
    return end - begin < p.dense_below;
}

/* With first_tokens, where window is 0: of the keys begin .. end - 1 of row p.q_index those
   that it does not see, gap .. gap_end - 1; santa__key_range of santa.h. Without them there are
   none. */
struct key_gap { int begin, end, position, gap, gap_end; };
__device__ __forceinline__ key_gap gap_of(const params &p, int b) {
    key_gap r;
    row_range(p, b, p.q_index, 1, r.begin, r.end, r.position);
    r.gap = r.gap_end = r.begin;
    if (!p.first_tokens) return r;
    const i64 first = padding_of(p, b) + p.first_tokens - (p.context_lens ? p.first_key : 0),
              from = (i64)r.position - p.first_window + 1;
    r.gap = (int)min(max(first, (i64)r.begin), (i64)r.end);
    r.gap_end = (int)max(min(from, (i64)r.end), (i64)r.gap);
    return r;
}

/* Byte offset of key j's row, or NO_ROW if the block table is wrong (strides may be negative).
   k_scores and k_dense have instances with and without a table, since cold code costs them up
   to 1.5 % and 4 us, but for any_eight and e4m3 of head_dims other than 128, see has_no_table;
   all others ask p.table. */
enum table_use { HAS_TABLE, ASK_TABLE };
#define NO_ROW (-0x7fffffffffffffffll - 1)

template <table_use USE = ASK_TABLE>
__device__ __forceinline__ i64 row_offset(const params &p, const i64 *stride, int b, int j) {
    /* never, but rows that do not wait for each other here cost more registers than there
       are */
    if (USE == HAS_TABLE && !p.table) return 0;
    if (USE == HAS_TABLE || (USE == ASK_TABLE && p.table)) {
        const unsigned page = p.by_page.quotient((unsigned)j);
        const int at = p.table[b * p.table_stride + page];
        if ((unsigned)at >= (unsigned)p.pages) return NO_ROW;
        return at * stride[0] + (j - (int)(page * p.by_page.d)) * stride[1];
    }
    return b * stride[0] + j * stride[1];
}

/* Two numbers, the lower byte first. Before sm_89 there is no instruction for it, and the
   Toolkit's code takes some hundred: exponent and fraction where an f16 has them are 256 times
   too small, and 0x7f, the NaN, is the one that carries into the eighth bit when 1 is added. */
__device__ __forceinline__ __half2 e4m3_pair(unsigned short x) {
#if __CUDA_ARCH__ >= 890
    return __half2(__nv_cvt_fp8x2_to_halfraw2(x, __NV_E4M3));
#else
    const unsigned wide = (x & 0xffu) | (x & 0xff00u) << 8, magnitude = wide & 0x007f007f;
    const unsigned nan = (magnitude + 0x00010001) & 0x00800080;
    const unsigned bits = magnitude << 7 | (wide & 0x00800080) << 8 | nan * 0xf8;
    return __hmul2(*(const __half2 *)&bits, __float2half2_rn(256.0f));
#endif
}
__device__ __forceinline__ float e4m3_to_float(unsigned char x) { return __low2float(e4m3_pair(x)); }

__device__ __forceinline__ float load_any(int type, const char *p) {
    switch (type) {
        case SANTA_F32: return *(const float *)p;
        case SANTA_F16: return __half2float(*(const __half *)p);
        case SANTA_BF16: return __bfloat162float(*(const __nv_bfloat16 *)p);
        default: return e4m3_to_float(*(const unsigned char *)p);
    }
}

/* Number f of a row whose numbers are `step` bytes apart; q8_0 has blocks of a scale and 32
   int8. */
__device__ __forceinline__ float load_number(int type, const char *row, int f, i64 step) {
    if (type != SANTA_Q8_0) return load_any(type, row + f * step);
    const char *const quant = row + f / 32 * 34;
    return __half2float(*(const __half *)quant) * (float)((const signed char *)quant)[2 + f % 32];
}

/* The same, in kernels that are for plain loads: also e5m2, the upper byte of an f16, and q4_0,
   blocks of a scale and 32 halves of bytes, less 8: first the low ones. */
__device__ __forceinline__ float load_coded(int type, const char *row, int f, i64 step) {
    const unsigned char *const bytes = (const unsigned char *)row;
    if (type == SANTA_E5M2) return __half2float(__ushort_as_half((unsigned short)(bytes[f * step] << 8)));
    if (type != SANTA_Q4_0) return load_number(type, row, f, step);
    const char *const block = row + f / 32 * 18;
    const int byte = ((const unsigned char *)block)[2 + f % 16];
    return __half2float(*(const __half *)block) * (float)((f & 16 ? byte >> 4 : byte & 15) - 8);
}

__device__ __forceinline__ void store_any(int type, char *p, float f) {
    if (type == SANTA_F32) *(float *)p = f;
    else if (type == SANTA_F16) *(__half *)p = __float2half_rn(f);
    else *(__nv_bfloat16 *)p = __float2bfloat16_rn(f);
}

__device__ __forceinline__ float load_scale(int type, const char *p) {
    return type == SANTA_F32   ? *(const float *)p
           : type == SANTA_F16 ? __half2float(*(const __half *)p)
                               : __bfloat162float(*(const __nv_bfloat16 *)p);
}

/* What row j of K or V is multiplied with, where rows have scales; NaN on a bad page. Called,
   so that it does not swell its callers. Of tuned kernels those have any that ask for a table,
   see may_have_scales. */
__device__ __noinline__ float scale_of(const params &p, const row_scales &s, int b, int kv, int j) {
    const i64 at = row_offset(p, s.stride, b, j);
    return at == NO_ROW ? __int_as_float(0x7fc00000) : load_scale(s.type, s.data + at + kv * s.stride[2]);
}
__device__ __forceinline__ float key_scale(const params &p, int b, int kv, int j) {
    return p.k_scales.data ? scale_of(p, p.k_scales, b, kv, j) : 1.0f;
}
__device__ __forceinline__ float value_scale(const params &p, int b, int kv, int j) {
    return p.v_scales.data ? scale_of(p, p.v_scales, b, kv, j) : 1.0f;
}

/* Those of a block of 64 keys, by a warp: of keys lane and lane + 32. Outside begin .. end - 1
   that of the nearest row there, which is what is read; 1 on a bad page, which makes the row
   NaN elsewhere. */
__device__ __noinline__ float2 scales_of_block(const params &p, const row_scales &s, int b, int kv,
                                               int block, int begin, int end) {
    i64 at[2] = { NO_ROW, NO_ROW };
    float x[2];
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const int j = block * BLOCK + 32 * i + (int)(threadIdx.x & 31);
        at[0] = at[1];
        at[1] = begin >= end ? NO_ROW : row_offset(p, s.stride, b, min(max(j, begin), end - 1));
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        x[i] = at[i] == NO_ROW ? 1.0f : load_scale(s.type, s.data + at[i] + kv * s.stride[2]);
    return make_float2(x[0], x[1]);
}

/* On their way to L2, those of keys that a sequence has. */
__device__ __noinline__ void send_scales(const params &p, const row_scales &s, int b, int kv, int block,
                                         int begin, int end) {
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const int j = block * BLOCK + 32 * i + (int)(threadIdx.x & 31);
        const i64 at = j < begin || j >= end ? NO_ROW : row_offset(p, s.stride, b, j);
        if (at != NO_ROW) prefetch(s.data + at + kv * s.stride[2]);
    }
}

/* One number that cannot be loaded in fours. Called, so that it does not swell its callers. */
__device__ __noinline__ float load_one(int type, const char *row, int f, i64 step) {
    return load_number(type, row, f, step);
}

__device__ __forceinline__ float2 unpack_pair(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 unpack_pair(__half2 x) { return __half22float2(x); }

template <typename T> struct pair_of;
template <> struct pair_of<__nv_bfloat16> { typedef __nv_bfloat162 type; };
template <> struct pair_of<__half> { typedef __half2 type; };

/* N numbers from the words they lie in. */
template <typename T, int N> __device__ __forceinline__ void unpack_words(const unsigned *w, float *f) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        float2 y;
        if constexpr (sizeof(T) == 4) y = make_float2(__uint_as_float(w[i]), __uint_as_float(w[i + 1]));
        else if constexpr (sizeof(T) == 2) y = unpack_pair(*(const typename pair_of<T>::type *)&w[i / 2]);
        else y = __half22float2(e4m3_pair((unsigned short)(w[i / 4] >> (8 * (i & 3)))));
        f[i] = y.x; f[i + 1] = y.y;
    }
}

/* N = 4 adjacent values of V as they lie in memory: one load. */
template <typename T, int N> struct values {
    unsigned w[N * sizeof(T) / 4];
    __device__ __forceinline__ void load(const char *p) {
        if constexpr (sizeof(w) == 16) {
            uint4 x = __ldg((const uint4 *)p);
            w[0] = x.x;
            w[1] = x.y;
            w[2] = x.z;
            w[3] = x.w;
        } else if constexpr (sizeof(w) == 8) {
            uint2 x = __ldg((const uint2 *)p);
            w[0] = x.x;
            w[1] = x.y;
        } else w[0] = __ldg((const unsigned *)p);
    }
    __device__ __forceinline__ void unpack(float *f) const { unpack_words<T, N>(w, f); }
};

/* The 16 bytes of V that a lane took from the ring. */
template <typename T> __device__ __forceinline__ void unpack16(uint4 x, float *f) {
    const unsigned w[4] = { x.x, x.y, x.z, x.w };
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 y = unpack_pair(*(const typename pair_of<T>::type *)&w[i]);
            f[2 * i] = y.x; f[2 * i + 1] = y.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 y = __half22float2(e4m3_pair((unsigned short)(w[i / 2] >> (16 * (i & 1)))));
            f[2 * i] = y.x; f[2 * i + 1] = y.y;
        }
    }
}

/* The index of a slot and KV head, as santa__index of santa.h has it. Behind its words of the
   header k_index is told what to do. */
enum { INDEX_MAGIC = 0x53414150 };
enum { I_MAGIC, I_BUCKETS, I_CAPACITY, I_HELD, I_SORTED, I_STEP, I_FROM, I_TO };
enum index_step { INDEX_AS_IT_IS, INDEX_HOLD, INDEX_SORT, INDEX_BAD };
struct key_index { int *header, *offset, *next, *key; unsigned short *bucket; };

/* False: there is no such slot. */
__device__ __forceinline__ bool find_index(const params &p, int b, int kv, key_index &x) {
    const int slot = p.slots ? p.slots[b] : b;
    if ((unsigned)slot >= (unsigned)p.num_slots) return false;
    x.header = p.index + ((i64)slot * p.all_kv_heads + kv) * p.index_ints;
    x.offset = x.header + 16;
    x.next = x.offset + p.buckets + 1;
    x.key = x.next + p.buckets + 1;
    x.bucket = (unsigned short *)(x.key + p.capacity);
    return true;
}

/* Whether an index was begun for these sizes, but for its offsets. */
__device__ __forceinline__ bool has_header(const params &p, const key_index &x) {
    const int magic = x.header[I_MAGIC], buckets = x.header[I_BUCKETS], capacity = x.header[I_CAPACITY],
              held = x.header[I_HELD], sorted = x.header[I_SORTED];
    return (magic == INDEX_MAGIC) & (buckets == p.buckets) & (capacity == p.capacity) & (held >= 0)
         & (held <= p.capacity) & (sorted == held / BLOCK * BLOCK);
}

/* The far keys: those of an index but for the ones at either end that are always read. Of an
   invalid index none, and the others are not read either. */
__device__ __forceinline__ list_range far_keys_of(const params &p, const key_index &x, int begin, int end) {
    const int from = begin + min(p.sink_tokens, end - begin);
    return { from, max(min(end - min(p.local_tokens, end), x.header[I_SORTED]) / BLOCK * BLOCK, from) };
}
/* With a copy of K they are keys that it holds. */
__device__ __forceinline__ list_range copied_far_keys_of(const params &p, const key_index &x, int b,
                                                         int begin, int end) {
    const list_range r = far_keys_of(p, x, begin, end);
    const int to = p.proxy_lens ? min(r.from, max(p.proxy_lens[b], 0) / BLOCK * BLOCK) : r.from;
    return { r.to, max(to, r.to) };
}
__device__ __forceinline__ list_range far_keys(const params &p, int b, int kv, int begin, int end) {
    key_index x;
    if (!find_index(p, b, kv, x) || !has_header(p, x)) return { begin, end };
    return p.scans ? copied_far_keys_of(p, x, b, begin, end) : far_keys_of(p, x, begin, end);
}

/* -------------------------------------------------------------------------------- >>scoring */

template <typename T> constexpr bool f16 = false;
template <> constexpr bool f16<__half> = true;

/* Calls f with a number of the type that the tensor cores multiply. f16 and bf16 share kernels:
   they differ in a few instructions, which stand there for both. */
template <typename K, typename F> __device__ __forceinline__ void with_type(const params &p, F f) {
    if constexpr (eight_bits<K>) f(__half());
    else if (__builtin_expect(p.k_type == SANTA_F16, 0)) f(__half());
    else f(__nv_bfloat16());
}

/* The same in k_scores and k_dense, whose K may be e5m2. It becomes f16. */
struct from_e5m2 { };
template <typename T> struct product_of { typedef T type; };
template <> struct product_of<from_e5m2> { typedef __half type; };
template <typename T> constexpr bool is_e5m2 = false;
template <> constexpr bool is_e5m2<from_e5m2> = true;
template <typename K, typename F> __device__ __forceinline__ void with_numbers(const params &p, F f) {
    if constexpr (std::is_same<K, any_eight>::value)
        if (p.k_type == SANTA_E5M2) return f(from_e5m2());
    with_type<K>(p, f);
}
/* Bytes 2 i and 2 i + 1 of x. */
template <typename T> __device__ __forceinline__ unsigned pair_of_bytes(unsigned x, int i) {
    if constexpr (is_e5m2<T>) return __byte_perm(x, 0, i ? 0x3424 : 0x1404);
    else {
        const __half2 y = e4m3_pair((unsigned short)(i ? x >> 16 : x));
        return *(const unsigned *)&y;
    }
}

/* The scores of one block of 64 keys for up to 8 query heads, by one warp. A dot product does
   not care in which order the feature index runs: lane (r = lane / 4, c = lane % 4) loads 16
   adjacent bytes of a K row and feeds them to the mma as the fragment columns that are its own,
   with q permuted alike; so scores need no shared memory. Nor does it matter which key sits in
   which row of the M side: rows r and r + 8 of step i hold keys 8r + 2i and 8r + 2i + 1, so
   that a lane ends with 8 adjacent keys, s[e][0..7], of the heads 2c + e. C: 32-feature chunks;
   LO: q in two parts, for a q that is not exact in K's type. */
template <typename K, int C, bool LO> struct query {
    unsigned hi[2 * C][2], lo[LO ? 2 * C : 1][2];
    float unscale;                                  /* e4m3: q is near 1 when it is rounded to f16 */
};

/* A pass of k_scores has several query rows, p.rows, if a group's heads for each of them fit in
   PASS_HEADS: slot n is head n % group of row n / group. Otherwise slot n is head n of a
   slice. */
struct slot_place { int row, head; };
__device__ __forceinline__ slot_place slot_of(const params &p, int n) {
    const int row = p.rows > 1 ? (int)p.by_group.quotient((unsigned)n) : 0;
    return { row, n - row * p.group };
}

/* Features that lane c holds in 8-wide piece i: two pieces of 8 per 64 features for e4m3 (16
   bytes), one per 32 otherwise. */
template <typename K> __device__ __forceinline__ int feature_of(int i, int c) {
    return eight_bits<K> ? 64 * (i / 2) + 16 * c + 8 * (i % 2) : 32 * i + 8 * c;
}

/* A lane's features of a row of 16-bit q, as they lie in memory; zeros of a row that is not
   there. */
template <typename K, int C>
__device__ __forceinline__ void load_query16(const params &p, const char *row, bool there, uint4 (&x)[C]) {
    const int c = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < C; i++) x[i] = make_uint4(0, 0, 0, 0);
    if (!there) return;
    if (p.vector_q) {
#pragma unroll
        for (int i = 0; i < C; i++) {
            const int f = feature_of<K>(i, c);
            if (f < p.d) x[i] = *(const uint4 *)(row + 2 * f);        /* p.d is a multiple of 8 */
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < C; i++) {                   /* for a rare q one piece of code */
        const int f = feature_of<K>(i, c);
        const char *from = row + f * p.q_stride[3];
        unsigned w[4] = { 0, 0, 0, 0 };
        if (f < p.d)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                w[k] = *(const unsigned short *)from;
                w[k] |= (unsigned)*(const unsigned short *)(from + p.q_stride[3]) << 16;
                from += 2 * p.q_stride[3];
            }
#pragma unroll
        for (int k = 0; k < C - 1; k++) x[k] = x[k + 1];
        x[C - 1] = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* Sizes of numbers by their bits: in bits 24 on the exponent and 1, but 0 of an infinity or
   NaN. */
__device__ __forceinline__ unsigned largest_exponent(unsigned most, unsigned x) {
    return max(most, 2u * x + (1u << 24));
}
/* What q is multiplied with to be f16 in one part or two: a power of two, exact to 2^-39 of the
   largest finite number; one for all heads of a warp: unscale undoes it after the mma. From
   2^-112 on both powers are floats. */
__device__ __forceinline__ float power_for_f16(unsigned most, float &unscale) {
    most = __reduce_max_sync(FULL, max(most, 16u << 24));
    const unsigned above = (most >> 24) - 142u;     /* all are below 2^(above + 15) */
    unscale = __uint_as_float((127u + above) << 23);
    return __uint_as_float((127u - above) << 23);
}

template <typename K, int C, bool LO>
__device__ __forceinline__ void load_query(const params &p, int b, int head, int heads,
                                           query<K, C, LO> &q) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    const slot_place slot = slot_of(p, min(r, heads - 1));
    const char *row = p.q + b * p.q_stride[0] + (p.q_index + slot.row) * p.q_stride[1]
                    + (head + slot.head) * p.q_stride[2];
    q.unscale = 1.0f;
    if (!LO && !eight_bits<K>) {                    /* same type as K: as it is */
        uint4 x[C];
        load_query16<K>(p, row, r < heads, x);
#pragma unroll
        for (int i = 0; i < C; i++) {
            q.hi[2 * i][0] = x[i].x; q.hi[2 * i][1] = x[i].y;
            q.hi[2 * i + 1][0] = x[i].z; q.hi[2 * i + 1][1] = x[i].w;
        }
        return;
    }
    float x[C][8], up = 1.0f;
    if (LO && p.q_type == SANTA_F32) {
#pragma unroll
        for (int i = 0; i < 8 * C; i++) x[i / 8][i % 8] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < C; i++) {
            const int f = feature_of<K>(i, c);
#pragma unroll
            for (int e = 0; e < 8 * (C - 1); e++) x[e / 8][e % 8] = x[e / 8 + 1][e % 8];
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[C - 1][e]
                    = r < heads && f < p.d ? *(const float *)(row + (f + e) * p.q_stride[3]) : 0.0f;
        }
    } else {
        uint4 y[C];
        load_query16<K>(p, row, r < heads, y);
#pragma unroll
        for (int i = 0; i < C; i++)
            if (p.q_type == SANTA_F16) unpack16<__half>(y[i], x[i]);
            else unpack16<__nv_bfloat16>(y[i], x[i]);
    }
    if (eight_bits<K> && !(p.q_parts && !LO)) {
        unsigned most = 0;
#pragma unroll
        for (int i = 0; i < 8 * C; i++) most = largest_exponent(most, __float_as_uint(x[i / 8][i % 8]));
        up = power_for_f16(most, q.unscale);
    }
    with_type<K>(p, [&](auto type) {
        typedef decltype(type) T;
#pragma unroll
        for (int i = 0; i < C; i++) {
            T hi[8], lo[8];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                hi[e] = (T)(up * x[i][e]);
                lo[e] = (T)(up * x[i][e] - (float)hi[e]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                q.hi[2 * i + e / 2][e % 2] = *(unsigned *)&hi[2 * e];
                if (LO) q.lo[LO ? 2 * i + e / 2 : 0][e % 2] = *(unsigned *)&lo[2 * e];
            }
        }
    });
}

/* A q in two parts, a piece at a time: little code, where such a q is rare. K has 16 bits. f16
   has not the range of such a q, whose largest number is looked for first. */
template <typename K, int C>
__device__ __forceinline__ void load_query_by_piece(const params &p, int b, int head, int heads,
                                                    query<K, C, true> &q) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    const char *row = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                    + (head + min(r, heads - 1)) * p.q_stride[2];
    q.unscale = 1.0f;
    float up = 1.0f;
    if (p.k_type == SANTA_F16) {                    /* q is f32 or bf16; p.d is a multiple of 8 */
        unsigned most = 0;
#pragma unroll 1
        for (int f = c; f < p.d; f += 8) {
            const char *const from = row + f * p.q_stride[3];
            unsigned x[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const char *const at = from + 4 * e * p.q_stride[3];
                x[e] = p.q_type == SANTA_F32 ? *(const unsigned *)at : *(const unsigned short *)at << 16;
            }
            most = largest_exponent(largest_exponent(most, x[0]), x[1]);
        }
        up = power_for_f16(most, q.unscale);
    }
#pragma unroll
    for (int i = 0; i < 4 * C; i++) q.hi[i / 2][i % 2] = q.lo[i / 2][i % 2] = 0;
#pragma unroll 1
    for (int i = 0; i < C; i++) {
        const int f = feature_of<K>(i, c);
        const bool have = r < heads && f < p.d;
        const char *const from = row + f * p.q_stride[3];
        float x[8];
        if (p.q_type == SANTA_F32) {
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = have ? *(const float *)(from + e * p.q_stride[3]) : 0.0f;
        } else {
            unsigned short y[8];
#pragma unroll
            for (int e = 0; e < 8; e++)
                y[e] = have ? *(const unsigned short *)(from + e * p.q_stride[3]) : (unsigned short)0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[e] = p.q_type == SANTA_F16 ? __half2float(__ushort_as_half(y[e]))
                                             : __uint_as_float((unsigned)y[e] << 16);
        }
#pragma unroll
        for (int k = 0; k < 4 * (C - 1); k++) {
            q.hi[k / 2][k % 2] = q.hi[k / 2 + 2][k % 2];
            q.lo[k / 2][k % 2] = q.lo[k / 2 + 2][k % 2];
        }
        with_type<K>(p, [&](auto type) {
            typedef decltype(type) T;
            T hi[8], lo[8];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float y = f16<T> ? up * x[e] : x[e];
                hi[e] = (T)y;
                lo[e] = (T)(y - (float)hi[e]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                q.hi[2 * C - 2 + e / 2][e % 2] = *(unsigned *)&hi[2 * e];
                q.lo[2 * C - 2 + e / 2][e % 2] = *(unsigned *)&lo[2 * e];
            }
        });
    }
}

/* The same, or the slots of a q in parts, see k_query_parts. */
template <typename K, int C>
__device__ __forceinline__ void load_slots(const params &p, int b, int kv, int slice, int head, int heads,
                                           query<K, C, false> &q) {
    float unscale = 1.0f;
    if (__builtin_expect(p.q_parts, 0)) {
        wait_for_previous();
        const int item = kv * p.q_slices + min(slice, p.q_slices - 1);
        unscale = p.q_unscale[b * p.kv_heads * p.q_slices + item];
        head = item * PASS_HEADS;
        heads = PASS_HEADS;
    }
    load_query(p, b, head, heads, q);
    if (p.q_parts) q.unscale = unscale;
}

/* One 16-byte piece of two K rows against q. */
template <typename T, typename K, int C>
__device__ __forceinline__ void piece_dots(const query<K, C, false> &q, uint4 a, uint4 d, int j,
                                           float acc[4]) {
    if constexpr (eight_bits<K>) {
#pragma unroll
        for (int w = 0; w < 4; w++) {                                 /* 4 features of each row */
            const unsigned ua = w == 0 ? a.x : w == 1 ? a.y : w == 2 ? a.z : a.w;
            const unsigned ud = w == 0 ? d.x : w == 1 ? d.y : w == 2 ? d.z : d.w;
            const unsigned a0 = pair_of_bytes<T>(ua, 0), a2 = pair_of_bytes<T>(ua, 1);
            const unsigned a1 = pair_of_bytes<T>(ud, 0), a3 = pair_of_bytes<T>(ud, 1);
            mma(acc, a0, a1, a2, a3, q.hi[4 * j + w][0], q.hi[4 * j + w][1], __half());
        }
    } else {
        mma(acc, a.x, d.x, a.y, d.y, q.hi[2 * j][0], q.hi[2 * j][1], T());
        mma(acc, a.z, d.z, a.w, d.w, q.hi[2 * j + 1][0], q.hi[2 * j + 1][1], T());
    }
}

/* The same against one of q's parts, for either type of two bytes. */
template <typename T, typename K, int C>
__device__ __forceinline__ void piece_products(const unsigned (&q)[2 * C][2], uint4 a, uint4 d, int j,
                                               float acc[4]) {
    query<K, C, false> part;
#pragma unroll
    for (int i = 0; i < 2 * C; i++)
        for (int k = 0; k < 2; k++) part.hi[i][k] = q[i][k];
    piece_dots<T>(part, a, d, j, acc);
}

/* Scores of a block of any K, number by number, where keys are few; whether a page is bad. row:
   of q, two heads. */
__device__ __forceinline__ bool number_dots(const params &p, const char *const (&row)[2], int b, int kv,
                                            int block, int begin, int end, float s[2][8]) {
    const int first = block * BLOCK + 8 * ((threadIdx.x & 31) >> 2);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 8; i++) s[0][i] = s[1][i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {                   /* scores move down */
        i64 at = row_offset(p, p.k_stride, b, min(max(first + i, begin), end - 1));
        if (at == NO_ROW) { bad = true; at = 0; }
        const char *const key = p.k + at + kv * p.k_stride[2];
        float y[2] = { 0.0f, 0.0f };
#pragma unroll 1
        for (int f = 0; f < p.d; f++) {
            const float x = load_coded(p.k_type, key, f, p.k_stride[3]);
            y[0] += x * load_any(p.q_type, row[0] + f * p.q_stride[3]);
            y[1] += x * load_any(p.q_type, row[1] + f * p.q_stride[3]);
        }
#pragma unroll
        for (int k = 0; k < 7; k++) {
            s[0][k] = s[0][k + 1];
            s[1][k] = s[1][k + 1];
        }
        s[0][7] = y[0];
        s[1][7] = y[1];
    }
    return bad;
}

/* That of key i of the lane's 8, see query; of what scales_of_block gives each. */
__device__ __forceinline__ float lane_scale(float2 own, int i) {
    const int key = ((threadIdx.x & 31) >> 2 << 3) + i;
    const float low = __shfl_sync(FULL, own.x, key & 31), high = __shfl_sync(FULL, own.y, key & 31);
    return key < 32 ? low : high;
}

/* What number_dots and plain_dots have of a block, times the scales of its keys. */
__device__ __forceinline__ void scale_keys(const params &p, int b, int kv, int block, int begin, int end,
                                           float s[2][8]) {
    if (!p.k_scales.data) return;
    const float2 own = scales_of_block(p, p.k_scales, b, kv, block, begin, end);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float scale = lane_scale(own, i);
        s[0][i] *= scale;
        s[1][i] *= scale;
    }
}

/* Called, so that it does not swell its callers. The product in f64 becomes the float x / cap:
   a quotient of floats is further from the middle of two than the product is off. A division
   would be a function beside each kernel, of 1.9 kB. */
__device__ __noinline__ float cap_score(float x, float cap, double per_cap) {
    return cap * tanhf((float)((double)x * per_cap));
}

/* The same within 4 ulp, where it is done for each key of a tuned kernel. per_cap: a float here;
   the quick division makes 0 of all that is divided by more than 2^126. */
__device__ __forceinline__ float quick_cap(float x, float cap, float per_cap) {
    const float y = x * per_cap, a = fabsf(y), e = pow2(-2.0f * LOG2E * a), z = a * a;
    const float series = fmaf(fmaf(fmaf(62.0f / 2835.0f, z, -17.0f / 315.0f), z, 2.0f / 15.0f), z,
                              -1.0f / 3.0f);
    return cap * copysignf(a < 0.3f ? fmaf(a * z, series, a) : __fdividef(1.0f - e, 1.0f + e), y);
}

/* With p.special, of heads 2 c + e and keys key + h: the sum of q's parts, soft cap and ALiBi.
   Where a part has fewer slots than 8, heads are there again in the others. A key before
   `begin` or behind `last` is the nearest one there, as its row is. */
__device__ __forceinline__ void finish_products(const params &p, float unscale, int head, int heads,
                                                int key, int position, float y[2][2],
                                                int begin = INT32_MIN, int last = INT32_MAX) {
    const int c = threadIdx.x & 3;
    /* an infinity of K times a lower part may be no number, and adds nothing */
    const auto sum = [](float high, float low) { return fabsf(high) <= FLT_MAX ? high + low : high; };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (p.part_shift == 0) y[0][h] = y[1][h] = sum(y[0][h], y[1][h]);
#pragma unroll
        for (int o = 1; o < 3; o++)
            if (p.part_shift <= o)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float other = __shfl_xor_sync(FULL, y[e][h], o);
                    y[e][h] = c & o ? sum(other, y[e][h]) : sum(y[e][h], other);
                }
    }
    if (p.soft_cap == 0.0f && !p.slopes) return;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {                   /* one piece of code for all: they take turns */
        const int own = (2 * c + i / 2) & ((1 << p.part_shift) - 1);
        float x = y[0][0] * (p.scale * unscale);
        if (p.soft_cap > 0.0f) x = quick_cap(x, p.soft_cap, p.quick_per_cap);
        if (p.slopes) {
            const int at = min(max(key + i % 2, begin), last);
            x += (own < heads ? p.slopes[head + own] : 0.0f) * (float)(at - position);
        }
        y[0][0] = y[0][1];
        y[0][1] = y[1][0];
        y[1][0] = y[1][1];
        y[1][1] = x;
    }
}

/* Where finish_products has not had it. Not told by block_scale: a scale may be 1. */
__device__ __forceinline__ float rest_of_scale(const params &p, float unscale) {
    return p.soft_cap > 0.0f || p.slopes ? 1.0f : unscale;
}
/* The same of a lane's 8 keys, which move down. */
__device__ __forceinline__ void finish_block(const params &p, float unscale, int head, int heads, int block,
                                             int position, float s[2][8]) {
    if (__builtin_expect(!p.special, 1)) return;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float y[2][2] = { { s[0][0], s[0][1] }, { s[1][0], s[1][1] } };
        finish_products(p, unscale, head, heads, block * BLOCK + 8 * ((threadIdx.x & 31) >> 2) + 2 * i,
                        position, y);
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int k = 0; k < 6; k++) s[e][k] = s[e][k + 2];
            s[e][6] = y[e][0];
            s[e][7] = y[e][1];
        }
    }
}

/* Scale, extras and mask, in base 2 (s * log2 e); returns the block's maximum per head over the
   warp's 64 keys. */
template <bool EXTRA>
__device__ __forceinline__ void block_finish(const params &p, float unscale, int head, int heads, int block,
                                             int begin, int end, int position, bool bad, float s[2][8],
                                             float m[2]) {
    const int lane = threadIdx.x & 31, first = block * BLOCK + 8 * (lane >> 2), c = lane & 3;
    const int margin = p.rows - 1;                  /* the rows' ranges differ by so much at most */
    const bool whole = block * BLOCK >= begin + margin && (block + 1) * BLOCK <= end - margin;
    const float scale = EXTRA ? p.scale * unscale : p.block_scale * unscale * LOG2E;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float slope = EXTRA && p.slopes && 2 * c + e < heads ? p.slopes[head + 2 * c + e] : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = s[e][i] * scale;
            if (EXTRA) {
                if (p.soft_cap > 0.0f) x = cap_score(x, p.soft_cap, p.per_cap);
                x = (x + slope * (float)(first + i - position)) * LOG2E;
            }
            s[e][i] = x;
        }
    }
    if (bad) for (int e = 0; e < 2; e++) s[e][0] = __int_as_float(0x7fc00000);
    if (!whole) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int from = begin, to = end;
            bool here = bad;
            if (p.rows > 1) {
                const int at = position + slot_of(p, 2 * c + e).row;
                if (p.causal) to = min(end, max(at + 1, 0));
                if (p.window > 0 && at >= p.window) from = max(begin, (int)(at - p.window + 1));
                /* a page that only other rows use */
                if (first >= to || first + 8 <= from) here = false;
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (first + i < from || first + i >= to) s[e][i] = MASKED;
            if (here) s[e][0] = __int_as_float(0x7fc00000);
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        m[e] = MASKED;                              /* NaN is left out here and caught by the sum */
#pragma unroll
        for (int i = 0; i < 8; i++) m[e] = fmaxf(m[e], s[e][i]);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) m[e] = fmaxf(m[e], __shfl_xor_sync(FULL, m[e], o));
    }
}

/* -------------------------------------------------------------------------- >>scores-kernel */

/* Both scores kernels write, for each query head and block of 64 keys, the highest score and
   the sum of u = exp(score - highest), and in the stash every u. A warp owns a block of one KV
   head and a slice of up to 8 of its query heads: warp w has work w.
   Reads, per warp: 64 rows of K, up to 8 of q. Writes: heads * (64 stash entries + 8 bytes).
   Flops, per warp: 2 * 64 * 8 * d on tensor cores; in a group of 4 half of the 8 are empty. */

/* The work of warp w: neighbouring warps share a block of all KV heads in token-major memory,
   or follow one head in head-major memory. */
__device__ __forceinline__ bool locate(const params &p, unsigned w, int &b, int &kv, int &slice,
                                       int &block) {
    if (w >= p.work) return false;
    unsigned rest = p.by_slices.quotient(w), at, batch, other;
    slice = (int)(w - rest * p.by_slices.d);
    w = rest;
    rest = p.by_inner.quotient(w);
    at = w - rest * p.by_inner.d;
    batch = p.by_outer.quotient(rest);
    other = rest - batch * p.by_outer.d;
    b = (int)batch;
    kv = (int)(p.heads_inner ? at : other);
    block = (int)(p.heads_inner ? other : at);
    return true;
}

/* Where the 64 entries of a block start. */
__device__ __forceinline__ i64 stash_entry(const params &p, int b, int head, int block) {
    return (((i64)b * p.heads + head) * p.blocks + block) * BLOCK;
}

/* Turns the lane's scores (8 keys, 2 heads) into u, writes the stash and, once per block, or
   tile of fewer keys, the (max, sum) pairs. */
__device__ __forceinline__ void write_block(const params &p, int b, int kv, int slice, int block, int heads,
                                            u64 key, float s[2][8], const float m[2]) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    const int head = kv * p.group + slice * p.slice_heads;
    const int reach = 4 << (p.unit_shift - 3);      /* of the lanes that share a unit */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int h = 2 * c + e;
        float most = m[e];
        if (__builtin_expect(reach < 32, 0)) {
            most = MASKED;
#pragma unroll
            for (int i = 0; i < 8; i++) most = fmaxf(most, s[e][i]);
#pragma unroll 1
            for (int o = 4; o < reach; o <<= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, o));
        }
        /* an empty block gives zeros, or NaN if it held one */
        const float top = most < MASK_LIMIT ? 0.0f : most;
        float u[8];
#pragma unroll
        for (int i = 0; i < 8; i++) u[i] = pow2(s[e][i] - top);
        float sum = ((u[0] + u[1]) + (u[2] + u[3])) + ((u[4] + u[5]) + (u[6] + u[7]));
        if (!p.raw)
#pragma unroll
            for (int i = 0; i < 8; i++) s[e][i] = u[i];
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) {
            const float other = __shfl_xor_sync(FULL, sum, o);
            if (o < reach) sum += other;
        }
        if (h >= heads) continue;
        const slot_place slot = slot_of(p, h);
        const i64 row = ((i64)slot.row * p.batch + b) * p.heads + head + slot.head;
        const i64 at = (row * p.blocks + block) * BLOCK + 8 * r;
        if (p.stash_type == SANTA_STASH_U8) {
            /* rounded up with the probability of the remainder: unbiased; 16 random bits per
               key, which ranks count from the context's start */
            const int first = p.ranks && p.context_lens && !p.copied ? p.first_key / BLOCK : 0;
            uint4 w = philox(key, (unsigned)((first + block) * 8 + r), random_head(p, head + slot.head),
                             (unsigned)(p.q_index + slot.row), 3);
            const unsigned bits[4] = { w.x, w.y, w.z, w.w };
            unsigned n[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                /* 1 + dither by its bits; 2^23 - 1 more, rounded down, leaves the integer in
                   the low byte. The product is rounded down, too: 255 and the largest dither
                   were 256, whose byte is 0 */
                const unsigned d = 0x3f800000u
                                 | (i & 1 ? bits[i / 2] >> 16 << 7 : (bits[i / 2] & 0xffffu) << 7);
                n[i] = __float_as_uint(
                    __fadd_rd(__fmaf_rd(s[e][i], 255.0f, __uint_as_float(d)), 8388607.0f));
            }
            *(uint2 *)(p.stash + at) = make_uint2(
                __byte_perm(__byte_perm(n[0], n[1], 0x0040), __byte_perm(n[2], n[3], 0x0040), 0x5410),
                __byte_perm(__byte_perm(n[4], n[5], 0x0040), __byte_perm(n[6], n[7], 0x0040), 0x5410));
        } else if (p.stash_type == SANTA_STASH_F16) {
            __half2 out[4];
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = __floats2half2_rn(s[e][2 * i], s[e][2 * i + 1]);
            *(uint4 *)(p.stash + 2 * at) = *(uint4 *)out;
        } else {
            *(float4 *)(p.stash + 4 * at) = make_float4(s[e][0], s[e][1], s[e][2], s[e][3]);
            *(float4 *)(p.stash + 4 * at + 16) = make_float4(s[e][4], s[e][5], s[e][6], s[e][7]);
        }
        if ((4 * r & (reach - 1)) == 0)
            p.block_sums[((row * p.blocks + block) * BLOCK + 8 * r) >> p.unit_shift]
                = make_float2(most, sum);
    }
}

/* The gather kernel's counters, before its CTAs can count (they wait for this whole grid). */
__device__ __forceinline__ void zero_arrivals(const params &p) {
    const i64 step = (i64)gridDim.x * blockDim.x;
#pragma unroll 1
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.arrivals; i += step) p.arrived[i] = 0;
}

/* A q in p.q_parts numbers of the type that tensor cores multiply K as, for k_scores and
   k_dense. Slots that a group leaves empty have them: slot n is part n >> part_shift of head n
   % (1 << part_shift). Two of f16 are f32 but for two bits, two of bf16 have 16 bits, three are
   exact. A power of two for all heads of a slice keeps f16 in range.
   Grid: (KV head x slice, batch), 8 warps. Reads q, writes 8 rows. Bound by latency; those
   kernels come beside it. Barrier: for the maximum. */
__global__ void __launch_bounds__(SCORE_WARPS * 32) k_query_parts(const __grid_constant__ params p) {
    SHARED(shared, parts_memory);
    const int lane = threadIdx.x & 31, warp = this_warp(), b = blockIdx.y;
    const int kv = (int)blockIdx.x / p.q_slices, slice = (int)blockIdx.x - kv * p.q_slices,
              heads = min(p.group - slice * p.slice_heads, p.slice_heads);
    const char *const rows = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                           + (kv * p.group + slice * p.slice_heads) * p.q_stride[2];
    const auto number = [&](int own, int f) {
        return load_one(p.q_type, rows + own * p.q_stride[2], f, p.q_stride[3]);
    };
    launch_dependents();
    float m = 0.0f;
    if (warp < heads)
#pragma unroll 1
        for (int f = lane; f < p.d; f += 32) {
            const float x = fabsf(number(warp, f));
            if (x <= FLT_MAX) m = fmaxf(m, x);
        }
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
    if (lane == 0) shared.top[warp] = m;
    __syncthreads();
    for (int i = 0; i < SCORE_WARPS; i++) m = fmaxf(m, shared.top[i]);
    /* below 2^14, where f16 has room on either side; bf16 has f32's range but for the
       largest */
    const int above = (int)(__float_as_uint(m) >> 23);
    const bool wide = p.k_type == SANTA_BF16;
    const int down = wide ? max(above, 200) - 200 : min(max(above, 40), 254) - 140;
    const float up = __uint_as_float((unsigned)(127 - down) << 23);
    const i64 item = b * p.kv_heads * p.q_slices + blockIdx.x;
    if (threadIdx.x == 0) p.q_unscale[item] = __uint_as_float((unsigned)(127 + down) << 23);
    const int own = warp & ((1 << p.part_shift) - 1), part = warp >> p.part_shift;
    unsigned short *const out = (unsigned short *)p.q_slots + (item * PASS_HEADS + warp) * p.d;
#pragma unroll 1
    for (int f = lane; f < p.d; f += 32) {
        float x = own < heads && part < p.q_parts ? up * number(own, f) : 0.0f, y;
#pragma unroll 1
        for (int k = 0;; k++) {
            const unsigned short bits = wide ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                             : __half_as_ushort(__float2half_rn(x));
            out[f] = bits;
            if (k == part) break;
            y = wide ? __uint_as_float((unsigned)bits << 16) : __half2float(__ushort_as_half(bits));
            x = fabsf(y) <= FLT_MAX ? x - y : 0.0f;
        }
    }
}

/* First tokens beside a window: behind the scores of the window the blocks that hold first
   tokens, with the window's keys of such a block; those between hold nothing.
   Grid: as k_scores_plain, whose work a warp has. Reads the first tokens of K once a slice, by
   plain loads: they are few. */
__global__ void __launch_bounds__(SCORE_WARPS * 32) k_first_scores(const __grid_constant__ params p) {
    int b, kv, slice, block;
    if (!locate(p, blockIdx.x * SCORE_WARPS + (unsigned)this_warp(), b, kv, slice, block)) return;
    const key_gap r = gap_of(p, b);
    const int head = kv * p.group + slice * p.slice_heads,
              heads = min(p.group - slice * p.slice_heads, p.slice_heads), from = block * BLOCK,
              to = from + BLOCK;
    /* what the window has alone stays */
    if (from >= r.end || to <= r.begin || (r.position < p.first_window && p.first_window > 0)
        || (from >= r.gap && to > r.gap_end && r.gap_end < r.end))
        return;
    float s[2][8], m[2] = { MASKED, MASKED };
#pragma unroll
    for (int i = 0; i < 8; i++) s[0][i] = s[1][i] = MASKED;
    if (from < r.gap) {
        const char *rows[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            rows[e] = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                    + (head + min(2 * ((int)threadIdx.x & 3) + e, heads - 1)) * p.q_stride[2];
#pragma unroll 1
        for (int part = 0; part < (to > r.gap_end ? 2 : 1); part++) {
            const int begin = part ? r.gap_end : r.begin, end = part ? r.end : r.gap;
            float x[2][8], top[2];
            if (begin >= end || from >= end || to <= begin) continue;
            const bool bad = number_dots(p, rows, b, kv, block, begin, end, x);
            scale_keys(p, b, kv, block, begin, end, x);
            block_finish<true>(p, 1.0f, head, heads, block, begin, end, r.position, bad, x, top);
#pragma unroll
            for (int e = 0; e < 2; e++) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (s[e][i] < MASK_LIMIT || x[e][i] != x[e][i]) s[e][i] = x[e][i];
                m[e] = fmaxf(m[e], top[e]);
            }
        }
    }
    write_block(p, b, kv, slice, block, heads, p.stash_type == SANTA_STASH_U8 ? row_key<1>(p, b) : 0, s, m);
}

/* The ranges of k_list for dense with first tokens. Grid: (batch), 128 threads. */
__global__ void __launch_bounds__(128) k_first_ranges(const __grid_constant__ params p) {
    const key_gap r = gap_of(p, (int)blockIdx.x);
#pragma unroll 1
    for (int kv = (int)threadIdx.x; kv < (int)p.kv_heads; kv += 128)
        p.first_ranges[blockIdx.x * p.kv_heads + kv] = { r.gap, r.gap_end };
}

/* A warp's place in its blocks. A CTA owns a run of neighbouring blocks, so that it streams one
   region and keeps its queries. */
struct cursor { unsigned w; int b, kv, slice, block, begin, end, position; bool valid; const char *base; };

/* To the first needed block at or behind w. */
__device__ __forceinline__ void settle(const params &p, unsigned end, cursor &x) {
    for (;; x.w += SCORE_WARPS) {
        if (!(x.valid = x.w < end && locate(p, x.w, x.b, x.kv, x.slice, x.block))) return;
        key_range(p, x.b, x.begin, x.end, x.position, p.rows);
        if (x.block * BLOCK < x.end && (x.block + 1) * BLOCK > x.begin) return;
    }
}

/* A row's pieces of 16 bytes lie at piece ^ plain_piece(row), so that one piece of 8 rows is in
   different banks, and four of two neighbours; those of a head of q, too. Rows of blocks, whose
   numbers have no pieces, lie plain_piece(row) pieces further on instead. */
enum { PLAIN_PITCH = PLAIN_NUMBERS / 4 };
__device__ __forceinline__ int plain_piece(int row) { return (row & 1) << 2 | (row & 7) >> 1; }

/* A step of K or V: of the cursor's block rows 8 r + 2 i and then 8 r + 2 i + 1 for r from 0 to
   7, their numbers from `first` on. */
struct plain_step { bool of_v; int i, first, numbers; };

/* Row threadIdx.x % 16 of a step; NULL if no key is there. */
__device__ __forceinline__ const char *plain_row(const params &p, const cursor &x, const plain_step &at,
                                                 bool &bad) {
    const int m = threadIdx.x & 15, j = x.block * BLOCK + 8 * (m & 7) + 2 * at.i + (m >> 3);
    if (j < x.begin || j >= x.end) return nullptr;
    const i64 *const stride = at.of_v ? p.v_stride : p.k_stride;
    const i64 row = row_offset(p, stride, x.b, j);
    if (row == NO_ROW) { bad = true; return nullptr; }
    return (at.of_v ? p.v : p.k) + row + x.kv * stride[2];
}
__device__ __forceinline__ const char *row_of_lane(const char *row, int lane) {
    return (const char *)__shfl_sync(FULL, (u64)row, lane);
}
/* Lanes that share a row of so many pieces: 1 << this. */
__device__ __forceinline__ int lanes_shift(int pieces) { return pieces > 16 ? 5 : pieces > 8 ? 4 : 3; }

/* Bytes of n numbers of K or V, whole blocks. */
__device__ __forceinline__ int plain_bytes_of(const params &p, bool of_v, int n) {
    const int type = of_v ? p.v_type : p.k_type;
    return type == SANTA_Q8_0 ? n / 32 * 34 : type == SANTA_Q4_0 ? n / 32 * 18
                                                                 : n * (of_v ? p.v_size : p.k_size);
}

/* The step's rows on their way to slot, or into L2. */
__device__ __forceinline__ void send_plain(const params &p, const cursor &x, const plain_step &at,
                                           uint4 *slot, bool &bad) {
    const int lane = threadIdx.x & 31, staged = at.of_v ? p.staged_v : p.staged_k;
    const int bytes = plain_bytes_of(p, at.of_v, at.numbers), before = plain_bytes_of(p, at.of_v, at.first);
    const int pieces = bytes >> staged, shift = lanes_shift(pieces), piece = lane & ((1 << shift) - 1);
    const i64 *const stride = at.of_v ? p.v_stride : p.k_stride;
    const char *const data = at.of_v ? p.v : p.k;
    const bool whole = x.block * BLOCK >= x.begin && (x.block + 1) * BLOCK <= x.end;
    if (agreed(staged == 4 && whole && !p.table)) { /* the usual case: nothing but addresses */
        const i64 pitch = stride[1];
        const char *const base = data + x.b * stride[0] + x.kv * stride[2]
                               + (i64)(x.block * BLOCK + 2 * at.i) * pitch + before + 16 * piece;
        const bool have = piece < pieces;
        const auto copy = [&](int m) {
            copy16_or_zero(slot + m * PLAIN_PITCH + (piece ^ plain_piece(m)),
                           have ? base + (8 * (m & 7) + (m >> 3)) * pitch : data, have);
        };
        if (shift == 5)                             /* only f32 has so many pieces */
#pragma unroll
            for (int m = 0; m < PLAIN_ROWS; m++) copy(m);
        else
#pragma unroll 1
            for (int n = 0; n < PLAIN_ROWS; n += 128 >> shift)
#pragma unroll
                for (int k = 0; k < 4; k++) copy(n + k * (32 >> shift) + (lane >> shift));
        return;
    }
    const char *const row = plain_row(p, x, at, bad);
    if (!staged) {
        if (row)
#pragma unroll 1
            for (int i = 128 * (lane >> 4); i < bytes; i += 256) prefetch(row + before + i);
        return;
    }
#pragma unroll 4
    for (int m0 = 0; m0 < PLAIN_ROWS; m0 += 32 >> shift) {            /* the same for all lanes */
        const int m = m0 + (lane >> shift);
        const char *const base = row_of_lane(row, m);
        const bool have = base && piece < pieces;
        const char *const from = have ? base + before + (piece << staged) : data;
        if (staged == 4) copy16_or_zero(slot + m * PLAIN_PITCH + (piece ^ plain_piece(m)), from, have);
        else copy_some_or_zero((char *)(slot + m * PLAIN_PITCH + plain_piece(m)) + (piece << staged), from,
                               1 << staged, have);
    }
}

__device__ __forceinline__ bool is_blocks(int type) { return type == SANTA_Q8_0 || type == SANTA_Q4_0; }

/* Numbers 4 f[n] to 4 f[n] + 3 of row[n] of a slot, n < N, of any type but f32, all on their
   way at once. q8_0 and q4_0: whole numbers, exact as a byte beside the exponent of 2^23, and
   the blocks' scales; SCALED: times these. Blocks begin at any even byte. */
template <int N, bool SCALED>
__device__ __forceinline__ void take_fours(int type, const uint4 *slot, const int (&row)[N],
                                           const int (&f)[N], float (&y)[N][4], float (&scale)[N]) {
    const auto at = [&](int n, int byte) {
        return (const char *)(slot + row[n] * PLAIN_PITCH) + (byte ^ 16 * plain_piece(row[n]));
    };
    unsigned w[N][2];
#pragma unroll
    for (int n = 0; n < N; n++) scale[n] = 1.0f;
    if (is_blocks(type)) {
        const bool eight = type == SANTA_Q8_0;
        const int bytes = eight ? 34 : 18, mask = eight ? 7 : 3;
        const unsigned bits = eight ? ~0u : 0x0f0f0f0fu, sign = eight ? 0x80808080u : 0;
        const float zero = eight ? 8388736.0f : 8388616.0f;
        unsigned scales[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const unsigned short *const block = (const unsigned short *)(
                (const char *)(slot + row[n] * PLAIN_PITCH + plain_piece(row[n])) + (f[n] >> 3) * bytes);
            const unsigned short *const quant = block + 1 + 2 * (f[n] & mask);
            scales[n] = block[0];
            w[n][0] = quant[0];
            w[n][1] = quant[1];
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            unsigned x = w[n][0] | w[n][1] << 16;
            if (!eight && f[n] & 4) x >>= 4;
            x = (x & bits) ^ sign;
            scale[n] = __half2float(__ushort_as_half((unsigned short)scales[n]));
#pragma unroll
            for (unsigned k = 0; k < 4; k++) {
                y[n][k] = __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7540u + k)) - zero;
                if (SCALED) y[n][k] *= scale[n];
            }
        }
        return;
    }
    if (type == SANTA_BF16 || type == SANTA_F16) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint2 x = *(const uint2 *)at(n, 8 * f[n]);
            w[n][0] = x.x;
            w[n][1] = x.y;
        }
        if (type == SANTA_BF16) {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    y[n][2 * k] = __uint_as_float(w[n][k] << 16);
                    y[n][2 * k + 1] = __uint_as_float(w[n][k] & 0xffff0000u);
                }
            return;
        }
    } else {
#pragma unroll
        for (int n = 0; n < N; n++) w[n][0] = *(const unsigned *)at(n, 4 * f[n]);
        if (type == SANTA_E4M3) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const __half2 a = e4m3_pair((unsigned short)w[n][0]),
                              d = e4m3_pair((unsigned short)(w[n][0] >> 16));
                w[n][0] = *(const unsigned *)&a;
                w[n][1] = *(const unsigned *)&d;
            }
        } else {                                    /* the upper byte of an f16 */
#pragma unroll
            for (int n = 0; n < N; n++) {
                w[n][1] = __byte_perm(w[n][0], 0, 0x3424);
                w[n][0] = __byte_perm(w[n][0], 0, 0x1404);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float2 x = __half22float2(*(const __half2 *)&w[n][k]);
            y[n][2 * k] = x.x;
            y[n][2 * k + 1] = x.y;
        }
}

/* The step's rows into slot, as they lie, where they did not come by pieces. Called, so that it
   does not swell its callers. */
__device__ __noinline__ void copy_plain(const params &p, const cursor x, const plain_step at, uint4 *slot) {
    const int lane = threadIdx.x & 31, type = at.of_v ? p.v_type : p.k_type;
    const bool blocks = is_blocks(type);
    bool bad = false;
    const char *const row = plain_row(p, x, at, bad), *const safe = at.of_v ? p.v : p.k;
    /* bytes of a number, or of half a block's scale */
    const int size = plain_bytes_of(p, at.of_v, 32) == 128 ? 4
                   : type == SANTA_E4M3 || type == SANTA_E5M2 ? 1 : 2;
    const int n = plain_bytes_of(p, at.of_v, at.numbers) / size;
    const i64 step = blocks ? 2 : (at.of_v ? p.v_stride : p.k_stride)[3];
    const i64 before = blocks ? plain_bytes_of(p, at.of_v, at.first) : at.first * step;
#pragma unroll 1
    for (int i0 = 0; i0 < n; i0 += 32)
#pragma unroll 1
        for (int m0 = 0; m0 < PLAIN_ROWS; m0 += 8) {
            const int i = i0 + lane;
            const char *from[8];
            unsigned y[8];
#pragma unroll
            for (int u = 0; u < 8; u++) {
                from[u] = row_of_lane(row, m0 + u);
                y[u] = from[u] && i < n;
                from[u] = y[u] ? from[u] + before + i * step : safe;
            }
            const auto copy = [&](auto unit) {      /* all on their way at once */
                typedef decltype(unit) T;
                T x[8];
#pragma unroll
                for (int u = 0; u < 8; u++) x[u] = *(const T *)from[u];
#pragma unroll
                for (int u = 0; u < 8; u++)
                    *(T *)((char *)(slot + (m0 + u) * PLAIN_PITCH)
                           + (blocks ? i * size + 16 * plain_piece(u) : (i * size) ^ 16 * plain_piece(u)))
                        = y[u] ? x[u] : (T)0;
            };
            if (size == 4) copy(0u);
            else if (size == 2) copy((unsigned short)0);
            else copy((unsigned char)0);
        }
    __syncwarp();
}

/* Number f of row m of a slot. Rare, and called. */
__device__ __noinline__ float plain_number(int type, const uint4 *slot, int m, int f) {
    const char *const row = (const char *)(slot + m * PLAIN_PITCH);
    const int size = type == SANTA_F32 ? 4 : type == SANTA_F16 || type == SANTA_BF16 ? 2 : 1;
    return is_blocks(type) ? load_coded(type, row + 16 * plain_piece(m), f, 0)
                           : load_coded(type, row + ((f * size) ^ 16 * plain_piece(m)), 0, 0);
}

/* q of 8 heads as f32, zeros behind; by `threads`. */
__device__ __forceinline__ void load_plain_query(const params &p, int b, int head, int heads, int thread,
                                                 int threads, float *q) {
    const char *const rows = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1] + head * p.q_stride[2];
    const int type = p.q_type;
#pragma unroll 1
    for (int f = thread; f < p.query_pitch; f += threads) {
        const char *const from = rows + min(f, p.d - 1) * p.q_stride[3];
        unsigned y[PASS_HEADS];                     /* all on their way at once */
        if (type == SANTA_F32)
#pragma unroll
            for (int h = 0; h < PASS_HEADS; h++)
                y[h] = *(const unsigned *)(from + min(h, heads - 1) * p.q_stride[2]);
        else
#pragma unroll
            for (int h = 0; h < PASS_HEADS; h++)
                y[h] = *(const unsigned short *)(from + min(h, heads - 1) * p.q_stride[2]);
#pragma unroll
        for (int h = 0; h < PASS_HEADS; h++) {
            const float x = type == SANTA_F16 ? __half2float(__ushort_as_half((unsigned short)y[h]))
                          : __uint_as_float(type == SANTA_F32 ? y[h] : y[h] << 16);
            q[h * p.query_pitch + (f ^ 16 * (h & 1))] = h < heads && f < p.d ? x : 0.0f;
        }
    }
}

/* x in two numbers of the tensor cores, f32 but for a bit or two. */
__device__ __forceinline__ void split_tf32(float4 x, float *high, float *low) {
    const float y[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        high[i] = __uint_as_float((__float_as_uint(y[i]) + 0x1000u) & 0xffffe000u);
        low[i] = y[i] - high[i];
    }
}

/* Adds to y[e][h] products of heads 2 c + e with rows r + 8 h of slot: on tensor cores, as
   block_dots has them, each f32 as a sum of two numbers. Numbers of fewer bits are one, and a
   block's sum is scaled. q: as load_plain_query has it, or NULL if it has no room. That, and
   what is not finite or near it, is rare, and multiplied one by one. */
__device__ __forceinline__ void plain_dots(const params &p, const cursor &x, int head, int heads,
                                           const plain_step &at, uint4 *slot, const float *q,
                                           float y[2][2]) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3, type = p.k_type;
    float total[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (!p.staged_k) copy_plain(p, x, at, slot);
    if (q) {
        const float *const mine = q + r * p.query_pitch + at.first;
        if (type == SANTA_F32) {
            const float4 *const rows = (const float4 *)slot + r * PLAIN_PITCH;
            float sums[6][4];                       /* from the third on of products with a lower part */
#pragma unroll
            for (int i = 0; i < 24; i++) sums[i / 4][i % 4] = 0.0f;
            /* 32 numbers at once, so that all are on their way; behind the last one are
               zeros */
#pragma unroll 1
            for (int first = 0; first < at.numbers; first += 32)
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    const int f = first / 4 + 4 * u + c;
                    float q_high[4], q_low[4], high[2][4], low[2][4];
                    split_tf32(*(const float4 *)(mine + (4 * f ^ 16 * (r & 1))), q_high, q_low);
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        split_tf32(rows[8 * h * PLAIN_PITCH + (f ^ plain_piece(r))], high[h], low[h]);
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        const float a[4] = { high[0][2 * n], high[1][2 * n], high[0][2 * n + 1],
                                             high[1][2 * n + 1] },
                                    d[4] = { low[0][2 * n], low[1][2 * n], low[0][2 * n + 1],
                                             low[1][2 * n + 1] };
                        mma_tf32(sums[n], a, q_high + 2 * n);
                        mma_tf32(sums[2 + n], d, q_high + 2 * n);
                        mma_tf32(sums[4 + n], a, q_low + 2 * n);
                    }
                }
#pragma unroll
            for (int i = 0; i < 4; i++)
                total[i] = (sums[0][i] + sums[1][i])
                         + ((sums[2][i] + sums[3][i]) + (sums[4][i] + sums[5][i]));
        } else {
            const bool whole_q = p.q_type != SANTA_F32;
#pragma unroll 1
            for (int first = 0; first < at.numbers; first += 32) {
                const int f = first / 4 + c, row[4] = { r, r + 8, r, r + 8 },
                          four[4] = { f, f, f + 4, f + 4 };
                float k[4][4], scale[4], sums[2][4];
                take_fours<4, false>(type, slot, row, four, k, scale);
#pragma unroll
                for (int i = 0; i < 8; i++) sums[i / 4][i % 4] = 0.0f;
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    const float4 own = *(const float4 *)(mine + (4 * four[2 * u] ^ 16 * (r & 1)));
                    float high[4] = { own.x, own.y, own.z, own.w }, low[4];
                    if (!whole_q) split_tf32(own, high, low);
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        const float a[4] = { k[2 * u][2 * n], k[2 * u + 1][2 * n], k[2 * u][2 * n + 1],
                                             k[2 * u + 1][2 * n + 1] };
                        mma_tf32(sums[n], a, high + 2 * n);
                        if (!whole_q) mma_tf32(sums[n], a, low + 2 * n);
                    }
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    total[i] = fmaf(scale[i / 2], sums[0][i] + sums[1][i], total[i]);
            }
        }
    }
    const bool wrong = !(fabsf(total[0] + total[1]) + fabsf(total[2] + total[3]) <= FLT_MAX);
    if (!q || __any_sync(FULL, wrong)) {
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] = 0.0f;
#pragma unroll 1
        for (int f = 0; f < at.numbers; f++) {
            const char *const row = p.q + x.b * p.q_stride[0] + p.q_index * p.q_stride[1]
                                  + (head + min(2 * c, heads - 1)) * p.q_stride[2];
            const float a[2] = { load_one(p.q_type, row, at.first + f, p.q_stride[3]),
                                 load_one(p.q_type, 2 * c + 1 < heads ? row + p.q_stride[2] : row,
                                          at.first + f, p.q_stride[3]) },
                        k[2] = { plain_number(type, slot, r, f), plain_number(type, slot, r + 8, f) };
#pragma unroll
            for (int i = 0; i < 4; i++) total[i] = fmaf(k[i / 2], a[i % 2], total[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) y[i % 2][i / 2] += total[i];
}

/* What k_scores does not take: any type and stride of K and any q, with all extras. K streams
   through the rings of k_dense_plain, see there; a warp has its own queries, too.
   Grid: see launch_scores_plain; two CTAs of 4 warps own a run of works as one of k_scores
   does. No barrier. f32 should run at the speed of reading K. */
__global__ void __launch_bounds__(DENSE_WARPS * 32, 2) k_scores_plain(const __grid_constant__ params p) {
    DYNAMIC_SHARED(slots);
    const int lane = threadIdx.x & 31, warp = this_warp();
    const unsigned run = blockIdx.x / 2, from = run * p.steps + min(run, p.longer),
                   end = (from + p.steps + (run < p.longer)) * SCORE_WARPS;
    uint4 *const mine = slots + warp * p.plain_slots * PLAIN_ROWS * PLAIN_PITCH;
    float *const room = (float *)(slots + DENSE_WARPS * p.plain_slots * PLAIN_ROWS * PLAIN_PITCH)
                      + warp * PASS_HEADS * p.query_pitch;
    cursor in, x;
    in.w = from * SCORE_WARPS + DENSE_WARPS * (blockIdx.x & 1) + warp;
    settle(p, end, in);
    x = in;
    plain_step next = { false, 0, 0, min(p.d, (int)PLAIN_NUMBERS) }, now = next;
    const auto step_on = [&](plain_step &at) {      /* whether the block ends */
        at.first += PLAIN_NUMBERS;
        if (at.first >= p.d) {
            at.first = 0;
            at.i = (at.i + 1) & 3;
        }
        at.numbers = min(p.d - at.first, (int)PLAIN_NUMBERS);
        return at.i == 0 && at.first == 0;
    };
    unsigned bad = 0, fill_bit = 1, bit = 1;        /* of even and odd blocks */
    int fill_slot = 0, slot = 0;
    const auto advance = [&]() {
        __syncwarp();                               /* all have read what was there */
        if (agreed(in.valid)) {
            bool wrong = false;
            send_plain(p, in, next, mine + fill_slot * PLAIN_ROWS * PLAIN_PITCH, wrong);
            if (p.k_scales.data && next.i == 0 && next.first == 0)
                send_scales(p, p.k_scales, in.b, in.kv, in.block, in.begin, in.end);
            if (wrong) bad |= fill_bit;
            if (step_on(next)) {
                in.w += SCORE_WARPS;
                settle(p, end, in);
                fill_bit ^= 3;
            }
        }
        if (++fill_slot == p.plain_slots) fill_slot = 0;
        copy_commit();
    };
    const float *const q = p.query_pitch ? room : nullptr;
    int q_b = -1, q_kv = -1, q_slice = -1, head = 0, heads = 0;
    float s[2][8], m[2], y[2][2];
#pragma unroll 1
    for (int step = 1 - p.plain_slots;; step++) {
        advance();
        if (step < 0) continue;
        if (step == 0) {
            zero_arrivals(p);
            launch_dependents();                    /* gather's CTAs start up as soon as there is room */
        }
        if (agreed(!x.valid)) break;
        if (agreed(x.b != q_b || x.kv != q_kv || x.slice != q_slice)) {
            head = x.kv * p.group + x.slice * PASS_HEADS;
            heads = min(p.group - x.slice * PASS_HEADS, (int)PASS_HEADS);
            if (q) load_plain_query(p, x.b, head, heads, lane, 32, room);
            q_b = x.b; q_kv = x.kv; q_slice = x.slice;
        }
        if (p.plain_slots > 2) copy_wait<2>();
        else copy_wait<1>();
        __syncwarp();                               /* others' copies are there, and their q */
        uint4 *const rows = mine + slot * PLAIN_ROWS * PLAIN_PITCH;
        if (++slot == p.plain_slots) slot = 0;
        if (now.first == 0) y[0][0] = y[0][1] = y[1][0] = y[1][1] = 0.0f;
        plain_dots(p, x, head, heads, now, rows, q, y);
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int e = 0; e < 2; e++) s[e][k] = k / 2 == now.i ? y[e][k & 1] : s[e][k];
        if (!step_on(now)) continue;
        const unsigned which = __ballot_sync(FULL, (bad & bit) != 0);
        bad &= ~bit;
        bit ^= 3;
        scale_keys(p, x.b, x.kv, x.block, x.begin, x.end, s);
        block_finish<true>(p, 1.0f, head, heads, x.block, x.begin, x.end, x.position,
                           (which >> (lane >> 2) & 0x101u) != 0, s, m);
        write_block(p, x.b, x.kv, x.slice, x.block, heads,
                    p.stash_type == SANTA_STASH_U8 ? row_key<1>(p, x.b) : 0, s, m);
        x.w += SCORE_WARPS;
        settle(p, end, x);
    }
}

/* The page that holds the lane's 8 keys (p.eights: they share one) or the nearest key in range:
   its place in k, -1 if the block table is wrong; *start: its first key. Without a table a
   sequence is a page. */
__device__ __forceinline__ int lane_page(const params &p, const cursor &x, int *start) {
    if (!p.table) { *start = 0; return x.b; }
    const int last = x.block * BLOCK + 8 * ((threadIdx.x & 31) >> 2) + 7;
    const int j = min(max(last, x.begin), x.end - 1);
    const unsigned page = p.by_page.quotient((unsigned)j);
    const int at = p.table[x.b * p.table_stride + page];
    *start = (int)(page * p.by_page.d);
    return (unsigned)at < (unsigned)p.pages ? at : -1;
}

/* Where lane c's 16-byte pieces of key 0 are; with pages, where they would be if all pages were
   laid out like the lane's. */
template <bool PAGED>
__device__ __forceinline__ const char *key_base(const params &p, const cursor &x) {
    i64 at = PAGED ? 0 : x.b * p.k_stride[0];
    if (PAGED && p.eights && x.valid) {
        int start;
        const int page = lane_page(p, x, &start);
        at = max(page, 0) * p.k_stride[0] - (i64)start * p.k_row;
    }
    return p.k + at + x.kv * p.k_stride[2] + 16 * (threadIdx.x & 3);
}

/* The same of V. */
template <bool PAGED>
__device__ __forceinline__ const char *value_base(const params &p, const cursor &x) {
    i64 at = PAGED ? 0 : x.b * p.v_stride[0];
    if (PAGED && p.eights) {
        int start;
        const int page = lane_page(p, x, &start);
        at = max(page, 0) * p.v_stride[0] - (i64)start * p.v_row;
    }
    return p.v + at + x.kv * p.v_stride[2] + 16 * (threadIdx.x & 3);
}

/* 16 keys of the block, 2i and 2i + 1 of each lane row, on their way to slot. A bad block table
   reads page 0; bad_pages finds it. What is rare is a loop: little code matters more. */
template <typename K, int C, bool PAGED, bool HINT>
__device__ __forceinline__ void copy_keys(const params &p, const cursor &x, int i, uint4 *slot) {
    const int lane = threadIdx.x & 31, c = lane & 3, first = x.block * BLOCK + 8 * (lane >> 2) + 2 * i;
    enum { PIECES = ring<K, C>::LOADS / 2 };
    if (__builtin_expect(p.d != 32 * C || (PAGED && !p.eights), 0)) {
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const int j = min(max(first + h, x.begin), x.end - 1);
            i64 at = (i64)j * p.k_row;
            if (PAGED && !p.eights) at = row_offset<HAS_TABLE>(p, p.k_stride, x.b, j);
            if (PAGED && at == NO_ROW) at = 0;
#pragma unroll 1
            for (int k = 0; k < PIECES; k++) {
                const bool have = 64 * k + 16 * c < p.d * (int)sizeof(K);
                copy16_or_zero(slot + (h * PIECES + k) * 32 + lane, have ? x.base + at + 64 * k : p.k,
                               have);
            }
        }
        return;
    }
    const auto both = [&](auto copy) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char *from = x.base + (i64)min(max(first + h, x.begin), x.end - 1) * p.k_row;
#pragma unroll
            for (int k = 0; k < PIECES; k++) copy(slot + (h * PIECES + k) * 32 + lane, from + 64 * k);
        }
    };
    if (HINT && p.once) both([](uint4 *to, const char *from) { copy16_once(to, from); });
    else both([](uint4 *to, const char *from) { copy16(to, from); });
}

template <bool PAGED> __device__ __forceinline__ bool bad_pages(const params &p, const cursor &x) {
    int start;
    if (!PAGED) return false;
    if (p.eights) return lane_page(p, x, &start) < 0;
    bool bad = false;
    const int first = x.block * BLOCK + 8 * ((threadIdx.x & 31) >> 2);
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        bad |= row_offset<HAS_TABLE>(p, p.k_stride, x.b, min(max(first + i, x.begin), x.end - 1)) == NO_ROW;
    return bad;
}

/* The same where a cache may have pages or not. */
__device__ __forceinline__ bool bad_rows(const params &p, const cursor &x) {
    return p.table && bad_pages<true>(p, x);
}

/* Scores of 16 keys from a slot of the ring: s[..][6], s[..][7]; those before move down. */
template <typename K, int C>
__device__ __forceinline__ void step_dots(const params &p, const query<K, C, false> &q, const uint4 *slot,
                                          float s[2][8]) {
    enum { PIECES = ring<K, C>::LOADS / 2 };
    const int lane = threadIdx.x & 31;
    float acc[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    with_numbers<K>(p, [&](auto type) {
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            const uint4 a = slot[k * 32 + lane], d = slot[(PIECES + k) * 32 + lane];
            piece_dots<decltype(type)>(q, a, d, k, acc);
        }
    });
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int k = 0; k < 6; k++) s[e][k] = s[e][k + 2];
        s[e][6] = acc[e];
        s[e][7] = acc[2 + e];
    }
}

/* The scores of the next block in the ring, its steps 0 to 3. `advance` sends for the step that
   is STEPS - 1 further on: which one of its block, the compiler knows. */
template <int AT_ONCE, typename K, int C, typename Advance>
__device__ __forceinline__ void stream_dots(const params &p, const query<K, C, false> &q,
                                            const uint4 *mine, int &slot, Advance advance, float s[2][8]) {
    enum { STEPS = ring<K, C>::STEPS };
#pragma unroll
    for (int i = 0; i < 8; i++) s[0][i] = s[1][i] = 0.0f;
#pragma unroll AT_ONCE
    for (int i = 0; i < 4; i++) {
        advance(i + STEPS - 1);
        copy_wait<STEPS - 1>();
        step_dots<K, C>(p, q, mine + slot * ring<K, C>::LOADS * 32, s);
        if (++slot == STEPS) slot = 0;
    }
}

/* The tuned kernel: a stream. Every warp walks its blocks with STEPS steps of 16 keys in flight
   to a ring in shared memory by cp.async, across the borders of blocks, so that memory never
   waits for a softmax. A lane reads back only what it copied itself: the ring is a deep
   register file, and there is no barrier and no bank conflict. 16 warps with 12 KB each keep
   192 KB on the way per multiprocessor of 4.8 TB/s / 132; latency times bandwidth is about 40.
   Grid: see launch_scores; a CTA of 8 warps owns p.steps runs of 8 neighbouring works, or one
   more.
   Reads K once for each slice, or for p.rows query rows; it should run at the speed of that. */
template <typename K, int C, bool PAGED>
__global__ void __launch_bounds__(SCORE_WARPS * 32, 2) k_scores(const __grid_constant__ params p) {
    enum { LOADS = ring<K, C>::LOADS, STEPS = ring<K, C>::STEPS };
    DYNAMIC_SHARED(slots);
    const int warp = threadIdx.x >> 5;
    uint4 *mine = slots + warp * STEPS * LOADS * 32;
    const unsigned from = blockIdx.x * p.steps + min(blockIdx.x, p.longer);
    const unsigned end = (from + p.steps + (blockIdx.x < p.longer)) * SCORE_WARPS;
    cursor in, x;
    in.b = in.kv = 0;                               /* key_base reads them in a warp without blocks, too */
    in.w = from * SCORE_WARPS + warp;
    settle(p, end, in);
    x = in;
    in.base = key_base<PAGED>(p, in);
    if (p.q_parts && is_first_cta()) wait_for_previous();             /* see launch_short */
    int slot = 0, fill_slot = 0;                    /* places in the ring */
    /* step % 4 of in's block; may_end: it may be the block's last */
    auto advance = [&](int step, bool may_end = true) {
        if (in.valid) {
            copy_keys<K, C, PAGED, true>(p, in, step % 4, mine + fill_slot * LOADS * 32);
            if (PAGED && p.k_scales.data && step % 4 == 0)
                send_scales(p, p.k_scales, in.b, in.kv, in.block, in.begin, in.end);
            if (may_end && step % 4 == 3) {
                in.w += SCORE_WARPS;
                settle(p, end, in);
                in.base = key_base<PAGED>(p, in);
            }
        }
        if (++fill_slot == STEPS) fill_slot = 0;
        copy_commit();
    };
#pragma unroll 1
    for (int i = 0; i < STEPS - 1; i++) advance(i, STEPS > 4);
    zero_arrivals(p);
    /* once all CTAs are here, gather's start up as soon as there is room */
    launch_dependents();
    query<K, C, false> q;
    int q_b = -1, q_kv = -1, q_slice = -1;
    u64 key = 0;
    while (x.valid) {
        const int head = x.kv * p.group + x.slice * p.slice_heads;
        const int heads = p.rows > 1 ? p.group * p.rows
                                     : min(p.group - x.slice * p.slice_heads, p.slice_heads);
        if (x.b != q_b || x.kv != q_kv || x.slice != q_slice) {
            load_slots(p, x.b, x.kv, x.slice, head, heads, q);
            if (x.b != q_b && p.stash_type == SANTA_STASH_U8) key = row_key<1>(p, x.b);
            q_b = x.b; q_kv = x.kv; q_slice = x.slice;
        }
        float s[2][8], m[2];
        stream_dots<C == 8 ? 1 : 4, K, C>(p, q, mine, slot, advance, s);
        if (PAGED) scale_keys(p, x.b, x.kv, x.block, x.begin, x.end, s);
        finish_block(p, q.unscale, head, heads, x.block, x.position, s);
        block_finish<false>(p, rest_of_scale(p, q.unscale), head, heads, x.block, x.begin, x.end,
                            x.position, bad_pages<PAGED>(p, x), s, m);
        write_block(p, x.b, x.kv, x.slice, x.block, heads, key, s, m);
        x.w += SCORE_WARPS;
        settle(p, end, x);
    }
}

/* -------------------------------------------------------------------------- >>gather-kernel */

/* Inclusive scan over the block's threads in a fixed order; *total gets the sum. scratch: one
   number per warp. */
template <int WARPS, typename T> __device__ __forceinline__ T cta_scan(T x, T *scratch, T *total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        T y = __shfl_up_sync(FULL, x, o);
        if (lane >= o) x += y;
    }
    __syncthreads();                                /* scratch may still be read from the last use */
    if (lane == 31) scratch[warp] = x;
    __syncthreads();
    T before = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        if (i < warp) before += scratch[i];
        sum += scratch[i];
    }
    *total = sum;
    return before + x;
}

/* The sum alone. Called, so that it does not swell kernels that need several. */
template <int WARPS, typename T> __device__ __noinline__ T cta_total(T x, T *scratch) {
    T total;
    cta_scan<WARPS>(x, scratch, &total);
    return total;
}

/* The highest score of blocks from .. to - 1, by a CTA of 8 warps. tops: one number per
   warp. */
__device__ __forceinline__ float cta_top(const float2 *sums, int from, int to, float *tops) {
    float m = MASKED;
#pragma unroll 1
    for (int i = from + threadIdx.x; i < to; i += PORTION) m = fmaxf(m, sums[i].x);
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = m;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GATHER_WARPS; i++) m = fmaxf(m, tops[i]);
    return m;
}

/* Mass of a block relative to 2^m; NaN if a score was. */
__device__ __forceinline__ double block_mass(float2 x, float m) {
    return x.x < MASK_LIMIT && x.y == x.y ? 0.0 : (double)pow2(x.x - m) * (double)x.y;
}

/* exp(x - the larger of x and y), or NaN: what a double's exp adds to a float's is lost in the
   sum that follows. */
__device__ __forceinline__ float exp_below(double x, double y) {
    return x - y > 0.0 ? 1.0f : expf((float)(x - y));
}

/* The keys' share of the mass beside an optional sink (santa__lse of santa.h). m in base 2. */
__device__ __noinline__ double sink_share_of(const params &p, int head, float m, double total) {
    if (p.sinks[head] == -INFINITY || !(total > 0.0)) return 1.0;
    const double natural = (double)m * 0.69314718055994530942, sink = (double)p.sinks[head],
                 t = total * (double)exp_below(natural, sink);
    return quotient(t, t + (double)exp_below(sink, natural));
}

__device__ __forceinline__ double sink_share(const params &p, int head, float m, double total) {
    return p.sinks ? sink_share_of(p, head, m, total) : 1.0;
}

/* Natural log-sum-exp, sink included; NaN for a bad row. The logarithm is a float's of a number
   from 1 to 2, beside an exponent: right to 1e-7, in a third of the code. */
__device__ __noinline__ float head_lse(const params &p, int head, float m, double total) {
    const double natural = (double)m * 0.69314718055994530942;
    double top = natural, t = total;
    if (!(total == total) || isinf(total)) return __int_as_float(0x7fc00000);
    if (p.sinks && p.sinks[head] != -INFINITY) {
        const double sink = (double)p.sinks[head];
        if (!(total > 0.0)) return p.sinks[head];
        top = sink > top ? sink : top;
        t = total * (double)exp_below(natural, sink) + (double)exp_below(sink, natural);
    }
    if (!(t > 0.0)) return t == t ? -INFINITY : __int_as_float(0x7fc00000);           /* a sink of NaN */
    const i64 bits = __double_as_longlong(t), one = 0x3ff0000000000000;
    const int exponent = (int)(bits >> 52) - 1023;
    const double rest = __longlong_as_double((bits & 0x000fffffffffffff) | one);
    return (float)(fma((double)exponent, 0.69314718055994530942, top) + (double)logf((float)rest));
}

/* One number of K or V, of any type. Called, so that it does not swell its callers. */
__device__ __noinline__ float load_listed(int type, const char *row, int f, i64 step) {
    return load_coded(type, row, f, step);
}

/* Adds `count` rows of V, row i at byte p.v + at[i] with weight[i], to acc: 4 columns per lane
   and 128-column piece. This one takes any V, a number at a time. */
template <int CH>
__device__ __forceinline__ void gather_numbers(const params &p, int column, int count, const i64 *at,
                                               const float *weight, float acc[CH][4]) {
#pragma unroll
    for (int ch = 0; ch < CH; ch++) {
        const int col = column + 128 * ch + 4 * (int)(threadIdx.x & 31);
#pragma unroll 1
        for (int i = 0; i < count; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (col + k < p.dv)
                    acc[ch][k] += weight[i] * load_listed(p.v_type, p.v + at[i], col + k, p.v_stride[3]);
    }
}

/* The same for V in fours. 16 rows are on their way together, as they came (two registers for
   four bf16), or 8 of f32, as many bytes, and no branch stands between the loads: at and weight
   go on to the next multiple of 16 with the last row and weight 0. */
template <typename V, int CH>
__device__ __forceinline__ void gather_fours(const params &p, int column, int count, const i64 *at,
                                             const float *weight, float acc[CH][4]) {
    enum { ROWS = sizeof(V) == 4 ? 8 : 16 };
#pragma unroll 1
    for (int ch = 0; ch < CH; ch++) {
        const int col = column + 128 * ch + 4 * (int)(threadIdx.x & 31);
        const char *from = p.v + (i64)min(col, p.dv - 4) * (int)sizeof(V);
        const int all = ch && column + 128 * ch >= p.dv ? 0 : count;
#pragma unroll 1
        for (int i0 = 0; __any_sync(FULL, i0 < all); i0 += ROWS) {
            values<V, 4> x[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) x[i].load(from + at[i0 + i]);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float y[4];
                x[i].unpack(y);
#pragma unroll
                for (int k = 0; k < 4; k++) acc[0][k] += weight[i0 + i] * y[k];
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {               /* they take turns as acc[0] */
            const float first = acc[0][k];
#pragma unroll
            for (int i = 1; i < CH; i++) acc[i - 1][k] = acc[i][k];
            acc[CH - 1][k] = first;
        }
    }
}

/* Asks for V's type where its rows are read: the scan and the draws before are the same for all
   types, and compile once. */
template <int CH>
__device__ __forceinline__ void gather_rows(const params &p, int column, int count, const i64 *at,
                                            const float *weight, float acc[CH][4]) {
    if (!p.vector_v || p.dv % 4) gather_numbers<CH>(p, column, count, at, weight, acc);
    else if (p.v_type == SANTA_BF16) gather_fours<__nv_bfloat16, CH>(p, column, count, at, weight, acc);
    else if (p.v_type == SANTA_F16) gather_fours<__half, CH>(p, column, count, at, weight, acc);
    else if (p.v_type == SANTA_F32) gather_fours<float, CH>(p, column, count, at, weight, acc);
    else gather_fours<__nv_fp8_e4m3, CH>(p, column, count, at, weight, acc);
}

/* The sums of a head's blocks, beginning with the first one that has keys: a copy in shared
   memory if there is one. */
struct head_sums {
    const float2 *all, *copy;
    int count, shift;
    __device__ __forceinline__ float2 operator[](int t) const {
        return copy ? copy[(t & ((1 << shift) - 1)) * PORTION + (t >> shift)] : all[t];
    }
};

/* Where rounding points at a block without mass, past a block's end or at an entry without mass
   (a masked key, perhaps), the nearest with mass takes the draw, earlier ones first. Returns
   its key, counted from the first block. Blocks are units of `keys` keys. */
template <typename U>
__device__ __noinline__ int key_with_mass(head_sums sum, const U *stash, int block, int entry, int keys) {
    const auto has = [&](int i) {
        return sizeof(U) == 1 ? *(const unsigned char *)(stash + i) != 0 : (float)stash[i] > 0.0f;
    };
    int t = block;
#pragma unroll 1
    for (; t >= 0 && sum[t].x < MASK_LIMIT; t--) { }
    if (t < 0)
#pragma unroll 1
        for (t = block; t + 1 < sum.count && sum[t].x < MASK_LIMIT; t++) { }
    const int start = t * keys + (t < block ? keys - 1 : t > block ? 0 : min(entry, keys - 1));
#pragma unroll 1
    for (int i = start; i >= t * keys; i--) if (has(i)) return i;
#pragma unroll 1
    for (int i = start; i < (t + 1) * keys; i++) if (has(i)) return i;
    return start;
}

/* Where a draw fell: its block, the mass before it there (relative to 2^top), p.block_sums
   there, and the weight of its row. */
struct place {
    int block;
    double before;
    float top;
    float2 sum;
    float weight;
    __device__ __forceinline__ float entries_before() const {         /* the mass before it in units of u */
        return __double2float_rd(fmax(before * (double)pow2(top - sum.x), 0.0));
    }
};

/* 16 stash entries as they lie in memory, and in units of their type. */
template <typename U> struct entries {
    uint4 w[sizeof(U)];
    __device__ __forceinline__ void load(const U *p) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(U); i++) w[i] = ((const uint4 *)p)[i];
    }
    __device__ __forceinline__ float operator[](int i) const {
        const uint4 x = w[i * sizeof(U) / 16];
        const int at = i * (int)sizeof(U) & 15;
        const unsigned y = at < 4 ? x.x : at < 8 ? x.y : at < 12 ? x.z : x.w;
        if constexpr (sizeof(U) == 4) return __uint_as_float(y);
        else if constexpr (sizeof(U) == 2)
            return __half2float(__ushort_as_half((unsigned short)(y >> 8 * (at & 3))));
        else return (float)(y >> 8 * (at & 3) & 255u);
    }
};

/* Lane i's draw fell at `at`; returns its key, counted from the first block (whose stash this
   is): in its block, the number of running sums that do not exceed the mass before the draw,
   and never one without mass. Four lanes to a draw, 16 entries each, 16 draws on their way
   together. The lane whose entries begin at or below that mass and end above it counts: its
   running sums then grow at the entry. Rounded stashes are stretched to the exact sum.
   UNITS: at.block is a unit of 1 << shift keys, counted from unit `first`, and the stash begins
   with that; of the block around it the other entries are as if they had no mass. */
template <bool UNITS = false, typename U>
__device__ __forceinline__ int find_keys(head_sums sum, const U *stash, int count, const place &at,
                                         int shift = 6, int first = 0) {
    const int more = 6 - shift;                     /* units of a block: 1 << more */
    const auto block_of = [&](int unit) {           /* counted from the one that `first` is in */
        return UNITS ? ((first + unit) >> more) - (first >> more) : unit;
    };
    if (UNITS) stash -= (first & ((1 << more) - 1)) << shift;
    enum { LANES = 4, DRAWS = 32 / LANES, EACH = BLOCK / LANES, MASSLESS = 2 * BLOCK };
    const int lane = threadIdx.x & 31, quarter = lane % LANES;
    int found = 0;
#pragma unroll 1
    for (int base = 0; __any_sync(FULL, base < count); base += 2 * DRAWS) {
        entries<U> x[2];
#pragma unroll
        for (int i = 0; i < 2; i++)                 /* on their way before anything waits for at.sum */
            x[i].load(stash
                      + (i64)block_of(__shfl_sync(FULL, at.block, base + DRAWS * i + lane / LANES)) * BLOCK
                      + EACH * quarter);
        const float want = at.entries_before();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float u[EACH], end = 0.0f, t = __shfl_sync(FULL, want, base + DRAWS * i + lane / LANES);
            int from = 0, to = BLOCK;               /* entries of the draw's unit */
            if (UNITS) {
                const int unit = first + __shfl_sync(FULL, at.block, base + DRAWS * i + lane / LANES);
                from = (unit & ((1 << more) - 1)) << shift;
                to = from + (1 << shift);
            }
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                const int entry = EACH * quarter + k;
                u[k] = end += !UNITS || (entry >= from && entry < to) ? x[i][k] : 0.0f;
            }
#pragma unroll
            for (int o = 1; o < LANES; o <<= 1) {
                const float y = __shfl_up_sync(FULL, end, o, LANES);
                if (quarter >= o) end += y;
            }
            if (sizeof(U) < 4) {
                const float sum_u = __shfl_sync(FULL, at.sum.y, base + DRAWS * i + lane / LANES);
                t *= __fdividef(__shfl_sync(FULL, end, LANES - 1, LANES), sum_u);
            }
            float begin = __shfl_up_sync(FULL, end, 1, LANES);
            if (quarter == 0) begin = 0.0f;
            int entry = 0;
#pragma unroll
            for (int k = 0; k < EACH; k++) entry += u[k] <= t - begin;
            entry = (entry == EACH ? MASSLESS : 0) | (entry + EACH * quarter);
            if (!(begin <= t) || (quarter < LANES - 1 && end <= t)) entry = 0;
#pragma unroll
            for (int o = 1; o < LANES; o <<= 1) entry |= __shfl_xor_sync(FULL, entry, o);
            entry = __shfl_sync(FULL, entry, lane % DRAWS * LANES);
            if (lane / DRAWS == base / DRAWS + i) found = entry;
        }
    }
    if (UNITS) {                                    /* from the unit's first key on */
        found -= ((first + at.block) & ((1 << more) - 1)) << shift;
        if (found < BLOCK && !(at.sum.x < MASK_LIMIT)) return (at.block << shift) + found;
        stash += (first & ((1 << more) - 1)) << shift;
        return key_with_mass(sum, stash, at.block, found & (MASSLESS - 1), 1 << shift);
    }
    if (found < MASSLESS && !(at.sum.x < MASK_LIMIT)) return at.block * BLOCK + found;
    return key_with_mass(sum, stash, at.block, found & (MASSLESS - 1), BLOCK);
}

/* The block among a thread's `have` ones where mass position t falls, and the sum before it:
   for more than KEPT, whose sums were not kept. They are taken again, in the same order. Past
   the end: `have`. */
struct found_block { int k; double below; };
__device__ __noinline__ found_block walk_blocks(const float2 *blocks, int have, float m, double t) {
    found_block at = { 0, 0.0 };
#pragma unroll 1
    for (int k = 0; k < have; k += KEPT) {
        float2 x[KEPT];
#pragma unroll
        for (int i = 0; i < KEPT; i++) x[i] = k + i < have ? blocks[k + i] : make_float2(MASKED, 0.0f);
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            const double end = at.below + block_mass(x[i], m);
            if (t < end || at.k == have) return at;
            at.below = end;
            at.k++;
        }
    }
    return at;
}

/* Blocks of a thread, as a power of 2, so that PORTION threads have them all. */
__device__ __forceinline__ int shift_of(int blocks) {
    return blocks ? 32 - __clz((blocks - 1) / PORTION) : 0;
}

/* The query head of a CTA. */
struct gather_head {
    int b, head, portion;
    int first;                                      /* block that has keys */
    bool fits;                                      /* a thread's blocks fit in KEPT */
    head_sums sum;
    float m;                                        /* highest score, in base 2 */
    double total;                                   /* mass relative to 2^m */
};

/* The draws of a CTA: n from portion * PORTION on, `each` to a warp; this lane's. */
struct portion { int draws, n, each, draw; };

__device__ __forceinline__ portion portion_of(int draws, int index) {
    const int n = max(min(draws - index * PORTION, (int)PORTION), 0),
              each = (n + GATHER_WARPS - 1) / GATHER_WARPS;
    return { draws, n, each, index * PORTION + (int)(threadIdx.x >> 5) * each + (int)(threadIdx.x & 31) };
}

/* What k_gather asks of a Pick, in this order; every thread calls:
     copied     where `keep` puts the blocks' sums, or nullptr
     prepare    what does not depend on the scores, before the wait for them; into shared
                memory, or the compiler would move it behind the wait
     recall     behind the wait, each thread what it put there
     keep       block k of this thread, the i-th in its registers: its sums, and the mass up to
                and with it
     settle     once all masses are known: lists of its own, more draws than p.samples
     find       the place of a draw; lanes that have none do not call */

__device__ __forceinline__ const float2 *comb::copied(memory &, bool) { return nullptr; }

/* What comb positions add to draw i, in units of the distance of draws: with several combs draw
   i is the tooth i / R of comb i % R of the R combs, in the order of their offsets, which are
   the random numbers from `from` on. */
__device__ __noinline__ double offset_of_combs(const params &p, u64 key, int head, unsigned from, int i) {
    const int combs = p.combs, mine = i % combs;
    double found = 0.0;
#pragma unroll 1
    for (int a = 0; a < combs; a++) {
        const double x = uniform(key, 0, random_head(p, head), (unsigned)p.q_index, from + (unsigned)a);
        int below = 0;
#pragma unroll 1
        for (int c = 0; c < combs; c++) {
            const double y = uniform(key, 0, random_head(p, head), (unsigned)p.q_index, from + (unsigned)c);
            below += y < x || (y == x && c < a);
        }
        if (below == mine) found = x;
    }
    return (double)combs * found - (double)mine;
}

__device__ __forceinline__ void comb::prepare(const params &p, scan_memory<comb> &s, const gather_head &x,
                                              const portion &mine) {
    const bool own = p.method == SANTA_IID || p.method == SANTA_STRAT;
    const u64 key = row_key(p, x.b);
    s.ends[threadIdx.x] = uniform(key, 0, random_head(p, x.head), (unsigned)p.q_index,
                                  own ? (unsigned)mine.draw : 0u);
    if (p.combs > 1) s.ends[threadIdx.x] = offset_of_combs(p, key, x.head, 0, mine.draw);
}

__device__ __forceinline__ void comb::recall(scan_memory<comb> &s) { u = s.ends[threadIdx.x]; }

__device__ __forceinline__ void comb::keep(memory &s, int k, int, float2, double mass) {
    s.prefix[k * PORTION + threadIdx.x] = mass;
}

__device__ __forceinline__ void comb::settle(const params &, scan_memory<comb> &, const gather_head &,
                                             portion &) { }

/* The block where position t in the mass of all keys falls. `earlier`: a position before it, of
   which there will be how far it is behind the block's begin: below 0 where it fell before. */
__device__ __forceinline__ place place_at(scan_memory<comb> &s, const gather_head &x, double t,
                                          double &earlier) {
    double reached = 0.0, below = 0.0;
    int thread = 0, k = 0;
#pragma unroll
    for (int i = 0; i < GATHER_WARPS - 1; i++) {
        reached += s.totals[i];
        if (t >= reached) { thread = 32 * (i + 1); below = reached; }
    }
    t -= below;
    earlier -= below;
    below = 0.0;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const double end = s.ends[thread + o - 1];
        if (t >= end) { thread += o; below = end; }
    }
    t -= below;
    earlier -= below;
    below = 0.0;
    const int per = 1 << x.sum.shift, from = thread << x.sum.shift;
    if (per > KEPT) {
        const found_block at = walk_blocks(x.sum.all + from, min(per - 1, x.sum.count - from), x.m, t);
        k = at.k;
        below = at.below;
    } else {
#pragma unroll 1
        for (int o = per >> 1; o; o >>= 1) {
            const double end = s.pick.prefix[(k + o - 1) * PORTION + thread];
            if (t >= end) { k += o; below = end; }
        }
    }
    earlier -= below;
    const int block = min(from + k, x.sum.count - 1);
    return { block, t - below, x.m, x.sum[block], 1.0f };
}
__device__ __forceinline__ place place_at(scan_memory<comb> &s, const gather_head &x, double t) {
    double none = 0.0;
    return place_at(s, x, t, none);
}

__device__ __forceinline__ place comb::find(const params &p, scan_memory<comb> &s, const gather_head &x,
                                            int draw) {
    return place_at(s, x, p.method == SANTA_IID ? u * x.total
                                                : ((double)draw + u) * (x.total * p.per_sample));
}

/* a / b for 0 <= a, 0 < b: 64-bit divisions are long, and rarely needed. */
__device__ __forceinline__ i64 ratio(i64 a, i64 b) {
    return a <= 0x7fffffff ? (i64)((unsigned)a / (unsigned)b) : a / b;
}

/* The r-th of T flash tiles with mass has draws [floor(S r / T), floor(S (r + 1) / T)), or one
   when S < T, of each comb: whose a draw is. */
__device__ __forceinline__ i64 flash_order(const params &p, int groups, i64 draw) {
    if (p.combs > 1) draw = ratio(draw, p.combs);
    return p.each >= groups ? ratio((draw + 1) * groups + p.each - 1, p.each) - 1 : draw;
}

/* flash over ranks: draw `draw` of those in the tiles here. Of a tile that other ranks have
   keys of, too, each draws what falls on its own. */
__device__ __noinline__ place find_in_tile(const params &p, const rank_share &whole, const gather_head &x,
                                           int draw) {
    const i64 row = (i64)x.b * p.heads + x.head;
    const tiles_of_ranks &tiles = p.tiles_met[row];
    const i64 s = p.each, at_draw = tiles.first_draw + draw, r = flash_order(p, tiles.all, at_draw);
    i64 lo_draw = 0, hi_draw = 0;
#pragma unroll 1
    for (i64 x = r; x <= r + 1; x++) {
        lo_draw = hi_draw;
        hi_draw = (s >= tiles.all ? ratio(s * x, tiles.all) : x) * p.combs;
    }
    const int f = p.tile_list[row * p.max_tiles + (r - tiles.before)],
              begin = f * p.flash_blocks - p.first_key / BLOCK - x.first,
              lo = max(begin, 0), hi = min(begin + p.flash_blocks, x.sum.count);
    const double count = (double)(hi_draw - lo_draw);
    const u64 key = row_key(p, x.b);
    rank_share own = { 0.0, INFINITY, 0.0, MASKED };
#pragma unroll 1
    for (int k = lo; k < hi; k++) own.m = fmaxf(own.m, x.sum[k].x);
#pragma unroll 1
    for (int k = lo; k < hi; k++) own.total += block_mass(x.sum[k], own.m);
    const float top = own.m;
#pragma unroll 1
    for (int i = 0; i < 2; i++) if (f == tiles.tile[i]) own = tiles.edge[i];
    const double u = p.combs > 1
        ? offset_of_combs(p, key, x.head, (unsigned)(f * p.combs), (int)(at_draw - lo_draw))
        : uniform(key, 0, random_head(p, x.head), (unsigned)p.q_index, (unsigned)f);
    const double t = ((double)(at_draw - lo_draw) + u) * (own.total / count);
    const bool here = t >= own.before && t < own.end;
    double at = here ? (t - own.before) * exp2((double)own.m - (double)top) : 0.0, mine = at;
    int block = lo;
#pragma unroll 1
    for (int k = lo; k < hi; k++) {
        const double next = block_mass(x.sum[k], top);
        if (next > 0.0) { block = k; mine = at; }
        if (at < next) break;
        at -= next;
    }
    const double share = own.total * exp2((double)own.m - (double)whole.m) / (whole.total * count);
    return { block, mine, top, x.sum[block], here ? (float)(share * (double)p.samples) : 0.0f };
}

__device__ __forceinline__ void comb_over_ranks::settle(const params &p, scan_memory<comb> &,
                                                        const gather_head &x, portion &mine) {
    if (p.ranks && p.method == SANTA_FLASH)
        mine = portion_of(p.tiles_met[(i64)x.b * p.heads + x.head].draws, x.portion);
}

__device__ __forceinline__ place comb_over_ranks::find(const params &p, scan_memory<comb> &s,
                                                       const gather_head &x, int draw) {
    if (!p.ranks) return comb::find(p, s, x, draw);
    const rank_share &r = s.share;
    if (p.method == SANTA_FLASH) return find_in_tile(p, r, x, draw);
    const double t = p.method == SANTA_IID ? u * r.total : ((double)draw + u) * (r.total * p.per_sample);
    const bool own = t >= r.before && t < r.end;
    place at = place_at(s, x, own ? (t - r.before) * exp2((double)r.m - (double)x.m) : 0.0);
    at.weight = own ? 1.0f : 0.0f;
    return at;
}

/* Lists the flash tiles that have mass (see santa.h) in order, from number `from` on as many as
   the list can hold; returns how many there are in all. */
__device__ __forceinline__ int flash_list(const params &p, scan_memory<flash> &s, const gather_head &x,
                                          i64 from) {
    const int count = x.sum.count ? (x.first + x.sum.count - 1) / p.flash_blocks + 1 : 0;
    int groups = 0;
#pragma unroll 1
    for (int base = x.first / p.flash_blocks; base < count; base += PORTION) {
        const int f = base + (int)threadIdx.x;
        bool has = false;
#pragma unroll 1
        for (int t = max(f * p.flash_blocks - x.first, 0);
             f < count && t < min((f + 1) * p.flash_blocks - x.first, x.sum.count); t++)
            has |= x.sum[t].x - x.m > -87.0f * LOG2E;
        double found, order = cta_scan<GATHER_WARPS>(has ? 1.0 : 0.0, s.scratch, &found);
        const i64 at = groups + (int)order - 1 - from;
        if (has && at >= 0 && at < KEPT * PORTION) s.pick.tile_of[at] = f;
        groups += (int)found;
    }
    __syncthreads();
    return groups;
}

__device__ __forceinline__ const float2 *flash::copied(memory &s, bool fits) {
    return fits ? s.sums : nullptr;
}

__device__ __forceinline__ void flash::prepare(const params &p, scan_memory<flash> &s, const gather_head &x,
                                               const portion &) {
    const u64 key = row_key(p, x.b);
    if (threadIdx.x == 0) s.pick.key = key;
}

__device__ __forceinline__ void flash::recall(scan_memory<flash> &) { }

__device__ __forceinline__ void flash::keep(memory &s, int, int i, float2 sums, double) {
    s.sums[i * PORTION + threadIdx.x] = sums;
}

__device__ __forceinline__ void flash::settle(const params &p, scan_memory<flash> &s, const gather_head &x,
                                              portion &mine) {
    /* all fit, or this portion's when each has one draw of a comb */
    from = x.fits ? 0 : x.portion * PORTION / p.combs;
    groups = flash_list(p, s, x, from);
    if (!x.fits && p.each >= groups) {
        from = flash_order(p, groups, x.portion * PORTION);
        flash_list(p, s, x, from);
    }
    mine = portion_of(max(p.each, groups) * p.combs, x.portion);
}

__device__ __forceinline__ place flash::find(const params &p, scan_memory<flash> &mem, const gather_head &x,
                                             int draw) {
    const i64 s = p.each, r = flash_order(p, groups, draw);
    const i64 lo_draw = (s >= groups ? ratio(s * r, groups) : r) * p.combs,
              hi_draw = (s >= groups ? ratio(s * (r + 1), groups) : r + 1) * p.combs;
    const int f = mem.pick.tile_of[r - from];
    const int lo = max(f * p.flash_blocks - x.first, 0),
              hi = min((f + 1) * p.flash_blocks - x.first, x.sum.count);
    const double count = (double)(hi_draw - lo_draw);
    double mine = 0.0;
    float top = MASKED;
    for (int k = lo; k < hi; k++) top = fmaxf(top, x.sum[k].x);
    for (int k = lo; k < hi; k++) mine += block_mass(x.sum[k], top);
    const double u = p.combs > 1 ? offset_of_combs(p, mem.pick.key, x.head, (unsigned)(f * p.combs),
                                                   (int)(draw - lo_draw))
        : uniform(mem.pick.key, 0, random_head(p, x.head), (unsigned)p.q_index, (unsigned)f);
    double at = ((double)(draw - lo_draw) + u) * (mine / count);
    double t = at;
    int block = lo;
    for (int k = lo; k < hi; k++) {
        const double next = block_mass(x.sum[k], top);
        if (next > 0.0) { block = k; t = at; }
        if (at < next) break;
        at -= next;
    }
    return { block, t, top, x.sum[block],
             (float)(mine * (double)pow2(top - x.m) * (double)p.samples / (x.total * count)) };
}

/* What a rank knows of a head's mass among all, or of that of one of flash's tiles. The same
   arithmetic on every rank: they agree where one's part ends. */
__device__ __noinline__ rank_share rank_share_of(const params &p, i64 row, double tile = -1.0) {
    rank_share x = { 0.0, 0.0, 0.0, MASKED };
    const auto said = [&](int r) {                  /* by rank r; of a tile that it does not have NULL */
        const double *const one = p.rank_masses + ((i64)r * p.batch * p.heads + row) * p.mass_doubles;
        return tile < 0.0 ? one : one[2] == tile ? one + 3 : one[5] == tile ? one + 6 : nullptr;
    };
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        const double *const one = said(r);
        if (one) x.m = fmaxf(x.m, (float)one[0]);
    }
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        const double *const one = said(r);
        if (r == p.rank) x.before = x.total;
        if (one && !(one[1] <= 0.0)) x.total += one[1] * exp2(one[0] - (double)x.m);
        if (r == p.rank) x.end = x.total;
    }
    /* a draw that rounding moves to the very end has the last place */
    if (x.end == x.total) x.end = x.before < x.end ? INFINITY : x.end;
    return x;
}

/* Draws of one query head, and the sum of their rows of V: out and lse.
   Grid: (query head, batch, portion of 256 draws x 128 * CH columns of V). A CTA of 8 warps:
   1 scan     all block sums of the head in f64; prefixes are kept for up to KEPT * 256 blocks
   2 draw     a lane per draw, each warp an eighth of them: the block by the Pick, the key from
              the block's 64 stash entries
   3 gather   16 rows of V in flight per warp, f32 sums; then the 8 warps' sums in order
   4 merge    with more than one portion: the CTA that finishes last adds them in order
   Reads, per CTA: blocks * 8 + draws * (64 stash entries + 128 * CH columns of a row of V);
   writes 128 * CH numbers. Flops: 2 * draws * 128 * CH. Latency-bound: three dependent trips to
   memory. So all that does not depend on the scores stands before the wait for them, beside the
   end of the scores kernel, and a small grid is spread.
   Barriers: for the maximum, for the prefixes, for the warps' sums; with more than one portion
   also before the CTA counts itself, when all have written, and behind it, for the count. */
template <int CH, typename Pick>
__global__ void __launch_bounds__(PORTION, 4) k_gather(const __grid_constant__ params p) {
    enum { COLUMNS = 128 * CH };
    SHARED(memory, gather_memory<CH, Pick>);
    typename Pick::scan &s = memory.scan;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int b = blockIdx.y, head = blockIdx.x, kv = head / p.group;
    const int index = (int)blockIdx.z % p.portions, column_block = (int)blockIdx.z / p.portions,
              column = column_block * COLUMNS;
    const i64 row = (i64)b * p.heads + head;
    int begin, end, position;
    key_range(p, b, begin, end, position);
    const int unit = Pick::UNITS ? p.unit_shift : 6; /* "blocks" are of 1 << this keys */
    const int first = begin >> unit, blocks = begin < end ? ((end - 1) >> unit) + 1 - first : 0;
    const int shift = shift_of(blocks), per = 1 << shift;
    const bool fits = per <= KEPT;
    const head_sums sum = { p.block_sums + (row * p.blocks << (6 - unit)) + first,
                            Pick::copied(s.pick, fits), blocks, shift };
    const float2 *own = sum.all + tid * per;        /* this thread's blocks */
    const int have = min(per, blocks - tid * per);
    gather_head x = { b, head, index, first, fits, sum, MASKED, 0.0 };
    portion mine = portion_of(p.samples, index);
    Pick pick;
    pick.prepare(p, s, x, mine);
    wait_for_previous();                            /* from here on the scores are complete */
    launch_dependents();                            /* of launch_short */
    const bool over_ranks = Pick::OVER_RANKS && p.ranks;
    if (over_ranks && tid == 0) s.share = rank_share_of(p, row);

    /* 1 */
    pick.recall(s);
    float2 sums[KEPT];                              /* of this thread's blocks */
    float m = MASKED;
    auto load_sums = [&](int k) {
#pragma unroll
        for (int i = 0; i < KEPT; i++) sums[i] = k + i < have ? own[k + i] : make_float2(MASKED, 0.0f);
    };
    load_sums(0);
#pragma unroll 1
    for (int k = 0;;) {
#pragma unroll
        for (int i = 0; i < KEPT; i++) m = fmaxf(m, sums[i].x);
        if ((k += KEPT) >= per) break;
        load_sums(k);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
    if (lane == 0) s.tops[warp] = m;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GATHER_WARPS; i++) m = fmaxf(m, s.tops[i]);
    double mass = 0.0;
#pragma unroll 1
    for (int k = 0; k < per; k += KEPT) {
        if (!fits) load_sums(k);
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            if (k + i >= per) break;
            mass += block_mass(sums[i], m);
            if (fits) pick.keep(s.pick, k + i, i, sums[i], mass);
        }
    }
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const double y = __shfl_up_sync(FULL, mass, o);
        if (lane >= o) mass += y;
    }
    s.ends[tid] = mass;
    if (lane == 31) s.totals[warp] = mass;
    __syncthreads();
    double total = 0.0;
#pragma unroll
    for (int i = 0; i < GATHER_WARPS; i++) total += s.totals[i];
    const double whole = over_ranks ? s.share.total : total;
    const bool bad = !(whole == whole) || isinf(whole);
    x.m = m;
    x.total = total;
    pick.settle(p, s, x, mine);
    if (bad || !(total > 0.0)) mine.draws = mine.n = 0;
    if (tid == 0 && index == 0 && column_block == 0 && p.draws) p.draws[row] = mine.draws;

    /* 2 */
    const int count = max(min(mine.each, mine.n - warp * mine.each), 0);
    float acc[CH][4];
#pragma unroll
    for (int ch = 0; ch < CH; ch++) acc[ch][0] = acc[ch][1] = acc[ch][2] = acc[ch][3] = 0.0f;
    if (__any_sync(FULL, count > 0)) {
        place at = { 0, 0.0, 0.0f, { 0.0f, 1.0f }, 0.0f };
        if (lane < count) at = pick.find(p, s, x, mine.draw);
        /* lanes past the end repeat the last draw, without weight; those whose draws another
           rank has repeat one of this rank's */
        int twin = min(lane, count - 1), rows = count;
        if (over_ranks) {
            const unsigned own = __ballot_sync(FULL, at.weight > 0.0f);
            if (own) twin = own >> lane & 1u ? lane : __ffs((int)own) - 1; else rows = 0;
        }
        at.block = __shfl_sync(FULL, at.block, twin);
        const i64 stash = stash_entry(p, b, head, 0) + ((i64)first << unit);
        const auto find = [&](auto *u) { return find_keys<Pick::UNITS>(sum, u, count, at, unit, first); };
        int j;
        if (p.stash_type == SANTA_STASH_U8) j = find((const unsigned char *)p.stash + stash);
        else if (p.stash_type == SANTA_STASH_F16) j = find((const __half *)p.stash + stash);
        else j = find((const float *)p.stash + stash);
        j = (first << unit) + __shfl_sync(FULL, j, twin);
        if (p.keys && column_block == 0 && lane < count) {
            p.keys[row * p.max_draws + mine.draw] = !over_ranks || at.weight > 0.0f ? j : -1;
            if (p.weights) p.weights[row * p.max_draws + mine.draw] = at.weight;
        }
        i64 offset = row_offset(p, p.v_stride, b, j);
        if (offset == NO_ROW) {
            offset = 0;
            if (lane < count && (!over_ranks || at.weight > 0.0f))
                at.weight = __int_as_float(0x7fc00000);
        }
        if (p.v_scales.data && at.weight != 0.0f) at.weight *= scale_of(p, p.v_scales, b, kv, j);
        memory.warps[warp].at[lane] = offset + kv * p.v_stride[2];
        memory.warps[warp].weight[lane] = at.weight;
        __syncwarp();
        /* 3 */
        gather_rows<CH>(p, column, rows, memory.warps[warp].at, memory.warps[warp].weight, acc);
    }
    __syncwarp();
#pragma unroll
    for (int ch = 0; ch < CH; ch++)
        *(float4 *)(memory.warps[warp].sum + 128 * ch + 4 * lane)
            = make_float4(acc[ch][0], acc[ch][1], acc[ch][2], acc[ch][3]);
    __syncthreads();
    float f = 0.0f;                                 /* COLUMNS <= 256: a column per thread */
    if (tid < COLUMNS)
#pragma unroll
        for (int k = 0; k < GATHER_WARPS; k++) f += memory.warps[k].sum[tid];
    if (p.portions > 1) {
        /* 4: p.arrived was zeroed before the scores were complete */
        const i64 counter = row * ((p.dv + 255) / 256) + column_block;
        if (tid < COLUMNS) p.partial[(counter * p.portions + index) * COLUMNS + tid] = f;
        __threadfence();
        __syncthreads();
        if (tid == 0) memory.last_one = atomicAdd(&p.arrived[counter], 1) == p.portions - 1;
        __syncthreads();
        if (!memory.last_one) return;
        __threadfence();
        f = 0.0f;
        if (tid < COLUMNS)
#pragma unroll 8
            for (int k = 0; k < p.portions; k++) f += p.partial[(counter * p.portions + k) * COLUMNS + tid];
    }
    if (over_ranks) { m = s.share.m; total = s.share.total; }
    if (tid == PORTION - 1 && column_block == 0 && p.lse)
        p.lse[lse_of(p, b, p.q_index, head)] = head_lse(p, head, m, total);
    if (tid < COLUMNS && column + tid < p.dv) {
        f = bad ? __int_as_float(0x7fc00000)
                : (float)((double)f * (sink_share(p, head, m, total) * p.per_sample)) * p.v_scale;
        store_any(p.out_type,
                  p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1] + head * p.out_stride[2]
                      + (column + tid) * p.out_stride[3],
                  f);
    }
}

/* --------------------------------------------------------------------------- >>dense-kernel */

enum { WEIGHT_BITS = 15, LEAST_UNIT = -100, MOST_UNIT = 113 };
/* Weights as f16 are up to 2^15, else small ones would lose bits. As bf16 they have f32's
   range, and sums of large numbers of V would overflow. */
__device__ __forceinline__ float weight_bits_of(__half) { return (float)WEIGHT_BITS; }
__device__ __forceinline__ float weight_bits_of(__nv_bfloat16) { return 0.0f; }
template <typename K> __device__ __forceinline__ float weight_bits(const params &p) {
    return eight_bits<K> || p.k_type == SANTA_F16 ? weight_bits_of(__half())
                                                  : weight_bits_of(__nv_bfloat16());
}

/* Online softmax of a warp's block, heads 2c + e: s becomes the weights relative to the new
   maximum, times 2^bits. keep: what the sums so far are to be multiplied with. pairs: bit i,
   whether a lane's pair i of keys counts. */
__device__ __forceinline__ void weigh_block(float (&s)[2][8], const float (&m)[2], float bits,
                                            unsigned pairs, float (&top)[2], float (&den)[2],
                                            float (&keep)[2]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float now = fmaxf(top[e], m[e]);
        const float base = now < MASK_LIMIT ? 0.0f : now - bits;
        float sum = 0.0f;
        keep[e] = top[e] < MASK_LIMIT ? 0.0f : pow2(top[e] - now);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            s[e][k] = pow2(pairs >> (k / 2) & 1 ? s[e][k] - base : MASKED);
            sum += s[e][k];
        }
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) sum += __shfl_xor_sync(FULL, sum, o);
        den[e] = den[e] * keep[e] + sum;
        top[e] = now;
    }
}
/* The sums so far of heads 2c and 2c + 1, which alternate. */
template <int N> __device__ __forceinline__ void keep_sums(const float keep[2], float (&acc)[N][4]) {
    if (!__any_sync(FULL, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[k][e] *= keep[e & 1];
}
/* Weights times the scales of V's rows: those of a head, and its sums so far, are smaller by
   2^unit, so that the largest is about 2^bits, as without scales. keep: see weigh_block. */
__device__ __forceinline__ void weigh_scales(const params &p, const cursor &x, int bits, float (&s)[2][8],
                                             float (&keep)[2], int (&unit)[2]) {
    const float2 own = scales_of_block(p, p.v_scales, x.b, x.kv, x.block, x.begin, x.end);
    float most[2] = { 0.0f, 0.0f };
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float scale = lane_scale(own, k);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s[e][k] *= scale;
            most[e] = fmaxf(most[e], fabsf(s[e][k]));
        }
    }
    const auto exponent = [](float f) { return (int)(__float_as_uint(f) >> 23) - 127; };
    const auto power = [](int n) { return __uint_as_float((unsigned)min(max(n + 127, 0), 254) << 23); };
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) most[e] = fmaxf(most[e], __shfl_xor_sync(FULL, most[e], o));
        const int before = unit[e], kept = min(exponent(keep[e]) + 1, 0);
        unit[e] = min(max(max(before + kept, exponent(most[e]) - (bits - 1)), (int)LEAST_UNIT),
                      (int)MOST_UNIT);
        keep[e] *= power(before - unit[e]);
#pragma unroll
        for (int k = 0; k < 8; k++) s[e][k] *= power(-unit[e]);
    }
}
/* Pair i of a lane's weights, without an index in registers. */
__device__ __forceinline__ void weight_pair(const float s[2][8], int i, float y[2][2]) {
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            y[e][h] = i & 2 ? i & 1 ? s[e][6 + h] : s[e][4 + h] : i & 1 ? s[e][2 + h] : s[e][h];
}

/* The same where all lanes need them: weights go to weight[position][GS], position 8 * i + r
   holds key 8 * r + i of the block; the sums so far, acc, are scaled by way of factor[GS]. */
template <int GS, int N>
__device__ __forceinline__ void online_softmax(float (&s)[2][8], const float (&m)[2], float (&top)[2],
                                               float (&den)[2], float *weight, float *factor,
                                               float (&acc)[GS][N]) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    float own[2];
    __syncwarp();                                   /* the last block's weights have been read */
    weigh_block(s, m, 0.0f, 15, top, den, own);
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (r == 0 && 2 * c + e < GS) factor[2 * c + e] = own[e];
    if (2 * c < GS)
#pragma unroll
        for (int i = 0; i < 8; i++)
            *(float2 *)&weight[(i * 8 + r) * GS + 2 * c] = make_float2(s[0][i], s[1][i]);
    __syncwarp();
    bool scaled = false;
#pragma unroll
    for (int g = 0; g < GS; g++) scaled |= factor[g] != 1.0f;
    if (!scaled) return;
#pragma unroll
    for (int g = 0; g < GS; g++) {
        const float keep = factor[g];
#pragma unroll
        for (int k = 0; k < N; k++) acc[g][k] *= keep;
    }
}

/* A split's partial results in p.partial, p.dv + 2 numbers; from head to head. */
__device__ __forceinline__ float *split_of(const params &p, int b, int head, int split) {
    return p.partial + (((i64)b * p.heads + head) * p.splits + split) * (p.dv + 2);
}
__device__ __forceinline__ i64 split_pitch(const params &p) { return (i64)p.splits * (p.dv + 2); }

/* The warps' maxima and denominators beside their sums in merge[WARPS], then all of it as this
   split's partial result, those of heads `pitch` numbers apart. thread: of WARPS warps. */
template <int WARPS, int GS, int COLUMNS>
__device__ __forceinline__ void write_split(const params &p, warp_sums<GS, COLUMNS> *merge,
                                            const float top[2], const float den[2], int heads, float *to,
                                            i64 pitch, int column, int thread) {
    const int lane = threadIdx.x & 31, warp = thread >> 5, r = lane >> 2, c = lane & 3;
    if (r == 0)
        for (int e = 0; e < 2; e++)
            if (2 * c + e < GS) {
                merge[warp].head[2 * c + e][COLUMNS] = top[e];
                merge[warp].head[2 * c + e][COLUMNS + 1] = den[e];
            }
    __syncthreads();
    for (int i = thread; i < heads * COLUMNS; i += WARPS * 32) {
        const int g = i / COLUMNS, k = i % COLUMNS;
        float m = MASKED, sum = 0.0f, d = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) m = fmaxf(m, merge[w].head[g][COLUMNS]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float *mw = merge[w].head[g];
            const float mass = mw[COLUMNS + 1],
                        e = mw[COLUMNS] < MASK_LIMIT ? mass == mass ? 0.0f : mass : pow2(mw[COLUMNS] - m);
            sum += e * mw[k];
            d += e * mass;
        }
        float *const out = to + g * pitch;
        if (column + k < p.dv) out[column + k] = sum;
        if (column + k == 0) { out[p.dv] = m; out[p.dv + 1] = d; }
    }
    launch_dependents();
}

/* A head's lse, by a thread that tells, and its results: columns calls what it is given with a
   column and its sum. m, all: highest score and mass. RESTS: there may be mass beside a
   list. */
template <bool RESTS, typename F>
__device__ __forceinline__ void write_joined(const params &p, int b, int head, float m, double all,
                                             bool tells, F columns) {
    /* the mass beside which a sink stands */
    double whole = all;
    const float listed = m;
    if (RESTS && p.list_rest) {
        const rest_mass rest = p.list_rest[(i64)b * p.heads + head];
        if (rest.sum != 0.0) {                      /* its top is of sums that round otherwise */
            const float top = fmaxf(m, rest.top);
            whole = all * (double)pow2(m - top) + rest.sum * (double)pow2(rest.top - top);
            m = top;
        }
    }
    if (tells && p.lse) {
        const i64 at = lse_of(p, b, p.q_index, head);
        const bool apart = RESTS && p.rank_lse;
        p.lse[at] = head_lse(p, head, apart ? listed : m, apart ? all : whole);
        if (apart) p.rank_lse[at] = head_lse(p, head, m, whole);
    }
    const bool bad = !(whole == whole) || isinf(whole);
    const double share = all > 0.0 ? quotient(sink_share(p, head, m, whole), all) : 0.0;
    columns([&](int k, float sum) {
        const float f = bad       ? __int_as_float(0x7fc00000)
                      : all > 0.0 ? (float)((double)sum * share) * p.v_scale : 0.0f;
        store_any(p.out_type, p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1]
                                  + head * p.out_stride[2] + k * p.out_stride[3], f);
    });
}

/* What up to 32 splits of a head become, by a warp whose lane z has split z's highest score and
   mass: the splits' weights, the highest score, all mass. */
struct joined_splits { float weight, top; double all; };
__device__ __forceinline__ joined_splits join_splits(float top, float mass, bool is_there) {
    joined_splits x = { 0.0f, top, 0.0 };
#pragma unroll
    for (int o = 16; o; o >>= 1) x.top = fmaxf(x.top, __shfl_xor_sync(FULL, x.top, o));
    if (is_there) x.weight = top < MASK_LIMIT ? mass == mass ? 0.0f : mass : pow2(top - x.top);
    x.all = (double)x.weight * (double)mass;        /* NaN * 0 keeps a NaN */
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) x.all += __shfl_xor_sync(FULL, x.all, o);
    return x;
}

/* The splits of up to 8 heads joined by the CTAs of a cluster, whose own ones lie at `own` in
   each, as k_combine_few joins them: a warp a head, a CTA some columns. All threads of all CTAs
   of the cluster come here. */
__device__ __forceinline__ void join_in_cluster(const params &p, const float *own, i64 pitch, int b,
                                                int head, int heads, int count) {
    const int lane = threadIdx.x & 31, warp = this_warp(), cta = cta_in_cluster(), ctas = (int)gridDim.x;
    cluster_sync();
    if (warp < heads) {
        own += warp * pitch;
        const float *const mine = in_cta(own, min(lane, ctas - 1)) + p.dv;
        const bool has = lane < count;
        const joined_splits x = join_splits(has ? mine[0] : MASKED, has ? mine[1] : 0.0f, has);
        write_joined<false>(p, b, head + warp, x.top, x.all, lane == 0 && cta == 0, [&](auto finish) {
#pragma unroll 1
            for (int first = 32 * cta; first < p.dv; first += 32 * ctas) {
                const int k = first + lane;
                float y[MOST_CLUSTER], sum = 0.0f;
#pragma unroll
                for (int z = 0; z < MOST_CLUSTER; z++)
                    y[z] = z < count && k < p.dv ? in_cta(own, z)[k] : 0.0f;
#pragma unroll
                for (int z = 0; z < MOST_CLUSTER; z++) {
                    const float weight = __shfl_sync(FULL, x.weight, z);
                    if (z < count) sum += weight * y[z];
                }
                if (k < p.dv) finish(k, sum);
            }
        });
    }
    cluster_sync();                                 /* others may still read what is here */
}

/* Both dense kernels: exact split-KV attention. For each query head and split, see splits_of,
   they write dv sums of exp(score - highest) * V, the highest score and the sum of exp:
   p.partial.
   Reads: K and V once for each slice of heads. Writes: heads * splits * (dv + 2) floats.
   Flops: 2 * keys * heads * (d + dv), in k_dense_plain those for V on the plain cores. */

/* What k_dense does not take: any type, stride and width of K and V and any q, with all extras.
   Grid: (split, KV head x slice of 8 heads x 256 columns of V, batch); scores again for each
   256 columns. Each of 4 warps owns every fourth block of its split and streams it through its
   own ring: steps of 16 rows of up to 128 numbers, first K's, then V's: scores by tensor cores,
   as block_finish has them, then each lane 4 columns of V on plain cores. Rows of 16-byte
   pieces, of blocks of 8 or 4 bytes, come by cp.async, p.plain_slots - 1 steps ahead, and are
   used as they lie, see take_fours; other rows are taken number by number where they are used,
   from L2. The warps, then the splits, are merged by their maxima in a fixed order. f32 should
   run at the speed of reading K and V.
   Barriers: for q; at the end all warps must be through with the ring, where their sums go
   then; for these, in write_split. */
__global__ void __launch_bounds__(DENSE_WARPS * 32, 2) k_dense_plain(const __grid_constant__ params p) {
    enum { GS = PASS_HEADS, COLUMNS = 2 * PLAIN_NUMBERS };
    DYNAMIC_SHARED(memory);
    const int lane = threadIdx.x & 31, warp = this_warp();
    const int pieces = (p.dv + COLUMNS - 1) / COLUMNS, b = blockIdx.z;
    const int column = (int)(blockIdx.y % pieces) * COLUMNS, columns = min(p.dv - column, (int)COLUMNS);
    const int slice = (int)(blockIdx.y / pieces) % p.slices, kv = (int)(blockIdx.y / pieces) / p.slices;
    const int head = kv * p.group + slice * GS, heads = min(p.group - slice * GS, (int)GS);
    cursor x;
    key_range(p, b, x.begin, x.end, x.position);
    x.b = b; x.kv = kv; x.slice = slice; x.valid = true; x.base = nullptr;
    const row_splits splits = splits_of(p, x.begin, x.end);
    if (p.is_short && is_first_cta()) wait_for_previous();            /* see launch_short */
    if ((int)blockIdx.x >= splits.count) return;
    const int size = (1 << splits.shift) / BLOCK, split = splits.first + (int)blockIdx.x;
    const int first = max(split * size, x.begin / BLOCK),
              last = min((split + 1) * size, (x.end + BLOCK - 1) / BLOCK);

    plain_memory *const shared = (plain_memory *)memory;
    uint4 *const slots = memory + sizeof(plain_memory) / 16;
    uint4 *const mine = slots + warp * p.plain_slots * PLAIN_ROWS * PLAIN_PITCH;
    float *const behind = (float *)(slots + DENSE_WARPS * p.plain_slots * PLAIN_ROWS * PLAIN_PITCH),
                *const q = p.query_pitch ? behind : nullptr;
    /* what is sent: its block, and which step of it */
    cursor in = x;
    in.block = first + ((warp - first) & (DENSE_WARPS - 1));
    x.block = in.block;
    plain_step next = { false, 0, 0, min(p.d, (int)PLAIN_NUMBERS) }, now = next;
    bool bad = false;
    const auto step_on = [&](plain_step &at, cursor &of) {
        const int end = at.of_v ? column + columns : p.d, begin = at.of_v ? column : 0;
        at.first += PLAIN_NUMBERS;
        if (at.first >= end) {
            at.first = begin;
            if (++at.i == 4) {
                at.i = 0;
                if (at.of_v) of.block += DENSE_WARPS;
                at.of_v = !at.of_v;
                at.first = at.of_v ? column : 0;
            }
        }
        at.numbers = min((at.of_v ? column + columns : p.d) - at.first, (int)PLAIN_NUMBERS);
    };
    int fill_slot = 0, slot = 0;
    const auto advance = [&]() {
        __syncwarp();                               /* all have read what was there */
        if (agreed(in.block < last)) {
            send_plain(p, in, next, mine + fill_slot * PLAIN_ROWS * PLAIN_PITCH, bad);
            if (!next.of_v && next.i == 0 && next.first == 0) {
                if (p.k_scales.data) send_scales(p, p.k_scales, b, kv, in.block, in.begin, in.end);
                if (p.v_scales.data) send_scales(p, p.v_scales, b, kv, in.block, in.begin, in.end);
            }
            step_on(next, in);
        }
        if (++fill_slot == p.plain_slots) fill_slot = 0;
        copy_commit();
    };
    float top[2] = { MASKED, MASKED }, den[2] = { 0.0f, 0.0f };
    float acc[GS][8], s[2][8], y[2][2];
#pragma unroll
    for (int g = 0; g < GS; g++)
#pragma unroll
        for (int k = 0; k < 8; k++) acc[g][k] = 0.0f;
    /* one piece of code for each step, wherever it is: code counts */
#pragma unroll 1
    for (int step = 1 - p.plain_slots;; step++) {
        advance();
        if (step < 0) continue;
        if (step == 0) {
            if (q) load_plain_query(p, b, head, heads, (int)threadIdx.x, DENSE_WARPS * 32, q);
            __syncthreads();
            launch_dependents();                    /* k_combine comes beside the last of these CTAs */
        }
        if (agreed(x.block >= last)) break;
        if (p.plain_slots > 2) copy_wait<2>();
        else copy_wait<1>();
        __syncwarp();                               /* others' copies are there */
        uint4 *const rows = mine + slot * PLAIN_ROWS * PLAIN_PITCH;
        if (++slot == p.plain_slots) slot = 0;
        if (!now.of_v) {
            if (now.first == 0) y[0][0] = y[0][1] = y[1][0] = y[1][1] = 0.0f;
            plain_dots(p, x, head, heads, now, rows, q, y);
#pragma unroll
            for (int k = 0; k < 8; k++)
#pragma unroll
                for (int e = 0; e < 2; e++) s[e][k] = k / 2 == now.i ? y[e][k & 1] : s[e][k];
            step_on(now, x);
            if (!now.of_v) continue;
            const unsigned which = __ballot_sync(FULL, bad);
            float m[2];
            bad = false;
            scale_keys(p, b, kv, x.block, x.begin, x.end, s);
            block_finish<true>(p, 1.0f, head, heads, x.block, x.begin, x.end, x.position,
                               (which >> (lane >> 2) & 0x101u) != 0, s, m);
            online_softmax(s, m, top, den, shared->weight[warp], shared->factor[warp], acc);
            if (p.v_scales.data) {
                const float2 own = scales_of_block(p, p.v_scales, b, kv, x.block, x.begin, x.end);
#pragma unroll 1
                for (int i = 0; i < 2; i++) {       /* of key lane + 32 i, see online_softmax */
                    float *const weight = shared->weight[warp] + ((lane & 7) * 8 + lane / 8 + 4 * i) * GS;
#pragma unroll
                    for (int g = 0; g < GS; g++) weight[g] *= i ? own.y : own.x;
                }
                __syncwarp();
            }
            continue;
        }
        if (!p.staged_v) copy_plain(p, x, now, rows);
        const float *const weight = shared->weight[warp] + PLAIN_ROWS * GS * now.i;
        const auto add = [&](auto part, auto half, int m, const float *v) {
            enum { PART = decltype(part)::value, G = 4 * decltype(half)::value };
            const float4 w = *(const float4 *)(weight + m * GS + G);
            const float ws[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
            for (int g = 0; g < 4; g++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[G + g][4 * PART + k] = fmaf(ws[g], v[k], acc[G + g][4 * PART + k]);
        };
        const auto by_part = [&](auto all) {        /* columns of V and heads that the lane has */
            if (now.first == column) {
                all(a_number<0>(), a_number<0>());
                if (heads > 4) all(a_number<0>(), a_number<1>());
            } else {
                all(a_number<1>(), a_number<0>());
                if (heads > 4) all(a_number<1>(), a_number<1>());
            }
        };
        if (p.v_type == SANTA_F32) {
            const auto all = [&](auto part, auto half) {
#pragma unroll 4
                for (int m = 0; m < PLAIN_ROWS; m++) {
                    const float4 v = *(const float4 *)(rows + m * PLAIN_PITCH + (lane ^ plain_piece(m)));
                    const float vs[4] = { v.x, v.y, v.z, v.w };
                    add(part, half, m, vs);
                }
            };
            by_part(all);
        } else {
#pragma unroll 1
            for (int m0 = 0; m0 < PLAIN_ROWS; m0 += 8) {
                enum { AT_ONCE = 8 };
                int row[AT_ONCE], four[AT_ONCE];
                float v[AT_ONCE][4], scale[AT_ONCE];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) { row[u] = u; four[u] = lane; }
                take_fours<AT_ONCE, true>(p.v_type, rows + m0 * PLAIN_PITCH, row, four, v, scale);
                const auto all = [&](auto part, auto half) {
#pragma unroll
                    for (int u = 0; u < AT_ONCE; u++) add(part, half, m0 + u, v[u]);
                };
                by_part(all);
            }
        }
        step_on(now, x);
    }
    /* the warps; the ring is free now */
    copy_wait<0>();
    __syncthreads();
    warp_sums<GS, COLUMNS> *const merge = (warp_sums<GS, COLUMNS> *)slots;
#pragma unroll
    for (int g = 0; g < GS; g++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            merge[warp].head[g][PLAIN_NUMBERS * (k / 4) + 4 * lane + k % 4] = acc[g][k];
    write_split<DENSE_WARPS>(p, merge, top, den, heads, split_of(p, b, head, (int)blockIdx.x),
                             split_pitch(p), column, (int)threadIdx.x);
}

/* P of two heads of a key, as a register of the tensor cores' type. */
template <typename T> __device__ __forceinline__ unsigned pack_pair(float a, float b) {
    typename pair_of<T>::type y = { (T)a, (T)b };
    return *(const unsigned *)&y;
}

/* The tuned kernel: the stream of k_scores with V in it, all of it on tensor cores. A block is
   four steps of K and four of V; a step of V is 16 rows, LANES lanes to a row, 16 bytes a lane.
   Grid: (split, KV head x slice of 8 heads, batch). Each of 8 warps owns every eighth block of
   its split; where a short row's split has two or four blocks, 4 or 2 warps share one: each has
   some steps of K and those of V for the same keys, so that most rows are on their way at once.
   JOINS: a row's splits are a cluster's, which joins them, so that no other kernel follows.
   PAIRS: a CTA has two slices, each pair of warps every fourth block, of whose rows either
   copies half into the ring that they share. Weights stay in registers: transposed they are
   what V is multiplied with, in two numbers of 16 bits, as good as f32.
   It should run at the speed of reading K and V; for short rows latency counts.
   Barriers: of a pair, at each step; at the end all warps must be through with the ring, where
   their sums go then; for these, in write_split; two of the cluster, see join_in_cluster. */

/* Rows of K, or those of V: where lane c's 16-byte pieces of key 0 are, see key_base; bytes to
   the next row, of a row. */
struct row_source { const char *base; int pitch, bytes; };

/* A row's pieces lie at piece ^ row_piece(row), so that both a lane's own ones and one piece of
   8 rows are in different banks. */
template <int LANES> __device__ __forceinline__ int row_piece(int row) {
    return LANES >= 8 ? (row & 1) << 2 | (row & 7) >> 1 : row >> 1 & 3;
}

/* 16 rows on their way to slot, those of keys 8 r + 2 i for r from 0 to 7, then of 8 r + 2 i +
   1. A bad block table reads page 0; bad_pages finds it. PAIRS: `half` of them. */
template <typename K, int C, bool PAGED, bool PAIRS>
__device__ __forceinline__ void copy_rows(const params &p, const cursor &x, const row_source &from,
                                          bool of_v, int i, int half, uint4 *slot) {
    enum { LANES = 2 * ring<K, C>::LOADS, PIECES = LANES / 4 };
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3, first = x.block * BLOCK + 8 * r + 2 * i;
    uint4 *const to = slot + r * LANES;
    const int at = c ^ row_piece<LANES>(r);
    if (__builtin_expect(from.bytes != 16 * LANES || (PAGED && !p.eights), 0)) {
        const char *const data = of_v ? p.v + x.kv * p.v_stride[2] : p.k + x.kv * p.k_stride[2];
#pragma unroll 1
        for (int h = PAIRS ? half : 0; h < (PAIRS ? half + 1 : 2); h++) {
            const int j = min(max(first + h, x.begin), x.end - 1);
            const char *row = from.base + (i64)j * from.pitch;
            if (PAGED && !p.eights) {
                const i64 place = row_offset<HAS_TABLE>(p, of_v ? p.v_stride : p.k_stride, x.b, j);
                row = data + (place == NO_ROW ? 0 : place) + 16 * c;
            }
#pragma unroll 1
            for (int k = 0; k < PIECES; k++) {
                const bool have = 64 * k + 16 * c < from.bytes;
                copy16_or_zero(to + 8 * h * LANES + (at ^ 4 * k), have ? row + 64 * k : p.k, have);
            }
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < (PAIRS ? 1 : 2); n++) {
        const int h = PAIRS ? half : n;
        const char *row = from.base + (i64)min(max(first + h, x.begin), x.end - 1) * from.pitch;
#pragma unroll
        for (int k = 0; k < PIECES; k++) copy16(to + 8 * h * LANES + (at ^ 4 * k), row + 64 * k);
    }
}

/* Scores of the keys of such rows, which are the lane's own: heads 2 c + e of keys 8 r + 2 i +
   h. */
template <typename K, int C>
__device__ __forceinline__ void row_dots(const params &p, const query<K, C, false> &q, const uint4 *slot,
                                         float y[2][2]) {
    enum { LANES = 2 * ring<K, C>::LOADS };
    const int lane = threadIdx.x & 31, r = lane >> 2, at = (lane & 3) ^ row_piece<LANES>(r);
    const uint4 *const from = slot + r * LANES;
    float sums[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    with_numbers<K>(p, [&](auto type) {
#pragma unroll
        for (int k = 0; k < LANES / 4; k++)
            piece_dots<decltype(type)>(q, from[at ^ 4 * k], from[8 * LANES + (at ^ 4 * k)], k, sums);
    });
#pragma unroll
    for (int i = 0; i < 4; i++) y[i & 1][i / 2] = sums[i];
}

/* Adds to one tile of 16 columns, of 8 bits to two, what load_transposed has brought of V times
   weights in two numbers of 16 bits. */
template <typename T, typename K>
__device__ __forceinline__ void add_columns(const unsigned (&v)[4], const unsigned (&hi)[2],
                                            const unsigned (&lo)[2], float (*acc)[4]) {
    if constexpr (eight_bits<K>) {
        /* 16 bytes are 16 columns: a word has 2 r and 2 r + 1 of keys 2 c and 2 c + 1 */
#pragma unroll
        for (int k = 0; k < 2; k++) {
            unsigned a[4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned u = __byte_perm(v[2 * k + h], 0, 0x3120);
                a[2 * h] = pair_of_bytes<T>(u, 0);
                a[2 * h + 1] = pair_of_bytes<T>(u, 1);
            }
            mma(acc[k], a[0], a[1], a[2], a[3], hi[0], hi[1], __half());
            mma(acc[k], a[0], a[1], a[2], a[3], lo[0], lo[1], __half());
        }
    } else {
        mma(acc[0], v[0], v[1], v[2], v[3], hi[0], hi[1], T());
        mma(acc[0], v[0], v[1], v[2], v[3], lo[0], lo[1], T());
    }
}

/* Adds V's rows in slot times weights, which lie as those scores. A lane's sums are of the
   columns 16 i + r and 16 i + r + 8, with 8 bits 16 i + 2 r and the next, and of heads 2 c and
   2 c + 1. */
template <typename N, typename K, int C>
__device__ __forceinline__ void add_values(const uint4 *slot, const float y[2][2],
                                           float (&acc)[dense_memory<K, C>::TILES][4]) {
    enum { LANES = dense_memory<K, C>::LANES, TILES = dense_memory<K, C>::TILES };
    typedef typename product_of<N>::type T;
    const int lane = threadIdx.x & 31;
    unsigned hi[2], lo[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float a = (float)(T)y[0][h], d = (float)(T)y[1][h];
        hi[h] = transpose(pack_pair<T>(a, d));
        lo[h] = transpose(pack_pair<T>(y[0][h] - a, y[1][h] - d));
    }
    /* matrices of 8 keys x 16 bytes: a lane has the address of a row of one of them */
    const int row = (lane & 7) + 8 * (eight_bits<K> ? lane >> 3 & 1 : lane >> 4),
              piece = (eight_bits<K> ? lane >> 4 : lane >> 3 & 1) ^ row_piece<LANES>(row);
    const unsigned from = (unsigned)__cvta_generic_to_shared(slot + row * LANES);
#pragma unroll
    for (int i = 0; i < TILES; i += eight_bits<K> ? 2 : 1) {
        unsigned v[4];
        load_transposed(from + 16u * (unsigned)(piece ^ (eight_bits<K> ? i : 2 * i)), v);
        add_columns<N, K>(v, hi, lo, acc + i);
    }
}

template <typename K, int C, bool PAGED, bool PAIRS, bool JOINS>
__global__ void __launch_bounds__(SCORE_WARPS * 32, C == 8 ? 1 : 2)
k_dense(const __grid_constant__ params p) {
    enum { LOADS = ring<K, C>::LOADS, STEPS = ring<K, C>::STEPS * (PAIRS ? 2 : 1) };
    enum { RINGS = PAIRS ? SCORE_WARPS / 2 : SCORE_WARPS };
    constexpr bool SCALES = PAGED && !PAIRS && may_have_scales<K, C>;
    typedef dense_memory<K, C> memory;
    enum { TILES = memory::TILES, COLUMNS = memory::COLUMNS };
    DYNAMIC_SHARED(slots);                          /* memory::BYTES */
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    const int half = PAIRS ? threadIdx.x >> 7 : 0, warp = this_warp() - half * RINGS;
    unsigned place = blockIdx.x, list = blockIdx.y;
    if (p.heads_inner) {                            /* so that neighbours read neighbouring rows */
        const unsigned id = list * gridDim.x + place;
        place = p.by_inner.quotient(id);
        list = id - place * gridDim.y;
    }
    const int b = blockIdx.z, kv = (int)p.by_slices.quotient(list),
              slice = ((int)list - kv * p.slices) * (PAIRS ? 2 : 1) + half;
    const int head = kv * p.group + slice * p.slice_heads,
              heads = min(p.group - slice * p.slice_heads, p.slice_heads);
    uint4 *mine = slots + warp * STEPS * LOADS * 32;
    cursor x;
    key_range(p, b, x.begin, x.end, x.position);
    x.b = b; x.kv = kv; x.slice = slice; x.valid = true; x.base = nullptr;
    const row_splits splits = splits_of(p, x.begin, x.end);
    /* see launch_short */
    if ((p.is_short || p.q_parts) && is_first_cta()) wait_for_previous();
    if ((int)place >= splits.count && !JOINS) return;
    const int split = splits.first + (int)place, blocks = (1 << splits.shift) / BLOCK;
    /* of a short row's split, which has fewer blocks than warps, 2 or 4 warps share a block: a
       warp's steps are lead .. lead + more of K, and as many of V */
    const int shares = PAIRS || STEPS == 1 ? 0
                     : splits.shift == SHORT_SHIFT ? 2 : splits.shift == HALF_SHIFT ? 1 : 0,
              more = (4 >> shares) - 1, lead = (warp & ((1 << shares) - 1)) << (2 - shares);
    const auto next = [&](int i) { return i + 1 + ((i + 1) & more ? 0 : 3 - more); };
    const int first = max(split * blocks, x.begin / BLOCK);
    const int last = (int)place >= splits.count ? first
                   : min((split + 1) * blocks, (x.end + BLOCK - 1) / BLOCK);
    launch_dependents();                            /* k_combine comes beside the last of these CTAs */
    /* block t belongs to ring t % RINGS, whatever the first one is */
    int in_block = first + ((warp - first) & (RINGS - 1)), fill = lead, fill_slot = 0, slot = 0;
    if (shares) in_block = split * blocks + (warp >> shares);
    if (in_block < first) in_block = last;
    x.block = in_block;
    row_source in = { nullptr, 0, 0 };
    auto advance = [&]() {                          /* step `fill` of in_block: four of K, four of V */
        if (!PAIRS) __syncwarp();                   /* all have read what was there */
        if (in_block < last) {
            cursor y = x;
            y.block = in_block;
            if (SCALES && fill == lead) {
                if (p.k_scales.data) send_scales(p, p.k_scales, b, kv, in_block, x.begin, x.end);
                if (p.v_scales.data) send_scales(p, p.v_scales, b, kv, in_block, x.begin, x.end);
            }
            if (fill % 4 == lead)
                in = fill < 4 ? row_source{ key_base<PAGED>(p, y), p.k_row, p.d * (int)sizeof(K) }
                              : row_source{ value_base<PAGED>(p, y), p.v_row, p.dv * (int)sizeof(K) };
            copy_rows<K, C, PAGED, PAIRS>(p, y, in, fill >= 4, fill % 4, half,
                                          mine + fill_slot * LOADS * 32);
            fill = next(fill);
            if (fill > 7) { in_block += RINGS; fill &= 7; }
        }
        if (++fill_slot == STEPS) fill_slot = 0;
        copy_commit();
    };
#pragma unroll 1
    for (int i = 0; i < STEPS - 1; i++) advance();
    float top[2] = { MASKED, MASKED }, den[2] = { 0.0f, 0.0f };
    float acc[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[i][k] = 0.0f;
    query<K, C, false> q;
    int unit[2] = { LEAST_UNIT, LEAST_UNIT };       /* see weigh_scales */
    if (x.block < last) load_slots(p, b, kv, slice, head, heads, q);
    for (; x.block < last; x.block += RINGS) {
        float s[2][8], m[2];
        float2 key_scales = { 1.0f, 1.0f };
        if (SCALES && p.k_scales.data)
            key_scales = scales_of_block(p, p.k_scales, b, kv, x.block, x.begin, x.end);
        /* a loop: little code counts, since it comes from memory */
#pragma unroll 1
        for (int i = lead; i < 8; i = next(i)) {
            float y[2][2];
            if (PAIRS) {                            /* both have copied this, and read the one before */
                copy_wait<(STEPS > 1 ? STEPS - 2 : 0)>();
                barrier_among(1 + warp, 64);
            }
            advance();
            if (!PAIRS) copy_wait<STEPS - 1>();
            const uint4 *const rows = mine + slot * LOADS * 32;
            if (++slot == STEPS) slot = 0;
            if (i < 4) {
                row_dots<K, C>(p, q, rows, y);
                if (SCALES && p.k_scales.data)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const float scale = lane_scale(key_scales, 2 * i + h);
                        y[0][h] *= scale;
                        y[1][h] *= scale;
                    }
                if (__builtin_expect(p.special, 0)) /* s has a warp's scores in its sharers' places, too */
                    finish_products(p, q.unscale, head, heads, x.block * BLOCK + 8 * r + 2 * i, x.position,
                                    y, x.begin, x.end - 1);
#pragma unroll
                for (int k = 0; k < 8; k++)
#pragma unroll
                    for (int e = 0; e < 2; e++) s[e][k] = ((k / 2 ^ i) & more) == 0 ? y[e][k & 1] : s[e][k];
                if (i < lead + more) continue;
                block_finish<false>(p, rest_of_scale(p, q.unscale), head, heads, x.block, x.begin, x.end,
                                    x.position, bad_pages<PAGED>(p, x), s, m);
                float keep[2];
                weigh_block(s, m, weight_bits<K>(p), ((2u << more) - 1) << lead, top, den, keep);
                if (SCALES && p.v_scales.data)
                    weigh_scales(p, x, (int)weight_bits<K>(p), s, keep, unit);
                keep_sums(keep, acc);
                continue;
            }
            weight_pair(s, i, y);
            if (!PAIRS) __syncwarp();               /* others' copies are there */
            with_numbers<K>(p, [&](auto type) { add_values<decltype(type), K, C>(rows, y, acc); });
        }
    }
    /* the warps; the ring is free now */
    copy_wait<0>();
    __syncthreads();
    warp_sums<PASS_HEADS, COLUMNS> *merge = (warp_sums<PASS_HEADS, COLUMNS> *)slots + half * RINGS;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int column = 16 * i + (eight_bits<K> ? 2 * r + k / 2 : r + 8 * (k / 2));
            if (SCALES && p.v_scales.data)
                acc[i][k] *= __uint_as_float((unsigned)(127 + unit[k & 1]) << 23);
            if (2 * c + (k & 1) < heads) merge[warp].head[2 * c + (k & 1)][column] = acc[i][k];
        }
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (top[e] >= MASK_LIMIT) top[e] -= weight_bits<K>(p);
    const i64 pitch = JOINS ? p.dv + 2 : split_pitch(p);
    float *const to = JOINS ? (float *)(merge + RINGS) : split_of(p, b, head, (int)place);
    write_split<RINGS>(p, merge, top, den, heads, to, pitch, 0, (int)threadIdx.x - half * 32 * RINGS);
    if constexpr (JOINS) {
        int from, end;
        if (p.is_short && !is_short_row(p, b, from, end)) return;
        if (p.is_short) wait_for_previous();        /* for what the kernels that draw write of such rows */
        join_in_cluster(p, to, pitch, b, head, heads, splits.count);
    }
}

/* K and V of q8_0 and q4_0: q's numbers are three digits of 8 bits, so that K's meet them as
   they are. A block's sums, whole numbers, are multiplied with its scale. */

/* Where number f of a row is multiplied in its block: an even one, which begins at half a word,
   is turned by two bytes, so that all its words but one are words of memory; q4_0 has two
   numbers in a byte. */
__device__ __forceinline__ int place_in_block(int type, int f, int by = 2) {
    const int last = type == SANTA_Q8_0 ? 31 : 15;
    return f & 32 ? f & 31 : (f & 31 & ~last) | ((f + by) & last);
}
__device__ __forceinline__ int number_at_place(int type, int block, int place) {
    return 32 * block + place_in_block(type, (block & 1) * 32 + place, -2);
}

/* q as digits, for the slots of tensor cores: digit i of head h is in slot i << part_shift | h,
   the highest digit first; slots lie as a lane multiplies them. A head with a number that is
   not finite has NaN as its unit.
   Grid: (KV head x slice, batch), a warp has a slot of each set. Reads q, writes q_sets * 8 * d
   bytes. */
__global__ void __launch_bounds__(SCORE_WARPS * 32) k_query_digits(const __grid_constant__ params p) {
    const int lane = threadIdx.x & 31, warp = this_warp(), b = blockIdx.y;
    const int kv = (int)blockIdx.x / p.q_slices, slice = (int)blockIdx.x - kv * p.q_slices,
              heads = min(p.group - slice * PASS_HEADS, (int)PASS_HEADS);
    const int own = warp & ((1 << p.part_shift) - 1), part = warp >> p.part_shift;
    const char *const row = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                          + (kv * p.group + slice * PASS_HEADS + min(own, heads - 1)) * p.q_stride[2];
    launch_dependents();
    float m = 0.0f;
#pragma unroll 1
    for (int f = lane; f < p.d; f += 32)
        m = max_or_nan(m, fabsf(load_one(p.q_type, row, f, p.q_stride[3])));
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) m = max_or_nan(m, __shfl_xor_sync(FULL, m, o));
    /* the largest is 2^21 or more and below 2^22 */
    const int above = max((int)(__float_as_uint(m) >> 23), 22), down = above - 127 - 21;
    const float up = __uint_as_float((unsigned)(127 - down) << 23),
                unit = m <= FLT_MAX ? __uint_as_float((unsigned)(127 + down) << 23) : NAN;
    const i64 item = b * p.kv_heads * p.q_slices + blockIdx.x;
    const float first = p.q_sets == 1 ? 65536.0f : 1.0f;
    if (lane == 0)
        p.q_unscale[item * PASS_HEADS + warp]
            = unit * first * __uint_as_float((unsigned)(127 - 8 * part) << 23)
            * (p.k_type == SANTA_Q4_0 ? 1.0f / 16.0f : 1.0f);     /* see upper_halves */
    signed char *const out = (signed char *)p.q_slots + item * p.q_sets * PASS_HEADS * BLOCK_DIM;
#pragma unroll 1
    for (int f = lane; f < p.d; f += 32) {
        const bool have = m <= FLT_MAX && own < heads;
        int x = have ? __float2int_rn(up * load_one(p.q_type, row, f, p.q_stride[3])) : 0, digit[3];
        digit[2] = (signed char)x;
        x = (x - digit[2]) >> 8;
        digit[1] = (signed char)x;
        digit[0] = (x - digit[1]) >> 8;
        /* lane r, c has places 4 c to 4 c + 3 of slot r in one word, those 16 further on in the
           other */
        const int at = place_in_block(p.k_type, f),
                  to = ((f / 32 * 32 + 4 * warp + (at / 4 & 3)) * 2 + (at / 16 & 1)) * 4 + (at & 3);
#pragma unroll 1
        for (int set = 0; set < p.q_sets; set++) {
            const int i = (set * PASS_HEADS >> p.part_shift) + part;
            const int y = i == 0 ? digit[0] : i == 1 ? digit[1] : i == 2 ? digit[2] : 0;
            out[set * PASS_HEADS * BLOCK_DIM + to] = (signed char)y;
        }
    }
}

/* A lane's pieces of two rows, every fourth one from `from` on, to memory `to` and 8 rows
   further on. */
template <int BYTES>
__device__ __forceinline__ void copy_fourths(unsigned to, const char *const (&from)[2], int pieces) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int k = 0; k < 5; k++)
            if (k < 2 || 4 * k < pieces)
                copy_some_at<BYTES>(to + 32 * BLOCK_WORDS * h + 4 * k * BYTES, from[h] + 4 * k * BYTES);
}
/* 16 rows of blocks on their way to slot, those of copy_rows, four lanes to each, so that there
   are few addresses. Rows have 8 to 20 pieces of 8 or 4 bytes. */
__device__ __forceinline__ void copy_blocks(const params &p, const cursor &x, bool of_v, int i,
                                            unsigned *slot) {
    const int c = threadIdx.x & 3, m = (threadIdx.x & 31) >> 2, staged = of_v ? p.staged_v : p.staged_k,
              left = (plain_bytes_of(p, of_v, of_v ? p.dv : p.d) >> staged) - c;
    const i64 *const stride = of_v ? p.v_stride : p.k_stride;
    const char *const data = (of_v ? p.v : p.k) + x.kv * stride[2] + (c << staged);
    const int first = x.block * BLOCK + 2 * i + 8 * m;             /* the lane's keys: this, and the next */
    const char *row[2];
    if (agreed(!p.table && x.block * BLOCK >= x.begin && (x.block + 1) * BLOCK <= x.end)) {
        row[0] = data + x.b * stride[0] + first * stride[1];
        row[1] = row[0] + stride[1];
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const i64 at = row_offset(p, stride, x.b, min(max(first + h, x.begin), x.end - 1));
            row[h] = data + (at == NO_ROW ? 0 : at);
        }
    }
    const unsigned to
        = (unsigned)__cvta_generic_to_shared(slot + m * BLOCK_WORDS) + (unsigned)(c << staged);
    if (staged == 3) copy_fourths<8>(to, row, left); else copy_fourths<4>(to, row, left);
}

/* Two blocks of a row at a time, HALF words that begin with the first one's scale: word k of
   the numbers of either as place_in_block has them, and the scales. */
template <int HALF> struct block_pair_words {
    enum { MIDDLE = HALF / 2 };
    const unsigned *at;
    unsigned first, middle;
    __device__ __forceinline__ block_pair_words(const unsigned *row, int pair)
        : at(row + HALF * pair), first(at[0]), middle(at[MIDDLE]) { }
    __device__ __forceinline__ unsigned even(int k) const {         /* any k */
        return __byte_perm(at[k], middle, k ? 0x3210 : 0x3254);
    }
    __device__ __forceinline__ unsigned even_behind(int k) const { return at[k]; }  /* not the first */
    __device__ __forceinline__ unsigned odd(int k) const { return at[MIDDLE + 1 + k]; }
    __device__ __forceinline__ float unit(int odd) const {
        return __half2float(__ushort_as_half((unsigned short)(odd ? middle >> 16 : first & 0xffffu)));
    }
};
enum { Q8_HALF = 17, Q4_HALF = 9 };
/* Halves of bytes, less 8, as the upper ones of signed bytes. */
__device__ __forceinline__ unsigned upper_halves(unsigned x) { return (x & 0xf0f0f0f0u) ^ 0x80808080u; }

/* Scores of 16 keys, as row_dots has them, in q's digits. Sums of tensor cores begin at an
   integer whose bits are the float 1.5 * 2^23, so that they are floats. */
template <int HALF>
__device__ __forceinline__ void block_dots_of(const params &p, const block_digits &q,
                                              const unsigned *slot, float y[2][2]) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    const float zero = 12582912.0f, next = p.part_shift == 3 ? 256.0f : 65536.0f;
    const unsigned *const row[2] = { slot + r * BLOCK_WORDS, slot + (r + 8) * BLOCK_WORDS };
    float total[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
    for (int pair = 0; pair < BLOCK_DIM / 64; pair++) {
        if (64 * pair >= p.d) break;
        unsigned a[2][4];
        float unit[2][2], x[2][4];
        int sums[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const block_pair_words<HALF> words(row[h], pair);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const unsigned w = n ? words.odd(c) : words.even(c);
                unit[n][h] = words.unit(n);
                a[n][h] = HALF == Q8_HALF ? w : upper_halves(w << 4);
                a[n][2 + h] = HALF == Q8_HALF ? n ? words.odd(4 + c) : words.even_behind(4 + c)
                                              : upper_halves(w);
            }
        }
        const auto multiply = [&](int set) {
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma_bytes(sums[n], a[n], q.digits[set][2 * pair + n][lane], __float_as_int(zero));
        };
        multiply(0);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k / 4][k % 4] = __int_as_float(sums[k / 4][k % 4]) - zero;
#pragma unroll 1
        for (int set = 1; set < p.q_sets; set++) {
            multiply(set);
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k / 4][k % 4] = fmaf(x[k / 4][k % 4], next, __int_as_float(sums[k / 4][k % 4]) - zero);
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            total[k % 4] = fmaf(unit[k / 4][k % 4 / 2], x[k / 4][k % 4], total[k % 4]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) y[i & 1][i / 2] = total[i] * q.unit[2 * c + (i & 1)];
}
__device__ __forceinline__ void block_dots(const params &p, const block_digits &q, const unsigned *slot,
                                           float y[2][2]) {
    if (p.k_type == SANTA_Q8_0) block_dots_of<Q8_HALF>(p, q, slot, y);
    else block_dots_of<Q4_HALF>(p, q, slot, y);
}
/* Scores of step i of a block, 16 keys in slot: a pair of each lane's in s. */
__device__ __forceinline__ void step_of_block(const params &p, const block_digits &q, const unsigned *slot,
                                              const cursor &x, int head, int heads, int i, float s[2][8]) {
    const int r = (threadIdx.x & 31) >> 2;
    float y[2][2];
    block_dots(p, q, slot, y);
    finish_products(p, 1.0f, head, heads, x.block * BLOCK + 8 * r + 2 * i, x.position, y);
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) s[e][k] = k / 2 == i ? y[e][k & 1] : s[e][k];
}
/* q's digits of a slice, by so many threads. */
__device__ __forceinline__ void load_digits(const params &p, int b, int kv, int slice, int thread,
                                            int threads, block_digits &q) {
    const i64 item = (i64)(b * p.kv_heads + kv) * p.slices + slice;
    const int words = p.q_sets * PASS_HEADS * BLOCK_DIM / 16;
    const uint4 *const digits = (const uint4 *)p.q_slots + item * words;
    wait_for_previous();                            /* k_query_digits */
#pragma unroll 1
    for (int k = thread; k < words; k += threads) ((uint4 *)q.digits)[k] = digits[k];
    if (thread < PASS_HEADS) q.unit[thread] = p.q_unscale[item * PASS_HEADS + thread];
}

/* Adds V's rows in slot times weights, as add_values does. Bytes are exact in bf16; a block's
   scale is the weights'. A lane's sums are of place 4 r + 2 t + k / 2 of block n in acc[2 n +
   t][k]. */
template <int HALF>
__device__ __forceinline__ void add_blocks(const params &p, const unsigned *slot, const float y[2][2],
                                           float (&acc)[BLOCK_DIM / 16][4]) {
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    float weight[4];                                /* of slot r and rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9 */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const unsigned a = __float_as_uint(y[0][h]), d = __float_as_uint(y[1][h]);
        const unsigned high = transpose(__byte_perm(a, d, 0x7632)),
                       low = transpose(__byte_perm(a, d, 0x5410));
        weight[2 * h] = __uint_as_float(__byte_perm(low, high, 0x5410));
        weight[2 * h + 1] = __uint_as_float(__byte_perm(low, high, 0x7632));
    }
    const unsigned *row[4];
#pragma unroll
    for (int m = 0; m < 4; m++) row[m] = slot + (2 * c + (m & 1) + 8 * (m >> 1)) * BLOCK_WORDS;
#pragma unroll
    for (int pair = 0; pair < BLOCK_DIM / 64; pair++) {
        if (64 * pair >= p.dv) break;
        const block_pair_words<HALF> words[4] = { { row[0], pair }, { row[1], pair }, { row[2], pair },
                                                  { row[3], pair } };
#pragma unroll
        for (int n = 2 * pair; n < 2 * pair + 2; n++) {
            unsigned x[4], hi[2], lo[2];
            float w[4];
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const int k = HALF == Q8_HALF ? r : r & 3;
                w[m] = weight[m] * words[m].unit(n & 1);
                x[m] = n & 1 ? words[m].odd(k) : words[m].even(k);
                if (HALF == Q4_HALF) x[m] = upper_halves(x[m] << (r < 4 ? 4 : 0));
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                hi[h] = pack_pair<__nv_bfloat16>(w[2 * h], w[2 * h + 1]);
                lo[h] = pack_pair<__nv_bfloat16>(w[2 * h] - __uint_as_float(hi[h] << 16),
                                                 w[2 * h + 1] - __uint_as_float(hi[h] & 0xffff0000u));
            }
#pragma unroll
            for (int t = 0; t < 2; t++) {
                unsigned a[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const unsigned at = 2u * (unsigned)t + (k & 1u),
                                   u = __byte_perm(x[k & 2], x[(k & 2) + 1], 0x4400u + at * 0x1111u);
                    /* 128 and the lower bits, less 128 or 256 */
                    a[k] = add_pairs((u & 0x007f007fu) | 0x43004300u, (u & 0x00800080u) | 0xc300c300u);
                }
                mma(acc[2 * n + t], a[0], a[1], a[2], a[3], hi[0], hi[1], __nv_bfloat16());
                mma(acc[2 * n + t], a[0], a[1], a[2], a[3], lo[0], lo[1], __nv_bfloat16());
            }
        }
    }
}

/* k_scores for K of q8_0 and q4_0, with pages or without; see there.
   Grid: as k_scores. No barrier. Bound by instructions. */
__global__ void __launch_bounds__(SCORE_WARPS * 32, 2) k_scores_blocks(const __grid_constant__ params p) {
    enum { STEPS = BLOCK_SCORE_STEPS };
    DYNAMIC_SHARED(slots);
    block_scores_memory &shared = *(block_scores_memory *)slots;
    const int lane = threadIdx.x & 31, warp = this_warp();
    const unsigned from = blockIdx.x * p.steps + min(blockIdx.x, p.longer),
                   end = (from + p.steps + (blockIdx.x < p.longer)) * SCORE_WARPS;
    unsigned (*const mine)[16 * BLOCK_WORDS] = shared.ring[warp];
    block_digits &q = shared.q[warp];
    cursor in, x;
    in.w = from * SCORE_WARPS + warp;
    settle(p, end, in);
    x = in;
    if (is_first_cta()) wait_for_previous();        /* see launch_short */
    int fill_slot = 0, slot = 0, q_b = -1, q_kv = -1, q_slice = -1;
    u64 key = 0;
    float s[2][8], m[2];
#pragma unroll 1
    for (int step = 1 - STEPS;; step++) {
        const int fill = (step + STEPS - 1) & 3, i = step & 3;
        __syncwarp();                               /* all have read what was there */
        if (agreed(in.valid)) {
            copy_blocks(p, in, false, fill, mine[fill_slot]);
            if (fill == 3) {
                in.w += SCORE_WARPS;
                settle(p, end, in);
            }
        }
        if (++fill_slot == STEPS) fill_slot = 0;
        copy_commit();
        if (step < 0) continue;
        if (step == 0) {
            zero_arrivals(p);
            launch_dependents();                    /* gather's CTAs start up as soon as there is room */
        }
        if (agreed(!x.valid)) break;
        const int head = x.kv * p.group + x.slice * PASS_HEADS,
                  heads = min(p.group - x.slice * PASS_HEADS, (int)PASS_HEADS);
        if (agreed(x.b != q_b || x.kv != q_kv || x.slice != q_slice)) {
            load_digits(p, x.b, x.kv, x.slice, lane, 32, q);
            if (x.b != q_b && p.stash_type == SANTA_STASH_U8) key = row_key<1>(p, x.b);
            q_b = x.b; q_kv = x.kv; q_slice = x.slice;
        }
        copy_wait<STEPS - 1>();
        __syncwarp();                               /* others' copies are there, and their digits */
        const unsigned *const rows = mine[slot];
        if (++slot == STEPS) slot = 0;
        step_of_block(p, q, rows, x, head, heads, i, s);
        if (i < 3) continue;
        block_finish<false>(p, 1.0f, head, heads, x.block, x.begin, x.end, x.position, bad_rows(p, x),
                            s, m);
        write_block(p, x.b, x.kv, x.slice, x.block, heads, key, s, m);
        x.w += SCORE_WARPS;
        settle(p, end, x);
    }
}

/* k_dense for K and V of q8_0 and q4_0, with pages or without; see there.
   Grid: (split, KV head x slice of 8 heads, batch). Bound by instructions: q4_0 takes as long
   as q8_0. Barriers: for q's digits; at the end all warps must be through with the ring, where
   their sums go then; and for these, in write_split. */
__global__ void __launch_bounds__(SCORE_WARPS * 32, 2) k_dense_blocks(const __grid_constant__ params p) {
    enum { STEPS = BLOCK_STEPS, TILES = BLOCK_DIM / 16 };
    DYNAMIC_SHARED(slots);
    blocks_memory &shared = *(blocks_memory *)slots;
    const int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3, warp = this_warp();
    const int b = blockIdx.z, kv = (int)p.by_slices.quotient(blockIdx.y),
              slice = (int)blockIdx.y - kv * p.slices;
    const int head = kv * p.group + slice * PASS_HEADS,
              heads = min(p.group - slice * PASS_HEADS, (int)PASS_HEADS);
    unsigned (*const mine)[16 * BLOCK_WORDS] = shared.ring[warp];
    cursor x;
    key_range(p, b, x.begin, x.end, x.position);
    x.b = b; x.kv = kv; x.slice = slice; x.valid = true; x.base = nullptr;
    const row_splits splits = splits_of(p, x.begin, x.end);
    if (is_first_cta()) wait_for_previous();        /* see launch_short */
    if ((int)blockIdx.x >= splits.count) return;
    const int split = splits.first + (int)blockIdx.x, blocks = (1 << splits.shift) / BLOCK;
    const int first = max(split * blocks, x.begin / BLOCK);
    const int last = min((split + 1) * blocks, (x.end + BLOCK - 1) / BLOCK);
    launch_dependents();                            /* k_combine comes beside the last of these CTAs */
    x.block = first + ((warp - first) & (SCORE_WARPS - 1));
    int in_block = x.block, fill_slot = 0, slot = 0;
    float top[2] = { MASKED, MASKED }, den[2] = { 0.0f, 0.0f }, s[2][8], m[2];
    float acc[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[i][k] = 0.0f;
    /* step % 8 of a block: four of K, four of V; one piece of code for all of them */
#pragma unroll 1
    for (int step = 1 - STEPS;; step++) {
        const int fill = (step + STEPS - 1) & 7, i = step & 7;
        __syncwarp();                               /* all have read what was there */
        if (agreed(in_block < last)) {
            cursor y = x;
            y.block = in_block;
            copy_blocks(p, y, fill >= 4, fill & 3, mine[fill_slot]);
            if (fill == 7) in_block += SCORE_WARPS;
        }
        if (++fill_slot == STEPS) fill_slot = 0;
        copy_commit();
        if (step < 0) continue;
        if (step == 0) {
            load_digits(p, b, kv, slice, (int)threadIdx.x, SCORE_WARPS * 32, shared.q);
            __syncthreads();
        }
        if (agreed(x.block >= last)) break;
        copy_wait<STEPS - 1>();
        __syncwarp();                               /* others' copies are there */
        const unsigned *const rows = mine[slot];
        if (++slot == STEPS) slot = 0;
        float y[2][2];
        if (i < 4) {
            step_of_block(p, shared.q, rows, x, head, heads, i, s);
            if (i < 3) continue;
            block_finish<false>(p, 1.0f, head, heads, x.block, x.begin, x.end, x.position, bad_rows(p, x),
                                s, m);
            float keep[2];
            weigh_block(s, m, 0.0f, 15, top, den, keep);
            keep_sums(keep, acc);
            continue;
        }
        weight_pair(s, i, y);
        if (p.v_type == SANTA_Q8_0) add_blocks<Q8_HALF>(p, rows, y, acc);
        else add_blocks<Q4_HALF>(p, rows, y, acc);
        if (i == 7) x.block += SCORE_WARPS;
    }
    copy_wait<0>();
    __syncthreads();
    warp_sums<PASS_HEADS, BLOCK_DIM> *const merge = (warp_sums<PASS_HEADS, BLOCK_DIM> *)slots;
    const float unit = p.v_type == SANTA_Q8_0 ? 1.0f : 1.0f / 16.0f;  /* see upper_halves */
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            merge[warp]
                .head[2 * c + (k & 1)][number_at_place(p.v_type, i / 2, 4 * r + 2 * (i & 1) + k / 2)]
                = acc[i][k] * unit;
    write_split<SCORE_WARPS>(p, merge, top, den, heads, split_of(p, b, head, (int)blockIdx.x),
                             split_pitch(p), 0, (int)threadIdx.x);
}

/* With p.list_early the ranges come first, and what follows begins with a part of its own: the
   places of those `head` keys hang on nothing that the kernel before makes, so that their rows
   are on their way before it ends. From a place to i above. */
__device__ __forceinline__ int place_of(const listed &x, int at) {
    if (!x.head) return at;
    if (at < x.head) return at < x.front + x.back ? x.count + at : x.all;
    at -= x.head;
    return at < x.count ? at : at + x.front + x.back;
}
__device__ __forceinline__ void set_ranges(const list_range &range, listed &x) {
    x.front = min(max(range.to - x.begin, 0), x.end - x.begin);
    x.back = min(max(x.end - range.from, 0), x.end - x.begin - x.front);
    x.from = range.to;
    x.to = range.from;
}
/* What is known before the list is; then the rest. */
__device__ __forceinline__ listed begin_list(const params &p, int b, int item) {
    listed x;
    const i64 at = p.list_batch * b + p.list_pitch * item;
    key_range(p, b, x.begin, x.end, x.position);
    x.len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity;
    x.keys = p.list + at;
    x.weights = p.list_weights ? p.list_weights + at : nullptr;
    x.count = x.front = x.back = x.pieces = x.piece_count = x.head = 0;
    if (p.list_early) {
        set_ranges(far_keys(p, b, item * p.list_heads / p.group, x.begin, x.end), x);
        x.head = (x.front + x.back + p.list_keys - 1) / p.list_keys * p.list_keys;
    }
    x.all = x.front + x.back;
    return x;
}
__device__ __forceinline__ void see_list(const params &p, int b, int item, listed &x) {
    x.count = p.list_lens ? min(max(p.list_lens[p.lens_batch * b + item], 0), p.list_most) : p.list_most;
    if (p.list_ranges && !p.list_early) set_ranges(p.list_ranges[p.ranges_batch * b + item], x);
    if (p.lists_all) x.front = x.end - x.begin;
    const list_pieces pieces = p.pieces ? p.pieces[p.ranges_batch * b + item] : list_pieces{ 0, 0 };
    x.pieces = pieces.keys;
    x.piece_count = pieces.count;
    x.all = x.count + x.front + x.back + x.pieces;
    x.places = x.head ? x.head + x.count + x.pieces : x.all;
}
__device__ __forceinline__ listed listed_keys(const params &p, int b, int item) {
    listed x = begin_list(p, b, item);
    see_list(p, b, item, x);
    return x;
}

/* Keys of a part of k_list_many: of long lists more, so that few sums are written, of short
   ones fewer, so that there are enough CTAs, usually 32 for a list. By the list's length alone,
   so that bits do not depend on the batch. */
__device__ __forceinline__ int part_keys(const params &p, int places) {
    if (p.list_keys) return p.list_keys;
    const int length = 32 - __clz(max(places - 1, 1));
    return 1 << min(max(length - MANY_PARTS, (int)MANY_LEAST), (int)MANY_MOST);
}

/* How many splits a head has; -1: its row has been drawn. */
__device__ __forceinline__ int splits_to_join(const params &p, int b, int head) {
    int begin, end, position;
    if (p.is_short && !is_short_row(p, b, begin, end)) {
        if (is_first_cta()) wait_for_previous();    /* see launch_short */
        return -1;
    }
    if (p.list_heads) {                             /* k_list's CTAs have seen the lists complete */
        const int places = listed_keys(p, b, head / p.list_heads).places, keys = part_keys(p, places);
        return (places + keys - 1) / keys;
    }
    key_range(p, b, begin, end, position);
    return splits_of(p, begin, end).count;
}

/* Merges the splits of k_dense or k_list: out and lse.
   Grid: (query head, batch, 128 columns of V). A CTA of 512 threads: the maximum, the
   denominator in f64, then four threads to a column, each with a quarter of every 128 splits,
   in a fixed order.
   Reads, per CTA: splits * (128 + 2) floats. Flops: 2 * splits * 128. Latency-bound.
   Barriers: for the maximum; for every 128 weights, before they are written and before they are
   read; for the quarters' sums. */
__global__ void __launch_bounds__(512) k_combine(const __grid_constant__ params p) {
    SHARED(shared, combine_memory);
    const int head = blockIdx.x, b = blockIdx.y, tid = threadIdx.x, quarter = tid / 128,
              k = blockIdx.z * 128 + tid % 128;
    const int last = splits_to_join(p, b, head), column = min(k, p.dv - 1);
    if (last < 0) return;
    const i64 pitch = p.dv + 2;
    const float *partial = p.partial + ((i64)b * p.heads + head) * p.splits * pitch;
    if (tid == 0) prefetch((const char *)partial);
    /* splits of a quarter at a time: a short list's are dealt evenly */
    const int each = p.list_heads ? (min(last, 128) + 3) / 4 : 32;
    wait_for_previous();
    float m = MASKED, sum = 0.0f, own_top = MASKED, own_sum = 0.0f, x[32];
    double total = 0.0;
    /* the first 128 splits' sums are on their way while their maxima are */
    const auto load = [&](int from, int n) {
        const float *at = partial + from * pitch + column;
#pragma unroll
        for (int z = 0; z < 32; z++, at += pitch) if (z < n) x[z] = *at;
    };
    if (tid < last) {
        own_top = partial[tid * pitch + p.dv];
        own_sum = partial[tid * pitch + p.dv + 1];
    }
#pragma unroll 1
    for (int base = 0; base < last; base += 4 * each) {
        const int from = base + each * quarter, n = min(last - from, each);
        float w = 0.0f;
        load(from, n);
        if (base == 0) {
            m = own_top;
#pragma unroll 1
            for (int i = tid + 512; i < last; i += 512) m = fmaxf(m, partial[i * pitch + p.dv]);
#pragma unroll
            for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
            if (tid % 32 == 0) shared.tops[tid / 32] = m;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                const float4 y = *(const float4 *)(shared.tops + i);
                m = fmaxf(fmaxf(m, fmaxf(y.x, y.y)), fmaxf(y.z, y.w));
            }
        } else __syncthreads();                     /* weights have been read */
        if (tid < 4 * each && base + tid < last) {
            const float mi = base > 0 ? partial[(base + tid) * pitch + p.dv] : own_top,
                        d = base > 0 ? partial[(base + tid) * pitch + p.dv + 1] : own_sum;
            w = mi < MASK_LIMIT ? d == d ? 0.0f : d : pow2(mi - m);
            total += (double)w * (double)d;                           /* NaN * 0 keeps a NaN */
        }
        if (tid < 128) shared.weight[tid] = w;
        __syncthreads();
#pragma unroll
        for (int z = 0; z < 32; z++) if (z < n) sum += shared.weight[each * quarter + z] * x[z];
    }
    shared.sums[quarter][tid % 128] = sum;
    if (tid < 128) {                                /* the others have no weights */
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) total += __shfl_xor_sync(FULL, total, o);
        if (tid % 32 == 0) shared.scratch[tid / 32] = total;
    }
    __syncthreads();
    const double all = ((shared.scratch[0] + shared.scratch[1]) + shared.scratch[2]) + shared.scratch[3];
    const bool writes = !quarter && k < p.dv;
    if (writes)
        sum = (shared.sums[0][tid] + shared.sums[1][tid]) + (shared.sums[2][tid] + shared.sums[3][tid]);
    write_joined<true>(p, b, head, m, all, tid == 511 && blockIdx.z == 0, [&](auto finish) {
        if (writes) finish(k, sum);
    });
}

/* The same of at most 32 splits, the same sums: a warp has a head, so that many are joined at
   once, and no barrier stands between. Grid: (8 query heads, batch, 128 columns of V), 256
   threads. */
__global__ void __launch_bounds__(256, 4) k_combine_few(const __grid_constant__ params p) {
    const int lane = threadIdx.x & 31, head = (int)blockIdx.x * 8 + this_warp(), b = blockIdx.y,
              column = (int)blockIdx.z * 128 + lane;
    if (head >= p.heads) return;                    /* of a CTA the first warp has one, and waits */
    const int last = splits_to_join(p, b, head), each = p.list_heads ? (last + 3) / 4 : 32;
    if (last < 0) return;
    const i64 pitch = p.dv + 2;
    const float *const partial = p.partial + ((i64)b * p.heads + head) * p.splits * pitch;
    wait_for_previous();
    const float top = lane < last ? partial[lane * pitch + p.dv] : MASKED,
                mass = lane < last ? partial[lane * pitch + p.dv + 1] : 0.0f;
    const joined_splits joined = join_splits(top, mass, lane < last);
    float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f }, half[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 1
    for (int q = 0; q < 4; q++) {
        const int end = min(last, each * (q + 1));
        float quarter[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 1
        for (int z = each * q; z < end; z += 4) {
            float x[4][4];
            const float *from = partial + z * pitch + column;
#pragma unroll
            for (int u = 0; u < 4; u++, from += pitch)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[u][i] = z + u < end && column + 32 * i < p.dv ? from[32 * i] : 0.0f;
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const float weight = __shfl_sync(FULL, joined.weight, z + u);
                if (z + u < end)
#pragma unroll
                    for (int i = 0; i < 4; i++) quarter[i] += weight * x[u][i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            half[i] = q & 1 ? half[i] + quarter[i] : quarter[i];
            if (q & 1) sum[i] += half[i];
        }
    }
    write_joined<true>(p, b, head, joined.top, joined.all, lane == 0 && blockIdx.z == 0, [&](auto finish) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            if (column + 32 * i < p.dv) finish(column + 32 * i, sum[0]);
#pragma unroll
            for (int u = 0; u < 3; u++) sum[u] = sum[u + 1];
        }
    });
}

/* ------------------------------------------------------------------------- >>prefill-kernel */

/* Exact attention of many query rows. A tile is TILE_QUERIES queries: some query rows, of each
   of them p.tile_heads heads of a group, which share the K and V that it reads; query m is head
   m % tile_heads of row m / tile_heads. Keys come in blocks of 64, in shared memory as lines of
   64 features: line [feature / 64][key], its eight 16-byte pieces exchanged by key % 8, so that
   neither ldmatrix nor the tensor cores meet a bank conflict.
   A query's bits do not depend on the tile it is in: blocks begin at multiples of 64 (pairs of
   them: 128) of the key's number, a block that it does not see changes nothing, and V's numbers
   that are not finite are taken out of blocks that some query of the tile sees in part. */
struct tile {
    int b, kv, head, heads;                         /* the first head, and how many */
    int from, rows, column;                         /* query rows; the first column of V */
    int begin, end;                                 /* keys that some row sees */
    int all_begin, all_end;                         /* that each row sees; may be empty */
};

__device__ __forceinline__ int floor_mod(int a, int b) { const int x = a % b; return x < 0 ? x + b : x; }

/* Grid: (tiles of rows, KV head x slice of its group x 128 columns, batch), the longest rows
   first, which are number 0. */
__device__ __forceinline__ tile locate_tile(const params &p, int number) {
    tile t;
    const int columns = (int)blockIdx.y % p.v_slices, rest = (int)blockIdx.y / p.v_slices,
              slice = rest % p.tile_slices, i = p.tiles - 1 - number;
    int position, skip = 0, ignored;
    t.b = blockIdx.z;
    t.kv = rest / p.tile_slices;
    t.column = columns * TILE_COLUMNS;
    t.head = t.kv * p.group + slice * p.tile_heads;
    t.heads = min(p.group - slice * p.tile_heads, p.tile_heads);
    row_range(p, t.b, 0, 1, t.begin, t.end, position);
    if (p.by_position) skip = floor_mod(position, p.tile_rows);
    t.from = max(i * p.tile_rows - skip, 0);
    t.rows = min((i + 1) * p.tile_rows - skip, p.q_len) - t.from;
    if (t.rows <= 0) { t.rows = t.begin = t.end = t.all_begin = t.all_end = 0; return t; }
    row_range(p, t.b, t.from, 1, t.begin, t.all_end, position);
    row_range(p, t.b, t.from + t.rows - 1, 1, t.all_begin, t.end, ignored);
    if (p.kv_start) t.begin = max(t.begin, p.kv_start[t.b]);         /* the first rows may see nothing */
    t.begin = min(t.begin, t.end);
    return t;
}

/* Query m of a tile; row: -1 if it has none. */
struct tile_query { int row, head; };
__device__ __forceinline__ tile_query query_of(const params &p, const tile &t, int m) {
    const int row = (int)p.by_tile_heads.quotient((unsigned)m), head = m - row * (int)p.by_tile_heads.d;
    return { row < t.rows && head < t.heads ? t.from + row : -1, t.head + head };
}

/* Blocks 32 w .. 32 w + 31 of those that block r of query rows of sequence b reads, by a head's
   sets, see
   >>sparse in santa.h: columns are bits from block 0 on. Slashes are backwards and in pairs
   already: bit 32 * mask_words - 1 - s says that the block s before its query's is read. */
__device__ __forceinline__ unsigned set_word(const params &p, int b, const unsigned *columns, int r,
                                             int w) {
    const unsigned *slashes = columns + p.mask_words;
    const int bit = 32 * w + 32 * p.mask_words - 1 - r, i = bit >> 5, after = r - 32 * w;
    const unsigned low = i < p.mask_words ? slashes[i] : 0,
                   high = i + 1 < p.mask_words ? slashes[i + 1] : 0;
    unsigned x = columns[w] | __funnelshift_r(low, high, (unsigned)bit & 31u);
    const int first = padding_of(p, b) >> p.block_shift;
    if (first >= 32 * w) x |= first - 32 * w < 31 ? (2u << (first - 32 * w)) - 1u : FULL;
    if (after < 32) x |= after <= 0 ? FULL : FULL << after;
    return x;
}

/* The same by a mask. To be asked by whole warps. */
__device__ __forceinline__ unsigned mask_word(const params &p, int b, int head, int r, int first_row,
                                              int w) {
    const i64 at = ((i64)b * p.all_heads + head) * p.q_blocks + r - first_row;
    const int block = 32 * w + (int)(threadIdx.x & 31);
    return __ballot_sync(FULL, block < p.k_blocks && p.mask[at * p.k_blocks + block]);
}

/* The blocks of 64 keys that a tile reads, in order. To be asked by whole warps. */
struct block_list {
    int at, last;                                   /* the next to look at; behind the last */
    int head, kv, row, first_row;                   /* of the sets, or the mask */
    int word_of, words_of;                          /* which word is in word, and which 32 lanes have */
    unsigned word, words;
    bool all;

    __device__ __forceinline__ void begin(const params &p, const tile &t, int first) {
        int begin, end, position;
        at = first;
        last = t.begin < t.end ? (t.end + BLOCK - 1) / BLOCK : first;
        all = !p.is_sparse;
        head = t.head;
        kv = t.kv;
        word_of = words_of = -1;
        word = words = 0;
        row = first_row = 0;
        if (all) return;
        row_range(p, t.b, 0, 1, begin, end, position);
        first_row = position >> p.block_shift;
        row = (position + t.from) >> p.block_shift;
    }
    /* -1: there are no more */
    __device__ __forceinline__ int next(const params &p, int b) {
        const int shift = p.block_shift - 6;        /* a block of the mask is one of 64 keys or two */
        while (!all && at < last) {
            const int block = at >> shift, w = block >> 5;
            if (w != word_of) {
                if (p.mask) word = mask_word(p, b, head, row, first_row, w);
                else {
                    if (w >> 5 != words_of) {       /* a lane has one, so that they come at once */
                        const int mine = (w & ~31) + (int)(threadIdx.x & 31);
                        const unsigned *sets = p.sets + ((i64)b * p.heads + head) * 2 * p.mask_words;
                        words = mine < p.mask_words ? set_word(p, b, sets, row, mine) : 0;
                        if (p.runs_dense[b * (int)p.kv_heads + kv]) words = FULL;
                        words_of = w >> 5;
                    }
                    word = __shfl_sync(FULL, words, w & 31);
                }
                word_of = w;
            }
            const unsigned rest = word >> (block & 31);
            if (rest & 1u) break;
            at = (rest ? block + __ffs((int)rest) - 1 : 32 * (w + 1)) << shift;
        }
        return at < last ? at++ : -1;
    }
};

/* Byte of a 16-byte piece in a tile of so many lines a chunk. */
__device__ __forceinline__ int piece_at(int lines, int line, int piece) {
    return ((piece >> 3) * lines + line) * 128 + ((piece ^ line) & 7) * 16;
}

/* A thread's part in copies of 64 keys, of TILE_THREADS that share them: a piece of every 16th
   row, from its own on. A piece keeps its place in a line then, so copies differ by
   constants. */
struct copier {
    const char *from;                               /* its piece of key 0's row, of pages that of page 0 */
    i64 token, page;                                /* bytes */
    int features;                                   /* what is left of a row */
    int eight;                                      /* p.eight of these rows */

    __device__ __forceinline__ copier(const params &p, const tile &t, bool is_k, int column) {
        const int thread = threadIdx.x % TILE_THREADS, piece = thread & 7;
        const i64 *const stride = is_k ? p.k_stride : p.v_stride;
        token = stride[1];
        page = stride[0];
        eight = p.eight[!is_k];
        features = (is_k ? p.d : p.dv) - column - 8 * piece;
        from = (is_k ? p.k : p.v) + t.kv * stride[2] + (eight < 0 ? 2 : 1) * (column + 8 * piece)
             + (p.table ? 0 : t.b * page);
    }
    /* Key j's; nullptr: no row of the tile sees it; 1: its page does not exist. */
    __device__ __forceinline__ const char *row(const params &p, const tile &t, int j) const {
        if (j < t.begin || j >= t.end) return nullptr;
        if (!p.table) return from + j * token;
        const unsigned on = p.by_page.quotient((unsigned)j);
        const int number = p.table[t.b * p.table_stride + on];
        if ((unsigned)number >= (unsigned)p.pages) return (const char *)1;
        return from + (number * page + (j - (int)(on * p.by_page.d)) * token);
    }
};

/* Two floats of 8 bits as numbers of q's type, which has them all. */
__device__ __forceinline__ unsigned widened(const params &p, int type, unsigned two) {
    const unsigned halves = __byte_perm(two, 0, 0x1404);
    const __half2 x = type == SANTA_E4M3 ? e4m3_pair((unsigned short)two) : *(const __half2 *)&halves;
    if (p.q_type == SANTA_F16) return *(const unsigned *)&x;
    const float2 y = __half22float2(x);
    const __nv_bfloat162 z = __floats2bfloat162_rn(y.x, y.y);
    return *(const unsigned *)&z;
}

/* copy_block of rows in floats of 8 bits. They are there when it returns. */
template <int LINES, int CHUNKS>
__device__ __forceinline__ void widen_block_here(const params &p, const tile &t, const copier &x, int first,
                                            int chunks, unsigned at, bool is_k) {
    enum { AT_ONCE = CHUNKS ? CHUNKS : 1 };
    const int row = first + ((int)(threadIdx.x % TILE_THREADS) >> 3);
#pragma unroll 1
    for (int c = 0; c < (CHUNKS ? CHUNKS : chunks); c += AT_ONCE) {
        uint2 y[4][AT_ONCE];                        /* all on their way before the first is looked at */
        unsigned broken = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const char *from = x.row(p, t, row + 16 * i);
            if (is_k && from == (const char *)1) broken |= 1u << i;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const bool some = (uintptr_t)from > 1 && x.features > 64 * (c + k);
                y[i][k] = some ? *(const uint2 *)(from + 64 * (c + k)) : make_uint2(0, 0);
            }
        }
#pragma unroll 1
        for (int i = 0; i < 4; i++, broken >>= 1)   /* one after the other comes to the front */
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const unsigned none = broken & 1u ? FULL : 0, a = y[0][k].x, b = y[0][k].y;
                store16_at(at + 16 * 128 * i + LINES * 128 * (c + k),
                           make_uint4(widened(p, x.eight, a & 0xffffu) | none,
                                      widened(p, x.eight, a >> 16) | none,
                                      widened(p, x.eight, b & 0xffffu) | none,
                                      widened(p, x.eight, b >> 16) | none));
                y[0][k] = y[1][k];
                y[1][k] = y[2][k];
                y[2][k] = y[3][k];
            }
    }
}

template <int LINES>
__device__ __noinline__ void widen_block(const params &p, const tile &t, const copier &x, int first,
                                         int chunks, unsigned at, bool is_k) {
    widen_block_here<LINES, 0>(p, t, x, first, chunks, at, is_k);
}

/* The rows of 64 keys from `first` on their way to lines `at` and on, of this thread's piece
   there; zeros for what no row of the tile sees. A key whose page does not exist is NaN in K,
   so that who sees it is. CHUNKS: of 64 features, or 0: as many as `chunks`. */
template <int LINES, int CHUNKS>
__device__ __forceinline__ void copy_block(const params &p, const tile &t, const copier &x, int first,
                                           int chunks, unsigned at, bool is_k) {
    enum { AT_ONCE = CHUNKS ? CHUNKS : 1 };
    const int row = (int)(threadIdx.x % TILE_THREADS) >> 3, n = CHUNKS ? CHUNKS : chunks;
    const char *from[4];
    if (x.eight >= 0) {
        if constexpr (CHUNKS != 0) widen_block_here<LINES, CHUNKS>(p, t, x, first, chunks, at, is_k);
        else widen_block<LINES>(p, t, x, first, chunks, at, is_k);
        return;
    }
    bool whole = first >= t.begin && first + BLOCK <= t.end && p.sixteens;
    if (whole && p.table) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned page = p.by_page.quotient((unsigned)(first + 16 * i));
            const int number = p.table[t.b * p.table_stride + page];
            whole &= (unsigned)number < (unsigned)p.pages;
            const int in_page = first + 16 * i + row - (int)(page * p.by_page.d);
            from[i] = x.from + number * x.page + in_page * x.token;
        }
    } else {
        from[0] = x.from + (first + row) * x.token;
#pragma unroll
        for (int i = 1; i < 4; i++) from[i] = from[i - 1] + 16 * x.token;
    }
    if (whole) {
#pragma unroll AT_ONCE
        for (int c = 0; c < n; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool some = x.features > 64 * c;
                const unsigned to = at + 16 * 128 * i + LINES * 128 * c;
                copy16_or_zero_at(to, some ? from[i] + 128 * c : p.k, some);
            }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) from[i] = x.row(p, t, first + row + 16 * i);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll 1
        for (int c = 0; c < n; c++) {
            const unsigned to = at + 16 * 128 * i + LINES * 128 * c;
            const bool some = (uintptr_t)from[i] > 1 && x.features > 64 * c;
            if (is_k && from[i] == (const char *)1) store16_at(to, make_uint4(FULL, FULL, FULL, FULL));
            else copy16_or_zero_at(to, some ? from[i] + 128 * c : p.k, some);
        }
}

/* The queries of a tile, likewise, by threads eight of which have a line: m, m + step and so
   on. */
template <int LINES>
__device__ __forceinline__ void copy_queries(const params &p, const tile &t, int m, int end, int step,
                                             int chunks, unsigned to) {
    const int piece = threadIdx.x & 7;
#pragma unroll 2
    for (; m < end; m += step) {
        const tile_query q = query_of(p, t, m);
        const char *from = q.row < 0 ? p.q : p.q + t.b * p.q_stride[0] + q.row * p.q_stride[1]
                                             + q.head * p.q_stride[2] + 16 * piece;
        const unsigned at = to + piece_at(LINES, m, piece);
#pragma unroll 1
        for (int c = 0; c < chunks; c++) {
            const bool some = q.row >= 0 && 64 * c + 8 * piece < p.d;
            copy16_or_zero_at(at + c * LINES * 128, some ? from + 128 * c : p.q, some);
        }
    }
}

/* Of two numbers of K's and V's type; all ones where one is not finite. */
__device__ __forceinline__ unsigned not_finite_of(const params &p, unsigned x) {
    const unsigned exponents = p.k_type == SANTA_F16 ? 0x7c007c00u : 0x7f807f80u;
    return __vcmpeq2(x & exponents, exponents);
}

/* Of the lines that this thread has copied of V, numbers that are not finite become 0. Bit 4 i
   + k of what the warp gets: key 16 i + 4 * warp + k of the block had some. */
template <int LINES>
__device__ __forceinline__ unsigned screen_block(const params &p, int chunks, char *tile, int line) {
    enum { AT_ONCE = LINES == 128 ? 2 : 1 };        /* k_prefill_groups: a tile's end may wait for it */
    const int thread = threadIdx.x % TILE_THREADS, piece = thread & 7;
    unsigned found = 0;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        unsigned any = 0;
#pragma unroll AT_ONCE
        for (int c = 0; c < chunks; c++) {
            char *const chunk = tile + c * LINES * 128;
            uint4 *at = (uint4 *)(chunk + piece_at(LINES, line + (thread >> 3) + 16 * i, piece));
            uint4 x = *at;
            const unsigned bad[4] = { not_finite_of(p, x.x), not_finite_of(p, x.y), not_finite_of(p, x.z),
                                      not_finite_of(p, x.w) };
            if (!(bad[0] | bad[1] | bad[2] | bad[3])) continue;
            any = 1;
            *at = make_uint4(x.x & ~bad[0], x.y & ~bad[1], x.z & ~bad[2], x.w & ~bad[3]);
        }
        unsigned lanes = __ballot_sync(FULL, any);
        lanes |= lanes >> 4;
        lanes |= lanes >> 2;
        lanes |= lanes >> 1;
        found |= ((lanes & 1u) | (lanes >> 7 & 2u) | (lanes >> 14 & 4u) | (lanes >> 21 & 8u)) << (4 * i);
    }
    return found;
}

__device__ __noinline__ bool is_seen(const params &p, const tile &t, int m, int key) {
    int begin, end, position;
    const tile_query q = query_of(p, t, m);
    if (q.row < 0) return false;
    row_range(p, t.b, q.row, 1, begin, end, position);
    return key >= begin && key < end;
}
__device__ __noinline__ unsigned pair_of_v(const params &p, const char *row, int column) {
    if (p.eight[1] < 0) return *(const unsigned *)(row + 2 * column);
    return widened(p, p.eight[1], *(const unsigned short *)(row + column));
}
/* Adds to the sums what screen_block took out, where a query sees the key: what is not finite
   has any weight. m: the lane's first query, the other one is m + 8; bad: of each warp of the
   copiers. */
__device__ __forceinline__ void add_not_finite(const params &p, const tile &t, int m, int first,
                                               const unsigned *bad, float (&acc)[16][4]) {
    const int c = threadIdx.x & 3;
#pragma unroll 1
    for (int i = 0; i < 64; i++) {
        if (!(bad[i >> 2 & 3] >> (i >> 4 << 2 | (i & 3)) & 1u)) continue;
        const int key = first + i;
        const bool seen[2] = { is_seen(p, t, m, key), is_seen(p, t, m + 8, key) };
        const i64 at = row_offset(p, p.v_stride, t.b, key);
        if (at == NO_ROW) continue;
        const char *row = p.v + at + t.kv * p.v_stride[2];
#pragma unroll
        for (int nb = 0; nb < 16; nb++) {
            const int column = t.column + 8 * nb + 2 * c;
            if (column >= p.dv) continue;
            const unsigned x = pair_of_v(p, row, column), which = not_finite_of(p, x);
            const float2 y = p.k_type == SANTA_F16 ? unpack_pair(*(const __half2 *)&x)
                                                   : unpack_pair(*(const __nv_bfloat162 *)&x);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (seen[e] && which & 0xffffu) acc[nb][2 * e] += y.x;
                if (seen[e] && which >> 16) acc[nb][2 * e + 1] += y.y;
            }
        }
    }
}

#if HAS_WARPGROUPS
/* Where the tensor cores find a tile of lines: as features in rows, 8 of which are 1 KB, or
   with its chunks of 64 columns so many bytes apart; pieces exchanged as in piece_at. */
__device__ __forceinline__ u64 lines_at(unsigned at) {
    return (u64)(at >> 4 & 0x3fffu) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ u64 columns_at(unsigned at, unsigned chunk) {
    return (u64)(at >> 4 & 0x3fffu) | (u64)(chunk >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
#endif

/* What the products of a lane's queries m and m + 8 with 8 * NB keys from `first` on become
   before the softmax: soft cap and slopes, then in base 2; MASKED where a query does not see
   the key. */
template <int NB, bool EXTRAS>
__device__ __forceinline__ void finish_rows(const params &p, const tile &t, int m, int first, bool extras,
                                            bool partial, float (*s)[4]) {
    const int c = threadIdx.x & 3;
    if (!(EXTRAS && extras) && !partial) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const tile_query q = query_of(p, t, m + 8 * e);
        int begin = 0, end = 0, position = 0;
        if (q.row >= 0) row_range(p, t.b, q.row, 1, begin, end, position);
        if (EXTRAS && extras) {
            const float slope = p.slopes && q.row >= 0 ? p.slopes[q.head] : 0.0f;
            const float inverse = p.soft_cap > 0.0f ? 2.0f * LOG2E / p.soft_cap : 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * NB; i++) {
                float x = s[i / 2][2 * e + i % 2] * p.scale;
                if (p.soft_cap > 0.0f) x = p.soft_cap * (1.0f - __fdividef(2.0f, 1.0f + pow2(x * inverse)));
                x += slope * (float)(first + 8 * (i / 2) + 2 * c + i % 2 - position);
                s[i / 2][2 * e + i % 2] = x * LOG2E;
            }
        }
        if (!partial) continue;
        begin -= first + 2 * c;
        end -= first + 2 * c;
#pragma unroll
        for (int i = 0; i < 2 * NB; i++) {
            const int j = 8 * (i / 2) + i % 2;
            if (j < begin || j >= end) s[i / 2][2 * e + i % 2] = MASKED;
        }
    }
}

/* Online softmax of a lane's two queries: s, in base 2 once multiplied by `factor`, becomes the
   weights relative to the new maximum, times 2^bits. keep: what the sums so far are to be
   multiplied with; den: of this lane's own keys. A NaN stays in den. First the maxima, and what
   is subtracted; chains are short. */
template <int NB>
__device__ __forceinline__ void new_maxima(float factor, float bits, float (&s)[NB][4], float top[2],
                                           float keep[2], float base[2]) {
    float now[2][2] = { { top[0], MASKED }, { top[1], MASKED } };
#pragma unroll
    for (int i = 0; i < NB; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            now[e][i & 1] = fmaxf(now[e][i & 1], fmaxf(s[i][2 * e], s[i][2 * e + 1]));
#pragma unroll
    for (int e = 0; e < 2; e++) now[e][0] = fmaxf(now[e][0], now[e][1]);
#pragma unroll
    for (int i = 1; i < 4; i *= 2)
#pragma unroll
        for (int e = 0; e < 2; e++) now[e][0] = fmaxf(now[e][0], __shfl_xor_sync(FULL, now[e][0], i));
#pragma unroll
    for (int e = 0; e < 2; e++) {
        /* rounded before the subtraction: where the maximum stays, keep must be 1 */
        base[e] = now[e][0] < MASK_LIMIT ? 0.0f : __fmul_rn(now[e][0], factor);
        keep[e] = top[e] < MASK_LIMIT ? 0.0f : pow2(__fsub_rn(__fmul_rn(top[e], factor), base[e]));
        top[e] = now[e][0];
    }
    if (__builtin_expect(fmaxf(fabsf(base[0]), fabsf(base[1])) > 65536.0f, 0)) {
        /* a product that is not rounded would differ from the maximum's by whole powers of 2:
           what it is below that, once more divided by the factor */
        const float per = 1.0f / factor;
#pragma unroll
        for (int i = 0; i < NB; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][e] = __fsub_rn(__fmul_rn(s[i][e], factor), base[e >> 1]) * per;
        base[0] = base[1] = 0.0f;
    }
    base[0] -= bits;
    base[1] -= bits;
}
/* Then the weights of 8 * (TO - FROM) keys; of each query two sums. */
template <int FROM, int TO, int NB>
__device__ __forceinline__ void weigh_keys(float factor, float (&s)[NB][4], const float base[2],
                                           float (&sum)[2][2]) {
#pragma unroll
    for (int i = FROM; i < TO; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s[i][2 * e] = pow2(fmaf(s[i][2 * e], factor, -base[e]));
            s[i][2 * e + 1] = pow2(fmaf(s[i][2 * e + 1], factor, -base[e]));
            sum[e][i & 1] += s[i][2 * e] + s[i][2 * e + 1];
        }
}
__device__ __forceinline__ void add_weights(const float (&sum)[2][2], const float keep[2], float den[2]) {
#pragma unroll
    for (int e = 0; e < 2; e++) den[e] = den[e] * keep[e] + (sum[e][0] + sum[e][1]);
}
template <int NB>
__device__ __forceinline__ void tile_softmax(float factor, float bits, float (&s)[NB][4], float top[2],
                                             float den[2], float keep[2]) {
    float base[2], sum[2][2] = {};
    new_maxima(factor, bits, s, top, keep, base);
    weigh_keys<0, NB>(factor, s, base, sum);
    add_weights(sum, keep, den);
}

template <int NB> __device__ __forceinline__ void scale_sums(const float keep[2], float (&acc)[NB][4]) {
    if (!__any_sync(FULL, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < NB; i++) {
        acc[i][0] *= keep[0]; acc[i][1] *= keep[0];
        acc[i][2] *= keep[1]; acc[i][3] *= keep[1];
    }
}

__device__ __forceinline__ unsigned pack(float a, float b, __nv_bfloat16) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(a, b);
    return *(const unsigned *)&x;
}
__device__ __forceinline__ unsigned pack(float a, float b, __half) {
    const __half2 x = __floats2half2_rn(a, b);
    return *(const unsigned *)&x;
}

/* Weights of 16 keys as the left side of a product. */
template <typename T>
__device__ __forceinline__ void pack_weights(const float (&low)[4], const float (&high)[4], unsigned a[4]) {
    a[0] = pack(low[0], low[1], T());
    a[1] = pack(low[2], low[3], T());
    a[2] = pack(high[0], high[1], T());
    a[3] = pack(high[2], high[3], T());
}

/* Called, so that it does not swell its callers. */
__device__ __noinline__ void store_one(int type, char *p, float f) { store_any(type, p, f); }

/* Results of the lane's queries m, m + 8 and so on, 2 * N in all: 16 x 8 columns from t.column
   on. One query after the other comes to the front, so that there is one piece of code for them
   if N is not 1. */
template <int N>
__device__ __forceinline__ void write_tile(const params &p, const tile &t, int m, float factor, float bits,
                                           float (&top)[N][2], float (&den)[N][2],
                                           float (&acc)[N][16][4]) {
    enum { AT_ONCE = N == 1 ? 2 : 1 };
    const int c = threadIdx.x & 3;
#pragma unroll AT_ONCE
    for (int i = 0; i < 2 * N; i++, m += 8) {
        float sum = den[0][0], x[16][2];
        const float highest = top[0][0] < MASK_LIMIT ? MASKED : top[0][0] * factor - bits;
#pragma unroll
        for (int nb = 0; nb < 16; nb++) {
            x[nb][0] = acc[0][nb][0];
            x[nb][1] = acc[0][nb][1];
        }
#pragma unroll
        for (int k = 0; k < 2 * N - 1; k++) {
            const int from = (k + 1) / 2, part = (k + 1) % 2;
            top[k / 2][k % 2] = top[from][part];
            den[k / 2][k % 2] = den[from][part];
#pragma unroll
            for (int nb = 0; nb < 32; nb++)
                acc[k / 2][nb / 2][k % 2 * 2 + nb % 2] = acc[from][nb / 2][part * 2 + nb % 2];
        }
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        const tile_query q = query_of(p, t, m);
        if (q.row < 0) continue;
        const bool bad = !(sum == sum) || isinf(sum);
        if (p.lse && c == 0 && t.column == 0)
            p.lse[lse_of(p, t.b, q.row, q.head)] = head_lse(p, q.head, highest, sum);
        const double share
            = sum > 0.0f ? quotient(sink_share(p, q.head, highest, sum), (double)sum) : 0.0;
        const float f = bad ? __int_as_float(0x7fc00000) : (float)share * p.v_scale;
        char *out = p.out + t.b * p.out_stride[0] + q.row * p.out_stride[1] + q.head * p.out_stride[2]
                  + (t.column + 2 * c) * p.out_stride[3];
        const bool some = sum > 0.0f || bad;
        const int columns = p.dv - t.column - 2 * c;
#pragma unroll
        for (int nb = 0; nb < 32; nb++) x[nb / 2][nb % 2] = some ? x[nb / 2][nb % 2] * f : 0.0f;
        if (p.pair_out) {
#pragma unroll
            for (int nb = 0; nb < 16; nb++) {
                const unsigned both = p.out_type == SANTA_BF16 ? pack(x[nb][0], x[nb][1], __nv_bfloat16())
                                                               : pack(x[nb][0], x[nb][1], __half());
                if (8 * nb < columns) *(unsigned *)(out + 16 * nb) = both;
            }
            continue;
        }
#pragma unroll 1
        for (int nb = 0; 8 * nb < columns && nb < 16; nb++, out += 8 * p.out_stride[3]) {
            store_one(p.out_type, out, x[0][0]);
            store_one(p.out_type, out + p.out_stride[3], x[0][1]);
#pragma unroll
            for (int k = 0; k < 30; k++) x[k / 2][k % 2] = x[k / 2 + 1][k % 2];
        }
    }
}

/* On any card. A CTA of 4 warps owns a tile; a warp 32 of its queries, as two times 16, from
   the scores to the output. Of d features it has 64 at a time, so one instance serves all; of V
   128 columns. Reads: K and V once for a tile. Flops: 2 * keys * queries * (d + dv). It should
   run at the speed of mma.sync, of which ldmatrix takes half.
   Barriers, for each block of keys: K is there and V's tile free; K's tile is free; V is
   there. */
__global__ void __launch_bounds__(TILE_THREADS, 2) k_prefill(const __grid_constant__ params p) {
    DYNAMIC_SHARED(slots);                          /* prefill_bytes */
    SHARED(bad, screened);
    const int lane = threadIdx.x & 31, warp = this_warp(), chunks = (p.d + 63) / 64;
    const tile t = locate_tile(p, (int)blockIdx.x);
    if (t.rows == 0) return;
    const int v_chunks = min((p.dv - t.column + 63) / 64, 2), m = 32 * warp + (lane >> 2);
    char *const q_tile = (char *)slots, *const k_tile = q_tile + chunks * TILE_QUERIES * 128,
               *const v_tile = p.one_tile ? k_tile : k_tile + chunks * BLOCK * 128;
    const unsigned q_at = (unsigned)__cvta_generic_to_shared(q_tile),
                   k_at = (unsigned)__cvta_generic_to_shared(k_tile),
                   v_at = (unsigned)__cvta_generic_to_shared(v_tile);
    const bool extras = p.soft_cap > 0.0f || p.slopes || !(p.scale > 0.0f);
    const float factor = extras ? 1.0f : p.scale * LOG2E;
    float top[2][2] = { { MASKED, MASKED }, { MASKED, MASKED } }, den[2][2] = {};
    float acc[2][16][4];
#pragma unroll
    for (int i = 0; i < 128; i++) acc[i / 64][i / 4 % 16][i % 4] = 0.0f;
    const copier k_rows(p, t, true, 0), v_rows(p, t, false, t.column);
    const unsigned own = (unsigned)piece_at(BLOCK, (int)threadIdx.x >> 3, (int)threadIdx.x & 7);
    block_list list;
    list.begin(p, t, t.begin / BLOCK);
    int block = list.next(p, t.b);
    copy_queries<TILE_QUERIES>(p, t, (int)threadIdx.x >> 3, TILE_QUERIES, TILE_THREADS / 8, chunks, q_at);
    for (bool begun = false; block >= 0; begun = true) {
        const int first = block * BLOCK;
        const bool partial = first < t.all_begin || first + BLOCK > t.all_end;
        if (!begun || p.one_tile) {
            if (begun) __syncthreads();             /* V is there no longer */
            copy_block<BLOCK, 0>(p, t, k_rows, first, chunks, k_at + own, true);
            copy_commit();
        }
        copy_wait<0>();
        __syncthreads();
        if (!p.one_tile) {
            copy_block<BLOCK, 0>(p, t, v_rows, first, v_chunks, v_at + own, false);
            copy_commit();
        }
        float s[2][8][4];
#pragma unroll
        for (int i = 0; i < 64; i++) s[i / 32][i / 4 % 8][i % 4] = 0.0f;
        with_type<sixteen>(p, [&](auto type) {
            typedef decltype(type) T;
#pragma unroll 1
            for (int k = 0; k < chunks; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) {           /* 16 features */
                    unsigned a[2][4];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int row = 32 * warp + 16 * e + (lane & 15);
                        const int of_a = 8 * k + 2 * i + (lane >> 4);
                        load_matrices(q_at + piece_at(TILE_QUERIES, row, of_a), a[e]);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {       /* 16 keys */
                        unsigned x[4];
                        const int row = 16 * j + (lane >> 4) * 8 + (lane & 7);
                        load_matrices(k_at + piece_at(BLOCK, row, 8 * k + 2 * i + (lane >> 3 & 1)), x);
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            mma(s[e][2 * j], a[e][0], a[e][1], a[e][2], a[e][3], x[0], x[1], T());
                            mma(s[e][2 * j + 1], a[e][0], a[e][1], a[e][2], a[e][3], x[2], x[3], T());
                        }
                    }
                }
        });
        __syncthreads();
        const int following = list.next(p, t.b);
        if (p.one_tile || following >= 0) {
            copier rows = k_rows;                   /* field by field: both stay in registers */
            rows.from = p.one_tile ? v_rows.from : k_rows.from;
            rows.token = p.one_tile ? v_rows.token : k_rows.token;
            rows.page = p.one_tile ? v_rows.page : k_rows.page;
            rows.features = p.one_tile ? v_rows.features : k_rows.features;
            rows.eight = p.eight[p.one_tile];
            copy_block<BLOCK, 0>(p, t, rows, p.one_tile ? first : following * BLOCK,
                                 p.one_tile ? v_chunks : chunks, (p.one_tile ? v_at : k_at) + own,
                                 !p.one_tile);
        }
        copy_commit();
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float keep[2];
            finish_rows<8, true>(p, t, m + 16 * e, first, extras, partial, s[e]);
            tile_softmax<8>(factor, weight_bits<sixteen>(p), s[e], top[e], den[e], keep);
            scale_sums<16>(keep, acc[e]);
        }
        if (p.one_tile) copy_wait<0>(); else copy_wait<1>();
        unsigned found = 0;
        if (partial) {
            found = screen_block<BLOCK>(p, v_chunks, v_tile, 0);
            if (lane == 0) bad.of_warp[warp] = found;
        }
        __syncthreads();
        with_type<sixteen>(p, [&](auto type) {
            typedef decltype(type) T;
#pragma unroll
            for (int i = 0; i < 4; i++) {               /* 16 keys */
                unsigned a[2][4];
                pack_weights<T>(s[0][2 * i], s[0][2 * i + 1], a[0]);
                pack_weights<T>(s[1][2 * i], s[1][2 * i + 1], a[1]);
#pragma unroll
                for (int j = 0; j < 8; j++) {           /* 16 columns */
                    if (j >= 4 && v_chunks < 2) break;
                    unsigned x[4];
                    load_transposed(v_at + piece_at(BLOCK, 16 * i + (lane & 15), 2 * j + (lane >> 4)), x);
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        mma(acc[e][2 * j], a[e][0], a[e][1], a[e][2], a[e][3], x[0], x[1], T());
                        mma(acc[e][2 * j + 1], a[e][0], a[e][1], a[e][2], a[e][3], x[2], x[3], T());
                    }
                }
            }
        });
        if (partial && (bad.of_warp[0] | bad.of_warp[1] | bad.of_warp[2] | bad.of_warp[3]))
#pragma unroll 1
            for (int e = 0; e < 2; e++) {           /* for rare data: one piece of code */
                add_not_finite(p, t, m + 16 * e, first, bad.of_warp, acc[0]);
#pragma unroll
                for (int i = 0; i < 64; i++) {
                    const float x = acc[0][i / 4][i % 4];
                    acc[0][i / 4][i % 4] = acc[1][i / 4][i % 4];
                    acc[1][i / 4][i % 4] = x;
                }
            }
        block = following;
    }
    write_tile(p, t, m, factor, weight_bits<sixteen>(p), top, den, acc);
}

#if HAS_WARPGROUPS
/* k_prefill_groups: where its tiles and barriers are. */
struct places {
    unsigned q, k, v;                               /* of place 0 */
    unsigned full_k, full_v, empty_k, empty_v;      /* 8 bytes for each place */
    unsigned queries, landed, turns;
};

/* Two blocks that a tile reads; first < 0: there are no more. */
struct block_pair {
    int first, second;                              /* keys; NO_BLOCK: there is no second one */
    bool partial;                                   /* some query does not see all of them */

    __device__ __forceinline__ block_pair(const params &p, const tile &t, block_list &list)
        : block_pair(p, t, list, list.next(p, t.b), -1) {}
    /* From block b0 on; none: what `first` is if there is none. */
    __device__ __forceinline__ block_pair(const params &p, const tile &t, block_list &list, int b0,
                                          int none) {
        const int b1 = b0 < 0 ? -1 : list.next(p, t.b);
        first = b0 < 0 ? none : b0 * BLOCK;
        second = b1 < 0 ? NO_BLOCK : b1 * BLOCK;
        partial = first < t.all_begin || first + BLOCK > t.all_end || second < t.all_begin
               || second + BLOCK > t.all_end;
    }
};
__device__ __forceinline__ block_list list_of(const params &p, const tile &t) {
    block_list list;
    list.begin(p, t, p.is_sparse ? t.begin / BLOCK : t.begin / (2 * BLOCK) * 2);
    return list;
}
/* V of a pair, as it lies in its place. */
__device__ __forceinline__ void screen_pair(const params &p, unsigned at, unsigned (*bad)[4]) {
    DYNAMIC_SHARED(slots);
    char *const v = (char *)slots + (at - (unsigned)__cvta_generic_to_shared(slots));
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
        const unsigned found = screen_block<128>(p, 2, v, 64 * h);
        if ((threadIdx.x & 31) == 0) bad[h][threadIdx.x >> 5] = found;
    }
}

/* Copies by all threads of a group, which arrive by themselves; only what is to be looked at is
   waited for. */
__device__ __forceinline__ void copy_pairs(const params &p, const tile &t, const places &at,
                                            groups_memory &s) {
    block_list list = list_of(p, t);
    const copier k_rows(p, t, true, 0), v_rows(p, t, false, 0);
    const unsigned own = (unsigned)piece_at(128, (int)threadIdx.x >> 3, (int)threadIdx.x & 7);
    int place = 0;
    unsigned phase = 1;                             /* of the barriers before anything is in a place */
    for (bool more = true; more;) {
        const block_pair x(p, t, list);
        more = x.first >= 0;
#pragma unroll 1
        for (int part = 0; part < (more ? 2 : 1); part++) {           /* K, V */
            const unsigned full = (part ? at.full_v : at.full_k) + 8 * place,
                           to = (part ? at.v : at.k) + place * PLACE_BYTES;
            barrier_wait((part ? at.empty_v : at.empty_k) + 8 * place, phase);
            if (part == 0 && threadIdx.x == 0) {
                s.first[place][0] = x.first;
                s.first[place][1] = x.second;
                barrier_arrive(full);
            }
            copier rows = k_rows;                   /* field by field: both stay in registers */
            rows.from = part ? v_rows.from : k_rows.from;
            rows.token = part ? v_rows.token : k_rows.token;
            rows.page = part ? v_rows.page : k_rows.page;
            rows.features = part ? v_rows.features : k_rows.features;
            rows.eight = p.eight[part];
#pragma unroll 1
            for (int h = 0; h < 2 && more; h++)
                copy_block<128, 2>(p, t, rows, h ? x.second : x.first, 2, to + own + h * 64 * 128,
                                   part == 0);
            if (!(part && x.partial) && rows.eight < 0) { barrier_after_copies(full); continue; }
            copy_commit();
            copy_wait<0>();
            if (part && x.partial) screen_pair(p, to, s.bad[place]);
            __syncwarp();
            barrier_arrive(full);
        }
        if (++place == PLACES) { place = 0; phase ^= 1u; }
    }
}

/* What a lane sends of a pair by boxes: 64 features of p.box_keys keys from `line` of the place
   on. */
struct box_place { int line, row, plane; bool missing; };

/* A box none of whose keys is seen by a row of the tile comes from outside of the tensor:
   zeros. So does a page that does not exist. missing: some lane has one. */
__device__ __forceinline__ box_place find_box(const groups_params &p, const tile &t, const block_pair &x) {
    const int line = (int)((threadIdx.x & 31) >> 1) * p.box_keys,
              key = (line < BLOCK ? x.first : x.second - BLOCK) + line;
    const bool seen = x.first >= 0 && line < 2 * BLOCK && key < t.end && key + p.box_keys > t.begin;
    box_place box = { line, NO_BLOCK, 0, false };
    if (seen) {
        const unsigned on = p.table ? p.by_page.quotient((unsigned)key) : 0;
        const int plane = p.table ? p.table[t.b * p.table_stride + on] : t.b;
        if (!p.table || (unsigned)plane < (unsigned)p.pages) {
            box.row = key - (int)(on * p.by_page.d);
            box.plane = plane;
        }
    }
    box.missing = __any_sync(FULL, seen && box.row == NO_BLOCK) != 0;
    return box;
}
__device__ __forceinline__ void send_box(const tile &t, const box_place &box, const CUtensorMap *map,
                                         unsigned to, unsigned barrier) {
    const int half = (int)(threadIdx.x & 1);
    if ((threadIdx.x & 31) == 0) barrier_expect(barrier, PLACE_BYTES);
    __syncwarp();
    if (box.line < 2 * BLOCK)
        copy_box(to + (unsigned)(half * 128 * 128 + box.line * 128), map, 64 * half, box.row, t.kv,
                 box.plane, barrier);
}
/* K of keys whose page does not exist becomes NaN, so that who sees them is. A thread has one
   key. */
__device__ __forceinline__ void spoil_missing(const params &p, const tile &t, int first, int second,
                                              unsigned to) {
    const int line = (int)threadIdx.x % TILE_THREADS,
              j = line < BLOCK ? first + line : second + line - BLOCK;
    if (j < t.begin || j >= t.end) return;
    const unsigned on = p.by_page.quotient((unsigned)j);
    if ((unsigned)p.table[t.b * p.table_stride + on] < (unsigned)p.pages) return;
#pragma unroll 1
    for (int i = 0; i < 16; i++)
        store16_at(to + (unsigned)(i / 8 * 128 * 128 + line * 128 + i % 8 * 16),
                   make_uint4(FULL, FULL, FULL, FULL));
}

/* What has landed and is to be touched: V of a pair that some query does not see wholly, K with
   pages that do not exist. By all four warps; the thread that arrives has what was found. */
__device__ __forceinline__ void touch_pair(const params &p, const tile &t, const places &at,
                                           groups_memory &s) {
    const int place = s.landed.place, is_v = s.landed.is_v;
    const unsigned to = (is_v ? at.v : at.k) + place * PLACE_BYTES;
    if (is_v) screen_pair(p, to, s.found); else spoil_missing(p, t, s.landed.first, s.landed.second, to);
    fence_tensor_cores();
    barrier_among(1, TILE_THREADS);
    if (threadIdx.x != 0) return;
    for (int i = 0; i < 8 && is_v; i++) s.bad[place][i / 4][i % 4] = s.found[i / 4][i % 4];
    barrier_arrive((is_v ? at.full_v : at.full_k) + 8 * place);
}

/* The same by the tensor copy engine: warp 0 sends. The others wait for what is to be touched,
   or the end: they may not wait for places, as they could be a round behind, where a parity
   means the opposite. MANY: tiles from `number` on until `end`, whose pairs follow each other;
   the last one of a tile says so, a tile without any has one of no blocks. */
template <bool MANY>
__device__ __forceinline__ void send_boxes(const groups_params &p, tile t, int number, int end,
                                           const places &at, groups_memory &s) {
    unsigned landed = 0;
    if (this_warp() != 0) {
        for (;; landed ^= 1u) {
            barrier_wait(at.landed, landed);
            if (s.landed.place < 0) return;
            if (MANY && !s.landed.is_v) t = locate_tile(p, s.landed_tile);
            touch_pair(p, t, at, s);
        }
    }
    block_list list = list_of(p, t);
    int place = 0, ahead = MANY ? list.next(p, t.b) : -1;
    unsigned phase = 1;
    for (;;) {
        const block_pair x = MANY ? block_pair(p, t, list, ahead, NO_BLOCK) : block_pair(p, t, list);
        const bool more = MANY || x.first >= 0;
        if (MANY) ahead = x.second == NO_BLOCK ? -1 : list.next(p, t.b);
        const box_place box = find_box(p, t, x);
#pragma unroll 1
        for (int part = 0; part < (more ? 2 : 1); part++) {
            const unsigned full = (part ? at.full_v : at.full_k) + 8 * place,
                           to = (part ? at.v : at.k) + place * PLACE_BYTES;
            const bool touched = part ? x.partial : box.missing;
            barrier_wait((part ? at.empty_v : at.empty_k) + 8 * place, phase);
            if (threadIdx.x == 0) {
                if (part == 0) {
                    s.first[place][0] = x.first;
                    s.first[place][1] = MANY && ahead < 0 ? x.second | 1 : x.second;
                }
                if (touched || !more) s.landed = { more ? place : -1, part, x.first, x.second };
                if (MANY) s.landed_tile = number;
                if (!more) {
                    barrier_arrive(full);
                    barrier_arrive(at.landed);
                }
            }
            if (!more) return;
            send_box(t, box, part ? &p.v_map : &p.k_map, to, touched ? at.landed : full);
            if (!touched) continue;
            barrier_wait(at.landed, landed);
            landed ^= 1u;
            touch_pair(p, t, at, s);
        }
        if (++place == PLACES) { place = 0; phase ^= 1u; }
        if (!MANY || ahead >= 0) continue;
        if (++number == end) break;
        t = locate_tile(p, number);
        list = list_of(p, t);
        ahead = list.next(p, t.b);
    }
    if (threadIdx.x != 0) return;
    s.landed.place = -1;
    barrier_arrive(at.landed);
}
#endif

/* For sm_90a: the tensor cores read shared memory themselves, for a group of 4 warps at once.
   Three such groups: one copies, K and V of 128 keys each in PLACES places; two own 64 queries
   of the tile each. While a group does a softmax, its products with V and the other group's are
   at work: the groups send their products in turns, else both would want the tensor cores at
   once, and then the exponentials. d and dv are at most 128; soft cap and slopes are
   k_prefill's. A pair of blocks need not be neighbours: a mask's blocks come two by two.
   Barriers: full and empty for each place. Copies arrive by themselves; only V of blocks that
   some query does not see wholly is waited for, to be screened. By boxes, keys of a block that
   no query sees come with it as they are.
   MANY: of sparse tiles, which are short, a CTA has own_tiles, by boxes. K and V of the next
   one are on their way during the end of the last, and a group goes on without the other. A
   group copies its queries itself, once its products with K are done. Barriers beside those: 2
   + group, that all of it are done with the queries, and that the next ones are there. */
template <typename T, bool MANY>
__global__ void __launch_bounds__(3 * 128, 1) k_prefill_groups(const __grid_constant__ groups_params p) {
#if HAS_WARPGROUPS
    DYNAMIC_SHARED(slots);                          /* GROUPS_BYTES */
    SHARED(s, groups_memory);
    enum { LINES = 128, CHUNK = LINES * 128 };
    const int lane = threadIdx.x & 31, warp = this_warp(), group = warp / 4 - 1;
    const unsigned base = ((unsigned)__cvta_generic_to_shared(slots) + 1023u) & ~1023u,
                   barriers = (unsigned)__cvta_generic_to_shared(s.barrier);
    const places at = { base, base + PLACE_BYTES, base + (1 + PLACES) * PLACE_BYTES,
                        barriers, barriers + 8 * PLACES, barriers + 16 * PLACES, barriers + 24 * PLACES,
                        barriers + 32 * PLACES, barriers + 32 * PLACES + 8, barriers + 32 * PLACES + 16 };
    int number = (MANY ? p.own_tiles : 1) * (int)blockIdx.x;
    const int end = MANY ? min(number + p.own_tiles, p.tiles) : number + 1;
    tile t = locate_tile(p, number);
    if (!MANY && t.rows == 0) return;
    const bool boxes = MANY || p.box_keys != 0;
    const int working = (MANY ? p.tile_rows : t.rows) * p.tile_heads > 64 ? 2 : 1,
              copiers = boxes ? TILE_THREADS - 32 : TILE_THREADS;     /* of q: warp 0 sends boxes at once */
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; i++) {
            /* one more says what it is */
            barrier_make_for(at.full_k + 8 * i, boxes ? 1 : TILE_THREADS + 1);
            barrier_make_for(at.full_v + 8 * i, boxes ? 1 : TILE_THREADS);
            barrier_make_for(at.empty_k + 8 * i, 4 * working);
            barrier_make_for(at.empty_v + 8 * i, 4 * working);
        }
        barrier_make_for(at.queries, copiers);
        barrier_make_for(at.landed, 1);
        barrier_make_for(at.turns, 4);
        barrier_make_for(at.turns + 8, 4);
    }
    barriers_are_made();
    __syncthreads();
    if (group < 0) {
        fewer_registers<56>();
        if (!MANY && (!boxes || warp > 0)) {
            const int first = TILE_THREADS - copiers;
            copy_queries<LINES>(p, t, ((int)threadIdx.x - first) >> 3, LINES, copiers / 8, 2, at.q);
            barrier_after_copies(at.queries);
        }
        if (boxes) send_boxes<MANY>(p, t, number, end, at, s);
        else copy_pairs(p, t, at, s);
    } else if (group < working) {
        more_registers<224>();
        const float factor = p.scale * LOG2E;
        const int m = 64 * group + 16 * (warp & 3) + (lane >> 2);
        const u64 q_lines = lines_at(base + (unsigned)(group * 64 * 128));
        float tops[1][2] = { { MASKED, MASKED } }, dens[1][2] = {}, sums[1][16][4], keep[2];
        float (&top)[2] = tops[0], (&den)[2] = dens[0], (&acc)[16][4] = sums[0];
        float x[16][4];
        unsigned w[8][4];
        const auto is_partial = [&](int first) { return first < t.all_begin || first + BLOCK > t.all_end; };
        const auto scores = [&](int place) {
            const u64 k_lines = lines_at(at.k + (unsigned)(place * PLACE_BYTES));
            products_begin();
#pragma unroll
            for (int i = 0; i < 8; i++) {           /* 16 features: 32 bytes of a line */
                const u64 step = (u64)(((i >> 2) * CHUNK + (i & 3) * 32) >> 4);
                products(x, q_lines + step, k_lines + step, i, T());
            }
            products_commit();
        };
        const auto values = [&](int place) {
            const u64 v_lines = columns_at(at.v + (unsigned)(place * PLACE_BYTES), CHUNK);
            products_begin();
#pragma unroll
            for (int i = 0; i < 8; i++) products(acc, w[i], v_lines + (u64)(i * 16 * 128 >> 4), T());
            products_commit();
        };
        const auto wait_full = [&](unsigned bar, unsigned phase) {
            barrier_wait(bar, phase);
            if (!boxes) fence_tensor_cores();
        };
        /* The weights of a pair, in w. `behind` is called when half of them are there: then the
           products before are done, and w may change. */
        const auto softmax = [&](int first, int second, auto behind) {
            float highest[2], sum[2][2] = {};
            finish_rows<8, false>(p, t, m, first, false, is_partial(first), x);
            finish_rows<8, false>(p, t, m, second, false, is_partial(second), x + 8);
            new_maxima(factor, weight_bits_of(T()), x, top, keep, highest);
            weigh_keys<0, 8>(factor, x, highest, sum);
            /* never true: these are there before the next wait, which the compiler would put
               first */
            if (sum[0][0] + sum[1][0] + sum[0][1] + sum[1][1] < 0.0f) {
                if constexpr (MANY) s.landed_tile = 0;                /* a trap in a loop takes registers */
                else __trap();
            }
            behind();
            weigh_keys<8, 16>(factor, x, highest, sum);
#pragma unroll
            for (int i = 0; i < 8; i++) pack_weights<T>(x[2 * i], x[2 * i + 1], w[i]);
            add_weights(sum, keep, den);
        };
        const auto put_back = [&](int place, int first, int second) {
            if (!is_partial(first) && !is_partial(second)) return;
#pragma unroll 1
            for (int h = 0; h < 2; h++) {
                const unsigned *bad = s.bad[place][h];
                if (bad[0] | bad[1] | bad[2] | bad[3])
                    add_not_finite(p, t, m, h ? second : first, bad, acc);
            }
        };
        const auto released = [&](unsigned bar) {
            __syncwarp();
            if (lane == 0) barrier_arrive(bar);
        };
        const auto own_queries = [&](const tile &x) {
            const int begin = 64 * group, line = (int)(threadIdx.x & 127) >> 3;
            copy_queries<LINES>(p, x, begin + line, begin + 64, 16, 2, at.q);
            copy_commit();
        };
        int first = 0, second = 0, last = 0, place = 0;
        unsigned last_phase = 0, phase = 0, turn = group == 0 ? 1 : 0;               /* group 0 begins */
        const bool in_turns = working == 2;
        bool at_end = false;                        /* MANY: this was the tile's last pair */
        const auto take_place = [&] {
            last = place;
            last_phase = phase;
            if (++place == PLACES) { place = 0; phase ^= 1u; }
        };
        const auto finish_values = [&] {
            products_wait<0>();
            products_are(acc);
            put_back(last, first, second);
        };
        if (MANY) own_queries(t);
        for (;;) {
            tile following = t;
#pragma unroll
            for (int i = 0; i < 64; i++) acc[i / 4][i % 4] = 0.0f;
            top[0] = top[1] = MASKED;
            den[0] = den[1] = 0.0f;
            if (MANY) copy_wait<0>(); else barrier_wait(at.queries, 0);
            fence_tensor_cores();
            if (MANY) barrier_among(2 + group, 128);
            wait_full(at.full_k + 8 * place, phase);
            first = s.first[place][0];
            second = s.first[place][1];
            if (MANY) { at_end = second & 1; second &= ~1; }
            if (MANY || first >= 0) {
                scores(place);
                products_wait<0>();
                products_are(x);
                released(at.empty_k + 8 * place);
                take_place();
                softmax(first, second, [] {});
                for (;;) {
                    if (MANY && at_end) { wait_full(at.full_v + 8 * last, last_phase); break; }
                    wait_full(at.full_k + 8 * place, phase);
                    const int next_first = s.first[place][0];
                    int next_second = s.first[place][1];
                    if (MANY) { at_end = next_second & 1; next_second &= ~1; }
                    wait_full(at.full_v + 8 * last, last_phase);
                    if (!MANY && next_first < 0) break;
                    if (in_turns) barrier_wait(at.turns + 8 * group, turn);
                    turn ^= 1u;
                    scores(place);
                    values(last);
                    if (in_turns) released(at.turns + 8 * (group ^ 1));
                    products_wait<1>();
                    products_are(x);
                    released(at.empty_k + 8 * place);
                    softmax(next_first, next_second, [&] {
                        finish_values();
                        released(at.empty_v + 8 * last);
                        scale_sums<16>(keep, acc);
                    });
                    first = next_first;
                    second = next_second;
                    take_place();
                }
                values(last);
                finish_values();
                if (MANY) released(at.empty_v + 8 * last);
            }
            if (MANY && ++number < end) {
                following = locate_tile(p, number);
                barrier_among(2 + group, 128);
                own_queries(following);
            }
            write_tile(p, t, m, factor, weight_bits_of(T()), tops, dens, sums);
            if (!MANY || number == end) break;
            t = following;
        }
    }
#endif
}

/* -------------------------------------------------------------------------- >>sparse-kernel */

/* SANTA_SAMPLE_ATTENTION, see >>sparse in santa.h: what finds the blocks that a tile reads. The
   scores of the sampled rows are computed twice, once for each row's maximum and sum, then for
   the masses, so that none are kept: of a unit, up to 64 rows of one head, and a block of 64
   keys three sums are, of the slashes that the block can touch there.
     k_sample  maxima, then masses; a third time for what an audit asks
     k_select  one set, of columns or slashes, of a head
     k_join    the sets of a group together; whether it runs dense; audits
     k_mask    mask_out
   Then k_prefill or k_prefill_groups. */

/* Number of a sequence's first row that sees a key; start: the position of row 0. */
__device__ __forceinline__ int first_row_of(const params &p, int b, int start) {
    const i64 from = padding_of(p, b);
    return p.causal ? (int)min(max(from - start, (i64)0), (i64)p.q_len) : 0;
}

/* Rows [from, to) of unit u, and whether it has any: as santa__slice has it. */
__device__ __forceinline__ bool unit_rows(const params &p, int b, int u, int &from, int &to) {
    int begin, end, start;
    const int size = 1 << p.block_shift, of_slice = size / BLOCK, i = u / of_slice, chunks = p.chunks;
    row_range(p, b, 0, 1, begin, end, start);
    const int first = first_row_of(p, b, start);
    const i64 rows = p.q_len - first, position = start + (i64)first;
    i64 low, high;
    if (rows / chunks < size) {
        low = first + (i64)i * size;
        high = min(low + size, (i64)p.q_len);
    } else {
        const i64 end = (position + (i + 1) * rows / chunks) >> p.block_shift << p.block_shift;
        high = i < chunks - 1 ? first + end - position : p.q_len;
        low = max(high - size, (i64)first);
        if (i >= chunks) high = low;
    }
    low += u % of_slice * BLOCK;
    from = (int)min(low, high);
    to = (int)min(low + BLOCK, high);
    return from < to;
}

/* The same for kernels that count, called. */
__device__ __noinline__ int2 rows_of_unit(const params &p, int b, int u) {
    int2 x;
    return unit_rows(p, b, u, x.x, x.y) ? x : make_int2(0, 0);
}

/* Where the sums of a unit and head lie, in blocks. */
__device__ __forceinline__ i64 unit_at(const params &p, int b, int head, int u) {
    return ((i64)b * p.heads + head) * p.units + u;
}

/* A key's share of its row, of which x is the largest score in base 2, y one over the sum. The
   product is rounded as the largest one's was, see new_maxima. */
__device__ __forceinline__ float share_in_row(float s, float factor, float2 row) {
    return pow2(__fsub_rn(__fmul_rn(s, factor), row.x)) * row.y;
}

/* Scores of a unit's rows against the keys of a split, SAMPLE_BLOCKS blocks, of one head.
   Grid: (units x splits, head, batch). A CTA of 4 warps; a warp owns 16 rows, as in k_prefill.
   AT_MAXIMA writes each row's highest score and sum of exp: p.row_sums. AT_MASSES writes for
   each block the mass, as shares of the rows' softmax, of the slash before that of the block's
   first key, of that, and of the next: p.masses. AT_SHARES writes each row's share in the
   head's own sets: p.shares. Reads K once for each unit and head. Flops: 2 * d for each row and
   key.
   Barriers: K's tile is there; it is free; the warps' sums. */
__global__ void __launch_bounds__(SAMPLE_THREADS, 3) k_sample(const __grid_constant__ params p) {
    DYNAMIC_SHARED(slots);                          /* sample_bytes */
    SHARED(shared, sample_memory);
    const int lane = threadIdx.x & 31, warp = this_warp(), chunks = (p.d + 63) / 64;
    const int u = (int)blockIdx.x % p.units, split = (int)blockIdx.x / p.units, r = lane >> 2, c = lane & 3;
    const int size = 1 << p.block_shift, m = 16 * warp + r;
    tile t;
    int ignored, position, to;
    t.b = blockIdx.z; t.head = blockIdx.y; t.heads = 1; t.kv = t.head / p.group; t.column = 0;
    if (!unit_rows(p, t.b, u, t.from, to)) return;
    t.rows = to - t.from;
    row_range(p, t.b, t.from, 1, t.begin, t.all_end, position);
    row_range(p, t.b, to - 1, 1, t.all_begin, t.end, ignored);
    const int blocks = (t.end + BLOCK - 1) / BLOCK, last = min((split + 1) * SAMPLE_BLOCKS, blocks);
    int block = split * SAMPLE_BLOCKS;
    if (block >= last) return;
    char *const q_tile = (char *)slots, *const k_tiles = q_tile + chunks * BLOCK * 128;
    const unsigned q_at = (unsigned)__cvta_generic_to_shared(q_tile),
                   k_at = (unsigned)__cvta_generic_to_shared(k_tiles);
    const bool extras = p.soft_cap > 0.0f || p.slopes || !(p.scale > 0.0f);
    const float factor = extras ? 1.0f : p.scale * LOG2E;
    const i64 unit = unit_at(p, t.b, t.head, u);
    const copier k_rows(p, t, true, 0);
    const unsigned own = k_at + (unsigned)piece_at(BLOCK, (int)threadIdx.x >> 3, (int)threadIdx.x & 7);
    copy_queries<BLOCK>(p, t, (int)threadIdx.x >> 3, BLOCK, SAMPLE_THREADS / 8, chunks, q_at);
    copy_block<BLOCK, 0>(p, t, k_rows, block * BLOCK, chunks, own, true);
    copy_commit();
    if (p.stage != AT_MAXIMA && threadIdx.x < BLOCK) {
        const float2 *sums = p.row_sums + unit * p.sample_splits * BLOCK + threadIdx.x;
        const int splits = (blocks + SAMPLE_BLOCKS - 1) / SAMPLE_BLOCKS;
        float top = MASKED;
        double sum = 0.0;
        if ((int)threadIdx.x < t.rows) {
#pragma unroll 1
            for (int i = 0; i < splits; i++) top = fmaxf(top, sums[i * BLOCK].x);
#pragma unroll 1
            for (int i = 0; i < splits; i++) {
                const float2 y = sums[i * BLOCK];
                sum += y.x < MASK_LIMIT && y.y == y.y ? 0.0 : (double)pow2(y.x - top) * (double)y.y;
            }
        }
        shared.row[threadIdx.x]
            = make_float2(top < MASK_LIMIT ? 0.0f : top, sum == 0.0 ? 0.0f : (float)(1.0 / sum));
    }
    float top[2] = { MASKED, MASKED }, den[2] = { 0.0f, 0.0f };
    const int row_block = position >> p.block_shift;
    for (int n = 0; block < last; block++, n++) {
        const int first = block * BLOCK, place = (n & 1) * chunks * BLOCK * 128;
        const bool partial = first < t.all_begin || first + BLOCK > t.all_end;
        if (block + 1 < last)
            copy_block<BLOCK, 0>(p, t, k_rows, first + BLOCK, chunks,
                                 own + (chunks * BLOCK * 128 - place), true);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[8][4];
#pragma unroll
        for (int i = 0; i < 32; i++) s[i / 4][i % 4] = 0.0f;
        with_type<sixteen>(p, [&](auto type) {
            typedef decltype(type) T;
#pragma unroll 1
            for (int k = 0; k < chunks; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) {           /* 16 features */
                    unsigned a[4];
                    const int of_a = 8 * k + 2 * i + (lane >> 4);
                    load_matrices(q_at + piece_at(BLOCK, 16 * warp + (lane & 15), of_a), a);
#pragma unroll
                    for (int j = 0; j < 4; j++) {       /* 16 keys */
                        unsigned x[4];
                        const int row = 16 * j + (lane >> 4) * 8 + (lane & 7);
                        const int of_x = 8 * k + 2 * i + (lane >> 3 & 1);
                        load_matrices(k_at + place + piece_at(BLOCK, row, of_x), x);
                        mma(s[2 * j], a[0], a[1], a[2], a[3], x[0], x[1], T());
                        mma(s[2 * j + 1], a[0], a[1], a[2], a[3], x[2], x[3], T());
                    }
                }
        });
        finish_rows<8, true>(p, t, m, first, extras, partial, s);
        if (p.stage == AT_MAXIMA) {
            float keep[2];
            tile_softmax<8>(factor, 0.0f, s, top, den, keep);
        } else if (p.stage == AT_MASSES) {
            const int lowest = (position - first) >> p.block_shift;
            float bins[3] = { 0.0f, 0.0f, 0.0f };
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float2 row = shared.row[m + 8 * e];
                const int lag = position + m + 8 * e - first, cut = (lag & (size - 1)) - 2 * c;
                float late = 0.0f, early = 0.0f;
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const float x = share_in_row(s[i / 2][2 * e + i % 2], factor, row);
                    if (8 * (i / 2) + i % 2 <= cut) late += x; else early += x;
                }
                const bool second = (lag >> p.block_shift) > lowest;
                bins[0] += second ? 0.0f : early;
                bins[1] += second ? early : late;
                bins[2] += second ? late : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 3; i++) {
#pragma unroll
                for (int o = 16; o; o >>= 1) bins[i] += __shfl_xor_sync(FULL, bins[i], o);
                if (lane == 0) shared.bins[n & 1][warp][i] = bins[i];
            }
        } else {
            /* of the head's own sets; rows of a unit may be of two blocks */
            const unsigned *const sets = p.own + ((i64)t.b * p.heads + t.head) * 2 * p.mask_words;
            const int b = first >> p.block_shift;
            const unsigned kept = (set_word(p, t.b, sets, row_block, b >> 5) >> (b & 31) & 1u)
                                | (set_word(p, t.b, sets, row_block + 1, b >> 5) >> (b & 31) & 1u) << 1;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float2 row = shared.row[m + 8 * e];
                const bool second = ((position + m + 8 * e) >> p.block_shift) > row_block;
                float x = 0.0f;
#pragma unroll
                for (int i = 0; i < 16; i++)
                    x += share_in_row(s[i / 2][2 * e + i % 2], factor, row);
                if (kept >> (second ? 1 : 0) & 1u) den[e] += x;
            }
        }
        __syncthreads();
        if (p.stage == AT_MASSES && threadIdx.x == 0) {
            float y[3];
            for (int i = 0; i < 3; i++) {
                const float (*bins)[4] = shared.bins[n & 1];
                y[i] = (bins[0][i] + bins[1][i]) + (bins[2][i] + bins[3][i]);
            }
            p.masses[unit * p.blocks + block] = make_float4(y[0], y[1], y[2], 0.0f);
        }
    }
    if (p.stage == AT_MASSES) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        den[e] += __shfl_xor_sync(FULL, den[e], 1);
        den[e] += __shfl_xor_sync(FULL, den[e], 2);
        const i64 at = (unit * p.sample_splits + split) * BLOCK + m + 8 * e;
        if (c) continue;
        const float highest = top[e] < MASK_LIMIT ? MASKED : top[e] * factor;
        if (p.stage == AT_MAXIMA) p.row_sums[at] = make_float2(highest, den[e]);
        else p.shares[at] = den[e];
    }
}

/* Mass of a column, or a slash: of all units, in their order. */
__device__ __forceinline__ double set_mass(const params &p, int b, int head, bool is_slash, int at) {
    const int of_block = 1 << (p.block_shift - 6);
    double sum = 0.0;
#pragma unroll 1
    for (int u = 0; u < p.units; u++) {
        int from, to, begin, end, position;
        if (!unit_rows(p, b, u, from, to)) continue;
        const float4 *masses = p.masses + unit_at(p, b, head, u) * p.blocks;
        row_range(p, b, to - 1, 1, begin, end, position);
        const int blocks = (end + BLOCK - 1) / BLOCK;
        if (!is_slash) {
#pragma unroll 1
            for (int i = at * of_block; i < min((at + 1) * of_block, blocks); i++)
                sum += (double)masses[i].x + (double)masses[i].y + (double)masses[i].z;
            continue;
        }
        row_range(p, b, from, 1, begin, end, position);
#pragma unroll 1
        for (int e = -1; e <= 1; e++) {             /* blocks whose first key is of slash at - e there */
            const i64 high = (position - (i64)(at - e) * (1 << p.block_shift)) >> 6;
#pragma unroll 1
            for (i64 i = high - of_block + 1; i <= high; i++)
                if (i >= 0 && i < blocks)
                    sum += (double)(e < 0 ? masses[i].x : e == 0 ? masses[i].y : masses[i].z);
        }
    }
    return sum;
}

/* The fewest columns, or slashes, that hold their alpha of a head's sampled mass: the largest
   mass from which on all are enough, by halving; of those of just that mass the first ones.
   Grid: (columns and slashes, head, batch), 256 threads. Writes: p.own, p.picked; slashes first
   as they are, in p.raw_sets. A NaN among the masses makes the head read everything.
   Reads: 16 bytes for each unit and block of 64 keys, three times that for slashes; 4 bytes of
   each block 32 times, from a cache. Latency-bound.
   Barriers: for all masses; those of cta_scan; for all words of p.raw_sets. */
__global__ void __launch_bounds__(256) k_select(const __grid_constant__ params p) {
    SHARED(shared, select_memory);
    const int is_slash = blockIdx.x, head = blockIdx.y, b = blockIdx.z, lane = threadIdx.x & 31,
              warp = this_warp();
    const i64 at = (i64)b * p.heads + head;
    const int len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity;
    const int n = (int)((len + (i64)(1 << p.block_shift) - 1) >> p.block_shift);
    float *const mass = p.set_masses + (at * 2 + is_slash) * p.k_blocks;
    unsigned *const raw = p.raw_sets + (at * 2 + is_slash) * p.mask_words,
             *const own = p.own + (at * 2 + is_slash) * p.mask_words;
    const double alpha = is_slash ? p.alpha_slashes : p.alpha_columns;
    double mine = 0.0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 256) {
        const double x = set_mass(p, b, head, is_slash, i);
        mass[i] = (float)x;
        mine += (double)(float)x;
    }
    const double total = cta_total<8>(mine, shared.scratch);
    const bool all = alpha >= 1.0;
    const double target = total * alpha * (1.0 - 1e-7);
    unsigned least = 0xffffffffu, taken = 0;        /* bits of the least mass; how many of just that */
    if (!(total == total)) {
        if (threadIdx.x == 0) p.picked[at * 2 + is_slash] = -1;
    } else if (!all && target > 0.0) {
        least = 0;
#pragma unroll 1
        for (int bit = 30; bit >= 0; bit--) {
            const unsigned next = least | 1u << bit;
            mine = 0.0;
#pragma unroll 1
            for (int i = threadIdx.x; i < n; i += 256)
                if (__float_as_uint(mass[i]) >= next) mine += (double)mass[i];
            if (cta_total<8>(mine, shared.scratch) >= target) least = next;
        }
        mine = 0.0;
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += 256)
            if (__float_as_uint(mass[i]) > least) mine += (double)mass[i];
        const double held = cta_total<8>(mine, shared.scratch);
        const double each = (double)__uint_as_float(least);
        taken = each > 0.0 ? (unsigned)fmin(ceil(quotient(target - held, each)), 2147483647.0) : 0u;
        while (taken > 0 && held + (double)(taken - 1) * each >= target) taken--;
    }
    __syncthreads();
    if (warp == 0) {                                /* in order, for the ties */
        unsigned before = 0;
        int count = 0;
#pragma unroll 1
        for (int w = 0; w < p.mask_words; w++) {
            const int i = 32 * w + lane;
            const unsigned bits = i < n ? __float_as_uint(mass[i]) : 0u;
            const unsigned equal = __ballot_sync(FULL, i < n && bits == least && taken > 0);
            const unsigned order = before + __popc(equal & ((1u << lane) - 1u));
            const bool in = i < n && (all || (least != 0xffffffffu && bits > least)
                                      || (equal >> lane & 1u && order < taken));
            const unsigned word = __ballot_sync(FULL, in);
            before += __popc(equal);
            count += __popc(word);
            if (lane == 0) raw[w] = word;
        }
        if (lane == 0 && total == total) p.picked[at * 2 + is_slash] = count;
    }
    __syncthreads();
#pragma unroll 1
    for (int w = threadIdx.x; w < p.mask_words; w += 256) {
        unsigned x = raw[w];
        if (is_slash) {                             /* backwards, s or s - 1 */
            const int other = p.mask_words - 1 - w;
            x = __brev(raw[other] | __funnelshift_l(other > 0 ? raw[other - 1] : 0u, raw[other], 1));
        }
        own[w] = x;
    }
}

/* Blocks that head `head` reads and those that dense attention would, of row blocks of a warp's
   turns. */
__device__ __forceinline__ void count_blocks(const params &p, int b, int head, const unsigned *sets,
                                             i64 *kept, i64 *all) {
    const int lane = threadIdx.x & 31, warp = this_warp(), size = 1 << p.block_shift;
    int begin, end, start;
    row_range(p, b, 0, 1, begin, end, start);
    const int from = first_row_of(p, b, start), low = start >> p.block_shift,
              first = (start + from) >> p.block_shift, last = (start + p.q_len - 1) >> p.block_shift;
    if (from >= p.q_len) return;
#pragma unroll 1
    for (int r = first + warp; r <= last; r += 8) {
        const int row = max(r * (1 << p.block_shift) - start, from),
                  to = min((r + 1) * (1 << p.block_shift) - start, p.q_len);
        int ignored, key, until, position;
        row_range(p, b, row, 1, key, ignored, position);
        row_range(p, b, to - 1, 1, ignored, until, position);
        const int b0 = key >> p.block_shift, b1 = (int)(((i64)until + size - 1) >> p.block_shift);
        if (key >= until) continue;
        if (lane == 0) *all += b1 - b0;
        if (p.mask) {
            const i64 of_head = ((i64)b * p.all_heads + head) * p.q_blocks;
            const unsigned char *mask = p.mask + (of_head + r - low) * p.k_blocks;
#pragma unroll 1
            for (int i = b0 + lane; i < b1; i += 32) *kept += mask[i] != 0;
            continue;
        }
#pragma unroll 1
        for (int w = (b0 >> 5) + lane; 32 * w < b1; w += 32) {
            unsigned x = set_word(p, b, sets, r, w);
            if (32 * w < b0) x &= FULL << (b0 & 31);
            if (b1 - 32 * w < 32) x &= ~(FULL << (b1 - 32 * w));
            *kept += __popc(x);
        }
    }
}

/* The sets of a group together, unless per_head; whether it runs dense; what an audit has of
   that. Grid: (KV head, batch), 256 threads. A warp owns every eighth block of query rows.
   Barriers: for the joined sets; those of cta_scan. */
__global__ void __launch_bounds__(256) k_join(const __grid_constant__ params p) {
    SHARED(shared, select_memory);
    const int kv = blockIdx.x, b = blockIdx.y, words = 2 * p.mask_words;
    const i64 first = (i64)b * p.heads + kv * p.group;
    santa_sample_audit *const audit = p.audit + (i64)b * p.all_heads + kv * p.group;
    const int apart = p.per_head || p.mask ? p.group : 1;
    bool bad = false;
    i64 rows = 0, keys = 0, all_kept = 0, all_blocks = 0;
    if (!p.mask) {
#pragma unroll 1
        for (int w = threadIdx.x; w < words; w += 256) {
            unsigned x = 0;
#pragma unroll 1
            for (int h = 0; h < p.group; h++) x |= p.own[(first + h) * words + w];
#pragma unroll 1
            for (int h = 0; h < p.group; h++)
                p.sets[(first + h) * words + w] = p.per_head ? p.own[(first + h) * words + w] : x;
        }
#pragma unroll 1
        for (int i = 0; i < 2 * p.group; i++) bad |= p.picked[2 * first + i] < 0;
#pragma unroll 1
        for (int u = 0; u < p.units; u++) {
            const int2 own = rows_of_unit(p, b, u);
            const int from = own.x, to = own.y;
            rows += to - from;
#pragma unroll 1
            for (int row = from; p.stats && row < to; row++) {
                int begin, end, position;
                row_range(p, b, row, 1, begin, end, position);
                keys += end - begin;
            }
        }
    }
    __syncthreads();
    int begin, end, start;
    row_range(p, b, 0, 1, begin, end, start);
    const int first_row = first_row_of(p, b, start);
    const double cost = rows > 0 ? quotient((double)rows, (double)(p.q_len - first_row)) : 0.0;
#pragma unroll 1
    for (int h = 0; h < apart; h++) {
        i64 mine[2] = { 0, 0 };
        count_blocks(p, b, kv * p.group + h, p.sets + (first + h) * words, &mine[0], &mine[1]);
        const double kept = cta_total<8>((double)mine[0], shared.scratch),
                     of_head = cta_total<8>((double)mine[1], shared.scratch);
        all_kept += (i64)kept;
        all_blocks += (i64)of_head;
        if (threadIdx.x == 0 && p.audit)
            audit[h].kept_share = of_head > 0.0 ? quotient(kept, of_head) : 1.0;
    }
    if (threadIdx.x) return;
    const double share = all_blocks > 0 ? quotient((double)all_kept, (double)all_blocks) : 1.0;
    const int dense = !p.mask && (bad || share + cost > p.dense_above);
    if (!p.mask) p.runs_dense[b * (int)p.kv_heads + kv] = dense;
#pragma unroll 1
    for (int h = 0; p.audit && h < p.group; h++) {
        santa_sample_audit *a = audit + h;
        a->kept_share = dense ? 1.0 : audit[h % apart].kept_share;
        a->cost = cost;
        a->is_dense = dense;
        a->cra = a->low_mass = -1.0;                /* SANTA_NONE */
        a->columns = p.mask ? 0 : p.picked[(first + h) * 2];
        a->slashes = p.mask ? 0 : p.picked[(first + h) * 2 + 1];
        if (a->columns < 0) a->columns = 0;
        if (a->slashes < 0) a->slashes = 0;
        a->sampled_mass = a->sampled_low = 1.0;     /* until k_audit */
    }
    if (!p.stats) return;
    const auto add = [](int64_t *field, i64 n) { atomicAdd((u64 *)field, (u64)n); };
    if (dense) add(&p.stats->dense_rows, (i64)p.q_len * p.group);
    add(&p.stats->k_rows_read, keys);
    add(&p.stats->k_features_read, keys * p.d);
    add(&p.stats->k_features_head, keys * p.d * p.group);
}

/* Mean of the `worst` smallest numbers, by all of a CTA's 256 threads; each(f) calls f with a
   thread's own ones, once for each value that is among them. *smallest: of all. */
template <typename Each>
__device__ __forceinline__ double low_mean(select_memory &shared, int worst, float *smallest, Each each) {
    float last = -1.0f;
    double low = 0.0;
    *smallest = 2.0f;
#pragma unroll 1
    for (int taken = 0; taken < worst;) {
        float least = 2.0f;
        double count = 0.0;
        each([&](float x) {
            if (x > last && x < least) { least = x; count = 0.0; }
            count += x == least ? 1.0 : 0.0;
        });
        float all = least;
#pragma unroll
        for (int o = 16; o; o >>= 1) all = fminf(all, __shfl_xor_sync(FULL, all, o));
        __syncthreads();
        if (threadIdx.x % 32 == 0) shared.least[threadIdx.x / 32] = all;
        __syncthreads();
        for (int i = 0; i < 8; i++) all = fminf(all, shared.least[i]);
        const double found = cta_total<8>(least == all ? count : 0.0, shared.scratch);
        if (!(all < 2.0f) || found == 0.0) break;   /* a NaN */
        if (taken == 0) *smallest = all;
        const int now = min((int)found, worst - taken);
        low += (double)all * (double)now;
        taken += now;
        last = all;
    }
    return worst > 0 ? quotient(low, (double)worst) : 1.0;
}

/* Mean of the sampled rows' shares, and of the worst 1 % of them.
   Grid: (head, batch), 256 threads; each looks at every 256th row as often as there are worst
   ones. Barriers: for a row's share; for the least so far. */
__global__ void __launch_bounds__(256) k_audit(const __grid_constant__ params p) {
    SHARED(shared, select_memory);
    const int head = blockIdx.x, b = blockIdx.y;
    double mine = 0.0, sum;
    int rows = 0;
    float *const shares = p.shares + unit_at(p, b, head, 0) * p.sample_splits * BLOCK;
#pragma unroll 1
    for (int u = 0; u < p.units; u++) {
        int begin, end, position;
        const int2 own = rows_of_unit(p, b, u);
        const int from = own.x, to = own.y;
        if (from >= to) continue;
        row_range(p, b, to - 1, 1, begin, end, position);
        const int splits = (end + SAMPLE_BLOCKS * BLOCK - 1) / (SAMPLE_BLOCKS * BLOCK);
        float *const of_unit = shares + (i64)u * p.sample_splits * BLOCK;
#pragma unroll 1
        for (int i = threadIdx.x; i < to - from; i += 256) {
            float x = 0.0f;
#pragma unroll 1
            for (int k = 0; k < splits; k++) x += of_unit[k * BLOCK + i];
            of_unit[i] = x;
            mine += (double)x;
        }
        rows += to - from;
    }
    sum = cta_total<8>(mine, shared.scratch);
    __syncthreads();
    float smallest;
    const double low = low_mean(shared, (rows + 99) / 100, &smallest, [&](auto take) {
#pragma unroll 1
        for (int u = 0; u < p.units; u++) {
            const int2 own = rows_of_unit(p, b, u);
#pragma unroll 1
            for (int i = threadIdx.x; i < own.y - own.x; i += 256)
                take(shares[(i64)u * p.sample_splits * BLOCK + i]);
        }
    });
    if (threadIdx.x) return;
    santa_sample_audit *a = p.audit + (i64)b * p.all_heads + head;
    const int *picked = p.picked + ((i64)b * p.heads + head) * 2;
    const bool bad = picked[0] < 0 || picked[1] < 0;
    const double nan = (double)__int_as_float(0x7fc00000);
    a->sampled_mass = bad ? nan : rows > 0 ? quotient(sum, (double)rows) : 1.0;
    a->sampled_low = bad ? nan : low;
}

/* What query row q_index keeps of each head's softmax, from the block sums of k_scores.
   Grid: (head, batch), 256 threads; a warp has every eighth 32 blocks of the mask.
   Reads 8 bytes for 64 keys. Barriers: for the maximum, and those of cta_scan. */
__global__ void __launch_bounds__(256) k_row_mass(const __grid_constant__ params p) {
    SHARED(shared, select_memory);
    const int head = blockIdx.x, b = blockIdx.y, kv = head / p.group, lane = threadIdx.x & 31,
              warp = this_warp(), per = p.block_shift - 6;
    const bool dense = !p.mask && p.runs_dense[b * (int)p.kv_heads + kv];
    const float2 *const sums = p.block_sums + ((i64)b * p.heads + head) * p.blocks;
    const unsigned *const sets = p.sets + ((i64)b * p.heads + head) * 2 * p.mask_words;
    int begin, end, start, position;
    row_range(p, b, 0, 1, begin, end, start);
    row_range(p, b, p.q_index, 1, begin, end, position);
    const int first = begin / BLOCK, last = begin < end ? (end - 1) / BLOCK + 1 : first,
              r = position >> p.block_shift;
    const float m = cta_top(sums, first, last, shared.least);
    double all = 0.0, read = 0.0;
#pragma unroll 1
    for (int w = warp; ((i64)w << per) * 32 < last; w += 8) {
        const unsigned word = p.mask ? mask_word(p, b, head, r, start >> p.block_shift, w)
                              : dense ? FULL : set_word(p, b, sets, r, w);
#pragma unroll 1
        for (int k = 0; k < 1 << per; k++) {
            const i64 i = ((32ll * w + lane) << per) + k;
            if (i < first || i >= last) continue;
            const double mass = block_mass(sums[i], m);
            all += mass;
            if (word >> lane & 1u) read += mass;
        }
    }
    all = cta_total<8>(all, shared.scratch);
    read = cta_total<8>(read, shared.scratch);
    if (threadIdx.x) return;
    const float share = (float)fmin(quotient(read, all), 1.0);
    p.row_mass[result_of(p, b, p.q_index, head)]
        = all != all ? __int_as_float(0x7fc00000) : all > 0.0 ? share : 1.0f;
}

/* The smallest row_mass of a head, and the mean of the 1 % smallest. Grid: (head, batch), 256
   threads. */
__global__ void __launch_bounds__(256) k_row_audit(const __grid_constant__ params p) {
    SHARED(shared, select_memory);
    const int head = blockIdx.x, b = blockIdx.y;
    const float *const mass = p.row_mass + result_of(p, b, 0, head);
    float smallest;
    bool bad = false;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.q_len; i += 256) bad |= !(mass[(i64)i * p.all_heads] <= 1.0f);
    bad = __syncthreads_or(bad);
    const double low = low_mean(shared, (p.q_len + 99) / 100, &smallest, [&](auto take) {
#pragma unroll 1
        for (int i = threadIdx.x; i < p.q_len; i += 256) take(mass[(i64)i * p.all_heads]);
    });
    if (threadIdx.x) return;
    santa_sample_audit *a = p.audit + (i64)b * p.all_heads + head;
    a->cra = bad ? (double)__int_as_float(0x7fc00000) : (double)smallest;
    a->low_mass = bad ? (double)__int_as_float(0x7fc00000) : low;
}

/* mask_out. Grid: (blocks of query rows, head, batch), 128 threads, a byte each. */
__global__ void __launch_bounds__(128) k_mask(const __grid_constant__ params p) {
    const int head = blockIdx.y, b = blockIdx.z;
    int begin, end, start;
    row_range(p, b, 0, 1, begin, end, start);
    const int low = start >> p.block_shift, r = low + (int)blockIdx.x;
    if (r > (start + p.q_len - 1) >> p.block_shift) return;
    const i64 at = (((i64)b * p.all_heads + head) * p.q_blocks + blockIdx.x) * p.k_blocks;
    const bool dense = !p.mask && p.runs_dense[b * (int)p.kv_heads + head / p.group];
    const unsigned *sets = p.sets + ((i64)b * p.heads + head) * 2 * p.mask_words;
#pragma unroll 1
    for (i64 i = threadIdx.x; i < p.k_blocks; i += 128) {
        const int block = (int)i;
        bool kept = p.mask ? p.mask[at + i] != 0 : block <= r;
        if (kept && !p.mask && !dense) kept = set_word(p, b, sets, r, block >> 5) >> (block & 31) & 1u;
        p.mask_out[at + i] = kept;
    }
}

/* --------------------------------------------------------------------------- >>stats-kernel */

/* Whether key j is among n drawn ones; those that were selected are in order. */
__device__ __forceinline__ bool is_drawn(const params &p, const int *keys, int n, int j) {
    if (p.list_rest) {
        int at = 0, have = n;
        while (have > 0) {
            const int half = have / 2;
            if (keys[at + half] < j) { at += half + 1; have -= half + 1; } else have = half;
        }
        return at < n && keys[at] == j;
    }
#pragma unroll 1
    for (int k = 0; k < n; k++) if (keys[k] == j) return true;
    return false;
}

/* Adds the counts of one query row to p.stats, with integer atomics, which do not depend on
   order. Only when stats are asked for.
   Grid: (KV head, batch), 256 threads: a thread owns every 256th draw of each head of the
   group. Distinct rows by comparing every draw with the ones before it: up to 4 * (group *
   draws)^2 / 2 bytes read, most of them from the caches. A diagnostic; no barrier. */
__global__ void __launch_bounds__(256) k_stats(const __grid_constant__ params p) {
    const int kv = blockIdx.x, b = blockIdx.y;
    int begin, end;
    const bool is_short = is_short_row(p, b, begin, end), sampled = p.draws && !is_short;
    const key_gap r = gap_of(p, b);
    const i64 keys = end - begin - (r.gap_end - r.gap);
    i64 by_head = 0, by_group = 0, draws = 0;
#pragma unroll 1
    for (int g = 0; sampled && g < p.group; g++) {
        const i64 row = (i64)b * p.heads + kv * p.group + g;
        const int n = p.draws[row];
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += 256) {
            const int j = p.keys[row * p.max_draws + i];
            bool here = false, before = false;
            if (j < 0) continue;                    /* another rank's */
            draws++;
#pragma unroll 1
            for (int k = 0; k < i && !here && !p.list_rest; k++) here = p.keys[row * p.max_draws + k] == j;
            if (here) continue;
            by_head++;
#pragma unroll 1
            for (i64 h = row - g; h < row && !before; h++)
                before = is_drawn(p, p.keys + h * p.max_draws, p.draws[h], j);
            by_group += !before;
        }
    }
    if (p.list_rest) draws = 0;
    const auto add = [](int64_t *field, i64 n) { atomicAdd((u64 *)field, (u64)n); };
    add(&p.stats->v_rows_head, by_head);
    add(&p.stats->v_rows_read, by_group);
    add(&p.stats->draws, draws);
    if (threadIdx.x) return;
    add(&p.stats->rows, p.group);
    add(&p.stats->keys, keys);
    add(&p.stats->k_rows_read, keys);
    add(&p.stats->k_features_read, keys * p.d);
    add(&p.stats->k_features_head, keys * p.d * p.group);
    if (sampled) return;
    add(&p.stats->v_rows_read, keys);
    add(&p.stats->v_rows_head, keys * p.group);
    if (is_short && keys) add(&p.stats->dense_rows, p.group);
}

/* The same for all query rows of a call, which k_prefill has done. Of a sparse one a key counts
   that some head of the group reads. Grid: (KV head, batch), 256 threads: a warp owns every
   eighth row. */
__global__ void __launch_bounds__(256) k_prefill_stats(const __grid_constant__ params p) {
    const int kv = blockIdx.x, b = blockIdx.y, lane = threadIdx.x & 31, warp = this_warp();
    const bool all = !p.is_sparse || (!p.mask && p.runs_dense[b * (int)p.kv_heads + kv]);
    i64 keys = 0, by_head = 0, by_group = 0, short_rows = 0;
    int start, begin, end;
    row_range(p, b, 0, 1, begin, end, start);
#pragma unroll 1
    for (int row = warp; row < p.q_len; row += 8) {
        int position;
        row_range(p, b, row, 1, begin, end, position);
        if (lane == 0) {
            keys += end - begin;
            short_rows += end > begin && p.dense_below;               /* all are short */
        }
        if (all || begin >= end) continue;
        const int r = position >> p.block_shift, first_row = start >> p.block_shift;
#pragma unroll 1
        for (int w = begin >> p.block_shift >> 5; ((i64)w << p.block_shift) * 32 < end; w++) {
            unsigned any = 0;
            const i64 from = (32ll * w + lane) << p.block_shift, to = from + (1 << p.block_shift);
            const i64 low = from > begin ? from : begin, high = to < end ? to : end,
                      here = high > low ? high - low : 0;
#pragma unroll 1
            for (int h = 0; h < p.group; h++) {
                const int head = kv * p.group + h;
                const unsigned *sets = p.sets + ((i64)b * p.heads + head) * 2 * p.mask_words;
                const unsigned word = p.mask ? mask_word(p, b, head, r, first_row, w)
                                             : set_word(p, b, sets, r, w);
                any |= word;
                by_head += word >> lane & 1u ? here : 0;
            }
            by_group += any >> lane & 1u ? here : 0;
        }
    }
    if (all) { by_group = keys; by_head = keys * p.group; }
    const auto add = [](int64_t *field, i64 n) { atomicAdd((u64 *)field, (u64)n); };
    const i64 scored = p.row_mass ? keys : by_group;
    add(&p.stats->keys, keys);
    add(&p.stats->k_rows_read, scored);
    add(&p.stats->k_features_read, scored * p.d);
    add(&p.stats->k_features_head, scored * p.d * p.group);
    add(&p.stats->v_rows_read, by_group);
    add(&p.stats->v_rows_head, by_head);
    add(&p.stats->dense_rows, short_rows * p.group);
    if (threadIdx.x == 0) add(&p.stats->rows, (i64)p.q_len * p.group);
}

/* -------------------------------------------------------------------------- >>ranks-kernel */

/* One context over ranks. The sums of a rank's draws, or its exact result, and lse go to a
   buffer as f32 instead of out; the host's all_gather brings those of all ranks, and
   k_join_ranks adds or merges them. Before the draw ranks tell each other k_rank_mass's. */

/* What a mass of 1 is in whole numbers, of which so many blocks' keys have a sum. */
__device__ __forceinline__ double mass_unit(int blocks) {
    return (double)((u64)1 << 62 >> (32 - __clz(blocks * BLOCK)));
}

/* Largest score and mass of one query head here; of flash also the first tile, its largest
   score and mass, then those of the last one; of top-p what its whole numbers are.
   Grid: (query head, batch), 256 threads. Reads 8 bytes a block; latency-bound. */
__global__ void __launch_bounds__(PORTION) k_rank_mass(const __grid_constant__ params p) {
    SHARED(s, rank_memory);
    const int b = blockIdx.y, head = blockIdx.x, tid = threadIdx.x;
    const i64 row = (i64)b * p.heads + head;
    int begin, end, position;
    key_range(p, b, begin, end, position);
    const int first = begin / BLOCK, blocks = begin < end ? (end - 1) / BLOCK + 1 - first : 0,
              origin = p.first_key / BLOCK + first; /* of the first block, in the context */
    const float2 *sums = p.block_sums + row * p.blocks + first;
    double *const said = p.rank_mass + row * p.mass_doubles;
    wait_for_previous();
    int from = 0, to = blocks;
#pragma unroll 1
    for (int part = 0; part < (p.mass_doubles > 3 ? 3 : 1); part++) {
        double mass = 0.0;
        if (part) {
            const int tile = (origin + (part == 1 ? 0 : max(blocks - 1, 0))) / p.flash_blocks;
            from = max(tile * p.flash_blocks - origin, 0);
            to = min((tile + 1) * p.flash_blocks - origin, blocks);
            if (tid == 0) said[3 * part - 1] = blocks ? (double)tile : -1.0;
        }
        const float m = cta_top(sums, from, to, s.tops);
#pragma unroll 1
        for (int i = from + tid; i < to; i += PORTION) mass += block_mass(sums[i], m);
        const double total = cta_total<GATHER_WARPS>(mass, s.scratch);
        if (tid == 0) {
            said[3 * part] = (double)m;
            said[3 * part + 1] = total;
            if (p.mass_doubles == 3) said[2] = 1.0 / mass_unit(p.blocks);
        }
    }
}

/* flash over ranks, in two steps with an exchange between them. LIST: the tiles here with mass,
   and how many of them lie between the first and the last. PLACE: where they are among those of
   all ranks. Grid: (query head, batch), 256 threads. */
__global__ void __launch_bounds__(PORTION) k_rank_tiles(const __grid_constant__ params p) {
    SHARED(s, rank_memory);
    const int b = blockIdx.y, head = blockIdx.x, tid = threadIdx.x;
    const i64 row = (i64)b * p.heads + head, apart = (i64)p.batch * p.heads;
    const double *const said = p.rank_masses + row * 8;
    int begin, end, position;
    key_range(p, b, begin, end, position);
    const int first = begin / BLOCK, blocks = begin < end ? (end - 1) / BLOCK + 1 - first : 0,
              origin = p.first_key / BLOCK + first;
    const float2 *sums = p.block_sums + row * p.blocks + first;
    const float least = rank_share_of(p, row).m - 87.0f * LOG2E;
    tiles_of_ranks &met = p.tiles_met[row];
    const auto has_mass = [&](int f) {              /* of a tile that other ranks may have keys of */
        return rank_share_of(p, row, (double)f).m > least;
    };
    if (p.rank_step == LIST) {
        const int from = origin / p.flash_blocks, to = blocks ? (origin + blocks - 1) / p.flash_blocks : -1;
        int here = 0, inner = 0;
#pragma unroll 1
        for (int base = from; base <= to; base += PORTION) {
            const int f = base + tid;
            bool has = false;
            if (f == from || f == to) has = has_mass(f);
            else
#pragma unroll 1
                for (int i = 0; f < to && i < p.flash_blocks; i++)
                    has |= sums[f * p.flash_blocks - origin + i].x > least;
            double all, order = cta_scan<GATHER_WARPS>(has ? 1.0 : 0.0, s.scratch, &all);
            if (has) p.tile_list[row * p.max_tiles + here + (int)order - 1] = f;
            here += (int)all;
            inner += __syncthreads_count(has && f != from && f != to);
        }
        if (tid) return;
        p.tile_count[row] = inner;
        met.here = here;
        met.tile[0] = met.tile[1] = -1;
#pragma unroll 1
        for (int i = 0; i < 2 && to >= 0; i++) {
            met.tile[i] = i ? to : from;
            met.edge[i] = rank_share_of(p, row, (double)met.tile[i]);
        }
        return;
    }
    if (tid) return;
    int all = 0;
    double last = -1.0;
    bool has = false;
    met.before = 0;
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        const double *const one = said + r * apart * 8;
        const bool begun = one[2] == last;
        if (one[2] < 0.0) continue;
        if (r == p.rank) met.before = all - (begun && has);
        if (!begun) all += has = has_mass((int)one[2]);
        all += (int)p.tile_counts[r * apart + row];
        if (one[5] > one[2]) all += has = has_mass((int)one[5]);
        last = one[5];
    }
    met.all = all;
    const auto draws_below = [&](i64 tile) {
        return (p.each >= all ? (i64)p.each * tile / max(all, 1) : tile) * p.combs;
    };
    met.first_draw = draws_below(met.before);
    met.draws = (int)(draws_below(met.before + met.here) - met.first_draw);
}

/* What one thread's columns add to the squared error of a result, see error_of_rank, in units
   of the share of a draw. share: of the ranks that drew, or 0. */
__device__ __noinline__ double joined_error(const params &p, i64 row, double &share) {
    const double *const e = (const double *)(p.parts + p.errors_at) + row * p.error_doubles;
    const i64 apart = p.part_floats / 2;
    const bool neighbours = p.combs == 1 && p.method != SANTA_IID;
    const double count = (double)(p.combs > 1 ? p.combs : p.samples);
    double total = 0.0;
    share = 0.0;
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        share = fmax(share, e[r * apart]);
        if (threadIdx.x == 0) total += e[r * apart + 1];
    }
#pragma unroll 1
    for (int c = threadIdx.x; c < p.dv; c += 128) {
        double sum = 0.0, squares = 0.0, last = 0.0;
        bool has_last = false;
#pragma unroll 1
        for (int r = 0; r < p.ranks && neighbours; r++) {
            const double *const x = e + r * apart + 2 + c;
            if (!(e[r * apart] > 0.0)) continue;
            if (has_last) total += 0.5 * (x[0] - last) * (x[0] - last);
            has_last = true;
            last = x[p.dv];
        }
#pragma unroll 1
        for (int k = 0; k < p.combs && !neighbours; k++) {
            double one = 0.0;
#pragma unroll 1
            for (int r = 0; r < p.ranks; r++) one += e[r * apart + 2 + (i64)k * p.dv + c];
            sum += one;
            squares += p.combs > 1 ? one * one : 0.0;
        }
        total += squares - sum * sum / count;
    }
    return total * (count / (count - 1.0));
}

/* Results of all ranks, one row of one head: out, lse and std_error.
   Grid: rows * heads, 128 threads, each with some columns. Reads part_floats of each rank in
   all. Barrier: for the error's sum. */
__global__ void __launch_bounds__(128) k_join_ranks(const __grid_constant__ params p) {
    SHARED(s, join_memory);
    const i64 row = blockIdx.x, apart = p.part_floats, last = p.rows_in_all * p.dv;
    const unsigned of_heads = blockIdx.x / (unsigned)p.heads;
    const int head = (int)(blockIdx.x % (unsigned)p.heads), q = (int)(of_heads % (unsigned)p.q_len);
    const i64 b = of_heads / (unsigned)p.q_len;
    const bool adapts = p.method == SANTA_VATTENTION,
               exact = p.method == SANTA_DENSE || p.rank_lse || (p.rank_again && p.rank_again[row]);
    const float *lse = p.parts + last + row;
    float m = MASKED, joined = *lse;
    double sum = 0.0, share = 1.0;
    bool bad = false;
    /* methods that select: lse of all keys, beside that of those taken; vAttention: the largest
       score */
    const float *const beside = p.parts + p.rows_in_all * (p.dv + 1) + row,
                *const whole = p.rank_lse && !adapts ? beside : nullptr;
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        bad |= lse[r * apart] != lse[r * apart];
        m = fmaxf(m, lse[r * apart] * LOG2E);
    }
#pragma unroll 1
    for (int r = 0; r < p.ranks && exact; r++) sum += (double)pow2(lse[r * apart] * LOG2E - m);
    if (exact) {
        float top = m;
        double all = sum;
        if (whole) {
            top = MASKED;
            all = 0.0;
#pragma unroll 1
            for (int r = 0; r < p.ranks; r++) top = fmaxf(top, whole[r * apart] * LOG2E);
#pragma unroll 1
            for (int r = 0; r < p.ranks; r++) all += (double)pow2(whole[r * apart] * LOG2E - top);
            bad |= all != all;
        }
        joined = bad ? __int_as_float(0x7fc00000) : head_lse(p, head, top, all);
        share = sum > 0.0 ? sink_share(p, head, top, all) / sum : 0.0;
    }
    /* pps: what the sums of the sure keys count, see santa__anchor */
    const float *const sure = p.parts + p.rows_in_all * (p.dv + 1) + row * (p.dv + 2);
    double times = 0.0, weight[2] = { 0.0, 0.0 };
#pragma unroll 1
    for (int r = 0; r < p.ranks && p.sure; r++)
        for (int i = 0; i < 2; i++) weight[i] += (double)sure[r * apart + p.dv + i];
    if (p.sure) times = weight[0] < 0.25 ? 1.0 : 1.0 + (1.0 - weight[1]) / weight[0];
    const i64 result = result_of(p, b, q, head);
    if (threadIdx.x == 0 && p.lse) p.lse[result] = joined;
    if (threadIdx.x == 0 && adapts && p.va.audit && p.va.audit[result].num_keys) {
        santa_audit &x = p.va.audit[result];        /* relative to the base sample's largest score */
        float top = MASKED;
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++) top = fmaxf(top, beside[r * apart]);
        const double natural = (double)top * 0.69314718055994530942, f = exp(x.max_score - natural);
        x.sigma *= f;
        x.norm *= f;
        x.trace *= f * f;
        x.denominator = x.num_base ? x.denominator * f : exp(fmin((double)joined - natural, 600.0));
        x.max_score = natural;
    }
    char *out = p.out + b * p.out_stride[0] + q * p.out_stride[1] + head * p.out_stride[2];
    bool spoilt = false;
#pragma unroll 1
    for (int c = threadIdx.x; c < p.dv; c += 128) {
        double f = 0.0;
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++) {
            const double w = exact ? (double)pow2(lse[r * apart] * LOG2E - m) : 1.0;
            if (w > 0.0) f += w * (double)p.parts[r * apart + row * p.dv + c];
            if (p.sure) f += times * (double)sure[r * apart + c];
        }
        const float x = bad ? __int_as_float(0x7fc00000) : (float)(f * share);
        store_any(p.out_type, out + c * p.out_stride[3], x);
        spoilt |= x != x;
    }
    if (!p.std_error) return;
    spoilt = __syncthreads_or(spoilt);
    double total = 0.0, part = 0.0;
    if (p.error_doubles) total = joined_error(p, row, part);
#pragma unroll
    for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(FULL, total, o);
    if (threadIdx.x % 32 == 0) s.warps[threadIdx.x / 32] = total;
    __syncthreads();
    total = s.warps[0] + s.warps[1] + s.warps[2] + s.warps[3];
    if (threadIdx.x) return;
    p.std_error[result] = spoilt ? __int_as_float(0x7fc00000) : !(part > 0.0) ? 0.0f
                     : p.samples < 2 ? INFINITY
                     : (float)(sqrt(fmax(total, total == total ? 0.0 : total)) * part);
}

/* -----------------------------------------------------------------------------
   >>error-kernel */

/* The sum of all of a CTA's threads, or another `join`, for each of them. */
template <typename Join>
__device__ __forceinline__ double cta_joined(double x, error_memory &s, Join join) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x = join(x, __shfl_xor_sync(FULL, x, o));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) s.warps[threadIdx.x >> 5] = x;
    __syncthreads();
    x = s.warps[0];
#pragma unroll 1
    for (int i = 1; i < 4 * ERROR_PARTS; i++) x = join(x, s.warps[i]);
    return x;
}
/* The sum. Called, so that it does not swell what needs several. */
__device__ __noinline__ double cta_sum(double x, error_memory &s) {
    return cta_joined(x, s, [](double y, double z) { return y + z; });
}

/* Whether a head's out has a NaN, for all threads of a CTA. */
__device__ __noinline__ bool is_spoilt(const params &p, int b, int head) {
    const char *const out = p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1]
                          + head * p.out_stride[2];
    bool any = false;
#pragma unroll 1
    for (int c = (int)threadIdx.x; c < p.dv; c += (int)blockDim.x) {
        const float x = load_any(p.out_type, out + c * p.out_stride[3]);
        any |= x != x;
    }
    return __syncthreads_or(any);
}

__device__ __noinline__ double drawn_number(const params &p, int b, int kv, int key, int column) {
    const char *const v = p.v + kv * p.v_stride[2];
    const i64 at = row_offset(p, p.v_stride, b, key);
    return at == NO_ROW ? (double)__int_as_float(0x7fc00000)
                        : (double)load_listed(p.v_type, v + at, column, p.v_stride[3])
                          * (double)value_scale(p, b, kv, key);
}

/* What a head's std_error needs of this rank's draws, for k_join_ranks: p.errors has the share
   of a draw in the output, 0 without draws; a sum of squares over the columns; then rows of V,
   dv numbers each: the sum of all draws (iid), of each comb, or the first and the last one,
   between which the squared differences of neighbours are in the sum. A head's draws are those
   of all ranks, -1 for another's. */
__device__ __noinline__ void error_of_rank(const params &p, error_memory &s, int b, int head, int n) {
    const int tid = threadIdx.x, part = tid / 128, combs = p.combs;
    const i64 row = (i64)b * p.heads + head;
    const int *const keys = p.keys + row * p.max_draws;
    const int kv = head / p.group;
    double *const e = p.errors + (((i64)b * p.q_len + p.q_index) * p.heads + head) * p.error_doubles;
    const auto here = [&](int i) { return i >= 0 && i < n && keys[i] >= 0; };
    double total = 0.0;
    bool some = false;
#pragma unroll 1
    for (i64 i = tid; i < p.error_doubles; i += 128 * ERROR_PARTS) e[i] = 0.0;
    __syncthreads();
    for (int base = 0; base < p.dv; base += 128) {
        const int column = base + tid % 128;
        const bool has = column < p.dv;
        const auto value = [&](int i) { return drawn_number(p, b, kv, keys[i], min(column, p.dv - 1)); };
        if (combs > 1) {
#pragma unroll 1
            for (int r = part; r < combs; r += ERROR_PARTS) {
                double x = 0.0;
#pragma unroll 1
                for (int k = r; k < n; k += combs)
                    if (here(k)) { x += value(k); some = true; }
                if (has) e[2 + (i64)r * p.dv + column] = x;
            }
        } else if (p.method == SANTA_IID) {
            double sum = 0.0, squares = 0.0;
#pragma unroll 1
            for (int i = part; i < n; i += ERROR_PARTS) {
                const double x = here(i) ? value(i) : 0.0;
                some |= here(i);
                sum += x;
                squares += x * x;
            }
            if (has) total += squares;
            __syncthreads();
            s.sum[part][tid % 128] = sum;
            __syncthreads();
#pragma unroll 1
            for (int i = 1; i < ERROR_PARTS && part == 0; i++) sum += s.sum[i][tid];
            if (has && part == 0) e[2 + column] = sum;
        } else {
            const int chunk = (n + ERROR_PARTS - 1) / ERROR_PARTS, begin = part * chunk;
#pragma unroll 1
            for (int i = begin; i < min(begin + chunk, n); i++) {
                if (!here(i)) continue;
                const double x = value(i), before = here(i - 1) ? value(i - 1) : x;
                some = true;
                if (!has) continue;
                total += 0.5 * (x - before) * (x - before);
                if (!here(i - 1)) e[2 + column] = x;
                if (!here(i + 1)) e[2 + p.dv + column] = x;
            }
        }
    }
    some = __syncthreads_or(some);
    total = cta_joined(total, s, [](double x, double y) { return x + y; });
    if (tid || !some) return;
    const rank_share all = rank_share_of(p, row);
    e[0] = sink_share(p, head, all.m, all.total) * p.per_sample * fabs((double)p.v_scale);
    e[1] = total;
}

/* What the output of a head is off by, from its draws, as santa__std_error of santa.h has it;
   for methods without draws 0. NaN where out is.
   Grid: (query head, batch). A CTA of 8 times 128 threads: a thread has a column of V, of 128,
   and an eighth of the draws, combs or flash tiles.
   Reads the drawn rows of V again, which L2 may hold; with sinks also the head's block sums.
   Barriers: around the sums of the eighths. Launched for a.std_error alone. */
__global__ void __launch_bounds__(128 * ERROR_PARTS) k_error(const __grid_constant__ params p) {
    SHARED(s, error_memory);
    const int tid = threadIdx.x, part = tid / 128, b = blockIdx.y, head = blockIdx.x, kv = head / p.group;
    const i64 row = (i64)b * p.heads + head;
    float *const result = p.std_error + result_of(p, b, p.q_index, head);
    const int n = p.draws ? p.draws[row] : 0;
    if (p.errors) { error_of_rank(p, s, b, head, n); return; }
    if (n < 2) {
        const bool bad = is_spoilt(p, b, head);
        if (tid == 0) *result = bad ? __int_as_float(0x7fc00000) : n == 1 ? INFINITY : 0.0f;
        return;
    }
    const int *const keys = p.keys + row * p.max_draws;
    const float *const weights = p.weights ? p.weights + row * p.max_draws : nullptr;
    const bool independent = p.method == SANTA_IID;
    const int combs = p.combs, chunk = (n / combs + ERROR_PARTS - 1) / ERROR_PARTS * combs;
    const int begin = min(part * chunk, n), end = min(begin + chunk, n);
    const auto weight = [&](int i) { return weights ? (double)weights[i] : 1.0; };
    const auto tile_of = [&](int i) { return (keys[i] >> p.unit_shift) / p.flash_blocks; };
    double total = 0.0;                             /* in units of (share / samples)^2 */
#pragma unroll 1
    for (int base = 0; base < p.dv; base += 128) {
        const int column = base + tid % 128;
        const char *const v = p.v + kv * p.v_stride[2];
        const auto value = [&](int i) {
            const i64 at = row_offset(p, p.v_stride, b, keys[i]);
            return at == NO_ROW ? (double)__int_as_float(0x7fc00000)
                 : (double)load_listed(p.v_type, v + at, min(column, p.dv - 1), p.v_stride[3]);
        };
        const auto scaled = [&](int i) { return drawn_number(p, b, kv, keys[i], min(column, p.dv - 1)); };
        double mine = 0.0;
        if (combs > 1 && weights) {                 /* flash: the tiles that begin in this part */
            for (int i = begin; i < end;) {
                int to = i + combs;
                const int tile = tile_of(i);
                while (to < n && tile_of(to) == tile) to += combs;
                if (i == 0 || tile_of(i - 1) != tile) {
                    double sum = 0.0, squares = 0.0;
#pragma unroll 1
                    for (int r = 0; r < combs; r++) {
                        double x = 0.0;
#pragma unroll 1
                        for (int k = i + r; k < to; k += combs)
                            x += weight(k) * scaled(k);
                        sum += x;
                        squares += x * x;
                    }
                    mine += squares - quotient(sum * sum, (double)combs);
                }
                i = to;
            }
            mine *= quotient((double)combs, (double)(combs - 1));
        } else if (combs > 1 || independent) {
            const int count = combs > 1 ? combs : n, step = combs > 1 ? combs : n;
            double sum = 0.0, squares = 0.0;
#pragma unroll 1
            for (int i = part; i < count; i += ERROR_PARTS) {
                double x = 0.0;
#pragma unroll 1
                for (int k = i; k < n; k += step) x += scaled(k);
                sum += x;
                squares += x * x;
            }
            __syncthreads();
            s.sum[part][tid % 128] = sum;
            s.squares[part][tid % 128] = squares;
            __syncthreads();
            sum = squares = 0.0;
#pragma unroll 1
            for (int i = 0; i < ERROR_PARTS; i++) {
                sum += s.sum[i][tid % 128];
                squares += s.squares[i][tid % 128];
            }
            if (part == 0)
                mine = (squares - quotient(sum * sum, (double)count))
                     * quotient((double)count, (double)(count - 1));
        } else {
            /* nothing stands between four rows' loads, but what calls goes one by one */
            const auto add = [&](auto of, auto at_once) {
                double before = begin < end ? of(max(begin - 1, 0)) : 0.0,
                       last = begin < end ? weight(max(begin - 1, 0)) : 0.0;
#pragma unroll decltype(at_once)::value
                for (int i = begin; i < end; i++) {
                    const double x = of(i), w = weight(i);
                    mine += 0.25 * (w * w + last * last) * (x - before) * (x - before);
                    before = x;
                    last = w;
                }
            };
            if (p.v_scales.data) add(scaled, a_number<1>());
            else add(value, a_number<4>());
            mine *= quotient((double)n, (double)(n - 1));
        }
        if (column < p.dv) total += mine;
    }
    const auto plus = [](double x, double y) { return x + y; };
    total = cta_joined(total, s, plus);
    double share = 1.0;
    if (p.sinks) {
        int first_key, last_key, position;
        key_range(p, b, first_key, last_key, position);
        const int unit = p.unit_shift, first = first_key >> unit,
                  blocks = ((last_key - 1) >> unit) + 1 - first;
        const float2 *const sums = p.block_sums + (row * p.blocks << (6 - unit)) + first;
        float m = MASKED;
        double mass = 0.0;
#pragma unroll 1
        for (int i = tid; i < blocks; i += 128 * ERROR_PARTS) m = fmaxf(m, sums[i].x);
        m = (float)cta_joined((double)m, s, [](double x, double y) { return fmax(x, y); });
#pragma unroll 1
        for (int i = tid; i < blocks; i += 128 * ERROR_PARTS) mass += block_mass(sums[i], m);
        share = sink_share(p, head, m, cta_joined(mass, s, plus));
    }
    if (tid == 0)
        *result = (float)(sqrt(fmax(total, total == total ? 0.0 : total)) * share * p.per_sample
                          * fabs((double)p.v_scale));
}

/* --------------------------------------------------------------------------- >>copy-kernel */

/* N = 8 or 4 adjacent numbers of some rows, on 16 bytes (e4m3: 8, 4) if `vector`; else `have`
   numbers, `step` bytes apart. The type is asked once, so that all are on their way
   together. */
template <typename T, int N> struct raw_row {
    unsigned w[N * sizeof(T) / 4];
    __device__ __forceinline__ void load(const char *p) {
        if constexpr (sizeof(w) == 32) {
            *(uint4 *)w = ((const uint4 *)p)[0];
            *(uint4 *)(w + 4) = ((const uint4 *)p)[1];
        } else if constexpr (sizeof(w) == 16) *(uint4 *)w = *(const uint4 *)p;
        else if constexpr (sizeof(w) == 8) *(uint2 *)w = *(const uint2 *)p;
        else w[0] = *(const unsigned *)p;
    }
    __device__ __forceinline__ void unpack(float *f) const { unpack_words<T, N>(w, f); }
};
template <int N, int ROWS = 4>
__device__ __forceinline__ void load_rows(int type, int vector, const char *const *rows, i64 step, int have,
                                          float (*x)[N], const int *first = nullptr) {
    const auto load = [&](auto of) {
        raw_row<decltype(of), N> w[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; u++) w[u].load(rows[u]);
#pragma unroll
        for (int u = 0; u < ROWS; u++) w[u].unpack(x[u]);
    };
    if (!vector) {
#pragma unroll 1
        for (int i = 0; i < ROWS * N; i++) {
            const int of = i / N, at = i % N;
            const char *row = rows[0];
            int from = first ? first[0] : 0;
#pragma unroll
            for (int u = 1; u < ROWS; u++) {
                row = u == of ? rows[u] : row;
                if (first) from = u == of ? first[u] : from;
            }
            if (!is_blocks(type)) from = 0;
            const float y = at < have ? load_listed(type, row, from + at, step) : 0.0f;
#pragma unroll
            for (int k = 0; k < ROWS * N; k++) x[k / N][k % N] = k == i ? y : x[k / N][k % N];
        }
    } else if (type == SANTA_BF16) load(__nv_bfloat16());
    else if (type == SANTA_F16) load(__half());
    else if (type == SANTA_F32) load(0.0f);
    else load(__nv_fp8_e4m3());
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

/* The block of the copy with key j of a sequence, or NULL if the block table is wrong. */
__device__ __forceinline__ char *copied_block(const params &p, int b, int kv, int j) {
    i64 at = b;
    if (p.table) {
        const unsigned page = p.by_page.quotient((unsigned)j);
        at = p.table[b * p.table_stride + page];
        if (at < 0 || at >= p.pages) return nullptr;
        j -= (int)(page * p.by_page.d);
    }
    return p.proxy + ((at * p.all_kv_heads + kv) * p.copy.blocks + (j >> p.copy.shift)) * p.copy.bytes;
}

/* Sum of a column over the N keys of a block divided by N, in the order of the keys, as the CPU
   has it. scale: of rows, or NULL. */
template <typename Load>
__device__ __forceinline__ float column_mean(const char *at, i64 row, int keys, const float *scale,
                                             Load load) {
    const float part = 1.0f / (float)keys;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < keys; i += 4) {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) x[k] = load(at + (i + k) * row);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum = __fadd_rn(sum, __fmul_rn(scale ? __fmul_rn(x[k], scale[i + k]) : x[k], part));
    }
    return sum;
}

/* Of feature f. */
__device__ __forceinline__ float column_mean(const params &p, const char *k, int f, const float *scale) {
    const i64 row = p.k_stride[1], step = p.k_stride[3];
    const int n = p.copy.keys, type = p.k_type;
    const char *const at = k + f * step;            /* step is 0 where numbers lie in blocks */
    if (is_blocks(type) || type == SANTA_E5M2)
        return column_mean(k, row, n, scale,
                           [&](const char *x) { return load_listed(type, x, f, step); });
    switch (p.k_type) {
        case SANTA_F32: return column_mean(at, row, n, scale,
                                           [](const char *x) { return *(const float *)x; });
        case SANTA_F16:
            return column_mean(at, row, n, scale,
                               [](const char *x) { return __half2float(*(const __half *)x); });
        case SANTA_BF16:
            return column_mean(at, row, n, scale,
                               [](const char *x) { return __bfloat162float(*(const __nv_bfloat16 *)x); });
        default:
            return column_mean(at, row, n, scale,
                               [](const char *x) { return e4m3_to_float(*(const unsigned char *)x); });
    }
}

/* Butterflies of one stage: this lane has the lower (upper) of each pair, or both. */
__device__ __forceinline__ void butterfly(float &a, float &b) {
    const float x = a, y = b;
    a = __fadd_rn(x, y);
    b = __fsub_rn(x, y);
}

/* The keys of the range's block `index`, and where its copy goes; if there is no such block K's
   start and NULL. */
struct encoded_block { const char *k; char *to; int first; };
__device__ __forceinline__ encoded_block block_to_encode(const params &p, i64 index) {
    const int b = blockIdx.z, kv = blockIdx.y;
    const i64 len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity;
    const i64 from = p.from < 0 ? max(len + p.from, (i64)0) : p.from,
          to = p.from < 0 ? len : min(p.to, len);
    const i64 first = ((from >> p.copy.shift) + index) << p.copy.shift;
    if (first + p.copy.keys > to) return { p.k, nullptr, 0 };
    const i64 at = row_offset(p, p.k_stride, b, (int)first);
    if (at == NO_ROW) return { p.k, nullptr, 0 };
    return { p.k + at + kv * p.k_stride[2], copied_block(p, b, kv, (int)first), (int)first };
}

/* The mean of the keys without those that are not finite, by a warp or by the CTA. Rare, so
   numbers come one by one. */
__device__ __noinline__ void mean_of_finite(const params &p, const char *k, float *centre,
                                            unsigned char *bad, const float *scale, bool by_warp) {
    const int lane = threadIdx.x & 31, tid = by_warp ? lane : threadIdx.x,
              threads = by_warp ? 32 : blockDim.x;
#pragma unroll 1
    for (int i = tid / 32; i < p.copy.keys; i += threads / 32) {
        bool not_finite = false;
#pragma unroll 1
        for (int f = lane; f < p.d; f += 32) {
            const float x = load_listed(p.k_type, k + i * p.k_stride[1], f, p.k_stride[3]);
            not_finite |= !is_finite(scale ? x * scale[i] : x);
        }
        not_finite = __any_sync(FULL, not_finite);
        if (lane == 0) bad[i] = not_finite;
    }
    if (by_warp) __syncwarp(); else __syncthreads();
#pragma unroll 1
    for (int f = tid; f < p.d; f += threads) {
        const float part = 1.0f / (float)p.copy.keys;
        float sum = 0.0f;
#pragma unroll 1
        for (int i = 0; i < p.copy.keys; i++) {
            if (bad[i]) continue;
            const float x = load_listed(p.k_type, k + i * p.k_stride[1], f, p.k_stride[3]);
            sum = __fadd_rn(sum, __fmul_rn(scale ? __fmul_rn(x, scale[i]) : x, part));
        }
        centre[f] = sum;
    }
    if (by_warp) __syncwarp(); else __syncthreads();
}

/* Rotates a mean, one warp. */
__device__ __forceinline__ void rotate_centre(const params &p, float *centre) {
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int f = lane; f < p.d; f += 32)
        centre[f] = __uint_as_float(__float_as_uint(centre[f])
                                      ^ (p.signs[f / 32] >> lane & 1u) << 31);
    __syncwarp();
#pragma unroll 1
    for (int step = 1; step < p.piece; step *= 2) {
#pragma unroll 1
        for (int i = lane; i < p.d / 2; i += 32) {
            const int low = 2 * (i & -step) + (i & (step - 1));
            butterfly(centre[low], centre[low + step]);
        }
        __syncwarp();
    }
#pragma unroll 1
    for (int f = lane; f < p.d; f += 32) {
        const float x = __fmul_rn(centre[f], p.norm);
        centre[f] = is_finite(x) ? x : 0.0f;
    }
}

/* The code of a centre's number x: the integer next to x / scale, halves upwards. `quotient` is
   that or nearly so. */
__device__ __forceinline__ int centre_code(float x, float scale, float quotient) {
    float code = floorf(quotient + 0.5f);
    if (fmaf(-(code + 0.5f), scale, x) >= 0.0f) code += 1.0f;
    if (fmaf(-(code - 0.5f), scale, x) < 0.0f) code -= 1.0f;
    return scale > 0.0f ? (int)fminf(fmaxf(code, -127.0f), 127.0f) : 0;
}

/* Makes blocks of a copy of K: the bytes of santa__encode_block, but for roundings of sums that
   are taken in f32 here.
   Grid: (block, KV head, batch). A CTA of 256 threads:
     mean     a thread per feature adds up the block's keys, in order
     rotate   lanes to a key, each with PER pieces of 8 features, as far apart as there are
              lanes: strides of 8 and more are other lanes or other pieces
     encode   codes to shared memory, a word for a piece; then 16 bytes a thread
   Reads K twice, the second time from the caches; writes the block. For f32, for rows with
   scales, and for what k_encode_cores does not take.
   Barriers: for scales; for the mean; for the centre, made by warp 0 while the others rotate;
   for the codes. */
__global__ void __launch_bounds__(256, 4) k_encode(const __grid_constant__ params p) {
    enum { PER = 2 };
    DYNAMIC_SHARED(slots);                          /* [keys][pieces + 1]: words of codes */
    SHARED(s, copy_memory);
    const int tid = threadIdx.x, lane = tid & 31, d = p.d;
    const int n = p.copy.keys, pieces = d / 8, pitch = pieces + 1, piece = p.piece;
    const float norm = p.norm;
    unsigned *words = (unsigned *)slots;
    const encoded_block x_block = block_to_encode(p, blockIdx.x);
    const char *const k = x_block.k;
    char *const block = x_block.to;
    if (!block) return;

    if (tid < COPY_DIM / 32) s.signs[tid] = p.signs[tid];
    const float *const scale = p.k_scales.data ? s.scale : nullptr;
    if (scale) {
        if (tid < n) s.scale[tid] = key_scale(p, (int)blockIdx.z, (int)blockIdx.y, x_block.first + tid);
        __syncthreads();
    }
    int lanes = 1;
    while (PER * lanes < pieces) lanes *= 2;
    const int l = tid & (lanes - 1), at_once = 256 / lanes;
    float x[PER][8];
    int of_piece[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) of_piece[i] = 8 * min(l + lanes * i, pieces - 1);
    const auto load = [&](int key) {
        const char *at_piece[PER];
#pragma unroll
        for (int i = 0; i < PER; i++)
            at_piece[i] = k + min(key, n - 1) * p.k_stride[1] + of_piece[i] * p.k_stride[3];
        load_rows<8, PER>(p.k_type, p.any_vector_k, at_piece, p.k_stride[3], 8, x, of_piece);
        if (scale)
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int e = 0; e < 8; e++) x[i][e] = __fmul_rn(x[i][e], scale[min(key, n - 1)]);
    };
    load(tid / lanes);                              /* all of the block on its way, before its columns */
    bool whole = true;
#pragma unroll 1
    for (int f = tid; f < d; f += 256) {
        s.centre[f] = column_mean(p, k, f, scale);
        whole &= is_finite(s.centre[f]);
    }
    if (__syncthreads_or(!whole)) mean_of_finite(p, k, s.centre, s.bad, scale, false);  /* rare */
    if (tid < 32) {
        rotate_centre(p, s.centre);
        float top = 0.0f;
#pragma unroll 1
        for (int f = lane; f < d; f += 32) top = fmaxf(top, fabsf(s.centre[f]));
#pragma unroll
        for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
        const float scale = top / 127.0f;
#pragma unroll 1
        for (int f = lane; f < p.copy.features; f += 32) {
            const int code = f < d ? centre_code(s.centre[f], scale, s.centre[f] / scale) : 0;
            block[p.copy.centre + f] = (char)code;
            if (f < d) s.centre[f] = __fmul_rn(scale, (float)code);
        }
        if (lane == 0) *(float *)(block + p.copy.scale) = scale;
#pragma unroll 1
        for (int i = p.copy.scale + 4 + lane; i < p.copy.bytes; i += 32) block[i] = 0;
    }
    const float step = p.copy.bits == 4 ? 0.3352f : 0.9957f, middle = p.copy.bits == 4 ? 7.5f : 1.5f;
    const float zero = 12582912.0f, least = zero, most = zero + (float)((1 << p.copy.bits) - 1);
    for (int base = 0; base < n; base += at_once) {
        const int key = base + tid / lanes;
        if (base) load(key);
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int e = 0; e < 8; e++) if (l + lanes * i >= pieces || key >= n) x[i][e] = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int q = min(l + lanes * i, pieces - 1);
            const unsigned sign = s.signs[q / 4] >> 8 * (q & 3);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                x[i][e] = __uint_as_float(__float_as_uint(x[i][e]) ^ (sign << (31 - e) & 0x80000000u));
            }
#pragma unroll
            for (int e = 0; e < 8; e += 2) butterfly(x[i][e], x[i][e + 1]);
#pragma unroll
            for (int e = 0; e < 4; e++) butterfly(x[i][e + (e & 2)], x[i][e + (e & 2) + 2]);
#pragma unroll
            for (int e = 0; e < 4; e++) butterfly(x[i][e], x[i][e + 4]);
        }
        int stride = 8;
        for (int o = 1; o < lanes && stride < piece; o *= 2, stride *= 2) {
            const float side = l & o ? -1.0f : 1.0f;
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    x[i][e] = fmaf(x[i][e], side, __shfl_xor_sync(FULL, x[i][e], o));
        }
#pragma unroll
        for (int o = 1; o < PER; o *= 2, stride *= 2)
            if (stride < piece)
#pragma unroll
                for (int i = 0; i < PER; i++)
#pragma unroll
                    for (int e = 0; e < 8; e++) if (!(i & o)) butterfly(x[i][e], x[i + o][e]);
        if (base == 0) __syncthreads();
        float squares = 0.0f, both = 0.0f, codes = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int q = min(l + lanes * i, pieces - 1);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                x[i][e] = l + lanes * i < pieces ? __fsub_rn(__fmul_rn(x[i][e], norm), s.centre[8 * q + e])
                                                 : 0.0f;
                squares += x[i][e] * x[i][e];
            }
        }
        for (int o = 1; o < lanes; o *= 2) squares += __shfl_xor_sync(FULL, squares, o);
        float inverse = 1.0f / (step * sqrtf(squares / (float)d));
        const bool flat = !(inverse > 0.0f) || !is_finite(inverse);
        if (flat) inverse = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            unsigned word = 0;
#pragma unroll
            for (int e = 7; e >= 0; e--) {
                /* rounded down: an integer in the low bits */
                float c = __fadd_rd(__fmul_rn(x[i][e], inverse), zero + (float)(1 << p.copy.bits >> 1));
                c = fminf(fmaxf(c, least), most);
                word = (word << 4) + __float_as_uint(c);
                const float level = (c - zero) - middle;
                both += x[i][e] * level;
                codes += level * level;
            }
            if (l + lanes * i >= pieces) codes -= 8.0f * (0.5f * 0.5f);          /* not there: code of 0 */
            else if (key < n) words[key * pitch + l + lanes * i] = word - 0x3f400000u;
        }
        const bool finite = is_finite(squares);     /* else a key that is not, or one too large */
#pragma unroll 1
        for (int o = 1; o < lanes; o *= 2) {
            both += __shfl_xor_sync(FULL, both, o);
            codes += __shfl_xor_sync(FULL, codes, o);
        }
        unsigned gain = __half_as_ushort(__float2half_rn(both / codes));
        if ((gain & 0x7c00u) == 0x7c00u) gain = 0x7e00u;
        if (flat) gain = 0;
        if (!finite) gain = 0x7e00u;
        if (flat || !finite)
#pragma unroll
            for (int i = 0; i < PER; i++)
                if (l + lanes * i < pieces && key < n) words[key * pitch + l + lanes * i] = 0;
        if (l == 0 && key < n) *(unsigned short *)(block + p.copy.gains + 2 * key) = (unsigned short)gain;
    }
    __syncthreads();
    /* 16 bytes of a chunk and key: byte i has features i, 16 + i, .. of the chunk */
    const int each = 8 / p.copy.bits, per_chunk = 2 * each;
    for (int unit = tid; unit < p.copy.chunks * n; unit += 256) {
        const int chunk = unit >> p.copy.shift, key = unit & (n - 1);
        unsigned out[4] = { 0, 0, 0, 0 };
        for (int i = 0; i < per_chunk; i++) {
            const int q = chunk * per_chunk + i;
            const unsigned w = q < pieces ? words[key * pitch + q] : 0, even = w & 0x0f0f0f0fu,
                           odd = w >> 4 & 0x0f0f0f0fu, up = (unsigned)(p.copy.bits * (i / 2));
            const unsigned low = __byte_perm(even, odd, 0x5140) << up,
                  high = __byte_perm(even, odd, 0x7362) << up;
            if (i & 1) { out[2] |= low; out[3] |= high; } else { out[0] |= low; out[1] |= high; }
        }
        ((uint4 *)block)[unit] = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

/* Adds up HALF pairs of numbers over the lanes whose numbers differ in bit HALF; each keeps a
   half. */
template <int HALF> __device__ __forceinline__ void fold(float *x, int lane) {
    const bool upper = (lane & HALF) != 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float other = upper ? x[i] : x[i + HALF], own = upper ? x[i + HALF] : x[i];
        x[i] = own + __shfl_xor_sync(FULL, other, HALF);
    }
}

/* The same by tensor cores: K of 16 or 8 bits in adjacent features, head_dim a multiple of 32,
   up to ENCODE_DIM. It reads K once and should run at the speed of that, so it saves
   instructions. Grid: (64 keys, or a block of fewer than 16 for each warp; KV head; batch). A
   warp takes 16 keys. Lane 4 g + t has keys g and g + 8, of each 32 features the piece t, 8
   adjacent ones, which is what a word of the copy holds:
     rotate   feature 8 t + 4 u + i of a group is number (t, i) of step u of an mma by a 16 x 16
              Hadamard matrix of +-1. Its sums are where its numbers were; u, and groups, are
              then butterflies of a lane's own numbers.
     mean     of the rotated keys, by lanes, then by warps
     encode   codes are rounded by adding a number whose last bit is 1; of each 16 bytes a lane
              of four writes 4
   One barrier, for the means. */
__global__ void __launch_bounds__(32 * ENCODE_WARPS, 4) k_encode_cores(const __grid_constant__ params p) {
    enum { ROWS = 2, GROUPS = ENCODE_DIM / 32 };
    SHARED(s, encode_memory);
    const int tid = threadIdx.x, warp = this_warp(), lane = tid & 31, g = lane / 4, t = lane & 3;
    const int n = p.copy.keys, groups = p.d / 32;
    const float norm = p.norm;
    /* warps that share a block, and the first of them */
    const int sharing = max(n / 16, 1), first = warp & -sharing;
    const encoded_block at
        = block_to_encode(p, (i64)blockIdx.x * (ENCODE_WARPS / sharing) + warp / sharing);
    const int keys = at.to ? n : 0;

    unsigned raw[ROWS][GROUPS][4];
    const auto load = [&](auto word, int bytes) {   /* zeros for what is not there */
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int key = 16 * (warp - first) + g + 8 * r;
            const char *const row = at.k + min(key, n - 1) * p.k_stride[1] + bytes * t;
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                word = decltype(word){};
                if (key < keys && i < groups) word = *(const decltype(word) *)(row + 4 * bytes * i);
                memcpy(raw[r][i], &word, sizeof word);
            }
        }
    };
    if (p.k_type == SANTA_E4M3) {
        load(uint2(), 8);
#pragma unroll
        for (int i = 0; i < ROWS * GROUPS; i++) {
            unsigned *const w = raw[i / GROUPS][i % GROUPS];
            const unsigned low = w[0], high = w[1];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const __half2 y = e4m3_pair((unsigned short)((e < 2 ? low : high) >> 16 * (e & 1)));
                w[e] = *(const unsigned *)&y;
            }
        }
    } else load(uint4(), 16);

    float x[ROWS][GROUPS][8];
    const auto rotate = [&](auto type, unsigned ones) {
        /* row (t, i), column (t', w) of the matrix for half v: a sign for each bit in both */
        const unsigned side = (unsigned)__popc(t & g >> 1) & 1u, w = (unsigned)g & 1u,
                       b = ones ^ side * 0x80008000u ^ w << 31;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            /* bits 2 k and 2 k + 1 of a piece's signs: 9 + 2 k and 25 + 2 k here */
            const unsigned byte = p.signs[i] >> 8 * t,
                           signs = (byte & 0x55u) << 9 | (byte & 0xaau) << 24;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int e = 0; e < 4; e++) raw[r][i][e] ^= signs << (6 - 2 * e) & 0x80008000u;
#pragma unroll
            for (int u = 0; u < 2; u++)
#pragma unroll
                for (int v = 0; v < 2; v++) {
                    float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
                    mma(sum, raw[0][i][2 * u], raw[1][i][2 * u], raw[0][i][2 * u + 1],
                        raw[1][i][2 * u + 1], b, v ? b ^ 0x80008000u : b, type);
#pragma unroll
                    for (int c = 0; c < 4; c++) x[c / 2][i][4 * u + 2 * v + (c & 1)] = sum[c];
                }
        }
    };
    if (p.k_type == SANTA_BF16) rotate(__nv_bfloat16(), 0x3f803f80u);
    else rotate(__half(), 0x3c003c00u);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) butterfly(x[r][i][e], x[r][i][e + 4]);
#pragma unroll
        for (int o = 1; o < GROUPS; o *= 2)
            if (32 * o < p.piece)
#pragma unroll
                for (int i = 0; i < GROUPS; i++)
#pragma unroll
                    for (int e = 0; e < 8; e++) if (!(i & o)) butterfly(x[r][i][e], x[r][i + o][e]);
    }

    {
        float sum[8 * GROUPS];
#pragma unroll
        for (int i = 0; i < 8 * GROUPS; i++) sum[i] = x[0][i / 8][i % 8] + x[1][i / 8][i % 8];
        fold<16>(sum, lane);
        fold<8>(sum, lane);
        fold<4>(sum, lane);
        *(float4 *)&s.sums[warp][32 * (g >> 1) + 8 * t + 4 * (g & 1)]
            = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    __syncthreads();
    if (!at.to) return;
    float centre[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
    for (int w = 0; w < ENCODE_WARPS; w++) {
        if ((w & -sharing) != first) continue;
        const float4 y = *(const float4 *)&s.sums[w][4 * lane];
        centre[0] += y.x; centre[1] += y.y; centre[2] += y.z; centre[3] += y.w;
    }
    bool whole = true;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        whole &= is_finite(centre[c]);
        centre[c] *= norm / (float)n;
    }
    if (!__all_sync(FULL, whole)) {                 /* rare */
        mean_of_finite(p, at.k, s.centre[warp], s.bad[warp], nullptr, true);
        rotate_centre(p, s.centre[warp]);
        __syncwarp();
#pragma unroll
        for (int c = 0; c < 4; c++) centre[c] = 4 * lane < p.d ? s.centre[warp][4 * lane + c] : 0.0f;
    }
    float top = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++) top = fmaxf(top, fabsf(centre[c]));
#pragma unroll
    for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
    const float scale = top / 127.0f, inverse_scale = 1.0f / scale;
    float quotient[4];
#pragma unroll
    for (int c = 0; c < 4; c++) quotient[c] = centre[c] * inverse_scale;
    if (!is_finite(inverse_scale))                  /* rare: tiny numbers, or none but 0 */
#pragma unroll
        for (int c = 0; c < 4; c++) quotient[c] = centre[c] / scale;
    unsigned bytes = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const int code = centre_code(centre[c], scale, quotient[c]);
        bytes |= ((unsigned)code & 0xffu) << 8 * c;
        centre[c] = __fmul_rn(scale, (float)code);
    }
    *(float4 *)&s.centre[warp][4 * lane] = make_float4(centre[0], centre[1], centre[2], centre[3]);
    __syncwarp();
    if (warp == first) {
        if (4 * lane < p.copy.features) *(unsigned *)(at.to + p.copy.centre + 4 * lane) = bytes;
        if (lane == 0) *(float *)(at.to + p.copy.scale) = scale;
#pragma unroll 1
        for (int i = p.copy.scale + 4 + lane; i < p.copy.bytes; i += 32) at.to[i] = 0;
    }

    float squares[ROWS] = { 0.0f, 0.0f };
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            const float4 y = *(const float4 *)&s.centre[warp][32 * i + 8 * t + e];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float *const z = &x[r][i][e];
                z[0] = fmaf(z[0], norm, -y.x); z[1] = fmaf(z[1], norm, -y.y);
                z[2] = fmaf(z[2], norm, -y.z); z[3] = fmaf(z[3], norm, -y.w);
#pragma unroll
                for (int c = 0; c < 4; c++) squares[r] = fmaf(z[c], z[c], squares[r]);
            }
        }
    const int bits = p.copy.bits;
    const float middle = bits == 4 ? 7.5f : 1.5f, per_level = bits == 4 ? 0.0625f : 0.25f,
                most = (1.0f - 1.0f / 16777216.0f) / per_level, zero = 12582912.0f,
                root = sqrtf((float)p.d) * (bits == 4 ? 1.0f / 0.3352f : 1.0f / 0.9957f);
    unsigned words[ROWS][GROUPS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int key = 16 * (warp - first) + g + 8 * r;
        for (int o = 1; o < 4; o *= 2) squares[r] += __shfl_xor_sync(FULL, squares[r], o);
        const float inverse = rsqrtf(squares[r]) * root;
        const bool good = is_finite(squares[r]),    /* else a key that is not finite, or too large */
                   flat = !(inverse > 0.0f) || !is_finite(inverse);
        /* x * inverse + levels / 2, as a share of all levels, which it cannot leave; the
           largest is a little below 1 */
        const float share = flat ? 0.0f : inverse * per_level;
        float both = 0.0f, codes = -2.0f * (float)(GROUPS - groups);     /* a code for 0 counts 1 / 4 */
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            unsigned word = 0;
#pragma unroll
            for (int e = 7; e >= 0; e--) {
                const float c = __fmaf_rd(__saturatef(fmaf(x[r][i][e], share, 0.5f)), most, zero);
                const float level = (c - zero) - middle;
                word = (word << 4) + __float_as_uint(c);
                both = fmaf(x[r][i][e], level, both);
                codes = fmaf(level, level, codes);
            }
            words[r][i] = i < groups && !flat && good ? word - 0x3f400000u : 0;
        }
        for (int o = 1; o < 4; o *= 2) {
            both += __shfl_xor_sync(FULL, both, o);
            codes += __shfl_xor_sync(FULL, codes, o);
        }
        const float over = __frcp_rn(codes), rough = both * over;
        unsigned gain = __half_as_ushort(__float2half_rn(fmaf(fmaf(-rough, codes, both), over, rough)));
        if ((gain & 0x7c00u) == 0x7c00u || !good) gain = 0x7e00u;
        else if (flat) gain = 0;
        if (t == 0 && key < keys)
            *(unsigned short *)(at.to + p.copy.gains + 2 * key) = (unsigned short)gain;
    }
    /* 16 bytes of a chunk and key: byte i has features i, 16 + i, .. of the chunk. Lanes t and
       t ^ 2 have the same bytes of it; each writes a half of them. */
    const int each = bits == 4 ? 1 : 2;             /* groups of a chunk */
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int key = 16 * (warp - first) + g + 8 * r;
        unsigned out[2] = { 0, 0 };
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const unsigned even = words[r][i] & 0x0f0f0f0fu, odd = words[r][i] >> 4 & 0x0f0f0f0fu;
            const int up = bits * ((t >> 1) + 2 * (i & (each - 1)));
            out[0] |= __byte_perm(even, odd, 0x5140) << up;
            out[1] |= __byte_perm(even, odd, 0x7362) << up;
            if ((i & (each - 1)) != each - 1) continue;
            const unsigned own = t & 2 ? out[1] : out[0],
                           other = __shfl_xor_sync(FULL, t & 2 ? out[0] : out[1], 2);
            const int chunk = i / each;
            if (chunk < p.copy.chunks && key < keys)
                *(unsigned *)(at.to + 16 * (chunk << p.copy.shift | key) + 8 * (t & 1) + 4 * (t >> 1))
                    = own | other;
            out[0] = out[1] = 0;
        }
    }
}

/* -------------------------------------------------------------------------------
   >>take-rows */

__device__ __forceinline__ proxy_range copied_range(const params &p, int b) {
    proxy_range r;
    key_range(p, b, r.begin, r.end, r.position);
    const int len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity;
    const int known = p.proxy_lens ? min(max(p.proxy_lens[b], 0), len) : len;
    int all_begin = r.begin, all_end = r.end;       /* of the context: first and last keys are its own */
    if (p.ranks) {
        all_begin = -p.first_key;
        if (p.window > 0) all_begin = (int)max((i64)r.position - p.window + 1, (i64)all_begin);
        if (p.kv_start && p.kv_start[b] > 0) all_begin = max(all_begin, p.kv_start[b]);
        all_end = p.causal ? r.position + 1 : p.context_lens ? p.context_lens[b] - p.first_key : len;
    }
    const int most = min(known, min(all_end - min(p.local_tokens, max(all_end, 0)), r.end));
    r.from = r.begin + min(max(p.sink_tokens - (r.begin - all_begin), 0), r.end - r.begin);
    r.to = (int)((unsigned)(most >> p.copy.shift) << p.copy.shift);
    if (r.to <= r.from) r.from = r.to = r.end;
    return r;
}

/* What q . k becomes: in base 2. ago: the key's place, counted from the row's position. */
__device__ __forceinline__ float finished_score(const params &p, int head, float x, int ago) {
    x *= p.scale;
    if (p.soft_cap > 0.0f) x = cap_score(x, p.soft_cap, p.per_cap);
    if (p.slopes) x += p.slopes[head] * (float)ago;
    x *= LOG2E;
    return x < MASK_LIMIT ? MASKED : x;
}

__device__ __forceinline__ void send_for(const char *at, int bytes) {
#pragma unroll 1
    for (int i = 0; i < bytes; i += 128) prefetch(at + i);
}

/* Byte i of w as a float. */
__device__ __forceinline__ float byte_of(unsigned w, int i) {
    return __uint_as_float(__byte_perm(w, 0x4b000000u, 0x7440u + (unsigned)i)) - 8388608.0f;
}

/* What lies in the stash, as a mass: in the copy's bytes 2^(-code / 16), 255 stands for 0. */
template <typename U> __device__ __forceinline__ float stash_mass(const params &p, U x) {
    if constexpr (sizeof(U) == 1) {
        const float code = (float)x;
        return !p.copied ? code : code == 255.0f ? 0.0f : pow2(code * -0.0625f);
    } else return (float)x;
}

__device__ __forceinline__ team team_of(const params &p) {
    team t;
    t.cta = cta_in_cluster();
    t.parts = DRAW_PARTS >> p.cluster_shift;
    t.b = (int)blockIdx.y;
    t.heads = p.together;
    t.head = (int)(blockIdx.x >> p.cluster_shift) * t.heads;
    t.kv = t.head / p.group;
    t.row = (i64)t.b * p.heads + t.head;
    if (p.copied) t.range = copied_range(p, t.b);
    else {
        key_range(p, t.b, t.range.begin, t.range.end, t.range.position);
        t.range.from = t.range.begin;
        t.range.to = t.range.end;
    }
    const bool some = t.range.from < t.range.to;
    t.first = t.range.from / BLOCK;
    t.blocks = some ? (t.range.to - 1) / BLOCK + 1 - t.first : 0;
    t.part_blocks = (t.blocks + DRAW_PARTS - 1) / DRAW_PARTS;
    t.lo = min(t.cta * t.parts * t.part_blocks, t.blocks);
    t.hi = min((t.cta + 1) * t.parts * t.part_blocks, t.blocks);
    return t;
}

/* The CTA of the cluster that has a part. */
__device__ __forceinline__ int cta_of_part(const params &p, int part) {
    return part * (1 << p.cluster_shift) / DRAW_PARTS;
}

/* q of heads h0 .. h0 + SLICE - 1 of the team, as f32. */
__device__ __forceinline__ void load_slice(const params &p, rows_memory &s, const team &t, int h0) {
    const int tid = threadIdx.x;
    const char *q = p.q + t.b * p.q_stride[0] + p.q_index * p.q_stride[1]
                  + min(tid, p.d - 1) * p.q_stride[3];
    __syncthreads();
    const auto load = [&](auto convert) {
        float x[SLICE];
#pragma unroll
        for (int h = 0; h < SLICE; h++)
            x[h] = convert(q + (t.head + min(h0 + h, t.heads - 1)) * p.q_stride[2]);
#pragma unroll
        for (int h = 0; h < SLICE; h++) s.q[h][tid] = tid < p.d ? x[h] : 0.0f;
    };
    static_assert((int)PROXY_DIM == (int)PORTION, "a thread for each feature");
    if (p.q_type == SANTA_F32) load([](const char *at) { return *(const float *)at; });
    else if (p.q_type == SANTA_F16) load([](const char *at) { return __half2float(*(const __half *)at); });
    else load([](const char *at) { return __bfloat162float(*(const __nv_bfloat16 *)at); });
    __syncthreads();
}

__device__ __noinline__ void load_slice_rarely(const params &p, rows_memory &s, const team &t, int h0) {
    load_slice(p, s, t, h0);
}

/* The share that the draw gives a key in a head: its mass times its block's unit. */
__device__ __forceinline__ float drawn_share_of(const params &p, i64 row, int j) {
    const i64 block = row * p.blocks + j / BLOCK, at = block * BLOCK + j % BLOCK;
    const float unit = __ldcg(p.share_units + block);
    float mass;
    if (p.copied && p.stash_type != SANTA_STASH_F32) {                /* the unit's logarithm */
        const float code = (float)__ldcg((const unsigned char *)p.stash + at);
        return unit == unit ? pow2(fmaf(code, -0.0625f, unit)) : unit;
    }
    if (p.stash_type == SANTA_STASH_F32) mass = __ldcg((const float *)p.stash + at);
    else if (p.stash_type == SANTA_STASH_F16)
        mass = __half2float(__ushort_as_half(__ldcg((const unsigned short *)p.stash + at)));
    else mass = (float)__ldcg((const unsigned char *)p.stash + at);
    return unit > 0.0f ? mass * unit : unit;        /* a unit of NaN stays one */
}

/* K or V of any type and stride: a number at a time. */
__device__ __noinline__ float dot_plain(const params &p, const float *q, const char *row, int lane) {
    float sum = 0.0f;
#pragma unroll 1
    for (int f = lane; f < p.d; f += 4) sum += q[f] * load_listed(p.k_type, row, f, p.k_stride[3]);
    return sum;
}

/* What a part of the keys that are read exactly gave a head: dv sums, the highest score, the
   sum of exp. */
__device__ __forceinline__ float *fixed_of(const params &p, int part, i64 row) {
    return p.fixed + ((i64)part * p.batch * p.heads + row) * (p.dv + 2);
}

/* Rows of K and V join the sums of SLICE heads from h0 on. `mode`:
     ALWAYS   keys [begin, middle) and [from, end): exp(score - highest), relative to the part's
              own
     DRAWN    the list: exp(score - top) / (all * chance); with exact scores share / chance
     WEIGH    the list, without V: only the sums of weights
     SURE     the list, of V only rows whose chance is 1
   They are dealt to `parts`: row i is number i / parts of part i % parts, so that no bit
   depends on how many CTAs there are; this one has some from part `first` on. 64 rows at a
   time, four lanes to a row of K, each of them with the weight of one head; then V, two columns
   and a head a thread. Rows that are 16-byte pieces lie in `stage` meanwhile. */
enum { ALWAYS, DRAWN, WEIGH, SURE };
/* A chance that is 1 but for a rounding; of NaN, too. */
__device__ __forceinline__ bool is_sure(float chance) { return !(chance < 0.999999f); }
__device__ __forceinline__ void take_rows(const params &p, draw_memory &s, const team &t, int mode,
                                          int count, int h0, int middle, int from, bool again,
                                          float *sums, char *stage, int parts, int first, int some) {
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), e0 = tid >> 2, c = tid & 3;
    const int hv = tid >> 6, column = 2 * (tid & 63);                 /* of V's sums */
    const int h = min(h0 + c, t.heads - 1), front = middle - t.range.begin;
    const bool has_k = p.copied, has_v = mode != WEIGH;
    /* with exact scores other CTAs read what the pass before has told */
    const bool tells = has_k ? mode != ALWAYS : mode > DRAWN;
    const int k_bytes = has_k ? p.d * p.k_size : 0, v_bytes = p.dv * p.v_size,
              row_bytes = k_bytes + v_bytes + 64;   /* no bank conflicts */
    const float top = mode == ALWAYS ? 0.0f : s.top[h], inverse = mode == ALWAYS ? 0.0f : s.inverse[h],
                factor = mode == ALWAYS ? 0.0f : s.factor[h];
    char *const mine = stage + e0 * row_bytes;
#pragma unroll 1
    for (int k = 0; k < some; k++) {
        const int part = first + k,
                  rows = count > part ? (int)((unsigned)(count - part + parts - 1) / parts) : 0;
        float *const out = parts == FIXED_PARTS ? fixed_of(p, part, t.row + h0 + hv)
                                     : sums + ((i64)k * t.heads + h0 + hv) * p.dv;
        const bool own = has_v && h0 + hv < t.heads;
        float acc[2][2], scale = 0.0f;
        if (mode != ALWAYS && again) scale = 1.0f;
        const float *before = out;                  /* the first parts have the keys read exactly */
        if (mode == DRAWN && has_k && own && !again && part < FIXED_PARTS) {
            before = fixed_of(p, part, t.row + h0 + hv);
            scale = __ldcg(before + p.dv + 1) != 0.0f
                  ? pow2(__ldcg(before + p.dv) - s.top[h0 + hv]) * s.inverse[h0 + hv] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int f = 128 * (i / 2) + column + (i & 1);
            acc[i / 2][i & 1] = own && scale != 0.0f && f < p.dv ? scale * before[f] : 0.0f;
        }
        if (mode == ALWAYS && tid < SLICE) { s.high[tid] = MASKED; s.keep[tid] = 0.0f; }
        if (tells && !again && tid < 3 * SLICE && h0 + tid % SLICE < t.heads)
            s.extra[k][h0 + tid % SLICE][tid / SLICE] = 0.0f;
        float fixed_sum = 0.0f;                     /* of head tid, tid < SLICE */
#pragma unroll 1
        for (int base = 0; base < rows; base += DRAW_ROWS) {
            const int e = base + e0;
            int j = -1;
            float chance = 1.0f;
            if (e < rows) {
                const int i = parts * e + part;
                if (mode == ALWAYS) j = i < front ? t.range.begin + i : from + i - front;
                else if ((j = s.key[e * t.parts + k]) >= 0) chance = s.chance[e * t.parts + k];
            }
            i64 at_k = 0, at_v = 0;
            bool broken = false;
            if (j >= 0) {
                at_k = row_offset(p, p.k_stride, t.b, j);
                at_v = row_offset(p, p.v_stride, t.b, j);
                broken = at_k == NO_ROW;
                at_k = broken ? 0 : at_k + t.kv * p.k_stride[2];
                at_v = broken ? 0 : at_v + t.kv * p.v_stride[2];
            }
            if (p.staged && has_v) {
                const bool have = j >= 0 && !broken;
#pragma unroll 4
                for (int i = 16 * c; i < k_bytes; i += 64)
                    copy16_or_zero((uint4 *)(mine + i), p.k + at_k + (have ? i : 0), have);
#pragma unroll 4
                for (int i = 16 * c; i < v_bytes; i += 64)
                    copy16_or_zero((uint4 *)(mine + k_bytes + i), p.v + at_v + (have ? i : 0), have);
                copy_commit();
            } else if (j >= 0 && has_v) s.at[e0] = at_v;
            const float guess = mode != ALWAYS && j >= 0 ? drawn_share_of(p, t.row + h, j) : 0.0f;
            float dot = 0.0f;
            copy_wait<0>();
            __syncwarp();
            if (has_k && p.staged) {
                float d4[SLICE] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 1
                for (int f = 8 * c; f < p.d; f += 32) {
                    const char *piece = mine + f * p.k_size;
                    float x[1][8];
                    load_rows<8, 1>(p.k_type, true, &piece, 0, 8, x);
#pragma unroll
                    for (int i = 0; i < SLICE; i++) {
                        const float4 y = *(const float4 *)&s.q[i][f], z = *(const float4 *)&s.q[i][f + 4];
                        d4[i] += ((y.x * x[0][0] + y.y * x[0][1]) + (y.z * x[0][2] + y.w * x[0][3]))
                               + ((z.x * x[0][4] + z.y * x[0][5]) + (z.z * x[0][6] + z.w * x[0][7]));
                    }
                }
#pragma unroll
                for (int i = 0; i < SLICE; i++) {
                    d4[i] += __shfl_xor_sync(FULL, d4[i], 1);
                    d4[i] += __shfl_xor_sync(FULL, d4[i], 2);
                }
                dot = c & 2 ? c & 1 ? d4[3] : d4[2] : c & 1 ? d4[1] : d4[0];
            } else if (has_k)
#pragma unroll 1
                for (int i = 0; i < SLICE; i++) {
                    float y = j >= 0 ? dot_plain(p, s.q[i], p.k + at_k, c) : 0.0f;
                    y += __shfl_xor_sync(FULL, y, 1);
                    y += __shfl_xor_sync(FULL, y, 2);
                    if (i == c) dot = y;
                }
            if (p.k_scales.data && has_k && j >= 0) dot *= scale_of(p, p.k_scales, t.b, t.kv, j);
            const float score = !has_k || j < 0 ? MASKED : broken ? __int_as_float(0x7fc00000)
                              : finished_score(p, t.head + h, dot, j - t.range.position);
            float w = 0.0f, x1 = 0.0f, x2 = 0.0f;
            if (mode == ALWAYS) {
                float m = score;
#pragma unroll
                for (int o = 4; o < 32; o <<= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
                if (lane < SLICE) s.warp_extra[warp][lane] = m;
                __syncthreads();
                if (tid < SLICE) {
                    float high = s.high[tid];
                    for (int i = 0; i < GATHER_WARPS; i++) high = fmaxf(high, s.warp_extra[i][tid]);
                    s.keep[tid] = s.high[tid] < MASK_LIMIT ? 0.0f : pow2(s.high[tid] - high);
                    s.high[tid] = high;
                }
                __syncthreads();
                w = pow2(score - (s.high[c] < MASK_LIMIT ? 0.0f : s.high[c]));
            } else if (has_k) {
                const float times = __fdividef(1.0f, chance);
                x1 = guess * times;
                w = j < 0 ? 0.0f : pow2(score - top) * inverse * times;
                x2 = x1 > 0.0f ? w * __fdividef(w, x1) : 0.0f;
            } else {
                w = __fdividef(guess, chance) * (is_sure(chance) ? factor : 1.0f);
                x1 = is_sure(chance) ? w : 0.0f;
            }
            float of_row = mode == SURE && !is_sure(chance) ? 0.0f : w;
            if (p.v_scales.data && has_v && of_row != 0.0f && j >= 0)
                of_row *= scale_of(p, p.v_scales, t.b, t.kv, j);
            s.weight[e0][c] = of_row;
            float x0 = w;
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                x0 += __shfl_xor_sync(FULL, x0, o);
                x1 += __shfl_xor_sync(FULL, x1, o);
                x2 += __shfl_xor_sync(FULL, x2, o);
            }
            if (lane < SLICE) {
                s.warp_extra[warp][lane] = x0;
                s.warp_extra[warp][SLICE + lane] = x1;
                s.warp_extra[warp][2 * SLICE + lane] = x2;
            }
            __syncthreads();                        /* weights, rows and sums are there */
            if (tid < 3 * SLICE && h0 + tid % SLICE < t.heads) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < GATHER_WARPS; i++) sum += s.warp_extra[i][tid];
                if (tells) s.extra[k][h0 + tid % SLICE][tid / SLICE] += sum;
                else if (mode == ALWAYS && tid < SLICE)
                    fixed_sum = (fixed_sum == fixed_sum ? s.keep[tid] * fixed_sum : fixed_sum) + sum;
            }
            if (own) {
                const float keep = mode == ALWAYS ? s.keep[hv] : 1.0f;
#pragma unroll
                for (int i = 0; i < 4; i++) acc[i / 2][i & 1] *= keep;
                const int n = min(rows - base, (int)DRAW_ROWS);
#pragma unroll
                for (int ch = 0; ch < 2; ch++) {
                    const int f = 128 * ch + column;
                    if (f >= p.dv) break;
                    if (!p.staged) {
#pragma unroll 1
                        for (int i = 0; i < n; i++) {
                            const float y = s.weight[i][hv];
                            if (y == 0.0f) continue;
                            const char *row = p.v + s.at[i];
                            const i64 step = p.v_stride[3];
                            acc[ch][0] += y * load_listed(p.v_type, row, f, step);
                            if (f + 1 < p.dv) acc[ch][1] += y * load_listed(p.v_type, row, f + 1, step);
                        }
                        continue;
                    }
                    const char *row = stage + k_bytes + f * p.v_size;
                    const auto add = [&](auto two) {
#pragma unroll 4
                        for (int i = 0; i < n; i++) {
                            const float2 y = two(row + i * row_bytes);
                            const float weight = s.weight[i][hv];
                            acc[ch][0] += weight * y.x;
                            acc[ch][1] += weight * y.y;
                        }
                    };
                    if (p.v_type == SANTA_BF16)
                        add([](const char *at) { return unpack_pair(*(const __nv_bfloat162 *)at); });
                    else if (p.v_type == SANTA_F16)
                        add([](const char *at) { return unpack_pair(*(const __half2 *)at); });
                    else if (p.v_type == SANTA_F32) add([](const char *at) { return *(const float2 *)at; });
                    else add([](const char *at) {
                        return __half22float2(e4m3_pair(*(const unsigned short *)at));
                    });
                }
            }
            __syncthreads();                        /* before the next rows come */
        }
        if (own)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int f = 128 * (i / 2) + column + (i & 1);
                if (f < p.dv) out[f] = acc[i / 2][i & 1];
            }
        if (mode == ALWAYS && tid < SLICE && h0 + tid < t.heads) {
            if (parts == FIXED_PARTS) {
                float *const to = fixed_of(p, part, t.row + h0 + tid) + p.dv;
                to[0] = s.high[tid];
                to[1] = fixed_sum;
            } else for (int r = 0; r < 1 << p.cluster_shift; r++)
                *in_cta(&s.part_again[part][h0 + tid], r) = make_float2(s.high[tid], fixed_sum);
        }
        __syncthreads();
    }
}

/* A KV head's keys that are read exactly: CTA `id` has a part of them, for SLICE heads. */
__device__ __forceinline__ void take_always(const params &p, unsigned id, char *memory) {
    const unsigned slices = (unsigned)(p.group + SLICE - 1) / SLICE, part = id % FIXED_PARTS,
                   of = id / FIXED_PARTS / slices, slice = id / FIXED_PARTS - of * slices;
    team t;
    t.b = (int)p.by_kv.quotient(of);
    t.kv = (int)of - t.b * (int)p.kv_heads;
    t.head = t.kv * p.group + (int)slice * SLICE;
    t.heads = min(p.group - (int)slice * SLICE, (int)SLICE);
    t.row = (i64)t.b * p.heads + t.head;
    t.range = copied_range(p, t.b);
    draw_memory &s = *(draw_memory *)memory;        /* of which only its rows_memory is there */
    load_slice(p, s, t, 0);
    take_rows(p, s, t, ALWAYS, t.range.end - t.range.begin - (t.range.to - t.range.from), 0, t.range.from,
              t.range.to, false, nullptr, memory + sizeof(rows_memory), FIXED_PARTS, (int)part, 1);
}

/* ------------------------------------------------------------------- >>proxy-scores-kernel */

/* The order of a lane's 8 numbers, of keys 8 r + (i ^ r): its words so that i counts the
   keys. */
__device__ __forceinline__ void exchange(unsigned &a, unsigned &b, bool now) {
    const unsigned x = now ? b : a;
    b = now ? a : b;
    a = x;
}

/* Of query head `warp`, whose feature lane + 32 i is raw[i]: scaled, rotated, and in two parts
   of 8 bits. unit: what the first part is to be multiplied with, in base 2 where nothing else
   follows; middle: unit times the codes' middle times the sum of the first part. G: as in
   k_proxy_scores. */
template <int PIECES, int G>
__device__ __forceinline__ void rotate_query(const params &p, const unsigned (&raw)[PIECES], int heads,
                                             bool extra, signed char (*q)[PASS_HEADS][PROXY_DIM],
                                             float *unit_of, float *middle_of) {
    const int lane = threadIdx.x & 31, warp = this_warp();
    float x[PIECES], top = 0.0f;
    const int piece = p.piece;
    bool good = true;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        x[i] = p.q_type == SANTA_F32 ? __uint_as_float(raw[i])
             : p.q_type == SANTA_F16 ? __half2float(__ushort_as_half((unsigned short)raw[i]))
                                     : __uint_as_float(raw[i] << 16);
        x[i] = lane + 32 * i < p.d && warp < heads ? __fmul_rn(x[i], p.scale) : 0.0f;
        x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (p.signs[i] >> lane & 1u) << 31);
    }
    for (int o = 1; o < 32 && o < piece; o *= 2)
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const float y = __shfl_xor_sync(FULL, x[i], o);
            x[i] = lane & o ? __fsub_rn(y, x[i]) : __fadd_rn(x[i], y);
        }
#pragma unroll
    for (int o = 1; o < PIECES; o *= 2)
        if (32 * o < piece)
#pragma unroll
            for (int i = 0; i < PIECES; i++) if (!(i & o)) butterfly(x[i], x[i + o]);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        x[i] = __fmul_rn(x[i], p.norm);
        good &= is_finite(x[i]);
        top = fmaxf(top, fabsf(x[i]));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
    const float t
        = __all_sync(FULL, good) ? (float)((double)top * (1.0 / 127.0)) : __int_as_float(0x7fc00000);
    /* where q is next to nothing all codes are 0 */
    const float inverse = t > 1e-30f ? quotient_of_floats(1.0f, t) : 0.0f;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (!G && 32 * i > p.copy.features) break;       /* a group more: zeros */
        const float rough = x[i] * inverse,     /* then x / t, rounded as a division does */
                    share = fmaf(fmaf(-rough, t, x[i]), inverse, rough);
        const float coarse = fminf(floorf(share + 0.5f), 127.0f);
        const float fine = fminf(fmaxf(rintf((x[i] - t * coarse) * (254.0f * inverse)), -127.0f),
                                 127.0f);
        sum += (int)coarse;
        q[0][warp][lane + 32 * i] = (signed char)(int)coarse;
        q[1][warp][lane + 32 * i] = (signed char)(int)fine;
    }
    sum = __reduce_add_sync(FULL, sum);
    if (lane == 0) {
        const float unit = t * (extra ? 1.0f : LOG2E);
        unit_of[warp] = unit;
        middle_of[warp] = unit * (p.copy.bits == 4 ? 7.5f : 1.5f) * (float)sum;
    }
}

/* Scores of 64 keys for up to 8 query heads from the copy of K: codes of u8 against q in 8
   bits. A warp streams its blocks through a ring in shared memory, each block by one bulk copy
   (pages of 16 or 32 keys: by four or two). Row r of the M side holds keys 8 r + (i ^ r), i = 0
   .. 7 by step and half: a lane ends with adjacent keys, and ldmatrix meets no bank conflict.
   The centre's product takes q in two parts of 8 bits.
   Of 8 slots for heads groups of up to four leave half: there each lane has one head, in its
   even slot, and in the odd one the second part of that head's q, for the centre.
   Codes of a byte's upper half are multiplied where they are, as sixteenfold ones.
   Grid: p.proxy_chunks CTAs for each KV head and slice, of p.chunk_blocks each; among them,
   early, p.fixed_ctas for the keys that are read exactly.
   Reads the copy once for each slice; writes 64 stash entries, 8 + 4 bytes a block and head. It
   should run at the speed of reading the copy.
   Barrier: for q, which warp h rotates for head h. G: 32-feature groups of 4 bits, or 0: as
   many as there are, of any bits. */
template <int G> __global__ void __launch_bounds__(SCORE_WARPS * 32, PROXY_CTAS)
k_proxy_scores(const __grid_constant__ params p) {
    DYNAMIC_SHARED(slots);
    SHARED(s, proxy_scores_memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    unsigned id = blockIdx.x, chunk = 0;
    zero_arrivals(p);
    const unsigned turn = p.by_fixed.quotient(id);
    if (id == turn * p.by_fixed.d && turn < p.fixed_ctas) {
        launch_dependents();
        take_always(p, turn, (char *)slots);
        return;
    }
    id -= min(turn + (id != turn * p.by_fixed.d), p.fixed_ctas);
    chunk = id;
    id = p.by_chunks.quotient(id);
    chunk -= id * p.by_chunks.d;
    const unsigned rest = p.by_slices.quotient(id);
    const int slice = (int)(id - rest * p.by_slices.d), b = (int)p.by_kv.quotient(rest),
              kv = (int)(rest - (unsigned)b * p.by_kv.d);
    const int head = kv * p.group + slice * PASS_HEADS,
          heads = min(p.group - slice * PASS_HEADS, (int)PASS_HEADS);
    /* q of head `warp` of the slice, feature lane + 32 i */
    enum { PIECES = G ? G : PROXY_DIM / 32 };
    unsigned raw[PIECES];
    {
        const char *q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                      + (head + min(warp, heads - 1)) * p.q_stride[2];
        const auto load = [&](auto type) {
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                raw[i] = *(const decltype(type) *)(q + min(lane + 32 * i, p.d - 1) * p.q_stride[3]);
        };
        if (p.q_type == SANTA_F32) load(0u); else load((unsigned short)0);
    }
    const proxy_range range = copied_range(p, b);
    const int first = max(range.from / BLOCK, (int)chunk * p.chunk_blocks);
    const int last = min((range.to + BLOCK - 1) / BLOCK, (int)(chunk + 1) * p.chunk_blocks);
    if (range.from >= range.to || first >= last) { launch_dependents(); return; }

    /* the ring */
    const int parts = BLOCK >> p.copy.shift, useful = (p.copy.scale + 4 + 15) & ~15;
    const unsigned mine = (unsigned)__cvta_generic_to_shared(slots)
                        + (unsigned)(warp * p.ring_slots * p.slot_bytes);
    const unsigned full = (unsigned)__cvta_generic_to_shared(s.full[warp]);
    if (lane < RING_SLOTS) barrier_make(full + 8 * lane);
    barriers_are_made();
    unsigned bad_slots = 0;
    const bool simple = !p.table;                   /* a block is 64 keys, and one follows the other */
    const char *next = copied_block(p, b, kv, simple ? (first + warp) * BLOCK : 0);
    const auto fill = [&](int block, int slot) {    /* block is before last */
        const unsigned bar = full + 8 * slot, at = mine + (unsigned)(slot * p.slot_bytes);
#if __CUDA_ARCH__ >= 900
        if (simple) {
            if (lane == 0) {
                barrier_expect(bar, useful);
                copy_bytes(at, next, useful, bar);
            }
            next += SCORE_WARPS * p.copy.bytes;
            return;
        }
#endif
        const int key = block * BLOCK + (lane << p.copy.shift);
        const bool have = lane < parts && key < range.to && key + p.copy.keys > range.from;
        const char *from = have ? copied_block(p, b, kv, key) : nullptr;
        const bool bad = __any_sync(FULL, have && !from);
        bad_slots = (bad_slots & ~(1u << slot)) | (unsigned)bad << slot;
        const unsigned to = at + (unsigned)(lane * p.copy.bytes);
#if __CUDA_ARCH__ >= 900
        const unsigned good = __ballot_sync(FULL, from != nullptr);
        if (lane == 0) barrier_expect(bar, __popc(good) * useful);
        __syncwarp();
        if (from) copy_bytes(to, from, useful, bar);
#else
        for (int part = 0; part < parts; part++) {
            const char *row = (const char *)__shfl_sync(FULL, (u64)from, part);
            const unsigned dst = __shfl_sync(FULL, to, part);
            for (int i = 16 * lane; row && i < useful; i += 512) copy16_to(dst + i, row + i);
        }
        barrier_after_copies(bar);
#endif
    };

    const bool extra = p.soft_cap > 0.0f || p.slopes;
    rotate_query<PIECES, G>(p, raw, heads, extra, s.q, s.unit, s.middle);
    /* only now: behind the ring's bytes the query's code and parameters would wait, behind
       those of the next kernel the ring's */
    int ahead = first + warp;
#pragma unroll 1
    for (int i = 0; i < p.ring_slots; i++, ahead += SCORE_WARPS) if (ahead < last) fill(ahead, i);
    launch_dependents();
    __syncthreads();
    /* heads of this lane: 2 c and 2 c + 1, or one of them; the slots whose q it has */
    const bool few = heads <= 4;
    const int own = few ? 2 * (c & 1) + (c >> 1) : 2 * c;
    const signed char *const parts_of_q[2] = {
        few ? s.q[r & 1][2 * (r >> 1 & 1) + (r >> 2)] + 4 * c : s.q[0][r] + 4 * c, s.q[1][r] + 4 * c };
    static_assert(G % 2 == 0, "two groups at a time");
    enum { TWOS = G ? G / 2 : 1 };
    uint2 q[2][TWOS][2];                            /* the halves of two groups */
    const auto q_of = [&](int k, int g, int half) {
        const signed char *const at = parts_of_q[k] + 16 * half;
        return make_uint2(*(const unsigned *)(at + 32 * g), *(const unsigned *)(at + (32 * (g + 1) & 255)));
    };
    if (G)
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int g = 0; g < TWOS; g++)
#pragma unroll
                for (int half = 0; half < 2; half++) q[k][g][half] = q_of(k, 2 * g, half);
    float unit[2], middle[2];
#pragma unroll
    for (int e = 0; e < 2; e++) { unit[e] = s.unit[own + e & 7]; middle[e] = s.middle[own + e & 7]; }
    const float down_to_one = G ? 0.0625f : 1.0f;   /* sums of codes are sixteenfold, or are not */

    /* where matrix i has row lane % 8: key 8 (lane % 8) + (i ^ lane % 8), i = lane / 8 and 4
       more */
    unsigned row_at[2];
    unsigned stride = 16u << p.copy.shift;          /* from chunk to chunk */
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int key = 8 * (lane & 7) + ((4 * k + (lane >> 3)) ^ (lane & 7));
        row_at[k] = (unsigned)((key >> p.copy.shift) * p.copy.bytes + 16 * (key & (p.copy.keys - 1)));
    }
    /* of this lane's keys */
    unsigned part_at = (unsigned)(8 * r >> p.copy.shift) * (unsigned)p.copy.bytes,
             gains_at = part_at + (unsigned)(p.copy.gains + 2 * (8 * r & (p.copy.keys - 1))),
             centre_at = (unsigned)((8 * (lane & 7) >> p.copy.shift) * p.copy.bytes + p.copy.centre
                                    + 16 * (lane >> 3));
    for (unsigned *x : { &row_at[0], &row_at[1], &stride, &part_at, &gains_at, &centre_at }) keep(*x);
    const bool log_stash = p.stash_type != SANTA_STASH_F32;
    const int groups = G ? G : p.copy.features / 32;

    /* where the results of head `own` and the next block go, relative to those of this warp's
       first */
    const i64 own_row = ((i64)b * p.heads + head + own) * p.blocks + first + warp;
    char *entries_at = p.stash + (own_row * BLOCK + 8 * r) * (log_stash ? 1 : 4);
    float2 *sums_at = p.block_sums + own_row;
    float *spreads_at = p.spreads + own_row;
    int slot = 0;
    unsigned phase = 0;
#pragma unroll 1
    for (int block = first + warp; block < last; block += SCORE_WARPS) {
        const unsigned at = mine + (unsigned)(slot * p.slot_bytes);
        const char *here = (const char *)slots + (at - (unsigned)__cvta_generic_to_shared(slots));
        barrier_wait(full + 8 * slot, phase);
        /* the centre: rows 0 .. 7 of a left side are two groups' lower halves, 8 .. 15 the
           upper */
        int sums[4][4] = {}, centre[2][2];
        const auto centre_sums = [&](auto products) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (k == 1 && few) break;
                int lower[4] = {}, upper[4] = {};
                products(k, lower, upper);
                centre[k][0] = lower[0] + upper[2];
                centre[k][1] = lower[1] + upper[3];
            }
        };
        if (G) {
            int upper[4][4] = {};
#pragma unroll
            for (int g = 0; g < TWOS; g++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    unsigned w[4], z[4];
                    load_matrices(at + row_at[k] + 2 * g * stride, w);
                    load_matrices(at + row_at[k] + (2 * g + 1) * stride, z);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const unsigned low = 0x0f0f0f0fu, high = 0xf0f0f0f0u;
                        mma_codes(sums[2 * k + i], w[2 * i] & low, w[2 * i + 1] & low, z[2 * i] & low,
                                  z[2 * i + 1] & low, q[0][g][0]);
                        mma_codes(upper[2 * k + i], w[2 * i] & high, w[2 * i + 1] & high, z[2 * i] & high,
                                  z[2 * i + 1] & high, q[0][g][1]);
                    }
                }
            unsigned w[TWOS][4];
#pragma unroll
            for (int g = 0; g < TWOS; g++) load_matrices(at + centre_at + 64 * g, w[g]);
            centre_sums([&](int k, int *lower, int *upper) {
#pragma unroll
                for (int g = 0; g < TWOS; g++) {
                    mma_centre(lower, w[g], q[k][g][0]);
                    mma_centre(upper, w[g], q[k][g][1]);
                }
            });
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) sums[i][k] = 16 * sums[i][k] + upper[i][k];
        } else {
            const unsigned mask = p.copy.bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
#pragma unroll 1
            for (int g = 0; g < groups; g++) {
                const int chunk_of = p.copy.bits == 4 ? g : g / 2,
                      down = p.copy.bits == 4 ? 0 : 4 * (g & 1);
                const uint2 both = make_uint2(*(const unsigned *)(parts_of_q[0] + 32 * g),
                                              *(const unsigned *)(parts_of_q[0] + 32 * g + 16));
                unsigned w[8];
                load_matrices(at + row_at[0] + (unsigned)chunk_of * stride, w);
                load_matrices(at + row_at[1] + (unsigned)chunk_of * stride, w + 4);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mma_codes(sums[i], w[2 * i] >> down & mask, w[2 * i + 1] >> down & mask,
                              w[2 * i] >> (down + p.copy.bits) & mask,
                              w[2 * i + 1] >> (down + p.copy.bits) & mask, both);
            }
            centre_sums([&](int k, int *lower, int *upper) {
#pragma unroll 1
                for (int g = 0; g < groups; g += 2) {
                    unsigned w[4];
                    load_matrices(at + centre_at + 32 * g, w);
                    mma_centre(lower, w, q_of(k, g, 0));
                    mma_centre(upper, w, q_of(k, g, 1));
                }
            });
        }
        float gain[8];
        {
            uint4 y = *(const uint4 *)(here + gains_at);
            exchange(y.x, y.z, r & 4);
            exchange(y.y, y.w, r & 4);
            exchange(y.x, y.y, r & 2);
            exchange(y.z, y.w, r & 2);
            const unsigned turn = r & 1 ? 0x1032 : 0x3210;
            const unsigned z[4] = { __byte_perm(y.x, 0, turn), __byte_perm(y.y, 0, turn),
                  __byte_perm(y.z, 0, turn),
                                    __byte_perm(y.w, 0, turn) };
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 g2 = __half22float2(*(const __half2 *)&z[i]);
                gain[2 * i] = g2.x;
                gain[2 * i + 1] = g2.y;
            }
        }
        const float scale = *(const float *)(here + part_at + p.copy.scale);
        /* at an end of the range, or on a bad page */
        const bool bad = bad_slots >> slot & 1u,
                   edge = bad || block * BLOCK < range.from || (block + 1) * BLOCK > range.to;
        const auto is_out = [&](int i) {
            const int j = block * BLOCK + 8 * r + (i ^ r);
            return j < range.from || j >= range.to;
        };
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (e == 1 && few) break;
            const int h = own + e;
            const float mean = scale * (unit[e] * (float)centre[0][e]
                                        + unit[e] * (1.0f / 254.0f)
                                          * (float)(few ? centre[0][1] : centre[1][e]));
            float x[8], m, sum = 0.0f, spread = 0.0f;
            /* number i is of key 8 r + (i ^ r) */
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = gain[i] * (unit[e] * down_to_one * (float)sums[i / 2][2 * (i & 1) + e] - middle[e])
                     + mean;
            if (extra) {
                const float slope = p.slopes && h < heads ? p.slopes[head + h] : 0.0f;
#pragma unroll 1
                for (int i = 0; i < 8; i++) {
                    float y = i & 4 ? i & 2 ? i & 1 ? x[7] : x[6] : i & 1 ? x[5] : x[4]
                                    : i & 2 ? i & 1 ? x[3] : x[2] : i & 1 ? x[1] : x[0];
                    if (p.soft_cap > 0.0f) y = cap_score(y, p.soft_cap, p.per_cap);
                    y = (y + slope * (float)(block * BLOCK + 8 * r + (i ^ r) - range.position)) * LOG2E;
#pragma unroll
                    for (int k = 0; k < 8; k++) x[k] = k == i ? y : x[k];
                }
            }
            if (__builtin_expect(edge, 0))
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    if (is_out(i)) {
                        x[i] = MASKED;
                        if (e == 0) gain[i] = 0.0f;
                    }
                    if (bad) x[i] = __int_as_float(0x7fc00000);
                }
            if (p.raw && !p.list_rest) {            /* nothing else is wanted */
                unsigned y[8];
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] = __float_as_uint(x[i]);
#pragma unroll
                for (int o = 1; o < 8; o *= 2)
#pragma unroll
                    for (int i = 0; i < 8; i++) if (!(i & o)) exchange(y[i], y[i + o], r & o);
                if (h < heads) {
                    char *const at_key = entries_at + 4 * (e ? p.blocks : 0) * BLOCK;
                    *(uint4 *)at_key = make_uint4(y[0], y[1], y[2], y[3]);
                    *(uint4 *)(at_key + 16) = make_uint4(y[4], y[5], y[6], y[7]);
                }
                continue;
            }
            m = x[0];
#pragma unroll
            for (int i = 1; i < 8; i++) m = max_or_nan(m, x[i]);
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) m = max_or_nan(m, __shfl_xor_sync(FULL, m, o));
            if (!(m < MASK_LIMIT) && !(fabsf(m) < (log_stash ? 100000.0f : INFINITY)))
                m = __int_as_float(0x7fc00000);
            const i64 other = e ? p.blocks : 0;     /* from head to head */
            if (log_stash) {
                /* u = 2^(-code / 16): whole steps from the maximum, which is rounded alike; 255
                   stands for 0. 2^23 + 2^22 more leaves an integer in the low byte */
                const float zero = 12582912.0f, top = __fadd_rn(16.0f * m, zero);
                unsigned n[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float code = fminf(fmaf(x[i], -16.0f, top), zero + 254.0f);
                    n[i] = __float_as_uint(code);
                    x[i] = pow2(fmaf(code, -0.0625f, zero * 0.0625f));
                }
                if (__builtin_expect(edge, 0))
#pragma unroll
                    for (int i = 0; i < 8; i++) if (is_out(i)) { x[i] = 0.0f; n[i] = 255; }
                unsigned low = __byte_perm(__byte_perm(n[0], n[1], 0x0040),
                                           __byte_perm(n[2], n[3], 0x0040), 0x5410);
                unsigned high = __byte_perm(__byte_perm(n[4], n[5], 0x0040),
                                            __byte_perm(n[6], n[7], 0x0040), 0x5410);
                exchange(low, high, r & 4);
                const unsigned turn = 0x3210u ^ (unsigned)(r & 3) * 0x1111u;
                if (h < heads)
                    *(uint2 *)(entries_at + other * BLOCK) =
                        make_uint2(__byte_perm(low, 0, turn), __byte_perm(high, 0, turn));
                m = m < MASK_LIMIT ? MASKED : (top - zero) * 0.0625f;
            } else {
                const float top = m < MASK_LIMIT ? 0.0f : m;
                unsigned y[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float score = x[i];
                    x[i] = pow2(score - top);
                    y[i] = __float_as_uint(p.raw ? score : x[i]);
                }
#pragma unroll
                for (int o = 1; o < 8; o *= 2)
#pragma unroll
                    for (int i = 0; i < 8; i++) if (!(i & o)) exchange(y[i], y[i + o], r & o);
                if (h < heads) {
                    *(uint4 *)(entries_at + 4 * other * BLOCK) = make_uint4(y[0], y[1], y[2], y[3]);
                    *(uint4 *)(entries_at + 4 * other * BLOCK + 16) = make_uint4(y[4], y[5], y[6], y[7]);
                }
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum += x[i];
                spread += x[i] * (gain[i] * gain[i]);
            }
            /* both over the rows: the upper ones take the spreads, the lower ones the sums */
            {
                const float y = __shfl_xor_sync(FULL, r & 4 ? sum : spread, 16);
                sum = (r & 4 ? spread : sum) + y;
            }
            sum += __shfl_xor_sync(FULL, sum, 4);
            sum += __shfl_xor_sync(FULL, sum, 8);
            if (h < heads && (r & 3) == 0) {
                if (r == 0) sums_at[other] = make_float2(m, sum);
                else spreads_at[other] = sum;
            }
        }
        entries_at += SCORE_WARPS * BLOCK * (log_stash ? 1 : 4);
        sums_at += SCORE_WARPS;
        spreads_at += SCORE_WARPS;
        __syncwarp();                               /* all lanes are through with the slot */
        if (ahead < last) fill(ahead, slot);
        ahead += SCORE_WARPS;
        if (++slot == p.ring_slots) { slot = 0; phase ^= 1u; }
    }
}

/* ------------------------------------------------------------------- >>proxy-gather-kernel */

/* Exact attention of up to HEADS query heads of a KV head over the keys [begin, middle) and
   [from, end), or part `part` of `parts` of them, by a CTA of 8 warps: out[h * pitch]: dv sums
   of exp(score - highest) * V, the highest score and the sum of exp. With `list` over the keys
   that it holds at these places. moments: then the sum of exp squared, and, if 2, of that times
   |V|^2. 256 keys at a time: their scores, the heads' weights, then V, four columns a lane and
   the keys dealt to the warps. Rows that are 16-byte pieces come to `stage` first, all at once,
   if there is one, of `room` bytes.
   Called for few keys, or rarely. */
template <int HEADS>
__device__ __noinline__ void attend(const params &p, attend_memory<HEADS> &s, int b, int head, int heads,
                                    int position, int begin, int middle, int from, int end, int part,
                                    int parts,
                                    char *stage, int room, float *out, i64 pitch,
                                    const int *list = nullptr, int moments = 0) {
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), kv = head / p.group;
    const int front = middle - begin, all = front + end - from, each = (all + parts - 1) / parts,
              skip = min(part * each, all), count = min(each, all - skip),
              vector_v = p.vector_v && p.dv % 4 == 0, threads = (int)blockDim.x;
    /* of V's columns, or for 4 warps, see k_proxy_gather, of its rows */
    const bool two = threads < PORTION;
    const int turns = two || p.dv > 128 ? 2 : 1;
    float acc[2][HEADS][4], trace[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        trace[h] = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) acc[0][h][k] = acc[1][h][k] = 0.0f;
    }
    /* all heads' on their way at once, each time for one type */
    const auto load_query = [&](auto convert) {
        const char *q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1] + head * p.q_stride[2]
                      + min(tid, p.d - 1) * p.q_stride[3];
        float x[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) x[h] = convert(q + min(h, heads - 1) * p.q_stride[2]);
#pragma unroll
        for (int h = 0; h < HEADS; h++) s.q[h][tid] = tid < p.d ? x[h] : 0.0f;
    };
    static_assert((int)PROXY_DIM == (int)PORTION, "a thread for each feature");
    if (p.q_type == SANTA_F32) load_query([](const char *at) { return *(const float *)at; });
    else if (p.q_type == SANTA_F16)
        load_query([](const char *at) { return __half2float(*(const __half *)at); });
    else load_query([](const char *at) { return __bfloat162float(*(const __nv_bfloat16 *)at); });
    if (tid < HEADS) { s.top[tid] = MASKED; s.sum[tid] = s.squares[tid] = 0.0f; }
    /* no bank conflicts */
    const int k_bytes = p.d * p.k_size, v_bytes = p.dv * p.v_size, row_bytes = k_bytes + v_bytes + 32;
    enum { LISTED = 64 };                           /* of a list, so that bits are those of any card */
    const bool staged = p.any_vector_k && vector_v && room >= (list ? LISTED : 1) * row_bytes
          && k_bytes % 16 == 0 && v_bytes % 16 == 0;
    const int at_once = list   ? (int)LISTED
                      : staged ? min(room / row_bytes, (int)attend_memory<HEADS>::KEYS)
                               : (int)attend_memory<HEADS>::KEYS;
    for (int base = 0; base < count; base += at_once) {
        const int n = min(count - base, at_once);
        const auto place_of = [&](int i) {
            i += base + skip;
            return i < front ? begin + i : from + i - front;
        };
        const auto key_at = [&](int i) { return list ? s.key[i] : place_of(i); };
        __syncthreads();                            /* q is there; the last scores are used up */
        if (list) {
            if (tid < n) s.key[tid] = list[place_of(tid)];
            __syncthreads();
        }
        if (staged) {
            const int k_pieces = k_bytes / 16, all_pieces = k_pieces + v_bytes / 16;
#pragma unroll 1
            for (int i = warp; i < n; i += threads / 32) {
                const int j = key_at(i);
                const i64 at_k = row_offset(p, p.k_stride, b, j), at_v = row_offset(p, p.v_stride, b, j);
#pragma unroll 1
                for (int c = lane; c < all_pieces; c += 32) {
                    const char *row = c < k_pieces ? p.k + kv * p.k_stride[2] + at_k + 16 * c
                                                   : p.v + kv * p.v_stride[2] + at_v + 16 * (c - k_pieces);
                    copy16_or_zero((uint4 *)(stage + i * row_bytes + 16 * c), at_k == NO_ROW ? p.k : row,
                                   at_k != NO_ROW);
                }
            }
            copy_commit();
            copy_wait<0>();
            __syncthreads();
        }
#pragma unroll 1
        /* two lanes to a key, every other 8 features each */
        for (int i0 = 0; i0 < n; i0 += threads / 2) {
            const int i = min(i0 + tid / 2, n - 1), half = tid & 1, j = key_at(i);
            const i64 at = row_offset(p, p.k_stride, b, j);
            const char *row = staged ? stage + i * row_bytes
                  : p.k + (at == NO_ROW ? 0 : at + kv * p.k_stride[2]);
            const i64 step = staged ? p.k_size : p.k_stride[3];
            const float scale = key_scale(p, b, kv, j);
            float dot[HEADS];
#pragma unroll
            for (int h = 0; h < HEADS; h++) dot[h] = 0.0f;
#pragma unroll 1
            for (int f = 8 * half; f < p.d; f += 16) {
                const char *piece = row + f * step;
                float x[1][8];
                load_rows<8, 1>(p.k_type, p.any_vector_k, &piece, step, p.d - f, x, &f);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    const float4 y = *(const float4 *)&s.q[h][f], z = *(const float4 *)&s.q[h][f + 4];
                    dot[h] += ((y.x * x[0][0] + y.y * x[0][1]) + (y.z * x[0][2] + y.w * x[0][3]))
                            + ((z.x * x[0][4] + z.y * x[0][5]) + (z.z * x[0][6] + z.w * x[0][7]));
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                dot[h] += __shfl_xor_sync(FULL, dot[h], 1);
                if (p.k_scales.data) dot[h] *= scale;
                if ((h & 1) == half && h < heads && i0 + tid / 2 < n)
                    s.score[i][h] = at == NO_ROW ? __int_as_float(0x7fc00000)
                                                 : finished_score(p, head + h, dot[h], j - position);
            }
        }
        __syncthreads();
        if (warp < heads) {
            float m = s.top[warp], sum = 0.0f, squares = 0.0f;
#pragma unroll 1
            for (int i = lane; i < n; i += 32) m = fmaxf(m, s.score[i][warp]);
#pragma unroll
            for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
            const float zero = m < MASK_LIMIT ? 0.0f : m;
#pragma unroll 1
            for (int i = lane; i < n; i += 32) {
                const float u = pow2(s.score[i][warp] - zero);
                s.score[i][warp] = u;
                sum += u;
                squares += u * u;
            }
#pragma unroll
            for (int o = 16; o; o >>= 1) {
                sum += __shfl_xor_sync(FULL, sum, o);
                squares += __shfl_xor_sync(FULL, squares, o);
            }
            const float keep = s.top[warp] < MASK_LIMIT ? 0.0f : pow2(s.top[warp] - m);
            __syncwarp();
            if (lane == 0) {
                s.keep[warp] = keep;
                s.sum[warp] = (s.sum[warp] == s.sum[warp] ? keep * s.sum[warp] : s.sum[warp]) + sum;
                s.squares[warp] = keep * keep * s.squares[warp] + squares;
                s.top[warp] = m;
            }
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            const float keep = h < heads ? s.keep[h] : 0.0f;
            trace[h] *= keep * keep;
#pragma unroll
            for (int k = 0; k < 4; k++) { acc[0][h][k] *= keep; acc[1][h][k] *= keep; }
        }
#pragma unroll 1
        for (int first = warp; first < n; first += 32) {
#pragma unroll 1
            for (int ch = 0; ch < turns; ch++) {    /* acc[0] is the turn's */
                const int col = (two ? 0 : 128 * ch) + 4 * lane, i0 = first + (two ? 4 * ch : 0);
                float y[4][4];
                const char *rows[4];
                bool none[4];
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    const i64 at = row_offset(p, p.v_stride, b, key_at(min(i0 + 8 * u, n - 1)));
                    none[u] = at == NO_ROW || i0 + 8 * u >= n || col >= p.dv;
                    rows[u] = staged ? stage + min(i0 + 8 * u, n - 1) * row_bytes + k_bytes
                        + (col < p.dv ? col : 0) * p.v_size
                                     : p.v + (at == NO_ROW ? 0 : at + kv * p.v_stride[2])
                                           + (col < p.dv ? col : 0) * p.v_stride[3];
                }
                const int columns[4] = { col, col, col, col };
                load_rows<4>(p.v_type, vector_v, rows, p.v_stride[3], p.dv - col, y, columns);
#pragma unroll
                for (int u = 0; u < 4; u++)
#pragma unroll
                    for (int k = 0; k < 4; k++) if (none[u]) y[u][k] = 0.0f;
                if (p.v_scales.data)
#pragma unroll
                    for (int u = 0; u < 4; u++) {
                        const int j = key_at(min(i0 + 8 * u, n - 1));
                        const float scale = none[u] ? 1.0f : scale_of(p, p.v_scales, b, kv, j);
#pragma unroll
                        for (int k = 0; k < 4; k++) y[u][k] *= scale;
                    }
#pragma unroll
                for (int u = 0; u < 4; u++)
#pragma unroll
                    for (int h = 0; h < HEADS; h++) {
                        const float w = s.score[min(i0 + 8 * u, n - 1)][h];
                        /* heads that are not there: whatever was in memory, and never used */
#pragma unroll
                        for (int k = 0; k < 4; k++) acc[0][h][k] += w * y[u][k];
                    }
                if (turns > 1)
#pragma unroll
                    for (int h = 0; h < HEADS; h++)
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            const float other = acc[1][h][k];
                            acc[1][h][k] = acc[0][h][k];
                            acc[0][h][k] = other;
                        }
                if (moments < 2) continue;
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    float norm = 0.0f;
#pragma unroll
                    for (int k = 0; k < 4; k++) norm += col + k < p.dv ? y[u][k] * y[u][k] : 0.0f;
#pragma unroll
                    for (int h = 0; h < HEADS; h++) {
                        const float w = s.score[min(i0 + 8 * u, n - 1)][h];
                        trace[h] += w * w * norm;
                    }
                }
            }
        }
    }
#pragma unroll
    for (int ch = 0; ch < 2; ch++) {
        if (ch >= turns) break;
        if (!two || ch == 0) __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            *(float4 *)&s.merge[warp + (two ? 4 * ch : 0)][h][4 * lane]
                = make_float4(acc[ch][h][0], acc[ch][h][1], acc[ch][h][2], acc[ch][h][3]);
        if (two && ch == 0) continue;
        __syncthreads();
#pragma unroll 1
        for (int i = tid; i < heads * 128; i += threads) {
            const int h = i / 128, c = i % 128;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < GATHER_WARPS; w++) sum += s.merge[w][h][c];
            const int column = two ? c : 128 * ch + c;
            if (column < p.dv) out[h * pitch + column] = sum;
        }
    }
    __syncthreads();
    if (moments == 2)
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int o = 16; o; o >>= 1) trace[h] += __shfl_xor_sync(FULL, trace[h], o);
            if (lane == 0) s.trace[warp][h] = trace[h];
        }
    __syncthreads();
    if (tid < heads) {
        out[tid * pitch + p.dv] = s.top[tid];
        out[tid * pitch + p.dv + 1] = s.sum[tid];
        if (!moments) return;
        float all = 0.0f;
        for (int w = 0; moments == 2 && w < GATHER_WARPS; w++) all += s.trace[w][tid];
        out[tid * pitch + p.dv + 2] = s.squares[tid];
        out[tid * pitch + p.dv + 3] = all;
    }
}

/* To a number in shared memory, where 64 bits at once are a loop. */
__device__ __forceinline__ void add_whole(u64 *to, u64 x) {
    unsigned *const half = (unsigned *)to, low = (unsigned)x,
             high = (unsigned)(x >> 32) + (atomicAdd(&half[0], low) > ~low);
    if (high) atomicAdd(&half[1], high);
}

/* Which of four bytes are below c, 0 to 256: bit i for byte i. */
__device__ __forceinline__ unsigned bytes_below(unsigned w, int c) {
    const unsigned all = (unsigned)(c + 255) * 0x10001u, even = all - (w & 0x00ff00ffu),
                   odd = all - (w >> 8 & 0x00ff00ffu),
                   x = (even >> 8 & 0x00010001u) | (odd >> 7 & 0x00020002u);
    return (x | x >> 14) & 15u;
}

/* How far a block's largest mass is below the head's, in steps of bytes. */
__device__ __forceinline__ unsigned steps_below(float head_top, float top) {
    return (unsigned)(int)fminf(ceilf((head_top - top) * 16.0f), 4080.0f);
}

/* A lane's quarter of a block: of bytes 16 that lie together, of other masses four fours, which
   alternate with the other lanes'. A place is 64 * block + 16 * quarter + which of these. */
struct quarter_block { uint4 w[4]; };

__device__ __forceinline__ int key_of(unsigned place, bool bytes) {
    return (int)(bytes ? place : (place & ~63u) | (place & 12u) << 2 | (place >> 2 & 12u) | (place & 3u));
}
__device__ __forceinline__ quarter_block load_quarter(const uint4 *from, bool bytes) {
    quarter_block x;
    x.w[0] = __ldcg(from);
#pragma unroll
    for (int k = 1; k < 4; k++) x.w[k] = bytes ? x.w[0] : __ldcg(from + 4 * k);
    return x;
}
/* By selects, as registers have no index. */
__device__ __forceinline__ unsigned one_of(const uint4 &y, int i) {
    return i == 0 ? y.x : i == 1 ? y.y : i == 2 ? y.z : y.w;
}
/* Four of them. */
__device__ __forceinline__ uint4 four_of(const quarter_block &x, int k, bool bytes) {
    uint4 y = k == 0 ? x.w[0] : k == 1 ? x.w[1] : k == 2 ? x.w[2] : x.w[3];
    if (!bytes) return y;
    const unsigned z = one_of(y, k);
    return make_uint4(z & 255u, z >> 8 & 255u, z >> 16 & 255u, z >> 24);
}

/* Of a rescued key tally has by how many sixteenths of an octave its score is off, FAR_OFF of
   them at most, as a whole number: sums of these have no order. FAR_OFF more, so that none is
   negative. */
enum { FAR_OFF = 1 << 14 };

/* A warp's keys of a rescue, blocks in order. place: block, the lane's quarter, which of its 16;
   value: how far below the head's largest mass theirs is, then their exact scores. */
struct rescue_list { unsigned *place, *value; unsigned char *start; int n; };

/* Exact scores for them, and stash, maximum and sum of their blocks follow: eight lanes have a
   key's row, four a block. Their entries are empty meanwhile, and the others there only change
   by a factor. */
__device__ __forceinline__ void mend(const params &p, rescue_memory &s, const team &t, int h, float inverse,
                                     float head_top, float2 *block_sums, const rescue_list x, float *tell) {
    const int lane = threadIdx.x & 31, quarter = lane & 3, d = p.d;
    const bool bytes = p.stash_type != SANTA_STASH_F32, is_half = p.k_type == SANTA_F16,
               is_fast = p.any_vector_k && (is_half || p.k_type == SANTA_BF16);
    const float *const q = s.q[h % SLICE];
    const int size = bytes ? 1 : 4;
    char *const stash = p.stash + ((t.row + h) * p.blocks + t.first) * (BLOCK * size);
    if (tell) {
        int told = 0;
        if (lane == 0) told = atomicAdd(&s.before, x.n);
        told = __shfl_sync(FULL, told, 0);
#pragma unroll 1
        for (int i = lane; i < x.n; i += 32)
            /* of equal bytes the same mass, whatever their blocks */
            tell[told + i] = bytes ? pow2((float)x.value[i] * -0.0625f)
                                   : __uint_as_float(__float_as_uint(inverse) - x.value[i]);
        __syncwarp();
        return;
    }
#pragma unroll 1
    for (int first = 0; first < x.n; first += 32) {
        const int i = min(first + lane, x.n - 1), j = t.first * BLOCK + key_of(x.place[i], bytes);
        const i64 row = row_offset(p, p.k_stride, t.b, j),
                  at = row == NO_ROW ? 0 : row + t.kv * p.k_stride[2];
        if (p.any_vector_k) send_for(p.k + at, d * p.k_size);
        const float top = __ldcg(block_sums + x.place[i] / BLOCK).x;
        float dot = 0.0f;
#pragma unroll 1
        for (int of = 0; agreed(of < 32 && first + of < x.n); of += 4) {
            const char *const key = p.k + __shfl_sync(FULL, at, of + (lane >> 3));
            float sum = 0.0f;
            if (is_fast)
#pragma unroll 2
                for (int f = 8 * (lane & 7); f < d; f += 64) {
                    const uint4 w = __ldg((const uint4 *)(key + 2 * f));
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const unsigned y = one_of(w, k);
                        const float2 z = is_half ? __half22float2(*(const __half2 *)&y)
                                                : make_float2(__uint_as_float(y << 16),
                                                              __uint_as_float(y & 0xffff0000u));
                        sum += q[f + 2 * k] * z.x + q[f + 2 * k + 1] * z.y;
                    }
                }
            else
#pragma unroll 1
                for (int f = lane & 7; f < d; f += 8)
                    sum += q[f] * load_listed(p.k_type, key, f, p.k_stride[3]);
#pragma unroll
            for (int o = 4; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
            const float y = __shfl_sync(FULL, sum, 8 * quarter);
            if ((lane & ~3) == of) dot = y;
        }
        dot *= key_scale(p, t.b, t.kv, j);
        const float score = row == NO_ROW ? __int_as_float(0x7fc00000)
                          : finished_score(p, t.head + h, dot, j - t.range.position);
        if (first + lane < x.n) {
            const unsigned below = x.value[i];
            const float its = __uint_as_float(__float_as_uint(inverse) - below),
                        guess = bytes ? top + (float)(below - steps_below(head_top, top)) * -0.0625f
                                      : head_top + __log2f(__fdividef(its, inverse)),
                        off = rintf(fminf(fmaxf(16.0f * (score - guess), -FAR_OFF), FAR_OFF));
            if (guess > top - 15.0f && (bytes || its > FLT_MIN)) {
                add_whole(&s.tally[0], 1);
                add_whole(&s.tally[1], (u64)(off + FAR_OFF));
                add_whole(&s.tally[2], (u64)(off * off));
            }
            x.value[i] = __float_as_uint(score);
            char *const entry = stash + ((i64)(x.place[i] & ~63u) + key_of(x.place[i] & 63u, bytes)) * size;
            if (bytes) *(unsigned char *)entry = 255; else *(float *)entry = 0.0f;
        }
    }
    __syncwarp();
    int blocks = 0;
#pragma unroll 1
    for (int first = 0; first < x.n; first += 32) {
        const int i = first + lane;
        const bool starts = i < x.n && (i == 0 || (x.place[i] ^ x.place[max(i, 1) - 1]) / BLOCK);
        const unsigned all = __ballot_sync(FULL, starts);
        if (starts) x.start[blocks + __popc(all & ((1u << lane) - 1u))] = (unsigned char)i;
        blocks += __popc(all);
    }
    __syncwarp();
#pragma unroll 1
    for (int own = lane >> 2; __any_sync(FULL, own < blocks); own += 8) {
        const bool on = own < blocks;
        const int from = x.start[min(own, blocks - 1)],
                  to = own + 1 < blocks ? x.start[own + 1] : x.n;
        const int b = (int)(x.place[from] / BLOCK);
        const float top = __ldcg(block_sums + b).x;
        uint4 *const at = (uint4 *)(stash + (i64)b * (BLOCK * size)) + quarter;
        const quarter_block its = load_quarter(at, bytes);
        /* the others' largest mass, or its code; then that of all */
        unsigned most = bytes ? 255u : 0u;
        float m = MASKED, sum = 0.0f;
        bool bad = false;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 y = its.w[k];
            if (!bytes) most = max(most, max(max(y.x, y.y), max(y.z, y.w)));
            else {                                  /* word k of the four */
                const unsigned z = one_of(its.w[0], k);
                most = min(most, min(min(z & 255u, z >> 8 & 255u), min(z >> 16 & 255u, z >> 24)));
            }
        }
#pragma unroll
        for (int o = 2; o; o >>= 1) {
            const unsigned y = __shfl_xor_sync(FULL, most, o);
            most = bytes ? min(most, y) : max(most, y);
        }
        if (most != (bytes ? 255u : 0u))
            m = top + (bytes ? (float)most * -0.0625f : __log2f(__uint_as_float(most)));
#pragma unroll 1
        for (int i = from; i < to; i++) {
            const float y = __uint_as_float(x.value[i]);
            bad |= !(y <= FLT_MAX);
            m = fmaxf(m, y);
        }
        bad |= !bytes && most > 0x7f7fffffu;
        const bool none = m < MASK_LIMIT;
        if (bytes && !none) m = rintf(16.0f * m) * 0.0625f;
        const float factor = none ? 0.0f : pow2(fminf(top - m, 126.0f)),
                    down = none ? 0.0f : 16.0f * (m - top);
#pragma unroll 1
        for (int k = 0; k < 4; k++) {
            const uint4 four = four_of(its, k, bytes);
            unsigned e[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned old = one_of(four, i);
                float y = __uint_as_float(old) * factor;
                e[i] = __float_as_uint(y);
                if (bytes) {
                    const float code = fminf(fmaxf((float)old + down, 0.0f), 254.0f);
                    e[i] = old == 255u ? old : (unsigned)code;
                    y = old == 255u ? 0.0f : pow2(code * -0.0625f);
                }
                sum += y;
            }
            if (on && bytes) ((unsigned *)at)[k] = e[0] | e[1] << 8 | e[2] << 16 | e[3] << 24;
            if (on && !bytes) at[4 * k] = make_uint4(e[0], e[1], e[2], e[3]);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = from + quarter; i < to; i += 4) {
            const float y = __uint_as_float(x.value[i]) - m;
            char *const entry = stash + ((i64)b * BLOCK + key_of(x.place[i] & 63u, bytes)) * size;
            float code = fminf(fmaxf(rintf(-16.0f * y), 0.0f), 254.0f),
                  mass = pow2(bytes ? code * -0.0625f : y);
            if (none || (bytes && m + y < MASK_LIMIT)) { code = 255.0f; mass = 0.0f; }
            if (on && bytes) *(unsigned char *)entry = (unsigned char)(int)code;
            if (on && !bytes) *(float *)entry = mass;
            sum += mass;
        }
#pragma unroll
        for (int o = 2; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
        if (on && quarter == 0)
            block_sums[b] = make_float2(none ? MASKED : m, bad ? __int_as_float(0x7fc00000) : sum);
    }
    __syncwarp();
}

/* The exact scores of a head's `want` likeliest keys take the place of the copy's, as
   santa__rescue has it. block_sums: from t.first on. A key's order is how far its mass is below
   the head's largest, then its number. 8 bits at a time, the cluster counts how many have
   which: first of blocks, by their likeliest keys, since other blocks than `want` need no look.
   A warp whose keys that may be among them fit in its list finds them there from then on,
   others in their blocks. s.q: of the head's slice. scratch: RESCUE_SCRATCH, for the lists.
   tell: NULL, or only their masses go there, in any order, and zeros behind: `want` in all.
   Latency-bound: a chain of some thousand instructions, which come from memory. */
__device__ __noinline__ rescued_keys rescue(const params &p, rescue_memory &s, float *scratch,
                                            const team &t, int h, float head_top, float inverse,
                                            float2 *block_sums, int want, float *tell = nullptr) {
    enum { BLOCKS, KEYS, LAST };
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), threads = (int)blockDim.x,
              warps = threads / 32, turns = PORTION / threads, room = turns * RESCUE_KEYS;
    const i64 at = (t.row + h) * p.blocks + t.first;
    const bool bytes = p.stash_type != SANTA_STASH_F32;
    rescue_list x = { (unsigned *)scratch + 2 * warp * room, nullptr, s.start + warp * room, 0 };
    x.value = x.place + room;
    bool listed = false;
    /* how far below: in steps of bytes, or in bits, whose first digits are 1/16 of an octave;
       of a block its least, or a digit less, since its largest mass may be rounded */
    const int first_shift = bytes ? 0 : 19;
    const auto below_of = [&](float mass) {
        return (unsigned)max((int)(__float_as_uint(inverse) - __float_as_uint(mass)), 0);
    };
    const auto unit_of = [&](float top) { return pow2(top - head_top) * inverse; };
    const auto best_of = [&](float top) {
        if (top < MASK_LIMIT) return ~0u;
        if (bytes) return steps_below(head_top, top);
        const unsigned x = below_of(unit_of(top));
        return x - min(x, 1u << 19);
    };
    /* keys below `lo` are in, from `end` on they are not; the same of the numbers of those that
       are s.equal below */
    unsigned lo = 0, end = ~0u;
    bool ties = false;
    int have = 0;
#pragma unroll 1
    for (int i = tid; tell && i < want; i += threads) tell[i] = 0.0f;
    bool odd = false;
#pragma unroll 1
    for (int shift = first_shift, step = t.blocks > want ? BLOCKS : KEYS;; odd = !odd) {
        int *const count = odd ? s.other_count : s.count;
        const unsigned equal = ties ? s.equal : 0u, limit = ties ? equal + 1 : end;
        const unsigned most = __float_as_uint(inverse);
        const float least = __uint_as_float(most - min(limit, most));         /* as far below */
        const auto counts = [&](unsigned below, unsigned number) {
            const unsigned y = !ties ? below : below == equal ? number : ~0u;
            if (y >= lo && y < end) atomicAdd(&count[min((y - lo) >> shift, 255u)], 1);
        };
        const auto takes = [&](unsigned below, unsigned number) {
            return !ties ? below < end : below < equal || (below == equal && number < end);
        };
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) count[tid + turn * threads] = 0;
        if (tid == 0) s.before = 0;
        if (tid < 3 && step == LAST) s.tally[tid] = 0;  /* all have read those of a rescue before */
        __syncthreads();                            /* and tell's zeros are there */
#pragma unroll 1
        for (int b = t.lo + tid; step == BLOCKS && b < t.hi; b += threads)
            counts(best_of(__ldcg(block_sums + b).x), 0);
        const int had = x.n;
        const bool again = step != BLOCKS && !listed;
        if (step != BLOCKS) x.n = 0;
#pragma unroll 1
        for (int first = 0; listed && first < had; first += 32) {
            const int i = min(first + lane, had - 1);
            const unsigned place = x.place[i], below = x.value[i], number = (unsigned)key_of(place, bytes);
            const bool is = first + lane < had && takes(below, number);
            if (is && step == KEYS) counts(below, number);
            const unsigned all = __ballot_sync(FULL, is);
            __syncwarp();                           /* all have read theirs */
            if (is) {
                const int to = x.n + __popc(all & ((1u << lane) - 1u));
                x.place[to] = place;
                x.value[to] = below;
            }
            x.n += __popc(all);
            __syncwarp();
        }
        if (again) listed = true;
        int g = again ? t.lo + warp : t.hi, window = 0, span = 8;
        unsigned left = 0;
        float mine = MASKED;
#pragma unroll 1
        for (bool full = false;; full = false) {    /* list by list, where they are too many for one */
#pragma unroll 1
            while (agreed(!full && (left || g < t.hi))) {
                if (agreed(!left)) {
                    window = g;
                    g += 32 * warps;
                    const int b = window + lane * warps;
                    mine = b < t.hi ? __ldcg(block_sums + b).x : MASKED;
                    left = __ballot_sync(FULL, best_of(mine) < limit);
                    continue;
                }
                unsigned these = left, rest = left, is = 0;
#pragma unroll 1
                for (int i = 0; i < span; i++) {
                    if (i < lane >> 2) these &= these - 1;
                    rest &= rest - 1;
                }
                if (lane >> 2 >= span) these = 0;
                const int of = these ? __ffs((int)these) - 1 : 0, block = window + of * warps;
                const float top = __shfl_sync(FULL, mine, of), unit = unit_of(top);
                const unsigned steps = steps_below(head_top, top),
                               place = (unsigned)(block * BLOCK + (lane & 3) * 16);
                const char *const stash = p.stash + (at + block) * (bytes ? BLOCK : 4 * BLOCK);
                const quarter_block its = load_quarter((const uint4 *)stash + (lane & 3), bytes);
                const auto below_in = [&](int i) {
                    const unsigned e = one_of(four_of(its, i >> 2, bytes), i & 3);
                    return bytes ? steps + e : below_of(__uint_as_float(e) * unit);
                };
                const unsigned nearest = limit > steps ? min(limit - steps, 255u) : 0u;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (bytes) is |= bytes_below(one_of(its.w[0], k), (int)nearest) << 4 * k;
                    else
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            if (__uint_as_float(one_of(its.w[k], i)) * unit > least)
                                is |= 1u << (4 * k + i);
                }
                if (!these) is = 0;
#pragma unroll 1
                for (unsigned some = is; some && (ties || step == KEYS); some &= some - 1) {
                    const int i = __ffs((int)some) - 1;
                    const unsigned below = below_in(i), number = (unsigned)key_of(place + i, bytes);
                    if (ties && below == equal && number >= end) is ^= 1u << i;
                    else if (step == KEYS) counts(below, number);
                }
                int next = __popc(is);
#pragma unroll
                for (int o = 1; o < 32; o <<= 1) {
                    const int y = __shfl_up_sync(FULL, next, o);
                    if (lane >= o) next += y;
                }
                const int n = __shfl_sync(FULL, next, 31);
                if (agreed(x.n + n > room)) {
                    if (step == KEYS) { listed = false; left = rest; }
                    else if (x.n) full = true;
                    else span = 2;                  /* for which an empty list has room */
                    continue;
                }
                left = rest;
                if (!listed && step == KEYS) continue;
                next += x.n - __popc(is);
                x.n += n;
#pragma unroll 1
                for (; is; is &= is - 1) {
                    const int i = __ffs((int)is) - 1;
                    x.place[next] = place + i;
                    x.value[next++] = below_in(i);
                }
            }
            if (step != LAST) break;
            __syncwarp();
            mend(p, s, t, h, inverse, head_top, block_sums, x, tell);
            x.n = 0;
            if (!full) break;
        }
        if (step == LAST) break;
        cluster_sync();
        /* how many have up to thread tid's one or two digits, or so many */
        const int digit = turns * tid;
        int n = 0, next = 0, more, all = 0;
#pragma unroll 4
        for (int r = 0; r < 1 << p.cluster_shift; r++) {
            n += *in_cta(&count[digit], r);
            if (turns > 1) next += *in_cta(&count[digit + 1], r);
        }
        more = n + next;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const int y = __shfl_up_sync(FULL, more, o);
            if (lane >= o) more += y;
        }
        if (lane == 31) s.warp_count[warp] = more;
        if (tid == 0) s.chosen = 255;
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < warps; i++) {
            if (i < warp) more += s.warp_count[i];
            all += s.warp_count[i];
        }
        more -= next;
        const bool first = more >= want && more - n < want,
                   second = next && more + next >= want && more < want;
        if (first || second) {
            s.chosen = digit + second;
            s.before = second ? more : more - n;
            s.inside = second ? next : n;
        }
        __syncthreads();
        if (step == BLOCKS) {
            step = KEYS;                            /* those blocks have `want` keys before `end` */
            if (all > want && s.chosen < 255) end = (unsigned)(s.chosen + (bytes ? 1 : 2)) << first_shift;
            continue;
        }
        if (!have) have = min(want, all);
        bool done = all <= want;
        if (!done) {
            const bool last = s.chosen == 255 && end == ~0u;      /* the digit of all that are further */
            lo += (unsigned)s.chosen << shift;
            if (!last) end = lo + (1u << shift);
            want -= s.before;
            done = s.inside <= want;
            if (!done && !ties && shift == 0 && !last) {
                if (tid == 0) s.equal = lo;
                ties = true;
                lo = 0;
                end = 1u << 31;
                shift = 24 - __clz(max(t.blocks * BLOCK - 1, 1));
            } else shift = last ? first_shift + (bytes ? 4 : 3) : shift - 8;
            shift = max(shift, 0);
        }
        if (done) step = LAST;
        __syncthreads();
    }
    cluster_sync();
    u64 sum[3] = { 0, 0, 0 };
#pragma unroll 1
    for (int r = 0; r < 1 << p.cluster_shift; r++)
#pragma unroll
        for (int i = 0; i < 3; i++) sum[i] += *in_cta(&s.tally[i], r);
    return { have, { (float)sum[0], (float)(i64)(sum[1] - sum[0] * FAR_OFF) * 0.0625f,
                     (float)sum[2] * 0.00390625f } };
}

/* What lies in the copy's stash, as a mass. */
__device__ __forceinline__ float stash_mass(const entries<unsigned char> &x, int i) {
    const uint4 w = x.w[0];
    const float code = byte_of(i < 4 ? w.x : i < 8 ? w.y : i < 12 ? w.z : w.w, i & 3);
    return code == 255.0f ? 0.0f : pow2(code * -0.0625f);
}
__device__ __forceinline__ float stash_mass(const entries<float> &x, int i) { return x[i]; }

/* Where a tooth fell: the key's entry in its block, -1 if none; the mass before it there in two
   parts, and its own; what a mass of the block is multiplied with, since what is rounded adds
   up to something else. */
struct drawn_key { int entry; float begin, below, mass, stretch; };

/* As find_keys: four lanes to a tooth. `want`: this lane's tooth, as mass of its block. */
template <typename U>
__device__ __forceinline__ drawn_key find_drawn(const U *stash, int count, int block, float want,
                                                float sum) {
    enum { LANES = 4, DRAWS = 32 / LANES, EACH = BLOCK / LANES };
    const int lane = threadIdx.x & 31, quarter = lane % LANES;
    drawn_key found = { -1, 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 1
    for (int base0 = 0; __any_sync(FULL, base0 < count); base0 += 2 * DRAWS) {
        entries<U> x[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i].load(stash + (i64)__shfl_sync(FULL, block, base0 + DRAWS * i + lane / LANES) * BLOCK
                      + EACH * quarter);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int base = base0 + DRAWS * i, of = base + lane / LANES;
            float mass[EACH], u[EACH], end = 0.0f, t = __shfl_sync(FULL, want, of);
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                mass[k] = stash_mass(x[i], k);
                u[k] = end += mass[k];
            }
#pragma unroll
            for (int o = 1; o < LANES; o <<= 1) {
                const float y = __shfl_up_sync(FULL, end, o, LANES);
                if (quarter >= o) end += y;
            }
            const float stretch = __fdividef(__shfl_sync(FULL, end, LANES - 1, LANES),
                                             __shfl_sync(FULL, sum, of));
            t = __fmul_rn(t, stretch);
            float begin = __shfl_up_sync(FULL, end, 1, LANES);
            if (quarter == 0) begin = 0.0f;
            const float local = __fsub_rn(t, begin);
            int entry = 0;
            float below = 0.0f, own = 0.0f;
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                const bool past = u[k] <= local;
                entry += past;
                below = past ? u[k] : below;
            }
#pragma unroll
            for (int k = 0; k < EACH; k++) own = k == entry ? mass[k] : own;
            const bool here = begin <= t && t < end && entry < EACH;
            const unsigned who = __ballot_sync(FULL, here);
            /* the lane of this tooth's four that has it, if any */
            const unsigned of_mine = who >> (lane % DRAWS * LANES) & 15u;
            const int from = lane % DRAWS * LANES + (of_mine ? __ffs((int)of_mine) - 1 : 0);
            const int e = __shfl_sync(FULL, entry + EACH * quarter, from);
            const float a = __shfl_sync(FULL, begin, from), c = __shfl_sync(FULL, below, from),
                        z = __shfl_sync(FULL, own, from), f = __shfl_sync(FULL, stretch, from);
            if (lane / DRAWS == base / DRAWS && of_mine) found = { e, a, c, z, f };
        }
    }
    return found;
}

/* q . k of 16 rows of K at p.k + at[i], 4 lanes to a row, 8 features of a lane at a time: of
   lane i the product of row i. */
template <typename T>
__device__ __forceinline__ float dot_rows(const params &p, const float *q, const i64 *at) {
    const int lane = threadIdx.x & 31, c = lane & 3;
    float sum[2] = { 0.0f, 0.0f };
    enum { WORDS = sizeof(T) * 8 / 4 };
    const char *row[2] = { p.k + at[lane >> 2], p.k + at[8 + (lane >> 2)] };
#pragma unroll 1
    for (int f = 8 * c; f < p.d; f += 64) {         /* two pieces of two rows on their way */
        unsigned w[2][2][WORDS];
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const char *from = row[u] + min(f + 32 * k, p.d - 8) * (int)sizeof(T);
                if constexpr (WORDS == 2) *(uint2 *)w[u][k] = __ldg((const uint2 *)from);
                else {
                    *(uint4 *)w[u][k] = __ldg((const uint4 *)from);
                    if constexpr (WORDS == 8) *(uint4 *)(w[u][k] + 4) = __ldg((const uint4 *)from + 1);
                }
            }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (f + 32 * k >= p.d) break;
            const float4 a = *(const float4 *)&q[f + 32 * k], b = *(const float4 *)&q[f + 32 * k + 4];
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float x[sizeof(T) == 1 ? 16 : 8];   /* unpack16 fills it */
                if constexpr (WORDS == 8)
                    for (int e = 0; e < 8; e++) x[e] = __uint_as_float(w[u][k][e]);
                else if constexpr (WORDS == 4) {
                    if (p.k_type == SANTA_F16) unpack16<__half>(*(const uint4 *)w[u][k], x);
                    else unpack16<__nv_bfloat16>(*(const uint4 *)w[u][k], x);
                }
                else unpack16<T>(make_uint4(w[u][k][0], w[u][k][1], 0, 0), x);
                sum[u] += ((a.x * x[0] + a.y * x[1]) + (a.z * x[2] + a.w * x[3]))
                        + ((b.x * x[4] + b.y * x[5]) + (b.z * x[6] + b.w * x[7]));
            }
        }
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        sum[u] += __shfl_xor_sync(FULL, sum[u], 1);
        sum[u] += __shfl_xor_sync(FULL, sum[u], 2);
    }
    const float low = __shfl_sync(FULL, sum[0], 4 * (lane & 7)),
          high = __shfl_sync(FULL, sum[1], 4 * (lane & 7));
    return lane & 8 ? high : low;
}

/* The same for any K, a number at a time. */
__device__ __noinline__ float dot_numbers(const params &p, const float *q, const i64 *at) {
    const int lane = threadIdx.x & 31;
    float mine = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        float sum = 0.0f;
#pragma unroll 1
        for (int f = lane; f < p.d; f += 32)
            sum += q[f] * load_listed(p.k_type, p.k + at[i], f, p.k_stride[3]);
#pragma unroll
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
        if ((lane & 15) == i) mine = sum;
    }
    return mine;
}

/* And of rescued keys, where it is more than four times what is expected, else 0. */
template <typename T> __device__ __forceinline__ float off_variance(const T *off, float expected) {
    const T n = off[0] > (T)1 ? off[0] : (T)1;
    const float found = (float)((off[2] - off[1] * off[1] / n) / n) * 0.48045301f;
    return found > 4.0f * expected ? found : 0.0f;
}

/* As santa__found_variance: log(1 + CV^2) of e^(s - s^) under the shares, or what keys that
   hold far less than the copy says let expect. Sums of w, of p^ / pi, of w r over the drawn
   keys; off: off_variance's. */
__device__ __forceinline__ float found_variance(float w, float share, float square, float off) {
    if (!(w <= FLT_MAX)) return INFINITY;
    if (!(share > 0.0f)) return off;
    const float per = 1.0f / w, ratio = w > 0.0f ? square * per * (share * per) : 1.0f,
                over = __logf(share) - __logf(fmaxf(w, 1e-37f));
    float found = ratio <= FLT_MAX ? __logf(fmaxf(ratio, 1.0f)) : INFINITY;
    if (over > 2.0f && share > 0.1f) found = fmaxf(found, 0.25f * over * over);
    return fmaxf(found, off);
}

/* Whether a head is done again. sum: what its drawn keys and those read exactly have of the
   mass that the copy promised; of a copy that promised far too much an f32 has lost it. */
__device__ __forceinline__ bool is_too_far(const params &p, float found, float sum, bool draws) {
    return found > p.exact_above || found == INFINITY || (draws && sum < 1e-30f);
}

__device__ __forceinline__ void write_number(const params &p, int b, int head, int column, float x) {
    store_any(p.out_type,
              p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1] + head * p.out_stride[2]
                  + column * p.out_stride[3],
              x);
}

/* What all ranks' copies and the keys read exactly tell of a head, before a rescue. */
__device__ __noinline__ rank_guard guard_of(const params &p, i64 row) {
    const i64 apart = (i64)p.batch * p.heads * 5;
    const double *const said = p.rank_copies + row * 5;
    rank_guard x = { MASKED, MASKED, 0.0f, 0.0, 0.0, false, false };
    double spread = 0.0;
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        x.m = fmaxf(x.m, (float)said[r * apart]);
        x.fixed_top = fmaxf(x.fixed_top, (float)said[r * apart + 2]);
    }
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        const double *const one = said + r * apart;
        const double to_all = exp2(one[0] - (double)x.m);
        if (!(one[1] <= 0.0)) x.total += one[1] * to_all;
        if (!(one[3] <= 0.0)) x.fixed += one[3] * exp2(one[2] - (double)x.fixed_top);
        if (one[4] > 0.0) spread += one[4] * to_all;
    }
    x.some = x.total != 0.0 || x.fixed != 0.0;
    const bool light = x.fixed != 0.0 && x.fixed_top - x.m > 100.0f;
    if (x.total <= DBL_MAX && x.total > 0.0) {
        /* as santa__expected_variance: where the others hide the copy's, these may have
           grown */
        const float own = (float)(spread / x.total),
                    beside = (float)(x.fixed * exp2((double)x.fixed_top - (double)x.m) / x.total);
        x.expected = x.fixed != 0.0 ? own / (1.0f + beside * __expf(-fminf(0.5f * own, 80.0f))) : own;
        x.rescued = x.expected > p.rescue_above && !light && p.rescue_keys > 0;
    }
    return x;
}

/* What a head is drawn by over ranks. */
__device__ __noinline__ copied_rank copied_met(const params &p, i64 row) {
    const rank_guard guard = guard_of(p, row);
    const i64 apart = (i64)p.batch * p.heads;
    copied_rank x;
    x.share = rank_share_of(p, row);
    x.fixed_top = guard.fixed_top;
    x.finite = x.share.total <= DBL_MAX;
    x.light = guard.fixed != 0.0 && guard.fixed_top - x.share.m > 100.0f;
    x.draws = x.finite && !x.light && x.share.total > 0.0;
    x.all = x.share.total;
    if (guard.fixed != 0.0) x.all += guard.fixed * exp2((double)guard.fixed_top - (double)x.share.m);
    x.to_own = exp2((double)x.share.m - p.rank_masses[(p.rank * apart + row) * p.mass_doubles]);
    return x;
}

/* The n largest numbers that ranks tell, n each and `apart`, where 0 is none: which one is the
   least of them. Of equal ones those of the first ranks are taken; returns how many of this
   rank's. */
__device__ __noinline__ int best_of_ranks(const params &p, best_memory &s, const unsigned *best, i64 apart,
                                          int n, unsigned *least) {
    const int tid = threadIdx.x;
    unsigned last = 0;
    int more = n;                                   /* how many of it, at last */
    __syncthreads();
    if (tid < 3) s.counts[tid] = 0;
#pragma unroll 1
    for (int digit = 24; digit >= 0; digit -= 8) {
        s.count[tid] = 0;
        __syncthreads();
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++)
#pragma unroll 1
            for (int i = tid; i < n; i += PORTION) {
                const unsigned x = best[r * apart + i];
                const bool in = digit == 24 || x >> (digit + 8) == last >> (digit + 8);
                if (x && in) atomicAdd(&s.count[x >> digit & 255], 1);
            }
        __syncthreads();
        int all;
        const int own = s.count[255 - tid], reached = cta_scan<GATHER_WARPS>(own, s.warp_count, &all);
        if (digit == 24 && all <= more) { last = 1; break; }
        if (reached >= more && reached - own < more) {
            s.chosen = 255 - tid;
            s.before = reached - own;
        }
        __syncthreads();
        last |= (unsigned)s.chosen << digit;
        more -= s.before;
        __syncthreads();
    }
#pragma unroll 1
    for (int r = 0; r <= p.rank; r++)
#pragma unroll 1
        for (int i = tid; i < n; i += PORTION) {
            const unsigned x = best[r * apart + i];
            if (x == last) atomicAdd(&s.counts[r == p.rank], 1);
            else if (x > last && r == p.rank) atomicAdd(&s.counts[2], 1);
        }
    __syncthreads();
    *least = last;
    return s.counts[2] + min(max(more - s.counts[0], 0), s.counts[1]);
}

/* Which keys of all ranks are rescued, in two steps with an exchange between them: each rank
   tells its rescue_keys largest masses of a head that is to be; then it takes those among the
   largest of all, of equal ones those of the first ranks. Of other heads the first step tells
   zeros. Barriers: of rescue, and between the steps of the choice. */
__device__ __noinline__ void rescue_of_ranks(const params &p, proxy_gather_memory &s) {
    const int b = (int)blockIdx.y, head = (int)blockIdx.x, tid = threadIdx.x, n = p.rescue_keys;
    const i64 row = (i64)b * p.heads + head, apart = (i64)p.batch * p.heads * n;
    const bool mends = p.rank_step == MEND;
    if (tid == 0) s.guard = guard_of(p, row);
    __syncthreads();
    double *const said = p.rank_mass + row * 5 + 2; /* behind k_rank_copied's */
    if (mends && tid < 3) said[tid] = 0.0;
    if (!s.guard.rescued) {
        for (int i = tid; i < n && !mends; i += PORTION) p.rank_best[row * n + i] = 0.0f;
        return;
    }
    team t = {};
    t.b = b;
    t.head = head;
    t.heads = 1;
    t.kv = head / p.group;
    t.row = row;
    t.range = copied_range(p, b);
    t.first = t.range.from / BLOCK;
    t.blocks = t.hi = t.range.from < t.range.to ? (t.range.to - 1) / BLOCK + 1 - t.first : 0;
    unsigned least = 0;
    int want = n;
    if (mends)
        want = best_of_ranks(p, s.rescue, (const unsigned *)p.rank_bests + row * n, apart, n, &least);
    const double all = s.guard.total + s.guard.fixed * exp2((double)s.guard.fixed_top - (double)s.guard.m);
    float *const tell = mends ? nullptr : p.rank_best + row * n;
    if (want > 0) {
        load_slice_rarely(p, s.rescue, t, 0);
        const rescued_keys x = rescue(p, s.rescue, (float *)&s.scan, t, 0, s.guard.m, (float)(1.0 / all),
                                      p.block_sums + row * p.blocks + t.first, want, tell);
#pragma unroll
        for (int i = 0; i < 3; i++)
            if (tid == 0 && mends) said[i] = (double)x.off[i];
    }
    if (tid == 0 && p.rescued && mends) p.rescued[row] = want;
}

/* What all ranks have drawn of a head: whether it is done, or once more by exact attention over
   the keys here, whose results k_join_ranks merges as those of dense; else out is scaled, and
   the sum of all. */
__device__ __noinline__ void finish_of_ranks(const params &p, proxy_gather_memory &s) {
    const int b = (int)blockIdx.y, head = (int)blockIdx.x, tid = threadIdx.x;
    const i64 row = (i64)b * p.heads + head, apart = (i64)p.batch * p.heads,
              result = ((i64)b * p.q_len + p.q_index) * p.heads + head;
    if (tid == 0) {
        s.met = copied_met(p, row);
        s.guard = guard_of(p, row);
    }
    __syncthreads();
    float w[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        const float4 x = p.rank_drawns[r * apart + row];
        w[0] += x.x;
        w[1] += x.y;
        w[2] += x.z;
        w[3] += x.w;
    }
    double off[3] = { 0.0, 0.0, 0.0 };
#pragma unroll 1
    for (int r = 0; s.guard.rescued && r < p.ranks; r++)
#pragma unroll
        for (int i = 0; i < 3; i++) off[i] += p.rank_masses[(r * apart + row) * 5 + 2 + i];
    const float found = found_variance(w[0], w[1], w[2], off_variance(off, s.guard.expected)),
                denominator = w[0] + w[3];
    const bool again = !s.met.finite || is_too_far(p, found, denominator, s.met.draws);
    const bool bad = !again && !(fabsf(denominator) <= FLT_MAX);
    float lse, f;
    if (again) {
        int begin, end, position;
        key_range(p, b, begin, end, position);
        attend(p, s.redo, b, head, 1, position, begin, end, end, end, 0, 1, nullptr, 0, s.state, 0);
        __syncthreads();
        const float sum = s.state[p.dv + 1];
        lse = (float)((double)s.state[p.dv] * 0.69314718055994530942 + log((double)sum));
        if (sum != sum) lse = sum;
        f = tid < p.dv && sum > 0.0f ? s.state[tid] / sum * p.v_scale : 0.0f;
    } else {
        const float top = s.met.draws ? s.met.share.m : s.met.fixed_top;
        double estimate = s.met.draws ? s.met.all * (1.0 + ((double)w[0] - (double)w[1])) : s.guard.fixed;
        if (s.met.draws && !(estimate > 0.0)) estimate = s.met.all * (double)denominator;
        lse = bad ? __int_as_float(0x7fc00000) : head_lse(p, head, top, estimate);
        const float share = denominator > 0.0f
                          ? (float)sink_share(p, head, top, estimate) / denominator : 0.0f;
        const float *const mine = (const float *)p.out + result * p.dv + tid;
        f = bad ? __int_as_float(0x7fc00000) : tid < p.dv ? *mine * share * p.v_scale : 0.0f;
    }
    if (tid < p.dv) write_number(p, b, head, tid, f);
    if (tid) return;
    p.lse[result] = lse;
    p.rank_again[result] = again;
    if (p.draws && again && p.together == 1) p.draws[row] = 0;
    if (p.found)
        p.found[row] = make_float4(s.guard.expected, found, again ? 1.0f : 0.0f,
                                   (s.guard.some ? 1.0f : 0.0f) + (s.guard.rescued ? 2.0f : 0.0f));
}

/* The draws of a query head from the scores of its copy, by a CTA: the steps of k_proxy_gather
   in their order. No member's address leaves, so that they are registers. */
template <bool RANKS> struct copied_draws {
    const params &p;
    proxy_gather_memory &memory;
    scan_memory<comb> &s;
    const int tid, lane, warp, b, head, kv, index;  /* index: the portion */
    const i64 row;
    const proxy_range range;
    const int first, blocks, shift, per;            /* a thread has `per` blocks */
    const bool fits, two;                           /* two: a warp does the work of two */
    const int threads, turns;
    gather_head x;
    float fixed_top, fixed_sum, fixed_f;            /* of the keys that were read exactly */
    float m, expected = 0.0f, lift_fixed, per_step;
    double total, all, step;
    bool light, finite, alone = false;              /* alone: of this head's portions the first does all */
    bool redo, draws;
    int portions;
    float acc[2][4], weights[3] = { 0.0f, 0.0f, 0.0f };      /* sums of w, of p^ / pi, of w r */

    __device__ __forceinline__ copied_draws(const params &p_, proxy_gather_memory &memory_)
        : p(p_), memory(memory_), s(memory_.scan), tid(threadIdx.x), lane(threadIdx.x & 31),
          warp(this_warp()), b(blockIdx.y), head((int)(blockIdx.x >> p_.cluster_shift)),
          kv(head / p_.group), index(blockIdx.z), row((i64)b * p_.heads + head),
          range(copied_range(p_, b)), first(range.from / BLOCK),
          blocks(range.from < range.to ? (range.to - 1) / BLOCK + 1 - first : 0),
          shift(shift_of(blocks)), per(1 << shift), fits(per <= KEPT),
          two(!RANKS && blockDim.x < PORTION), threads(two ? PORTION / 2 : PORTION),
          turns(two ? 2 : 1),
          x{ b, head, index, first, fits,
             { p_.block_sums + row * p_.blocks + first, nullptr, blocks, shift }, MASKED, 0.0 } { }

    __device__ __forceinline__ bool is_helper() const {
        return !RANKS && p.cluster_shift && cta_in_cluster();
    }

    __device__ __forceinline__ void meet_query() {
        const char *q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1] + head * p.q_stride[2];
        if (tid < p.d) memory.q[tid] = load_any(p.q_type, q + tid * p.q_stride[3]);
        if (tid == 0) memory.u = uniform(row_key(p, b), 0, random_head(p, head), (unsigned)p.q_index, 0);
        __syncthreads();
        if (!RANKS && warp == 0) {                  /* for expect() */
            float sum = 0.0f;
            for (int f = lane; f < p.d; f += 32) {
                const float q = p.scale * memory.q[f];
                sum += q * q;
            }
#pragma unroll
            for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
            if (lane == 0) memory.squares = sum;
        }
    }

    /* The keys that were read exactly: the parts' sums join. */
    __device__ __forceinline__ void join_fixed() {
        const i64 pitch = (i64)p.batch * p.heads * (p.dv + 2);
        const float *const fixed = p.fixed + row * (p.dv + 2);
        float tops[FIXED_PARTS];
        fixed_top = MASKED;
        fixed_sum = fixed_f = 0.0f;
#pragma unroll
        for (int i = 0; i < FIXED_PARTS; i++)
            fixed_top = fmaxf(fixed_top, tops[i] = fixed[i * pitch + p.dv]);
#pragma unroll
        for (int i = 0; i < FIXED_PARTS; i++) {
            const float y = fixed[i * pitch + p.dv + 1], z = tid < p.dv ? fixed[i * pitch + tid] : 0.0f,
                        keep = tops[i] < MASK_LIMIT ? 0.0f : pow2(tops[i] - fixed_top);
            fixed_sum += y == y ? keep * y : y;
            fixed_f += keep * z;
        }
    }

    /* The blocks' masses, relative to 2^m, as the comb's teeth find them; their spread. N:
       blocks of a thread at a time. */
    template <int N> __device__ __forceinline__ float scan_blocks() {
        const float *const all_spreads = p.spreads + row * p.blocks + first;
        float2 sums[N];
        float spreads[N], spread = 0.0f;
        const auto load = [&](int turn, int k) {    /* x.sum is p.mended's behind a rescue */
            const int at = (tid + turn * threads) * per, have = min(per, blocks - at);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sums[i] = k + i < have ? x.sum.all[at + k + i] : make_float2(MASKED, 0.0f);
                spreads[i] = !RANKS && k + i < have && !alone ? all_spreads[at + k + i] : 0.0f;
            }
        };
        m = MASKED;
#pragma unroll 1
        for (int turn = turns - 1; turn >= 0; turn--)
#pragma unroll 1
            for (int k = 0; k < per; k += N) {
                load(turn, k);
#pragma unroll
                for (int i = 0; i < N; i++) m = fmaxf(m, sums[i].x);
            }
#pragma unroll
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
        if (lane == 0) s.tops[warp] = m;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < GATHER_WARPS; i++) if (!two || i < GATHER_WARPS / 2) m = fmaxf(m, s.tops[i]);
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) {
            const int at = tid + turn * threads;
            double mass = 0.0;
            spread = 0.0f;
#pragma unroll 1
            for (int k = 0; k < per; k += N) {
                if (N < KEPT || !fits || turn) load(turn, k);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (k + i >= per) break;
                    mass += block_mass(sums[i], m);
                    if (!(sums[i].x < MASK_LIMIT)) spread += pow2(sums[i].x - m) * spreads[i];
                    if (fits) s.pick.prefix[(k + i) * PORTION + at] = mass;
                }
            }
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const double y = __shfl_up_sync(FULL, mass, o);
                if (lane >= o) mass += y;
                spread += __shfl_xor_sync(FULL, spread, o);
            }
            s.ends[at] = mass;
            if (lane == 31) {
                s.totals[at / 32] = mass;
                memory.spreads[at / 32] = spread;
            }
        }
        __syncthreads();
        total = 0.0;
        spread = 0.0f;
#pragma unroll
        for (int i = 0; i < GATHER_WARPS; i++) {
            total += s.totals[i];
            spread += memory.spreads[i];
        }
        x.m = m;
        x.total = total;
        return spread;
    }

    /* All of the mass, relative to 2^m: the copy's and that of the keys read exactly; the step
       from tooth to tooth. Ranks have met over it, m is that of all. */
    __device__ __forceinline__ void sum_masses() {
        if (RANKS) {
            m = memory.met.share.m;
            light = memory.met.light;
            finite = memory.met.finite;
            all = memory.met.all;
            lift_fixed = 0.0f;
        } else {
            const bool no_fixed = fixed_top < MASK_LIMIT && fixed_sum == fixed_sum;
            /* the copy's keys are nothing beside the others */
            light = !no_fixed && fixed_top - m > 100.0f;
            finite = total <= DBL_MAX;
            lift_fixed = no_fixed ? 0.0f : pow2(fixed_top - m);
            all = total + (double)fixed_sum * (double)lift_fixed;
        }
        step = all * p.per_sample;
        per_step = 1.0f / (float)step;
    }

    /* As santa__expected_variance: where the others hide the copy's, these may have grown;
       relative to the copy's mass. */
    __device__ __forceinline__ void expect(float spread) {
        const float own_variance = p.noise * memory.squares * __fdividef(spread, (float)total),
                    beside = fixed_sum * lift_fixed / (float)total;
        expected = blocks && finite && total > 0.0
                 ? own_variance / (1.0f + beside * __expf(-fminf(0.5f * own_variance, 80.0f))) : 0.0f;
    }

    /* The exact scores of its likeliest keys, in sums of its own, since the other portions look
       at these. */
    __device__ __forceinline__ void mend() {
        team t = {};
        t.b = b;
        t.head = head;
        t.heads = 1;
        t.kv = kv;
        t.row = row;
        t.range = range;
        t.first = first;
        t.blocks = blocks;
        t.lo = (int)((i64)blocks * cta_in_cluster() >> p.cluster_shift);
        t.hi = (int)((i64)blocks * (cta_in_cluster() + 1) >> p.cluster_shift);
        float2 *const mended = p.mended + row * p.blocks + first;
#pragma unroll 1
        for (int i = t.lo + tid; i < t.hi; i += threads) mended[i] = x.sum.all[i];
        if (tid < p.d) memory.rescue.q[0][tid] = memory.q[tid];
        __syncthreads();
        const rescued_keys y = rescue(p, memory.rescue, (float *)&memory.scan, t, 0, m, (float)(1.0 / all),
                                      mended, p.rescue_keys);
        cluster_sync();                             /* all have read each other's sums */
        if (is_helper()) return;
        if (tid == 0) memory.rescued = y;
        __syncthreads();
        x.sum.all = mended;
    }

    /* A warp's draws from `base` on, a tooth to a lane: their rows of K are weighed, then those
       of V join its sums. */
    __device__ __forceinline__ void draw(int base, int last_draw) {
        /* 16 for a warp, or 16 for each half of it */
        const int n = min(last_draw - base, (int)PROXY_DRAWS), each = (n + GATHER_WARPS - 1) / GATHER_WARPS,
                  half = two ? lane >> 4 : 0, place_in = two ? lane & 15 : lane, unit = warp * turns + half,
                  count = max(min(each, n - unit * each), 0), lanes = two ? 32 : count;
        if (!__any_sync(FULL, count > 0)) return;
        const int draw = base + unit * each + place_in;
        double t = ((double)draw + memory.u) * step, earlier = ((double)(draw - 1) + memory.u) * step;
        bool taken = place_in < count;
        if (RANKS) {
            taken &= t < memory.met.share.total && t >= memory.met.share.before && t < memory.met.share.end;
            t = (t - memory.met.share.before) * memory.met.to_own;
            earlier = (earlier - memory.met.share.before) * memory.met.to_own;
        } else taken &= t < total;
        place at = { 0, 0.0, 0.0f, { 0.0f, 1.0f }, 0.0f };
        if (taken) at = place_at(s, x, t, earlier);
        taken &= !(at.sum.x < MASK_LIMIT);
        const i64 stash = (row * p.blocks + first) * BLOCK;
        const float want = taken ? at.entries_before() : 0.0f;
        const drawn_key key = p.stash_type == SANTA_STASH_F32
            ? find_drawn((const float *)p.stash + stash, lanes, at.block, want, at.sum.y)
            : find_drawn((const unsigned char *)p.stash + stash, lanes, at.block, want, at.sum.y);
        taken &= key.entry >= 0;
        const float to_m = pow2(at.sum.x - m);      /* what a u of 1 is, relative to 2^m */
        /* the tooth before fell on the same key */
        const bool same = draw > 0 && earlier >= 0.0;
        at.before = earlier;
        const float before = __fmul_rn(at.entries_before(), key.stretch);
        const bool again = taken && same && before >= key.begin
                        && __fsub_rn(before, key.begin) >= key.below;
        taken &= !again;
        const int j = (first + at.block) * BLOCK + max(key.entry, 0);
        i64 at_k = 0, at_v = 0;
        bool broken = false;
        const unsigned all_taken = __ballot_sync(FULL, taken);
        if (!all_taken) {
            if (p.keys && place_in < count) p.keys[row * p.max_draws + draw] = again ? -2 : -1;
            return;
        }
        if (taken) {
            at_k = row_offset(p, p.k_stride, b, j);
            at_v = row_offset(p, p.v_stride, b, j);
            broken = at_k == NO_ROW;
            at_k = broken ? 0 : at_k + kv * p.k_stride[2];
            at_v = broken ? 0 : at_v + kv * p.v_stride[2];
            if (p.any_vector_k) send_for(p.k + at_k, p.d * p.k_size);
            if (p.vector_v) send_for(p.v + at_v, p.dv * p.v_size);
        }
        if (p.keys && place_in < count) p.keys[row * p.max_draws + draw] = taken ? j : again ? -2 : -1;
        /* lanes without a key repeat another one's row, without weight */
        at_k = __shfl_sync(FULL, at_k, taken ? lane : __ffs((int)all_taken) - 1);
        at_v = __shfl_sync(FULL, at_v, taken ? lane : __ffs((int)all_taken) - 1);
        auto &rows_of = memory.warps[warp * turns];
        rows_of.at[lane] = at_k;
        __syncwarp();
        float dot = 0.0f;
#pragma unroll 1
        for (int i = 0; __any_sync(FULL, i < lanes); i += 16) {
            const i64 *rows = rows_of.at + i;
            float y;
            if (!p.any_vector_k) y = dot_numbers(p, memory.q, rows);
            else if (p.k_type == SANTA_BF16 || p.k_type == SANTA_F16)
                y = dot_rows<sixteen>(p, memory.q, rows);
            else if (p.k_type == SANTA_F32) y = dot_rows<float>(p, memory.q, rows);
            else y = dot_rows<__nv_fp8_e4m3>(p, memory.q, rows);
            if (lane >> 4 == i >> 4) dot = y;
        }
        if (p.k_scales.data && taken) dot *= scale_of(p, p.k_scales, b, kv, j);
        const float exact = broken ? __int_as_float(0x7fc00000)
                                   : finished_score(p, head, dot, j - range.position);
        const float guess = log2f(key.mass) + at.sum.x;
        const float mu = key.mass * to_m * per_step;
        const float share = taken ? fmaxf(mu, 1.0f) * (float)p.per_sample : 0.0f;
        const float ratio = taken ? pow2(exact - guess) : 0.0f, w = share * ratio;
        weights[0] += w;
        weights[1] += share;
        weights[2] += w * ratio;
        __syncwarp();
        rows_of.at[lane] = at_v;
        rows_of.weight[lane] = p.v_scales.data && taken ? w * scale_of(p, p.v_scales, b, kv, j) : w;
        __syncwarp();
#pragma unroll 1
        /* of V's columns, or of the rows */
        for (int ch = 0; ch < 2 && (two || 128 * ch < p.dv); ch++) {
            float part[1][4] = { { 0.0f, 0.0f, 0.0f, 0.0f } };
            const int from = two ? 16 * ch : 0, column = two ? 0 : 128 * ch,
                      rows = 32 - __clz((int)(two ? all_taken >> from & 0xffffu : all_taken));
            gather_rows<1>(p, column, rows, rows_of.at + from, rows_of.weight + from, part);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (ch == 0) acc[0][k] += part[0][k]; else acc[1][k] += part[0][k];
        }
        __syncwarp();
    }

    /* The thread's column of the warps' sums, in order; their weights. */
    __device__ __forceinline__ float join_warps() {
#pragma unroll
        for (int k = 0; k < 3; k++)
#pragma unroll
            for (int o = 8; o; o >>= 1) weights[k] += __shfl_xor_sync(FULL, weights[k], o);
        __syncwarp();
#pragma unroll
        for (int ch = 0; ch < 2; ch++) {
            float *const sum = two ? memory.warps[2 * warp + ch].sum : memory.warps[warp].sum + 128 * ch;
            *(float4 *)&sum[4 * lane] = make_float4(acc[ch][0], acc[ch][1], acc[ch][2], acc[ch][3]);
        }
        const int half = lane >> 4, k = lane & 15;
        if (k < 3 && (two || !half))
            memory.weights[turns * warp + half][k] = k == 0 ? weights[0] : k == 1 ? weights[1] : weights[2];
        __syncthreads();
        float f = 0.0f;
        if (tid < p.dv)
#pragma unroll
            for (int k = 0; k < GATHER_WARPS; k++) f += memory.warps[k].sum[tid];
#pragma unroll
        for (int k = 0; k < 3; k++) {
            weights[k] = 0.0f;
#pragma unroll
            for (int i = 0; i < GATHER_WARPS; i++) weights[k] += memory.weights[i][k];
        }
        return f;
    }

    /* The same of the portions, by the CTA that comes last; false for the others. */
    __device__ __forceinline__ bool join_portions(float &f) {
        float *const part = p.partial + (row * p.portions + index) * (p.dv + 4);
        if (tid < p.dv) part[tid] = f;
        if (tid < 3) part[p.dv + tid] = tid == 0 ? weights[0] : tid == 1 ? weights[1] : weights[2];
        __threadfence();
        __syncthreads();
        if (tid == 0) memory.last_one = atomicAdd(&p.arrived[row], 1) == p.portions - 1;
        __syncthreads();
        if (!memory.last_one) return false;
        __threadfence();
        f = weights[0] = weights[1] = weights[2] = 0.0f;
        const float *const parts = p.partial + row * p.portions * (p.dv + 4);
#pragma unroll 4
        for (int k = 0; k < p.portions; k++) {
            if (tid < p.dv) f += __ldcg(parts + k * (p.dv + 4) + tid);
#pragma unroll
            for (int i = 0; i < 3; i++) weights[i] += __ldcg(parts + k * (p.dv + 4) + p.dv + i);
        }
        return true;
    }

    /* Its sums, of which finish_of_ranks makes out. */
    __device__ __forceinline__ void tell_ranks(float f) {
        const float lift = fixed_top < MASK_LIMIT && fixed_sum == fixed_sum ? 0.0f
                         : memory.met.draws ? pow2(fixed_top - m) / (float)all
                                            : pow2(fixed_top - memory.met.fixed_top);
        if (tid == 0) {
            p.rank_drawn[row] = make_float4(weights[0], weights[1], weights[2], lift * fixed_sum);
            if (p.draws) p.draws[row] = draws ? p.samples : 0;
        }
        if (tid < p.dv) write_number(p, b, head, tid, lift * fixed_f + f);
    }

    /* out and lse, or exact attention where the draws show too much spread or a NaN. */
    __device__ __forceinline__ void finish(float f) {
        const float found = found_variance(weights[0], weights[1], weights[2],
                                           alone ? off_variance(memory.rescued.off, expected) : 0.0f);
        /* the factor of the keys read exactly, and what joins them; the sum of exp(s) is about
           estimate * 2^top */
        float part_f = f, part_w = weights[0], top = fixed_top,
              lift = draws ? lift_fixed / (float)all : 1.0f;
        const bool again = redo || is_too_far(p, found, lift * fixed_sum + part_w, draws);
        double estimate = (double)fixed_sum;
        if (__builtin_expect(again, 0)) {
            attend(p, memory.redo, b, head, 1, range.position, range.begin, range.end, range.end, range.end,
                   0, 1, nullptr, 0, memory.state, 0);
            __syncthreads();
            part_f = part_w = 0.0f;
            lift = 1.0f;
            fixed_f = tid < p.dv ? memory.state[tid] : 0.0f;
            fixed_sum = memory.state[p.dv + 1];
            top = memory.state[p.dv];
            estimate = (double)fixed_sum;
        } else if (draws) {
            top = m;
            estimate = all * (1.0 + ((double)weights[0] - (double)weights[1]));
        }
        const float denominator = lift * fixed_sum + part_w;
        const bool bad = !(denominator == denominator) || isinf(denominator);
        if (draws && !again && !(estimate > 0.0)) estimate = all * (double)denominator;
        if (tid == 0) {
            if (p.draws) p.draws[row] = draws && !again ? p.samples : 0;
            if (p.rescued) p.rescued[row] = alone ? memory.rescued.rows : 0;
            if (p.found)
                p.found[row] = make_float4(expected, found, again ? 1.0f : 0.0f,
                                           range.begin < range.end ? 1.0f : 0.0f);
            if (p.lse)
                p.lse[lse_of(p, b, p.q_index, head)]
                    = bad ? __int_as_float(0x7fc00000) : head_lse(p, head, top, estimate);
        }
        if (tid >= p.dv) return;
        const double share = sink_share(p, head, top, estimate);
        f = bad ? __int_as_float(0x7fc00000)
          : denominator > 0.0f ? (lift * fixed_f + part_f) / denominator * (float)share * p.v_scale
                               : 0.0f;
        write_number(p, b, head, tid, f);
    }
};

/* Draws of one query head from the scores of the copy, their rows of K and V, the weights, the
   guard: out and lse.
   Grid: (query head * CTAs of a cluster, batch, portion of the draws); the cluster's others
   leave unless there is a rescue, which they share. A CTA of 8 warps, or of 4 where many CTAs
   wait for room, each of which does what two of 8 do, in their order:
     scan     as k_gather; the keys read exactly join the total
     draw     a lane per tooth of the comb, 16 a warp of 8; a key is its first tooth's
     weigh    the drawn rows of K against q: e^s against e^s^
     gather   their rows of V, 16 at a time; then the 8 warps' sums in order
     merge    with more than one portion: the CTA that finishes last
   and there, where the log weights vary too much by what is found, or with a NaN among the
   scores, exact attention of the head: attend. Where they are expected to, rescue, and the scan
   once more. Over ranks each of these steps is a launch of its own, see p.rank_step. The draw
   is an instance, since as one they cost 1.5 us of 28.8 at 1 x 32k: code comes cold. The others
   are in the instance that has a rescue and exact attention anyway.
   Reads, per CTA: blocks * 12 + draws * (64 stash entries + a row of K and of V).
   Latency-bound: all that does not depend on the scores stands before the wait, and rows are
   sent for as soon as they are known.
   Barriers: as k_gather. */
template <bool RANKS>
__global__ void __launch_bounds__(PORTION, 2) k_proxy_gather(const __grid_constant__ params p) {
    SHARED(memory, proxy_gather_memory);
    if (!RANKS && p.rank_step != DRAW) {
        if (p.rank_step == FINISH) finish_of_ranks(p, memory); else rescue_of_ranks(p, memory);
        return;
    }
    copied_draws<RANKS> x(p, memory);
    x.meet_query();
    wait_for_previous();                            /* from here on the scores are complete */
    launch_dependents();                            /* of launch_short */
    if (RANKS && x.tid == 0) memory.met = copied_met(p, x.row);
    x.join_fixed();
    const float spread = x.template scan_blocks<KEPT>();
    x.sum_masses();
    if (!RANKS) {                                   /* ranks have seen to guards */
        x.expect(spread);
        const bool rescues = x.expected > p.rescue_above && !x.light && p.rescue_keys;
        if (__builtin_expect(!agreed(!rescues), 0)) {
            x.alone = true;
            if (x.index) return;                    /* the others leave it to the first portion */
            x.mend();
            if (x.is_helper()) return;
            x.template scan_blocks<1>();            /* rarely, in little code */
            x.sum_masses();
        }
    }
    if (x.is_helper()) return;
    x.redo = agreed(x.blocks && !x.finite);
    x.draws = agreed(x.blocks && !x.redo && !x.light && x.total > 0.0);
    x.portions = x.alone ? 1 : p.portions;
    const int each = (p.samples + x.portions - 1) / x.portions,
              last_draw = x.draws ? min((x.index + 1) * each, p.samples) : 0;
#pragma unroll
    for (int k = 0; k < 4; k++) x.acc[0][k] = x.acc[1][k] = 0.0f;
#pragma unroll 1
    for (int base = x.index * each; base < last_draw; base += PROXY_DRAWS) x.draw(base, last_draw);
    float f = x.join_warps();
    if (x.portions > 1 && !x.join_portions(f)) return;
    if (RANKS) x.tell_ranks(f); else x.finish(f);
}

/* Of a head's scores from the copy what ranks tell each other: the largest, their mass; of the
   keys read exactly the largest and the sum; the variance to expect times that mass. Behind a
   rescue the first two once more, beside rescue's sums.
   Grid: (query head, batch), 256 threads. Reads 12 bytes a block; latency-bound. */
__global__ void __launch_bounds__(PORTION) k_rank_copied(const __grid_constant__ params p) {
    SHARED(s, rank_memory);
    const int b = blockIdx.y, head = blockIdx.x, tid = threadIdx.x;
    const i64 row = (i64)b * p.heads + head;
    const proxy_range range = copied_range(p, b);
    const int first = range.from / BLOCK,
              blocks = range.from < range.to ? (range.to - 1) / BLOCK + 1 - first : 0;
    const float2 *const sums = p.block_sums + row * p.blocks + first;
    const float *const spreads = p.spreads + row * p.blocks + first;
    const bool all = p.rank_step != MEND;           /* else rescue_of_ranks has told the others */
    float fixed_top = MASKED, fixed = 0.0f;
    double mass = 0.0, spread = 0.0, squares = 0.0;
    const float m = cta_top(sums, 0, blocks, s.tops);
#pragma unroll 1
    for (int i = tid; i < blocks; i += PORTION) {
        mass += block_mass(sums[i], m);
        if (all && !(sums[i].x < MASK_LIMIT)) spread += (double)(pow2(sums[i].x - m) * spreads[i]);
    }
    const double total = cta_total<GATHER_WARPS>(mass, s.scratch);
    double *const said = p.rank_mass + row * p.mass_doubles;
    if (tid == 0) {
        said[0] = (double)m;
        said[1] = total;
    }
    if (!all) return;
    if (tid < p.d) {
        const float q = p.scale * load_any(p.q_type, p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                                                   + head * p.q_stride[2] + tid * p.q_stride[3]);
        squares = (double)(q * q);
    }
    squares = cta_total<GATHER_WARPS>(squares, s.scratch);
    spread = cta_total<GATHER_WARPS>(spread, s.scratch);
    if (tid) return;
#pragma unroll 1
    for (int i = 0; i < FIXED_PARTS; i++) fixed_top = fmaxf(fixed_top, fixed_of(p, i, row)[p.dv]);
#pragma unroll 1
    for (int i = 0; i < FIXED_PARTS; i++) {
        const float *const at = fixed_of(p, i, row) + p.dv;
        fixed += at[1] != at[1] ? at[1] : at[0] < MASK_LIMIT ? 0.0f : pow2(at[0] - fixed_top) * at[1];
    }
    if (p.rescued) p.rescued[row] = 0;
    said[2] = (double)fixed_top;
    said[3] = (double)fixed;
    said[4] = (double)p.noise * squares * spread;
}

/* -----------------------------------------------------------------------------
   >>draw-kernel */

/* The masses of the team's heads h .. last - 1 in this CTA's parts of the blocks: a warp to a
   part and head. All CTAs of the cluster get them. */
__device__ __forceinline__ void sum_parts(const params &p, draw_memory &s, const team &t, int from,
                                          int last) {
    const int lane = threadIdx.x & 31, n = last - from;
#pragma unroll 1
    for (int i = threadIdx.x >> 5; i < t.parts * n; i += GATHER_WARPS) {
        const int k = i / n, h = from + i % n, part = t.cta * t.parts + k;
        const int begin = min(part * t.part_blocks, t.blocks),
                  have = min(t.part_blocks, t.blocks - begin);
        const i64 at = (t.row + h) * p.blocks + t.first + begin;
        float m = MASKED, spread = 0.0f;
        double mass = 0.0;
        float2 x[8];
        float y[8];
        const auto load = [&](int b) {
#pragma unroll
            for (int u = 0; u < 8; u++) {
                const bool here = b + 32 * u + lane < have;
                x[u] = here ? __ldcg(p.block_sums + at + b + 32 * u + lane) : make_float2(MASKED, 0.0f);
                y[u] = here && p.copied ? __ldcg(p.spreads + at + b + 32 * u + lane) : 0.0f;
            }
        };
        load(0);
#pragma unroll 1
        for (int b = 0;;) {
#pragma unroll
            for (int u = 0; u < 8; u++) m = fmaxf(m, x[u].x);
            if ((b += 256) >= have) break;
            load(b);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
#pragma unroll 1
        for (int b = 0; b < have; b += 256) {
            if (have > 256) load(b);
#pragma unroll
            for (int u = 0; u < 8; u++) {
                mass += block_mass(x[u], m);
                if (!(x[u].x < MASK_LIMIT)) spread += pow2(x[u].x - m) * y[u];
            }
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            mass += __shfl_xor_sync(FULL, mass, o);
            spread += __shfl_xor_sync(FULL, spread, o);
        }
        if (lane < 1 << p.cluster_shift) {
            *in_cta(&s.part_top[part][h], lane) = m;
            *in_cta(&s.part_sum[part][h], lane) = mass;
            *in_cta(&s.part_spread[part][h], lane) = spread;
        }
    }
}

/* Instead of a head's own masses those of all ranks. */
__device__ __noinline__ void over_ranks(const params &p, i64 row, float &m, double &total, float &fixed_top,
                                        float &fixed_sum) {
    const rank_share all = rank_share_of(p, row);
    m = all.m;
    total = all.total;
    if (!p.copied) return;
    const rank_guard guard = guard_of(p, row);
    fixed_top = guard.fixed_top;
    fixed_sum = (float)guard.fixed;
}

/* What a head's parts add up to: what its scores are relative to, all of its mass, and the
   variance to expect, as santa__expected_variance. A warp for each head. */
__device__ __forceinline__ void settle_head(const params &p, draw_memory &s, const team &t, int h,
                                            bool first) {
    const int lane = threadIdx.x & 31, part = lane & (DRAW_PARTS - 1);
    float fixed_top = MASKED, fixed_sum = 0.0f;
    if (p.copied) {
        float tops[FIXED_PARTS], sums[FIXED_PARTS];
#pragma unroll
        for (int i = 0; i < FIXED_PARTS; i++) {
            const float *at = fixed_of(p, i, t.row + h) + p.dv;
            fixed_top = fmaxf(fixed_top, tops[i] = __ldcg(at));
            sums[i] = __ldcg(at + 1);
        }
#pragma unroll
        for (int i = 0; i < FIXED_PARTS; i++)
            fixed_sum += sums[i] != sums[i] ? sums[i]
                       : tops[i] < MASK_LIMIT ? 0.0f : pow2(tops[i] - fixed_top) * sums[i];
    }
    const float y = s.part_top[part][h];
    float m = y;
#pragma unroll
    for (int o = 1; o < DRAW_PARTS; o <<= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
    const float add = y < MASK_LIMIT ? 0.0f : pow2(y - m);
    double total = s.part_sum[part][h];
    if (!(y < MASK_LIMIT)) total *= (double)add;
    float spread = add > 0.0f ? add * s.part_spread[part][h] : 0.0f;
#pragma unroll
    for (int o = 1; o < DRAW_PARTS; o <<= 1) {
        total += __shfl_xor_sync(FULL, total, o);
        spread += __shfl_xor_sync(FULL, spread, o);
    }
    if (p.ranks) over_ranks(p, t.row + h, m, total, fixed_top, fixed_sum);
    const float top = fmaxf(m, fixed_top);
    const double fixed = (double)(fixed_top < MASK_LIMIT ? 0.0f : pow2(fixed_top - top))
                       * (double)fixed_sum;
    const bool good = total <= DBL_MAX && total > 0.0                   /* as santa__is_hidden */
                   && !(fixed_sum > 0.0f && fixed_top - m > 100.0f);
    const double copied = good ? total * (double)pow2(m - top) : 0.0, all = copied + fixed;
    const float inverse = all > 0.0 ? 1.0f / (float)all : 0.0f;
    if (lane) return;
    if (first && p.copied) {
        const float own = p.noise * s.squares[h] * (spread / (float)total);
        const double grown = copied * (double)expf(fminf(0.5f * own, 80.0f));
        s.expected[h] = good ? own * (float)(grown / (grown + fixed)) : 0.0f;
        s.off[h] = 0.0f;
    }
    s.top[h] = top < MASK_LIMIT ? 0.0f : top;
    s.all[h] = all;
    s.fixed_share[h] = all > 0.0 ? (float)fixed * inverse : (float)fixed;
    s.inverse[h] = inverse;
    s.log_inverse[h] = log2f(inverse);
    s.draws[h] = good;
    s.bad[h] = (t.blocks || p.ranks) && !(total <= DBL_MAX);
    s.factor[h] = 1.0f;
}

/* Sizes of the keys of a block, N at a lane: the largest of their shares. LANES lanes side by
   side have a block; returns their sum. fresh: units are made of the sums, and kept; for the
   copy's bytes logarithms of them, so that a key costs one exponential. */
template <typename U>
__device__ __forceinline__ float lane_sizes(const params &p, draw_memory &s, const team &t, int block,
                                            bool fresh, float *size) {
    enum { N = 16 / sizeof(U), LANES = BLOCK / N };
    const int l = threadIdx.x % LANES;
    const i64 pitch = p.blocks, at = t.row * pitch + t.first + block;
    const bool logs = sizeof(U) == 1 && p.copied, edge = block == 0 || block == t.blocks - 1;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) size[i] = logs ? MASKED : 0.0f;
#pragma unroll 1
    for (int h0 = 0; h0 < t.heads; h0 += 4) {
        uint4 raw[4];
        float2 x[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const i64 of = at + min(h0 + u, t.heads - 1) * pitch;
            raw[u] = __ldcg((const uint4 *)((const U *)p.stash + of * BLOCK + N * l));
            if (fresh) x[u] = __ldcg(p.block_sums + of); else x[u].x = __ldcg(p.share_units + of);
        }
#pragma unroll 2
        for (int u = 0; u < 4; u++) {               /* what is loaded moves down */
            if (h0 + u >= t.heads) break;
            float unit = x[0].x;
            const float of_block = x[0].y;
            const unsigned w[4] = { raw[0].x, raw[0].y, raw[0].z, raw[0].w };
#pragma unroll
            for (int k = 0; k < 3; k++) {
                raw[k] = raw[k + 1];
                x[k] = x[k + 1];
            }
            if (fresh) {
                const bool none = unit < MASK_LIMIT || !s.draws[h0 + u];
                if (logs) unit = none ? MASKED : unit - s.top[h0 + u] + s.log_inverse[h0 + u];
                else unit = none ? 0.0f : pow2(unit - s.top[h0 + u]) * s.inverse[h0 + u];
                if (sizeof(U) < 4 && !logs) {       /* rounded ones add up to something else */
                    float of = 0.0f;
#pragma unroll
                    for (int i = 0; i < N; i++)
                        of += sizeof(U) == 1 ? byte_of(w[i / 4], i & 3)
                            : __half2float(__ushort_as_half((unsigned short)(w[i / 2] >> 16 * (i & 1))));
#pragma unroll
                    for (int o = 1; o < LANES; o <<= 1) of += __shfl_xor_sync(FULL, of, o);
                    unit = of > 0.0f ? unit * (of_block / of) : 0.0f;
                }
                if (l == 0 && block < t.hi) p.share_units[at + (h0 + u) * pitch] = unit;
            }
            if (logs) {
#pragma unroll
                for (int i = 0; i < N; i++)
                    size[i] = fmaxf(size[i], fmaf(byte_of(w[i / 4], i & 3), -0.0625f, unit));
                if (edge)                           /* 255 stands for 0, and is all heads' */
#pragma unroll
                    for (int i = 0; i < N; i++)
                        if ((w[i / 4] >> 8 * (i & 3) & 255u) == 255u) size[i] = MASKED;
            } else
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float mass = sizeof(U) == 4 ? __uint_as_float(w[i / (4 / (int)sizeof(U)) & 3])
                                     : sizeof(U) == 1 ? byte_of(w[i / 4 & 3], i & 3)
                        : __half2float(__ushort_as_half((unsigned short)(w[i / 2 & 3] >> 16 * (i & 1))));
                    size[i] = fmaxf(size[i], mass * unit);
                }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (logs) size[i] = pow2(size[i]);
        sum += size[i];
    }
    return sum;
}

/* Teeth of the comb below a position; both in ticks, 2^32 from tooth to tooth. */
__device__ __forceinline__ i64 teeth_below(i64 end, unsigned word) {
    return end > (i64)word ? (end - 1 - (i64)word >> 32) + 1 : 0;
}

/* What a lane finds in a block: the sum of its sizes, of the group's if not `find`; else
   whether its share holds the tooth at `at`, in ticks from the block's start, in which entry,
   of what size, and whether the tooth before fell there, too. */
struct lane_share { float sum, size; int entry; bool here, again; };
template <typename U>
__device__ __forceinline__ lane_share share_of_lane(const params &p, draw_memory &s, const team &t,
                                                    int block, bool find, i64 ticks, i64 at) {
    enum { N = 16 / sizeof(U), LANES = BLOCK / N };
    const int l = threadIdx.x % LANES;
    float size[N];
    lane_share x = { lane_sizes<U>(p, s, t, block, !find, size), 0.0f, 0, false, false };
    if (!find) {
#pragma unroll
        for (int o = 1; o < LANES; o <<= 1) x.sum += __shfl_xor_sync(FULL, x.sum, o);
        return x;
    }
    float u[N], end = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) u[i] = end += size[i];
#pragma unroll
    for (int o = 1; o < LANES; o <<= 1) {
        const float y = __shfl_up_sync(FULL, end, o, LANES);
        if (l >= o) end += y;
    }
    const float whole = __shfl_sync(FULL, end, LANES - 1, LANES);
    float begin = __shfl_up_sync(FULL, end, 1, LANES);
    if (l == 0) begin = 0.0f;
    const float scale = whole / (float)ticks,
                most = __uint_as_float(__float_as_uint(whole) - 1u);  /* a place before the end */
    const float want = fminf((float)at * scale, most),
                before = at >= 1ll << 32 ? fminf((float)(at - (1ll << 32)) * scale, most) : -1.0f;
    const float local = want - begin;
    float below = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const bool past = u[i] <= local;
        x.entry += past;
        below = past ? u[i] : below;
    }
#pragma unroll
    for (int i = 0; i < N; i++) x.size = i == x.entry ? size[i] : x.size;
    x.here = begin <= want && want < end && x.entry < N;
    x.again = before >= begin && before - begin >= below;
    return x;
}

/* Lane groups, 16 bytes of the stash a lane, go through this CTA's blocks (find false: their
   ticks) or its teeth `tooth` .. `last` - 1 (find: the keys that they fall on go to the lists).
   Only what depends on the stash's type stands here for each. */
__device__ __forceinline__ void walk(const params &p, draw_memory &s, const team &t, bool find, i64 base,
                                     i64 tooth, i64 last, i64 round_row) {
    const bool f32 = p.stash_type == SANTA_STASH_F32, f16 = p.stash_type == SANTA_STASH_F16 && !p.copied;
    const int shift_lanes = f32 ? 4 : f16 ? 3 : 2, lanes = 1 << shift_lanes, tid = threadIdx.x,
              l = tid & (lanes - 1), group = tid & 31 & -lanes;
    const int own = t.hi - t.lo, shift = s.run_shift;
    const unsigned word = s.word;
    const i64 count = find ? last - tooth : own;
#pragma unroll 1
    for (i64 i0 = 0; i0 < count; i0 += PORTION >> shift_lanes) {
        const i64 i = i0 + (tid >> shift_lanes);
        int k = (int)min(i, count - 1);
        i64 ticks = 0, start = 0, at = 0;
        if (find) {
            at = ((tooth + k) << 32 | word) - base;
            int run = 0;
#pragma unroll 1
            for (int o = DRAW_RUNS / 2; o; o >>= 1) if (at >= s.run_end[run + o - 1]) run += o;
            start = run ? s.run_end[run - 1] : 0;
            k = run << shift;
            if (shift)
#pragma unroll 1
                for (;; k++) {
                    const i64 own_ticks = __ldcg(p.ticks + t.row / t.heads * p.blocks + t.first + t.lo + k);
                    if (at < start + own_ticks || k + 1 >= min(own, (run + 1) << shift)) break;
                    start += own_ticks;
                }
            ticks = shift ? __ldcg(p.ticks + t.row / t.heads * p.blocks + t.first + t.lo + k)
                          : s.run_end[run] - start;
        }
        const auto share = [&](auto type) {
            return share_of_lane<decltype(type)>(p, s, t, t.lo + k, find, ticks, at - start);
        };
        const lane_share x = f32 ? share(0.0f) : f16 ? share(__half()) : share((unsigned char)0);
        if (!find) {
            if (l || i >= count) continue;
            ticks = llrint((double)x.sum * (double)p.samples * 4294967296.0);
            if (shift || p.ranks) p.ticks[t.row / t.heads * p.blocks + t.first + t.lo + k] = ticks;
            if (shift) atomicAdd((u64 *)&s.run_end[k >> shift], (u64)ticks);
            else s.run_end[k] = ticks;
            continue;
        }
        const bool here = x.here && i < count, taken = here && !x.again;
        const int j = (t.first + t.lo + k) * BLOCK + (l << (6 - shift_lanes)) + x.entry;
        if (p.keys && l == 0 && i < count) p.keys[t.row / t.heads * p.max_draws + tooth + i] = -1;
        __syncwarp();
        if (here) {
            const i64 index = tooth + i;
            if (p.keys) p.keys[t.row / t.heads * p.max_draws + index] = taken ? j : -2;
            if (taken) {
                const int row = (int)(index + round_row), part = row & 7,
                          place = (row >> 3) * t.parts + (part & (t.parts - 1)),
                          cta = cta_of_part(p, part);
                *in_cta(&s.key[place], cta) = j;
                *in_cta(&s.chance[place], cta) = fminf(x.size * (float)p.samples, 1.0f);
            }
        }
        /* the rows are on their way to L2, a line a lane */
        const int mine = (int)(__ballot_sync(FULL, taken) >> group & ((1u << lanes) - 1));
        const int key = __shfl_sync(FULL, j, group + (mine ? __ffs(mine) - 1 : 0));
        if (mine && p.staged) {
            const i64 k_at = row_offset(p, p.k_stride, t.b, key),
                      v_at = row_offset(p, p.v_stride, t.b, key);
            const int k_lines = p.copied ? (p.d * p.k_size + 127) / 128 : 0,
                      v_lines = (p.dv * p.v_size + 127) / 128;
#pragma unroll 1
            for (int line = l; v_at != NO_ROW && line < k_lines + v_lines; line += lanes)
                prefetch(line < k_lines ? p.k + k_at + t.kv * p.k_stride[2] + 128 * line
                                        : p.v + v_at + t.kv * p.v_stride[2] + 128 * (line - k_lines));
        }
    }
}

/* Where part `part` of the heads' sums lies. */
__device__ __forceinline__ const float *sums_of(const params &p, const team &t, float *sums, int part) {
    const i64 each = (i64)t.heads * p.dv;
    return p.sums ? sums + (part - t.cta * t.parts) * each
                  : in_cta(sums + (part & (t.parts - 1)) * each, cta_of_part(p, part));
}

__device__ __forceinline__ void write_out(const params &p, const team &t, int h, int f, float x) {
    store_any(p.out_type, p.out + t.b * p.out_stride[0] + p.q_index * p.out_stride[1]
                              + (t.head + h) * p.out_stride[2] + f * p.out_stride[3], x);
}

__device__ __forceinline__ void write_lse(const params &p, const team &t, int h, bool bad, float top,
                                          double sum) {
    if (p.lse)
        p.lse[lse_of(p, t.b, p.q_index, t.head + h)]
            = bad ? __int_as_float(0x7fc00000) : head_lse(p, t.head + h, top, sum);
}

/* Draws of a team of heads by one comb, their rows of V and, from a copy, of K: out and lse.
   Grid: (cluster CTAs of a team, batch). The team's blocks and rows are dealt to 8 parts, these
   to the cluster's CTAs of 8 warps, which send each other what they know:
     always   the keys that are read exactly, before the scores are there
     masses   of the parts of the blocks, then of the heads; what expects a large error is
              rescued
     sizes    of the blocks: the stash once, and where each begins in the comb's ticks of 2^-32
              tooth
     find     the keys of the teeth; a key is its first tooth's, and goes to the list of the
              part that the tooth belongs to
     rows     of K against q, then of V; the parts' sums in order
   and a head whose log weights vary too much by what was found, or with a NaN, takes all of its
   keys. Over ranks in two launches: TELL ends with the ticks of this rank's keys, PLACE begins
   with those of the ranks before it. With exact scores the sure keys' sums go apart; from a
   copy k_proxy_gather's FINISH makes out.
   Reads, per team: blocks * (12 + 64 stash entries) a head, draws * (64 stash entries a head +
   a row of K and of V). Latency-bound: all that does not depend on the scores stands before the
   wait. Barriers: of the cluster, between these. */
__global__ void __launch_bounds__(PORTION, 2) k_draw(const __grid_constant__ params p) {
    DYNAMIC_SHARED(slots);
    draw_memory &s = *(draw_memory *)slots;
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp();
    if (tid == 0) s.own = team_of(p);
    __syncthreads();
    const team &t = s.own;
    const int cluster = 1 << p.cluster_shift;
    char *const stage = (char *)slots + p.stage_at;
    float *const sums = p.sums ? p.sums + (t.row * DRAW_PARTS + (i64)t.cta * t.parts * t.heads) * p.dv
                               : (float *)((char *)slots + sizeof s);
    const i64 own = t.hi - t.lo;
    if (tid == 0) {
        s.word = (unsigned)(uniform(row_key<1>(p, t.b), 0, random_head(p, t.head), (unsigned)p.q_index, 0)
                            * 4294967296.0);
        s.run_shift = own > DRAW_RUNS ? 32 - __clz((int)((own - 1) / DRAW_RUNS)) : 0;
    }
#pragma unroll 1
    for (int i = tid; i < DRAW_RUNS; i += PORTION) { s.run_end[i] = 0; s.key[i] = -1; }
    static_assert((int)DRAW_RUNS == (int)DRAW_LIST, "zeroed together");
    cluster_sync();                                 /* all are there to be written to */
#pragma unroll 1
    for (int h0 = 0; p.copied && h0 < t.heads; h0 += SLICE) {
        load_slice(p, s, t, h0);
        if (warp < SLICE && h0 + warp < t.heads) {
            float squares = 0.0f;
#pragma unroll 1
            for (int f = lane; f < p.d; f += 32) {
                const float q = p.scale * s.q[warp][f];
                squares += q * q;
            }
#pragma unroll
            for (int o = 16; o; o >>= 1) squares += __shfl_xor_sync(FULL, squares, o);
            if (lane == 0) s.squares[h0 + warp] = squares;
        }
    }
    bool rescued = false;
    wait_for_previous();                            /* from here on the scores are complete */
    launch_dependents();                            /* of launch_short */
    /* and once more behind a rescue, for which little else is in registers */
#pragma unroll 1
    for (bool all = true;; all = false) {
        if (!p.ranks) sum_parts(p, s, t, 0, t.heads);
        cluster_sync();
#pragma unroll 1
        for (int i = warp; i < t.heads; i += GATHER_WARPS) settle_head(p, s, t, i, all);
        __syncthreads();
        if (!all || !p.copied || p.ranks) break;
#pragma unroll 1
        for (int h = 0; h < t.heads; h++) {
            int rows = 0;
            if (s.expected[h] > p.rescue_above && s.draws[h] && p.rescue_keys > 0) {
                if (t.heads > SLICE) load_slice_rarely(p, s, t, h / SLICE * SLICE);
                const rescued_keys x = rescue(p, s, (float *)s.key, t, h, s.top[h], s.inverse[h],
                                              p.block_sums + (t.row + h) * p.blocks + t.first,
                                              p.rescue_keys);
                rows = x.rows;
                if (tid == 0) s.off[h] = off_variance(x.off, s.expected[h]);
                rescued = true;
                __syncthreads();
            }
            if (p.rescued && t.cta == 0 && tid == 0) p.rescued[t.row + h] = rows;
        }
        if (!rescued) break;
#pragma unroll 1
        for (int i = tid; i < DRAW_LIST; i += PORTION) s.key[i] = -1;     /* it was scratch */
    }
    /* What is large stands here once, and each step of a CTA goes through it: MASSES, a ROUND
       of the list, LAST: heads that take all of their keys. */
    enum { MASSES, ROUND, LAST };
    i64 base = 0, teeth = 0, from = 0, to = 0, rounds = 0, round = 0;
    int mode = DRAWN;
    bool listed = false;
#pragma unroll 1
    for (int step = MASSES;;) {
        i64 start = 0, end = 0;
        if (step == ROUND) {
            start = round * DRAW_LIST;
            end = min(start + DRAW_LIST, teeth);
            if (listed && rounds > 1) {             /* the last list is used up everywhere */
                for (int i = tid; i < DRAW_LIST; i += PORTION) s.key[i] = -1;
                cluster_sync();
                listed = false;
            }
        }
        if (step == MASSES && p.rank_step == PLACE) {
            const i64 *const ticks = p.ticks + t.row / t.heads * p.blocks + t.first + t.lo;
#pragma unroll 1
            for (int i = tid; i < own; i += PORTION)
                atomicAdd((u64 *)&s.run_end[i >> s.run_shift], (u64)ticks[i]);
        } else if (step == MASSES || (step == ROUND && !listed)) {
            walk(p, s, t, step == ROUND, base, max(from, start), min(to, end), -start);
            if (step == ROUND) { listed = true; cluster_sync(); }
        }
        if (step == MASSES) {
            enum { EACH = DRAW_RUNS / PORTION };
            i64 x[EACH], sum = 0, before = 0, all = 0;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < EACH; i++) x[i] = sum += s.run_end[EACH * tid + i];
            i64 reached = sum;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const i64 y = __shfl_up_sync(FULL, reached, o);
                if (lane >= o) reached += y;
            }
            if (lane == 31) s.scan[warp] = reached;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < GATHER_WARPS; i++) {
                if (i < warp) before += s.scan[i];
                all += s.scan[i];
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) s.run_end[EACH * tid + i] = before + reached - sum + x[i];
            if (tid < cluster) *in_cta(&s.ticks[t.cta], tid) = all;
            cluster_sync();
            if (p.rank_step == TELL) {
#pragma unroll 1
                for (int r = 0; r < cluster; r++) base += s.ticks[r];
                if (t.cta == 0 && tid == 0) p.tile_count[t.row / t.heads] = base;
                return;
            }
            /* over ranks teeth count from the first one here */
#pragma unroll 1
            for (int r = 0; r < p.rank; r++)
                base += p.tile_counts[r * (i64)p.batch * (p.heads / t.heads) + t.row / t.heads];
            base -= teeth_below(base, s.word) << 32;
            i64 total = base;
#pragma unroll 1
            for (int r = 0; r < cluster; r++) {
                if (r < t.cta) base += s.ticks[r];
                total += s.ticks[r];
            }
            teeth = min(teeth_below(total, s.word), p.max_draws);
            from = teeth_below(base, s.word);
            to = min(teeth_below(base + s.ticks[t.cta], s.word), teeth);
            rounds = max((teeth + DRAW_LIST - 1) / DRAW_LIST, (i64)1);
            if (p.draws && t.cta == 0 && tid < t.heads) p.draws[t.row + tid] = tid ? 0 : (int)teeth;
            mode = p.copied ? DRAWN : p.ranks ? SURE : WEIGH;
            step = ROUND;
            continue;
        }
        const int count = step == ROUND ? (int)(end - start) : t.range.end - t.range.begin;
#pragma unroll 1
        for (int h0 = 0; h0 < t.heads; h0 += SLICE) {
            bool some = step == ROUND;
#pragma unroll 1
            for (int h = h0; h < min(h0 + SLICE, t.heads); h++) some |= s.again[h] != 0;
            if (!some) continue;
            if (p.copied && (step == LAST || t.heads > SLICE)) load_slice(p, s, t, h0);
            take_rows(p, s, t, mode, count, h0, t.range.end, t.range.end, round > 0, sums, stage,
                      DRAW_PARTS, t.cta * t.parts, t.parts);
        }
        if (step == ROUND && ++round < rounds) continue;
        cluster_sync();
        if (step == LAST) break;
        round = 0;
        if (mode == SURE) {                         /* what they take up, k_join_ranks sees */
#pragma unroll 1
            for (int h = t.cta; h < t.heads; h += cluster) {
                float *const to
                    = p.sure + (((i64)t.b * p.q_len + p.q_index) * p.heads + t.head + h) * (p.dv + 2);
                const double share = sink_share(p, t.head + h, s.top[h], s.all[h]) * (double)p.v_scale;
#pragma unroll 1
                for (int f = tid; f < p.dv + 2; f += PORTION) {
                    float x = 0.0f;
#pragma unroll 1
                    for (int part = 0; part < DRAW_PARTS; part++) {
                        const float *const y = f < p.dv ? sums_of(p, t, sums, part) + (i64)h * p.dv + f
                            : in_cta(&s.extra[part & (t.parts - 1)][h][f == p.dv], cta_of_part(p, part));
                        x += p.sums && f < p.dv ? __ldcg(y) : *y;
                    }
                    to[f] = f < p.dv ? (float)(share * (double)x) : x;
                }
            }
            if (tid < t.heads) s.factor[tid] = 0.0f;
            mode = DRAWN;
            cluster_sync();
            continue;
        }
        if (mode == WEIGH) {
            /* what the weights miss of 1, the sure keys take up: santa__anchor */
            if (tid < t.heads) {
                double sum = 0.0, sure = 0.0;
#pragma unroll 1
                for (int part = 0; part < DRAW_PARTS; part++) {
                    const float *x = in_cta(&s.extra[part & (t.parts - 1)][tid][0], cta_of_part(p, part));
                    sum += (double)x[0];
                    sure += (double)x[1];
                }
                s.factor[tid] = sure < 0.25 ? 1.0f : (float)(1.0 + (1.0 - sum) / sure);
            }
            mode = DRAWN;
            __syncthreads();
            continue;
        }

        /* the sums of this CTA's first head are on their way beside what is known of all
           heads */
        const auto sum_of = [&](int h) {
            float x = 0.0f;
#pragma unroll
            for (int part = 0; part < DRAW_PARTS; part++) {
                const float *y = sums_of(p, t, sums, part) + (i64)h * p.dv + tid;
                x += p.sums ? __ldcg(y) : *y;
            }
            return x;
        };
        const float own_sum = t.cta < t.heads && tid < p.dv ? sum_of(t.cta) : 0.0f;
        bool any_again = false;                     /* of the heads that this thread decides */
#pragma unroll 1
        for (int h = warp; h < t.heads; h += GATHER_WARPS) {
            float x[3] = { 0.0f, 0.0f, 0.0f };
            if (p.copied) {
                const int part = lane & (DRAW_PARTS - 1);
                const float *y = in_cta(&s.extra[part & (t.parts - 1)][h][0], cta_of_part(p, part));
#pragma unroll
                for (int i = 0; i < 3; i++) x[i] = y[i];
#pragma unroll
                for (int o = 1; o < DRAW_PARTS; o <<= 1)
#pragma unroll
                    for (int i = 0; i < 3; i++) x[i] += __shfl_xor_sync(FULL, x[i], o);
            }
            if (lane) continue;
            const float found = p.copied ? found_variance(x[0], x[1], x[2], s.off[h]) : 0.0f;
            const float denominator = p.copied ? x[0] + s.fixed_share[h] : 1.0f;
            const double all = s.all[h];
            const bool again = p.copied && !p.ranks
                            && (s.bad[h] || is_too_far(p, found, denominator, all > 0.0));
            const bool bad = p.copied ? !(fabsf(denominator) <= FLT_MAX) : s.bad[h] != 0;
            double estimate = p.copied ? all * (1.0 + ((double)x[0] - (double)x[1])) : all;
            if (!(estimate > 0.0)) estimate = all * (double)denominator;
            s.again[h] = again;
            any_again |= again;
            if (p.ranks && p.copied && t.cta == 0)
                p.rank_drawn[t.row + h] = make_float4(x[0], x[1], x[2], p.rank ? 0.0f : s.fixed_share[h]);
            s.result[h] = p.ranks && p.copied ? 1.0f : bad ? __int_as_float(0x7fc00000)
                        : denominator > 0.0f ? (float)sink_share(p, t.head + h, s.top[h], estimate)
                                               / denominator * p.v_scale : 0.0f;
            s.all[h] = bad ? (double)__int_as_float(0x7fc00000) : estimate;
            if (t.cta == 0 && p.found)
                p.found[t.row + h] = make_float4(s.expected[h], found, again ? 1.0f : 0.0f,
                                                 t.range.begin < t.range.end ? 1.0f : 0.0f);
        }
        const bool redo = __syncthreads_or(any_again);
#pragma unroll 1
        for (int h = t.cta; h < t.heads; h += cluster)
            if (!s.again[h] && tid < p.dv) {
                const float x = h == t.cta ? own_sum : sum_of(h);
                /* a head without mass has nothing of a NaN that another one read */
                write_out(p, t, h, tid, s.all[h] == 0.0 ? 0.0f : x * s.result[h]);
            }
        if (p.lse && t.cta == 0 && tid < t.heads && !s.again[tid])
            write_lse(p, t, tid, !(s.all[tid] <= DBL_MAX), s.top[tid], s.all[tid]);
        cluster_sync();                             /* nobody reads another's memory any more */
        if (!redo) return;
        mode = ALWAYS;
        step = LAST;
    }
#pragma unroll 1
    for (int h = t.cta; h < t.heads; h += cluster) {
        if (!s.again[h]) continue;
        float top = MASKED, x = 0.0f;
        double sum = 0.0;
        for (int part = 0; part < DRAW_PARTS; part++) top = fmaxf(top, s.part_again[part][h].x);
#pragma unroll 1
        for (int part = 0; part < DRAW_PARTS; part++) {
            const float2 y = s.part_again[part][h];
            const float keep = y.x < MASK_LIMIT ? 0.0f : pow2(y.x - top);
            sum += y.y == y.y ? (double)keep * (double)y.y : (double)y.y;
            if (tid < p.dv) {
                const float *z = sums_of(p, t, sums, part) + (i64)h * p.dv + tid;
                x += keep * (p.sums ? __ldcg(z) : *z);
            }
        }
        const bool bad = !(sum <= DBL_MAX);
        if (tid < p.dv)
            write_out(p, t, h, tid,
                      bad ? __int_as_float(0x7fc00000)
                      : sum > 0.0 ? (float)((double)x / sum * sink_share(p, t.head + h, top, sum))
                                    * p.v_scale : 0.0f);
        if (tid == 0) write_lse(p, t, h, bad, top, sum);
    }
    cluster_sync();
}

/* What a mean of stats is made from, over the parts of a call so far; by one thread. */
__device__ __forceinline__ i64 mean_sum(const params &p, int i, i64 x) {
    return p.means ? p.means[i] += x : x;
}

/* As k_stats for a row drawn by k_draw. Keys that are read exactly count once for a group; a
   head that was done again has read all of its keys.
   Grid: as k_stats. The means of variances are one thread's. */
__global__ void __launch_bounds__(256) k_draw_stats(const __grid_constant__ params p) {
    const int kv = blockIdx.x, b = blockIdx.y, lists = p.group / p.together;
    proxy_range range;
    int first, last;
    const bool is_short = is_short_row(p, b, first, last), copied_row = p.copied && !is_short;
    if (copied_row) range = copied_range(p, b);
    else {
        const key_gap r = gap_of(p, b);             /* counts of keys alone matter */
        range.begin = first + (r.gap_end - r.gap);
        range.end = last;
        range.from = range.to = range.begin;
    }
    const i64 keys = range.end - range.begin, copied = range.to - range.from, fixed = keys - copied;
    const i64 row = (i64)b * p.heads + kv * p.group;
    i64 by_head = 0, by_group = 0, draws = 0, redone = 0, rescued = 0, rescues = 0;
#pragma unroll 1
    for (int g = 0; g < lists && !is_short; g++) {
        const int n = p.draws[row + g * p.together];
        const int *list = p.keys + ((i64)b * (p.heads / p.together) + kv * lists + g) * p.max_draws;
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += 256) {
            const int j = list[i];
            bool before = false;
            draws += j != -1;
            if (j < 0) continue;
            by_head += p.together;
#pragma unroll 1
            for (int h = 0; h < g && !before; h++)
                before = is_drawn(p, list - (g - h) * p.max_draws, p.draws[row + h * p.together], j);
            by_group += !before;
        }
    }
#pragma unroll 1
    for (int g = 0; p.found && g < p.group && !is_short; g++) {
        redone += p.found[row + g].z > 0.0f;
        rescued += p.rescued[row + g];
        rescues += p.ranks ? p.found[row + g].w > 1.0f : p.rescued[row + g] > 0;
    }
    if (p.list_rest) draws = 0;
    const auto add = [](int64_t *field, i64 n) { atomicAdd((u64 *)field, (u64)n); };
    add(&p.stats->v_rows_head, by_head);
    add(&p.stats->draws, draws);
    if (!redone) add(&p.stats->v_rows_read, by_group);
    if (!redone && copied_row) {
        add(&p.stats->k_rows_read, by_group);
        add(&p.stats->k_features_read, by_group * p.d);
    }
    if (copied_row) add(&p.stats->k_features_head, by_head * p.d);
    if (threadIdx.x) return;
    /* rows of K and V that are read whole, and for each head */
    const bool all = redone || !copied_row;
    const i64 once = all ? keys : fixed + rescued,
              each = all && !redone ? keys * p.group : fixed * (p.group - redone) + keys * redone;
    add(&p.stats->rows, p.group);
    add(&p.stats->keys, keys);
    add(&p.stats->k_rows_read, once);
    add(&p.stats->k_features_read, once * p.d);
    add(&p.stats->k_features_head, (each + rescued) * p.d);
    if (copied_row || is_short) {
        add(&p.stats->v_rows_read, all ? keys : fixed);
        add(&p.stats->v_rows_head, each);
    }
    if (is_short && keys) add(&p.stats->dense_rows, p.group);
    add(&p.stats->rescued_rows, rescues);
    add(&p.stats->proxy_rows_read, copied);
    add(&p.stats->redone_rows, redone);
    if (kv || b || p.q_index < p.q_len - 1 || !p.found) return;
    /* of all rows that have keys, in whole millionths, as the CPU has it */
    i64 expected = 0, found = 0, count = 0;
    const i64 heads = (i64)p.batch * p.heads;
#pragma unroll 1
    for (i64 row = -p.q_index * heads; row < heads; row++) {
        const float4 x = p.found[row];
        if (!(x.w > 0.0f)) continue;
        count++;
        expected += (i64)(fmin((double)x.x, 1e6) * 1e6);
        found += (i64)(fmin((double)x.y, 1e6) * 1e6);
        p.stats->expected_variance_max = fmax(p.stats->expected_variance_max, (double)x.x);
        p.stats->found_variance_max = fmax(p.stats->found_variance_max, (double)x.y);
    }
    count = mean_sum(p, 0, count);
    expected = mean_sum(p, 1, expected);
    found = mean_sum(p, 2, found);
    if (count == 0) return;
    p.stats->expected_variance = quotient(1e-6 * (double)expected, (double)count);
    p.stats->found_variance = quotient(1e-6 * (double)found, (double)count);
}

/* ------------------------------------------------------------------------- >>select-kernel */

/* Order of scores as of unsigned numbers, none is 0; -0 is as 0. */
__device__ __forceinline__ unsigned sortable(float x) {
    const unsigned u = __float_as_uint(x);
    return u & 0x80000000u ? 0u - u : u | 0x80000000u;
}

/* How often a loop's body is in the code: once where it runs rarely. */
template <int N> struct copies { enum { COUNT = N }; };

/* Of a head the keys of highest scores, by those that a scores kernel has left: p.samples of
   them, or, for top-p, the fewest whose mass reaches p.top_p; of equal ones the first. To
   p.keys in ascending order, p.draws and p.list_rest; p.list_ranges: those that a copy leaves
   out. Scores lie there as they are, or, of a copy in bytes, as whole sixteenths of an octave
   below their block's highest.
     bound   where there are p.samples blocks or more, keys below the p.samples'th highest of
             their maxima are out, and blocks that have no others are not read
     bins    a CTA counts its keys by how far they are below the head's highest: 2048 steps, of
             a width that follows the blocks' maxima. The amount is reached in the last bin
     mark    a bit for each key of the bins before that. Keys of the last bin, a few dozen, go
             to a list in all CTAs, whose threads rank them by score and number
     emit    the numbers of marked keys, behind those of the CTAs before
   A last bin of more than 512 keys, as of equal scores, is divided by further passes. Masses
   are counted in whole numbers, so that their sums do not depend on order.
   Grid: (query head * CTAs of a cluster, batch); a CTA has a part of the head's blocks. A warp
   takes 16 blocks, of which it reads those that may count, 16 bytes a lane.
   Reads, per CTA: blocks * 8 bytes, its part of the stash twice; writes the keys.
   Latency-bound: 24 us on an H200 if keys are few. Where all multiprocessors have many, by
   instructions: for 32 keys 31 of a warp where scores are bytes, 47 where they are f32.
   Barriers: those of cta_scan; between counts and who reads them; of the cluster when counts,
   and when lists are whole. Behind the second one no CTA looks into another. */
template <bool BYTES> __device__ __forceinline__ void select_keys(const params &p, top_memory &s) {
    enum { WARPS = SELECT_WARPS, KEYS = BYTES ? 16 : 4, LANES = BLOCK / KEYS, PER = 32 / LANES };
    enum { AHEAD = BYTES ? 2 : 4, LAST = SELECT_BINS - 1 };
    const int cluster = 1 << p.cluster_shift, cta = cluster > 1 ? cta_in_cluster() : 0;
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), b = blockIdx.y,
              head = (int)(blockIdx.x >> p.cluster_shift);
    const i64 row = (i64)b * p.heads + head;
    int begin, end, position, from, to;
    key_range(p, b, begin, end, position);
    from = begin;
    to = end;
    if (p.proxy) {
        const proxy_range range = copied_range(p, b);
        from = range.from;
        to = range.to;
    }
    const int first = from / BLOCK, blocks = from < to ? (to - 1) / BLOCK + 1 - first : 0;
    const int part = (int)(((i64)blocks + cluster - 1) >> p.cluster_shift),
              lo = min(cta * part, blocks), hi = min(lo + part, blocks);
    const float2 *const sums = p.block_sums + row * p.blocks + first;
    const char *const stash = p.stash + (row * p.blocks + first) * BLOCK * (BYTES ? 1 : 4);
    const bool by_mass = !BYTES && p.method == SANTA_TOP_P && !p.wants;
    const auto clear = [&](bool masses) {
        *(uint4 *)&s.count[4 * tid] = make_uint4(0, 0, 0, 0);
        if (masses)
#pragma unroll
            for (int i = 0; i < 4; i++) s.mass[tid + i * SELECT_THREADS] = 0;
    };
    const auto meet = [&] { if (cluster > 1) cluster_sync(); else __syncthreads(); };
    clear(true);                                    /* or the marks */
    if (tid == 0) {
        s.cut = s.own_mass = 0;
        s.own_above = 0;
        s.listed = 0;
    }
    wait_for_previous();                            /* from here on the scores are complete */
    launch_dependents();
    const int wanted = p.wants ? p.wants[row] : p.samples;

    float m = MASKED, low = FLT_MAX;
#pragma unroll 4
    for (int i = tid; i < blocks; i += SELECT_THREADS) {
        const float x = sums[i].x;
        m = fmaxf(m, x);
        if (x >= MASK_LIMIT) low = fminf(low, x);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
        low = fminf(low, __shfl_xor_sync(FULL, low, o));
    }
    if (lane == 0) { s.tops[warp] = m; s.lows[warp] = low; }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        m = fmaxf(m, s.tops[i]);
        low = fminf(low, s.lows[i]);
    }
    /* steps below m; the last bin has all that are lower. Without a bound keys below all maxima
       count */
    const bool bounded = !by_mass && blocks >= wanted;
    const float span = fminf(fmaxf(m - low, 1e-30f), 1e37f) * (bounded ? 1.0f : blocks < 64 ? 16.0f : 4.0f),
                scale = quotient_of_floats((float)LAST, span),
                width = (float)((double)span * (1.0 / LAST)), top16 = rintf(16.0f * m);
    const auto steps = [&](float x) { return fminf((m - x) * scale, (float)LAST); };
    const auto bin_at = [](float step) {            /* 2^23 more leaves the integer in the low bits */
        return __float_as_uint(__fadd_rd(step, 8388608.0f)) - 0x4b000000u;
    };
    const auto first_bin = [&](float top) {         /* of a block */
        return BYTES ? (int)fminf(top16 - rintf(16.0f * top), 2046.0f) : (int)bin_at(steps(top));
    };

    double total = 0.0, chosen = 0.0;
#pragma unroll 4
    for (int i = tid; i < blocks; i += SELECT_THREADS) {
        const float2 x = sums[i];
        total += block_mass(x, m);
        if (bounded && x.x >= MASK_LIMIT) atomicAdd(&s.count[first_bin(x.x)], 1u);
    }
    cta_scan<WARPS>(total, s.scratch.wide, &total); /* its barriers also order counts */
    const bool bad = !(total == total) || isinf(total);
    if (bad || m < MASK_LIMIT || (p.wants && wanted == 0)) {
        if (tid || cta) return;
        p.draws[row] = 0;
        p.list_rest[row] = { bad ? (double)__int_as_float(0x7fc00000) : total, m };
        if (p.proxy) ((list_range *)p.list_ranges)[row] = { from, to };
        return;
    }

    /* finds s.bin, where `want` is reached, how much of that is wanted, how many keys it has,
       and how many of them in CTAs before this one; false if all are too few */
    uint4 counted;
    const auto reach = [&](u64 want, bool joined) {
        uint4 n = *(const uint4 *)&s.count[4 * tid], prior = make_uint4(0, 0, 0, 0);
        u64 a[4], mass[4], sum;
        if (by_mass)
#pragma unroll
            for (int i = 0; i < 4; i++) mass[i] = s.mass[4 * tid + i];
        if (joined && cluster > 1) {
            uint4 x[SELECT_CLUSTER];
#pragma unroll
            for (int r = 0; r < SELECT_CLUSTER; r++)
                x[r] = *(const uint4 *)in_cta(&s.count[4 * tid], min(r, cluster - 1));
            n = prior;
#pragma unroll
            for (int r = 0; r < SELECT_CLUSTER; r++) {
                if (r == cta) prior = n;
                if (r < cluster) n = make_uint4(n.x + x[r].x, n.y + x[r].y, n.z + x[r].z, n.w + x[r].w);
            }
#pragma unroll 1
            for (int r = 0; r < cluster && by_mass; r++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mass[i] += r == cta ? 0 : in_cta(&s.mass[4 * tid], r)[i];
        }
        counted = n;
        a[0] = by_mass ? mass[0] : n.x;
        a[1] = by_mass ? mass[1] : n.y;
        a[2] = by_mass ? mass[2] : n.z;
        a[3] = by_mass ? mass[3] : n.w;
        const u64 own = a[0] + a[1] + a[2] + a[3];
        u64 before = cta_scan<WARPS>(own, s.scratch.whole, &sum) - own;
        const bool found = sum >= want && want > 0;
        if (found && before < want && want <= before + own) {
            int i = 0;
#pragma unroll
            for (int k = 0; k < 3; k++) if (i == k && before + a[k] < want) { before += a[k]; i++; }
            s.bin = 4 * tid + i;
            s.want = want - before;
            s.have = i == 0 ? n.x : i == 1 ? n.y : i == 2 ? n.z : n.w;
            s.prior = i == 0 ? prior.x : i == 1 ? prior.y : i == 2 ? prior.z : prior.w;
        }
        __syncthreads();
        return found;
    };
    /* of blocks with bins up to `most` f(block, entry, the block's highest, 16 bytes of its
       stash); AT_ONCE: copies of f in the code */
    const auto sweep = [&](auto at_once, int start, int stop, int most, auto f) {
        enum { AT_ONCE = decltype(at_once)::COUNT };
#pragma unroll 1
        for (int base = start + warp * SELECT_SPAN; base < stop; base += WARPS * SELECT_SPAN) {
            float top = MASKED;
            if (lane < SELECT_SPAN && base + lane < stop) top = sums[base + lane].x;
            const bool here = top >= MASK_LIMIT && first_bin(top) <= most;
            const unsigned all = __ballot_sync(FULL, here);
            const int n = __popc(all);
            if (here) s.pick[warp][__popc(all & ((1u << lane) - 1))] = (unsigned char)lane;
            __syncwarp();
#pragma unroll 1
            for (int i = 0; i < n; i += PER * AHEAD) {
                int at[AHEAD];
                uint4 w[AHEAD];
                const int entry = KEYS * (lane & (LANES - 1));
#pragma unroll
                for (int u = 0; u < AHEAD; u++) {
                    const int place = i + u * PER + lane / LANES;
                    at[u] = place < n ? s.pick[warp][place] : -1;
                    const i64 from = ((i64)(base + at[u]) * BLOCK + entry) * (BYTES ? 1 : 4);
                    if (at[u] >= 0) w[u] = *(const uint4 *)(stash + from);
                }
#pragma unroll AT_ONCE
                for (int u = 0; u < AHEAD; u++) {
                    int from = at[0];
                    uint4 y = w[0];
#pragma unroll
                    for (int k = 1; k < AHEAD; k++) if (k == u) { from = at[k]; y = w[k]; }
                    const float x = __shfl_sync(FULL, top, max(from, 0));
                    if (from >= 0) f(base + from, entry, x, y);
                }
            }
            __syncwarp();                           /* all have read their picks */
        }
    };
    const auto word_of = [](uint4 w, int i) { return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w; };
    const double unit = mass_unit(blocks);
    const auto mass_of = [&](float x) { return (u64)((double)pow2(x - m) * unit); };

    int most = LAST;
    if (bounded && reach((u64)wanted, false)) most = s.bin;
    if (bounded) {
        clear(false);
        __syncthreads();
    }
    sweep(copies<AHEAD>(), lo, hi, most, [&](int, int, float top, uint4 w) {
        if constexpr (BYTES) {
            const int zero = first_bin(top), last = most >= 2046 ? 254 : min(most - zero, 254);
            if (zero <= 2046 - 254)
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const int code = (int)(word_of(w, i / 4) >> 8 * (i & 3) & 255u);
                    atomicAdd(&s.count[zero + (code <= last ? code : SELECT_BINS - zero)], 1u);
                }
            else
#pragma unroll 1
                for (int i = 0; i < 16; i++) {
                    const int code = (int)(word_of(w, i / 4) >> 8 * (i & 3) & 255u);
                    atomicAdd(&s.count[code <= last ? min(zero + code, 2046) : (int)SELECT_BINS], 1u);
                }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float x = __uint_as_float(word_of(w, i)), step = steps(x);
                const bool here = x >= MASK_LIMIT && step < (float)(most + 1);
                const unsigned bin = here ? bin_at(step) : (unsigned)SELECT_BINS;
                atomicAdd(&s.count[bin], 1u);
                if (by_mass && here) add_whole(&s.mass[bin], mass_of(x));
            }
        }
    });
    meet();
    /* keys of bins before `bin` are chosen, and of it `need`, in keys or mass, of the first
       `have` */
    int bin = SELECT_BINS;
    unsigned have = 0, prior = 0;
    u64 need = 0;
    if (reach(by_mass ? (u64)ceil(p.top_p * total * unit) : (u64)wanted, true)) {
        bin = s.bin;
        have = s.have;
        need = s.want;
        prior = s.prior;
        if (!by_mass && need == have) { bin++; have = 0; }
    }
    if (BYTES)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const double mass = (double)pow2(-0.0625f * (float)(4 * tid + i));
            if (4 * tid + i < bin) chosen += mass * (double)word_of(counted, i);
            else if (4 * tid + i == bin && have) chosen += mass * (double)need;
        }
    /* order within the bin: score, then key. Those from `over` on are chosen, those from
       `least` on may be */
    const int key_bits = 32 - __clz(blocks * BLOCK - 1);
    const u64 last_key = ((u64)1 << key_bits) - 1;
    const auto order_of = [&](float x, int key) {
        return (BYTES ? 0 : (u64)sortable(x) << key_bits) | (last_key - (u64)key);
    };
    const auto score_of = [&](u64 order) {
        const unsigned u = (unsigned)(order >> key_bits);
        return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : 0u - u);
    };
    u64 least = BYTES || bin == LAST ? 0 : order_of(m - (float)(bin + 2) * width, (int)last_key),
        over = BYTES ? last_key + 1 : order_of(m - (float)(bin - 1) * width, 0) + 1;
    /* of 16 bytes the keys before the bin, and those in it; then the order of one */
    struct two_sets { unsigned before, inside; };
    const auto parted = [&](float top, uint4 w) {
        two_sets x = { 0, 0 };
        if constexpr (BYTES) {
            const int zero = first_bin(top), below = bin > 2046 ? 255 : min(bin - zero, 255),
                      end_of_bin = bin >= 2046 ? 255 : min(below + 1, 255);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x.before |= bytes_below(word_of(w, i), below) << 4 * i;
                x.inside |= bytes_below(word_of(w, i), end_of_bin) << 4 * i;
            }
            x.inside &= ~x.before;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float score = __uint_as_float(word_of(w, i)), step = steps(score);
                const bool here = score >= MASK_LIMIT, is_before = step < (float)bin;
                if (here && is_before) x.before |= 1u << i;
                if (here && !is_before && step < (float)(bin + 1)) x.inside |= 1u << i;
            }
        }
        return x;
    };
    const auto score_at = [&](uint4 w, int i) { return __uint_as_float(word_of(w, i)); };
#pragma unroll 1
    while (have > SELECT_THREADS) {
        meet();                                     /* all have read the counts */
        clear(by_mass);
        __syncthreads();
        const int shift = max(64 - __clzll((i64)(over - 1 - least)) - 11, 0);
        sweep(copies<1>(), lo, hi, bin, [&](int block, int entry, float top, uint4 w) {
#pragma unroll 1
            for (unsigned left = parted(top, w).inside; left; left &= left - 1) {
                const int i = __ffs((int)left) - 1;
                const u64 order = order_of(score_at(w, i), block * BLOCK + entry + i);
                if (order < least || order >= over) continue;
                const int at = (int)((over - 1 - order) >> shift);
                atomicAdd(&s.count[at], 1u);
                if (by_mass) add_whole(&s.mass[at], mass_of(score_at(w, i)));
            }
        });
        meet();
        if (!reach(need, true)) { over = least; have = 0; break; }    /* by rounding */
        over -= (u64)s.bin << shift;
        if (over - least > (u64)1 << shift) least = over - ((u64)1 << shift);
        need = s.want;
        have = s.have;
        prior = s.prior;
        if (!by_mass && need == have) { over = least; have = 0; }
    }

    /* marks, and the list; of a part that is too large, or where masses need the room, only the
       list */
    const bool fits = !by_mass && hi - lo <= SELECT_TILE;
    int above = 0;
    u64 mass = 0;
    const auto mark = [&](auto at_once, int start, int stop, bool marks, bool lists) {
        sweep(at_once, start, stop, min(bin, (int)LAST), [&](int block, int entry, float top, uint4 w) {
            two_sets x = parted(top, w);
#pragma unroll 1
            for (; x.inside; x.inside &= x.inside - 1) {
                const int i = __ffs((int)x.inside) - 1;
                const u64 order = order_of(score_at(w, i), block * BLOCK + entry + i);
                if (order >= over) x.before |= 1u << i;
                else if (lists && have && order >= least) {
                    const unsigned at = prior + atomicAdd(&s.listed, 1u);
#pragma unroll 1
                    for (int r = 0; r < cluster; r++)
                        *(cluster > 1 ? in_cta(&s.list[at], r) : &s.list[at]) = order;
                }
            }
            const unsigned bits = x.before;
            if (!BYTES && lists)
#pragma unroll 1
                for (unsigned left = bits; left; left &= left - 1)
                    mass += (u64)((double)pow2(score_at(w, __ffs((int)left) - 1) - m) * unit + 0.5);
            above += __popc(bits);
            if (marks && bits) {
                const int at = (block - start) * BLOCK + entry;
                atomicOr(&s.marks[at >> 5], bits << (at & 31));
            }
        });
    };
    mark(copies<AHEAD>(), lo, hi, fits, true);
    above = __reduce_add_sync(FULL, above);
    if (!BYTES)
#pragma unroll
        for (int o = 16; o; o >>= 1) mass += __shfl_xor_sync(FULL, mass, o);
    if (lane == 0) {
        atomicAdd(&s.own_above, above);
        if (!BYTES) atomicAdd(&s.own_mass, mass);
    }
    __syncthreads();
    if (tid < cluster) {
        *(cluster > 1 ? in_cta(&s.above[cta], tid) : &s.above[cta]) = s.own_above;
        *(cluster > 1 ? in_cta(&s.masses[cta], tid) : &s.masses[cta]) = s.own_mass;
    }
    meet();

    /* the order from which on keys of the list are chosen; by rounding of masses all of them */
    int before = 0, listed = 0;
    if (have) {
        const u64 order = tid < (int)have ? s.list[tid] : 0;
        u64 own = 1, ahead = 0;
        if (by_mass) {
            own = mass_of(score_of(order));
            s.mass[tid] = own;
            __syncthreads();
        }
        if (tid < (int)have) {
#pragma unroll 4
            for (int i = 0; i < (int)have; i++)
                if (s.list[i] > order) ahead += by_mass ? s.mass[i] : 1;
            if (ahead < need && need <= ahead + own) s.cut = order;
        }
        __syncthreads();
        const bool taken = tid < (int)have && order >= s.cut;
        const int key = (int)(last_key - (order & last_key));
        if (fits && taken && key >= lo * BLOCK && key < hi * BLOCK)
            atomicOr(&s.marks[(key - lo * BLOCK) >> 5], 1u << (key & 31));
        before = __syncthreads_count(taken && key < lo * BLOCK);
        listed = __syncthreads_count(taken);
        if (!BYTES && taken) chosen = (double)pow2(score_of(order) - m);
        over = s.cut;
        have = 0;
    }
    int at = before, all = listed;
    for (int r = 0; r < cluster; r++) {
        if (r < cta) at += s.above[r];
        all += s.above[r];
    }
    int *const keys = p.keys + row * p.max_draws;
#pragma unroll 1
    for (int start = lo; start < hi; start += SELECT_TILE) {
        const int stop = min(start + SELECT_TILE, hi), words = 2 * (stop - start),
                  each_warp = (words + 32 * WARPS - 1) / (32 * WARPS) * 32, own = warp * each_warp;
        if (!fits) {
            __syncthreads();
            clear(true);
            __syncthreads();
            mark(copies<1>(), start, stop, true, false);
            __syncthreads();
        }
        int n = 0;
#pragma unroll 1
        for (int i = own + lane; i < min(own + each_warp, words); i += 32) n += __popc(s.marks[i]);
        n = __reduce_add_sync(FULL, n);
        if (lane == 0) s.marked[warp] = n;
        __syncthreads();
        int to_write = at;
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            if (i < warp) to_write += s.marked[i];
            at += s.marked[i];
        }
#pragma unroll 1
        for (int i = own; i < min(own + each_warp, words); i += 32) {
            unsigned w = i + lane < words ? s.marks[i + lane] : 0;
            int up_to = __popc(w);
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const int y = __shfl_up_sync(FULL, up_to, o);
                if (lane >= o) up_to += y;
            }
            int place = to_write + up_to - __popc(w);
            to_write += __shfl_sync(FULL, up_to, 31);
            for (; w; w &= w - 1)
                keys[place++] = (first + start) * BLOCK + 32 * (i + lane) + __ffs((int)w) - 1;
        }
    }
    if (cta) return;
    cta_scan<WARPS>(chosen, s.scratch.wide, &chosen);
    if (tid) return;
    if (!BYTES) {                                   /* unit is a power of two: 1 / unit by its bits */
        u64 marked = 0;
#pragma unroll 1
        for (int r = 0; r < cluster; r++) marked += s.masses[r];
        chosen += (double)marked * __hiloint2double(0x7fe00000 - __double2hiint(unit), 0);
    }
    p.draws[row] = all;
    p.list_rest[row] = { fmax(total - chosen, 0.0), m };
    if (p.proxy) ((list_range *)p.list_ranges)[row] = { from, to };
}

__global__ void __launch_bounds__(SELECT_THREADS, 2) k_top(const __grid_constant__ params p) {
    SHARED(s, top_memory);
    if (p.stash_type == SANTA_STASH_F32) select_keys<false>(p, s); else select_keys<true>(p, s);
}

/* top-k over ranks, in two steps with an exchange between them. TELL: the scores of the keys
   that k_top has taken of those here, as numbers whose order is theirs. PLACE: which of these
   keys stay; what the others have joins p.list_rest.
   Grid: (query head, batch), 256 threads. */
__global__ void __launch_bounds__(PORTION) k_rank_best(const __grid_constant__ params p) {
    SHARED(s, best_keys_memory);
    const int b = blockIdx.y, head = blockIdx.x, tid = threadIdx.x, n = p.rescue_keys;
    const i64 row = (i64)b * p.heads + head, apart = (i64)p.batch * p.heads * n;
    const int count = p.draws[row];
    int *const keys = p.keys + row * p.max_draws;
    const bool bytes = p.stash_type != SANTA_STASH_F32;
    const i64 first = row * p.blocks;
    const float top = p.list_rest[row].top;
    float score = 0.0f;                             /* of the last key asked for, in base 2 */
    const auto order_of = [&](int key) {
        if (!bytes) return sortable(score = ((const float *)p.stash)[first * BLOCK + key]);
        /* whole sixteenths: those of k_top */
        const float x = rintf(16.0f * p.block_sums[first + key / BLOCK].x)
                      - (float)((const unsigned char *)p.stash)[first * BLOCK + key];
        score = top + 0.0625f * (x - rintf(16.0f * top));
        return (unsigned)(fminf(fmaxf(x, -8e6f), 8e6f) + 16e6f);
    };
    if (p.rank_step == TELL) {
#pragma unroll 1
        for (int i = tid; i < n; i += PORTION)
            ((unsigned *)p.rank_best)[row * n + i] = i < count ? order_of(keys[i]) : 0u;
        return;
    }
    unsigned least;
    const int most = best_of_ranks(p, s, (const unsigned *)p.rank_bests + row * n, apart, n, &least);
    int ties = most - s.counts[2], kept = 0;        /* the first of equal ones */
    double dropped = 0.0;
#pragma unroll 1
    for (int base = 0; base < count; base += PORTION) {
        const int key = base + tid < count ? keys[base + tid] : 0;
        const unsigned x = base + tid < count ? order_of(key) : 0u;
        int equal, taken;
        const bool tie = x && x == least;
        const int before = cta_scan<GATHER_WARPS>((int)tie, s.warp_count, &equal);
        const bool stays = x > least || (tie && before <= ties);
        const int at = cta_scan<GATHER_WARPS>((int)stays, s.warp_count, &taken);
        if (stays) keys[kept + at - 1] = key;       /* all have read theirs */
        else if (x) dropped += (double)pow2(score - top);
        kept += taken;
        ties -= equal;
    }
    cta_scan<GATHER_WARPS>(dropped, s.scratch, &dropped);
    if (tid) return;
    p.draws[row] = kept;
    p.list_rest[row].sum += dropped;
}

__device__ int heavy_of_ranks(const params &p, int b);

/* How many keys of this rank methods that select take: the bits of the last score taken, 8 at a
   time, from the scores of all ranks by these, with an exchange behind each step but the last.
   Grid: (query head, batch, CTAs), 256 threads. Reads all scores, but in the last step. */
__global__ void __launch_bounds__(PORTION) k_rank_bins(const __grid_constant__ params p) {
    SHARED(s, bins_memory);
    const int b = blockIdx.y, head = blockIdx.x, tid = threadIdx.x, step = p.rank_step;
    const i64 row = (i64)b * p.heads + head, apart = (i64)p.batch * p.heads;
    const bool by_mass = p.method == SANTA_TOP_P;
    rank_share all = {};
    choice_of_ranks c = { 0, 0, p.wanted, 0 };
    if (by_mass) {
        all = rank_share_of(p, row);
        c.want *= all.total;
    } else if (p.method == SANTA_VATTENTION) c.want = (double)heavy_of_ranks(p, b);
    if (step > 0) {
        c = p.choices[(step - 1) * apart + row];
        if (tid == 0) { s.chosen = s.lowest = -1; s.own = 0; }
        const int bin = 255 - tid;
        int count = 0, before = 0, here = 0;
        double sum = 0.0, reached, whole;
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++) {
            const bins_of_rank &x = p.all_bins[r * apart + row];
            const int n = max(x.count[bin], 0);
            if (r == p.rank) { before = count; here = n; }
            count += n;
            if (by_mass) sum += (double)x.sum[bin] * p.rank_masses[(r * apart + row) * p.mass_doubles + 2];
        }
        const double amount = by_mass ? sum : (double)count;
        reached = cta_scan<GATHER_WARPS>(amount, s.scratch, &whole);
        if (count && reached >= c.want && reached - amount < c.want) atomicMax(&s.chosen, bin);
        if (count) atomicMax(&s.lowest, tid);
        __syncthreads();
        /* where masses fall short by rounding, the last one */
        const int chosen = s.chosen >= 0 ? s.chosen : 255 - s.lowest;
        if (bin > chosen && here) atomicAdd(&s.own, here);
        __syncthreads();
        if (bin == chosen) {
            c.want -= s.chosen >= 0 ? reached - amount : c.want - amount;
            c.value |= (unsigned)chosen << (32 - 8 * step);
            c.mask |= 255u << (32 - 8 * step);
            c.own += s.own;
            const double each = quotient(amount, (double)count),
                         take = each > 0.0 ? ceil(quotient(c.want, each)) : 1.0;
            const int ties = take < 1.0 ? 1 : take < (double)count ? (int)take : count;
            if (step == 4 && blockIdx.z == 0) p.wants[row] = c.own + min(max(ties - before, 0), here);
            s.met = c;
        }
        if (s.lowest < 0 && tid == 0) {             /* nothing is unmasked */
            if (step == 4 && blockIdx.z == 0) p.wants[row] = 0;
            s.met = c;
        }
        __syncthreads();
        c = s.met;
    }
    if (tid == 0 && blockIdx.z == 0) p.choices[step * apart + row] = c;
    if (step == 4) return;
    s.count[tid] = 0;
    s.sum[tid] = 0;
    __syncthreads();
    int begin, end, position;
    key_range(p, b, begin, end, position);
    const float *const scores = (const float *)p.stash + row * p.blocks * BLOCK;
    const double unit = mass_unit(p.blocks);
#pragma unroll 4
    for (i64 i = begin + (i64)blockIdx.z * PORTION + tid; i < end; i += (i64)gridDim.z * PORTION) {
        const float x = scores[i];
        const unsigned code = sortable(x), bin = code >> (24 - 8 * step) & 255u;
        if (!(x >= MASK_LIMIT) || (code & c.mask) != c.value) continue;
        atomicAdd(&s.count[bin], 1);
        if (by_mass) add_whole(&s.sum[bin], (u64)((double)pow2(x - all.m) * unit));
    }
    __syncthreads();
    bins_of_rank &out = p.rank_bins[step * apart + row];
    if (s.count[tid]) atomicAdd(&out.count[tid], s.count[tid]);
    if (s.sum[tid]) atomicAdd(&out.sum[tid], s.sum[tid]);
}

/* --------------------------------------------------------------------------- >>list-kernel */

/* Exact attention over listed keys. What makes a list, a caller or a kernel of another section,
   fills p.list, p.list_lens, p.list_weights, p.list_ranges and their shape, see params, and
   launches launch_list: out and lse of query row p.q_index.
   A list belongs to p.list_heads neighbouring query heads of one KV head: the group, or one.
   Its entries are keys of the sequence, in any order:
     below 0             nothing there, skipped
     masked for the row  skipped: causal, window
     past the sequence   NaN, as is a key on a bad page
   Entry i counts w[i] * exp(score); w = 0 is skipped, one below 0, infinite or NaN gives NaN. A
   key that is there twice counts twice. Rows of keys that are skipped are not read.
   p.list_ranges adds for each list the first and the last keys of those that the row sees, with
   weight 1: they need no entries. A key in both is there once. p.pieces adds keys that lie
   together in the index of keys by bucket, see >>route-kernel; each is between those of the
   ranges, or NaN. Lists may be made by the kernel before: list, list_lens, list_weights and
   list_ranges are read behind the wait for it. What lies past list_lens may be anything. */

/* A lane's key: bytes from p.k and p.v to its rows, NO_ROW if they are not to be read; what is
   added to its scores, in base 2: MASKED, or NaN. */
struct listed_key { int key; i64 k, v; float bias; };

/* Entry i of x as it lies in memory; past the end any other one, so that it can be asked for
   before x is known. */
struct raw_entry { int key; float weight; };
__device__ __forceinline__ raw_entry load_entry(const params &p, const int *keys, const float *weights,
                                                int i) {
    i = min(i, p.list_most - 1);
    if (i < 0) return { -1, 0.0f };
    return { keys[i], weights ? weights[i] : 1.0f };
}

/* The pieces of a list, a lane each; what a few of them are can be asked for before x is
   known. */
struct piece_window { const list_piece *all; const int *keys; list_piece own; };
__device__ __forceinline__ piece_window load_pieces(const params &p, int b, int item, int kv) {
    piece_window w = { nullptr, nullptr, { 0, 0 } };
    key_index index;
    if (!p.pieces || !find_index(p, b, kv, index)) return w;
    w.all = p.piece_table + (p.ranges_batch * b + item) * p.buckets;
    w.keys = index.key;
    w.own = w.all[min((int)(threadIdx.x & 31), p.buckets - 1)];
    return w;
}

/* As load_entry, for what lies in pieces; all lanes of a warp, whose i are less than 32 apart,
   the first one's the least. */
__device__ __forceinline__ raw_entry find_in_pieces(const listed &x, const piece_window &w, int i,
                                                    raw_entry y) {
    if (!x.pieces) return y;
    const int lane = threadIdx.x & 31, place = i - (x.all - x.pieces);
    const bool here = place >= 0 && place < x.pieces;
    if (!__any_sync(FULL, here)) return y;
    list_piece own = w.own;
    if (x.piece_count > 32) {                       /* 32 from the one with the first lane's key on */
        const int first = max(__shfl_sync(FULL, place, 0), 0);
        int start = 0, count = x.piece_count;
        while (count > 1) {
            const int step = (count + 31) / 32, at = start + lane * step;
            const unsigned below = __ballot_sync(FULL, at < start + count && w.all[at].at <= first);
            const int end = start + count;
            start += (__popc(below) - 1) * step;
            count = min(step, end - start);
        }
        own = start + lane < x.piece_count ? w.all[start + lane] : list_piece{ INT32_MAX, 0 };
    } else if (lane >= x.piece_count) own.at = INT32_MAX;
    int k = 0;
#pragma unroll
    for (int step = 16; step; step /= 2)
        if (__shfl_sync(FULL, own.at, k + step) <= place) k += step;
    const int at = __shfl_sync(FULL, own.at, k), first = __shfl_sync(FULL, own.first, k);
    if (!here) return y;
    const int key = w.keys[first + place - at];
    return { key >= x.from && key < x.to ? key : INT32_MAX, 1.0f };
}

__device__ __forceinline__ listed_key find_listed(const params &p, const listed &x, int b, int kv, int i,
                                                  raw_entry y) {
    listed_key out = { -1, NO_ROW, NO_ROW, MASKED };
    if (i >= x.all) return out;
    if (i >= x.count && i < x.all - x.pieces) {
        i -= x.count;
        y.key = i < x.front ? x.begin + i : x.end - x.back + i - x.front;
        y.weight = 1.0f;
    }
    out.key = y.key;
    const bool wrong = y.key >= x.len || !(y.weight >= 0.0f && y.weight <= FLT_MAX);
    if (y.key < 0 || y.weight == 0.0f) return out;
    if (wrong) { out.bias = __int_as_float(0x7fc00000); return out; }
    if (y.key < x.begin || y.key >= x.end) return out;
    const i64 k = row_offset(p, p.k_stride, b, y.key);
    out.bias = k == NO_ROW ? __int_as_float(0x7fc00000) : x.weights ? log2f(y.weight) : 0.0f;
    if (k == NO_ROW) return out;
    out.k = k + kv * p.k_stride[2];
    out.v = row_offset(p, p.v_stride, b, y.key) + kv * p.v_stride[2];
    return out;
}

/* A list of vAttention: the keys that are read exactly, the sample, the rest of the sample,
   each from a new portion of p.list_keys keys on. */
__device__ __forceinline__ int whole_portions(const params &p, int keys) {
    return (keys + p.list_keys - 1) / p.list_keys;
}
/* The first of pass 0, which has all but the rest of the sample; of pass 1; the end. */
__device__ __forceinline__ int first_portion(const params &p, const va_row &x, int pass) {
    const int whole = whole_portions(p, x.fixed) + whole_portions(p, x.base ? x.base : x.budget);
    return pass == 0 ? 0 : pass == 1 ? whole : whole + (x.base ? whole_portions(p, x.budget - x.base) : 0);
}
/* Where the keys of portion i end. */
__device__ __forceinline__ int portion_end(const params &p, const va_row &x, int i) {
    const int fixed = whole_portions(p, x.fixed), whole = first_portion(p, x, 1);
    const int end = i < fixed   ? x.fixed
                  : i < whole ? fixed * p.list_keys + (x.base ? x.base : x.budget)
                                : whole * p.list_keys + x.budget - x.base;
    return min((i + 1) * p.list_keys, end);
}

/* The tuned kernel: everything on tensor cores, for up to 8 query heads.
   Grid: (part of a list, list x slice of 8 heads, batch). A CTA has every gridDim.x'th part, of
   p.list_keys keys: what parts sum up to does not depend on whose they are. With p.list_early a
   part of the ranges has a CTA to itself, which does not wait for the list. Parts past the end
   of a list leave at once. A warp has 16 keys of a part:
     rows     entries, then all rows of K and V on their way together
     scores   as k_dense; a lane reads back what it copied itself
     weights  relative to the part's maximum; transposed they are what V is multiplied with, in
              two numbers of 16 bits, as good as f32
     V        each warp 16 columns (or more) of all keys, so that nothing has to be merged
   Reads: entries, K and V of the listed keys once for each slice. Writes as k_dense. Flops: 2 *
   keys * 8 * (2 * d + 2 * dv), on tensor cores. For short lists latency counts, and with it how
   much code there is: two or three trips to memory.
   Barriers: for the maxima; for weights, sums and V; before the next part's rows.
   ROW: bytes of a row of K and V, at most. */
template <typename K, int ROW>
__global__ void __launch_bounds__(32 * list_memory<K, ROW>::WARPS, eight_bits<K> || ROW > 256 ? 2 : 3)
k_list(const __grid_constant__ params p) {
    typedef list_memory<K, ROW> memory;
    enum { WARPS = memory::WARPS, KEYS = memory::KEYS, LANES = memory::LANES, PIECES = ROW / 64 };
    enum { TILES = memory::TILES, CHUNKS = memory::CHUNKS };
    DYNAMIC_SHARED(slots);                          /* memory */
    memory &s = *(memory *)slots;
    const int lane = threadIdx.x & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    unsigned first_part = blockIdx.x, y_index = blockIdx.y, b_index = blockIdx.z;
    if (p.va.rows || p.list_early) {                /* parts that may be empty start last */
        const unsigned lists = gridDim.y * gridDim.z,
                       id = (b_index * gridDim.y + y_index) * gridDim.x + first_part, of = id % lists;
        first_part = id / lists;
        b_index = of / gridDim.y;
        y_index = of - b_index * gridDim.y;
    }
    const int b = (int)b_index, item = (int)p.by_slices.quotient(y_index),
              slice = (int)y_index - item * p.slices;
    const int head = item * p.list_heads + slice * PASS_HEADS,
              heads = min(p.list_heads - slice * PASS_HEADS, (int)PASS_HEADS),
              kv = (int)p.by_group.quotient((unsigned)head);
    if (p.va.pass) launch_dependents();             /* as a rule there is nothing more */
    int part = (int)first_part, end = 0;            /* of the parts */
    int at = part * KEYS + 16 * warp + (lane & 15);
    listed x = begin_list(p, b, item);
    /* parts of the ranges are over before the list is there, where the other CTAs are enough
       for it */
    const int heads_parts = x.head / KEYS, others = (int)gridDim.x - heads_parts;
    const bool apart = heads_parts && 4 * others >= (int)gridDim.x, before = apart && part < heads_parts;
    const int stride = apart ? others : (int)gridDim.x;
    query<K, CHUNKS, true> q;
    /* q in two parts, unless one holds it */
    const bool two = eight_bits<K> ? p.q_type == SANTA_F32 : p.q_type != p.k_type;
    if (two && !eight_bits<K>) load_query_by_piece(p, b, head, heads, q);
    else if (two) load_query(p, b, head, heads, q);
    else {
        query<K, CHUNKS, false> same;
        load_query(p, b, head, heads, same);
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; i++)
            for (int k = 0; k < 2; k++) { q.hi[i][k] = same.hi[i][k]; q.lo[i][k] = 0; }
        q.unscale = same.unscale;
    }
    piece_window window = { nullptr, nullptr, { 0, 0 } };
    raw_entry next = { -1, 0.0f };
    va_row row = {};
    const int k_bytes = p.d * (int)sizeof(K), v_bytes = p.dv * (int)sizeof(K);
    const bool extra = p.soft_cap > 0.0f || p.slopes;
    const float scale = p.scale * q.unscale * (extra ? 1.0f : LOG2E);
    const uint4 *const k_rows = s.k + 16 * LANES * warp + lane;
    const unsigned k_to = (unsigned)__cvta_generic_to_shared(k_rows),
                   v_to = (unsigned)__cvta_generic_to_shared(s.v + (16 * warp + r) * LANES);
    const auto find = [&](int at) {
        if (p.va.rows) x.places = x.all = x.count = portion_end(p, row, at / KEYS);
        const int i = place_of(x, at);
        return find_listed(p, x, b, kv, i, find_in_pieces(x, window, i, next));
    };
    /* a lane copies pieces of rows r and r + 8; zeros where there is none */
    const auto copy_k = [&](const listed_key &of) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const i64 row = __shfl_sync(FULL, of.k, 8 * h + r);
            const int bytes = row == NO_ROW ? 0 : k_bytes - 16 * c;
            const char *from = p.k + (row == NO_ROW ? 0 : row + 16 * c);
#pragma unroll
            for (int k = 0; k < PIECES; k++)
                copy16_or_zero_at(k_to + 512 * (h * PIECES + k), 64 * k < bytes ? from + 64 * k : p.k,
                               64 * k < bytes);
        }
        copy_commit();
    };
    listed_key own = { -1, NO_ROW, NO_ROW, MASKED };
    bool is_seen = before;                          /* the list */
    if (p.list_early && threadIdx.x == 0 && !before) {
        prefetch((const char *)(p.pieces + p.ranges_batch * b + item));
        prefetch((const char *)split_of(p, b, head, part));
    }
    if (before) {
        x.places = x.head;
        end = part + 1;
        launch_dependents();
    }
    /* the first time nothing but rows of K that are sent for */
#pragma unroll 1
    for (bool begun = false;; begun = true) {
        if (begun) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const i64 row = __shfl_sync(FULL, own.v, 8 * h + r);
                const int bytes = row == NO_ROW ? 0 : v_bytes - 16 * c;
                const char *from = p.v + (row == NO_ROW ? 0 : row + 16 * c);
#pragma unroll
                for (int k = 0; k < PIECES; k++)
                    copy16_or_zero_at(v_to + 16 * (8 * h * LANES + ((4 * k + c) ^ r)),
                                   64 * k < bytes ? from + 64 * k : p.v, 64 * k < bytes);
            }
            copy_commit();
        }
        if (!is_seen && (begun || part * KEYS >= x.head)) {
            wait_for_previous();
            /* asked for before the number of entries is there */
            next = load_entry(p, x.keys, x.weights, at - x.head);
            window = load_pieces(p, b, item, kv);
            see_list(p, b, item, x);
            end = (x.places + KEYS - 1) / KEYS;
            if (p.va.rows) {
                row = p.va.rows[(i64)b * p.kv_heads + item];
                const int skipped = first_portion(p, row, p.va.pass);
                part += skipped;
                at += skipped * KEYS;
                end = first_portion(p, row, p.va.pass + 1);
                if (p.va.pass) next = load_entry(p, x.keys, x.weights, at);
            }
            launch_dependents();
            is_seen = true;
            if (!begun && part >= end) return;
        }
        const int steps = min((x.places - part * KEYS + 15) / 16, (int)WARPS);
        const bool is_last = part + stride >= end;
        float y[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (begun) {
            /* scores: x[2 h + e] of key r + 8 h, head 2 c + e */
            float z[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
            copy_wait<1>();
            with_type<K>(p, [&](auto type) {
                typedef decltype(type) T;
#pragma unroll
                for (int k = 0; k < PIECES; k++) {
                    const uint4 a = k_rows[k * 32], d = k_rows[(PIECES + k) * 32];
                    piece_products<T, K, CHUNKS>(q.hi, a, d, k, k & 1 ? z : y);
                    if (two) piece_products<T, K, CHUNKS>(q.lo, a, d, k, k & 1 ? y : z);
                }
            });
            const float bias[2] = { __shfl_sync(FULL, own.bias, r), __shfl_sync(FULL, own.bias, 8 + r) };
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = (y[i] + z[i]) * scale;
            if (extra) {
                const int key[2] = { __shfl_sync(FULL, own.key, r), __shfl_sync(FULL, own.key, 8 + r) };
#pragma unroll 1
                for (int i = 0; i < 4; i++) {
                    float one = i & 2 ? i & 1 ? y[3] : y[2] : i & 1 ? y[1] : y[0];
                    const int h = 2 * c + (i & 1);
                    if (p.soft_cap > 0.0f) one = cap_score(one, p.soft_cap, p.per_cap);
                    if (p.slopes && h < heads)
                        one += p.slopes[head + h] * (float)((i & 2 ? key[1] : key[0]) - x.position);
                    one *= LOG2E;
#pragma unroll
                    for (int k = 0; k < 4; k++) y[k] = k == i ? one : y[k];
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = bias[i >> 1] < MASK_LIMIT ? MASKED : y[i] + bias[i >> 1];
        }
        /* what this lane copied is used up */
        if (!begun || !is_last) {
            own = find(at);
            copy_k(own);
            at += stride * KEYS;
            if (is_seen && !before) next = load_entry(p, x.keys, x.weights, at - x.head);
        } else copy_commit();
        if (!begun) continue;
        float m[2];
#pragma unroll
        for (int e = 0; e < 2; e++) m[e] = fmaxf(fmaxf(y[e], y[2 + e]), MASKED);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1)
#pragma unroll
            for (int e = 0; e < 2; e++) m[e] = fmaxf(m[e], __shfl_xor_sync(FULL, m[e], o));
        if (r == 0) *(float2 *)&s.top[warp][2 * c] = make_float2(m[0], m[1]);
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float2 other = *(const float2 *)&s.top[w][2 * c];
            m[0] = fmaxf(m[0], other.x);
            m[1] = fmaxf(m[1], other.y);
        }
        float sum[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float zero = m[e] < MASK_LIMIT ? 0.0f : m[e];
            y[e] = pow2(y[e] - zero);
            y[2 + e] = pow2(y[2 + e] - zero);
            sum[e] = y[e] + y[2 + e];
        }
        if (p.va.rows)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float squares = y[e] * y[e] + y[2 + e] * y[2 + e];
#pragma unroll
                for (int o = 4; o < 32; o <<= 1) squares += __shfl_xor_sync(FULL, squares, o);
                if (r == 0) s.square[warp][2 * c + e] = squares;
            }
#pragma unroll
        for (int o = 4; o < 32; o <<= 1)
#pragma unroll
            for (int e = 0; e < 2; e++) sum[e] += __shfl_xor_sync(FULL, sum[e], o);
        if (r == 0) *(float2 *)&s.sum[warp][2 * c] = make_float2(sum[0], sum[1]);
        unsigned hi[2], lo[2];
        const float unit = pow2(weight_bits<K>(p)), unscale = 1.0f / unit;
        with_type<K>(p, [&](auto type) {
            typedef decltype(type) T;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float u = y[2 * h] * unit, w = y[2 * h + 1] * unit;
                const float a = (float)(T)u, d = (float)(T)w;
                hi[h] = pack_pair<T>(a, d);
                lo[h] = pack_pair<T>(u - a, w - d);
            }
        });
#pragma unroll
        for (int h = 0; h < 2; h++) {
            hi[h] = transpose(hi[h]);
            lo[h] = transpose(lo[h]);
        }
        s.weight[warp][lane] = make_uint4(hi[0], hi[1], lo[0], lo[1]);
        copy_wait<1>();                             /* but for the next part's rows of K */
        __syncthreads();

        const int state = p.dv + (p.va.rows ? 4 : 2);
        float *out = p.partial + (((i64)b * p.heads + head) * p.splits + part) * state;
        const i64 pitch = (i64)p.splits * state;                    /* from head to head */
        float acc[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
        const int first = warp * TILES;                             /* tile */
        if (16 * first < p.dv) {
            /* matrices of 8 keys x 16 bytes: a lane has the address of a row of one of them */
            const int row = (lane & 7) + 8 * (eight_bits<K> ? lane >> 3 & 1 : lane >> 4),
                      piece = eight_bits<K> ? lane >> 4 : lane >> 3 & 1;
            const unsigned from = (unsigned)__cvta_generic_to_shared(s.v + row * LANES);
            with_type<K>(p, [&](auto type) {
                typedef decltype(type) T;
#pragma unroll 2
                for (int step = 0; step < steps; step++) {
                    const uint4 w = s.weight[step][lane];
                    const unsigned high[2] = { w.x, w.y }, low[2] = { w.z, w.w };
#pragma unroll
                    for (int i = 0; i < TILES; i += eight_bits<K> ? 2 : 1) {
                        const int of = eight_bits<K> ? first + i + piece : 2 * (first + i) + piece;
                        unsigned v[4];
                        load_transposed(from + 16u * (unsigned)(16 * step * LANES + (of ^ (lane & 7))), v);
                        add_columns<T, K>(v, high, low, acc + i);
                    }
                }
            });
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int col = 16 * (first + i) + (eight_bits<K> ? 2 * r + k / 2 : r + 8 * (k / 2)),
                              h = 2 * c + (k & 1);
                    if (h < heads && col < p.dv) out[h * pitch + col] = acc[i][k] * unscale;
                }
        }
        if (threadIdx.x < (unsigned)heads) {
            float top = MASKED, all = 0.0f, squares = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                top = fmaxf(top, s.top[w][threadIdx.x]);
                all += s.sum[w][threadIdx.x];
                squares += s.square[w][threadIdx.x];
            }
            float *const at_end = out + threadIdx.x * pitch + p.dv;
            at_end[0] = top;
            at_end[1] = all;
            if (p.va.rows) { at_end[2] = squares; at_end[3] = 0.0f; }
        }
        if (is_last) return;
        part += stride;
        __syncthreads();
    }
}

/* For rows of more than 256 and up to 576 features, such as MLA's, for up to 64 query heads at
   once; K, V and q of one type of 16 bits.
   Grid: (part of a list x slice of 64 heads, list, batch). A CTA has one part, see part_keys,
   in blocks of 32 keys that come to slots in shared memory. Parts past the end of a list leave
   at once.
     rows     each warp finds four of a block's keys and sends for their rows
     scores   each of 8 warps 16 heads and half of K's features, q in its registers; the first
              four add what the others have
     weights  by those four, in two numbers of 16 bits, as good as f32, while the others go on
     V        each warp 64 columns of all heads, of the block before
   Reads: entries, K and V of the listed keys once for each slice, V not where its rows lie in
   K's. Writes as k_dense. Flops: 2 * keys * 64 * (d + 2 * dv), on tensor cores.
   The tensor cores are the limit where there are 64 heads.
   Barriers, for each block: its rows are there and the slot of the one before the last is free;
   the second half's scores are there. */
__global__ void __launch_bounds__(MANY_WARPS * 32) k_list_many(const __grid_constant__ params p) {
    enum { EACH = MANY_KEYS / MANY_WARPS, KEY_TILES = MANY_KEYS / 8, MS = MANY_HEADS / 16 };
    enum { FOUND = 32 / EACH, STEPS = MANY_DIM / 32, TILES = MANY_COLUMNS / (8 * MANY_WARPS) };
    DYNAMIC_SHARED(slots);
    many_memory &s = *(many_memory *)slots;
    const int lane = threadIdx.x & 31, warp = this_warp(), r = lane >> 2, c = lane & 3, m = warp & 3;
    const bool second = warp >= 4;
    const int part = (int)p.by_slices.quotient(blockIdx.x), slice = (int)blockIdx.x - part * p.slices,
              item = (int)blockIdx.y, b = (int)blockIdx.z;
    const int head = item * p.list_heads + slice * MANY_HEADS,
              heads = min(p.list_heads - slice * MANY_HEADS, (int)MANY_HEADS),
              kv = (int)p.by_group.quotient((unsigned)head);
    const int lead = p.k_lead, from_step = second ? lead : 0;
    const bool scores = 16 * m < heads;             /* whether this warp has heads to score */
    unsigned q[STEPS][4];
    {
        const char *const row = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                              + (i64)(head + 16 * m + r) * p.q_stride[2];
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int f = 16 * (from_step + i) + 8 * (k >> 1) + 2 * c, of = 16 * m + r + 8 * (k & 1);
                const bool have = i < lead && f < p.d && of < heads;
                q[i][k] = have ? *(const unsigned *)(row + 8 * (k & 1) * p.q_stride[2] + 2 * f) : 0;
            }
    }
    wait_for_previous();
    const listed &x = s.list;                       /* there are no registers left for it */
    if (threadIdx.x == 0) s.list = listed_keys(p, b, item);
    __syncthreads();
    const int keys = part_keys(p, x.all), from = part * keys, to = min(from + keys, x.all);
    if (from >= to) return;
    launch_dependents();
    const int blocks = (to - from + MANY_KEYS - 1) / MANY_KEYS;
    const int pitch = p.k_pitch, bytes = MANY_KEYS * (pitch + p.v_pitch);
    const unsigned ring = (unsigned)__cvta_generic_to_shared(&s) + (unsigned)sizeof s;
    const bool extra = p.soft_cap > 0.0f || p.slopes;
    const float scale = p.scale * (extra ? 1.0f : LOG2E);

    /* a warp's keys of FOUND blocks at a time, a lane each */
    int at = from + MANY_KEYS * (lane / EACH) + EACH * warp + (lane & (EACH - 1));
    raw_entry next = load_entry(p, x.keys, x.weights, at);
    listed_key own = { -1, NO_ROW, NO_ROW, MASKED };
    /* eight lanes a row, up to LOADS pieces each; zeros where a row ends or there is none */
    const auto send_row = [&](auto loads, unsigned to, const char *base, i64 row, int have, int row_bytes) {
        const int first = 16 * (lane & 7);
        const char *const source = base + (row == NO_ROW ? 0 : row + first);
        if (row == NO_ROW) have = 0;
#pragma unroll
        for (int k = 0; k < decltype(loads)::value; k++)
            if (128 * k < row_bytes)
                copy16_or_zero_at(to + (unsigned)(first + 128 * k), source + 128 * k,
                                  first + 128 * k < have);
    };
    const auto send = [&](int i, int slot) {
        if (i < blocks) {
            const int first = EACH * warp, turn = i & (FOUND - 1);
            if (turn == 0) {
                own = find_listed(p, x, b, kv, at < to ? at : x.all, next);
                at += FOUND * MANY_KEYS;
                next = load_entry(p, x.keys, x.weights, at);
            }
            if (lane / EACH == turn) {
                s.bias[slot][first + (lane & (EACH - 1))] = own.bias;
                s.key[slot][first + (lane & (EACH - 1))] = own.key;
            }
            const int from_lane = EACH * turn + lane / 8, row = first + lane / 8;
            const unsigned base = ring + (unsigned)(slot * bytes);
            send_row(a_number<MANY_DIM / 64>(), base + (unsigned)(row * pitch), p.k,
                     __shfl_sync(FULL, own.k, from_lane), 2 * p.d, pitch - 16);
            if (p.v_pitch)
                send_row(a_number<MANY_COLUMNS / 64>(),
                         base + (unsigned)(MANY_KEYS * pitch + row * p.v_pitch), p.v,
                         __shfl_sync(FULL, own.v, from_lane), 2 * p.dv, p.v_pitch - 16);
        }
        copy_commit();
    };
    float top[2] = { MASKED, MASKED }, den[2] = { 0.0f, 0.0f };
    float acc[MS][TILES][4];
#pragma unroll
    for (int i = 0; i < MS; i++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[i][n][k] = 0.0f;
    const float unit = pow2(weight_bits<sixteen>(p) > 0.0f ? weight_bits<sixteen>(p) - MANY_SLACK : 0.0f),
                unscale = 1.0f / unit;
    const int column = 8 * TILES * warp;
    /* of matrices of 8 rows of 16 bytes: a lane's row and piece, of K's two by two and V's */
    const int matrix = lane >> 3;
    const unsigned k_at = (unsigned)(((lane & 7) + 8 * (matrix >> 1)) * pitch + 16 * (matrix & 1)
                                     + 32 * from_step);
    const int v_row = p.v_pitch ? p.v_pitch : pitch;
    const unsigned v_at = (unsigned)((p.v_pitch ? MANY_KEYS * pitch : p.v_inside)
                                     + ((lane & 7) + 8 * (matrix & 1)) * v_row + 16 * (matrix >> 1)
                                     + 2 * column);
    int slot = 0, fill = 0, slot_before = 0;
    const auto after = [&](int x) { return x + 1 == p.many_slots ? 0 : x + 1; };
    for (int i = 0; i < p.many_slots - 2; i++) {
        send(i, fill);
        fill = after(fill);
    }
#pragma unroll 1
    for (int i = 0; i <= blocks; i++) {
        if (p.many_slots > 3) copy_wait<1>();
        else copy_wait<0>();
        __syncthreads();
        send(i + p.many_slots - 2, fill);
        fill = after(fill);
        if (p.many_slots == 2) {
            copy_wait<0>();
            __syncthreads();
        }
        const int turn = i & 1;
        float y[KEY_TILES][4];
        if (i < blocks && scores) {
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++) y[n][0] = y[n][1] = y[n][2] = y[n][3] = 0.0f;
            const unsigned rows = ring + (unsigned)(slot * bytes) + k_at;
            with_type<sixteen>(p, [&](auto type) {
                typedef decltype(type) T;
                const unsigned others = rows + (unsigned)(16 * pitch);
                unsigned w[2][2][4];                /* the next step's are on their way */
                load_matrices(rows, w[0][0]);
                load_matrices(others, w[0][1]);
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    if (k % 2 == 0 && k >= lead) break;
                    if (k + 1 < STEPS) {
                        load_matrices(rows + (unsigned)(32 * (k + 1)), w[(k + 1) & 1][0]);
                        load_matrices(others + (unsigned)(32 * (k + 1)), w[(k + 1) & 1][1]);
                    }
#pragma unroll
                    for (int n = 0; n < KEY_TILES; n++)
                        mma(y[n], q[k][0], q[k][1], q[k][2], q[k][3], w[k & 1][n / 2][2 * (n & 1)],
                            w[k & 1][n / 2][2 * (n & 1) + 1], T());
                }
            });
            if (second)
#pragma unroll
                for (int n = 0; n < KEY_TILES; n++)
                    s.scores[m][n][lane] = make_float4(y[n][0], y[n][1], y[n][2], y[n][3]);
        }
        __syncthreads();
        if (i < blocks && scores && !second) {
            float most[2] = { MASKED, MASKED }, keep[2], sum[2] = { 0.0f, 0.0f }, zero[2];
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++) {
                const float4 other = s.scores[m][n][lane];
                const float2 bias = *(const float2 *)&s.bias[slot][8 * n + 2 * c];
                y[n][0] = (y[n][0] + other.x) * scale;
                y[n][1] = (y[n][1] + other.y) * scale;
                y[n][2] = (y[n][2] + other.z) * scale;
                y[n][3] = (y[n][3] + other.w) * scale;
                if (extra) {
                    const int2 key = *(const int2 *)&s.key[slot][8 * n + 2 * c];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const int of = 16 * m + r + 8 * (k >> 1);
                        if (p.soft_cap > 0.0f) y[n][k] = cap_score(y[n][k], p.soft_cap, p.per_cap);
                        if (p.slopes && of < heads)
                            y[n][k] += p.slopes[head + of] * (float)((k & 1 ? key.y : key.x) - x.position);
                        y[n][k] *= LOG2E;
                    }
                }
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float own = k & 1 ? bias.y : bias.x, z = y[n][k] + own;
                    y[n][k] = own < MASK_LIMIT || z < MASK_LIMIT ? MASKED : z;
                    most[k >> 1] = fmaxf(most[k >> 1], y[n][k]);
                }
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                most[e] = fmaxf(most[e], __shfl_xor_sync(FULL, most[e], 1));
                most[e] = fmaxf(most[e], __shfl_xor_sync(FULL, most[e], 2));
                const float now = most[e] > top[e] + MANY_SLACK ? most[e] : top[e];
                keep[e] = top[e] < MASK_LIMIT ? 0.0f : pow2(top[e] - now);
                zero[e] = now < MASK_LIMIT ? 0.0f : now;
                top[e] = now;
            }
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    y[n][k] = pow2(y[n][k] - zero[k >> 1]);
                    sum[k >> 1] += y[n][k];
                }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                sum[e] += __shfl_xor_sync(FULL, sum[e], 1);
                sum[e] += __shfl_xor_sync(FULL, sum[e], 2);
                den[e] = den[e] * keep[e] + sum[e];
                if (c == 0) s.keep[turn][16 * m + r + 8 * e] = keep[e];
            }
            const bool changes = __any_sync(FULL, keep[0] != 1.0f || keep[1] != 1.0f);
            if (lane == 0) s.changes[turn][m] = changes;
            with_type<sixteen>(p, [&](auto type) {
                typedef decltype(type) T;
#pragma unroll
                for (int j = 0; j < KEY_TILES / 2; j++) {
                    unsigned high[4], low[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float u = y[2 * j + (k >> 1)][2 * (k & 1)] * unit,
                                    w = y[2 * j + (k >> 1)][2 * (k & 1) + 1] * unit;
                        const float a = (float)(T)u, d = (float)(T)w;
                        high[k] = pack_pair<T>(a, d);
                        low[k] = pack_pair<T>(u - a, w - d);
                    }
                    s.weight[turn][0][m][j][lane] = make_uint4(high[0], high[1], high[2], high[3]);
                    s.weight[turn][1][m][j][lane] = make_uint4(low[0], low[1], low[2], low[3]);
                }
            });
        }
        const unsigned values = ring + (unsigned)(slot_before * bytes) + v_at;
        slot_before = slot;
        slot = after(slot);
        if (i == 0 || column >= p.dv) continue;
        /* V of the block before */
        const int before = turn ^ 1;
#pragma unroll
        for (int h = 0; h < MS; h++) {
            if (16 * h >= heads || !s.changes[before][h]) continue;
            const float keep[2] = { s.keep[before][16 * h + r], s.keep[before][16 * h + r + 8] };
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) acc[h][n][k] *= keep[k >> 1];
        }
        with_type<sixteen>(p, [&](auto type) {
            typedef decltype(type) T;
            enum { QUADS = TILES / 4, TURNS = KEY_TILES / 2 * QUADS };
            const auto load_values = [&](int t, unsigned (*v)[4]) {
                const unsigned from = values + (unsigned)(t / QUADS * 16 * v_row + t % QUADS * 64);
                load_transposed(from, v[0]);
                load_transposed(from + 32u, v[1]);
            };
            unsigned v[2][2][4];                    /* the next turn's are on their way */
            load_values(0, v[0]);
#pragma unroll
            for (int t = 0; t < TURNS; t++) {
                const int j = t / QUADS, n = t % QUADS * 4;
                if (t + 1 < TURNS) load_values(t + 1, v[(t + 1) & 1]);
                uint4 w[2] = { s.weight[before][0][0][j][lane], s.weight[before][1][0][j][lane] };
#pragma unroll
                for (int h = 0; h < MS; h++) {
                    if (16 * h >= heads) break;
                    const uint4 now[2] = { w[0], w[1] };
                    if (h + 1 < MS) {
                        w[0] = s.weight[before][0][h + 1][j][lane];
                        w[1] = s.weight[before][1][h + 1][j][lane];
                    }
#pragma unroll
                    for (int two = 0; two < 2; two++)
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            mma(acc[h][n + k], now[two].x, now[two].y, now[two].z, now[two].w,
                                v[t & 1][k >> 1][2 * (k & 1)], v[t & 1][k >> 1][2 * (k & 1) + 1], T());
                }
            }
        });
    }
    float *const out = p.partial + (((i64)b * p.heads + head) * p.splits + part) * (p.dv + 2);
    const i64 apart = (i64)p.splits * (p.dv + 2);   /* from head to head */
#pragma unroll
    for (int h = 0; h < MS; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int of = 16 * h + r + 8 * e;
            float *const row = out + of * apart + column + 2 * c;
            if (of < heads)
#pragma unroll
                for (int n = 0; n < TILES; n++)
                    if (column + 8 * n < p.dv)
                        *(float2 *)(row + 8 * n) = make_float2(acc[h][n][2 * e] * unscale,
                                                               acc[h][n][2 * e + 1] * unscale);
        }
    if (scores && !second && c == 0)
        for (int e = 0; e < 2; e++) {
            const int of = 16 * m + r + 8 * e;
            if (of >= heads) continue;
            out[of * apart + p.dv] = top[e];
            out[of * apart + p.dv + 1] = den[e];
        }
}

/* What k_list does not take: any type, stride and width, see k_dense_plain; scales of rows.
   Grid: (split, list x slice of 4 heads x 256 columns of V, batch). Each of 4 warps owns every
   fourth 4 keys of its split: the lanes share a key's features, then a row's columns. Bound by
   latency; nothing here is tuned. Barrier: for the warps' sums, in write_split. */
__global__ void __launch_bounds__(DENSE_WARPS * 32) k_list_plain(const __grid_constant__ params p) {
    enum { GS = PLAIN_HEADS, COLUMNS = 256, EACH = COLUMNS / 32, KEYS = LIST_PLAIN_KEYS };
    SHARED(shared, list_plain_memory);
    const int lane = threadIdx.x & 31, warp = this_warp(), c = lane & 3;
    const int pieces = (p.dv + COLUMNS - 1) / COLUMNS, b = blockIdx.z;
    const int column = (int)(blockIdx.y % pieces) * COLUMNS, slice = (int)(blockIdx.y / pieces) % p.slices,
              item = (int)(blockIdx.y / pieces) / p.slices;
    const int head = item * p.list_heads + slice * GS, heads = min(p.list_heads - slice * GS, (int)GS),
              kv = head / p.group;
    wait_for_previous();
    const piece_window window = load_pieces(p, b, item, kv);
    const listed x = listed_keys(p, b, item);
#pragma unroll 1
    for (int part = blockIdx.x; part * p.list_keys < x.all; part += (int)gridDim.x) {
        const int from = part * p.list_keys, to = min(from + p.list_keys, x.all);
        float top[GS], den[GS], acc[GS][EACH];
#pragma unroll
        for (int h = 0; h < GS; h++) {
            top[h] = MASKED;
            den[h] = 0.0f;
#pragma unroll
            for (int k = 0; k < EACH; k++) acc[h][k] = 0.0f;
        }
#pragma unroll 1
        for (int base = from + KEYS * warp; base < to; base += KEYS * DENSE_WARPS) {
            const int at = base + lane % KEYS;
            const listed_key own = find_listed(p, x, b, kv, at < to ? at : x.all,
                                               find_in_pieces(x, window, at,
                                                              load_entry(p, x.keys, x.weights, at)));
            /* those of the lane's key */
            const float k_scale = own.k == NO_ROW ? 1.0f : key_scale(p, b, kv, own.key),
                        v_scale = own.k == NO_ROW ? 1.0f : value_scale(p, b, kv, own.key);
            i64 at_k[KEYS], at_v[KEYS];
            float s[KEYS][GS];
#pragma unroll
            for (int u = 0; u < KEYS; u++) {
                at_k[u] = __shfl_sync(FULL, own.k, u);
                at_v[u] = __shfl_sync(FULL, own.v, u);
#pragma unroll
                for (int h = 0; h < GS; h++) s[u][h] = 0.0f;
            }
#pragma unroll 1
            for (int f = lane; f < p.d; f += 32) {
                float q[GS];
#pragma unroll
                for (int h = 0; h < GS; h++)
                    q[h] = load_any(p.q_type, p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                                                  + (head + min(h, heads - 1)) * p.q_stride[2]
                                                  + f * p.q_stride[3]);
#pragma unroll
                for (int u = 0; u < KEYS; u++) {
                    const float y = at_k[u] == NO_ROW ? 0.0f
                                  : load_coded(p.k_type, p.k + at_k[u], f, p.k_stride[3]);
#pragma unroll
                    for (int h = 0; h < GS; h++) s[u][h] += y * q[h];
                }
            }
#pragma unroll
            for (int o = 16; o; o >>= 1)
#pragma unroll
                for (int u = 0; u < KEYS; u++)
#pragma unroll
                    for (int h = 0; h < GS; h++) s[u][h] += __shfl_xor_sync(FULL, s[u][h], o);
            float m[GS];
#pragma unroll
            for (int h = 0; h < GS; h++) m[h] = top[h];
#pragma unroll
            for (int u = 0; u < KEYS; u++) {
                const float bias = __shfl_sync(FULL, own.bias, u), scale = __shfl_sync(FULL, k_scale, u);
                const int key = __shfl_sync(FULL, own.key, u);
#pragma unroll
                for (int h = 0; h < GS; h++) {
                    const float y = s[u][h] * scale;
                    s[u][h] = bias < MASK_LIMIT ? MASKED
                            : finished_score(p, head + min(h, heads - 1), y, key - x.position) + bias;
                    m[h] = fmaxf(m[h], s[u][h]);
                }
            }
#pragma unroll
            for (int h = 0; h < GS; h++) {
                const float keep = top[h] < MASK_LIMIT ? 0.0f : pow2(top[h] - m[h]),
                            zero = m[h] < MASK_LIMIT ? 0.0f : m[h];
                top[h] = m[h];
                den[h] *= keep;
#pragma unroll
                for (int k = 0; k < EACH; k++) acc[h][k] *= keep;
#pragma unroll
                for (int u = 0; u < KEYS; u++) den[h] += s[u][h] = pow2(s[u][h] - zero);
            }
#pragma unroll
            for (int u = 0; u < KEYS; u++) {
                const float scale = __shfl_sync(FULL, v_scale, u);
                if (at_v[u] == NO_ROW) continue;
#pragma unroll
                for (int k = 0; k < EACH; k++) {
                    const int col = column + lane + 32 * k;
                    if (col >= p.dv) break;
                    const float y = load_listed(p.v_type, p.v + at_v[u], col, p.v_stride[3]) * scale;
#pragma unroll
                    for (int h = 0; h < GS; h++) acc[h][k] += s[u][h] * y;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < GS; h++)
#pragma unroll
            for (int k = 0; k < EACH; k++) shared.merge[warp].head[h][lane + 32 * k] = acc[h][k];
        const float tops[2] = { c & 1 ? top[2] : top[0], c & 1 ? top[3] : top[1] },
                    dens[2] = { c & 1 ? den[2] : den[0], c & 1 ? den[3] : den[1] };
        write_split<DENSE_WARPS>(p, shared.merge, tops, dens, heads, split_of(p, b, head, part),
                                 split_pitch(p), column, (int)threadIdx.x);
        __syncthreads();                                /* merge is free again */
    }
}

/* Stats of lists of a caller: entries that are read, once for a list.
   Grid: (list, batch), 256 threads. */
__global__ void __launch_bounds__(256) k_list_stats(const __grid_constant__ params p) {
    const int item = blockIdx.x, b = blockIdx.y;
    const listed x = listed_keys(p, b, item);
    i64 n = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < x.all; i += 256) {
        const listed_key y = find_listed(p, x, b, item * p.list_heads / p.group, i,
                                         load_entry(p, x.keys, x.weights, i));
        n += y.k != NO_ROW;
    }
    const auto add = [](int64_t *field, i64 n) { atomicAdd((u64 *)field, (u64)n); };
    add(&p.stats->k_rows_read, n);
    add(&p.stats->v_rows_read, n);
    add(&p.stats->k_features_read, n * p.d);
    add(&p.stats->v_rows_head, n * p.list_heads);
    add(&p.stats->k_features_head, n * p.d * p.list_heads);
    if (threadIdx.x) return;
    add(&p.stats->rows, p.list_heads);
    if (item * p.list_heads % p.group == 0) add(&p.stats->keys, x.end - x.begin);
}

/* -------------------------------------------------------------------- >>vattention-kernels */

/* SANTA_VATTENTION in six launches behind the scores, if heavy tokens are taken by scores:
     choose   the heavy tokens of each head, their union over the group
     fill     the base sample, the list of both
     attend   sums over the keys that are read exactly and over the base sample
     budget   how many more keys the group's most demanding head asks for, and which
     attend   sums over more keys
     result   out, lse and the audit
   A row of a KV head has one list of keys: first those that are read exactly, then the sample,
   each part in ascending order but the base sample before the rest. It is read in portions of
   p.list_keys keys that never hold keys of two parts. */

/* A row's keys: [begin, lo) and [lo + mid, end) are read exactly, those between are chosen
   from. */
struct middle { int begin, end, position, lo, mid; };

__device__ __forceinline__ middle middle_of(const params &p, int b) {
    middle r;
    key_range(p, b, r.begin, r.end, r.position);
    const int n = r.end - r.begin, sinks = min(p.va.sink_tokens, n),
              local = min(p.va.local_tokens, n - sinks);
    r.lo = r.begin + sinks;
    r.mid = n - sinks - local;
    return r;
}

/* A count of tokens, or by default a fortieth of n. */
__device__ __forceinline__ int fortieth(int option, int n) {
    return option < 0 ? n / 40 + (n % 40 > 0) : option;
}

__device__ __forceinline__ int heavy_of(const params &p, const middle &r) {
    return min(fortieth(p.va.heavy_tokens, r.end - r.begin), r.mid);
}

/* A key and its score in one number; of equal scores the lower key is the larger number. 0:
   masked. */
__device__ __forceinline__ u64 ranked(float x, int key) {
    return x < MASK_LIMIT ? 0 : (u64)sortable(x) << 32 | ~(unsigned)key;
}

/* Sum of x over the threads before this one, and over all. */
__device__ __forceinline__ unsigned cta_prefix(set_memory &s, unsigned x, unsigned *total) {
    const int lane = threadIdx.x & 31, warp = this_warp();
    unsigned sum = x;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const unsigned y = __shfl_up_sync(FULL, sum, o);
        if (lane >= o) sum += y;
    }
    __syncthreads();                                /* totals may still be read from the last use */
    if (lane == 31) s.totals[warp] = sum;
    __syncthreads();
    static_assert(CHOOSE <= 32 * 32, "a lane for each warp's sum");
    const unsigned of_warp = lane < CHOOSE / 32 ? s.totals[lane] : 0u;
    *total = __reduce_add_sync(FULL, of_warp);
    return __reduce_add_sync(FULL, lane < warp ? of_warp : 0u) + sum - x;
}

/* The sums of x[k] over the CTA. */
template <int N> __device__ __forceinline__ void cta_sums(set_memory &s, unsigned *x) {
    const int lane = threadIdx.x & 31, warp = this_warp();
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = __reduce_add_sync(FULL, x[k]);
    __syncthreads();                                /* they may still be read from the last use */
#pragma unroll
    for (int k = 0; k < N; k++) if (lane == 0) s.sums[k][warp] = x[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] = __reduce_add_sync(FULL, lane < CHOOSE / 32 ? s.sums[k][lane] : 0u);
}

/* What heavy tokens of a head are chosen from: `list`, in shared memory where it fits in, or
   the scores of all keys of the middle. */
struct candidates {
    const u64 *list;
    const float *scores;
    int first, count;
    const u64 *room;                                /* or NULL */
    /* f(y) for each y of this thread, which has every CHOOSE'th; 0: none */
    template <typename F> __device__ __forceinline__ void each(F f) const {
        enum { TOGETHER = 4 };
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < count; i += TOGETHER * CHOOSE) {
            u64 y[TOGETHER];
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
                const int at = min(i + k * CHOOSE, count - 1);
                y[k] = room ? room[at] : list ? __ldcg(list + at) : 0;
            }
            if (!list)
#pragma unroll
                for (int k = 0; k < TOGETHER; k++) {
                    const int at = first + min(i + k * CHOOSE, count - 1);
                    y[k] = ranked(__ldcg(scores + at), at);
                }
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) f(i + k * CHOOSE < count ? y[k] : 0);
        }
    }
};

/* The want-th largest of the candidates in [lo, hi]: those at or above it are chosen. *total:
   how many there are; not more than want: all of them, and lo. A digit of 11 bits at a time
   from where lo and hi begin to differ; where few are left, each counts those above it. By a
   CTA. lo > 0. */
__device__ __forceinline__ u64 nth_largest(choose_memory &s, const candidates &x, unsigned want, u64 lo,
                                           u64 hi, unsigned *total) {
    const int tid = threadIdx.x;
    enum { EACH = CHOOSE_BINS / CHOOSE };
    static_assert(EACH == 4, "bins of a thread are read together");
    unsigned inside;
    bool is_first = true;
#pragma unroll 1
    do {
        const int shift = max(64 - __clzll((i64)(hi - lo)) - 11, 0);
        __syncthreads();
        ((uint4 *)s.bins)[tid] = make_uint4(0, 0, 0, 0);
        if (tid == 0) s.few_count = 0;
        __syncthreads();
        x.each([&](u64 y) {
            if (y >= lo && y <= hi) atomicAdd(&s.bins[(unsigned)((y - lo) >> shift)], 1u);
        });
        __syncthreads();
        const uint4 of = ((const uint4 *)s.bins)[CHOOSE - 1 - tid];
        const unsigned own[EACH] = { of.w, of.z, of.y, of.x };
        unsigned all, above = cta_prefix(s, of.x + of.y + of.z + of.w, &all);
        if (is_first) {
            *total = all;
            if (all <= want) return lo;
            is_first = false;
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (above < want && want <= above + own[k]) {
                s.bin = (unsigned)(CHOOSE_BINS - 1 - (EACH * tid + k));
                s.above = above;
                s.inside = own[k];
            }
            above += own[k];
        }
        __syncthreads();
        lo += (u64)s.bin << shift;
        hi = lo + min(hi - lo, ((u64)1 << shift) - 1);                /* a NaN's bin may end at 2^64 */
        inside = s.inside;
        want -= s.above;
        if (want == inside) return lo;              /* shift 0: one candidate, since no two are equal */
    } while (inside > CHOOSE);
    x.each([&](u64 y) { if (y >= lo && y <= hi) s.few[atomicAdd(&s.few_count, 1u)] = y; });
    __syncthreads();
    if (tid < (int)inside) {
        const u64 own = s.few[tid];
        unsigned above = 0;
#pragma unroll 4
        for (unsigned i = 0; i < inside; i++) above += s.few[i] > own;
        if (above == want - 1) s.result = own;
    }
    __syncthreads();
    return s.result;
}

__device__ __forceinline__ unsigned mark(const middle &r, unsigned *bits, int key) {
    const unsigned at = (unsigned)(key - r.lo), bit = 1u << (at & 31);
    return (atomicOr(bits + (at >> 5), bit) & bit) == 0;
}

/* The `want` largest candidates in [lo, hi] join the set, or, should they not be so many, the
   largest of all scores. */
__device__ __noinline__ void choose_heavy(choose_memory &s, const middle &r, unsigned *bits,
                                          const float *scores, const u64 *list, int count, u64 *room,
                                          unsigned want, u64 lo, u64 hi) {
    candidates x = { list, scores, r.lo, count, nullptr };
    if (list && count <= CHOOSE_ROOM) {
        for (int i = 2 * (int)threadIdx.x; i < count; i += 2 * CHOOSE)
            copy16((uint4 *)(room + i), (const char *)(list + i));
        x.room = room;
    }
    /* behind them the set, if there is room: many atomics for one word are slow in L2 */
    const int words = (r.mid + 31) / 32, used = x.room ? 2 * (count + count % 2) : 0;
    unsigned *const own = (unsigned *)room + used;
    const bool gathers = x.room && words <= 2 * CHOOSE_ROOM - used;
    if (gathers)
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < words; i += CHOOSE) own[i] = 0;
    copy_commit();
    copy_wait<0>();                                 /* before nth_largest's first barrier */
    unsigned total;
    u64 found = nth_largest(s, x, want, lo, hi, &total);
    if (list && total < want) {
        x = { nullptr, scores, r.lo, r.mid, nullptr };
        found = nth_largest(s, x, want, (u64)sortable(MASK_LIMIT) << 32, ~(u64)0, &total);
    }
    unsigned *const to = gathers ? own : bits;
    x.each([&](u64 y) { if (y >= found) mark(r, to, (int)~(unsigned)y); });
    if (!gathers) return;
    __syncthreads();
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < words; i += CHOOSE) if (own[i]) atomicOr(bits + i, own[i]);
}

/* The exact score of a key, by a warp: for few keys, or rarely. */
__device__ __noinline__ float exact_score(const params &p, int b, int head, int key, int position) {
    const i64 at = row_offset(p, p.k_stride, b, key);
    const char *q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1] + head * p.q_stride[2],
               *k = p.k + (at == NO_ROW ? 0 : at + head / p.group * p.k_stride[2]);
    float sum = 0.0f;
    for (int f = threadIdx.x & 31; f < p.d; f += 32)
        sum += load_any(p.q_type, q + f * p.q_stride[3]) * load_coded(p.k_type, k, f, p.k_stride[3]);
#pragma unroll
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
    sum *= key_scale(p, b, head / p.group, key);
    return at == NO_ROW ? __int_as_float(0x7fc00000) : finished_score(p, head, sum, key - position);
}

/* Exact scores of the keys from .. to - 1 of the middle. */
__device__ __noinline__ void score_exactly(const params &p, const middle &r, int b, int head, int from,
                                           int to, float *scores) {
    for (int j = from + (int)(threadIdx.x >> 5); j < to; j += CHOOSE / 32) {
        const float x = exact_score(p, b, head, j, r.position);
        if ((threadIdx.x & 31) == 0) scores[j] = x;
    }
}

/* The set of keys of a KV head's row that are in its list: a bit for each key of the middle.
   `taken` beside it for a while. A thread has every CHOOSE'th four words; behind the last key
   there may be any bits. */
struct key_set {
    unsigned *bits, *taken;
    int fours, mid;
    __device__ __forceinline__ uint4 load(const unsigned *from, int i) const {
        return i < fours ? __ldcg((const uint4 *)from + i) : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ unsigned valid(int w) const {
        return mid >= 32 * w + 32 ? ~0u : mid > 32 * w ? (1u << (mid - 32 * w)) - 1u : 0u;
    }
};

/* The keys of the middle that were drawn, or with `rest` those that were not, ascending, as
   list[0 ..]. */
__device__ __noinline__ void list_drawn(set_memory &s, const key_set &set, bool rest, int lo, int *list) {
    __syncthreads();
#pragma unroll 1
    for (int base = 0; base < set.fours; base += CHOOSE) {
        const int i = base + (int)threadIdx.x;
        unsigned x[4] = { 0, 0, 0, 0 }, total;
        if (i < set.fours) {
            const uint4 b = set.load(set.bits, i), t = *((const uint4 *)set.taken + i);
            const unsigned in[4] = { b.x, b.y, b.z, b.w }, now[4] = { t.x, t.y, t.z, t.w };
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = (rest ? ~now[k] : now[k] & ~in[k]) & set.valid(4 * i + k);
        }
        const unsigned count = (unsigned)(__popc(x[0]) + __popc(x[1]) + __popc(x[2]) + __popc(x[3]));
        int *to = list + cta_prefix(s, count, &total);
#pragma unroll
        for (int k = 0; k < 4; k++)
            for (unsigned y = x[k]; y; y &= y - 1) *to++ = lo + 128 * i + 32 * k + __ffs((int)y) - 1;
        list += total;
    }
}

/* Word `at` of stream 2 and the three behind it; at is a multiple of four: see >>random in
   santa.h. */
__device__ __forceinline__ uint4 sample_words(const params &p, u64 key, int kv, u64 at) {
    const u64 quad = at / 4;
    return philox(key, (unsigned)quad, random_head(p, kv * p.group), (unsigned)p.q_index,
                  2u + ((unsigned)(quad >> 32) << 8));
}

/* The places of words from .. to - 1 of stream 2 are taken; returns how many were not before,
   of this thread. By a CTA. */
__device__ __forceinline__ unsigned take_places(const params &p, const key_set &set, u64 key, int kv,
                                                u64 from, u64 to) {
    const unsigned size = (unsigned)set.mid, uneven = (0u - size) % size;
    unsigned new_ones = 0;
#pragma unroll 1
    for (u64 at = from / 4 * 4 + 4u * threadIdx.x; at < to; at += 4 * CHOOSE) {
        const uint4 x = sample_words(p, key, kv, at);
        const unsigned w[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u64 wide = (u64)w[k] * size;
            const unsigned place = (unsigned)(wide >> 32), bit = 1u << (place & 31);
            if (at + k < from || at + k >= to || (unsigned)wide < uneven) continue;
            if (atomicOr(set.taken + (place >> 5), bit) & bit) continue;
            new_ones++;
        }
    }
    return new_ones;
}

/* `count` more of the `left` keys of the middle that are not taken, uniform without
   replacement, by the words of stream 2 from *at on: see >>random in santa.h. They are taken,
   or, if that is true, all others are. As long as all words of a round are needed whatever they
   say, their order is none; the last ones go by warps, in order. `early` words of the first
   round have been taken before, `had` new ones. */
__device__ __noinline__ bool draw_keys(const params &p, set_memory &s, const key_set &set, int b, int kv,
                                       int count, int left, unsigned early, unsigned had, u64 *at) {
    const int tid = threadIdx.x, lane = tid & 31;
    const unsigned size = (unsigned)set.mid, uneven = (0u - size) % size;
    const bool rest = count > left - count;         /* then those that stay out are drawn */
    const u64 key = row_key<1>(p, b);
    int draws = rest ? left - count : count;
    u64 index = *at;
    __syncthreads();
    while (draws > 64) {
        const u64 end = index + (unsigned)draws;
        unsigned new_ones[1] = { take_places(p, set, key, kv, index + early, end) };
        cta_sums<1>(s, new_ones);
        index = end;
        draws -= (int)(new_ones[0] + had);
        early = had = 0;
    }
    if (tid < 32) {
        while (draws > 0) {
            const u64 mine = index + (unsigned)lane;
            const uint4 x = sample_words(p, key, kv, mine);
            const unsigned word = mine & 2 ? mine & 1 ? x.w : x.z : mine & 1 ? x.y : x.x;
            const u64 wide = (u64)word * size;
            const unsigned place = (unsigned)(wide >> 32), bit = 1u << (place & 31),
                           below = (1u << lane) - 1u;
            const bool is_free = (unsigned)wide >= uneven
                              && !(*(volatile unsigned *)(set.taken + (place >> 5)) & bit);
            const unsigned same = __match_any_sync(FULL, is_free ? place : 0x80000000u + (unsigned)lane);
            const unsigned hits = __ballot_sync(FULL, is_free && !(same & below));
            const int order = __popc(hits & below);
            const bool takes = hits >> lane & 1u && order < draws;
            if (takes) atomicOr(set.taken + (place >> 5), bit);
            const unsigned last = __ballot_sync(FULL, takes && order == draws - 1);
            index += last ? __ffs((int)last) : 32;
            draws -= min(__popc(hits), draws);
            __syncwarp();
        }
        if (tid == 0) s.at = index;
    }
    __syncthreads();
    *at = s.at;
    return rest;
}

__device__ __forceinline__ key_set set_of(const params &p, i64 item, const middle &r, unsigned *bits,
                                          unsigned *shared) {
    key_set set;
    set.fours = (r.mid + 127) / 128;
    set.mid = r.mid;
    set.bits = bits + item * p.va.words;
    set.taken = p.va.shared_words >= p.va.words ? shared : p.va.taken + item * p.va.words;
    return set;
}

/* Grid: (p.va.choose_keys keys, query head, batch), or with heavy tokens of the caller or none
   (1, KV head, batch). A CTA of 512 threads:
     bound    from a sample of the head's scores, the same one in each of its CTAs: a little
              more than the heavy tokens lie above it
     filter   its keys above that to the head's candidates
   and the last CTA of a head:
     select   the heavy_tokens largest of these, or of all scores should the bound have been
              wrong
     mark     them in the KV head's set
   With a cold L2 it waits for its code, so loops are unrolled only where loads go together.
   Reads 4 bytes for each key and head, from L2 as a rule. Latency-bound.
   Keys of the middle that the copy does not have are scored exactly first. Where a score by the
   copy is NaN, the last CTA scores all of the middle exactly; a NaN or +inf among exact scores
   makes the head's result NaN. */
__global__ void __launch_bounds__(CHOOSE, 2) k_va_choose(const __grid_constant__ params p) {
    DYNAMIC_SHARED(room);                           /* keys, then a head's candidates */
    SHARED(s, choose_memory);
    const int tid = threadIdx.x, b = blockIdx.z;
    const middle r = middle_of(p, b);
    launch_dependents();
    if (!p.va.by_scores) {
        const int kv = blockIdx.y;
        unsigned *const bits = p.va.bits + ((i64)b * p.kv_heads + kv) * p.va.words;
#pragma unroll 1
        for (int i = tid; i < (r.mid + 127) / 128; i += CHOOSE)
            *((uint4 *)bits + i) = make_uint4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 1
        for (int g = 0; p.va.index && g < p.group; g++) {
            const i64 place = result_of(p, b, p.q_index, kv * p.group + g);
            const int *index = p.va.index + place * p.va.index_stride;
            for (int i = tid; i < p.va.heavy_tokens; i += CHOOSE) {
                const int key = index[i];
                if (key >= r.lo && key < r.lo + r.mid) mark(r, bits, key);
            }
        }
        return;
    }
    const int head = blockIdx.y, kv = head / p.group, want = heavy_of(p, r), end = r.lo + r.mid,
              each = p.va.choose_keys, first = (int)blockIdx.x * each, from = max(first, r.lo),
              to = first < end ? first + min(end - first, each) : first;
    const i64 row = (i64)b * p.heads + head, item = (i64)b * p.kv_heads + kv;
    float *const scores = (float *)p.stash + stash_entry(p, b, head, 0);
    va_counts *const counts = (va_counts *)p.arrived;
    unsigned *const bits = p.va.bits + item * p.va.words;
    int copied_from = r.lo, copied_to = end;
    if (p.va.by_copy) {
        const proxy_range c = copied_range(p, b);
        copied_from = min(max(c.from, r.lo), end);
        copied_to = max(min(c.to, end), copied_from);
    }
    const int lane = tid & 31;
    int *const kept = (int *)room;
    if (tid == 0) s.kept_count = 0;
    if (tid < 256) s.bins[tid] = s.bins[256 + tid] = 0;
    /* where the sample's pairs are; stored, or it would be found out behind the wait */
    enum { PAIRS = CHOOSE_SAMPLES / 2, EACH = PAIRS / CHOOSE };
    const bool is_sampled = r.mid > 2 * CHOOSE_SAMPLES;
    int *const pair = (int *)s.bins + 512;
    if (is_sampled) {
        const unsigned step = (unsigned)r.mid / PAIRS;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const unsigned t = (unsigned)(i * CHOOSE + tid);
            pair[t] = (r.lo + (int)(t * step + (t * 2654435761u >> 8) % step)) & ~1;
        }
    }
    __syncthreads();
    wait_for_previous();                            /* by all: what is next builds on it */
    if (!want || from >= to) return;
    if (from < copied_from || to > copied_to) {
        score_exactly(p, r, b, head, from, min(to, copied_from), scores);
        score_exactly(p, r, b, head, max(from, copied_to), to, scores);
        __syncthreads();
    }
    enum { LOADS = 8 };                             /* of four scores each, on their way together */
    float y[LOADS][4];
    const auto load = [&](int base) {
        const bool whole = base >= from && base + 4 * LOADS * CHOOSE <= to;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int j = base + 4 * (i * CHOOSE + tid);
            float4 x = make_float4(MASKED, MASKED, MASKED, MASKED);
            if (whole || (j < to && j + 4 > from)) x = *(const float4 *)(scores + j);
            y[i][0] = x.x; y[i][1] = x.y; y[i][2] = x.z; y[i][3] = x.w;
        }
        if (whole) return;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int j = base + 4 * (i * CHOOSE + tid) + k;
                if (j < from || j >= to) y[i][k] = MASKED;
            }
    };
    /* 16 bits of the bound from a sample of keys that all CTAs can see, from the copy, two
       neighbours at a time: 8 bits, then 8 more */
    const unsigned least = sortable(MASK_LIMIT);
    unsigned bound = least;
    if (is_sampled) {
        float2 raw[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int j = pair[i * CHOOSE + tid];
            raw[i] = make_float2(MASKED, MASKED);
            if (j >= copied_from && j + 1 < copied_to) raw[i] = *(const float2 *)(scores + j);
        }
        load(first);
        unsigned sample[2 * EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            sample[2 * i] = sortable(raw[i].x);
            sample[2 * i + 1] = sortable(raw[i].y);
        }
        const float share = quotient_of_floats((float)want, (float)r.mid) * (float)CHOOSE_SAMPLES;
        unsigned order = (unsigned)(share + 5.0f * sqrtf(share)) + 8u, found = 0;
#pragma unroll 1
        for (int digit = 0; digit < 2; digit++) {
            unsigned *const bins = s.bins + 256 * digit;
#pragma unroll
            for (int i = 0; i < 2 * EACH; i++)
                if (!digit || sample[i] >> 24 == found)
                    atomicAdd(&bins[sample[i] >> (24 - 8 * digit) & 255], 1u);
            __syncthreads();
            /* each warp for itself: a lane has eight digits, the highest ones the first */
            const uint4 low = *(const uint4 *)&bins[248 - 8 * lane],
                        high = *(const uint4 *)&bins[252 - 8 * lane];
            const unsigned own[8] = { high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x };
            unsigned sum = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) sum += own[i];
            unsigned above = sum;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const unsigned before = __shfl_up_sync(FULL, above, o);
                if (lane >= o) above += before;
            }
            const unsigned reach = __ballot_sync(FULL, above >= order);
            const int of = reach ? __ffs((int)reach) - 1 : 31;
            above -= sum;
            int at = 0;                             /* digits that are not enough */
#pragma unroll
            for (int i = 0; i < 7; i++) {
                const bool more = at == i && above + own[i] < order;
                at += more;
                above += more ? own[i] : 0u;
            }
            found = found << 8 | (unsigned)(255 - 8 * of - __shfl_sync(FULL, at, of));
            order -= min(__shfl_sync(FULL, above, of), order);
        }
        bound = max(bound, found << 16);
        if (bound >= sortable(INFINITY)) bound = least;               /* or no bound could be found */
    } else load(first);
    const float floor = __uint_as_float(bound & 0x80000000u ? bound & 0x7fffffffu : ~bound);
    bool bad = false;
    u64 *const list = p.va.candidates + row * p.va.most_candidates;
    const unsigned most = (unsigned)p.va.most_candidates;
#pragma unroll 1
    for (int base = first; base < to; base += 4 * LOADS * CHOOSE) {
        if (base > first) load(base);
        unsigned hits = 0;
#pragma unroll
        for (int i = 0; i < 4 * LOADS; i++) {
            const float x = y[i / 4][i % 4];
            hits |= !(x < floor) ? 1u << i : 0u;
            bad |= !(x < INFINITY);
        }
        unsigned place = (unsigned)__popc(hits), start = 0;
        const unsigned own = place;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const unsigned before = __shfl_up_sync(FULL, place, o);
            if (lane >= o) place += before;
        }
        if (lane == 31) start = atomicAdd(&s.kept_count, place);
        place += __shfl_sync(FULL, start, 31) - own;
#pragma unroll 1
        for (; hits; hits &= hits - 1, place++) {
            const int i = __ffs((int)hits) - 1;
            if (place < CHOOSE_KEPT) kept[place] = base + 4 * (i / 4 * CHOOSE + tid) + i % 4;
        }
    }
    if (__any_sync(FULL, bad) && lane == 0) atomicOr(&counts[row].bad, 1u);
    __syncthreads();
    /* too many for shared memory are too many for the list, too */
    const unsigned all = s.kept_count, count = all > CHOOSE_KEPT ? 0 : all;
    if (tid == 0)
        s.first = all == count ? atomicAdd(&counts[row].entries, all)
                               : atomicOr(&counts[row].entries, 0x80000000u);
    unsigned top = 0;
    enum { TOGETHER = 4 };
#pragma unroll 1
    for (unsigned i = (unsigned)tid; i < count + (unsigned)tid; i += TOGETHER * CHOOSE) {
        int key[TOGETHER];
        float x[TOGETHER];
#pragma unroll
        for (unsigned k = 0; k < TOGETHER; k++) key[k] = kept[min(i + k * CHOOSE, count - 1)];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) x[k] = __ldcg(scores + key[k]);
        if (i == (unsigned)tid) __syncthreads();    /* s.first is known */
#pragma unroll
        for (unsigned k = 0; k < TOGETHER; k++) {
            const unsigned at = i + k * CHOOSE;
            if (at >= count) continue;
            top = max(top, sortable(x[k]));
            if (s.first + at < most) list[s.first + at] = ranked(x[k], key[k]);
        }
    }
    top = __reduce_max_sync(FULL, top);
    if (lane == 0 && top) atomicMax(&counts[row].top, top);
    const unsigned ctas = (unsigned)((end - 1) / each - r.lo / each + 1);
    __threadfence();
    __syncthreads();
    if (tid == 0) s.is_last = atomicAdd(&counts[row].done, 1u) == ctas - 1u;
    __syncthreads();
    if (!s.is_last) return;
    __threadfence();
    /* heads of the group that are here, in the upper half those whose marks are, too */
    unsigned *const heads_done = p.va.heads_done + item;
    if (tid == 0 && p.va.by_copy)
        s.ends_group = (atomicAdd(heads_done, 1u) & 0xffffu) == (unsigned)p.group - 1u;
    const uint4 have = __ldcg((const uint4 *)(counts + row));         /* entries, top */
    const bool fits = have.x >= (unsigned)want && have.x <= most;
    choose_heavy(s, r, bits, scores, fits ? list : nullptr, fits ? (int)have.x : r.mid, (u64 *)room,
                 (unsigned)want, (u64)(fits ? bound : least) << 32,
                 fits ? (u64)have.y << 32 | 0xffffffffu : ~(u64)0);
    if (!p.va.by_copy) return;
    __syncthreads();
    unsigned wrong = 0;
#pragma unroll 1
    for (int g = 0; s.ends_group && g < p.group; g++)
        wrong |= __ldcg(&counts[(i64)b * p.heads + kv * p.group + g].bad);
    if (!wrong) {
        if (tid == 0) { __threadfence(); atomicAdd(heads_done, 0x10000u); }
        return;
    }
    if (tid == 0) while (atomicAdd(heads_done, 0u) >> 16 < (unsigned)p.group - 1u) { }
    __threadfence();
    __syncthreads();
    if (tid == 0) *heads_done = 0;                  /* all keys have been looked at */
#pragma unroll 1
    for (int i = tid; i < (r.mid + 127) / 128; i += CHOOSE) *((uint4 *)bits + i) = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int g = 0; g < p.group; g++) {
        const int h = kv * p.group + g;
        float *all = (float *)p.stash + stash_entry(p, b, h, 0);
        score_exactly(p, r, b, h, r.lo, end, all);
        __threadfence();
        __syncthreads();
        bool worse = false;
#pragma unroll 1
        for (int j = r.lo + tid; j < end; j += CHOOSE) worse |= !(all[j] < INFINITY);
        const int any = __syncthreads_or(worse);
        if (tid == 0) counts[(i64)b * p.heads + h].bad = (unsigned)any;
        choose_heavy(s, r, bits, all, nullptr, r.mid, (u64 *)room, (unsigned)want, (u64)least << 32,
                     ~(u64)0);
    }
}

/* The base sample of `left` keys, unless that is all of them. */
__device__ __forceinline__ int base_of(const params &p, int left) {
    return p.va.base_samples < 0 ? max(fortieth(-1, left), 32) : p.va.base_samples;
}

/* With the heavy tokens in the set: how many keys of the row are read exactly, the base sample,
   the list of both.
   Grid: (part of the middle, KV head, batch). A CTA of 512 threads; those of a KV head all
   count and draw, each lists its part. Before the wait it draws what is needed whatever the
   heavy tokens are. Reads the set; writes the list and the set with the sample.
   Latency-bound. */
__global__ void __launch_bounds__(CHOOSE) k_va_fill(const __grid_constant__ params p) {
    DYNAMIC_SHARED(room);
    SHARED(s, set_memory);
    const int tid = threadIdx.x, kv = blockIdx.y, b = blockIdx.z;
    const i64 item = (i64)b * p.kv_heads + kv;
    const middle r = middle_of(p, b);
    const int n = r.end - r.begin, sinks = r.lo - r.begin, local = n - sinks - r.mid;
    const key_set set = set_of(p, item, r, p.va.bits, (unsigned *)room);
    const bool is_shared = p.va.shared_words >= p.va.words;
    const int share = (set.fours + (int)gridDim.x - 1) / (int)gridDim.x,
              first = min((int)blockIdx.x * share, set.fours), last = min(first + share, set.fours);
    launch_dependents();
    int want = 0;
    if (p.va.by_scores) want = heavy_of(p, r);
    else if (p.va.index) want = p.va.heavy_tokens;
    const int least = r.mid - (int)min((i64)want * p.group, (i64)r.mid);
    unsigned early = 0;
    if (is_shared) {
        const int sure = base_of(p, least);
        if (sure > 64 && sure <= least - sure) early = (unsigned)sure;
#pragma unroll 1
        for (int i = tid; i < set.fours; i += CHOOSE) *((uint4 *)set.taken + i) = make_uint4(0, 0, 0, 0);
        __syncthreads();
        if (early) take_places(p, set, row_key<1>(p, b), kv, 0, early);
    }
    wait_for_previous();
    __syncthreads();
    /* heavy tokens, those before this part, keys that have been drawn and are none */
    unsigned sums[3] = { 0, 0, 0 };
#pragma unroll 2
    for (int i = tid; i < set.fours; i += CHOOSE) {
        const uint4 x = set.load(set.bits, i);
        const unsigned count = (unsigned)(__popc(x.x) + __popc(x.y) + __popc(x.z) + __popc(x.w));
        uint4 y = make_uint4(0, 0, 0, 0);
        if (early) y = *((uint4 *)set.taken + i);
        sums[0] += count;
        if (i < first) sums[1] += count;
        sums[2] += (unsigned)(__popc(y.x & ~x.x) + __popc(y.y & ~x.y) + __popc(y.z & ~x.z)
                              + __popc(y.w & ~x.w));
        *((uint4 *)set.taken + i) = make_uint4(y.x | x.x, y.y | x.y, y.z | x.z, y.w | x.w);
    }
    cta_sums<3>(s, sums);
    const int fixed = sinks + (int)sums[0] + local, residual = n - fixed;
    int *const list = p.va.list + item * p.va.list_pitch,
        *const others = list + whole_portions(p, fixed) * p.list_keys;
    if (blockIdx.x == 0) {
#pragma unroll 1
        for (int i = tid; i < sinks; i += CHOOSE) list[i] = r.begin + i;
#pragma unroll 1
        for (int i = tid; i < local; i += CHOOSE) list[fixed - local + i] = r.end - local + i;
    }
    int base = base_of(p, residual);
    u64 at = 0;
    bool rest = true;                               /* the sample is all that is not taken */
    if (base < residual) rest = draw_keys(p, s, set, b, kv, base, residual, early, sums[2], &at);
    else base = 0;
    if (blockIdx.x == 0 && tid == 0) {
        va_row x = {};
        x.fixed = fixed;
        x.residual = residual;
        x.base = base;
        x.budget = base ? base : residual;
        if (p.va.by_scores && want) {
            x.looked = r.mid;
            if (p.va.by_copy && __ldcg(p.va.heads_done + item)) {
                const proxy_range c = copied_range(p, b);
                const int from = min(max(c.from, r.lo), r.lo + r.mid);
                x.looked -= max(min(c.to, r.lo + r.mid), from) - from;
            }
        }
        x.at = at;
        p.va.rows[item] = x;
    }
    unsigned before[1] = { 0 };                     /* taken, of the parts before this one */
    for (int i = tid; i < first; i += CHOOSE) {
        const uint4 x = *((const uint4 *)set.taken + i);
        before[0] += (unsigned)(__popc(x.x) + __popc(x.y) + __popc(x.z) + __popc(x.w));
    }
    cta_sums<1>(s, before);
    int fixed_at = sinks + (int)sums[1],
        other_at = rest ? 128 * first - (int)before[0] : (int)(before[0] - sums[1]);
    unsigned *const listed = p.va.listed + item * p.va.words;
#pragma unroll 1
    for (int from = 4 * first; from < 4 * last; from += CHOOSE) {
        const int w = from + tid;
        unsigned in = 0, x = 0, total;
        if (w < 4 * last) {
            const unsigned valid = set.valid(w), now = *(volatile unsigned *)(set.taken + w);
            in = __ldcg(set.bits + w) & valid;
            x = (rest ? ~now : now & ~in) & valid;
            listed[w] = in | x;
        }
        const unsigned sum = cta_prefix(s, (unsigned)__popc(in) | (unsigned)__popc(x) << 16, &total);
        int *to = list + fixed_at + (int)(sum & 0xffffu);
        for (unsigned y = in; y; y &= y - 1) *to++ = r.lo + 32 * w + __ffs((int)y) - 1;
        to = others + other_at + (int)(sum >> 16);
        for (unsigned y = x; y; y &= y - 1) *to++ = r.lo + 32 * w + __ffs((int)y) - 1;
        fixed_at += (int)(total & 0xffffu);
        other_at += (int)(total >> 16);
    }
    static_assert(CHOOSE * 32 < 65536, "two counts in a number");
}

/* The sums of k_list for what that does not take: any type and stride, and the full guarantee,
   which wants those of squares times |V|^2.
   Grid: (KV head x slice of heads x batch, a share of the portions). A CTA as `attend` has
   it. */
__global__ void __launch_bounds__(SCORE_WARPS * 32) k_va_attend(const __grid_constant__ params p) {
    DYNAMIC_SHARED(room);
    attend_memory<FIXED_HEADS> &memory = *(attend_memory<FIXED_HEADS> *)room;
    const unsigned item = p.by_slices.quotient(blockIdx.x), b = p.by_kv.quotient(item);
    const int slice = (int)(blockIdx.x - item * p.by_slices.d), kv = (int)(item - b * p.by_kv.d),
              head = kv * p.group + slice * FIXED_HEADS;
    if (p.va.pass) launch_dependents();
    wait_for_previous();
    if (!p.va.pass) launch_dependents();            /* rows are there: see k_va_result */
    const va_row x = p.va.rows[item];
    const middle r = middle_of(p, (int)b);
    const int last = first_portion(p, x, p.va.pass + 1);
#pragma unroll 1
    for (int i = first_portion(p, x, p.va.pass) + (int)blockIdx.y; i < last; i += (int)gridDim.y) {
        attend(p, memory, (int)b, head, min(p.group - slice * FIXED_HEADS, (int)FIXED_HEADS), r.position, 0,
               portion_end(p, x, i) - i * p.list_keys, 0, 0, 0, 1, (char *)room + sizeof memory,
               p.stage_bytes,
               p.va.sums + (((i64)b * p.heads + head) * p.va.portions + i) * (p.dv + 4),
               (i64)p.va.portions * (p.dv + 4),
               p.va.list + (i64)item * p.va.list_pitch + (i64)i * p.list_keys, p.va.full ? 2 : 1);
        __syncthreads();
    }
}

/* Quantiles and budgets as santa.h has them in >>budgets-code. */

__device__ __noinline__ double upper_quantile(double q) {
    const double t = sqrt(-2.0 * log(q));
    double z = t;
    if (q < 1e-290) return t;                       /* no delta is so small: santa_check */
    z = t - (2.515517 + t * (0.802853 + t * 0.010328))
          / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        const double density = exp(-0.5 * z * z) * 0.39894228040143267794;
        if (!(density > 0.0)) break;
        z += (0.5 * erfc(z * 0.70710678118654752440) - q) / density;
    }
    return z;
}

__device__ __noinline__ double va_z(const params &p, double delta) {
    return p.va.bound == SANTA_BOUND_CLT ? upper_quantile(0.5 * delta) : sqrt(2.0 * log(2.0 / delta));
}

__device__ __forceinline__ double relative_spread(double population, double spread, double total) {
    if (!(spread > 0.0)) return 0.0;
    return total > 0.0 ? population * spread / total : 1e300;
}

__device__ __forceinline__ int budget_of(double x, int population) {
    const double n = (double)population, b0 = x * x;
    if (population == 0 || !(x > 0.0)) return 0;
    if (!(b0 < 1e300)) return population;
    const double b = ceil(b0 / (1.0 + b0 / n) * (1.0 - 1e-12));
    return b < n ? (int)b : population;
}

/* The least z(x) a + z(delta - x) c over x, by a warp: 32 points, then 32 between the
   neighbours of the best one. z is convex. */
__device__ __noinline__ double best_split(const params &p, double a, double c) {
    const double delta = p.va.delta;
    double lo = p.va.bound == SANTA_BOUND_CLT && delta > 0.215 ? delta - 0.215 : 0.0, hi = delta,
           best = 0.0;
    if (!(c > 0.0)) return va_z(p, delta) * a;
    if (!(a > 0.0)) return va_z(p, delta - lo) * c;
#pragma unroll 1
    for (int i = 0; i < 7; i++) {
        const double step = (hi - lo) / 33.0, x = lo + step * (double)((threadIdx.x & 31) + 1),
                     f = va_z(p, x) * a + va_z(p, delta - x) * c;
        double least = f, at = x;
#pragma unroll 1
        for (int o = 16; o; o >>= 1) {
            const double g = __shfl_xor_sync(FULL, least, o), y = __shfl_xor_sync(FULL, at, o);
            if (g < least || (g == least && y < at)) { least = g; at = y; }
        }
        best = i == 0 ? least : fmin(best, least);
        lo = fmax(at - step, lo);
        hi = fmin(at + step, hi);
    }
    return best;
}

/* What head `head` needs, by a warp. */
__device__ __noinline__ int head_needs(const params &p, const va_row &row, int b, int head) {
    const int fixed = whole_portions(p, row.fixed), last = first_portion(p, row, 1);
    const int lane = threadIdx.x & 31;
    const i64 pitch = p.dv + 4, at = (i64)b * p.heads + head;
    const float *sums = p.va.sums + at * p.va.portions * pitch;
    /* four portions a lane at a time, all on their way together */
    enum { OWN = 4 };
    float m = MASKED;
    double d[2] = { 0.0, 0.0 }, squares = 0.0, trace = 0.0, norm = 0.0, mean = 0.0;
#pragma unroll 1
    for (int base = 0; base < last; base += 32 * OWN) {
        float x[OWN][4], top = m;
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int i = base + 32 * k + lane;
#pragma unroll
            for (int c = 0; c < 4; c++)
                x[k][c] = i < last ? __ldcg(sums + i * pitch + p.dv + c) : c ? 0.0f : MASKED;
        }
#pragma unroll
        for (int k = 0; k < OWN; k++) top = fmaxf(top, x[k][0]);
#pragma unroll
        for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
        const double keep = m < MASK_LIMIT ? 0.0 : (double)pow2(m - top);
        d[0] = d[0] == d[0] ? d[0] * keep : d[0];
        d[1] = d[1] == d[1] ? d[1] * keep : d[1];
        squares *= keep * keep;
        trace *= keep * keep;
        m = top;
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const bool sampled = base + 32 * k + lane >= fixed;
            const double f = x[k][0] < MASK_LIMIT ? 0.0 : (double)pow2(x[k][0] - m);
            const double mass = f * (double)x[k][1];  /* NaN stays, since 0 * NaN is one */
            d[0] += sampled ? 0.0 : mass;
            d[1] += sampled ? mass : 0.0;
            squares += sampled ? f * f * (double)x[k][2] : 0.0;
            trace += sampled ? f * f * (double)x[k][3] : 0.0;
        }
    }
    const auto lift_of = [&](int i) {
        const float top = sums[i * pitch + p.dv];
        return top < MASK_LIMIT ? 0.0f : pow2(top - m);
    };
#pragma unroll 1
    for (int o = 16; o; o >>= 1) {
        d[0] += __shfl_xor_sync(FULL, d[0], o);
        d[1] += __shfl_xor_sync(FULL, d[1], o);
        squares += __shfl_xor_sync(FULL, squares, o);
        trace += __shfl_xor_sync(FULL, trace, o);
    }
    const double nb = (double)row.base, w = (double)row.residual / nb, all = (double)row.residual;
    const double top = (double)m * 0.69314718055994530942;
    double sink = 0.0;
    if (p.sinks && p.sinks[head] != -INFINITY) sink = exp(fmin((double)p.sinks[head] - top, 600.0));
    va_head x;
    x.top = m;
    x.sigma = sqrt(fmax((squares - d[1] * d[1] / nb) / (nb - 1.0), 0.0));
    x.denominator = d[0] + w * d[1] + sink;
    x.trace = x.norm = 0.0;
    const bool bad = !(d[0] <= DBL_MAX && d[1] <= DBL_MAX) || (p.sinks && p.sinks[head] != p.sinks[head])
                  || (p.va.by_scores && ((va_counts *)p.arrived)[at].bad);
    double spread = relative_spread(all, x.sigma, x.denominator);
    bool finite = true;
    if (p.va.full) {
        for (int c = lane; c < p.dv; c += 32) {
            float y[2] = { 0.0f, 0.0f };
#pragma unroll 4
            for (int i = 0; i < last; i++) {
                const float z = lift_of(i) * sums[i * pitch + c];
                y[0] += i < fixed ? z : 0.0f;
                y[1] += i < fixed ? 0.0f : z;
            }
            const double whole = (double)y[0] + w * (double)y[1], part = (double)y[1] / nb;
            norm += whole * whole;
            mean += part * part;
        }
#pragma unroll 1
        for (int o = 16; o; o >>= 1) {
            norm += __shfl_xor_sync(FULL, norm, o);
            mean += __shfl_xor_sync(FULL, mean, o);
        }
        finite = norm <= DBL_MAX && trace <= DBL_MAX;     /* a NaN in V: nothing can be promised */
        x.trace = fmax((trace / nb - mean) * (nb / (nb - 1.0)), 0.0);
        x.norm = sqrt(fmax(norm - x.trace * all * (all - nb) / nb, 0.0));
        spread = 2.0 * best_split(p, spread, relative_spread(all, sqrt(x.trace), x.norm));
    } else spread *= p.va.z;
    x.needed = bad ? row.base : !finite ? row.residual
                                        : max(budget_of(spread / p.va.epsilon, row.residual), row.base);
    if (lane == 0) p.va.heads[at] = x;
    return x.needed;
}

/* The stats of a KV head's row; looked, copied: its rows of K and of the copy that were read to
   choose. */
__device__ __forceinline__ void count_va_row(const params &p, i64 keys, i64 fixed, i64 drawn, i64 looked,
                                             bool exact, i64 copied) {
    const auto add = [](int64_t *field, i64 i) { atomicAdd((u64 *)field, (u64)i); };
    const i64 read = fixed + drawn, k_rows = min(keys, read + looked);
    add(&p.stats->rows, p.group);
    add(&p.stats->keys, keys);
    add(&p.stats->k_rows_read, k_rows);
    add(&p.stats->k_features_read, k_rows * p.d);
    add(&p.stats->k_features_head, k_rows * p.d * p.group);
    add(&p.stats->v_rows_read, read);
    add(&p.stats->v_rows_head, read * p.group);
    add(&p.stats->draws, drawn * p.group);
    if (exact) add(&p.stats->exact_rows, p.group);
    if (copied) add(&p.stats->proxy_rows_read, copied);
}

/* fixed + residual / budget * sample: shared.sums of 128 columns of V of a head, *all of the
   weights; returns the highest score. By a CTA of 512 threads, four to a column, as k_combine.
   It may be run twice, so it loads past L1. */
__device__ __noinline__ float add_portions(const params &p, combine_memory &shared, const va_row &row,
                                           i64 at, double *all) {
    const int tid = threadIdx.x, quarter = tid / 128,
              column = min((int)blockIdx.z * 128 + tid % 128, p.dv - 1);
    const i64 pitch = p.dv + 4;
    const int fixed = whole_portions(p, row.fixed), last = first_portion(p, row, 2);
    const double w = row.budget > 0 ? quotient((double)row.residual, (double)row.budget) : 1.0;
    const float *sums = p.va.sums + at * p.va.portions * pitch;
    float m = MASKED, sum[2] = { 0.0f, 0.0f };
    double total = 0.0;
#pragma unroll 1
    for (int i = tid; i < last; i += 512) m = fmaxf(m, __ldcg(sums + i * pitch + p.dv));
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
    if (tid % 32 == 0) shared.tops[tid / 32] = m;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) m = fmaxf(m, shared.tops[i]);
    for (int base = 0; base < last; base += 128) {
        const int count = min(last - base, 128);
        float lift = 0.0f;
        __syncthreads();
        if (tid < count) {
            const float *x = sums + (base + tid) * pitch + p.dv;
            const float top = __ldcg(x), mass = __ldcg(x + 1);
            lift = top < MASK_LIMIT ? mass == mass ? 0.0f : mass : pow2(top - m);
            total += (base + tid < fixed ? 1.0 : w) * (double)lift * (double)mass;
        }
        if (tid < 128) shared.weight[tid] = lift;
        __syncthreads();
#pragma unroll 8
        for (int i = quarter; i < count; i += 4) {
            const float x = shared.weight[i] * __ldcg(sums + (base + i) * pitch + column);
            sum[0] += base + i < fixed ? x : 0.0f;
            sum[1] += base + i < fixed ? 0.0f : x;
        }
    }
    __syncthreads();
    const double mine = (double)sum[0] + w * (double)sum[1];
    shared.sums[quarter][tid % 128] = (float)mine;
    cta_scan<16>(total, shared.scratch, all);       /* its barriers also order sums */
    return m;
}

/* Of these out, lse, audit and stats. */
__device__ __noinline__ void write_result(const params &p, const combine_memory &shared, const va_row &row,
                                          int b, int head, float m, double all) {
    const int tid = threadIdx.x, kv = head / p.group, k = blockIdx.z * 128 + tid % 128;
    const i64 at = (i64)b * p.heads + head;
    const middle r = middle_of(p, b);
    const bool bad = !(all <= DBL_MAX) || (p.va.by_scores && ((va_counts *)p.arrived)[at].bad);
    if (tid == 511 && blockIdx.z == 0) {
        const int keys = r.end - r.begin;
        if (p.lse)
            p.lse[lse_of(p, b, p.q_index, head)]
                = bad ? __int_as_float(0x7fc00000) : head_lse(p, head, m, all);
        if (p.va.audit) {
            santa_audit x = {};
            const double top = (double)m * 0.69314718055994530942;
            if (keys) {
                x.num_keys = keys;
                x.num_residual = row.residual;
                x.num_fixed = row.fixed;
                x.num_base = row.base;
                x.budget = row.budget;
                x.exact = row.budget == row.residual;
                x.density = quotient((double)(row.fixed + row.budget), (double)keys);
                x.max_score = top;
                x.needed = row.budget;
                x.denominator = all;
                if (p.sinks && p.sinks[head] != -INFINITY)
                    x.denominator += exp(fmin((double)p.sinks[head] - top, 600.0));
            }
            if (row.base) {
                const volatile va_head &y = p.va.heads[at];         /* L1 may have it as it was */
                const double f = exp((double)(y.top - m) * 0.69314718055994530942);
                x.needed = y.needed;
                x.sigma = y.sigma * f;
                x.denominator = y.denominator * f;
                x.norm = y.norm * f;
                x.trace = y.trace * (f * f);
            }
            p.va.audit[result_of(p, b, p.q_index, head)] = x;
        }
        if (p.stats && head == kv * p.group) {
            int copied = 0;
            if (p.va.by_scores && p.va.by_copy && heavy_of(p, r)) {
                const proxy_range c = copied_range(p, b);
                copied = max(min(c.to, r.lo + r.mid) - max(c.from, r.lo), 0);
            }
            count_va_row(p, keys, row.fixed, row.budget, row.looked,
                         keys && row.budget == row.residual, copied);
        }
    }
    if (tid >= 128 || k >= p.dv) return;
    const float x
        = (shared.sums[0][tid] + shared.sums[1][tid]) + (shared.sums[2][tid] + shared.sums[3][tid]);
    const float f = bad       ? __int_as_float(0x7fc00000)
                  : all > 0.0 ? (float)((double)x * quotient(sink_share(p, head, m, all), all)) * p.v_scale
                              : 0.0f;
    store_any(p.out_type, p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1] + head * p.out_stride[2]
                              + k * p.out_stride[3], f);
}

/* The budget of a KV head's row, and the keys that it adds to the base sample.
   Grid: (KV head, batch). A CTA of 512 threads: a warp for each head of the group, then all
   draw. k_va_result waits for the steps that it shows. */
__global__ void __launch_bounds__(CHOOSE) k_va_budget(const __grid_constant__ params p) {
    DYNAMIC_SHARED(room);
    SHARED(s, set_memory);
    const int tid = threadIdx.x, warp = this_warp(), kv = blockIdx.x, b = blockIdx.y;
    const i64 item = (i64)b * p.kv_heads + kv;
    const auto show = [&](int step) {               /* behind a barrier */
        if (tid) return;
        __threadfence();
        atomicExch(&p.va.rows[item].step, step);
    };
    launch_dependents();
    wait_for_previous();
    show(1);
    va_row row = p.va.rows[item];
    if (row.base) {
        if (tid == 0) s.needed = (unsigned)row.base;
        __syncthreads();
#pragma unroll 1
        for (int g = kv * p.group + warp; g < (kv + 1) * p.group; g += CHOOSE / 32) {
            const int needed = head_needs(p, row, b, g);
            if ((tid & 31) == 0) atomicMax(&s.needed, (unsigned)needed);
        }
        __threadfence();                            /* p.va.heads */
        __syncthreads();
        row.budget = (int)min(s.needed, (unsigned)row.residual);
        if (tid == 0) p.va.rows[item].budget = row.budget;
    }
    show(2);
    if (p.ranks || !row.base || row.budget == row.base) return;       /* ranks: see k_va_ranks */
    const middle r = middle_of(p, b);
    const key_set set = set_of(p, item, r, p.va.listed, (unsigned *)room);
    int *list = p.va.list + item * p.va.list_pitch + (i64)first_portion(p, row, 1) * p.list_keys;
    for (int i = tid; i < set.fours; i += CHOOSE) *((uint4 *)set.taken + i) = set.load(set.bits, i);
    __syncthreads();
    bool rest = true;
    if (row.budget < row.residual)
        rest = draw_keys(p, s, set, b, kv, row.budget - row.base, row.residual - row.base, 0, 0, &row.at);
    list_drawn(s, set, rest, r.lo, list);
}

/* Results of the heads. As a rule the base sample is the budget, so its sums are added while
   k_va_budget finds that out, and once more should keys have joined.
   It does not wait for the kernels before it to end but for the steps that k_va_budget shows.
   May it? The launch is allowed when all CTAs of the kernel before have begun, theirs when all
   of k_va_budget have: none of these needs the room that its CTAs take. Rows are there by then,
   too. Grid: (query head, batch, 128 columns of V). A CTA of 512 threads. Latency-bound. */
__global__ void __launch_bounds__(CHOOSE, 3) k_va_result(const __grid_constant__ params p) {
    SHARED(shared, combine_memory);
    const int tid = threadIdx.x, head = blockIdx.x, b = blockIdx.y;
    const i64 at = (i64)b * p.heads + head;
    va_row *const shown = p.va.rows + (i64)b * p.kv_heads + head / p.group;
    const auto wait_for = [&](int step) {
        if (tid == 0) while (atomicAdd(&shown->step, 0) < step) { }
        __threadfence();
        __syncthreads();
    };
    wait_for(1);
    va_row row = *shown;
    row.budget = row.base ? row.base : row.residual;
    double all;
    float m = add_portions(p, shared, row, at, &all);
    wait_for(2);
    const int budget = __ldcg(&shown->budget);
    if (budget != row.budget) {
        wait_for_previous();
        row.budget = budget;
        m = add_portions(p, shared, row, at, &all);
    }
    write_result(p, shared, row, b, head, m, all);
    wait_for_previous();                            /* or it could end before they do */
}

/* vAttention over ranks: the sets, the sample and the budget of one GPU. Positions count the
   keys between sinks and local tokens of all ranks, whose parts of a row lie one behind the
   other. Which words of the random stream draw a key depends on which keys are heavy in other
   ranks. So each rank notes the first word that names each of its free keys. The sample are the
   keys whose first words are lowest in all ranks, below a threshold that two exchanges find.
   Steps of one kernel:
     COUNT    how many keys are here: an exchange
     MASK     scores of other keys than those between; then one exchange or four choose heavy
              ones
     MARK     these, and how many keys are left: an exchange
     WORDS    the first words
     STEPS    how many keys have them in each of 1024 steps: an exchange
     UNITS    the same in each part of the step with the threshold: an exchange
     SLICES   what PICK goes by, and how many keys of each slice it will list
     PICK     the list of the keys
     SUMS     of what is listed: an exchange
     JOIN     these of all ranks, then k_va_budget; WORDS to PICK for the rest of the sample
     RESULT   of the keys here
   What all ranks decide they take from numbers that are the same on all of them. */

/* A row's keys here, as `middle`. Of all ranks how many there are, and how many lie between
   sinks and local tokens; how many of these come before lo. Too many for an int: none here. */
struct rank_row : middle { i64 all; int all_mid, before, heavy; };

__device__ __noinline__ rank_row row_of_ranks(const params &p, int b) {
    rank_row r;
    i64 offset = 0, all = 0;
    key_range(p, b, r.begin, r.end, r.position);
#pragma unroll 1
    for (int i = 0; i < p.ranks; i++) {
        if (i == p.rank) offset = all;
        all += max(p.tile_counts[(i64)i * p.batch + b], (i64)0);
    }
    r.all = all;
    if (all > INT32_MAX) { r.end = r.begin; all = offset = 0; }
    const i64 n = r.end - r.begin, sinks = min((i64)p.va.sink_tokens, all),
              local = min((i64)p.va.local_tokens, all - sinks),
              from = min(max(sinks - offset, (i64)0), n), to = min(max(all - local - offset, (i64)0), n);
    r.lo = r.begin + (int)from;
    r.mid = (int)(to - from);
    r.all_mid = (int)(all - local - sinks);
    r.before = (int)(offset + from - sinks);
    r.heavy = min(fortieth(p.va.heavy_tokens, (int)all), r.all_mid);
    return r;
}

__device__ int heavy_of_ranks(const params &p, int b) { return row_of_ranks(p, b).heavy; }

/* These are called from several places. */
__device__ __noinline__ int portions_before(const params &p, const va_row &x, int pass) {
    return pass < 0 ? whole_portions(p, x.fixed) : first_portion(p, x, pass);
}
__device__ __noinline__ unsigned keys_before(set_memory &s, unsigned x, unsigned *total) {
    return cta_prefix(s, x, total);
}
/* How many keys of the middle a copy has. */
__device__ __noinline__ int copied_keys(const params &p, const middle &r, int b, int *from) {
    const proxy_range c = copied_range(p, b);
    *from = min(max(c.from, r.lo), r.lo + r.mid);
    return max(min(c.to, r.lo + r.mid) - *from, 0);
}

/* Scores that heavy tokens are chosen from, others masked, and the largest of each block. Keys
   that a copy does not have are scored exactly. A warp has a block at a time, a lane two
   keys. */
__device__ __forceinline__ void mask_scores(const params &p, const rank_row &r, int b, int head) {
    const int lane = threadIdx.x & 31, end = r.lo + r.mid,
              last = r.begin < r.end ? (r.end - 1) / BLOCK : -1;
    const i64 row = (i64)b * p.heads + head;
    float2 *const scores = (float2 *)((float *)p.stash + stash_entry(p, b, head, 0));
    int from = r.lo, to = end;
    if (p.va.by_copy) to = copied_keys(p, r, b, &from) + from;
    const int step = (int)gridDim.x * (CHOOSE / 32);
    int block = r.begin / BLOCK + (int)blockIdx.x * (CHOOSE / 32) + this_warp();
    float2 next = block <= last ? scores[block * (BLOCK / 2) + lane] : make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (; block <= last; block += step) {
        const int first = block * BLOCK, j = first + 2 * lane;
        const float2 y = next;
        if (block + step <= last) next = scores[(block + step) * (BLOCK / 2) + lane];
        float x[2] = { j >= r.lo && j < end ? y.x : MASKED, j + 1 >= r.lo && j + 1 < end ? y.y : MASKED };
        if (max(first, r.lo) < from || min(first + (int)BLOCK, end) > to)
#pragma unroll 1
            for (int i = max(first, r.lo); i < min(first + (int)BLOCK, end); i++) {
                if (i >= from && i < to) continue;
                const float score = exact_score(p, b, head, i, r.position);
                if (i == j) x[0] = score;
                if (i == j + 1) x[1] = score;
            }
        if (!(x[0] < INFINITY && x[1] < INFINITY)) {
            atomicOr(&((va_counts *)p.arrived)[row].bad, 1u);
            if (!(x[0] < INFINITY)) x[0] = MASKED;
            if (!(x[1] < INFINITY)) x[1] = MASKED;
        }
        scores[j / 2] = make_float2(x[0], x[1]);
        float top = fmaxf(x[0], x[1]);
#pragma unroll
        for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
        if (lane == 0)
            p.block_sums[row * p.blocks + block] = make_float2(top, top < MASK_LIMIT ? 0.0f : 1.0f);
    }
}

/* The heavy keys here to the KV head's set, which is empty before, and how many keys are left.
   By any number of CTAs. */
__device__ __forceinline__ void mark_heavy(const params &p, word_memory &s, const rank_row &r, int b,
                                           int kv) {
    const i64 item = (i64)b * p.kv_heads + kv;
    unsigned *const bits = p.va.bits + item * p.va.words;
    unsigned marked = 0, total;
#pragma unroll 1
    for (int g = 0; g < p.group && (p.va.by_scores || p.va.index); g++) {
        const int head = kv * p.group + g;
        const i64 row = (i64)b * p.heads + head, place = result_of(p, b, p.q_index, head);
        const int *const keys = p.va.by_scores ? p.keys + row * p.max_draws
                                               : p.va.index + place * p.va.index_stride;
        const int count = p.va.by_scores ? p.draws[row] : p.va.heavy_tokens,
                  before = p.va.by_scores || !p.context_lens ? 0 : p.first_key;
#pragma unroll 1
        for (int i = (int)blockIdx.x * CHOOSE + (int)threadIdx.x; i < count; i += CHOOSE * (int)gridDim.x) {
            const i64 key = (i64)keys[i] - before;
            if (key >= r.lo && key < r.lo + r.mid) marked += mark(r, bits, (int)key);
        }
    }
    keys_before(s, marked, &total);
    if (threadIdx.x == 0)
        atomicAdd((u64 *)p.tile_count + p.batch + item, (u64)((blockIdx.x ? 0 : (i64)r.mid) - (i64)total));
}

__device__ __forceinline__ word_plan plan_of(const params &p, const rank_row &r, i64 item) {
    word_plan x = {};
    if (p.va.pass) {
        const va_row all = p.joint.rows[item];
        x.left = all.residual - all.base;
        x.count = all.base ? all.budget - all.base : 0;
        x.at = all.at;
    } else {
        const i64 items = (i64)p.batch * p.kv_heads, *const told
            = p.tile_counts + (i64)p.ranks * p.batch + item;
        i64 left = 0;
#pragma unroll 1
        for (int i = 0; i < p.ranks; i++) left += max(told[i * items], (i64)0);
        x.left = (int)min(left, (i64)r.all_mid);
        x.count = min(base_of(p, x.left), x.left);
    }
    x.rest = x.count > x.left - x.count;
    x.draws = x.rest ? x.left - x.count : x.count;
    if (!x.draws) return x;
    const unsigned size = (unsigned)r.all_mid, uneven = (0u - size) % size;
    const double draws = (double)x.draws,
                 hits = ((double)(x.left - x.draws) + 1.0) * (4294967296.0 - (double)uneven),
                 words = (double)size * 4294967296.0 / hits * (draws + 8.0 * sqrt(draws) + 40.0);
    x.words = (unsigned)fmin(words, 536870911.0) + 1;                 /* a unit has 128 at most */
    x.unit = max(10 - __clz((int)x.words - 1), 0);
    x.step = max(22 - __clz((int)((x.words - 1) >> x.unit)), 0);
    return x;
}

/* The first word that names each free key here; p.joint.first is ~0 before. */
__device__ __forceinline__ void try_words(const params &p, const rank_row &r, const word_plan &x, int b,
                                          int kv) {
    const i64 item = (i64)b * p.kv_heads + kv;
    const unsigned *const bits = p.va.bits + item * p.va.words;
    unsigned *const first = p.joint.first + item * 32 * p.va.words;
    const unsigned size = (unsigned)r.all_mid, uneven = (0u - size) % size;
    const u64 key = row_key<1>(p, b);
#pragma unroll 1
    for (unsigned i = (unsigned)(blockIdx.x * CHOOSE + threadIdx.x); i < x.words; i += CHOOSE * gridDim.x) {
        const u64 at = x.at + i;
        const uint4 y = sample_words(p, key, kv, at);
        const u64 wide = (u64)(at & 2 ? at & 1 ? y.w : y.z : at & 1 ? y.y : y.x) * size;
        const i64 place = (i64)(wide >> 32) - r.before;
        if ((unsigned)wide < uneven || place < 0 || place >= r.mid) continue;
        if (!(bits[place >> 5] >> (place & 31) & 1u)) atomicMin(first + place, i);
    }
}

/* The bin of all ranks where `want` keys are reached; of it s.left are wanted. Below 0:
   nowhere. level 0: steps of 32 bits, 1: units of 8. By a CTA. */
__device__ __noinline__ int choose_bin(const params &p, word_memory &s, int level, i64 item,
                                       unsigned want) {
    const i64 items = (i64)p.batch * p.kv_heads;
    const unsigned *const all = p.joint.all_bins + (level * p.ranks * items + item) * WORD_BINS;
    const int tid = threadIdx.x, each = level ? 8 : 2;
    const auto keys = [&](int bin) {
        unsigned sum = 0;
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++) {
            const unsigned *const x = all + r * items * WORD_BINS;
            sum += level ? x[bin / 4] >> 8 * (bin & 3) & 255u : x[bin];
        }
        return sum;
    };
    unsigned sum = 0, total;
#pragma unroll 1
    for (int k = 0; k < each; k++) sum += keys(each * tid + k);
    unsigned before = keys_before(s, sum, &total);
    if (tid == 0) s.bin = -1;
    __syncthreads();
    if (before < want && want <= before + sum) {
        int bin = each * tid;
#pragma unroll 1
        for (unsigned own; before + (own = keys(bin)) < want; bin++) before += own;
        s.bin = bin;
        s.left = want - before;
    }
    __syncthreads();
    return s.bin;
}

/* How many keys here have their first word in each step, or, in UNITS, in each unit of the one
   with the threshold. These are at most as many as a unit has words. */
__device__ __forceinline__ void count_words(const params &p, word_memory &s, const rank_row &r,
                                            const word_plan &x, i64 item) {
    const int tid = threadIdx.x, level = p.rank_step == UNITS,
              chosen = level ? choose_bin(p, s, 0, item, (unsigned)x.draws) : 0;
#pragma unroll 1
    for (int i = tid; i < WORD_BINS; i += CHOOSE) s.bins[i] = 0;
    __syncthreads();
    const unsigned *const first = p.joint.first + item * 32 * p.va.words;
#pragma unroll 1
    for (int i = (int)blockIdx.x * CHOOSE + tid; i < r.mid; i += CHOOSE * (int)gridDim.x) {
        const unsigned word = first[i], unit = word >> x.unit, in = unit & ((1u << x.step) - 1u);
        if (word >= x.words) continue;
        if (!level) atomicAdd(&s.bins[unit >> x.step], 1u);
        else if ((int)(unit >> x.step) == chosen) atomicAdd(&s.bins[in / 4], 1u << 8 * (in & 3));
    }
    __syncthreads();
    unsigned *const out = p.joint.bins + (level * (i64)p.batch * p.kv_heads + item) * WORD_BINS;
#pragma unroll 1
    for (int i = tid; i < WORD_BINS; i += CHOOSE)
        if (s.bins[i]) atomicAdd(out + i, s.bins[i]);
}

/* A word of the set: keys that there are, that are in it, whose first words lie below the edge,
   at it. */
struct word_keys { unsigned valid, in, below, tied; };

__device__ __forceinline__ int slice_begin(const rank_row &r, int slice) {
    const int words = (r.mid + 31) / 32, each = (words + PICK_SLICES * 32 - 1) / (PICK_SLICES * 32) * 32;
    return min(slice * each, words);
}
__device__ __forceinline__ int keys_until(const rank_row &r, int word) { return min(32 * word, r.mid); }

/* Of the 32 words from w0 on, which end at w1, the lane's own. First words are read as they
   lie. */
__device__ __noinline__ word_keys keys_of_words(const params &p, const rank_row &r, const pick_plan &y,
                                                i64 item, int w0, int w1) {
    enum { AT_ONCE = 8 };
    const int lane = threadIdx.x & 31, w = w0 + lane;
    const unsigned *const first = p.joint.first + item * 32 * p.va.words;
    word_keys x = {};
    if (w < w1) {
        x.valid = r.mid - 32 * w >= 32 ? ~0u : (1u << (r.mid - 32 * w)) - 1u;
        x.in = p.va.bits[item * p.va.words + w] & x.valid;
    }
    if (!y.x.draws) return x;
#pragma unroll 1
    for (int k = 0; k < 32 && w0 + k < w1; k += AT_ONCE) {
        unsigned word[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int j = 32 * (w0 + k + i) + lane;
            word[i] = j < r.mid ? first[j] : ~0u;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const unsigned unit = word[i] >> y.x.unit;
            const unsigned below = __ballot_sync(FULL, word[i] < y.x.words && unit < y.edge),
                           tied = __ballot_sync(FULL, word[i] < y.x.words && unit == y.edge);
            if (lane == k + i) { x.below = below; x.tied = tied; }
        }
    }
    return x;
}

/* The plan, by the first CTA for PICK, too, and the slice's counts. Should the words not have
   been enough, all free keys are taken. p.va.rows are of this rank; a base sample without keys
   here is one of -1, see first_portion. */
__device__ __forceinline__ void count_slice(const params &p, word_memory &s, const rank_row &r,
                                            word_plan x, int b, int kv) {
    const int slice = blockIdx.x, warp = this_warp(), from = slice_begin(r, slice),
              to = slice_begin(r, slice + 1);
    const i64 items = (i64)p.batch * p.kv_heads, item = (i64)b * p.kv_heads + kv;
    pick_plan y = {};
    if (slice && from >= to) {
        if (threadIdx.x == 0) p.joint.slices[item * PICK_SLICES + slice] = {};
        return;
    }
    if (x.draws) {
        const int step = choose_bin(p, s, 0, item, (unsigned)x.draws),
                  unit = step < 0 ? -1 : choose_bin(p, s, 1, item, s.left);
        if (unit < 0) { x.count = x.left; x.draws = 0; x.rest = true; }
        else {
            const unsigned *const said
                = p.joint.all_bins + ((p.ranks * items + item) * WORD_BINS + unit / 4);
            unsigned before = 0;
#pragma unroll 1
            for (int i = 0; i < p.rank; i++) before += said[i * items * WORD_BINS] >> 8 * (unit & 3) & 255u;
            y.edge = ((unsigned)step << x.step) + (unsigned)unit;
            y.ties = s.left - min(before, s.left);
        }
    }
    y.x = x;
    unsigned in = 0, below = 0, tied = 0, ins, belows, ties;
#pragma unroll 1
    for (int w = from + 32 * warp; w < to; w += CHOOSE) {
        const word_keys z = keys_of_words(p, r, y, item, w, to);
        in += (unsigned)__popc(z.in);
        below += (unsigned)__popc(z.below);
        tied += (unsigned)__popc(z.tied);
    }
    keys_before(s, in, &ins);
    keys_before(s, below, &belows);
    keys_before(s, tied, &ties);
    if (threadIdx.x) return;
    p.joint.slices[item * PICK_SLICES + slice] = { (int)ins, (int)belows, (int)ties };
    if (slice) return;
    if (p.va.pass) y.row = p.va.rows[item];
    else {
        y.row.fixed = r.end - r.begin - (int)p.tile_counts[(i64)p.ranks * p.batch + p.rank * items + item];
        y.row.base = y.row.budget = -1;
        int first;
        if (p.va.by_scores && r.heavy)
            y.row.looked = r.mid - (p.va.by_copy ? copied_keys(p, r, b, &first) : 0);
    }
    p.joint.plans[item] = y;
}

/* The slice's keys that are drawn to the list, in pass 0 behind those that are read exactly. */
__device__ __forceinline__ void pick_keys(const params &p, word_memory &s, const rank_row &r, int b,
                                          int kv) {
    static_assert(PICK_SLICES == 32, "a lane for each slice");
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), slice = blockIdx.x;
    const i64 item = (i64)b * p.kv_heads + kv;
    const pick_plan y = p.joint.plans[item];
    unsigned *const bits = p.va.bits + item * p.va.words;
    const int sinks = r.lo - r.begin, local = r.end - r.begin - sinks - r.mid,
              from = slice_begin(r, slice), to = slice_begin(r, slice + 1);
    if (slice && from >= to) return;
    int *const list = p.va.list + item * p.va.list_pitch;
    va_row row = y.row;
    int *const drawn_to = list + (i64)portions_before(p, row, p.va.pass ? 1 : -1) * p.list_keys;

    /* a lane has a slice */
    const slice_keys of = p.joint.slices[item * PICK_SLICES + lane];
    unsigned tied = (unsigned)of.tied;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const unsigned other = __shfl_up_sync(FULL, tied, o);
        if (lane >= o) tied += other;
    }
    const unsigned open = y.ties - min(y.ties, tied - (unsigned)of.tied);
    unsigned drawn = (unsigned)of.below + min((unsigned)of.tied, open);
    if (y.x.rest)
        drawn = (unsigned)(keys_until(r, slice_begin(r, lane + 1)) - keys_until(r, slice_begin(r, lane))
                           - of.in) - drawn;
    unsigned ties = __shfl_sync(FULL, open, slice),
             fixed = (unsigned)sinks + __reduce_add_sync(FULL, lane < slice ? (unsigned)of.in : 0u),
             listed = __reduce_add_sync(FULL, lane < slice ? drawn : 0u);
    const unsigned all_listed = __reduce_add_sync(FULL, drawn);

    if (!p.va.pass && slice == 0)
#pragma unroll 1
        for (int i = tid; i < sinks + local; i += CHOOSE)
            list[i < sinks ? i : row.fixed - local + i - sinks]
                = i < sinks ? r.begin + i : r.end - local + i - sinks;
#pragma unroll 1
    for (int base = from; base < to; base += CHOOSE) {
        const int w = base + tid;
        const word_keys z = keys_of_words(p, r, y, item, base + 32 * warp, to);
        unsigned take = z.below, more = z.tied, total,
                 before = keys_before(s, (unsigned)__popc(more), &total);
        for (; more && before < ties; more &= more - 1, before++) take |= more & (0u - more);
        ties -= min(ties, total);
        if (y.x.rest) take = ~(z.in | take) & z.valid;
        before = keys_before(s, (unsigned)__popc(z.in) | (unsigned)__popc(take) << 16, &total);
        unsigned i = fixed + (before & 0xffffu), k = listed + (before >> 16);
#pragma unroll 1
        for (unsigned left = take | (p.va.pass ? 0u : z.in); left; left &= left - 1) {
            const int key = r.lo + 32 * w + __ffs((int)left) - 1;
            if (left & (0u - left) & take) drawn_to[k++] = key; else list[i++] = key;
        }
        if (w < to) bits[w] = z.in | take;
        fixed += total & 0xffffu;
        listed += total >> 16;
    }
    if (tid || slice) return;                       /* who reads rows here reads those of the plan */
    va_row &all = p.joint.rows[item];
    if (p.va.pass) {
        row.budget += (int)all_listed;
        if (all.base) all.budget = all.base + y.x.count;
    } else {
        if (all_listed) row.base = row.budget = (int)all_listed;
        all.fixed = 1;                              /* that there are some is all k_va_budget asks */
        all.residual = y.x.left;
        all.base = y.x.count < y.x.left ? y.x.count : 0;
        all.budget = all.base ? all.base : y.x.left;
        all.at = y.x.at + (y.x.draws ? min((y.edge + 1) << y.x.unit, y.x.words) : 0u);
    }
    p.va.rows[item] = row;
}

/* Sums over parts of a head's list, of keys read exactly and of the sample. SUMS: what the
   budget needs of both. JOIN: the same of all ranks. RESULT: this rank's part, without sinks,
   and the audit, which k_join_ranks completes. A thread has a column of V or a number. */
__device__ __forceinline__ void add_sums(const params &p, word_memory &s, const rank_row &r, int b,
                                         int head) {
    const int kv = head / p.group;
    const i64 item = (i64)b * p.kv_heads + kv, row = (i64)b * p.heads + head, rows = (i64)p.batch * p.heads;
    const va_row list = p.va.rows[item], all = p.joint.rows[item];
    const bool told = p.rank_step == SUMS, joins = p.rank_step == JOIN, ends = p.rank_step == RESULT;
    const int pitch = p.dv + 4, fixed = portions_before(p, list, -1),
              columns = ends || p.va.full ? p.dv : 0,
              count = joins ? 2 * p.ranks : portions_before(p, list, ends ? 2 : 1);
    const float *const own = p.va.sums + row * p.va.portions * pitch;
    float *const to = told ? p.joint.told + row * 2 * p.joint.width : p.joint.parts + row * 2 * pitch;
    /* of part i: V, then its largest score, sum of weights, of their squares, of these times
       |V|^2 */
    const auto part = [&](int i) {
        return joins ? p.joint.all_told + ((i / 2 * rows + row) * 2 + (i & 1)) * p.joint.width + columns
                     : own + i * pitch + p.dv;
    };
    float m = MASKED;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += CHOOSE) m = fmaxf(m, part(i)[0]);
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(FULL, m, o));
    if ((threadIdx.x & 31) == 0) s.totals[threadIdx.x >> 5] = __float_as_uint(m);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < CHOOSE / 32; i++) m = fmaxf(m, __uint_as_float(s.totals[i]));
    const i64 place = ((i64)b * p.q_len + p.q_index) * p.heads + head;
    const double w = all.base ? (double)all.residual / (double)all.budget : 1.0;
    static_assert(PROXY_DIM + 4 <= CHOOSE && WORD_BINS / 4 <= CHOOSE, "a thread for each");
    struct scaled { double scale, mass; };
    enum { AT_ONCE = WORD_BINS * sizeof(unsigned) / sizeof(scaled) };
    scaled *const scales = (scaled *)s.bins;
    const int tid = threadIdx.x, c = tid - 4, at = c < 0 ? c + 4 : c - columns;      /* below 0: a number */
    double sum[2] = { 0.0, 0.0 }, mass[2] = { 0.0, 0.0 };
#pragma unroll 1
    for (int base = 0; base < count; base += AT_ONCE) {
        const int n = min(count - base, (int)AT_ONCE);
        __syncthreads();                            /* all have read the maximum, or the last parts */
        if (tid < n) {
            const float *const x = part(base + tid), top = x[0];
            const float bad = x[1] == x[1] ? 0.0f : x[1], lift = top < MASK_LIMIT ? bad : pow2(top - m);
            scales[tid] = { (double)lift, (double)lift * (double)x[1] };
        }
        __syncthreads();
        if (c >= columns) continue;
#pragma unroll 4
        for (int i = 0; i < n; i++) {
            const double lift = scales[i].scale, weights = scales[i].mass,
                         add = (at > 1 ? (double)((float)lift * (float)lift) : lift)
                             * (double)part(base + i)[at];
            const bool sampled = joins ? i & 1 : base + i >= fixed;
            sum[0] += sampled ? 0.0 : add;
            sum[1] += sampled ? add : 0.0;
            mass[0] += sampled ? 0.0 : weights;
            mass[1] += sampled ? weights : 0.0;
        }
    }
    if (at == 0) sum[0] = sum[1] = (double)m;
    if (at == 1 && ((p.va.by_scores && ((va_counts *)p.arrived)[row].bad) || r.all > INT32_MAX))
        sum[0] = mass[0] = (double)__int_as_float(0x7fc00000);
    if (c >= columns) return;
    if (!ends) {
        to[c < 0 ? at + columns + (told ? 0 : p.dv - columns) : c] = (float)sum[0];
        to[(told ? p.joint.width : pitch) + (c < 0 ? at + (told ? columns : p.dv) : c)] = (float)sum[1];
        return;
    }
    const double total = mass[0] + w * mass[1];
    if (c >= 0)
        store_any(p.out_type, p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1]
                                  + head * p.out_stride[2] + c * p.out_stride[3],
                  total > 0.0 ? (float)((sum[0] + w * sum[1]) * ((double)p.v_scale / total)) : 0.0f);
    if (at == 0 && c < 0) p.rank_lse[place] = m;
    if (at == 1 && c < 0) p.lse[place] = head_lse(p, head, m, total);
    if (tid) return;
    if (p.va.audit) {
        santa_audit x = {};
        if (r.all) {
            x.num_keys = r.all;
            x.num_residual = all.residual;
            x.num_fixed = r.all - all.residual;
            x.num_base = all.base;
            x.budget = x.needed = all.budget;
            x.exact = all.budget == all.residual;
            x.density = (double)(x.num_fixed + x.budget) / (double)r.all;
        }
        if (all.base) {
            const va_head y = p.va.heads[row];
            x.needed = y.needed;
            x.sigma = y.sigma;
            x.denominator = y.denominator;
            x.norm = y.norm;
            x.trace = y.trace;
            x.max_score = (double)y.top * 0.69314718055994530942;
        }
        p.va.audit[result_of(p, b, p.q_index, head)] = x;
    }
    if (!p.stats || head != kv * p.group) return;
    count_va_row(p, r.end - r.begin, list.fixed, list.budget + (list.base < 0), list.looked,
                 r.all && all.budget == all.residual, p.va.by_copy && r.heavy ? r.mid - list.looked : 0);
}

/* The steps above. They are one kernel, so that what several of them call is there once.
   Grid: (x, head, batch), 512 threads. Of MASK, SUMS, JOIN and RESULT a query head, else a KV
   head. x: any number in MASK, MARK, WORDS, STEPS and UNITS, which share the work; PICK_SLICES
   in SLICES and PICK; else 1. Reads 4 bytes a key in each of MASK (of each query head), STEPS,
   UNITS, SLICES and PICK; RESULT all sums. Latency-bound. */
__global__ void __launch_bounds__(CHOOSE) k_va_ranks(const __grid_constant__ params p) {
    SHARED(s, word_memory);
    const int b = blockIdx.z, head = blockIdx.y, step = p.rank_step;
    const i64 item = (i64)b * p.kv_heads + head;
    if (step == COUNT) {
        middle m;
        key_range(p, b, m.begin, m.end, m.position);
        if (threadIdx.x == 0) p.tile_count[b] = m.end - m.begin;
#pragma unroll 1
        for (int i = threadIdx.x; i < p.kv_heads; i += CHOOSE)          /* for MARK */
            p.tile_count[p.batch + (i64)b * p.kv_heads + i] = 0;
        return;
    }
    const rank_row r = row_of_ranks(p, b);
    if (step == MASK) mask_scores(p, r, b, head);
    else if (step == MARK) mark_heavy(p, s, r, b, head);
    else if (step >= SUMS) add_sums(p, s, r, b, head);
    else if (step == PICK) pick_keys(p, s, r, b, head);
    else {
        const word_plan x = plan_of(p, r, item);
        if (step == SLICES) count_slice(p, s, r, x, b, head);
        else if (!x.draws) return;
        else if (step == WORDS) try_words(p, r, x, b, head);
        else count_words(p, s, r, x, item);
    }
}

/* ------------------------------------------------------------------ >>weighed-error-kernel */

/* What a head is off by where drawn keys weigh differently. v is what a row adds to out, scale
   included:
     pps, exact scores   santa__sizes_error of santa.h: v counts from the sure keys' mean, and
                         each key but those differs from the others' mean
     from a copy of K    santa__copied_error: v counts from out, the larger of two formulas;
                         some rows that are read exactly are looked at, too
     vattention          santa__va_std_error: v counts from out, weighed with exp(score - lse)
   out is read as it was rounded. 0 for a head that took all of its keys, NaN where out has one.
   Grid: (query head, batch). A CTA of 1024 threads: a warp weighs a key at a time, then a
   thread has a column of V and a fourth of the keys.
   Reads the drawn keys' entries of the stash, rows of K and rows of V again, from a copy all of
   the stash. Barriers: around the weights and the sums of the fourths. Launched for a.std_error
   alone. */
__global__ void __launch_bounds__(WEIGHED_KEYS) k_weighed_error(const __grid_constant__ params p) {
    SHARED(s, weighed_memory);
    enum { WARPS = WEIGHED_KEYS / 32, PARTS = WEIGHED_KEYS / PROXY_DIM };
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), b = blockIdx.y, head = blockIdx.x,
              kv = head / p.group;
    const i64 row = (i64)b * p.heads + head, result = result_of(p, b, p.q_index, head);
    const bool adapts = p.va.list != nullptr, copied = p.copied != 0;
    const float lse = p.lse[lse_of(p, b, p.q_index, head)];
    proxy_range range;
    if (copied) range = copied_range(p, b);
    else {
        key_range(p, b, range.begin, range.end, range.position);
        range.from = range.to = range.end;
    }
    va_row listed = {};
    if (adapts) listed = p.va.rows[(i64)b * p.kv_heads + kv];
    if (!(lse > -INFINITY) || range.begin >= range.end || (adapts && listed.budget == listed.residual)
        || (copied && p.found[row].z > 0.0f)) {
        const bool bad = is_spoilt(p, b, head);
        if (tid == 0) p.std_error[result] = bad || lse != lse ? __int_as_float(0x7fc00000) : 0.0f;
        return;
    }
    const float sink = p.sinks ? p.sinks[head] : -INFINITY;
    const double share = sink == -INFINITY ? 1.0 : -expm1(fmin((double)sink - (double)lse, 0.0)),
                 times = (double)p.v_scale * (adapts ? 1.0 : share);

    /* from a copy: the keys read exactly, relative to 2^top, and of a head that drew by itself
       the shares, which its kernel has not left behind */
    float top = MASKED;
    double fixed = 0.0;
    if (copied) {
        const int first = range.from / BLOCK,
                  blocks = range.from < range.to ? (range.to - 1) / BLOCK + 1 - first : 0;
        const bool alone = p.together == 1, logs = p.stash_type != SANTA_STASH_F32;
        const float2 *const sums = (alone && p.rescued[row] > 0 ? p.mended : p.block_sums)
                                 + row * p.blocks + first;
        float *const units = p.share_units + row * p.blocks + first;
        float m = MASKED;
        double mass = 0.0;
#pragma unroll 1
        for (int i = tid; i < blocks; i += WEIGHED_KEYS) m = fmaxf(m, sums[i].x);
        m = (float)cta_joined((double)m, s, [](double x, double y) { return fmax(x, y); });
        top = m;
#pragma unroll 1
        for (int i = 0; i < FIXED_PARTS; i++) top = fmaxf(top, fixed_of(p, i, row)[p.dv]);
#pragma unroll 1
        for (int i = 0; i < FIXED_PARTS; i++) {
            const float *const x = fixed_of(p, i, row) + p.dv;
            if (!(x[0] < MASK_LIMIT)) fixed += (double)pow2(x[0] - top) * (double)x[1];
        }
#pragma unroll 1
        for (int i = tid; alone && i < blocks; i += WEIGHED_KEYS) mass += block_mass(sums[i], m);
        const double all = cta_sum(mass, s) * (double)pow2(m - top) + fixed;
#pragma unroll 1
        for (int i = tid; alone && i < blocks; i += WEIGHED_KEYS) {
            const float x = sums[i].x;
            if (logs) units[i] = x < MASK_LIMIT ? MASKED : x - top - (float)log2(all);
            else units[i] = x < MASK_LIMIT ? 0.0f : (float)((double)pow2(x - top) / all);
        }
        __syncthreads();
    }
    const int together = max(p.together, 1);        /* vAttention has no teams */
    const i64 own_team = (i64)b * (p.heads / together) + head / together,
              team = adapts ? row : own_team * together;
    const auto largest = [&](int j, int from, int step) {
        float size = 0.0f;
#pragma unroll 1
        for (int h = from; h < p.together; h += step) size = fmaxf(size, drawn_share_of(p, team + h, j));
        return size;
    };
    /* from a copy behind the drawn keys up to 16 of those read exactly, the last ones first */
    const int n = adapts ? listed.budget : p.draws[team], behind = range.end - range.to,
              all_keys = n + (copied ? min(range.from - range.begin + behind, 16) : 0),
              others = adapts ? whole_portions(p, listed.fixed) * p.list_keys : 0,
              more = adapts ? first_portion(p, listed, 1) * p.list_keys - listed.base : 0;
    const int *const keys = adapts ? p.va.list + ((i64)b * p.kv_heads + kv) * p.va.list_pitch
                                   : p.keys + own_team * p.max_draws;
    const char *const q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1] + head * p.q_stride[2];
    const int column = min(tid % PROXY_DIM, p.dv - 1);
    const char *const v = p.v + kv * p.v_stride[2];
    const double from = copied || adapts
        ? (double)load_any(p.out_type, p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1]
                                     + head * p.out_stride[2] + column * p.out_stride[3]) : 0.0;
    /* keys that are not sure and the sum of 1 - chance, or all keys, or the sum of their
       weights; that of the sure ones' or the light ones' weights; those of the first two
       weights of each key */
    double of_keys[5] = { 0.0, 0.0, 0.0, 0.0, 0.0 };
    double square[3] = { 0.0, 0.0, 0.0 }, linear[3] = { 0.0, 0.0, 0.0 };
#pragma unroll 1
    for (int base = 0; base < all_keys; base += WEIGHED_KEYS) {
        const int count = min(all_keys - base, (int)WEIGHED_KEYS);
        __syncthreads();
#pragma unroll 1
        for (int k = warp; k < count; k += WARPS) {
            const int i = base + k, nth = i - n;
            if (nth >= 0) {
                if (lane) continue;
                s.key[k] = nth < behind ? range.end - 1 - nth : range.begin + nth - behind;
                s.weight[0][k] = s.weight[1][k] = 0.0;
                of_keys[1] += 1.0;
                continue;
            }
            int j = adapts ? keys[i < listed.base ? others + i : more + i] : keys[i];
            double w[3] = { 0.0, 0.0, 0.0 }, e = 1.0;
            float chance = 1.0f;
            if (!adapts && j >= 0) {
                chance = largest(j, lane, 32);
#pragma unroll
                for (int o = 16; o; o >>= 1) chance = fmaxf(chance, __shfl_xor_sync(FULL, chance, o));
                chance = fminf(chance * (float)p.samples, 1.0f);
                if (!(chance > 0.0f)) j = -1;
            }
            const i64 at = j >= 0 && (copied || adapts) ? row_offset(p, p.k_stride, b, j) : 0;
            if (at == NO_ROW) j = -1;               /* out is NaN */
            if (j >= 0 && (copied || adapts)) {
                float score = 0.0f;
#pragma unroll 1
                for (int c = lane; c < p.d; c += 32)
                    score += load_any(p.q_type, q + c * p.q_stride[3])
                           * load_listed(p.k_type, p.k + at + kv * p.k_stride[2], c, p.k_stride[3]);
#pragma unroll
                for (int o = 16; o; o >>= 1) score += __shfl_xor_sync(FULL, score, o);
                score = finished_score(p, head, score * key_scale(p, b, kv, j), j - range.position);
                e = exp2(fmin((double)score - (adapts ? (double)lse * (double)LOG2E : (double)top), 400.0));
            } else if (j >= 0) e = (double)drawn_share_of(p, row, j);
            if (lane) continue;
            if (j >= 0) {
                const double open = 1.0 - (double)chance, x = e / (double)chance;
                if (adapts) { w[0] = x * x; w[1] = x; }
                else if (copied) {
                    of_keys[1] += 1.0;
                    of_keys[2] += x;
                    if (open > 0.0) {
                        w[0] = open * x * x;
                        w[1] = x;
                        of_keys[0] += 1.0;
                        of_keys[4] += x;
                    }
                } else if (open > 1e-6) {
                    w[0] = open * x * x;
                    w[1] = open * x;
                    of_keys[0] += 1.0;
                    of_keys[1] += open;
                    of_keys[3] += w[0];
                    of_keys[4] += w[1];
                } else {
                    w[2] = x;
                    of_keys[2] += x;
                }
            }
            s.key[k] = j;
#pragma unroll
            for (int c = 0; c < 3; c++) s.weight[c][k] = w[c];
        }
        __syncthreads();
#pragma unroll 2
        for (int k = tid / PROXY_DIM; k < count; k += PARTS) {
            if (s.key[k] < 0) continue;
            const i64 at = row_offset(p, p.v_stride, b, s.key[k]);
            const double y = at == NO_ROW ? (double)__int_as_float(0x7fc00000)
                                          : (double)load_coded(p.v_type, v + at, column, p.v_stride[3])
                                            * (double)value_scale(p, b, kv, s.key[k]) * times - from;
#pragma unroll
            for (int c = 0; c < 3; c++) {
                linear[c] += s.weight[c][k] * y;
                square[c] += (c < 2 ? s.weight[c][k] : 1.0) * (y * y);
            }
        }
    }
    double bracket = 0.0;
#pragma unroll 1
    for (int j = range.from + tid; j < range.to; j += WEIGHED_KEYS) {         /* of a copy alone */
        const double x = (double)drawn_share_of(p, row, j),
                     chance = (double)p.samples * (double)largest(j, 0, 1);
        if (x > 0.0 && chance < 1.0) bracket += x * x * (1.0 / chance - 1.0);
    }
    bracket = cta_sum(bracket, s);
#pragma unroll
    for (int i = 0; i < 5; i++) of_keys[i] = cta_sum(of_keys[i], s);
    double *const part = &s.sum[0][0];
    const auto over_parts = [&](double x) {
        __syncthreads();
        part[tid] = x;
        __syncthreads();
        x = 0.0;
#pragma unroll 1
        for (int i = 0; i < PARTS; i++) x += part[i * PROXY_DIM + tid % PROXY_DIM];
        return tid < p.dv ? x : 0.0;
    };
    static_assert(sizeof s.sum == WEIGHED_KEYS * sizeof(double), "a number for each thread");
#pragma unroll
    for (int i = 0; i < 3; i++) { square[i] = over_parts(square[i]); linear[i] = over_parts(linear[i]); }
    double total, budget = (double)n;
    if (adapts) {
        const double rest = (double)listed.residual;
        total = cta_sum(square[0] - linear[1] * linear[1] / budget, s) / (budget - 1.0);
        total *= rest * rest * (1.0 - budget / rest) / budget;
    } else if (copied) {
        const double seen = cta_sum(square[0], s), light = cta_sum(square[1], s),
                     rows = of_keys[1], all = cta_sum(square[2], s) / fmax(rows, 1.0),
                     whole = of_keys[2] + fixed;
        const double dist = of_keys[4] > 0.0
            ? (light / of_keys[4] * of_keys[0] + 4.0 * all) / (of_keys[0] + 4.0) : all;
        const double drawn = seen / (whole * whole), known = bracket * dist;
        total = rows < 2.0 ? bracket > 1e-8 ? (double)INFINITY : 0.0
                           : (drawn < known ? known : drawn) * rows / (rows - 1.0);
    } else {
        const double count = of_keys[0], open = of_keys[1], sure = of_keys[2],
                     anchor = sure >= 0.25 ? linear[2] / sure : 0.0,
                     mean = linear[1] - anchor * of_keys[4];
        total = cta_sum(count > 0.0 ? square[0] - 2.0 * anchor * linear[0]
                                          + anchor * anchor * of_keys[3] - mean * mean / open
                                    : 0.0, s);
        total *= count / fmax(count - 1.0, 1.0);
        const bool none = count == 0.0 && (n == 0 || sure > 1.0 - 1e-5);
        if (count < 2.0) total = none ? 0.0 : (double)INFINITY;
    }
    const bool bad = is_spoilt(p, b, head);
    if (tid == 0)
        p.std_error[result] = bad ? __int_as_float(0x7fc00000)
                                  : (float)sqrt(fmax(total, total == total ? 0.0 : total));
}

/* ------------------------------------------------------------------------ >>buckets-kernel */

/* As santa__new_keys_of has it; is_held: the index will end with them. */
struct new_keys { int from, to, skip; bool is_held; };
__device__ __forceinline__ new_keys new_keys_of(const params &p, int b) {
    const i64 len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity;
    i64 from = p.new_from < 0 ? len - p.new_count : min(p.new_from, len + 1);
    const i64 skip = max(-from, (i64)0);
    from += skip;
    const i64 to = p.new_count - skip < len - from ? from + p.new_count - skip : len;
    const bool is_held = from < to || (from == to && p.new_from >= 0);
    return { (int)from, (int)to, (int)min(skip, (i64)INT32_MAX), is_held };
}

/* What k_index has to do with an index. A gap before the new keys, or one slot for two
   sequences, makes it invalid: the host could not see that. */
__device__ void plan_index(const params &p, int b, int kv) {
    key_index x;
    if (!find_index(p, b, kv, x)) return;
    const new_keys n = new_keys_of(p, b);
    const bool begun = has_header(p, x);
    const int sorted = n.to / BLOCK * BLOCK, had = n.from == 0 || !begun ? -1 : x.header[I_SORTED];
    bool bad = n.is_held && n.from > 0 && (!begun || x.header[I_HELD] < n.from);
    if (p.slots)
#pragma unroll 1
        for (int other = 0; other < p.batch; other++) bad |= other != b && p.slots[other] == p.slots[b];
    x.header[I_FROM] = n.from;
    x.header[I_TO] = n.to;
    x.header[I_STEP] = bad ? INDEX_BAD : !n.is_held ? INDEX_AS_IT_IS
                     : had == sorted && n.from >= had ? INDEX_HOLD : INDEX_SORT;
}

/* 8 numbers from `at` on, `have` of which are there, the others 0. Called, as nothing here is
   fast. */
struct eight { float x[8]; };
__device__ __noinline__ eight load_eight(int type, const char *at, i64 step, int have) {
    eight y = {};
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const float x = i < have ? load_any(type, at + i * step) : 0.0f;
#pragma unroll
        for (int k = 0; k < 7; k++) y.x[k] = y.x[k + 1];
        y.x[7] = x;
    }
    return y;
}

/* 8 numbers at each of `at`, feature f[u] of so many; 0 past the end. */
template <int N>
__device__ __forceinline__ void load_eights(int type, int vector, const char *const *at, i64 step, int size,
                                            const int *f, float (*x)[8]) {
    if (vector) load_rows<8, N>(type, 1, at, step, 8, x);             /* size is a multiple of 8 */
#pragma unroll
    for (int u = 0; u < N; u++) {
        if (!vector) {
            const eight y = load_eight(type, at[u], step, size - f[u]);
#pragma unroll
            for (int i = 0; i < 8; i++) x[u][i] = y.x[i];
        } else if (f[u] >= size) {
#pragma unroll
            for (int i = 0; i < 8; i++) x[u][i] = 0.0f;
        }
    }
}

/* c += a b in tf32, two features of each lane. It holds numbers of 16 and 8 bits, others in two
   parts. */
__device__ __forceinline__ float high_part(float x) {
    return __uint_as_float(__float_as_uint(x) & 0xffffe000u);
}
__device__ __forceinline__ void mma_parts(float *c, const float *a, const float *b, bool split_a) {
    float high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) low[i] = b[i] - (high[i] = high_part(b[i]));
    if (split_a) {
        float a_high[4], a_low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a_low[i] = a[i] - (a_high[i] = high_part(a[i]));
        mma_tf32(c, a_low, high);
        mma_tf32(c, a_high, low);
        mma_tf32(c, a_high, high);
    } else {
        mma_tf32(c, a, low);
        mma_tf32(c, a, high);
    }
}

/* The better of two buckets for a key. */
__device__ __forceinline__ void keep_nearest(near_bucket &x, float product, int bucket) {
    if (product > x.product || (product == x.product && bucket < x.bucket)) x = { product, bucket };
}
__device__ __forceinline__ void keep_nearest_of(near_bucket &x, int lanes) {
    for (int o = lanes / 2; o; o >>= 1) {
        const float product = __shfl_xor_sync(FULL, x.product, o);
        keep_nearest(x, product, __shfl_xor_sync(FULL, x.bucket, o));
    }
}

/* Rows of the router times a few vectors: units of the hidden layer, logits of the buckets, or
   the centroid nearest to a new key, see row_step.
   Grid: (tiles, KV heads, 32s of the batch's vectors). product.splits of a CTA's 8 warps share
   the features of 16 rows: each has every splits'th 32 features, all of a round on their way
   before it waits for the vectors. These lie in shared memory, 8 at a time, the next ones on
   their way.
   Reads: rows once, vectors once for each tile. Flops: 4 * rows * 8 * size, tensor cores; it
   should run at the speed of reading the rows, or be over in three trips to memory.
   Barriers: before and behind each 8 vectors; for the warps' sums; for a tile's products. */
__global__ void __launch_bounds__(256, 2) k_rows(const __grid_constant__ params p) {
    enum { SLICES = ROWS_VECTORS / 8 };
    DYNAMIC_SHARED(slots);                          /* rows_bytes */
    const row_product &x = p.product;
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    const int splits = x.splits, tiles = 8 / splits, tile = warp / splits, part = warp % splits;
    const int kv = blockIdx.y, first = blockIdx.x * tiles * 16, chunk = splits * 128, in_tile = 16 * tiles;
    const int v0 = blockIdx.z * ROWS_VECTORS,
              here = min(p.batch * x.vectors - v0, (int)ROWS_VECTORS), slices = (here + 7) / 8;
    /* short vectors have room all at once */
    const int whole = (x.size + 31) / 32 * 32;
    const bool at_once = x.size <= chunk && slices * (whole + 4) <= 2 * (chunk + 4);
    const int pitch = (at_once ? whole : chunk) + 4;
    const bool split_rows = x.row_type == SANTA_F32,
               copies = x.x_type == SANTA_F32 && x.vector_x && x.scale == 1.0f;
    const char *rows[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
        rows[e] = x.rows + ((i64)kv * x.count + min(first + 16 * tile + r + 8 * e, x.count - 1))
                         * ((i64)x.size * x.row_bytes);
    float acc[SLICES][4];
#pragma unroll
    for (int i = 0; i < SLICES; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    launch_dependents();
    const auto vector_at = [&](int i) {
        const int of = min(v0 + i, p.batch * x.vectors - 1);
        return x.x + of / x.vectors * x.x_stride[0] + kv * x.x_stride[1] + of % x.vectors * x.x_stride[2];
    };
    if (!copies)                                    /* the first vectors come beside the rows */
#pragma unroll 1
        for (int i = tid; i < 16 * here && i % 16 * 64 < x.size; i += 256)
            prefetch(vector_at(i / 16) + i % 16 * 64 * x.x_stride[3]);
    const float *const bias = x.bias ? x.bias + (i64)kv * x.count : nullptr;
    const float early_bias = bias ? bias[min(first + tid % in_tile, x.count - 1)] : 0.0f;
    /* features base and up of 8 vectors, or 8 `count`, to one half of the shared memory, or
       all */
    const auto stage = [&](int base, int slice, int half, int count) {
        float *const to = (float *)slots + half * 8 * pitch;
        const int most = min(chunk, (x.size - base + 31) / 32 * 32);
        if (copies) {
#pragma unroll 1
            for (int i = tid; i < 2 * count * most; i += 256) {
                const int v = i / (most / 4), f = i % (most / 4) * 4;
                const bool have = base + f < x.size;
                copy16_or_zero((uint4 *)(to + v * pitch + f),
                               have ? vector_at(8 * slice + v) + (base + f) * 4 : x.x, have);
            }
            return;
        }
#pragma unroll 1
        for (int i = tid; i < count * most; i += 512) {     /* twice 8 features of a thread at a time */
            const char *at[2];
            int v[2], f[2];
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int j = min(i + 256 * u, count * most - 1);
                v[u] = j / (most / 8);
                f[u] = base + j % (most / 8) * 8;
                at[u] = vector_at(8 * slice + v[u]) + min(f[u], x.size - 1) / 8 * 8 * x.x_stride[3];
            }
            float y[2][8];
            load_eights<2>(x.x_type, x.vector_x, at, x.x_stride[3], x.size, f, y);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float *const row = to + v[u] * pitch + f[u] - base;
#pragma unroll
                for (int k = 0; k < 8; k++) y[u][k] *= x.scale;
                *(float4 *)row = make_float4(y[u][0], y[u][1], y[u][2], y[u][3]);
                *(float4 *)(row + 4) = make_float4(y[u][4], y[u][5], y[u][6], y[u][7]);
            }
        }
    };
    /* step by step, each `slices` of which are a round of features: one is staged, the one
       before it multiplied */
    const int rounds = (x.size + chunk - 1) / chunk, steps = rounds * slices;
    float a[4][2][8];
#pragma unroll 1
    for (int step = 0, slice = -1, base = 0; step <= steps; step++, slice++) {
        if (slice == slices) { slice = 0; base += chunk; }
        if (step == 0 || (slice == 0 && base > 0)) {  /* all on their way together */
            const char *at[8];
            int f[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                f[i] = base + 32 * (part + splits * (i / 2)) + 8 * c;
                at[i] = rows[i % 2] + min(f[i], x.size - 1) / 8 * 8 * (i64)x.row_bytes;
            }
            load_eights<8>(x.row_type, x.vector_rows, at, x.row_bytes, x.size, f, &a[0][0]);
        }
        if (step == 0) wait_for_previous();
        if (step < steps && (!at_once || step == 0))
            stage(slice + 1 < slices ? base : base + chunk, slice + 1 < slices ? slice + 1 : 0, step & 1,
                  at_once ? slices : 1);
        copy_commit();
        if (step == 0) continue;
        if (at_once) copy_wait<0>(); else copy_wait<1>();
        __syncthreads();
        const float *const own = (const float *)slots + 8 * c
                               + ((at_once ? slice : ~step & 1) * 8 + r) * pitch;
        float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int f = 32 * (part + splits * i);
            if (base + f >= x.size) break;
            const float4 low = *(const float4 *)(own + f), high = *(const float4 *)(own + f + 4);
            const float y[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
#pragma unroll
            for (int k = 0; k < 8; k += 2) {
                const float w[4] = { a[i][0][k], a[i][1][k], a[i][0][k + 1], a[i][1][k + 1] };
                mma_parts(sum, w, y + k, split_rows);
            }
        }
#pragma unroll
        for (int i = 0; i < SLICES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[i][k] += i == slice ? sum[k] : 0.0f;
        __syncthreads();
    }
    rows_sums &s = *(rows_sums *)slots;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i < slices) s.warps[warp][8 * i + 2 * c + (k & 1)][r + 8 * (k >> 1)] = acc[i][k];
    __syncthreads();
#pragma unroll 1
    for (int i = tid; i < here * in_tile; i += 256) {
        const int v = i / in_tile, at = i % in_tile, row = first + at, of = v0 + v;
        float sum = 0.0f;
#pragma unroll 1
        for (int k = 0; k < splits; k++) sum += s.warps[at / 16 * splits + k][v][at % 16];
        if (bias) sum += i == tid ? early_bias : bias[min(row, x.count - 1)];
        /* here: a NaN is not less than 0, nor more */
        if (x.step != STEP_NEAREST && !is_finite(sum)) sum = __int_as_float(0x7fc00000);
        if (x.step == STEP_UNITS) sum = sum < 0.0f ? 0.0f : sum;
        else s.products[v][at] = row < x.count ? sum : -INFINITY;
        if (x.step == STEP_NEAREST || row >= x.count) continue;
        const i64 vector = ((i64)(of / x.vectors) * p.kv_heads + kv) * x.vectors + of % x.vectors;
        x.out[vector * x.count + row] = sum;
    }
    if (x.step == STEP_UNITS) return;
    __syncthreads();
#pragma unroll 1
    for (int v = warp; v < here; v += 8) {
        const int of = v0 + v;
        if (x.step == STEP_LOGITS) {                /* a part of the softmax; a NaN is in its sum */
            float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
            for (int at = lane; at < in_tile; at += 32) top = fmaxf(top, s.products[v][at]);
#pragma unroll
            for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
#pragma unroll 1
            for (int at = lane; at < in_tile; at += 32) sum += pow2((s.products[v][at] - top) * LOG2E);
#pragma unroll
            for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
            const i64 head = ((i64)(of / x.vectors) * p.kv_heads + kv) * x.vectors + of % x.vectors;
            if (lane == 0) p.logit_parts[head * gridDim.x + blockIdx.x] = make_float2(top, sum);
            continue;
        }
        near_bucket best = { -INFINITY, first };
        for (int at = lane; at < in_tile && first + at < x.count; at += 32)
            keep_nearest(best, s.products[v][at], first + at);
        keep_nearest_of(best, 32);
        key_index index;
        if (lane || !find_index(p, of / x.vectors, kv, index)) continue;
        int *const to = index.next + 2 * (blockIdx.x * x.vectors + of % x.vectors);
        to[0] = __float_as_int(best.product);
        to[1] = best.bucket;
    }
    if (x.step != STEP_NEAREST || blockIdx.x || blockIdx.z) return;
#pragma unroll 1
    for (int b = tid; b < p.batch; b += 256) plan_index(p, b, kv);
}

/* Both layers of a router, where q and its rows are bf16: the sums of k_rows, in the same
   order. (An instance for f16 is 49 kB.) Grid: (tiles of buckets, in clusters of p.cluster; KV
   heads; p.here of the batch's vectors), 256 threads. All rows that a CTA needs are on their
   way at once: a warp has 16 units of up to 128 features, then 16 buckets and 4 pieces of 32
   units. Each cluster computes all units, each of its CTAs 128 at a time, which it hands to the
   others. Of splits of 8, see k_rows, a warp has a few. Reads: rows of the second layer once,
   of the first one once for each cluster, from L2. Flops: as k_rows. It should be over in one
   trip to memory and one to the cluster.
   Barriers: the cluster is there; its units are; for the warps' sums; for products, and before
   they change. */
__global__ void __launch_bounds__(256, 2) k_layers(const __grid_constant__ layers_params p) {
    DYNAMIC_SHARED(slots);                          /* layers_bytes */
    SHARED(s, layers_sums);
    float *const units = (float *)slots;
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    const int kv = blockIdx.y, v0 = blockIdx.z * p.here, here = min(p.all - v0, p.here),
              slices = (here + 7) / 8;
    const int splits = 1 << p.splits_shift, links = 1 << p.links_shift, pitch = p.hidden + LAYERS_GAP;
    const bool alone = splits < 8;                  /* a warp has all of its rows' features */
    const int tiles = alone ? 8 : 4 >> p.links_shift, first = (int)blockIdx.x * 16 * tiles,
              blocks = (p.hidden + LAYERS_UNITS - 1) / LAYERS_UNITS;
    const auto task_of = [&](int i) { return (4 * warp + i) >> p.links_shift; };
    const auto head_of = [&](int v) {               /* where its results are */
        const int b = (int)p.by_vectors.quotient((unsigned)v);
        return ((i64)b * p.kv_heads + kv) * p.vectors + v - b * p.vectors;
    };
    uint4 w1[4][2], w2[4][2], q[4];
    const auto load_units = [&](int block) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int row = min(block * LAYERS_UNITS + 16 * warp + r + 8 * e, p.hidden - 1);
            const char *const at = p.w1 + (((i64)kv * p.hidden + row) * p.d + 8 * c) * 2;
#pragma unroll
            for (int i = 0; i < 4; i++)
                w1[i][e] = 32 * i < p.d ? *(const uint4 *)(at + 64 * i) : make_uint4(0, 0, 0, 0);
        }
    };
    const auto load_q = [&](int slice) {
        const int of = min(v0 + 8 * slice + r, p.all - 1);
        const int b = (int)p.by_vectors.quotient((unsigned)of);
        const char *const at = p.q + b * p.q_stride[0] + kv * p.q_stride[1]
                             + (of - b * p.vectors) * p.q_stride[2] + 16 * c;
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[i] = 32 * i < p.d ? *(const uint4 *)(at + 64 * i) : make_uint4(0, 0, 0, 0);
    };
    const int cta = p.cluster > 1 ? cta_in_cluster() : 0;
    if (p.cluster > 1) cluster_arrive();            /* it has nothing to say but that it is there */
    load_units(cta);
    load_q(0);
    int feature[4];                                 /* of the second layer's pieces; -1: none */
#pragma unroll
    for (int i = 0; i < 4; i++)
        feature[i] = alone ? i < splits ? 32 * i : -1 : 32 * (task_of(i) % 8 + (i & (links - 1)) * 8);
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int tile = alone ? warp : task_of(i) / 8,
                      row = min(first + 16 * tile + r + 8 * e, p.buckets - 1);
            const char *const at = p.w2 + (((i64)kv * p.buckets + row) * p.hidden + feature[i] + 8 * c) * 2;
            w2[i][e] = feature[i] >= 0 ? *(const uint4 *)at : make_uint4(0, 0, 0, 0);
        }
    /* here: NaN for what is not finite; a NaN is not less than 0, nor more */
    const auto finished = [](float x) { return is_finite(x) ? x : __int_as_float(0x7fc00000); };
    const auto number = [](const uint4 &w, int i) {     /* numbers 2 i and 2 i + 1 of a piece */
        const unsigned x = i & 2 ? i & 1 ? w.w : w.z : i & 1 ? w.y : w.x;
        return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
    };
    const auto bias_of = [&](const float *all, int count, int row) {
        return all ? all[(i64)kv * count + min(row, count - 1)] : 0.0f;
    };
    float bias[2], row_bias[2];                     /* of units; of the rows that this thread ends with */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        bias[e] = bias_of(p.b1, p.hidden, cta * LAYERS_UNITS + 16 * warp + r + 8 * e);
        row_bias[e] = bias_of(p.b2, p.buckets,
                              first + (alone ? 16 * warp + r + 8 * e : tid & (16 * tiles - 1)));
    }
    launch_dependents();
    if (p.cluster > 1) cluster_wait();
#pragma unroll 1
    for (int block = cta; block < blocks; block += p.cluster) {
        const int unit = block * LAYERS_UNITS + 16 * warp + r;
        if (block > cta) {
            load_units(block);
#pragma unroll
            for (int e = 0; e < 2; e++) bias[e] = bias_of(p.b1, p.hidden, unit + 8 * e);
        }
#pragma unroll 1
        for (int slice = 0; slice < slices; slice++) {
            if (slice > 0 || block > cta) load_q(slice);
            float sum[4][4] = {};
#pragma unroll
            for (int k = 0; k < 4; k++)             /* four sums take turns; q is exact in tf32 */
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 x = number(w1[i][0], k), z = number(w1[i][1], k), y = number(q[i], k);
                    const float w[4] = { x.x, z.x, x.y, z.y }, of[2] = { y.x, y.y };
                    mma_tf32(sum[i], w, of);
                }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int row = unit + 8 * (k >> 1), v = 8 * slice + 2 * c + (k & 1);
                float x = finished(((sum[0][k] + sum[1][k]) + sum[2][k]) + sum[3][k] + bias[k >> 1]);
                x = x < 0.0f ? 0.0f : x;
                float *const to = units + v * pitch + row;
                if (row >= p.hidden || v >= here) continue;
                if (p.cluster == 1) *to = x;
                else
#pragma unroll 1
                    for (int other = 0; other < p.cluster; other++) *in_cta(to, other) = x;
            }
        }
    }
    if (p.cluster > 1) cluster_sync(); else __syncthreads();
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        const int in_slice = min(here - 8 * slice, 8);
        const auto units_of = [&](int i, float (&y)[8]) {
            const float *const at = units + (8 * slice + r) * pitch + max(feature[i], 0) + 8 * c;
            const float4 low = *(const float4 *)at, high = *(const float4 *)(at + 4);
            y[0] = low.x; y[1] = low.y; y[2] = low.z; y[3] = low.w;
            y[4] = high.x; y[5] = high.y; y[6] = high.z; y[7] = high.w;
        };
        const auto multiply = [&](int i, int k, const float (&y)[8], float *sum) {
            const float2 x = number(w2[i][0], k), z = number(w2[i][1], k);
            const float w[4] = { x.x, z.x, x.y, z.y };
            mma_parts(sum, w, y + 2 * k, false);
        };
        const auto finish = [&](int v, int at, float x) {
            const int row = first + at;
            x = finished(x);
            s.products[v][at] = row < p.buckets ? x : -INFINITY;
            if (row < p.buckets && v < in_slice)
                p.logits[head_of(v0 + 8 * slice + v) * p.buckets + row] = x;
        };
        float y[4][8];
#pragma unroll
        for (int i = 0; i < 4; i++) units_of(i, y[i]);
        if (alone) {
            float sum[4][4] = {};
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) if (i < splits) multiply(i, k, y[i], sum[i]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                finish(2 * c + (k & 1), 16 * warp + r + 8 * (k >> 1),
                       ((sum[0][k] + sum[1][k]) + sum[2][k]) + sum[3][k] + row_bias[k >> 1]);
        } else {
            float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int k = 0; k < 4; k++) multiply(i, k, y[i], sum);
                if ((i + 1) & (links - 1)) continue;                /* the part goes on */
                const int task = task_of(i);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    s.part[task][2 * c + (k & 1)][r + 8 * (k >> 1)] = sum[k];
                    sum[k] = 0.0f;
                }
            }
            __syncthreads();
#pragma unroll 1
            for (int i = tid; i < in_slice * 16 * tiles; i += 256) {
                const int at = i & (16 * tiles - 1), v = i >> (6 - p.links_shift);
                float x = 0.0f;
#pragma unroll
                for (int k = 0; k < 8; k++) x += s.part[at / 16 * 8 + k][v][at % 16];
                finish(v, at, x + row_bias[0]);     /* 256 is a multiple of its rows */
            }
        }
        __syncthreads();
        /* parts of the softmax, two of a warp at a time; a NaN is in its sum */
        const int in_tile = 128 >> p.splits_shift, shift = alone ? p.splits_shift : 2 - p.links_shift,
                  all = in_slice << shift;
#pragma unroll 1
        for (int i = warp; i < all; i += 16) {
            const float *product[2];
            float top[2] = { -INFINITY, -INFINITY }, sum[2] = { 0.0f, 0.0f };
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int j = min(i + 8 * u, all - 1);
                product[u] = s.products[j >> shift] + (j & ((1 << shift) - 1)) * in_tile;
            }
#pragma unroll 1
            for (int at = lane; at < in_tile; at += 32)
#pragma unroll
                for (int u = 0; u < 2; u++) top[u] = fmaxf(top[u], product[u][at]);
#pragma unroll
            for (int o = 16; o; o >>= 1)
#pragma unroll
                for (int u = 0; u < 2; u++) top[u] = fmaxf(top[u], __shfl_xor_sync(FULL, top[u], o));
#pragma unroll 1
            for (int at = lane; at < in_tile; at += 32)
#pragma unroll
                for (int u = 0; u < 2; u++) sum[u] += pow2((product[u][at] - top[u]) * LOG2E);
#pragma unroll
            for (int o = 16; o; o >>= 1)
#pragma unroll
                for (int u = 0; u < 2; u++) sum[u] += __shfl_xor_sync(FULL, sum[u], o);
            const int j = i + 8 * lane, tile = (first >> (7 - p.splits_shift)) + (j & ((1 << shift) - 1));
            if (lane < 2 && j < all && tile < p.logit_tiles)
                p.parts[head_of(v0 + 8 * slice + (j >> shift)) * p.logit_tiles + tile]
                    = make_float2(lane ? top[1] : top[0], lane ? sum[1] : sum[0]);
        }
        if (slice + 1 < slices) __syncthreads();
    }
}

/* The buckets of many new keys: the largest key . centroid, the lower of equal ones, 0 for a
   NaN. Keys and centroids of one 16-bit type, their rows 16-byte pieces, of up to 128 features.
   Grid: (256 new keys, KV head, batch). Each of 8 warps keeps 32 keys in registers, as the mma
   wants them, see query; the centroids come to shared memory, 64 at a time, the next ones while
   these are multiplied.
   Reads: keys once, the centroids once for each 256 keys, from L2. Flops: 2 * keys * centroids
   * d on tensor cores; it should run at the speed of these.
   Barriers: before and behind each 64 centroids. */
__global__ void __launch_bounds__(256, 2) k_nearest(const __grid_constant__ params p) {
    enum { PITCH = nearest_memory::PITCH };
    SHARED(s, nearest_memory);
    const row_product &x = p.product;
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    const int b = blockIdx.z, kv = blockIdx.y, pieces = (x.size + 31) / 32;
    const new_keys n = new_keys_of(p, b);
    const int from = n.from + (int)blockIdx.x * NEAREST_KEYS, count = min(n.to - from, (int)NEAREST_KEYS);
    key_index index;
    if (!find_index(p, b, kv, index)) return;
    if (blockIdx.x == 0 && tid == 0) plan_index(p, b, kv);
    launch_dependents();
    if (count <= 0) return;
    const char *const rows = x.rows + (i64)kv * x.count * x.size * 2;
    const auto send = [&](int row0) {
        uint4 *const to = (uint4 *)s.rows[row0 / NEAREST_ROWS & 1];
        for (int i = tid; i < NEAREST_ROWS * 16; i += 256) {
            const int row = row0 + i / 16, f = i % 16 * 8;
            const bool have = row < x.count && f < x.size;
            copy16_or_zero(to + i / 16 * PITCH + i % 16,
                           have ? rows + ((i64)row * x.size + f) * 2 : rows, have);
        }
        copy_commit();
    };
    send(0);
    uint4 key[2][2][4];                             /* rows r + 16 i + 8 e */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int at = min(32 * warp + 16 * i + 8 * e + r, count - 1);
            const char *row = x.x + b * x.x_stride[0] + kv * x.x_stride[1]
                            + (n.skip + from - n.from + at) * x.x_stride[2];
#pragma unroll
            for (int k = 0; k < 4; k++)
                key[i][e][k] = 32 * k + 8 * c < x.size ? *(const uint4 *)(row + 64 * k + 16 * c)
                                                       : make_uint4(0, 0, 0, 0);
        }
    near_bucket best[4];                            /* of keys r + 8 i */
#pragma unroll
    for (int i = 0; i < 4; i++) best[i] = { -INFINITY, 0 };
#pragma unroll 1
    for (int row0 = 0; row0 < x.count; row0 += NEAREST_ROWS) {
        __syncthreads();                            /* the other half has been used */
        send(row0 + NEAREST_ROWS);
        copy_wait<1>();
        __syncthreads();
        const uint4 *const at = (const uint4 *)s.rows[row0 / NEAREST_ROWS & 1] + r * PITCH + c;
        const auto multiply = [&](auto type) {
#pragma unroll 2
            for (int j = 0; j < NEAREST_ROWS / 8; j++) {
                float acc[2][4] = {};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (k >= pieces) break;
                    const uint4 w = at[8 * j * PITCH + 4 * k];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint4 u = key[i][0][k], v = key[i][1][k];
                        mma(acc[i], u.x, v.x, u.y, v.y, w.x, w.y, type);
                        mma(acc[i], u.z, v.z, u.w, v.w, w.z, w.w, type);
                    }
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {       /* a lane's buckets come in ascending order */
                    const int row = row0 + 8 * j + 2 * c + (i & 1);
                    near_bucket &y = best[i / 2];
                    if (row < x.count && acc[i / 4][i % 4] > y.product) y = { acc[i / 4][i % 4], row };
                }
            }
        };
        if (x.row_type == SANTA_F16) multiply(__half()); else multiply(__nv_bfloat16());
    }
    copy_wait<0>();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        keep_nearest_of(best[i], 4);
        const int at = 32 * warp + 8 * i + r;
        if (c == 0 && at < count) index.bucket[from + at] = (unsigned short)best[i].bucket;
    }
}

/* The same for any keys and centroids.
   Grid: (64 new keys, KV head, batch). A CTA of 8 warps has the keys in shared memory, all of
   their features, and walks the centroids, 128 of them and 32 features at a time: a warp has 32
   keys and 32 of the centroids. In tf32, which holds all types but f32: that goes in two parts.
   Reads: keys once, the centroids once for each 64 keys, from L2. Flops: 2 * keys * centroids *
   d on tensor cores, thrice for f32. Nothing here is tuned.
   Barriers: before and behind each piece of the centroids; for the warps' best. */
__global__ void __launch_bounds__(256, 2) k_nearest_plain(const __grid_constant__ params p) {
    DYNAMIC_SHARED(slots);                          /* plain_nearest_bytes */
    SHARED(s, plain_nearest_memory);
    const row_product &x = p.product;
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    const int b = blockIdx.z, kv = blockIdx.y, pieces = (x.size + 31) / 32, pitch = 32 * pieces + 16;
    const new_keys n = new_keys_of(p, b);
    const int from = n.from + (int)blockIdx.x * PLAIN_NEAR_KEYS,
              count = min(n.to - from, (int)PLAIN_NEAR_KEYS);
    key_index index;
    if (!find_index(p, b, kv, index)) return;
    if (blockIdx.x == 0 && tid == 0) plan_index(p, b, kv);
    launch_dependents();
    if (count <= 0) return;
    float *const keys = (float *)slots, *const rows = keys + PLAIN_NEAR_KEYS * pitch;
#pragma unroll 1
    for (int i = tid; i < PLAIN_NEAR_KEYS * pieces * 4; i += 256) {
        const int key = i / (pieces * 4), f = i % (pieces * 4) * 8;
        const char *at = x.x + b * x.x_stride[0] + kv * x.x_stride[1]
                       + (n.skip + from - n.from + min(key, count - 1)) * x.x_stride[2]
                       + min(f, x.size - 1) / 8 * 8 * x.x_stride[3];
        float y[1][8];
        load_eights<1>(x.x_type, x.vector_x, &at, x.x_stride[3], x.size, &f, y);
        *(float4 *)(keys + key * pitch + f) = make_float4(y[0][0], y[0][1], y[0][2], y[0][3]);
        *(float4 *)(keys + key * pitch + f + 4) = make_float4(y[0][4], y[0][5], y[0][6], y[0][7]);
    }
    const bool split = x.row_type == SANTA_F32 || x.x_type == SANTA_F32;
    const int my_keys = warp & 1 ? 32 : 0, my_rows = 32 * (warp >> 1);
    near_bucket best[4];                                /* of keys r + 8 i */
#pragma unroll
    for (int i = 0; i < 4; i++) best[i] = { -INFINITY, 0 };
#pragma unroll 1
    for (int row0 = 0; row0 < x.count; row0 += PLAIN_NEAR_ROWS) {
        float acc[2][4][4];
#pragma unroll
        for (int i = 0; i < 32; i++) acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll 1
        for (int piece = 0; piece < pieces; piece++) {
            /* a thread brings 16 features of a row */
            const int f[2] = { 32 * piece + 16 * (tid & 1), 32 * piece + 16 * (tid & 1) + 8 };
            const char *at[2];
#pragma unroll
            for (int u = 0; u < 2; u++)
                at[u] = x.rows + ((i64)kv * x.count + min(row0 + tid / 2, x.count - 1))
                                     * ((i64)x.size * x.row_bytes)
                      + min(f[u], x.size - 1) / 8 * 8 * (i64)x.row_bytes;
            float y[2][8];
            load_eights<2>(x.row_type, x.vector_rows, at, x.row_bytes, x.size, f, y);
            __syncthreads();                        /* the piece before has been used */
#pragma unroll
            for (int k = 0; k < 4; k++)
                *(float4 *)(rows + tid / 2 * PLAIN_NEAR_PITCH + 16 * (tid & 1) + 4 * k)
                    = make_float4(y[k / 2][k % 2 * 4], y[k / 2][k % 2 * 4 + 1], y[k / 2][k % 2 * 4 + 2],
                                  y[k / 2][k % 2 * 4 + 3]);
            __syncthreads();
            const auto multiply = [&](bool in_parts) {  /* inlined, each time for one of them */
#pragma unroll
                for (int f = 0; f < 32; f += 16) {  /* 4 features of a lane: two steps of the mma */
                    float4 k[4], w[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int at = r + 8 * i, column = f + 4 * c;
                        k[i] = *(const float4 *)(keys + (my_keys + at) * pitch + 32 * piece + column);
                        w[i] = *(const float4 *)(rows + (my_rows + at) * PLAIN_NEAR_PITCH + column);
                    }
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float low[4] = { k[2 * i].x, k[2 * i + 1].x, k[2 * i].y, k[2 * i + 1].y },
                                    high[4] = { k[2 * i].z, k[2 * i + 1].z, k[2 * i].w, k[2 * i + 1].w };
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            const float u[4] = { w[j].x, w[j].y, w[j].z, w[j].w };
                            if (in_parts) {
                                mma_parts(acc[i][j], low, u, true);
                                mma_parts(acc[i][j], high, u + 2, true);
                            } else {
                                mma_tf32(acc[i][j], low, u);
                                mma_tf32(acc[i][j], high, u + 2);
                            }
                        }
                    }
                }
            };
            if (split) multiply(true); else multiply(false);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) {       /* a lane's buckets come in ascending order */
                    const int row = row0 + my_rows + 8 * j + 2 * c + (k & 1);
                    near_bucket &y = best[2 * i + (k >> 1)];
                    if (row < x.count && acc[i][j][k] > y.product) y = { acc[i][j][k], row };
                }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        keep_nearest_of(best[i], 4);
        if (c == 0) s.best[warp >> 1][my_keys + r + 8 * i] = best[i];
    }
    __syncthreads();
    if (tid >= count) return;
    near_bucket y = s.best[0][tid];
    for (int i = 1; i < 4; i++) keep_nearest(y, s.best[i][tid].product, s.best[i][tid].bucket);
    index.bucket[from + tid] = (unsigned short)y.bucket;
}

/* What the new keys change in the index: the header; where another 64 are whole, the keys by
   bucket, anew: a counting sort that needs no memory of its own.
   Grid: (ranges of buckets, KV head, batch). A CTA reads the buckets of all keys twice: how
   many of each of its own there are, and of those before; then where each key goes. Each of 32
   warps has a part of the keys, in order. Reads: 4 bytes a key for each range; writes 4 bytes a
   key. Where nothing is to be sorted it leaves at once.
   Barriers: for the nearest of few new keys; before and behind the scan of the counts. */
__global__ void __launch_bounds__(32 * INDEX_WARPS) k_index(const __grid_constant__ params p) {
    enum { WARPS = INDEX_WARPS };
    SHARED(s, index_memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), kv = blockIdx.y, b = blockIdx.z;
    const int each = (p.buckets + (int)gridDim.x - 1) / (int)gridDim.x, first = blockIdx.x * each,
              last = min(first + each, p.buckets);
    key_index x;
    wait_for_previous();
    if (!find_index(p, b, kv, x)) return;
    const int step = x.header[I_STEP], from = x.header[I_FROM], to = x.header[I_TO],
              sorted = to / BLOCK * BLOCK;
    if (step == INDEX_AS_IT_IS) return;
    int fresh = INT32_MAX;                            /* first key whose bucket is in s.fresh */
    if (p.new_tiles && from < to) {
        fresh = from;
        if (warp < to - from) {
            near_bucket best = { -INFINITY, 0 };
            for (int i = lane; i < p.new_tiles; i += 32) {
                const int *at = x.next + 2 * (i * (int)p.new_count + new_keys_of(p, b).skip + warp);
                keep_nearest(best, __int_as_float(at[0]), at[1]);
            }
            keep_nearest_of(best, 32);
            if (lane == 0) {
                s.fresh[warp] = best.product == -INFINITY ? 0 : best.bucket;
                if (blockIdx.x == 0) x.bucket[from + warp] = (unsigned short)s.fresh[warp];
            }
        }
        __syncthreads();
    }
    if (blockIdx.x == 0 && tid == 0) {
        x.header[I_MAGIC] = step == INDEX_BAD ? 0 : INDEX_MAGIC;
        x.header[I_BUCKETS] = p.buckets;
        x.header[I_CAPACITY] = p.capacity;
        x.header[I_HELD] = to;
        x.header[I_SORTED] = sorted;
    }
    if (step != INDEX_SORT || first >= last) return;
    for (int i = tid; i < WARPS * each; i += 32 * WARPS) s.count[i / each][i % each] = 0;
    __syncthreads();
    const int part = (sorted / BLOCK + WARPS - 1) / WARPS * BLOCK, begin = min(warp * part, sorted),
              end = min(begin + part, sorted);
    const unsigned *const words = (const unsigned *)x.bucket;
    /* the two buckets of keys j and j + 1 */
    const auto buckets_of = [&](unsigned word, int j, int id[2]) {
        id[0] = j >= fresh ? s.fresh[j - fresh] : (int)(word & 0xffffu);
        id[1] = j + 1 >= fresh ? s.fresh[j + 1 - fresh] : (int)(word >> 16);
    };
    int below = 0;
#pragma unroll 1
    for (int j0 = begin + 2 * lane; j0 < end; j0 += 64 * 8) {
        unsigned word[8];
#pragma unroll
        for (int i = 0; i < 8; i++) word[i] = words[min(j0 + 64 * i, end - 2) / 2];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (j0 + 64 * i >= end) break;
            int id[2];
            buckets_of(word[i], j0 + 64 * i, id);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                below += id[k] < first;
                if (id[k] >= first && id[k] < last) atomicAdd(&s.count[warp][id[k] - first], 1);
            }
        }
    }
    double before;
    cta_scan<WARPS>((double)below, s.scratch, &before);  /* its barriers also order the counts */
    {                                               /* a thread for each bucket */
        int own = 0;
        if (tid < last - first) for (int w = 0; w < WARPS; w++) own += s.count[w][tid];
        double total;
        int at = (int)(before + cta_scan<WARPS>((double)own, s.scratch, &total)) - own;
        before += total;
        if (tid < last - first) {
            x.offset[first + tid] = at;
            for (int w = 0; w < WARPS; w++) {
                const int n = s.count[w][tid];
                s.count[w][tid] = at;
                at += n;
            }
        }
    }
    if (last == p.buckets && tid == 0) x.offset[last] = (int)before;
    __syncthreads();
    unsigned next[4];
    const auto load = [&](int j0) {
#pragma unroll
        for (int i = 0; i < 4; i++) next[i] = words[min(j0 + 64 * i + 2 * lane, end - 2) / 2];
    };
    if (begin < end) load(begin);
#pragma unroll 1
    for (int j0 = begin; j0 < end; j0 += 64 * 4) {
        const unsigned word[4] = { next[0], next[1], next[2], next[3] };
        load(j0 + 64 * 4);
#pragma unroll 1
        for (int i = 0; i < 8; i++) {               /* 32 keys at a time, one to a lane */
            const int j = j0 + 32 * i + lane;
            if (j0 + 32 * i >= end) break;
            const unsigned both = i < 2 ? word[0] : i < 4 ? word[1] : i < 6 ? word[2] : word[3];
            const unsigned mine = __shfl_sync(FULL, both, 16 * (i & 1) + lane / 2);
            int id[2];
            buckets_of(mine, j & ~1, id);
            const int bucket = id[j & 1];
            unsigned left = __ballot_sync(FULL, bucket >= first && bucket < last);
            while (left) {                          /* the keys of one bucket, in order */
                const int of = __shfl_sync(FULL, bucket, __ffs((int)left) - 1);
                const unsigned same = __ballot_sync(FULL, bucket == of);
                const int at = s.count[warp][of - first];
                __syncwarp();
                if (bucket == of) x.key[at + __popc(same & ((1u << lane) - 1))] = j;
                if (lane == 0) s.count[warp][of - first] = at + __popc(same);
                __syncwarp();
                left &= ~same;
            }
        }
    }
}

/* ---------------------------------------------------------------------------- >>scan-kernel */

/* SANTA_SAAP with a copy of K. Between two launches of k_route, which say what buckets are
   scanned and draw: scores of their keys, then sizes, as santa__scan_blocks and
   santa__scan_sizes of santa.h have them. */

/* Maximum and sum of 2^(x - maximum) of two sets of scores. A NaN stays one. */
__device__ __forceinline__ float2 joined_sums(float2 a, float2 b) {
    const float high = max_or_nan(a.x, b.x);
    return make_float2(high, high == MASKED ? 0.0f : a.y * pow2(a.x - high) + b.y * pow2(b.x - high));
}

/* Scores of the scanned keys for up to 8 query heads. A warp has a block of 64 keys at a time:
   which of them are scanned by the buckets they are in, then products of the centre and of 16
   keys at a time: a lane brings the words that its registers of the mma want, see
   k_proxy_scores.
   Grid: (CTAs, KV head and slice, batch), 256 threads; a CTA's warps take every gridDim.x * 8th
   block.
   Reads 2 bytes for each far key, of the copy the lines with scanned ones; writes 4 bytes for
   each of these and each head. It should run at the speed of reading the lines.
   Barriers: for q, which warp h rotates for head h; for the warps' sums. */
__global__ void __launch_bounds__(SCAN_THREADS, 4) k_scan(const __grid_constant__ params p) {
    enum { PIECES = PROXY_DIM / 32, WARPS = SCAN_THREADS / 32 };
    SHARED(s, copied_keys_memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = this_warp(), r = lane >> 2, c = lane & 3;
    const int b = blockIdx.z, kv = (int)blockIdx.y / p.slices, slice = (int)blockIdx.y - kv * p.slices;
    const int head = kv * p.group + slice * PASS_HEADS,
              heads = min(p.group - slice * PASS_HEADS, (int)PASS_HEADS);
    const i64 item = (i64)b * p.kv_heads + kv;
    const bool extra = p.soft_cap > 0.0f || p.slopes;
    {
        unsigned raw[PIECES];
        const char *q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1]
                      + (head + min(warp, heads - 1)) * p.q_stride[2];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const char *at = q + min(lane + 32 * i, p.d - 1) * p.q_stride[3];
            raw[i] = p.q_type == SANTA_F32 ? *(const unsigned *)at : *(const unsigned short *)at;
        }
        rotate_query<PIECES, 0>(p, raw, heads, extra, s.q, s.unit, s.middle);
    }
    launch_dependents();
    wait_for_previous();
    key_index index;
    int begin, end, position;
    const bool bad = p.scan.bad[item] != 0 || !find_index(p, b, kv, index);
    key_range(p, b, begin, end, position);
    const int words = (p.buckets + 31) / 32;
#pragma unroll 1
    for (int i = tid; i < words; i += SCAN_THREADS) s.use[i] = p.scan.use[item * words + i];
    __syncthreads();
    if (bad) return;
    const list_range range = copied_far_keys_of(p, index, b, begin, end);
    const int from = range.to, to = range.from, step = (int)gridDim.x * WARPS, keys = p.copy.keys;
    const int stop = to > from ? to / BLOCK : 0;    /* in blocks, as a step more may pass 2^31 keys */
    /* of heads 2 c and 2 c + 1, whose sums end in this lane */
    float unit[2], middle[2], slope[2], top[2] = { MASKED, MASKED }, sum[2] = { 0.0f, 0.0f };
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int h = min(2 * c + e, heads - 1);
        unit[e] = s.unit[h];
        middle[e] = s.middle[h];
        slope[e] = p.slopes ? p.slopes[head + h] : 0.0f;
    }
    const bool two_bits = p.copy.bits == 2;
    const unsigned mask = two_bits ? 0x03030303u : 0x0f0f0f0fu;
    const int groups = p.copy.features / 32;
    const i64 row = (i64)b * p.heads + head;
    /* of head r features 32 g + 4 c .. and 16 more */
    const auto q_of = [&](int part, int g) {
        const signed char *const at = s.q[part][r] + 32 * g + 4 * c;
        return make_uint2(*(const unsigned *)at, *(const unsigned *)(at + 16));
    };
    unsigned next = 0;
    const auto load = [&](int block) {              /* the buckets of keys 2 lane and 2 lane + 1 */
        if (block < stop) next = ((const unsigned *)(index.bucket + block * BLOCK))[lane];
    };
    const int first = from / BLOCK + (int)blockIdx.x * WARPS + warp;
    load(first);
#pragma unroll 1
    for (int block = first; block < stop; block += step) {
        const unsigned both = next;
        load(block + step);
        bool is_in[2];
        unsigned votes[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int id = (int)(both >> 16 * e & 0xffffu), j = block * BLOCK + 2 * lane + e;
            is_in[e] = id < p.buckets && j >= from && j < to && (s.use[id >> 5] >> (id & 31) & 1u);
            votes[e] = __ballot_sync(FULL, is_in[e]);
        }
        const unsigned below = (1u << lane) - 1;
        const int at = __popc(votes[0] & below) + __popc(votes[1] & below),
                  count = __popc(votes[0]) + __popc(votes[1]);
        if (is_in[0]) s.key[warp][at] = (unsigned char)(2 * lane);
        if (is_in[1]) s.key[warp][at + is_in[0]] = (unsigned char)(2 * lane + 1);
        __syncwarp();
        if (slice == 0) {
            const i64 place = item * p.blocks + block;
            if (lane == 0) p.scan.counts[place] = (unsigned char)count;
            ((unsigned short *)(p.scan.keys + place * BLOCK))[lane] =
                ((const unsigned short *)s.key[warp])[lane];
        }
        int done = 0;
#pragma unroll 1
        for (int part = 0; part < BLOCK && done < count; part += keys) {
            /* those of one of the copy's blocks */
            const unsigned upto = part + keys == BLOCK ? FULL : (1u << (part + keys) / 2) - 1;
            const int last = __popc(votes[0] & upto) + __popc(votes[1] & upto);
            if (last == done) continue;
            const char *const block_at = copied_block(p, b, kv, block * BLOCK + part),
                       *const here = block_at ? block_at : p.proxy;   /* what it says is not used */
            const float scale = *(const float *)(here + p.copy.scale);
            float centre[2];
            {
                int coarse[4] = {}, fine[4] = {};
#pragma unroll 1
                for (int g = 0; g < groups; g++) {  /* in row 0 */
                    const unsigned *const at_centre = (const unsigned *)(here + p.copy.centre + 32 * g) + c;
                    const unsigned a[4] = { r ? 0 : at_centre[0], 0, r ? 0 : at_centre[4], 0 };
                    mma_centre(coarse, a, q_of(0, g));
                    mma_centre(fine, a, q_of(1, g));
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float x = ((float)coarse[e] + (float)fine[e] * (1.0f / 254.0f)) * scale;
                    centre[e] = __shfl_sync(FULL, x, c) * unit[e];
                }
            }
#pragma unroll 1
            for (; done < last; done += 16) {
                const char *row_at[2];
                unsigned w[PIECES][2];
                unsigned short gains[2];
                int key[2], acc[4] = { 0, 0, 0, 0 };
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    key[i] = s.key[warp][min(done + 8 * i + r, last - 1)];
                    row_at[i] = here + 16 * (key[i] - part) + 4 * c;
                    gains[i] = *(const unsigned short *)(here + p.copy.gains + 2 * (key[i] - part));
                }
#pragma unroll
                for (int k = 0; k < PIECES; k++)
                    if (k < p.copy.chunks)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            w[k][i] = *(const unsigned *)(row_at[i] + (16 * k << p.copy.shift));
#pragma unroll
                for (int k = 0; k < PIECES; k++) {
                    if (k >= p.copy.chunks) break;
                    if (!two_bits) {
                        mma_codes(acc, w[k][0] & mask, w[k][1] & mask, w[k][0] >> 4 & mask,
                                  w[k][1] >> 4 & mask, q_of(0, k));
                    } else {
                        mma_codes(acc, w[k][0] & mask, w[k][1] & mask, w[k][0] >> 2 & mask,
                                  w[k][1] >> 2 & mask, q_of(0, 2 * k));
                        mma_codes(acc, w[k][0] >> 4 & mask, w[k][1] >> 4 & mask, w[k][0] >> 6 & mask,
                                  w[k][1] >> 6 & mask, q_of(0, 2 * k + 1));
                    }
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int slot = done + 8 * i + r;
                    const float gain = __half2float(__ushort_as_half(gains[i]));
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float x = gain * ((float)acc[2 * i + e] * unit[e] - middle[e]) + centre[e];
                        if (extra) {
                            if (p.soft_cap > 0.0f) x = cap_score(x, p.soft_cap, p.per_cap);
                            x = (x + slope[e] * (float)(block * BLOCK + key[i] - position)) * LOG2E;
                        }
                        if (!block_at || !(x < INFINITY)) x = __int_as_float(0x7fc00000);
                        if (x < MASK_LIMIT) x = MASKED;
                        if (slot >= last || 2 * c + e >= heads) continue;
                        p.scan.scores[((row + 2 * c + e) * p.blocks + block) * BLOCK + slot] = x;
                        if (x == MASKED) continue;
                        if (!(x <= top[e])) {       /* a NaN stays */
                            sum[e] *= pow2(top[e] - x);
                            top[e] = max_or_nan(top[e], x);
                        }
                        sum[e] += pow2(x - top[e]);
                    }
                }
            }
            done = last;
        }
        __syncwarp();                               /* all lanes are through with the keys */
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float high = top[e];
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) high = max_or_nan(high, __shfl_xor_sync(FULL, high, o));
        sum[e] = high == MASKED ? 0.0f : sum[e] * pow2(top[e] - high);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) sum[e] += __shfl_xor_sync(FULL, sum[e], o);
        if (r == 0) s.sums[warp][2 * c + e] = make_float2(high, sum[e]);
    }
    __syncthreads();
    if (tid >= heads) return;
    float2 all = s.sums[0][tid];
#pragma unroll 1
    for (int i = 1; i < WARPS; i++) all = joined_sums(all, s.sums[i][tid]);
    p.scan.sums[(row + tid) * p.scan.ctas + blockIdx.x] = all;
}

/* Sizes of the scanned keys, in the place of their first head's scores: the largest of the
   heads' shares, each head's in units of what the router gives to its scanned buckets.
   Grid: (CTAs, KV head, batch), 256 threads; a warp takes every gridDim.x * 8th block.
   Each CTA reads the sums of all of k_scan's, then the scores. It is short; latency counts.
   Barrier: for the heads' masses. */
__global__ void __launch_bounds__(SCAN_THREADS) k_scan_sizes(const __grid_constant__ params p) {
    SHARED(s, copied_sizes_memory);
    const int lane = threadIdx.x & 31, warp = this_warp(), kv = blockIdx.y, b = blockIdx.z;
    const i64 item = (i64)b * p.kv_heads + kv, row = (i64)b * p.heads + kv * p.group;
    launch_dependents();
    wait_for_previous();
    key_index index;
    int begin, end, position;
    if (p.scan.bad[item] || !find_index(p, b, kv, index)) return;
    key_range(p, b, begin, end, position);
    const list_range range = copied_far_keys_of(p, index, b, begin, end);
    const int first = range.to / BLOCK, last = (range.from + BLOCK - 1) / BLOCK;
    if (range.from <= range.to) return;
    bool bad = false;
#pragma unroll 1
    for (int h = warp; h < p.group; h += SCAN_THREADS / 32) {
        const float2 *const sums = p.scan.sums + (row + h) * p.scan.ctas;
        float2 all = make_float2(MASKED, 0.0f);
#pragma unroll 1
        for (int i = lane; i < p.scan.ctas; i += 32) all = joined_sums(all, sums[i]);
#pragma unroll
        for (int o = 16; o; o >>= 1)
            all = joined_sums(all, make_float2(__shfl_xor_sync(FULL, all.x, o),
                                               __shfl_xor_sync(FULL, all.y, o)));
        /* a NaN stays one */
        if (lane == 0)
            s.head[h] = make_float2(all.x, all.y == 0.0f ? 0.0f : p.scan.share[row + h] / all.y);
    }
    __syncthreads();
#pragma unroll 1
    for (int h = lane; h < p.group; h += 32) bad |= !(fabsf(s.head[h].y) <= FLT_MAX);
    bad = __any_sync(FULL, bad);
#pragma unroll 1
    for (int block = first + (int)blockIdx.x * (SCAN_THREADS / 32) + warp; block < last;
         block += (int)gridDim.x * (SCAN_THREADS / 32)) {
        const int count = p.scan.counts[item * p.blocks + block];
        float *const scores = p.scan.scores + (row * p.blocks + block) * BLOCK;
        float sum = 0.0f, top = 0.0f;
#pragma unroll 1
        for (int e = 0; 32 * e < count; e++) {
            const int slot = lane + 32 * e;
            float size = 0.0f;
            if (slot < count) {
#pragma unroll 2
                for (int h = 0; h < p.group; h++) {
                    const float x = scores[(i64)h * p.blocks * BLOCK + slot];
                    if (x != MASKED) size = fmaxf(size, pow2(x - s.head[h].x) * s.head[h].y);
                }
                scores[slot] = size;
            }
            sum += size;
            top = fmaxf(top, size);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            sum += __shfl_xor_sync(FULL, sum, o);
            top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
        }
        if (lane == 0)
            p.scan.sizes[item * p.blocks + block] =
                make_float2(bad ? __int_as_float(0x7fc00000) : sum, top);
    }
}

/* -------------------------------------------------------------------------- >>route-kernel */

/* Inclusive scan over the CTA's threads in a fixed order; *total gets the sum. scratch: one for
   each warp, and another one for the next scan: there is one barrier only. */
template <typename T, int WARPS>
__device__ __noinline__ T scan_once(T x, T *scratch, T *total) {
    const int lane = threadIdx.x & 31, warp = this_warp();
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const T y = __shfl_up_sync(FULL, x, o);
        if (lane >= o) x += y;
    }
    if (lane == 31) scratch[warp] = x;
    __syncthreads();
    T all = lane < WARPS ? scratch[lane] : T(0);
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const T y = __shfl_up_sync(FULL, all, o);
        if (lane >= o) all += y;
    }
    *total = __shfl_sync(FULL, all, 31);
    const T before = __shfl_sync(FULL, all, max(warp - 1, 0));
    return warp ? before + x : x;
}

/* A scanned key of size x has the chance lambda (even + rate x), and 1 where bound (even + rate
   x) is at least that. */
struct scan_odds { double even, rate, bound; };

/* How many of a block's scanned keys are sure; the odds of the others join *open. all: the sum
   of their sizes, the largest. */
__device__ __noinline__ int sure_of_block(scan_odds x, int count, float2 all, const float *size,
                                          double *open) {
    double sum = 0.0;
    int sure = 0;
    if (!count) return 0;
    if (x.bound * (x.even + x.rate * (double)all.y) < 1.0) {
        *open += (double)count * x.even + x.rate * (double)all.x;
        return 0;
    }
#pragma unroll 1
    for (int k0 = 0; k0 < count; k0 += 4) {         /* four at once, as each takes a trip */
        const float4 y = *(const float4 *)(size + k0);
        const float four[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const double odds = x.even + x.rate * (double)four[k];
            if (k0 + k >= count) break;
            if (x.bound * odds >= 1.0) sure++; else sum += odds;
        }
    }
    *open += sum;
    return sure;
}

/* The first thread whose teeth of a comb end behind a place; ends: where each thread's do. */
__device__ __forceinline__ int owner_of(const double *ends, double place) {
    int low = 0, high = ROUTE_THREADS - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] > place) high = middle; else low = middle + 1;
    }
    return low;
}

/* The routing of a KV head's query row, by a CTA: the steps of k_route in their order. */
template <bool SCANS> struct router {
    enum { THREADS = ROUTE_THREADS, WARPS = THREADS / 32 };
    enum { WRONG = INT32_MAX };                     /* a key of which k_list makes NaN */
    const params &p;
    route_memory<SCANS> &s;
    const int tid, lane, warp, kv, b, buckets;
    const bool is_behind;                           /* the scan */
    const i64 item, row;                            /* row: of the group's first head */
    bucket_span *const span;
    const float *const logits;
    const int several, own, own_end;                /* a thread's buckets */
    key_index x;
    int begin, end, from, to, sorted;               /* the context; its far keys; those in order */
    bool bad, routes;
    /* a thread's blocks of the copy, the keys that were scanned in them */
    int first_block, blocks, few, own_block, own_block_end, copied = 0;
    i64 block0;
    const float *sizes;
    scan_odds odds = { 0.0, 0.0, 0.0 };
    double lambda = 0.0, scan_teeth = 0.0, all_teeth = 0.0;   /* teeth: of scanned keys, of the others */
    bool redone = false, draws;
    int pieces;

    __device__ __forceinline__ router(const params &p_, route_memory<SCANS> &s_)
        : p(p_), s(s_), tid(threadIdx.x), lane(threadIdx.x & 31), warp(this_warp()), kv(blockIdx.x),
          b(blockIdx.y), buckets(p_.buckets), is_behind(SCANS && p_.scan.is_done),
          item((i64)b * p_.kv_heads + kv), row((i64)b * p_.heads + kv * p_.group),
          span(p_.spans ? p_.spans + item * p_.buckets : s_.span), logits(p_.logits + row * p_.buckets),
          several((buckets + THREADS - 1) / THREADS), own(min(tid * several, buckets)),
          own_end(min(own + several, buckets)) { }

    /* A bucket that is read whole gets the chance 2, one whose keys are scanned 3. */
    static __device__ __forceinline__ float read() { return 2.0f; }
    static __device__ __forceinline__ float scanned() { return 3.0f; }
    static __device__ __forceinline__ bool is_read(const bucket_span &y) {
        return y.count && y.sum == read();
    }
    static __device__ __forceinline__ bool is_open(const bucket_span &y) {
        return y.count && y.sum != read() && (!SCANS || y.sum != scanned());
    }
    template <typename F> __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
        for (int i = own; i < own_end; i++) f(i, span[i]);
    }
    template <typename F> __device__ __forceinline__ void each_block(F f) const {
#pragma unroll 1
        for (int i = own_block; i < own_block_end; i++) f(i);
    }

    __device__ __forceinline__ void find_keys() {
        int first, last, position;                  /* no member's address leaves: it is a register */
        key_range(p, b, first, last, position);
        begin = first;
        end = last;
        bad = !find_index(p, b, kv, x);
        /* buckets are on their way beside the header, if that has all keys */
        if (!bad && !is_behind) {
            const i64 local = max(end - min(p.local_tokens, end) - BLOCK, 0);
            for (i64 j = local / BLOCK * BLOCK + BLOCK * tid; j < end; j += BLOCK * THREADS)
                prefetch((const char *)(x.bucket + j));
        }
        bad = bad || !has_header(p, x);
        const list_range range = bad   ? list_range{ begin, begin }
                               : SCANS ? copied_far_keys_of(p, x, b, begin, end)
                                       : far_keys_of(p, x, begin, end);
        from = range.to;
        to = range.from;
        sorted = bad ? 0 : x.header[I_SORTED];
    }

    /* Where the far keys of each bucket begin in the index, how many: its offsets, less the
       keys before and behind the far ones, which are at the ends of their bucket. */
    __device__ __forceinline__ void count_keys() {
#pragma unroll 1
        for (int i = tid; i < buckets; i += THREADS) span[i] = { 0, 0, 0.0f, 0.0f };
        __syncthreads();
#pragma unroll 1
        for (int j = tid; j < min(from, sorted); j += THREADS) {
            const int bucket = x.bucket[j];
            if (bucket < buckets) atomicAdd(&span[bucket].first, 1); else bad = true;
        }
        const unsigned keys = (unsigned)sorted;     /* a step behind them is no int */
#pragma unroll 1
        for (unsigned j = (unsigned)(to + tid); j < keys; j += 8 * THREADS) {
            int bucket[8];
#pragma unroll
            for (int k = 0; k < 8; k++) bucket[k] = x.bucket[min(j + k * THREADS, keys - 1)];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (j + k * THREADS >= keys) break;
                if (bucket[k] < buckets) atomicAdd(&span[bucket[k]].count, 1); else bad = true;
            }
        }
        __syncthreads();
        each([&](int i, bucket_span &y) {
            const int at = x.offset[i], next = x.offset[i + 1], start = at + y.first,
                      count = next - y.count - start;
            bad |= (i == 0 && at != 0) || at > next || at < 0 || next > sorted || count < 0
                || (i == buckets - 1 && next != sorted);
            y.first = start;
            y.count = count;
        });
    }

    /* Each bucket's shares of ROUTE_HEADS heads join its sum and largest one. A warp to a head:
       its maximum and sum, from the parts of the logits' kernel. */
    __device__ __forceinline__ void add_shares(int g0) {
        const int heads = min(p.group - g0, (int)ROUTE_HEADS);
        float y[ROUTE_HEADS];                       /* of the thread's first bucket, on their way */
#pragma unroll
        for (int h = 0; h < ROUTE_HEADS; h++)
            y[h] = logits[(i64)(g0 + min(h, heads - 1)) * buckets + min(own, buckets - 1)];
        if (warp < heads) {
            const float2 *const part = p.logit_parts + (row + g0 + warp) * p.logit_tiles;
            float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
            for (int i = lane; i < p.logit_tiles; i += 32) {
                const float2 z = part[i];
                const float high = fmaxf(top, z.x);
                sum = sum * pow2((top - high) * LOG2E) + z.y * pow2((z.x - high) * LOG2E);
                if (!(top > -INFINITY)) sum = z.y;  /* the first one */
                top = high;
            }
            float high = top;
#pragma unroll
            for (int o = 16; o; o >>= 1) high = fmaxf(high, __shfl_xor_sync(FULL, high, o));
            sum = top > -INFINITY ? sum * pow2((top - high) * LOG2E) : sum;
#pragma unroll
            for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
            bad |= !(sum > 0.0f && sum <= FLT_MAX);
            if (lane == 0) s.head[warp] = make_float2(high, 1.0f / sum);
        }
        bad = __syncthreads_or(bad);
        each([&](int i, bucket_span &z) {
            float sum = z.sum, top = z.top;
#pragma unroll
            for (int h = 0; h < ROUTE_HEADS; h++) {
                if (h >= heads) break;
                const float logit = i == own ? y[h] : logits[(i64)(g0 + h) * buckets + i],
                            share = pow2((logit - s.head[h].x) * LOG2E) * s.head[h].y;
                sum += share;
                top = fmaxf(top, share);
            }
            z.sum = sum;
            z.top = top;
        });
        if (g0 + ROUTE_HEADS < p.group) __syncthreads();
    }

    static __device__ __forceinline__ unsigned bits_of(const bucket_span &y) {
        return y.count ? __float_as_uint(y.sum) + 1 : 0u;
    }

    /* The num_probes buckets of the largest sums, by the digits of their bits: those with
       digits above prefix, and `want` of those with the same ones. */
    __device__ __forceinline__ void probe() {
        unsigned prefix = 0, mask = 0;
        int want = p.num_probes, shift = 24;
        bool all = false;                           /* of the latter, too */
        for (; want > 0 && shift >= 0 && !all; shift -= 8) {
            int *const bins = s.bins[shift / 8];
            each([&](int, bucket_span &y) {
                const unsigned bits = bits_of(y);
                if (bits && (bits & mask) == prefix) atomicAdd(&bins[bits >> shift & 255u], 1);
            });
            __syncthreads();
            /* each warp alike: a lane has 8 bins, from the highest ones down */
            int in[8], sum = 0;
#pragma unroll
            for (int k = 0; k < 8; k += 4) {
                const int4 y = *(const int4 *)(bins + 252 - 8 * lane - k);
                sum += (in[k] = y.w) + (in[k + 1] = y.z) + (in[k + 2] = y.y) + (in[k + 3] = y.x);
            }
            int upto = sum;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const int y = __shfl_up_sync(FULL, upto, o);
                if (lane >= o) upto += y;
            }
            const unsigned reached = __ballot_sync(FULL, upto >= want);
            if (!reached) {                         /* fewer buckets than probes: the first digit only */
                all = true;
                prefix = 0;
                break;
            }
            int above = upto - sum, digit = 0, over = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (above < want && above + in[k] >= want) { digit = 255 - 8 * lane - k; over = above; }
                above += in[k];
            }
            const int of = __ffs((int)reached) - 1;
            digit = __shfl_sync(FULL, digit, of);
            want -= __shfl_sync(FULL, over, of);
            prefix |= (unsigned)digit << shift;
            mask |= 255u << shift;
            all = bins[digit] == want;
        }
        const bool none = p.num_probes <= 0;
        int before = 0;                             /* ties in buckets below the thread's own */
        if (!none && !all) {
            u64 same = 0, unused;
            each([&](int, bucket_span &y) { same += bits_of(y) == prefix; });
            before = (int)(scan_once<u64, WARPS>(same, s.rows, &unused) - same);
        }
        each([&](int, bucket_span &y) {
            const unsigned bits = bits_of(y), digits = bits & mask;
            const bool is_probed = !none && bits
                                && (digits > prefix || (digits == prefix && (all || before++ < want)));
            y.sum = !is_probed ? 0.0f : SCANS ? scanned() : read();
        });
    }

    /* For the scan: its buckets, what share of each head they have. */
    __device__ __forceinline__ void tell_scan() {
        __syncthreads();
        const int words = (buckets + 31) / 32;
#pragma unroll 1
        for (int i = tid; i < words; i += THREADS) {
            unsigned use = 0;
#pragma unroll 1
            for (int k = 0; routes && k < min(32, buckets - 32 * i); k++)
                use |= (unsigned)(span[32 * i + k].sum == scanned()) << k;
            p.scan.use[item * words + i] = use;
        }
        if (tid == 0) p.scan.bad[item] = bad;
#pragma unroll 1
        for (int h = warp; routes && h < p.group; h += WARPS) {
            const float2 *const part = p.logit_parts + (row + h) * p.logit_tiles;
            const float *const logit = logits + (i64)h * buckets;
            float top = -INFINITY, all = 0.0f, mine = 0.0f;
#pragma unroll 1
            for (int i = lane; i < p.logit_tiles; i += 32) top = fmaxf(top, part[i].x);
#pragma unroll
            for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, o));
#pragma unroll 1
            for (int i = lane; i < p.logit_tiles; i += 32)
                all += part[i].y * pow2((part[i].x - top) * LOG2E);
#pragma unroll 4
            for (int i = lane; i < buckets; i += 32)
                mine += span[i].sum == scanned() ? pow2((logit[i] - top) * LOG2E) : 0.0f;
#pragma unroll
            for (int o = 16; o; o >>= 1) {
                all += __shfl_xor_sync(FULL, all, o);
                mine += __shfl_xor_sync(FULL, mine, o);
            }
            if (lane == 0) p.scan.share[row + h] = mine / all;
        }
    }

    __device__ __forceinline__ void own_blocks() {
        first_block = from / BLOCK;
        blocks = is_behind && routes ? (to - 1) / BLOCK + 1 - first_block : 0;
        few = (blocks + THREADS - 1) / THREADS;
        own_block = min(tid * few, blocks);
        own_block_end = min(own_block + few, blocks);
        block0 = item * p.blocks + first_block;
        sizes = is_behind ? p.scan.scores + (row * p.blocks + first_block) * BLOCK : nullptr;
    }

    __device__ __forceinline__ int sure_in(int i, double &open) const {
        return sure_of_block(odds, p.scan.counts[block0 + i], p.scan.sizes[block0 + i],
                             sizes + (i64)i * BLOCK, &open);
    }

    /* The mass of the keys that can be drawn, how many: of open buckets and of scanned keys. */
    __device__ __forceinline__ void sum_open(double &mass, double &keys) {
        mass = 0.0;
        keys = 0.0;
        each([&](int, bucket_span &y) {
            if (is_open(y)) {
                mass += (double)y.top;
                keys += (double)y.count;
            }
        });
        each_block([&](int i) {
            const int count = p.scan.counts[block0 + i];
            const float size = count ? p.scan.sizes[block0 + i].x : 0.0f;
            redone |= size != size;
            mass += (double)size;
            copied += count;
        });
        keys += (double)copied;
        double sum;
        scan_once<double, WARPS>(mass, s.scratch[0], &sum);
        mass = sum;
        scan_once<double, WARPS>(keys, s.scratch[1], &sum);
        keys = sum;
    }

    /* Chances of the keys of each open bucket, which with those of the scanned keys add up to
       the draws. Who gets 1 leaves the draws to the others. */
    __device__ __forceinline__ void choose_chances() {
        double mass, keys, left = p.samples, sum;
        sum_open(mass, keys);
        bool all = !(keys > left);
        if (is_behind) {                            /* no number there: all are read */
            redone = __syncthreads_or(redone);
            all |= redone;
        }
        const double even = p.uniform_share / keys,
                     routed = mass > 0.0 ? (1.0 - p.uniform_share) / mass : 0.0,
                     other = mass > 0.0 ? 0.0 : (1.0 - p.uniform_share) / keys;
        each([&](int, bucket_span &y) {
            if (all && y.count) y.sum = read();
            else if (is_open(y)) y.sum = (float)(even + other + routed * (double)y.top / (double)y.count);
        });
        odds.even = even + other;
        odds.rate = routed;
        int turn = 0, own_sure = 0;
        for (bool more = !all; more; turn ^= 1) {
            double part = 0.0, gone = 0.0;
            each([&](int, bucket_span &y) {
                if (is_open(y)) part += (double)y.count * (double)y.sum;
            });
            each_block([&](int i) { sure_in(i, part); });
            __syncthreads();
            scan_once<double, WARPS>(part, s.scratch[turn], &sum);
            lambda = sum > 0.0 && left > 0.0 ? left / sum : 0.0;
            each([&](int, bucket_span &y) {
                if (!is_open(y) || lambda * (double)y.sum < 1.0) return;
                y.sum = read();
                gone += (double)y.count;
            });
            if (is_behind) {
                int sure = 0;
                double unused = 0.0;
                odds.bound = fmax(odds.bound, lambda);
                each_block([&](int i) { sure += sure_in(i, unused); });
                gone += (double)(sure - own_sure);
                own_sure = sure;
            }
            more = __syncthreads_or(gone > 0.0);
            if (!more) break;
            scan_once<double, WARPS>(gone, s.scratch[turn ^ 1], &sum);
            left -= sum;
        }
        each([&](int, bucket_span &y) { if (is_open(y)) y.sum = (float)(lambda * (double)y.sum); });
        if (is_behind) {                            /* teeth of the scanned keys come first */
            if (!all)
                each_block([&](int i) {
                    double open = 0.0;
                    scan_teeth += (double)sure_in(i, open);
                    scan_teeth += lambda * open;
                });
            double total;
            __syncthreads();
            s.scanned[tid] = scan_once<double, WARPS>(scan_teeth, s.scratch[turn], &total);
            scan_teeth = total;
            copied = (int)__reduce_add_sync(FULL, (unsigned)copied);
            if (lane == 0) s.bins[1][warp] = copied;
        }
        __syncthreads();
    }

    /* The buckets that are read whole, as pieces: first in shared memory, in their order. */
    __device__ __forceinline__ void list_buckets() {
        double teeth = 0.0, all = 0.0;
        unsigned count = 0;
        each([&](int, bucket_span &y) {
            if (routes && is_open(y) && p.samples) teeth += (double)y.count * (double)y.sum;
            count += routes && is_read(y);
        });
        if (p.samples) s.teeth[tid] = scan_once<double, WARPS>(teeth, s.scratch[0], &all);
        all_teeth = all;
        unsigned upto = count;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const unsigned n = __shfl_up_sync(FULL, upto, o);
            if (lane >= o) upto += n;
        }
        if (lane == 31) s.read[warp] = upto;
        __syncthreads();
        const unsigned read_of = lane < WARPS ? s.read[lane] : 0u;
        pieces = (int)__reduce_add_sync(FULL, read_of);
        int piece = (int)(upto - count + __reduce_add_sync(FULL, lane < warp ? read_of : 0u));
        list_piece *const table = (list_piece *)p.piece_table + item * buckets;
        each([&](int, bucket_span &y) {
            if (!routes || !is_read(y)) return;
            if (piece < ROUTE_PIECES) s.piece[piece] = { y.count, y.first };
            else table[piece] = { y.count, y.first };
            piece++;
        });
        __syncthreads();
        /* the first warp counts their keys, the others send for the keys' numbers, where pieces
           are few */
        if (warp) {
#pragma unroll 1
            for (int i = warp - 1; i < min(pieces, (int)ROUTE_PIECES); i += WARPS - 1) {
                const list_piece y = s.piece[i];
#pragma unroll 1
                for (int k = 32 * lane; k < y.at; k += 32 * 32)
                    prefetch((const char *)(x.key + y.first + k));
            }
            return;
        }
        int whole = 0;
#pragma unroll 1
        for (int i0 = 0; i0 < pieces; i0 += 32) {
            const int i = i0 + lane;
            list_piece y = i >= pieces ? list_piece{ 0, 0 } : i < ROUTE_PIECES ? s.piece[i] : table[i];
            const int keys = y.at;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const int n = __shfl_up_sync(FULL, y.at, o);
                if (lane >= o) y.at += n;
            }
            const int until = whole + y.at;
            if (i < pieces) table[i] = { until - keys, y.first };
            whole = __shfl_sync(FULL, until, 31);
        }
        if (lane == 0) s.whole = whole;
        if (lane == 0) ((list_pieces *)p.pieces)[item] = { pieces, whole };
    }

    /* A key of the index that is drawn, and counted. */
    __device__ __forceinline__ int drawn(int key) const {
        if (p.routed) atomicAdd(&s.drawn, 1);
        return key >= from && key < to ? key : WRONG;
    }

    /* The scanned key at a place of the comb, and its chance; -1: none, by rounding the tooth
       before has it. */
    __device__ __forceinline__ int scanned_key(double place, float &chance) const {
        const int low = owner_of(s.scanned, place);
        double start = low ? s.scanned[low - 1] : 0.0;
#pragma unroll 1
        for (int i = low * few; i < min((low + 1) * few, blocks); i++) {
            double open = 0.0;
            const double stop = start + (double)sure_in(i, open);
            if (place >= stop + lambda * open) { start = stop + lambda * open; continue; }
            const int count = p.scan.counts[block0 + i];
            float4 four;
#pragma unroll 1
            for (int k = 0; k < count; k++) {
                if (!(k & 3)) four = *(const float4 *)(sizes + (i64)i * BLOCK + k);
                const float size = k & 2 ? k & 1 ? four.w : four.z : k & 1 ? four.y : four.x;
                const double odd = odds.even + odds.rate * (double)size,
                             pi = odds.bound * odd >= 1.0 ? 1.0 : fmin(lambda * odd, 1.0);
                if (place < start + pi) {
                    if (place - 1.0 >= start) break;
                    chance = (float)pi;
                    return drawn((first_block + i) * BLOCK + p.scan.keys[(block0 + i) * BLOCK + k]);
                }
                start += pi;
            }
            break;
        }
        return -1;
    }

    /* The same of the open buckets' keys. */
    __device__ __forceinline__ int open_key(double place, float &chance) const {
        const int low = owner_of(s.teeth, place);
        double start = low ? s.teeth[low - 1] : 0.0;
#pragma unroll 1
        for (int i = low * several; i < min((low + 1) * several, buckets); i++) {
            if (!is_open(span[i])) continue;
            const double pi = (double)span[i].sum, stop = start + pi * (double)span[i].count;
            if (place < stop) {
                int k = (int)((place - start) / pi);
                if (place - 1.0 >= start) k = max(k, (int)((place - 1.0 - start) / pi) + 1);
                if (k >= span[i].count) break;
                chance = span[i].sum;
                return drawn(x.key[span[i].first + k]);
            }
            start = stop;
        }
        return -1;
    }

    /* A thread for each tooth of the comb. */
    __device__ __forceinline__ void draw() {
        int *const list = (int *)p.list + item * p.list_pitch;
        float *const weights = p.samples ? (float *)p.list_weights + item * p.list_pitch : nullptr;
        draws = routes && p.samples && all_teeth + scan_teeth > 0.0;
        const double u = !draws ? 0.0
            : uniform(row_key<1>(p, b), 0, random_head(p, kv * p.group), (unsigned)p.q_index, 0);
#pragma unroll 1
        for (int tooth = tid; draws && tooth <= p.samples; tooth += THREADS) {
            const double place = (double)tooth + u;
            float chance = 1.0f;
            list[tooth] = place - scan_teeth < 0.0       ? scanned_key(place, chance)
                        : place - scan_teeth < all_teeth ? open_key(place - scan_teeth, chance) : -1;
            weights[tooth] = 1.0f / chance;
        }
        if (tid) return;
        if (bad) list[0] = WRONG;
        if (bad && weights) weights[0] = 1.0f;
        ((int *)p.list_lens)[item] = bad ? 1 : draws ? p.samples + 1 : 0;
        ((list_range *)p.list_ranges)[item] = bad ? list_range{ begin, end } : list_range{ from, to };
    }

    __device__ __forceinline__ void tell_stats() {
        double squares = 0.0;
        int largest = 0;
        each([&](int, bucket_span &y) {
            if (!routes) return;
            squares += (double)y.count * (double)y.count;
            if (is_read(y)) largest = max(largest, y.count);
        });
        __syncthreads();
        cta_scan<WARPS>(squares, s.scratch[0], &squares);
#pragma unroll
        for (int o = 16; o; o >>= 1) largest = max(largest, __shfl_xor_sync(FULL, largest, o));
        if (lane == 0) s.bins[0][warp] = largest;
        __syncthreads();
        if (tid) return;
#pragma unroll 1
        for (int i = 1; i < WARPS; i++) largest = max(largest, s.bins[0][i]);
        const double far = to - from;
        int all_copied = 0;
        for (int i = 0; is_behind && routes && p.samples && i < WARPS; i++) all_copied += s.bins[1][i];
        p.routed[item] = { end - begin, to - from, s.whole, s.drawn, pieces, routes, all_copied, redone,
                           routes ? (i64)((double)buckets * squares / (far * far) * 1e6) : 0,
                           routes ? (i64)((double)largest / far * 1e6) : 0 };
    }
};

/* What a query row reads of a KV head's keys, for k_list: the far keys of the buckets with the
   largest shares, as pieces, and keys drawn from the others. It is santa__route_row of santa.h.
   SCANS, with a copy of K, twice: up to the probe, whose buckets are scanned then, and behind
   the scan, with the scanned keys among those that are drawn from.
   Grid: (KV head, batch), 1024 threads; a thread owns neighbouring buckets, and blocks.
   Reads: 4 bytes of each bucket, 4 bytes for each of a group's logits, 2 bytes for each key
   that is not far. Latency counts: keys are counted before the logits are there.
   Barriers: between these steps, and in each scan. */
template <bool SCANS>
__global__ void __launch_bounds__(ROUTE_THREADS) k_route(const __grid_constant__ params p) {
    SHARED(s, route_memory<SCANS>);
    router<SCANS> x(p, s);
    launch_dependents();
    x.find_keys();
#pragma unroll 1
    for (int i = x.tid; i < 4 * 256; i += x.THREADS) s.bins[i / 256][i % 256] = 0;
    if (x.tid == 0) s.drawn = 0;
    if (!x.bad && !x.is_behind) x.count_keys();
    const bool some = x.to > x.from;                /* the same for all threads */
    if (x.tid < 2)
        prefetch(x.tid ? (const char *)x.logits : (const char *)(p.piece_table + x.item * x.buckets));
    wait_for_previous();
    if (x.is_behind) x.bad = p.scan.bad[x.item] != 0;
    if (!some || x.is_behind) x.bad = __syncthreads_or(x.bad);
#pragma unroll 1
    for (int g0 = 0; some && !x.is_behind && g0 < p.group; g0 += ROUTE_HEADS) x.add_shares(g0);
    x.routes = some && !x.bad;
    if (x.routes && !x.is_behind) x.probe();
    if (SCANS && !x.is_behind) {
        x.tell_scan();
        return;
    }
    x.own_blocks();
    if (x.routes && p.samples) x.choose_chances();
    x.list_buckets();
    x.draw();
    if (p.routed) x.tell_stats();
}

/* What a head is off by, from its draws, as santa__routed_errors of santa.h has it: (1 - pi) of
   the square of a drawn key's weight times its row's distance to out, which is read as it was
   rounded. Launched for a.std_error alone, behind k_combine.
   Grid: (query head, batch), 256 threads: a warp owns every eighth draw, its lanes features and
   columns. Reads the drawn rows of K and V again. Barriers: those of cta_scan. */
__global__ void __launch_bounds__(PORTION) k_route_error(const __grid_constant__ params p) {
    SHARED(s, rank_memory);
    const int tid = threadIdx.x, lane = tid & 31, b = blockIdx.y, head = blockIdx.x, kv = head / p.group;
    const i64 item = (i64)b * p.kv_heads + kv, result = result_of(p, b, p.q_index, head);
    const int n = p.list_lens[item], *const list = p.list + item * p.list_pitch;
    const float *const weights = p.list_weights + item * p.list_pitch;
    const list_range range = p.list_ranges[item];
    const char *const q = p.q + b * p.q_stride[0] + p.q_index * p.q_stride[1] + head * p.q_stride[2],
               *const out = p.out + b * p.out_stride[0] + p.q_index * p.out_stride[1]
                          + head * p.out_stride[2];
    const float lse = p.lse[lse_of(p, b, p.q_index, head)] * LOG2E;
    int begin, end, position;
    key_range(p, b, begin, end, position);
    double sum = 0.0, drawn = 0.0;
#pragma unroll 1
    for (int i = tid >> 5; i < n; i += GATHER_WARPS) {
        const int j = list[i];
        if (j < range.to || j >= range.from) continue;
        const i64 k = row_offset(p, p.k_stride, b, j), v = row_offset(p, p.v_stride, b, j);
        float score = 0.0f, dist = 0.0f;
        if (lane == 0) drawn += 1.0;
        if (k == NO_ROW) continue;                  /* out is NaN */
        const float k_scale = key_scale(p, b, kv, j), v_scale = value_scale(p, b, kv, j);
#pragma unroll 1
        for (int f = lane; f < p.d; f += 32)
            score += load_any(p.q_type, q + f * p.q_stride[3])
                   * load_listed(p.k_type, p.k + k + kv * p.k_stride[2], f, p.k_stride[3]);
#pragma unroll 1
        for (int c = lane; c < p.dv; c += 32) {
            const float row = load_listed(p.v_type, p.v + v + kv * p.v_stride[2], c, p.v_stride[3]),
                        to = row * v_scale * p.v_scale - load_any(p.out_type, out + c * p.out_stride[3]);
            dist += to * to;
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            score += __shfl_xor_sync(FULL, score, o);
            dist += __shfl_xor_sync(FULL, dist, o);
        }
        const double w = exp2((double)finished_score(p, head, score * k_scale, j - position) - (double)lse)
                       * (double)weights[i];
        if (lane == 0) sum += (1.0 - 1.0 / (double)weights[i]) * w * w * (double)dist;
    }
    sum = cta_total<GATHER_WARPS>(sum, s.scratch);
    drawn = cta_total<GATHER_WARPS>(drawn, s.scratch);
    const bool bad = is_spoilt(p, b, head);
    if (tid) return;
    const int whole = p.pieces[item].keys, far = range.from - range.to;
    const bool reads = drawn > 0.0 || whole > 0 || end - begin > far, leaves = far > whole;
    p.std_error[result] = bad || lse != lse ? __int_as_float(0x7fc00000)
                        : !leaves || !reads ? 0.0f
                        : drawn < 2.0       ? INFINITY
                                            : (float)sqrt(sum);
}

/* Share of a head's softmax in the keys that are read, of scores that k_scores left as such.
   Grid: (query head, batch), 256 threads. Reads the block sums, and the scores of the keys that
   are read. Barriers: for the maximum, and those of cta_scan. */
__global__ void __launch_bounds__(PORTION) k_route_mass(const __grid_constant__ params p) {
    SHARED(s, rank_memory);
    const int tid = threadIdx.x, b = blockIdx.y, head = blockIdx.x, kv = head / p.group;
    const i64 item = (i64)b * p.kv_heads + kv, row = (i64)b * p.heads + head;
    int begin, end, position;
    key_range(p, b, begin, end, position);
    const int first = begin / BLOCK, blocks = begin < end ? (end - 1) / BLOCK + 1 - first : 0;
    const float2 *const sums = p.block_sums + row * p.blocks + first;
    const float *const scores = (const float *)p.stash + row * p.blocks * BLOCK;
    const float m = cta_top(sums, 0, blocks, s.tops);
    double all = 0.0, read = 0.0;
#pragma unroll 1
    for (int i = tid; i < blocks; i += PORTION) all += block_mass(sums[i], m);
    const auto add = [&](int j) { if (j >= begin && j < end) read += (double)pow2(scores[j] - m); };
    const list_range range = p.list_ranges[item];
#pragma unroll 1
    for (int j = begin + tid; j < range.to; j += PORTION) add(j);
#pragma unroll 1
    for (int j = max(range.from, range.to) + tid; j < end; j += PORTION) add(j);
#pragma unroll 1
    for (int i = tid; i < p.list_lens[item] && p.list_weights; i += PORTION)
        add(p.list[item * p.list_pitch + i]);
    const list_pieces pieces = p.pieces[item];
    const list_piece *const table = p.piece_table + item * p.buckets;
    key_index x;
    if (pieces.count && find_index(p, b, kv, x))
#pragma unroll 1
        for (int i = 0; i < pieces.count; i++) {
            const int to = i + 1 < pieces.count ? table[i + 1].at : pieces.keys;
#pragma unroll 1
            for (int k = tid; k < to - table[i].at; k += PORTION) add(x.key[table[i].first + k]);
        }
    all = cta_total<GATHER_WARPS>(all, s.scratch);
    read = cta_total<GATHER_WARPS>(read, s.scratch);
    if (tid == 0) p.covered[row] = all > 0.0 ? (i64)(fmin(read / all, 1.0) * 1e6) : -1;
}

/* Adds the counts of one query row to p.stats; with the last row the means of all.
   Grid: one CTA; a thread owns every 256th sequence and KV head. A diagnostic; no barrier. */
__global__ void __launch_bounds__(256) k_route_stats(const __grid_constant__ params p) {
    const i64 items = (i64)p.batch * p.kv_heads;
    const auto add = [](int64_t *field, i64 n) { atomicAdd((u64 *)field, (u64)n); };
#pragma unroll 1
    for (i64 i = threadIdx.x; i < items; i += 256) {
        const routed_row x = p.routed[i];
        const i64 read = (i64)x.keys - x.far + x.whole + x.drawn;
        add(&p.stats->rows, p.group);
        add(&p.stats->keys, x.keys);
        add(&p.stats->k_rows_read, read);
        add(&p.stats->v_rows_read, read);
        add(&p.stats->v_rows_head, read * p.group);
        add(&p.stats->k_features_read, read * p.d);
        add(&p.stats->k_features_head, read * p.d * p.group);
        add(&p.stats->draws, x.drawn);
        add(&p.stats->far_rows, x.far);
        add(&p.stats->visited_rows, x.whole + x.drawn);
        add(&p.stats->visited_buckets, x.segments);
        add(&p.stats->proxy_rows_read, x.copied);
        add(&p.stats->redone_rows, x.redone ? p.group : 0);
    }
    if (threadIdx.x || p.q_index < p.q_len - 1) return;
    const i64 results = (i64)p.batch * p.heads;
    i64 rows = 0, imbalance = 0, largest = 0, covered = 0;
#pragma unroll 1
    for (i64 i = -p.q_index * results; p.covered && i < results; i++)
        if (p.covered[i] >= 0) { covered += p.covered[i]; rows++; }
    rows = mean_sum(p, 0, rows);
    covered = mean_sum(p, 1, covered);
    if (rows) p.stats->covered_mass = 1e-6 * (double)covered / (double)rows;
    rows = 0;
#pragma unroll 1
    for (i64 i = -p.q_index * items; i < items; i++) {
        rows += p.routed[i].has_far;
        imbalance += p.routed[i].imbalance;
        largest += p.routed[i].largest;
    }
    rows = mean_sum(p, 2, rows);
    imbalance = mean_sum(p, 3, imbalance);
    largest = mean_sum(p, 4, largest);
    if (!rows) return;
    p.stats->imbalance = 1e-6 * (double)imbalance / (double)rows;
    p.stats->largest_bucket = 1e-6 * (double)largest / (double)rows;
}

/* --------------------------------------------------------------------------- >>steps-kernel */

/* The steps of santa_cuda.h, around kernels of other sections. Nothing here is tuned. */

/* What a scores kernel has left with p.raw, in base 2, as natural scores.
   Grid: (256s of keys, query head, batch), 256 threads. Reads and writes 4 bytes a key. */
__global__ void __launch_bounds__(256) k_step_scores(const __grid_constant__ params p) {
    const int b = blockIdx.z, head = blockIdx.y, j = (int)(blockIdx.x * 256 + threadIdx.x);
    int begin, end, position;
    key_range(p, b, begin, end, position);
    if (j >= p.capacity) return;
    const float *const from = (const float *)p.stash + stash_entry(p, b, head, 0);
    const float x = j >= begin && j < end ? from[j] : MASKED;
    ((float *)p.step.scores)[((i64)b * p.heads + head) * p.step.stride + j]
        = x < MASK_LIMIT ? -INFINITY : x * 0.69314718055994530942f;
}

/* Scores to what a scores kernel leaves: a warp has a block of 64 keys and up to 8 query heads.
   Grid: (8 blocks, 8 query heads, batch). Reads 4 bytes a key, writes as k_scores does. */
__global__ void __launch_bounds__(SCORE_WARPS * 32) k_step_masses(const __grid_constant__ params p) {
    const int b = blockIdx.z, slice = blockIdx.y, lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
    const int block = (int)(blockIdx.x * SCORE_WARPS) + this_warp(), first = block * BLOCK + 8 * r;
    const int heads = min(p.heads - slice * PASS_HEADS, (int)PASS_HEADS);
    zero_arrivals(p);
    if (block < p.blocks) {
        float s[2][8], m[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const i64 row = (i64)b * p.heads + slice * PASS_HEADS + min(2 * c + e, heads - 1);
            m[e] = MASKED;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float x = first + i < p.capacity
                                  ? p.step.scores[row * p.step.stride + first + i] * LOG2E : MASKED;
                s[e][i] = x < MASK_LIMIT ? MASKED : x;
                m[e] = fmaxf(m[e], s[e][i]);        /* NaN is caught by the sum */
            }
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) m[e] = fmaxf(m[e], __shfl_xor_sync(FULL, m[e], o));
        }
        write_block(p, b, 0, slice, block, heads,
                    p.stash_type == SANTA_STASH_U8 ? row_key<1>(p, b) : 0, s, m);
    }
    launch_dependents();
}

/* Draws that k_gather or k_top have left, and their weights. A draw counts 1 / samples, flash's
   what it says; chosen keys their share of the mass of all that are.
   Grid: (query head, batch), 256 threads. Barriers: those of cta_scan. */
__global__ void __launch_bounds__(PORTION) k_step_draws(const __grid_constant__ params p) {
    SHARED(s, rank_memory);
    const int tid = threadIdx.x;
    const i64 row = (i64)blockIdx.y * p.heads + blockIdx.x;
    const int n = p.draws[row], *const keys = p.keys + row * p.max_draws;
    const float *const scores = (const float *)p.stash + row * p.blocks * BLOCK;
    rest_mass rest = { 0.0, 0.0f };
    double mass = 0.0;
    if (p.list_rest) {
        double mine = 0.0;
        rest = p.list_rest[row];
#pragma unroll 1
        for (int i = tid; i < n; i += PORTION) mine += (double)pow2(scores[keys[i]] - rest.top);
        cta_scan<GATHER_WARPS>(mine, s.scratch, &mass);
    }
#pragma unroll 1
    for (int i = tid; i < n; i += PORTION) {
        const double drawn = p.weights ? (double)p.weights[row * p.max_draws + i] : 1.0,
                     chosen = p.list_rest ? (double)pow2(scores[keys[i]] - rest.top) : 0.0;
        p.step.index[row * p.step.capacity + i] = keys[i];
        p.step.weight[row * p.step.capacity + i]
            = (float)(p.list_rest ? quotient(chosen, mass) : drawn * p.per_sample);
    }
    if (tid) return;
    p.step.rows[row] = n;
    if (p.list_rest && p.step.lse)
        p.step.lse[row] = head_lse(p, (int)blockIdx.x, rest.top, mass + rest.sum);
}

/* Weighted rows of V. A key that is not one of the sequence makes its head NaN.
   Grid: (query head, batch, 128 columns of V), 128 threads. Reads the listed rows. */
__global__ void __launch_bounds__(128) k_step_gather(const __grid_constant__ params p) {
    const int head = blockIdx.x, b = blockIdx.y, kv = head / p.group,
              column = (int)(blockIdx.z * 128 + threadIdx.x);
    const i64 row = (i64)b * p.heads + head, at = row * p.step.capacity;
    const int n = (int)min(max((i64)p.step.rows[row], (i64)0), p.step.capacity);
    const int len = p.seq_lens ? min(max(p.seq_lens[b], 0), p.capacity) : p.capacity,
              start = padding_of(p, b);
    if (column >= p.dv) return;
    const char *const v = p.v + kv * p.v_stride[2];
    double sum = 0.0;                               /* of up to a million entries */
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        const int j = p.step.index[at + i];
        const i64 from = j >= start && j < len ? row_offset(p, p.v_stride, b, j) : NO_ROW;
        const float x = from == NO_ROW ? __int_as_float(0x7fc00000)
                      : load_coded(p.v_type, v + from, column, p.v_stride[3]) * value_scale(p, b, kv, j);
        sum += (double)p.step.weight[at + i] * (double)x;
    }
    p.step.out[row * p.dv + column] = (float)(sum * (double)p.v_scale);
}

/* As santa_merge. Grid: rows, 128 threads, each with some columns. Barrier: all have read the
   lse. */
__global__ void __launch_bounds__(128) k_step_merge(const __grid_constant__ params p) {
    const i64 row = blockIdx.x;
    float *const out = p.step.out + row * p.dv;
    const float *const other = p.step.other_out + row * p.dv;
    const float x = p.step.lse[row], y = p.step.other_lse[row];
    const bool bad = !(x < INFINITY && y < INFINITY), alone = x == -INFINITY,
               none = alone && y == -INFINITY;
    __syncthreads();
    if (!bad && !alone && y == -INFINITY) return;
    const double m = fmax((double)x, (double)y), wx = alone ? 0.0 : exp((double)x - m),
                 wy = exp((double)y - m);
#pragma unroll 1
    for (int c = threadIdx.x; c < p.dv; c += 128)
        out[c] = bad     ? __int_as_float(0x7fc00000)
                 : none  ? 0.0f
                 : alone ? other[c]
                         : (float)quotient((double)out[c] * wx + (double)other[c] * wy, wx + wy);
    if (threadIdx.x == 0)
        p.step.lse[row] = bad ? __int_as_float(0x7fc00000) : alone ? y : (float)(m + log(wx + wy));
}

#endif  /* SANTA_CUDA_STANDIN */

/* --------------------------------------------------------------------------------- >>launch */

/* n / size, rounded up; n is at least 1 and may be any int64. */
i64 ceil_div(i64 n, i64 size) { return (n - 1) / size + 1; }

/* A grid before it is known to be one. */
struct extent { i64 x, y, z; };
bool fits(extent e) { return e.x <= INT32_MAX && e.y <= 65535 && e.z <= 65535; }
dim3 grid_of(extent e) { return dim3((unsigned)e.x, (unsigned)e.y, (unsigned)e.z); }

/* All that a call is sized by. check refuses what does not fit, decode launches from the same
   numbers. Nothing is narrower than 64 bits until a pipeline's `measure` has said that it may
   be. */
struct geometry {
    i64 batch, q_len, heads, kv_heads, group, d, dv, keys;            /* keys: what a sequence can hold */
    i64 all_heads;                                  /* of the caller's tensors */
    i64 blocks, splits, columns;                    /* of 64 keys; of a row; of 256 features of V */
    i64 samples, flash_blocks, draws, portions;     /* draws: the most of a query head; 0: none */
    int unit_shift;                                 /* see params */
    i64 combs, weights;                             /* of a head's draws; weights: that are kept */
    i64 slices, dense_slices, plain_slices;         /* of a KV head's query heads, in each kernel */
    i64 rows;                                       /* query rows that a pass of k_scores may have */
    i64 work;                                       /* warps of a scores kernel */
    i64 items, fixed;                               /* of k_proxy_scores: batch * kv_heads * slices; CTAs */
    i64 together, teams;                            /* of k_draw: heads that draw together; of a sequence */
    i64 candidates, words, list_portions;           /* of vAttention: see va_params */
    i64 shared_words;                               /* a set's bits that fit in shared memory */
    bool by_scores, by_copy;
    copy_shape copy;
    extent scores, gather, dense, dense_plain, combine, stats;
    i64 dense_splits[3];                            /* of a row, see splits_up_to */
    i64 ranks, results;                             /* 0: no others; rows of out */
    i64 tiles;                                      /* of flash */
    i64 rank_keys;                                  /* whose masses each tells of a head that is rescued */
    i64 part_floats, errors_at, error_doubles;      /* see params */
    bool has_sure, has_lse, by_bins;                /* parts of it; whether k_rank_bins counts scores */
    i64 va_width, heavy_keys;                       /* see params; of a head, at most those of a rank */
    i64 list_most, list_heads, list_keys;           /* of a list; query heads that share one; of a part */
    extent list, list_plain;
    bool has_many;                                  /* K and V suit k_list_many, but for how they lie */
    i64 many_parts;                                 /* of its lists, at most */
    i64 buckets, hidden;                            /* of a router */
    bool measures, scans;                           /* covered_mass; buckets, by a copy of K */
    bool has_firsts;                                /* first tokens, of dense */
    bool weighs, keeps_lse;                         /* of std_error: k_weighed_error; an lse of its own */
    /* of SANTA_SAMPLE_ATTENTION */
    i64 q_blocks, k_blocks, mask_words, units, sample_splits;
    extent sample, select, mask;
    bool is_sampled, is_audited;
    i64 short_splits;                               /* of rows that dense_below leaves to dense; 0: none */
    int q_parts;                                    /* see params; where a kernel takes them */
    bool has_digits;                                /* K suits k_scores_blocks and k_dense_blocks */
};

/* Where the parts of a workspace begin, and its size. */
struct layout {
    size_t block_sums, stash, keys, draws, weights, partial, arrived, spreads, fixed, found, mended;
    size_t rescued, ticks, sums;
    size_t rank_mass, rank_masses, rank_copies, rank_best, rank_bests, rank_drawn, rank_drawns, rank_again;
    size_t rank_bins, all_bins, choices, wants;
    size_t part, parts, tile_list, tile_count, tile_counts, tiles_met;
    size_t candidates, taken, list, va_rows, va_heads;
    size_t va_plans, va_slices, va_all, va_first, va_bins, va_all_bins, va_told, va_all_told, va_parts;
    size_t units, logits, logit_parts, spans, piece, pieces, list_weights, list_lens, list_ranges;
    size_t scan_use, scan_bad, scan_share, scan_scores, scan_sums, scan_sizes, scan_keys, scan_counts;
    size_t routed, covered, kept_lse, rest, ranges, total;
    size_t row_sums, shares, masses, set_masses, raw_sets, own, sets, picked, runs_dense;
    size_t short_partial, q_slots, q_unscale;
};

size_t saturating(size_t a, size_t b) { return a && b > SIZE_MAX / a ? SIZE_MAX : a * b; }
/* Whether a caller's array of so many rows of 4-byte numbers, `apart` from each other, has
   addresses. */
bool overflows(i64 rows, i64 apart) {
    return saturating(saturating((size_t)rows, (size_t)apart), 4) > (size_t)PTRDIFF_MAX;
}

/* Next part of n * size bytes on a 256-byte border; totals saturate. */
size_t add_part(layout *l, size_t n, size_t size) {
    size_t at = l->total, bytes = saturating(n, size);
    if (bytes > SIZE_MAX / 4 || at > SIZE_MAX / 4) { l->total = SIZE_MAX / 2; return at; }
    l->total += (bytes + 255) / 256 * 256;
    return at;
}

struct device { int multiprocessors, major, l2, shared; };  /* bytes of L2; of shared memory for a CTA */

/* A call on its way to the GPU. */
struct call {
    params p;
    geometry g;
    layout l;
    char *workspace;                                /* on a 256-byte border */
    device card;
    cudaStream_t stream;
    bool cores;                                     /* K suits the tensor cores: 16-byte pieces */
    bool streams;                                   /* K suits the ring of k_dense and k_scores */
    const santa_ranks_options *ranks;
    bool has_failed;                                /* to meet the other ranks */
    const int *list, *list_lens;                    /* a caller's lists of query row 0 */
    const float *list_weights;
    bool listed_row;                                /* each query row has its own */
    const santa_attention *a;
    bool tiles;                                     /* q, K and V suit those of >>prefill-kernel */
    bool joined;                                    /* by k_dense itself, see joins_splits */
    int rows_done;                                  /* query rows that a pipeline's launch has done */

    void place_row(i64 row);
    bool gather(const void *mine, size_t bytes, void *all) {
        if (ranks->all_gather(ranks->user, mine, bytes, all, stream) != 0) has_failed = true;
        return !has_failed;
    }
};

/* A family of kernels: the methods that it serves, and what they need. The rest of this section
   is the same for all of them and asks for none by name. Another family is a row in
   `pipelines`. */
struct pipeline {
    unsigned methods;                               /* bit m: the method of that number */
    santa_scores_method scores;
    bool lists;                                     /* of a caller's lists of keys */
    /* its own sizes, or which limit they pass */
    santa_status (*measure)(const santa_problem *problem, geometry *g);
    /* its parts of a workspace */
    void (*arrange)(const geometry &g, santa_stash stash, layout *l);
    /* query row c.p.q_index, or c.rows_done of them */
    cudaError_t (*launch)(call &c);
    cudaError_t (*count)(const call &c);            /* its stats */
};

/* Heads of a slice of k_scores and k_dense. */
i64 slice_heads_of(const geometry &g) { return g.q_parts > 1 ? PASS_HEADS / 2 : PASS_HEADS; }

/* Whether divisor holds the works of k_scores for one query row, see launch_window. */
bool fits_scores(const geometry &g) {
    return g.batch * g.kv_heads * ceil_div(g.group, slice_heads_of(g)) * g.blocks < INT32_MAX;
}

/* CTAs of 8 warps, each with a work of its own. */
dim3 scores_grid(const call &c) { return dim3((unsigned)ceil_div((i64)c.p.work, SCORE_WARPS)); }

i64 stash_bytes(santa_stash s) { return s == SANTA_STASH_F32 ? 4 : s == SANTA_STASH_F16 ? 2 : 1; }

/* p's workspace, from query row `row` of a pass on. */
void call::place_row(i64 row) {
    const i64 heads = row * g.batch * g.heads, blocks = heads * g.blocks;
    p.block_sums = (float2 *)(workspace + l.block_sums) + (blocks << (6 - g.unit_shift));
    p.stash = workspace + l.stash + blocks * BLOCK * stash_bytes((santa_stash)p.stash_type);
    p.arrived = (int *)(workspace + l.arrived) + heads * g.columns;
    p.partial = (float *)(workspace + l.partial);
}

constexpr unsigned bit(santa_method m) { return 1u << (int)m; }

/* Types of K and V that plain loads alone read, see load_number and load_coded. */
bool is_coded(santa_dtype t) { return t == SANTA_Q8_0 || t == SANTA_E5M2 || t == SANTA_Q4_0; }

bool is_eight(int type) { return type == SANTA_E4M3 || type == SANTA_E5M2; }
i64 size_of(santa_dtype t) { return t == SANTA_F32 ? 4 : is_eight(t) ? 1 : 2; }

void byte_strides(const santa_tensor *t, i64 *s) {
    /* bytes of 32 numbers, see load_number */
    const i64 block = t->dtype == SANTA_Q8_0 ? 34 : t->dtype == SANTA_Q4_0 ? 18 : 0;
    for (int i = 0; i < 4; i++)
        s[i] = block ? t->stride[i] / 32 * block : t->stride[i] * size_of(t->dtype);
}

/* k_scores and k_dense have instances for scales of rows; else the kernels of plain rows take
   them. */
bool is_scaled(const santa_attention *a) { return a->k_scales.data || a->v_scales.data; }

void fill_scales(const santa_tensor *t, row_scales *s) {
    i64 stride[4];
    byte_strides(t, stride);
    *s = { (const char *)t->data, { stride[0], stride[1], stride[2] }, t->dtype };
}
bool lies_on_numbers(const santa_tensor *t) {
    return (uintptr_t)t->data % (uintptr_t)size_of(t->dtype) == 0;
}

/* Rows start on 16 bytes and their features are adjacent. */
bool in_pieces(const santa_tensor *t) {
    i64 s[4];
    byte_strides(t, s);
    return s[3] == size_of(t->dtype) && (uintptr_t)t->data % 16 == 0 && s[0] % 16 == 0 && s[1] % 16 == 0
        && s[2] % 16 == 0;
}
bool vectors(const santa_tensor *t) { return !is_coded(t->dtype) && in_pieces(t); }

/* Rows of n numbers are whole pieces of 16 bytes. */
bool whole_pieces(int type, i64 n) {
    return type != SANTA_F32 && n % (is_eight(type) ? 16 : 8) == 0;
}
/* Numbers of a row that k_scores and k_dense take as any_eight. */
enum { MOST_EIGHT = 128 };

/* Rows of n numbers that k_scores and k_dense take. */
bool suits_rings(const santa_tensor *t, i64 n) {
    const bool known = !is_coded(t->dtype) || t->dtype == SANTA_E5M2;
    const i64 most = t->dtype == SANTA_E5M2 ? (i64)MOST_EIGHT : 256;
    return known && in_pieces(t) && n <= most && whole_pieces(t->dtype, n);
}

santa_status cuda_status(cudaError_t e) {
    return e == cudaSuccess ? SANTA_OK : (santa_status)(SANTA_ERR_CUDA + (int)e);
}

/* Tests keep a list of all kernels that can be launched, and of those that were, by this. */
#ifndef SANTA_CUDA_LAUNCHED
#define SANTA_CUDA_LAUNCHED(kernel) ((void)0)
#endif

/* More than 48 KB of shared memory has to be asked for. It is always all that a kernel can
   have: what is asked for is the kernel's, not a launch's, and other threads of the host launch
   it, too. */
cudaError_t allow_shared(const void *kernel, const call &c) {
    cudaFuncAttributes own;
    const cudaError_t e = cudaFuncGetAttributes(&own, kernel);
    return e != cudaSuccess ? e
         : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                c.card.shared - (int)own.sharedSizeBytes);
}

/* large: the shared memory may be more than those 48 KB. overlap: the second kernel of a pair
   may be placed while the first one drains; it waits where its code says so. */
template <typename P>
cudaError_t launch_kernel(void (*kernel)(const P), const P &p, const call &c, dim3 grid, int threads,
                          size_t shared, bool large, bool overlap, int cluster) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2] = {};
    const cudaError_t e = large ? allow_shared((const void *)kernel, c) : cudaSuccess;
    if (e != cudaSuccess) return e;
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = c.stream;
    config.attrs = attribute;
    if (overlap && c.card.major >= 9) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = (unsigned)cluster;
        attribute[config.numAttrs].val.clusterDim.y = attribute[config.numAttrs].val.clusterDim.z = 1;
        config.numAttrs++;
    }
    return cudaLaunchKernelEx(&config, kernel, p);
}
template <auto kernel>
cudaError_t launch(const call &c, dim3 grid, int threads, size_t shared, bool overlap, int cluster = 1) {
    SANTA_CUDA_LAUNCHED(kernel);
    return launch_kernel(kernel, c.p, c, grid, threads, shared, false, overlap, cluster);
}
/* p: the kernel's own parameters. */
template <auto kernel, typename P>
cudaError_t launch_large(const call &c, const P &p, dim3 grid, int threads, size_t shared, bool overlap,
                         int cluster = 1) {
    SANTA_CUDA_LAUNCHED(kernel);
    return launch_kernel(kernel, p, c, grid, threads, shared, true, overlap, cluster);
}
template <auto kernel>
cudaError_t launch_large(const call &c, dim3 grid, int threads, size_t shared, bool overlap,
                         int cluster = 1) {
    return launch_large<kernel>(c, c.p, grid, threads, shared, overlap, cluster);
}

/* From a number to what the kernels are compiled for: f is called with a value that has it as
   its type. */
template <typename T> struct a_type { typedef T type; };

template <typename F> cudaError_t with_key_type(int type, F f) {      /* on tensor cores */
    return type == SANTA_E4M3 ? f(a_type<e4m3>()) : f(a_type<sixteen>());
}

template <typename F> cudaError_t with_chunks(int features, F f) {    /* of 32 */
    return features <= 64 ? f(a_number<2>()) : features <= 128 ? f(a_number<4>()) : f(a_number<8>());
}

divisor divide_by(unsigned d) {
    divisor x = { d, 0, 0 };
    while (x.shift < 31 && 1u << x.shift < d) x.shift++;
    x.factor = (unsigned)(((u64)((1u << x.shift) - d) << 32) / d + 1);
    return x;
}

/* Exact attention: k_dense, or k_dense_plain for what that does not take, and k_combine. */

/* The most keys that a row sees. */
i64 keys_seen(const santa_problem &problem) {
    const santa_attention &a = problem.a;
    const i64 most = problem.capacity;
    if (a.window <= 0 || a.window >= most) return most;
    /* not causal, row 0 sees the later rows' keys as well */
    const i64 later = a.causal ? 0 : a.q.shape[1] - 1;
    return later < most - a.window ? a.window + later : most;
}

/* Splits of rows of up to `most` keys, or of exactly so many, see splits_of; by kernels that
   know `smaller` of the smaller sizes. */
enum { SMALLER = 2 };
i64 splits_up_to(const santa_problem *problem, i64 most, bool exactly, int smaller) {
    const i64 seen = keys_seen(*problem), behind = problem->a.window != 0 || problem->a.kv_start;
    const struct { i64 keys, size; } kinds[] = { { SHORT_KEYS, 1 << SHORT_SHIFT },
                                                 { HALF_KEYS, 1 << HALF_SHIFT },
                                                 { MIDDLE_KEYS, 1 << MIDDLE_SHIFT },
                                                 { INT64_MAX, 1 << SPLIT_SHIFT } };
    i64 splits = 0;
    if (seen < most) most = seen;
    for (const auto &kind : kinds) {
        if (kind.keys <= HALF_KEYS && &kind - kinds >= smaller) continue;
        const i64 keys = most < kind.keys ? most : kind.keys, all = ceil_div(problem->capacity, kind.size);
        i64 here = ceil_div(keys, kind.size) + behind;                /* one may begin within a split */
        if (here > all) here = all;
        if (splits < here || exactly) splits = here;
        if (most <= kind.keys) break;
    }
    return splits;
}

santa_status measure_dense(const santa_problem *problem, i64 most, bool exactly, geometry *g) {
    for (int i = 0; i <= SMALLER; i++) g->dense_splits[i] = splits_up_to(problem, most, exactly, i);
    g->dense_slices = ceil_div(g->group, slice_heads_of(*g));
    g->plain_slices = ceil_div(g->group, PASS_HEADS);
    g->dense = { g->dense_splits[SMALLER], g->kv_heads * g->dense_slices, g->batch };
    g->dense_plain = { g->dense_splits[0], g->kv_heads * g->plain_slices * g->columns, g->batch };
    g->combine = { g->heads, g->batch, ceil_div(g->dv, 128) };
    /* alignment and the card decide later which of the two dense kernels runs */
    const bool good = fits(g->dense) && fits(g->dense_plain) && fits(g->combine);
    return good ? SANTA_OK : SANTA_ERR_BACKEND_SIZE;
}

santa_status measure_lists(santa_dtype k_type, geometry *g);
santa_status measure_many(const santa_attention &a, geometry *g);
cudaError_t launch_list(call &c, bool overlap);
bool suits_many(const call &c);
cudaError_t launch_all_keys(call &c);

santa_status measure_exact(const santa_problem *problem, geometry *g) {
    const santa_attention &a = problem->a;
    const bool alike = !a.seq_lens && !a.context_lens && !a.kv_start && a.window == 0 && g->q_len == 1;
    if (a.first_tokens) {
        /* not causal, row 0 sees the later rows' keys as well */
        const i64 most = g->keys, window = a.window < most ? a.window : most,
                  first = a.first_tokens < most ? a.first_tokens : most,
                  seen = window + first + (g->q_len < most ? g->q_len : most);
        g->has_firsts = true;
        g->list_heads = g->group;
        g->list_most = seen < most ? seen : most;
        const santa_status s = measure_lists(a.k.dtype, g);
        return s == SANTA_OK ? measure_many(a, g) : s;
    }
    g->splits = splits_up_to(problem, g->keys, false, SMALLER);
    g->list_heads = g->group;
    g->list_most = g->keys;
    const santa_status s = measure_dense(problem, g->keys, alike, g);
    return s == SANTA_OK ? measure_many(a, g) : s;
}

void arrange_exact(const geometry &g, santa_stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads);
    l->partial = add_part(l, saturating(rows, (size_t)g.splits), ((size_t)g.dv + 2) * sizeof(float));
    if (g.has_firsts) l->ranges = add_part(l, (size_t)(g.batch * g.kv_heads), sizeof(list_range));
}

/* Behind k_dense, k_list or the like. Few heads, of more than 8 splits, are joined sooner by a
   CTA each. */
cudaError_t launch_combine(const call &c) {
    dim3 grid = grid_of(c.g.combine);
    const i64 rows = (i64)grid.x * grid.y * grid.z;
    if (c.p.splits > 32 || (c.p.splits > 8 && rows <= c.card.multiprocessors))
        return launch<k_combine>(c, grid, 512, 0, true);
    grid.x = (unsigned)ceil_div(grid.x, 8);
    return launch<k_combine_few>(c, grid, 256, 0, true);
}

/* Whether other kernels of the call come before those of dense. */
bool comes_second(const call &c) { return c.p.is_short && c.g.short_splits; }

/* Of a q that K's type on tensor cores cannot hold: parts that can, of f32 two or three, as
   empty slots of up to four heads have room for. */
int parts_of_q(const santa_attention &a, i64 d, i64 group) {
    const santa_dtype q = a.q.dtype, k = a.k.dtype;
    const bool wide = k == SANTA_F16 || k == SANTA_BF16;
    if ((!wide && k != SANTA_E4M3 && k != SANTA_E5M2) || q == k || d > 256) return 0;
    if (q == SANTA_F32) return k == SANTA_BF16 && group <= 2 ? 3 : 2;
    return !wide ? 0 : k == SANTA_BF16 ? 2 : 1;
}
/* K and V of blocks that k_dense_blocks takes. */
bool is_blocks_type(santa_dtype t) { return t == SANTA_Q8_0 || t == SANTA_Q4_0; }
int digit_shift_of(i64 group) { return group > 4 ? 3 : group > 2 ? 2 : group > 1 ? 1 : 0; }
int digit_sets_of(i64 group) {
    return (int)ceil_div((i64)MOST_DIGITS << digit_shift_of(group), PASS_HEADS);
}

/* What k_scores and k_dense have of a call that others have not. */
void arrange_parts(call &c, bool streams) {
    params &p = c.p;
    const bool extras = p.soft_cap > 0.0f || p.slopes;
    p.q_parts = streams ? c.g.q_parts : 0;
    p.slice_heads = streams ? (int)slice_heads_of(c.g) : (int)PASS_HEADS;
    p.part_shift = p.q_parts < 2 ? 3 : c.g.group > 2 ? 2 : c.g.group > 1 ? 1 : 0;
    p.q_slices = (int)ceil_div(c.g.group, p.slice_heads);
    p.q_slots = c.workspace + c.l.q_slots;
    p.q_unscale = (float *)(c.workspace + c.l.q_unscale);
    p.special = p.q_parts || extras;
    p.block_scale = extras ? 1.0f : p.scale;
}
/* The kernel that makes them, and `launch`, for which they are q. */
template <typename F> cudaError_t with_parts(call &c, F launch_it) {
    params &p = c.p;
    if (!p.q_parts) return launch_it();
    const params whole = p;
    const cudaError_t e = launch<k_query_parts>(c, dim3((unsigned)(c.g.kv_heads * p.q_slices),
                                                        (unsigned)c.g.batch), SCORE_WARPS * 32, 0, false);
    if (e != cudaSuccess) return e;
    p.q = p.q_slots;
    p.q_type = p.k_type == SANTA_BF16 ? SANTA_BF16 : SANTA_F16;
    p.vector_q = 1;
    p.q_stride[3] = 2;
    p.q_stride[2] = 2 * p.d;
    p.q_stride[1] = 0;
    p.q_stride[0] = c.g.kv_heads * p.q_slices * PASS_HEADS * p.q_stride[2];
    const cudaError_t launched = launch_it();
    p.q = whole.q;
    p.q_type = whole.q_type;
    p.vector_q = whole.vector_q;
    memcpy(p.q_stride, whole.q_stride, sizeof p.q_stride);
    return launched;
}
/* Scores that are products and a factor. */
bool has_products_alone(const call &c) { return !c.g.q_parts && c.p.soft_cap == 0.0f && !c.p.slopes; }

/* Whether a cache without a table has an instance of its own. K of the instance that asks for a
   table. */
template <typename K, int C> constexpr bool has_no_table = !eight_bits<K> || C == 4;
template <> constexpr bool has_no_table<any_eight, 4> = false;
template <typename K, int C> struct with_table { typedef K type; };
template <> struct with_table<e4m3, 4> { typedef any_eight type; };

template <typename K, int C, bool PAIRS> cudaError_t launch_dense(call &c) {
    const i64 slices = ceil_div(c.p.q_slices, PAIRS ? 2 : 1);
    /* with the second one many rows of 8-bit keys take a quarter more */
    const int smaller = PAIRS || ring<K, C>::STEPS == 1 ? 0 : eight_bits<K> ? 1 : SMALLER;
    const dim3 grid = grid_of({ c.g.dense_splits[smaller], c.g.kv_heads * slices, c.g.batch });
    const int threads = SCORE_WARPS * 32;
    const size_t bytes = dense_memory<K, C>::BYTES;
    c.p.slices = (int)slices;
    c.p.by_slices = divide_by((unsigned)slices);
    c.p.short_keys = (smaller > 0 ? SHORT_KEYS : 0) | (smaller > 1 ? HALF_KEYS : 0) << 16;
    const i64 ctas = (i64)grid.x * grid.y * grid.z;
    const bool no_table = !c.p.table && !is_scaled(c.a);
    c.joined = joins_splits<K, C> && !PAIRS && no_table && grid.x <= MOST_CLUSTER
            && (grid.x == 1 || (c.card.major >= 9 && ctas <= c.card.multiprocessors));
    if (c.joined || (i64)grid.x * grid.y > INT32_MAX) c.p.heads_inner = 0;
    c.p.by_inner = divide_by(grid.y);
    const bool second = comes_second(c) || c.p.q_parts;
    if constexpr (joins_splits<K, C> && !PAIRS)
        if (c.joined)
            return launch_large<k_dense<K, C, false, false, true>>(c, grid, threads, bytes, second,
                                                                   (int)grid.x);
    if constexpr (has_no_table<K, C>)
        if (no_table)
            return launch_large<k_dense<K, C, false, PAIRS, false>>(c, grid, threads, bytes, second);
    typedef typename with_table<K, C>::type any;
    return launch_large<k_dense<any, C, true, PAIRS, false>>(c, grid, threads, bytes, second);
}

/* Rows of n numbers come to the ring by pieces of 1 << this bytes, or not at all: 0. */
int staged_pieces(const santa_tensor *t, i64 n) {
    const bool blocks = t->dtype == SANTA_Q8_0 || t->dtype == SANTA_Q4_0;
    const i64 block = t->dtype == SANTA_Q8_0 ? 34 : 18, most = n < PLAIN_NUMBERS ? n : (i64)PLAIN_NUMBERS;
    i64 s[4];
    byte_strides(t, s);
    const i64 all = s[0] | s[1] | s[2] | (i64)(uintptr_t)t->data
                  | (blocks ? n / 32 * block : n * size_of(t->dtype));
    if (t->stride[3] != 1) return 0;
    if (!blocks) return all % 16 == 0 ? 4 : 0;
    return all % 8 == 0 ? 3 : all % 4 == 0 && most / 32 * block <= 128 ? 2 : 0;
}

/* How k_dense_plain and k_scores_plain have K, V and q in a ring of bytes(slots, pitch). */
template <typename Bytes> int arrange_plain(call &c, Bytes bytes) {
    params &p = c.p;
    const int pitch = p.d <= 768 ? (p.d + 31) / 32 * 32 : 0, half = c.card.shared / 2 - 1024;
    p.query_pitch = bytes(2, pitch) <= c.card.shared ? pitch : 0;
    p.plain_slots = bytes(3, p.query_pitch) <= half ? 3 : 2;
    p.staged_k = staged_pieces(&c.a->k, p.d);
    p.staged_v = staged_pieces(&c.a->v, p.dv);
    return bytes(p.plain_slots, p.query_pitch);
}

cudaError_t launch_dense_plain(call &c) {
    c.p.short_keys = 0;
    const size_t bytes = (size_t)arrange_plain(c, plain_bytes);
    return launch_large<k_dense_plain>(c, grid_of(c.g.dense_plain), DENSE_WARPS * 32, bytes,
                                       comes_second(c));
}

/* Many query rows: k_prefill, or k_prefill_groups where it was compiled for the card. */

/* The driver's function, which the runtime finds, so that nothing links with the driver; null:
   it has none. */
decltype(&cuTensorMapEncodeTiled) find_encoder(void) {
    static void *found = [] {
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        void *f = nullptr;
#if CUDART_VERSION >= 12050
        const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                               cudaEnableDefault, &result);
#else
        const cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault,
                                                      &result);
#endif
        return e == cudaSuccess && result == cudaDriverEntryPointSuccess ? f : nullptr;
    }();
    return (decltype(&cuTensorMapEncodeTiled))found;
}

/* Boxes of so many rows by 64 features of K or V; false: the tensor copy engine does not take
   it. */
bool map_boxes(const santa_tensor *t, int rows, CUtensorMap *map) {
    const auto encode = find_encoder();
    const cuuint64_t shape[4] = { (cuuint64_t)t->shape[3], (cuuint64_t)t->shape[1], (cuuint64_t)t->shape[2],
                                  (cuuint64_t)t->shape[0] };
    const int from[3] = { 1, 2, 0 };
    const cuuint32_t box[4] = { 64, (cuuint32_t)rows, 1, 1 }, every[4] = { 1, 1, 1, 1 };
    cuuint64_t strides[3];
    i64 s[4];
    byte_strides(t, s);
    for (int i = 0; i < 3; i++) {
        const i64 stride = t->shape[from[i]] == 1 ? 16 : s[from[i]];  /* not looked at, but checked */
        if (stride <= 0 || stride >= (i64)1 << 40 || shape[i + 1] > UINT32_MAX) return false;
        strides[i] = (cuuint64_t)stride;
    }
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, t->data, shape, strides, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
                     == CUDA_SUCCESS;
}

/* Boxes of 8 keys would do: their lines begin where the pieces' order does. Of 16 they cost
   more than copies by threads. */
void find_boxes(const call &c, groups_params *p) {
    const i64 both = (p->table ? c.a->k.shape[1] : 0) | BLOCK, keys = both & -both;
    p->box_keys = 0;
    if (keys < 32 || p->eight[0] >= 0 || p->eight[1] >= 0) return;
    if (map_boxes(&c.a->k, (int)keys, &p->k_map) && map_boxes(&c.a->v, (int)keys, &p->v_map))
        p->box_keys = (int)keys;
}

/* What their tiles take: K and V of q's type of 16 bits, or of floats of 8, which are made
   such; a soft cap up to TILES_CAP, since finish_rows is off by 2^-24 of it. */
constexpr float TILES_CAP = 1024.0f;
bool suits_tiles(const santa_attention *a) {
    const santa_dtype type = a->q.dtype, k = a->k.dtype, v = a->v.dtype;
    const i64 d = a->k.shape[3], dv = a->v.shape[3];
    return (type == SANTA_F16 || type == SANTA_BF16) && (k == type || is_eight(k))
        && (v == type || is_eight(v)) && in_pieces(&a->q) && in_pieces(&a->k) && in_pieces(&a->v)
        && d % 8 == 0 && d <= 256 && dv % 8 == 0 && a->soft_cap <= TILES_CAP;
}

/* Tiles of so many heads at most, and of rows whose number is a power of two, at most `rows`,
   if not 0. */
bool fill_tiles(call &c, i64 heads, i64 rows) {
    params &p = c.p;
    const i64 slices = ceil_div(c.g.group, heads);
    p.tile_slices = (int)slices;
    p.tile_heads = (int)ceil_div(c.g.group, slices);
    p.tile_rows = TILE_QUERIES / p.tile_heads;
    p.by_position = rows > 0;
    if (p.by_position) {
        while (rows > p.tile_rows) rows /= 2;
        p.tile_rows = (int)rows;
    }
    p.by_tile_heads = divide_by((unsigned)p.tile_heads);
    p.tiles = (int)ceil_div(c.g.q_len + (p.by_position ? p.tile_rows - 1 : 0), p.tile_rows);
    p.v_slices = (int)ceil_div(c.g.dv, TILE_COLUMNS);
    p.pair_out = p.out_type != SANTA_F32 && p.out_stride[3] == 2 && (uintptr_t)p.out % 4 == 0
              && p.out_stride[0] % 4 == 0 && p.out_stride[1] % 4 == 0 && p.out_stride[2] % 4 == 0;
    return fits({ p.tiles, c.g.kv_heads * slices * p.v_slices, c.g.batch });
}

template <typename T> cudaError_t launch_tiles(call &c) {
    params &p = c.p;
    dim3 grid = grid_of({ p.tiles, c.g.kv_heads * p.tile_slices * p.v_slices, c.g.batch });
    cudaFuncAttributes compiled = {};
    const bool extras = p.soft_cap > 0.0f || p.slopes || !(p.scale > 0.0f);
    if (c.card.major == 9 && p.d <= 128 && p.dv <= 128 && !extras) {
        const cudaError_t e = cudaFuncGetAttributes(&compiled, (const void *)k_prefill_groups<T, false>);
        if (e != cudaSuccess) return e;
    }
    if (compiled.numRegs > 64) {                    /* else it is empty */
        groups_params all = {};
        (params &)all = p;
        find_boxes(c, &all);
        /* six CTAs for each multiprocessor share the work well enough. An instance takes 5 kB
           of the object without its code, so f16 has none */
        const i64 most = (i64)grid.x * grid.y * grid.z / (6 * (i64)c.card.multiprocessors);
        all.own_tiles = most < OWN_TILES ? (int)most : OWN_TILES;
        if constexpr (std::is_same<T, __nv_bfloat16>::value)
            if (p.is_sparse && all.box_keys && all.own_tiles > 1) {
                grid.x = (unsigned)ceil_div(grid.x, all.own_tiles);
                return launch_large<k_prefill_groups<T, true>>(c, all, grid, 3 * 128, GROUPS_BYTES, false);
            }
        return launch_large<k_prefill_groups<T, false>>(c, all, grid, 3 * 128, GROUPS_BYTES, false);
    }
    p.one_tile = c.card.shared < prefill_bytes(p.d, false) + (int)sizeof(screened);
    return launch_large<k_prefill>(c, grid, TILE_THREADS, (size_t)prefill_bytes(p.d, p.one_tile), false);
}

/* A kernel of tiles: there K and V are of q's type. */
template <typename F> cudaError_t with_tiles(call &c, F f) {
    params &p = c.p;
    const int type = p.k_type;
    p.eight[0] = is_eight(type) ? type : -1;
    p.eight[1] = is_eight(p.v_type) ? p.v_type : -1;
    p.k_type = p.q_type;
    const cudaError_t e = f();
    p.k_type = type;
    return e;
}

cudaError_t launch_prefill(call &c) {
    c.rows_done = c.p.q_len;
    return with_tiles(c, [&] {
        return c.p.k_type == SANTA_F16 ? launch_tiles<__half>(c) : launch_tiles<__nv_bfloat16>(c);
    });
}

/* First tokens and a window are a list of two ranges for each KV head. */
cudaError_t launch_firsts(call &c) {
    params &p = c.p;
    p.window = 0;
    p.first_ranges = (list_range *)(c.workspace + c.l.ranges);
    p.list_ranges = p.first_ranges;
    p.list_heads = p.group;
    p.ranges_batch = c.g.kv_heads;
    const cudaError_t e = launch<k_first_ranges>(c, dim3((unsigned)p.batch), 128, 0, false);
    return e == cudaSuccess ? launch_list(c, true) : e;
}

/* Whether k_scores_blocks takes it; k_dense_blocks. */
bool suits_score_blocks(const call &c) {
    return c.g.has_digits && staged_pieces(&c.a->k, c.p.d) && !is_scaled(c.a);
}
bool suits_blocks(const call &c) {
    const params &p = c.p;
    return suits_score_blocks(c) && is_blocks_type(c.a->v.dtype) && p.dv <= BLOCK_DIM && p.dv % 64 == 0
        && staged_pieces(&c.a->v, p.dv);
}

/* q as digits, for one of them. */
cudaError_t launch_digits(call &c) {
    params &p = c.p;
    p.staged_k = staged_pieces(&c.a->k, p.d);
    p.part_shift = digit_shift_of(c.g.group);
    p.q_sets = digit_sets_of(c.g.group);
    return launch<k_query_digits>(c, dim3((unsigned)(c.g.kv_heads * p.q_slices), (unsigned)c.g.batch),
                                  SCORE_WARPS * 32, 0, false);
}

cudaError_t launch_dense_blocks(call &c) {
    params &p = c.p;
    p.staged_v = staged_pieces(&c.a->v, p.dv);
    const cudaError_t e = launch_digits(c);
    const i64 each = c.g.kv_heads * p.q_slices;     /* CTAs of a split */
    int once = SPLIT_SHIFT;                         /* rows up to twice 1 << this have splits as others */
    while (once < 30 && (each << (once - SPLIT_SHIFT)) < LONG_CTAS) once++;
    p.short_keys = INT32_MIN | once << 16;
    const i64 some = (i64)2 << (once - SPLIT_SHIFT), most = c.g.keys >> (SPLIT_SHIFT + MOST_LONGER);
    const i64 parts = (some > most ? some : most) + 2, fewest = c.g.dense_splits[0];
    const dim3 grid = grid_of({ parts < fewest ? parts : fewest, each, c.g.batch });
    return e == cudaSuccess ? launch_large<k_dense_blocks>(c, grid, SCORE_WARPS * 32, sizeof(blocks_memory),
                                                           true) : e;
}

cudaError_t launch_exact(call &c) {
    const params &p = c.p;
    if (c.g.has_firsts) return launch_firsts(c);
    /* errors are found row by row */
    if (p.q_len >= PREFILL_ROWS && c.tiles && !p.std_error && !c.g.short_splits
        && fill_tiles(c, TILE_HEADS, 0))
        return launch_prefill(c);
    if (suits_many(c)) return launch_all_keys(c);
    const bool scaled = is_scaled(c.a), same_v = p.v_type == p.k_type && suits_rings(&c.a->v, p.dv);
    const bool streams = c.streams && same_v && p.v_row == p.v_stride[1];
    arrange_parts(c, streams);
    c.p.slices = p.q_slices;
    c.p.by_slices = divide_by((unsigned)c.p.slices);
    c.joined = false;
    const auto stream = [&] {
        if (p.k_type == SANTA_E5M2) return launch_dense<any_eight, 4, false>(c);
        return with_key_type(p.k_type, [&](auto key) {
            typedef typename decltype(key)::type K;
            return with_chunks(p.d > p.dv ? p.d : p.dv, [&](auto chunks) {
                enum { C = decltype(chunks)::value };
                if constexpr (C == 4 && !eight_bits<K>)
                    if (p.q_slices > 1 && !scaled) return launch_dense<K, C, true>(c);
                if constexpr (!may_have_scales<K, C>)
                    if (scaled) return launch_dense<K, 4, false>(c);
                return launch_dense<K, C, false>(c);
            });
        });
    };
    cudaError_t e = suits_blocks(c) ? launch_dense_blocks(c) : streams ? with_parts(c, stream)
                                                                       : launch_dense_plain(c);
    return e == cudaSuccess && !c.joined ? launch_combine(c) : e;
}

/* Rows that dense_below leaves to dense, behind the kernels that draw; on a GPU only the device
   may know which ones. Both kernels come beside those. The first CTA of each ends behind the
   kernel before it: what k_combine, or k_dense that joins, writes comes last, and behind the
   call all is there. */
cudaError_t launch_short(call &c) {
    const params drawn = c.p;
    c.p.is_short = 1;
    c.p.partial = (float *)(c.workspace + c.l.short_partial);
    c.p.splits = (int)c.g.short_splits;
    const cudaError_t e = launch_exact(c);
    c.p = drawn;
    return e;
}

/* Attention over lists of keys, see >>list-kernel: k_list, or k_list_plain, and k_combine. */

/* Keys of a part, see k_list. */
i64 list_keys_of(santa_dtype k_type, const geometry &g) {
    return (g.d > g.dv ? g.d : g.dv) * size_of(k_type) > 256 ? LIST_WIDE_KEYS : LIST_KEYS;
}

enum { MOST_LISTED = INT32_MAX - 65536 * LIST_KEYS };                 /* keys of a list */
/* Lists of up to g->list_most keys, those of the ranges included, for g->list_heads heads
   each. */
santa_status measure_lists(santa_dtype k_type, geometry *g) {
    const i64 lists = g->heads / g->list_heads;
    if (g->list_most > MOST_LISTED) return SANTA_ERR_BACKEND_TOO_LONG;
    g->list_keys = list_keys_of(k_type, *g);
    g->splits = ceil_div(g->list_most, g->list_keys);
    g->list = { g->splits, lists * ceil_div(g->list_heads, PASS_HEADS), g->batch };
    g->list_plain = { g->splits, lists * ceil_div(g->list_heads, PLAIN_HEADS) * g->columns, g->batch };
    g->combine = { g->heads, g->batch, ceil_div(g->dv, 128) };
    return fits(g->list) && fits(g->list_plain) && fits(g->combine) ? SANTA_OK : SANTA_ERR_BACKEND_SIZE;
}

/* CTAs of long lists, which may be shorter than they can be, have several parts. Of those of
   buckets there are half as many again as parts if buckets are alike: empty CTAs took as long
   as the others. */
dim3 list_grid(const call &c, extent e) {
    const params &p = c.p;
    const i64 enough = ceil_div(LIST_CTAS * (i64)c.card.multiprocessors, e.y * e.z),
              most = enough > LIST_LEAST ? enough : (i64)LIST_LEAST;
    if (e.x > most) e.x = most;
    if (!p.list_early) return grid_of(e);
    const double keys = (double)c.g.keys, near = (double)p.sink_tokens + (double)p.local_tokens,
                 probes = p.scans ? 0.0 : (double)p.num_probes,
                 far = keys * fmin(probes / (double)p.buckets, 1.0),
                 read = fmin(near + far, keys) + (double)p.samples;
    const i64 usual = (i64)(1.5 * read) / c.g.list_keys + 2;
    if (e.x > usual) e.x = usual;
    return grid_of(e);
}

template <typename K> cudaError_t launch_list_rows(const call &c, bool overlap) {
    extent e = c.g.list;
    /* where all lists are as long as they can be, the next part's K comes beside the sums; a
       caller's, too, and if two CTAs a multiprocessor can have them all, these do */
    const bool callers = c.p.list && !c.p.list_lens && !c.p.va.rows;
    const i64 lists = e.y * e.z, room = 2 * (i64)c.card.multiprocessors, each = room / lists;
    if (c.p.method == SANTA_TOP_K || (callers && !each)) {
        const i64 enough = TOP_CTAS * (i64)c.card.multiprocessors / lists, least = ceil_div(e.x, TOP_PARTS);
        if (e.x > enough) e.x = enough > least ? enough : least;
    } else if (callers && each < e.x && each * LIST_PARTS >= e.x && 8 * each * lists > 7 * room) e.x = each;
    const dim3 grid = list_grid(c, e);
    const auto go = [&](auto row) {
        typedef list_memory<K, decltype(row)::value> memory;
        return launch_large<k_list<K, decltype(row)::value>>(c, grid, 32 * memory::WARPS, sizeof(memory),
                                                             overlap);
    };
    if constexpr (eight_bits<K>) return go(a_number<256>());
    else return (c.p.d > c.p.dv ? c.p.d : c.p.dv) <= 128 ? go(a_number<256>()) : go(a_number<512>());
}

/* Whether k_list takes it. */
bool suits_lists(const call &c) {
    const params &p = c.p;
    return c.cores && p.v_type == p.k_type && p.vector_v && p.dv <= 256 && whole_pieces(p.v_type, p.dv)
        && !is_scaled(c.a);
}

/* The most parts of lists of up to `most` keys, see part_keys. */
i64 many_parts_of(i64 most) {
    const i64 few = ceil_div(most, (i64)1 << MANY_LEAST), many = ceil_div(most, (i64)1 << MANY_MOST),
              usual = (i64)1 << MANY_PARTS;
    return few < usual ? few : many > usual ? many : usual;
}

/* Where k_list_many is to be. */
santa_status measure_many(const santa_attention &a, geometry *g) {
    g->has_many = (a.k.dtype == SANTA_F16 || a.k.dtype == SANTA_BF16) && a.v.dtype == a.k.dtype
               && a.q.dtype == a.k.dtype && !is_scaled(&a) && whole_pieces(a.k.dtype, g->d)
               && whole_pieces(a.v.dtype, g->dv)
               && (g->d > 256 || g->dv > 256) && g->d <= MANY_DIM && g->dv <= MANY_COLUMNS
               && g->list_most <= MOST_LISTED;
    if (!g->has_many) return SANTA_OK;
    g->many_parts = many_parts_of(g->list_most);
    if (g->splits < g->many_parts) g->splits = g->many_parts;
    const i64 slices = ceil_div(g->list_heads, (i64)MANY_HEADS);
    return fits({ g->many_parts * slices, g->heads / g->list_heads, g->batch }) ? SANTA_OK
                                                                                : SANTA_ERR_BACKEND_SIZE;
}

/* Bytes from V's rows to K's, if they lie in these; else -1. */
int v_inside_of(const santa_attention *a) {
    const i64 on = (i64)((uintptr_t)a->v.data - (uintptr_t)a->k.data);
    bool inside = on >= 0 && on % 16 == 0 && on <= 2 * (a->k.shape[3] - a->v.shape[3]);
    for (int i = 0; i < 3; i++) inside = inside && a->v.stride[i] == a->k.stride[i];
    return inside ? (int)on : -1;
}

int many_v_pitch_of(const call &c) { return v_inside_of(c.a) < 0 ? many_v_pitch(c.p.dv) : 0; }
int many_slots_of(const call &c) {
    const i64 room = c.card.shared - (i64)sizeof(many_memory) - MANY_BEHIND,
              slots = room / (MANY_KEYS * (many_k_pitch(c.p.d) + many_v_pitch_of(c)));
    return slots < MANY_SLOTS ? (int)slots : (int)MANY_SLOTS;
}
bool suits_many(const call &c) {
    return c.g.has_many && !c.p.is_short && vectors(&c.a->q) && vectors(&c.a->k) && vectors(&c.a->v)
        && many_slots_of(c) >= 2;
}

cudaError_t launch_many(call &c, bool overlap) {
    params &p = c.p;
    p.k_lead = many_lead(p.d);
    p.k_pitch = many_k_pitch(p.d);
    p.v_pitch = many_v_pitch_of(c);
    p.many_slots = many_slots_of(c);
    p.v_inside = v_inside_of(c.a);
    const dim3 grid = grid_of({ c.g.many_parts * p.slices, c.g.heads / p.list_heads, c.g.batch });
    const size_t bytes = sizeof(many_memory) + MANY_BEHIND
                       + (size_t)(p.many_slots * MANY_KEYS * (p.k_pitch + p.v_pitch));
    return launch_large<k_list_many>(c, grid, MANY_WARPS * 32, bytes, overlap);
}

/* Dense, which has no other lists, as lists of all keys. */
cudaError_t launch_all_keys(call &c) {
    const params own = c.p;
    params &p = c.p;
    p.list_heads = p.group;
    p.lists_all = 1;
    const cudaError_t e = launch_list(c, false);
    c.p = own;
    return e;
}

/* p's lists have been filled in. overlap: a kernel of this call made them. */
cudaError_t launch_list(call &c, bool overlap) {
    params &p = c.p;
    const bool many = suits_many(c), fast = !many && suits_lists(c);
    const int together = many ? (int)MANY_HEADS : fast ? (int)PASS_HEADS : (int)PLAIN_HEADS;
    p.slices = (int)ceil_div(p.list_heads, together);
    p.by_slices = divide_by((unsigned)p.slices);
    p.by_group = divide_by((unsigned)p.group);
    p.splits = (int)c.g.splits;
    p.list_keys = many ? 0 : (int)c.g.list_keys;
    /* with more lists most CTAs start when they are there, and where the window begins is a
       trip more */
    p.list_early = fast && p.pieces && c.g.batch * c.g.kv_heads * MOST_CLUSTER <= c.card.multiprocessors;
    const cudaError_t e = many ? launch_many(c, overlap) : fast ? with_key_type(p.k_type, [&](auto key) {
        return launch_list_rows<typename decltype(key)::type>(c, overlap);
    }) : launch<k_list_plain>(c, list_grid(c, c.g.list_plain), DENSE_WARPS * 32, 0, overlap);
    return e == cudaSuccess ? launch_combine(c) : e;
}

/* A caller's. */
santa_status measure_listed(const santa_problem *problem, geometry *g) {
    g->list_most = problem->a.max_list;
    g->list_heads = g->group;
    const santa_status s = measure_lists(problem->a.k.dtype, g);
    return s == SANTA_OK ? measure_many(problem->a, g) : s;
}

cudaError_t launch_listed(call &c) {
    params &p = c.p;
    const i64 row = c.listed_row ? p.q_index * p.all_kv_heads : 0;
    p.list = c.list + row * p.list_pitch;
    p.list_lens = c.list_lens ? c.list_lens + row : nullptr;
    p.list_weights = c.list_weights ? c.list_weights + row * p.list_pitch : nullptr;
    return launch_list(c, false);
}

cudaError_t count_listed(const call &c) {
    return launch<k_list_stats>(c, grid_of(c.g.stats), 256, 0, false);
}

/* Scores of as many query rows as share a pass over K. */
void measure_pass(const santa_problem *problem, geometry *g) {
    g->slices = ceil_div(g->group, slice_heads_of(*g));
    /* eight-bit keys scale the q of a pass together: more rows would be other bits */
    const bool shared = problem->a.k.dtype == SANTA_F16 || problem->a.k.dtype == SANTA_BF16;
    g->rows = shared && g->group < PASS_HEADS ? PASS_HEADS / g->group : 1;
    if (g->rows > problem->q_len) g->rows = problem->q_len;
    g->work = g->batch * g->kv_heads * g->slices * g->blocks;
    g->scores = { ceil_div(g->work, SCORE_WARPS), 1, 1 };
}

/* SANTA_SAMPLE_ATTENTION: k_sample, k_select, k_join, and the tiles of dense; for row_mass the
   scores of each row by k_scores, k_row_mass, and k_row_audit. */

/* Blocks are looked at, however few rows there are. */
bool asks(const santa_sample_attention_options &x) {
    return x.mask || x.mask_out || x.audit || x.row_mass;
}

void size_masks(i64 size, i64 q_len, i64 keys, geometry *g) {
    g->k_blocks = ceil_div(keys, size);
    g->q_blocks = (q_len + 2 * size - 2) / size;
}

santa_status measure_sparse(const santa_problem *problem, geometry *g) {
    const santa_sample_attention_options &x = problem->o.sample_attention;
    const i64 size = x.block_size;
    const santa_status s = measure_exact(problem, g);
    if (s != SANTA_OK) return s;
    if (g->q_len < PREFILL_ROWS && !asks(x)) return SANTA_OK;
    size_masks(size, g->q_len, g->keys, g);
    g->mask_words = ceil_div(g->k_blocks, 32);
    g->is_sampled = !x.mask;
    g->is_audited = x.audit != nullptr;
    g->units = x.num_chunks * (size / BLOCK);
    g->sample_splits = ceil_div(g->blocks, SAMPLE_BLOCKS);
    g->sample = { g->units * g->sample_splits, g->heads, g->batch };
    g->select = { 2, g->heads, g->batch };
    g->mask = { g->q_blocks, g->heads, g->batch };
    const extent tiles = { g->q_len, g->heads * ceil_div(g->dv, TILE_COLUMNS), g->batch };
    if (x.row_mass) {
        measure_pass(problem, g);
        if (g->work >= INT32_MAX) return SANTA_ERR_BACKEND_SIZE;
    }
    return fits(g->sample) && fits(g->mask) && fits(tiles) ? SANTA_OK : SANTA_ERR_BACKEND_SIZE;
}

void arrange_sparse(const geometry &g, santa_stash stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), units = saturating(rows, (size_t)g.units),
                 sums = saturating(units, (size_t)(g.sample_splits * BLOCK)),
                 words = (size_t)(2 * g.mask_words);
    arrange_exact(g, stash, l);
    l->runs_dense = add_part(l, (size_t)(g.batch * g.kv_heads), sizeof(int));
    const size_t blocks = g.work ? saturating(saturating(rows, (size_t)g.rows), (size_t)g.blocks) : 0;
    l->block_sums = add_part(l, blocks, sizeof(float2));
    l->stash = add_part(l, blocks, BLOCK * sizeof(float));
    if (!g.is_sampled) return;
    l->row_sums = add_part(l, sums, sizeof(float2));
    l->shares = add_part(l, g.is_audited ? sums : 0, sizeof(float));
    l->masses = add_part(l, saturating(units, (size_t)g.blocks), sizeof(float4));
    l->set_masses = add_part(l, saturating(rows, (size_t)(2 * g.k_blocks)), sizeof(float));
    l->raw_sets = add_part(l, saturating(rows, words), sizeof(unsigned));
    l->own = add_part(l, saturating(rows, words), sizeof(unsigned));
    l->sets = add_part(l, saturating(rows, words), sizeof(unsigned));
    l->picked = add_part(l, rows, 2 * sizeof(int));
}

cudaError_t launch_stage(call &c, int stage) {
    c.p.stage = stage;
    return with_tiles(c, [&] {
        return launch_large<k_sample>(c, grid_of(c.g.sample), SAMPLE_THREADS, (size_t)sample_bytes(c.p.d),
                                      false);
    });
}

void fill_sparse(const santa_sample_attention_options &x, const geometry &g, params *p) {
    p->block_shift = x.block_size == 128 ? 7 : 6;
    p->mask_words = (int)g.mask_words;
    p->per_head = x.per_head;
    p->q_blocks = g.q_blocks;
    p->k_blocks = g.k_blocks;
    p->mask = x.mask;
    p->mask_out = x.mask_out;
    p->audit = x.audit;
    p->row_mass = x.row_mass;
    p->chunks = (int)x.num_chunks;
    p->units = (int)g.units;
    p->sample_splits = (int)g.sample_splits;
    p->alpha_columns = x.alpha_columns;
    p->alpha_slashes = x.alpha_slashes;
    p->dense_above = x.dense_above;
}

/* Draws from the blocks' sums and the stash: k_scores, or k_scores_plain, and k_gather. */

santa_status measure_comb(const santa_problem *, geometry *g) {
    g->flash_blocks = 1;
    g->draws = g->samples;
    return SANTA_OK;
}

/* A flash tile has a draw at least. */
santa_status measure_flash(const santa_problem *problem, geometry *g) {
    const i64 tile = problem->o.tile_size;
    while (tile < 1 << g->unit_shift) g->unit_shift--;
    const i64 units = g->blocks << (6 - g->unit_shift);
    g->flash_blocks = tile >> g->unit_shift;
    g->tiles = ceil_div(g->keys, tile) + (g->ranks > 0);              /* over ranks a part at either end */
    if (g->flash_blocks > units && !g->ranks) g->flash_blocks = units;  /* one flash tile has all keys */
    if (g->flash_blocks > 1 << 24) g->flash_blocks = 1 << 24;         /* likewise */
    g->draws = g->tiles * g->combs;
    if (g->draws < g->samples) g->draws = g->samples;
    if (problem->a.std_error) g->weights = g->draws;
    return SANTA_OK;
}

template <auto measure_draws> santa_status measure_sampled(const santa_problem *problem, geometry *g) {
    g->samples = problem->o.num_samples;
    g->combs = problem->o.num_combs;
    const santa_status s = measure_draws(problem, g);
    if (s != SANTA_OK) return s;
    g->portions = ceil_div(g->draws, PORTION);
    measure_pass(problem, g);
    g->gather = { g->heads, g->batch, g->portions * g->columns };
    /* work: see divisor */
    return g->work < INT32_MAX && fits(g->gather) ? SANTA_OK : SANTA_ERR_BACKEND_SIZE;
}

void arrange_sampled(const geometry &g, santa_stash stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), draws = (size_t)g.draws;
    const size_t columns = g.portions > 1 ? saturating(rows, (size_t)g.columns) : 0;
    const size_t blocks = saturating(saturating(rows, (size_t)g.rows), (size_t)g.blocks);
    l->block_sums = add_part(l, blocks, sizeof(float2) << (6 - g.unit_shift));
    l->stash = add_part(l, blocks, (size_t)(BLOCK * stash_bytes(stash)));
    l->keys = add_part(l, saturating(rows, draws), sizeof(int));
    l->draws = add_part(l, rows, sizeof(int));
    l->weights = add_part(l, saturating(rows, (size_t)g.weights), sizeof(float));
    l->partial = add_part(l, saturating(columns, (size_t)g.portions), 256 * sizeof(float));
    l->arrived = add_part(l, saturating(columns, (size_t)g.rows), sizeof(int));
}

/* Up to `most` runs of the scores' steps; how long they are. */
unsigned share_steps(call &c, unsigned most) {
    const unsigned steps = scores_grid(c).x, runs = steps < most ? steps : most;
    c.p.steps = steps / runs;
    c.p.longer = steps % runs;
    return runs;
}

template <typename K, int C> cudaError_t launch_scores(call &c) {
    const unsigned steps = scores_grid(c).x;
    const i64 entries = c.p.rows * c.g.batch * c.g.heads * c.g.blocks * BLOCK;
    const i64 stash = entries * stash_bytes((santa_stash)c.p.stash_type);
    /* Long streams end together only if CTAs come and go, one step each; eight-bit keys would
       convert the query too often, parts of one come late. */
    const unsigned resident = 2 * (unsigned)c.card.multiprocessors;
    const unsigned most = eight_bits<K> || c.p.q_parts ? 2 * resident
                          : steps >= 6 * resident      ? steps : resident;
    /* a stash that fits in L2 beside other things stays there, if the lines of K go first */
    c.p.once = stash <= c.card.l2 / 3;
    const dim3 grid(share_steps(c, most));
    const size_t bytes = ring<K, C>::BYTES;
    const bool second = c.p.q_parts != 0;
    if constexpr (has_no_table<K, C>)
        if (!c.p.table && !c.p.k_scales.data)
            return launch_large<k_scores<K, C, false>>(c, grid, SCORE_WARPS * 32, bytes, second);
    typedef typename with_table<K, C>::type any;
    return launch_large<k_scores<any, C, true>>(c, grid, SCORE_WARPS * 32, bytes, second);
}

cudaError_t launch_scores_plain(call &c) {
    const unsigned steps = scores_grid(c).x, resident = (unsigned)c.card.multiprocessors,
                   runs = share_steps(c, steps >= 8 * resident ? steps / 4 : resident);
    const int bytes = arrange_plain(c, [](int slots, int pitch) {
        return plain_ring(slots, DENSE_WARPS * pitch);
    });
    return launch_large<k_scores_plain>(c, dim3(2 * runs), DENSE_WARPS * 32, (size_t)bytes, false);
}

cudaError_t launch_score_blocks(call &c) {
    const dim3 grid(share_steps(c, 4 * (unsigned)c.card.multiprocessors));
    const cudaError_t e = launch_digits(c);
    return e == cudaSuccess ? launch_large<k_scores_blocks>(c, grid, SCORE_WARPS * 32,
                                                            sizeof(block_scores_memory), true) : e;
}

/* CTAs of a small grid would crowd where there is room first: each asks for so much shared
   memory that no more than its part of the grid fits on a multiprocessor. */
template <int CH, typename Pick> cudaError_t launch_gather(const call &c) {
    const dim3 grid = grid_of(c.g.gather);
    const i64 ctas = (i64)grid.x * grid.y * grid.z, each = ceil_div(ctas, c.card.multiprocessors);
    const i64 pad = c.card.shared / (each + 1) - (i64)sizeof(gather_memory<CH, Pick>);
    return launch_large<k_gather<CH, Pick>>(c, grid, PORTION, pad > 0 ? (size_t)pad : 0, !c.p.ranks);
}

/* The scores of a pass: query rows from p.q_index on. */
cudaError_t launch_window(call &c) {
    params &p = c.p;
    arrange_parts(c, c.streams);
    p.slices = p.q_slices;
    p.work = (unsigned)(c.g.batch * c.g.kv_heads * p.slices * c.g.blocks);
    p.by_slices = divide_by((unsigned)p.slices);
    p.by_inner = divide_by((unsigned)(p.heads_inner ? c.g.kv_heads : c.g.blocks));
    p.by_outer = divide_by((unsigned)(p.heads_inner ? c.g.blocks : c.g.kv_heads));
    p.by_group = divide_by((unsigned)p.group);
    if (suits_score_blocks(c)) return launch_score_blocks(c);
    if (!c.streams) return launch_scores_plain(c);
    return with_parts(c, [&] {
        if (p.k_type == SANTA_E5M2) return launch_scores<any_eight, 4>(c);
        return with_key_type(p.k_type, [&](auto key) {
            typedef typename decltype(key)::type K;
            return with_chunks(p.d, [&](auto chunks) {
                return launch_scores<K, decltype(chunks)::value>(c);
            });
        });
    });
}

cudaError_t launch_pass(call &c) {
    params &p = c.p;
    if (!p.first_tokens) return launch_window(c);
    p.window = p.first_window;
    const cudaError_t e = launch_window(c);
    p.window = 0;
    if (e != cudaSuccess) return e;
    return launch<k_first_scores>(c, scores_grid(c), SCORE_WARPS * 32, 0, false);
}

/* Of query row p.q_index, unless an earlier one's pass had them. */
cudaError_t launch_rows_scores(call &c) {
    params &p = c.p;
    /* one page for a lane's 8 keys, or a bad table entry would reach rows that do not use it */
    const bool shared = c.streams && has_products_alone(c) && p.eights && !p.first_tokens;
    const int most = shared ? (int)c.g.rows : 1,
              in_pass = p.q_index % most;
    if (in_pass == 0) {
        p.rows = p.q_len - p.q_index < most ? p.q_len - p.q_index : most;
        p.arrivals = p.portions > 1 ? p.rows * c.g.batch * c.g.heads * c.g.columns : 0;
        c.place_row(0);
        const cudaError_t e = launch_pass(c);
        if (e != cudaSuccess) return e;
    }
    p.rows = 1;
    c.place_row(in_pass);
    return cudaSuccess;
}

cudaError_t launch_sparse(call &c) {
    params &p = c.p;
    const geometry &g = c.g;
    if (!g.k_blocks) return launch_exact(c);
    p.row_sums = (float2 *)(c.workspace + c.l.row_sums);
    p.shares = (float *)(c.workspace + c.l.shares);
    p.masses = (float4 *)(c.workspace + c.l.masses);
    p.set_masses = (float *)(c.workspace + c.l.set_masses);
    p.raw_sets = (unsigned *)(c.workspace + c.l.raw_sets);
    p.own = (unsigned *)(c.workspace + c.l.own);
    p.sets = (unsigned *)(c.workspace + c.l.sets);
    p.picked = (int *)(c.workspace + c.l.picked);
    p.runs_dense = (int *)(c.workspace + c.l.runs_dense);
    p.is_sparse = 1;
    cudaError_t e = cudaSuccess;
    if (g.is_sampled) {
        fill_tiles(c, 1, BLOCK);
        e = launch_stage(c, AT_MAXIMA);
        if (e == cudaSuccess) e = launch_stage(c, AT_MASSES);
        if (e == cudaSuccess) e = launch<k_select>(c, grid_of(g.select), 256, 0, false);
    }
    if (e == cudaSuccess && (g.is_sampled || p.audit))
        e = launch<k_join>(c, grid_of(g.stats), 256, 0, false);
    if (e == cudaSuccess && g.is_sampled && p.audit) {
        e = launch_stage(c, AT_SHARES);
        if (e == cudaSuccess) e = launch<k_audit>(c, grid_of({ g.heads, g.batch, 1 }), 256, 0, false);
    }
    if (e == cudaSuccess && p.mask_out) e = launch<k_mask>(c, grid_of(g.mask), 128, 0, false);
    if (e != cudaSuccess) return e;
    fill_tiles(c, p.per_head || p.mask ? 1 : TILE_HEADS, 1 << p.block_shift);
    e = launch_prefill(c);
    if (!p.row_mass) return e;
    const params whole = p;
    const extent heads = { g.heads, g.batch, 1 };
    for (; e == cudaSuccess && p.q_index < p.q_len; p.q_index++) {
        e = launch_rows_scores(c);
        if (e == cudaSuccess) e = launch<k_row_mass>(c, grid_of(heads), 256, 0, false);
    }
    p = whole;
    return e == cudaSuccess && p.audit ? launch<k_row_audit>(c, grid_of(heads), 256, 0, false) : e;
}

template <typename Pick> cudaError_t launch_draws(const call &c) {
    if constexpr (Pick::UNITS) return launch_gather<2, Pick>(c);
    else if (c.p.ranks || c.p.dv > 128) return launch_gather<2, comb_over_ranks>(c);
    else return launch_gather<1, comb>(c);
}

/* Each head's mass, of all ranks. */
cudaError_t launch_rank_mass(call &c) {
    params &p = c.p;
    p.mass_doubles = c.g.tiles ? 8 : 2;
    const cudaError_t e = launch<k_rank_mass>(c, dim3((unsigned)p.heads, (unsigned)p.batch), PORTION, 0,
                                              true);
    if (e == cudaSuccess)
        c.gather(p.rank_mass,
                 (size_t)(c.g.batch * c.g.heads) * (size_t)p.mass_doubles * sizeof(double),
                 (void *)p.rank_masses);
    return e;
}

template <typename Pick> cudaError_t launch_sampled(call &c) {
    params &p = c.p;
    const cudaError_t scored = launch_rows_scores(c);
    if (scored != cudaSuccess) return scored;
    if (!p.ranks) return launch_draws<Pick>(c);
    const dim3 heads((unsigned)p.heads, (unsigned)p.batch);
    const size_t rows = (size_t)(c.g.batch * c.g.heads);
    cudaError_t e = launch_rank_mass(c);
    if (e != cudaSuccess || c.has_failed) return e;
    if (!c.g.tiles) return launch_draws<comb>(c);
    p.tile_list = (int *)(c.workspace + c.l.tile_list);
    p.tile_count = (i64 *)(c.workspace + c.l.tile_count);
    p.tile_counts = (i64 *)(c.workspace + c.l.tile_counts);
    p.tiles_met = (tiles_of_ranks *)(c.workspace + c.l.tiles_met);
    p.max_tiles = (int)c.g.tiles;
    p.rank_step = LIST;
    e = launch<k_rank_tiles>(c, heads, PORTION, 0, false);
    if (e != cudaSuccess || !c.gather(p.tile_count, rows * sizeof(i64), (void *)p.tile_counts)) return e;
    p.rank_step = PLACE;
    e = launch<k_rank_tiles>(c, heads, PORTION, 0, false);
    p.rank_step = DRAW;
    return e == cudaSuccess ? launch_draws<comb>(c) : e;
}

cudaError_t launch_errors(const call &c) {
    if (c.p.method == SANTA_SAAP)
        return launch<k_route_error>(c, grid_of({ c.g.heads, c.g.batch, 1 }), PORTION, 0, false);
    const dim3 heads((unsigned)c.g.heads, (unsigned)c.g.batch);
    return c.g.weighs ? launch<k_weighed_error>(c, heads, WEIGHED_KEYS, 0, false)
                      : launch<k_error>(c, heads, 128 * ERROR_PARTS, 0, false);
}

/* Draws of teams of heads: k_draw behind exact scores, or those of a copy of K,
   k_proxy_scores. */

/* As santa__format_make has it. */
copy_shape copy_shape_of(const santa_attention *a) {
    copy_shape x = {};
    const i64 d = a->k.shape[3];
    while (x.shift < 6 && (!a->block_table || a->k.shape[1] % (2 << x.shift) == 0)) x.shift++;
    x.keys = 1 << x.shift;
    x.bits = a->proxy_bits ? a->proxy_bits : 4;
    x.chunks = (int)((d * x.bits + 127) / 128);
    x.features = x.chunks * 128 / x.bits;
    x.gains = 16 * x.chunks * x.keys;
    x.centre = x.gains + 2 * x.keys;
    x.scale = x.centre + x.features;
    x.bytes = (x.scale + 4 + 63) / 64 * 64;
    x.blocks = a->k.shape[1] / x.keys;
    return x;
}

/* What turns keys and queries. */
void fill_rotation(i64 d, params *p) {
    const uint32_t key[2] = { 0x5eedu, 0x70726f78u };
    for (uint32_t i = 0; i < COPY_DIM / 128; i++) {
        const uint32_t counter[4] = { i, 0, 0, 0 };
        santa_philox(counter, key, p->signs + 4 * i);
    }
    p->piece = (int)(d & -d);
    p->norm = (float)(1.0 / sqrt((double)p->piece));
}

/* Teams: all heads of a group draw together, or each by itself. */
santa_status measure_teams(const santa_problem *problem, geometry *g) {
    if (g->dv > PROXY_DIM) return SANTA_ERR_BACKEND_SIZE;
    g->together = problem->o.method == SANTA_PPS && problem->group > 1 ? g->group : 1;
    if (g->together > DRAW_HEADS) return SANTA_ERR_BACKEND_SIZE;
    g->teams = g->heads / g->together;
    g->samples = problem->o.num_samples;
    g->draws = g->together * g->samples + 2;        /* teeth, and what rounding adds */
    g->portions = 1;
    return SANTA_OK;
}

santa_status measure_proxy(const santa_problem *problem, geometry *g) {
    if (g->d > PROXY_DIM) return SANTA_ERR_BACKEND_SIZE;
    const santa_status s = measure_teams(problem, g);
    if (s != SANTA_OK) return s;
    g->copy = copy_shape_of(&problem->a);
    g->slices = ceil_div(g->group, PASS_HEADS);
    g->items = g->batch * g->kv_heads * g->slices;
    g->fixed = g->batch * g->kv_heads * ceil_div(g->group, SLICE) * FIXED_PARTS;
    g->work = g->fixed + g->items * g->blocks;      /* CTAs, at most */
    if (g->together == 1) {                         /* k_proxy_gather */
        g->draws = g->samples;
        g->portions = ceil_div(g->draws, PROXY_DRAWS);
        g->gather = { g->heads, g->batch, g->portions };
        if (!fits(g->gather)) return SANTA_ERR_BACKEND_SIZE;
    }
    return g->work < INT32_MAX ? SANTA_OK : SANTA_ERR_BACKEND_SIZE;
}

santa_status measure_pps(const santa_problem *problem, geometry *g) {
    const santa_status s = measure_sampled<measure_comb>(problem, g);
    return s == SANTA_OK ? measure_teams(problem, g) : s;
}

i64 proxy_stash_bytes(santa_stash s) { return s == SANTA_STASH_F32 ? 4 : 1; }

/* What k_draw has of its own. */
void arrange_draw(const geometry &g, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), teams = (size_t)(g.batch * g.teams);
    const size_t sums = saturating((size_t)g.together, (size_t)(DRAW_PARTS * g.dv)) * sizeof(float);
    l->spreads = add_part(l, saturating(rows, (size_t)g.blocks), sizeof(float));
    l->ticks = add_part(l, saturating(teams, (size_t)g.blocks), sizeof(i64));
    l->sums = add_part(l, sums > DRAW_SUMS ? teams : 0, sums);
    l->keys = add_part(l, saturating(teams, (size_t)g.draws), sizeof(int));
    l->draws = add_part(l, rows, sizeof(int));
}

void arrange_pps(const geometry &g, santa_stash stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads);
    const size_t blocks = saturating(saturating(rows, (size_t)g.rows), (size_t)g.blocks);
    l->block_sums = add_part(l, blocks, sizeof(float2));
    l->stash = add_part(l, blocks, (size_t)(BLOCK * stash_bytes(stash)));
    arrange_draw(g, l);
}

void arrange_proxy(const geometry &g, santa_stash stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), blocks = saturating(rows, (size_t)g.blocks);
    l->block_sums = add_part(l, blocks, sizeof(float2));
    l->stash = add_part(l, blocks, (size_t)(BLOCK * proxy_stash_bytes(stash)));
    arrange_draw(g, l);
    l->fixed = add_part(l, saturating(rows, FIXED_PARTS), ((size_t)g.dv + 2) * sizeof(float));
    l->mended = add_part(l, g.together == 1 ? blocks : 0, sizeof(float2));
    const size_t portions = g.portions > 1 ? saturating(rows, (size_t)g.portions) : 0;
    l->partial = add_part(l, portions, ((size_t)g.dv + 4) * sizeof(float));
    l->arrived = add_part(l, g.portions > 1 ? rows : 0, sizeof(int));
    l->found = add_part(l, saturating(rows, (size_t)g.q_len), sizeof(float4));
    l->rescued = add_part(l, rows, sizeof(int));
}

/* Clusters of 1 << this, of `ctas` that are to have one each: as many as the card has room for
   at once. */
int cluster_shift_of(const call &c, i64 ctas) {
    int shift = 0;
    while (c.card.major >= 9 && 1 << shift < MOST_CLUSTER && ctas << (shift + 1) <= c.card.multiprocessors)
        shift++;
    return shift;
}

/* What k_draw has in its shared memory, and whether rows come there; before the scores, which
   have rows of their own. */
void arrange_rows(call &c) {
    params &p = c.p;
    const int k_bytes = p.copied ? p.d * p.k_size : 0, v_bytes = p.dv * p.v_size;
    p.share_units = (float *)(c.workspace + c.l.spreads);
    p.ticks = (i64 *)(c.workspace + c.l.ticks);
    p.together = (int)c.g.together;
    p.cluster_shift = cluster_shift_of(c, c.g.teams * c.g.batch);
    const i64 sums = (i64)(DRAW_PARTS >> p.cluster_shift) * p.together * p.dv * (i64)sizeof(float);
    p.sums = sums > DRAW_SUMS ? (float *)(c.workspace + c.l.sums) : nullptr;
    p.stage_at = (int)sizeof(draw_memory) + (p.sums ? 0 : (int)(sums + 15) / 16 * 16);
    p.stage_bytes = DRAW_ROWS * (k_bytes + v_bytes + 64);
    p.staged = (!p.copied || (p.any_vector_k && k_bytes % 16 == 0)) && p.vector_v && v_bytes % 16 == 0
            && p.stage_at + p.stage_bytes <= c.card.shared;
    if (!p.staged) p.stage_bytes = 0;
}

cudaError_t launch_draw(call &c) {
    params &p = c.p;
    const size_t bytes = (size_t)(p.stage_at + p.stage_bytes);
    const dim3 grid((unsigned)c.g.teams << p.cluster_shift, (unsigned)c.g.batch);
    const auto draw = [&] {
        return launch_large<k_draw>(c, grid, PORTION, bytes, !p.ranks, 1 << p.cluster_shift);
    };
    if (!p.ranks) return draw();
    p.tile_count = (i64 *)(c.workspace + c.l.tile_count);
    p.tile_counts = (i64 *)(c.workspace + c.l.tile_counts);
    p.rank_step = TELL;
    const cudaError_t told = draw();
    p.rank_step = PLACE;
    if (told != cudaSuccess || !c.gather(p.tile_count, (size_t)(c.g.batch * c.g.teams) * sizeof(i64),
                                         (void *)p.tile_counts))
        return told;
    const cudaError_t placed = draw();
    p.rank_step = DRAW;
    return placed;
}

cudaError_t launch_pps(call &c) {
    arrange_rows(c);
    cudaError_t e = launch_rows_scores(c);
    if (e == cudaSuccess && c.p.ranks) e = launch_rank_mass(c);
    return e == cudaSuccess && !c.has_failed ? launch_draw(c) : e;
}

template <int G> cudaError_t launch_proxy_scores(call &c) {
    params &p = c.p;
    p.slot_bytes = (BLOCK >> p.copy.shift) * p.copy.bytes;
    /* as many CTAs of a multiprocessor as it has registers for, unless their rings would be too
       short */
    const int warps = SCORE_WARPS * p.slot_bytes,
              own = (int)sizeof(proxy_scores_memory) + 1024 + 128;
    int ctas_at_once = PROXY_CTAS;
    const auto slots = [&] { return ((c.card.shared + 1024) / ctas_at_once - own) / warps; };
    while (ctas_at_once > 1 && slots() < 2) ctas_at_once--;
    p.ring_slots = slots();
    if (p.ring_slots > RING_SLOTS) p.ring_slots = RING_SLOTS;
    if (p.ring_slots < 1) p.ring_slots = 1;
    const int ring = p.ring_slots * warps + 128, least = (int)sizeof(rows_memory) + p.stage_bytes,
              bytes = ring > least ? ring : least;
    /* one wave of long CTAs; more of them, and shorter ones, once that is many blocks for a
       warp */
    const i64 resident = ctas_at_once * (i64)c.card.multiprocessors,
              room = resident > c.g.fixed + c.g.items ? (resident - c.g.fixed) / c.g.items : 1;
    const i64 usual = PROXY_STEPS * SCORE_WARPS, each = ceil_div(c.g.blocks, room);
    const bool many = c.g.items * c.g.blocks >= 6 * resident * usual;
    i64 most = usual;
    if (!G && many) most = 2 * usual;               /* a block takes longer */
    if (G && !many && c.g.blocks <= 2 * usual) most = usual / 2;      /* rows have few */
    p.chunk_blocks = (int)(each <= most + most / 8 ? each : most);
    p.proxy_chunks = (int)ceil_div(c.g.blocks, p.chunk_blocks);
    p.fixed_ctas = (unsigned)c.g.fixed;
    /* in the first half of the grid, apart from each other */
    const i64 apart = c.g.fixed ? c.g.items * p.proxy_chunks / (2 * c.g.fixed) : 0;
    p.by_fixed = divide_by((unsigned)(apart < 1 ? 1 : apart + 1));
    p.slices = (int)c.g.slices;
    p.by_slices = divide_by((unsigned)p.slices);
    p.by_kv = divide_by((unsigned)p.kv_heads);
    p.by_chunks = divide_by((unsigned)p.proxy_chunks);
    return launch_large<k_proxy_scores<G>>(c, dim3((unsigned)(c.g.fixed + c.g.items * p.proxy_chunks)),
                                           SCORE_WARPS * 32, bytes, false);
}

/* Scores from copies of K, before the draw: what ranks tell each other. The number of exchanges
   is the options': nobody reads back whether a head is rescued. */
cudaError_t launch_copy_ranks(call &c) {
    params &p = c.p;
    const dim3 heads((unsigned)p.heads, (unsigned)p.batch);
    const size_t rows = (size_t)(c.g.batch * c.g.heads);
    p.rank_copies = (double *)(c.workspace + c.l.rank_copies);
    p.rank_best = (float *)(c.workspace + c.l.rank_best);
    p.rank_bests = (float *)(c.workspace + c.l.rank_bests);
    p.rank_drawn = (float4 *)(c.workspace + c.l.rank_drawn);
    p.rank_drawns = (float4 *)(c.workspace + c.l.rank_drawns);
    p.rank_masses = p.rank_copies;
    p.mass_doubles = 5;
    cudaError_t e = launch<k_rank_copied>(c, heads, PORTION, 0, false);
    if (e != cudaSuccess || !c.gather(p.rank_mass, rows * 5 * sizeof(double), (void *)p.rank_copies))
        return e;
    if (c.g.rank_keys == 0) return e;
    p.rank_step = TELL;
    e = launch<k_proxy_gather<false>>(c, heads, PORTION, 0, false);
    if (e != cudaSuccess
        || !c.gather(p.rank_best, rows * (size_t)c.g.rank_keys * sizeof(float), (void *)p.rank_bests))
        return e;
    p.rank_step = MEND;
    e = launch<k_proxy_gather<false>>(c, heads, PORTION, 0, false);
    p.rank_masses = (double *)(c.workspace + c.l.rank_masses);
    if (e == cudaSuccess) e = launch<k_rank_copied>(c, heads, PORTION, 0, false);
    p.rank_step = DRAW;
    if (e == cudaSuccess) c.gather(p.rank_mass, rows * 5 * sizeof(double), (void *)p.rank_masses);
    return e;
}

/* Shared memory that the kernel does not use keeps its CTAs apart: no more on a multiprocessor
   than there must be. Where they do not fit at once, they are of 4 warps. */
template <bool RANKS> cudaError_t launch_drawn(const call &c) {
    dim3 grid = grid_of(c.g.gather);
    grid.x <<= c.p.cluster_shift;
    const i64 each = ceil_div((i64)grid.x * grid.y * grid.z, c.card.multiprocessors);
    const bool small = !RANKS && each > 2 && c.p.d <= 128 && c.p.dv <= 128
                    && 4 * (sizeof(proxy_gather_memory) + 1024) <= (size_t)c.card.shared;
    const i64 pad = c.p.cluster_shift ? 0     /* all clusters are to fit */
                                      : c.card.shared / (each + 1) - (i64)sizeof(proxy_gather_memory);
    return launch_large<k_proxy_gather<RANKS>>(c, grid, small ? PORTION / 2 : PORTION,
                                               pad > 0 ? (size_t)pad : 0, !RANKS, 1 << c.p.cluster_shift);
}

cudaError_t launch_proxy(call &c) {
    params &p = c.p;
    p.copied = 1;
    p.fixed = (float *)(c.workspace + c.l.fixed);
    arrange_rows(c);
    p.spreads = (float *)(c.workspace + c.l.spreads);
    p.found = p.draws ? (float4 *)(c.workspace + c.l.found) + p.q_index * c.g.batch * c.g.heads : nullptr;
    p.rescued = p.draws ? (int *)(c.workspace + c.l.rescued) : nullptr;
    p.mended = (float2 *)(c.workspace + c.l.mended);
    p.arrivals = p.portions > 1 ? c.g.batch * c.g.heads : 0;
    const bool usual = p.copy.bits == 4 && p.copy.chunks == 4;
    const cudaError_t e = usual ? launch_proxy_scores<4>(c) : launch_proxy_scores<0>(c);
    if (e != cudaSuccess) return e;
    if (!p.ranks && p.together > 1) return launch_draw(c);
    const int shift = p.cluster_shift;
    p.cluster_shift = 0;                            /* of rescue */
    if (p.ranks) {
        const cudaError_t met = launch_copy_ranks(c);
        if (met != cudaSuccess || c.has_failed) return met;
    }
    if (p.together > 1) p.cluster_shift = shift;
    else if (!p.ranks && p.rescue_keys > 0 && p.rescue_above < INFINITY)                  /* may rescue */
        p.cluster_shift = cluster_shift_of(c, (i64)c.g.gather.x * c.g.gather.y * c.g.gather.z);
    const cudaError_t drawn = p.together > 1 ? launch_draw(c)
                            : p.ranks ? launch_drawn<true>(c) : launch_drawn<false>(c);
    if (!p.ranks || drawn != cudaSuccess || c.has_failed) return drawn;
    if (!c.gather(p.rank_drawn, (size_t)(c.g.batch * c.g.heads) * sizeof(float4), (void *)p.rank_drawns))
        return drawn;
    p.rank_step = FINISH;
    p.cluster_shift = 0;
    const cudaError_t done = launch<k_proxy_gather<false>>(
        c, dim3((unsigned)p.heads, (unsigned)p.batch), PORTION, 0, false);
    p.rank_step = DRAW;
    return done;
}

/* Keys of highest scores, selected from what a scores kernel has left, and attention over them:
   k_scores, or k_scores_plain, or k_proxy_scores; k_top; k_list, or k_list_plain, and
   k_combine. */

santa_status measure_selected(const santa_problem *problem, geometry *g) {
    const bool copied = problem->o.scores == SANTA_SCORES_PROXY;
    g->samples = problem->o.method == SANTA_TOP_P || problem->o.num_samples > g->keys
               ? g->keys : problem->o.num_samples;
    g->draws = g->samples;
    g->list_heads = 1;
    g->list_most = g->draws;
    const santa_proxy_options *o = &problem->o.proxy;
    if (copied) {
        /* beside the copy: tokens at either end and a part of a block, or any number */
        const i64 most = INT32_MAX, sinks = o->sink_tokens < most ? o->sink_tokens : most,
                  local = o->local_tokens < most ? o->local_tokens : most,
                  fixed = sinks + local + BLOCK;
        g->list_most = problem->a.proxy_lens || fixed > g->keys - g->draws ? g->keys : g->draws + fixed;
    }
    g->slices = ceil_div(g->group, PASS_HEADS);
    g->rows = 1;
    g->gather = { g->heads, g->batch, 1 };
    g->work = g->batch * g->kv_heads * g->slices * g->blocks;
    g->scores = { ceil_div(g->work, SCORE_WARPS), 1, 1 };
    if (!fits_scores(*g) || !fits(g->gather)) return SANTA_ERR_BACKEND_SIZE;
    if (copied) {
        if (g->d > PROXY_DIM || g->dv > PROXY_DIM) return SANTA_ERR_BACKEND_SIZE;
        g->copy = copy_shape_of(&problem->a);
        g->items = g->batch * g->kv_heads * g->slices;
    }
    return measure_lists(problem->a.k.dtype, g);
}

void arrange_selected(const geometry &g, santa_stash stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), blocks = saturating(rows, (size_t)g.blocks);
    l->block_sums = add_part(l, blocks, sizeof(float2));
    l->stash = add_part(l, blocks, (size_t)(BLOCK * proxy_stash_bytes(stash)));
    l->spreads = add_part(l, g.items ? blocks : 0, sizeof(float));
    l->keys = add_part(l, saturating(rows, (size_t)g.draws), sizeof(int));
    l->draws = add_part(l, rows, sizeof(int));
    l->rest = add_part(l, rows, sizeof(rest_mass));
    l->ranges = add_part(l, g.items ? rows : 0, sizeof(list_range));
    arrange_exact(g, stash, l);
}

/* CTAs of a head: as long as each has a multiprocessor, and keys enough. */
cudaError_t launch_top(call &c) {
    int shift = cluster_shift_of(c, c.g.heads * c.g.batch);
    while (shift && c.g.blocks >> shift < SELECT_SPAN) shift--;
    c.p.cluster_shift = shift;
    return launch<k_top>(c, dim3((unsigned)c.g.heads << shift, (unsigned)c.g.batch), SELECT_THREADS, 0,
                         true, 1 << shift);
}

/* Over ranks: of the keys of the highest scores here those that stay, or as many as are to be
   taken. */
cudaError_t launch_choice(call &c) {
    params &p = c.p;
    const dim3 heads((unsigned)p.heads, (unsigned)p.batch);
    const size_t rows = (size_t)(c.g.batch * c.g.heads);
    cudaError_t e;
    if (!c.g.by_bins) {
        p.rank_best = (float *)(c.workspace + c.l.rank_best);
        p.rank_bests = (float *)(c.workspace + c.l.rank_bests);
        p.rescue_keys = (int)c.g.rank_keys;
        if ((e = launch_top(c)) != cudaSuccess) return e;
        p.rank_step = TELL;
        if ((e = launch<k_rank_best>(c, heads, PORTION, 0, false)) != cudaSuccess
            || !c.gather(p.rank_best, rows * (size_t)c.g.rank_keys * sizeof(float), (void *)p.rank_bests))
            return e;
        p.rank_step = PLACE;
        return launch<k_rank_best>(c, heads, PORTION, 0, false);
    }
    p.rank_bins = (bins_of_rank *)(c.workspace + c.l.rank_bins);
    p.all_bins = (bins_of_rank *)(c.workspace + c.l.all_bins);
    p.choices = (choice_of_ranks *)(c.workspace + c.l.choices);
    p.wants = (int *)(c.workspace + c.l.wants);
    if (p.method == SANTA_TOP_P) {
        p.mass_doubles = 3;
        if ((e = launch<k_rank_mass>(c, heads, PORTION, 0, true)) != cudaSuccess) return e;
        if (!c.gather(p.rank_mass, rows * 3 * sizeof(double), (void *)p.rank_masses)) return e;
    }
    e = cudaMemsetAsync(p.rank_bins, 0, 4 * rows * sizeof(bins_of_rank), c.stream);
    const i64 room = 8 * (i64)c.card.multiprocessors / (i64)rows, most = ceil_div(c.g.blocks, 32);
    for (p.rank_step = 0; e == cudaSuccess && p.rank_step <= 4; p.rank_step++) {
        const i64 ctas = p.rank_step == 4 || room < 1 ? 1 : room < most ? room : most;
        const dim3 grid(heads.x, heads.y, (unsigned)ctas);
        e = launch<k_rank_bins>(c, grid, PORTION, 0, false);
        if (p.rank_step < 4 && e == cudaSuccess
            && !c.gather(p.rank_bins + p.rank_step * rows, rows * sizeof(bins_of_rank), (void *)p.all_bins))
            return e;
    }
    return e == cudaSuccess ? launch_top(c) : e;
}

cudaError_t launch_selected(call &c) {
    params &p = c.p;
    const bool copied = p.proxy != nullptr;
    p.rows = 1;
    p.arrivals = 0;
    p.raw = p.stash_type == SANTA_STASH_F32;
    p.copied = copied;
    p.together = 1;
    c.place_row(0);
    p.spreads = (float *)(c.workspace + c.l.spreads);
    p.keys = (int *)(c.workspace + c.l.keys);
    p.draws = (int *)(c.workspace + c.l.draws);
    p.list_rest = (rest_mass *)(c.workspace + c.l.rest);
    p.list_ranges = copied ? (const list_range *)(c.workspace + c.l.ranges) : nullptr;
    p.list = p.keys;
    p.list_lens = p.draws;
    p.list_heads = 1;
    p.list_most = (int)p.max_draws;
    p.list_pitch = p.max_draws;
    p.list_batch = p.heads * p.list_pitch;
    p.lens_batch = p.ranges_batch = p.heads;
    const bool usual = p.copy.bits == 4 && p.copy.chunks == 4;
    cudaError_t e = !copied ? launch_pass(c)
                  : usual   ? launch_proxy_scores<4>(c) : launch_proxy_scores<0>(c);
    if (e == cudaSuccess) e = p.ranks ? launch_choice(c) : launch_top(c);
    return e == cudaSuccess && !c.has_failed ? launch_list(c, !p.ranks) : e;
}

/* Keys in buckets: k_rows, once or twice, k_route and a list; k_nearest or k_rows, and
   k_index. */

/* Rows of a router: of `size` numbers, `count` to a KV head. */
void fill_rows(const santa_buckets *r, const void *rows, const float *bias, i64 count, i64 size,
               row_step step, row_product *x) {
    const i64 pieces = ceil_div(size, 32);
    x->rows = (const char *)rows;
    x->bias = bias;
    x->count = (int)count;
    x->size = (int)size;
    x->row_type = r->dtype;
    x->row_bytes = (int)size_of(r->dtype);
    x->vector_rows = (uintptr_t)rows % 16 == 0 && size % 8 == 0;
    x->splits = pieces >= 8 ? 8 : pieces >= 4 ? 4 : pieces >= 2 ? 2 : 1;
    x->step = step;
    x->scale = 1.0f;
}

/* What they are multiplied with: `count` rows of t for each KV head, which lie along dimension
   `along`, heads of a query row or keys of a sequence. */
void fill_vectors(const santa_tensor *t, i64 count, int along, row_product *x) {
    i64 stride[4];
    byte_strides(t, stride);
    x->x = (const char *)t->data;
    x->x_type = t->dtype;
    x->x_stride[0] = stride[0];
    x->x_stride[1] = along == 2 ? count * stride[2] : stride[2];
    x->x_stride[2] = stride[along];
    x->x_stride[3] = stride[3];
    x->vector_x = vectors(t) && t->shape[3] % 8 == 0;
    x->vectors = (int)count;
}

i64 rows_tiles(const row_product &x) { return ceil_div(x.count, 16 * (8 / x.splits)); }

cudaError_t launch_rows(const call &c, bool overlap) {
    const row_product &x = c.p.product;
    const dim3 grid = grid_of({ rows_tiles(x), c.p.kv_heads,
                                ceil_div((i64)c.p.batch * x.vectors, ROWS_VECTORS) });
    return launch_large<k_rows>(c, grid, 256, (size_t)rows_bytes(x.splits), overlap);
}

/* Buckets of a CTA of k_layers; CTAs of its clusters. */
int layers_rows(i64 hidden) { return hidden > 128 ? (int)(16 * 4 / (hidden / 256)) : 128; }
int layers_cluster(i64 hidden) {
    const int blocks = (int)ceil_div(hidden, LAYERS_UNITS);
    return blocks < MOST_CLUSTER ? blocks : (int)MOST_CLUSTER;
}
dim3 layers_grid(const call &c, const row_product &second) {
    const int cluster = layers_cluster(second.size);
    return grid_of({ ceil_div(ceil_div(second.count, layers_rows(second.size)), cluster) * cluster,
                     c.p.kv_heads,
                     ceil_div((i64)c.p.batch * second.vectors, layers_vectors(second.size)) });
}

/* Whether k_layers takes them. Each cluster reads the first layer, so that they are few. */
bool suits_layers(const call &c, const row_product &first, const row_product &second) {
    const int h = second.size, d = first.size;
    if (h < 32 || h > LAYERS_MOST || (h & (h - 1)) || d < 32 || d > 128 || (d & (d - 1))) return false;
    if (first.row_type != SANTA_BF16 || first.x_type != SANTA_BF16 || !first.vector_x) return false;
    if (!first.vector_rows || !second.vector_rows) return false;
    if (c.card.major < 9 && h > LAYERS_UNITS) return false;
    const dim3 grid = layers_grid(c, second);
    return (i64)grid.x * grid.y * grid.z <= LAYERS_WAVES * (i64)c.card.multiprocessors;
}

cudaError_t launch_layers(const call &c, const row_product &first, const row_product &second) {
    layers_params p = {};
    p.w1 = first.rows;
    p.w2 = second.rows;
    p.b1 = first.bias;
    p.b2 = second.bias;
    p.q = first.x;
    for (int i = 0; i < 3; i++) p.q_stride[i] = first.x_stride[i];
    p.logits = second.out;
    p.parts = c.p.logit_parts;
    p.kv_heads = c.p.kv_heads;
    p.vectors = second.vectors;
    p.all = c.p.batch * second.vectors;
    p.here = layers_vectors(second.size);
    p.d = first.size;
    p.hidden = second.size;
    p.buckets = second.count;
    p.logit_tiles = c.p.logit_tiles;
    p.cluster = layers_cluster(second.size);
    p.by_vectors = divide_by((unsigned)second.vectors);
    for (int n = second.splits; n > 1; n /= 2) p.splits_shift++;
    for (int n = second.size; n > 256; n /= 2) p.links_shift++;
    return launch_large<k_layers>(c, p, layers_grid(c, second), 256, (size_t)layers_bytes(p.hidden), false,
                                  p.cluster);
}

/* The index, as santa__index_ints of santa.h has it. */
void fill_index(const santa_attention *a, i64 batch, i64 capacity, params *p) {
    const santa_buckets *r = a->buckets;
    const i64 slots = r->num_slots ? r->num_slots : batch;
    p->index = (int *)r->index;
    p->index_ints = (16 + 2 * (r->num_buckets + 1) + capacity + (capacity + 1) / 2 + 15) / 16 * 16;
    p->slots = (const int *)r->slots;
    p->num_slots = (int)(slots < INT32_MAX ? slots : INT32_MAX);
    p->buckets = (int)r->num_buckets;
}

santa_status measure_routed(const santa_problem *problem, geometry *g) {
    const santa_buckets *r = problem->a.buckets;
    if (g->d > ROUTE_DIM || ceil_div(g->batch * g->group, ROWS_VECTORS) > 65535)
        return SANTA_ERR_BACKEND_SIZE;
    g->buckets = r->num_buckets;
    g->hidden = r->hidden;
    g->samples = problem->o.num_samples == SANTA_NONE ? 0 : problem->o.num_samples;
    if (g->samples > g->keys) g->samples = g->keys;
    /* all keys, and a comb may have one tooth more */
    g->list_most = g->keys + g->samples + 1 + LIST_KEYS;            /* and see place_of */
    g->list_heads = g->group;
    g->measures = problem->o.saap.measure_mass != 0;
    g->scans = problem->o.scores == SANTA_SCORES_PROXY;
    if (g->scans) {
        g->copy = copy_shape_of(&problem->a);
        const i64 slices = ceil_div(g->group, PASS_HEADS);
        if (g->group > SCAN_HEADS || g->kv_heads * slices > 65535 || g->batch > 65535)
            return SANTA_ERR_BACKEND_SIZE;
    }
    if (g->measures) {
        g->slices = ceil_div(g->group, PASS_HEADS);
        g->rows = 1;
        g->work = g->batch * g->kv_heads * g->slices * g->blocks;
        g->scores = { ceil_div(g->work, SCORE_WARPS), 1, 1 };
        if (!fits_scores(*g)) return SANTA_ERR_BACKEND_SIZE;
    }
    return measure_lists(problem->a.k.dtype, g);
}

/* CTAs of k_scan for a KV head and slice: a warp has 4 blocks, up to 16 where there are many,
   since each CTA rotates q. */
i64 scan_ctas(const geometry &g) {
    const i64 slices = g.kv_heads * ceil_div(g.group, PASS_HEADS),
              all = (i64)(saturating((size_t)(g.batch * slices), (size_t)g.blocks) / 8192),
              each = all < 4 ? 4 : all < 16 ? all : 16;
    return ceil_div(g.blocks, SCAN_THREADS / 32 * each);
}

void arrange_routed(const geometry &g, santa_stash stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), items = (size_t)(g.batch * g.kv_heads),
                 pieces = saturating(items, (size_t)g.buckets),
                 listed = saturating(items, (size_t)g.samples + 1);
    l->units = add_part(l, saturating(rows, (size_t)g.hidden), sizeof(float));
    l->logits = add_part(l, saturating(rows, (size_t)g.buckets), sizeof(float));
    l->logit_parts = add_part(l, saturating(rows, (size_t)ceil_div(g.buckets, 16)), sizeof(float2));
    l->spans = add_part(l, g.buckets > ROUTE_SPANS || g.scans ? pieces : 0, sizeof(bucket_span));
    l->piece = add_part(l, pieces, sizeof(list_piece));
    l->pieces = add_part(l, items, sizeof(list_pieces));
    l->list = add_part(l, listed, sizeof(int));
    l->list_weights = add_part(l, g.samples ? listed : 0, sizeof(float));
    l->list_lens = add_part(l, items, sizeof(int));
    l->list_ranges = add_part(l, items, sizeof(list_range));
    l->routed = add_part(l, saturating(items, (size_t)g.q_len), sizeof(routed_row));
    const size_t results = saturating(rows, (size_t)g.q_len),
                 blocks = g.measures ? saturating(rows, (size_t)g.blocks) : 0;
    l->covered = add_part(l, g.measures ? results : 0, sizeof(i64));
    const size_t scanned = g.scans ? saturating(items, (size_t)g.blocks) : 0,
                 scanned_rows = g.scans ? saturating(rows, (size_t)g.blocks) : 0;
    l->scan_use = add_part(l, g.scans ? saturating(items, (size_t)ceil_div(g.buckets, 32)) : 0, 4);
    l->scan_bad = add_part(l, g.scans ? items : 0, sizeof(int));
    l->scan_share = add_part(l, g.scans ? rows : 0, sizeof(float));
    l->scan_scores = add_part(l, scanned_rows, BLOCK * sizeof(float));
    l->scan_sums = add_part(l, g.scans ? saturating(rows, (size_t)scan_ctas(g)) : 0, sizeof(float2));
    l->scan_sizes = add_part(l, scanned, sizeof(float2));
    l->scan_keys = add_part(l, scanned, BLOCK);
    l->scan_counts = add_part(l, scanned, 1);
    l->block_sums = add_part(l, blocks, sizeof(float2));
    l->stash = add_part(l, blocks, BLOCK * sizeof(float));
    arrange_exact(g, stash, l);
}

/* Scores of the keys of some buckets by a copy of K, and their sizes. */
cudaError_t launch_scan(call &c) {
    params &p = c.p;
    const i64 ctas = scan_ctas(c.g), sizes = ceil_div(ctas, 2);
    p.slices = (int)ceil_div(c.g.group, PASS_HEADS);
    const cudaError_t e =
        launch<k_scan>(c, grid_of({ ctas, c.g.kv_heads * p.slices, c.g.batch }), SCAN_THREADS, 0, true);
    return e != cudaSuccess ? e
         : launch<k_scan_sizes>(c, grid_of({ sizes, c.g.kv_heads, c.g.batch }), SCAN_THREADS, 0, true);
}

cudaError_t launch_routed(call &c) {
    params &p = c.p;
    const santa_buckets *r = c.a->buckets;
    const santa_tensor *q = r->q.data ? &r->q : &c.a->q;
    float *const logits = (float *)(c.workspace + c.l.logits);
    row_product &x = p.product;
    const i64 items = c.g.batch * c.g.kv_heads;
    p.logits = logits;
    p.spans = c.g.buckets > ROUTE_SPANS || c.g.scans ? (bucket_span *)(c.workspace + c.l.spans) : nullptr;
    char *const proxy = p.proxy;
    p.proxy = nullptr;                              /* it is for k_scan alone */
    p.scan = {};
    p.scans = c.g.scans;
    if (c.g.scans)
        p.scan = { (unsigned *)(c.workspace + c.l.scan_use), (int *)(c.workspace + c.l.scan_bad),
                   (float *)(c.workspace + c.l.scan_share), (float *)(c.workspace + c.l.scan_scores),
                   (float2 *)(c.workspace + c.l.scan_sums), (int)scan_ctas(c.g), 0,
                   (float2 *)(c.workspace + c.l.scan_sizes),
                   (unsigned char *)(c.workspace + c.l.scan_keys),
                   (unsigned char *)(c.workspace + c.l.scan_counts) };
    p.logit_parts = (float2 *)(c.workspace + c.l.logit_parts);
    p.piece_table = (const list_piece *)(c.workspace + c.l.piece);
    p.pieces = (const list_pieces *)(c.workspace + c.l.pieces);
    p.list = (const int *)(c.workspace + c.l.list);
    p.list_weights = c.g.samples ? (const float *)(c.workspace + c.l.list_weights) : nullptr;
    p.list_lens = (const int *)(c.workspace + c.l.list_lens);
    p.list_ranges = (const list_range *)(c.workspace + c.l.list_ranges);
    p.list_pitch = c.g.samples + 1;
    p.list_batch = c.g.kv_heads * p.list_pitch;
    p.lens_batch = p.ranges_batch = c.g.kv_heads;
    p.list_heads = p.group;
    p.list_most = (int)p.list_pitch;
    p.routed = p.stats ? (routed_row *)(c.workspace + c.l.routed) + p.q_index * items : nullptr;
    const bool hidden = r->hidden > 0, measures = c.g.measures && p.stats;
    p.covered = measures ? (i64 *)(c.workspace + c.l.covered) + p.q_index * c.g.batch * c.g.heads : nullptr;
    if (measures) {
        p.raw = 1;
        const cudaError_t scored = launch_pass(c);
        if (scored != cudaSuccess) return scored;
    }
    row_product units = {};
    fill_vectors(q, p.group, 2, &x);
    x.x += p.q_index * q->stride[1] * size_of(q->dtype);
    x.out = logits;
    if (hidden) {
        units = x;
        units.out = (float *)(c.workspace + c.l.units);
        fill_rows(r, r->w1, r->b1, r->hidden, p.d, STEP_UNITS, &units);
        const i64 s[4] = { p.heads * r->hidden, p.group * r->hidden, r->hidden, 1 };
        fill_rows(r, r->w2, r->b2, r->num_buckets, r->hidden, STEP_LOGITS, &x);
        x.x = (const char *)units.out;
        x.x_type = SANTA_F32;
        for (int i = 0; i < 4; i++) x.x_stride[i] = 4 * s[i];
        x.vector_x = r->hidden % 8 == 0;
    } else {
        const float by_default = (float)(1.0 / sqrt((double)p.d)), given = c.a->sm_scale;
        fill_rows(r, r->centroids, nullptr, r->num_buckets, p.d, STEP_LOGITS, &x);
        x.scale = (r->key_norm > 0.0f ? r->key_norm : 1.0f) * (given != 0.0f ? given : by_default);
    }
    cudaError_t e = cudaSuccess;
    p.logit_tiles = (int)rows_tiles(x);
    const bool layers = hidden && suits_layers(c, units, x);
    if (layers) e = launch_layers(c, units, x);
    else if (hidden) {
        const row_product second = x;
        x = units;
        e = launch_rows(c, false);
        x = second;
    }
    if (e == cudaSuccess && !layers) e = launch_rows(c, hidden);
    const dim3 rows = grid_of(c.g.stats);
    if (e == cudaSuccess)
        e = c.g.scans ? launch<k_route<true>>(c, rows, ROUTE_THREADS, 0, true)
                      : launch<k_route<false>>(c, rows, ROUTE_THREADS, 0, true);
    if (e == cudaSuccess && c.g.scans) {
        p.proxy = proxy;
        e = launch_scan(c);
        p.proxy = nullptr;
        p.scan.is_done = 1;
        if (e == cudaSuccess) e = launch<k_route<true>>(c, rows, ROUTE_THREADS, 0, true);
    }
    if (e == cudaSuccess) e = launch_list(c, true);
    p.proxy = proxy;
    return e == cudaSuccess && measures
        ? launch<k_route_mass>(c, grid_of({ c.g.heads, c.g.batch, 1 }), PORTION, 0, false) : e;
}

cudaError_t count_routed(const call &c) { return launch<k_route_stats>(c, dim3(1), 256, 0, false); }

cudaError_t count_rows(const call &c) {
    const bool all = c.rows_done > 1 || c.p.is_sparse;
    return all ? launch<k_prefill_stats>(c, grid_of(c.g.stats), 256, 0, false)
               : launch<k_stats>(c, grid_of(c.g.stats), 256, 0, false);
}
cudaError_t count_drawn_rows(const call &c) {
    return launch<k_draw_stats>(c, grid_of(c.g.stats), 256, 0, false);
}

/* vAttention: the scores, of K or of its copy, if heavy tokens are taken by them, k_va_choose,
   and sums over lists of keys. */

santa_status measure_va(const santa_problem *problem, geometry *g) {
    const santa_vattention_options *v = &problem->o.vattention;
    if (g->d > PROXY_DIM || g->dv > PROXY_DIM) return SANTA_ERR_BACKEND_SIZE;
    g->by_scores = !v->heavy_index && v->heavy_tokens != 0;
    g->by_copy = g->by_scores && problem->o.scores == SANTA_SCORES_PROXY;
    if (problem->o.scores == SANTA_SCORES_PROXY) g->copy = copy_shape_of(&problem->a);
    g->slices = ceil_div(g->group, PASS_HEADS);
    g->rows = 1;
    g->items = g->batch * g->kv_heads * g->slices;
    g->work = g->items * g->blocks;
    g->scores = { ceil_div(g->work, SCORE_WARPS), 1, 1 };
    const i64 heavy = v->heavy_tokens == SANTA_AUTO ? ceil_div(g->keys, 40)
                      : v->heavy_tokens < g->keys   ? v->heavy_tokens
                                                    : g->keys;
    g->candidates = (3 * heavy + 4096 < g->keys ? 3 * heavy + 4096 : g->keys) + 1;
    g->candidates -= g->candidates % 2;             /* two are copied together */
    g->words = 4 * ceil_div(g->keys, 128);
    g->shared_words = g->words <= CHOOSE_WORDS ? g->words : 0;
    g->list_keys = list_keys_of(problem->a.k.dtype, *g);
    g->list_portions = ceil_div(g->keys, g->list_keys) + 2;           /* three kinds of keys */
    g->list_heads = g->group;
    g->combine = { g->heads, g->batch, ceil_div(g->dv, 128) };
    const i64 lists = g->batch * g->kv_heads * ceil_div(g->group, FIXED_HEADS);
    const bool narrow = g->kv_heads * g->slices <= 65535 && g->keys <= INT32_MAX - 65536 * LIST_KEYS;
    const bool good = fits_scores(*g) && lists < INT32_MAX && narrow && fits(g->combine);
    return good ? SANTA_OK : SANTA_ERR_BACKEND_SIZE;
}

/* Counters before the sets' bits, which are read in fours. */
size_t whole_fours(size_t n) { return (n + 3) / 4 * 4; }

void arrange_va(const geometry &g, santa_stash, layout *l) {
    const size_t rows = (size_t)(g.batch * g.heads), items = (size_t)(g.batch * g.kv_heads);
    const size_t scored = g.by_scores ? rows : 0, blocks = saturating(scored, (size_t)g.blocks);
    const size_t bits = saturating(items, (size_t)g.words);
    const size_t heavy = g.ranks ? scored : 0;
    l->block_sums = add_part(l, blocks, sizeof(float2));
    l->stash = add_part(l, blocks, BLOCK * sizeof(float));
    l->spreads = add_part(l, g.by_copy ? blocks : 0, sizeof(float));
    l->keys = add_part(l, saturating(heavy, (size_t)g.heavy_keys), sizeof(int));
    l->draws = add_part(l, heavy, sizeof(int));
    l->rest = add_part(l, heavy, sizeof(rest_mass));
    /* va_counts, heads_done and bits, which scores sets to 0 */
    l->arrived = add_part(l, bits > SIZE_MAX / 8 ? SIZE_MAX : 4 * rows + whole_fours(items) + bits,
                          sizeof(int));
    l->candidates = add_part(l, saturating(scored, (size_t)g.candidates), sizeof(u64));
    l->taken = add_part(l, bits, sizeof(unsigned));
    l->list = add_part(l, saturating(items, (size_t)(g.list_portions * g.list_keys)), sizeof(int));
    l->va_rows = add_part(l, items, sizeof(va_row));
    l->va_heads = add_part(l, rows, sizeof(va_head));
    l->sums = add_part(l, saturating(rows, (size_t)g.list_portions), ((size_t)g.dv + 4) * sizeof(float));
}

/* The sums over the lists' portions of p.va.pass. There may be many more than there are as a
   rule, so a CTA may have several: a grid that fits at once. */
cudaError_t launch_va_sums(call &c) {
    params &p = c.p;
    const geometry &g = c.g;
    const bool fast = suits_lists(c) && !p.va.full, eight = p.k_type == SANTA_E4M3;
    const i64 slices = ceil_div(g.group, fast ? (int)PASS_HEADS : (int)FIXED_HEADS),
              lists = g.batch * g.kv_heads * slices,
              /* all at once, or three waves or so of k_va_attend; those of the rest, which as a
                 rule there is not, beside k_va_budget */
              each = !fast ? p.va.pass ? 3 : 10 : p.va.pass ? 1 : eight || p.d > 128 || p.dv > 128 ? 2 : 3,
              least = each * (i64)c.card.multiprocessors / lists,
              most = g.list_portions < 65535 ? g.list_portions : 65535,
              enough = fast ? least < 1 ? 1 : least : least < 8 ? 8 : least,
              shares = enough < most ? enough : most;
    p.slices = (int)slices;
    p.by_slices = divide_by((unsigned)slices);
    p.by_group = divide_by((unsigned)p.group);
    if (fast) {
        c.g.list = { shares, g.kv_heads * slices, g.batch };
        return with_key_type(p.k_type, [&](auto key) {
            return launch_list_rows<typename decltype(key)::type>(c, true);
        });
    }
    const size_t least_room = sizeof(attend_memory<FIXED_HEADS>), room = (size_t)(c.card.shared / 3 - 1024);
    p.stage_bytes = room > least_room ? (int)(room - least_room) : 0;
    p.by_kv = divide_by((unsigned)g.kv_heads);
    return launch_large<k_va_attend>(c, grid_of({ lists, shares, 1 }), SCORE_WARPS * 32,
                                     least_room + (size_t)p.stage_bytes, true);
}

/* Over ranks, behind the scores. */
cudaError_t launch_va_ranks(call &c) {
    params &p = c.p;
    const geometry &g = c.g;
    va_params &v = p.va;
    const i64 items = g.batch * g.kv_heads;
    const size_t size = (size_t)items * WORD_BINS * sizeof(unsigned);
    const params whole = p;
    cudaError_t e = cudaSuccess;
    const auto run = [&](va_step step, i64 x, i64 heads) {
        p.rank_step = step;
        if (e == cudaSuccess) e = launch<k_va_ranks>(c, grid_of({ x, heads, g.batch }), CHOOSE, 0, false);
    };
    const auto met = [&](const void *mine, size_t bytes, const void *all) {
        return e == cudaSuccess && c.gather(mine, bytes, (void *)all);
    };
    p.tile_count = (i64 *)(c.workspace + c.l.tile_count);
    p.tile_counts = (i64 *)(c.workspace + c.l.tile_counts);
    p.joint.rows = (va_row *)(c.workspace + c.l.va_all);
    p.joint.plans = (pick_plan *)(c.workspace + c.l.va_plans);
    p.joint.slices = (slice_keys *)(c.workspace + c.l.va_slices);
    p.joint.first = (unsigned *)(c.workspace + c.l.va_first);
    p.joint.bins = (unsigned *)(c.workspace + c.l.va_bins);
    p.joint.all_bins = (unsigned *)(c.workspace + c.l.va_all_bins);
    p.joint.told = (float *)(c.workspace + c.l.va_told);
    p.joint.all_told = (float *)(c.workspace + c.l.va_all_told);
    p.joint.parts = (float *)(c.workspace + c.l.va_parts);
    p.joint.width = (int)g.va_width;
    p.keys = (int *)(c.workspace + c.l.keys);
    p.draws = (int *)(c.workspace + c.l.draws);
    p.list_rest = (rest_mass *)(c.workspace + c.l.rest);
    p.max_draws = g.heavy_keys;
    run(COUNT, 1, 1);
    if (!met(p.tile_count, (size_t)g.batch * sizeof(i64), p.tile_counts)) return e;
    if (g.by_scores) {
        const i64 enough = 4 * (i64)c.card.multiprocessors / (g.batch * g.heads),
                  most = ceil_div(g.blocks, CHOOSE / 32);
        run(MASK, enough < 1 ? 1 : enough < most ? enough : most, g.heads);
        p.proxy = nullptr;                          /* it has done its part */
        p.stash_type = SANTA_STASH_F32;
        p.samples = (int)g.heavy_keys;
        if (e != cudaSuccess || (e = launch_choice(c)) != cudaSuccess || c.has_failed) return e;
    }
    if (e == cudaSuccess)
        e = cudaMemsetAsync(v.bits, 0, (size_t)(items * g.words) * sizeof(unsigned), c.stream);
    run(MARK, 8, g.kv_heads);
    if (!met(p.tile_count + g.batch, (size_t)items * sizeof(i64), p.tile_counts + g.ranks * g.batch))
        return e;
    const i64 room = 2 * (i64)c.card.multiprocessors / items, most = ceil_div(g.keys, 8 * CHOOSE),
              ctas = room < 1 ? 1 : room < most ? room : most;
    for (v.pass = 0;; v.pass++) {
        if (e == cudaSuccess)
            e = cudaMemsetAsync(p.joint.first, 0xff, (size_t)(items * g.words) * 32 * sizeof(unsigned),
                                c.stream);
        if (e == cudaSuccess) e = cudaMemsetAsync(p.joint.bins, 0, 2 * size, c.stream);
        run(WORDS, ctas, g.kv_heads);
        run(STEPS, ctas, g.kv_heads);
        if (!met(p.joint.bins, size, p.joint.all_bins)) return e;
        run(UNITS, ctas, g.kv_heads);
        if (!met(p.joint.bins + items * WORD_BINS, size, p.joint.all_bins + g.ranks * items * WORD_BINS))
            return e;
        run(SLICES, PICK_SLICES, g.kv_heads);
        run(PICK, PICK_SLICES, g.kv_heads);
        if (e == cudaSuccess) e = launch_va_sums(c);
        if (v.pass) break;
        run(SUMS, 1, g.heads);
        if (!met(p.joint.told, (size_t)(g.batch * g.heads * 2 * g.va_width) * sizeof(float),
                 p.joint.all_told))
            return e;
        run(JOIN, 1, g.heads);
        const params own = p;                       /* k_va_budget sees two parts of a head, of all ranks */
        p.list_keys = 1 << 30;
        p.sinks = c.a->sinks;
        v.by_scores = 0;
        v.portions = 2;
        v.sums = p.joint.parts;
        v.rows = p.joint.rows;
        if (e == cudaSuccess)
            e = launch_large<k_va_budget>(c, grid_of({ g.kv_heads, g.batch, 1 }), CHOOSE,
                                          (size_t)g.shared_words * sizeof(unsigned), false);
        p = own;
    }
    run(RESULT, 1, g.heads);
    p = whole;
    return e;
}

cudaError_t launch_va(call &c) {
    params &p = c.p;
    const geometry &g = c.g;
    va_params &v = p.va;
    const i64 rows = g.batch * g.heads, items = g.batch * g.kv_heads;
    p.raw = 1;
    p.list_keys = (int)g.list_keys;
    p.spreads = (float *)(c.workspace + c.l.spreads);
    v.candidates = (u64 *)(c.workspace + c.l.candidates);
    v.heads_done = (unsigned *)p.arrived + 4 * rows;
    v.bits = v.heads_done + whole_fours((size_t)items);
    v.taken = (unsigned *)(c.workspace + c.l.taken);
    v.listed = g.shared_words ? v.taken : v.bits;
    v.list = (int *)(c.workspace + c.l.list);
    v.rows = (va_row *)(c.workspace + c.l.va_rows);
    v.heads = (va_head *)(c.workspace + c.l.va_heads);
    v.sums = p.partial = (float *)(c.workspace + c.l.sums);
    p.list = v.list;
    p.list_batch = g.kv_heads * v.list_pitch;
    p.list_pitch = v.list_pitch;
    p.list_heads = (int)g.group;
    p.list_most = (int)v.list_pitch;
    p.splits = v.portions;
    p.arrivals = 4 * rows + (i64)whole_fours((size_t)items) + items * g.words;
    cudaError_t e = cudaSuccess;
    if (g.by_copy)
        e = p.copy.bits == 4 && p.copy.chunks == 4 ? launch_proxy_scores<4>(c) : launch_proxy_scores<0>(c);
    else if (g.by_scores) e = launch_pass(c);
    if (e != cudaSuccess) return e;
    const size_t shared = (size_t)g.shared_words * sizeof(unsigned);
    /* half as many keys of a CTA where all of them fit at once even so */
    const i64 halves = ceil_div(g.keys, CHOOSE_KEYS / 2);
    v.choose_keys = rows * halves <= 2 * (i64)c.card.multiprocessors ? CHOOSE_KEYS / 2 : CHOOSE_KEYS;
    const extent choose = { g.by_scores ? ceil_div(g.keys, v.choose_keys) : 1,
                            g.by_scores ? g.heads : g.kv_heads, g.batch };
    if (p.ranks) return launch_va_ranks(c);
    e = launch_large<k_va_choose>(c, grid_of(choose), CHOOSE, g.by_scores ? 8 * CHOOSE_ROOM : 0,
                                  g.by_scores);
    if (e != cudaSuccess) return e;
    /* a row's list is shared by CTAs that each have a set of its own */
    const i64 room = c.card.multiprocessors / items,
              parts = !g.shared_words || room < 1 ? 1 : room < FILL_PARTS ? room : (i64)FILL_PARTS;
    e = launch_large<k_va_fill>(c, grid_of({ parts, g.kv_heads, g.batch }), CHOOSE, shared, true);
    if (e != cudaSuccess) return e;
    for (v.pass = 0; v.pass < 2; v.pass++) {
        e = launch_va_sums(c);
        if (e == cudaSuccess && v.pass == 0)
            e = launch_large<k_va_budget>(c, grid_of({ g.kv_heads, g.batch, 1 }), CHOOSE, shared, true);
        if (e != cudaSuccess) return e;
    }
    return launch<k_va_result>(c, grid_of(g.combine), CHOOSE, 0, true);
}

/* k_va_budget has counted. */
cudaError_t count_nothing(const call &) { return cudaSuccess; }

const pipeline pipelines[] = {
    { bit(SANTA_DENSE), SANTA_SCORES_EXACT, false, measure_exact, arrange_exact, launch_exact, count_rows },
    { bit(SANTA_DENSE), SANTA_SCORES_EXACT, true, measure_listed, arrange_exact, launch_listed,
      count_listed },
    { bit(SANTA_IID) | bit(SANTA_STRAT) | bit(SANTA_SYS) | bit(SANTA_PROP), SANTA_SCORES_EXACT, false,
      measure_sampled<measure_comb>, arrange_sampled, launch_sampled<comb>, count_rows },
    { bit(SANTA_FLASH), SANTA_SCORES_EXACT, false, measure_sampled<measure_flash>, arrange_sampled,
      launch_sampled<flash>, count_rows },
    { bit(SANTA_SAMPLE_ATTENTION), SANTA_SCORES_EXACT, false, measure_sparse, arrange_sparse, launch_sparse,
      count_rows },
    { bit(SANTA_PPS), SANTA_SCORES_EXACT, false, measure_pps, arrange_pps, launch_pps, count_drawn_rows },
    { bit(SANTA_SYS) | bit(SANTA_PROP) | bit(SANTA_PPS), SANTA_SCORES_PROXY, false, measure_proxy,
      arrange_proxy, launch_proxy, count_drawn_rows },
    { bit(SANTA_TOP_K) | bit(SANTA_TOP_P), SANTA_SCORES_EXACT, false, measure_selected, arrange_selected,
      launch_selected, count_rows },
    { bit(SANTA_TOP_K) | bit(SANTA_TOP_P), SANTA_SCORES_PROXY, false, measure_selected, arrange_selected,
      launch_selected, count_drawn_rows },
    { bit(SANTA_VATTENTION), SANTA_SCORES_EXACT, false, measure_va, arrange_va, launch_va, count_nothing },
    { bit(SANTA_VATTENTION), SANTA_SCORES_PROXY, false, measure_va, arrange_va, launch_va, count_nothing },
    { bit(SANTA_SAAP), SANTA_SCORES_EXACT, false, measure_routed, arrange_routed, launch_routed,
      count_routed },
    { bit(SANTA_SAAP), SANTA_SCORES_PROXY, false, measure_routed, arrange_routed, launch_routed,
      count_routed },
};

/* Whether no row can have as many keys as dense_below asks for. */
bool all_short(const santa_problem &problem) { return keys_seen(problem) < problem.o.dense_below; }
/* Whether each row has so many, as far as the host knows: lengths on the card may be any. */
bool none_short(const santa_problem &problem, i64 below) {
    const santa_attention &a = problem.a;
    const i64 first = problem.capacity - (a.causal ? problem.q_len - 1 : 0);
    const bool alike = !a.seq_lens && !a.context_lens && !a.kv_start;
    return below <= 0 || (alike && first >= below && (a.window <= 0 || a.window >= below));
}

const pipeline *pipeline_for(santa_method method, santa_scores_method scores, bool lists) {
    for (const pipeline &row : pipelines)
        if (row.methods & bit(method) && row.scores == scores && row.lists == lists) return &row;
    return nullptr;
}

const pipeline *pipeline_of(const santa_problem &problem) {
    const pipeline *row = pipeline_for(problem.o.method, problem.o.scores, problem.a.key_list != nullptr);
    return row && all_short(problem) ? pipeline_for(SANTA_DENSE, SANTA_SCORES_EXACT, false) : row;
}

/* Whether the method's pipeline works over ranks: flash's tiles are of whole blocks, as lie
   here. */
bool meets_ranks(const santa_attention &a, const santa_options &o) {
    const unsigned copied = bit(SANTA_SYS) | bit(SANTA_PROP) | bit(SANTA_PPS),
                   exact = copied | bit(SANTA_DENSE) | bit(SANTA_IID) | bit(SANTA_STRAT) | bit(SANTA_TOP_K)
                         | bit(SANTA_TOP_P),
                   either = copied | bit(SANTA_TOP_K) | bit(SANTA_VATTENTION);
    return ((o.scores == SANTA_SCORES_PROXY ? either : exact | either) & bit(o.method)) != 0
        || (o.method == SANTA_FLASH && o.tile_size >= BLOCK && a.first_key % BLOCK == 0);
}

/* What SANTA_NONE becomes: nothing is above it. */
bool is_off(double limit) { return limit >= 1e300; }
float limit_of(double limit) { return limit > FLT_MAX ? INFINITY : (float)limit; }

/* What a rank tells of its results. */
santa_status measure_ranks(const santa_problem *problem, geometry *g) {
    const santa_method method = problem->o.method;
    const bool adapts = method == SANTA_VATTENTION,
               selects = method == SANTA_TOP_K || method == SANTA_TOP_P || adapts;
    const bool draws = method != SANTA_DENSE && method != SANTA_PPS && !selects;
    const i64 sets = !draws ? 0 : problem->o.num_combs > 1 ? problem->o.num_combs
                   : method == SANTA_IID ? 1 : 2;
    if (problem->a.std_error && sets) g->error_doubles = 2 + sets * g->dv;
    if (g->error_doubles > INT32_MAX / 4) return SANTA_ERR_BACKEND_SIZE;
    const santa_proxy_options *const proxy = &problem->o.proxy;
    if (g->copy.bits && !selects && !is_off(proxy->rescue_above))
        g->rank_keys = proxy->rescue_keys < 0 ? 0 : proxy->rescue_keys > INT32_MAX ? INT32_MAX
                                                                                : proxy->rescue_keys;
    g->has_sure = method == SANTA_PPS && !g->copy.bits;
    g->has_lse = selects;
    i64 best = problem->o.num_samples;              /* SANTA_AUTO: depends on how many keys there are */
    if (adapts) best = !g->by_scores ? 0 : problem->o.vattention.heavy_tokens;
    g->by_bins = method == SANTA_TOP_P || best < 0
              || (selects && (adapts || !g->copy.bits) && best > RANK_BEST);
    if (selects && !g->by_bins) g->rank_keys = best;
    if (adapts) {
        g->va_width = 4 + (problem->o.vattention.guarantee == SANTA_GUARANTEE_FULL ? g->dv : 0);
        g->heavy_keys = g->by_bins || best > g->keys ? g->keys : best;
    }
    if (g->rank_keys > INT32_MAX) return SANTA_ERR_BACKEND_SIZE;
    const i64 floats = g->dv + 1 + (g->has_sure ? g->dv + 2 : 0) + g->has_lse;
    g->errors_at = g->part_floats = g->results * floats;
    if (g->error_doubles) g->errors_at += g->errors_at % 2;           /* a gap, which decode_part fills */
    if (g->error_doubles) g->part_floats = g->errors_at + 2 * g->results * g->error_doubles;
    return SANTA_OK;
}

/* The sizes of a problem whose method has a pipeline, and whether they are within the
   limits. */
santa_status geometry_of(const pipeline &row, const santa_problem *problem, geometry *g) {
    memset(g, 0, sizeof *g);
    g->unit_shift = 6;
    g->batch = problem->batch;
    g->q_len = problem->q_len;
    g->heads = problem->heads;
    g->all_heads = g->heads;
    g->kv_heads = problem->kv_heads;
    g->group = problem->group;
    g->d = problem->head_dim;
    g->dv = problem->head_dim_v;
    g->keys = problem->capacity;
    /* the last block ends within int */
    if (g->keys > INT32_MAX - (BLOCK - 1)) return SANTA_ERR_BACKEND_TOO_LONG;
    if (g->batch > 65535 || g->heads > 65535) return SANTA_ERR_BACKEND_SIZE;
    if (g->d > INT32_MAX || g->dv > INT32_MAX) return SANTA_ERR_BACKEND_SIZE;
    /* from here on no product leaves int64 */
    g->blocks = ceil_div(g->keys, BLOCK);
    g->columns = ceil_div(g->dv, 256);
    g->stats = { g->kv_heads, g->batch, 1 };
    g->ranks = problem->o.ranks.count > 1 ? problem->o.ranks.count : 0;
    g->results = g->q_len > INT32_MAX / (g->batch * g->heads) ? INT64_MAX : g->batch * g->q_len * g->heads;
    if (g->ranks && g->results > INT32_MAX) return SANTA_ERR_BACKEND_SIZE;
    g->q_parts = parts_of_q(problem->a, g->d, g->group);
    g->has_digits = is_blocks_type(problem->a.k.dtype) && g->d <= BLOCK_DIM && g->d % 64 == 0;
    const santa_status s = row.measure(problem, g);
    g->weighs = g->together || g->list_portions;
    g->keeps_lse = problem->a.std_error && !problem->a.lse && (g->weighs || g->buckets);
    if (s == SANTA_OK && g->ranks) return measure_ranks(problem, g);
    const i64 below = problem->o.dense_below;
    if (s != SANTA_OK || all_short(*problem) || none_short(*problem, below)) return s;
    const i64 most = below < g->keys ? below : g->keys;
    const santa_status dense = measure_dense(problem, most, false, g);
    g->short_splits = g->dense_splits[SMALLER];
    return dense;
}

layout layout_of(const pipeline &row, const geometry &g, santa_stash stash) {
    layout l;
    memset(&l, 0, sizeof l);
    row.arrange(g, stash, &l);
    l.short_partial = add_part(&l, saturating((size_t)(g.batch * g.heads), (size_t)g.short_splits),
                               ((size_t)g.dv + 2) * sizeof(float));
    l.kept_lse = add_part(&l, g.keeps_lse ? saturating((size_t)(g.batch * g.heads), (size_t)g.q_len) : 0,
                          sizeof(float));
    const size_t slices = (size_t)(g.batch * g.kv_heads * ceil_div(g.group, slice_heads_of(g)));
    l.q_unscale = add_part(&l, g.has_digits ? slices * PASS_HEADS : g.q_parts ? slices : 0, sizeof(float));
    l.q_slots = add_part(&l, g.has_digits || g.q_parts ? slices : 0,
                         g.has_digits ? (size_t)(digit_sets_of(g.group) * PASS_HEADS * BLOCK_DIM)
                                      : (size_t)(PASS_HEADS * g.d) * 2);
    if (!g.ranks) return l;
    const size_t rows = (size_t)(g.batch * g.heads), ranks = (size_t)g.ranks,
                 floats = (size_t)g.part_floats;
    const size_t copies = g.copy.bits && !g.has_lse ? rows : 0,
                 keys = saturating(rows, (size_t)g.rank_keys);
    const size_t tiles = g.tiles ? rows : 0, doubles = tiles ? 8 : copies ? 5 : g.by_bins ? 3 : 2,
                 bins = g.by_bins ? rows : 0,
                 items = g.va_width ? (size_t)(g.batch * g.kv_heads) : 0,
                 counts = g.tiles ? rows : items ? (size_t)g.batch + items : (size_t)(g.batch * g.teams);
    l.rank_mass = add_part(&l, rows, doubles * sizeof(double));
    l.rank_masses = add_part(&l, saturating(rows, ranks), doubles * sizeof(double));
    l.tile_list = add_part(&l, saturating(tiles, (size_t)g.tiles), sizeof(int));
    l.tile_count = add_part(&l, counts, sizeof(i64));
    l.tile_counts = add_part(&l, saturating(counts, ranks), sizeof(i64));
    l.tiles_met = add_part(&l, tiles, sizeof(tiles_of_ranks));
    l.rank_bins = add_part(&l, 4 * bins, sizeof(bins_of_rank));
    l.all_bins = add_part(&l, saturating(bins, ranks), sizeof(bins_of_rank));
    l.choices = add_part(&l, 5 * bins, sizeof(choice_of_ranks));
    l.wants = add_part(&l, bins, sizeof(int));
    l.rank_copies = add_part(&l, saturating(copies, ranks), 5 * sizeof(double));
    l.rank_best = add_part(&l, keys, sizeof(float));
    l.rank_bests = add_part(&l, saturating(keys, ranks), sizeof(float));
    l.rank_drawn = add_part(&l, copies, sizeof(float4));
    l.rank_drawns = add_part(&l, saturating(copies, ranks), sizeof(float4));
    l.rank_again = add_part(&l, copies ? (size_t)g.results : 0, 1);
    l.va_plans = add_part(&l, items, sizeof(pick_plan));
    l.va_slices = add_part(&l, items, PICK_SLICES * sizeof(slice_keys));
    l.va_all = add_part(&l, items, sizeof(va_row));
    l.va_first = add_part(&l, saturating(items, 32 * (size_t)g.words), sizeof(unsigned));
    l.va_bins = add_part(&l, 2 * items, WORD_BINS * sizeof(unsigned));
    l.va_all_bins = add_part(&l, saturating(2 * items, ranks), WORD_BINS * sizeof(unsigned));
    l.va_told = add_part(&l, saturating(rows, 2 * (size_t)g.va_width), sizeof(float));
    l.va_all_told = add_part(&l, saturating(saturating(rows, ranks), 2 * (size_t)g.va_width),
                             sizeof(float));
    l.va_parts = add_part(&l, items ? 2 * rows : 0, ((size_t)g.dv + 4) * sizeof(float));
    l.part = add_part(&l, floats, sizeof(float));
    l.parts = add_part(&l, saturating(floats, ranks), sizeof(float));
    return l;
}

/* A call does its items in up to three parts, which have all KV heads of so many sequences, or
   some of one; a call without a range is one part. A part is a problem of its own: its tensors
   and arrays are views of the caller's. What remembers the caller's sizes are the last fields
   of params. */
struct item_part { i64 sequence, sequences, kv_head, kv_heads; };
struct item_parts { item_part part[3]; int count; };

item_parts parts_of(const santa_problem &problem) {
    const i64 all = problem.kv_heads, end = problem.o.item_end;
    item_parts x = {};
    for (i64 at = problem.o.item_begin; at < end;) {
        const i64 first = at % all, left = end - at, whole = first ? 0 : left / all;
        item_part &y = x.part[x.count++];
        y = { at / all, whole ? whole : 1, first, left < all - first ? left : all - first };
        at += y.sequences * y.kv_heads;
    }
    return x;
}

/* What is not there may have any stride. */
template <typename T> void move_on(T *&p, i64 n, i64 stride = 1) { if (p) p += n * stride; }

/* Heads from `head` on, and sequences, unless they are pages. */
void view_part(santa_tensor *t, const item_part &x, i64 group, bool paged) {
    i64 s[4];
    if (!t->data) return;
    byte_strides(t, s);
    t->data = (char *)t->data + (paged ? 0 : x.sequence * s[0]) + x.kv_head * group * s[2];
    t->shape[2] = x.kv_heads * group;
    if (!paged) t->shape[0] = x.sequences;
}

/* Rows of a router for each KV head; its index, which has a slot for each sequence or is given
   them. */
void route_part(const santa_problem &whole, const item_part &x, santa_buckets *r) {
    const i64 d = whole.head_dim, size = size_of(r->dtype), kv = x.kv_head,
              slots = r->num_slots ? r->num_slots : whole.batch;
    params p;
    fill_index(&whole.a, whole.batch, whole.capacity, &p);
    const auto rows = [&](const void *&at, i64 n) { if (at) at = (const char *)at + kv * n * size; };
    rows(r->centroids, r->num_buckets * d);
    rows(r->w1, r->hidden * d);
    rows(r->w2, r->num_buckets * r->hidden);
    move_on(r->b1, kv * r->hidden);
    move_on(r->b2, kv * r->num_buckets);
    r->index = (int *)r->index + ((r->slots ? 0 : x.sequence * whole.kv_heads) + kv) * p.index_ints;
    r->num_slots = r->slots ? slots : slots - x.sequence;
    move_on(r->slots, x.sequence);
    view_part(&r->q, x, whole.group, false);
}

void make_part(const santa_problem &whole, const item_part &x, santa_problem *part, santa_buckets *router) {
    santa_attention &a = part->a;
    santa_options &o = part->o;
    const i64 b = x.sequence, kv = x.kv_head, head = kv * whole.group, row = b * whole.heads + head,
              result = b * whole.q_len * whole.heads + head;
    const bool paged = whole.a.block_table != nullptr;
    *part = whole;
    o.item_begin = 0;
    o.item_end = x.sequences * x.kv_heads;
    if (o.item_end == whole.batch * whole.kv_heads) return;
    part->batch = x.sequences;
    part->kv_heads = x.kv_heads;
    part->heads = x.kv_heads * whole.group;
    for (santa_tensor *t : { &a.q, &a.out }) view_part(t, x, whole.group, false);
    for (santa_tensor *t : { &a.k, &a.v, &a.k_scales, &a.v_scales }) view_part(t, x, 1, paged);
    move_on(a.lse, result);
    move_on(a.std_error, result);
    for (const int32_t **at : { &a.seq_lens, &a.context_lens, &a.kv_start, &a.proxy_lens }) move_on(*at, b);
    for (const uint64_t **at : { &o.seeds, &o.offsets, &o.request_ids }) move_on(*at, b);
    move_on(a.block_table, b, a.block_table_stride);
    move_on(a.sinks, head);
    move_on(a.alibi_slopes, head);
    const i64 list = b * (a.key_list_rows ? whole.q_len : 1) * whole.kv_heads + kv;
    move_on(a.key_list, list, a.key_list_stride);
    move_on(a.key_weights, list, a.key_list_stride);
    move_on(a.key_list_lens, list);
    if (a.proxy && o.scores == SANTA_SCORES_PROXY) {
        const copy_shape copy = copy_shape_of(&whole.a);
        a.proxy = (char *)a.proxy + ((paged ? 0 : b * whole.kv_heads) + kv) * copy.blocks * copy.bytes;
    }
    move_on(o.vattention.heavy_index, result, o.vattention.heavy_stride);
    move_on(o.vattention.audit, result);
    santa_sample_attention_options &sparse = o.sample_attention;
    geometry g = {};
    if (o.method == SANTA_SAMPLE_ATTENTION) size_masks(sparse.block_size, whole.q_len, whole.capacity, &g);
    move_on(sparse.mask, row * g.q_blocks * g.k_blocks);
    move_on(sparse.mask_out, row * g.q_blocks * g.k_blocks);
    move_on(sparse.audit, row);
    move_on(sparse.row_mass, result);
    if (o.method != SANTA_SAAP) return;
    *router = *a.buckets;
    a.buckets = router;
    route_part(whole, x, router);
}

santa_status part_fits(const pipeline &row, const santa_problem *problem) {
    const santa_attention *a = &problem->a;
    geometry g;
    const santa_status s = geometry_of(row, problem, &g);
    if (s != SANTA_OK) return s;
    if (g.k_blocks && is_scaled(a)) return SANTA_ERR_BACKEND_ROW_SCALES;
    if (g.k_blocks && !suits_tiles(a)) return SANTA_ERR_BACKEND_SPARSE;
    return layout_of(row, g, problem->o.stash).total > (size_t)PTRDIFF_MAX / 2 ? SANTA_ERR_OVERFLOW
                                                                              : SANTA_OK;
}

bool router_lies_on_numbers(const santa_buckets *r) {
    const uintptr_t weights = (uintptr_t)r->centroids | (uintptr_t)r->w1 | (uintptr_t)r->w2,
                    floats = (uintptr_t)r->b1 | (uintptr_t)r->b2;
    return weights % (uintptr_t)size_of(r->dtype) == 0 && floats % sizeof(float) == 0
        && (!r->q.data || lies_on_numbers(&r->q));
}

santa_status check(const santa_problem *problem) {
    const santa_attention *a = &problem->a;
    const santa_options *o = &problem->o;
    const pipeline *row = pipeline_of(*problem);
    if (!row) return SANTA_ERR_BACKEND_SCORES;
    if (o->method == SANTA_SAMPLE_ATTENTION && (is_coded(a->k.dtype) || is_coded(a->v.dtype)))
        return SANTA_ERR_BACKEND_DTYPE;
    if (a->first_tokens && (a->key_list || o->dense_below)) return SANTA_ERR_BACKEND_FIRST_TOKENS;
    if (o->ranks.count > 1 && !meets_ranks(*a, *o)) return SANTA_ERR_BACKEND_RANKS;
    if (o->method == SANTA_VATTENTION && o->vattention.heavy) return SANTA_ERR_BACKEND_HEAVY;
    for (const santa_tensor *t : { &a->q, &a->k, &a->v, &a->out, &a->k_scales, &a->v_scales })
        if (!lies_on_numbers(t)) return SANTA_ERR_BACKEND_ALIGNMENT;
    if (o->scores == SANTA_SCORES_PROXY && (uintptr_t)a->proxy % 16) return SANTA_ERR_BACKEND_ALIGNMENT;
    if (o->method == SANTA_SAAP && (uintptr_t)a->buckets->index % 4) return SANTA_ERR_BUCKETS_INDEX;
    if (o->method == SANTA_SAAP && !router_lies_on_numbers(a->buckets)) return SANTA_ERR_BACKEND_ALIGNMENT;
    const item_parts parts = parts_of(*problem);
    santa_problem part;
    santa_buckets router;
    santa_status s = SANTA_OK;
    for (int i = 0; i < parts.count && s == SANTA_OK; i++) {
        make_part(*problem, parts.part[i], &part, &router);
        s = part_fits(*row, &part);
    }
    return s;
}

/* Of several parts: mean_sum's. */
size_t means_bytes(const item_parts &parts) { return parts.count > 1 ? 256 : 0; }

size_t workspace_size(const santa_problem *problem) {
    geometry g;
    const pipeline *row = pipeline_of(*problem);
    const item_parts parts = parts_of(*problem);
    santa_problem part;
    santa_buckets router;
    size_t most = 0;
    if (!row) return 0;
    for (int i = 0; i < parts.count; i++) {
        make_part(*problem, parts.part[i], &part, &router);
        if (geometry_of(*row, &part, &g) != SANTA_OK) return 0;
        const size_t total = layout_of(*row, g, problem->o.stash).total;
        if (g.ranks) most += total;                 /* all are there until the last exchange is done */
        else if (most < total) most = total;
    }
    return most + means_bytes(parts) + 255;
}

/* Anything the GPU can reach; a host pointer is the usual mistake. */
santa_status check_pointer(const void *p) {
    cudaPointerAttributes at = {};
    cudaError_t e = cudaPointerGetAttributes(&at, p);
    if (e != cudaSuccess) { cudaGetLastError(); return cuda_status(e); }
    if (at.type == cudaMemoryTypeUnregistered) return SANTA_ERR_HOST_POINTER;
    /* of another device, which this one does not reach */
    return at.devicePointer ? SANTA_OK : SANTA_ERR_DEVICE_MISMATCH;
}

santa_status read_device(device *card) {
    const struct { cudaDeviceAttr name; int *value;
    } wanted[] = { { cudaDevAttrMultiProcessorCount, &card->multiprocessors },
                   { cudaDevAttrComputeCapabilityMajor, &card->major },
                   { cudaDevAttrL2CacheSize, &card->l2 },
                   { cudaDevAttrMaxSharedMemoryPerBlockOptin, &card->shared } };
    int id = 0;
    cudaError_t e = cudaGetDevice(&id);
    for (const auto &w : wanted) if (e == cudaSuccess) e = cudaDeviceGetAttribute(w.value, w.name, id);
    return cuda_status(e);
}

/* What is needed beside it with a copy of K; counts of SANTA_NONE are 0. */
void fill_proxy(const santa_attention *a, const santa_proxy_options *o, const copy_shape &copy, params *p) {
    const auto tokens = [](i64 n) { return n < 0 ? 0 : n > INT32_MAX ? INT32_MAX : (int)n; };
    fill_rotation(a->k.shape[3], p);
    const float step = copy.bits == 4 ? 0.3352f : 0.9957f;
    p->proxy = (char *)a->proxy;
    p->copy = copy;
    p->proxy_lens = (const int *)a->proxy_lens;
    p->sink_tokens = tokens(o->sink_tokens);
    p->local_tokens = tokens(o->local_tokens);
    p->noise = (float)((copy.bits == 4 ? 0.0115 : 0.119) / ((double)step * (double)step));
    p->rescue_above = limit_of(o->rescue_above);
    p->exact_above = limit_of(o->exact_above);
    p->rescue_keys = tokens(o->rescue_keys);
}

void fill_va(const santa_vattention_options *o, const geometry &g, va_params *v) {
    const auto tokens = [](i64 n) { return n < 0 ? -1 : n > INT32_MAX ? INT32_MAX : (int)n; };
    v->sink_tokens = tokens(o->sink_tokens);
    v->local_tokens = tokens(o->local_tokens);
    v->heavy_tokens = tokens(o->heavy_tokens);
    v->base_samples = tokens(o->base_samples);
    v->by_scores = g.by_scores;
    v->by_copy = g.by_copy;
    v->full = o->guarantee == SANTA_GUARANTEE_FULL;
    v->bound = o->bound;
    v->epsilon = o->epsilon;
    v->delta = o->delta;
    v->z = o->bound == SANTA_BOUND_CLT ? -santa_normal_quantile(0.5 * o->delta)
                                       : sqrt(2.0 * log(2.0 / o->delta));
    v->index = (const int *)o->heavy_index;
    v->index_stride = o->heavy_stride;
    v->audit = o->audit;
    v->most_candidates = (int)g.candidates;
    v->words = (int)g.words;
    v->shared_words = (int)g.shared_words;
    v->portions = (int)g.list_portions;
    v->list_pitch = g.list_portions * g.list_keys;
}

/* What is needed beside it with keys in buckets. */
void fill_routed(const santa_problem *problem, const geometry &g, params *p) {
    const auto tokens = [](i64 n) { return n < 0 ? 0 : n > INT32_MAX ? INT32_MAX : (int)n; };
    const santa_saap_options &o = problem->o.saap;
    fill_index(&problem->a, g.batch, g.keys, p);
    p->sink_tokens = tokens(o.sink_tokens);
    p->local_tokens = tokens(o.local_tokens);
    p->num_probes = tokens(o.num_probes);
    p->uniform_share = o.uniform_share;
}

/* What the kernels need to know of a problem. */
void fill_problem(const santa_problem *problem, const geometry &g, params *p) {
    const santa_attention *a = &problem->a;
    const santa_options *o = &problem->o;
    p->q = (const char *)a->q.data;
    p->k = (const char *)a->k.data;
    p->v = (const char *)a->v.data;
    p->out = (char *)a->out.data;
    p->lse = a->lse;
    p->q_type = a->q.dtype; p->k_type = a->k.dtype; p->v_type = a->v.dtype; p->out_type = a->out.dtype;
    byte_strides(&a->q, p->q_stride);
    byte_strides(&a->k, p->k_stride);
    byte_strides(&a->v, p->v_stride);
    byte_strides(&a->out, p->out_stride);
    p->k_row = (int)p->k_stride[1];
    p->v_row = (int)p->v_stride[1];
    /* token-major: heads are closer than tokens */
    p->heads_inner = llabs(p->k_stride[2]) < llabs(p->k_stride[1]);
    p->vector_q = vectors(&a->q) && a->q.dtype != SANTA_F32;
    p->vector_v = vectors(&a->v);
    p->any_vector_k = vectors(&a->k) && g.d % 8 == 0;
    p->k_size = (int)size_of(a->k.dtype); p->v_size = (int)size_of(a->v.dtype);
    fill_scales(&a->k_scales, &p->k_scales);
    fill_scales(&a->v_scales, &p->v_scales);

    p->kv_heads = g.kv_heads;
    p->all_heads = p->lse_heads = (int)g.all_heads;
    p->all_kv_heads = g.all_heads / g.group;
    p->batch = (int)g.batch; p->q_len = (int)problem->q_len;
    p->heads = (int)g.heads; p->group = (int)g.group;
    p->d = (int)g.d; p->dv = (int)g.dv;
    p->capacity = (int)g.keys; p->blocks = (int)g.blocks; p->splits = (int)g.splits;
    p->seq_lens = (const int *)a->seq_lens;
    p->context_lens = (const int *)a->context_lens;
    p->kv_start = (const int *)a->kv_start;
    p->first_key = a->context_lens ? (int)a->first_key : 0;
    p->table = (const int *)a->block_table;
    p->table_stride = a->block_table_stride;
    p->pages = a->k.shape[0] > INT32_MAX ? INT32_MAX : (int)a->k.shape[0];
    if (p->table) p->by_page = divide_by((unsigned)a->k.shape[1]);
    p->eights = !p->table || a->k.shape[1] % 8 == 0;
    p->sixteens = !p->table || a->k.shape[1] % 16 == 0;

    p->scale = problem->scale; p->v_scale = problem->v_scale;
    p->causal = a->causal; p->window = a->window; p->soft_cap = a->soft_cap;
    p->per_cap = a->soft_cap > 0.0f ? 1.0 / (double)a->soft_cap : 0.0;
    p->quick_per_cap = (float)fmin(p->per_cap, (double)FLT_MAX);
    p->first_tokens = a->first_tokens; p->first_window = a->first_tokens ? a->window : 0;
    p->sinks = a->sinks; p->slopes = a->alibi_slopes;
    p->method = o->method; p->stash_type = o->stash;
    p->seed = o->seed; p->offset = o->offset;
    p->seeds = (const u64 *)o->seeds;
    p->offsets = (const u64 *)o->offsets;
    p->ids = (const u64 *)o->request_ids;
    p->samples = (int)g.samples;
    p->top_p = o->top_p;
    p->per_sample = g.samples ? 1.0 / (double)g.samples : 0.0;
    p->flash_blocks = (int)g.flash_blocks;
    p->unit_shift = g.unit_shift;
    p->max_draws = g.draws;
    p->combs = g.combs > 1 ? (int)g.combs : 1;
    p->each = p->samples / p->combs;
    p->portions = (int)g.portions;
    p->rows = 1;
    p->slice_heads = PASS_HEADS;
    /* sample-attention that does not look at blocks is dense, and counts as such */
    const i64 below = o->method == SANTA_SAMPLE_ATTENTION && !g.k_blocks ? INT64_MAX : o->dense_below;
    p->dense_below = none_short(*problem, below) ? 0 : below > g.keys ? (int)g.keys + 1 : (int)below;
    p->is_short = p->dense_below && !g.short_splits;
    if (o->scores == SANTA_SCORES_PROXY) fill_proxy(a, &o->proxy, g.copy, p);
    if (o->method == SANTA_SAMPLE_ATTENTION) fill_sparse(o->sample_attention, g, p);
    if (o->method == SANTA_VATTENTION) fill_va(&o->vattention, g, &p->va);
    if (o->method == SANTA_SAAP) fill_routed(problem, g, p);
    if (!a->key_list) return;
    const i64 lists = p->all_kv_heads * (a->key_list_rows ? problem->q_len : 1);
    p->list_heads = (int)g.list_heads;
    p->list_most = (int)a->max_list;
    p->list_pitch = a->key_list_stride;
    p->list_batch = lists * p->list_pitch;
    p->lens_batch = lists;
}

/* A call, but for its geometry and layout. */
santa_status prepare(const santa_problem *problem, void *workspace, call *c) {
    const santa_attention *a = &problem->a;
    params &p = c->p;
    c->a = a;
    fill_problem(problem, c->g, &p);
    c->list = (const int *)a->key_list;
    c->list_lens = (const int *)a->key_list_lens;
    c->list_weights = a->key_weights;
    c->listed_row = a->key_list_rows != 0;
    c->workspace = (char *)(((uintptr_t)workspace + 255) / 256 * 256);
    c->place_row(0);
    c->stream = (cudaStream_t)problem->o.stream;
    c->cores = vectors(&a->k) && p.d <= 256 && whole_pieces(p.k_type, p.d);
    c->streams = suits_rings(&a->k, p.d) && p.k_row == p.k_stride[1];
    c->tiles = suits_tiles(a) && !is_scaled(a);
    return read_device(&c->card);
}

santa_status decode_part(const santa_problem *problem, const santa_problem &whole_call, const item_part &at,
                         void *workspace, santa_stats *stats, i64 *means, call &c);

santa_status decode(const santa_problem *problem, void *workspace, size_t workspace_bytes,
                    santa_stats *stats) {
    const santa_attention *a = &problem->a;
    const santa_options *o = &problem->o;
    santa_status s;
    if (!pipeline_of(*problem)) return SANTA_ERR_BACKEND_SCORES;      /* santa_decode has run check */
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < workspace_size(problem)) return SANTA_ERR_WORKSPACE_SIZE;
    const bool proxied = o->scores == SANTA_SCORES_PROXY, adapts = o->method == SANTA_VATTENTION;
    const santa_sample_attention_options *sparse
        = o->method == SANTA_SAMPLE_ATTENTION ? &o->sample_attention : nullptr;
    const void *const needed[] = { a->q.data, a->k.data, a->v.data, a->out.data, workspace };
    const void *const others[] = { a->lse, a->std_error, stats, a->seq_lens, a->block_table, a->sinks,
                                   a->alibi_slopes, a->k_scales.data, a->v_scales.data,
                                   a->context_lens, a->kv_start, o->seeds, o->offsets, o->request_ids,
                                   proxied ? a->proxy : nullptr, proxied ? a->proxy_lens : nullptr,
                                   sparse ? sparse->mask : nullptr, sparse ? sparse->mask_out : nullptr,
                                   sparse ? sparse->audit : nullptr, sparse ? sparse->row_mass : nullptr,
                                   a->key_list, a->key_list_lens, a->key_weights,
                                   adapts ? o->vattention.heavy_index : nullptr,
                                   adapts ? o->vattention.audit : nullptr };
    const santa_buckets *const router = o->method == SANTA_SAAP ? a->buckets : nullptr;
    const void *const routed[] = { router ? router->centroids : nullptr, router ? router->index : nullptr,
                                   router ? router->slots : nullptr, router ? router->q.data : nullptr,
                                   router && router->hidden ? router->w1 : nullptr,
                                   router && router->hidden ? router->b1 : nullptr,
                                   router && router->hidden ? router->w2 : nullptr,
                                   router && router->hidden ? router->b2 : nullptr };
    for (const void *at : needed) if ((s = check_pointer(at)) != SANTA_OK) return s;
    for (const void *at : others) if (at && (s = check_pointer(at)) != SANTA_OK) return s;
    for (const void *at : routed) if (at && (s = check_pointer(at)) != SANTA_OK) return s;

    const item_parts parts = parts_of(*problem);
    const size_t room = means_bytes(parts);
    char *at = (char *)(((uintptr_t)workspace + 255) / 256 * 256);
    i64 *const means = room ? (i64 *)at : nullptr;
    const cudaStream_t stream = (cudaStream_t)o->stream;
    cudaError_t e = cudaSuccess;
    if (stats) e = cudaMemsetAsync(stats, 0, sizeof *stats, stream);
    if (stats && means && e == cudaSuccess) e = cudaMemsetAsync(means, 0, room, stream);
    s = cuda_status(e);
    santa_problem part;
    santa_buckets part_router;
    call c[3];
    at += room;
    for (int i = 0; i < parts.count && s == SANTA_OK; i++) {
        make_part(*problem, parts.part[i], &part, &part_router);
        s = decode_part(&part, *problem, parts.part[i], at, stats, means, c[i]);
        if (c[i].g.ranks) at += c[i].l.total;
    }
    /* when nothing can fail to meet the others any more */
    for (int i = 0; i < parts.count && s == SANTA_OK && c[i].g.ranks; i++)
        s = cuda_status(launch<k_join_ranks>(c[i], dim3((unsigned)c[i].g.results), 128, 0, false));
    return s;
}

/* One part of a call, see make_part; over ranks c is ready for k_join_ranks. */
santa_status decode_part(const santa_problem *problem, const santa_problem &whole_call, const item_part &at,
                         void *workspace, santa_stats *stats, i64 *means, call &c) {
    const santa_attention *a = &problem->a;
    const santa_options *o = &problem->o;
    const pipeline *row = pipeline_of(*problem);
    memset((void *)&c, 0, sizeof c);
    params &p = c.p;
    santa_status s = geometry_of(*row, problem, &c.g);
    if (s != SANTA_OK) return s;
    c.g.all_heads = whole_call.heads;
    c.l = layout_of(*row, c.g, o->stash);
    if ((s = prepare(problem, workspace, &c)) != SANTA_OK) return s;
    p.first_sequence = (int)at.sequence;
    p.first_head = (int)(at.kv_head * c.g.group);
    p.means = means;
    p.stats = stats;
    p.std_error = a->std_error;
    if (c.g.keeps_lse) {
        p.lse = (float *)(c.workspace + c.l.kept_lse);
        p.lse_heads = (int)c.g.heads;
    }
    if ((stats || a->std_error) && c.g.draws) {
        p.keys = (int *)(c.workspace + c.l.keys);
        p.draws = (int *)(c.workspace + c.l.draws);
        if (c.g.weights) p.weights = (float *)(c.workspace + c.l.weights);
    }
    const params whole = p;
    float *const part = (float *)(c.workspace + c.l.part);
    if (c.g.ranks) {
        c.ranks = &o->ranks;
        p.ranks = (int)c.g.ranks;
        p.rank = (int)o->ranks.rank;
        p.rank_mass = (double *)(c.workspace + c.l.rank_mass);
        p.rank_masses = (double *)(c.workspace + c.l.rank_masses);
        p.mass_doubles = 2;
        if (c.g.copy.bits && !c.g.has_lse) p.rank_again = (unsigned char *)(c.workspace + c.l.rank_again);
        p.out = (char *)part;
        p.out_type = SANTA_F32;
        const i64 stride[4] = { p.q_len * c.g.heads * p.dv, c.g.heads * p.dv, p.dv, 1 };
        for (int i = 0; i < 4; i++) p.out_stride[i] = 4 * stride[i];
        p.lse = part + c.g.results * p.dv;
        p.lse_heads = (int)c.g.heads;
        p.error_doubles = c.g.error_doubles;
        p.errors = (double *)(part + c.g.errors_at);
        if (c.g.error_doubles) {
            float *const gap = part + c.g.errors_at - 1;              /* or a number, written later */
            s = cuda_status(cudaMemsetAsync(gap, 0, sizeof *gap, c.stream));
            if (s != SANTA_OK) return s;
        }
        p.sure = c.g.has_sure ? p.lse + c.g.results : nullptr;
        p.rank_lse = c.g.has_lse ? p.lse + c.g.results : nullptr;
        p.wanted = o->method == SANTA_TOP_P ? o->top_p : (double)o->num_samples;
        if (o->method == SANTA_DENSE || c.g.has_lse) p.sinks = nullptr;  /* it counts once */
    }
    for (p.q_index = 0; p.q_index < p.q_len; p.q_index += c.rows_done) {
        c.rows_done = 1;
        cudaError_t e = row->launch(c);
        if (e == cudaSuccess && c.has_failed) return SANTA_ERR_RANKS_EXCHANGE;
        if (e == cudaSuccess && c.g.short_splits) e = launch_short(c);
        if (e == cudaSuccess && a->std_error && (!p.ranks || p.error_doubles)) e = launch_errors(c);
        if (e == cudaSuccess && stats) e = row->count(c);
        if (e != cudaSuccess) return cuda_status(e);
    }
    if (!c.g.ranks) return SANTA_OK;
    p = whole;
    p.ranks = (int)c.g.ranks;
    p.rows_in_all = c.g.results;
    p.sure = c.g.has_sure ? part : nullptr;         /* of each rank in p.parts */
    p.rank_lse = c.g.has_lse ? part : nullptr;      /* likewise */
    if (c.g.copy.bits && !c.g.has_lse) p.rank_again = (unsigned char *)(c.workspace + c.l.rank_again);
    p.part_floats = c.g.part_floats;
    p.errors_at = c.g.errors_at;
    p.error_doubles = c.g.error_doubles;
    p.parts = (float *)(c.workspace + c.l.parts);
    return c.gather(part, (size_t)c.g.part_floats * sizeof *part, (void *)p.parts)
         ? SANTA_OK : SANTA_ERR_RANKS_EXCHANGE;
}

/* santa_proxy_encode and santa_proxy_append; santa.h has checked the shapes. */
santa_status proxy_encode(const santa_attention *a, int64_t from, int64_t to, void *stream) {
    const copy_shape copy = copy_shape_of(a);
    const bool paged = a->block_table != nullptr;
    const i64 batch = paged ? a->q.shape[0] : a->k.shape[0], kv_heads = a->k.shape[2],
              capacity = paged ? a->max_pages * a->k.shape[1] : a->k.shape[1];
    if (capacity > INT32_MAX - (BLOCK - 1)) return SANTA_ERR_BACKEND_TOO_LONG;
    if (batch > 65535 || kv_heads > 65535 || a->k.shape[3] > COPY_DIM) return SANTA_ERR_BACKEND_SIZE;
    if (!lies_on_numbers(&a->k) || !lies_on_numbers(&a->k_scales) || (uintptr_t)a->proxy % 16)
        return SANTA_ERR_BACKEND_ALIGNMENT;
    santa_status s;
    for (const void *at : { (const void *)a->k.data, (const void *)a->k_scales.data,
                            (const void *)a->proxy, (const void *)a->seq_lens,
                            (const void *)a->block_table })
        if (at && (s = check_pointer(at)) != SANTA_OK) return s;
    /* blocks that may end in the range; which ones do, the device sees */
    const i64 all = capacity / copy.keys, last = to < capacity ? to / copy.keys : all,
              count = from < 0 ? ceil_div(from < -capacity ? capacity : -from, copy.keys)
              : last - from / copy.keys;
    const i64 grid = count < all ? count : all;
    if (grid <= 0) return SANTA_OK;
    call c;
    memset((void *)&c, 0, sizeof c);
    params &p = c.p;
    p.k = (const char *)a->k.data;
    p.k_type = a->k.dtype;
    byte_strides(&a->k, p.k_stride);
    p.any_vector_k = vectors(&a->k);
    fill_scales(&a->k_scales, &p.k_scales);
    p.d = (int)a->k.shape[3];
    p.capacity = (int)capacity;
    p.seq_lens = (const int *)a->seq_lens;
    p.table = (const int *)a->block_table;
    p.table_stride = a->block_table_stride ? a->block_table_stride : a->max_pages;
    p.pages = a->k.shape[0] > INT32_MAX ? INT32_MAX : (int)a->k.shape[0];
    if (paged) p.by_page = divide_by((unsigned)a->k.shape[1]);
    p.kv_heads = p.all_kv_heads = kv_heads;
    fill_rotation(p.d, &p);
    p.proxy = (char *)a->proxy;
    p.copy = copy;
    p.from = from;
    p.to = to;
    c.stream = (cudaStream_t)stream;
    if (p.any_vector_k && p.k_type != SANTA_F32 && p.d % 32 == 0 && p.d <= ENCODE_DIM
        && !p.k_scales.data) {
        const i64 blocks = ENCODE_WARPS / (copy.keys > 16 ? copy.keys / 16 : 1);
        return cuda_status(launch<k_encode_cores>(c, grid_of({ ceil_div(grid, blocks), kv_heads, batch }),
                                                  32 * ENCODE_WARPS, 0, false));
    }
    const size_t words = (size_t)copy.keys * (size_t)(p.d / 8 + 1) * sizeof(unsigned);
    return cuda_status(launch<k_encode>(c, grid_of({ grid, kv_heads, batch }), 256, words, false));
}

/* santa_buckets_assign; santa.h has checked the shapes. */
santa_status buckets_assign(const santa_attention *a, const santa_tensor *keys, int64_t from,
                            void *stream) {
    const santa_buckets *r = a->buckets;
    const bool paged = a->block_table != nullptr;
    const i64 batch = paged ? a->q.shape[0] : a->k.shape[0], kv_heads = a->k.shape[2],
              capacity = paged ? a->max_pages * a->k.shape[1] : a->k.shape[1], d = a->k.shape[3];
    if (is_coded(keys->dtype)) return SANTA_ERR_BACKEND_DTYPE;
    if (capacity > INT32_MAX - (BLOCK - 1)) return SANTA_ERR_BACKEND_TOO_LONG;
    if (batch > 65535 || kv_heads > 65535 || d > ROUTE_DIM) return SANTA_ERR_BACKEND_SIZE;
    if ((uintptr_t)keys->data % (uintptr_t)size_of(keys->dtype)
        || (uintptr_t)r->centroids % (uintptr_t)size_of(r->dtype))
        return SANTA_ERR_BACKEND_ALIGNMENT;
    if ((uintptr_t)r->index % 4) return SANTA_ERR_BUCKETS_INDEX;
    santa_status s;
    for (const void *at : { (const void *)keys->data, r->centroids, (const void *)r->index,
                            (const void *)a->seq_lens, (const void *)r->slots })
        if (at && (s = check_pointer(at)) != SANTA_OK) return s;
    call c;
    memset((void *)&c, 0, sizeof c);
    params &p = c.p;
    if ((s = read_device(&c.card)) != SANTA_OK) return s;
    c.stream = (cudaStream_t)stream;
    p.batch = (int)batch;
    p.kv_heads = p.all_kv_heads = kv_heads;
    p.capacity = (int)capacity;
    p.seq_lens = (const int *)a->seq_lens;
    fill_index(a, batch, capacity, &p);
    p.new_count = keys->shape[1];
    p.new_from = from;
    row_product &x = p.product;
    fill_rows(r, r->centroids, nullptr, r->num_buckets, d, STEP_NEAREST, &x);
    fill_vectors(keys, p.new_count < INT32_MAX ? p.new_count : INT32_MAX, 1, &x);
    /* few new keys: each centroid is read once, and what a CTA finds goes to the index's
       scratch */
    const bool few = p.new_count <= NEW_FEW && 2 * rows_tiles(x) * p.new_count <= r->num_buckets;
    cudaError_t e;
    if (few) {
        p.new_tiles = (int)rows_tiles(x);
        e = launch_rows(c, false);
    } else {
        const bool cores = x.vector_x && x.vector_rows && x.x_type == x.row_type && x.row_bytes == 2
                        && d <= NEAREST_DIM;
        const i64 most = p.new_count < capacity ? p.new_count : capacity,
                  each = cores ? (i64)NEAREST_KEYS : (i64)PLAIN_NEAR_KEYS;
        const dim3 grid = grid_of({ most > each ? ceil_div(most, each) : 1, kv_heads, batch });
        e = cores ? launch<k_nearest>(c, grid, 256, 0, false)
                  : launch_large<k_nearest_plain>(c, grid, 256, (size_t)plain_nearest_bytes((int)d), false);
    }
    const i64 ranges = 512 / (batch * kv_heads), least = ceil_div(r->num_buckets, INDEX_BUCKETS);
    i64 ctas = ranges < 4 ? 4 : ranges > 32 ? 32 : ranges;
    if (ctas > r->num_buckets) ctas = r->num_buckets;
    if (ctas < least) ctas = least;
    if (e == cudaSuccess)
        e = launch<k_index>(c, grid_of({ ctas, kv_heads, batch }), 32 * INDEX_WARPS, 0, true);
    return cuda_status(e);
}

const santa_backend backend = { "cuda", check, workspace_size, decode, proxy_encode, buckets_assign };

/* Runs before main in any program that links this file. */
struct at_start { at_start() { santa_register_backend(SANTA_CUDA, &backend); } } registered;

/* ---------------------------------------------------------------------------------- >>steps */

/* Scores are those that top-k leaves behind. */
santa_status scores_problem(const santa_attention *a, const santa_options *o, santa_problem *problem) {
    if (!a || !o) return SANTA_ERR_NULL_ARGUMENT;
    santa_attention exact = *a;
    santa_options x = {};
    x.method = SANTA_TOP_K;
    x.num_samples = 1;
    x.stream = o->stream;
    exact.std_error = nullptr;
    if (o->scores != SANTA_SCORES_EXACT) return SANTA_ERR_BACKEND_SCORES;
    if (a->key_list) return SANTA_ERR_KEY_LIST_METHOD;
    if (o->ranks.count > 1) return SANTA_ERR_RANKS_METHOD;
    if (a->q.device != SANTA_CUDA) return SANTA_ERR_DEVICE;
    santa_status s = santa_problem_make(a, o, problem);             /* options that play no part, too */
    if (s == SANTA_OK && santa_unused_option(o)) s = SANTA_ERR_OPTION_UNUSED;
    if (s == SANTA_OK) s = santa_problem_make(&exact, &x, problem);
    return s == SANTA_OK ? check(problem) : s;
}

/* A problem of which nothing but the scores is there: all heads are one KV head's, V is one
   row. */
santa_status sample_problem(i64 batch, i64 heads, i64 n, const santa_options *o, santa_problem *problem) {
    enum { DIM = 4 };
    if (!o) return SANTA_ERR_NULL_ARGUMENT;
    santa_attention a = {};
    santa_options x = *o;
    const unsigned drawing = bit(SANTA_IID) | bit(SANTA_STRAT) | bit(SANTA_SYS) | bit(SANTA_PROP)
                           | bit(SANTA_FLASH) | bit(SANTA_TOP_K) | bit(SANTA_TOP_P);
    if ((unsigned)x.method >= (unsigned)SANTA_METHOD_COUNT || !(drawing & bit(x.method)))
        return SANTA_ERR_METHOD;
    if (x.ranks.count > 1) return SANTA_ERR_RANKS_METHOD;
    if (batch < 1 || heads < 1 || n < 1) return SANTA_ERR_SHAPE;
    if (n > INT32_MAX - (BLOCK - 1)) return SANTA_ERR_BACKEND_TOO_LONG;
    if (batch > 65535 || heads > 65535) return SANTA_ERR_BACKEND_SIZE;
    x.scores = SANTA_SCORES_EXACT;                  /* what only other scores read may be set */
    santa_clear_unused_options(&x);
    x.dense_below = x.item_begin = x.item_end = 0;
    a.q = a.out = santa_view(nullptr, SANTA_F32, batch, 1, heads, DIM);
    a.k = a.v = santa_view(nullptr, SANTA_F32, batch, n, 1, DIM);
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
    for (int i = 0; i < 3; i++) a.k.stride[i] = a.v.stride[i] = 0;
    const santa_status s = santa_problem_make(&a, &x, problem);
    if (s != SANTA_OK) return s;
    if (santa_unused_option(o)) return SANTA_ERR_OPTION_UNUSED;
    if (x.method == SANTA_FLASH) problem->a.std_error = (float *)problem;   /* weights */
    return SANTA_OK;
}

/* Its sizes; *extra: where in a workspace V's row is, with the results that nobody wants behind
   it. */
santa_status sample_layout(const santa_problem &problem, call *c, size_t *extra) {
    const pipeline *row = pipeline_of(problem);
    memset((void *)c, 0, sizeof *c);
    const santa_status s = geometry_of(*row, &problem, &c->g);
    if (s != SANTA_OK) return s;
    c->l = layout_of(*row, c->g, problem.o.stash);
    *extra = add_part(&c->l, (size_t)(c->g.batch * c->g.heads + 1), 4 * sizeof(float));
    return c->l.total > (size_t)PTRDIFF_MAX / 2 ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

santa_status check_pointers(std::initializer_list<const void *> all) {
    santa_status s = SANTA_OK;
    for (const void *at : all) if (s == SANTA_OK && at) s = check_pointer(at);
    return s;
}

}  /* namespace */

using namespace santa_gpu;

extern "C" size_t santa_cuda_scores_workspace_size(const santa_attention *a, const santa_options *o) {
    santa_problem problem;
    return scores_problem(a, o, &problem) == SANTA_OK ? workspace_size(&problem) : 0;
}

extern "C" santa_status santa_cuda_scores(const santa_attention *a, const santa_options *o, int64_t q_index,
                                          float *scores, int64_t scores_stride, void *workspace,
                                          size_t workspace_bytes) {
    santa_problem problem;
    call c;
    santa_status s = scores_problem(a, o, &problem);
    if (s != SANTA_OK) return s;
    if (!scores) return SANTA_ERR_NULL_ARGUMENT;
    for (const santa_tensor *t : { &a->q, &a->k }) if (!t->data) return SANTA_ERR_NULL_DATA;
    if (q_index < 0 || q_index >= problem.q_len) return SANTA_ERR_INDEX;
    if (scores_stride < problem.capacity) return SANTA_ERR_CAPACITY;
    if (overflows(problem.batch * problem.heads, scores_stride)) return SANTA_ERR_OVERFLOW;
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < workspace_size(&problem)) return SANTA_ERR_WORKSPACE_SIZE;
    s = check_pointers({ a->q.data, a->k.data, a->k_scales.data, a->seq_lens, a->kv_start,
                         a->context_lens, a->block_table, a->alibi_slopes, scores, workspace });
    if (s != SANTA_OK) return s;
    memset((void *)&c, 0, sizeof c);
    const pipeline *row = pipeline_of(problem);
    if ((s = geometry_of(*row, &problem, &c.g)) != SANTA_OK) return s;
    c.l = layout_of(*row, c.g, problem.o.stash);
    if ((s = prepare(&problem, workspace, &c)) != SANTA_OK) return s;
    c.p.q_index = (int)q_index;
    c.p.raw = 1;
    c.p.step.scores = scores;
    c.p.step.stride = scores_stride;
    cudaError_t e = launch_pass(c);
    if (e == cudaSuccess)
        e = launch<k_step_scores>(c, grid_of({ ceil_div(c.g.keys, 256), c.g.heads, c.g.batch }), 256, 0,
                                  false);
    return cuda_status(e);
}

extern "C" int64_t santa_cuda_sample_capacity(int64_t n, const santa_options *o) {
    santa_problem problem;
    call c;
    size_t extra;
    return sample_problem(1, 1, n, o, &problem) == SANTA_OK
        && sample_layout(problem, &c, &extra) == SANTA_OK ? c.g.draws : 0;
}

extern "C" size_t santa_cuda_sample_workspace_size(int64_t batch, int64_t heads, int64_t n,
                                                   const santa_options *o) {
    santa_problem problem;
    call c;
    size_t extra;
    return sample_problem(batch, heads, n, o, &problem) == SANTA_OK
        && sample_layout(problem, &c, &extra) == SANTA_OK ? c.l.total + 255 : 0;
}

extern "C" santa_status santa_cuda_sample(const float *scores, int64_t scores_stride, int64_t batch,
                                          int64_t heads, int64_t n, int64_t q_index,
                                          const santa_options *o, const santa_cuda_draws *draws,
                                          void *workspace, size_t workspace_bytes) {
    santa_problem problem;
    call c;
    params &p = c.p;
    size_t extra;
    santa_status s = sample_problem(batch, heads, n, o, &problem);
    if (s != SANTA_OK || (s = sample_layout(problem, &c, &extra)) != SANTA_OK) return s;
    if (!scores || !draws || !draws->index || !draws->weight || !draws->rows)
        return SANTA_ERR_NULL_ARGUMENT;
    if (q_index < 0 || q_index > INT32_MAX) return SANTA_ERR_INDEX;
    if (draws->capacity < c.g.draws || scores_stride < n) return SANTA_ERR_CAPACITY;
    if (overflows(batch * heads, scores_stride) || overflows(batch * heads, draws->capacity))
        return SANTA_ERR_OVERFLOW;
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < c.l.total + 255) return SANTA_ERR_WORKSPACE_SIZE;
    s = check_pointers({ scores, draws->index, draws->weight, draws->rows, draws->lse, o->seeds, o->offsets,
                         o->request_ids, workspace });
    if (s != SANTA_OK || (s = prepare(&problem, workspace, &c)) != SANTA_OK) return s;
    const bool selects = problem.o.method == SANTA_TOP_K || problem.o.method == SANTA_TOP_P;
    p.q_index = (int)q_index;
    p.v = c.workspace + extra;
    p.out = c.workspace + extra + 4 * sizeof(float);
    p.out_stride[1] = 0;
    p.keys = (int *)(c.workspace + c.l.keys);
    p.draws = (int *)(c.workspace + c.l.draws);
    p.weights = c.g.weights ? (float *)(c.workspace + c.l.weights) : nullptr;
    p.arrivals = p.portions > 1 ? c.g.batch * c.g.heads * c.g.columns : 0;
    /* its index counts query rows, of which there is one */
    if (draws->lse) p.lse = (float *)((uintptr_t)draws->lse - (uintptr_t)(q_index * heads) * sizeof(float));
    p.raw = selects;
    p.list_rest = selects ? (rest_mass *)(c.workspace + c.l.rest) : nullptr;
    p.step.scores = scores;
    p.step.stride = scores_stride;
    p.step.index = draws->index;
    p.step.weight = draws->weight;
    p.step.rows = draws->rows;
    p.step.lse = draws->lse;
    p.step.capacity = draws->capacity;
    cudaError_t e = cudaMemsetAsync((void *)p.v, 0, 4 * sizeof(float), c.stream);
    if (e == cudaSuccess)
        e = launch<k_step_masses>(c, grid_of({ ceil_div(c.g.blocks, SCORE_WARPS),
                                               ceil_div(heads, PASS_HEADS), batch }),
                                  SCORE_WARPS * 32, 0, false);
    if (e == cudaSuccess)
        e = selects ? launch_top(c)
          : problem.o.method == SANTA_FLASH ? launch_draws<flash>(c) : launch_draws<comb>(c);
    if (e == cudaSuccess)
        e = launch<k_step_draws>(c, grid_of({ c.g.heads, c.g.batch, 1 }), PORTION, 0, false);
    return cuda_status(e);
}

extern "C" santa_status santa_cuda_gather(const santa_attention *a, const santa_cuda_draws *draws,
                                          float *out, void *stream) {
    santa_problem problem;
    santa_options o = {};
    call c;
    if (!a || !draws || !draws->index || !draws->weight || !draws->rows || !out)
        return SANTA_ERR_NULL_ARGUMENT;
    if (draws->capacity < 1) return SANTA_ERR_CAPACITY;
    santa_attention dense = *a;
    dense.std_error = nullptr;
    dense.key_list = nullptr;
    dense.key_weights = nullptr;
    o.stream = stream;
    if (a->v.device != SANTA_CUDA) return SANTA_ERR_DEVICE;
    santa_status s = santa_problem_make(&dense, &o, &problem);
    if (s != SANTA_OK || (s = check(&problem)) != SANTA_OK) return s;
    if (overflows(problem.batch * problem.heads, draws->capacity)) return SANTA_ERR_OVERFLOW;
    if (!a->v.data) return SANTA_ERR_NULL_DATA;
    s = check_pointers({ a->v.data, a->v_scales.data, a->seq_lens, a->kv_start, a->block_table,
                         draws->index, draws->weight, draws->rows, out });
    if (s != SANTA_OK) return s;
    memset((void *)&c, 0, sizeof c);
    if ((s = geometry_of(*pipeline_of(problem), &problem, &c.g)) != SANTA_OK) return s;
    fill_problem(&problem, c.g, &c.p);
    c.stream = (cudaStream_t)stream;
    c.p.step.index = draws->index;
    c.p.step.weight = draws->weight;
    c.p.step.rows = draws->rows;
    c.p.step.capacity = draws->capacity;
    c.p.step.out = out;
    return cuda_status(launch<k_step_gather>(c, grid_of(c.g.combine), 128, 0, false));
}

extern "C" santa_status santa_cuda_merge(int64_t rows, int64_t head_dim_v, float *out, float *lse,
                                         const float *other_out, const float *other_lse, void *stream) {
    call c;
    if (!out || !lse || !other_out || !other_lse) return SANTA_ERR_NULL_ARGUMENT;
    if (rows < 0 || head_dim_v < 1) return SANTA_ERR_SHAPE;
    if (rows > INT32_MAX || head_dim_v > INT32_MAX) return SANTA_ERR_BACKEND_SIZE;
    const santa_status s = check_pointers({ out, lse, other_out, other_lse });
    if (s != SANTA_OK || rows == 0) return s;
    memset((void *)&c, 0, sizeof c);
    c.stream = (cudaStream_t)stream;
    c.p.dv = (int)head_dim_v;
    c.p.step.out = out;
    c.p.step.lse = lse;
    c.p.step.other_out = other_out;
    c.p.step.other_lse = other_lse;
    return cuda_status(launch<k_step_merge>(c, dim3((unsigned)rows), 128, 0, false));
}

extern "C" santa_status santa_cuda_init(void) { return santa_register_backend(SANTA_CUDA, &backend); }

extern "C" int santa_cuda_error(santa_status s) {
    return (int)s >= (int)SANTA_ERR_CUDA ? (int)s - (int)SANTA_ERR_CUDA : 0;
}
