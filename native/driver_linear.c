/* Runs linear maps and their gradients on odd shapes with buffers of exactly their size, for the
 * sanitizers of the compiler (`make sanitize`), and against their definition in float64. No torch, no
 * Python. */
#include <math.h>

#include "driver.h"
#include "linear.h"

static const int64_t sizes[][3] = {{0, 3, 16},   {1, 1, 1},     {5, 7, 3},     {33, 65, 50},
                                   {112, 9, 41}, {113, 16, 48}, {200, 64, 16}, {130, 1, 80}};

static double off(const struct addnorm_linear *p, const float *before, int64_t row, int64_t column) {
    double wanted = p->add ? before[row * p->columns + column] : 0;
    if (p->bias) wanted += p->bias[column];
    for (int64_t d = 0; d < p->depth; d++)
        wanted += (double)p->x[row * p->depth + d] *
                  p->weight[p->back ? d * p->columns + column : column * p->depth + d];
    if (p->relu && wanted < 0) wanted = 0;
    if (p->gate && p->gate[row * p->columns + column] <= 0) wanted = 0;
    return fabs(p->out[row * p->columns + column] - wanted) / (double)(1 + p->depth);
}

static double maps(const int64_t *size, int how, int level, int threads) {
    const int64_t rows = size[0], depth = size[1], columns = size[2];
    float *x = drawn(rows * depth, 1), *weight = drawn(columns * depth, 2), *bias = drawn(columns, 3);
    float *gate = drawn(rows * columns, 4), *out = drawn(rows * columns, 5);
    float *before = drawn(rows * columns, 5);
    struct addnorm_linear p = {rows, depth, columns, x, weight, how & 1 ? bias : NULL, NULL, out, 0, 0, 0};
    double worst = 0;
    if (columns % 16 == 0) {
        p.relu = how == 1, p.back = how > 1, p.add = how == 2, p.gate = how > 2 ? gate : NULL;
    }
    if (addnorm_linear(&p, level, threads)) abort();
    for (int64_t i = 0; i < rows * columns; i++) {
        const double now = off(&p, before, i / columns, i % columns);
        if (!(now <= worst)) worst = now;
    }
    free(x), free(weight), free(bias), free(gate), free(out), free(before);
    return worst;
}

static double sums(const int64_t *size, int how, int level, int threads) {
    const int64_t rows = size[0], depth = size[1] / 16 * 16, columns = size[2] / 16 * 16;
    float *dy = drawn(rows * columns, 1), *x = drawn(rows * depth, 2);
    float *weight = made(columns * depth, sizeof *weight), *bias = made(columns, sizeof *bias);
    const struct addnorm_sums p = {rows, depth, columns, dy, x, how ? weight : NULL, bias};
    double worst = 0;
    addnorm_sums(&p, level, threads);
    for (int64_t n = 0; n < columns; n++)
        for (int64_t d = -1; d < (how ? depth : 0); d++) {
            double wanted = 0;
            for (int64_t r = 0; r < rows; r++)
                wanted += (double)dy[r * columns + n] * (d < 0 ? 1 : x[r * depth + d]);
            wanted = fabs((d < 0 ? bias[n] : weight[n * depth + d]) - wanted) / (double)(1 + rows);
            if (!(wanted <= worst)) worst = wanted;
        }
    free(dy), free(x), free(weight), free(bias);
    return worst;
}

static double run(int number, int how, int level, int threads) {
    return how < 4 ? maps(sizes[number], how, level, threads)
                   : sums(sizes[number], how - 4, level, threads);
}

int main(void) { return try_all(run, sizeof sizes / sizeof *sizes, 6); }
