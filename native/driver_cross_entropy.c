/* Runs cross entropy on odd shapes with buffers of exactly their size, for the sanitizers of the
 * compiler (`make sanitize`), and against its definition in float64. No torch, no Python. */
#include <math.h>
#include <string.h>

#include "cross_entropy.h"
#include "driver.h"

static const int64_t sizes[][2] = {{0, 5}, {1, 1}, {3, 7}, {5, 64}, {13, 33}, {2, 8201}};

/* How far the numbers of a row are from their definition. */
static double off(const struct addnorm_classes *p, const float *x, const float *grad, int64_t row) {
    const int64_t target = p->targets[row];
    double total = 0, middle = 0, worst, now;
    for (int64_t i = 0; i < p->classes; i++) total += exp(x[i]), middle += x[i];
    worst = fabs(p->lse[row] - log(total));
    if (p->mean) {
        now = fabs(p->mean[row] - middle / p->classes);
        worst = now > worst ? now : worst;
    }
    for (int64_t i = 0; grad && i < p->classes; i++) {
        now = exp(x[i]) / total - p->smoothing / p->classes - (i == target) * (1 - p->smoothing);
        now = fabs(grad[i] - now);
        if (!(now <= worst)) worst = now;
    }
    return worst;
}

static double run(int size, int how, int level, int threads) {
    const int64_t rows = sizes[size][0], classes = sizes[size][1];
    float *x = drawn(rows * classes, 7), *grad = made(rows * classes, sizeof *grad);
    int64_t *targets = made(rows, sizeof *targets);
    double *sums = made(3 * rows, sizeof *sums), worst = 0;
    struct addnorm_classes p = {rows, classes, how & 1 ? 0.1f : 0, x, how & 2 ? grad : NULL, targets,
                                sums, how & 1 ? sums + rows : NULL, how & 1 ? sums + 2 * rows : NULL};
    for (int64_t i = 0; i < rows * classes; i++) x[i] *= 4;
    for (int64_t row = 0; row < rows; row++) targets[row] = row * 7 % classes;
    if (how & 4) memcpy(grad, x, (size_t)(rows * classes) * sizeof *x), p.logits = grad;
    if (addnorm_cross_entropy(&p, level, threads)) abort();
    for (int64_t row = 0; row < rows; row++) {
        double now = off(&p, x + row * classes, p.grad ? grad + row * classes : NULL, row);
        if (!(now <= worst)) worst = now;
    }
    if (rows) {
        targets[rows - 1] = classes;
        if (addnorm_cross_entropy(&p, level, threads) != (p.grad != NULL)) worst = INFINITY;
    }
    free(x), free(grad), free(targets), free(sums);
    return worst;
}

int main(void) { return try_all(run, sizeof sizes / sizeof *sizes, 8); }
