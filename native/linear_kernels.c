/* Linear maps at one instruction-set level: compiled once a level, as kernels.c is. */
#include "linear.h"
#include "products.h"
#include "squares.h"

#define X f32
#include "turn.h"
#undef NAME

/* Few rows: they stand in the lanes of vectors, and the weights are read where they are, once for a
 * group of rows. */

enum { CACHED = 1 << 16 }; /* numbers of x in a group, two panels of rows at least */

static void turn(const struct addnorm_linear *p, float *room) {
    turn_f32(p->x, p->depth, p->rows, p->depth, 1, room);
}

/* Sums, (tall, BLOCK), to `rows` rows and `tall` columns of the answer. */
static void place(const float *sums, int64_t tall, int64_t rows, const float *bias, float *out,
                  int64_t step) {
    for (int64_t t = 0; t < tall; t += 4)
        for (int64_t r = 0; r < rows; r += 4) {
            const int64_t wide = least(tall - t, 4), high = least(rows - r, 4);
            four v[4], shift = {0};
            if (bias) memcpy(&shift, bias + t, sizeof(float) * (size_t)wide);
            for (int64_t n = 0; n < 4; n++) v[n] = load4_f32(sums + (t + n) * BLOCK + r);
            turn4(v);
            for (int64_t n = 0; n < high; n++) {
                float *to = out + (r + n) * step + t;
                v[n] += shift;
                if (wide == 4)
                    memcpy(to, &v[n], sizeof v[n]);
                else
                    memcpy(to, &v[n], sizeof(float) * (size_t)wide);
            }
        }
}

static void few(const struct addnorm_linear *p, const float *turned, int64_t first, int64_t last) {
    const int64_t depth = p->depth;
    /* Rows of weights a multiple of 4096 bytes apart would push each other out of the first cache. */
    const int64_t strip = depth % 1024 ? TALLEST : TALL;
    int64_t group = depth ? CACHED / depth / BLOCK * BLOCK : p->rows;
    float sums[TALLEST * BLOCK];
    if (group < 2 * BLOCK) group = 2 * BLOCK;
    for (int64_t from = 0; from < p->rows; from += group) {
        const int64_t to = least(from + group, p->rows);
        for (int64_t n = first; n < last; n += strip) {
            const int64_t tall = least(last - n, strip);
            struct thin weight = {.at = p->weight + n * depth, .row = depth};
            const struct square c = {.at = sums, .row = BLOCK};
            for (int64_t row = from; row < to; row += BLOCK) {
                const int64_t rows = least(to - row, BLOCK);
                const float *panel = turned + row * depth;
                weight.ahead = row == from && n + 2 * strip <= last ? strip * depth : 0;
                if (rows <= WIDE)
                    panel_product(1, 0, tall, depth, weight, panel, BLOCK, c, NEVER, NEVER);
                else
                    panel_product(2, 0, tall, depth, weight, panel, BLOCK, c, NEVER, NEVER);
                place(sums, tall, rows, p->bias ? p->bias + n : 0, p->out + row * p->columns + n,
                      p->columns);
            }
        }
    }
}

/* Many rows: the weights of some columns stand in panels. */

static void many(const struct addnorm_linear *p, float *room, int64_t first, int64_t last) {
    const int64_t depth = p->depth, all = p->columns;
    for (int64_t n = 0; n < all; n += ADDNORM_COLUMNS) {
        const int64_t columns = least(all - n, ADDNORM_COLUMNS);
        const struct thin x = {.at = p->x + first * depth, .row = depth};
        const struct panels weight =
            turn_f32(p->weight + n * depth, depth, columns, depth, 1, room);
        const struct square c = {
            .at = p->out + first * all + n,
            .row = all,
            .bias = p->bias ? p->bias + n : 0,
        };
        product(last - first, columns, depth, x, weight, c, NEVER, NEVER);
    }
}

#define NAME_(level) addnorm_linear_##level
#define NAME(level) NAME_(level)

const struct addnorm_linear_level NAME(LEVEL) = {.turn = turn, .few = few, .many = many};
