/* Attention over packed sequences: the interface.
 *
 *   out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum of the same over j
 *
 * for every head, where query i and key j are of one sequence, and j is not after i if `causal`.
 * Sequence b has the queries from query_starts[b] to query_starts[b + 1] and the keys likewise. A
 * query without keys gets zeros. Nothing of the size of a sequence squared is ever held, and no sum
 * depends on the number of threads.
 */
#ifndef ADDNORM_ATTENTION_H
#define ADDNORM_ATTENTION_H

#include <stdint.h>

struct addnorm_heads { /* (heads, tokens, head_dim), the last dense; steps in elements */
    void *at;
    int64_t head, token;
};

struct addnorm_attention {
    int64_t batch, heads, kv_heads, head_dim, queries, keys;
    const int32_t *query_starts, *key_starts; /* batch + 1 each */
    int32_t type;                             /* ADDNORM_F32 or ADDNORM_BF16 */
    int32_t causal;
    float scale;
    float *lse; /* (heads, queries): log2 of the sum under p, for the backward */
    struct addnorm_heads q, k, v, out;
    /* The backward alone; it reads `lse` and `out`. */
    struct addnorm_heads dout, dq, dk, dv;
};

enum { ADDNORM_DONE, ADDNORM_BAD_STARTS, ADDNORM_UNEQUAL, ADDNORM_NO_MEMORY };

#pragma GCC visibility push(default)

/* Starts that do not go from 0 to all tokens, or sequences that are causal and have not as many keys
 * as queries, are told before anything is written. */
int addnorm_attention_forward(const struct addnorm_attention *p, int level, int threads);
int addnorm_attention_backward(const struct addnorm_attention *p, int level, int threads);

#pragma GCC visibility pop

#endif
