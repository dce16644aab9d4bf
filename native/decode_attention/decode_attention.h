/* Attention of few queries to many keys, forward only (incremental decoding): the interface.
 *
 *   out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum over j of the same
 *
 * for every head, over the keys that are visible to the query; zeros where none is. Hidden keys and
 * values are never read. All numbers are float32, and none depends on the number of threads.
 */
#ifndef ADDNORM_DECODE_ATTENTION_H
#define ADDNORM_DECODE_ATTENTION_H

#include <stdint.h>

struct addnorm_tokens { /* a view (batch, heads, tokens, head_dim), the last axis dense */
    float *data;
    int64_t batch_stride, head_stride, token_stride; /* in elements */
};

struct addnorm_decode_attention { /* DECODE_STRUCT of src/addnorm/kernels/attention/decode.py */
    int64_t batch, heads, kv_heads, queries, keys, head_dim;
    float scale;
    struct addnorm_tokens q, k, v, out;
    const uint8_t *visible; /* (batch, heads, queries, keys) by these strides; NULL: all keys */
    int64_t visible_batch_stride, visible_head_stride, visible_query_stride, visible_key_stride;
};

#pragma GCC visibility push(default)
/* Return nonzero, with nothing written, if the workspace cannot be allocated. */
int addnorm_decode_attention(const struct addnorm_decode_attention *p, int level, int threads);
#pragma GCC visibility pop

/* Process all queries of head task % heads of batch row task / heads. `workspace` holds one float
 * per key. */
typedef void addnorm_decode_attention_kernel(const struct addnorm_decode_attention *p, int64_t task,
                                             float *workspace);

extern addnorm_decode_attention_kernel addnorm_decode_attention_portable,
    addnorm_decode_attention_avx2, addnorm_decode_attention_avx512;

#endif
