/* Sanitizer driver of cross entropy (see common/sanitizer_driver.h). */
#include <math.h>
#include <string.h>

#include "common/sanitizer_driver.h"
#include "cross_entropy/cross_entropy.h"

/* Option bits of a case. */
enum { SMOOTHING = 1, GRADIENT = 2, IN_PLACE = 4, NUM_OPTIONS = 8 };

static const int64_t shapes[][2] = {{0, 5}, {1, 1}, {3, 7}, {5, 64}, {13, 33}, {2, 8201}};

static double row_error(const struct addnorm_cross_entropy *p, const float *x, const float *grad,
                        int64_t row) {
    const int64_t target = p->targets[row];
    double total = 0, sum = 0, worst, error;
    for (int64_t i = 0; i < p->classes; i++) total += exp(x[i]), sum += x[i];
    worst = fabs(p->lse[row] - log(total));
    if (p->mean) {
        error = fabs(p->mean[row] - sum / p->classes);
        worst = error > worst ? error : worst;
    }
    for (int64_t i = 0; grad && i < p->classes; i++) {
        const double expected = exp(x[i]) / total - p->smoothing / p->classes -
                                (i == target) * (1 - p->smoothing);
        error = fabs(grad[i] - expected);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static double run(int shape, int options, int level, int threads) {
    const int64_t rows = shapes[shape][0], classes = shapes[shape][1], count = rows * classes;
    float *x = alloc_uniform(count, 7), *grad = alloc_exact(count, sizeof *grad);
    int64_t *targets = alloc_exact(rows, sizeof *targets);
    double *statistics = alloc_exact(3 * rows, sizeof *statistics), worst = 0;
    struct addnorm_cross_entropy p = {.rows = rows, .classes = classes, .logits = x};
    p.targets = targets, p.lse = statistics;
    if (options & SMOOTHING)
        p.smoothing = 0.1f, p.mean = statistics + rows, p.max = statistics + 2 * rows;
    if (options & GRADIENT) p.grad = grad;
    for (int64_t i = 0; i < count; i++) x[i] *= 4;
    for (int64_t row = 0; row < rows; row++) targets[row] = row * 7 % classes;
    if (options & IN_PLACE) memcpy(grad, x, (size_t)count * sizeof *x), p.logits = grad;
    if (addnorm_cross_entropy(&p, level, threads)) abort();
    for (int64_t row = 0; row < rows; row++) {
        const float *row_grad = p.grad ? grad + row * classes : NULL;
        const double error = row_error(&p, x + row * classes, row_grad, row);
        if (!(error <= worst)) worst = error;
    }
    if (rows) { /* a target that is not a class is an error if there is a gradient */
        targets[rows - 1] = classes;
        if (addnorm_cross_entropy(&p, level, threads) != (p.grad != NULL)) worst = INFINITY;
    }
    free(x), free(grad), free(targets), free(statistics);
    return worst;
}

int main(void) { return run_all_cases(run, sizeof shapes / sizeof *shapes, NUM_OPTIONS); }
