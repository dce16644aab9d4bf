/* Linear maps: the interface.
 *
 *   out = x weight^T + bias
 *
 * All is float32, and dense. No number depends on how many threads there are, and no row of `out` on
 * other rows than by whether there are few.
 */
#ifndef ADDNORM_LINEAR_H
#define ADDNORM_LINEAR_H

#include <stdint.h>

struct addnorm_linear {
    int64_t rows, depth, columns;
    const float *x;      /* (rows, depth) */
    const float *weight; /* (columns, depth) */
    const float *bias;   /* (columns); NULL: none */
    float *out;          /* (rows, columns) */
};

#pragma GCC visibility push(default)
/* columns: a multiple of 16 if there are more than ADDNORM_FEW rows. Not 0 if there is no memory, and
 * then nothing is written. */
int addnorm_linear(const struct addnorm_linear *p, int level, int threads);
#pragma GCC visibility pop

enum {
    ADDNORM_FEW = 112,  /* rows up to which they are turned, not the weights: it is less */
    ADDNORM_LANES = 32, /* a whole number of panels at every level */
    ADDNORM_COLUMNS = 64, /* whose weights are turned at once */
};

struct addnorm_linear_level {
    /* x as columns, into room for rows, up to a multiple of ADDNORM_LANES, times depth. */
    void (*turn)(const struct addnorm_linear *p, float *room);
    /* Some columns of the answer of few rows, which were turned. */
    void (*few)(const struct addnorm_linear *p, const float *turned, int64_t first, int64_t last);
    /* Some rows of it; room for ADDNORM_COLUMNS times depth. */
    void (*many)(const struct addnorm_linear *p, float *room, int64_t first, int64_t last);
};

extern const struct addnorm_linear_level addnorm_linear_portable, addnorm_linear_avx2,
    addnorm_linear_avx512;

#endif
