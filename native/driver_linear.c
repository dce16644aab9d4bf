/* Runs linear maps on odd shapes with buffers of exactly their size, for the sanitizers of the compiler
 * (`make sanitize`), and against their definition in float64. No torch, no Python. */
#include <math.h>

#include "driver.h"
#include "linear.h"

static const int64_t sizes[][3] = {{0, 3, 16},   {1, 1, 1},     {5, 7, 3},     {33, 65, 50},
                                   {112, 9, 41}, {113, 16, 48}, {200, 64, 16}, {130, 1, 80}};

static double off(const struct addnorm_linear *p, int64_t row, int64_t column) {
    double wanted = p->bias ? p->bias[column] : 0;
    for (int64_t d = 0; d < p->depth; d++)
        wanted += (double)p->x[row * p->depth + d] * p->weight[column * p->depth + d];
    return fabs(p->out[row * p->columns + column] - wanted) / (double)(1 + p->depth);
}

static double run(int number, int how, int level, int threads) {
    const int64_t rows = sizes[number][0], depth = sizes[number][1], columns = sizes[number][2];
    float *x = drawn(rows * depth, 1), *weight = drawn(columns * depth, 2), *bias = drawn(columns, 3);
    float *out = made(rows * columns, sizeof *out);
    const struct addnorm_linear p = {rows, depth, columns, x, weight, how ? bias : NULL, out};
    double worst = 0;
    if (addnorm_linear(&p, level, threads)) abort();
    for (int64_t i = 0; i < rows * columns; i++) {
        const double now = off(&p, i / columns, i % columns);
        if (!(now <= worst)) worst = now;
    }
    free(x), free(weight), free(bias), free(out);
    return worst;
}

int main(void) { return try_all(run, sizeof sizes / sizeof *sizes, 2); }
