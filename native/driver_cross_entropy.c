/* Runs cross entropy on odd shapes with buffers of exactly their size, for the sanitizers of the
 * compiler (`make sanitize`), and against its definition in float64. No torch, no Python. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "addnorm.h"
#include "cross_entropy.h"

static void *made(int64_t count, size_t size) {
    void *buffer = calloc(count ? (size_t)count : 1, size);
    if (buffer == NULL) abort();
    return buffer;
}

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

static double run(int64_t rows, int64_t classes, int how, int level, int threads) {
    float *x = made(rows * classes, sizeof *x), *grad = made(rows * classes, sizeof *grad);
    int64_t *targets = made(rows, sizeof *targets);
    double *sums = made(3 * rows, sizeof *sums), worst = 0;
    struct addnorm_classes p = {rows, classes, how & 1 ? 0.1f : 0, x, how & 2 ? grad : NULL, targets,
                                sums, how & 1 ? sums + rows : NULL, how & 1 ? sums + 2 * rows : NULL};
    uint32_t seed = 7;
    for (int64_t i = 0; i < rows * classes; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 21) - 4;
    }
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

int main(void) {
    static const int64_t shapes[][2] = {{0, 5}, {1, 1}, {3, 7}, {5, 64}, {13, 33}, {2, 8201}};
    const int levels = addnorm_levels();
    int wrong = 0, runs = 0;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++)
        for (int how = 0; how < 8; how++)
            for (int level = 0; level < ADDNORM_LEVELS; level++)
                for (int threads = 1; levels >> level & 1 && threads < 4; threads++, runs++) {
                    double worst = run(shapes[n][0], shapes[n][1], how, level, threads);
                    if (worst <= 1e-5) continue;
                    printf("%ld x %ld, how %d, level %d, threads %d: off by %g\n", (long)shapes[n][0],
                           (long)shapes[n][1], how, level, threads, worst);
                    wrong++;
                }
    printf("%d runs, %d wrong, levels %d\n", runs, wrong, levels);
    return wrong != 0;
}
