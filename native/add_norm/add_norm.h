/* Fused dropout, add and norm over the rows of a matrix: the interface.
 *
 *   k = 0 or 1 / (1 - rate)                 dropout, one 16-bit draw per feature
 *   s = a * x + k * f                       rounded to the dtype of x
 *   y = weight * (s - mean) / sqrt(mean((s - mean)^2) + eps) + bias       mean = 0 for RMSNorm
 *
 * Matrices are (rows, dim), dense, at any address; vectors and statistics are float32. Optional
 * pointers may be NULL. dropout_rng.h defines the draws, a pure function of the seed and of the
 * position in the matrix: the backward computes them again. Sums over rows are made per row block,
 * whose size depends on `rows` alone, so no result depends on the number of threads.
 */
#ifndef ADDNORM_ADD_NORM_H
#define ADDNORM_ADD_NORM_H

#include "common/addnorm.h"

struct addnorm_rows { /* ROWS_STRUCT of src/addnorm/kernels/library.py */
    int64_t rows, dim;
    int32_t dtypes;         /* of x, s, y, dy, ds, dx; and of f, df */
    int32_t rms;            /* RMSNorm, not LayerNorm */
    int32_t drop_threshold; /* how many of the 65536 draws drop a feature; 0: no dropout */
    float keep_factor;      /* 1 / (1 - rate) */
    float scale;            /* a, where `scales` is NULL */
    float eps;
    const int64_t *seed;
    const float *scales; /* a, one per feature */
    const float *weight, *bias;
    const void *x, *f;
    void *s, *y;        /* s may be NULL */
    float *mean, *rstd; /* per row; may be NULL in the forward, mean also for RMSNorm */
    /* Backward only. It reads s, and x only for `dscales`. */
    const void *dy, *ds; /* gradients of y and s; ds may be NULL */
    void *dx, *df;
    float *dweight, *dbias, *dscales;
    float *partial; /* internal: dweight, dbias and dscales of each row block */
};

#pragma GCC visibility push(default)
void addnorm_add_norm_forward(const struct addnorm_rows *p, int level, int threads);
/* Return nonzero, with nothing written, if the partial sums cannot be allocated. */
int addnorm_add_norm_backward(const struct addnorm_rows *p, int level, int threads);
/* y = k * f, dropout alone. Reads dtypes, seed, rows, dim, drop_threshold, keep_factor, f and y. */
void addnorm_dropout(const struct addnorm_rows *p, int level, int threads);
#pragma GCC visibility pop

#endif
