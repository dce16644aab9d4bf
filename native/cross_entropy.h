/* Softmax and cross entropy of the rows of a matrix, with the gradient of its logits: the interface.
 *
 *   lse  = log of the sum of exp(logits) over all classes
 *   p    = exp(logits - lse)
 *   grad = p - smoothing / classes - (1 - smoothing) at the target
 *
 * which is the gradient of -(1 - smoothing) * log p[target] - smoothing * mean of log p. Rows are
 * dense, and no number depends on how many threads there are.
 */
#ifndef ADDNORM_CROSS_ENTROPY_H
#define ADDNORM_CROSS_ENTROPY_H

#include <stdint.h>

struct addnorm_classes {
    int64_t rows, classes;
    float smoothing;
    const float *logits;
    float *grad; /* may be `logits` itself; NULL if not wanted */
    const int64_t *targets; /* for the gradient alone */
    double *lse, *mean, *top; /* of each row; the latter, of its logits, NULL if not wanted */
};

#pragma GCC visibility push(default)
/* Not 0 if there is a gradient to make and a target is no class; then nothing is written. */
int addnorm_cross_entropy(const struct addnorm_classes *p, int level, int threads);
#pragma GCC visibility pop

typedef void addnorm_classify(const struct addnorm_classes *p, int64_t row);

extern addnorm_classify addnorm_classify_portable, addnorm_classify_avx2, addnorm_classify_avx512;

#endif
