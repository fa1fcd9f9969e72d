/* santa.h - v0.2.0 - sampled sparse attention for C and C++ - MIT or public domain, see the end

   Decoding with a long context is memory-bound: each new token reads every key and every value.
   This file computes the exact scores and then *samples* a few V rows from the softmax: an
   unbiased estimate of attention that reads num_samples rows of V instead of all of them. Exact
   attention, top-k and top-p baselines, Bernoulli scores, vAttention's (epsilon, delta) budgets
   and keys in buckets (SAAP) come under the same call. CPU only, libc and libm only;
   santa_cuda.cu is the companion for GPUs.

   HOW TO USE          in exactly one C or C++ file:       #define SANTA_IMPLEMENTATION
                                                           #include "santa.h"
                       everywhere else:                    #include "santa.h"
                       compile with any flags; link libm:  cc -O2 prog.c -lm

   CONTENTS            search for the word with ">>" in front
     quickstart        a whole program
     when              when sampling pays and when it does not
     methods           what each method computes, reads and promises
     determinism       what is bit-identical, and what is not
     threads           how to use several cores
     memory            workspace, ownership, limits
     errors            status codes; NaN and infinity
     random            the random numbers, with known answers
     stash             in how many bits exp(score) is kept until the draw
     proxy             a copy of K in 4 or 2 bits to draw from: less than half of the bytes
     saap              keys in buckets, queries sent to buckets: a few percent of the keys
     prefill           many query rows at once
     sparse            sparse prefill: blocks of keys that a few sampled rows, or a mask, name
     lists             a caller's own keys for each KV head, with weights
     ranks             one context over several processes, hosts or GPUs
     recipes           left padding, MLA, drafts: by strides, tables and calls
     options           compile-time switches
     types             tensor view, attention, options, stats           (API from here)
     decode            the one call
     proxy-api         size and encoding of the copy of K
     buckets-api       k-means, and the index of keys by bucket
     steps             scores, sample, gather, merge
     budgets           vAttention's sample budgets, usable alone
     measures          variances, distinct rows, errors
     convert           f16, bf16, e4m3, e5m2, q8_0, q4_0
     implementation    the code (tags: base, kernels, kernels-scalar, -avx2, -avx512, -amx,
                       -neon, isa, problem-code, plan, rows, proxy-format, query, scores, mass,
                       draw, select, attend, encode, dense, sampled, sizes, proxied,
                       budgets-code, vattention, buckets, routed, listed, methods-code, run,
                       ranks-code, ranks-vattention, items, prefill-code, sparse-code, call,
                       buckets-code, steps-code, measures-code)
     kernels-body      the inner loops, once for all instruction sets
     history           and the licence text

   >>quickstart

     #define SANTA_IMPLEMENTATION
     #include "santa.h"
     #include <stdio.h>
     #include <stdlib.h>

     int main(void) {
         enum { n = 4096, heads = 8, kv_heads = 2, d = 64 };
         static float q[heads * d], k[n * kv_heads * d], v[n * kv_heads * d], out[heads * d];
         for (int i = 0; i < heads * d; i++) q[i] = (float)rand() / (float)RAND_MAX - 0.5f;
         for (int i = 0; i < n * kv_heads * d; i++) { k[i] = (float)(i % 7) * 0.1f; v[i] = (float)(i % 5); }

         santa_attention a = {0};                                  // what to attend to
         a.q   = santa_view(q,   SANTA_F32, 1, 1, heads, d);       // [batch, q_len, heads, head_dim]
         a.k   = santa_view(k,   SANTA_F32, 1, n, kv_heads, d);    // [batch, len, kv_heads, head_dim]
         a.v   = santa_view(v,   SANTA_F32, 1, n, kv_heads, d);
         a.out = santa_view(out, SANTA_F32, 1, 1, heads, d);

         santa_options o = {0};                                    // how: zero means the documented default
         o.method = SANTA_SYS;  o.num_samples = 128;  o.seed = 7;  o.offset = santa_offset(0, 0);

         size_t bytes = santa_workspace_size(&a, &o);
         void *workspace = malloc(bytes);
         santa_stats stats;
         santa_status s = santa_decode(&a, &o, workspace, bytes, &stats);
         if (s != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(s)); return 1; }
         printf("out[0] = %g, V rows read: %.2f %%\n", (double)out[0],
                100.0 * (double)stats.v_rows_read / (double)stats.keys);
         free(workspace);
         return 0;
     }

   >>when

   Exact attention reads n rows of K and n rows of V; a sampled method reads n rows of K and at
   most group * num_samples rows of V per KV head. So
   - the gain is at most 2x by bytes when head_dim_v == head_dim, and only when the context is
     long: with AVX-512 the gather costs as much as it saves up to n = 8 * num_samples (f32) or
     16 * num_samples (fewer bits). options.dense_below = SANTA_AUTO runs shorter rows dense;
   - it is a decode method. With many query rows (>>prefill) the union of the sampled rows tends
     to num_samples/(num_samples+1) of all rows under causal attention, and nothing is saved;
   - the error falls like 1/sqrt(num_samples) (iid) or faster (strat, sys), and is largest where
     attention is flat. Ask for std_error to see it (with num_combs = 4 for sys, prop and
     flash). Heads that look at few tokens are almost exact at 64 draws.
   - a copy of K in 4 bits (>>proxy) goes past 2x: it is read instead of K, 69 bytes a key at
     head_dim 128. It pays from some 4k keys on, and most where K and V have 16 bits or more.
   vAttention and Bernoulli also avoid reading all of K, but without an unbiased result; see
   methods.

   >>methods

   One query row and one head: scores s_j, p = softmax(s), prefix mass F_j = p_1 + .. + p_j, and
   S = num_samples.

   SANTA_DENSE       sum p_j v_j. Reads all of K and V. The default.
   SANTA_IID         S draws with replacement, averaged (paper section 2). Unbiased given the
                     scores; trace of the covariance = (sum p_j |v_j|^2 - |o|^2) / S (appendix
                     A.2).
   SANTA_STRAT       one draw in each of S strata of equal mass (section 2.1). Unbiased;
                     variance <= iid always.
   SANTA_SYS         one offset u for a comb of S equidistant thresholds (m + u)/S (section
                     2.1). Unbiased. Key j is drawn floor(S p_j) or ceil(S p_j) times. There is
                     NO theorem that the variance is below iid's: V rows that alternate in step
                     with the comb make it up to S times worse. On real attention it does like
                     strat. num_combs = R > 1 averages R combs of S/R thresholds with offsets of
                     their own: a little more error, and a std_error that is right for any V.
   SANTA_PROP        the same comb, cut at tile borders so that tiles can be drawn independently
                     (section 3.2). Returns the same rows as SANTA_SYS for the same seed and
                     offset, whatever tile_size is. (The paper rounds the tiles' budgets; a
                     rounding that depends on the scores alone makes the result biased, so here
                     the comb itself is cut.)
   SANTA_FLASH       each tile of tile_size keys draws its own S_t rows, and tiles are weighted
                     by their exact mass (section 3.3). S_t = floor(S (t+1)/T) - floor(S t/T)
                     for the t-th of the T tiles that have mass (largest score less than 87
                     below the row's), and at least 1, so when S < T there are T draws
                     (stats.draws says how many); of num_combs each comb so, with its share of
                     S. Unbiased. Needs about 16 times the draws of prop for the same error:
                     light tiles draw as much as heavy ones.
   SANTA_TOP_K       softmax over the num_samples highest scores; ties go to the lower index.
                     Biased. lse is that of all keys, of top-p, too: santa_merge weighs parts by
                     all that they hold.
   SANTA_TOP_P       softmax over the fewest highest scores whose mass reaches top_p. Biased.
                     The sum is rounded: at top_p = 1 keys of the last 1e-7 or so may be left
                     out.
   SANTA_VATTENTION  sink + local + heavy tokens exactly, the rest by a uniform sample without
                     replacement whose size comes from (epsilon, delta) (vAttention section 4).
                     A ratio of estimates: consistent, not unbiased. With
                     SANTA_GUARANTEE_DENOMINATOR only the softmax denominator carries the
                     guarantee; SANTA_GUARANTEE_FULL (Theorem 4.3) covers the output. Both rest
                     on the CLT or a sub-Gaussian tail AND on the spread seen in the base
                     sample: a heavy key that neither the predictor nor the base sample saw is
                     not covered, nor V rows whose sum nearly cancels, which the base sample may
                     take for a longer one. By the CLT, N(0, 1) scores and a base sample of 100,
                     the denominator missed epsilon in 1.1 delta of all calls with heavy tokens,
                     in 1.3 to 1.6 delta without. Where exp(s) has a heavy tail, as of scores
                     that spread by 2 and more, neither bound holds without heavy tokens: take
                     them where delta must hold. The sample also counts in the sums, and one
                     that happens to be flat asks for few more keys: that lowers the denominator
                     on average, by .3 to .8 % for scores N(0, 1), base_samples = 40, epsilon =
                     delta = .1. With SANTA_GUARANTEE_FULL and the CLT the
                     numerator is given a delta of .215 at most, as its bound on a vector's norm
                     does not hold above; the denominator has the rest. The heads of a group
                     read the same keys: what is predicted for one of them is exact for all, and
                     the sample is as large as the most demanding head asks (santa_audit.needed,
                     .budget). With a predictor no row is read twice; every head keeps its
                     promise; the errors of a group's heads are correlated. Heads whose
                     predictions agree read fewest rows.
   SANTA_PPS         sampling with probability proportional to size, without replacement, by one
                     comb for all heads h of a group (Madow 1949). Row j is drawn with
                     probability pi_j = min(1, S max_h p_hj) and counts p_hj / pi_j in head h:
                     unbiased (Horvitz and Thompson). The comb's teeth are 1 apart along the sum
                     of S max_h p_hj; a key is there if one of them is its. The sum of pi_j rows
                     are drawn, at most group * S, each once, and each head uses all of them: no
                     more rows than the heads' own combs draw, and far fewer where heads agree.
                     Keys with S p >= 1 are there surely. A head's weights add up to 1 on
                     average; where the sure keys hold a quarter of its mass, they take up what
                     is missing, without bias. A result may leave the range of V. As with sys,
                     no theorem bounds the variance for every order of V: of random groups one
                     head in three has more than by sys, up to three times; 5 % less on average.
   SANTA_SAAP        keys in buckets, queries sent to buckets by a classifier, see >>saap. Reads
                     sink and local tokens and some of the other keys, K and V alike: a few
                     whole buckets, and num_samples of their other keys, weighed by the chance
                     they had to be drawn (consistent, not unbiased); or buckets alone, as in
                     the paper (biased).
   SANTA_SAMPLE_ATTENTION  exact attention over the blocks of keys that a few sampled query rows
                     look at, or that a mask names, see >>sparse. For prefill. Biased.

   Scores, for any of the methods (options.scores):
   SANTA_SCORES_EXACT            q . k_j
   SANTA_SCORES_BERNOULLI_*
                     q replaced by the mean of bernoulli_draws random ternary vectors
                     (section 5, appendix C): unbiased scores from adds and subtracts; K
                     features that no draw picked are not read. The softmax of unbiased scores
                     is NOT unbiased. STRAT has error like 1/B, IID like 1/sqrt(B).
   SANTA_SCORES_GROUP_*
                     one set of draws for the whole group, from its mean |q| (appendix C.2):
                     fewer features.
   SANTA_SCORES_PROXY
                     from a copy of K in 4 or 2 bits, see >>proxy: only the keys that are drawn
                     are read in K. For pps, sys, prop, top-k, top-p, saap, vattention.
   SANTA_SCORES_Q8   q . k_j for K of q8_0 with q rounded likewise, 8 bits and a scale for each
                     32 features, and multiplied in integers, as ggml does: faster where the CPU
                     can (AVX-512), and each feature of q off by up to 1/254 of its block's
                     largest. Scores of Gaussian data are off by .5 % of their spread.
   K stored token by token is read in whole cache lines anyway; to save memory traffic give K
   feature-major (see santa_keys_feature_major): the same view with another stride.

   Score extras apply in this order: sm_scale, soft_cap, alibi_slopes, then mask (causal,
   window and first_tokens, seq_lens); sinks enter the denominator only. With sinks a result is
   scaled by the share of the mass that all real keys have, chosen or not; where scores are
   exact it stays as unbiased as it was. Sample-attention, key_list and saap without draws know
   the mass of what they read alone, and take the share that it has. q * sm_scale has to be a
   float.

   >>determinism

   Same inputs, options and machine type => same bits, whatever the batch composition, layout
   (NHD, HND, any row stride), page size (on a GPU of whole 8 keys), number of threads, item
   range and tile_size of prop; where features lie apart (feature-major K or V), of one layout
   and page size; from a copy of K, of one size of its blocks: 64 keys, fewer in pages that are
   no multiple of 64.
   Keys are handled in blocks of SANTA_BLOCK = 64 counted from token 0; sums inside a block are
   f32 in a fixed order that follows the instruction set's lanes, sums of block masses are f64
   from the first block to the last; sampled rows are added in ascending order (saap's bucket by
   bucket).
   Not covered: another instruction set (options.isa) or -ffast-math may round a score
   differently, which can move a draw to a neighbouring key when its threshold lies within
   rounding of a boundary. The random numbers themselves are the same bits everywhere.

   >>threads

   The library starts no thread and keeps no state between calls. Calls may run at the same time
   on different workspaces. One call's work is batch x kv_heads independent items. Three ways to
   spread them:
   - item_begin, item_end: each of your threads runs its own range, with its own workspace and
     stats;
   - num_threads = t with parallel_for: the library hands t tasks to your pool, or fewer where
     there are fewer pieces of work;
   - num_threads = t when this file is compiled with -fopenmp: up to 1024 threads.
   Promised: no bit depends on the number of threads or on who did what. Threads may differ in
   speed: each takes the next piece when it is done. Where there are few items, or K is
   token-major (NHD), they share the keys of a long row (not vattention's; saap's and those of a
   list of keys only in few items); parallel_for is then called more than once, for a round of
   the threads each time. parallel_for must run every task exactly once before it returns, in
   any order; one thread will do, as no task waits for another. If it drops one the others do
   its work where the compiler has atomic operations, as gcc and clang do; elsewhere that work
   is lost.
   Process-wide are only the table of backends, a pointer per device, written by
   santa_register_backend at start-up, and whether the system lends AMX (>>options).

   >>memory

   No allocation in a call. Pass workspace of at least santa_workspace_size(&a, &o) bytes, at
   any alignment. The size is a pure function of shapes and options, never of data or seq_lens:
   ask with the num_threads and the items that you call with. With many threads the size may
   shrink as k grows, since they share its keys from some length on. So view k with all the room
   it has and give the length by seq_lens, which makes one size for all steps, or ask again at
   every length. The next call may use the same memory. As a rule a sampled method needs 4 bytes
   per key of capacity, query head of a group and query row (of those that go together, see
   santa_decode) for each KV head that is worked on at a time: one per thread, or up to 8 where
   K is token-major or threads share keys. 131072 keys and a group of 4 take 2.2 MB; with a copy
   of K 8 to 9 bytes per key more. top-p takes 12.3 bytes per key more, with a copy 24.5,
   vattention 4.2; with a predictor it needs 4.25 bytes per key in all, saap 4, and of a bucket
   28 and 4 for each head of the group; saap with a copy of K 4 to 5 more per key and head.
   K, V and the copy may have any alignment (on a GPU numbers lie on their size, the copy on 16
   bytes); what is read fastest are rows that start on a cache line (64 bytes) in 2 MB pages
   (madvise on Linux).
   All pointers stay yours. out, lse, std_error must not overlap the inputs or each other, and
   out not itself: its strides, by size, each reach over what the smaller ones span.
   Rows at or past seq_lens[b], and block_table entries past the last page in use, are never
   read. Limits: at most 2^31 - 1 keys per sequence, SANTA_MAX_SAMPLES draws.

   >>errors

   Every argument is checked before the first byte is written; on any status but SANTA_OK, out,
   lse, std_error and stats are as they were. SANTA_STATUS_LIST below has all statuses with
   their texts. No option is accepted and ignored: one that the method does not read is an
   error, and SANTA_OPTION_LIST says who reads what. Fields of santa_attention that only say
   more of a pointer (block_table, key_list, proxy) are not looked at where that is NULL, but
   key_weights without key_list is an error. To go from method to method with one set of
   options:
       o.method = m;  santa_clear_unused_options(&o);
   Data: a row with no key (seq_len 0, or all scores -inf) gives out = 0, std_error = 0 and lse
   = -inf, or the sink's logit where there is one. Scores below -1e38 count as -inf. A NaN or
   +inf score among the keys a row reads gives NaN in all of that row's out and lse, never a
   plausible number; with -ffast-math, too, but not in std_error, vattention's budgets and a
   key's bucket. Where soft_cap is set a +inf product is a score of soft_cap. Heads of a group
   that share keys or draws may share such a NaN. A NaN in a V row shows when the row is read;
   rows not drawn are not looked at. dense, prefill, sample-attention, vattention, saap and
   what draws from a copy of K, and on a GPU all methods but pps, add up before they divide:
   |V| times the keys that weigh as much as the largest, or the draws, must stay below 3e38, or
   out is infinite. These sums are of f32: of keys that all weigh alike and have nearly the
   same V, 2^20 put an output off by up to 1e-5 of it, 2^25 by 2e-4; top-p, prefill and as many
   drawn or top-k rows 2^20 by 2e-4.

   >>random

   Philox4x32-10 (Salmon et al. 2011; known answers: counter 0, key 0 -> 6627e8d5 e169c58d
   bc57ac4c 9b00dbd8). A number is a pure function of (seed, offset, request id, stream, head,
   query row, index), in two steps:
       row key  = first 2 words of philox(key = seed,
                    counter = {offset.lo, offset.hi, request.lo, request.hi})
       word     = word [index % 4] of philox(key = row key,
                    counter = {index / 4, head, query row, stream})
       uniform  = word * 2^-32, in [0, 1), exact in double
   Streams: 0 draws, 1 Bernoulli, 2 vAttention, 3 stash (16 bits a key). From index 2^34 on,
   stream + (index >> 34 << 8) stands for stream. The index is
   - the draw for iid and strat, the comb for sys and prop, tile * num_combs + comb for flash,
     0 for pps and saap (head = first of the group);
   - feature * B + draw for Bernoulli (head = first of the group for GROUP);
   - for vAttention (head = first of the group) 0, 1, .. until enough positions between sink
     and local tokens are found, word * size >> 32 each: of keys to take, or of keys to leave
     out where more than half of the free ones are to be taken.
   Known answer: seed 7, offset 65537, request 3, stream 0, head 5, row 0, index 2: 0x1825d098.
   All 32 bits are used, not 24: with a million near-equal keys a 24-bit grid is a sixteenth of
   one key's mass.
   The request id defaults to the index in the batch; give request_ids to make a
   sequence's draws independent of its place. Vary offset from call to call (santa_offset(layer,
   step)): equal arguments give equal draws.

   >>stash

   Between the scores and the draw, iid, strat, sys, prop, flash and pps keep u = exp(s - max of
   its block) for every key. On a GPU that is memory written and read; fewer bits are for
   engines that are short of it. Masses of blocks, lse and the draws per block are exact in
   every case; rounding only shifts mass between the keys of one block of 64:
   SANTA_STASH_F32   nothing is rounded.
   SANTA_STASH_F16   nearest: each key's share is off by up to 2^-11 of itself, always the same
                     way; below 2^-14 of the block's largest by up to 2^-25 of that one, and
                     below 2^-25 of it a key is never drawn.
   SANTA_STASH_U8    u * 255 plus a uniform in [0, 1) from 16 bits of stream 3, rounded down:
                     right on average, but for the normalisation within the block. Adds a little
                     variance where a block holds both heavy and light keys.
   Rounded stashes draw other, equally good rows: compare devices at the same stash.
   From a copy of K either rounded stash has a byte for a key: scores in whole sixteenths of an
   octave, at most 254 of them below the block's largest. Each key is weighed with the chance
   that it had; top-k ranks keys by these steps. A head that is done again with exact scores has
   their stash instead, as without a copy.

   >>proxy

   All methods so far read all of K. Beside a copy of K in 4 bits a feature (scores =
   SANTA_SCORES_PROXY, a->proxy) pps, sys and prop read that, draw from its softmax, and read K
   and V of the drawn keys only. Each draw is weighed with what it really is: with scores s^
   from the copy and s from K itself, pi_j the chance to draw key j, and w_j = exp(s_j) / pi_j,
       out = sum w_j v_j / sum w_j,    lse = log(Z^ + sum (exp(s_j) - exp(s^_j)) / pi_j),
   or log sum w_j where that sum is not above 0 (few draws of keys that the copy overrates). In
   Z^ and p^ = exp(s^) / Z^ keys that are read exactly have their exact scores.
   The copy may be wrong: weights are exact whatever it says, so that is made up for by more
   draws. But a key that weighs much and that the copy says weighs nothing is drawn rarely, and
   no guard or std_error sees it before it is: encode what was overwritten again, give
   proxy_lens where memory was never encoded. out is a ratio of unbiased estimates: consistent,
   not unbiased; its error falls as more are drawn. With exact_above, by default, these are not
   quite unbiased: it takes another look where what was drawn weighs much, so that lse is a
   little too low on average, with 2 bits above all. On a trained model's heads the squared bias
   was .02 % of the squared error with 128 draws and 4 bits, .1 to .3 of 2 bits, std_error 1.1
   to 1.2 of the error.
   Read exactly and never drawn: the first 4 keys, the last 64 with those before them in their
   block, and all behind the last whole block that is encoded (options.proxy, proxy_lens). A
   head whose log weights must be expected to vary by more than rescue_above (by its masses and
   the copy's own error, before a row is read) has the exact scores of its rescue_keys likeliest
   keys put in first: then of 160 heads whose scores spread by 3.5 to 4 at most one with sys and
   four with pps had an error above 1.15 times that of sys with exact scores; with .25 one in
   six. Where the drawn keys show more than exact_above, or the rescued ones that and four times
   what was expected (such a copy is not of this K), or the copy has a NaN, the head is done
   again with exact scores. stats counts both. A key that the copy underrates by x is drawn
   exp(-x) times as often and weighs exp(x) times as much where it is drawn: rare large errors
   that no guard sees, which is what 4 bits, the rotation and the rescue are for. One that it
   puts 87 below the best is never drawn, none is, nor rescued, where the best of those read
   exactly is 69 above all of them. Take 2 bits only with rescue, of 4 * num_samples keys
   where scores spread by 4 and more, and not where one feature of K is many times the others:
   draws of sys and prop may be far off there, and no guard sees it. lse loses what the copy
   overrates a key by to rounding, which matters from some 10 on; of top-k and top-p, too, which
   have no guard that would see it. A key with a NaN is a zero in its block's centre: left
   padding had better be some real key.
   pps: one comb for the heads of a group. sys, prop: one for each head; a key with S p^ >= 1 is
   there surely and counts once. num_combs must be 1.
   top-k: the num_samples keys of largest s^ with their exact scores, beside those always read.
   top-p: the fewest of largest s^ that by the copy have top_p of what its keys have.
   vattention: the heavy tokens are those of largest s^, instead of the exact oracle's.

   The bytes, which may be stored with a cache (version 1). A block is N keys of one KV head, 64
   or, if page_size is no multiple of that, 32 or 16; blocks never reach over pages. Block b of
   KV head h in sequence (page) i is number (i * kv_heads + h) * blocks + b; blocks = whole ones
   of the capacity (of a page). With F = 32 features a chunk at 4 bits, 64 at 2 bits, and C =
   head_dim / F rounded up, a block holds
       codes   [C][N][16]  byte i of chunk c: features F c + i (lowest bits), F c + 16 + i, ..
       gains   [N]         f16, bytes in the machine's order
       centre  [C * F]     int8
       scale   f32, likewise; then zeros up to a multiple of 64 bytes
   and stands for keys x = H D k: D signs, -1 for feature f where bit f % 32 of word f / 32 % 4
   of philox(counter = {f / 128, 0, 0, 0}, key = {0x5eed, 0x70726f78}) is 1; H the orthonormal
   Hadamard matrix in Sylvester's order, element i, j of sign (-1)^popcount(i & j), on each
   piece of features as long as the largest power of two that divides head_dim. x_f is about
   scale centre_f + gain (code_f - z), z = 7.5 (1.5): the centre is the block's mean; what is
   left has codes of step .3352 (.9957) of its root mean square, and the gain of least squares.
   A key with a NaN or infinity has gain NaN. Of keys that differ by less than 2^-20 a feature
   f16 rounds gains much, of 2^-25 to 0: multiply a K that is so small, and divide k_scale. The
   query is rotated, too, and each head's rounded to 8 bits by its largest number over 127 where
   it meets codes.

   >>saap

   Self-attention with asymmetric partitions (SAAP, sections 4 and 5). Offline, for each layer
   and KV head: spherical k-means puts keys into C buckets, by the largest key . centroid, and a
   classifier learns in which buckets a query's softmax has its mass:
       f(q) = softmax(w2 relu(w1 q + b1) + b2),
   with batch norm folded into w1 and b1. Without one (hidden = 0) f(q) is the softmax of
   sm_scale key_norm q . centroid: the paper's k-means baseline. Keys and queries are those
   before RoPE. examples/saap has the trainer and the file format.
   santa_buckets_assign puts keys into an index as they come: 6 bytes a key and KV head, 8 a
   bucket. Read exactly, whatever the router says: the first keys, the last ones and those
   before them in their 64 (options.saap), and what the index does not hold. The other keys are
   the far ones. What is done with them:
   - num_probes = l: the l buckets of the largest sum of f over the group's heads are read whole
     (softmax before the sum; ties go to the lower bucket; buckets without keys are passed
     over). Real buckets are far from equal in size: compare at equal stats.visited_rows, not at
     equal l.
   - num_samples = S > 0 (0 = 128): of the others S keys are drawn for the group, key j of
     bucket c with probability pi_j = min(1, lambda ((1 - u) max_h f_h[c] / (F n_c) + u / n)),
     by one comb over the buckets in turn, each one's keys in ascending order; n_c keys in the
     bucket, n in all of those that are not read whole, F the sum of their max_h f_h[c], u =
     uniform_share, lambda such that S are drawn. Each counts exp(s_j) / pi_j: keys to which the
     router gives nothing are drawn, too, and weigh more. S = n or more is exact attention. lse
     is that of the estimate; std_error is the quotient's linearisation, as if the keys had no
     order: with a dozen draws .7 of the error.
   - num_samples = SANTA_NONE: nothing is drawn, as published. What is not visited is missing:
     on diffuse heads the output is far off however much mass was visited, and lse is too small.
     A row for which nothing is read, neither fixed keys nor a bucket's, is one without keys.
   - scores = SANTA_SCORES_PROXY, with a copy of K (see >>proxy): of the num_probes buckets (0 =
     a quarter of all) only the copy is read, and S keys are drawn from these and from the
     others. There the size of key j is max_h F_h p^_hj, F_h the sum of f_h over the probed
     buckets, p^ the softmax of the copy's scores over their keys; elsewhere max_h f_h[c] / n_c.
     pi_j = min(1, lambda ((1 - u) size_j / (sum of sizes) + u / n)), by one comb over the
     probed keys in ascending order, then over the other buckets. What the copy does not hold is
     read exactly (proxy_lens, in whole 64s). A copy without a number among the probed keys
     makes the KV head read all keys (stats.redone_rows). Options.proxy are not read: u bounds
     each weight. It asks for few bytes at errors of .05 and more, but the copy's lines hold
     keys of many buckets: pps from all of it takes less time.
   Draws alone lose single keys that are far heavier than their bucket's others, buckets alone
   the mass that is spread over all: take both. Draws want no long window; without them take 512
   local tokens and more.
   Training queries must look like those that are asked later: examples/saap has the numbers.

   >>prefill

   santa_decode takes any number of query rows; with 32 and more of them, method SANTA_DENSE and
   exact scores it works as prefill wants it, and the products take the time, not the bytes: K
   and V are read once for some 256 queries of a group, in blocks that become f32, and 32
   queries go side by side. Of a bf16 q and k the products are those of bf16 where >>options
   says so, twice as fast; where v and out are bf16, too (and k and v have no scales of rows),
   those of v as well: each key's weight is rounded to bf16 then, by 1/256 of itself at most,
   which is what out is rounded by; no other type of out has that. There is no other verb, since
   nothing else differs: pieces of a prompt are rows at the end of a longer context (causal =
   1), and seq_lens, pages, window, soft cap, ALiBi, sinks and first_key mean what they always
   do. Threads share blocks of query rows. A row's bits do not depend on the other rows of the
   call, on how a prompt is cut into calls of 32 rows and more, or on what is listed under
   >>determinism; calls of fewer rows round otherwise. Of a prompt's last layer only the last
   row is needed: give it that q. Sampled methods gain nothing in prefill: the rows' draws
   together are nearly all keys.

   >>sparse

   SANTA_SAMPLE_ATTENTION, sparse prefill in blocks of block_size query rows and keys, in three
   stages (SampleAttention):
   1. num_chunks slices of query rows, whole blocks at equal distances, the last ending with the
      last row, are scored against all keys. Of each row's softmax, in f32: what falls on each
      block of keys (a column), and on each range of block_size distances between query and key
      (a slash).
   2. Of each head: the fewest columns that hold alpha_columns of the mass of the sampled rows,
      and the fewest slashes that hold alpha_slashes; a head takes the blocks of either, those
      of the first keys and those on the diagonal. A slash touches two blocks of keys. The heads
      of a group read what any of them takes, unless per_head.
   3. Exact attention over these blocks, renormalised; lse is that of what was read.
   Promised: in each head, the sampled rows' mean kept mass is at least the larger alpha. Other
   rows may lose more, some all they had: a key that only they look at, in a block that no
   sampled row sees, is not found. audit says what was kept, row_mass what each row kept (it
   costs the scores of all keys), its minimum is the paper's CRA. alpha = 1 reads all. It pays
   where heads keep little: the call runs a KV head dense where kept_share + cost is above
   dense_above. Calls of fewer than 32 rows run dense, but for a mask, mask_out, audit or
   row_mass. A NaN or +inf among the scores of the sampled rows makes the KV head run dense, so
   that it shows.
   mask runs the third stage on blocks of your own choice, exactly those (a row that is left no
   key gives zeros, and lse as without keys); causal may then be 0.
   Memory: 12 bytes for each sampled row and block of keys per thread, 2 for each head and
   block. On a GPU: of a head 16 for each unit of 64 sampled rows and 64 keys, 8 for each
   sampled row and 2048 keys, about 9 a block; for row_mass 4 a key, for as many rows as share a
   pass.

   >>lists

   a.key_list names the keys that a KV head reads, for engines that choose keys themselves (an
   indexer, a cluster index, a cache policy): what other kernels take as top-k indices. Method
   SANTA_DENSE, exact scores; CPU and GPU. Each entry is a key of the sequence, in any order;
   one below 0 stands for no key, so lists may be padded with -1. A key that is there twice
   counts twice. With key_weights entry i counts weights[i] exp(s): 1 / (chance that it was
   drawn), for instance, or how many keys it stands for; 0 = not read. out = sum w e^s v / sum w
   e^s, lse = log sum w e^s, sinks as ever. So lists may be cut in parts and merged
   (santa_merge). Causal, window, kv_start and ALiBi go by the key's place in the sequence, and
   keys that they hide are skipped.
   Read: K and V of the entries, once for a KV head and query row; rows that are not listed
   never, but a block_table must name pages of k and v for all keys that a row sees. A key past
   its sequence is an error on the CPU, and gives NaN on a GPU, where a bad weight does, too.

   >>ranks

   One context over several processes, hosts or GPUs (options.ranks).
   Each rank holds a range of the keys, in the order of the ranks, with its own seq_lens,
   first_key and context_lens; q and the options are the same on all, and so is the result, to
   the bit. Ranges may be uneven or empty; a decode step's token goes to the rank that holds the
   context's end. The bytes that ranks exchange go through all_gather, which is yours:
   MPI_Allgather, ncclAllGather, gloo.
   dense                    each rank's output and lse are merged: one exchange a call, of 4 *
                            (head_dim_v + 1) bytes a row and head, in all a multiple of 8 with
                            std_error.
   iid, strat, sys, prop    after the scores an exchange of 16 bytes a head, for each query row
                            and up to 8 KV heads at a time: the largest score and the mass. Each
                            rank then draws what falls on its part of the mass of all: the rows
                            that one process draws, but where rounding moves a threshold to a
                            neighbouring key. Then one exchange of sums, as for dense. A rounded
                            stash rounds by blocks: with one the rows are the same where ranges
                            begin with a whole block of 64 keys, else others, as good; those of
                            pps and flash, too.
   pps                      likewise; then an exchange of 8 bytes a KV head, of what its keys
                            are drawn by, which places each rank in the one comb. The sums of
                            the sure keys go apart, as they take up what all ranks miss: 8 *
                            head_dim_v + 12 bytes a row and head.
   flash                    likewise, of 64 bytes a head: also the first and the last tile of
                            each rank, as tiles lie where one process has them, whatever the
                            ranges are; then one of 8: how many tiles have mass. Of a tile that
                            lies in several ranks each draws what falls on its part. It wants
                            context_lens. On a GPU tiles and first_key are multiples of 64 keys.
   top-k, top-p             the keys that one process takes, of equal scores the first. Top-k of
                            up to 2048: each rank tells its num_samples best scores, 16 + 4 *
                            num_samples bytes a head in the exchange before the draw. Else four
                            exchanges of 3 kB a head: how many keys, and how much mass, have
                            which 8 bits of the score next. Then the sums. On a GPU 4 *
                            num_samples, or those four, of top-p behind one of 24 bytes; the
                            results of the keys taken are merged as dense, with 4 more bytes:
                            lse of all.
   vattention               the sets, sample and budgets of one process, wherever sink tokens,
                            local and heavy ones lie; heavy by the oracle or by heavy_index, the
                            same array on all ranks, which counts keys from the context's start.
                            For each query row and up to 8 KV heads: 8 bytes, how many keys;
                            with the oracle what top-k tells; 8 a KV head, how many are left to
                            the sample; a bit for each random word tried; 56 a head (and with
                            the full guarantee two rows of V), the base sample's sums; bits
                            again for the rest. An exchange of results, as for dense, with 4
                            more bytes. On a GPU, for each query row: 8 bytes; with the oracle 4
                            * heavy_tokens a head, or, of more than 2048 or by default, those
                            four of top-k; 8 bytes a KV head; two of 4 kB a KV head, how many
                            keys have their first word where; 32 a head (the full guarantee: 8 *
                            head_dim_v more); two of 4 kB again. The oracle may take its scores
                            from a copy, of which the next entry tells where ranges begin; a NaN
                            in it gives NaN. Rows of which more than 4 million random words are
                            tried may have another last key or two.
   a copy of K, for         each rank has one of its own keys. Exchanges, for each query row
   sys, prop, pps, top-k    and up to 8 KV heads at a time: 40 bytes a head, from which all see
                            alike which heads are to be rescued; if some are, the 4 *
                            rescue_keys of each of these (its likeliest keys here: those of all
                            ranks are chosen among them) and 16 a head; 8 a head, or a KV head
                            with pps, which place each rank in the comb; 64 a head of what was
                            drawn; if some head is then done again with exact scores, 16 a head,
                            and with pps 8. Then the sums. On a GPU, for each query row: 40
                            bytes a head; if the options have a rescue, 4 * rescue_keys a head,
                            then 40, whether one is rescued or not; with pps 8 a KV head; 16 of
                            what was drawn. Then the results: a head done again is merged as
                            dense.
                            First and last keys are the context's: give context_lens. The rows
                            are those of one process where ranges begin with a whole block of
                            the copy (of 64 keys); else blocks lie otherwise and a range's last
                            keys, which fill no block, are read exactly: other rows, as good.
                            With kv_start the first keys are those of the rank that it ends in,
                            fewer (and other rows) where that rank ends sooner. Top-k may take
                            its scores from one, too, where a NaN gives NaN: the 40 bytes a
                            head, 4 * num_samples, however many, 64 of what was taken, then the
                            sums. On a GPU 4 * num_samples, then the results, as with exact
                            scores.
   Refused: saap, sample-attention, lists of keys, a predictor of heavy tokens, dense_below,
   top-p from a copy, santa_scores and santa_sample; std_error but of dense, iid, strat, sys and
   prop with exact scores, where the results take 16 bytes and one (iid), two or num_combs times
   8 * head_dim_v + 16 more (on a GPU 8 * head_dim_v). stats are each rank's own, but
   rescued_rows, redone_rows and variances the context's, on every rank.
   Every rank makes the same calls in the same order. A call that returns an error did not meet
   the others, who wait: end the job (examples/sharded_mpi.c does).

   >>recipes

   Caches and layouts that engines have; examples/recipes.c runs each of these, K and V
   [n, kv_heads, d].
   - A method that draws from your own list of keys, one for all heads: pages of one token.
         a.k = santa_view(k, type, n, 1, kv_heads, d);     a.v likewise
         a.block_table = list;  a.max_pages = most;  a.seq_lens = &count;
     Causal, window and ALiBi count places in the list.
   - First tokens beside a window (StreamingLLM): a.window = 4096;  a.first_tokens = 4;
   - Left padding: a.kv_start = start;
   - A cache in 8 bits with a scale for each token and KV head (vLLM's per-token-head): f32
     beside it, or in its rows by strides. A scale for each KV head: stride[0] = stride[1] = 0.
         a.k_scales = santa_view(scales, SANTA_F32, pages, page_size, kv_heads, 1);    a.v_scales likewise
     Behind a row's d bytes: data k + d, stride[2] = (d + 4) / 4, stride[1] = kv_heads times
     that.
   - MLA: one KV head whose row is the latent and the RoPE part, V the front of the same memory.
         a.v = a.k;  a.v.shape[3] = latent;
   - V as [kv_heads, d, n], tokens side by side: a.v.stride[1] = 1, stride[2] = d * n, stride[3]
     = n. Exact attention reads it by dot products; draws touch a cache line for each number.
   - A draft with draws, an exact check: draft each token with sys, then one call with method
     dense, q_len = the drafted rows, causal = 1: it reads K and V once for all of them.
     build/decode --draft does it; of 4 tokens drafted with 64 draws the exact call kept 97 %
     there.

   >>options

   SANTA_IMPLEMENTATION   emit the code here
   SANTA_STATIC           make every function static; together with SANTA_IMPLEMENTATION, and
                          before the first include of a file that has it
   SANTADEF               linkage of the functions
   SANTA_ASSERT(x)        internal invariants, default off
   SANTA_NO_SIMD          scalar code only
   SANTA_NO_AMX           no AMX, and no question to the system
   SANTA_FILENAME         this file's name, default "santa.h": it includes itself for each
                          instruction set
   x86-64 (gcc, clang, MinGW-w64): scalar, AVX2 + FMA, AVX-512 (F, BW, DQ, VL, VNNI), chosen at
   run time without any flag; arm64: NEON. Other compilers and machines run the scalar code:
   WebAssembly (clang) does, MSVC was never tried. Where q and k are both bf16 and head_dim is a
   multiple of 32, AVX-512 CPUs with BF16 (but Intel's, which are slower that way) and arm64
   compilers told of it (-march=armv8.2-a+bf16) multiply them as they are, two at once: products
   are exact, sums f32, so give a bf16 model's q as bf16. Numbers below 1.2e-38 are 0 there.
   AMX (x86-64 Linux, gcc 11 or clang 12 and later) takes over the scores of bf16 K where more
   than four query heads share a KV head and head_dim is a multiple of 32; all else is
   AVX-512's code, with its bits. A q of f32 is multiplied as bf16 numbers that add up to it,
   sums are f32; numbers of K below 1.2e-38, and such parts of q, are 0. Where the CPU has it,
   the first call that names no other isa asks Linux to lend it to the process:
   arch_prctl(ARCH_REQ_XCOMP_PERM, 18). AVX-512 runs where that is refused: by an old Linux, by
   a sandbox, or since a thread's signal stack is too small. Once it is lent, sigaltstack
   refuses stacks below sysconf(_SC_MINSIGSTKSZ), some 11 KB, and a thread that computes with it
   has 8 KB more to be saved. Tiles are released before a call returns. isa = SANTA_ISA_AVX512
   does without.
*/
#ifndef SANTA_H
#define SANTA_H

#include <stddef.h>
#include <stdint.h>

#define SANTA_VERSION_MAJOR 0
#define SANTA_VERSION_MINOR 2
#define SANTA_VERSION_PATCH 0
#define SANTA_VERSION       (SANTA_VERSION_MAJOR * 10000 + SANTA_VERSION_MINOR * 100 + SANTA_VERSION_PATCH)

#ifdef SANTA_STATIC
#define SANTA__IS_STATIC
#endif
#ifndef SANTADEF
#ifdef SANTA_STATIC
#if defined(__GNUC__) || defined(__clang__)
#define SANTADEF static __attribute__((unused))
#else
#define SANTADEF static
#endif
#else
#define SANTADEF extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------ >>types */

#define SANTA_BLOCK       64                /* keys per block of the fixed summation order */
#define SANTA_MAX_SAMPLES (1 << 20)         /* largest num_samples of the sampled methods */
#define SANTA_MAX_COMBS   16                /* largest num_combs */
#define SANTA_NONE        (-1)              /* "none" where zero means a default */
#define SANTA_AUTO        (-1)              /* "you choose" where zero means none */

/* name, text. The one list behind the enum, santa_status_string and the tests. */
#define SANTA_STATUS_LIST(X)                                                                               \
    X(OK,                      "ok")                                                                       \
    X(ERR_NULL_ARGUMENT,       "a required pointer argument is NULL")                                      \
    X(ERR_NULL_DATA,           "q, k, v or out has no data (data pointer is NULL)")                        \
    X(ERR_DTYPE, "a tensor's dtype is not a santa_dtype, or that of q or out is for k and v only")         \
    X(ERR_DEVICE,              "a tensor's device is not a santa_device, or not this function's")          \
    X(ERR_DEVICE_MISMATCH, "q, k, v and out are not all on one device, or that is not the current one")    \
    X(ERR_NO_BACKEND,          "the tensors are on a GPU but no GPU backend is linked: add santa_cuda.cu") \
    X(ERR_SHAPE,               "a tensor has a zero or negative size")                                     \
    X(ERR_OVERFLOW,            "sizes and strides overflow the address range")                             \
    X(ERR_OUT_STRIDE,          "out has stride 0 in a dimension larger than 1")                            \
    X(ERR_BATCH,               "batch sizes of q, k, v and out differ")                                    \
    X(ERR_Q_LEN,               "q and out differ in q_len")                                                \
    X(ERR_HEADS,               "q and out differ in the number of heads")                                  \
    X(ERR_KV_HEADS,            "k and v differ in the number of KV heads")                                 \
    X(ERR_GROUP,               "the number of heads is not a multiple of the number of KV heads")          \
    X(ERR_HEAD_DIM,            "q and k differ in head_dim")                                               \
    X(ERR_HEAD_DIM_V,          "v and out differ in head_dim_v")                                           \
    X(ERR_KV_LEN,              "k and v differ in length (or in pages, or in page size)")                  \
    X(ERR_TOO_LONG,            "more than 2^31 - 1 keys in one sequence")                                  \
    X(ERR_SEQ_LEN,             "a seq_lens entry is negative or larger than k can hold")                   \
    X(ERR_BLOCK_TABLE_SHAPE, "max_pages is not positive, or block_table_stride is smaller than max_pages") \
    X(ERR_BLOCK_TABLE,         "a block_table entry in use names a page outside k and v")                  \
    X(ERR_CAUSAL,              "causal is neither 0 nor 1")                                                \
    X(ERR_SM_SCALE,            "sm_scale is NaN or infinite")                                              \
    X(ERR_SOFT_CAP,            "soft_cap is negative, NaN or infinite")                                    \
    X(ERR_WINDOW,              "window is negative")                                                       \
    X(ERR_FIRST_TOKENS,                                                                                    \
      "first_tokens is not in [0, 2^31 - 1], is set without a window, or reaches past key 0's part")       \
    X(ERR_FIRST_TOKENS_METHOD, "first_tokens are not for vattention, saap, sample-attention, a copy of K") \
    X(ERR_SINKS,               "an attention sink is NaN or +infinity")                                    \
    X(ERR_ALIBI,               "an ALiBi slope is NaN or infinite")                                        \
    X(ERR_METHOD,              "method is not a santa_method, or this step has no such method")            \
    X(ERR_NUM_SAMPLES,         "num_samples is out of range")                                              \
    X(ERR_TILE_SIZE, "tile_size is not a positive multiple of 64 (for flash also 8, 16 or 32)")            \
    X(ERR_TOP_P,               "top_p is not in (0, 1]")                                                   \
    X(ERR_SCORES,              "scores is not a santa_scores_method")                                      \
    X(ERR_BERNOULLI_DRAWS,     "bernoulli_draws is negative or larger than 65536")                         \
    X(ERR_VATTENTION_TOKENS,   "sink_tokens, local_tokens or heavy_tokens is below SANTA_NONE")            \
    X(ERR_BASE_SAMPLES,        "base_samples is neither 0 nor at least 2")                                 \
    X(ERR_EPSILON,             "epsilon is not in (0, 1)")                                                 \
    X(ERR_DELTA,               "delta is not in [1e-290, 1)")                                              \
    X(ERR_DELTA_VECTOR,        "delta above 0.215: the CLT bound on a vector's norm does not hold there")  \
    X(ERR_BOUND,               "bound is not a santa_bound")                                               \
    X(ERR_GUARANTEE,           "guarantee is not a santa_guarantee")                                       \
    X(ERR_BUDGET_INPUT,        "a budget's population, spread or total is negative, NaN or infinite")      \
    X(ERR_STD_ERROR,           "std_error is not available for this method")                               \
    X(ERR_ISA,                 "isa is unknown, or this machine does not have it")                         \
    X(ERR_THREADS, "num_threads is negative, above 2^31 - 1, or above 1 without parallel_for or OpenMP")   \
    X(ERR_ITEMS,               "item_begin, item_end is not a range of batch x kv_heads items")            \
    X(ERR_WORKSPACE_NULL,      "workspace is NULL")                                                        \
    X(ERR_WORKSPACE_SIZE,      "workspace is smaller than the size query says")                            \
    X(ERR_CAPACITY,                                                                                        \
      "the draw list is shorter than santa_sample_capacity says, or scores_stride than a row's keys")      \
    X(ERR_INDEX,               "a batch, row, head or key index is out of range")                          \
    X(ERR_NAN,                 "the input holds a NaN or +infinity")                                       \
    X(ERR_PROBABILITIES,       "probabilities are negative, NaN or do not sum to 1 within 1e-3")           \
    X(ERR_BACKEND,             "a backend wants a device other than the CPU, and all of its functions")    \
    X(ERR_STASH,               "stash is not a santa_stash")                                               \
    X(ERR_SCALE,               "k_scale or v_scale is negative, NaN or infinite")                          \
    X(ERR_ROW_SCALES, "k_scales or v_scales are not f32, f16 or bf16, or not one for each row of k or v")  \
    X(ERR_SCORES_Q8,           "SANTA_SCORES_Q8 is for K of q8_0")                                         \
    X(ERR_Q8_0, "a q8_0 tensor wants head_dim and strides in multiples of 32, and features side by side")  \
    X(ERR_Q4_0, "a q4_0 tensor wants head_dim and strides in multiples of 32, and features side by side")  \
    X(ERR_DENSE_BELOW,         "dense_below is below SANTA_AUTO")                                          \
    X(ERR_OUT_OVERLAP,         "elements of out share memory: a stride is too short")                      \
    X(ERR_COMBS,  "num_combs is not in [0, 16] or does not divide num_samples; from a copy of K it is 1")  \
    X(ERR_FIRST_KEY, "first_key is negative, or the context's last key would be number 2^31 - 1 or more")  \
    X(ERR_CONTEXT_LEN, "a context_lens entry is negative, or smaller than first_key + a seq_len above 0")  \
    X(ERR_PROXY_NULL, "proxy is NULL: SANTA_SCORES_PROXY and santa_proxy_encode want a copy of K")         \
    X(ERR_PROXY_BITS,          "proxy_bits is not 0, 2 or 4")                                              \
    X(ERR_PROXY_HEAD_DIM, "a copy of K wants a head_dim in multiples of 8, of at most 1024")               \
    X(ERR_PROXY_PAGE,          "a copy of a paged K wants a page_size in multiples of 16")                 \
    X(ERR_PROXY_LEN,           "a proxy_lens entry is negative")                                           \
    X(ERR_PROXY_RANGE,         "from, to or count is negative, or to is below from")                       \
    X(ERR_PROXY_METHOD,        "SANTA_SCORES_PROXY is for sys, prop, pps, top-k, top-p, saap, vattention") \
    X(ERR_PROXY_OPTIONS,                                                                                   \
      "a count of options.proxy is below SANTA_NONE, or a limit not finite, or below 0 and not SANTA_NONE")\
    X(ERR_BACKEND_PROXY,       "this device makes no copy of K")                                           \
    X(ERR_BUCKETS_NULL, "buckets is NULL, or its centroids, weights or index, or the assigned keys' data") \
    X(ERR_BUCKETS_SHAPE, "num_buckets is not in [1, 65536] or hidden not in [0, 65536]")                   \
    X(ERR_BUCKETS_DTYPE,       "the dtype of buckets is not f32, f16 or bf16")                             \
    X(ERR_BUCKETS_HEAD_DIM,    "buckets of keys want a head_dim of at most 1024")                          \
    X(ERR_BUCKETS_NORM,        "key_norm is negative, NaN or infinite")                                    \
    X(ERR_BUCKETS_Q,           "buckets->q differs from q in shape or device")                             \
    X(ERR_BUCKETS_KEYS, "the keys to assign differ from k in batch, KV heads, head_dim or device")         \
    X(ERR_BUCKETS_RANGE, "from is below -1, or the index does not have all keys before it")                \
    X(ERR_BUCKETS_SLOT,                                                                                    \
      "a slot is not in [0, num_slots) or given twice, or num_slots is negative or below the batch")       \
    X(ERR_BUCKETS_INDEX,                                                                                   \
      "the index is not aligned to 4 bytes, or not begun for these sizes by santa_buckets_assign")         \
    X(ERR_SAAP_OPTIONS,                                                                                    \
      "a count of options.saap is below SANTA_NONE, uniform_share not in [0, 1], or a flag not 0 or 1")    \
    X(ERR_SAMPLE_ATTENTION,                                                                                \
      "an alpha above 1, num_chunks not in [0, 64], block_size not 64 or 128, per_head not 0 or 1, or "    \
      "an alpha or dense_above below 0 and not SANTA_NONE")                                                \
    X(ERR_SAMPLE_CAUSAL, "sample-attention that chooses blocks wants causal = 1 and no context_lens")      \
    X(ERR_SAMPLE_SCORES, "sample-attention wants exact scores")                                            \
    X(ERR_KEY_LIST_SHAPE,                                                                                  \
      "max_list is not positive, key_list_stride is below it, or key_list_rows is not 0 or 1")             \
    X(ERR_KEY_LIST_METHOD, "a list of keys wants method dense, exact scores, and not santa_scores")        \
    X(ERR_KEY_LIST, "a key_list entry is past its sequence, or one of key_list_lens not in [0, max_list]") \
    X(ERR_KEY_WEIGHT, "a key's key_weights entry is negative, NaN or infinite, or there is no key_list")   \
    X(ERR_KV_START,            "a kv_start entry is negative or larger than seq_len")                      \
    X(ERR_KMEANS, "k-means wants numbers that are finite, and iterations in [0, 2^20]")                    \
    X(ERR_HEAVY_INDEX,                                                                                     \
      "heavy_index wants heavy_tokens above 0, no predictor, and heavy_stride 0 or at least that many")    \
    X(ERR_BACKEND_BUCKETS,     "this device has no buckets of keys")                                       \
    X(ERR_RANKS,                                                                                           \
      "ranks.count or ranks.rank is out of range, all_gather is NULL, or flash has no context_lens")       \
    X(ERR_RANKS_METHOD,                                                                                    \
      "over ranks: no saap, sample-attention, dense_below, list, predictor, step or top-p from a copy; "   \
      "std_error of dense, iid, strat, sys, prop with exact scores only")                                  \
    X(ERR_RANKS_EXCHANGE,      "ranks.all_gather did not return 0, or did not bring what this rank said")  \
    X(ERR_BACKEND_SPARSE,                                                                                  \
      "sample-attention on this device: PREFILL in santa_cuda.h has its types, head_dim and soft_cap")     \
    X(ERR_BACKEND_SCORES,      "this device has no such scores")                                           \
    X(ERR_BACKEND_DTYPE, "q8_0, e5m2, q4_0 on this device: not for santa_buckets_assign")                  \
    X(ERR_BACKEND_HEAVY,       "this device asks no predictor: heavy_index has its answer")               \
    X(ERR_BACKEND_FIRST_TOKENS, "this device has no first_tokens with a list of keys or dense_below")      \
    X(ERR_BACKEND_ROW_SCALES,  "this device: sample-attention's blocks with scales of rows of such types") \
    X(ERR_SAAP_COPY,           "saap from a copy of K draws: num_samples must not be SANTA_NONE")          \
    X(ERR_HOST_POINTER,        "a pointer is to host memory that the device cannot reach")                 \
    X(ERR_BACKEND_RANKS,       "this device has no such method over ranks; flash: by whole 64 keys")       \
    X(ERR_BACKEND_TOO_LONG,    "this device has no room for so many keys in one sequence or list")         \
    X(ERR_BACKEND_SIZE,        "a size is above this device's limit: LIMITS in santa_cuda.h has them")     \
    X(ERR_BACKEND_ALIGNMENT,   "this device wants all data aligned to the size of a number")               \
    X(ERR_OPTION_UNUSED,                                                                                   \
      "an option is set that this method or these scores do not read: santa_unused_option names it")       \
    X(ERR_CUDA,                "a CUDA call failed; status - SANTA_ERR_CUDA is the cudaError_t")

typedef enum santa_status {
#define SANTA__X(name, text) SANTA_##name,
    SANTA_STATUS_LIST(SANTA__X)
#undef SANTA__X
    SANTA_STATUS_COUNT,
    /* statuses of CUDA errors are SANTA_ERR_CUDA + cudaError_t, up to: */
    SANTA_STATUS_MAX = 0x7fffffff
} santa_status;

/* From e4m3 on: k and v only. e5m2 is the upper byte of an f16. q8_0 and q4_0 are ggml's, side
   by side along head_dim, and strides count elements there, too, in multiples of 32: blocks of
   34 bytes, an f16 scale d and 32 int8; of 18 bytes, an f16 scale d, then 16 bytes b_i whose
   low halves are features 0 .. 15 and high ones 16 .. 31, each standing for (half - 8) d. The
   CPU makes rows of e5m2 and q4_0 f32, a few at a time, before it works on them; of the GPU see
   TYPES in santa_cuda.h. On one AVX-512 thread 8 bits take about as long as f16, e5m2 1.04 to
   1.2 times e4m3, q4_0 1.3 times q8_0, k_scales and v_scales 1.1 times. */
/* One entry for each type of K and V: enumerator, name, as many bytes for so many numbers.
   First those that kernels read as they are. */
#define SANTA_DIRECT_DTYPE_LIST(X)                                                                         \
    X(F32, f32, 4, 1) X(F16, f16, 2, 1) X(BF16, bf16, 2, 1) X(E4M3, e4m3, 1, 1) X(Q8_0, q8_0, 34, 32)
#define SANTA_DTYPE_LIST(X) SANTA_DIRECT_DTYPE_LIST(X) X(E5M2, e5m2, 1, 1) X(Q4_0, q4_0, 18, 32)
typedef enum santa_dtype {
#define SANTA__X(type, name, bytes, numbers) SANTA_##type,
    SANTA_DTYPE_LIST(SANTA__X)
#undef SANTA__X
} santa_dtype;
typedef enum santa_device { SANTA_CPU, SANTA_CUDA, SANTA_DEVICE_COUNT } santa_device;

/* One entry for each instruction set, the best last: enumerator, name. The last column is the
   library's: the platform that has it, see >>isa. */
#define SANTA_ISA_LIST(X) \
    X(SCALAR, scalar, any) X(AVX2, avx2, x86) X(AVX512, avx512, x86) X(NEON, neon, arm64) X(AMX, amx, tiles)
typedef enum santa_isa {
    SANTA_ISA_AUTO,
#define SANTA__X(isa, name, platform) SANTA_ISA_##isa,
    SANTA_ISA_LIST(SANTA__X)
#undef SANTA__X
    SANTA_ISA_COUNT
} santa_isa;

/* What a method is, see santa_method_traits. */
enum {
    SANTA_EXACT       = 1,  /* all keys that the row sees */
    SANTA_DRAWS       = 2,  /* at random from the softmax: num_samples, stash, dense_below */
    SANTA_INDEPENDENT = 4,  /* draws are independent of each other */
    SANTA_COMBS       = 8,  /* num_combs */
    SANTA_TILES       = 16, /* tile_size */
    SANTA_TILES_APART = 32, /* each tile draws by itself, also tiles of 8, 16 or 32 */
    SANTA_BIASED      = 64, /* its error is bias: no std_error */
    SANTA_ADAPTS      = 128, /* decides by what it has read how much more it reads */
    SANTA_SHARES_ROWS = 256, /* the heads of a group draw together and read the same rows */
    SANTA_PROXIES     = 512, /* may take its scores from a copy of K: SANTA_SCORES_PROXY */
    SANTA_ROUTES      = 1024, /* reads keys by bucket: a.buckets */
    SANTA_SPARSE      = 2048 /* reads the blocks of keys that a mask has: options.sample_attention */
};

/* One line for each method: the enum, names, traits and the library's own table come from here.
   The last four columns are the library's: see santa__method. */
#define SANTA_METHOD_LIST(X)                                                                             \
    X(DENSE,      "dense",      SANTA_EXACT,                     all,     dense,      all,   dense)      \
    X(IID,        "iid",        SANTA_DRAWS | SANTA_INDEPENDENT, samples, masses,     iid,   sampled)    \
    X(STRAT,      "strat",      SANTA_DRAWS,                     samples, masses,     strat, sampled)    \
    X(SYS,        "sys",        SANTA_DRAWS | SANTA_COMBS                                                \
                                | SANTA_PROXIES,                 samples, masses,     sys,   sampled)    \
    X(PROP,       "prop",       SANTA_DRAWS | SANTA_COMBS                                                \
                                | SANTA_TILES | SANTA_PROXIES,   samples, masses,     prop,  sampled)    \
    X(FLASH,      "flash",      SANTA_DRAWS | SANTA_COMBS                                                \
                                | SANTA_TILES                                                            \
                                | SANTA_TILES_APART,             tiles,   masses,     flash, sampled)    \
    X(TOP_K,      "top-k",      SANTA_BIASED | SANTA_PROXIES,    top,     masses,     top_k, sampled)    \
    X(TOP_P,      "top-p",      SANTA_BIASED | SANTA_PROXIES,    all,     masses,     top_p, sampled)    \
    X(VATTENTION, "vattention", SANTA_ADAPTS | SANTA_PROXIES,    none,    vattention, none,  vattention) \
    X(PPS,        "pps",        SANTA_DRAWS | SANTA_SHARES_ROWS                                          \
                                | SANTA_PROXIES,                 sizes,   sizes,      sizes, sizes)      \
    X(SAAP,       "saap",       SANTA_ADAPTS | SANTA_ROUTES                                              \
                                | SANTA_PROXIES,                 none,    routed,     none,  routed)     \
    X(SAMPLE_ATTENTION, "sample-attention", SANTA_BIASED | SANTA_SPARSE, all, dense,  all,   dense)

typedef enum santa_method {
#define SANTA__X(method, name, traits, capacity, needs, draw, phases) SANTA_##method,
    SANTA_METHOD_LIST(SANTA__X)
#undef SANTA__X
    SANTA_METHOD_COUNT
} santa_method;

typedef enum santa_scores_method {
    SANTA_SCORES_EXACT,
    SANTA_SCORES_BERNOULLI_IID, SANTA_SCORES_BERNOULLI_STRAT,     /* each query head its own draws */
    SANTA_SCORES_GROUP_IID,     SANTA_SCORES_GROUP_STRAT,         /* mean group query */
    SANTA_SCORES_Q8,                                              /* 8-bit query, K of q8_0 */
    SANTA_SCORES_PROXY                                            /* from a copy of K in 4 or 2 bits */
} santa_scores_method;

typedef enum santa_stash {
    SANTA_STASH_DEFAULT, SANTA_STASH_F32, SANTA_STASH_F16, SANTA_STASH_U8
} santa_stash;
typedef enum santa_bound     { SANTA_BOUND_CLT, SANTA_BOUND_HOEFFDING } santa_bound;
typedef enum santa_guarantee { SANTA_GUARANTEE_DENOMINATOR, SANTA_GUARANTEE_FULL } santa_guarantee;

/* A view of a 4-dimensional tensor. Strides are in elements, any int64. It owns nothing. */
typedef struct santa_tensor {
    void        *data;
    int64_t      shape[4];
    int64_t      stride[4];
    santa_dtype  dtype;
    santa_device device;
} santa_tensor;

/* Views of contiguous memory on the CPU. The second takes memory laid out [n0, n2, n1, n3]
   (HND) and returns it as [n0, n1, n2, n3]. Other layouts: fill the strides yourself. Set
   .device for memory on a GPU. */
SANTADEF santa_tensor santa_view    (const void *data, santa_dtype dtype,
                                     int64_t n0, int64_t n1, int64_t n2, int64_t n3);
SANTADEF santa_tensor santa_view_hnd(const void *data, santa_dtype dtype,
                                     int64_t n0, int64_t n1, int64_t n2, int64_t n3);

/* What sends the queries of a layer to buckets of keys, and the index of the keys, see >>saap.
   Zero everything, then set what applies. All memory is yours, on k's device, arrays
   contiguous. */
typedef struct santa_buckets {
    int64_t      num_buckets;      /* C of each KV head, 1 .. 65536 */
    int64_t      hidden;           /* units of the classifier's hidden layer; 0: no classifier,
                                      q . centroid instead */
    santa_dtype  dtype;            /* of centroids, w1, w2: f32, f16 or bf16 */
    const void  *centroids;        /* [kv_heads, num_buckets, head_dim] */
    const void  *w1;               /* [kv_heads, hidden, head_dim] */
    const float *b1;               /* [kv_heads, hidden] */
    const void  *w2;               /* [kv_heads, num_buckets, hidden] */
    const float *b2;               /* [kv_heads, num_buckets] */
    void        *index;            /* of santa_buckets_size bytes, aligned to 4 */
    santa_tensor q;                /* the queries before RoPE, shape of a.q; data NULL: a.q */
    float        key_norm;         /* hidden = 0: mean |key| before RoPE, 0 = 1. Ranks of buckets for one
                                      head do not depend on it; sums over heads and draws do */
    /* Which of the index's num_slots sequences each row of the batch is: [batch], NULL = its
       number in the batch. num_slots: 0 = batch */
    const int32_t *slots;
    int64_t      num_slots;
} santa_buckets;

/* What to attend to. Zero everything, then set q, k, v, out and whatever applies. */
typedef struct santa_attention {
    santa_tensor q;                /* [batch, q_len, heads, head_dim] */
    santa_tensor k;                /* [batch, len, kv_heads, head_dim], or paged
                                      [pages, page_size, kv_heads, head_dim] */
    santa_tensor v;                /* the same with head_dim_v; strides and dtype of its own */
    santa_tensor out;              /* [batch, q_len, heads, head_dim_v] */
    float       *lse;              /* [batch, q_len, heads] or NULL: natural-log sum of exp(score),
                                      sinks included. Exact where scores are, but for vattention
                                      and saap, there the log of the estimate, sample-attention,
                                      there of what was read, and from a copy, see >>proxy */
    /* [batch, q_len, heads] or NULL: estimated sqrt(E|out - exact|^2) from the draws. Its
       square is unbiased for iid (closed form) and for num_combs > 1 (spread of the combs). One
       comb of sys, prop, flash: successive differences, which see nothing of V that keeps step
       with the comb (0 where V alternates and the output is off by 1): ask several combs where
       V may have such an order. strat: the same, too large on average but for half of what the
       first and last stratum hold. vAttention: the ratio's linearisation, as blind as its base
       sample. pps, saap: as if the keys had no order, as blind as one comb where V has one. 0
       for dense. Not for top-k, top-p, sample-attention, saap without draws: their error is
       bias, not spread.
       Score noise (Bernoulli) is not in it, nor what a rounded stash moves within a block: pps
       has 0 where all keys are sure, yet is off by that. Infinity when there are too few
       draws: of pps less than two keys beside the sure ones, from a copy less than two with
       those read exactly, where more than 1e-4 of V hangs on them; NaN where out has one */
    float       *std_error;
    const int32_t *seq_lens;       /* [batch] valid keys, or NULL: all of len (or of
                                      max_pages * page_size) */
    const int32_t *kv_start;       /* [batch] first valid key, or NULL: 0. The keys before it (left
                                      padding) are never read; positions still count from
                                      key 0 */
    const int32_t *block_table;    /* [batch, max_pages] page of each page_size tokens, or
                                      NULL: not paged */
    int64_t      max_pages;        /* columns of block_table */
    int64_t      block_table_stride; /* ints from row to row, 0 = max_pages */
    float        sm_scale;         /* 0 = 1 / sqrt(head_dim) */
    float        k_scale, v_scale; /* what the numbers in k and v are to be multiplied with, 0 = 1 */
    /* What each row of k and v is to be multiplied with besides, data NULL = 1: f32, f16 or
       bf16 of k's and v's shape with 1 for the features, paged as they are. Any strides: a
       scale for each KV head has 0 from token to token. A row reads the scales of the keys it
       reads, no others */
    santa_tensor k_scales, v_scales;
    float        soft_cap;         /* 0 = none; else s = soft_cap * tanh(s / soft_cap) */
    int          causal;           /* 1: query row i attends keys 0 .. seq_len - q_len + i
                                      (aligned at the end) */
    int64_t      window;           /* 0 = none; else only keys j > p - window, p = seq_len - q_len + i */
    int64_t      first_tokens;     /* with a window: so many keys from kv_start on stay visible whatever
                                      the window is (StreamingLLM's sinks), 0 = none. Pages of what
                                      lies between are not read. Not for vattention, saap,
                                      sample-attention, a copy of K, on a GPU a list of keys and
                                      dense_below. Where first_key is above 0: the keys with numbers
                                      below first_tokens there, and left padding must end, with
                                      these, in the part that has key 0 */
    const float *sinks;            /* [heads] extra logit per head in the denominator, or
                                      NULL; -inf = none */
    const float *alibi_slopes;     /* [heads] or NULL: s += slope * (j - p) */
    int64_t      first_key;        /* where k and v hold a part of a longer context: the number
                                      there of their first key. Causal, window and ALiBi count
                                      from the context's start, by p below; sink and local
                                      tokens, tiles and draws from first_key, over ranks from the context's
                                      start, too */
    const int32_t *context_lens;   /* [batch] keys of the whole context, so that
                                      p = context_len - q_len + i; at least first_key + seq_len
                                      where seq_len is above 0, as a sequence may end before this
                                      part. NULL = first_key + seq_len: this part is the last */
    void        *proxy;            /* NULL or the copy of K, see >>proxy: yours, of
                                      santa_proxy_size bytes, on k's device. Read with
                                      SANTA_SCORES_PROXY only */
    int          proxy_bits;       /* of a feature in it: 4 or 2, 0 = 4 */
    const int32_t *proxy_lens;     /* [batch] keys from 0 on that have been encoded, or NULL: all
                                      whole blocks of seq_len. What lies behind is read exactly */
    const santa_buckets *buckets;  /* NULL, or the router and index of SANTA_SAAP */
    const int32_t *key_list;       /* NULL, or the keys to read, see >>lists:
                                      [batch, kv_heads, max_list], below 0 = none */
    const int32_t *key_list_lens;  /* [batch, kv_heads] entries of each list, or NULL: max_list */
    const float *key_weights;      /* as key_list, what each entry counts, or NULL: 1 */
    int64_t      max_list;         /* entries that a list has room for */
    int64_t      key_list_stride;  /* ints (and weights) from list to list, 0 = max_list */
    int          key_list_rows;    /* 1: each query row has lists of its own, key_list is
                                      [batch, q_len, kv_heads, max_list] and key_list_lens likewise */
} santa_attention;

/* Where one vAttention head's budget came from. Sums of exponentials are relative to
   exp(-max_score). */
typedef struct santa_audit {
    int64_t num_keys;              /* valid keys n */
    int64_t num_fixed;             /* sink + local + the group's heavy, each key once */
    int64_t num_residual;          /* n_s = n - num_fixed */
    int64_t num_base;              /* base sample n_b; 0 where all keys are few enough to read */
    int64_t needed;                /* b that this head asked for, base included */
    int64_t budget;                /* b that was read: the largest of the group; n_s when all were taken */
    int     exact;                 /* 1 when every key was read with weight 1 */
    double  sigma;                 /* spread of exp(s) over the residual, from the base sample; what is
                                      below some 1e-4 of exp(s) is lost in f32 sums */
    double  denominator;           /* D from fixed + base sample, sink logit included */
    double  trace;                 /* trace of the covariance of exp(s) v, v before v_scale (full
                                      guarantee only, else 0) */
    double  norm;                  /* |N| from fixed + base sample, its noise taken off, before v_scale
                                      (full guarantee only, else 0) */
    double  max_score;             /* largest score read */
    double  density;               /* (num_fixed + budget) / n */
} santa_audit;

/* Heavy-token predictor of vAttention: writes up to count key indices of [begin, end) to index
   and returns how many. Duplicates and indices outside the range are dropped; fewer than count
   (or <= 0) is fine. q is the head's query in f32, unscaled. May be called from several threads
   at once. It must not depend on anything but its arguments if the call is to be
   reproducible. */
typedef int64_t (*santa_heavy_predictor)(void *user, int64_t batch, int64_t q_index, int64_t head,
                                         const float *q, int64_t begin, int64_t end, int64_t count,
                                         int32_t *index);

/* vAttention. Token counts: 0 = default, SANTA_NONE = none. */
typedef struct santa_vattention_options {
    int64_t sink_tokens;           /* first keys taken exactly,  0 = 128 */
    int64_t local_tokens;          /* last keys taken exactly,   0 = 128 */
    int64_t heavy_tokens;          /* predicted keys per head, 0 = 2.5 % of the row's, rounded up */
    int64_t base_samples;          /* n_b,                       0 = 2.5 % of the residual, at least 32 */
    double  epsilon;               /* relative error,            0 = 0.05 */
    double  delta;                 /* chance to miss it,         0 = 0.05 */
    santa_guarantee guarantee;     /* 0 = denominator (the paper's experiments) */
    santa_bound     bound;         /* 0 = CLT */
    santa_heavy_predictor heavy;   /* NULL = exact oracle: computes all scores, reads all of K
                                      (for research); with SANTA_SCORES_PROXY its copy instead.
                                      CPU only: on a GPU give heavy_index */
    void        *heavy_user;
    santa_audit *audit;            /* [batch, q_len, heads] or NULL */
    /* NULL, or instead of a predictor your own keys: [batch, q_len, heads] rows of heavy_tokens
       (above 0) each, heavy_stride ints apart, 0 = heavy_tokens; on k's device. As a
       predictor's: -1 and whatever is no key between sink and local tokens is dropped. Over
       ranks they count from the context's start */
    const int32_t *heavy_index;
    int64_t        heavy_stride;
} santa_vattention_options;

/* SANTA_SCORES_PROXY. Token counts: 0 = default, SANTA_NONE = none, but for keys that are in no
   whole block, or not encoded. Limits: 0 = default, SANTA_NONE = never. */
typedef struct santa_proxy_options {
    int64_t sink_tokens;           /* first keys read exactly, 0 = 4 */
    int64_t local_tokens;          /* last keys read exactly, at least so many, 0 = 64 */
    int64_t rescue_keys;           /* keys of a head that a rescue reads, 0 = 2 * num_samples */
    double  rescue_above;          /* expected variance v of a head's log weights, 0 = 0.125
                                      (0.25 for a copy in 2 bits); its error grows by about
                                      exp(v / 2) */
    double  exact_above;           /* the same as found, from which the head is done again with
                                      exact scores, 0 = 1 (2 for a copy in 2 bits) */
} santa_proxy_options;

/* SANTA_SAAP. Counts: 0 = default, SANTA_NONE = none. */
typedef struct santa_saap_options {
    int64_t num_probes;            /* buckets read whole, 0 = a 32nd of them if keys are drawn, else
                                      a 16th; from a copy of K those that it scores, 0 = a
                                      quarter; at least one */
    int64_t sink_tokens;           /* first keys read exactly, 0 = 4 */
    int64_t local_tokens;          /* last keys read exactly, at least so many, 0 = 64 if keys are
                                      drawn, else 2047 */
    double  uniform_share;         /* of draws that do not ask the router, 0 = 0.1 */
    int     measure_mass;          /* 1: stats.covered_mass. Reads all of K once more, which no
                                      count of rows in stats knows of */
} santa_saap_options;

/* What SANTA_SAMPLE_ATTENTION did for one head of one sequence. Shares of blocks: of those that
   dense attention reads. */
typedef struct santa_sample_audit {
    double kept_share;             /* of its blocks of keys, 1 where the head ran dense */
    double cost;                   /* sampled rows, as a share of all: about what the first stage's
                                      scores are of dense attention's */
    double sampled_mass;           /* share of the softmax in the head's own columns and slashes, mean
                                      over the sampled rows: at least alpha_columns, alpha_slashes */
    double sampled_low;            /* the same, mean over the 1 % of them that are worst */
    double cra, low_mass;          /* smallest row_mass of the head, and mean of the 1 % smallest;
                                      SANTA_NONE without row_mass */
    int64_t columns, slashes;      /* in its own sets */
    int     is_dense;
} santa_sample_audit;

/* SANTA_SAMPLE_ATTENTION, see >>sparse. */
typedef struct santa_sample_attention_options {
    double  alpha_columns;         /* share of the sampled rows' mass that the kept columns hold, 0 =
                                      0.95; 1: all columns; SANTA_NONE: no column */
    double  alpha_slashes;         /* the same of the kept slashes */
    int64_t num_chunks;            /* slices of query rows that are sampled, at most 64, 0 = 2 */
    int64_t block_size;            /* 64 or 128 query rows and keys, 0 = 64 */
    int     per_head;              /* 0: the heads of a group read what any of them wants, so that K
                                      and V are read once; 1: each head its own blocks */
    double  dense_above;           /* a KV head runs dense if kept_share + cost is above it, 0 =
                                      0.85; SANTA_NONE = never */
    const uint8_t *mask;           /* NULL, or your own [batch, heads, q_blocks, k_blocks] of
                                      santa_mask_shape: not 0 = read. Then nothing is sampled */
    uint8_t *mask_out;             /* NULL, or where the mask that was used goes, likewise */
    santa_sample_audit *audit;     /* [batch, heads] or NULL */
    float   *row_mass;             /* [batch, q_len, heads] or NULL: share of each row's softmax in
                                      what it read, 1 where there is no key. All scores are
                                      computed for it */
} santa_sample_attention_options;

/* Runs task(context, i) for every i in [0, count), in any order, on any threads, and returns
   when all are done. */
typedef void (*santa_task)(void *context, int64_t i);
typedef void (*santa_parallel_for)(void *user, int64_t count, santa_task task, void *context);

/* One context over several ranks (processes, hosts, GPUs), see >>ranks. Zeros: it is not. */
typedef struct santa_ranks_options {
    int64_t count;                 /* ranks, at most 65536; 0 = 1 */
    int64_t rank;                  /* which of them this is, 0 .. count - 1, in the order of their keys */
    /* Puts the bytes of `mine` of all ranks side by side into `all`, by rank, on each of them;
       mine and all do not overlap. Returns 0, or the call ends with SANTA_ERR_RANKS_EXCHANGE.
       It is called by the thread that called santa_decode. On a GPU these are device memory,
       and it only puts the exchange on the stream. */
    int   (*all_gather)(void *user, const void *mine, size_t bytes, void *all, void *stream);
    void   *user;                  /* handed to all_gather, 0 = NULL */
} santa_ranks_options;

/* How. Zero everything: each zero is the default written beside it. Values out of range are
   refused whatever the method is (num_samples above SANTA_MAX_SAMPLES where it draws), and so
   is what the method would not look at: see SANTA_OPTION_LIST. */
typedef struct santa_options {
    int64_t      num_samples;      /* draws (or k of top-k) per query head (saap: per group, or
                                      SANTA_NONE), 0 = 128. First, so that {0} is C++, too */
    santa_method method;           /* 0 = dense */
    double       top_p;            /* 0 = 0.9 */
    int64_t      tile_size;        /* keys per tile of prop (multiple of 64) and flash (also 8,
                                      16, 32), 0 = 256 */
    santa_stash  stash;            /* how iid .. flash, pps keep exp(score) until the draw,
                                      0 = f32; see >>stash */
    int64_t      num_combs;        /* sys, prop, flash: the draws are those of so many
                                      independent combs (flash: per tile) of num_samples /
                                      num_combs each, at most 16, 0 = 1. From 2 on
                                      std_error is unbiased */
    int64_t      dense_below;      /* iid .. flash, pps run a row of fewer keys dense, as
                                      sampling would cost more. 0 = never; SANTA_AUTO = 16 * num_samples,
                                      see >>when. stats.dense_rows counts */
    santa_scores_method scores;    /* 0 = exact */
    int64_t      bernoulli_draws;  /* B, 0 = 4 */
    uint64_t     seed, offset;     /* see >>random */
    /* [batch] each or NULL; request_ids NULL = index in the batch */
    const uint64_t *seeds, *offsets, *request_ids;
    santa_vattention_options vattention;
    santa_proxy_options proxy;
    santa_saap_options saap;
    santa_sample_attention_options sample_attention;
    santa_ranks_options ranks;
    santa_isa    isa;              /* 0 = best of this machine */
    int64_t      num_threads;      /* 0 = 1 */
    santa_parallel_for parallel_for;
    void        *parallel_user;    /* handed to parallel_for, 0 = NULL */
    /* batch x kv_heads items to do, item = batch * kv_heads + kv_head. Both 0 = all, equal
       and not 0 = none */
    int64_t      item_begin, item_end;
    void        *stream;           /* cudaStream_t of a GPU backend, 0 = the default stream. The
                                      CPU has none: its calls are done when they return */
} santa_options;

/* The options that not every call reads, and who does: field, double or whole number (a pointer
   is one, too), default (0: it depends; rescue_above's of 4 bits), reader. One that is neither
   0 nor its default in a call that does not read it is refused (SANTA_ERR_OPTION_UNUSED): no
   option is accepted and ignored.
     draws       iid .. flash, pps                     top_p      top-p
     tiles       flash; prop without a copy            vattention vattention
     combs       sys, prop, flash                      indices    vattention with heavy_index
     stash       iid .. flash, pps; top-k from a copy  saap       saap
     bernoulli   SANTA_SCORES_BERNOULLI_*, _GROUP_*    far_draws  saap, if num_samples is not SANTA_NONE
     predictor   vattention with heavy_tokens
     copy        SANTA_SCORES_PROXY but saap's         blocks     sample-attention
     guards      sys, prop, pps from a copy            sampling   sample-attention without a mask
     scores      all; from a copy vattention only where it finds heavy tokens by scores
   What is not listed fits every call: the method; num_samples, the budget by which methods are
   compared, also with dense, which reads all, and with top-p and vattention, which find their
   own; seeds and whose they are (they do nothing where nothing is random); where and by whom
   the work is done (isa, threads, items, stream, ranks); and pointers that are handed to a
   function of yours. */
#define SANTA_OPTION_LIST(X)                                                                               \
    X(top_p,                            real,   0.9,                         top_p)                        \
    X(tile_size,                        whole,  256,                         tiles)                        \
    X(stash,                            whole,  SANTA_STASH_F32,             stash)                        \
    X(num_combs,                        whole,  1,                           combs)                        \
    X(dense_below,                      whole,  0,                           draws)                        \
    X(scores,                           whole,  SANTA_SCORES_EXACT,          scores)                       \
    X(bernoulli_draws,                  whole,  4,                           bernoulli)                    \
    X(vattention.sink_tokens,           whole,  128,                         vattention)                   \
    X(vattention.local_tokens,          whole,  128,                         vattention)                   \
    X(vattention.heavy_tokens,          whole,  0,                           vattention)                   \
    X(vattention.base_samples,          whole,  0,                           vattention)                   \
    X(vattention.epsilon,               real,   0.05,                        vattention)                   \
    X(vattention.delta,                 real,   0.05,                        vattention)                   \
    X(vattention.guarantee,             whole,  SANTA_GUARANTEE_DENOMINATOR, vattention)                   \
    X(vattention.bound,                 whole,  SANTA_BOUND_CLT,             vattention)                   \
    X(vattention.heavy,                 whole,  0,                           predictor)                    \
    X(vattention.audit,                 whole,  0,                           vattention)                   \
    X(vattention.heavy_index,           whole,  0,                           vattention)                   \
    X(vattention.heavy_stride,          whole,  0,                           indices)                      \
    X(proxy.sink_tokens,                whole,  4,                           copy)                         \
    X(proxy.local_tokens,               whole,  64,                          copy)                         \
    X(proxy.rescue_keys,                whole,  0,                           guards)                       \
    X(proxy.rescue_above,               real,   0.125,                       guards)                       \
    X(proxy.exact_above,                real,   0,                           guards)                       \
    X(saap.num_probes,                  whole,  0,                           saap)                         \
    X(saap.sink_tokens,                 whole,  4,                           saap)                         \
    X(saap.local_tokens,                whole,  0,                           saap)                         \
    X(saap.uniform_share,               real,   0.1,                         far_draws)                    \
    X(saap.measure_mass,                whole,  0,                           saap)                         \
    X(sample_attention.alpha_columns,   real,   0.95,                        sampling)                     \
    X(sample_attention.alpha_slashes,   real,   0.95,                        sampling)                     \
    X(sample_attention.num_chunks,      whole,  2,                           sampling)                     \
    X(sample_attention.block_size,      whole,  64,                          blocks)                       \
    X(sample_attention.per_head,        whole,  0,                           sampling)                     \
    X(sample_attention.dense_above,     real,   0.85,                        sampling)                     \
    X(sample_attention.mask,            whole,  0,                           blocks)                       \
    X(sample_attention.mask_out,        whole,  0,                           blocks)                       \
    X(sample_attention.audit,           whole,  0,                           blocks)                       \
    X(sample_attention.row_mass,        whole,  0,                           blocks)

/* What a call did, summed over the items it ran. "Group" = the query heads of one KV head. */
typedef struct santa_stats {
    int64_t rows;                  /* query rows x heads */
    int64_t keys;                  /* valid keys per query row and KV head: what exact attention
                                      reads of K and of V */
    int64_t k_rows_read;           /* K rows read for scores, once per group; rows that share a
                                      pass count each. From a copy of K: those drawn, redone and
                                      always read, and for each head those rescued. vattention:
                                      at most all; keys that are scored to find the heavy ones
                                      and then taken count twice */
    int64_t k_features_read;       /* K elements the group needed (all features for exact scores) */
    int64_t k_features_head;       /* the same counted per query head, summed over the group; from a
                                      copy of K the CPU counts all of the group's for each head */
    int64_t v_rows_read;           /* distinct V rows, once per group; of a list all entries */
    int64_t v_rows_head;           /* distinct V rows per query head, summed over the group; on the CPU
                                      a head done again counts those of either time */
    int64_t draws;                 /* draws made (sampled methods, flash's minimum included; of
                                      pps and saap teeth of the group's comb), residual keys
                                      (vAttention, each head's) */
    int64_t tiles, tiles_skipped;  /* prop, flash: tiles per head; those from which nothing was drawn */
    int64_t exact_rows;            /* vAttention rows (x heads) that took every key */
    int64_t dense_rows;            /* rows (x heads) of a sampled method run dense because of
                                      dense_below; of sample-attention that ran dense */
    int64_t proxy_rows_read;       /* keys scored by the copy of K, per query row and KV head */
    int64_t rescued_rows;          /* rows (x heads) whose largest proxy scores were made exact */
    int64_t redone_rows;           /* rows (x heads) done again with exact scores */
    /* saap, per query row and KV head: keys that are not always read, those of them that were
       read (their share is the selectivity), buckets read whole: those that the router chose
       and those all of whose keys were sure */
    int64_t far_rows, visited_rows, visited_buckets;
    /* of the rows (x heads) with a proxy: variance of the log weights, as expected before a row
       was read, and as found over the rows drawn; means and maxima */
    double  expected_variance, expected_variance_max;
    double  found_variance, found_variance_max;
    /* saap: num_buckets sum n_c^2 / n^2 over the far keys' buckets, and n_c / n of the largest
       that was read whole, means over query rows and KV heads; share of the softmax in the keys
       that were read, mean over rows x heads that have keys, with measure_mass */
    double  imbalance, largest_bucket, covered_mass;
} santa_stats;

/* a and o, checked, with every option's default written out: what a backend works from.
   heavy_tokens and base_samples are SANTA_AUTO where they depend on the row's keys; NULL arrays
   stay NULL, zeros of ranks stay where there are none. Of a the scales are in scale and v_scale;
   proxy_bits of 0 is 4. The pointers are a's and o's. */
typedef struct santa_problem {
    santa_attention a;
    santa_options   o;
    int64_t batch, q_len, heads, kv_heads, group, head_dim, head_dim_v;
    int64_t capacity;              /* keys that one sequence can hold */
    float   scale, v_scale;        /* sm_scale * k_scale; v_scale */
} santa_problem;

/* Structs of this file, for callers that write them in another language: see
   santa_struct_size. */
#define SANTA_STRUCT_LIST(X)                                                                               \
    X(tensor) X(buckets) X(attention) X(audit) X(vattention_options) X(proxy_options) X(saap_options)      \
    X(sample_audit) X(sample_attention_options) X(ranks_options) X(options) X(stats) X(problem)            \
    X(backend) X(stream_id) X(draws) X(budget)

/* ------------------------------------------------------------ >>decode */

/* Attention for every query row: out, and lse and std_error where asked for. workspace:
   caller's scratch of at least santa_workspace_size bytes. stats may be NULL. Tensors on
   another device are passed to that device's backend.
   Bytes touched, for each sequence and KV head: all of its K rows once for as many query rows
   as fill 16 queries of a group, or 256 in >>prefill (vAttention and Bernoulli scores: once for
   each row; vAttention with a predictor only the keys it takes), and of V the rows picked, at
   most group * num_samples for each query row (dense: all, as K). With SANTA_SCORES_PROXY the
   copy of K as K is read without (on a GPU for rows that fill 8 queries), and of K and V the
   rows drawn, those always read and those of rescues. */
SANTADEF santa_status santa_decode(const santa_attention *a, const santa_options *o, void *workspace,
                                   size_t workspace_bytes, santa_stats *stats);

/* Bytes of workspace santa_decode wants for these shapes and options; 0 if they are not valid
   (then santa_check says why). The data pointers may still be NULL, and what seq_lens,
   block_table and the like hold does not matter. */
SANTADEF size_t santa_workspace_size(const santa_attention *a, const santa_options *o);

/* Blocks of a mask of SANTA_SAMPLE_ATTENTION for a call with these shapes: block r of query
   rows has those at positions p with p / block_size - p0 / block_size = r, rounded down, p0 the
   position of row 0, both counted from first_key; a sequence may use fewer than q_blocks, and
   no more are written to mask_out. Block b of keys begins with key b * block_size. */
SANTADEF santa_status santa_mask_shape(const santa_attention *a, const santa_options *o, int64_t *q_blocks,
                                       int64_t *k_blocks);

/* All checks of santa_decode but the workspace's, and but whether pointers are to memory that a
   GPU reaches, which takes its driver. */
SANTADEF santa_status santa_check(const santa_attention *a, const santa_options *o);

SANTADEF const char *santa_status_string(santa_status s);          /* a sentence */
SANTADEF const char *santa_status_name(santa_status s);            /* "SANTA_OK", "SANTA_ERR_SHAPE", ... */
SANTADEF const char  *santa_method_name(santa_method m);          /* "dense", "iid", ... */
SANTADEF santa_method santa_method_from_name(const char *name);   /* SANTA_METHOD_COUNT if it is none */
SANTADEF unsigned     santa_method_traits(santa_method m);        /* SANTA_DRAWS | ..., 0 if it is none */

/* The first option, in the order of SANTA_OPTION_LIST, that is set and would not be read
   ("top_p", "saap.num_probes"); NULL if there is none. */
SANTADEF const char *santa_unused_option(const santa_options *o);
/* Sets those to 0: for callers that go from method to method with one set of options. What the
   method cannot do at all is left, and refused (scores and the like). */
SANTADEF void        santa_clear_unused_options(santa_options *o);

/* What a caller that cannot include this file compares before the first call: SANTA_VERSION of
   the compiled code, and sizeof of a struct, "santa_options" for one; 0 if there is no such
   struct. */
SANTADEF int    santa_version(void);
SANTADEF size_t santa_struct_size(const char *name);

/* step * 65536 + layer: an offset that differs for every layer (< 65536) and step. */
SANTADEF uint64_t santa_offset(int64_t layer, int64_t step);

/* Instruction sets: the one that SANTA_ISA_AUTO takes here, what this machine and build can
   run, and their names. */
SANTADEF santa_isa   santa_best_isa(void);
SANTADEF int         santa_isa_supported(santa_isa isa);
SANTADEF const char *santa_isa_name(santa_isa isa);

/* Checks shapes and options (not what pointers point to) and fills in the defaults. On an error
   problem is untouched. */
SANTADEF santa_status santa_problem_make(const santa_attention *a, const santa_options *o,
                                         santa_problem *problem);

/* A second backend (santa_cuda.cu registers itself when it is linked). Call before the
   first santa_decode; NULL takes one out. Its functions get the problem that
   santa_problem_make made. */
typedef struct santa_backend {
    const char *name;
    santa_status (*check)         (const santa_problem *problem);
    size_t       (*workspace_size)(const santa_problem *problem);
    santa_status (*decode)(const santa_problem *problem, void *workspace, size_t workspace_bytes,
                           santa_stats *stats);
    /* NULL, or santa_proxy_encode; from < 0: the last -from keys of each sequence, to is not
       used */
    santa_status (*proxy_encode)(const santa_attention *a, int64_t from, int64_t to, void *stream);
    /* NULL, or santa_buckets_assign */
    santa_status (*buckets_assign)(const santa_attention *a, const santa_tensor *keys, int64_t from,
                                   void *stream);
} santa_backend;
SANTADEF santa_status santa_register_backend(santa_device device, const santa_backend *backend);

/* ------------------------------------------------------------ >>proxy-api */

/* Bytes of a->proxy for a->k (block_table: NULL or not, says whether it is paged; proxy_bits),
   64 at least, also where k has no room for a whole block; 0 if these are not valid. Nothing is
   read. */
SANTADEF size_t santa_proxy_size(const santa_attention *a);

/* Encodes the keys from .. to - 1 of each sequence, as far as they are there: each block whose
   last key is one of them, from all of its keys. So ranges that follow each other encode each
   block once, in any order with the same bytes. For a page that sequences share, one of them is
   enough. Uses k, k_scales, seq_lens, proxy, proxy_bits, and of a paged cache block_table,
   max_pages, block_table_stride and q's batch size. Calls for different blocks may run at the
   same time. On a GPU: stream is a cudaStream_t, 0 = the default one, and nothing waits. Reads
   K's rows twice, from memory once; writes 69 bytes a key and KV head at head_dim 128, 4
   bits. */
SANTADEF santa_status santa_proxy_encode(const santa_attention *a, int64_t from, int64_t to, void *stream);

/* The same for the last count keys of each sequence, seq_lens included: what a decode step,
   which has added count keys, calls. */
SANTADEF santa_status santa_proxy_append(const santa_attention *a, int64_t count, void *stream);

/* ------------------------------------------------------------ >>buckets-api */

/* Bytes of buckets->index for a->k (of a paged cache: max_pages and q's batch size, too) and
   a->buckets (num_buckets, num_slots); 0 if these are not valid. Nothing is read. */
SANTADEF size_t santa_buckets_size(const santa_attention *a);

/* Puts keys from, from + 1, .. of each sequence into the index, as many as `keys` holds and
   seq_len says: keys [batch, count, kv_heads, head_dim] before RoPE, key from + i in keys[b,
   i]. from = 0 begins an index; from below what it holds takes the later ones out first; a gap
   is an error. from = -1: the last count keys of each sequence, which is what a decode step
   calls. A key with a NaN goes to bucket 0. Uses k's shape, buckets, seq_lens. o: NULL, or
   num_threads, parallel_for, parallel_user, isa, item_begin and item_end, stream as in
   santa_decode. Work: head_dim * num_buckets multiplications a key; bytes: keys once, the
   centroids once for each 128 keys up to head_dim 128, fewer beyond. On a GPU it only puts
   kernels on the stream, and the index has the same keys in the same order, not the same
   scratch words, unless a key is as near to two centroids as rounding; it does all items at
   once, and a range of some is an error. What the host cannot see there, a gap or a slot that
   two sequences have, makes an index that gives NaN. */
SANTADEF santa_status santa_buckets_assign(const santa_attention *a, const santa_tensor *keys, int64_t from,
                                           const santa_options *o);

/* Bucket of key j < held of slot's sequence, or -1 if it is not in the index. CPU only. */
SANTADEF int64_t santa_buckets_find(const santa_attention *a, int64_t slot, int64_t kv_head, int64_t key);

/* Spherical k-means (SAAP, appendix A): x[n] rows of d floats, stride floats apart; centroids
   [num_buckets, d] get unit length, each the direction of the sum of the x with the largest
   x . centroid (ties to the lower number). They start from num_buckets rows that seed picks;
   one without rows starts anew from a row that seed picks. Rows of zeros are passed over there;
   where there are no others, centroids are 0. Same input, same bits, on any number of threads
   of o (NULL: one). iterations: 0 = 10. Workspace of santa_kmeans_workspace_size bytes. */
SANTADEF santa_status santa_kmeans(const float *x, int64_t n, int64_t stride, int64_t d,
                                   int64_t num_buckets, int64_t iterations, uint64_t seed, float *centroids,
                                   const santa_options *o, void *workspace, size_t workspace_bytes);
SANTADEF size_t       santa_kmeans_workspace_size(int64_t n, int64_t d, int64_t num_buckets);

/* ------------------------------------------------------------ >>steps */

/* The steps of santa_decode, for code with its own gather or its own sampler. They give what
   santa_decode gives:
       santa_scores -> santa_sample (per head) -> santa_gather.
   The same bits, with two exceptions that agree within rounding: dense, which santa_decode sums
   block by block, and a forced isa, since santa_gather takes the best one. Other results: pps
   of a group draws for each head alone here, rows below dense_below are drawn, and
   sample-attention is exact, whatever blocks santa_decode would choose. From a copy of K the
   copy's scores are drawn from, and nothing weighs the rows by K itself: other results.
   Attention sinks are not in them: santa_merge puts one in, as a part of out 0 and lse the
   sink. CPU tensors only. */

/* Scores of one query row for the group of query heads of one KV head:
   scores[g * scores_stride + j], j < seq_len, after scale, soft cap and ALiBi; masked keys are
   -inf. scores_stride >= seq_len. Uses o->scores, isa and the random-number fields. Workspace:
   santa_workspace_size of the same a and o. */
SANTADEF santa_status santa_scores(const santa_attention *a, const santa_options *o, int64_t batch,
                                   int64_t q_index, int64_t kv_head, float *scores, int64_t scores_stride,
                                   void *workspace, size_t workspace_bytes);

/* Which random numbers a sampler takes: what santa_decode would use for that request, head
   and query row. */
typedef struct santa_stream_id { uint64_t request_id; int64_t head, q_index; } santa_stream_id;

/* Rows drawn for one head, ascending, each row once: sum of weight[i] * v[index[i]] is
   the estimate. */
typedef struct santa_draws {
    int32_t *index;                /* [capacity] caller's */
    int32_t *count;                /* [capacity] caller's or NULL: how often row i was drawn
                                      (1 for dense, top-k, top-p; pps: the
                                      teeth of the comb in it) */
    float   *weight;               /* [capacity] caller's */
    int64_t  capacity;             /* at least santa_sample_capacity */
    int64_t  rows;                 /* written: entries used */
    int64_t  draws;                /* written: sum of count */
    float    lse;                  /* written: log of the sum of exp(score) */
} santa_draws;

/* Draw rows from softmax(scores[0..n)), n > 0, -inf = masked. Every method but vattention and
   saap (dense and sample-attention give all rows with mass; pps draws for this head alone, as
   santa_decode does in a group of one). Uses o's method, num_samples, num_combs, top_p,
   tile_size, stash, isa, seed and offset. o may be that of a whole call: dense_below, scores
   and the arrays of seeds and offsets are not looked at. A sequence that has its own there
   wants them in seed and offset. NaN or +inf among the scores is ERR_NAN; no key with mass
   gives rows = 0, lse = -inf. */
SANTADEF santa_status santa_sample(const float *scores, int64_t n, const santa_options *o,
                                   santa_stream_id id, santa_draws *draws, void *workspace,
                                   size_t workspace_bytes);
SANTADEF int64_t      santa_sample_capacity(int64_t n, const santa_options *o);        /* 0 if not valid */
SANTADEF size_t       santa_sample_workspace_size(int64_t n, const santa_options *o);  /* 0 if not valid */

/* out[0..head_dim_v) = v_scale * sum of weight[i] * V[index[i]] for one sequence and KV head, a
   row times its v_scales. Reads rows of V once each, and nothing of q, k and a->out, which must
   be there. out must not overlap index, weight or V; index and weight may be those of
   santa_draws, and index may name a row twice. A key past seq_len or before kv_start is
   ERR_INDEX, one whose page is not in the block table ERR_BLOCK_TABLE. */
SANTADEF santa_status santa_gather(const santa_attention *a, int64_t batch, int64_t kv_head,
                                   const int32_t *index, const float *weight, int64_t rows, float *out);

/* Merge attention over two disjoint sets of keys, row by row, into (out, lse): out is
   [rows, head_dim_v], lse natural log. A side with lse = -inf adds nothing, whatever its out
   holds; two such sides give zeros; a NaN or +inf lse gives NaN in both. Give sinks to one of
   the sides only. The arrays must not overlap. */
SANTADEF santa_status santa_merge(int64_t rows, int64_t head_dim_v, float *out, float *lse,
                                  const float *other_out, const float *other_lse);

/* The row key and the raw words of >>random. */
SANTADEF uint32_t santa_random(uint64_t seed, uint64_t offset, uint64_t request_id, uint32_t stream,
                               uint32_t head, uint32_t q_index, uint32_t index);
SANTADEF void     santa_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t result[4]);

/* Copy K of a view without pages to feature-major memory: dst, n0 * n2 * n3 * n1 elements
   of k->dtype, gets [batch, kv_heads, head_dim, len]; the result is the view of it to put in
   a.k. Blocks (q8_0, q4_0) cannot be cut that way: of these, of NULL and of a view that is not
   valid or not the CPU's the result is all zeros, which santa_decode refuses. */
SANTADEF santa_tensor santa_keys_feature_major(const santa_tensor *k, void *dst);

/* ------------------------------------------------------------ >>budgets */

/* vAttention's sample sizes (section 4.3, appendix D). population = n_s residual keys, of which
   a uniform sample without replacement is taken. Results carry the finite-population correction
   b0 / (1 + b0 / n_s) and lie in [0, n_s]. */
typedef struct santa_budget {
    double  epsilon, delta;        /* in (0, 1) and [1e-290, 1) */
    santa_bound bound;             /* CLT: z = quantile(1 - delta/2). Hoeffding (sub-Gaussian):
                                      z = sqrt(2 ln(2/delta)) */
    int64_t population;            /* n_s */
    double  sigma, denominator;    /* std of exp(s) in the population; D, the whole denominator */
    double  trace, norm;           /* trace of the covariance of exp(s) v; |N|, the whole
                                      numerator's norm */
} santa_budget;
/* (z n_s sigma / (eps D))^2 */
SANTADEF santa_status santa_budget_denominator(const santa_budget *in, int64_t *budget);
/* (z n_s sqrt(trace) / (eps |N|))^2 */
SANTADEF santa_status santa_budget_numerator  (const santa_budget *in, int64_t *budget);
/* Theorem 4.3: the best split of (epsilon, delta) between denominator and numerator */
SANTADEF santa_status santa_budget_full       (const santa_budget *in, int64_t *budget);
SANTADEF double santa_normal_quantile(double p);  /* inverse of the normal CDF, p in (0, 1), else NaN */

/* ------------------------------------------------------------ >>measures */

/* For choosing num_samples, of which 0 is no default here, and for papers: p[n] probabilities
   (sum 1), V as n rows of dv floats, stride floats apart. All sums in double. variance = trace
   of the covariance of the estimate (appendix N), so sqrt(variance) is the RMS error of the
   output vector. */
SANTADEF santa_status santa_variance_iid  (const float *p, int64_t n, const float *v, int64_t stride,
                                           int64_t dv, int64_t num_samples, double *variance,
                                           void *workspace, size_t workspace_bytes);
SANTADEF santa_status santa_variance_strat(const float *p, int64_t n, const float *v, int64_t stride,
                                           int64_t dv, int64_t num_samples, double *variance,
                                           void *workspace, size_t workspace_bytes);
/* Exact for sys and prop: the estimate is piecewise constant in the comb's offset; all n
   breakpoints are visited. */
SANTADEF santa_status santa_variance_sys  (const float *p, int64_t n, const float *v, int64_t stride,
                                           int64_t dv, int64_t num_samples, double *variance,
                                           void *workspace, size_t workspace_bytes);
/* Exact for pps, likewise. size[n]: the largest probability of each key among the heads that
   draw together, NULL = p: one head alone. */
SANTADEF santa_status santa_variance_pps  (const float *p, const float *size, int64_t n, const float *v,
                                           int64_t stride, int64_t dv, int64_t num_samples,
                                           double *variance, void *workspace, size_t workspace_bytes);
SANTADEF size_t       santa_variance_workspace_size(int64_t n, int64_t dv);

/* Expected number of distinct rows among the draws: iid, strat, sys (= prop, pps of one
   head). */
SANTADEF santa_status santa_expected_distinct(santa_method method, const float *p, int64_t n,
                                              int64_t num_samples, double *rows);
/* 1 / sum p^2; NaN if p is not valid */
SANTADEF double       santa_effective_keys(const float *p, int64_t n);
/* |got - want| / |want|, and the cosine; NaN if got or want is NULL */
SANTADEF double       santa_relative_l2(const float *got, const float *want, int64_t n);
SANTADEF double       santa_cosine     (const float *got, const float *want, int64_t n);

/* ------------------------------------------------------------ >>convert */

/* Exact; to 16 bits round to nearest even, NaN stays NaN (quiet). */
SANTADEF float    santa_f16_to_f32 (uint16_t h);
SANTADEF uint16_t santa_f32_to_f16 (float f);
SANTADEF float    santa_bf16_to_f32(uint16_t h);
SANTADEF uint16_t santa_f32_to_bf16(float f);
SANTADEF float    santa_e4m3_to_f32(uint8_t e);    /* 1-4-3 bits, no infinity, largest 448 (OCP fp8) */
SANTADEF uint8_t  santa_f32_to_e4m3(float f);      /* nearest even; beyond 448 saturates; NaN stays NaN */
SANTADEF float    santa_e5m2_to_f32(uint8_t e);    /* 1-5-2 bits, largest 57344, infinities (OCP fp8) */
SANTADEF uint8_t  santa_f32_to_e5m2(float f);      /* nearest even; 61440 and beyond become infinite */
/* n / 32 blocks of 34 bytes, n a multiple of 32: f16 scale = largest magnitude / 127, then 32
   int8, each to the nearest: off by at most half a scale (and by the scale's own rounding at
   +-127). A block with a NaN, an infinity or a number too large for such a scale becomes NaN,
   one whose scale is below 2^-25 zeros. */
SANTADEF void     santa_f32_to_q8_0(const float *f, int64_t n, void *q8_0);
SANTADEF void     santa_q8_0_to_f32(const void *q8_0, int64_t n, float *f);
/* Likewise blocks of 18 bytes: f16 scale = the number of largest magnitude / -8, so that it is
   kept whatever its sign, the others to the nearest of -8 .. 7 scales. */
SANTADEF void     santa_f32_to_q4_0(const float *f, int64_t n, void *q4_0);
SANTADEF void     santa_q4_0_to_f32(const void *q4_0, int64_t n, float *f);
/* santa_decode multiplies q8_0 numbers in f32 with an unrounded query: nothing is lost but what
   the blocks themselves lost; unless it is asked for SANTA_SCORES_Q8. */

#ifdef __cplusplus
}
#endif
#endif /* SANTA_H */

/* ============================================================ >>implementation */
#ifdef SANTA_IMPLEMENTATION
#ifndef SANTA_IMPLEMENTATION_DONE
#if defined(SANTA_STATIC) && !defined(SANTA__IS_STATIC)
#error "define SANTA_STATIC before the first include of santa.h in a file"
#endif
#define SANTA_IMPLEMENTATION_DONE

#include <math.h>
#include <string.h>

#ifndef SANTA_ASSERT
#define SANTA_ASSERT(x) ((void)0)
#endif

#ifndef SANTA_FILENAME
#define SANTA_FILENAME "santa.h"
#endif
#if !defined(SANTA_NO_SIMD) && (defined(__GNUC__) || defined(__clang__))
#if defined(__x86_64__) || defined(__i386__)
#define SANTA__X86
#if defined(__linux__) && defined(__LP64__) && !defined(SANTA_NO_AMX) \
    && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define SANTA__AMX
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"                /* gcc's own AVX-512 functions */
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#define SANTA__ARM64
#include <arm_neon.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------ >>base */

/* Finite stand-in for -inf, so that -ffast-math may not fold comparisons away. Anything below
   the limit is masked. */
#define SANTA__MASKED       (-3.0e38f)
#define SANTA__MASK_LIMIT   (-1.0e38f)
#define SANTA__EXP_UNDERFLOW (-87.0f)       /* exp below this is 0: a key without mass must not be drawn */

#define SANTA__MIN(a, b) ((a) < (b) ? (a) : (b))
#define SANTA__MAX(a, b) ((a) > (b) ? (a) : (b))

/* Before functions that run once per call, row or head, never per key or block: code for size,
   which takes compilers less time. What only such functions call is compiled like them, but
   what is OFTEN, and so is a function that calls one on every path: prefill and dense calls
   must not. */
#if defined(__GNUC__) || defined(__clang__)
#define SANTA__ONCE __attribute__((cold))
#define SANTA__OFTEN __attribute__((hot))
#else
#define SANTA__ONCE
#define SANTA__OFTEN
#endif

static uint32_t santa__bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float santa__from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static float santa__nan(void) { return santa__from_bits(0x7fc00000u); }
static float santa__inf(void) { return santa__from_bits(0x7f800000u); }
/* What rounding has made less is 0; NaN stays NaN. */
static double santa__at_least_0(double x) { return x < 0.0 ? 0.0 : x; }
static float santa__neg_inf(void) { return santa__from_bits(0xff800000u); }

/* By bits, because -ffast-math removes isnan(). */
static int santa__is_nan(float f) { return (santa__bits(f) & 0x7fffffffu) > 0x7f800000u; }
static int santa__not_finite(float f) { return (santa__bits(f) & 0x7f800000u) == 0x7f800000u; }
/* Negative but for NaN and +infinity. */
static int32_t santa__below_inf(float f) {
    const uint32_t u = santa__bits(f);
    return (int32_t)(u & 0x7fffffffu) - (int32_t)(u >> 31) - 0x7f800000;
}
static int santa__nan_or_plus_inf(float f) { return santa__below_inf(f) >= 0; }
static int santa__not_finite_d(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return ((u >> 52) & 0x7ffu) == 0x7ffu;
}

static int santa__is_kv_only(santa_dtype t) { return (unsigned)t >= (unsigned)SANTA_E4M3; }
static int santa__is_blocks(santa_dtype t) { return t == SANTA_Q8_0 || t == SANTA_Q4_0; }

/* Bytes of n elements; of q8_0 whole blocks. */
static int64_t santa__bytes(santa_dtype t, int64_t n) {
#define SANTA__X(type, name, bytes, numbers) if (t == SANTA_##type) return n / numbers * bytes;
    SANTA_DTYPE_LIST(SANTA__X)
#undef SANTA__X
    return 0;
}

SANTADEF float santa_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 0x1fu, m = h & 0x3ffu;
    if (e == 31) return santa__from_bits(sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u));
    if (e == 0) {                                             /* zero or subnormal: m * 2^-24, exact */
        float f = (float)m * (1.0f / 16777216.0f);
        return santa__from_bits(sign | santa__bits(f));
    }
    return santa__from_bits(sign | ((e + 112u) << 23) | (m << 13));
}

/* m / 2^shift to nearest even, shift >= 1. */
static uint32_t santa__shift_even(uint32_t m, uint32_t shift) {
    uint32_t rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1);
    m >>= shift;
    return m + (rest > half || (rest == half && (m & 1u)));
}

SANTADEF uint16_t santa_f32_to_f16(float f) {
    uint32_t u = santa__bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);      /* 65520 and above round to infinity */
    if (a < 0x33000000u) return (uint16_t)sign;                   /* below half of the smallest subnormal */
    if (a >= 0x38800000u) {                                       /* normal */
        a += 0xfffu + ((a >> 13) & 1u);
        return (uint16_t)(sign | ((a >> 13) - (112u << 10)));
    }
    /* 14 .. 24 bits fall off */
    return (uint16_t)(sign | santa__shift_even((a & 0x7fffffu) | 0x800000u, 126u - (a >> 23)));
}

SANTADEF float santa_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    if ((u & 0x7fffffffu) > 0x7f800000u) u |= 0x400000u;
    return santa__from_bits(u);
}

SANTADEF uint16_t santa_f32_to_bf16(float f) {
    uint32_t u = santa__bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

SANTADEF float santa_e4m3_to_f32(uint8_t e) {
    /* the bits as f16 are the value / 256, subnormals included */
    if ((e & 0x7fu) == 0x7fu) return santa__from_bits(((uint32_t)(e & 0x80u) << 24) | 0x7fc00000u);
    return 256.0f * santa_f16_to_f32((uint16_t)((uint32_t)(e & 0x80u) << 8 | (uint32_t)(e & 0x7fu) << 7));
}

SANTADEF uint8_t santa_f32_to_e4m3(float f) {
    uint32_t u = santa__bits(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);  /* 448 and above */
    if (a >= 0x3c800000u) {                                /* 2^-6 and above: normal; may round up to 448 */
        a += 0x7ffffu + ((a >> 20) & 1u);
        return (uint8_t)(sign | ((a >> 20) - (120u << 3)));
    }
    if (a < 0x3a800000u) return (uint8_t)sign;             /* below half of the smallest subnormal, 2^-9 */
    return (uint8_t)(sign | santa__shift_even((a & 0x7fffffu) | 0x800000u, 141u - (a >> 23)));
}

SANTADEF float santa_e5m2_to_f32(uint8_t e) { return santa_f16_to_f32((uint16_t)(e << 8)); }

SANTADEF uint8_t santa_f32_to_e5m2(float f) {
    uint32_t u = santa__bits(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint8_t)(sign | 0x7eu);
    if (a >= 0x47700000u) return (uint8_t)(sign | 0x7cu);  /* 61440 and above round to infinity */
    if (a < 0x37000000u) return (uint8_t)sign;             /* below half of the smallest subnormal, 2^-16 */
    if (a >= 0x38800000u) {                                /* normal */
        a += 0xfffffu + ((a >> 21) & 1u);
        return (uint8_t)(sign | ((a >> 21) - (112u << 2)));
    }
    return (uint8_t)(sign | santa__shift_even((a & 0x7fffffu) | 0x800000u, 134u - (a >> 23)));
}

static float santa__load(santa_dtype t, const char *p) {              /* any alignment */
    uint16_t h;
    float f;
    if (t == SANTA_F32) { memcpy(&f, p, 4); return f; }
    if (t == SANTA_E4M3) return santa_e4m3_to_f32((uint8_t)*p);
    if (t == SANTA_E5M2) return santa_e5m2_to_f32((uint8_t)*p);
    memcpy(&h, p, 2);
    return t == SANTA_F16 ? santa_f16_to_f32(h) : santa_bf16_to_f32(h);
}

static uint16_t santa__u16(const char *p) { uint16_t h; memcpy(&h, p, 2); return h; }

/* Of a row with adjacent features. */
static float santa__feature(santa_dtype t, const char *row, int64_t c) {
    int x;
    if (!santa__is_blocks(t)) return santa__load(t, row + santa__bytes(t, c));
    row += santa__bytes(t, c);
    if (t == SANTA_Q8_0) x = (signed char)row[2 + c % 32];
    else x = ((unsigned char)row[2 + c % 16] >> c % 32 / 16 * 4 & 15) - 8;
    return (float)x * santa_f16_to_f32(santa__u16(row));
}

SANTADEF void santa_f32_to_q8_0(const float *f, int64_t n, void *q8_0) {
    char *p = (char *)q8_0;
    int64_t b, i;
    for (b = 0; b + 32 <= n; b += 32, p += 34) {
        float top = 0.0f, scale, inverse;
        uint16_t h;
        int bad = 0;
        for (i = 0; i < 32; i++) {
            const float a = santa__from_bits(santa__bits(f[b + i]) & 0x7fffffffu);
            bad |= santa__not_finite(a);
            top = SANTA__MAX(top, a);
        }
        h = bad ? 0x7e00u : santa_f32_to_f16(top / 127.0f);
        scale = santa_f16_to_f32(h);
        inverse = scale > 0.0f && !bad ? 1.0f / scale : 0.0f;
        memcpy(p, &h, 2);
        for (i = 0; i < 32; i++) {
            const float x = f[b + i] * inverse;
            p[2 + i] = (char)(signed char)(bad ? 1 : x > 127.0f ? 127 : x < -127.0f ? -127
                                                   : (int)floor((double)x + 0.5));
        }
    }
}

SANTADEF void santa_f32_to_q4_0(const float *f, int64_t n, void *q4_0) {
    char *p = (char *)q4_0;
    int64_t b, i;
    for (b = 0; b + 32 <= n; b += 32, p += 18) {
        float top = 0.0f, scale;
        uint16_t h;
        int bad = 0;
        for (i = 0; i < 32; i++) {
            bad |= santa__not_finite(f[b + i]);
            if (fabs((double)f[b + i]) > fabs((double)top)) top = f[b + i];
        }
        h = bad ? 0x7e00u : santa_f32_to_f16(top / -8.0f);
        scale = santa_f16_to_f32(h);
        memcpy(p, &h, 2);
        memset(p + 2, bad ? 0x99 : 0, 16);
        for (i = 0; i < 32 && !bad; i++) {
            const double d = (double)scale, x = fabs(d) > 0.0 ? floor((double)f[b + i] / d + 8.5) : 8.0;
            const int code = x > 15.0 ? 15 : x < 0.0 ? 0 : (int)x;
            p[2 + i % 16] = (char)((unsigned char)p[2 + i % 16] | code << i / 16 * 4);
        }
    }
}

SANTADEF void santa_q4_0_to_f32(const void *q4_0, int64_t n, float *f) {
    int64_t i;
    for (i = 0; i < n; i++) f[i] = santa__feature(SANTA_Q4_0, (const char *)q4_0, i);
}

SANTADEF void santa_q8_0_to_f32(const void *q8_0, int64_t n, float *f) {
    int64_t i;
    for (i = 0; i < n; i++) f[i] = santa__feature(SANTA_Q8_0, (const char *)q8_0, i);
}

static void santa__store(santa_dtype t, char *p, float f) {
    uint16_t h;
    if (t == SANTA_F32) { memcpy(p, &f, 4); return; }
    h = t == SANTA_F16 ? santa_f32_to_f16(f) : santa_f32_to_bf16(f);
    memcpy(p, &h, 2);
}

SANTADEF void santa_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t result[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    int round;
    for (round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    result[0] = c0; result[1] = c1; result[2] = c2; result[3] = c3;
}

/* One stream of >>random. The last Philox block is kept: neighbours in index share it. */
enum { SANTA__STREAM_DRAWS, SANTA__STREAM_BERNOULLI, SANTA__STREAM_VATTENTION, SANTA__STREAM_STASH };
typedef struct santa__rng {
    uint64_t block;
    uint32_t key[2], head, q_index, stream, word[4];
    int filled;
} santa__rng;

static santa__rng santa__rng_make(uint64_t seed, uint64_t offset, uint64_t request_id, uint32_t stream,
                                  uint32_t head, uint32_t q_index) {
    uint32_t key[2], counter[4], out[4];
    santa__rng r;
    key[0] = (uint32_t)seed; key[1] = (uint32_t)(seed >> 32);
    counter[0] = (uint32_t)offset; counter[1] = (uint32_t)(offset >> 32);
    counter[2] = (uint32_t)request_id; counter[3] = (uint32_t)(request_id >> 32);
    santa_philox(counter, key, out);
    memset(&r, 0, sizeof r);
    r.key[0] = out[0]; r.key[1] = out[1];
    r.head = head; r.q_index = q_index; r.stream = stream;
    return r;
}

static uint32_t santa__rng_word(santa__rng *r, uint64_t index) {
    if (!r->filled || r->block != index / 4) {
        uint32_t counter[4];
        counter[0] = (uint32_t)(index / 4); counter[1] = r->head; counter[2] = r->q_index;
        counter[3] = r->stream + ((uint32_t)(index >> 34) << 8);
        santa_philox(counter, r->key, r->word);
        r->block = index / 4;
        r->filled = 1;
    }
    return r->word[index % 4];
}

static double santa__rng_uniform(santa__rng *r, uint64_t index) {
    return (double)santa__rng_word(r, index) * (1.0 / 4294967296.0);
}

SANTADEF uint32_t santa_random(uint64_t seed, uint64_t offset, uint64_t request_id, uint32_t stream,
                               uint32_t head, uint32_t q_index, uint32_t index) {
    santa__rng r = santa__rng_make(seed, offset, request_id, stream, head, q_index);
    return santa__rng_word(&r, index);
}

/* A table: position-independent code of a switch over texts would be a chain of jumps. */
typedef struct santa__status_text { const char *name, *text; } santa__status_text;
static const santa__status_text santa__status_texts[] = {
#define SANTA__X(name, text) { "SANTA_" #name, text },
    SANTA_STATUS_LIST(SANTA__X)
#undef SANTA__X
};

static const santa__status_text *santa__status(santa_status s) {
    static const santa__status_text none = { "not a santa_status", "not a santa_status" };
    return (int)s < 0 ? &none : &santa__status_texts[SANTA__MIN((int)s, (int)SANTA_ERR_CUDA)];
}

SANTADEF const char *santa_status_string(santa_status s) {
    return santa__status(s)->text;
}

SANTADEF const char *santa_status_name(santa_status s) {
    return santa__status(s)->name;
}

SANTADEF int santa_version(void) { return SANTA_VERSION; }

SANTA__ONCE
SANTADEF size_t santa_struct_size(const char *name) {
    if (!name) return 0;
#define SANTA__X(type) if (!strcmp(name, "santa_" #type)) return sizeof(santa_##type);
    SANTA_STRUCT_LIST(SANTA__X)
#undef SANTA__X
    return 0;
}

SANTADEF uint64_t santa_offset(int64_t layer, int64_t step) {
    return ((uint64_t)step << 16) + (uint64_t)layer;
}

SANTADEF santa_tensor santa_view(const void *data, santa_dtype dtype,
                                 int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    santa_tensor t;
    memset(&t, 0, sizeof t);
    memcpy(&t.data, &data, sizeof data);  /* drops const: a view does not say who writes through it */
    t.shape[0] = n0; t.shape[1] = n1; t.shape[2] = n2; t.shape[3] = n3;
    /* unsigned products: sizes too large for memory wrap here and are refused by santa_check */
    t.stride[3] = 1;
    t.stride[2] = n3;
    t.stride[1] = (int64_t)((uint64_t)n2 * (uint64_t)n3);
    t.stride[0] = (int64_t)((uint64_t)n1 * (uint64_t)t.stride[1]);
    t.dtype = dtype;
    t.device = SANTA_CPU;
    return t;
}

SANTADEF santa_tensor santa_view_hnd(const void *data, santa_dtype dtype,
                                     int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    santa_tensor t = santa_view(data, dtype, n0, n1, n2, n3);
    t.stride[1] = n3;
    t.stride[2] = (int64_t)((uint64_t)n1 * (uint64_t)n3);
    return t;
}

/* ------------------------------------------------------------ >>kernels */

/* The inner loops, for each instruction set the same text (>>kernels-body, which this file
   includes from itself) over another vocabulary of small vector operations:
   dot         scores of n <= SANTA_BLOCK rows, see santa__queries
   dot_q8      the same for rows of q8_0 and queries as santa__pack_q8 makes them, with integer
               products
   dot_bf16    the same for rows and queries of bf16, times a scale; d a multiple of 32. NULL
               where the instruction set has no such products
   mass        of each head: max = max s, s[i] = exp(s[i] - max), sum = sum of s; n = 8, 16, 32
               or 64. Head g has s at g * s_stride, max and sum at g * stride. A NaN or +inf
               among the scores: sum is NaN, s unchanged
   exps        x[i] = exp(x[i]) for SANTA_BLOCK numbers <= 0
   copied      scores of a block of the copy of K, see santa__copied
   rotate      x = H D x of rows of f->features floats, see santa__turn
   encode      a row's codes in the copy of K, in pieces of 16 bytes a step apart, and its gain;
               turn: see santa__turn
   product     sum of a[i] b[i] over SANTA_BLOCK numbers
   sizes       of the keys of block b: size[i] = max(size[i], unit[h][b] u[h][b * SANTA_BLOCK +
               i]) over heads h; returns their sum
   widen       n features of a row as floats, then zeros up to a multiple of 16; nonzero if one
               of them is NaN or infinite
   panel       products for SANTA__PANEL queries at once, see santa__panel
   pair        of rows of floats 2i and 2i + 1, an even number of width (a multiple of 16) each,
               row i of `to`, which may be x: their bf16 in pairs. NULL where dot_bf16 is
   panel_mass  of each of them: m = max(m, its SANTA_BLOCK scores), keep = exp(old m - m), s[i]
               = exp(s[i] - m), sum = sum of s; nonzero if NaN or +inf is among the scores
   tops        of columns i < lanes, a multiple of 16, of rows of s: top[i], the largest number,
               and above[i] = rows - r, where row r has it first; 0: it is infinite or NaN
   accumulate  adds rows of dv features with weights, see santa__weights
   Rows are pointers plus a common byte offset, so that pages, strides, KV heads and gathers all
   look alike; features are adjacent. SANTA__BEYOND_K or _V more pointers follow the n, for
   prefetching. Sums over features run in the lanes of a vector, which are added pairwise.

   How many rows ahead (Zen 4, Zen 5 and Emerald Rapids agree): of one KV head 32. Of the KV
   heads of token-major rows together 12, in the order of memory, if several threads run, since
   it is memory that they wait for, and it likes that order; one thread alone waits for its own
   loads, and is faster with 20 rows of the KV head at hand (32 of them, 64 KB of 8 heads in
   f16, are much slower: their lines share few sets of the caches). Of V 32, or the next block's
   where registers hold so few columns that 32 rows of them are added up before memory answers
   (AVX2, NEON). */
#define SANTA__AHEAD 32
#define SANTA__AHEAD_TOKENS 12
#define SANTA__AHEAD_HEADS 20
#define SANTA__BEYOND_K (SANTA__AHEAD + 8)   /* pointers behind the n: rows ahead of up to 8 at a time */
#define SANTA__BEYOND_V SANTA_BLOCK
#define SANTA__SLICE 8                       /* queries at a time where their state is on the stack */
#define SANTA__PREFILL_ROWS 32               /* query rows of a call, from which on >>prefill is taken */
#define SANTA__PIECE 256                     /* queries of a piece of it, at most */
#define SANTA__PANEL 32                      /* queries side by side, see >>prefill; keys of a search */
#define SANTA__QUERIES 16       /* of several query rows together, at most; also rows, see santa__job */
#define SANTA__SPAN  8                       /* KV heads in one pass over the keys, at most */
#define SANTA__CHUNKS 32        /* parts of a row's keys with sums of their own, see santa__state */
#define SANTA__CHUNK  (8 * SANTA_BLOCK)      /* keys of such a part, at least */
#define SANTA__TEAM_KEYS 1024   /* below it threads do not share a head's keys, see santa__is_team */

/* The KV heads whose scores one pass over rows gives, a few rows at a time: K of KV head h <
   heads begins at + h * k_step bytes into a row, the packed queries of its group (see
   santa__pack) at q + h * q_step bytes, q_strip bytes from one strip of features to the next,
   and query head g < group has its scores from s + h * s_step + g * s_stride on. */
typedef struct santa__queries {
    const char *q;
    float *s, scale;                         /* scale: dot_bf16 only                    */
    int64_t heads, group, at, k_step, q_step, q_strip, s_step, s_stride;
    int in_order;                            /* of prefetches: memory's, see above      */
} santa__queries;

/* Parts of rows to prefetch: of row[0], at bytes in, that of head 0 <= head < heads; those of
   the heads lie step bytes apart, from byte first on. */
typedef struct santa__coming {
    const char *const *row;
    int64_t at, first, step, head, heads;
} santa__coming;

/* acc_g = acc_g * keep[g] + add[g] * sum_i w[g * w_stride + i] * row_i for the heads g < group,
   row i from row[i] + at on, acc_g from acc + g * acc_stride on. */
typedef struct santa__weights {
    const float *w, *keep, *add;
    float *acc;
    int64_t group, at, w_stride, acc_stride;
} santa__weights;

/* The shape of a copy of K, see >>proxy. */
enum { SANTA__PROXY_DIM = 1024 };            /* head_dim at most */
enum { SANTA__ENCODED = 4 };                 /* keys encoded together, or two of many features */
typedef struct santa__format {
    int64_t keys, chunks, features;          /* of a block; of a key, padded to whole chunks */
    int64_t dim, piece;                      /* head_dim; the largest power of two in it */
    int64_t gains, centre, scale, bytes;     /* where these begin in a block; its size */
    int64_t blocks;                          /* of a sequence or page, for each KV head */
    int bits;
    float step, middle;                      /* of codes: in standard deviations; code of 0 */
    double noise;                            /* variance of a score: noise (|q| gain)^2 */
} santa__format;

/* Queries that meet a block of the copy: rotated ones of f->features floats each and the same
   as int8 times unit[g]; less: middle times their sum. Scores go to s + g * s_stride, the
   squared gains of the keys to squares. */
typedef struct santa__copied {
    const char *codes;
    const float *q, *unit, *less;
    float *s, *squares;
    int64_t group, s_stride;
} santa__copied;

/* c[r] = sum_i a(r, i) b[i] for r < rows, a multiple of 8, and i < n; with keep, of_values
   only: c[r] = c[r] keep + that. Rows of b and c are `lanes` floats, SANTA__PANEL or half of
   it, one for each query, or key that meets centroids. a(r, i): feature i of key r, from a + r
   * stride + i on, or of_values: of value row i feature r, a + i * stride + r. pairs: in place
   of a float a and b have two bf16, of features or value rows 2i and 2i + 1; scale: of scores
   from them. */
typedef struct santa__panel {
    const float *a, *b, *keep;
    float *c, scale;
    int64_t rows, n, stride, lanes;
    int of_values, pairs;
} santa__panel;

typedef struct santa__kernels {
    void (*dot)(santa_dtype t, const char *const *row, int n, int64_t d, const santa__queries *x);
    void (*dot_q8)(const char *const *row, int n, int64_t d, const santa__queries *x);
    void (*dot_bf16)(const char *const *row, int n, int64_t d, const santa__queries *x);
    void (*mass)(float *s, int64_t s_stride, int64_t heads, int n, float *max, float *sum, int64_t stride);
    void (*exps)(float *x);
    uint64_t (*above)(const float *s, float limit);                   /* or NULL, see santa__above */
    int (*bad)(const float *s);                                       /* or NULL */
    void (*accumulate)(santa_dtype t, const char *const *row, int n, int64_t dv, const santa__weights *x);
    void (*copied)(const char *block, const santa__format *f, const santa__copied *x);
    void (*rotate)(float *x, int64_t rows, const float *turn, const santa__format *f);
    void (*encode)(santa_dtype t, const char *const *row, int n, const float *turn, const float *centre,
                   const santa__format *f, char *codes, float *gain);
    float (*product)(const float *a, const float *b);
    float (*sizes)(const float *const *u, const float *const *unit, int64_t heads, int64_t b, float *size);
    int (*widen)(santa_dtype t, const char *row, int64_t n, float *f);
    void (*panel)(const santa__panel *x);
    void (*pair)(const float *x, int64_t rows, int64_t width, float *to);
    int (*panel_mass)(float *s, float *m, float *keep, float *sum);
    void (*tops)(const float *s, int64_t rows, int64_t lanes, float *top, float *above);
} santa__kernels;

#if defined(__GNUC__) || defined(__clang__)
#define SANTA__INLINE static inline __attribute__((always_inline)) SANTA__TARGET
#define SANTA__PREFETCH(p) __builtin_prefetch(p, 0, 2)
#define SANTA__NOINLINE __attribute__((noinline, aligned(64)))   /* else what stands before costs 4 % */
#define SANTA__KEEP_ORDER() __asm__ volatile("" ::: "memory")
#ifdef __clang__
#define SANTA__ONE_COPY __attribute__((noinline))
#else
#define SANTA__ONE_COPY __attribute__((noinline, noclone))
#endif
#define SANTA__RESTRICT __restrict
#else
#define SANTA__INLINE static inline SANTA__TARGET
#define SANTA__PREFETCH(p) ((void)(p))
#define SANTA__NOINLINE
#define SANTA__ONE_COPY
#define SANTA__KEEP_ORDER() ((void)0)
#define SANTA__RESTRICT
#endif
/* gcc -O2 leaves short loops rolled and their register arrays in memory; scalar code has no
   such registers. */
#if defined(__clang__) || defined(__CUDACC__) || !defined(__GNUC__) || __GNUC__ < 8
#define SANTA__UNROLL_REGISTERS
#define SANTA__UNROLL_4
#else
#define SANTA__UNROLL_REGISTERS _Pragma("GCC unroll 16")
#define SANTA__UNROLL_4 _Pragma("GCC unroll 4")
#endif
/* Of which types prefetches stay where they are written, and which have code for 128 features,
   as measured: the other way clang's scores of 8 and 16 bits take up to 1.5 times as long,
   gcc's of q8_0 1.02 to 1.1 times. */
#ifdef __clang__
#define SANTA__IN_PLACE(t) ((t) == SANTA_F32)
#define SANTA__USUAL(t, form) ((t) != SANTA_F32)
#else
#define SANTA__IN_PLACE(t) ((t) != SANTA_Q8_0)
#define SANTA__USUAL(t, form) \
    (SANTA__LANES < 16 ? (t) == SANTA_F16 || (t) == SANTA_BF16 \
                       : (form) == SANTA__PAIRS || (t) == SANTA_F16 \
                             || ((form) == SANTA__FLOATS && (t) == SANTA_Q8_0))
#endif

/* The vocabulary: vectors of SANTA__LANES floats, of which dot keeps SANTA__KEEP_K sums in
   registers, accumulate SANTA__KEEP_V.
   vset(f)  vget(p)  vput(p, x)  vadd  vsub  vmul  vmax  vmin  vfma(a, b, c) = a * b + c
   vround: to the nearest integer              vpow2(x, n) = x * 2^n for integer n
   vfrom(x, limit, y) = x >= limit ? y : 0     vbad(x): nonzero if NaN or +inf is in it
   vabove(x, limit), but for SANTA__BY_STRIP: bit i says that lane i is not below it
   vtotal, vtop: sum and maximum of the lanes
   vsums(x, out): out[i] = sum of the lanes of x[i], i < SANTA__KEEP_K
   vtotals(x): vtotal of x[i] in lane i, the same bits
   vrow(t, row, c): features c .. of a row of K or V as floats, of e4m3 1/256 of them
   (santa__unit); c a multiple of SANTA__LANES
   vquants(k, q, less, n): products of n <= SANTA__QUANTS blocks of q8_0 and q's int8, added up
   within each block in any way; less: -128 times the sum of q's numbers, see santa__pack_q8
   vscales(k, n): the blocks' scales, in the lanes where vquants has their sums
   vints(p): int8 as floats; vbytes(p, x): stores whole numbers 0 .. 255 as bytes
   vswap(x, n): lane i ^ n in lane i, n = 1, 2, 4 .. below SANTA__LANES; not of scalar
   codes(bits, codes, step, chunks, ahead, q, stride, heads, out): sums over the features of a
   copied key's code times q's int8, for 16 keys and 4 heads or 1, as floats; step: bytes from
   chunk to chunk, ahead: from a line to one that it sends for, stride: from head to head
   vpairs(x, k, q), where SANTA__DOT_BF16: x + k[2i] q[2i] + k[2i + 1] q[2i + 1] of 2
   SANTA__LANES bf16 in lane i
   vpair(a, b), there: a and b rounded to bf16, a[i] and b[i] in lane i
   SANTA__BY_STRIP: 0: code for each type. 1: only for f32; of the others a strip of a row
   becomes floats first, by santa__unpack. */
static float santa__unit(santa_dtype t) { return t == SANTA_E4M3 ? 256.0f : 1.0f; }

/* The queries of a group as the kernels want them, so that one pointer serves all heads: for
   each strip of 32 features, padded with zeros, [heads][32] f32, or bf16 for dot_bf16. For
   dot_q8 for each strip of 64 features [heads] of: an int8 each; for each 4 of them -128 times
   their sum as int32, for products of (k + 128) q; for each 4 the f32 scale of their block of
   32. PACKED: bytes of a head in a strip. */
/* the products of dot, dot_q8, dot_bf16, santa__dot_tiles */
enum { SANTA__FLOATS, SANTA__INTEGERS, SANTA__PAIRS, SANTA__TILES };
enum { SANTA__PACK = 32, SANTA__PACKED = 4 * SANTA__PACK };
enum { SANTA__PACK_Q8 = 64, SANTA__PACKED_Q8 = 3 * SANTA__PACK_Q8 };
enum { SANTA__PACKED_TILES = 8 * SANTA__PACK, SANTA__TILES_BEYOND = 7 };       /* see santa__pack_tiles */
static int santa__packed(int form) {
    return form == SANTA__INTEGERS ? SANTA__PACKED_Q8
           : form == SANTA__FLOATS ? SANTA__PACKED
                                   : SANTA__PACKED / 2;
}

static void santa__pack(const float *q, int64_t d, int64_t heads, char *packed) {
    int64_t c;
    for (c = 0; c < d; c += SANTA__PACK, packed += heads * SANTA__PACKED) {
        memset(packed, 0, SANTA__PACKED);
        memcpy(packed, q + c, (size_t)SANTA__MIN(d - c, (int64_t)SANTA__PACK) * sizeof *q);
    }
}

/* Of features that are bf16. */
static void santa__pack_bf16(const float *q, int64_t d, int64_t heads, char *packed) {
    int64_t c;
    for (c = 0; c < d; c++) {
        const uint16_t half = (uint16_t)(santa__bits(q[c]) >> 16);
        memcpy(packed + c / SANTA__PACK * heads * santa__packed(SANTA__PAIRS) + c % SANTA__PACK * 2, &half,
               sizeof half);
    }
}

#ifdef SANTA__AMX
/* Query x of some for santa__dot_tiles: for each pair of features a row of four bf16 pairs for
   each query, whose sum is the query to the last bit, and of any number for SANTA__TILES_BEYOND
   more. Parts have the query's sign and are 0 only together: times an infinite key they are no
   NaN that the query is not. */
static void santa__pack_tiles(const float *q, int64_t d, int64_t queries, int64_t x, char *packed) {
    const int64_t row = (queries + SANTA__TILES_BEYOND) * 16;
    int64_t c;
    int i, k;
    for (c = 0, packed += x * 16; c < d; c += 2, packed += row) {
        uint32_t pairs[4] = {0};
        for (i = 0; i < 2; i++) {
            const float f = q[c + i];
            float part[4];
            part[0] = santa__from_bits(santa__bits(f) & 0xffff0000u);
            part[1] = santa__from_bits(santa__bits(f - part[0]) & 0xffff0000u);
            part[2] = f - part[0] - part[1];
            if (santa__not_finite(f)) part[0] = part[1] = part[2] = santa__is_nan(f) ? santa__nan() : f;
            for (k = 1; k < 4; k++) {
                const int halved = k == 3 || part[k] == 0.0f;
                if (halved) part[k] = part[k - 1] = 0.5f * part[k - 1];
            }
            for (k = 0; k < 4; k++) pairs[k] |= santa__bits(part[k]) >> 16 << 16 * i;
        }
        memcpy(packed, pairs, sizeof pairs);
    }
}
#endif

/* x as int8 times what is returned; NaN, and zeros, if a number is not finite. n is a multiple
   of 8: compilers make vectors of eights. */
static float santa__round_to_bytes(const float *x, int64_t n, char *code) {
    float most[8] = {0.0f}, top = 0.0f, unit;
    int64_t c;
    int bad = 0, k;
    for (c = 0; c < n; c += 8)
        for (k = 0; k < 8; k++) {
            const float size = santa__from_bits(santa__bits(x[c + k]) & 0x7fffffffu);
            bad |= santa__not_finite(size);
            most[k] = SANTA__MAX(most[k], size);
        }
    for (k = 0; k < 8; k++) top = SANTA__MAX(top, most[k]);
    unit = bad ? santa__nan() : top / 127.0f;
    if (bad || !(unit > 0.0f)) { memset(code, 0, (size_t)n); return unit; }
    for (c = 0; c < n; c += 8)
        for (k = 0; k < 8; k++) {
            const double level = (double)x[c + k] / (double)unit + 0.5;
            int down = (int)level;
            down -= (double)down > level;
            code[c + k] = (char)(signed char)(down > 127 ? 127 : down < -127 ? -127 : down);
        }
    return unit;
}

static void santa__pack_q8(const float *q, int64_t d, int64_t heads, char *packed) {
    int64_t b, i;
    for (b = 0; b < d; b += 32) {
        char *x = packed + b / SANTA__PACK_Q8 * heads * SANTA__PACKED_Q8 + b % SANTA__PACK_Q8;
        float scale;
        if (b % SANTA__PACK_Q8 == 0) memset(x, 0, SANTA__PACKED_Q8);
        scale = santa__round_to_bytes(q + b, 32, x);
        for (i = 0; i < 32; i += 4) {
            const signed char *y = (const signed char *)x + i;
            const int32_t less = -128 * (y[0] + y[1] + y[2] + y[3]);
            memcpy(x + SANTA__PACK_Q8 + i, &less, sizeof less);
            memcpy(x + 2 * SANTA__PACK_Q8 + i, &scale, sizeof scale);
        }
    }
}

/* ------------------------------------------------------------ >>kernels-scalar */

/* Of lane i in each step of the butterflies: bit k of i. */
static const float santa__signs[4][16] = {
    { 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1 },
    { 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1 },
    { 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1 },
    { 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1 }
};

#define SANTA__ISA(name) santa__##name##_scalar
#define SANTA__TARGET
#define SANTA__LANES 8
#define SANTA__KEEP_K 4
#define SANTA__KEEP_V 4
#define SANTA__QUANTS 1
#define SANTA__BY_STRIP 1
#define SANTA__V santa__v8
#define SANTA__UNROLL

static int santa__cpu_scalar(void) { return 1; }

/* Eight floats: two vectors of four where the compiler has such vectors. It makes faster code
   of them than of eight numbers, in less time. */
#if defined(__has_builtin) && !defined(__CUDACC__) && (defined(__SSE2__) || defined(__ARM_NEON))
#if __has_builtin(__builtin_convertvector)
#define SANTA__VECTORS
#endif
#endif
#ifdef SANTA__VECTORS
typedef float santa__vpart __attribute__((vector_size(16)));
typedef int32_t santa__vpart_int __attribute__((vector_size(16)));
typedef uint32_t santa__vpart_bits __attribute__((vector_size(16)));
typedef struct santa__v8 { santa__vpart l[2]; } santa__v8;
#define SANTA__EACH(result)                                                                                \
    do {                                                                                                   \
        santa__v8 y;                                                                                       \
        { enum { i }; y.l[i] = (result); }                                                                 \
        { enum { i = 1 }; y.l[i] = (result); }                                                             \
        return y;                                                                                          \
    } while (0)

SANTA__INLINE santa__vpart santa__vpart_set(float f) {
    const santa__vpart x = {f, f, f, f};
    return x;
}
SANTA__INLINE santa__vpart santa__vpart_if(santa__vpart_int yes, santa__vpart a, santa__vpart b) {
    return (santa__vpart)((yes & (santa__vpart_int)a) | (~yes & (santa__vpart_int)b));
}
SANTA__INLINE santa__vpart santa__vpart_max(santa__vpart a, santa__vpart b) {
    return santa__vpart_if(a > b, a, b);
}
SANTA__INLINE santa__vpart santa__vpart_min(santa__vpart a, santa__vpart b) {
    return santa__vpart_if(a < b, a, b);
}
SANTA__INLINE santa__vpart santa__vpart_from(santa__vpart x, float limit, santa__vpart a) {
    return (santa__vpart)((x >= santa__vpart_set(limit)) & (santa__vpart_int)a);
}
SANTA__INLINE santa__vpart santa__vpart_round(santa__vpart x) {
    const santa__vpart half =
        santa__vpart_if(x < santa__vpart_set(0.0f), santa__vpart_set(-0.5f), santa__vpart_set(0.5f));
    return __builtin_convertvector(__builtin_convertvector(x + half, santa__vpart_int), santa__vpart);
}
SANTA__INLINE santa__vpart santa__vpart_pow2(santa__vpart x, santa__vpart n) {
    const santa__vpart_bits e = (santa__vpart_bits)__builtin_convertvector(n, santa__vpart_int);
    return (santa__vpart)((santa__vpart_bits)x + (e << 23));
}
SANTA__INLINE int santa__vbad_scalar(santa__v8 x) {
    const santa__vpart_int a = (santa__vpart_int)x.l[0], b = (santa__vpart_int)x.l[1];
    const santa__vpart_int bad = ((a & 0x7fffffff) > 0x7f800000) | (a == 0x7f800000)
                                | ((b & 0x7fffffff) > 0x7f800000) | (b == 0x7f800000);
    return bad[0] | bad[1] | bad[2] | bad[3];
}
#else
typedef float santa__vpart;
typedef struct santa__v8 { float l[8]; } santa__v8;
#define SANTA__EACH(result) \
    do { santa__v8 y; int i; for (i = 0; i < 8; i++) y.l[i] = (result); return y; } while (0)

static float santa__vpart_set(float f) { return f; }
static float santa__vpart_max(float a, float b) { return SANTA__MAX(a, b); }
static float santa__vpart_min(float a, float b) { return SANTA__MIN(a, b); }
static float santa__vpart_from(float x, float limit, float a) { return x >= limit ? a : 0.0f; }
static float santa__vpart_round(float x) { return (float)(int)(x + (x < 0.0f ? -0.5f : 0.5f)); }
static float santa__vpart_pow2(float x, float n) {
    return santa__from_bits(santa__bits(x) + ((uint32_t)(int)n << 23));
}
SANTA__INLINE int santa__vbad_scalar(santa__v8 x) {
    int i, bad = 0;
    for (i = 0; i < 8; i++) bad |= santa__nan_or_plus_inf(x.l[i]);
    return bad;
}
#endif

SANTA__INLINE santa__v8 santa__vset_scalar(float f) { SANTA__EACH(santa__vpart_set(f)); }
SANTA__INLINE santa__v8 santa__vget_scalar(const float *p) {
    santa__v8 y;
    memcpy(y.l, p, sizeof y.l);
    return y;
}
SANTA__INLINE void      santa__vput_scalar(float *p, santa__v8 x) { memcpy(p, x.l, sizeof x.l); }
SANTA__INLINE santa__v8 santa__vadd_scalar(santa__v8 a, santa__v8 b) { SANTA__EACH(a.l[i] + b.l[i]); }
SANTA__INLINE santa__v8 santa__vsub_scalar(santa__v8 a, santa__v8 b) { SANTA__EACH(a.l[i] - b.l[i]); }
SANTA__INLINE santa__v8 santa__vmul_scalar(santa__v8 a, santa__v8 b) { SANTA__EACH(a.l[i] * b.l[i]); }
SANTA__INLINE santa__v8 santa__vmax_scalar(santa__v8 a, santa__v8 b) {
    SANTA__EACH(santa__vpart_max(a.l[i], b.l[i]));
}
SANTA__INLINE santa__v8 santa__vmin_scalar(santa__v8 a, santa__v8 b) {
    SANTA__EACH(santa__vpart_min(a.l[i], b.l[i]));
}
SANTA__INLINE santa__v8 santa__vfma_scalar(santa__v8 a, santa__v8 b, santa__v8 c) {
    SANTA__EACH(a.l[i] * b.l[i] + c.l[i]);
}
SANTA__INLINE santa__v8 santa__vround_scalar(santa__v8 x) { SANTA__EACH(santa__vpart_round(x.l[i])); }
SANTA__INLINE santa__v8 santa__vpow2_scalar(santa__v8 x, santa__v8 n) {
    SANTA__EACH(santa__vpart_pow2(x.l[i], n.l[i]));
}
SANTA__INLINE santa__v8 santa__vfrom_scalar(santa__v8 x, float limit, santa__v8 a) {
    SANTA__EACH(santa__vpart_from(x.l[i], limit, a.l[i]));
}
#undef SANTA__EACH
SANTA__INLINE float santa__vtotal_scalar(santa__v8 x) {
    float f[8];
    santa__vput_scalar(f, x);
    return ((f[0] + f[4]) + (f[2] + f[6])) + ((f[1] + f[5]) + (f[3] + f[7]));
}
SANTA__INLINE santa__v8 santa__vtotals_scalar(const santa__v8 *x) {
    float f[8];
    int i;
    for (i = 0; i < 8; i++) f[i] = santa__vtotal_scalar(x[i]);
    return santa__vget_scalar(f);
}
SANTA__INLINE float santa__vtop_scalar(santa__v8 x) {
    float f[8], m;
    int i;
    santa__vput_scalar(f, x);
    for (m = f[0], i = 1; i < 8; i++) m = SANTA__MAX(m, f[i]);
    return m;
}
SANTA__INLINE void santa__vsums_scalar(const santa__v8 *x, float *out) {
    int i;
    for (i = 0; i < SANTA__KEEP_K; i++) out[i] = santa__vtotal_scalar(x[i]);
}
SANTA__INLINE santa__v8 santa__vrow_scalar(santa_dtype t, const char *row, int64_t c) {
    float f[8];
    int i;
    if (t == SANTA_F32) return santa__vget_scalar((const float *)(const void *)(row + 4 * c));
    for (i = 0; i < 8; i++) f[i] = santa__feature(t, row, c + i) * (1.0f / santa__unit(t));
    return santa__vget_scalar(f);
}
SANTA__INLINE santa__v8 santa__vquants_scalar(const char *k, const char *q, const char *less, int n) {
    int sum[8] = {0}, c;
    float f[8];
    (void)less;
    for (c = 0; c < 32 * n; c++) sum[c / 4] += (int)(signed char)k[2 + c] * (int)(signed char)q[c];
    for (c = 0; c < 8; c++) f[c] = (float)sum[c];
    return santa__vget_scalar(f);
}
SANTA__INLINE santa__v8 santa__vscales_scalar(const char *k, int n) {
    (void)n;
    return santa__vset_scalar(santa_f16_to_f32(santa__u16(k)));
}
SANTA__INLINE santa__v8 santa__vints_scalar(const char *p) {
    float f[8];
    int i;
    for (i = 0; i < 8; i++) f[i] = (float)(signed char)p[i];
    return santa__vget_scalar(f);
}
SANTA__INLINE void santa__vbytes_scalar(char *p, santa__v8 x) {
    float f[8];
    int i;
    santa__vput_scalar(f, x);
    for (i = 0; i < 8; i++) p[i] = (char)(unsigned char)(int)f[i];
}
SANTA__INLINE void santa__codes_scalar(int bits, const char *codes, int64_t step, int64_t chunks,
                                       int64_t ahead, const char *q, int64_t stride, int heads,
                                       float *out) {
    const int mask = (1 << bits) - 1;
    int64_t c;
    int k, i, part;
    (void)stride; (void)heads;                                        /* one */
    for (k = 0; k < 16; k++, codes += 16) {
        const signed char *y = (const signed char *)q;
        int sum = 0;
        for (c = 0; c < chunks; c++) {
            SANTA__PREFETCH(codes + c * step + ahead);
            for (part = 0; part < 8; part += bits, y += 16)
                for (i = 0; i < 16; i++) sum += ((unsigned char)codes[c * step + i] >> part & mask) * y[i];
        }
        out[k] = (float)sum;
    }
}

/* A strip of SANTA__PACK features as vrow gives them. Without branches, so that compilers find
   vectors: an f16 below 2^-14 is right once 2^-14 is added and taken off again, an e4m3
   likewise at 2^-6. */
static void santa__unpack_f16(const char *SANTA__RESTRICT row, float *SANTA__RESTRICT f) {
    int i;
    for (i = 0; i < SANTA__PACK; i++) {
        const uint32_t h = santa__u16(row + 2 * i), u = (h & 0x7fffu) << 13;
        const uint32_t low = santa__bits(santa__from_bits(u + 0x38800000u) - 6.103515625e-5f);
        const uint32_t high =
            (u + 0x70000000u) | (u > 0x0f800000u ? 0x400000u : 0u); /* infinity, quiet NaN */
        f[i] = santa__from_bits((h & 0x8000u) << 16
                                | (u < 0x00800000u ? low : u < 0x0f800000u ? u + 0x38000000u : high));
    }
}

static void santa__unpack_bf16(const char *SANTA__RESTRICT row, float *SANTA__RESTRICT f) {
    int i;
    for (i = 0; i < SANTA__PACK; i++) f[i] = santa__from_bits((uint32_t)santa__u16(row + 2 * i) << 16);
}

static void santa__unpack_e4m3(const char *SANTA__RESTRICT row, float *SANTA__RESTRICT f) {
    int i;
    for (i = 0; i < SANTA__PACK; i++) {
        const uint32_t e = (uint8_t)row[i], u = (e & 0x7fu) << 20;
        const uint32_t low = santa__bits(santa__from_bits(u + 0x3c800000u) - 0.015625f);
        const uint32_t all = u < 0x00800000u ? low : u < 0x07f00000u ? u + 0x3c000000u : 0x7fc00000u;
        f[i] = santa__from_bits((e & 0x80u) << 24 | all) * (1.0f / 256.0f);
    }
}

static void santa__unpack_q8_0(const char *SANTA__RESTRICT row, float *SANTA__RESTRICT f) {
    const float scale = santa_f16_to_f32(santa__u16(row));
    int i;
    for (i = 0; i < SANTA__PACK; i++) f[i] = (float)(signed char)row[2 + i] * scale;
}

static void santa__unpack_e5m2(const char *SANTA__RESTRICT row, float *SANTA__RESTRICT f) {
    uint16_t h[SANTA__PACK];
    int i;
    for (i = 0; i < SANTA__PACK; i++) h[i] = (uint16_t)((uint8_t)row[i] << 8);
    santa__unpack_f16((const char *)h, f);
}

static void santa__unpack_q4_0(const char *SANTA__RESTRICT row, float *SANTA__RESTRICT f) {
    const float scale = santa_f16_to_f32(santa__u16(row));
    int i;
    for (i = 0; i < SANTA__PACK; i++)
        f[i] = (float)(((uint8_t)row[2 + i % 16] >> i / 16 * 4 & 15) - 8) * scale;
}

/* The strip: at row itself, or in f. */
static const char *santa__unpack(santa_dtype t, const char *row, float *f) {
    if (t == SANTA_F32) return row;
    if (t == SANTA_F16) santa__unpack_f16(row, f);
    else if (t == SANTA_BF16) santa__unpack_bf16(row, f);
    else if (t == SANTA_E4M3) santa__unpack_e4m3(row, f);
    else if (t == SANTA_Q8_0) santa__unpack_q8_0(row, f);
    else if (t == SANTA_E5M2) santa__unpack_e5m2(row, f);
    else santa__unpack_q4_0(row, f);
    return (const char *)f;
}

#include SANTA_FILENAME

/* ------------------------------------------------------------ >>kernels-avx2 */

#ifdef SANTA__X86
#define SANTA__ISA(name) santa__##name##_avx2
#define SANTA__TARGET __attribute__((target("avx2,fma,f16c")))
#define SANTA__LANES 8
#define SANTA__KEEP_K 12          /* of 16 registers: the others hold three rows and q; 8 would wait for */
#define SANTA__KEEP_V 8           /* themselves                                                         */
#define SANTA__QUANTS 1
#define SANTA__BY_STRIP 0
#define SANTA__V __m256
#define SANTA__UNROLL SANTA__UNROLL_REGISTERS

/* The builtins also ask whether the system saves the wide registers; every CPU with AVX2 and
   FMA has F16C. */
static int santa__cpu_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

SANTA__INLINE __m256 santa__vset_avx2(float f) { return _mm256_set1_ps(f); }
SANTA__INLINE __m256 santa__vget_avx2(const float *p) { return _mm256_loadu_ps(p); }
SANTA__INLINE void   santa__vput_avx2(float *p, __m256 x) { _mm256_storeu_ps(p, x); }
SANTA__INLINE __m256 santa__vadd_avx2(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
SANTA__INLINE __m256 santa__vsub_avx2(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
SANTA__INLINE __m256 santa__vmul_avx2(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
SANTA__INLINE __m256 santa__vmax_avx2(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
SANTA__INLINE __m256 santa__vmin_avx2(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
SANTA__INLINE __m256 santa__vfma_avx2(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
SANTA__INLINE __m256 santa__vround_avx2(__m256 x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SANTA__INLINE __m256 santa__vpow2_avx2(__m256 x, __m256 n) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
SANTA__INLINE __m256 santa__vfrom_avx2(__m256 x, float limit, __m256 a) {
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GE_OQ), a);
}
SANTA__INLINE unsigned santa__vabove_avx2(__m256 x, float limit) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ));
}
SANTA__INLINE int santa__vbad_avx2(__m256 x) {
    const __m256i b = _mm256_castps_si256(x), inf = _mm256_set1_epi32(0x7f800000);
    const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(b, _mm256_set1_epi32(0x7fffffff)), inf);
    return _mm256_movemask_epi8(_mm256_or_si256(nan, _mm256_cmpeq_epi32(b, inf)));
}
SANTA__INLINE float santa__vtotal_avx2(__m256 x) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)),
           b = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
SANTA__INLINE float santa__vtop_avx2(__m256 x) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)),
           b = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}
/* In each half a, b, c, d: the halves' sums of four vectors. */
SANTA__INLINE __m256 santa__vsums4_avx2(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256d ab = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
    __m256d cd = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)));
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
}
SANTA__INLINE __m256 santa__vhalves_avx2(__m256 a, __m256 b) { /* half 0+1 of a, then of b */
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
SANTA__INLINE void santa__vsums_avx2(const __m256 *x, float *out) {
    __m256 a = santa__vsums4_avx2(x[0], x[1], x[2], x[3]), b = santa__vsums4_avx2(x[4], x[5], x[6], x[7]);
    __m256 c = santa__vsums4_avx2(x[8], x[9], x[10], x[11]);
    _mm256_storeu_ps(out, santa__vhalves_avx2(a, b));
    _mm_storeu_ps(out + 8, _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
}
SANTA__INLINE __m256 santa__vtotals_avx2(const __m256 *x) {
    return santa__vsums4_avx2(santa__vhalves_avx2(x[0], x[4]), santa__vhalves_avx2(x[1], x[5]),
                              santa__vhalves_avx2(x[2], x[6]), santa__vhalves_avx2(x[3], x[7]));
}
SANTA__INLINE __m256 santa__vrow_avx2(santa_dtype t, const char *row, int64_t c) {
    if (t == SANTA_F32) return _mm256_loadu_ps((const float *)(const void *)(row + 4 * c));
    if (t == SANTA_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(row + 2 * c)));
    if (t == SANTA_BF16) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * c));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    if (t == SANTA_Q8_0) {
        const char *block = row + c / 32 * 34;
        __m256 f = _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(block + 2 + c % 32))));
        return _mm256_mul_ps(f, _mm256_cvtph_ps(_mm_set1_epi16((short)santa__u16(block))));
    }
    if (t == SANTA_E5M2)
        return _mm256_cvtph_ps(_mm_unpacklo_epi8(
            _mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(const void *)(row + c))));
    if (t == SANTA_Q4_0) {
        const char *block = row + c / 32 * 18;
        __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)(block + 2 + c % 16));
        x = _mm_and_si128(_mm_srl_epi16(x, _mm_cvtsi32_si128((int)(c % 32 / 16 * 4))), _mm_set1_epi8(15));
        x = _mm_sub_epi8(x, _mm_set1_epi8(8));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                             _mm256_cvtph_ps(_mm_set1_epi16((short)santa__u16(block))));
    }
    {                                                 /* e4m3's bits, the sign moved up, are an f16 */
        __m128i h = _mm_slli_epi16(
                    _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(row + c))), 7),
                nan;
        h = _mm_and_si128(h, _mm_set1_epi16((short)0xbf80));
        nan = _mm_or_si128(h, _mm_set1_epi16((short)0x8000));
        nan = _mm_cmpeq_epi16(nan, _mm_set1_epi16((short)0xbf80));
        return _mm256_cvtph_ps(_mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
    }
}
SANTA__INLINE __m256i santa__bytes16_avx2(const char *p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}
SANTA__INLINE __m256 santa__vquants_avx2(const char *k, const char *q, const char *less, int n) {
    (void)less; (void)n;
    return _mm256_cvtepi32_ps(
        _mm256_add_epi32(_mm256_madd_epi16(santa__bytes16_avx2(k + 2), santa__bytes16_avx2(q)),
                         _mm256_madd_epi16(santa__bytes16_avx2(k + 18), santa__bytes16_avx2(q + 16))));
}
SANTA__INLINE __m256 santa__vscales_avx2(const char *k, int n) {
    (void)n;
    return _mm256_cvtph_ps(_mm_set1_epi16((short)santa__u16(k)));
}
SANTA__INLINE __m256 santa__vints_avx2(const char *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
SANTA__INLINE __m256 santa__vswap_avx2(__m256 x, int n) {
    return n == 1 ? _mm256_permute_ps(x, 0xb1) : n == 2 ? _mm256_permute_ps(x, 0x4e)
                                                        : _mm256_permute2f128_ps(x, x, 1);
}
SANTA__INLINE void santa__vbytes_avx2(char *p, __m256 x) {
    const __m256i i = _mm256_cvtps_epi32(x);
    const __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(h, h));
}
/* Four keys at a time, two in a vector; a chunk's products fit into 16 bits. */
SANTA__INLINE void santa__codes_avx2(int bits, const char *codes, int64_t step, int64_t chunks,
                                     int64_t ahead, const char *q, int64_t stride, int heads, float *out) {
    const __m256i mask = _mm256_set1_epi8((char)((1 << bits) - 1)), ones = _mm256_set1_epi16(1);
    const int parts = 8 / bits;
    int k, g, part, v;
    for (k = 0; k < 16; k += 4, codes += 64) {
        __m256i sum[8];
        const char *x = codes, *y = q;
        int64_t c;
        SANTA__UNROLL
        for (g = 0; g < 8; g++) sum[g] = _mm256_setzero_si256();
        for (c = 0; c < chunks; c++, x += step, y += 128 / bits) {
            __m256i pair[2], both[8];
            SANTA__PREFETCH(x + ahead);
            SANTA__UNROLL
            for (v = 0; v < 2; v++)
                pair[v] = _mm256_loadu_si256((const __m256i *)(const void *)(x + 32 * v));
            SANTA__UNROLL
            for (part = 0; part < parts; part++) {
                SANTA__UNROLL
                for (v = 0; v < 2; v++) {
                    const __m256i code = _mm256_and_si256(pair[v], mask);
                    SANTA__UNROLL
                    for (g = 0; g < heads; g++) {
                        const __m256i f = _mm256_maddubs_epi16(
                            code, _mm256_broadcastsi128_si256(_mm_loadu_si128(
                                      (const __m128i *)(const void *)(y + g * stride + 16 * part))));
                        both[2 * g + v] = part == 0 ? f : _mm256_add_epi16(both[2 * g + v], f);
                    }
                    pair[v] = bits == 4 ? _mm256_srli_epi16(pair[v], 4) : _mm256_srli_epi16(pair[v], 2);
                }
            }
            SANTA__UNROLL
            for (g = 0; g < 2 * heads; g++)
                sum[g] = _mm256_add_epi32(sum[g], _mm256_madd_epi16(both[g], ones));
        }
        SANTA__UNROLL
        for (g = 0; g < heads; g++) {            /* keys 0, 2 in the lower half, 1, 3 in the upper one */
            __m256i x4 = _mm256_hadd_epi32(sum[2 * g], sum[2 * g + 1]);
            x4 = _mm256_hadd_epi32(x4, x4);
            _mm_storeu_ps(out + 16 * g + k,
                          _mm_cvtepi32_ps(_mm_unpacklo_epi32(_mm256_castsi256_si128(x4),
                                                             _mm256_extracti128_si256(x4, 1))));
        }
    }
}

#include SANTA_FILENAME

/* ------------------------------------------------------------ >>kernels-avx512 */

#define SANTA__ISA(name) santa__##name##_avx512
#define SANTA__TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define SANTA__LANES 16
#define SANTA__KEEP_K 16                     /* of 32 registers */
#define SANTA__KEEP_V 16
#define SANTA__QUANTS 2
#define SANTA__BY_STRIP 0
#define SANTA__V __m512
#define SANTA__UNROLL SANTA__UNROLL_REGISTERS

static int santa__cpu_avx512(void) {
    return santa__cpu_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
           && __builtin_cpu_supports("avx512vnni");
}

SANTA__INLINE __m512 santa__vset_avx512(float f) { return _mm512_set1_ps(f); }
SANTA__INLINE __m512 santa__vget_avx512(const float *p) { return _mm512_loadu_ps(p); }
SANTA__INLINE void   santa__vput_avx512(float *p, __m512 x) { _mm512_storeu_ps(p, x); }
SANTA__INLINE __m512 santa__vadd_avx512(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
SANTA__INLINE __m512 santa__vsub_avx512(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
SANTA__INLINE __m512 santa__vmul_avx512(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
SANTA__INLINE __m512 santa__vmax_avx512(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
SANTA__INLINE __m512 santa__vmin_avx512(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
SANTA__INLINE __m512 santa__vfma_avx512(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
SANTA__INLINE __m512 santa__vround_avx512(__m512 x) {                  /* 8: whatever fesetround says */
    return _mm512_cvtepi32_ps(_mm512_cvt_roundps_epi32(x, 8));
}
SANTA__INLINE __m512 santa__vpow2_avx512(__m512 x, __m512 n) { return _mm512_scalef_ps(x, n); }
SANTA__INLINE __m512 santa__vfrom_avx512(__m512 x, float limit, __m512 a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), a);
}
SANTA__INLINE unsigned santa__vabove_avx512(__m512 x, float limit) {
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ);
}
SANTA__INLINE int santa__vbad_avx512(__m512 x) {                      /* quiet, signalling NaN; +inf */
    return (int)_mm512_fpclass_ps_mask(x, 0x89);
}
SANTA__INLINE float santa__vtotal_avx512(__m512 x) {
    return santa__vtotal_avx2(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
SANTA__INLINE float santa__vtop_avx512(__m512 x) {
    return santa__vtop_avx2(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
SANTA__INLINE __m512 santa__vsums4_avx512(__m512 a, __m512 b, __m512 c, __m512 d) {        /* by quarters */
    __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
}
SANTA__INLINE __m512 santa__vfold_avx512(__m512 a, __m512 b) { /* quarters 0+1, 2+3 of a, then of b */
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
SANTA__INLINE void santa__vsums_avx512(const __m512 *x, float *out) {
    __m512 a = santa__vsums4_avx512(x[0], x[1], x[2], x[3]),
           b = santa__vsums4_avx512(x[4], x[5], x[6], x[7]);
    __m512 c = santa__vsums4_avx512(x[8], x[9], x[10], x[11]),
           d = santa__vsums4_avx512(x[12], x[13], x[14], x[15]);
    _mm512_storeu_ps(out, santa__vfold_avx512(santa__vfold_avx512(a, b), santa__vfold_avx512(c, d)));
}
/* Quarters (0+2) + (1+3) of x[0], x[4], x[8], x[12]. */
SANTA__INLINE __m512 santa__vhalves_avx512(const __m512 *x) {
    return santa__vfold_avx512(
        _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[4], 0x44), _mm512_shuffle_f32x4(x[0], x[4], 0xee)),
        _mm512_add_ps(_mm512_shuffle_f32x4(x[8], x[12], 0x44), _mm512_shuffle_f32x4(x[8], x[12], 0xee)));
}
SANTA__INLINE __m512 santa__vtotals_avx512(const __m512 *x) {
    return santa__vsums4_avx512(santa__vhalves_avx512(x), santa__vhalves_avx512(x + 1),
                                santa__vhalves_avx512(x + 2), santa__vhalves_avx512(x + 3));
}
SANTA__INLINE __m512 santa__vrow_avx512(santa_dtype t, const char *row, int64_t c) {
    if (t == SANTA_F32) return _mm512_loadu_ps((const float *)(const void *)(row + 4 * c));
    if (t == SANTA_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * c)));
    if (t == SANTA_BF16) {
        __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * c));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    }
    if (t == SANTA_Q8_0) {
        const char *block = row + c / 32 * 34;
        __m512 f = _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(block + 2 + c % 32))));
        return _mm512_mul_ps(f, _mm512_cvtph_ps(_mm256_set1_epi16((short)santa__u16(block))));
    }
    if (t == SANTA_E5M2)
        return _mm512_cvtph_ps(_mm256_slli_epi16(
            _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(row + c))), 8));
    if (t == SANTA_Q4_0) {
        const char *block = row + c / 32 * 18;
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(block + 2));
        x = _mm_and_si128(_mm_srl_epi16(x, _mm_cvtsi32_si128((int)(c % 32 / 16 * 4))), _mm_set1_epi8(15));
        x = _mm_sub_epi8(x, _mm_set1_epi8(8));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)),
                             _mm512_cvtph_ps(_mm256_set1_epi16((short)santa__u16(block))));
    }
    {                                                 /* e4m3's bits, the sign moved up, are an f16 */
        __m256i h = _mm256_slli_epi16(
            _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(row + c))), 7);
        h = _mm256_and_si256(h, _mm256_set1_epi16((short)0xbf80));
        h = _mm256_mask_mov_epi16(
            h,
            _mm256_cmpeq_epi16_mask(_mm256_or_si256(h, _mm256_set1_epi16((short)0x8000)),
                                    _mm256_set1_epi16((short)0xbf80)),
            _mm256_set1_epi16(0x7e00));
        return _mm512_cvtph_ps(h);
    }
}
/* The instruction wants one side unsigned. Of one block alone the upper half is 128, and q
   there 0. */
SANTA__INLINE __m512 santa__vquants_avx512(const char *k, const char *q, const char *less, int n) {
    __m512i x = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(k + 2)));
    if (n > 1) x = _mm512_inserti64x4(x, _mm256_loadu_si256((const __m256i *)(const void *)(k + 36)), 1);
    x = _mm512_xor_si512(x, _mm512_set1_epi8(-128));
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_loadu_si512(less), x, _mm512_loadu_si512(q)));
}
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10        /* whose assemblers know it */
#define SANTA__DOT_BF16
/* Not on Intel, where converting is faster. */
#define SANTA__CPU_BF16 (__builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("intel"))
/* Its intrinsic would ask for a target of its own. */
SANTA__INLINE __m512 santa__vpairs_avx512(__m512 x, __m512 k, __m512 q) {
    __asm__("vdpbf16ps {%2, %1, %0|%0, %1, %2}" : "+v"(x) : "v"(k), "vm"(q));
    return x;
}
SANTA__INLINE __m512 santa__vpair_avx512(__m512 a, __m512 b) {                  /* b's follow a's */
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i both = _mm512_or_si512(low, _mm512_slli_epi32(low, 16));
    const __m512i order = _mm512_or_si512(both, _mm512_set1_epi32(16 << 16));
    __m512 x;
    __asm__("vcvtne2ps2bf16 {%2, %1, %0|%0, %1, %2}" : "=v"(x) : "v"(b), "vm"(a));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, _mm512_castps_si512(x)));
}
#endif
SANTA__INLINE __m512 santa__vscales_avx512(const char *k, int n) {
    const __m256i h = _mm256_zextsi128_si256(_mm_set1_epi16((short)santa__u16(k)));
    return _mm512_cvtph_ps(
        n < 2 ? h : _mm256_inserti128_si256(h, _mm_set1_epi16((short)santa__u16(k + 34)), 1));
}

SANTA__INLINE __m512 santa__vints_avx512(const char *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
SANTA__INLINE __m512 santa__vswap_avx512(__m512 x, int n) {
    return n == 1   ? _mm512_permute_ps(x, 0xb1)
           : n == 2 ? _mm512_permute_ps(x, 0x4e)
           : n == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                    : _mm512_shuffle_f32x4(x, x, 0x4e);
}
SANTA__INLINE void santa__vbytes_avx512(char *p, __m512 x) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
SANTA__INLINE void santa__codes_avx512(int bits, const char *codes, int64_t step, int64_t chunks,
                                       int64_t ahead, const char *q, int64_t stride, int heads,
                                       float *out) {
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const int parts = 8 / bits;
    __m512i sum[16];
    int64_t c;
    int g, part, v;
    SANTA__UNROLL
    for (g = 0; g < 4 * heads; g++) sum[g] = _mm512_setzero_si512();
    for (c = 0; c < chunks; c++, codes += step, q += 128 / bits) {
        __m512i four[4];
        SANTA__UNROLL
        for (v = 0; v < 4; v++) four[v] = _mm512_loadu_si512(codes + 64 * v);
        SANTA__UNROLL
        for (part = 0; part < parts; part++) {
            __m512i y[4];
            SANTA__UNROLL
            for (g = 0; g < heads; g++)
                y[g] = _mm512_broadcast_i32x4(
                    _mm_loadu_si128((const __m128i *)(const void *)(q + g * stride + 16 * part)));
            SANTA__UNROLL
            for (v = 0; v < 4; v++) {
                const __m512i code = _mm512_and_si512(four[v], mask);
                if (v % parts == 0) SANTA__PREFETCH(codes + ahead + 64 * ((4 * part + v) / parts));
                SANTA__KEEP_ORDER();             /* a line at a time, or the CPU drops some */
                SANTA__UNROLL
                for (g = 0; g < heads; g++)
                    sum[4 * g + v] = _mm512_dpbusd_epi32(sum[4 * g + v], code, y[g]);
                four[v] = bits == 4 ? _mm512_srli_epi16(four[v], 4) : _mm512_srli_epi16(four[v], 2);
            }
        }
    }
    SANTA__UNROLL
    for (g = 0; g < heads; g++) {                /* four keys in a vector; their sums side by side */
        const __m512i *x = sum + 4 * g;
        const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]),
                                           _mm512_unpackhi_epi32(x[0], x[1])),
                      b = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]),
                                           _mm512_unpackhi_epi32(x[2], x[3]));
        const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        _mm512_storeu_ps(out + 16 * g, _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, all)));
    }
}

#include SANTA_FILENAME
#endif

/* ------------------------------------------------------------ >>kernels-amx */

/* Scores of bf16 K for groups of more than four heads; the rest is AVX-512's. 16 rows of K, as
   they lie in memory, are a tile, 32 features of four queries another (see santa__pack_tiles).
   With four heads or fewer it is memory that both AVX-512 and tiles wait for. */
#ifdef SANTA__AMX
/* Linux lends the tiles to a process that asks for them: XTILEDATA, 18, by arch_prctl's
   ARCH_REQ_XCOMP_PERM. Asked once: the question, and cpuid, take longer than a small call. */
static int santa__ask_for_tiles(void) {
    const unsigned wanted = 1u << 22 | 1u << 24;                      /* amx-bf16, amx-tile */
    unsigned a = 0, c = 0, d = 0;
    long status = -1;
    __asm__ volatile("cpuid" : "+a"(a), "+c"(c), "=d"(d) : : "rbx");
    if (a < 7) return 0;
    a = 7;
    c = 0;
    __asm__ volatile("cpuid" : "+a"(a), "+c"(c), "=d"(d) : : "rbx");
    if ((d & wanted) != wanted) return 0;
    c = 0;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(c));
    if ((a >> 17 & 3) != 3) return 0;                                 /* of the system: both parts of it */
    __asm__ volatile("syscall" : "=a"(status) : "a"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return status == 0;
}

static int santa__cpu_amx(void) {
    static int answer;                       /* 0: not asked so far, 1: no, 2: yes */
    int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (!santa__cpu_avx512()) return 0;
    if (!known) {
        known = 1 + santa__ask_for_tiles();
        __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
    }
    return known == 2;
}

#define SANTA__TARGET \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-bf16")))

/* Of up to four heads and 16 rows: a row's four parts of each head side by side. */
SANTA__TARGET SANTA__NOINLINE static void santa__add_parts(const float *parts, int heads, int n, float *s,
                                                           int64_t s_stride) {
    int i, g;
    for (i = 0; i < n; i += 4, parts += 64) {
        const __m512 x = santa__vsums4_avx512(_mm512_loadu_ps(parts), _mm512_loadu_ps(parts + 16),
                                              _mm512_loadu_ps(parts + 32), _mm512_loadu_ps(parts + 48));
        float sum[16];
        if (heads == 4 && i + 4 <= n) {
            _mm_storeu_ps(s + i, _mm512_castps512_ps128(x));
            _mm_storeu_ps(s + i + s_stride, _mm512_extractf32x4_ps(x, 1));
            _mm_storeu_ps(s + i + 2 * s_stride, _mm512_extractf32x4_ps(x, 2));
            _mm_storeu_ps(s + i + 3 * s_stride, _mm512_extractf32x4_ps(x, 3));
            continue;
        }
        _mm512_storeu_ps(sum, x);
        for (g = 0; g < heads; g++)
            memcpy(s + g * s_stride + i, sum + 4 * g, (size_t)SANTA__MIN(n - i, 4) * sizeof *s);
    }
}

/* The tiles are set up and given back here, so no other code meets them. */
SANTA__TARGET SANTA__NOINLINE static void santa__dot_tiles(const char *const *row, int n, int64_t d,
                                                           const santa__queries *x) {
    enum { ROWS = 16, AHEAD = 24 };
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = { 1, 0, {0}, {64, 64, 64, 64, 64}, {ROWS, ROWS, ROWS, 16, 16} };
    const int64_t strips = d / SANTA__PACK, sends = (ROWS + strips - 1) / strips, line = x->q_strip / 16;
    float parts[2][16 * ROWS];               /* as if written here: sanitizers do not see what tiles do */
    char copy[ROWS * 64];
    int64_t h, g, c, b;
    int i, k;
    memset(parts, 0, sizeof parts);
    _tile_loadconfig(&config);
    for (h = 0; h < x->heads; h++)           /* 16 rows of all heads would not fit the first cache */
        for (i = 0; i < n; i += ROWS) {
            const int few = SANTA__MIN(n - i, (int)ROWS);
            const int64_t start = x->at + h * x->k_step;
            const char *const *r = row + i, *const *coming = r + AHEAD, *last[ROWS];
            int64_t step;
            int evenly = 1;
            if (few < ROWS) {
                for (k = 0; k < ROWS; k++) last[k] = r[SANTA__MIN(k, few - 1)];
                r = last;
            }
            step = r[1] - r[0];
            for (k = 2; k < ROWS; k++) evenly &= r[k] - r[k - 1] == step;
            for (g = 0; g < x->group; g += 8) {
                const int heads = (int)SANTA__MIN(x->group - g, (int64_t)8);
                const char *q = x->q + h * x->q_step + 16 * g;
                float *s = x->s + h * x->s_step + g * x->s_stride + i;
                int64_t at = start, to_send = g > 0 ? 0 : ROWS;
                _tile_zero(0);
                _tile_zero(1);
                for (c = 0; c < strips; c++, at += 64, q += x->q_strip) {
                    for (k = 0; k < sends && to_send > 0; k++, to_send--) {
                        const char *p = *coming++ + start;
                        SANTA__UNROLL_4
                        for (b = 0; b < 2 * d; b += 64) __builtin_prefetch(p + b, 0, 3);
                        SANTA__KEEP_ORDER();
                    }
                    if (!evenly)
                        for (k = 0; k < ROWS; k++)
                            _mm512_storeu_si512(copy + 64 * k, _mm512_loadu_si512(r[k] + at));
                    SANTA__KEEP_ORDER();
                    _tile_loadd(2, evenly ? r[0] + at : copy, evenly ? step : 64);
                    _tile_loadd(3, q, line);
                    _tile_dpbf16ps(0, 2, 3);
                    if (heads > 4) {
                        _tile_loadd(4, q + 64, line);
                        _tile_dpbf16ps(1, 2, 4);
                    }
                }
                _tile_stored(0, parts[0], 64);
                santa__add_parts(parts[0], SANTA__MIN(heads, 4), few, s, x->s_stride);
                if (heads <= 4) continue;
                _tile_stored(1, parts[1], 64);
                santa__add_parts(parts[1], heads - 4, few, s + 4 * x->s_stride, x->s_stride);
            }
        }
    _tile_release();
}
#undef SANTA__TARGET
#endif

/* ------------------------------------------------------------ >>kernels-neon */

#ifdef SANTA__ARM64
#define SANTA__ISA(name) santa__##name##_neon
#define SANTA__TARGET
#define SANTA__LANES 4
#define SANTA__KEEP_K 16                     /* of 32 registers */
#define SANTA__KEEP_V 16
#define SANTA__QUANTS 1
#define SANTA__BY_STRIP 0
#define SANTA__V float32x4_t
#define SANTA__UNROLL SANTA__UNROLL_REGISTERS

static int santa__cpu_neon(void) { return 1; }

SANTA__INLINE float32x4_t santa__vset_neon(float f) { return vdupq_n_f32(f); }
SANTA__INLINE float32x4_t santa__vget_neon(const float *p) { return vld1q_f32(p); }
SANTA__INLINE void        santa__vput_neon(float *p, float32x4_t x) { vst1q_f32(p, x); }
SANTA__INLINE float32x4_t santa__vadd_neon(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
SANTA__INLINE float32x4_t santa__vsub_neon(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
SANTA__INLINE float32x4_t santa__vmul_neon(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
/* b, where one of the two is a NaN, as the others have it. */
SANTA__INLINE float32x4_t santa__vmax_neon(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
SANTA__INLINE float32x4_t santa__vmin_neon(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
SANTA__INLINE float32x4_t santa__vfma_neon(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vfmaq_f32(c, a, b);
}
SANTA__INLINE float32x4_t santa__vround_neon(float32x4_t x) { return vrndnq_f32(x); }
SANTA__INLINE float32x4_t santa__vpow2_neon(float32x4_t x, float32x4_t n) {
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
SANTA__INLINE float32x4_t santa__vfrom_neon(float32x4_t x, float limit, float32x4_t a) {
    return vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, vdupq_n_f32(limit)), vreinterpretq_u32_f32(a)));
}
SANTA__INLINE unsigned santa__vabove_neon(float32x4_t x, float limit) {
    static const uint32_t bit[4] = {1, 2, 4, 8};
    return vaddvq_u32(vbicq_u32(vld1q_u32(bit), vcltq_f32(x, vdupq_n_f32(limit))));
}
SANTA__INLINE int santa__vbad_neon(float32x4_t x) {
    const uint32x4_t b = vreinterpretq_u32_f32(x), inf = vdupq_n_u32(0x7f800000u);
    return vmaxvq_u32(vorrq_u32(vcgtq_u32(vandq_u32(b, vdupq_n_u32(0x7fffffffu)), inf), vceqq_u32(b, inf)))
           != 0;
}
SANTA__INLINE float santa__vtotal_neon(float32x4_t x) { return vaddvq_f32(x); }
SANTA__INLINE float santa__vtop_neon(float32x4_t x) { return vmaxvq_f32(x); }
SANTA__INLINE void santa__vsums_neon(const float32x4_t *x, float *out) {
    int i;
    for (i = 0; i < SANTA__KEEP_K; i += 4)
        vst1q_f32(out + i, vpaddq_f32(vpaddq_f32(x[i], x[i + 1]), vpaddq_f32(x[i + 2], x[i + 3])));
}
SANTA__INLINE float32x4_t santa__vtotals_neon(const float32x4_t *x) {
    return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
}
SANTA__INLINE float32x4_t santa__vrow_neon(santa_dtype t, const char *row, int64_t c) {
    if (t == SANTA_F32) { float f[4]; memcpy(f, row + 4 * c, sizeof f); return vld1q_f32(f); }
    if (t == SANTA_F16 || t == SANTA_BF16) {
        uint16_t h[4];
        memcpy(h, row + 2 * c, sizeof h);
        if (t == SANTA_F16) return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(h), 16));
    }
    if (t == SANTA_Q8_0) {
        const char *block = row + c / 32 * 34;
        int8_t b[8] = {0};
        memcpy(b, block + 2 + c % 32, 4);
        return vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(b))))),
                           santa_f16_to_f32(santa__u16(block)));
    }
    if (t == SANTA_E5M2) {
        uint8_t b[8] = {0};
        memcpy(b, row + c, 4);
        return vcvt_f32_f16(
            vreinterpret_f16_u16(vshl_n_u16(vget_low_u16(vmovl_u8(vld1_u8(b))), 8)));
    }
    if (t == SANTA_Q4_0) {
        const char *block = row + c / 32 * 18;
        uint8_t b[8] = {0};
        uint8x8_t x;
        memcpy(b, block + 2 + c % 16, 4);
        x = vand_u8(vshl_u8(vld1_u8(b), vdup_n_s8((int8_t)(-(c % 32 / 16 * 4)))), vdup_n_u8(15));
        x = vsub_u8(x, vdup_n_u8(8));
        return vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(x))))),
                           santa_f16_to_f32(santa__u16(block)));
    }
    {                                                 /* e4m3's bits, the sign moved up, are an f16 */
        int8_t b[8] = {0};
        uint16x4_t h, nan;
        memcpy(b, row + c, 4);
        h = vand_u16(vshl_n_u16(vreinterpret_u16_s16(vget_low_s16(vmovl_s8(vld1_s8(b)))), 7),
                     vdup_n_u16(0xbf80u));
        nan = vceq_u16(vorr_u16(h, vdup_n_u16(0x8000u)), vdup_n_u16(0xbf80u));
        return vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(h, vand_u16(nan, vdup_n_u16(0x7e00u)))));
    }
}
SANTA__INLINE int8x16_t santa__bytes16_neon(const char *p) {
    return vreinterpretq_s8_u8(vld1q_u8((const uint8_t *)(const void *)p));
}
SANTA__INLINE float32x4_t santa__vquants_neon(const char *k, const char *q, const char *less, int n) {
    const int8x16_t x = santa__bytes16_neon(k + 2), z = santa__bytes16_neon(k + 18);
    const int8x16_t y = santa__bytes16_neon(q), w = santa__bytes16_neon(q + 16);
    (void)less; (void)n;
#ifdef __ARM_FEATURE_DOTPROD
    return vcvtq_f32_s32(vdotq_s32(vdotq_s32(vdupq_n_s32(0), x, y), z, w));
#else                                 /* two products of int8 fit into 16 bits: q is no -128 */
    const int16x8_t a =
        vmlal_s8(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vget_high_s8(x), vget_high_s8(y));
    const int16x8_t b =
        vmlal_s8(vmull_s8(vget_low_s8(z), vget_low_s8(w)), vget_high_s8(z), vget_high_s8(w));
    return vcvtq_f32_s32(vpadalq_s16(vpaddlq_s16(a), b));
#endif
}
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define SANTA__DOT_BF16
#define SANTA__CPU_BF16 1
SANTA__INLINE float32x4_t santa__vpairs_neon(float32x4_t x, float32x4_t k, float32x4_t q) {
    return vbfdotq_f32(x, vreinterpretq_bf16_f32(k), vreinterpretq_bf16_f32(q));
}
SANTA__INLINE float32x4_t santa__vpair_neon(float32x4_t a, float32x4_t b) {
    const uint16x4_t x = vreinterpret_u16_bf16(vcvt_bf16_f32(a)),
                     y = vreinterpret_u16_bf16(vcvt_bf16_f32(b));
    return vreinterpretq_f32_u16(vcombine_u16(vzip1_u16(x, y), vzip2_u16(x, y)));
}
#endif
SANTA__INLINE float32x4_t santa__vscales_neon(const char *k, int n) {
    (void)n;
    return vdupq_n_f32(santa_f16_to_f32(santa__u16(k)));
}
SANTA__INLINE float32x4_t santa__vints_neon(const char *p) {
    int8_t b[8] = {0};
    memcpy(b, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(b)))));
}
SANTA__INLINE float32x4_t santa__vswap_neon(float32x4_t x, int n) {
    return n == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
}
SANTA__INLINE void santa__vbytes_neon(char *p, float32x4_t x) {
    const uint16x4_t h = vmovn_u32(vcvtq_u32_f32(x));
    uint8_t b[8];
    vst1_u8(b, vmovn_u16(vcombine_u16(h, h)));
    memcpy(p, b, 4);
}
/* x + products of 16 codes and int8; without dot products, two of them fit into 16 bits. */
SANTA__INLINE int32x4_t santa__add_codes_neon(int32x4_t x, int8x16_t a, int8x16_t b) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(x, a, b);
#else
    return vpadalq_s16(x, vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vget_high_s8(a),
                                   vget_high_s8(b)));
#endif
}
SANTA__INLINE void santa__codes_neon(int bits, const char *codes, int64_t step, int64_t chunks,
                                     int64_t ahead, const char *q, int64_t stride, int heads, float *out) {
    const uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << bits) - 1));
    const int parts = 8 / bits;
    int k, g, part, v;
    for (k = 0; k < 16; k += 4, codes += 64) {
        int32x4_t sum[16];
        const char *x = codes, *y = q;
        int64_t c;
        SANTA__UNROLL
        for (g = 0; g < 4 * heads; g++) sum[g] = vdupq_n_s32(0);
        for (c = 0; c < chunks; c++, x += step, y += 128 / bits) {
            SANTA__PREFETCH(x + ahead);
            SANTA__UNROLL
            for (part = 0; part < parts; part++) {
                const int8x16_t down = vdupq_n_s8((int8_t)(-part * bits));
                SANTA__UNROLL
                for (v = 0; v < 4; v++) {
                    const uint8x16_t key = vld1q_u8((const uint8_t *)(const void *)(x + 16 * v));
                    const int8x16_t code = vreinterpretq_s8_u8(vandq_u8(vshlq_u8(key, down), mask));
                    SANTA__UNROLL
                    for (g = 0; g < heads; g++)
                        sum[4 * g + v] = santa__add_codes_neon(
                            sum[4 * g + v], code, santa__bytes16_neon(y + g * stride + 16 * part));
                }
            }
        }
        SANTA__UNROLL
        for (g = 0; g < heads; g++)
            vst1q_f32(out + 16 * g + k,
                      vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(sum[4 * g], sum[4 * g + 1]),
                                               vpaddq_s32(sum[4 * g + 2], sum[4 * g + 3]))));
    }
}

#include SANTA_FILENAME
#endif

/* ------------------------------------------------------------ >>isa */

/* A new instruction set is an entry of SANTA_ISA_LIST and a section above: its vocabulary, and
   santa__cpu_<name>, whether this machine has it. A new platform needs its own #if before
   >>base and SANTA__ON_<platform> here, too. */
#define SANTA__ON_any(here, elsewhere) here
#ifdef SANTA__X86
#define SANTA__ON_x86(here, elsewhere) here
#else
#define SANTA__ON_x86(here, elsewhere) elsewhere
#endif
#ifdef SANTA__AMX
#define SANTA__ON_tiles(here, elsewhere) here
#define santa__kernels_amx santa__kernels_avx512                      /* santa__dot_tiles comes on top */
#else
#define SANTA__ON_tiles(here, elsewhere) elsewhere
#endif
#ifdef SANTA__ARM64
#define SANTA__ON_arm64(here, elsewhere) here
#else
#define SANTA__ON_arm64(here, elsewhere) elsewhere
#endif

static const struct santa__isa {
    const char *name;
    int (*cpu)(void);                        /* NULL: another platform's */
    const santa__kernels *kernels;
} santa__isas[SANTA_ISA_COUNT] = {
    { "auto", santa__cpu_scalar, NULL },     /* kernels: of the one that it resolves to */
#define SANTA__X(isa, name, platform)                                                                      \
    { #name, SANTA__ON_##platform(santa__cpu_##name, NULL),                                                \
      SANTA__ON_##platform(&santa__kernels_##name, NULL) },
    SANTA_ISA_LIST(SANTA__X)
#undef SANTA__X
};

static int santa__is_isa(santa_isa isa) { return (unsigned)isa < (unsigned)SANTA_ISA_COUNT; }

SANTADEF const char *santa_isa_name(santa_isa isa) {
    return santa__is_isa(isa) ? santa__isas[isa].name : "not a santa_isa";
}

SANTADEF int santa_isa_supported(santa_isa isa) {
    return santa__is_isa(isa) && santa__isas[isa].cpu && santa__isas[isa].cpu();
}

SANTADEF santa_isa santa_best_isa(void) {
    int isa = SANTA_ISA_COUNT - 1;
    while (!santa_isa_supported((santa_isa)isa)) isa--;
    return (santa_isa)isa;
}

/* Of a supported one; SANTA_ISA_AUTO is resolved before. */
static const santa__kernels *santa__kernels_of(santa_isa isa) { return santa__isas[isa].kernels; }

#ifndef SANTA__CPU_BF16
#define SANTA__CPU_BF16 0
#endif
static int santa__has_dot_bf16(const santa__kernels *k) { return k->dot_bf16 && SANTA__CPU_BF16; }

/* ------------------------------------------------------------ >>problem-code */

static const struct { const char *name; unsigned traits; } santa__method_info[SANTA_METHOD_COUNT] = {
#define SANTA__X(method, name, traits, capacity, needs, draw, phases) { name, traits },
    SANTA_METHOD_LIST(SANTA__X)
#undef SANTA__X
};

static int santa__is_method(santa_method m) { return (unsigned)m < (unsigned)SANTA_METHOD_COUNT; }

SANTADEF const char *santa_method_name(santa_method m) {
    return santa__is_method(m) ? santa__method_info[m].name : "not a santa_method";
}

SANTADEF unsigned santa_method_traits(santa_method m) {
    return santa__is_method(m) ? santa__method_info[m].traits : 0u;
}

SANTADEF santa_method santa_method_from_name(const char *name) {
    int m = 0;
    while (m < SANTA_METHOD_COUNT && (!name || strcmp(name, santa__method_info[m].name) != 0)) m++;
    return (santa_method)m;
}

static int santa__is_grouped(const santa_options *o) {
    return o->scores == SANTA_SCORES_GROUP_IID || o->scores == SANTA_SCORES_GROUP_STRAT;
}
static int santa__is_bernoulli(const santa_options *o) {
    return santa__is_grouped(o) || o->scores == SANTA_SCORES_BERNOULLI_IID
           || o->scores == SANTA_SCORES_BERNOULLI_STRAT;
}
static int santa__is_rounded(const santa_options *o) { return o->stash > SANTA_STASH_F32; }

/* Whether an option is read, by reader. is_copied: vAttention predicts by a copy, if it asks
   scores. */
#define SANTA__READER_LIST(X)                                                                              \
    X(top_p,      o->method == SANTA_TOP_P)                                                                \
    X(tiles,      tiles)                                                                                   \
    X(stash,      (traits & SANTA_DRAWS) || (o->method == SANTA_TOP_K && is_copied))                       \
    X(combs,      traits & SANTA_COMBS)                                                                    \
    X(draws,      traits & SANTA_DRAWS)                                                                    \
    X(scores,     is_copied || o->scores != SANTA_SCORES_PROXY)                                            \
    X(bernoulli,  santa__is_bernoulli(o))                                                                  \
    X(vattention, is_va)                                                                                   \
    X(indices,    is_va && v->heavy_index)                                                                 \
    X(predictor,  is_va && v->heavy_tokens != SANTA_NONE)                                                  \
    X(copy,       is_copied && !(traits & SANTA_ROUTES))                                                   \
    X(guards,     is_copied && (traits & SANTA_DRAWS))                                                     \
    X(saap,       traits & SANTA_ROUTES)                                                                   \
    X(far_draws,  (traits & SANTA_ROUTES) && o->num_samples != SANTA_NONE)                                 \
    X(blocks,     traits & SANTA_SPARSE)                                                                   \
    X(sampling,   (traits & SANTA_SPARSE) && !o->sample_attention.mask)

enum {
#define SANTA__X(reader, when) SANTA__BY_##reader,
    SANTA__READER_LIST(SANTA__X)
#undef SANTA__X
    SANTA__whole = 0, SANTA__real = 1
};

typedef struct santa__option {
    const char *name;
    size_t at, size;
    double by_default;
    int is_real, reader;
} santa__option;

static const santa__option santa__option_list[] = {
#define SANTA__X(field, kind, by_default, reader)                                                   \
    { #field, offsetof(santa_options, field), sizeof(((const santa_options *)0)->field), by_default, \
      SANTA__##kind, SANTA__BY_##reader },
    SANTA_OPTION_LIST(SANTA__X)
#undef SANTA__X
};

/* A bit for each reader that these options have. */
SANTA__ONCE
static unsigned santa__readers(const santa_options *o) {
    const santa_vattention_options *v = &o->vattention;
    const unsigned traits = santa_method_traits(o->method);
    const int is_va = o->method == SANTA_VATTENTION,
              is_copied = o->scores == SANTA_SCORES_PROXY
                          && !(is_va && (v->heavy || v->heavy_index || v->heavy_tokens == SANTA_NONE));
    const unsigned tiles = is_copied ? 0 : traits & SANTA_TILES;
    unsigned readers = 0;
#define SANTA__X(reader, when) if (when) readers |= 1u << SANTA__BY_##reader;
    SANTA__READER_LIST(SANTA__X)
#undef SANTA__X
#undef SANTA__READER_LIST
    return readers;
}

static int santa__is_set(const santa_options *o, const santa__option *x) {
    const char *at = (const char *)o + x->at;
    int64_t whole;
    int32_t half;
    double value;
    if (x->is_real) memcpy(&value, at, sizeof value);
    else {
        if (x->size == sizeof whole) memcpy(&whole, at, sizeof whole);
        else if (x->size == sizeof half) { memcpy(&half, at, sizeof half); whole = half; }
        else whole = *at;                           /* an enum, by -fshort-enums */
        value = (double)whole;
    }
    return !(value >= 0.0 && value <= 0.0) && !(value >= x->by_default && value <= x->by_default);
}

/* The first option from *x on that is set and not read. */
static const santa__option *santa__next_unused(const santa_options *o, unsigned readers,
                                               const santa__option *x) {
    const santa__option *end = santa__option_list + sizeof santa__option_list / sizeof *santa__option_list;
    while (x < end && ((readers >> x->reader & 1) || !santa__is_set(o, x))) x++;
    return x < end ? x : NULL;
}

SANTADEF const char *santa_unused_option(const santa_options *o) {
    const santa__option *x = NULL;
    if (o && santa__is_method(o->method)) x = santa__next_unused(o, santa__readers(o), santa__option_list);
    return x ? x->name : NULL;
}

SANTADEF void santa_clear_unused_options(santa_options *o) {
    const santa__option *x = santa__option_list;
    unsigned readers;
    if (!o || !santa__is_method(o->method)) return;
    readers = santa__readers(o);
    while ((x = santa__next_unused(o, readers, x)) != NULL) memset((char *)o + x->at, 0, x->size);
}

/* Sizes saturate at UINT64_MAX, which no check lets through. */
SANTA__ONCE
static uint64_t santa__mul(uint64_t a, uint64_t b) { return a && b > UINT64_MAX / a ? UINT64_MAX : a * b; }
SANTA__ONCE
static uint64_t santa__add(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; }
static uint64_t santa__abs(int64_t a) { return a < 0 ? 0u - (uint64_t)a : (uint64_t)a; }

SANTA__ONCE
static santa_status santa__check_tensor(const santa_tensor *t) {
    uint64_t span = 1;
    int i;
    if ((unsigned)t->dtype > (unsigned)SANTA_Q4_0) return SANTA_ERR_DTYPE;
    if ((unsigned)t->device >= (unsigned)SANTA_DEVICE_COUNT) return SANTA_ERR_DEVICE;
    for (i = 0; i < 4; i++) if (t->shape[i] <= 0) return SANTA_ERR_SHAPE;
    for (i = 0; i < 4; i++)
        if (santa__mul(santa__abs(t->stride[i]), 4) > (uint64_t)PTRDIFF_MAX) return SANTA_ERR_OVERFLOW;
    for (i = 0; i < 4; i++)
        span = santa__add(span, santa__mul((uint64_t)t->shape[i] - 1, santa__abs(t->stride[i])));
    if (santa__mul(span, 4) > (uint64_t)PTRDIFF_MAX) return SANTA_ERR_OVERFLOW;
    if (santa__is_blocks(t->dtype)) {
        int bad = t->shape[3] % 32 != 0 || t->stride[3] != 1;
        for (i = 0; i < 3; i++) bad |= t->shape[i] > 1 && t->stride[i] % 32 != 0;
        if (bad) return t->dtype == SANTA_Q8_0 ? SANTA_ERR_Q8_0 : SANTA_ERR_Q4_0;
    }
    return SANTA_OK;
}

/* Keys that one sequence can hold. */
static int64_t santa__capacity(const santa_attention *a) {
    return a->block_table ? a->max_pages * a->k.shape[1] : a->k.shape[1];
}

static int64_t santa__seq_len(const santa_attention *a, int64_t b) {
    return a->seq_lens ? a->seq_lens[b] : santa__capacity(a);
}

static int64_t santa__kv_start(const santa_attention *a, int64_t b) {
    return a->kv_start ? a->kv_start[b] : 0;
}

/* Keys [begin, end) that query row i sees, but for [gap, gap_end), and its position, all
   counted from the first key here. Without first_tokens there is no gap: it begins and ends at
   begin. */
typedef struct santa__range { int64_t begin, end, position, gap, gap_end; } santa__range;

/* Where the first tokens end, which may be before the first key here. */
static int64_t santa__first_end(const santa_attention *a, int64_t b) {
    return santa__kv_start(a, b) + a->first_tokens - a->first_key;
}

static santa__range santa__key_range(const santa_attention *a, int64_t b, int64_t i) {
    const int64_t len = santa__seq_len(a, b),
                  all = a->context_lens ? a->context_lens[b] - a->first_key : len;
    const int64_t start = santa__kv_start(a, b), first = santa__first_end(a, b);
    santa__range r;
    r.position = all - a->q.shape[1] + i;
    r.end = a->causal ? SANTA__MIN(SANTA__MAX(r.position + 1, 0), len) : len;
    r.begin = a->window > 0 && r.position >= a->window ? r.position - a->window + 1 : 0;
    r.gap_end = r.begin = SANTA__MIN(SANTA__MAX(r.begin, start), r.end);
    if (first > start) r.begin = SANTA__MIN(start, r.end);
    r.gap = SANTA__MIN(SANTA__MAX(first, r.begin), r.end);
    r.gap_end = SANTA__MAX(r.gap_end, r.gap);
    return r;
}

static int64_t santa__keys_of(santa__range r) { return r.end - r.begin - (r.gap_end - r.gap); }

static int santa__is_seen(const santa__range *r, int64_t key) {
    return key >= r->begin && key < r->end && (key < r->gap || key >= r->gap_end);
}

/* The keys that a query row with range r here sees in all ranks, likewise counted. What is left
   out by kv_start is as if there were nothing before it. */
static santa__range santa__key_range_of_ranks(const santa_attention *a, int64_t b, const santa__range *r) {
    const int64_t first = a->first_key;
    santa__range all = *r;
    all.begin = a->window > 0 && a->window <= r->position + first ? r->position - a->window + 1 : -first;
    if (santa__kv_start(a, b) > 0) all.begin = SANTA__MAX(all.begin, santa__kv_start(a, b));
    all.end = a->causal               ? r->position + 1
              : a->context_lens       ? a->context_lens[b] - first
                                      : santa__seq_len(a, b);
    return all;
}

/* Whether two elements share memory, as far as strides show it: from the smallest stride up,
   each must reach over all that the smaller ones span. (Strides that mesh without that are
   refused, too.) */
static int santa__has_overlap(const santa_tensor *t) {
    int order[4] = {0, 1, 2, 3}, i, k;
    uint64_t span = 0;
    for (i = 1; i < 4; i++)
        for (k = i; k > 0 && santa__abs(t->stride[order[k]]) < santa__abs(t->stride[order[k - 1]]); k--) {
            const int swap = order[k];
            order[k] = order[k - 1];
            order[k - 1] = swap;
        }
    for (i = 0; i < 4; i++) {
        const uint64_t stride = santa__abs(t->stride[order[i]]), size = (uint64_t)t->shape[order[i]];
        if (size > 1 && stride <= span) return 1;
        span += (size - 1) * stride;
    }
    return 0;
}

/* The scales of a tensor's rows, if there are any. */
static santa_status santa__check_row_scales(const santa_tensor *scales, const santa_tensor *t) {
    santa_status s;
    int i;
    if (!scales->data) return SANTA_OK;
    if ((s = santa__check_tensor(scales)) != SANTA_OK) return s;
    if (scales->device != t->device) return SANTA_ERR_DEVICE_MISMATCH;
    for (i = 0; i < 3; i++) if (scales->shape[i] != t->shape[i]) return SANTA_ERR_ROW_SCALES;
    return santa__is_kv_only(scales->dtype) || scales->shape[3] != 1 ? SANTA_ERR_ROW_SCALES : SANTA_OK;
}

static int64_t santa__table_stride(const santa_attention *a) {
    return a->block_table_stride ? a->block_table_stride : a->max_pages;
}

/* How long sequences may be, and what tells their pages. */
SANTA__ONCE
static santa_status santa__check_lengths(const santa_attention *a, int64_t batch) {
    const int64_t stride = santa__table_stride(a);
    if (!a->block_table) return a->k.shape[1] > INT32_MAX ? SANTA_ERR_TOO_LONG : SANTA_OK;
    if (a->max_pages <= 0) return SANTA_ERR_BLOCK_TABLE_SHAPE;
    if (stride < a->max_pages) return SANTA_ERR_BLOCK_TABLE_SHAPE;
    if (santa__mul((uint64_t)a->max_pages, (uint64_t)a->k.shape[1]) > INT32_MAX) return SANTA_ERR_TOO_LONG;
    return santa__mul(santa__mul((uint64_t)batch, (uint64_t)stride), 4) > (uint64_t)PTRDIFF_MAX
         ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

SANTA__ONCE
static santa_status santa__check_shapes(const santa_attention *a) {
    const santa_tensor *t[4];
    int i;
    santa_status s;
    t[0] = &a->q; t[1] = &a->k; t[2] = &a->v; t[3] = &a->out;
    if (santa__is_kv_only(a->q.dtype) || santa__is_kv_only(a->out.dtype)) return SANTA_ERR_DTYPE;
    for (i = 0; i < 4; i++) if ((s = santa__check_tensor(t[i])) != SANTA_OK) return s;
    for (i = 1; i < 4; i++) if (t[i]->device != t[0]->device) return SANTA_ERR_DEVICE_MISMATCH;
    for (i = 0; i < 4; i++) if (a->out.shape[i] > 1 && a->out.stride[i] == 0) return SANTA_ERR_OUT_STRIDE;
    if (a->q.shape[0] != a->out.shape[0]) return SANTA_ERR_BATCH;
    if (!a->block_table && (a->q.shape[0] != a->k.shape[0] || a->q.shape[0] != a->v.shape[0]))
        return SANTA_ERR_BATCH;
    if (a->q.shape[1] != a->out.shape[1]) return SANTA_ERR_Q_LEN;
    if (a->q.shape[2] != a->out.shape[2]) return SANTA_ERR_HEADS;
    if (a->k.shape[2] != a->v.shape[2]) return SANTA_ERR_KV_HEADS;
    if (a->q.shape[2] % a->k.shape[2] != 0) return SANTA_ERR_GROUP;
    if (a->q.shape[3] != a->k.shape[3]) return SANTA_ERR_HEAD_DIM;
    if (a->v.shape[3] != a->out.shape[3]) return SANTA_ERR_HEAD_DIM_V;
    if (a->k.shape[1] != a->v.shape[1] || a->k.shape[0] != a->v.shape[0]) return SANTA_ERR_KV_LEN;
    if ((s = santa__check_row_scales(&a->k_scales, &a->k)) != SANTA_OK) return s;
    if ((s = santa__check_row_scales(&a->v_scales, &a->v)) != SANTA_OK) return s;
    if ((s = santa__check_lengths(a, a->q.shape[0])) != SANTA_OK) return s;
    if (a->q.shape[1] > INT32_MAX || a->q.shape[2] > INT32_MAX) return SANTA_ERR_OVERFLOW;
    if (santa__mul(santa__mul((uint64_t)a->q.shape[0], (uint64_t)a->q.shape[1]),
                   santa__mul((uint64_t)a->q.shape[2], sizeof(santa_audit))) > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    if (a->first_key < 0 || a->first_key > INT32_MAX - (a->context_lens ? 0 : santa__capacity(a)))
        return SANTA_ERR_FIRST_KEY;
    return santa__has_overlap(&a->out) ? SANTA_ERR_OUT_OVERLAP : SANTA_OK;
}

/* Whether the pages with a sequence's keys from .. to - 1 are there. */
static santa_status santa__check_pages(const santa_attention *a, int64_t b, int64_t from, int64_t to) {
    const int64_t size = a->k.shape[1];
    const int32_t *row = a->block_table + b * santa__table_stride(a);
    int64_t page;
    for (page = from / size; from < to && page * size < to; page++)
        if (row[page] < 0 || row[page] >= a->k.shape[0]) return SANTA_ERR_BLOCK_TABLE;
    return SANTA_OK;
}

/* Sequences in a batch, whose queries may not be there. */
static int64_t santa__batch_of(const santa_attention *a) {
    return a->block_table ? a->q.shape[0] : a->k.shape[0];
}

static int64_t santa__num_slots(const santa_attention *a) {
    return a->buckets->num_slots ? a->buckets->num_slots : santa__batch_of(a);
}

/* Ints of an index for one slot and KV head: a header of 16, offsets and scratch of the
   buckets, keys by bucket, two buckets to an int by key. */
static uint64_t santa__index_ints(uint64_t buckets, uint64_t keys) {
    return (16 + 2 * (buckets + 1) + keys + (keys + 1) / 2 + 15) / 16 * 16;
}

/* The index of one slot and KV head: what its first keys are by bucket, ascending in each. */
enum { SANTA__INDEX_MAGIC = 0x53414150 };
enum { SANTA__I_MAGIC, SANTA__I_BUCKETS, SANTA__I_CAPACITY, SANTA__I_HELD, SANTA__I_SORTED };
typedef struct santa__index {
    int32_t *header, *offset, *next, *key;   /* header: see above; next: scratch */
    uint16_t *bucket;                        /* of each key that it holds */
    int64_t buckets, capacity;
} santa__index;

static int santa__has_router(const santa_buckets *r) {
    return r->centroids && (r->hidden == 0 || (r->w1 && r->b1 && r->w2 && r->b2));
}

static santa__index santa__index_of(const santa_attention *a, int64_t slot, int64_t kv_head) {
    santa__index x;
    x.buckets = a->buckets->num_buckets;
    x.capacity = santa__capacity(a);
    x.header = (int32_t *)a->buckets->index
               + (uint64_t)(slot * a->k.shape[2] + kv_head)
                     * santa__index_ints((uint64_t)x.buckets, (uint64_t)x.capacity);
    x.offset = x.header + 16;
    x.next = x.offset + x.buckets + 1;
    x.key = x.next + x.buckets + 1;
    x.bucket = (uint16_t *)(void *)(x.key + x.capacity);
    return x;
}

static int64_t santa__slot_of(const santa_attention *a, int64_t b) {
    return a->buckets->slots ? a->buckets->slots[b] : b;
}

static int santa__is_index(const santa__index *x) {
    const int32_t *h = x->header;
    int64_t c;
    if (h[SANTA__I_MAGIC] != SANTA__INDEX_MAGIC || h[SANTA__I_BUCKETS] != x->buckets
        || h[SANTA__I_CAPACITY] != x->capacity || h[SANTA__I_HELD] < 0 || h[SANTA__I_HELD] > x->capacity
        || h[SANTA__I_SORTED] != h[SANTA__I_HELD] / SANTA_BLOCK * SANTA_BLOCK || x->offset[0] != 0
        || x->offset[x->buckets] != h[SANTA__I_SORTED])
        return 0;
    for (c = 0; c < x->buckets; c++) if (x->offset[c] > x->offset[c + 1]) return 0;
    return 1;
}

static santa_status santa__check_slots(const santa_attention *a) {
    const int64_t slots = santa__num_slots(a);
    int64_t b;
    if ((uintptr_t)a->buckets->index % 4 != 0) return SANTA_ERR_BUCKETS_INDEX;
    for (b = 0; b < santa__batch_of(a); b++)
        if (santa__slot_of(a, b) < 0 || santa__slot_of(a, b) >= slots) return SANTA_ERR_BUCKETS_SLOT;
    return SANTA_OK;
}

static santa_status santa__check_indices(const santa_attention *a) {
    const santa_status s = santa__check_slots(a);
    int64_t b, h;
    if (s != SANTA_OK) return s;
    for (b = 0; b < a->q.shape[0]; b++)
        for (h = 0; h < a->k.shape[2]; h++) {
            const santa__index x = santa__index_of(a, santa__slot_of(a, b), h);
            if (!santa__is_index(&x)) return SANTA_ERR_BUCKETS_INDEX;
        }
    return SANTA_OK;
}

static santa_status santa__check_seq_lens(const santa_attention *a, int64_t batch) {
    int64_t b;
    for (b = 0; a->seq_lens && b < batch; b++)
        if (a->seq_lens[b] < 0 || a->seq_lens[b] > santa__capacity(a)) return SANTA_ERR_SEQ_LEN;
    return SANTA_OK;
}

/* Lists of keys: how many, and where entry 0 of one is. */
static uint64_t santa__num_key_lists(const santa_attention *a) {
    return santa__mul(santa__mul((uint64_t)a->q.shape[0], (uint64_t)a->k.shape[2]),
                      a->key_list_rows ? (uint64_t)a->q.shape[1] : 1);
}

static int64_t santa__key_list_of(const santa_attention *a, int64_t b, int64_t q_index, int64_t kv_head) {
    return ((a->key_list_rows ? b * a->q.shape[1] + q_index : b) * a->k.shape[2]) + kv_head;
}

static int64_t santa__key_list_stride(const santa_attention *a) {
    return a->key_list_stride ? a->key_list_stride : a->max_list;
}

static int64_t santa__key_list_len(const santa_attention *a, int64_t list) {
    return a->key_list_lens ? a->key_list_lens[list] : a->max_list;
}

static santa_status santa__check_key_list(const santa_attention *a, const santa_options *o) {
    if (!a->key_list) return a->key_weights ? SANTA_ERR_KEY_WEIGHT : SANTA_OK;
    if (a->max_list <= 0 || (a->key_list_stride != 0 && a->key_list_stride < a->max_list)
        || (a->key_list_rows != 0 && a->key_list_rows != 1))
        return SANTA_ERR_KEY_LIST_SHAPE;
    if (a->max_list > INT32_MAX) return SANTA_ERR_TOO_LONG;
    if (santa__mul(santa__num_key_lists(a), santa__mul((uint64_t)santa__key_list_stride(a), 4))
        > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    return o->method == SANTA_DENSE && o->scores == SANTA_SCORES_EXACT ? SANTA_OK
                                                                       : SANTA_ERR_KEY_LIST_METHOD;
}

/* What lists hold. Keys that a mask hides may be there. */
static santa_status santa__check_key_entries(const santa_attention *a) {
    const int64_t stride = santa__key_list_stride(a), rows = a->key_list_rows ? a->q.shape[1] : 1;
    int64_t b, t, h, i;
    for (b = 0; b < a->q.shape[0]; b++)
        for (t = 0; t < rows; t++)
            for (h = 0; h < a->k.shape[2]; h++) {
                const int64_t list = santa__key_list_of(a, b, t, h), len = santa__seq_len(a, b),
                              n = santa__key_list_len(a, list);
                if (n < 0 || n > a->max_list) return SANTA_ERR_KEY_LIST;
                for (i = 0; i < n; i++) {
                    if (a->key_list[list * stride + i] >= len) return SANTA_ERR_KEY_LIST;
                    if (a->key_weights && a->key_list[list * stride + i] >= 0
                        && (santa__not_finite(a->key_weights[list * stride + i])
                            || a->key_weights[list * stride + i] < 0.0f))
                        return SANTA_ERR_KEY_WEIGHT;
                }
            }
    return SANTA_OK;
}

/* What the pointers point to, as far as it steers the call; on a GPU the arrays are not ours to
   read. Of the block table the pages that some query row may read: a sliding window frees the
   ones before it. */
SANTA__ONCE
static santa_status santa__check_contents(const santa_attention *a, const santa_options *o) {
    const santa_scores_method scores = o ? o->scores : SANTA_SCORES_EXACT;
    const int is_routed = o && (santa_method_traits(o->method) & SANTA_ROUTES);
    int64_t b, h;
    santa_status s;
    if (!a->q.data || !a->k.data || !a->v.data || !a->out.data) return SANTA_ERR_NULL_DATA;
    if (scores == SANTA_SCORES_PROXY && !a->proxy) return SANTA_ERR_PROXY_NULL;
    if (is_routed && (!santa__has_router(a->buckets) || !a->buckets->index)) return SANTA_ERR_BUCKETS_NULL;
    if (a->q.device != SANTA_CPU) return SANTA_OK;
    for (b = 0; scores == SANTA_SCORES_PROXY && a->proxy_lens && b < a->q.shape[0]; b++)
        if (a->proxy_lens[b] < 0) return SANTA_ERR_PROXY_LEN;
    if (is_routed && (s = santa__check_indices(a)) != SANTA_OK) return s;
    if ((s = santa__check_seq_lens(a, a->q.shape[0])) != SANTA_OK) return s;
    if (o && a->key_list && (s = santa__check_key_entries(a)) != SANTA_OK) return s;
    for (b = 0; a->kv_start && b < a->q.shape[0]; b++) {
        if (a->kv_start[b] < 0 || a->kv_start[b] > santa__seq_len(a, b)) return SANTA_ERR_KV_START;
        if (a->first_tokens && a->kv_start[b]
            && (a->first_key || (a->context_lens && a->context_lens[b] > santa__seq_len(a, b)
                                 && a->kv_start[b] + a->first_tokens > santa__seq_len(a, b))))
            return SANTA_ERR_FIRST_TOKENS;
    }
    for (b = 0; a->context_lens && b < a->q.shape[0]; b++)
        if (a->context_lens[b] < (santa__seq_len(a, b) ? a->first_key + santa__seq_len(a, b) : 0))
            return SANTA_ERR_CONTEXT_LEN;
    for (h = 0; a->sinks && h < a->q.shape[2]; h++)
        if (santa__nan_or_plus_inf(a->sinks[h])) return SANTA_ERR_SINKS;
    for (h = 0; a->alibi_slopes && h < a->q.shape[2]; h++)
        if (santa__not_finite(a->alibi_slopes[h])) return SANTA_ERR_ALIBI;
    for (b = 0; a->block_table && b < a->q.shape[0]; b++) {
        const santa__range r = santa__key_range(a, b, 0);
        const int64_t start = santa__kv_start(a, b),          /* the first row may end before it */
                      from = SANTA__MAX(r.begin, start), again = SANTA__MAX(r.gap_end, start);
        if ((s = santa__check_pages(a, b, from, r.gap)) != SANTA_OK) return s;
        if ((s = santa__check_pages(a, b, again, santa__seq_len(a, b))) != SANTA_OK) return s;
    }
    return SANTA_OK;
}

SANTA__ONCE
static santa_status santa__check_extras(const santa_attention *a) {
    if (a->causal != 0 && a->causal != 1) return SANTA_ERR_CAUSAL;
    if (santa__not_finite(a->sm_scale)) return SANTA_ERR_SM_SCALE;
    if (santa__not_finite(a->k_scale) || a->k_scale < 0.0f) return SANTA_ERR_SCALE;
    if (santa__not_finite(a->v_scale) || a->v_scale < 0.0f) return SANTA_ERR_SCALE;
    if (santa__not_finite(a->soft_cap) || a->soft_cap < 0.0f) return SANTA_ERR_SOFT_CAP;
    if (a->window < 0) return SANTA_ERR_WINDOW;
    return a->first_tokens < 0 || a->first_tokens > (a->window ? INT32_MAX : 0) ? SANTA_ERR_FIRST_TOKENS
                                                                                 : SANTA_OK;
}

/* Below it erfc, and the parts of it that a budget is split into, underflow. */
#define SANTA__DELTA_MIN 1e-290
static int santa__bad_delta(double delta) {
    return santa__not_finite_d(delta) || !(delta >= SANTA__DELTA_MIN && delta < 1.0);
}

/* What a sampler needs to know, with or without tensors. */
SANTA__ONCE
static santa_status santa__check_sampler(const santa_options *o) {
    const unsigned traits = santa_method_traits(o->method);
    const int64_t samples = o->num_samples ? o->num_samples : 128, combs = o->num_combs ? o->num_combs : 1;
    if (!santa__is_method(o->method)) return SANTA_ERR_METHOD;
    if (o->num_samples < ((traits & SANTA_ROUTES) ? SANTA_NONE : 0)
        || ((traits & (SANTA_DRAWS | SANTA_ROUTES)) && o->num_samples > SANTA_MAX_SAMPLES))
        return SANTA_ERR_NUM_SAMPLES;
    if ((traits & SANTA_TILES) && o->tile_size != 0) {
        const int64_t t = o->tile_size;
        const int whole = t > 0 && t % SANTA_BLOCK == 0,
                  part = (traits & SANTA_TILES_APART) && (t == 8 || t == 16 || t == 32);
        if (!(whole || part)) return SANTA_ERR_TILE_SIZE;
    }
    if (combs < 0 || combs > SANTA_MAX_COMBS || samples % combs != 0) return SANTA_ERR_COMBS;
    if (santa__not_finite_d(o->top_p) || o->top_p < 0.0 || o->top_p > 1.0) return SANTA_ERR_TOP_P;
    if ((unsigned)o->stash > (unsigned)SANTA_STASH_U8) return SANTA_ERR_STASH;
    if (o->dense_below < SANTA_AUTO) return SANTA_ERR_DENSE_BELOW;
    return santa_isa_supported(o->isa) ? SANTA_OK : SANTA_ERR_ISA;
}

static santa_status santa__format_make(const santa_attention *a, santa__format *f) {
    const int64_t length = a->k.shape[1], d = a->k.shape[3];
    memset(f, 0, sizeof *f);
    if (a->proxy_bits != 0 && a->proxy_bits != 2 && a->proxy_bits != 4) return SANTA_ERR_PROXY_BITS;
    if (d % 8 != 0 || d > SANTA__PROXY_DIM) return SANTA_ERR_PROXY_HEAD_DIM;
    f->keys = SANTA_BLOCK;
    while (a->block_table && length % f->keys != 0) f->keys /= 2;
    if (f->keys < 16) return SANTA_ERR_PROXY_PAGE;
    f->bits = a->proxy_bits ? a->proxy_bits : 4;
    f->dim = d;
    f->piece = d & -d;
    f->chunks = (d * f->bits + 127) / 128;
    f->features = f->chunks * 128 / f->bits;
    f->gains = 16 * f->chunks * f->keys;
    f->centre = f->gains + 2 * f->keys;
    f->scale = f->centre + f->features;
    f->bytes = (f->scale + 4 + 63) / 64 * 64;
    f->blocks = length / f->keys;
    f->step = f->bits == 4 ? 0.3352f : 0.9957f;
    f->middle = f->bits == 4 ? 7.5f : 1.5f;
    f->noise = (f->bits == 4 ? 0.0115 : 0.119) / ((double)f->step * (double)f->step);
    return SANTA_OK;
}

/* What the blocks of a copy are made from, and where they go. */
SANTA__ONCE
static santa_status santa__check_copy(const santa_attention *a, santa__format *f) {
    santa_status s;
    if (!a) return SANTA_ERR_NULL_ARGUMENT;
    if ((s = santa__check_tensor(&a->k)) != SANTA_OK) return s;
    if ((s = santa__check_row_scales(&a->k_scales, &a->k)) != SANTA_OK) return s;
    if ((s = santa__format_make(a, f)) != SANTA_OK) return s;
    return santa__mul(santa__mul((uint64_t)a->k.shape[0], (uint64_t)a->k.shape[2]),
                      santa__mul((uint64_t)f->blocks, (uint64_t)f->bytes))
           > (uint64_t)PTRDIFF_MAX ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

static int santa__bad_limit(double limit) {
    return santa__not_finite_d(limit) || (limit < 0.0 && limit != (double)SANTA_NONE);
}

/* Threads, and which of so many items. */
static santa_status santa__check_work(const santa_options *o, uint64_t items) {
    if (o->num_threads < 0 || o->num_threads > INT32_MAX) return SANTA_ERR_THREADS;
#ifndef _OPENMP
    if (o->num_threads > 1 && !o->parallel_for) return SANTA_ERR_THREADS;
#endif
    if (o->item_begin < 0 || o->item_end < o->item_begin) return SANTA_ERR_ITEMS;
    return (uint64_t)o->item_end > items ? SANTA_ERR_ITEMS : SANTA_OK;
}

static santa_status santa__check_proxy(const santa_attention *a, const santa_options *o) {
    santa__format format;
    if (o->scores != SANTA_SCORES_PROXY) return SANTA_OK;
    if (!(santa_method_traits(o->method) & SANTA_PROXIES)) return SANTA_ERR_PROXY_METHOD;
    if (o->num_combs > 1 && (santa_method_traits(o->method) & SANTA_COMBS)) return SANTA_ERR_COMBS;
    return santa__check_copy(a, &format);
}

/* Sizes of a router and of its index, whatever memory there is. */
SANTA__ONCE
static santa_status santa__check_router(const santa_attention *a) {
    const santa_buckets *r = a->buckets;
    if (!r) return SANTA_ERR_BUCKETS_NULL;
    if (r->num_buckets < 1 || r->num_buckets > 65536 || r->hidden < 0 || r->hidden > 65536)
        return SANTA_ERR_BUCKETS_SHAPE;
    if (r->dtype != SANTA_F32 && r->dtype != SANTA_F16 && r->dtype != SANTA_BF16)
        return SANTA_ERR_BUCKETS_DTYPE;
    if (a->k.shape[3] > SANTA__PROXY_DIM) return SANTA_ERR_BUCKETS_HEAD_DIM;
    if (santa__not_finite(r->key_norm) || r->key_norm < 0.0f) return SANTA_ERR_BUCKETS_NORM;
    if (r->num_slots < 0 || (!r->slots && santa__num_slots(a) < santa__batch_of(a)))
        return SANTA_ERR_BUCKETS_SLOT;
    return santa__mul(santa__mul((uint64_t)santa__num_slots(a), (uint64_t)a->k.shape[2]),
                      4 * santa__index_ints((uint64_t)r->num_buckets, (uint64_t)santa__capacity(a)))
           > (uint64_t)PTRDIFF_MAX ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

static santa_status santa__check_saap(const santa_attention *a, const santa_options *o) {
    santa_status s;
    int i;
    if (!(santa_method_traits(o->method) & SANTA_ROUTES)) return SANTA_OK;
    if ((s = santa__check_router(a)) != SANTA_OK) return s;
    if (o->num_samples == SANTA_NONE && o->scores == SANTA_SCORES_PROXY) return SANTA_ERR_SAAP_COPY;
    if (a->std_error && o->num_samples == SANTA_NONE) return SANTA_ERR_STD_ERROR;
    if (!a->buckets->q.data) return SANTA_OK;
    if ((s = santa__check_tensor(&a->buckets->q)) != SANTA_OK) return s;
    if (santa__is_kv_only(a->buckets->q.dtype)) return SANTA_ERR_DTYPE;
    for (i = 0; i < 4; i++) if (a->buckets->q.shape[i] != a->q.shape[i]) return SANTA_ERR_BUCKETS_Q;
    return a->buckets->q.device != a->q.device ? SANTA_ERR_BUCKETS_Q : SANTA_OK;
}

static int santa__bad_alpha(double alpha) {
    return santa__not_finite_d(alpha) || alpha > 1.0 || (alpha < 0.0 && alpha != (double)SANTA_NONE);
}

/* Whether blocks must be looked at, however few rows there are. */
static int santa__is_about_blocks(const santa_sample_attention_options *x) {
    return x->mask || x->mask_out || x->audit || x->row_mass;
}

static santa_status santa__check_sparse(const santa_attention *a, const santa_options *o) {
    const santa_sample_attention_options *x = &o->sample_attention;
    if (!(santa_method_traits(o->method) & SANTA_SPARSE)) return SANTA_OK;
    if (o->scores != SANTA_SCORES_EXACT) return SANTA_ERR_SAMPLE_SCORES;
    if (x->mask || (a->causal && !a->context_lens)) return SANTA_OK;
    return a->q.shape[1] < SANTA__PREFILL_ROWS && !santa__is_about_blocks(x) ? SANTA_OK
                                                                             : SANTA_ERR_SAMPLE_CAUSAL;
}

static int santa__has_ranks(const santa_options *o) { return o->ranks.count > 1; }

static santa_status santa__check_ranks(const santa_attention *a, const santa_options *o) {
    const santa_ranks_options *r = &o->ranks;
    const unsigned traits = santa_method_traits(o->method);
    if (!santa__has_ranks(o)) return SANTA_OK;
    if (!r->all_gather) return SANTA_ERR_RANKS;
    if (traits & (SANTA_SPARSE | SANTA_ROUTES)) return SANTA_ERR_RANKS_METHOD;
    if ((traits & SANTA_ADAPTS) && o->vattention.heavy) return SANTA_ERR_RANKS_METHOD;
    if ((traits & SANTA_TILES_APART) && !a->context_lens) return SANTA_ERR_RANKS;
    if (a->std_error
        && (!(traits & (SANTA_EXACT | SANTA_DRAWS)) || (traits & (SANTA_TILES_APART | SANTA_SHARES_ROWS))
            || o->scores == SANTA_SCORES_PROXY))
        return SANTA_ERR_RANKS_METHOD;
    if (o->scores == SANTA_SCORES_PROXY && !(traits & SANTA_DRAWS)
        && !(o->method == SANTA_TOP_K || (traits & SANTA_ADAPTS)))
        return SANTA_ERR_RANKS_METHOD;
    return a->key_list || ((traits & SANTA_DRAWS) && o->dense_below) ? SANTA_ERR_RANKS_METHOD : SANTA_OK;
}

/* Ranges of all options, whatever the method. */
SANTA__ONCE
static santa_status santa__check_values(const santa_options *o) {
    const santa_vattention_options *v = &o->vattention;
    const santa_saap_options *r = &o->saap;
    const santa_sample_attention_options *x = &o->sample_attention;
    const int64_t count = o->ranks.count, rank = o->ranks.rank;
    const santa_status s = santa__check_sampler(o);
    if (s != SANTA_OK) return s;
    if ((unsigned)o->scores > (unsigned)SANTA_SCORES_PROXY) return SANTA_ERR_SCORES;
    if (o->bernoulli_draws < 0 || o->bernoulli_draws > 65536) return SANTA_ERR_BERNOULLI_DRAWS;
    if (o->proxy.sink_tokens < SANTA_NONE || o->proxy.local_tokens < SANTA_NONE
        || o->proxy.rescue_keys < SANTA_NONE || santa__bad_limit(o->proxy.rescue_above)
        || santa__bad_limit(o->proxy.exact_above))
        return SANTA_ERR_PROXY_OPTIONS;
    if (r->num_probes < SANTA_NONE || r->sink_tokens < SANTA_NONE || r->local_tokens < SANTA_NONE
        || santa__not_finite_d(r->uniform_share) || r->uniform_share < 0.0 || r->uniform_share > 1.0
        || (r->measure_mass != 0 && r->measure_mass != 1))
        return SANTA_ERR_SAAP_OPTIONS;
    if (santa__bad_alpha(x->alpha_columns) || santa__bad_alpha(x->alpha_slashes) || x->num_chunks < 0
        || x->num_chunks > 64 || (x->block_size != 0 && x->block_size != 64 && x->block_size != 128)
        || (x->per_head != 0 && x->per_head != 1) || santa__bad_limit(x->dense_above))
        return SANTA_ERR_SAMPLE_ATTENTION;
    if (count < 0 || count > 65536 || rank < 0 || rank >= SANTA__MAX(count, 1)) return SANTA_ERR_RANKS;
    if (v->sink_tokens < SANTA_NONE || v->local_tokens < SANTA_NONE || v->heavy_tokens < SANTA_NONE)
        return SANTA_ERR_VATTENTION_TOKENS;
    if (v->heavy_stride < 0
        || (v->heavy_index
            && (v->heavy || v->heavy_tokens <= 0
                || (v->heavy_stride && v->heavy_stride < v->heavy_tokens))))
        return SANTA_ERR_HEAVY_INDEX;
    if (v->base_samples < 0 || v->base_samples == 1) return SANTA_ERR_BASE_SAMPLES;
    if (santa__not_finite_d(v->epsilon) || v->epsilon < 0.0 || v->epsilon >= 1.0) return SANTA_ERR_EPSILON;
    if (santa__not_finite_d(v->delta) || v->delta < 0.0 || (v->delta > 0.0 && santa__bad_delta(v->delta)))
        return SANTA_ERR_DELTA;
    if ((unsigned)v->guarantee > (unsigned)SANTA_GUARANTEE_FULL) return SANTA_ERR_GUARANTEE;
    return (unsigned)v->bound > (unsigned)SANTA_BOUND_HOEFFDING ? SANTA_ERR_BOUND : SANTA_OK;
}

SANTA__ONCE
static santa_status santa__check_options(const santa_attention *a, const santa_options *o) {
    const santa_vattention_options *v = &o->vattention;
    santa_status s = santa__check_values(o);
    if (s != SANTA_OK) return s;
    if ((s = santa__check_proxy(a, o)) != SANTA_OK) return s;
    if ((s = santa__check_saap(a, o)) != SANTA_OK) return s;
    if ((s = santa__check_sparse(a, o)) != SANTA_OK) return s;
    if ((s = santa__check_key_list(a, o)) != SANTA_OK) return s;
    if ((s = santa__check_ranks(a, o)) != SANTA_OK) return s;
    if (a->first_tokens
        && ((santa_method_traits(o->method) & (SANTA_ADAPTS | SANTA_SPARSE))
            || o->scores == SANTA_SCORES_PROXY))
        return SANTA_ERR_FIRST_TOKENS_METHOD;
    if (o->scores == SANTA_SCORES_Q8 && a->k.dtype != SANTA_Q8_0) return SANTA_ERR_SCORES_Q8;
    if (v->heavy_index
        && santa__mul(santa__mul((uint64_t)a->q.shape[0], (uint64_t)a->q.shape[1]),
                      santa__mul((uint64_t)a->q.shape[2],
                                 santa__mul(4, (uint64_t)SANTA__MAX(v->heavy_stride, v->heavy_tokens))))
               > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    if (a->std_error && (santa_method_traits(o->method) & SANTA_BIASED)) return SANTA_ERR_STD_ERROR;
    s = santa__check_work(o, santa__mul((uint64_t)a->q.shape[0], (uint64_t)a->k.shape[2]));
    return s == SANTA_OK && santa_unused_option(o) ? SANTA_ERR_OPTION_UNUSED : s;
}

static int64_t santa__count_of(int64_t option, int64_t by_default) {
    return option == SANTA_NONE ? 0 : option ? option : by_default;
}

static double santa__alpha_of(double option) { return option < 0.0 ? 0.0 : option > 0.0 ? option : 0.95; }

/* What a limit that is off becomes: nothing is above it. */
#define SANTA__NEVER 1e300
static double santa__limit_of(double option, double by_default) {
    return option < 0.0 ? SANTA__NEVER : option > 0.0 ? option : by_default;
}

/* The options with their defaults written out. bits: of the copy of K, if there is one;
   buckets: of the router. */
SANTA__ONCE
static santa_options santa__resolved(const santa_options *o, int bits, int64_t buckets) {
    santa_options x = *o;
    santa_vattention_options *v = &x.vattention;
    const int draws = (santa_method_traits(x.method) & SANTA_DRAWS) != 0;
    if (x.num_samples == 0) x.num_samples = 128;
    if (!(x.top_p > 0.0)) x.top_p = 0.9;
    if (x.tile_size == 0) x.tile_size = 256;
    if (x.stash == SANTA_STASH_DEFAULT) x.stash = SANTA_STASH_F32;
    if (!draws && !(x.method == SANTA_TOP_K && x.scores == SANTA_SCORES_PROXY)) x.stash = SANTA_STASH_F32;
    if (x.num_combs == 0) x.num_combs = 1;
    if (!draws) x.dense_below = 0;
    else if (x.dense_below == SANTA_AUTO) x.dense_below = 16 * x.num_samples;
    if (x.bernoulli_draws == 0) x.bernoulli_draws = 4;
    x.proxy.sink_tokens = santa__count_of(x.proxy.sink_tokens, 4);
    x.proxy.local_tokens = santa__count_of(x.proxy.local_tokens, 64);
    x.proxy.rescue_keys = santa__count_of(x.proxy.rescue_keys,
                                          2 * SANTA__MIN(x.num_samples, (int64_t)INT32_MAX));
    x.proxy.rescue_above = santa__limit_of(x.proxy.rescue_above, bits == 2 ? 0.25 : 0.125);
    x.proxy.exact_above = santa__limit_of(x.proxy.exact_above, bits == 2 ? 2.0 : 1.0);
    x.saap.num_probes = santa__count_of(
        x.saap.num_probes,
        SANTA__MAX(buckets / (x.scores == SANTA_SCORES_PROXY ? 4
                              : x.num_samples == SANTA_NONE  ? 16
                                                             : 32), 1));
    x.saap.sink_tokens = santa__count_of(x.saap.sink_tokens, 4);
    x.saap.local_tokens = santa__count_of(x.saap.local_tokens, x.num_samples == SANTA_NONE ? 2047 : 64);
    if (!(x.saap.uniform_share > 0.0)) x.saap.uniform_share = 0.1;
    x.sample_attention.alpha_columns = santa__alpha_of(x.sample_attention.alpha_columns);
    x.sample_attention.alpha_slashes = santa__alpha_of(x.sample_attention.alpha_slashes);
    if (x.sample_attention.num_chunks == 0) x.sample_attention.num_chunks = 2;
    if (x.sample_attention.block_size == 0) x.sample_attention.block_size = 64;
    x.sample_attention.dense_above = santa__limit_of(x.sample_attention.dense_above, 0.85);
    v->sink_tokens = santa__count_of(v->sink_tokens, 128);
    v->local_tokens = santa__count_of(v->local_tokens, 128);
    v->heavy_tokens = santa__count_of(v->heavy_tokens, SANTA_AUTO);
    if (v->heavy_stride == 0) v->heavy_stride = SANTA__MAX(v->heavy_tokens, 0);
    if (v->base_samples == 0) v->base_samples = SANTA_AUTO;
    if (!(v->epsilon > 0.0)) v->epsilon = 0.05;
    if (!(v->delta > 0.0)) v->delta = 0.05;
    if (x.isa == SANTA_ISA_AUTO) x.isa = santa_best_isa();
    if (x.num_threads == 0) x.num_threads = 1;
    return x;
}

static float santa__sm_scale(const santa_attention *a) {
    const float by_default = (float)(1.0 / sqrt((double)a->k.shape[3]));
    return a->sm_scale > 0.0f || a->sm_scale < 0.0f ? a->sm_scale : by_default;
}

/* Blocks of block_size keys that a sequence may have. */
static int64_t santa__mask_blocks(const santa_problem *p) {
    return (p->capacity - 1) / p->o.sample_attention.block_size + 1;
}

/* Blocks of query rows, which may begin within one. */
static int64_t santa__q_blocks(int64_t q_len, int64_t block) { return (q_len + 2 * block - 2) / block; }

/* Whether AMX does the scores: of these K, and where a group has more heads than AVX-512
   multiplies while it waits for memory. */
static int santa__has_tiles(const santa_problem *p) {
    return p->a.k.dtype == SANTA_BF16 && p->head_dim % SANTA__PACK == 0 && p->group > 4
           && !santa__is_bernoulli(&p->o);
}

SANTA__ONCE
SANTADEF santa_status santa_problem_make(const santa_attention *a, const santa_options *o,
                                         santa_problem *problem) {
    santa_problem p;
    santa_status s;
    if (!a || !o || !problem) return SANTA_ERR_NULL_ARGUMENT;
    if ((s = santa__check_shapes(a)) != SANTA_OK) return s;
    if ((s = santa__check_extras(a)) != SANTA_OK) return s;
    if ((s = santa__check_options(a, o)) != SANTA_OK) return s;
    memset(&p, 0, sizeof p);
    p.a = *a;
    if (p.a.proxy_bits == 0) p.a.proxy_bits = 4;
    p.o = santa__resolved(o, a->proxy_bits, a->buckets ? a->buckets->num_buckets : 0);
    p.batch = a->q.shape[0];
    p.q_len = a->q.shape[1];
    p.heads = a->q.shape[2];
    p.kv_heads = a->k.shape[2];
    p.group = p.heads / p.kv_heads;
    p.head_dim = a->k.shape[3];
    p.head_dim_v = a->v.shape[3];
    p.capacity = santa__capacity(a);
    if (p.o.isa == SANTA_ISA_AMX && !santa__has_tiles(&p)) p.o.isa = SANTA_ISA_AVX512;
    p.scale = santa__sm_scale(a);
    if (a->k_scale > 0.0f) p.scale *= a->k_scale;
    p.v_scale = a->v_scale > 0.0f ? a->v_scale : 1.0f;
    if (a->block_table && a->block_table_stride == 0) p.a.block_table_stride = a->max_pages;
    p.a.key_list_stride = santa__key_list_stride(a);
    if (o->item_begin == 0 && o->item_end == 0) p.o.item_end = p.batch * p.kv_heads;
    if ((santa_method_traits(o->method) & SANTA_SPARSE)
        && santa__mul(santa__mul((uint64_t)p.batch, (uint64_t)p.heads),
                      santa__mul((uint64_t)santa__q_blocks(p.q_len, p.o.sample_attention.block_size),
                                 (uint64_t)santa__mask_blocks(&p)))
               > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    *problem = p;
    return SANTA_OK;
}

/* Process-wide data, beside santa__cpu_amx's answer: which backends are linked. */
static const santa_backend *santa__backends[SANTA_DEVICE_COUNT];

SANTADEF santa_status santa_register_backend(santa_device device, const santa_backend *backend) {
    if ((unsigned)device >= (unsigned)SANTA_DEVICE_COUNT || device == SANTA_CPU) return SANTA_ERR_BACKEND;
    if (backend && (!backend->name || !backend->check || !backend->workspace_size || !backend->decode))
        return SANTA_ERR_BACKEND;
    santa__backends[device] = backend;                /* NULL takes a backend out */
    return SANTA_OK;
}

/* ------------------------------------------------------------ >>plan */

/* A softmax so far, of one query: over the keys seen, whose largest score is m, d = sum e and n
   = sum e v with e = exp(score - m). Where moments are wanted also d2 = sum e^2, t = sum e^2
   |v|^2, n2 = sum e^2 v. bad: NaN or +inf seen. */
typedef struct santa__state { double d, d2, t; float *n, *n2, m; int bad; } santa__state;

/* The workspace of one job, that is of one KV head and its queries: offsets of its parts, each
   on 64 bytes. */
typedef struct santa__plan {
    const santa_options *o;
    int64_t rows, queries;                  /* query rows of a job at most, and their heads: rows * group */
    int64_t n, blocks, block;               /* keys of a job, its blocks, keys per block */
    int64_t d, dv, d_pad;                   /* d = 0: sampling from given scores, no tensors */
    int64_t capacity, num_lists;            /* picks of one query, queries that pick side by side */
    int64_t score_stride, words;            /* floats from query to query; words of a bitmap of keys */
    int64_t chunks, state_bytes;            /* chunks that threads share, or 0: each sums its
                                               own, see santa__dense */
    uint64_t stats, q, packed, coef, active, row_a, row_b, acc;  /* for all methods */
    uint64_t scores, block_max, block_sum, prefix, seen, index, count, weight, combs, states;
    uint64_t chosen, drawn, keys, va, va_rows;
    uint64_t units, masses, chance, sums, anchor;
    uint64_t routed, route, route_packed, hidden, hidden_packed, shares, spans, visit;   /* of SANTA_SAAP */
    uint64_t listed, log_weights, num_listed;                   /* of lists: keys, logs of weights, count */
    int64_t buckets, units_hidden;          /* of its router */
    uint64_t tally, copy_codes, copy_q, copy_unit, spread, heads, ranked, rank_index;
    uint64_t sampled, set_mass, set_order, unit_mass, tally_m, tally_d;                     /* of sparse */
    uint64_t panel_q, panel_out, panel_scores, panel_m, panel_d, panel_x, tile_k, tile_v;   /* of prefill */
    int64_t panels, d_tile, dv_tile;        /* panels of a piece; floats of a row in a tile */
    santa__format format;                   /* of the copy of K */
    uint64_t total, thread_scores;          /* bytes; thread_scores: of each thread and job
                                               where threads share chunks */
    int is_shared;                          /* threads share the keys of a job */
    int is_prefill;                         /* threads share its query rows, see >>prefill */
} santa__plan;

/* A query in a panel: its number in the job or -1, the keys it sees, how many it read. bad: NaN
   or +inf seen. */
enum { SANTA__BAD_READ = 1, SANTA__BAD_MASS = 2 };
typedef struct santa__lane { santa__range range; int64_t x, read; int bad; } santa__lane;

static SANTA__NOINLINE uint64_t santa__part(santa__plan *p, int64_t n, uint64_t size) {
    uint64_t at = p->total;
    p->total = santa__add(p->total, santa__mul(santa__add(santa__mul((uint64_t)n, size), 63) / 64, 64));
    return at;
}

static char *santa__align(void *p) { return (char *)p + (0u - (uintptr_t)p) % 64u; }

/* Of a method that has been checked. */
static int santa__has_traits(const santa_options *o, unsigned traits) {
    return (santa__method_info[o->method].traits & traits) != 0;
}

/* Whether vAttention finds heavy tokens by their scores. */
static int santa__has_oracle(const santa_options *o) {
    return santa__has_traits(o, SANTA_ADAPTS) && !santa__has_traits(o, SANTA_ROUTES) && !o->vattention.heavy
           && !o->vattention.heavy_index && o->vattention.heavy_tokens != 0;
}

/* Whether the method picks keys by their scores, which it keeps beside the masses. */
static int santa__is_top(const santa_options *o) {
    return santa__has_traits(o, SANTA_BIASED) && !santa__has_traits(o, SANTA_SPARSE);
}

/* Bytes of one query's packed form, and as santa__pack makes it. */
static int64_t santa__packed_bytes(int64_t d) {
    return (d + SANTA__PACK - 1) / SANTA__PACK * SANTA__PACKED;
}

/* Of all queries. */
static int64_t santa__pack_size(const santa_options *o, int64_t queries, int64_t d) {
    if (o->scores == SANTA_SCORES_Q8)
        return queries * ((d + SANTA__PACK_Q8 - 1) / SANTA__PACK_Q8 * SANTA__PACKED_Q8);
    if (o->isa == SANTA_ISA_AMX)
        return (queries + SANTA__TILES_BEYOND) * (d / SANTA__PACK * SANTA__PACKED_TILES);
    return queries * santa__packed_bytes(d);
}

/* What stats tells of the guards of a copy, and of buckets, as whole millionths, which add up
   to the same in any order; of how many heads, and rows. */
typedef struct santa__tally {
    int64_t heads, expected, found, covered, rows, imbalance, largest;
    double expected_max, found_max;
} santa__tally;

/* What all methods need. A method adds its own, see santa__method. */
static void santa__plan_begin(santa__plan *p, const santa_options *o, int64_t group, int64_t rows,
                              int64_t n, int64_t d, int64_t dv, int64_t chunks,
                              const santa__format *format, const santa_buckets *router) {
    const int is_copied = format != NULL;
    memset(p, 0, sizeof *p);
    if (format) p->format = *format;
    if (router) { p->buckets = router->num_buckets; p->units_hidden = router->hidden; }
    p->o = o;
    p->rows = rows;
    p->queries = rows * group;
    p->n = n;
    p->d = d;
    p->dv = dv;
    p->d_pad = (d + 15) / 16 * 16;                                /* whole vectors of any instruction set */
    /* tiles of flash below SANTA_BLOCK are blocks of their own */
    p->block = santa__has_traits(o, SANTA_TILES_APART) ? SANTA__MIN(o->tile_size, (int64_t)SANTA_BLOCK)
                                                       : SANTA_BLOCK;
    p->blocks = n / p->block + 2;  /* a window may cut a block at either end */
    p->words = n / 64 + 2;
    p->num_lists = 1;
    p->chunks = chunks;
    p->is_shared = chunks > 0;
    p->stats = santa__part(p, d > 0, sizeof(santa_stats));
    p->q = santa__part(p, p->queries * p->d_pad, 4);
    p->packed =
        santa__part(p, d > 0 && !santa__is_bernoulli(o) ? santa__pack_size(o, p->queries, d) : 0, 1);
    p->coef = santa__part(p, santa__is_bernoulli(o) ? p->queries * p->d_pad : 0, 4);
    p->active = santa__part(p, p->d_pad, 4);
    p->tally = santa__part(p, is_copied || router, sizeof(santa__tally));
    p->copy_codes = santa__part(p, p->queries * p->format.features, 1);
    p->copy_q = santa__part(p, p->queries * p->format.features, 4);
    p->copy_unit = santa__part(p, 2 * p->queries * is_copied, 4);
}

/* The states of exact attention: the row's, and a chunk's or all of them. */
static void santa__plan_states(santa__plan *p, int64_t chunks) {
    p->state_bytes =
        (p->queries * (int64_t)sizeof(santa__state) + 63) / 64 * 64 + (p->queries * p->dv + 15) / 16 * 64;
    p->states = santa__part(p, 1 + chunks, (uint64_t)p->state_bytes);
}

static void santa__needs_dense(santa__plan *p) {
    if (p->is_shared) p->thread_scores = (uint64_t)p->queries * SANTA_BLOCK * sizeof(float);
    p->score_stride = SANTA_BLOCK;
    p->scores = santa__part(p, p->queries * p->score_stride, 4);
    santa__plan_states(p, p->is_shared ? p->chunks : 1);
}

/* Scores of all keys, their masses by block, and lists of picks. */
SANTA__ONCE
static void santa__needs_masses(santa__plan *p) {
    const int may_be_dense = p->o->dense_below != 0, is_shared = santa__has_traits(p->o, SANTA_SHARES_ROWS);
    if (santa__has_traits(p->o, SANTA_DRAWS) && !is_shared)
        p->num_lists = SANTA__MIN(p->queries, (int64_t)SANTA__SLICE);
    p->score_stride = SANTA__MAX(p->blocks * p->block, may_be_dense ? SANTA_BLOCK : 0);
    p->scores = santa__part(p, p->queries * p->score_stride, 4);
    p->block_max = santa__part(p, p->queries * p->blocks, 4);
    p->block_sum = santa__part(p, p->queries * p->blocks, 4);
    p->prefix = santa__part(p, p->blocks + 1, 8);
    p->seen = santa__part(p, p->d > 0 && !is_shared ? p->words : 0, 8);
    p->index = santa__part(p, p->num_lists * p->capacity, 4);
    p->count = santa__part(p, p->num_lists * p->capacity, 4);
    p->weight = santa__part(p, (is_shared ? p->queries / p->rows : p->num_lists) * p->capacity, 4);
    p->combs = santa__part(p, p->o->num_combs > 1 ? p->o->num_combs * p->dv : 0, sizeof(double));
    if (may_be_dense) santa__plan_states(p, 1);
}

/* Mass of a query, or of one tile, over all ranks, relative to exp(m): what the ranks before
   this one hold, and those up to and with it. bad: one of them saw a NaN. */
typedef struct santa__rank_part { double before, end, total; float m; int bad; } santa__rank_part;

/* The top of the scores of all ranks, see santa__select: ties are this rank's, mass that of all
   that is chosen. Until then want is what is left of it, above the mass chosen so far; value,
   mask: where the threshold lies as far as known. */
typedef struct santa__choice {
    double want, above, mass;
    int64_t ties;
    uint32_t value, mask, threshold;
    int by_mass, has_mass;
} santa__choice;

/* What a query knows of all ranks. flash: the first and the last tile here, of which other
   ranks may have keys, too; tiles with mass, and those of them before the first one here; tiles
   before that one which no rank has keys of; has_begun: it began in another rank. */
typedef struct santa__met {
    santa__rank_part whole, edge[2];
    santa__choice choice;
    int64_t tiles, tiles_before, tiles_between;
    int has_begun;
} santa__met;

/* One head's softmax in blocks: block b holds weights u with sum[b] = sum of u and u = exp(s -
   max[b]). prefix[b] is the mass before block b relative to exp(m), m the largest max, total
   the whole mass. first: number of block 0. */
typedef struct santa__mass {
    const santa__kernels *kernel;
    const santa__rank_part *share;   /* NULL: these are all keys */
    const santa__met *met;       /* likewise */
    const float *u, *max, *sum;  /* u may have been rounded, sum was not */
    double *prefix, total;
    int64_t first, blocks;
    int block;
    float m;
    /* SANTA_PPS: share of a u of 1 in each block; probability of each key drawn, for all heads;
       mass of the sure ones */
    float *unit, *chance;
    double sure;
    double rest;                 /* mass of keys that are in no block, relative to exp(m) */
    double sizes, before;        /* of all keys, times num_samples; the same of earlier ranks */
} santa__mass;

/* One head of a row that takes its scores from a copy of K. */
typedef struct santa__copied_head {
    santa__state state;                      /* of the keys read exactly; those drawn join it */
    double expected, found;                  /* variance of its log weights */
    double drawn, weight, square;            /* sums over drawn keys of p^ / pi = w^, w, w^2 / w^ */
    double known[3];                         /* over rescued keys of 1, x, x^2, x = s - s^ */
    double scale;                            /* from the state's numerator to the result */
    float lse;
    int is_done;                             /* without exact scores */
    /* over ranks: of all of them the mass of the keys read exactly; whether there is a rescue,
       and of which masses, see santa__select */
    double fixed;
    float fixed_max;
    int is_rescued;
    uint32_t threshold;
    int64_t ties;
} santa__copied_head;

/* Those of a group's heads, and one list of keys, with weights for each head. */
SANTA__ONCE
static void santa__needs_sizes(santa__plan *p) {
    const int64_t group = p->queries / p->rows;
    p->capacity = SANTA__MIN(group * p->o->num_samples + 1, p->n);
    santa__needs_masses(p);
    p->units = santa__part(p, group * p->blocks, 4);
    p->masses = santa__part(p, group, sizeof(santa__mass));
    p->chance = santa__part(p, p->capacity, 4);
    p->sums = santa__part(p, group * p->dv, 4);
    p->anchor = santa__part(p, p->dv, 4);
}

SANTA__ONCE
static void santa__needs_copied(santa__plan *p) {
    const int64_t group = p->queries / p->rows;
    const int is_shared = santa__has_traits(p->o, SANTA_SHARES_ROWS);
    const int may_be_dense = p->o->dense_below != 0;
    if (is_shared) p->capacity = SANTA__MIN(group * p->o->num_samples + 1, p->n);
    p->score_stride = p->blocks * SANTA_BLOCK;
    p->scores = santa__part(p, p->queries * p->score_stride, 4);
    p->block_max = santa__part(p, p->queries * p->blocks, 4);
    p->block_sum = santa__part(p, p->queries * p->blocks, 4);
    p->spread = santa__part(p, p->queries * p->blocks, 4);
    p->prefix = santa__part(p, p->blocks + 1, 8);
    p->seen = santa__part(p, p->words, 8);
    p->index = santa__part(p, p->capacity, 4);
    p->count = santa__part(p, p->capacity, 4);
    p->chance = santa__part(p, p->capacity, 4);
    p->weight = santa__part(p, (is_shared ? group : 1) * p->capacity, 4);
    p->units = santa__part(p, group * p->blocks, 4);
    p->masses = santa__part(p, group, sizeof(santa__mass));
    p->heads = santa__part(p, group, sizeof(santa__copied_head));
    p->sums = santa__part(p, group * p->dv, 4);
    p->anchor = santa__part(p, p->dv, 4);
    p->ranked = santa__part(p, p->score_stride + 1, 4);
    p->rank_index = santa__part(p, p->score_stride + 1, 4);
    if (may_be_dense) santa__plan_states(p, 1);
}

enum { SANTA__FIXED, SANTA__SAMPLE, SANTA__SETS };
typedef struct santa__va_head { santa__state sums[SANTA__SETS]; santa_audit audit; } santa__va_head;

SANTA__ONCE
static void santa__needs_vattention(santa__plan *p) {
    p->score_stride = santa__has_oracle(p->o) ? p->blocks * p->block : 0;
    p->scores = santa__part(p, p->queries * p->score_stride, 4);
    p->chosen = santa__part(p, p->words, 8);
    p->drawn = santa__part(p, p->words, 8);
    p->keys = santa__part(p, p->n, 4);
    p->va = santa__part(p, p->queries, sizeof(santa__va_head));
    p->va_rows = santa__part(p, 3 * p->queries * p->dv, 4);
}

/* The keys that a row leaves to a copy or to buckets, from .. to - 1; it reads all others
   exactly. */
typedef struct santa__part_of { int64_t from, to; } santa__part_of;

/* What a row reads: far keys are part's, of which so many in buckets; then how many that are
   not far, in whole buckets, drawn. */
typedef struct santa__routed {
    santa__part_of part;
    int64_t num_far, fixed, whole, drawn;
    int64_t copied;                          /* keys that are scored by a copy of K */
    int is_bad;                              /* its query gives NaN */
} santa__routed;

/* A bucket's keys between those that are always read: where they begin in the index, how many,
   what is done with them, and the chance of each to be drawn. */
enum { SANTA__DRAW_FROM, SANTA__READ_WHOLE, SANTA__SCORE_BY_COPY };
typedef struct santa__bucket { int64_t first, count; float size; int use; } santa__bucket;

SANTA__ONCE
static void santa__needs_routed(santa__plan *p) {
    const int64_t group = p->queries;        /* one row at a time */
    const int is_copied = p->format.keys > 0;
    p->capacity = p->o->num_samples == SANTA_NONE ? 0 : SANTA__MIN(p->o->num_samples, p->n) + 1;
    p->score_stride = is_copied ? p->blocks * SANTA_BLOCK : p->o->saap.measure_mass ? SANTA_BLOCK : 0;
    p->scores = santa__part(p, group * p->score_stride, 4);
    p->block_max = santa__part(p, group * p->blocks * is_copied, 4);
    p->block_sum = santa__part(p, group * p->blocks * is_copied, 4);
    p->units = santa__part(p, group * p->blocks * is_copied, 4);
    p->prefix = santa__part(p, (p->blocks + 1) * is_copied, 8);
    p->chosen = santa__part(p, p->words * is_copied, 8);
    p->route = santa__part(p, p->d_pad, 4);
    p->route_packed = santa__part(p, group * santa__packed_bytes(p->d), 1);
    p->hidden = santa__part(p, group * p->units_hidden, 4);
    p->hidden_packed = santa__part(p, group * santa__packed_bytes(p->units_hidden), 1);
    p->shares = santa__part(p, (group + 1) * (p->buckets + SANTA_BLOCK), 4);
    p->spans = santa__part(p, p->buckets, sizeof(santa__bucket));
    p->visit = santa__part(p, p->n, 4);
    p->seen = santa__part(p, p->o->saap.measure_mass ? p->words : 0, 8);
    p->index = santa__part(p, p->capacity, 4);
    p->chance = santa__part(p, p->capacity, 4);
    p->weight = santa__part(p, group * p->capacity, 4);
    p->masses = santa__part(p, group, sizeof(santa__mass));
    p->heads = santa__part(p, group, sizeof(santa__copied_head));
    p->routed = santa__part(p, 1, sizeof(santa__routed));
    santa__plan_states(p, p->is_shared ? p->chunks : 1);
}

static void santa__needs_listed(santa__plan *p) {
    p->listed = santa__part(p, p->n, 4);
    p->log_weights = santa__part(p, p->n, 4);
    p->num_listed = santa__part(p, 1, sizeof(int64_t));
    santa__plan_states(p, p->is_shared ? p->chunks : 1);
}

static int santa__is_listed(const santa_problem *p) { return p->a.key_list != NULL; }

/* Query rows of a piece of prefill, a power of two: as many as fill some panels, or one where
   threads would wait. */
static int64_t santa__piece_rows(const santa_problem *p) {
    const int64_t enough = 4 * p->o.num_threads, items = p->o.item_end - p->o.item_begin;
    int64_t rows = SANTA__PIECE;
    while (rows > 1 && rows * p->group > SANTA__PIECE) rows /= 2;
    while (rows > 1 && rows * p->group > SANTA__PANEL && p->o.num_threads > 1
           && (p->q_len + rows - 1) / rows * SANTA__MAX(items, 1) < enough)
        rows /= 2;
    return rows;
}

/* Whether rows go through the keys as >>prefill has it. */
static int santa__is_prefill(const santa_problem *p) {
    const santa_sample_attention_options *x = &p->o.sample_attention;
    if (!santa__has_traits(&p->o, SANTA_EXACT | SANTA_SPARSE)) return 0;
    if (p->o.scores != SANTA_SCORES_EXACT || santa__is_listed(p)) return 0;
    return p->q_len >= SANTA__PREFILL_ROWS
           || (santa__has_traits(&p->o, SANTA_SPARSE) && santa__is_about_blocks(x));
}

/* Whether the blocks to read are found by sampling. */
static int santa__is_sampled(const santa_problem *p) {
    return santa__has_traits(&p->o, SANTA_SPARSE) && !p->o.sample_attention.mask;
}

/* Bytes of a call's sets of columns and slashes, and whether a head runs dense, see
   >>sparse. */
static uint64_t santa__set_bytes(const santa_problem *p) {
    const uint64_t items = (uint64_t)(p->o.item_end - p->o.item_begin),
                   blocks = (uint64_t)santa__mask_blocks(p);
    if (!santa__is_sampled(p)) return 0;
    return santa__mul(santa__mul(items, (uint64_t)p->group), 2 * blocks + 8);
}

/* Query rows that its first stage may score, in units of SANTA_BLOCK rows. */
static int64_t santa__sample_units(const santa_problem *p) {
    const int64_t block = p->o.sample_attention.block_size;
    return p->o.sample_attention.num_chunks * block / SANTA_BLOCK;
}

/* A part of a block's softmax for each sampled query: its largest score, and the mass of its
   keys in the later and the earlier of two slashes. */
typedef struct santa__sampled {
    float max[SANTA_BLOCK], late[SANTA_BLOCK], early[SANTA_BLOCK];
} santa__sampled;

/* All of a thread's workspace there. */
static void santa__plan_prefill(santa__plan *p, const santa_problem *x) {
    memset(p, 0, sizeof *p);
    p->o = &x->o;
    p->rows = santa__piece_rows(x);
    if (santa__has_traits(p->o, SANTA_SPARSE)) p->rows = SANTA__MIN(p->rows, (int64_t)SANTA_BLOCK);
    p->queries = p->rows * x->group;
    p->n = x->capacity;
    p->d = x->head_dim;
    p->dv = x->head_dim_v;
    p->is_prefill = 1;
    if (santa__has_traits(p->o, SANTA_SPARSE)) {                       /* blocks, and panels of one head */
        const int64_t blocks = santa__mask_blocks(x), units = santa__sample_units(x);
        p->panels = SANTA__MAX((p->rows + SANTA__PANEL - 1) / SANTA__PANEL * x->group, (int64_t)2);
        p->tally_m = santa__part(p, p->panels * SANTA__PANEL, 4);
        p->tally_d = santa__part(p, p->panels * SANTA__PANEL, 8);
        if (santa__is_sampled(x)) {
            p->sampled = santa__part(p, units * (p->n / SANTA_BLOCK + 1), sizeof(santa__sampled));
            p->set_mass = santa__part(p, 2 * blocks, sizeof(double));
            p->set_order = santa__part(p, blocks, sizeof(int32_t));
            p->unit_mass = santa__part(p, units * SANTA_BLOCK, sizeof(float));
        }
    }
    p->panels = SANTA__MAX((p->queries + SANTA__PANEL - 1) / SANTA__PANEL, p->panels);
    p->d_tile = (p->d + 15) / 16 * 16 + 16;  /* rows a power of two apart would share few sets */
    p->dv_tile = (p->dv + 15) / 16 * 16;
    p->stats = santa__part(p, 1, sizeof(santa_stats));
    p->tile_k = santa__part(p, SANTA_BLOCK * p->d_tile, 4);
    p->tile_v = santa__part(p, (SANTA_BLOCK + 1) * p->dv_tile, 4);    /* a row of zeros, see pairs_v */
    p->panel_scores = santa__part(p, (SANTA_BLOCK + 1) * SANTA__PANEL, 4);
    p->panel_q = santa__part(p, p->panels * p->d * SANTA__PANEL, 4);
    p->panel_out = santa__part(p, p->panels * p->dv_tile * SANTA__PANEL, 4);
    p->panel_m = santa__part(p, p->panels * SANTA__PANEL, 4);
    p->panel_d = santa__part(p, p->panels * SANTA__PANEL, 8);
    p->panel_x = santa__part(p, p->panels * SANTA__PANEL, sizeof(santa__lane));
    p->row_a = santa__part(p, SANTA__MAX(p->d_tile, p->dv_tile), 4);
    p->acc = santa__part(p, p->dv, 4);
}

/* How many different keys one query may pick of n. */
static int64_t santa__capacity_none(const santa_options *o, int64_t n) { (void)o; (void)n; return 0; }
static int64_t santa__capacity_all(const santa_options *o, int64_t n) { (void)o; return n; }
static int64_t santa__capacity_samples(const santa_options *o, int64_t n) {
    (void)n;
    return o->num_samples;
}
static int64_t santa__capacity_top(const santa_options *o, int64_t n) {
    return SANTA__MIN(o->num_samples, n);
}
static int64_t santa__capacity_tiles(const santa_options *o, int64_t n) {
    return o->num_samples + (n / o->tile_size + 2) * o->num_combs;
}

static int64_t santa__capacity_sizes(const santa_options *o, int64_t n) {
    return SANTA__MIN(o->num_samples, n - 1) + 1;
}

static int64_t santa__items(const santa_options *o) { return o->item_end - o->item_begin; }

static int santa__is_copied(const santa_options *o) { return o->scores == SANTA_SCORES_PROXY; }

/* Whether a token's KV heads lie side by side in what is read key by key. A copy has them
   apart. */
static int santa__is_token_major(const santa_problem *p) {
    return !santa__is_copied(&p->o) && santa__abs(p->a.k.stride[2]) < santa__abs(p->a.k.stride[1]);
}

/* Keys of a chunk of exact attention, see santa__dense_chunk: any long row has some chunks for
   each of a few threads. */
static int64_t santa__chunk(int64_t keys) {
    int64_t chunk = SANTA__CHUNK;
    while (keys > chunk * SANTA__CHUNKS) chunk *= 2;
    return chunk;
}

/* Whether ranks tell each other the masses of a row before they draw. */
static int santa__is_meeting(const santa_options *o) {
    return santa__has_ranks(o) && !santa__has_traits(o, SANTA_EXACT);
}

/* What ranks tell each other of a query: the largest score, the mass relative to its exp or
   NaN. flash: also of its first and last tile, which are below 0 where there are no keys.
   top-p, and top-k of many: of the keys by 8 bits of their scores, mass relative to the same
   exp and count. */
typedef struct santa__rank_mass { double max, total; } santa__rank_mass;
typedef struct santa__rank_tiles { santa__rank_mass mass[2]; int64_t tile[2]; } santa__rank_tiles;
typedef struct santa__rank_bins { double sum[256]; int32_t count[256]; } santa__rank_bins;

/* How many scores each rank sends in their place: the top of them here. So many are fewer
   bytes, and one exchange instead of four. */
enum { SANTA__BEST = 2048 };
static int64_t santa__num_best(const santa_options *o) {
    const int64_t most = o->method == SANTA_TOP_K ? o->num_samples
                         : santa__has_oracle(o)   ? SANTA__MAX(o->vattention.heavy_tokens, 0)
                                                  : 0;
    return most <= SANTA__BEST ? most : 0;
}

/* What ranks tell of a head of vAttention from the base sample; of the full guarantee also the
   numerators, of the fixed set and of the sample. */
typedef struct santa__rank_sums { double m[2], d[2], d2, t; int64_t bad; } santa__rank_sums;

static uint64_t santa__sums_bytes(const santa_problem *p) {
    return sizeof(santa__rank_sums)
           + (p->o.vattention.guarantee == SANTA_GUARANTEE_FULL ? 8 * (uint64_t)p->head_dim_v : 0);
}

/* Random words that ranks try together, a bit for each says whether it names a key of
   theirs. */
enum { SANTA__TRIES = 32768 };

/* From a copy of K: of its keys, those read exactly, and the variance to expect times that
   mass; then of keys read exactly or drawn, and the sums over the latter. */
typedef struct santa__rank_copied { santa__rank_mass copied; double fixed_max, fixed, spread; }
    santa__rank_copied;
typedef struct santa__rank_drawn { santa__rank_mass state; double drawn, weight, square, known[3]; }
    santa__rank_drawn;

/* How many masses of a head each rank sends that may be rescued; of top-k scores, of the keys
   that it would take. */
static int64_t santa__num_rescued(const santa_options *o) {
    if (santa__is_copied(o) && santa__is_top(o)) return o->num_samples;
    return santa__is_copied(o) && o->proxy.rescue_above < SANTA__NEVER
               ? SANTA__MIN(o->proxy.rescue_keys, (int64_t)INT32_MAX) : 0;
}

/* Bytes of what ranks tell of a query. */
SANTA__ONCE
static uint64_t santa__message_bytes(const santa_problem *p) {
    const uint64_t best = (uint64_t)santa__num_best(&p->o);
    if (santa__is_copied(&p->o) && !santa__has_traits(&p->o, SANTA_ADAPTS))
        return SANTA__MAX(SANTA__MAX(sizeof(santa__rank_copied), sizeof(santa__rank_drawn)),
                          santa__mul((uint64_t)santa__num_rescued(&p->o), sizeof(float)));
    return sizeof(santa__rank_mass)
           + (santa__has_traits(&p->o, SANTA_TILES_APART) ? sizeof(santa__rank_tiles)
              : best > 0                                  ? (best + 1) / 2 * 8
              : santa__is_top(&p->o) || santa__has_oracle(&p->o) ? sizeof(santa__rank_bins)
                                                                 : 0);
}

/* The most that they tell of one at a time. */
static uint64_t santa__most_bytes(const santa_problem *p) {
    uint64_t most = santa__message_bytes(p);
    if (santa__has_traits(&p->o, SANTA_ADAPTS))
        most = SANTA__MAX(SANTA__MAX(most, santa__sums_bytes(p)), (uint64_t)(SANTA__TRIES / 8));
    return most;
}

/* What a call over ranks has behind its other workspaces: messages on a span of jobs, of this
   rank and of all, a count likewise, the best scores of all, what follows for each query, and a
   head's numerators; results of this rank and of all. */
typedef struct santa__meeting {
    uint64_t message, messages, count, counts, best, met, sums, part, all_parts, acc, total;
} santa__meeting;

/* Whether a row's heads draw the same keys, so that the sure ones take up what all ranks
   miss. */
static int santa__has_sure(const santa_options *o) { return santa__has_traits(o, SANTA_SHARES_ROWS); }

/* Weighted sums over rows of V that tell a result's std_error, and doubles of them all, see
   santa__error_part. */
static int64_t santa__error_sets(const santa_options *o) {
    if (!santa__has_traits(o, SANTA_DRAWS)) return 0;
    return o->num_combs > 1 ? o->num_combs : santa__has_traits(o, SANTA_INDEPENDENT) ? 1 : 2;
}

static int64_t santa__error_doubles(const santa_options *o, int64_t dv) {
    return santa__error_sets(o) > 0 ? 2 + santa__error_sets(o) * (dv + 2) : 0;
}

/* Floats of a rank's results: out and lse, vAttention's largest score, what santa__gather_parts
   says, and, from an even one on, doubles for std_error. */
static uint64_t santa__result_floats(const santa_problem *p) {
    const uint64_t dv = (uint64_t)p->head_dim_v;
    return santa__mul(santa__mul((uint64_t)p->batch, santa__mul((uint64_t)p->q_len, (uint64_t)p->heads)),
                      dv + 1 + (santa__has_sure(&p->o) ? dv + 2 : 0)
                          + (santa__has_traits(&p->o, SANTA_ADAPTS) ? 1 : 0));
}

static uint64_t santa__part_floats(const santa_problem *p) {
    const uint64_t floats = santa__result_floats(p);
    const uint64_t rows = santa__mul((uint64_t)p->batch, (uint64_t)p->q_len);
    if (!p->a.std_error) return floats;
    return santa__add(santa__add(floats, floats & 1u),
                      santa__mul(santa__mul(rows, (uint64_t)p->heads),
                                 2 * (uint64_t)santa__error_doubles(&p->o, p->head_dim_v)));
}

/* Whether a rank's results are those of its own keys alone. */
static int santa__is_joined_by_lse(const santa_options *o) {
    return santa__has_traits(o, SANTA_EXACT | SANTA_ADAPTS);
}

SANTA__ONCE
static santa__meeting santa__meeting_of(const santa_problem *p) {
    const uint64_t ranks = (uint64_t)p->o.ranks.count, floats = santa__part_floats(p),
                   bytes = santa__most_bytes(p);
    const int64_t queries = santa__is_meeting(&p->o) ? p->group * SANTA__SPAN : 0,
                  counts = santa__has_traits(&p->o, SANTA_TILES_APART | SANTA_ADAPTS) ? queries : 0;
    santa__meeting m;
    santa__plan at;                                       /* adds up parts */
    memset(&at, 0, sizeof at);
    m.message = santa__part(&at, queries, bytes);
    m.messages = santa__part(&at, queries, santa__mul(bytes, ranks));
    m.count = santa__part(&at, counts, sizeof(int64_t));
    m.counts = santa__part(&at, counts, santa__mul(sizeof(int64_t), ranks));
    m.best = santa__part(&at, SANTA__MAX(santa__num_best(&p->o), santa__num_rescued(&p->o)),
                         santa__mul(sizeof(float), ranks));
    m.met = santa__part(&at, queries, sizeof(santa__met));
    m.sums = santa__part(&at, santa__has_traits(&p->o, SANTA_ADAPTS) ? 2 * p->head_dim_v : 0,
                         sizeof(float));
    m.part = santa__part(&at, 1, santa__mul(floats, sizeof(float)));
    m.all_parts = santa__part(&at, 1, santa__mul(santa__mul(floats, sizeof(float)), ranks));
    m.acc = santa__part(&at, p->head_dim_v, sizeof(double));
    m.total = at.total;
    return m;
}

/* Number of this rank's first key: samplers over ranks count keys from the context's start, so
   that blocks and tiles lie as in one process. */
static int64_t santa__origin(const santa_problem *p) {
    const int has_blocks = santa__is_copied(&p->o);              /* which lie as in this rank's copy */
    return santa__is_meeting(&p->o) && !has_blocks ? p->a.first_key : 0;
}

/* Whether threads get even shares of so many pieces. */
static int santa__has_many_pieces(int64_t pieces, int64_t threads) { return pieces >= 4 * threads; }

/* Whether threads share the keys of a sequence: if there are so few items that some would wait,
   or if the cache is token-major. Such a cache is read as one stretch of memory only for all
   its heads together: if two threads take half the heads each, each core's prefetcher loads the
   other core's half. Rows must be long enough to pay for another round of the threads.
   vAttention reads what its sums so far tell it to; the rows of saap and of lists are in no
   order. */
static int santa__is_team(const santa_problem *p, int64_t n) {
    const int64_t threads = p->o.num_threads;
    const int is_routed = santa__has_traits(&p->o, SANTA_ROUTES) || santa__is_listed(p);
    if (santa__is_meeting(&p->o)) return 1;
    if (threads == 1 || n < SANTA__TEAM_KEYS) return 0;
    if (santa__has_traits(&p->o, SANTA_ADAPTS) && !is_routed) return 0;
    if (santa__items(&p->o) < 2 * threads) return 1;
    return santa__is_token_major(p) && !is_routed
           && (!santa__has_traits(&p->o, SANTA_EXACT | SANTA_SPARSE)
               || santa__has_many_pieces(n / santa__chunk(n), threads));
}

/* KV heads of a sequence that a thread works on together, see santa__queries. A team that is
   exact needs scratch for all of them in each thread; sampled, each head has its place in one
   thread's workspace. */
static int64_t santa__span(const santa_problem *p, const santa__plan *plan) {
    const int64_t threads = p->o.num_threads, all = SANTA__MIN(p->kv_heads, (int64_t)SANTA__SPAN);
    if (!santa__is_token_major(p) || santa__has_traits(&p->o, SANTA_ADAPTS)) return 1;
    if (santa__is_listed(p)) return 1;
    if (plan->thread_scores) return all;
    return SANTA__MAX(SANTA__MIN((santa__items(&p->o) + threads - 1) / threads, all), 1);
}

/* Workspaces of a call: one for each KV head of a sequence that a team works on, or of each
   thread's span. */
static int64_t santa__num_works(const santa_problem *p, const santa__plan *plan, int64_t span) {
    if (!plan->is_shared) return p->o.num_threads * span;
    /* one for santa_scores, where the range of items is empty */
    return SANTA__MAX(SANTA__MIN(SANTA__MIN(p->kv_heads, santa__items(&p->o)), (int64_t)SANTA__SPAN), 1);
}

/* Query rows that one pass over K serves: while it lasts their heads fill a few registers'
   worth of queries. Bernoulli scores read what each row's own draws tell them to, and so does
   vAttention. */
static int64_t santa__rows_together(const santa_problem *p) {
    if (santa__is_bernoulli(&p->o) || santa__has_traits(&p->o, SANTA_ADAPTS)) return 1;
    if (santa__is_listed(p)) return 1;
    if (santa__is_meeting(&p->o)) return 1;              /* ranks see keys of different rows */
    return SANTA__MAX(SANTA__MIN(p->q_len, SANTA__QUERIES / p->group), 1);
}

/* ------------------------------------------------------------ >>rows */

/* The rows of one sequence in K or V, at: where the KV head begins in a row. first: number of
   the first row, see santa__origin. Strides in bytes. scales: of the same rows, data NULL =
   none; scale_base: where those of the sequence and KV head begin. */
typedef struct santa__rows {
    const char *base, *scale_base;
    int64_t at, first;
    const int32_t *table;  /* NULL: not paged */
    int64_t page_size, page, row, feature, dim;
    santa_dtype dtype;
    const santa_tensor *scales;
} santa__rows;

static santa__rows santa__rows_make(const santa_attention *a, const santa_tensor *t,
                                    const santa_tensor *scales, int64_t batch, int64_t kv_head) {
    const int64_t stride = santa__table_stride(a);
    santa__rows r;
    r.scales = scales->data ? scales : NULL;
    r.scale_base = NULL;
    if (r.scales)
        r.scale_base = (const char *)scales->data
                       + santa__bytes(scales->dtype, (a->block_table ? 0 : batch * scales->stride[0])
                                                     + kv_head * scales->stride[2]);
    r.base = (const char *)t->data + (a->block_table ? 0 : santa__bytes(t->dtype, batch * t->stride[0]));
    r.at = santa__bytes(t->dtype, kv_head * t->stride[2]);
    r.first = 0;
    r.table = a->block_table ? a->block_table + batch * stride : NULL;
    r.page_size = t->shape[1];
    r.page = santa__bytes(t->dtype, t->stride[0]);
    r.row = santa__bytes(t->dtype, t->stride[1]);
    r.feature = santa__bytes(t->dtype, t->stride[3]);
    r.dim = t->shape[3];
    r.dtype = t->dtype;
    if (r.dim == 1) r.feature = santa__bytes(t->dtype, 1);
    return r;
}

static const char *santa__row(const santa__rows *r, int64_t j) {      /* without the KV head's offset */
    j -= r->first;
    if (!r->table) return r->base + j * r->row;
    return r->base + r->table[j / r->page_size] * r->page + j % r->page_size * r->row;
}

/* Which keys: index[0 ..], or those from first on if index is NULL. known: how many of them
   will be wanted in all, for prefetching. */
typedef struct santa__keys { const int32_t *index; int64_t first, known; } santa__keys;

static santa__keys santa__keys_from(const int32_t *index, int64_t first, int64_t known) {
    santa__keys k;
    k.index = index; k.first = first; k.known = known;
    return k;
}

/* Pointers to n <= SANTA_BLOCK rows and `beyond` more to those behind them, as far as known, to
   prefetch. */
static void santa__point(const santa__rows *r, santa__keys keys, int n, int beyond, const char **row) {
    const santa__rows x = *r;                                         /* which row[] cannot alias */
    const int all = n + beyond, more = (int)SANTA__MIN(keys.known, (int64_t)all);
    int i = 0;
    SANTA_ASSERT(n > 0 && n <= SANTA_BLOCK && n <= keys.known);
    if (keys.index) for (; i < more; i++) row[i] = santa__row(&x, keys.index[i]);
    while (i < more) {                                                /* a page, or all */
        const int64_t at = x.table ? (keys.first + i - x.first) % x.page_size : 0,
                      left = x.table ? x.page_size - at : more;
        const int to = (int)SANTA__MIN((int64_t)more, i + left);
        const char *p = santa__row(&x, keys.first + i);
        int64_t step = 0;
        for (; i + 4 <= to; i += 4, step += 4 * x.row) {
            row[i] = p + step;
            row[i + 1] = p + (step + x.row);
            row[i + 2] = p + (step + 2 * x.row);
            row[i + 3] = p + (step + 3 * x.row);
        }
        for (; i < to; i++, step += x.row) row[i] = p + step;
    }
    for (; i < all; i++) row[i] = row[n - 1];
}

static int santa__is_adjacent(const santa__rows *r) { return r->feature == santa__bytes(r->dtype, 1); }

static float santa__value(const santa__rows *r, const char *row, int64_t c) {
    return santa__is_adjacent(r) ? santa__feature(r->dtype, row + r->at, c)
                                 : santa__load(r->dtype, row + r->at + c * r->feature);
}

/* Feature c of n <= SANTA_BLOCK rows, of a type without blocks. Where features lie apart each
   is a line of memory of its own: those of the next one that is wanted are on their way
   meanwhile. */
static void santa__load_column(const santa__rows *r, const santa__kernels *kernel, const char *const *row,
                               int n, int64_t c, int64_t next, float *f) {
    char raw[4 * SANTA_BLOCK];
    const int64_t at = r->at + c * r->feature, ahead = r->at + next * r->feature;
    const int size = (int)santa__bytes(r->dtype, 1);
    int i;
    for (i = 0; i < n; i++) {
        SANTA__PREFETCH(row[i] + ahead);
        if (size == 4) memcpy(raw + 4 * i, row[i] + at, 4);
        else if (size == 2) memcpy(raw + 2 * i, row[i] + at, 2);
        else raw[i] = row[i][at];
    }
    kernel->widen(r->dtype, raw, n, f);
}

/* What row j is to be multiplied with, where rows have scales. */
static float santa__row_scale(const santa__rows *r, int64_t j) {
    const santa_tensor *t = r->scales;
    int64_t at;
    j -= r->first;
    at = r->table ? r->table[j / r->page_size] * t->stride[0] + j % r->page_size * t->stride[1]
                  : j * t->stride[1];
    return santa__load(t->dtype, r->scale_base + santa__bytes(t->dtype, at));
}

/* Numbers of n <= SANTA_BLOCK keys times the scales of their rows, of some queries; to may be
   x. */
static void santa__scale_keys(const santa__rows *r, santa__keys keys, int n, int64_t queries,
                              const float *x, int64_t x_stride, float *to, int64_t stride) {
    enum { STEP = 8 };                                                /* which compilers make vectors of */
    const santa_dtype t = r->scales->dtype;
    const char *at[SANTA_BLOCK];
    float scale[SANTA_BLOCK], f[STEP];
    santa__rows s = *r;
    int i, k;
    s.base = r->scale_base;
    s.page = santa__bytes(t, r->scales->stride[0]);
    s.row = santa__bytes(t, r->scales->stride[1]);
    santa__point(&s, keys, n, 0, at);
    for (i = 0; i < n; i++)
        if (t == SANTA_F32) memcpy(&scale[i], at[i], sizeof *scale);
        else scale[i] = santa__load(t, at[i]);
    for (; queries > 0; queries--, x += x_stride, to += stride) {
        for (i = 0; i + STEP <= n; i += STEP) {
            for (k = 0; k < STEP; k++) f[k] = x[i + k] * scale[i + k];
            memcpy(to + i, f, sizeof f);
        }
        for (; i < n; i++) to[i] = x[i] * scale[i];
    }
}

static void santa__scale_row(const santa__rows *r, int64_t j, float *f) {
    const float scale = santa__row_scale(r, j);
    int64_t c;
    for (c = 0; c < r->dim; c++) f[c] *= scale;
}

/* Row j as floats; room for a multiple of 16 of them, as `widen` fills it. */
static void santa__load_row(const santa__rows *r, const santa__kernels *kernel, int64_t j, float *f) {
    const char *p = santa__row(r, j) + r->at;
    int64_t c;
    if (santa__is_adjacent(r)) kernel->widen(r->dtype, p, r->dim, f);
    else for (c = 0; c < r->dim; c++) f[c] = santa__load(r->dtype, p + c * r->feature);
    if (r->scales) santa__scale_row(r, j, f);
}

/* ------------------------------------------------------------ >>proxy-format */

/* Where the block with key j of a sequence lies. */
static char *santa__proxy_block(const santa_attention *a, const santa__format *f, int64_t batch,
                                int64_t kv_head, int64_t j) {
    int64_t at = batch;
    if (a->block_table) {
        at = a->block_table[batch * santa__table_stride(a) + j / a->k.shape[1]];
        j %= a->k.shape[1];
    }
    return (char *)a->proxy + ((at * a->k.shape[2] + kv_head) * f->blocks + j / f->keys) * f->bytes;
}

/* What features are multiplied with before the butterflies: random signs, and what makes these
   orthonormal. 0 where there are no features. */
SANTA__ONCE
static void santa__turn(const santa__format *f, float *turn) {
    static const uint32_t key[2] = { 0x5eedu, 0x70726f78u };
    const float norm = (float)(1.0 / sqrt((double)f->piece));
    uint32_t counter[4] = {0, 0, 0, 0}, sign[4] = {0};
    int64_t c;
    memset(turn, 0, (size_t)f->features * sizeof *turn);
    for (c = 0; c < f->dim; c++) {
        counter[0] = (uint32_t)(c / 128);
        if (c % 128 == 0) santa_philox(counter, key, sign);
        turn[c] = sign[c / 32 % 4] >> (c % 32) & 1u ? -norm : norm;
    }
}

/* ------------------------------------------------------------ >>query */

/* Draws keys from masses, see >>draw. */
struct santa__mass;
struct santa__picks;
typedef void (*santa__draw_function)(const santa_options *o, struct santa__mass *x, santa__rng *rng,
                                     struct santa__picks *l, santa_stats *stats);

/* One KV head of one sequence, and some query rows of its group: what a method works on. Query
   x = row * group + g is head g of the group in that row. */
typedef struct santa__job {
    const santa_problem *p;
    const struct santa__method *method;  /* of these rows: dense where dense_below says so */
    santa__draw_function exact_draw;     /* of o->method, whatever gives the scores */
    const santa_options *o;
    const santa__kernels *kernel;
    const santa__plan *plan;
    santa_stats *stats;
    santa__rows k, v;
    int64_t batch, kv_head, group;
    int64_t q_index, rows, queries;      /* first query row, how many, times group */
    int64_t begin, end;                  /* keys that some of the rows sees */
    int64_t gap;                         /* where those before their gaps end, begin if there are none */
    santa__range range[SANTA__QUERIES];  /* of each row */
    uint64_t seed, offset, request_id;
    float *q, *coef, *scores;            /* [queries, d_pad]: scaled queries; their Bernoulli estimates */
    char *packed;                        /* the queries for the kernels, see santa__pack */
    char *copy_codes;                    /* .. and for the copy of K, see santa__copied */
    float *copy_q, *copy_unit, *copy_less;
    int form;                            /* of packed */
    int is_shared;                       /* threads share the job's pieces */
    const santa__met *met;               /* of each query, or NULL: there are no other ranks */
    santa__met *meeting;                 /* the same while they meet, in so many passes; what is said */
    char *message;
    int pass;
    float *sure;                         /* what santa__gather_parts tells them, [rows of out, dv + 2] */
    double *errors;                      /* NULL, or what santa__error_part tells them of each row */
    struct santa__va *va;                /* of a row of vAttention over ranks */
    int32_t *active;                     /* features some query's estimate holds */
    int64_t num_active;
    char *work;
} santa__job;

#define SANTA__PART(type, job, part) ((type *)(void *)((job)->work + (job)->plan->part))

static const santa__range *santa__range_of(const santa__job *j, int64_t x) {
    return &j->range[x / j->group];
}
static int64_t santa__head(const santa__job *j, int64_t x) { return j->kv_head * j->group + x % j->group; }
static int64_t santa__row_of(const santa__job *j, int64_t x) { return j->q_index + x / j->group; }

SANTA__ONCE
static santa__rng santa__job_rng(const santa__job *j, uint32_t stream, int64_t x) {
    return santa__rng_make(j->seed, j->offset, j->request_id, stream, (uint32_t)santa__head(j, x),
                           (uint32_t)santa__row_of(j, x));
}

/* Where results of query x go in lse, std_error and audit. */
SANTA__ONCE
static int64_t santa__result_at(const santa__job *j, int64_t x) {
    return (j->batch * j->p->q_len + santa__row_of(j, x)) * j->p->heads + santa__head(j, x);
}

static void santa__load_query(const santa__job *j, const santa_tensor *q, int64_t x, float *f) {
    int64_t size = santa__bytes(q->dtype, 1), c;
    const char *p = (const char *)q->data + (j->batch * q->stride[0] + santa__row_of(j, x) * q->stride[1]
                                             + santa__head(j, x) * q->stride[2]) * size;
    if (q->stride[3] == 1) j->kernel->widen(q->dtype, p, q->shape[3], f);
    else for (c = 0; c < q->shape[3]; c++) f[c] = santa__load(q->dtype, p + c * q->stride[3] * size);
}

/* How many of B draws keep a feature whose probability is p (section 5; stratified: appendix
   C.1). In stratum b the draw keeps the feature surely when (b + 1)/B <= p and never when b/B
   >= p, so only one stratum is random. */
static int64_t santa__bernoulli_count(santa__rng *rng, double p, int64_t draws, int stratified,
                                      int64_t feature) {
    int64_t kept = 0, b;
    if (stratified) {
        double x = p * (double)draws;
        b = (int64_t)x;
        if (b >= draws) return draws;
        return b + (santa__rng_uniform(rng, (uint64_t)(feature * draws + b)) < x - (double)b);
    }
    for (b = 0; b < draws; b++) kept += santa__rng_uniform(rng, (uint64_t)(feature * draws + b)) < p;
    return kept;
}

/* Replaces q by its estimate, plain: coef_i = sign(q_i) M/B count_i; mean group query: coef_hi
   = q_hi / qbar_i * M/B count_i with M = max qbar, qbar the group's mean |q|. 0/0 is 0; a NaN
   query stays NaN. The job has one query row. */
static void santa__bernoulli_query(santa__job *j) {
    const int64_t d = j->k.dim, pad = j->plan->d_pad, draws = j->o->bernoulli_draws;
    const int stratified =
        j->o->scores == SANTA_SCORES_BERNOULLI_STRAT || j->o->scores == SANTA_SCORES_GROUP_STRAT;
    const int grouped = santa__is_grouped(j->o);
    float *mean = SANTA__PART(float, j, row_a);
    int64_t g, i, used;
    memset(j->coef, 0, (size_t)(j->group * pad) * sizeof *j->coef);
    for (g = 0; g < j->group; g += grouped ? j->group : 1) {
        santa__rng rng = santa__job_rng(j, SANTA__STREAM_BERNOULLI, g);
        int64_t last = grouped ? j->group : g + 1, h;
        float m = 0.0f;
        int bad = 0;
        for (i = 0; i < d; i++) {
            float sum = 0.0f;
            for (h = g; h < last; h++) sum += (float)fabs((double)j->q[h * pad + i]);
            mean[i] = sum / (float)(last - g);
            if (mean[i] > m) m = mean[i];
            bad |= santa__not_finite(mean[i]);
        }
        for (i = 0; i < d; i++) {
            int64_t count;
            if (bad) {
                for (h = g; h < last; h++) j->coef[h * pad + i] = santa__nan();
                continue;
            }
            if (!(mean[i] > 0.0f)) continue;
            count = santa__bernoulli_count(&rng, (double)mean[i] / (double)m, draws, stratified, i);
            for (h = g; h < last; h++) {
                float part = grouped                    ? j->q[h * pad + i] / mean[i]
                             : j->q[h * pad + i] > 0.0f ? 1.0f
                                                        : -1.0f;
                j->coef[h * pad + i] = part * (m * (float)count / (float)draws);
            }
        }
    }
    for (i = 0, j->num_active = 0; i < d; i++) {
        for (g = 0, used = 0; g < j->group; g++) used |= santa__bits(j->coef[g * pad + i]) << 1 != 0;
        if (used) j->active[j->num_active++] = (int32_t)i;
    }
}

static int santa__form(const santa__job *j) {
    if (j->o->scores == SANTA_SCORES_Q8) return SANTA__INTEGERS;
    if (j->o->isa == SANTA_ISA_AMX) return SANTA__TILES;
    return j->p->a.q.dtype == SANTA_BF16 && j->k.dtype == SANTA_BF16 && j->k.dim % SANTA__PACK == 0
           && !santa__is_bernoulli(j->o) && santa__has_dot_bf16(j->kernel) ? SANTA__PAIRS : SANTA__FLOATS;
}

/* A scaled query for the copy of K: rotated, and in 8 bits. */
static void santa__copy_query(const santa__job *j, const float *turn, int64_t x) {
    const int64_t features = j->plan->format.features, d = j->k.dim;
    float *q = j->copy_q + x * features;
    char *code = j->copy_codes + x * features;
    int64_t c;
    int sum = 0;
    memset(q, 0, (size_t)features * sizeof *q);
    memcpy(q, j->q + x * j->plan->d_pad, (size_t)d * sizeof *q);
    j->kernel->rotate(q, 1, turn, &j->plan->format);
    memset(code, 0, (size_t)features);
    j->copy_unit[x] = santa__round_to_bytes(q, d, code);
    for (c = 0; c < d; c++) sum += (signed char)code[c];
    j->copy_less[x] = j->plan->format.middle * (float)sum;
}

static void santa__prepare_queries(santa__job *j) {
    const int64_t d = j->k.dim, pad = j->plan->d_pad;
    int64_t x, i;
    j->form = santa__form(j);
    for (x = 0; x < j->queries; x++) {
        float *q = j->q + x * pad;
        santa__load_query(j, &j->p->a.q, x, q);
        /* packed as it is: the scale is left to the scores */
        if (j->form == SANTA__PAIRS)
            santa__pack_bf16(q, d, j->queries, j->packed + x * santa__packed(j->form));
        for (i = 0; i < d; i++) q[i] *= j->p->scale;
    }
    if (santa__is_bernoulli(j->o)) { santa__bernoulli_query(j); return; }
    for (x = 0; x < j->queries; x++) {
        char *packed = j->packed + x * santa__packed(j->form);
        if (j->form == SANTA__INTEGERS) santa__pack_q8(j->q + x * pad, d, j->queries, packed);
#ifdef SANTA__AMX
        if (j->form == SANTA__TILES) santa__pack_tiles(j->q + x * pad, d, j->queries, x, j->packed);
#endif
        if (j->form == SANTA__FLOATS) santa__pack(j->q + x * pad, d, j->queries, packed);
    }
    if (santa__is_copied(j->o)) {
        float turn[SANTA__PROXY_DIM];
        santa__turn(&j->plan->format, turn);
        for (x = 0; x < j->queries; x++) santa__copy_query(j, turn, x);
    }
    j->coef = j->q;
    for (i = 0; i < d; i++) j->active[i] = (int32_t)i;
    j->num_active = d;
}

/* ------------------------------------------------------------ >>scores */

/* Feature by feature, for any feature stride, and for Bernoulli (which must not touch the
   features its draws left out). Keys i < n <= SANTA_BLOCK. */
static void santa__dot_features(const santa__job *j, const char *const *row, int n, int64_t x0,
                                int64_t queries, float *s, int64_t s_stride) {
    float f[SANTA_BLOCK] = {0.0f}, sum[SANTA_BLOCK];
    int64_t x, c;
    int i;
    for (x = x0; x < x0 + queries; x++) {
        const float *coef = j->coef + x * j->plan->d_pad;
        const int64_t last = j->num_active - 1;
        memset(sum, 0, sizeof sum);
        for (c = 0; c <= last; c++) {
            const int64_t at = j->active[c];
            if (santa__is_blocks(j->k.dtype))
                for (i = 0; i < n; i++) f[i] = santa__value(&j->k, row[i], at);
            else santa__load_column(&j->k, j->kernel, row, n, at, j->active[SANTA__MIN(c + 1, last)], f);
            for (i = 0; i < SANTA_BLOCK; i++) sum[i] += coef[at] * f[i];
        }
        memcpy(s + (x - x0) * s_stride, sum, (size_t)n * sizeof *s);
    }
}

/* Whether the keys lie side by side, as in feature-major K. */
static int santa__is_columns(const santa__rows *k, const char *const *row, int n) {
    const int64_t size = santa__bytes(k->dtype, 1);
    int i = 1;
    while (i < n && row[i] - row[i - 1] == size) i++;
    return i == n && !santa__is_blocks(k->dtype);
}

/* The same for keys side by side: a feature of n keys is a row of n numbers, the queries'
   features are the weights to add them with. */
static void santa__dot_columns(const santa__job *j, const char *key, int n, int64_t x0, int64_t queries,
                               float *s, int64_t s_stride) {
    const char *column[SANTA_BLOCK + SANTA__BEYOND_V];
    float w[SANTA__SLICE * SANTA_BLOCK], one[SANTA__SLICE];
    santa__weights sum;
    int64_t x, h, c;
    int i, fill;
    sum.w = w; sum.w_stride = SANTA_BLOCK; sum.keep = sum.add = one; sum.acc_stride = s_stride; sum.at = 0;
    for (x = 0; x < queries; x += SANTA__SLICE) {
        const int64_t slice = SANTA__MIN(queries - x, (int64_t)SANTA__SLICE);
        for (h = 0; h < slice; h++) {
            one[h] = 1.0f;
            memset(s + (x + h) * s_stride, 0, (size_t)n * sizeof *s);
        }
        for (c = 0; c < j->num_active; c += fill) {
            fill = (int)SANTA__MIN(j->num_active - c, (int64_t)SANTA_BLOCK);
            for (i = 0; i < fill + SANTA__BEYOND_V; i++)
                column[i] = key + j->active[SANTA__MIN(c + i, j->num_active - 1)] * j->k.feature;
            for (h = 0; h < slice; h++)
                for (i = 0; i < fill; i++)
                    w[h * SANTA_BLOCK + i] = j->coef[(x0 + x + h) * j->plan->d_pad + j->active[c + i]];
            sum.acc = s + x * s_stride;
            sum.group = slice;
            j->kernel->accumulate(j->k.dtype, column, fill, n, &sum);
        }
    }
}

/* q . K for n <= SANTA_BLOCK rows and queries x0 .. x0 + queries - 1 of each job of a span: s[h
   * s_step + (x - x0) * s_stride + i]. */
static void santa__score_rows(const santa__job *j, int64_t span, const char *const *row, int n, int64_t x0,
                              int64_t queries, float *s, int64_t s_step, int64_t s_stride) {
    int64_t h;
    if (!santa__is_bernoulli(j->o) && santa__is_adjacent(&j->k)) {
        const int64_t d = j->k.dim, size = santa__packed(j->form);
        santa__queries x;  /* jobs of a span are equally spaced, in K and in the workspace */
        x.heads = span; x.group = queries; x.s = s; x.s_step = s_step; x.s_stride = s_stride;
        x.at = j->k.at;
        x.k_step = j[span > 1].k.at - j->k.at;
        x.q = j->packed + x0 * size;
        x.q_strip = j->queries * size;
        x.q_step = j[span > 1].packed - j->packed;
        x.in_order = j->o->num_threads > 1;
        x.scale = j->p->scale;
        if (j->form == SANTA__INTEGERS) j->kernel->dot_q8(row, n, d, &x);
        else if (j->form == SANTA__PAIRS) j->kernel->dot_bf16(row, n, d, &x);
#ifdef SANTA__AMX
        else if (j->form == SANTA__TILES) {
            x.q = j->packed + x0 * 16;
            x.q_strip = (j->queries + SANTA__TILES_BEYOND) * SANTA__PACKED_TILES;
            santa__dot_tiles(row, n, d, &x);
        }
#endif
        else j->kernel->dot(j->k.dtype, row, n, d, &x);
        return;
    }
    for (h = 0; h < span; h++, j++, s += s_step) {
        /* the layout decides, not how many keys there are: a score has the same bits beside
           others */
        if (j->k.row == santa__bytes(j->k.dtype, 1) && !santa__is_adjacent(&j->k)
            && (!j->k.table || j->k.page_size % SANTA_BLOCK == 0) && santa__is_columns(&j->k, row, n))
            santa__dot_columns(j, row[0] + j->k.at, n, x0, queries, s, s_stride);
        else santa__dot_features(j, row, n, x0, queries, s, s_stride);
    }
}

/* SANTA_BLOCK scores of prefill, capped: tanh by exp(-2 |x|). Decode, which has fewer, keeps
   libm's: its bits are a promise. */
static void santa__soft_cap(const santa__job *j, float *s) {
    const float cap = j->p->a.soft_cap, twice = 2.0f / cap;
    float e[SANTA_BLOCK];
    int i;
    for (i = 0; i < SANTA_BLOCK; i++) e[i] = s[i] > 0.0f ? -twice * s[i] : twice * s[i];
    j->kernel->exps(e);
    for (i = 0; i < SANTA_BLOCK; i++) {
        const float x = s[i], z = x / cap * (x / cap), y = cap * (1.0f - e[i]) / (1.0f + e[i]);
        /* near 0 the difference from 1 has few digits: a series */
        if (z < 0.04f) s[i] = x + x * z * (-1.0f / 3.0f + z * (2.0f / 15.0f + z * (-17.0f / 315.0f)));
        else if (!santa__is_nan(x)) s[i] = x < 0.0f ? -y : y;
    }
}

/* What comes on top of q . K, in its documented order. */
static void santa__score_extras(const santa__job *j, santa__keys keys, int n, int64_t x0, int64_t queries,
                                float *s, int64_t s_stride) {
    const santa_attention *a = &j->p->a;
    int64_t x;
    int i;
    if (!(a->soft_cap > 0.0f) && !a->alibi_slopes) return;
    for (x = 0; x < queries; x++, s += s_stride) {
        if (a->soft_cap > 0.0f)
            for (i = 0; i < n; i++) s[i] = a->soft_cap * (float)tanh((double)(s[i] / a->soft_cap));
        if (a->alibi_slopes) {
            const float slope = a->alibi_slopes[santa__head(j, x0 + x)];
            const int64_t position = santa__range_of(j, x0 + x)->position;
            for (i = 0; i < n; i++)
                s[i] += slope * (float)((keys.index ? keys.index[i] : keys.first + i) - position);
        }
    }
}

/* Scores of n <= SANTA_BLOCK keys for queries x0 .. x0 + queries - 1 of one job, unmasked. */
static void santa__score(const santa__job *j, santa__keys keys, int n, int64_t x0, int64_t queries,
                         float *s, int64_t s_stride) {
    const char *row[SANTA_BLOCK + SANTA__BEYOND_K];
    santa__point(&j->k, keys, n, SANTA__BEYOND_K, row);
    santa__score_rows(j, 1, row, n, x0, queries, s, 0, s_stride);
    if (j->k.scales) santa__scale_keys(&j->k, keys, n, queries, s, s_stride, s, s_stride);
    santa__score_extras(j, keys, n, x0, queries, s, s_stride);
}

/* The keys that some row of a job sees before the gap, or behind it; of first .. last - 1. */
static int64_t santa__part_from(const santa__job *j, int part, int64_t first) {
    return SANTA__MAX(first, part ? j->range[0].gap_end : j->begin);
}
static int64_t santa__part_to(const santa__job *j, int part) { return part ? j->end : j->gap; }

/* Scores of block b (keys b * block ..) for all queries of a span of jobs, in their lanes, the
   rest of the block masked: query x of job h in its scores + x * s_stride + at. Of the keys
   before a gap where parts has 1, of those behind it where it has 2. */
static void santa__score_block(const santa__job *j, int64_t span, int64_t block, int64_t b, int parts,
                               int64_t s_stride, int64_t at) {
    const int64_t first = b * block;
    const int64_t s_step = j[span > 1].scores - j->scores;            /* jobs are equally spaced */
    const char *row[SANTA_BLOCK + SANTA__BEYOND_K];
    int64_t h, x, g, i;
    int part;
    for (part = 0; part < 2; part++) {
        const int64_t from = santa__part_from(j, part, first), end = santa__part_to(j, part),
                      to = SANTA__MIN(first + block, end);
        const santa__keys keys = santa__keys_from(NULL, from, end - from);
        const int n = (int)(to - from);
        if (n <= 0 || !(parts >> part & 1)) continue;
        santa__point(&j->k, keys, n, SANTA__BEYOND_K, row);
        santa__score_rows(j, span, row, n, 0, j->queries, j->scores + at + (from - first), s_step,
                          s_stride);
        for (h = 0; h < span; h++) {
            float *s = j[h].scores + at + (from - first);
            if (j->k.scales) santa__scale_keys(&j[h].k, keys, n, j->queries, s, s_stride, s, s_stride);
            santa__score_extras(&j[h], keys, n, 0, j->queries, s, s_stride);
        }
    }
    for (x = 0; x < j->queries; x += j->group) {                     /* heads of a row see the same */
        const santa__range *r = santa__range_of(j, x);
        const int64_t begin = parts & 1 ? r->begin : r->gap_end, end = parts & 2 ? r->end : r->gap;
        if (begin <= first && first + block <= end && (r->gap == r->gap_end || r->gap_end <= first))
            continue;
        for (h = 0; h < span; h++)
            for (g = x; g < x + j->group; g++)
                for (i = 0; i < block; i++)
                    if (first + i < begin || first + i >= end || !santa__is_seen(r, first + i))
                        j[h].scores[at + g * s_stride + i] = SANTA__MASKED;
    }
}

/* ------------------------------------------------------------ >>mass */

/* Rounds the u of a row as options.stash says. 8 bits: integers 0 .. 255, dithered. first:
   number of the row's first key. */
static void santa__round_stash(santa_stash stash, santa__rng *rng, int64_t first, int64_t n, float *u) {
    int64_t i;
    if (stash == SANTA_STASH_F16) for (i = 0; i < n; i++) u[i] = santa_f16_to_f32(santa_f32_to_f16(u[i]));
    if (stash == SANTA_STASH_U8)
        for (i = 0; i < n; i++) {
            uint32_t key = (uint32_t)(first + i), word = santa__rng_word(rng, key / 8 * 4 + key % 8 / 2);
            if (santa__bits(u[i]) > 0x3f800000u) continue;  /* not in [0, 1]: a raw score beside a NaN */
            u[i] = (float)(int)(u[i] * 255.0f
                                + (float)(word >> 16 * (key & 1u) & 0xffffu) * (1.0f / 65536.0f));
        }
}

/* A block of weights relative to exp(max) joins sums relative to exp(*m): what to multiply the
   old sums and the block's with. */
static void santa__join_max(float *m, float max, float *keep, float *add) {
    *keep = *add = 1.0f;
    if (max > *m) {
        *keep = *m < SANTA__MASK_LIMIT ? 0.0f : (float)exp((double)*m - (double)max);
        *m = max;
    } else if (max < *m) {
        *add = (float)exp((double)max - (double)*m);
    }
}

/* Prefix and total from the block masses. Returns 1 if a block's mass is NaN. Of a context over
   ranks the prefix counts from where its first key is. */
static int santa__prefix(santa__mass *x) {
    float scale[SANTA_BLOCK], m = x->share ? x->share->m : SANTA__MASKED;
    double total = x->share ? x->share->before : 0.0;
    int64_t b, i, n;
    int bad = x->share && x->share->bad;
    for (b = 0; b < x->blocks; b++) {
        bad |= santa__is_nan(x->sum[b]);
        m = SANTA__MAX(m, x->max[b]);
    }
    x->m = m;
    if (bad) return 1;
    memset(scale, 0, sizeof scale);     /* exp(max[b] - m); 0 of a block without keys */
    x->prefix[0] = total;
    for (b = 0; b < x->blocks; b += n) {
        n = SANTA__MIN(x->blocks - b, (int64_t)SANTA_BLOCK);
        for (i = 0; i < n; i++) scale[i] = x->max[b + i] - m;
        x->kernel->exps(scale);
        for (i = 0; i < n; i++) x->prefix[b + i + 1] = total += (double)scale[i] * (double)x->sum[b + i];
    }
    x->total = total;
    if (!x->share) return 0;
    x->total = x->share->total;
    while (b > 0 && x->prefix[b] > x->share->end) x->prefix[b--] = x->share->end;
    x->prefix[x->blocks] = x->share->end;           /* the same number as where the next rank begins */
    return 0;
}

/* Natural log-sum-exp of mass total * exp(m) and an optional sink logit, and the share of the
   keys in it. */
static float santa__lse(float m, double total, const float *sink, double *keys_share) {
    double top = (double)m, t = total;
    *keys_share = 1.0;
    if (sink && !santa__not_finite(*sink)) {                          /* -inf: no sink */
        if (!(total > 0.0)) { *keys_share = 0.0; return *sink; }
        if ((double)*sink > top) top = (double)*sink;
        t = total * exp((double)m - top);
        *keys_share = t / (t + exp((double)*sink - top));
        t += exp((double)*sink - top);
    }
    return t > 0.0 ? (float)(top + log(t)) : santa__neg_inf();
}

/* ------------------------------------------------------------ >>draw */

/* Sums of a block's u up to each group of lanes, so that a draw adds up one group, not half a
   block. Where a draw falls is random: comparisons are counted, since branches would be guessed
   wrong. */
enum { SANTA__GROUP = 8 };
typedef struct santa__walk {
    int64_t block;
    double scale;
    float reached[SANTA_BLOCK / SANTA__GROUP + 1];
} santa__walk;

/* p[i] = u[0] + .. + u[i], never below p[i - 1], and equal to it if u[i] is 0. */
static void santa__sum_group(const float *u, float *p) {
    p[0] = u[0];
    p[1] = u[0] + u[1];
    p[2] = p[1] + u[2];
    p[3] = p[1] + (u[2] + u[3]);
    p[4] = p[3] + u[4];
    p[5] = p[3] + (u[4] + u[5]);
    p[6] = p[5] + u[6];
    p[7] = p[5] + (u[6] + u[7]);
}

static void santa__walk_to(santa__walk *w, const santa__mass *x, int64_t block) {
    const float *u = x->u + block * x->block;
    const int groups = x->block / SANTA__GROUP;
    float sum = 0.0f;
    int k;
    w->block = block;
    w->reached[0] = 0.0f;
    for (k = 0; k < groups; k++) {
        float p[SANTA__GROUP];
        santa__sum_group(u + k * SANTA__GROUP, p);
        sum += p[SANTA__GROUP - 1];
        w->reached[k + 1] = sum;
    }
    /* u, rounded or not, adds up to sum */
    w->scale = (double)sum / (x->prefix[block + 1] - x->prefix[block]);
}

/* Number of the key in w's block that holds mass position t: the first with prefix > t,
   strictly, so that a key without mass is never it. Rounding can push t past the end: to the
   last key with mass. */
static int32_t santa__walk_draw(const santa__walk *w, const santa__mass *x, double t) {
    const int groups = x->block / SANTA__GROUP;
    const float *u;
    float p[SANTA__GROUP], local, rest;
    int i, k = 0, lane;
    local = (float)((t - x->prefix[w->block]) * w->scale);
    if (!(local > 0.0f)) local = 0.0f;
    for (i = 1; i < groups; i++) k += w->reached[i] <= local;
    while (k > 0 && !(w->reached[k + 1] > w->reached[k])) k--;
    u = x->u + w->block * x->block + k * SANTA__GROUP;
    santa__sum_group(u, p);
    rest = local - w->reached[k];
    lane = (p[0] <= rest) + (p[1] <= rest) + (p[2] <= rest) + (p[3] <= rest)
           + (p[4] <= rest) + (p[5] <= rest) + (p[6] <= rest) + (p[7] <= rest);
    if (lane == SANTA__GROUP) for (lane--; lane > 0 && !(u[lane] > 0.0f);) lane--;
    return (int32_t)((x->first + w->block) * x->block + k * SANTA__GROUP + lane);
}

/* What one query picked: keys in ascending order, each once, how often it was drawn, and its
   weight. */
typedef struct santa__picks {
    int32_t *index, *count;
    float *weight;
    int64_t rows, draws, before;  /* draws of earlier ranks, which combs count on from */
} santa__picks;

static void santa__picks_add(santa__picks *l, int32_t key) {
    SANTA_ASSERT(!l->rows || l->index[l->rows - 1] <= key);           /* keys arrive in ascending order */
    if (l->rows && l->index[l->rows - 1] == key) l->count[l->rows - 1]++;
    else {
        l->index[l->rows] = key;
        l->count[l->rows] = 1;
        l->rows++;
    }
    l->draws++;
}

static void santa__sift(int32_t *a, int64_t i, int64_t n) {
    int32_t x = a[i];
    int64_t child;
    while ((child = 2 * i + 1) < n) {
        if (child + 1 < n && a[child + 1] > a[child]) child++;
        if (x >= a[child]) break;
        a[i] = a[child];
        i = child;
    }
    a[i] = x;
}

static void santa__sort(int32_t *a, int64_t n) {  /* heap sort: in place, n log n always */
    int64_t i;
    for (i = n / 2; i-- > 0;) santa__sift(a, i, n);
    for (i = n; i-- > 1;) { int32_t x = a[0]; a[0] = a[i]; a[i] = x; santa__sift(a, 0, i); }
}

/* Ascending mass positions to draw at, s of them: a comb's (i + u) * step, those of several
   combs of the same step (the i-th is of comb i % combs, as their offsets are sorted), one in
   each stratum, or anywhere in the mass (step is all of it), from sorted random words. */
enum { SANTA__COMB, SANTA__COMBS, SANTA__STRATA, SANTA__ANYWHERE };
typedef struct santa__positions {
    int kind;
    int64_t s, combs;
    double u, step, per_step, shift, comb[SANTA_MAX_COMBS];
    const int32_t *word;
} santa__positions;

static santa__positions santa__positions_make(int kind, int64_t s, double step, const int32_t *word,
                                              double u) {
    santa__positions m;
    m.kind = kind; m.s = s; m.combs = 1; m.step = step; m.per_step = 1.0 / step; m.word = word; m.u = u;
    m.shift = kind == SANTA__COMB ? 1.0 - u : 0.0;
    return m;
}

/* s draws by combs over mass total, with the stream's numbers from index on. */
static santa__positions santa__positions_combs(santa__rng *rng, uint64_t index, int64_t combs, int64_t s,
                                               double total) {
    santa__positions m =
        santa__positions_make(combs > 1 ? SANTA__COMBS : SANTA__COMB, s, total / (double)(s / combs), NULL,
                              santa__rng_uniform(rng, index));
    int64_t i, k;
    m.combs = combs;
    for (i = 0; i < combs; i++) {
        const double u = santa__rng_uniform(rng, index + (uint64_t)i);
        for (k = i; k > 0 && m.comb[k - 1] > u; k--) m.comb[k] = m.comb[k - 1];
        m.comb[k] = u;
    }
    return m;
}

static double santa__position_at(const santa__positions *m, int64_t i) {
    uint32_t word;
    if (m->kind == SANTA__COMB) return ((double)i + m->u) * m->step;
    if (m->kind == SANTA__COMBS) return ((double)(i / m->combs) + m->comb[i % m->combs]) * m->step;
    memcpy(&word, &m->word[i], sizeof word);
    return ((m->kind == SANTA__STRATA ? (double)i : 0.0)
            + (double)(word ^ 0x80000000u) * (1.0 / 4294967296.0))
           * m->step;
}

/* How many of them lie below mass position end; from: how many lie below an earlier one. n: a
   guess. */
static int64_t santa__positions_search(const santa__positions *m, double end, int64_t n, int64_t from) {
    n = m->kind == SANTA__ANYWHERE ? from : SANTA__MIN(SANTA__MAX(n, from), m->s);
    if (m->kind == SANTA__STRATA) n += n < m->s && santa__position_at(m, n) < end;
    while (n > from && !(santa__position_at(m, n - 1) < end)) n--;        /* few steps, unless anywhere */
    while (n < m->s && santa__position_at(m, n) < end) n++;
    return n;
}

static int64_t santa__positions_below(const santa__positions *m, double end, int64_t from) {
    const double x = end * m->per_step + m->shift;
    const int64_t n = (int64_t)x;
    /* x is further from a whole number than rounding moves it */
    if (m->kind == SANTA__COMB && fabs(x - (double)n - 0.5) < 0.49999) return n;
    return santa__positions_search(m, end, n * m->combs, from);
}

/* Of how many of them the mass before x, or up to its end, is the place: all of them at the end
   of the last rank. */
static int64_t santa__positions_before(const santa__positions *m, const santa__mass *x, double edge) {
    return edge < x->total ? santa__positions_below(m, edge, 0) : m->s;
}

/* The next blocks from *b on, before last, that positions fall in, some at a time: hit[k], with
   the positions up to until[k] - 1. *below: how many lie before *b. Returns how many blocks. */
enum { SANTA__HITS = 32 };
static int santa__find_hits(const santa__mass *x, const santa__positions *m, int64_t *b, int64_t last,
                            int64_t *below, int64_t to, int64_t *hit, int64_t *until) {
    int hits = 0;
    for (; *b < last && hits < SANTA__HITS; ++*b) {
        const int64_t n = SANTA__MIN(santa__positions_below(m, x->prefix[*b + 1], *below), to);
        hit[hits] = *b;
        until[hits] = n;
        hits += n > *below;
        *below = n;
    }
    return hits;
}

/* Draws at the positions from .. to - 1, in the blocks first .. last - 1. First the blocks that
   positions fall in, some at a time, so that their weights are on the way here while others are
   walked. */
static void santa__draw_positions(const santa__mass *x, const santa__positions *m, int64_t from, int64_t to,
                                  int64_t first, int64_t last, santa__picks *l) {
    int64_t hit[SANTA__HITS], until[SANTA__HITS], b = first, below = from, n;
    santa__walk w;
    int k, hits;
    while (b < last && from < to) {
        hits = santa__find_hits(x, m, &b, last, &below, to, hit, until);
        for (k = 0; k < hits; k++)
            for (n = 0; n < x->block; n += 16) SANTA__PREFETCH(x->u + hit[k] * x->block + n);
        for (k = 0; k < hits; k++) {
            santa__walk_to(&w, x, hit[k]);
            for (; from < until[k]; from++)
                santa__picks_add(l, santa__walk_draw(&w, x, santa__position_at(m, from)));
        }
    }
    if (from == to) return;
    for (b = last - 1; b > 0 && !(x->prefix[b + 1] > x->prefix[b]);) b--;     /* past the end by rounding */
    SANTA_ASSERT(x->prefix[b + 1] > x->prefix[b]);
    santa__walk_to(&w, x, b);
    for (; from < to; from++) santa__picks_add(l, santa__walk_draw(&w, x, santa__position_at(m, from)));
}

static void santa__draw_all_positions(const santa__mass *x, const santa__positions *m, santa__picks *l) {
    santa__draw_positions(x, m, santa__positions_before(m, x, x->prefix[0]),
                          santa__positions_before(m, x, x->prefix[x->blocks]), 0, x->blocks, l);
}

/* Words 0 .. s - 1 where the keys will be: the list grows at or before the entry that is drawn.
   Unsigned order as signed order. */
static void santa__draw_words(santa__rng *rng, int64_t s, santa__picks *l) {
    int64_t i;
    for (i = 0; i < s; i++) {
        const uint32_t word = santa__rng_word(rng, (uint64_t)i) ^ 0x80000000u;
        memcpy(&l->index[i], &word, sizeof word);
    }
}

static void santa__weigh_counts(santa__picks *l, int64_t s) {
    int64_t i;
    for (i = 0; i < l->rows; i++) l->weight[i] = (float)((double)l->count[i] / (double)s);
}

/* Samplers: rows and weights of one query from its masses. o is resolved; each is named in
   SANTA_METHOD_LIST. */

/* Sort the random words, not the keys: then one walk finds all keys. */
static void santa__draw_iid(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                            santa_stats *stats) {
    const int64_t s = o->num_samples;
    const santa__positions m = santa__positions_make(SANTA__ANYWHERE, s, x->total, l->index, 0.0);
    santa__draw_words(rng, s, l);
    santa__sort(l->index, s);
    (void)stats;
    santa__draw_all_positions(x, &m, l);
    santa__weigh_counts(l, s);
}

static void santa__draw_strat(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                              santa_stats *stats) {
    const int64_t s = o->num_samples;
    const santa__positions m = santa__positions_make(SANTA__STRATA, s, x->total / (double)s, l->index, 0.0);
    (void)stats;
    santa__draw_words(rng, s, l);
    santa__draw_all_positions(x, &m, l);
    santa__weigh_counts(l, s);
}

/* The comb, cut at the borders of tiles of tile blocks counted from block 0 of the sequence; 0:
   not cut. */
static void santa__draw_comb(const santa_options *o, const santa__mass *x, santa__rng *rng, int64_t tile,
                             santa__picks *l, santa_stats *stats) {
    const int64_t s = o->num_samples;
    const santa__positions m = santa__positions_combs(rng, 0, o->num_combs, s, x->total);
    int64_t b = 0, i = santa__positions_before(&m, x, x->prefix[0]);
    l->before = i;
    while (b < x->blocks) {
        int64_t end = tile ? ((x->first + b) / tile + 1) * tile - x->first : x->blocks, n;
        end = SANTA__MIN(end, x->blocks);
        n = x->prefix[end] < x->total ? santa__positions_below(&m, x->prefix[end], i) : s;
        if (tile) { stats->tiles++; stats->tiles_skipped += n == i; }
        santa__draw_positions(x, &m, i, n, b, end, l);
        i = n;
        b = end;
    }
    santa__weigh_counts(l, s);
}

static void santa__draw_sys(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                            santa_stats *stats) {
    santa__draw_comb(o, x, rng, 0, l, stats);
}

static void santa__draw_prop(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                             santa_stats *stats) {
    santa__draw_comb(o, x, rng, o->tile_size / x->block, l, stats);
}

/* End of the tile that block b lies in; *mass: whether its largest score is near enough to the
   row's to have a share at all. */
static int64_t santa__tile_end(const santa__mass *x, int64_t b, int64_t tile, int *mass) {
    int64_t end = SANTA__MIN(((x->first + b) / tile + 1) * tile - x->first, x->blocks);
    for (*mass = 0; b < end; b++) *mass |= x->max[b] - x->m > SANTA__EXP_UNDERFLOW;
    return end;
}

/* The same of a context over ranks: *share is NULL, or that of a tile which other ranks may
   have keys of, and which has mass if any of them has. */
static int64_t santa__shared_tile_end(const santa__mass *x, int64_t b, int64_t tile,
                                      const santa__rank_part **share, int *mass) {
    const int64_t end = santa__tile_end(x, b, tile, mass);
    *share = !x->met ? NULL : b == 0 ? &x->met->edge[0] : end == x->blocks ? &x->met->edge[1] : NULL;
    if (*share) *mass = (*share)->m - x->m > SANTA__EXP_UNDERFLOW;
    return end;
}

/* The blocks from .. to - 1, without their u. */
static santa__mass santa__mass_part(const santa__mass *x, int64_t from, int64_t to) {
    santa__mass part = *x;
    part.max += from; part.sum += from; part.first += from; part.blocks = to - from;
    part.share = NULL;
    return part;
}

/* Every tile by itself: the comb over its own mass, rows weighted by the tile's share. Only
   tiles with mass have a share of the budget. A tile far below the others would drown in their
   prefix, so each has a prefix of its own. Of a tile over ranks each draws what falls on its
   keys. */
static void santa__draw_flash(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                              santa_stats *stats) {
    const double total = x->total;
    const int64_t tile = o->tile_size / x->block, combs = o->num_combs;
    const int64_t each = o->num_samples / combs;                      /* draws of one comb in all tiles */
    int64_t b, end, i, tiles = 0, rank = x->met ? x->met->tiles_before : 0;
    const santa__rank_part *share;
    int has;
    for (b = 0; b < x->blocks; b = end) {
        const int is_here = b > 0 || !x->met || !x->met->has_begun;
        end = santa__shared_tile_end(x, b, tile, &share, &has);
        tiles += has > 0;
        stats->tiles += is_here;
        stats->tiles_skipped += is_here && !has;
    }
    if (x->met) {
        stats->tiles += x->met->tiles_between;
        stats->tiles_skipped += x->met->tiles_between;
        /* whatever other ranks say */
        rank = SANTA__MIN(rank, (int64_t)INT32_MAX);
        tiles = SANTA__MAX(SANTA__MIN(x->met->tiles, (int64_t)INT32_MAX), rank + tiles);
    }
    for (b = 0; b < x->blocks; b = end) {
        santa__mass part;
        santa__positions m;
        int64_t n, from = l->rows;
        double weight;
        end = santa__shared_tile_end(x, b, tile, &share, &has);
        if (!has) continue;
        part = santa__mass_part(x, b, end);
        part.u += b * x->block;
        part.share = share;
        santa__prefix(&part);  /* overwrites x's, which is not needed any more */
        n = each * (rank + 1) / tiles - each * rank / tiles;
        n = SANTA__MAX(n, 1) * combs;
        rank++;
        m = santa__positions_combs(rng, (uint64_t)((x->first + b) / tile * combs), combs, n, part.total);
        weight = part.total * exp((double)part.m - (double)x->m) / total / (double)n;
        santa__draw_all_positions(&part, &m, l);
        for (i = from; i < l->rows; i++) l->weight[i] = (float)(weight * (double)l->count[i]);
    }
}

/* Sizes of the keys of block b: the largest of their shares in some heads. Returns their
   sum. */
static float santa__block_sizes(const santa__mass *x, int64_t heads, int64_t b, float *size) {
    const float *u[SANTA__SLICE], *unit[SANTA__SLICE];
    float sum = 0.0f;
    int64_t h, i;
    memset(size, 0, SANTA_BLOCK * sizeof *size);
    for (h = 0; h < heads; h += SANTA__SLICE) {
        const int64_t few = SANTA__MIN(heads - h, (int64_t)SANTA__SLICE);
        for (i = 0; i < few; i++) { u[i] = x[h + i].u; unit[i] = x[h + i].unit; }
        sum = x->kernel->sizes(u, unit, few, b, size);
    }
    return sum;
}

/* After santa__prefix. Rounded u have a sum of their own. */
static void santa__mass_units(santa__mass *x, int is_rounded) {
    int64_t b;
    int i;
    for (b = 0; b < x->blocks; b++) {
        const float *u = x->u + b * x->block;
        float sum = is_rounded ? 0.0f : x->sum[b];
        for (i = 0; i < x->block && is_rounded; i++) sum += u[i];
        x->unit[b] = x->total > 0.0 && sum > 0.0f
                   ? (float)((x->prefix[b + 1] - x->prefix[b]) / ((x->total + x->rest) * (double)sum))
                   : 0.0f;
    }
}

/* The first head's prefix becomes that of num_samples times the sizes of keys. */
static void santa__size_blocks(santa__mass *x, int64_t heads, int64_t num_samples) {
    float size[SANTA_BLOCK];
    int64_t b;
    x->prefix[0] = 0.0;
    for (b = 0; b < x->blocks; b++) {
        const double sum = (double)santa__block_sizes(x, heads, b, size);
        x->prefix[b + 1] = x->prefix[b] + (double)num_samples * sum;
    }
    x->sizes = x->prefix[x->blocks];
}

/* Draws keys for some heads together, of which key j is one with probability min(1, num_samples
   max_h p_hj): the first tooth of a comb of step 1 in its interval of that length takes it, so
   only blocks with teeth are looked into again. x: the heads, with units, and what they draw by
   in the first one's prefix. Head h's weights go to l->weight + h * stride; of more heads than
   one stride is l's room, and a row too many is one that the sum of the sizes was rounded up
   by. */
static void santa__draw_sized(santa__mass *x, int64_t heads, santa__rng *rng, santa__picks *l,
                              int64_t stride) {
    float size[SANTA_BLOCK];
    int64_t hit[SANTA__HITS], until[SANTA__HITS], b, from, below, n, h;
    santa__positions m;
    int k, hits;
    for (b = 0; b <= x->blocks; b++) x->prefix[b] += x->before;
    m = santa__positions_make(SANTA__COMB, (int64_t)x->prefix[x->blocks] + 2, 1.0, NULL,
                              santa__rng_uniform(rng, 0));
    from = below = santa__positions_below(&m, x->prefix[0], 0);
    for (b = 0; b < x->blocks;) {
        hits = santa__find_hits(x, &m, &b, x->blocks, &below, m.s, hit, until);
        for (k = 0; k < hits; k++)
            for (h = 0; h < heads; h++)
                for (n = 0; n < x->block; n += 16) SANTA__PREFETCH(x[h].u + hit[k] * x->block + n);
        for (k = 0; k < hits; k++) {
            santa__mass part = *x;
            santa__walk w;
            santa__block_sizes(x, heads, hit[k], size);
            part.u = size;
            part.prefix += hit[k];
            part.first += hit[k];
            santa__walk_to(&w, &part, 0);
            for (; from < until[k]; from++) {
                const int64_t rows = l->rows;
                const int32_t key = santa__walk_draw(&w, &part, santa__position_at(&m, from));
                const int64_t i = key - part.first * x->block;
                const float pi = (float)SANTA__MIN((double)size[i] / w.scale, 1.0);
                if (rows && rows == stride && key != l->index[rows - 1]) continue;
                santa__picks_add(l, key);
                if (l->rows == rows) continue;
                x->chance[rows] = pi;
                for (h = 0; h < heads; h++)
                    l->weight[h * stride + rows] =
                        x[h].u[hit[k] * x->block + i] * x[h].unit[hit[k]] / pi;
            }
        }
    }
}

static void santa__draw_shared(santa__mass *x, int64_t heads, int64_t num_samples, santa__rng *rng,
                               santa__picks *l, int64_t stride) {
    santa__size_blocks(x, heads, num_samples);
    santa__draw_sized(x, heads, rng, l, stride);
}

/* A head's weights add up to 1 on average. What is missing this time, or too much, the sure
   keys take up in proportion: they are the same in every draw, so that the result stays
   unbiased, and the mean of V, where it has one, costs no error. Not where they hold too little
   to know it. */
#define SANTA__ANCHOR 0.25
/* What is surely drawn: a chance that is 1 but for a rounding. NaN is sure, too. */
#define SANTA__SURE 0.999999f
static int santa__is_sure(float chance) { return !(chance < SANTA__SURE); }
static int santa__is_open(double chance) { return chance > 0.0 && chance < (double)SANTA__SURE; }

static void santa__anchor(santa__mass *x, const float *chance, const santa__picks *l, float *weight) {
    double sum = 0.0;
    int64_t i;
    x->sure = 0.0;
    for (i = 0; i < l->rows; i++) {
        sum += (double)weight[i];
        if (santa__is_sure(chance[i])) x->sure += (double)weight[i];
    }
    if (x->sure < SANTA__ANCHOR) return;
    for (i = 0; i < l->rows; i++)
        if (santa__is_sure(chance[i])) weight[i] *= (float)(1.0 + (1.0 - sum) / x->sure);
}

/* One head, for santa_sample. */
static void santa__draw_sizes(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                              santa_stats *stats) {
    (void)stats;
    santa__mass_units(x, santa__is_rounded(o));
    santa__draw_shared(x, 1, o->num_samples, rng, l, 0);
    santa__anchor(x, x->chance, l, l->weight);
}

/* ------------------------------------------------------------ >>select */

static uint32_t santa__sortable(float f) {                            /* unsigned order = float order */
    uint32_t u = santa__bits(f);
    return u & 0x80000000u ? 0u - u : u | 0x80000000u;                  /* -0 is 0 */
}

static float santa__unsortable(uint32_t u) {
    if (u < 0x00800000u) return santa__neg_inf();                     /* a NaN, some come before that */
    return santa__from_bits(u & 0x80000000u ? u & 0x7fffffffu : 0u - u);
}

/* The top of s[0..n) without sorting, by radix: everything above *threshold and the first *ties
   equal to it. want counts keys, or mass relative to exp(m) when by_mass. Leaves out what is
   below floor, as are masked scores. */
static void santa__radix(const float *s, int64_t n, float floor, double want, int by_mass, float m,
                         uint32_t *threshold, int64_t *ties) {
    uint32_t value = 0, mask = 0;
    int shift;
    *threshold = 0xffffffffu;
    *ties = 0;
    for (shift = 24; shift >= 0; shift -= 8) {
        double sum[256] = {0.0};
        int64_t count[256] = {0}, i;
        int bucket, lowest = -1;
        for (i = 0; i < n; i++) {
            uint32_t key;
            if (s[i] < floor) continue;
            key = santa__sortable(s[i]);
            if ((key & mask) != value) continue;
            count[key >> shift & 255u]++;
            if (by_mass) sum[key >> shift & 255u] += exp((double)s[i] - (double)m);
        }
        for (bucket = 255; bucket >= 0; bucket--) {
            if (!count[bucket]) continue;
            if (!by_mass) sum[bucket] = (double)count[bucket];
            lowest = bucket;
            if (!(sum[bucket] < want)) break;
            want -= sum[bucket];
        }
        if (lowest < 0) return;                                       /* nothing is unmasked */
        if (bucket < 0) want += sum[lowest];  /* rounding: want lies just past the end */
        value |= (uint32_t)lowest << shift;
        mask |= 255u << shift;
        *ties = count[lowest];
        if (shift == 0) {
            double each = sum[lowest] / (double)count[lowest], take = each > 0.0 ? ceil(want / each) : 1.0;
            *ties = take < 1.0 ? 1 : take < (double)count[lowest] ? (int64_t)take : count[lowest];
        }
    }
    *threshold = value;
}

/* Keys in santa__select's list, and those that it guesses from, at most. */
enum { SANTA__NEAR = 4096, SANTA__GUESSED_FROM = 2048 };

static int santa__lowest_bit(uint64_t bits) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctzll(bits);
#else
    int i = 0, step;
    for (step = 32; step; step /= 2)
        if (!(bits >> i & (((uint64_t)1 << step) - 1))) i += step;
    return i;
#endif
}

/* n scores to choose from, tops the largest of each 64 of them or NULL, and the choice: those
   above the threshold, see santa__radix, and the first `ties` of those at it. */
typedef struct santa__choosing {
    const santa__kernels *kernel;
    const float *s, *tops;
    int64_t n, ties, at;                     /* bits: of the 64 from `at` on, which santa__next has next */
    uint64_t bits;
    uint32_t threshold;
} santa__choosing;

SANTA__ONE_COPY
static santa__choosing santa__choosing_from(const santa__kernels *kernel, const float *s, int64_t n,
                                            const float *tops) {
    santa__choosing c;
    memset(&c, 0, sizeof c);
    c.kernel = kernel;
    c.s = s;
    c.n = n;
    c.tops = tops;
    c.at = -SANTA_BLOCK;
    return c;
}

/* Which of the 64 scores from i on, or of the last few, are not below the floor, a NaN among
   them. */
static uint64_t santa__above(const santa__choosing *c, int64_t i, float floor) {
    const float *s = c->s + i;
    int64_t n = SANTA__MIN(c->n - i, (int64_t)SANTA_BLOCK);
    uint64_t bits = 0;
    if (c->tops && c->tops[i / SANTA_BLOCK] < floor) return 0;
    if (n == SANTA_BLOCK && c->kernel->above) return c->kernel->above(s, floor);
    while (n-- > 0) bits = bits << 1 | (uint64_t)!(s[n] < floor);
    return bits;
}

/* NaN or +infinity among n numbers. */
static int santa__has_bad(const santa__kernels *kernel, const float *s, int64_t n) {
    int64_t i;
    for (i = 0; i < n; i++)
        if (n - i >= SANTA_BLOCK && kernel->bad) {
            if (kernel->bad(s + i)) return 1;
            i += SANTA_BLOCK - 1;
        } else if (santa__nan_or_plus_inf(s[i])) return 1;
    return 0;
}

/* How many scores reach the floor; as many of them as the list has room for, as keys, and one
   more. A NaN counts, but is not chosen. */
static int64_t santa__near(const santa__choosing *c, float floor, uint32_t *list, int64_t room) {
    int64_t i, count = 0;
    uint64_t bits;
    for (i = 0; i < c->n; i += SANTA_BLOCK)
        for (bits = santa__above(c, i, floor); bits; bits &= bits - 1, count++)
            list[SANTA__MIN(count, room)] = santa__sortable(c->s[i + santa__lowest_bit(bits)]);
    return count;
}

/* What santa__radix says, for a count of keys in a list, which it shortens step by step. */
static void santa__rank(uint32_t *key, int64_t n, double want, uint32_t *threshold, int64_t *ties) {
    int shift;
    *threshold = 0xffffffffu;
    *ties = 0;
    if (n == 0 || !(want > 0.0)) return;
    want = SANTA__MIN(want, (double)n);
    for (shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0}, i, kept = 0;
        uint32_t bucket = 255;
        for (i = 0; i < n; i++) count[key[i] >> shift & 255u]++;
        for (; (double)count[bucket] < want; bucket--) want -= (double)count[bucket];
        for (i = 0; i < n; i++) {
            key[kept] = key[i];
            kept += (key[i] >> shift & 255u) == bucket;
        }
        n = kept;
    }
    *threshold = key[0];
    *ties = (int64_t)ceil(want);
}

/* A floor that `want` scores reach, most likely few more: as many tops of blocks do, or as it
   looks from scores at equal distances, with four standard deviations to spare. */
static float santa__floor_of(const santa__choosing *c, double want, uint32_t *list) {
    const int64_t n = c->n, blocks = n / SANTA_BLOCK,
                  some = SANTA__MIN(n / 16, (int64_t)SANTA__GUESSED_FROM);
    uint32_t threshold = 0xffffffffu;
    int64_t ties, i;
    if (c->tops && want < (double)blocks) {
        santa__choosing top = *c;
        int64_t count;
        top.s = c->tops;
        top.n = blocks;
        top.tops = NULL;
        count = santa__near(&top, SANTA__MASK_LIMIT, list, SANTA__NEAR);
        if (count <= SANTA__NEAR) santa__rank(list, count, want, &threshold, &ties);
        else santa__radix(top.s, blocks, SANTA__MASK_LIMIT, want, 0, 0.0f, &threshold, &ties);
    } else if (want < (double)(n / 8)) {
        const double share = want / (double)n * (double)some;
        for (i = 0; i < some; i++) list[i] = santa__sortable(c->s[i * n / some]);
        santa__rank(list, some, share + 4.0 * sqrt(share) + 4.0, &threshold, &ties);
    }
    return threshold == 0xffffffffu ? SANTA__MASK_LIMIT
                                    : SANTA__MAX(santa__unsortable(threshold), SANTA__MASK_LIMIT);
}

/* Chooses `want` of the scores as santa__radix does. Looks at the top alone, where it can tell
   how far down that goes. The list is scratch, with room for SANTA__NEAR keys or for all. */
static void santa__select_in(santa__choosing *c, double want, uint32_t *list, int64_t room) {
    float floor = c->n < 1024 ? SANTA__MASK_LIMIT : santa__floor_of(c, want, list);
    int64_t count = santa__near(c, floor, list, room);
    if ((double)count < want && floor > SANTA__MASK_LIMIT) {
        floor = SANTA__MASK_LIMIT;
        count = santa__near(c, floor, list, room);
    }
    if (count <= room) santa__rank(list, count, want, &c->threshold, &c->ties);
    else santa__radix(c->s, c->n, floor, want, 0, 0.0f, &c->threshold, &c->ties);
}

/* The same with a list of its own. */
static void santa__select(santa__choosing *c, double want) {
    uint32_t list[SANTA__NEAR + 1];
    santa__select_in(c, want, list, SANTA__NEAR);
}

/* The next score of the choice, in ascending order of their numbers, or -1. */
SANTA__ONE_COPY
static int64_t santa__next(santa__choosing *c) {
    const float least = santa__unsortable(c->threshold), floor = SANTA__MAX(least, SANTA__MASK_LIMIT);
    if (c->threshold == 0xffffffffu) return -1;
    for (;;) {
        int64_t i;
        while (!c->bits) {
            if ((c->at += SANTA_BLOCK) >= c->n) return -1;
            c->bits = santa__above(c, c->at, floor);
        }
        i = c->at + santa__lowest_bit(c->bits);
        c->bits &= c->bits - 1;
        if (c->s[i] > least || (c->s[i] == least && c->ties-- > 0)) return i;
    }
}

/* Softmax over the selected scores, `most` of them; s[0] belongs to key first. all: NULL, or
   the mass that other ranks have selected is in it, too. */
static void santa__pick_selected(santa__choosing *c, int64_t first, int64_t most, float m,
                                 const double *all, santa__picks *l) {
    double total = 0.0;
    int64_t i;
    while (l->rows < most && (i = santa__next(c)) >= 0) {
        l->weight[l->rows] = (float)exp((double)c->s[i] - (double)m);
        total += (double)l->weight[l->rows];
        santa__picks_add(l, (int32_t)(first + i));
    }
    if (all) total = *all;
    for (i = 0; i < l->rows; i++) l->weight[i] = (float)((double)l->weight[i] / total);
}

static void santa__draw_top(santa__mass *x, double want, int by_mass, santa__picks *l) {
    const int64_t n = x->blocks * x->block, most = by_mass || want > (double)n ? n : (int64_t)want;
    const santa__choice *met = x->met ? &x->met->choice : NULL;
    santa__choosing c = santa__choosing_from(x->kernel, x->u, n, x->max);
    if (met) { c.threshold = met->threshold; c.ties = met->ties; }
    else if (by_mass) santa__radix(x->u, n, SANTA__MASK_LIMIT, want, 1, x->m, &c.threshold, &c.ties);
    else santa__select(&c, want);
    santa__pick_selected(&c, x->first * x->block, most, x->m, met ? &met->mass : NULL, l);
}

static void santa__draw_top_k(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                              santa_stats *stats) {
    (void)rng; (void)stats;
    santa__draw_top(x, (double)o->num_samples, 0, l);
}

static void santa__draw_top_p(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                              santa_stats *stats) {
    (void)rng; (void)stats;
    santa__draw_top(x, o->top_p * x->total, 1, l);
}

/* Every row with mass, for the steps: santa_decode sums exact attention block by block. */
static void santa__draw_all(const santa_options *o, santa__mass *x, santa__rng *rng, santa__picks *l,
                            santa_stats *stats) {
    int64_t b, i;
    (void)o; (void)rng; (void)stats;
    for (b = 0; b < x->blocks; b++) {
        const double scale = exp((double)x->max[b] - (double)x->m) / x->total;
        for (i = 0; i < x->block; i++) {
            const float u = x->u[b * x->block + i];
            if (!(u > 0.0f)) continue;
            l->weight[l->rows] = (float)((double)u * scale);
            santa__picks_add(l, (int32_t)((x->first + b) * x->block + i));
        }
    }
}

/* Weights and masses of one block of `queries` queries. Selection wants the scores to stay. */
static void santa__block_mass(const santa__kernels *kernel, int keep_scores, float *u, int64_t stride,
                              int64_t queries, int block, float *max, float *sum, int64_t mass_stride) {
    float copy[4 * SANTA_BLOCK];
    int64_t x, few, h;
    if (!keep_scores) { kernel->mass(u, stride, queries, block, max, sum, mass_stride); return; }
    for (x = 0; x < queries; x += few) {                              /* side by side, as mass has them */
        few = SANTA__MIN(queries - x, 4);
        for (h = 0; h < few; h++) memcpy(copy + h * block, u + (x + h) * stride, (size_t)block * sizeof *u);
        kernel->mass(copy, block, few, block, max + x * mass_stride, sum + x * mass_stride, mass_stride);
    }
}

/* One query's picks from its block masses: rounding of u, prefix, draw. Returns 1 if a score
   was NaN or +inf. */
static int santa__pick(const santa_options *o, santa__draw_function draw, santa__mass *x, float *u,
                       santa__rng *rng, santa__rng *dither, santa__picks *l, santa_stats *stats) {
    l->rows = l->draws = 0;
    if (santa__is_rounded(o) && !santa__is_top(o))                 /* which keeps scores */
        santa__round_stash(o->stash, dither, x->first * x->block, x->blocks * x->block, u);
    x->u = u;
    if (santa__prefix(x)) return 1;
    if (x->total > 0.0) draw(o, x, rng, l, stats);
    return 0;
}

/* Work on a job goes in phases. The pieces of a phase do not depend on each other; between
   phases threads meet. Threads that share a job each run pieces from .. to - 1 of it; else one
   thread runs all pieces of all phases. A joint phase takes a span of jobs at once. */
typedef struct santa__phase {
    int64_t (*pieces)(const santa__job *j);
    void (*run)(santa__job *j, int64_t span, int64_t from, int64_t to);
    int is_joint;
} santa__phase;

static int64_t santa__one_piece(const santa__job *j) { (void)j; return 1; }

/* What makes a method, in the order of SANTA_METHOD_LIST. capacity: of one query's picks.
   needs: its parts of the workspace. draw: from masses, or NULL. */
enum { SANTA__PHASES = 3 };
typedef struct santa__method {
    int64_t (*capacity)(const santa_options *o, int64_t n);
    void (*needs)(santa__plan *p);
    santa__draw_function draw;
    const santa__phase *phase;  /* [SANTA__PHASES], the last ones may be empty */
} santa__method;

/* ------------------------------------------------------------ >>attend */

/* Results of one query. acc = NULL: the row is bad, everything is NaN. */
static void santa__write(const santa__job *j, int64_t x, float *acc, float lse, float std_error) {
    const santa_tensor *t = &j->p->a.out;
    const int64_t size = santa__bytes(t->dtype, 1);
    char *p = (char *)t->data + (j->batch * t->stride[0] + santa__row_of(j, x) * t->stride[1]
                                 + santa__head(j, x) * t->stride[2]) * size;
    int64_t c;
    if (!acc) lse = santa__nan();
    for (c = 0; c < t->shape[3]; c++) {
        const float y = acc ? acc[c] : santa__nan();
        if (santa__is_nan(y)) std_error = y;
        santa__store(t->dtype, p + c * t->stride[3] * size, y);
    }
    if (j->p->a.lse) j->p->a.lse[santa__result_at(j, x)] = lse;
    if (j->p->a.std_error) j->p->a.std_error[santa__result_at(j, x)] = std_error;
}

static const float *santa__sink(const santa__job *j, int64_t x) {
    return j->p->a.sinks ? j->p->a.sinks + santa__head(j, x) : NULL;
}

/* One feature of what follows. Once in the code: a compiler that makes one instruction of a
   product and a sum may do so in other places in each copy, and bits would depend on who
   calls. */
SANTA__ONE_COPY
static void santa__add_column(const float *f, int n, const float *w, int64_t w_stride, int64_t queries,
                              const float *keep, const float *add, float *acc, int64_t acc_stride) {
    float sum[SANTA__SLICE] = {0.0f};
    int64_t x;
    int i;
    for (i = 0; i < n; i++)
        for (x = 0; x < queries; x++) sum[x] += w[x * w_stride + i] * f[i];
    for (x = 0; x < queries; x++) acc[x * acc_stride] = acc[x * acc_stride] * keep[x] + add[x] * sum[x];
}

/* acc_x = acc_x * keep[x] + add[x] * sum_i w[x * w_stride + i] V[key i], for n <= SANTA_BLOCK
   keys and at most SANTA__SLICE queries. */
static void santa__add_values(const santa__rows *v, const santa__kernels *kernel, santa__keys keys, int n,
                              const float *w, int64_t w_stride, int64_t queries, const float *keep,
                              const float *add, float *acc, int64_t acc_stride) {
    const char *row[SANTA_BLOCK + SANTA__BEYOND_V];
    float scaled[SANTA__SLICE * SANTA_BLOCK];
    int64_t c;
    if (v->scales) {
        santa__scale_keys(v, keys, n, queries, w, w_stride, scaled, SANTA_BLOCK);
        w = scaled;
        w_stride = SANTA_BLOCK;
    }
    santa__point(v, keys, n, SANTA__BEYOND_V, row);
    if (santa__is_adjacent(v)) {
        santa__weights sum;
        sum.w = w; sum.w_stride = w_stride; sum.keep = keep; sum.add = add;
        sum.acc = acc; sum.acc_stride = acc_stride; sum.group = queries; sum.at = v->at;
        kernel->accumulate(v->dtype, row, n, v->dim, &sum);
        return;
    }
    for (c = 0; c < v->dim; c++) {                                    /* features apart: column by column */
        float f[SANTA_BLOCK];
        santa__load_column(v, kernel, row, n, c, SANTA__MIN(c + 1, v->dim - 1), f);
        santa__add_column(f, n, w, w_stride, queries, keep, add, acc + c, acc_stride);
    }
}

/* The same for keys side by side, as in feature-major V: a feature of n keys is a row, the
   weights are the queries to score it with. */
static void santa__add_columns(const santa__rows *v, const santa__kernels *kernel, const char *key,
                               santa__keys keys, int n, const float *w, int64_t w_stride, int64_t queries,
                               const float *keep, const float *add, float *acc, int64_t acc_stride) {
    const char *column[SANTA_BLOCK + SANTA__BEYOND_K];
    char packed[SANTA__SLICE * SANTA_BLOCK / SANTA__PACK * SANTA__PACKED];
    float sum[SANTA__SLICE * SANTA_BLOCK];
    santa__queries q;
    int64_t x, c, i, few;
    if (v->scales) {                                                  /* in sum until they are packed */
        santa__scale_keys(v, keys, n, queries, w, w_stride, sum, SANTA_BLOCK);
        w = sum;
        w_stride = SANTA_BLOCK;
    }
    memset(&q, 0, sizeof q);
    q.q = packed; q.s = sum; q.heads = 1; q.group = queries; q.s_stride = SANTA_BLOCK;
    q.q_strip = queries * SANTA__PACKED;
    for (x = 0; x < queries; x++) santa__pack(w + x * w_stride, n, queries, packed + x * SANTA__PACKED);
    for (c = 0; c < v->dim; c += few) {
        few = SANTA__MIN(v->dim - c, (int64_t)SANTA_BLOCK);
        for (i = 0; i < few + SANTA__BEYOND_K; i++)
            column[i] = key + SANTA__MIN(c + i, v->dim - 1) * v->feature;
        kernel->dot(v->dtype, column, (int)few, n, &q);
        for (x = 0; x < queries; x++)
            for (i = 0; i < few; i++) {
                float *to = &acc[x * acc_stride + c + i];
                *to = *to * keep[x] + add[x] * sum[x * SANTA_BLOCK + i];
            }
    }
}

static void santa__state_begin(santa__state *s, float *n, float *n2, int64_t dv) {
    memset(s, 0, sizeof *s);
    s->m = SANTA__MASKED;
    s->n = n;
    s->n2 = n2;
    memset(n, 0, (size_t)dv * sizeof *n);
    if (n2) memset(n2, 0, (size_t)dv * sizeof *n2);
}

/* Mass sum relative to exp(max) joins the denominator: what to multiply the old numerator and
   the new one with. */
static void santa__state_join(santa__state *s, float max, double sum, float *keep, float *add) {
    *keep = 1.0f;
    *add = 0.0f;
    s->bad |= santa__not_finite_d(sum);
    if (s->bad || max < SANTA__MASK_LIMIT) return;
    santa__join_max(&s->m, max, keep, add);
    s->d = s->d * (double)*keep + (double)*add * sum;
}

/* Another state over other keys joins this one, without n2. */
static void santa__state_add(santa__state *s, const santa__state *other, int64_t dv) {
    float keep, add;
    int64_t c;
    s->bad |= other->bad;
    santa__state_join(s, other->m, other->d, &keep, &add);
    s->d2 = s->d2 * (double)(keep * keep) + other->d2 * (double)(add * add);
    s->t = s->t * (double)(keep * keep) + other->t * (double)(add * add);
    for (c = 0; c < dv; c++) s->n[c] = s->n[c] * keep + other->n[c] * add;
}

static double santa__square_sum(const float *f, int64_t n) {  /* four sums: one would wait for itself */
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
    int64_t i;
    for (i = 0; i + 4 <= n; i += 4) {
        a += (double)f[i] * (double)f[i];
        b += (double)f[i + 1] * (double)f[i + 1];
        c += (double)f[i + 2] * (double)f[i + 2];
        d += (double)f[i + 3] * (double)f[i + 3];
    }
    for (; i < n; i++) a += (double)f[i] * (double)f[i];
    return (a + b) + (c + d);
}

static double santa__value_norm2(const santa__job *j, int32_t key) {
    const float zero = 0.0f, one = 1.0f;
    float *row = SANTA__PART(float, j, row_a);
    memset(row, 0, (size_t)j->v.dim * sizeof *row);  /* 0 * what is left there may be NaN */
    santa__add_values(&j->v, j->kernel, santa__keys_from(&key, 0, 1), 1, &one, 0, 1, &zero, &one, row, 0);
    return santa__square_sum(row, j->v.dim);
}

/* t and n2, after the weights u went into the other sums. */
static void santa__add_squares(const santa__job *j, santa__keys keys, int n, int queries, float *u,
                               float *keep, float *add, santa__state *const *s) {
    double norm2[SANTA_BLOCK];
    int x, i;
    for (i = 0; i < n; i++) norm2[i] = santa__value_norm2(j, keys.index[i]);
    for (x = 0; x < queries; x++) {
        float *e = u + x * SANTA_BLOCK;
        double sum = 0.0;
        for (i = 0; i < n; i++) {
            e[i] *= e[i];
            sum += (double)e[i] * norm2[i];
        }
        keep[x] *= keep[x];
        add[x] *= add[x];
        s[x]->t = s[x]->t * (double)keep[x] + (double)add[x] * sum;
    }
    santa__add_values(&j->v, j->kernel, keys, n, u, SANTA_BLOCK, queries, keep, add, s[0]->n2, j->v.dim);
}

enum { SANTA__NO_MOMENTS, SANTA__SPREAD, SANTA__MOMENTS };           /* none; d2; also t and n2 */

/* n <= SANTA_BLOCK keys join the states of up to SANTA__SLICE queries: u + x * SANTA_BLOCK
   holds a block of scores, those of the keys from `skip` on and masked ones around them, and is
   used up. The states' numerators lie dv apart. */
static void santa__attend(const santa__job *j, santa__keys keys, int n, int queries, float *u, int64_t skip,
                          santa__state *const *s, int moments) {
    float keep[SANTA__SLICE], add[SANTA__SLICE], max[SANTA__SLICE], sum[SANTA__SLICE];
    int x, has_columns = 0;
    j->kernel->mass(u, SANTA_BLOCK, queries, SANTA_BLOCK, max, sum, 1);
    for (x = 0; x < queries; x++) {
        santa__state_join(s[x], max[x], (double)sum[x], &keep[x], &add[x]);
        if (!(add[x] > 0.0f)) memset(u + x * SANTA_BLOCK, 0, SANTA_BLOCK * sizeof *u);
        else if (moments)
            s[x]->d2 = s[x]->d2 * (double)(keep[x] * keep[x])
                       + (double)(add[x] * add[x]) * santa__square_sum(u + x * SANTA_BLOCK, SANTA_BLOCK);
    }
    if (!keys.index && !santa__is_adjacent(&j->v)) {
        const char *row[SANTA_BLOCK];
        santa__point(&j->v, keys, n, 0, row);
        has_columns = santa__is_columns(&j->v, row, n);
        if (has_columns)
            santa__add_columns(&j->v, j->kernel, row[0] + j->v.at, keys, n, u + skip, SANTA_BLOCK, queries,
                               keep, add, s[0]->n, j->v.dim);
    }
    if (!has_columns)
        santa__add_values(&j->v, j->kernel, keys, n, u + skip, SANTA_BLOCK, queries, keep, add, s[0]->n,
                          j->v.dim);
    if (moments == SANTA__MOMENTS) santa__add_squares(j, keys, n, queries, u, keep, add, s);
}

/* So many keys, index[0 ..] or those from first on, join the states of all heads of the row
   that begins with query x0: head g's lies g * stride bytes behind state. bias: NULL, or what
   each key's scores are raised by. */
static void santa__attend_raised(const santa__job *j, int64_t x0, const int32_t *index, const float *bias,
                                 int64_t first, int64_t count, santa__state *state, size_t stride,
                                 int moments) {
    float u[SANTA__SLICE * SANTA_BLOCK];
    santa__state *s[SANTA__SLICE];
    int64_t at, g;
    int h, i;
    for (at = 0; at < count; at += SANTA_BLOCK) {
        const santa__keys keys = santa__keys_from(index ? index + at : NULL, first + at, count - at);
        const int n = (int)SANTA__MIN(count - at, (int64_t)SANTA_BLOCK);
        for (g = 0; g < j->group; g += SANTA__SLICE) {
            const int heads = (int)SANTA__MIN(j->group - g, (int64_t)SANTA__SLICE);
            santa__score(j, keys, n, x0 + g, heads, u, SANTA_BLOCK);
            for (h = 0; h < heads; h++) {
                s[h] = (santa__state *)(void *)((char *)state + (size_t)(g + h) * stride);
                for (i = 0; bias && i < n; i++) u[h * SANTA_BLOCK + i] += bias[at + i];
                for (i = n; i < SANTA_BLOCK; i++) u[h * SANTA_BLOCK + i] = SANTA__MASKED;
            }
            santa__attend(j, keys, n, heads, u, 0, s, moments);
        }
    }
}

static void santa__attend_keys(const santa__job *j, int64_t x0, const int32_t *index, int64_t first,
                               int64_t count, santa__state *state, size_t stride, int moments) {
    santa__attend_raised(j, x0, index, NULL, first, count, state, stride, moments);
}

/* What turns sums into attention: 1 / d times the keys' share beside the sink. *lse: natural
   log of the whole. */
static double santa__normalise(const santa__job *j, int64_t x, float m, double d, float *lse) {
    double share;
    *lse = santa__lse(m, d, santa__sink(j, x), &share);
    return d > 0.0 ? share * (double)j->p->v_scale / d : 0.0;
}

/* A query that sees no key: zeros, and the sink's logit where there is one. */
static void santa__write_empty(const santa__job *j, int64_t x) {
    float *acc = SANTA__PART(float, j, acc), lse;
    memset(acc, 0, (size_t)j->v.dim * sizeof *acc);
    santa__normalise(j, x, SANTA__MASKED, 0.0, &lse);
    santa__write(j, x, acc, lse, 0.0f);
}

/* ------------------------------------------------------------ >>encode */

/* One block of a copy at work: its keys' rows, and as floats where the features lie apart; the
   rows that are sent for, from key `next` on. */
typedef struct santa__encoder {
    const santa__rows *k, *coming;
    const santa__format *f;
    int64_t next;
    const santa__kernels *kernel;
    float turn[SANTA__PROXY_DIM], centre[SANTA__PROXY_DIM], apart[SANTA__PROXY_DIM];
} santa__encoder;

/* Of keys of which some have a NaN or infinity, those as zeros. */
SANTA__ONCE static void santa__mean_of_finite(santa__encoder *x, int64_t j) {
    int64_t i, c;
    memset(x->centre, 0, sizeof x->centre);
    for (i = 0; i < x->f->keys; i++) {
        int bad = 0;
        santa__load_row(x->k, x->kernel, j + i, x->apart);
        for (c = 0; c < x->f->dim; c++) bad |= santa__not_finite(x->apart[c]);
        for (c = 0; c < x->f->dim && !bad; c++) x->centre[c] += x->apart[c] / (float)x->f->keys;
    }
}

/* The mean of the block that begins with key j. */
static void santa__mean_key(santa__encoder *x, int64_t j) {
    const int64_t n = x->f->keys;
    const float share = 1.0f / (float)n;
    float w[SANTA_BLOCK], zero = 0.0f, one = 1.0f;
    int64_t i;
    int bad = 0;
    memset(x->centre, 0, (size_t)x->f->features * sizeof *x->centre);
    for (i = 0; i < n; i++) w[i] = share;
    santa__add_values(x->k, x->kernel, santa__keys_from(NULL, j, n), (int)n, w, 0, 1, &zero, &one,
                      x->centre, 0);
    for (i = 0; i < x->f->dim; i++) bad |= santa__not_finite(x->centre[i]);
    if (bad) santa__mean_of_finite(x, j);
}

/* The centre in 8 bits, as those who read the block will see it. */
static void santa__encode_centre(santa__encoder *x, char *block) {
    const santa__format *f = x->f;
    float scale;
    int64_t c;
    for (c = 0; c < f->dim; c++) if (santa__not_finite(x->centre[c])) x->centre[c] = 0.0f;
    scale = santa__round_to_bytes(x->centre, f->dim, block + f->centre);
    memcpy(block + f->scale, &scale, sizeof scale);
    for (c = 0; c < f->dim; c++) x->centre[c] = scale * (float)(signed char)block[f->centre + c];
}

/* The block that begins with key j of a sequence. */
SANTA__OFTEN
SANTA__ONE_COPY static void santa__encode_block(santa__encoder *x, int64_t j, char *block) {
    const santa__format *f = x->f;
    const int as_they_are = santa__is_adjacent(x->k) && !x->k->scales,
              few = !as_they_are ? 1 : f->features > SANTA__PROXY_DIM / 2 ? 2 : SANTA__ENCODED;
    const int64_t bytes = santa__bytes(x->k->dtype, f->dim);
    const char *row[SANTA__ENCODED];
    float gain[SANTA__ENCODED];
    int64_t i, b;
    int n;
    memset(block, 0, (size_t)f->bytes);
    santa__mean_key(x, j);
    x->kernel->rotate(x->centre, 1, x->turn, f);
    santa__encode_centre(x, block);
    for (i = 0; i < f->keys; i += few) {
        if (!as_they_are) santa__load_row(x->k, x->kernel, j + i, x->apart);
        for (n = 0; n < few; n++) {
            const char *const coming = santa__row(x->coming, x->next + i + n) + x->coming->at;
            for (b = 0; b < bytes; b += 64) SANTA__PREFETCH(coming + b);
            row[n] = as_they_are ? santa__row(x->k, j + i + n) + x->k->at : (const char *)x->apart;
        }
        x->kernel->encode(as_they_are ? x->k->dtype : SANTA_F32, row, few, x->turn, x->centre, f,
                          block + 16 * i, gain);
        for (n = 0; n < few; n++) {
            uint16_t bits = santa_f32_to_f16(gain[n]);
            if ((bits & 0x7c00u) == 0x7c00u) bits = 0x7e00u;
            memcpy(block + f->gains + 2 * (i + n), &bits, sizeof bits);
        }
    }
}

SANTADEF size_t santa_proxy_size(const santa_attention *a) {
    santa__format f;
    if (santa__check_copy(a, &f) != SANTA_OK) return 0;
    if (!a->block_table && santa__check_lengths(a, 0) != SANTA_OK) return 0;
    return (size_t)SANTA__MAX((uint64_t)a->k.shape[0] * (uint64_t)a->k.shape[2] * (uint64_t)f.blocks
                              * (uint64_t)f.bytes, 64);
}

/* Sequence b, or on a check run only its pages. */
static santa_status santa__encode_sequence(const santa_attention *a, const santa__format *f, int64_t b,
                                           santa__encoder *x, int64_t from, int64_t to,
                                           int is_check) {
    const int64_t len = santa__seq_len(a, b), heads = a->k.shape[2], keys = f->keys;
    santa__rows k[2];
    int64_t all, i;
    if (from < 0) { from = SANTA__MAX(len + from, 0); to = len; }
    to = SANTA__MIN(to, len) / keys * keys;
    from = SANTA__MIN(from, to) / keys * keys;
    if (is_check && a->block_table && from < to) return santa__check_pages(a, b, from, to);
    if (is_check) return SANTA_OK;
    all = (to - from) / keys * heads;
    k[0] = santa__rows_make(a, &a->k, &a->k_scales, b, 0);
    for (i = 0; i < all; i++) {
        const int64_t j = from + i / heads * keys, next = SANTA__MIN(i + 1, all - 1);
        k[(i + 1) % 2] = santa__rows_make(a, &a->k, &a->k_scales, b, next % heads);
        x->k = &k[i % 2];
        x->coming = &k[(i + 1) % 2];
        x->next = from + next / heads * keys;
        santa__encode_block(x, j, santa__proxy_block(a, f, b, i % heads, j));
    }
    return SANTA_OK;
}

/* from < 0: the last -from keys of each sequence. */
SANTA__ONCE
static santa_status santa__encode(const santa_attention *a, int64_t from, int64_t to, void *stream) {
    santa__format f;
    santa__encoder x;
    int64_t b, batch;
    int is_check;
    santa_status s = santa__check_copy(a, &f);
    if (s != SANTA_OK) return s;
    batch = a->block_table ? a->q.shape[0] : a->k.shape[0];
    if (batch <= 0) return SANTA_ERR_SHAPE;
    if ((s = santa__check_lengths(a, batch)) != SANTA_OK) return s;
    if (!a->k.data) return SANTA_ERR_NULL_DATA;
    if (!a->proxy) return SANTA_ERR_PROXY_NULL;
    if (a->k.device != SANTA_CPU) {
        const santa_backend *backend = santa__backends[a->k.device];
        if (!backend) return SANTA_ERR_NO_BACKEND;
        return backend->proxy_encode ? backend->proxy_encode(a, from, to, stream) : SANTA_ERR_BACKEND_PROXY;
    }
    if ((s = santa__check_seq_lens(a, batch)) != SANTA_OK) return s;
    x.f = &f;
    x.kernel = santa__kernels_of(santa_best_isa());
    santa__turn(&f, x.turn);
    for (is_check = 1; is_check >= 0; is_check--)
        for (b = 0; b < batch; b++)
            if ((s = santa__encode_sequence(a, &f, b, &x, from, to, is_check)) != SANTA_OK) return s;
    return SANTA_OK;
}

SANTADEF santa_status santa_proxy_encode(const santa_attention *a, int64_t from, int64_t to, void *stream) {
    return from < 0 || to < from ? SANTA_ERR_PROXY_RANGE : santa__encode(a, from, to, stream);
}

SANTADEF santa_status santa_proxy_append(const santa_attention *a, int64_t count, void *stream) {
    if (count < 0) return SANTA_ERR_PROXY_RANGE;
    return count == 0 ? SANTA_OK : santa__encode(a, -count, 0, stream);
}

/* ------------------------------------------------------------ >>dense */

/* Exact attention goes through the keys in chunks, each with states of its own that join the
   row's in order: so the bits do not depend on which thread had which chunk. States 0 are the
   rows', the others are chunks'. */
static santa__state *santa__states(const santa__job *j, int64_t i) {
    return (santa__state *)(void *)((j->work + j->plan->states) + i * j->plan->state_bytes);
}

static void santa__states_begin(const santa__job *j, int64_t i) {
    santa__state *s = santa__states(j, i);
    const int64_t dv = j->v.dim;
    float *n = (float *)(void *)((char *)s + j->plan->state_bytes) - (j->plan->queries * dv + 15) / 16 * 16;
    int64_t x;
    for (x = 0; x < j->queries; x++) santa__state_begin(&s[x], n + x * dv, NULL, dv);
}

/* Keys of a chunk; that of all rows of a job, see santa__next_rows. */
static int64_t santa__chunk_of(const santa__job *j) {
    return santa__chunk(j->range[0].end - j->range[0].begin);
}

static int64_t santa__num_chunks(const santa__job *j) {
    const int64_t chunk = santa__chunk_of(j);
    return (j->end - 1) / chunk + 1 - j->begin / chunk;
}

/* What a query sees of the keys first .. last - 1 before its gap, or behind it. */
static int64_t santa__part_begin(const santa__range *r, int part, int64_t first) {
    return SANTA__MAX(first, part ? r->gap_end : r->begin);
}
static int64_t santa__part_end(const santa__range *r, int part, int64_t last) {
    return SANTA__MIN(last, part ? r->end : r->gap);
}

/* One part of a block for one job: weights, then V. Queries that see the same keys go
   together. */
static void santa__dense_part(const santa__job *j, int64_t b, santa__state *s, int part) {
    const int64_t first = b * SANTA_BLOCK, last = first + SANTA_BLOCK;
    int64_t x = 0, from, to;
    while (x < j->queries) {
        const santa__range *r = santa__range_of(j, x);
        santa__state *group[SANTA__SLICE];
        int queries = 0;
        from = santa__part_begin(r, part, first);
        to = santa__part_end(r, part, last);
        do {
            group[queries] = &s[x + queries];
            queries++;
            r = santa__range_of(j, SANTA__MIN(x + queries, j->queries - 1));
        } while (x + queries < j->queries && queries < SANTA__SLICE
                 && from == santa__part_begin(r, part, first) && to == santa__part_end(r, part, last));
        if (from < to)
            santa__attend(j, santa__keys_from(NULL, from, santa__part_to(j, part) - from), (int)(to - from),
                          queries, j->scores + x * SANTA_BLOCK, from - first, group, SANTA__NO_MOMENTS);
        x += queries;
    }
}

/* The chunks from .. to - 1 of a span of jobs: one pass over K and V. */
static void santa__dense_chunks(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const int64_t chunk = santa__chunk_of(j);
    int64_t c, b, h, x;
    int part;
    for (c = from; c < to; c++) {
        const int64_t first = (j->begin / chunk + c) * chunk, state = j->is_shared ? 1 + c : 1;
        for (h = 0; h < span; h++) {
            if (!j->is_shared && c == 0) santa__states_begin(&j[h], 0);
            santa__states_begin(&j[h], state);
        }
        for (b = SANTA__MAX(first, j->begin) / SANTA_BLOCK;
             b * SANTA_BLOCK < SANTA__MIN(first + chunk, j->end); b++) {
            for (part = 0; part < 2; part++) {
                if (santa__part_from(j, part, b * SANTA_BLOCK)
                    >= SANTA__MIN(santa__part_to(j, part), (b + 1) * SANTA_BLOCK))
                    continue;
                santa__score_block(j, span, SANTA_BLOCK, b, 1 << part, SANTA_BLOCK, 0);
                for (h = 0; h < span; h++) santa__dense_part(&j[h], b, santa__states(&j[h], state), part);
            }
        }
        for (h = 0; h < span && !j->is_shared; h++)
            for (x = 0; x < j->queries; x++)
                santa__state_add(&santa__states(&j[h], 0)[x], &santa__states(&j[h], 1)[x], j->v.dim);
    }
}

/* The rows' states as results. */
static void santa__write_states(santa__job *j) {
    int64_t x, c;
    for (x = 0; x < j->queries; x++) {
        const santa__state *s = &santa__states(j, 0)[x];
        float lse;
        const double scale = santa__normalise(j, x, s->m, s->d, &lse);
        for (c = 0; c < j->v.dim; c++) s->n[c] = s->d > 0.0 ? (float)((double)s->n[c] * scale) : 0.0f;
        santa__write(j, x, s->bad ? NULL : s->n, lse, 0.0f);
    }
}

static void santa__dense_end(santa__job *j, int64_t span, int64_t from, int64_t to) {
    int64_t x, c;
    (void)span; (void)from; (void)to;
    if (j->is_shared) {
        santa__states_begin(j, 0);
        for (c = 0; c < santa__num_chunks(j); c++)
            for (x = 0; x < j->queries; x++)
                santa__state_add(&santa__states(j, 0)[x], &santa__states(j, 1 + c)[x], j->v.dim);
    }
    santa__write_states(j);
    for (x = 0; x < j->queries; x++) {
        const int64_t keys = santa__keys_of(*santa__range_of(j, x));
        j->stats->v_rows_head += keys;
        if (x % j->group) continue;
        j->stats->k_rows_read += keys;
        j->stats->v_rows_read += keys;
    }
}

/* ------------------------------------------------------------ >>sampled */

static int santa__set_bit(uint64_t *bits, int64_t bit) {              /* 1 the first time */
    const uint64_t mask = (uint64_t)1 << (bit & 63), old = bits[bit >> 6];
    bits[bit >> 6] = old | mask;
    return (old & mask) == 0;
}

static int santa__has_bit(const uint64_t *bits, int64_t bit) {
    return (int)(bits[bit >> 6] >> (bit & 63) & 1u);
}

static void santa__gather(const santa__rows *v, const santa__kernels *kernel, const int32_t *index,
                          const float *weight, int64_t rows, float scale, float *acc) {
    const float one = 1.0f;
    int64_t i;
    memset(acc, 0, (size_t)v->dim * sizeof *acc);
    for (i = 0; i < rows; i += SANTA_BLOCK)
        santa__add_values(v, kernel, santa__keys_from(index + i, 0, rows - i),
                          (int)SANTA__MIN(rows - i, (int64_t)SANTA_BLOCK), weight + i, 0, 1, &one, &scale,
                          acc, 0);
}

/* The spread of R combs' estimates x_r around their mean, R / (R - 1) sum_r |x_r - x|^2: what
   their sum is off by, squared, on average. flash's tiles have combs of their own, whose
   squares add up. Draw k of such a list is of comb k % R. */
static float santa__combs_error(const santa__job *j, const santa__picks *l, double share) {
    const int64_t combs = j->o->num_combs, dv = j->v.dim;
    const int64_t tile = santa__has_traits(j->o, SANTA_TILES_APART) ? j->o->tile_size : 0;
    double *sum = SANTA__PART(double, j, combs), total = 0.0;
    float *row = SANTA__PART(float, j, row_a);
    int64_t i, r, c, at = 0, end;
    for (i = 0; i < l->rows; i = end) {
        memset(sum, 0, (size_t)(combs * dv) * sizeof *sum);
        for (end = i; end < l->rows && (tile == 0 || l->index[end] / tile == l->index[i] / tile); end++) {
            const int64_t whole = l->count[end] / combs, more = l->count[end] % combs;
            const double w = (double)l->weight[end] / (double)l->count[end] * share;
            santa__load_row(&j->v, j->kernel, l->index[end], row);
            for (r = 0; r < combs; r++) {
                const double times = (double)(whole + ((r - at % combs + combs) % combs < more)) * w;
                for (c = 0; c < dv && times > 0.0; c++) sum[r * dv + c] += times * (double)row[c];
            }
            at += l->count[end];
        }
        for (c = 0; c < dv; c++) {
            double mean = 0.0;
            for (r = 0; r < combs; r++) mean += sum[r * dv + c] / (double)combs;
            for (r = 0; r < combs; r++) total += (sum[r * dv + c] - mean) * (sum[r * dv + c] - mean);
        }
    }
    return (float)sqrt(total * (double)combs / (double)(combs - 1));
}

/* Estimate of sqrt(E|out - exact|^2) from the draws. iid: sum_i count_i |v_i - mean|^2 / (S (S
   - 1)). Several combs: see above. Otherwise each draw's variance is taken as half the squared
   difference to its neighbour (no neighbour differs within a key drawn twice): too large where
   neighbours' means differ, too small where V keeps step with a comb. */
SANTA__ONCE
static float santa__std_error(const santa__job *j, const santa__picks *l, const float *mean, double share) {
    float *row = SANTA__PART(float, j, row_a), *other = SANTA__PART(float, j, row_b), *swap;
    const int is_independent = santa__has_traits(j->o, SANTA_INDEPENDENT);
    const double n = (double)l->draws;
    double total = 0.0, last = 0.0;
    int64_t i, c;
    if (l->draws < 2) return santa__inf();
    if (j->o->num_combs > 1) return santa__combs_error(j, l, share);
    for (i = 0; i < l->rows; i++) {
        const double w = (double)l->weight[i] / (double)l->count[i];
        double dist = 0.0;
        santa__load_row(&j->v, j->kernel, l->index[i], row);
        for (c = 0; (i > 0 || is_independent) && c < j->v.dim; c++) {
            /* mean is the scaled output: share * average of the rows */
            const double to = is_independent ? (double)mean[c] : (double)other[c] * share;
            const double apart = (double)row[c] * share - to;
            dist += apart * apart;
        }
        if (is_independent) total += (double)l->count[i] * dist / (n * (n - 1.0));
        else if (i > 0) total += 0.25 * (w * w + last * last) * dist * n / (n - 1.0);
        last = w;
        swap = row; row = other; other = swap;
    }
    return (float)sqrt(total);
}

static void santa__add_to_set(double *set, double weight, const float *row, int64_t dv) {
    int64_t c;
    set[0] += weight;
    set[1] += weight * santa__square_sum(row, dv);
    for (c = 0; c < dv; c++) set[2 + c] += weight * (double)row[c];
}

/* What santa__std_error knows of the draws of one rank, for santa__join_errors: the share, a
   sum of squares, and sets of a weight, the sum of weight |v|^2 and that of weight v. iid: of
   all draws, by their counts. Combs: of each one. Else the sum over neighbours here, and the
   first and the last row. */
static void santa__error_part(const santa__job *j, int64_t x, const santa__picks *l, double share) {
    const int64_t dv = j->v.dim, combs = j->o->num_combs;
    double *e = j->errors + santa__result_at(j, x) * santa__error_doubles(j->o, dv), *set = e + 2;
    float *row = SANTA__PART(float, j, row_a), *other = SANTA__PART(float, j, row_b), *swap;
    double last = 0.0;
    int64_t i, r, c, at = l->before;
    e[0] = share;
    for (i = 0; i < l->rows; i++) {
        const double w = (double)l->weight[i] / (double)l->count[i];
        double dist = 0.0;
        santa__load_row(&j->v, j->kernel, l->index[i], row);
        if (combs > 1) {
            for (r = 0; r < combs; r++) {
                const int64_t more = (r - at % combs + combs) % combs < l->count[i] % combs,
                              times = l->count[i] / combs + more;
                if (times) santa__add_to_set(set + r * (dv + 2), (double)times * w, row, dv);
            }
            at += l->count[i];
        } else if (santa__has_traits(j->o, SANTA_INDEPENDENT)) {
            santa__add_to_set(set, (double)l->count[i], row, dv);
        } else {
            if (i == 0) santa__add_to_set(set, w, row, dv);
            if (i == l->rows - 1) santa__add_to_set(set + dv + 2, w, row, dv);
            for (c = 0; i > 0 && c < dv; c++)
                dist += ((double)row[c] - (double)other[c]) * ((double)row[c] - (double)other[c]);
            e[1] += 0.25 * (w * w + last * last) * dist;
        }
        last = w;
        swap = row; row = other; other = swap;
    }
}

/* Weights and masses of the blocks from .. to - 1 of all queries of the span: K once. */
static void santa__score_blocks(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__plan *p = j->plan;
    const int64_t first = j->begin / p->block;
    int64_t i, h;
    for (i = from; i < to; i++) {
        santa__score_block(j, span, p->block, first + i, 3, p->score_stride, i * p->block);
        for (h = 0; h < span; h++)
            santa__block_mass(j->kernel, santa__is_top(j->o), j[h].scores + i * p->block,
                              p->score_stride, j->queries, (int)p->block,
                              SANTA__PART(float, &j[h], block_max) + i,
                              SANTA__PART(float, &j[h], block_sum) + i, p->blocks);
    }
}

static int64_t santa__num_blocks(const santa__job *j) {
    return (j->end - 1) / j->plan->block + 1 - j->begin / j->plan->block;
}

/* What a query has picked. bad: a NaN was seen. */
typedef struct santa__picked { santa__picks picks; float lse; double share; int bad; } santa__picked;

/* The blocks that query x sees; their weights begin at santa__weights_of. */
static santa__mass santa__mass_of(const santa__job *j, int64_t x) {
    const santa__plan *p = j->plan;
    const santa__range *r = santa__range_of(j, x);
    const int64_t skip = r->begin / p->block - j->begin / p->block;
    santa__mass mass;
    memset(&mass, 0, sizeof mass);
    mass.kernel = j->kernel;
    mass.met = j->met ? j->met + x : NULL;
    mass.share = j->met ? &mass.met->whole : NULL;
    mass.max = SANTA__PART(float, j, block_max) + x * p->blocks + skip;
    mass.sum = SANTA__PART(float, j, block_sum) + x * p->blocks + skip;
    mass.prefix = SANTA__PART(double, j, prefix);
    mass.first = r->begin / p->block;
    mass.blocks = r->begin < r->end ? (r->end - 1) / p->block + 1 - mass.first : 0;
    mass.block = (int)p->block;
    return mass;
}

static float *santa__weights_of(const santa__job *j, int64_t x) {
    const int64_t skip = santa__range_of(j, x)->begin / j->plan->block - j->begin / j->plan->block;
    return j->scores + x * j->plan->score_stride + skip * j->plan->block;
}

static void santa__pick_query(const santa__job *j, int64_t x, santa__picked *picked) {
    const santa__plan *p = j->plan;
    const int64_t list = x % p->num_lists * p->capacity;
    santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, x),
               dither = santa__job_rng(j, SANTA__STREAM_STASH, x);
    santa__picks *l = &picked->picks;
    santa__mass mass = santa__mass_of(j, x);
    l->index = SANTA__PART(int32_t, j, index) + list;
    l->count = SANTA__PART(int32_t, j, count) + list;
    l->weight = SANTA__PART(float, j, weight) + list;
    picked->bad = santa__pick(j->o, j->method->draw, &mass, santa__weights_of(j, x), &rng, &dither, l,
                              j->stats);
    if (picked->bad) return;
    picked->lse = santa__lse(mass.m, mass.total, santa__sink(j, x), &picked->share);
    picked->share *= (double)j->p->v_scale;
}

/* V's rows and the result of query x. */
static void santa__gather_query(const santa__job *j, int64_t x, const santa__picked *picked) {
    const santa__picks *l = &picked->picks;
    const int64_t first = j->begin / j->plan->block * j->plan->block;
    uint64_t *seen = SANTA__PART(uint64_t, j, seen);
    float *acc = SANTA__PART(float, j, acc), error = 0.0f;
    int64_t i;
    if (x % j->group == 0) memset(seen, 0, (size_t)j->plan->words * sizeof *seen);
    if (picked->bad) { santa__write(j, x, NULL, 0.0f, 0.0f); return; }
    santa__gather(&j->v, j->kernel, l->index, l->weight, l->rows, (float)picked->share, acc);
    if (j->p->a.std_error && l->rows) error = santa__std_error(j, l, acc, picked->share);
    if (j->errors && l->rows) santa__error_part(j, x, l, picked->share);
    santa__write(j, x, acc, picked->lse, error);
    for (i = 0; i < l->rows; i++) j->stats->v_rows_read += santa__set_bit(seen, l->index[i] - first);
    j->stats->v_rows_head += l->rows;
    if (santa__has_traits(j->o, SANTA_DRAWS)) j->stats->draws += l->draws;
}

/* All queries of a job, a slice at a time: V's rows of one come in while the next one draws. */
static void santa__pick_and_gather(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__picked picked[SANTA__SLICE];
    int64_t x, i;
    (void)span; (void)from; (void)to;
    for (x = 0; x < j->queries; x += j->plan->num_lists) {
        const int64_t last = SANTA__MIN(x + j->plan->num_lists, j->queries);
        for (i = x; i < last; i++) santa__pick_query(j, i, &picked[i - x]);
        for (i = x; i < last; i++) santa__gather_query(j, i, &picked[i - x]);
    }
    for (i = 0; i < j->rows; i++) j->stats->k_rows_read += santa__keys_of(j->range[i]);
}

/* ------------------------------------------------------------ >>sizes */

/* A square of an error, relative to V, that is none. */
#define SANTA__NO_ERROR 1e-8

/* Estimate of sqrt(E|out - exact|^2) for one head: each key but the sure ones differs from the
   others' mean of w v, as in a sample without replacement (Deville's form of Hajek's). Where
   the sure keys take up what is missing, v counts from their mean. */
SANTA__ONCE
static float santa__sizes_error(const santa__job *j, const santa__mass *x, const santa__picks *l,
                                const float *weight, double share) {
    float *row = SANTA__PART(float, j, row_a), *mean = SANTA__PART(float, j, row_b);
    float *anchor = SANTA__PART(float, j, anchor);
    const int64_t dv = j->v.dim;
    double open = 0.0, sure = 0.0, total = 0.0;
    int64_t i, c, n = 0;
    memset(mean, 0, (size_t)dv * sizeof *mean);
    memset(anchor, 0, (size_t)dv * sizeof *anchor);
    for (i = 0; i < l->rows; i++) {
        if (santa__is_sure(x->chance[i])) sure += (double)weight[i];
        else { n++; open += 1.0 - (double)x->chance[i]; }
    }
    if (n == 0 && x->sure > 1.0 - 1e-5) return 0.0f;                  /* all that counts is sure */
    if (n < 2) return santa__inf();
    for (i = 0; i < l->rows && x->sure >= SANTA__ANCHOR && sure != 0.0; i++) {
        if (!santa__is_sure(x->chance[i])) continue;
        santa__load_row(&j->v, j->kernel, l->index[i], row);
        for (c = 0; c < dv; c++) anchor[c] += (float)((double)weight[i] / sure) * row[c];
    }
    for (i = 0; i < l->rows; i++) {
        const float part = (float)((1.0 - (double)x->chance[i]) / open) * weight[i];
        if (santa__is_sure(x->chance[i])) continue;
        santa__load_row(&j->v, j->kernel, l->index[i], row);
        for (c = 0; c < dv; c++) mean[c] += part * (row[c] - anchor[c]);
    }
    for (i = 0; i < l->rows; i++) {
        double dist = 0.0;
        if (santa__is_sure(x->chance[i])) continue;
        santa__load_row(&j->v, j->kernel, l->index[i], row);
        for (c = 0; c < dv; c++) {
            const double d = (double)weight[i] * (double)(row[c] - anchor[c]) - (double)mean[c];
            dist += d * d;
        }
        total += (1.0 - (double)x->chance[i]) * dist;
    }
    return (float)(sqrt(total * (double)n / (double)(n - 1)) * share);
}

/* Masses and units of the heads of a row. A head with a NaN has none. */
SANTA__ONCE
static void santa__masses_of_row(const santa__job *j, int64_t row, santa__mass *mass) {
    int64_t h;
    for (h = 0; h < j->group; h++) {
        santa__mass *x = &mass[h];
        float *u = santa__weights_of(j, row * j->group + h);
        santa__rng dither = santa__job_rng(j, SANTA__STREAM_STASH, row * j->group + h);
        *x = santa__mass_of(j, row * j->group + h);
        x->unit = SANTA__PART(float, j, units) + h * j->plan->blocks;
        x->chance = SANTA__PART(float, j, chance);
        if (santa__is_rounded(j->o))
            santa__round_stash(j->o->stash, &dither, x->first * x->block, x->blocks * x->block, u);
        x->u = u;
        if (santa__prefix(x)) x->total = (double)santa__nan();
        santa__mass_units(x, santa__is_rounded(j->o));
    }
}

/* Results of `group` heads from query x0 on from the rows that all of them share. sure: NULL,
   or where their sums go instead, for santa__join_ranks. */
static void santa__gather_shared(const santa__job *j, int64_t x0, int64_t group, const santa__mass *mass,
                                 const santa__picks *l, float *sure) {
    const int64_t dv = j->v.dim, stride = j->plan->capacity;
    float *sum = SANTA__PART(float, j, sums), one[SANTA__SLICE], add[SANTA__SLICE], lse[SANTA__SLICE];
    double share[SANTA__SLICE];
    int64_t h, i, x;
    for (h = 0; h < group; h += SANTA__SLICE) {
        const int64_t heads = SANTA__MIN(group - h, (int64_t)SANTA__SLICE);
        for (x = 0; x < heads; x++) {
            lse[x] = santa__lse(mass[h + x].m, mass[h + x].total, santa__sink(j, x0 + h + x), &share[x]);
            share[x] *= (double)j->p->v_scale;
            one[x] = 1.0f;
            add[x] = (float)share[x];
        }
        memset(sum, 0, (size_t)(heads * dv) * sizeof *sum);
        for (i = 0; i < l->rows; i += SANTA_BLOCK)
            santa__add_values(&j->v, j->kernel, santa__keys_from(l->index + i, 0, l->rows - i),
                              (int)SANTA__MIN(l->rows - i, (int64_t)SANTA_BLOCK),
                              l->weight + h * stride + i, stride, heads, one, add, sum, dv);
        for (x = 0; x < heads; x++) {
            const santa__mass *m = &mass[h + x];
            const int has_error = j->p->a.std_error && m->total > 0.0;
            if (m->total <= 0.0) memset(sum + x * dv, 0, (size_t)dv * sizeof *sum);
            if (sure) {
                memcpy(sure + santa__result_at(j, x0 + h + x) * (dv + 2), sum + x * dv,
                       (size_t)dv * sizeof *sum);
                continue;
            }
            santa__write(j, x0 + h + x, santa__is_nan((float)m->total) ? NULL : sum + x * dv, lse[x],
                         has_error ? santa__sizes_error(j, m, l, l->weight + (h + x) * stride, share[x])
                                   : 0.0f);
        }
    }
}

/* An empty list, for the heads of a row. */
static santa__picks santa__shared_picks(const santa__job *j) {
    santa__picks l;
    memset(&l, 0, sizeof l);
    l.index = SANTA__PART(int32_t, j, index);
    l.count = SANTA__PART(int32_t, j, count);
    l.weight = SANTA__PART(float, j, weight);
    return l;
}

static void santa__count_shared(santa__job *j, int64_t row, const santa__picks *l) {
    j->stats->k_rows_read += santa__keys_of(j->range[row]);
    j->stats->v_rows_read += l->rows;
    j->stats->v_rows_head += l->rows * j->group;
    j->stats->draws += l->draws;
}

static void santa__draw_and_gather(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    santa__picks l = santa__shared_picks(j);
    int64_t row, h;
    (void)span; (void)from; (void)to;
    for (row = 0; row < j->rows; row++) {
        santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, row * j->group);
        l.rows = l.draws = 0;
        santa__masses_of_row(j, row, mass);
        santa__draw_shared(mass, j->group, j->o->num_samples, &rng, &l, j->plan->capacity);
        for (h = 0; h < j->group; h++)
            santa__anchor(&mass[h], mass->chance, &l, l.weight + h * j->plan->capacity);
        santa__gather_shared(j, row * j->group, j->group, mass, &l, NULL);
        santa__count_shared(j, row, &l);
    }
}

/* The same of one row over ranks, see santa__run_sizes: sizes first, .. */
static void santa__size_row(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    (void)span; (void)from; (void)to;
    santa__masses_of_row(j, 0, mass);
    santa__size_blocks(mass, j->group, j->o->num_samples);
}

/* The sure keys of some heads go behind the others. Returns how many others. */
static int64_t santa__part_sure(float *chance, int64_t heads, int64_t stride, santa__picks *l) {
    int64_t open = 0, i, h;
    for (i = 0; i < l->rows; i++) {
        const int32_t key = l->index[i];
        const float x = chance[i];
        if (santa__is_sure(x)) continue;
        l->index[i] = l->index[open];
        l->index[open] = key;
        chance[i] = chance[open];
        chance[open] = x;
        for (h = 0; h < heads; h++) {
            const float w = l->weight[h * stride + i];
            l->weight[h * stride + i] = l->weight[h * stride + open];
            l->weight[h * stride + open] = w;
        }
        open++;
    }
    return open;
}

/* What these heads have from this rank's rows: the sure ones' sums by themselves, with their
   weights' sum and that of all. */
static void santa__gather_parts(const santa__job *j, int64_t x0, int64_t heads, santa__mass *mass,
                                santa__picks *l) {
    const int64_t stride = j->plan->capacity, open = santa__part_sure(mass->chance, heads, stride, l);
    santa__picks part = *l;
    int64_t h, i;
    part.rows = open;
    santa__gather_shared(j, x0, heads, mass, &part, NULL);
    part.index += open;
    part.weight += open;
    part.rows = l->rows - open;
    santa__gather_shared(j, x0, heads, mass, &part, j->sure);
    for (h = 0; h < heads; h++) {
        float *sums = j->sure + (santa__result_at(j, x0 + h) + 1) * (j->v.dim + 2) - 2;
        double sum[2] = {0.0, 0.0};
        for (i = 0; i < l->rows; i++) sum[i < open] += (double)l->weight[h * stride + i];
        sums[0] = (float)sum[0];
        sums[1] = (float)(sum[0] + sum[1]);
    }
}

/* .. and draws among those of all ranks. */
static void santa__draw_row(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, 0);
    santa__picks l = santa__shared_picks(j);
    (void)span; (void)from; (void)to;
    santa__draw_sized(mass, j->group, &rng, &l, j->plan->capacity);
    santa__gather_parts(j, 0, j->group, mass, &l);
    santa__count_shared(j, 0, &l);
}

/* ------------------------------------------------------------ >>proxied */

/* Methods that take their scores from a copy of K, see >>proxy. */

static santa__part_of santa__copied_keys(const santa__job *j, const santa__range *r) {
    const santa_proxy_options *o = &j->o->proxy;
    const int32_t *lens = j->p->a.proxy_lens;
    const int64_t keys = j->plan->format.keys;
    santa__range all = *r;
    santa__part_of part;
    int64_t to;
    if (santa__has_ranks(j->o)) all = santa__key_range_of_ranks(&j->p->a, j->batch, r);
    to = SANTA__MIN(all.end - SANTA__MIN(o->local_tokens, SANTA__MAX(all.end, 0)), r->end);
    if (lens) to = SANTA__MIN(to, lens[j->batch]);
    part.from = r->begin;
    if (o->sink_tokens > r->begin - all.begin)
        part.from += SANTA__MIN(o->sink_tokens - (r->begin - all.begin), r->end - r->begin);
    part.to = SANTA__MAX(to / keys * keys, part.from);
    return part;
}

/* Queries x0 .. for the copy, with where their scores go. */
static santa__copied santa__copied_of(const santa__job *j, int64_t x0, int64_t queries, float *s,
                                      int64_t s_stride, float *squares) {
    const int64_t features = j->plan->format.features;
    santa__copied x;
    x.codes = j->copy_codes + x0 * features;
    x.q = j->copy_q + x0 * features;
    x.unit = j->copy_unit + x0;
    x.less = j->copy_less + x0;
    x.s = s;
    x.squares = squares;
    x.group = queries;
    x.s_stride = s_stride;
    return x;
}

/* Scores of the keys from .. to - 1 of block b (keys b * SANTA_BLOCK ..) for queries x0 .., by
   the copy: s[(x - x0) * s_stride + i], and the squared gains of its keys; the rest of the
   block is masked. */
static void santa__copied_scores(const santa__job *j, int64_t b, int64_t from, int64_t to, int64_t x0,
                                 int64_t queries, float *s, int64_t s_stride, float *squares) {
    const santa__format *f = &j->plan->format;
    const int64_t first = b * SANTA_BLOCK;
    santa__copied x = santa__copied_of(j, x0, queries, s, s_stride, squares);
    int64_t at, i, h;
    for (at = first; at < first + SANTA_BLOCK; at += f->keys) {
        x.s = s + (at - first);
        x.squares = squares + (at - first);
        if (at + f->keys <= from || at >= to) {
            memset(x.squares, 0, (size_t)f->keys * sizeof *x.squares);
            continue;
        }
        j->kernel->copied(santa__proxy_block(&j->p->a, f, j->batch, j->kv_head, at), f, &x);
        santa__score_extras(j, santa__keys_from(NULL, at, f->keys), (int)f->keys, x0, queries, x.s,
                            s_stride);
    }
    for (h = 0; h < queries; h++, s += s_stride) {
        for (i = 0; i < SANTA__MIN(from - first, (int64_t)SANTA_BLOCK); i++) s[i] = SANTA__MASKED;
        for (i = SANTA__MAX(to - first, 0); i < SANTA_BLOCK; i++) s[i] = SANTA__MASKED;
    }
}

/* Scores of keys of any range and all queries of a row, by the copy where it has them. */
SANTA__ONCE
static void santa__copied_range(const santa__job *j, int64_t x0, int64_t from, int64_t to, float *s,
                                int64_t s_stride) {
    const santa__part_of part = santa__copied_keys(j, santa__range_of(j, x0));
    float block[SANTA__SLICE * SANTA_BLOCK], squares[SANTA_BLOCK];
    int64_t at, n, g, h;
    for (at = from; at < to; at += n) {
        const int64_t b = at / SANTA_BLOCK;
        n = SANTA__MIN((b + 1) * SANTA_BLOCK, to) - at;
        if (at < part.from) n = SANTA__MIN(n, part.from - at);
        else if (at < part.to) n = SANTA__MIN(n, part.to - at);
        if (at < part.from || at >= part.to) {
            santa__score(j, santa__keys_from(NULL, at, to - at), (int)n, x0, j->group, s + (at - from),
                         s_stride);
            continue;
        }
        for (g = 0; g < j->group; g += SANTA__SLICE) {
            const int64_t heads = SANTA__MIN(j->group - g, (int64_t)SANTA__SLICE);
            santa__copied_scores(j, b, at, at + n, x0 + g, heads, block, SANTA_BLOCK, squares);
            for (h = 0; h < heads; h++)
                memcpy(s + (g + h) * s_stride + (at - from), block + h * SANTA_BLOCK + at % SANTA_BLOCK,
                       (size_t)n * sizeof *s);
        }
    }
}

/* The keys that some row of the job scores by the copy; none: to is 0. */
static santa__part_of santa__copied_by_some(const santa__job *j) {
    santa__part_of all;
    int64_t r;
    all.from = j->end;
    all.to = 0;
    for (r = 0; r < j->rows; r++) {
        const santa__part_of part = santa__copied_keys(j, &j->range[r]);
        if (part.from >= part.to) continue;
        all.from = SANTA__MIN(all.from, part.from);
        all.to = SANTA__MAX(all.to, part.to);
    }
    return all;
}

/* Blocks from the job's first key to the last one of these. */
static int64_t santa__num_copied(const santa__job *j) {
    const int64_t last = santa__copied_by_some(j).to;
    return last ? (last - 1) / SANTA_BLOCK + 1 - j->begin / SANTA_BLOCK : 0;
}

/* A rounded stash of the copy has scores of whole sixteenths of an octave, at most 254 of these
   below their block's largest, as a GPU keeps them in bytes: never so low that a key could not
   be drawn, and any other chance is made up for by a key's weight. */
#define SANTA__LEAST_SCORE (-11.0037115f)
#define SANTA__LEAST_MASS  1.66398275e-5f

SANTA__NOINLINE static float santa__rounded_score(float s) {
    const float x = s * 23.0831207f;
    if (!(x > -8e6f && x < 8e6f)) return s;
    return (float)(int)(x < 0.0f ? x - 0.5f : x + 0.5f) * 0.0433216988f;
}

/* Scores of a block of the copy. Where the steps say too little they are NaN. */
SANTA__ONCE SANTA__NOINLINE
static void santa__round_scores(const santa__kernels *kernel, float *s) {
    float top = SANTA__MASKED;
    int i;
    if (santa__has_bad(kernel, s, SANTA_BLOCK)) return;
    for (i = 0; i < SANTA_BLOCK; i++) top = SANTA__MAX(top, s[i]);
    if (top < SANTA__MASK_LIMIT) return;
    if (!(top > -69314.7f && top < 69314.7f)) { s[0] = santa__nan(); return; }
    top = santa__rounded_score(top) + SANTA__LEAST_SCORE;
    for (i = 0; i < SANTA_BLOCK; i++)
        if (s[i] > SANTA__MASK_LIMIT) s[i] = SANTA__MAX(santa__rounded_score(s[i]), top);
}

/* Weights, masses, and sums of weight * gain^2 of the blocks from .. to - 1: the copy once. */
static void santa__copied_blocks(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__plan *p = j->plan;
    const int is_top = santa__is_top(j->o);
    float *spread = SANTA__PART(float, j, spread), squares[SANTA_BLOCK];
    const santa__part_of all = santa__copied_by_some(j);
    int64_t i, x;
    (void)span;
    for (i = from; i < to; i++) {
        const int64_t b = j->begin / SANTA_BLOCK + i;
        santa__copied_scores(j, b, all.from, all.to, 0, j->queries, j->scores + i * SANTA_BLOCK,
                             p->score_stride, squares);
        for (x = 0; x < j->queries && j->rows > 1; x++) {
            const santa__part_of part = santa__copied_keys(j, santa__range_of(j, x));
            float *s = j->scores + x * p->score_stride + i * SANTA_BLOCK;
            int64_t k;
            if (part.from <= b * SANTA_BLOCK && (b + 1) * SANTA_BLOCK <= part.to) continue;
            for (k = 0; k < SANTA_BLOCK; k++)
                if (b * SANTA_BLOCK + k < part.from || b * SANTA_BLOCK + k >= part.to) s[k] = SANTA__MASKED;
        }
        for (x = 0; x < j->queries && santa__is_rounded(j->o); x++)
            santa__round_scores(j->kernel, j->scores + x * p->score_stride + i * SANTA_BLOCK);
        santa__block_mass(j->kernel, is_top, j->scores + i * SANTA_BLOCK, p->score_stride, j->queries,
                          SANTA_BLOCK, SANTA__PART(float, j, block_max) + i,
                          SANTA__PART(float, j, block_sum) + i, p->blocks);
        for (x = 0; x < j->queries && !is_top; x++)
            spread[x * p->blocks + i] =
                j->kernel->product(j->scores + x * p->score_stride + i * SANTA_BLOCK, squares);
    }
}

/* What stats tells of the guards, in whole millionths, which add up to the same in any
   order. */
static void santa__count_guards(santa__tally *tally, const santa__copied_head *x) {
    tally->heads++;
    tally->expected += (int64_t)(SANTA__MIN(x->expected, 1e6) * 1e6);
    tally->found += (int64_t)(SANTA__MIN(x->found, 1e6) * 1e6);
    tally->expected_max = SANTA__MAX(tally->expected_max, x->expected);
    tally->found_max = SANTA__MAX(tally->found_max, x->found);
}

/* The keys that are always read exactly join the heads' states. Returns how many. */
static int64_t santa__attend_fixed(const santa__job *j, int64_t x0, santa__part_of part,
                                   santa__copied_head *head) {
    const santa__range *r = santa__range_of(j, x0);
    const int64_t before = part.from - r->begin, behind = r->end - part.to;
    santa__attend_keys(j, x0, NULL, r->begin, before, &head->state, sizeof *head, SANTA__NO_MOMENTS);
    santa__attend_keys(j, x0, NULL, part.to, behind, &head->state, sizeof *head, SANTA__NO_MOMENTS);
    return before + behind;
}

/* A head's blocks of the copy, without a sum yet. */
static santa__mass santa__copied_mass(const santa__job *j, int64_t x, santa__part_of part) {
    santa__mass mass = santa__mass_of(j, x);
    mass.u = santa__weights_of(j, x);
    mass.blocks = part.from < part.to ? (part.to - 1) / SANTA_BLOCK + 1 - mass.first : 0;
    mass.unit = SANTA__PART(float, j, units) + x % j->group * j->plan->blocks;
    mass.chance = SANTA__PART(float, j, chance);
    return mass;
}

/* The mass of keys read exactly beside m's. */
static double santa__copied_rest(const santa__mass *m, float max, double fixed) {
    return fixed > 0.0 ? fixed * exp(SANTA__MIN((double)max - (double)m->m, 600.0)) : 0.0;
}

/* The keys that are read exactly hide those whose largest score is 100 octaves below theirs:
   neither rescue nor draws could find any of these that counts. */
static int santa__is_hidden(const santa__mass *m, float fixed_max, double fixed) {
    return fixed > 0.0 && !santa__not_finite_d(m->total) && m->total > 0.0
           && (double)fixed_max - (double)m->m > 69.3147180559945309;
}

/* Sums and shares, beside what is read exactly. A head with a NaN has none. */
static void santa__copied_shares(const santa__job *j, santa__mass *m, float fixed_max, double fixed) {
    if (santa__prefix(m)) m->total = (double)santa__nan();
    m->rest = santa__copied_rest(m, fixed_max, fixed);
    if (santa__is_top(j->o)) return;
    if (santa__is_hidden(m, fixed_max, fixed)) m->total = 0.0;
    santa__mass_units(m, 0);
}

/* Sum of (noise |q| gain)^2 over the copy's keys, by their masses: shares if there are units,
   else relative to exp(m). */
static double santa__copied_spread(const santa__job *j, int64_t x, const santa__mass *m, int has_units) {
    const int64_t skip = m->first - j->begin / SANTA_BLOCK;
    const float *spread = SANTA__PART(float, j, spread) + x * j->plan->blocks + skip;
    double sum = 0.0;
    int64_t b;
    for (b = 0; b < m->blocks; b++)
        if (has_units) sum += (double)m->unit[b] * (double)spread[b];
        else if (m->sum[b] > 0.0f)
            sum += (m->prefix[b + 1] - m->prefix[b]) / (double)m->sum[b] * (double)spread[b];
    if (m->blocks == 0) return 0.0;
    return sum * j->plan->format.noise * santa__square_sum(j->q + x * j->plan->d_pad, j->k.dim);
}

/* The variance of a head's log weights to expect from the copy's own error: the mean v of
   (noise |q| gain)^2 over the copy's keys, by their masses, times their share beside the keys
   read exactly. Where these hide the copy's, its mass may well be exp(v / 2) times what it
   seems. */
static double santa__expected_variance(const santa__mass *m, double sum) {
    double grown;
    grown = m->total * exp(SANTA__MIN(0.5 * sum * (1.0 + m->rest / m->total), 300.0));
    return sum * (1.0 + m->rest / m->total) * (grown / (grown + m->rest));
}

/* The largest mass of each eight keys of a block, and of all. */
SANTA__NOINLINE static float santa__largest(const float *u, float *tops) {
    float top = 0.0f;
    int i;
    for (i = 0; i < SANTA_BLOCK; i += 8) {
        const float a = SANTA__MAX(u[i], u[i + 1]), b = SANTA__MAX(u[i + 2], u[i + 3]),
                    c = SANTA__MAX(u[i + 4], u[i + 5]), d = SANTA__MAX(u[i + 6], u[i + 7]),
                    ab = SANTA__MAX(a, b), cd = SANTA__MAX(c, d);
        tops[i / 8] = SANTA__MAX(ab, cd);
        top = SANTA__MAX(top, tops[i / 8]);
    }
    return top;
}

/* Exact scores s[0 .. n) take the place of the copy's for keys of one block: index[0 .. n). u,
   max and sum of the block follow; max also down, or a key that was far overrated would hide
   all others. */
static void santa__mend_block(const int32_t *index, float *s, int n, float *u, float *max, float *sum,
                              int is_rounded) {
    float best = SANTA__MASKED, tops[SANTA_BLOCK / 8], total[4] = {0.0f}, left, scale;
    const float least = is_rounded ? SANTA__LEAST_MASS : 0.0f;
    int i;
    for (i = 0; i < n; i++) {
        if (santa__nan_or_plus_inf(s[i])) { *sum = santa__nan(); return; }
        if (is_rounded) s[i] = santa__rounded_score(s[i]);
        best = SANTA__MAX(best, s[i]);
        u[index[i] % SANTA_BLOCK] = 0.0f;
    }
    left = santa__largest(u, tops);
    if (left > 0.0f) best = SANTA__MAX(best, *max + (float)log((double)left));
    if (is_rounded) best = santa__rounded_score(best);
    scale = left > 0.0f ? (float)exp((double)*max - (double)best) : 0.0f;
    for (i = 0; i < SANTA_BLOCK; i++)
        if (u[i] > 0.0f) u[i] = SANTA__MIN(SANTA__MAX(u[i] * scale, least), 1.0f);
    for (i = 0; i < n; i++) {
        float *x = &u[index[i] % SANTA_BLOCK];
        if (s[i] - best > SANTA__EXP_UNDERFLOW) *x = (float)exp((double)s[i] - (double)best);
        if (s[i] > SANTA__MASK_LIMIT) *x = SANTA__MAX(*x, least);
    }
    for (i = 0; i < SANTA_BLOCK; i += 4) {
        total[0] += u[i];
        total[1] += u[i + 1];
        total[2] += u[i + 2];
        total[3] += u[i + 3];
    }
    *max = best;
    *sum = (total[0] + total[1]) + (total[2] + total[3]);
}

/* By what the head's likeliest keys are chosen: their masses. Rounded ones, for which whole is
   all mass, else 0, are 2^(-k / 16), many alike but for last bits, which go: none of the
   sixteen is close to where the number changes that is left. */
static float santa__likelihood(float p, float whole) {
    return whole > 0.0f ? santa__from_bits((santa__bits(p * whole) + 0xdb3u) & ~0xfffu) : p;
}

/* The keys of a head's largest masses and others, ascending; how many. Few eights have one. */
static int64_t santa__likely(const santa__mass *m, const float *u, int64_t want, int is_rounded, float *p,
                             int32_t *index) {
    const int64_t eights = m->blocks * (SANTA_BLOCK / 8);
    const float whole = is_rounded ? (float)(m->total + m->rest) : 0.0f;
    float least = 0.0f, *top = p + 7 * eights;      /* are read before what is found gets there */
    santa__choosing c = santa__choosing_from(m->kernel, top, eights, NULL);
    int64_t i, k, found = 0;
    for (i = 0; i < eights; i++) {
        if (i % (SANTA_BLOCK / 8) == 0) santa__largest(u + 8 * i, top + i);
        top[i] = santa__likelihood(top[i] * m->unit[8 * i / SANTA_BLOCK], whole);
    }
    if (want < eights) santa__select(&c, (double)want);
    if (c.threshold & 0x80000000u) least = santa__from_bits(c.threshold & 0x7fffffffu);
    for (i = 0; i < eights; i++) {
        if (!(top[i] > 0.0f) || top[i] < least) continue;
        for (k = 8 * i; k < 8 * i + 8; k++) {
            p[found] = santa__likelihood(u[k] * m->unit[k / SANTA_BLOCK], whole);
            index[found] = (int32_t)(m->first * SANTA_BLOCK + k);
            found += p[found] > 0.0f && p[found] >= least;
        }
    }
    return found;
}

/* The head's likeliest keys get exact scores: those of the largest masses here, or those that
   all ranks chose. How far off the copy's were tells of the others; lightest keys of a block
   say nothing, since they may have been rounded. Returns how many. */
static int64_t santa__rescue(const santa__job *j, int64_t x, const santa__mass *m,
                             santa__copied_head *head) {
    const int64_t skip = m->first - j->begin / SANTA_BLOCK;
    float *s = SANTA__PART(float, j, ranked), *u = santa__weights_of(j, x);
    float *max = SANTA__PART(float, j, block_max) + x * j->plan->blocks + skip;
    float *sum = SANTA__PART(float, j, block_sum) + x * j->plan->blocks + skip;
    int32_t *index = SANTA__PART(int32_t, j, rank_index);
    const int is_rounded = santa__is_rounded(j->o);
    const int64_t want = j->o->proxy.rescue_keys,
                  found = santa__likely(m, u, want, is_rounded, s, index);
    santa__choosing c = santa__choosing_from(j->kernel, s, found, NULL);
    int64_t rows = 0, i, k, n, b;
    if (santa__has_ranks(j->o)) { c.threshold = head->threshold; c.ties = head->ties; }
    else santa__select(&c, (double)want);
    while ((i = santa__next(&c)) >= 0) index[rows++] = index[i];
    for (i = 0; i < rows; i += SANTA_BLOCK)
        santa__score(j, santa__keys_from(index + i, 0, rows - i),
                     (int)SANTA__MIN(rows - i, (int64_t)SANTA_BLOCK), x, 1, s + i, SANTA_BLOCK);
    for (i = 0; i < rows; i += n) {
        for (n = 1; i + n < rows && index[i + n] / SANTA_BLOCK == index[i] / SANTA_BLOCK;) n++;
        b = index[i] / SANTA_BLOCK - m->first;
        for (k = i; k < i + n; k++) {
            const float guess = u[b * SANTA_BLOCK + index[k] % SANTA_BLOCK];
            /* its logarithm to .06, which is enough: by its bits */
            const double about = ((double)santa__bits(guess) - 1065353216.0)
                               * (0.6931471805599453 / 8388608.0),
                         off = SANTA__MAX((double)s[k] - (double)max[b] - about, -1e9);
            if (guess < 3e-5f) continue;
            head->known[0] += 1.0;
            head->known[1] += off;
            head->known[2] += off * off;
        }
        santa__mend_block(index + i, s + i, (int)n, u + b * SANTA_BLOCK, &max[b], &sum[b],
                          is_rounded);
    }
    return rows;
}

/* The top keys of one head, for top-k and top-p: each is there surely. Over ranks the choice is
   made. */
static void santa__draw_ranked(const santa__job *j, const santa__mass *m, const santa__copied_head *head,
                               santa__picks *l) {
    santa__choosing c = santa__choosing_from(j->kernel, m->u, m->blocks * SANTA_BLOCK, m->max);
    const double total = m->total + m->rest;
    int64_t i;
    if (j->o->method == SANTA_TOP_P)
        santa__radix(m->u, c.n, SANTA__MASK_LIMIT, j->o->top_p * m->total, 1, m->m, &c.threshold, &c.ties);
    else if (!santa__has_ranks(j->o)) santa__select(&c, (double)j->o->num_samples);
    else { c.threshold = head->threshold; c.ties = head->ties; }     /* what others said */
    while (l->rows < j->plan->capacity && (i = santa__next(&c)) >= 0) {
        m->chance[l->rows] = 1.0f;
        l->weight[l->rows] = (float)(exp((double)m->u[i] - (double)m->m) / total);
        santa__picks_add(l, (int32_t)(m->first * SANTA_BLOCK + i));
    }
}

/* The drawn keys join the states of `heads` heads: exact scores, each weighed by one over its
   chance. Their weights become what they count in the softmax. */
static void santa__attend_drawn(const santa__job *j, int64_t x0, int64_t heads, const santa__mass *mass,
                                const santa__picks *l, santa__copied_head *head) {
    float u[SANTA__SLICE * SANTA_BLOCK], keep[SANTA__SLICE], add[SANTA__SLICE], max[SANTA__SLICE],
        sum[SANTA__SLICE], times[SANTA_BLOCK];
    int64_t at, g, h;
    int i;
    for (at = 0; at < l->rows; at += SANTA_BLOCK) {
        const santa__keys keys = santa__keys_from(l->index + at, 0, l->rows - at);
        const int n = (int)SANTA__MIN(l->rows - at, (int64_t)SANTA_BLOCK);
        for (i = 0; i < n; i++) times[i] = 1.0f / mass->chance[at + i];
        for (g = 0; g < heads; g += SANTA__SLICE) {
            const int64_t few = SANTA__MIN(heads - g, (int64_t)SANTA__SLICE);
            santa__score(j, keys, n, x0 + g, few, u, SANTA_BLOCK);
            for (h = 0; h < few; h++)
                for (i = n; i < SANTA_BLOCK; i++) u[h * SANTA_BLOCK + i] = SANTA__MASKED;
            j->kernel->mass(u, SANTA_BLOCK, few, SANTA_BLOCK, max, sum, 1);
            for (h = 0; h < few; h++) {
                santa__copied_head *x = &head[g + h];
                const santa__mass *m = &mass[g + h];
                float *weight = l->weight + (g + h) * j->plan->capacity + at;
                float *e = u + h * SANTA_BLOCK;
                double total = 0.0;
                const double share = exp(SANTA__MIN((double)max[h] - (double)m->m, 200.0))
                                     / (m->total + m->rest);  /* at most what can be squared */
                for (i = 0; i < n && !santa__is_nan(sum[h]); i++) {
                    const double guess = (double)weight[i];
                    double w;
                    e[i] *= times[i];
                    total += (double)e[i];
                    w = (double)e[i] * share;
                    x->drawn += guess;
                    x->weight += w;
                    if (guess > 0.0) x->square += w * w / guess;
                    weight[i] = (float)SANTA__MIN(w, 1e38);
                }
                santa__state_join(&x->state, max[h], santa__is_nan(sum[h]) ? (double)sum[h] : total,
                                  &keep[h], &add[h]);
                if (!(add[h] > 0.0f)) memset(e, 0, SANTA_BLOCK * sizeof *e);
            }
            santa__add_values(&j->v, j->kernel, keys, n, u, SANTA_BLOCK, few, keep, add, head[g].state.n,
                              j->v.dim);
        }
    }
}

/* Variance of the log weights that the drawn keys show, as if these were normal. If they hold
   far less than the copy says, they hide others, which were not drawn: their scores are then
   off by two standard deviations. Of what rescued keys show four times what is expected is too
   much: such a copy is not of this K. */
SANTA__ONCE
static double santa__found_variance(const santa__copied_head *x) {
    const double spread = x->weight > 0.0 ? x->square * x->drawn / (x->weight * x->weight) : 1.0,
                 over = log(x->drawn / SANTA__MAX(x->weight, 1e-99)), n = SANTA__MAX(x->known[0], 1.0),
                 known = (x->known[2] - x->known[1] * x->known[1] / n) / n;
    double found = spread > 1.0 ? log(spread) : 0.0;
    if (over > 2.0 && x->drawn > 0.1) found = SANTA__MAX(found, 0.25 * over * over);
    return known > 4.0 * x->expected ? SANTA__MAX(found, known) : found;
}

/* What turns a head's sums into attention. The mass of what was not drawn is known from the
   copy: Z^ + sum of exp(s) / pi - exp(s^) / pi over the drawn ones. */
SANTA__ONCE
static void santa__copied_scale(const santa__job *j, int64_t x, const santa__mass *m, float max, double sum,
                                santa__copied_head *head) {
    float top = m->total > 0.0 ? SANTA__MAX(m->m, max) : max;
    double d = sum > 0.0 ? sum * exp((double)max - (double)top) : 0.0, share;
    if (m->total > 0.0)
        d += exp((double)m->m - (double)top) * (m->total - (m->total + m->rest) * head->drawn);
    if (!(d > 0.0)) { top = max; d = sum; }                           /* the drawn keys were overrated */
    head->lse = santa__lse(top, d, santa__sink(j, x), &share);
    head->scale = sum > 0.0 ? share * (double)j->p->v_scale / sum : 0.0;
}

/* Estimate of sqrt(E|out - exact|^2) for one of `heads` heads that drew together: the larger of
   two formulas. From the drawn keys, as if each came by itself: it is 0 where nothing light was
   drawn. From the copy: the sum of p^^2 (1 / pi - 1) over all keys, times the mean square
   distance of the light rows drawn, moved by four rows towards that of all drawn and of 16 read
   exactly. From the output, not the mean: n / (n - 1). */
static float santa__copied_error(const santa__job *j, int64_t x0, int64_t h, int64_t heads,
                                 const santa__mass *mass, const santa__picks *l,
                                 const santa__copied_head *x) {
    const santa__range *r = santa__range_of(j, x0);
    const santa__part_of part = santa__copied_keys(j, r);
    const santa__mass *m = &mass[h];
    const int64_t behind = r->end - part.to, n = l->rows + SANTA__MIN(part.from - r->begin + behind, 16);
    const float *weight = l->weight + h * j->plan->capacity;
    float *row = SANTA__PART(float, j, row_a), size[SANTA_BLOCK];
    const double whole = x->weight + m->rest / (m->total + m->rest);
    double seen = 0.0, light = 0.0, light_weight = 0.0, all = 0.0, bracket = 0.0, rows = 0.0;
    int64_t i, b, c;
    for (b = 0; b < m->blocks; b++) {
        santa__block_sizes(mass, heads, b, size);
        for (i = 0; i < SANTA_BLOCK; i++) {
            const double p = (double)(m->u[b * SANTA_BLOCK + i] * m->unit[b]),
                         pi = (double)j->o->num_samples * (double)size[i];
            if (p > 0.0 && pi < 1.0) bracket += p * p * (1.0 / pi - 1.0);
        }
    }
    if (n < 2) return bracket > SANTA__NO_ERROR ? santa__inf() : 0.0f;
    for (i = 0; i < n; i++) {
        const int64_t nth = i - l->rows;             /* of those read exactly, the last ones first */
        const double open = nth < 0 ? 1.0 - (double)m->chance[i] : 0.0;
        double dist = 0.0;
        santa__load_row(&j->v, j->kernel, nth < 0        ? l->index[i]
                                          : nth < behind ? r->end - 1 - nth : r->begin + nth - behind, row);
        for (c = 0; c < j->v.dim; c++) {
            const double to = (double)row[c] - (double)x->state.n[c] / x->state.d;
            dist += to * to;
        }
        all += dist / (double)n;
        if (!(open > 0.0)) continue;
        seen += open * (double)weight[i] * (double)weight[i] * dist;
        light += (double)weight[i] * dist;
        light_weight += (double)weight[i];
        rows += 1.0;
    }
    light = light_weight > 0.0 ? (light / light_weight * rows + 4.0 * all) / (rows + 4.0) : all;
    return (float)(sqrt(SANTA__MAX(seen / (whole * whole), bracket * light) * (double)n / (double)(n - 1))
                   * x->scale * x->state.d);
}

/* A head once more, with exact scores: as its method does it without a copy, pps as in a group
   of one. First its masses. */
SANTA__ONCE
static santa__mass santa__redo_scores(const santa__job *j, int64_t x) {
    const santa__range *r = santa__range_of(j, x);
    const int64_t first = j->begin / SANTA_BLOCK;
    santa__mass m = santa__mass_of(j, x);
    float *u = santa__weights_of(j, x);
    float *max = SANTA__PART(float, j, block_max) + x * j->plan->blocks,
          *sum = SANTA__PART(float, j, block_sum) + x * j->plan->blocks;
    int64_t b, i;
    m.u = u;
    m.unit = SANTA__PART(float, j, units) + x % j->group * j->plan->blocks;
    m.chance = SANTA__PART(float, j, chance);
    for (b = m.first; b < m.first + m.blocks; b++) {
        const int64_t from = SANTA__MAX(b * SANTA_BLOCK, r->begin),
                      to = SANTA__MIN((b + 1) * SANTA_BLOCK, r->end);
        float *s = u + (b - m.first) * SANTA_BLOCK;
        for (i = 0; i < SANTA_BLOCK; i++) s[i] = SANTA__MASKED;
        santa__score(j, santa__keys_from(NULL, from, r->end - from), (int)(to - from), x, 1,
                     s + from % SANTA_BLOCK, SANTA_BLOCK);
        santa__block_mass(j->kernel, santa__is_top(j->o), s, 0, 1, SANTA_BLOCK,
                          max + (b - first), sum + (b - first), 0);
    }
    j->stats->redone_rows++;
    j->stats->k_rows_read += r->end - r->begin;
    return m;
}

static void santa__count_redone(const santa__job *j, const santa__picks *l) {
    const int64_t first = j->begin / SANTA_BLOCK * SANTA_BLOCK;
    uint64_t *seen = SANTA__PART(uint64_t, j, seen);
    int64_t i;
    for (i = 0; i < l->rows; i++) j->stats->v_rows_read += santa__set_bit(seen, l->index[i] - first);
    j->stats->v_rows_head += l->rows;
}

SANTA__ONCE
static void santa__redo_draws(const santa__job *j, int64_t x, santa__mass m, santa__picks *l) {
    santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, x),
               dither = santa__job_rng(j, SANTA__STREAM_STASH, x);
    float *u = santa__weights_of(j, x), *acc = SANTA__PART(float, j, acc), error = 0.0f, lse;
    double share;
    if (santa__pick(j->o, j->exact_draw, &m, u, &rng, &dither, l, j->stats)) {
        santa__write(j, x, NULL, 0.0f, 0.0f);
        return;
    }
    lse = santa__lse(m.m, m.total, santa__sink(j, x), &share);
    share *= (double)j->p->v_scale;
    santa__gather(&j->v, j->kernel, l->index, l->weight, l->rows, (float)share, acc);
    if (j->p->a.std_error && l->rows)
        error = santa__has_traits(j->o, SANTA_SHARES_ROWS)
                    ? santa__sizes_error(j, &m, l, l->weight, share)
                    : santa__std_error(j, l, acc, share);
    santa__write(j, x, acc, lse, error);
    santa__count_redone(j, l);
}

/* Results of `heads` heads that drew together, from head h on: as they are, or once more. */
static void santa__finish_copied(const santa__job *j, int64_t x0, int64_t h, int64_t heads,
                                 santa__mass *mass, santa__picks *l, santa__copied_head *head) {
    const santa_proxy_options *o = &j->o->proxy;
    santa__tally *tally = SANTA__PART(santa__tally, j, tally);
    float *acc = SANTA__PART(float, j, acc);
    int64_t i, c;
    for (i = h; i < h + heads; i++) {
        santa__copied_head *x = &head[i];
        float error = 0.0f;
        if (!santa__is_top(j->o)) x->found = santa__found_variance(x);
        santa__count_guards(tally, x);
        x->is_done = !santa__not_finite_d(mass[i].total) && !x->state.bad && x->found <= o->exact_above;
        if (!x->is_done) continue;
        santa__copied_scale(j, x0 + i, &mass[i], x->state.m, x->state.d, x);
        for (c = 0; c < j->v.dim; c++) acc[c] = (float)((double)x->state.n[c] * x->scale);
        if (j->p->a.std_error && x->state.d > 0.0)
            error = santa__copied_error(j, x0 + i, i - h, heads, &mass[h], l, x);
        santa__write(j, x0 + i, acc, x->lse, error);
    }
    for (i = h; i < h + heads; i++)
        if (!head[i].is_done) santa__redo_draws(j, x0 + i, santa__redo_scores(j, x0 + i), l);
}

/* Draws for `heads` heads together, from head h on, and what comes of it, but over ranks. */
static void santa__draw_copied(santa__job *j, int64_t x0, int64_t h, int64_t heads, santa__mass *mass,
                               santa__copied_head *head) {
    const int64_t first = j->begin / SANTA_BLOCK * SANTA_BLOCK;
    santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, x0 + h);
    uint64_t *seen = SANTA__PART(uint64_t, j, seen);
    santa__picks l = santa__shared_picks(j);
    int64_t i, rows = 0;
    if (!santa__is_top(j->o))
        santa__draw_shared(&mass[h], heads, j->o->num_samples, &rng, &l, j->plan->capacity);
    else if (mass[h].total > 0.0) santa__draw_ranked(j, &mass[h], &head[h], &l);
    santa__attend_drawn(j, x0 + h, heads, &mass[h], &l, &head[h]);
    for (i = 0; i < l.rows; i++) rows += santa__set_bit(seen, l.index[i] - first);
    j->stats->k_rows_read += rows;
    j->stats->v_rows_read += rows;
    j->stats->v_rows_head += l.rows * heads;
    if (santa__has_traits(j->o, SANTA_DRAWS)) j->stats->draws += l.draws;
    if (!santa__has_ranks(j->o)) santa__finish_copied(j, x0, h, heads, mass, &l, head);
}

/* What a row reads exactly, and its heads' masses without a sum yet. */
SANTA__ONCE
static void santa__begin_copied(santa__job *j, int64_t row) {
    const int64_t x0 = row * j->group, dv = j->v.dim, first = j->begin / SANTA_BLOCK * SANTA_BLOCK;
    const santa__range *r = &j->range[row];
    const santa__part_of part = santa__copied_keys(j, r);
    santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    uint64_t *seen = SANTA__PART(uint64_t, j, seen);
    int64_t h, i, fixed;
    memset(seen, 0, (size_t)j->plan->words * sizeof *seen);
    memset(head, 0, (size_t)j->group * sizeof *head);
    for (h = 0; h < j->group; h++)
        santa__state_begin(&head[h].state, SANTA__PART(float, j, sums) + h * dv, NULL, dv);
    fixed = santa__attend_fixed(j, x0, part, head);
    for (i = r->begin; i < r->end; i++) {
        if (i == part.from) i = part.to;
        if (i < r->end) santa__set_bit(seen, i - first);
    }
    j->stats->k_rows_read += fixed;
    j->stats->v_rows_read += fixed;
    j->stats->v_rows_head += fixed * j->group;
    j->stats->proxy_rows_read += part.to - part.from;
    for (h = 0; h < j->group; h++)
        SANTA__PART(santa__mass, j, masses)[h] = santa__copied_mass(j, x0 + h, part);
}

static void santa__copied_row(santa__job *j, int64_t row) {
    const int64_t x0 = row * j->group;
    const int is_top = santa__is_top(j->o);
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    int64_t h;
    santa__begin_copied(j, row);
    for (h = 0; h < j->group; h++) {
        santa__mass *m = &mass[h];
        const santa__state *fixed = &head[h].state;
        santa__copied_shares(j, m, fixed->m, fixed->d);
        if (is_top || !(m->total > 0.0)) continue;
        head[h].expected = santa__expected_variance(m, santa__copied_spread(j, x0 + h, m, 1));
        if (head[h].expected > j->o->proxy.rescue_above && j->o->proxy.rescue_keys > 0) {
            j->stats->rescued_rows++;
            j->stats->k_rows_read += santa__rescue(j, x0 + h, m, &head[h]);
            santa__copied_shares(j, m, fixed->m, fixed->d);
        }
    }
    if (santa__has_traits(j->o, SANTA_SHARES_ROWS)) santa__draw_copied(j, x0, 0, j->group, mass, head);
    else for (h = 0; h < j->group; h++) santa__draw_copied(j, x0, h, 1, mass, head);
}

static void santa__copied_rows(santa__job *j, int64_t span, int64_t from, int64_t to) {
    int64_t row;
    (void)span; (void)from; (void)to;
    for (row = 0; row < j->rows; row++) santa__copied_row(j, row);
}

/* The same of one row over ranks, in steps between which they meet, see santa__run_copied. */
static void santa__step_begin(santa__job *j, int64_t span, int64_t from, int64_t to) {
    (void)span; (void)from; (void)to;
    santa__begin_copied(j, 0);
}

static void santa__step_rescue(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    int64_t h;
    (void)span; (void)from; (void)to;
    for (h = 0; h < j->group; h++) {
        if (!head[h].is_rescued) continue;
        j->stats->rescued_rows++;
        j->stats->k_rows_read += santa__rescue(j, h, &SANTA__PART(santa__mass, j, masses)[h], &head[h]);
    }
}

SANTA__ONCE
static void santa__step_size(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const int is_shared = santa__has_traits(j->o, SANTA_SHARES_ROWS);
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    const santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    int64_t h;
    (void)span; (void)from; (void)to;
    for (h = 0; h < j->group; h++) {
        santa__copied_shares(j, &mass[h], head[h].fixed_max, head[h].fixed);
        if (!is_shared) santa__size_blocks(&mass[h], 1, j->o->num_samples);
    }
    if (is_shared) santa__size_blocks(mass, j->group, j->o->num_samples);
}

static void santa__step_draw(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    int64_t h;
    (void)span; (void)from; (void)to;
    if (santa__has_traits(j->o, SANTA_SHARES_ROWS)) santa__draw_copied(j, 0, 0, j->group, mass, head);
    else for (h = 0; h < j->group; h++) santa__draw_copied(j, 0, h, 1, mass, head);
}

static void santa__step_redo(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    int64_t h;
    (void)span; (void)from; (void)to;
    for (h = 0; h < j->group; h++) {
        if (!SANTA__PART(santa__copied_head, j, heads)[h].is_done) mass[h] = santa__redo_scores(j, h);
        else mass[h].blocks = 0;
    }
}

/* What pps draws by then: each head by itself. */
SANTA__ONCE
static void santa__step_resize(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    int64_t h;
    (void)span; (void)from; (void)to;
    for (h = 0; h < j->group; h++) {
        santa__rng dither = santa__job_rng(j, SANTA__STREAM_STASH, h);
        santa__round_stash(j->o->stash, &dither, mass[h].first * SANTA_BLOCK, mass[h].blocks * SANTA_BLOCK,
                           santa__weights_of(j, h));
        if (santa__prefix(&mass[h])) mass[h].total = (double)santa__nan();
        santa__mass_units(&mass[h], santa__is_rounded(j->o));
        santa__size_blocks(&mass[h], 1, j->o->num_samples);
    }
}

/* This rank's parts of the results. */
SANTA__ONCE
static void santa__step_finish(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    const santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    float *acc = SANTA__PART(float, j, acc);
    int64_t h, c;
    (void)span; (void)from; (void)to;
    for (h = 0; h < j->group; h++) {
        santa__picks l = santa__shared_picks(j);
        if (head[h].is_done) {
            for (c = 0; c < j->v.dim; c++) acc[c] = (float)((double)head[h].state.n[c] * head[h].scale);
            santa__write(j, h, acc, head[h].lse, 0.0f);
        } else if (santa__is_top(j->o)) {
            santa__write(j, h, NULL, 0.0f, 0.0f);
        } else if (santa__has_traits(j->o, SANTA_SHARES_ROWS)) {
            santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, h);
            santa__draw_shared(&mass[h], 1, j->o->num_samples, &rng, &l, 0);
            santa__gather_parts(j, h, 1, &mass[h], &l);
            santa__count_redone(j, &l);
        } else santa__redo_draws(j, h, mass[h], &l);
    }
}

/* ------------------------------------------------------------ >>budgets-code */

/* z with P(N(0,1) > z) = q, q in (0, 0.5]: a rational start (Abramowitz & Stegun 26.2.23), then
   Newton on erfc; where that would underflow, fixed-point steps on the tail's series log q =
   -z^2/2 - log(z sqrt(2 pi)) + log(1 - 1/z^2 + 3/z^4 - ..). */
SANTA__ONCE
static double santa__upper_quantile(double q) {
    double t = sqrt(-2.0 * log(q)), z = t;
    int i;
    for (i = 0; q < SANTA__DELTA_MIN && i < 8; i++) {
        const double y = 1.0 / (z * z);
        z = sqrt(-2.0
                 * (log(q) + log(z * 2.50662827463100050242 / (1.0 - y * (1.0 - y * (3.0 - 15.0 * y))))));
    }
    if (q < SANTA__DELTA_MIN) return z;
    z = t
        - (2.515517 + t * (0.802853 + t * 0.010328))
              / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
    for (i = 0; i < 4; i++) {
        double density = exp(-0.5 * z * z) * 0.39894228040143267794;
        if (!(density > 0.0)) break;
        z += (0.5 * erfc(z * 0.70710678118654752440) - q) / density;
    }
    return z;
}

SANTADEF double santa_normal_quantile(double p) {
    if (santa__not_finite_d(p) || !(p > 0.0 && p < 1.0)) return (double)santa__nan();
    return p < 0.5 ? -santa__upper_quantile(p) : santa__upper_quantile(1.0 - p);
}

/* Above it the CLT bound on a vector's norm fails, see ERR_DELTA_VECTOR. */
#define SANTA__DELTA_VECTOR 0.215

static double santa__z(santa_bound bound, double delta) {
    return bound == SANTA_BOUND_CLT ? santa__upper_quantile(0.5 * delta) : sqrt(2.0 * log(2.0 / delta));
}

static int santa__bad_amount(double x) { return santa__not_finite_d(x) || x < 0.0; }

SANTA__ONCE
static santa_status santa__check_budget(const santa_budget *in, const int64_t *budget, int denominator,
                                        int numerator) {
    if (!in || !budget) return SANTA_ERR_NULL_ARGUMENT;
    if (santa__not_finite_d(in->epsilon) || !(in->epsilon > 0.0 && in->epsilon < 1.0))
        return SANTA_ERR_EPSILON;
    if (santa__bad_delta(in->delta)) return SANTA_ERR_DELTA;
    if ((unsigned)in->bound > (unsigned)SANTA_BOUND_HOEFFDING) return SANTA_ERR_BOUND;
    if (in->population < 0) return SANTA_ERR_BUDGET_INPUT;
    if (denominator && (santa__bad_amount(in->sigma) || santa__bad_amount(in->denominator)))
        return SANTA_ERR_BUDGET_INPUT;
    if (numerator && (santa__bad_amount(in->trace) || santa__bad_amount(in->norm)))
        return SANTA_ERR_BUDGET_INPUT;
    return SANTA_OK;
}

/* n_s * spread / total, the relative error of one draw. No spread: 0, whatever the total. */
static double santa__relative_spread(double population, double spread, double total) {
    if (!(spread > 0.0)) return 0.0;
    return total > 0.0 ? population * spread / total : 1e300;
}

/* ceil of b0 with the finite-population correction, b0 = x^2. */
static int64_t santa__budget_of(double x, int64_t population) {
    double n = (double)population, b0 = x * x, b;
    if (population == 0 || !(x > 0.0)) return 0;
    if (!(b0 < 1e300)) return population;
    b = ceil(b0 / (1.0 + b0 / n) * (1.0 - 1e-12));                    /* rounding must not add a draw */
    return b < n ? (int64_t)b : population;
}

SANTADEF santa_status santa_budget_denominator(const santa_budget *in, int64_t *budget) {
    santa_status s = santa__check_budget(in, budget, 1, 0);
    if (s != SANTA_OK) return s;
    *budget =
        santa__budget_of(santa__z(in->bound, in->delta) / in->epsilon
                             * santa__relative_spread((double)in->population, in->sigma, in->denominator),
                         in->population);
    return SANTA_OK;
}

SANTADEF santa_status santa_budget_numerator(const santa_budget *in, int64_t *budget) {
    santa_status s = santa__check_budget(in, budget, 0, 1);
    if (s != SANTA_OK) return s;
    if (in->bound == SANTA_BOUND_CLT && in->delta > SANTA__DELTA_VECTOR) return SANTA_ERR_DELTA_VECTOR;
    *budget =
        santa__budget_of(santa__z(in->bound, in->delta) / in->epsilon
                             * santa__relative_spread((double)in->population, sqrt(in->trace), in->norm),
                         in->population);
    return SANTA_OK;
}

/* The best epsilon' for a given delta' makes both budgets equal, which leaves b0 = (2
   (z(delta') A + z(delta - delta') C) / eps)^2 with A, C the relative spreads; z is convex, so
   golden section over delta' finds the minimum. */
SANTA__ONCE
SANTADEF santa_status santa_budget_full(const santa_budget *in, int64_t *budget) {
    const double ratio = 0.61803398874989484820;
    double a, c, lo, hi, x[2], f[2], best;
    int i, k;
    santa_status s = santa__check_budget(in, budget, 1, 1);
    if (s != SANTA_OK) return s;
    a = santa__relative_spread((double)in->population, in->sigma, in->denominator);
    c = santa__relative_spread((double)in->population, sqrt(in->trace), in->norm);
    hi = in->delta;
    lo = in->bound == SANTA_BOUND_CLT && in->delta > SANTA__DELTA_VECTOR ? in->delta - SANTA__DELTA_VECTOR
                                                                         : 0.0;
    if (!(c > 0.0)) {
        best = santa__z(in->bound, in->delta) * a;
    } else if (!(a > 0.0)) {
        best = santa__z(in->bound, in->delta - lo) * c;
    } else {
        x[0] = hi - ratio * (hi - lo);
        x[1] = lo + ratio * (hi - lo);
        for (k = 0; k < 2; k++)
            f[k] = santa__z(in->bound, x[k]) * a + santa__z(in->bound, in->delta - x[k]) * c;
        for (i = 0; i < 48; i++) {
            k = f[0] < f[1];                                          /* 1: the minimum is left of x[1] */
            if (k) { hi = x[1]; x[1] = x[0]; f[1] = f[0]; x[0] = hi - ratio * (hi - lo); }
            else { lo = x[0]; x[0] = x[1]; f[0] = f[1]; x[1] = lo + ratio * (hi - lo); }
            k = !k;
            f[k] = santa__z(in->bound, x[k]) * a + santa__z(in->bound, in->delta - x[k]) * c;
        }
        best = SANTA__MIN(f[0], f[1]);
    }
    *budget = santa__budget_of(2.0 * best / in->epsilon, in->population);
    return SANTA_OK;
}

/* ------------------------------------------------------------ >>vattention */

/* One query row of a group. Its heads read the same keys, since a row that is fetched for one
   of them serves all: the fixed set holds what was predicted for any of them, and the sample is
   as large as the most demanding of them asks. So every head keeps its (epsilon, delta), and K
   and V rows are read once for the group. */

/* A query row of one group at work. Positions count the middle's keys. */
typedef struct santa__va {
    const santa__job *j;
    santa__va_head *head;       /* [group] */
    uint64_t *chosen, *drawn;   /* bits of the middle: keys chosen, being drawn */
    int32_t *list;              /* keys to add, ascending */
    int64_t lo, mid, residual;  /* the middle, between sinks and local: lo .. */
    int64_t looked;             /* rows of K that the oracle read */
    int64_t read, sampled;      /* keys that joined a set, the sample */
    int moments;                /* of the sample */
    /* Over ranks lo, mid, looked, read and sampled are this rank's, all else is of all: keys of
       the row, heavy ones of a head, positions of the middle and those before lo, sizes of the
       samples; positions that are free and to be drawn, the next word; words without a key, by
       what was expected of them; and what the ranks say and learn. */
    int64_t all, heavy, all_mid, before, base, budget, free, left, tries;
    santa__rng rng;
    uint64_t at;
    double barren;
    int complement;
    size_t message_bytes;       /* of the job's message */
    santa__met *met;
} santa__va;

static santa__va santa__va_make(const santa__job *j) {
    const int64_t dv = j->v.dim;
    float *rows = SANTA__PART(float, j, va_rows);
    santa__va x;
    int64_t g;
    memset(&x, 0, sizeof x);
    x.j = j;
    x.head = SANTA__PART(santa__va_head, j, va);
    x.chosen = SANTA__PART(uint64_t, j, chosen);
    x.drawn = SANTA__PART(uint64_t, j, drawn);
    x.list = SANTA__PART(int32_t, j, keys);
    x.moments = j->o->vattention.guarantee == SANTA_GUARANTEE_FULL || j->p->a.std_error ? SANTA__MOMENTS
                                                                                        : SANTA__SPREAD;
    memset(x.head, 0, (size_t)j->group * sizeof *x.head);
    for (g = 0; g < j->group; g++, rows += dv) {
        santa__state_begin(&x.head[g].sums[SANTA__FIXED], rows, NULL, dv);
        santa__state_begin(&x.head[g].sums[SANTA__SAMPLE], rows + j->group * dv, rows + 2 * j->group * dv,
                           dv);
    }
    return x;
}

/* Where the sinks end and the local window begins in a row of `all` keys, of which those from
   offset on are here. */
static void santa__va_place(santa__va *x, int64_t offset, int64_t all) {
    const santa_vattention_options *v = &x->j->o->vattention;
    const int64_t n = x->j->end - x->j->begin, sinks = SANTA__MIN(v->sink_tokens, all),
                  local = SANTA__MIN(v->local_tokens, all - sinks), end = all - local;
    const int64_t from = SANTA__MIN(SANTA__MAX(sinks - offset, 0), n),
                  to = SANTA__MIN(SANTA__MAX(end - offset, 0), n);
    x->all = all;
    x->all_mid = end - sinks;
    x->heavy = SANTA__MIN(v->heavy_tokens == SANTA_AUTO ? (all + 39) / 40 : v->heavy_tokens, x->all_mid);
    x->lo = x->j->begin + from;
    x->mid = to - from;
    x->before = offset + from - sinks;
}

/* The list's keys join a set of all heads. */
static void santa__va_add_list(santa__va *x, int set, int64_t count) {
    x->read += count;
    if (set == SANTA__SAMPLE) x->sampled += count;
    santa__attend_keys(x->j, 0, x->list, 0, count, &x->head->sums[set], sizeof *x->head,
                       set == SANTA__SAMPLE ? x->moments : SANTA__NO_MOMENTS);
}

static int64_t santa__list_range(int32_t *list, int64_t count, int64_t from, int64_t to) {
    for (; from < to; from++) list[count++] = (int32_t)from;
    return count;
}

/* The keys from first on that have a bit. */
static int64_t santa__list_word(int32_t *list, int64_t count, int64_t first, uint64_t bits) {
    for (; bits; bits &= bits - 1) list[count++] = (int32_t)(first + santa__lowest_bit(bits));
    return count;
}

/* Middle keys whose bit in map, after flip, is set. */
SANTA__ONCE
static int64_t santa__list_bits(const santa__va *x, int64_t count, const uint64_t *map, uint64_t flip) {
    int64_t w;
    for (w = 0; w * 64 < x->mid; w++) {
        uint64_t bits = map[w] ^ flip;
        if (x->mid - w * 64 < 64) bits &= ((uint64_t)1 << (x->mid - w * 64)) - 1;
        count = santa__list_word(x->list, count, x->lo + w * 64, bits);
    }
    return count;
}

static void santa__va_add_rest(santa__va *x) {
    santa__va_add_list(x, SANTA__SAMPLE, santa__list_bits(x, 0, x->chosen, ~(uint64_t)0));
}

/* The positions drawn join the sample; complement: those that are not. */
static void santa__va_add_drawn(santa__va *x, int complement) {
    int64_t i;
    for (i = 0; i <= x->mid / 64; i++) {
        if (complement) x->drawn[i] = ~(x->drawn[i] | x->chosen[i]);
        x->chosen[i] |= x->drawn[i];
    }
    santa__va_add_list(x, SANTA__SAMPLE, santa__list_bits(x, 0, x->drawn, 0));
}

/* count more of the `left` free positions of the middle, uniform without replacement. Redraws
   on a hit; a word that would favour small positions is redrawn too (Lemire's bound). When more
   than half of them are wanted, those that stay out are drawn instead: else the last ones would
   take most of the words. */
static void santa__va_add_sample(santa__va *x, santa__rng *rng, uint64_t *at, int64_t count, int64_t left) {
    const uint32_t size = (uint32_t)x->mid, uneven = (0u - size) % size;
    const int64_t words = x->mid / 64 + 1;
    const int complement = count > left - count;
    int64_t draws = complement ? left - count : count;
    memset(x->drawn, 0, (size_t)words * sizeof *x->drawn);
    while (draws > 0) {
        const uint64_t wide = (uint64_t)santa__rng_word(rng, (*at)++) * size;
        const int64_t position = (int64_t)(wide >> 32);
        if ((uint32_t)wide < uneven || santa__has_bit(x->chosen, position)) continue;
        draws -= santa__set_bit(x->drawn, position);
    }
    santa__va_add_drawn(x, complement);
}

/* Sets the keys of a list in chosen; returns how many are new. */
static int64_t santa__va_mark(santa__va *x, const int32_t *index, int64_t count) {
    int64_t i, marked = 0;
    for (i = 0; i < count; i++)
        if (index[i] >= x->lo && index[i] < x->lo + x->mid)
            marked += santa__set_bit(x->chosen, index[i] - x->lo);
    return marked;
}

/* Head g's heavy keys, by the caller's array or predictor. */
static int64_t santa__va_predict(santa__va *x, int64_t g, int64_t want) {
    const santa__job *j = x->j;
    const santa_vattention_options *v = &j->o->vattention;
    float *q = SANTA__PART(float, j, row_a);
    int64_t count;
    if (v->heavy_index)
        return santa__va_mark(x, v->heavy_index + santa__result_at(j, g) * v->heavy_stride,
                              v->heavy_tokens);
    santa__load_query(j, &j->p->a.q, g, q);
    /* -1, no key: the predictor may return more than it writes */
    memset(x->list, 0xff, (size_t)want * sizeof *x->list);
    count = v->heavy(v->heavy_user, j->batch, santa__row_of(j, g), santa__head(j, g), q, x->lo,
                     x->lo + x->mid, want, x->list);
    return santa__va_mark(x, x->list, SANTA__MIN(count, want));
}

/* The same by the exact oracle, from the scores of the middle. Over ranks the choice is
   made. */
static int64_t santa__va_best(santa__va *x, int64_t g, int64_t want) {
    const float *s = x->j->scores + g * x->j->plan->score_stride;
    santa__choosing c = santa__choosing_from(x->j->kernel, s, x->mid, NULL);
    int64_t i, marked = 0;
    x->head[g].sums[SANTA__FIXED].bad |= santa__has_bad(x->j->kernel, s, x->mid);
    if (x->met) { c.threshold = x->met[g].choice.threshold; c.ties = x->met[g].choice.ties; }
    else santa__select_in(&c, (double)want, (uint32_t *)(void *)x->list, x->mid);
    while ((i = santa__next(&c)) >= 0)
        marked += santa__set_bit(x->chosen, i);
    return marked;
}

/* Scores of the middle for the oracle: by the copy of K, or by K where the copy has a NaN. */
static void santa__va_scores(santa__va *x) {
    const santa__job *j = x->j;
    const int64_t stride = j->plan->score_stride;
    int64_t i, g;
    int is_exact = !santa__is_copied(j->o);
    if (!is_exact) {
        const santa__part_of part = santa__copied_keys(j, &j->range[0]);
        const int64_t copied =
            SANTA__MIN(part.to, x->lo + x->mid) - SANTA__MAX(part.from, x->lo);
        santa__copied_range(j, 0, x->lo, x->lo + x->mid, j->scores, stride);
        for (g = 0; g < j->group && !x->met; g++)    /* over ranks it shows */
            is_exact |= santa__has_bad(j->kernel, j->scores + g * stride, x->mid);
        j->stats->proxy_rows_read += SANTA__MAX(copied, 0);
        x->looked = x->mid - SANTA__MAX(copied, 0);
    }
    if (!is_exact) return;
    x->looked = x->mid;
    for (i = 0; i < x->mid; i += SANTA_BLOCK)
        santa__score(j, santa__keys_from(NULL, x->lo + i, x->mid - i),
                     (int)SANTA__MIN(x->mid - i, (int64_t)SANTA_BLOCK), 0, j->group, j->scores + i, stride);
}

/* Sinks, heavy tokens and the local window, over ranks after the scores; returns how many keys
   these are. */
SANTA__ONCE
static int64_t santa__va_add_fixed(santa__va *x, int64_t heavy) {
    const santa__job *j = x->j;
    const int oracle = !j->o->vattention.heavy && !j->o->vattention.heavy_index;
    int64_t g, i, count = j->end - j->begin - x->mid;
    memset(x->chosen, 0, (size_t)(x->mid / 64 + 1) * sizeof *x->chosen);
    if (heavy > 0 && oracle && !x->met) santa__va_scores(x);
    for (g = 0; heavy > 0 && g < j->group; g++)
        count += oracle ? santa__va_best(x, g, heavy) : santa__va_predict(x, g, heavy);
    i = santa__list_range(x->list, 0, j->begin, x->lo);
    i = santa__list_bits(x, i, x->chosen, 0);
    santa__va_add_list(x, SANTA__FIXED, santa__list_range(x->list, i, x->lo + x->mid, j->end));
    return count;
}

static double santa__rescale(const santa__state *s, double m) {
    return s->d > 0.0 ? exp((double)s->m - m) : 0.0;
}

static double santa__norm(const float *a, double x, const float *b, double y, int64_t n) {
    double sum = 0.0;
    int64_t c;
    for (c = 0; c < n; c++) {
        double f = (double)a[c] * x + (double)b[c] * y;
        sum += f * f;
    }
    return sqrt(sum);
}

/* exp(sink - m) as a part of the denominator; far above the keys it stays finite. */
static double santa__sink_mass(const float *sink, double m) {
    return sink && !santa__not_finite(*sink) ? exp(SANTA__MIN((double)*sink - m, 600.0)) : 0.0;
}

/* Algorithm 2: what head g needs, from the fixed sums and the base sample. Fills that part of
   its audit. */
SANTA__ONCE
static int64_t santa__va_needed(const santa__va *x, int64_t g, int64_t base, const santa__state *fixed,
                                const santa__state *sample) {
    const santa_vattention_options *v = &x->j->o->vattention;
    santa_audit *audit = &x->head[g].audit;
    const double nb = (double)base, w = (double)x->residual / nb,
                 m = (double)SANTA__MAX(fixed->m, sample->m);
    const double ef = santa__rescale(fixed, m), es = santa__rescale(sample, m);
    santa_budget in;
    santa_status s;
    int64_t budget = 0;
    memset(&in, 0, sizeof in);
    in.epsilon = v->epsilon;
    in.delta = v->delta;
    in.bound = v->bound;
    in.population = x->residual;
    in.sigma = es * sqrt(santa__at_least_0((sample->d2 - sample->d * sample->d / nb) / (nb - 1.0)));
    in.denominator = ef * fixed->d + w * es * sample->d + santa__sink_mass(santa__sink(x->j, g), m);
    if (v->guarantee == SANTA_GUARANTEE_FULL) {
        const int64_t dv = x->j->v.dim;
        const float *nf = fixed->n, *ns = sample->n;
        const double mean = santa__norm(ns, es / nb, ns, 0.0, dv), n = (double)x->residual;
        in.trace = santa__at_least_0((es * es * sample->t / nb - mean * mean) * (nb / (nb - 1.0)));
        /* the sample's own noise makes its sum longer on average: taken off, so that a small
           |N| is not mistaken for a large one */
        in.norm = santa__norm(nf, ef, ns, w * es, dv);
        in.norm = sqrt(santa__at_least_0(in.norm * in.norm - in.trace * n * (n - nb) / nb));
        s = santa_budget_full(&in, &budget);
    } else {
        s = santa_budget_denominator(&in, &budget);
    }
    audit->sigma = in.sigma;
    audit->denominator = in.denominator;
    audit->trace = in.trace;
    audit->norm = in.norm;
    audit->max_score = m;
    if (s != SANTA_OK) return x->residual;  /* NaN in V: nothing can be promised, take all */
    return SANTA__MAX(budget, base);
}

/* Base sample, the heads' budgets from it, and as many more keys as the largest asks for.
   Returns the keys read. */
static int64_t santa__va_sample_residual(santa__va *x, int64_t base) {
    santa__rng rng = santa__job_rng(x->j, SANTA__STREAM_VATTENTION, 0);
    uint64_t at = 0;
    int64_t g, budget = base;
    santa__va_add_sample(x, &rng, &at, base, x->residual);
    for (g = 0; g < x->j->group; g++) {
        santa__va_head *head = &x->head[g];
        const santa__state *fixed = &head->sums[SANTA__FIXED], *sample = &head->sums[SANTA__SAMPLE];
        head->audit.num_base = base;
        head->audit.needed = fixed->bad || sample->bad ? base : santa__va_needed(x, g, base, fixed, sample);
        budget = SANTA__MAX(budget, head->audit.needed);
    }
    if (budget < x->residual) santa__va_add_sample(x, &rng, &at, budget - base, x->residual - base);
    else santa__va_add_rest(x);
    return budget;
}

/* Linearised ratio: out - exact ~ (n_s / D) * (sample mean - population mean) of r_i = e_i (v_i
   - out). total: D relative to the sample's maximum. */
static float santa__va_std_error(const santa__va *x, int64_t g, const float *out, double total, double b) {
    const santa__state *s = &x->head[g].sums[SANTA__SAMPLE];
    const int64_t dv = x->j->v.dim;
    const float *n = s->n, *n2 = s->n2;
    const double ns = (double)x->residual;
    double cross = 0.0, square = 0.0, mean2 = 0.0, spread;
    int64_t c;
    for (c = 0; c < dv; c++) {
        const double o = (double)out[c], r = (double)n[c] - s->d * o;
        cross += o * (double)n2[c];
        square += o * o;
        mean2 += r * r;
    }
    spread = (s->t - 2.0 * cross + square * s->d2 - mean2 / b) / (b - 1.0);
    return (float)(ns / total * sqrt(santa__at_least_0(spread) * (1.0 - b / ns) / b));
}

/* What the budget makes of the audit. */
static void santa__va_audit(const santa__va *x, santa_audit *audit, int64_t budget) {
    audit->num_keys = x->all;
    audit->num_residual = x->residual;
    audit->num_fixed = audit->num_keys - x->residual;
    audit->budget = budget;
    audit->exact = budget == x->residual;
    audit->density = (double)(audit->num_fixed + budget) / (double)audit->num_keys;
    if (audit->num_base == 0) audit->needed = budget;
}

/* The same where the largest score of all that was read is m: that of the base sample may be
   smaller. */
static void santa__va_rescale_audit(santa_audit *audit, double m) {
    const double f = exp(audit->max_score - m);
    audit->sigma *= f; audit->denominator *= f; audit->norm *= f; audit->trace *= f * f;
    audit->max_score = m;
}

/* Ratio of the sums, fixed + residual / budget * sample, and the rest of the audit. */
static void santa__va_write_head(santa__va *x, int64_t g, int64_t budget) {
    const santa__job *j = x->j;
    const santa__state *fixed = &x->head[g].sums[SANTA__FIXED], *sample = &x->head[g].sums[SANTA__SAMPLE];
    const float *nf = fixed->n, *ns = sample->n;
    const double m = (double)SANTA__MAX(fixed->m, sample->m),
                 w = budget > 0 ? (double)x->residual / (double)budget : 1.0;
    const double ef = santa__rescale(fixed, m), es = santa__rescale(sample, m),
                 total = ef * fixed->d + w * es * sample->d;
    const float v_scale = j->p->v_scale;
    santa_audit *audit = &x->head[g].audit;
    float *acc = SANTA__PART(float, j, acc), lse, std_error = 0.0f;
    double share;
    int64_t c;
    santa__va_audit(x, audit, budget);
    if (audit->num_base == 0) {
        audit->denominator = total + santa__sink_mass(santa__sink(j, g), m);
        audit->max_score = m;
    } else santa__va_rescale_audit(audit, m);
    if (j->o->vattention.audit) j->o->vattention.audit[santa__result_at(j, g)] = *audit;

    lse = santa__lse((float)m, total, santa__sink(j, g), &share);
    for (c = 0; c < j->v.dim; c++)
        acc[c] =
            total > 0.0 ? (float)((ef * (double)nf[c] + w * es * (double)ns[c]) * (share / total)) : 0.0f;
    /* share 0: a sink far above all keys */
    if (j->p->a.std_error && !audit->exact && total > 0.0 && share > 0.0)
        std_error =
            santa__va_std_error(x, g, acc, total / share * exp(m - (double)sample->m), (double)budget);
    for (c = 0; c < j->v.dim; c++) acc[c] *= v_scale;
    santa__write(j, g, fixed->bad || sample->bad ? NULL : acc, lse, std_error * v_scale);
}

/* All of one query row, see santa__phase. */
SANTA__ONCE
static void santa__vattention(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa_vattention_options *v = &j->o->vattention;
    const int64_t n = j->end - j->begin;
    santa__va x = santa__va_make(j);
    int64_t g, base, budget, read;
    (void)span; (void)from; (void)to;
    santa__va_place(&x, 0, n);
    x.residual = n - santa__va_add_fixed(&x, x.heavy);
    base = v->base_samples == SANTA_AUTO ? SANTA__MAX((x.residual + 39) / 40, 32) : v->base_samples;
    if (base < x.residual) {
        budget = santa__va_sample_residual(&x, base);
    } else {
        budget = x.residual;
        santa__va_add_rest(&x);
    }
    for (g = 0; g < j->group; g++) santa__va_write_head(&x, g, budget);
    read = n - x.residual + budget;
    j->stats->draws += budget * j->group;
    j->stats->exact_rows += budget == x.residual ? j->group : 0;
    j->stats->v_rows_read += read;
    j->stats->v_rows_head += read * j->group;
    j->stats->k_rows_read += SANTA__MIN(n, read + x.looked);
}

/* ------------------------------------------------------------ >>buckets */

/* s[x * stride + i] = row i . query x, of n rows of d numbers that lie side by side. */
static void santa__multiply(const santa__kernels *kernel, santa_dtype t, const char *rows, int64_t n,
                            int64_t d, const char *packed, int64_t queries, float *s, int64_t stride) {
    const char *row[SANTA_BLOCK + SANTA__BEYOND_K];
    const int64_t bytes = santa__bytes(t, d);
    santa__queries x;
    int64_t at, i;
    memset(&x, 0, sizeof x);
    x.heads = 1;
    x.group = queries;
    x.q = packed;
    x.q_strip = queries * SANTA__PACKED;
    x.s_stride = stride;
    for (at = 0; at < n; at += SANTA_BLOCK) {
        const int64_t few = SANTA__MIN(n - at, (int64_t)SANTA_BLOCK);
        for (i = 0; i < few + SANTA__BEYOND_K; i++) row[i] = rows + SANTA__MIN(at + i, n - 1) * bytes;
        x.s = s + at;
        kernel->dot(t, row, (int)few, d, &x);
    }
}

/* Shares of n buckets from their logits; 0 if one is no number. s holds whole blocks. */
static int santa__softmax(const santa__kernels *kernel, float *s, int64_t n) {
    float top = SANTA__MASKED;
    double sum = 0.0;
    int64_t c;
    int bad = 0;
    for (c = 0; c < n; c++) {
        bad |= santa__not_finite(s[c]);
        top = SANTA__MAX(top, s[c]);
    }
    if (bad) return 0;
    for (c = 0; c < n; c++) s[c] -= top;
    for (; c % SANTA_BLOCK != 0; c++) s[c] = 0.0f;
    for (c = 0; c < n; c += SANTA_BLOCK) kernel->exps(s + c);
    for (c = 0; c < n; c++) sum += (double)s[c];
    for (c = 0; c < n; c++) s[c] = (float)((double)s[c] / sum);
    return 1;
}

/* f(q) of each head of the row: share[g * stride + c]. 0 if a query gives NaN. */
static int santa__route(const santa__job *j, float *share, int64_t stride) {
    const santa_buckets *r = j->p->a.buckets;
    const santa_tensor *from = r->q.data ? &r->q : &j->p->a.q;
    const int64_t d = j->k.dim, buckets = r->num_buckets, units = r->hidden;
    const char *centroids = (const char *)r->centroids + santa__bytes(r->dtype, j->kv_head * buckets * d);
    float *q = SANTA__PART(float, j, route), *hidden = SANTA__PART(float, j, hidden);
    char *packed = SANTA__PART(char, j, route_packed), *packed_hidden = SANTA__PART(char, j, hidden_packed);
    const float scale = (r->key_norm > 0.0f ? r->key_norm : 1.0f) * santa__sm_scale(&j->p->a);
    int64_t g, i;
    int ok = 1;
    for (g = 0; g < j->group; g++) {
        santa__load_query(j, from, g, q);
        for (i = 0; i < d && units == 0; i++) q[i] *= scale;
        santa__pack(q, d, j->group, packed + g * SANTA__PACKED);
    }
    if (units == 0) {
        santa__multiply(j->kernel, r->dtype, centroids, buckets, d, packed, j->group, share, stride);
    } else {
        const char *w1 = (const char *)r->w1 + santa__bytes(r->dtype, j->kv_head * units * d);
        const char *w2 = (const char *)r->w2 + santa__bytes(r->dtype, j->kv_head * buckets * units);
        const float *b1 = r->b1 + j->kv_head * units, *b2 = r->b2 + j->kv_head * buckets;
        santa__multiply(j->kernel, r->dtype, w1, units, d, packed, j->group, hidden, units);
        for (g = 0; g < j->group; g++) {
            float *h = hidden + g * units;
            for (i = 0; i < units; i++) {
                h[i] += b1[i];
                ok &= !santa__not_finite(h[i]);  /* here: with -Ofast a NaN is not less than 0, nor more */
                if (h[i] < 0.0f) h[i] = 0.0f;
            }
            santa__pack(h, units, j->group, packed_hidden + g * SANTA__PACKED);
        }
        santa__multiply(j->kernel, r->dtype, w2, buckets, units, packed_hidden, j->group, share, stride);
        for (g = 0; g < j->group; g++) for (i = 0; i < buckets; i++) share[g * stride + i] += b2[i];
    }
    for (g = 0; g < j->group; g++) ok &= santa__softmax(j->kernel, share + g * stride, buckets);
    return ok;
}

/* The first of n ascending keys that is at least `key`. */
static int64_t santa__lower_bound(const int32_t *x, int64_t n, int64_t key) {
    int64_t from = 0;
    while (from < n) {
        const int64_t middle = from + (n - from) / 2;
        if (x[middle] < key) from = middle + 1;
        else n = middle;
    }
    return from;
}

/* The far keys of each bucket; how many in all. What a stale index says beyond them is not
   used. */
static int64_t santa__find_buckets(const santa__index *x, santa__part_of part, santa__bucket *bucket) {
    int64_t c, all = 0;
    for (c = 0; c < x->buckets; c++) {
        int64_t first = x->offset[c], end = x->offset[c + 1];
        if (first < end && x->key[first] < part.from)
            first += santa__lower_bound(x->key + first, end - first, part.from);
        if (first < end && x->key[end - 1] >= part.to)
            end = first + santa__lower_bound(x->key + first, end - first, part.to);
        bucket[c].first = first;
        bucket[c].count = end - first;
        bucket[c].size = 0.0f;
        bucket[c].use = SANTA__DRAW_FROM;
        all += end - first;
    }
    return all;
}

/* ------------------------------------------------------------ >>routed */

/* SANTA_SAAP: keys that a router picks by bucket, see >>saap. */

/* From one head's shares to the next one's: whole blocks, see santa__softmax. */
static int64_t santa__share_stride(const santa__job *j) {
    return (j->p->a.buckets->num_buckets + SANTA_BLOCK - 1) / SANTA_BLOCK * SANTA_BLOCK;
}

/* The num_probes buckets of the largest sum of shares over the group, and their use; the sums
   go behind the shares. */
static void santa__probe(const santa__job *j, float *share, int64_t stride, santa__bucket *bucket) {
    const int use = santa__is_copied(j->o) ? SANTA__SCORE_BY_COPY : SANTA__READ_WHOLE;
    const int64_t n = j->p->a.buckets->num_buckets;
    float *sum = share + j->group * stride;
    santa__choosing chosen = santa__choosing_from(j->kernel, sum, n, NULL);
    int64_t c, g;
    for (c = 0; c < n; c++) {
        sum[c] = 0.0f;
        for (g = 0; g < j->group; g++) sum[c] += share[g * stride + c];
        if (bucket[c].count == 0) sum[c] = SANTA__MASKED;
    }
    santa__select(&chosen, (double)j->o->saap.num_probes);
    while ((c = santa__next(&chosen)) >= 0) bucket[c].use = use;
}

/* The keys that a copy of K scores, ascending, in blocks of 64 of them. Key of size x has the
   chance lambda (even + rate x), and 1 where bound (even + rate x) is at least that. */
typedef struct santa__scan {
    const santa__mass *mass;                 /* of each head: sizes are the largest of their shares */
    const int32_t *key;
    float *top, *sum;                        /* of the sizes in a block */
    int64_t heads, count;
    double total, even, rate, bound, lambda;
} santa__scan;

static double santa__odds(const santa__scan *x, float size) {
    return x->even + x->rate * (double)size;
}

static double santa__scan_chance(const santa__scan *x, float size) {
    const double odds = santa__odds(x, size);
    return x->bound * odds >= 1.0 ? 1.0 : SANTA__MIN(x->lambda * odds, 1.0);
}

static int santa__keys_of_scan(const santa__scan *x, int64_t b) {
    return (int)SANTA__MIN(x->count - b * SANTA_BLOCK, (int64_t)SANTA_BLOCK);
}

/* Sizes of the keys of all blocks: the largest, their sum. */
static void santa__scan_sizes(santa__scan *x) {
    float size[SANTA_BLOCK];
    int64_t b;
    int i;
    for (b = 0; b < x->mass->blocks; b++) {
        float top[4] = {0.0f};
        x->sum[b] = santa__block_sizes(x->mass, x->heads, b, size);
        x->total += (double)x->sum[b];
        for (i = 0; i < SANTA_BLOCK; i++) top[i % 4] = SANTA__MAX(top[i % 4], size[i]);
        x->top[b] = SANTA__MAX(SANTA__MAX(top[0], top[1]), SANTA__MAX(top[2], top[3]));
    }
}

/* How many keys of a block are sure; what the odds of the others add up to joins *open. */
static int64_t santa__sure_in_block(const santa__scan *x, int64_t b, double *open) {
    const int n = santa__keys_of_scan(x, b);
    float size[SANTA_BLOCK];
    int64_t sure = 0;
    int i;
    if (x->bound * santa__odds(x, x->top[b]) < 1.0) {
        *open += (double)n * x->even + x->rate * (double)x->sum[b];
        return 0;
    }
    santa__block_sizes(x->mass, x->heads, b, size);
    for (i = 0; i < n; i++)
        if (x->bound * santa__odds(x, size[i]) >= 1.0) sure++;
        else *open += santa__odds(x, size[i]);
    return sure;
}

static int64_t santa__num_sure(const santa__scan *x, double *open) {
    int64_t b, sure = 0;
    for (b = 0, *open = 0.0; b < x->mass->blocks; b++) sure += santa__sure_in_block(x, b, open);
    return sure;
}

/* Chances of the keys that are drawn from, which add up to num_samples: bucket[c].size, 1 and
   read whole where they would be more. scan: NULL, or the keys that a copy scores. */
static void santa__chances(const santa__job *j, const float *share, int64_t stride, santa__bucket *bucket,
                           santa__scan *scan) {
    const int64_t n = j->p->a.buckets->num_buckets;
    const double even = j->o->saap.uniform_share;
    double left = (double)j->o->num_samples, lambda, sum, mass = 0.0, keys = 0.0, open = 0.0;
    int64_t c, g, sure = 0;
    int more;
    for (c = 0; c < n; c++) {
        float top = 0.0f;
        for (g = 0; g < j->group; g++) top = SANTA__MAX(top, share[g * stride + c]);
        bucket[c].size = top;
        if (bucket[c].use != SANTA__DRAW_FROM || bucket[c].count == 0) continue;
        mass += (double)top;
        keys += (double)bucket[c].count;
    }
    if (scan) {
        mass += scan->total;
        keys += (double)scan->count;
    }
    if (!(keys > left)) {  /* all of them */
        for (c = 0; c < n; c++) if (bucket[c].count > 0) bucket[c].use = SANTA__READ_WHOLE;
        return;
    }
    for (c = 0; c < n; c++)
        bucket[c].size = bucket[c].count == 0 ? 0.0f
                       : (float)(even / keys + (mass > 0.0 ? (1.0 - even) * (double)bucket[c].size
                                                                 / (mass * (double)bucket[c].count)
                                                           : (1.0 - even) / keys));
    if (scan) {
        scan->even = mass > 0.0 ? even / keys : 1.0 / keys;
        scan->rate = mass > 0.0 ? (1.0 - even) / mass : 0.0;
        santa__num_sure(scan, &open);
    }
    do {
        for (c = 0, sum = 0.0; c < n; c++)
            if (bucket[c].use == SANTA__DRAW_FROM)
                sum += (double)bucket[c].count * (double)bucket[c].size;
        sum += open;
        lambda = sum > 0.0 && left > (double)sure ? (left - (double)sure) / sum : 0.0;
        for (c = 0, more = 0; c < n; c++) {
            if (bucket[c].use != SANTA__DRAW_FROM || bucket[c].count == 0) continue;
            if (lambda * (double)bucket[c].size < 1.0) continue;
            bucket[c].use = SANTA__READ_WHOLE;
            more = 1;
            left -= (double)bucket[c].count;
        }
        if (scan) {
            const int64_t before = sure;
            scan->bound = SANTA__MAX(scan->bound, lambda);
            sure = santa__num_sure(scan, &open);
            more |= sure > before;
        }
    } while (more);
    if (scan) scan->lambda = lambda;
    for (c = 0; c < n; c++)
        bucket[c].size = bucket[c].use == SANTA__DRAW_FROM ? (float)(lambda * (double)bucket[c].size)
                                                           : 1.0f;
}

/* Whether an index that something else wrote to cannot lead out of the cache. */
static int santa__are_far(santa__part_of part, const int32_t *key, int64_t n) {
    int64_t i;
    int all = 1;
    for (i = 0; i < n; i++) all &= key[i] >= part.from && key[i] < part.to;
    return all;
}

/* One comb over the keys that are drawn from. Its next tooth is at tooth + u; the keys that it
   has passed end at begin. */
typedef struct santa__far_comb { double u, begin, tooth; } santa__far_comb;

/* Drawn: a key, and its chance. */
static void santa__add_drawn(int32_t key, float pi, santa__picks *l, float *chance) {
    l->index[l->rows] = key;
    chance[l->rows] = pi;
    l->rows++;
}

/* Those that a copy scores. */
static void santa__draw_scanned(const santa__job *j, const santa__scan *x, santa__far_comb *comb,
                                santa__picks *l, float *chance) {
    float size[SANTA_BLOCK];
    int64_t b;
    for (b = 0; b < x->mass->blocks; b++) {
        const int n = santa__keys_of_scan(x, b);
        double open = 0.0, at = comb->begin, end = at;
        int i;
        end += (double)santa__sure_in_block(x, b, &open);
        end += x->lambda * open;
        if (comb->tooth + comb->u < end) santa__block_sizes(x->mass, x->heads, b, size);
        for (i = 0; i < n && comb->tooth + comb->u < end; i++) {
            const double pi = santa__scan_chance(x, size[i]);
            at += pi;
            if (!(comb->tooth + comb->u < at)) continue;
            comb->tooth += 1.0;
            if (l->rows < j->plan->capacity)
                santa__add_drawn(x->key[b * SANTA_BLOCK + i], (float)pi, l, chance);
        }
        while (comb->tooth + comb->u < end) comb->tooth += 1.0;       /* by rounding */
        comb->begin = end;
    }
}

/* Those of buckets that are not read, bucket by bucket: no key twice, as none has a chance of
   more than the comb's step. */
static void santa__draw_buckets(const santa__job *j, const santa__index *x, const santa__bucket *bucket,
                                santa__far_comb *comb, santa__picks *l, float *chance) {
    const double u = comb->u;
    double begin = comb->begin, tooth = comb->tooth;
    int64_t c, i;
    for (c = 0; c < x->buckets; c++) {
        const double size = (double)bucket[c].size;
        int64_t last = -1;
        if (bucket[c].use != SANTA__DRAW_FROM || bucket[c].count == 0) continue;
        while (tooth + u < begin + size * (double)bucket[c].count) {
            i = SANTA__MAX((int64_t)((tooth + u - begin) / size), last + 1);
            tooth += 1.0;
            if (i >= bucket[c].count || l->rows == j->plan->capacity) continue;    /* by rounding */
            last = i;
            santa__add_drawn(x->key[bucket[c].first + i], bucket[c].size, l, chance);
        }
        begin += size * (double)bucket[c].count;
    }
}

/* Estimate of sqrt(E|out - exact|^2) of each head, as if each drawn key came by itself: (1 -
   pi) of its weight squared times its row's distance to the result, which a sink draws towards
   0. In head[g].square, relative to the state's own m; scores once more, since m is known only
   now. */
SANTA__ONCE
static void santa__routed_errors(const santa__job *j, const santa__picks *l, const float *chance,
                                 santa__copied_head *head) {
    float u[SANTA__SLICE * SANTA_BLOCK], *row = SANTA__PART(float, j, row_a);
    int64_t at, g, h, c;
    int i;
    for (g = 0; g < j->group; g++) head[g].square = 0.0;
    for (at = 0; at < l->rows; at += SANTA_BLOCK) {
        const santa__keys keys = santa__keys_from(l->index + at, 0, l->rows - at);
        const int n = (int)SANTA__MIN(l->rows - at, (int64_t)SANTA_BLOCK);
        for (g = 0; g < j->group; g += SANTA__SLICE) {
            const int64_t few = SANTA__MIN(j->group - g, (int64_t)SANTA__SLICE);
            santa__score(j, keys, n, g, few, u, SANTA_BLOCK);
            for (i = 0; i < n; i++) {
                santa__load_row(&j->v, j->kernel, keys.index[i], row);
                for (h = 0; h < few; h++) {
                    santa__copied_head *x = &head[g + h];
                    const double pi = (double)chance[at + i];
                    const double w = exp((double)u[h * SANTA_BLOCK + i] - (double)x->state.m) / pi;
                    const double unit = x->scale / (double)j->p->v_scale;
                    double dist = 0.0;
                    for (c = 0; c < j->v.dim; c++) {
                        const double to = (double)row[c] - (double)x->state.n[c] * unit;
                        dist += to * to;
                    }
                    x->square += (1.0 - pi) * w * w * dist;
                }
            }
        }
    }
}

/* Share of each head's softmax in the keys that were read. */
static void santa__measure_mass(const santa__job *j, const santa__routed *routed, const santa__picks *l,
                                santa__tally *tally) {
    const santa__range *r = &j->range[0];
    const int32_t *key = SANTA__PART(int32_t, j, visit);
    uint64_t *seen = SANTA__PART(uint64_t, j, seen);
    float *u = j->scores, max[SANTA__SLICE], sum[SANTA__SLICE];
    int64_t at, g, h, i, n;
    memset(seen, 0, (size_t)j->plan->words * sizeof *seen);
    for (i = 0; i < routed->fixed + routed->whole; i++) santa__set_bit(seen, key[i] - r->begin);
    for (i = 0; i < l->rows; i++) santa__set_bit(seen, l->index[i] - r->begin);
    for (g = 0; g < j->group; g += SANTA__SLICE) {
        const int64_t few = SANTA__MIN(j->group - g, (int64_t)SANTA__SLICE);
        double all[SANTA__SLICE] = {0.0}, read[SANTA__SLICE] = {0.0};
        float top[SANTA__SLICE], keep, add;
        for (h = 0; h < few; h++) top[h] = SANTA__MASKED;
        for (at = r->begin; at < r->end; at += n) {
            n = SANTA__MIN(r->end - at, (int64_t)SANTA_BLOCK);
            santa__score(j, santa__keys_from(NULL, at, r->end - at), (int)n, g, few, u, SANTA_BLOCK);
            for (h = 0; h < few; h++)
                for (i = n; i < SANTA_BLOCK; i++) u[h * SANTA_BLOCK + i] = SANTA__MASKED;
            j->kernel->mass(u, SANTA_BLOCK, few, SANTA_BLOCK, max, sum, 1);
            for (h = 0; h < few; h++) {
                if (santa__is_nan(sum[h])) { all[h] = -1.0; continue; }
                if (max[h] < SANTA__MASK_LIMIT || all[h] < 0.0) continue;
                santa__join_max(&top[h], max[h], &keep, &add);
                all[h] = all[h] * (double)keep + (double)sum[h] * (double)add;
                read[h] *= (double)keep;
                for (i = 0; i < n; i++)
                    if (santa__has_bit(seen, at + i - r->begin))
                        read[h] += (double)u[h * SANTA_BLOCK + i] * (double)add;
            }
        }
        for (h = 0; h < few; h++) {
            if (!(all[h] > 0.0)) continue;
            tally->heads++;
            tally->covered += (int64_t)(SANTA__MIN(read[h] / all[h], 1.0) * 1e6);
        }
    }
}

/* How unequal the far keys' buckets are, and the largest one read. */
static void santa__count_buckets(const santa__job *j, const santa__bucket *bucket, int64_t num_far,
                                 santa__tally *tally) {
    const int64_t n = j->p->a.buckets->num_buckets;
    double squares = 0.0;
    int64_t c, largest = 0;
    if (num_far == 0) return;
    for (c = 0; c < n; c++) {
        squares += (double)bucket[c].count * (double)bucket[c].count;
        if (bucket[c].use == SANTA__READ_WHOLE) largest = SANTA__MAX(largest, bucket[c].count);
    }
    tally->rows++;
    tally->imbalance += (int64_t)((double)n * squares / ((double)num_far * (double)num_far) * 1e6);
    tally->largest += (int64_t)((double)largest / (double)num_far * 1e6);
}

/* The keys that the row leaves to the router; those before and behind are read exactly. */
static santa__part_of santa__far_keys(const santa__job *j, const santa__index *x) {
    const santa_saap_options *o = &j->o->saap;
    const santa__range *r = &j->range[0];
    santa__part_of part;
    int64_t to = r->end - SANTA__MIN(o->local_tokens, r->end);
    to = SANTA__MIN(to, (int64_t)x->header[SANTA__I_SORTED]);
    if (santa__is_copied(j->o) && j->p->a.proxy_lens)
        to = SANTA__MIN(to, (int64_t)j->p->a.proxy_lens[j->batch]);
    to = to / SANTA_BLOCK * SANTA_BLOCK;
    part.from = r->begin + SANTA__MIN(o->sink_tokens, r->end - r->begin);
    part.to = SANTA__MAX(to, part.from);
    return part;
}

/* Keys of the buckets that are read whole, bucket by bucket; how many. */
static int64_t santa__visit(const santa__index *x, const santa__bucket *bucket, int32_t *key) {
    int64_t c, n = 0;
    for (c = 0; c < x->buckets; c++) {
        if (bucket[c].use != SANTA__READ_WHOLE) continue;
        memcpy(key + n, x->key + bucket[c].first, (size_t)bucket[c].count * sizeof *key);
        n += bucket[c].count;
    }
    return n;
}

static void santa__finish_routed(const santa__job *j, const santa__picks *l, int64_t left,
                                 santa__copied_head *head) {
    float *acc = SANTA__PART(float, j, acc), *chance = SANTA__PART(float, j, chance);
    const int has_error = j->p->a.std_error != NULL;
    int64_t g, c;
    for (g = 0; g < j->group; g++)
        head[g].scale = santa__normalise(j, g, head[g].state.m, head[g].state.d, &head[g].lse);
    if (has_error && l->rows >= 2) santa__routed_errors(j, l, chance, head);
    for (g = 0; g < j->group; g++) {
        santa__copied_head *x = &head[g];
        float error = 0.0f;
        if (x->state.bad) { santa__write(j, g, NULL, 0.0f, 0.0f); continue; }
        for (c = 0; c < j->v.dim; c++)
            acc[c] = x->state.d > 0.0 ? (float)((double)x->state.n[c] * x->scale) : 0.0f;
        if (has_error && left > 0 && x->state.d > 0.0)
            error = l->rows < 2 ? santa__inf() : (float)(sqrt(x->square) * x->scale);
        santa__write(j, g, acc, x->lse, error);
    }
}

static santa__index santa__index_of_job(const santa__job *j) {
    return santa__index_of(&j->p->a, santa__slot_of(&j->p->a, j->batch), j->kv_head);
}

/* The row's far keys by bucket, and the buckets that the router chooses. */
static void santa__route_far(santa__job *j, const santa__index *x) {
    const int64_t stride = santa__share_stride(j);
    santa__bucket *bucket = SANTA__PART(santa__bucket, j, spans);
    santa__routed *r = SANTA__PART(santa__routed, j, routed);
    float *share = SANTA__PART(float, j, shares);
    r->copied = 0;
    r->part = santa__far_keys(j, x);
    r->num_far = santa__find_buckets(x, r->part, bucket);
    r->is_bad = r->num_far != r->part.to - r->part.from
                || (r->num_far > 0 && !santa__route(j, share, stride));
    if (r->is_bad) r->num_far = 0;
    if (r->num_far > 0 && j->o->saap.num_probes > 0) santa__probe(j, share, stride, bucket);
}

static void santa__fail_route(santa__routed *r) {
    r->is_bad = 1;
    r->num_far = r->whole = r->drawn = r->copied = 0;
}

/* Which keys the row reads: those that are not far, those of whole buckets behind them, and the
   drawn ones. */
static void santa__choose_far(santa__job *j, const santa__index *x, santa__scan *scan) {
    const int64_t stride = santa__share_stride(j);
    santa__bucket *bucket = SANTA__PART(santa__bucket, j, spans);
    santa__routed *r = SANTA__PART(santa__routed, j, routed);
    float *chance = SANTA__PART(float, j, chance);
    int32_t *key = SANTA__PART(int32_t, j, visit);
    santa__picks l;
    memset(&l, 0, sizeof l);
    l.index = SANTA__PART(int32_t, j, index);
    if (r->num_far > 0 && j->o->num_samples != SANTA_NONE) {
        santa__rng rng = santa__job_rng(j, SANTA__STREAM_DRAWS, 0);
        santa__far_comb comb = {0.0, 0.0, 0.0};
        comb.u = santa__rng_uniform(&rng, 0);
        santa__chances(j, SANTA__PART(float, j, shares), stride, bucket, scan);
        if (scan && scan->bound > 0.0) santa__draw_scanned(j, scan, &comb, &l, chance);
        santa__draw_buckets(j, x, bucket, &comb, &l, chance);
    }
    r->drawn = l.rows;
    r->fixed = santa__list_range(key, 0, j->range[0].begin, r->part.from);
    r->fixed = santa__list_range(key, r->fixed, r->part.to, j->range[0].end);
    r->whole = r->num_far > 0 ? santa__visit(x, bucket, key + r->fixed) : 0;
    if (!santa__are_far(r->part, key + r->fixed, r->whole) || !santa__are_far(r->part, l.index, l.rows))
        santa__fail_route(r);
    santa__states_begin(j, 0);
}

static void santa__route_row(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__index x = santa__index_of_job(j);
    (void)span; (void)from; (void)to;
    santa__route_far(j, &x);
    santa__choose_far(j, &x, NULL);
}

/* Threads that share a job find its chunks among as many as there may be. */
SANTA__ONCE
static int64_t santa__num_visits(const santa__job *j) {
    const santa__routed *r = SANTA__PART(santa__routed, j, routed);
    const int64_t keys = r->fixed + r->whole;
    return j->is_shared ? j->plan->chunks : (keys + santa__chunk(keys) - 1) / santa__chunk(keys);
}

static void santa__add_chunk(const santa__job *j, int64_t state) {
    int64_t g;
    for (g = 0; g < j->group; g++)
        santa__state_add(&santa__states(j, 0)[g], &santa__states(j, state)[g], j->v.dim);
}

/* The keys that are read for sure, in chunks as in >>dense. */
static void santa__attend_visited(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__routed *r = SANTA__PART(santa__routed, j, routed);
    const int64_t keys = r->fixed + r->whole, chunk = santa__chunk(keys);
    int64_t c;
    (void)span;
    for (c = from; c < to && c * chunk < keys; c++) {
        const int64_t state = j->is_shared ? 1 + c : 1;
        santa__states_begin(j, state);
        santa__attend_keys(j, 0, SANTA__PART(int32_t, j, visit) + c * chunk, 0,
                           SANTA__MIN(chunk, keys - c * chunk), santa__states(j, state),
                           sizeof(santa__state), SANTA__NO_MOMENTS);
        if (!j->is_shared) santa__add_chunk(j, 1);
    }
}

SANTA__ONCE
static void santa__end_routed(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__routed *r = SANTA__PART(santa__routed, j, routed);
    const int64_t keys = r->fixed + r->whole, buckets = j->p->a.buckets->num_buckets;
    const santa__bucket *bucket = SANTA__PART(santa__bucket, j, spans);
    santa__copied_head *head = SANTA__PART(santa__copied_head, j, heads);
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    santa__tally *tally = SANTA__PART(santa__tally, j, tally);
    santa__picks l;
    int64_t g, c;
    (void)span; (void)from; (void)to;
    for (c = 0; j->is_shared && c * santa__chunk(keys) < keys; c++) santa__add_chunk(j, 1 + c);
    memset(&l, 0, sizeof l);
    l.rows = r->drawn;
    l.index = SANTA__PART(int32_t, j, index);
    l.weight = SANTA__PART(float, j, weight);
    memset(l.weight, 0, (size_t)(j->group * j->plan->capacity) * sizeof *l.weight);
    memset(head, 0, (size_t)j->group * sizeof *head);
    for (g = 0; g < j->group; g++) {
        head[g].state = santa__states(j, 0)[g];
        head[g].state.bad |= r->is_bad;
        memset(&mass[g], 0, sizeof mass[g]);
        mass[g].m = head[g].state.m;
        mass[g].total = 1.0;
        mass[g].chance = SANTA__PART(float, j, chance);
    }
    santa__attend_drawn(j, 0, j->group, mass, &l, head);
    santa__finish_routed(j, &l, r->num_far - r->whole, head);
    santa__count_buckets(j, bucket, r->num_far, tally);
    if (j->o->saap.measure_mass) santa__measure_mass(j, r, &l, tally);
    for (c = 0; c < buckets && r->num_far > 0; c++)
        j->stats->visited_buckets += bucket[c].use == SANTA__READ_WHOLE;
    j->stats->proxy_rows_read += r->copied;
    j->stats->far_rows += r->part.to - r->part.from;
    j->stats->visited_rows += r->whole + r->drawn;
    j->stats->k_rows_read += keys + r->drawn;
    j->stats->v_rows_read += keys + r->drawn;
    j->stats->v_rows_head += (keys + r->drawn) * j->group;
    j->stats->draws += r->drawn;
}

/* Where the keys are that a copy of K scores: behind all that the row may read besides. */
static int32_t *santa__scanned_keys(const santa__job *j) {
    return SANTA__PART(int32_t, j, visit) + j->plan->n - SANTA__PART(santa__routed, j, routed)->copied;
}

/* The same with a copy of K, which scores the keys of the buckets that the router chooses:
   first which keys these are, .. */
static void santa__route_scan(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__index x = santa__index_of_job(j);
    const santa__bucket *bucket = SANTA__PART(santa__bucket, j, spans);
    santa__routed *r = SANTA__PART(santa__routed, j, routed);
    uint64_t *seen = SANTA__PART(uint64_t, j, chosen);
    const int64_t first = j->range[0].begin / SANTA_BLOCK * SANTA_BLOCK;
    int32_t *list;
    int64_t c, i, w, all = 0;
    (void)span; (void)from; (void)to;
    santa__route_far(j, &x);
    memset(seen, 0, (size_t)j->plan->words * sizeof *seen);
    for (c = 0; c < x.buckets && !r->is_bad; c++) {
        const int32_t *key = x.key + bucket[c].first;
        if (bucket[c].use != SANTA__SCORE_BY_COPY) continue;
        all += bucket[c].count;
        if (!santa__are_far(r->part, key, bucket[c].count)) { santa__fail_route(r); return; }
        for (i = 0; i < bucket[c].count; i++) r->copied += santa__set_bit(seen, key[i] - first);
    }
    if (r->copied != all) santa__fail_route(r);
    list = santa__scanned_keys(j);
    for (w = 0, i = 0; i < r->copied; w++) i = santa__list_word(list, i, first + w * 64, seen[w]);
}

/* Blocks of them; threads that share a job find its own among as many as there may be. */
static int64_t santa__num_scanned(const santa__job *j) {
    const int64_t keys = SANTA__PART(santa__routed, j, routed)->copied;
    return ((j->is_shared ? j->plan->n : keys) + SANTA_BLOCK - 1) / SANTA_BLOCK;
}

/* Keys of one block of a copy as a block of its own, of 16 .. 64 of them. */
static santa__format santa__pick_codes(const char *block, const santa__format *f, const int32_t *key,
                                       int count, char *to) {
    santa__format few = *f;
    int64_t c;
    int n;
    few.keys = (count + 15) / 16 * 16;
    few.gains = 16 * few.keys * f->chunks;
    few.centre = few.gains + f->centre - f->gains;
    few.scale = few.gains + f->scale - f->gains;
    few.bytes = 0;                           /* no block behind this one */
    memset(to + few.gains, 0, (size_t)(2 * few.keys));
    memcpy(to + few.centre, block + f->centre, (size_t)(f->scale + 4 - f->centre));
    for (n = 0; n < few.keys; n++) {         /* what fills the last 16 is one of them */
        const int64_t i = key[SANTA__MIN(n, count - 1)] % f->keys;
        for (c = 0; c < f->chunks; c++)
            memcpy(to + 16 * (c * few.keys + n), block + 16 * (c * f->keys + i), 16);
        if (n < count) memcpy(to + few.gains + 2 * n, block + f->gains + 2 * i, 2);
    }
    return few;
}

/* Scores of `count` keys of one of the copy's blocks, the queries' score_stride apart. */
static void santa__scan_codes(const santa__job *j, const int32_t *key, int count, float *s) {
    const santa__format *f = &j->plan->format;
    const char *block = santa__proxy_block(&j->p->a, f, j->batch, j->kv_head, key[0]);
    char memory[(SANTA__PROXY_DIM / 2 + 2) * SANTA_BLOCK + SANTA__PROXY_DIM + 128];
    char *picked = santa__align(memory);
    float score[SANTA__SLICE * SANTA_BLOCK], squares[SANTA_BLOCK];
    const santa__format few = santa__pick_codes(block, f, key, count, picked);
    const int64_t stride = j->plan->score_stride;
    int64_t g, h;
    for (g = 0; g < j->group; g += SANTA__SLICE) {
        const santa__copied x = santa__copied_of(j, g, SANTA__MIN(j->group - g, (int64_t)SANTA__SLICE),
                                                 score, SANTA_BLOCK, squares);
        j->kernel->copied(picked, &few, &x);
        for (h = 0; h < x.group; h++)
            memcpy(s + (g + h) * stride, score + h * SANTA_BLOCK, (size_t)count * sizeof *s);
        santa__score_extras(j, santa__keys_from(key, 0, count), count, g, x.group, s + g * stride, stride);
    }
}

/* Sends for the copy's block `ahead` blocks behind that of key j, all of it: lines one after
   another come four times as fast as single ones. Not where few of them are needed. */
static void santa__send_block(const santa__job *j, int64_t key, int64_t ahead) {
    const santa__format *f = &j->plan->format;
    const santa__routed *r = SANTA__PART(santa__routed, j, routed);
    const int64_t next = (key / f->keys + ahead) * f->keys;
    const char *block;
    int64_t i;
    if (next + f->keys > r->part.to || r->copied < r->num_far / 16) return;
    block = santa__proxy_block(&j->p->a, f, j->batch, j->kv_head, next);
    for (i = 0; i < f->bytes; i += 64) SANTA__PREFETCH(block + i);
    SANTA__KEEP_ORDER();                     /* or gcc takes out a call that only prefetches */
}

/* .. then their scores and masses, 64 keys at a time, .. */
static void santa__scan_blocks(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__format *f = &j->plan->format;
    const int32_t *key = santa__scanned_keys(j);
    const int64_t all = SANTA__PART(santa__routed, j, routed)->copied, stride = j->plan->score_stride,
                  blocks = j->plan->blocks;
    int64_t b, g, i, k;
    (void)span;
    for (b = from; b < to && b * SANTA_BLOCK < all; b++) {
        const int64_t end = SANTA__MIN((b + 1) * SANTA_BLOCK, all);
        float *s = j->scores + b * SANTA_BLOCK;
        for (i = b * SANTA_BLOCK; i < end; i = k) {
            for (k = i + 1; k < end && key[k] / f->keys == key[i] / f->keys;) k++;
            if (i == 0 || key[i - 1] / f->keys != key[i] / f->keys) santa__send_block(j, key[i], 2);
            santa__scan_codes(j, key + i, (int)(k - i), s + i % SANTA_BLOCK);
        }
        for (g = 0; g < j->group; g++)
            for (i = end; i < (b + 1) * SANTA_BLOCK; i++) s[g * stride + i % SANTA_BLOCK] = SANTA__MASKED;
        j->kernel->mass(s, stride, j->group, SANTA_BLOCK, SANTA__PART(float, j, block_max) + b,
                        SANTA__PART(float, j, block_sum) + b, blocks);
    }
}

/* A head's masses in units of the share that the router gives these buckets. Returns 1 where
   the copy has no number. */
static int santa__scan_mass(const santa__job *j, int64_t g, int64_t blocks, santa__mass *m) {
    const santa__bucket *bucket = SANTA__PART(santa__bucket, j, spans);
    const int64_t buckets = j->p->a.buckets->num_buckets;
    const float *share = SANTA__PART(float, j, shares) + g * santa__share_stride(j);
    double routed = 0.0;
    int64_t c;
    *m = santa__mass_of(j, g);
    m->u = j->scores + g * j->plan->score_stride;
    m->unit = SANTA__PART(float, j, units) + g * j->plan->blocks;
    m->blocks = blocks;
    for (c = 0; c < buckets; c++)
        if (bucket[c].use == SANTA__SCORE_BY_COPY) routed += (double)share[c];
    if (santa__prefix(m)) return 1;
    m->rest = routed > 1e-30 ? m->total * (1.0 / routed - 1.0) : 1e300;
    santa__mass_units(m, 0);
    return 0;
}

/* .. and what is drawn by them, with all that is read. Where the copy has no number all is. */
static void santa__end_scan(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__index x = santa__index_of_job(j);
    santa__bucket *bucket = SANTA__PART(santa__bucket, j, spans);
    santa__mass *mass = SANTA__PART(santa__mass, j, masses);
    const int64_t copied = SANTA__PART(santa__routed, j, routed)->copied,
                  blocks = (copied + SANTA_BLOCK - 1) / SANTA_BLOCK;
    santa__scan scan;
    int64_t g, c;
    int bad = 0;
    memset(&scan, 0, sizeof scan);
    scan.mass = mass;
    scan.key = santa__scanned_keys(j);
    scan.count = copied;
    scan.heads = j->group;
    for (g = 0; g < j->group && blocks > 0; g++) bad |= santa__scan_mass(j, g, blocks, &mass[g]);
    scan.top = SANTA__PART(float, j, block_max);     /* the masses need their own no more */
    scan.sum = SANTA__PART(float, j, block_sum);
    if (blocks > 0 && !bad) santa__scan_sizes(&scan);
    for (c = 0; bad && c < x.buckets; c++) if (bucket[c].count > 0) bucket[c].use = SANTA__READ_WHOLE;
    if (bad) j->stats->redone_rows += j->group;
    santa__choose_far(j, &x, blocks > 0 && !bad ? &scan : NULL);
    santa__attend_visited(j, span, 0, santa__num_visits(j));
    santa__end_routed(j, span, from, to);
}

/* ------------------------------------------------------------ >>listed */

/* A caller's own keys, see >>lists: those of the list that the row sees, with logs of
   weights. */
SANTA__ONCE
static void santa__list_keys(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa_attention *a = &j->p->a;
    const int64_t list = santa__key_list_of(a, j->batch, j->q_index, j->kv_head),
                  n = santa__key_list_len(a, list);
    const int32_t *entry = a->key_list + list * a->key_list_stride;
    const float *weight = a->key_weights ? a->key_weights + list * a->key_list_stride : NULL;
    int32_t *key = SANTA__PART(int32_t, j, listed);
    float *bias = SANTA__PART(float, j, log_weights);
    int64_t i, count = 0;
    (void)span; (void)from; (void)to;
    for (i = 0; i < n; i++) {
        if (!santa__is_seen(&j->range[0], entry[i])) continue;
        if (weight && !(weight[i] > 0.0f)) continue;
        key[count] = entry[i];
        bias[count++] = weight ? (float)log((double)weight[i]) : 0.0f;
    }
    *SANTA__PART(int64_t, j, num_listed) = count;
    santa__states_begin(j, 0);
}

static int64_t santa__num_listed(const santa__job *j) {
    const int64_t keys = *SANTA__PART(int64_t, j, num_listed);
    return j->is_shared ? j->plan->chunks : (keys + santa__chunk(keys) - 1) / santa__chunk(keys);
}

/* In chunks as in >>dense. */
static void santa__attend_listed(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const int64_t keys = *SANTA__PART(int64_t, j, num_listed), chunk = santa__chunk(keys);
    int64_t c;
    (void)span;
    for (c = from; c < to && c * chunk < keys; c++) {
        const int64_t state = j->is_shared ? 1 + c : 1;
        santa__states_begin(j, state);
        santa__attend_raised(j, 0, SANTA__PART(int32_t, j, listed) + c * chunk,
                             j->p->a.key_weights ? SANTA__PART(float, j, log_weights) + c * chunk : NULL, 0,
                             SANTA__MIN(chunk, keys - c * chunk), santa__states(j, state),
                             sizeof(santa__state), SANTA__NO_MOMENTS);
        if (!j->is_shared) santa__add_chunk(j, 1);
    }
}

static void santa__end_listed(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const int64_t keys = *SANTA__PART(int64_t, j, num_listed);
    int64_t c;
    (void)span; (void)from; (void)to;
    for (c = 0; j->is_shared && c * santa__chunk(keys) < keys; c++) santa__add_chunk(j, 1 + c);
    santa__write_states(j);
    j->stats->v_rows_head += keys * j->group;
    j->stats->k_rows_read += keys;
    j->stats->v_rows_read += keys;
}

/* ------------------------------------------------------------ >>methods-code */

static const santa__phase santa__phases_dense[SANTA__PHASES] = {
    { santa__num_chunks, santa__dense_chunks, 1 }, { santa__one_piece, santa__dense_end, 0 }
};
static const santa__phase santa__phases_sampled[SANTA__PHASES] = {
    { santa__num_blocks, santa__score_blocks, 1 }, { santa__one_piece, santa__pick_and_gather, 0 }
};
static const santa__phase santa__phases_vattention[SANTA__PHASES] = {
    { santa__one_piece, santa__vattention, 0 }, { NULL, NULL, 0 }
};
static const santa__phase santa__phases_sizes[SANTA__PHASES] = {
    { santa__num_blocks, santa__score_blocks, 1 }, { santa__one_piece, santa__draw_and_gather, 0 }
};
static const santa__phase santa__phases_copied[SANTA__PHASES] = {
    { santa__num_copied, santa__copied_blocks, 0 }, { santa__one_piece, santa__copied_rows, 0 }
};
static const santa__phase santa__phases_routed[SANTA__PHASES] = {
    { santa__one_piece, santa__route_row, 0 }, { santa__num_visits, santa__attend_visited, 0 },
    { santa__one_piece, santa__end_routed, 0 }
};
static const santa__phase santa__phases_scanned[SANTA__PHASES] = {
    { santa__one_piece, santa__route_scan, 0 }, { santa__num_scanned, santa__scan_blocks, 0 },
    { santa__one_piece, santa__end_scan, 0 }
};
static const santa__phase santa__phases_listed[SANTA__PHASES] = {
    { santa__one_piece, santa__list_keys, 0 }, { santa__num_listed, santa__attend_listed, 0 },
    { santa__one_piece, santa__end_listed, 0 }
};
#define santa__draw_none NULL

static const santa__method santa__methods[SANTA_METHOD_COUNT] = {
#define SANTA__X(method, name, traits, capacity, needs, draw, phases) \
    { santa__capacity_##capacity, santa__needs_##needs, santa__draw_##draw, santa__phases_##phases },
    SANTA_METHOD_LIST(SANTA__X)
#undef SANTA__X
};

/* Of the methods that draw from a copy of K. vAttention only predicts by it. */
static int64_t santa__capacity_copied(const santa_options *o, int64_t n) {
    return santa__is_top(o) ? santa__methods[o->method].capacity(o, n) : santa__capacity_sizes(o, n);
}
static const santa__method santa__method_copied = {
    santa__capacity_copied, santa__needs_copied, NULL, santa__phases_copied
};

/* Of SANTA_SAAP with one. */
static const santa__method santa__method_scanned = {
    santa__capacity_none, santa__needs_routed, NULL, santa__phases_scanned
};

/* Dense, over lists of keys. */
static const santa__method santa__method_listed = {
    santa__capacity_none, santa__needs_listed, NULL, santa__phases_listed
};

static const santa__method *santa__method_of(const santa_options *o, int is_listed) {
    if (is_listed) return &santa__method_listed;
    if (santa__is_copied(o) && santa__has_traits(o, SANTA_ROUTES)) return &santa__method_scanned;
    return santa__is_copied(o) && !santa__has_traits(o, SANTA_ADAPTS) ? &santa__method_copied
                                                                      : &santa__methods[o->method];
}

/* format: NULL without a copy of K; router: without buckets. */
SANTA__ONCE
static void santa__plan_make(santa__plan *p, const santa_options *o, int64_t group, int64_t rows, int64_t n,
                             int64_t d, int64_t dv, int64_t chunks, const santa__format *format,
                             const santa_buckets *router, int is_listed) {
    const santa__method *method = santa__method_of(o, is_listed);
    santa__plan_begin(p, o, group, rows, n, d, dv, chunks, format, router);
    p->capacity = method->capacity(o, n);
    /* given scores, every method works as those that draw from masses do */
    if (d > 0 || santa__has_traits(o, SANTA_SHARES_ROWS)) method->needs(p);
    else santa__needs_masses(p);
    p->row_a = santa__part(p, SANTA__MAX(d, dv), 4);
    p->row_b = santa__part(p, dv, 4);
    p->acc = santa__part(p, dv, 4);
}

/* The plan of santa_scores where a call's is that of >>prefill: one row's. */
static void santa__plan_row(santa__plan *p, const santa_problem *x) {
    santa__plan_make(p, &x->o, x->group, 1, x->capacity, x->head_dim, x->head_dim_v, 0, NULL, NULL, 0);
}

static santa_status santa__plan_end(const santa_problem *p, uint64_t *total) {
    if (santa__has_ranks(&p->o))
        *total = santa__add(santa__add(*total, 63) / 64 * 64, santa__meeting_of(p).total);
    *total = santa__add(*total, 63);       /* the caller's pointer need not be aligned */
    return *total > (uint64_t)PTRDIFF_MAX ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

/* The plan of a call, and the bytes of its workspace; anything past size_t is refused. */
static santa_status santa__plan_call(santa__plan *plan, const santa_problem *p, uint64_t *total) {
    const int64_t rows = santa__rows_together(p), window = p->a.window;
    int64_t n = p->capacity, chunks = 0, span;
    santa__format format;
    const int is_copied = santa__is_copied(&p->o) && santa__format_make(&p->a, &format) == SANTA_OK;
    if (window > 0 && p->a.first_tokens == 0) {  /* not causal: row 0 sees the later rows' keys as well */
        const int64_t more = p->a.causal ? rows - 1 : p->q_len - 1;
        if (window < n - more) n = window + more;
    }
    if (santa__is_listed(p)) n = p->a.max_list;
    if (santa__is_prefill(p)) {
        santa__plan row;
        const uint64_t dims = santa__add((uint64_t)p->head_dim, (uint64_t)p->head_dim_v),
                       sizes = santa__add((uint64_t)p->capacity, dims);
        if (santa__mul((uint64_t)p->group, sizes) > ((uint64_t)1 << 50))
            return SANTA_ERR_OVERFLOW;
        santa__plan_row(&row, p);
        santa__plan_prefill(plan, p);
        *total = santa__add(santa__mul(plan->total, (uint64_t)p->o.num_threads), santa__set_bytes(p));
        *total = SANTA__MAX(*total, row.total);
        return santa__plan_end(p, total);
    }
    /* the signed products of the plan stay far below 2^63 */
    if (santa__mul((uint64_t)(rows * p->group),
                   santa__add(santa__add((uint64_t)n, (uint64_t)p->head_dim), (uint64_t)p->head_dim_v))
        > ((uint64_t)1 << 56))
        return SANTA_ERR_OVERFLOW;
    if (santa__is_team(p, n))  /* keys may begin within a chunk, a window's for another row in the next */
        chunks = SANTA__MIN((n - 1) / SANTA__CHUNK + 1, (int64_t)SANTA__CHUNKS)
                 + (window > 0 || p->a.kv_start)
                 + (window > 0 && rows > 1);
    santa__plan_make(plan, &p->o, p->group, rows, n, p->head_dim, p->head_dim_v, chunks,
                     is_copied ? &format : NULL,
                     santa__has_traits(&p->o, SANTA_ROUTES) ? p->a.buckets : NULL, santa__is_listed(p));
    span = santa__span(p, plan);
    *total = santa__mul(plan->total, (uint64_t)santa__num_works(p, plan, span));
    *total = santa__add(*total, santa__mul(plan->thread_scores, (uint64_t)(p->o.num_threads * span)));
    return santa__plan_end(p, total);
}

/* ------------------------------------------------------------ >>run */

/* What threads take in pieces, see santa__take. */
typedef struct santa__work { int64_t pieces, threads; int next; } santa__work;

typedef struct santa__call {
    santa_problem p;
    santa__plan plan;
    uint64_t bytes;       /* of workspace */
    char *work, *meeting; /* the workspaces; santa__meeting */
    float *sure;          /* see santa__job */
    double *errors;
    int64_t span, works;  /* see santa__span, santa__num_works */
    santa__work pieces;   /* that threads take */
} santa__call;

/* All that does not depend on data. */
SANTA__ONCE
static santa_status santa__call_make(santa__call *call, const santa_attention *a, const santa_options *o) {
    const santa_status s = santa_problem_make(a, o, &call->p);
    const santa_backend *backend;
    if (s != SANTA_OK) return s;
    call->meeting = NULL;
    call->sure = NULL;
    call->errors = NULL;
    if (a->q.device == SANTA_CPU) return santa__plan_call(&call->plan, &call->p, &call->bytes);
    backend = santa__backends[a->q.device];
    return backend ? backend->check(&call->p) : SANTA_ERR_NO_BACKEND;
}

SANTADEF santa_status santa_mask_shape(const santa_attention *a, const santa_options *o, int64_t *q_blocks,
                                       int64_t *k_blocks) {
    static const uint8_t any = 0;
    santa_options with;
    santa_problem p;
    santa_status s;
    if (!o || !q_blocks || !k_blocks) return SANTA_ERR_NULL_ARGUMENT;
    with = *o;
    /* the shape is asked for before there is a mask, without which not every call is one */
    if (a && (santa_method_traits(o->method) & SANTA_SPARSE) && (!a->causal || a->context_lens))
        with.sample_attention.mask = &any;
    if ((s = santa_problem_make(a, &with, &p)) != SANTA_OK) return s;
    *q_blocks = santa__q_blocks(p.q_len, p.o.sample_attention.block_size);
    *k_blocks = santa__mask_blocks(&p);
    return SANTA_OK;
}

SANTADEF santa_status santa_check(const santa_attention *a, const santa_options *o) {
    santa__call call;
    const santa_status s = santa__call_make(&call, a, o);
    return s != SANTA_OK ? s : santa__check_contents(a, o);
}

SANTADEF size_t santa_workspace_size(const santa_attention *a, const santa_options *o) {
    santa__call call;
    if (santa__call_make(&call, a, o) != SANTA_OK) return 0;
    return a->q.device == SANTA_CPU ? (size_t)call.bytes
                                    : santa__backends[a->q.device]->workspace_size(&call.p);
}

static void santa__job_make(santa__job *j, const santa__call *call, char *work, int64_t batch,
                            int64_t kv_head) {
    const santa_options *o = &call->p.o;
    memset(j, 0, sizeof *j);
    j->p = &call->p; j->o = o; j->plan = &call->plan; j->work = work;
    j->method = santa__method_of(o, santa__is_listed(j->p));
    j->exact_draw = santa__methods[o->method].draw;
    j->kernel = santa__kernels_of(o->isa);
    j->stats = SANTA__PART(santa_stats, j, stats);
    j->batch = batch;
    j->kv_head = kv_head;
    j->group = call->p.group;
    j->k = santa__rows_make(&call->p.a, &call->p.a.k, &call->p.a.k_scales, batch, kv_head);
    j->v = santa__rows_make(&call->p.a, &call->p.a.v, &call->p.a.v_scales, batch, kv_head);
    j->k.first = j->v.first = santa__origin(&call->p);
    j->seed = o->seeds ? o->seeds[batch] : o->seed;
    j->offset = o->offsets ? o->offsets[batch] : o->offset;
    j->request_id = o->request_ids ? o->request_ids[batch] : (uint64_t)batch;
    j->q = SANTA__PART(float, j, q);
    j->packed = SANTA__PART(char, j, packed);
    j->active = SANTA__PART(int32_t, j, active);
    j->scores = SANTA__PART(float, j, scores);
    j->copy_codes = SANTA__PART(char, j, copy_codes);
    j->copy_q = SANTA__PART(float, j, copy_q);
    j->copy_unit = SANTA__PART(float, j, copy_unit);
    j->copy_less = j->copy_unit + j->plan->queries;
    j->sure = call->sure;
    j->errors = call->errors;
}

/* Query rows q .. q + rows - 1, whose key ranges are in j. */
static void santa__job_rows(santa__job *j, int64_t q, int64_t rows) {
    const santa__range *last = &j->range[rows - 1];
    j->q_index = q;
    j->rows = rows;
    j->queries = rows * j->group;
    j->begin = j->range[0].begin;
    j->end = j->range[rows - 1].end;
    j->gap = last->gap > last->begin ? last->gap : j->begin;
    j->coef = SANTA__PART(float, j, coef);                            /* exact scores let it alias q */
    if (j->begin < j->end) santa__prepare_queries(j);
}

/* The query rows from q on that go together, for a span of KV heads of one sequence: they see
   keys, and exact ones have chunks of one size. A row without keys is written at once. Returns
   how many rows. */
static int64_t santa__next_rows(santa__job *j, int64_t span, int64_t q) {
    const santa_attention *a = &j->p->a;
    const int64_t origin = j->k.first;
    santa__range first = santa__key_range(a, j->batch, q);
    const int64_t keys = santa__keys_of(first), most = SANTA__MIN(j->plan->rows, j->p->q_len - q);
    const int always = santa__has_traits(j->o, SANTA_EXACT | SANTA_SPARSE),
              dense = always || keys < j->o->dense_below;
    int64_t rows, h, x;
    first.begin += origin; first.end += origin; first.position += origin;
    first.gap += origin; first.gap_end += origin;
    j->range[0] = first;
    for (rows = 1; keys > 0 && rows < most; rows++) {
        const santa__range r = santa__key_range(a, j->batch, q + rows);
        const int64_t n = santa__keys_of(r);
        if (n == 0 || dense != (always || n < j->o->dense_below)) break;
        if (dense && santa__chunk(r.end - r.begin) != santa__chunk(first.end - first.begin)) break;
        j->range[rows] = r;
    }
    for (h = 0; h < span; h++) {
        if (h) memcpy(j[h].range, j->range, sizeof j->range);
        j[h].method = dense && !always ? &santa__methods[SANTA_DENSE]
                                       : santa__method_of(j->o, santa__is_listed(j->p));
        santa__job_rows(&j[h], q, rows);
        j[h].stats->rows += j[h].queries;
        for (x = 0; x < rows; x++) j[h].stats->keys += santa__keys_of(j->range[x]);
        if (dense && keys > 0 && !santa__has_traits(j->o, SANTA_EXACT))
            j[h].stats->dense_rows += j[h].queries;
        for (x = 0; x < j->queries && keys == 0; x++) {
            santa__write_empty(&j[h], x);
            if (j->o->vattention.audit && santa__has_traits(j->o, SANTA_ADAPTS))
                memset(j->o->vattention.audit + santa__result_at(&j[h], x), 0, sizeof(santa_audit));
        }
    }
    return rows;
}

static int64_t santa__active_of_head(const santa__job *j, int64_t g) {
    int64_t c, n = 0;
    if (!santa__is_bernoulli(j->o)) return j->k.dim;
    for (c = 0; c < j->num_active; c++)
        n += santa__bits(j->coef[g * j->plan->d_pad + j->active[c]]) << 1 != 0;
    return n;
}

/* Features of the rows of K that were read. */
static void santa__count_features(santa__job *j, int64_t k_rows) {
    int64_t g;
    j->stats->k_features_read += k_rows * j->num_active;
    for (g = 0; g < j->group; g++) j->stats->k_features_head += k_rows * santa__active_of_head(j, g);
}

/* All phases of a span of jobs on one thread. */
static void santa__run_alone(santa__job *j, int64_t span) {
    int64_t h;
    int i;
    for (i = 0; i < SANTA__PHASES && j->method->phase[i].run; i++) {
        const santa__phase *phase = &j->method->phase[i];
        if (phase->is_joint) phase->run(j, span, 0, phase->pieces(j));
        else for (h = 0; h < span; h++) phase->run(&j[h], 1, 0, phase->pieces(&j[h]));
    }
}

/* Threads take pieces of the work as they get through with them, since some are slower than
   others: little cores, or a neighbour on the same core. Many pieces at first, fewer towards
   the end: where one's rows begin nothing is prefetched. Who had which piece changes no bit.
   Without atomic operations each has an equal share. Returns 0 when none is left; *to is -1 at
   first. */
static int santa__take(santa__work *work, int64_t t, int64_t *from, int64_t *to) {
    const int64_t pieces = work->pieces, threads = work->threads;
#if defined(__GNUC__) || defined(__clang__)
    const int64_t few = SANTA__MAX(pieces / (16 * threads), 1);
    const int turn = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
    int i;
    (void)t;
    for (i = 0, *from = *to = 0; i <= turn && *to < pieces; i++) {
        const int64_t left = i < threads ? pieces : pieces - *to;
        *from = *to;
        *to = threads == 1 ? pieces : SANTA__MIN(*to + SANTA__MAX(left / (2 * threads), few), pieces);
    }
    return i > turn;
#else
    const int first = *to < 0;
    *from = pieces * t / threads;
    *to = pieces * (t + 1) / threads;
    return first;
#endif
}

SANTA__ONCE
static void santa__run_tasks(const santa_options *o, santa__work *work, int64_t pieces, santa_task task,
                             void *context) {
    /* one piece is handed out, too: to two, of whom one finds nothing left */
    const int64_t n = SANTA__MAX(SANTA__MIN(o->num_threads, SANTA__MAX(pieces, 2)), 1);
    int64_t t;
    work->pieces = pieces;
    work->threads = n;
    work->next = 0;
    if (n == 1) { task(context, 0); return; }
    if (o->parallel_for) { o->parallel_for(o->parallel_user, n, task, context); return; }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads((int)SANTA__MIN(n, 1024))
#endif
    for (t = 0; t < n; t++) task(context, t);
}

/* Jobs for the items from i on that one sequence has, span at most, in the workspaces from
   `work` on; how many. */
static int64_t santa__call_jobs(const santa__call *call, santa__job *j, char *work, int64_t i, int64_t to,
                                int64_t span) {
    const int64_t kv_heads = call->p.kv_heads;
    int64_t h;
    span = SANTA__MIN(SANTA__MIN(span, to - i), kv_heads - i % kv_heads);
    for (h = 0; h < span; h++)
        santa__job_make(&j[h], call, work + (uint64_t)h * call->plan.total, i / kv_heads, i % kv_heads + h);
    return span;
}

/* A team of threads at one phase of some jobs, in units of `together` that are worked on side
   by side. */
typedef struct santa__team {
    santa__call *call;
    santa__job *j;
    const santa__phase *phase;  /* NULL: all phases of each job, on one thread */
    int64_t jobs, together, pieces;
    int has_failed;             /* to meet the other ranks */
} santa__team;

SANTA__ONCE
static void santa__team_task(void *context, int64_t t) {
    const santa__team *team = (const santa__team *)context;
    const santa__call *call = team->call;
    float *scores = (float *)(void *)(call->work + (uint64_t)call->works * call->plan.total
                                      + (uint64_t)(t * call->span) * call->plan.thread_scores);
    int64_t i, n, s, to = -1;
    while (santa__take(&team->call->pieces, t, &i, &to)) {
        for (; i < to; i += n) {
            const int64_t h = i / team->pieces * team->together, from = i % team->pieces;
            const int64_t span = SANTA__MIN(team->together, team->jobs - h);
            santa__job mine[SANTA__SPAN], *j = &team->j[h];
            n = SANTA__MIN(to - i, team->pieces - from);
            if (!team->phase) { santa__run_alone(j, 1); continue; }
            for (s = 0; s < span && call->plan.thread_scores; s++) {  /* scores are each thread's own */
                mine[s] = j[s];
                mine[s].scores = scores + (uint64_t)s * call->plan.thread_scores / sizeof *scores;
            }
            team->phase->run(call->plan.thread_scores ? mine : j, span, from, from + n);
        }
    }
}

static void santa__run_phase(santa__team *team, const santa__phase *phase) {
    santa__job *j = team->j;
    team->phase = phase;
    team->pieces = phase->pieces(j);
    team->together = phase->is_joint && santa__is_token_major(&team->call->p)
                     && santa__has_many_pieces(team->pieces, j->o->num_threads) ? team->jobs : 1;
    santa__run_tasks(j->o, &team->call->pieces,
                     (team->jobs + team->together - 1) / team->together * team->pieces, santa__team_task,
                     team);
}

/* ------------------------------------------------------------ >>ranks-code */

/* The messages of all ranks on one query, `apart` bytes from each other. */
typedef struct santa__said { const santa_ranks_options *ranks; const char *at; size_t apart; } santa__said;

static const santa__rank_mass *santa__said_mass(const santa__said *x, int64_t rank) {
    return (const santa__rank_mass *)(const void *)(x->at + (size_t)rank * x->apart);
}

static const santa__rank_tiles *santa__said_tiles(const santa__said *x, int64_t rank) {
    return (const santa__rank_tiles *)(const void *)(santa__said_mass(x, rank) + 1);
}

/* What a rank says of a tile; below 0: of all keys. */
static santa__rank_mass santa__said_of(const santa__said *x, int64_t rank, int64_t tile) {
    santa__rank_mass none;
    none.max = (double)SANTA__MASKED;
    none.total = 0.0;
    if (tile < 0) return *santa__said_mass(x, rank);
    if (santa__said_tiles(x, rank)->tile[0] == tile) return santa__said_tiles(x, rank)->mass[0];
    return santa__said_tiles(x, rank)->tile[1] == tile ? santa__said_tiles(x, rank)->mass[1] : none;
}

/* Where this rank's part of a tile's mass, or of all, lies in that of all ranks. */
static santa__rank_part santa__rank_part_of(const santa__said *said, int64_t tile) {
    double m = (double)SANTA__MASKED;
    santa__rank_part x;
    int64_t r;
    memset(&x, 0, sizeof x);
    for (r = 0; r < said->ranks->count; r++) {
        const santa__rank_mass one = santa__said_of(said, r, tile);
        x.bad |= santa__not_finite_d(one.total);
        m = SANTA__MAX(m, one.max);
    }
    for (r = 0; r < said->ranks->count; r++) {
        const santa__rank_mass one = santa__said_of(said, r, tile);
        if (r == said->ranks->rank) x.before = x.total;
        if (one.total > 0.0) x.total += one.total * exp(one.max - m);
        if (r == said->ranks->rank) x.end = x.total;
    }
    x.bad |= santa__not_finite_d(x.total);
    x.m = (float)m;
    return x;
}

static santa__rank_mass santa__mass_said(santa__mass *x) {
    santa__rank_mass said;
    const int bad = santa__prefix(x);
    said.max = (double)x->m;
    said.total = bad ? (double)santa__nan() : x->total;
    return said;
}

/* The best of n scores, and masked ones behind. tops: as santa__select's. */
static void santa__say_best(const santa__kernels *kernel, const float *s, int64_t n, const float *tops,
                            float *best, int64_t count) {
    santa__choosing c = santa__choosing_from(kernel, s, n, tops);
    int64_t i, k = 0;
    santa__select(&c, (double)count);
    while (k < count && (i = santa__next(&c)) >= 0) best[k++] = s[i];
    for (; k < count; k++) best[k] = SANTA__MASKED;
}

/* The choice from the best of each rank. */
static void santa__choose_best(const santa__kernels *kernel, const santa__said *x, float *best,
                               int64_t count, float m, santa__choice *c) {
    santa__choosing chosen = santa__choosing_from(kernel, best, x->ranks->count * count, NULL);
    int64_t r, i, before = 0;
    for (r = 0; r < x->ranks->count; r++)
        memcpy(best + r * count, santa__said_mass(x, r) + 1, (size_t)count * sizeof *best);
    santa__select(&chosen, (double)count);
    c->threshold = chosen.threshold;
    c->ties = chosen.ties;
    for (i = 0; i < x->ranks->rank * count; i++)
        before += best[i] >= SANTA__MASK_LIMIT && santa__sortable(best[i]) == c->threshold;
    while (c->has_mass && (i = santa__next(&chosen)) >= 0)
        c->mass += (double)(float)exp((double)best[i] - (double)m);
    c->ties = SANTA__MAX(c->ties - before, 0);
}

/* The scores that may be at the threshold, by their next 8 bits. */
static void santa__say_bins(const float *s, int64_t n, float m, int shift, const santa__choice *c,
                            santa__rank_bins *bins) {
    int64_t i;
    memset(bins, 0, sizeof *bins);
    for (i = 0; i < n; i++) {
        const uint32_t key = santa__sortable(s[i]);
        if (s[i] < SANTA__MASK_LIMIT || (key & c->mask) != c->value) continue;
        bins->count[key >> shift & 255u]++;
        if (c->has_mass) bins->sum[key >> shift & 255u] += exp((double)s[i] - (double)m);
    }
}

/* The next 8 bits of the threshold from the bins of all ranks, as in santa__select. */
SANTA__ONCE
static void santa__choose_bin(const santa__said *x, int shift, float m, santa__choice *c) {
    double sum[256] = {0.0}, amount = 0.0, each, take;
    int64_t count[256] = {0}, before = 0, here = 0, r;
    int bucket, lowest = -1;
    for (r = 0; r < x->ranks->count; r++) {
        const santa__rank_bins *bins = (const santa__rank_bins *)(const void *)(santa__said_mass(x, r) + 1);
        const double scale = c->has_mass ? exp(santa__said_mass(x, r)->max - (double)m) : 0.0;
        for (bucket = 0; bucket < 256; bucket++) {
            count[bucket] += SANTA__MAX(bins->count[bucket], 0);
            sum[bucket] += scale * bins->sum[bucket];
        }
    }
    for (bucket = 255; bucket >= 0; bucket--) {
        if (!count[bucket]) continue;
        lowest = bucket;
        amount = c->by_mass ? sum[bucket] : (double)count[bucket];
        if (!(amount < c->want)) break;
        c->want -= amount;
        c->above += sum[bucket];
    }
    if (lowest < 0) return;                                           /* nothing is unmasked */
    if (bucket < 0) { c->want += amount; c->above -= sum[lowest]; }   /* want lies just past the end */
    c->value |= (uint32_t)lowest << shift;
    c->mask |= 255u << shift;
    if (shift > 0) return;
    for (r = 0; r <= x->ranks->rank; r++) {
        before += here;
        here = ((const santa__rank_bins *)(const void *)(santa__said_mass(x, r) + 1))->count[lowest];
    }
    each = amount / (double)count[lowest];
    take = each > 0.0 ? ceil(c->want / each) : 1.0;
    c->threshold = c->value;
    c->ties = take < 1.0 ? 1 : take < (double)count[lowest] ? (int64_t)take : count[lowest];
    c->mass = c->above + (double)c->ties * (sum[lowest] / (double)count[lowest]);
    c->ties = SANTA__MIN(SANTA__MAX(c->ties - before, 0), here);
}

/* The same by either, in so many passes. */
static int santa__choice_passes(const santa_options *o) {
    return !santa__is_top(o) && !santa__has_oracle(o) ? 0 : santa__num_best(o) > 0 ? 1 : 4;
}

/* tops: as santa__select's. */
static void santa__say_choice(const santa__job *j, const float *s, int64_t n, const float *tops,
                              int pass, const santa__choice *c, santa__rank_mass *message) {
    const int64_t best = santa__num_best(j->o);
    if (best > 0) santa__say_best(j->kernel, s, n, tops, (float *)(void *)(message + 1), best);
    else santa__say_bins(s, n, (float)message->max, 24 - 8 * pass, c,
                         (santa__rank_bins *)(void *)(message + 1));
}

static void santa__choose(const santa__call *call, const santa__said *x, int pass, float m,
                          santa__choice *c) {
    const int64_t best = santa__num_best(&call->p.o);
    float *all = (float *)(void *)(call->meeting + santa__meeting_of(&call->p).best);
    if (best > 0) santa__choose_best(santa__kernels_of(call->p.o.isa), x, all, best, m, c);
    else santa__choose_bin(x, 24 - 8 * pass, m, c);
}

/* What this rank says first of query x of a job that samples. */
SANTA__ONCE
static void santa__say_mass(const santa__job *j, int64_t x, santa__rank_mass *message) {
    santa__rank_tiles *tiles = (santa__rank_tiles *)(void *)(message + 1);
    const int has_tiles = santa__has_traits(j->o, SANTA_TILES_APART), has_keys = j->begin < j->end;
    santa__mass mass;
    int i;
    message->max = (double)SANTA__MASKED;
    message->total = 0.0;
    if (has_keys) {
        mass = santa__mass_of(j, x);
        *message = santa__mass_said(&mass);
    }
    for (i = 0; i < 2 && has_tiles; i++) {
        tiles->tile[i] = -1;
        tiles->mass[i] = *message;
        if (has_keys) {
            const int64_t tile = j->o->tile_size / mass.block;
            const int64_t from = i ? (mass.first + mass.blocks - 1) / tile * tile - mass.first : 0;
            int has;
            santa__mass part = santa__mass_part(&mass, SANTA__MAX(from, 0),
                                                i ? mass.blocks : santa__tile_end(&mass, 0, tile, &has));
            tiles->tile[i] = part.first / tile;
            tiles->mass[i] = santa__mass_said(&part);
        }
    }
}

/* And, of a method that selects, in each pass. */
static void santa__say_scores(const santa__job *j, int64_t x, int pass, const santa__choice *c,
                              santa__rank_mass *message) {
    santa__mass mass;
    if (j->begin == j->end) { santa__say_choice(j, NULL, 0, NULL, pass, c, message); return; }
    mass = santa__mass_of(j, x);
    santa__say_choice(j, santa__weights_of(j, x), mass.blocks * mass.block, mass.max, pass, c, message);
}

/* What this rank says of the queries of a job. */
SANTA__ONCE
static void santa__say_row(santa__job *j, int64_t span, int64_t from, int64_t to) {
    int64_t x;
    (void)span; (void)from; (void)to;
    for (x = 0; x < j->group; x++) {
        santa__choice *c = &j->meeting[x].choice;
        santa__rank_mass *message =
            (santa__rank_mass *)(void *)(j->message + (uint64_t)x * santa__message_bytes(j->p));
        if (j->pass == 0) {
            c->threshold = 0xffffffffu;
            c->has_mass = 1;
            santa__say_mass(j, x, message);
        }
        if (santa__choice_passes(j->o)) santa__say_scores(j, x, j->pass, c, message);
    }
}

/* How many tiles between the first and the last here have mass. */
static int64_t santa__inner_tiles(const santa_options *o, const santa__mass *x) {
    const int64_t tile = o->tile_size / x->block;
    int64_t b, end, n = 0;
    int has;
    for (b = santa__tile_end(x, 0, tile, &has); b < x->blocks; b = end) {
        end = santa__tile_end(x, b, tile, &has);
        n += has && end < x->blocks;
    }
    return n;
}

/* Whether a tile that begins in rank r has mass in any rank. */
static int santa__tile_has_mass(const santa__said *x, int64_t r, int64_t tile, float m) {
    int has = 0;
    for (; r < x->ranks->count && santa__said_tiles(x, r)->tile[0] <= tile; r++)
        has |= (float)santa__said_of(x, r, tile).max - m > SANTA__EXP_UNDERFLOW;
    return has;
}

/* Which tiles with mass a query has; inner: how many between the first and the last of each
   rank, so far from each other. */
static void santa__count_tiles(const santa__said *x, const int64_t *inner, int64_t apart, santa__met *met) {
    const float m = met->whole.m;
    int64_t r, last = -1;
    int has = 0;
    for (r = 0; r < x->ranks->count; r++) {
        const int64_t *tile = santa__said_tiles(x, r)->tile;
        const int has_begun = tile[0] == last;
        if (tile[0] < 0) continue;
        if (r == x->ranks->rank) {
            met->has_begun = has_begun;
            met->tiles_between = last < 0 ? 0 : SANTA__MAX(tile[0] - last - 1, 0);
            met->tiles_before = met->tiles - (has_begun && has);
            met->edge[0] = santa__rank_part_of(x, tile[0]);
            met->edge[1] = santa__rank_part_of(x, tile[1]);
            met->whole.bad |= met->edge[0].bad || met->edge[1].bad;
        }
        if (!has_begun) met->tiles += has = santa__tile_has_mass(x, r, tile[0], m);
        met->tiles += SANTA__MIN(SANTA__MAX(inner[r * apart], 0), (int64_t)INT32_MAX);
        if (tile[1] > tile[0]) met->tiles += has = santa__tile_has_mass(x, r, tile[1], m);
        last = tile[1];
    }
}

/* The bytes of all ranks from each one's own, which must come back as they were: what a rank
   draws by counts what it has. */
static int santa__meets(const santa_ranks_options *r, const void *mine, size_t bytes, void *all) {
    return r->all_gather(r->user, mine, bytes, all, NULL) == 0
           && memcmp((const char *)all + (size_t)r->rank * bytes, mine, bytes) == 0;
}

/* Whether the other ranks were met. */
static int santa__tell(santa__team *team, const void *mine, size_t bytes, void *all) {
    team->has_failed |= !santa__meets(&team->call->p.o.ranks, mine, bytes, all);
    return !team->has_failed;
}

/* What ranks tell each other of a span of jobs, a message for each query: where they lie here,
   and those of all. */
static santa__said santa__said_make(const santa__call *call, int64_t n) {
    santa__said said;
    said.ranks = &call->p.o.ranks;
    said.at = call->meeting + santa__meeting_of(&call->p).messages;
    said.apart = (size_t)((uint64_t)n * santa__message_bytes(&call->p));
    return said;
}

static santa__said santa__said_on(const santa__call *call, santa__said said, int64_t i) {
    said.at += (uint64_t)i * santa__message_bytes(&call->p);
    return said;
}

static santa__rank_mass *santa__message_on(const santa__call *call, int64_t i) {
    return (santa__rank_mass *)(void *)(call->meeting + santa__meeting_of(&call->p).message
                                        + (uint64_t)i * santa__message_bytes(&call->p));
}

/* flash: how many tiles have mass, which the largest score of all ranks tells. */
static void santa__meet_tiles(santa__team *team, santa__job *j, int64_t n, const santa__said *said,
                              santa__met *met) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    int64_t *mine = (int64_t *)(void *)(call->meeting + at.count),
            *all = (int64_t *)(void *)(call->meeting + at.counts), i;
    for (i = 0; i < n; i++) {
        const santa__job *one = &j[i / call->p.group];
        mine[i] = 0;
        if (one->begin < one->end) {
            santa__mass mass = santa__mass_of(one, i % call->p.group);
            mass.m = met[i].whole.m;
            mine[i] = santa__inner_tiles(one->o, &mass);
        }
    }
    if (!santa__tell(team, mine, (size_t)n * sizeof *mine, all)) return;
    for (i = 0; i < n; i++) {
        const santa__said on = santa__said_on(call, *said, i);
        santa__count_tiles(&on, all + i, n, &met[i]);
    }
}

static int santa__tell_messages(santa__team *team, const santa__said *said) {
    const santa__call *call = team->call;
    return santa__tell(team, santa__message_on(call, 0), said->apart,
                       call->meeting + santa__meeting_of(&call->p).messages);
}

/* A query's mass over all ranks, its lse, and what of it a method that selects wants. */
static void santa__meet_query(const santa__call *call, const santa__job *j, int64_t x,
                              const santa__said *said, santa__met *met) {
    const santa__rank_part *whole = &met->whole;
    santa__choice *c = &met->choice;
    double keys_share;
    met->whole = santa__rank_part_of(said, -1);
    c->by_mass = j->o->method == SANTA_TOP_P;
    c->want = c->by_mass ? j->o->top_p * whole->total : (double)j->o->num_samples;
    call->p.a.lse[santa__result_at(j, x)] =
        whole->bad ? santa__nan() : santa__lse(whole->m, whole->total, santa__sink(j, x), &keys_share);
}

/* Between scores and draws ranks tell each other the masses of a span of jobs, those of rows
   without keys here included, and what else they need to draw as one process does. */
SANTA__ONCE
static void santa__meet(santa__team *team, santa__job *j, int64_t jobs) {
    static const santa__phase say = { santa__one_piece, santa__say_row, 0 };
    const santa__call *call = team->call;
    santa__met *met = (santa__met *)(void *)(call->meeting + santa__meeting_of(&call->p).met);
    const int64_t group = call->p.group, n = jobs * group;
    const int passes = santa__choice_passes(&call->p.o);
    const santa__said said = santa__said_make(call, n);
    int64_t i;
    int pass = 0;
    team->j = j;
    team->jobs = jobs;
    memset(met, 0, (size_t)n * sizeof *met);
    for (i = 0; i < jobs; i++) j[i].met = NULL;
    do {
        for (i = 0; i < jobs; i++) {
            j[i].meeting = met + i * group;
            j[i].message = (char *)santa__message_on(call, i * group);
            j[i].pass = pass;
        }
        santa__run_phase(team, &say);
        if (!santa__tell_messages(team, &said)) return;
        for (i = 0; i < n; i++) {
            const santa__said on = santa__said_on(call, said, i);
            if (pass == 0) santa__meet_query(call, &j[i / group], i % group, &on, &met[i]);
            if (passes) santa__choose(call, &on, pass, met[i].whole.m, &met[i].choice);
        }
    } while (++pass < passes);
    if (santa__has_traits(&call->p.o, SANTA_TILES_APART)) santa__meet_tiles(team, j, n, &said, met);
    for (i = 0; i < jobs; i++) j[i].met = met + i * group;
}

/* Where the keys of each job, or of its heads where these draw apart, lie among those of all
   ranks. */
static void santa__meet_sizes(santa__team *team, int64_t apart) {
    const santa__meeting at = santa__meeting_of(&team->call->p);
    double *mine = (double *)(void *)(team->call->meeting + at.message),
           *all = (double *)(void *)(team->call->meeting + at.messages);
    const int64_t n = team->jobs * apart, rank = team->call->p.o.ranks.rank;
    const double most = 1.0 + 1.01 * (double)team->call->p.group * (double)team->call->p.o.num_samples;
    int64_t i, r;
    for (i = 0; i < n; i++)
        mine[i] = SANTA__PART(santa__mass, &team->j[i / apart], masses)[i % apart].sizes;
    if (!santa__tell(team, mine, (size_t)n * sizeof *mine, all)) return;
    for (i = 0; i < n; i++)
        for (r = 0; r < rank; r++) {
            santa__mass *m = &SANTA__PART(santa__mass, &team->j[i / apart], masses)[i % apart];
            m->before += all[r * n + i];
            /* more than all heads' draws: not what that rank said */
            if (!(m->before >= 0.0 && m->before <= most)) team->has_failed = 1;
        }
}

/* SANTA_PPS over ranks: masses make sizes, and those of the keys before it place a rank in the
   comb. A rank without keys has nothing to score, but meets the others. */
SANTA__ONCE
static void santa__run_sizes(santa__team *team) {
    static const santa__phase size = { santa__one_piece, santa__size_row, 0 },
                              draw = { santa__one_piece, santa__draw_row, 0 };
    if (team->j->begin < team->j->end) santa__run_phase(team, &santa__phases_sizes[0]);
    santa__meet(team, team->j, team->jobs);
    if (team->has_failed) return;
    santa__run_phase(team, &size);
    santa__meet_sizes(team, 1);
    if (!team->has_failed) santa__run_phase(team, &draw);
}

/* The masses of the jobs' heads, and where they lie in those of all ranks. */
static void santa__meet_copies(santa__team *team) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    const int64_t group = call->p.group, n = team->jobs * group;
    santa__rank_mass *mine = (santa__rank_mass *)(void *)(call->meeting + at.message);
    santa__met *met = (santa__met *)(void *)(call->meeting + at.met);
    santa__said said = santa__said_make(call, n);
    int64_t i;
    said.apart = (size_t)n * sizeof *mine;
    for (i = 0; i < n; i++) {
        santa__mass *m = &SANTA__PART(santa__mass, &team->j[i / group], masses)[i % group];
        m->share = NULL;
        mine[i] = santa__mass_said(m);
    }
    if (!santa__tell(team, mine, said.apart, call->meeting + at.messages)) return;
    for (i = 0; i < n; i++, said.at += sizeof *mine) {
        met[i].whole = santa__rank_part_of(&said, -1);
        SANTA__PART(santa__mass, &team->j[i / group], masses)[i % group].share = &met[i].whole;
    }
}

/* The same of the copy, and what else tells whether heads are to be rescued. Returns how many
   are; of top-k all that have keys, for which santa__meet_rescues makes the choice. */
static int64_t santa__meet_guards(santa__team *team) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    const santa_proxy_options *o = &call->p.o.proxy;
    const int is_top = santa__is_top(&call->p.o);
    const int64_t group = call->p.group, n = team->jobs * group;
    santa__rank_copied *mine = (santa__rank_copied *)(void *)(call->meeting + at.message), *all;
    santa__met *met = (santa__met *)(void *)(call->meeting + at.met);
    santa__said said = santa__said_make(call, n);
    int64_t i, r, rescued = 0;
    said.apart = (size_t)n * sizeof *mine;
    memset(met, 0, (size_t)n * sizeof *met);
    for (i = 0; i < n; i++) {
        const santa__job *one = &team->j[i / group];
        const santa__copied_head *head = &SANTA__PART(santa__copied_head, one, heads)[i % group];
        santa__mass *m = &SANTA__PART(santa__mass, one, masses)[i % group];
        mine[i].copied = santa__mass_said(m);
        mine[i].fixed_max = (double)head->state.m;
        mine[i].fixed = head->state.d;
        mine[i].spread = mine[i].copied.total > 0.0 && !is_top ? santa__copied_spread(one, i % group, m, 0)
                                                               : 0.0;
    }
    all = (santa__rank_copied *)(void *)(call->meeting + at.messages);
    if (!santa__tell(team, mine, said.apart, all)) return 0;
    for (i = 0; i < n; i++, said.at += sizeof *mine) {
        const santa__job *one = &team->j[i / group];
        santa__copied_head *head = &SANTA__PART(santa__copied_head, one, heads)[i % group];
        santa__mass *m = &SANTA__PART(santa__mass, one, masses)[i % group];
        double spread = 0.0;
        met[i].whole = santa__rank_part_of(&said, -1);
        m->share = &met[i].whole;
        head->fixed_max = SANTA__MASKED;
        for (r = 0; r < call->p.o.ranks.count; r++)
            head->fixed_max = SANTA__MAX(head->fixed_max, (float)all[r * n + i].fixed_max);
        for (r = 0; r < call->p.o.ranks.count; r++) {
            const santa__rank_copied *x = &all[r * n + i];
            if (x->fixed > 0.0) head->fixed += x->fixed * exp(x->fixed_max - (double)head->fixed_max);
            if (x->spread > 0.0) spread += x->spread * exp(x->copied.max - (double)met[i].whole.m);
        }
        if (is_top && met[i].whole.bad) m->total = (double)santa__nan();
        if (met[i].whole.bad || !(met[i].whole.total > 0.0)) continue;
        m->m = met[i].whole.m;
        m->total = met[i].whole.total;
        m->rest = santa__copied_rest(m, head->fixed_max, head->fixed);
        head->is_rescued = is_top;
        rescued += is_top;
        if (is_top || santa__is_hidden(m, head->fixed_max, head->fixed)) continue;
        head->expected = santa__expected_variance(m, spread / (m->total + m->rest));
        head->is_rescued = head->expected > o->rescue_above && o->rescue_keys > 0;
        rescued += head->is_rescued;
    }
    return rescued;
}

/* Which keys of all ranks are rescued, or top-k's: each tells its largest masses, or scores. Of
   equal ones those of the first ranks are. */
static void santa__meet_rescues(santa__team *team, int64_t rescued) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    const santa_ranks_options *ranks = &call->p.o.ranks;
    const int64_t group = call->p.group, most = santa__num_rescued(&call->p.o);
    float *mine = (float *)(void *)(call->meeting + at.message),
          *all = (float *)(void *)(call->meeting + at.messages),
          *one_head = (float *)(void *)(call->meeting + at.best);
    int64_t i, k, r, c;
    for (i = 0, k = 0; i < team->jobs * group; i++) {
        const santa__job *one = &team->j[i / group];
        santa__copied_head *head = &SANTA__PART(santa__copied_head, one, heads)[i % group];
        santa__mass *m = &SANTA__PART(santa__mass, one, masses)[i % group];
        float *s = SANTA__PART(float, one, ranked);
        int64_t found;
        if (!head->is_rescued) continue;
        if (santa__is_top(one->o)) {
            santa__say_best(m->kernel, m->u, m->blocks * SANTA_BLOCK, m->max, mine + k++ * most, most);
            continue;
        }
        santa__copied_shares(one, m, head->fixed_max, head->fixed);
        found = santa__likely(m, m->u, most, santa__is_rounded(one->o), s,
                              SANTA__PART(int32_t, one, rank_index));
        santa__say_best(m->kernel, s, found, NULL, mine + k++ * most, most);
    }
    if (!santa__tell(team, mine, (size_t)(rescued * most) * sizeof *mine, all)) return;
    for (i = 0, k = 0; i < team->jobs * group; i++) {
        santa__copied_head *head =
            &SANTA__PART(santa__copied_head, &team->j[i / group], heads)[i % group];
        santa__choosing chosen =
            santa__choosing_from(team->j->kernel, one_head, ranks->count * most, NULL);
        if (!head->is_rescued) continue;
        for (r = 0; r < ranks->count; r++)
            memcpy(one_head + r * most, all + (r * rescued + k) * most, (size_t)most * sizeof *all);
        santa__select(&chosen, (double)most);
        head->threshold = chosen.threshold;
        head->ties = chosen.ties;
        for (c = 0; c < ranks->rank * most; c++)
            head->ties -= santa__sortable(one_head[c]) == head->threshold;
        k++;
    }
}

/* What the drawn keys show: heads are done, or drawn again from exact scores. Returns how many
   are not. */
static int64_t santa__meet_drawn(santa__team *team) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    const int is_top = santa__is_top(&call->p.o);
    const int64_t group = call->p.group, n = team->jobs * group;
    santa__rank_drawn *mine = (santa__rank_drawn *)(void *)(call->meeting + at.message), *all;
    santa__said said = santa__said_make(call, n);
    int64_t i, r, k, redone = 0;
    said.apart = (size_t)n * sizeof *mine;
    for (i = 0; i < n; i++) {
        const santa__copied_head *head =
            &SANTA__PART(santa__copied_head, &team->j[i / group], heads)[i % group];
        mine[i].state.max = (double)head->state.m;
        mine[i].state.total = head->state.bad ? (double)santa__nan() : head->state.d;
        mine[i].drawn = head->drawn;
        mine[i].weight = head->weight;
        mine[i].square = head->square;
        memcpy(mine[i].known, head->known, sizeof head->known);
    }
    all = (santa__rank_drawn *)(void *)(call->meeting + at.messages);
    if (!santa__tell(team, mine, said.apart, all)) return 0;
    for (i = 0; i < n; i++, said.at += sizeof *mine) {
        const santa__job *one = &team->j[i / group];
        santa__copied_head *head = &SANTA__PART(santa__copied_head, one, heads)[i % group];
        const santa__mass *m = &SANTA__PART(santa__mass, one, masses)[i % group];
        const santa__rank_part sums = santa__rank_part_of(&said, -1);
        head->drawn = head->weight = head->square = 0.0;
        memset(head->known, 0, sizeof head->known);
        for (r = 0; r < call->p.o.ranks.count; r++) {
            head->drawn += all[r * n + i].drawn;
            head->weight += all[r * n + i].weight;
            head->square += all[r * n + i].square;
            for (k = 0; k < 3; k++) head->known[k] += all[r * n + i].known[k];
        }
        head->found = is_top ? 0.0 : santa__found_variance(head);
        if (m->total > 0.0 || sums.total > 0.0 || sums.bad)              /* there are keys in some rank */
            santa__count_guards(SANTA__PART(santa__tally, one, tally), head);
        head->is_done = !santa__not_finite_d(m->total) && !sums.bad
                        && head->found <= call->p.o.proxy.exact_above;
        redone += !head->is_done && !is_top;         /* whose NaN shows */
        if (!head->is_done) continue;
        santa__copied_scale(one, i % group, m, sums.m, sums.total, head);
        head->scale *= exp((double)head->state.m - (double)sums.m);
    }
    return redone;
}

/* Draws from a copy of K over ranks. All see the same messages, so that all meet as often. */
SANTA__ONCE
static void santa__run_copied(santa__team *team) {
    static const santa__phase begin = { santa__one_piece, santa__step_begin, 0 },
                              rescue = { santa__one_piece, santa__step_rescue, 0 },
                              size = { santa__one_piece, santa__step_size, 0 },
                              draw = { santa__one_piece, santa__step_draw, 0 },
                              redo = { santa__one_piece, santa__step_redo, 0 },
                              resize = { santa__one_piece, santa__step_resize, 0 },
                              finish = { santa__one_piece, santa__step_finish, 0 };
    const int is_shared = santa__has_sure(team->j->o), is_top = santa__is_top(team->j->o);
    int64_t some;
    if (team->j->begin < team->j->end) santa__run_phase(team, &santa__phases_copied[0]);
    santa__run_phase(team, &begin);
    some = santa__meet_guards(team);
    if (some) {
        santa__meet_rescues(team, some);
        if (team->has_failed) return;
        if (!is_top) {
            santa__run_phase(team, &rescue);
            santa__meet_copies(team);
        }
    }
    if (team->has_failed) return;
    if (!is_top) {
        santa__run_phase(team, &size);
        santa__meet_sizes(team, is_shared ? 1 : team->j->group);
    }
    if (team->has_failed) return;
    santa__run_phase(team, &draw);
    some = santa__meet_drawn(team);
    if (some) {
        santa__run_phase(team, &redo);
        santa__meet_copies(team);
        if (is_shared && !team->has_failed) {
            santa__run_phase(team, &resize);
            santa__meet_sizes(team, team->j->group);
        }
    }
    if (!team->has_failed) santa__run_phase(team, &finish);
}

/* Whether ranks have more to tell each other than masses. */
static int santa__is_meeting_often(const santa_options *o) {
    return santa__is_meeting(o) && (santa__has_sure(o) || santa__is_copied(o));
}

/* ------------------------------------------------------------ >>ranks-vattention */

/* vAttention over ranks. The middle's positions count the keys of all ranks, whose parts of a
   row lie one behind the other. Which of them are drawn depends on which are heavy, in any
   rank: all go through the same random words, each tells which of these name free keys of its
   own, and where enough are drawn the words end. What every rank knows is the same on all of
   them, and so are the steps they take. */

static void santa__va_run(santa__team *team, void (*run)(santa__job *, int64_t, int64_t, int64_t)) {
    santa__phase phase;
    phase.pieces = santa__one_piece;
    phase.run = run;
    phase.is_joint = 0;
    santa__run_phase(team, &phase);
}

/* A number of each of n things, on all ranks. */
static const int64_t *santa__tell_counts(santa__team *team, int64_t n) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    santa__tell(team, call->meeting + at.count, (size_t)n * sizeof(int64_t), call->meeting + at.counts);
    return (const int64_t *)(const void *)(call->meeting + at.counts);
}

/* So many bytes of each of n things, with room for what jobs say. */
static void santa__va_messages(santa__team *team, santa__job *j, int64_t jobs, size_t bytes) {
    char *messages = team->call->meeting + santa__meeting_of(&team->call->p).message;
    int64_t i;
    for (i = 0; i < jobs; i++) {
        j[i].message = messages + (size_t)i * bytes;
        j[i].va->message_bytes = bytes;
    }
}

static char *santa__va_tell(santa__team *team, int64_t jobs, size_t bytes) {
    const santa__call *call = team->call;
    const santa__meeting at = santa__meeting_of(&call->p);
    santa__tell(team, call->meeting + at.message, (size_t)jobs * bytes, call->meeting + at.messages);
    return call->meeting + at.messages;
}

/* Phases of a row. */
static void santa__va_look(santa__job *j, int64_t span, int64_t from, int64_t to) {
    (void)span; (void)from; (void)to;
    if (j->va->heavy > 0 && santa__has_oracle(j->o) && j->va->mid > 0) santa__va_scores(j->va);
}

SANTA__ONCE
static void santa__va_say_choices(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__va *x = j->va;
    int64_t g;
    (void)span; (void)from; (void)to;
    for (g = 0; g < j->group; g++) {
        santa__rank_mass *message =
            (santa__rank_mass *)(void *)(j->message + (size_t)g * x->message_bytes / (size_t)j->group);
        message->max = message->total = 0.0;
        santa__say_choice(j, j->scores + g * j->plan->score_stride, x->mid, NULL, j->pass,
                          &x->met[g].choice, message);
    }
}

static void santa__va_fix(santa__job *j, int64_t span, int64_t from, int64_t to) {
    (void)span; (void)from; (void)to;
    j->va->residual = j->end - j->begin - santa__va_add_fixed(j->va, j->va->heavy);
}

/* A bit for each of the next words: whether it draws a free key of this rank. */
SANTA__ONCE
static void santa__va_try(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__va *x = j->va;
    const uint32_t size = (uint32_t)x->all_mid, uneven = x->all_mid > 0 ? (0u - size) % size : 0;
    uint8_t *said = (uint8_t *)(void *)j->message;
    int64_t i;
    (void)span; (void)from; (void)to;
    memset(j->message, 0, x->message_bytes);
    for (i = 0; x->left > 0 && i < x->tries; i++) {
        const uint64_t wide = (uint64_t)santa__rng_word(&x->rng, x->at + (uint64_t)i) * size;
        const int64_t position = (int64_t)(wide >> 32) - x->before;
        if ((uint32_t)wide < uneven || position < 0 || position >= x->mid) continue;
        if (santa__has_bit(x->chosen, position) || !santa__set_bit(x->drawn, position)) continue;
        said[i / 8] = (uint8_t)(said[i / 8] | 1u << i % 8);
    }
}

/* The words up to `end` of those tried count. */
static void santa__va_settle(santa__va *x, int64_t end) {
    const uint8_t *said = (const uint8_t *)(const void *)x->j->message;
    const uint64_t size = (uint64_t)x->all_mid;
    int64_t i;
    for (i = end; i < x->tries; i++) {
        const uint64_t wide = santa__rng_word(&x->rng, x->at + (uint64_t)i) * size;
        const int64_t position = (int64_t)(wide >> 32) - x->before;
        if (said[i / 8] >> i % 8 & 1) x->drawn[position / 64] &= ~((uint64_t)1 << (position & 63));
    }
    x->at += (uint64_t)end;
}

static void santa__va_add(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__va *x = j->va;
    (void)span; (void)from; (void)to;
    if (x->budget == x->residual) santa__va_add_rest(x);
    else if (x->free >= 0) santa__va_add_drawn(x, x->complement);
}

/* A sample of so many of the free positions is to be drawn. */
static void santa__va_want(santa__va *x, int64_t count, int64_t free_ones) {
    x->free = free_ones;
    x->complement = count > free_ones - count;
    x->left = x->complement ? free_ones - count : count;
    x->barren = 0.0;
    memset(x->drawn, 0, (size_t)(x->mid / 64 + 1) * sizeof *x->drawn);
}

/* Words that a row should try next, in whole bytes of all ranks: a few more than it will
   need. */
static int64_t santa__va_tries(const santa__va *x) {
    const double each = (double)x->all_mid / (double)SANTA__MAX(x->free, 1),
                 words = (1.2 * (double)x->left + 64.0) * each;
    if (x->left == 0) return 0;
    return words < (double)SANTA__TRIES ? (int64_t)(words / 64.0 + 1.0) * 64 : (int64_t)SANTA__TRIES;
}

/* What the words of a row drew in all ranks: a bit may be set in one of them only. */
static void santa__va_count(santa__team *team, santa__va *x, const char *said, size_t apart) {
    const uint8_t *all = (const uint8_t *)(const void *)said;
    const int64_t ranks = team->call->p.o.ranks.count;
    const int64_t left = x->left;
    int64_t i, r;
    for (i = 0; x->left > 0 && i < x->tries; i++) {
        int hit = 0;
        for (r = 0; r < ranks; r++) hit |= all[(size_t)r * apart + (size_t)i / 8] >> i % 8 & 1;
        x->left -= hit;
        x->free -= hit;
    }
    x->barren = x->left < left ? 0.0 : x->barren + (double)x->tries * (double)x->free / (double)x->all_mid;
    /* so long without a key never happens: the exchange does not bring what was told */
    if (x->barren > 100.0) team->has_failed = 1;
    santa__va_settle(x, i);
}

/* Draws what rows want, and adds it to their samples. */
static void santa__va_draw(santa__team *team, santa__job *j, int64_t jobs) {
    while (!team->has_failed) {
        int64_t tries = 0, i;
        const char *all;
        size_t bytes;
        for (i = 0; i < jobs; i++) tries = SANTA__MAX(tries, santa__va_tries(j[i].va));
        if (tries == 0) break;
        bytes = (size_t)tries / 8;
        santa__va_messages(team, j, jobs, bytes);
        for (i = 0; i < jobs; i++) j[i].va->tries = tries;
        santa__va_run(team, santa__va_try);
        all = santa__va_tell(team, jobs, bytes);
        for (i = 0; i < jobs && !team->has_failed; i++)
            if (j[i].va->left > 0)
                santa__va_count(team, j[i].va, all + (size_t)i * bytes, (size_t)jobs * bytes);
    }
    if (!team->has_failed) santa__va_run(team, santa__va_add);
}

SANTA__ONCE
static void santa__va_say_sums(santa__job *j, int64_t span, int64_t from, int64_t to) {
    const santa__va *x = j->va;
    const size_t row = (size_t)j->v.dim * sizeof(float);
    const int has_rows = j->o->vattention.guarantee == SANTA_GUARANTEE_FULL;
    int64_t g;
    int k;
    (void)span; (void)from; (void)to;
    for (g = 0; g < j->group; g++) {
        const santa__state *s = x->head[g].sums;
        char *message = j->message + (size_t)g * x->message_bytes / (size_t)j->group;
        santa__rank_sums *sums = (santa__rank_sums *)(void *)message;
        for (k = 0; k < SANTA__SETS; k++) {
            sums->m[k] = (double)s[k].m;
            sums->d[k] = s[k].d;
            if (has_rows) memcpy(message + sizeof *sums + (size_t)k * row, s[k].n, row);
        }
        sums->d2 = s[SANTA__SAMPLE].d2;
        sums->t = s[SANTA__SAMPLE].t;
        sums->bad = s[SANTA__FIXED].bad || s[SANTA__SAMPLE].bad;
    }
}

/* A head's sums over all ranks, and what they ask for. */
static int64_t santa__va_needed_by_all(const santa__team *team, const santa__job *j, int64_t g, char *all,
                                       size_t apart) {
    const santa__call *call = team->call;
    const int64_t dv = j->o->vattention.guarantee == SANTA_GUARANTEE_FULL ? j->v.dim : 0;
    float *rows = (float *)(void *)(call->meeting + santa__meeting_of(&call->p).sums);
    santa__state sum[SANTA__SETS];
    int64_t r;
    int k;
    for (k = 0; k < SANTA__SETS; k++) santa__state_begin(&sum[k], rows + k * dv, NULL, dv);
    for (r = 0; r < call->p.o.ranks.count; r++, all += apart) {
        const santa__rank_sums *told = (const santa__rank_sums *)(const void *)all;
        for (k = 0; k < SANTA__SETS; k++) {
            santa__state one;
            memset(&one, 0, sizeof one);
            one.m = (float)told->m[k];
            one.d = told->d[k];
            one.bad = told->bad != 0;
            if (k == SANTA__SAMPLE) { one.d2 = told->d2; one.t = told->t; }
            one.n = (float *)(void *)(all + sizeof *told) + k * dv;
            santa__state_add(&sum[k], &one, dv);
        }
    }
    if (sum[SANTA__FIXED].bad || sum[SANTA__SAMPLE].bad) return j->va->base;
    return santa__va_needed(j->va, g, j->va->base, &sum[SANTA__FIXED], &sum[SANTA__SAMPLE]);
}

/* The result of this rank's keys alone, without sinks: santa__join_ranks puts them together. */
static void santa__va_write_part(santa__va *x, int64_t g) {
    const santa__job *j = x->j;
    const santa__state *fixed = &x->head[g].sums[SANTA__FIXED], *sample = &x->head[g].sums[SANTA__SAMPLE];
    const double m = (double)SANTA__MAX(fixed->m, sample->m),
                 w = x->budget > 0 ? (double)x->residual / (double)x->budget : 1.0;
    const double ef = santa__rescale(fixed, m), es = santa__rescale(sample, m),
                 total = ef * fixed->d + w * es * sample->d;
    santa_audit *audit = j->o->vattention.audit;
    float *acc = SANTA__PART(float, j, acc);
    int64_t c;
    for (c = 0; c < j->v.dim; c++)
        acc[c] = total > 0.0 ? (float)((ef * (double)fixed->n[c] + w * es * (double)sample->n[c])
                                       * ((double)j->p->v_scale / total))
                             : 0.0f;
    santa__write(j, g, fixed->bad || sample->bad ? NULL : acc,
                 total > 0.0 ? (float)(m + log(total)) : santa__neg_inf(), 0.0f);
    j->p->a.lse[j->p->batch * j->p->q_len * j->p->heads + santa__result_at(j, g)] = (float)m;
    if (!audit) return;
    audit += santa__result_at(j, g);
    memset(audit, 0, sizeof *audit);
    if (x->all == 0) return;
    santa__va_audit(x, &x->head[g].audit, x->budget);
    *audit = x->head[g].audit;
}

SANTA__ONCE
static void santa__va_end(santa__job *j, int64_t span, int64_t from, int64_t to) {
    santa__va *x = j->va;
    const int64_t n = j->end - j->begin;
    int64_t g;
    (void)span; (void)from; (void)to;
    for (g = 0; g < j->group; g++) santa__va_write_part(x, g);
    j->stats->draws += x->sampled * j->group;
    j->stats->exact_rows += x->all > 0 && x->budget == x->residual ? j->group : 0;
    j->stats->v_rows_read += x->read;
    j->stats->v_rows_head += x->read * j->group;
    j->stats->k_rows_read += SANTA__MIN(n, x->read + x->looked);
}

/* Which keys of the middle are heavy for each head, see santa__meet. */
static void santa__va_choose(santa__team *team, santa__job *j, int64_t jobs) {
    const santa__call *call = team->call;
    const int64_t group = call->p.group, n = jobs * group;
    const santa__said said = santa__said_make(call, n);
    const int passes = santa__choice_passes(&call->p.o);
    int64_t i;
    int pass;
    santa__va_run(team, santa__va_look);
    santa__va_messages(team, j, jobs, (size_t)((uint64_t)group * santa__message_bytes(&call->p)));
    for (pass = 0; pass < passes; pass++) {
        for (i = 0; i < jobs; i++) j[i].pass = pass;
        santa__va_run(team, santa__va_say_choices);
        if (!santa__tell_messages(team, &said)) return;
        for (i = 0; i < n; i++) {
            const santa__said on = santa__said_on(call, said, i);
            santa__choose(call, &on, pass, 0.0f, &j[i / group].va->met[i % group].choice);
        }
    }
}

/* A row's base sample, and the budgets from it. */
static void santa__va_sample(santa__team *team, santa__job *j, int64_t jobs) {
    const santa_vattention_options *v = &j->o->vattention;
    const int64_t group = j->group;
    const size_t each = (size_t)santa__sums_bytes(j->p), bytes = (size_t)group * each;
    int64_t i, g, sampling = 0;
    char *all;
    for (i = 0; i < jobs; i++) {
        santa__va *x = j[i].va;
        x->base = v->base_samples == SANTA_AUTO ? SANTA__MAX((x->residual + 39) / 40, 32) : v->base_samples;
        x->budget = SANTA__MIN(x->base, x->residual);
        x->rng = santa__job_rng(&j[i], SANTA__STREAM_VATTENTION, 0);
        x->free = -1;
        if (x->budget < x->residual) { santa__va_want(x, x->base, x->residual); sampling++; }
    }
    santa__va_draw(team, j, jobs);
    if (!sampling || team->has_failed) return;
    santa__va_messages(team, j, jobs, bytes);
    santa__va_run(team, santa__va_say_sums);
    all = santa__va_tell(team, jobs, bytes);
    if (team->has_failed) return;
    for (i = 0; i < jobs; i++) {
        santa__va *x = j[i].va;
        const int is_done = x->budget == x->residual;
        for (g = 0; g < group && !is_done; g++) {
            santa_audit *audit = &x->head[g].audit;
            audit->num_base = x->base;
            audit->needed = santa__va_needed_by_all(team, &j[i], g, all + (size_t)(i * group + g) * each,
                                                    (size_t)jobs * bytes);
            x->budget = SANTA__MAX(x->budget, audit->needed);
        }
        x->free = -1;
        if (is_done) x->mid = 0;                                      /* nothing is left */
        else if (x->budget < x->residual) santa__va_want(x, x->budget - x->base, x->residual - x->base);
    }
    santa__va_draw(team, j, jobs);
}

static void santa__run_va(santa__team *team, santa__job *j, int64_t jobs) {
    const santa__call *call = team->call;
    const santa_ranks_options *ranks = &call->p.o.ranks;
    const santa__meeting at = santa__meeting_of(&call->p);
    int64_t *mine = (int64_t *)(void *)(call->meeting + at.count), i, r, offset = 0, all = 0;
    santa__met *met = (santa__met *)(void *)(call->meeting + at.met);
    const int64_t *counts;
    santa__va row[SANTA__SPAN];
    mine[0] = j->end - j->begin;
    counts = santa__tell_counts(team, 1);
    if (team->has_failed) return;
    for (r = 0; r < ranks->count; r++) {
        if (r == ranks->rank) offset = all;
        all += SANTA__MAX(counts[r], 0);
        if (all > INT32_MAX) { team->has_failed = 1; return; }        /* not what ranks said */
    }
    memset(met, 0, (size_t)(jobs * j->group) * sizeof *met);
    for (i = 0; i < jobs * j->group; i++) met[i].choice.threshold = 0xffffffffu;
    for (i = 0; i < jobs; i++) {
        row[i] = santa__va_make(&j[i]);
        j[i].va = &row[i];
        row[i].met = met + i * j->group;
        santa__va_place(&row[i], offset, all);
    }
    for (i = 0; i < jobs * j->group; i++) met[i].choice.want = (double)row->heavy;
    if (row->heavy > 0 && santa__has_oracle(j->o)) santa__va_choose(team, j, jobs);
    if (team->has_failed) return;
    santa__va_run(team, santa__va_fix);
    for (i = 0; i < jobs; i++) mine[i] = row[i].residual;
    counts = santa__tell_counts(team, jobs);
    if (team->has_failed) return;
    for (i = 0; i < jobs; i++) {
        row[i].residual = 0;
        for (r = 0; r < ranks->count; r++) row[i].residual += SANTA__MAX(counts[r * jobs + i], 0);
    }
    santa__va_sample(team, j, jobs);
    if (!team->has_failed) santa__va_run(team, santa__va_end);
}

/* ------------------------------------------------------------ >>items */

static void santa__run_team(santa__team *team) {
    santa__job *j = team->j;
    /* dense_below: there is no room for chunks */
    const int is_shared = j->method == santa__method_of(j->o, santa__is_listed(j->p));
    int64_t h;
    int i;
    team->phase = NULL;
    team->together = team->pieces = 1;
    for (h = 0; h < team->jobs; h++) j[h].is_shared = is_shared;
    if (!is_shared) {
        santa__run_tasks(j->o, &team->call->pieces, team->jobs, santa__team_task, team);
        return;
    }
    if (santa__is_meeting_often(j->o)) {
        for (h = 0; h < team->jobs; h++) j[h].met = NULL;
        if (santa__is_copied(j->o)) santa__run_copied(team);
        else santa__run_sizes(team);
        return;
    }
    for (i = 0; i < SANTA__PHASES && j->method->phase[i].run; i++) {
        santa__run_phase(team, &j->method->phase[i]);
        if (i == 0 && santa__is_meeting(j->o)) santa__meet(team, j, team->jobs);
        if (team->has_failed) return;
    }
}

/* Items from i to `to`, span at a time, in the workspaces from `work` on. team: NULL, or whose
   threads share each job. */
static void santa__run_items(const santa__call *call, char *work, int64_t i, int64_t to, int64_t span,
                             santa__team *team) {
    santa__job j[SANTA__SPAN];
    int64_t q, h, jobs, rows;
    for (; i < to; i += jobs) {
        jobs = santa__call_jobs(call, j, work, i, to, span);
        for (q = 0; q < call->p.q_len; q += rows) {
            int64_t before[SANTA__SPAN];
            for (h = 0; h < jobs; h++) before[h] = j[h].stats->k_rows_read;
            rows = santa__next_rows(j, jobs, q);
            if (team) { team->j = j; team->jobs = jobs; }
            if (santa__is_meeting(j->o) && santa__has_traits(j->o, SANTA_ADAPTS)) {
                santa__run_va(team, j, jobs);
            } else if (j->begin == j->end && !santa__is_meeting_often(j->o)) {
                if (santa__is_meeting(j->o)) santa__meet(team, j, jobs);
            } else if (team) santa__run_team(team);
            else santa__run_alone(j, jobs);
            if (team && team->has_failed) return;
            for (h = 0; h < jobs; h++) santa__count_features(&j[h], j[h].stats->k_rows_read - before[h]);
        }
    }
}

static void santa__run_task(void *context, int64_t t) {
    santa__call *call = (santa__call *)context;
    const santa_options *o = &call->p.o;
    int64_t from, to = -1;
    while (santa__take(&call->pieces, t, &from, &to))                 /* pieces of a span of items each */
        santa__run_items(call, call->work + (uint64_t)(t * call->span) * call->plan.total,
                         o->item_begin + from * call->span,
                         SANTA__MIN(o->item_begin + to * call->span, o->item_end), call->span, NULL);
}

/* ------------------------------------------------------------ >>prefill-code */

/* Exact attention of many query rows: where K and V are read once for hundreds of queries it is
   the products that take the time. A piece of work is some query rows of one KV head and all
   keys that they see; 32 queries at a time lie side by side in a panel, each in a lane of its
   own from the scores to the output, so that nothing is added up across lanes and a query's
   bits do not depend on the others'. Keys come in blocks of 64, as floats in a tile. */
typedef struct santa__prefill {
    santa__job j;
    santa__lane *lane;
    float *q, *out, *s, *m, *k, *v;
    double *d;
    int64_t panels, gap, gap_end;            /* no row at work sees the keys gap .. gap_end - 1 */
    /* Whether q and k are in pairs of bf16; the weights and v. The latter are pairs of a key
       with an even number and the next, whatever the tile begins with: a row of zeros stands in
       front of s and v. */
    int     pairs_k, pairs_v;
    int64_t k_stride;                        /* of a key in its tile, in floats */
    const char *has_bad_value;               /* of each key in the tile: V has NaN or infinity */
    /* of >>sparse: panels of one head each, from this one of the group on; where the mask
       begins for these rows and the group's first head, bytes from head to head; or the item's
       sets */
    int     is_by_head;
    int64_t head, block, mask_step;
    const uint8_t *mask, *sets;
    float  *tally_m;
    double *tally_d;
} santa__prefill;

/* Pieces of an item: rows are cut where the position is a multiple of plan->rows. */
static int64_t santa__pieces_of_item(const santa__call *call) {
    return (call->p.q_len + 2 * call->plan.rows - 2) / call->plan.rows;
}

/* Rows [*from, *to) of piece number i. */
static void santa__rows_of_piece(const santa__prefill *x, int64_t i, int64_t *from, int64_t *to) {
    const int64_t rows = x->j.plan->rows, first = santa__key_range(&x->j.p->a, x->j.batch, 0).position,
                  skip = (first % rows + rows) % rows;
    *from = SANTA__MAX(i * rows - skip, 0);
    *to = SANTA__MIN((i + 1) * rows - skip, x->j.p->q_len);
}

/* The query in lane i, or -1: row by row, or head by head, each from a panel of its own on. */
static int64_t santa__lane_query(const santa__prefill *x, int64_t i) {
    const santa__job *j = &x->j;
    const int64_t lanes = (j->rows + SANTA__PANEL - 1) / SANTA__PANEL * SANTA__PANEL;
    if (!x->is_by_head) return i < j->queries ? i : -1;
    return i % lanes < j->rows ? i % lanes * j->group + x->head + i / lanes : -1;
}

/* The queries of the rows, as panels of [feature][lane], scaled, or [pair of
   features][lane]. */
static void santa__load_panels(santa__prefill *x) {
    const santa__job *j = &x->j;
    const int64_t lanes = x->panels * SANTA__PANEL, d = j->plan->d;
    float *f = SANTA__PART(float, j, row_a);
    int64_t i, c;
    for (i = 0; i < lanes; i++) {
        santa__lane *l = &x->lane[i];
        float *q = x->q + i / SANTA__PANEL * d * SANTA__PANEL + i % SANTA__PANEL;
        memset(l, 0, sizeof *l);
        l->x = santa__lane_query(x, i);
        x->m[i] = SANTA__MASKED;
        x->d[i] = 0.0;
        memset(f, 0, (size_t)d * sizeof *f);
        if (l->x >= 0) {
            l->range = santa__key_range(&j->p->a, j->batch, santa__row_of(j, l->x));
            santa__load_query(j, &j->p->a.q, l->x, f);
        }
        for (c = 0; c < d; c++) q[c * SANTA__PANEL] = x->pairs_k ? f[c] : f[c] * j->p->scale;
    }
    for (i = 0; i < x->panels && x->pairs_k; i++) {
        float *q = x->q + i * d * SANTA__PANEL;
        j->kernel->pair(q, d, SANTA__PANEL, q);
    }
    memset(x->out, 0, (size_t)(lanes * j->plan->dv_tile) * sizeof *x->out);
}

/* Keys first .. first + n - 1 of those to come as floats, or as_pairs bf16 as they are; those
   that follow sent for. Whether one has a number that is not finite; each key's in bad, of
   floats only. */
static int santa__load_tile(const santa__job *j, const santa__rows *r, int as_pairs, int64_t first, int n,
                            int64_t to_come, int64_t stride, float *tile, char *bad) {
    const char *row[2 * SANTA_BLOCK];
    const int64_t bytes = santa__bytes(r->dtype, r->dim);
    float *f = SANTA__PART(float, j, row_a);
    int64_t b;
    int i, any = 0;
    santa__point(r, santa__keys_from(NULL, first, to_come), n, SANTA_BLOCK, row);
    for (i = 0; i < n; i++, tile += stride) {
        for (b = 0; b < bytes; b += 64) SANTA__PREFETCH(row[i + SANTA_BLOCK] + r->at + b);
        if (as_pairs) {
            if (santa__is_adjacent(r)) memcpy(tile, row[i] + r->at, (size_t)bytes);
            else {
                santa__load_row(r, j->kernel, first + i, f);
                santa__pack_bf16(f, r->dim, 1, (char *)tile);
            }
            continue;
        }
        if (santa__is_adjacent(r)) {
            bad[i] = j->kernel->widen(r->dtype, row[i] + r->at, r->dim, tile) != 0;
            if (r->scales) santa__scale_row(r, first + i, tile);
        } else {
            memset(tile, 0, (size_t)stride * sizeof *tile);
            santa__load_row(r, j->kernel, first + i, tile);
        }
        if (!santa__is_adjacent(r) || r->scales) {
            int64_t c;
            for (c = 0, bad[i] = 0; c < r->dim; c++) if (santa__not_finite(tile[c])) bad[i] = 1;
        }
        any |= bad[i];
    }
    memset(tile, 0, (size_t)((SANTA_BLOCK - n) * stride) * sizeof *tile);
    return any;
}

/* The scores of a tile's keys, first and on, for the lanes of panel p, masked where they see
   none. */
static void santa__panel_scores(const santa__prefill *x, int64_t p, int64_t first, int n, float *s) {
    const santa__job *j = &x->j;
    const santa_attention *a = &j->p->a;
    const santa__lane *lane = x->lane + p * SANTA__PANEL;
    santa__panel y;
    int i, l, whole = n == SANTA_BLOCK;
    memset(&y, 0, sizeof y);
    y.a = x->k;
    y.stride = x->k_stride;
    y.lanes = SANTA__PANEL;
    y.rows = SANTA_BLOCK;
    y.pairs = x->pairs_k;
    y.n = j->plan->d >> y.pairs;
    y.scale = j->p->scale;
    y.b = x->q + p * j->plan->d * SANTA__PANEL;
    y.c = s;
    j->kernel->panel(&y);
    if (a->soft_cap > 0.0f)
        for (i = 0; i < n * SANTA__PANEL; i += SANTA_BLOCK) santa__soft_cap(j, s + i);
    for (l = 0; l < SANTA__PANEL; l++) {
        const santa__range *r = &lane[l].range;
        const int64_t begin = r->begin - first, end = SANTA__MIN(r->end - first, (int64_t)n),
                      gap = r->gap - first, gap_end = r->gap_end - first;
        if (a->alibi_slopes && lane[l].x >= 0) {
            const float slope = a->alibi_slopes[santa__head(j, lane[l].x)];
            for (i = 0; i < n; i++)
                s[i * SANTA__PANEL + l] += slope * (float)(first + i - r->position);
        }
        if (whole && begin <= 0 && end >= SANTA_BLOCK && (gap_end <= 0 || gap >= SANTA_BLOCK)) continue;
        for (i = 0; i < SANTA_BLOCK; i++)
            if (i < begin || i >= end || (i >= gap && i < gap_end)) s[i * SANTA__PANEL + l] = SANTA__MASKED;
    }
}

/* How many of the n keys from first on are in a range. */
static int64_t santa__keys_seen(const santa__range *r, int64_t first, int n) {
    return SANTA__MAX(SANTA__MIN(r->gap, first + n) - SANTA__MAX(r->begin, first), 0)
           + SANTA__MAX(SANTA__MIN(r->end, first + n) - SANTA__MAX(r->gap_end, first), 0);
}

/* The numerators gain the weights times V. A row with NaN or infinity would reach the lanes
   that do not see it, as 0 times that: it goes by itself. */
static void santa__panel_values(const santa__prefill *x, int64_t p, int64_t first, int n, const float *keep,
                                int any_bad) {
    const santa__job *j = &x->j;
    float *out = x->out + p * j->plan->dv_tile * SANTA__PANEL, *f = SANTA__PART(float, j, row_a);
    float weights[SANTA_BLOCK / 2 * SANTA__PANEL];
    santa__panel y;
    int64_t c;
    int i, l;
    memset(&y, 0, sizeof y);
    y.a = x->v;
    y.stride = j->plan->dv_tile;
    y.lanes = SANTA__PANEL;
    y.rows = (j->plan->dv + 7) / 8 * 8;
    y.n = n;
    y.b = x->s;
    if (x->pairs_v) {
        const int64_t odd = first & 1;
        j->kernel->pair(x->s - odd * SANTA__PANEL, SANTA_BLOCK, SANTA__PANEL, weights);
        y.pairs = 1;
        y.a -= odd * y.stride;
        y.n = (n + odd + 1) / 2;
        y.b = weights;
    }
    y.c = out;
    y.keep = keep;
    y.of_values = 1;
    j->kernel->panel(&y);
    for (i = 0; i < n && any_bad; i++) {
        if (!x->has_bad_value[i]) continue;
        santa__load_row(&j->v, j->kernel, first + i, f);
        for (l = 0; l < SANTA__PANEL; l++) {
            if (santa__keys_seen(&x->lane[p * SANTA__PANEL + l].range, first + i, 1) == 0) continue;
            for (c = 0; c < j->plan->dv; c++)
                out[c * SANTA__PANEL + l] += x->s[i * SANTA__PANEL + l] * f[c];
        }
    }
}

/* The lanes that a NaN or +inf among the scores spoils: results or, of keys that only row_mass
   looks at, nothing else. */
static void santa__find_bad(const santa__prefill *x, int64_t p, int64_t first, int n, int is_read) {
    float s[SANTA_BLOCK * SANTA__PANEL];
    int i;
    santa__panel_scores(x, p, first, n, s);
    for (i = 0; i < SANTA_BLOCK * SANTA__PANEL; i++)
        if (santa__nan_or_plus_inf(s[i]))
            x->lane[p * SANTA__PANEL + i % SANTA__PANEL].bad |= is_read ? SANTA__BAD_READ : SANTA__BAD_MASS;
}

/* The masses of one tile's keys join the softmax so far of the lanes of panel p, whose largest
   scores and sums are m and d. The weights are in x->s; keep: what the numerators are to be
   multiplied with. */
static void santa__panel_join(const santa__prefill *x, int64_t p, int64_t first, int n, float *m, double *d,
                              float *keep) {
    const int is_read = m == x->m;
    float sum[SANTA__PANEL];
    int l;
    m += p * SANTA__PANEL;
    d += p * SANTA__PANEL;
    santa__panel_scores(x, p, first, n, x->s);
    if (x->j.kernel->panel_mass(x->s, m, keep, sum)) santa__find_bad(x, p, first, n, is_read);
    for (l = 0; l < SANTA__PANEL; l++) d[l] = d[l] * (double)keep[l] + (double)sum[l];
}

/* The keys of one tile join the lanes of panel p. */
static void santa__panel_attend(const santa__prefill *x, int64_t p, int64_t first, int n, int any_bad) {
    float keep[SANTA__PANEL];
    santa__lane *lane = x->lane + p * SANTA__PANEL;
    int l;
    santa__panel_join(x, p, first, n, x->m, x->d, keep);
    for (l = 0; l < SANTA__PANEL; l++) lane[l].read += santa__keys_seen(&lane[l].range, first, n);
    santa__panel_values(x, p, first, n, keep, any_bad);
}

/* Whether some lane of panel p sees one of the n keys from first on. */
static int santa__panel_sees(const santa__prefill *x, int64_t p, int64_t first, int n) {
    const santa__lane *lane = x->lane + p * SANTA__PANEL;
    int l = 0;
    while (l < SANTA__PANEL && santa__keys_seen(&lane[l].range, first, n) == 0) l++;
    return l < SANTA__PANEL;
}

/* Share of a query's softmax in the keys it read; what it did not read is in the tally. */
static float santa__row_mass(const santa__prefill *x, int64_t i) {
    const double top = (double)SANTA__MAX(x->m[i], x->tally_m[i]),
                 read = x->d[i] > 0.0 ? x->d[i] * exp((double)x->m[i] - top) : 0.0,
                 rest = x->tally_d[i] > 0.0 ? x->tally_d[i] * exp((double)x->tally_m[i] - top) : 0.0;
    return x->lane[i].bad ? santa__nan() : read + rest > 0.0 ? (float)(read / (read + rest)) : 1.0f;
}

/* Results of all lanes; counts. read: keys of each row that some head read, where they
   differ. */
static void santa__panels_end(santa__prefill *x, const int64_t *read) {
    santa__job *j = &x->j;
    float *acc = SANTA__PART(float, j, acc), *mass = j->o->sample_attention.row_mass, lse;
    int64_t i, c;
    for (i = 0; i < x->panels * SANTA__PANEL; i++) {
        const santa__lane *l = &x->lane[i];
        const float *out = x->out + i / SANTA__PANEL * j->plan->dv_tile * SANTA__PANEL + i % SANTA__PANEL;
        double scale;
        int64_t keys;
        if (l->x < 0) continue;
        scale = santa__normalise(j, l->x, x->m[i], x->d[i], &lse);
        for (c = 0; c < j->plan->dv; c++)
            acc[c] = x->d[i] > 0.0 ? (float)((double)out[c * SANTA__PANEL] * scale) : 0.0f;
        santa__write(j, l->x, l->bad & SANTA__BAD_READ ? NULL : acc, lse, 0.0f);
        if (x->tally_m && mass) mass[santa__result_at(j, l->x)] = santa__row_mass(x, i);
        j->stats->rows++;
        j->stats->v_rows_head += l->read;
        if (l->x % j->group) continue;
        keys = x->is_by_head ? read[l->x / j->group] : l->read;
        j->stats->v_rows_read += keys;
        if (x->tally_m) keys = santa__keys_of(l->range);
        j->stats->keys += santa__keys_of(l->range);
        j->stats->k_rows_read += keys;
        santa__count_features(j, keys);
    }
}

static void santa__prefill_make(santa__prefill *x, const santa__call *call, char *work, int64_t item) {
    santa__job *j = &x->j;
    memset(x, 0, sizeof *x);
    santa__job_make(j, call, work, item / call->p.kv_heads, item % call->p.kv_heads);
    j->num_active = call->plan.d;
    x->lane = SANTA__PART(santa__lane, j, panel_x);
    x->q = SANTA__PART(float, j, panel_q);
    x->out = SANTA__PART(float, j, panel_out);
    x->s = SANTA__PART(float, j, panel_scores) + SANTA__PANEL;
    memset(x->s - SANTA__PANEL, 0, SANTA__PANEL * sizeof *x->s);
    x->m = SANTA__PART(float, j, panel_m);
    x->d = SANTA__PART(double, j, panel_d);
    x->k = SANTA__PART(float, j, tile_k);
    x->pairs_k = santa__form(j) == SANTA__PAIRS && !j->k.scales;
    x->pairs_v = x->pairs_k && j->v.dtype == SANTA_BF16 && !j->v.scales
                 && j->p->a.out.dtype == SANTA_BF16;
    x->k_stride = x->pairs_k ? j->plan->d / 2 + 16 : j->plan->d_tile;
    x->v = SANTA__PART(float, j, tile_v) + j->plan->dv_tile;
}

/* Rows from .. to - 1 of so many heads of the group, as panels; the keys that they see. Whether
   there are any. */
static int santa__prefill_rows(santa__prefill *x, int64_t from, int64_t to, int64_t heads, int64_t *begin,
                               int64_t *end) {
    santa__job *j = &x->j;
    int64_t i;
    j->q_index = from;
    j->rows = to - from;
    j->queries = j->rows * j->group;
    x->panels = x->is_by_head ? heads * ((j->rows + SANTA__PANEL - 1) / SANTA__PANEL)
                              : (j->queries + SANTA__PANEL - 1) / SANTA__PANEL;
    santa__load_panels(x);
    for (*begin = x->gap_end = INT64_MAX, *end = i = 0; i < x->panels * SANTA__PANEL; i++) {
        const santa__range *r = &x->lane[i].range;
        if (r->begin == r->end) continue;
        *begin = SANTA__MIN(*begin, r->begin);
        *end = SANTA__MAX(*end, r->end);
        x->gap_end = SANTA__MIN(x->gap_end, r->gap_end);
    }
    x->gap = SANTA__MAX(santa__first_end(&j->p->a, j->batch), *begin);
    x->gap_end = SANTA__MAX(x->gap_end, x->gap);
    return *begin < *end;
}

/* ------------------------------------------------------------ >>sparse-code */

/* SANTA_SAMPLE_ATTENTION, see >>sparse. Blocks of keys and of query rows are both cut at
   multiples of block_size, the rows' by position: so a slash, keys that lie s * block_size up
   to (s + 1) * block_size
   - 1 behind their query, touches two blocks of keys in each block of rows. */

static int64_t santa__floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Whether block b of keys is in the sets of a head for block r of rows: columns, then slashes.
   The first block that has keys and the diagonal are always there. */
static int santa__in_sets(const uint8_t *sets, int64_t blocks, int64_t first, int64_t r, int64_t b) {
    if (b <= first || b >= r) return 1;
    return sets[b] | sets[blocks + r - b] | sets[blocks + r - b - 1];
}

/* Whether the rows at work, of head h of the group, read the block of keys with key `first`. */
static int santa__is_kept(const santa__prefill *x, int64_t h, int64_t first) {
    const int64_t size = x->j.o->sample_attention.block_size, b = first / size,
                  blocks = santa__mask_blocks(x->j.p),
                  start = santa__kv_start(&x->j.p->a, x->j.batch) / size;
    if (x->mask) return x->mask[h * x->mask_step + b] != 0;
    return !x->sets || santa__in_sets(x->sets + h * 2 * blocks, blocks, start, x->block, b);
}

static int santa__panel_keeps(const santa__prefill *x, int64_t p, int64_t first) {
    const int64_t of_head = (x->j.rows + SANTA__PANEL - 1) / SANTA__PANEL;
    return santa__is_kept(x, x->is_by_head ? x->head + p / of_head : 0, first);
}

static char *santa__sets_of_call(const santa__call *call) {
    return call->work + (uint64_t)call->works * call->plan.total;
}
/* An item's sets, [group][columns, slashes][blocks]. */
static uint8_t *santa__sets_of(const santa__call *call, int64_t item) {
    const int64_t at = item - call->p.o.item_begin;
    return (uint8_t *)santa__sets_of_call(call)
           + call->p.group * (8 * santa__items(&call->p.o) + at * 2 * santa__mask_blocks(&call->p));
}
/* Whether its heads read everything, [group]. */
static int64_t *santa__is_dense_of(const santa__call *call, int64_t item) {
    return (int64_t *)(void *)santa__sets_of_call(call) + (item - call->p.o.item_begin) * call->p.group;
}

/* Number of a sequence's first row that sees a key: a causal call may have more rows than keys,
   and padding before them. */
static int64_t santa__first_row(const santa__job *j) {
    const int64_t position = santa__key_range(&j->p->a, j->batch, 0).position,
                  before = santa__kv_start(&j->p->a, j->batch) - position;
    return !j->p->a.causal ? 0 : SANTA__MIN(SANTA__MAX(before, 0), j->p->q_len);
}

/* Rows [*from, *to) of slice i, and whether there is one: whole blocks of rows, equidistant,
   but for the last slice, which ends with the last row. All rows where slices would meet. */
static int santa__slice(const santa__job *j, int64_t i, int64_t *from, int64_t *to) {
    const int64_t block = j->o->sample_attention.block_size, chunks = j->o->sample_attention.num_chunks,
                  first = santa__first_row(j), rows = j->p->q_len - first,
                  start = santa__key_range(&j->p->a, j->batch, first).position;
    if (rows / chunks < block) {
        *from = first + i * block;
        *to = SANTA__MIN(*from + block, j->p->q_len);
        return *from < *to;
    }
    *to = j->p->q_len;
    if (i < chunks - 1) *to = first + (start + (i + 1) * rows / chunks) / block * block - start;
    *from = SANTA__MAX(*to - block, first);
    return i < chunks;
}

/* Where a sampled query's mass goes: its slashes are those of the block's first key, and the
   one before. Keys up to `cut` belong to the former. */
static int64_t santa__slash_of(const santa__lane *l, int64_t first, int64_t block, int *cut) {
    const int64_t lag = l->range.position - first;
    *cut = (int)SANTA__MIN(lag % block, (int64_t)SANTA_BLOCK);
    return lag / block;
}

/* First stage for a unit of up to SANTA_BLOCK rows of one head: the softmax of each by block.
   Returns 0 where a score is NaN or +inf. */
static int santa__sample_unit(santa__prefill *x, int64_t from, int64_t to, santa__sampled *sampled) {
    const santa__job *j = &x->j;
    const int64_t block = j->o->sample_attention.block_size, stride = x->k_stride;
    float m[SANTA__PANEL], keep[SANTA__PANEL], sum[SANTA__PANEL];
    char bad[SANTA_BLOCK];
    int64_t begin, end, p, b, l;
    int i, is_bad = 0;
    santa__prefill_rows(x, from, to, 1, &begin, &end);
    for (b = 0; b * SANTA_BLOCK < end; b++) {
        const int64_t first = b * SANTA_BLOCK;
        const int n = (int)(SANTA__MIN(first + SANTA_BLOCK, end) - first),
                  skip = (int)SANTA__MAX(SANTA__MIN(begin, end) - first, 0);   /* not to be read */
        santa__sampled *y = &sampled[b];
        memset(y, 0, sizeof *y);
        for (l = 0; l < SANTA_BLOCK; l++) y->max[l] = SANTA__MASKED;
        if (first + SANTA_BLOCK <= begin) continue;
        santa__load_tile(j, &j->k, x->pairs_k, first + skip, n - skip, end - first - skip, stride, x->k,
                         bad);
        if (skip > 0) {
            memmove(x->k + skip * stride, x->k, (size_t)((n - skip) * stride) * sizeof *x->k);
            memset(x->k, 0, (size_t)(skip * stride) * sizeof *x->k);
        }
        for (p = 0; p < x->panels; p++) {
            const santa__lane *lane = x->lane + p * SANTA__PANEL;
            if (!santa__panel_sees(x, p, first, n)) continue;
            santa__panel_scores(x, p, first, n, x->s);
            for (l = 0; l < SANTA__PANEL; l++) m[l] = SANTA__MASKED;
            is_bad |= j->kernel->panel_mass(x->s, m, keep, sum);
            memcpy(y->max + p * SANTA__PANEL, m, sizeof m);
            for (l = 0; l < SANTA__PANEL; l++) {
                float late = 0.0f;
                int cut;
                if (santa__keys_seen(&lane[l].range, first, n) == 0) continue;
                santa__slash_of(&lane[l], first, block, &cut);
                for (i = 0; i <= cut && i < SANTA_BLOCK; i++) late += x->s[i * SANTA__PANEL + l];
                y->late[p * SANTA__PANEL + l] = late;
                if (cut < SANTA_BLOCK - 1)
                    y->early[p * SANTA__PANEL + l] = SANTA__MAX(sum[l] - late, 0.0f);
            }
        }
    }
    return !is_bad;
}

/* A unit's blocks become shares of the queries' softmax, and join the masses of columns and
   slashes. */
static void santa__sample_masses(const santa__prefill *x, santa__sampled *sampled, double *mass) {
    const santa__job *j = &x->j;
    const int64_t block = j->o->sample_attention.block_size, blocks = santa__mask_blocks(j->p);
    int64_t l, b, tiles = 0;
    float top[SANTA_BLOCK], e[SANTA_BLOCK];
    double sum[SANTA_BLOCK];
    for (l = 0; l < SANTA_BLOCK; l++) { top[l] = SANTA__MASKED; sum[l] = 0.0; }
    for (l = 0; l < j->rows; l++)
        tiles = SANTA__MAX(tiles, (x->lane[l].range.end + SANTA_BLOCK - 1) / SANTA_BLOCK);
    for (b = 0; b < tiles; b++)
        for (l = 0; l < j->rows; l++) top[l] = SANTA__MAX(top[l], sampled[b].max[l]);
    for (b = 0; b < tiles; b++) {
        santa__sampled *y = &sampled[b];
        for (l = 0; l < SANTA_BLOCK; l++) e[l] = y->max[l] - top[l];
        j->kernel->exps(e);
        for (l = 0; l < j->rows; l++) {
            y->late[l] *= e[l];
            y->early[l] *= e[l];
            sum[l] += (double)y->late[l] + (double)y->early[l];
        }
    }
    for (b = 0; b < tiles; b++) {
        santa__sampled *y = &sampled[b];
        for (l = 0; l < j->rows; l++) {
            const float unit = sum[l] > 0.0 ? (float)(1.0 / sum[l]) : 0.0f;
            int64_t slash;
            int cut;
            y->late[l] *= unit;
            y->early[l] *= unit;
            if (santa__keys_seen(&x->lane[l].range, b * SANTA_BLOCK, SANTA_BLOCK) == 0) continue;
            slash = santa__slash_of(&x->lane[l], b * SANTA_BLOCK, block, &cut);
            mass[b * SANTA_BLOCK / block] += (double)y->late[l] + (double)y->early[l];
            mass[blocks + slash] += (double)y->late[l];
            if (slash > 0) mass[blocks + slash - 1] += (double)y->early[l];
        }
    }
}

/* Whether block a of keys comes before block b in a set: by mass, then by number. */
static int santa__comes_first(const double *mass, int32_t a, int32_t b) {
    return mass[a] > mass[b] || (!(mass[a] < mass[b]) && a < b);
}

/* The fewest blocks whose mass is alpha of all. Returns how many. */
static int64_t santa__choose_set(const double *mass, int64_t n, double alpha, int32_t *heap, uint8_t *set) {
    double total = 0.0, held = 0.0;
    int64_t i, at, child, count = 0, left = n;
    for (i = 0; i < n; i++) total += mass[i];
    for (i = 0; i < n; i++) set[i] = alpha >= 1.0;
    if (alpha >= 1.0) return n;                                       /* what no sample saw, too */
    for (i = 0; i < n; i++) {
        for (at = i; at > 0 && santa__comes_first(mass, (int32_t)i, heap[(at - 1) / 2]); at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
        heap[at] = (int32_t)i;
    }
    while (left > 0 && held < total * alpha * (1.0 - 1e-7)) {
        const int32_t last = heap[--left], best = left > 0 ? heap[0] : last;
        set[best] = 1;
        held += mass[best];
        count++;
        for (at = 0; (child = 2 * at + 1) < left; at = child) {
            if (child + 1 < left && santa__comes_first(mass, heap[child + 1], heap[child])) child++;
            if (santa__comes_first(mass, last, heap[child])) break;
            heap[at] = heap[child];
        }
        heap[at] = last;
    }
    return count;
}

/* Mean of the worst 1 % of n shares, so many apart, at least of one; *least: the smallest. NaN
   where a share is. */
static double santa__low_mean(const float *share, int64_t n, int64_t apart, double *least) {
    const int64_t worst = (n + 99) / 100;
    double sum = 0.0, last = -1.0;
    int64_t i, k, taken = 0;
    *least = 1.0;
    while (taken < worst) {                                   /* each value, as often as it is there */
        double next = 2.0;
        int is_nan = 0;
        for (i = k = 0; i < n; i++) {
            const double f = (double)share[i * apart];
            is_nan |= santa__is_nan(share[i * apart]);
            if (f > last && f < next) { next = f; k = 0; }
            k += f >= next && f <= next;
        }
        if (is_nan || k == 0) return *least = (double)santa__nan();
        if (taken == 0) *least = next;
        k = SANTA__MIN(k, worst - taken);
        sum += next * (double)k;
        taken += k;
        last = next;
    }
    return worst > 0 ? sum / (double)worst : 1.0;
}

/* First and second stage of one head: its sets. */
static void santa__sample_head(const santa__call *call, char *work, int64_t item, int64_t h) {
    santa__prefill x;
    const santa__job *j = &x.j;
    const int64_t blocks = santa__mask_blocks(&call->p), tiles = call->plan.n / SANTA_BLOCK + 1,
                  block = call->p.o.sample_attention.block_size;
    santa__sampled *sampled;
    santa_sample_audit *audit;
    double *mass, sum = 0.0, least;
    float *share;
    int is_bad = 0;
    uint8_t *sets = santa__sets_of(call, item) + h * 2 * blocks;
    int64_t i, from, to, row, unit = 0, rows = 0, used, start, b, l, columns, slashes;
    santa__prefill_make(&x, call, work, item);
    x.is_by_head = 1;
    x.head = h;
    used = (santa__seq_len(&call->p.a, j->batch) + block - 1) / block;
    sampled = SANTA__PART(santa__sampled, j, sampled);
    mass = SANTA__PART(double, j, set_mass);
    share = SANTA__PART(float, j, unit_mass);
    memset(mass, 0, (size_t)(2 * blocks) * sizeof *mass);
    for (i = 0; santa__slice(j, i, &from, &to); i++)
        for (row = from; row < to; row += SANTA_BLOCK, unit++) {
            const int64_t last = SANTA__MIN(row + SANTA_BLOCK, to);
            if (!santa__sample_unit(&x, row, last, sampled + unit * tiles))
                santa__is_dense_of(call, item)[h] = is_bad = 1;       /* so that the NaN shows */
            santa__sample_masses(&x, sampled + unit * tiles, mass);
            for (l = 0; l < last - row && h == 0; l++) {
                const int64_t keys = santa__keys_of(x.lane[l].range);
                j->stats->k_rows_read += keys;
                santa__count_features(&x.j, keys);
            }
        }
    memset(sets, 0, (size_t)(2 * blocks));
    columns = santa__choose_set(mass, used, call->p.o.sample_attention.alpha_columns,
                                SANTA__PART(int32_t, j, set_order), sets);
    slashes = santa__choose_set(mass + blocks, used, call->p.o.sample_attention.alpha_slashes,
                                SANTA__PART(int32_t, j, set_order), sets + blocks);
    start = santa__kv_start(&call->p.a, j->batch);
    for (i = unit = 0; santa__slice(j, i, &from, &to); i++)
        for (row = from; row < to; row += SANTA_BLOCK, unit++)
            for (l = row; l < SANTA__MIN(row + SANTA_BLOCK, to); l++) {
                const santa__range r = santa__key_range(&call->p.a, j->batch, l);
                double held = 0.0;
                for (b = 0; b * SANTA_BLOCK < r.end; b++)
                    if (santa__in_sets(sets, blocks, start / block, r.position / block,
                                       b * SANTA_BLOCK / block))
                        held += (double)sampled[unit * tiles + b].late[l - row]
                              + (double)sampled[unit * tiles + b].early[l - row];
                share[rows++] = (float)held;
                sum += held;
            }
    if (!call->p.o.sample_attention.audit) return;
    audit = call->p.o.sample_attention.audit + item * call->p.group + h;      /* heads of items in a row */
    audit->columns = columns;
    audit->slashes = slashes;
    audit->sampled_mass = rows > 0 ? sum / (double)rows : 1.0;
    audit->sampled_low = santa__low_mean(share, rows, 1, &least);
    if (is_bad) audit->sampled_mass = audit->sampled_low = (double)santa__nan();
}

/* Where the mask or the sets are looked up for the rows from row on, all in one block. */
static void santa__begin_block(santa__prefill *x, int64_t row) {
    const santa_sample_attention_options *o = &x->j.o->sample_attention;
    const santa_attention *a = &x->j.p->a;
    const int64_t block = o->block_size, k_blocks = santa__mask_blocks(x->j.p);
    const int64_t first = santa__floor_div(santa__key_range(a, x->j.batch, 0).position, block);
    x->block = santa__floor_div(santa__key_range(a, x->j.batch, row).position, block);
    if (!o->mask) return;
    x->mask_step = santa__q_blocks(x->j.p->q_len, block) * k_blocks;
    x->mask = o->mask + (x->j.batch * x->j.p->heads + x->j.kv_head * x->j.group) * x->mask_step
            + (x->block - first) * k_blocks;
}

/* Blocks that a sequence's rows see, and how many of them head h reads. */
SANTA__ONCE
static int64_t santa__count_blocks(santa__prefill *x, int64_t h, int64_t *all) {
    const santa__job *j = &x->j;
    const int64_t block = j->o->sample_attention.block_size, rows = j->p->q_len;
    int64_t kept = 0, row = santa__first_row(j), b;
    for (*all = 0; row < rows;) {
        const santa__range top = santa__key_range(&j->p->a, j->batch, row);
        const int64_t next = SANTA__MIN(row + block - (top.position - santa__floor_div(top.position, block)
                                                                          * block), rows);
        const santa__range last = santa__key_range(&j->p->a, j->batch, next - 1);
        santa__begin_block(x, row);
        /* none where the rows see no key */
        for (b = top.begin / block; top.begin < last.end && b * block < last.end; b++) {
            kept += santa__is_kept(x, h, b * block);
            ++*all;
        }
        row = next;
    }
    return kept;
}

/* The heads of a group agree, and on whether to read everything. */
SANTA__ONCE
static void santa__join_sets(const santa__call *call, char *work, int64_t item, int64_t piece) {
    const santa_sample_attention_options *o = &call->p.o.sample_attention;
    const int64_t group = call->p.group, size = 2 * santa__mask_blocks(&call->p),
                  apart = o->per_head ? group : 1;                    /* heads whose sets differ */
    santa_sample_audit *audit = o->audit ? o->audit + item * group : NULL;
    uint8_t *sets = santa__sets_of(call, item);
    int64_t h, i, all = 0, kept = 0, *is_dense = santa__is_dense_of(call, item), from, to, rows = 0;
    double share, cost = 0.0;
    santa__prefill x;
    (void)piece;
    santa__prefill_make(&x, call, work, item);
    for (h = apart; h < group; h++) for (i = 0; i < size; i++) sets[i] |= sets[h * size + i];
    for (h = apart; h < group; h++) memcpy(sets + h * size, sets, (size_t)size);
    for (i = 0; santa__slice(&x.j, i, &from, &to); i++) rows += to - from;
    if (rows > 0) cost = (double)rows / (double)(call->p.q_len - santa__first_row(&x.j));
    x.sets = sets;
    for (h = 0; h < apart; h++) {
        int64_t of_head;
        kept += i = santa__count_blocks(&x, h, &of_head);
        all += of_head;
        if (audit) audit[h].kept_share = of_head > 0 ? (double)i / (double)of_head : 1.0;
    }
    share = all > 0 ? (double)kept / (double)all : 1.0;
    for (h = 1; h < group; h++) *is_dense |= is_dense[h];
    *is_dense |= share + cost > o->dense_above;
    for (h = 0; h < group && audit; h++) {
        audit[h].cost = cost;
        audit[h].is_dense = *is_dense != 0;
        audit[h].kept_share = *is_dense ? 1.0 : audit[h % apart].kept_share;
    }
    if (*is_dense) x.j.stats->dense_rows += call->p.q_len * group;
}

/* The mask of the rows at work goes to mask_out. */
SANTA__ONCE
static void santa__write_mask(const santa__prefill *x, int64_t q_block) {
    const int64_t q_blocks = santa__q_blocks(x->j.p->q_len, x->j.o->sample_attention.block_size);
    const int64_t k_blocks = santa__mask_blocks(x->j.p), block = x->j.o->sample_attention.block_size;
    int64_t h, b;
    for (h = 0; h < x->j.group; h++) {
        const int64_t head = x->j.batch * x->j.p->heads + x->j.kv_head * x->j.group + h;
        uint8_t *to = x->j.o->sample_attention.mask_out + (head * q_blocks + q_block) * k_blocks;
        for (b = 0; b < k_blocks; b++)
            to[b] = (uint8_t)((x->mask || b <= x->block) && santa__is_kept(x, h, b * block));
    }
}

/* What the rows of a piece may read, where the method is sparse. */
static void santa__sparse_rows(santa__prefill *x, const santa__call *call, int64_t item, int64_t from) {
    const santa_sample_attention_options *o = &call->p.o.sample_attention;
    const santa__range first = santa__key_range(&call->p.a, x->j.batch, 0);
    santa__begin_block(x, from);
    x->is_by_head = o->per_head || o->mask;
    if (!o->mask && !*santa__is_dense_of(call, item)) x->sets = santa__sets_of(call, item);
    if (o->row_mass) {
        x->tally_m = SANTA__PART(float, &x->j, tally_m);
        x->tally_d = SANTA__PART(double, &x->j, tally_d);
    }
    if (o->mask_out && (from == 0 || (first.position + from) % o->block_size == 0))
        santa__write_mask(x, x->block - santa__floor_div(first.position, o->block_size));
}

/* Keys first .. first + n - 1, of so many to come. */
static void santa__prefill_tile(santa__prefill *x, int64_t first, int n, int64_t to_come, int64_t *read) {
    const santa__job *j = &x->j;
    const int64_t dv = j->plan->dv_tile;
    float keep[SANTA__PANEL];
    char bad[SANTA_BLOCK];
    int64_t p, i;
    int any_bad = 0, has_k = 0, has_v = 0;
    for (p = 0; p < x->panels; p++) {
        const int keeps = santa__panel_keeps(x, p, first);
        if (!(keeps || x->tally_m) || !santa__panel_sees(x, p, first, n)) continue;
        if (!has_k) santa__load_tile(j, &j->k, x->pairs_k, first, n, to_come, x->k_stride, x->k, bad);
        has_k = 1;
        if (!keeps) {                                                 /* for row_mass */
            santa__panel_join(x, p, first, n, x->tally_m, x->tally_d, keep);
            continue;
        }
        if (!has_v) {
            any_bad = santa__load_tile(j, &j->v, 0, first, n, to_come, dv, x->v, bad);
            for (i = 0; i < n && any_bad; i++)
                if (bad[i]) memset(x->v + i * dv, 0, (size_t)dv * sizeof *x->v);
            if (x->pairs_v) {
                float *v = x->v - (first & 1) * dv;
                memset(x->v - dv, 0, (size_t)dv * sizeof *v);
                j->kernel->pair(v, SANTA_BLOCK, dv, v);
            }
        }
        has_v = 1;
        x->has_bad_value = bad;
        santa__panel_attend(x, p, first, n, any_bad);
    }
    for (i = 0; i < j->rows && has_v && x->is_by_head; i++) {
        const santa__range r = santa__key_range(&j->p->a, j->batch, j->q_index + i);
        read[i] += santa__keys_seen(&r, first, n);
    }
}

static void santa__prefill_piece(const santa__call *call, char *work, int64_t item, int64_t piece) {
    santa__prefill x;
    int64_t from, to, begin, end, b, i, read[SANTA__PIECE];
    int part;
    santa__prefill_make(&x, call, work, item);
    santa__rows_of_piece(&x, piece, &from, &to);
    if (from >= to) return;
    memset(read, 0, sizeof read);
    if (santa__has_traits(&call->p.o, SANTA_SPARSE)) santa__sparse_rows(&x, call, item, from);
    if (!santa__prefill_rows(&x, from, to, call->p.group, &begin, &end)) begin = end = 0;
    for (i = 0; i < x.panels * SANTA__PANEL && x.tally_m; i++) {
        x.tally_m[i] = SANTA__MASKED;
        x.tally_d[i] = 0.0;
    }
    for (b = begin / SANTA_BLOCK; b * SANTA_BLOCK < end; b++)
        for (part = 0; part < 2; part++) {                            /* first_tokens are tiles apart */
            const int64_t first = SANTA__MAX(b * SANTA_BLOCK, part ? x.gap_end : begin),
                          stop = part ? end : SANTA__MIN(x.gap, end),
                          last = SANTA__MIN((b + 1) * SANTA_BLOCK, stop);
            if (first < last)
                santa__prefill_tile(&x, first, (int)(last - first),
                                    x.is_by_head || x.sets ? last - first : stop - first, read);
        }
    santa__panels_end(&x, read);
}

/* cra and low_mass of an item's heads. */
SANTA__ONCE
static void santa__audit_rows(const santa__call *call, char *work, int64_t item, int64_t piece) {
    const santa_sample_attention_options *o = &call->p.o.sample_attention;
    const int64_t n = call->p.q_len, heads = call->p.heads;
    int64_t h;
    (void)work; (void)piece;
    for (h = item * call->p.group; h < (item + 1) * call->p.group; h++)
        o->audit[h].low_mass = santa__low_mean(o->row_mass + h / heads * n * heads + h % heads, n, heads,
                                               &o->audit[h].cra);
}

typedef void (*santa__prefill_stage)(const santa__call *call, char *work, int64_t item, int64_t piece);

/* What threads do for each item and piece of it, those pieces first that come last. */
typedef struct santa__stage { santa__call *call; santa__prefill_stage run; int64_t pieces; } santa__stage;

SANTA__ONCE
static void santa__stage_task(void *context, int64_t t) {
    const santa__stage *stage = (const santa__stage *)context;
    santa__call *call = stage->call;
    const int64_t items = santa__items(&call->p.o);
    int64_t at, to = -1;
    while (santa__take(&call->pieces, t, &at, &to))
        for (; at < to; at++)
            stage->run(call, call->work + (uint64_t)t * call->plan.total, call->p.o.item_begin + at % items,
                       stage->pieces - 1 - at / items);
}

static void santa__run_stage(santa__call *call, santa__prefill_stage run, int64_t pieces) {
    santa__stage stage;
    stage.call = call;
    stage.run = run;
    stage.pieces = pieces;
    santa__run_tasks(&call->p.o, &call->pieces, santa__items(&call->p.o) * pieces, santa__stage_task,
                     &stage);
}

/* An audit where nothing was sampled. */
static void santa__clear_audits(const santa__call *call) {
    const santa_sample_attention_options *o = &call->p.o.sample_attention;
    const int64_t end = call->p.o.item_end * call->p.group;
    int64_t h;
    for (h = call->p.o.item_begin * call->p.group; o->audit && h < end; h++) {
        memset(&o->audit[h], 0, sizeof *o->audit);
        o->audit[h].kept_share = o->audit[h].sampled_mass = o->audit[h].sampled_low = 1.0;
        o->audit[h].cra = o->audit[h].low_mass = (double)SANTA_NONE;
        o->audit[h].is_dense = !o->mask;
    }
}

/* kept_share by a mask that was given. */
static void santa__given_stage(const santa__call *call, char *work, int64_t item, int64_t piece) {
    santa__prefill x;
    int64_t all, kept;
    santa__prefill_make(&x, call, work, item);
    kept = santa__count_blocks(&x, piece, &all);
    call->p.o.sample_attention.audit[item * call->p.group + piece].kept_share =
        all > 0 ? (double)kept / (double)all : 1.0;
}

static void santa__run_prefill(santa__call *call) {
    const santa_sample_attention_options *o = &call->p.o.sample_attention;
    const int64_t group = call->p.group;
    if (santa__has_traits(&call->p.o, SANTA_SPARSE)) santa__clear_audits(call);
    if (santa__is_sampled(&call->p)) {
        memset(santa__sets_of_call(call), 0, (size_t)(8 * santa__items(&call->p.o) * group));
        santa__run_stage(call, santa__sample_head, group);
        santa__run_stage(call, santa__join_sets, 1);
    } else if (santa__has_traits(&call->p.o, SANTA_SPARSE) && o->audit)
        santa__run_stage(call, santa__given_stage, group);
    santa__run_stage(call, santa__prefill_piece, santa__pieces_of_item(call));
    if (santa__has_traits(&call->p.o, SANTA_SPARSE) && o->audit && o->row_mass)
        santa__run_stage(call, santa__audit_rows, 1);
}

/* ------------------------------------------------------------ >>call */

static int santa__has_tally(const santa__plan *p) { return p->format.keys > 0 || p->buckets > 0; }

static void santa__add_tallies(const santa__call *call, santa_stats *stats) {
    santa__tally sum;
    int64_t t;
    memset(&sum, 0, sizeof sum);
    for (t = 0; t < call->works; t++) {
        const char *work = call->work + (uint64_t)t * call->plan.total;
        const santa__tally *x = (const santa__tally *)(const void *)(work + call->plan.tally);
        sum.heads += x->heads;
        sum.expected += x->expected;
        sum.found += x->found;
        sum.covered += x->covered;
        sum.rows += x->rows;
        sum.imbalance += x->imbalance;
        sum.largest += x->largest;
        sum.expected_max = SANTA__MAX(sum.expected_max, x->expected_max);
        sum.found_max = SANTA__MAX(sum.found_max, x->found_max);
    }
    if (sum.rows > 0) {
        stats->imbalance = 1e-6 * (double)sum.imbalance / (double)sum.rows;
        stats->largest_bucket = 1e-6 * (double)sum.largest / (double)sum.rows;
    }
    if (sum.heads == 0) return;
    stats->covered_mass = 1e-6 * (double)sum.covered / (double)sum.heads;
    stats->expected_variance = 1e-6 * (double)sum.expected / (double)sum.heads;
    stats->found_variance = 1e-6 * (double)sum.found / (double)sum.heads;
    stats->expected_variance_max = sum.expected_max;
    stats->found_variance_max = sum.found_max;
}

SANTA__ONCE
static void santa__add_stats(const santa__call *call, santa_stats *stats) {
    enum { FIELDS = offsetof(santa_stats, expected_variance) / sizeof(int64_t) };
    int64_t sum[FIELDS] = {0}, one[FIELDS], t;
    int f;
    for (t = 0; t < call->works; t++) {
        memcpy(one, call->work + (uint64_t)t * call->plan.total + call->plan.stats, sizeof one);
        for (f = 0; f < FIELDS; f++) sum[f] += one[f];
    }
    memset(stats, 0, sizeof *stats);
    memcpy(stats, sum, sizeof sum);
    if (santa__has_tally(&call->plan)) santa__add_tallies(call, stats);
}

static santa_status santa__run(santa__call *call) {
    const santa_options *o = &call->p.o;
    santa__team team;
    memset(&team, 0, sizeof team);
    team.call = call;
    if (call->plan.is_prefill) santa__run_prefill(call);
    else if (call->plan.is_shared)
        santa__run_items(call, call->work, o->item_begin, o->item_end, SANTA__SPAN, &team);
    else
        santa__run_tasks(o, &call->pieces, (santa__items(o) + call->span - 1) / call->span, santa__run_task,
                         call);
    return team.has_failed ? SANTA_ERR_RANKS_EXCHANGE : SANTA_OK;
}

/* What the sums of the sure keys count, see santa__anchor. sums: each rank's of their weights
   and of all, `apart` from each other. */
static double santa__anchor_of(const float *sums, int64_t ranks, int64_t apart) {
    double sure = 0.0, sum = 0.0;
    int64_t r;
    for (r = 0; r < ranks; r++) {
        sure += (double)sums[r * apart];
        sum += (double)sums[r * apart + 1];
    }
    return sure < SANTA__ANCHOR ? 1.0 : 1.0 + (1.0 - sum) / sure;
}

/* Result `row` of all ranks: the sum of what they drew, or the mean of what they read exactly,
   by lse. part: what each has, `apart` from each other; lse and sure likewise. acc[dv] is
   scratch. */
SANTA__ONCE
static void santa__join_ranks(const santa_problem *p, int64_t head, const float *part, const float *lse,
                              const float *sure, int64_t apart, int64_t dv, double *acc, float *joined) {
    const int64_t ranks = p->o.ranks.count;
    double m = (double)SANTA__MASKED, sum = 0.0, share = 1.0;
    int64_t r, c;
    int bad = 0;
    memset(acc, 0, (size_t)dv * sizeof *acc);
    for (r = 0; r < ranks; r++) {
        bad |= santa__is_nan(lse[r * apart]);
        m = SANTA__MAX(m, (double)lse[r * apart]);
    }
    for (r = 0; r < ranks && !bad; r++) {
        double w = 1.0;
        if (santa__is_joined_by_lse(&p->o)) sum += w = exp((double)lse[r * apart] - m);
        for (c = 0; c < dv && w > 0.0; c++) acc[c] += w * (double)part[r * apart + c];
    }
    if (sure && !bad) {
        const double times = santa__anchor_of(sure + dv, ranks, apart);
        for (r = 0; r < ranks; r++)
            for (c = 0; c < dv; c++) acc[c] += times * (double)sure[r * apart + c];
    }
    *joined = *lse;
    if (bad) *joined = santa__nan();
    else if (santa__is_joined_by_lse(&p->o)) {
        *joined = santa__lse((float)m, sum, p->a.sinks ? p->a.sinks + head : NULL, &share);
        share /= sum > 0.0 ? sum : 1.0;
    }
    for (c = 0; c < dv; c++) acc[c] = bad ? (double)santa__nan() : acc[c] * share;
}

/* The std_error of a result from what all ranks say of its draws, `apart` from each other.
   mean: the result. */
SANTA__ONCE
static float santa__join_errors(const santa_options *o, const double *e, int64_t apart, int64_t dv,
                                const double *mean) {
    const int64_t sets = santa__error_sets(o), ranks = o->ranks.count;
    const double n = (double)o->num_samples;
    const double *last = NULL;
    double share = 0.0, total = 0.0, weight = 0.0;
    int64_t r, c, k;
    for (r = 0; r < ranks; r++) {
        const double *x = e + r * apart;
        share = SANTA__MAX(share, x[0]);
        for (k = 0; k < sets; k++) weight += x[2 + k * (dv + 2)];
        total += x[1];
        if (o->num_combs > 1 || !(x[2] > 0.0)) continue;
        if (santa__has_traits(o, SANTA_INDEPENDENT)) {
            total += x[3] * x[0] * x[0];
            continue;
        }
        for (c = 0; last && c < dv; c++) {
            const double dist = x[4 + c] / x[2] - last[2 + c] / last[0];
            total += 0.25 * (x[2] * x[2] + last[0] * last[0]) * dist * dist;
        }
        last = x + 2 + (dv + 2);
    }
    if (!(weight > 0.0)) return 0.0f;
    if (o->num_samples < 2) return santa__inf();
    if (o->num_combs == 1 && !santa__has_traits(o, SANTA_INDEPENDENT))
        return (float)(sqrt(total * n / (n - 1.0)) * share);
    for (c = 0; c < dv; c++) {
        double all = 0.0, squares = 0.0;
        for (k = 0; k < sets; k++) {
            double one = 0.0;
            for (r = 0; r < ranks; r++) one += e[r * apart + 4 + k * (dv + 2) + c];
            all += one;
            squares += one * one;
        }
        if (o->num_combs > 1) total += squares - all * all / (double)sets;
        else total += n * mean[c] * mean[c] - 2.0 * mean[c] * all * share;
    }
    if (o->num_combs == 1) return (float)sqrt(santa__at_least_0(total) / (n * (n - 1.0)));
    return (float)(sqrt(santa__at_least_0(total) * (double)sets / (double)(sets - 1)) * share);
}

/* The audit of result i is as yet relative to the base sample's largest score. max: that of
   what each rank has read. */
static void santa__join_audits(santa_audit *audit, const santa_problem *p, const float *max, int64_t apart,
                               float lse) {
    double m = (double)SANTA__MASKED;
    int64_t r;
    if (audit->num_keys == 0) return;
    for (r = 0; r < p->o.ranks.count; r++) m = SANTA__MAX(m, (double)max[r * apart]);
    if (audit->num_base > 0) { santa__va_rescale_audit(audit, m); return; }
    audit->denominator = exp(SANTA__MIN((double)lse - m, 600.0));
    audit->max_score = m;
}

/* A call whose keys are spread over ranks: each one's result goes to all of them. */
SANTA__ONCE
static santa_status santa__run_ranks(santa__call *call) {
    const santa_problem p = call->p;
    const santa__meeting at = santa__meeting_of(&p);
    const int64_t dv = p.head_dim_v, rows = p.batch * p.q_len * p.heads;
    const int64_t floats = (int64_t)santa__part_floats(&p);
    const int64_t size = santa__bytes(p.a.out.dtype, 1), doubles = santa__error_doubles(&p.o, dv);
    const int64_t first = ((int64_t)santa__result_floats(&p) + 1) / 2 * 2;
    float *part = (float *)(void *)(call->meeting + at.part),
          *all = (float *)(void *)(call->meeting + at.all_parts);
    double *acc = (double *)(void *)(call->meeting + at.acc);
    santa_status s;
    int64_t i, c;
    memset(call->meeting, 0, (size_t)at.messages);       /* messages have gaps, and all is sent */
    memset(part, 0, (size_t)floats * sizeof *part);
    call->p.a.out = santa_view(part, SANTA_F32, p.batch, p.q_len, p.heads, dv);
    call->p.a.lse = part + rows * dv;
    if (santa__has_sure(&p.o)) call->sure = part + rows * (dv + 1);
    if (p.a.std_error && doubles) call->errors = (double *)(void *)(part + first);
    call->p.a.std_error = NULL;                          /* each rank's own would not add up */
    if (santa__has_traits(&p.o, SANTA_EXACT)) call->p.a.sinks = NULL;
    s = santa__run(call);
    call->p = p;
    if (s != SANTA_OK) return s;
    if (!santa__meets(&p.o.ranks, part, (size_t)floats * sizeof *part, all))
        return SANTA_ERR_RANKS_EXCHANGE;
    for (i = 0; i < rows; i++) {
        const int64_t h = i % p.heads, q = i / p.heads % p.q_len, b = i / p.heads / p.q_len,
                      item = b * p.kv_heads + h / p.group;
        const int64_t *stride = p.a.out.stride;
        char *out = (char *)p.a.out.data + (b * stride[0] + q * stride[1] + h * stride[2]) * size;
        float lse;
        int is_bad;
        if (item < p.o.item_begin || item >= p.o.item_end) continue;
        santa__join_ranks(&p, h, all + i * dv, all + rows * dv + i,
                          call->sure ? all + rows * (dv + 1) + i * (dv + 2) : NULL, floats, dv, acc, &lse);
        is_bad = santa__is_nan(lse);
        for (c = 0; c < dv; c++) {
            is_bad |= santa__is_nan((float)acc[c]);
            santa__store(p.a.out.dtype, out + c * stride[3] * size, (float)acc[c]);
        }
        if (p.a.lse) p.a.lse[i] = lse;
        if (p.a.std_error)
            p.a.std_error[i] = is_bad     ? santa__nan()
                               : !doubles ? 0.0f
                               : santa__join_errors(&p.o, (double *)(void *)(all + first) + i * doubles,
                                                    floats / 2, dv, acc);
        if (p.o.vattention.audit && santa__has_traits(&p.o, SANTA_ADAPTS))
            santa__join_audits(p.o.vattention.audit + i, &p, all + rows * (dv + 1) + i, floats, lse);
    }
    return SANTA_OK;
}

SANTADEF santa_status santa_decode(const santa_attention *a, const santa_options *o, void *workspace,
                                   size_t workspace_bytes, santa_stats *stats) {
    santa__call call;
    int64_t t;
    santa_status s = santa__call_make(&call, a, o);
    if (s != SANTA_OK) return s;
    if ((s = santa__check_contents(a, o)) != SANTA_OK) return s;
    if (a->q.device != SANTA_CPU)
        return santa__backends[a->q.device]->decode(&call.p, workspace, workspace_bytes, stats);
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < call.bytes) return SANTA_ERR_WORKSPACE_SIZE;
    call.work = santa__align(workspace);
    call.span = call.plan.is_prefill ? 1 : santa__span(&call.p, &call.plan);
    call.works = santa__num_works(&call.p, &call.plan, call.span);
    for (t = 0; t < call.works; t++) {
        char *work = call.work + (uint64_t)t * call.plan.total;
        memset(work + call.plan.stats, 0, sizeof(santa_stats));
        if (santa__has_tally(&call.plan)) memset(work + call.plan.tally, 0, sizeof(santa__tally));
    }
    if (santa__has_ranks(&call.p.o)) {
        call.meeting = call.work + (call.bytes - 63 - santa__meeting_of(&call.p).total);
        s = santa__run_ranks(&call);
    } else s = santa__run(&call);
    if (s != SANTA_OK) return s;
    if (stats) santa__add_stats(&call, stats);
    return SANTA_OK;
}

/* ------------------------------------------------------------ >>buckets-code */

/* Keys that look for their buckets, and the centroids: stride and step in numbers, from key to
   key and from feature to feature. */
typedef struct santa__search {
    const santa__kernels *kernel;
    santa_dtype key_type, type;
    const char *keys, *centroids;
    int64_t stride, step, buckets, d;
} santa__search;

/* Keys of a search at most; floats of theirs, on the stack. */
enum { SANTA__SEARCH = 2 * SANTA_BLOCK, SANTA__SEARCH_KEYS = 16384 };

/* n keys from number first on side by side, and zeros: feature c of key i at to[c * lanes + i].
   f: scratch for four keys. */
static void santa__lay_keys(const santa__search *x, int64_t first, int64_t n, int64_t lanes, float *f,
                            float *to) {
    const int64_t pad = x->d + 16;
    int64_t i, c;
    for (i = 0; i < lanes; i++) {
        const char *key = x->keys + santa__bytes(x->key_type, (first + SANTA__MIN(i, n - 1)) * x->stride);
        float *row = f + i % 4 * pad;
        if (i >= n) memset(row, 0, (size_t)x->d * sizeof *row);
        else if (x->step == 1) x->kernel->widen(x->key_type, key, x->d, row);
        else
            for (c = 0; c < x->d; c++)
                row[c] = santa__load(x->key_type, key + santa__bytes(x->key_type, c * x->step));
        for (c = 0; c < x->d && i % 4 == 3; c++) {                    /* four in a line of `to` at once */
            float *four = to + c * lanes + i;
            four[-3] = f[c];
            four[-2] = f[pad + c];
            four[-1] = f[2 * pad + c];
            four[0] = f[3 * pad + c];
        }
    }
}

/* Centroids from number `at` on as rows of floats, *stride apart; the last one again where
   there are no more. */
static const float *santa__centroid_rows(const santa__search *x, int64_t at, int64_t rows, float *tile,
                                         int64_t *stride) {
    const char *from = x->centroids + santa__bytes(x->type, at * x->d);
    int64_t r;
    *stride = x->d;
    if (x->type == SANTA_F32 && (uintptr_t)from % 4 == 0 && at + rows <= x->buckets)
        return (const float *)(const void *)from;
    *stride = (x->d + 15) / 16 * 16 + 16;      /* rows a power of two apart would share few sets */
    for (r = 0; r < rows; r++)
        x->kernel->widen(x->type,
                         x->centroids + santa__bytes(x->type, SANTA__MIN(at + r, x->buckets - 1) * x->d),
                         x->d, tile + r * *stride);
    return tile;
}

/* The products of centroids at .. with n keys, one in each lane: which of these have a larger
   one now, in which bucket. Where it is infinite or NaN, row by row. */
static void santa__take_larger(const santa__kernels *kernel, const santa__panel *x, int64_t at, int64_t n,
                               float *best, uint16_t *bucket) {
    float top[SANTA__PANEL], above[SANTA__PANEL];
    int64_t i, r;
    kernel->tops(x->c, x->rows, x->lanes, top, above);
    for (i = 0; i < n; i++) {
        r = x->rows - (int64_t)above[i];
        if (r < x->rows && !(top[i] > best[i])) continue;
        for (r = r < x->rows ? r : 0; r < x->rows && !(best[i] >= top[i]); r++)
            if (x->c[r * x->lanes + i] > best[i]) {
                best[i] = x->c[r * x->lanes + i];
                bucket[i] = (uint16_t)(at + r);
            }
    }
}

/* The buckets of n <= SANTA__SEARCH keys: the largest key . centroid, the lower of equal ones,
   0 for a NaN. Each key has its lane, where products are added up feature by feature: its
   bucket does not hang on the keys beside it. */
static void santa__search_buckets(const santa__search *x, int64_t n, uint16_t *bucket) {
    float memory[SANTA__SEARCH_KEYS + 16], *keys = (float *)(void *)santa__align(memory);
    float tile[8 * (SANTA__PROXY_DIM + 32)], s[SANTA__PANEL * SANTA__PANEL], best[SANTA__SEARCH];
    const int64_t rows = x->d > 256 ? 8 : x->d > 128 ? 16 : SANTA__PANEL;
    int64_t first, at, i, count;
    santa__panel y;
    memset(&y, 0, sizeof y);
    y.n = x->d;
    y.lanes = n <= 16 || x->d * SANTA__PANEL > SANTA__SEARCH_KEYS ? 16 : SANTA__PANEL;
    y.c = s;
    for (first = 0; first < n; first += count, bucket += count) {
        count = SANTA__MIN(n - first, SANTA__SEARCH_KEYS / x->d / y.lanes * y.lanes);
        for (i = 0; i < count; i++) {
            best[i] = santa__neg_inf();
            bucket[i] = 0;
        }
        for (i = 0; i < count; i += y.lanes)
            santa__lay_keys(x, first + i, SANTA__MIN(count - i, y.lanes), y.lanes, tile, keys + i * x->d);
        for (at = 0; at < x->buckets; at += rows) {
            y.rows = SANTA__MIN(rows, (x->buckets - at + 7) / 8 * 8);
            y.a = santa__centroid_rows(x, at, y.rows, tile, &y.stride);
            for (i = 0; i < count; i += y.lanes) {
                y.b = keys + i * x->d;
                x->kernel->panel(&y);
                santa__take_larger(x->kernel, &y, at, SANTA__MIN(count - i, y.lanes), best + i, bucket + i);
            }
        }
    }
}

/* Keys from .. to - 1 join the sorted ones before them: those of each bucket move up by what
   joins the buckets below it. */
static void santa__index_sort(const santa__index *x, int64_t from, int64_t to) {
    int64_t c, j, end = from, shift = to - from;
    if (from == to) return;
    memset(x->next, 0, (size_t)x->buckets * sizeof *x->next);
    for (j = from; j < to; j++) x->next[x->bucket[j]]++;
    for (c = x->buckets - 1; c >= 0; c--) {
        const int64_t first = x->offset[c];
        shift -= x->next[c];
        memmove(x->key + first + shift, x->key + first, (size_t)(end - first) * sizeof *x->key);
        x->offset[c] = (int32_t)(first + shift);
        x->next[c] = (int32_t)(end + shift);
        end = first;
    }
    x->offset[x->buckets] = (int32_t)to;
    for (j = from; j < to; j++) x->key[x->next[x->bucket[j]]++] = (int32_t)j;
}

/* The index holds keys 0 .. held - 1 from now on, of which those from `from` on are new. */
static void santa__index_hold(const santa__index *x, int64_t from, int64_t held) {
    const int64_t whole = from / SANTA_BLOCK * SANTA_BLOCK;
    int64_t sorted = from == 0 ? 0 : x->header[SANTA__I_SORTED];
    if (from == 0 || sorted > whole) {
        memset(x->offset, 0, (size_t)(x->buckets + 1) * sizeof *x->offset);
        santa__index_sort(x, 0, whole);
        sorted = whole;
    }
    santa__index_sort(x, sorted, held / SANTA_BLOCK * SANTA_BLOCK);
    x->header[SANTA__I_MAGIC] = SANTA__INDEX_MAGIC;
    x->header[SANTA__I_BUCKETS] = (int32_t)x->buckets;
    x->header[SANTA__I_CAPACITY] = (int32_t)x->capacity;
    x->header[SANTA__I_HELD] = (int32_t)held;
    x->header[SANTA__I_SORTED] = (int32_t)(held / SANTA_BLOCK * SANTA_BLOCK);
}

/* One call of santa_buckets_assign. Its pieces are blocks of each item's keys, then items. */
typedef struct santa__assign {
    const santa_attention *a;
    const santa_tensor *keys;
    const santa__kernels *kernel;
    santa__work work;
    int64_t from, first_item, blocks;
} santa__assign;

/* The keys of a sequence that are new: from .. to - 1, key from + i in row skip + i. */
typedef struct santa__new_keys { int64_t from, to, skip; } santa__new_keys;

SANTA__ONCE
static santa__new_keys santa__new_keys_of(const santa__assign *x, int64_t b) {
    const int64_t len = santa__seq_len(x->a, b), count = x->keys->shape[1];
    santa__new_keys n;
    n.from = x->from < 0 ? len - count : SANTA__MIN(x->from, len + 1);
    n.skip = SANTA__MAX(-n.from, 0);
    n.from += n.skip;
    n.to = count - n.skip < len - n.from ? n.from + count - n.skip : len;
    return n;
}

/* Whether the sequence's index will end with them; it may without a new key, where later ones
   go. */
static int santa__is_held(const santa__assign *x, santa__new_keys n) {
    return n.from < n.to || (n.from == n.to && x->from >= 0);
}

/* The buckets of block `at` of the keys of one KV head. */
static void santa__assign_block(const santa__assign *x, int64_t b, int64_t h, int64_t at) {
    const santa_tensor *k = x->keys;
    const santa_buckets *r = x->a->buckets;
    const santa__new_keys n = santa__new_keys_of(x, b);
    const santa__index index = santa__index_of(x->a, santa__slot_of(x->a, b), h);
    const int64_t from = n.from + at * SANTA__SEARCH, to = SANTA__MIN(from + SANTA__SEARCH, n.to),
                  row = n.skip + at * SANTA__SEARCH;
    santa__search y;
    if (from >= to) return;
    y.kernel = x->kernel;
    y.key_type = k->dtype;
    y.keys = (const char *)k->data
           + santa__bytes(k->dtype, b * k->stride[0] + row * k->stride[1] + h * k->stride[2]);
    y.stride = k->stride[1];
    y.step = k->stride[3];
    y.type = r->dtype;
    y.d = k->shape[3];
    y.buckets = r->num_buckets;
    y.centroids = (const char *)r->centroids + santa__bytes(r->dtype, h * r->num_buckets * y.d);
    santa__search_buckets(&y, to - from, index.bucket + from);
}

SANTA__ONCE
static void santa__assign_task(void *context, int64_t t) {
    santa__assign *x = (santa__assign *)context;
    const int64_t heads = x->a->k.shape[2];
    int64_t at, to = -1;
    while (santa__take(&x->work, t, &at, &to))
        for (; at < to; at++) {
            const int64_t item = x->first_item + at / x->blocks;
            santa__assign_block(x, item / heads, item % heads, at % x->blocks);
        }
}

static void santa__hold_task(void *context, int64_t t) {
    santa__assign *x = (santa__assign *)context;
    const int64_t heads = x->a->k.shape[2];
    int64_t at, to = -1;
    while (santa__take(&x->work, t, &at, &to))
        for (; at < to; at++) {
            const int64_t b = (x->first_item + at) / heads;
            const santa__new_keys n = santa__new_keys_of(x, b);
            const santa__index index =
                santa__index_of(x->a, santa__slot_of(x->a, b), (x->first_item + at) % heads);
            if (santa__is_held(x, n)) santa__index_hold(&index, n.from, n.to);
        }
}

/* Whether each sequence's index has all keys before the new ones, each in a bucket that there
   is, and no slot is named twice. */
SANTA__ONCE
static santa_status santa__check_new_keys(const santa__assign *x, int64_t items) {
    const int64_t heads = x->a->k.shape[2];
    santa_status s = santa__check_slots(x->a);
    int64_t i, j, b, other;
    if (s != SANTA_OK) return s;
    for (b = 0; x->a->buckets->slots && b < santa__batch_of(x->a); b++)
        for (other = 0; other < b; other++)
            if (santa__slot_of(x->a, b) == santa__slot_of(x->a, other)) return SANTA_ERR_BUCKETS_SLOT;
    for (i = x->first_item; i < x->first_item + items; i++) {
        const santa__new_keys n = santa__new_keys_of(x, i / heads);
        const santa__index index = santa__index_of(x->a, santa__slot_of(x->a, i / heads), i % heads);
        if (n.from == 0 || !santa__is_held(x, n)) continue;
        if (!santa__is_index(&index)) return SANTA_ERR_BUCKETS_INDEX;
        if (index.header[SANTA__I_HELD] < n.from) return SANTA_ERR_BUCKETS_RANGE;
        j = index.header[SANTA__I_SORTED] <= n.from ? index.header[SANTA__I_SORTED] : 0;
        for (; j < n.from; j++)                        /* what santa__index_sort counts by */
            if (index.bucket[j] >= index.buckets) return SANTA_ERR_BUCKETS_INDEX;
    }
    return SANTA_OK;
}

SANTADEF size_t santa_buckets_size(const santa_attention *a) {
    if (!a || santa__check_tensor(&a->k) != SANTA_OK || santa__batch_of(a) <= 0
        || santa__check_lengths(a, santa__batch_of(a)) != SANTA_OK || santa__check_router(a) != SANTA_OK)
        return 0;
    return (size_t)(4 * santa__index_ints((uint64_t)a->buckets->num_buckets, (uint64_t)santa__capacity(a))
                    * (uint64_t)(santa__num_slots(a) * a->k.shape[2]));
}

/* All but what the index holds. */
SANTA__ONCE
static santa_status santa__check_assign(const santa_attention *a, const santa_tensor *keys, int64_t from,
                                        const santa_options *o) {
    santa_status s;
    if (!a || !keys) return SANTA_ERR_NULL_ARGUMENT;
    if ((s = santa__check_tensor(&a->k)) != SANTA_OK) return s;
    if ((s = santa__check_tensor(keys)) != SANTA_OK) return s;
    if (santa__batch_of(a) <= 0) return SANTA_ERR_SHAPE;
    if ((s = santa__check_lengths(a, santa__batch_of(a))) != SANTA_OK) return s;
    if ((s = santa__check_router(a)) != SANTA_OK) return s;
    if (santa__mul((uint64_t)keys->shape[0], 4) > (uint64_t)PTRDIFF_MAX) return SANTA_ERR_OVERFLOW;
    if (keys->shape[0] != santa__batch_of(a) || keys->shape[2] != a->k.shape[2]
        || keys->shape[3] != a->k.shape[3] || keys->device != a->k.device)
        return SANTA_ERR_BUCKETS_KEYS;
    if (from < SANTA_NONE) return SANTA_ERR_BUCKETS_RANGE;
    if (!a->buckets->index || !a->buckets->centroids || !keys->data) return SANTA_ERR_BUCKETS_NULL;
    if (o && !santa_isa_supported(o->isa)) return SANTA_ERR_ISA;
    return o ? santa__check_work(o, (uint64_t)keys->shape[0] * (uint64_t)keys->shape[2]) : SANTA_OK;
}

SANTA__ONCE
SANTADEF santa_status santa_buckets_assign(const santa_attention *a, const santa_tensor *keys, int64_t from,
                                           const santa_options *o) {
    santa_options none;
    santa__assign x;
    int64_t items;
    santa_status s = santa__check_assign(a, keys, from, o);
    if (s != SANTA_OK) return s;
    memset(&none, 0, sizeof none);
    if (!o) o = &none;
    if (a->k.device != SANTA_CPU) {
        const santa_backend *backend = santa__backends[a->k.device];
        if (!backend) return SANTA_ERR_NO_BACKEND;
        items = keys->shape[0] * keys->shape[2];
        if (o->item_begin != 0 || (o->item_end != 0 && o->item_end != items)) return SANTA_ERR_ITEMS;
        return backend->buckets_assign ? backend->buckets_assign(a, keys, from, o->stream)
                                       : SANTA_ERR_BACKEND_BUCKETS;
    }
    if ((s = santa__check_seq_lens(a, santa__batch_of(a))) != SANTA_OK) return s;
    memset(&x, 0, sizeof x);
    x.a = a;
    x.keys = keys;
    x.kernel = santa__kernels_of(o->isa == SANTA_ISA_AUTO ? santa_best_isa() : o->isa);
    x.from = from;
    x.first_item = o->item_begin;
    x.blocks = (SANTA__MIN(keys->shape[1], santa__capacity(a)) + SANTA__SEARCH - 1) / SANTA__SEARCH;
    items = o->item_begin == 0 && o->item_end == 0 ? keys->shape[0] * keys->shape[2]
                                                   : o->item_end - o->item_begin;
    if ((s = santa__check_new_keys(&x, items)) != SANTA_OK) return s;
    if (items == 0) return SANTA_OK;
    santa__run_tasks(o, &x.work, items * x.blocks, santa__assign_task, &x);
    santa__run_tasks(o, &x.work, items, santa__hold_task, &x);
    return SANTA_OK;
}

SANTA__ONCE
SANTADEF int64_t santa_buckets_find(const santa_attention *a, int64_t slot, int64_t kv_head, int64_t key) {
    santa__index x;
    if (santa_buckets_size(a) == 0 || a->k.device != SANTA_CPU || !a->buckets->index
        || (uintptr_t)a->buckets->index % 4 != 0)
        return -1;
    if (slot < 0 || slot >= santa__num_slots(a) || kv_head < 0 || kv_head >= a->k.shape[2]) return -1;
    x = santa__index_of(a, slot, kv_head);
    return santa__is_index(&x) && key >= 0 && key < x.header[SANTA__I_HELD] ? x.bucket[key] : -1;
}

/* One call of santa_kmeans. Its pieces are blocks of rows. */
typedef struct santa__kmeans {
    const float *x;
    const santa__kernels *kernel;
    santa__work work;
    int64_t n, stride, d, buckets;
    float *centroids;
    uint16_t *bucket;
} santa__kmeans;

static void santa__kmeans_task(void *context, int64_t t) {
    santa__kmeans *x = (santa__kmeans *)context;
    santa__search y;
    int64_t at, to = -1;
    y.kernel = x->kernel;
    y.key_type = y.type = SANTA_F32;
    y.centroids = (const char *)x->centroids;
    y.stride = x->stride;
    y.step = 1;
    y.buckets = x->buckets;
    y.d = x->d;
    while (santa__take(&x->work, t, &at, &to))
        for (; at < to; at++) {
            const int64_t j = at * SANTA__SEARCH;
            y.keys = (const char *)(x->x + j * x->stride);
            santa__search_buckets(&y, SANTA__MIN(x->n - j, (int64_t)SANTA__SEARCH), x->bucket + j);
        }
}

/* centroid = x / |x|. 0 if x has no length. */
static int santa__to_unit(const double *x, int64_t d, float *centroid) {
    double square = 0.0;
    int64_t c;
    for (c = 0; c < d; c++) square += x[c] * x[c];
    for (c = 0; c < d; c++) centroid[c] = square > 0.0 ? (float)(x[c] / sqrt(square)) : 0.0f;
    return square > 0.0;
}

static uint64_t santa__kmeans_bytes(int64_t n, int64_t d, int64_t buckets) {
    const uint64_t ids = santa__mul((uint64_t)n, 2) / 64 * 64 + 64;
    return santa__add(santa__add(ids, santa__mul(8 * (uint64_t)buckets, (uint64_t)d)), 64);
}

static santa_status santa__check_kmeans(int64_t n, int64_t d, int64_t buckets) {
    if (n <= 0 || d <= 0) return SANTA_ERR_SHAPE;
    if (buckets < 1 || buckets > 65536) return SANTA_ERR_BUCKETS_SHAPE;
    if (d > SANTA__PROXY_DIM) return SANTA_ERR_BUCKETS_HEAD_DIM;
    if (n > INT32_MAX) return SANTA_ERR_TOO_LONG;
    return santa__kmeans_bytes(n, d, buckets) > (uint64_t)PTRDIFF_MAX ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

SANTADEF size_t santa_kmeans_workspace_size(int64_t n, int64_t d, int64_t num_buckets) {
    return santa__check_kmeans(n, d, num_buckets) == SANTA_OK
         ? (size_t)santa__kmeans_bytes(n, d, num_buckets) : 0;
}

/* A centroid begins with row i, or with the next one that has a direction. */
static void santa__kmeans_begin(const santa__kmeans *x, int64_t i, double *row, float *centroid) {
    int64_t n, c;
    for (n = 0; n < x->n; n++) {
        for (c = 0; c < x->d; c++) row[c] = (double)x->x[(i + n) % x->n * x->stride + c];
        if (santa__to_unit(row, x->d, centroid)) return;
    }
}

/* Sums of the rows of each bucket, in the order of the rows whoever found them: centroids.
   Those without a direction begin anew with a row by chance. */
static void santa__kmeans_update(const santa__kmeans *x, uint64_t seed, int64_t turn, double *sum,
                                 double *row) {
    int64_t j, c, b;
    memset(sum, 0, (size_t)(x->buckets * x->d) * sizeof *sum);
    for (j = 0; j < x->n; j++)
        for (c = 0; c < x->d; c++) sum[x->bucket[j] * x->d + c] += (double)x->x[j * x->stride + c];
    for (b = 0; b < x->buckets; b++) {
        const uint64_t word = santa_random(seed, (uint64_t)turn + 1, 0, 0, 0, 0, (uint32_t)b);
        if (santa__to_unit(sum + b * x->d, x->d, x->centroids + b * x->d)) continue;
        santa__kmeans_begin(x, (int64_t)(word * (uint64_t)x->n >> 32), row, x->centroids + b * x->d);
    }
}

SANTA__ONCE
SANTADEF santa_status santa_kmeans(const float *x, int64_t n, int64_t stride, int64_t d,
                                   int64_t num_buckets, int64_t iterations, uint64_t seed, float *centroids,
                                   const santa_options *o, void *workspace, size_t workspace_bytes) {
    double row[SANTA__PROXY_DIM], *sum;
    santa_options none;
    santa__kmeans k;
    char *work;
    int64_t i, c;
    santa_status s = santa__check_kmeans(n, d, num_buckets);
    if (!x || !centroids) return SANTA_ERR_NULL_ARGUMENT;
    if (s != SANTA_OK) return s;
    if (stride < d) return SANTA_ERR_SHAPE;
    if (santa__mul(santa__mul((uint64_t)n, (uint64_t)stride), 4) > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    if (iterations < 0 || iterations > 1 << 20) return SANTA_ERR_KMEANS;
    memset(&none, 0, sizeof none);
    if (!o) o = &none;
    if (!santa_isa_supported(o->isa)) return SANTA_ERR_ISA;
    if ((s = santa__check_work(o, 0)) != SANTA_OK) return s;
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < santa_kmeans_workspace_size(n, d, num_buckets)) return SANTA_ERR_WORKSPACE_SIZE;
    for (i = 0; i < n; i++)
        for (c = 0; c < d; c++) if (santa__not_finite(x[i * stride + c])) return SANTA_ERR_KMEANS;
    work = santa__align(workspace);
    memset(&k, 0, sizeof k);
    k.x = x; k.n = n; k.stride = stride; k.d = d; k.buckets = num_buckets;
    k.centroids = centroids;
    k.kernel = santa__kernels_of(o->isa == SANTA_ISA_AUTO ? santa_best_isa() : o->isa);
    k.bucket = (uint16_t *)(void *)work;
    sum = (double *)(void *)(work + ((uint64_t)n * 2 / 64 * 64 + 64));
    for (i = 0; i < num_buckets; i++) {  /* one from each of as many equal parts of the rows */
        const double u = (double)santa_random(seed, 0, 0, 0, 0, 0, (uint32_t)i) / 4294967296.0;
        santa__kmeans_begin(&k, (int64_t)(((double)i + u) / (double)num_buckets * (double)n), row,
                            centroids + i * d);
    }
    for (i = 0; i < (iterations ? iterations : 10); i++) {
        santa__run_tasks(o, &k.work, (n + SANTA__SEARCH - 1) / SANTA__SEARCH, santa__kmeans_task, &k);
        santa__kmeans_update(&k, seed, i, sum, row);
    }
    return SANTA_OK;
}

/* ------------------------------------------------------------ >>steps-code */

static santa_status santa__check_step(const santa_attention *a, int64_t batch, int64_t q_index,
                                      int64_t kv_head) {
    if (a->q.device != SANTA_CPU) return SANTA_ERR_DEVICE;
    if (batch < 0 || batch >= a->q.shape[0] || q_index < 0 || q_index >= a->q.shape[1] || kv_head < 0
        || kv_head >= a->k.shape[2])
        return SANTA_ERR_INDEX;
    return SANTA_OK;
}

SANTADEF santa_status santa_scores(const santa_attention *a, const santa_options *o, int64_t batch,
                                   int64_t q_index, int64_t kv_head, float *scores, int64_t scores_stride,
                                   void *workspace, size_t workspace_bytes) {
    santa__call call;
    santa__job j;
    int64_t len, g, i, b;
    int part;
    santa_status s = santa__call_make(&call, a, o);
    if (s != SANTA_OK) return s;
    if ((s = santa__check_contents(a, o)) != SANTA_OK) return s;
    if (!scores) return SANTA_ERR_NULL_ARGUMENT;
    if ((s = santa__check_step(a, batch, q_index, kv_head)) != SANTA_OK) return s;
    if (a->key_list) return SANTA_ERR_KEY_LIST_METHOD;
    if (santa__has_ranks(o)) return SANTA_ERR_RANKS_METHOD;
    len = santa__seq_len(a, batch);
    if (scores_stride < len) return SANTA_ERR_CAPACITY;
    if (santa__mul(santa__mul((uint64_t)call.p.group, (uint64_t)scores_stride), sizeof *scores)
        > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < call.bytes) return SANTA_ERR_WORKSPACE_SIZE;
    if (call.plan.is_prefill) santa__plan_row(&call.plan, &call.p);
    santa__job_make(&j, &call, santa__align(workspace), batch, kv_head);
    j.range[0] = santa__key_range(a, batch, q_index);
    santa__job_rows(&j, q_index, 1);
    for (g = 0; g < j.group; g++)
        for (i = 0; i < len; i++)
            if (!santa__is_seen(&j.range[0], i)) scores[g * scores_stride + i] = santa__neg_inf();
    if (santa__is_copied(o)) {
        santa__copied_range(&j, 0, j.begin, j.end, scores + j.begin, scores_stride);
        return SANTA_OK;
    }
    for (b = j.begin / SANTA_BLOCK; j.begin < j.end && b * SANTA_BLOCK < j.end; b++)
        for (part = 0; part < 2; part++) {
            const int64_t from = santa__part_begin(&j.range[0], part, b * SANTA_BLOCK),
                          to = santa__part_end(&j.range[0], part, (b + 1) * SANTA_BLOCK);
            if (from < to)
                santa__score(&j, santa__keys_from(NULL, from, to - from), (int)(to - from), 0, j.group,
                             scores + from, scores_stride);
        }
    return SANTA_OK;
}

/* o: resolved. */
SANTA__ONCE
static santa_status santa__plan_sample(santa__plan *p, const santa_options *given, santa_options *o,
                                       int64_t n) {
    santa_status s;
    if (!given) return SANTA_ERR_NULL_ARGUMENT;
    if (n <= 0) return SANTA_ERR_SHAPE;
    if (n > INT32_MAX) return SANTA_ERR_TOO_LONG;
    if ((s = santa__check_values(given)) != SANTA_OK) return s;
    if ((s = santa__check_work(given, UINT64_MAX)) != SANTA_OK) return s;
    if (santa__has_ranks(given)) return SANTA_ERR_RANKS_METHOD;
    if (!santa__methods[given->method].draw) return SANTA_ERR_METHOD; /* it does not start from scores */
    if (santa_unused_option(given)) return SANTA_ERR_OPTION_UNUSED;
    *o = santa__resolved(given, 0, 0);
    o->dense_below = 0;
    o->scores = SANTA_SCORES_EXACT;                                   /* those that are given */
    santa__plan_make(p, o, 1, 1, n, 0, 0, 0, NULL, NULL, 0);
    return p->total > (uint64_t)PTRDIFF_MAX - 63 ? SANTA_ERR_OVERFLOW : SANTA_OK;
}

SANTADEF int64_t santa_sample_capacity(int64_t n, const santa_options *o) {
    santa__plan p;
    santa_options x;
    /* rows are distinct */
    return santa__plan_sample(&p, o, &x, n) == SANTA_OK ? SANTA__MIN(p.capacity, n) : 0;
}

SANTADEF size_t santa_sample_workspace_size(int64_t n, const santa_options *o) {
    santa__plan p;
    santa_options x;
    return santa__plan_sample(&p, o, &x, n) == SANTA_OK ? (size_t)p.total + 63 : 0;
}

SANTADEF santa_status santa_sample(const float *scores, int64_t n, const santa_options *given,
                                   santa_stream_id id, santa_draws *draws, void *workspace,
                                   size_t workspace_bytes) {
    santa_options o;
    santa__plan p;
    santa__mass x;
    santa__picks l;
    santa__rng rng, dither;
    santa_stats stats;
    float *u, *max, *sum;
    double share;
    char *work;
    int64_t b, i;
    santa_status s = santa__plan_sample(&p, given, &o, n);
    if (s != SANTA_OK) return s;
    if (!scores || !draws || !draws->index || !draws->weight) return SANTA_ERR_NULL_ARGUMENT;
    if (id.head < 0 || id.head > INT32_MAX || id.q_index < 0 || id.q_index > INT32_MAX)
        return SANTA_ERR_INDEX;
    if (draws->capacity < SANTA__MIN(p.capacity, n)) return SANTA_ERR_CAPACITY;
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    if (workspace_bytes < p.total || workspace_bytes - p.total < 63) return SANTA_ERR_WORKSPACE_SIZE;
    if (santa__has_bad(santa__kernels_of(o.isa), scores, n)) return SANTA_ERR_NAN;
    work = santa__align(workspace);
    u = (float *)(void *)(work + p.scores);
    max = (float *)(void *)(work + p.block_max);
    sum = (float *)(void *)(work + p.block_sum);
    memset(&x, 0, sizeof x);
    x.kernel = santa__kernels_of(o.isa);
    x.block = (int)p.block;
    x.blocks = (n + p.block - 1) / p.block;
    x.prefix = (double *)(void *)(work + p.prefix);
    x.max = max; x.sum = sum;
    x.unit = (float *)(void *)(work + p.units);
    x.chance = (float *)(void *)(work + p.chance);
    memcpy(u, scores, (size_t)n * sizeof *u);
    for (i = n; i < x.blocks * p.block; i++) u[i] = SANTA__MASKED;
    for (b = 0; b < x.blocks; b++)
        santa__block_mass(x.kernel, santa__is_top(&o), u + b * p.block, 0, 1, x.block,
                          max + b, sum + b, 0);
    /* a sampler may use more entries than rows on its way */
    l.index = (int32_t *)(void *)(work + p.index);
    l.count = (int32_t *)(void *)(work + p.count);
    l.weight = (float *)(void *)(work + p.weight);
    memset(&stats, 0, sizeof stats);
    rng = santa__rng_make(o.seed, o.offset, id.request_id, SANTA__STREAM_DRAWS, (uint32_t)id.head,
                          (uint32_t)id.q_index);
    dither = santa__rng_make(o.seed, o.offset, id.request_id, SANTA__STREAM_STASH, (uint32_t)id.head,
                             (uint32_t)id.q_index);
    santa__pick(&o, santa__methods[o.method].draw, &x, u, &rng, &dither, &l, &stats);
    memcpy(draws->index, l.index, (size_t)l.rows * sizeof *l.index);
    memcpy(draws->weight, l.weight, (size_t)l.rows * sizeof *l.weight);
    if (draws->count) memcpy(draws->count, l.count, (size_t)l.rows * sizeof *l.count);
    draws->rows = l.rows;
    draws->draws = l.draws;
    draws->lse = santa__lse(x.m, x.total, NULL, &share);
    return SANTA_OK;
}

SANTADEF santa_status santa_gather(const santa_attention *a, int64_t batch, int64_t kv_head,
                                   const int32_t *index, const float *weight, int64_t rows, float *out) {
    santa__rows v;
    int64_t i;
    santa_status s;
    if (!a || !out || (rows > 0 && (!index || !weight))) return SANTA_ERR_NULL_ARGUMENT;
    if (rows < 0) return SANTA_ERR_SHAPE;
    if (santa__mul((uint64_t)rows, sizeof *index) > (uint64_t)PTRDIFF_MAX) return SANTA_ERR_OVERFLOW;
    if ((s = santa__check_shapes(a)) != SANTA_OK) return s;
    if ((s = santa__check_extras(a)) != SANTA_OK) return s;
    if ((s = santa__check_step(a, batch, 0, kv_head)) != SANTA_OK) return s;
    if ((s = santa__check_contents(a, NULL)) != SANTA_OK) return s;
    for (i = 0; i < rows; i++) {
        if (index[i] < santa__kv_start(a, batch) || index[i] >= santa__seq_len(a, batch))
            return SANTA_ERR_INDEX;
        /* a window frees pages of keys that no query row sees */
        if (a->block_table && (s = santa__check_pages(a, batch, index[i], index[i] + 1)) != SANTA_OK)
            return s;
    }
    v = santa__rows_make(a, &a->v, &a->v_scales, batch, kv_head);
    santa__gather(&v, santa__kernels_of(santa_best_isa()), index, weight, rows,
                  a->v_scale > 0.0f ? a->v_scale : 1.0f, out);
    return SANTA_OK;
}

SANTA__ONCE
SANTADEF santa_status santa_merge(int64_t rows, int64_t head_dim_v, float *out, float *lse,
                                  const float *other_out, const float *other_lse) {
    int64_t r, c;
    if (!out || !lse || !other_out || !other_lse) return SANTA_ERR_NULL_ARGUMENT;
    if (rows < 0 || head_dim_v < 1) return SANTA_ERR_SHAPE;
    if (santa__mul(santa__mul((uint64_t)rows, (uint64_t)head_dim_v), sizeof *out) > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    for (r = 0; r < rows; r++) {
        float *x = out + r * head_dim_v;
        const float *y = other_out + r * head_dim_v;
        double m, wx, wy;
        if (santa__nan_or_plus_inf(other_lse[r]) || santa__nan_or_plus_inf(lse[r])) {
            for (c = 0; c < head_dim_v; c++) x[c] = santa__nan();
            lse[r] = santa__nan();
            continue;
        }
        if (santa__bits(lse[r]) == 0xff800000u) {
            if (santa__bits(other_lse[r]) == 0xff800000u) memset(x, 0, (size_t)head_dim_v * sizeof *x);
            else memcpy(x, y, (size_t)head_dim_v * sizeof *x);
            lse[r] = other_lse[r];
            continue;
        }
        if (santa__bits(other_lse[r]) == 0xff800000u) continue;
        m = SANTA__MAX((double)lse[r], (double)other_lse[r]);
        wx = exp((double)lse[r] - m);
        wy = exp((double)other_lse[r] - m);
        for (c = 0; c < head_dim_v; c++)
            x[c] = (float)(((double)x[c] * wx + (double)y[c] * wy) / (wx + wy));
        lse[r] = (float)(m + log(wx + wy));
    }
    return SANTA_OK;
}

SANTADEF santa_tensor santa_keys_feature_major(const santa_tensor *k, void *dst) {
    santa_tensor t;
    int64_t size, b, h, c, j;
    char *p = (char *)dst;
    memset(&t, 0, sizeof t);
    if (!k || !k->data || !dst || santa__check_tensor(k) != SANTA_OK || k->device != SANTA_CPU
        || santa__is_blocks(k->dtype))
        return t;
    t = *k;
    size = santa__bytes(k->dtype, 1);
    for (b = 0; b < k->shape[0]; b++)
        for (h = 0; h < k->shape[2]; h++)
            for (c = 0; c < k->shape[3]; c++)
                for (j = 0; j < k->shape[1]; j++, p += size)
                    memcpy(p,
                           (const char *)k->data
                               + (b * k->stride[0] + j * k->stride[1] + h * k->stride[2] + c * k->stride[3])
                                     * size,
                           (size_t)size);
    t.data = dst;
    t.stride[1] = 1;
    t.stride[3] = k->shape[1];
    t.stride[2] = k->shape[3] * t.stride[3];
    t.stride[0] = k->shape[2] * t.stride[2];
    return t;
}

/* ------------------------------------------------------------ >>measures-code */

static santa_status santa__check_probabilities(const float *p, int64_t n, double *sum) {
    int64_t i;
    if (!p) return SANTA_ERR_NULL_ARGUMENT;
    if (n <= 0) return SANTA_ERR_SHAPE;
    if (n > INT32_MAX) return SANTA_ERR_TOO_LONG;
    for (i = 0, *sum = 0.0; i < n; i++) {
        if (santa__not_finite(p[i]) || p[i] < 0.0f) return SANTA_ERR_PROBABILITIES;
        *sum += (double)p[i];
    }
    return fabs(*sum - 1.0) > 1e-3 ? SANTA_ERR_PROBABILITIES : SANTA_OK;
}

SANTA__ONCE
static santa_status santa__check_variance(const float *p, int64_t n, const float *v, int64_t stride,
                                          int64_t dv, int64_t num_samples, const double *variance,
                                          const void *workspace, size_t workspace_bytes, double *sum) {
    santa_status s = santa__check_probabilities(p, n, sum);
    if (s != SANTA_OK) return s;
    if (!v || !variance) return SANTA_ERR_NULL_ARGUMENT;
    if (dv <= 0 || stride < 0) return SANTA_ERR_SHAPE;
    if (num_samples <= 0 || num_samples > SANTA_MAX_SAMPLES) return SANTA_ERR_NUM_SAMPLES;
    if (santa__mul(santa__add(santa__mul((uint64_t)n - 1, (uint64_t)stride), (uint64_t)dv), sizeof *v)
        > (uint64_t)PTRDIFF_MAX)
        return SANTA_ERR_OVERFLOW;
    if (!santa_variance_workspace_size(n, dv)) return SANTA_ERR_OVERFLOW;
    if (!workspace) return SANTA_ERR_WORKSPACE_NULL;
    return workspace_bytes < santa_variance_workspace_size(n, dv) ? SANTA_ERR_WORKSPACE_SIZE : SANTA_OK;
}

/* A breakpoint of the comb: at offset `at` one draw moves from key to key + 1. */
typedef struct santa__break { double at; int64_t key; } santa__break;

SANTADEF size_t santa_variance_workspace_size(int64_t n, int64_t dv) {
    uint64_t bytes;
    if (n <= 0 || dv <= 0) return 0;
    bytes = santa__add(
        santa__add(santa__mul((uint64_t)n, sizeof(santa__break)),
                   santa__mul((uint64_t)dv, 2 * sizeof(double))), 63);
    return bytes > (uint64_t)PTRDIFF_MAX ? 0 : (size_t)bytes;
}

/* Sum of w |v - center|^2 is never formed as a difference of large numbers here: the spread of
   weights w_j = overlap of key j with mass interval [lo, hi), around their own mean. Returns
   sum w |v - mean|^2 / (hi - lo). */
SANTA__ONCE
static double santa__spread_in(const float *p, const float *v, int64_t stride, int64_t dv, double scale,
                               double lo, double hi, int64_t first, int64_t last, double mass_before,
                               double *mean) {
    double spread = 0.0, before, total = 0.0;
    int64_t i, c;
    int pass;
    memset(mean, 0, (size_t)dv * sizeof *mean);
    for (pass = 0; pass < 2; pass++) {
        for (i = first, before = mass_before; i < last; i++) {
            double end = before + (double)p[i] * scale, w = SANTA__MIN(end, hi) - SANTA__MAX(before, lo),
                   dist = 0.0;
            before = end;
            if (!(w > 0.0)) continue;
            if (pass == 0) total += w;
            for (c = 0; c < dv; c++) {
                double x = (double)v[i * stride + c];
                if (pass == 0) mean[c] += w * x;
                else dist += (x - mean[c]) * (x - mean[c]);
            }
            spread += w * dist;
        }
        if (!(total > 0.0)) return 0.0;
        if (pass == 0) for (c = 0; c < dv; c++) mean[c] /= total;
    }
    return spread / total;
}

SANTADEF santa_status santa_variance_iid(const float *p, int64_t n, const float *v, int64_t stride,
                                         int64_t dv, int64_t num_samples, double *variance, void *workspace,
                                         size_t workspace_bytes) {
    double sum;
    santa_status s =
        santa__check_variance(p, n, v, stride, dv, num_samples, variance, workspace, workspace_bytes, &sum);
    if (s != SANTA_OK) return s;
    *variance = santa__spread_in(p, v, stride, dv, 1.0 / sum, 0.0, 2.0, 0, n, 0.0,
                                 (double *)(void *)santa__align(workspace))
                / (double)num_samples;
    return SANTA_OK;
}

SANTADEF santa_status santa_variance_strat(const float *p, int64_t n, const float *v, int64_t stride,
                                           int64_t dv, int64_t num_samples, double *variance,
                                           void *workspace, size_t workspace_bytes) {
    double sum, total = 0.0, before = 0.0, scale;
    int64_t m, first = 0, last;
    santa_status s =
        santa__check_variance(p, n, v, stride, dv, num_samples, variance, workspace, workspace_bytes, &sum);
    if (s != SANTA_OK) return s;
    scale = (double)num_samples / sum;                                /* strata have length 1 */
    for (m = 0; m < num_samples && first < n; m++) {
        double at = before;
        for (last = first; last < n && at < (double)(m + 1); last++) at += (double)p[last] * scale;
        total += santa__spread_in(p, v, stride, dv, scale, (double)m, (double)(m + 1), first, last, before,
                                  (double *)(void *)santa__align(workspace));
        /* the next stratum starts inside the last key */
        for (; first < last && before + (double)p[first] * scale <= (double)(m + 1); first++)
            before += (double)p[first] * scale;
    }
    *variance = total / ((double)num_samples * (double)num_samples);
    return SANTA_OK;
}

static int santa__break_less(const santa__break *a, const santa__break *b) {
    return a->at < b->at || (!(b->at < a->at) && a->key < b->key);
}

static void santa__break_sift(santa__break *a, int64_t i, int64_t n) {
    santa__break x = a[i];
    int64_t child;
    while ((child = 2 * i + 1) < n) {
        if (child + 1 < n && santa__break_less(&a[child], &a[child + 1])) child++;
        if (!santa__break_less(&x, &a[child])) break;
        a[i] = a[child];
        i = child;
    }
    a[i] = x;
}

SANTA__ONCE
static void santa__break_sort(santa__break *event, int64_t events) {
    int64_t i;
    for (i = events / 2; i-- > 0;) santa__break_sift(event, i, events);
    for (i = events; i-- > 1;) {
        santa__break x = event[0];
        event[0] = event[i];
        event[i] = x;
        santa__break_sift(event, 0, i);
    }
}

/* count_j(u) = ceil(x_j - u) - ceil(x_(j-1) - u) with x_j = S F_j and u in [0, 1): as u passes
   frac(x_j), one draw moves from key j to key j + 1. Between breakpoints the estimate is
   constant. */
SANTADEF santa_status santa_variance_sys(const float *p, int64_t n, const float *v, int64_t stride,
                                         int64_t dv, int64_t num_samples, double *variance, void *workspace,
                                         size_t workspace_bytes) {
    const double s = (double)num_samples;
    double sum, f = 0.0, at = 0.0, total = 0.0, *diff;
    santa__break *event;
    int64_t i, c, events = 0, before = 0;
    santa_status status =
        santa__check_variance(p, n, v, stride, dv, num_samples, variance, workspace, workspace_bytes, &sum);
    if (status != SANTA_OK) return status;
    event = (santa__break *)(void *)santa__align(workspace);
    diff = (double *)(void *)(event + n);
    memset(diff, 0, (size_t)dv * sizeof *diff);
    /* diff = estimate at u = 0 minus the exact output */
    for (i = 0; i < n; i++) {
        double x = (f += (double)p[i]) / sum * s, w;
        int64_t upto = i + 1 == n ? num_samples : (int64_t)SANTA__MIN(ceil(x), s);
        w = (double)(upto - before) / s - (double)p[i] / sum;
        before = upto;
        for (c = 0; c < dv; c++) diff[c] += w * (double)v[i * stride + c];
        if (i + 1 < n && x < s && x > floor(x)) {
            event[events].at = x - floor(x);
            event[events].key = i;
            events++;
        }
    }
    santa__break_sort(event, events);
    for (i = 0; i <= events; i++) {
        double next = i < events ? event[i].at : 1.0, norm = 0.0;
        for (c = 0; c < dv; c++) norm += diff[c] * diff[c];
        total += (next - at) * norm;
        at = next;
        if (i == events) break;
        for (c = 0; c < dv; c++)
            diff[c] +=
                ((double)v[(event[i].key + 1) * stride + c] - (double)v[event[i].key * stride + c]) / s;
    }
    *variance = total;
    return SANTA_OK;
}

/* diff += times (v - anchor) of a key that is not sure. */
static void santa__add_open(double *diff, const double *anchor, const float *v, int64_t dv, double times) {
    int64_t c;
    for (c = 0; c < dv; c++) diff[c] += times * ((double)v[c] - anchor[c]);
}

/* Key j is drawn while a tooth i + u lies in [x_(j-1), x_j), with x_j the sum of S size up to
   it: as u passes frac(x_j), key j goes and key j + 1 comes, but those that are sure. What the
   drawn ones miss is made up for by the mean of the sure ones, or not at all, see
   santa__anchor: so each counts as its distance from there. */
SANTADEF santa_status santa_variance_pps(const float *p, const float *size, int64_t n, const float *v,
                                         int64_t stride, int64_t dv, int64_t num_samples, double *variance,
                                         void *workspace, size_t workspace_bytes) {
    const double s = (double)num_samples;
    double sum, x = 0.0, at = 0.0, total = 0.0, sure = 0.0, *diff, *anchor;
    santa__break *event;
    int64_t i, c, events = 0;
    int is_bad = 0;
    santa_status status =
        santa__check_variance(p, n, v, stride, dv, num_samples, variance, workspace, workspace_bytes, &sum);
    if (status != SANTA_OK) return status;
    if (!size) size = p;
    for (i = 0; i < n; i++)
        if (!(size[i] >= p[i]) || santa__not_finite(size[i])) return SANTA_ERR_PROBABILITIES;
    event = (santa__break *)(void *)santa__align(workspace);
    diff = (double *)(void *)(event + n);
    anchor = diff + dv;
    memset(diff, 0, 2 * (size_t)dv * sizeof *diff);
    for (i = 0; i < n; i++) {
        if (s * (double)size[i] / sum < (double)SANTA__SURE) continue;
        sure += (double)p[i] / sum;
        for (c = 0; c < dv; c++) anchor[c] += (double)p[i] / sum * (double)v[i * stride + c];
    }
    for (c = 0; c < dv; c++) anchor[c] = sure >= SANTA__ANCHOR ? anchor[c] / sure : 0.0;
    for (i = 0; i < n; i++)
        for (c = 0; c < dv && size[i] > 0.0f; c++) is_bad |= santa__not_finite(v[i * stride + c]);
    /* diff = estimate at u = 0 minus the exact output */
    for (i = 0; i < n; i++) {
        const double mu = s * (double)size[i] / sum, before = x;
        x += mu;
        if (santa__is_open(mu))
            santa__add_open(diff, anchor, v + i * stride, dv,
                            (ceil(before) < x ? (double)p[i] / sum / mu : 0.0) - (double)p[i] / sum);
        if (x > floor(x)) {
            event[events].at = x - floor(x);
            event[events].key = i;
            events++;
        }
    }
    santa__break_sort(event, events);
    for (i = 0; i <= events; i++) {
        double next = i < events ? event[i].at : 1.0, norm = 0.0;
        for (c = 0; c < dv; c++) norm += diff[c] * diff[c];
        total += (next - at) * norm;
        at = next;
        for (c = 0; i < events && c < 2 && event[i].key + c < n; c++) {   /* one goes, the next comes */
            const int64_t key = event[i].key + c;
            const double mu = s * (double)size[key] / sum;
            if (santa__is_open(mu))
                santa__add_open(diff, anchor, v + key * stride, dv,
                                (c ? 1.0 : -1.0) * (double)p[key] / sum / mu);
        }
    }
    *variance = is_bad ? (double)santa__nan() : total;
    return SANTA_OK;
}

SANTA__ONCE
SANTADEF santa_status santa_expected_distinct(santa_method method, const float *p, int64_t n,
                                              int64_t num_samples, double *rows) {
    const double s = (double)num_samples;
    double sum, f = 0.0, total = 0.0;
    int64_t i;
    santa_status status = santa__check_probabilities(p, n, &sum);
    if (status != SANTA_OK) return status;
    if (!rows) return SANTA_ERR_NULL_ARGUMENT;
    if (num_samples <= 0 || num_samples > SANTA_MAX_SAMPLES) return SANTA_ERR_NUM_SAMPLES;
    if (method != SANTA_IID && method != SANTA_STRAT && method != SANTA_SYS && method != SANTA_PROP
        && method != SANTA_PPS)
        return SANTA_ERR_METHOD;
    for (i = 0; i < n; i++) {
        double q = (double)p[i] / sum, lo = f * s, hi = (f += q) * s;
        if (method == SANTA_IID) total += 1.0 - pow(1.0 - SANTA__MIN(q, 1.0), s);
        else if (method != SANTA_STRAT) total += SANTA__MIN(q * s, 1.0);
        else if (hi - lo >= 1.0)
            total +=
                floor(hi) >= ceil(lo) + 1.0 ? 1.0 : 1.0 - (1.0 - (ceil(lo) - lo)) * (1.0 - (hi - ceil(lo)));
        else if (floor(hi) > floor(lo)) total += 1.0 - (1.0 - (floor(hi) - lo)) * (1.0 - (hi - floor(hi)));
        else total += hi - lo;
    }
    *rows = total;
    return SANTA_OK;
}

SANTADEF double santa_effective_keys(const float *p, int64_t n) {
    double sum, square = 0.0;
    int64_t i;
    if (santa__check_probabilities(p, n, &sum) != SANTA_OK) return (double)santa__nan();
    for (i = 0; i < n; i++) square += (double)p[i] * (double)p[i];
    return sum * sum / square;
}

SANTA__ONCE
SANTADEF double santa_relative_l2(const float *got, const float *want, int64_t n) {
    double diff = 0.0, norm = 0.0;
    int64_t i;
    if (!got || !want) return (double)santa__nan();
    for (i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        diff += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    if (diff > 0.0 || norm > 0.0) return sqrt(diff / norm);
    return diff + norm;                                               /* 0, or NaN */
}

SANTA__ONCE
SANTADEF double santa_cosine(const float *got, const float *want, int64_t n) {
    double dot = 0.0, a = 0.0, b = 0.0;
    int64_t i;
    if (!got || !want) return (double)santa__nan();
    for (i = 0; i < n; i++) {
        dot += (double)got[i] * (double)want[i];
        a += (double)got[i] * (double)got[i];
        b += (double)want[i] * (double)want[i];
    }
    return dot / sqrt(a * b);
}

/* Helper macros end with the code. */
#undef SANTA__AHEAD
#undef SANTA__AHEAD_HEADS
#undef SANTA__AHEAD_TOKENS
#undef SANTA__ARM64
#undef SANTA__BEYOND_K
#undef SANTA__BEYOND_V
#undef SANTA__CHUNK
#undef SANTA__CHUNKS
#undef SANTA__CPU_BF16
#undef SANTA__DELTA_MIN
#undef SANTA__DELTA_VECTOR
#undef SANTA__EXP_UNDERFLOW
#undef SANTA__INLINE
#undef SANTA__IN_PLACE
#undef SANTA__KEEP_ORDER
#undef SANTA__RESTRICT
#undef SANTA__MASKED
#undef SANTA__MASK_LIMIT
#undef SANTA__LEAST_SCORE
#undef SANTA__LEAST_MASS
#undef SANTA__MAX
#undef SANTA__MIN
#undef SANTA__NOINLINE
#undef SANTA__ONE_COPY
#undef SANTA__NEVER
#undef SANTA__NO_ERROR
#undef SANTA__SURE
#undef SANTA__OFTEN
#undef SANTA__ONCE
#undef SANTA__ON_any
#undef SANTA__ON_arm64
#undef SANTA__ON_tiles
#undef SANTA__ON_x86
#undef SANTA__PART
#undef SANTA__PREFETCH
#undef SANTA__QUERIES
#undef SANTA__PREFILL_ROWS
#undef SANTA__PIECE
#undef SANTA__PANEL
#undef SANTA__ANCHOR
#undef SANTA__SLICE
#undef SANTA__SPAN
#undef SANTA__TEAM_KEYS
#undef SANTA__UNROLL_4
#undef SANTA__UNROLL_REGISTERS
#undef SANTA__USUAL
#undef SANTA__VECTORS
#undef SANTA__AMX
#undef SANTA__X86
#undef santa__draw_none
#undef santa__kernels_amx

#ifdef __cplusplus
}
#endif
#endif /* SANTA_IMPLEMENTATION_DONE */
#endif /* SANTA_IMPLEMENTATION */

/* ============================================================ >>kernels-body */
#ifdef SANTA__ISA                            /* this file, included by itself once per instruction set */

/* Features c .. of n rows, or n vectors of one row from there on. A type that is known only at
   run time is tested once for all of them, one by one: a jump through a table costs more. */
SANTA__INLINE void SANTA__ISA(vrows)(santa_dtype t, const char *const *row, int64_t at, int64_t c, int n,
                                     SANTA__V *x) {
    int i;
#define SANTA__X(id, name, bytes, numbers)                                                                 \
    if (t == SANTA_##id) {                                                                                 \
        SANTA__UNROLL                                                                                      \
        for (i = 0; i < n; i++) x[i] = SANTA__ISA(vrow)(SANTA_##id, row[i] + at, c);                       \
        return;                                                                                            \
    }
    SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#undef SANTA__X
    SANTA__UNROLL
    for (i = 0; i < n; i++) x[i] = SANTA__ISA(vset)(0.0f);            /* no such type */
}

SANTA__INLINE void SANTA__ISA(vcolumns)(santa_dtype t, const char *row, int64_t c, int n, SANTA__V *x) {
    int i;
#define SANTA__X(id, name, bytes, numbers)                                                                 \
    if (t == SANTA_##id) {                                                                                 \
        SANTA__UNROLL                                                                                      \
        for (i = 0; i < n; i++) x[i] = SANTA__ISA(vrow)(SANTA_##id, row, c + i * SANTA__LANES);            \
        return;                                                                                            \
    }
    SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#undef SANTA__X
    SANTA__UNROLL
    for (i = 0; i < n; i++) x[i] = SANTA__ISA(vset)(0.0f);            /* no such type */
}

/* Features c .. of n <= SANTA__LANES rows of d features, then zeros, a vector each. Copies what
   is no whole vector, of all rows before it reads one: a load waits for stores to what it
   loads. */
SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(vrows_part)(santa_dtype t, const char *const *row,
                                                                 int n, int64_t at, int64_t c, int64_t d,
                                                                 SANTA__V *x) {
    char copy[SANTA__LANES][4 * SANTA__LANES];
    const char *from[SANTA__LANES];
    const int64_t bytes = santa__bytes(t, SANTA__MIN(d - c, (int64_t)SANTA__LANES));
    int i;
    for (i = 0; i < SANTA__LANES; i++) from[i] = row[SANTA__MIN(i, n - 1)] + at;
    if (c + SANTA__LANES > d) {
        memset(copy, 0, sizeof copy);
        for (i = 0; i < n; i++) {
            const char *f = from[i] + santa__bytes(t, c);
            char *to = copy[i];
#define SANTA__COPY(size) \
    if ((size) < sizeof *copy && (bytes & (size))) { memcpy(to, f, size); to += (size); f += (size); }
            SANTA__COPY(32)
            SANTA__COPY(16)
            SANTA__COPY(8)
            SANTA__COPY(4)
            SANTA__COPY(2)
            SANTA__COPY(1)
#undef SANTA__COPY
        }
        for (i = 0; i < SANTA__LANES; i++) from[i] = copy[i];
        c = 0;
    }
#define SANTA__X(id, name, bytes, numbers)                                                                 \
    if (t == SANTA_##id)                                                                                   \
        for (i = 0; i < SANTA__LANES; i++) x[i] = SANTA__ISA(vrow)(SANTA_##id, from[i], c);
#if SANTA__BY_STRIP
    SANTA_DTYPE_LIST(SANTA__X)
#else
    SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#endif
#undef SANTA__X
}

/* Adds the products of the features behind the last whole strip to all scores, which then get
   their unit. In a pass of its own, since a call among the products costs them registers. */
SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(dot_rest)(santa_dtype t, const char *const *row, int n,
                                                               int64_t d, const santa__queries *x) {
    const int64_t whole = d / SANTA__PACK * SANTA__PACK;
    int64_t h, g, c;
    int i, k;
    for (h = 0; h < x->heads; h++)
        for (i = 0; i < n; i += SANTA__LANES)
            for (c = whole; c < d; c += SANTA__LANES) {
                const int few = SANTA__MIN(n - i, SANTA__LANES);
                const char *q = x->q + h * x->q_step + whole / SANTA__PACK * x->q_strip;
                const SANTA__V unit = SANTA__ISA(vset)(c + SANTA__LANES >= d ? santa__unit(t) : 1.0f);
                SANTA__V y[SANTA__LANES], sum[SANTA__LANES];
                SANTA__ISA(vrows_part)(t, row + i, few, x->at + h * x->k_step, c, d, y);
                for (g = 0; g < x->group; g++, q += SANTA__PACKED) {
                    const SANTA__V z = SANTA__ISA(vget)((const float *)(const void *)q + (c - whole));
                    float *s = x->s + h * x->s_step + g * x->s_stride + i, part[SANTA__LANES], *to = s;
                    SANTA__UNROLL
                    for (k = 0; k < SANTA__LANES; k++) sum[k] = SANTA__ISA(vmul)(y[k], z);
                    if (few < SANTA__LANES) {
                        to = part;
                        memset(to, 0, sizeof part);
                        memcpy(to, s, (size_t)few * sizeof *s);
                    }
                    sum[0] = SANTA__ISA(vadd)(SANTA__ISA(vget)(to), SANTA__ISA(vtotals)(sum));
                    SANTA__ISA(vput)(to, SANTA__ISA(vmul)(sum[0], unit));
                    if (to == part) memcpy(s, part, (size_t)few * sizeof *s);
                }
            }
}

#ifndef SANTA__DOT_BF16                      /* for the text below, never run */
SANTA__INLINE SANTA__V SANTA__ISA(vpairs)(SANTA__V x, SANTA__V k, SANTA__V q) {
    (void)k;
    (void)q;
    return x;
}
#endif

/* Lines i, i + of, .. of a row to come. Some before each vector and head's products, since all
   at once would fill the CPU's queue of loads, and some would be dropped. A compiler that may
   move them brings them together: up to half slower from memory. Where products take no time
   beside the lines, as those of f32 in wide vectors, a loop of tests between them keeps the
   lines apart: a fifth faster. */
SANTA__INLINE void SANTA__ISA(send)(santa_dtype t, const char *coming, int64_t bytes, int i, int of) {
    int64_t b;
    if (t == SANTA_F32 && SANTA__LANES == 16) {
        SANTA__UNROLL_4
        for (b = i * 64; b < bytes; b += of * 64) SANTA__PREFETCH(coming + b);
    } else
        for (b = i * 64; b < bytes; b += of * 64) SANTA__PREFETCH(coming + b);
}

/* All of them. */
SANTA__INLINE void SANTA__ISA(send_all)(const char *coming, int64_t bytes) {
    int64_t b;
    for (b = 0; b < bytes; b += 64) SANTA__PREFETCH(coming + b);
}

/* The next row to send. One by one, since an address that waits in memory for its use comes
   late on some CPUs, and the line with it. */
SANTA__INLINE const char *SANTA__ISA(next)(santa__coming *x) {
    const char *row = *x->row + x->at;
    const int64_t last = ++x->head == x->heads;
    x->row += last;
    x->at = last ? x->first : x->at + x->step;
    x->head = last ? 0 : x->head;
    return row;
}

/* Features u .. of a strip, a vector's, into the sums of rows and heads, as floats or in pairs
   of bf16. Of two heads only the first, if that is all there is. */
SANTA__INLINE void SANTA__ISA(dot_vector)(santa_dtype t, int pairs, const char *const *r, int64_t at, int u,
                                          int rows, const char *q, int heads, int one, const char *coming,
                                          int64_t bytes, SANTA__V *acc) {
    const int wide = pairs ? 2 * SANTA__LANES : SANTA__LANES,
              head = santa__packed(pairs ? SANTA__PAIRS : SANTA__FLOATS),
              sending = heads == 4 && t != SANTA_F32 ? 1 : SANTA__PACK / wide; /* few lines: few tests */
    SANTA__V x[8];
    int k, g;
    if (pairs) {
        SANTA__UNROLL
        for (k = 0; k < rows; k++)
            x[k] = SANTA__ISA(vget)((const float *)(const void *)(r[k] + at + 2 * u));
    } else SANTA__ISA(vrows)(t, r, at, u, rows, x);
    SANTA__UNROLL
    for (g = 0; g < heads; g++) {
        SANTA__V y;
        if (u / wide < sending) SANTA__ISA(send)(t, coming, bytes, u / wide * heads + g, sending * heads);
        if (heads == 2 && g > 0 && one) continue;
        y = SANTA__ISA(vget)((const float *)(const void *)(q + g * head));
        if (SANTA__IN_PLACE(t)) SANTA__KEEP_ORDER();
        SANTA__UNROLL
        for (k = 0; k < rows; k++) {
            SANTA__V *sum = &acc[g * rows + k];
            *sum = pairs ? SANTA__ISA(vpairs)(*sum, x[k], y) : SANTA__ISA(vfma)(x[k], y, *sum);
        }
    }
}

/* A strip of 32 features. */
SANTA__INLINE void SANTA__ISA(dot_strip)(santa_dtype t, int pairs, const char *const *r, int64_t at,
                                         int rows, const char *q, int heads, int one, const char *coming,
                                         int64_t bytes, SANTA__V *acc) {
    const int wide = pairs ? 2 * SANTA__LANES : SANTA__LANES;
    int u;
    SANTA__UNROLL
    for (u = 0; u < SANTA__PACK; u += wide, q += sizeof *acc)
        SANTA__ISA(dot_vector)(t, pairs, r, at, u, rows, q, heads, one, coming, bytes, acc);
}

/* n blocks of q8_0 in integers. */
SANTA__INLINE void SANTA__ISA(dot_quants)(const char *const *r, int64_t at, int rows, const char *q,
                                          int heads, int one, int n, SANTA__V *acc) {
    SANTA__V scale[8];
    int k, g;
    SANTA__UNROLL
    for (k = 0; k < rows; k++) scale[k] = SANTA__ISA(vscales)(r[k] + at, n);
    SANTA__UNROLL
    for (g = 0; g < heads; g++, q += SANTA__PACKED_Q8) {
        SANTA__V y;
        if (heads == 2 && g > 0 && one) continue;
        y = SANTA__ISA(vget)((const float *)(const void *)(q + 2 * SANTA__PACK_Q8));
        SANTA__UNROLL
        for (k = 0; k < rows; k++)
            acc[g * rows + k] = SANTA__ISA(vfma)(SANTA__ISA(vquants)(r[k] + at, q, q + SANTA__PACK_Q8, n),
                                                 SANTA__ISA(vmul)(scale[k], y), acc[g * rows + k]);
    }
}

/* Sums of heads * rows in registers: each row is loaded and converted once for all heads, 4 or
   2, or 1 of 2. Each strip of features prefetches one of the next `rows` rows. One offset for
   all rows, and one pointer to all queries: a compiler short of registers keeps pointers in
   vector registers, from where they come out behind the products. */
SANTA__INLINE void SANTA__ISA(dot_heads)(santa_dtype t, int form, int by_strip, const char *const *row,
                                         int n, int64_t d, const santa__queries *x, int heads, int64_t g0) {
    const int integers = form == SANTA__INTEGERS, pairs = form == SANTA__PAIRS,
              one = heads == 2 && x->group - g0 == 1;
    const float unit = pairs ? x->scale : santa__unit(t);
    const int rows = SANTA__MIN(SANTA__KEEP_K / heads, 8),
              step = integers ? 32 * SANTA__QUANTS : SANTA__PACK;
    const int ahead_by = x->heads == 1 ? SANTA__AHEAD
                         : x->in_order ? SANTA__AHEAD_TOKENS
                                       : SANTA__AHEAD_HEADS;
    const int64_t bytes = santa__bytes(t, d), whole = d / step * step;
    const int64_t kv_heads = x->heads, k_step = x->k_step, q_strip = x->q_strip;
    santa__coming coming;
    int i, k, g;
    coming.heads = x->in_order ? kv_heads : 1;
    coming.step = k_step;
    for (i = 0; i < n; i += rows) {
        const char *const *r = row + i, *few[8];
        const char *first = x->q + g0 * santa__packed(form);
        float *s = x->s + g0 * x->s_stride + i;
        int64_t h, start = x->at;
        coming.row = row + i + ahead_by;
        coming.at = coming.first = start;
        coming.head = 0;
        if (i + rows > n) {
            for (k = 0; k < rows; k++) few[k] = row[n - 1];
            memcpy(few, r, (size_t)(n - i) * sizeof *few);
            r = few;
        }
        for (h = 0; h < kv_heads; h++, start += k_step, first += x->q_step, s += x->s_step) {
            const char *q = first;
            SANTA__V acc[SANTA__KEEP_K];
            float sum[SANTA__KEEP_K];
            int64_t at = start, c;
            int strip = 0;
            if (!x->in_order) {
                coming.row = row + i + ahead_by;
                coming.at = coming.first = start;
            }
            SANTA__UNROLL
            for (k = 0; k < SANTA__KEEP_K; k++) acc[k] = SANTA__ISA(vset)(0.0f);
            SANTA__UNROLL
            for (c = 0; c < whole; c += step, strip++) {
                const char *p = strip < rows ? SANTA__ISA(next)(&coming) : NULL;
                const int64_t lines = strip < rows ? bytes : 0;
                if (integers || by_strip) SANTA__ISA(send_all)(p, lines);
                if (integers)
                    SANTA__ISA(dot_quants)
                    (r, at, rows, q + c % SANTA__PACK_Q8, heads, one, SANTA__QUANTS, acc);
                else if (by_strip) {
                    float wide[8][SANTA__PACK];
                    const char *f[8];
                    for (k = 0; k < rows; k++) f[k] = santa__unpack(t, r[k] + at, wide[k]);
                    SANTA__ISA(dot_strip)(SANTA_F32, 0, f, 0, rows, q, heads, one, NULL, 0, acc);
                } else SANTA__ISA(dot_strip)(t, pairs, r, at, rows, q, heads, one, p, lines, acc);
                at += santa__bytes(t, step);
                if (!integers || (c + step) % SANTA__PACK_Q8 == 0) q += q_strip;
            }
            for (; strip < rows; strip++)                             /* d is small */
                SANTA__ISA(send_all)(SANTA__ISA(next)(&coming), bytes);
            if (integers && SANTA__QUANTS > 1 && whole < d)           /* half a step */
                SANTA__ISA(dot_quants)(r, at, rows, q, heads, one, 1, acc);
            SANTA__ISA(vsums)(acc, sum);
            if (pairs || (santa__unit(t) > 1.0f && whole == d))
                for (k = 0; k < SANTA__KEEP_K; k++) sum[k] *= unit;
            if (i + rows <= n) {
                SANTA__UNROLL
                for (g = 0; g < heads; g++)
                    if (g == 0 || !one)
                        memcpy(s + g * x->s_stride, sum + g * rows, (size_t)rows * sizeof *s);
            } else {
                for (g = 0; g < (one ? 1 : heads); g++)
                    memcpy(s + g * x->s_stride, sum + g * rows, (size_t)(n - i) * sizeof *s);
            }
        }
    }
}

/* Fours of heads, with a type that the compiler knows, and with the usual d where that is
   faster: 5 % to a quarter where it is asked for here. A function for each: all in one leaves
   the compiler too few registers for the inner loops, and fours are what most models spend
   their time in. */
#if !SANTA__BY_STRIP
#define SANTA__DOT(name, t, form) \
    SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(name)(const char *const *row, int n, int64_t d, \
                                                               const santa__queries *x) { \
        int64_t g = 0; \
        if (d == 128 && SANTA__USUAL(t, form)) \
            for (; g + 4 <= x->group; g += 4) SANTA__ISA(dot_heads)(t, form, 0, row, n, 128, x, 4, g); \
        for (; g + 4 <= x->group; g += 4) SANTA__ISA(dot_heads)(t, form, 0, row, n, d, x, 4, g); \
    }
#define SANTA__X(id, name, bytes, numbers) SANTA__DOT(dot_fours_##name, SANTA_##id, SANTA__FLOATS)
SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#undef SANTA__X
SANTA__DOT(dot_fours_quants, SANTA_Q8_0, SANTA__INTEGERS)
#ifdef SANTA__DOT_BF16
SANTA__DOT(dot_fours_pairs, SANTA_BF16, SANTA__PAIRS)
#endif
#undef SANTA__DOT
#endif

/* The others, of any type, or all where there is no function for fours. */
SANTA__INLINE void SANTA__ISA(dot_few)(santa_dtype t, int form, const char *const *row, int n, int64_t d,
                                       const santa__queries *x) {
    const int few = SANTA__BY_STRIP ? 1 : 2;
    int64_t g = SANTA__BY_STRIP ? 0 : x->group / 4 * 4;
    if (SANTA__BY_STRIP && form == SANTA__FLOATS)
        for (; g + 4 <= x->group; g += 4) SANTA__ISA(dot_heads)(t, form, 1, row, n, d, x, 4, g);
    for (; g < x->group; g += few) SANTA__ISA(dot_heads)(t, form, SANTA__BY_STRIP, row, n, d, x, few, g);
}

#if !SANTA__BY_STRIP
SANTA__TARGET static void SANTA__ISA(dot)(santa_dtype t, const char *const *row, int n, int64_t d,
                                          const santa__queries *x);
SANTA__TARGET static void SANTA__ISA(accumulate)(santa_dtype t, const char *const *row, int n, int64_t dv,
                                                 const santa__weights *x);

/* Features of n rows of q4_0 or e5m2, from their byte `at` on, as f32. */
SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(widen_rows)(santa_dtype t, const char *const *row,
                                                                 int n, int64_t at, int64_t features,
                                                                 float *f, int64_t stride) {
    const int64_t bytes = santa__bytes(t, features);
    int64_t c, b;
    int i, u;
    for (i = 0; i < n; i++, f += stride) {
        const char *r = row[i] + at, *ahead = row[i + SANTA__AHEAD] + at;
        for (b = 0; b < bytes; b += 64) SANTA__PREFETCH(ahead + b);
        c = 0;
        if (t == SANTA_Q4_0)                                          /* whole blocks */
            for (; c < features; c += 32) {
                const char *x = r + santa__bytes(SANTA_Q4_0, c);
                SANTA__UNROLL
                for (u = 0; u < 32; u += SANTA__LANES)
                    SANTA__ISA(vput)(f + c + u, SANTA__ISA(vrow)(SANTA_Q4_0, x, u));
            }
        else
            for (; c + SANTA__LANES <= features; c += SANTA__LANES)
                SANTA__ISA(vput)(f + c, SANTA__ISA(vrow)(SANTA_E5M2, r, c));
        for (; c < features; c++) f[c] = santa__feature(SANTA_E5M2, r, c);
    }
}

/* Of a type that is not read as it is: a few rows become f32 at a time, and of long ones a
   part, whose products are added. */
SANTA__TARGET static void SANTA__ISA(dot_widened)(santa_dtype t, const char *const *row, int n, int64_t d,
                                                  const santa__queries *x) {
    enum { ROWS = 16, FEATURES = 256 };
    float wide[ROWS][FEATURES], sum[ROWS];
    const char *f[ROWS + SANTA__BEYOND_K];
    int64_t h, c, g;
    int i, k;
    for (k = 0; k < ROWS + SANTA__BEYOND_K; k++) f[k] = (const char *)wide[SANTA__MIN(k, ROWS - 1)];
    for (i = 0; i < n; i += ROWS)
        for (h = 0; h < x->heads; h++)
            for (c = 0; c < d; c += FEATURES) {
                const int64_t features = SANTA__MIN(d - c, (int64_t)FEATURES),
                              at = x->at + h * x->k_step + santa__bytes(t, c);
                const int few = SANTA__MIN(n - i, (int)ROWS);
                santa__queries part = *x;
                part.heads = 1;
                part.at = 0;
                part.q += h * x->q_step + c / SANTA__PACK * x->q_strip;
                part.s += h * x->s_step + i;
                SANTA__ISA(widen_rows)(t, row + i, few, at, features, wide[0], FEATURES);
                if (c == 0) { SANTA__ISA(dot)(SANTA_F32, f, few, features, &part); continue; }
                part.group = 1;
                part.s = sum;
                for (g = 0; g < x->group; g++, part.q += SANTA__PACKED) {
                    float *s = x->s + h * x->s_step + g * x->s_stride + i;
                    SANTA__ISA(dot)(SANTA_F32, f, few, features, &part);
                    for (k = 0; k < few; k++) s[k] += sum[k];
                }
            }
}

SANTA__TARGET static void SANTA__ISA(accumulate_widened)(santa_dtype t, const char *const *row, int n,
                                                         int64_t dv, const santa__weights *x) {
    enum { FEATURES = 64 };
    float wide[SANTA_BLOCK][FEATURES];
    const char *f[SANTA_BLOCK + SANTA__BEYOND_V];
    santa__weights part = *x;
    int64_t c;
    int i;
    part.at = 0;
    for (i = 0; i < SANTA_BLOCK + SANTA__BEYOND_V; i++) f[i] = (const char *)wide[i % SANTA_BLOCK];
    for (c = 0; c < dv; c += FEATURES, part.acc += FEATURES) {
        const int64_t features = SANTA__MIN(dv - c, (int64_t)FEATURES), at = x->at + santa__bytes(t, c);
        SANTA__ISA(widen_rows)(t, row, n, at, features, wide[0], FEATURES);
        SANTA__ISA(accumulate)(SANTA_F32, f, n, features, &part);
    }
}
#endif

SANTA__TARGET static void SANTA__ISA(dot)(santa_dtype t, const char *const *row, int n, int64_t d,
                                          const santa__queries *x) {
#if !SANTA__BY_STRIP
    switch (t) {
#define SANTA__X(id, name, bytes, numbers)                                                                 \
    case SANTA_##id: SANTA__ISA(dot_fours_##name)(row, n, d, x); break;
        SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#undef SANTA__X
    default: SANTA__ISA(dot_widened)(t, row, n, d, x); return;
    }
#endif
    SANTA__ISA(dot_few)(t, SANTA__FLOATS, row, n, d, x);
    if (d % SANTA__PACK != 0) SANTA__ISA(dot_rest)(t, row, n, d, x);
}

SANTA__TARGET static void SANTA__ISA(dot_q8)(const char *const *row, int n, int64_t d,
                                             const santa__queries *x) {
#if !SANTA__BY_STRIP
    SANTA__ISA(dot_fours_quants)(row, n, d, x);
#endif
    SANTA__ISA(dot_few)(SANTA_Q8_0, SANTA__INTEGERS, row, n, d, x);
}

#ifdef SANTA__DOT_BF16
SANTA__TARGET static void SANTA__ISA(dot_bf16)(const char *const *row, int n, int64_t d,
                                               const santa__queries *x) {
    SANTA__ISA(dot_fours_pairs)(row, n, d, x);
    SANTA__ISA(dot_few)(SANTA_BF16, SANTA__PAIRS, row, n, d, x);
}
#endif

/* exp(x) for x <= 0: 2^n * e^r with |r| <= ln(2)/2, Taylor to r^7 (error below 1e-8 before
   rounding). */
SANTA__INLINE SANTA__V SANTA__ISA(vexp)(SANTA__V x) {
    static const float taylor[7] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f,
                                    0.5f,          1.0f,          1.0f};
    const SANTA__V low = SANTA__ISA(vmax)(x, SANTA__ISA(vset)(SANTA__EXP_UNDERFLOW));
    const SANTA__V n = SANTA__ISA(vround)(SANTA__ISA(vmul)(low, SANTA__ISA(vset)(1.44269504f)));
    SANTA__V r = SANTA__ISA(vfma)(n, SANTA__ISA(vset)(-0.693359375f), low),
             p = SANTA__ISA(vset)(1.0f / 5040.0f);
    int i;
    r = SANTA__ISA(vfma)(n, SANTA__ISA(vset)(2.12194440e-4f),
                         r); /* ln 2 in two parts; the first product is exact */
    SANTA__UNROLL
    for (i = 0; i < 7; i++) p = SANTA__ISA(vfma)(p, r, SANTA__ISA(vset)(taylor[i]));
    return SANTA__ISA(vfrom)(x, SANTA__EXP_UNDERFLOW, SANTA__ISA(vpow2)(p, n));
}

/* Up to four heads side by side: the chain of operations of one alone is longer than what the
   CPU has on hand. */
SANTA__INLINE void SANTA__ISA(mass_heads)(float *s, int64_t s_stride, int heads, int n, float *max,
                                          float *sum, int64_t stride) {
    SANTA__V total[4];
    float top[4];
    int g, i;
    for (g = 0; g < heads; g++) {
        SANTA__V m = SANTA__ISA(vset)(SANTA__MASKED);
        int bad = 0;
        for (i = 0; i < n; i += SANTA__LANES) {
            const SANTA__V x = SANTA__ISA(vget)(s + g * s_stride + i);
            bad |= SANTA__ISA(vbad)(x);
            m = SANTA__ISA(vmax)(m, x);
        }
        top[g] = bad ? santa__nan() : SANTA__ISA(vtop)(m);
    }
    for (g = 0; g < heads; g++) {
        const SANTA__V m = SANTA__ISA(vset)(top[g]);
        float *u = s + g * s_stride;
        total[g] = SANTA__ISA(vset)(0.0f);
        if (santa__is_nan(top[g])) continue;
        if (top[g] < SANTA__MASK_LIMIT) { memset(u, 0, (size_t)n * sizeof *u); continue; }
        for (i = 0; i < n; i += SANTA__LANES) {
            const SANTA__V x = SANTA__ISA(vexp)(SANTA__ISA(vsub)(SANTA__ISA(vget)(u + i), m));
            SANTA__ISA(vput)(u + i, x);
            total[g] = SANTA__ISA(vadd)(total[g], x);
        }
    }
    for (g = 0; g < heads; g++) {
        const int bad = santa__is_nan(top[g]);
        max[g * stride] = bad || top[g] < SANTA__MASK_LIMIT ? SANTA__MASKED : top[g];
        sum[g * stride] = bad ? top[g] : SANTA__ISA(vtotal)(total[g]);
    }
}

SANTA__TARGET static void SANTA__ISA(mass)(float *s, int64_t s_stride, int64_t heads, int n, float *max,
                                           float *sum, int64_t stride) {
    for (; heads > 0; heads -= 4, s += 4 * s_stride, max += 4 * stride, sum += 4 * stride) {
        const int few = (int)SANTA__MIN(heads, (int64_t)4), narrow = n < SANTA__LANES;
        float wide[4 * SANTA__LANES];
        int g, i;
        for (g = 0; g < few && narrow; g++)
            for (i = 0; i < SANTA__LANES; i++)
                wide[g * SANTA__LANES + i] = i < n ? s[g * s_stride + i] : SANTA__MASKED;
        SANTA__ISA(mass_heads)
        (narrow ? wide : s, narrow ? SANTA__LANES : s_stride, few, SANTA__MAX(n, SANTA__LANES), max, sum,
         stride);
        for (g = 0; g < few && narrow; g++)
            memcpy(s + g * s_stride, wide + g * SANTA__LANES, (size_t)n * sizeof *s);
    }
}

SANTA__TARGET static void SANTA__ISA(exps)(float *x) {
    int i;
    for (i = 0; i < SANTA_BLOCK; i += SANTA__LANES)
        SANTA__ISA(vput)(x + i, SANTA__ISA(vexp)(SANTA__ISA(vget)(x + i)));
}

#if !SANTA__BY_STRIP
/* Whether NaN or +inf is among 64 scores. By bits: with -ffast-math compilers compare as if
   there were none. */
SANTA__TARGET static int SANTA__ISA(bad)(const float *s) {
    int i, bad = 0;
    for (i = 0; i < SANTA_BLOCK; i += SANTA__LANES) bad |= SANTA__ISA(vbad)(SANTA__ISA(vget)(s + i));
    return bad;
}

/* Which of 64 scores are not below the limit. */
SANTA__TARGET static uint64_t SANTA__ISA(above)(const float *s, float limit) {
    uint64_t bits = 0;
    int i;
    for (i = SANTA_BLOCK - SANTA__LANES; i >= 0; i -= SANTA__LANES)
        bits = bits << SANTA__LANES | SANTA__ISA(vabove)(SANTA__ISA(vget)(s + i), limit);
    return bits;
}
#endif

/* Columns c .. of vecs vectors for heads from g0 on, 4 or 2, or 1 of 2; the sums stay in
   registers over the rows. Each round of columns prefetches its part of the rows to come, the
   last one the rest: a whole row at once would be more than the CPU can have on the way. */
SANTA__INLINE void SANTA__ISA(accumulate_columns)(santa_dtype t, float unit, const char *const *row, int n,
                                                  int64_t dv, int64_t c, int vecs, int heads, int64_t g0,
                                                  const santa__weights *x) {
    const int64_t next = c + vecs * SANTA__LANES,
                  to = next + vecs * SANTA__LANES > dv ? dv : next / 32 * 32;
    const int64_t last = santa__bytes(t, to), line = (santa__bytes(t, c / 32 * 32) + 63) / 64 * 64,
                  first = SANTA__MIN(line, last);                     /* to prefetch */
    const int ahead_by = vecs * SANTA__LANES < 64 ? SANTA_BLOCK : SANTA__AHEAD,
              one = heads == 2 && x->group - g0 == 1;
    const int strips = SANTA__BY_STRIP && t == SANTA_F32;            /* which are at hand */
    const int64_t at = x->at, w_stride = x->w_stride;
    const float *w = x->w + g0 * w_stride;
    SANTA__V sum[SANTA__KEEP_V], f[8];
    int i, g, v;
    SANTA__UNROLL
    for (v = 0; v < SANTA__KEEP_V; v++) sum[v] = SANTA__ISA(vset)(0.0f);
    for (i = 0; i < n; i++) {
        const char *r = row[i] + at;
        if (!strips) {
            const char *coming = row[i + ahead_by] + at, *b = coming + first;
            for (; b < coming + last; b += 64) SANTA__PREFETCH(b);
        }
        SANTA__ISA(vcolumns)(t, r, c, vecs, f);
        SANTA__UNROLL
        for (g = 0; g < heads; g++) {
            SANTA__V y;
            if (heads == 2 && g > 0 && one) continue;
            y = SANTA__ISA(vset)(w[g * w_stride + i]);
            SANTA__UNROLL
            for (v = 0; v < vecs; v++) sum[g * vecs + v] = SANTA__ISA(vfma)(f[v], y, sum[g * vecs + v]);
        }
    }
    SANTA__UNROLL
    for (g = 0; g < heads; g++) {
        if (g == 0 || !one) {
            const SANTA__V k = SANTA__ISA(vset)(x->keep[g0 + g]),
                           y = SANTA__ISA(vset)(x->add[g0 + g] * unit);
            float *a = x->acc + (g0 + g) * x->acc_stride + c;
            SANTA__UNROLL
            for (v = 0; v < vecs; v++, a += SANTA__LANES)
                SANTA__ISA(vput)
                (a, SANTA__ISA(vfma)(SANTA__ISA(vget)(a), k, SANTA__ISA(vmul)(y, sum[g * vecs + v])));
        }
    }
}

/* The columns from c on that fill no register tile, head by head. */
SANTA__TARGET static void SANTA__ISA(accumulate_rest)(santa_dtype t, float unit, const char *const *row,
                                                      int n, int64_t dv, int64_t c, int heads, int64_t g0,
                                                      const santa__weights *x) {
    int i, u, g;
    for (; c < dv; c += SANTA__LANES) {
        const int lanes = (int)SANTA__MIN(dv - c, (int64_t)SANTA__LANES);
        SANTA__V sum[4];
        for (g = 0; g < heads; g++) sum[g] = SANTA__ISA(vset)(0.0f);
        for (i = 0; i < n; i += SANTA__LANES) {
            const int few = SANTA__MIN(n - i, SANTA__LANES);
            SANTA__V f[SANTA__LANES];
            if (c == 0 && !(SANTA__BY_STRIP && t == SANTA_F32))
                for (u = 0; u < few; u++) SANTA__PREFETCH(row[i + u + SANTA__AHEAD] + x->at);
            SANTA__ISA(vrows_part)(t, row + i, few, x->at, c, dv, f);
            for (g = 0; g < heads; g++) {
                const float *w = x->w + (g0 + g) * x->w_stride + i;
                for (u = 0; u < few; u++) sum[g] = SANTA__ISA(vfma)(f[u], SANTA__ISA(vset)(w[u]), sum[g]);
            }
        }
        for (g = 0; g < heads; g++) {                                 /* rounded as in accumulate_columns */
            const SANTA__V k = SANTA__ISA(vset)(x->keep[g0 + g]),
                           y = SANTA__ISA(vset)(x->add[g0 + g] * unit);
            float part[SANTA__LANES] = {0.0f}, *a = x->acc + (g0 + g) * x->acc_stride + c;
            memcpy(part, a, (size_t)lanes * sizeof *a);
            SANTA__ISA(vput)
            (part, SANTA__ISA(vfma)(SANTA__ISA(vget)(part), k, SANTA__ISA(vmul)(y, sum[g])));
            memcpy(a, part, (size_t)lanes * sizeof *a);
        }
    }
}

SANTA__INLINE void SANTA__ISA(accumulate_heads)(santa_dtype t, float unit, const char *const *row, int n,
                                                int64_t dv, int heads, int64_t g0,
                                                int64_t c, const santa__weights *x) {
    const int vecs = SANTA__MIN(SANTA__KEEP_V / heads, 8),
              half = vecs * SANTA__LANES > 64 ? vecs / 2 : 0;         /* for dv = 64 */
    for (; c + vecs * SANTA__LANES <= dv; c += vecs * SANTA__LANES)
        SANTA__ISA(accumulate_columns)(t, unit, row, n, dv, c, vecs, heads, g0, x);
    if (half && c + half * SANTA__LANES <= dv) {
        SANTA__ISA(accumulate_columns)(t, unit, row, n, dv, c, half, heads, g0, x);
        c += half * SANTA__LANES;
    }
    if (c < dv)
        SANTA__ISA(accumulate_rest)
        (t, unit, row, n, dv, c, (int)SANTA__MIN((int64_t)heads, x->group - g0), g0, x);
}

/* As in dot: fours of heads with a type that the compiler knows, the others of any type. */
#if SANTA__BY_STRIP
SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(accumulate_strip)(float unit, const char *const *row,
                                                                       int n, int64_t dv,
                                                                       const santa__weights *x) {
    int64_t g = 0;
    for (; g < x->group; g += 2) SANTA__ISA(accumulate_heads)(SANTA_F32, unit, row, n, dv, 2, g, 0, x);
}
#else
#define SANTA__X(id, name, bytes, numbers) \
    SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(accumulate_fours_##name)( \
        const char *const *row, int n, int64_t dv, const santa__weights *weights) { \
        const santa__weights x = *weights;                            /* which acc cannot alias */ \
        const float unit = santa__unit(SANTA_##id); \
        int64_t g = 0; \
        for (; g + 4 <= x.group; g += 4) \
            SANTA__ISA(accumulate_heads)(SANTA_##id, unit, row, n, dv, 4, g, 0, &x); \
    }
SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#undef SANTA__X

SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(accumulate_few)(santa_dtype t, const char *const *row,
                                                                     int n, int64_t dv,
                                                                     const santa__weights *weights) {
    const santa__weights x = *weights;
    const float unit = santa__unit(t);
    int64_t g = x.group / 4 * 4;
    for (; g < x.group; g += 2) {
        int64_t c = 0;
        if (SANTA__KEEP_V == 8 && x.group - g == 1)                   /* alone, all registers are its own */
            for (; c + 8 * SANTA__LANES <= dv; c += 8 * SANTA__LANES)
                SANTA__ISA(accumulate_columns)(t, unit, row, n, dv, c, 8, 1, g, &x);
        SANTA__ISA(accumulate_heads)(t, unit, row, n, dv, 2, g, c, &x);
    }
}
#endif

#if SANTA__BY_STRIP
SANTA__TARGET static void SANTA__ISA(accumulate)(santa_dtype t, const char *const *row, int n, int64_t dv,
                                                 const santa__weights *x) {
    float strip[SANTA_BLOCK][SANTA__PACK];
    const char *f[SANTA_BLOCK];
    santa__weights part = *x;
    int64_t c, at = x->at;
    int i;
    part.at = 0;
    for (c = 0; c < dv; c += SANTA__PACK, at += santa__bytes(t, SANTA__PACK), part.acc += SANTA__PACK) {
        const int64_t left = SANTA__MIN(dv - c, (int64_t)SANTA__PACK);
        for (i = 0; i < n; i++) {
            char tail[4 * SANTA__PACK] = {0};
            SANTA__PREFETCH(row[i + SANTA__AHEAD] + at);
            if (left == SANTA__PACK || t == SANTA_F32) f[i] = santa__unpack(t, row[i] + at, strip[i]);
            else
                f[i] = santa__unpack(
                    t, (const char *)memcpy(tail, row[i] + at, (size_t)santa__bytes(t, left)), strip[i]);
        }
        SANTA__ISA(accumulate_strip)(santa__unit(t), f, n, left, &part);
    }
}
#else
SANTA__TARGET static void SANTA__ISA(accumulate)(santa_dtype t, const char *const *row, int n, int64_t dv,
                                                 const santa__weights *x) {
    switch (t) {
#define SANTA__X(id, name, bytes, numbers)                                                                 \
    case SANTA_##id: SANTA__ISA(accumulate_fours_##name)(row, n, dv, x); break;
        SANTA_DIRECT_DTYPE_LIST(SANTA__X)
#undef SANTA__X
    default: SANTA__ISA(accumulate_widened)(t, row, n, dv, x); return;
    }
    SANTA__ISA(accumulate_few)(t, row, n, dv, x);
}
#endif

/* The gains of a block's keys, and their squares. */
SANTA__INLINE void SANTA__ISA(copied_gains)(const char *block, const santa__format *f, float *gain,
                                            float *squares) {
    int64_t i;
    for (i = 0; i < f->keys; i += SANTA__LANES) {
        const SANTA__V y = SANTA__ISA(vrow)(SANTA_F16, block + f->gains, i);
        const SANTA__V sign = SANTA__ISA(vadd)(y, SANTA__ISA(vset)(0.0f));  /* or clang compares each f16 */
        SANTA__ISA(vput)(gain + i, y);
        SANTA__ISA(vput)(squares + i, SANTA__ISA(vfrom)(sign, 0.0f, SANTA__ISA(vmul)(y, y)));  /* NaN: 0 */
    }
}

/* The scores of all keys of a block for 4 heads, or 1, from head g on. */
SANTA__INLINE void SANTA__ISA(copied_heads)(int bits, const char *block, const santa__format *f,
                                            const float *gain, int heads, int64_t g,
                                            const santa__copied *x) {
    const float *q = x->q + g * f->features;
    const int64_t ahead = g == 0 ? f->bytes : 0;                      /* the next block comes once */
    SANTA__V sum[4];
    float scale, total[4], out[4 * 16];
    int64_t c, i;
    int h;
    memcpy(&scale, block + f->scale, sizeof scale);
    for (c = f->gains; c < ahead; c += 64) SANTA__PREFETCH(block + ahead + c);
    SANTA__UNROLL
    for (h = 0; h < heads; h++) sum[h] = SANTA__ISA(vset)(0.0f);
    for (c = 0; c < f->features; c += SANTA__LANES) {
        const SANTA__V y = SANTA__ISA(vints)(block + f->centre + c);
        SANTA__UNROLL
        for (h = 0; h < heads; h++)
            sum[h] = SANTA__ISA(vfma)(y, SANTA__ISA(vget)(q + h * f->features + c), sum[h]);
    }
    for (h = 0; h < heads; h++) total[h] = scale * SANTA__ISA(vtotal)(sum[h]);
    for (i = 0; i < f->keys; i += 16) {
        const char *codes = block + 16 * i;
        SANTA__ISA(codes)(bits, codes, 16 * f->keys, f->chunks, ahead, x->codes + g * f->features,
                          f->features, heads, out);
        for (h = 0; h < heads; h++) {
            const SANTA__V unit = SANTA__ISA(vset)(x->unit[g + h]), less = SANTA__ISA(vset)(x->less[g + h]);
            for (c = 0; c < 16; c += SANTA__LANES) {
                const SANTA__V y = SANTA__ISA(vmul)(
                    unit, SANTA__ISA(vsub)(SANTA__ISA(vget)(out + 16 * h + c), less));
                SANTA__ISA(vput)(x->s + (g + h) * x->s_stride + i + c,
                                 SANTA__ISA(vfma)(SANTA__ISA(vget)(gain + i + c), y,
                                                  SANTA__ISA(vset)(total[h])));
            }
        }
    }
}

/* Bits that the compiler knows unroll the inner loops. */
#if SANTA__BY_STRIP
SANTA__TARGET static void SANTA__ISA(copied)(const char *block, const santa__format *f,
                                             const santa__copied *x) {
    float gain[SANTA_BLOCK];
    int64_t g = 0;
    SANTA__ISA(copied_gains)(block, f, gain, x->squares);
    for (; g < x->group; g++) SANTA__ISA(copied_heads)(f->bits, block, f, gain, 1, g, x);
}
#else
#define SANTA__COPIED(name, bits) \
    SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(name)(const char *block, const santa__format *f, \
                                                               const santa__copied *x) { \
        float gain[SANTA_BLOCK]; \
        int64_t g = 0; \
        SANTA__ISA(copied_gains)(block, f, gain, x->squares); \
        for (; g + 4 <= x->group; g += 4) SANTA__ISA(copied_heads)(bits, block, f, gain, 4, g, x); \
        for (; g < x->group; g++) SANTA__ISA(copied_heads)(bits, block, f, gain, 1, g, x); \
    }
SANTA__COPIED(copied_4_bits, 4)
SANTA__COPIED(copied_2_bits, 2)
#undef SANTA__COPIED
static void SANTA__ISA(copied)(const char *block, const santa__format *f, const santa__copied *x) {
    if (f->bits == 4) SANTA__ISA(copied_4_bits)(block, f, x);
    else SANTA__ISA(copied_2_bits)(block, f, x);
}
#endif

/* Rows of f->features numbers, rotated: signs, then butterflies a + b, a - b, in natural order:
   the result is the same on every machine. Step by step, as each hangs on the one before; two
   at a time where they are far apart. */
#if SANTA__BY_STRIP
static void SANTA__ISA(rotate)(float *x, int64_t rows, const float *turn, const santa__format *f) {
    const int64_t n = rows * f->features;
    int64_t c, i, step;
    for (i = 0; i < n; i += f->features) for (c = 0; c < f->features; c++) x[i + c] *= turn[c];
    for (step = 1; step < f->piece; step *= 2)
        for (c = 0; c < n; c += 2 * step)
            for (i = c; i < c + step; i++) {
                const float a = x[i], b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
}
#else
SANTA__TARGET SANTA__NOINLINE static void SANTA__ISA(rotate)(float *x, int64_t rows, const float *turn,
                                                             const santa__format *f) {
    enum { levels = SANTA__LANES > 8 ? 4 : SANTA__LANES > 4 ? 3 : 2 };
    const int64_t n = rows * f->features, piece = f->piece;
    int64_t c, i, step = SANTA__LANES;
    int k;
    for (i = 0; i < n; i += f->features)
        for (c = 0; c < f->features; c += SANTA__LANES) {
            SANTA__V y = SANTA__ISA(vmul)(SANTA__ISA(vget)(x + i + c), SANTA__ISA(vget)(turn + c));
            SANTA__UNROLL
            for (k = 0; k < levels; k++)
                if (1 << k < piece)
                    y = SANTA__ISA(vfma)(y, SANTA__ISA(vget)(santa__signs[k]),
                                         SANTA__ISA(vswap)(y, 1 << k));
            SANTA__ISA(vput)(x + i + c, y);
        }
    for (; 2 * step < piece; step *= 4)
        for (c = 0; c < n; c += 4 * step)
            for (i = c; i < c + step; i += SANTA__LANES) {
                const SANTA__V a0 = SANTA__ISA(vget)(x + i), a1 = SANTA__ISA(vget)(x + i + step),
                               a2 = SANTA__ISA(vget)(x + i + 2 * step),
                               a3 = SANTA__ISA(vget)(x + i + 3 * step),
                               b0 = SANTA__ISA(vadd)(a0, a1), b1 = SANTA__ISA(vsub)(a0, a1),
                               b2 = SANTA__ISA(vadd)(a2, a3), b3 = SANTA__ISA(vsub)(a2, a3);
                SANTA__ISA(vput)(x + i, SANTA__ISA(vadd)(b0, b2));
                SANTA__ISA(vput)(x + i + step, SANTA__ISA(vadd)(b1, b3));
                SANTA__ISA(vput)(x + i + 2 * step, SANTA__ISA(vsub)(b0, b2));
                SANTA__ISA(vput)(x + i + 3 * step, SANTA__ISA(vsub)(b1, b3));
            }
    for (; step < piece; step *= 2)
        for (c = 0; c < n; c += 2 * step)
            for (i = c; i < c + step; i += SANTA__LANES) {
                const SANTA__V a = SANTA__ISA(vget)(x + i), b = SANTA__ISA(vget)(x + i + step);
                SANTA__ISA(vput)(x + i, SANTA__ISA(vadd)(a, b));
                SANTA__ISA(vput)(x + i + step, SANTA__ISA(vsub)(a, b));
            }
}
#endif

#if SANTA__BY_STRIP
SANTA__TARGET static int SANTA__ISA(widen)(santa_dtype t, const char *row, int64_t n, float *f) {
    const float unit = santa__unit(t);
    int64_t c, i;
    int bad = 0;
    for (c = 0; c < n; c += SANTA__PACK, row += santa__bytes(t, SANTA__PACK)) {
        const int64_t left = SANTA__MIN(n - c, (int64_t)SANTA__PACK);
        char tail[4 * SANTA__PACK] = {0};
        float strip[SANTA__PACK];
        const char *x = row;
        if (left < SANTA__PACK) x = (const char *)memcpy(tail, row, (size_t)santa__bytes(t, left));
        x = santa__unpack(t, x, strip);
        if (x != (const char *)strip) memcpy(strip, x, sizeof strip);
        for (i = 0; i < (left + 15) / 16 * 16; i++) {
            f[c + i] = strip[i] * unit;
            bad |= santa__not_finite(f[c + i]);
        }
    }
    return bad;
}
#else
SANTA__INLINE int SANTA__ISA(widen_type)(santa_dtype t, const char *row, int64_t n, float *f) {
    const SANTA__V unit = SANTA__ISA(vset)(santa__unit(t)), zero = SANTA__ISA(vset)(0.0f);
    int64_t c;
    int bad = 0;
    for (c = 0; c < n; c += SANTA__LANES) {
        SANTA__V x = SANTA__ISA(vrow)(t, row, c);
        if (santa__unit(t) > 1.0f) x = SANTA__ISA(vmul)(x, unit);
        bad |= SANTA__ISA(vbad)(x) | SANTA__ISA(vbad)(SANTA__ISA(vsub)(zero, x));
        SANTA__ISA(vput)(f + c, x);
    }
    return bad;
}

/* Whole vectors of a type that the compiler knows, then the rest, from a place with zeros
   behind it. Rows of blocks have no rest. */
SANTA__TARGET static int SANTA__ISA(widen)(santa_dtype t, const char *row, int64_t n, float *f) {
    const int64_t whole = n / SANTA__LANES * SANTA__LANES, all = (n + 15) / 16 * 16;
    char tail[4 * 16] = {0};
    int64_t count = whole;
    int bad = 0;
    if (n > whole) memcpy(tail, row + santa__bytes(t, whole), (size_t)santa__bytes(t, n - whole));
    for (;;) {
        switch (t) {
#define SANTA__X(id, name, bytes, numbers) \
        case SANTA_##id: bad |= SANTA__ISA(widen_type)(SANTA_##id, row, count, f); break;
            SANTA_DTYPE_LIST(SANTA__X)
#undef SANTA__X
        }
        if (row == tail || whole == all) return bad;
        row = tail;
        f += whole;
        count = all - whole;
    }
}
#endif

/* n <= SANTA__ENCODED keys, step by step: each of one key hangs on the one before. */
SANTA__TARGET static void SANTA__ISA(encode)(santa_dtype t, const char *const *row, int n,
                                             const float *turn, const float *centre,
                                             const santa__format *f, char *codes, float *gain) {
    const int parts = 8 / f->bits, levels = 1 << f->bits;
    const SANTA__V half = SANTA__ISA(vset)(0.5f), zero = SANTA__ISA(vset)(0.0f),
                   top = SANTA__ISA(vset)((float)(levels - 1)), mid = SANTA__ISA(vset)((float)(levels / 2)),
                   middle = SANTA__ISA(vset)(f->middle);
    float memory[2 * SANTA__PROXY_DIM], inverse[SANTA__ENCODED], *x = memory;
    int64_t c, i;
    int k, key;
    for (key = 0; key < n; key++, x += f->features) {
        SANTA__ISA(widen)(t, row[key], f->dim, x);
        for (c = f->dim; c < f->features; c++) x[c] = 0.0f;
    }
    SANTA__ISA(rotate)(memory, n, turn, f);
    for (x = memory, key = 0; key < n; key++, x += f->features) {
        SANTA__V squares = zero;
        for (c = 0; c < f->features; c += SANTA__LANES) {
            const SANTA__V y = SANTA__ISA(vsub)(SANTA__ISA(vget)(x + c), SANTA__ISA(vget)(centre + c));
            SANTA__ISA(vput)(x + c, y);
            squares = SANTA__ISA(vfma)(y, y, squares);
        }
        inverse[key] = SANTA__ISA(vtotal)(squares);
    }
    for (key = 0; key < n; key++) {
        const float sum = inverse[key];
        gain[key] = santa__not_finite(sum) ? santa__nan() : 0.0f;
        inverse[key] = sum > 0.0f ? (float)(1.0 / ((double)f->step * sqrt((double)sum / (double)f->dim)))
                                  : 0.0f;
    }
    for (x = memory, key = 0; key < n; key++, x += f->features) {
        const SANTA__V scale = SANTA__ISA(vset)(inverse[key]);
        SANTA__V both = zero, code_squares = zero;
        char *to = codes + 16 * key;
        if (!(inverse[key] > 0.0f) || santa__not_finite(inverse[key])) continue;
        for (c = 0; c < f->features; c += 16 * parts, to += 16 * f->keys)
            for (i = 0; i < 16; i += SANTA__LANES) {
                SANTA__V bytes = zero;
                for (k = parts - 1; k >= 0; k--) {                    /* floor, within the levels */
                    const SANTA__V y = SANTA__ISA(vget)(x + c + 16 * k + i);
                    SANTA__V code, level;
                    code = SANTA__ISA(vround)(SANTA__ISA(vsub)(SANTA__ISA(vmul)(y, scale), half));
                    code = SANTA__ISA(vmin)(SANTA__ISA(vmax)(SANTA__ISA(vadd)(code, mid), zero), top);
                    level = SANTA__ISA(vsub)(code, middle);
                    if (c + 16 * k + i + SANTA__LANES > f->dim) {     /* no such features: no codes */
                        const SANTA__V there = SANTA__ISA(vget)(turn + c + 16 * k + i);
                        code = SANTA__ISA(vfrom)(SANTA__ISA(vmul)(there, there), 1e-5f, code);
                        level = SANTA__ISA(vfrom)(SANTA__ISA(vmul)(there, there), 1e-5f, level);
                    }
                    both = SANTA__ISA(vfma)(y, level, both);
                    code_squares = SANTA__ISA(vfma)(level, level, code_squares);
                    bytes = SANTA__ISA(vfma)(bytes, SANTA__ISA(vset)((float)levels), code);
                }
                SANTA__ISA(vbytes)(to + i, bytes);
            }
        gain[key] = SANTA__ISA(vtotal)(both) / SANTA__ISA(vtotal)(code_squares);
    }
}

SANTA__TARGET static float SANTA__ISA(product)(const float *a, const float *b) {
    SANTA__V sum = SANTA__ISA(vset)(0.0f);
    int i;
    for (i = 0; i < SANTA_BLOCK; i += SANTA__LANES)
        sum = SANTA__ISA(vfma)(SANTA__ISA(vget)(a + i), SANTA__ISA(vget)(b + i), sum);
    return SANTA__ISA(vtotal)(sum);
}

SANTA__TARGET static float SANTA__ISA(sizes)(const float *const *u, const float *const *unit, int64_t heads,
                                             int64_t b, float *size) {
    SANTA__V sum = SANTA__ISA(vset)(0.0f);
    int64_t h;
    int i;
    for (i = 0; i < SANTA_BLOCK; i += SANTA__LANES) {
        SANTA__V x = SANTA__ISA(vget)(size + i);
        for (h = 0; h < heads; h++)
            x = SANTA__ISA(vmax)(SANTA__ISA(vmul)(SANTA__ISA(vget)(u[h] + b * SANTA_BLOCK + i),
                                                  SANTA__ISA(vset)(unit[h][b])), x);
        SANTA__ISA(vput)(size + i, x);
        sum = SANTA__ISA(vadd)(sum, x);
    }
    return SANTA__ISA(vtotal)(sum);
}

/* A few rows of c in registers, for two vectors of queries, or one: a number of a meets both of
   them, a vector of b all rows. */
SANTA__INLINE void SANTA__ISA(panel_rows)(const santa__panel *x, int of_values, int pairs, int wide) {
    enum { ROWS = SANTA__KEEP_K < 16 ? 4 : 8 };
    const int64_t across = of_values ? 1 : x->stride, along = of_values ? x->stride : 1, lanes = x->lanes;
    const int keeps = of_values && x->keep;
    int64_t r, i, v;
    int k, w;
    for (v = 0; v < lanes; v += wide * SANTA__LANES)
        for (r = 0; r < x->rows; r += ROWS) {
            const float *a = x->a + r * across, *b = x->b + v;
            float *c = x->c + r * lanes + v;
            SANTA__V sum[ROWS][2], f[2], keep[2];
            SANTA__UNROLL
            for (k = 0; k < ROWS; k++) sum[k][0] = sum[k][1] = SANTA__ISA(vset)(0.0f);
            for (i = 0; i < x->n; i++, a += along, b += lanes) {
                SANTA__UNROLL
                for (w = 0; w < wide; w++) f[w] = SANTA__ISA(vget)(b + w * SANTA__LANES);
                SANTA__UNROLL
                for (k = 0; k < ROWS; k++) {
                    const SANTA__V y = SANTA__ISA(vset)(a[k * across]);
                    SANTA__UNROLL
                    for (w = 0; w < wide; w++)
                        sum[k][w] = pairs ? SANTA__ISA(vpairs)(sum[k][w], y, f[w])
                                          : SANTA__ISA(vfma)(y, f[w], sum[k][w]);
                }
            }
            SANTA__UNROLL
            for (w = 0; w < wide; w++)
                keep[w] = keeps ? SANTA__ISA(vget)(x->keep + v + w * SANTA__LANES) : SANTA__ISA(vset)(0.0f);
            SANTA__UNROLL
            for (k = 0; k < ROWS; k++) {
                SANTA__UNROLL
                for (w = 0; w < wide; w++) {
                    float *to = c + k * lanes + w * SANTA__LANES;
                    if (keeps) sum[k][w] = SANTA__ISA(vfma)(SANTA__ISA(vget)(to), keep[w], sum[k][w]);
                    else if (pairs) sum[k][w] = SANTA__ISA(vmul)(sum[k][w], SANTA__ISA(vset)(x->scale));
                    SANTA__ISA(vput)(to, sum[k][w]);
                }
            }
        }
}

SANTA__TARGET static void SANTA__ISA(panel)(const santa__panel *x) {
#ifdef SANTA__DOT_BF16
    if (x->pairs) { SANTA__ISA(panel_rows)(x, x->of_values, 1, 2); return; }
#endif
    if (x->of_values) SANTA__ISA(panel_rows)(x, 1, 0, 2);            /* 3 % faster than one loop for both */
    else if (2 * SANTA__LANES > 16 && x->lanes == 16) SANTA__ISA(panel_rows)(x, 0, 0, 1);
    else SANTA__ISA(panel_rows)(x, 0, 0, 2);
}

SANTA__TARGET static void SANTA__ISA(tops)(const float *s, int64_t rows, int64_t lanes, float *top,
                                           float *above) {
    int64_t v, r;
    for (v = 0; v < lanes; v += SANTA__LANES) {
        SANTA__V x = SANTA__ISA(vget)(s + v), n = SANTA__ISA(vset)(0.0f);
        for (r = 1; r < rows; r++) x = SANTA__ISA(vmax)(SANTA__ISA(vget)(s + r * lanes + v), x);
        for (r = 0; r < rows; r++)
            n = SANTA__ISA(vmax)(SANTA__ISA(vfrom)(SANTA__ISA(vsub)(SANTA__ISA(vget)(s + r * lanes + v), x),
                                                   0.0f, SANTA__ISA(vset)((float)(rows - r))), n);
        SANTA__ISA(vput)(top + v, x);
        SANTA__ISA(vput)(above + v, n);
    }
}

#ifdef SANTA__DOT_BF16
SANTA__TARGET static void SANTA__ISA(pair)(const float *x, int64_t rows, int64_t width, float *to) {
    int64_t i, c;
    for (i = 0; i < rows; i += 2, x += 2 * width)
        for (c = 0; c < width; c += SANTA__LANES, to += SANTA__LANES) {
            const SANTA__V a = SANTA__ISA(vget)(x + c), b = SANTA__ISA(vget)(x + width + c);
            SANTA__ISA(vput)(to, SANTA__ISA(vpair)(a, b));
        }
}
#endif

SANTA__TARGET static int SANTA__ISA(panel_mass)(float *s, float *m, float *keep, float *sum) {
    int v, i, bad = 0;
    for (v = 0; v < SANTA__PANEL; v += SANTA__LANES) {
        const SANTA__V old = SANTA__ISA(vget)(m + v);
        SANTA__V top = old, total = SANTA__ISA(vset)(0.0f);
        for (i = 0; i < SANTA_BLOCK; i++) {
            const SANTA__V x = SANTA__ISA(vget)(s + i * SANTA__PANEL + v);
            bad |= SANTA__ISA(vbad)(x);
            top = SANTA__ISA(vmax)(x, top);            /* a NaN leaves top, but on NEON */
        }
        for (i = 0; i < SANTA_BLOCK; i++) {
            float *at = s + i * SANTA__PANEL + v;
            SANTA__V x = SANTA__ISA(vexp)(SANTA__ISA(vsub)(SANTA__ISA(vget)(at), top));
            x = SANTA__ISA(vfrom)(top, SANTA__MASK_LIMIT, x);         /* no key so far: 0 */
            SANTA__ISA(vput)(at, x);
            total = SANTA__ISA(vadd)(total, x);
        }
        SANTA__ISA(vput)(keep + v, SANTA__ISA(vexp)(SANTA__ISA(vsub)(old, top)));
        SANTA__ISA(vput)(m + v, top);
        SANTA__ISA(vput)(sum + v, total);
    }
    return bad;
}

static const santa__kernels SANTA__ISA(kernels) = {
    SANTA__ISA(dot), SANTA__ISA(dot_q8),
#ifdef SANTA__DOT_BF16
    SANTA__ISA(dot_bf16),
#else
    NULL,
#endif
    SANTA__ISA(mass), SANTA__ISA(exps),
#if SANTA__BY_STRIP
    NULL, NULL,
#else
    SANTA__ISA(above), SANTA__ISA(bad),
#endif
    SANTA__ISA(accumulate), SANTA__ISA(copied), SANTA__ISA(rotate), SANTA__ISA(encode),
    SANTA__ISA(product), SANTA__ISA(sizes), SANTA__ISA(widen), SANTA__ISA(panel),
#ifdef SANTA__DOT_BF16
    SANTA__ISA(pair),
#else
    NULL,
#endif
    SANTA__ISA(panel_mass), SANTA__ISA(tops)
};

#undef SANTA__ISA
#undef SANTA__TARGET
#undef SANTA__LANES
#undef SANTA__KEEP_K
#undef SANTA__KEEP_V
#undef SANTA__QUANTS
#undef SANTA__BY_STRIP
#undef SANTA__V
#undef SANTA__UNROLL
#undef SANTA__DOT_BF16
#endif /* SANTA__ISA */

/* >>history
   0.2.0 (2026-11)  Draws that changed: vAttention where more than half of the keys left are to
                    be sampled (the ones left out are drawn). All others are those of 0.1.0.
                    New: SANTA_PPS and santa_variance_pps; draws from a copy of K in 4 or 2 bits
                    (SANTA_SCORES_PROXY, santa_proxy_size, _encode, _append); keys in buckets
                    (SANTA_SAAP, santa_buckets_size, _assign, _find, santa_kmeans), also with a
                    copy of K; sparse prefill (SANTA_SAMPLE_ATTENTION, santa_mask_shape);
                    key_list; ranks;
                    heavy_index; num_combs; first_key and context_lens; kv_start; first_tokens;
                    k_scales and v_scales, on GPUs, too; AMX (SANTA_ISA_AMX);
                    K and V of e5m2 and q4_0;
                    santa_problem, which backends get;
                    santa_method_from_name, santa_method_traits; santa_status_name,
                    santa_version, santa_struct_size. Query rows share a pass over K, or its
                    copy; dense
                    calls of 32 rows and more round in another order; where all is bf16 a key's
                    weight is a bf16 there. V whose tokens lie side by side is added up in
                    another order. Where a CPU has AMX, scores of bf16 K round in another order
                    for groups of more than four heads.
                    On a GPU scores of K of f32, e5m2, q8_0 and q4_0 round in another order, so
                    do those with a q of another type than K, soft cap, ALiBi or k_scales, and
                    the sums of weights of 32 query rows or more; with K of q8_0 and q4_0 an
                    infinite q gives NaN.
                    parallel_for gets fewer than num_threads tasks where there is less work.
                    Mended: dense of several query rows on a GPU, not causal, beside a window,
                    lost keys or gave NaN; santa_merge of lse +inf and -inf was finite;
                    std_error was 0 beside a NaN in out where no draw was off.
                    Scores from -1e38 to -1e30 count (they were -inf). Refused: out that
                    overlaps itself, delta below 1e-290; options that the method does not read,
                    which were ignored (SANTA_ERR_OPTION_UNUSED): santa_unused_option names the
                    first, santa_clear_unused_options clears all.
   0.1.0 (2026-11)  first version: dense, iid, strat, sys, prop, flash, top-k, top-p, vAttention;
                    Bernoulli scores; f32, f16, bf16, e4m3, q8_0; AVX2, AVX-512, NEON at run
                    time; santa_cuda.cu: dense, iid, strat, prop, flash.

   The methods are those of "Stochastic Sparse Attention for Memory-Bound Inference" (SANTA,
   S2ANTA, Bernoulli; arXiv 2605.01910), "vAttention: Verified Sparse Attention" and SAAP
   (Self-Attention with Asymmetric Partitions, Mazare and others, 2025). The code is ours.

   Licence: either of the two, whichever you prefer.
   ALTERNATIVE A - MIT License

   Copyright (c) 2026 the santa authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of
   this software and associated documentation files (the "Software"), to deal in
   the Software without restriction, including without limitation the rights to
   use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
   of the Software, and to permit persons to whom the Software is furnished to do
   so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all
   copies or substantial portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
   IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
   FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
   AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
   LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
   SOFTWARE.

   ------------------------------------------------------------------------------
   ALTERNATIVE B - Public Domain (www.unlicense.org)

   This is free and unencumbered software released into the public domain.

   Anyone is free to copy, modify, publish, use, compile, sell, or distribute this
   software, either in source code form or as a compiled binary, for any purpose,
   commercial or non-commercial, and by any means.

   In jurisdictions that recognize copyright laws, the author or authors of this
   software dedicate any and all copyright interest in the software to the public
   domain. We make this dedication for the benefit of the public at large and to
   the detriment of our heirs and successors. We intend this dedication to be an
   overt act of relinquishment in perpetuity of all present and future rights to
   this software under copyright law.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
   IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
   FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
   AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN
   ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
   WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
*/
