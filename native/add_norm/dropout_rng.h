/* Random draws of dropout: SplitMix64 over vectors of 64-bit words.
 *
 * Word n of a seed is mix(seed + (n + 1) * GAMMA), a pure function of its index, so that the
 * backward computes the draws of the forward again instead of reading a saved mask. Four
 * consecutive features share a word, 16 bits each; every row starts with a word of its own. A
 * feature is dropped if its draw, as a signed 16-bit number, is below threshold - 32768.
 * `dropout_factors` of src/addnorm/kernels/dropout_rng.py computes the same bits in plain torch.
 *
 * Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
 */
#ifndef ADDNORM_DROPOUT_RNG_H
#define ADDNORM_DROPOUT_RNG_H

#include "add_norm/add_norm.h"
#include "common/vectors.h"

#define GAMMA 0x9e3779b97f4a7c15u

/* A block of features has one vector of words, four 16-bit draws in each. */
typedef VECTOR(int16_t, BLOCK) vdraws;
typedef VECTOR(uint64_t, BLOCK / 4) vwords;

typedef struct {
    vwords counter;
    vdraws last_dropped; /* the greatest draw that drops a feature */
} draw_stream;

/* Start at a feature of a row that is the first of a block. */
INLINE draw_stream open_draw_stream(const struct addnorm_rows *p, int64_t row, int64_t feature) {
    const uint64_t word = (uint64_t)row * (uint64_t)((p->dim + 3) / 4) + (uint64_t)feature / 4;
    draw_stream s;
    vwords step = {0};
    for (int i = 0; i < BLOCK / 4; i++) step[i] = (uint64_t)i * GAMMA;
    s.counter = step + ((uint64_t)*p->seed + (word + 1) * GAMMA);
    s.last_dropped = (vdraws){0} + (int16_t)(p->drop_threshold - 32769);
    return s;
}

/* Return the keep mask of the next block: all 16 bits of a kept feature are set. */
INLINE vdraws next_keep_mask(draw_stream *s) {
    vwords z = s->counter;
    s->counter += GAMMA * (BLOCK / 4);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z = z ^ (z >> 31);
    return (vdraws)((vdraws)z > s->last_dropped);
}

/* Turn a keep mask into factors: 0 or `keep_factor`. */
INLINE block dropout_factors(const vdraws *keep_mask, vfloat keep_factor) {
    vshort half[2];
    block b;
    memcpy(half, keep_mask, sizeof half);
    for (int i = 0; i < 2; i++)
        b.v[i] = (vfloat)((vuint)int16_to_int32(half[i]) & (vuint)keep_factor);
    return b;
}

#endif
