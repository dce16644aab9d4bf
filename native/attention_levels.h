/* What attention_kernels.c gives at each instruction-set level, and attention.c chooses from. */
#ifndef ADDNORM_ATTENTION_LEVELS_H
#define ADDNORM_ATTENTION_LEVELS_H

#include "attention.h"

typedef void addnorm_attend(const struct addnorm_attention *p, int64_t task, float *room);
typedef int64_t addnorm_room(const struct addnorm_attention *p, int64_t longest);

struct addnorm_attention_level {
    int64_t chunk;                             /* queries of a task of the forward */
    addnorm_room *forward_room, *backward_room; /* floats of scratch that a thread needs */
    addnorm_attend *forward[2], *backward[2];  /* float32 and bfloat16 */
};

extern const struct addnorm_attention_level addnorm_attention_portable, addnorm_attention_avx2,
    addnorm_attention_avx512;

#endif
