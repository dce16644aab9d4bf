/* Softmax cross entropy of the rows of a matrix, with the gradient of the logits: the interface.
 *
 *   lse  = log of the sum of exp(logits) over all classes
 *   p    = exp(logits - lse)
 *   grad = p - smoothing / classes - (1 - smoothing) at the target
 *
 * grad is the gradient of -(1 - smoothing) * log p[target] - smoothing * mean of log p. Rows are
 * dense, and no number depends on the number of threads.
 */
#ifndef ADDNORM_CROSS_ENTROPY_H
#define ADDNORM_CROSS_ENTROPY_H

#include <stdint.h>

/* CROSS_ENTROPY_STRUCT of src/addnorm/kernels/cross_entropy_rows.py. */
struct addnorm_cross_entropy {
    int64_t rows, classes;
    float smoothing;
    const float *logits;
    float *grad;              /* may be `logits` itself; NULL: no gradient */
    const int64_t *targets;   /* read only for the gradient */
    double *lse, *mean, *max; /* per row; mean and maximum of the logits may be NULL */
};

#pragma GCC visibility push(default)
/* Return nonzero, with nothing written, if a gradient is requested and a target is not a class. */
int addnorm_cross_entropy(const struct addnorm_cross_entropy *p, int level, int threads);
#pragma GCC visibility pop

typedef void addnorm_cross_entropy_kernel(const struct addnorm_cross_entropy *p, int64_t row);

extern addnorm_cross_entropy_kernel addnorm_cross_entropy_portable, addnorm_cross_entropy_avx2,
    addnorm_cross_entropy_avx512;

#endif
