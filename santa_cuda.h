/* santa_cuda.h - v0.2.0 - the GPU side of santa.h - MIT or public domain, as santa.h

   Add santa_cuda.cu to the build and call santa_decode as on the CPU, with tensors whose
   .device is SANTA_CUDA:

       nvcc -O3 -gencode=arch=compute_90a,code=sm_90a -c santa_cuda.cu     (H100, H200)
       nvcc -O3 -arch=native -c santa_cuda.cu  (any of sm_80 .. sm_120; CUDA Toolkit 12 or later)
           (without -use_fast_math: soft caps become coarse, and numbers below 1.2e-38 zeros)
       a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;   o.stream = stream;
       santa_decode(&a, &o, device_workspace, bytes, NULL);

   WHAT LIVES WHERE    santa_attention and santa_options are host structs, read before the call
                       returns. Everything they point to is device memory: q, k, v, k_scales,
                       v_scales, out, lse, std_error, seq_lens, kv_start, context_lens,
                       block_table, sinks, alibi_slopes, seeds, offsets, request_ids, proxy,
                       proxy_lens, key_list, key_list_lens, key_weights, vattention's
                       heavy_index and audit, what buckets points to, and the workspace. The
                       current device is theirs, or one that reaches their memory. stats,
                       if not NULL, must be writable by the GPU (device, managed or pinned
                       memory) and is complete when the stream is.
   STREAM ORDER        A call only enqueues kernels on o.stream: no allocation, no
                       synchronisation, no read-back. It may be captured in a CUDA graph; with
                       seeds or offsets in device memory a replayed graph draws anew.
   METHODS             dense, iid, strat, sys, prop (sys runs as prop), flash, top-k, top-p,
                       vattention, pps, saap, sample-attention. Exact scores, and those from a
                       copy of K as on the CPU. The others have a status of their own.
                       std_error is a kernel more, which reads the drawn rows of v again, for
                       vattention and from a copy those of k, too, and there counts from out as
                       it was rounded. Scores are in base 2 inside: above 2.3e38 they are
                       infinite; so is a q . k above 3e38, which sm_scale meets after the
                       sum, not before it as on the CPU. num_threads, parallel_for and isa do
                       nothing here, but are checked as on the CPU.
   ITEM RANGES         As on the CPU: items of the range have the whole call's bits, the others
                       are not touched, nor are their inputs read. A range that begins or ends
                       within a sequence is up to three times the kernels, and over ranks the
                       exchanges, of a call: the heads of its first sequence, whole sequences,
                       heads of the last one.
   DENSE BELOW         The CPU's rule, row by row on the device; from a copy of K, too. Rows
                       that are not short cost two launches that do nothing. Where no row can
                       have as many keys, by k's capacity or the window, the call is dense's
                       alone. SANTA_AUTO is 16 * num_samples here as well: on an H200 flash with
                       a draw for 16 keys took 1 / 1.25 of dense's time, with one for 4 keys up
                       to 1.4 times as long.
   TYPES               k and v: f32, f16, bf16, e4m3 (with k_scale, v_scale), q8_0, e5m2 and
                       q4_0. q and out: f32, f16, bf16.
                       Fast: k of 16 bits or e4m3 (e5m2 up to 128, too) with adjacent features,
                       16-byte aligned rows, head_dim a multiple of 8 (of 8 bits: 16) up to 256,
                       with soft cap and ALiBi, too; f32 with such rows, head_dim a multiple of
                       4, from 128 on, groups of up to 8 heads. A q that k's type cannot hold
                       comes in parts: f32 in two of f16 or bf16 (16 bits; with groups of up to
                       two heads three, 24), which fill slots that groups of up to 4 heads leave
                       empty. A q of another type beside k of f16, and of f32 beside k of 8
                       bits, is rounded to about 2^-38 of the largest finite number that up to 8
                       heads of its group have: heads whose q differ by 1e9 and more do not go
                       together. Beside k of 8 bits a q of 16 bits is rounded so by itself, each
                       head. Larger groups take longer: of 8 heads, head_dim 128, dense 1.1
                       times reading k and v once, prop 1.2 times reading k, with a q in parts
                       1.5; of 16 more. q8_0 and q4_0, either in k or v: dense takes 1.9
                       and 3.2 times as long as reading them, prop 2.3 and 3.5 times as
                       long as reading k, where head_dim (of dense head_dim_v, too) is 64
                       or 128 and rows lie on 8 bytes, or on 4 if none is longer than 128
                       bytes. q is three digits of 8 bits then; a head of q that is not
                       finite is NaN. Dense and a caller's lists of more than 256 and up to
                       576 numbers a row (head_dim_v 512), multiples of 8, q, k and v all
                       of f16 or all of bf16: by tensor cores, 64 heads of a KV head
                       together, and k is read once where v lies in its rows, as MLA's
                       does; where v's rows begin with k's, code for sm_90a takes half the
                       time.
                       Everything else is right, and slow.
                       Data must be aligned to the size of a number, as CUDA demands;
                       santa_check says when it is not. What is fast and what is not are other
                       kernels, whose bits differ: rows of a stride that is no multiple of 16
                       bytes, for instance.
   SCALES OF ROWS      k_scales and v_scales go with all of these types, methods and steps, with
                       ranks, lists and santa_proxy_encode. Dense and scores of the fast types
                       take up to 1.5 times as long with them (dense of e4m3 of head_dim 64
                       twice). Lists, top-k, top-p, vattention and saap go by plain kernels
                       then. A copy of K is made by the slowest of its three kernels; draws
                       read a scale more for each row.
   LIMITS              Besides santa.h's, and tested by santa_check: 2^31 - 64 keys in a
                       sequence (max_pages * page_size with pages), of lists, top-p, vattention
                       and saap some 2^31 - 2^23, batch and heads up to 65535,
                       head_dim below 2^31, head_dim_v up to 8388480. Dense: kv_heads *
                       ceil(group / 8) * ceil(head_dim_v / 256) up to 65535, where group is
                       heads / kv_heads. Sampled: ceil(draws / 256) * ceil(head_dim_v / 256) up
                       to 65535, where flash may draw once per tile, and batch * kv_heads *
                       ceil(group / 8) * ceil(keys / 64) below 2^31 - 1, with ceil(group / 4)
                       where q is read in parts. pps: head_dim_v up to
                       256, and a group of up to 64 heads. saap: batch * heads / kv_heads up to
                       32 * 65535, head_dim up to 256, from a copy of K groups of up to 1,024.
                       vattention and all scores from a copy: head_dim and head_dim_v up to
                       256. Making one: head_dim up to 512.
   PREFILL             From 32 query rows on dense runs on tensor cores, K and V read once for
                       128 queries, with any types but k and v of f32, or of f16 and bf16 beside
                       each other or beside a q of the other: head_dim up to 256 (with an f32 q
                       128), soft_cap up to 1,024, no std_error, first_tokens or list. Tiles
                       take numbers of one type of 16 bits, q's, or for an f32 q k's or v's, or
                       f16. Weights are rounded to it before they meet V.
                       What is of that type, in 16-byte aligned rows with adjacent features,
                       head_dim and head_dim_v multiples of 8, is read where it lies. All else
                       is copied to such rows first, as are k and v in pages of no multiple of
                       32 keys from 1,024 query rows on: in the workspace, of as many KV heads
                       of sequences at a time as take 512 MB, or of one. Floats of 8 bits are
                       exact there. Blocks and what has scales are rounded to that type, which
                       makes numbers beyond its largest infinite. An f32 q is two numbers of it,
                       16 bits of bf16, at 3/8 of the speed, or 22 of f16, at 4/5, of up to
                       32,000 / (sqrt(head_dim) * sm_scale * k_scale), beyond which it may be
                       infinite.
                       A call of few rows, up to 8 tiles of 128 queries for a KV head, that sees
                       more than 2,048 keys shares these among 2 to 16 CTAs for each tile.
                       Of other calls, and of fewer rows, 16 / group rows share a pass over K
                       and V where the larger of head_dim and head_dim_v is up to 256 (of 8 bits
                       128, of e4m3 above 64), k and v are of one type of 16 or 8 bits and q of
                       16, in such rows, and there is no ALiBi, std_error or scale of a row, and
                       pages have a multiple of 8 keys: with groups of 4, four drafted tokens
                       take little more than one. Their sums may round otherwise than one by
                       one, by how many there are. All others take their rows one after the
                       other.
                       Sample-attention is as prefill (from 32 rows on, or with a mask, mask_out
                       or audit, all three of them device memory; row_mass not with an f32 q);
                       masks are the CPU's but for blocks whose mass is within rounding of the
                       last one kept. On an H100 or H200 compile with
                       -gencode=arch=compute_90a,code=sm_90a: head_dim up to 128 without soft
                       cap, ALiBi and an f32 q beside bf16 then runs 2.5 times as fast. A row's
                       bits depend on neither the other rows, the batch, pages nor chunks, but
                       on which of the two kernels it is and, of few rows and many keys, on how
                       many CTAs share these: by the call's query rows and the keys that they
                       see.
   STASH               Between its two kernels prop keeps exp(score - max of 64 keys) per key
                       and query head in the workspace: 32 bits, or 16 or 8 with options.stash,
                       for a smaller workspace at about the same speed. See the stash section of
                       santa.h. With q_len > 1 and K of 16 or 8 bits it has room for up to 8 /
                       group rows, of head_dim up to 128 (of e4m3 above 64, too) for 16 / group,
                       which share a pass over K, unless there is ALiBi, first_tokens, an f32 q
                       or pages of no multiple of 8 keys. From a copy of K it has room for 16 /
                       group rows of any call, up to groups of 8, and 8 heads of them share a
                       pass over the copy. Top-k, top-p and vattention choose and read the keys
                       of all rows of a pass at once, in a workspace for as many, but over ranks
                       of one row after the other.
   FIRST TOKENS        first_tokens beside a window work with the methods that the CPU has them
                       with, not with key_list and dense_below. Dense runs as a list of keys,
                       query rows one after the other, prefill, too; elsewhere it is a kernel
                       more behind the scores: scores of first tokens by plain loads, since they
                       are few. Written for 4 or 64 of them, not for thousands.
   LISTS OF KEYS       key_list works with dense. Fast as dense is, with q of any type, and with
                       soft cap and ALiBi, too; rows of up to 512 bytes. With a q of another
                       type than k's an infinite number of k gives NaN, even where its score is
                       -inf. Entries may be written by an earlier kernel of the stream;
                       max_list bounds the grid, key_list_lens the work.
   VATTENTION          All of its options but the predictor, a function of the host: heavy_index
                       has its answer. The sample and the budgets are decided on the device,
                       the workspace is that of the largest budget: for each key 4 bytes a KV
                       head and, at head_dim_v 128, 4 a query head; where heavy tokens are
                       taken by scores 5 more; of each query row of a pass. head_dim and
                       head_dim_v up to 256. Fast: k and v of the same type of 16 or 8 bits, as
                       lists of keys have it, with the denominator's guarantee; everything else
                       by plain loads. What it takes is a chain of barriers more than bytes: by
                       a copy of K, 2.5 % heavy and 2.5 % drawn, 96 us at 1 x 128k keys and 145
                       at 8 x 32k on an H200, where dense takes 142 and 265 (bench/ladder.md).
                       Two query rows take 141 and 262 us, four 214 and 478; dense of two takes
                       161 and 294, of four 166 and 302. A copy of K with a NaN costs much: all
                       keys of the KV head are scored by one CTA.
   STEPS               santa_scores, santa_sample, santa_gather and santa_merge have companions
                       below: one query row of all heads of a batch, device pointers, a stream.
   HOST MEMORY         k, v or both may be pinned host memory (cudaHostAlloc, cudaHostRegister),
                       their .device SANTA_CUDA all the same: kernels read what they need across
                       the bus. Methods that read few rows can live with that: V under prop, K
                       and V under prop with a copy of K on the card. examples/host_cache.cu
                       measures it; rows at random places of many GB come slower than the bus
                       could.
   RANKS               options.ranks on a GPU: all_gather gets device memory and only puts the
                       exchange on the stream (ncclAllGather), so that a call can be captured.
                       For the CPU's methods, flash by whole 64 keys. All sizes are known to the
                       host: a row of vattention has 8 exchanges with heavy tokens of the
                       caller, 9 with up to 2048 of them by scores, 12 with more, one of which
                       is at the end of the call; a KV head tells 4 * 4 kB of which keys are
                       drawn when. examples/sharded_nccl.cu has a thread or a process for each
                       GPU.
   TOP-K, TOP-P        Of the chosen keys K is read again, for each head. Top-k from a copy of K
                       is faster with a stash of 8 or 16 bits, which ranks keys by sixteenths of
                       an octave; top-p has none. A NaN in the copy gives NaN, and with such a
                       stash 64 keys whose largest score is beyond 69,300 do.
   COPY OF K           santa_proxy_encode and santa_proxy_append make it, from k of any type
                       here, on the stream and without waiting; its bytes are the CPU's but for
                       about one in 16,000, in blocks of 16 keys of 32 features one in 800: the
                       last bit of a block's scale, and numbers on the border of two codes (of
                       keys that are nearly equal many are: codes of their rounding, with gains
                       near 0); head_dim up to 512. With SANTA_SCORES_PROXY head_dim and
                       head_dim_v are at most 256, and the copy lies on 16 bytes. What differs
                       from the CPU: a head whose log weights are found to vary too much
                       (exact_above), or that has a NaN, or in a stash of bytes 64 keys whose
                       largest score is beyond 69,300, or less than 1e-30 of the mass that the
                       copy promised, is done again by exact attention, of all its keys and by a
                       few CTAs, has a std_error of 0 and draws nothing for stats. A rescue is a
                       chain of steps that holds the call up: on an H200, with every head
                       rescued, prop takes 58 us at 1 x 32k keys, not 27, 82 at 1 x 128k, not
                       46, and 124 at 8 x 32k, not 68, where exact attention takes 49, 140 and
                       264. Where that is too much, raise rescue_above. With a stash of 8 or 16
                       bits masses are kept in a byte each, in steps of a sixteenth of an octave
                       down to 2^-16 of the largest of 64 keys: other draws, as good, since each
                       is weighed with the chance that it had. Take it: it is the fastest. Of
                       the methods prop is the fastest. pps reads fewer rows, but takes longer.
   KEYS IN BUCKETS     santa_buckets_assign and SANTA_SAAP, head_dim at most 256: the same
                       buckets but where two centroids are as near to rounding, an index that
                       differs in scratch words alone, the same draws. std_error is taken from
                       out as it was rounded, and measure_mass reads all of K with stats alone.
                       Fast: new keys and centroids both f16 or both bf16, rows of 16-byte
                       pieces, head_dim at most 128; a router whose weights and q are bf16,
                       head_dim 32, 64 or 128, hidden a power of two from 32 to 1024. Keys enter
                       in stream order; every 64th makes the index anew.
   SAME DRAWS          Random numbers are the CPU's bits; scores round differently, so a draw
                       may fall on a neighbouring key, which is as good: with 512 keys about 1
                       in 100,000, with 128k 1 in 10,000. From a copy of K, with 2k keys, 8k
                       and 128k, 1 in 2,000, 900 and 220, of masses in bytes 1 in 1,300, 300
                       and 34, with pps two to three times as often (test/cuda counts them).
                       The same rounding decides between keys of top-k and top-p that are as
                       good as equal. vattention: rarely another heavy token or a budget that
                       is off by one.
   DATA                What the CPU checks before it starts is checked here where the host can
                       see it. On the device a seq_lens entry is clamped to what k can hold, and
                       a block_table entry outside k makes the rows that use it NaN, as do a
                       key_list entry past its sequence and a bad weight, a slot that is not
                       there and an index not begun for these sizes; a key_list_lens entry is
                       clamped to max_list. An infinite number of v that a row sees may show as
                       NaN, by what kernel reads it.
   ERRORS              Everything the host can see is checked before the first kernel. If a
                       launch itself fails in the middle of a call (a lost context, say), out
                       and stats may already be written.
   STATS               tiles and tiles_skipped stay 0 here. v_rows_read takes a slow kernel of
                       its own: a diagnostic. Of heads with a NaN redone_rows and the numbers of
                       an audit may be others than the CPU's.
   DETERMINISM         As on the CPU: no atomics on floats; bits depend on neither batch, page
                       size, grid nor card size, but for dense of 2 to 31 query rows on whether
                       pages have a multiple of 8 keys, see PREFILL.
*/
#ifndef SANTA_CUDA_H
#define SANTA_CUDA_H
#include "santa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registers the backend. Linking santa_cuda.o does it before main; call this if it sits in a
   static library, where an unreferenced object file would be left out. */
santa_status santa_cuda_init(void);

/* A CUDA failure comes back as SANTA_ERR_CUDA + cudaError_t. The code of such a status, 0 for
   any other. */
int santa_cuda_error(santa_status s);

/* The steps of santa.h for one query row of a whole batch. All arrays are device memory, f32
   and int32, contiguous where no stride is given; kernels are enqueued on o->stream or stream,
   as santa_decode does, and statuses are its own. Written for looking into a method, not for
   speed.

   Scores of query row q_index: scores[(batch * heads + head) * scores_stride + key], for all
   keys that a sequence of a->k has room for, which is what scores_stride is at least; after
   scale, soft cap and ALiBi, -inf for keys that are masked or not there. Exact scores alone. */
santa_status santa_cuda_scores(const santa_attention *a, const santa_options *o, int64_t q_index,
                               float *scores, int64_t scores_stride, void *workspace,
                               size_t workspace_bytes);
size_t       santa_cuda_scores_workspace_size(const santa_attention *a, const santa_options *o);

/* Of each head its draws: sum of weight[i] * v[index[i]], i < rows, is the estimate. Where
   santa_sample counts a row that was drawn twice, here are two entries. In ascending order but
   for iid. */
typedef struct santa_cuda_draws {
    int32_t *index;                /* [batch, heads, capacity] */
    float   *weight;               /* [batch, heads, capacity] */
    int32_t *rows;                 /* [batch, heads]: entries used */
    float   *lse;                  /* [batch, heads] or NULL: log of the sum of exp(score) */
    int64_t  capacity;             /* at least santa_cuda_sample_capacity */
} santa_cuda_draws;

/* The rows that santa_decode would draw with these options for query row q_index and these
   scores, n of each head, scores_stride apart. iid, strat, sys, prop, flash, top-k, top-p;
   another is ERR_METHOD. A head with NaN or +inf gives rows = 0 and lse NaN, one without mass
   rows = 0 and lse = -inf. */
santa_status santa_cuda_sample(const float *scores, int64_t scores_stride, int64_t batch, int64_t heads,
                               int64_t n, int64_t q_index, const santa_options *o,
                               const santa_cuda_draws *draws, void *workspace, size_t workspace_bytes);
int64_t      santa_cuda_sample_capacity(int64_t n, const santa_options *o);       /* 0 if not valid */
size_t       santa_cuda_sample_workspace_size(int64_t batch, int64_t heads, int64_t n,
                                              const santa_options *o);            /* 0 if not valid */

/* out[batch, heads, head_dim_v] = v_scale * sum of weight[i] * V[index[i]]. Entries may be
   yours: a key that the sequence does not have, or one before kv_start, makes its head NaN. lse
   is not looked at, a->out not written. */
santa_status santa_cuda_gather(const santa_attention *a, const santa_cuda_draws *draws, float *out,
                               void *stream);

/* As santa_merge: out is [rows, head_dim_v]. */
santa_status santa_cuda_merge(int64_t rows, int64_t head_dim_v, float *out, float *lse,
                              const float *other_out, const float *other_lse, void *stream);

#ifdef __cplusplus
}
#endif
#endif
