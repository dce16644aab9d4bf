/* Dropout, add and norm over the rows of a matrix in one go: the interface of the library.
 *
 *   k = 0 or 1 / (1 - rate)                 one draw of 16 bits a feature
 *   s = a * x + k * f                       rounded to the type of x
 *   y = weight * (s - mean) / sqrt(mean((s - mean)^2) + eps) + bias       mean = 0 for RMSNorm
 *
 * Matrices are (rows, dim), dense, at any address; all vectors and statistics are float32. Pointers
 * to what is not wanted or not there are NULL. The draws are a pure function of the seed and the
 * place in the matrix (SplitMix64; src/addnorm/kernels/draws.py has it in plain torch), so that the
 * backward makes them again. Neither they nor any sum depend on the number of threads.
 */
#ifndef ADDNORM_H
#define ADDNORM_H

#include <stdint.h>

#define ADDNORM_VERSION 6 /* of this interface; src/addnorm/kernels/native.py knows the same */

enum { ADDNORM_PORTABLE, ADDNORM_AVX2, ADDNORM_AVX512, ADDNORM_LEVELS };
enum { ADDNORM_F32, ADDNORM_BF16, ADDNORM_F32_BF16, ADDNORM_TYPES }; /* x and f; x, f */

struct addnorm_rows {
    int64_t rows, dim;
    int32_t types;    /* of x, s, y, dy, ds, dx; and of f, df */
    int32_t rms;      /* RMSNorm, not LayerNorm */
    int32_t dropped;  /* of 65536 draws; 0: no dropout */
    float kept;       /* what a kept feature is multiplied with */
    float scale;      /* a, where `scales` is NULL */
    float eps;
    const int64_t *seed;
    const float *scales; /* a, one a feature */
    const float *weight, *bias;
    const void *x, *f;
    void *s, *y;        /* s may be NULL */
    float *mean, *rstd; /* of each row; may be NULL in the forward, mean of RMSNorm always */
    /* The backward alone. */
    const void *dy, *ds;  /* either may be NULL; s is read there, x only for `dscales` */
    void *dx, *df;
    float *dweight, *dbias, *dscales;
    float *partial; /* the library's own: these three of each part of the rows */
};

#pragma GCC visibility push(default)
int addnorm_version(void);
int addnorm_levels(void); /* bit n: level n is built in, and this CPU can run it */
void addnorm_forward(const struct addnorm_rows *p, int level, int threads);
/* Not 0 if there is no memory for sums, and then nothing is written. */
int addnorm_backward(const struct addnorm_rows *p, int level, int threads);
/* f * k into y, and nothing else; types, seed, rows, dim, dropped, kept, f and y are read. */
void addnorm_drop(const struct addnorm_rows *p, int level, int threads);
#pragma GCC visibility pop

#endif
