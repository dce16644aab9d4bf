/* Linear map without gradient: the interface.
 *
 *   out = x weight^T + bias
 *
 * All matrices are float32 and dense. No number depends on the number of threads. A row of `out`
 * depends on other rows only through the choice between the two algorithms below.
 */
#ifndef ADDNORM_LINEAR_H
#define ADDNORM_LINEAR_H

#include <stdint.h>

struct addnorm_linear { /* LINEAR_STRUCT of src/addnorm/kernels/linear.py */
    int64_t rows, depth, columns;
    const float *x;      /* (rows, depth) */
    const float *weight; /* (columns, depth) */
    const float *bias;   /* (columns); NULL: none */
    float *out;          /* (rows, columns) */
};

enum {
    /* Up to this many rows, the rows are transposed and the weights are read in place. With more
     * rows, transposing the weights is the smaller part of the work. */
    ADDNORM_LINEAR_MAX_SMALL_ROWS = 112,
    ADDNORM_LINEAR_ROW_ALIGNMENT = 32, /* a multiple of BLOCK at every level */
    ADDNORM_LINEAR_COLUMN_BLOCK = 64,  /* columns whose weights are transposed at once */
};

#pragma GCC visibility push(default)
/* With more than ADDNORM_LINEAR_MAX_SMALL_ROWS rows, `columns` must be a multiple of 16. Return
 * nonzero, with nothing written, if the workspace cannot be allocated. */
int addnorm_linear(const struct addnorm_linear *p, int level, int threads);
#pragma GCC visibility pop

struct addnorm_linear_level {
    /* Transpose x into panels: (rows rounded up to ADDNORM_LINEAR_ROW_ALIGNMENT) * depth floats. */
    void (*transpose_rows)(const struct addnorm_linear *p, float *workspace);
    /* Compute columns `first` to `last` from the transposed rows. */
    void (*small_batch)(const struct addnorm_linear *p, const float *x_panels, int64_t first,
                        int64_t last);
    /* Compute rows `first` to `last`; ADDNORM_LINEAR_COLUMN_BLOCK * depth floats of workspace. */
    void (*large_batch)(const struct addnorm_linear *p, float *workspace, int64_t first,
                        int64_t last);
};

extern const struct addnorm_linear_level addnorm_linear_portable, addnorm_linear_avx2,
    addnorm_linear_avx512;

#endif
