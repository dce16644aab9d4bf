/* Sanitizer driver of the linear map (see common/sanitizer_driver.h). */
#include <math.h>

#include "common/sanitizer_driver.h"
#include "linear/linear.h"

static const int64_t shapes[][3] = {{0, 3, 16},   {1, 1, 1},     {5, 7, 3},     {33, 65, 50},
                                    {112, 9, 41}, {113, 16, 48}, {200, 64, 16}, {130, 1, 80}};

static double element_error(const struct addnorm_linear *p, int64_t row, int64_t column) {
    double expected = p->bias ? p->bias[column] : 0;
    for (int64_t d = 0; d < p->depth; d++)
        expected += (double)p->x[row * p->depth + d] * p->weight[column * p->depth + d];
    return fabs(p->out[row * p->columns + column] - expected) / (double)(1 + p->depth);
}

static double run(int shape, int with_bias, int level, int threads) {
    const int64_t rows = shapes[shape][0], depth = shapes[shape][1], columns = shapes[shape][2];
    float *x = alloc_uniform(rows * depth, 1), *weight = alloc_uniform(columns * depth, 2);
    float *bias = alloc_uniform(columns, 3), *out = alloc_exact(rows * columns, sizeof *out);
    const struct addnorm_linear p = {rows, depth, columns, x, weight, with_bias ? bias : NULL, out};
    double worst = 0;
    if (addnorm_linear(&p, level, threads)) abort();
    for (int64_t i = 0; i < rows * columns; i++) {
        const double error = element_error(&p, i / columns, i % columns);
        if (!(error <= worst)) worst = error;
    }
    free(x), free(weight), free(bias), free(out);
    return worst;
}

int main(void) { return run_all_cases(run, sizeof shapes / sizeof *shapes, 2); }
